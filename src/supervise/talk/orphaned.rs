//! Decides whether an agent that gets no messages any more is cut off, or whether only the supervisor does not send any. Pure.
//!
//! A node that is cut off must end its ranks, because the run continues on other nodes and the old ranks would only use cores.
//! But ranks can make progress only together with all other ranks. As long as they make progress, the job is complete, and only
//! the supervisor's messages are missing. So the agent ends the ranks if it has got no message for long, and if the ranks have
//! made no progress for as long. The time without progress must also be longer than earlier pauses that ended, because a slow
//! node makes all other ranks wait in every iteration.

use std::time::{Duration, Instant};

use super::progress::Progress;

/// Position, process id, heartbeat count and iteration of a rank.
type Step = (u32, u32, u64, u64);

/// Ranks count as stuck if they make no progress for this factor times their longest earlier pause.
const LONGER_THAN_BEFORE: u32 = 3;

#[derive(Debug, Default)]
pub struct Orphaned {
    /// Time at which ranks last made progress.
    moved: Option<Instant>,
    seen: Vec<Step>,
    /// Longest time without progress after which the present ranks made progress again.
    longest: Duration,
}

impl Orphaned {
    /// Notes the ranks' progress. The agent calls this regularly, so that the pauses are known.
    pub fn sees(&mut self, now: Instant, ranks: &[Progress]) {
        let step = |p: &Progress| (p.position, p.pid, p.beat, p.iteration);
        let steps: Vec<Step> = ranks.iter().map(step).collect();
        let who = |steps: &[Step]| steps.iter().map(|step| (step.0, step.1)).collect::<Vec<_>>();
        if steps == self.seen {
            return;
        }
        let moved = self.moved.replace(now).unwrap_or(now);
        self.longest = if who(&steps) == who(&self.seen) {
            self.longest.max(now.duration_since(moved))
        } else {
            Duration::ZERO
        };
        self.seen = steps;
    }

    /// Returns whether the ranks are to be ended. No message has come for `unheard`. The ranks are ended only after at least
    /// `limit` without a message, and at least `limit` without progress.
    pub fn is_over(&self, now: Instant, unheard: Duration, limit: Duration) -> bool {
        let longest = limit.max(LONGER_THAN_BEFORE * self.longest);
        unheard >= limit && self.moved.is_none_or(|at| now.duration_since(at) >= longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);
    const STEP: Duration = Duration::from_secs(3);

    fn rank(pid: u32, iteration: u64) -> [Progress; 1] {
        [Progress { pid, iteration, ..Progress::default() }]
    }

    /// Returns the number of seconds without a message after which the ranks are ended. `at` gives their process and iteration in
    /// each second. The ranks run for `began` seconds before the last message, which comes in second 0.
    fn ended_after(began: u64, at: impl Fn(i64) -> (u32, u64)) -> Option<u64> {
        let start = Instant::now();
        let last = start + Duration::from_secs(began);
        let mut orphaned = Orphaned::default();
        let mut now = start;
        while now < last + 100 * LIMIT {
            now += STEP;
            let second = now.duration_since(start).as_secs() as i64 - began as i64;
            let (pid, iteration) = at(second);
            orphaned.sees(now, &rank(pid, iteration));
            if orphaned.is_over(now, now - now.min(last), LIMIT) {
                return Some(second as u64);
            }
        }
        None
    }

    #[test]
    fn ranks_that_get_on_are_left_alone() {
        assert_eq!(ended_after(0, |second| (5, second as u64)), None);
    }

    #[test]
    fn ranks_that_stand_still_are_ended_after_as_long() {
        assert_eq!(ended_after(0, |_| (5, 0)), Some(63), "they are first seen after three seconds");
        // The ranks stopped making progress before the last message, and the time counts from that message.
        assert_eq!(ended_after(300, |second| (5, (second.min(-30) + 300) as u64)), Some(60));
        let later = ended_after(0, |second| (5, second.min(200) as u64)).unwrap();
        assert!((260..=264).contains(&later), "{later}");
    }

    /// The run has a slow node: in each iteration all other ranks wait for that node.
    #[test]
    fn ranks_that_wait_long_in_every_iteration_are_left_alone() {
        let slow = |second: i64| (second + 3000) as u64 / 99;
        assert_eq!(ended_after(3000, |second| (5, slow(second))), None);
        // If the ranks then stop, they are ended after three times the longest pause.
        let ended = ended_after(3000, |second| (5, slow(second.min(0)))).unwrap();
        assert!((200..=300).contains(&ended), "{ended}");
        // Pauses of earlier processes do not count for new ranks.
        let restarted = |second: i64| if second < -10 { (5, slow(second)) } else { (6, 0) };
        assert!((60..=66).contains(&ended_after(3000, restarted).unwrap()));
    }
}
