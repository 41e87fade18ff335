//! Tests of the windows of the first implementation, by their numbers (W1 to W16), each with its fault. A window is a step of the
//! protocol at which a failure may lose data.
//!
//! The first implementation stored one byte per rank, the number of the good copy, and each rank decided by its own byte alone.
//! In its terms, A is the matrix, B the copy of A, C the parity of B, and D the parity of A. A flush copies A to B and D to C.
//! The windows of its daemon (W14, W15) do not concern memory; the tests of the supervisor cover them. If groups matter, there
//! are two: positions 0 and 1, positions 2 and 3.

use crate::scene::{SMALL, Scene, rebuilt, resumed_at};

/// Number of boundaries of the problem. The run saves at each, so the h-th hit of a point in a save is at boundary h.
const BLOCKS: usize = 31;

fn pairs() -> Scene {
    Scene::new(2, 2).protect(&["--group", "2"])
}

/// Injects faults, removes the memory of `lost`, and restarts. Asserts that `from` returns true for the boundary at which the run
/// resumes.
fn closed(scene: Scene, faults: &str, lost: &[usize], from: impl Fn(Option<usize>) -> bool) {
    scene.inject(faults);
    lost.iter().for_each(|&position| scene.lose(position));
    let ran = scene.finish();
    assert!(from(resumed_at(&ran)), "{faults}: from {:?}", resumed_at(&ran));
}

/// Stops ranks at `places`, kills all ranks, removes the memory of `lost`, and restarts. Asserts that `from` returns true for the
/// boundary at which the run resumes.
fn halted(scene: Scene, places: &[&str], lost: &[usize], from: impl Fn(Option<usize>) -> bool) {
    let faults: Vec<String> = places.iter().map(|place| format!("{place}:stop")).collect();
    let running = scene.freeze(&faults.join(","));
    scene.kill_all(running);
    lost.iter().for_each(|&position| scene.lose(position));
    let ran = scene.finish();
    assert!(from(resumed_at(&ran)), "{places:?}: from {:?}", resumed_at(&ran));
}

/// W1: after a failure before the first checkpoint is complete, the run starts from scratch. The first implementation trusted a
/// matrix that was never completely generated.
#[test]
fn w1_generating_or_before_the_first_checkpoint() {
    for (place, lost) in [("generate-begin:2:1", true), ("generate-end:1:1", false)] {
        let lost: &[usize] = if lost { &[2] } else { &[] };
        closed(pairs(), &format!("{place}:kill"), lost, |from| from.is_none());
    }
    closed(pairs(), "encode-batch:3:1:kill", &[3], |from| from.is_none());
    // Some ranks have sealed the first checkpoint, one has not. There is no checkpoint, so the run starts from scratch and is not
    // refused.
    halted(pairs(), &["encode-end:1:1", "sealed:2:1"], &[2], |from| from.is_none());
}

/// W2: after a failure while ranks compute, the run resumes from a checkpoint. The first implementation did this too.
#[test]
fn w2_computing() {
    closed(pairs(), "iteration:1:9:kill", &[1], |from| from.is_some_and(|k| k > 0));
}

/// W3: a rank is lost while some ranks save and others still compute. All ranks resume from the same checkpoint; no rank decides
/// alone.
#[test]
fn w3_some_save_while_others_still_compute() {
    // Position 2 still computes after positions 0 and 1 have sealed checkpoint 5. All ranks resume from checkpoint 4.
    halted(pairs(), &["save-begin:2:5", "sealed:0:5", "sealed:1:5"], &[1], |from| from == Some(4));
}

/// W4: after a failure during encoding, the run resumes from the previous checkpoint. The first implementation marked D as the
/// good copy before D was complete.
#[test]
fn w4_while_encoding() {
    // A save has several batches. The code determines which save has the ninth batch.
    closed(pairs(), "encode-batch:0:9:kill", &[0], |from| from.is_some_and(|k| k < 9));
    closed(pairs(), "encode-end:3:6:kill", &[2], |from| from == Some(5));
}

/// W5: a rank overwrites B only after all ranks have sealed, so all ranks resume from the same checkpoint. The first
/// implementation had no barrier before the flush. A rank overwrote B while the D of its peer was incomplete.
#[test]
fn w5_one_overwrites_while_a_peer_is_not_done() {
    // One group has flushed, the other has not begun. Each loses a member, and both finish the flush.
    halted(
        pairs(),
        &["barrier-passed:0:5", "barrier-passed:1:5", "flush-end:2:5", "flush-end:3:5"],
        &[1, 2],
        |from| from == Some(5),
    );
    // A rank that has not sealed keeps all other ranks from overwriting B.
    halted(pairs(), &["encode-end:1:5", "sealed:2:5", "sealed:3:5"], &[2], |from| from == Some(4));
}

/// W6: the run survives a failure in an early flush, while all of A is saved. The first implementation did this too, since A and
/// D are complete and D covers all of A.
#[test]
fn w6_flushing_early() {
    closed(pairs(), "flush-half:1:1:kill", &[1], |from| from == Some(1));
    closed(pairs(), "flush-half:2:2:kill", &[3], |from| from == Some(2));
}

/// W7: the run survives a failure in a late flush, when a part of A is not saved again. The first implementation took D as zero
/// for this part.
#[test]
fn w7_flushing_late_with_parts_not_saved_again() {
    for (place, lost) in [("flush-half:1:25", 1), ("flush-data:2:20", 3), ("flush-end:0:28", 0)] {
        closed(pairs(), &format!("{place}:kill"), &[lost], |from| from.is_some_and(|k| k >= 20));
    }
}

