//! Command lines that start a job with an MPI launcher.
//!
//! [`launch`] is a pure function from programs and hosts to files, arguments and environment. The restart loop writes the files
//! and starts the command. A relaunch on other nodes calls the same function with another list. Ranks are bound to cores as the
//! launcher alone would bind them, unless [`Room`] shows that binding would fail.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::hosts::{Host, slots};
use super::launcher::{ATTEMPT_VAR, Launcher, PMIX_FENCE_VAR, RUN_ID_VAR, Tool};
use super::room::{Room, has_option, without_placement};
use crate::supervise::talk::shell::{LIBRARY_PATH, RemoteShell, leads_to_slurm};

/// Launcher, command and hosts of an attempt.
#[derive(Clone, Debug)]
pub struct LaunchPlan<'a> {
    pub tool: &'a Tool,
    pub hosts: &'a [Host],
    /// Whether the nodes have the cores for their ranks.
    pub room: Room,
    pub ranks: usize,
    pub run_id: &'a str,
    pub attempt: u32,
    /// The benchmark and its flags.
    pub command: &'a [String],
    /// Variables for every rank, in addition to run id and attempt.
    pub env: &'a [(String, String)],
    /// The user's arguments for the launcher.
    pub extra: &'a [String],
    pub shell: &'a RemoteShell,
    /// Folder in which the files are written.
    pub dir: &'a Path,
    pub as_root: bool,
}

/// Command of a launcher, ready to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub argv: Vec<String>,
    pub set: Vec<(String, String)>,
    /// Prefixes of environment variables that are removed. A batch system's variables that describe nodes are out of date once a
    /// node has died.
    pub remove_prefixes: Vec<&'static str>,
    /// Files to write before the start: path, content, and whether the file is executable.
    pub files: Vec<(PathBuf, String, bool)>,
}

impl Launch {
    /// Whether a variable is removed from the launcher's environment. Variables that give the path of Slurm's configuration are
    /// kept.
    pub fn removes(&self, name: &str) -> bool {
        !leads_to_slurm(name) && self.remove_prefixes.iter().any(|p| name.starts_with(p))
    }
}

/// Returns the command that starts `plan`.
pub fn launch(plan: &LaunchPlan) -> Launch {
    let mut launch = Launch {
        argv: vec![text(&plan.tool.program)],
        set: vec![
            (RUN_ID_VAR.to_string(), plan.run_id.to_string()),
            (ATTEMPT_VAR.to_string(), plan.attempt.to_string()),
        ],
        remove_prefixes: Vec::new(),
        files: Vec::new(),
    };
    let found_by = plan.env.iter().filter(|(name, _)| name == LIBRARY_PATH);
    // Variables that the launcher's daemons need, too. Their ranks inherit them.
    let marks: Vec<(String, String)> = launch.set.iter().chain(found_by).cloned().collect();
    launch.set.extend(plan.env.iter().cloned());
    let hosts = plan.dir.join(format!("hosts.{}", plan.attempt));
    let script = plan.dir.join(format!("rsh.{}", plan.attempt));
    let extra = match plan.room {
        // The user's placement options were meant for fewer ranks per node.
        Room::Doubled => without_placement(plan.tool.kind, plan.extra),
        Room::Enough | Room::Short => plan.extra.to_vec(),
    };
    let listed = match plan.tool.kind {
        Launcher::Openmpi => {
            launch.add_open_mpi(plan, &text(&hosts), &text(&script));
            host_file(plan.hosts, " slots=")
        }
        Launcher::Mpich => {
            launch.push(&["-n", &plan.ranks.to_string(), "-f", &text(&hosts)]);
            launch.push(&["-launcher", "ssh", "-launcher-exec", &text(&script)]);
            host_file(plan.hosts, ":")
        }
        Launcher::Srun => {
            // srun sorts a list of nodes. A file with one line for each rank keeps the order.
            let places = slots(plan.hosts).take(plan.ranks);
            let lines: Vec<&str> = places.map(|at| plan.hosts[at].name.as_str()).collect();
            launch.set.push(("SLURM_HOSTFILE".to_string(), text(&hosts)));
            launch.add_srun(plan, &extra, lines.iter().collect::<HashSet<_>>().len());
            lines.join("\n") + "\n"
        }
    };
    launch.files.push((hosts, listed, false));
    if plan.tool.kind != Launcher::Srun {
        launch.files.push((script, plan.shell.launcher_script(&marks), true));
        launch.remove_prefixes.extend(["SLURM_", "PBS_", "LSB_"]);
    }
    launch.argv.extend(extra);
    launch.argv.extend(plan.command.iter().cloned());
    launch
}

