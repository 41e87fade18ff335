//! What a run tells the world: HPL's text for people and scripts, JSON for programs.
//!
//! The driver on rank 0 calls it as tests begin, finish or are skipped. Nothing here talks to MPI
//! or measures anything: values go in, bytes come out. Scripts of two decades read these bytes, so
//! a changed space in [`text`] is a broken benchmark harness somewhere.

pub mod cformat;
pub mod json;
pub mod text;

use serde::{Deserialize, Serialize};

use crate::outcome::Verdict;

/// How the tests of a run ended so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    /// Solved, but not checked because the threshold was zero or less.
    pub unchecked: usize,
    /// Not run at all, for want of memory for instance.
    pub skipped: usize,
}

impl Counts {
    /// Counts one finished test.
    pub fn add(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed => self.failed += 1,
            Verdict::Unchecked => self.unchecked += 1,
        }
    }

    /// All tests seen, run or not.
    pub fn total(&self) -> usize {
        self.passed + self.failed + self.unchecked + self.skipped
    }
}

/// One test and its outcome for the tests of this folder.
#[cfg(test)]
mod test_values {
    use crate::outcome::{Outcome, Protection, Residual, Times, Verdict};
    use crate::params::{Bcast, Fact, Form, Mapping, Rng, Swap, TestParams};

    pub fn params() -> TestParams {
        TestParams {
            n: 12000,
            nb: 192,
            p: 2,
            q: 3,
            mapping: Mapping::Row,
            depth: 1,
            bcast: Bcast::OneRingM,
            rfact: Fact::Crout,
            ndiv: 2,
            pfact: Fact::Right,
            nbmin: 4,
            swap: Swap::Mix,
            swap_threshold: 64,
            l1: Form::Transposed,
            u: Form::NotTransposed,
            equilibrate: true,
            align: 8,
            threshold: 16.0,
            rng: Rng::Hpl,
            seed: 100,
        }
    }

    pub fn residual() -> Residual {
        Residual {
            scaled: 2.485_984_68e-3,
            r_inf: 1.25e-11,
            a_inf: 262.773_468,
            a_1: 263.865_287,
            x_inf: 11.351_297,
            x_1: 2_619.625_251,
            b_inf: 0.499_776,
        }
    }

    pub fn times() -> Times {
        Times {
            rfact: 0.25,
            pfact: 0.125,
            mxswp: 0.0625,
            bcast: 0.0,
            update: 5.0,
            laswp: 0.25,
            trsm: 0.25,
            gemm: 4.5,
            solve: 0.0625,
            save: 0.0,
            other: 0.0625,
            total: 5.375,
        }
    }

    pub fn outcome() -> Outcome {
        Outcome {
            started_unix_s: 1_795_161_600,
            ended_unix_s: 1_795_161_605,
            seconds: 5.375,
            gflops: 214.375,
            times: times(),
            times_mean: times(),
            residual: Some(residual()),
            verdict: Verdict::Passed,
            x_digest: "0123456789abcdef".into(),
            threads: 2,
            matrix_bytes_max: 192_000_000,
            work_bytes_max: 40_000_000,
            resident_bytes_max: 240_000_000,
            protection: Some(Protection {
                attempts: 2,
                saves: 9,
                save_s: 0.25,
                lost_s: 0.5,
                down_s: 0.125,
                restore_s: 0.25,
                memory_bytes_max: 480_000_000,
                group_min: 4,
            }),
        }
    }
}
