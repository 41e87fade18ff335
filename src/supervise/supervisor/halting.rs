//! Stopping on request: signals, `skt-hpl halt`, the time limit; and how long the ranks have to do it.
//!
//! The steps that take long ask here whether to go on.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::time::{ClockId, clock_gettime};

use super::Supervisor;
use crate::supervise::remember::clerk::{Answer, Clerk};
use crate::supervise::remember::events::{Event, steady_ms, unix_ms};
use crate::supervise::remember::folder::{Folder, HaltRequest, read_whole};
use crate::supervise::tell::status::Activity;

/// A signal so soon after the first is the same request, said twice: by kernel and shell when a terminal closes, or to each
/// process of a group and to the group.
const SAME_REQUEST_MS: u64 = 1000;

/// When a signal first asked to stop; 0 if none has.
static ASKED_AT_MS: AtomicU64 = AtomicU64::new(0);

/// It was asked for once more: not to save and stop, but to stop at once.
static ASKED_AGAIN: AtomicBool = AtomicBool::new(false);

/// Whether a signal asks once more, so long after the first one. A terminal that closes asks for nothing new.
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

fn asked_by_signal() -> bool {
    ASKED_AT_MS.load(Ordering::Relaxed) > 0
}

/// What asks to stop.
const SIGNALS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// Which of them whoever started this has had ignored.
static IGNORED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

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
pub(super) fn listen_to_signals() -> nix::Result<()> {
    let noted = SigHandler::Handler(note_signal);
    for (signal, ignored) in SIGNALS.into_iter().zip(&IGNORED) {
        let handler = if ignored.load(Ordering::Relaxed) { SigHandler::SigIgn } else { noted };
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing but ask a clock and change atomics, which a handler may do.
        unsafe { sigaction(signal, &action)? };
    }
    Ok(())
}

/// The request that lies in a run's folder before a supervisor is at work on it: it was meant for an earlier one.
pub(super) struct OldRequest(Option<(u64, i64, i64)>);

impl OldRequest {
    pub(super) fn of(folder: &Folder) -> Self {
        // Each request is a file of its own.
        let meta = std::fs::metadata(folder.halt()).ok();
        Self(meta.map(|meta| (meta.ino(), meta.mtime(), meta.mtime_nsec())))
    }

    /// Removes it, unless somebody has asked anew meanwhile.
    pub(super) fn remove(self, folder: &Folder) {
        if self.0.is_some() && self.0 == Self::of(folder).0 {
            let _ = std::fs::remove_file(folder.halt());
        }
    }
}

pub(super) struct Halt {
    pub(super) why: String,
    pub(super) after_checkpoint: bool,
    since: Instant,
    /// When the nodes were last told.
    told: Instant,
}

/// How often it is looked for a request.
const LOOK_EVERY: Duration = Duration::from_millis(80);

/// Takes what `skt-hpl halt` has left, if it is due. The request was made by another process, with the time on the wall.
fn take_request(folder: &Folder) -> Option<HaltRequest> {
    let request = read_whole::<HaltRequest>(&folder.halt())?;
    if request.at_ms.is_some_and(|at| unix_ms() < at) {
        return None;
    }
    let _ = std::fs::remove_file(folder.halt());
    Some(request)
}

/// Looks for requests.
#[derive(Default)]
pub(super) struct Requests {
    looked: Option<Instant>,
    /// What the clerk has not answered yet.
    look: Option<Answer<Option<HaltRequest>>>,
}

impl Requests {
    /// What `skt-hpl halt` has asked for, as far as the clerk has seen.
    fn next(&mut self, folder: &Folder, clerk: &Clerk) -> Option<HaltRequest> {
        if let Some(look) = &self.look {
            let found = look.here()?;
            self.look = None;
            return found;
        }
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            self.looked = Some(Instant::now());
            let folder = folder.clone();
            self.look = Some(clerk.ask(move || take_request(&folder)));
        }
        None
    }
}

/// Nodes are told again: ranks that were still starting could not listen.
const TELL_AGAIN: Duration = Duration::from_secs(1);

impl Supervisor<'_> {
    /// Whether somebody wants the run to stop now: a reason.
    pub(super) fn asked_to_halt(&mut self) -> anyhow::Result<Option<String>> {
        if self.halt.is_some() {
            return Ok(None);
        }
        let request = self.requests.next(&self.settings.folder, &self.clerk);
        let (why, after_checkpoint) = if asked_by_signal() {
            ("a signal".to_string(), false)
        } else if let Some(request) = request {
            ("skt-hpl halt".to_string(), request.after_checkpoint)
        } else if self.settings.stop_at_ms.is_some_and(|at| steady_ms() >= at) {
            ("the time limit".to_string(), false)
        } else {
            return Ok(None);
        };
        let why = format!("stopped on request by {why}");
        self.note(Event::HaltRequested { after_checkpoint, why: why.clone() })?;
        let now = Instant::now();
        self.halt = Some(Halt { why: why.clone(), after_checkpoint, since: now, told: now });
        Ok(Some(why))
    }

    /// Whether the run is to stop, since now or since before: a reason. For steps between incarnations, which have nothing
    /// to save.
    pub(super) fn is_to_halt(&mut self) -> anyhow::Result<Option<String>> {
        match &self.halt {
            Some(halt) => Ok(Some(halt.why.clone())),
            None => self.asked_to_halt(),
        }
    }

    /// Carries a wish to stop out. Some: patience is at an end.
    pub(super) fn halting(&mut self) -> anyhow::Result<Option<String>> {
        if self.asked_to_halt()?.is_some() {
            self.status.activity = Activity::Halting;
            let now = !self.halt.as_ref().is_some_and(|h| h.after_checkpoint);
            self.cluster.halt_all(now);
        }
        let Some(halt) = &mut self.halt else { return Ok(None) };
        if halt.told.elapsed() >= TELL_AGAIN {
            halt.told = Instant::now();
            self.cluster.halt_all(!halt.after_checkpoint);
        }
        if ASKED_AGAIN.load(Ordering::Relaxed) {
            return Ok(Some("stopped at once on request; the last save counts".to_string()));
        }
        let late = halt.since.elapsed() > self.settings.halt_patience;
        Ok(late.then(|| format!("{}, without a new save: the ranks did not react", halt.why)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::remember::folder::write_whole;

    #[test]
    fn only_who_asks_again_after_a_while_wants_no_save() {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            assert!(!is_another(signal, 0) && !is_another(signal, 999));
            assert!(is_another(signal, 1000) && is_another(signal, 60_000));
        }
        assert!(!is_another(libc::SIGHUP, 0) && !is_another(libc::SIGHUP, 60_000));
    }

    #[test]
    fn a_request_that_comes_while_a_supervisor_starts_is_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path());
        let request = HaltRequest { after_checkpoint: false, at_ms: None };
        OldRequest::of(&folder).remove(&folder);
        write_whole(&folder.halt(), &request).unwrap();
        let before = OldRequest::of(&folder);
        write_whole(&folder.halt(), &request).unwrap();
        before.remove(&folder);
        assert!(folder.halt().exists(), "it came meanwhile");
        OldRequest::of(&folder).remove(&folder);
        assert!(!folder.halt().exists(), "it was there before");
        let before = OldRequest::of(&folder);
        write_whole(&folder.halt(), &request).unwrap();
        before.remove(&folder);
        assert!(folder.halt().exists());
    }
}
