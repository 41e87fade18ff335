//! Signals that ask to stop, for programs that must end other processes before they end.
//!
//! After such a signal the supervisor saves and stops, and the doctor and the burn-in end the processes that they have started.
//! After [`listen_to_signals`] a signal no longer ends the program, so every loop that waits must call [`asked_by_signal`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::machine::simulated;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::time::{ClockId, clock_gettime};

/// Time in which a second signal counts as the same request as the first. When a terminal closes, the kernel and the shell each
/// send a signal. A sender may also signal each process of a group, and then the group.
const SAME_REQUEST_MS: u64 = 1000;

/// Time of the first signal that asked to stop, or 0 if none has.
static ASKED_AT_MS: AtomicU64 = AtomicU64::new(0);

/// Whether a later signal has asked to stop at once, without a save.
static ASKED_AGAIN: AtomicBool = AtomicBool::new(false);

/// Returns whether a signal is another request, `after_ms` after the first. Only SIGINT and SIGTERM can be: a terminal that
/// closes, or a batch system that warns again, sends other signals.
fn is_another(signal: i32, after_ms: u64) -> bool {
    matches!(signal, libc::SIGINT | libc::SIGTERM) && after_ms >= SAME_REQUEST_MS
}

extern "C" fn note_signal(signal: i32) {
    // The time counts from the start of the machine and is set to at least 1, because 0 stands for no signal.
    let now_ms = clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(1, |now| now.tv_sec() as u64 * 1000 + now.tv_nsec() as u64 / 1_000_000)
        .max(1);
    if let Err(first_ms) =
        ASKED_AT_MS.compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed)
        && is_another(signal, now_ms.saturating_sub(first_ms))
    {
        ASKED_AGAIN.store(true, Ordering::Relaxed);
    }
}

/// Returns whether a signal has asked to stop.
pub fn asked_by_signal() -> bool {
    match simulated() {
        None => ASKED_AT_MS.load(Ordering::Relaxed) > 0,
        Some(machine) => machine.asked_to_stop().0,
    }
}

/// Returns whether a later signal has asked to stop at once, without a save.
pub fn asked_again() -> bool {
    match simulated() {
        None => ASKED_AGAIN.load(Ordering::Relaxed),
        Some(machine) => machine.asked_to_stop().1,
    }
}

/// Signals that ask to stop. Batch systems send the last two to warn before a job's end: LSF by default, Slurm with `--signal`.
const SIGNALS: [Signal; 5] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];

/// Whether each of the signals was ignored when this program was started.
static IGNORED: [AtomicBool; SIGNALS.len()] = [const { AtomicBool::new(false) }; SIGNALS.len()];

/// Notes ignored signals before libraries are initialised. UCX, a library of MPICH, sets a handler for SIGHUP even if it was
/// ignored.
#[used]
#[unsafe(link_section = ".preinit_array")]
static BEFORE_LIBRARIES: extern "C" fn() = {
    extern "C" fn note_ignored() {
        for (signal, ignored) in SIGNALS.iter().zip(&IGNORED) {
            let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: the call only reads the signal's action from the kernel, which needs no initialised library.
            let handler = unsafe {
                libc::sigaction(*signal as i32, std::ptr::null(), action.as_mut_ptr());
                action.assume_init().sa_sigaction
            };
            ignored.store(handler == libc::SIG_IGN, Ordering::Relaxed);
        }
    }
    note_ignored
};

/// Begins to listen to signals. A signal that was ignored at the start stays ignored: SIGHUP under `nohup`, or SIGINT in
/// background processes of a script.
pub fn listen_to_signals() -> nix::Result<()> {
    on_signals(SigHandler::Handler(note_signal))
}

/// Restores the default actions, for programs that have no process left to end: signals end the program again. Earlier requests
/// to stop remain.
pub fn listen_no_more() -> nix::Result<()> {
    on_signals(SigHandler::SigDfl)
}

fn on_signals(handler: SigHandler) -> nix::Result<()> {
    if simulated().is_some() {
        return Ok(());
    }
    for (signal, ignored) in SIGNALS.into_iter().zip(&IGNORED) {
        let handler = if ignored.load(Ordering::Relaxed) { SigHandler::SigIgn } else { handler };
        set_handler(signal, handler)?;
    }
    Ok(())
}

fn set_handler(signal: Signal, handler: SigHandler) -> nix::Result<()> {
    let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handlers of this file do nothing, or only read a clock and change atomics, which a handler may do.
    unsafe { sigaction(signal, &action).map(drop) }
}

/// Makes an agent ignore the warnings of a batch system. The warnings may reach agents, too, but only the supervisor acts on
/// them. Programs that an agent starts have the default actions again.
pub fn pass_over_warnings() -> nix::Result<()> {
    extern "C" fn pass_over(_: i32) {}
    set_handler(Signal::SIGUSR1, SigHandler::Handler(pass_over))?;
    set_handler(Signal::SIGUSR2, SigHandler::Handler(pass_over))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_repeated_after_a_while_wants_no_save() {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            assert!(!is_another(signal, 0) && !is_another(signal, 999));
            assert!(is_another(signal, 1000) && is_another(signal, 60_000));
        }
        for signal in [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2] {
            assert!(!is_another(signal, 0) && !is_another(signal, 60_000));
        }
    }
}
