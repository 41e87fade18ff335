//! Decisions after a fault: the nodes to continue with, and whether to continue at all. Pure functions.
//!
//! The restart loop passes the facts of every node to [`place`], and the history of faults to [`next_attempt`]. Neither function
//! does I/O, so tests can try every situation.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};

use crate::supervise::remember::events::FaultKind;
use crate::supervise::remember::journal::PastFault;
use crate::supervise::start::hosts::Host;

/// State of a node for the next attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fitness {
    /// The node passed its test. New ranks could take `free_bytes` of shared memory. Ranks of this run already have `held_bytes`
    /// there, which a rank that returns uses again.
    Fit { free_bytes: u64, held_bytes: u64 },
    /// The node failed its test, with the reason.
    Unfit(String),
    /// The node was declared lost in this run. It stays lost even if it answers again: `returned` is then its free shared memory
    /// in bytes.
    Lost { returned: Option<u64> },
}

pub struct Situation<'a> {
    /// Hosts of the last attempt, in rank order.
    pub placed: &'a [Host],
    pub spares: &'a [Host],
    pub fitness: &'a dyn Fn(&str) -> Fitness,
    pub ranks: usize,
    /// Bytes of shared memory that a rank needs, if known.
    pub rank_bytes: Option<u64>,
    /// Returns the positions whose files are on the own storage of the node with this name. Only files of the checkpoint from
    /// which the run resumes count.
    pub files: &'a dyn Fn(&str) -> BTreeSet<u32>,
    /// Whether no attempt has been started yet. A spare with files of the run may then replace a healthy node without data of the
    /// run.
    pub begins: bool,
    /// Returns the groups of which the node with this name has, or had, a member. Two members of a group on one node are lost
    /// together.
    pub groups: &'a dyn Fn(&str) -> BTreeSet<usize>,
    /// Whether survivors may take more ranks than they were given.
    pub may_double: bool,
    /// Whether the user wants to wait for a repaired node.
    pub may_wait: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    Go {
        hosts: Vec<Host>,
        /// Lost node, and the node that takes its ranks.
        replaced: Vec<(String, String)>,
    },
    /// Wait for repaired nodes. `missing` is the number of nodes still needed.
    Wait {
        missing: usize,
    },
    GiveUp {
        why: String,
    },
}

/// Chooses the nodes of the next attempt. A healthy node keeps its place in the list of hosts. The place of a lost node goes to a
/// spare, else to a survivor with room for more ranks, else to a lost node that has returned. Spares with checkpoint files that
/// no chosen node has are preferred, and survivors that have no member of the lost node's groups. If no node fits, the result is
/// to wait or to give up. Before the first launch, spares with such files also replace nodes without data.
pub fn place(now: &Situation) -> Placement {
    let mut draft = Draft::new(now);
    draft.fill_with_spares();
    if now.begins {
        draft.prefer_spares_with_files();
    }
    draft.fill_without_spares();
    draft.placement()
}

/// A placement in progress. A node is given by its index in [`Situation::placed`] or in [`Situation::spares`].
struct Draft<'a> {
    now: &'a Situation<'a>,
    /// Fitness of each node of [`Situation::placed`], judged once because there may be thousands.
    of_placed: Vec<Fitness>,
    /// Spares that may be needed.
    spares: &'a [Host],
    /// Fitness of each spare.
    of_spares: Vec<Fitness>,
    /// Positions whose files are on each spare.
    files_of_spares: Vec<BTreeSet<u32>>,
    /// Names of nodes that are not available as spares: those placed before, and spares already taken.
    used: HashSet<&'a str>,
    /// Host of each place, if the place is filled.
    hosts: Vec<Option<Host>>,
    /// Places without a node.
    open: Vec<usize>,
    /// Number of ranks that the node of a place takes in addition to its own, by place.
    extra: Vec<usize>,
    /// Positions whose files are on nodes with a place.
    files: BTreeSet<u32>,
    replaced: Vec<(String, String)>,
    /// Reasons why nodes cannot be used.
    reasons: BTreeSet<String>,
}

impl<'a> Draft<'a> {
    fn new(now: &'a Situation<'a>) -> Self {
        let judged = |hosts: &[Host]| hosts.iter().map(|h| (now.fitness)(&h.name)).collect();
        let of_placed: Vec<Fitness> = judged(now.placed);
        let is_fit = |at: usize| matches!(of_placed[at], Fitness::Fit { .. });
        let (kept, open): (Vec<usize>, Vec<usize>) =
            (0..now.placed.len()).partition(|at| is_fit(*at));
        // If no node is missing, no spare is wanted.
        let spares = if open.is_empty() && !now.begins { &[] } else { now.spares };
        let hosts = now.placed.iter().enumerate();
        let mut draft = Self {
            now,
            spares,
            of_spares: judged(spares),
            files_of_spares: spares.iter().map(|spare| (now.files)(&spare.name)).collect(),
            used: now.placed.iter().map(|host| host.name.as_str()).collect(),
            hosts: hosts.map(|(at, host)| is_fit(at).then(|| host.clone())).collect(),
            extra: vec![0; now.placed.len()],
            files: kept.iter().flat_map(|at| (now.files)(&now.placed[*at].name)).collect(),
            replaced: Vec::new(),
            reasons: BTreeSet::new(),
            of_placed,
            open,
        };
        for at in &draft.open {
            if let Fitness::Unfit(why) = &draft.of_placed[*at] {
                draft.reasons.insert(format!("{}: {why}", now.placed[*at].name));
            }
        }
        draft
    }

