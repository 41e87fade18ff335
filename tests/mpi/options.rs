//! Tests of all combinations of the solver's options, and of the bits of x that each option may change.

use std::collections::{HashMap, HashSet};

use skt_hpl::base::outcome::Verdict;
use skt_hpl::base::params::{self, TestParams};
use skt_hpl::kernels::Engine;
use skt_hpl::report::json::{Run, Test};

use crate::dat::Dat;
use crate::extent::whole;
use crate::job::Job;

/// Grids with their N and NB: odd sizes, and several panels in each process row and column.
const GRIDS: [((usize, usize), usize, usize); 6] = [
    ((1, 4), 61, 9),
    ((4, 1), 59, 7),
    ((2, 2), 47, 9),
    ((2, 3), 55, 7),
    ((3, 2), 53, 9),
    ((3, 4), 71, 7),
];

/// An HPL.dat of the sweep, described by the options for which the file has exactly one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Part {
    swap: usize,
    l1: usize,
    u: usize,
    equil: usize,
    depth: usize,
    grid: usize,
    pmap: usize,
    blas_engine: bool,
}

impl Part {
    fn values(self) -> [usize; 8] {
        let Part { swap, l1, u, equil, depth, grid, pmap, blas_engine } = self;
        [swap, l1, u, equil, depth, grid, pmap, usize::from(blas_engine)]
    }

    /// Returns the broadcasts and the values of NDIV of this part. By default these are half of the broadcasts, which change no
    /// bit, and one NDIV. NDIV is the same in all parts whose bits are compared. Over all parts, each value meets every value of
    /// all other options.
    fn dealt(self) -> (Vec<usize>, Vec<usize>) {
        let Part { l1, equil, depth, grid, blas_engine, .. } = self;
        if whole() {
            return (every_list().bcasts, every_list().ndivs);
        }
        let half = (l1 + equil + depth / 2) % 2;
        let bcasts = every_list().bcasts.into_iter().filter(|b| b % 2 == half).collect();
        (bcasts, vec![2 + (l1 + grid / 2 + usize::from(blas_engine)) % 2])
    }

    fn dat(self) -> Dat {
        let (grid, n, nb) = GRIDS[self.grid];
        let (bcasts, ndivs) = self.dealt();
        Dat {
            ns: vec![n],
            nbs: vec![nb],
            grids: vec![grid],
            pmap: self.pmap,
            depths: vec![self.depth],
            swap: self.swap,
            l1: self.l1,
            u: self.u,
            equil: self.equil,
            bcasts,
            ndivs,
            ..every_list()
        }
    }
}

/// Returns an HPL.dat with every value of the options that a file can list.
fn every_list() -> Dat {
    Dat {
        pfacts: vec![0, 1, 2],
        rfacts: vec![0, 1, 2],
        nbmins: vec![1, 4],
        ndivs: vec![2, 3],
        bcasts: vec![0, 1, 2, 3, 4, 5],
        ..Dat::default()
    }
}

/// Returns every combination of SWAP, L1, U, equilibration and DEPTH once, each with a grid, a mapping and an engine. Every value
/// of an option meets every value of every other option.
fn plan() -> Vec<Part> {
    let mut parts = Vec::new();
    for swap in 0..3 {
        for l1 in 0..2 {
            for u in 0..2 {
                for equil in 0..2 {
                    for depth in 0..4 {
                        let grid = (4 * swap + 5 * u + 3 * equil + 2 * depth) % GRIDS.len();
                        let pmap = (u + depth / 2) % 2;
                        let blas_engine = (u + depth) % 2 == 1;
                        parts.push(Part { swap, l1, u, equil, depth, grid, pmap, blas_engine });
                    }
                }
            }
        }
    }
    parts
}

