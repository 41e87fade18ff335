//! Search for good parameters by partial runs: proposes candidates, estimates the time of a whole run from a few stretches, and
//! finds the fastest candidate. The module is pure: its caller measures the candidates.

pub mod estimate;
pub mod picture;
pub mod race;
pub mod search;
pub mod space;
