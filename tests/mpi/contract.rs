//! Tests of fixed figures: the norms of the reference HPL, the memory of a test, and the sums of times.

use std::collections::BTreeMap;

use skt_hpl::base::outcome::{Outcome, Times, combined};
use skt_hpl::base::params::{Device, Engine};
use skt_hpl::config::memory_need::{Means, PROCESS_BYTES as PROCESS_MOST, rank_bytes};
use skt_hpl::report::json::Run;

use crate::dat::Dat;
use crate::job::Job;

fn outcomes(run: &Run) -> impl Iterator<Item = &Outcome> {
    run.tests.iter().map(|test| test.outcome.as_ref().expect("nothing is skipped"))
}

/// The norms for N = 1000 are those that the reference HPL prints.
#[test]
fn the_norms_are_the_references() {
    let dat = Dat {
        ns: vec![1000],
        nbs: vec![64],
        grids: vec![(1, 1), (2, 3), (4, 1)],
        ..Dat::default()
    };
    let run = Job::tests(&dat).run().expect_code(0).json();
    for outcome in outcomes(&run) {
        let r = outcome.residual.unwrap();
        let printed = [r.a_inf, r.a_1, r.b_inf, r.x_inf, r.x_1].map(|v| format!("{v:.6}"));
        assert_eq!(printed, ["262.773468", "263.865287", "0.499776", "11.351297", "2619.625251"]);
        // The scaled residual is far below the threshold. A solver that loses digits would exceed 0.1.
        assert!(r.scaled < 0.1, "{r:?}");
        let eps = f64::EPSILON / 2.0;
        let scaled = r.r_inf / (eps * (r.a_inf * r.x_inf + r.b_inf) * 1000.0);
        assert!((scaled - r.scaled).abs() <= 1e-12 * scaled, "{r:?}");
    }
}

/// Generator xoshiro makes another matrix than HPL's generator. It is the same on every grid and in every run.
#[test]
fn xoshiro_is_the_same_on_every_grid() {
    let dat = Dat {
        ns: vec![150],
        nbs: vec![16, 31],
        grids: vec![(1, 1), (2, 2), (1, 4), (4, 1), (2, 3), (3, 4)],
        ..Dat::default()
    };
    let solve = |args: &[&str]| Job::tests(&dat).args(args).run().expect_code(0).json();
    let run = solve(&["--rng", "xoshiro"]);
    let first = outcomes(&run).next().unwrap().residual.unwrap();
    let close = |a: f64, b: f64, relative: f64| (a - b).abs() <= relative * b;
    for outcome in outcomes(&run) {
        let r = outcome.residual.unwrap();
        assert!(close(r.a_inf, first.a_inf, 1e-14), "{r:?} {first:?}");
        assert!(close(r.a_1, first.a_1, 1e-14), "{r:?} {first:?}");
        assert_eq!(r.b_inf, first.b_inf);
        assert!(close(r.x_inf, first.x_inf, 1e-9), "{r:?} {first:?}");
        assert!(close(r.x_1, first.x_1, 1e-9), "{r:?} {first:?}");
    }
    let digests = |run: &Run| outcomes(run).map(|o| o.x_digest.clone()).collect::<Vec<_>>();
    let again = solve(&["--rng", "xoshiro"]);
    assert_eq!(digests(&run), digests(&again));
    for other in [solve(&["--rng", "xoshiro", "--seed", "101"]), solve(&["--rng", "hpl"])] {
        assert_ne!(outcomes(&other).next().unwrap().residual.unwrap().a_inf, first.a_inf);
    }
}

