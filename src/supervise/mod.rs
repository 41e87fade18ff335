pub mod events;
pub mod hosts;
pub mod journal;
pub mod launcher;
pub mod policy;
pub mod shell;
