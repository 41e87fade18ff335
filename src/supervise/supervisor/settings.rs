//! Everything `skt-hpl run` was told: which nodes, which launcher, which benchmark, and how long to wait for what.
//!
//! The command line fills it in; the supervisor never changes it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::checkpoint::storage::names::dir_of;
use crate::kernels::arithmetic::Rules;
use crate::supervise::judge::fitness::Need;
use crate::supervise::judge::life::Bonds;
use crate::supervise::judge::policy::Patience;
use crate::supervise::judge::thresholds::Thresholds;
use crate::supervise::remember::folder::Folder;
use crate::supervise::start::hosts::Host;
use crate::supervise::start::launcher::Tool;
use crate::supervise::talk::shell::{RemoteShell, quote_all};
use crate::supervise::tell::status::Problem;

/// The benchmark's `--restart`, where its command does not have it.
const RESTART_VAR: &str = "SKT_RESTART";

/// Everything `skt-hpl run` was told.
#[derive(Clone, Debug)]
pub struct Settings {
    pub hosts: Vec<Host>,
    pub spares: Vec<Host>,
    pub ranks: usize,
    pub tool: Tool,
    pub shell: RemoteShell,
    /// Arguments of the user's for the launcher.
    pub extra: Vec<String>,
    /// The benchmark and its flags.
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Command that starts an agent on a node.
    pub agent: Vec<String>,
    pub folder: Folder,
    /// Whose memory to look at. Where None: that of the run's own name if the ranks show their progress, else
    /// all of this user's.
    pub job: Option<String>,
    pub benchmark: Benchmark,
    pub thresholds: Thresholds,
    pub beat_ms: u64,
    /// After so long without a message from above, an agent ends ranks that stand still.
    pub lonely_ms: u64,
    /// Most connections of the supervisor, or an agent, to nodes.
    pub fanout: usize,
    pub patience: Patience,
    pub may_double: bool,
    /// How long to wait for a repaired node; None: not at all.
    pub wait: Option<Duration>,
    /// When to save and stop, by [`steady_ms`](crate::supervise::remember::events::steady_ms).
    pub stop_at_ms: Option<u64>,
    /// How long a halt may take before the job is ended the hard way.
    pub halt_patience: Duration,
    /// Bytes of shared memory of a rank, where they are known.
    pub rank_bytes: Option<u64>,
    /// Start MPI on trial before the first launch.
    pub trial: bool,
    /// Interval of progress lines where no terminal shows the progress; zero: never.
    pub progress_every: Duration,
    /// Begin a new run although an unfinished one lies in the folder.
    pub discard: bool,
}

/// Facts about the run that only skt-hpl's own benchmark lets the supervisor know; of another program nothing is known.
#[derive(Clone, Debug, Default)]
pub struct Benchmark {
    /// Whether every rank shows its progress: the benchmark's own do.
    pub progress_shows: bool,
    /// By how much ranks can be ahead of each other.
    pub bonds: Option<Bonds>,
    /// Whether the job continues in its processes when it loses one.
    pub in_place: bool,
    /// Whether a lost rank's position stays vacant then: checksums do its work, and the rest of its process column stands
    /// idle. Otherwise ranks stand by that take the places of others.
    pub stays_vacant: bool,
    /// Need of the ranks on each working node, by name.
    pub needs: BTreeMap<String, Need>,
    /// The group of each position, where something protects.
    pub groups: Vec<usize>,
    /// Rules that decide whether a node computes the same bits as the others; None where those are not promised.
    pub rounding: Option<Rules>,
    pub problem: Option<Problem>,
    /// Whether the ranks save what a run can resume from.
    pub saves: bool,
    /// Checkpoint directory that all nodes share: from there the run resumes on any nodes.
    pub level2: Option<PathBuf>,
    /// Checkpoint directory of which each node has its own.
    pub own_level2: Option<PathBuf>,
    /// The benchmark begins from scratch, whatever checkpoints lie on nodes.
    pub restarts_never: bool,
}

impl Settings {
    /// Nothing is saved: the only named memory is what the ranks show their progress in.
    pub(super) fn shows_only_progress(&self) -> bool {
        self.job.is_none() && self.benchmark.progress_shows
    }

    /// The command that removes what a run of that `job` has left on a node, which calls itself `host` if that is known.
    pub(super) fn clean_command(&self, job: &str, host: Option<&str>) -> String {
        let mut words = vec!["skt-hpl".to_owned(), "clean".into(), "--job".into(), job.into()];
        if let Some(dir) = &self.benchmark.own_level2 {
            let dir = host.map_or_else(|| dir.clone(), |host| dir_of(dir, host));
            words.extend(["--level2".to_owned(), dir.display().to_string()]);
        }
        quote_all(&words)
    }

    /// Whether checkpoints that lie on nodes before the first of these launches are thrown away by it. Later they are the run's.
    pub(super) fn throws_away(&self, anew: bool, incarnation: u32) -> bool {
        incarnation == 0 && (anew || self.benchmark.restarts_never)
    }

    /// Variables for the ranks; where the run begins `anew`, the benchmark is told so, unless it was told otherwise.
    pub(super) fn variables(&self, anew: bool) -> Vec<(String, String)> {
        let mut all = self.env.clone();
        if anew && self.benchmark.saves && !all.iter().any(|(name, _)| name == RESTART_VAR) {
            all.push((RESTART_VAR.to_owned(), "never".to_owned()));
        }
        all
    }
}
