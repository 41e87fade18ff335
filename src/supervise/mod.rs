//! Keeps a run alive when any of its nodes fails, at any time.
//!
//! `skt-hpl run` calls [`supervisor::supervise`]. A node that loses its power at three in the morning then costs the run a few
//! seconds. The steps are in [`supervisor`]. The other modules are:
//!
//! - [`judge`]: judges whether the run is broken, and whether a node is slow, unfit or lost. It decides whether to continue, and
//!   with which nodes. All its functions are pure.
//! - [`talk`]: one agent for each node, and the connections to the agents.
//! - [`start`]: hosts, launchers, trial starts of MPI, and the launcher's process.
//! - [`remember`]: the journal, and its folder.
//! - [`signals`]: signals that ask to stop.
//! - [`machine`]: the interface at which a simulation replaces this machine.
//! - [`tell`]: the status, the printed lines, and the report at the end.
//!
//! docs/PROTECTION.md is for users; docs/dev/supervision.md gives the reasons.

pub mod judge;
pub mod machine;
pub mod remember;
pub mod signals;
pub mod start;
pub mod supervisor;
pub mod talk;
pub mod tell;
