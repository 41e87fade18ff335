//! The cores that this process may use, and the binding of threads to them.
//!
//! Hardware threads of one core share its arithmetic and its caches. So a core counts once, however many hardware threads it has.
//! Cores reserved for helpers are not counted for other work.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use nix::libc;
use nix::unistd::Pid;

use crate::base::new_thread;
use crate::base::topology::Topology;

#[cfg(test)]
#[path = "../../tests/mpi/left_out.rs"]
pub mod left_out;

/// Processors that a process may use, and its processor time as a number of whole processors. A container may give less time than
/// its processors have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub processors: BTreeSet<usize>,
    pub time: usize,
}

/// Returns the processors and the processor time that this process had at the first call. The first call must come before any
/// thread is pinned.
fn given() -> &'static Given {
    static GIVEN: OnceLock<Given> = OnceLock::new();
    GIVEN.get_or_init(|| Given {
        processors: allowed(),
        time: std::thread::available_parallelism().map_or(1, |n| n.get()),
    })
}

/// Processors that the process was started with, as the kernel's mask; zero if the kernel does not report them.
static STARTED_WITH: [AtomicUsize; most() / WORD] = [const { AtomicUsize::new(0) }; most() / WORD];

/// Records `STARTED_WITH` before any library is initialised. GNU's OpenMP, which comes with BLIS, may bind the thread that
/// starts it to one processor. OpenMP does so if a variable such as `OMP_PROC_BIND` is set, as guides to HPL advise.
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".preinit_array")]
static BEFORE_LIBRARIES: extern "C" fn() = {
    extern "C" fn note() {
        let mask = STARTED_WITH.as_ptr().cast_mut().cast();
        // SAFETY: the kernel writes at most that number of bytes to an array of word-sized atomics; no other thread runs yet.
        unsafe { libc::sched_getaffinity(0, size_of_val(&STARTED_WITH), mask) };
    }
    note
};

/// Lets the calling thread run on all processors that the process was started with. Must be called after each library is loaded,
/// and before MPI starts, because MPI may bind the process on purpose.
pub fn take_back() {
    let mask: Mask = STARTED_WITH.iter().map(|word| word.load(Ordering::Relaxed) as _).collect();
    let started = processors_in(&mask);
    if !started.is_empty() && started != allowed() {
        set_mask(Pid::from_raw(0), &mask);
    }
}

/// Lets the process use all processors of its node. Meant for a process that is alone on its node but was bound to fewer
/// processors by a launcher.
///
/// Must be called before any query of the processors. Returns false if an earlier query has recorded fewer processors.
pub fn take_all() -> bool {
    let all = mask_with(0..most()).is_some_and(|mask| set_mask(Pid::from_raw(0), &mask));
    if all && let Some(mask) = mask_of(Pid::from_raw(0)) {
        let words = mask.iter().map(|word| *word as usize).chain(std::iter::repeat(0));
        STARTED_WITH.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
    }
    given().processors == allowed()
}

/// Returns the processors that the calling thread may run on.
pub(crate) fn allowed() -> BTreeSet<usize> {
    allowed_to(Pid::from_raw(0))
}

/// Returns the processors that the given thread may run on.
fn allowed_to(thread: Pid) -> BTreeSet<usize> {
    mask_of(thread).map_or_else(BTreeSet::new, |mask| processors_in(&mask))
}

/// Upper limit of processor numbers: no Linux kernel is built for more processors.
pub const fn most() -> usize {
    8192
}

/// Processors in the kernel's format, one bit each. The C library's set ends at processor 1023. If the mask has fewer bits than
/// the kernel has processors, the kernel returns an error.
type Mask = Vec<libc::c_ulong>;

/// Number of processors in one word of a mask.
const WORD: usize = libc::c_ulong::BITS as usize;

fn processors_in(mask: &Mask) -> BTreeSet<usize> {
    (0..mask.len() * WORD).filter(|cpu| mask[cpu / WORD] >> (cpu % WORD) & 1 == 1).collect()
}

/// Returns the mask of these processors; `None` if a number is too large.
fn mask_with(processors: impl IntoIterator<Item = usize>) -> Option<Mask> {
    let mut mask = Mask::new();
    for cpu in processors {
        if cpu >= most() {
            return None;
        }
        mask.resize(mask.len().max(cpu / WORD + 1), 0);
        mask[cpu / WORD] |= 1 << (cpu % WORD);
    }
    Some(mask)
}

