//! Output of a run: HPL's text for people and scripts, JSON for programs.
//!
//! The driver on rank 0 calls this module when tests begin, finish or are skipped. The module makes text from values; it neither
//! calls MPI nor measures. Many old scripts read the output of HPL, so even a changed space in [`text`] can break a benchmark
//! harness.

pub mod cformat;
pub mod json;
pub mod machine;
pub mod text;

use serde::{Deserialize, Serialize};

use crate::base::outcome::Verdict;

/// Numbers of tests so far, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    /// Number of tests that were solved but not checked, because the threshold was zero or less.
    pub unchecked: usize,
    /// Number of tests that were not run, for example for lack of memory.
    pub skipped: usize,
}

impl Counts {
    /// Counts a finished test.
    pub fn add(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed => self.failed += 1,
            Verdict::Unchecked => self.unchecked += 1,
        }
    }

    /// Number of all tests, including skipped ones.
    pub fn total(&self) -> usize {
        self.passed + self.failed + self.unchecked + self.skipped
    }
}
