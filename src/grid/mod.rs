//! Process grid, and block-cyclic index maps, which give the owner and the local index of a matrix element. Pure arithmetic.
//!
//! All folders above (matrix, lu, checkpoint) use these two types, and never compute a position themselves. So a wrong formula
//! can only be in this folder, where every small case is tested.

mod cyclic;
mod process;

pub use cyclic::Cyclic;
pub use process::ProcessGrid;
