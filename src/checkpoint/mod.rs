//! Saving and restoring rectangles of a local matrix so that node loss costs no more than the work
//! since the last save.
//!
//! `protocol` decides, purely, from headers; `plan`, `groups`, `placement` and `when` are pure too;
//! `save` and `restore` move the data. The solver calls [`Checkpointer`] at its boundaries; nothing
//! here knows what the matrix is for. `docs/CHECKPOINT.md` tells the whole story.

pub mod groups;
pub mod placement;
pub mod plan;
pub mod protocol;
pub mod when;
