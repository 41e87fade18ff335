//! Tests of saving and restoring, with threads as ranks and real shared memory.
//!
//! A substitute for the factorisation changes the trailing submatrix in each iteration, so that any wrongly restored byte changes
//! the result. A rank dies by unwinding at a crash point. Its peers unwind too, as MPI_Abort would end them. Memory is kept or
//! removed. The same test, started again, must give the bits of an undisturbed run.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use skt_hpl::base::faults::{self, Action, Fault, Injected, Point};
use skt_hpl::base::params::{Mapping, Rng};
use skt_hpl::base::threads::Pool;
use skt_hpl::checkpoint::layout::ParityLayout;
use skt_hpl::checkpoint::plan::{Encoding, Layout, Scheme, Scope};
use skt_hpl::checkpoint::protocol::{Method, Refusal};
use skt_hpl::checkpoint::{Arrival, Checkpointer, Config, Origin, StartError, Test, World};
use skt_hpl::parity::Code;
use skt_hpl::shm::header::{Head, HeaderFault};
use skt_hpl::shm::{MemoryStore, Part, Store};
use skt_hpl::testkit::thread_ranks::{Member, PeerDied, Post, ThreadWorld};

#[path = "mpi/extent.rs"]
mod extent;

#[derive(Clone)]
struct Job {
    memory_store: MemoryStore,
    layout: Layout,
    scheme: Scheme,
    group: Option<usize>,
    encode: Encoding,
    every: usize,
    must_resume: bool,
    test: u32,
    /// Run id, if the run begins from scratch.
    run: u128,
    /// True if no rank begins an iteration before all ranks have ended the previous one.
    lockstep: bool,
    /// Minimum duration of an iteration.
    pace: Duration,
    /// Number of threads of each rank.
    threads: usize,
    #[cfg(debug_assertions)]
    sabotage: Option<faults::Sabotage>,
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.memory_store.clean();
    }
}

fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("t-threads-{}-{n}", std::process::id())
}

fn job(p: usize, q: usize, method: Method, losses: usize) -> Job {
    Job {
        memory_store: MemoryStore::new(Store::Posix, &unique()).unwrap(),
        layout: Layout { n: 37, nb: 4, p, q, mapping: Mapping::Row, dedicated: 0 },
        scheme: Scheme {
            method,
            scope: Scope::Corner,
            code: if losses == 1 { Code::Xor } else { Code::ReedSolomon },
            losses,
            layout: ParityLayout::Striped,
            on_device: false,
        },
        group: None,
        encode: Encoding::Pipelined,
        every: 2,
        must_resume: false,
        test: 0,
        run: 1 << 64,
        lockstep: false,
        pace: Duration::ZERO,
        threads: 1,
        #[cfg(debug_assertions)]
        sabotage: None,
    }
}

/// How a rank of a launch ended.
enum End {
    /// The bits of the rank's matrix, and the boundary at which it resumed (None if it began from scratch).
    Done(Vec<u64>, Option<usize>),
    Refused(String),
    Failed(Point),
    Ended,
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Done(_, from) => write!(f, "done, from {from:?}"),
            End::Refused(text) => write!(f, "refused: {text}"),
            End::Failed(point) => write!(f, "failed at {}", point.name()),
            End::Ended => write!(f, "ended"),
        }
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Returns the settings with which rank `me` starts.
fn setting(job: &Job, me: usize) -> (Config, Test) {
    let ld = job.layout.shape(me).1 + 3;
    let config = Config {
        memory_store: job.memory_store.clone(),
        scheme: job.scheme,
        group: job.group,
        encode: job.encode,
        interval: skt_hpl::checkpoint::when::Interval::Iterations(job.every),
        must_resume: job.must_resume,
        goes_on: false,
        state_bytes: 600,
        ld,
        run: job.run,
        domain: format!("n{me}"),
        node: format!("n{me}"),
        leader: me,
        storage: None,
        device: None,
    };
    let test =
        Test { index: job.test, layout: job.layout, rng: Rng::Hpl, seed: 1, params_digest: 5 };
    (config, test)
}

fn rank_main(job: &Job, run: u128, me: usize, world: ThreadWorld, groups: Arc<Post>) -> End {
    let (rows, cols) = job.layout.shape(me);
    let (mut config, test) = setting(job, me);
    config.run = run;
    let ld = config.ld;
    let mut pool = Pool::new(job.threads);
    let started = Checkpointer::start(config, test, world, &mut pool, |_, _, place, members| {
        Member::new(groups.clone(), members.to_vec(), place)
    });
    let mut started = match started {
        Ok(started) => started,
        Err(error) => {
            // Only a test that has changed a header reaches this refusal.
            assert!(
                !matches!(&error, StartError::NotWhole { why, .. } if !why.contains("its rebuilt checkpoint"))
            );
            return End::Refused(format!("{error}"));
        }
    };
    let ck = &mut started.checkpointer;
    let a = started.a.as_slice_f64_mut();
    let (mut k, mut random, from) = match started.origin {
        Origin::Fresh => {
            for i in 0..rows {
                for j in 0..cols {
                    a[i * ld + j] = (mix((me * 1_000_000 + i * 1000 + j) as u64) >> 12) as f64;
                }
            }
            faults::hit(Point::GenerateEnd, me);
            (0, mix(me as u64), None)
        }
        Origin::Restored(r) => {
            let word = |i: usize| u64::from_le_bytes(r.state[8 * i..][..8].try_into().unwrap());
            assert_eq!(word(0), r.boundary as u64);
            assert_eq!(word(2), me as u64, "somebody else's small state");
            (r.boundary, word(1), Some(r.boundary))
        }
    };
    while k < job.layout.blocks() {
        if job.lockstep {
            ck.world().barrier();
        }
        std::thread::sleep(job.pace);
        // An iteration changes the whole trailing submatrix, in a way that depends on all earlier iterations.
        let corner = job.layout.corner(me, k, Scope::Corner);
        random = mix(random + k as u64);
        for i in corner.row..rows {
            for j in corner.col..cols {
                let x = &mut a[i * ld + j];
                *x = *x * 0.75 + (mix(random ^ (i * 4096 + j) as u64) >> 40) as f64;
            }
        }
        k += 1;
        faults::hit(Point::Iteration, me);
        if ck.due(k, false) {
            let state: Vec<u8> =
                [k as u64, random, me as u64].iter().flat_map(|w| w.to_le_bytes()).collect();
            let report = ck.save(k, a, &state, &mut pool);
            assert_eq!(report.boundary, k);
        }
    }
    let bits = (0..rows).flat_map(|i| a[i * ld..][..cols].iter().map(|x| x.to_bits())).collect();
    assert!(ck.record(job.test, b"result"));
    drop(started.a);
    started.checkpointer.finish();
    End::Done(bits, from)
}

/// Runs all ranks with faults (position, crash point, hit), at most one for each position. Returns how each rank ended.
fn launch(job: &Job, faults: &[(usize, Point, u64)]) -> Vec<End> {
    let positions = job.layout.positions();
    let (all, groups) = (Arc::new(Post::default()), Arc::new(Post::default()));
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..positions)
            .map(|me| {
                let (all, groups) = (all.clone(), groups.clone());
                let mine: Vec<Fault> = faults
                    .iter()
                    .filter(|s| s.0 == me)
                    .map(|s| Fault::new(s.1, Some(me), s.2, Action::Unwind))
                    .collect();
                scope.spawn(move || {
                    faults::arm_thread(mine);
                    #[cfg(debug_assertions)]
                    faults::sabotage_thread(job.sabotage);
                    let world = ThreadWorld::new(all.clone(), me, positions);
                    let end = catch_unwind(AssertUnwindSafe(|| {
                        // The memory of all positions is on this one node.
                        let found = Arrival::gather(&world, &job.memory_store, 0).run;
                        rank_main(job, found.unwrap_or(job.run), me, world, groups.clone())
                    }));
                    end.unwrap_or_else(|payload| {
                        all.kill();
                        groups.kill();
                        match payload.downcast::<Injected>() {
                            Ok(injected) => End::Failed(injected.0),
                            Err(other) if other.is::<PeerDied>() => End::Ended,
                            Err(other) => std::panic::resume_unwind(other),
                        }
                    })
                })
            })
            .collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    })
}

