//! Tests of recovery in place with the matrix in device memory. Operations may be queued on the device when a loss ends an
//! attempt.

use skt_hpl::base::faults::Point;

use crate::points::in_place;
use crate::scene::Scene;

/// A loss during the computation, during a save and during a recovery. Results are compared with an undisturbed run without a
/// device, which computes by a BLAS.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_loss_leaves_no_operation_on_the_device() {
    let halves = Point::FlushHalf.name();
    let restoring = Point::RestoreHalf.name();
    for (turn, faults) in [
        "1@iteration:1:7:kill".to_owned(),
        "1@iteration:2:12:lose".to_owned(),
        format!("1@{halves}:3:3:kill"),
        format!("1@{halves}:0:4:lose,2@{restoring}:1:1:kill"),
    ]
    .iter()
    .enumerate()
    {
        println!("{faults}");
        let problem = ["-n", "403", "--nb", "10", "--engine", "blas", "--split-update", "always"];
        let saves = ["--checkpoint", "1", "--method", "double", "--device", "host"];
        let losses = faults.split(',').count();
        let (p, q) = [(2, 2), (2, 3)][turn % 2];
        let ran = Scene::of(p, q, &problem).protect(&saves).nonstop(losses).survive(faults);
        assert_eq!(in_place(&ran), losses as u32, "{faults}: {}", ran.told());
    }
}
