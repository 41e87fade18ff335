//! A node of an allocation is lost, and the allocation lives on: under srun, and under mpirun over srun.
//!
//! Asked for where Slurm is installed (`scripts/vcluster slurm --install`); elsewhere these say so.

use std::process::Command;

use skt_hpl::supervise::launcher::Launcher;

use crate::lab::{Lab, Run, launcher};

fn installed() -> bool {
    let there = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|folder| folder.join("slurmctld").is_file() && folder.join("salloc").is_file());
    let there = there || std::path::Path::new("/usr/sbin/slurmctld").is_file();
    if !there {
        println!("skipped: Slurm is not installed; scripts/vcluster slurm --install");
    }
    there
}

fn lose_a_node(srun: bool) {
    if !installed() {
        return;
    }
    let lab = Lab::up(4, 0);
    lab.vcluster(&["slurm"]);
    let name = "run";
    let work = lab.path(name);
    std::fs::create_dir_all(&work).unwrap();
    let state = lab.path("run.state");
    let mut command = Command::new("salloc");
    command.env("SLURM_CONF", lab.ssh_config().with_file_name("slurm.conf"));
    command.args(["--no-kill", "--quiet", "--ntasks-per-node=2", "-t", "10", "-N", "4"]);
    command.args([crate::lab::PROGRAM, "run", "--state"]).arg(&state);
    command.args(["--spare-nodes", "1", "--ranks", "6"]);
    match (srun, launcher()) {
        (true, _) => command.args(["--launcher", "srun", "--launcher-args=--mpi=none"]),
        (false, Launcher::Mpich) => command.args(["--launcher", "mpich"]),
        (false, _) => command.args(["--launcher", "openmpi"]).arg(format!(
            "--launcher-args=-mca oob_tcp_if_include {} --bind-to none",
            lab.network()
        )),
    };
    command.arg("--program").arg(lab.stand_in_program()).arg(&work).args(["60", "0.1"]);
    let mut run = Run::start(&mut command, state, lab.path("faults"));
    run.computing();
    lab.vcluster(&["cut-off", "n2"]);
    let end = run.end();
    assert_eq!(end.survived(&["node-silent"])["node"], "n2");
    assert_eq!(end.hosts(), ["n1", "n4", "n3"]);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn under_srun() {
    lose_a_node(true);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn under_the_mpis_own_launcher() {
    lose_a_node(false);
}