fn finished(ends: Vec<End>) -> Vec<Vec<u64>> {
    ends.into_iter()
        .map(|end| match end {
            End::Done(bits, _) => bits,
            other => panic!("not finished: {other:?}"),
        })
        .collect()
}

fn refused(ends: Vec<End>) -> String {
    let mut texts: Vec<String> = ends
        .into_iter()
        .map(|end| match end {
            End::Refused(text) => text,
            other => panic!("not refused: {other:?}"),
        })
        .collect();
    texts.dedup();
    assert_eq!(texts.len(), 1, "ranks disagree: {texts:?}");
    texts.remove(0)
}

fn failed(ends: &[End], point: Point) -> bool {
    ends.iter().any(|e| matches!(e, End::Failed(p) if *p == point))
}

/// Runs all ranks with one fault. Asserts that the fault was injected.
fn inject(job: &Job, position: usize, point: Point, hit: u64) {
    let ends = launch(job, &[(position, point, hit)]);
    assert!(failed(&ends, point), "{} at {position}: {ends:?}", point.name());
}

/// Returns the bits of all matrices, as [`finished`] does. Asserts that rank 0 resumed from a checkpoint.
fn gone_on(ends: Vec<End>) -> Vec<Vec<u64>> {
    assert!(matches!(ends[0], End::Done(_, Some(_))), "{ends:?}");
    finished(ends)
}

fn lose(job: &Job, position: usize) {
    job.memory_store.unlink_position(position as u32);
}

/// Returns the crash points of a run that is not recovering.
fn forward() -> Vec<Point> {
    Point::ALL
        .iter()
        .copied()
        .filter(|p| !backward().contains(p))
        .filter(|p| !matches!(p, Point::SolveBegin | Point::VerifyBegin))
        // These tests have no level two; `tests/crash` tests it with processes.
        .filter(|p| !second_level().contains(p) && !p.is_solvers() && !p.is_helpers())
        .filter(|p| !p.is_of_ground() && !p.is_of_start())
        // After CleanBegin the result is recorded, and there is nothing to resume from.
        .filter(|p| !Point::between(Point::CleanBegin, Point::Told).contains(p))
        .collect()
}

fn second_level() -> Vec<Point> {
    let to = Point::between(Point::StreamBegin, Point::Pruned);
    [to, Point::between(Point::FetchBegin, Point::Tidied)].concat()
}

/// Returns the crash points of a recovery.
fn backward() -> Vec<Point> {
    use Point::*;
    vec![
        Pinned,
        FinishHalf,
        FinishEnd,
        Settled,
        RebuildBegin,
        RebuildBatch,
        RebuildEnd,
        Rebuilt,
        AgreedAgain,
        RestoreHalf,
        RestoreEnd,
        Resumed,
    ]
}

fn with_job<T>(base: &Job, act: impl FnOnce(&Job) -> T) -> T {
    let mut fresh = base.clone();
    fresh.memory_store = MemoryStore::new(base.memory_store.store(), &unique()).unwrap();
    act(&fresh)
}

/// Returns the positions at which a fault is injected in turn: all with `SKT_TEST_WHOLE`, otherwise one that depends on the seed
/// and the point.
fn positions_to_fail(job: &Job, point: Point) -> Vec<usize> {
    let all: Vec<usize> = (0..job.layout.positions()).collect();
    if extent::whole() {
        return all;
    }
    let one = mix(extent::seed() ^ point as u64) as usize % all.len();
    vec![all[one]]
}

/// Tests that the run survives a fault at every crash point, at its first to `hits`-th hit, with memory kept and lost.
fn every_point_is_survived(base: &Job, hits: u64) {
    let truth = finished(with_job(base, |job| launch(job, &[])));
    let double_or_self_only = |p: &Point| {
        base.scheme.method == Method::SelfCheckpoint
            || !matches!(p, Point::FlushHalf | Point::FlushData)
    };
    for point in forward().into_iter().filter(double_or_self_only) {
        for position in positions_to_fail(base, point) {
            for lost in [false, true] {
                for hit in 1..=hits {
                    with_job(base, |job| {
                        let ends = launch(job, &[(position, point, hit)]);
                        let once = matches!(
                            point,
                            Point::GenerateBegin
                                | Point::GenerateEnd
                                | Point::AgreeBegin
                                | Point::Agreed
                        );
                        if once && hit > 1 {
                            return;
                        }
                        assert!(failed(&ends, point), "{} did not fire", point.name());
                        if lost {
                            lose(job, position);
                        }
                        let again = finished(launch(job, &[]));
                        assert!(again == truth, "{} at {position}, lost {lost}", point.name());
                    });
                }
            }
        }
    }
}

/// Runs the job with a fault that must be injected, then calls `act`. On a busy machine helpers may not reach the fault during
/// the computation. The run is then repeated with slower iterations.
fn failed_job(base: &Job, fault: (usize, Point, u64), mut act: impl FnMut(&Job)) {
    const SLOWEST: Duration = Duration::from_millis(200);
    let mut pace = base.pace;
    loop {
        let mut paced = base.clone();
        paced.pace = pace;
        let came = with_job(&paced, |job| {
            let ends = launch(job, &[fault]);
            let came = failed(&ends, fault.1);
            let late = base.encode.by_helper() && pace < SLOWEST;
            assert!(came || late, "{}: {ends:?}", fault.1.name());
            if came {
                act(job);
            }
            came
        });
        if came {
            return;
        }
        pace *= 4;
    }
}

/// Tests a second fault at each step of a recovery. The first fault may leave positions sealed; the recovery commits or withdraws
/// their new checkpoint. If `second_loses` is set, the second position loses its memory too.
fn every_second_fault_is_survived(base: &Job, second_loses: bool) {
    let mut came_to = Vec::new();
    let truth = finished(with_job(base, |job| launch(job, &[])));
    // Faults cannot be injected into helpers here.
    let encoded = if base.encode.by_helper() { Point::EncodeFound } else { Point::EncodeEnd };
    // On a slow machine, helpers may not complete a third save.
    let hit = if base.encode.by_helper() { 2 } else { 3 };
    for first in [Point::Iteration, encoded, Point::FlushHalf, Point::Committed] {
        for point in backward() {
            for position in positions_to_fail(base, point) {
                let victim = 1;
                failed_job(base, (victim, first, hit), |job| {
                    lose(job, victim);
                    let ends = launch(job, &[(position, point, 1)]);
                    if !failed(&ends, point) {
                        // Not every rank reaches every point, since only some rebuild or finish a flush.
                        assert!(finished(ends) == truth);
                        return;
                    }
                    came_to.push(point);
                    // The victim's memory is vacant until it is rebuilt. A second member of its group can be lost too only if the
                    // group survives two losses.
                    let again = second_loses && (base.scheme.losses > 1 || position == victim);
                    if again {
                        lose(job, position);
                    }
                    let after = finished(launch(job, &[]));
                    assert!(after == truth, "{} then {} at {position}", first.name(), point.name());
                });
            }
        }
    }
    if !extent::whole() {
        return;
    }
    // Each point must have been reached by some rank; otherwise nothing was tested. Points that finish a flush are reached only
    // after a seal.
    let finishing = |p: &Point| matches!(p, Point::FinishHalf | Point::FinishEnd);
    for point in backward().into_iter().filter(|p| !finishing(p)) {
        assert!(came_to.contains(&point), "nobody came to {}", point.name());
    }
}

