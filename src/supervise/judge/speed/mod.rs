//! Judgement of slow nodes: by the time of their replies, and by the time their ranks take to compute. Pure.
//!
//! `watch` feeds heartbeats in. A slow node is named, once for each reason, and kept.

pub mod pace;
pub mod trips;

use self::pace::{Pace, Work};
use self::trips::Trips;
use super::thresholds::Thresholds;
use crate::supervise::talk::progress::{Doing, Progress};

#[derive(Clone, Debug)]
pub struct Speed {
    trips: Trips,
    pace: Pace,
}

impl Speed {
    pub fn new(t: &Thresholds) -> Self {
        Self { trips: Trips::default(), pace: Pace::new(t.pace_factor, t.pace_ms) }
    }

    /// Takes in a heartbeat of a node; returns a description if it shows the node to be slow.
    pub fn beat(
        &mut self,
        now_ms: u64,
        node: usize,
        trip_ms: f64,
        ranks: &[Progress],
    ) -> Option<String> {
        for progress in ranks {
            if progress.doing == Doing::Computing && progress.lives() {
                let (pid, busy_us, flops) = (progress.pid, progress.busy_us, progress.flops);
                let work = Work { pid, busy_us, flops };
                self.pace.see(now_ms, progress.position, node, work);
            }
        }
        self.trips.see(now_ms, node, trip_ms)
    }

    /// Returns nodes that have been found to compute slowly, each with a description.
    pub fn tick(&mut self, now_ms: u64) -> Vec<(usize, String)> {
        let words = |slow: pace::Slow| {
            let detail = format!(
                "position {} takes {:.1} times the others' time to compute the same: its processor is \
                 throttled, or something else runs there",
                slow.position, slow.times
            );
            (slow.node, detail)
        };
        self.pace.tick(now_ms).into_iter().map(words).collect()
    }

    /// Leaves out a pause in which no node could be heard.
    pub fn pause(&mut self, now_ms: u64) {
        self.pace.pause(now_ms);
    }
}
