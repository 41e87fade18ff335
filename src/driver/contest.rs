//! Choice of the engine for each test. If several engines compete, all ranks measure them with panels as wide as the test's, and
//! use the fastest. The benchmark and the trials of `tune` choose before they create anything for a test.
//!
//! A protected run without an explicit choice uses one of the program's own kernels if a kernel runs on all nodes. All these
//! kernels give identical last bits on all processors. So a restart with another of the kernels gets the same bits.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::agreement::{Engines, reduced, stand_by};
use crate::base::params::TestParams;
use crate::base::threads::Pool;
use crate::comm::{Comm, Reduce};
use crate::kernels::Engine;
use crate::kernels::choice::{self, Contest, Place};

/// Number of operations of a thread above which measuring the engines saves more time than it takes: about a second of work.
const WORTH: f64 = 1e11;

/// Tests for which an engine is chosen, and the part of this rank in them.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub tests: &'a [TestParams],
    /// True if this rank has a position in the process grid when the run begins.
    pub computes: bool,
    /// True if a rank without a position may get a position later.
    pub turns: bool,
}

/// Lists the ranks of a node that measure, by their number on the node. Ranks that compute also measure. If no rank of the node
/// computes, but a rank may get a position later (`turns`), all ranks of the node measure.
fn measuring(node: &Comm, computes: bool, turns: bool) -> Vec<usize> {
    let all = node.all_gather(&[u8::from(computes)]);
    let idle_measure = turns && !all.contains(&1);
    (0..all.len()).filter(|&rank| all[rank] == 1 || idle_measure).collect()
}

/// Rate of an engine on a rank that does not measure. This rate is larger than any measured rate, so it is never the minimum of
/// all ranks.
const NO_SAY: u64 = i64::MAX as u64;

/// Measurement of the competing engines by all ranks.
struct Measurement<'a> {
    comm: &'a Comm,
    node: &'a Comm,
    competing: &'a [Engine],
    /// Ranks of this node that measure, by their number on the node.
    ranks: Vec<usize>,
    /// File with the rates that earlier runs measured; `None` without a home folder.
    file: Option<PathBuf>,
}

impl Measurement<'_> {
    /// Returns the rates, in MFLOP/s, in the order of the competing engines. An engine without a rate gets 0.
    fn in_order(&self, rates: choice::Rates) -> Vec<u64> {
        let rate = |e: &Engine| rates.iter().find(|(name, _)| name == e.name()).map_or(0, |r| r.1);
        self.competing.iter().map(rate).collect()
    }

    /// Returns the rates of all competing engines, in MFLOP/s, as stored by earlier runs. If the file lacks the rate of any
    /// engine, all rates are 0 on a node whose ranks can measure. On a node where no rank measures, all rates are then
    /// [`NO_SAY`]. Only the first rank of a node reads the file.
    fn recalled(&self, place: &Place) -> Vec<u64> {
        let found = self.file.as_ref().filter(|_| self.node.rank() == 0);
        let found = found.and_then(|file| choice::recall(file, place, self.competing));
        let unknown = if self.ranks.is_empty() { NO_SAY } else { 0 };
        found.map_or(vec![unknown; self.competing.len()], |rates| self.in_order(rates))
    }

    /// Measures the engines, and stores the rates of each node. Returns the rate of each engine on its slowest rank, in MFLOP/s.
    /// `contest` is `None` on a rank that does not measure. Collective call.
    fn measure(&self, place: &Place, contest: Option<&mut Contest>, pool: &mut Pool) -> Vec<u64> {
        let Self { comm, node, competing, ranks, file } = self;
        // All ranks measure at the same time, because they will also compute at the same time.
        comm.barrier();
        let mut rates = match contest {
            Some(contest) => self.in_order(contest.rates(place.nb, pool)),
            None => vec![NO_SAY; competing.len()],
        };
        if let Some(&first) = ranks.first() {
            // The ranks that do not measure sleep, so that all cores are free for the ranks that measure.
            stand_by(node, first, |rank| !ranks.contains(&rank));
        }
        node.all_reduce(&mut rates, Reduce::Min);
        let names = competing.iter().map(|engine| engine.name().to_owned());
        let of_node: choice::Rates = names.zip(rates.clone()).collect();
        let keeps = file.as_ref().filter(|_| node.rank() == 0 && !ranks.is_empty());
        // Nodes may share a home directory, and thousands of nodes would then write the same file at once. So rank 0 writes
        // first. Each other node writes only if the entry is still missing.
        if let Some(file) = keeps.filter(|_| comm.rank() == 0) {
            choice::remember(file, place, &of_node);
        }
        comm.all_reduce(&mut rates, Reduce::Min);
        if let Some(file) = keeps.filter(|_| comm.rank() != 0)
            && choice::recall(file, place, competing).is_none()
        {
            choice::remember(file, place, &of_node);
        }
        rates
    }

    /// Returns the engine with the highest rate in `rates`, and a line that describes the choice. `how` describes the origin of
    /// the rates.
    fn winner(&self, rates: &[u64], nb: usize, how: &str) -> (Engine, String) {
        let winner = choice::choose(&[rates.to_vec()]).unwrap_or(0);
        let name = |i: usize| self.competing[i].name();
        let rate = |i: usize| format!("{} {:.1}", name(i), rates[i] as f64 / 1000.0);
        let others: Vec<String> = (0..rates.len()).filter(|&i| i != winner).map(rate).collect();
        let line = format!(
            "engine: {} Gflop/s a rank, {how} at NB = {nb}; {}",
            rate(winner),
            others.join(", ")
        );
        (self.competing[winner], line)
    }
}

