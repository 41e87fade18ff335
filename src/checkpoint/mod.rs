//! Saving and restoring of local matrices. After the loss of a node, the run loses only the work since the last save.
//!
//! Pure decisions: `protocol` decides from headers what to recover. `distribution`, `plan`, `need`, `groups`, `layout`,
//! `placement` and `when` are pure, too. `known` contains the headers of all positions, and `identity` the header fields that
//! must match this test.
//!
//! Memory: `holding` is the memory of one position, and `saved` contains its checkpoints. `taking` opens or creates the memory at
//! a start. `start` lets all ranks agree, under the `terms` of the test. `save` and `restore` move the data. In `aside`, helpers
//! encode an `unfinished` checkpoint.
//!
//! Storage: `level2` writes committed checkpoints with a `helper`, which carries out I/O requests such as the one in
//! `io_request`. `storing` keeps all ranks in step. `disk` makes the saves of method disk, on storage only. `fetching` reads
//! checkpoints back, with the assignments of `recall` and the `transfer` of files. `storage` names, writes and reads the files
//! that outlive the job.
//!
//! The solver uses [`Arrival`] once in a launch, then [`Checkpointer`]: `start` before the matrix is generated, `due` and `save`
//! at boundaries, `finish` at the end. This module does not know what the matrix is for. `docs/dev/protocol.md` describes the
//! whole protocol.

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
