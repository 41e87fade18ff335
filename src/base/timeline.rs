//! The timeline of a test: the times at which it passed its iterations, and its interruptions.
//!
//! The driver records the timeline while a test runs. Its size does not grow with the length of the run, because a protected test
//! stores it in its small saved state. So a result covers the whole test, including attempts before a failure. When the record is
//! full, every second point is dropped. Pure: times are passed in as numbers.

use serde::{Deserialize, Serialize};

/// Maximum number of points of a timeline.
const POINTS_MAX: usize = 64;

/// Maximum number of interruptions in a timeline.
const MOMENTS_MAX: usize = 40;

/// Kind of an interruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A checkpoint was saved.
    Save,
    /// Work that a failure undid, all of it after the last save.
    Lost,
    /// Time without a running job: from the last heartbeat of an attempt to the next start.
    Down,
    /// Time from the start of an attempt until computation resumed.
    Restore,
}

impl What {
    pub fn word(self) -> &'static str {
        match self {
            What::Save => "save",
            What::Lost => "lost work",
            What::Down => "down",
            What::Restore => "restore",
        }
    }
}

/// An interruption. Times are seconds since the test's timer started.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    pub what: What,
    /// Number of the iteration before which the interruption happened.
    pub iteration: u64,
    pub at_s: f64,
    pub seconds: f64,
}

/// Timeline of a finished test. The lists `iteration`, `seconds` and `gflops` have the same length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Iteration that was about to begin at each point. The last point is the end of the factorisation, with the number of all
    /// iterations.
    pub iteration: Vec<u64>,
    /// Times of the iterations, in seconds since the timer started.
    pub seconds: Vec<f64>,
    /// Rate since the previous point, in 10^9 operations per second of wall time; 0 for the first.
    pub gflops: Vec<f64>,
    pub moments: Vec<Moment>,
    /// Number of interruptions that were dropped for lack of space.
    pub moments_left_out: u64,
}

/// Returns the number of floating-point operations that the factorisation does before iteration `iteration`.
pub fn flops_until(n: usize, nb: usize, iteration: u64) -> f64 {
    let (n, nb) = (n as f64, nb as f64);
    let left = (n - iteration as f64 * nb).max(0.0);
    2.0 / 3.0 * (n.powi(3) - left.powi(3))
}

/// Rounds down to milliseconds, which are precise enough and short to write. Rounding up could move a time past the end of the
/// test.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e3).floor() / 1e3
}

/// Recorder of the timeline of a running test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recorder {
    points: Vec<(u64, f64)>,
    moments: Vec<Moment>,
    left_out: u64,
    /// True once the current attempt has recorded a point. The first point of an attempt is always recorded.
    #[serde(skip)]
    under_way: bool,
}

impl Recorder {
    /// Records that iteration `k` of `blocks` is about to begin.
    pub fn pass(&mut self, k: usize, blocks: usize, at_s: f64) {
        let stride = blocks.div_ceil(POINTS_MAX / 2).max(1);
        if self.under_way && !k.is_multiple_of(stride) && k != blocks {
            return;
        }
        if !self.under_way {
            // Points after the save from which this attempt resumes are passed again.
            self.points.retain(|&(passed, _)| passed < k as u64);
        }
        self.under_way = true;
        if self.points.len() == POINTS_MAX {
            self.points = self.points.iter().copied().step_by(2).collect();
        }
        self.points.push((k as u64, rounded(at_s)));
    }

    /// Records an interruption before iteration `iteration`. `at_s` is its start, in seconds since the timer started; `seconds`
    /// is its length.
    pub fn interrupt(&mut self, what: What, iteration: usize, at_s: f64, seconds: f64) {
        if self.moments.len() == MOMENTS_MAX {
            // Saves are numerous and similar, so every second one is dropped. The costs of failures are kept as long as possible.
            let (before, mut at) = (self.moments.len(), 0);
            self.moments.retain(|m| {
                at += usize::from(m.what == What::Save);
                m.what != What::Save || at % 2 == 1
            });
            self.left_out += (before - self.moments.len()) as u64;
        }
        if self.moments.len() == MOMENTS_MAX {
            self.left_out += 1;
            return;
        }
        let (at_s, seconds) = (rounded(at_s), rounded(seconds));
        self.moments.push(Moment { what, iteration: iteration as u64, at_s, seconds });
    }

