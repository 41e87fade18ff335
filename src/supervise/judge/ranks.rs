//! Observed state of an attempt's ranks: progress, saves, deaths. Pure.
//!
//! `watch` passes the ranks of every heartbeat to [`Ranks::beat`]. `hang` and `watch` use the sums over a node's ranks. A rank is
//! dead if its process ends although the rank has work, and done if it has removed its memory.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::shm::header::CheckpointId;
use crate::supervise::remember::events::FaultKind;
use crate::supervise::talk::progress::{Doing, Progress, Role, words};

/// Reason why a run is broken.
#[derive(Clone, Debug, PartialEq)]
pub struct Breakage {
    pub kind: FaultKind,
    /// Last moment at which the failed part was known to be well.
    pub failed_ms: u64,
    pub node: Option<usize>,
    pub position: Option<u32>,
    pub test: u32,
    pub iteration: u64,
    pub detail: String,
}

/// Event of the run as a whole, shown by a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ranks compute for the first time in this attempt.
    Computing { test: u32, iteration: u64 },
    /// A save has ended.
    Saved { test: u32, iteration: u64 },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Rank {
    pub node: usize,
    pid: u32,
    pub last: Progress,
    pub changed_ms: u64,
    /// Moment at which the rank last reported that it waits for other ranks.
    waited_ms: Option<u64>,
    pub stopped_since_ms: Option<u64>,
    /// Moment at which the rank was last known to live, and moment at which its end was noticed.
    died: Option<(u64, u64)>,
    /// Moment at which the earlier process of this position was last known to live.
    before_ms: Option<u64>,
    /// Whether the other ranks continue without this rank.
    pub excused: bool,
    /// Whether the rank was idle when `changed_ms` was set: see [`Rank::stands_idle`].
    idle: bool,
}

impl Rank {
    pub fn is_dead(&self) -> bool {
        self.died.is_some()
    }
    /// Test and iteration that the rank was last seen to compute.
    pub fn at(&self) -> (u32, u64) {
        (self.last.test, self.last.iteration)
    }
    pub fn is_through(&self) -> bool {
        self.died.is_some() || self.last.doing == Doing::Done
    }
    /// Whether the rank has been done for a while in which other ranks made progress in computing. `computing_ms` is the moment
    /// of their last progress. An idle rank stays idle until it has work again.
    fn stands_idle(&self, computing_ms: Option<u64>) -> bool {
        let after_ms = computing_ms.map_or(0, |at| at.saturating_sub(self.changed_ms));
        self.idle || self.last.doing == Doing::Done && after_ms >= IDLE_MS
    }
    /// Sets the moment of the rank's last change. An idle rank stays idle.
    fn changed_at(&mut self, at_ms: u64, computing_ms: Option<u64>) {
        self.idle = self.stands_idle(computing_ms);
        self.changed_ms = at_ms;
    }
    /// Whether the rank has lately reported that it waits for other ranks.
    pub fn waits(&self, now_ms: u64) -> bool {
        self.waited_ms.is_some_and(|at| now_ms.saturating_sub(at) < WAITS_MS)
    }
}

/// Time for which other ranks must compute after a rank is done before this rank counts as idle. A shorter time shows nothing,
/// because the heartbeats of two nodes are not simultaneous.
const IDLE_MS: u64 = 1000;

/// Time for which a report of waiting counts. A waiting rank reports several times between two heartbeats, and heartbeats may be
/// late.
const WAITS_MS: u64 = 5000;

/// Number of recent iterations. The longest of their times counts as the usual time of an iteration.
const RECENT: usize = 8;

/// Ranks of a node.
#[derive(Clone, Debug, Default)]
struct Node {
    /// Moment of the node's last heartbeat.
    heard_ms: u64,
    /// All positions whose ranks have been on the node.
    positions: BTreeSet<u32>,
    /// Ranks in the node's last heartbeat.
    seen: Vec<Progress>,
    sum: Sum,
}

/// Sums over the ranks of a node, computed only when a rank of the node has changed. With hundreds of thousands of ranks,
/// computing them at every tick of the watch would take more than one core.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    /// Whether a working rank does something other than compute.
    elsewhere: bool,
    /// Number of ranks in each activity.
    doing: [usize; DOINGS],
    /// Place of the working ranks that are furthest behind, with the moment of the last progress of one of them.
    pub hindmost: Option<Place>,
    /// Moment of the last progress of any rank.
    pub changed_ms: u64,
    /// Earliest moment since which a living rank has been stopped, or `None` if no living rank is stopped.
    pub stopped_since_ms: Option<u64>,
    /// Whether a rank is stopped, or was when it died.
    pub stopped: bool,
}

