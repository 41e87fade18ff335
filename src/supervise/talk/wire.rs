//! Messages between supervisor and agents, in both directions: one JSON object per line.
//!
//! The lines are sent over the remote shell's standard streams. Lines that are no messages, for example those of a login script,
//! are ignored.

use serde::{Deserialize, Serialize};

use super::progress::Progress;
use super::shell::RemoteShell;
use crate::device::DeviceFacts;
use crate::kernels::arithmetic::Arithmetic;
use crate::supervise::judge::thresholds::Thresholds;

/// Version of the messages, raised with every change. Agent and supervisor should be the same binary in any case.
pub const WIRE_VERSION: u32 = 17;

/// Default of the largest number of connections of the supervisor or an agent. More nodes are reached through a tree.
pub const FANOUT: usize = 32;

/// Default time between two heartbeats.
pub const HEARTBEAT_MS: u64 = 500;

/// Default time without a message after which an agent is orphaned.
pub const ORPHAN_TIMEOUT_MS: u64 = 60_000;

/// The run to watch, and the settings for connections to the nodes below.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attend {
    pub run_id: String,
    /// Job whose memory the agent reports. If `None`, the agent reports all memory of this user.
    pub job: Option<String>,
    /// Name under which this node is known.
    pub node: String,
    /// Time without a message after which the agent ends the run's processes on its node, and then itself. The agent does so only
    /// if the ranks make no progress.
    pub orphan_timeout_ms: u64,
    /// Interval of the children's heartbeats.
    pub beat_ms: u64,
    /// Time without a message after which a node counts as lost.
    pub node_timeout_ms: u64,
    /// Largest number of children of the supervisor or an agent.
    pub fanout: usize,
    /// Time of a login, if the parent knows it. Nodes that take much longer are bypassed.
    pub login_ms: Option<u64>,
    pub shell: RemoteShell,
    /// Working directory of the supervisor. Relative paths in the remote shell's command begin there, on every node that has the
    /// folder.
    pub dir: Option<String>,
    /// Command that starts an agent.
    pub agent: Vec<String>,
}

impl Attend {
    /// Returns settings for a run with the default timings.
    pub fn new(shell: RemoteShell, agent: Vec<String>, run_id: &str, job: Option<String>) -> Self {
        Self {
            run_id: run_id.to_string(),
            job,
            orphan_timeout_ms: ORPHAN_TIMEOUT_MS,
            beat_ms: HEARTBEAT_MS,
            node_timeout_ms: Thresholds::default().node_timeout_ms,
            fanout: FANOUT,
            shell,
            dir: std::env::current_dir().ok().and_then(|dir| Some(dir.to_str()?.to_owned())),
            agent,
            ..Self::default()
        }
    }
}

/// A node that an agent is to call, directly or through other agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    pub node: u32,
    pub name: String,
    /// Whether the node's agent has answered an earlier caller. If so, the new caller reports at once that the node is quiet,
    /// until the node answers.
    pub again: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToAgent {
    /// The first message. Without it the agent only reports facts about the node.
    Attend(Attend),
    /// Answer with a heartbeat of the same number.
    Beat { seq: u64 },
    /// End the run's processes. With `clean`, also remove the run's memory.
    End { id: u64, clean: bool },
    /// End a rank of an attempt before attempt `below`. Either the other ranks have lost this rank, whose process may only be
    /// stopped, or the other ranks are to continue without it.
    EndRank { which: Which, below: u32 },
    /// Ask the ranks to save and stop (`now`), or to stop after their next save.
    Halt { now: bool },
    /// Take charge of these nodes, too: call them, and report about them.
    Call { nodes: Vec<Charge> },
    /// Give up charge of these nodes.
    Leave { nodes: Vec<u32> },
    /// Pass a message on to these nodes below the agent.
    Pass { to: Vec<u32>, message: Box<ToAgent> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromAgent {
    /// The first message of an agent.
    Hello(Box<Facts>),
    Beat(Beat),
    /// Short form of a heartbeat. The agent sends it if only values that change all the time, such as counters, have changed.
    /// It is also used for heartbeats of nodes below the agent.
    Moved(Moved),
    Ended {
        id: u64,
        ended: usize,
        beat: Beat,
    },
    /// Messages of nodes below the agent, and about these nodes.
    Below {
        told: Vec<(u32, FromAgent)>,
    },
    /// About a node below: the connection to the node ended.
    Closed {
        why: String,
    },
    /// About a node below: its caller has had no message from it for `age_ms`. Repeated until the node answers. The value is 0 if
    /// no agent calls the node at the moment.
    Quiet {
        age_ms: u64,
    },
    /// About a node below: the node answers its caller again.
    Heard,
}

/// Identification of a rank among the processes of a run on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Which {
    /// The rank with this number from the launcher.
    Launched(usize),
    Process(u32),
}

/// A heartbeat, with the state of the run on the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// Number of the request, or `None` if the agent sends the heartbeat without a request.
    pub seq: Option<u64>,
    /// Time between request and heartbeat, as measured by the parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip_ms: Option<u32>,
    /// Number of processes of the run on this node.
    pub processes: usize,
    /// Number of these processes that are stopped (state T), ranks or not.
    pub stopped: usize,
    pub ranks: Vec<Progress>,
    pub free: Free,
    /// Bytes of this job's memory on the node.
    pub held_bytes: u64,
    /// Number of grid positions with memory of this job on the node.
    pub held_positions: usize,
}

