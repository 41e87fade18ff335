//! Checkpoint directory of one job: its contents, and the writing and removal of files.
//!
//! A file is written under another name, synced, and then renamed. Every file with its final name is therefore complete. The
//! manifest of a checkpoint is written last and removed first. Error texts are sentences that name the file.
//!
//! The job's folder belongs to one start at a time. Two starts of a job on different nodes share no memory. So each start that
//! will write leaves a file whose name contains the start's number. The start with the greatest number owns the folder. A start
//! checks that it owns the folder before it writes a manifest or a result, or removes a file.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{AccessFlags, access};

use super::DirScope;
use super::choice::{Inventory, Results};
use super::names::{self, Key, MANIFEST, STARTS, TOKEN};
use super::reading::Source;
use super::record::{self, About, Manifest};
use super::writing::{Flow, Stopped, cannot, give_name, sync_folder};
use crate::base::clock::{self, Instant};
use crate::base::faults::{self, Point, Sabotage, hit, sabotaged};

/// Position that injected faults use for work that belongs to no position, such as removing all files of a job.
const FIRST: usize = 0;

/// Folder in DIR with one job's checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointDir {
    dir: PathBuf,
    folder: PathBuf,
    /// Number of the start that writes here; None if the folder is only read, or is removed at the user's request.
    start: Option<u128>,
}

/// Job of this user that has files in a DIR, as `skt-hpl status` shows it.
pub struct Listed {
    pub job: String,
    pub bytes: u64,
    pub inventory: Result<Inventory, String>,
}

/// Lists the jobs of this user that have files in `dir`.
pub fn list_user(dir: &Path) -> Result<Vec<Listed>, String> {
    let uid = nix::unistd::geteuid().as_raw();
    let found = names_in(dir).map_err(|e| cannot("read", dir, e))?;
    let mut jobs: Vec<String> = found
        .iter()
        .filter_map(|name| names::parse_job_folder(name, uid).map(str::to_owned))
        .collect();
    jobs.sort();
    let listed = jobs.into_iter().map(|job| {
        let checkpoint_dir = CheckpointDir::new(dir, &job);
        let all =
            checkpoint_dir.all_files(&Flow::default()).expect("the listing is never cancelled");
        Listed {
            bytes: all.iter().map(|(_, bytes)| bytes).sum(),
            inventory: checkpoint_dir.survey(),
            job,
        }
    });
    Ok(listed.collect())
}

/// Free bytes on the file system of `path`.
pub fn free_bytes(path: &Path) -> Result<u64, String> {
    let found = nix::sys::statvfs::statvfs(path)
        .map_err(|e| cannot("determine the free space of", path, e.into()))?;
    Ok(found.blocks_available() as u64 * found.fragment_size() as u64)
}

/// Result of a claim of the job's folder: this start has claimed the folder `Before`, or claims it `Now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    Before,
    Now,
}

impl CheckpointDir {
    pub fn new(dir: &Path, job: &str) -> Self {
        let uid = nix::unistd::geteuid().as_raw();
        Self { dir: dir.into(), folder: dir.join(names::job_folder(uid, job)), start: None }
    }

    /// Returns the same folder for the start with the number `start`.
    pub fn held_by(self, start: u128) -> Self {
        Self { start: Some(start), ..self }
    }

