//! Choice of the processors to which each thread of a rank is pinned.
//!
//! Ranks under one kernel exchange the processors to which they are bound. A pure function divides these processors, with the
//! same result on all of these ranks. A rank bound to cores of its own uses these cores. If a launcher has bound several ranks to
//! the same cores, or has bound no rank, these ranks divide the cores; neighbours get adjacent cores. If the division is uneven,
//! no rank is pinned: two threads pinned to one core would be far slower than threads that the system moves.
//!
//! Cores are for ranks that compute. A spare rank or a dedicated checksum rank sleeps most of the time. Such a rank has as many
//! threads as a computing rank, because it may take over a position, but no cores of its own. When such a rank takes over, the
//! system runs its threads on free cores, such as those of a lost rank of the same node.
//!
//! Cores of processors in `--helper-cores` are only for helpers, and are set aside before the division. `benchmark` and the
//! trials of `tune` choose the processors before a rank has its pool. No result depends on the choice.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::agreement::{Extent, gathered, reduced};
use crate::base::cores::{self, Given};
use crate::base::exit::Refusal;
use crate::base::params::Pinning;
use crate::base::threads::Pool;
use crate::base::topology::Topology;
use crate::checkpoint::plan::Helpers;
use crate::comm::{Comm, Reduce};
use crate::config::diagnostic::and_list;
use crate::config::processors::List;
use crate::config::settings::Saves;
use crate::kernels::one_library_thread_each;
use crate::supervise::talk::processes::kernel;

/// Processors to which a rank's threads are pinned, in the order of the threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    processors: Vec<usize>,
    /// True if each thread has a core on which nothing else computes; false if each thread has only a hardware thread to itself.
    cores: bool,
}

/// Facts about a rank that all ranks under the same operating-system kernel need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Has {
    /// Processors to which the rank is bound.
    processors: BTreeSet<usize>,
    threads: usize,
    /// True if the rank may use the whole time of its processors.
    whole: bool,
    /// True if the rank has a position in the process grid when the run begins.
    computes: bool,
    /// Limit on the processor time of the rank's container, if the limit is below the container's number of processors.
    budget: Option<Budget>,
}

/// Limit on the processor time of a container, as a number of processors. The ranks of a container may be bound to different
/// processors of the node. All these ranks together get no more time than this limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Budget {
    /// Id of the container, equal for all ranks in the container.
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

/// Returns the budget of rank `me`, and the ranks that share it. The computing ranks of the container share the budget. If none
/// of them computes, all ranks of the container share it. Returns `None` if the container has no limit.
fn sharing_budget(ranks: &[Has], me: usize) -> Option<(Budget, Vec<usize>)> {
    let budget = ranks[me].budget?;
    Some((budget, that_compute(ranks, |rank| rank.budget == Some(budget))))
}

/// Returns true if the budget of `me`'s container covers all cores to which the container's ranks are bound, or if there is no
/// budget.
fn has_time(ranks: &[Has], me: usize, topology: &Topology) -> bool {
    let Some((budget, sharing)) = sharing_budget(ranks, me) else { return true };
    let all = sharing.iter().flat_map(|&rank| &ranks[rank].processors).copied().collect();
    topology.among(&all).cores() <= budget.processors
}

/// Reason why a rank's threads are not pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Loose {
    #[error("--pin off")]
    Unwanted,
    #[error("the system does not report the cores of this rank")]
    Unknown,
    #[error("the rank's container gets less processor time than the rank's cores have")]
    Limited,
    /// Another rank is bound to some of this rank's processors, but the two ranks' sets of processors differ.
    #[error("another rank is bound to some of this rank's cores, but not to all")]
    Overlapping,
    /// The ranks that share these processors together have neither one thread for each core, nor one thread for each hardware
    /// thread.
    #[error(
        "{} on {}, which is neither one for each core nor one for each hardware thread",
        number(*threads, "thread"), number(*cores, "core")
    )]
    Uneven { threads: usize, cores: usize },
    #[error("the system does not allow pinning")]
    Refused,
    /// The rank does not compute, but another rank with the same processors computes.
    #[error("the rank does not compute, and other ranks on this node do")]
    StandsBy,
}

