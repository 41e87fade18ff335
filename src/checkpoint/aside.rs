//! A save whose checksum helpers make, so that the ranks stop for the copy alone (`--encode helper`).
//!
//! Method double has what that takes. Its save copies the matrix into the older of two copies, and from there on nobody needs the
//! matrix: the ranks go on. Each has a helper, a thread beside it, and the helpers of a group encode the copies into the older
//! checksums, and take the digests. Until that epoch is committed the last one lies untouched in the other copy, with its
//! checksum and its place in S; a loss at any moment goes back to it, or to the new one where all that are left have it whole.
//! Headers claim what they claim of any save with two copies, so recovery is the same.
//!
//! What belongs to the new epoch is lent to the helper, all of it, so that nobody else can touch it. At a boundary where rank 0's
//! helper is done everybody looks, and those whose helpers are done write `sealed`. One reduction says whether all have: it is
//! the barrier of other saves, and past it all commit. *If the next save is due before that it is put off*, from boundary to
//! boundary; one for a stop waits instead. At a test's end helpers are waited for, since others need them.
//!
//! Helpers talk over their group's communicator, which the ranks leave to them; for that MPI is started so that any thread may
//! call it (MPI_THREAD_MULTIPLE), in runs that ask for it alone. Each waits by looking and sleeping, so that it takes no core
//! from the ranks for nothing.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::helper;
use super::plan::Encoding;
use super::protocol::{Method, Transitions};
use super::save::Checkpointer;
use super::saved::{Coding, Saved, Since};
use super::world::World;
use crate::base::faults::{Point, Sabotage, hit, sabotaged};
use crate::base::threads::Crew;
use crate::checkpoint::storage::writing::Flow;
use crate::comm::die;
use crate::parity::{GroupComm, Window};
use crate::shm::header::{Doing, EpochId, Mark};

/// What rank 0 says at a boundary, beside what level two has it say: everybody looks how the helpers do.
pub(super) const ENCODED: u64 = 16;

/// What a helper brings back: what it was lent, and the digest over it.
struct Encoded {
    saved: Saved,
    root: u64,
}

/// An epoch whose copy is made, and whose checksum is on its way or made: on all ranks or on none.
pub(super) struct Unfinished {
    epoch: EpochId,
    boundary: usize,
    /// Goes to storage once it is committed.
    pub(super) stores: bool,
    helper: Helper,
}

/// A helper at work; None once it has brought back what it had.
struct Helper(Option<(Arc<Flow>, JoinHandle<Encoded>)>);

impl Helper {
    /// Ends the job where the system gives no more threads: the others' helpers would wait for this one's rows for ever.
    fn start(work: impl FnOnce(&Flow) -> Encoded + Send + 'static) -> Self {
        let (flow, thread) = helper::start("encoding", work);
        let thread = thread.unwrap_or_else(|why| die(6, &why.to_string()));
        Self(Some((flow, thread)))
    }

    fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(|(_, thread)| thread.is_finished())
    }

    /// Waits for what it brings; meanwhile its progress counts as the rank's. None if that was fetched before.
    fn end(&mut self) -> Option<Encoded> {
        let (flow, thread) = self.0.take()?;
        flow.is_awaited();
        match thread.join() {
            Ok(encoded) => Some(encoded),
            // It ended as its rank would have: because a peer is gone.
            Err(why) => std::panic::resume_unwind(why),
        }
    }
}

/// Whoever leaves waits: the memory that the helper writes, and the communicator it talks over, must last as long as it does.
impl Drop for Helper {
    fn drop(&mut self) {
        if let Some((_, thread)) = self.0.take() {
            let _ = thread.join();
        }
    }
}

impl<W: World, G: GroupComm> Checkpointer<W, G> {
    /// Whether saves leave the encoding to helpers.
    pub(super) fn has_helpers(&self) -> bool {
        self.encode == Encoding::Helper
    }

    /// The copy of `epoch` is made: the rest of the save is a helper's. `window`: what is new of the copy that it was written
    /// over; `since`: of the epoch before.
    pub(super) fn leave_to_helper(
        &mut self,
        epoch: EpochId,
        boundary: usize,
        (window, since): (Window, Since),
    ) {
        let position = self.position();
        hit(Point::EncodeLeft, position);
        let stores = self.level2.as_mut().is_some_and(|level2| {
            level2.saved();
            level2.begins_next()
        });
        let group = self.group.for_helper().expect("the launch has asked MPI for that");
        let mut saved = self.holding.lend();
        let (coder, how) = (self.coder, self.encode.how());
        let helper = Helper::start(move |flow| {
            let coding = Coding { coder, how, window };
            // One thread: the others compute.
            let crew = &mut Crew::alone();
            saved.encode(&*group, coding, (epoch.epoch, since), None, crew, || {
                // Nobody gives it up: the others' helpers need this one's rows.
                let _ = flow.went_on(1);
                hit(Point::EncodeBatch, position);
            });
            let root = saved.seal(epoch.epoch);
            hit(Point::EncodeEnd, position);
            Encoded { saved, root }
        });
        self.unfinished = Some(Unfinished { epoch, boundary, stores, helper });
    }

    /// What rank 0 wishes at a boundary; `now`: whatever is on its way is to be finished.
    pub(super) fn wishes_of_helpers(&self, now: bool) -> u64 {
        match &self.unfinished {
            Some(unfinished) if now || unfinished.helper.is_over() => ENCODED,
            _ => 0,
        }
    }

    /// All ranks, at a boundary where rank 0 said so: whose helper is done seals its epoch, or, to `wait`, everybody once it is.
    /// Where all are sealed it is committed.
    fn look_after_helpers(&mut self, wait: bool) {
        let position = self.position();
        let Some(unfinished) = &mut self.unfinished else { return };
        let (epoch, boundary) = (unfinished.epoch, unfinished.boundary);
        if (wait || unfinished.helper.is_over())
            && let Some(Encoded { saved, root }) = unfinished.helper.end()
        {
            self.holding.take_back(saved);
            hit(Point::EncodeFound, position);
            self.header.claim = self.header.claim.sealed(Method::Double, epoch);
            self.header.seal = Mark { boundary: boundary as u64, root };
            self.publish();
            hit(Point::Sealed, position);
        }
        let mine = self.header.claim.seal == Some(epoch);
        let all = self.world.least(&[u64::from(mine)]) == [1];
        if !(all || mine && sabotaged(Sabotage::NoBarrier)) {
            return;
        }
        hit(Point::BarrierPassed, position);
        let unfinished = self.unfinished.take().expect("just looked at");
        self.commit(boundary);
        if unfinished.stores {
            self.begin_committed();
        }
    }

    /// All ranks, at a boundary where rank 0 said `told`: whether a save can be made as far as helpers go.
    pub(super) fn attend_helpers(&mut self, told: u64, now: bool) -> bool {
        if told & ENCODED != 0 {
            self.look_after_helpers(now);
        }
        self.unfinished.is_none()
    }

    /// The test is over: what its helper still does is of no use any more, but others' need it.
    pub(super) fn await_helper(&mut self) {
        if let Some(mut unfinished) = self.unfinished.take() {
            unfinished.helper.end();
        }
    }

    /// Waits until what the last save left to helpers is done and committed. All ranks together.
    pub fn finish_save(&mut self) {
        if let Some(unfinished) = &self.unfinished {
            self.tick(Doing::Saving, unfinished.boundary);
            self.look_after_helpers(true);
        }
    }
}
