//! Search for good parameters by partial runs: candidates that may be good, the time of a whole run from a few stretches, the
//! fastest of many candidates. The module is pure: its caller measures the candidates.

pub mod estimate;
pub mod picture;
pub mod race;
pub mod search;
pub mod space;
