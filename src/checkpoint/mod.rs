//! Saving and restoring rectangles of a local matrix so that node loss costs no more than the work
//! since the last save.
//!
//! `protocol` decides, purely, from headers; `plan`, `need`, `groups`, `layout`, `placement` and `when` are pure too; `holding`
//! is one position's memory, `saved` what lies in it, `taking` how a start comes by it; `save` and `restore` move the data,
//! `aside` where helpers encode; `level2` brings committed epochs to storage by means of a `helper`, which does each `errand` as
//! a thread or a `process`, `disk` saves there alone, `fetching` brings them back, as `recall` says, by `transfer`. The solver's
//! side is [`Arrival`] once a launch, then [`Checkpointer`]: `start` before generation, `due` and `save` at boundaries, `finish`
//! at the end. Nothing here knows what the matrix is for. `docs/CHECKPOINT.md` tells the whole story.

pub mod arrival;
mod aside;
mod disk;
mod errand;
mod fetching;
pub mod groups;
mod helper;
mod holding;
pub mod layout;
pub mod level2;
pub mod mpi;
pub mod need;
pub mod placement;
pub mod plan;
pub mod process;
pub mod protocol;
pub mod recall;
pub mod restore;
pub mod save;
mod saved;
mod taking;
mod transfer;
pub mod when;
pub mod world;

pub use arrival::Arrival;
pub use holding::{Renamed, survey};
pub use placement::Player;
pub use restore::{Config, Origin, Restart, Restored, StartError, Started, Test};
pub use save::{Checkpointer, SaveReport};
pub use world::World;