    /// Sets the duration of the last save, which is known only after the save was recorded.
    pub fn took(&mut self, seconds: f64) {
        if let Some(save) = self.moments.last_mut().filter(|m| m.what == What::Save) {
            save.seconds = rounded(seconds);
        }
    }

    /// Returns the timeline of a test with order `n` and block size `nb`.
    pub fn timeline(&self, n: usize, nb: usize) -> Timeline {
        let mut gflops = Vec::with_capacity(self.points.len());
        for (i, &(k, at)) in self.points.iter().enumerate() {
            let (before, since) = if i == 0 { (k, at) } else { self.points[i - 1] };
            let done = flops_until(n, nb, k) - flops_until(n, nb, before);
            let rate = if at > since { done / (at - since) / 1e9 } else { 0.0 };
            gflops.push((rate * 1e3).round() / 1e3);
        }
        Timeline {
            iteration: self.points.iter().map(|p| p.0).collect(),
            seconds: self.points.iter().map(|p| p.1).collect(),
            gflops,
            moments: self.moments.clone(),
            moments_left_out: self.left_out,
        }
    }

    /// Maximum number of bytes of the record as text, for iterations below 10^9 and times below 10^8 s.
    pub const TEXT_BYTES_MAX: usize = POINTS_MAX * 25 + MOMENTS_MAX * 95 + 100;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_are_those_of_the_corner_between_points() {
        let mut recorder = Recorder::default();
        for k in 0..=4 {
            recorder.pass(k, 4, k as f64);
        }
        let timeline = recorder.timeline(4000, 1000);
        assert_eq!(timeline.iteration, [0, 1, 2, 3, 4]);
        assert_eq!(timeline.seconds, [0.0, 1.0, 2.0, 3.0, 4.0]);
        let total: f64 = timeline.gflops.iter().sum();
        assert!((total - 2.0 / 3.0 * 64.0).abs() < 0.01, "{timeline:?}");
        assert!(timeline.gflops[1] > timeline.gflops[2], "the first columns are the most work");
    }

    #[test]
    fn an_attempt_that_goes_on_has_a_point_where_it_does() {
        let mut recorder = Recorder::default();
        for k in 0..100 {
            recorder.pass(k, 1000, k as f64);
        }
        let text = serde_json::to_string(&recorder).unwrap();
        let mut next: Recorder = serde_json::from_str(&text).unwrap();
        next.interrupt(What::Down, 77, 99.0, 5.0);
        next.pass(77, 1000, 105.0);
        let timeline = next.timeline(10_000, 10);
        assert_eq!(timeline.iteration, [0, 32, 64, 77], "work that was lost counts once");
        assert_eq!(timeline.moments[0].what, What::Down);
        assert!(timeline.gflops[1..].iter().all(|&rate| rate > 0.0), "{timeline:?}");
    }

    #[test]
    fn of_many_moments_failures_are_kept() {
        let mut recorder = Recorder::default();
        recorder.interrupt(What::Down, 3, 1.0, 2.0);
        for k in 0..1000 {
            recorder.interrupt(What::Save, k, k as f64, 0.5);
        }
        recorder.interrupt(What::Restore, 3, 1e3, 2.0);
        let timeline = recorder.timeline(10, 1);
        assert_eq!(timeline.moments.len() as u64 + timeline.moments_left_out, 1002);
        assert!(timeline.moments.len() <= MOMENTS_MAX);
        assert_eq!(timeline.moments[0].what, What::Down);
        assert_eq!(timeline.moments.last().unwrap().what, What::Restore);
    }

    proptest! {
        /// The record of a long run with many interruptions always fits into the saved state.
        #[test]
        fn the_record_stays_small(
            steps in proptest::collection::vec((0u8..6, 0usize..999_999_999, 0.0..9.9e7f64), 0..500),
            blocks in 1usize..999_999_999,
        ) {
            let mut recorder = Recorder::default();
            for (kind, k, at) in steps {
                match kind {
                    0 | 1 => recorder.pass(k, blocks, at),
                    // A new attempt.
                    2 => { recorder.under_way = false; recorder.pass(k, blocks, at) }
                    3 => recorder.interrupt(What::Save, k, at, at),
                    4 => recorder.interrupt(What::Restore, k, at, at),
                    _ => recorder.interrupt(What::Down, k, at, at),
                }
            }
            let text = serde_json::to_string(&recorder).unwrap();
            prop_assert!(text.len() <= Recorder::TEXT_BYTES_MAX, "{}", text.len());
        }
    }
}