    /// Returns true if both values mean the same folder, even for different starts.
    pub fn is_at(&self, other: &Self) -> bool {
        self.folder == other.folder
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Checks that DIR is a folder.
    pub fn is_there(&self) -> Result<(), String> {
        let dir = self.dir.display();
        match fs::metadata(&self.dir) {
            Err(error) => Err(format!("--level2 {dir}: {error}")),
            Ok(meta) if !meta.is_dir() => Err(format!("--level2 {dir} is not a folder")),
            Ok(_) => Ok(()),
        }
    }

    /// Checks that DIR is a folder in which this user can write.
    pub fn check(&self) -> Result<(), String> {
        self.is_there()?;
        let dir = self.dir.display();
        access(&self.dir, AccessFlags::W_OK | AccessFlags::X_OK)
            .map_err(|error| format!("--level2 {dir} cannot be written in: {error}"))
    }

    /// Creates the job's folder and writes a token to it, which all nodes must find. Unlike all other files, the token is written
    /// under its final name at once. If two nodes write to the same folder, [`Self::is_apart`] finds the token that was written
    /// last.
    pub fn prepare(&self, token: &str) -> Result<(), String> {
        private_folder(&self.folder)?;
        let path = self.folder.join(TOKEN);
        write_synced(&path, token.as_bytes()).map_err(|e| cannot("write", &path, e))?;
        sync_folder(&self.folder)
    }

    /// Checks that this node finds `token` in the job's folder. Repeats the check for some seconds before it fails.
    pub fn sees(&self, token: &str) -> Result<(), String> {
        /// Time during which the check is repeated. A node's cache may say for a while that a new folder does not exist.
        const FOR: Duration = Duration::from_secs(3);
        let path = self.folder.join(TOKEN);
        let look = || {
            // Over NFS, opening a folder makes the node read the folder's contents from the server again.
            let _ = fs::read_dir(&self.dir);
            let _ = fs::read_dir(&self.folder);
            match fs::read_to_string(&path) {
                Ok(found) if found == token => Ok(()),
                Ok(_) => Err("the token file there is of an older start".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        };
        let began = Instant::now();
        let mut seen = look();
        while seen.is_err() && began.elapsed() < FOR {
            clock::sleep(FOR / 30);
            seen = look();
        }
        seen.map_err(|why| {
            format!(
                "--level2 {}: this node does not see the token file that rank 0 has just written there ({why}). \
                 DIR must be on a file system that all nodes share",
                self.dir.display()
            )
        })
    }

    /// Checks that no other node uses this node's folder: the folder must still contain `token`, which this node has written.
    pub fn is_apart(&self, token: &str) -> Result<(), String> {
        let path = self.folder.join(TOKEN);
        match fs::read_to_string(&path) {
            Ok(found) if found == token => Ok(()),
            Ok(_) => Err(format!(
                "--level2 {}: another node writes to the same folder. --level2-scope node needs a folder of its own \
                 on each node. On a file system that all nodes share, use --level2-scope shared, which needs less storage",
                self.dir.display()
            )),
            Err(error) => Err(cannot("read", &path, error)),
        }
    }

    fn folder_of(&self, key: Key) -> PathBuf {
        self.folder.join(names::checkpoint_folder(key))
    }

    pub fn position(&self, key: Key, position: u32) -> PathBuf {
        self.folder_of(key).join(names::position(position))
    }

    /// Positions that have a file in this DIR for checkpoint `key`, in ascending order.
    pub fn positions(&self, key: Key) -> Result<Vec<u32>, String> {
        let mut found: Vec<u32> = names_if_there(&self.folder_of(key))?
            .iter()
            .filter_map(|name| names::parse_position(name))
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Returns each checkpoint in this DIR, with or without a manifest, and the positions that have a file of the checkpoint.
    pub fn files(&self) -> Result<Vec<(Key, Vec<u32>)>, String> {
        let found = names_if_there(&self.folder)?;
        let keys = found.iter().filter_map(|name| names::parse_checkpoint_folder(name));
        keys.map(|key| Ok((key, self.positions(key)?))).collect()
    }

    /// Number of the latest start that has claimed the folder; None if no start has.
    fn owner(&self) -> Result<Option<u128>, String> {
        Ok(names_if_there(&self.folder)?.iter().filter_map(|name| names::parse_owner(name)).max())
    }

    /// Fails if a later start has claimed the job's folder.
    pub fn is_held(&self) -> Result<(), String> {
        let Some(start) = self.start else { return Ok(()) };
        match self.owner()? {
            Some(other) if other > start => Err(format!(
                "another start of this job, later than this one, writes to {}. Give each run a \
                 --job name of its own",
                self.folder.display()
            )),
            _ => Ok(()),
        }
    }

    /// Claims the job's folder for this start. Fails if a later start has claimed the folder. Each start leaves a file of its
    /// own, so that two simultaneous claims do not overwrite each other.
    pub fn claim(&self) -> Result<Claimed, String> {
        self.is_held()?;
        let Some(start) = self.start else { return Ok(Claimed::Before) };
        if self.owner()? == Some(start) {
            return Ok(Claimed::Before);
        }
        private_folder(&self.folder)?;
        let path = self.folder.join(names::owner(start));
        write_synced(&path, b"").map_err(|e| cannot("write", &path, e))?;
        sync_folder(&self.folder)?;
        self.is_held()?;
        for earlier in names_if_there(&self.folder)?.iter().filter_map(|n| names::parse_owner(n)) {
            if earlier < start {
                let _ = fs::remove_file(self.folder.join(names::owner(earlier)));
            }
        }
        Ok(Claimed::Now)
    }

    /// Records that this start resumes from checkpoint `key`. Returns the number of earlier starts that resumed from the
    /// checkpoint; zero if the number cannot be read. If all memory is lost before this start saves a checkpoint, no other record
    /// of the start is left.
    pub fn set_out_from(&self, key: Key) -> u32 {
        let path = self.folder_of(key).join(STARTS);
        let before = read_sealed(&path).unwrap_or(0u32);
        if self.is_held().is_ok() {
            let text = record::seal(&before.saturating_add(1));
            let _ = write_whole(&path, text.as_bytes(), || {});
        }
        before
    }

    /// Checks, immediately before a removal, that the removal is not cancelled and that no later start has claimed the folder.
    fn may_remove(&self, flow: &Flow) -> Result<(), Stopped> {
        flow.step()?;
        Ok(self.is_held()?)
    }

    /// Creates the folder of a checkpoint, and the job's folder if it was removed. Several ranks may call this at the same time.
    pub fn make_folder(&self, key: Key) -> Result<(), String> {
        private_folder(&self.folder)?;
        private_folder(&self.folder_of(key))
    }

    /// Takes the inventory of the job's folder: results, and checkpoints with a valid, damaged or missing manifest. Empty if the
    /// folder does not exist.
    pub fn survey(&self) -> Result<Inventory, String> {
        self.survey_for(&Flow::default())
    }

    /// Takes the inventory as [`Self::survey`] does, and reports each step to `flow`.
    pub fn survey_for(&self, flow: &Flow) -> Result<Inventory, String> {
        let mut inventory = Inventory::default();
        let mut found = names_if_there(&self.folder)?;
        if found.is_empty() && !self.folder.exists() {
            return Ok(inventory);
        }
        self.is_ours()?;
        inventory.owner = found.iter().filter_map(|name| names::parse_owner(name)).max();
        found.sort();
        for name in found {
            flow.step().map_err(|stopped| stopped.to_string())?;
            let path = self.folder.join(&name);
            if let Some(test) = names::parse_result(&name) {
                match read_sealed::<Vec<u8>>(&path) {
                    Ok(bytes) => inventory.results.push((test, bytes)),
                    Err(why) => inventory.damaged.push(why),
                }
            } else if let Some(key) = names::parse_checkpoint_folder(&name) {
                match self.manifest(key) {
                    Ok(Some(manifest)) => {
                        inventory.whole.push(manifest.about);
                        if !inventory.sights.contains(&manifest.dir_scope) {
                            inventory.sights.push(manifest.dir_scope);
                        }
                    }
                    Ok(None) => inventory.unfinished.push(path.display().to_string()),
                    Err(why) => inventory.damaged.push(why),
                }
            }
        }
        Ok(inventory)
    }

    fn is_ours(&self) -> Result<(), String> {
        let meta =
            fs::metadata(&self.folder).map_err(|e| cannot("read the owner of", &self.folder, e))?;
        if meta.uid() == nix::unistd::geteuid().as_raw() && meta.mode() & 0o022 == 0 {
            return Ok(());
        }
        Err(format!(
            "{} belongs to user {} and has mode {:o}. It is not used, because it must belong to you, and only you may \
             have permission to write to it",
            self.folder.display(),
            meta.uid(),
            meta.mode() & 0o7777
        ))
    }

    /// Reads the manifest of a checkpoint. Returns None if the checkpoint has no manifest in this DIR, and an error if the
    /// manifest cannot be read or is damaged.
    pub fn manifest(&self, key: Key) -> Result<Option<Manifest>, String> {
        let path = self.folder_of(key).join(MANIFEST);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot("read", &path, error)),
        };
        match Manifest::from_text(&text) {
            Ok(manifest) if manifest.about.key() == key => Ok(Some(manifest)),
            Ok(_) => Err(format!(
                "{}: this manifest names another checkpoint than its folder's name",
                path.display()
            )),
            Err(fault) => Err(format!("{}: {fault}", path.display())),
        }
    }

    /// Completes a checkpoint after every position has reported a complete file. Checks that this node can read the files of
    /// `positions`, and writes a manifest that lists these files. Then removes older checkpoints. With `stays`, removes all
    /// checkpoints except this checkpoint and `stays`. Returns the bytes of the listed files.
    pub fn conclude(
        &self,
        about: &About,
        dir_scope: DirScope,
        positions: &[u32],
        stays: Option<Key>,
        flow: &Flow,
    ) -> Result<u64, Stopped> {
        self.claim()?;
        let key = about.key();
        let first = positions.first().map_or(FIRST, |&first| first as usize);
        if sabotaged(Sabotage::PrunesFirst) {
            self.prune_before(Some(key), first, flow)?;
        }
        let bytes =
            self.list(about, dir_scope, positions, || hit(Point::ManifestSynced, first), flow)?;
        hit(Point::ManifestWhole, first);
        // A cancelled request must not remove files that other ranks have begun since.
        flow.step()?;
        // Files that cannot be removed now are removed after the next checkpoint. No start prefers such files to this checkpoint.
        match stays {
            None => self.prune_before(Some(key), first, flow)?,
            Some(stays) => self.prune_but(&[key, stays], first, flow)?,
        }
        hit(Point::Pruned, first);
        Ok(bytes)
    }

    /// Writes a manifest that lists this node's valid files of a complete checkpoint, unless the node has a manifest of the
    /// checkpoint. Otherwise the checkpoint would be lost with the nodes that have a manifest.
    pub fn list_too(&self, about: &About, flow: &Flow) -> Result<(), Stopped> {
        self.claim()?;
        let mut here = self.positions(about.key())?;
        here.retain(|&at| Source::open(&self.position(about.key(), at), about, at).is_ok());
        if here.is_empty() || self.manifest(about.key()) != Ok(None) {
            return Ok(());
        }
        self.list(about, DirScope::Node, &here, || {}, flow).map(|_| ())
    }

    fn list(
        &self,
        about: &About,
        dir_scope: DirScope,
        positions: &[u32],
        synced: impl FnOnce(),
        flow: &Flow,
    ) -> Result<u64, Stopped> {
        let key = about.key();
        let mut files = Vec::with_capacity(positions.len());
        for &position in positions {
            let path = self.position(key, position);
            let source = Source::open(&path, about, position).map_err(|why| {
                let asks = match dir_scope {
                    DirScope::Shared => format!(
                        ". The node of position {position} wrote this file. Check that {} is on a file system that \
                         all nodes share",
                        self.dir.display()
                    ),
                    DirScope::Node => String::new(),
                };
                Stopped::Failed(format!("{why}{asks}"))
            })?;
            files.push(record::File {
                position,
                bytes: source.front.file_bytes(),
                root: source.front.root,
            });
            flow.step()?;
        }
        flow.step()?;
        let written_unix_s = clock::since_1970().as_secs();
        let manifest = Manifest { about: about.clone(), dir_scope, written_unix_s, files };
        let path = self.folder_of(key).join(MANIFEST);
        write_whole(&path, manifest.to_text().as_bytes(), synced)?;
        Ok(manifest.bytes())
    }

    /// Removes all checkpoints. Files that cannot be removed stay.
    pub fn prune(&self, flow: &Flow) -> Result<(), Stopped> {
        self.prune_before(None, FIRST, flow)
    }

    /// Removes the manifest of checkpoint `key`, whose files will be overwritten. Injected faults use `who` as position.
    pub fn give_up(&self, key: Key, who: usize) -> Result<(), Stopped> {
        self.claim()?;
        self.disown(&self.folder_of(key));
        hit(Point::PruneHalf, who);
        Ok(())
    }

    /// Removes checkpoints that have no manifest in this DIR, except for the checkpoints in `keep`. Injected faults use `who` as
    /// position.
    pub fn tidy(&self, keep: &[Key], who: usize, flow: &Flow) -> Result<(), Stopped> {
        let unfinished = |key: Key| {
            !keep.contains(&key)
                && matches!(self.folder_of(key).join(MANIFEST).try_exists(), Ok(false))
        };
        self.prune_where(unfinished, || hit(Point::TidyHalf, who), flow)
    }

    /// Removes complete checkpoints of a test that has a checkpoint at a later boundary with a manifest in this DIR. Outdated
    /// checkpoints remain if a start was interrupted after it wrote a manifest. If they stayed, DIR would need room for three
    /// checkpoints. A checkpoint counts as complete if it has a manifest in this DIR or is in `whole`. No checkpoint of run `run`
    /// is removed because of a checkpoint of an earlier run. Injected faults use `who` as position.
    pub fn outdate(
        &self,
        whole: &[About],
        run: u128,
        who: usize,
        flow: &Flow,
    ) -> Result<(), Stopped> {
        let found = names_if_there(&self.folder)?;
        let keys = found.iter().filter_map(|name| names::parse_checkpoint_folder(name));
        let manifest = |key: Key| self.manifest(key).ok().flatten();
        let listed: Vec<About> = keys.filter_map(manifest).map(|manifest| manifest.about).collect();
        let outdated = |key: Key| {
            let known = listed.iter().chain(whole).find(|about| about.key() == key);
            known.is_some_and(|known| listed.iter().any(|about| about.outdates(known, run)))
        };
        self.prune_where(outdated, || hit(Point::TidyHalf, who), flow)
    }

    /// Removes the checkpoints of earlier runs of a test, if run `run` resumes from checkpoint `from` of this test. Only `from`
    /// stays. Checkpoints at later boundaries are removed, too, because they could not be read.
    pub fn outdate_but(
        &self,
        from: Key,
        run: u128,
        who: usize,
        flow: &Flow,
    ) -> Result<(), Stopped> {
        // Other ranks may already be writing checkpoints of this run.
        let outdated = |key: Key| key.test == from.test && key != from && key.run != run;
        self.prune_where(outdated, || hit(Point::TidyHalf, who), flow)
    }

    /// Removes all checkpoints except the checkpoints in `keep`. Files that cannot be removed stay. Injected faults use `who` as
    /// position.
    pub fn prune_but(&self, keep: &[Key], who: usize, flow: &Flow) -> Result<(), Stopped> {
        self.prune_where(|key| !keep.contains(&key), || hit(Point::PruneHalf, who), flow)
    }

    /// Removes all checkpoints except `keep` and later checkpoints of its run, which other ranks may already be writing. If
    /// `keep` is None, removes all checkpoints.
    fn prune_before(&self, keep: Option<Key>, who: usize, flow: &Flow) -> Result<(), Stopped> {
        let older = |key: Key| keep.is_none_or(|keep| key.run != keep.run || key < keep);
        self.prune_where(older, || hit(Point::PruneHalf, who), flow)
    }

    /// Removes the checkpoints for which `goes` returns true. Calls `halfway` for each checkpoint, after its manifest is removed
    /// and before its files are.
    fn prune_where(
        &self,
        goes: impl Fn(Key) -> bool,
        halfway: impl Fn(),
        flow: &Flow,
    ) -> Result<(), Stopped> {
        let goes = |name: &str| names::parse_checkpoint_folder(name).is_some_and(&goes);
        // Files that cannot be removed do no harm.
        self.remove_where(goes, halfway, flow).map(|_| ())
    }

    /// Removes the entries of the job's folder for which `goes` returns true, except entries of later starts. Returns the first
    /// path that could not be removed. Checkpoints are removed first, and of each checkpoint first the manifest: files without a
    /// manifest are not trusted. The claim of this start is removed last. Calls `halfway` for each checkpoint after its manifest
    /// is removed, and before each other entry.
    fn remove_where(
        &self,
        goes: impl Fn(&str) -> bool,
        halfway: impl Fn(),
        flow: &Flow,
    ) -> Result<Removed, Stopped> {
        // Returns true for the number of a later start.
        let later = |number: u128| self.start.is_some_and(|start| number > start);
        let mut removed = Ok(());
        let mut found = names_in(&self.folder).unwrap_or_default();
        let order = |name: &String| {
            (names::parse_checkpoint_folder(name).is_none(), names::parse_owner(name).is_some())
        };
        found.sort();
        found.sort_by_key(order);
        for name in found {
            let path = self.folder.join(&name);
            let checkpoint = names::parse_checkpoint_folder(&name);
            let number = checkpoint.map(|key| key.run).or_else(|| names::parse_owner(&name));
            if number.is_some_and(later) || !goes(&name) {
                continue;
            }
            if checkpoint.is_none() {
                halfway();
            }
            self.may_remove(flow)?;
            let gone = match checkpoint {
                Some(_) => {
                    self.disown(&path);
                    halfway();
                    remove_all(&path, flow)?
                }
                None if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) => {
                    remove_all(&path, flow)?
                }
                None => remove(&path, fs::remove_file(&path)),
            };
            removed = removed.and(gone);
        }
        Ok(removed)
    }

    fn disown(&self, folder: &Path) {
        if fs::remove_file(folder.join(MANIFEST)).is_ok() {
            let _ = sync_folder(folder);
        }
    }

    /// Removes the file of one position of a failed checkpoint, even if the file is incomplete. Removes the checkpoint's folder
    /// if it becomes empty. If a file or folder cannot be removed now, a later start removes it.
    pub fn withdraw(&self, key: Key, position: u32) {
        if self.is_held().is_err() {
            return;
        }
        let path = self.position(key, position);
        let _ = fs::remove_file(names::aside(&path));
        let _ = fs::remove_file(path);
        let _ = fs::remove_dir(self.folder_of(key));
    }

    /// Writes the result of a finished test to storage.
    pub fn put_result(&self, test: u32, bytes: &[u8]) -> Result<(), String> {
        self.is_held()?;
        let text = record::seal(&bytes);
        write_whole(&self.folder.join(names::result(test)), text.as_bytes(), || {})
    }

    /// Removes results of finished tests that are not in `counting`. Otherwise a later start might take them for results of this
    /// start.
    pub fn keep_results(&self, counting: &Results, flow: &Flow) -> Result<(), Stopped> {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let Some(test) = entry.file_name().to_str().and_then(names::parse_result) else {
                continue;
            };
            self.may_remove(flow)?;
            // An unreadable result is never valid, so it may stay.
            if read_sealed(&entry.path()).is_ok_and(|text: Vec<u8>| !counting.has(test, &text)) {
                // An error is ignored: this start does not read the result again.
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    fn all_files(&self, flow: &Flow) -> Result<Vec<(PathBuf, u64)>, Stopped> {
        let mut files = Vec::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                flow.step()?;
                match entry.metadata() {
                    Ok(meta) if meta.is_dir() => folders.push(entry.path()),
                    Ok(meta) => files.push((entry.path(), meta.len())),
                    Err(_) => {}
                }
            }
        }
        Ok(files)
    }

    /// Removes all files of this job in DIR, except for files of later starts. Returns the number of files and their bytes, or an
    /// error if a later start has claimed the folder.
    pub fn clean(&self, flow: &Flow) -> Result<(usize, u64), String> {
        if !self.folder.exists() {
            return Ok((0, 0));
        }
        self.is_ours()?;
        let given_up = |stopped: Stopped| stopped.to_string();
        let files = self.all_files(flow).map_err(given_up)?;
        let removed =
            self.remove_where(|_| true, || hit(Point::PruneHalf, FIRST), flow).map_err(given_up)?;
        // If a later start has claimed the folder since, the folder contains that start's files and stays.
        let removed = removed.and_then(|()| remove(&self.folder, fs::remove_dir(&self.folder)));
        self.is_held()?;
        removed.map_err(|(path, error)| cannot("remove", &path, error))?;
        Ok((files.len(), files.iter().map(|(_, bytes)| bytes).sum()))
    }
}

/// Ok if everything was removed; otherwise a path that could not be removed, and the reason.
type Removed = Result<(), (PathBuf, io::Error)>;

/// Converts the result `done` of a removal. A missing file counts as removed.
fn remove(path: &Path, done: io::Result<()>) -> Removed {
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err((path.to_owned(), error)),
        _ => Ok(()),
    }
}

