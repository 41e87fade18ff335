//! Temporary folder for jobs that a command starts by itself. The folder is removed when the jobs have ended.

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::mkdtemp;

/// Temporary folder, which is removed when this value is dropped.
pub struct Passing(PathBuf);

impl Passing {
    /// Makes a folder for the jobs of `command`. If `elsewhere` is true, ranks on other nodes read the folder. The folder is then
    /// in the working directory, because other nodes have another /tmp.
    pub fn new(command: &str, elsewhere: bool) -> Result<Self, String> {
        let parent = if elsewhere {
            std::env::current_dir()
                .map_err(|e| format!("cannot find the working directory: {e}"))?
        } else {
            std::env::temp_dir()
        };
        mkdtemp(&parent.join(format!("skt-hpl-{command}-XXXXXX"))).map(Self).map_err(|e| {
            let all =
                if elsewhere { "; start this command in a folder that all nodes see" } else { "" };
            format!("cannot make a folder in {}: {e}{all}", parent.display())
        })
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_one_of_its_own_which_goes_with_all_that_is_in_it() {
        let new = || Passing::new("test", false).unwrap();
        let (one, other) = (new(), new());
        assert_ne!(one.path(), other.path());
        fs::write(one.path().join("HPL.dat"), "text").unwrap();
        let was = one.path().to_owned();
        drop(one);
        assert!(!was.exists() && other.path().is_dir());
    }
}
