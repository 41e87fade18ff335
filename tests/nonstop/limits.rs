//! Tests of the number of losses that recovery in place survives, and of the end of jobs with more losses.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use skt_hpl::report::json::Test;
use skt_hpl::shm::Store;

use crate::job::Ran;
use crate::points::in_place;
use crate::scene::Scene;

#[test]
#[ignore = "needs Open MPI 5"]
fn nobody_stands_by_so_the_job_ends_and_a_restart_goes_on() {
    let scene = Scene::new(2, 2).nonstop(0);
    let ran = scene.inject("iteration:2:9:lose").expect_code(75);
    assert!(ran.err.contains("3 ranks are left, and the grid needs 4"), "{}", ran.told());
    assert!(ran.err.contains("the same command resumes"), "{}", ran.told());
    let ran = scene.finish();
    assert!(ran.err.contains("resumes at boundary"), "{}", ran.told());
}

/// Each rank that takes the position fails too, until no spare rank is left.
#[test]
#[ignore = "needs Open MPI 5"]
fn each_replacement_is_lost_too_until_none_is_left() {
    let scene = Scene::new(2, 2).nonstop(2);
    let ran = scene.inject("iteration:1:3:kill").expect_code(75);
    assert_eq!(ran.err.matches("is lost: noticed").count(), 3, "{}", ran.told());
    scene.finish();
}

/// Stops the ranks of `positions` at the `hit`-th time that they reach `point`, and kills them at once. If `lost` is set, their
/// memory is removed. Returns the output of the run.
pub fn at_once(scene: &Scene, positions: &[usize], point: &str, hit: usize, lost: bool) -> Ran {
    let place = |position: &usize| format!("{point}:{position}:{hit}");
    let places: Vec<String> = positions.iter().map(place).collect();
    let faults: Vec<String> = places.iter().map(|place| format!("1@{place}:stop")).collect();
    let running = scene.start_with(&faults.join(","));
    let began = Instant::now();
    let halted = |rank: usize| running.ranks().iter().any(|r| r.rank == rank && r.halted());
    while !places.iter().all(|place| scene.injected().contains(place))
        || !positions.iter().all(|&p| halted(p))
    {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", scene.injected());
        std::thread::sleep(Duration::from_millis(5));
    }
    let ranks = running.ranks();
    // At the start, each rank has the position of its number.
    for rank in ranks.iter().filter(|r| positions.contains(&r.rank)) {
        if lost {
            scene.lose(rank.rank);
        }
        kill(rank.pid, Signal::SIGKILL).unwrap();
    }
    running.end()
}

#[test]
#[ignore = "needs Open MPI 5"]
fn several_at_once_are_one_loss_or_several() {
    let scene = Scene::new(2, 3).nonstop(3);
    let ran = scene.expect_finished(at_once(&scene, &[0, 3, 5], "sealed", 2, false));
    assert!(in_place(&ran) >= 1, "{}", ran.told());
    let scene = Scene::new(2, 3).nonstop(2).protect(&["--losses", "2", "--group", "6"]);
    let ran = scene.expect_finished(at_once(&scene, &[1, 4], "sealed", 2, true));
    assert!(in_place(&ran) >= 1, "{}", ran.told());
}

/// If a group has lost more members than it survives, neither recovery in place nor a restart can rebuild them. The memory is
/// kept.
#[test]
#[ignore = "needs Open MPI 5"]
fn more_than_a_group_survives_ends_with_the_memory_kept() {
    let scene = Scene::new(2, 2).nonstop(2);
    let ran = at_once(&scene, &[1, 2], "sealed", 2, true).expect_code(75);
    assert!(ran.err.contains("cannot be recovered in place"), "{}", ran.told());
    scene.expect_refused(4, &["position 1", "position 2"]);
}

/// The other ranks take a stopped rank for dead, and ranks of its node end it. Its memory is then free, and no rank waits for it.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_stopped_rank_is_ended_and_replaced() {
    let scene = Scene::new(2, 2).nonstop(1);
    let ran = scene.survive("1@iteration:1:5:stop");
    assert!(ran.err.contains("rank 4 on"), "{}", ran.told());
}

