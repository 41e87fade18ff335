//! Tests of saves whose parity is encoded by helpers. Faults are injected at each step, in ranks and in helpers, with memory kept
//! or lost. Helpers hang; level two and stops are tested too.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use skt_hpl::base::faults::Point;

use crate::extent::whole;
use crate::scene::{Scene, from_storage, lose_all, rebuilt, resumed_at, whole_in};

fn helped(p: usize, q: usize, more: &[&str]) -> Scene {
    // The problem has many boundaries, since a save is committed at a later boundary than the one at which it was made. On a busy
    // machine this can be many boundaries later.
    let problem = ["-n", "1003", "--nb", "4"];
    let double = ["--checkpoint", "1", "--method", "double", "--encode", "helper"];
    Scene::of(p, q, &problem).protect(&double).protect(more)
}

/// Steps of a save with helpers, in order. They include the steps of the helper, and an iteration that is computed while the
/// helper encodes.
const STEPS: [Point; 13] = [
    Point::SaveBegin,
    Point::SaveState,
    Point::FlushHalf,
    Point::FlushData,
    Point::EncodeLeft,
    Point::Iteration,
    Point::EncodeBatch,
    Point::EncodeEnd,
    Point::EncodeFound,
    Point::Sealed,
    Point::BarrierPassed,
    Point::FlushEnd,
    Point::Committed,
];

fn chain(scene: &Scene, faults: &[(Point, usize, u64, bool)]) {
    for &(point, position, hit, lost) in faults {
        let fault = format!("{}:{position}:{hit}:kill", point.name());
        println!("{fault}{}", if lost { ", lost" } else { "" });
        scene.inject(&fault);
        if lost {
            scene.lose(position);
        }
    }
}

#[test]
fn every_step_of_a_save_by_helpers_is_survived() {
    // Position 0 decides when all ranks look for seals. Position 3 receives this decision.
    let positions: &[usize] = if whole() { &[0, 1, 2, 3] } else { &[0, 3] };
    for &position in positions {
        if whole() {
            for (point, lost) in STEPS.iter().flat_map(|point| [(*point, false), (*point, true)]) {
                let scene = helped(2, 2, &[]);
                chain(&scene, &[(point, position, 3, lost)]);
                scene.finish();
            }
            continue;
        }
        let fault = |(i, point): (usize, &Point)| {
            (*point, position, 1 + (i as u64 + position as u64) % 2, (i + position) % 2 == 1)
        };
        let faults: Vec<_> = STEPS.iter().enumerate().map(fault).collect();
        // Each start resumes where the previous start failed. Few faults per run leave enough boundaries for the next fault.
        for faults in faults.chunks(4) {
            let scene = helped(2, 2, &[]);
            chain(&scene, faults);
            scene.finish();
        }
    }
}

#[test]
fn groups_of_six_that_survive_two() {
    let scene = helped(2, 3, &["--losses", "2"]);
    scene.inject("sealed:4:2:kill");
    scene.lose(4);
    scene.lose(1);
    assert_eq!(rebuilt(&scene.finish()), Some(vec![1, 4]));
}

/// If a helper hangs, all ranks still compute to the end of the factorisation. The last committed checkpoint stays usable.
#[test]
fn a_helper_that_gets_nowhere_costs_no_checkpoint() {
    let scene = helped(2, 2, &["--checkpoint", "5"]);
    let faults = "encode-end:1:2:hang,solve-begin:0:1:hang";
    let (running, came) = scene.may_freeze(faults, Duration::from_secs(60));
    assert!(came, "{:?}", scene.injected());
    scene.kill_all(running);
    scene.lose(2);
    let ran = scene.finish();
    assert_eq!((resumed_at(&ran), rebuilt(&ran)), (Some(5), Some(vec![2])), "{}", ran.told());
}

