//! The journal: records on disk that survive the supervisor, and what they add up to.
//!
//! One JSON record a line, each sealed with a checksum and brought to disk before the supervisor acts
//! on it. A supervisor killed in the middle of a line leaves a torn tail, which the next one
//! cuts off; damage anywhere else is an error, because going on from a wrong past could give two jobs the
//! same memory. The file is locked while a supervisor lives, so there is never more than one.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::events::{Event, FaultKind, ProcessId, Record, unix_ms};
use super::hosts::Host;

#[derive(Debug, Error)]
pub enum JournalError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error(
        "{path}: another supervisor is at work on this run; see `skt-hpl status`, or choose another --state folder"
    )]
    Locked { path: PathBuf },
    #[error(
        "{path}, line {line}: the record is damaged ({what}); move the folder away to start a new run, its memory stays on the nodes until cleaned"
    )]
    Damaged { path: PathBuf, line: usize, what: String },
}

const SEAL: &str = ",\"sum\":\"";

/// A record as a line, without the newline.
pub fn to_line(record: &Record) -> String {
    let mut text = serde_json::to_string(record).expect("records are plain values");
    text.pop();
    let sum = xxh3_64(text.as_bytes());
    format!("{text}{SEAL}{sum:016x}\"}}")
}

/// A line as a record, or what is wrong with it.
pub fn from_line(line: &str) -> Result<Record, String> {
    let (body, seal) = line.rsplit_once(SEAL).ok_or_else(|| "it has no checksum".to_string())?;
    let sum = seal
        .strip_suffix("\"}")
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .ok_or_else(|| "its checksum is not one".to_string())?;
    if xxh3_64(body.as_bytes()) != sum {
        return Err("its checksum does not match".to_string());
    }
    serde_json::from_str(&format!("{body}}}")).map_err(|e| e.to_string())
}

/// All whole records of a journal's text, and the number of bytes they take. What follows a last
/// complete line, or a last line that cannot be read, is a torn tail.
pub fn parse(bytes: &[u8], path: &Path) -> Result<(Vec<Record>, usize), JournalError> {
    let mut records: Vec<Record> = Vec::new();
    let mut good = 0;
    let mut number = 0;
    while let Some(length) = bytes[good..].iter().position(|&b| b == b'\n') {
        number += 1;
        let line = &bytes[good..good + length];
        let read = std::str::from_utf8(line)
            .map_err(|e| e.to_string())
            .and_then(from_line)
            .and_then(|record| match record.seq {
                seq if seq == records.len() as u64 => Ok(record),
                seq => Err(format!("it is number {seq}, {} was due", records.len())),
            });
        match read {
            Ok(record) => records.push(record),
            Err(_) if good + length + 1 == bytes.len() => break,
            Err(what) => {
                return Err(JournalError::Damaged { path: path.to_path_buf(), line: number, what });
            }
        }
        good += length + 1;
    }
    Ok((records, good))
}

/// The journal, open and locked.
#[derive(Debug)]
pub struct Journal {
    file: Flock<File>,
    path: PathBuf,
    next: u64,
}

impl Journal {
    /// Opens or makes the journal, locks it, cuts a torn tail off and returns what it holds.
    pub fn open(path: &Path) -> Result<(Self, Vec<Record>), JournalError> {
        let io = |source| JournalError::Io { path: path.to_path_buf(), source };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(io)?;
        let mut file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(
            |(_, errno)| match errno {
                nix::errno::Errno::EWOULDBLOCK => JournalError::Locked { path: path.to_path_buf() },
                other => io(other.into()),
            },
        )?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let (records, good) = parse(&bytes, path)?;
        if good < bytes.len() {
            file.set_len(good as u64).map_err(io)?;
        }
        file.seek(SeekFrom::Start(good as u64)).map_err(io)?;
        // The name itself must be on disk too.
        if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            File::open(folder).and_then(|d| d.sync_all()).map_err(io)?;
        }
        let journal = Self { file, path: path.to_path_buf(), next: records.len() as u64 };
        Ok((journal, records))
    }

    /// Whether a live supervisor holds the journal.
    pub fn is_held(path: &Path) -> bool {
        match File::open(path) {
            Ok(file) => Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err(),
            Err(_) => false,
        }
    }

    /// Writes an event and waits until it is on disk.
    pub fn append(&mut self, event: Event) -> Result<Record, JournalError> {
        let record = Record { seq: self.next, at_ms: unix_ms(), event };
        let line = to_line(&record) + "\n";
        self.file
            .write_all(line.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(|source| JournalError::Io { path: self.path.clone(), source })?;
        self.next += 1;
        Ok(record)
    }
}

