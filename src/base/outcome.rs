//! What came out of one test, as plain values: made by the solver, printed by the report.

use serde::{Deserialize, Deserializer, Serialize};

use crate::base::course::Course;

/// JSON knows no NaN and no infinity and writes both as null: read null back as NaN.
fn nan_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Wall seconds by part.
///
/// On one rank the parts do not overlap: what its main thread did at each moment is counted once,
/// so `rfact`, `bcast`, `update`, `solve`, `save` and `other` add up to `total`. So do their means over
/// the ranks, but not their maxima.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Recursive panel factorisation, `pfact` and its message exchange included.
    pub rfact: f64,
    /// The part of `rfact` below the recursion.
    pub pfact: f64,
    /// The part of `pfact` spent finding and exchanging the pivot row.
    pub mxswp: f64,
    /// Waiting for, or forwarding, a panel's broadcast.
    pub bcast: f64,
    /// Trailing update: row swaps, triangular solve and multiplication together.
    pub update: f64,
    /// The part of `update` spent swapping rows.
    pub laswp: f64,
    /// The part of `laswp` spent waiting for rows of other process rows, with nothing else to do meanwhile.
    #[serde(default)]
    pub laswp_wait: f64,
    /// The part of `update` spent in the triangular solve.
    pub trsm: f64,
    /// The part of `update` spent multiplying.
    pub gemm: f64,
    /// Back substitution.
    pub solve: f64,
    /// Saving checkpoints.
    pub save: f64,
    /// What is left of the total.
    pub other: f64,
    /// Factorisation and back substitution: the time the benchmark counts.
    pub total: f64,
}

impl Times {
    /// All figures, to combine them over ranks.
    pub fn to_array(self) -> [f64; 13] {
        [
            self.rfact,
            self.pfact,
            self.mxswp,
            self.bcast,
            self.update,
            self.laswp,
            self.laswp_wait,
            self.trsm,
            self.gemm,
            self.solve,
            self.save,
            self.other,
            self.total,
        ]
    }

    /// The reverse of [`Times::to_array`].
    pub fn from_array(a: [f64; 13]) -> Self {
        let [
            rfact,
            pfact,
            mxswp,
            bcast,
            update,
            laswp,
            laswp_wait,
            trsm,
            gemm,
            solve,
            save,
            other,
            total,
        ] = a;
        Self {
            rfact,
            pfact,
            mxswp,
            bcast,
            update,
            laswp,
            laswp_wait,
            trsm,
            gemm,
            solve,
            save,
            other,
            total,
        }
    }
}

/// How much of the trailing update went in halves, counted over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halves {
    /// Updates of a rank that were cut in two.
    pub iterations: u64,
    /// Of these, those whose first half's rows were under way during the update before.
    pub early: u64,
    /// Exchanges beside a multiplication that were through when it was.
    pub hidden: u64,
    /// Panels that a rank factored amid the first half's update, since others of its process column were not there before it.
    #[serde(default)]
    pub amid: u64,
}

impl Halves {
    /// All counts, to combine them over ranks.
    pub fn to_array(self) -> [u64; 4] {
        [self.iterations, self.early, self.hidden, self.amid]
    }

    /// The reverse of [`Halves::to_array`].
    pub fn from_array([iterations, early, hidden, amid]: [u64; 4]) -> Self {
        Self { iterations, early, hidden, amid }
    }
}

/// The check of the solution, as HPL 2.3 defines it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Residual {
    /// ||Ax-b||_oo / (eps * (||A||_oo * ||x||_oo + ||b||_oo) * N)
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
    /// The threshold was zero or less: solved, not checked.
    Unchecked,
}

/// What protection cost a test, and what it saved it from. Seconds of wall time, all within the
/// time that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Protection {
    /// How often the test was started, or gone on with in place.
    pub attempts: u32,
    /// Losses of ranks after which it went on in place, without a restart.
    #[serde(default)]
    pub in_place: u32,
    pub saves: u64,
    pub save_s: f64,
    /// Work done after the last save before a failure, and done again.
    pub lost_s: f64,
    /// From the last sign of life of one attempt to the start of the next.
    pub down_s: f64,
    /// From the start of an attempt until it computed.
    pub restore_s: f64,
    /// Named memory of the position that has most of it: matrix, copies and checksums.
    pub memory_bytes_max: u64,
    /// Members of the smallest group.
    pub group_min: usize,
    /// Absent where there is no second level.
    #[serde(default)]
    pub level2: Option<Level2>,
}

