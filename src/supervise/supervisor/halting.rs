//! Stopping on request: signals, `skt-hpl halt`, the time limit; and how long the ranks have to do it.
//!
//! The steps that take long ask here whether to go on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::Supervisor;
use crate::supervise::remember::clerk::{Answer, Clerk};
use crate::supervise::remember::events::{Event, steady_ms, unix_ms};
use crate::supervise::remember::folder::{Folder, HaltRequest, read_whole};
use crate::supervise::tell::status::Activity;

/// How often a signal asked to stop: once to save and stop, twice to stop at once.
static ASKED_TO_STOP: AtomicUsize = AtomicUsize::new(0);

extern "C" fn note_signal(_: i32) {
    ASKED_TO_STOP.fetch_add(1, Ordering::Relaxed);
}

pub(super) fn listen_to_signals() -> nix::Result<()> {
    let action =
        SigAction::new(SigHandler::Handler(note_signal), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: the handler does nothing but add to an atomic.
        unsafe { sigaction(signal, &action)? };
    }
    Ok(())
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
        let (why, after_checkpoint) = if ASKED_TO_STOP.load(Ordering::Relaxed) > 0 {
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
        if ASKED_TO_STOP.load(Ordering::Relaxed) > 1 {
            return Ok(Some("stopped at once on request; the last save counts".to_string()));
        }
        let late = halt.since.elapsed() > self.settings.halt_patience;
        Ok(late.then(|| format!("{}, without a new save: the ranks did not react", halt.why)))
    }
}
