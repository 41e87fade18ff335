//! Signals that ask to stop, for programs that have started something that must not be left behind.
//!
//! After such a signal the supervisor saves and stops, and the doctor and the burn-in end what they have started. Once the
//! program listens, a signal ends nothing by itself: from then on every loop that waits has to ask here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::machine::simulated;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::time::{ClockId, clock_gettime};

/// Time in which a second signal counts as the same request. A kernel and a shell send two when a terminal closes; a sender may
/// also signal each process of a group, and the group.
const SAME_REQUEST_MS: u64 = 1000;

/// Time of the first signal that asked to stop; 0 if none has.
static ASKED_AT_MS: AtomicU64 = AtomicU64::new(0);

/// Set by a later request: not to save and stop, but to stop at once.
static ASKED_AGAIN: AtomicBool = AtomicBool::new(false);

/// Returns whether a signal is another request, at this time after the first. A terminal that closes makes no new request, and
/// neither does a batch system that warns again.
fn is_another(signal: i32, after_ms: u64) -> bool {
    matches!(signal, libc::SIGINT | libc::SIGTERM) && after_ms >= SAME_REQUEST_MS
}

extern "C" fn note_signal(signal: i32) {
    // Time since the start of the machine: never 0 again.
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

/// Signals that ask to stop. With the last two, batch systems warn before a job's end: LSF by itself, Slurm if `--signal` says
/// so.
const SIGNALS: [Signal; 5] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];

/// Whether each of them was ignored when this program was started.
static IGNORED: [AtomicBool; SIGNALS.len()] = [const { AtomicBool::new(false) }; SIGNALS.len()];

/// Notes ignored signals before libraries are set up: a library of MPICH's takes SIGHUP for debugging, ignored or not (UCX).
#[used]
#[unsafe(link_section = ".preinit_array")]
static BEFORE_LIBRARIES: extern "C" fn() = {
    extern "C" fn note_ignored() {
        for (signal, ignored) in SIGNALS.iter().zip(&IGNORED) {
            let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: the kernel is asked for the signal's action, which needs nothing of the program.
            let handler = unsafe {
                libc::sigaction(*signal as i32, std::ptr::null(), action.as_mut_ptr());
                action.assume_init().sa_sigaction
            };
            ignored.store(handler == libc::SIG_IGN, Ordering::Relaxed);
        }
    }
    note_ignored
};

/// Begins to listen. A signal that was ignored at the start stays ignored. Under `nohup` a terminal may close, and Ctrl-C is not
/// meant for a script's background processes.
pub fn listen_to_signals() -> nix::Result<()> {
    on_signals(SigHandler::Handler(note_signal))
}

/// Ends listening, for programs that have nothing left to end: from here on signals end the program by themselves. Earlier
/// requests to stop remain.
pub fn listen_no_more() -> nix::Result<()> {
    on_signals(SigHandler::SigDfl)
}

fn on_signals(handler: SigHandler) -> nix::Result<()> {
    if simulated().is_some() {
        return Ok(());
    }
    for (signal, ignored) in SIGNALS.into_iter().zip(&IGNORED) {
        let handler = if ignored.load(Ordering::Relaxed) { SigHandler::SigIgn } else { handler };
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: `note_signal` only reads a clock and changes atomics, which a handler may do; the default action has no
        // handler.
        unsafe { sigaction(signal, &action)? };
    }
    Ok(())
}

/// Makes agents ignore a batch system's warnings, which may reach them, too: the supervisor acts on these. Programs that an agent
/// starts have the default action again.
pub fn pass_over_warnings() -> nix::Result<()> {
    extern "C" fn pass_over(_: i32) {}
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2] {
        let handler = SigHandler::Handler(pass_over);
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing.
        unsafe { sigaction(signal, &action)? };
    }
    Ok(())
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