/// Test and iteration that a rank has reached, and the moment of its last progress.
type Place = ((u32, u64), u64);

const DOINGS: usize = Doing::Done as usize + 1;

impl Sum {
    fn add(&mut self, rank: &Rank) {
        self.doing[rank.last.doing as usize] += 1;
        self.changed_ms = self.changed_ms.max(rank.changed_ms);
        self.stopped |= rank.stopped_since_ms.is_some();
        if let Some(since_ms) = rank.stopped_since_ms.filter(|_| !rank.is_dead()) {
            self.stopped_since_ms =
                Some(self.stopped_since_ms.map_or(since_ms, |at| at.min(since_ms)));
        }
        if !rank.is_through() {
            self.elsewhere |= rank.last.doing != Doing::Computing;
            self.hindmost = hindmost(self.hindmost, Some((rank.at(), rank.changed_ms)));
        }
    }
}

/// Returns the place that is further behind. If both are the same place, returns it with the later moment.
pub(super) fn hindmost(one: Option<Place>, other: Option<Place>) -> Option<Place> {
    one.into_iter().chain(other).reduce(|(at, ms), (other, other_ms)| match at.cmp(&other) {
        Ordering::Less => (at, ms),
        Ordering::Equal => (at, ms.max(other_ms)),
        Ordering::Greater => (other, other_ms),
    })
}

/// All ranks that have appeared in an attempt.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    ranks: BTreeMap<u32, Rank>,
    on: BTreeMap<usize, Node>,
    /// Positions of ranks that have died.
    dead: BTreeSet<u32>,
    computing: bool,
    saved: Option<CheckpointId>,
    test: u32,
    /// Says whether the supervisor has seen the test begin. If so, no checkpoint of the test is older than the first heartbeat.
    whole_test: bool,
    /// Times of the last iterations, by the rank that is furthest.
    recent_ms: VecDeque<u64>,
    foremost: u64,
    foremost_ms: Option<u64>,
    /// Longest time without progress outside of iterations.
    pub(super) longest_other_ms: u64,
    /// Moment of the last progress of any rank. Every heartbeat needs it, so it is kept rather than searched for among all ranks.
    pub(super) latest_ms: Option<u64>,
    /// Events shown by the heartbeat that is being taken in.
    steps: Vec<Step>,
    /// Moment at which a living rank last made progress in computing. Idle ranks are derived from it when they are needed. With
    /// thousands of nodes, going through all ranks with every heartbeat would take more than one core.
    computing_ms: Option<u64>,
}

