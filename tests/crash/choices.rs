//! Tests of every method, scope, code, encoding, store, mapping and depth: a fault, the loss of a member's memory, and a new
//! start.

use skt_hpl::base::cores;
use skt_hpl::shm::Store;

use crate::scene::{LONGER, SMALL, Scene, rebuilt, resumed_at};

fn protected(args: &[&str]) -> Scene {
    Scene::of(2, 2, SMALL).protect(&["--checkpoint", "3"]).protect(args)
}

#[test]
fn methods_scopes_codes_and_encodings() {
    let cases: &[&[&str]] = &[
        &["--method", "double"],
        &["--method", "double", "--scope", "whole"],
        &["--scope", "side"],
        &["--scope", "whole"],
        &["--parity-code", "reed-solomon"],
        &["--encode", "reduce"],
        &["--encode", "reduce", "--losses", "2"],
        &["--method", "double", "--parity-code", "reed-solomon", "--losses", "3"],
        &["--group", "3"],
    ];
    for (i, case) in cases.iter().enumerate() {
        let point = ["flush-half", "encode-end", "committed", "barrier-passed"][i % 4];
        let position = i % 4;
        let scene = protected(case);
        scene.inject(&format!("{point}:{position}:3:kill"));
        scene.lose(position);
        let ran = scene.finish();
        assert_eq!(rebuilt(&ran), Some(vec![position]), "{case:?}");
        assert!(resumed_at(&ran).is_some_and(|k| k >= 6), "{case:?}");
    }
}

/// The result does not depend on the cores of threads. Threads are pinned before the fault and not pinned after it, and the other
/// way round.
#[test]
fn threads_on_other_cores_go_on_with_the_same_bits() {
    let cores = cores::count();
    let ranks = cores.clamp(2, 8);
    for (before, after) in [("auto", "off"), ("off", "auto")] {
        let mut scene = Scene::of(1, ranks, SMALL).protect(&["--checkpoint", "3"]);
        scene.pin(before);
        scene.inject("flush-half:1:3:kill");
        scene.lose(1);
        scene.pin(after);
        let ran = scene.finish();
        assert_eq!(rebuilt(&ran), Some(vec![1]), "{}", ran.told());
        if ranks == cores && cores::are_whole() {
            let pinned = if after == "auto" { "all" } else { "none" };
            assert_eq!(ran.json().threads.pinned, pinned, "{}", ran.told());
        }
    }
}

/// Code `sum` rebuilds a lost member only up to rounding: the run passes with other bits. Without a lost member, x has the bits
/// of an undisturbed run.
#[test]
fn the_sum_restores_up_to_rounding() {
    let scene = protected(&["--parity-code", "sum"]);
    scene.inject("flush-half:1:3:kill");
    scene.finish();
    let scene = protected(&["--parity-code", "sum"]);
    scene.inject("flush-half:1:3:kill");
    scene.lose(1);
    assert_eq!(rebuilt(&scene.finish_up_to_rounding()), Some(vec![1]));
}

/// Code `weighted` survives two losses in a group. If a process dies but its memory is kept, x has the bits of an undisturbed
/// run.
#[test]
fn weighted_sums_restore_two_up_to_rounding() {
    let weighted = || protected(&["--parity-code", "weighted", "--losses", "2"]);
    let scene = weighted();
    scene.inject("flush-half:1:3:kill");
    scene.finish();
    let scene = weighted();
    scene.inject("flush-half:1:3:kill");
    scene.lose(1);
    scene.lose(2);
    assert_eq!(rebuilt(&scene.finish_up_to_rounding()), Some(vec![1, 2]));
}

/// Method single has one copy. A loss while ranks compute is recovered; a loss while a save overwrites the copy is refused and
/// reported.
#[test]
fn method_single_refuses_what_it_cannot_survive() {
    let single = || Scene::of(2, 2, SMALL).protect(&["--checkpoint", "10", "--method", "single"]);
    // Iteration 15 is far from any save, even if some ranks are ahead of others.
    let scene = single();
    scene.inject("iteration:2:15:kill");
    scene.lose(2);
    assert_eq!(rebuilt(&scene.finish()), Some(vec![2]));
    let scene = single();
    scene.inject("flush-half:2:2:kill");
    scene.lose(2);
    scene.expect_refused(4, &["kept"]);
}

/// System V segments are found by key at a restart, and checked by the name stored in them.
#[test]
fn memory_of_system_v() {
    let scene = protected(&["--store", "sysv"]).store(Store::SysV);
    scene.inject("flush-half:3:3:kill");
    assert_eq!(scene.held(), [0, 1, 2, 3]);
    scene.lose(3);
    assert_eq!(scene.held(), [0, 1, 2]);
    assert_eq!(rebuilt(&scene.finish()), Some(vec![3]));
}

#[test]
fn column_mapping_and_every_depth() {
    for (depth, mapping) in [("0", "column"), ("1", "row"), ("2", "column")] {
        let problem = ["--depth", depth, "--pmap", mapping, "--split-update", "always"];
        let scene = Scene::of(2, 3, &["-n", "305", "--nb", "12"]).solver(&problem);
        let scene = scene.protect(&["--checkpoint", "2"]);
        scene.inject("flush-data:4:5:kill");
        scene.lose(4);
        let ran = scene.finish();
        assert_eq!((resumed_at(&ran), rebuilt(&ran)), (Some(10), Some(vec![4])));
    }
}

/// Sizes and grids at the limits: fewer blocks than processes, N = 1, one process row, one process column.
#[test]
fn odd_sizes_and_grids() {
    for (p, q, n, nb) in [(1, 4, "97", "7"), (4, 1, "97", "7"), (2, 2, "13", "8"), (2, 2, "1", "4")]
    {
        let scene = Scene::of(p, q, &["-n", n, "--nb", nb]).protect(&["--checkpoint", "1"]);
        scene.inject("verify-begin:1:1:kill");
        scene.lose(1);
        let ran = scene.finish();
        // A single block has no boundary for a save, so the run starts from scratch.
        let saved = n != "1";
        assert_eq!(rebuilt(&ran), saved.then(|| vec![1]), "{p} x {q}, {n}: {}", ran.told());
        assert_eq!(resumed_at(&ran).is_some(), saved, "{p} x {q}, {n}: {}", ran.told());
    }
}

/// A run with a fault resumes from saves at intervals in seconds, and from saves at the interval that their cost determines
/// (`auto`).
#[test]
fn intervals_in_seconds_and_by_cost() {
    for interval in [&["--checkpoint", "1ms"][..], &["--checkpoint", "auto", "--mtbf", "1s"]] {
        let scene = Scene::of(2, 2, LONGER).protect(interval);
        scene.inject("iteration:3:80:kill");
        scene.lose(3);
        let ran = scene.finish();
        assert_eq!(rebuilt(&ran), Some(vec![3]), "{interval:?}: {}", ran.told());
        assert!(resumed_at(&ran).is_some(), "{interval:?}: {}", ran.told());
    }
}
