//! Which processor each thread of a rank keeps to.
//!
//! Ranks that run under one kernel tell each other which processors they are bound to; from that follows, by a pure function
//! that comes to the same on all of them, which of these each has for itself. A rank that is bound to cores of its own takes
//! them; ranks that a launcher has bound to the same ones, or to none, share them out, neighbours beside each other. Where that
//! does not come out even nobody is pinned: two threads on one core would be far slower than threads the system moves.
//! Cores are for ranks that compute. One that stands by, or keeps checksums alone, sleeps beside them: it has as many threads,
//! for the day when it takes the place of another, but no cores of its own. The system lets it run where there is room then,
//! which is on the cores of one that is gone from the same node.
//! Cores that `--helper-cores` names are helpers' alone: they are taken from all ranks before anything is shared out.
//! Called by `benchmark` and by the trials of `tune`, before a rank has its pool; no bit of a result depends on it.

use std::collections::BTreeSet;
use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use super::agreement::Ended;
use crate::base::cores::{self, Given};
use crate::base::exit::Exit;
use crate::base::params::Pinning;
use crate::base::threads::Pool;
use crate::base::topology::Topology;
use crate::checkpoint::plan::Helpers;
use crate::comm::{Comm, Reduce};
use crate::config::diagnostic::and_list;
use crate::config::processors::List;
use crate::config::settings::Protection;
use crate::kernels::one_library_thread_each;
use crate::supervise::talk::processes::kernel;

/// The processors that a rank's threads are pinned to, in the order of the threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    processors: Vec<usize>,
    /// Whether each is a core on which nothing else computes, and not one of its hardware threads.
    cores: bool,
}

/// What the others under the same kernel must know of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Has {
    /// What it is bound to.
    processors: BTreeSet<usize>,
    threads: usize,
    /// Whether all their time is its to use.
    whole: bool,
    /// Whether it has a place in the process grid when the run begins.
    computes: bool,
    /// Where that is less than the processors there are.
    budget: Option<Budget>,
}

/// How many processors' time a container has for all that runs in it. Ranks of one container may be bound to different processors
/// of the node, of which each has no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Budget {
    /// Equal in one container.
    of: u64,
    processors: usize,
}

impl Budget {
    fn here() -> Option<Self> {
        let node = cores::of_node().filter(|node| node.time < node.processors.len())?;
        let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let namespace = std::fs::read_link("/proc/self/ns/cgroup").unwrap_or_default();
        let of = xxh3_64(format!("{} {group}", namespace.display()).as_bytes());
        Some(Self { of, processors: node.time })
    }
}

/// The ranks that share a budget with `me`, those that compute if any does.
fn sharing_budget(ranks: &[Has], me: usize) -> Option<(Budget, Vec<usize>)> {
    let budget = ranks[me].budget?;
    Some((budget, that_compute(ranks, |rank| rank.budget == Some(budget))))
}

/// Whether there is time for all the cores that ranks of this one's container are bound to together.
fn has_time(ranks: &[Has], me: usize, topology: &Topology) -> bool {
    let Some((budget, sharing)) = sharing_budget(ranks, me) else { return true };
    let all = sharing.iter().flat_map(|&rank| &ranks[rank].processors).copied().collect();
    topology.among(&all).cores() <= budget.processors
}

/// Why a rank's threads are not pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loose {
    Unwanted,
    /// The system does not say what the rank is bound to.
    Unknown,
    /// Its container has less time than its cores.
    Limited,
    /// Some of its cores are others' too, but not all of them.
    Overlapping,
    /// Not one for each core, and not one for each hardware thread.
    Uneven {
        threads: usize,
        cores: usize,
    },
    Refused,
    /// It does not compute beside ranks that do.
    StandsBy,
}

impl fmt::Display for Loose {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Loose::Unwanted => f.write_str("--pin off"),
            Loose::Unknown => f.write_str("the system does not say which cores are this rank's"),
            Loose::Limited => f.write_str("its container is given less time than its cores have"),
            Loose::Overlapping => {
                f.write_str("it is bound to cores of which others have some, too")
            }
            &Loose::Uneven { threads, cores } => {
                let number = |n: usize, what: &str| match n {
                    1 => format!("1 {what}"),
                    n => format!("{n} {what}s"),
                };
                let (threads, cores) = (number(threads, "thread"), number(cores, "core"));
                write!(f, "{threads} on {cores}, which does not come out even")
            }
            Loose::Refused => f.write_str("the system does not allow it"),
            Loose::StandsBy => f.write_str("it does not compute, and others here do"),
        }
    }
}

/// Who shares out the processors that rank `me` is bound to: the ranks bound to the same ones, those that compute if any does.
fn sharing(ranks: &[Has], me: usize) -> Vec<usize> {
    that_compute(ranks, |rank| rank.processors == ranks[me].processors)
}

