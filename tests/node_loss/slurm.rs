//! Tests of runs in a Slurm allocation that loses a node and continues, under srun and under the launcher of MPI.
//!
//! The tests need Slurm (`scripts/setup.sh --with-slurm`). Without Slurm, `scripts/test.sh` skips and lists them.

use skt_hpl::supervise::start::launcher::Launcher;

use crate::lab::{Lab, launcher};

fn lose_a_node(by: Launcher) {
    let lab = Lab::up(4, 1);
    lab.vcluster(&["slurm"]);
    let mut run = lab.allocated("run", by).hold_each(&["1@iteration:1:20", "2@restore-half:2:1"]);
    lab.vcluster(&["cut-off", "n2"]);
    run.await_fault("2@restore-half:2:1");
    lab.vcluster(&["resume", "n3", "skt-hpl"]);
    let end = run.end();
    assert_eq!(end.survived(&["node-unresponsive"])["node"], "n2");
    assert_eq!(end.hosts(), ["n1", "n5", "n3", "n4"], "{}", end.told());
    lab.same_x("run", &end);
    assert_eq!(end.rebuilt(), [[1]], "{}", end.told());
}

/// `hpl-configs/job.slurm` resumes in a second job. The memory is named after the number of the first job, and the second job has
/// another number.
#[test]
#[ignore = "needs root, network namespaces and Slurm"]
fn the_job_script_goes_on_in_the_next_job() {
    let lab = Lab::up(4, 0);
    lab.vcluster(&["slurm"]);
    let mut first = lab.job_script("run").hold("1@iteration:1:20");
    first.halt(&[]);
    first.wait_for_halt(1);
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    let first = first.end();
    assert!(first.told().contains("in another batch job"), "{}", first.told());
    let name = first.of("run-started")[0]["job"].as_str().unwrap().to_string();
    assert!(lab.memory_of("n1").contains(&format!(".{name}.p0.")), "no memory of {name}");
    let second = lab.job_script("run").start().end();
    let kept = format!("which has the name {name} (--job)");
    assert!(second.errors.contains(&kept), "{}", second.told());
    assert_eq!(second.resumed_at().len(), 1, "{}", second.told());
    assert!(second.rebuilt().is_empty() && second.of("fault").is_empty(), "{}", second.told());
    lab.same_x("run", &second);
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
