//! A rank dies, and one that waits inside the job takes its place: no launcher, no other process is started. Needs Open
//! MPI 5; with any other launcher such a run is refused.

use skt_hpl::cli::launchers::mpi_library;
use skt_hpl::supervise::start::launcher::{Launcher, major_version};

use crate::lab::{Lab, launcher};

#[test]
#[ignore = "needs root and network namespaces"]
fn a_killed_rank_is_replaced_inside_the_job() {
    let lab = Lab::up(5, 0);
    let goes_on = launcher() == Launcher::Openmpi
        && major_version(&mpi_library()).is_some_and(|major| major >= 5);
    let plan = lab.in_place("run");
    if !goes_on {
        let end = plan.start().end();
        assert_eq!(end.code, Some(6), "{}", end.told());
        assert!(end.errors.contains("Open MPI 5's mpirun"), "{}", end.told());
        return;
    }
    let end = plan.faults("1@iteration:1:20:kill").start().end();
    end.passed();
    assert_eq!(end.of("launched").len(), 1, "{}", end.told());
    assert!(end.errors.contains("rank 4 on n5 takes position 1"), "{}", end.told());
    lab.same_x("run", &end);
    // Its memory was where no rank is any more.
    for node in ["n1", "n2", "n3", "n4", "n5"] {
        let memory = lab.memory_of(node);
        assert!(!memory.contains("skt-hpl."), "left on {node}: {memory}{}", end.told());
    }
}
