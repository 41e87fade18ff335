//! What happens in a supervised run, as records: journal and event log in one.
//!
//! The restart loop writes a [`Record`] for every step it must not forget. The same file serves the
//! supervisor that has to take over after a crash (`journal`), the report of what each fault cost
//! (`timeline`) and any tool of the user's: the schema is documented in docs/dev/supervision.md, and a field
//! named there keeps its name and meaning.

use serde::{Deserialize, Serialize};

use crate::base::clock;
use crate::supervise::start::hosts::Host;
use crate::supervise::start::in_place::Gone;
use crate::supervise::start::launcher::Launcher;

/// What struck the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// A rank's process ended although the run had not.
    RankDied,
    /// A rank made no progress for a multiple of what it should take.
    RankHung,
    /// No heartbeat: powered off without a word, or cut off.
    NodeSilent,
    /// The connection to the node ended and could not be made again.
    NodeGone,
    /// The node answers, but has been started anew since: its memory is empty.
    NodeRebooted,
    /// The launcher ended, or vanished, without the run being finished.
    LauncherGone,
    /// The launcher runs but no rank appeared.
    LaunchFailed,
}

impl FaultKind {
    /// What it was where a node that ranks ran on turns out to be lost while the incarnation is stopped. A lost node takes
    /// ranks and launcher along, and their end may be heard of first.
    pub fn with_a_lost_node(self) -> Self {
        match self {
            FaultKind::RankDied | FaultKind::LauncherGone => FaultKind::NodeGone,
            other => other,
        }
    }

    /// Whether it may be the program's own doing, to be stopped if it comes again and again.
    pub fn may_be_a_bug(self) -> bool {
        !matches!(self, FaultKind::NodeSilent | FaultKind::NodeGone | FaultKind::NodeRebooted)
    }

    /// A rank was seen to fail by itself, its node being well as far as is known.
    pub fn is_of_a_rank(self) -> bool {
        matches!(self, FaultKind::RankDied | FaultKind::RankHung)
    }

    pub fn words(self) -> &'static str {
        match self {
            FaultKind::RankDied => "rank died",
            FaultKind::RankHung => "rank hung",
            FaultKind::NodeSilent => "node silent",
            FaultKind::NodeGone => "node gone",
            FaultKind::NodeRebooted => "node rebooted",
            FaultKind::LauncherGone => "launcher gone",
            FaultKind::LaunchFailed => "launch failed",
        }
    }
}

/// What records of before mean that do not say it.
fn yes() -> bool {
    true
}

/// A process, so that a recycled pid is not mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// Start time in clock ticks since boot, as /proc/PID/stat tells it.
    pub started: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "snake_case")]
pub enum Event {
    /// Always the first record.
    RunStarted {
        run_id: String,
        version: String,
        /// What the ranks run: program and flags.
        command: Vec<String>,
        launcher: Launcher,
        ranks: usize,
        hosts: Vec<Host>,
        spares: Vec<Host>,
        /// The name of the ranks' memory, if they have any.
        #[serde(default)]
        job: Option<String>,
        /// An earlier run was given up for this one, which does not go on from what that has left.
        #[serde(default)]
        anew: bool,
        supervisor_host: String,
        supervisor_pid: u32,
    },
    /// Another supervisor goes on with the run. `adopted`: the job was still running and is left running.
    TookOver { supervisor_host: String, supervisor_pid: u32, adopted: bool },
    /// What the ranks of the first incarnation will compute with; nodes that would round otherwise are not taken.
    Rounding { with: String },
    /// The launcher was started.
    Launched { incarnation: u32, launcher: ProcessId, hosts: Vec<Host> },
    /// The first rank was seen computing in this incarnation: matrix generated, or restored.
    Computing {
        incarnation: u32,
        /// Which test of the input file, from zero: in each of them iterations begin anew.
        #[serde(default)]
        test: u32,
        iteration: u64,
    },
    /// The iteration reached before the last fault has been reached again.
    CaughtUp {
        incarnation: u32,
        #[serde(default)]
        test: u32,
        iteration: u64,
    },
    /// A save was completed.
    Saved {
        incarnation: u32,
        #[serde(default)]
        test: u32,
        iteration: u64,
    },
    /// The run is broken; `at_ms` of the record is when that was noticed.
    Fault {
        fault: u32,
        incarnation: u32,
        kind: FaultKind,
        /// Last moment at which what failed was known to be well.
        struck_ms: u64,
        node: Option<String>,
        position: Option<u32>,
        #[serde(default)]
        test: u32,
        /// The furthest that any rank had come.
        iteration: u64,
        /// How far the one had come that died, where that is known and it was in the same test.
        #[serde(default)]
        rank_iteration: Option<u64>,
        /// Ranks of this incarnation were seen. Where they were not, `iteration` is how far those before had come.
        #[serde(default = "yes")]
        ranks_seen: bool,
        detail: String,
    },
    /// Ranks were lost, and those that are left went on in place. The moments are those of the ranks, as far as their clocks
    /// agree with the supervisor's.
    GoneOn {
        /// Counted with the faults that broke the run.
        fault: u32,
        incarnation: u32,
        struck_ms: u64,
        noticed_ms: u64,
        agreed_ms: u64,
        going_on_ms: u64,
        lost: Vec<Gone>,
        #[serde(default)]
        test: u32,
        /// The furthest that heartbeats saw before, or the boundary.
        iteration: u64,
        /// Where it goes on; None where all tests were done.
        boundary: Option<u64>,
        detail: String,
    },
    /// A node was found unusable; it stays out of this run.
    NodeLost { node: String, why: String },
    /// A lost node answers again. It is used only if nothing else is left.
    NodeReturned {
        node: String,
        same_boot: bool,
        /// Processes of older incarnations that were ended there.
        ended: usize,
    },
    /// A lost node that is back has removed what it held of this run, which nobody needs any more.
    MemoryRemoved { node: String, bytes: u64 },
    /// Nothing of the job runs any more on any node that answers.
    Stopped { incarnation: u32, ended: usize, unreachable: Vec<String> },
    /// `by` takes the ranks of `node`. Equal to a survivor's name where that one takes more ranks.
    Replaced { node: String, by: String },
    /// A node is much slower than the others. It is named, not removed.
    SlowNode { node: String, detail: String },
    /// A node's agent was started again, its ranks being well.
    AgentRestarted { node: String },
    /// No node answers any more: the supervisor itself is cut off, and gives nobody up.
    Alone,
    /// Nodes answer again, after so long.
    Together { after_ms: u64 },
    /// No node is left to go on with; waiting for one.
    Waiting { missing: usize },
    /// A launch is put off.
    BackOff { delay_ms: u64 },
    /// Somebody asked the run to stop.
    HaltRequested { after_checkpoint: bool, why: String },
    /// The end: the exit status, and why. After 75, and 4 where something was saved, the same command goes on.
    Finished { code: u8, why: String },
}

