//! The local part of [A|b] and the generators that fill it.
//!
//! A rank's part is stored **row-major**: the row exchanges that pivoting brings are then copies of
//! contiguous runs, and panels are transposed into a buffer of their own before they are factored.

mod generate;
mod lcg;
mod local;
mod storage;

pub use generate::Generator;
pub use lcg::Lcg;
pub use local::{Local, Shape};
pub use storage::{HugeBuffer, Storage};
