//! Whole runs from a seed: the program's ranks as processes that take turns, with faults at any call and any crash point.

pub mod arena;
pub mod job;
pub mod rank;