/// Those of the ranks `alike` that compute; all of them if none does.
fn that_compute(ranks: &[Has], alike: impl Fn(&Has) -> bool) -> Vec<usize> {
    let alike = (0..ranks.len()).filter(|&rank| alike(&ranks[rank]));
    let (computing, others): (Vec<usize>, Vec<usize>) =
        alike.partition(|&rank| ranks[rank].computes);
    if computing.is_empty() { others } else { computing }
}

/// Threads of rank `me`, bound to so many cores; as many for one that stands by, whose turn may come.
fn share(ranks: &[Has], me: usize, cores: usize) -> usize {
    let of_cores = cores / sharing(ranks, me).len().max(1);
    let of_time = sharing_budget(ranks, me)
        .map_or(usize::MAX, |(budget, sharing)| budget.processors / sharing.len().max(1));
    of_cores.min(of_time).max(1)
}

/// The processors that the threads of rank `me` keep to, in the order of the threads.
///
/// A rank alone with a core left over is not pinned either: who has others for company, such as another job, goes where they are
/// not, and only the system knows where that is.
fn pins(ranks: &[Has], me: usize, topology: &Topology) -> Result<Vec<usize>, Loose> {
    let mine = &ranks[me];
    let alike = sharing(ranks, me);
    let known = topology.among(&mine.processors);
    if mine.processors.is_empty() || !topology.lacking(&mine.processors).is_empty() {
        return Err(Loose::Unknown);
    }
    if alike.iter().any(|&r| !ranks[r].whole) || !has_time(ranks, me, topology) {
        return Err(Loose::Limited);
    }
    let others = ranks.iter().filter(|other| other.processors != mine.processors);
    if others.into_iter().any(|other| !other.processors.is_disjoint(&mine.processors)) {
        return Err(Loose::Overlapping);
    }
    let Some(place) = alike.iter().position(|&r| r == me) else {
        return Err(Loose::StandsBy);
    };
    for processors in [known.one_a_core(), known.in_order()] {
        let each = processors.len() / alike.len();
        if each > 0 && alike.iter().all(|&r| ranks[r].threads == each) {
            let first = place * processors.len() / alike.len();
            return Ok(processors[first..first + each].to_vec());
        }
    }
    let threads = alike.iter().map(|&r| ranks[r].threads).sum();
    Err(Loose::Uneven { threads, cores: known.cores() })
}

/// Whether these `processors`, to which the threads of rank `me` are pinned, are of cores on which nothing else computes: a core
/// may have several hardware threads, and each may be pinned to.
fn has_cores(ranks: &[Has], me: usize, processors: &[usize], topology: &Topology) -> bool {
    let processors: BTreeSet<usize> = processors.iter().copied().collect();
    let mine = &ranks[me].processors;
    let alike = sharing(ranks, me);
    let threads: usize = alike.iter().map(|&rank| ranks[rank].threads).sum();
    let theirs = topology.of_their_cores(&processors);
    let apart = ranks.iter().filter(|other| other.computes && other.processors != *mine);
    topology.among(&processors).cores() == processors.len()
        && threads <= topology.among(mine).cores()
        && apart.into_iter().all(|other| other.processors.is_disjoint(&theirs))
}

/// Where the helpers of rank `me` run, and what is left to all else of it, when these processors are helpers'. Of a core that has
/// one of them nothing is left.
///
/// Ranks that are bound to the same processors share out those of the named that they are bound to; ranks that are bound to
/// none of them, since the launcher has left these free, share out all. Neighbours have neighbours.
fn aside(
    ranks: &[Has],
    me: usize,
    topology: &Topology,
    named: &BTreeSet<usize>,
) -> Result<(Vec<usize>, BTreeSet<usize>), String> {
    let lacking = topology.lacking(named);
    if !lacking.is_empty() {
        return Err(format!("--helper-cores: this node has no processor {}", List(lacking)));
    }
    let theirs = topology.of_their_cores(named);
    let mine = &ranks[me].processors;
    if mine.is_empty() {
        return Err("--helper-cores needs to know on which processors a rank may run, and the system does not tell".into());
    }
    let left: BTreeSet<usize> = mine.difference(&theirs).copied().collect();
    if left.is_empty() {
        return Err(format!(
            "--helper-cores {} leaves nothing to compute with: the rank is bound to {}",
            List(named.clone()),
            List(mine.clone())
        ));
    }
    let of = |has: &Has| -> BTreeSet<usize> { named & &has.processors };
    let shared = if of(&ranks[me]).is_empty() { named.clone() } else { of(&ranks[me]) };
    // Who has none has others like it, whatever each is bound to.
    let with = |rank: usize| match of(&ranks[me]).is_empty() {
        true => of(&ranks[rank]).is_empty(),
        false => ranks[rank].processors == *mine,
    };
    let sharing: Vec<usize> = (0..ranks.len()).filter(|&rank| with(rank)).collect();
    let place = sharing.iter().position(|&rank| rank == me).expect("a rank is like itself");
    let all = topology.among(&shared).in_order();
    let first = place * all.len() / sharing.len();
    let end = ((place + 1) * all.len() / sharing.len()).max(first + 1);
    Ok((all[first..end].to_vec(), left))
}

