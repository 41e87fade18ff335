//! Persistent shared memory, which outlives the process, and the headers that identify it.
//!
//! `checkpoint` keeps the matrix and its copies in this memory. `skt-hpl status` and the agents read the headers from other
//! processes. A killed rank leaves its regions behind. The next process that takes the same grid position finds these regions by
//! name and resumes from them.

pub mod bus;
pub mod copying;
mod file;
pub mod header;
mod hold;
pub mod huge;
pub mod hugetlbfs;
pub mod ledger;
mod lock;
pub mod memory_store;
mod names;
pub mod part;
mod region;
pub mod room;
pub mod stat;
mod sysv;

pub use hold::Hold;
pub use memory_store::{Held, MemoryStore};
pub use names::Named;
pub use part::{Part, Store};
pub use region::{MemoryError, Region};
