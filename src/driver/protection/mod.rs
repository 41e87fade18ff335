//! The benchmark under protection: which memory is whose, what is finished already, and how a test is solved.
//!
//! `benchmark` asks a [`Guardian`], for each test, whether there is a result already, which position each rank
//! takes, and to solve. Everything about epochs and headers is `checkpoint`'s affair.
//!
//! A rank finds its `ground` by itself; `stock` is what all find once a launch, `record` what of it counts; `solve` is one test,
//! on a rank of the grid, and `dedicated` on one that keeps checksums alone. While it goes on, `guard` saves, obeys `signals` and
//! keeps the `account`. `words` has what is said.

mod account;
mod dedicated;
mod ground;
mod guard;
mod record;
mod signals;
mod solve;
mod stock;
mod words;

use std::cell::{Cell, RefCell};

use super::level2::Level2;
use crate::base::outcome::Outcome;
use crate::base::params::TestParams;
use crate::checkpoint::placement::Lying;
use crate::checkpoint::plan::Layout;
use crate::checkpoint::protocol::Method;
use crate::checkpoint::{Arrival, Player};
use crate::comm::Comm;
use crate::config::settings;
use crate::shm::Depot;
use record::Finished;

pub use account::STATE_BYTES;
pub use ground::{Ground, read_domains};
pub use record::digest;
pub use signals::obey as obey_signals;

/// One run's protection on one rank.
pub struct Guardian<'a> {
    comm: &'a Comm,
    settings: &'a settings::Protection,
    depot: Depot,
    /// The run in memory; another one once a test has gone on from storage.
    run: Cell<u128>,
    /// A number that no run has had.
    fresh_run: u128,
    /// Whether there was something of this run at the start.
    continued: bool,
    /// Whether what earlier runs have left is still there, and to be removed.
    unwanted: bool,
    /// The second level, if there is one.
    level2: Option<Level2<'a>>,
    /// Why this start does without it, although there should be one.
    storage_gone: Option<String>,
    /// Whether it was said that nothing is put on storage.
    warned: Cell<bool>,
    /// What the last bits of results depend on.
    rounding: String,
    /// Finished tests.
    finished: Vec<Finished>,
    /// Those that have ended since this was looked at.
    ended: RefCell<Vec<u32>>,
    /// What the launch found on its nodes.
    arrival: Arrival,
    host: String,
    /// The first rank on its node.
    leader: usize,
    domain: String,
    started_unix_s: f64,
}

impl Guardian<'_> {
    /// Whether memory keeps no checkpoint.
    fn on_disk_alone(&self) -> bool {
        self.settings.scheme.method == Method::Disk
    }

    /// The result of test `number`, if it is finished.
    pub fn finished(&self, number: usize) -> Option<&Outcome> {
        let found = self.finished.iter().find(|test| test.number as usize == number);
        found.map(|test| &test.record.outcome)
    }

    /// A test is over, on this rank or on others.
    pub fn has_ended(&self, number: usize) {
        self.ended.borrow_mut().push(number as u32);
    }

    /// The test that was under way when the last launch ended, if it has no result. The same on every rank.
    pub fn under_way(&self) -> Option<usize> {
        let open = |test: &u32| self.finished(*test as usize).is_none();
        let stock = self.level2.as_ref().map(|level2| &level2.stock);
        let stored = stock.and_then(|stock| stock.whole.iter().max_by_key(|about| about.key()));
        let stored = stored.map(|about| about.test);
        self.arrival.test.filter(open).or(stored.filter(open)).map(|test| test as usize)
    }

    /// The position of each rank in test `number`, to which all come together: where its node's memory is, or its file. Of
    /// `players`, who may lose some of their number, each keeps its own. None if they are too few.
    pub fn place(
        &self,
        (number, digest): (usize, u64),
        params: &TestParams,
        players: &[Player],
    ) -> Option<Vec<Option<usize>>> {
        let positions = self.layout(params).positions();
        let level2 = self.level2.as_ref().inspect(|level2| level2.comes_to(number as u32));
        let files = level2.and_then(|level2| level2.files_of(number as u32, digest));
        let files = files.as_ref().map(|(nodes, found)| Lying { nodes, found });
        let nobody_keeps = players.iter().all(|player| player.kept.is_none());
        // Who takes a lost one's position finds it in memory; a file draws where all begin.
        let by_files = files.is_some() && nobody_keeps && players.len() >= positions;
        match players.is_empty() || by_files {
            true => Some(self.arrival.place(number as u32, positions, files)),
            false => self.arrival.place_again(number as u32, positions, players),
        }
    }

    /// How a test lies over all positions, those beside the grid included.
    pub fn layout(&self, params: &TestParams) -> Layout {
        Layout::of(params).kept_by(&self.settings.scheme, self.settings.group)
    }
}
