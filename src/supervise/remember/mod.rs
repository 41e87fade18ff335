//! The journal of events and its folder, from which a new supervisor continues after the end of another.

pub mod events;
pub mod folder;
pub mod io_thread;
pub mod journal;
pub mod journal_writer;
