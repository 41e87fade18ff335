//! Checkpoints on storage, level two: files that outlive the job and all of its memory.
//!
//! DIR is one folder that all nodes share, or each node has a DIR of its own, which is lost with the node. In the second case,
//! each file includes parity of its position's group.
//!
//! `names`, `record` and `choice` are pure. They define the paths of files, the contents of files, and the choice of a checkpoint
//! to resume from. `checkpoint_dir` handles one job's folder; `writing` and `reading` stream a position's file. This folder does
//! not communicate with other ranks: `checkpoint` lets the ranks agree on when to write and which files to trust.
//! docs/dev/protocol.md describes the whole protocol.

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

/// Directory scope: the nodes that see the files in DIR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DirScope {
    /// All nodes see the same folder.
    #[default]
    Shared,
    /// Each node has a folder of its own, which no other node sees.
    Node,
}

/// Alignment of the parts of a file, in bytes. `O_DIRECT`, which bypasses the page cache, requires it.
pub const BLOCK_BYTES: usize = 4096;
/// Version of the file format. Raise this number with every change of a file's contents.
pub const FORMAT: u32 = 3;
