//! Writer of records and status to disk, on its own thread.
//!
//! The supervisor receives heartbeats on a thread that must not wait for a slow disk. That thread hands records and files to a
//! [`JournalWriter`]. Before it acts on a record that a successor must know, it checks that the record is on disk. Records that
//! cannot be written (disk full, quota) are kept in memory and tried again while the run continues.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::events::{Event, Record};
use super::folder::write_bytes;
use super::io_thread::{Answer, IoThread};
use super::journal::Journal;
use crate::base::clock::steady_ms;
use crate::base::new_thread::NoThread;

/// The records and files that wait for the disk. Locked only for a moment, never during a wait for the disk.
#[derive(Debug, Default)]
struct Desk {
    /// Records that are not on disk.
    records: Vec<Record>,
    /// Reason why the records could not be written.
    trouble: Option<String>,
    /// Path and new content of a file. Newer content replaces content that still waits.
    file: Option<(PathBuf, Vec<u8>)>,
}

#[derive(Debug)]
pub struct JournalWriter {
    io_thread: IoThread,
    desk: Arc<Mutex<Desk>>,
    journal: Arc<Mutex<Journal>>,
    /// Number of the next record.
    next: u64,
}

fn open<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(|broken| broken.into_inner())
}

impl JournalWriter {
    pub fn new(journal: Journal) -> Result<Self, NoThread> {
        Ok(Self {
            io_thread: IoThread::new("journal")?,
            next: journal.next,
            desk: Arc::default(),
            journal: Arc::new(Mutex::new(journal)),
        })
    }

    /// Makes the event the next record, and starts to write the record.
    pub fn append(&mut self, event: Event) -> Record {
        let record = Record { seq: self.next, at_ms: steady_ms(), event };
        self.next += 1;
        open(&self.desk).records.push(record.clone());
        drop(self.write());
        record
    }

    /// Writes a file in the background. A failure is not reported: the file is the status, which is written again every second.
    /// Records that could not be written before are tried again at the same time.
    pub fn file(&self, path: PathBuf, bytes: Vec<u8>) {
        if open(&self.desk).file.replace((path, bytes)).is_none() {
            drop(self.write());
        }
    }

    /// Removes all records, also those that wait for the disk.
    pub fn clear(&mut self) -> anyhow::Result<()> {
        // The journal stays locked until a write that still runs has ended.
        let mut journal = open(&self.journal);
        open(&self.desk).records.clear();
        self.next = 0;
        journal.clear()
    }

    fn write(&self) -> Answer<()> {
        let (desk, journal) = (Arc::clone(&self.desk), Arc::clone(&self.journal));
        self.io_thread.ask(move || write_all(&mut open(&journal), &desk))
    }

    /// Waits until the writer has tried to write all records and files, but at most for `timeout`.
    pub fn settle(&self, timeout: Duration) {
        self.write().wait_for(timeout);
    }

    /// Returns whether all records are on disk.
    pub fn is_dry(&self) -> bool {
        open(&self.desk).records.is_empty()
    }

    /// Returns the reason why records cannot be written now.
    pub fn trouble(&self) -> Option<String> {
        open(&self.desk).trouble.clone()
    }
}

/// Writes all records and files that wait. All records are written at once: a disk takes as long for one as for hundreds.
fn write_all(journal: &mut Journal, desk: &Mutex<Desk>) {
    let (records, file) = {
        let mut desk = open(desk);
        (desk.records.clone(), desk.file.take())
    };
    if !records.is_empty() {
        let written = journal.write(&records);
        let mut desk = open(desk);
        if written.is_ok() {
            desk.records.drain(..records.len());
        }
        desk.trouble = written.err().map(|error| format!("{error:#}"));
    }
    if let Some((path, bytes)) = file {
        let _ = write_bytes(&path, &bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn wait(what: &str, come: impl Fn() -> bool) {
        let until = Instant::now() + TIMEOUT;
        while !come() {
            assert!(Instant::now() < until, "not yet: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn records_come_to_disk_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (journal, _) = Journal::open(&path).unwrap();
        let mut journal_writer = JournalWriter::new(journal).unwrap();
        let told: Vec<Record> =
            (0..20).map(|missing| journal_writer.append(Event::Waiting { missing })).collect();
        wait("all are written", || journal_writer.is_dry());
        assert_eq!(journal_writer.trouble(), None);
        drop(journal_writer);
        // The lock ends with the thread.
        let mut found = Vec::new();
        wait("the journal is closed", || Journal::open(&path).is_ok());
        found.extend(Journal::open(&path).unwrap().1);
        assert_eq!(found, told);
    }

    /// The records are handed over while the disk is full, so they wait together.
    #[test]
    fn records_that_wait_together_wait_for_the_disk_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (journal, _) = Journal::open(&path).unwrap();
        let disk = journal.disk();
        disk.full.store(true, Ordering::Relaxed);
        let mut journal_writer = JournalWriter::new(journal).unwrap();
        let told: Vec<Record> =
            (0..200).map(|missing| journal_writer.append(Event::Waiting { missing })).collect();
        wait("the trouble is reported", || journal_writer.trouble().is_some());
        assert_eq!(disk.syncs.load(Ordering::Relaxed), 0);
        disk.full.store(false, Ordering::Relaxed);
        journal_writer.settle(TIMEOUT);
        assert!(journal_writer.is_dry());
        // Some records may have been handed over after the writer had taken the first.
        assert!(disk.syncs.load(Ordering::Relaxed) <= 3, "{disk:?}");
        drop(journal_writer);
        wait("the journal is closed", || Journal::open(&path).is_ok());
        assert_eq!(Journal::open(&path).unwrap().1, told);
    }

    /// Records that could not be written to a full disk are reported, kept, and written when there is room again.
    #[test]
    fn unwritten_records_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (journal, _) = Journal::open(&path).unwrap();
        let disk = journal.disk();
        disk.full.store(true, Ordering::Relaxed);
        let mut journal_writer = JournalWriter::new(journal).unwrap();
        let told = journal_writer.append(Event::Waiting { missing: 1 });
        wait("the trouble is reported", || journal_writer.trouble().is_some());
        assert!(!journal_writer.is_dry());
        disk.full.store(false, Ordering::Relaxed);
        // The write of the status also writes the record.
        journal_writer.file(dir.path().join("status"), Vec::new());
        wait("it is written", || journal_writer.is_dry());
        assert_eq!(journal_writer.trouble(), None);
        drop(journal_writer);
        wait("the journal is closed", || Journal::open(&path).is_ok());
        assert_eq!(Journal::open(&path).unwrap().1, [told]);
    }
}
