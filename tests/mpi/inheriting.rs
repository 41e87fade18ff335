//! Signal handling of the programs that tests start. Processes inherit it: if the tests are started in the background or with
//! `nohup`, some signals are ignored. So tests that send signals set the handling. Several test programs include this file.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::{SigHandler, Signal, signal};

/// Makes the command start with the handling `does` of the signal `which`.
pub fn inheriting(command: &mut Command, which: Signal, does: SigHandler) {
    // SAFETY: the closure runs between fork and exec, where setting the handling of a signal is allowed.
    unsafe {
        command.pre_exec(move || signal(which, does).map(|_| ()).map_err(Into::into));
    }
}
