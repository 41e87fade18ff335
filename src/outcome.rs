//! What came out of one test, as plain values: made by the solver, printed by the report.

use serde::{Deserialize, Deserializer, Serialize};

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
    pub fn to_array(self) -> [f64; 12] {
        [
            self.rfact,
            self.pfact,
            self.mxswp,
            self.bcast,
            self.update,
            self.laswp,
            self.trsm,
            self.gemm,
            self.solve,
            self.save,
            self.other,
            self.total,
        ]
    }

    /// The reverse of [`Times::to_array`].
    pub fn from_array(a: [f64; 12]) -> Self {
        let [rfact, pfact, mxswp, bcast, update, laswp, trsm, gemm, solve, save, other, total] = a;
        Self { rfact, pfact, mxswp, bcast, update, laswp, trsm, gemm, solve, save, other, total }
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
    /// How often the test was started.
    pub attempts: u32,
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
}
