//! What supervisor and agents say to each other: one JSON object a line, both ways.
//!
//! The lines travel over the remote shell's standard streams. Whatever else a login script prints there
//! is passed over: only lines that are messages count.

use serde::{Deserialize, Serialize};

use super::watch::RankSeen;

/// Raised with any change to the messages; agent and supervisor come from the same binary anyway.
pub const WIRE_VERSION: u32 = 5;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum ToAgent {
    /// First line: which run to look after. Without one the agent only tells about the node.
    Attend {
        run_id: String,
        /// Whose memory to look at; all of this user's where None.
        job: Option<String>,
        /// Without any word for so long, the agent ends the run's processes on its node and itself.
        lonely_ms: u64,
    },
    /// Answer with a beat of the same number.
    Beat { seq: u64 },
    /// End the run's processes, of incarnations below `below` if given; with `clean`, remove its memory too.
    End { id: u64, below: Option<u32>, clean: bool },
    /// Ask the ranks to save and stop (`now`), or to stop after their next save.
    Halt { now: bool },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum FromAgent {
    /// First line.
    Hello(Box<Facts>),
    Beat(Beat),
    Ended {
        id: u64,
        ended: usize,
        left: usize,
        beat: Beat,
    },
    /// So many ranks were told.
    Halting {
        told: usize,
    },
}

/// A sign of life, and what goes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// Number of the question; None where the agent speaks up by itself.
    pub seq: Option<u64>,
    /// Processes of the run on this node.
    pub processes: usize,
    /// How many of them are stopped (state T), ranks or not.
    pub stopped: usize,
    pub ranks: Vec<RankSeen>,
    /// What /dev/shm and the memory have left.
    pub shm_free_bytes: u64,
    pub memory_free_bytes: u64,
    /// Bytes and number of positions of this job's memory here.
    pub held_bytes: u64,
    pub held_positions: usize,
}

/// What a node is like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    pub wire: u32,
    pub version: String,
    /// Digest of the program file.
    pub binary: String,
    pub host: String,
    /// Changes with every boot.
    pub boot: String,
    pub unix_ms: u64,
    pub cores: usize,
    pub memory_bytes: u64,
    pub memory_free_bytes: u64,
    pub shm_bytes: u64,
    pub shm_free_bytes: u64,
    /// Whether /dev/shm is memory at all.
    pub shm_is_memory: bool,
    /// Device number of /dev/shm: tells a private one apart.
    pub shm_device: u64,
    /// What the pool of huge pages has left; None where no hugetlbfs is mounted.
    pub huge_free_bytes: Option<u64>,
    /// What systemd-logind does with a user's shared memory at the last logout: it matters for users
    /// other than system ones.
    pub remove_ipc: Option<bool>,
    pub uid: u32,
    /// Of the agent itself.
    pub agent_resident_bytes: u64,
}

impl Facts {
    /// The node in a line, for people.
    pub fn line(&self) -> String {
        let mib = |bytes: u64| bytes >> 20;
        format!(
            "{} cores, {} MiB of memory with {} MiB free, /dev/shm {} MiB with {} MiB free",
            self.cores,
            mib(self.memory_bytes),
            mib(self.memory_free_bytes),
            mib(self.shm_bytes),
            mib(self.shm_free_bytes)
        )
    }
}

pub fn to_line<T: Serialize>(message: &T) -> String {
    serde_json::to_string(message).expect("messages are plain values") + "\n"
}

/// A message, or None for a line that is none.
pub fn from_line<T: for<'a> Deserialize<'a>>(line: &str) -> Option<T> {
    serde_json::from_str(line.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_cross_the_wire_and_chatter_is_passed_over() {
        let ended = FromAgent::Ended { id: 3, ended: 2, left: 0, beat: Beat::default() };
        assert_eq!(from_line::<FromAgent>(&to_line(&ended)), Some(ended));
        let end = ToAgent::End { id: 3, below: Some(2), clean: true };
        assert_eq!(from_line::<ToAgent>(&to_line(&end)), Some(end));
        for noise in ["", "Welcome to n1!", "{}", "{\"say\":\"what\"}"] {
            assert_eq!(from_line::<FromAgent>(noise), None);
        }
    }
}
