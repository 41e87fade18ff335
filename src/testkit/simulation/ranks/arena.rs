//! Memory that all processes of a simulated job share: the ranks, the turn, and the messages in transit.
//!
//! Only one process at a time has the turn, and only this process reads or writes the memory. So no locks are needed, and a seed
//! always gives the same choices.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::faults::Point;
use crate::testkit::simulation::dice::Dice;

/// Largest number of ranks of a job.
pub const MOST: usize = 24;
const COMMUNICATORS: usize = 64;
const MESSAGES: usize = 8192;
const HEAP_BYTES: usize = 256 << 20;
const FAULTS: usize = 16;

/// Index that marks the end of a list.
pub const NONE: u32 = u32::MAX;
/// A moment that never comes.
pub const NEVER: u64 = u64::MAX;

pub const MICROSECOND: u64 = 1_000;
pub const MILLISECOND: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// Time without any change, in nanoseconds, after which a job whose ranks all wait counts as hung.
const HANGS_AFTER: u64 = 400 * SECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Life {
    Absent,
    Running,
    Stopped,
    Dead,
    Exited,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct RankState {
    pub life: Life,
    pub pid: i32,
    pub exit: i32,
    /// Text that describes the phase of the rank. The pointer is valid in all processes, which have the same program at the same
    /// addresses.
    pub phase: Option<&'static str>,
    /// Number of calls of the transport so far.
    pub calls: u64,
    /// Number of operations on storage so far.
    pub stored: u64,
    /// Time until which the rank sleeps, in nanoseconds.
    pub wakes_at: u64,
    /// Time at which the rank repeats an unsuccessful check, in nanoseconds. If something changes before, the rank repeats it at
    /// once.
    looks_at: u64,
    /// Time for which the rank waits after its next unsuccessful check, in nanoseconds.
    look_after: u64,
    /// Times at which the rank learns of the loss of each other rank, in nanoseconds.
    pub notice_at: [u64; MOST],
    pub duplicates: u32,
    /// Index of the first message to the rank, or `NONE`.
    inbox: u32,
}

impl RankState {
    fn looks_soon(&mut self) {
        (self.looks_at, self.look_after) = (0, MILLISECOND);
    }

    /// Returns the time from which the rank can run, in nanoseconds.
    fn runs_at(&self) -> u64 {
        self.wakes_at.max(self.looks_at)
    }
}

/// A collective call of all living ranks of a communicator: an agreement, or the creation of a smaller communicator.
#[derive(Clone, Copy)]
#[repr(C)]
struct Round {
    number: u32,
    shrinks: bool,
    said: [bool; MOST],
    bits: c_int,
    decided: bool,
    with_loss: bool,
    made: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Communicator {
    size: u32,
    members: [u32; MOST],
    revoked_at: [u64; MOST],
    /// Number of collective calls that each rank has begun.
    begun: [u32; MOST],
    rounds: [Round; 4],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    Free,
    /// The sender still has the content, and no rank has received the message.
    Announced,
    Wanted,
    /// The content is in the arena.
    Data,
    /// The content is in the arena or is lost; no rank receives the message any more.
    Void,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Message {
    pub stage: Stage,
    pub on: u32,
    pub from: u32,
    pub to: u32,
    pub tag: c_int,
    pub bytes: u64,
    /// Offset of the content in the heap.
    at: u64,
    /// True if a receive matches the message.
    pub matched: bool,
    /// Number of messages that have used this entry of the list of messages.
    pub turn: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Effect {
    Kill,
    /// The process stops, and other ranks take it for dead.
    Stop,
    /// The operation on storage reports that storage is full.
    Full,
    /// The operation on storage reports an error of the device.
    Breaks,
}

/// Place at which a fault is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Place {
    /// The rank's call of the transport with this number, from 1.
    Call { rank: u32, number: u64 },
    /// A crash point, when the position reaches it for the `hit`-th time.
    Point { point: Point, position: u32, hit: u64 },
    /// `count` operations of the rank on storage, from operation `first` on. Operations are counted from 1.
    Storage { rank: u32, first: u64, count: u64 },
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Fault {
    pub place: Place,
    pub effect: Effect,
    pub seen: u64,
    pub injected: bool,
    /// Phase of the rank when the fault was injected.
    pub phase: Option<&'static str>,
}

impl Fault {
    pub fn is_of_storage(&self) -> bool {
        matches!(self.place, Place::Storage { .. })
    }
}

/// Owner of the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Rank(usize),
    /// No rank can run, and nothing will change.
    Hang,
    /// All ranks have ended.
    Over,
}

/// Settings of a simulated job.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Manner {
    /// True if the job continues without a lost rank.
    pub survives: bool,
    /// Largest size of a message, in bytes, that is sent before the receiver asks for it.
    pub eager_bytes: u64,
    /// Average number of calls after which the turn passes on.
    pub turn_every: u64,
    /// Time in nanoseconds within which other ranks learn of a loss.
    pub notice_within: u64,
}

#[repr(C)]
pub struct Arena {
    turn: [AtomicU32; MOST + 1],
    random: Dice,
    pub now: u64,
    changed_at: u64,
    pub steps: u64,
    pub ranks: [RankState; MOST],
    pub count: usize,
    pub manner: Manner,
    /// True once the launcher has begun to end the job.
    pub ends: bool,
    /// Exit status of a job that the launcher ends.
    pub status: i32,
    pub hangs: bool,
    /// A forbidden use of MPI by the program, if there was any.
    pub misuse: Option<&'static str>,
    pub trace: c_int,
    pub faults: [Option<Fault>; FAULTS],
    /// Positions that have committed a checkpoint in this launch, one bit each.
    pub committed: u64,
    /// True if a position has generated its part of the matrix in this launch.
    pub generated: bool,
    /// True if a position has begun to remove its memory in this launch.
    pub cleans: bool,
    /// True if the results are printed.
    pub is_told: bool,
    communicators: [Communicator; COMMUNICATORS],
    made: u32,
    messages: [Message; MESSAGES],
    free: u32,
    unused: u32,
    used: u64,
    /// Offset of the first free piece of the heap, by the binary logarithm of the size; 0 if no piece is free.
    pieces: [u64; 32],
    heap: [u8; HEAP_BYTES],
}

/// Index of the parent among the processes that take turns.
pub const PARENT: usize = MOST;

impl Arena {
    /// Returns memory that this process and all its forked children share.
    pub fn new() -> &'static mut Self {
        // SAFETY: new pages without another owner; zeros are a value of each of its fields.
        unsafe {
            let memory = libc::mmap(
                std::ptr::null_mut(),
                size_of::<Self>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            assert_ne!(memory, libc::MAP_FAILED, "no memory for a simulation");
            &mut *memory.cast::<Self>()
        }
    }

    /// Prepares the memory for a job of `count` ranks, none of which has started.
    pub fn begin(&mut self, count: usize, seed: u64, manner: Manner, trace: c_int) {
        assert!(count <= MOST);
        self.turn.iter().for_each(|turn| turn.store(0, Ordering::Relaxed));
        self.random = Dice::from(seed);
        (self.now, self.changed_at, self.steps) = (0, 0, 0);
        let absent = RankState {
            life: Life::Absent,
            pid: 0,
            exit: 0,
            phase: None,
            calls: 0,
            stored: 0,
            wakes_at: 0,
            looks_at: 0,
            look_after: MILLISECOND,
            notice_at: [NEVER; MOST],
            duplicates: 0,
            inbox: NONE,
        };
        self.ranks = [absent; MOST];
        (self.count, self.manner) = (count, manner);
        (self.ends, self.status, self.hangs, self.misuse) = (false, 0, false, None);
        (self.trace, self.faults) = (trace, [None; FAULTS]);
        (self.committed, self.generated) = (0, false);
        (self.cleans, self.is_told) = (false, false);
        (self.made, self.free, self.unused, self.used) = (0, NONE, 0, 64);
        self.pieces = [0; 32];
        // The first communicator has number 1.
        self.communicator(&[]);
        let all: Vec<u32> = (0..count as u32).collect();
        self.communicator(&all);
    }

    // Turns.

    /// Gives the turn to a process.
    pub fn give_turn(&self, to: usize) {
        self.turn[to].store(1, Ordering::Release);
        futex(&self.turn[to], libc::FUTEX_WAKE, 1, None);
    }

    /// Waits for the turn of process `me`. If `most_ms` is given, waits for at most this number of milliseconds. Returns whether
    /// the process has the turn.
    pub fn await_turn(&self, me: usize, most_ms: Option<i64>) -> bool {
        let turn = &self.turn[me];
        while turn.load(Ordering::Acquire) == 0 {
            futex(turn, libc::FUTEX_WAIT, 0, most_ms);
            if most_ms.is_some() && turn.load(Ordering::Acquire) == 0 {
                return false;
            }
        }
        turn.store(0, Ordering::Relaxed);
        true
    }

    /// Returns a random number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.random.below(n.max(1))
    }

    /// Records a change that any waiting rank may wait for.
    pub fn change(&mut self) {
        self.changed_at = self.now;
        self.ranks[..self.count].iter_mut().for_each(RankState::looks_soon);
    }

    /// Records a change that only rank `rank` can wait for.
    pub fn change_for(&mut self, rank: usize) {
        self.changed_at = self.now;
        self.ranks[rank].looks_soon();
    }

    /// Records that a rank has looked for something in vain. The rank looks again after a change, or after a time that doubles
    /// with each look. Time must pass, because the program may count the time that it waits.
    pub fn stall(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        state.looks_at = self.now + state.look_after;
        state.look_after = (state.look_after * 2).min(SECOND);
    }

    pub fn choose(&mut self) -> Next {
        loop {
            let can = |rank: &RankState| rank.life == Life::Running && rank.runs_at() <= self.now;
            let able: Vec<usize> = (0..self.count).filter(|&r| can(&self.ranks[r])).collect();
            if !able.is_empty() {
                return Next::Rank(able[self.below(able.len() as u64) as usize]);
            }
            let running = |rank: &&RankState| rank.life == Life::Running;
            if !self.ranks[..self.count].iter().any(|rank| running(&rank)) {
                return Next::Over;
            }
            if self.now - self.changed_at > HANGS_AFTER {
                return Next::Hang;
            }
            self.pass_time();
        }
    }

    /// Advances the time to the next moment at which a rank can run, or learns of a loss or revocation.
    fn pass_time(&mut self) {
        let (mut next, mut news) = (NEVER, NEVER);
        for rank in self.ranks[..self.count].iter().filter(|rank| rank.life == Life::Running) {
            next = next.min(rank.runs_at());
            let later = rank.notice_at.iter().filter(|&&at| at > self.now);
            news = later.fold(news, |first, &at| first.min(at));
        }
        for made in &self.communicators[..self.made as usize] {
            let later = made.revoked_at.iter().filter(|&&at| at > self.now);
            news = later.fold(news, |first, &at| first.min(at));
        }
        self.now = next.min(news);
        if news == self.now {
            self.change();
        }
    }

    // Losses.

    /// Records that rank `gone` is lost or stopped, and draws the times at which the other ranks learn of the loss.
    pub fn lose(&mut self, gone: usize) {
        let stopped = self.ranks[gone].life == Life::Stopped;
        // The connections of a lost rank close. A stopped rank is noticed only by its missing heartbeats.
        let least = if stopped { 6 * SECOND } else { 0 };
        // Without ULFM only the launcher learns of the loss.
        let learn = if self.manner.survives { self.count } else { 0 };
        for rank in 0..learn {
            let within = self.below(self.manner.notice_within);
            self.ranks[rank].notice_at[gone] = self.now + least + within;
        }
        // Content that the lost rank had not sent is lost. Of its messages in transit to a rank, the first arrive, and the later
        // ones may be lost.
        for rank in 0..self.count {
            let come = self.below(8);
            let (mut place, mut sent) = (self.ranks[rank].inbox, 0);
            while place != NONE {
                let message = &mut self.messages[place as usize];
                if message.from as usize == gone {
                    let data = message.stage == Stage::Data && !message.matched;
                    sent += u64::from(data);
                    if matches!(message.stage, Stage::Announced | Stage::Wanted)
                        || data && sent > come
                    {
                        message.stage = Stage::Void;
                    }
                }
                place = message.next;
            }
        }
        self.change();
    }

    /// Returns whether rank `rank` knows that rank `gone` is lost.
    pub fn knows(&self, rank: usize, gone: usize) -> bool {
        self.ranks[rank].notice_at[gone] <= self.now
    }

    // Communicators.

    fn communicator(&mut self, members: &[u32]) -> u32 {
        let none = Round {
            number: NONE,
            shrinks: false,
            said: [false; MOST],
            bits: 0,
            decided: false,
            with_loss: false,
            made: 0,
        };
        let mut list = [NONE; MOST];
        list[..members.len()].copy_from_slice(members);
        let (begun, revoked_at) = ([0; MOST], [NEVER; MOST]);
        let size = members.len() as u32;
        let made = Communicator { size, members: list, revoked_at, begun, rounds: [none; 4] };
        self.communicators[self.made as usize] = made;
        self.made += 1;
        self.made - 1
    }

    /// Returns the communicator that a rank creates as a copy of communicator `on`. The n-th copies of all ranks are the same
    /// communicator.
    pub fn duplicate(&mut self, on: usize, rank: usize) -> usize {
        self.ranks[rank].duplicates += 1;
        let number = 1 + self.ranks[rank].duplicates;
        while self.made <= number {
            let members = self.members(on);
            self.communicator(&members);
        }
        number as usize
    }

    /// Returns the numbers of the ranks of communicator `on`, as they were launched.
    pub fn members(&self, on: usize) -> Vec<u32> {
        let of = &self.communicators[on];
        of.members[..of.size as usize].to_vec()
    }

    pub fn member(&self, on: usize, peer: c_int) -> usize {
        self.communicators[on].members[peer as usize] as usize
    }

    pub fn revoke(&mut self, on: usize, by: usize) {
        if self.is_revoked(on, by) {
            return;
        }
        for rank in 0..self.count {
            let later = if rank == by { 0 } else { self.below(self.manner.notice_within) };
            let at = &mut self.communicators[on].revoked_at[rank];
            *at = (*at).min(self.now + later);
        }
        self.change();
    }

    pub fn is_revoked(&self, on: usize, rank: usize) -> bool {
        self.communicators[on].revoked_at[rank] <= self.now
    }

    /// Joins a rank to a collective call: an agreement, or the creation of a smaller communicator if `shrinks`. Returns the
    /// number of the call.
    pub fn join(&mut self, on: usize, rank: usize, bits: c_int, shrinks: bool) -> u32 {
        let of = &mut self.communicators[on];
        let number = of.begun[rank];
        of.begun[rank] += 1;
        let round = &mut of.rounds[number as usize % 4];
        if round.number != number {
            let said = [false; MOST];
            let (decided, with_loss, made) = (false, false, 0);
            *round = Round { number, shrinks, said, bits: -1, decided, with_loss, made };
        }
        if round.shrinks != shrinks {
            self.misuse = Some("some ranks agree while others shrink");
        }
        round.said[rank] = true;
        round.bits &= bits;
        self.change();
        number
    }

    /// Returns the result of a collective call: the bits, whether a member was lost, and the new communicator. Returns None while
    /// the call is not decided for this rank.
    pub fn decided(&mut self, on: usize, rank: usize, number: u32) -> Option<(c_int, bool, u32)> {
        let members = self.members(on);
        let round = self.communicators[on].rounds[number as usize % 4];
        assert_eq!(round.number, number, "nobody is two rounds ahead");
        if !round.decided {
            let here = |&&member: &&u32| round.said[member as usize];
            let lost = |&&member: &&u32| self.knows(rank, member as usize);
            let missing = members.iter().filter(|member| !here(member) && !lost(member)).count();
            if missing > 0 {
                return None;
            }
            let with_loss = members.iter().any(|member| lost(&member));
            let left: Vec<u32> = members.iter().filter(|m| !lost(m)).copied().collect();
            let made = if round.shrinks { self.communicator(&left) } else { 0 };
            let round = &mut self.communicators[on].rounds[number as usize % 4];
            (round.decided, round.with_loss, round.made) = (true, with_loss, made);
            self.change();
        }
        let round = self.communicators[on].rounds[number as usize % 4];
        Some((round.bits, round.with_loss, round.made))
    }

    // Messages.

    pub fn message(&self, place: u32) -> &Message {
        &self.messages[place as usize]
    }

    pub fn message_mut(&mut self, place: u32) -> &mut Message {
        &mut self.messages[place as usize]
    }

    /// Appends a message without content to the inbox of its receiver, and returns its index.
    pub fn announce(&mut self, on: usize, from: usize, to: usize, tag: c_int, bytes: u64) -> u32 {
        let place = if self.free == NONE {
            self.unused += 1;
            assert!((self.unused as usize) < MESSAGES, "too many messages under way");
            self.unused - 1
        } else {
            let place = self.free;
            self.free = self.messages[place as usize].next;
            place
        };
        let turn = self.messages[place as usize].turn + 1;
        let (on, from, to) = (on as u32, from as u32, to as u32);
        let (stage, matched) = (Stage::Announced, false);
        self.messages[place as usize] =
            Message { stage, on, from, to, tag, bytes, at: 0, matched, turn, next: NONE };
        let mut last = self.ranks[to as usize].inbox;
        if last == NONE {
            self.ranks[to as usize].inbox = place;
        } else {
            while self.messages[last as usize].next != NONE {
                last = self.messages[last as usize].next;
            }
            self.messages[last as usize].next = place;
        }
        self.change_for(to as usize);
        place
    }

    /// Copies the content of a message from its sender into the arena.
    ///
    /// # Safety
    /// `data` points to at least the bytes of the message.
    pub unsafe fn put(&mut self, place: u32, data: *const u8) {
        let bytes = self.messages[place as usize].bytes as usize;
        let at = self.piece(bytes);
        // SAFETY: the piece has room for the content.
        unsafe { data.copy_to_nonoverlapping(self.heap[at..at + bytes].as_mut_ptr(), bytes) };
        let message = &mut self.messages[place as usize];
        (message.at, message.stage) = (at as u64, Stage::Data);
        let to = message.to as usize;
        self.change_for(to);
    }

    /// Copies the content of a message to its receiver, and removes the message.
    ///
    /// # Safety
    /// `data` has room for the bytes of the message.
    pub unsafe fn take(&mut self, place: u32, data: *mut u8) {
        let message = self.messages[place as usize];
        let (at, bytes) = (message.at as usize, message.bytes as usize);
        // SAFETY: the piece has at least `bytes` bytes.
        unsafe { data.copy_from_nonoverlapping(self.heap[at..at + bytes].as_ptr(), bytes) };
        self.forget(place);
        self.change_for(message.from as usize);
    }

    /// Removes a message from the inbox of its receiver.
    pub fn forget(&mut self, place: u32) {
        let message = self.messages[place as usize];
        let to = message.to as usize;
        if self.ranks[to].inbox == place {
            self.ranks[to].inbox = message.next;
        } else {
            let mut before = self.ranks[to].inbox;
            while self.messages[before as usize].next != place {
                before = self.messages[before as usize].next;
            }
            self.messages[before as usize].next = message.next;
        }
        if message.at > 0 {
            let class = class(message.bytes as usize);
            let word = self.pieces[class];
            self.heap[message.at as usize..][..8].copy_from_slice(&word.to_ne_bytes());
            self.pieces[class] = message.at;
        }
        let place_ = &mut self.messages[place as usize];
        (place_.stage, place_.next) = (Stage::Free, self.free);
        self.free = place;
    }

    /// Returns the index of the first message that matches and that no receive has matched before; None if there is none. The
    /// message may have lost its content: messages do not overtake each other.
    pub fn find(&self, to: usize, on: usize, from: usize, tag: c_int) -> Option<u32> {
        let mut place = self.ranks[to].inbox;
        while place != NONE {
            let message = &self.messages[place as usize];
            let fits = (message.on, message.from, message.tag) == (on as u32, from as u32, tag);
            if fits && !message.matched {
                return Some(place);
            }
            place = message.next;
        }
        None
    }

    /// Returns the offset of a free piece of the heap for `bytes` bytes.
    fn piece(&mut self, bytes: usize) -> usize {
        let class = class(bytes);
        let first = self.pieces[class] as usize;
        if first > 0 {
            let next = self.heap[first..first + 8].try_into().expect("eight bytes");
            self.pieces[class] = u64::from_ne_bytes(next);
            return first;
        }
        let at = self.used as usize;
        self.used += 1 << class;
        assert!(self.used as usize <= HEAP_BYTES, "too much under way");
        at
    }

    // Trace of events, for people.

    /// Writes an event to the trace, if the job has a trace.
    pub fn event(&self, rank: usize, what: impl FnOnce() -> String) {
        if self.trace >= 0 {
            let (ms, us) = (self.now / MILLISECOND, self.now / MICROSECOND % 1000);
            let line = format!("{ms:>7}.{us:03} ms  rank {rank}: {}\n", what());
            // SAFETY: the file is open. An error of the write is ignored.
            unsafe { libc::write(self.trace, line.as_ptr().cast(), line.len()) };
        }
    }
}

/// Returns the size class of a piece of the heap. All pieces of a class have the same size.
fn class(bytes: usize) -> usize {
    bytes.max(64).next_power_of_two().trailing_zeros() as usize
}

fn futex(word: &AtomicU32, what: i32, value: u32, most_ms: Option<i64>) {
    let time =
        most_ms.map(|ms| libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel reads the word, which lives as long as the call. Other processes share it.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), what, value, time) };
}