#[test]
fn self_checkpoint_survives_every_point_on_two_by_two() {
    every_point_is_survived(&job(2, 2, Method::SelfCheckpoint, 1), 2);
}

#[test]
fn self_checkpoint_survives_every_point_on_two_by_three_by_column() {
    let mut base = job(2, 3, Method::SelfCheckpoint, 1);
    base.layout.mapping = Mapping::Column;
    base.group = Some(3);
    base.encode = Encoding::Reduce;
    every_point_is_survived(&base, 1);
}

#[test]
fn double_checkpoint_survives_every_point() {
    every_point_is_survived(&job(2, 2, Method::Double, 1), 3);
}

/// Returns a job with more boundaries. A save that helpers complete is committed at a later boundary.
fn helped() -> Job {
    let mut base = job(2, 2, Method::Double, 1);
    (base.encode, base.layout.n, base.every) = (Encoding::Helper, 161, 1);
    base.pace = Duration::from_millis(1);
    base
}

/// Faults at any step of a rank are survived while its helper encodes. `tests/crash` tests faults inside helpers.
#[test]
fn helpers_that_encode_leave_no_step_of_their_ranks_open() {
    let base = helped();
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    for point in [
        Point::SaveBegin,
        Point::SaveState,
        Point::FlushHalf,
        Point::FlushData,
        Point::EncodeLeft,
        Point::Iteration,
        Point::EncodeFound,
        Point::Sealed,
        Point::BarrierPassed,
        Point::FlushEnd,
        Point::Committed,
    ] {
        for (position, lost, hit) in (0..4).flat_map(|p| [(p, p % 2 == 0, 1), (p, p % 2 == 1, 2)]) {
            with_job(&base, |job| {
                let ends = launch(job, &[(position, point, hit)]);
                assert!(failed(&ends, point), "{} did not fire: {ends:?}", point.name());
                if lost {
                    lose(job, position);
                }
                let again = finished(launch(job, &[]));
                assert!(again == truth, "{} at {position}, lost {lost}", point.name());
            });
        }
    }
}

#[test]
fn second_faults_after_saves_by_helpers() {
    every_second_fault_is_survived(&helped(), false);
}

#[test]
fn second_faults_in_every_step_of_recovery() {
    every_second_fault_is_survived(&job(2, 2, Method::SelfCheckpoint, 1), true);
    every_second_fault_is_survived(&job(2, 2, Method::Double, 1), false);
}

#[test]
fn two_losses_in_a_group_with_reed_solomon() {
    let base = job(2, 3, Method::SelfCheckpoint, 2);
    every_second_fault_is_survived(&base, true);
    any_two_of_six_may_be_lost(&base);
}

fn any_two_of_six_may_be_lost(base: &Job) {
    let truth = finished(with_job(base, |job| launch(job, &[])));
    for first in 0..6 {
        for second in 0..first {
            with_job(base, |job| {
                inject(job, first, Point::FlushHalf, 2);
                lose(job, first);
                lose(job, second);
                assert!(gone_on(launch(job, &[])) == truth);
            });
        }
    }
}

fn laid_out(p: usize, q: usize, losses: usize, layout: ParityLayout) -> Job {
    let mut base = job(p, q, Method::SelfCheckpoint, losses);
    base.scheme.layout = layout;
    base
}

#[test]
fn localised_checksums_survive_second_faults_and_any_two_losses() {
    let six = laid_out(2, 3, 2, ParityLayout::Localised);
    let truth = finished(with_job(&six, |job| launch(job, &[])));
    let mut came_to = Vec::new();
    for (point, second) in backward().into_iter().flat_map(|point| [(point, 1), (point, 4)]) {
        with_job(&six, |job| {
            inject(job, 1, Point::FlushHalf, 2);
            lose(job, 1);
            let ends = launch(job, &[(second, point, 1)]);
            if !failed(&ends, point) {
                assert!(gone_on(ends) == truth, "{} at {second}", point.name());
                return;
            }
            came_to.push(point);
            lose(job, second);
            assert!(gone_on(launch(job, &[])) == truth, "{} at {second}", point.name());
        });
    }
    // Points that finish a flush are reached only after a seal. A rank begins to rebuild only after a loss.
    let finishing = |p: &Point| matches!(p, Point::FinishHalf | Point::FinishEnd);
    for point in backward().into_iter().filter(|p| !finishing(p)) {
        assert!(came_to.contains(&point), "nobody came to {}", point.name());
    }
    any_two_of_six_may_be_lost(&six);
    let mut reduced = six.clone();
    reduced.encode = Encoding::Reduce;
    any_two_of_six_may_be_lost(&reduced);
    let mut double = reduced.clone();
    double.scheme.method = Method::Double;
    any_two_of_six_may_be_lost(&double);
}

/// On a 2 x 3 grid with layout `grid`, the groups are the process rows. One member of each may be lost at the same time.
#[test]
fn rows_of_the_grid_survive_a_loss_in_each() {
    let base = laid_out(2, 3, 1, ParityLayout::Grid);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    for first in 0..3 {
        for second in 3..6 {
            with_job(&base, |job| {
                inject(job, first, Point::EncodeEnd, 2);
                lose(job, first);
                lose(job, second);
                assert!(gone_on(launch(job, &[])) == truth);
            });
        }
    }
    with_job(&base, |job| {
        inject(job, 1, Point::Iteration, 7);
        lose(job, 0);
        lose(job, 2);
        let why = refused(launch(job, &[]));
        assert!(why.contains("[0, 2]"), "{why}");
    });
}

#[test]
fn memory_of_another_layout_is_refused_by_name() {
    let base = laid_out(2, 3, 1, ParityLayout::Striped);
    with_job(&base, |job| {
        inject(job, 1, Point::Iteration, 7);
        for layout in [ParityLayout::Grid, ParityLayout::Localised] {
            // Dropping the clone would remove the memory.
            let mut other = ManuallyDrop::new(job.clone());
            other.scheme.layout = layout;
            let why = refused(launch(&other, &[]));
            let words = format!(
                "--parity-layout striped, but this run has --parity-layout {}",
                layout.name()
            );
            assert!(why.contains(&words), "{why}");
        }
        finished(launch(job, &[]));
    });
}

#[test]
fn every_scope_and_method_restores_the_same_bits() {
    for method in [Method::SelfCheckpoint, Method::Double, Method::Single] {
        for scope in Scope::ALL {
            for store in [Store::Posix, Store::SysV] {
                let mut base = job(2, 2, method, 1);
                base.scheme.scope = scope;
                base.memory_store = MemoryStore::new(store, &unique()).unwrap();
                let truth = finished(with_job(&base, |job| launch(job, &[])));
                with_job(&base, |job| {
                    inject(job, 2, Point::Iteration, 7);
                    lose(job, 2);
                    let ends = launch(job, &[]);
                    assert!(matches!(ends[0], End::Done(_, Some(6))), "{:?}", ends[0]);
                    assert!(finished(ends) == truth);
                    let left = job.memory_store.list();
                    assert!(left.iter().all(|h| h.part == Part::Done), "{store:?} {left:?}");
                });
            }
        }
    }
}

