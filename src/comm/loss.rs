//! Handling of a lost peer.
//!
//! By default the loss of a process ends the job. Some MPI libraries can continue without the lost process (ULFM: Open MPI 5
//! under `mpirun --with-ft ulfm`). With such a library, [`World::attempt`](super::World::attempt) survives the loss. Within an
//! attempt, a call that fails because of a lost process unwinds. Then the attempt returns [`Lost`] on every remaining rank,
//! whatever each rank was doing. No other code sees a failed call, so solver and checkpoints need not handle losses.
//!
//! The order of events makes this safe. All ranks send messages on one communicator, and have a second communicator without
//! messages ([`Line`]). A rank that notices the loss *revokes* the second communicator and leaves its work. A rank that waits for
//! a rank which has left sees the revocation and leaves, too. Then each rank waits until all ranks have left (the agreement), and
//! only then unwinds. So a buffer stays in place as long as any rank may still send to it. Messages in transit end when their
//! [`Pending`](super::Pending) is dropped, which is before their buffer is dropped.
//!
//! Open MPI crashes if a process is lost while a communicator is made ([`subset`](super::subset)). So the communicators for a
//! number of losses ([`READY`]) are made before the first attempt. Up to this number of losses, no communicator is made later.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mpi::ffi;

use super::abort::die_in_turn;
use super::library::{self, Address, On};
use super::stance::{self, Stance, Where};
use super::wire::content;
use crate::base::clock::{self, Instant};
use crate::base::heartbeat;

/// Error: a process of the job is lost, and every rank has left its work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lost {
    /// Time at which this rank noticed the loss, by the clock of its node.
    pub noticed_unix_s: f64,
}

impl Lost {
    fn now() -> Self {
        Self { noticed_unix_s: clock::since_1970().as_secs_f64() }
    }
}

/// Communicators of the ranks of an attempt.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Communicator of the messages of these ranks.
    pub talk: ffi::MPI_Comm,
    /// Communicator of the same ranks without messages. A rank that leaves revokes this communicator, which all ranks notice.
    pub alarm: ffi::MPI_Comm,
    /// Remaining ranks of both communicators in ascending order, as all ranks agreed at the start of the attempt.
    pub members: Arc<[c_int]>,
}

/// Number of successive losses for which communicators are made at the start. After more losses, new communicators are made from
/// the last ones. A loss while they are made may crash the job.
pub(super) const READY: usize = 8;

thread_local! {
    /// Communicators of the current attempt.
    static NOW: RefCell<Option<Line>> = const { RefCell::new(None) };
    /// Number that all ranks of this rank's node share. Set before the first attempt.
    static NODE: Cell<Option<usize>> = const { Cell::new(None) };
    /// Time at which this rank first noticed the loss because of which it leaves.
    static NOTICED: Cell<Option<Lost>> = const { Cell::new(None) };
}

/// True during an attempt. Costly checks test this variable first.
static ATTEMPT: AtomicBool = AtomicBool::new(false);

/// Returns whether the loss of a peer unwinds the work of this rank instead of ending the job.
#[inline]
pub(super) fn unwinds() -> bool {
    ATTEMPT.load(Ordering::Relaxed)
}

/// Sets the number that all ranks of this rank's node share.
pub(super) fn set_own_node(node: usize) {
    NODE.set(Some(node));
}

pub(super) fn own_node() -> usize {
    NODE.get().expect("set if losses are survived")
}

/// Leaves the current work during an attempt in which a process is lost. Unwinds to [`attempt`] when every rank has left.
pub(super) fn leave() -> ! {
    let lost = NOTICED.get().unwrap_or_else(Lost::now);
    NOTICED.set(Some(lost));
    tell_group();
    let line = within();
    library::revoke(line.alarm);
    agree(&line, false);
    // All ranks have left, so messages in transit are no longer needed.
    library::revoke(line.talk);
    resume_unwind(Box::new(lost))
}

