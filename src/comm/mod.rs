//! MPI with every return code checked.
//!
//! Called by the solver and the checkpoint driver. A failing MPI call never returns: it ends the
//! whole job with a message that names rank and phase, because a rank that goes on with half a
//! message computes garbage. A panic does the same, since a panicking rank alone would leave the
//! others waiting for ever. Only where a lost rank is to be survived does a call that fails for its sake end no more than
//! what all ranks were doing ([`World::attempt`]).

mod abort;
mod broadcast;
mod by_messages;
mod communicator;
pub mod library;
mod loss;
pub mod schedule;
mod steps;
mod subset;
mod turn;
mod world;

pub use abort::{die, die_in_turn, phase, set_phase};
pub use broadcast::Broadcast;
pub use communicator::{Comm, Elsewhere, Pending, Reduce, Wire};
pub use loss::Lost;
pub use steps::{Step, Steps};
pub use world::World;
