//! Moments of node failures, without sampling each node.
//!
//! All nodes that have not failed yet have the same age. So their first failures are the order statistics of a known
//! distribution, and are drawn one after the other. If H is the cumulative hazard of the remaining life of a node, the next
//! failure of n such nodes comes when H has grown by Exp(1)/n. The node is drawn uniformly. This is exact for any distribution of
//! lifetimes; with exponential lifetimes H is linear and the process is Poisson. A replaced node has its own age. Its next
//! failure is kept in a heap, whose size is at most the number of failures.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::super::error::{Result, non_negative, out_of_range, positive, refused};

/// Age of the nodes when the run starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Age {
    /// Each node is at a random point of its life: the machine has run and been repaired for a long time.
    Stationary,
    /// All nodes were put into service this number of seconds ago, and none has failed since; 0 is a new machine.
    Same(f64),
}

/// Recorded failures: seconds and node numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    events: Vec<(f64, u64)>,
    /// Seconds after which the trace repeats.
    span: f64,
}

impl Trace {
    /// Makes a trace from events in any order. Each simulated run starts at a random point of the trace and continues at its
    /// beginning after its end.
    pub fn new(mut events: Vec<(f64, u64)>) -> Result<Self> {
        if events.is_empty() {
            return refused("the trace of failures is empty");
        }
        for (t, _) in &events {
            non_negative("a time in the trace", *t)?;
        }
        events.sort_by(|a, b| a.0.total_cmp(&b.0));
        let first = events[0].0;
        for e in &mut events {
            e.0 -= first;
        }
        // The gap between the last event and the first event of the repetition is the mean gap.
        let last = events[events.len() - 1].0;
        let span = if events.len() > 1 {
            last * events.len() as f64 / (events.len() - 1) as f64
        } else {
            first
        };
        positive("the time spanned by the trace", span)?;
        Ok(Self { events, span })
    }

    /// Parses lines of `SECONDS NODE`, separated by blanks or a comma; `#` starts a comment.
    pub fn parse(text: &str) -> Result<Self> {
        let mut events = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let words: Vec<&str> =
                line.split([',', ' ', '\t']).filter(|word| !word.is_empty()).collect();
            let event = match words[..] {
                [time, node] => time.parse::<f64>().ok().zip(node.parse::<u64>().ok()),
                _ => None,
            };
            let Some(event) = event.filter(|(time, _)| time.is_finite() && *time >= 0.0) else {
                return refused(format!(
                    "line {} of the trace is `{line}`: it must be the time in seconds and the number \
                     of the node that failed, such as `86400.5 17`",
                    i + 1
                ));
            };
            events.push(event);
        }
        Self::new(events)
    }

    pub fn mtbf(&self) -> f64 {
        self.span / self.events.len() as f64
    }
}

/// Distribution of failures.
#[derive(Clone, Debug, PartialEq)]
pub enum Failures {
    /// Mean seconds between failures of one node.
    Exponential {
        mtbf: f64,
    },
    /// With a shape below 1 new nodes fail more often (0.7 is typical of logs of large machines); with a shape above 1 old nodes.
    Weibull {
        mtbf: f64,
        shape: f64,
        age: Age,
    },
    Trace(Trace),
}

impl Failures {
    pub fn check(&self) -> Result<()> {
        match self {
            Failures::Trace(_) => Ok(()),
            Failures::Exponential { mtbf } => positive("the MTBF of a node", *mtbf).map(drop),
            Failures::Weibull { mtbf, shape, age } => {
                positive("the MTBF of a node", *mtbf)?;
                if !(0.1..=20.0).contains(shape) {
                    return out_of_range("the Weibull shape", "between 0.1 and 20", *shape);
                }
                if let Age::Same(a) = age {
                    non_negative("the age of the nodes", *a)?;
                }
                Ok(())
            }
        }
    }
}

