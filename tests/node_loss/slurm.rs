//! A node of an allocation is lost, and the allocation lives on: under srun, and under the MPI's own launcher.
//!
//! Needs Slurm: `scripts/setup.sh --with-slurm`. `scripts/test.sh` leaves these out, and says so, where there is
//! none.

use skt_hpl::supervise::launcher::Launcher;

use crate::lab::{Lab, launcher};

fn lose_a_node(by: Launcher) {
    let lab = Lab::up(4, 1);
    lab.vcluster(&["slurm"]);
    let mut run = lab.allocated("run", by).hold_each(&["1@iteration:1:20", "2@restore-half:2:1"]);
    lab.vcluster(&["cut-off", "n2"]);
    run.struck("2@restore-half:2:1");
    lab.vcluster(&["resume", "n3", "skt-hpl"]);
    let end = run.end();
    assert_eq!(end.survived(&["node-silent"])["node"], "n2");
    assert_eq!(end.hosts(), ["n1", "n5", "n3", "n4"]);
    lab.same_x("run", &end);
    assert_eq!(end.rebuilt(), [[1]], "{}", end.told());
}

#[test]
#[ignore = "needs root, network namespaces and Slurm"]
fn under_srun() {
    lose_a_node(Launcher::Srun);
}

#[test]
#[ignore = "needs root, network namespaces and Slurm"]
fn under_the_mpis_own_launcher() {
    lose_a_node(launcher());
}
