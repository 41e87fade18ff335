//! Output of a run: HPL's text for people and scripts, JSON for programs.
//!
//! The driver on rank 0 calls it as tests begin, finish or are skipped. Nothing here calls MPI or measures anything: values go
//! in, bytes come out. Scripts of two decades read these bytes, so a changed space in [`text`] breaks a benchmark harness
//! somewhere.

pub mod cformat;
pub mod json;
pub mod machine;
pub mod text;

use serde::{Deserialize, Serialize};

use crate::base::outcome::Verdict;

/// Counts of the tests so far, by result.
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
