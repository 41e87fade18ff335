//! After how long what is taken for what: the limits that the judges go by.
//!
//! `skt-hpl run` fills them in from its flags. They are values, not rules: each judge says what it does with its own.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// A node without a heartbeat for so long is lost.
    pub silence_ms: u64,
    /// A connection that ended may take so long to be made again, at least.
    pub redial_ms: u64,
    /// A dead rank waits so long for the launcher's exit status, which says more.
    pub exit_grace_ms: u64,
    /// The same where all ranks are gone.
    pub end_grace_ms: u64,
    /// A rank that takes so many times its usual iteration hangs...
    pub hang_factor: f64,
    /// ...but never before this.
    pub hang_min_ms: u64,
    /// The same for what has no yardstick: starting, generating, saving, restoring, solving.
    pub patience_ms: u64,
    /// A process that is stopped for so long hangs.
    pub stopped_ms: u64,
    /// The first rank must show up so soon after the launch.
    pub start_ms: u64,
    /// A node whose replies take so many times the others' (and at least `slow_min_ms`) is slow.
    pub slow_factor: f64,
    pub slow_min_ms: f64,
    /// A node whose ranks compute so many times slower than the others', for so long, is slow too.
    pub pace_factor: f64,
    pub pace_ms: u64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            silence_ms: 4000,
            redial_ms: 700,
            exit_grace_ms: 300,
            end_grace_ms: 5000,
            hang_factor: 3.0,
            hang_min_ms: 9_000,
            stopped_ms: 9_000,
            patience_ms: 120_000,
            start_ms: 300_000,
            slow_factor: 8.0,
            slow_min_ms: 20.0,
            pace_factor: 1.5,
            pace_ms: 15_000,
        }
    }
}