/// Words in which a rank tells what it has: the kernel it runs under, threads, whether its time is whole and whether it computes,
/// its container's budget if it has one, processors.
const HEAD: usize = 5;

impl Has {
    fn here(threads: usize, computes: bool) -> Self {
        let processors = cores::bound_to().clone();
        Self { processors, threads, whole: cores::are_whole(), computes, budget: Budget::here() }
    }

    fn words(&self, kernel: u64) -> Vec<u64> {
        let mut words = vec![0; HEAD + cores::most().div_ceil(64)];
        let is = u64::from(self.whole) | u64::from(self.computes) << 1;
        let (of, time) = self.budget.map_or((0, 0), |b| (b.of, b.processors as u64));
        words[..HEAD].copy_from_slice(&[kernel, self.threads as u64, is, of, time]);
        for cpu in &self.processors {
            words[HEAD + cpu / 64] |= 1 << (cpu % 64);
        }
        words
    }

    fn from_words(words: &[u64]) -> Self {
        let has = |cpu: &usize| words[HEAD + cpu / 64] >> (cpu % 64) & 1 == 1;
        Self {
            processors: (0..64 * (words.len() - HEAD)).filter(has).collect(),
            threads: words[1] as usize,
            whole: words[2] & 1 == 1,
            computes: words[2] >> 1 & 1 == 1,
            budget: (words[4] > 0)
                .then_some(Budget { of: words[3], processors: words[4] as usize }),
        }
    }
}

/// Cores of this node on which none of its `ranks` may run although there is time for them, and of how many there is: `whole` is
/// what the node gives. Ranks that a container keeps to its time leave nothing idle, whatever the node has beside it.
fn idle(ranks: &[Has], whole: &Given, topology: &Topology) -> (usize, usize) {
    let bound: BTreeSet<usize> = ranks
        .iter()
        .flat_map(|rank| &rank.processors)
        .filter(|cpu| whole.processors.contains(cpu))
        .copied()
        .collect();
    let all = topology.among(&whole.processors).cores().min(whole.time);
    (all.saturating_sub(topology.among(&bound).cores()), all)
}

/// What ranks are bound to, before anybody knows how many threads each has.
pub struct Bound {
    /// The ranks under this one's kernel, and which of them it is: containers with names of their own, which MPI takes for nodes,
    /// have the same cores.
    sharing: Vec<Has>,
    me: usize,
    /// The ranks of what MPI takes for this one's node, where this is the first of them.
    of_node: Option<Vec<Has>>,
}

impl Bound {
    /// All ranks together. `node`: those of this one's; `computes`: whether this one has a place in the process grid when the run
    /// begins.
    pub fn on(comm: &Comm, node: &Comm, computes: bool) -> Self {
        let own = Has::here(0, computes);
        let words = own.words(0);
        let all = node.all_gather(&words);
        let ranks = || all.chunks_exact(words.len()).map(Has::from_words).collect();
        let of_node = (node.rank() == 0).then(ranks);
        let (sharing, me) = under_one_kernel(comm, own);
        Self { sharing, me, of_node }
    }

    /// The cores this rank is bound to, divided among the ranks that are bound to the same ones, those that compute if any does.
    pub fn usual_threads(&self) -> usize {
        share(&self.sharing, self.me, cores::count())
    }

    /// All ranks together: what to say where the ranks of a node are bound to some of its cores alone, of the node with the most
    /// that stand idle. Who has bound them, a launcher or whoever started that, no rank can tell.
    pub fn left_idle(&self, comm: &Comm) -> Option<String> {
        let mut most = [0];
        if let Some(ranks) = &self.of_node
            && let Some(whole) = cores::of_node()
        {
            let (idle, all) = idle(ranks, &whole, Topology::here());
            most = [(idle as u64) << 32 | all as u64];
        }
        comm.all_reduce(&mut most, Reduce::Max);
        let (idle, all) = (most[0] >> 32, most[0] & u64::from(u32::MAX));
        (idle > 0).then(|| {
            format!(
                "mind: the ranks of a node are bound to {} of its {all} cores, by the launcher or before it was started (Open MPI \
                 gives each of few ranks one; its --bind-to none gives all that it has itself)",
                all - idle
            )
        })
    }
}

/// All ranks together: sets aside what `--helper-cores` names. On this rank afterwards only helpers run there.
pub fn set_aside(comm: &Comm, named: &List) -> Result<(), Ended> {
    let (ranks, me) = under_one_kernel(comm, Has::here(0, true));
    let (seats, left) = aside(&ranks, me, Topology::here(), &named.0)
        .map_err(|why| Ended::new(Exit::BadInput, why))?;
    match cores::set_aside(&seats, left) {
        true => Ok(()),
        false => {
            let seats = List(seats.into_iter().collect());
            let why = format!("--helper-cores: the system does not let this rank run on {seats}");
            Err(Ended::new(Exit::Environment, why))
        }
    }
}