/// The plan has every combination. Without this test, a sweep that leaves some out would still pass.
#[test]
fn the_plan_leaves_nothing_out() {
    let parts = plan();
    let counts = [3, 2, 2, 2, 4, GRIDS.len(), 2, 2];
    assert_eq!(parts.len(), 3 * 2 * 2 * 2 * 4);
    assert_eq!(parts.iter().collect::<HashSet<_>>().len(), parts.len());
    for i in 0..counts.len() {
        for j in 0..i {
            let pairs: HashSet<_> = parts.iter().map(|p| (p.values()[i], p.values()[j])).collect();
            assert_eq!(pairs.len(), counts[i] * counts[j], "values {i} and {j} all meet");
        }
    }
    // Bits are compared within groups of equal L1, grid and engine. Every other option must take several values within each
    // group.
    let mut groups: HashMap<_, Vec<Part>> = HashMap::new();
    for part in parts {
        groups.entry((part.l1, part.grid, part.blas_engine)).or_default().push(part);
    }
    for group in groups.values() {
        for what in [0, 2, 3, 4, 6] {
            let values: HashSet<_> = group.iter().map(|part| part.values()[what]).collect();
            assert!(values.len() > 1, "option {what} is compared in {group:?}");
        }
    }
    assert_eq!(every_list().tests(), 216);
}

/// The selected lists meet every value of the single-valued options, and each broadcast meets each NDIV. Within each group whose
/// bits are compared, all broadcasts occur.
#[test]
fn dealt_choices_meet_all_others() {
    let parts = plan();
    let counts = [3, 2, 2, 2, 4, GRIDS.len(), 2, 2];
    let mut bcasts = HashSet::new();
    let mut ndivs = HashSet::new();
    let mut both = HashSet::new();
    let mut compared: HashMap<_, HashSet<usize>> = HashMap::new();
    for part in &parts {
        let (of_part, divs) = part.dealt();
        compared.entry((part.l1, part.grid, part.blas_engine)).or_default().extend(&of_part);
        for &ndiv in &divs {
            for (option, value) in part.values().into_iter().enumerate() {
                ndivs.insert((ndiv, option, value));
                bcasts.extend(of_part.iter().map(|&bcast| (bcast, option, value)));
            }
            both.extend(of_part.iter().map(|&bcast| (bcast, ndiv)));
        }
    }
    let values: usize = counts.iter().sum();
    assert_eq!(bcasts.len(), 6 * values);
    assert_eq!(ndivs.len(), 2 * values);
    assert_eq!(both.len(), 6 * 2);
    assert!(compared.values().all(|seen| seen.len() == 6), "{compared:?}");
}

/// Returns the part of the plan to run: `SKT_TEST_SHARE=2/3` selects the second third. Runs under several MPIs and BLAS libraries
/// can thus divide the sweep.
fn share() -> Vec<Part> {
    let parts = plan();
    let Ok(share) = std::env::var("SKT_TEST_SHARE") else { return parts };
    let (which, of) = share.split_once('/').expect("SKT_TEST_SHARE is like 2/3");
    let (which, of): (usize, usize) = (which.parse().unwrap(), of.parse().unwrap());
    assert!((1..=of).contains(&which), "SKT_TEST_SHARE={share}");
    parts.into_iter().skip(which - 1).step_by(of).collect()
}

/// Returns the options of a test that must be equal for x to have the same bits. Other options only change the order and place of
/// the work, and the messages.
///
/// The packed engine computes each element in the same way wherever the columns are cut. A BLAS may choose its kernel by the
/// shape of its arguments. So it always receives whole block columns, for any lookahead and number of threads.
fn key(test: &Test, engine: &str) -> String {
    let TestParams { n, nb, p, q, pfact, rfact, nbmin, ndiv, l1, rng, seed, .. } = &test.params;
    format!(
        "N={n} NB={nb} {p}x{q} {pfact:?} {rfact:?} {nbmin} {ndiv} {l1:?} {rng:?} {seed} {engine}"
    )
}

/// Digests of x found so far, by the key of their test, each with its test.
#[derive(Default)]
struct Digests(HashMap<String, Test>);

impl Digests {
    fn check(&mut self, run: &Run) {
        for test in &run.tests {
            let outcome = test.outcome.as_ref().expect("nothing is skipped");
            let digest = |test: &Test| test.outcome.as_ref().map(|o| o.x_digest.clone());
            assert_eq!(outcome.verdict, Verdict::Passed, "{test:?}");
            let first = self.0.entry(key(test, &run.blas.engine)).or_insert_with(|| test.clone());
            assert_eq!(
                digest(test),
                digest(first),
                "bits of x differ between\n{:?}\n{:?}",
                test.params,
                first.params
            );
        }
    }
}

/// Returns the value of `--split-update` of a part. With `auto`, tests this small would never be divided into halves.
fn halves(part: Part) -> &'static str {
    if (part.u + part.equil + part.depth / 2) % 2 == 1 { "always" } else { "never" }
}

