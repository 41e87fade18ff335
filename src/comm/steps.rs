//! Steps that a few ranks take all together or none of them, whoever is lost elsewhere meanwhile.
//!
//! Where a lost rank unwinds ([`loss`](super::loss)) it does so wherever each rank happens to be. Who changes data in place
//! together with others must not be torn apart like that: half of an exchange cannot be gone on with. So before each such step
//! its ranks vote, and once all have said yes, none of them leaves the step for the sake of somebody who is not one of them; what
//! it meets of such a loss is noted, and is a no in the next vote. Who learns of a loss between two steps tells the others by the
//! same vote before it leaves. So all of them have taken the same steps when an attempt is lost, unless one of their own is gone,
//! and then what they have is void anyway.
//!
//! A vote is over at one rank only when all have come to it, hence with the step before.

use std::cell::{Cell, RefCell};

use mpi::ffi;

use super::communicator::{Comm, Reduce};
use super::{by_messages, loss};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Between,
    Voting,
    Within,
}

thread_local! {
    /// Whose steps they are, as long as there are any.
    static OF: RefCell<Option<Comm>> = const { RefCell::new(None) };
    static WHERE: Cell<Where> = const { Cell::new(Where::Between) };
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
            WHERE.set(Where::Between);
        }
        Self { counted }
    }

    /// Begins a step, or leaves the attempt with all others of the group.
    pub fn step(&self) -> Step {
        if self.counted {
            let yes = !NOTED.get() && !loss::somebody_is_gone();
            if !vote(yes) {
                loss::leave();
            }
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
    if between() {
        vote(false);
    }
}

/// Whether what happens on `raw` must not end what this rank is doing. Notes that it has happened, if it `has`.
pub(super) fn shields(raw: ffi::MPI_Comm, has: bool) -> bool {
    if WHERE.get() != Where::Within {
        return false;
    }
    let other = OF.with_borrow(|of| of.as_ref().is_some_and(|of| of.raw() != raw));
    if other && has {
        NOTED.set(true);
    }
    other
}

/// Whether ranks take steps.
pub(super) fn under_way() -> bool {
    OF.with_borrow(Option::is_some)
}

/// Whether this rank waits for somebody who may be waiting for it to notice: then it looks after the whole job.
pub(super) fn between() -> bool {
    WHERE.get() == Where::Between && under_way()
}
