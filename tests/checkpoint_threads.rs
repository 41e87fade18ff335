//! Saving and restoring with ranks as threads over real shared memory.
//!
//! A stand-in for the factorisation changes the trailing corner at each iteration, so that any wrong
//! byte that is restored changes the end. A rank dies by unwinding at a crash point; its peers then
//! unwind too, as MPI_Abort would end them; memory stays or is removed; the same test is started
//! again and must end with the very bits of an undisturbed run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use skt_hpl::checkpoint::plan::{Layout, Scheme, Scope};
use skt_hpl::checkpoint::protocol::{Method, Refusal};
use skt_hpl::checkpoint::world::threads::ThreadWorld;
use skt_hpl::checkpoint::{Checkpointer, Config, Origin, Restart, StartError, Test, World};
use skt_hpl::faults::{self, Action, Fault, Point, Struck};
use skt_hpl::memory::{Depot, Part, Store};
use skt_hpl::params::{Mapping, Rng};
use skt_hpl::parity::comm::threads::{Member, PeerDied, Post};
use skt_hpl::parity::{Code, Encode};

#[derive(Clone)]
struct Job {
    depot: Depot,
    layout: Layout,
    scheme: Scheme,
    group: Option<usize>,
    encode: Encode,
    every: usize,
    restart: Restart,
    test: u32,
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.depot.clean();
    }
}

fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("t-threads-{}-{n}", std::process::id())
}

fn job(p: usize, q: usize, method: Method, losses: usize) -> Job {
    Job {
        depot: Depot::new(Store::Posix, &unique()).unwrap(),
        layout: Layout { n: 37, nb: 4, p, q, mapping: Mapping::Row },
        scheme: Scheme {
            method,
            scope: Scope::Corner,
            code: if losses == 1 { Code::Xor } else { Code::ReedSolomon },
            losses,
        },
        group: None,
        encode: Encode::Pipelined,
        every: 2,
        restart: Restart::Auto,
        test: 0,
    }
}

