//! Storage of a test run: one folder that all nodes share, or one folder per node that is lost with the node.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

pub struct Storage {
    folder: TempDir,
    own: bool,
}

impl Storage {
    /// Makes an empty storage folder in `place`. If `own` is set, each of `nodes` nodes has a folder of its own.
    pub fn within(place: &str, own: bool, nodes: usize) -> Self {
        let folder = tempfile::Builder::new().prefix("t-storage-").tempdir_in(place).unwrap();
        let this = Self { folder, own };
        if own {
            (0..nodes).for_each(|node| fs::create_dir(this.dir(node)).unwrap());
        }
        this
    }

    /// Returns the argument of `--level2` for this storage.
    pub fn named(&self) -> String {
        let path = if self.own { self.path().join("{domain}") } else { self.path().to_owned() };
        path.to_str().unwrap().to_owned()
    }

    /// Returns the argument of `--level2-scope` for this storage.
    pub fn scope(&self) -> &'static str {
        if self.own { "node" } else { "shared" }
    }

    /// Returns the folder that contains the whole storage.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the folder to which `node` writes: its own, or the shared one.
    pub fn dir(&self, node: usize) -> PathBuf {
        match self.own {
            true => self.path().join(format!("d{node}")),
            false => self.path().to_owned(),
        }
    }

    /// Empties the folder of `node`, as if a new node replaced it. Shared storage stays.
    pub fn renew(&self, node: usize) {
        if self.own {
            fs::remove_dir_all(self.dir(node)).unwrap();
            fs::create_dir(self.dir(node)).unwrap();
        }
    }
}