/// Writes a number of things: `1 core`, `2 cores`.
fn number(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// Returns the ranks that share the processors of rank `me`: the computing ranks with the same binding. If none of them computes,
/// all ranks with this binding share the processors.
fn sharing(ranks: &[Has], me: usize) -> Vec<usize> {
    that_compute(ranks, |rank| rank.processors == ranks[me].processors)
}

/// Returns the computing ranks among the ranks for which `alike` is true. If none of these ranks computes, returns all of them.
fn that_compute(ranks: &[Has], alike: impl Fn(&Has) -> bool) -> Vec<usize> {
    let alike = (0..ranks.len()).filter(|&rank| alike(&ranks[rank]));
    let (computing, others): (Vec<usize>, Vec<usize>) =
        alike.partition(|&rank| ranks[rank].computes);
    if computing.is_empty() { others } else { computing }
}

/// Returns the number of threads of rank `me`, which is bound to `cores` cores. An idle rank gets as many threads as a computing
/// rank, because an idle rank may take over a position.
fn share(ranks: &[Has], me: usize, cores: usize) -> usize {
    let of_cores = cores / sharing(ranks, me).len().max(1);
    let of_time = sharing_budget(ranks, me)
        .map_or(usize::MAX, |(budget, sharing)| budget.processors / sharing.len().max(1));
    of_cores.min(of_time).max(1)
}

/// Returns the processors of rank `me`'s threads, in the order of the threads, or the reason why the threads are not pinned.
///
/// A single rank with more cores than threads is not pinned. Another program, such as another job, may run on some of these
/// cores. Only the system can then move the rank's threads to free cores.
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

/// Returns true if `processors`, to which rank `me`'s threads are pinned, lie on separate cores on which nothing else computes.
/// Returns false if another thread computes on a second hardware thread of such a core.
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

/// Returns the processors of rank `me`'s helpers, and the processors that remain for rank `me`'s other threads. `named` are the
/// processors of all helpers. Other threads do not run on any core with a named processor.
///
/// Ranks bound to the same processors share the named processors of their binding. Ranks whose binding has no named processor
/// share all named processors. Ranks with consecutive numbers get adjacent processors.
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
        return Err(
            "--helper-cores: the system does not report the processors on which this rank may run"
                .into(),
        );
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
    // Ranks that are bound to no named processor share with each other, even if their bindings differ.
    let with = |rank: usize| {
        if of(&ranks[me]).is_empty() {
            of(&ranks[rank]).is_empty()
        } else {
            ranks[rank].processors == *mine
        }
    };
    let sharing: Vec<usize> = (0..ranks.len()).filter(|&rank| with(rank)).collect();
    let place = sharing.iter().position(|&rank| rank == me).expect("a rank is like itself");
    let all = topology.among(&shared).in_order();
    let first = place * all.len() / sharing.len();
    let end = ((place + 1) * all.len() / sharing.len()).max(first + 1);
    Ok((all[first..end].to_vec(), left))
}

impl Has {
    fn here(threads: usize, computes: bool) -> Self {
        let processors = cores::bound_to().clone();
        Self { processors, threads, whole: cores::are_whole(), computes, budget: Budget::here() }
    }
}

/// Returns the number of idle cores, and the number of cores that the job may use on the node. `whole` describes the node. A core
/// is idle if no rank may run on it. If a container limits the processor time, only as many cores count as the limit allows.
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

/// Processors to which ranks are bound, collected before the number of threads is known.
pub struct Bound {
    /// Ranks under this rank's operating-system kernel. Containers with different host names may share cores, although MPI takes
    /// each container for a node.
    sharing: Vec<Has>,
    /// Index of this rank in `sharing`.
    me: usize,
    /// Ranks of this node as MPI sees the node; `None` except on the first of these ranks.
    of_node: Option<Vec<Has>>,
}

impl Bound {
    /// Collects the binding of the ranks on this node. `node` has the ranks of this node; `computes` is true if this rank has a
    /// position in the process grid when the run begins. Collective call.
    pub fn on(comm: &Comm, node: &Comm, computes: bool) -> Self {
        let own = Has::here(0, computes);
        let all = gathered(node, &own);
        let of_node = (node.rank() == 0).then_some(all);
        let (sharing, me) = under_one_kernel(comm, own);
        Self { sharing, me, of_node }
    }

    /// Returns the number of threads if the user gives none: the cores of this rank's binding, divided by the ranks that share
    /// it. Only computing ranks count, unless no rank computes. A container's limit on processor time can lower the number.
    pub fn usual_threads(&self) -> usize {
        share(&self.sharing, self.me, cores::count())
    }

