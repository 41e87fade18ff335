//! Keeps a run alive whatever node dies when: nodes, launchers, agents, watchdog, journal, restart loop.
//!
//! `skt-hpl run` calls [`supervisor::supervise`], and so a node that loses its power at three in the morning
//! costs a few seconds, not the run. Decisions are pure functions, each in a file of its own, and are told
//! everything they go by: [`watch`] (is the run broken?), [`pace`] (is a node slow?), [`policy`] (with which nodes to go on, and whether),
//! [`preflight`] and [`trial`] (is a node fit, does MPI start there?), [`journal`] and [`timeline`] (where does the run stand, what did faults cost?),
//! [`hosts`], [`launcher`], [`shell`] (text and argument lists). The outside is reached through [`link`] and
//! [`cluster`] (agents), [`job`] (the launcher), [`processes`] and [`progress`] (on a node, by the [`agent`]).
//!
//! docs/SUPERVISION.md is the user's side of this.

pub mod agent;
pub mod cluster;
pub mod echo;
pub mod events;
pub mod folder;
pub mod hosts;
pub mod job;
pub mod journal;
pub mod launcher;
pub mod link;
pub mod pace;
pub mod policy;
pub mod preflight;
pub mod processes;
pub mod progress;
pub mod shell;
pub mod status;
pub mod supervisor;
pub mod timeline;
pub mod trial;
pub mod watch;
pub mod wire;