/// Panel width for which the engines compete, and the facts that decide whether they are measured.
struct Width {
    place: Place,
    /// True if measuring the engines for this width saves more time than it takes.
    worth: bool,
    /// Rate of each engine on the slowest rank, in MFLOP/s, as stored by earlier runs; 0 if unknown.
    rates: Vec<u64>,
}

impl Width {
    fn is_unknown(&self) -> bool {
        self.rates.contains(&0)
    }
}

/// Finds, for each panel width of `work`, the stored rates, and whether measuring saves more time than it takes. `work` has a
/// rank's number of operations for each width. `may_compute` is true if this rank may compute at some time. Collective call.
fn widths(
    measurement: &Measurement,
    work: &BTreeMap<usize, f64>,
    threads: usize,
    may_compute: bool,
) -> Vec<Width> {
    let Measurement { comm, node, competing, ranks, .. } = measurement;
    let places = work.keys().map(|&width| Place::here(width, threads, ranks.len()));
    let places: Vec<Place> = places.collect();
    let mut slowest: Vec<u64> =
        places.iter().flat_map(|place| measurement.recalled(place)).collect();
    node.broadcast(&mut slowest, 0);
    comm.all_reduce(&mut slowest, Reduce::Min);
    // Ranks may have different numbers of threads.
    let is_worth = |work: &f64| may_compute && work / threads as f64 > WORTH;
    let mut worth: Vec<u64> = work.values().map(|work| u64::from(is_worth(work))).collect();
    comm.all_reduce(&mut worth, Reduce::Max);
    let width = |((place, worth), rates): ((Place, u64), &[u64])| Width {
        place,
        worth: worth != 0,
        rates: rates.to_vec(),
    };
    places.into_iter().zip(worth).zip(slowest.chunks(competing.len())).map(width).collect()
}

/// Chooses among the `competing` engines for the run's tests, and describes the choice in lines. The rates in the lines are
/// those of the slowest rank. All ranks must pass the same tests and engines, and get the same result. Collective call.
pub fn decide(
    comm: &Comm,
    node: &Comm,
    asked: Asked,
    competing: &[Engine],
    pool: &mut Pool,
) -> (Engines, Vec<String>) {
    let Asked { tests, computes, turns } = asked;
    let first = competing[0];
    let mut work: BTreeMap<usize, f64> = BTreeMap::new();
    for test in tests {
        let operations = (test.n as f64).powi(3) / (test.p * test.q) as f64;
        *work.entry(Engines::width(test)).or_default() += operations;
    }
    if competing.len() == 1 || work.is_empty() {
        return (Engines::new(first, Vec::new()), vec![format!("engine: {}", first.name())]);
    }
    let ranks = measuring(node, computes, turns);
    let measurement = Measurement { comm, node, competing, ranks, file: choice::file() };
    let widths = widths(&measurement, &work, pool.threads(), computes || turns);
    let ranks = &measurement.ranks;
    let wanted = widths.iter().filter(|width| width.is_unknown() && width.worth);
    let wanted: Vec<usize> = wanted.map(|width| width.place.nb).collect();
    let takes_part = !wanted.is_empty() && ranks.contains(&node.rank());
    let contest = takes_part.then(|| Contest::new(competing, &wanted, ranks.len(), pool));
    // If one rank has no memory for the measurement, no rank measures.
    let has_room = reduced(comm, u64::from(!matches!(contest, Some(Err(_)))), Reduce::Min);
    let mut contest = contest.and_then(Result::ok);
    let (mut engines, mut lines) = (Vec::new(), Vec::new());
    let (mut small, mut no_room) = (Vec::new(), Vec::new());
    for width in &widths {
        let nb = width.place.nb;
        let (engine, line) = if !width.is_unknown() {
            measurement.winner(&width.rates, nb, "as remembered")
        } else if !width.worth {
            small.push(nb.to_string());
            continue;
        } else if has_room == 0 {
            no_room.push(nb.to_string());
            continue;
        } else {
            let rates = measurement.measure(&width.place, contest.as_mut(), pool);
            measurement.winner(&rates, nb, "measured")
        };
        engines.push((nb, engine));
        lines.push(line);
    }
    for (unmeasured, why) in
        [(small, "because the problem is small"), (no_room, "because a node has too little memory")]
    {
        let which = match unmeasured.len() {
            0 => continue,
            some if some == widths.len() => String::new(),
            _ => format!(" at NB = {}", unmeasured.join(", ")),
        };
        lines.push(format!("engine: {}{which} (not measured {why})", first.name()));
    }
    (Engines::new(first, engines), lines)
}
