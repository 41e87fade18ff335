//! Judgement of nodes and links: decides which nodes and links are slower than their peers, and which nodes compute wrong. The
//! module is pure.
//!
//! Only measurements of the same sweep are compared, so a disturbance of all nodes does not make one node slow. A node or link
//! is *slow in a sweep* if it is below the median of its peers by more than the limit. The limit is the tolerance, or three
//! times the spread of the peers' medians if this is larger, since nodes may differ without a fault.
//!
//! A pass is a series of sweeps. A pass is *sure* of a node or link that is slow in more of its sweeps than noise would explain.
//! A node or link is named if two passes are sure of it. Over all tests together, noise alone causes a false alarm in at most
//! one of a hundred burn-ins ([`ALARMS`]).

use std::collections::BTreeMap;

use serde::Serialize;

use super::chance::{chance, repeats_least};
use super::samples::Sweep;
use crate::base::statistics::{deviation, median};

/// Upper bound of the probability that a burn-in names a node or link that is within its limit.
pub const ALARMS: f64 = 0.01;

/// Number of pairs of passes: there are at most three passes, and any two of them can name a node.
const PAIRS: usize = 3;

/// Probability of a result by chance below which another pass is made, so that one pass does not miss a slow node.
const LEANS: f64 = 0.05;

/// Number of sweeps from one that also measures memory and links to the next. Multiplication needs more repeats, to distinguish
/// a few per cent from noise.
pub const WHOLE_EVERY: usize = 3;

/// Number of sweeps with links beyond the smallest number that can name a node. A slow node is still named if it does not appear
/// slow in so many sweeps.
const SPARE_SWEEPS: usize = 26;

/// Number of peers above which a single peer hardly changes the median.
const MANY: usize = 64;

/// Smallest number of peers for which the spread of their medians is taken into account.
const PEERS_LEAST: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    Multiply,
    Memory,
    Bandwidth,
    Latency,
}

impl What {
    pub const ALL: [What; 4] = [What::Multiply, What::Memory, What::Bandwidth, What::Latency];

    fn is_of_nodes(self) -> bool {
        matches!(self, What::Multiply | What::Memory)
    }
}

/// Part of the cluster that is slow: a node, its connection, or a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Node(usize),
    /// The links of a node to all of its peers: the connection between the node and the switch.
    Port(usize),
    /// The link from the first node to the second. The other links of both nodes are not slow.
    Link(usize, usize),
}

/// Fractions by which a measurement may be worse than the median of its peers without being slow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    pub node: f64,
    pub bandwidth: f64,
    /// Fraction by which a latency, a time, may be longer. Links through more switches take longer.
    pub latency: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self { node: 0.02, bandwidth: 0.05, latency: 0.25 }
    }
}

impl Tolerance {
    /// Returns the limit for the logarithm of the measured quantity `what`.
    fn limit(&self, what: What) -> f64 {
        match what {
            What::Multiply | What::Memory => -(1.0 - self.node).ln(),
            What::Bandwidth => -(1.0 - self.bandwidth).ln(),
            What::Latency => (1.0 + self.latency).ln(),
        }
    }
}

/// Number of slow measurements of a node or link, and the comparison with its peers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Count {
    /// Median speed as a share of the speed of its peers.
    pub share: f64,
    /// Share of the peers' speed below which a measurement is slow.
    pub limit: f64,
    pub slow: usize,
    pub of: usize,
    /// Upper bound of the probability that a node or link within its limit has so many slow measurements.
    pub chance: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    pub what: What,
    pub place: Place,
    pub count: Count,
}

/// A node whose product differs from the product of most nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub node: usize,
    pub times: usize,
    pub of: usize,
}

impl Wrong {
    /// Merges the results of several passes into one entry for each node.
    pub fn merged(found: &[Wrong]) -> Vec<Wrong> {
        let mut of_node: BTreeMap<usize, Wrong> = BTreeMap::new();
        for wrong in found {
            let known = of_node.entry(wrong.node).or_insert(Wrong { times: 0, of: 0, ..*wrong });
            known.times += wrong.times;
            known.of += wrong.of;
        }
        of_node.into_values().collect()
    }
}

/// Number of statistical tests for `nodes` nodes. Each node is tested twice, for multiplication and memory. Each direction of a
/// link is tested twice, for bandwidth and latency. Each port counts four times for bandwidth and four times for latency: each of
/// the two passes that name a port may be sure of either direction.
pub fn tests(nodes: usize) -> usize {
    2 * nodes + 2 * (4 * nodes + nodes * nodes.saturating_sub(1))
}

