//! The interface between a factorisation and its observer.
//!
//! The schedule calls an [`Observer`] at every step. `driver` has an observer for each way to run a test. So this folder does not
//! depend on checkpoints, agents or reports.

use crate::base::threads::Pool;

/// Decision at a boundary: continue or stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    GoOn,
    /// The factorisation stops at this boundary. The observer has saved the data that it needs.
    Stop,
}

/// Points of a test before and after the factorisation.
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

/// Event of a test in progress.
#[derive(Clone, Copy, Debug)]
pub enum Event<'x> {
    /// The clock of the test started at `unix_s`, in seconds since the Unix epoch, in this attempt or an earlier one.
    Began { unix_s: f64 },
    /// The test has reached this milestone.
    Reached(Milestone),
    /// Panel `k` of `blocks` panels is about to be applied, `elapsed` seconds after the start of this attempt.
    Iteration { k: usize, blocks: usize, elapsed: f64 },
    /// This rank has multiplied for `seconds` since the factorisation began, without waits, and done `flops` floating-point
    /// operations in this time.
    Multiplied { seconds: f64, flops: f64 },
    /// Checksum columns were rebuilt at boundary `k`, which took `seconds`.
    Rebuilt { k: usize, seconds: f64 },
    /// The system is solved; the slice is this process column's part of x.
    Solved(&'x [f64]),
}

/// Receives the events of a factorisation, and decides at boundaries. The decisions must be the same on all ranks.
pub trait Observer {
    /// Receives an event. An observer that wraps another observer passes each event to it.
    fn observe(&mut self, event: Event) {
        let _ = event;
    }

    /// Returns whether boundary `k` must be clean: whether panel `k` may be factored only after the call of [`Self::boundary`].
    /// Is called once for each boundary, in order.
    fn drains(&mut self, k: usize) -> bool {
        let _ = k;
        false
    }

    /// Decides at the clean boundary `k` whether the factorisation continues. `a` is the whole local matrix. The threads of
    /// `pool` are idle during the call.
    fn boundary(&mut self, k: usize, a: *mut f64, pool: &mut Pool) -> Halt {
        let _ = (k, a, pool);
        Halt::GoOn
    }

    /// Returns whether the factorisation ends before panel `k` is applied. Is called after [`Event::Iteration`], even if boundary
    /// `k` is not clean. This is for measurements, which do not use the computed values.
    fn leaves(&mut self, k: usize) -> bool {
        let _ = k;
        false
    }
}

/// An observer that ignores all events and requests neither clean boundaries nor a stop.
pub struct Silent;

impl Observer for Silent {}
