//! Judgement of nodes that compute slowly, from the ranks' own work. Pure.
//!
//! In a factorisation every rank waits for the slowest, so the time of an iteration is the same on all nodes and shows nothing.
//! But each rank publishes how long it has multiplied, without waiting, and the number of operations in that time. A throttled
//! processor, or one that another program uses, takes longer for each operation. [`Pace`] compares every rank's time per
//! operation with the median of the ranks on other nodes, in periods of some seconds. A single slow period means nothing:
//! machines with more ranks than cores have many. If a rank is slow in several periods in a row, its node is named, once.

use std::collections::{BTreeMap, BTreeSet};

use crate::supervise::talk::progress::{Doing, Progress};

/// Number of slow periods in a row before a node is reported as slow.
const STRETCHES: u32 = 3;
/// Number of periods without a heartbeat of a computing rank after which the rank is left out of the comparison.
const GONE_STRETCHES: u64 = 10;
/// Least share of a period in which a rank must have multiplied to count as slow. The shares of the other ranks do not matter,
/// because they wait for the slow rank.
const BUSY_SHARE: f64 = 0.05;
/// Least work of each rank in a period, as a share of the operations of the rank with the most. If a rank has less, the work is
/// uneven, as at the end of a run, and is not compared.
const EVEN_SHARE: f64 = 0.3;
/// Least number of ranks on other nodes for a median.
const OTHERS_LEAST: usize = 2;

/// Work that a rank reports, counted from its process's start.
#[derive(Clone, Copy, Debug)]
struct Work {
    pid: u32,
    busy_us: u64,
    flops: u64,
}

#[derive(Clone, Debug)]
struct Rank {
    node: usize,
    seen_ms: u64,
    base: Work,
    last: Work,
    slow: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Factor on the median time per operation. A rank that takes longer than that is slow in this period.
    factor: f64,
    /// Time for which a rank must be slow before its node is named.
    after_ms: u64,
    ranks: BTreeMap<u32, Rank>,
    since_ms: Option<u64>,
    told: BTreeSet<usize>,
}

impl Pace {
    pub fn new(factor: f64, after_ms: u64) -> Self {
        Self { factor, after_ms, ..Self::default() }
    }

    /// Takes in the progress of a rank from a heartbeat of `node`.
    pub fn see(&mut self, now_ms: u64, node: usize, seen: &Progress) {
        let Progress { position, pid, busy_us, flops, .. } = *seen;
        // A rank that has only checksum columns may never multiply. Other ranks have not begun yet.
        if seen.doing != Doing::Computing || !seen.lives() || flops == 0 {
            return;
        }
        let work = Work { pid, busy_us, flops };
        let fresh = Rank { node, seen_ms: now_ms, base: work, last: work, slow: 0 };
        let rank = self.ranks.entry(position).or_insert_with(|| fresh.clone());
        // Another process, or another test in the same one, counts from zero again.
        let goes_on = rank.last.pid == work.pid
            && rank.last.busy_us <= work.busy_us
            && rank.last.flops <= work.flops;
        if goes_on && rank.node == node {
            rank.seen_ms = now_ms;
            rank.last = work;
        } else {
            *rank = fresh;
        }
    }

    /// Leaves out a time in which no node computed: the period begins again.
    pub fn pause(&mut self, now_ms: u64) {
        self.ranks.values_mut().for_each(|rank| rank.seen_ms = now_ms);
        self.begin(now_ms);
    }

    fn begin(&mut self, now_ms: u64) {
        self.since_ms = Some(now_ms);
        for rank in self.ranks.values_mut() {
            rank.base = rank.last;
        }
    }

