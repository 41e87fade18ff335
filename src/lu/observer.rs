//! What a factorisation tells whoever looks on, and what it asks.
//!
//! The pipeline calls an [`Observer`] at every step; `driver` has one for each way to run a test. So nothing here needs to know
//! of checkpoints, agents or tables.

use crate::base::threads::Pool;

/// Whether to go on from a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    GoOn,
    /// Stop here: whoever asked has saved what it needs.
    Stop,
}

/// Steps of a test around the factorisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// The matrix is about to be generated.
    Generating,
    /// It is there.
    Generated,
    /// It is factored.
    Factored,
    /// The solution is there.
    Solved,
}

/// Is told how the factorisation advances. All ranks must answer alike.
pub trait Observer {
    /// Whether boundary `k` is to be reached cleanly. Asked once for each, in order.
    fn drains(&mut self, k: usize) -> bool {
        let _ = k;
        false
    }

    /// Boundary `k` has been reached cleanly; `a` is the whole local matrix. The threads have nothing else to do.
    fn boundary(&mut self, k: usize, a: *mut f64, pool: &mut Pool) -> Halt {
        let _ = (k, a, pool);
        Halt::GoOn
    }

    /// The clock starts, or started in an earlier attempt, at that moment of the Unix epoch.
    fn began(&mut self, unix_s: f64) {
        let _ = unix_s;
    }

    /// A step of the test begins or ends.
    fn reached(&mut self, milestone: Milestone) {
        let _ = milestone;
    }

    /// Panel `k` of `blocks` is about to be applied, `elapsed` seconds after the start.
    fn iteration(&mut self, k: usize, blocks: usize, elapsed: f64) {
        let _ = (k, blocks, elapsed);
    }

    /// Whether the factorisation ends before panel `k` is applied, wherever it is in between boundaries: what has been
    /// computed is of no use then but for the time it took. Asked after [`Observer::iteration`].
    fn leaves(&mut self, k: usize) -> bool {
        let _ = k;
        false
    }

    /// This rank has spent so many seconds multiplying since the factorisation began, waiting for nobody, and
    /// has done so many operations in them.
    fn multiplied(&mut self, seconds: f64, flops: f64) {
        let _ = (seconds, flops);
    }

    /// New sums stand from boundary `k` on, after so many seconds.
    fn renewed(&mut self, k: usize, seconds: f64) {
        let _ = (k, seconds);
    }

    /// The system is solved; `x` is this process column's part of the solution.
    fn solved(&mut self, x: &[f64]) {
        let _ = x;
    }
}

/// An observer that asks for nothing.
pub struct Silent;

impl Observer for Silent {}
