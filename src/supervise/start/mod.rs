//! Starts of a job: hosts and launchers as text and argument lists, trial starts of MPI, the launcher's process.

pub mod hosts;
pub mod in_place;
pub mod job;
pub mod launch;
pub mod launcher;
pub mod room;
pub mod search;
pub mod trial;
pub mod witness;
