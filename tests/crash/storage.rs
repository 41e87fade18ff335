//! Storage of a run in these tests: a folder that all nodes share, or a folder for each, which dies with its node.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

pub struct Storage {
    folder: TempDir,
    own: bool,
}

impl Storage {
    /// Makes a new one in that place; `own`: each of so many nodes has a folder of its own.
    pub fn within(place: &str, own: bool, nodes: usize) -> Self {
        let folder = tempfile::Builder::new().prefix("t-storage-").tempdir_in(place).unwrap();
        let this = Self { folder, own };
        if own {
            (0..nodes).for_each(|node| fs::create_dir(this.dir(node)).unwrap());
        }
        this
    }

    /// Name for `--level2`.
    pub fn named(&self) -> String {
        let path = if self.own { self.path().join("{domain}") } else { self.path().to_owned() };
        path.to_str().unwrap().to_owned()
    }

    /// Value of its `--level2-scope`.
    pub fn scope(&self) -> &'static str {
        if self.own { "node" } else { "shared" }
    }

    /// Folder of all of it.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Folder that a node writes to.
    pub fn dir(&self, node: usize) -> PathBuf {
        match self.own {
            true => self.path().join(format!("d{node}")),
            false => self.path().to_owned(),
        }
    }

    /// Replaces a node by another one, with nothing on storage of its own; shared files stay.
    pub fn renew(&self, node: usize) {
        if self.own {
            fs::remove_dir_all(self.dir(node)).unwrap();
            fs::create_dir(self.dir(node)).unwrap();
        }
    }
}
