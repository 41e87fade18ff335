//! Where things live: the process grid and the block-cyclic index maps. Pure arithmetic.
//!
//! Everything above (matrix, lu, checkpoint) asks these two types and never computes a position
//! itself, so a wrong formula can only be wrong here, where every case is tested.

mod cyclic;
mod process;

pub use cyclic::Cyclic;
pub use process::ProcessGrid;
