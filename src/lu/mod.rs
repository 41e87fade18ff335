//! The solver: factors [A|b] over the grid, solves the system, checks the solution.
//!
//! | step | file | HPL |
//! |---|---|---|
//! | order of the iterations, and of the operations of an iteration | `schedule` | pdgesv0, pdgesvK2 |
//! | time at which each panel is factored | `lookahead` | |
//! | the operations of an iteration | `operations` | |
//! | factor one panel | `factor` | pdfact, pdrpan*, pdpan* |
//! | number of panel threads | `panel_threads` | |
//! | which rows move, and where to | `pivots` | plindx |
//! | plan of the row exchange | `exchange` | pdlaswp00, pdlaswp01, spread, roll |
//! | row exchange | `swap`, `rows` | pdlaswp |
//! | division of an update in halves: one is exchanged while the other is multiplied | `halves`, `section` | |
//! | update of a section with a panel | `update` | pdupdate |
//! | steps that a process column completes or does no part of, with checksum columns | `in_steps` | |
//! | notifications to the observer, and its decisions | `observer` | |
//! | back substitution | `solve` | pdtrsv |
//! | check of the solution | `residual` | pdtest |
//! | roles of the process columns and the weights of checksum columns | `roles` | |
//! | sums along a process row, piece by piece | `carry` | |
//! | recomputation of U in replaced process columns | `recompute_u` | |
//! | rebuilding of checksum columns during a test | `renew` | |
//! | a test that continues after a failed attempt | `abft_test` | |
//! | length of every buffer | `need` | |
//!
//! Boundary k is the point at which all ranks have applied all panels before k. At a *clean* boundary, panel k is not yet
//! factored. The schedule asks an [`Observer`] which boundaries must be clean, and calls the observer at each clean boundary. So
//! this folder does not depend on checkpoints. This folder does not detect failures either: its callers decide which process
//! columns are lost and which attempts are abandoned.

mod abft_test;
mod arrays;
mod carry;
mod clock;
mod context;
mod cuts;
mod exchange;
mod factor;
mod halves;
mod in_steps;
mod lengths;
mod lookahead;
pub mod need;
mod observer;
mod operations;
mod panel;
mod panel_threads;
mod pivots;
mod recompute_u;
mod renew;
mod residual;
mod roles;
mod rows;
mod sample;
mod schedule;
mod section;
mod solve;
mod swap;
mod test;
mod update;
mod work;

pub use abft_test::{AbftTest, From};
pub use arrays::{own_part, part_on};
pub use carry::LONGEST as LONGEST_SUMS;
pub use clock::{Clock, Part};
pub use context::{Context, GridPlace, Order};
pub use in_steps::DEPTH_IN_STEPS;
pub use observer::{Event, Halt, Milestone, Observer, Silent};
pub use panel_threads::panel_workers;
pub use roles::{Exchange, Exchanges, Past, Progress, Renewal, SUMS_EVER, SUMS_MAX, weight};
pub use sample::{time_panel, time_stretches};
pub use test::{Start, solve_test, unix_seconds};