/// The values of a heartbeat that change all the time, in few bytes: the request's number and the time until the answer, as in
/// [`Beat`], and the counters of the ranks that have changed since the last message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved(pub Option<u64>, pub Option<u32>, Vec<Counters>);

/// A rank's index in the list, heartbeat count, iteration, computing time, operations, count of waits, and state letter. The
/// index is used because a list may have a position twice: of this job and of another job that has kept its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Counters(usize, u64, u64, u64, u64, u16, char);

impl Counters {
    fn of(at: usize, p: &Progress) -> Self {
        Self(at, p.beat, p.iteration, p.busy_us, p.flops, p.waits, p.state)
    }
}

impl Moved {
    /// Adds a later message, so that the result has the effect of both. The indices of both are in ascending order.
    pub fn and_then(&mut self, later: Moved) {
        let Moved(seq, round_trip_ms, ranks) = self;
        (*seq, *round_trip_ms) = (later.0, later.1);
        for counters in later.2 {
            match ranks.binary_search_by_key(&counters.0, |known| known.0) {
                Ok(known) => ranks[known] = counters,
                Err(between) => ranks.insert(between, counters),
            }
        }
    }
}

/// Maps a process state to one of three classes. Only a change of the class is reported at once.
fn told_at_once(state: char) -> char {
    match state {
        'T' | 't' => 'T',
        'X' | 'Z' => 'X',
        _ => 'R',
    }
}

/// A change of free memory counts as no change if it is at most the earlier value divided by this number.
const FREE_PART: u64 = 64;

impl Beat {
    /// Returns whether all differences from `last` are in values that change all the time.
    fn is_like(&self, last: &Self) -> bool {
        let like = |free: u64, before: u64| free.abs_diff(before) <= before / FREE_PART;
        let like_some = |free: Option<u64>, before: Option<u64>| {
            free.zip(before).map_or(free == before, |(free, before)| like(free, before))
        };
        let resting = |rank: &Progress| Progress {
            beat: 0,
            iteration: 0,
            busy_us: 0,
            flops: 0,
            waits: 0,
            state: told_at_once(rank.state),
            ..*rank
        };
        (self.processes, self.stopped, self.held_bytes, self.held_positions)
            == (last.processes, last.stopped, last.held_bytes, last.held_positions)
            && self.ranks.iter().map(resting).eq(last.ranks.iter().map(resting))
            && like(self.free.shm_bytes, last.free.shm_bytes)
            && like(self.free.memory_bytes, last.free.memory_bytes)
            && like_some(self.free.huge_bytes, last.free.huge_bytes)
            && like_some(self.free.sysv_bytes, last.free.sysv_bytes)
    }

    /// Returns the short form of this heartbeat, if all differences from `last` are in values that change all the time.
    pub fn moved_since(&self, last: &Self) -> Option<Moved> {
        let both = self.ranks.iter().zip(&last.ranks).enumerate();
        let moved = both.filter_map(|(at, (now, before))| {
            let now = Counters::of(at, now);
            (now != Counters::of(at, before)).then_some(now)
        });
        self.is_like(last).then(|| Moved(self.seq, self.round_trip_ms, moved.collect()))
    }

