//! Test on a dedicated checksum rank (`--parity-layout dedicated`). The rank takes part in the saves of the computing ranks,
//! and sleeps between saves.
//!
//! For the checkpoint, the rank has a position like any rank, with an empty matrix and no state. The rank has no position in
//! the grid. On a computing rank the solver calls the observer at each boundary. On a dedicated rank a loop counts the
//! boundaries.

use super::ProtectionSession;
use super::account::Account;
use super::checkpoint_observer::{CANNOT, CheckpointObserver, WELL, Whose};
use crate::base::clock::Instant;
use crate::base::exit::Refusal;
use crate::base::params::TestParams;
use crate::base::threads::Pool;
use crate::checkpoint::mpi::Positions;
use crate::checkpoint::{Origin, Started, World};
use crate::comm::set_phase;
use crate::lu::{Event, Halt, Milestone, Observer, unix_seconds};
use crate::shm::header::Doing;

/// Position whose rank sends the result of the test to the other ranks.
pub(super) const TELLER: usize = 0;

impl ProtectionSession<'_> {
    /// Makes a communicator of all ranks with a position in a test with dedicated checksum ranks. Returns `None` without such
    /// ranks, or on a rank without a position. Collective call of all ranks of the job.
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

    /// Takes part in test `number` on a dedicated rank, which holds parity, until the test ends. The error is the refusal that
    /// ends the run.
    pub fn keep(
        &self,
        params: &TestParams,
        number: usize,
        everybody: Positions,
        pool: &mut Pool,
        watcher: &mut impl Observer,
    ) -> Result<(), Refusal> {
        let (position, blocks) = (everybody.rank(), params.blocks());
        // Recovery in place is not possible with dedicated ranks.
        let storage = self.storage(number, false);
        // A stays mapped as long as its name is checked. On this rank, A has only one page.
        let Started { mut checkpointer, a: _a, origin, .. } =
            self.take(params, number, everybody, None, storage, pool)?;
        set_phase("keeping checksums");
        if matches!(&origin, Origin::Restored(restored) if restored.fetched.is_some()) {
            self.go_on_as_another_run(&mut checkpointer);
        }
        self.hand_results_on(&mut checkpointer);
        let mut saved = None;
        let whose = Whose {
            position,
            host: &self.prerequisites.host,
            len: 0,
            blocks,
            others_wait: true,
            has_state: false,
            saved: &mut saved,
            test: number,
        };
        let mut checkpoint_observer =
            CheckpointObserver::new(checkpointer, Account::default(), watcher, whose);
        if checkpoint_observer.count_boundaries(origin.boundary(), pool)? == Halt::Stop {
            checkpoint_observer.checkpointer.tick(Doing::Done, blocks);
            return Ok(());
        }
        let mut checkpointer = checkpoint_observer.checkpointer;
        checkpointer.tick(Doing::Done, blocks);
        checkpointer.end_level2();
        // A node may have only dedicated ranks, and must keep the result, too.
        let result = checkpointer.world().tell(&[], TELLER);
        self.end(checkpointer, number as u32, result);
        Ok(())
    }
}

impl<O: Observer> CheckpointObserver<'_, O> {
    /// Records a milestone that the computing ranks reach at the same time.
    fn reach(&mut self, milestone: Milestone) {
        self.note(milestone);
        self.watcher.observe(Event::Reached(milestone));
    }

    /// Counts the boundaries of a test in step with the computing ranks, from boundary `start` to the end of the test or to a
    /// stop. Saves at the boundaries at which the computing ranks save. The error is the refusal of a test that could not begin.
    fn count_boundaries(&mut self, start: usize, pool: &mut Pool) -> Result<Halt, Refusal> {
        let blocks = self.whose.blocks;
        self.receive_word()?;
        let began = Instant::now();
        self.watcher.observe(Event::Began { unix_s: unix_seconds() });
        for k in start..blocks {
            if k > start
                && self.drains(k)
                && self.boundary(k, std::ptr::NonNull::dangling().as_ptr(), pool) == Halt::Stop
            {
                return Ok(Halt::Stop);
            }
            self.observe(Event::Iteration { k, blocks, elapsed: began.elapsed().as_secs_f64() });
        }
        self.reach(Milestone::Factored);
        // Verification is not part of the test's time, so power is measured only up to this point.
        self.receive_word()?;
        self.reach(Milestone::Solved);
        self.receive_word()?;
        Ok(Halt::GoOn)
    }

    /// Receives a message of the computing ranks about the test. Returns an error if the test could not begin.
    fn receive_word(&self) -> Result<(), Refusal> {
        match self.checkpointer.world().first_says(WELL) {
            CANNOT => Err(Refusal::environment("the computing ranks could not begin the test")),
            _ => Ok(()),
        }
    }
}
