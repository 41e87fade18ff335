//! What a process does at a signal is inherited: whoever starts the tests in the background, or with `nohup`, has some ignored.
//! Tests that send signals say what their programs do at them. A file of its own, for several programs of tests.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::{SigHandler, Signal, signal};

/// The command is started by somebody in whom a signal does this.
pub fn inheriting(command: &mut Command, which: Signal, does: SigHandler) {
    // SAFETY: between fork and exec; to set what a signal does is among what may be done there.
    unsafe {
        command.pre_exec(move || signal(which, does).map(|_| ()).map_err(Into::into));
    }
}
