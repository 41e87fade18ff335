//! A rank of a simulated job in its process. Implements the calls of the program to MPI.
//!
//! The simulated transport has the weaknesses of ULFM on purpose. If both sides have begun a transfer, it continues after a
//! revocation. If a rank is known to be lost, a receive from it is refused although its message has arrived. Each rank learns of
//! a loss at its own time.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::io;
use std::time::Duration;

use super::arena::{Arena, Effect, Fault, Life, MICROSECOND, Next, PARENT, Place, SECOND, Stage};
use crate::base::faults::Point;
use crate::base::simulated::Simulator;
use crate::comm::library::{FAILED, REVOKED, Transport};
use crate::supervise::talk::processes;

const SUCCESS: c_int = 0;

/// A send or receive that this rank has begun.
#[derive(Clone, Copy, Debug)]
enum Request {
    Over(c_int),
    Send { place: u32, turn: u32, data: *const u8, to: usize },
    Receive { on: usize, from: usize, tag: c_int, data: *mut u8, bytes: usize, place: Option<u32> },
}

pub struct Rank {
    me: usize,
    inner: UnsafeCell<Inner>,
}

struct Inner {
    arena: &'static mut Arena,
    requests: Vec<Option<Request>>,
    /// Number of successive checks for losses, without another call between them. After two checks the rank waits for nothing
    /// else, so each further check gives the turn to other ranks.
    looks: u32,
}

// SAFETY: only one thread of a rank's process calls it: the thread that was forked.
unsafe impl Sync for Rank {}