/// What one rank came to.
#[derive(Debug)]
enum End {
    /// Its matrix, and where it began.
    Done(Vec<u64>, Option<usize>),
    Refused(String),
    Struck(Point),
    Ended,
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn rank_main(job: &Job, me: usize, world: ThreadWorld, groups: Arc<Post>) -> End {
    let (rows, cols) = job.layout.shape(me);
    let ld = cols + 3;
    let config = Config {
        depot: job.depot.clone(),
        scheme: job.scheme,
        group: job.group,
        encode: job.encode,
        interval: skt_hpl::checkpoint::when::Interval::Iterations(job.every),
        restart: job.restart,
        state_bytes: 600,
        ld,
        run: 1 << 64,
        domain: format!("n{me}"),
        node: format!("n{me}"),
    };
    let test =
        Test { index: job.test, layout: job.layout, rng: Rng::Hpl, seed: 1, params_digest: 5 };
    let started = Checkpointer::start(config, test, world, |_, _, place, members| {
        Member::new(groups, members.to_vec(), place)
    });
    let mut started = match started {
        Ok(started) => started,
        Err(error) => {
            assert!(!matches!(error, StartError::NotWhole { .. }));
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
        // One iteration: everything in the corner changes, in a way that depends on the past.
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
            let report = ck.save(k, a, &state);
            assert_eq!(report.boundary, k);
        }
    }
    let bits = (0..rows).flat_map(|i| a[i * ld..][..cols].iter().map(|x| x.to_bits())).collect();
    assert!(ck.record(b"result"));
    drop(started.a);
    started.checkpointer.finish();
    End::Done(bits, from)
}

/// Runs all ranks; faults are those of `strikes`, at most one a position.
fn launch(job: &Job, strikes: &[(usize, Point, u64)]) -> Vec<End> {
    let positions = job.layout.positions();
    let (all, groups) = (Arc::new(Post::default()), Arc::new(Post::default()));
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..positions)
            .map(|me| {
                let (all, groups) = (all.clone(), groups.clone());
                let mine: Vec<Fault> = strikes
                    .iter()
                    .filter(|s| s.0 == me)
                    .map(|s| Fault::new(s.1, Some(me), s.2, Action::Unwind))
                    .collect();
                scope.spawn(move || {
                    faults::arm_thread(mine);
                    let world = ThreadWorld::new(all.clone(), me, positions);
                    let end = catch_unwind(AssertUnwindSafe(|| {
                        rank_main(job, me, world, groups.clone())
                    }));
                    end.unwrap_or_else(|payload| {
                        all.kill();
                        groups.kill();
                        match payload.downcast::<Struck>() {
                            Ok(struck) => End::Struck(struck.0),
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

fn struck(ends: &[End], point: Point) -> bool {
    ends.iter().any(|e| matches!(e, End::Struck(p) if *p == point))
}

fn lose(job: &Job, position: usize) {
    job.depot.unlink_position(position as u32);
}

/// Points of a run that is not recovering.
fn forward() -> Vec<Point> {
    Point::ALL
        .iter()
        .copied()
        .filter(|p| !backward().contains(p))
        .filter(|p| !matches!(p, Point::SolveBegin | Point::VerifyBegin))
        // After CleanBegin the result is recorded and there is nothing to come back to.
        .filter(|p| !matches!(p, Point::CleanBegin | Point::CleanHalf))
        .collect()
}

/// Points of a recovery.
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
    fresh.depot = Depot::new(base.depot.store(), &unique()).unwrap();
    act(&fresh)
}

/// Every crash point, position and fate of memory; each hit of the point up to `hits`.
fn every_point_is_survived(base: &Job, hits: u64) {
    let truth = finished(with_job(base, |job| launch(job, &[])));
    let double_or_self_only = |p: &Point| {
        base.scheme.method == Method::SelfCheckpoint
            || !matches!(p, Point::FlushHalf | Point::FlushData)
    };
    for point in forward().into_iter().filter(double_or_self_only) {
        for position in 0..base.layout.positions() {
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
                        assert!(struck(&ends, point), "{} did not fire", point.name());
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

/// A loss at a point that leaves seals to finish or withdraw, then a second fault in the recovery.
fn every_second_fault_is_survived(base: &Job, second_loses: bool) {
    let truth = finished(with_job(base, |job| launch(job, &[])));
    for first in [Point::Iteration, Point::EncodeEnd, Point::FlushHalf, Point::Committed] {
        for point in backward() {
            for position in 0..base.layout.positions() {
                with_job(base, |job| {
                    let victim = 1;
                    assert!(struck(&launch(job, &[(victim, first, 3)]), first));
                    lose(job, victim);
                    let ends = launch(job, &[(position, point, 1)]);
                    if !struck(&ends, point) {
                        // Not every rank comes to every point: not all rebuild or finish.
                        assert_eq!(finished(ends), truth);
                        return;
                    }
                    // The victim's memory is vacant until rebuilt; a second member of its group can be
                    // lost as well only where the group survives two.
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
    base.encode = Encode::Reduce;
    every_point_is_survived(&base, 1);
}

#[test]
fn double_checkpoint_survives_every_point() {
    every_point_is_survived(&job(2, 2, Method::Double, 1), 3);
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
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    for first in 0..6 {
        for second in 0..first {
            with_job(&base, |job| {
                launch(job, &[(first, Point::FlushHalf, 2)]);
                lose(job, first);
                lose(job, second);
                assert_eq!(finished(launch(job, &[])), truth);
            });
        }
    }
}

#[test]
fn every_scope_and_method_restores_the_same_bits() {
    for method in [Method::SelfCheckpoint, Method::Double, Method::Single] {
        for scope in Scope::ALL {
            for store in [Store::Posix, Store::SysV] {
                let mut base = job(2, 2, method, 1);
                base.scheme.scope = scope;
                base.depot = Depot::new(store, &unique()).unwrap();
                let truth = finished(with_job(&base, |job| launch(job, &[])));
                with_job(&base, |job| {
                    launch(job, &[(2, Point::Iteration, 7)]);
                    lose(job, 2);
                    let ends = launch(job, &[]);
                    assert!(matches!(ends[0], End::Done(_, Some(6))));
                    assert_eq!(finished(ends), truth);
                    assert!(job.depot.list().iter().all(|h| h.part == Part::Done));
                });
            }
        }
    }
}

#[test]
fn the_sum_restores_up_to_rounding() {
    let mut base = job(2, 2, Method::SelfCheckpoint, 1);
    base.scheme.code = Code::Sum;
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    with_job(&base, |job| {
        launch(job, &[(2, Point::Iteration, 7)]);
        lose(job, 2);
        for (got, want) in finished(launch(job, &[])).iter().zip(&truth) {
            for (x, y) in got.iter().zip(want) {
                let (x, y) = (f64::from_bits(*x), f64::from_bits(*y));
                assert!((x - y).abs() <= 1e-12 * y.abs().max(1e16), "{x} {y}");
            }
        }
    });
}

#[test]
fn method_single_refuses_what_it_cannot_survive() {
    let base = job(2, 2, Method::Single, 1);
    for point in [Point::FlushHalf, Point::EncodeEnd] {
        with_job(&base, |job| {
            assert!(struck(&launch(job, &[(1, point, 2)]), point));
            lose(job, 1);
            let text = refused(launch(job, &[]));
            assert!(text.contains("overwritten"), "{text}");
        });
    }
}

#[test]
fn one_more_than_tolerated_is_refused_and_memory_kept() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    with_job(&base, |job| {
        launch(job, &[(0, Point::Iteration, 5)]);
        lose(job, 0);
        lose(job, 3);
        let before = job.depot.list();
        let text = refused(launch(job, &[]));
        assert!(text.contains("positions [0, 3]") && text.contains("position 3 on n3"), "{text}");
        let after = job.depot.list();
        assert!(before.iter().all(|h| after.contains(h)), "memory was not kept");
        let typed = Refusal::TooManyLost { group: 0, size: 4, losses: 1, lost: vec![0, 3] };
        assert!(text.contains(&typed.to_string()));
    });
    // One in each of two groups is fine.
    let mut pairs = base.clone();
    pairs.depot = Depot::new(Store::Posix, &unique()).unwrap();
    pairs.group = Some(2);
    let truth = finished(with_job(&pairs, |job| launch(job, &[])));
    with_job(&pairs, |job| {
        launch(job, &[(0, Point::FlushHalf, 2)]);
        lose(job, 0);
        lose(job, 3);
        assert_eq!(finished(launch(job, &[])), truth);
    });
}

#[test]
fn a_flipped_bit_anywhere_counts_as_lost() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    for (point, parts) in [
        (Point::Iteration, [Part::B, Part::C, Part::S, Part::Head]),
        (Point::FlushHalf, [Part::A, Part::D, Part::S, Part::Head]),
    ] {
        for part in parts {
            for at in [0, 1, 2] {
                with_job(&base, |job| {
                    launch(job, &[(1, point, 5)]);
                    let size = job.depot.peek(2, part).unwrap().len();
                    // A byte of the published slot, of either place for the state, of any data.
                    let offsets: Vec<usize> = match part {
                        Part::Head => vec![[0, 4096 + 40, 8192 + 40][at]],
                        Part::S => vec![40, size / 2 + 40],
                        // Columns past the matrix are padding and belong to nobody.
                        _ => vec![[8, size / 3 / 8 * 8, size - 40][at]],
                    };
                    for offset in offsets {
                        assert!(job.depot.flip(2, part, offset));
                    }
                    let ends = launch(job, &[]);
                    assert!(finished(ends) == truth, "{part:?} {at}");
                });
            }
        }
    }
    // The same damage in two members is one too many.
    with_job(&base, |job| {
        launch(job, &[(1, Point::Iteration, 5)]);
        for position in [2, 3] {
            assert!(job.depot.flip(position, Part::B, 8));
        }
        refused(launch(job, &[]));
    });
}

#[test]
fn memory_of_the_wrong_size_counts_as_lost() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    with_job(&base, |job| {
        launch(job, &[(1, Point::Iteration, 5)]);
        job.depot.unlink(2, Part::B);
        drop(job.depot.create(2, Part::B, 64).unwrap());
        assert_eq!(finished(launch(job, &[])), truth);
    });
}

#[test]
fn an_older_copy_of_a_position_is_not_used() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    let truth = finished(with_job(&base, |job| launch(job, &[])));
    with_job(&base, |job| {
        // Position 2 dies with a copy that comes back after the others went on without it.
        launch(job, &[(2, Point::Iteration, 3)]);
        let stash: Vec<(Part, Vec<u8>)> = Part::ALL
            .into_iter()
            .filter_map(|part| Some((part, job.depot.peek(2, part).ok()?.bytes().to_vec())))
            .collect();
        lose(job, 2);
        launch(job, &[(0, Point::Iteration, 4)]);
        lose(job, 2);
        for (part, bytes) in stash {
            job.depot.create(2, part, bytes.len()).unwrap().bytes_mut().copy_from_slice(&bytes);
        }
        assert_eq!(finished(launch(job, &[])), truth);
    });
}

#[test]
fn another_problem_under_the_same_name_is_refused_and_never_begins_anew() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    with_job(&base, |job| {
        launch(job, &[(1, Point::Iteration, 5)]);
        let mut other = job.clone();
        other.layout.n = 41;
        let text = refused(launch(&other, &[]));
        assert!(text.contains("N = 37") && text.contains("--job"), "{text}");
        other.restart = Restart::Never;
        let fresh = finished(launch(&other, &[]));
        assert_eq!(fresh.len(), 4);
        std::mem::forget(other);
    });
    with_job(&base, |job| {
        let mut strict = job.clone();
        strict.restart = Restart::Require;
        assert!(refused(launch(&strict, &[])).contains("--restart require"));
        std::mem::forget(strict);
    });
}

#[test]
fn the_next_test_is_not_confused_by_what_the_last_one_left() {
    let base = job(2, 2, Method::SelfCheckpoint, 1);
    with_job(&base, |job| {
        // The first test dies while it cleans up; the second begins.
        assert!(struck(&launch(job, &[(1, Point::CleanHalf, 1)]), Point::CleanHalf));
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
                launch(job, &[(3, Point::FlushHalf, 2)]);
                lose(job, 3);
                assert_eq!(&finished(launch(job, &[])), truth);
            });
        }
    });
}