    /// Returns a warning if the ranks of a node are bound to only some of the node's cores; otherwise `None`. The warning is
    /// about the node with the most idle cores. A rank cannot find out whether the launcher or a process above the launcher has
    /// bound it. Collective call.
    pub fn left_idle(&self, comm: &Comm) -> Option<String> {
        let here = self.of_node.as_ref().zip(cores::of_node()).map_or(0, |(ranks, whole)| {
            let (idle, all) = idle(ranks, &whole, Topology::here());
            (idle as u64) << 32 | all as u64
        });
        let most = reduced(comm, here, Reduce::Max);
        let (idle, all) = (most >> 32, most & u64::from(u32::MAX));
        (idle > 0).then(|| {
            format!(
                "warning: the ranks of a node are bound to {} of its {all} cores, by the launcher or by the shell that started \
                 it. Open MPI binds each rank to one core if a node has few ranks; mpirun --bind-to none does not bind ranks",
                all - idle
            )
        })
    }
}

/// Sets the cores of `--helper-cores` aside. Afterwards, only helpers of this rank run on these cores. Collective call.
pub fn set_aside(comm: &Comm, named: &List) -> Result<(), Refusal> {
    let (ranks, me) = under_one_kernel(comm, Has::here(0, true));
    let (processors, left) =
        aside(&ranks, me, Topology::here(), &named.0).map_err(Refusal::bad_input)?;
    if cores::set_aside(&processors, left) {
        return Ok(());
    }
    let processors = List(processors.into_iter().collect());
    let why = format!("--helper-cores: the system does not let this rank run on {processors}");
    Err(Refusal::environment(why))
}

/// Returns facts about the ranks under this rank's operating-system kernel, and the index of this rank among these ranks.
/// Collective call.
fn under_one_kernel(comm: &Comm, own: Has) -> (Vec<Has>, usize) {
    let kernel = xxh3_64(kernel().as_bytes());
    // An MPI colour is a nonnegative C int. If two kernels have the same colour, their ids still distinguish them.
    let colour = (kernel & i32::MAX as u64) as usize;
    let machine = comm.split(Some(colour), comm.rank()).expect("everybody has a colour");
    let all = gathered(&machine, &(kernel, machine.rank(), own));
    let (places, ranks): (Vec<usize>, Vec<Has>) =
        all.into_iter().filter(|(of, ..)| *of == kernel).map(|(_, rank, has)| (rank, has)).unzip();
    let me = places.iter().position(|&rank| rank == machine.rank()).expect("it is of its kernel");
    (ranks, me)
}

