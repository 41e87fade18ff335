//! The cores this process may use, and which of them a thread keeps to. Hardware threads of one core share its arithmetic and
//! its caches, so a core counts once, however many threads it has. Cores that are set aside for helpers count for nobody else.

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

/// Processors that may be used, and how many processors' time: a container may have less of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub processors: BTreeSet<usize>,
    pub time: usize,
}

/// What this process was given when it first asked: before any of its threads was pinned, which would be given less.
fn given() -> &'static Given {
    static GIVEN: OnceLock<Given> = OnceLock::new();
    GIVEN.get_or_init(|| Given {
        processors: allowed(),
        time: std::thread::available_parallelism().map_or(1, |n| n.get()),
    })
}

/// What the process was started with, as the kernel gives it; nothing where it gives nothing.
static STARTED_WITH: [AtomicUsize; most() / WORD] = [const { AtomicUsize::new(0) }; most() / WORD];

/// Called before libraries are set up: GNU's OpenMP, which comes with BLIS, binds the thread that starts it to one processor
/// where `OMP_PROC_BIND` or the like is set, as guides to HPL advise.
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".preinit_array")]
static BEFORE_LIBRARIES: extern "C" fn() = {
    extern "C" fn note() {
        let mask = STARTED_WITH.as_ptr().cast_mut().cast();
        // SAFETY: the kernel writes so many bytes at most, to where nothing but atomics of a word each lies; nothing else runs.
        unsafe { libc::sched_getaffinity(0, size_of_val(&STARTED_WITH), mask) };
    }
    note
};

/// The calling thread may run wherever the process might when it was started. To be called before MPI starts, which may bind a
/// process for good reasons, and after each library that is loaded.
pub fn take_back() {
    let mask: Mask = STARTED_WITH.iter().map(|word| word.load(Ordering::Relaxed) as _).collect();
    let started = processors_in(&mask);
    if !started.is_empty() && started != allowed() {
        set_mask(Pid::from_raw(0), &mask);
    }
}

/// The process takes all that its node would give it, for it is alone there, and whoever has bound it to less did not know. To be
/// called before anything asks what there is: false if that has been.
pub fn take_all() -> bool {
    let all = mask_with(0..most()).is_some_and(|mask| set_mask(Pid::from_raw(0), &mask));
    if all && let Some(mask) = mask_of(Pid::from_raw(0)) {
        let words = mask.iter().map(|word| *word as usize).chain(std::iter::repeat(0));
        STARTED_WITH.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
    }
    given().processors == allowed()
}

/// The processors that the calling thread may run on.
fn allowed() -> BTreeSet<usize> {
    allowed_to(Pid::from_raw(0))
}

/// The same of a thread by its number.
fn allowed_to(thread: Pid) -> BTreeSet<usize> {
    mask_of(thread).map_or_else(BTreeSet::new, |mask| processors_in(&mask))
}

/// Processors have numbers below this: no kernel is built for more.
pub const fn most() -> usize {
    8192
}

/// Processors as the kernel takes and gives them: one bit each. The set of the C library ends at 1024, and a kernel that may
/// have more gives nothing at all to whoever has no room for all of them.
type Mask = Vec<libc::c_ulong>;

/// Processors of one word of a mask.
const WORD: usize = libc::c_ulong::BITS as usize;

fn processors_in(mask: &Mask) -> BTreeSet<usize> {
    (0..mask.len() * WORD).filter(|cpu| mask[cpu / WORD] >> (cpu % WORD) & 1 == 1).collect()
}

/// Nothing if one of them is no processor's number.
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

/// The processors that a thread may run on; nothing where the system does not tell.
fn mask_of(thread: Pid) -> Option<Mask> {
    let mut words = 1024 / WORD;
    while words * WORD <= most() {
        let mut mask: Mask = vec![0; words];
        let bytes = size_of_val(mask.as_slice());
        // SAFETY: the kernel writes so many bytes at most.
        let got =
            unsafe { libc::sched_getaffinity(thread.as_raw(), bytes, mask.as_mut_ptr().cast()) };
        match nix::errno::Errno::result(got) {
            Ok(_) => return Some(mask),
            // There is no room for all that this kernel may have.
            Err(nix::errno::Errno::EINVAL) => words *= 2,
            Err(_) => return None,
        }
    }
    None
}

