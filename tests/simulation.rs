//! Whole runs from seeds: fixed ones, those that have found a fault, and some of this commit's own.
//!
//! Ranks are forked from this process, which therefore has one thread and no test runner. It prints the output of a runner.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use skt_hpl::testkit::simulation::Stage;
use skt_hpl::testkit::simulation::campaign::Campaign;

#[path = "mpi/extent.rs"]
#[allow(dead_code)] // as much as these tests need
mod extent;

/// Seeds that have found a fault in the program.
const FOUND: &[u64] = &[];

type Test = (&'static str, fn());

const TESTS: &[Test] = &[
    ("seeds_that_found_a_fault", seeds_that_found_a_fault),
    ("fixed_seeds", fixed_seeds),
    ("seeds_of_this_commit", seeds_of_this_commit),
    ("a_seed_repeats_its_run_event_by_event", a_seed_repeats_its_run_event_by_event),
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

fn expect_sound(first: u64, seeds: u64) {
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let time = Duration::from_secs(if extent::whole() { 3600 } else { 120 });
    let tally = Campaign { first, seeds: Some(seeds), time, workers }.run();
    print!("{tally}");
    assert!(tally.failed.is_empty(), "seeds {:?} failed", tally.failed);
    assert!(tally.faults() > seeds / 4, "hardly anything was struck");
}

fn seeds_that_found_a_fault() {
    let mut stage = Stage::new(None);
    for &seed in FOUND {
        if let Err(failure) = stage.run(seed) {
            panic!("{failure}");
        }
    }
}

fn fixed_seeds() {
    expect_sound(0, if extent::whole() { 20_000 } else { 256 });
}

fn seeds_of_this_commit() {
    let first = extent::seed() << 20;
    println!("from seed {first}");
    expect_sound(first, if extent::whole() { 20_000 } else { 256 });
}

fn a_seed_repeats_its_run_event_by_event() {
    let folder = tempfile::tempdir().unwrap();
    // Seeds of each kind, and with storage.
    for seed in [3, 8, 10, 21, 40] {
        let traces = [0, 1].map(|which| {
            let path = folder.path().join(format!("{seed}-{which}"));
            Stage::new(Some(File::create(&path).unwrap())).run(seed).unwrap();
            fs::read_to_string(path).unwrap()
        });
        let differs =
            traces[0].lines().zip(traces[1].lines()).position(|(one, other)| one != other);
        assert!(traces[0] == traces[1], "seed {seed} differs from line {differs:?}");
        assert!(traces[0].lines().count() > 50, "seed {seed}");
    }
}

/// For each safeguard a seed shows when it is left out. If a change of the program has moved the moment, one of the next seeds
/// must show it.
#[cfg(debug_assertions)]
fn each_safeguard_left_out_is_noticed() {
    use skt_hpl::base::faults::Sabotage;
    let known = |sabotage| match sabotage {
        Sabotage::NoBarrier => 13,
        Sabotage::NoDigest => 284,
        Sabotage::SealsEarly | Sabotage::OldCopy => 27,
        Sabotage::NoFinish => 59,
        Sabotage::KeepsSeal | Sabotage::StaleParity => 7,
        Sabotage::PrunesFirst => 129,
        Sabotage::NoRegain => 60,
    };
    let mut unnoticed = Vec::new();
    for &sabotage in Sabotage::ALL {
        let mut stage = Stage::new(None);
        stage.sabotage = Some(sabotage);
        let began = Instant::now();
        let mut seeds =
            (known(sabotage)..).take_while(|_| began.elapsed() < Duration::from_secs(60));
        match seeds.find_map(|seed| Some((seed, stage.run(seed).err()?))) {
            Some((seed, failure)) => {
                let what = failure.what.lines().next().unwrap_or_default().to_owned();
                println!("{}: seed {seed}, after {:.1?}: {what}", sabotage.name(), began.elapsed());
            }
            None => unnoticed.push(sabotage.name()),
        }
    }
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}