/// What the second level, on storage, did and cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Level2 {
    /// Epochs that are or were whole on storage.
    pub epochs: u64,
    pub bytes: u64,
    /// From the commit of each to its manifest, while ranks computed; from its beginning, while they waited, where it is alone.
    pub write_s: f64,
    /// Saves in memory that were put off while an epoch was on its way, and by how long altogether.
    pub put_off: u64,
    pub put_off_s: f64,
    /// Waiting for storage, at stops; without helpers for each epoch, as part of its save.
    pub wait_s: f64,
    /// How often the test went on from storage.
    pub fetched: u64,
    /// Whether all checkpoints are there, and none in memory (method disk).
    #[serde(default)]
    pub alone: bool,
    /// Whether the ranks stopped for each epoch (`--helpers off`).
    #[serde(default)]
    pub waited: bool,
}

/// What columns of checksums did for a test, and what that took. Seconds of wall time, within the time that counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checksums {
    /// How many there were when the test began.
    pub columns: u64,
    /// Losses of ranks after which it went on without a restart.
    pub losses: u32,
    /// Whose place the checksums took, in order.
    pub replaced: Vec<Replaced>,
    /// From the first notice of each loss until all went on.
    pub going_on_s: f64,
    /// Regaining the part of U that was lost.
    pub regain_s: f64,
    /// For each column of new checksums the boundary at which it was made, in order; and making them.
    #[serde(default)]
    pub renewed_at: Vec<u64>,
    #[serde(default)]
    pub renew_s: f64,
    /// The matrix, and the checksums beside it, of all ranks at the beginning.
    pub matrix_bytes: u64,
    pub checksum_bytes: u64,
}

/// A process column whose place checksums took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// From 0.
    pub column: u64,
    pub boundary: u64,
}

/// The power the nodes took while a test was solved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Power {
    /// `command`, `hwmon`, `rapl`, or `mixed` where nodes differ.
    pub source: String,
    pub nodes: u64,
    pub nodes_measured: u64,
    /// Readings on the node that has the fewest.
    pub readings_min: u64,
    /// How long was measured: shorter than the test where that was started again.
    pub seconds: f64,
    /// Of all measured nodes together.
    pub joules: f64,
    /// Mean power of all measured nodes together.
    pub watts: f64,
}

/// Everything one finished test has to tell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Seconds since the Unix epoch at which the timer started and stopped.
    pub started_unix_s: u64,
    pub ended_unix_s: u64,
    pub seconds: f64,
    #[serde(deserialize_with = "nan_if_null")]
    pub gflops: f64,
    /// By part: of each the maximum over the ranks.
    pub times: Times,
    /// By part: the means over the ranks, which add up.
    pub times_mean: Times,
    /// Absent where the threshold was zero or less.
    pub residual: Option<Residual>,
    pub verdict: Verdict,
    #[serde(default)]
    pub halves: Halves,
    /// Hash over the bits of x, in index order: 16 hex digits of XXH3-64.
    pub x_digest: String,
    pub threads: usize,
    /// The largest part of [A|b] any rank holds, in bytes.
    pub matrix_bytes_max: u64,
    /// The largest sum of work arrays (panels, U, buffers) any rank holds, in bytes.
    pub work_bytes_max: u64,
    /// The largest resident set any rank reached during the test, in bytes.
    pub resident_bytes_max: u64,
    /// Absent where the test ran without protection.
    pub protection: Option<Protection>,
    /// Absent without checksums.
    #[serde(default)]
    pub checksums: Option<Checksums>,
    /// How it went on in time.
    #[serde(default)]
    pub course: Course,
    /// Absent where no node could be measured.
    #[serde(default)]
    pub power: Option<Power>,
}
