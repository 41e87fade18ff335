//! Tests of protected runs whose matrix is in device memory: a fault at each step, with memory kept or lost; level two; starts
//! without the device.
//!
//! Results are compared with an undisturbed run without a device, which computes by a BLAS.

use skt_hpl::base::faults::Point;

use crate::scene::{Scene, from_storage, lose_all, rebuilt, resumed_at, whole_in};

fn on_device(p: usize, q: usize, more: &[&str]) -> Scene {
    let problem = ["-n", "403", "--nb", "10", "--engine", "blas"];
    let saves = ["--checkpoint", "1", "--method", "double", "--device", "host"];
    Scene::of(p, q, &problem).protect(&saves).protect(more)
}

/// Injects faults at `points`, one in each start, at the `hit`-th time that the position reaches the point. After every second
/// fault, the memory of the failed position is lost. The last start must end well.
fn chain(scene: &Scene, points: &[Point], hit: u64) {
    for (i, point) in points.iter().enumerate() {
        let (position, lost) = ((i + i / 4) % 4, i % 2 == 1);
        let fault = format!("{}:{position}:{hit}:kill", point.name());
        println!("{fault}{}", if lost { ", lost" } else { "" });
        scene.inject(&fault);
        if lost {
            scene.lose(position);
        }
    }
    scene.finish();
}

#[test]
fn every_step_of_a_save_is_survived() {
    let all = Point::between(Point::SaveBegin, Point::Committed);
    let own = all.iter().copied().filter(|point| !point.is_helpers());
    let points: Vec<Point> = own.chain([Point::Iteration, Point::SolveBegin]).collect();
    assert!(points.len() > 8 && points.contains(&Point::FlushHalf), "{points:?}");
    let (early, late) = points.split_at(points.len() - 1);
    for points in early.chunks(6) {
        chain(&on_device(2, 2, &[]), points, 2);
    }
    chain(&on_device(2, 2, &[]), late, 1);
}

/// The run survives a fault at each step of a recovery. Each start fails during the recovery from the previous failure. The
/// memory of the position that fails is removed before the start, so that it is rebuilt.
#[test]
fn every_step_of_a_recovery_is_survived() {
    let all = Point::between(Point::AgreeBegin, Point::Resumed);
    let fetches = Point::between(Point::FetchBegin, Point::Tidied);
    // Method double has no flush to finish.
    let not_here = |point: &Point| {
        fetches.contains(point) || matches!(point, Point::FinishHalf | Point::FinishEnd)
    };
    let points: Vec<Point> = all.iter().copied().filter(|point| !not_here(point)).collect();
    assert!(points.len() > 8 && points.contains(&Point::RestoreHalf), "{points:?}");
    for (i, points) in points.chunks(5).enumerate() {
        let scene = on_device(2, 2, &[]);
        scene.inject("committed:1:3:kill");
        for point in points {
            scene.lose(i % 4);
            scene.inject(&format!("{}:{}:1:kill", point.name(), i % 4));
        }
        scene.finish();
    }
}

/// Helpers encode the copy of the matrix while the device computes.
#[test]
fn helpers_encode_what_a_device_has_copied() {
    for (fault, lost) in [("encode-end:1:3:kill", 1), ("sealed:2:2:kill", 3)] {
        let problem = ["-n", "1003", "--nb", "4"];
        let scene = on_device(2, 2, &["--encode", "helper"]).solver(&problem);
        scene.inject(fault);
        scene.lose(lost);
        let ran = scene.finish();
        assert_eq!(rebuilt(&ran), Some(vec![lost]), "{}", ran.told());
    }
}

/// After all memory is lost, the matrix is read from storage to the device, with a shared DIR and with one DIR per node.
#[test]
fn a_matrix_comes_back_from_storage() {
    for scope in ["shared", "node"] {
        let dir = tempfile::TempDir::new().unwrap();
        let at = dir.path().to_str().unwrap();
        let more = ["--level2", at, "--level2-every", "1", "--level2-scope", scope];
        let scene = on_device(2, 2, &more);
        scene.inject("manifest-whole:0:2:kill");
        assert!(!whole_in(dir.path(), &scene).is_empty(), "{scope}");
        lose_all(&scene);
        scene.inject("fetch-half:2:1:kill");
        lose_all(&scene);
        let ran = scene.finish();
        assert!(from_storage(&ran), "{scope}: {}", ran.told());
        assert!(resumed_at(&ran).is_some(), "{scope}: {}", ran.told());
    }
}

/// A start without the device, or with another, is refused: it would round differently and has other memory.
#[test]
fn a_start_without_the_device_is_refused() {
    let scene = on_device(1, 2, &[]);
    scene.inject("committed:0:3:kill");
    let ran = scene.job().args(&["--device", "none"]).run();
    assert_ne!(ran.code, Some(0), "{}", ran.told());
    assert!(ran.told().contains("computed with another arithmetic than"), "{}", ran.told());
    scene.finish();
}