/// Several threads of a rank copy, encode, digest, check and rebuild a large matrix. No bit changes.
#[test]
fn threads_save_and_restore_the_same_bits_together() {
    for (method, losses) in
        [(Method::SelfCheckpoint, 1), (Method::SelfCheckpoint, 2), (Method::Double, 1)]
    {
        let (p, q) = if losses == 2 { (2, 3) } else { (2, 2) };
        let mut base = job(p, q, method, losses);
        base.group = (losses == 2).then_some(3);
        base.layout = Layout { n: 1500, nb: 160, ..base.layout };
        let truth = finished(with_job(&base, |job| launch(job, &[])));
        base.threads = 3;
        base.lockstep = true;
        assert!(finished(with_job(&base, |job| launch(job, &[]))) == truth);
        for point in [Point::Iteration, Point::EncodeBatch, Point::FlushHalf] {
            with_job(&base, |job| {
                assert!(failed(&launch(job, &[(1, point, 5)]), point));
                lose(job, 1);
                assert!(
                    finished(launch(job, &[])) == truth,
                    "{method:?} {losses} {}",
                    point.name()
                );
            });
        }
        // Flips a bit in the middle of each thread's part, and one in the last row.
        let size = 1500 / p * (1500_usize.div_ceil(q) + 3) * 8;
        for part in (0..8).map(|eighth| size / 8 * eighth).chain([size - 4096]) {
            with_job(&base, |job| {
                inject(job, 1, Point::Iteration, 7);
                assert!(job.memory_store.flip(0, Part::B, part / 8 * 8));
                let ends = launch(job, &[]);
                assert!(matches!(ends[0], End::Done(_, Some(6))), "{:?}", ends[0]);
                assert!(finished(ends) == truth, "{method:?} {losses} {part}");
            });
        }
    }
}

#[test]
fn sums_restore_up_to_rounding() {
    for code in [Code::Sum, Code::Weighted] {
        restores_up_to_rounding(code);
    }
}

fn restores_up_to_rounding(code: Code) {
    let mut base = job(2, 2, Method::SelfCheckpoint, 1);
    base.scheme.code = code;
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    with_job(&base, |job| {
        inject(job, 2, Point::Iteration, 7);
        lose(job, 2);
        for (got, want) in finished(launch(job, &[])).iter().zip(&truth) {
            for (x, y) in got.iter().zip(want) {
                let (x, y) = (f64::from_bits(*x), f64::from_bits(*y));
                // The values are whole numbers below 2^52. The last digit of a sum of four is worth 4, and the sum is rounded a
                // few times.
                assert!((x - y).abs() <= 16.0, "{x} {y}");
            }
        }
    });
}

#[test]
fn method_single_refuses_what_it_cannot_survive() {
    let base = job(2, 2, Method::Single, 1);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    // How far other ranks are when one dies depends on chance. The run must either resume or be refused.
    let mut refusals = 0;
    for point in [Point::FlushHalf, Point::EncodeBatch].into_iter().cycle().take(40) {
        with_job(&base, |job| {
            // The first checkpoint has some batches; the fault is in a later checkpoint.
            let hit = if point == Point::FlushHalf { 2 } else { 3 };
            assert!(failed(&launch(job, &[(1, point, hit)]), point));
            lose(job, 1);
            let ends = launch(job, &[]);
            if matches!(ends[0], End::Done(..)) {
                assert!(finished(ends) == truth);
            } else {
                let text = refused(ends);
                assert!(text.contains("overwrote its checkpoint"), "{text}");
                refusals += 1;
            }
        });
    }
    assert!(refusals > 0);
}

#[test]
fn one_more_than_tolerated_is_refused_and_memory_kept() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    with_job(&base, |job| {
        inject(job, 0, Point::Iteration, 5);
        lose(job, 0);
        lose(job, 3);
        let before = job.memory_store.list();
        let text = refused(launch(job, &[]));
        assert!(text.contains("positions [0, 3]") && text.contains("position 3 on n3"), "{text}");
        let after = job.memory_store.list();
        assert!(before.iter().all(|h| after.contains(h)), "memory was not kept");
        let typed = Refusal::TooManyLost { group: 0, size: 4, losses: 1, lost: vec![0, 3] };
        assert!(text.contains(&typed.to_string()));
    });
    // One loss in each of two groups is survived.
    let mut pairs = base.clone();
    pairs.memory_store = MemoryStore::new(Store::Posix, &unique()).unwrap();
    pairs.group = Some(2);
    let truth = finished(with_job(&pairs, |job| launch(job, &[])));
    with_job(&pairs, |job| {
        inject(job, 0, Point::FlushHalf, 2);
        lose(job, 0);
        lose(job, 3);
        assert!(finished(launch(job, &[])) == truth);
    });
}

#[test]
fn a_flipped_bit_anywhere_counts_as_lost() {
    let mut base = job(2, 2, Method::SelfCheckpoint, 1);
    base.lockstep = true;
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    for (point, parts) in [
        (Point::Iteration, [Part::B, Part::C, Part::S, Part::Head]),
        (Point::FlushHalf, [Part::A, Part::D, Part::S, Part::Head]),
    ] {
        for part in parts {
            for at in [0, 1, 2] {
                with_job(&base, |job| {
                    inject(job, 1, point, 5);
                    let size = job.memory_store.peek(2, part).unwrap().len();
                    // A byte of the published slot, of both places of the small state, or of the data.
                    let offsets: Vec<usize> = match part {
                        Part::Head => vec![[0, 4096 + 40, 8192 + 40][at]],
                        Part::S => vec![40, size / 2 + 40],
                        // Columns after those of the matrix are padding, and belong to no rank.
                        _ => vec![[8, size / 3 / 8 * 8, size - 40][at]],
                    };
                    for offset in offsets {
                        assert!(job.memory_store.flip(2, part, offset));
                    }
                    let ends = launch(job, &[]);
                    assert!(finished(ends) == truth, "{part:?} {at}");
                });
            }
        }
    }
    // Equal damage in two members is one loss too many.
    with_job(&base, |job| {
        inject(job, 1, Point::Iteration, 5);
        for position in [2, 3] {
            assert!(job.memory_store.flip(position, Part::B, 8));
        }
        refused(launch(job, &[]));
    });
    // Damage together with a loss is one loss too many. Data that were rebuilt for the lost member before the damage was found
    // are removed.
    with_job(&base, |job| {
        inject(job, 1, Point::Iteration, 5);
        job.memory_store.unlink_position(2);
        assert!(job.memory_store.flip(3, Part::B, 8));
        let kept = job.memory_store.list();
        refused(launch(job, &[]));
        assert_eq!(job.memory_store.list(), kept);
    });
}

#[test]
fn memory_of_the_wrong_size_counts_as_lost() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    with_job(&base, |job| {
        inject(job, 1, Point::Iteration, 5);
        job.memory_store.unlink(2, Part::B);
        drop(job.memory_store.create(2, Part::B, 64).unwrap());
        assert!(finished(launch(job, &[])) == truth);
    });
}

#[test]
fn an_older_copy_of_a_position_is_not_used() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    with_job(&base, |job| {
        // Position 2 dies. Its memory returns after the other positions have continued without it.
        assert!(failed(&launch(job, &[(2, Point::Iteration, 3)]), Point::Iteration));
        let stash: Vec<(Part, Vec<u8>)> = Part::ALL
            .into_iter()
            .filter_map(|part| Some((part, job.memory_store.peek(2, part).ok()?.bytes().to_vec())))
            .collect();
        lose(job, 2);
        assert!(failed(&launch(job, &[(0, Point::Iteration, 4)]), Point::Iteration));
        lose(job, 2);
        for (part, bytes) in stash {
            job.memory_store
                .create(2, part, bytes.len())
                .unwrap()
                .bytes_mut()
                .copy_from_slice(&bytes);
        }
        assert!(finished(launch(job, &[])) == truth);
    });
}

