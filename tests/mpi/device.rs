//! Tests with the matrix in device memory (`--device host`). x has the bits of a run by a BLAS without a device, in whatever
//! order the streams run.

use skt_hpl::base::outcome::Verdict;
use skt_hpl::base::params::{Device, Engine, TestParams};
use skt_hpl::config::memory_need::{Means, PROCESS_BYTES, rank_bytes};
use skt_hpl::report::json::Run;

use crate::dat::Dat;
use crate::job::Job;

/// Returns the parameters and the digest of x of each test. Asserts that all tests passed.
fn bits(run: &Run) -> Vec<(&TestParams, &str)> {
    let outcomes = run.tests.iter().map(|test| (&test.params, test.outcome.as_ref().unwrap()));
    outcomes
        .map(|(params, outcome)| {
            assert_eq!(outcome.verdict, Verdict::Passed, "{params:?}");
            (params, outcome.x_digest.as_str())
        })
        .collect()
}

/// Asserts that the tests of `dat` have the same bits of x with `--device host` and without a device. A seed determines the
/// matrix and the order in which the streams run.
fn same_bits(dat: &Dat, args: &[&str], seeds: &[&str]) {
    for seed in seeds {
        let job = |more: &[&str]| {
            let all = [&["--seed", seed], args, more].concat();
            Job::tests(dat).args(&all).run().expect_code(0).json()
        };
        let (here, there) = (job(&["--engine", "blas"]), job(&["--device", "host"]));
        assert_eq!(here.tests.len(), dat.tests());
        assert_eq!(bits(&there), bits(&here), "seed {seed}");
    }
}

/// The bits are equal on all grids and lookaheads, for N that is not a multiple of NB, and with updates in halves wherever
/// possible.
#[test]
fn a_device_computes_the_bits_of_the_blas() {
    let dat = Dat {
        ns: vec![60, 203],
        nbs: vec![9, 32],
        grids: vec![(1, 1), (2, 1), (1, 3), (2, 2), (3, 2)],
        depths: vec![0, 1, 2],
        ..Dat::default()
    };
    for (threads, halves) in [("1", "always"), ("2", "never")] {
        let args = ["--threads", threads, "--split-update", halves];
        same_bits(&dat, &args, &["100", "7"]);
    }
}

/// The bits are equal for all broadcasts, row exchanges, forms of L1 and orders of ranks.
#[test]
fn options_reach_the_device() {
    for (swap, l1, pmap) in [(0, 0, 1), (1, 1, 0), (2, 1, 1)] {
        let dat = Dat {
            ns: vec![150],
            nbs: vec![16],
            grids: vec![(2, 3), (4, 1)],
            bcasts: (0..6).collect(),
            depths: vec![0, 1],
            rfacts: vec![swap],
            pfacts: vec![swap],
            swap,
            l1,
            pmap,
            ..Dat::default()
        };
        same_bits(&dat, &["--split-update", "always"], &["3"]);
    }
}

/// The bits are equal if so many columns are exchanged that they travel in three pieces.
#[test]
fn rows_travel_in_several_pieces() {
    let (ns, nbs, grids) = (vec![5200], vec![1024], vec![(3, 1)]);
    let dat = Dat { ns, nbs, grids, swap: 1, ..Dat::default() };
    same_bits(&dat, &["--split-update", "always"], &["5"]);
}

/// The bits are equal if ranks have no rows or no columns, or if blocks are larger than the matrix.
#[test]
fn a_device_may_have_next_to_nothing() {
    let dat = Dat {
        ns: vec![0, 1, 2, 6, 7, 8, 13, 20],
        nbs: vec![1, 7, 64],
        grids: vec![(1, 1), (1, 4), (4, 1), (2, 3)],
        depths: vec![0, 2],
        ..Dat::default()
    };
    same_bits(&dat, &[], &["1"]);
}

/// The memory check counts the arrays in device memory too. With `--device host`, this is memory of the node.
#[test]
fn memory_of_the_device_is_counted() {
    for (n, nb, grid, depth) in [(3000, 128, (1, 1), 1), (2400, 600, (2, 1), 0)] {
        let dat = Dat {
            ns: vec![n],
            nbs: vec![nb],
            grids: vec![grid],
            depths: vec![depth],
            ..Dat::default()
        };
        let run = Job::tests(&dat).args(&["--device", "host"]).run().expect_code(0).json();
        let outcome = run.tests[0].outcome.as_ref().unwrap();
        let means = Means { engine: Engine::Blas, threads: outcome.threads, device: Device::Host };
        let checked = rank_bytes(&run.tests[0].params, means);
        let (made, arrays) =
            (outcome.matrix_bytes_max + outcome.work_bytes_max, (checked - PROCESS_BYTES) as f64);
        let made = made as f64;
        assert!(made <= arrays && made > 0.96 * arrays, "{made} of {arrays}");
        assert!(u128::from(outcome.resident_bytes_max) <= checked, "{outcome:?}");
        assert!(outcome.resident_bytes_max as f64 > made, "{outcome:?}");
    }
}

#[test]
fn a_device_is_refused_together_with_most_methods() {
    let ran = Job::tests(&Dat::default()).args(&["--device", "host", "--checkpoint", "1"]).run();
    let ran = ran.expect_code(1);
    assert!(ran.err.contains("can be saved by method double alone"), "{}", ran.told());
}
