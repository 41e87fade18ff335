//! Whole runs from seeds: fixed ones, those that have found a fault, and some of this commit's own.
//!
//! Ranks are forked from this process, which therefore has one thread and no test runner. It prints the output of a runner.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use skt_hpl::testkit::simulation::Simulation;
#[cfg(debug_assertions)]
use skt_hpl::testkit::simulation::campaign::first_failure;
use skt_hpl::testkit::simulation::campaign::{Campaign, Kind, apart};
use skt_hpl::testkit::simulation::ranks::Stage;
use skt_hpl::testkit::simulation::supervisor::Office;

#[path = "mpi/extent.rs"]
#[allow(dead_code)] // as much as these tests need
mod extent;

/// Seeds that have found a fault in the program.
const FOUND: &[(Kind, u64)] = &[
    // Between two attempts a node whose connection was being made again was left out.
    (Kind::Supervisor, 448),
    (Kind::Supervisor, 1068),
    // The benchmark finished just before its ranks were ended.
    (Kind::Supervisor, 500_265),
    // The time of a login was not learned from nodes that were lost at first.
    (Kind::Supervisor, 502_188),
    // The only node that lived was not called for long enough, because a dead one was to call it.
    (Kind::Supervisor, 1_006_728),
    // A node that had been judged lost answered again; the supervisor thought itself cut off when the others died.
    (Kind::Supervisor, 1_000_896),
    // A healthy job was ended for a node that had answered again: the step had to wait for the disk.
    (Kind::Supervisor, 2_096_448),
    // A lost node that was back was not called while all others were unresponsive.
    (Kind::Supervisor, 3_012_242),
    // A node that answered together with another one, after a long outage, was given up before it was asked.
    (Kind::Supervisor, 20_029_424),
    // A spare froze while MPI was tried on nodes of which one was at fault: the supervisor gave up.
    (Kind::Supervisor, 31_000_801),
    // A node that did not answer for two seconds was blamed for a failed trial of MPI, since another node was at fault twice.
    (Kind::Supervisor, 94_000_837),
    // All tests were done when the supervisor was replaced and no node answered: a stop ended the run as unfinished.
    (Kind::Supervisor, 100_404_152),
    // A spare was lost during the trials of MPI, answered and was chosen again: the supervisor looped.
    (Kind::Supervisor, 210_000_433),
    // Another program was done, but its status could not be read before a node was lost.
    (Kind::Supervisor, 210_015_750),
    // The ranks recovered in place, but the disk hung: their message could not be read, and the healthy job was ended.
    (Kind::Supervisor, 220_006_730),
    // A rank hung in place while its node's agent was started again: a healthy rank that waited for it was ended.
    (Kind::Supervisor, 260_010_172),
    // A node was cut off, and answered again while the disk hung, before its loss could be recorded: the job was ended.
    (Kind::Supervisor, 303_000_697),
    (Kind::Supervisor, 304_005_152),
    // A node was judged lost while the job was stopped, answered again after an outage, and was given up after the stop.
    (Kind::Supervisor, 260_006_282),
    // All nodes were switched off, and the one that booted had been judged lost before the others: it was not called.
    (Kind::Supervisor, 306_009_950),
    // The job recovered in place after a fault was recorded, and completed without a supervisor: the loss was not recorded.
    (Kind::Supervisor, 303_023_202),
    // All nodes were unreachable at first, so the arithmetic of the run was learned from none: a node with another one was used.
    (Kind::Supervisor, 12_016),
    // Another program, under a launcher that hides losses: a relayed heartbeat, older than the node's loss, counted as an answer.
    (Kind::Supervisor, 430_013_594),
    // The same; the supervisor died after the loss, the lost node booted, and the new supervisor believed status 0.
    (Kind::Supervisor, 411_015_384),
    // After an outage of 3.6 s one node answered, and another was given up a moment before its own answer.
    (Kind::Supervisor, 800_000_444),
    // The removal of memory waited a minute for a node that was off.
    (Kind::Supervisor, 900_001_626),
    // A node was rebooted during the first calls, and another was off for good: the supervisor took itself for cut off.
    (Kind::Supervisor, 913_006_935),
    // A long broadcast, whose sender died: in the simulation, a later message overtook one that was lost.
    (Kind::Ranks, 102_003_005),
    // Method double, code sum: parity encoded again after a rebuild up to rounding did not match its digests.
    (Kind::Ranks, 6_000_614),
];

