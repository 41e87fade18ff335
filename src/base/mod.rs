//! The base of the program: modules that all other folders may use, and that use no other folder.

#[macro_use]
pub mod terminal;

pub mod bisection;
pub mod bounded_read;
pub mod clock;
pub mod closed;
pub mod cores;
pub mod dynamic;
pub mod exit;
pub mod faults;
pub mod futex_counter;
pub mod heartbeat;
pub mod new_thread;
pub mod outcome;
pub mod output_target;
pub mod params;
pub mod repeated;
pub mod simulated;
pub mod statistics;
pub mod threads;
pub mod timed_command;
pub mod timeline;
pub mod topology;
pub mod units;

/// Returns the name of this host; empty if the host has none.
pub fn host_name() -> String {
    nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned()
}
