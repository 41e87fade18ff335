//! Memory and storage that a run needs on each node, computed from the run's input. Pure, except for reading the domain file.
//!
//! `run` and `doctor` pass the result to the check of the nodes. If /dev/shm of a node is too small, the check reports the node
//! and both sizes before any rank starts. The sizes are those of the solver's work arrays and of the checkpoint's buffers at
//! each position. Ranks are placed in the order of the hosts, as launchers place them.

use std::collections::BTreeSet;

use super::protection::{STATE_BYTES, read_domains};
use crate::base::cores;
use crate::base::params::{MemoryCheck, TestParams};
use crate::base::topology::Topology;
use crate::checkpoint::groups::{DomainFile, Groups};
use crate::checkpoint::need::{buffers_of_each, file_bytes, memory_bytes};
use crate::checkpoint::plan::{Buffers, Layout, Scheme};
use crate::checkpoint::storage::DirScope;
use crate::config::Loaded;
use crate::config::memory_need::{Means, PROCESS_BYTES, device_bytes, private_bytes, rank_bytes};
use crate::config::settings::{Restart, Saves};
use crate::grid::ProcessGrid;
use crate::matrix::Shape;
use crate::shm::huge::HUGE;
use crate::shm::{MemoryStore, Store, hugetlbfs};
use crate::supervise::judge::fitness::Need;
use crate::supervise::start::hosts::{Host, slots};

/// Memory and storage that the ranks on each host need, and the bytes of persistent shared memory of the rank that needs the
/// most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    pub hosts: Vec<Need>,
    pub rank_bytes: Option<u64>,
    /// Group number of each position, in the test with the most positions. Empty without protection.
    pub groups: Vec<usize>,
    /// Hosts in use that the domain file does not list, although it lists other hosts.
    pub left_out: Vec<String>,
    /// Reason why the requested groups are impossible, if the run may resume with other groups; otherwise `None`.
    other_groups: Option<String>,
}

impl Needs {
    /// Returns the bytes of storage that a checkpoint of the largest test takes. If each node has its own storage, only the node
    /// with the largest part of the checkpoint counts.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.hosts.iter().map(|need| need.stored_bytes).max().unwrap_or(0)
    }

    /// Returns a warning that the requested groups are impossible; `None` if they are possible.
    pub fn other_groups_words(&self) -> Option<String> {
        let why = self.other_groups.as_ref()?;
        Some(format!("{why}. A run that resumes uses other groups instead; a new run is refused"))
    }

    /// Returns a warning about hosts that the domain file does not list; `None` if it lists all hosts in use.
    pub fn left_out_words(&self) -> Option<String> {
        let [first, others @ ..] = &self.left_out[..] else { return None };
        let more = match others.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "the file of --domains names failure domains of nodes, but not of {first}{more}; a node that \
             the file does not list is a domain by itself. The file must have the name that the node gives itself (hostname)"
        ))
    }
}

/// Returns true if the settings allow a resume from storage. Does not check whether storage contains a checkpoint.
pub fn may_go_on(protection: &Saves) -> bool {
    protection.level2.is_some() && protection.restart != Restart::Never
}

/// Returns the bytes of persistent shared memory that an earlier start of the job has left on this node.
pub fn held_bytes(protection: &Saves) -> u64 {
    let memory_store = MemoryStore::new(protection.store, &protection.job);
    memory_store.map_or(0, |memory_store| memory_store.list().iter().map(|part| part.bytes).sum())
}

/// Distribution of a run's ranks over the hosts, and other facts on which the needs of the hosts depend.
struct Placed<'a> {
    loaded: &'a Loaded,
    hosts: &'a [Host],
    /// Index of each rank's host in `hosts`.
    places: Vec<usize>,
    means: Means,
    domain_file: Option<DomainFile>,
    store: Store,
    /// Bytes of a huge page on this node. All nodes of a run are assumed to have huge pages of this size.
    huge: usize,
    may_resume: bool,
}

impl<'a> Placed<'a> {
    fn new(
        loaded: &'a Loaded,
        hosts: &'a [Host],
        ranks: usize,
        may_resume: bool,
    ) -> Result<Self, String> {
        let protection = loaded.settings.saves();
        let places = slots(hosts).take(ranks).collect();
        // Without `--threads`, the ranks are assumed to have as many threads as on this node.
        let most = hosts.iter().map(|host| host.slots).max().unwrap_or(1);
        let helpers = protection.and_then(|p| p.helper_cores.as_ref()).map(|named| &named.0);
        let cores = helpers.map_or(cores::count(), |named| cores_without(named, Topology::here()));
        let threads = loaded.settings.threads.unwrap_or((cores / most.max(1)).max(1));
        let means = loaded.settings.means(threads);
        let domains = protection.and_then(|p| p.domains.as_deref());
        let domain_file = domains.map(read_domains).transpose()?;
        let store = protection.map_or(Store::Posix, |p| p.store);
        let huge = hugetlbfs::huge_page_bytes().unwrap_or(HUGE);
        Ok(Self { loaded, hosts, places, means, domain_file, store, huge, may_resume })
    }

