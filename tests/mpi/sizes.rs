//! Tests of sizes at which something is empty, just full, or left over.

use skt_hpl::base::outcome::Verdict;
use skt_hpl::base::params::Rng;
use skt_hpl::matrix::Generator;

use crate::dat::Dat;
use crate::job::Job;

const GRIDS: [(usize, usize); 7] = [(1, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 2), (3, 4)];

/// Returns true if two values differ by at most the tolerance `relative`, relative to the larger one. Sums over ranks depend on
/// the order of the ranks.
fn close(a: f64, b: f64, relative: f64) -> bool {
    (a - b).abs() <= relative * a.abs().max(b.abs())
}

/// A lookahead of any depth works, although no panel can be factored ahead beyond the last.
#[test]
fn no_lookahead_is_too_deep() {
    let dat = Dat { ns: vec![61], nbs: vec![7], grids: vec![(2, 2)], ..Dat::default() };
    let run = |depth: &str, halves: &str| {
        let flags = ["--depth", depth, "--split-update", halves, "--json", "run.json"];
        let ran = Job::new(4).dat(&dat).args(&flags).run().expect_code(0);
        ran.json().tests[0].outcome.as_ref().unwrap().x_digest.clone()
    };
    for halves in ["auto", "always"] {
        let wanted = run("8", halves);
        for depth in [usize::MAX, usize::MAX / 7 + 1] {
            assert_eq!(run(&depth.to_string(), halves), wanted, "{depth} {halves}");
        }
    }
}

/// No N is too small: 0, 1, NB - 1, NB, NB + 1, fewer rows than P NB, fewer columns than Q NB. Each N is tested on all grids.
/// Some ranks then have empty parts, and on small grids some ranks have no position.
#[test]
fn no_size_is_too_small() {
    let nb = 7;
    let dat = Dat {
        ns: vec![0, 1, 2, nb - 1, nb, nb + 1, 2 * nb - 1, 3 * nb - 1],
        nbs: vec![nb, 64],
        grids: GRIDS.to_vec(),
        depths: vec![0, 2],
        ..Dat::default()
    };
    for (pmap, bcast, swap, engine) in
        [(0, 0, 0, "auto"), (1, 3, 1, "auto"), (0, 4, 1, "blas"), (1, 5, 2, "blas")]
    {
        let dat = Dat { pmap, swap, bcasts: vec![bcast], ..dat.clone() };
        let ran = Job::tests(&dat).args(&["--engine", engine]).run().expect_code(0);
        let run = ran.json();
        assert_eq!(run.tests.len(), 8 * 2 * 7 * 2);
        // All tests with the same N solve the same system.
        for n in dat.ns {
            let generator = Generator::new(Rng::Hpl, 100, n);
            let same: Vec<_> = run.tests.iter().filter(|t| t.params.n == n).collect();
            let first = same[0].outcome.as_ref().unwrap().residual.unwrap();
            for test in &same {
                let outcome = test.outcome.as_ref().unwrap();
                assert_eq!(outcome.verdict, Verdict::Passed, "{test:?}");
                let r = outcome.residual.unwrap();
                assert!(close(r.a_inf, first.a_inf, 1e-14), "{test:?}");
                assert!(close(r.a_1, first.a_1, 1e-14), "{test:?}");
                assert_eq!(r.b_inf, first.b_inf, "{test:?}");
                assert!(close(r.x_inf, first.x_inf, 1e-10), "{test:?}");
                assert!(close(r.x_1, first.x_1, 1e-10), "{test:?}");
                match n {
                    0 => assert_eq!((r.scaled, r.x_1, r.a_inf), (0.0, 0.0, 0.0)),
                    1 => {
                        let x = generator.at(0, 1) / generator.at(0, 0);
                        assert_eq!((r.x_inf, r.x_1), (x.abs(), x.abs()), "{test:?}");
                    }
                    _ => assert!(r.x_inf > 0.0),
                }
            }
            if n <= 1 {
                let digests = same.iter().map(|t| &t.outcome.as_ref().unwrap().x_digest);
                assert!(digests.clone().all(|d| Some(d) == digests.clone().next()));
            }
        }
    }
}

/// Blocks of one column, blocks wider than a rank's share of the columns, and a lookahead deeper than the number of panels are
/// allowed.
#[test]
fn blocks_of_one_and_lookahead_beyond_the_end() {
    let dat = Dat {
        ns: vec![5, 33],
        nbs: vec![1, 2, 20],
        grids: vec![(2, 3), (3, 2), (1, 4)],
        depths: vec![0, 5, 50],
        nbmins: vec![1, 50],
        ndivs: vec![2, 9],
        ..Dat::default()
    };
    let run = Job::tests(&dat).run().expect_code(0).json();
    assert_eq!(run.counts.passed, dat.tests());
}

/// So many columns are exchanged that they travel in three pieces. No bit of x depends on this, for either way to solve for U.
#[test]
fn rows_are_exchanged_in_several_pieces() {
    let run = |swap: usize, equil: usize, halves: &str| {
        let (ns, nbs, grids) = (vec![5200], vec![1024], vec![(3, 1)]);
        let dat = Dat { ns, nbs, grids, swap, equil, ..Dat::default() };
        let flags = ["--threads", "2", "--split-update", halves, "--json", "run.json"];
        let ran = Job::new(3).dat(&dat).args(&flags).run().expect_code(0);
        let outcome = ran.json().tests[0].outcome.clone().unwrap();
        assert_eq!(outcome.verdict, Verdict::Passed);
        outcome.x_digest
    };
    let by_binary_exchange = run(0, 1, "never");
    for (equil, halves) in [(0, "never"), (1, "never"), (1, "always")] {
        assert_eq!(run(1, equil, halves), by_binary_exchange, "{equil} {halves}");
    }
}
