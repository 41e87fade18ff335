//! Finds good parameters from partial runs: which are worth trying, what a few stretches of a run say about all of it,
//! which of many candidates is the fastest. Pure: whoever searches says how a candidate is measured.

pub mod estimate;
pub mod picture;
pub mod race;
pub mod search;
pub mod space;
