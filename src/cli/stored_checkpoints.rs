//! Data of protected runs on storage, which `status` lists and `clean` removes, and free space on storage, which `doctor`
//! measures. The file `held.rs` has the same for data in memory.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::base::host_name;
use crate::checkpoint::storage::checkpoint_dir::{self, free_bytes};
use crate::checkpoint::storage::names::{Key, dir_of};
use crate::checkpoint::storage::writing::Flow;
use crate::checkpoint::storage::{CheckpointDir, DirScope, speed};
use crate::config::memory_need::human;
use crate::config::settings::{Level2, Saves};
use crate::driver::level2::words as of_checkpoint;
use crate::lu::unix_seconds;
use crate::supervise::talk::agent::Dir;
use crate::supervise::talk::wire::{Lying, Storage};

/// Content of the checkpoint directory of a job.
#[derive(Debug, Serialize)]
pub struct Job {
    pub job: String,
    pub bytes: u64,
    pub checkpoints: Vec<StoredCheckpoint>,
    /// Tests whose results are in this directory.
    pub results: Vec<u32>,
    /// Folders of checkpoints that are not complete.
    pub unfinished: Vec<String>,
    /// Invalid files, with the reason.
    pub damaged: Vec<String>,
}

/// A complete checkpoint.
#[derive(Debug, Serialize)]
pub struct StoredCheckpoint {
    pub run: String,
    pub test: u32,
    pub checkpoint: u64,
    pub boundary: u64,
    pub n: u64,
    pub nb: u64,
    pub p: u32,
    pub q: u32,
    pub arithmetic: String,
    pub bytes: u64,
    /// Positions whose files are in this node's DIR, if each node has its own DIR. The checkpoint then also needs files of other
    /// nodes. `None` if all nodes share one DIR.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub positions: Option<Vec<u32>>,
    pub written_unix_s: u64,
    #[serde(skip)]
    line: String,
}

/// Lists all jobs of this user that have data in the folder `dir`.
pub fn survey(dir: &Path) -> Result<Vec<Job>, String> {
    let dir = &here(dir);
    let jobs = checkpoint_dir::list_user(dir)?.into_iter().map(|listed| {
        let checkpoint_dir = CheckpointDir::new(dir, &listed.job);
        let (inventory, fault) = match listed.inventory {
            Ok(inventory) => (inventory, None),
            Err(why) => (Default::default(), Some(why)),
        };
        let checkpoint = |key: Key| {
            let manifest = checkpoint_dir.manifest(key).ok()??;
            let about = &manifest.about;
            Some(StoredCheckpoint {
                run: format!("{:032x}", about.run),
                test: about.test,
                checkpoint: about.checkpoint,
                boundary: about.boundary,
                n: about.n,
                nb: about.nb,
                p: about.p,
                q: about.q,
                arithmetic: about.arithmetic.clone(),
                bytes: manifest.bytes(),
                positions: match manifest.dir_scope {
                    DirScope::Shared => None,
                    DirScope::Node => Some(manifest.files.iter().map(|f| f.position).collect()),
                },
                written_unix_s: manifest.written_unix_s,
                line: of_checkpoint(about),
            })
        };
        Job {
            job: listed.job,
            bytes: listed.bytes,
            checkpoints: inventory
                .whole
                .iter()
                .filter_map(|about| checkpoint(about.key()))
                .collect(),
            results: inventory.results.iter().map(|(test, _)| *test).collect(),
            unfinished: inventory.unfinished,
            damaged: inventory.damaged.into_iter().chain(fault).collect(),
        }
    });
    Ok(jobs.collect())
}

/// Describes the jobs with data in the folder `dir` as text.
pub fn words(dir: &Path, jobs: &[Job]) -> String {
    let mut text = if jobs.is_empty() {
        format!("nothing of yours in {}\n", dir.display())
    } else {
        String::new()
    };
    for job in jobs {
        let bytes = human(u128::from(job.bytes));
        text += &format!("job {} in {}: {bytes}\n", job.job, dir.display());
        for checkpoint in &job.checkpoints {
            let age = (unix_seconds() - checkpoint.written_unix_s as f64).max(0.0);
            let what = match &checkpoint.positions {
                None => "whole".to_owned(),
                Some(here) => format!("this node's part, positions {here:?} and their parity"),
            };
            text += &format!(
                "  {}: {what}, {}, written {age:.0} s ago\n",
                checkpoint.line,
                human(u128::from(checkpoint.bytes))
            );
        }
        for test in &job.results {
            text += &format!("  test {}: finished, its result is kept\n", test + 1);
        }
        for folder in &job.unfinished {
            text += &format!("  {folder}: not complete\n");
        }
        for why in &job.damaged {
            text += &format!("  NOT USABLE: {why}\n");
        }
    }
    text
}

/// Removes the files of a job from the folder `dir`, and describes the removed files as text.
pub fn clean(dir: &Path, job: &str) -> Result<String, String> {
    let dir = &here(dir);
    let (files, bytes) = CheckpointDir::new(dir, job).clean(&Flow::default())?;
    Ok(match files {
        0 => format!("job {job}: nothing of yours in {}\n", dir.display()),
        _ => format!(
            "job {job}: removed {files} files from {}, {}\n",
            dir.display(),
            human(u128::from(bytes))
        ),
    })
}

