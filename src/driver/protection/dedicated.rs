//! Test on a dedicated checksum rank (`--layout dedicated`): it takes part in the saves of the computing ranks, and sleeps in
//! between.
//!
//! For the checkpoint, it is a position like any other, with an empty matrix and no state. It has no position in the grid. On
//! other ranks the solver calls the observer at each boundary; here a loop counts the boundaries.

use super::Guardian;
use super::account::Account;
use super::guard::{Guard, Whose};
use crate::base::clock::Instant;
use crate::base::exit::Exit;
use crate::base::params::TestParams;
use crate::base::threads::Pool;
use crate::checkpoint::mpi::Positions;
use crate::checkpoint::{Origin, Started, World};
use crate::comm::set_phase;
use crate::driver::agreement::Ended;
use crate::lu::{Halt, Milestone, Observer, unix_seconds};
use crate::shm::header::Doing;

/// Word of the computing ranks to the others before the first iteration, with the solution and at the end: all is well.
pub(super) const WELL: u64 = 0;
/// Word of the computing ranks: the test could not begin.
pub(super) const CANNOT: u64 = 1;

/// Position that sends the result.
pub(super) const TELLER: usize = 0;

impl Guardian<'_> {
    /// Makes a communicator of all ranks with a position in a test with dedicated checksum ranks. None without such ranks, or on
    /// a rank without a position. Collective call of all ranks of the job.
    pub fn with_dedicated(
        &self,
        params: &TestParams,
        position: Option<usize>,
    ) -> Option<Positions> {
        let layout = self.layout(params);
        if layout.dedicated == 0 {
            return None;
        }
        let all = self.comm.split(position.map(|_| 0), position.unwrap_or(0))?;
        Some(Positions::waited_on(all, layout.working()))
    }

    /// Keeps the checksums of a test until it ends.
    pub fn keep(
        &self,
        params: &TestParams,
        test: (usize, u64),
        everybody: Positions,
        pool: &mut Pool,
        watcher: &mut impl Observer,
    ) -> Result<(), Ended> {
        let (position, blocks) = (everybody.rank(), params.blocks());
        let (number, digest) = test;
        // Recovery in place is not possible with dedicated ranks.
        let storage = self.storage(number as u32, digest, false);
        // A stays mapped as long as its name is checked; here the part is only its first page.
        let Started { mut checkpointer, a: _a, origin, .. } =
            self.take(params, test, everybody, 0, storage, pool)?;
        set_phase("keeping checksums");
        let start = match origin {
            Origin::Fresh => 0,
            Origin::Restored(restored) => {
                if restored.fetched.is_some() {
                    self.go_on_as_another_run(&mut checkpointer);
                }
                restored.boundary
            }
        };
        self.hand_results_on(&mut checkpointer);
        let mut saved = None;
        let whose = Whose {
            position,
            host: &self.host,
            len: 0,
            blocks,
            others_wait: true,
            has_state: false,
            saved: &mut saved,
            test: number,
        };
        let mut guard = Guard::new(checkpointer, Account::default(), watcher, whose);
        let could_not = || Ended::new(Exit::Environment, "those that compute could not begin");
        let told = |guard: &Guard<_>| match guard.checkpointer.world().first_says(WELL) {
            CANNOT => Err(could_not()),
            _ => Ok(()),
        };
        told(&guard)?;
        let began = Instant::now();
        guard.watcher.began(unix_seconds());
        for k in start..blocks {
            if k > start
                && guard.drains(k)
                && guard.boundary(k, std::ptr::NonNull::dangling().as_ptr(), pool) == Halt::Stop
            {
                guard.checkpointer.tick(Doing::Done, blocks);
                return Ok(());
            }
            guard.iteration(k, blocks, began.elapsed().as_secs_f64());
        }
        guard.note(Milestone::Factored);
        // Verification is not part of the test's time, so power is measured up to here.
        told(&guard)?;
        guard.note(Milestone::Solved);
        told(&guard)?;
        let mut checkpointer = guard.checkpointer;
        checkpointer.tick(Doing::Done, blocks);
        checkpointer.end_level2();
        // A node may have only such a rank, and keeps the result, too.
        let result = checkpointer.world().tell(&[], TELLER);
        self.end(checkpointer, number as u32, result);
        Ok(())
    }
}
