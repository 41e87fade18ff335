//! Keeps a run alive whatever node dies when.
//!
//! `skt-hpl run` calls [`supervisor::supervise`], and so a node that loses its power at three in the morning
//! costs a few seconds, not the run. The steps are in [`supervisor`]; everything else has a room:
//!
//! - [`judge`]: is the run broken, a node slow, unfit, lost; with which nodes to go on, and whether. Pure.
//! - [`talk`]: agents, one a node, and the connections to them.
//! - [`start`]: hosts, launchers, trial starts of MPI, the launcher's process.
//! - [`remember`]: the journal, and the folder it lies in.
//! - [`signals`]: those that ask to stop.
//! - [`machine`]: the seam at which a simulation takes the place of this machine.
//! - [`tell`]: status, lines, the account at the end.
//!
//! docs/PROTECTION.md is the user's side of this; docs/dev/supervision.md gives the reasons.

pub mod judge;
pub mod machine;
pub mod remember;
pub mod signals;
pub mod start;
pub mod supervisor;
pub mod talk;
pub mod tell;
