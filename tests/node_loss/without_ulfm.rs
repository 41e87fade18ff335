//! Tests that runs with recovery in place (`in_place`) are refused, with a message, under a launcher that ends the job with its
//! first lost process.

use crate::in_place::goes_on;
use crate::lab::{Lab, Plan};

fn refused(plan: Plan, words: &str) {
    assert!(
        !goes_on(),
        "Open MPI 5 continues without lost ranks: leave these out with it: --skip without_ulfm::"
    );
    let end = plan.start().end();
    assert_eq!(end.code, Some(6), "{}", end.told());
    assert!(end.errors.contains(words), "{}", end.told());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn spare_ranks_are_refused() {
    let lab = Lab::up(5, 0);
    refused(lab.in_place("run"), "Open MPI 5's mpirun");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn checksums_are_refused() {
    let lab = Lab::up(6, 0);
    refused(lab.with_checksums("run"), "--method abft needs a launcher");
}