#[test]
fn another_problem_under_the_same_name_is_refused() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    with_job(&base, |job| {
        inject(job, 1, Point::Iteration, 5);
        let mut other = job.clone();
        other.layout.n = 41;
        let text = refused(launch(&other, &[]));
        assert!(text.contains("N = 37") && text.contains("--job"), "{text}");
        std::mem::forget(other);
    });
    with_job(&base, |job| {
        let mut strict = job.clone();
        strict.must_resume = true;
        assert!(refused(launch(&strict, &[])).contains("--restart require"));
        std::mem::forget(strict);
    });
}

#[test]
fn the_next_test_is_not_confused_by_what_the_last_one_left() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    with_job(&base, |job| {
        // The first test dies while it removes its memory; the second test begins.
        assert!(failed(&launch(job, &[(1, Point::CleanHalf, 1)]), Point::CleanHalf));
        let mut second = job.clone();
        second.test = 1;
        second.layout.n = 29;
        let ends = launch(&second, &[]);
        assert!(matches!(ends[0], End::Done(_, None)));
        std::mem::forget(second);
    });
}

#[test]
fn two_jobs_of_one_user_run_side_by_side() {
    let (one, two) = (job(2, 2, Method::SelfCheckpoint, 1), job(2, 2, Method::SelfCheckpoint, 1));
    let truth = finished(with_job(&one, |job| launch(job, &[])));
    std::thread::scope(|scope| {
        for job in [&one, &two] {
            let truth = &truth;
            scope.spawn(move || {
                inject(job, 3, Point::FlushHalf, 2);
                lose(job, 3);
                assert!(&finished(launch(job, &[])) == truth);
            });
        }
    });
}

fn stash(job: &Job, position: u32) -> Vec<(Part, Vec<u8>)> {
    Part::ALL
        .into_iter()
        .filter_map(|part| {
            Some((part, job.memory_store.peek(position, part).ok()?.bytes().to_vec()))
        })
        .collect()
}

fn unstash(job: &Job, position: u32, stash: &[(Part, Vec<u8>)]) {
    job.memory_store.unlink_position(position);
    for (part, bytes) in stash {
        let mut region = job.memory_store.create(position, *part, bytes.len()).unwrap();
        region.bytes_mut().copy_from_slice(bytes);
    }
}

/// A start dies before its first save. Only a node that is away at the next start has memory of it. The next start must get
/// another number; otherwise memory of the two starts would be taken as equal.
#[test]
fn a_start_that_the_next_one_did_not_see_has_a_number_of_its_own() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    with_job(&base, |job| {
        assert!(failed(&launch(job, &[(2, Point::Iteration, 5)]), Point::Iteration));
        let before = [0, 1, 2].map(|position| stash(job, position));
        assert!(failed(&launch(job, &[(3, Point::Pinned, 1)]), Point::Pinned));
        let unseen = stash(job, 3);
        for (position, memory) in (0..).zip(&before) {
            unstash(job, position, memory);
        }
        lose(job, 3);
        // The next start resumes from the same checkpoint, and has begun to overwrite it.
        let all = [0, 1, 2, 3].map(|position| (position, Point::FlushHalf, 1));
        assert!(failed(&launch(job, &all), Point::FlushHalf));
        unstash(job, 3, &unseen);
        let ends = launch(job, &[]);
        assert!(matches!(ends[0], End::Done(_, Some(6))), "{:?}", ends[0]);
        assert!(finished(ends) == truth);
    });
}

/// Only one node, which was away, has memory of an earlier start from scratch. Its checkpoint has the same number as the first
/// checkpoint of the next start, but another boundary. The two are not mixed.
#[test]
fn a_checkpoint_of_a_beginning_that_nobody_remembers_is_another() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    with_job(&base, |job| {
        assert!(failed(&launch(job, &[(3, Point::Sealed, 1)]), Point::Sealed));
        let old = stash(job, 3);
        job.memory_store.clean().unwrap();
        let mut later = job.clone();
        later.every = 3;
        assert!(failed(&launch(&later, &[(0, Point::Iteration, 5)]), Point::Iteration));
        unstash(&later, 3, &old);
        let ends = launch(&later, &[]);
        assert!(matches!(ends[0], End::Done(_, Some(3))), "{:?}", ends[0]);
        assert!(finished(ends) == truth);
        std::mem::forget(later);
    });
}

/// A run that has saved starts from scratch twice, on nodes without its checkpoints. These starts have greater numbers than the
/// start that saved. When nodes with checkpoints return, the run still resumes from the checkpoints.
#[test]
fn a_start_from_scratch_elsewhere_does_not_cost_the_checkpoints() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    with_job(&base, |job| {
        inject(job, 1, Point::Iteration, 7);
        let saved = [0, 1, 2, 3].map(|position| stash(job, position));
        job.memory_store.clean().unwrap();
        for _ in 0..2 {
            inject(job, 0, Point::GenerateEnd, 1);
        }
        let begun = [2, 3].map(|position| stash(job, position));
        for (position, memory) in (0..3).zip(&saved) {
            unstash(job, position, memory);
        }
        // Two such positions are one loss too many; all memory is kept.
        unstash(job, 2, &begun[0]);
        assert!(refused(launch(job, &[])).contains("[2, 3]"));
        unstash(job, 2, &saved[2]);
        let ends = launch(job, &[]);
        assert!(matches!(ends[0], End::Done(_, Some(6))), "{:?}", ends[0]);
        assert!(finished(ends) == truth);
    });
}

/// A node was away while a sweep continued. It has memory of an earlier test of the same run, with the same checkpoint number.
/// This memory counts as lost.
#[test]
fn memory_of_an_earlier_test_on_one_node_is_not_used() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    let second = |job: &Job| {
        let mut second = job.clone();
        second.test = 1;
        second
    };
    let truth = finished(with_job(&base, |job| {
        let second = second(job);
        let ends = launch(&second, &[]);
        std::mem::forget(second);
        ends
    }));
    with_job(&base, |job| {
        inject(job, 2, Point::Iteration, 5);
        let old = stash(job, 2);
        job.memory_store.clean().unwrap();
        let second = second(job);
        inject(&second, 0, Point::Iteration, 5);
        unstash(&second, 2, &old);
        let ends = launch(&second, &[]);
        assert!(matches!(ends[0], End::Done(_, Some(4))), "{:?}", ends[0]);
        assert!(finished(ends) == truth);
        std::mem::forget(second);
    });
}

#[test]
fn memory_of_an_earlier_run_on_one_node_is_not_used() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    with_job(&base, |job| {
        inject(job, 2, Point::Iteration, 5);
        let old = stash(job, 2);
        job.memory_store.clean().unwrap();
        let mut newer = job.clone();
        newer.run = 2 << 64;
        inject(&newer, 0, Point::Iteration, 5);
        unstash(&newer, 2, &old);
        let ends = launch(&newer, &[]);
        assert!(matches!(ends[0], End::Done(_, Some(4))));
        assert!(finished(ends) == truth);
        std::mem::forget(newer);
    });
}

