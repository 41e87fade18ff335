//! Reaction of this rank to a loss, by the steps of its group that are in progress ([`steps`](super::steps)).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::library::On;

/// Place of this rank in the steps of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// Not all ranks of the group are known to have entered.
    Entering,
    Between,
    Voting,
    Within,
}

/// Group of ranks whose steps are in progress.
pub(super) struct Group {
    /// Communicator and series of its messages.
    pub on: On,
    /// Its ranks by their numbers in the library's communicator.
    pub members: Arc<[i32]>,
    /// Returns whether all ranks of the group vote yes. They call this together.
    pub vote: Rc<dyn Fn(bool) -> bool>,
}

thread_local! {
    /// Group of ranks whose steps are in progress, if any.
    static OF: RefCell<Option<Group>> = const { RefCell::new(None) };
    static WHERE: Cell<Where> = const { Cell::new(Where::Between) };
    /// True before the first vote.
    static FIRST: Cell<bool> = const { Cell::new(false) };
    /// True if this rank met a loss for which it has not left yet.
    static NOTED: Cell<bool> = const { Cell::new(false) };
}

/// Begins the steps of a group, which this rank is entering.
pub(super) fn enter(group: Group) {
    OF.set(Some(group));
    WHERE.set(Where::Entering);
}

/// Records that all ranks of the group have entered.
pub(super) fn entered() {
    WHERE.set(Where::Between);
    FIRST.set(true);
}

/// Returns whether all ranks of the group vote yes. If the answer is no, all of them leave, and none votes again.
pub(super) fn vote(yes: bool) -> bool {
    WHERE.set(Where::Voting);
    let vote = OF.with_borrow(|of| Rc::clone(&of.as_ref().expect("a vote is within steps").vote));
    vote(yes)
}

/// Begins the step for which all have voted.
pub(super) fn begin_step() {
    FIRST.set(false);
    WHERE.set(Where::Within);
}

/// Ends the step.
pub(super) fn end_step() {
    WHERE.set(Where::Between);
}

/// Ends the steps of the group.
pub(super) fn over() {
    OF.set(None);
    WHERE.set(Where::Between);
    NOTED.set(false);
}

/// Returns the place of this rank in the steps of its group; `None` if no steps are in progress.
pub(super) fn place() -> Option<Where> {
    OF.with_borrow(|of| of.as_ref().map(|_| WHERE.get()))
}

/// Returns the ranks of the group by their numbers in the library's communicator.
pub(super) fn members() -> Arc<[i32]> {
    OF.with_borrow(|of| Arc::clone(&of.as_ref().expect("asked within steps").members))
}

/// Reaction of a rank that waits for a message to a loss.
pub(super) enum Stance {
    /// Leaves after any loss.
    Free,
    /// Leaves if one of these members is lost, by their ranks in the library's communicator. Before their first step, also leaves
    /// if one of them has left.
    With { members: Arc<[i32]>, first: bool },
    /// Does not leave: the rank is within a step, and the message is not part of it.
    Shielded,
}

pub(super) fn stance(on: On) -> Stance {
    if matches!(WHERE.get(), Where::Between | Where::Entering) {
        return Stance::Free;
    }
    OF.with_borrow(|of| match of {
        Some(of) if of.on == on => {
            Stance::With { members: Arc::clone(&of.members), first: FIRST.get() }
        }
        _ => Stance::Shielded,
    })
}

/// Notes a loss for which this rank does not leave yet.
pub(super) fn note() {
    NOTED.set(true);
}

/// Returns whether this rank met a loss for which it has not left yet.
pub(super) fn has_noted() -> bool {
    NOTED.get()
}
