//! What becomes of a lost peer.
//!
//! As a rule the job ends with it. An MPI library that can go on without a process (ULFM: Open MPI 5 under `mpirun --with-ft
//! ulfm`) lets [`World::attempt`](super::World::attempt) do better: within an attempt a call that fails because a process is gone
//! unwinds, and the attempt returns [`Lost`] on every rank that is left, whatever each of them was doing. Nobody else sees a
//! failed call, so solver and checkpoints need not know of losses at all.
//!
//! The order of things is what makes that safe. All ranks talk over one communicator, and have another one that no message is
//! ever on ([`Line`]). Whoever notices *revokes* that one: whoever waits for one who has left the work sees it and leaves, too.
//! Then it waits until all have left (the agreement), and only then unwinds: buffers stay where they are for as long as anybody
//! may still send to them. Messages under way are completed when their [`Pending`](super::Pending) goes, which is before the
//! buffer does.
//!
//! Open MPI crashes where a process is lost while a communicator is made ([`subset`](super::subset)). So what attempts talk over
//! is made before the first of them, as much as that many losses need ([`READY`]), and nothing is made after that.
//!
//! Which library is loaded is asked at run time: one program serves any. The numbers of the error classes are Open MPI's.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_int};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mpi::ffi;

use super::abort::die_in_turn;
use super::communicator::On;
use super::library::{self, Address};
use super::steps::{self, Stance};
use super::world::World;
use crate::base::clock::{self, Instant};
use crate::base::faults::{Sabotage, sabotaged};
use crate::base::pulse;

/// A process of the job is gone, and every rank has left what it was doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lost {
    /// When this rank noticed, by its clock.
    pub noticed_unix_s: f64,
}

impl Lost {
    fn now() -> Self {
        Self { noticed_unix_s: clock::since_1970().as_secs_f64() }
    }
}

/// The first version of Open MPI that has all this.
const LEAST_MAJOR: u32 = 5;

/// Whether `mpirun` was told to let the job go on; it tells its processes.
const ENABLED_VAR: &str = "OMPI_MCA_mpi_ft_enable";

/// What the ranks of an attempt have.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// What their messages are on.
    pub talk: ffi::MPI_Comm,
    /// Has the same ranks. To revoke it is to tell all that one has left.
    pub alarm: ffi::MPI_Comm,
    /// The ranks of both that are still there, as all had agreed when the attempt began, in ascending order.
    pub members: Arc<[c_int]>,
}

/// For so many losses, one after the other, there is a line from the start. After more of them one is made of the last, which
/// a loss at the wrong moment may crash.
pub(super) const READY: usize = 8;

thread_local! {
    /// There within an attempt.
    static NOW: RefCell<Option<Line>> = const { RefCell::new(None) };
    /// Where this rank runs: a number that the ranks of one node share. There before the first attempt.
    static NODE: Cell<Option<usize>> = const { Cell::new(None) };
    /// When this rank first noticed the loss that it is leaving for.
    static NOTICED: Cell<Option<Lost>> = const { Cell::new(None) };
}

/// Whether an attempt is under way: all that costs anything is asked this first.
static ATTEMPT: AtomicBool = AtomicBool::new(false);

/// Whether the MPI library that is loaded can go on without a lost process. May be asked before MPI is started.
pub(super) fn library_goes_on() -> bool {
    match library::simulated() {
        Some(transport) => transport.survives(),
        None => knows_how(&World::library()) && library::has_ulfm(),
    }
}

/// What the library reads when it is started: whether, how often and for how long ranks watch each other, and that who notices a
/// loss tells all. Without the first, nobody notices that a rank is stopped; without the last, one rank does, and the others wait
/// for ever (5.0.11).
const NOTICE: &[(&str, &str)] = &[
    ("OMPI_MCA_mpi_ft_detector", "true"),
    ("OMPI_MCA_mpi_ft_detector_period", "1"),
    ("OMPI_MCA_mpi_ft_detector_timeout", "6"),
    ("OMPI_MCA_mpi_ft_propagator_with_rbcast", "true"),
];

