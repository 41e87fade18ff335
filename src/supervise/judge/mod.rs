//! Judgements: pure functions and values whose inputs, times included, are all passed in.
//!
//! The supervisor calls these functions and acts on their results, so a test of a judgement takes a few lines.

pub mod ending;
pub mod first_calls;
pub mod fitness;
pub mod hang;
pub mod logins;
pub mod node_files;
pub mod nodes;
pub mod pace;
pub mod policy;
pub mod ranks;
pub mod thresholds;
pub mod trips;
pub mod watch;
