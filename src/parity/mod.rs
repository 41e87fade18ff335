//! Erasure codes: a group rebuilds the data of lost members.
//!
//! `code`, `field` and `gf256` contain the arithmetic. `stripes` assigns data and parity to members. `plan` lists the weighted
//! sums of rows that give each row. `exchange` moves the rows of each member's `share` through a group, with the threads in
//! `hands`. `checkpoint` calls this module to encode at each save and to rebuild after a loss. This module depends on neither LU
//! nor MPI.

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
pub use exchange::Encoding;
pub use hands::{Hands, Seen};
pub use share::{Shape, Share, Window};
pub use stripes::{Spread, Stripes};