/// Removes a folder with its contents, file by file. Fails if `flow` is cancelled; otherwise returns the first path that could
/// not be removed, and the reason.
fn remove_all(folder: &Path, flow: &Flow) -> Result<Removed, Stopped> {
    let entries = match fs::read_dir(folder) {
        Err(error) => return Ok(remove(folder, Err(error))),
        Ok(entries) => entries,
    };
    let mut removed = Ok(());
    for entry in entries {
        flow.step()?;
        let gone = match entry {
            Err(error) => remove(folder, Err(error)),
            Ok(entry) if entry.file_type().is_ok_and(|what| what.is_dir()) => {
                remove_all(&entry.path(), flow)?
            }
            Ok(entry) => remove(&entry.path(), fs::remove_file(entry.path())),
        };
        removed = removed.and(gone);
    }
    flow.step()?;
    Ok(removed.and(remove(folder, fs::remove_dir(folder))))
}

/// Names in a folder. Returns an error if any entry cannot be read, because other names may then be missing.
fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// Names in a folder. Empty if the folder does not exist.
fn names_if_there(folder: &Path) -> Result<Vec<String>, String> {
    match names_in(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        found => found.map_err(|e| cannot("read", folder, e)),
    }
}

/// Creates a folder that only its owner can use, if the folder does not exist.
fn private_folder(path: &Path) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => sync_folder(path.parent().unwrap_or(path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(cannot("create", path, error)),
    }
}

