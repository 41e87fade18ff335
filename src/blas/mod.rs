//! Dense kernels: the BLAS behind a small interface, our own multiplication kernel beside it, and
//! the preflight that makes the library pick the right code for this processor.
//!
//! The solver's trailing update goes through an [`Engine`]: `Packed` is our kernel on operands
//! packed once per panel, for processors with AVX-512; `Blas` calls the library's DGEMM and DTRSM.

mod engine;
mod ffi;
mod library;
mod micro;
pub mod packed;
pub mod preflight;
pub mod vector;

pub use engine::{Engine, LowerBlock, TriangleBlock, UpperBlock};
pub use ffi::{gemm, trsm_left_lower_unit, trsm_right_upper_unit};
pub use library::{Library, set_library_threads};
