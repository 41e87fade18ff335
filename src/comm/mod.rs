//! MPI with every return code checked.
//!
//! The solver and the checkpoint driver call this module. An MPI call that fails never returns, but ends the whole job with a
//! message that names the rank and its activity. A rank that continued with half a message would compute garbage. A panic of one
//! rank ends the job, too, because the other ranks would wait forever.
//!
//! If the loss of a rank is survived, a call that fails because of the loss only ends the current work of all ranks
//! ([`World::attempt`]).

mod abort;
mod broadcast;
mod by_messages;
mod check;
mod collectives;
mod communicator;
pub mod library;
mod loss;
pub mod schedule;
mod stance;
mod steps;
mod subset;
mod turn;
mod ulfm;
mod wire;
mod world;

pub use abort::{die, die_in_turn, phase, set_phase};
pub use broadcast::Broadcast;
pub use communicator::{Comm, Elsewhere, Pending};
pub use loss::Lost;
pub use steps::{Step, Steps};
pub use wire::{Reduce, Wire};
pub use world::World;