/// Notifies the other ranks of the group whose steps are in progress that this rank leaves. In a vote or a step, this rank leaves
/// because a member is lost or has left. The other ranks notice this themselves, so they are not notified.
fn tell_group() {
    match stance::place() {
        Some(Where::Entering) => say_left(&stance::members()),
        Some(Where::Between) => drop(stance::vote(false)),
        Some(Where::Voting | Where::Within) | None => {}
    }
}

/// Tag of the message by which a rank reports that it has left.
const LEFT: c_int = 32_001;

/// Reports to the ranks `members` that this rank has left. Lost ranks are skipped, because Open MPI waits forever to connect to a
/// lost rank for the first time.
fn say_left(members: &[c_int]) {
    let line = within();
    let gone = library::failed(line.alarm);
    for &member in members.iter().filter(|member| !gone.contains(member)) {
        let to = Address { raw: line.talk, peer: member, tag: LEFT };
        // SAFETY: the message is empty, so the library uses no buffer of ours. The message is neither waited for nor released. If
        // it cannot reach a lost rank, the error would have no handler and would end this process.
        let _ = unsafe { library::start_send(std::ptr::null(), content::<u8>(0), to) };
    }
}

/// Returns whether one of the ranks `members` has reported that it has left.
fn has_left(line: &Line, members: &[c_int]) -> bool {
    members.iter().any(|&member| {
        let mut there = false;
        library::has_word(Address { raw: line.talk, peer: member, tag: LEFT }, &mut there);
        there
    })
}

fn within() -> Line {
    NOW.with_borrow(|now| now.clone().expect("only within an attempt"))
}

/// Returns whether `mine` is true on all remaining ranks. The result is the same on all ranks, even if a rank is lost meanwhile.
fn agree(line: &Line, mine: bool) -> bool {
    agree_bits(line, c_int::from(mine)) != 0
}

/// Returns the bits that all remaining ranks have set in `mine`, which has [`BITS`] bits. The result is the same on all ranks.
fn agree_bits(line: &Line, mine: c_int) -> c_int {
    /// Bit that every rank sets in addition to `mine`. If Open MPI puts an address in place of a rank's bits ([`turn`]), this bit
    /// is missing.
    const SAID: c_int = 1;
    let mut bits = mine << 1 | SAID;
    let rc = library::agree(line.alarm, &mut bits);
    // An error because of a lost rank is expected here. The result is valid nevertheless.
    if rc != ffi::MPI_SUCCESS as c_int && !library::is_loss(rc) {
        die_in_turn(6, "the remaining ranks could not agree after a loss");
    }
    if bits & SAID == 0 {
        die_in_turn(6, "the MPI library has garbled what the ranks agreed on");
    }
    bits >> 1
}

/// Number of bits of one agreement. A C int has room for these bits and one check bit.
const BITS: usize = 30;

/// Runs `work`, which all ranks do together, with the communicators of `line`. If a rank is lost, all remaining ranks leave
/// `work` and get [`Lost`].
pub(super) fn attempt<R>(line: &Line, work: impl FnOnce() -> R) -> Result<R, Lost> {
    NOW.set(Some(line.clone()));
    ATTEMPT.store(true, Ordering::Relaxed);
    // Unwinding drops the values of `work`. Callers that get `Lost` do not use other values that `work` may have left incomplete.
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
    stance::over();
    NOTICED.set(None);
    ended
}

/// Returns the remaining members after a lost attempt, the same on all remaining ranks. The result may include a rank that is
/// lost meanwhile. The next attempt is then lost at once.
pub(super) fn left(line: &Line) -> Vec<c_int> {
    let gone = library::failed(line.alarm);
    agreed(&line.members, &gone, |mine| agree_bits(line, mine))
}

/// Returns the members that no rank knows to be lost. `gone` are the ranks that this rank knows to be lost.
///
/// All ranks make the same calls of `agree`, whatever losses each rank knows. The first calls are about ranges of members: a rank
/// sets a bit for each range in which it knows no loss. The next calls are about parts of those ranges whose bits some rank has
/// not set. So the number of calls depends on the losses, and hardly on the number of members. One loss among 100,000 members
/// takes 4 calls.
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

