//! Limits that the judges apply.
//!
//! `skt-hpl run` fills them in from its flags. They are values, not rules: each judge documents its use of them.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Time without a heartbeat after which a node is lost.
    pub node_timeout_ms: u64,
    /// Least time in which a connection that ended must be made again.
    pub redial_ms: u64,
    /// Time that a dead rank waits for the launcher's exit status, which is more precise.
    pub exit_grace_ms: u64,
    /// Factor on its usual iteration after which a rank hangs...
    pub hang_factor: f64,
    /// ...but never before this.
    pub hang_min_ms: u64,
    /// Time after which a rank hangs in phases without a measure: starting, generating, saving, restoring, solving.
    pub progress_timeout_ms: u64,
    /// Time after which a stopped process hangs.
    pub stopped_ms: u64,
    /// Time after the launch in which the first rank must appear.
    pub startup_timeout_ms: u64,
    /// Factor by which a node's ranks compute slower than the others', for so long, after which it is slow.
    pub pace_factor: f64,
    pub pace_ms: u64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            node_timeout_ms: 4000,
            redial_ms: 700,
            exit_grace_ms: 300,
            hang_factor: 3.0,
            hang_min_ms: 9_000,
            stopped_ms: 9_000,
            progress_timeout_ms: 120_000,
            startup_timeout_ms: 300_000,
            pace_factor: 1.5,
            pace_ms: 15_000,
        }
    }
}