/// Returns the processors that a thread may run on; `None` if the system does not report them.
fn mask_of(thread: Pid) -> Option<Mask> {
    let mut words = 1024 / WORD;
    while words * WORD <= most() {
        let mut mask: Mask = vec![0; words];
        let bytes = size_of_val(mask.as_slice());
        // SAFETY: the kernel writes at most that number of bytes.
        let got =
            unsafe { libc::sched_getaffinity(thread.as_raw(), bytes, mask.as_mut_ptr().cast()) };
        match nix::errno::Errno::result(got) {
            Ok(_) => return Some(mask),
            // The mask is too short for the processors that this kernel supports.
            Err(nix::errno::Errno::EINVAL) => words *= 2,
            Err(_) => return None,
        }
    }
    None
}

/// Returns the processors of the node that this process may use, even if its launcher has bound it to fewer. `None` if the system
/// does not report them.
///
/// The kernel restricts the result to the cpuset of a container or batch job.
pub fn of_node() -> Option<Given> {
    let ask = || {
        allow(0..most());
        let time = std::thread::available_parallelism().map_or(1, |n| n.get());
        Given { processors: allowed(), time }
    };
    // A temporary thread asks, because the request changes the binding of the thread.
    let asked = new_thread::start("cpuset", ask).ok()?.join().ok()?;
    (!asked.processors.is_empty()).then_some(asked)
}

/// Processors of all threads that are no helpers; set only if processors were reserved for helpers.
static LEFT: OnceLock<BTreeSet<usize>> = OnceLock::new();

/// Returns the processors that this process is bound to, by the system's numbers. Each hardware thread is one processor.
/// Processors reserved for helpers are excluded. The set is empty if the system does not report the processors.
pub fn bound_to() -> &'static BTreeSet<usize> {
    LEFT.get().unwrap_or(&given().processors)
}

/// Processors on which helpers of this process run; empty if none were reserved.
static ASIDE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Reserves `processors` for helpers. All other threads of this process, existing and future, run on `left`.
///
/// Must be called once, before the process has pinned a thread. If the system does not permit the reservation, returns false and
/// changes nothing.
pub fn set_aside(processors: &[usize], left: BTreeSet<usize>) -> bool {
    let wanted: BTreeSet<usize> = processors.iter().copied().collect();
    let tried = wanted.clone();
    let trial =
        new_thread::start("trial", move || allow(tried.iter().copied()) && allowed() == tried);
    if !trial.is_ok_and(|trial| trial.join().unwrap_or(false)) {
        return false;
    }
    let before = &given().processors;
    if left != *before && LEFT.set(left).is_ok() {
        for thread in threads() {
            // Threads that a library has bound differently are left alone.
            if allowed_to(thread) == *before {
                allow_to(thread, bound_to().iter().copied());
            }
        }
    }
    *ASIDE.lock().unwrap_or_else(|e| e.into_inner()) = processors.to_vec();
    true
}

/// Moves the calling thread, a helper, to the processors reserved for helpers. If no processor is reserved, the thread may run on
/// all processors of the process.
pub fn go_aside() {
    let processors = ASIDE.lock().unwrap_or_else(|e| e.into_inner()).clone();
    if processors.is_empty() {
        unpin();
    } else {
        allow(processors);
    }
}

/// Number of whole cores among the processors that this process is bound to; 0 if the system does not report them.
fn bound() -> usize {
    let known = Topology::here().among(bound_to());
    // Processors without known topology count as cores of their own.
    known.cores() + bound_to().len() - known.hardware_threads()
}

/// Number of cores that this process may use, at least one.
pub fn count() -> usize {
    match bound() {
        0 => given().time,
        // A container may have less processor time than processors.
        cores => cores.min(given().time),
    }
}

/// Returns whether this process has enough processor time for all its cores; false if the cores are unknown.
pub fn are_whole() -> bool {
    (1..=given().time).contains(&bound())
}

/// Processors of this process's thread pool; empty if the pool is not pinned.
static OWN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Sets the processors of the thread pool; an empty `processors` means that the pool is no longer pinned.
pub fn keep_to(processors: &[usize]) {
    *OWN.lock().unwrap_or_else(|e| e.into_inner()) = processors.to_vec();
}