/// Divides a range into `parts` parts, or into single elements if the range is shorter.
fn cut(range: Range<usize>, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = parts.min(range.len());
    let at = move |part: usize| range.start + range.len() * part / parts;
    (0..parts).map(move |part| at(part)..at(part + 1))
}

/// Makes communicators of the remaining ranks of `line`. All remaining ranks call this together.
pub(super) fn shrunk(line: &Line) -> Line {
    let lost = "the remaining ranks could not make a communicator after a loss";
    let shrink = || library::shrink(line.alarm).unwrap_or_else(|_| die_in_turn(6, lost));
    // Both communicators must have the same ranks, even if a rank is lost meanwhile. Superfluous communicators are not freed,
    // which is acceptable because losses are rare.
    let (mut talk, mut size) = shrink();
    loop {
        let (alarm, again) = shrink();
        if again == size {
            return Line { talk, alarm, members: (0..size).collect() };
        }
        (talk, size) = (alarm, again);
    }
}

/// Checks whether the event for which this rank waits can still happen, and leaves the attempt if it cannot. Must be called
/// repeatedly while a rank waits for messages of `on`.
pub(super) fn look(on: On) {
    /// Pause between two queries of the lost ranks. Such a query takes longer than the query whether a rank has left.
    const EVERY: Duration = Duration::from_millis(1);
    thread_local! {
        static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    heartbeat::wait();
    let due = LAST.get().is_none_or(|last| last.elapsed() > EVERY);
    if due {
        LAST.set(Some(Instant::now()));
    }
    let lost = match stance::stance(on) {
        Stance::Shielded => false,
        // After the first vote, a member leaves only because a member is lost, which this rank will notice as well.
        Stance::With { members, first } => {
            due && (any_gone(&members) || first && has_left(&within(), &members))
        }
        Stance::Free => somebody_has_left() || (due && somebody_is_gone()),
    };
    if lost {
        leave();
    }
}

/// Waits until this rank leaves the attempt. Called after a failure because of which a message of `on` will never come.
pub(super) fn look_until_left(on: On) -> ! {
    loop {
        look(on);
    }
}

fn somebody_has_left() -> bool {
    let alarm = NOW.with_borrow(|now| now.as_ref().map(|line| line.alarm));
    library::is_revoked(alarm.expect("only within an attempt"))
}

/// Returns whether any rank of the attempt is known to be lost, or has left.
pub(super) fn somebody_is_gone() -> bool {
    let line = within();
    let of_it = |gone: &c_int| line.members.binary_search(gone).is_ok();
    somebody_has_left() || library::failed(line.alarm).iter().any(of_it)
}

fn any_gone(members: &[c_int]) -> bool {
    library::failed(within().alarm).iter().any(|gone| members.contains(gone))
}

/// Handles the failure of a call for messages of `on` because of a lost process. Leaves the attempt. If this rank must first
/// complete a step of its group, only records the loss.
pub(super) fn met(on: On) {
    match stance::stance(on) {
        Stance::Shielded => stance::note(),
        Stance::Free | Stance::With { .. } => leave(),
    }
}

/// Waits until all messages of `requests` have ended, or leaves the attempt because of a loss.
pub(super) fn wait_through(on: On, requests: &[ffi::MPI_Request]) {
    for &request in requests {
        while !library::is_through(request) {
            look(on);
        }
    }
}

/// Ends messages in transit on `raw`, which all ranks have left. `peers` are the ranks at the other ends of the messages. Returns
/// when the buffers of the messages may be freed or reused.
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

/// Waits for messages that are no longer needed, however long they take. Returns for each message whether it has ended.
///
/// A message that has begun to arrive writes to its buffer until the message has ended. The library ends all messages between
/// living ranks. A message to or from a lost rank may stay open forever, but writes nothing after a while.
fn settle(
    peers: &[c_int],
    through: impl Fn(usize) -> bool,
    gone: impl Fn() -> Vec<c_int>,
    clock: impl Fn() -> Duration,
) -> Vec<bool> {
    /// Timeout for a message of a lost peer, from the moment at which this rank knows that the peer is lost.
    const TIMEOUT: Duration = Duration::from_secs(2);
    let mut known: Vec<(c_int, Duration)> = Vec::new();
    let mut settle = |message: usize, peer: c_int| {
        loop {
            if through(message) {
                return true;
            }
            heartbeat::wait();
            let now = clock();
            match known.iter().find(|(lost, _)| *lost == peer) {
                Some((_, since)) if now - *since > TIMEOUT => return false,
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

    /// Buffers of messages between living ranks are kept until the messages have ended, which may take minutes on a slow network.
    #[test]
    fn messages_are_given_up_with_lost_ranks_only() {
        let now = Cell::new(Duration::ZERO);
        let clock = || {
            now.set(now.get() + Duration::from_millis(100));
            now.get()
        };
        let seconds = Duration::from_secs;
        // Rank 1 lives and rank 2 was lost before. Ranks 3 and 4 are lost after half a minute, but the message of rank 4 arrives.
        let gone = || if now.get() < seconds(30) { vec![2] } else { vec![4, 2, 3] };
        let through = |message: usize| message == 1 && now.get() >= seconds(20);
        assert_eq!(settle(&[2, 1], through, gone, clock), [false, true]);
        assert!((seconds(20)..seconds(21)).contains(&now.get()), "{:?}", now.get());
        let through = |message: usize| message == 3 && now.get() >= seconds(31);
        assert_eq!(settle(&[3, 2, 3, 4], through, gone, clock), [false, false, false, true]);
        assert!((seconds(32)..seconds(33)).contains(&now.get()), "{:?}", now.get());
    }

    /// Lets ranks that know different losses agree. Returns the ranks that are left, and the number of calls. An answer is the
    /// bitwise AND of the bits of all ranks. `known` has one list of losses for each different state of knowledge.
    fn agreement(members: &[c_int], known: &[Vec<c_int>]) -> (Vec<c_int>, usize) {
        // Each repetition makes all calls again from the start, and finds the answer of one more call.
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
                            // The remaining calls do not matter.
                            c_int::MAX
                        }
                    }
                });
                results.push((left, calls));
            }
            let calls = results[0].1;
            if calls == answers.len() {
                assert!(
                    results.iter().all(|result| *result == results[0]),
                    "all ranks return the same"
                );
                return results.swap_remove(0);
            }
            answers.push(said);
        }
    }

    #[test]
    fn all_agree_on_the_survivors_whatever_each_of_them_knows() {
        let mut random = 3u64;
        let mut below = |n: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize % n
        };
        for size in [1, 2, 29, 30, 31, 64, 901, 5000] {
            for losses in [0, 1, 2, 7, 60] {
                // Some ranks were lost earlier and are no longer members.
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
    fn the_cost_of_agreeing_grows_with_the_losses_and_not_with_the_ranks() {
        let calls = |ranks: c_int, gone: &[c_int]| {
            let members: Vec<c_int> = (0..ranks).collect();
            agreement(&members, &[gone.to_vec()]).1
        };
        assert_eq!(calls(30, &[17]), 1);
        assert_eq!(calls(900, &[17]), 2);
        assert_eq!(calls(100_000, &[]), 1);
        assert_eq!(calls(100_000, &[70_001]), 4);
        assert!(calls(100_000, &[5, 30_000, 55_555, 99_999]) <= 8);
        // All ranks of a node with 128 ranks are lost.
        let node: Vec<c_int> = (64_000..64_128).collect();
        assert!(calls(100_000, &node) <= 20, "{}", calls(100_000, &node));
        assert!(calls(1_000_000, &[70_001]) <= 5);
    }
}
