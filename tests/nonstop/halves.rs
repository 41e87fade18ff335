//! Tests in which a rank dies during updates in halves (`--split-update always`). Rows of both halves and the next panel are
//! being sent at this moment. A rank that waits for them multiplies meanwhile.

use crate::points::in_place;
use crate::scene::Scene;

/// Cases: fault, DEPTH and number of threads.
const FAULTS: &[(&str, &str, &str)] = &[
    ("swap-half:1:20:kill", "1", "1"),
    ("swap-half:0:31:lose", "1", "2"),
    ("swap-half:1:45:kill", "2", "1"),
    ("swap-half:0:14:kill", "0", "1"),
    ("panel-half:0:4:lose", "1", "1"),
    ("panel-half:1:6:kill", "2", "2"),
    ("panel-sent:1:5:kill", "1", "1"),
    ("panel-sent:0:7:lose", "3", "1"),
    ("iteration:1:12:kill", "1", "1"),
];

#[test]
#[ignore = "needs Open MPI 5"]
fn a_loss_amid_an_update_in_halves_is_gone_on_from() {
    let grids = [(2, 1), (2, 2), (3, 2)];
    for (turn, (place, depth, threads)) in FAULTS.iter().enumerate() {
        let (p, q) = grids[turn % grids.len()];
        let solver = ["-n", "301", "--nb", "10", "--split-update", "always"];
        let scene = Scene::of(p, q, &solver).solver(&["--depth", depth, "--threads", threads]);
        let scene = scene.protect(&["--checkpoint", "3"]).nonstop(1);
        let fault = format!("1@{place}");
        println!("{p} x {q} {fault}, depth {depth}, {threads} threads");
        let ran = scene.survive(&fault);
        assert_eq!(in_place(&ran), 1, "{fault}: {}", ran.told());
        assert!(
            ran.json().tests[0].outcome.as_ref().unwrap().split_update.iterations > 0,
            "{fault}"
        );
    }
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// A rank is late for the columns of the next panel, and the other ranks multiply the first half meanwhile. The late rank or
    /// another rank then dies, and all ranks notice the loss.
    #[test]
    #[ignore = "needs Open MPI 5"]
    fn a_rank_that_multiplies_until_another_comes_learns_of_its_loss() {
        for (p, q, victim) in [(2, 1, 1), (2, 1, 0), (2, 2, 2), (2, 2, 0)] {
            let solver = ["-n", "3000", "--nb", "100", "--depth", "1", "--split-update", "always"];
            let scene = Scene::of(p, q, &solver).protect(&["--checkpoint", "5"]).nonstop(1);
            // The late rank is the first rank of the second process row. `tests/mpi/halves` explains the order of the exchanges.
            let late = q;
            let faults = format!("1@swap-half:{late}:17:stop");
            println!("{p} x {q} {faults}, {victim} dies");
            let ran = scene.expect_finished(scene.amid(&faults, &[late], &[victim]));
            assert_eq!(in_place(&ran), 1, "{faults}: {}", ran.told());
        }
    }
}
