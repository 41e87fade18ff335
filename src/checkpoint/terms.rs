//! On what terms a test begins, and what it begins with: what [`Checkpointer::start`] is given and gives, as plain values.
//!
//! `driver` fills them in; `identity` says which of them memory must agree with.

use std::time::Duration;

use thiserror::Error;

use super::groups::GroupError;
use super::level2::Storage;
use super::plan::{Buffers, Encoding, Layout, Scheme, SchemeError};
use super::protocol::Refusal;
use super::save::Checkpointer;
use super::when::Interval;
use crate::base::clock;
use crate::base::params::Rng;
use crate::shm::{Depot, Region};

/// What to do with memory an earlier process left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Continue from it if it is there.
    Auto,
    /// Remove it and begin anew.
    Never,
    /// Continue from it, or fail.
    Require,
}

/// Which test this is: memory of any other is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Its number in the input file.
    pub index: u32,
    pub layout: Layout,
    pub rng: Rng,
    pub seed: u64,
    /// Digest of every other choice that must be the same to continue (algorithm, thresholds).
    pub params_digest: u64,
}

/// How the test is to be protected.
#[derive(Clone, Debug)]
pub struct Config {
    pub depot: Depot,
    pub scheme: Scheme,
    /// Wanted group size; None for the default.
    pub group: Option<usize>,
    pub encode: Encoding,
    pub interval: Interval,
    pub restart: Restart,
    /// The run has gone on from what was saved, in whichever of its tests, or has results of finished ones.
    pub goes_on: bool,
    /// Room for the small state of a save, the same on every rank.
    pub state_bytes: usize,
    /// Doubles from one local row to the next on this rank.
    pub ld: usize,
    /// The run in progress, as `arrival` found it on the nodes, or a new one's number ([`new_run`]); rank 0's counts.
    pub run: u128,
    /// This rank's failure domain and node, the latter for messages.
    pub domain: String,
    pub node: String,
    /// The first rank on it: several may have one name.
    pub leader: usize,
    /// The second level, if there is one.
    pub storage: Option<Storage>,
}

impl Config {
    /// What position `me` of these members keeps of a test.
    pub(super) fn buffers(&self, test: &Test, members: &[usize], me: usize) -> Buffers {
        Buffers::new(&test.layout, members, me, self.ld, &self.scheme, self.state_bytes)
    }
}

/// The moment, by this node's clock.
pub(super) fn now() -> Duration {
    clock::since_1970()
}

/// A number for a new run: the moment in its upper half, so that later runs compare greater.
pub fn new_run() -> u128 {
    (now().as_nanos() as u64 as u128) << 64 | std::process::id() as u128
}

/// What a test begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The matrix has to be generated.
    Fresh,
    Restored(Restored),
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    pub boundary: usize,
    pub epoch: u64,
    /// The small state that was saved with it; this rank's own.
    pub state: Vec<u8>,
    /// Positions that were rebuilt.
    pub rebuilt: Vec<usize>,
    /// What was wrong with memory that was there but could not be used, by position.
    pub damaged: Vec<(usize, String)>,
    /// Where it came from storage: how many starts had gone on from the same epoch there before this one.
    pub fetched: Option<u32>,
}

/// A protected test, ready to compute.
pub struct Started<W, G> {
    pub checkpointer: Checkpointer<W, G>,
    /// The local matrix: zeros if fresh, the saved one if restored.
    pub a: Region,
    pub origin: Origin,
    /// Failure domains whose loss would be more than a group survives, and how many members of one they hold: ranks took a lost
    /// node's place beside others of their group, in this test or one before it.
    pub crowded: Vec<(String, usize)>,
    pub seconds: f64,
}

/// Why a test cannot begin. The same on every rank; memory is kept.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Scheme(#[from] SchemeError),
    #[error(transparent)]
    Groups(#[from] GroupError),
    /// Shared memory cannot be allocated: what each rank that failed says.
    #[error("shared memory cannot be allocated: {0}")]
    Memory(String),
    /// Another process works with it: what each rank that found so says.
    #[error("this run's memory is taken: {0}")]
    Taken(String),
    /// More is lost than the checkpoints can make good.
    #[error("{refusal}.\n{survey}The memory is kept; `skt-hpl clean --job {job}` removes it.")]
    Refused { refusal: Refusal, survey: String, job: String },
    /// Memory cannot give the run back, and what lies on storage cannot be believed.
    #[error(
        "memory cannot give this run back, nor can {dir}:\n{what}Nothing is removed; to begin anew, \
         `skt-hpl clean --job {job} --level2 {dir}`{} or --restart never", if *apart { " on each node" } else { "" }
    )]
    Storage { dir: String, apart: bool, job: String, what: String },
    /// There is memory of this job, but not of this test.
    #[error(
        "job {job:?} has memory of another run: {what}. Finish that run, give this one another --job \
         name, or remove the memory with `skt-hpl clean --job {job}` or --restart never"
    )]
    Other { job: String, what: String },
    #[error("--restart require: no memory of job {job:?} that this run could continue from")]
    Nothing { job: String },
    /// Something changed while it was being recovered.
    #[error("the recovery of epoch {epoch} did not come out whole: {why}")]
    NotWhole { epoch: u64, why: String },
}