/// What the ranks under this one's kernel have, and which of them it is. All ranks together.
fn under_one_kernel(comm: &Comm, own: Has) -> (Vec<Has>, usize) {
    let kernel = xxh3_64(kernel().as_bytes());
    // A colour is a C int without a sign. That two kernels have one is no harm: the words tell them apart.
    let colour = (kernel & i32::MAX as u64) as usize;
    let machine = comm.split(Some(colour), comm.rank()).expect("everybody has a colour");
    let own = own.words(kernel);
    let all = machine.all_gather(&own);
    let ours = |(_, words): &(usize, &[u64])| words[0] == kernel;
    let (places, ranks): (Vec<usize>, Vec<Has>) = all
        .chunks_exact(own.len())
        .enumerate()
        .filter(ours)
        .map(|(rank, words)| (rank, Has::from_words(words)))
        .unzip();
    let me = places.iter().position(|&rank| rank == machine.rank()).expect("it is of its kernel");
    (ranks, me)
}

/// All ranks together: the processors of this one's `threads`, or why they have none of their own. `computes`: whether it has a
/// place in the process grid when the run begins.
pub fn decide(
    comm: &Comm,
    (threads, computes): (usize, bool),
    wanted: Pinning,
) -> Result<Pins, Loose> {
    if wanted == Pinning::Off {
        return Err(Loose::Unwanted);
    }
    let (ranks, me) = under_one_kernel(comm, Has::here(threads, computes));
    let processors = pins(&ranks, me, Topology::here())?;
    let allowed = processors.iter().all(|&processor| cores::pin(processor));
    cores::unpin();
    if !allowed {
        return Err(Loose::Refused);
    }
    let cores = has_cores(&ranks, me, &processors, Topology::here());
    Ok(Pins { processors, cores })
}

/// A rank's threads, where they were decided to be. A BLAS that they call starts no more.
pub fn pool(threads: usize, pins: &Result<Pins, Loose>) -> Result<Pool, Ended> {
    let pool = match pins {
        Ok(pins) => Pool::pinned(&pins.processors),
        Err(_) => Pool::try_new(threads),
    };
    let mut pool = pool.map_err(|why| Ended::new(Exit::Environment, why.to_string()))?;
    one_library_thread_each(&mut pool);
    Ok(pool)
}

/// Whether nothing keeps this rank's threads from being as the others' are: those of one that stands by are none of them.
pub fn are_kept<T>(pins: &Result<T, Loose>) -> bool {
    matches!(pins, Ok(_) | Err(Loose::StandsBy))
}

/// Of how many ranks the threads are pinned, those that stand by beside others apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    All,
    Some,
    None,
}

impl Extent {
    pub fn name(self) -> &'static str {
        match self {
            Extent::All => "all",
            Extent::Some => "some",
            Extent::None => "none",
        }
    }
}

/// A line about the threads of all ranks, the fewest and the most of any, by one that has its own.
pub fn told((fewest, most): (usize, usize), extent: Extent, own: &Result<Pins, Loose>) -> String {
    let number = match fewest == most {
        true => most.to_string(),
        false => format!("{fewest} to {most}"),
    };
    let what = match own {
        Ok(Pins { cores: false, .. }) => "a hardware thread of its own",
        _ => "a core of its own",
    };
    let pinned = match (extent, own) {
        (Extent::All, _) => format!("each pinned to {what}"),
        (Extent::Some, Ok(_)) => format!("each pinned to {what}, but not those of all ranks"),
        (Extent::Some, Err(why)) => format!("those of some ranks pinned, but rank 0's not: {why}"),
        (Extent::None, Err(why)) => format!("not pinned: {why}"),
        (Extent::None, Ok(_)) => "not pinned".to_owned(),
    };
    format!("threads: {number} a rank, {pinned}")
}

/// What job scripts for `xhpl` tell a BLAS's own threads with.
pub const THREAD_VARIABLES: [&str; 4] =
    ["OMP_NUM_THREADS", "BLIS_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"];

/// A line for who has set such variables to another number than the threads that a rank has, as nobody said `--threads`: they
/// would wonder why that changes nothing. None where there is nothing to wonder at.
pub fn unheeded(set: &[(&str, String)], threads: usize) -> Option<String> {
    // OpenMP takes a list, a number for each depth of nesting.
    let number = |text: &str| text.split(',').next()?.trim().parse::<usize>().ok();
    let others: Vec<(String, usize)> = set
        .iter()
        .filter_map(|(name, text)| Some((format!("{name}={text}"), number(text)?)))
        .filter(|(_, number)| *number != threads && *number > 0)
        .collect();
    let (_, wanted) = others.first()?;
    let names: Vec<String> = others.iter().map(|(name, _)| name.clone()).collect();
    Some(format!(
        "{} {} not looked at, the threads are skt-hpl's own: --threads {wanted} (or SKT_THREADS={wanted}) gives each rank {wanted}",
        and_list(&names),
        if names.len() == 1 { "is" } else { "are" },
    ))
}

