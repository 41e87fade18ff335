//! Tests of every crash point: a fault during the computation, or during the recovery from another loss.

use skt_hpl::base::faults::Point;

use crate::extent::{self, whole};
use crate::job::Ran;
use crate::scene::{LONGER, Scene};

/// Returns the number of recoveries in place in the first test of the run.
pub fn in_place(ran: &Ran) -> u32 {
    let run = ran.json();
    run.tests[0].outcome.as_ref().unwrap().protection.unwrap().in_place
}

/// Returns true if another file tests the point: `level2` (storage), `checksums` (the solver), `crash` (helpers, and memory of
/// other runs at a start), or `starting` (the start of a job).
fn elsewhere(point: &Point) -> bool {
    point.is_solvers()
        || point.is_of_ground()
        || point.is_of_start()
        || point.is_helpers()
        || Point::between(Point::StreamBegin, Point::Pruned).contains(point)
        || Point::between(Point::FetchBegin, Point::Tidied).contains(point)
}

/// Returns the crash points of a recovery in place, in order.
fn recovery() -> Vec<Point> {
    let all = Point::between(Point::AgreeBegin, Point::Resumed).iter().copied();
    all.filter(|p| !elsewhere(p)).collect()
}

/// Returns true if a position reaches the point only when it finishes a flush (the copy of the matrix to the checkpoint) in a
/// recovery.
fn finishing(point: &Point) -> bool {
    matches!(point, Point::FinishHalf | Point::FinishEnd)
}

/// A loss at each crash point is recovered in place. Position 0, which reports the verdict, and position 3 are lost in turn, with
/// memory kept and lost in turn.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_loss_at_any_point_is_recovered_in_place() {
    for (turn, &point) in
        Point::ALL.iter().filter(|p| !recovery().contains(p) && !elsewhere(p)).enumerate()
    {
        // The first time for points that a test reaches only once or at its beginning, otherwise the second time.
        let hit = match point {
            Point::PartNamed | Point::GenerateBegin | Point::GenerateEnd | Point::SolveBegin => 1,
            Point::VerifyBegin | Point::CleanBegin | Point::CleanHalf => 1,
            Point::Verdict | Point::Told => 1,
            _ => 2,
        };
        let turn = turn + extent::seed() as usize;
        let positions: &[usize] = if whole() { &[0, 3] } else { &[[0, 3][turn % 2]] };
        for &position in positions {
            let action = if (turn / 2 + position).is_multiple_of(2) { "kill" } else { "lose" };
            inject_at(point, position, hit, action);
        }
    }
}

fn inject_at(point: Point, position: usize, hit: u64, action: &str) {
    let fault = format!("1@{}:{position}:{hit}:{action}", point.name());
    println!("{fault}");
    let ran = Scene::new(2, 2).nonstop(1).survive(&fault);
    // The result of the test is already recorded, so no recovery is needed.
    let over = [Point::CleanBegin, Point::CleanHalf, Point::Verdict, Point::Told];
    let over = over.contains(&point);
    assert_eq!(in_place(&ran), u32::from(!over), "{fault}: {}", ran.told());
    assert!(ran.err.contains("is lost: noticed at"), "{fault}: {}", ran.told());
    assert_eq!(ran.out.matches("PASSED").count(), 1, "told once: {}", ran.told());
}

/// At each step of a recovery, the replacement rank is lost too. The recovery starts again with another spare rank.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_second_loss_amid_going_on_starts_it_again() {
    for (turn, point) in recovery().into_iter().enumerate() {
        let position = [1, 2][turn % 2];
        let action = if (turn / 2).is_multiple_of(2) { "kill" } else { "lose" };
        let (first, action) = match finishing(&point) {
            true => (format!("1@flush-half:{position}:3:kill"), "kill"),
            false => (format!("1@flush-data:{position}:3:lose"), action),
        };
        let faults = format!("{first},2@{}:{position}:1:{action}", point.name());
        println!("{faults}");
        let ran = Scene::new(2, 2).nonstop(2).survive(&faults);
        assert_eq!(in_place(&ran), 2, "{faults}: {}", ran.told());
    }
}

/// A loss is recovered with different depths, broadcasts, row exchanges, methods and grids, so that different operations are in
/// progress at the fault.
#[test]
#[ignore = "needs Open MPI 5"]
fn any_step_of_the_solver() {
    let choices: &[&[&str]] = &[
        &["--depth", "0", "--bcast", "1ring"],
        &["--depth", "2", "--bcast", "2ringM", "--swap", "long", "--split-update", "always"],
        &["--depth", "3", "--bcast", "blong", "--pfact", "left"],
        &["--depth", "1", "--bcast", "blongM", "--pmap", "column", "--split-update", "always"],
    ];
    for (turn, choice) in choices.iter().enumerate() {
        let grids = [(2, 3), (1, 4), (4, 1)];
        let dealt = [grids[(turn + extent::seed() as usize) % grids.len()]];
        for &(p, q) in if whole() { &grids[..] } else { &dealt } {
            let hit = 5 + turn * 4;
            let scene = Scene::new(p, q).solver(choice).nonstop(1);
            let scene = match turn % 2 {
                0 => scene,
                _ => scene.protect(&["--method", "double", "--encode", "reduce"]),
            };
            let fault = format!("1@iteration:{}:{hit}:lose", turn % 4);
            println!("{choice:?} {p} x {q} {fault}");
            assert_eq!(in_place(&scene.survive(&fault)), 1);
        }
    }
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// With many process columns, ranks agree less often on whether to save. A replacement rank agrees at the same iterations as
    /// the others.
    #[test]
    #[ignore = "needs Open MPI 5"]
    fn many_columns_that_ask_seldom() {
        for (faults, losses) in [
            ("1@iteration:7:67:lose", 1),
            ("1@iteration:0:33:kill", 1),
            ("1@iteration:9:50:kill,2@iteration:4:14:lose", 2),
            ("1@committed:5:2:kill,2@agreed:2:1:lose", 2),
        ] {
            println!("{faults}");
            let scene = Scene::of(1, 10, LONGER).protect(&["--checkpoint", "20"]).nonstop(losses);
            let ran = scene.survive(faults);
            assert_eq!(in_place(&ran), losses as u32, "{faults}: {}", ran.told());
        }
    }

    /// A second rank is lost while it helps to rebuild the first. Its memory is kept, so the group still has only one loss to
    /// rebuild.
    #[test]
    #[ignore = "needs Open MPI 5"]
    fn a_rank_that_helps_to_continue_may_be_lost_in_it() {
        for (turn, point) in recovery().into_iter().filter(|p| !finishing(p)).enumerate() {
            let skipped = !whole() && !(turn + extent::seed() as usize).is_multiple_of(3);
            if matches!(point, Point::RebuildEnd | Point::Rebuilt) || skipped {
                continue;
            }
            let helper = [0, 3][turn % 2];
            let faults = format!("1@flush-data:1:3:lose,2@{}:{helper}:1:kill", point.name());
            println!("{faults}");
            let ran = Scene::new(2, 2).nonstop(2).survive(&faults);
            assert_eq!(in_place(&ran), 2, "{faults}: {}", ran.told());
        }
    }
}
