//! Names of files and folders on storage. The functions are pure, and every name can be parsed back.
//!
//! ```text
//! DIR/skt-hpl.<uid>.<job>/                  one job's folder
//!     token                                 written by this start: shows whether all nodes see the same DIR
//!     owner-<start>                         left by a start that writes here: the greatest number owns the folder
//!     result-<test>                         result of a finished test
//!     run-<run>.test-<test>.checkpoint-<number>/  one checkpoint
//!         p<position>                       a position's state, digests and matrix, and parity if each node has its own DIR
//!         manifest                          written last: without it the checkpoint is incomplete
//!         starts                            number of starts that have resumed from the checkpoint, if any
//! ```
//! If each node has a DIR of its own, DIR contains the files of this node only. A manifest on any node then shows that the
//! checkpoint is complete on all nodes. A file is written under its name with the suffix `.aside`. The file is renamed when it is
//! completely on the device.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Suffix of the name of a file that is being written.
const ASIDE: &str = ".aside";
pub const MANIFEST: &str = "manifest";
pub const TOKEN: &str = "token";
pub const STARTS: &str = "starts";

/// Placeholder in DIR for the name of the rank's failure domain.
const DOMAIN: &str = "{domain}";

/// Returns DIR for a rank of failure domain `domain`: `dir`, with each `{domain}` replaced by the domain's name.
pub fn dir_of(dir: &Path, domain: &str) -> PathBuf {
    match dir.to_str() {
        Some(text) => text.replace(DOMAIN, domain).into(),
        None => dir.into(),
    }
}

/// Returns the path at which a file is written before it is renamed to `path`.
pub(super) fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ASIDE);
    name.into()
}

/// Run, test and number of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    pub run: u128,
    pub test: u32,
    pub checkpoint: u64,
}

pub fn job_folder(uid: u32, job: &str) -> String {
    format!("skt-hpl.{uid}.{job}")
}

/// Returns the job to which the folder `name` belongs. None if `name` is not the folder of a job of user `uid`.
pub fn parse_job_folder(name: &str, uid: u32) -> Option<&str> {
    let job = name.strip_prefix("skt-hpl.")?.strip_prefix(&uid.to_string())?.strip_prefix('.')?;
    (!job.is_empty() && !job.contains('.')).then_some(job)
}

pub fn checkpoint_folder(key: Key) -> String {
    format!("run-{:032x}.test-{}.checkpoint-{}", key.run, key.test, key.checkpoint)
}

pub fn parse_checkpoint_folder(name: &str) -> Option<Key> {
    let mut fields = name.split('.');
    let run = fields.next()?.strip_prefix("run-")?;
    let test = fields.next()?.strip_prefix("test-")?.parse().ok()?;
    let checkpoint = fields.next()?.strip_prefix("checkpoint-")?.parse().ok()?;
    let key = Key { run: u128::from_str_radix(run, 16).ok()?, test, checkpoint };
    // A name counts only if it is written exactly as `checkpoint_folder` writes it.
    (checkpoint_folder(key) == name).then_some(key)
}

pub fn position(position: u32) -> String {
    format!("p{position}")
}

pub fn parse_position(name: &str) -> Option<u32> {
    let number = name.strip_prefix('p')?.parse().ok()?;
    (position(number) == name).then_some(number)
}

pub fn result(test: u32) -> String {
    format!("result-{test}")
}

pub fn parse_result(name: &str) -> Option<u32> {
    let test = name.strip_prefix("result-")?.parse().ok()?;
    (result(test) == name).then_some(test)
}

pub fn owner(start: u128) -> String {
    format!("owner-{start:032x}")
}

pub fn parse_owner(name: &str) -> Option<u128> {
    let start = u128::from_str_radix(name.strip_prefix("owner-")?, 16).ok()?;
    (owner(start) == name).then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_are_read_back(run: u128, test: u32, checkpoint: u64, uid: u32, job in "[A-Za-z0-9_-]{1,64}") {
            let key = Key { run, test, checkpoint };
            prop_assert_eq!(parse_checkpoint_folder(&checkpoint_folder(key)), Some(key));
            let folder = job_folder(uid, &job);
            prop_assert_eq!(parse_job_folder(&folder, uid), Some(job.as_str()));
            prop_assert_eq!(parse_job_folder(&folder, uid.wrapping_add(1)), None);
            prop_assert_eq!(parse_result(&result(test)), Some(test));
            prop_assert_eq!(parse_position(&position(test)), Some(test));
            prop_assert_eq!(parse_owner(&owner(run)), Some(run));
        }

        #[test]
        fn foreign_names_are_not_taken_for_ours(name in "[a-z0-9.-]{0,60}") {
            if let Some(key) = parse_checkpoint_folder(&name) {
                prop_assert_eq!(checkpoint_folder(key), name.clone());
            }
            if let Some(test) = parse_result(&name) {
                prop_assert_eq!(result(test), name.clone());
            }
            if let Some(number) = parse_position(&name) {
                prop_assert_eq!(position(number), name);
            }
        }
    }

    #[test]
    fn files_that_are_being_written_have_no_name_yet() {
        for name in [checkpoint_folder(Key { run: 1, test: 2, checkpoint: 3 }), result(4)] {
            let aside = format!("{name}{ASIDE}");
            assert!(parse_checkpoint_folder(&aside).is_none() && parse_result(&aside).is_none());
        }
        assert_eq!(parse_position("p3.aside"), None);
        assert_eq!(parse_checkpoint_folder("run-1.test-0.checkpoint-1"), None);
        assert_eq!(parse_result("result-01"), None);
    }

    #[test]
    fn a_node_may_have_a_dir_named_after_it() {
        let dir = |text: &str| dir_of(Path::new(text), "n7");
        assert_eq!(dir("/local/{domain}/me"), Path::new("/local/n7/me"));
        assert_eq!(dir("/local/me"), Path::new("/local/me"));
    }
}
