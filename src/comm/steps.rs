//! Steps that all ranks of a group complete, or that no rank of the group begins, even if a rank outside is lost meanwhile.
//!
//! After a loss, each rank unwinds ([`loss`](super::loss)), whatever code the rank runs at that moment. Ranks that change data in
//! place together must not be interrupted like that, because half of an exchange cannot be continued.
//!
//! So the ranks of the group vote before each step. Once all ranks have voted yes, no rank leaves the step because of a lost rank
//! outside the group. If such a loss makes a call fail, the rank notes the loss and votes no the next time. A rank that learns of
//! a loss between two steps votes no before it leaves.
//!
//! So all ranks of the group have done the same steps when an attempt is lost, unless a rank of the group is lost. In that case
//! the group's data are not used again.
//!
//! A vote ends on a rank only when all ranks have reached the vote, and hence have completed the step before. Some ranks may
//! never reach the first vote, so the ranks wait at a barrier before it. No rank passes the barrier as long as a rank is missing.
//! A rank that leaves at the barrier sends a message to the other ranks, because these may have passed. Ranks look for this
//! message only in the first vote. That vote cannot end with yes on any rank, because the rank that has left does not vote.

use std::rc::Rc;

use super::communicator::Comm;
use super::stance::{self, Group};
use super::wire::Reduce;
use super::{by_messages, loss};

/// Steps of a group of ranks. All ranks of the group complete a step, or no rank begins it, even if a rank outside is lost
/// meanwhile. As long as this value lives, the ranks of the group exchange messages only within steps.
pub struct Steps {
    counted: bool,
}

/// Step in progress of a group of ranks. No rank of the group leaves the step because of a lost rank outside the group. The step
/// ends when this value is dropped.
#[must_use = "the step ends when this value is dropped"]
pub struct Step {
    counted: bool,
}

impl Steps {
    /// Begins the steps of the group `of`. All ranks of the group call this together. Does nothing if losses are not survived.
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

    /// Begins a step if all ranks of the group vote for it. Otherwise all ranks of the group leave the attempt together. A rank
    /// that knows of a loss votes against the step.
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

/// Returns whether all ranks of `of` vote yes. `yes` is the vote of this rank. All ranks of `of` call this together.
fn vote(of: &Comm, yes: bool) -> bool {
    let mut all = [u64::from(yes)];
    by_messages::all_reduce(of, &mut all, Reduce::Min);
    all[0] == 1
}
