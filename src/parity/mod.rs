//! The codes that let a group rebuild what some of its members lost.
//!
//! `code`, `field` and `gf256` are arithmetic, `stripes` says which member holds what, `plan` says which
//! combination of whose rows gives which row, and `exchange` moves the rows of each member's `share` through a group, in the
//! `hands` of its threads. Called by `checkpoint` to encode at each save and to rebuild after a loss; knows neither LU nor MPI.

pub mod code;
pub mod comm;
pub mod digest;
pub mod exchange;
pub mod field;
pub mod gf256;
pub mod hands;
pub mod plan;
pub mod share;
pub mod stripes;

pub use code::Code;
pub use comm::GroupComm;
pub use exchange::Encode;
pub use hands::{Hands, Seen};
pub use share::{Share, Window};
pub use stripes::{Spread, Stripes};
