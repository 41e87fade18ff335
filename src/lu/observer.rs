//! The interface between a factorisation and its observer.
//!
//! The schedule calls an [`Observer`] at every step; `driver` has one observer for each way to run a test. So this folder does
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

/// Event of a test in progress.
#[derive(Clone, Copy, Debug)]
pub enum Event<'x> {
    /// The clock started, in this or an earlier attempt, in seconds since the Unix epoch.
    Began { unix_s: f64 },
    /// A step of the test begins or ends.
    Reached(Milestone),
    /// Panel `k` of `blocks` is about to be applied, `elapsed` seconds after the start.
    Iteration { k: usize, blocks: usize, elapsed: f64 },
    /// Time that this rank has spent multiplying since the factorisation began, without waiting, and the operations done in it.
    Multiplied { seconds: f64, flops: f64 },
    /// Checksum columns were rebuilt at boundary `k`, in `seconds`.
    Rebuilt { k: usize, seconds: f64 },
    /// The system is solved; the slice is this process column's part of x.
    Solved(&'x [f64]),
}

/// Receives the events of a factorisation, and decides at boundaries. All ranks must give the same answers.
pub trait Observer {
    /// Takes note of an event. An observer with another one behind it passes each event on.
    fn observe(&mut self, event: Event) {
        let _ = event;
    }

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

    /// Returns whether the factorisation ends before panel `k` is applied, which may be between boundaries. The computed values
    /// are of no further use then, only the time that they took. Called after [`Event::Iteration`].
    fn leaves(&mut self, k: usize) -> bool {
        let _ = k;
        false
    }
}

/// An observer that requests nothing.
pub struct Silent;

impl Observer for Silent {}