/// A line about helpers; None where there is nothing for them to do beside the ranks.
pub fn helpers_told(protection: &Protection) -> Option<String> {
    let what = match (protection.has_second_level(), protection.encode.by_helper()) {
        (false, false) => return None,
        (true, false) => "storage",
        (false, true) => "checksums",
        (true, true) => "storage and checksums",
    };
    if protection.helpers == Helpers::Off {
        return Some("helpers: none (--helpers off): ranks stop for what goes to storage".into());
    }
    let on = match &protection.helper_cores {
        None => "on the rank's cores or wherever else it may run (--helper-cores)".into(),
        Some(cores) => {
            format!("on processors {cores} of each node, whose cores nothing else here uses")
        }
    };
    Some(format!("helpers: a thread of each rank for {what}, {on}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::topology::tests::Machine;

    /// Two cores of two hardware threads each: 0 and 2, 1 and 3.
    fn small() -> Topology {
        Machine { cores_a_cache: 2, threads_a_core: 2, ..Machine::PLAIN }.topology()
    }

    fn has(processors: impl IntoIterator<Item = usize>, threads: usize) -> Has {
        let processors = processors.into_iter().collect();
        Has { processors, threads, whole: true, computes: true, budget: None }
    }

    /// A container may have the time of eight processors on a node of sixteen, whatever each of its ranks is bound to.
    #[test]
    fn ranks_of_a_container_share_the_time_that_it_has() {
        let topology = Machine { cores_a_cache: 4, ..Machine::PLAIN }.topology();
        let of = |of, has: Has| {
            let budget = Some(Budget { of, processors: 2 });
            assert_eq!(Has::from_words(&Has { budget, ..has.clone() }.words(7)).budget, budget);
            Has { budget, ..has }
        };
        let both = [of(1, has([0, 1], 2)), of(1, has([2, 3], 2))];
        assert_eq!([share(&both, 0, 2), share(&both, 1, 2)], [1, 1]);
        assert_eq!(pins(&both, 0, &topology), Err(Loose::Limited));
        // Each in a container of its own, and where one stands by.
        let apart = [of(1, has([0, 1], 2)), of(2, has([2, 3], 2))];
        assert_eq!([share(&apart, 0, 2), share(&apart, 1, 2)], [2, 2]);
        assert_eq!(pins(&apart, 1, &topology), Ok(vec![2, 3]));
        let spare = [of(1, has([0, 1], 2)), of(1, Has { computes: false, ..has([2, 3], 2) })];
        assert_eq!(share(&spare, 0, 2), 2);
        assert_eq!(pins(&spare, 0, &topology), Ok(vec![0, 1]));
        // As many cores as there is time for.
        let enough = [of(1, has([0], 1)), of(1, has([1], 1))];
        assert_eq!(pins(&enough, 1, &topology), Ok(vec![1]));
    }

    /// What must hold of any ranks. How many of them are pinned.
    fn check(ranks: &[Has], topology: &Topology) -> usize {
        let all: Vec<_> = (0..ranks.len()).map(|me| pins(ranks, me, topology)).collect();
        let mut taken = BTreeSet::new();
        for (rank, pins) in ranks.iter().zip(&all) {
            let Ok(pins) = pins else { continue };
            assert_eq!(pins.len(), rank.threads, "{ranks:?}");
            for pin in pins {
                assert!(rank.processors.contains(pin), "not its own: {ranks:?}");
                assert!(taken.insert(*pin), "two threads on processor {pin}: {ranks:?}");
            }
            let used = topology.among(&pins.iter().copied().collect()).cores();
            let there = topology.among(&rank.processors).cores();
            assert!(used == pins.len() || rank.threads > there / ranks.len(), "{ranks:?}");
            // Whoever shares its processors is pinned, too.
            for (other, has) in all.iter().zip(ranks) {
                assert!(other.is_ok() || has.processors.is_disjoint(&rank.processors), "{ranks:?}");
            }
        }
        all.iter().filter(|pins| pins.is_ok()).count()
    }

    /// Every binding and number of threads of up to three ranks on a small machine.
    #[test]
    fn no_two_threads_are_pinned_on_top_of_one_another() {
        let topology = small();
        let set = |bits: usize| (0..4).filter(move |cpu| bits >> cpu & 1 == 1);
        let mut kinds = Vec::new();
        for bits in 0..16 {
            for threads in 1..6 {
                kinds.push(has(set(bits), threads));
            }
        }
        let mut pinned = [0; 3];
        for a in &kinds {
            pinned[0] += usize::from(check(std::slice::from_ref(a), &topology) == 1);
            for b in &kinds {
                let two = [a.clone(), b.clone()];
                pinned[1] += usize::from(check(&two, &topology) == 2);
                if a.threads > 2 || b.threads > 2 {
                    continue;
                }
                for c in kinds.iter().filter(|c| c.threads < 3) {
                    let three = [a.clone(), b.clone(), c.clone()];
                    pinned[2] += usize::from(check(&three, &topology) == 3);
                }
            }
        }
        assert!(pinned.iter().all(|&count| count > 0), "{pinned:?}");
    }

    #[test]
    fn cores_without_a_rank_are_counted() {
        let topology = small();
        let node = |processors: &[usize], time| Given {
            processors: processors.iter().copied().collect(),
            time,
        };
        let whole = node(&[0, 1, 2, 3], 4);
        let cores = topology.among(&whole.processors).cores();
        let idle = |ranks: &[Has]| idle(ranks, &whole, &topology);
        assert_eq!(idle(&[has(0..4, 1), has(0..4, 1)]), (0, cores));
        assert_eq!(idle(&[has([0], 1)]), (cores - 1, cores));
        assert_eq!(idle(&[has([0], 1), has(0..4, 1)]), (0, cores));
        // What is not this node's to give is none of its cores.
        assert_eq!(idle(&[has([0, 7], 1)]), (cores - 1, cores));
        assert_eq!(super::idle(&[has([1], 1)], &node(&[1], 1), &topology), (0, 1));
        // A container has time for one of the two, or for one that nobody is bound to.
        let limited = node(&[0, 1, 2, 3], 1);
        assert_eq!(super::idle(&[has([0], 1)], &limited, &topology), (0, 1));
        assert_eq!(super::idle(&[has(0..4, 1)], &limited, &topology), (0, 1));
        let eight = Machine { cores_a_cache: 8, ..Machine::PLAIN }.topology();
        let limited = node(&[0, 1, 2, 3, 4, 5, 6, 7], 4);
        assert_eq!(super::idle(&[has([0], 1)], &limited, &eight), (3, 4));
    }

    #[test]
    fn a_rank_takes_its_cores_and_ranks_alike_share_them_out() {
        let topology = small();
        let all = |ranks: &[Has]| -> Vec<_> {
            (0..ranks.len()).map(|me| pins(ranks, me, &topology)).collect()
        };
        // Alone, a thread a core, or one a hardware thread.
        assert_eq!(all(&[has(0..4, 2)]), [Ok(vec![0, 1])]);
        assert_eq!(all(&[has(0..4, 4)]), [Ok(vec![0, 2, 1, 3])]);
        assert_eq!(all(&[has([1, 3], 1)]), [Ok(vec![1])]);
        // Bound to a core each, to a hardware thread each, to nothing.
        assert_eq!(all(&[has([0, 2], 1), has([1, 3], 1)]), [Ok(vec![0]), Ok(vec![1])]);
        assert_eq!(all(&[has([2], 1), has([0], 1)]), [Ok(vec![2]), Ok(vec![0])]);
        assert_eq!(all(&[has(0..4, 1), has(0..4, 1)]), [Ok(vec![0]), Ok(vec![1])]);
        let uneven = |threads| Err(Loose::Uneven { threads, cores: 2 });
        assert_eq!(all(&[has(0..4, 3)]), [uneven(3)]);
        assert_eq!(all(&[has(0..4, 1)]), [uneven(1)], "another job may have the other core");
        assert_eq!(all(&[has(0..4, 8)]), [uneven(8)]);
        assert_eq!(all(&[has(0..4, 1), has(0..4, 2)]), [uneven(3), uneven(3)]);
        let five = vec![has(0..4, 1); 5];
        assert!(all(&five).iter().all(|pins| *pins == uneven(5)));
        // Bound to some of another's.
        let both = Err(Loose::Overlapping);
        assert_eq!(all(&[has([0], 1), has(0..4, 2)]), [both.clone(), both.clone()]);
        assert_eq!(all(&[has([0, 1], 2), has([1, 2], 2), has([3], 1)])[2], Ok(vec![3]));
        assert_eq!(all(&[has([], 1)]), [Err(Loose::Unknown)]);
        assert_eq!(all(&[has([0, 9], 2)]), [Err(Loose::Unknown)], "nothing is known of 9");
        let limited = Has { whole: false, ..has(0..4, 2) };
        assert_eq!(all(&[limited]), [Err(Loose::Limited)]);
    }

    #[test]
    fn ranks_on_hardware_threads_of_one_core_have_no_core_of_their_own() {
        let topology = small();
        let alone = |ranks: &[Has]| -> Vec<bool> {
            let of = |me| has_cores(ranks, me, &pins(ranks, me, &topology).unwrap(), &topology);
            (0..ranks.len()).map(of).collect()
        };
        // Each bound to a core, or to a hardware thread whose sibling is idle.
        assert_eq!(alone(&[has([0, 2], 1), has([1, 3], 1)]), [true, true]);
        assert_eq!(alone(&[has([0], 1), has([1], 1)]), [true, true]);
        // To hardware threads of one core, and one to another core.
        assert_eq!(alone(&[has([0], 1), has([2], 1), has([3], 1)]), [false, false, true]);
        // Two share what they are bound to: a core, or both.
        assert_eq!(alone(&[has([0, 2], 1), has([0, 2], 1)]), [false, false]);
        assert_eq!(alone(&[has(0..4, 1), has(0..4, 1)]), [true, true]);
        assert_eq!(alone(&[has(0..4, 2), has(0..4, 2)]), [false, false]);
        assert_eq!(alone(&[has(0..4, 4)]), [false]);
        // Who stands by sleeps.
        let spare = Has { computes: false, ..has([2], 1) };
        assert_eq!(alone(&[has([0], 1), spare]), [true, false]);
    }

    /// A rank that stands by takes no core from those that compute, and is ready to do as much as one of them.
    #[test]
    fn cores_are_for_ranks_that_compute() {
        let topology = Topology::even(16, 16);
        let spare = |threads| Has { computes: false, ..has(0..16, threads) };
        let all = |ranks: &[Has]| -> Vec<_> {
            (0..ranks.len()).map(|me| (share(ranks, me, 16), pins(ranks, me, &topology))).collect()
        };
        let (first, second) = (Ok((0..8).collect()), Ok((8..16).collect()));
        let by = || (8, Err(Loose::StandsBy));
        // Whichever of them it is, and however many stand by.
        assert_eq!(
            all(&[has(0..16, 8), has(0..16, 8), spare(8)]),
            [(8, first.clone()), (8, second.clone()), by()]
        );
        assert_eq!(
            all(&[spare(8), has(0..16, 8), spare(8), has(0..16, 8)]),
            [by(), (8, first.clone()), by(), (8, second.clone())]
        );
        // On a node of their own they have all of it.
        assert_eq!(all(&[spare(8), spare(8)]), [(8, first), (8, second)]);
        assert_eq!(all(&[spare(16)]), [(16, Ok((0..16).collect()))]);
        // One that is bound to cores of its own keeps them.
        let bound = [has(0..8, 8), Has { computes: false, ..has(8..16, 8) }];
        assert_eq!(pins(&bound, 1, &topology), Ok((8..16).collect()));
        assert_eq!(share(&bound, 1, 8), 8);
        // What does not come out even among those that compute is told as before.
        let uneven = Err(Loose::Uneven { threads: 10, cores: 16 });
        let ranks = [has(0..16, 5), has(0..16, 5), spare(5)];
        assert_eq!(pins(&ranks, 0, &topology), uneven);
        assert!(are_kept(&by().1) && !are_kept(&uneven));
    }

    #[test]
    fn unbound_ranks_of_a_large_node_get_a_memory_each() {
        let epyc = Machine {
            sockets: 2,
            memories_a_socket: 4,
            cores_a_cache: 8,
            threads_a_core: 2,
            scattered: true,
            ..Machine::PLAIN
        };
        let topology = epyc.topology();
        let ranks = vec![has(0..128, 8); 8];
        for me in 0..8 {
            let wanted: Vec<usize> = (0..8).map(|core| core * 8 + me).collect();
            assert_eq!(pins(&ranks, me, &topology), Ok(wanted));
        }
        // Three do not divide 64 cores; they have 21 each.
        let ranks = vec![has(0..128, 21); 3];
        assert_eq!(check(&ranks, &topology), 3);
    }

    #[test]
    fn ranks_share_out_what_helpers_have() {
        let topology = small();
        let set = |some: &[usize]| some.iter().copied().collect::<BTreeSet<usize>>();
        let all = |ranks: &[Has], named: &[usize]| -> Vec<_> {
            let one = |me| aside(ranks, me, &topology, &set(named));
            (0..ranks.len()).map(one).collect()
        };
        // A core is helpers' as a whole, or not at all.
        assert_eq!(all(&[has(0..4, 0)], &[3]), [Ok((vec![3], set(&[0, 2])))]);
        assert_eq!(all(&[has(0..4, 0)], &[1, 3]), [Ok((vec![1, 3], set(&[0, 2])))]);
        let two = [has(0..4, 0), has(0..4, 0)];
        let left = set(&[0, 2]);
        assert_eq!(all(&two, &[1, 3]), [Ok((vec![1], left.clone())), Ok((vec![3], left.clone()))]);
        assert_eq!(all(&two, &[1]), [Ok((vec![1], left.clone())), Ok((vec![1], left.clone()))]);
        // The launcher has left a core free: both go there.
        let bound = [has([0], 0), has([2], 0)];
        assert_eq!(all(&bound, &[3]), [Ok((vec![3], set(&[0]))), Ok((vec![3], set(&[2])))]);
        let why = |ranks: &[Has], named: &[usize]| all(ranks, named)[0].clone().unwrap_err();
        assert!(why(&two, &[0, 1]).contains("nothing to compute with: the rank is bound to 0-3"));
        assert!(why(&bound, &[0]).contains("leaves nothing"));
        assert!(why(&two, &[3, 4, 5]).contains("no processor 4-5"));
        // Each of four ranks that are bound to a quarter has the last core of its own.
        let large = Topology::even(16, 4);
        let ranks: Vec<Has> = (0..4).map(|rank| has(4 * rank..4 * rank + 4, 0)).collect();
        for me in 0..4 {
            let named = set(&[3, 7, 11, 15]);
            let mine: BTreeSet<usize> = (4 * me..4 * me + 3).collect();
            assert_eq!(aside(&ranks, me, &large, &named), Ok((vec![4 * me + 3], mine)));
        }
        // Of ranks that are bound to nothing each has one, beside the cores that it will have.
        let ranks = vec![has(0..16, 0); 4];
        for me in 0..4 {
            let (seats, left) = aside(&ranks, me, &large, &set(&[3, 7, 11, 15])).unwrap();
            assert_eq!((seats, left.len()), (vec![4 * me + 3], 12));
            let rest = vec![Has { processors: left, ..has([], 3) }; 4];
            let wanted: Vec<usize> = (4 * me..4 * me + 3).collect();
            assert_eq!(pins(&rest, me, &large), Ok(wanted));
        }
    }

    #[test]
    fn a_line_says_who_helps_and_where() {
        use crate::config::settings::{Overrides, Saving, Settings};
        let told = |set: &Overrides| helpers_told(&Settings::from(set).protection.unwrap());
        let saving = Some(Saving::Every(crate::checkpoint::when::Interval::Iterations(1)));
        let set = Overrides { checkpoint: saving, ..Overrides::default() };
        assert_eq!(told(&set), None);
        let set = Overrides { level2: Some("/scratch".into()), ..set };
        assert!(told(&set).unwrap().contains("for storage, on the rank's cores"));
        let off = Overrides { helpers: Some(Helpers::Off), ..set.clone() };
        assert!(told(&off).unwrap().contains("helpers: none"));
        let encode = Some(crate::checkpoint::plan::Encoding::Helper);
        let helper_cores = Some("1,3-4".parse().unwrap());
        let set = Overrides { encode, helper_cores, ..set };
        assert!(told(&set).unwrap().contains("storage and checksums, on processors 1,3-4 of"));
    }

    #[test]
    fn what_is_told_comes_back() {
        let limited = Has { whole: false, ..has([5], 1) };
        let spare = Has { computes: false, ..has([5], 1) };
        for one in [has([], 1), has([0, 63, 64, 1023], 7), limited, spare] {
            assert_eq!(Has::from_words(&one.words(9)), one);
        }
    }

    #[test]
    fn variables_for_a_blas_that_say_something_else_are_told_of() {
        let set = |some: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
            some.iter().map(|(name, value)| (*name, value.to_string())).collect()
        };
        let four = unheeded(&set(&[("OMP_NUM_THREADS", "4,2")]), 2).unwrap();
        assert!(four.starts_with("OMP_NUM_THREADS=4,2 is not looked at"), "{four}");
        assert!(four.contains("--threads 4 (or SKT_THREADS=4)"), "{four}");
        let both = [("OMP_NUM_THREADS", "2"), ("BLIS_NUM_THREADS", "1"), ("MKL_NUM_THREADS", "8")];
        let both = unheeded(&set(&both), 2).unwrap();
        assert!(both.starts_with("BLIS_NUM_THREADS=1 and MKL_NUM_THREADS=8 are not"), "{both}");
        for alike in ["2", " 2 ", "2,1", "", "many", "0"] {
            assert_eq!(unheeded(&set(&[("OMP_NUM_THREADS", alike)]), 2), None, "{alike}");
        }
    }

    #[test]
    fn a_line_says_how_many_and_where() {
        let own = Err(Loose::Uneven { threads: 4, cores: 2 });
        assert_eq!(
            told((1, 1), Extent::None, &own),
            "threads: 1 a rank, not pinned: 4 threads on 2 cores, which does not come out even"
        );
        assert!(told((1, 2), Extent::Some, &own).starts_with("threads: 1 to 2 a rank, those of"));
        let own = |cores| Ok(Pins { processors: vec![0], cores });
        let all = |cores| told((1, 1), Extent::All, &own(cores));
        assert_eq!(all(true), "threads: 1 a rank, each pinned to a core of its own");
        assert_eq!(all(false), "threads: 1 a rank, each pinned to a hardware thread of its own");
    }
}
