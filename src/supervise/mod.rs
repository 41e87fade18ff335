//! Keeps a run alive when any of its nodes fails, at any time.
//!
//! `skt-hpl run` calls [`supervisor::supervise`], and so a node that loses its power at three in the morning costs a few seconds,
//! not the run. The steps are in [`supervisor`]; the rest has modules of its own:
//!
//! - [`judge`]: judges whether the run is broken, and whether a node is slow, unfit or lost. Decides whether to continue, and
//!   with which nodes. Pure.
//! - [`talk`]: agents, one a node, and the connections to them.
//! - [`start`]: hosts, launchers, trial starts of MPI, the launcher's process.
//! - [`remember`]: the journal, and its folder.
//! - [`signals`]: signals that ask to stop.
//! - [`machine`]: the interface at which a simulation replaces this machine.
//! - [`tell`]: status, lines, the report at the end.
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