/// Memory of an earlier run counts as lost, although the clock of its node was hours ahead of the clock of the newer run.
#[test]
fn memory_of_an_earlier_run_is_not_used_though_its_clock_was_fast() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    with_job(&base, |job| {
        const HOUR: u128 = 3_600_000_000_000 << 64;
        let mut older = job.clone();
        older.run = 9 * HOUR;
        inject(&older, 2, Point::Iteration, 5);
        let old = stash(&older, 2);
        job.memory_store.clean().unwrap();
        std::mem::forget(older);
        let mut newer = job.clone();
        newer.run = 4 * HOUR;
        inject(&newer, 0, Point::Iteration, 5);
        unstash(&newer, 2, &old);
        let ends = launch(&newer, &[]);
        assert!(matches!(ends[0], End::Done(_, Some(4))), "{:?}", ends[0]);
        assert!(finished(ends) == truth);
        std::mem::forget(newer);
    });
}

/// Several runs begin at the same moment under one job name, from scratch or from memory. One run gets all positions, and the
/// others report which run has them.
#[test]
fn of_runs_that_begin_together_under_one_name_one_wins() {
    const RUNS: usize = 3;
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    for round in 0..24 {
        with_job(&base, |job| {
            if round % 2 == 1 {
                inject(job, 1, Point::Iteration, 5);
            }
            let positions = job.layout.positions();
            let came = std::sync::Barrier::new(RUNS * positions);
            let rank = |run: usize, me: usize, all: Arc<Post>, groups: Arc<Post>| {
                let (mut config, test) = setting(job, me);
                // In odd rounds all runs resume from the same memory. Otherwise each run has an id of its own.
                config.run += if round % 2 == 1 { 0 } else { run as u128 };
                let world = ThreadWorld::new(all, me, positions);
                let started = catch_unwind(AssertUnwindSafe(|| {
                    let pool = &mut Pool::new(1);
                    Checkpointer::start(config, test, world, pool, |_, _, place, members| {
                        Member::new(groups.clone(), members.to_vec(), place)
                    })
                }));
                // A run that has begun stays until all runs have tried.
                came.wait();
                match started.expect("nobody fails") {
                    Ok(_) => None,
                    Err(error) => Some(error.to_string()),
                }
            };
            let ends: Vec<Vec<Option<String>>> = std::thread::scope(|scope| {
                let run = |run: usize| {
                    let posts = (Arc::new(Post::default()), Arc::new(Post::default()));
                    let start = |me| {
                        let (all, groups) = posts.clone();
                        scope.spawn(move || rank(run, me, all, groups))
                    };
                    (0..positions).map(start).collect::<Vec<_>>()
                };
                let runs: Vec<_> = (0..RUNS).map(run).collect();
                runs.into_iter()
                    .map(|ranks| ranks.into_iter().map(|rank| rank.join().unwrap()).collect())
                    .collect()
            });
            let won = |ranks: &&Vec<Option<String>>| ranks.iter().all(Option::is_none);
            assert_eq!(ends.iter().filter(won).count(), 1, "round {round}: {ends:?}");
            let own = format!("in use by process {} (", std::process::id());
            for text in ends.iter().filter(|ranks| !won(ranks)).flatten() {
                assert!(text.as_ref().is_some_and(|text| text.contains(&own)), "{text:?}");
            }
            let mut held = job.memory_store.positions();
            held.sort_unstable();
            assert_eq!(held, [0, 1, 2, 3]);
        });
    }
}

/// The SIGBUS handler has set the damage flag in the header of a position, since a page of the matrix could not be read. Nothing
/// else shows the damage in this test; the position is still rebuilt.
#[test]
fn a_position_whose_memory_had_an_error_is_rebuilt() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    with_job(&base, |job| {
        inject(job, 1, Point::Iteration, 5);
        let head = Head::new(job.memory_store.open(2, Part::Head).unwrap()).unwrap();
        head.flag_damage();
        assert!(matches!(head.read(), Err(HeaderFault::Unreadable)));
        drop(head);
        // With the loss of another position, there is one loss too many.
        let aside = stash(job, 3);
        lose(job, 3);
        let text = refused(launch(job, &[]));
        assert!(text.contains("positions [2, 3]") && text.contains("memory error"), "{text}");
        unstash(job, 3, &aside);
        assert!(finished(launch(job, &[])) == truth);
    });
}

#[test]
fn a_part_cut_short_counts_as_lost() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    for part in [Part::Head, Part::B, Part::Done] {
        with_job(&base, |job| {
            inject(job, 1, Point::Iteration, 5);
            let uid = nix::unistd::geteuid();
            let path =
                format!("/dev/shm/skt-hpl.{uid}.{}.p2.{}", job.memory_store.job(), part.name());
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
            assert!(finished(launch(job, &[])) == truth, "{part:?}");
        });
    }
}

/// A rebuilt position is compared with the digests in its own header, if the header still exists. If they differ, the start is
/// refused.
#[test]
fn a_rebuilt_position_that_is_not_what_was_lost_is_refused() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    with_job(&base, |job| {
        inject(job, 1, Point::Iteration, 5);
        let mut head = Head::new(job.memory_store.open(2, Part::Head).unwrap()).unwrap();
        let mut header = head.read().unwrap();
        header.base.root ^= 1;
        header.seal.root ^= 1;
        head.write(&header);
        drop(head);
        let text = refused(launch(job, &[]));
        assert!(text.contains("position 2: its rebuilt checkpoint differs from"), "{text}");
    });
}

#[test]
fn segments_swapped_between_positions_count_as_lost() {
    let base = job(2, 2, Method::SelfCheckpoint, 2);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    with_job(&base, |job| {
        inject(job, 0, Point::Iteration, 5);
        // All memory of position 2 is under the name of position 1, and one part of position 3 is that of position 0.
        let two = stash(job, 2);
        unstash(job, 1, &two);
        let checkpoint = |p| stash(job, p).into_iter().find(|s| s.0 == Part::C).unwrap().1;
        let (zero, three) = (checkpoint(0), checkpoint(3));
        assert_eq!(zero.len(), three.len());
        job.memory_store.open(3, Part::C).unwrap().bytes_mut().copy_from_slice(&zero);
        assert!(finished(launch(job, &[])) == truth);
    });
}