    /// Updates this heartbeat with a short form.
    pub fn moves(&mut self, moved: &Moved) {
        (self.seq, self.round_trip_ms) = (moved.0, moved.1);
        for &Counters(at, beat, iteration, busy_us, flops, waits, state) in &moved.2 {
            if let Some(rank) = self.ranks.get_mut(at) {
                *rank = Progress { beat, iteration, busy_us, flops, waits, state, ..*rank };
            }
        }
    }
}

/// Free memory of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Free {
    pub shm_bytes: u64,
    pub memory_bytes: u64,
    /// Free bytes in the pool of huge pages, or `None` if no hugetlbfs is mounted.
    pub huge_bytes: Option<u64>,
    /// Bytes that the kernel's limits leave for all System V segments together, or `None` if the kernel does not report this.
    pub sysv_bytes: Option<u64>,
}

/// The file system at /dev/shm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shm {
    pub bytes: u64,
    /// Whether the file system is in memory.
    pub is_memory: bool,
    /// Device number, which identifies a private /dev/shm.
    pub device: u64,
}

/// Facts about a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    pub wire: u32,
    pub version: String,
    /// Digest of the program file.
    pub binary: String,
    /// Arithmetic with which the node would compute.
    pub arithmetic: Arithmetic,
    pub host: String,
    /// Boot identity, which changes with every boot.
    pub boot: String,
    pub unix_ms: u64,
    pub cores: usize,
    pub memory_bytes: u64,
    pub free: Free,
    pub shm: Shm,
    /// Whether systemd-logind removes a user's shared memory at the last logout. logind spares system users. `None` if there is
    /// no logind.
    pub remove_ipc: Option<bool>,
    pub uid: u32,
    /// State of the checkpoint directory, if there is one, or the reason why it cannot be used.
    pub storage: Option<Result<Storage, String>>,
    /// Reason why helpers cannot have the processors of `--helper-cores` on this node, if there is one.
    pub helper_cores: Option<String>,
    /// Devices of the node, if the run computes on devices, or the reason why it cannot.
    pub devices: Option<Result<Vec<DeviceFacts>, String>>,
}

/// State of a checkpoint directory on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage {
    pub dir: String,
    pub free_bytes: u64,
    /// Bytes of this job's files in the directory. They are removed once newer checkpoints are complete.
    pub held_bytes: u64,
    /// Checkpoints to which these files belong, if each node has its own directory.
    pub lying: Vec<Lying>,
}

/// Files of a checkpoint of the job on a node's own storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lying {
    pub run: u128,
    pub test: u32,
    pub checkpoint: u64,
    /// Boundary of the checkpoint, if the node has its manifest. The manifest proves that the checkpoint was complete on all
    /// nodes.
    pub whole_at: Option<u64>,
    /// Positions whose files of the checkpoint are in the directory.
    pub positions: Vec<u32>,
}

impl Storage {
    /// Describes why the directory has no room for checkpoints of `checkpoint_bytes`. Returns `None` if it has room.
    pub fn lacking(&self, checkpoint_bytes: u64) -> Option<String> {
        let room = u128::from(self.free_bytes) + u128::from(self.held_bytes);
        let needed = 2 * u128::from(checkpoint_bytes);
        let mib = |bytes: u128| bytes.div_ceil(1 << 20);
        let dir = &self.dir;
        (room < needed).then(|| {
            format!(
                "--level2 {dir}: a checkpoint there takes {} MiB, and the previous checkpoint stays until the new one is \
                 complete: {} MiB are needed, {} MiB are free; remove files there (skt-hpl status --level2 {dir} lists those of skt-hpl), or \
                 name another folder",
                mib(checkpoint_bytes.into()),
                mib(needed),
                room >> 20
            )
        })
    }
}

impl Facts {
    /// Describes the node in one line, for people.
    pub fn line(&self) -> String {
        let mib = |bytes: u64| bytes >> 20;
        let mut text = format!(
            "{} cores, {} MiB of memory with {} MiB free, /dev/shm {} MiB with {} MiB free",
            self.cores,
            mib(self.memory_bytes),
            mib(self.free.memory_bytes),
            mib(self.shm.bytes),
            mib(self.free.shm_bytes)
        );
        for (number, device) in self.devices.iter().flatten().flatten().enumerate() {
            text += &format!("; device {number}: {device}");
        }
        text
    }
}

pub fn to_line<T: Serialize>(message: &T) -> String {
    serde_json::to_string(message).expect("messages are plain values") + "\n"
}