/// What this process could have of its node if it asked for all: its launcher may have bound it to less. None where the system
/// does not tell. The kernel cuts what is asked for down to the cpuset that a container or a batch job is in.
pub fn of_node() -> Option<Given> {
    let ask = || {
        allow(0..most());
        let time = std::thread::available_parallelism().map_or(1, |n| n.get());
        Given { processors: allowed(), time }
    };
    // On a thread that ends after it.
    let asked = new_thread::start("cpuset", ask).ok()?.join().ok()?;
    (!asked.processors.is_empty()).then_some(asked)
}

/// What is left of the given processors where some were set aside.
static LEFT: OnceLock<BTreeSet<usize>> = OnceLock::new();

/// The processors, as the system numbers them, that this process is bound to: each hardware thread is one. Without those that
/// were set aside. Empty where the system does not tell.
pub fn bound_to() -> &'static BTreeSet<usize> {
    LEFT.get().unwrap_or(&given().processors)
}

/// Where helpers of this process run; nowhere in particular if there are none.
static ASIDE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// From here on helpers of this process run on `seats`, and all else of it on `left`: the threads there are, and those that
/// come. To be called once, by a process that has pinned no thread yet. False if the system does not allow it: then all is as
/// before.
pub fn set_aside(seats: &[usize], left: BTreeSet<usize>) -> bool {
    let wanted: BTreeSet<usize> = seats.iter().copied().collect();
    let tried = wanted.clone();
    let trial =
        new_thread::start("trial", move || allow(tried.iter().copied()) && allowed() == tried);
    if !trial.is_ok_and(|trial| trial.join().unwrap_or(false)) {
        return false;
    }
    let before = &given().processors;
    if left != *before && LEFT.set(left).is_ok() {
        for thread in threads() {
            // What a library has bound otherwise has its reasons.
            if allowed_to(thread) == *before {
                allow_to(thread, bound_to().iter().copied());
            }
        }
    }
    *ASIDE.lock().unwrap_or_else(|e| e.into_inner()) = seats.to_vec();
    true
}

/// The calling thread, a helper, goes where helpers run; wherever this process may, if nothing was set aside for them.
pub fn go_aside() {
    let seats = ASIDE.lock().unwrap_or_else(|e| e.into_inner()).clone();
    match seats.is_empty() {
        true => unpin(),
        false => _ = allow(seats),
    }
}

/// Whole cores among the processors this process is bound to; 0 where the system does not tell.
fn bound() -> usize {
    let known = Topology::here().among(bound_to());
    // Processors that the system says nothing more of are alone.
    known.cores() + bound_to().len() - known.hardware_threads()
}

/// How many cores this process may use, at least one.
pub fn count() -> usize {
    match bound() {
        0 => given().time,
        // A container may be given less time than its processors have.
        cores => cores.min(given().time),
    }
}

/// Whether all the time of its cores is this process's to use.
pub fn are_whole() -> bool {
    (1..=given().time).contains(&bound())
}

/// The processors that this process's pool keeps to, while it is pinned.
static OWN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Says which processors the threads of this process keep to from now on; none to say that they do not any more.
pub fn keep_to(processors: &[usize]) {
    *OWN.lock().unwrap_or_else(|e| e.into_inner()) = processors.to_vec();
}

/// The calling thread, `part` of `parts` that are started together, runs where these are spread evenly over the processors
/// that this process keeps to; wherever the process may, if there are none.
pub fn spread(part: usize, parts: usize) {
    let seat = seat(&OWN.lock().unwrap_or_else(|e| e.into_inner()), part, parts);
    match seat {
        Some(processor) => _ = pin(processor),
        None => unpin(),
    }
}

/// The processor of a part.
pub fn seat(own: &[usize], part: usize, parts: usize) -> Option<usize> {
    own.get(part * own.len() / parts).copied()
}

/// From here on the calling thread runs on this processor alone, if the system lets it. Threads that it starts begin there,
/// too: those that are to go where there is room [unpin](unpin) themselves.
pub fn pin(processor: usize) -> bool {
    allow([processor])
}

/// The calling thread may run wherever this process may.
pub fn unpin() {
    allow(bound_to().iter().copied());
}

