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

use std::rc::Rc;

use super::communicator::Comm;
use super::stance::{self, Group};
use super::wire::Reduce;
use super::{by_messages, loss};

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
            let (alias, members) = (of.alias(), (0..of.size()).map(|rank| of.peer(rank)));
            stance::enter(Group {
                on: of.on,
                members: members.collect(),
                vote: Rc::new(move |yes| vote(&alias, yes)),
            });
            by_messages::barrier(of);
            stance::entered();
        }
        Self { counted }
    }

    /// Begins a step, or leaves the attempt together with all others of the group.
    pub fn step(&self) -> Step {
        if self.counted {
            let yes = !stance::has_noted() && !loss::somebody_is_gone();
            if !stance::vote(yes) {
                loss::leave();
            }
            stance::begin_step();
        }
        Step { counted: self.counted }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if self.counted && !std::thread::panicking() {
            stance::over();
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if self.counted && !std::thread::panicking() {
            stance::end_step();
        }
    }
}

/// Returns whether all ranks of `of` vote yes.
fn vote(of: &Comm, yes: bool) -> bool {
    let mut all = [u64::from(yes)];
    by_messages::all_reduce(of, &mut all, Reduce::Min);
    all[0] == 1
}
