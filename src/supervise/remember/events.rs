//! Events of a supervised run, as records of the journal, which is also the event log.
//!
//! The restart loop writes a [`Record`] for every step that must survive the supervisor. Three readers use the file: the
//! supervisor that takes over after a crash (`journal`), the report of each fault's cost (`timeline`), and the user's own tools.
//! docs/dev/supervision.md documents the schema. A field named there keeps its name and meaning.

use serde::{Deserialize, Serialize};

use crate::supervise::start::hosts::Host;
use crate::supervise::start::in_place::Gone;
use crate::supervise::start::launcher::Launcher;
use crate::supervise::talk::progress::words;

/// Kind of a fault of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// A rank's process ended before the run did.
    #[default]
    RankDied,
    /// A rank made no progress for a multiple of the usual time.
    RankHung,
    /// No heartbeat: the node was powered off suddenly, or cut off.
    NodeUnresponsive,
    /// The connection to the node ended and could not be made again.
    NodeGone,
    /// The node answers, but was rebooted: its memory is empty.
    NodeRebooted,
    /// The launcher ended or vanished before the run was finished.
    LauncherGone,
    /// The launcher runs but no rank appeared.
    LaunchFailed,
}

impl FaultKind {
    /// Returns the corrected kind of the fault, if a node with ranks is found lost while the attempt is being stopped. The loss
    /// of a node also ends ranks and the launcher, and this end may be noticed first.
    pub fn with_a_lost_node(self) -> Self {
        match self {
            FaultKind::RankDied | FaultKind::LauncherGone => FaultKind::NodeGone,
            other => other,
        }
    }

    /// Returns whether the program may have caused the fault. If such a fault repeats, the run stops.
    pub fn may_be_a_bug(self) -> bool {
        !matches!(self, FaultKind::NodeUnresponsive | FaultKind::NodeGone | FaultKind::NodeRebooted)
    }

    /// Returns whether a rank was seen to fail by itself, on a node that seemed well.
    pub fn is_of_a_rank(self) -> bool {
        matches!(self, FaultKind::RankDied | FaultKind::RankHung)
    }

    pub fn words(self) -> String {
        words(self)
    }
}

/// Identity of a process. The start time distinguishes it from a later process with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// Start time in clock ticks since boot, from /proc/PID/stat.
    pub started: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "snake_case")]
pub enum Event {
    /// The run has started. This is always the first record.
    RunStarted {
        run_id: String,
        version: String,
        /// Program and flags of the ranks.
        command: Vec<String>,
        launcher: Launcher,
        ranks: usize,
        hosts: Vec<Host>,
        spares: Vec<Host>,
        /// Name of the ranks' persistent shared memory, if they have any.
        job: Option<String>,
        /// Whether an earlier run was given up for this run. This run does not use the checkpoints of the earlier run.
        from_scratch: bool,
        supervisor_host: String,
        supervisor_pid: u32,
    },
    /// Another supervisor continues the run. `adopted`: the job was still running and is left running.
    TookOver { supervisor_host: String, supervisor_pid: u32, adopted: bool },
    /// Arithmetic of the first attempt's ranks. Nodes that would round differently are not used.
    Rounding { with: String },
    /// The launcher was started.
    Launched { attempt: u32, launcher: ProcessId, hosts: Vec<Host> },
    /// The first rank of this attempt was seen computing: the matrix is generated, or restored.
    Computing {
        attempt: u32,
        /// Number of the test in the input file, from zero. In each test iterations begin at 0 again.
        test: u32,
        iteration: u64,
    },
    /// The iteration reached before the last fault has been reached again.
    CaughtUp { attempt: u32, test: u32, iteration: u64 },
    /// A save was completed.
    Saved { attempt: u32, test: u32, iteration: u64 },
    /// The run is broken. `at_ms` of the record is the time at which the fault was noticed.
    Fault {
        fault: u32,
        attempt: u32,
        kind: FaultKind,
        /// Last moment at which the failed part was known to be well.
        failed_ms: u64,
        node: Option<String>,
        position: Option<u32>,
        test: u32,
        /// Furthest iteration that any rank had reached.
        iteration: u64,
        /// Iteration of the rank that died, if that is known and the rank was in the same test.
        rank_iteration: Option<u64>,
        /// Whether ranks of this attempt were seen. If not, `iteration` is that of an earlier attempt.
        ranks_seen: bool,
        detail: String,
    },
    /// Ranks were lost, and the other ranks continued in place. The times are those of the ranks, as far as their clocks agree
    /// with the supervisor's.
    GoneOn {
        /// Number of the fault, counted together with the faults that broke the run.
        fault: u32,
        attempt: u32,
        failed_ms: u64,
        noticed_ms: u64,
        agreed_ms: u64,
        going_on_ms: u64,
        lost: Vec<Gone>,
        test: u32,
        /// Furthest iteration that heartbeats had shown, or `boundary` if that is larger.
        iteration: u64,
        /// Boundary at which the ranks resume, or `None` if all tests were done.
        boundary: Option<u64>,
        detail: String,
    },
    /// A node cannot be used, so the run does not use it any more.
    NodeLost { node: String, why: String },
    /// A lost node answers again. This node is used only if no other node is left.
    NodeReturned {
        node: String,
        same_boot: bool,
        /// Number of processes of earlier attempts that were ended on the node.
        ended: usize,
    },
    /// A lost node answers again, and its memory of this run, which is not needed any more, was removed.
    MemoryRemoved { node: String, bytes: u64 },
    /// No node that answers has a running process of the attempt any more. `ended` is the number of processes that were ended.
    Stopped { attempt: u32, ended: usize, unreachable: Vec<String> },
    /// Node `by` takes the ranks of `node`. `by` may be a node that already has ranks.
    Replaced { node: String, by: String },
    /// A node is much slower than the other nodes. It is named, and stays in use.
    SlowNode { node: String, detail: String },
    /// A node's agent was started again. The ranks of the node were not affected.
    AgentRestarted { node: String },
    /// No node answers any more: the supervisor itself is cut off, and declares no node lost.
    Alone,
    /// A node answers again, after no node had answered for `after_ms`.
    Together { after_ms: u64 },
    /// `missing` nodes are needed, and no usable node is left. The run waits for repaired nodes.
    Waiting { missing: usize },
    /// The next launch is delayed by `delay_ms`, because faults repeat without progress.
    BackOff { delay_ms: u64 },
    /// The user asked the run to stop.
    HaltRequested { after_checkpoint: bool, why: String },
    /// The run has ended with exit status `code`. After 75, and after 4 if there are checkpoints, the same command continues the
    /// run.
    Finished { code: u8, why: String },
}

