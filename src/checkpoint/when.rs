//! Schedule of saves: after a number of iterations, after a time, or by Daly's formula.
//!
//! All ranks must save at the same boundary, so the decision must follow from the same numbers on all ranks. The caller evaluates
//! `due` on one rank and broadcasts the result, or passes the same times on every rank.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::base::units::seconds;

/// Interval of `--checkpoint`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interval {
    /// Number of boundaries from one save to the next.
    Iterations(usize),
    /// Seconds from the end of a save to the next save. The next save is at the first boundary at which this time has passed.
    Seconds(f64),
    /// Interval from [`daly`], by the mean time between failures (`mtbf_s` seconds) and the measured duration of a save.
    Auto { mtbf_s: f64 },
}

/// Writes an interval in the form that `from_str` parses. The MTBF of `auto` is a separate setting and is not written.
impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Interval::Iterations(k) => write!(f, "{k}"),
            Interval::Seconds(t) => write!(f, "{t}s"),
            Interval::Auto { .. } => f.write_str("auto"),
        }
    }
}

impl FromStr for Interval {
    type Err = String;

    /// Parses an interval: `12` (iterations), a time such as `30s`, `5m` or `2h`, or `auto`. The MTBF of `auto` is 24 h; a
    /// separate setting replaces it. The error text names the valid forms.
    fn from_str(text: &str) -> Result<Self, String> {
        let usage = || {
            format!(
                "{text:?} is neither a number of iterations, nor a time such as 30s, 5m or 2h, nor auto"
            )
        };
        if text == "auto" {
            return Ok(Interval::Auto { mtbf_s: 24.0 * 3600.0 });
        }
        // A plain number is a number of iterations. A number with a unit is a time.
        if text.ends_with(|c: char| c.is_ascii_alphabetic()) {
            return seconds(text).map(Interval::Seconds).map_err(|_| usage());
        }
        match text.parse() {
            Ok(0) | Err(_) => Err(usage()),
            Ok(k) => Ok(Interval::Iterations(k)),
        }
    }
}

/// Returns the best time in seconds from one save to the next, by Daly's higher-order formula; never negative. `cost_s` is the
/// duration of a save in seconds. If a save takes at least twice the MTBF, the result is the MTBF.
pub fn daly(mtbf_s: f64, cost_s: f64) -> f64 {
    if cost_s >= 2.0 * mtbf_s {
        return mtbf_s;
    }
    let ratio = cost_s / (2.0 * mtbf_s);
    let tau = (2.0 * mtbf_s * cost_s).sqrt() * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - cost_s;
    tau.max(0.0)
}

/// Decides when to save, by the interval and the measured cost of saves.
#[derive(Clone, Debug)]
pub struct Scheduler {
    interval: Interval,
    last_boundary: usize,
    last_end_s: f64,
    /// Duration in seconds and size in bytes of the last save. None before the first save.
    measured: Option<(f64, f64)>,
}

impl Scheduler {
    /// Starts a schedule at boundary `boundary`, at which the run starts or resumes, and at time `now_s` in seconds.
    pub fn new(interval: Interval, boundary: usize, now_s: f64) -> Self {
        Self { interval, last_boundary: boundary, last_end_s: now_s, measured: None }
    }

    /// Returns true if a save is due at `boundary` and time `now_s`. The save would copy `bytes` bytes.
    pub fn due(&self, boundary: usize, now_s: f64, bytes: f64) -> bool {
        if boundary <= self.last_boundary {
            return false;
        }
        match self.interval {
            Interval::Iterations(k) => boundary - self.last_boundary >= k,
            Interval::Seconds(t) => now_s - self.last_end_s >= t,
            // The first save is made at once, because it measures the cost.
            Interval::Auto { mtbf_s } => match self.cost_s(bytes) {
                None => true,
                Some(cost) => now_s - self.last_end_s >= daly(mtbf_s, cost),
            },
        }
    }

    /// Returns the seconds and the number of boundaries from the last save to `now_s` and `boundary`.
    pub fn since(&self, boundary: usize, now_s: f64) -> (f64, usize) {
        (now_s - self.last_end_s, boundary.saturating_sub(self.last_boundary))
    }

