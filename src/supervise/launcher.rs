//! Command lines of the MPI launchers: Open MPI's mpirun, MPICH's mpiexec (Hydra), Slurm's srun.
//!
//! A pure function from what shall run where to files, arguments and environment. The restart loop writes
//! the files and starts the command; a relaunch on other nodes is the same function with another list.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::hosts::Host;
use super::shell::RemoteShell;

/// Name of the environment variable by which every process of a run is recognised.
pub const RUN_ID_VAR: &str = "SKT_RUN_ID";
/// The supervised run that this process is a part of, if any.
pub fn own_run_id() -> Option<String> {
    std::env::var(RUN_ID_VAR).ok()
}

/// Name of the environment variable that counts the launches of a run, from 1.
pub const INCARNATION_VAR: &str = "SKT_INCARNATION";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Launcher {
    /// Open MPI's mpirun
    Openmpi,
    /// MPICH's mpiexec (Hydra)
    Mpich,
    /// Slurm's srun, with the PMI the MPI library wants
    Srun,
}

impl Launcher {
    /// Programs to look for in PATH, the most telling name first.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Launcher::Openmpi => &["mpirun.openmpi", "orterun", "mpirun"],
            Launcher::Mpich => &["mpiexec.hydra", "mpiexec.mpich", "mpiexec"],
            Launcher::Srun => &["srun"],
        }
    }

    /// The launcher that belongs to an MPI library, by what the library calls itself.
    pub fn of_library(version: &str) -> Option<Self> {
        let version = version.to_ascii_lowercase();
        if version.contains("open mpi") {
            Some(Launcher::Openmpi)
        } else if ["mpich", "intel", "mvapich"].iter().any(|n| version.contains(n)) {
            Some(Launcher::Mpich)
        } else {
            None
        }
    }
}

/// What shall run where.
#[derive(Clone, Debug)]
pub struct LaunchPlan<'a> {
    pub launcher: Launcher,
    pub program: &'a Path,
    pub hosts: &'a [Host],
    pub ranks: usize,
    pub run_id: &'a str,
    pub incarnation: u32,
    /// The benchmark and its flags.
    pub command: &'a [String],
    /// Variables every rank shall see, beside run id and incarnation.
    pub env: &'a [(String, String)],
    /// Arguments of the user's for the launcher.
    pub extra: &'a [String],
    pub shell: &'a RemoteShell,
    /// Where the files go.
    pub dir: &'a Path,
    pub as_root: bool,
    /// srun's `--mpi`, where the user named none.
    pub pmi: &'a str,
}

/// A launcher's command, ready to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub argv: Vec<String>,
    pub set: Vec<(String, String)>,
    /// Variables whose names begin so are taken away: what a batch system says about nodes is out of date
    /// once one has died.
    pub remove_prefixes: Vec<&'static str>,
    /// Path, content, executable.
    pub files: Vec<(PathBuf, String, bool)>,
}

impl Launch {
    /// Whether a variable is kept from the launcher. Where Slurm's configuration lies is no news of nodes.
    pub fn removes(&self, name: &str) -> bool {
        name != "SLURM_CONF" && self.remove_prefixes.iter().any(|p| name.starts_with(p))
    }
}

/// The command that starts `plan`.
pub fn launch(plan: &LaunchPlan) -> Launch {
    let mut set = vec![
        (RUN_ID_VAR.to_string(), plan.run_id.to_string()),
        (INCARNATION_VAR.to_string(), plan.incarnation.to_string()),
    ];
    let marks = set.clone();
    set.extend(plan.env.iter().cloned());
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let hosts_path = plan.dir.join(format!("hosts.{}", plan.incarnation));
    let script_path = plan.dir.join(format!("rsh.{}", plan.incarnation));
    let ranks = plan.ranks.to_string();
    let mut argv = vec![text(plan.program)];
    let mut push = |words: &[&str]| argv.extend(words.iter().map(|w| w.to_string()));
    let mut files = Vec::new();
    let mut remove_prefixes = Vec::new();
    match plan.launcher {
        Launcher::Openmpi => {
            if plan.as_root {
                push(&["--allow-run-as-root"]);
            }
            push(&["-np", &ranks, "--hostfile", &text(&hosts_path)]);
            // Slots are counted by us; mpirun need not agree.
            push(&["--oversubscribe"]);
            push(&["-mca", "plm", "rsh", "-mca", "plm_rsh_agent", &text(&script_path)]);
            // mpirun dials every node itself: a tree would hang a branch on a node that dies meanwhile.
            push(&["-mca", "plm_rsh_no_tree_spawn", "1"]);
            if matches!(plan.shell, RemoteShell::Srun { .. }) {
                // A daemon that goes into the background would end with its job step.
                push(&["-mca", "orte_leave_session_attached", "1"]);
            }
            for (name, _) in &set {
                push(&["-x", name]);
            }
            files.push((hosts_path, host_file(plan.hosts, " slots="), false));
            files.push((script_path, plan.shell.launcher_script(&marks), true));
            remove_prefixes.extend(["SLURM_", "PBS_", "LSB_"]);
        }
        Launcher::Mpich => {
            push(&["-n", &ranks, "-f", &text(&hosts_path)]);
            push(&["-launcher", "ssh", "-launcher-exec", &text(&script_path)]);
            files.push((hosts_path, host_file(plan.hosts, ":"), false));
            files.push((script_path, plan.shell.launcher_script(&marks), true));
            remove_prefixes.extend(["SLURM_", "PBS_", "LSB_"]);
        }
        Launcher::Srun => {
            // srun sorts the node list; only a line a rank keeps the order.
            let lines: Vec<&str> = plan
                .hosts
                .iter()
                .flat_map(|h| std::iter::repeat_n(h.name.as_str(), h.slots))
                .take(plan.ranks)
                .collect();
            set.push(("SLURM_HOSTFILE".to_string(), text(&hosts_path)));
            if let RemoteShell::Srun { job } = plan.shell {
                push(&[&format!("--jobid={job}")]);
            }
            let nodes = {
                let mut names = lines.clone();
                names.sort_unstable();
                names.dedup();
                names.len()
            };
            push(&["--overlap", "--kill-on-bad-exit=1", "--distribution=arbitrary"]);
            push(&["-n", &ranks, "-N", &nodes.to_string()]);
            if !plan.extra.iter().any(|word| word.starts_with("--mpi")) {
                push(&[&format!("--mpi={}", plan.pmi)]);
            }
            files.push((hosts_path, lines.join("\n") + "\n", false));
        }
    }
    argv.extend(plan.extra.iter().cloned());
    argv.extend(plan.command.iter().cloned());
    Launch { argv, set, remove_prefixes, files }
}

