//! An agent that hears nothing any more: is its node cut off, or is it the supervisor that cannot be heard? Pure.
//!
//! A node that is cut off must end its ranks: the run goes on elsewhere, and its old copy would burn cores nobody
//! watches. But ranks cannot get on without all the others: as long as they do, the job is whole, and it is only the
//! supervisor that is not heard. So the agent ends them when it has heard nothing for long and they stood still for
//! as long.

use std::time::{Duration, Instant};

use super::progress::Progress;

/// Position, heartbeat and iteration.
type Step = (u32, u64, u64);

#[derive(Debug)]
pub struct Lonely {
    limit: Duration,
    heard: Instant,
    moved: Instant,
    seen: Option<Vec<Step>>,
}

impl Lonely {
    pub fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, heard: now, moved: now, seen: None }
    }

    /// When the one above last said something.
    pub fn heard_at(&mut self, heard: Instant) {
        // The same moment, as two clocks tell it, is no news.
        if heard > self.heard + Duration::from_secs(1) {
            (self.heard, self.moved, self.seen) = (heard, heard, None);
        }
    }

    /// Where the node's ranks are.
    pub fn sees(&mut self, now: Instant, ranks: &[Progress]) {
        let steps: Vec<Step> = ranks.iter().map(|p| (p.position, p.beat, p.iteration)).collect();
        if self.seen.as_ref().is_some_and(|seen| *seen != steps) {
            self.moved = now;
        }
        self.seen = Some(steps);
    }

    /// Whether the ranks are to be ended.
    pub fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.heard) >= self.limit && now.duration_since(self.moved) >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn rank(iteration: u64) -> [Progress; 1] {
        [Progress { iteration, ..Progress::default() }]
    }

    /// After how many seconds without a word the ranks are ended that stand still from then on.
    fn ended_after(stands_still_at: u64) -> Option<u64> {
        let start = Instant::now();
        let mut lonely = Lonely::new(LIMIT, start);
        let mut now = start;
        for _ in 0..500 {
            now += LIMIT / 20;
            let passed = now.duration_since(start).as_secs();
            lonely.heard_at(start);
            lonely.sees(now, &rank(passed.min(stands_still_at)));
            if lonely.is_over(now) {
                return Some(passed);
            }
        }
        None
    }

    #[test]
    fn ranks_that_get_on_are_left_alone() {
        assert_eq!(ended_after(u64::MAX), None);
    }

    #[test]
    fn ranks_that_stand_still_are_ended_after_as_long() {
        assert_eq!(ended_after(0), Some(60));
        let later = ended_after(200).unwrap();
        assert!((260..=264).contains(&later), "{later}");
    }

    #[test]
    fn a_word_begins_it_all_anew() {
        let start = Instant::now();
        let mut lonely = Lonely::new(LIMIT, start);
        lonely.heard_at(start + LIMIT);
        assert!(!lonely.is_over(start + LIMIT + LIMIT / 2));
        assert!(lonely.is_over(start + 2 * LIMIT));
    }
}
