//! Terms of a test's start: the arguments and results of [`Checkpointer::start`], as plain values.
//!
//! `driver` fills them in; `identity` determines which of them memory must match.

use std::sync::Arc;

use thiserror::Error;

use super::groups::GroupError;
use super::level2::Storage;
use super::plan::{Buffers, Encoding, Layout, Scheme, SchemeError};
use super::protocol::Refusal;
use super::save::Checkpointer;
use super::when::Interval;
use crate::base::clock;
use crate::base::params::Rng;
use crate::device::{Buffer, Device};
use crate::shm::{MemoryStore, Region};

/// Identity of a test: memory of any other test is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Number in the input file.
    pub index: u32,
    pub layout: Layout,
    pub rng: Rng,
    pub seed: u64,
    /// Digest of all other settings that must be the same to resume (algorithm, thresholds).
    pub params_digest: u64,
}

/// Protection of a test.
#[derive(Clone, Debug)]
pub struct Config {
    pub memory_store: MemoryStore,
    pub scheme: Scheme,
    /// Requested group size; None for the default.
    pub group: Option<usize>,
    pub encode: Encoding,
    pub interval: Interval,
    /// True if the start fails without a checkpoint to resume from.
    pub must_resume: bool,
    /// True if the run has resumed from a checkpoint, in any of its tests, or has results of finished ones.
    pub goes_on: bool,
    /// Room for the small state of a save, the same on every rank.
    pub state_bytes: usize,
    /// Doubles from one local row to the next on this rank.
    pub ld: usize,
    /// Run in progress, as `arrival` found it on the nodes, or a new run's id ([`new_run`]); rank 0's counts.
    pub run: u128,
    /// Failure domain and node of this rank; the node is for messages.
    pub domain: String,
    pub node: String,
    /// First rank on the node: several nodes may have one name.
    pub leader: usize,
    /// Level two, if there is one.
    pub storage: Option<Storage>,
    /// Device whose memory has the matrix, if there is one.
    pub device: Option<Arc<dyn Device>>,
}

impl Config {
    /// Buffers of position `me`, in a group of these members, for a test.
    pub(super) fn buffers(&self, test: &Test, members: &[usize], me: usize) -> Buffers {
        Buffers::new(&test.layout, members, me, self.ld, &self.scheme, self.state_bytes)
    }
}

/// Test and its protection, as all functions of a start need them.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub config: &'a Config,
    pub test: &'a Test,
}

/// Returns an id for a new run: the time is its upper half, so that later runs compare greater.
pub fn new_run() -> u128 {
    (clock::since_1970().as_nanos() as u64 as u128) << 64 | std::process::id() as u128
}

/// Origin of a test's matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The matrix must be generated.
    Fresh,
    Restored(Restored),
}

impl Origin {
    /// Boundary at which the computation begins.
    pub fn boundary(&self) -> usize {
        match self {
            Origin::Fresh => 0,
            Origin::Restored(restored) => restored.boundary,
        }
    }
}

/// Restored checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    pub boundary: usize,
    pub checkpoint: u64,
    /// Small state of this rank that was saved with it.
    pub state: Vec<u8>,
    /// Positions that were rebuilt.
    pub rebuilt: Vec<usize>,
    /// Problems of memory that exists but could not be used, by position.
    pub damaged: Vec<(usize, String)>,
    /// Set if it came from storage: the number of earlier starts that resumed from the same checkpoint.
    pub fetched: Option<u32>,
}

/// Protected test, ready to compute.
pub struct Started<W, G> {
    pub checkpointer: Checkpointer<W, G>,
    /// Local matrix: zeros if fresh, the saved one if restored. Empty if it is in device memory.
    pub a: Region,
    pub on_device: Option<Buffer>,
    pub origin: Origin,
    /// Failure domains whose loss would exceed what a group survives, with their number of members of one group. Ranks have
    /// replaced a lost node on a node with other members of their group, in this test or an earlier one.
    pub crowded: Vec<(String, usize)>,
    pub seconds: f64,
}

/// Reason why a test cannot begin. The same on every rank; memory is kept.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Scheme(#[from] SchemeError),
    #[error(transparent)]
    Groups(#[from] GroupError),
    /// Shared memory cannot be allocated: the errors of all ranks that failed.
    #[error("shared memory cannot be allocated: {0}")]
    Memory(String),
    /// Another process works with the memory: the errors of all ranks that found so.
    #[error("this run's memory is taken: {0}")]
    Taken(String),
    /// More is lost than the checkpoints can recover.
    #[error("{refusal}.\n{survey}The memory is kept; `skt-hpl clean --job {job}` removes it.")]
    Refused { refusal: Refusal, survey: String, job: String },
    /// Memory has no usable checkpoint, and those on storage cannot be trusted.
    #[error(
        "memory cannot give this run back, nor can {dir}:\n{what}Nothing is removed; to begin from scratch, \
         `skt-hpl clean --job {job} --level2 {dir}`{} or --restart never", if *apart { " on each node" } else { "" }
    )]
    Storage { dir: String, apart: bool, job: String, what: String },
    /// There is memory of this job, but of another test.
    #[error(
        "job {job:?} has memory of another run: {what}. Finish that run, give this one another --job \
         name, or remove the memory with `skt-hpl clean --job {job}` or --restart never"
    )]
    Other { job: String, what: String },
    #[error("--restart require: no memory of job {job:?} that this run could continue from")]
    Nothing { job: String },
    /// Data changed during the recovery.
    #[error("the recovery of checkpoint {checkpoint} is not whole: {why}")]
    NotWhole { checkpoint: u64, why: String },
}
