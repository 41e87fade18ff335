//! Settings of `skt-hpl run`: nodes, launcher, benchmark and timeouts.
//!
//! The command line sets them, and the supervisor never changes them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::checkpoint::storage::names::dir_of;
use crate::kernels::arithmetic::Rules;
use crate::supervise::judge::fitness::Need;
use crate::supervise::judge::thresholds::Thresholds;
use crate::supervise::remember::folder::Folder;
use crate::supervise::start::hosts::Host;
use crate::supervise::start::launcher::Tool;
use crate::supervise::talk::shell::{RemoteShell, quote_all};
use crate::supervise::talk::wire::Attend;
use crate::supervise::tell::status::Problem;

/// Environment variable for the benchmark's `--restart`, set if its command has no such flag.
const RESTART_VAR: &str = "SKT_RESTART";

/// Settings of `skt-hpl run`.
#[derive(Clone, Debug)]
pub struct Settings {
    pub hosts: Vec<Host>,
    pub spares: Vec<Host>,
    pub ranks: usize,
    pub tool: Tool,
    pub shell: RemoteShell,
    /// The user's arguments for the launcher.
    pub extra: Vec<String>,
    /// The benchmark and its flags.
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Command that starts an agent on a node.
    pub agent: Vec<String>,
    pub folder: Folder,
    /// Job whose memory agents report. If `None`, they report the memory under the run's id if ranks show their progress, else
    /// all memory of this user.
    pub job: Option<String>,
    pub benchmark: Benchmark,
    pub thresholds: Thresholds,
    pub beat_ms: u64,
    /// Time without a message from the supervisor after which an agent ends ranks that make no progress.
    pub orphan_timeout_ms: u64,
    /// Largest number of nodes to which the supervisor, or an agent, is connected.
    pub fanout: usize,
    /// Number of faults in a row without progress at which the run stops.
    pub max_restarts: u32,
    pub may_double: bool,
    /// Time to wait for a repaired node. With `None` there is no wait.
    pub wait: Option<Duration>,
    /// Time at which to save and stop, by [`steady_ms`](crate::base::clock::steady_ms).
    pub stop_at_ms: Option<u64>,
    /// Time that a halt may take before the job's processes are killed.
    pub stop_timeout: Duration,
    /// Bytes of shared memory of a rank, if known.
    pub rank_bytes: Option<u64>,
    /// Whether to start MPI on trial before the first launch.
    pub trial: bool,
    /// Interval of progress lines if standard error is no terminal. With zero there are no lines.
    pub progress_every: Duration,
    /// Whether to begin a new run even if the folder has an unfinished run.
    pub discard: bool,
}

/// Facts about the run that are known only for skt-hpl's own benchmark, not for another program.
#[derive(Clone, Debug, Default)]
pub struct Benchmark {
    /// Whether every rank reports its progress, as ranks of skt-hpl's benchmark do.
    pub progress_shows: bool,
    /// Whether the other ranks continue in place when a rank is lost.
    pub in_place: bool,
    /// Whether the position of a lost rank stays vacant if the other ranks continue in place. Checksum columns then replace the
    /// rank's process column, whose other ranks become idle. Otherwise a rank that stands by takes the position.
    pub stays_vacant: bool,
    /// Memory that the ranks of each working node need, by the node's name.
    pub needs: BTreeMap<String, Need>,
    /// Group of each position, if the run is protected.
    pub groups: Vec<usize>,
    /// Rules that decide whether a node computes the same bits as the other nodes. `None` if identical bits are not promised.
    pub rounding: Option<Rules>,
    pub problem: Option<Problem>,
    /// Whether the ranks save checkpoints from which a run can resume.
    pub saves: bool,
    /// Checkpoint directory that all nodes share. From it the run can resume on any nodes.
    pub level2: Option<PathBuf>,
    /// Checkpoint directory, if each node has its own.
    pub own_level2: Option<PathBuf>,
    /// Whether the benchmark begins from scratch even if nodes have checkpoints.
    pub restarts_never: bool,
}

impl Settings {
    /// Returns whether ranks use persistent shared memory only to report their progress, and save nothing there.
    pub(super) fn shows_only_progress(&self) -> bool {
        self.job.is_none() && self.benchmark.progress_shows
    }

    /// Returns the settings that are sent to agents. The run's memory is that of `job`.
    pub(super) fn attend(&self, run_id: &str, job: Option<String>) -> Attend {
        Attend {
            fanout: self.fanout,
            beat_ms: self.beat_ms,
            node_timeout_ms: self.thresholds.node_timeout_ms,
            orphan_timeout_ms: self.orphan_timeout_ms,
            ..Attend::new(self.shell.clone(), self.agent.clone(), run_id, job)
        }
    }

    /// Returns the command that removes what a run of `job` has left on a node. `host` is the node's own host name, if known.
    pub(super) fn clean_command(&self, job: &str, host: Option<&str>) -> String {
        let mut words = vec!["skt-hpl".to_owned(), "clean".into(), "--job".into(), job.into()];
        if let Some(dir) = &self.benchmark.own_level2 {
            let dir = host.map_or_else(|| dir.clone(), |host| dir_of(dir, host));
            words.extend(["--level2".to_owned(), dir.display().to_string()]);
        }
        quote_all(&words)
    }

    /// Returns the environment variables for the ranks. If the run begins `from_scratch` and ranks save, a variable tells the
    /// ranks so, unless the user has set it.
    pub(super) fn variables(&self, from_scratch: bool) -> Vec<(String, String)> {
        let mut all = self.env.clone();
        if from_scratch && self.benchmark.saves && !all.iter().any(|(name, _)| name == RESTART_VAR)
        {
            all.push((RESTART_VAR.to_owned(), "never".to_owned()));
        }
        all
    }
}