/// Returns the number of sweeps that suffice to name a slow node even if some sweeps do not show that it is slow.
pub fn sweeps_wanted(nodes: usize) -> usize {
    WHOLE_EVERY * (sweeps_least(nodes) + SPARE_SWEEPS)
}

/// Returns the smallest number of measurements with which a slow node or link can be named.
pub fn sweeps_least(nodes: usize) -> usize {
    repeats_least(sure(nodes))
}

/// Returns the probability below which a pass is sure that a result is not chance. Two passes must agree, so the probability of a
/// false alarm is the product of both.
fn sure(nodes: usize) -> f64 {
    (ALARMS / (PAIRS * tests(nodes)) as f64).sqrt()
}

/// Measured quantity of each node or link in a sweep, as a logarithm. Larger is better. The key of a node has its number twice.
type Values = BTreeMap<(usize, usize), f64>;

/// Distances of each node or link from the median of its peers, one for each sweep, in logarithms.
type Distances = BTreeMap<(usize, usize), Vec<f64>>;

fn values(sweep: &Sweep, what: What) -> Values {
    let nodes = |rates: &[f64]| -> Values {
        rates.iter().enumerate().map(|(node, rate)| ((node, node), rate.ln())).collect()
    };
    let links = |value: fn(f64, f64) -> f64| -> Values {
        let of = |p: &super::samples::Passage| ((p.from, p.to), value(p.bytes_per_s, p.latency_s));
        sweep.passages.iter().map(of).collect()
    };
    let mut found = match what {
        What::Multiply => nodes(&sweep.multiply),
        What::Memory => nodes(&sweep.memory),
        What::Bandwidth => links(|bandwidth, _| bandwidth.ln()),
        What::Latency => links(|_, latency| -latency.ln()),
    };
    found.retain(|_, value| value.is_finite());
    found
}

/// Returns the distances of all nodes or links. Nodes or links for which `out` is true do not count as peers.
fn distances(sweeps: &[Values], out: &dyn Fn((usize, usize)) -> bool) -> Distances {
    let mut found = Distances::new();
    for values in sweeps {
        let left = || values.iter().filter(|(key, _)| !out(**key));
        let all: Vec<f64> = left().map(|(_, value)| *value).collect();
        // If there are many peers, the median of all is used: a single peer hardly changes it.
        let middle = median(&all);
        for (key, value) in values {
            let peers = || -> Vec<f64> {
                left().filter(|(other, _)| *other != key).map(|(_, value)| *value).collect()
            };
            let middle = if all.len() > MANY { middle } else { median(&peers()) };
            if middle.is_finite() {
                found.entry(*key).or_default().push(*value - middle);
            }
        }
    }
    found
}

/// Returns the limit of a distance: the tolerance, or three times the spread of the median distances if this is larger. Nodes or
/// links for which `out` is true do not count.
fn limit(tolerance: f64, all: &Distances, out: &dyn Fn((usize, usize)) -> bool) -> f64 {
    let peers = all.iter().filter(|(key, _)| !out(**key));
    let usual: Vec<f64> = peers.map(|(_, distances)| median(distances)).collect();
    if usual.len() < PEERS_LEAST { tolerance } else { tolerance.max(3.0 * deviation(&usual)) }
}

/// Returns, for each node, the value of its best link in one direction: from the node if `outward` is true, to the node
/// otherwise. The connection of a node is slow only if all of its links are slow.
fn ports(values: &Values, outward: bool) -> Values {
    let mut best = Values::new();
    for ((from, to), value) in values {
        let node = if outward { *from } else { *to };
        let known = best.entry((node, node)).or_insert(*value);
        *known = known.max(*value);
    }
    best
}

/// Counts the slow measurements among `distances`: a measurement is slow if it is more than `limit` below its peers.
fn count(distances: &[f64], limit: f64) -> Count {
    let slow = distances.iter().filter(|distance| **distance < -limit).count();
    Count {
        share: median(distances).exp(),
        limit: (-limit).exp(),
        slow,
        of: distances.len(),
        chance: chance(slow, distances.len()),
    }
}