    /// Judges the period if its time is over. The supervisor calls it regularly. Returns the nodes found slow, each with a
    /// description.
    pub fn tick(&mut self, now_ms: u64) -> Vec<(usize, String)> {
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        let stretch_ms = (self.after_ms / u64::from(STRETCHES)).max(1);
        let passed_ms = now_ms.saturating_sub(since_ms);
        if passed_ms < stretch_ms {
            return Vec::new();
        }
        self.ranks.retain(|_, r| now_ms.saturating_sub(r.seen_ms) < GONE_STRETCHES * stretch_ms);
        // An iteration may be longer than a period. The period then lasts until ranks can be compared.
        let Some(costs) = self.costs(passed_ms) else { return Vec::new() };
        let mut found = Vec::new();
        let sorted = Sorted::new(&costs);
        for (cost, rank) in costs.iter().zip(self.ranks.values_mut()) {
            let (own, position) = (cost.each, cost.position);
            let times = match sorted.median_of_others(cost.node) {
                Some(usual) if usual > 0.0 => own / usual,
                _ => 0.0,
            };
            let slow = cost.busy && times > self.factor;
            rank.slow = if slow { rank.slow + 1 } else { 0 };
            if rank.slow >= STRETCHES && self.told.insert(rank.node) {
                let detail = format!(
                    "position {position} takes {times:.1} times as long as positions of other nodes for the same work; the \
                     node's processor is throttled, or another program runs there"
                );
                found.push((rank.node, detail));
            }
        }
        self.begin(now_ms);
        found
    }

    /// Returns the time per operation of each rank in this period, in the order of `ranks`, or `None` if ranks cannot be
    /// compared.
    fn costs(&self, passed_ms: u64) -> Option<Vec<Cost>> {
        let busy_us = |r: &Rank| r.last.busy_us.saturating_sub(r.base.busy_us);
        let flops = |r: &Rank| r.last.flops.saturating_sub(r.base.flops);
        let most = self.ranks.values().map(flops).max()?;
        let cost = |(position, rank): (&u32, &Rank)| {
            let (busy_us, flops) = (busy_us(rank) as f64, flops(rank) as f64);
            let busy = busy_us >= BUSY_SHARE * passed_ms as f64 * 1e3;
            let even = flops > 0.0 && flops >= EVEN_SHARE * most as f64;
            let each = busy_us / flops;
            even.then_some(Cost { position: *position, node: rank.node, each, busy })
        };
        let costs: Option<Vec<Cost>> = self.ranks.iter().map(cost).collect();
        costs.filter(|costs| costs.iter().any(|cost| cost.busy))
    }
}

struct Cost {
    position: u32,
    node: usize,
    each: f64,
    /// Whether the rank has multiplied long enough to be judged slow.
    busy: bool,
}

/// All times per operation, sorted once for all medians.
struct Sorted {
    each: Vec<f64>,
    /// Indices in `each` of the values of a node's ranks, by node, in ascending order.
    own: BTreeMap<usize, Vec<usize>>,
}

