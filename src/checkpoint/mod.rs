//! Saving and restoring rectangles of a local matrix so that node loss costs no more than the work
//! since the last save.
//!
//! `protocol` decides, purely, from headers; `plan`, `need`, `groups`, `layout`, `placement` and `when` are pure too; `holding`
//! is one position's memory, `saved` what lies in it, `taking` how a start comes by it; `start` comes to an agreement with all
//! others, on the terms of `terms`, of what is `known` of everybody's memory, whose `identity` must be this test's; `save` and
//! `restore` move the data, `aside` where helpers encode; `level2` brings committed epochs to storage by means of a `helper`,
//! which does each `errand`, `disk` saves there alone, `fetching` brings them back, as `recall` says, by `transfer`. `storage`
//! names, writes and reads the files that outlive the job. The solver's side is [`Arrival`] once a launch, then
//! [`Checkpointer`]: `start` before generation, `due` and `save` at boundaries, `finish` at the end. Nothing here knows what the
//! matrix is for. `docs/dev/protocol.md` tells the whole story.

pub mod arrival;
mod aside;
mod disk;
mod errand;
mod fetching;
pub mod groups;
mod helper;
mod holding;
mod identity;
mod known;
pub mod layout;
mod lease;
pub mod level2;
pub mod mpi;
pub mod need;
pub mod placement;
pub mod plan;
pub mod protocol;
pub mod recall;
mod restore;
pub mod save;
mod saved;
mod start;
pub mod storage;
mod taking;
mod terms;
mod transfer;
pub mod when;
pub mod world;

pub use arrival::Arrival;
pub use holding::{Renamed, survey};
pub use placement::Player;
pub use save::{Checkpointer, SaveReport};
pub use terms::{Config, Origin, Restart, Restored, StartError, Started, Test, new_run};
pub use world::World;
