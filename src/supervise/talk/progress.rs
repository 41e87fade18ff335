//! Progress of a run's ranks, as an agent reads it on its node.
//!
//! The rank of each grid position publishes its progress in the header of its persistent shared memory. The agent reads it
//! without a lock. So the agent notices a rank that hangs deep in MPI, and can read the last progress of a rank that was killed.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

pub use crate::shm::header::Doing;
use crate::shm::header::{CheckpointId, Head, Identity, SUMS, WITHOUT_SUMS};
use crate::shm::memory_store::Listed;
use crate::shm::{Held, MemoryStore, Part, Store};

/// Returns the name of an enum variant as words, for people. The variant must have no fields.
pub fn words(variant: impl Serialize) -> String {
    let name = serde_json::to_string(&variant).expect("a name has a JSON form");
    name.trim_matches('"').replace('-', " ")
}

/// Role of a position's rank in a test that checksum columns protect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The rank computes its own share of the matrix.
    #[default]
    Own,
    /// The rank has checksum columns.
    Sums,
    /// The rank's checksum column replaces this lost process column.
    InPlaceOf(u32),
}

impl Role {
    /// Returns the role, or `None` if no checksum columns protect the test.
    pub fn of(id: &Identity) -> Option<Self> {
        match (id.code, id.group) {
            (SUMS, column) if column < id.q => Some(Role::InPlaceOf(column)),
            (SUMS, _) => Some(Role::Sums),
            (WITHOUT_SUMS, _) => Some(Role::Own),
            _ => None,
        }
    }
}

/// Progress of a rank, as its node's agent reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub position: u32,
    pub pid: u32,
    /// Counter that the rank increases with each piece of work.
    pub beat: u64,
    pub iteration: u64,
    pub doing: Doing,
    /// Last complete checkpoint, and the boundary at which it was taken.
    pub saved: Option<(CheckpointId, u64)>,
    /// Size of the problem, or zero if the header does not have it.
    pub n: u64,
    /// Size of a block, or zero if the header does not have it.
    pub nb: u64,
    /// Number of the test in the input file.
    pub test: u32,
    /// Time in which the process has multiplied, without waiting.
    pub busy_us: u64,
    /// Number of floating-point operations in that time.
    pub flops: u64,
    /// Counter that changes while the rank waits for other ranks, if the rank reports waiting.
    pub waits: u16,
    pub role: Role,
    /// State letter of the process as in /proc/PID/stat, or 'X' if the process has ended.
    pub state: char,
}

impl Progress {
    pub fn lives(&self) -> bool {
        !matches!(self.state, 'X' | 'Z')
    }

    /// Returns whether the same process has made progress since `before`. Reported waiting counts as progress.
    pub fn has_got_on_since(&self, before: &Self) -> bool {
        let counts = |p: &Self| (p.beat, p.iteration, p.busy_us, p.waits);
        (self.position, self.pid) == (before.position, before.pid) && counts(self) != counts(before)
    }
}

/// Headers in persistent shared memory on this node, of one job or of all jobs of this user.
#[derive(Debug, Default)]
pub struct Heads {
    job: Option<String>,
    /// List of the node's persistent shared memory at the last sample. It is kept because making the list takes most of an
    /// agent's time.
    listed: Listed,
    /// Headers that can be read, each with its position.
    open: Vec<(u32, Head)>,
}

impl Heads {
    pub fn new(job: Option<String>) -> Self {
        Self { job, ..Self::default() }
    }

    fn found(&self) -> impl Iterator<Item = &Held> {
        let ours = |held: &&Held| self.job.as_ref().is_none_or(|job| *job == held.job);
        self.listed.held().iter().filter(ours)
    }

