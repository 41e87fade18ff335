//! The windows in which the first implementation lost data, by their numbers, each with its fault.
//!
//! That program kept one byte per rank for the number of the good copy, and let each rank judge by its own byte alone. Its
//! daemon's windows (W14, W15) do not concern memory and are tested with the supervisor. Two groups of two, if membership makes a
//! difference: positions 0 and 1, 2 and 3.

use crate::scene::{SMALL, Scene, rebuilt, resumed_at};

/// Boundaries of the problem: 31. With a save at each, hit h of a point in a save is at boundary h.
const BLOCKS: usize = 31;

fn pairs() -> Scene {
    Scene::new(2, 2).protect(&["--group", "2"])
}

/// Injects faults, removes some memory, and checks the boundary at which the run resumes.
fn closed(scene: Scene, faults: &str, lost: &[usize], from: impl Fn(Option<usize>) -> bool) {
    scene.inject(faults);
    lost.iter().for_each(|&position| scene.lose(position));
    let ran = scene.finish();
    assert!(from(resumed_at(&ran)), "{faults}: from {:?}", resumed_at(&ran));
}

/// Halts ranks at different places, ends all at once, removes some memory, and checks the boundary.
fn halted(scene: Scene, places: &[&str], lost: &[usize], from: impl Fn(Option<usize>) -> bool) {
    let faults: Vec<String> = places.iter().map(|place| format!("{place}:stop")).collect();
    let running = scene.freeze(&faults.join(","));
    scene.kill_all(running);
    lost.iter().for_each(|&position| scene.lose(position));
    let ran = scene.finish();
    assert!(from(resumed_at(&ran)), "{places:?}: from {:?}", resumed_at(&ran));
}

/// The original trusted a matrix that was never finished.
#[test]
fn w1_generating_or_before_the_first_checkpoint() {
    for (place, lost) in [("generate-begin:2:1", true), ("generate-end:1:1", false)] {
        let lost: &[usize] = if lost { &[2] } else { &[] };
        closed(pairs(), &format!("{place}:kill"), lost, |from| from.is_none());
    }
    closed(pairs(), "encode-batch:3:1:kill", &[3], |from| from.is_none());
    // Some have sealed the first checkpoint, one has not: there is none, and no reason to refuse.
    halted(pairs(), &["encode-end:1:1", "sealed:2:1"], &[2], |from| from.is_none());
}

/// The only window the original covered.
#[test]
fn w2_computing() {
    closed(pairs(), "iteration:1:9:kill", &[1], |from| from.is_some_and(|k| k > 0));
}

/// The original's ranks decided each by itself: new A here, old B there.
#[test]
fn w3_some_save_while_others_still_compute() {
    // Position 2 still computes when 0 and 1 have sealed checkpoint 5: all go back to checkpoint 4.
    halted(pairs(), &["save-begin:2:5", "sealed:0:5", "sealed:1:5"], &[1], |from| from == Some(4));
}

/// The original marked D as the copy to use before it was complete.
#[test]
fn w4_while_encoding() {
    // A save has several batches; the coder decides which one contains the ninth.
    closed(pairs(), "encode-batch:0:9:kill", &[0], |from| from.is_some_and(|k| k < 9));
    closed(pairs(), "encode-end:3:6:kill", &[2], |from| from == Some(5));
}

/// The original had no barrier between: one overwrote B while a peer's D was unfinished.
#[test]
fn w5_one_overwrites_while_a_peer_is_not_done() {
    // One group is done flushing, the other has not begun: both lose a member, and both finish.
    halted(
        pairs(),
        &["barrier-passed:0:5", "barrier-passed:1:5", "flush-end:2:5", "flush-end:3:5"],
        &[1, 2],
        |from| from == Some(5),
    );
    // A peer that has not sealed keeps all others from overwriting.
    halted(pairs(), &["encode-end:1:5", "sealed:2:5", "sealed:3:5"], &[2], |from| from == Some(4));
}

/// Covered by the original: A and D are complete, and D is whole as long as all of A is saved.
#[test]
fn w6_flushing_early() {
    closed(pairs(), "flush-half:1:1:kill", &[1], |from| from == Some(1));
    closed(pairs(), "flush-half:2:2:kill", &[3], |from| from == Some(2));
}

/// The original took D to be zero for the part it did not save again.
#[test]
fn w7_flushing_late_with_parts_not_saved_again() {
    for (place, lost) in [("flush-half:1:25", 1), ("flush-data:2:20", 3), ("flush-end:0:28", 0)] {
        closed(pairs(), &format!("{place}:kill"), &[lost], |from| from.is_some_and(|k| k >= 20));
    }
}

