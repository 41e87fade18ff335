//! Measurements of a search, as a file keeps them while it proceeds.

use serde::{Deserialize, Serialize};

use crate::tune::estimate::Care;
use crate::tune::search::{Found, Tuned};
use crate::tune::space::{Candidate, Domain};

/// File in which measurements are kept.
pub const KEPT: &str = "tune.json";

/// Data of a search that are kept as it proceeds.
#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    pub domain: Domain,
    pub launcher: String,
    /// Order of the matrix that was asked for; parts of a smaller one may be timed.
    pub n: usize,
    pub measured: Vec<Measured>,
    pub tuned: Option<Tuned>,
}

/// A measurement, and the seconds of its whole trial.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub candidate: Candidate,
    pub care: Care,
    pub found: Option<Found>,
    pub spent: f64,
    pub engine: String,
    /// Reason why nothing was found.
    pub why: Option<String>,
    /// True if the job ended during this measurement, for whatever reason: a resumed search measures it again.
    #[serde(default)]
    pub job_ended: bool,
}
