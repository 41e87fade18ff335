//! Interface by which a simulation replaces a process's clock, background tasks and storage errors, and injects faults at crash
//! points.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

pub trait Simulator: Sync {
    /// Returns the time since the simulation began.
    fn now(&self) -> Duration;
    /// Returns the time of the wall clock, which may be set, since the simulation began.
    fn wall(&self) -> Duration {
        self.now()
    }
    /// Returns the time since the simulation began by a clock that nobody sets while a process lives.
    fn steady(&self) -> Duration {
        self.now()
    }
    /// Sleeps for `how_long` of simulated time.
    fn sleep(&self, how_long: Duration);
    /// Returns the duration of a background task that is started now.
    fn task_takes(&self) -> Duration {
        Duration::ZERO
    }
    /// Returns the bytes of memory that can still be allocated; `None` if the simulated node does not limit memory.
    fn free_memory(&self) -> Option<u64> {
        None
    }
    /// Returns the injected error of an operation on storage, or `Ok` if no error is injected.
    fn stores(&self) -> io::Result<()> {
        Ok(())
    }
    /// Reports that a position has reached a crash point. Does not return if the simulated rank fails there.
    fn passes(&self, _point: &'static str, _position: usize) {}
}

static SIMULATOR: OnceLock<&'static dyn Simulator> = OnceLock::new();

/// Makes this process a simulated one: from now on `simulator` replaces its clock, background tasks and storage errors. Must be
/// called at most once.
pub fn begin(simulator: &'static dyn Simulator) {
    assert!(SIMULATOR.set(simulator).is_ok(), "a process is simulated once");
}

#[inline]
pub fn simulator() -> Option<&'static dyn Simulator> {
    SIMULATOR.get().copied()
}
