//! Tests with more ranks than this machine has cores, protected in several groups. One rank is killed and its memory is removed.
//! The same command, started again, gives the same bits.

use std::time::Duration;

use crate::extent::whole;
use crate::scene::{Scene, rebuilt, resumed_at};

fn killed_and_restarted(scene: Scene, boundary: usize, victim: usize) {
    scene.inject(&format!("iteration:{victim}:{boundary}:kill"));
    assert_eq!(scene.held().len(), scene.ranks);
    scene.lose(victim);
    let ran = scene.finish();
    assert_eq!(rebuilt(&ran), Some(vec![victim]));
    assert!(resumed_at(&ran).is_some_and(|at| at > 0), "{}", ran.told());
}

#[test]
fn sixteen_ranks_in_groups_of_four() {
    let scene = Scene::of(4, 4, &["-n", "600", "--nb", "16"]);
    killed_and_restarted(scene.protect(&["--checkpoint", "5", "--group", "4"]), 21, 9);
}

#[test]
fn sixty_four_ranks_in_groups_of_eight() {
    // Starting 64 ranks takes most of the time. With `SKT_TEST_WHOLE`, each rank has a larger part of the matrix.
    let (n, every, boundary) = if whole() { ("4000", "10", 35) } else { ("1400", "4", 11) };
    let scene = Scene::of(8, 8, &["-n", n, "--nb", "64"]).limit(Duration::from_secs(900));
    killed_and_restarted(scene.protect(&["--checkpoint", every, "--group", "8"]), boundary, 27);
}
