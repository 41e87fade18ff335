//! Every crash point at every position, with the position's memory kept and lost.
//!
//! The default run injects each point once, in chains, one for each position: a start fails at one point, the next at a later
//! one, memory kept and lost in turn, until the last is left alone. `SKT_TEST_WHOLE=1` gives every case a run of its own. A
//! position is only ever lost together with itself, so every chain is within the limit.

use skt_hpl::base::faults::Point;

use crate::extent::{self, whole};
use crate::scene::Scene;

/// Returns points of the second level, which these runs do not have; `level2` tests them.
pub fn of_level2() -> Vec<Point> {
    let to = Point::between(Point::StreamBegin, Point::Pruned);
    let back = Point::between(Point::FetchBegin, Point::Tidied);
    [to, back].concat()
}

/// Returns the points that an undisturbed run reaches, in order: the head of the chain.
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

/// Returns the points of a recovery that has nothing to finish.
fn backward() -> Vec<Point> {
    let all = Point::between(Point::AgreeBegin, Point::Resumed).iter().copied();
    all.filter(|p| !finishing().contains(p) && !of_level2().contains(p)).collect()
}

/// Returns the points of a recovery that finishes a flush.
fn finishing() -> [Point; 2] {
    [Point::FinishHalf, Point::FinishEnd]
}

/// Whether only a rank that lost its memory reaches the point.
fn of_the_lost(point: Point) -> bool {
    matches!(point, Point::RebuildEnd | Point::Rebuilt)
}

/// Whether only a rank whose group lost a member reaches the point.
fn of_a_rebuild(point: Point) -> bool {
    of_the_lost(point) || matches!(point, Point::RebuildBegin | Point::RebuildBatch)
}

#[test]
fn every_point_is_on_one_list() {
    let mut all = forward();
    all.extend(backward());
    all.extend(finishing());
    all.extend(of_level2());
    // A save does not reach them.
    all.extend(Point::ALL.iter().copied().filter(|p| p.is_solvers()));
    // `jobs` and `level2` have them.
    all.extend(Point::ALL.iter().copied().filter(|p| p.is_of_ground()));
    // `nonstop` has them.
    all.extend(Point::ALL.iter().copied().filter(|p| p.is_of_start()));
    // `aside` has them.
    all.extend(Point::ALL.iter().copied().filter(|p| p.is_helpers()));
    all.extend([Point::CleanHalf, Point::Verdict]);
    assert_eq!(all.len(), Point::ALL.len());
}

/// Injects faults one after the other, each followed by the loss of its position's memory if `lost` is set. A last start must end
/// well.
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
    // The test's output is shown if it fails: the whole chain.
    println!("{p} x {q}: {history}");
    scene.finish();
}

/// Selects the points of a list for a position, each with its place in the list. The positions share the list, and each seed
/// begins at another one.
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
            // Generated once, solved once.
            Point::GenerateBegin | Point::GenerateEnd => 1,
            Point::SolveBegin | Point::VerifyBegin | Point::CleanBegin | Point::CleanHalf => 1,
            Point::Verdict | Point::Told => 1,
            // The first save of a start, or a later one.
            _ => 1 + position as u64 % 2,
        };
        // After either of these a result is recorded, and no start reaches the other.
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
        // Another position's loss, for the steps of a rebuild that every member of the group takes.
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
        // The failed rank keeps its memory.
        let kept = backward().into_iter().filter(|point| !of_a_rebuild(*point));
        let mut faults = vec![half];
        let points = finishing().into_iter().chain(kept).collect();
        faults.extend(dealt(points, position, ranks).map(|(_, point)| (point, position, 1, false)));
        chain(p, q, &faults);
        // The memory is lost to begin with, and again at every second fault. Once a recovery is complete, the next needs a loss
        // of its own to have something to rebuild.
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

/// A rank that rebuilds for another survives its own death meanwhile: the memory is kept, so one loss stays one loss.
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
    // The effect of a seal before the barrier depends on the other ranks that had sealed: no finish there.
    let faults: Vec<_> = faults.into_iter().filter(|s| s.0 != Point::FinishEnd).collect();
    chain(2, 3, &faults);
}

/// The second start resumes from the first one's save, and dies before it saves anything itself: it counts as a start.
#[test]
fn starts_that_die_before_they_save_are_counted() {
    let scene = Scene::new(2, 2);
    scene.inject("flush-data:1:3:kill");
    scene.inject("resumed:1:1:kill");
    let run = scene.finish().json();
    let protection = run.tests[0].outcome.as_ref().unwrap().protection.unwrap();
    assert_eq!((protection.attempts, protection.in_place), (3, 0));
}

/// Left to `scripts/test.sh --all`: the simulation shows these losses, or a test above shows the same of another one.
mod rest {
    use super::*;

    #[test]
    fn a_recovery_survives_a_fault_at_every_point() {
        recovery_points(2, 2);
    }
}
