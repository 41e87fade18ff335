//! Terms of a test's start: the arguments and results of [`Checkpointer::start`], as plain values.
//!
//! `driver` fills in the arguments. `identity` determines which arguments must agree with the headers in memory.

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

/// Identity of a test. Memory of a test with another identity is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Number of the test in the input file, from 0.
    pub index: u32,
    pub layout: Layout,
    pub rng: Rng,
    pub seed: u64,
    /// Digest of all other settings that must be the same to resume (algorithm, thresholds).
    pub params_digest: u64,
}

/// Settings of one rank for the protection of a test.
#[derive(Clone, Debug)]
pub struct Config {
    pub memory_store: MemoryStore,
    pub scheme: Scheme,
    /// Requested group size; None for the default.
    pub group: Option<usize>,
    pub encode: Encoding,
    pub interval: Interval,
    /// True if the start fails when there is no checkpoint to resume from.
    pub must_resume: bool,
    /// True if the run has resumed from a checkpoint in any of its tests, or has results of finished tests.
    pub goes_on: bool,
    /// Maximum bytes of the small state, the solver's data that a save keeps besides the matrix; the same on every rank.
    pub state_bytes: usize,
    /// Leading dimension: number of doubles from one row of the local matrix to the next.
    pub ld: usize,
    /// Id of the run in progress that `arrival` found on the nodes, or of a new run ([`new_run`]). All ranks use rank 0's value.
    pub run: u128,
    /// Failure domain of this rank.
    pub domain: String,
    /// Name of this rank's node, for messages only.
    pub node: String,
    /// First rank on this rank's node. The number distinguishes nodes with the same name.
    pub leader: usize,
    /// Level two (checkpoints on storage). None without `--level2`.
    pub storage: Option<Storage>,
    /// Device whose memory contains the matrix. None if the matrix is in the processor's memory.
    pub device: Option<Arc<dyn Device>>,
}

impl Config {
    /// Returns the buffers of position `me` for a test, in a group with these `members`.
    pub(super) fn buffers(&self, test: &Test, members: &[usize], me: usize) -> Buffers {
        Buffers::new(&test.layout, members, me, self.ld, &self.scheme, self.state_bytes)
    }
}

/// Arguments that all functions of a start need: the test, and the settings of its protection.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub config: &'a Config,
    pub test: &'a Test,
}

/// Returns an id for a new run. Its upper half is the time, so that the id of a later run is greater.
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
    /// Small state: the solver's data of this rank besides the matrix, as the checkpoint contains it.
    pub state: Vec<u8>,
    /// Positions whose data was rebuilt from parity.
    pub rebuilt: Vec<usize>,
    /// Position and error text of each memory or file that exists but could not be used.
    pub damaged: Vec<(usize, String)>,
    /// If the checkpoint came from storage, the number of earlier starts that resumed from it. Otherwise None.
    pub fetched: Option<u32>,
}

/// Protected test, ready to compute.
pub struct Started<W, G> {
    pub checkpointer: Checkpointer<W, G>,
    /// Local matrix: zeros if the matrix must be generated, else the restored matrix. Empty if a device has the matrix.
    pub a: Region,
    pub on_device: Option<Buffer>,
    pub origin: Origin,
    /// Failure domains that have more members of one group than the group can lose, each with the number of these members. This
    /// happens if ranks have replaced a lost node on a node with other members of their group, in this test or an earlier one.
    pub crowded: Vec<(String, usize)>,
}

/// Reason why a test cannot begin; the same on every rank.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Scheme(#[from] SchemeError),
    #[error(transparent)]
    Groups(#[from] GroupError),
    /// Shared memory cannot be allocated. Contains the errors of all ranks that failed.
    #[error("shared memory cannot be allocated: {0}")]
    Memory(String),
    /// Another process uses the memory. Contains the errors of all ranks that found this.
    #[error("another process uses this run's memory: {0}")]
    Taken(String),
    /// The checkpoints cannot recover the losses. The memory is kept.
    #[error("{refusal}.\n{survey}The memory is kept; `skt-hpl clean --job {job}` removes it.")]
    Refused { refusal: Refusal, survey: String, job: String },
    /// Memory has no usable checkpoint, and the checkpoints on storage cannot be trusted.
    #[error(
        "this run can be resumed neither from memory nor from {dir}:\n{what}Nothing is removed; to begin from scratch, use \
         `skt-hpl clean --job {job} --level2 {dir}`{} or --restart never", if *apart { " on each node" } else { "" }
    )]
    Storage { dir: String, apart: bool, job: String, what: String },
    /// Memory of this job belongs to another run, or to a test with other settings.
    #[error(
        "job {job:?} has memory of another run: {what}. Finish that run, give this one another --job \
         name, or remove the memory with `skt-hpl clean --job {job}` or --restart never"
    )]
    Other { job: String, what: String },
    #[error("--restart require: job {job:?} has no checkpoint from which this run can resume")]
    Nothing { job: String },
    /// After the recovery, some position does not have the checkpoint, or rebuilt data does not match its digest.
    #[error("the recovery of checkpoint {checkpoint} is incomplete: {why}")]
    NotWhole { checkpoint: u64, why: String },
}
