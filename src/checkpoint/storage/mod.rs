//! Checkpoints on storage, the second level: files that outlive the job, and with it all memory.
//!
//! DIR is one folder that all nodes share, or a folder of each node's own, which dies with it; then a group's parity lies beside
//! the data.
//!
//! `names`, `record` and `choice` are pure: what lies where, what it says, which of it counts. `shelf` is one job's
//! folder, `writing` and `reading` stream a position's file. Nothing here talks to other ranks: when to write and
//! what to believe is `checkpoint`'s affair, which agrees on it. docs/dev/protocol.md tells the whole story.

pub mod choice;
pub mod names;
pub mod reading;
pub mod record;
pub mod shelf;
pub mod speed;
pub mod writing;

use serde::{Deserialize, Serialize};

pub use choice::{Counting, Results};
pub use record::{About, Check, Front, Manifest};
pub use shelf::Shelf;

/// Who sees what lies in DIR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sight {
    /// All nodes see one folder.
    #[default]
    Shared,
    /// Each node has a folder of its own, which nobody else sees.
    Node,
}

/// Files begin their parts at multiples of this, so that a device can be written past the page cache.
pub const BLOCK_BYTES: usize = 4096;
/// Raised with every change of anything written to storage.
pub const FORMAT: u32 = 2;
