//! The agents, the supervisor's connections to the agents, and the state of a node that its agent reports.

pub mod agent;
pub mod branch;
pub mod cluster;
pub mod link;
pub mod orphaned;
pub mod processes;
pub mod progress;
pub mod relay;
pub mod shell;
pub mod tree;
pub mod wire;
