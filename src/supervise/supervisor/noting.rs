//! Noting of events, and other work that may have to wait for a disk. Every step is written to the journal before it is taken,
//! and only that step waits for the disk. During the wait, heartbeats are received and nodes are judged.
//!
//! All steps of the supervisor are noted here. `remember::journal_writer` writes the journal, and `remember::io_thread` does all
//! other work in the run's folder.

use std::time::Duration;

use super::Supervisor;
use crate::base::clock::Instant;
use crate::base::faults::{Sabotage, sabotaged};
use crate::supervise::remember::events::Event;
use crate::supervise::remember::io_thread::Answer;
use crate::supervise::start::job::Job;
use crate::supervise::talk::cluster::News;

/// Time after which a slow disk is reported.
const DISK_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which a wait checks for its result.
const LOOK: Duration = Duration::from_millis(5);

impl Supervisor<'_> {
    pub(super) fn note(&mut self, event: Event) -> anyhow::Result<()> {
        self.note_all([event])
    }

    /// Notes several events with a single wait for the disk.
    pub(super) fn note_all(
        &mut self,
        events: impl IntoIterator<Item = Event>,
    ) -> anyhow::Result<()> {
        let mut is_step = false;
        for event in events {
            self.say(&event);
            is_step |= event.is_step();
            let record = self.journal_writer.append(event);
            self.state.apply(&record);
            self.records.push(record);
        }
        // Records that cannot be written are not waited for.
        if is_step && !sabotaged(Sabotage::NoRecord) {
            self.hear_until(|this| {
                let writer = &this.journal_writer;
                (writer.is_dry() || writer.trouble().is_some()).then_some(())
            })?;
            self.print_journal_trouble();
        }
        Ok(())
    }

    /// Waits for the answer of another thread.
    pub(super) fn meanwhile<T>(&mut self, answer: Answer<T>) -> anyhow::Result<T> {
        self.hear_until(|_| answer.here())
    }

    /// Does `work` in the run's folder on the I/O thread, because it may have to wait for the disk.
    pub(super) fn in_folder<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let answer = self.io_thread.ask(work);
        self.meanwhile(answer)
    }

    /// Takes in everything that a job has written to its files up to this moment.
    pub(super) fn look_once_more(&mut self, job: &mut Job) -> anyhow::Result<()> {
        // If the I/O thread is already reading, it may have begun too early.
        self.hear_until(|_| job.has_looked().then_some(()))?;
        job.look();
        self.hear_until(|_| job.has_looked().then_some(()))
    }

    /// Waits until `come` returns a result. Nodes are judged meanwhile. Heartbeats are dropped: new heartbeats are due soon, and
    /// an old heartbeat may show ranks that have been ended since. Other news goes to the backlog.
    fn hear_until<T>(&mut self, mut come: impl FnMut(&mut Self) -> Option<T>) -> anyhow::Result<T> {
        let since = Instant::now();
        let mut told = false;
        loop {
            if let Some(it) = come(self) {
                return Ok(it);
            }
            let news = self.cluster.hear(LOOK);
            self.backlog.extend(news.filter(|(_, news)| !matches!(news, News::Beat(_))));
            self.weigh_if_due()?;
            self.keep_status();
            self.print_slow_disk(since, &mut told);
        }
    }

    /// Reports that a step has been waiting for the disk for long, unless this was `told`.
    pub(super) fn print_slow_disk(&mut self, since: Instant, told: &mut bool) {
        if *told || since.elapsed() <= DISK_TIMEOUT {
            return;
        }
        *told = true;
        self.print(&format!(
            "{}: the disk is slow; the supervisor's next step waits for it, the ranks do not",
            self.settings.folder.path().display()
        ));
    }

    /// Reports once that records cannot be written, and once that they can be written again.
    pub(super) fn print_journal_trouble(&mut self) {
        match (self.journal_writer.trouble(), self.display.unwritten) {
            (Some(why), false) => {
                self.display.unwritten = true;
                self.print(&format!("{why}: the journal cannot be written. The run continues, and unwritten records are \
                     kept and tried again. If this supervisor dies before that, no other can take over the run"));
            }
            (None, true) if self.journal_writer.is_dry() => {
                self.display.unwritten = false;
                self.print("the journal is written again");
            }
            _ => {}
        }
    }
}
