//! What the ranks of a run do, as an agent sees it on its node.
//!
//! Each grid position keeps progress words at a fixed place of the `head` part of its named memory. The agent
//! reads those few bytes from the file without mapping it: a rank that is being killed, or memory that is
//! being removed, can do nothing worse to it than a short read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a rank is busy with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doing {
    #[default]
    Starting,
    Generating,
    Computing,
    Saving,
    Recovering,
    Solving,
    Verifying,
    Done,
}

impl Doing {
    const ALL: [Doing; 8] = [
        Doing::Starting,
        Doing::Generating,
        Doing::Computing,
        Doing::Saving,
        Doing::Recovering,
        Doing::Solving,
        Doing::Verifying,
        Doing::Done,
    ];

    fn from_word(word: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(word).ok()?).copied()
    }

    pub fn words(self) -> &'static str {
        match self {
            Doing::Starting => "starting",
            Doing::Generating => "generating",
            Doing::Computing => "computing",
            Doing::Saving => "saving",
            Doing::Recovering => "recovering",
            Doing::Solving => "solving",
            Doing::Verifying => "verifying",
            Doing::Done => "done",
        }
    }
}

/// One rank's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub position: u32,
    pub pid: u32,
    /// Counts up whenever the rank does anything.
    pub beat: u64,
    pub iteration: u64,
    pub doing: Doing,
}

/// Where the agent gets progress from.
pub trait ProgressSource {
    /// Every position found on this node, also those whose process has died.
    fn sample(&mut self) -> Vec<Progress>;
    /// Bytes of shared memory that positions of this job hold on this node, and how many there are.
    fn held(&self) -> (u64, usize);
}

/// Progress words in the heads of named POSIX memory.
#[derive(Debug)]
pub struct Heads {
    folder: PathBuf,
    /// `skt-hpl.<uid>.<job>.`
    prefix: String,
}

/// Where the progress words lie: heartbeat, iteration, doing, pid; each eight bytes, little-endian.
const PROGRESS_AT: u64 = 64;
const PROGRESS_BYTES: usize = 32;

impl Heads {
    pub fn new(folder: impl Into<PathBuf>, uid: u32, job: &str) -> Self {
        Self {
            folder: folder.into(),
            prefix: format!("skt-hpl.{uid}.{job}."),
        }
    }

    /// Files of this job: position, part, path.
    fn files(&self) -> impl Iterator<Item = (u32, String, PathBuf)> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten();
        entries.flatten().filter_map(|entry| {
            let name = entry.file_name();
            let rest = name.to_str()?.strip_prefix(&self.prefix)?;
            let (position, part) = rest.strip_prefix('p')?.split_once('.')?;
            Some((position.parse().ok()?, part.to_string(), entry.path()))
        })
    }
}

fn word(bytes: &[u8], index: usize) -> u64 {
    bytes[8 * index..8 * index + 8]
        .try_into()
        .map_or(0, u64::from_le_bytes)
}

impl ProgressSource for Heads {
    fn sample(&mut self) -> Vec<Progress> {
        let mut found: Vec<Progress> = self
            .files()
            .filter(|(_, part, _)| part == "head")
            .filter_map(|(position, _, path)| {
                let mut bytes = [0u8; PROGRESS_BYTES];
                File::open(path)
                    .ok()?
                    .read_exact_at(&mut bytes, PROGRESS_AT)
                    .ok()?;
                Some(Progress {
                    position,
                    beat: word(&bytes, 0),
                    iteration: word(&bytes, 1),
                    doing: Doing::from_word(word(&bytes, 2))?,
                    pid: u32::try_from(word(&bytes, 3)).ok()?,
                })
            })
            .collect();
        found.sort_by_key(|p| p.position);
        found
    }

    fn held(&self) -> (u64, usize) {
        let mut bytes = 0;
        let mut positions = std::collections::BTreeSet::new();
        for (position, _, path) in self.files() {
            positions.insert(position);
            bytes += path.metadata().map_or(0, |m| m.len());
        }
        (bytes, positions.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(words: [u64; 4]) -> Vec<u8> {
        let mut bytes = vec![0u8; 4096];
        for (i, w) in words.iter().enumerate() {
            bytes[64 + 8 * i..72 + 8 * i].copy_from_slice(&w.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn heads_of_this_job_only_and_no_nonsense() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        write("skt-hpl.0.job.p3.head", &head([7, 12, 2, 99]));
        write("skt-hpl.0.job.p3.a", &[0; 1000]);
        write("skt-hpl.0.job.p1.head", &head([1, 0, 1, 98]));
        write("skt-hpl.0.job.p4.head", &head([1, 0, 77, 98]));
        write("skt-hpl.0.job.p5.head", &[0; 70]);
        write("skt-hpl.0.job2.p1.head", &head([1, 0, 1, 98]));
        write("skt-hpl.1.job.p2.head", &head([1, 0, 1, 98]));
        let mut heads = Heads::new(dir.path(), 0, "job");
        let sample = heads.sample();
        assert_eq!(sample.len(), 2, "{sample:?}");
        assert_eq!(
            sample[1],
            Progress {
                position: 3,
                pid: 99,
                beat: 7,
                iteration: 12,
                doing: Doing::Computing
            }
        );
        assert_eq!(heads.held(), (3 * 4096 + 1000 + 70, 4));
    }
}