fn host_file(hosts: &[Host], between: &str) -> String {
    hosts.iter().map(|h| format!("{}{between}{}\n", h.name, h.slots)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::hosts::read_host_file;

    fn plan_with<'a>(
        launcher: Launcher,
        shell: &'a RemoteShell,
        parts: &'a Parts,
    ) -> LaunchPlan<'a> {
        LaunchPlan {
            launcher,
            program: Path::new("/bin/launch"),
            hosts: &parts.hosts,
            ranks: 5,
            run_id: "r1",
            incarnation: 2,
            command: &parts.command,
            env: &parts.env,
            extra: &parts.extra,
            shell,
            dir: Path::new("/state"),
            as_root: true,
            pmi: "pmi2",
        }
    }

    struct Parts {
        hosts: Vec<Host>,
        command: Vec<String>,
        env: Vec<(String, String)>,
        extra: Vec<String>,
    }

    fn parts() -> Parts {
        Parts {
            hosts: vec![Host::new("n9", 2), Host::new("n1", 2), Host::new("n3", 1)],
            command: ["/x/skt-hpl", "-n", "8000"].map(String::from).to_vec(),
            env: vec![("OMP_NUM_THREADS".to_string(), "1".to_string())],
            extra: ["--bind-to", "none"].map(String::from).to_vec(),
        }
    }

    fn ssh() -> RemoteShell {
        RemoteShell::parse(Some("ssh -F f")).unwrap()
    }

    #[test]
    fn every_launcher_keeps_the_order_and_ends_with_the_command() {
        let (parts, shell) = (parts(), ssh());
        for launcher in [Launcher::Openmpi, Launcher::Mpich, Launcher::Srun] {
            let made = launch(&plan_with(launcher, &shell, &parts));
            assert_eq!(made.argv[0], "/bin/launch");
            assert!(made.argv.ends_with(&[parts.extra.clone(), parts.command.clone()].concat()));
            for (name, value) in
                [("SKT_RUN_ID", "r1"), ("SKT_INCARNATION", "2"), ("OMP_NUM_THREADS", "1")]
            {
                assert!(made.set.contains(&(name.to_string(), value.to_string())));
            }
            let hosts = &made.files[0].1;
            if launcher == Launcher::Srun {
                assert_eq!(hosts, "n9\nn9\nn1\nn1\nn3\n");
                assert!(made.argv.windows(2).any(|w| w == ["-N", "3"]));
            } else {
                // What we write, we can read.
                assert_eq!(read_host_file(hosts, "h").unwrap(), parts.hosts);
                assert!(made.files[1].2, "the remote shell's script must be executable");
            }
        }
    }

    #[test]
    fn open_mpi_is_told_about_each_variable_and_hydra_needs_colons() {
        let (parts, shell) = (parts(), ssh());
        let made = launch(&plan_with(Launcher::Openmpi, &shell, &parts));
        for name in ["SKT_RUN_ID", "SKT_INCARNATION", "OMP_NUM_THREADS"] {
            assert!(made.argv.windows(2).any(|w| w == ["-x", name]), "{name}");
        }
        let made = launch(&plan_with(Launcher::Mpich, &shell, &parts));
        assert!(made.files[0].1.contains("n9:2\n"));
    }

    #[test]
    fn a_pmi_of_the_users_wins() {
        let (mut parts, shell) = (parts(), ssh());
        parts.extra = vec!["--mpi=pmix".to_string()];
        let made = launch(&plan_with(Launcher::Srun, &shell, &parts));
        assert!(!made.argv.contains(&"--mpi=pmi2".to_string()));
        assert!(made.argv.contains(&"--mpi=pmix".to_string()));
    }

    #[test]
    fn a_batch_systems_nodes_are_hidden_but_not_its_configuration() {
        let (parts, shell) = (parts(), ssh());
        let made = launch(&plan_with(Launcher::Openmpi, &shell, &parts));
        assert!(made.removes("SLURM_JOB_NODELIST") && made.removes("PBS_NODEFILE"));
        assert!(!made.removes("SLURM_CONF") && !made.removes("PATH"));
        let made = launch(&plan_with(Launcher::Srun, &shell, &parts));
        assert!(!made.removes("SLURM_JOB_ID"), "srun itself needs them");
    }

    #[test]
    fn libraries_know_their_launcher() {
        assert_eq!(
            Launcher::of_library("Open MPI v4.1.4, package: Debian"),
            Some(Launcher::Openmpi)
        );
        assert_eq!(Launcher::of_library("MPICH Version:\t4.0.2"), Some(Launcher::Mpich));
        assert_eq!(Launcher::of_library("Something"), None);
    }
}