/// The parts of the mean times add up to the total, and a part of a part is not larger than this part.
#[test]
fn times_add_up() {
    let dat = Dat {
        ns: vec![300, 700],
        nbs: vec![32],
        grids: vec![(1, 1), (2, 2), (2, 3)],
        depths: vec![0, 1, 2],
        ..Dat::default()
    };
    for threads in ["1", "2"] {
        let job = Job::tests(&dat).args(&["--threads", threads]);
        let run = job.run().expect_code(0).json();
        let mut unnamed = BTreeMap::new();
        for outcome in outcomes(&run) {
            let t = outcome.times_mean;
            assert!(t.total > 0.0);
            let near = |a: f64, b: f64| (a - b).abs() <= 0.01 * t.total;
            assert!(
                near(t.rfact + t.bcast + t.update + t.solve + t.save + t.other, t.total),
                "{t:?}"
            );
            assert!(near(t.laswp + t.trsm + t.gemm, t.update), "{t:?}");
            assert!(t.mxswp <= t.pfact && t.pfact <= t.rfact, "{t:?}");
            let max = outcome.times;
            let figures = |times: Times| {
                let mut all = Vec::new();
                combined(times, |figures: &mut [f64]| all.extend_from_slice(figures));
                all
            };
            for (max, mean) in figures(max).into_iter().zip(figures(t)) {
                assert!(max >= mean * (1.0 - 1e-12), "{max} {mean}");
            }
            assert_eq!(outcome.seconds, max.total);
            let n = run.tests.iter().find(|r| r.outcome.as_ref() == Some(outcome)).unwrap();
            let least = unnamed.entry((n.params.p, n.params.q)).or_insert(f64::INFINITY);
            *least = least.min(t.other / t.total);
            let n = n.params.n as f64;
            let rate = n * n / outcome.seconds * (2.0 * n / 3.0 + 1.5) / 1e9;
            assert!((outcome.gflops - rate).abs() <= 1e-12 * rate);
        }
        // The times without a name must be small. On a busy machine a single test may lose some milliseconds, so the smallest
        // value of several tests counts.
        assert!(unnamed.values().all(|least| *least < 0.2), "{unnamed:?}");
    }
}

/// The resident memory of a process is its part of the matrix, the named work arrays, and at most a constant more. The memory
/// check before the start counts all of it, and little more.
#[test]
fn memory_is_what_is_told() {
    const PROCESS_BYTES: u64 = 120 << 20;
    // A small job must come before the large ones: the largest resident set of a process never decreases.
    let job = |n: usize, nb: usize, grid, depth| {
        let dat = Dat {
            ns: vec![n],
            nbs: vec![nb],
            grids: vec![grid],
            depths: vec![depth],
            ..Dat::default()
        };
        let run = Job::tests(&dat).run().expect_code(0).json();
        let outcome = run.tests[0].outcome.clone().unwrap();
        let (matrix, work, resident) =
            (outcome.matrix_bytes_max, outcome.work_bytes_max, outcome.resident_bytes_max);
        assert!(resident > matrix, "{outcome:?}");
        let beyond = resident.saturating_sub(matrix + work);
        println!("N={n} NB={nb} {grid:?}: {matrix} + {work} + {beyond} bytes");
        assert!(beyond < PROCESS_BYTES, "{beyond} bytes beyond {matrix} + {work}");
        let (test, threads) = (&run.tests[0].params, outcome.threads);
        let means = Means { engine: Engine::Auto, threads, device: Device::None };
        let checked = rank_bytes(test, means);
        assert!(u128::from(resident) <= checked, "{resident} of {checked} checked");
        let arrays = (checked - PROCESS_MOST) as f64;
        let made = (matrix + work) as f64;
        assert!(made <= arrays && made > 0.96 * arrays, "{made} of {arrays}");
        // Rows are padded to whole cache lines, not further.
        let (p, q) = grid;
        let part = ((n / nb / p + 1) * nb) * ((n / nb / q + 1) * nb + 16) * 8;
        assert!(matrix <= part as u64, "{matrix} > {part}");
        // The work arrays contain the panels, and consist mostly of panels.
        let panel = (nb * (n / p) * 8) as u64;
        assert!(work > panel && work < (depth as u64 + 6) * (panel * p as u64) + (64 << 20));
    };
    job(6000, 192, (1, 1), 1);
    job(5000, 128, (2, 2), 2);
    // Panels that are half as wide as the matrix.
    job(2400, 1200, (1, 1), 1);
    job(2400, 1200, (2, 2), 0);
}