/// Binds the calling thread to one of the thread pool's processors. The thread is number `part` of `parts` threads that start
/// together, spread evenly over these processors. If the pool is not pinned, the thread may run on all processors of the process.
pub fn spread(part: usize, parts: usize) {
    let core = core_of(&OWN.lock().unwrap_or_else(|e| e.into_inner()), part, parts);
    match core {
        Some(processor) => _ = pin(processor),
        None => unpin(),
    }
}

/// Returns the processor of thread `part` of `parts` threads, which are spread evenly over the processors `own`; `None` if `own`
/// is empty.
pub fn core_of(own: &[usize], part: usize, parts: usize) -> Option<usize> {
    own.get(part * own.len() / parts).copied()
}

/// Binds the calling thread to `processor`. Returns false if the system does not permit it. Threads that the calling thread
/// starts inherit the binding; such a thread calls [`unpin`] if it may run anywhere.
pub fn pin(processor: usize) -> bool {
    allow([processor])
}

/// Lets the calling thread run on all processors of this process.
pub fn unpin() {
    allow(bound_to().iter().copied());
}

/// Calls `moves`, which may change the binding of the calling thread, and then restores the binding.
pub fn staying(moves: impl FnOnce()) {
    let before = allowed();
    moves();
    if allowed() != before {
        allow(before);
    }
}

/// Lets other threads that are bound to the calling thread's processor run on all processors of this process. A library started
/// these threads after the calling thread was pinned, so the threads have inherited its binding unintentionally.
pub fn let_heirs_go() {
    let own = allowed();
    let own_number = nix::unistd::gettid();
    if own.len() != 1 || own == *bound_to() {
        return;
    }
    let let_go = |thread: Pid| {
        let is_heir = |thread| thread != own_number && allowed_to(thread) == own;
        is_heir(thread) && allow_to(thread, bound_to().iter().copied()) && !is_heir(thread)
    };
    // If a thread ends while the list is read, the list may be incomplete. So the list is read until two readings in a row find
    // no such thread.
    let mut found_none = 0;
    while found_none < 2 {
        found_none = if threads().filter(|&t| let_go(t)).count() > 0 { 0 } else { found_none + 1 };
    }
}

/// Returns the threads of this process. If a thread ends meanwhile, the kernel's list may end early.
fn threads() -> impl Iterator<Item = Pid> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok().map(Pid::from_raw))
}

fn allow(processors: impl IntoIterator<Item = usize>) -> bool {
    allow_to(Pid::from_raw(0), processors)
}

/// Lets the thread with this number run on `processors`; number 0 is the calling thread. Returns false if the system does not
/// permit it.
fn allow_to(thread: Pid, processors: impl IntoIterator<Item = usize>) -> bool {
    // The processors of the process must be recorded before a thread has fewer.
    given();
    mask_with(processors).is_some_and(|mask| set_mask(thread, &mask))
}

fn set_mask(thread: Pid, mask: &Mask) -> bool {
    let bytes = size_of_val(mask.as_slice());
    // SAFETY: the kernel reads that number of bytes.
    unsafe { libc::sched_setaffinity(thread.as_raw(), bytes, mask.as_ptr().cast()) == 0 }
}

#[cfg(test)]
mod tests {
    use super::left_out::left_out;
    use super::*;
    use crate::testkit::pinning::alone;

    /// Runs the body of the test in a separate process that is bound to one processor, as a launcher may bind it. A process
    /// records its processors only once, so the test cannot use this process.
    #[test]
    fn a_rank_alone_on_a_node_takes_all_of_it() {
        const BOUND: &str = "SKT_TEST_BOUND";
        if std::env::var_os(BOUND).is_some() {
            assert_eq!(allowed().len(), 1);
            // Must come before any query of the processors.
            assert!(take_all());
            let whole = of_node().unwrap().processors;
            assert!(whole.len() > 1);
            assert_eq!((allowed(), bound_to()), (whole.clone(), &whole));
            take_back();
            assert_eq!(allowed(), whole);
            return;
        }
        let whole = of_node().unwrap().processors;
        if whole.len() < 2 {
            left_out("one processor: nobody can be bound to less");
            return;
        }
        let own = std::thread::current().name().unwrap().to_owned();
        let _alone = alone();
        let first = *whole.first().unwrap();
        let asked = move || {
            assert!(pin(first));
            let exe = std::env::current_exe().unwrap();
            let mut command = std::process::Command::new(exe);
            command.args(["--exact", &own, "--test-threads", "1"]).env(BOUND, "1").output().unwrap()
        };
        let out = std::thread::spawn(asked).join().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        if cfg!(target_arch = "aarch64") && said.is_empty() {
            left_out("no other program starts here: this one is emulated");
            return;
        }
        assert!(out.status.success() && said.contains("1 passed"), "{said}");
    }

