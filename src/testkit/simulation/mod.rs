//! Simulation of whole runs from a seed: the ranks of a run, or its supervisor and nodes, with faults at any moment.
//!
//! A seed determines a run and its faults. The same seed gives the same run, so the seed is enough to repeat a failure.

pub mod campaign;
mod dice;
pub mod ranks;
pub mod supervisor;

use std::fmt;

/// Simulator that runs seeds one after the other, in a process with a single thread.
pub trait Simulation: Sized {
    /// Number of consecutive seeds that one worker should run, because they share work.
    const FAMILY: u64;
    fn begin() -> Self;
    /// Returns the number of faults in the run of `seed`.
    fn faults(&self, seed: u64) -> usize;
    fn run(&mut self, seed: u64) -> Result<Report, Failure>;
    /// Runs `seed` with only those of its faults whose numbers are in `faults`.
    fn run_with(&mut self, seed: u64, faults: &[usize]) -> Result<Report, Failure>;

    /// Returns the numbers of a minimal set of faults with which the failing seed still fails. Without any one of these faults,
    /// the seed does not fail.
    fn smallest(&mut self, seed: u64) -> Vec<usize> {
        let mut kept: Vec<usize> = (0..self.faults(seed)).collect();
        let mut at = 0;
        while at < kept.len() {
            let mut fewer = kept.clone();
            fewer.remove(at);
            if self.run_with(seed, &fewer).is_err() {
                kept = fewer;
            } else {
                at += 1;
            }
        }
        kept
    }
}

/// Summary of a run that kept the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of launches of the ranks.
    pub launches: usize,
    pub steps: u64,
    /// Faults that were injected. Each has a description and the result of its launch.
    pub injected: Vec<(String, String)>,
}

/// A violation of the rules of a run.
#[derive(Clone, Debug)]
pub struct Failure {
    pub what: String,
    pub scenario: String,
    /// Last lines of the run's output, or all events of the run.
    pub log: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}\n{}\n{}", self.what, self.scenario, self.log)
    }
}