impl Ranks {
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.values()
    }

    /// Returns the sums over the ranks of each node.
    pub(super) fn sums(&self) -> impl Iterator<Item = (usize, &Sum)> {
        self.on.iter().map(|(node, state)| (*node, &state.sum))
    }

    /// Whether all working ranks compute.
    pub(super) fn in_step(&self) -> bool {
        self.sums().all(|(_, sum)| !sum.elsewhere)
    }

    /// Whether all ranks that have appeared are done, or have ended.
    pub fn all_through(&self) -> bool {
        self.sums().all(|(_, sum)| sum.hindmost.is_none())
    }

    /// Computes the sums of `nodes`, whose ranks have changed.
    fn sum_up(&mut self, nodes: impl IntoIterator<Item = usize>) {
        for node in nodes {
            let Some(state) = self.on.get_mut(&node) else { continue };
            let mut sum = Sum::default();
            let here = state.positions.iter().filter_map(|position| self.ranks.get(position));
            here.filter(|rank| rank.node == node).for_each(|rank| sum.add(rank));
            state.sum = sum;
        }
    }

    fn sum_all_up(&mut self) {
        let nodes: Vec<usize> = self.on.keys().copied().collect();
        self.sum_up(nodes);
    }

    /// Returns the test, and the furthest iteration of any rank.
    pub fn front(&self) -> (u32, u64) {
        (self.test, self.foremost)
    }

    /// Returns the test and the iteration at which the rank of a position was last seen.
    pub fn seen_at(&self, position: u32) -> Option<(u32, u64)> {
        Some(self.ranks.get(&position)?.at())
    }

    /// Returns the most frequent activity of the ranks.
    pub fn doing(&self) -> Doing {
        let count =
            |word: &u64| -> usize { self.sums().map(|(_, sum)| sum.doing[*word as usize]).sum() };
        let most = (0..DOINGS as u64).max_by_key(count).filter(|_| !self.is_empty());
        most.and_then(Doing::from_word).unwrap_or(Doing::Starting)
    }

    /// Returns the usual time of an iteration in milliseconds, once the times of three are known.
    pub fn iteration_ms(&self) -> Option<u64> {
        (self.recent_ms.len() >= 3).then(|| self.recent_ms.iter().copied().max().unwrap_or(0))
    }

    /// Returns the ranks whose death was noticed and not recovered. Each has the moment at which it was last known to live, and
    /// the moment at which its death was noticed.
    fn deaths(&self) -> impl Iterator<Item = (&Rank, (u64, u64))> {
        let dead = self.dead.iter().filter_map(|position| self.ranks.get(position));
        dead.filter(|rank| !rank.excused).filter_map(|rank| Some((rank, rank.died?)))
    }

    /// Returns the first death that was noticed and not recovered: the last moment at which the rank was known to live, its node
    /// and its position.
    pub fn first_death(&self) -> Option<(u64, usize, u32)> {
        let first = self.deaths().min_by_key(|(_, (_, noticed_ms))| *noticed_ms);
        first.map(|(rank, (failed_ms, _))| (failed_ms, rank.node, rank.last.position))
    }

    /// Returns the last moment at which a process of this position that has died was known to live. If several have died, the
    /// last counts, even if another process has replaced it.
    pub fn last_lived_ms(&self, position: u32) -> Option<u64> {
        let rank = self.ranks.get(&position)?;
        rank.died.map(|(lived_ms, _)| lived_ms).or(rank.before_ms)
    }

    /// Returns the positions and roles of each node's ranks, without dead ranks. If positions may stay `vacant`, idle ranks are
    /// left out, too.
    pub fn positions(&self, vacant: bool) -> BTreeMap<usize, Vec<(u32, Role)>> {
        let mut positions: BTreeMap<usize, Vec<(u32, Role)>> = BTreeMap::new();
        let idle = |rank: &Rank| rank.stands_idle(self.computing_ms);
        let has_part = |rank: &&Rank| !(rank.is_dead() || vacant && idle(rank));
        for rank in self.ranks.values().filter(has_part) {
            positions.entry(rank.node).or_default().push((rank.last.position, rank.last.role));
        }
        positions
    }

    /// Notes that the other ranks continue without the rank of this position. The rank's death is then no fault, even if it was
    /// noticed before this call.
    pub fn excuse(&mut self, position: u32) {
        if let Some(rank) = self.ranks.get_mut(&position) {
            rank.excused = true;
        }
    }

    /// Returns the node and the process id of the rank of this position.
    pub fn process_of(&self, position: u32) -> Option<(usize, u32)> {
        self.ranks.get(&position).map(|rank| (rank.node, rank.pid))
    }

    /// Notes that all ranks resume at an earlier iteration.
    pub fn set_back(&mut self, now_ms: u64, iteration: u64) {
        self.foremost = self.foremost.min(iteration);
        self.foremost_ms = Some(now_ms);
    }

    /// Takes in a heartbeat with the state of all ranks on `node`.
    pub fn beat(&mut self, now_ms: u64, node: usize, ranks: &[Progress]) -> Vec<Step> {
        let fresh = || Node { heard_ms: now_ms, ..Node::default() };
        let state = self.on.entry(node).or_insert_with(fresh);
        let before_ms = std::mem::replace(&mut state.heard_ms, now_ms);
        if state.seen == ranks {
            return Vec::new();
        }
        let last = std::mem::replace(&mut state.seen, ranks.to_vec());
        let mut gets_on = false;
        let mut touched = BTreeSet::from([node]);
        for (at, seen) in ranks.iter().enumerate() {
            // A rank with an unchanged state has made no progress.
            if last.get(at) != Some(seen) {
                let from = self.ranks.get(&seen.position).map(|rank| rank.node);
                gets_on |= self.rank(now_ms, before_ms, node, seen);
                touched.extend(from);
            }
        }
        let positions =
            |ranks: &[Progress]| -> Vec<u32> { ranks.iter().map(|seen| seen.position).collect() };
        if positions(&last) != positions(ranks) {
            self.miss(now_ms, node, &positions(ranks).into_iter().collect());
        }
        if gets_on {
            self.computing_ms = self.computing_ms.max(Some(now_ms));
        }
        self.sum_up(touched);
        std::mem::take(&mut self.steps)
    }

    /// Notes the ranks of a node that are missing in its heartbeat. `here` has the positions in the heartbeat. A missing rank
    /// has removed its memory and is done, although its process may take a moment to end.
    fn miss(&mut self, now_ms: u64, node: usize, here: &BTreeSet<u32>) {
        let Some(state) = self.on.get(&node) else { return };
        for position in state.positions.difference(here) {
            if let Some(rank) = self.ranks.get_mut(position)
                && rank.node == node
                && rank.last.doing != Doing::Done
            {
                rank.last.doing = Doing::Done;
                rank.changed_ms = now_ms;
                self.latest_ms = self.latest_ms.max(Some(now_ms));
            }
        }
    }

    /// Takes in a rank of a heartbeat. Returns whether the rank lives and makes progress in computing.
    fn rank(&mut self, now_ms: u64, before_ms: u64, node: usize, progress: &Progress) -> bool {
        let gone = !progress.lives();
        let Some(rank) = self.ranks.get_mut(&progress.position) else {
            // Memory left by an earlier attempt is not a rank that died.
            if gone {
                return false;
            }
            let rank = Rank {
                node,
                pid: progress.pid,
                last: *progress,
                changed_ms: now_ms,
                ..Rank::default()
            };
            self.ranks.insert(progress.position, rank);
            self.latest_ms = self.latest_ms.max(Some(now_ms));
            self.on.entry(node).or_default().positions.insert(progress.position);
            self.advance(now_ms, progress);
            return progress.doing == Doing::Computing;
        };
        // Processes of two nodes may have the same process id.
        if (rank.node, rank.pid) != (node, progress.pid) {
            if gone {
                return false;
            }
            let elsewhere = self.on.get(&rank.node).filter(|_| rank.node != node);
            let heard_ms = elsewhere.map_or(before_ms, |state| state.heard_ms);
            rank.before_ms = Some(rank.died.take().map_or(heard_ms, |(lived_ms, _)| lived_ms));
            self.dead.remove(&progress.position);
            (rank.node, rank.pid) = (node, progress.pid);
            rank.excused = false;
            self.on.entry(node).or_default().positions.insert(progress.position);
        }
        rank.last.state = progress.state;
        if gone {
            // A rank that is done may end.
            if !rank.is_through() && progress.doing != Doing::Done {
                rank.died = Some((before_ms, now_ms));
                self.dead.insert(progress.position);
                // The memory that the rank has left shows its last iteration, which may be later than the last heartbeat.
                (rank.last.test, rank.last.iteration) = (progress.test, progress.iteration);
            }
            return false;
        }
        self.take_sample(now_ms, progress)
    }

    /// Takes in a sample of a known rank that lives. Returns whether the rank makes progress in computing.
    fn take_sample(&mut self, now_ms: u64, progress: &Progress) -> bool {
        let latest_ms = self.latest_ms.unwrap_or(now_ms);
        let Some(rank) = self.ranks.get_mut(&progress.position) else { return false };
        rank.idle = progress.doing == Doing::Done && rank.stands_idle(self.computing_ms);
        rank.stopped_since_ms = match progress.state {
            'T' | 't' => rank.stopped_since_ms.or(Some(now_ms)),
            _ => None,
        };
        let last = rank.last;
        if last.waits != progress.waits {
            rank.waited_ms = Some(now_ms);
            rank.last.waits = progress.waits;
        }
        let changed = (last.beat, last.iteration, last.doing)
            != (progress.beat, progress.iteration, progress.doing);
        let computes = progress.doing == Doing::Computing && changed && !rank.is_dead();
        if changed {
            if !matches!(last.doing, Doing::Computing | Doing::Done) {
                let still_ms = now_ms.saturating_sub(latest_ms);
                self.longest_other_ms = self.longest_other_ms.max(still_ms);
            }
            rank.changed_ms = now_ms;
            self.latest_ms = self.latest_ms.max(Some(now_ms));
            rank.last = *progress;
        }
        self.advance(now_ms, progress);
        computes
    }

    /// Derives the events of the run as a whole from a new sample.
    fn advance(&mut self, now_ms: u64, progress: &Progress) {
        let works = matches!(
            progress.doing,
            Doing::Computing | Doing::Saving | Doing::Solving | Doing::Verifying | Doing::Done
        );
        if progress.test > self.test {
            // In another test iterations count from zero again, and checkpoints from one.
            self.whole_test = self.computing;
            self.test = progress.test;
            self.saved = None;
            self.foremost = progress.iteration;
            self.foremost_ms = Some(now_ms);
            self.recent_ms.clear();
        }
        if works && !self.computing {
            self.computing = true;
            self.foremost = progress.iteration;
            self.foremost_ms = Some(now_ms);
            self.steps.push(Step::Computing { test: progress.test, iteration: progress.iteration });
        }
        if let Some((checkpoint, at)) = progress.saved
            && self.computing
            && progress.test == self.test
            && self.saved.is_none_or(|last| last < checkpoint)
        {
            // A checkpoint that existed before the first heartbeat is no event.
            if self.saved.replace(checkpoint).is_some() || checkpoint.number == 1 || self.whole_test
            {
                self.steps.push(Step::Saved { test: progress.test, iteration: at });
            }
        }
        if self.computing && progress.test == self.test && progress.iteration > self.foremost {
            if let Some(last_ms) = self.foremost_ms {
                // If several iterations passed between two samples, each gets an equal part of the time.
                let each =
                    now_ms.saturating_sub(last_ms).div_ceil(progress.iteration - self.foremost);
                if self.recent_ms.len() == RECENT {
                    self.recent_ms.pop_front();
                }
                self.recent_ms.push_back(each);
            }
            self.foremost = progress.iteration;
            self.foremost_ms = Some(now_ms);
        }
    }

    /// Returns a breakage for the first rank whose death was noticed at least `grace_ms` ago.
    pub fn dead(&self, now_ms: u64, grace_ms: u64, names: &[String]) -> Option<Breakage> {
        let long_ago = self.deaths().filter(|(_, (_, at))| now_ms.saturating_sub(*at) >= grace_ms);
        // Ranks that died later may have been ended because of the first one.
        let (rank, (failed_ms, _)) = long_ago.min_by_key(|(_, (_, noticed_ms))| *noticed_ms)?;
        let position = rank.last.position;
        let detail = format!(
            "the process of position {position} on {} ended while it was {}",
            names[rank.node],
            words(rank.last.doing)
        );
        let (test, iteration) = self.front().max(rank.at());
        let breakage = self.breakage(FaultKind::RankDied, failed_ms, Some(rank.node), detail);
        Some(Breakage { position: Some(position), test, iteration, ..breakage })
    }

    /// Returns a failure that breaks the run, at the test and the furthest iteration that ranks have reached. It names no grid
    /// position.
    pub(super) fn breakage(
        &self,
        kind: FaultKind,
        failed_ms: u64,
        node: Option<usize>,
        detail: String,
    ) -> Breakage {
        let (test, iteration) = self.front();
        Breakage { kind, failed_ms, node, position: None, test, iteration, detail }
    }

    /// Notes that a node answers again after it was unresponsive. The progress of its ranks in that time is unknown.
    pub fn heard_again(&mut self, now_ms: u64, node: usize) {
        let state = self.on.entry(node).or_default();
        state.heard_ms = now_ms;
        for position in &state.positions {
            if let Some(rank) = self.ranks.get_mut(position) {
                rank.changed_at(now_ms, self.computing_ms);
                self.latest_ms = self.latest_ms.max(Some(now_ms));
            }
        }
        // A rank that was on this node may be on another node now.
        self.sum_all_up();
    }

    /// Moves all noted moments forward by `gap_ms`, so that this time does not count: no node could be heard, or the ranks waited
    /// for a dead rank.
    pub fn forgive(&mut self, gap_ms: u64) {
        let later = |at: &mut u64| *at += gap_ms;
        self.on.values_mut().for_each(|state| later(&mut state.heard_ms));
        for rank in self.ranks.values_mut() {
            rank.changed_at(rank.changed_ms + gap_ms, self.computing_ms);
            rank.waited_ms.iter_mut().for_each(later);
            rank.stopped_since_ms.iter_mut().for_each(later);
            if let Some(died) = &mut rank.died {
                later(&mut died.1);
            }
        }
        self.foremost_ms.iter_mut().for_each(later);
        self.latest_ms.iter_mut().for_each(later);
        self.sum_all_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(position: u32, beat: u64, iteration: u64, state: char) -> Progress {
        let doing = Doing::Computing;
        let pid = 7 + position;
        Progress { position, pid, beat, iteration, doing, state, ..Progress::default() }
    }
    fn names() -> Vec<String> {
        (0..10).map(|node| format!("n{node}")).collect()
    }

    #[test]
    fn the_foremost_counts() {
        let mut ranks = Ranks::default();
        assert_eq!(
            ranks.beat(0, 0, &[seen(0, 1, 5, 'R')]),
            [Step::Computing { test: 0, iteration: 5 }]
        );
        assert_eq!(ranks.beat(0, 1, &[seen(1, 1, 4, 'R'), seen(2, 1, 3, 'R')]), []);
        assert_eq!(ranks.front(), (0, 5));
        for at in 1..5 {
            ranks.beat(1000 * at, 0, &[seen(0, 1 + at, 5 + at, 'R')]);
        }
        assert_eq!(ranks.iteration_ms(), Some(1000));
    }

    /// Position 0 is lost, and no rank takes it. Position 1, of the same process column, has no work any more. Position 2
    /// continues.
    #[test]
    fn a_rank_replaced_in_place_is_no_fault_and_an_idle_one_has_no_position() {
        for told_first in [true, false] {
            let mut ranks = Ranks::default();
            for node in 0..3u32 {
                ranks.beat(0, node as usize, &[seen(node, 1, 5, 'R')]);
            }
            if told_first {
                ranks.excuse(0);
            }
            ranks.beat(500, 0, &[seen(0, 1, 5, 'X')]);
            assert_eq!(ranks.dead(9_000, 300, &names()).is_none(), told_first);
            ranks.excuse(0);
            ranks.beat(500, 1, &[]);
            ranks.beat(1000, 2, &[seen(2, 9, 6, 'R')]);
            assert_eq!(ranks.positions(true).len(), 2, "it may be the end");
            ranks.beat(1500, 2, &[seen(2, 10, 7, 'R')]);
            assert_eq!(ranks.positions(false).len(), 2);
            assert_eq!((ranks.dead(9_000, 300, &names()), ranks.first_death()), (None, None));
            assert_eq!(ranks.positions(true), BTreeMap::from([(2, vec![(2, Role::Own)])]));
            // In another test another process takes position 0, and its death counts.
            ranks.beat(2000, 1, &[seen(0, 1, 0, 'R'), seen(1, 9, 6, 'R')]);
            assert_eq!(ranks.positions(true)[&1].len(), 2);
            ranks.beat(2500, 1, &[seen(0, 1, 0, 'X'), seen(1, 9, 6, 'R')]);
            assert!(ranks.dead(9_000, 300, &names()).is_some());
        }
    }

    fn idle(ranks: &Ranks) -> Vec<u32> {
        let positions = |vacant| -> BTreeSet<u32> {
            ranks.positions(vacant).into_values().flatten().map(|(position, _)| position).collect()
        };
        positions(false).difference(&positions(true)).copied().collect()
    }

    /// Position 1 is done at 1000 ms, and position 0 computes.
    fn one_is_through() -> Ranks {
        let mut ranks = Ranks::default();
        ranks.beat(0, 0, &[seen(0, 1, 5, 'R')]);
        ranks.beat(0, 1, &[seen(1, 1, 5, 'R')]);
        ranks.beat(1000, 1, &[]);
        ranks
    }

    #[test]
    fn a_rank_that_is_through_stands_idle_once_others_have_got_on_for_a_while() {
        for (after_ms, stands) in [(IDLE_MS - 1, false), (IDLE_MS, true)] {
            let mut ranks = one_is_through();
            ranks.beat(1000 + after_ms, 0, &[seen(0, 2, 6, 'R')]);
            // No rank makes progress after that, so the idle time does not grow.
            ranks.beat(9000, 0, &[seen(0, 2, 6, 'R')]);
            ranks.beat(9000, 1, &[]);
            assert_eq!(idle(&ranks), if stands { vec![1] } else { vec![] }, "{after_ms}");
        }
        // A rank that only waits, solves or dies makes no progress in computing.
        let mut others = [seen(0, 1, 5, 'R'), seen(0, 2, 5, 'R'), seen(0, 2, 6, 'X')];
        others[0].waits = 9;
        others[1].doing = Doing::Solving;
        for other in others {
            let mut ranks = one_is_through();
            ranks.beat(5000, 0, &[other]);
            assert_eq!(idle(&ranks), [0u32; 0], "{other:?}");
        }
        // A new rank makes progress in computing.
        let mut ranks = one_is_through();
        ranks.beat(5000, 2, &[seen(2, 1, 6, 'R')]);
        assert_eq!(idle(&ranks), [1]);
    }

    #[test]
    fn an_idle_rank_stays_idle_until_it_has_something_to_do() {
        let stands = || {
            let mut ranks = one_is_through();
            ranks.beat(2000, 0, &[seen(0, 2, 6, 'R')]);
            ranks
        };
        let mut done = seen(1, 2, 5, 'R');
        done.doing = Doing::Done;
        type Event = fn(&mut Ranks, Progress);
        let kept: [Event; 4] = [
            |ranks, _| ranks.heard_again(2500, 1),
            |ranks, _| ranks.forgive(60_000),
            |ranks, done| _ = ranks.beat(2500, 1, &[done]),
            |ranks, _| _ = ranks.beat(2500, 1, &[seen(1, 2, 5, 'Z')]),
        ];
        for (at, event) in kept.iter().enumerate() {
            let mut ranks = stands();
            event(&mut ranks, done);
            ranks.beat(2600, 0, &[seen(0, 3, 7, 'R')]);
            assert_eq!(idle(&ranks), [1], "{at}");
        }
        // A rank that begins from scratch is not idle. Nor is it idle at once when it is done again.
        let mut ranks = stands();
        ranks.beat(2500, 1, &[seen(1, 2, 0, 'R')]);
        assert_eq!(idle(&ranks), [0u32; 0]);
        ranks.beat(4000, 1, &[done]);
        ranks.beat(4000 + IDLE_MS - 1, 0, &[seen(0, 4, 7, 'R')]);
        assert_eq!(idle(&ranks), [0u32; 0]);
        ranks.beat(4000 + IDLE_MS, 0, &[seen(0, 5, 7, 'R')]);
        assert_eq!(idle(&ranks), [1]);
    }

    /// Time in which no node could be heard does not make ranks idle.
    #[test]
    fn time_in_which_nobody_could_be_seen_makes_nobody_idle() {
        type Event = fn(&mut Ranks);
        let events: [Event; 2] =
            [|ranks| ranks.forgive(60_000), |ranks| ranks.heard_again(61_000, 1)];
        for (at, event) in events.iter().enumerate() {
            let mut ranks = one_is_through();
            event(&mut ranks);
            ranks.beat(61_000 + IDLE_MS - 1, 0, &[seen(0, 2, 6, 'R')]);
            assert_eq!(idle(&ranks), [0u32; 0], "{at}");
            ranks.beat(61_000 + IDLE_MS, 0, &[seen(0, 3, 6, 'R')]);
            assert_eq!(idle(&ranks), [1], "{at}");
        }
    }

    /// There are 4096 nodes, and the ranks of every second node are done. If each heartbeat went through all ranks, this test
    /// would take most of a minute.
    #[test]
    fn an_idle_rank_among_many_is_known_however_many_beat() {
        const NODES: u32 = 4096;
        const EACH: u32 = 8;
        let mut ranks = Ranks::default();
        for round in 0..3 {
            for node in 0..NODES {
                let works = node % 2 == 0 || round == 0;
                let here = (node * EACH..(node + 1) * EACH).filter(|_| works);
                let beat: Vec<Progress> = here.map(|p| seen(p, round, round, 'R')).collect();
                ranks.beat(500 * round + u64::from(node) / 16, node as usize, &beat);
            }
        }
        assert_eq!(idle(&ranks), [0u32; 0]);
        // The first ranks were done at 500 ms, those of the last eight nodes at 755 ms.
        let through = |below: u32| -> Vec<u32> {
            (0..below * EACH).filter(|position| position / EACH % 2 == 1).collect()
        };
        for (now_ms, below) in [(754 + IDLE_MS, NODES - 16), (755 + IDLE_MS, NODES)] {
            ranks.beat(now_ms, 0, &[seen(0, now_ms, 3, 'R')]);
            assert_eq!(idle(&ranks), through(below), "{now_ms}");
        }
    }

    #[test]
    fn a_death_is_dated_by_the_last_heartbeat_before_it() {
        let mut ranks = Ranks::default();
        ranks.beat(0, 3, &[seen(0, 1, 5, 'R')]);
        ranks.beat(500, 3, &[seen(0, 2, 6, 'R')]);
        ranks.beat(1000, 3, &[seen(0, 2, 6, 'X')]);
        assert_eq!(ranks.dead(1200, 300, &names()), None);
        let found = ranks.dead(1300, 300, &names()).unwrap();
        assert_eq!((found.failed_ms, found.node, found.position), (500, Some(3), Some(0)));
        assert!(found.detail.contains("n3"), "{}", found.detail);
        assert!(ranks.all_through());
    }

    /// Ranks that are ended after the first death may be at a later or earlier iteration, and may have a lower position.
    #[test]
    fn the_first_to_die_is_told_with_how_far_it_had_come_by_what_it_left() {
        let mut ranks = Ranks::default();
        ranks.beat(0, 3, &[seen(6, 1, 5, 'R'), seen(7, 1, 5, 'R')]);
        ranks.beat(0, 4, &[seen(1, 1, 5, 'R')]);
        ranks.beat(500, 3, &[seen(6, 2, 12, 'R'), seen(7, 2, 9, 'X')]);
        ranks.beat(510, 4, &[seen(1, 2, 14, 'X')]);
        ranks.beat(520, 3, &[seen(6, 3, 15, 'X'), seen(7, 2, 9, 'X')]);
        let found = ranks.dead(900, 300, &names()).unwrap();
        assert_eq!((found.node, found.position), (Some(3), Some(7)));
        assert_eq!((found.test, found.iteration), (0, 12), "the furthest that was seen alive");
        assert_eq!([7, 1, 6].map(|p| ranks.seen_at(p).unwrap()), [(0, 9), (0, 14), (0, 15)]);
    }

    #[test]
    fn memory_without_a_process_is_no_rank_and_removed_memory_is_no_death() {
        let mut ranks = Ranks::default();
        ranks.beat(0, 0, &[seen(0, 1, 5, 'X')]);
        assert!(ranks.is_empty());
        ranks.beat(500, 0, &[seen(0, 1, 5, 'R')]);
        ranks.beat(1000, 0, &[]);
        assert!(ranks.all_through());
        assert_eq!(ranks.dead(90_000, 0, &names()), None);
    }

    /// The memory of a dead rank stays on its node although a rank on another node has taken its position.
    #[test]
    fn a_rank_that_replaces_a_dead_one_elsewhere_lives_under_any_pid() {
        for pid in [8, 9] {
            let mut ranks = Ranks::default();
            ranks.beat(0, 1, &[seen(1, 1, 5, 'R')]);
            ranks.beat(500, 1, &[seen(1, 1, 5, 'X')]);
            let mut taker = seen(1, 1, 4, 'R');
            taker.pid = pid;
            for at in 1..9 {
                taker.beat += 1;
                ranks.beat(500 + 1000 * at, 4, &[taker]);
                ranks.beat(600 + 1000 * at, 1, &[seen(1, 1, 5, 'X')]);
                assert_eq!(ranks.dead(600 + 1000 * at, 300, &names()), None, "pid {pid}");
            }
            assert_eq!(ranks.last_lived_ms(1), Some(0));
            assert_eq!(ranks.positions(false), BTreeMap::from([(4, vec![(1, Role::Own)])]));
            ranks.set_back(9000, 2);
            assert_eq!(ranks.front(), (0, 2));
        }
    }

    #[test]
    fn an_earlier_save_is_no_news() {
        let mut ranks = Ranks::default();
        let at = |number, boundary| {
            let mut seen = seen(0, number, boundary, 'R');
            seen.saved = Some((CheckpointId { number, made: 1 }, boundary));
            [seen]
        };
        assert_eq!(ranks.beat(0, 0, &at(3, 12)), [Step::Computing { test: 0, iteration: 12 }]);
        assert_eq!(ranks.beat(500, 0, &at(4, 16)), [Step::Saved { test: 0, iteration: 16 }]);
        assert_eq!(ranks.beat(900, 0, &at(4, 16)), []);
    }

    /// In another test of a sweep the numbers of checkpoints and iterations start again.
    #[test]
    fn each_test_has_its_own_saves() {
        let at = |position, test, number, iteration| {
            let mut seen = seen(position, 100 * u64::from(test) + number, iteration, 'R');
            let saved = Some((CheckpointId { number, made: 1 }, iteration));
            (seen.test, seen.saved) = (test, saved.filter(|_| number > 0));
            [seen]
        };
        let saves = |steps: Vec<Step>| -> Vec<u64> {
            let of = |step| match step {
                Step::Saved { iteration, .. } => Some(iteration),
                _ => None,
            };
            steps.into_iter().filter_map(of).collect()
        };
        const NONE: [u64; 0] = [];
        let mut ranks = Ranks::default();
        let mut told = Vec::new();
        for number in 0..=5 {
            told.extend(saves(ranks.beat(500 * number, 0, &at(0, 0, number, 8 * number))));
            told.extend(saves(ranks.beat(500 * number, 1, &at(1, 0, number, 8 * number))));
        }
        assert_eq!(told, [8, 16, 24, 32, 40]);
        assert_eq!(saves(ranks.beat(3000, 0, &at(0, 1, 0, 0))), NONE);
        assert_eq!(saves(ranks.beat(3000, 1, &at(1, 0, 5, 41))), NONE, "it is behind");
        assert_eq!(saves(ranks.beat(3500, 0, &at(0, 1, 1, 8))), [8]);
        assert_eq!(saves(ranks.beat(4000, 1, &at(1, 1, 1, 8))), NONE);
        // The first save of a test may end between two heartbeats.
        assert_eq!(saves(ranks.beat(4500, 0, &at(0, 2, 0, 0))), NONE);
        assert_eq!(saves(ranks.beat(5000, 0, &at(0, 2, 2, 16))), [16]);
        // If an attempt begins with a checkpoint of the test, that checkpoint is no event.
        let mut again = Ranks::default();
        assert_eq!(saves(again.beat(0, 0, &at(0, 2, 2, 16))), NONE);
        assert_eq!(saves(again.beat(500, 0, &at(0, 2, 3, 24))), [24]);
    }
}
