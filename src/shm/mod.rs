//! Named memory that outlives the process, and the headers that say whose it is.
//!
//! `checkpoint` keeps the matrix and its copies here, `skt-hpl status` and the agents look here
//! from outside. A rank that is killed leaves its regions behind; the next process to take the
//! same grid position finds them by name and continues from them.

pub mod bus;
pub mod copying;
pub mod depot;
pub mod header;
mod hold;
pub mod huge;
pub mod ledger;
mod lock;
mod names;
mod region;
pub mod room;
pub mod stat;
mod sysv;

pub use depot::{Depot, Held, Part, Store};
pub use hold::Hold;
pub use names::Named;
pub use region::{MemoryError, Region};