    /// Returns the hosts in use that the domain file does not list, although it lists other hosts.
    fn left_out(&self) -> Vec<String> {
        let Some(file) = &self.domain_file else { return Vec::new() };
        let names = self.places.iter().map(|at| &self.hosts[*at].name).enumerate();
        let left_out = names.filter(|(rank, name)| file.leaves_out(*rank, name));
        let mut left_out: Vec<String> = left_out.map(|(_, name)| name.clone()).collect();
        left_out.dedup();
        left_out
    }

    /// Returns the failure domain of each of the first `ranks` ranks.
    fn domains(&self, ranks: usize) -> Vec<String> {
        let domain = |(rank, at): (usize, &usize)| match &self.domain_file {
            Some(file) => file.domain(rank, &self.hosts[*at].name),
            None => self.hosts[*at].name.clone(),
        };
        self.places[..ranks].iter().enumerate().map(domain).collect()
    }

    /// Adds the private memory of a test's ranks to `of_test`, the needs of their hosts.
    fn add_own(&self, test: &TestParams, protected: bool, of_test: &mut [Need]) {
        let settings = &self.loaded.settings;
        // If the ranks do not check their memory, the supervisor does not check it either.
        if settings.memory_check != MemoryCheck::On {
            return;
        }
        let own =
            if protected { private_bytes(test, self.means) } else { rank_bytes(test, self.means) };
        let (ranks, dedicated) =
            (settings.ranks(test.p, test.q), settings.dedicated(test.p, test.q));
        let bytes = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        let on_device = bytes(device_bytes(test, self.means));
        for (rank, &host) in self.places.iter().take(ranks).enumerate() {
            // A dedicated checksum rank needs only the memory of a process, in addition to its parity.
            let computes = rank + dedicated < ranks;
            let need = &mut of_test[host];
            let own = bytes(if computes { own } else { PROCESS_BYTES });
            need.own_bytes = need.own_bytes.saturating_add(own);
            if computes && on_device > 0 {
                (need.device_ranks, need.device_bytes) = (need.device_ranks + 1, on_device);
            }
        }
    }

    /// Adds the memory and storage that the checkpoints of a test take to `of_test`, and their groups to `needs`. The error is
    /// the reason why the ranks cannot be divided into groups.
    fn add_checkpoints(
        &self,
        test: &TestParams,
        protection: &Saves,
        of_test: &mut [Need],
        needs: &mut Needs,
    ) -> Result<(), String> {
        let (scheme, group) = (&protection.scheme, protection.group);
        let layout = Layout::of(test).kept_by(scheme, group);
        let ranks = self.loaded.settings.ranks(test.p, test.q).min(self.places.len());
        let domains = self.domains(ranks);
        let divided = match scheme.layout.groups(&layout, &domains, group, scheme.losses) {
            Err(why) if self.may_resume => {
                needs.other_groups = Some(why.to_string());
                scheme.layout.groups_at_any_rate(&layout, &domains, group, scheme.losses)
            }
            as_asked => as_asked,
        };
        let groups = divided.map_err(|why| why.to_string())?;
        let all = buffers(test, &layout, &groups, scheme);
        for (&host, buffers) in self.places.iter().zip(&all) {
            let bytes = memory_bytes(buffers, self.store, self.huge);
            of_test[host].named_bytes += bytes;
            needs.rank_bytes = needs.rank_bytes.max(Some(bytes));
        }
        match protection.level2.as_ref().map(|level2| level2.scope) {
            Some(DirScope::Node) => {
                for (&host, buffers) in self.places.iter().zip(&all) {
                    of_test[host].stored_bytes += file_bytes(buffers, DirScope::Node);
                }
            }
            Some(DirScope::Shared) => {
                // A dedicated checksum rank writes nothing to shared storage.
                let writers = all[..layout.working()].iter();
                let whole = writers.map(|buffers| file_bytes(buffers, DirScope::Shared)).sum();
                of_test.iter_mut().for_each(|of_host| of_host.stored_bytes = whole);
            }
            None => {}
        }
        if ranks > needs.groups.len() {
            needs.groups = group_of_each(&groups, ranks);
        }
        Ok(())
    }
}