    /// Masks also work for processor numbers above 1023, at which the C library's set ends.
    #[test]
    fn masks_have_room_for_every_processor() {
        for of in [vec![], vec![0], vec![1, 63, 64], vec![3, 1023, 1024, 5000], vec![most() - 1]] {
            let mask = mask_with(of.iter().copied()).unwrap();
            assert_eq!(processors_in(&mask), BTreeSet::from_iter(of));
        }
        assert_eq!(mask_with([0, most()]), None);
    }

    #[test]
    fn this_process_may_use_some() {
        assert!(!bound_to().is_empty());
        assert!((1..=bound()).contains(&count()));
        assert!(bound() <= bound_to().len());
        assert_eq!(are_whole(), count() == bound());
    }

    #[test]
    fn a_nodes_share_is_more_than_a_pinned_thread_has() {
        let _alone = alone();
        let whole = of_node().unwrap();
        assert!(whole.processors.is_superset(bound_to()) && whole.time >= 1);
        let first = *bound_to().first().unwrap();
        std::thread::spawn(move || {
            assert!(pin(first));
            assert_eq!(of_node(), Some(whole));
            assert_eq!(allowed(), BTreeSet::from([first]));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn helpers_go_wherever_the_process_may_if_nothing_is_set_aside() {
        let _alone = alone();
        let heir = std::thread::spawn(|| {
            assert!(pin(*bound_to().first().unwrap()));
            go_aside();
            allowed()
        });
        assert_eq!(&heir.join().unwrap(), bound_to());
        // If there is no such processor, nothing changes.
        if !bound_to().contains(&(most() - 1)) {
            let before = bound_to().clone();
            assert!(!set_aside(&[most() - 1], BTreeSet::new()));
            assert_eq!(bound_to(), &before);
        }
    }

    #[test]
    fn threads_that_are_started_together_are_spread_evenly() {
        let own: Vec<usize> = (10..26).collect();
        let processors = |parts: usize| -> Vec<_> {
            (0..parts).map(|part| core_of(&own, part, parts).unwrap()).collect()
        };
        assert_eq!(processors(1), [10]);
        assert_eq!(processors(4), [10, 14, 18, 22]);
        assert_eq!(processors(3), [10, 15, 20]);
        assert_eq!(processors(16), own);
        assert_eq!(core_of(&[], 0, 1), None);
    }

    #[test]
    fn threads_that_inherit_a_pin_are_let_go() {
        if bound_to().len() < 2 {
            return left_out("one processor: no pin confines a thread");
        }
        let _alone = alone();
        let parent = || {
            assert!(pin(*bound_to().first().unwrap()));
            let (ask, asked) = std::sync::mpsc::channel::<()>();
            let (tell, told) = std::sync::mpsc::channel::<()>();
            let heir = std::thread::spawn(move || {
                let inherited = allowed();
                tell.send(()).unwrap();
                asked.recv().unwrap();
                (inherited, allowed())
            });
            told.recv().unwrap();
            let_heirs_go();
            ask.send(()).unwrap();
            (allowed(), heir.join().unwrap())
        };
        let (parent, (inherited, after)) = std::thread::spawn(parent).join().unwrap();
        assert_eq!((parent.len(), inherited.len()), (1, 1));
        assert_eq!(&after, bound_to());
    }

    #[test]
    fn a_pinned_thread_forgets_nothing_of_what_its_process_has() {
        let _alone = alone();
        let all = bound_to().clone();
        let last = *all.last().unwrap();
        let count_before = count();
        std::thread::spawn(move || {
            assert!(pin(last));
            assert_eq!(allowed(), BTreeSet::from([last]));
            assert_eq!((bound_to(), count()), (&all, count_before));
            let heir = std::thread::spawn(|| {
                let inherited = allowed();
                unpin();
                (inherited, allowed())
            });
            assert_eq!(heir.join().unwrap(), (BTreeSet::from([last]), all));
            assert!(!pin(most() - 1) || most() - 1 == last, "there is no such processor");
            unpin();
            assert_eq!(&allowed(), bound_to());
        })
        .join()
        .unwrap();
    }
}
