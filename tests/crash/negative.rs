//! A program with a safeguard left out must not pass: what these tests strike at is what holds.
//!
//! Each case is run with the program as it is, which must survive, and, where there is one, with a build that
//! leaves the safeguard out (`--features sabotage`; or its path in `SKT_TEST_SABOTAGED`), which must not.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::job::PROGRAM;
use crate::scene::{Scene, digests};

/// A program that obeys SKT_SABOTAGE, if there is one.
fn sabotaged() -> Option<PathBuf> {
    let given = std::env::var_os("SKT_TEST_SABOTAGED").map(PathBuf::from);
    given.or_else(|| cfg!(feature = "sabotage").then(|| PROGRAM.into()))
}

fn scene(sabotage: Option<(&Path, &str)>) -> Scene {
    let scene = Scene::new(2, 2);
    match sabotage {
        Some((program, what)) => scene.program(program, what),
        None => scene,
    }
}

/// Whether the next start passes with the right bits.
fn ends_well(scene: &Scene) -> bool {
    let ran = scene.job().run();
    ran.code == Some(0) && digests(&ran) == scene.undisturbed()
}

/// One is kept from sealing; another must not have overwritten its checkpoint by then.
fn survives_a_slow_peer(sabotage: Option<(&Path, &str)>) -> bool {
    let scene = scene(sabotage);
    let (running, _) = scene.may_freeze(
        "encode-end:1:5:stop,flush-half:0:5:stop",
        Duration::from_millis(if sabotage.is_some() { 10_000 } else { 1500 }),
    );
    scene.kill_all(running);
    scene.lose(2);
    ends_well(&scene)
}

/// A byte of the checkpoint is not what was saved.
fn survives_a_flipped_byte(sabotage: Option<(&Path, &str)>) -> bool {
    let scene = scene(sabotage);
    scene.strike("iteration:0:9:kill");
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
    if let Some(program) = sabotaged() {
        assert!(!survives_a_slow_peer(Some((&program, "no-barrier"))));
    }
}

#[test]
fn the_digests_are_what_finds_a_flipped_byte() {
    assert!(survives_a_flipped_byte(None));
    if let Some(program) = sabotaged() {
        assert!(!survives_a_flipped_byte(Some((&program, "no-digest"))));
    }
}
