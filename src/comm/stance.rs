//! Reaction of this rank to a loss, which depends on the steps of its group that are in progress ([`steps`](super::steps)).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::library::On;

/// Progress of this rank in the steps of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// This rank has begun the steps of its group. It does not know yet whether all other ranks of the group have begun them.
    Entering,
    Between,
    Voting,
    Within,
}

/// Group of ranks whose steps are in progress.
pub(super) struct Group {
    /// Communicator of the group's messages, and the number that distinguishes the group on this communicator.
    pub on: On,
    /// Ranks of the group, by their numbers in the library's communicator.
    pub members: Arc<[i32]>,
    /// Returns whether all ranks of the group vote yes; the argument is the vote of this rank. All ranks of the group call this
    /// together.
    pub vote: Rc<dyn Fn(bool) -> bool>,
}

thread_local! {
    /// Group of ranks whose steps are in progress, if any.
    static OF: RefCell<Option<Group>> = const { RefCell::new(None) };
    static WHERE: Cell<Where> = const { Cell::new(Where::Between) };
    /// True from the time when all ranks of the group have begun its steps until the first step begins. Read only in a vote or a
    /// step.
    static FIRST: Cell<bool> = const { Cell::new(false) };
    /// True if this rank has recorded a loss because of which it will vote no at the next vote.
    static NOTED: Cell<bool> = const { Cell::new(false) };
}

/// Begins the steps of a group on this rank.
pub(super) fn enter(group: Group) {
    OF.set(Some(group));
    WHERE.set(Where::Entering);
}

/// Records that all ranks of the group have begun its steps. The first vote follows.
pub(super) fn entered() {
    WHERE.set(Where::Between);
    FIRST.set(true);
}

/// Returns whether all ranks of the group vote yes; `yes` is the vote of this rank. If the result is false, all ranks of the
/// group leave, and no rank votes again.
pub(super) fn vote(yes: bool) -> bool {
    WHERE.set(Where::Voting);
    let vote = OF.with_borrow(|of| {
        Rc::clone(&of.as_ref().expect("ranks vote only while steps are in progress").vote)
    });
    vote(yes)
}

/// Begins the step for which all ranks have voted yes.
pub(super) fn begin_step() {
    FIRST.set(false);
    WHERE.set(Where::Within);
}

/// Ends the step in progress. Another vote or the end of the steps follows.
pub(super) fn end_step() {
    WHERE.set(Where::Between);
}

/// Ends the steps of the group on this rank.
pub(super) fn over() {
    OF.set(None);
    WHERE.set(Where::Between);
    NOTED.set(false);
}

/// Returns the progress of this rank in the steps of its group; `None` if no steps are in progress.
pub(super) fn place() -> Option<Where> {
    OF.with_borrow(|of| of.as_ref().map(|_| WHERE.get()))
}

/// Returns the ranks of the group, by their numbers in the library's communicator.
pub(super) fn members() -> Arc<[i32]> {
    OF.with_borrow(|of| {
        Arc::clone(
            &of.as_ref().expect("ranks form a group only while steps are in progress").members,
        )
    })
}

/// Losses because of which a rank leaves its work while it waits for a message.
pub(super) enum Stance {
    /// The rank leaves its work after the loss of any rank of the job.
    Free,
    /// The rank leaves if one of `members` is lost; these are numbers in the library's communicator. If `first` is true, the rank
    /// also leaves if a member has left.
    With { members: Arc<[i32]>, first: bool },
    /// The rank does not leave, because it is within a step, and the message is not part of the step.
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

/// Records a loss because of which this rank will vote no at the next vote. All ranks of the group then leave.
pub(super) fn note() {
    NOTED.set(true);
}

/// Returns whether this rank has recorded a loss because of which it will vote no at the next vote.
pub(super) fn has_noted() -> bool {
    NOTED.get()
}
