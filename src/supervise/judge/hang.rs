//! Judgement of a run that may hang, and of the rank that hangs, from missing progress. Pure.
//!
//! `watch` asks on every tick. A computing rank waits for ranks that are no further than itself. So as long as one of the ranks
//! furthest behind makes progress, even slowly, nothing hangs. If none of them does, the limit is a multiple of the usual time of
//! an iteration. In any other phase a rank may wait long for a rank with more work: nothing hangs there as long as any rank makes
//! progress. Ranks on nodes that are unresponsive now are not judged, because their progress is unknown.

use std::collections::BTreeMap;

use super::ranks::{Breakage, Ranks, hindmost};
use super::thresholds::Thresholds;
use crate::supervise::remember::events::FaultKind;
use crate::supervise::talk::progress::{Doing, words};

#[derive(Clone, Debug, Default)]
pub struct Hang {
    thresholds: Thresholds,
    /// Nodes on which a process of the run is stopped, each with the moment at which this was first seen.
    stopped: BTreeMap<usize, u64>,
    /// Moment since which all working ranks have been computing, or `None` if a working rank does something else.
    in_step_since_ms: Option<u64>,
}

impl Hang {
    pub fn new(thresholds: Thresholds) -> Self {
        Self { thresholds, ..Self::default() }
    }

    /// Notes how many processes of the run are stopped on a node.
    pub fn beat(&mut self, now_ms: u64, node: usize, stopped: usize) {
        if stopped == 0 {
            self.stopped.remove(&node);
        } else {
            self.stopped.entry(node).or_insert(now_ms);
        }
    }

    /// Moves all noted moments forward by `gap_ms`, a time in which no node could be heard, so that this time does not count.
    pub fn forgive(&mut self, gap_ms: u64) {
        self.stopped.values_mut().for_each(|at| *at += gap_ms);
        self.in_step_since_ms.iter_mut().for_each(|at| *at += gap_ms);
    }

    pub fn find(
        &mut self,
        now_ms: u64,
        ranks: &Ranks,
        heard: impl Fn(usize) -> bool,
        names: &[String],
    ) -> Option<Breakage> {
        let t = self.thresholds;
        let usual_ms = ranks.iteration_ms();
        let in_step = ranks.in_step();
        self.in_step_since_ms = in_step.then(|| self.in_step_since_ms.unwrap_or(now_ms));
        let latest_ms = ranks.latest_ms.unwrap_or(now_ms);
        let limit_ms = match usual_ms {
            Some(usual) if in_step => t.hang_min_ms.max((t.hang_factor * usual as f64) as u64),
            // The limit follows the longest time without progress in such phases before.
            _ => t.progress_timeout_ms.max((t.hang_factor * ranks.longest_other_ms as f64) as u64),
        };
        let other = self
            .find_lingering(now_ms, ranks)
            .or_else(|| self.find_stopped(now_ms, ranks, &heard, names));
        if other.is_some() {
            return other;
        }
        // Before the time of an iteration is known, a rank may wait for a slower rank that makes progress.
        let in_step_since_ms = self.in_step_since_ms.filter(|_| usual_ms.is_some());
        let seen = || ranks.sums().filter(|(node, _)| heard(*node)).map(|(_, sum)| sum);
        let behind = seen().map(|sum| sum.hindmost).fold(None, hindmost);
        let still_since_ms = match in_step_since_ms {
            Some(since_ms) => behind.map_or(since_ms, |(_, changed_ms)| since_ms.max(changed_ms)),
            None => latest_ms,
        };
        let long = |since_ms: u64| now_ms.saturating_sub(since_ms) >= t.stopped_ms;
        let hangs = seen().any(|sum| sum.stopped_since_ms.is_some_and(long))
            || behind.is_some() && now_ms.saturating_sub(still_since_ms) >= limit_ms;
        if !hangs {
            return None;
        }
        // All ranks wait for a single rank. This is a stopped process if there is one, else a rank that does not report waiting.
        // Among several, it is the rank furthest behind, and of these the one that stopped first.
        let rank = ranks
            .all()
            .filter(|r| r.last.doing != Doing::Done && !(r.excused && r.is_dead()) && heard(r.node))
            .min_by_key(|r| {
                (r.stopped_since_ms.is_none(), r.waits(now_ms), r.at(), r.changed_ms)
            })?;
        // If all ranks on responsive nodes wait, the rank that hangs is on an unresponsive node.
        if rank.waits(now_ms) && ranks.all().any(|r| !heard(r.node) && !r.is_through()) {
            return None;
        }
        let failed_ms = if in_step { rank.changed_ms } else { latest_ms };
        let still_s = now_ms.saturating_sub(failed_ms) as f64 / 1e3;
        let usual = usual_ms.map_or(String::new(), |ms| {
            format!(", where an iteration takes {:.1} s", ms as f64 / 1e3)
        });
        let detail = format!(
            "position {} on {} ({}, process state {}) has made no progress for {still_s:.1} s{usual}",
            rank.last.position,
            names[rank.node],
            words(rank.last.doing),
            rank.last.state
        );
        let position = Some(rank.last.position);
        let breakage = ranks.breakage(FaultKind::RankHung, failed_ms, Some(rank.node), detail);
        Some(Breakage { position, ..breakage })
    }

