//! The solver: [A|b] factored over the grid, solved, checked.
//!
//! | step | file | the reference's name |
//! |---|---|---|
//! | factor one panel | `factor` | pdfact, pdrpan*, pdpan* |
//! | which rows move where | `pivots` | plindx |
//! | who sends which row to whom | `exchange` | pdlaswp00, pdlaswp01, spread, roll |
//! | carry the exchange out | `swap` | pdlaswp |
//! | which columns are exchanged while others are multiplied | `halves` | |
//! | bring columns up to date | `update` | pdupdate |
//! | drive all of it, with lookahead | `pipeline` | pdgesvK2 |
//! | back substitution | `solve` | pdtrsv |
//! | the check | `residual` | pdtest |
//! | which process column does what, where some keep sums | `roles` | |
//! | U's parts of process columns that were replaced | `regain` | |
//! | new sums in the course of a test | `renew` | |
//! | a test that outlives the attempts at it | `standing` | |
//! | how much memory all that takes | `need` | |
//!
//! This module knows nothing of checkpoints: the pipeline tells an [`Observer`] when a boundary is
//! reached, and asks it beforehand where to drain. Nor of failures: it knows columns, their roles, and that an attempt may
//! have been left.

mod arrays;
mod clock;
mod context;
mod exchange;
mod factor;
mod halves;
pub mod need;
mod panel;
mod pipeline;
mod pivots;
mod regain;
mod renew;
mod residual;
mod roles;
mod sample;
mod solve;
mod standing;
mod swap;
mod test;
mod update;

pub use arrays::own_part;
pub use clock::{Clock, Part};
pub use context::{Context, Order, Seat};
pub use pipeline::{DEPTH_IN_STEPS, Halt, Milestone, Observer, Silent, mates};
pub use renew::CHUNK as RENEWAL_CHUNK;
pub use roles::{Exchange, Past, Progress, Renewal, SUMS_EVER, SUMS_MAX, weight};
pub use sample::time_stretches;
pub use standing::{From, Standing};
pub use test::{Start, solve_test, unix_seconds};