/// Returns the name of the engine. `auto` chooses the packed engine if the processor can run it.
fn engine_name(blas: bool) -> &'static str {
    if blas { "blas" } else { "auto" }
}

/// Runs all parts of the plan with equal L1 and engine. Bits are compared only within these parts, so four calls can run at the
/// same time.
fn every_part(l1: usize, blas_engine: bool) {
    let mut digests = Digests::default();
    let mut tests = 0;
    for part in share().into_iter().filter(|p| (p.l1, p.blas_engine) == (l1, blas_engine)) {
        let dat = part.dat();
        let ran = Job::tests(&dat)
            .args(&["--engine", engine_name(part.blas_engine), "--output", "HPL.out"])
            .args(&["--split-update", halves(part)])
            .run();
        assert_eq!(ran.code, Some(0), "{part:?}: {}", ran.told());
        let run = ran.json();
        assert_eq!(run.tests.len(), dat.tests());
        assert_eq!(run.counts.passed, dat.tests(), "{part:?}");
        digests.check(&run);
        tests += run.tests.len();
    }
    println!("{tests} tests, {} different x at most", digests.0.len());
}

#[test]
fn the_sweep_with_l1_transposed() {
    every_part(0, false);
}

#[test]
fn the_sweep_with_l1_not_transposed() {
    every_part(1, false);
}

#[test]
fn the_sweep_with_l1_transposed_under_a_blas() {
    every_part(0, true);
}

#[test]
fn the_sweep_with_l1_not_transposed_under_a_blas() {
    every_part(1, true);
}

/// All options work on a single rank, which exchanges rows with no other rank.
#[test]
fn every_option_on_one_rank() {
    for (swap, l1, u, equil, nbmin, ndiv) in
        [(0, 0, 0, 0, 1, 2), (1, 0, 1, 1, 4, 3), (2, 1, 0, 1, 4, 2), (0, 1, 1, 0, 1, 3)]
    {
        let dat = Dat {
            ns: vec![57],
            nbs: vec![9],
            depths: vec![0, 1, 2, 3],
            nbmins: vec![nbmin],
            ndivs: vec![ndiv],
            swap,
            l1,
            u,
            equil,
            pmap: u,
            ..every_list()
        };
        for blas in [false, true] {
            let job = Job::tests(&dat).args(&["--engine", engine_name(blas)]);
            let run = job.run().expect_code(0).json();
            assert_eq!(run.tests.len(), 216);
            Digests::default().check(&run);
        }
    }
}

/// The number of threads of a rank changes no bit of x with the packed engine.
#[test]
fn threads_do_not_change_a_bit() {
    let mut digests = Digests::default();
    for threads in ["1", "2", "3"] {
        let dat = Dat {
            ns: vec![301],
            nbs: vec![24, 57],
            grids: vec![(1, 1), (2, 2)],
            depths: vec![0, 1, 2],
            ..Dat::default()
        };
        let run = Job::tests(&dat).args(&["--threads", threads]).run().expect_code(0).json();
        let used = run.tests.iter().map(|t| t.outcome.as_ref().unwrap().threads.to_string());
        assert!(used.into_iter().all(|used| used == threads));
        digests.check(&run);
    }
}

#[test]
fn the_engine_asked_for_is_the_engine_used() {
    let job = |engine: &str| Job::tests(&Dat::default()).args(&["--engine", engine]).run();
    let used = |engine| job(engine).expect_code(0).json().blas.engine;
    let names =
        |choice| -> Vec<&str> { Engine::possible(choice).into_iter().map(Engine::name).collect() };
    assert_eq!(used("blas"), "blas");
    for (flag, choice) in [
        ("auto", params::Engine::Auto),
        ("packed", params::Engine::Packed),
        ("avx512", params::Engine::Avx512),
        ("avx2", params::Engine::Avx2),
        ("neon", params::Engine::Neon),
        ("portable", params::Engine::Portable),
    ] {
        let names = names(choice);
        if names.is_empty() {
            let ran = job(flag).expect_code(1);
            assert!(ran.err.contains("runs on this processor"), "{}", ran.told());
        } else {
            let used = used(flag);
            assert!(names.contains(&used.as_str()), "{used} is none of {names:?}");
        }
    }
}
