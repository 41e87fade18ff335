//! Tests of the solver as a library under `mpirun`. The test program starts itself as the ranks.
//!
//! So the ranks can compare x, which the program never prints. They can also do what the program never does: panic, or make an
//! impossible request to MPI.

use std::sync::Mutex;

use skt_hpl::base::outcome::Verdict;
use skt_hpl::base::params::{self, Bcast, Fact, Form, Mapping, Rng, Swap, TestParams};
use skt_hpl::base::threads::Pool;
use skt_hpl::comm::{World, set_phase};
use skt_hpl::grid::ProcessGrid;
use skt_hpl::kernels::{Engine, one_library_thread_each, set_library_threads};
use skt_hpl::lu::{
    AbftTest, Context, Event, GridPlace, Observer, Order, Silent, Start, solve_test,
    time_stretches, weight,
};
use skt_hpl::matrix::{Generator, HugeBuffer, Local, Shape};

use crate::job::{Job, Ran, mpich};

// Links the reference LAPACK, since the BLAS of the solver need not contain LAPACK.
#[link(name = "lapack")]
unsafe extern "C" {}

/// Environment variable that makes a process of this program a rank, and describes its work.
const WORK: &str = "TEST_RANKS_WORK";

/// Starts `count` ranks of this program that do `work`, and returns their output.
pub fn ranks(count: usize, work: &str) -> Ran {
    Job::of(std::env::current_exe().unwrap(), count)
        .args(&["oracle::rank", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(WORK, work)
        // LAPACK may come with OpenBLAS, whose threads are useless here and would need too much room.
        .env("OPENBLAS_NUM_THREADS", "1")
        .run()
}

#[test]
#[ignore = "what the ranks of the other tests run"]
fn rank() {
    let work = std::env::var(WORK).expect("started by one of the other tests");
    set_library_threads(1);
    let world = World::init(false);
    match work.as_str() {
        "compare" => compare(&world),
        "sums" => sums(&world),
        "contest" => crate::contest::on_ranks(&world),
        "misuse" => {
            set_phase("asking for the impossible");
            if world.comm().rank() == 1 {
                world.comm().send(&[1.0f64], 99, 1);
            }
            world.comm().barrier();
        }
        panic => {
            let place = panic.strip_prefix("panic ").expect("a work");
            panic_in_factorisation(&world, place);
        }
    }
}

/// Observer that keeps x.
#[derive(Default)]
struct Keep(Vec<f64>);

impl Observer for Keep {
    fn observe(&mut self, event: Event) {
        if let Event::Solved(x) = event {
            self.0 = x.to_vec();
        }
    }
}

pub fn problem(n: usize, nb: usize, (p, q): (usize, usize)) -> TestParams {
    TestParams {
        n,
        nb,
        p,
        q,
        mapping: Mapping::Row,
        depth: 1,
        bcast: Bcast::OneRingM,
        rfact: Fact::Crout,
        ndiv: 2,
        pfact: Fact::Right,
        nbmin: 4,
        swap: Swap::Mix,
        swap_threshold: 16,
        l1: Form::Transposed,
        u: Form::Transposed,
        equilibrate: true,
        align: 8,
        threshold: 16.0,
        rng: Rng::Hpl,
        seed: 100,
    }
}

/// Returns the settings that determine the order of messages, for ranks with `threads` threads and updates in halves wherever
/// possible.
fn order(threads: usize) -> Order {
    Order { threads, split_update: params::SplitUpdate::Always }
}

/// Solves a system, and returns the whole x on all ranks of its grid; None on other ranks.
fn solve(world: &World, params: &TestParams, engine: Engine, pool: &mut Pool) -> Option<Vec<f64>> {
    let comm = world.comm();
    let position = Context::position_of(params, comm.rank());
    let context = Context::new(comm, params, engine, order(pool.threads()), position)?;
    let mut local = Local::new(context.shape, HugeBuffer::new(context.shape.len()).unwrap());
    let mut keep = Keep::default();
    let outcome = solve_test(&context, &mut local, Start::Fresh, pool, &mut keep).unwrap().unwrap();
    assert_eq!(outcome.verdict, Verdict::Passed, "{params:?}");
    let map = context.shape.col_map;
    let room = map.count_below(params.n, 0);
    keep.0.resize(room, f64::NAN);
    let all = context.row.all_gather(&keep.0);
    Some((0..params.n).map(|g| all[map.owner(g) * room + map.local(g)]).collect())
}

/// Returns x as LAPACK computes it from the same matrix and right-hand side.
fn by_lapack(params: &TestParams) -> Vec<f64> {
    let n = params.n;
    let generator = Generator::new(params.rng, params.seed, n);
    let mut a: Vec<f64> = (0..n * n).map(|at| generator.at(at % n, at / n)).collect();
    let mut x: Vec<f64> = (0..n).map(|i| generator.at(i, n)).collect();
    let (mut pivots, mut info) = (vec![0; n], 0);
    let order = n as i32;
    // SAFETY: the arrays have the lengths that LAPACK requires for order n.
    unsafe { lapack::dgesv(order, 1, &mut a, order, &mut pivots, &mut x, order, &mut info) };
    assert_eq!(info, 0);
    x
}

/// Solves systems on all grids, with options that change from one system to the next. Compares x with that of LAPACK.
fn compare(world: &World) {
    let engines = Engine::runnable();
    let mut pools = [Pool::new(1), Pool::new(2)];
    pools.iter_mut().for_each(one_library_thread_each);
    let facts = [Fact::Left, Fact::Crout, Fact::Right];
    let swaps = [Swap::BinaryExchange, Swap::Long, Swap::Mix];
    let forms = [Form::Transposed, Form::NotTransposed];
    let bcasts = [
        Bcast::OneRing,
        Bcast::OneRingM,
        Bcast::TwoRing,
        Bcast::TwoRingM,
        Bcast::Long,
        Bcast::LongM,
    ];
    let mut count = 0;
    for grid in [(1, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 2), (3, 4)] {
        for n in [1, 2, 17, 64, 97] {
            for nb in [1, 8, 30] {
                for rng in [Rng::Hpl, Rng::Xoshiro] {
                    let params = TestParams {
                        mapping: [Mapping::Row, Mapping::Column][count % 2],
                        depth: count % 4,
                        bcast: bcasts[count % 6],
                        rfact: facts[count % 3],
                        pfact: facts[count / 3 % 3],
                        nbmin: 1 + count % 5,
                        ndiv: 2 + count % 3,
                        swap: swaps[count / 2 % 3],
                        l1: forms[count / 2 % 2],
                        u: forms[count / 4 % 2],
                        equilibrate: count % 5 < 2,
                        rng,
                        ..problem(n, nb, grid)
                    };
                    let engine = engines[count / 5 % engines.len()];
                    let x = solve(world, &params, engine, &mut pools[count / 7 % 2]);
                    count += 1;
                    if world.comm().rank() == 0 {
                        let x = x.expect("rank 0 is in every grid");
                        near(&x, &by_lapack(&params), &params);
                    }
                }
            }
        }
    }
    leave_early(world, &mut pools);
    if world.comm().rank() == 0 {
        println!("{count} systems compared");
    }
}

/// Measures the times of stretches of a factorisation, which are ranges of iterations. A stretch ends while rows of the next
/// iteration are being sent; no message must be left for the next stretch.
fn leave_early(world: &World, pools: &mut [Pool]) {
    for (depth, grid) in [(1, (4, 1)), (2, (2, 3)), (0, (3, 2))] {
        let params = TestParams { depth, ..problem(97, 8, grid) };
        for pool in &mut *pools {
            let position = Context::position_of(&params, world.comm().rank());
            let engine = Engine::select(params::Engine::Auto).unwrap();
            let order = order(pool.threads());
            let Some(context) = Context::new(world.comm(), &params, engine, order, position) else {
                continue;
            };
            let timed = time_stretches(&context, &[0..1, 2..5, 3..4, 8..12], pool).unwrap();
            assert_eq!(timed.len(), 4);
        }
    }
}

fn near(x: &[f64], expected: &[f64], params: &TestParams) {
    assert_eq!(x.len(), expected.len());
    let size = expected.iter().fold(0.0f64, |max, v| max.max(v.abs()));
    for (i, (a, b)) in x.iter().zip(expected).enumerate() {
        // Both solutions have errors of about the condition number, here some thousands, times 1e-16.
        assert!((a - b).abs() <= 1e-10 * size, "x[{i}] = {a}, not {b}: {params:?}");
    }
}

#[test]
fn x_is_lapacks() {
    let ran = ranks(12, "compare").expect_code(0);
    assert!(ran.out.contains("210 systems compared"), "{}", ran.told());
}

/// Observer that panics on one rank when panel `at` is applied, in the main thread or in a thread of its own.
struct Panic {
    here: bool,
    at: usize,
    thread: bool,
}

impl Observer for Panic {
    fn observe(&mut self, event: Event) {
        let Event::Iteration { k, .. } = event else { return };
        if self.here && k == self.at {
            if self.thread {
                let joined = std::thread::spawn(|| panic!("a thread panics on request")).join();
                drop(joined);
            }
            panic!("panics on request");
        }
    }
}

/// Solves systems with checksum columns. Compares the checksums with the weighted sums of the matrix columns after the
/// factorisation. No later step changes a finished row of U, so the sums check every step.
fn sums(world: &World) {
    let comm = world.comm();
    let mut pool = Pool::new(1);
    let mut turn = 0;
    for (p, q, columns) in
        [(1, 1, 1), (2, 2, 1), (1, 4, 2), (3, 1, 1), (1, 2, 4), (2, 1, 2), (1, 5, 1)]
    {
        for (n, nb) in [(61, 7), (60, 10), (5, 8), (1, 1)] {
            turn += 1;
            let mut params = problem(n, nb, (p, q));
            params.depth = turn % 2;
            params.bcast = [Bcast::TwoRing, Bcast::LongM, Bcast::OneRing][turn % 3];
            params.swap = [Swap::BinaryExchange, Swap::Long][turn / 2 % 2];
            let choice = [params::Engine::Auto, params::Engine::Blas][turn / 4 % 2];
            let engine = Engine::select(choice).unwrap();
            let wide = ProcessGrid { p, q: q + columns, mapping: params.mapping };
            let place = comm.rank();
            let grid_place =
                wide.coordinates(place).map(|(row, col)| GridPlace { row, col, place });
            let context =
                Context::placed(comm, &params, engine, order(turn % 2 + 1), grid_place, columns);
            let Some(mut context) = context else { continue };
            let mut abft_test = AbftTest::new(&context, &mut pool).unwrap();
            let (outcome, _) = abft_test.solve(&mut context, None, &mut pool, &mut Silent);
            if !abft_test.holds_sums() {
                assert_eq!(outcome.verdict, Verdict::Passed, "{params:?}");
            }
            compare_sums(&context, columns, &mut abft_test);
        }
    }
    if comm.rank() == 0 {
        println!("{turn} compared");
    }
}

fn compare_sums(context: &Context, columns: usize, abft_test: &mut AbftTest) {
    let (shape, mine) = abft_test.part();
    let (q, nb) = (shape.grid.q, shape.nb);
    let rank = |col: usize| shape.row * (q + columns) + col;
    let Some(by) = shape.sums() else {
        return (q..q + columns).for_each(|sums| context.grid.send(mine, rank(sums), 9));
    };
    let mut wanted = vec![0.0; mine.len()];
    for col in 0..q {
        let other = Shape::new(context.params, shape.row, col);
        let mut theirs = vec![0.0; other.len()];
        context.grid.recv(&mut theirs, rank(col), 9);
        for i in 0..shape.rows {
            let row = shape.row_map.global(i, shape.row);
            for l in 0..other.cols {
                let column = shape.col_map.global(l, col);
                let (to, share) =
                    if column == shape.n { (shape.cols - 1, 1.0) } else { (l, weight(by, col)) };
                if row <= column {
                    wanted[i * shape.ld + to] += share * theirs[i * other.ld + l];
                }
            }
        }
    }
    for i in 0..shape.rows {
        let row = shape.row_map.global(i, shape.row);
        // Only these columns were complete when the row was, so only these are compared.
        for l in row / nb / q * nb..shape.cols {
            let (found, wanted) = (mine[i * shape.ld + l], wanted[i * shape.ld + l]);
            assert!((found - wanted).abs() < 1e-9, "{} {l}: {found} {wanted}", row);
        }
    }
}

#[test]
fn the_sums_stay_sums_through_every_step() {
    let ran = ranks(6, "sums").expect_code(0);
    assert!(ran.out.contains("28 compared"), "{}", ran.told());
}

/// Solves a system and panics meanwhile. `place` names the rank, the panel and, if the panic is in a thread of its own, `thread`.
fn panic_in_factorisation(world: &World, place: &str) {
    let words: Vec<&str> = place.split(' ').collect();
    let (rank, at): (usize, usize) = (words[0].parse().unwrap(), words[1].parse().unwrap());
    let params = problem(400, 8, (2, 2));
    let comm = world.comm();
    let position = Context::position_of(&params, comm.rank());
    let engine = Engine::select(params::Engine::Auto).unwrap();
    let context = Context::new(comm, &params, engine, order(1), position).unwrap();
    let mut local = Local::new(context.shape, HugeBuffer::new(context.shape.len()).unwrap());
    let mut watcher = Panic { here: comm.rank() == rank, at, thread: words.len() > 2 };
    let pool = Mutex::new(Pool::new(1));
    let mut pool = pool.lock().unwrap();
    let outcome = solve_test(&context, &mut local, Start::Fresh, &mut pool, &mut watcher);
    println!("survived with {:?}", outcome.map(|o| o.map(|o| o.verdict)));
}

/// Asserts that the job ended with exit code `code`, if the launcher passes it on, and that its errors contain all of `words`.
fn ended_by(ran: &Ran, code: i32, words: &[&str]) {
    assert!(ran.ended_with(code), "{}", ran.told());
    for words in words {
        assert!(ran.err.contains(words), "{words:?} is not in {}", ran.told());
    }
}

#[test]
fn a_panic_ends_the_job_and_says_where() {
    for (place, rank) in [("2 20", 2), ("0 0", 0), ("3 49", 3), ("1 7 thread", 1)] {
        let ran = ranks(4, &format!("panic {place}"));
        let who = format!("skt-hpl: rank {rank}, while factoring: a panic");
        ended_by(&ran, 101, &[&who, "panics on request"]);
        assert!(!ran.out.contains("survived"), "{}", ran.told());
    }
}

#[test]
fn an_mpi_error_ends_the_job_and_says_which() {
    let ran = ranks(3, "misuse");
    let library = if mpich() { "rank" } else { "MPI_ERR_RANK" };
    ended_by(
        &ran,
        6,
        &["skt-hpl: rank 1, while asking for the impossible:", "failed:", library, "error class"],
    );
}
