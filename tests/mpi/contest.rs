//! Tests of the choice of the engine. It is measured for the NB of each test, stored, and the same on all ranks.

use std::fs;

use skt_hpl::base::params::{self, TestParams};
use skt_hpl::base::threads::Pool;
use skt_hpl::comm::{Comm, Reduce, World};
use skt_hpl::driver::agreement::Engines;
use skt_hpl::driver::contest::{Asked, decide};
use skt_hpl::kernels::Engine;
use skt_hpl::kernels::choice::{Place, Rates, file, remember};

use crate::dat::Dat;
use crate::job::{Job, PROGRAM};
use crate::oracle::{problem, ranks};

#[test]
fn engines_are_measured_for_each_nb_and_remembered_and_all_ranks_agree() {
    ranks(2, "contest").expect_code(0);
}

/// Work of each rank of `engines_are_measured_for_each_nb_and_remembered_and_all_ranks_agree`: several contests of engines. Each
/// rank counts as a node of its own, with its own cache folder.
pub fn on_ranks(world: &World) {
    let comm = world.comm();
    let folder = std::env::current_dir().unwrap().join(format!("cache-{}", comm.rank()));
    // SAFETY: no other thread of this process reads environment variables meanwhile.
    unsafe { std::env::set_var("XDG_CACHE_HOME", &folder) };
    let node = comm.split(Some(comm.rank()), 0).unwrap();
    let mut pool = Pool::new(1);
    let competing = some_engines();
    let mut contest = |tests: &[TestParams]| {
        let asked = Asked { tests, computes: true, turns: false };
        let (engines, told) = decide(comm, &node, asked, &competing, &mut pool);
        assert!(tests.iter().all(|test| same(comm, engines.of(test))), "{told:?}");
        (engines, told)
    };
    let large = |nb| problem(8000, nb, (1, 2));
    let of = |engines: &Engines| [64, 192].map(|nb| engines.of(&large(nb)));

    let (engines, told) = contest(&[large(64), large(192), large(64)]);
    assert_eq!(told.len(), 2, "{told:?}");
    let measured = |nb: usize| format!(", measured at NB = {nb}; ");
    assert!(told[0].contains(&measured(64)) && told[1].contains(&measured(192)), "{told:?}");
    let (again, told) = contest(&[large(192), large(64)]);
    assert_eq!(of(&again), of(&engines), "the order of the tests is no matter");
    assert!(told.len() == 2 && told.iter().all(|line| line.contains("as remembered")), "{told:?}");

    // A test with another NB is measured alone, and a small problem is not measured.
    let (_, told) = contest(&[large(64), problem(100, 32, (1, 2)), problem(50, 128, (1, 2))]);
    assert!(told[0].contains("as remembered at NB = 64"), "{told:?}");
    assert!(told[1].contains("at NB = 32, 50 (not measured"), "{told:?}");
    let (_, told) = contest(&[problem(100, 32, (1, 2))]);
    assert!(told.len() == 1 && told[0].contains("(not measured"), "{told:?}");

    // The ranks have stored different rates. The engine whose slowest rank is the fastest is chosen.
    let rates: [&[u64]; 2] = [&[10, 20], &[1000, 30]];
    know(96, &competing, rates[comm.rank()]);
    let (engines, told) = contest(&[large(96)]);
    assert_eq!(engines.of(&large(96)), competing[1], "{told:?}");
    assert!(told[0].contains("as remembered"), "{told:?}");
    // One rank has no stored rate, so all ranks measure.
    if comm.rank() == 0 {
        fs::remove_dir_all(&folder).unwrap();
    }
    let (_, told) = contest(&[large(96)]);
    assert!(told[0].contains(&measured(96)), "{told:?}");
    assert!(file().unwrap().is_file());
}

/// Returns two engines. A contest, which measures the speed of each engine, is short with only two.
fn some_engines() -> Vec<Engine> {
    vec![Engine::possible(params::Engine::Packed)[0], Engine::Blas]
}

fn know(nb: usize, engines: &[Engine], rates: &[u64]) {
    let names = engines.iter().map(|engine| engine.name().to_owned());
    let rates: Rates = names.zip(rates.iter().copied()).collect();
    remember(&file().unwrap(), &Place::here(nb, 1, 1), &rates);
}

fn same(comm: &Comm, engine: Engine) -> bool {
    let number = Engine::runnable().iter().position(|other| *other == engine).unwrap() as u64;
    let (mut least, mut most) = ([number], [number]);
    comm.all_reduce(&mut least, Reduce::Min);
    comm.all_reduce(&mut most, Reduce::Max);
    least == most
}

/// A run computes each test with the engine that is fastest at its NB, and reports the engine of each test.
#[test]
fn each_test_is_computed_with_the_engine_of_its_nb() {
    let cache = tempfile::tempdir().unwrap();
    let names: Vec<&str> =
        Engine::possible(params::Engine::Auto).iter().map(|e| e.name()).collect();
    let fast = |winner: &str| -> Rates {
        let rate = |name: &&str| (name.to_string(), if *name == winner { 90_000 } else { 10 });
        names.iter().map(rate).collect()
    };
    let file = cache.path().join("skt-hpl/engines.json");
    for (nb, winner) in [(16, "blas"), (32, names[0])] {
        remember(&file, &Place::here(nb, 1, 1), &fast(winner));
    }
    for nbs in [[16, 32], [32, 16]] {
        let dat = Dat { ns: vec![200], nbs: nbs.to_vec(), ..Dat::default() };
        let ran = Job::of(PROGRAM.into(), 1)
            .dat(&dat)
            // With the preflight, the BLAS might use other kernels and have another name in the cache.
            .args(&["--threads", "1", "--no-preflight", "--json", "run.json"])
            .env("XDG_CACHE_HOME", cache.path().to_str().unwrap())
            .run()
            .expect_code(0);
        let run = ran.json();
        let used = run.tests.iter().map(|test| (test.params.nb, test.engine.as_str()));
        let wanted = nbs.map(|nb| (nb, if nb == 16 { "blas" } else { names[0] }));
        assert_eq!(used.collect::<Vec<_>>(), wanted, "{}", ran.told());
        let all = wanted.map(|(_, engine)| engine).join(", ");
        assert_eq!(run.blas.engine, all);
        assert_eq!(ran.err.matches("as remembered at NB = ").count(), 2, "{}", ran.told());
    }
}
