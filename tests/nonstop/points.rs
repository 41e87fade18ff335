//! Every crash point, injected once or during the recovery from another loss.

use skt_hpl::base::faults::Point;

use crate::extent::{self, whole};
use crate::job::Ran;
use crate::scene::{LONGER, Scene};

/// Number of recoveries in place of the only test.
pub fn in_place(ran: &Ran) -> u32 {
    let run = ran.json();
    run.tests[0].outcome.as_ref().unwrap().protection.unwrap().in_place
}

/// Whether other tests inject the point. Points of a second level and of the solver are in `level2` and `checksums`. Points of a
/// beginning with memory of other runs are in `crash`, and those of a job's start in `starting`.
fn elsewhere(point: &Point) -> bool {
    point.is_solvers()
        || point.is_of_ground()
        || point.is_of_start()
        || point.is_helpers()
        || Point::between(Point::StreamBegin, Point::Pruned).contains(point)
        || Point::between(Point::FetchBegin, Point::Tidied).contains(point)
}

/// Returns the steps of a recovery after a loss, in order.
fn recovery() -> Vec<Point> {
    let all = Point::between(Point::AgreeBegin, Point::Resumed).iter().copied();
    all.filter(|p| !elsewhere(p)).collect()
}

/// Whether the point belongs to a flush that is to be finished.
fn finishing(point: &Point) -> bool {
    matches!(point, Point::FinishHalf | Point::FinishEnd)
}

/// Position 0 reports the verdict, position 3 does not: the points alternate between them, memory kept and lost.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_loss_at_any_point_is_recovered_in_place() {
    for (turn, &point) in
        Point::ALL.iter().filter(|p| !recovery().contains(p) && !elsewhere(p)).enumerate()
    {
        // At the beginning, or during the work.
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
    // The result of the test is recorded already.
    let over = [Point::CleanBegin, Point::CleanHalf, Point::Verdict, Point::Told];
    let over = over.contains(&point);
    assert_eq!(in_place(&ran), u32::from(!over), "{fault}: {}", ran.told());
    assert!(ran.err.contains("is lost: noticed at"), "{fault}: {}", ran.told());
    assert_eq!(ran.out.matches("PASSED").count(), 1, "told once: {}", ran.told());
}

/// The rank that took the lost one's place is lost in turn, at each step of that.
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

/// Depths, broadcasts, threads, methods and grids: the operations in progress at the fault differ.
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

/// Left to `scripts/test.sh --all`: the simulation shows these losses, or a test above shows the same of another one.
mod rest {
    use super::*;

    /// With many process columns ranks ask seldom whether to save, and a new rank asks when the others do.
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

    /// Another rank is lost while it helps to rebuild the first. Its memory is there, so one loss stays one loss.
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
