//! Benchmark under protection: finds this run's memory and finished tests, and solves tests.
//!
//! For each test, `benchmark` asks a [`ProtectionSession`], the protection session, for an existing result and for the position
//! of each rank, and lets it solve the test. `checkpoint` handles all details of checkpoints and headers.
//!
//! `prerequisites` checks a rank's prerequisites. `inventory` finds, once a launch, what is left of earlier starts, and `record`
//! decides which results count. `solve` runs one test on a rank of the grid, `dedicated` on a dedicated checksum rank. During a
//! test, `checkpoint_observer` saves, obeys `signals` and keeps the `account`. `words` has the messages.

mod account;
mod checkpoint_observer;
mod dedicated;
mod inventory;
mod prerequisites;
mod record;
mod signals;
mod solve;
mod words;

use std::cell::{Cell, RefCell};

use super::level2::Level2;
use crate::base::outcome::Outcome;
use crate::base::params::TestParams;
use crate::checkpoint::placement::Lying;
use crate::checkpoint::plan::Layout;
use crate::checkpoint::protocol::Method;
use crate::checkpoint::{Arrival, RankCandidate};
use crate::comm::Comm;
use crate::config::settings;
use record::Finished;

pub use account::STATE_BYTES;
pub use prerequisites::{Prerequisites, read_domains};
pub use record::digest;
pub use signals::obey as obey_signals;

/// Protection session of one run on one rank.
pub struct ProtectionSession<'a> {
    comm: &'a Comm,
    settings: &'a settings::Saves,
    prerequisites: &'a Prerequisites,
    /// Id of the run in memory. It changes when a test resumes from storage.
    run: Cell<u128>,
    /// Run id that no run has had.
    fresh_run: u128,
    /// True if something of this run was found at the start.
    continued: bool,
    /// True if memory and files of earlier runs still exist and must be removed.
    unwanted: bool,
    /// Level two, if there is one.
    level2: Option<Level2>,
    /// Reason why this start runs without level two, although it was requested.
    storage_gone: Option<String>,
    /// True once the warning was printed that nothing is written to storage.
    warned: Cell<bool>,
    /// Arithmetic on which the last bits of results depend.
    rounding: &'a str,
    /// Digests of the run's tests.
    tests: &'a [u64],
    /// Finished tests.
    finished: Vec<Finished>,
    /// Tests that have ended since `finished` was determined.
    ended: RefCell<Vec<u32>>,
    /// Memory that the launch found on its nodes.
    arrival: Arrival,
    /// First rank on its node.
    leader: usize,
    started_unix_s: f64,
}

impl ProtectionSession<'_> {
    /// Returns true if checkpoints are kept on storage only.
    fn on_disk_alone(&self) -> bool {
        self.settings.scheme.method == Method::Disk
    }

    /// Result of test `number`, if it is finished.
    pub fn finished(&self, number: usize) -> Option<&Outcome> {
        let found = self.finished.iter().find(|test| test.number as usize == number);
        found.map(|test| &test.record.outcome)
    }

    /// Records that a test has ended, on this rank or on others.
    pub fn has_ended(&self, number: usize) {
        self.ended.borrow_mut().push(number as u32);
    }

    /// Unfinished test of the last launch, if there is one. The same on every rank.
    pub fn under_way(&self) -> Option<usize> {
        let open = |test: &u32| self.finished(*test as usize).is_none();
        let inventory = self.level2.as_ref().map(|level2| &level2.inventory);
        let stored =
            inventory.and_then(|inventory| inventory.whole.iter().max_by_key(|about| about.key()));
        let stored = stored.map(|about| about.test);
        self.arrival.test.filter(open).or(stored.filter(open)).map(|test| test as usize)
    }

    /// Assigns a position in a test to each rank: where the memory of its node is, or its file. `candidates` are the
    /// candidate ranks after a loss; each keeps its own position. None if there are too few ranks. Collective call.
    pub fn place(
        &self,
        number: usize,
        params: &TestParams,
        candidates: &[RankCandidate],
    ) -> Option<Vec<Option<usize>>> {
        let positions = self.layout(params).positions();
        let level2 = self.level2.as_ref().inspect(|level2| level2.comes_to(number as u32));
        let files = level2.and_then(|level2| level2.files_of(number as u32, self.tests[number]));
        let files = files.as_ref().map(|(nodes, found)| Lying { nodes, found });
        let nobody_keeps = candidates.iter().all(|candidate| candidate.kept.is_none());
        // After a loss, a new rank finds its position's data in memory of the group. Files decide only if all ranks start.
        let by_files = files.is_some() && nobody_keeps && candidates.len() >= positions;
        if candidates.is_empty() || by_files {
            Some(self.arrival.place(number as u32, positions, files))
        } else {
            self.arrival.place_again(number as u32, positions, candidates)
        }
    }

    /// Distribution of a test over all positions, including those outside of the grid.
    pub fn layout(&self, params: &TestParams) -> Layout {
        Layout::of(params).kept_by(&self.settings.scheme, self.settings.group)
    }
}