impl Event {
    /// Returns whether a supervisor that takes over must know of the event. The next step then waits until the record is on disk.
    pub fn is_step(&self) -> bool {
        match self {
            Event::RunStarted { .. }
            | Event::TookOver { .. }
            | Event::Rounding { .. }
            | Event::Launched { .. }
            | Event::Fault { .. }
            | Event::NodeLost { .. }
            | Event::Stopped { .. }
            | Event::Replaced { .. }
            | Event::Finished { .. } => true,
            Event::Computing { .. }
            | Event::GoneOn { .. }
            | Event::CaughtUp { .. }
            | Event::Saved { .. }
            | Event::NodeReturned { .. }
            | Event::MemoryRemoved { .. }
            | Event::SlowNode { .. }
            | Event::AgentRestarted { .. }
            | Event::Alone
            | Event::Together { .. }
            | Event::Waiting { .. }
            | Event::BackOff { .. }
            | Event::HaltRequested { .. } => false,
        }
    }
}

/// An event with its sequence number and its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub seq: u64,
    /// Milliseconds since the Unix epoch, by [`steady_ms`](crate::base::clock::steady_ms).
    pub at_ms: u64,
    #[serde(flatten)]
    pub event: Event,
}

#[cfg(test)]
pub(crate) use tests::samples;

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn samples() -> Vec<Event> {
        let hosts = vec![Host::new("n1", 2), Host::new("n2", 2)];
        vec![
            Event::RunStarted {
                run_id: "r".to_string(),
                version: "0".to_string(),
                command: vec!["x".to_string()],
                launcher: Launcher::Openmpi,
                ranks: 4,
                hosts: hosts.clone(),
                spares: vec![Host::new("n3", 2)],
                job: Some("j".to_string()),
                from_scratch: false,
                supervisor_host: "h".to_string(),
                supervisor_pid: 1,
            },
            Event::Launched { attempt: 1, launcher: ProcessId { pid: 5, started: 9 }, hosts },
            Event::Computing { attempt: 1, test: 0, iteration: 0 },
            Event::Saved { attempt: 1, test: 0, iteration: 8 },
            Event::Fault {
                fault: 1,
                attempt: 1,
                kind: FaultKind::NodeUnresponsive,
                failed_ms: 1500,
                node: Some("n2".to_string()),
                position: None,
                test: 0,
                iteration: 10,
                rank_iteration: None,
                ranks_seen: true,
                detail: "no heartbeat for 4.0 s".to_string(),
            },
            Event::NodeLost { node: "n2".to_string(), why: "no heartbeat".to_string() },
            Event::Stopped { attempt: 1, ended: 2, unreachable: vec!["n2".to_string()] },
            Event::Replaced { node: "n2".to_string(), by: "n3".to_string() },
            Event::Launched {
                attempt: 2,
                launcher: ProcessId { pid: 6, started: 10 },
                hosts: vec![Host::new("n1", 2), Host::new("n3", 2)],
            },
            Event::Computing { attempt: 2, test: 0, iteration: 8 },
            Event::CaughtUp { attempt: 2, test: 0, iteration: 10 },
            Event::Finished { code: 0, why: "passed".to_string() },
        ]
    }

    /// The names of the log's fields are an interface.
    #[test]
    fn records_are_flat_and_named_as_documented() {
        let record = Record { seq: 7, at_ms: 5500, event: samples()[4].clone() };
        let text = serde_json::to_string(&record).unwrap();
        for part in [
            r#""seq":7"#,
            r#""at_ms":5500"#,
            r#""event":"fault""#,
            r#""kind":"node-unresponsive""#,
            r#""failed_ms":1500"#,
            r#""node":"n2""#,
        ] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }
}