/// Returns the free space in the folder `dir`, and the bytes that the job `job` has in this folder. If `own` is true, only this
/// node uses the folder, and the result also lists the job's files.
pub fn room(dir: &Path, job: &str, own: bool) -> Result<Storage, String> {
    let at = here(dir);
    let checkpoint_dir = CheckpointDir::new(&at, job);
    checkpoint_dir.check()?;
    let free_bytes = free_bytes(&at)?;
    let listed = checkpoint_dir::list_user(&at)?.into_iter().find(|listed| listed.job == job);
    let held_bytes = listed.as_ref().map_or(0, |listed| listed.bytes);
    // An invalid checkpoint is no reason to place a rank on this node.
    let whole = listed.and_then(|listed| listed.inventory.ok()).map(|inventory| inventory.whole);
    let whole = whole.unwrap_or_default();
    let lying = |(key, positions): (Key, Vec<u32>)| {
        let found = whole.iter().find(|about| about.key() == key);
        let Key { run, test, checkpoint } = key;
        Lying { run, test, checkpoint, whole_at: found.map(|about| about.boundary), positions }
    };
    let files = if own { checkpoint_dir.files().unwrap_or_default() } else { Vec::new() };
    let lying = files.into_iter().map(lying).collect();
    Ok(Storage { dir: at.display().to_string(), free_bytes, held_bytes, lying })
}

/// Returns the folder that agents check for a run with a second level of checkpoints. None if the path of DIR depends on failure
/// domains. Failure domains follow ranks, so agents do not know such a path.
pub fn asked(protection: &Saves) -> Option<Dir> {
    let level2 = protection.level2.as_ref()?;
    let follows = protection.domains.is_some() && dir_of(&level2.dir, "") != level2.dir;
    // A relative path starts at the folder in which ranks start; agents start in another folder.
    let path = std::path::absolute(&level2.dir).unwrap_or_else(|_| level2.dir.clone());
    let job = protection.job.clone();
    (!follows).then_some(Dir { path, job, own: level2.scope == DirScope::Node })
}

/// Checks whether the folder of a second level suits a run whose checkpoints have `checkpoint_bytes` bytes. Returns a message for
/// `doctor`, or a problem as an error. `waits` is true if the ranks wait while checkpoints are written.
pub fn examine(
    level2: &Level2,
    job: &str,
    checkpoint_bytes: u64,
    waits: bool,
) -> Result<String, String> {
    let storage = room(&level2.dir, job, false)?;
    if let Some(why) = storage.lacking(checkpoint_bytes) {
        return Err(why);
    }
    let speed = speed::measure(Path::new(&storage.dir), storage.free_bytes)?;
    let free = storage.free_bytes + storage.held_bytes;
    let one = human(u128::from(checkpoint_bytes));
    let (of_what, others) = match level2.scope {
        DirScope::Shared => ("", "all nodes together may be faster, up to the file system's limit"),
        DirScope::Node => (
            " (parity included) on the node that has the largest part",
            "the storage of other nodes was not measured",
        ),
    };
    Ok(format!(
        "{} free; a checkpoint takes {one}{of_what}; this node alone writes {}/s there and needs {:.1} s for a checkpoint{}; {others}",
        human(u128::from(free)),
        human(speed as u128),
        checkpoint_bytes as f64 / speed,
        if waits { ", for which all ranks stop" } else { "" }
    ))
}

/// Returns the path of the folder `dir` on this node, whose host name replaces a placeholder in `dir`.
fn here(dir: &Path) -> PathBuf {
    dir_of(dir, &host_name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::when::Interval;

    #[test]
    fn a_dir_is_examined_for_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let level2 = |dir: &Path| Level2 {
            dir: dir.into(),
            every: Interval::Iterations(1),
            scope: DirScope::Shared,
        };
        let told = examine(&level2(dir.path()), "x", 1 << 20, false).unwrap();
        assert!(told.contains("a checkpoint takes 1.0 MiB") && told.contains("/s"), "{told}");
        assert!(!told.contains("ranks stop"), "{told}");
        let told = examine(&level2(dir.path()), "x", 1 << 20, true).unwrap();
        assert!(told.contains("for which all ranks stop"), "{told}");
        let why = examine(&level2(dir.path()), "x", 1 << 60, false).unwrap_err();
        assert!(why.contains("are free"), "{why}");
        // Data of the job in DIR counts as free space.
        let checkpoint_dir = CheckpointDir::new(dir.path(), "x");
        let before = room(dir.path(), "x", true).unwrap();
        checkpoint_dir.prepare("token").unwrap();
        let after = room(dir.path(), "x", true).unwrap();
        assert_eq!((before.held_bytes, after.held_bytes), (0, 5));
        assert_eq!(after.lying, []);
        // A file without a manifest does not count for the checkpoint. If all nodes share a DIR, its files are not listed.
        let key = Key { run: 7, test: 1, checkpoint: 4 };
        checkpoint_dir.make_folder(key).unwrap();
        std::fs::write(checkpoint_dir.position(key, 3), "x").unwrap();
        let lying = Lying { run: 7, test: 1, checkpoint: 4, whole_at: None, positions: vec![3] };
        assert_eq!(room(dir.path(), "x", true).unwrap().lying, [lying]);
        assert_eq!(room(dir.path(), "x", false).unwrap().lying, []);
        checkpoint_dir.clean(&Flow::default()).unwrap();
        assert!(examine(&level2(Path::new("/nonexistent")), "x", 1, false).is_err());
        assert!(words(dir.path(), &survey(dir.path()).unwrap()).contains("nothing of yours"));
        assert!(clean(dir.path(), "x").unwrap().contains("nothing of yours"));
        assert!(survey(Path::new("/nonexistent")).is_err());
    }
}
