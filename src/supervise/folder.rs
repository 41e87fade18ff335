//! The run's folder: which file is what.
//!
//! Everything about a supervised run lies in one folder (`--state`), on a file system the supervisor's
//! successor can see too. `run`, `halt` and `status` find each other through it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Default of `--state`.
pub const DEFAULT: &str = "skt-hpl.run";

#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

/// What `skt-hpl halt` leaves for the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaltRequest {
    /// Let the next regular save come instead of saving at once.
    pub after_checkpoint: bool,
    /// Not before this moment (Unix milliseconds).
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
    /// The launcher's standard output, error and exit status in an incarnation.
    pub fn output(&self, incarnation: u32) -> PathBuf {
        self.0.join(format!("out.{incarnation}"))
    }
    pub fn errors(&self, incarnation: u32) -> PathBuf {
        self.0.join(format!("err.{incarnation}"))
    }
    pub fn exit(&self, incarnation: u32) -> PathBuf {
        self.0.join(format!("exit.{incarnation}"))
    }

    /// Moves a finished run's files aside, into a folder named by its run id.
    pub fn set_aside(&self, run_id: &str) -> io::Result<()> {
        let aside = self.0.join(format!("finished-{run_id}"));
        fs::create_dir_all(&aside)?;
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let name = entry.file_name();
            if entry.file_type()?.is_file() && name != "events.jsonl" {
                fs::rename(entry.path(), aside.join(name))?;
            }
        }
        // The journal stays where it is, locked and soon empty: a new file would have a new lock.
        fs::copy(self.journal(), aside.join("events.jsonl"))?;
        Ok(())
    }
}

/// Writes a file so that a reader sees the old content or the new, never half of it.
pub fn write_whole<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, serde_json::to_vec_pretty(value)?)?;
    fs::rename(&fresh, path)
}

pub fn read_whole<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!folder.halt().exists() && folder.journal().exists());
    }
}