/// The original was safe by accident: a reduction for the timers acted as the barrier.
#[test]
fn w8_after_the_flush() {
    halted(pairs(), &["committed:0:7", "flush-end:1:7", "barrier-passed:2:7"], &[0, 3], |from| {
        from == Some(7)
    });
}

/// In the original only groups that had lost a rank wrote their B and C again, so the next failure found groups at different
/// boundaries.
#[test]
fn w9_the_next_failure_after_a_recovery_from_a_and_d() {
    let scene = pairs();
    scene.inject("flush-half:0:8:kill");
    scene.lose(0);
    // The recovery is complete, the next save is not made: another group loses a member.
    scene.inject("save-begin:3:1:kill");
    scene.lose(3);
    let ran = scene.finish();
    assert_eq!((resumed_at(&ran), rebuilt(&ran)), (Some(8), Some(vec![3])));
}

/// The original negated D in place while it rebuilt: a second failure found neither.
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

/// The original set the byte before the data it stands for were there.
#[test]
fn w11_while_the_rebuilt_is_written() {
    for place in ["rebuild-end:1:1", "rebuilt:1:1", "restore-half:1:1", "restore-end:1:1"] {
        let scene = pairs();
        scene.inject("iteration:1:8:kill");
        scene.lose(1);
        scene.inject(&format!("{place}:kill"));
        let ran = scene.finish();
        // Confirmed data are not rebuilt again.
        let again = (place == "rebuild-end:1:1").then(|| vec![1]);
        assert_eq!((resumed_at(&ran), rebuilt(&ran)), (Some(7), again), "{place}: {}", ran.told());
    }
}

/// The original computed on for hours on the remaining data, printed FAILED and exited with 0.
#[test]
fn w12_two_losses_in_one_group_are_refused() {
    let scene = pairs();
    scene.inject("iteration:2:9:kill");
    assert_eq!(scene.groups(), [[0, 1], [2, 3]]);
    scene.lose(2);
    scene.lose(3);
    scene.expect_refused(4, &["[2, 3]"]);
}

/// The original made no checkpoint after 60 % of the columns and none for the phases after that.
#[test]
fn w13_saves_go_on_to_the_end() {
    let late = |from: Option<usize>| from.is_some_and(|k| k >= BLOCKS - 2);
    for place in ["iteration:1:31", "solve-begin:2:1", "solve-sent:2:5", "verify-begin:0:1"] {
        closed(pairs(), &format!("{place}:kill"), &[1], late);
    }
    // A result that is recorded is not computed again.
    let scene = pairs();
    scene.inject("clean-begin:1:1:kill");
    scene.lose(1);
    assert_eq!(resumed_at(&scene.finish()), None);
}

/// The original trusted any byte of a left-over segment: of another run, job or problem.
#[test]
fn w16_memory_of_something_else_is_not_used() {
    let stash = crate::limits::Stash::take;
    // An earlier run of the same problem, one of whose nodes comes back into a later one.
    let earlier = pairs();
    earlier.inject("iteration:1:20:kill");
    let scene = pairs();
    scene.inject("iteration:1:9:kill");
    scene.lose(1);
    stash(&earlier, 1).put_into(&earlier, &scene);
    assert_eq!(rebuilt(&scene.finish()), Some(vec![1]));
    // Memory of a later run gets into an earlier one, or memory of a run whose node had a fast clock. Most positions are the
    // earlier run's, so that one resumes, and the stranger's position is rebuilt.
    let scene = pairs();
    scene.inject("iteration:1:9:kill");
    let later = pairs();
    later.inject("iteration:1:20:kill");
    scene.lose(1);
    stash(&later, 1).put_into(&later, &scene);
    assert_eq!(rebuilt(&scene.finish()), Some(vec![1]));
    // Another problem under the same name.
    let scene = Scene::of(2, 2, SMALL).protect(&["--checkpoint", "1"]);
    scene.inject("iteration:1:9:kill");
    let other = Scene::of(2, 2, &["-n", "281", "--nb", "10"]).protect(&["--checkpoint", "1"]);
    other.inject("iteration:1:9:kill");
    scene.lose(2);
    stash(&other, 2).put_into(&other, &scene);
    assert_eq!(rebuilt(&scene.finish()), Some(vec![2]));
}