/// Computes the needs of a run with `ranks` ranks, placed in the order of the hosts. `may_resume` is true if the run may resume
/// from a checkpoint. Such a run accepts fewer failure domains than the requested groups need.
pub fn of_hosts(
    loaded: &Loaded,
    hosts: &[Host],
    ranks: usize,
    may_resume: bool,
) -> Result<Needs, String> {
    let placed = Placed::new(loaded, hosts, ranks, may_resume)?;
    let none = Need::none(placed.store);
    let mut needs = Needs {
        hosts: vec![none; hosts.len()],
        rank_bytes: None,
        groups: Vec::new(),
        left_out: placed.left_out(),
        other_groups: None,
    };
    for test in loaded.largest_tests() {
        // Such sizes fit nowhere, and the sums would overflow.
        let protection = loaded.settings.saves();
        let protection = protection.filter(|_| test.n > 0 && test.n < 1 << 30);
        let mut of_test = vec![none; hosts.len()];
        placed.add_own(&test, protection.is_some(), &mut of_test);
        let all = test.p * test.q + loaded.settings.dedicated(test.p, test.q);
        let working = loaded.settings.ranks(test.p, test.q).min(placed.places.len());
        if let Some(protection) = protection.filter(|_| working == all) {
            placed.add_checkpoints(&test, protection, &mut of_test, &mut needs)?;
        }
        for (need, of_test) in needs.hosts.iter_mut().zip(of_test) {
            // Tests run one after the other.
            *need = need.max(of_test);
        }
    }
    Ok(needs)
}

/// Returns the number of this rank's cores that contain none of the processors in `helpers`, which are named for helpers.
fn cores_without(helpers: &BTreeSet<usize>, topology: &Topology) -> usize {
    cores::count().saturating_sub(topology.among(&topology.of_their_cores(helpers)).cores())
}

fn group_of_each(groups: &Groups, positions: usize) -> Vec<usize> {
    let mut of_each = vec![0; positions];
    for (number, members) in groups.iter().enumerate() {
        members.iter().for_each(|&position| of_each[position] = number);
    }
    of_each
}

/// Returns the buffers of each position of a test that is divided into `groups`.
fn buffers(test: &TestParams, layout: &Layout, groups: &Groups, scheme: &Scheme) -> Vec<Buffers> {
    let ld = |position| leading_dimension(test, position);
    buffers_of_each(layout, groups, ld, scheme, STATE_BYTES)
}

/// Returns the bytes of persistent shared memory that the ranks in `ranks` take in a test. Positions are assigned in the order of
/// ranks. A rank without a position counts as much as the largest position. `groups` is `None` if the run resumes with the
/// unknown groups of an earlier start. In this case, parity is not counted.
pub fn named_bytes(
    test: &TestParams,
    saves: &Saves,
    groups: Option<Groups>,
    ranks: &[usize],
) -> u128 {
    // Such sizes fit nowhere, and the sums would overflow.
    if !(1..1 << 30).contains(&test.n) {
        return if test.n == 0 { 0 } else { u128::MAX };
    }
    let layout = Layout::of(test).kept_by(&saves.scheme, saves.group);
    let all = match groups {
        Some(groups) => buffers(test, &layout, &groups, &saves.scheme),
        None => {
            let alone = (0..layout.positions()).map(|position| vec![position]).collect();
            buffers(test, &layout, &alone, &Scheme { losses: 0, ..saves.scheme })
        }
    };
    let huge = hugetlbfs::huge_page_bytes().unwrap_or(HUGE);
    let bytes = |buffers| u128::from(memory_bytes(buffers, saves.store, huge));
    let most = || all.iter().map(bytes).max().unwrap_or(0);
    ranks.iter().map(|&rank| all.get(rank).map_or_else(most, bytes)).sum()
}

