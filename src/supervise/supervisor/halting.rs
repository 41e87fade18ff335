//! Stopping on request, by a signal, by `skt-hpl halt` or at the time limit, and the time that the ranks have to stop.
//!
//! Long steps of the supervisor call these functions to learn whether to continue.

use std::time::Duration;

use super::Supervisor;
use crate::base::clock::{Instant, steady_ms, unix_ms};
use crate::supervise::remember::events::Event;
use crate::supervise::remember::folder::{Folder, HaltRequest, read_whole};
use crate::supervise::remember::io_thread::{Answer, IoThread};
use crate::supervise::signals::{asked_again, asked_by_signal};
use crate::supervise::tell::status::Activity;

pub(super) struct Halt {
    pub(super) why: String,
    pub(super) after_checkpoint: bool,
    since: Instant,
    /// Time at which the request was last sent to the nodes.
    told: Option<Instant>,
}

/// Interval at which the supervisor checks for a request.
const LOOK_EVERY: Duration = Duration::from_millis(80);

/// Takes the request that `skt-hpl halt` has written, if it is due. The request's time is by the wall clock, because another
/// process wrote it.
fn take_request(folder: &Folder) -> Option<HaltRequest> {
    let request = read_whole::<HaltRequest>(&folder.halt())?;
    if request.at_ms.is_some_and(|at| unix_ms() < at) {
        return None;
    }
    let _ = std::fs::remove_file(folder.halt());
    Some(request)
}

/// Regular check for requests in the run's folder.
#[derive(Default)]
pub(super) struct Requests {
    looked: Option<Instant>,
    /// A check that the I/O thread has not finished yet.
    look: Option<Answer<Option<HaltRequest>>>,
}

impl Requests {
    /// Returns the request of `skt-hpl halt`, if the I/O thread has found one.
    fn next(&mut self, folder: &Folder, io_thread: &IoThread) -> Option<HaltRequest> {
        if let Some(look) = &self.look {
            let found = look.here()?;
            self.look = None;
            return found;
        }
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            self.looked = Some(Instant::now());
            let folder = folder.clone();
            self.look = Some(io_thread.ask(move || take_request(&folder)));
        }
        None
    }
}

/// Interval at which the request is sent to nodes again, because ranks that were still starting could not receive it.
const TELL_AGAIN: Duration = Duration::from_secs(1);

impl Supervisor<'_> {
    /// Returns the reason of a new request to stop, if there is one. A halt that waits for the next save can still be changed to
    /// an immediate halt.
    fn asked_to_halt(&mut self) -> anyhow::Result<Option<String>> {
        if self.halt.as_ref().is_some_and(|halt| !halt.after_checkpoint) {
            return Ok(None);
        }
        let request = self.requests.next(&self.settings.folder, &self.io_thread);
        let (why, after_checkpoint) = if asked_by_signal() {
            ("a signal".to_string(), false)
        } else if let Some(request) = request {
            ("skt-hpl halt".to_string(), request.after_checkpoint)
        } else if self.settings.stop_at_ms.is_some_and(|at| steady_ms() >= at) {
            ("the time limit".to_string(), false)
        } else {
            return Ok(None);
        };
        if after_checkpoint && self.halt.is_some() {
            return Ok(None);
        }
        let why = format!("stopped on request by {why}");
        self.note(Event::HaltRequested { after_checkpoint, why: why.clone() })?;
        let since = Instant::now();
        self.halt = Some(Halt { why: why.clone(), after_checkpoint, since, told: None });
        Ok(Some(why))
    }

    /// Returns the reason of a new or an earlier request to stop, if there is one. Steps between attempts call this; they have
    /// nothing to save.
    pub(super) fn is_to_halt(&mut self) -> anyhow::Result<Option<String>> {
        match &self.halt {
            Some(halt) => Ok(Some(halt.why.clone())),
            None => self.asked_to_halt(),
        }
    }

    /// Sends a request to stop to the ranks. Returns a reason to end the ranks if the ranks' time to stop is over, or if a second
    /// signal asks to stop at once.
    pub(super) fn halting(&mut self) -> anyhow::Result<Option<String>> {
        if self.asked_to_halt()?.is_some() {
            self.status.activity = Activity::Halting;
        }
        let Some(halt) = &mut self.halt else { return Ok(None) };
        if halt.told.is_none_or(|at| at.elapsed() >= TELL_AGAIN) {
            halt.told = Some(Instant::now());
            self.cluster.halt_all(!halt.after_checkpoint);
        }
        if asked_again() {
            return Ok(Some("stopped at once on request, without a new save".to_string()));
        }
        // A wait for the next regular save has no time limit.
        let late = !halt.after_checkpoint && halt.since.elapsed() > self.settings.stop_timeout;
        Ok(late.then(|| format!("{}, without a new save: the ranks did not react", halt.why)))
    }
}
