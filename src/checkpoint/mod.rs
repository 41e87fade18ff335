//! Saving and restoring rectangles of a local matrix so that node loss costs no more than the work
//! since the last save.
//!
//! `protocol` decides, purely, from headers; `plan`, `need`, `groups`, `placement` and `when` are pure too;
//! `holding` is one position's memory; `save` and `restore` move the data. The solver's side is
//! [`Arrival`] once a launch, then [`Checkpointer`]: `start` before generation, `due` and `save` at boundaries, `finish` at the end.
//! Nothing here knows what the matrix is for. `docs/CHECKPOINT.md` tells the whole story.

pub mod arrival;
pub mod groups;
mod holding;
pub mod mpi;
pub mod need;
pub mod placement;
pub mod plan;
pub mod protocol;
pub mod restore;
pub mod save;
pub mod when;
pub mod world;

pub use arrival::Arrival;
pub use holding::survey;
pub use restore::{Config, Origin, Restart, Restored, StartError, Started, Test};
pub use save::{Checkpointer, SaveReport};
pub use world::World;