/// Draws uniformly from (0, 1): never 0, so its logarithm is finite.
fn uniform(rng: &mut Xoshiro256PlusPlus) -> f64 {
    ((rng.next_u64() >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
}

fn exponential(rng: &mut Xoshiro256PlusPlus) -> f64 {
    -uniform(rng).ln()
}

/// Draws uniformly from 0..n without bias (multiply-shift with rejection).
fn below(rng: &mut Xoshiro256PlusPlus, n: u64) -> u64 {
    loop {
        let wide = u128::from(rng.next_u64()) * u128::from(n);
        let low = wide as u64;
        if low >= n.wrapping_neg() % n {
            return (wide >> 64) as u64;
        }
    }
}

/// ln Gamma(x), x > 0 (Lanczos, g = 7, nine terms; relative error near 1e-15).
pub fn ln_gamma(x: f64) -> f64 {
    const C: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        let pi = std::f64::consts::PI;
        return (pi / (pi * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let t = x + 7.5;
    let mut sum = C[0];
    for (i, c) in C.iter().enumerate().skip(1) {
        sum += c / (x + i as f64);
    }
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// Returns -ln Q(a, x), the cumulative hazard of a gamma variable. The result is accurate for small x, where Q is almost 1, and
/// for large x, where Q underflows.
fn gamma_hazard(a: f64, x: f64, ln_gamma_a: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let ln_front = a * x.ln() - x - ln_gamma_a;
    if x < a + 1.0 {
        // P, computed by its series.
        let mut term = 1.0 / a;
        let mut sum = term;
        let mut k = a;
        for _ in 0..500 {
            k += 1.0;
            term *= x / k;
            sum += term;
            if term < sum * 1e-16 {
                break;
            }
        }
        -(-(ln_front + sum.ln()).exp().min(1.0)).ln_1p()
    } else {
        // Logarithm of Q, computed by its continued fraction (modified Lentz).
        const TINY: f64 = 1e-300;
        let mut b = x + 1.0 - a;
        let mut c = 1.0 / TINY;
        let mut d = 1.0 / b;
        let mut h = d;
        for i in 1..500 {
            let i = f64::from(i);
            let an = -i * (i - a);
            b += 2.0;
            d = an * d + b;
            if d.abs() < TINY {
                d = TINY;
            }
            c = b + an / c;
            if c.abs() < TINY {
                c = TINY;
            }
            d = 1.0 / d;
            let delta = d * c;
            h *= delta;
            if (delta - 1.0).abs() < 1e-15 {
                break;
            }
        }
        -(ln_front + h.ln())
    }
}

/// Distribution of the remaining life of a node at the start.
#[derive(Clone, Copy, Debug)]
enum Life {
    /// Exponential lifetimes, with this mean in seconds.
    Exponential(f64),
    /// All nodes have this age in seconds.
    Aged(f64),
    /// Nodes at random points of their lives. With the survival function S, the remaining life t has the density S(t)/mean. So
    /// (t/eta)^k is a gamma variable of shape 1/k, for the scale eta and the shape k of the lifetimes. The value is the
    /// logarithm of Gamma(1/k).
    Stationary(f64),
}

impl Life {
    /// Returns the time, `at_least` or later, at which the cumulative hazard reaches `h`, for the scale `eta`.
    fn time_of(&self, eta: f64, shape: f64, h: f64, at_least: f64) -> f64 {
        match *self {
            Life::Exponential(mtbf) => h * mtbf,
            Life::Aged(age) => {
                let t = eta * ((age / eta).powf(shape) + h).powf(1.0 / shape) - age;
                // Rounding must not give a time before `at_least`.
                t.max(at_least)
            }
            Life::Stationary(ln_gamma) => {
                let hazard = |t: f64| gamma_hazard(1.0 / shape, (t / eta).powf(shape), ln_gamma);
                // The hazard rate starts at 1/mean. The root is bracketed from there, bisected, and refined by the secant method.
                let mut low = at_least;
                let mut step = (eta * h).max(eta * 1e-12);
                let mut high = low + step;
                while hazard(high) < h {
                    low = high;
                    step *= 2.0;
                    high += step;
                    if !high.is_finite() {
                        return f64::INFINITY;
                    }
                }
                let (mut f_low, mut f_high) = (hazard(low) - h, hazard(high) - h);
                for i in 0..60 {
                    if high - low <= 1e-12 * high || f_high == 0.0 {
                        break;
                    }
                    let secant = low - f_low * (high - low) / (f_high - f_low);
                    let middle = if i % 3 == 2 || !(secant > low && secant < high) {
                        0.5 * (low + high)
                    } else {
                        secant
                    };
                    let f = hazard(middle) - h;
                    if f < 0.0 {
                        (low, f_low) = (middle, f);
                    } else {
                        (high, f_high) = (middle, f);
                    }
                }
                high
            }
        }
    }
}

/// A failure: its time, and the node or domain that fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    pub time: f64,
    pub failed: Failed,
    /// Uniform number in (0, 1), from which callers derive the kind of failure.
    pub kind: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    Node(u64),
    Domain(u64),
}

/// Source of the failures of a run, in order of time.
pub struct Source<'a> {
    rng: Xoshiro256PlusPlus,
    nodes: u64,
    kind: Kind<'a>,
    next_node: Option<(f64, u64)>,
    /// Generator for `kind` alone, so that the moments of failures do not depend on the kinds.
    kinds: Xoshiro256PlusPlus,
    next_kind: f64,
    domains: Option<(u64, f64)>,
    next_domain: f64,
}

enum Kind<'a> {
    /// Poisson process: a replaced node fails like any other.
    Poisson {
        mtbf: f64,
        time: f64,
    },
    Aging {
        life: Life,
        eta: f64,
        shape: f64,
        /// Number of nodes that have never failed.
        untouched: u64,
        /// Cumulative hazard of each such node until now.
        hazard: f64,
        time: f64,
        touched: HashSet<u64>,
        /// Whether `replaced` contains the next failure of an untouched node, with u64::MAX as its node.
        drawn: bool,
        /// Next failures of replaced nodes: the bits of the time, which have the same order as non-negative times, and the node.
        replaced: BinaryHeap<Reverse<(u64, u64)>>,
    },
    Trace {
        trace: &'a Trace,
        at: usize,
        base: f64,
    },
}

impl<'a> Source<'a> {
    /// Returns the failures of run number `index` with the master seed `seed`.
    pub fn new(
        failures: &'a Failures,
        nodes: u64,
        domains: Option<super::Domains>,
        seed: u64,
        index: u64,
    ) -> Self {
        // The multiplier gives successive runs very different seeds; seed_from_u64 hashes the result into 256 bits.
        let mixed = seed ^ index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(mixed);
        let kind = match failures {
            Failures::Exponential { mtbf } => Kind::Poisson { mtbf: *mtbf, time: 0.0 },
            Failures::Weibull { mtbf, shape, age } => {
                let eta = mtbf / (ln_gamma(1.0 + 1.0 / shape)).exp();
                let life = match age {
                    _ if *shape == 1.0 => Life::Exponential(*mtbf),
                    Age::Same(age) => Life::Aged(*age),
                    Age::Stationary => Life::Stationary(ln_gamma(1.0 / shape)),
                };
                Kind::Aging {
                    life,
                    eta,
                    shape: *shape,
                    untouched: nodes,
                    hazard: 0.0,
                    time: 0.0,
                    touched: HashSet::new(),
                    drawn: false,
                    replaced: BinaryHeap::new(),
                }
            }
            Failures::Trace(trace) => {
                let start = uniform(&mut rng) * trace.span;
                let at = trace.events.partition_point(|(t, _)| *t < start);
                Kind::Trace { trace, at, base: -start }
            }
        };
        let mut source = Self {
            rng,
            nodes,
            kind,
            next_node: None,
            kinds: Xoshiro256PlusPlus::seed_from_u64(!mixed),
            next_kind: 0.0,
            domains: domains.map(|d| {
                let count = nodes.div_ceil(d.size);
                (count, d.mtbf / count as f64)
            }),
            next_domain: 0.0,
        };
        source.advance_node();
        source.advance_domain();
        source
    }

    fn advance_domain(&mut self) {
        self.next_domain = match self.domains {
            Some((_, mean)) => self.next_domain + exponential(&mut self.rng) * mean,
            None => f64::INFINITY,
        };
    }

    fn advance_node(&mut self) {
        self.next_kind = uniform(&mut self.kinds);
        let rng = &mut self.rng;
        let nodes = self.nodes;
        self.next_node = match &mut self.kind {
            Kind::Poisson { mtbf, time } => {
                *time += exponential(rng) * *mtbf / nodes as f64;
                Some((*time, below(rng, nodes)))
            }
            Kind::Aging { life, eta, shape, untouched, hazard, time, touched, drawn, replaced } => {
                // The next failure of an untouched node is drawn once and put into the heap.
                if *untouched > 0 && !*drawn {
                    *drawn = true;
                    *hazard += exponential(rng) / *untouched as f64;
                    *time = life.time_of(*eta, *shape, *hazard, *time);
                    replaced.push(Reverse((time.to_bits(), u64::MAX)));
                }
                let Some(Reverse((bits, mark))) = replaced.pop() else {
                    return self.next_node = None;
                };
                let at = f64::from_bits(bits);
                let node = if mark == u64::MAX {
                    let node = loop {
                        let candidate = below(rng, nodes);
                        if touched.insert(candidate) {
                            break candidate;
                        }
                    };
                    *untouched -= 1;
                    *drawn = false;
                    node
                } else {
                    mark
                };
                // The replacement of a failed node is new.
                let life = *eta * exponential(rng).powf(1.0 / *shape);
                replaced.push(Reverse(((at + life).to_bits(), node)));
                at.is_finite().then_some((at, node))
            }
            Kind::Trace { trace, at, base } => {
                if *at >= trace.events.len() {
                    *at = 0;
                    *base += trace.span;
                }
                let (t, node) = trace.events[*at];
                *at += 1;
                Some((*base + t, node % nodes))
            }
        };
    }

    /// Returns the next failure without removing it.
    pub fn peek(&self) -> Option<Event> {
        match self.next_node {
            Some((time, node)) if time <= self.next_domain => {
                Some(Event { time, failed: Failed::Node(node), kind: self.next_kind })
            }
            _ if self.next_domain.is_finite() => Some(Event {
                time: self.next_domain,
                // The domain is drawn when the failure is taken.
                failed: Failed::Domain(u64::MAX),
                kind: self.next_kind,
            }),
            _ => None,
        }
    }

    /// Removes the next failure and returns it.
    pub fn take(&mut self) -> Option<Event> {
        let mut event = self.peek()?;
        match event.failed {
            Failed::Node(_) => self.advance_node(),
            Failed::Domain(_) => {
                let count = self.domains.map_or(1, |(count, _)| count);
                event.failed = Failed::Domain(below(&mut self.rng, count));
                self.advance_domain();
            }
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Trace {
        /// Returns the events from `origin` on, as a trace in which every run starts at `origin`.
        pub(in crate::model::simulate) fn starting_at(&self, origin: f64) -> Self {
            Self {
                events: self
                    .events
                    .iter()
                    .filter(|(t, _)| *t >= origin)
                    .map(|(t, n)| (t - origin, *n))
                    .collect(),
                span: 0.0,
            }
        }
    }

    fn count(failures: &Failures, nodes: u64, horizon: f64, runs: u64) -> (f64, f64) {
        // Accumulates the mean and the standard error of the number of failures in [0, horizon].
        let (mut sum, mut square) = (0.0, 0.0);
        for i in 0..runs {
            let mut source = Source::new(failures, nodes, None, 7, i);
            let mut n = 0.0;
            let mut last = 0.0;
            while let Some(e) = source.take() {
                assert!(e.time >= last, "time goes forward");
                last = e.time;
                if e.time > horizon {
                    break;
                }
                n += 1.0;
            }
            sum += n;
            square += n * n;
        }
        let mean = sum / runs as f64;
        let variance = square / runs as f64 - mean * mean;
        (mean, (variance / runs as f64).sqrt())
    }

    #[test]
    fn gamma_is_right_where_it_is_known() {
        assert!((ln_gamma(5.0) - 24.0_f64.ln()).abs() < 1e-13);
        assert!((ln_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-13);
        // a = 1: Q = exp(-x), hazard = x, on both branches and for tiny x.
        for x in [1e-9, 0.3, 1.9, 2.1, 50.0, 900.0] {
            let h = gamma_hazard(1.0, x, 0.0);
            assert!((h / x - 1.0).abs() < 1e-12, "{x} {h}");
        }
    }

    #[test]
    fn poisson_has_the_right_rate() {
        let (mean, error) = count(&Failures::Exponential { mtbf: 1e6 }, 1000, 20_000.0, 2000);
        assert!((mean - 20.0).abs() < 4.0 * error, "{mean} {error}");
    }

    /// In equilibrium a renewal process has the rate 1/mean from the start, for any shape.
    #[test]
    fn stationary_weibull_has_the_exponential_rate() {
        for shape in [0.5, 0.7, 1.0, 2.5] {
            let law = Failures::Weibull { mtbf: 1e6, shape, age: Age::Stationary };
            // The second case is longer than the mean life, so nodes fail again.
            for (nodes, horizon) in [(1000, 20_000.0), (7, 3e6)] {
                let (mean, error) = count(&law, nodes, horizon, 3000);
                let expected = nodes as f64 * horizon / 1e6;
                assert!((mean - expected).abs() < 4.0 * error, "{shape} {mean} {expected} {error}");
            }
        }
    }

    /// Compares with the simple method, which samples every node separately.
    #[test]
    fn aged_weibull_agrees_with_sampling_each_node() {
        let (mtbf, shape, nodes, horizon) = (1000.0, 0.7, 20u64, 1500.0);
        for age in [0.0, 300.0] {
            let law = Failures::Weibull { mtbf, shape, age: Age::Same(age) };
            let (mean, error) = count(&law, nodes, horizon, 4000);
            let eta = mtbf / ln_gamma(1.0 + 1.0 / shape).exp();
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(99);
            let (mut sum, mut square, runs) = (0.0, 0.0, 4000);
            for _ in 0..runs {
                let mut n = 0.0;
                for _ in 0..nodes {
                    let aged = (age / eta).powf(shape);
                    let mut t = eta * (aged + exponential(&mut rng)).powf(1.0 / shape) - age;
                    while t <= horizon {
                        n += 1.0;
                        t += eta * exponential(&mut rng).powf(1.0 / shape);
                    }
                }
                sum += n;
                square += n * n;
            }
            let plain = sum / f64::from(runs);
            let plain_error = ((square / f64::from(runs) - plain * plain) / f64::from(runs)).sqrt();
            assert!((mean - plain).abs() < 4.0 * error.hypot(plain_error), "{mean} {plain}");
        }
    }

    #[test]
    fn a_trace_is_replayed_around_its_end() {
        let trace = Trace::parse("# t node\n10 3\n20,4\n  40\t5 # last\n").unwrap();
        assert!((trace.mtbf() - 15.0).abs() < 1e-12);
        let law = Failures::Trace(trace);
        let mut source = Source::new(&law, 100, None, 1, 0);
        let events: Vec<_> = (0..7).map(|_| source.take().unwrap()).collect();
        assert!(events.windows(2).all(|w| w[0].time < w[1].time));
        assert!((events[3].time - events[0].time - 45.0).abs() < 1e-9, "one round is 45 s");
        assert!(Trace::parse("").is_err());
        assert!(Trace::parse("10 x").unwrap_err().to_string().contains("line 1"));
        assert!(Trace::parse("inf 3").is_err());
    }

    /// The cost depends only on the number of failures: a thousand failures need as many random numbers and as much memory on a
    /// million nodes as on ten thousand. Sampling every node would need a million numbers.
    #[test]
    fn the_cost_does_not_grow_with_the_nodes() {
        let laws = [
            Failures::Exponential { mtbf: 1e9 },
            Failures::Weibull { mtbf: 1e9, shape: 0.7, age: Age::Stationary },
            Failures::Weibull { mtbf: 1e9, shape: 0.7, age: Age::Same(1e6) },
        ];
        for law in &laws {
            for nodes in [10_000, 1_000_000] {
                let mut source = Source::new(law, nodes, None, 3, 0);
                let mut counted = source.rng.clone();
                assert!((0..1000).all(|_| source.take().is_some()));
                let draws = (0..4000).position(|_| {
                    let here = counted == source.rng;
                    counted.next_u64();
                    here
                });
                // A failure needs two random numbers if nodes do not age and three if they do, and sometimes more if the node
                // drawn has failed before.
                assert!(
                    draws.is_some_and(|draws| (2000..3300).contains(&draws)),
                    "{law:?} {draws:?}"
                );
                if let Kind::Aging { touched, replaced, .. } = &source.kind {
                    assert!(touched.len() <= 1001 && replaced.len() <= 1002, "{law:?}");
                }
            }
        }
    }

    #[test]
    fn bounded_integers_are_in_bounds_and_even() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
        let mut hits = [0u32; 7];
        for _ in 0..70_000 {
            hits[below(&mut rng, 7) as usize] += 1;
        }
        assert!(hits.iter().all(|h| h.abs_diff(10_000) < 500), "{hits:?}");
    }
}