/// All comparisons of a pass, and the slow nodes and links among them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judged {
    /// Counts of every node for multiplication and memory, and of every link for bandwidth and latency.
    pub counts: BTreeMap<(What, usize, usize), Count>,
    /// Slow nodes and links that this pass is sure of.
    pub slow: Vec<Slow>,
    /// True if the result of some node or link is so improbable (`LEANS`) that another pass is made.
    pub leans: bool,
    pub wrong: Vec<Wrong>,
    /// Groups of nodes whose products differ without a majority, so that some of these nodes compute wrong.
    pub torn: Vec<Vec<usize>>,
}

impl Judged {
    fn is_sure_of(&self, one: &Slow) -> bool {
        self.slow.iter().any(|other| (other.what, other.place) == (one.what, one.place))
    }
}

/// Returns the slow nodes and links that at least two passes are sure of. The figures are those of the last sure pass.
pub fn named(passes: &[Judged]) -> Vec<Slow> {
    let mut named: Vec<Slow> = Vec::new();
    for (number, pass) in passes.iter().enumerate().rev() {
        for one in &pass.slow {
            let twice = passes[..number].iter().any(|other| other.is_sure_of(one));
            if twice && !named.iter().any(|n| (n.what, n.place) == (one.what, one.place)) {
                named.push(*one);
            }
        }
    }
    named
}

/// Returns whether exactly one pass is sure of some node or link, so that another pass must decide.
pub fn undecided(passes: &[Judged]) -> bool {
    let sure_of = |one: &Slow| passes.iter().filter(|pass| pass.is_sure_of(one)).count();
    passes.iter().flat_map(|pass| &pass.slow).any(|one| sure_of(one) == 1)
}

/// Judges all sweeps of `nodes` nodes. `engines` has the engine of each node: only nodes with equal engines compute the same
/// bits.
pub fn judge(nodes: usize, sweeps: &[Sweep], engines: &[String], tolerance: &Tolerance) -> Judged {
    let (wrong, torn) = wrong(sweeps, engines);
    let mut judged = Judged { wrong, torn, ..Judged::default() };
    let sure = sure(nodes);
    for what in What::ALL {
        let values: Vec<Values> = sweeps.iter().map(|sweep| values(sweep, what)).collect();
        // Nodes that are slow with all of their peers are found first, so that their links do not make other nodes slow.
        let mut slow_ports: BTreeMap<usize, Count> = BTreeMap::new();
        if !what.is_of_nodes() && nodes > 2 {
            for outward in [true, false] {
                let best: Vec<Values> = values.iter().map(|v| ports(v, outward)).collect();
                let distances = distances(&best, &|_| false);
                let limit = limit(tolerance.limit(what), &distances, &|_| false);
                for ((node, _), distances) in &distances {
                    let count = count(distances, limit);
                    judged.leans |= count.chance <= LEANS.max(sure);
                    if count.chance <= sure {
                        let worst = slow_ports.entry(*node).or_insert(count);
                        if count.share < worst.share {
                            *worst = count;
                        }
                    }
                }
            }
        }
        let out = |(from, to): (usize, usize)| {
            slow_ports.contains_key(&from) || slow_ports.contains_key(&to)
        };
        let ports = slow_ports.iter().map(|(node, count)| (Place::Port(*node), *count));
        judged.slow.extend(ports.map(|(place, count)| Slow { what, place, count }));
        let distances = distances(&values, &out);
        let limit = limit(tolerance.limit(what), &distances, &out);
        for ((from, to), distances) in &distances {
            let count = count(distances, limit);
            judged.counts.insert((what, *from, *to), count);
            let place =
                if what.is_of_nodes() { Place::Node(*from) } else { Place::Link(*from, *to) };
            if !out((*from, *to)) {
                judged.leans |= count.chance <= LEANS.max(sure);
                if count.chance <= sure {
                    judged.slow.push(Slow { what, place, count });
                }
            }
        }
    }
    judged
}