/// A fault and how far the run had come, for judging whether the run gets on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastFault {
    pub kind: FaultKind,
    pub iteration: u64,
    /// Whether anything was gained since the fault before: an iteration never reached, or a save.
    pub advanced: bool,
}

/// Where the run stands, by its records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunState {
    pub run_id: String,
    pub command: Vec<String>,
    pub ranks: usize,
    /// As first given.
    pub hosts: Vec<Host>,
    pub spares: Vec<Host>,
    /// Where the last incarnation runs, or ran.
    pub placed: Vec<Host>,
    /// Every node that any incarnation was launched on.
    pub ran_on: BTreeSet<String>,
    pub incarnation: u32,
    /// The launcher of an incarnation that nobody has recorded as stopped.
    pub running: Option<ProcessId>,
    pub lost: BTreeSet<String>,
    pub faults: Vec<PastFault>,
    /// The furthest iteration known to have been reached.
    pub furthest: u64,
    pub last_saved: Option<u64>,
    pub started_ms: u64,
    pub finished: Option<u8>,
    advanced: bool,
}

impl RunState {
    pub fn replay(records: &[Record]) -> Self {
        let mut state = Self::default();
        for record in records {
            state.apply(record);
        }
        state
    }

    pub fn apply(&mut self, record: &Record) {
        match &record.event {
            Event::RunStarted { run_id, command, ranks, hosts, spares, .. } => {
                *self = Self {
                    run_id: run_id.clone(),
                    command: command.clone(),
                    ranks: *ranks,
                    hosts: hosts.clone(),
                    spares: spares.clone(),
                    placed: hosts.clone(),
                    started_ms: record.at_ms,
                    ..Self::default()
                };
            }
            Event::TookOver { .. } => self.finished = None,
            Event::Launched { incarnation, launcher, hosts } => {
                self.incarnation = *incarnation;
                self.running = Some(*launcher);
                self.placed = hosts.clone();
                self.ran_on.extend(hosts.iter().map(|host| host.name.clone()));
            }
            Event::Computing { iteration, .. } | Event::CaughtUp { iteration, .. } => {
                self.reach(*iteration)
            }
            Event::Saved { iteration, .. } => {
                self.reach(*iteration);
                if self.last_saved.is_none_or(|last| *iteration > last) {
                    self.advanced = true;
                }
                self.last_saved = Some(*iteration);
            }
            Event::Fault { kind, iteration, .. } => {
                self.reach(*iteration);
                self.faults.push(PastFault {
                    kind: *kind,
                    iteration: *iteration,
                    advanced: std::mem::take(&mut self.advanced),
                });
            }
            Event::NodeLost { node, .. } => {
                self.lost.insert(node.clone());
            }
            Event::Stopped { .. } => self.running = None,
            Event::Replaced { by, .. } => {
                // A returned node that was taken after all is no longer lost.
                self.lost.remove(by);
            }
            Event::Finished { code, .. } => {
                self.finished = Some(*code);
                self.running = None;
            }
            Event::NodeReturned { .. }
            | Event::SlowNode { .. }
            | Event::AgentRestarted { .. }
            | Event::Waiting { .. }
            | Event::BackOff { .. }
            | Event::HaltRequested { .. } => {}
        }
    }