    /// Returns the number of boundaries before the next possible save, including `boundary` itself; at least 1. An iteration
    /// takes `pace_s` seconds. If the interval is a time, only half of the remaining time counts, because iterations get shorter.
    pub fn free(&self, boundary: usize, now_s: f64, bytes: f64, pace_s: f64) -> usize {
        let wait_s = match self.interval {
            Interval::Iterations(k) => {
                return self.last_boundary.saturating_add(k).saturating_sub(boundary).max(1);
            }
            Interval::Seconds(t) => t,
            Interval::Auto { mtbf_s } => self.cost_s(bytes).map_or(0.0, |cost| daly(mtbf_s, cost)),
        };
        let left_s = wait_s - (now_s - self.last_end_s);
        ((left_s / 2.0 / pace_s.max(1e-9)) as usize).max(1)
    }

    /// Expected duration in seconds of a save of `bytes` bytes, by the rate of the last save. None before the first save.
    pub fn cost_s(&self, bytes: f64) -> Option<f64> {
        let (seconds, measured) = self.measured?;
        Some(if measured > 0.0 { seconds * bytes / measured } else { seconds })
    }

    /// Records that a save of `bytes` at `boundary` ended at `now_s` and took `seconds`.
    pub fn saved(&mut self, boundary: usize, now_s: f64, seconds: f64, bytes: f64) {
        self.last_boundary = boundary;
        self.last_end_s = now_s;
        self.measured = Some((seconds, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_read_and_nonsense_is_not() {
        assert_eq!("12".parse(), Ok(Interval::Iterations(12)));
        assert_eq!("1.5s".parse(), Ok(Interval::Seconds(1.5)));
        assert_eq!("2h".parse(), Ok(Interval::Seconds(7200.0)));
        assert_eq!("1d".parse(), Ok(Interval::Seconds(86_400.0)));
        assert!(matches!("auto".parse(), Ok(Interval::Auto { .. })));
        for text in ["12", "1.5s", "7200s", "auto"] {
            assert_eq!(text.parse::<Interval>().unwrap().to_string(), text);
        }
        for bad in ["", "0", "-3", "s", "0s", "-1s", "nans", "infs", "3x", "1e", "autos"] {
            assert!(bad.parse::<Interval>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_interval_follows_the_formula() {
        // The first-order term alone: sqrt(2 * 3600 * 2) = 120.
        let tau = daly(3600.0, 2.0);
        assert!(
            (tau - (120.0 * (1.0 + (1.0f64 / 3600.0).sqrt() / 3.0 + 1.0 / 32400.0) - 2.0)).abs()
                < 1e-9
        );
        assert!(daly(3600.0, 8.0) > tau);
        assert_eq!(daly(10.0, 100.0), 10.0);
        assert_eq!(daly(1000.0, 0.0), 0.0);
    }

    #[test]
    fn iterations_seconds_and_auto() {
        let mut s = Scheduler::new(Interval::Iterations(3), 4, 0.0);
        assert!(!s.due(4, 9.0, 1.0) && !s.due(6, 9.0, 1.0) && s.due(7, 9.0, 1.0));
        s.saved(7, 10.0, 1.0, 100.0);
        assert!(!s.due(9, 11.0, 1.0) && s.due(10, 11.0, 1.0));
        assert_eq!(s.free(8, 11.0, 1.0, 1.0), 2);

        let seldom = Scheduler::new(Interval::Iterations(usize::MAX), 4, 0.0);
        assert_eq!(seldom.free(6, 9.0, 1.0, 1.0), usize::MAX - 6);

        let s = Scheduler::new(Interval::Seconds(5.0), 0, 100.0);
        assert!(!s.due(1, 104.0, 1.0) && s.due(2, 105.0, 1.0));

        let mut s = Scheduler::new(Interval::Auto { mtbf_s: 3600.0 }, 0, 0.0);
        assert!(s.due(1, 0.1, 1e9));
        s.saved(1, 2.0, 2.0, 1e9);
        let wait = daly(3600.0, 2.0);
        assert!(!s.due(2, 2.0 + 0.99 * wait, 1e9) && s.due(2, 2.0 + wait, 1e9));
        // A quarter of the trailing submatrix costs a quarter, so saves are due twice as often.
        assert!(s.due(2, 2.0 + 0.51 * wait, 0.25e9));
    }
}
