//! Result of one test, as plain values. The solver computes it, and the report prints it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::base::timeline::Timeline;

/// Reads null as NaN. JSON has neither NaN nor infinity, so both are written as null.
fn nan_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Wall time of the parts of a test, in seconds.
///
/// On one rank the parts do not overlap: each moment of its main thread is counted once. So `rfact`, `bcast`, `update`, `solve`,
/// `save` and `other` add up to `total`. The means of the parts over the ranks also add up to the mean total, but the maxima do
/// not add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Seconds of recursive panel factorisation, including `pfact` and its message exchange.
    pub rfact: f64,
    /// Seconds of `rfact` spent at the end of the recursion, on panels of at most NBMIN columns.
    pub pfact: f64,
    /// Seconds of `pfact` spent finding and exchanging the pivot row.
    pub mxswp: f64,
    /// Seconds spent waiting for, or forwarding, broadcasts of panels.
    pub bcast: f64,
    /// Seconds of the trailing update: row exchange, triangular solve and multiplication together.
    pub update: f64,
    /// Seconds of `update` spent exchanging rows.
    pub laswp: f64,
    /// Seconds of `laswp` spent waiting for rows of other process rows, without other work.
    #[serde(default)]
    pub laswp_wait: f64,
    /// Seconds of `update` spent in the triangular solve.
    pub trsm: f64,
    /// Seconds of `update` spent multiplying.
    pub gemm: f64,
    /// Seconds of the back substitution.
    pub solve: f64,
    /// Seconds spent saving checkpoints.
    pub save: f64,
    /// Seconds of `total` that belong to no other part.
    pub other: f64,
    /// Seconds of factorisation and back substitution together: the time that the benchmark counts.
    pub total: f64,
}

/// Returns a copy of `figures`, a struct of numbers such as [`Times`], after `combine` has changed its numbers. `combine`
/// receives all numbers, in the same order on every rank.
pub fn combined<F, N>(figures: F, combine: impl FnOnce(&mut [N])) -> F
where
    F: Serialize + DeserializeOwned,
    N: DeserializeOwned + Into<serde_json::Value>,
{
    // The figures go through the serialised form, so that none can be forgotten here.
    let mut fields = serde_json::to_value(figures).expect("figures serialise");
    let object = fields.as_object_mut().expect("a struct is an object");
    let figure = |value: &serde_json::Value| serde_json::from_value(value.clone());
    let mut figures: Vec<N> =
        object.values().map(|value| figure(value).expect("all are of one kind")).collect();
    combine(&mut figures);
    for (value, figure) in object.values_mut().zip(figures) {
        *value = figure.into();
    }
    serde_json::from_value(fields)
        .expect("the combined figures fit the fields from which they came")
}

/// Counts of updates that were split in two halves of columns, summed over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitUpdates {
    /// Number of updates that were split in halves.
    pub iterations: u64,
    /// Number of split updates whose first half exchanged rows already during the previous update.
    pub early: u64,
    /// Number of row exchanges during a multiplication that were complete at its end.
    pub hidden: u64,
    /// Number of panels that a rank factored during the update of the first half, because other ranks of its process column were
    /// late.
    #[serde(default)]
    pub amid: u64,
}

/// Check of the solution, as HPL 2.3 defines it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Residual {
    /// Scaled residual: ||Ax-b||_oo / (eps * (||A||_oo * ||x||_oo + ||b||_oo) * N).
    #[serde(deserialize_with = "nan_if_null")]
    pub scaled: f64,
    #[serde(deserialize_with = "nan_if_null")]
    pub r_inf: f64,
    #[serde(deserialize_with = "nan_if_null")]
    pub a_inf: f64,
    #[serde(deserialize_with = "nan_if_null")]
    pub a_1: f64,
    #[serde(deserialize_with = "nan_if_null")]
    pub x_inf: f64,
    #[serde(deserialize_with = "nan_if_null")]
    pub x_1: f64,
    #[serde(deserialize_with = "nan_if_null")]
    pub b_inf: f64,
}

/// Verdict on one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Passed,
    Failed,
    /// The test was solved but not checked, since the threshold was zero or less.
    Unchecked,
}

/// Costs of protection in a test, and losses that the test survived. Seconds are wall time, and are part of the time that the
/// benchmark counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Protection {
    /// Number of attempts, in-place attempts included.
    pub attempts: u32,
    /// Number of times that ranks were lost and the test continued in place, without a restart.
    #[serde(default)]
    pub in_place: u32,
    pub saves: u64,
    pub save_s: f64,
    /// Seconds of work that failures undid and that was repeated: all work after the last save.
    pub lost_s: f64,
    /// Seconds without a running job: from the last heartbeat of an attempt to the start of the next.
    pub down_s: f64,
    /// Seconds from the start of an attempt until it computed, summed over the attempts that resumed.
    pub restore_s: f64,
    /// Bytes of persistent shared memory (matrix, copies and parity) of the position that has the most.
    pub memory_bytes_max: u64,
    /// Number of members of the smallest group.
    pub group_min: usize,
    /// Work and costs of level two; absent without checkpoints on storage.
    #[serde(default)]
    pub level2: Option<Level2>,
}

