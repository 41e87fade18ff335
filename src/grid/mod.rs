//! The process grid and the block-cyclic index maps: owners and places of matrix elements. Pure arithmetic.
//!
//! All folders above (matrix, lu, checkpoint) ask these two types and never compute a position themselves. So a wrong formula can
//! only be here, where every case is tested.

mod cyclic;
mod process;

pub use cyclic::Cyclic;
pub use process::ProcessGrid;