/// The library's own thread for heartbeats. With it a start crashed now and then, and no end came to its end (5.0.11).
const THREAD: &CStr = c"mpi_ft_detector_thread";

/// Switches the library's own thread off, whatever the user or a file of the site's says: this process's variable wins over both,
/// but not over the site's `openmpi-mca-params-override.conf`. To be called before MPI is started.
pub(super) fn without_the_librarys_thread() {
    // SAFETY: MPI has not been started, and no thread of this program asks the C library for variables.
    unsafe { std::env::set_var(format!("OMPI_MCA_{}", THREAD.to_string_lossy()), "false") };
}

/// Has ranks watch each other, as far as the launcher was not told otherwise. To be called before MPI is started.
pub(super) fn watch_each_other() {
    without_the_librarys_thread();
    for (name, value) in NOTICE {
        if std::env::var_os(name).is_none() {
            // SAFETY: MPI has not been started, and no thread of this program asks the C library for variables.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// Why MPI cannot be started here so that a loss is survived: the library would use its own thread in spite of this process's
/// variable. To be asked before MPI is started.
pub(super) fn refusal() -> Option<String> {
    if !is_enabled() {
        return None;
    }
    watch_each_other();
    has_thread().then(|| {
        format!(
            "the MPI library's file openmpi-mca-params-override.conf sets {}, with which ranks crash while MPI starts: remove it \
             there, or run without --nonstop and --method abft",
            THREAD.to_string_lossy()
        )
    })
}

/// Whether the library will use its own thread, by its own word.
fn has_thread() -> bool {
    let (mut provided, mut index, mut count) = (0, 0, 0);
    // The library writes as much as the variable is wide.
    let mut value = [0u8; 64];
    // SAFETY: the interface for tools may be used before MPI is started; the index is of a variable that is bound to no object.
    unsafe {
        if ffi::MPI_T_init_thread(ffi::RSMPI_THREAD_FUNNELED, &mut provided) != 0 {
            return false;
        }
        let mut handle = std::mem::zeroed();
        if ffi::MPI_T_cvar_get_index(THREAD.as_ptr(), &mut index) == 0
            && ffi::MPI_T_cvar_handle_alloc(index, std::ptr::null_mut(), &mut handle, &mut count)
                == 0
        {
            ffi::MPI_T_cvar_read(handle, value.as_mut_ptr().cast());
            ffi::MPI_T_cvar_handle_free(&mut handle);
        }
        // The interface stays open: once it is closed, MPI_Init may crash (5.0.11, opal_common_ucx_support_level).
    }
    value.iter().any(|&byte| byte != 0)
}

/// Why this job cannot go on without a lost process; None if it can. `threads`: whether the library lets any thread call it.
pub(super) fn obstacle(threads: bool) -> Option<String> {
    if library::simulated().is_some_and(|transport| transport.survives()) {
        return None;
    }
    let library = World::library();
    if !library_goes_on() {
        return Some(format!(
            "this MPI library ends a job that has lost a rank ({library}); Open MPI {LEAST_MAJOR} can go on \
             (scripts/setup.sh --with-openmpi5)"
        ));
    }
    if !threads {
        return Some(format!(
            "this MPI library does not let several threads call it ({library}), which signs of life need"
        ));
    }
    (!is_enabled()).then(|| {
        "mpirun was not told to let the job go on without a lost rank: start it with `mpirun --with-ft ulfm`".to_owned()
    })
}

/// Whether the launcher was told to let the job go on without a lost process.
fn is_enabled() -> bool {
    std::env::var(ENABLED_VAR).is_ok_and(|v| v == "1" || v == "true")
}

/// Whether a library that describes itself so goes on without a lost process. MPICH has calls of the same names, but its
/// launcher ends the job all the same.
fn knows_how(library: &str) -> bool {
    let version = library.split_once("Open MPI v").map(|(_, rest)| rest);
    let major = version.and_then(|v| v.split('.').next()).and_then(|v| v.parse::<u32>().ok());
    major.is_some_and(|major| major >= LEAST_MAJOR)
}

/// Whether a lost peer unwinds here instead of ending the job.
#[inline]
pub(super) fn unwinds() -> bool {
    ATTEMPT.load(Ordering::Relaxed)
}

/// The ranks of this one's node share that number.
pub(super) fn set_own_node(node: usize) {
    NODE.set(Some(node));
}

pub(super) fn own_node() -> usize {
    NODE.get().expect("asked for where losses are survived")
}

/// Leaves what this rank is doing: an attempt is under way and a process is gone. Returns to [`attempt`] when every rank
/// has left.
pub(super) fn leave() -> ! {
    let lost = NOTICED.get().unwrap_or_else(Lost::now);
    NOTICED.set(Some(lost));
    steps::tell();
    let line = within();
    library::revoke(line.alarm);
    if !sabotaged(Sabotage::LeavesAlone) {
        agree(&line, false);
    }
    // Everybody has left: what is under way need not come any more.
    library::revoke(line.talk);
    resume_unwind(Box::new(lost))
}

/// The tag of the word that says so.
const LEFT: c_int = 32_001;

/// Says to these that this rank has left. Not to those that are gone: Open MPI waits for ever for what it needs to connect to one
/// that it has never talked to.
pub(super) fn say_left(members: &[c_int]) {
    let line = within();
    let gone = library::failed(line.alarm);
    for &member in members.iter().filter(|member| !gone.contains(member)) {
        let to = Address { raw: line.talk, peer: member, tag: LEFT };
        let mut request = library::handle(0);
        // SAFETY: an empty message, which the library has no part of ours for. It is neither waited for nor given back: that it
        // cannot come to one that is gone would be an error of nobody's then, which ends this process.
        unsafe { library::start_send::<u8>(std::ptr::null(), 0, to, &mut request) };
    }
}

/// Whether one of them has said that it has left.
fn has_left(line: &Line, members: &[c_int]) -> bool {
    members.iter().any(|&member| {
        let mut there = false;
        library::has_word(Address { raw: line.talk, peer: member, tag: LEFT }, &mut there);
        there
    })
}

fn within() -> Line {
    NOW.with_borrow(|now| now.clone().expect("asked within an attempt only"))
}

/// Whether all ranks that are left say yes; the same answer to all, also if one is lost meanwhile.
fn agree(line: &Line, mine: bool) -> bool {
    agree_bits(line, c_int::from(mine)) != 0
}

/// Whether all ranks that are left have set each of these bits, [`BITS`] of them, as above.
fn agree_bits(line: &Line, mine: c_int) -> c_int {
    /// Every rank sets this one beside them. An address in the place of what a rank says ([`turn`]) does not have it.
    const SAID: c_int = 1;
    let mut bits = mine << 1 | SAID;
    let rc = library::agree(line.alarm, &mut bits);
    // That somebody is gone is no news here; the answer holds all the same.
    if rc != ffi::MPI_SUCCESS as c_int && !library::is_loss(rc) {
        die_in_turn(6, "the ranks that are left could not agree after a loss");
    }
    if bits & SAID == 0 {
        die_in_turn(6, "the MPI library has garbled what the ranks agreed on");
    }
    bits >> 1
}

/// So many bits are agreed on at a time: as many as surely fit beside one more.
const BITS: usize = 30;

/// As [`World::attempt`](super::World::attempt), over that line.
pub(super) fn attempt<R>(line: &Line, work: impl FnOnce() -> R) -> Result<R, Lost> {
    NOW.set(Some(line.clone()));
    ATTEMPT.store(true, Ordering::Relaxed);
    // What unwinds is dropped, or left for good by those who see `Lost`.
    let ended = catch_unwind(AssertUnwindSafe(work));
    let ended = match ended {
        Ok(done) if agree(line, true) => Ok(done),
        Ok(_) => Err(Lost::now()),
        Err(payload) => match payload.downcast::<Lost>() {
            Ok(lost) => Err(*lost),
            Err(panic) => resume_unwind(panic),
        },
    };
    ATTEMPT.store(false, Ordering::Relaxed);
    steps::over();
    NOTICED.set(None);
    ended
}

/// The members of a line on which an attempt was lost that are left, which all of those know alike. Who is lost amid this may be
/// among them: then the next attempt is lost at once.
pub(super) fn left(line: &Line) -> Vec<c_int> {
    let gone = library::failed(line.alarm);
    agreed(&line.members, &gone, |mine| agree_bits(line, mine))
}

/// The members that nobody knows to be gone. All ranks make the same calls of `agree`, whatever each of them knows: they ask
/// about ranges of members, and then about parts of those ranges in which somebody misses a member. So the calls go with the
/// losses, and hardly with the members: one loss takes 4 calls among 100,000.
fn agreed(members: &[c_int], gone: &[c_int], mut agree: impl FnMut(c_int) -> c_int) -> Vec<c_int> {
    let mut gone: Vec<usize> = gone.iter().filter_map(|g| members.binary_search(g).ok()).collect();
    gone.sort_unstable();
    let whole = |part: &Range<usize>| {
        let first = gone.partition_point(|&place| place < part.start);
        gone.get(first).is_none_or(|&place| place >= part.end)
    };
    let mut left = vec![true; members.len()];
    let mut doubted: Vec<Range<usize>> = std::iter::once(0..members.len()).collect();
    while !doubted.is_empty() {
        let pieces = (BITS / doubted.len()).max(2);
        let parts: Vec<Range<usize>> =
            doubted.drain(..).flat_map(|range| cut(range, pieces)).collect();
        for parts in parts.chunks(BITS) {
            let set = |bits, (bit, part)| bits | c_int::from(whole(part)) << bit;
            let all = agree(parts.iter().enumerate().fold(0, set));
            for (_, part) in parts.iter().enumerate().filter(|(bit, _)| all >> bit & 1 == 0) {
                match part.len() {
                    1 => left[part.start] = false,
                    _ => doubted.push(part.clone()),
                }
            }
        }
    }
    members.iter().zip(left).filter_map(|(&member, left)| left.then_some(member)).collect()
}

/// A range in so many parts, or in single places.
fn cut(range: Range<usize>, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = parts.min(range.len());
    let at = move |part: usize| range.start + range.len() * part / parts;
    (0..parts).map(move |part| at(part)..at(part + 1))
}

/// A line for the processes of this one that are left; all of them call this together.
pub(super) fn shrunk(line: &Line) -> Line {
    let lost = "the ranks that are left could not find together after a loss";
    let shrink = || library::shrink(line.alarm).unwrap_or_else(|_| die_in_turn(6, lost));
    // Of the same ranks, whoever is lost meanwhile. What is too many stays as it is: there is no loss at every turn.
    let (mut talk, mut size) = shrink();
    loop {
        let (alarm, again) = shrink();
        if again == size {
            return Line { talk, alarm, members: (0..size).collect() };
        }
        (talk, size) = (alarm, again);
    }
}

/// Looks whether what this rank waits for can still come, and leaves if it cannot. To be called again and again by whoever waits.
pub(super) fn look(on: On) {
    /// Between two looks at who is gone, which takes longer than the look whether somebody has left.
    const EVERY: Duration = Duration::from_millis(1);
    thread_local! {
        static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    pulse::wait();
    let due = LAST.get().is_none_or(|last| last.elapsed() > EVERY);
    if due {
        LAST.set(Some(Instant::now()));
    }
    let lost = match steps::stance(on) {
        Stance::Shielded => false,
        // Who has left them did so for one of them, and that is known here, too, sooner or later.
        Stance::With { members, first } => {
            due && (any_gone(&members) || first && has_left(&within(), &members))
        }
        Stance::Free => somebody_has_left() || (due && somebody_is_gone()),
    };
    if lost {
        leave();
    }
}

/// Waits for what never comes, until this rank leaves.
pub(super) fn look_until_left(on: On) -> ! {
    loop {
        look(on);
    }
}

fn somebody_has_left() -> bool {
    let alarm = NOW.with_borrow(|now| now.as_ref().map(|line| line.alarm));
    library::is_revoked(alarm.expect("asked within an attempt only"))
}

/// Whether any rank of the attempt is known to be gone, or to have left.
pub(super) fn somebody_is_gone() -> bool {
    let line = within();
    let of_it = |gone: &c_int| line.members.binary_search(gone).is_ok();
    somebody_has_left() || library::failed(line.alarm).iter().any(of_it)
}

fn any_gone(members: &[c_int]) -> bool {
    library::failed(within().alarm).iter().any(|gone| members.contains(gone))
}

/// A call for messages `on` has met a lost process.
pub(super) fn met(on: On) {
    match steps::stance(on) {
        Stance::Shielded => steps::note(),
        Stance::Free | Stance::With { .. } => leave(),
    }
}

/// Waits until all of these messages are through.
pub(super) fn wait_through(on: On, requests: &[ffi::MPI_Request]) {
    for &request in requests {
        while !library::is_through(request) {
            look(on);
        }
    }
}

/// Ends messages under way on `raw`, which all ranks have left; `peers`: of each the rank at its other end. Returns when their
/// buffers may be freed or used again.
pub(super) fn abandon(raw: ffi::MPI_Comm, requests: &mut Vec<ffi::MPI_Request>, peers: &[c_int]) {
    for request in requests.iter_mut() {
        if !library::is_through(*request) {
            library::cancel(request);
        }
    }
    let began = Instant::now();
    let through = |message: usize| library::is_through(requests[message]);
    let through = settle(peers, through, || library::failed(raw), || began.elapsed());
    for (request, _) in requests.drain(..).zip(through).filter(|&(_, through)| through) {
        library::give_back(request);
    }
}

/// Waits for messages that nobody wants any more, however long they take: parts of one that has begun to come go to its buffer
/// until it is through. The library ends all of them between ranks that live. One with a lost rank it may leave open for ever;
/// nothing comes of that after a while. Whether each is through.
fn settle(
    peers: &[c_int],
    through: impl Fn(usize) -> bool,
    gone: impl Fn() -> Vec<c_int>,
    clock: impl Fn() -> Duration,
) -> Vec<bool> {
    /// From when this rank knows that the peer is lost.
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut known: Vec<(c_int, Duration)> = Vec::new();
    let mut settle = |message: usize, peer: c_int| {
        loop {
            if through(message) {
                return true;
            }
            pulse::wait();
            let now = clock();
            match known.iter().find(|(lost, _)| *lost == peer) {
                Some((_, since)) if now - *since > PATIENCE => return false,
                Some(_) => std::hint::spin_loop(),
                None => {
                    let new = |lost: &c_int| !known.iter().any(|(other, _)| other == lost);
                    let new: Vec<c_int> = gone().into_iter().filter(new).collect();
                    known.extend(new.into_iter().map(|lost| (lost, now)));
                }
            }
        }
    };
    peers.iter().enumerate().map(|(message, &peer)| settle(message, peer)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buffers of messages between ranks that live are kept until these are through, which a slow network may take minutes for.
    #[test]
    fn messages_are_given_up_with_lost_ranks_only() {
        let now = Cell::new(Duration::ZERO);
        let clock = || {
            now.set(now.get() + Duration::from_millis(100));
            now.get()
        };
        let seconds = Duration::from_secs;
        // Rank 1 lives, rank 2 was lost before, rank 3 is lost after half a minute, rank 4 then, too, but its message comes.
        let gone = || if now.get() < seconds(30) { vec![2] } else { vec![4, 2, 3] };
        let through = |message: usize| message == 1 && now.get() >= seconds(20);
        assert_eq!(settle(&[2, 1], through, gone, clock), [false, true]);
        assert!((seconds(20)..seconds(21)).contains(&now.get()), "{:?}", now.get());
        let through = |message: usize| message == 3 && now.get() >= seconds(31);
        assert_eq!(settle(&[3, 2, 3, 4], through, gone, clock), [false, false, false, true]);
        assert!((seconds(32)..seconds(33)).contains(&now.get()), "{:?}", now.get());
    }

    /// Ranks that know different losses, answered by the bits that all set: what they agree on, and by how many calls. `known`:
    /// what each of those that differ knows.
    fn agreement(members: &[c_int], known: &[Vec<c_int>]) -> (Vec<c_int>, usize) {
        // Each rank by itself would make the calls that the answers ask for; all answers are found by going through them again.
        let mut answers: Vec<c_int> = Vec::new();
        loop {
            let mut said = c_int::MAX;
            let mut results = Vec::new();
            for gone in known {
                let mut calls = 0;
                let left = agreed(members, gone, |mine| {
                    calls += 1;
                    match answers.get(calls - 1) {
                        Some(&answer) => answer,
                        None => {
                            if calls == answers.len() + 1 {
                                said &= mine;
                            }
                            // The rest of the calls is of no account.
                            c_int::MAX
                        }
                    }
                });
                results.push((left, calls));
            }
            let calls = results[0].1;
            if calls == answers.len() {
                assert!(results.iter().all(|result| *result == results[0]), "all know the same");
                return results.swap_remove(0);
            }
            answers.push(said);
        }
    }

    #[test]
    fn all_agree_on_who_is_left_whatever_each_of_them_knows() {
        let mut random = 3u64;
        let mut below = |n: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize % n
        };
        for size in [1, 2, 29, 30, 31, 64, 901, 5000] {
            for losses in [0, 1, 2, 7, 60] {
                // Some that were lost before are no members any more.
                let members: Vec<c_int> = (0..size).filter(|rank| rank % 7 != 3).collect();
                let lost: Vec<c_int> = (0..losses).map(|_| below(size as usize) as c_int).collect();
                let ranks = 1 + below(4);
                let known: Vec<Vec<c_int>> = (0..ranks)
                    .map(|_| lost.iter().copied().filter(|_| below(2) == 0).collect())
                    .collect();
                let left = |member: &c_int| !known.iter().flatten().any(|gone| gone == member);
                let wanted: Vec<c_int> = members.iter().copied().filter(left).collect();
                assert_eq!(agreement(&members, &known).0, wanted, "{size} {lost:?} {known:?}");
            }
        }
    }

    #[test]
    fn what_agreeing_takes_goes_with_the_losses_and_not_with_the_ranks() {
        let calls = |ranks: c_int, gone: &[c_int]| {
            let members: Vec<c_int> = (0..ranks).collect();
            agreement(&members, &[gone.to_vec()]).1
        };
        assert_eq!(calls(30, &[17]), 1);
        assert_eq!(calls(900, &[17]), 2);
        assert_eq!(calls(100_000, &[]), 1);
        assert_eq!(calls(100_000, &[70_001]), 4);
        assert!(calls(100_000, &[5, 30_000, 55_555, 99_999]) <= 8);
        // A node of 128 ranks.
        let node: Vec<c_int> = (64_000..64_128).collect();
        assert!(calls(100_000, &node) <= 20, "{}", calls(100_000, &node));
        assert!(calls(1_000_000, &[70_001]) <= 5);
    }

    #[test]
    fn only_open_mpi_from_its_fifth_version_on_goes_on() {
        for (library, can) in [
            ("Open MPI v5.0.11, package: Open MPI x@y Distribution, ident: 5.0.11", true),
            ("Open MPI v10.0.0, package: x", true),
            ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", false),
            ("MPICH Version:\t4.0.2", false),
            ("", false),
        ] {
            assert_eq!(knows_how(library), can, "{library}");
        }
    }
}
