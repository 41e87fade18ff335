//! Tests of every crash point at every position, with the position's memory kept and lost.
//!
//! By default, faults come in chains, one chain for each position: each start fails at a later point, with memory kept and lost
//! in turn, and the last start ends well. With `SKT_TEST_WHOLE=1`, each case has a run of its own. Only the failed position loses
//! its memory, so every chain stays within the tolerated losses.

use skt_hpl::base::faults::Point;

use crate::extent::{self, whole};
use crate::scene::Scene;

/// Returns the crash points of level two. `level2` tests them; runs without level two never reach them.
pub fn of_level2() -> Vec<Point> {
    let to = Point::between(Point::StreamBegin, Point::Pruned);
    let back = Point::between(Point::FetchBegin, Point::Tidied);
    [to, back].concat()
}

/// Returns the crash points that a run without faults reaches, in order.
fn forward() -> Vec<Point> {
    Point::ALL
        .iter()
        .copied()
        .filter(|p| !backward().contains(p) && !finishing().contains(p))
        .filter(|p| !of_level2().contains(p) && !p.is_solvers() && !p.is_helpers())
        .filter(|p| !p.is_of_ground() && !p.is_of_start())
        .filter(|p| !matches!(p, Point::CleanHalf | Point::Verdict))
        .collect()
}

/// Returns the crash points of a recovery in which no position has to finish a flush, the copy of the matrix to the checkpoint.
fn backward() -> Vec<Point> {
    let all = Point::between(Point::AgreeBegin, Point::Resumed).iter().copied();
    all.filter(|p| !finishing().contains(p) && !of_level2().contains(p)).collect()
}

/// Returns the crash points that a position reaches only if it finishes its flush during a recovery.
fn finishing() -> [Point; 2] {
    [Point::FinishHalf, Point::FinishEnd]
}

/// Returns true if only a rank that lost its memory reaches the point.
fn of_the_lost(point: Point) -> bool {
    matches!(point, Point::RebuildEnd | Point::Rebuilt)
}

/// Returns true if only ranks of a group that lost a member reach the point.
fn of_a_rebuild(point: Point) -> bool {
    of_the_lost(point) || matches!(point, Point::RebuildBegin | Point::RebuildBatch)
}

#[test]
fn every_point_is_on_one_list() {
    let mut all = forward();
    all.extend(backward());
    all.extend(finishing());
    all.extend(of_level2());
    // A save does not reach the points of the solver.
    all.extend(Point::ALL.iter().copied().filter(|p| p.is_solvers()));
    // `jobs` and `level2` test the points of removing other runs' files.
    all.extend(Point::ALL.iter().copied().filter(|p| p.is_of_ground()));
    // `nonstop` tests the points of the start.
    all.extend(Point::ALL.iter().copied().filter(|p| p.is_of_start()));
    // `aside` tests the points of helpers.
    all.extend(Point::ALL.iter().copied().filter(|p| p.is_helpers()));
    all.extend([Point::CleanHalf, Point::Verdict]);
    assert_eq!(all.len(), Point::ALL.len());
}

/// Injects faults one after the other: point, position, hit, and true if the position's memory is lost after the fault. A last
/// start must end well.
fn chain(p: usize, q: usize, faults: &[(Point, usize, u64, bool)]) {
    let scene = Scene::new(p, q);
    let mut history = String::new();
    for &(point, position, hit, lost) in faults {
        let fault = format!("{}:{position}:{hit}:kill", point.name());
        history += &format!("{fault}{} ", if lost { " lost" } else { "" });
        scene.inject(&fault);
        if lost {
            scene.lose(position);
        }
    }
    // If the test fails, this line shows the whole chain.
    println!("{p} x {q}: {history}");
    scene.finish();
}

/// Returns the points of a list that are tested at `position`, with their indices in the list. The positions share the points of
/// the list; the seed changes which position takes which points.
fn dealt(
    points: Vec<Point>,
    position: usize,
    ranks: usize,
) -> impl Iterator<Item = (usize, Point)> {
    let first = (position + extent::seed() as usize) % ranks;
    points.into_iter().enumerate().skip(first).step_by(ranks)
}

