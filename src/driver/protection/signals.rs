//! Signals that request a stop of a protected run: at the next boundary (SIGTERM, SIGUSR1), or after the next save (SIGUSR2).
//!
//! The signal handler only sets flags. `checkpoint_observer` checks the flags at boundaries, where all ranks do as rank 0 does.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// True if a stop at the next boundary is requested.
pub(super) static STOP_NOW: AtomicBool = AtomicBool::new(false);
/// True if a stop after the next save is requested.
pub(super) static STOP_AFTER_SAVE: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(signal: libc::c_int) {
    if signal == Signal::SIGUSR2 as libc::c_int {
        STOP_AFTER_SAVE.store(true, Ordering::Relaxed);
    } else {
        STOP_NOW.store(true, Ordering::Relaxed);
    }
}

/// Installs the signal handler for SIGTERM, SIGUSR1 and SIGUSR2, so that these signals request a stop of the run.
pub fn obey() {
    let action =
        SigAction::new(SigHandler::Handler(on_signal), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2] {
        // SAFETY: the handler only stores to atomics.
        let _ = unsafe { sigaction(signal, &action) };
    }
}
