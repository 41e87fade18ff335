//! Search for good parameters from partial runs: candidates worth trying, the time of a whole run from a few stretches, the
//! fastest of many candidates. Pure: the caller measures candidates.

pub mod estimate;
pub mod picture;
pub mod race;
pub mod search;
pub mod space;
