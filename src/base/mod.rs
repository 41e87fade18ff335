//! The base of the program: modules that every folder may use and that use no folder.

#[macro_use]
pub mod terminal;

pub mod bell;
pub mod bisection;
pub mod clock;
pub mod closed;
pub mod cores;
pub mod course;
pub mod exit;
pub mod faults;
pub mod new_thread;
pub mod outcome;
pub mod params;
pub mod place;
pub mod pulse;
pub mod question;
pub mod simulated;
pub mod statistics;
pub mod threads;
pub mod topology;
pub mod units;
pub mod whole;
