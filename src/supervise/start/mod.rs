//! Start of a job: lists of hosts, arguments of launchers, trial starts of MPI, and the launcher's process.

pub mod hosts;
pub mod in_place;
pub mod job;
pub mod launch;
pub mod launcher;
pub mod room;
pub mod search;
pub mod trial;
pub mod witness;
