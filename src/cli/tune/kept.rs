//! Measurements of a search, which a file keeps during the search.

use serde::{Deserialize, Serialize};

use crate::tune::estimate::Care;
use crate::tune::search::{Found, Tuned};
use crate::tune::space::{Candidate, Domain};

/// Name of the file, in the folder of a search, in which measurements are kept.
pub const KEPT: &str = "tune.json";

/// Data of a search that are kept during the search.
#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    pub domain: Domain,
    pub launcher: String,
    /// Order of the matrix for which parameters are searched. Parts of a smaller matrix may be timed.
    pub n: usize,
    pub measured: Vec<Measured>,
    pub tuned: Option<Tuned>,
}

/// Measurement of a candidate. `spent` is the time of the whole trial in seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub candidate: Candidate,
    pub care: Care,
    pub found: Option<Found>,
    pub spent: f64,
    pub engine: String,
    /// Reason why the measurement has no result; `None` if it has one.
    pub why: Option<String>,
    /// True if the job ended during this measurement, for any reason. A resumed search then measures the candidate again.
    #[serde(default)]
    pub job_ended: bool,
}
