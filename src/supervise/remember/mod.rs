//! What remembers: the journal of events and the folder it lies in, so that a supervisor may die and another go on.

pub mod clerk;
pub mod events;
pub mod folder;
pub mod journal;
pub mod scribe;
