//! Checkpoints on storage, level two: files that outlive the job and all of its memory.
//!
//! DIR is one folder that all nodes share, or each node has a DIR of its own, which is lost with the node. In the second case the
//! files include the parity of their group.
//!
//! `names`, `record` and `choice` are pure: the names of files, their contents, and the choice of the files from which a run can
//! resume. `checkpoint_dir` is the folder of one job. `writing` and `reading` stream a position's file. This module does not
//! communicate with other ranks: `checkpoint` agrees with them on when to write and what to trust. docs/dev/protocol.md describes
//! the whole protocol.

pub mod checkpoint_dir;
pub mod choice;
pub mod names;
pub mod reading;
pub mod record;
pub mod speed;
pub mod writing;

use serde::{Deserialize, Serialize};

pub use checkpoint_dir::CheckpointDir;
pub use choice::{Counting, Results};
pub use record::{About, Check, Front, Manifest};

/// Directory scope: the nodes that can open the files in DIR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DirScope {
    /// All nodes share one folder.
    #[default]
    Shared,
    /// Each node has a folder of its own, which no other node can open.
    Node,
}

/// Alignment of the parts of a file, so that writes can bypass the page cache.
pub const BLOCK_BYTES: usize = 4096;
/// Version of the format. It must be raised whenever anything that is written to storage changes.
pub const FORMAT: u32 = 3;
