//! Flags for the nodes, the remote shell and the launcher, which `run`, `doctor` and `burnin` have.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::launchers::{in_path, tool};
use crate::base::bounded_read;
use crate::base::exit::Refusal;
use crate::supervise::start::hosts::{
    Allocation, BatchSystem, Host, filled, from_allocation, read_host_file,
};
use crate::supervise::start::launcher::{Launcher, Tool};
use crate::supervise::talk::shell::{RemoteShell, split_words};
use crate::supervise::talk::wire::FANOUT;

/// Flags for the nodes, the remote shell and the launcher.
#[derive(Clone, Debug, Default, Args)]
pub struct NodeFlags {
    /// Host file: lines `n1`, `n1 slots=4` or `n1:4` [default: the batch system's nodes]
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    pub hosts: Option<PathBuf>,

    /// Host file of spare nodes, which replace lost nodes
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    pub spares: Option<PathBuf>,

    /// Keep the last K nodes as spares
    #[arg(long, value_name = "K", default_value_t = 0, help_heading = "Nodes")]
    pub spare_nodes: usize,

    /// Remote shell, with its options [default: ssh; in a Slurm allocation without --hosts srun; in LSF blaunch]
    #[arg(long, value_name = "COMMAND", help_heading = "Nodes")]
    pub rsh: Option<String>,

    /// Largest number of nodes to which the supervisor, or an agent, connects itself.
    ///
    /// If there are more nodes, agents connect to the rest.
    #[arg(long, value_name = "K", default_value_t = FANOUT as u32, help_heading = "Nodes",
          value_parser = clap::value_parser!(u32).range(2..=1000), hide_short_help = true)]
    pub fanout: u32,

    /// MPI launcher [default: the launcher of the MPI library to which this program is linked]
    #[arg(long, value_name = "KIND", help_heading = "Nodes")]
    pub launcher: Option<Launcher>,

    /// Program of the launcher [default: that installed with the MPI library, or else a program of the library's version in PATH]
    #[arg(long, value_name = "PATH", help_heading = "Nodes")]
    pub launcher_program: Option<PathBuf>,

    /// Further arguments for the launcher, as one text; may be given several times
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true, help_heading = "Nodes")]
    pub launcher_args: Vec<String>,
}

/// Nodes with ranks, spare nodes, and the remote shell that reaches them.
pub struct Nodes {
    pub hosts: Vec<Host>,
    pub spares: Vec<Host>,
    pub shell: RemoteShell,
    pub allocation: Option<Allocation>,
}