    /// Maps the headers in shared memory that can be read, each with its position.
    fn open(&self) -> Vec<(u32, Head)> {
        // Making a store reads the list of all mounts, so a store is made once for each job, not for each position.
        let mut depots: HashMap<(Store, &str), Option<MemoryStore>> = HashMap::new();
        let heads = self.found().filter(|held| held.part == Part::Head);
        let open = heads.filter_map(|held| {
            let made = || MemoryStore::new(held.store, &held.job).ok();
            let memory_store = depots.entry((held.store, held.job.as_str())).or_insert_with(made);
            let region = memory_store.as_ref()?.peek(held.position, Part::Head).ok()?;
            Some((held.position, Head::new(region).ok()?))
        });
        open.collect()
    }

    /// Returns the progress of every position found on this node, also of positions whose process has died.
    pub fn sample(&mut self) -> Vec<Progress> {
        if self.listed.look() {
            self.open = self.open();
        }
        let heads = self.open.iter().filter(|(_, head)| head.is_readable());
        heads.filter_map(|(position, head)| shown(*position, head)).collect()
    }

    /// Returns the bytes of shared memory that positions of this job had on this node at the last sample, and the number of
    /// positions.
    pub fn held(&self) -> (u64, usize) {
        let heads = self.found().filter(|h| h.part == Part::Head).count();
        (self.found().map(|h| h.bytes).sum(), heads)
    }
}

/// Returns the progress that a header shows.
fn shown(position: u32, head: &Head) -> Option<Progress> {
    let words = head.progress();
    let mut progress = Progress {
        position,
        pid: u32::try_from(words.pid).ok()?,
        beat: words.heartbeat,
        iteration: words.iteration,
        doing: Doing::from_word(words.doing)?,
        busy_us: words.busy_us,
        flops: words.flops,
        waits: words.waits as u16,
        state: 'X',
        ..Progress::default()
    };
    if let Ok(header) = head.read() {
        progress.saved = header.claim.base.map(|id| (id, header.base.boundary));
        (progress.n, progress.nb) = (header.id.n, header.id.nb);
        progress.test = header.id.test;
        progress.role = Role::of(&header.id).unwrap_or_default();
    }
    Some(progress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::header::{HEAD_BYTES, NO_CODE};
    use crate::testkit::memory::until_free;

    #[test]
    fn a_head_says_whose_work_checksums_do() {
        let id = |code, group| {
            let mut header = crate::testkit::memory::sample();
            (header.id.code, header.id.group, header.id.q) = (code, group, 2);
            Role::of(&header.id)
        };
        assert_eq!([id(NO_CODE, 1), id(0, 3)], [None; 2]);
        let roles = [id(WITHOUT_SUMS, 1), id(SUMS, 2), id(SUMS, 1)];
        assert_eq!(roles, [Role::Own, Role::Sums, Role::InPlaceOf(1)].map(Some));
    }

    #[test]
    fn heads_of_this_job_only() {
        let name = format!("progress-{}", std::process::id());
        let other = format!("{name}-other");
        let ours = MemoryStore::new(Store::Posix, &name).unwrap();
        let theirs = MemoryStore::new(Store::Posix, &other).unwrap();
        let head = Head::new(ours.create(3, Part::Head, HEAD_BYTES).unwrap()).unwrap();
        head.tick(Doing::Computing, 12);
        let _a = ours.create(3, Part::A, 1000).unwrap();
        let _foreign = theirs.create(4, Part::Head, HEAD_BYTES).unwrap();
        let mut heads = Heads::new(Some(name));
        let sample = heads.sample();
        let held = heads.held();
        drop((head, _a, _foreign));
        until_free(&ours, 3);
        until_free(&theirs, 4);
        ours.clean().unwrap();
        theirs.clean().unwrap();
        let expected = Progress {
            position: 3,
            pid: std::process::id(),
            beat: 1,
            iteration: 12,
            doing: Doing::Computing,
            state: 'X',
            ..Progress::default()
        };
        assert_eq!(sample, [expected]);
        assert_eq!(held, (HEAD_BYTES as u64 + 1000, 1));
        assert_eq!(heads.sample(), []);
    }
}