    /// Returns a breakage if all ranks are done, but their processes do not end: they wait for the MPI library or the launcher.
    fn find_lingering(&self, now_ms: u64, ranks: &Ranks) -> Option<Breakage> {
        if ranks.is_empty() || !ranks.all_through() {
            return None;
        }
        let last_ms = ranks.sums().map(|(_, sum)| sum.changed_ms).max()?;
        let waited_ms = now_ms.saturating_sub(last_ms);
        let detail = format!(
            "all ranks are done, but their processes have not ended for {} s",
            waited_ms / 1000
        );
        (waited_ms >= self.thresholds.progress_timeout_ms)
            .then(|| ranks.breakage(FaultKind::RankHung, last_ms, None, detail))
    }

    /// Returns a breakage if a process is stopped that reports no progress: a rank that has not begun, or a process of the
    /// launcher.
    fn find_stopped(
        &self,
        now_ms: u64,
        ranks: &Ranks,
        heard: impl Fn(usize) -> bool,
        names: &[String],
    ) -> Option<Breakage> {
        let long = |since_ms| now_ms.saturating_sub(since_ms) >= self.thresholds.stopped_ms;
        let (&node, &since_ms) =
            self.stopped.iter().find(|(node, since)| long(**since) && heard(**node))?;
        if ranks.sums().any(|(_, sum)| sum.stopped) {
            return None;
        }
        let detail = format!(
            "on {}, a process of the run (not a working rank) has been stopped (state T) for {:.1} s",
            names[node],
            (now_ms - since_ms) as f64 / 1e3
        );
        Some(ranks.breakage(FaultKind::RankHung, since_ms, Some(node), detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::talk::progress::Progress;

    fn names() -> Vec<String> {
        (0..3).map(|node| format!("n{node}")).collect()
    }

    /// Simulates nodes with one rank each up to the moment `end`. Returns the first breakage and its moment. Every half-second
    /// `shows` is called with the moment and a node. It returns the heartbeat count, iteration and activity of the node's rank.
    /// Nodes for which `heard` returns false send nothing from the moment `still` on, and count as unresponsive.
    fn watched<const NODES: usize>(
        end: u64,
        still: u64,
        heard: impl Fn(usize) -> bool,
        shows: impl Fn(u64, usize) -> (u64, u64, Doing),
    ) -> Option<(u64, Breakage)> {
        let mut ranks = Ranks::default();
        let mut hang = Hang::new(Thresholds::default());
        (0..end).step_by(500).find_map(|now| {
            for node in 0..NODES {
                let (beat, iteration, doing) = shows(now, node);
                let position = node as u32;
                let progress =
                    Progress { position, pid: 5, beat, iteration, doing, ..Progress::default() };
                if now < still || heard(node) {
                    ranks.beat(now, node, &[Progress { state: 'S', ..progress }]);
                }
                hang.beat(now, node, 0);
            }
            let found = hang.find(now, &ranks, &heard, &names());
            found.map(|found| (now, found))
        })
    }

    /// Simulates two nodes with an iteration a second up to the moment `still`. After it the ranks show the activity `doing`,
    /// without progress. Node 1 is unresponsive then, unless `heard` is true.
    fn found(still: u64, end: u64, doing: Doing, heard: bool) -> Option<(u64, Breakage)> {
        watched::<2>(
            end,
            still,
            |node| node == 0 || heard,
            |now, _| {
                let at = now.min(still);
                (at / 500, at / 1000, if now >= still { doing } else { Doing::Computing })
            },
        )
    }

    #[test]
    fn iterations_are_the_yardstick_while_all_compute() {
        let (at, hung) = found(20_000, 60_000, Doing::Computing, true).unwrap();
        assert_eq!(hung.kind, FaultKind::RankHung);
        assert!((29_000..31_000).contains(&at), "{at}");
    }

    /// The first iteration takes minutes: a rank that is done with its part waits for a rank that computes.
    #[test]
    fn nothing_hangs_in_the_first_iterations_as_long_as_somebody_gets_on() {
        let found = |beats_until: u64, end: u64| {
            watched::<2>(
                end,
                end,
                |_| true,
                |now, node| {
                    let moves = now < if node == 0 { beats_until } else { 2_000 };
                    (if moves { now } else { beats_until } / 500, 0, Doing::Computing)
                },
            )
        };
        assert_eq!(found(400_000, 400_000), None);
        let (at, hung) = found(100_000, 400_000).unwrap();
        assert_eq!(hung.kind, FaultKind::RankHung);
        assert!((219_000..222_000).contains(&at), "{at}");
    }

    /// Iterations take five seconds; after a minute node 1 takes ten times as long. Node 1 is slow, and all other ranks wait for
    /// it without progress. When node 1 stops making progress, it hangs.
    #[test]
    fn a_slow_rank_for_which_all_wait_is_none_that_hangs() {
        let found = |end: u64, still: u64| {
            watched::<3>(
                end,
                end,
                |_| true,
                |now, node| {
                    // Work of node 1, in milliseconds of its earlier pace. The other ranks are at most two iterations ahead.
                    let did = now.min(60_000) + now.min(still).saturating_sub(60_000) / 10;
                    let done = if node == 1 { did } else { now.min((did / 5000 + 2) * 5000) };
                    (done / 50, done / 5000, Doing::Computing)
                },
            )
        };
        assert_eq!(found(1_000_000, u64::MAX), None);
        // The hang is noticed after three of the iterations that are usual by then.
        let (at, hung) = found(1_000_000, 400_000).unwrap();
        assert_eq!((hung.kind, hung.node), (FaultKind::RankHung, Some(1)));
        assert!((400_000..560_000).contains(&at), "{at}");
    }

    #[test]
    fn anything_else_may_take_its_time() {
        assert_eq!(found(20_000, 139_000, Doing::Saving, true), None);
        assert!(found(20_000, 150_000, Doing::Saving, true).is_some());
    }

    #[test]
    fn an_unresponsive_rank_is_not_the_one_that_hangs() {
        let (_, hung) = found(20_000, 60_000, Doing::Computing, false).unwrap();
        assert_eq!(hung.node, Some(0), "it is all that is seen");
    }

    #[test]
    fn a_stopped_process_without_progress_is_noticed() {
        let mut hang = Hang::new(Thresholds::default());
        let ranks = Ranks::default();
        hang.beat(0, 1, 1);
        assert_eq!(hang.find(8_900, &ranks, |_| true, &names()), None);
        assert_eq!(hang.find(9_000, &ranks, |_| false, &names()), None, "unseen");
        assert_eq!(hang.find(9_000, &ranks, |_| true, &names()).unwrap().node, Some(1));
        hang.beat(9_100, 1, 0);
        assert_eq!(hang.find(60_000, &ranks, |_| true, &names()), None);
    }
}