impl NodeFlags {
    /// Returns the name of a given flag that has no effect without a list of nodes; None if no such flag is given.
    pub fn speaks_of_nodes(&self) -> Option<&'static str> {
        let flags = [
            ("--spares", self.spares.is_some()),
            ("--spare-nodes", self.spare_nodes > 0),
            ("--rsh", self.rsh.is_some()),
            ("--fanout", self.fanout as usize != FANOUT),
        ];
        flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag)
    }

    /// Reads the lists of nodes and spares, from files or from the batch system. Returns an error if no node is named.
    /// `node_timeout` is the time without a heartbeat during which a node keeps its connections.
    pub fn some_nodes(&self, node_timeout: Duration) -> Result<Nodes, Refusal> {
        let why =
            "no node is named: give --hosts FILE, or run inside a Slurm, PBS or LSF allocation";
        self.nodes(node_timeout)?.ok_or_else(|| Refusal::usage(why))
    }

    /// Reads the lists of nodes and spares, from files or from the batch system. None if neither a file nor a batch system names
    /// a node. `node_timeout` is the time without a heartbeat during which a node keeps its connections.
    pub fn nodes(&self, node_timeout: Duration) -> Result<Option<Nodes>, Refusal> {
        let allocation = from_allocation(
            |name| std::env::var(name).ok().filter(|v| !v.is_empty()),
            |path| bounded_read::text(Path::new(path)),
        )
        .map_err(Refusal::environment);
        // The variables of the batch system can be wrong: a shell may live longer than its job, or may be a step of the job that
        // has its own counts.
        let allocation = match (allocation, &self.hosts) {
            (Err(Refusal { why, .. }), Some(hosts)) => {
                tell!("skt-hpl: warning: {why}; the nodes are those of {}", hosts.display());
                None
            }
            (allocation, _) => allocation?,
        };
        let mut hosts = match (&self.hosts, &allocation) {
            (Some(path), _) => read(path)?,
            (None, Some(allocation)) => allocation.hosts.clone(),
            (None, None) => return Ok(None),
        };
        if self.spare_nodes >= hosts.len() {
            return Err(Refusal::usage(format!(
                "--spare-nodes {} leaves no node for ranks: there are only {} nodes",
                self.spare_nodes,
                hosts.len()
            )));
        }
        let mut spares = hosts.split_off(hosts.len() - self.spare_nodes);
        if let Some(path) = &self.spares {
            spares.extend(read(path)?);
        }
        if let Some(twice) = spares.iter().find(|s| hosts.iter().any(|h| h.name == s.name)) {
            return Err(Refusal::usage(format!(
                "{} is both a working node and a spare; remove this node from one of the two lists",
                twice.name
            )));
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = spares.iter().find(|spare| !names.insert(&spare.name)) {
            let why = format!("{} is a spare twice, by --spares and by --spare-nodes", twice.name);
            return Err(Refusal::usage(format!(
                "{why}; remove this node from the file of --spares"
            )));
        }
        let shell = self.shell(allocation.as_ref())?.noticing_death(node_timeout);
        Ok(Some(Nodes { hosts, spares, shell, allocation }))
    }

    /// Returns the remote shell: the shell of --rsh, or else the shell of the batch system, or else ssh.
    fn shell(&self, allocation: Option<&Allocation>) -> Result<RemoteShell, Refusal> {
        match (&self.rsh, allocation) {
            (None, Some(a)) if a.system == BatchSystem::Slurm && self.hosts.is_none() => {
                Ok(RemoteShell::Srun { job: a.job.clone() })
            }
            // LSF counts processes that its own shell starts, and ends such processes with the job.
            (None, Some(a)) if a.system == BatchSystem::Lsf && in_path("blaunch").is_some() => {
                RemoteShell::parse(Some("blaunch"))
                    .map_err(|e| Refusal::environment(format!("blaunch: {e}")))
            }
            (text, _) => RemoteShell::parse(text.as_deref())
                .map_err(|e| Refusal::usage(format!("--rsh: {e}"))),
        }
    }

    /// Returns the launcher, and the user's arguments for it.
    pub fn launcher(&self) -> Result<(Tool, Vec<String>), Refusal> {
        let tool = tool(self.launcher, self.launcher_program.as_deref())?;
        let mut extra = Vec::new();
        for text in &self.launcher_args {
            extra.extend(
                split_words(text).map_err(|e| Refusal::usage(format!("--launcher-args: {e}")))?,
            );
        }
        Ok((tool, extra))
    }
}

/// Reads a host file.
fn read(path: &Path) -> Result<Vec<Host>, Refusal> {
    let origin = path.display().to_string();
    let text = bounded_read::text(path).map_err(|e| Refusal::usage(format!("{origin}: {e}")))?;
    read_host_file(&text, &origin).map_err(Refusal::usage)
}

impl Nodes {
    /// Moves nodes without a rank to the spares. No rank depends on such a node, and it can replace a lost node. Returns a
    /// message about the new spares; None if there are none.
    pub(super) fn stand_by(&mut self, ranks: usize) -> Option<String> {
        let beyond = self.hosts.split_off(filled(&self.hosts, ranks));
        let names: Vec<&str> = beyond.iter().map(|host| host.name.as_str()).collect();
        let words = match names[..] {
            [] => return None,
            [one] => format!("{one} has no ranks and is a spare"),
            _ => format!("{} have no ranks and are spares", names.join(" ")),
        };
        let full = self.hosts.len();
        self.spares.extend(beyond);
        Some(format!("{ranks} ranks fill the first {full} node(s): {words}"))
    }
}