    /// Returns the bytes that `slots` ranks need, if known.
    fn need(&self, slots: usize) -> Option<u64> {
        self.now.rank_bytes.map(|bytes| bytes.saturating_mul(slots as u64))
    }

    /// Gives place `at` to the node `name`.
    fn fill(&mut self, at: usize, name: &str) {
        let place = &self.now.placed[at];
        self.hosts[at] = Some(Host::new(name, place.slots));
        self.replaced.push((place.name.clone(), name.to_owned()));
    }

    /// Whether this spare is unused and can take `slots` ranks. If it is unfit or lacks memory, the reason is noted.
    fn will_do(&mut self, spare: usize, slots: usize) -> bool {
        let name = &self.spares[spare].name;
        if self.used.contains(name.as_str()) {
            return false;
        }
        let why = match &self.of_spares[spare] {
            Fitness::Lost { .. } => return false,
            Fitness::Unfit(why) => why.clone(),
            Fitness::Fit { free_bytes, held_bytes } => match self.need(slots) {
                Some(need) if need > free_bytes + held_bytes => format!(
                    "{} MiB of shared memory are free, {} MiB are needed",
                    free_bytes >> 20,
                    need >> 20
                ),
                _ => return true,
            },
        };
        self.reasons.insert(format!("{name}: {why}"));
        false
    }

    /// Takes a spare with room for `slots` ranks: the first with the most files that no chosen node has. Spares with fewer than
    /// `least` such files are not taken.
    fn take_spare(&mut self, slots: usize, least: usize) -> Option<String> {
        let fit: Vec<usize> =
            (0..self.spares.len()).filter(|at| self.will_do(*at, slots)).collect();
        let brings = |at: usize| self.files_of_spares[at].difference(&self.files).count();
        let found = fit.into_iter().map(|at| (brings(at), at));
        let (_, at) =
            found.filter(|(brings, _)| *brings >= least).min_by_key(|(n, _)| Reverse(*n))?;
        self.used.insert(&self.spares[at].name);
        self.files.extend(&self.files_of_spares[at]);
        Some(self.spares[at].name.clone())
    }

    fn fill_with_spares(&mut self) {
        for at in std::mem::take(&mut self.open) {
            match self.take_spare(self.now.placed[at].slots, 0) {
                Some(spare) => self.fill(at, &spare),
                None => self.open.push(at),
            }
        }
    }

    /// Replaces nodes without data of the run by spares that have files of the run.
    fn prefer_spares_with_files(&mut self) {
        for (at, host) in self.now.placed.iter().enumerate() {
            let holds_nothing = matches!(self.of_placed[at], Fitness::Fit { held_bytes: 0, .. })
                && (self.now.files)(&host.name).is_empty();
            if holds_nothing && let Some(spare) = self.take_spare(host.slots, 1) {
                self.fill(at, &spare);
            }
        }
    }

    /// Gives the ranks of open places to survivors with room for more ranks, else to lost nodes that answer again.
    fn fill_without_spares(&mut self) {
        let open = std::mem::take(&mut self.open);
        if open.is_empty() {
            return;
        }
        let placed = self.now.placed;
        let mut members: Vec<BTreeSet<usize>> =
            placed.iter().map(|host| (self.now.groups)(&host.name)).collect();
        let mut taken: HashSet<String> =
            self.hosts.iter().flatten().map(|host| host.name.clone()).collect();
        for at in open {
            let lost = &placed[at];
            if let Some(survivor) = self.survivor_for(at, &members) {
                let theirs = members[at].clone();
                members[survivor].extend(theirs);
                self.extra[survivor] += lost.slots;
                self.replaced.push((lost.name.clone(), placed[survivor].name.clone()));
            } else if let Some(name) = self.returned_for(lost.slots, &taken) {
                self.fill(at, &name);
                taken.insert(name);
            } else {
                self.open.push(at);
            }
        }
    }

    /// Returns a survivor with room for the ranks of the open place `at`, if survivors may take more ranks.
    fn survivor_for(&self, at: usize, members: &[BTreeSet<usize>]) -> Option<usize> {
        let placed = self.now.placed;
        // The need for memory must be known: a node with too many ranks would be the next one lost.
        let has_room = |s: &usize| {
            let Fitness::Fit { free_bytes, held_bytes } = self.of_placed[*s] else { return false };
            self.need(placed[*s].slots + self.extra[*s] + placed[at].slots)
                .is_some_and(|need| need <= free_bytes + held_bytes)
                && self.hosts[*s].as_ref().is_some_and(|here| here.name == placed[*s].name)
        };
        let mut roomy = (0..placed.len()).filter(has_room).filter(|_| self.now.may_double);
        let first = roomy.next()?;
        let apart = |s: &usize| members[*s].is_disjoint(&members[at]);
        Some(std::iter::once(first).chain(roomy).find(apart).unwrap_or(first))
    }