impl Launch {
    fn push(&mut self, words: &[&str]) {
        self.argv.extend(words.iter().map(|w| w.to_string()));
    }

    /// Adds the arguments of Open MPI's mpirun. Version 5 has another runtime (PRRTE) with other options.
    fn add_open_mpi(&mut self, plan: &LaunchPlan, hosts: &str, script: &str) {
        if plan.as_root {
            self.push(&["--allow-run-as-root"]);
        }
        self.push(&["-np", &plan.ranks.to_string(), "--hostfile", hosts]);
        if let Some(prefix) = &plan.tool.prefix {
            self.push(&["--prefix", &text(prefix)]);
        }
        let prrte = plan.tool.is_prrte();
        let (mca, plm) = if prrte { ("--prtemca", "ssh") } else { ("-mca", "rsh") };
        self.push(&[mca, "plm", plm, mca, &format!("plm_{plm}_agent"), script]);
        // mpirun connects to every node itself. In a tree, the loss of a node would also cut off the nodes behind it.
        self.push(&[mca, &format!("plm_{plm}_no_tree_spawn"), "1"]);
        // Without this option version 4 shortens the names of nodes. But ssh may know only the full names, and two nodes may have
        // the same short name.
        let is_whole =
            |host: &Host| host.name.contains('.') && host.name.parse::<IpAddr>().is_err();
        if !prrte && plan.hosts.iter().any(is_whole) {
            self.push(&[mca, "orte_keep_fqdn_hostnames", "1"]);
        }
        if matches!(plan.shell, RemoteShell::Srun { .. }) {
            // A daemon that goes into the background would end with its job step.
            if prrte {
                self.push(&["--leave-session-attached"]);
            } else {
                self.push(&[mca, "orte_leave_session_attached", "1"]);
            }
            // Daemons in the foreground count against the limit of concurrent starts (128 by default), beyond which mpirun
            // refuses nodes.
            let most = plan.hosts.len().max(128).to_string();
            self.push(&[mca, &format!("plm_{plm}_num_concurrent"), &most]);
        }
        // Version 4 binds if it can; version 5 refuses to start more ranks than cores.
        let crowded = plan.room == Room::Short && prrte && !has_option(plan.extra, "bind-to");
        if plan.room == Room::Doubled || crowded {
            self.push(&["--bind-to", "none"]);
        }
        let names = self.set.iter().flat_map(|(name, _)| ["-x".to_owned(), name.clone()]);
        self.argv.extend(names);
    }

