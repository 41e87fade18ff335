//! A program with a safeguard left out must not pass: this proves that the faults of these tests matter.
//!
//! Each case is run with the program as it is, which must survive, and with the safeguard left out, which must not. A program
//! without debug assertions cannot leave it out, so a release build of the tests has none of these.

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

/// Whether the next start passes with the right bits.
fn ends_well(scene: &Scene) -> bool {
    let ran = scene.job().run();
    ran.code == Some(0) && digests(&ran) == scene.undisturbed()
}

/// A rank is kept from sealing; another must not have overwritten its checkpoint by then.
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

/// A byte of the checkpoint differs from the saved one. It belongs to the rank that has come to the next boundary, so that it has
/// flushed all of it: a rank that has not flushes after a restart, over any content.
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