type Test = (&'static str, fn());

const TESTS: &[Test] = &[
    ("seeds_that_found_a_fault", seeds_that_found_a_fault),
    ("fixed_seeds", fixed_seeds),
    ("seeds_of_this_commit", seeds_of_this_commit),
    ("a_seed_repeats_its_run_event_by_event", a_seed_repeats_its_run_event_by_event),
    ("a_thousand_nodes_are_supervised", a_thousand_nodes_are_supervised),
    #[cfg(debug_assertions)]
    ("each_safeguard_left_out_is_noticed", each_safeguard_left_out_is_noticed),
];

fn main() {
    let words: Vec<String> = std::env::args().collect();
    // A word that is neither a flag nor a flag's value is a filter, as for the usual runner.
    let valued = ["--test-threads", "--skip", "--format", "--color"];
    let is_filter = |pair: &&[String]| !pair[1].starts_with('-') && !valued.contains(&&pair[0][..]);
    let wanted = words.windows(2).find(is_filter).map(|pair| pair[1].clone()).unwrap_or_default();
    let ignored = std::env::args().any(|word| word == "--ignored");
    let chosen: Vec<&Test> = TESTS.iter().filter(|(name, _)| name.contains(&wanted)).collect();
    if std::env::args().any(|word| word == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let began = Instant::now();
    println!("\nrunning {} tests", chosen.len());
    let (mut passed, mut failed) = (0, Vec::new());
    for (name, test) in chosen.into_iter().filter(|_| !ignored) {
        if std::panic::catch_unwind(test).is_ok() {
            passed += 1;
            println!("test {name} ... ok");
        } else {
            println!("test {name} ... FAILED");
            failed.push(name);
        }
    }
    let result = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {passed} passed; {} failed; 0 ignored; 0 measured; 0 filtered out; finished in {:.2}s",
        failed.len(),
        began.elapsed().as_secs_f64()
    );
    std::process::exit(if failed.is_empty() { 0 } else { 101 });
}

/// Expects that no seed of these fails, and that faults are injected.
fn expect_sound(kind: Kind, first: u64, seeds: u64) {
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let time = Duration::from_secs(if extent::whole() { 3600 } else { 120 });
    let tally = Campaign { kind, first, seeds: Some(seeds), time, workers }.run();
    print!("{tally}");
    assert!(tally.failed.is_empty(), "seeds {:?} failed", tally.failed);
    assert!(tally.faults() > seeds / 4, "hardly any fault was injected");
}

fn seeds_that_found_a_fault() {
    let time = Duration::from_secs(60);
    for &(kind, first) in FOUND {
        let tally = Campaign { kind, first, seeds: Some(1), time, workers: 1 }.run();
        assert!(tally.failed.is_empty(), "seed {first} of {kind:?} failed");
    }
}

/// The number of seeds of each kind.
fn extent_of(kind: Kind) -> u64 {
    match (kind, extent::whole()) {
        (Kind::Ranks, false) => 256,
        (Kind::Ranks, true) => 20_000,
        (Kind::Supervisor, false) => 1000,
        (Kind::Supervisor, true) => 200_000,
    }
}

fn fixed_seeds() {
    for kind in [Kind::Ranks, Kind::Supervisor] {
        expect_sound(kind, 0, extent_of(kind));
    }
}

fn seeds_of_this_commit() {
    let first = extent::seed() << 20;
    println!("from seed {first}");
    expect_sound(Kind::Ranks, first, extent_of(Kind::Ranks));
    expect_sound(Kind::Supervisor, first, extent_of(Kind::Supervisor));
}

fn a_seed_repeats_its_run_event_by_event() {
    let folder = tempfile::tempdir().unwrap();
    // Of each kind, and with storage.
    for seed in [3, 8, 10, 21, 40] {
        let traces = [0, 1].map(|which| {
            let path = folder.path().join(format!("{seed}-{which}"));
            Stage::new(Some(File::create(&path).unwrap())).run(seed).unwrap();
            fs::read_to_string(path).unwrap()
        });
        expect_same(seed, &traces);
    }
    for seed in 0..50 {
        let traces = [0, 1].map(|_| {
            let mut log = apart(|told| {
                Office::new(Some(told)).run(seed).unwrap();
            });
            let mut text = String::new();
            log.read_to_string(&mut text).unwrap();
            text
        });
        expect_same(seed, &traces);
    }
}

fn expect_same(seed: u64, traces: &[String; 2]) {
    let differs = traces[0].lines().zip(traces[1].lines()).position(|(one, other)| one != other);
    let line = differs.map(|at| traces.each_ref().map(|trace| trace.lines().nth(at)));
    assert!(traces[0] == traces[1], "seed {seed} differs: {line:?}");
    assert!(traces[0].lines().count() > 5, "seed {seed}");
}

fn a_thousand_nodes_are_supervised() {
    for seed in 0..4 {
        let began = Instant::now();
        let mut ended = apart(|mut told| {
            let ran = Office::begin().run_on(seed, 1000);
            let text = ran.map_or_else(|failure| failure.to_string(), |_| "well".to_owned());
            told.write_all(text.as_bytes()).unwrap();
        });
        let mut text = String::new();
        ended.read_to_string(&mut text).unwrap();
        assert_eq!(text, "well", "seed {seed}");
        println!("seed {seed}: {:.1?}", began.elapsed());
    }
}

/// Each safeguard has a seed that notices when it is left out. If a change of the program has moved the moment, one of the next
/// seeds must notice.
#[cfg(debug_assertions)]
fn each_safeguard_left_out_is_noticed() {
    use Kind::{Ranks, Supervisor};
    use skt_hpl::base::faults::Sabotage;
    let known = |sabotage| match sabotage {
        Sabotage::NoBarrier => (Ranks, 13),
        Sabotage::NoDigest => (Ranks, 820),
        Sabotage::SealsEarly | Sabotage::OldCopy => (Ranks, 27),
        Sabotage::NoFinish => (Ranks, 59),
        Sabotage::KeepsSeal | Sabotage::StaleParity => (Ranks, 7),
        Sabotage::PrunesFirst => (Ranks, 129),
        Sabotage::NoRecompute => (Ranks, 60),
        Sabotage::NoRecord | Sabotage::NoOutage | Sabotage::CleansEarly => (Supervisor, 0),
        Sabotage::NoRedial => (Supervisor, 6),
        Sabotage::NoAdoption => (Supervisor, 93),
        Sabotage::LeavesRanks => (Supervisor, 3),
        Sabotage::ChoosesSoon => (Supervisor, 448),
    };
    let mut unnoticed = Vec::new();
    for &sabotage in Sabotage::ALL {
        let (kind, first) = known(sabotage);
        let began = Instant::now();
        match first_failure(kind, sabotage, first, Duration::from_secs(60)) {
            Some((seed, what)) => {
                let what = what.lines().next().unwrap_or_default();
                println!("{}: seed {seed}, after {:.1?}: {what}", sabotage.name(), began.elapsed());
            }
            None => unnoticed.push(sabotage.name()),
        }
    }
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}
