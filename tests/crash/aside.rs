//! Saves whose checksums helpers make: a fault at each step, in ranks and in their helpers, memory kept and lost; helpers without
//! progress; storage as well; stops.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use skt_hpl::base::faults::Point;

use crate::extent::whole;
use crate::scene::{Scene, from_storage, lose_all, rebuilt, resumed_at, whole_in};

fn helped(p: usize, q: usize, more: &[&str]) -> Scene {
    // Many boundaries: a save is committed at a later one than it was made at, on a busy machine much later.
    let problem = ["-n", "1003", "--nb", "4"];
    let double = ["--checkpoint", "1", "--method", "double", "--encode", "helper"];
    Scene::of(p, q, &problem).protect(&double).protect(more)
}

/// The steps of such a save, in order, those of the helper among them; and the computing meanwhile.
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
    // Position 0 decides when the others look for seals; 3 receives the decision.
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
        // Each start resumes where the last one was: there must be boundaries left.
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

/// Its rank and all others compute on to the end of the factorisation, and the last checkpoint stays as good as it was.
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

/// A start without helpers resumes from a save made with them, and the other way round.
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

/// Checkpoints go to storage when they are committed, and come back from there.
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

/// A stop waits for the helpers: its save is committed, and on storage.
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

/// The refusal comes before anything begins, and nothing is made.
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

/// Left to `scripts/test.sh --all`: the simulation shows these losses, or a test above shows the same of another one.
mod rest {
    use super::*;

    /// Seals that not all have, and seals that all have: each finished or withdrawn, with another fault meanwhile.
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
