//! The supervisor's machine, or the simulated machine that takes its place.
//!
//! A simulation replaces everything that reaches beyond the supervisor's process: connections to nodes, launchers, processes,
//! background work, signals and output. The real parts are in their own modules, and ask [`simulated`] first.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use super::remember::events::ProcessId;
use super::remember::folder::Folder;
use super::start::launch::Launch;
use super::talk::branch::{Heard, Lines};

/// Work that may have to wait for a disk.
pub type Work = Box<dyn FnOnce() + Send>;

/// An output stream of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Output,
    Errors,
}

/// Connections to agents.
pub trait Connections: Lines {
    /// Returns the next message, if one has come.
    fn heard(&mut self) -> Option<(u64, Heard)>;
    /// Waits until a message comes, but at most for `timeout`.
    fn wait(&mut self, timeout: Duration);
}

/// A simulated machine.
pub trait Machine: Sync {
    fn connections(&self) -> Box<dyn Connections>;
    /// Returns a number for a new I/O thread.
    fn io_thread(&self) -> u32;
    /// Does the work at a later time. The work of one I/O thread is done in the order in which it was given.
    fn does_later(&self, work: Work, io_thread: Option<u32>);
    /// Starts a launcher, whose scripts and host files have been written to `folder`.
    fn launch(&self, launch: &Launch, folder: &Folder, attempt: u32) -> io::Result<ProcessId>;
    fn is_alive(&self, process: ProcessId) -> bool;
    /// Kills a launcher and its process group.
    fn kill(&self, process: ProcessId);
    /// Kills the run's processes on this machine, and returns their number.
    fn end_run(&self, run_id: &str) -> usize;
    /// Returns whether a signal has asked to stop, and whether a second one has asked to stop at once.
    fn asked_to_stop(&self) -> (bool, bool);
    fn prints(&self, stream: Stream, bytes: &[u8]);
}

static SIMULATED: OnceLock<&'static dyn Machine> = OnceLock::new();

/// Replaces this process's machine by a simulated one from now on.
pub fn simulate(machine: &'static dyn Machine) {
    assert!(SIMULATED.set(machine).is_ok(), "a process is simulated once");
}

#[inline]
pub fn simulated() -> Option<&'static dyn Machine> {
    SIMULATED.get().copied()
}
