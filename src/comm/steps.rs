//! Steps that a few ranks take all together or none of them, whoever is lost elsewhere meanwhile.
//!
//! Where a lost rank unwinds ([`loss`](super::loss)) it does so wherever each rank happens to be. Who changes data in place
//! together with others must not be torn apart like that: half of an exchange cannot be gone on with. So before each such step
//! its ranks vote, and once all have said yes, none of them leaves the step for the sake of somebody who is not one of them; what
//! it meets of such a loss is noted, and is a no in the next vote. Who learns of a loss between two steps tells the others by the
//! same vote before it leaves. So all of them have taken the same steps when an attempt is lost, unless one of their own is gone,
//! and then what they have is void anyway.
//!
//! A vote is over at one rank only when all have come to it, hence with the step before. To the first one not all may come: so
//! the ranks wait for each other before it. Nobody is past that as long as one has not come there; and who leaves while it waits
//! says so to the others, as they may be past it. They look for that word in the first vote, but in no other: then it cannot have
//! been said yes to anywhere.

use std::cell::{Cell, RefCell};

use super::communicator::{Comm, On, Reduce};
use super::{by_messages, loss};
use crate::base::faults::{Sabotage, sabotaged};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// Not all of the group are known to take steps.
    Entering,
    Between,
    Voting,
    Within,
}

thread_local! {
    /// Whose steps they are, as long as there are any.
    static OF: RefCell<Option<Comm>> = const { RefCell::new(None) };
    static WHERE: Cell<Where> = const { Cell::new(Where::Between) };
    /// No step has been voted for yet.
    static FIRST: Cell<bool> = const { Cell::new(false) };
    /// A loss was met that nobody has left for yet.
    static NOTED: Cell<bool> = const { Cell::new(false) };
}

/// The steps of one group of ranks; from its beginning to its end they talk among themselves within steps only.
pub struct Steps {
    counted: bool,
}

/// A step under way.
#[must_use = "a step lasts as long as this"]
pub struct Step {
    counted: bool,
}

impl Steps {
    /// All ranks of `of` together. Where no loss is survived this does nothing at all.
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

    /// Begins a step, or leaves the attempt with all others of the group.
    pub fn step(&self) -> Step {
        if self.counted {
            let yes = !NOTED.get() && !loss::somebody_is_gone();
            if !sabotaged(Sabotage::NoVote) && !vote(yes) {
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

/// Whether all say yes. If the answer is no, all of them leave, and none votes again.
fn vote(yes: bool) -> bool {
    WHERE.set(Where::Voting);
    let of = OF.with_borrow(|of| of.as_ref().expect("a vote is within steps").alias());
    let mut all = [u64::from(yes)];
    by_messages::all_reduce(&of, &mut all, Reduce::Min);
    all[0] == 1
}

/// Nobody takes steps any more.
pub(super) fn over() {
    OF.set(None);
    WHERE.set(Where::Between);
    NOTED.set(false);
}

/// This rank is about to leave: the others of its group hear of it unless they know already.
pub(super) fn tell() {
    let Some(of) = OF.with_borrow(|of| of.as_ref().map(Comm::alias)) else { return };
    match WHERE.get() {
        Where::Entering => loss::say_left(&peers(&of)),
        Where::Between => drop(vote(false)),
        Where::Voting | Where::Within => {}
    }
}

/// The ranks of a group by their numbers in the library's communicator.
fn peers(of: &Comm) -> Vec<i32> {
    (0..of.size()).map(|rank| of.peer(rank)).collect()
}

/// What a loss is to who waits for a message.
pub(super) enum Stance {
    /// Whoever is lost, it leaves.
    Free,
    /// It leaves if one of these is, by their ranks in the library's communicator; before their first step, also if one of them
    /// has left.
    With { members: Vec<i32>, first: bool },
    /// It does not leave: it is within a step, and this message is not of it.
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

/// A loss was met that this rank does not leave for now.
pub(super) fn note() {
    NOTED.set(true);
}
