//! What talks: the supervisor's connections to the agents, the agents, and what they see on their nodes.

pub mod agent;
pub mod branch;
pub mod cluster;
pub mod link;
pub mod lonely;
pub mod processes;
pub mod progress;
pub mod relay;
pub mod shell;
pub mod tree;
pub mod wire;