impl Event {
    /// Whether a supervisor that takes over must know of it: then the next step waits until it is on disk.
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

/// An event, its place in the order and its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub seq: u64,
    /// Milliseconds since the Unix epoch, by [`steady_ms`].
    pub at_ms: u64,
    #[serde(flatten)]
    pub event: Event,
}

/// Now, in milliseconds since the Unix epoch, by the clock on the wall: for moments that other processes tell or are told.
pub fn unix_ms() -> u64 {
    clock::since_1970().as_millis() as u64
}

/// The same by a clock that nobody sets while this process lives: it begins with the time on the wall. For durations and
/// limits, which must not show that somebody has put the clock right.
pub fn steady_ms() -> u64 {
    clock::steady_since_1970().as_millis() as u64
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
                anew: false,
                supervisor_host: "h".to_string(),
                supervisor_pid: 1,
            },
            Event::Launched { incarnation: 1, launcher: ProcessId { pid: 5, started: 9 }, hosts },
            Event::Computing { incarnation: 1, test: 0, iteration: 0 },
            Event::Saved { incarnation: 1, test: 0, iteration: 8 },
            Event::Fault {
                fault: 1,
                incarnation: 1,
                kind: FaultKind::NodeSilent,
                struck_ms: 1500,
                node: Some("n2".to_string()),
                position: None,
                test: 0,
                iteration: 10,
                rank_iteration: None,
                ranks_seen: true,
                detail: "no heartbeat for 4.0 s".to_string(),
            },
            Event::NodeLost { node: "n2".to_string(), why: "silent".to_string() },
            Event::Stopped { incarnation: 1, ended: 2, unreachable: vec!["n2".to_string()] },
            Event::Replaced { node: "n2".to_string(), by: "n3".to_string() },
            Event::Launched {
                incarnation: 2,
                launcher: ProcessId { pid: 6, started: 10 },
                hosts: vec![Host::new("n1", 2), Host::new("n3", 2)],
            },
            Event::Computing { incarnation: 2, test: 0, iteration: 8 },
            Event::CaughtUp { incarnation: 2, test: 0, iteration: 10 },
            Event::Finished { code: 0, why: "passed".to_string() },
        ]
    }

    /// The names in the log are an interface.
    #[test]
    fn records_are_flat_and_named_as_documented() {
        let record = Record { seq: 7, at_ms: 5500, event: samples()[4].clone() };
        let text = serde_json::to_string(&record).unwrap();
        for part in [
            r#""seq":7"#,
            r#""at_ms":5500"#,
            r#""event":"fault""#,
            r#""kind":"node-silent""#,
            r#""struck_ms":1500"#,
            r#""node":"n2""#,
        ] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }
}
