//! The solver: [A|b] factored over the grid, solved, checked.
//!
//! | step | file | the reference's name |
//! |---|---|---|
//! | factor one panel | `factor` | pdfact, pdrpan*, pdpan* |
//! | which rows move where | `pivots` | plindx |
//! | who sends which row to whom | `exchange` | pdlaswp00, pdlaswp01, spread, roll |
//! | carry the exchange out | `swap` | pdlaswp |
//! | bring columns up to date | `update` | pdupdate |
//! | drive all of it, with lookahead | `pipeline` | pdgesvK2 |
//! | back substitution | `solve` | pdtrsv |
//! | the check | `residual` | pdtest |
//!
//! This module knows nothing of checkpoints: the pipeline tells an [`Observer`] when a boundary is
//! reached, and asks it beforehand where to drain.

mod clock;
mod context;
mod exchange;
mod factor;
mod panel;
mod pipeline;
mod pivots;
mod residual;
mod solve;
mod swap;
mod test;
mod update;

pub use clock::{Clock, Part};
pub use context::Context;
pub use pipeline::{Halt, Milestone, Observer, Silent};
pub use test::{Start, solve_test, unix_seconds, work_bytes};