#[test]
fn random_faults_from_a_seed() {
    let seed =
        std::env::var("SKT_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_240_607u64);
    println!("SKT_TEST_SEED={seed}");
    // Crash points that a start reaches before its result is recorded. After that the test is not started again.
    let points: Vec<Point> = forward().into_iter().chain(backward()).collect();
    let mut state = seed;
    let mut random = |n: usize| {
        state = mix(state + 1);
        (state >> 8) as usize % n
    };
    let base = job(2, 3, Method::SelfCheckpoint, 2);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    for _ in 0..60 {
        with_job(&base, |job| {
            let mut relaunches = 0;
            loop {
                let mut faults = Vec::new();
                for _ in 0..random(3) {
                    let point = points[random(points.len())];
                    faults.push((random(6), point, 1 + random(3) as u64));
                }
                let ends = launch(job, &faults);
                if ends.iter().all(|e| matches!(e, End::Done(..))) {
                    assert!(finished(ends) == truth);
                    break;
                }
                // Positions that died lose their memory at random, at most two of them. A position that is not rebuilt yet is
                // already lost, so memory is lost only in the first launch.
                if relaunches == 0 {
                    for (position, end) in ends.iter().enumerate() {
                        if matches!(end, End::Failed(_)) && random(2) == 0 {
                            lose(job, position);
                        }
                    }
                }
                relaunches += 1;
                assert!(relaunches < 200, "no end in dir_scope: {ends:?}");
            }
        });
    }
}

/// Tests without one of the safeguards, which must fail. Tests that cannot fail prove nothing.
#[cfg(debug_assertions)]
mod negative_controls {
    use super::*;
    use skt_hpl::base::faults::Sabotage;

    #[test]
    fn without_digests_a_flipped_bit_is_computed_on() {
        let mut base = job(2, 2, Method::SelfCheckpoint, 1);
        base.lockstep = true;
        base.sabotage = Some(Sabotage::NoDigest);
        let truth = finished(with_job(&base, |job| launch(job, &[])));
        with_job(&base, |job| {
            inject(job, 1, Point::Iteration, 5);
            let words = job.layout.shape(2).0 * (job.layout.shape(2).1 + 3);
            let last = (words - 4) * 8 + 3;
            assert!(job.memory_store.flip(2, Part::B, last));
            assert!(finished(launch(job, &[])) != truth);
        });
    }

    #[test]
    fn without_the_barrier_a_loss_can_cost_the_run() {
        let mut base = job(2, 2, Method::SelfCheckpoint, 1);
        base.group = Some(2);
        base.sabotage = Some(Sabotage::NoBarrier);
        let truth = finished(with_job(&base, |job| launch(job, &[])));
        let harmed = (0..300).any(|_| {
            with_job(&base, |job| {
                inject(job, 3, Point::EncodeEnd, 2);
                lose(job, 3);
                let ends = launch(job, &[]);
                !ends.iter().all(|e| matches!(e, End::Done(..))) || finished(ends) != truth
            })
        });
        assert!(harmed, "nothing happened without the barrier");
    }
}

/// Tests of windows: steps at which a failure lost data in the first published implementation of the self-checkpoint. Here these
/// are steps of a start, a save or a recovery. The tests of the supervisor cover the loss of the supervisor and a hang.
mod windows {
    use super::*;

    fn base() -> Job {
        let mut job = job(2, 2, Method::SelfCheckpoint, 1);
        job.lockstep = true;
        job
    }

    /// Injects a fault, removes the memory of `lost`, and starts again. Asserts that all matrices have the bits of an undisturbed
    /// run, and that the run began at one of the boundaries `from`.
    fn closed(fault: (usize, Point, u64), lost: &[usize], from: &[Option<usize>]) {
        let base = base();
        let truth = finished(with_job(&base, |job| launch(job, &[])));
        with_job(&base, |job| {
            assert!(failed(&launch(job, &[fault]), fault.1));
            lost.iter().for_each(|&position| lose(job, position));
            let ends = launch(job, &[]);
            let End::Done(_, began) = &ends[0] else { panic!("{:?}", ends[0]) };
            assert!(from.contains(began), "began at {began:?}");
            assert!(finished(ends) == truth);
        });
    }

    #[test]
    fn w1_generating_or_before_the_first_commit() {
        for point in
            [Point::GenerateBegin, Point::GenerateEnd, Point::SaveBegin, Point::EncodeBatch]
        {
            closed((2, point, 1), &[], &[None]);
            closed((2, point, 1), &[2], &[None]);
        }
    }

    #[test]
    fn w2_computing() {
        closed((2, Point::Iteration, 5), &[2], &[Some(4)]);
    }

    #[test]
    fn w3_some_save_while_others_still_compute() {
        closed((2, Point::Iteration, 6), &[2], &[Some(4)]);
        closed((2, Point::SaveBegin, 3), &[2], &[Some(4)]);
    }

    #[test]
    fn w4_while_encoding() {
        closed((2, Point::EncodeEnd, 3), &[2], &[Some(4), Some(6)]);
    }

    #[test]
    fn w5_one_overwrites_while_a_peer_is_not_done() {
        closed((2, Point::Sealed, 3), &[2], &[Some(4), Some(6)]);
        closed((2, Point::BarrierPassed, 3), &[2], &[Some(6)]);
    }

    #[test]
    fn w6_flushing_early() {
        closed((2, Point::FlushHalf, 1), &[2], &[Some(2)]);
    }

    #[test]
    fn w7_flushing_late_with_parts_not_saved_again() {
        closed((2, Point::FlushHalf, 4), &[1], &[Some(8)]);
        closed((2, Point::FlushData, 4), &[2], &[Some(8)]);
    }

    #[test]
    fn w8_after_the_flush() {
        closed((2, Point::Committed, 3), &[2], &[Some(6)]);
    }

    #[test]
    fn w9_the_next_failure_after_a_recovery_from_a_and_d() {
        let base = base();
        let truth = finished(with_job(&base, |job| launch(job, &[])));
        for second in 0..4 {
            with_job(&base, |job| {
                assert!(failed(&launch(job, &[(1, Point::FlushHalf, 2)]), Point::FlushHalf));
                lose(job, 1);
                // The run has resumed at boundary 4, and dies before the next save.
                assert!(failed(&launch(job, &[(second, Point::Iteration, 1)]), Point::Iteration));
                lose(job, second);
                let ends = launch(job, &[]);
                assert!(matches!(ends[0], End::Done(_, Some(4))));
                assert!(finished(ends) == truth);
            });
        }
    }

    #[test]
    fn w10_and_w11_during_a_rebuild_and_while_it_is_written() {
        let base = base();
        let truth = finished(with_job(&base, |job| launch(job, &[])));
        for point in [Point::RebuildBatch, Point::RebuildEnd, Point::Rebuilt] {
            with_job(&base, |job| {
                assert!(failed(&launch(job, &[(1, Point::FlushHalf, 2)]), Point::FlushHalf));
                lose(job, 1);
                assert!(failed(&launch(job, &[(1, point, 1)]), point));
                lose(job, 1);
                assert!(finished(launch(job, &[])) == truth);
            });
        }
    }

    #[test]
    fn w12_two_losses_in_one_group_are_refused() {
        let base = base();
        with_job(&base, |job| {
            inject(job, 1, Point::Iteration, 5);
            lose(job, 0);
            lose(job, 1);
            assert!(refused(launch(job, &[])).contains("survives 1"));
        });
    }

    #[test]
    fn w13_saves_go_on_to_the_end() {
        // The matrix has ten block columns. A loss in the last iteration costs two iterations at most.
        assert_eq!(base().layout.blocks(), 10);
        closed((2, Point::Iteration, 10), &[2], &[Some(8)]);
        closed((2, Point::Committed, 5), &[2], &[Some(10)]);
    }
}

/// Tests with several nodes. Each node is a folder, and each rank of a launch sees only the folder of its node.
mod nodes {
    use super::*;

    struct Cluster {
        dirs: Vec<tempfile::TempDir>,
        job: Job,
    }

    /// Launches one rank on each of `nodes`, in this order. Returns what each rank found, and how it ended (None if it was not
    /// given a position).
    fn launch_on(
        cluster: &Cluster,
        nodes: &[usize],
        faults: &[(usize, Point, u64)],
    ) -> Vec<(Arrival, Option<End>)> {
        let size = nodes.len();
        let posts: [Arc<Post>; 3] = std::array::from_fn(|_| Arc::new(Post::default()));
        std::thread::scope(|scope| {
            let handles: Vec<_> = nodes
                .iter()
                .enumerate()
                .map(|(rank, &node)| {
                    let first_there = nodes.iter().position(|&other| other == node).unwrap();
                    let [first, all, groups] = posts.clone();
                    scope.spawn(move || {
                        let mut job = cluster.job.clone();
                        let name = cluster.job.memory_store.job();
                        job.memory_store = MemoryStore::with_directory(
                            Store::Posix,
                            name,
                            cluster.dirs[node].path(),
                        )
                        .unwrap();
                        let world = ThreadWorld::new(first, rank, size);
                        let arrival = Arrival::gather(&world, &job.memory_store, first_there);
                        let positions = job.layout.positions();
                        // With too few ranks for the grid, ranks only report what they find.
                        let mine = arrival.place(job.test, positions, None)[rank];
                        let Some(me) = mine.filter(|_| size >= positions) else {
                            std::mem::forget(job);
                            return (arrival, None);
                        };
                        faults::arm_thread(
                            faults
                                .iter()
                                .filter(|s| s.0 == me)
                                .map(|s| Fault::new(s.1, Some(me), s.2, Action::Unwind))
                                .collect(),
                        );
                        let world = ThreadWorld::new(all.clone(), me, positions);
                        let end = catch_unwind(AssertUnwindSafe(|| {
                            let run = arrival.run.unwrap_or(job.run);
                            rank_main(&job, run, me, world, groups.clone())
                        }))
                        .unwrap_or_else(|payload| {
                            all.kill();
                            groups.kill();
                            match payload.downcast::<Injected>() {
                                Ok(injected) => End::Failed(injected.0),
                                Err(_) => End::Ended,
                            }
                        });
                        // Dropping the clone would remove the memory of a node.
                        std::mem::forget(job);
                        (arrival, Some(end))
                    })
                })
                .collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        })
    }

    fn cluster(nodes: usize) -> Cluster {
        let mut job = job(2, 2, Method::SelfCheckpoint, 1);
        job.lockstep = true;
        Cluster { dirs: (0..nodes).map(|_| tempfile::tempdir().unwrap()).collect(), job }
    }

    #[test]
    fn positions_follow_their_memory_through_any_host_order_and_a_spare() {
        let c = cluster(6);
        let truth = finished(with_job(&c.job, |job| launch(job, &[])));
        launch_on(&c, &[0, 1, 2, 3], &[(1, Point::Iteration, 5)]);
        // Node 1 is lost and spare 5 takes part. The launcher sorts the nodes in another way, and one rank is left over.
        let ends = launch_on(&c, &[3, 5, 0, 4, 2], &[]);
        let arrival = ends[0].0.clone();
        assert!(ends.iter().all(|e| e.0 == arrival));
        assert_eq!((arrival.run, arrival.test), (Some(1 << 64), Some(0)));
        let placed = arrival.place(0, 4, None);
        assert_eq!(placed, [Some(3), Some(1), Some(0), None, Some(2)]);
        for (rank, (_, end)) in ends.into_iter().enumerate() {
            match (placed[rank], end) {
                (Some(position), Some(End::Done(bits, Some(4)))) => {
                    assert!(bits == truth[position])
                }
                (None, None) => {}
                (at, end) => panic!("rank {rank} at {at:?}: {end:?}"),
            }
        }
        // The test has ended. Its memory is removed, and each node that took part has its result.
        let after = launch_on(&c, &[4, 0], &[]);
        assert_eq!(after[0].0.finished[&0], b"result");
        assert_eq!(after[0].0.test, None);
    }

    #[test]
    fn a_node_that_comes_back_with_an_old_copy_loses() {
        let c = cluster(5);
        let truth = finished(with_job(&c.job, |job| launch(job, &[])));
        launch_on(&c, &[0, 1, 2, 3], &[(1, Point::Iteration, 3)]);
        // Node 1 is cut off. Node 4 takes its position and gets further.
        let ends = launch_on(&c, &[0, 4, 2, 3], &[(0, Point::Iteration, 3)]);
        assert!(matches!(ends[0].1, Some(End::Failed(_))));
        // Both nodes are present. The later copy is used, and the rank of node 1 is left over.
        let ends = launch_on(&c, &[1, 0, 4, 2, 3], &[]);
        assert_eq!(ends[0].0.place(0, 4, None), [None, Some(0), Some(1), Some(2), Some(3)]);
        for (position, (_, end)) in ends.into_iter().skip(1).enumerate() {
            let Some(End::Done(bits, Some(4))) = end else { panic!("{end:?}") };
            assert!(bits == truth[position]);
        }
    }

    /// A node has an old copy of a position that is elsewhere now, and takes another position. The old copy is removed before
    /// memory for the other position is created.
    #[test]
    fn an_old_copy_of_another_position_goes_before_memory_is_made() {
        let c = cluster(5);
        launch_on(&c, &[0, 1, 2, 3], &[(1, Point::Iteration, 3)]);
        // Node 3 is cut off. Node 4 takes its position and gets further.
        launch_on(&c, &[0, 1, 2, 4], &[(0, Point::Iteration, 3)]);
        // Node 3 returns, and takes the position of node 1, which is lost.
        let lies = |position: u32, part: Part| {
            let name = c.job.memory_store.name(position, part);
            c.dirs[3].path().join(name).exists()
        };
        assert!(lies(3, Part::Head) && lies(3, Part::B));
        let ends = launch_on(&c, &[0, 3, 2, 4], &[(0, Point::Iteration, 2)]);
        assert!(ends.iter().all(|(_, end)| !matches!(end, Some(End::Refused(_)))));
        assert!(lies(1, Part::Head) && lies(1, Part::B));
        assert!(Part::ALL.into_iter().all(|part| !lies(3, part)));
        // The memory of the other nodes is unchanged.
        let ends = launch_on(&c, &[0, 3, 2, 4], &[]);
        assert!(ends.iter().all(|(_, end)| matches!(end, Some(End::Done(_, Some(4))))));
    }

    /// Makes a cluster in which node 2 lost one of its two ranks, so that the rank's position was taken elsewhere. Returns the
    /// cluster, and the bits of an undisturbed run.
    fn with_a_copy_left() -> (Cluster, Vec<Vec<u64>>) {
        let c = cluster(6);
        let truth = finished(with_job(&c.job, |job| launch(job, &[])));
        launch_on(&c, &[0, 1, 2, 2], &[(2, Point::Iteration, 5)]);
        (c, truth)
    }

    fn has_copy_of_3(cluster: &Cluster) -> bool {
        cluster.dirs[2].path().join(cluster.job.memory_store.name(3, Part::B)).exists()
    }

    /// The copy of a dead rank's memory stays, for any number of attempts, until its position is rebuilt elsewhere. If another
    /// member is lost before, the copy is needed.
    #[test]
    fn a_copy_of_the_agreed_checkpoint_stays_until_the_position_is_rebuilt() {
        let (c, truth) = with_a_copy_left();
        for _ in 0..3 {
            let ends = launch_on(&c, &[0, 1, 2, 4], &[(1, Point::RebuildBegin, 1)]);
            assert!(matches!(ends[1].1, Some(End::Failed(_))), "{ends:?}");
        }
        // Node 1 is lost, and node 2 has room for two ranks again.
        let ends = launch_on(&c, &[0, 5, 2, 2], &[]);
        for (position, (_, end)) in ends.into_iter().enumerate() {
            let Some(End::Done(bits, Some(4))) = end else { panic!("{end:?}") };
            assert!(bits == truth[position]);
        }
    }

    #[test]
    fn a_copy_goes_when_the_position_is_rebuilt() {
        let (c, _) = with_a_copy_left();
        let fails = |point| launch_on(&c, &[0, 1, 2, 4], &[(1, point, 1)]);
        fails(Point::AgreedAgain);
        assert!(has_copy_of_3(&c));
        fails(Point::AgreedAgain);
        assert!(!has_copy_of_3(&c));
    }

    #[test]
    fn a_node_without_memory_stops_all_ranks_with_its_words() {
        let c = cluster(4);
        std::fs::remove_dir(c.dirs[2].path()).unwrap();
        let ends = launch_on(&c, &[0, 1, 2, 3], &[]);
        let text = refused(ends.into_iter().map(|e| e.1.unwrap()).collect());
        assert!(text.contains("shared memory cannot be allocated: position 2"), "{text}");
    }
}