    /// Returns a lost node that answers again and has room for `slots` ranks.
    fn returned_for(&self, slots: usize, taken: &HashSet<String>) -> Option<String> {
        let all = self.now.placed.iter().zip(&self.of_placed);
        let mut all = all.chain(self.spares.iter().zip(&self.of_spares));
        let fits = |free: u64| self.need(slots).is_none_or(|need| need <= free);
        let found = all.find(|(host, fitness)| {
            matches!(fitness, Fitness::Lost { returned: Some(free) } if fits(*free))
                && !taken.contains(&host.name)
        });
        found.map(|(host, _)| host.name.clone())
    }

    fn placement(self) -> Placement {
        let missing = self.open.len();
        if missing > 0 && self.now.may_wait {
            return Placement::Wait { missing };
        }
        if missing > 0 {
            let mut why = format!("{missing} node(s) lost, and no node is left to replace them");
            if !self.reasons.is_empty() {
                why += &format!(" ({})", Vec::from_iter(self.reasons).join("; "));
            }
            return Placement::GiveUp { why };
        }
        let hosts = self.hosts.into_iter().zip(self.extra);
        let hosts = hosts.filter_map(|(h, extra)| h.map(|h| Host { slots: h.slots + extra, ..h }));
        let hosts: Vec<Host> = hosts.collect();
        debug_assert!(hosts.iter().map(|h| h.slots).sum::<usize>() >= self.now.ranks);
        Placement::Go { hosts, replaced: self.replaced }
    }
}

/// Default of the number of faults in a row without progress at which the run stops.
pub const MAX_RESTARTS: u32 = 5;

/// Delay of the attempt after the first fault without progress. Each further such fault doubles the delay.
const BACK_OFF_FIRST_MS: u64 = 1000;
/// Longest delay of an attempt after faults without progress.
const BACK_OFF_MAX_MS: u64 = 30_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    Relaunch {
        after_ms: u64,
    },
    /// Processes fail on this node again and again: continue without it.
    Without {
        node: String,
        why: String,
    },
    Stop {
        why: String,
    },
}

/// Number of equal faults in a row, at the same iteration, that count as a bug of the program and stop the run.
pub const SAME_FAULT_MAX: usize = 3;

/// Number of faults in a row, all of processes on one node, at which the node counts as sick.
const SICK_AFTER: usize = 3;

/// Largest difference of the iterations of faults that count as equal. Ranks are not exactly in step, so the same fault may show
/// slightly different iterations.
const STEP_MAX: u64 = 2;

/// Whether two faults are likely the same. A rank's end may be reported first by its node or first by the launcher. If the
/// launcher started no rank (`placed` is false), the noted iteration is that of an earlier attempt, so the fault equals no other.
fn alike(a: &PastFault, b: &PastFault) -> bool {
    let ended = |f: &PastFault| matches!(f.kind, FaultKind::RankDied | FaultKind::LauncherGone);
    a.placed
        && b.placed
        && (a.kind == b.kind || (ended(a) && ended(b)))
        && a.test == b.test
        && same_place(a, b)
}

/// Whether two faults of a test happened at the same iteration: either that of the rank that died, or that of the furthest rank.
/// After a death, other ranks may compute as many further iterations as there are process columns, so the furthest iteration
/// depends on chance. But the first rank seen to die may have been ended because of another rank. Then the furthest iteration is
/// the better evidence.
fn same_place(a: &PastFault, b: &PastFault) -> bool {
    let near = |a: u64, b: u64| a.abs_diff(b) <= STEP_MAX;
    let own = a.rank_iteration.zip(b.rank_iteration).is_some_and(|(a, b)| near(a, b));
    own || near(a.iteration, b.iteration)
}

/// Returns the node of the last fault, if the last [`SICK_AFTER`] faults or more all happened on that node.
fn sick(history: &[PastFault]) -> Option<&str> {
    let node = history.last()?.node.as_deref()?;
    let own = |f: &&PastFault| f.placed && f.kind.may_be_a_bug() && f.node.as_deref() == Some(node);
    let streak = history.iter().rev().take_while(own).count();
    (streak >= SICK_AFTER).then_some(node)
}

