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
//! | apply a panel, part by part, with what may go on beside it | `apply` | |
//! | bring the next panel up to date and factor it | `ahead` | |
//! | one iteration: panels factored, sent, applied | `iteration` | |
//! | drive all of it, with lookahead | `pipeline` | pdgesvK2 |
//! | which panels are factored when | `lookahead` | |
//! | drive it in steps of a process column, where some keep sums | `in_steps` | |
//! | how many threads factor | `crew` | |
//! | what it tells and asks whoever looks on | `observer` | |
//! | back substitution | `solve` | pdtrsv |
//! | the check | `residual` | pdtest |
//! | which process column does what, where some keep sums | `roles` | |
//! | sums along a process row, a piece at a time | `carry` | |
//! | U's parts of process columns that were replaced | `regain` | |
//! | new sums in the course of a test | `renew` | |
//! | a test that outlives the attempts at it | `standing` | |
//! | how much memory all that takes | `need` | |
//!
//! This module knows nothing of checkpoints: the pipeline tells an [`Observer`] when a boundary is
//! reached, and asks it beforehand where to drain. Nor of failures: it knows columns, their roles, and that an attempt may
//! have been left.

mod ahead;
mod apply;
mod arrays;
mod carry;
mod clock;
mod context;
mod crew;
mod cuts;
mod exchange;
mod factor;
mod halves;
mod in_steps;
mod iteration;
mod lookahead;
pub mod need;
mod observer;
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
mod work;

pub use arrays::own_part;
pub use carry::LONGEST as LONGEST_SUMS;
pub use clock::{Clock, Part};
pub use context::{Context, Order, Seat};
pub use crew::mates;
pub use in_steps::DEPTH_IN_STEPS;
pub use observer::{Halt, Milestone, Observer, Silent};
pub use roles::{Exchange, Exchanges, Past, Progress, Renewal, SUMS_EVER, SUMS_MAX, weight};
pub use sample::time_stretches;
pub use standing::{From, Standing};
pub use test::{Start, solve_test, unix_seconds};
