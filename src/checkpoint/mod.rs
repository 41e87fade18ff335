//! Saving and restoring of local matrices, so that the loss of a node costs no more than the work since the last save.
//!
//! Pure decisions: `protocol` decides from headers; `distribution`, `plan`, `need`, `groups`, `layout`, `placement` and `when`
//! are pure, too. `known` has the headers of all positions, and `identity` the fields that must match this test.
//!
//! Memory: `holding` is one position's memory, `saved` its checkpoints, and `taking` opens or creates it at a start. `start`
//! agrees with all ranks, under the `terms` of the test. `save` and `restore` move the data; in `aside` helpers encode an
//! `unfinished` checkpoint.
//!
//! Storage: `level2` writes committed checkpoints with a `helper`, which carries out I/O requests, as the one in `io_request`;
//! `storing` keeps all ranks in step, and `disk` saves there only. `fetching` reads checkpoints back, with the assignments of
//! `recall` and the `transfer` of files. `storage` names, writes and reads the files that outlive the job.
//!
//! The solver uses [`Arrival`] once a launch, then [`Checkpointer`]: `start` before generation, `due` and `save` at boundaries,
//! `finish` at the end. Nothing here depends on the purpose of the matrix. `docs/dev/protocol.md` describes the whole protocol.

pub mod arrival;
mod aside;
mod disk;
pub mod distribution;
mod fetching;
pub mod groups;
mod helper;
mod holding;
pub(crate) mod identity;
mod io_request;
mod known;
pub mod layout;
mod lease;
pub mod level2;
pub mod mpi;
pub mod need;
mod on_device;
pub mod placement;
pub mod plan;
pub mod protocol;
pub mod recall;
mod restore;
pub mod save;
mod saved;
mod start;
pub mod storage;
mod storing;
mod taking;
mod terms;
mod transfer;
mod unfinished;
pub mod when;
pub mod world;

pub use arrival::Arrival;
pub use holding::{Renamed, survey};
pub use placement::RankCandidate;
pub use save::{Checkpointer, SaveReport};
pub use terms::{Config, Origin, Restored, StartError, Started, Test, new_run};
pub use world::World;
