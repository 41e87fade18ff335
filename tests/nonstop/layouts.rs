//! Tests of recovery in place with parity layouts other than `striped`. A replacement rank must receive the lost rank's part of
//! the parity too, since the next recovery needs it.

use crate::extent::whole;
use crate::job::Ran;
use crate::limits::at_once;
use crate::points::in_place;
use crate::scene::{Scene, rebuilt};

const LOCALISED: &[&str] = &["--parity-layout", "localised", "--losses", "2"];
const GRID: &[&str] = &["--parity-layout", "grid"];

/// Returns a run of six positions with `spares` spare ranks.
fn six(layout: &[&str], spares: usize) -> Scene {
    Scene::new(2, 3).nonstop(spares).protect(layout)
}

fn survives(scene: &Scene, faults: &str, times: u32) -> Ran {
    println!("{faults}");
    let ran = scene.survive(faults);
    assert_eq!(in_place(&ran), times, "{faults}: {}", ran.told());
    ran
}

/// The run continues after a loss at each step of a save and during the computation. Memory is kept or lost, with different
/// methods, encodings and scopes.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_loss_with_other_layouts_is_gone_on_from() {
    let points = [
        "generate-end",
        "save-begin",
        "encode-batch",
        "encode-end",
        "sealed",
        "barrier-passed",
        "flush-half",
        "flush-end",
        "committed",
        "iteration",
        "solve-begin",
    ];
    let ways: [&[&str]; 4] =
        [&[], &["--method", "double"], &["--encode", "reduce"], &["--scope", "whole"]];
    for (turn, point) in points.into_iter().enumerate() {
        for (which, layout) in [LOCALISED, GRID].into_iter().enumerate() {
            if !whole() && turn % 2 != which {
                continue;
            }
            let once = ["generate-end", "solve-begin"].contains(&point);
            let (hit, position) = (if once { 1 } else { 3 }, (turn + which) % 6);
            let scene = six(layout, 1).protect(ways[turn % 4]);
            let action = ["lose", "kill"][turn / 2 % 2];
            survives(&scene, &format!("1@{point}:{position}:{hit}:{action}"), 1);
        }
    }
}

/// Ranks of a group with layout `localised` are lost one after the other, until no spare rank is left. The last two helped to
/// rebuild the first. With layout `grid`, one rank is lost in each group.
#[test]
#[ignore = "needs Open MPI 5"]
fn losses_one_after_the_other_are_gone_on_from() {
    let faults = "1@flush-data:1:3:lose,2@iteration:4:6:lose,3@sealed:0:2:lose";
    survives(&six(LOCALISED, 3), faults, 3);
    let faults = "1@encode-end:0:4:lose,2@flush-half:5:2:lose,3@iteration:1:7:lose";
    survives(&six(GRID, 3), faults, 3);
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// A job survives the loss at once of all the ranks that its groups tolerate. One loss more can be recovered neither in place
    /// nor by a restart.
    #[test]
    #[ignore = "needs Open MPI 5"]
    fn as_many_at_once_as_groups_of_other_layouts_survive() {
        for (layout, lost) in [(LOCALISED, [1, 4]), (GRID, [2, 3])] {
            let scene = six(layout, 2);
            let ran = scene.expect_finished(at_once(&scene, &lost, "sealed", 3, true));
            assert!((1..=2).contains(&in_place(&ran)), "{layout:?}: {}", ran.told());
            assert!(rebuilt(&ran).is_some(), "{layout:?}: {}", ran.told());
        }
        for (layout, lost) in [(LOCALISED, &[0, 1, 5][..]), (GRID, &[4, 5])] {
            let scene = six(layout, 3);
            let ran = at_once(&scene, lost, "sealed", 3, true).expect_code(75);
            assert!(ran.err.contains("cannot be recovered in place"), "{layout:?}: {}", ran.told());
            let gone = lost.iter().map(|position| format!("position {position}"));
            let gone: Vec<String> = gone.collect();
            scene.expect_refused(4, &gone.iter().map(String::as_str).collect::<Vec<&str>>());
        }
    }

    /// During a recovery, the replacement rank is lost, or a rank that helps to rebuild. A group with layout `localised` survives
    /// two losses.
    #[test]
    #[ignore = "needs Open MPI 5"]
    fn a_second_loss_amid_going_on_with_other_layouts() {
        let cases: [(&[&str], &str, &str); 6] = [
            (LOCALISED, "rebuild-batch:4", "lose"),
            (GRID, "rebuild-batch:1", "lose"),
            (LOCALISED, "rebuilt:1", "lose"),
            (GRID, "settled:3", "lose"),
            (LOCALISED, "restore-half:2", "lose"),
            (GRID, "agreed-again:2", "kill"),
        ];
        for (layout, place, action) in cases {
            let faults = format!("1@flush-data:1:3:lose,2@{place}:1:{action}");
            survives(&six(layout, 2), &faults, 2);
        }
    }

    /// If no spare rank is left, the job ends. The same command resumes, with the parity at the positions of the layout.
    #[test]
    #[ignore = "needs Open MPI 5"]
    fn a_restart_after_going_on_with_other_layouts() {
        for layout in [LOCALISED, GRID] {
            let scene = six(layout, 1);
            let ran = scene.inject("1@iteration:3:4:lose,2@iteration:0:5:lose").expect_code(75);
            assert!(ran.err.contains("the grid needs 6"), "{layout:?}: {}", ran.told());
            assert_eq!(rebuilt(&scene.finish()), Some(vec![0]), "{layout:?}");
        }
    }
}