    /// Adds the arguments of srun, and the variables that it reads.
    fn add_srun(&mut self, plan: &LaunchPlan, extra: &[String], nodes: usize) {
        // The tree of the PMIx plugin confuses nodes that are not in Slurm's order, as after a replacement. With Slurm 22.05 on 4
        // nodes, one start in ten hung or crashed in MPI_Init with the tree, and none of 250 with the ring.
        if !plan.tool.fence_is_chosen {
            self.set.push((PMIX_FENCE_VAR.to_string(), "ring".to_string()));
        }
        if let RemoteShell::Srun { job } = plan.shell {
            self.push(&[&format!("--jobid={job}")]);
        }
        self.push(&["--overlap", "--kill-on-bad-exit=1", "--distribution=arbitrary"]);
        self.push(&["-n", &plan.ranks.to_string(), "-N", &nodes.to_string()]);
        if !has_option(extra, "mpi") {
            self.push(&[&format!("--mpi={}", plan.tool.pmi)]);
        }
        // A job submitted with `--export=NONE` would otherwise not pass its environment to its steps.
        if !has_option(extra, "export") {
            self.push(&["--export=ALL"]);
        }
        // The job's `--cpus-per-task` does not apply to its steps: without this option a rank would get a single core.
        let said = ["c", "cpus-per-task", "cpu-bind", "exact"];
        match (plan.room, plan.tool.cpus_per_rank) {
            (Room::Doubled, _) => self.push(&["--overcommit", "--cpu-bind=none"]),
            (_, Some(cpus)) if !said.iter().any(|name| has_option(extra, name)) => {
                self.push(&[&format!("--cpus-per-task={cpus}"), "--cpu-bind=cores"]);
            }
            _ => {}
        }
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn host_file(hosts: &[Host], between: &str) -> String {
    hosts.iter().map(|h| format!("{}{between}{}\n", h.name, h.slots)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::start::hosts::read_host_file;
    use crate::supervise::start::launcher::{tool, tools};

    fn plan_with<'a>(tool: &'a Tool, shell: &'a RemoteShell, parts: &'a Parts) -> LaunchPlan<'a> {
        LaunchPlan {
            tool,
            room: Room::Enough,
            hosts: &parts.hosts,
            ranks: 5,
            run_id: "r1",
            attempt: 2,
            command: &parts.command,
            env: &parts.env,
            extra: &parts.extra,
            shell,
            dir: Path::new("/state"),
            as_root: true,
        }
    }

    /// Whether `argv` contains these words in this order, without others between them.
    fn says(argv: &[String], words: &str) -> bool {
        let words: Vec<&str> = words.split(' ').collect();
        argv.windows(words.len()).any(|window| window == words)
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
        for tool in tools() {
            let made = launch(&plan_with(&tool, &shell, &parts));
            assert_eq!(made.argv[0], "/bin/launch");
            assert!(made.argv.ends_with(&[parts.extra.clone(), parts.command.clone()].concat()));
            for (name, value) in
                [("SKT_RUN_ID", "r1"), ("SKT_ATTEMPT", "2"), ("OMP_NUM_THREADS", "1")]
            {
                assert!(made.set.contains(&(name.to_string(), value.to_string())));
            }
            let hosts = &made.files[0].1;
            if tool.kind == Launcher::Srun {
                assert_eq!(hosts, "n9\nn9\nn1\nn1\nn3\n");
                assert!(made.argv.windows(2).any(|w| w == ["-N", "3"]));
                let fence = (PMIX_FENCE_VAR.to_string(), "ring".to_string());
                assert!(made.set.contains(&fence));
                let told = Tool { fence_is_chosen: true, ..tool };
                assert!(!launch(&plan_with(&told, &shell, &parts)).set.contains(&fence));
            } else {
                // A written host file can be read again.
                assert_eq!(read_host_file(hosts, "h").unwrap(), parts.hosts);
                assert!(made.files[1].2, "the remote shell's script must be executable");
            }
        }
    }

    #[test]
    fn open_mpi_is_told_about_each_variable_and_hydra_needs_colons() {
        let (parts, shell) = (parts(), ssh());
        for major in [4, 5] {
            let tool = tool(Launcher::Openmpi, major);
            let made = launch(&plan_with(&tool, &shell, &parts));
            for name in ["SKT_RUN_ID", "SKT_ATTEMPT", "OMP_NUM_THREADS"] {
                assert!(says(&made.argv, &format!("-x {name}")), "{name}");
            }
        }
        let hydra = tool(Launcher::Mpich, 4);
        let made = launch(&plan_with(&hydra, &shell, &parts));
        assert!(made.files[0].1.contains("n9:2\n"));
    }

    /// A launcher in a site's own folder needs `LD_LIBRARY_PATH`. Without it the launcher's daemon does not start on other
    /// nodes.
    #[test]
    fn a_launchers_daemon_finds_its_libraries_where_the_launcher_does() {
        let mut parts = parts();
        parts.env.push(("LD_LIBRARY_PATH".into(), "/opt/mpi/lib".into()));
        for tool in [tool(Launcher::Openmpi, 4), tool(Launcher::Mpich, 4)] {
            let made = launch(&plan_with(&tool, &ssh(), &parts));
            let script = &made.files[1].1;
            assert!(script.contains("LD_LIBRARY_PATH=/opt/mpi/lib"), "{script}");
            assert!(!script.contains("OMP_NUM_THREADS"), "{script}");
        }
    }

    #[test]
    fn nodes_are_called_by_the_names_of_the_list() {
        let told = |major, name: &str| {
            let mut parts = parts();
            parts.hosts[1].name = name.to_owned();
            let made = launch(&plan_with(&tool(Launcher::Openmpi, major), &ssh(), &parts));
            says(&made.argv, "-mca orte_keep_fqdn_hostnames 1")
        };
        assert!(told(4, "n1.alpha"));
        assert!(!told(4, "n1") && !told(4, "10.0.0.1") && !told(5, "n1.alpha"));
    }

    #[test]
    fn each_open_mpi_hears_its_own_words() {
        let (parts, shell) = (parts(), ssh());
        let mut four = tool(Launcher::Openmpi, 4);
        let made = launch(&plan_with(&four, &shell, &parts));
        assert!(says(&made.argv, "-mca plm rsh -mca plm_rsh_agent /state/rsh.2"), "{made:?}");
        assert!(says(&made.argv, "-mca plm_rsh_no_tree_spawn 1"));
        assert!(!made.argv.contains(&"--prtemca".to_string()));
        let mut five = tool(Launcher::Openmpi, 5);
        five.prefix = Some(PathBuf::from("/opt/ompi"));
        let made = launch(&plan_with(&five, &shell, &parts));
        assert!(says(&made.argv, "--prtemca plm ssh --prtemca plm_ssh_agent /state/rsh.2"));
        assert!(says(&made.argv, "--prtemca plm_ssh_no_tree_spawn 1"));
        assert!(says(&made.argv, "--prefix /opt/ompi"));
        assert!(!made.argv.contains(&"-mca".to_string()), "{made:?}");
        // A launcher whose version is unknown counts as the older one.
        four.major = None;
        let made = launch(&plan_with(&four, &shell, &parts));
        assert!(says(&made.argv, "-mca plm rsh"));
        // A daemon in a job step must not go into the background.
        let step = RemoteShell::Srun { job: "7".to_string() };
        let made = launch(&plan_with(&five, &step, &parts));
        assert!(made.argv.contains(&"--leave-session-attached".to_string()));
        assert!(says(&made.argv, "--prtemca plm_ssh_num_concurrent 128"));
        let made = launch(&plan_with(&four, &step, &parts));
        assert!(says(&made.argv, "-mca orte_leave_session_attached 1"));
        // mpirun must start all daemons at once, because in the foreground none ends before the next is started.
        let mut many = parts;
        many.hosts = (0..300).map(|node| Host::new(format!("n{node}"), 1)).collect();
        let made = launch(&plan_with(&four, &step, &many));
        assert!(says(&made.argv, "-mca plm_rsh_num_concurrent 300"));
    }

    /// In version 5 of Open MPI `--oversubscribe` would turn binding off. It is not needed, because there are always enough
    /// slots for the ranks.
    #[test]
    fn ranks_are_bound_as_the_launcher_alone_would_bind_them() {
        let (mut parts, shell) = (parts(), ssh());
        parts.extra.clear();
        for tool in tools() {
            let made = launch(&plan_with(&tool, &shell, &parts));
            for word in &made.argv {
                assert!(!word.contains("bind") && !word.contains("oversubscribe"), "{made:?}");
            }
        }
    }

    #[test]
    fn more_ranks_than_cores_start_all_the_same() {
        let (mut parts, shell) = (parts(), ssh());
        parts.extra = ["--tag-output", "--map-by", "slot:PE=2"].map(String::from).to_vec();
        let with = |tool: &Tool, room, parts: &Parts| {
            launch(&LaunchPlan { room, ..plan_with(tool, &shell, parts) }).argv
        };
        let [four, five, hydra, srun] = tools();
        assert!(!says(&with(&four, Room::Short, &parts), "--bind-to none"), "it does by itself");
        assert!(says(&with(&five, Room::Short, &parts), "--bind-to none"));
        // Version 5 refuses an option that is given twice, so only the user's option is passed.
        parts.extra = ["--bind-to", "core:overload-allowed"].map(String::from).to_vec();
        assert!(!says(&with(&five, Room::Short, &parts), "--bind-to none"));
        // On a doubled node the user's option cannot be kept.
        for tool in [&four, &five] {
            let argv = with(tool, Room::Doubled, &parts);
            assert!(says(&argv, "--bind-to none"));
            assert!(!argv.contains(&"core:overload-allowed".to_string()), "{argv:?}");
        }
        parts.extra = ["-bind-to", "core:4", "-iface", "ib0"].map(String::from).to_vec();
        let argv = with(&hydra, Room::Doubled, &parts);
        assert!(says(&argv, "-iface ib0") && !argv.contains(&"-bind-to".to_string()));
        parts.extra = ["--cpus-per-task=4", "--mem=0"].map(String::from).to_vec();
        let argv = with(&srun, Room::Doubled, &parts);
        assert!(says(&argv, "--overcommit --cpu-bind=none"), "{argv:?}");
        assert!(!argv.contains(&"--cpus-per-task=4".to_string()));
    }

    #[test]
    fn a_rank_under_srun_gets_the_cores_the_job_was_asked_for() {
        let (mut parts, shell) = (parts(), ssh());
        parts.extra.clear();
        let mut srun = tool(Launcher::Srun, 22);
        srun.cpus_per_rank = Some(8);
        let made = launch(&plan_with(&srun, &shell, &parts));
        assert!(says(&made.argv, "--cpus-per-task=8 --cpu-bind=cores"), "{made:?}");
        for own in ["-c4", "--cpus-per-task=4", "--cpu-bind=none", "--exact"] {
            parts.extra = vec![own.to_string()];
            let made = launch(&plan_with(&srun, &shell, &parts));
            assert!(!made.argv.contains(&"--cpus-per-task=8".to_string()), "{made:?}");
        }
    }

    #[test]
    fn a_pmi_of_the_users_wins() {
        let (mut parts, shell) = (parts(), ssh());
        parts.extra = vec!["--mpi=pmix".to_string()];
        let srun = tool(Launcher::Srun, 22);
        let made = launch(&plan_with(&srun, &shell, &parts));
        assert!(!made.argv.contains(&"--mpi=pmi2".to_string()));
        assert!(made.argv.contains(&"--mpi=pmix".to_string()));
    }

    #[test]
    fn a_batch_systems_nodes_are_hidden_but_not_its_configuration() {
        let (parts, shell) = (parts(), ssh());
        let [four, _, _, srun] = tools();
        let made = launch(&plan_with(&four, &shell, &parts));
        assert!(made.removes("SLURM_JOB_NODELIST") && made.removes("PBS_NODEFILE"));
        assert!(!made.removes("SLURM_CONF") && !made.removes("PATH"));
        let made = launch(&plan_with(&srun, &shell, &parts));
        assert!(!made.removes("SLURM_JOB_ID"), "srun itself needs them");
    }
}