impl Rank {
    /// Makes the rank, and waits for its turn. Must be called in the process of the rank.
    pub fn begin(arena: &'static mut Arena, me: usize) -> &'static Self {
        arena.await_turn(me, None);
        let inner = UnsafeCell::new(Inner { arena, requests: Vec::new(), looks: 0 });
        Box::leak(Box::new(Self { me, inner }))
    }

    /// Ends the rank and its process.
    pub fn exit(&self, status: i32) -> ! {
        let arena = self.arena();
        arena.ranks[self.me].exit = status;
        arena.ranks[self.me].life = Life::Exited;
        arena.event(self.me, || format!("exits with {status}"));
        if status != 0 && !arena.ends {
            // The launcher ends the job when the first rank fails.
            (arena.ends, arena.status) = (true, status);
        }
        arena.change();
        arena.give_turn(PARENT);
        // SAFETY: ends this process without the exit handlers, which belong to the parent.
        unsafe { libc::_exit(status) }
    }

    fn arena(&self) -> &mut Arena {
        self.inner().arena
    }

    #[expect(clippy::mut_from_ref, reason = "no call of this type's is within another")]
    fn inner(&self) -> &mut Inner {
        // SAFETY: one thread calls this, only while it has the turn, and no reference outlives the call of a trait below.
        unsafe { &mut *self.inner.get() }
    }

    /// Begins a call of the program. Injects faults, lets time pass, and may give the turn to other ranks.
    fn enter(&self) {
        self.inner().looks = 0;
        let arena = self.arena();
        arena.ranks[self.me].calls += 1;
        arena.steps += 1;
        let number = arena.ranks[self.me].calls;
        arena.now += (1 + arena.below(20)) * MICROSECOND;
        let here = Place::Call { rank: self.me as u32, number };
        self.inject(|fault| fault.place == here, || format!("call {number}"));
        let arena = self.arena();
        if arena.ends && arena.below(8) == 0 {
            self.die(Effect::Kill, || "is ended by the launcher".to_owned());
        }
        if arena.below(arena.manner.turn_every) == 0 {
            self.pass_turn();
        }
    }

    fn inject(&self, is_due: impl Fn(&mut Fault) -> bool, place: impl FnOnce() -> String) {
        let arena = self.arena();
        let phase = arena.ranks[self.me].phase;
        let mut faults = arena.faults.iter_mut().flatten().filter(|fault| !fault.injected);
        let Some(fault) = faults.find_map(|fault| is_due(fault).then_some(fault)) else { return };
        (fault.injected, fault.phase) = (true, phase);
        let effect = fault.effect;
        let place = place();
        self.die(effect, || format!("{effect:?} at {place}"));
    }

    fn die(&self, effect: Effect, how: impl FnOnce() -> String) {
        let arena = self.arena();
        arena.event(self.me, how);
        if effect == Effect::Kill {
            arena.ranks[self.me].life = Life::Dead;
            arena.lose(self.me);
            arena.give_turn(PARENT);
            // SAFETY: ends this process at once.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        arena.ranks[self.me].life = Life::Stopped;
        arena.lose(self.me);
        self.pass_turn();
    }

    /// Gives the turn to other ranks until this rank is chosen again.
    fn pass_turn(&self) {
        let arena = self.arena();
        match arena.choose() {
            Next::Rank(next) if next == self.me => {}
            Next::Rank(next) => {
                arena.give_turn(next);
                arena.await_turn(self.me, None);
            }
            Next::Hang | Next::Over => {
                arena.give_turn(PARENT);
                arena.await_turn(self.me, None);
            }
        }
    }

    /// Waits until the kernel has ended the stopped ranks that other ranks have killed.
    fn await_killed(&self) {
        let arena = self.arena();
        for rank in arena.ranks.iter_mut().filter(|rank| rank.life == Life::Stopped) {
            loop {
                match processes::look(rank.pid as u32) {
                    // The rank is stopped: it sleeps and gets no turn.
                    Some(('S', _)) => break,
                    Some(('Z', _)) | None => {
                        rank.life = Life::Dead;
                        break;
                    }
                    Some(_) => std::thread::sleep(Duration::from_micros(50)),
                }
            }
        }
    }

    /// Records that a check of this rank was unsuccessful, and gives the turn to other ranks.
    fn stall(&self) {
        self.arena().stall(self.me);
        self.pass_turn();
    }

    /// Advances the sends and receives that this rank has begun.
    fn progress(&self) {
        let Inner { arena, requests, .. } = self.inner();
        for request in requests.iter_mut().flatten() {
            match *request {
                Request::Over(_) => {}
                Request::Send { place, turn, data, to } => {
                    let message = *arena.message(place);
                    let ended = match message.stage {
                        _ if message.turn != turn => Some(SUCCESS),
                        Stage::Wanted if !arena.knows(self.me, to) => {
                            // SAFETY: the program guarantees the memory until the message is through.
                            unsafe { arena.put(place, data) };
                            Some(SUCCESS)
                        }
                        Stage::Announced | Stage::Wanted if arena.knows(self.me, to) => {
                            arena.message_mut(place).stage = Stage::Void;
                            Some(FAILED)
                        }
                        Stage::Announced if arena.is_revoked(message.on as usize, self.me) => {
                            arena.message_mut(place).stage = Stage::Void;
                            Some(REVOKED)
                        }
                        Stage::Announced | Stage::Wanted => None,
                        Stage::Free | Stage::Data | Stage::Void => Some(SUCCESS),
                    };
                    if let Some(code) = ended {
                        *request = Request::Over(code);
                    }
                }
                Request::Receive { on, from, tag, data, bytes, ref mut place } => {
                    if place.is_none() {
                        *place = arena.find(self.me, on, from, tag);
                        if let Some(place) = *place {
                            let message = arena.message_mut(place);
                            message.matched = true;
                            if message.stage == Stage::Announced {
                                message.stage = Stage::Wanted;
                            }
                            if message.bytes as usize != bytes {
                                arena.misuse =
                                    Some("a message has another length than its receiver expects");
                            }
                            arena.change_for(from);
                        }
                    }
                    let ended = match *place {
                        Some(place) => match arena.message(place).stage {
                            Stage::Data => {
                                // SAFETY: the program guarantees the memory until the message is through.
                                unsafe { arena.take(place, data) };
                                Some(SUCCESS)
                            }
                            // The sender was lost before the message was complete.
                            Stage::Void if arena.knows(self.me, from) => Some(FAILED),
                            Stage::Void if arena.is_revoked(on, self.me) => Some(REVOKED),
                            Stage::Void | Stage::Free | Stage::Announced | Stage::Wanted => None,
                        },
                        None if arena.knows(self.me, from) => Some(FAILED),
                        None if arena.is_revoked(on, self.me) => Some(REVOKED),
                        None => None,
                    };
                    if let Some(code) = ended {
                        *request = Request::Over(code);
                    }
                }
            }
        }
    }

    fn begin_request(&self, request: Request) -> usize {
        let requests = &mut self.inner().requests;
        let free = requests.iter().position(Option::is_none).unwrap_or(requests.len());
        if free == requests.len() {
            requests.push(None);
        }
        requests[free] = Some(request);
        self.progress();
        free + 1
    }

    fn request(&self, number: usize) -> &mut Option<Request> {
        &mut self.inner().requests[number - 1]
    }

    /// Returns an error code if a message to or from rank `peer` must be refused.
    fn refusal(&self, on: usize, peer: usize) -> Result<(), c_int> {
        let arena = self.arena();
        if arena.is_revoked(on, self.me) {
            Err(REVOKED)
        } else if arena.knows(self.me, peer) {
            Err(FAILED)
        } else {
            Ok(())
        }
    }

    /// Joins a collective call of all remaining ranks, and waits for its result. Returns the bits, whether a member was lost, and
    /// the new communicator.
    fn join(&self, on: usize, bits: c_int, shrinks: bool) -> (c_int, bool, u32) {
        let number = self.arena().join(on, self.me, bits, shrinks);
        self.arena().event(self.me, || format!("comes to round {number} of communicator {on}"));
        loop {
            self.progress();
            if let Some(decided) = self.arena().decided(on, self.me, number) {
                return decided;
            }
            self.stall();
        }
    }
}

impl Transport for Rank {
    fn rank(&self) -> usize {
        self.me
    }

    fn node(&self) -> usize {
        self.me
    }

    fn survives(&self) -> bool {
        self.arena().manner.survives
    }

    unsafe fn start_send(
        &self,
        on: usize,
        data: *const u8,
        bytes: usize,
        to: c_int,
        tag: c_int,
    ) -> Result<usize, c_int> {
        self.enter();
        let to = self.arena().member(on, to);
        self.refusal(on, to)?;
        let arena = self.arena();
        let place = arena.announce(on, self.me, to, tag, bytes as u64);
        let turn = arena.message(place).turn;
        if bytes as u64 <= arena.manner.eager_bytes {
            if bytes > 0 {
                // SAFETY: the caller guarantees the memory.
                unsafe { arena.put(place, data) };
            }
            arena.message_mut(place).stage = Stage::Data;
            return Ok(self.begin_request(Request::Over(SUCCESS)));
        }
        Ok(self.begin_request(Request::Send { place, turn, data, to }))
    }

    unsafe fn start_recv(
        &self,
        on: usize,
        data: *mut u8,
        bytes: usize,
        from: c_int,
        tag: c_int,
    ) -> Result<usize, c_int> {
        self.enter();
        let from = self.arena().member(on, from);
        self.refusal(on, from)?;
        let place = None;
        Ok(self.begin_request(Request::Receive { on, from, tag, data, bytes, place }))
    }

    fn has_word(&self, on: usize, from: c_int, tag: c_int) -> Result<bool, c_int> {
        self.enter();
        self.progress();
        let from = self.arena().member(on, from);
        let arena = self.arena();
        let found = arena.find(self.me, on, from, tag);
        if found.is_some_and(|place| arena.message(place).stage != Stage::Void) {
            return Ok(true);
        }
        self.refusal(on, from)?;
        self.stall();
        Ok(false)
    }

    fn is_through(&self, request: usize) -> bool {
        if request == 0 {
            return true;
        }
        self.enter();
        self.progress();
        let through = |request: &Option<Request>| matches!(request, Some(Request::Over(_)));
        if through(self.request(request)) {
            return true;
        }
        self.stall();
        self.progress();
        through(self.request(request))
    }

    fn end(&self, request: usize) -> c_int {
        if request == 0 {
            return SUCCESS;
        }
        match self.request(request).take() {
            Some(Request::Over(code)) => code,
            _ => {
                self.arena().misuse = Some("a message is given back before it is through");
                SUCCESS
            }
        }
    }

    fn cancel(&self, request: usize) {
        self.enter();
        if let Some(Request::Receive { place: None, .. }) = *self.request(request) {
            *self.request(request) = Some(Request::Over(SUCCESS));
        }
    }

    fn duplicate(&self, on: usize) -> usize {
        self.enter();
        self.arena().duplicate(on, self.me)
    }

    fn revoke(&self, on: usize) {
        self.enter();
        self.arena().revoke(on, self.me);
        self.arena().event(self.me, || format!("revokes communicator {on}"));
    }

    fn is_revoked(&self, on: usize) -> bool {
        self.inner().looks += 1;
        if self.inner().looks > 2 {
            self.enter();
            self.progress();
            self.stall();
            self.inner().looks = 2;
        }
        self.arena().is_revoked(on, self.me)
    }

    fn failed(&self, on: usize) -> Vec<c_int> {
        let arena = self.arena();
        let members = arena.members(on);
        let gone = |&peer: &usize| arena.knows(self.me, members[peer] as usize);
        (0..members.len()).filter(gone).map(|peer| peer as c_int).collect()
    }

    fn agree(&self, on: usize, bits: c_int) -> (c_int, c_int) {
        self.enter();
        let (bits, with_loss, _) = self.join(on, bits, false);
        self.arena().event(self.me, || format!("agrees on {bits:#x}"));
        (bits, if with_loss { FAILED } else { SUCCESS })
    }

    fn shrink(&self, on: usize) -> usize {
        self.enter();
        self.join(on, -1, true).2 as usize
    }

    fn size(&self, on: usize) -> usize {
        self.arena().members(on).len()
    }

    fn places(&self, before: usize, now: usize) -> Vec<c_int> {
        let (before, now) = (self.arena().members(before), self.arena().members(now));
        let place = |rank: &u32| before.iter().position(|of| of == rank).expect("nobody joins");
        now.iter().map(|rank| place(rank) as c_int).collect()
    }

    fn enters(&self, phase: &'static str) {
        self.arena().ranks[self.me].phase = Some(phase);
        self.arena().event(self.me, || format!("is {phase}"));
    }

    fn abort(&self, code: i32) -> ! {
        let arena = self.arena();
        (arena.ends, arena.status) = (true, code);
        arena.manner.survives = false;
        self.exit(code)
    }
}

impl Simulator for Rank {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.arena().now)
    }

