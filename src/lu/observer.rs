//! The interface between a factorisation and its observer.
//!
//! The pipeline calls an [`Observer`] at every step; `driver` has one observer for each way to run a test. So this folder does
//! not depend on checkpoints, agents or tables.

use crate::base::threads::Pool;

/// Decision at a boundary: continue or stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    GoOn,
    /// Stop here: the observer has saved the data that it needs.
    Stop,
}

/// Steps of a test before and after the factorisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// The matrix is about to be generated.
    Generating,
    /// The matrix is generated.
    Generated,
    /// The matrix is factored.
    Factored,
    /// The solution is computed.
    Solved,
}

/// Receives the progress of a factorisation. All ranks must give the same answers.
pub trait Observer {
    /// Returns whether boundary `k` must be clean, with no panel factored ahead. Called once for each boundary, in order.
    fn drains(&mut self, k: usize) -> bool {
        let _ = k;
        false
    }

    /// Called at a clean boundary `k`. `a` is the whole local matrix. The threads are idle meanwhile.
    fn boundary(&mut self, k: usize, a: *mut f64, pool: &mut Pool) -> Halt {
        let _ = (k, a, pool);
        Halt::GoOn
    }

    /// Reports when the clock started, in this or an earlier attempt, in seconds since the Unix epoch.
    fn began(&mut self, unix_s: f64) {
        let _ = unix_s;
    }

    /// Reports that a step of the test begins or ends.
    fn reached(&mut self, milestone: Milestone) {
        let _ = milestone;
    }

    /// Reports that panel `k` of `blocks` is about to be applied, `elapsed` seconds after the start.
    fn iteration(&mut self, k: usize, blocks: usize, elapsed: f64) {
        let _ = (k, blocks, elapsed);
    }

    /// Returns whether the factorisation ends before panel `k` is applied, which may be between boundaries. The computed values
    /// are of no further use then, only the time that they took. Called after [`Observer::iteration`].
    fn leaves(&mut self, k: usize) -> bool {
        let _ = k;
        false
    }

    /// Reports the seconds that this rank has spent multiplying since the factorisation began, without waiting, and the
    /// operations done in them.
    fn multiplied(&mut self, seconds: f64, flops: f64) {
        let _ = (seconds, flops);
    }

    /// Reports that checksum columns were rebuilt at boundary `k`, in `seconds`.
    fn renewed(&mut self, k: usize, seconds: f64) {
        let _ = (k, seconds);
    }

    /// Reports the solution; `x` is this process column's part of it.
    fn solved(&mut self, x: &[f64]) {
        let _ = x;
    }
}

/// An observer that requests nothing.
pub struct Silent;

impl Observer for Silent {}
