//! Tests of the update in two halves: iterations really use it, and no bit of x depends on it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use skt_hpl::base::outcome::{SplitUpdates, Verdict};
use skt_hpl::report::json::Run;

use crate::dat::Dat;
use crate::job::{Job, RankProcess};

/// Runs tests on three grids with depths 0 to 2, where N is not a multiple of NB. Many iterations can be divided into halves.
fn solve(engine: &str, threads: &str, halves: &str) -> Run {
    let dat = Dat {
        ns: vec![203],
        nbs: vec![9],
        grids: vec![(2, 1), (2, 2), (3, 2)],
        depths: vec![0, 1, 2],
        ..Dat::default()
    };
    let args = ["--engine", engine, "--threads", threads, "--split-update", halves];
    Job::tests(&dat).args(&args).run().expect_code(0).json()
}

fn digests(run: &Run) -> Vec<String> {
    let outcomes = run.tests.iter().map(|test| test.outcome.as_ref().unwrap());
    outcomes.map(|outcome| outcome.x_digest.clone()).collect()
}

#[test]
fn no_bit_depends_on_whether_the_update_goes_in_halves() {
    let whole = solve("packed", "1", "never");
    for test in &whole.tests {
        assert_eq!(test.outcome.as_ref().unwrap().split_update, SplitUpdates::default());
    }
    let runs = ["1", "2"].map(|threads| solve("packed", threads, "always"));
    assert!(runs.iter().all(|run| digests(run) == digests(&whole)));
    let blas = solve("blas", "1", "always");
    assert_eq!(digests(&blas), digests(&solve("blas", "2", "never")));
    for test in runs.iter().chain([&blas]).flat_map(|run| &run.tests) {
        let (params, outcome) = (&test.params, test.outcome.as_ref().unwrap());
        assert_eq!(outcome.verdict, Verdict::Passed, "{params:?}");
        let SplitUpdates { iterations, early, hidden, amid } = outcome.split_update;
        let (ranks, blocks) = (params.p * params.q, params.blocks());
        // In the last iterations, fewer than two block columns are left.
        let least = ranks * (blocks - params.depth - 3 * params.q);
        let most = (ranks * blocks) as u64;
        assert!(iterations >= least as u64 && iterations < most, "{iterations} of {params:?}");
        assert_eq!(early > 0, params.depth > 0, "{params:?}");
        assert!(early < iterations && hidden <= iterations + early, "{params:?}");
        let in_turn = params.depth > 0 && outcome.threads == 1;
        assert!(amid <= iterations * u64::from(in_turn), "{amid} of {params:?}");
    }
}

/// A rank that waits for another rank of its process column multiplies meanwhile. Both then factor their panel.
#[test]
fn the_first_rank_there_multiplies_until_the_others_come() {
    let dat = Dat {
        ns: vec![2400],
        nbs: vec![80],
        grids: vec![(2, 1)],
        depths: vec![1],
        ..Dat::default()
    };
    let job = || Job::tests(&dat).args(&["--engine", "packed", "--split-update", "always"]);
    // Order of the exchanges in an iteration: columns of the next panel, columns of the left half, and, early, columns of the
    // next right half. For the first panel, the right half is not exchanged early. So rank 1 is late for the columns of panels 4
    // to 13. If the columns of the right half have not come in time, the other rank waits for those instead, but not in all
    // iterations.
    let late = (3..13).map(|k| format!("swap-half:1:{}:stop", 3 * k + 2)).collect::<Vec<_>>();
    let mut running = job().env("SKT_FAULT", &late.join(",")).start();
    let began = Instant::now();
    while !running.over() {
        if let Some(late) = running.ranks().into_iter().find(RankProcess::halted) {
            sleep(Duration::from_millis(200));
            kill(late.pid, Signal::SIGCONT).unwrap();
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{}", running.told());
        sleep(Duration::from_millis(5));
    }
    let ran = running.end().expect_code(0);
    assert_eq!(ran.err.matches("fault at position 1").count(), late.len(), "{}", ran.told());
    let run = ran.json();
    let outcome = run.tests[0].outcome.as_ref().unwrap();
    assert_eq!(outcome.verdict, Verdict::Passed);
    assert!(outcome.split_update.amid > 0, "{:?}", outcome.split_update);
    assert_eq!(digests(&run), digests(&job().run().expect_code(0).json()));
}