    fn reach(&mut self, iteration: u64) {
        if iteration > self.furthest {
            self.furthest = iteration;
            self.advanced = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::events::tests::samples;
    use super::*;

    fn written(dir: &Path) -> (PathBuf, Vec<Record>) {
        let path = dir.join("journal");
        let (mut journal, before) = Journal::open(&path).unwrap();
        assert!(before.is_empty());
        let records = samples().into_iter().map(|event| journal.append(event).unwrap()).collect();
        (path, records)
    }

    #[test]
    fn what_was_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, records) = written(dir.path());
        let (mut journal, again) = Journal::open(&path).unwrap();
        assert_eq!(again, records);
        let more = journal.append(Event::Waiting { missing: 1 }).unwrap();
        assert_eq!(more.seq, records.len() as u64);
    }

    #[test]
    fn a_torn_tail_is_cut_off_wherever_it_is_torn() {
        let dir = tempfile::tempdir().unwrap();
        let (path, records) = written(dir.path());
        let whole = std::fs::read(&path).unwrap();
        let last_line = whole[..whole.len() - 1].iter().rposition(|&b| b == b'\n').unwrap() + 1;
        for end in last_line..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let (mut journal, left) = Journal::open(&path).unwrap();
            assert_eq!(left, records[..records.len() - 1], "torn at {end}");
            journal.append(Event::Waiting { missing: 1 }).unwrap();
            drop(journal);
            let (_, now) = Journal::open(&path).unwrap();
            assert_eq!(now.len(), records.len());
        }
    }

    #[test]
    fn damage_in_the_middle_is_told_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _) = written(dir.path());
        let whole = std::fs::read(&path).unwrap();
        let second = whole.iter().position(|&b| b == b'\n').unwrap() + 1;
        for at in [second, second + 20, second + 60] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            match Journal::open(&path) {
                Err(JournalError::Damaged { line: 2, .. }) => {}
                other => panic!("byte {at} changed: {other:?}"),
            }
        }
        // A line that is missing as a whole shows in the numbering.
        let third = second + whole[second..].iter().position(|&b| b == b'\n').unwrap() + 1;
        let without = [&whole[..second], &whole[third..]].concat();
        std::fs::write(&path, without).unwrap();
        assert!(matches!(Journal::open(&path), Err(JournalError::Damaged { line: 2, .. })));
    }

    #[test]
    fn one_supervisor_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        assert!(!Journal::is_held(&path));
        let (journal, _) = Journal::open(&path).unwrap();
        assert!(Journal::is_held(&path));
        assert!(matches!(Journal::open(&path), Err(JournalError::Locked { .. })));
        drop(journal);
        assert!(!Journal::is_held(&path));
        Journal::open(&path).unwrap();
    }

    fn state_after(count: usize) -> RunState {
        let records: Vec<Record> = samples()
            .into_iter()
            .take(count)
            .enumerate()
            .map(|(seq, event)| Record { seq: seq as u64, at_ms: 1000 * seq as u64, event })
            .collect();
        RunState::replay(&records)
    }

    #[test]
    fn the_records_add_up_to_where_the_run_stands() {
        let running = state_after(4);
        assert_eq!(running.running, Some(ProcessId { pid: 5, started: 9 }));
        assert_eq!((running.furthest, running.last_saved), (8, Some(8)));
        let broken = state_after(6);
        assert_eq!(broken.running, Some(ProcessId { pid: 5, started: 9 }), "not stopped yet");
        assert!(broken.lost.contains("n2"));
        assert!(broken.faults[0].advanced);
        let stopped = state_after(7);
        assert_eq!(stopped.running, None);
        let again = state_after(9);
        assert_eq!(again.incarnation, 2);
        assert_eq!(again.placed[1].name, "n3");
        assert_eq!(state_after(12).finished, Some(0));
    }
}