/// Work and costs of checkpoints on storage (level two).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Level2 {
    /// Number of checkpoints that were completed on storage, including those removed since.
    pub checkpoints: u64,
    pub bytes: u64,
    /// Seconds from the commit of each checkpoint to its manifest; the ranks compute meanwhile. If all checkpoints are on storage
    /// (`alone`), seconds from the start of each checkpoint to its manifest; the ranks wait meanwhile.
    pub write_s: f64,
    /// Number of saves in memory that were delayed because storage was still being written.
    pub put_off: u64,
    /// Total delay of the delayed saves, in seconds.
    pub put_off_s: f64,
    /// Seconds that the ranks waited, before a stop of the run, until the last checkpoint was on storage. Without helpers, the
    /// wait for each checkpoint is also included. This wait is part of the save.
    pub wait_s: f64,
    /// Number of times that the test resumed from storage.
    pub fetched: u64,
    /// True if all checkpoints are on storage, and none in memory (method disk).
    #[serde(default)]
    pub alone: bool,
    /// True if the ranks stopped for each checkpoint (`--helpers off`).
    #[serde(default)]
    pub waited: bool,
}

/// Work and costs of checksum columns in a test. Seconds are wall time, and are part of the time that the benchmark counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checksums {
    /// Number of checksum columns at the start of the test.
    pub columns: u64,
    /// Number of times that ranks were lost and the test continued without a restart.
    pub losses: u32,
    /// Process columns that checksum columns replaced, in the order of the replacements.
    pub replaced: Vec<Replaced>,
    /// Seconds from the first report of a loss until all ranks continued without a restart, summed over the losses.
    pub going_on_s: f64,
    /// Seconds spent recomputing the lost parts of U.
    pub recompute_s: f64,
    /// Boundary at which each lost checksum column was rebuilt, in the order of the rebuilds.
    #[serde(default)]
    pub renewed_at: Vec<u64>,
    /// Seconds spent rebuilding checksum columns.
    #[serde(default)]
    pub renew_s: f64,
    /// Bytes of the matrix, of all ranks together, at the start.
    pub matrix_bytes: u64,
    /// Bytes of the checksum columns, of all ranks together, at the start.
    pub checksum_bytes: u64,
}

/// A process column that was replaced by a checksum column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// Number of the process column, from 0.
    pub column: u64,
    pub boundary: u64,
}

/// Power of the nodes while a test was solved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Power {
    /// Source of the readings: `command`, `hwmon`, `rapl`, `nvml`, `rapl+nvml`, or `mixed` if nodes differ.
    pub source: String,
    pub nodes: u64,
    pub nodes_measured: u64,
    /// Number of readings of the node that has the fewest readings.
    pub readings_min: u64,
    /// Seconds of the measurement. If the test was restarted, they are fewer than the seconds of the test.
    pub seconds: f64,
    /// Energy of all measured nodes together, in joules.
    pub joules: f64,
    /// Mean power of all measured nodes together, in watts.
    pub watts: f64,
}

/// All results of a finished test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Time at which the timer started, in seconds since the Unix epoch.
    pub started_unix_s: u64,
    /// Time at which the timer stopped, in seconds since the Unix epoch.
    pub ended_unix_s: u64,
    pub seconds: f64,
    #[serde(deserialize_with = "nan_if_null")]
    pub gflops: f64,
    /// Maximum of each part over the ranks.
    pub times: Times,
    /// Mean of each part over the ranks. The means add up to the mean total.
    pub times_mean: Times,
    /// Check of the solution; absent if the threshold was zero or less.
    pub residual: Option<Residual>,
    pub verdict: Verdict,
    #[serde(default)]
    pub split_update: SplitUpdates,
    /// Hash over the bits of x, in index order: 16 hex digits of XXH3-64.
    pub x_digest: String,
    pub threads: usize,
    /// Largest part of [A|b] on any rank, in bytes.
    pub matrix_bytes_max: u64,
    /// Largest sum of work arrays (panels, U, buffers) on any rank, in bytes.
    pub work_bytes_max: u64,
    /// Largest resident set of any rank during the test, in bytes.
    pub resident_bytes_max: u64,
    /// Costs of protection; absent if the test ran without protection.
    pub protection: Option<Protection>,
    /// Work and costs of checksum columns; absent without checksum columns.
    #[serde(default)]
    pub checksums: Option<Checksums>,
    #[serde(default)]
    pub timeline: Timeline,
    /// Power of the nodes; absent if no node could be measured.
    #[serde(default)]
    pub power: Option<Power>,
}
