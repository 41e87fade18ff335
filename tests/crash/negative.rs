//! Negative controls: a program without one of its safeguards must not survive a fault. This proves that the faults of the other
//! tests matter.
//!
//! Each case runs twice. The complete program must survive; the program without the safeguard must not. Safeguards can be left
//! out only in builds with debug assertions, so release builds do not have these tests.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::scene::{Scene, digests};

fn scene(sabotage: Option<&str>) -> Scene {
    let scene = Scene::new(2, 2);
    match sabotage {
        Some(what) => scene.sabotage(what),
        None => scene,
    }
}

/// Returns true if the next start ends with code 0 and the bits of x of an undisturbed run.
fn ends_well(scene: &Scene) -> bool {
    let ran = scene.job().run();
    ran.code == Some(0) && digests(&ran) == scene.undisturbed()
}

/// Stops a rank before it seals, and checks whether the run survives the loss of another rank. Without the barrier, other ranks
/// have already overwritten their checkpoint.
fn survives_a_slow_peer(sabotage: Option<&str>) -> bool {
    let scene = scene(sabotage);
    let [slow, early] = ["encode-end:1:5:stop", "flush-half:0:5:stop"];
    let mut running = scene.start_with(&format!("{slow},{early}"));
    let came = scene.await_faults(&mut running, slow, Duration::from_secs(60));
    assert!(came, "{}", running.told());
    let timeout = Duration::from_millis(if sabotage.is_some() { 60_000 } else { 1500 });
    let came = scene.await_faults(&mut running, early, timeout);
    assert_eq!(came, sabotage.is_some(), "{}", running.told());
    scene.kill_all(running);
    scene.lose(2);
    ends_well(&scene)
}

/// Flips bits in the committed checkpoint of a rank, and checks whether the run survives. The rank has reached the next boundary,
/// so it has finished its flush: the copy of the matrix to the checkpoint. If the flush were unfinished, a restart would repeat
/// it and overwrite the flipped bits.
fn survives_a_flipped_byte(sabotage: Option<&str>) -> bool {
    let scene = scene(sabotage);
    scene.inject("iteration:1:9:kill");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(scene.file(1, "b")).unwrap();
    let at = file.metadata().unwrap().len() * 9 / 10;
    let mut word = [0; 64];
    file.read_exact_at(&mut word, at).unwrap();
    file.write_all_at(&word.map(|byte| byte ^ 0x10), at).unwrap();
    ends_well(&scene)
}

#[test]
fn the_barrier_is_what_holds_off_a_slow_peer() {
    assert!(survives_a_slow_peer(None));
    assert!(!survives_a_slow_peer(Some("no-barrier")));
}

#[test]
fn the_digests_are_what_finds_a_flipped_byte() {
    assert!(survives_a_flipped_byte(None));
    assert!(!survives_a_flipped_byte(Some("no-digest")));
}