    fn sleep(&self, how_long: Duration) {
        self.enter();
        self.await_killed();
        let arena = self.arena();
        arena.ranks[self.me].wakes_at = arena.now + how_long.as_nanos() as u64;
        self.pass_turn();
    }

    fn task_takes(&self) -> Duration {
        let arena = self.arena();
        // Most tasks take far less than the maximum of 2 s, some as long.
        let digits = if arena.below(16) == 0 { 0 } else { 4 + arena.below(7) };
        Duration::from_nanos(arena.below(2 * SECOND) >> digits)
    }

    fn stores(&self) -> io::Result<()> {
        let arena = self.arena();
        let state = &mut arena.ranks[self.me];
        state.stored += 1;
        let (number, phase, me) = (state.stored, state.phase, self.me as u32);
        let is_due = |fault: &&mut Fault| match fault.place {
            Place::Storage { rank, first, count } => {
                rank == me && (first..first + count).contains(&number)
            }
            _ => false,
        };
        let Some(fault) = arena.faults.iter_mut().flatten().find(is_due) else { return Ok(()) };
        (fault.injected, fault.phase) = (true, fault.phase.or(phase));
        let code = if fault.effect == Effect::Full { libc::ENOSPC } else { libc::EIO };
        arena.event(self.me, || format!("operation {number} on storage fails with {code}"));
        Err(io::Error::from_raw_os_error(code))
    }

    fn passes(&self, point: &'static str, position: usize) {
        self.enter();
        let at = |fault: &mut Fault| match fault.place {
            Place::Point { point: due, position: of, hit } if due.name() == point => {
                let here = of as usize == position;
                fault.seen += u64::from(here);
                here && fault.seen == hit
            }
            _ => false,
        };
        let arena = self.arena();
        arena.event(self.me, || format!("position {position} passes {point}"));
        arena.generated |= point == Point::GenerateBegin.name();
        arena.cleans |= point == Point::CleanBegin.name();
        arena.is_told |= point == Point::Told.name();
        arena.committed |= u64::from(point == Point::Committed.name()) << position;
        self.inject(at, || point.to_owned());
    }
}