/// W8: after a failure while some ranks have flushed and others have not, all ranks resume from the new checkpoint. The first
/// implementation did this by accident, since a reduction for the timers acted as a barrier.
#[test]
fn w8_after_the_flush() {
    halted(pairs(), &["committed:0:7", "flush-end:1:7", "barrier-passed:2:7"], &[0, 3], |from| {
        from == Some(7)
    });
}

/// W9: a group loses a rank after another group has recovered from A and D. The run resumes from the same checkpoint. In the
/// first implementation only groups that had lost a rank rewrote their B and C. The next failure found groups at different
/// boundaries.
#[test]
fn w9_the_next_failure_after_a_recovery_from_a_and_d() {
    let scene = pairs();
    scene.inject("flush-half:0:8:kill");
    scene.lose(0);
    // The recovery is complete, and no save has been made since. Then another group loses a member.
    scene.inject("save-begin:3:1:kill");
    scene.lose(3);
    let ran = scene.finish();
    assert_eq!((resumed_at(&ran), rebuilt(&ran)), (Some(8), Some(vec![3])));
}

/// W10: the run survives further failures during a rebuild. The first implementation negated D in place during a rebuild, so a
/// second failure found neither value.
#[test]
fn w10_during_a_rebuild() {
    let scene = pairs();
    scene.inject("flush-half:1:8:kill");
    scene.lose(1);
    scene.inject("rebuild-batch:0:1:kill");
    scene.inject("rebuild-end:1:1:kill");
    scene.lose(1);
    assert_eq!(resumed_at(&scene.finish()), Some(8));
}

/// W11: the run survives a failure while rebuilt data are written. The first implementation set the byte of a copy before the
/// data of the copy were complete.
#[test]
fn w11_while_the_rebuilt_is_written() {
    for place in ["rebuild-end:1:1", "rebuilt:1:1", "restore-half:1:1", "restore-end:1:1"] {
        let scene = pairs();
        scene.inject("iteration:1:8:kill");
        scene.lose(1);
        scene.inject(&format!("{place}:kill"));
        let ran = scene.finish();
        // A position whose rebuild is confirmed is not rebuilt again.
        let again = (place == "rebuild-end:1:1").then(|| vec![1]);
        assert_eq!((resumed_at(&ran), rebuilt(&ran)), (Some(7), again), "{place}: {}", ran.told());
    }
}

/// W12: after two losses in a group, the start is refused. The first implementation computed for hours with the remaining data,
/// printed FAILED and exited with 0.
#[test]
fn w12_two_losses_in_one_group_are_refused() {
    let scene = pairs();
    scene.inject("iteration:2:9:kill");
    assert_eq!(scene.groups(), [[0, 1], [2, 3]]);
    scene.lose(2);
    scene.lose(3);
    scene.expect_refused(4, &["[2, 3]"]);
}

/// W13: saves continue to the end of the factorisation, and the run can resume in the phases after it. The first implementation
/// made no checkpoint in the last 40 % of the columns and in these phases.
#[test]
fn w13_saves_go_on_to_the_end() {
    let late = |from: Option<usize>| from.is_some_and(|k| k >= BLOCKS - 2);
    for place in ["iteration:1:31", "solve-begin:2:1", "solve-sent:2:5", "verify-begin:0:1"] {
        closed(pairs(), &format!("{place}:kill"), &[1], late);
    }
    // A recorded result is not computed again.
    let scene = pairs();
    scene.inject("clean-begin:1:1:kill");
    scene.lose(1);
    assert_eq!(resumed_at(&scene.finish()), None);
}

/// W16: memory of another run or problem is not used. The first implementation trusted any byte of a remaining segment, even of
/// another run, job or problem.
#[test]
fn w16_memory_of_something_else_is_not_used() {
    let stash = crate::limits::Stash::take;
    // Memory of an earlier run of the same problem: one of its nodes returns to a later run.
    let earlier = pairs();
    earlier.inject("iteration:1:20:kill");
    let scene = pairs();
    scene.inject("iteration:1:9:kill");
    scene.lose(1);
    stash(&earlier, 1).put_into(&earlier, &scene);
    assert_eq!(rebuilt(&scene.finish()), Some(vec![1]));
    // Memory of a later run, or of a run whose node had a fast clock, gets into an earlier run. Most positions have memory of the
    // earlier run, so this run resumes and rebuilds the foreign position.
    let scene = pairs();
    scene.inject("iteration:1:9:kill");
    let later = pairs();
    later.inject("iteration:1:20:kill");
    scene.lose(1);
    stash(&later, 1).put_into(&later, &scene);
    assert_eq!(rebuilt(&scene.finish()), Some(vec![1]));
    // Memory of another problem under the same job name.
    let scene = Scene::of(2, 2, SMALL).protect(&["--checkpoint", "1"]);
    scene.inject("iteration:1:9:kill");
    let other = Scene::of(2, 2, &["-n", "281", "--nb", "10"]).protect(&["--checkpoint", "1"]);
    other.inject("iteration:1:9:kill");
    scene.lose(2);
    stash(&other, 2).put_into(&other, &scene);
    assert_eq!(rebuilt(&scene.finish()), Some(vec![2]));
}
