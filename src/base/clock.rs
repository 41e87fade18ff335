//! Clock of a rank: the time of the machine, or the time of a simulation.
//!
//! All decisions of a rank that depend on time use this clock. So a simulation that repeats a run from its seed repeats its
//! times, too.

use std::ops::{Add, Sub};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::simulated::simulator;

/// A moment on the clock of the rank, like `std::time::Instant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(std::time::Instant);

impl Instant {
    #[inline]
    pub fn now() -> Self {
        match simulator() {
            None => Self(std::time::Instant::now()),
            Some(simulator) => Self(beginning() + simulator.now()),
        }
    }

    pub fn elapsed(&self) -> Duration {
        Self::now().duration_since(*self)
    }

    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.0.duration_since(earlier.0)
    }

    pub fn checked_sub(&self, earlier: Duration) -> Option<Self> {
        self.0.checked_sub(earlier).map(Self)
    }

    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

/// Returns the moment at which the virtual time of a simulation is 0.
fn beginning() -> std::time::Instant {
    static BEGINNING: OnceLock<std::time::Instant> = OnceLock::new();
    *BEGINNING.get_or_init(std::time::Instant::now)
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0 + later)
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, earlier: Duration) -> Self {
        Self(self.0 - earlier)
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }
}

/// Time from 1970 to the start of a simulation, on the simulated wall clock.
const SIMULATION_BEGINS: Duration = Duration::from_secs(1_800_000_000);

/// Returns the time since 1970 by the wall clock.
pub fn since_1970() -> Duration {
    match simulator() {
        None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        Some(simulator) => SIMULATION_BEGINS + simulator.wall(),
    }
}

/// Returns the milliseconds since the Unix epoch, by the wall clock. Processes exchange times of this kind.
pub fn unix_ms() -> u64 {
    since_1970().as_millis() as u64
}

/// Returns the milliseconds since the Unix epoch, by a clock that nobody sets while this process lives. The clock starts from the
/// wall clock. Durations and time limits use this clock, so that setting the wall clock does not change them.
pub fn steady_ms() -> u64 {
    static BEGINNING: OnceLock<(std::time::Instant, Duration)> = OnceLock::new();
    let time = match simulator() {
        None => {
            let (since, began) =
                BEGINNING.get_or_init(|| (std::time::Instant::now(), since_1970()));
            *began + since.elapsed()
        }
        Some(simulator) => SIMULATION_BEGINS + simulator.steady(),
    };
    time.as_millis() as u64
}

/// Sleeps for `how_long`, in simulated time if this process is simulated.
pub fn sleep(how_long: Duration) {
    match simulator() {
        None => std::thread::sleep(how_long),
        Some(simulator) => simulator.sleep(how_long),
    }
}