/// Writes a small file under another name, syncs it, calls `synced`, and renames the file to `path`.
fn write_whole(path: &Path, bytes: &[u8], synced: impl FnOnce()) -> Result<(), String> {
    let aside = names::aside(path);
    write_synced(&aside, bytes).map_err(|e| cannot("write", &aside, e))?;
    synced();
    give_name(&aside, path)
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    faults::stores()?;
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn read_sealed<T: for<'de> serde::Deserialize<'de>>(path: &Path) -> Result<T, String> {
    let text = fs::read(path).map_err(|e| cannot("read", path, e))?;
    record::unseal(&text).map_err(|fault| format!("{}: {fault}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::testkit::stored::about;
    use crate::testkit::stored::write_small;

    fn checkpoint_dir() -> (tempfile::TempDir, CheckpointDir) {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint_dir = CheckpointDir::new(dir.path(), "job");
        checkpoint_dir.prepare("token").unwrap();
        (dir, checkpoint_dir)
    }

    fn store(checkpoint_dir: &CheckpointDir, about: &About) {
        checkpoint_dir.make_folder(about.key()).unwrap();
        for position in 0..2 {
            write_small(&checkpoint_dir.position(about.key(), position), about, position);
        }
    }

    fn conclude(checkpoint_dir: &CheckpointDir, about: &About) -> Result<u64, Stopped> {
        checkpoint_dir.conclude(about, DirScope::Shared, &[0, 1], None, &Flow::default())
    }

    /// Two starts of the same job, on different nodes, use the same DIR.
    #[test]
    fn of_two_starts_the_later_one_writes_and_neither_removes_what_the_other_has() {
        let (_dir, checkpoint_dir) = checkpoint_dir();
        let (one, two) = (checkpoint_dir.clone().held_by(1), checkpoint_dir.clone().held_by(2));
        let (early, late) = (about(1, 0, 1, 10), about(2, 0, 1, 10));
        one.claim().unwrap();
        store(&checkpoint_dir, &early);
        conclude(&one, &early).unwrap();
        assert_eq!(checkpoint_dir.survey().unwrap().latest(), Some(1));
        two.claim().unwrap();
        store(&checkpoint_dir, &late);
        store(&checkpoint_dir, &about(1, 0, 3, 30));
        // The later start has not completed a checkpoint yet. Nothing is removed, and every operation of the earlier start fails.
        let flow = Flow::default();
        let told = one.is_held().unwrap_err();
        assert!(told.contains("another start of this job"), "{told}");
        assert!(conclude(&one, &about(1, 0, 2, 20)).is_err() && one.claim().is_err());
        assert!(one.prune(&flow).is_err() && one.prune_but(&[], 0, &flow).is_err());
        assert!(one.tidy(&[], 0, &flow).is_err() && one.give_up(early.key(), 0).is_err());
        assert!(one.clean(&flow).is_err() && one.put_result(0, b"").is_err());
        let inventory = checkpoint_dir.survey().unwrap();
        assert_eq!((inventory.whole, inventory.unfinished.len()), (vec![early.clone()], 2));
        conclude(&two, &late).unwrap();
        assert_eq!(checkpoint_dir.survey().unwrap().whole, std::slice::from_ref(&late));
        // Checkpoints of a later start are never removed, even if its claim is missing.
        fs::remove_file(checkpoint_dir.folder.join(names::owner(2))).unwrap();
        one.prune(&flow).unwrap();
        one.prune_but(&[], 0, &flow).unwrap();
        assert_eq!(checkpoint_dir.survey().unwrap().whole, std::slice::from_ref(&late));
        // A removal at the user's request removes everything.
        checkpoint_dir.clean(&flow).unwrap();
        assert!(!checkpoint_dir.folder.exists());
        // A removed folder is created again.
        two.claim().unwrap();
        store(&two, &late);
        conclude(&two, &late).unwrap();
    }

    thread_local! {
        /// Number of steps before [`late_start`] claims the folder, and the folder as the later start uses it.
        static LATE_START: RefCell<Option<(usize, CheckpointDir)>> = const { RefCell::new(None) };
    }

    /// Counts down one step. When no step remains, claims the folder for a later start, and writes a result and a checkpoint for
    /// it.
    fn late_start() {
        let due = LATE_START.with_borrow_mut(|start| match start {
            Some((left @ 1.., _)) => {
                *left -= 1;
                None
            }
            due => due.take(),
        });
        if let Some((_, checkpoint_dir)) = due {
            checkpoint_dir.claim().unwrap();
            checkpoint_dir.put_result(1, b"late").unwrap();
            store(&checkpoint_dir, &about(2, 0, 1, 10));
            conclude(&checkpoint_dir, &about(2, 0, 1, 10)).unwrap();
        }
    }

    #[test]
    fn a_start_that_cleans_removes_nothing_of_a_later_one_that_comes_meanwhile() {
        let mut steps = 0;
        loop {
            let (_dir, checkpoint_dir) = checkpoint_dir();
            let (one, two) = (checkpoint_dir.clone().held_by(1), checkpoint_dir.clone().held_by(2));
            one.claim().unwrap();
            one.put_result(0, b"early").unwrap();
            store(&checkpoint_dir, &about(1, 0, 1, 10));
            conclude(&one, &about(1, 0, 1, 10)).unwrap();
            LATE_START.set(Some((steps, two.clone())));
            let cleaned = one.clean(&Flow::told_to(late_start));
            if LATE_START.take().is_some() {
                // All steps were tried.
                assert!(cleaned.is_ok() && !checkpoint_dir.folder.exists(), "{cleaned:?}");
                break;
            }
            assert!(cleaned.unwrap_err().contains("another start"), "step {steps}");
            let inventory = checkpoint_dir.survey().unwrap();
            assert_eq!(inventory.whole, [about(2, 0, 1, 10)], "step {steps}");
            assert!(inventory.results.contains(&(1, b"late".to_vec())), "step {steps}");
            assert_eq!(
                (inventory.owner, two.claim()),
                (Some(2), Ok(Claimed::Before)),
                "step {steps}"
            );
            assert_eq!(
                checkpoint_dir.positions(about(2, 0, 1, 10).key()),
                Ok(vec![0, 1]),
                "step {steps}"
            );
            steps += 1;
        }
        assert!(steps > 8, "{steps}");
    }

    #[test]
    fn of_two_starts_that_claim_at_one_moment_the_later_one_has_the_folder() {
        for round in 0..300 {
            let (_dir, checkpoint_dir) = checkpoint_dir();
            let both = Barrier::new(2);
            std::thread::scope(|scope| {
                let claims = [1, 2].map(|start| {
                    let (checkpoint_dir, both) = (checkpoint_dir.clone().held_by(start), &both);
                    scope.spawn(move || {
                        both.wait();
                        checkpoint_dir.claim()
                    })
                });
                let [_, late] = claims.map(|claim| claim.join().unwrap());
                assert_eq!(late, Ok(Claimed::Now), "round {round}");
            });
            assert!(checkpoint_dir.clone().held_by(1).is_held().is_err(), "round {round}");
            assert_eq!(checkpoint_dir.survey().unwrap().owner, Some(2), "round {round}");
        }
    }

    #[test]
    fn starts_that_go_on_from_a_checkpoint_are_counted_as_long_as_it_is_there() {
        let (_dir, checkpoint_dir) = checkpoint_dir();
        let (one, two) = (about(1, 0, 1, 10), about(1, 0, 2, 20));
        for about in [&one, &two] {
            store(&checkpoint_dir, about);
            conclude(&checkpoint_dir, about).unwrap();
        }
        // A missing checkpoint has no count.
        assert_eq!(
            [one.key(), two.key(), two.key()].map(|key| checkpoint_dir.set_out_from(key)),
            [0, 0, 1]
        );
        assert!(!checkpoint_dir.folder_of(one.key()).exists());
        checkpoint_dir.clone().held_by(2).claim().unwrap();
        let sets_out = |start| checkpoint_dir.clone().held_by(start).set_out_from(two.key());
        // After a later start has claimed the folder, an earlier start records nothing there.
        assert_eq!([1, 1, 2, 3].map(sets_out), [2, 2, 2, 3]);
        fs::write(checkpoint_dir.folder_of(two.key()).join(STARTS), "5\n").unwrap();
        assert_eq!(sets_out(2), 0);
        let inventory = checkpoint_dir.survey().unwrap();
        assert!(inventory.whole == [two] && inventory.damaged.is_empty(), "{inventory:?}");
    }

    #[test]
    fn incomplete_checkpoints_are_removed_unless_whole_elsewhere() {
        let (_dir, checkpoint_dir) = checkpoint_dir();
        let all = [about(1, 0, 1, 10), about(1, 0, 2, 20), about(1, 0, 3, 30)];
        all.iter().for_each(|about| store(&checkpoint_dir, about));
        conclude(&checkpoint_dir, &all[0]).unwrap();
        checkpoint_dir.tidy(&[all[2].key()], 0, &Flow::default()).unwrap();
        let there = all.each_ref().map(|about| checkpoint_dir.folder_of(about.key()).exists());
        assert_eq!(there, [true, false, true]);
    }

    /// The writer of a manifest may have been interrupted before it removed older checkpoints.
    #[test]
    fn outdated_checkpoints_are_removed() {
        let (_dir, checkpoint_dir) = checkpoint_dir();
        let flow = Flow::default();
        // Two checkpoints of a test, an incomplete one, one of another test, and one of the run that resumed from storage.
        let all = [(1, 0, 1), (1, 0, 2), (1, 0, 3), (1, 1, 1), (2, 0, 4)];
        let all = all.map(|(run, test, checkpoint)| about(run, test, checkpoint, 10 * checkpoint));
        let fill = |count: usize| {
            for about in &all[..count] {
                store(&checkpoint_dir, about);
                if about.key() != all[2].key() {
                    checkpoint_dir.list(about, DirScope::Shared, &[0, 1], || {}, &flow).unwrap();
                }
            }
        };
        let there = || all.each_ref().map(|about| checkpoint_dir.folder_of(about.key()).exists());
        fill(4);
        checkpoint_dir.outdate(&[], 2, 0, &flow).unwrap();
        assert_eq!(there(), [false, true, true, true, false]);
        fill(5);
        checkpoint_dir.outdate(&[], 2, 0, &flow).unwrap();
        assert_eq!(there(), [false, false, true, true, true]);
        // A checkpoint with a manifest on another node only is removed as well. Checkpoints at later boundaries stay.
        checkpoint_dir.outdate(&all[2..3], 2, 0, &flow).unwrap();
        assert_eq!(there(), [false, false, false, true, true]);
        checkpoint_dir.outdate(&[about(3, 0, 9, 90)], 2, 0, &flow).unwrap();
        assert_eq!(there(), [false, false, false, true, true]);
        // The run resumes from the oldest checkpoint, because the later checkpoint could not be read.
        fill(5);
        checkpoint_dir.outdate_but(all[0].key(), 2, 0, &flow).unwrap();
        assert_eq!(there(), [true, false, false, true, true]);
        checkpoint_dir.outdate_but(all[0].key(), 3, 0, &flow).unwrap();
        assert_eq!(there(), [true, false, false, true, false]);
        let other = checkpoint_dir.clone().held_by(3);
        other.claim().unwrap();
        assert!(checkpoint_dir.clone().held_by(2).outdate_but(all[1].key(), 2, 0, &flow).is_err());
    }

    /// A run that resumes from memory may be at a later boundary than a later run that resumed from storage and has ended.
    #[test]
    fn of_two_runs_the_checkpoint_that_has_got_further_stays() {
        let (_dir, checkpoint_dir) = checkpoint_dir();
        let flow = Flow::default();
        let (further, later) = (about(1, 0, 6, 59), about(2, 0, 4, 35));
        for about in [&further, &later] {
            store(&checkpoint_dir, about);
            checkpoint_dir.list(about, DirScope::Shared, &[0, 1], || {}, &flow).unwrap();
        }
        // Next checkpoint of the run, which other ranks are writing. It has no manifest.
        let next = about(1, 0, 7, 65);
        store(&checkpoint_dir, &next);
        checkpoint_dir.outdate(&[further.clone(), later.clone()], 1, 0, &flow).unwrap();
        let there = |about: &About| checkpoint_dir.folder_of(about.key()).exists();
        assert!(there(&further) && there(&next) && !there(&later));
        // The next checkpoint is complete by another node's manifest. It is at a later boundary than the checkpoints with a
        // manifest in this DIR.
        checkpoint_dir.outdate(std::slice::from_ref(&next), 1, 0, &flow).unwrap();
        assert!(there(&further) && there(&next));
    }

    /// DIR has a checkpoint at a later boundary, of another problem or of an earlier run of this problem. The run's own
    /// checkpoint stays.
    #[test]
    fn foreign_checkpoints_outdate_nothing_of_the_run() {
        let (foreign, earlier) = (about(1, 0, 9, 90), about(1, 0, 8, 80));
        for other in [About { params_digest: 1, ..foreign }, earlier] {
            let (_dir, checkpoint_dir) = checkpoint_dir();
            let flow = Flow::default();
            let ours = about(2, 0, 4, 40);
            for about in [&other, &ours] {
                store(&checkpoint_dir, about);
                checkpoint_dir.list(about, DirScope::Node, &[0, 1], || {}, &flow).unwrap();
            }
            checkpoint_dir.outdate(std::slice::from_ref(&ours), 2, 0, &flow).unwrap();
            assert!(checkpoint_dir.folder_of(ours.key()).exists(), "{other:?}");
        }
    }

    /// Each node has its own DIR.
    #[test]
    fn a_manifest_of_a_node_lists_what_it_has() {
        let (_dir, checkpoint_dir) = checkpoint_dir();
        let (one, two, three) = (about(1, 0, 1, 10), about(1, 0, 2, 20), about(1, 0, 3, 30));
        let store = |about: &About| {
            checkpoint_dir.make_folder(about.key()).unwrap();
            write_small(&checkpoint_dir.position(about.key(), 1), about, 1);
        };
        store(&one);
        let conclude =
            |about| checkpoint_dir.conclude(about, DirScope::Node, &[1], None, &Flow::default());
        conclude(&one).unwrap();
        assert_eq!(checkpoint_dir.files(), Ok(vec![(one.key(), vec![1])]));
        let inventory = checkpoint_dir.survey().unwrap();
        assert_eq!((inventory.whole, inventory.sights), (vec![one.clone()], vec![DirScope::Node]));
        // A later checkpoint that is being written is not removed with the older checkpoints.
        store(&two);
        store(&three);
        conclude(&two).unwrap();
        assert!(
            !checkpoint_dir.folder_of(one.key()).exists()
                && checkpoint_dir.folder_of(three.key()).exists()
        );
        // No other node writes here.
        checkpoint_dir.is_apart("token").unwrap();
        assert!(
            checkpoint_dir
                .is_apart("another node's")
                .unwrap_err()
                .contains("--level2-scope shared")
        );
        // A cancelled request removes nothing.
        let flow = Flow::default();
        flow.give_up();
        assert!(checkpoint_dir.conclude(&three, DirScope::Node, &[1], None, &flow).is_err());
        assert!(checkpoint_dir.folder_of(two.key()).exists());
    }

    /// Of two nodes with the same folder, at least one notices it by the token, in any order of the writes.
    #[test]
    fn folders_that_are_one_are_noticed_in_any_order_of_writes() {
        let (_dir, checkpoint_dir) = checkpoint_dir();
        for _ in 0..100 {
            std::thread::scope(|scope| {
                let nodes = ["one", "two"].map(|node| scope.spawn(|| checkpoint_dir.prepare(node)));
                nodes.into_iter().for_each(|node| node.join().unwrap().unwrap());
            });
            let apart = ["one", "two"].map(|node| checkpoint_dir.is_apart(node).is_ok());
            assert_ne!(apart, [true, true]);
        }
    }

    #[test]
    fn a_checkpoint_is_whole_with_its_manifest_and_goes_when_a_newer_one_is() {
        let (_dir, checkpoint_dir) = checkpoint_dir();
        let (one, two) = (about(1, 0, 1, 10), about(1, 0, 2, 20));
        store(&checkpoint_dir, &one);
        let inventory = checkpoint_dir.survey().unwrap();
        assert_eq!((inventory.whole.len(), inventory.unfinished.len()), (0, 1));
        let bytes = conclude(&checkpoint_dir, &one).unwrap();
        let manifest = checkpoint_dir.manifest(one.key()).unwrap().unwrap();
        assert_eq!((manifest.bytes(), manifest.files.len()), (bytes, 2));
        store(&checkpoint_dir, &two);
        assert_eq!(checkpoint_dir.survey().unwrap().whole, std::slice::from_ref(&one));
        conclude(&checkpoint_dir, &two).unwrap();
        let inventory = checkpoint_dir.survey().unwrap();
        assert_eq!((inventory.whole, inventory.unfinished.len()), (vec![two.clone()], 0));
        assert!(!checkpoint_dir.folder_of(one.key()).exists());
        let (files, bytes) = checkpoint_dir.clean(&Flow::default()).unwrap();
        assert!(files >= 3 && bytes > 0);
        let nothing = checkpoint_dir.clean(&Flow::default());
        assert_eq!((checkpoint_dir.survey(), nothing), (Ok(Inventory::default()), Ok((0, 0))));
    }

    /// Number of reported steps of a removal.
    static REMOVED: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn a_removal_reports_each_file_and_stops_when_given_up() {
        let (_dir, checkpoint_dir) = checkpoint_dir();
        let (one, two) = (about(1, 0, 1, 10), about(1, 0, 2, 20));
        for checkpoint in [&one, &two] {
            store(&checkpoint_dir, checkpoint);
        }
        conclude(&checkpoint_dir, &one).unwrap();
        let all = || checkpoint_dir.all_files(&Flow::default()).unwrap();
        let there = all();
        // A cancelled request must not remove files that other ranks have begun since.
        let flow = Flow::default();
        flow.give_up();
        assert_eq!(checkpoint_dir.prune(&flow), Err(Stopped::GivenUp));
        assert_eq!(checkpoint_dir.prune_but(&[two.key()], 0, &flow), Err(Stopped::GivenUp));
        assert!(checkpoint_dir.clean(&flow).is_err());
        assert_eq!(all(), there);
        assert_eq!(checkpoint_dir.survey().unwrap().whole, std::slice::from_ref(&one));
        let flow = Flow::told_to(|| _ = REMOVED.fetch_add(1, Ordering::Relaxed));
        checkpoint_dir.prune_but(&[two.key()], 0, &flow).unwrap();
        assert!(
            !checkpoint_dir.folder_of(one.key()).exists()
                && checkpoint_dir.folder_of(two.key()).exists()
        );
        assert!(flow.steps() >= 2, "{flow:?}");
        let before = REMOVED.load(Ordering::Relaxed);
        checkpoint_dir.clean(&flow).unwrap();
        assert!(REMOVED.load(Ordering::Relaxed) >= before + 3 && !checkpoint_dir.folder.exists());
    }

    #[test]
    fn a_checkpoint_with_a_file_missing_or_short_is_not_declared_whole() {
        let (_dir, checkpoint_dir) = checkpoint_dir();
        let one = about(1, 0, 1, 10);
        store(&checkpoint_dir, &one);
        let path = checkpoint_dir.position(one.key(), 1);
        fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let why = conclude(&checkpoint_dir, &one).unwrap_err().to_string();
        assert!(why.contains("p1") && why.contains("position 1"), "{why}");
        fs::remove_file(&path).unwrap();
        let why = conclude(&checkpoint_dir, &one).unwrap_err().to_string();
        assert!(why.contains("share"), "{why}");
        // Each position removes its file of a failed checkpoint. The last position removes the folder.
        checkpoint_dir.withdraw(one.key(), 0);
        assert!(!checkpoint_dir.folder_of(one.key()).exists());
    }

    #[test]
    fn results_that_do_not_count_go() {
        let (_dir, checkpoint_dir) = checkpoint_dir();
        let texts = [b"a", b"b", b"c", b"d"];
        (0..4).for_each(|test| checkpoint_dir.put_result(test, texts[test as usize]).unwrap());
        // A result found on storage, a result found in memory, and a result with another text than the valid result.
        let counting =
            [(0, Some(Results::mark(b"a"))), (1, None), (2, Some(Results::mark(b"other")))];
        let counting = Results(counting.into_iter().collect());
        let flow = Flow::default();
        let later = checkpoint_dir.clone().held_by(2);
        later.claim().unwrap();
        assert!(checkpoint_dir.clone().held_by(1).keep_results(&counting, &flow).is_err());
        later.keep_results(&counting, &flow).unwrap();
        let left = checkpoint_dir.survey().unwrap().results;
        assert_eq!(left, [(0, b"a".to_vec()), (1, b"b".to_vec())]);
    }

    #[test]
    fn damaged_manifests_and_results_are_named() {
        let (_dir, checkpoint_dir) = checkpoint_dir();
        let one = about(1, 0, 1, 10);
        store(&checkpoint_dir, &one);
        conclude(&checkpoint_dir, &one).unwrap();
        checkpoint_dir.put_result(3, b"result").unwrap();
        assert_eq!(checkpoint_dir.survey().unwrap().results, [(3, b"result".to_vec())]);
        for (name, says) in [("result-3", "result-3"), (MANIFEST, "manifest")] {
            let path = match name {
                MANIFEST => checkpoint_dir.folder_of(one.key()).join(name),
                _ => checkpoint_dir.folder.join(name),
            };
            let mut bytes = fs::read(&path).unwrap();
            bytes[5] ^= 1;
            fs::write(&path, bytes).unwrap();
            let damaged = checkpoint_dir.survey().unwrap().damaged;
            assert!(damaged.iter().any(|why| why.contains(says)), "{damaged:?}");
        }
        // A manifest lies in the folder of another checkpoint.
        let two = about(1, 0, 2, 20);
        store(&checkpoint_dir, &two);
        conclude(&checkpoint_dir, &two).unwrap();
        let moved = about(1, 0, 3, 30);
        fs::rename(checkpoint_dir.folder_of(two.key()), checkpoint_dir.folder_of(moved.key()))
            .unwrap();
        let inventory = checkpoint_dir.survey().unwrap();
        assert!(
            inventory.whole.is_empty()
                && inventory.damaged.iter().any(|why| why.contains("another checkpoint"))
        );
    }

    #[test]
    fn a_dir_that_is_not_there_or_not_shared_is_told() {
        let (_dir, checkpoint_dir) = checkpoint_dir();
        checkpoint_dir.check().unwrap();
        checkpoint_dir.sees("token").unwrap();
        assert!(checkpoint_dir.sees("other").unwrap_err().contains("share"));
        // One node sees the token only after a while.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                checkpoint_dir.prepare("late").unwrap();
            });
            checkpoint_dir.sees("late").unwrap();
        });
        let elsewhere = CheckpointDir::new(Path::new("/nonexistent"), "job");
        assert!(elsewhere.check().unwrap_err().contains("--level2 /nonexistent"));
        assert!(elsewhere.sees("token").unwrap_err().contains("share"));
        assert!(free_bytes(checkpoint_dir.dir()).unwrap() > 0);
    }
}