/// Does what may move the calling thread elsewhere, and moves it back.
pub fn staying(moves: impl FnOnce()) {
    let before = allowed();
    moves();
    if allowed() != before {
        allow(before);
    }
}

/// Lets those threads of this process go that keep to the calling thread's processor beside it: a library has started them
/// since that one was pinned, and they have inherited what was not meant for them.
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
    // A list in which a thread ends while it is read may lack others: once more whenever there was anybody, and once for good.
    let mut found_none = 0;
    while found_none < 2 {
        found_none = if threads().filter(|&t| let_go(t)).count() > 0 { 0 } else { found_none + 1 };
    }
}

/// The threads of this process, or most of them if one ends meanwhile: the kernel's list then stops short.
fn threads() -> impl Iterator<Item = Pid> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok().map(Pid::from_raw))
}

fn allow(processors: impl IntoIterator<Item = usize>) -> bool {
    allow_to(Pid::from_raw(0), processors)
}

/// As [`allow`], for a thread by its number; 0 is the calling one.
fn allow_to(thread: Pid, processors: impl IntoIterator<Item = usize>) -> bool {
    // What was given is not to be asked for by a thread that has less.
    given();
    mask_with(processors).is_some_and(|mask| set_mask(thread, &mask))
}

fn set_mask(thread: Pid, mask: &Mask) -> bool {
    let bytes = size_of_val(mask.as_slice());
    // SAFETY: the kernel reads so many bytes.
    unsafe { libc::sched_setaffinity(thread.as_raw(), bytes, mask.as_ptr().cast()) == 0 }
}

#[cfg(test)]
pub mod tests {
    use super::left_out::left_out;
    use super::*;
    use std::sync::MutexGuard;

    /// Held by tests that pin threads: one that lets heirs go must not meet another's.
    static PINNING: Mutex<()> = Mutex::new(());

    pub fn alone() -> MutexGuard<'static, ()> {
        PINNING.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Where the calling thread may run.
    pub fn own() -> BTreeSet<usize> {
        allowed()
    }

    /// As a launcher binds it: a process of its own, for what was given is asked once.
    #[test]
    fn who_is_alone_on_a_node_takes_all_of_it() {
        const BOUND: &str = "SKT_TEST_BOUND";
        if std::env::var_os(BOUND).is_some() {
            assert_eq!(allowed().len(), 1);
            // Before anything asks what there is.
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

    /// Also beyond 1024, where the C library's set ends.
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
            assert_eq!(own(), BTreeSet::from([first]));
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
            own()
        });
        assert_eq!(&heir.join().unwrap(), bound_to());
        // Where there is no such processor all stays as it is.
        if !bound_to().contains(&(most() - 1)) {
            let before = bound_to().clone();
            assert!(!set_aside(&[most() - 1], BTreeSet::new()));
            assert_eq!(bound_to(), &before);
        }
    }

    #[test]
    fn threads_that_are_started_together_are_spread_evenly() {
        let own: Vec<usize> = (10..26).collect();
        let seats = |parts: usize| -> Vec<_> {
            (0..parts).map(|part| seat(&own, part, parts).unwrap()).collect()
        };
        assert_eq!(seats(1), [10]);
        assert_eq!(seats(4), [10, 14, 18, 22]);
        assert_eq!(seats(3), [10, 15, 20]);
        assert_eq!(seats(16), own);
        assert_eq!(seat(&[], 0, 1), None);
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
                let inherited = own();
                tell.send(()).unwrap();
                asked.recv().unwrap();
                (inherited, own())
            });
            told.recv().unwrap();
            let_heirs_go();
            ask.send(()).unwrap();
            (own(), heir.join().unwrap())
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
            assert_eq!(own(), BTreeSet::from([last]));
            assert_eq!((bound_to(), count()), (&all, count_before));
            let heir = std::thread::spawn(|| {
                let inherited = own();
                unpin();
                (inherited, own())
            });
            assert_eq!(heir.join().unwrap(), (BTreeSet::from([last]), all));
            assert!(!pin(most() - 1) || most() - 1 == last, "there is no such processor");
            unpin();
            assert_eq!(&own(), bound_to());
        })
        .join()
        .unwrap();
    }
}
