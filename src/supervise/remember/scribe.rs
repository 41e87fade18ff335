//! The scribe: brings records and the status to disk on a thread of its own.
//!
//! The supervisor hears heartbeats on one thread, which must not wait for a disk that stalls. It hands what is to be
//! written to a [`Scribe`] and asks whether it is on disk before it takes a step that must not be forgotten. What
//! cannot be written (disk full, quota) is kept in memory and tried again; the run goes on meanwhile.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::events::{Event, Record, steady_ms};
use super::folder::write_bytes;
use super::journal::Journal;
use crate::base::new_thread::{self, NoThread};

/// How often what could not be written is tried again.
const AGAIN: Duration = Duration::from_secs(1);

enum Order {
    Record(Record),
    /// There is a file to be written.
    File,
    /// Answer when all before this has been tried.
    Settle(Sender<()>),
}

#[derive(Debug, Default)]
struct State {
    /// So many records are on disk.
    written: u64,
    /// Why the next ones are not.
    trouble: Option<String>,
    /// A whole file, in place of what it was; of several that wait only the last counts.
    file: Option<(PathBuf, Vec<u8>)>,
}

#[derive(Debug)]
pub struct Scribe {
    orders: Sender<Order>,
    state: Arc<Mutex<State>>,
    next: u64,
}

fn look(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|broken| broken.into_inner())
}

impl Scribe {
    pub fn new(journal: Journal) -> Result<Self, NoThread> {
        let next = journal.len();
        let state = Arc::new(Mutex::new(State { written: next, ..State::default() }));
        let (orders, receiver) = channel();
        let shared = Arc::clone(&state);
        // It ends with the process: to wait for a disk that stalls would be to hang with it.
        new_thread::start("scribe", move || write_all(journal, &receiver, &shared))?;
        Ok(Self { orders, state, next })
    }

    /// An event becomes the next record and is on its way to disk.
    pub fn append(&mut self, event: Event) -> Record {
        let record = Record { seq: self.next, at_ms: steady_ms(), event };
        self.next += 1;
        let _ = self.orders.send(Order::Record(record.clone()));
        record
    }

    /// Writes a whole file when there is time. Nobody is told if it cannot be: the next one comes soon.
    pub fn file(&self, path: PathBuf, bytes: Vec<u8>) {
        if look(&self.state).file.replace((path, bytes)).is_none() {
            let _ = self.orders.send(Order::File);
        }
    }

    /// Waits, but not for longer than that, until all that was handed over has been tried to be written.
    pub fn settle(&self, patience: Duration) {
        let (done, heard) = channel();
        if self.orders.send(Order::Settle(done)).is_ok() {
            let _ = heard.recv_timeout(patience);
        }
    }

    /// Whether all records are on disk.
    pub fn is_dry(&self) -> bool {
        look(&self.state).written == self.next
    }

    /// Why records cannot be written now.
    pub fn trouble(&self) -> Option<String> {
        look(&self.state).trouble.clone()
    }
}

fn write_all(mut journal: Journal, orders: &Receiver<Order>, state: &Mutex<State>) {
    let mut records: Vec<Record> = Vec::new();
    loop {
        let first = if records.is_empty() {
            orders.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            orders.recv_timeout(AGAIN)
        };
        let last_call = matches!(first, Err(RecvTimeoutError::Disconnected));
        let mut waiting = Vec::new();
        for order in first.into_iter().chain(orders.try_iter()) {
            match order {
                Order::Record(record) => records.push(record),
                Order::File => {}
                Order::Settle(done) => waiting.push(done),
            }
        }
        // All that wait together: a disk takes as long for one as for hundreds.
        if !records.is_empty() {
            match journal.write(&records) {
                Ok(()) => {
                    let mut state = look(state);
                    state.written += records.len() as u64;
                    state.trouble = None;
                    records.clear();
                }
                Err(error) => look(state).trouble = Some(error.to_string()),
            }
        }
        let file = look(state).file.take();
        if let Some((path, bytes)) = file {
            let _ = write_bytes(&path, &bytes);
        }
        for done in waiting {
            let _ = done.send(());
        }
        if last_call {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    fn wait(what: &str, come: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
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
        let mut scribe = Scribe::new(journal).unwrap();
        let told: Vec<Record> =
            (0..20).map(|missing| scribe.append(Event::Waiting { missing })).collect();
        wait("all are written", || scribe.is_dry());
        assert_eq!(scribe.trouble(), None);
        drop(scribe);
        // The lock goes with the thread.
        let mut found = Vec::new();
        wait("the journal is closed", || Journal::open(&path).is_ok());
        found.extend(Journal::open(&path).unwrap().1);
        assert_eq!(found, told);
    }

    /// They are handed over while the disk is full, and so wait together.
    #[test]
    fn records_that_wait_together_wait_for_the_disk_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = Journal::open(&path).unwrap();
        let (full, syncs) = (Arc::new(AtomicBool::new(true)), journal.syncs());
        journal.fails_while(Arc::clone(&full));
        let mut scribe = Scribe::new(journal).unwrap();
        let told: Vec<Record> =
            (0..200).map(|missing| scribe.append(Event::Waiting { missing })).collect();
        wait("it is told", || scribe.trouble().is_some());
        assert_eq!(syncs.load(Ordering::Relaxed), 0);
        full.store(false, Ordering::Relaxed);
        wait("all are written", || scribe.is_dry());
        // Some may still have been on their way when the first were tried.
        assert!(syncs.load(Ordering::Relaxed) <= 3, "{syncs:?}");
        drop(scribe);
        wait("the journal is closed", || Journal::open(&path).is_ok());
        assert_eq!(Journal::open(&path).unwrap().1, told);
    }

    /// A full disk: what could not be written is told, kept, and written when there is room again.
    #[test]
    fn what_cannot_be_written_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = Journal::open(&path).unwrap();
        let full = Arc::new(AtomicBool::new(true));
        journal.fails_while(Arc::clone(&full));
        let mut scribe = Scribe::new(journal).unwrap();
        let told = scribe.append(Event::Waiting { missing: 1 });
        wait("it is told", || scribe.trouble().is_some());
        assert!(!scribe.is_dry());
        full.store(false, Ordering::Relaxed);
        wait("it is written", || scribe.is_dry());
        assert_eq!(scribe.trouble(), None);
        drop(scribe);
        wait("the journal is closed", || Journal::open(&path).is_ok());
        assert_eq!(Journal::open(&path).unwrap().1, [told]);
    }
}
