//! The journal of events and its folder, by which a new supervisor continues after the death of another.

pub mod clerk;
pub mod events;
pub mod folder;
pub mod journal;
pub mod scribe;
