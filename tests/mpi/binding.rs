//! Tests that `skt-hpl run` binds ranks to the same cores as the launcher alone does, with the same list of nodes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use skt_hpl::base::cores;
use skt_hpl::base::topology::Topology;

use crate::job::{PROGRAM, mpich, mpirun};

/// Script of a rank. It writes the list of processors on which the rank may run to a file named after the rank's number.
const RANK: &str = "#!/bin/sh\n\
    rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\n\
    sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status >\"$1/$rank\"\n";

/// Substitute for a remote shell: a script that runs the command on this machine.
pub const SHELL: &str = "#!/bin/sh\nshift\nexec sh -c \"$*\"\n";

pub fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Removes variables by which a user binds ranks to cores, and lets Open MPI run as root.
pub fn without_wishes(command: &mut Command) -> &mut Command {
    for wish in [
        "OMPI_MCA_hwloc_base_binding_policy",
        "OMPI_MCA_rmaps_base_oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy",
        "PRTE_MCA_rmaps_default_mapping_policy",
        "SLURM_CPUS_PER_TASK",
    ] {
        command.env_remove(wish);
    }
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
}

/// Returns the list of processors of each rank. The launcher starts the `ranks` ranks alone, or under `skt-hpl run` if
/// `supervised` is set.
fn processors(ranks: usize, supervised: bool) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let rank = script(dir.path(), "rank", RANK);
    let shell = script(dir.path(), "shell", SHELL);
    let (hosts, list) = (dir.path().join("hosts"), dir.path().join("list"));
    fs::write(&hosts, format!("localhost slots={ranks}\n")).unwrap();
    fs::write(&list, format!("localhost:{ranks}\n")).unwrap();
    let count = ranks.to_string();
    let mut command = Command::new(if supervised { PROGRAM.into() } else { mpirun() });
    match (supervised, mpich()) {
        (true, _) => {
            command.args(["run", "--ranks", &count, "--launcher-program", &program()]);
            command.arg("--hosts").arg(&hosts).arg("--rsh").arg(&shell);
            command.arg("--state").arg(dir.path().join("state")).arg("--program").arg(&rank);
        }
        (false, true) => {
            command.args(["-n", &count, "-f"]).args([&list, &rank]);
        }
        (false, false) => {
            command.args(["-np", &count, "--hostfile"]).args([&hosts, &rank]);
        }
    }
    let out = without_wishes(&mut command).arg(dir.path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let read = |rank| fs::read_to_string(dir.path().join(format!("{rank}"))).unwrap();
    (0..ranks).map(|rank| read(rank).trim().to_owned()).collect()
}

/// Returns the full path of the launcher. `skt-hpl run` does not search PATH for the argument of `--launcher-program`.
pub fn program() -> String {
    let name = mpirun();
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&paths).map(|dir| dir.join(&name));
    let found = found.find(|path| path.is_file());
    found.map_or(name, |path| path.to_string_lossy().into_owned())
}

/// Returns the number of whole cores on which this process may run, at least 1. Several hardware threads of a core count once, as
/// the launcher counts them.
pub fn own_cores() -> usize {
    Topology::here().among(cores::bound_to()).cores().max(1)
}

#[test]
fn a_supervised_rank_has_the_cores_of_an_unsupervised_one() {
    let ranks = own_cores().min(2);
    let alone = processors(ranks, false);
    assert_eq!(processors(ranks, true), alone);
    if ranks == 2 && !mpich() {
        assert_ne!(
            alone[0], alone[1],
            "Open MPI binds two ranks, so there is something to compare"
        );
    }
}

/// More ranks than cores start under supervision, without binding. Open MPI 5 alone would refuse to start them.
#[test]
fn more_ranks_than_cores_start_under_supervision() {
    let ranks = own_cores() + 1;
    let found = processors(ranks, true);
    assert!(found.iter().all(|list| *list == found[0]), "unbound, all of them: {found:?}");
}
