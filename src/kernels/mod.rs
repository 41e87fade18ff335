//! Dense kernels: our own multiplication kernels, the BLAS behind a small interface, and the preflight, which makes the library
//! select fast code for this processor.
//!
//! The solver's trailing update uses an [`Engine`]. `Packed` is one of our kernels ([`micro`]), with operands that are packed
//! once for each panel. `Blas` calls the library's DGEMM and DTRSM.

mod active_library;
pub mod arithmetic;
pub(crate) mod cache;
pub mod choice;
mod engine;
mod library;
mod loaded;
pub mod micro;
mod multiplication;
mod operands;
mod packed;
mod panel_step;
pub mod preflight;
pub mod processor;
mod routines;
pub mod vector;

pub use active_library::{one_library_thread_each, set_library_threads};
pub use cache::{ask_for, copy_by_rows, leading_dimension};
pub use engine::{Engine, LowerBlock, TriangleBlock, UpperBlock};
pub use library::Library;
pub use loaded::{Loaded, active, load};
pub use micro::COMMON_UNIT;
pub use multiplication::{Multiplication, Squares};
pub use operands::{Matrix, Operand, Size, Strided, Strides};
pub use panel_step::{Columns, Factors, Owed, Step, Update, largest};