/// Returns the message in a line, or None if the line is no message.
pub fn from_line<T: for<'a> Deserialize<'a>>(line: &str) -> Option<T> {
    serde_json::from_str(line.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_cross_the_wire_and_chatter_is_passed_over() {
        let ended = FromAgent::Ended { id: 3, ended: 2, beat: Beat::default() };
        assert_eq!(from_line::<FromAgent>(&to_line(&ended)), Some(ended));
        let end = ToAgent::End { id: 3, clean: true };
        assert_eq!(from_line::<ToAgent>(&to_line(&end)), Some(end));
        for noise in ["", "Welcome to n1!", "{}", "\"what\"", "{\"what\":{}}"] {
            assert_eq!(from_line::<FromAgent>(noise), None);
        }
    }

    #[test]
    fn steady_progress_travels_in_few_bytes_and_updates_the_heartbeat() {
        use crate::supervise::talk::progress::{Doing, Role};
        let rank = |position, iteration, doing| Progress {
            position,
            iteration,
            doing,
            flops: 1 << 50,
            state: 'R',
            ..Progress::default()
        };
        let beat = |iteration, doing, free| Beat {
            processes: 2,
            ranks: vec![rank(4, iteration, doing), rank(5, iteration + 1, doing)],
            free: Free { memory_bytes: free, ..Free::default() },
            ..Beat::default()
        };
        let first = beat(10, Doing::Computing, 1 << 36);
        let later = beat(12, Doing::Computing, (1 << 36) + 4096);
        let mut moved = later.moved_since(&first).unwrap();
        let text = to_line(&FromAgent::Moved(moved.clone()));
        assert!(text.len() < 50 * later.ranks.len(), "{text}");
        let mut known = first.clone();
        known.moves(&moved);
        assert_eq!(known, Beat { free: first.free, ..later.clone() });
        // Ranks without a change are left out, and two messages combined have the effect of both.
        let last =
            Beat { ranks: vec![later.ranks[0], rank(5, 14, Doing::Computing)], ..later.clone() };
        let once_more = last.moved_since(&later).unwrap();
        assert_eq!(once_more.2.len(), 1);
        moved.and_then(once_more.clone());
        (0..2).for_each(|_| known.moves(&once_more));
        let mut both = first.clone();
        both.moves(&moved);
        assert_eq!([&both.ranks, &known.ranks], [&last.ranks; 2]);
        assert_eq!(later.moved_since(&later).unwrap().2, []);
        // The list has a position twice, and the second entry has changed.
        let mut twice = later.clone();
        twice.ranks[0] = Progress { state: 'X', ..rank(5, 3, Doing::Computing) };
        let mut moves_on = twice.clone();
        moves_on.ranks[1].beat += 1;
        let moved = moves_on.moved_since(&twice).unwrap();
        twice.moves(&moved);
        assert_eq!(twice, moves_on);
        // A process that begins to sleep does not need a full heartbeat. One that is stopped or has ended does.
        for (state, moves) in [('S', true), ('D', true), ('T', false), ('X', false)] {
            let mut beat = later.clone();
            beat.ranks[1].state = state;
            let moved = beat.moved_since(&later);
            assert_eq!(moved.is_some(), moves, "{state}");
            let mut known = later.clone();
            moved.iter().for_each(|moved| known.moves(moved));
            assert_eq!(known.ranks[1].state, if moves { state } else { 'R' });
        }
        // All other changes need a full heartbeat.
        assert_eq!(beat(12, Doing::Saving, 1 << 36).moved_since(&first), None);
        assert_eq!(beat(12, Doing::Computing, 1 << 35).moved_since(&first), None);
        let pool = |huge| {
            let free = Free { huge_bytes: Some(huge), ..later.free };
            Beat { free, ..later.clone() }
        };
        assert_eq!(pool(1 << 30).moved_since(&first), None);
        assert_eq!(pool(1 << 30).moved_since(&pool(1 << 31)), None);
        assert!(pool(1 << 30).moved_since(&pool(1 << 30)).is_some());
        assert_eq!(Beat { ranks: vec![], ..first.clone() }.moved_since(&first), None);
        let mut replaced = later.clone();
        replaced.ranks[1].role = Role::InPlaceOf(1);
        assert_eq!(replaced.moved_since(&first), None);
        assert_eq!(Beat { stopped: 1, ..first.clone() }.moved_since(&first), None);
    }
}