/// Chooses the processors of this rank's `threads`, or returns the reason why the threads are not pinned. `computes` is true if
/// the rank has a position in the process grid when the run begins. Collective call.
pub fn decide(comm: &Comm, threads: usize, computes: bool, wanted: Pinning) -> Result<Pins, Loose> {
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

/// Starts the threads of a rank: on the chosen processors, or unpinned if `pins` is an error. A BLAS called by these threads
/// starts no threads of its own.
pub fn pool(threads: usize, pins: &Result<Pins, Loose>) -> Result<Pool, Refusal> {
    let pool = match pins {
        Ok(pins) => Pool::pinned(&pins.processors),
        Err(_) => Pool::try_new(threads),
    };
    let mut pool = pool.map_err(Refusal::environment)?;
    one_library_thread_each(&mut pool);
    Ok(pool)
}

/// Returns true if this rank's threads count as pinned. An idle rank counts as pinned, because its threads do not compute.
pub fn are_kept<T>(pins: &Result<T, Loose>) -> bool {
    matches!(pins, Ok(_) | Err(Loose::StandsBy))
}

/// Returns a line about the threads of all ranks. The line has the least and greatest number of threads of a rank, and says
/// whether threads are pinned. `own` is the pinning of rank 0.
pub fn told(fewest: usize, most: usize, extent: Extent, own: &Result<Pins, Loose>) -> String {
    let number = if fewest == most { most.to_string() } else { format!("{fewest} to {most}") };
    let what = match own {
        Ok(Pins { cores: false, .. }) => "a hardware thread of its own",
        _ => "a core of its own",
    };
    let pinned = match (extent, own) {
        (Extent::All, _) => format!("each pinned to {what}"),
        (Extent::Some, Ok(_)) => format!("each pinned to {what}, except the threads of some ranks"),
        (Extent::Some, Err(why)) => format!("pinned on some ranks, but not on rank 0: {why}"),
        (Extent::None, Err(why)) => format!("not pinned: {why}"),
        (Extent::None, Ok(_)) => "not pinned".to_owned(),
    };
    format!("threads: {number} a rank, {pinned}")
}

/// Variables with which job scripts for `xhpl` set the number of threads of a BLAS.
pub const THREAD_VARIABLES: [&str; 4] =
    ["OMP_NUM_THREADS", "BLIS_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"];

/// Returns a message that [`THREAD_VARIABLES`] have no effect, or `None` if no such variable is set to another number than
/// `threads`. Called only without `--threads`.
pub fn unheeded(set: &[(&str, String)], threads: usize) -> Option<String> {
    // OpenMP accepts a list, with a number for each level of nesting.
    let number = |text: &str| text.split(',').next()?.trim().parse::<usize>().ok();
    let others: Vec<(String, usize)> = set
        .iter()
        .filter_map(|(name, text)| Some((format!("{name}={text}"), number(text)?)))
        .filter(|(_, number)| *number != threads && *number > 0)
        .collect();
    let (_, wanted) = others.first()?;
    let names: Vec<String> = others.iter().map(|(name, _)| name.clone()).collect();
    Some(format!(
        "{} {} ignored: skt-hpl starts threads of its own. To have {wanted} threads in each rank, give --threads {wanted} \
         (or SKT_THREADS={wanted})",
        and_list(&names),
        if names.len() == 1 { "is" } else { "are" },
    ))
}

/// Returns a line for the output about the ranks' helpers, or `None` if helpers have no work.
pub fn helpers_told(protection: &Saves) -> Option<String> {
    let what = match (protection.has_second_level(), protection.encode.by_helper()) {
        (false, false) => return None,
        (true, false) => "storage",
        (false, true) => "checksums",
        (true, true) => "storage and checksums",
    };
    if protection.helpers == Helpers::Off {
        return Some(
            "helpers: none (--helpers off): ranks do not compute while they write to storage"
                .into(),
        );
    }
    let on = match &protection.helper_cores {
        None => "on the rank's cores (--helper-cores names other cores)".into(),
        Some(cores) => {
            format!(
                "on processors {cores} of each node; no other thread of this run uses their cores"
            )
        }
    };
    Some(format!("helpers: a thread of each rank for {what}, {on}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::machine::Machine;

    /// Two cores of two hardware threads each: 0 and 2, 1 and 3.
    fn small() -> Topology {
        Machine { cores_a_cache: 2, threads_a_core: 2, ..Machine::PLAIN }.topology()
    }

    fn has(processors: impl IntoIterator<Item = usize>, threads: usize) -> Has {
        let processors = processors.into_iter().collect();
        Has { processors, threads, whole: true, computes: true, budget: None }
    }

    /// The CPU quota of a container can be eight processors on a node of sixteen. The binding of its ranks does not show this.
    #[test]
    fn ranks_of_a_container_share_the_time_that_it_has() {
        let topology = Machine { cores_a_cache: 4, ..Machine::PLAIN }.topology();
        let of = |of, has: Has| {
            let budget = Some(Budget { of, processors: 2 });
            Has { budget, ..has }
        };
        let both = [of(1, has([0, 1], 2)), of(1, has([2, 3], 2))];
        assert_eq!([share(&both, 0, 2), share(&both, 1, 2)], [1, 1]);
        assert_eq!(pins(&both, 0, &topology), Err(Loose::Limited));
        // Each rank is in a container of its own; and a container has an idle rank.
        let apart = [of(1, has([0, 1], 2)), of(2, has([2, 3], 2))];
        assert_eq!([share(&apart, 0, 2), share(&apart, 1, 2)], [2, 2]);
        assert_eq!(pins(&apart, 1, &topology), Ok(vec![2, 3]));
        let spare = [of(1, has([0, 1], 2)), of(1, Has { computes: false, ..has([2, 3], 2) })];
        assert_eq!(share(&spare, 0, 2), 2);
        assert_eq!(pins(&spare, 0, &topology), Ok(vec![0, 1]));
        // The container has time for as many cores as its ranks have.
        let enough = [of(1, has([0], 1)), of(1, has([1], 1))];
        assert_eq!(pins(&enough, 1, &topology), Ok(vec![1]));
    }

    /// Checks that each pinned thread has a processor of its own, to which its rank is bound. Returns the number of pinned ranks.
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
            // Ranks with the same processors are pinned, too.
            for (other, has) in all.iter().zip(ranks) {
                assert!(other.is_ok() || has.processors.is_disjoint(&rank.processors), "{ranks:?}");
            }
        }
        all.iter().filter(|pins| pins.is_ok()).count()
    }

    /// Covers every binding and number of threads of up to three ranks on a small machine.
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
        // A processor outside of this node counts as none of its cores.
        assert_eq!(idle(&[has([0, 7], 1)]), (cores - 1, cores));
        assert_eq!(super::idle(&[has([1], 1)], &node(&[1], 1), &topology), (0, 1));
        // The container has time for one of two cores, and then for four of eight.
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
        // A single rank with one thread per core, or per hardware thread.
        assert_eq!(all(&[has(0..4, 2)]), [Ok(vec![0, 1])]);
        assert_eq!(all(&[has(0..4, 4)]), [Ok(vec![0, 2, 1, 3])]);
        assert_eq!(all(&[has([1, 3], 1)]), [Ok(vec![1])]);
        // Two ranks, bound to a core each, to a hardware thread each, or to nothing.
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
        // A rank bound to some of another's processors.
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
        // Each rank bound to a core, or to a hardware thread whose sibling is idle.
        assert_eq!(alone(&[has([0, 2], 1), has([1, 3], 1)]), [true, true]);
        assert_eq!(alone(&[has([0], 1), has([1], 1)]), [true, true]);
        // Two ranks on hardware threads of one core, a third on another core.
        assert_eq!(alone(&[has([0], 1), has([2], 1), has([3], 1)]), [false, false, true]);
        // Two ranks share their processors: one core, or both.
        assert_eq!(alone(&[has([0, 2], 1), has([0, 2], 1)]), [false, false]);
        assert_eq!(alone(&[has(0..4, 1), has(0..4, 1)]), [true, true]);
        assert_eq!(alone(&[has(0..4, 2), has(0..4, 2)]), [false, false]);
        assert_eq!(alone(&[has(0..4, 4)]), [false]);
        // An idle rank sleeps.
        let spare = Has { computes: false, ..has([2], 1) };
        assert_eq!(alone(&[has([0], 1), spare]), [true, false]);
    }

    /// An idle rank takes no core from computing ranks, but has as many threads as a computing rank.
    #[test]
    fn cores_are_for_ranks_that_compute() {
        let topology = Topology::even(16, 16);
        let spare = |threads| Has { computes: false, ..has(0..16, threads) };
        let all = |ranks: &[Has]| -> Vec<_> {
            (0..ranks.len()).map(|me| (share(ranks, me, 16), pins(ranks, me, &topology))).collect()
        };
        let (first, second) = (Ok((0..8).collect()), Ok((8..16).collect()));
        let by = || (8, Err(Loose::StandsBy));
        // For any position and any number of idle ranks.
        assert_eq!(
            all(&[has(0..16, 8), has(0..16, 8), spare(8)]),
            [(8, first.clone()), (8, second.clone()), by()]
        );
        assert_eq!(
            all(&[spare(8), has(0..16, 8), spare(8), has(0..16, 8)]),
            [by(), (8, first.clone()), by(), (8, second.clone())]
        );
        // On a node of their own, idle ranks divide all cores.
        assert_eq!(all(&[spare(8), spare(8)]), [(8, first), (8, second)]);
        assert_eq!(all(&[spare(16)]), [(16, Ok((0..16).collect()))]);
        // An idle rank that is bound to cores of its own keeps them.
        let bound = [has(0..8, 8), Has { computes: false, ..has(8..16, 8) }];
        assert_eq!(pins(&bound, 1, &topology), Ok((8..16).collect()));
        assert_eq!(share(&bound, 1, 8), 8);
        // An uneven division among the computing ranks is reported as without idle ranks.
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
        // Three ranks do not divide 64 cores evenly; each rank has 21.
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
        // A core belongs to helpers as a whole, or not at all.
        assert_eq!(all(&[has(0..4, 0)], &[3]), [Ok((vec![3], set(&[0, 2])))]);
        assert_eq!(all(&[has(0..4, 0)], &[1, 3]), [Ok((vec![1, 3], set(&[0, 2])))]);
        let two = [has(0..4, 0), has(0..4, 0)];
        let left = set(&[0, 2]);
        assert_eq!(all(&two, &[1, 3]), [Ok((vec![1], left.clone())), Ok((vec![3], left.clone()))]);
        assert_eq!(all(&two, &[1]), [Ok((vec![1], left.clone())), Ok((vec![1], left.clone()))]);
        // The launcher left a core free, and both helpers run there.
        let bound = [has([0], 0), has([2], 0)];
        assert_eq!(all(&bound, &[3]), [Ok((vec![3], set(&[0]))), Ok((vec![3], set(&[2])))]);
        let why = |ranks: &[Has], named: &[usize]| all(ranks, named)[0].clone().unwrap_err();
        assert!(why(&two, &[0, 1]).contains("nothing to compute with: the rank is bound to 0-3"));
        assert!(why(&bound, &[0]).contains("leaves nothing"));
        assert!(why(&two, &[3, 4, 5]).contains("no processor 4-5"));
        // Four ranks are bound to a quarter each, and each helper gets the last core of its rank.
        let large = Topology::even(16, 4);
        let ranks: Vec<Has> = (0..4).map(|rank| has(4 * rank..4 * rank + 4, 0)).collect();
        for me in 0..4 {
            let named = set(&[3, 7, 11, 15]);
            let mine: BTreeSet<usize> = (4 * me..4 * me + 3).collect();
            assert_eq!(aside(&ranks, me, &large, &named), Ok((vec![4 * me + 3], mine)));
        }
        // Without binding, each helper gets a core next to those of its rank.
        let ranks = vec![has(0..16, 0); 4];
        for me in 0..4 {
            let (processors, left) = aside(&ranks, me, &large, &set(&[3, 7, 11, 15])).unwrap();
            assert_eq!((processors, left.len()), (vec![4 * me + 3], 12));
            let rest = vec![Has { processors: left, ..has([], 3) }; 4];
            let wanted: Vec<usize> = (4 * me..4 * me + 3).collect();
            assert_eq!(pins(&rest, me, &large), Ok(wanted));
        }
    }

    #[test]
    fn a_line_names_the_helpers_and_their_cores() {
        use crate::config::settings::{Overrides, Saving, Settings};
        let told = |set: &Overrides| helpers_told(&Settings::from(set).saves().cloned().unwrap());
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
    fn variables_for_a_blas_that_say_something_else_are_told_of() {
        let set = |some: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
            some.iter().map(|(name, value)| (*name, value.to_string())).collect()
        };
        let four = unheeded(&set(&[("OMP_NUM_THREADS", "4,2")]), 2).unwrap();
        assert!(four.starts_with("OMP_NUM_THREADS=4,2 is ignored"), "{four}");
        assert!(four.contains("--threads 4 (or SKT_THREADS=4)"), "{four}");
        let both = [("OMP_NUM_THREADS", "2"), ("BLIS_NUM_THREADS", "1"), ("MKL_NUM_THREADS", "8")];
        let both = unheeded(&set(&both), 2).unwrap();
        assert!(both.starts_with("BLIS_NUM_THREADS=1 and MKL_NUM_THREADS=8 are ignored"), "{both}");
        for alike in ["2", " 2 ", "2,1", "", "many", "0"] {
            assert_eq!(unheeded(&set(&[("OMP_NUM_THREADS", alike)]), 2), None, "{alike}");
        }
    }

    #[test]
    fn a_line_says_how_many_and_where() {
        let own = Err(Loose::Uneven { threads: 4, cores: 2 });
        assert_eq!(
            told(1, 1, Extent::None, &own),
            "threads: 1 a rank, not pinned: 4 threads on 2 cores, which is neither one for each core nor one for each hardware thread"
        );
        assert!(
            told(1, 2, Extent::Some, &own).starts_with("threads: 1 to 2 a rank, pinned on some")
        );
        let own = |cores| Ok(Pins { processors: vec![0], cores });
        let all = |cores| told(1, 1, Extent::All, &own(cores));
        assert_eq!(all(true), "threads: 1 a rank, each pinned to a core of its own");
        assert_eq!(all(false), "threads: 1 a rank, each pinned to a hardware thread of its own");
    }
}