/// Decides whether to try again after the last fault of `history`, and after what delay. `replaceable` tells whether a spare
/// could replace a node. A bug of the program happens on the spare again, and then stops the run.
pub fn next_attempt(
    history: &[PastFault],
    max_restarts: u32,
    replaceable: &dyn Fn(&str) -> bool,
) -> Attempt {
    let Some(last) = history.last() else {
        return Attempt::Relaunch { after_ms: 0 };
    };
    if let Some(node) = sick(history).filter(|node| replaceable(node)) {
        return Attempt::Without {
            node: node.to_string(),
            why: format!("sick: at least the last {SICK_AFTER} faults were all on this node"),
        };
    }
    let same = history.iter().rev().take_while(|f| alike(f, last)).count();
    if last.kind.may_be_a_bug() && same >= SAME_FAULT_MAX {
        return Attempt::Stop {
            why: format!(
                "the same fault ({}) happened {same} times in a row at iteration {}: this is a bug, not bad luck",
                last.kind.words(),
                last.rank_iteration.unwrap_or(last.iteration)
            ),
        };
    }
    // The first fault after progress costs no delay. Nor does a lost node, which cannot be lost again.
    let barren: Vec<_> = history.iter().rev().take_while(|f| !f.advanced).collect();
    if barren.len() >= max_restarts as usize {
        let why = format!("{} faults in a row without any progress between them", barren.len());
        return Attempt::Stop { why };
    }
    let own = barren.iter().filter(|f| f.kind.may_be_a_bug()).count();
    let after_ms = match own {
        0 => 0,
        n => BACK_OFF_FIRST_MS.saturating_mul(1 << (n - 1).min(20)).min(BACK_OFF_MAX_MS),
    };
    Attempt::Relaunch { after_ms }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::remember::journal::RunState;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const MIB: u64 = 1 << 20;

    fn hosts(names: &[&str]) -> Vec<Host> {
        names.iter().map(|n| Host::new(*n, 2)).collect()
    }
    fn fit(free_mib: u64, held_mib: u64) -> Fitness {
        Fitness::Fit { free_bytes: free_mib * MIB, held_bytes: held_mib * MIB }
    }

    struct World {
        placed: Vec<Host>,
        spares: Vec<Host>,
        state: BTreeMap<&'static str, Fitness>,
        rank_bytes: Option<u64>,
        may_double: bool,
        may_wait: bool,
        groups: BTreeMap<&'static str, BTreeSet<usize>>,
        files: BTreeMap<&'static str, BTreeSet<u32>>,
        begins: bool,
    }

    impl World {
        fn new(state: &[(&'static str, Fitness)]) -> Self {
            Self {
                placed: hosts(&["n1", "n2", "n3"]),
                spares: hosts(&["s1", "s2"]),
                state: state.iter().cloned().collect(),
                rank_bytes: Some(10 * MIB),
                may_double: true,
                may_wait: false,
                groups: BTreeMap::new(),
                files: BTreeMap::new(),
                begins: false,
            }
        }
        fn place(&self) -> Placement {
            place(&Situation {
                placed: &self.placed,
                spares: &self.spares,
                fitness: &|name| self.state.get(name).cloned().unwrap_or(fit(0, 20)),
                ranks: 6,
                rank_bytes: self.rank_bytes,
                files: &|name| self.files.get(name).cloned().unwrap_or_default(),
                begins: self.begins,
                groups: &|name| self.groups.get(name).cloned().unwrap_or_default(),
                may_double: self.may_double,
                may_wait: self.may_wait,
            })
        }
    }

    fn go(hosts: &[(&str, usize)], replaced: &[(&str, &str)]) -> Placement {
        Placement::Go {
            hosts: hosts.iter().map(|(n, s)| Host::new(*n, *s)).collect(),
            replaced: replaced.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect(),
        }
    }
    const LOST: Fitness = Fitness::Lost { returned: None };

    #[test]
    fn nobody_moves_if_all_are_well() {
        let world = World::new(&[]);
        assert_eq!(world.place(), go(&[("n1", 2), ("n2", 2), ("n3", 2)], &[]));
    }

    #[test]
    fn a_spare_that_passes_its_test_takes_the_place() {
        let world = World::new(&[("n2", LOST), ("s1", fit(100, 0))]);
        assert_eq!(world.place(), go(&[("n1", 2), ("s1", 2), ("n3", 2)], &[("n2", "s1")]));
        let world = World::new(&[
            ("n2", LOST),
            ("s1", Fitness::Unfit("wrong binary".into())),
            ("s2", fit(20, 0)),
        ]);
        assert_eq!(world.place(), go(&[("n1", 2), ("s2", 2), ("n3", 2)], &[("n2", "s2")]));
        // The first spare has too little memory.
        let world = World::new(&[("n2", LOST), ("s1", fit(19, 0)), ("s2", fit(20, 0))]);
        assert_eq!(world.place(), go(&[("n1", 2), ("s2", 2), ("n3", 2)], &[("n2", "s2")]));
    }

    #[test]
    fn two_lost_take_two_spares() {
        let world =
            World::new(&[("n1", LOST), ("n3", LOST), ("s1", fit(100, 0)), ("s2", fit(100, 0))]);
        assert_eq!(
            world.place(),
            go(&[("s1", 2), ("n2", 2), ("s2", 2)], &[("n1", "s1"), ("n3", "s2")])
        );
    }

    /// The second spare has files that would have to be rebuilt on the first spare.
    #[test]
    fn a_spare_with_files_that_no_node_has_is_preferred() {
        let mut world = World::new(&[
            ("n2", LOST),
            ("s1", fit(100, 0)),
            ("s2", fit(100, 0)),
            ("n3", fit(100, 0)),
        ]);
        world.files = BTreeMap::from([("n1", [0, 1].into()), ("s2", [2, 3].into())]);
        assert_eq!(world.place(), go(&[("n1", 2), ("s2", 2), ("n3", 2)], &[("n2", "s2")]));
        // A healthy node stays, except before the first launch, if it has no data and a spare has files that are missing.
        world.files.insert("s1", [4].into());
        let first = [("n2", "s2")];
        assert_eq!(world.place(), go(&[("n1", 2), ("s2", 2), ("n3", 2)], &first));
        world.begins = true;
        let both = [("n2", "s2"), ("n3", "s1")];
        assert_eq!(world.place(), go(&[("n1", 2), ("s2", 2), ("s1", 2)], &both));
        world.files.insert("s1", [1, 3].into());
        assert_eq!(world.place(), go(&[("n1", 2), ("s2", 2), ("n3", 2)], &first));
        world.files.insert("s1", [4].into());
        world.state.insert("n3", fit(100, 20));
        assert_eq!(world.place(), go(&[("n1", 2), ("s2", 2), ("n3", 2)], &first));
        world.state.insert("n3", fit(100, 0));
        world.files.insert("n3", [5].into());
        assert_eq!(world.place(), go(&[("n1", 2), ("s2", 2), ("n3", 2)], &first));
        // A spare with files but too little memory is not taken.
        world.state.insert("s2", fit(19, 0));
        assert_eq!(world.place(), go(&[("n1", 2), ("s1", 2), ("n3", 2)], &[("n2", "s1")]));
    }

    #[test]
    fn without_spares_a_survivor_with_room_takes_more_ranks() {
        let lost = [("s1", LOST), ("s2", LOST), ("n2", LOST)];
        let mut world = World::new(&lost);
        world.state.insert("n3", fit(20, 20));
        assert_eq!(world.place(), go(&[("n1", 2), ("n3", 4)], &[("n2", "n3")]));
        world.may_double = false;
        assert!(matches!(world.place(), Placement::GiveUp { .. }));
        // If the need of a rank is unknown, no node gets more ranks than its own slots.
        world.may_double = true;
        world.rank_bytes = None;
        assert!(matches!(world.place(), Placement::GiveUp { .. }));
    }

    /// Two members of one group on a node would be lost together.
    #[test]
    fn a_survivor_without_a_member_of_the_group_is_preferred() {
        let mut world = World::new(&[("s1", LOST), ("s2", LOST), ("n1", LOST)]);
        world.state.extend([("n2", fit(40, 20)), ("n3", fit(40, 20))]);
        world.groups =
            BTreeMap::from([("n1", [0, 1].into()), ("n2", [1].into()), ("n3", [2].into())]);
        assert_eq!(world.place(), go(&[("n2", 2), ("n3", 4)], &[("n1", "n3")]));
        // The other node has no room: then a node with a member of the group is better than none.
        world.state.insert("n3", fit(0, 20));
        assert_eq!(world.place(), go(&[("n2", 4), ("n3", 2)], &[("n1", "n2")]));
        // Ranks that a survivor has just taken count as well.
        world.placed = hosts(&["n1", "n2", "n3", "n4"]);
        world.state.extend([("n2", LOST), ("n3", fit(40, 20)), ("n4", fit(40, 20))]);
        world.groups = BTreeMap::from([("n1", [0].into()), ("n2", [0].into())]);
        assert_eq!(world.place(), go(&[("n3", 4), ("n4", 4)], &[("n1", "n3"), ("n2", "n4")]));
    }

    #[test]
    fn a_returned_node_is_the_last_resort() {
        let mut world = World::new(&[("s1", LOST), ("s2", LOST), ("n2", LOST)]);
        assert!(matches!(world.place(), Placement::GiveUp { .. }));
        world.may_wait = true;
        assert_eq!(world.place(), Placement::Wait { missing: 1 });
        world.state.insert("n2", Fitness::Lost { returned: Some(20 * MIB) });
        assert_eq!(world.place(), go(&[("n1", 2), ("n2", 2), ("n3", 2)], &[("n2", "n2")]));
        world.state.insert("s2", fit(20, 0));
        assert_eq!(
            world.place(),
            go(&[("n1", 2), ("s2", 2), ("n3", 2)], &[("n2", "s2")]),
            "down stays down while a spare is left"
        );
    }

    #[test]
    fn giving_up_says_what_was_wrong_with_each_spare() {
        let mut world = World::new(&[
            ("n2", LOST),
            ("s1", fit(19, 0)),
            ("s2", Fitness::Unfit("clock is 40 s off".into())),
        ]);
        world.may_double = false;
        match world.place() {
            Placement::GiveUp { why } => {
                assert!(why.contains("s1: 19 MiB"), "{why}");
                assert!(why.contains("s2: clock is 40 s off"), "{why}");
            }
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        /// In every situation only fit or returned nodes are used, no node is used twice, and every rank has a place. No healthy
        /// node is replaced, except one without data before the first launch.
        #[test]
        fn a_placement_is_sound(
            states in proptest::collection::vec((0u8..4, 0u64..60), 6),
            may_double: bool,
            known: bool,
            begins: bool,
            files in proptest::collection::vec(proptest::collection::btree_set(0u32..6, 0..3), 6),
        ) {
            let names = ["n1", "n2", "n3", "s1", "s2", "s3"];
            let mut world = World::new(&[]);
            world.spares = hosts(&names[3..]);
            world.may_double = may_double;
            world.begins = begins;
            world.files = names.into_iter().zip(files).collect();
            world.rank_bytes = known.then_some(10 * MIB);
            for (name, (kind, free)) in names.iter().zip(&states) {
                let held = if name.starts_with('n') && free % 3 > 0 { 20 } else { 0 };
                world.state.insert(name, match kind {
                    0 | 1 => fit(*free, held),
                    2 => LOST,
                    _ => Fitness::Lost { returned: Some(*free * MIB) },
                });
            }
            if let Placement::Go { hosts: chosen, replaced } = world.place() {
                prop_assert_eq!(chosen.iter().map(|h| h.slots).sum::<usize>(), 6);
                let distinct: BTreeSet<_> = chosen.iter().map(|h| &h.name).collect();
                prop_assert_eq!(distinct.len(), chosen.len());
                for host in &chosen {
                    match &world.state[host.name.as_str()] {
                        Fitness::Fit { free_bytes, held_bytes } => {
                            let original = world.placed.contains(host);
                            prop_assert!(original || !known
                                || 10 * MIB * host.slots as u64 <= free_bytes + held_bytes);
                        }
                        Fitness::Lost { returned: Some(_) } => {}
                        other => prop_assert!(false, "{} is {:?}", host.name, other),
                    }
                }
                for (host, at) in world.placed.iter().zip(0..) {
                    let name = host.name.as_str();
                    let bare = matches!(world.state[name], Fitness::Fit { held_bytes: 0, .. });
                    if begins && bare && world.files[name].is_empty() {
                        continue;
                    }
                    if matches!(world.state[host.name.as_str()], Fitness::Fit { .. }) {
                        prop_assert!(distinct.contains(&host.name), "{} (place {at}) was well", host.name);
                    } else {
                        prop_assert!(replaced.iter().any(|(lost, _)| *lost == host.name));
                    }
                }
            }
        }
    }

    proptest! {
        /// If each file lies on one node, the chosen nodes have as many files as possible.
        #[test]
        fn as_many_files_as_can_be_are_at_hand(
            well in proptest::collection::vec(any::<bool>(), 7),
            held in proptest::collection::vec(any::<bool>(), 3),
            lies in proptest::collection::vec(0usize..8, 8),
            begins: bool,
        ) {
            let names = ["n1", "n2", "n3", "s1", "s2", "s3", "s4"];
            let mut world = World::new(&[]);
            world.spares = hosts(&names[3..]);
            (world.may_double, world.rank_bytes, world.begins) = (false, None, begins);
            for (at, name) in names.into_iter().enumerate() {
                let held = if held.get(at) == Some(&true) { 20 } else { 0 };
                world.state.insert(name, if well[at] { fit(100, held) } else { LOST });
            }
            // The number 7 stands for no node.
            for (position, at) in lies.iter().enumerate().filter(|(_, at)| **at < 7) {
                world.files.entry(names[*at]).or_default().insert(position as u32);
            }
            let count = |at: usize| world.files.get(names[at]).map_or(0, BTreeSet::len);
            if let Placement::Go { hosts: chosen, .. } = world.place() {
                let at_hand: usize =
                    (0..7).filter(|&at| chosen.iter().any(|host| host.name == names[at])).map(count).sum();
                let stays = |at: &usize| well[*at] && !(begins && !held[*at] && count(*at) == 0);
                let free = 3 - (0..3).filter(stays).count();
                let mut others: Vec<usize> = (3..7).filter(|&at| well[at]).map(count).collect();
                others.sort_unstable_by_key(|count| Reverse(*count));
                let most: usize = (0..3).filter(|&at| well[at]).map(count).sum::<usize>()
                    + others.iter().take(free).sum::<usize>();
                prop_assert_eq!(at_hand, most);
            }
        }
    }

    fn fault(kind: FaultKind, iteration: u64, advanced: bool) -> PastFault {
        PastFault {
            kind,
            node: None,
            test: 0,
            iteration,
            rank_iteration: None,
            placed: true,
            advanced,
        }
    }

    /// Next attempt if every node could be replaced.
    fn attempt(history: &[PastFault]) -> Attempt {
        next_attempt(history, MAX_RESTARTS, &|_| true)
    }

    /// Ranks that die on one node are taken for a fault of that node. If they also die on the next node, it is a bug of the
    /// program.
    #[test]
    fn a_sick_node_is_replaced_before_the_run_is_stopped() {
        let on = |node: &str, iteration| PastFault {
            node: Some(node.to_string()),
            ..fault(FaultKind::RankDied, iteration, false)
        };
        let mut history = vec![on("n2", 7), on("n2", 7)];
        assert_eq!(attempt(&history), Attempt::Relaunch { after_ms: 2000 });
        history.push(on("n2", 7));
        assert!(matches!(attempt(&history), Attempt::Without { node, .. } if node == "n2"));
        // Without a spare the node cannot be replaced, so equal faults count as a bug.
        assert!(matches!(
            next_attempt(&history, MAX_RESTARTS, &|_| false),
            Attempt::Stop { why } if why.contains("bug")
        ));
        history.push(on("n5", 7));
        assert!(matches!(attempt(&history), Attempt::Stop { why } if why.contains("bug")));
        // A node is also sick if its faults are at different iterations, with progress between them.
        let spread = [1, 50, 90].map(|at| PastFault { advanced: true, ..on("n1", at) });
        assert!(matches!(attempt(&spread), Attempt::Without { node, .. } if node == "n1"));
        let here_and_there = [on("n1", 7), on("n2", 7), on("n1", 7)];
        assert!(matches!(attempt(&here_and_there), Attempt::Stop { .. }));
    }

    #[test]
    fn the_same_fault_three_times_running_is_a_bug() {
        let died = |advanced| fault(FaultKind::RankDied, 7, advanced);
        assert_eq!(attempt(&[died(true)]), Attempt::Relaunch { after_ms: 0 });
        assert_eq!(attempt(&[died(true), died(false)]), Attempt::Relaunch { after_ms: 1000 });
        assert!(matches!(
            attempt(&[died(true), died(false), died(false)]),
            Attempt::Stop { why } if why.contains("bug")
        ));
        // Faults of different tests are not the same.
        let of = |test| PastFault { test, ..died(true) };
        assert_eq!(attempt(&[of(0), of(1), of(2)]), Attempt::Relaunch { after_ms: 0 });
        // A fault at another iteration is not the same.
        let other = fault(FaultKind::RankDied, 7 + STEP_MAX + 1, true);
        assert_eq!(attempt(&[died(true), died(false), other]), Attempt::Relaunch { after_ms: 0 });
        // The furthest rank's iteration, and the source of the first report of the end, depend on chance.
        let told = fault(FaultKind::LauncherGone, 7 + STEP_MAX, false);
        assert!(matches!(
            attempt(&[died(true), told, died(false)]),
            Attempt::Stop { why } if why.contains("bug")
        ));
        // Nodes may well die at the same iteration.
        let lost = || fault(FaultKind::NodeUnresponsive, 7, false);
        assert_eq!(attempt(&[lost(), lost(), lost()]), Attempt::Relaunch { after_ms: 0 });
    }

    /// With many process columns the other ranks come far beyond the rank that dies, each time to another iteration. The second
    /// time they come further than ever before.
    #[test]
    fn a_rank_that_dies_at_the_same_iteration_is_a_bug_however_far_the_others_come() {
        let died = |own: u64, front, advanced| PastFault {
            rank_iteration: Some(own),
            ..fault(FaultKind::RankDied, front, advanced)
        };
        let same = [died(1000, 1003, true), died(1000, 1041, true), died(1000, 1017, false)];
        assert!(matches!(
            attempt(&same),
            Attempt::Stop { why } if why.contains("bug") && why.contains("at iteration 1000:")
        ));
        // The launcher may report it first.
        let told = same.clone().map(|f| match f.iteration {
            1041 => PastFault { kind: FaultKind::LauncherGone, ..f },
            _ => f,
        });
        assert!(matches!(attempt(&told), Attempt::Stop { .. }));
        // The faults differ if that rank is at another iteration, in another test, or not known every time.
        let other = |change: fn(&mut PastFault)| {
            let mut faults = same.clone();
            change(&mut faults[1]);
            attempt(&faults)
        };
        let elsewhere: [fn(&mut PastFault); 3] = [
            |f| f.rank_iteration = Some(1000 + STEP_MAX + 1),
            |f| f.test = 1,
            |f| f.rank_iteration = None,
        ];
        for (at, change) in elsewhere.into_iter().enumerate() {
            assert_eq!(other(change), Attempt::Relaunch { after_ms: 1000 }, "{at}");
        }
        assert!(matches!(
            other(|f| f.rank_iteration = Some(1000 - STEP_MAX)),
            Attempt::Stop { .. }
        ));
        // The ranks seen to die first may have been ended because of another rank. Then the furthest iteration shows the bug.
        let ended = [died(990, 1003, true), died(1003, 1003, false), died(970, 1002, false)];
        assert!(matches!(attempt(&ended), Attempt::Stop { .. }));
    }

    #[test]
    fn how_far_the_rank_had_come_that_died_is_read_from_the_journal() {
        let at = |rank: &str| {
            let mut state = RunState::default();
            let text = format!(
                r#"{{"seq":0,"at_ms":0,"event":"fault","fault":1,"attempt":1,"kind":"rank-died","failed_ms":0,"node":"n1","position":3,"test":0,"iteration":1041,"rank_iteration":{rank},"ranks_seen":true,"detail":""}}"#
            );
            state.apply(&serde_json::from_str(&text).unwrap());
            (state.history.faults[0].iteration, state.history.faults[0].rank_iteration)
        };
        assert_eq!(at("null"), (1041, None));
        assert_eq!(at("1000"), (1041, Some(1000)));
    }

    /// Applies an event, given as part of a journal record, to the state of a run.
    fn apply(state: &mut RunState, event: &str) {
        let text = format!(r#"{{"seq":0,"at_ms":0,"attempt":1,"test":0,{event}}}"#);
        state.apply(&serde_json::from_str(&text).unwrap());
    }

    /// Host names cannot be resolved for a while during a recovery, so the launcher ends at once. The iterations of earlier ranks
    /// do not matter then.
    #[test]
    fn a_launcher_that_starts_nobody_is_no_bug() {
        let told = |computed: bool, seen: bool| {
            let mut state = RunState::default();
            let mut tell = |event: &str| apply(&mut state, event);
            let iteration = if computed { 30 } else { 0 };
            let fault = |seen: bool| {
                format!(
                    r#""event":"fault","fault":1,"kind":"launcher-gone","failed_ms":0,"node":null,"position":null,"iteration":{iteration},"ranks_seen":{seen},"detail":"""#
                )
            };
            if computed {
                tell(r#""event":"computing","iteration":0"#);
                tell(&fault(true));
            }
            (0..SAME_FAULT_MAX).for_each(|_| tell(&fault(seen)));
            attempt(state.faults_that_count())
        };
        assert_eq!(told(true, false), Attempt::Relaunch { after_ms: 4000 });
        // If nothing was ever computed, the launcher cannot be used, and the run stops.
        assert!(matches!(told(false, false), Attempt::Stop { why } if why.contains("same fault")));
        assert!(matches!(told(true, true), Attempt::Stop { why } if why.contains("bug")));
    }

    #[test]
    fn attempts_without_gain_are_bounded_and_slow_down() {
        let mut history = vec![fault(FaultKind::LauncherGone, 0, true)];
        let mut delays = Vec::new();
        for iteration in 1.. {
            match attempt(&history) {
                Attempt::Relaunch { after_ms } => delays.push(after_ms),
                _ => break,
            }
            history.push(fault(FaultKind::LauncherGone, 10 * iteration, false));
        }
        assert_eq!(delays, [0, 1000, 2000, 4000, 8000]);
    }

    /// The nodes of a rack fail one after the other, and mpirun gives up before the supervisor knows of a lost node.
    #[test]
    fn lost_nodes_that_the_launcher_tells_of_first_are_no_bug() {
        let told = |kind: &str, node: &str, lost: Option<&str>| {
            let mut state = RunState::default();
            let mut tell = |event: &str| apply(&mut state, event);
            for _ in 0..SAME_FAULT_MAX {
                tell(
                    r#""event":"launched","launcher":{"pid":1,"started":1},"hosts":[{"name":"n1","slots":1},{"name":"n2","slots":1}]"#,
                );
                tell(r#""event":"computing","iteration":32"#);
                tell(&format!(
                    r#""event":"fault","fault":1,"kind":"{kind}","failed_ms":0,"node":{node},"position":null,"iteration":40,"ranks_seen":true,"detail":"""#
                ));
                lost.iter().for_each(|node| {
                    tell(&format!(
                        r#""event":"node-lost","node":"{node}","why":"it does not answer""#
                    ))
                });
                tell(r#""event":"stopped","ended":1,"unreachable":[]"#);
                // A node lost later has not ended the attempt.
                tell(r#""event":"node-lost","node":"n1","why":"sick""#);
            }
            next_attempt(state.faults_that_count(), MAX_RESTARTS, &|_| false)
        };
        for (kind, node) in [("launcher-gone", "null"), ("rank-died", r#""n1""#)] {
            let lost = told(kind, node, Some("n2"));
            assert_eq!(lost, Attempt::Relaunch { after_ms: 0 }, "{kind}");
            // The loss of a spare does not explain a fault of the ranks.
            for other in [None, Some("s1")] {
                let stopped = told(kind, node, other);
                assert!(matches!(stopped, Attempt::Stop { .. }), "{kind} {other:?} {stopped:?}");
            }
        }
        let hung = told("rank-hung", r#""n1""#, Some("n2"));
        assert!(matches!(hung, Attempt::Stop { .. }), "{hung:?}");
    }
}
