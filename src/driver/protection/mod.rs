//! Benchmark under protection: finds this run's memory and finished tests, and solves tests.
//!
//! For each test, `benchmark` takes an existing result from a [`ProtectionSession`], the protection session. If there is none,
//! the session determines the position of each rank, and solves the test. `checkpoint` handles all details of checkpoints and
//! headers.
//!
//! `prerequisites` checks a rank's prerequisites. `inventory` finds, once in each launch, what earlier starts have left, and
//! `record` decides which results count. `solve` runs one test on a rank of the grid, and `dedicated` runs it on a dedicated
//! checksum rank. During a test, `checkpoint_observer` saves, obeys `signals` and keeps the `account`. `words` has the
//! messages.

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

/// Protection session: the state of one protected run on one rank.
pub struct ProtectionSession<'a> {
    comm: &'a Comm,
    settings: &'a settings::Saves,
    prerequisites: &'a Prerequisites,
    /// Id of the run in memory. The id changes when a test resumes from storage.
    run: Cell<u128>,
    /// Id for a new run, greater than every run id that was found. The same id identifies this start on storage.
    fresh_run: u128,
    /// True if this start found memory or files of this run.
    continued: bool,
    /// True if memory and files of earlier runs still exist, and must be removed before the first test.
    unwanted: bool,
    /// Level two; `None` if the settings have none, or if storage cannot be used.
    level2: Option<Level2>,
    /// Reason why this start runs without level two, although the settings request it; otherwise `None`.
    storage_gone: Option<String>,
    /// True once the warning was printed that nothing is written to storage.
    warned: Cell<bool>,
    /// Arithmetic on which the last bits of results depend.
    rounding: &'a str,
    /// Digests of the run's tests.
    tests: &'a [u64],
    /// Finished tests of this run, with their results.
    finished: Vec<Finished>,
    /// Numbers of the tests that have ended since `finished` was determined.
    ended: RefCell<Vec<u32>>,
    /// Memory that this launch found on all nodes.
    arrival: Arrival,
    /// First rank on this rank's node, which identifies the node.
    leader: usize,
    started_unix_s: f64,
}

impl ProtectionSession<'_> {
    /// Returns true if the run keeps its checkpoints only on storage.
    fn on_disk_alone(&self) -> bool {
        self.settings.scheme.method == Method::Disk
    }

    /// Returns the outcome of test `number`, or `None` if the test is not finished.
    pub fn finished(&self, number: usize) -> Option<&Outcome> {
        let found = self.finished.iter().find(|test| test.number as usize == number);
        found.map(|test| &test.record.outcome)
    }

    /// Records that test `number` has ended, on this rank or on other ranks.
    pub fn has_ended(&self, number: usize) {
        self.ended.borrow_mut().push(number as u32);
    }

    /// Returns the number of the unfinished test of the last launch, or `None`. The result is the same on every rank.
    pub fn under_way(&self) -> Option<usize> {
        let open = |test: &u32| self.finished(*test as usize).is_none();
        let inventory = self.level2.as_ref().map(|level2| &level2.inventory);
        let stored =
            inventory.and_then(|inventory| inventory.whole.iter().max_by_key(|about| about.key()));
        let stored = stored.map(|about| about.test);
        self.arrival.test.filter(open).or(stored.filter(open)).map(|test| test as usize)
    }

    /// Assigns a position in a test to each rank, so that a rank has its position's memory or file on its node. `candidates` are
    /// the candidate ranks after a loss, and each candidate that has a position keeps it. Returns `None` if there are too few
    /// ranks. Collective call.
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
        // After a loss, a new rank gets its position's data from memory of the group. Files count only if no rank keeps a
        // position.
        let by_files = files.is_some() && nobody_keeps && candidates.len() >= positions;
        if candidates.is_empty() || by_files {
            Some(self.arrival.place(number as u32, positions, files))
        } else {
            self.arrival.place_again(number as u32, positions, candidates)
        }
    }

    /// Returns the layout of a test over all positions, including the positions of dedicated ranks outside of the grid.
    pub fn layout(&self, params: &TestParams) -> Layout {
        Layout::of(params).kept_by(&self.settings.scheme, self.settings.group)
    }
}