fn forward_points(p: usize, q: usize) {
    let ranks = p * q;
    for position in 0..ranks {
        let hit = |point: Point| match point {
            // A test generates and solves once.
            Point::GenerateBegin | Point::GenerateEnd => 1,
            Point::SolveBegin | Point::VerifyBegin | Point::CleanBegin | Point::CleanHalf => 1,
            Point::Verdict | Point::Told => 1,
            // Other points: the first save of a start, or the second.
            _ => 1 + position as u64 % 2,
        };
        // After a fault at either point the result is recorded, so no later start reaches the other point.
        let last = [Point::CleanHalf, Point::Verdict];
        if whole() {
            for point in forward().into_iter().chain(last) {
                for lost in [false, true] {
                    chain(p, q, &[(point, position, hit(point), lost)]);
                }
            }
            continue;
        }
        let faults: Vec<_> = dealt(forward(), position, ranks)
            .map(|(i, point)| (point, position, hit(point), (i / ranks + position) % 2 == 1))
            .collect();
        chain(p, q, &faults);
        for (_, point) in dealt(last.to_vec(), position, ranks) {
            chain(p, q, &[(point, position, 1, position % 2 == 1)]);
        }
    }
}

fn recovery_points(p: usize, q: usize) {
    let ranks = p * q;
    for position in 0..ranks {
        // For steps of a rebuild that every member of the group takes, another position is lost.
        let other = (position + 1) % ranks;
        let first = |lost| (Point::FlushData, position, 3, lost);
        let half = (Point::FlushHalf, position, 3, false);
        if whole() {
            for point in backward() {
                for lost in [false, true] {
                    let begin = match of_a_rebuild(point) {
                        false => first(false),
                        true if lost || of_the_lost(point) => first(true),
                        true => (Point::FlushData, other, 3, true),
                    };
                    chain(p, q, &[begin, (point, position, 1, lost)]);
                }
            }
            for point in finishing() {
                for lost in [false, true] {
                    chain(p, q, &[half, (point, position, 1, lost)]);
                }
            }
            continue;
        }
        // Chain in which the failed rank keeps its memory.
        let kept = backward().into_iter().filter(|point| !of_a_rebuild(*point));
        let mut faults = vec![half];
        let points = finishing().into_iter().chain(kept).collect();
        faults.extend(dealt(points, position, ranks).map(|(_, point)| (point, position, 1, false)));
        chain(p, q, &faults);
        // Chain in which memory is lost at the beginning, and again at every second fault. After a complete recovery, only a new
        // loss gives the next recovery something to rebuild.
        let mut faults = vec![half, (Point::FinishHalf, position, 1, true)];
        for (i, point) in dealt(backward(), position, ranks) {
            let lost = (i / ranks) % 2 == 1 || point == Point::Rebuilt;
            faults.push((point, position, 1, lost));
        }
        chain(p, q, &faults);
    }
}

#[test]
fn a_run_survives_a_fault_at_every_point() {
    forward_points(2, 2);
}

/// A rank that dies while it helps to rebuild another member keeps its memory. The group still has only one loss, so the run
/// survives.
#[test]
fn a_member_that_helps_in_a_rebuild_may_die_in_it() {
    for (point, helper) in [(Point::RebuildBegin, 3), (Point::RebuildBatch, 0)] {
        chain(2, 2, &[(Point::FlushData, 1, 3, true), (point, helper, 1, false)]);
    }
}

#[test]
fn on_six_positions_too() {
    if whole() {
        forward_points(2, 3);
        recovery_points(2, 3);
        return;
    }
    let faults = [
        (Point::EncodeBatch, 5, 3, true),
        (Point::Sealed, 4, 2, true),
        (Point::FinishEnd, 4, 1, false),
        (Point::FlushHalf, 3, 1, true),
        (Point::RebuildEnd, 3, 1, true),
        (Point::AgreedAgain, 3, 1, false),
    ];
    // A restart finishes a flush only if all ranks had sealed, which depends on timing. So this chain has no `FinishEnd`.
    let faults: Vec<_> = faults.into_iter().filter(|s| s.0 != Point::FinishEnd).collect();
    chain(2, 3, &faults);
}

/// The second start resumes from the first start's save and dies before its own first save. The report counts it as an attempt.
#[test]
fn starts_that_die_before_they_save_are_counted() {
    let scene = Scene::new(2, 2);
    scene.inject("flush-data:1:3:kill");
    scene.inject("resumed:1:1:kill");
    let run = scene.finish().json();
    let protection = run.tests[0].outcome.as_ref().unwrap().protection.unwrap();
    assert_eq!((protection.attempts, protection.in_place), (3, 0));
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    #[test]
    fn a_recovery_survives_a_fault_at_every_point() {
        recovery_points(2, 2);
    }
}
