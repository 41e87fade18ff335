//! Steps that a group of ranks completes together or does not do at all, whichever rank is lost elsewhere meanwhile.
//!
//! A lost rank unwinds ([`loss`](super::loss)) at any place where each rank happens to be. Ranks that change data in place
//! together must not be interrupted like that, because half of an exchange cannot be continued.
//!
//! So the ranks of the group vote before each such step. Once all have voted yes, none of them leaves the step because of a lost
//! rank outside the group. A rank that meets such a loss notes it and votes no the next time. A rank that learns of a loss
//! between two steps tells the others by the same vote before it leaves.
//!
//! So all ranks of the group have done the same steps when an attempt is lost, unless one of their own is lost. In that case
//! their data are void anyway.
//!
//! A vote ends on one rank only when all have reached it, and hence have completed the step before. Some ranks may never reach
//! the first vote, so the ranks wait for each other before it. No rank passes that barrier as long as one is missing. A rank that
//! leaves while it waits there sends a message to the others, because they may have passed. They look for that message only in
//! the first vote. That vote cannot have ended with yes on any rank, because the rank that left takes no part in it.

use std::cell::{Cell, RefCell};

use super::communicator::{Comm, On, Reduce};
use super::{by_messages, loss};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// Not all ranks of the group are known to have entered.
    Entering,
    Between,
    Voting,
    Within,
}

thread_local! {
    /// Group of ranks whose steps are in progress, if any.
    static OF: RefCell<Option<Comm>> = const { RefCell::new(None) };
    static WHERE: Cell<Where> = const { Cell::new(Where::Between) };
    /// True before the first vote.
    static FIRST: Cell<bool> = const { Cell::new(false) };
    /// True if this rank met a loss for which it has not left yet.
    static NOTED: Cell<bool> = const { Cell::new(false) };
}

/// Steps of a group of ranks. From its beginning to its end, the ranks of the group exchange messages only within steps.
pub struct Steps {
    counted: bool,
}

/// A step in progress; it ends when this is dropped.
#[must_use = "a step lasts as long as this"]
pub struct Step {
    counted: bool,
}

impl Steps {
    /// Begins the steps of the group `of`. All of its ranks call this together. Does nothing if losses are not survived.
    pub fn begin(of: &Comm) -> Self {
        let counted = loss::unwinds();
        if counted {
            OF.set(Some(of.alias()));
            WHERE.set(Where::Entering);
            by_messages::barrier(of);
            WHERE.set(Where::Between);
            FIRST.set(true);
        }
        Self { counted }
    }

    /// Begins a step, or leaves the attempt together with all others of the group.
    pub fn step(&self) -> Step {
        if self.counted {
            let yes = !NOTED.get() && !loss::somebody_is_gone();
            if !vote(yes) {
                loss::leave();
            }
            FIRST.set(false);
            WHERE.set(Where::Within);
        }
        Step { counted: self.counted }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if self.counted && !std::thread::panicking() {
            over();
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if self.counted && !std::thread::panicking() {
            WHERE.set(Where::Between);
        }
    }
}

/// Returns whether all vote yes. If the answer is no, all of them leave, and none votes again.
fn vote(yes: bool) -> bool {
    WHERE.set(Where::Voting);
    let of = OF.with_borrow(|of| of.as_ref().expect("a vote is within steps").alias());
    let mut all = [u64::from(yes)];
    by_messages::all_reduce(&of, &mut all, Reduce::Min);
    all[0] == 1
}

/// Ends the steps of the group.
pub(super) fn over() {
    OF.set(None);
    WHERE.set(Where::Between);
    NOTED.set(false);
}

/// Tells the other ranks of the group that this rank is about to leave, unless they know already.
pub(super) fn tell() {
    let Some(of) = OF.with_borrow(|of| of.as_ref().map(Comm::alias)) else { return };
    match WHERE.get() {
        Where::Entering => loss::say_left(&peers(&of)),
        Where::Between => drop(vote(false)),
        Where::Voting | Where::Within => {}
    }
}

/// Returns the ranks of a group by their numbers in the library's communicator.
fn peers(of: &Comm) -> Vec<i32> {
    (0..of.size()).map(|rank| of.peer(rank)).collect()
}

/// Reaction of a rank that waits for a message to a loss.
pub(super) enum Stance {
    /// Leaves after any loss.
    Free,
    /// Leaves if one of these members is lost, by their ranks in the library's communicator. Before their first step, also leaves
    /// if one of them has left.
    With { members: Vec<i32>, first: bool },
    /// Does not leave: the rank is within a step, and the message is not part of it.
    Shielded,
}

pub(super) fn stance(on: On) -> Stance {
    if matches!(WHERE.get(), Where::Between | Where::Entering) {
        return Stance::Free;
    }
    OF.with_borrow(|of| match of {
        Some(of) if of.on() == on => Stance::With { members: peers(of), first: FIRST.get() },
        _ => Stance::Shielded,
    })
}

/// Notes a loss for which this rank does not leave yet.
pub(super) fn note() {
    NOTED.set(true);
}
