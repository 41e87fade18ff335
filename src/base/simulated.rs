//! What a simulation gives to a rank's process in place of the machine's: time, background work, and faults at crash points.

use std::sync::OnceLock;
use std::time::Duration;

use super::faults::Point;

pub trait Simulator: Sync {
    /// Time since the simulation began.
    fn now(&self) -> Duration;
    /// Returns when so much of that has passed.
    fn sleep(&self, how_long: Duration);
    /// How long a task in the background takes that is started now.
    fn task_takes(&self) -> Duration;
    /// A position has come to a crash point, which it may not get past.
    fn passes(&self, point: Point, position: usize);
}

static SIMULATOR: OnceLock<&'static dyn Simulator> = OnceLock::new();

/// This process is simulated from now on.
pub fn begin(simulator: &'static dyn Simulator) {
    assert!(SIMULATOR.set(simulator).is_ok(), "a process is simulated once");
}

#[inline]
pub fn simulator() -> Option<&'static dyn Simulator> {
    SIMULATOR.get().copied()
}