/// Returns the nodes whose product differs from the product of most nodes with their engine. Also returns the groups of nodes
/// with one engine whose products differ without a majority.
fn wrong(sweeps: &[Sweep], engines: &[String]) -> (Vec<Wrong>, Vec<Vec<usize>>) {
    let products = |node: usize| sweeps.iter().filter_map(move |s| s.products.get(node)).copied();
    let mut of_engine: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (node, engine) in engines.iter().enumerate() {
        of_engine.entry(engine).or_default().push(node);
    }
    let (mut wrong, mut torn) = (Vec::new(), Vec::new());
    for nodes in of_engine.into_values() {
        let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
        for product in nodes.iter().flat_map(|node| products(*node)) {
            *seen.entry(product).or_default() += 1;
        }
        let all: usize = seen.values().sum();
        let Some((usual, _)) = seen.into_iter().find(|(_, times)| 2 * times > all) else {
            if all > 0 {
                torn.push(nodes);
            }
            continue;
        };
        for node in nodes {
            let times = products(node).filter(|product| *product != usual).count();
            if times > 0 {
                wrong.push(Wrong { node, times, of: products(node).count() });
            }
        }
    }
    wrong.sort_by_key(|wrong| wrong.node);
    (wrong, torn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burnin::samples::Passage;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    /// A simulated machine with known noise.
    struct Machine {
        nodes: usize,
        noise: f64,
        random: Xoshiro256PlusPlus,
    }

    impl Machine {
        fn new(nodes: usize, noise: f64, seed: u64) -> Self {
            Self { nodes, noise, random: Xoshiro256PlusPlus::seed_from_u64(seed) }
        }

        /// Returns a random factor of the rate. Disturbances only slow a node down, sometimes by a large factor.
        fn noisy(&mut self) -> f64 {
            let uniform = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let wild = if self.random.next_u64().is_multiple_of(20) { 5.0 } else { 1.0 };
            1.0 - self.noise * uniform * wild
        }

        fn sweep(&mut self, share: &dyn Fn(What, usize, usize) -> f64) -> Sweep {
            let all = 0..self.nodes;
            let mut rates = |what: What, usual: f64| -> Vec<f64> {
                all.clone().map(|n| usual * share(what, n, n) * self.noisy()).collect()
            };
            let (multiply, memory) = (rates(What::Multiply, 5e10), rates(What::Memory, 1e10));
            let mut passages = Vec::new();
            for from in 0..self.nodes {
                for to in (0..self.nodes).filter(|to| *to != from) {
                    passages.push(Passage {
                        from,
                        to,
                        latency_s: 2e-5 / share(What::Latency, from, to) / self.noisy(),
                        bytes_per_s: 1e9 * share(What::Bandwidth, from, to) * self.noisy(),
                    });
                }
            }
            Sweep { multiply, memory, products: vec![7; self.nodes], passages }
        }

        fn judge(&mut self, share: &dyn Fn(What, usize, usize) -> f64) -> Judged {
            let wanted = sweeps_wanted(self.nodes);
            let mut sweeps: Vec<Sweep> = (0..wanted).map(|_| self.sweep(share)).collect();
            for (number, sweep) in sweeps.iter_mut().enumerate() {
                if !number.is_multiple_of(WHOLE_EVERY) {
                    *sweep = Sweep { multiply: sweep.multiply.clone(), ..Sweep::default() };
                }
            }
            judge(self.nodes, &sweeps, &engines(self.nodes), &Tolerance::default())
        }
    }

    fn engines(nodes: usize) -> Vec<String> {
        vec!["portable-4x4".to_owned(); nodes]
    }

    fn places(slow: &[Slow]) -> Vec<(What, Place)> {
        slow.iter().map(|slow| (slow.what, slow.place)).collect()
    }

    /// Runs all passes of a burn-in, and returns the slow nodes and links that are named.
    fn burnt_in(mut pass: impl FnMut() -> Judged) -> Vec<Slow> {
        let passes: Vec<Judged> = (0..3).map(|_| pass()).collect();
        named(&passes)
    }

    #[test]
    fn a_healthy_machine_raises_nothing() {
        for nodes in [2, 3, 4, 7] {
            for seed in 0..20 {
                let judged = Machine::new(nodes, 0.06, seed).judge(&|_, _, _| 1.0);
                assert!(!judged.leans && judged.slow.is_empty(), "{nodes} nodes, seed {seed}");
                assert_eq!(judged.wrong, []);
            }
        }
    }

    /// Tests the worst case: equal nodes with noise, and no tolerance.
    #[test]
    fn false_alarms_keep_to_their_bound() {
        let none = Tolerance { node: 0.0, bandwidth: 0.0, latency: 0.0 };
        let runs = 1000;
        let alarms = (0..runs).filter(|seed| {
            let mut machine = Machine::new(4, 0.3, *seed);
            let slow = burnt_in(|| {
                let sweeps: Vec<Sweep> = (0..sweeps_least(4) + SPARE_SWEEPS)
                    .map(|_| machine.sweep(&|_, _, _| 1.0))
                    .collect();
                judge(4, &sweeps, &engines(4), &none)
            });
            !slow.is_empty()
        });
        assert!(alarms.count() as f64 <= ALARMS * runs as f64);
    }

    #[test]
    fn a_node_slower_by_five_per_cent_is_named_and_nobody_else() {
        for nodes in [2, 3, 4, 9] {
            for seed in 0..20 {
                let slow = seed as usize % nodes;
                let share = |what: What, n: usize, _: usize| {
                    if what == What::Multiply && n == slow { 0.95 } else { 1.0 }
                };
                let judged = Machine::new(nodes, 0.015, seed).judge(&share);
                assert_eq!(
                    places(&judged.slow),
                    [(What::Multiply, Place::Node(slow))],
                    "{nodes} {seed}"
                );
                assert!((judged.slow[0].count.share - 0.95).abs() < 0.02);
            }
        }
    }

    #[test]
    fn a_slow_port_is_told_from_a_slow_link() {
        for nodes in [3, 4, 8] {
            let port = |what: What, from: usize, to: usize| {
                if what == What::Bandwidth && (from == 1 || to == 1) { 0.1 } else { 1.0 }
            };
            let judged = Machine::new(nodes, 0.2, 3).judge(&port);
            assert_eq!(places(&judged.slow), [(What::Bandwidth, Place::Port(1))], "{nodes}");
            // The link is slow in one direction only.
            let link = |what: What, from: usize, to: usize| {
                if what == What::Bandwidth && (from, to) == (2, 0) { 0.1 } else { 1.0 }
            };
            let judged = Machine::new(nodes, 0.2, 4).judge(&link);
            assert_eq!(places(&judged.slow), [(What::Bandwidth, Place::Link(2, 0))], "{nodes}");
        }
    }

    #[test]
    fn two_slow_ports_are_both_named_and_a_slow_latency_is_one() {
        let share = |what: What, from: usize, to: usize| match what {
            What::Latency if [from, to].iter().any(|n| [2, 5].contains(n)) => 0.4,
            _ => 1.0,
        };
        let mut found = places(&Machine::new(8, 0.1, 5).judge(&share).slow);
        found.sort_unstable();
        assert_eq!(found, [2, 5].map(|node| (What::Latency, Place::Port(node))));
    }

    /// Tests that processors of different quality, whose rates differ by up to 8 %, are not named as slow.
    #[test]
    fn peers_that_differ_are_no_faults() {
        let share = |what: What, n: usize, _: usize| {
            if what == What::Multiply { 1.0 - 0.012 * ((n * 7) % 8) as f64 } else { 1.0 }
        };
        let judged = Machine::new(16, 0.01, 6).judge(&share);
        assert_eq!(places(&judged.slow), []);
    }

    #[test]
    fn with_too_few_sweeps_nothing_is_named() {
        let mut machine = Machine::new(4, 0.01, 7);
        let half = |_: What, n: usize, m: usize| if n == 1 && m == 1 { 0.5 } else { 1.0 };
        let mut sweeps: Vec<Sweep> = (1..sweeps_least(4)).map(|_| machine.sweep(&half)).collect();
        assert_eq!(judge(4, &sweeps, &engines(4), &Tolerance::default()).slow, []);
        sweeps.push(machine.sweep(&half));
        assert_eq!(judge(4, &sweeps, &engines(4), &Tolerance::default()).slow.len(), 2);
    }

    #[test]
    fn one_node_has_no_peers_and_two_no_links_to_compare_but_the_way_back() {
        assert_eq!(Machine::new(1, 0.1, 8).judge(&|_, _, _| 1.0).counts.len(), 0);
        let slow_link = |what: What, _: usize, _: usize| {
            if what == What::Bandwidth { 0.1 } else { 1.0 }
        };
        assert!(!Machine::new(2, 0.1, 8).judge(&slow_link).leans);
    }

    #[test]
    fn a_node_that_computes_wrong_is_named() {
        let mut machine = Machine::new(3, 0.01, 9);
        let mut sweeps: Vec<Sweep> = (0..9).map(|_| machine.sweep(&|_, _, _| 1.0)).collect();
        sweeps[4].products[2] = 8;
        let judged = judge(3, &sweeps, &engines(3), &Tolerance::default());
        assert_eq!(judged.wrong, [Wrong { node: 2, times: 1, of: 9 }]);
        let twice = [judged.wrong.clone(), judged.wrong.clone()].concat();
        assert_eq!(Wrong::merged(&twice), [Wrong { node: 2, times: 2, of: 18 }]);
        // Another kernel may compute another product.
        sweeps[4].products[2] = 7;
        sweeps.iter_mut().for_each(|sweep| sweep.products[1] = 8);
        let mut engines = engines(3);
        engines[1] = "avx2-12x4".to_owned();
        assert_eq!(judge(3, &sweeps, &engines, &Tolerance::default()).wrong, []);
    }

    /// Tests that no node is named as wrong if no product is that of most nodes. With two nodes and two different products, it
    /// is unknown which node is healthy.
    #[test]
    fn nobody_is_accused_where_no_product_is_most_nodes() {
        for (good, bad) in [(7, 8), (8, 7)] {
            let mut machine = Machine::new(2, 0.01, 9);
            let mut sweeps: Vec<Sweep> = (0..9).map(|_| machine.sweep(&|_, _, _| 1.0)).collect();
            sweeps.iter_mut().for_each(|sweep| sweep.products = vec![good, bad]);
            let judged = judge(2, &sweeps, &engines(2), &Tolerance::default());
            assert_eq!((judged.wrong, judged.torn), (vec![], vec![vec![0, 1]]));
            // If the difference is rare, the usual product is known to be right.
            sweeps[1..].iter_mut().for_each(|sweep| sweep.products = vec![good, good]);
            let judged = judge(2, &sweeps, &engines(2), &Tolerance::default());
            assert_eq!(judged.wrong, [Wrong { node: 1, times: 1, of: 9 }]);
            assert!(judged.torn.is_empty());
        }
        // If only one node has an engine, its product may still differ between sweeps.
        let mut machine = Machine::new(3, 0.01, 9);
        let mut sweeps: Vec<Sweep> = (0..8).map(|_| machine.sweep(&|_, _, _| 1.0)).collect();
        sweeps[..4].iter_mut().for_each(|sweep| sweep.products[1] = 8);
        let mut engines = engines(3);
        engines[1] = "avx2-12x4".to_owned();
        let judged = judge(3, &sweeps, &engines, &Tolerance::default());
        assert_eq!((judged.wrong, judged.torn), (vec![], vec![vec![1]]));
    }

    /// Tests that up to three passes find a node that is 4 % slower than its peers. A single measurement may be off by more than
    /// 4 %, as on a small virtual machine with much noise.
    #[test]
    fn three_passes_together_find_what_one_may_miss() {
        let missed = (0..40).filter(|seed| {
            let mut machine = Machine::new(3, 0.08, *seed);
            let share = |what: What, n: usize, _: usize| {
                if what == What::Multiply && n == 1 { 0.96 } else { 1.0 }
            };
            let slow = burnt_in(|| machine.judge(&share));
            places(&slow) != [(What::Multiply, Place::Node(1))]
        });
        assert_eq!(missed.count(), 0);
    }

    #[test]
    fn only_what_two_passes_are_sure_of_is_named() {
        let slow = |node, share| {
            let count = Count { share, limit: 0.98, slow: 20, of: 21, chance: 1e-5 };
            Slow { what: What::Multiply, place: Place::Node(node), count }
        };
        let pass = |slow: &[Slow]| Judged { slow: slow.to_vec(), ..Judged::default() };
        let [first, again] = [pass(&[slow(1, 0.9), slow(2, 0.9)]), pass(&[slow(2, 0.8)])];
        let agreed = [first.clone(), first.clone()];
        assert!(!undecided(&agreed) && named(&agreed).len() == 2);
        let two = [first.clone(), again.clone()];
        assert_eq!(named(&two), [slow(2, 0.8)]);
        assert!(undecided(&two) && !undecided(&[pass(&[]), pass(&[])]));
        assert_eq!(named(std::slice::from_ref(&first)), []);
        // The third pass agrees with the first, or with the second.
        let third = pass(&[slow(1, 0.7)]);
        assert_eq!(named(&[first, again, third]), [slow(1, 0.7), slow(2, 0.8)]);
        let warm = [pass(&[]), pass(&[slow(3, 0.8)]), pass(&[slow(3, 0.7)])];
        assert_eq!(named(&warm), [slow(3, 0.7)]);
    }
}
