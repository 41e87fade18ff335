//! Signals that ask to stop: listened to by whoever has started something that must not be left behind.
//!
//! The supervisor saves and stops when it finds that it was asked, the doctor and the burn-in end what they have started. Once
//! somebody listens a signal ends nothing by itself: from then on every loop that waits has to ask here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::machine::simulated;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::time::{ClockId, clock_gettime};

/// A signal so soon after the first is the same request, said twice: by kernel and shell when a terminal closes, or to each
/// process of a group and to the group.
const SAME_REQUEST_MS: u64 = 1000;

/// When a signal first asked to stop; 0 if none has.
static ASKED_AT_MS: AtomicU64 = AtomicU64::new(0);

/// It was asked for once more: not to save and stop, but to stop at once.
static ASKED_AGAIN: AtomicBool = AtomicBool::new(false);

/// Whether a signal asks once more, so long after the first one. A terminal that closes asks for nothing new, nor does a batch
/// system that warns again.
fn is_another(signal: i32, after_ms: u64) -> bool {
    matches!(signal, libc::SIGINT | libc::SIGTERM) && after_ms >= SAME_REQUEST_MS
}

extern "C" fn note_signal(signal: i32) {
    // Since the machine was started: never 0 again.
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

/// Whether a signal has asked to stop.
pub fn asked_by_signal() -> bool {
    match simulated() {
        None => ASKED_AT_MS.load(Ordering::Relaxed) > 0,
        Some(machine) => machine.asked_to_stop().0,
    }
}

/// Whether, after that, it was asked not to save and stop, but to stop at once.
pub fn asked_again() -> bool {
    match simulated() {
        None => ASKED_AGAIN.load(Ordering::Relaxed),
        Some(machine) => machine.asked_to_stop().1,
    }
}

/// What asks to stop. The last two are what batch systems warn with before a job's end: LSF by itself, Slurm where `--signal`
/// says so.
const SIGNALS: [Signal; 5] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];

/// Which of them whoever started this has had ignored.
static IGNORED: [AtomicBool; SIGNALS.len()] = [const { AtomicBool::new(false) }; SIGNALS.len()];

/// Called before libraries are set up, for one of MPICH's takes SIGHUP for itself then, ignored or not (UCX, to be debugged by).
#[used]
#[unsafe(link_section = ".preinit_array")]
static BEFORE_LIBRARIES: extern "C" fn() = {
    extern "C" fn note_ignored() {
        for (signal, ignored) in SIGNALS.iter().zip(&IGNORED) {
            let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: the kernel is asked what the signal does, and nothing of the program is needed for that.
            let handler = unsafe {
                libc::sigaction(*signal as i32, std::ptr::null(), action.as_mut_ptr());
                action.assume_init().sa_sigaction
            };
            ignored.store(handler == libc::SIG_IGN, Ordering::Relaxed);
        }
    }
    note_ignored
};

/// A signal that whoever started this has had ignored stays so: under `nohup` a terminal may close, and what a script puts
/// into the background is not meant by Ctrl-C.
pub fn listen_to_signals() -> nix::Result<()> {
    on_signals(SigHandler::Handler(note_signal))
}

/// For whoever has nothing left that must not be left behind: from here on signals end the program by themselves. What has
/// asked to stop before has still asked.
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
        // SAFETY: `note_signal` does nothing but ask a clock and change atomics, which a handler may do; else there is none.
        unsafe { sigaction(signal, &action)? };
    }
    Ok(())
}

/// For agents, which a batch system's warning may reach as well: it is the supervisor's to act on. What they start has it as it
/// comes.
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
    fn only_who_asks_again_after_a_while_wants_no_save() {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            assert!(!is_another(signal, 0) && !is_another(signal, 999));
            assert!(is_another(signal, 1000) && is_another(signal, 60_000));
        }
        for signal in [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2] {
            assert!(!is_another(signal, 0) && !is_another(signal, 60_000));
        }
    }
}