impl Sorted {
    fn new(costs: &[Cost]) -> Self {
        let mut sorted: Vec<&Cost> = costs.iter().collect();
        sorted.sort_by(|a, b| a.each.total_cmp(&b.each));
        let mut own: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, cost) in sorted.iter().enumerate() {
            own.entry(cost.node).or_default().push(place);
        }
        Self { each: sorted.iter().map(|cost| cost.each).collect(), own }
    }

    fn median_of_others(&self, node: usize) -> Option<f64> {
        let own = self.own.get(&node).map_or(&[][..], Vec::as_slice);
        let count = self.each.len() - own.len();
        if count < OTHERS_LEAST {
            return None;
        }
        let other = |nth: usize| {
            // Each cost of the node itself at or before `place` moves `place` on by one.
            let place = own.iter().fold(nth, |place, own| place + usize::from(*own <= place));
            self.each[place]
        };
        Some((other((count - 1) / 2) + other(count / 2)) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the state of a rank that computes.
    fn computes(position: u32, work: Work) -> Progress {
        let Work { pid, busy_us, flops } = work;
        let doing = Doing::Computing;
        Progress { position, pid, busy_us, flops, doing, state: 'R', ..Progress::default() }
    }

    /// Ranks in step: all do the same operations, each at its own cost, which may change.
    struct Run {
        pace: Pace,
        now: u64,
        work: Vec<Work>,
        ranks_a_node: usize,
        found: Vec<(u64, (usize, String))>,
    }

    impl Run {
        fn new(ranks: usize, ranks_a_node: usize) -> Self {
            let work = (0..ranks).map(|r| Work { pid: 10 + r as u32, busy_us: 0, flops: 0 });
            Self {
                pace: Pace::new(1.5, 15_000),
                now: 0,
                work: work.collect(),
                ranks_a_node,
                found: vec![],
            }
        }
        /// Simulates half-seconds until `end`. Rank r takes `cost(r, time)` times as long for its work.
        fn until(&mut self, end: u64, cost: impl Fn(usize, u64) -> f64) -> &mut Self {
            while self.now < end {
                self.now += 500;
                let costs: Vec<f64> = (0..self.work.len()).map(|r| cost(r, self.now)).collect();
                // Every rank waits for the slowest.
                let slowest = costs.iter().copied().fold(1.0, f64::max);
                for (r, work) in self.work.iter_mut().enumerate() {
                    work.flops += (1e9 / slowest) as u64;
                    work.busy_us += (200e3 * costs[r] / slowest) as u64;
                    self.pace.see(self.now, r / self.ranks_a_node, &computes(r as u32, *work));
                }
                let now = self.now;
                self.found.extend(self.pace.tick(now).into_iter().map(|s| (now, s)));
            }
            self
        }
    }

    #[test]
    fn a_slow_node_is_named_after_a_while_and_once() {
        let mut run = Run::new(4, 1);
        run.until(20_000, |_, _| 1.0).until(100_000, |r, _| if r == 2 { 2.0 } else { 1.0 });
        assert_eq!(run.found.len(), 1, "{:?}", run.found);
        let (at, (node, detail)) = &run.found[0];
        assert_eq!(*node, 2);
        assert!(detail.starts_with("position 2 takes 2.0 times"), "{detail}");
        assert!((33_000..=42_000).contains(at), "{at}");
    }

    /// The slower the node is, the smaller is the share of the time in which the other nodes work.
    #[test]
    fn the_slowest_of_all_is_named_too() {
        for times in [3.0, 10.0, 30.0, 300.0] {
            let mut run = Run::new(4, 1);
            run.until(20_000, |_, _| 1.0).until(60_000, |r, _| if r == 2 { times } else { 1.0 });
            let named: Vec<usize> = run.found.iter().map(|f| f.1.0).collect();
            assert_eq!(named, [2], "{times} times as slow");
        }
    }

    /// Ranks report an iteration when it is complete. An iteration of a slow node may take minutes.
    #[test]
    fn however_long_an_iteration_takes_it_is_compared() {
        let mut pace = Pace::new(1.5, 15_000);
        let mut found = Vec::new();
        for half_s in 1..4000u64 {
            let iterations = half_s / 400;
            for r in 0..4u32 {
                let each_us = if r == 2 { 150_000_000 } else { 10_000_000 };
                let (busy_us, flops) = (iterations * each_us, iterations * 1_000_000_000);
                let seen = computes(r, Work { pid: r, busy_us, flops });
                pace.see(half_s * 500, r as usize, &seen);
            }
            found.extend(pace.tick(half_s * 500));
        }
        assert_eq!(found.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [2]);
    }

    /// A rank was replaced by another, or its node is lost and the run continues without it.
    #[test]
    fn a_lost_node_does_not_keep_others_from_being_named() {
        let mut run = Run::new(5, 1);
        run.until(30_000, |_, _| 1.0);
        run.work.pop();
        run.until(150_000, |r, _| if r == 1 { 2.0 } else { 1.0 });
        assert_eq!(run.found.iter().map(|f| f.1.0).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_rank_that_never_multiplies_does_not_keep_others_from_being_named() {
        let mut run = Run::new(4, 1);
        let keeps = computes(9, Work { pid: 99, busy_us: 0, flops: 0 });
        run.pace.see(0, 9, &keeps);
        run.until(60_000, |r, _| if r == 1 { 2.0 } else { 1.0 });
        run.pace.see(60_000, 9, &keeps);
        run.until(100_000, |r, _| if r == 1 { 2.0 } else { 1.0 });
        assert_eq!(run.found.iter().map(|f| f.1.0).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn one_of_several_ranks_gives_its_node_away() {
        let mut run = Run::new(8, 2);
        run.until(60_000, |r, _| if r == 5 { 1.8 } else { 1.0 });
        assert_eq!(run.found.iter().map(|f| f.1.0).collect::<Vec<_>>(), [2]);
        // If all ranks of a node are slow, it is still named once.
        let mut run = Run::new(8, 2);
        run.until(60_000, |r, _| if r / 2 == 3 { 1.8 } else { 1.0 });
        assert_eq!(run.found.iter().map(|f| f.1.0).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_passing_slowness_and_a_slight_one_are_nothing() {
        let mut run = Run::new(4, 1);
        run.until(200_000, |r, at| if r == 1 && at % 30_000 < 9_000 { 3.0 } else { 1.0 });
        run.until(400_000, |r, _| if r == 1 { 1.4 } else { 1.0 });
        // If all are equally slow, the machine is, not a node.
        run.until(600_000, |_, _| 5.0);
        assert_eq!(run.found, []);
    }

    #[test]
    fn a_new_process_counts_from_zero() {
        let mut run = Run::new(4, 1);
        run.until(30_000, |_, _| 1.0);
        for work in &mut run.work {
            *work = Work { pid: work.pid + 100, busy_us: 0, flops: 0 };
        }
        run.until(60_000, |_, _| 1.0);
        assert_eq!(run.found, []);
    }

    #[test]
    fn the_uneven_end_of_a_run_is_not_judged() {
        let mut pace = Pace::new(1.5, 15_000);
        let mut found = Vec::new();
        for half_s in 1..400u64 {
            for r in 0..4u32 {
                // One rank has a hundredth of the others' work left, at ten times the usual cost.
                let scrap = r == 3;
                let flops = if scrap { half_s * 10_000_000 } else { half_s * 1_000_000_000 };
                let work =
                    Work { pid: r, busy_us: half_s * if scrap { 20_000 } else { 200_000 }, flops };
                pace.see(half_s * 500, r as usize, &computes(r, work));
            }
            found.extend(pace.tick(half_s * 500));
        }
        assert_eq!(found, []);
    }

    #[test]
    fn two_nodes_with_a_rank_each_have_no_median() {
        let mut run = Run::new(2, 1);
        run.until(100_000, |r, _| if r == 1 { 3.0 } else { 1.0 });
        assert_eq!(run.found, []);
    }

    proptest! {
        #[test]
        fn the_median_of_the_others_is_that(
            costs in proptest::collection::vec((0usize..5, 0.0f64..100.0), 0..40),
            node in 0usize..6,
        ) {
            let all: Vec<Cost> =
                costs.iter().map(|(node, each)| Cost { position: 0, node: *node, each: *each, busy: true }).collect();
            let mut others: Vec<f64> =
                costs.iter().filter(|(n, _)| *n != node).map(|(_, each)| *each).collect();
            others.sort_by(f64::total_cmp);
            let middle = |at: usize| others[at / 2];
            let expected = (others.len() >= OTHERS_LEAST)
                .then(|| (middle(others.len() - 1) + middle(others.len())) / 2.0);
            prop_assert_eq!(Sorted::new(&all).median_of_others(node), expected);
        }

        /// Any number of ranks runs on too few cores. In each half-second some ranks run at half or twice the speed of others, by
        /// chance. No node is named.
        #[test]
        fn noise_names_nobody(
            ranks in 3usize..12,
            dice in proptest::collection::vec(0.5f64..2.0, 512),
        ) {
            let mut run = Run::new(ranks, 1);
            run.until(120_000, |r, at| dice[(r * 7919 + (at / 500) as usize * 31) % dice.len()]);
            prop_assert_eq!(&run.found, &[]);
        }

        /// A node at three times the cost is found under any noise.
        #[test]
        fn a_very_slow_one_is_found_under_noise(
            ranks in 3usize..12, culprit in 0usize..3,
            dice in proptest::collection::vec(0.7f64..1.4, 512),
        ) {
            let mut run = Run::new(ranks, 1);
            run.until(60_000, |r, at| {
                let noise = dice[(r * 7919 + (at / 500) as usize * 31) % dice.len()];
                if r == culprit { 3.0 * noise } else { noise }
            });
            prop_assert_eq!(run.found.len(), 1);
            prop_assert_eq!(run.found[0].1.0, culprit);
        }
    }
}