/// The loss of a spare rank costs nothing, during the run or after its end.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_spare_may_be_lost() {
    let scene = Scene::new(2, 2).nonstop(1);
    scene.survive("told:4:1:kill");
    let mut running = scene.freeze("1@iteration:0:5:stop");
    let ranks = running.ranks();
    let of = |rank: usize| ranks.iter().find(|r| r.rank == rank).unwrap().pid;
    kill(of(4), Signal::SIGKILL).unwrap();
    kill(of(0), Signal::SIGCONT).unwrap();
    assert!(!running.over());
    let ran = scene.expect_finished(running.end());
    assert!(ran.err.contains("(standing by) is lost"), "{}", ran.told());
}

/// A sweep continues after a loss. Results that were already reported stay, and the next test begins with the remaining ranks.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_sweep_goes_on() {
    let scene =
        Scene::of(2, 2, &["-n", "201,150,99", "--nb", "10"]).protect(&["--checkpoint", "2"]);
    let ran = scene.nonstop(2);
    let ran = ran.survive("1@iteration:0:25:lose,2@solve-begin:2:1:kill");
    assert_eq!(ran.out.matches("PASSED").count(), 3, "each once: {}", ran.told());
    let losses = |test: &Test| test.outcome.as_ref().unwrap().protection.unwrap().in_place;
    let losses: Vec<u32> = ran.json().tests.iter().map(losses).collect();
    assert_eq!(losses.iter().sum::<u32>(), 2, "each in its test: {losses:?}: {}", ran.told());
    assert_eq!(ran.out.matches("HPLinpack").count(), 1, "{}", ran.told());
}

/// The rank that writes the report is lost before the first result, and so is its successor. The head of the report is printed
/// once.
#[test]
#[ignore = "needs Open MPI 5"]
fn the_head_is_told_once() {
    for first in ["1@generate-begin:0:1:kill", "1@iteration:0:5:lose"] {
        let scene = Scene::new(2, 2).nonstop(2);
        let ran = scene.survive(&format!("{first},2@iteration:0:3:kill"));
        for (what, times) in [("HPLinpack", 1), ("PASSED", 1), ("End of Tests", 1), ("\nWR", 1)] {
            assert_eq!(ran.out.matches(what).count(), times, "{what}: {}", ran.told());
        }
    }
}

/// Each loss is reported once. This holds too if the rank that writes the report is lost second, and a spare rank of the first
/// loss replaces it.
#[test]
#[ignore = "needs Open MPI 5"]
fn each_loss_is_told_once() {
    let scene = Scene::new(2, 2).nonstop(2);
    let ran = scene.survive("1@iteration:3:9:kill,2@iteration:0:5:kill");
    let told = |words: &str| ran.err.matches(words).count();
    assert_eq!((told(" is lost: "), told(" are lost: ")), (2, 0), "{}", ran.told());
}

#[test]
#[ignore = "needs Open MPI 5"]
fn system_v_memory_is_taken_over_too() {
    let scene = Scene::new(2, 2).nonstop(1).store(Store::SysV).protect(&["--store", "sysv"]);
    let ran = scene.survive("1@flush-half:1:2:kill");
    assert_eq!(in_place(&ran), 1);
    assert!(ran.err.contains("nothing had to be rebuilt"), "{}", ran.told());
}

#[test]
#[ignore = "needs Open MPI 5"]
fn missing_requirements_are_named() {
    let said = |scene: &Scene, code: i32, words: &str| {
        let ran = scene.job().run().expect_code(code);
        assert!(ran.err.contains(words), "{words}: {}", ran.told());
    };
    let plain = |args: &[&str]| Scene::of(2, 2, &["-n", "99", "--nb", "10"]).protect(args);
    said(&plain(&["--nonstop", "--checkpoint", "2"]), 6, "mpirun --with-ft ulfm");
    said(&plain(&["--nonstop"]), 1, "resumes from a checkpoint: add --checkpoint");
    said(
        &plain(&["--spare-ranks", "0", "--nonstop", "--checkpoint", "2", "--method", "single"]),
        1,
        "self or double",
    );
    said(
        &plain(&["--spare-ranks", "1", "--nonstop", "--checkpoint", "2"]),
        1,
        "Need at least 5 processes",
    );
}
