//! Limits that the judges apply.
//!
//! `skt-hpl run` sets the limits from its flags. Each judge documents its use of them.

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Time without a heartbeat after which a node is lost.
    pub node_timeout_ms: u64,
    /// Lower bound of the timeout for making a connection again after it ended. The timeout itself is learned from earlier
    /// logins.
    pub redial_ms: u64,
    /// Time for which the supervisor waits for the launcher's exit status after a rank has died. The status tells more about the
    /// cause than the death alone.
    pub exit_grace_ms: u64,
    /// Time without progress after which a computing rank hangs, as a factor on the usual time of an iteration.
    pub hang_factor: f64,
    /// Least time without progress after which a computing rank hangs.
    pub hang_min_ms: u64,
    /// Time without progress after which a rank hangs outside of iterations: starting, generating, saving, restoring, solving.
    pub progress_timeout_ms: u64,
    /// Time after which a stopped process (state T) counts as hanging.
    pub stopped_ms: u64,
    /// Time after the launch in which the first rank must appear.
    pub startup_timeout_ms: u64,
    /// A node is slow if its ranks take this factor times as long as ranks on other nodes for the same work, for `pace_ms`.
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

/// Time in milliseconds that a grid position may be vacant under `--nonstop`, or a loss unreported under `--method abft`. One
/// half is the longest time in which the ranks' failure detector notices a loss. The other half is for the recovery.
const IN_PLACE_MS: u64 = 15_000;

impl Thresholds {
    /// Returns the limits for a job whose ranks recover in place from the loss of a rank: another rank, or checksums, may
    /// replace a dead rank. The other ranks take a stopped rank for dead, and continue without it.
    pub fn in_place(self) -> Self {
        Self {
            hang_min_ms: self.hang_min_ms.max(IN_PLACE_MS),
            stopped_ms: self.progress_timeout_ms,
            exit_grace_ms: IN_PLACE_MS,
            ..self
        }
    }
}
