//! Signal handling of the tests' programs. It is inherited: if the tests are started in the background, or with `nohup`, some
//! signals are ignored. So tests that send signals set the handling. A file of its own, for several programs of tests.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::{SigHandler, Signal, signal};

/// Makes the command start from a process in which a signal has this handling.
pub fn inheriting(command: &mut Command, which: Signal, does: SigHandler) {
    // SAFETY: between fork and exec; setting the handling of a signal is allowed there.
    unsafe {
        command.pre_exec(move || signal(which, does).map(|_| ()).map_err(Into::into));
    }
}
