//! The run's folder, and its files.
//!
//! All files of a supervised run are in one folder (`--state`). Its file system must also be accessible to a supervisor that
//! takes over. `run`, `halt` and `status` exchange data through the folder.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Default of `--state`.
pub const DEFAULT: &str = "skt-hpl.run";

#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

/// Request that `skt-hpl halt` writes for the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaltRequest {
    /// Whether to wait for the next regular save instead of saving at once.
    pub after_checkpoint: bool,
    /// Earliest time of the halt (Unix milliseconds).
    pub at_ms: Option<u64>,
}

impl Folder {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
    pub fn journal(&self) -> PathBuf {
        self.0.join("events.jsonl")
    }
    pub fn status(&self) -> PathBuf {
        self.0.join("status.json")
    }
    pub fn halt(&self) -> PathBuf {
        self.0.join("halt.json")
    }
    /// Returns the path of the file that marks a run as given up. The file exists until the journal of the next run records this.
    pub fn given_up(&self) -> PathBuf {
        self.0.join("given-up")
    }
    /// Returns the path of the launcher's standard output in an attempt.
    pub fn output(&self, attempt: u32) -> PathBuf {
        self.0.join(format!("out.{attempt}"))
    }
    /// Returns the path of the launcher's standard error in an attempt.
    pub fn errors(&self, attempt: u32) -> PathBuf {
        self.0.join(format!("err.{attempt}"))
    }
    /// Returns the path of the file with the launcher's exit status in an attempt.
    pub fn exit(&self, attempt: u32) -> PathBuf {
        self.0.join(format!("exit.{attempt}"))
    }

    /// Makes the folder, accessible only to its owner. An existing folder must belong to this user, and no other user may write
    /// there, because scripts in the folder are executed.
    pub fn prepare(&self) -> Result<(), String> {
        let path = self.0.display();
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.map_err(|e| format!("cannot make the folder {path}: {e}"))?;
        let meta = fs::metadata(&self.0).map_err(|e| format!("{path}: {e}"))?;
        trusted(&meta, nix::unistd::geteuid().as_raw()).map_err(|why| {
            format!("{path}: {why}, and skt-hpl executes scripts in this folder; choose another --state folder")
        })
    }

    /// Moves a finished run's files into a folder named after `run_id`. A halt request stays, because it is newer.
    pub fn set_aside(&self, run_id: &str) -> io::Result<()> {
        let aside = self.0.join(format!("finished-{run_id}"));
        fs::create_dir_all(&aside)?;
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let name = entry.file_name();
            let stays =
                ["events.jsonl", "halt.json", "given-up"].iter().any(|stays| name == *stays);
            if entry.file_type()?.is_file() && !stays {
                fs::rename(entry.path(), aside.join(name))?;
            }
        }
        // The journal is copied, not moved, because it stays locked and is emptied later. A new file would have a new lock.
        fs::copy(self.journal(), aside.join("events.jsonl"))?;
        Ok(())
    }
}

/// Returns an error if a user other than `user` owns the folder or can write there.
fn trusted(meta: &fs::Metadata, user: u32) -> Result<(), String> {
    if meta.uid() != user {
        return Err(format!("the folder belongs to another user (uid {})", meta.uid()));
    }
    if meta.mode() & 0o022 != 0 {
        let mode = meta.mode() & 0o777;
        return Err(format!("other users can write in the folder (mode {mode:o}; chmod go-w)"));
    }
    Ok(())
}

/// Writes a file so that a reader finds either the old or the new content, never a part.
pub fn write_whole<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    write_bytes(path, &serde_json::to_vec_pretty(value)?)
}

pub fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes)?;
    fs::rename(&fresh, path)
}

pub fn read_whole<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&read_if_there(path)?).ok()
}

/// Reads a file that the supervisor looks for several times a second, and that usually does not exist. To check whether it
/// exists is faster than a failed open.
pub fn read_if_there(path: &Path) -> Option<Vec<u8>> {
    path.exists().then(|| fs::read(path).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_others_can_write_in_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/state");
        let folder = Folder::new(&path);
        folder.prepare().unwrap();
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(mode(), 0o700);
        folder.prepare().unwrap();
        for wrong in [0o770, 0o707, 0o1777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(wrong)).unwrap();
            let why = folder.prepare().unwrap_err();
            assert!(why.contains("chmod go-w"), "{why}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        folder.prepare().unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert!(trusted(&meta, meta.uid() + 1).unwrap_err().contains("another user"));
    }

    #[test]
    fn a_finished_run_is_set_aside_with_its_journal() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path());
        fs::write(folder.journal(), "j").unwrap();
        fs::write(folder.output(1), "o").unwrap();
        let halt = HaltRequest { after_checkpoint: true, at_ms: Some(5) };
        write_whole(&folder.halt(), &halt).unwrap();
        assert_eq!(read_whole(&folder.halt()), Some(halt));
        folder.set_aside("r7").unwrap();
        let aside = dir.path().join("finished-r7");
        assert_eq!(fs::read_to_string(aside.join("out.1")).unwrap(), "o");
        assert_eq!(fs::read_to_string(aside.join("events.jsonl")).unwrap(), "j");
        assert!(!folder.output(1).exists() && folder.journal().exists());
        assert!(folder.halt().exists(), "a request made meanwhile is for the next run");
    }
}
