//! All ranks of a run settle on one engine: what was asked for, what all can run, and of several
//! the fastest by measuring. Called by the benchmark before anything is made for a test.
//!
//! A protected run that asks for nothing takes a kernel of the program's own wherever there is one:
//! these round alike everywhere, so a restart may take another of them and come to the same bits.

use std::time::Duration;

use crate::blas::Engine;
use crate::blas::arithmetic::entrants;
use crate::blas::choice::{self, Place};
use crate::comm::{Comm, Reduce};
use crate::params::{self, TestParams};
use crate::threads::Pool;

/// Operations a thread must have before it for a measurement to pay: a second or so.
const WORTH: f64 = 1e11;

/// What the engine is for.
pub struct Asked<'a> {
    pub choice: params::Engine,
    pub protected: bool,
    pub tests: &'a [TestParams],
    /// Whether this rank has a place in the process grid when the run begins.
    pub computes: bool,
}

/// Between two looks of who does not compete whether the others are done.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What they tell it with.
const TAG: i32 = 41;

/// The ranks of a node that compete, by number there: those that compute, or all where none does.
fn competitors(node: &Comm, computes: bool) -> Vec<usize> {
    let all = node.all_gather(&[u8::from(computes)]);
    let some = all.contains(&1);
    (0..all.len()).filter(|&rank| all[rank] == 1 || !some).collect()
}

/// The engine of the run, of those that all ranks can run, and a line that says how it came to it. All ranks
/// together; all return alike, but for the rates in the line, which are the slowest rank's everywhere.
pub fn decide(
    comm: &Comm,
    node: &Comm,
    asked: &Asked,
    everywhere: &[Engine],
    pool: &mut Pool,
) -> (Engine, String) {
    let &Asked { choice, protected, tests, computes } = asked;
    let names = everywhere.iter().map(|engine| engine.name()).collect();
    let entrants = entrants(choice, protected, names);
    let engines: Vec<Engine> = entrants.iter().filter_map(|name| Engine::named(name)).collect();
    let first = engines[0];
    if engines.len() == 1 {
        return (first, format!("engine: {}", first.name()));
    }
    let largest = tests.iter().max_by_key(|test| test.n);
    let nb = largest.map_or(1, |test| test.nb.min(test.n)).max(1);
    let competing = competitors(node, computes);
    let place = Place::here(nb, pool.threads(), competing.len());
    let file = choice::file();
    let order = |rates: choice::Rates| -> Vec<u64> {
        let rate = |e: &Engine| rates.iter().find(|(name, _)| name == e.name()).map_or(0, |r| r.1);
        engines.iter().map(rate).collect()
    };
    // The first rank of a node looks for all of it.
    let mut rates = vec![0; engines.len()];
    if node.rank() == 0
        && let Some(found) = file.as_ref().and_then(|file| choice::recall(file, &place, &engines))
    {
        rates = order(found);
    }
    node.broadcast(&mut rates, 0);
    let mut slowest = rates.clone();
    comm.all_reduce(&mut slowest, Reduce::Min);
    let mut how = "as remembered";
    if slowest.contains(&0) {
        let work: f64 = tests.iter().map(|t| (t.n as f64).powi(3) / (t.p * t.q) as f64).sum();
        let mut worth = [u64::from(work / pool.threads() as f64 > WORTH)];
        // Threads may differ from rank to rank.
        comm.all_reduce(&mut worth, Reduce::Max);
        if worth[0] == 0 {
            let why = "not measured for so small a problem";
            return (first, format!("engine: {} ({why})", first.name()));
        }
        how = "measured";
        // All at the same time: that is how it will be.
        comm.barrier();
        let mut rates = if competing.contains(&node.rank()) {
            let rates = order(choice::measure(&engines, nb, pool));
            if node.rank() == competing[0] {
                let others = (0..node.size()).filter(|rank| !competing.contains(rank));
                others.for_each(|rank| node.send::<u8>(&[], rank, TAG));
            }
            rates
        } else {
            // Its cores are the others', who are measured by them: it sleeps.
            node.await_word(competing[0], TAG, LOOK_EVERY);
            node.recv::<u8>(&mut [], competing[0], TAG);
            vec![i64::MAX as u64; engines.len()]
        };
        node.all_reduce(&mut rates, Reduce::Min);
        if node.rank() == 0
            && let Some(file) = &file
        {
            let named = engines.iter().map(|e| e.name().to_owned()).zip(rates.clone()).collect();
            choice::remember(file, &place, &named);
        }
        slowest = rates;
        comm.all_reduce(&mut slowest, Reduce::Min);
    }
    let winner = choice::choose(std::slice::from_ref(&slowest)).unwrap_or(0);
    let rate = |i: usize| format!("{} {:.1}", engines[i].name(), slowest[i] as f64 / 1000.0);
    let others: Vec<String> = (0..engines.len()).filter(|&i| i != winner).map(rate).collect();
    let told = format!(
        "engine: {} Gflop/s a rank, {how} at NB = {nb}; {}",
        rate(winner),
        others.join(", ")
    );
    (engines[winner], told)
}
