//! Handles a standard output that was closed before the program began (`>&-`).
//!
//! In place of a closed output, Rust's runtime opens /dev/null, so all output would be lost unnoticed. This module opens
//! /dev/full, so that each write fails and is reported. /dev/full also stays in place if the program executes itself again, to
//! let its BLAS use other kernels.

use std::fs::OpenOptions;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;
use nix::sys::stat::{FileStat, fstat, major, minor};

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Records whether the standard output is closed. This function runs before Rust's runtime, which would open /dev/null in place
/// of a closed output.
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".preinit_array")]
static BEFORE_THE_RUNTIME: extern "C" fn() = {
    extern "C" fn note() {
        // SAFETY: only queries the file descriptor.
        let closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } < 0;
        CLOSED.store(closed, Ordering::Relaxed);
    }
    note
};

/// Replaces a closed standard output by a device on which every write fails. Changes nothing if there is no such device.
pub fn take_for_full() {
    if CLOSED.load(Ordering::Relaxed)
        && let Ok(full) = OpenOptions::new().write(true).open("/dev/full")
    {
        let _ = nix::unistd::dup2_stdout(full);
    }
}

/// Returns the reason that a write to the standard output failed with `error`.
pub fn why(error: &io::Error) -> String {
    let full = |stat: FileStat| (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 7);
    if fstat(io::stdout()).is_ok_and(full) {
        "it is closed, or /dev/full".to_owned()
    } else {
        error.to_string()
    }
}
