//! Saves whose parity is computed by helpers, so that ranks stop only for the copy (`--encode helper`).
//!
//! This works with method double. A save copies the matrix into the older of two copies; then the ranks continue to compute. Each
//! rank has a helper thread. The helpers of a group encode the copies into the older parity and compute the digests. Until the
//! new checkpoint is committed, the last committed checkpoint stays unchanged in the other copy, with its parity, and with its
//! digests in part S of the position memory. After a loss at any moment, recovery uses the last checkpoint, or the new one if all
//! remaining positions contain it completely. Headers have the same contents as in any save with two copies, so recovery is the
//! same.
//!
//! All memory of the new checkpoint is lent to the helper, so that no other thread can use it. At a boundary where rank 0's
//! helper is done, all ranks check their helpers. Each rank whose helper is done publishes `sealed`. A reduction determines
//! whether all helpers are done, and replaces the barrier of other saves. If all are done, all ranks commit the checkpoint. *If
//! the next save is due earlier, it is postponed*, from boundary to boundary. A save for a stop waits for the helpers instead. At
//! the end of a test, ranks wait for their helpers, because helpers of other ranks need them.
//!
//! Helpers use the communicator of their group; the ranks do not use it meanwhile. So MPI must be started such that any thread
//! may call it (MPI_THREAD_MULTIPLE). Runs that do not need this start MPI without it. A waiting helper polls and sleeps, so that
//! it takes no core from the ranks.

use super::level2::Level2;
use super::protocol::Method;
use super::save::{Checkpointer, SavePlan};
use super::saved::Coding;
use super::unfinished::{Encoded, Helper, Unfinished};
use super::world::World;
use crate::base::faults::{Point, Sabotage, hit, sabotaged};
use crate::base::threads::PanelThreads;
use crate::parity::GroupComm;
use crate::shm::header::{Doing, Mark};

impl<W: World, G: GroupComm> Checkpointer<W, G> {
    /// Starts a helper that computes parity and digests of the checkpoint of `plan`. The copy of the matrix must be complete.
    pub(super) fn leave_to_helper(&mut self, plan: &SavePlan) {
        let position = self.position();
        let &SavePlan { next: checkpoint, boundary, window, since, .. } = plan;
        hit(Point::EncodeLeft, position);
        let stores = self.level2.as_mut().is_some_and(Level2::saved);
        let group = self
            .group
            .for_helper()
            .expect("helpers encode only if MPI lets several threads call it");
        let mut saved = self.holding.lend();
        let (coder, how) = (self.coder, self.encode);
        let helper = Helper::start(move |flow| {
            let coding = Coding { coder, how, window, since };
            // One thread, because the other threads compute.
            let panel_threads = &mut PanelThreads::alone();
            saved.encode(&*group, coding, checkpoint.number, None, panel_threads, || {
                // This helper ignores cancellation, because the helpers of other ranks need its rows.
                let _ = flow.step();
                hit(Point::EncodeBatch, position);
            });
            let root = saved.seal(checkpoint.number);
            hit(Point::EncodeEnd, position);
            Encoded { saved, root }
        });
        self.unfinished = Some(Unfinished { checkpoint, boundary, stores, helper });
    }

    /// Checks the helpers that encode. All ranks call this at a boundary at which rank 0 has requested a check. A rank whose
    /// helper is done publishes the checkpoint as sealed. With `wait`, each rank first waits for its helper. If all ranks have
    /// sealed the checkpoint, all ranks commit it.
    pub(super) fn look_after_helpers(&mut self, wait: bool) {
        let position = self.position();
        let Some(unfinished) = &mut self.unfinished else { return };
        let (checkpoint, boundary) = (unfinished.checkpoint, unfinished.boundary);
        if (wait || unfinished.helper.is_over())
            && let Some(Encoded { saved, root }) = unfinished.helper.end()
        {
            self.holding.take_back(saved);
            hit(Point::EncodeFound, position);
            self.header.claim = self.header.claim.sealed(Method::Double, checkpoint);
            self.header.seal = Mark { boundary: boundary as u64, root };
            self.publish();
            hit(Point::Sealed, position);
        }
        let mine = self.header.claim.seal == Some(checkpoint);
        let all = self.world.all(mine);
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

    /// Waits for the helper at the end of a test. This rank no longer needs the result, but the helpers of other ranks need this
    /// helper.
    pub(super) fn await_helper(&mut self) {
        if let Some(mut unfinished) = self.unfinished.take() {
            unfinished.helper.end();
        }
    }

    /// Waits until the helpers have finished the last save, and commits its checkpoint. Collective call.
    pub fn finish_save(&mut self) {
        if let Some(unfinished) = &self.unfinished {
            self.tick(Doing::Saving, unfinished.boundary);
            self.look_after_helpers(true);
        }
    }
}
