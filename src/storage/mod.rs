//! Checkpoints on storage, the second level: files that outlive the job, and with it all memory.
//!
//! `names`, `record` and `choice` are pure: what lies where, what it says, which of it counts. `shelf` is one job's
//! folder, `writing` and `reading` stream a position's file. Nothing here talks to other ranks: when to write and
//! what to believe is `checkpoint`'s affair, which agrees on it. docs/CHECKPOINT.md tells the whole story.

pub mod choice;
pub mod names;
pub mod reading;
pub mod record;
pub mod shelf;
pub mod speed;
pub mod writing;

pub use record::{About, Front, Manifest};
pub use shelf::Shelf;

/// Files begin their parts at multiples of this, so that a device can be written past the page cache.
pub const BLOCK_BYTES: usize = 4096;
/// Raised with every change of anything written to storage.
pub const FORMAT: u32 = 1;