/// A start without helpers resumes from a checkpoint that helpers encoded, and a start with helpers from one without.
#[test]
fn helpers_may_come_and_go_between_starts() {
    let scene = helped(2, 2, &[]);
    scene.inject("committed:3:4:kill");
    let without = ["--encode", "pipelined"];
    let ran = scene.job().args(&without).env("SKT_FAULT", "sealed:0:3:kill").run();
    assert_ne!(ran.code, Some(0), "{}", ran.told());
    assert!(resumed_at(&ran).is_some(), "{}", ran.told());
    scene.lose(0);
    assert_eq!(rebuilt(&scene.finish()), Some(vec![0]));
}

/// With helpers and level two, checkpoints go to storage after they are committed, and the run resumes from there after all
/// memory is lost.
#[test]
fn storage_together_with_helpers() {
    let dir = tempfile::TempDir::new().unwrap();
    let at = dir.path().to_str().unwrap();
    for fault in ["stream-half:2:2:kill", "stream-begin:1:2:kill", "manifest-whole:0:1:kill"] {
        let scene = helped(2, 2, &["--level2", at, "--level2-every", "1"]);
        scene.inject(fault);
        assert!(!whole_in(dir.path(), &scene).is_empty(), "{fault}");
        lose_all(&scene);
        let ran = scene.finish();
        assert!(from_storage(&ran), "{fault}: {}", ran.told());
    }
}

/// A stop waits for the helpers: its save is committed and written to storage before the run ends.
#[test]
fn a_stop_ends_in_a_save_that_is_whole() {
    let dir = tempfile::TempDir::new().unwrap();
    let at = dir.path().to_str().unwrap();
    let scene = helped(2, 2, &["--level2", at]);
    let running = scene.freeze("encode-left:0:4:stop");
    for rank in running.ranks() {
        kill(rank.pid, Signal::SIGUSR1).unwrap();
        kill(rank.pid, Signal::SIGCONT).unwrap();
    }
    let ran = running.end().expect_code(75);
    assert!(ran.err.contains("stopped as asked, after a save in memory and in"), "{}", ran.told());
    assert_eq!(whole_in(dir.path(), &scene).len(), 1);
    let ran = scene.finish();
    assert!(resumed_at(&ran).is_some_and(|k| k >= 4), "{}", ran.told());
}

/// `--encode helper` with method self, method single or `--nonstop` is refused at start, before any memory is created.
#[test]
fn settings_that_helpers_cannot_follow_are_refused() {
    for (more, says) in [
        (&["--method", "self"][..], "method self encodes from the matrix itself"),
        (&["--method", "single"], "single writes over its only copy"),
        (&["--method", "double", "--nonstop"], "nonstop is set"),
    ] {
        let scene = Scene::new(2, 2).protect(&["--encode", "helper"]).protect(more);
        let ran = scene.job().run().expect_code(1);
        assert!(ran.err.contains(says), "{more:?}: {}", ran.told());
        assert!(fs::read_dir("/dev/shm").unwrap().flatten().all(|entry| {
            !entry.file_name().to_string_lossy().contains(&format!(".{}.", scene.name))
        }));
    }
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// Recoveries from a save by helpers survive further faults. Some or all ranks had sealed the new checkpoint before the first
    /// fault. The recovery withdraws or commits it.
    #[test]
    fn recoveries_amid_a_save_by_helpers_are_survived() {
        for first in [Point::EncodeEnd, Point::EncodeFound, Point::Sealed, Point::BarrierPassed] {
            let scene = helped(2, 2, &[]);
            chain(
                &scene,
                &[
                    (first, 1, 2, true),
                    (Point::Pinned, 2, 1, false),
                    (Point::RebuildBatch, 0, 1, false),
                    (Point::Rebuilt, 1, 1, true),
                    (Point::AgreedAgain, 3, 1, false),
                ],
            );
            let ran = scene.finish();
            assert!(resumed_at(&ran).is_some_and(|k| k >= 1), "{first:?}: {}", ran.told());
        }
    }
}
