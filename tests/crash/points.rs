//! Every crash point at every position, with the position's memory kept and lost.
//!
//! The default run strikes in chains: a start is struck at one point, the next at the following one,
//! memory kept and lost in turn, until the last is left alone. `SKT_TEST_WHOLE=1` gives every case a run of
//! its own. A position is only ever lost together with itself, so every chain is within the limit.

use skt_hpl::faults::Point;

use crate::scene::{Scene, sampled, whole};

/// Points of the second level, which these runs do not have; `level2` strikes there.
pub fn of_level2() -> Vec<Point> {
    let to = Point::between(Point::StreamBegin, Point::Pruned);
    let back = Point::between(Point::FetchBegin, Point::Tidied);
    [to, back].concat()
}

/// Points a run comes to that nothing has disturbed, in order. The head of the chain.
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

/// Points of a recovery that has nothing to finish.
fn backward() -> Vec<Point> {
    let all = Point::between(Point::AgreeBegin, Point::Resumed).iter().copied();
    all.filter(|p| !finishing().contains(p) && !of_level2().contains(p)).collect()
}

/// Points of a recovery that finishes a flush.
fn finishing() -> [Point; 2] {
    [Point::FinishHalf, Point::FinishEnd]
}

/// Only somebody who lost its memory comes there.
fn of_the_lost(point: Point) -> bool {
    matches!(point, Point::RebuildEnd | Point::Rebuilt)
}

/// Only somebody whose group lost a member comes there.
fn of_a_rebuild(point: Point) -> bool {
    of_the_lost(point) || matches!(point, Point::RebuildBegin | Point::RebuildBatch)
}

#[test]
fn every_point_is_on_one_list() {
    let mut all = forward();
    all.extend(backward());
    all.extend(finishing());
    all.extend(of_level2());
    // A save knows nothing of them.
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

/// Strikes one after the other, each followed by the loss of its position's memory where that is
/// said, and a last start that must end well.
fn chain(p: usize, q: usize, strikes: &[(Point, usize, u64, bool)]) {
    let scene = Scene::new(p, q);
    let mut story = String::new();
    for &(point, position, hit, lost) in strikes {
        let fault = format!("{}:{position}:{hit}:kill", point.name());
        story += &format!("{fault}{} ", if lost { " lost" } else { "" });
        scene.strike(&fault);
        if lost {
            scene.lose(position);
        }
    }
    // The test's output is shown where it fails: the whole way there.
    println!("{p} x {q}: {story}");
    scene.finish();
}

fn positions(ranks: usize) -> Vec<usize> {
    if sampled() { vec![1] } else { (0..ranks).collect() }
}

fn forward_points(p: usize, q: usize) {
    for position in positions(p * q) {
        let hit = |point: Point| match point {
            // Generated once, solved once.
            Point::GenerateBegin | Point::GenerateEnd => 1,
            Point::SolveBegin | Point::VerifyBegin | Point::CleanBegin | Point::CleanHalf => 1,
            Point::Verdict | Point::Told => 1,
            // The first save of a start, or a later one.
            _ => 1 + position as u64 % 2,
        };
        if whole() {
            for point in forward().into_iter().chain([Point::CleanHalf, Point::Verdict]) {
                for lost in [false, true] {
                    chain(p, q, &[(point, position, hit(point), lost)]);
                }
            }
            continue;
        }
        let turn =
            |(i, point): (usize, Point)| (point, position, hit(point), (i + position) % 2 == 1);
        let strikes: Vec<_> = forward().into_iter().enumerate().map(turn).collect();
        chain(p, q, &strikes);
        // Either leaves a result, after which no start comes to the other.
        for point in [Point::CleanHalf, Point::Verdict] {
            chain(p, q, &[(point, position, 1, position % 2 == 1)]);
        }
    }
}

fn recovery_points(p: usize, q: usize) {
    for position in positions(p * q) {
        // Somebody else's loss, for what everybody does in a rebuild.
        let other = (position + 1) % (p * q);
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
        // With the memory there: who dies keeps it.
        let kept = backward().into_iter().filter(|point| !of_a_rebuild(*point));
        let mut strikes = vec![half];
        strikes.extend(finishing().map(|point| (point, position, 1, false)));
        strikes.extend(kept.map(|point| (point, position, 1, false)));
        chain(p, q, &strikes);
        // Lost to begin with, and lost again at every second strike. Once a recovery is complete, the
        // next needs a loss of its own to have something to rebuild.
        let mut strikes = vec![half, (Point::FinishHalf, position, 1, true)];
        for (i, point) in backward().into_iter().enumerate() {
            strikes.push((point, position, 1, i % 2 == 1 || point == Point::Rebuilt));
        }
        chain(p, q, &strikes);
    }
}

#[test]
fn a_run_survives_a_strike_at_every_point() {
    forward_points(2, 2);
}

#[test]
fn a_recovery_survives_a_strike_at_every_point() {
    recovery_points(2, 2);
}

/// Who rebuilds for another survives its own death in the middle: the memory is kept, so one loss
/// stays one loss.
#[test]
fn who_helps_in_a_rebuild_may_die_in_it() {
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
    let strikes = [
        (Point::EncodeBatch, 5, 3, true),
        (Point::Sealed, 4, 2, true),
        (Point::FinishEnd, 4, 1, false),
        (Point::FlushHalf, 3, 1, true),
        (Point::RebuildEnd, 3, 1, true),
        (Point::AgreedAgain, 3, 1, false),
    ];
    // What a seal before the barrier leads to depends on who else had sealed: no finish there.
    let strikes: Vec<_> = strikes.into_iter().filter(|s| s.0 != Point::FinishEnd).collect();
    chain(2, 3, &strikes);
}

/// The second start goes on from what the first has saved, and dies before it saves anything itself: it was a start all the same.
#[test]
fn starts_that_die_before_they_save_are_counted() {
    let scene = Scene::new(2, 2);
    scene.strike("flush-data:1:3:kill");
    scene.strike("resumed:1:1:kill");
    let run = scene.finish().json();
    let protection = run.tests[0].outcome.as_ref().unwrap().protection.unwrap();
    assert_eq!((protection.attempts, protection.in_place), (3, 0));
}
