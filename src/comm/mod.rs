//! MPI with every return code checked.
//!
//! Called by the solver and the checkpoint driver. A failing MPI call never returns: it ends the
//! whole job with a message that names rank and phase, because a rank that goes on with half a
//! message computes garbage. A panic does the same, since a panicking rank alone would leave the
//! others waiting for ever.

mod abort;
mod broadcast;
mod communicator;
pub mod schedule;
mod world;

pub use abort::{die, phase, set_phase};
pub use broadcast::Broadcast;
pub use communicator::{Comm, Pending, Reduce, Wire};
pub use world::World;
