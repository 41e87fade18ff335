//! The update in two halves: really taken, and no bit of x depends on it.

use skt_hpl::outcome::{Halves, Verdict};
use skt_hpl::report::json::Run;

use crate::dat::Dat;
use crate::job::Job;

/// Three grids, N no multiple of NB, each depth: many iterations that have two halves.
fn solve(engine: &str, threads: &str, halves: &str) -> Run {
    let dat = Dat {
        ns: vec![203],
        nbs: vec![9],
        grids: vec![(2, 1), (2, 2), (3, 2)],
        depths: vec![0, 1, 2],
        ..Dat::default()
    };
    let args = ["--engine", engine, "--threads", threads, "--halves", halves];
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
        assert_eq!(test.outcome.as_ref().unwrap().halves, Halves::default());
    }
    let runs = ["1", "2"].map(|threads| solve("packed", threads, "always"));
    assert!(runs.iter().all(|run| digests(run) == digests(&whole)));
    let blas = solve("blas", "1", "always");
    assert_eq!(digests(&blas), digests(&solve("blas", "2", "never")));
    for test in runs.iter().chain([&blas]).flat_map(|run| &run.tests) {
        let (params, outcome) = (&test.params, test.outcome.as_ref().unwrap());
        assert_eq!(outcome.verdict, Verdict::Passed, "{params:?}");
        let Halves { iterations, early, hidden } = outcome.halves;
        let (ranks, blocks) = (params.p * params.q, params.blocks());
        // The last iterations have no two block columns left.
        let least = ranks * (blocks - params.depth - 3 * params.q);
        let most = (ranks * blocks) as u64;
        assert!(iterations >= least as u64 && iterations < most, "{iterations} of {params:?}");
        assert_eq!(early > 0, params.depth > 0, "{params:?}");
        assert!(early < iterations && hidden <= iterations + early, "{params:?}");
    }
}