fn leading_dimension(test: &TestParams, position: usize) -> usize {
    let grid = ProcessGrid::of(test);
    grid.coordinates(position).map_or(0, |(row, col)| Shape::new(test, row, col).ld)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flags::BenchFlags;
    use clap::{Command, FromArgMatches};

    fn loaded(words: &str) -> Loaded {
        let command =
            <BenchFlags as clap::Args>::augment_args(Command::new("x").no_binary_name(true));
        let matches = command.try_get_matches_from(words.split_whitespace()).unwrap();
        BenchFlags::from_arg_matches(&matches).unwrap().input().load().unwrap()
    }

    fn hosts(slots: &[usize]) -> Vec<Host> {
        slots.iter().enumerate().map(|(i, s)| Host::new(format!("n{i}"), *s)).collect()
    }

    #[test]
    fn a_protected_run_needs_what_its_buffers_take() {
        let loaded = loaded("-n 8000 --nb 64 -p 2 -q 2 --checkpoint 10");
        let needs = of_hosts(&loaded, &hosts(&[1, 1, 1, 1]), 4, false).unwrap();
        // The checkpoints of a group of four take 2 + 2/3 times the matrix. Each member has a quarter of the matrix.
        let quarter = 8000.0 * 8001.0 * 8.0 / 4.0;
        for need in &needs.hosts {
            let times = need.named_bytes as f64 / quarter;
            assert!((2.6..2.85).contains(&times), "{times}");
            assert!((40 << 20..76 << 20).contains(&need.own_bytes), "{need:?}");
        }
        assert_eq!(needs.groups, [0, 0, 0, 0]);
        assert_eq!(needs.rank_bytes, needs.hosts.iter().map(|n| n.named_bytes).max());
        assert_eq!(needs.checkpoint_bytes(), 0, "nothing goes to storage");
        // Shared storage has the whole matrix, plus a digest for each thousand words.
        let shared = "-n 8000 --nb 64 -p 2 -q 2 --checkpoint 10 --level2 /x";
        let shared = of_hosts(&self::loaded(shared), &hosts(&[1, 1, 1, 1]), 4, false).unwrap();
        for need in &shared.hosts {
            assert!((1.0..1.01).contains(&(need.stored_bytes as f64 / quarter / 4.0)), "{need:?}");
        }
        // Each node's own storage has a quarter of the matrix, plus parity of a third of that size.
        let own = "-n 8000 --nb 64 -p 2 -q 2 --checkpoint 10 --level2 /x --level2-scope node";
        let own = of_hosts(&self::loaded(own), &hosts(&[1, 1, 1, 1]), 4, false).unwrap();
        for need in &own.hosts {
            let times = need.stored_bytes as f64 / quarter;
            assert!((1.32..1.37).contains(&times), "{times}");
        }
        // With two ranks on each node, groups have two members, and take more memory. The fifth slot stays empty.
        let pairs = of_hosts(&loaded, &hosts(&[2, 3]), 4, false).unwrap();
        assert_eq!(pairs.groups, [0, 1, 0, 1]);
        for need in &pairs.hosts {
            assert!((3.9..4.2).contains(&(need.named_bytes as f64 / 2.0 / quarter)), "{need:?}");
        }
    }

    /// Nodes of a rack are lost together, so a group has members on different racks. A smaller group has more parity for each
    /// member, so its files are larger. The number of files stays the same.
    #[test]
    fn failure_domains_change_what_lies_on_a_nodes_own_storage() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("domains");
        let bytes = |domains: &str, slots: &[usize]| -> Vec<f64> {
            std::fs::write(&file, domains).unwrap();
            let words = "-n 8000 --nb 64 -p 2 -q 2 --checkpoint 10 --level2 /x --level2-scope node";
            let words = format!("{words} --domains {}", file.display());
            let needs = of_hosts(&loaded(&words), &hosts(slots), 4, false).unwrap();
            let quarter = 8000.0 * 8001.0 * 8.0 / 4.0;
            needs.hosts.iter().map(|need| need.stored_bytes as f64 / quarter).collect()
        };
        let near = |found: Vec<f64>, wanted: &[f64]| {
            assert_eq!(found.len(), wanted.len());
            let close = |(is, of): (&f64, &f64)| (is - of).abs() <= 0.03 * of;
            assert!(found.iter().zip(wanted).all(close), "{found:?} for {wanted:?}");
        };
        let alone = 4.0 / 3.0;
        near(bytes("", &[1, 1, 1, 1]), &[alone; 4]);
        near(bytes("n0 a\nn1 a\nn2 b\nn3 b\n", &[1, 1, 1, 1]), &[2.0; 4]);
        // Each rank is a failure domain, as if the node were several nodes. All its ranks write to the storage of one node.
        let ranks: String = (0..4).map(|rank| format!("rank:{rank} d{rank}\n")).collect();
        near(bytes(&ranks, &[3, 1]), &[3.0 * alone, alone]);
    }

    #[test]
    fn without_protection_all_memory_is_the_ranks_own() {
        let loaded = loaded("-n 8000 --nb 64 -p 2 -q 2");
        let needs = of_hosts(&loaded, &hosts(&[3, 3]), 4, false).unwrap();
        let [three, one] = [needs.hosts[0].own_bytes, needs.hosts[1].own_bytes];
        assert_eq!(three, 3 * one);
        assert!(one > 128_000_000);
        assert_eq!((needs.hosts[0].named_bytes, needs.rank_bytes), (0, None));
    }

    /// Covers `--memory-check warn` and `off`, for nodes that report less memory than they have. The computed need is then 0, so
    /// the supervisor does not refuse such nodes either.
    #[test]
    fn a_rank_that_does_not_check_needs_nothing() {
        for how in ["warn", "off"] {
            let words = format!("-n 8000 --nb 64 -p 2 -q 2 --memory-check {how}");
            let needs = of_hosts(&loaded(&words), &hosts(&[3, 3]), 4, false).unwrap();
            assert!(needs.hosts.iter().all(|need| need.own_bytes == 0), "{needs:?}");
        }
    }

    /// A computing rank keeps the matrix twice and no checksums. A checksum rank keeps two checksums.
    #[test]
    fn checksums_on_ranks_of_their_own_take_memory_there() {
        let loaded = loaded("-n 8000 --nb 64 -p 2 -q 2 --checkpoint 10 --parity-layout dedicated");
        let needs = of_hosts(&loaded, &hosts(&[1, 1, 1, 1, 1]), 5, false).unwrap();
        let quarter = 8000.0 * 8001.0 * 8.0 / 4.0;
        for need in &needs.hosts {
            let times = need.named_bytes as f64 / quarter;
            assert!((1.95..2.15).contains(&times), "{times}");
        }
        assert_eq!(needs.groups, [0, 0, 0, 0, 0]);
        assert_eq!(needs.hosts[4].own_bytes, PROCESS_BYTES as u64);
        assert!(needs.hosts[0].own_bytes > PROCESS_BYTES as u64);
        // Shared storage has the matrix. A node's own storage has a quarter of the matrix, or the checksums of all quarters.
        let with = |scope: &str| {
            let words = format!(
                "-n 8000 --nb 64 -p 2 -q 2 --checkpoint 10 --parity-layout dedicated --level2 /x --level2-scope {scope}"
            );
            of_hosts(&self::loaded(&words), &hosts(&[1, 1, 1, 1, 1]), 5, false).unwrap().hosts
        };
        for (scope, quarters) in [("shared", 4.0), ("node", 1.0)] {
            for need in with(scope) {
                let times = need.stored_bytes as f64 / quarter / quarters;
                assert!((0.97..1.02).contains(&times), "{scope}: {times}");
            }
        }
        let why = of_hosts(&loaded, &hosts(&[1, 1, 1, 2]), 5, false).unwrap_err();
        assert!(why.contains("\"n3\"") && why.contains("--parity-layout dedicated"), "{why}");
    }

    /// A resumed run has other groups, and the nodes need enough memory for these groups.
    #[test]
    fn a_run_that_goes_on_with_too_few_nodes_needs_what_its_other_groups_take() {
        let loaded = loaded("-n 8000 --nb 64 -p 2 -q 2 --checkpoint 10 --group 4");
        let ask = |slots: &[usize], goes_on| of_hosts(&loaded, &hosts(slots), 4, goes_on);
        let why = ask(&[2, 2], false).unwrap_err();
        assert!(why.contains("groups of 4 cannot be formed"), "{why}");
        let pairs = ask(&[2, 2], true).unwrap();
        assert!(pairs.other_groups_words().unwrap().starts_with(&why));
        assert_eq!(pairs.groups, [0, 1, 0, 1]);
        let quarter = 8000.0 * 8001.0 * 8.0 / 4.0;
        for need in &pairs.hosts {
            assert!((3.9..4.2).contains(&(need.named_bytes as f64 / 2.0 / quarter)), "{need:?}");
        }
        // On one node no group survives any loss, so the groups stay as requested.
        assert_eq!(ask(&[4], true).unwrap().groups, [0; 4]);
        let as_asked = ask(&[1; 4], true).unwrap();
        assert_eq!(
            (&as_asked, as_asked.other_groups_words()),
            (&ask(&[1; 4], false).unwrap(), None)
        );
    }

    #[test]
    fn too_few_domains_are_told_before_the_start() {
        let loaded = loaded("-n 800 --nb 64 -p 2 -q 2 --checkpoint 10");
        let why = of_hosts(&loaded, &hosts(&[4]), 4, false).unwrap_err();
        assert!(why.contains("at least 2 failure domains"), "{why}");
    }
}
