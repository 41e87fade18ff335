//! The local part of [A|b] and the generators that fill it.
//!
//! A rank's part is stored **row-major**, so the row exchanges of pivoting copy contiguous memory. A panel is transposed into a
//! separate buffer before it is factored.

mod generate;
mod lcg;
mod local;
mod storage;

pub use generate::Generator;
pub use lcg::Lcg;
pub use local::{Local, Shape, generate_columns};
pub use storage::{HugeBuffer, Storage};
