//! The journal: records on disk that survive the supervisor, and the state of the run that follows from the records.
//!
//! Each line is a JSON record with a checksum. A record that a successor must know is on disk before the supervisor acts on it. A
//! supervisor killed while it writes leaves a torn tail, which the next supervisor cuts off. Damage anywhere else is an error,
//! because wrong records could give two jobs the same memory. The file is locked while a supervisor lives, so a run never has
//! more than one.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use xxhash_rust::xxh3::xxh3_64;

use super::events::{Event, FaultKind, ProcessId, Record};
use crate::base::clock::{self, Instant};
use crate::checkpoint::storage::writing::sync_names;
use crate::supervise::judge::ending::{STATUS_LOSS, STATUS_RESUMABLE};
use crate::supervise::start::hosts::Host;

const SEAL: &str = ",\"sum\":\"";

/// Returns a record as a line, without the newline.
pub fn to_line(record: &Record) -> String {
    let mut text = serde_json::to_string(record).expect("records are plain values");
    text.pop();
    let sum = xxh3_64(text.as_bytes());
    format!("{text}{SEAL}{sum:016x}\"}}")
}

/// Parses a line as a record. The error describes the damage to the line.
pub fn from_line(line: &str) -> Result<Record, String> {
    let (body, seal) = line.rsplit_once(SEAL).ok_or_else(|| "it has no checksum".to_string())?;
    let sum = seal
        .strip_suffix("\"}")
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .ok_or_else(|| "its checksum cannot be read".to_string())?;
    if xxh3_64(body.as_bytes()) != sum {
        return Err("its checksum does not match".to_string());
    }
    serde_json::from_str(&format!("{body}}}")).map_err(|e| e.to_string())
}

/// Returns all complete records of a journal's text, and the number of bytes they take. An unreadable last line, and text after
/// the last complete line, are a torn tail. Other damage is an error.
pub fn parse(bytes: &[u8], path: &Path) -> Result<(Vec<Record>, usize), String> {
    let mut records: Vec<Record> = Vec::new();
    let mut good = 0;
    for (at, piece) in bytes.split_inclusive(|&b| b == b'\n').enumerate() {
        let Some(line) = piece.strip_suffix(b"\n") else { break };
        let read = std::str::from_utf8(line)
            .map_err(|e| e.to_string())
            .and_then(from_line)
            .and_then(|record| match record.seq {
                seq if seq == records.len() as u64 => Ok(record),
                seq => Err(format!("it has number {seq}, expected {}", records.len())),
            });
        match read {
            Ok(record) => records.push(record),
            Err(_) if good + piece.len() == bytes.len() => break,
            Err(what) => {
                return Err(format!(
                    "{}, line {}: the record is damaged ({what}); to start a new run, move the folder away; the old \
                     run's memory stays on the nodes until `skt-hpl clean` removes it",
                    path.display(),
                    at + 1
                ));
            }
        }
        good += piece.len();
    }
    Ok((records, good))
}

/// Whether a live supervisor supervises a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    Yes,
    No,
    /// The state is unknown, for this reason.
    Unknown(String),
}

/// Interprets the result of an attempt to lock the journal. On a file system without locks the result does not show whether
/// another process has the lock.
fn held_by(locked: Result<(), Errno>) -> Held {
    match locked {
        Ok(()) => Held::No,
        Err(Errno::EWOULDBLOCK) => Held::Yes,
        Err(other) => Held::Unknown(format!("this file system has no locks: {}", other.desc())),
    }
}

/// Time for which a starting supervisor tries to lock the journal. Another process, such as `skt-hpl status`, has the lock for a
/// moment when it checks the lock.
const LOCK_TIMEOUT: Duration = Duration::from_millis(300);

fn lock(mut file: File) -> Result<Flock<File>, Errno> {
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((same, Errno::EWOULDBLOCK)) if Instant::now() < until => file = same,
            Err((_, errno)) => return Err(errno),
        }
        clock::sleep(Duration::from_millis(20));
    }
}

/// The journal, open and locked.
#[derive(Debug)]
pub struct Journal {
    file: Flock<File>,
    path: PathBuf,
    /// Number of the next record.
    pub(super) next: u64,
    /// Number of bytes of complete records.
    good: u64,
    #[cfg(test)]
    disk: tests::Disk,
}

impl Journal {
    /// Opens or creates the journal, locks it and cuts off a torn tail. Also returns the records.
    pub fn open(path: &Path) -> anyhow::Result<(Self, Vec<Record>)> {
        let name = path.display();
        let of_path = || name.to_string();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = match lock(options.open(path).with_context(of_path)?) {
            Ok(locked) => locked,
            Err(Errno::EWOULDBLOCK) => bail!(
                "{name}: another supervisor is at work on this run; see `skt-hpl status`, end the run with `skt-hpl halt` \
                 (with --state if the folder is not the default), or choose another --state folder"
            ),
            Err(other) => bail!(
                "{name}: this file system has no locks ({}), so two supervisors could run at once; choose a \
                 --state folder on another file system",
                std::io::Error::from(other)
            ),
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(of_path)?;
        let (records, good) = parse(&bytes, path).map_err(anyhow::Error::msg)?;
        if good < bytes.len() {
            file.set_len(good as u64).with_context(of_path)?;
        }
        file.seek(SeekFrom::Start(good as u64)).with_context(of_path)?;
        // The directory entry of the file must be on disk, too.
        if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            sync_names(folder).with_context(of_path)?;
        }
        let journal = Self {
            file,
            path: path.to_path_buf(),
            next: records.len() as u64,
            good: good as u64,
            #[cfg(test)]
            disk: Default::default(),
        };
        Ok((journal, records))
    }

    /// Removes all records and keeps the lock, so that of two supervisors that start at once only one continues.
    pub fn clear(&mut self) -> anyhow::Result<()> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        let emptied = emptied.and_then(|_| self.file.sync_all());
        emptied.with_context(|| self.path.display().to_string())?;
        (self.next, self.good) = (0, 0);
        Ok(())
    }

    /// Returns whether a live supervisor has the journal locked.
    pub fn held(path: &Path) -> Held {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Held::No,
            Err(error) => return Held::Unknown(error.to_string()),
        };
        // The lock is shared: NFS refuses an exclusive lock on a file that is open for reading only.
        let locked = Flock::lock(file, FlockArg::LockSharedNonblock);
        held_by(locked.map(drop).map_err(|(_, errno)| errno))
    }

    /// Writes the next records and waits until all of them are on disk. After an error the file contains none of them, and the
    /// caller can try again.
    pub fn write<'a>(
        &mut self,
        records: impl IntoIterator<Item = &'a Record>,
    ) -> anyhow::Result<()> {
        let mut lines = String::new();
        let mut next = self.next;
        for record in records {
            debug_assert_eq!(record.seq, next);
            lines += &(to_line(record) + "\n");
            next += 1;
        }
        let written = self.write_lines(lines.as_bytes());
        if written.is_err() {
            // Part of a line would be damage once other lines follow.
            let _ = self.file.set_len(self.good);
            let _ = self.file.seek(SeekFrom::Start(self.good));
        }
        written.with_context(|| self.path.display().to_string())?;
        self.next = next;
        self.good += lines.len() as u64;
        Ok(())
    }

    fn write_lines(&mut self, lines: &[u8]) -> std::io::Result<()> {
        #[cfg(test)]
        self.disk.takes(&mut self.file, lines)?;
        self.file.write_all(lines)?;
        self.file.sync_data()
    }
}

/// A past fault, and the run's progress at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastFault {
    pub kind: FaultKind,
    /// Node with the fault, if the fault was of a process or a node.
    pub node: Option<String>,
    /// Test in the input file. In each test iterations begin at 0 again.
    pub test: u32,
    /// Furthest iteration that any rank had reached.
    pub iteration: u64,
    /// Iteration of the rank that died, if known.
    pub rank_iteration: Option<u64>,
    /// Whether `test` and `iteration` are those of the fault: ranks of its attempt were seen, or no rank of the run has ever
    /// computed. Otherwise they are those of an earlier attempt.
    pub placed: bool,
    /// Whether the run made progress since the previous fault: it reached a new test or iteration, or completed a save.
    pub advanced: bool,
}

/// The state of the run, as its records give it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunState {
    pub run_id: String,
    pub command: Vec<String>,
    pub ranks: usize,
    /// Nodes as given at the start of the run.
    pub hosts: Vec<Host>,
    pub spares: Vec<Host>,
    /// Name of the ranks' persistent shared memory.
    pub job: Option<String>,
    /// Whether an earlier run was given up for this run.
    pub from_scratch: bool,
    /// Nodes on which the last attempt runs, or ran.
    pub placed: Vec<Host>,
    /// Nodes of the last attempt that computed. These have the memory from which the run resumes. If no attempt has computed, the
    /// nodes given at the start.
    computed_on: Vec<Host>,
    /// All nodes on which any attempt was launched.
    pub ran_on: BTreeSet<String>,
    /// Number of attempts so far, and the number of the last one.
    pub attempts: u32,
    /// Arithmetic of the run, if identical bits are promised.
    pub rounding: Option<String>,
    /// Launcher of an attempt that is not recorded as stopped.
    pub running: Option<ProcessId>,
    pub lost: BTreeSet<String>,
    /// Nodes whose memory of this run is useless: an attempt has computed without them, so no later restart uses this memory.
    pub stale: BTreeSet<String>,
    pub progress: Progress,
    pub history: History,
    pub started_ms: u64,
    pub finished: Option<u8>,
}

/// The run's progress. Each point is a test and an iteration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Whether ranks of the run have computed.
    pub computed: bool,
    pub furthest: (u32, u64),
    pub last_saved: Option<(u32, u64)>,
    /// Furthest point before a fault, or before a loss after which the ranks resumed in place at an earlier point, until the run
    /// reaches it again. Up to this point iterations are computed again.
    pub aim: Option<(u32, u64)>,
    /// Whether the run has made progress since the last fault.
    advanced: bool,
}

/// The faults of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    pub faults: Vec<PastFault>,
    /// Number of faults up to the moment at which the run was last given up. Once the run was continued, these faults do not
    /// count.
    given_up_after: usize,
    /// Number of losses in the run that were recovered in place.
    pub gone_on: u32,
    /// Number of such losses in the last attempt.
    pub gone_on_last: usize,
    /// Whether a fault has broken the attempt, and the attempt has not been stopped yet.
    pub stopping: bool,
}

impl RunState {
    pub fn replay(records: &[Record]) -> Self {
        let mut state = Self::default();
        records.iter().for_each(|record| state.apply(record));
        state
    }

    pub fn apply(&mut self, record: &Record) {
        match &record.event {
            Event::RunStarted {
                run_id, command, ranks, hosts, spares, job, from_scratch, ..
            } => {
                *self = Self {
                    run_id: run_id.clone(),
                    command: command.clone(),
                    ranks: *ranks,
                    hosts: hosts.clone(),
                    spares: spares.clone(),
                    job: job.clone(),
                    from_scratch: *from_scratch,
                    placed: hosts.clone(),
                    computed_on: hosts.clone(),
                    started_ms: record.at_ms,
                    ..Self::default()
                };
            }
            Event::TookOver { .. } => {
                self.go_on();
                self.finished = None;
            }
            Event::Rounding { with } => self.rounding = Some(with.clone()),
            Event::Launched { attempt, launcher, hosts } => {
                self.attempts = *attempt;
                self.running = Some(*launcher);
                self.history.gone_on_last = 0;
                self.placed = hosts.clone();
                self.ran_on.extend(hosts.iter().map(|host| host.name.clone()));
            }
            Event::Computing { test, iteration, .. } => {
                self.progress.computed = true;
                // All grid positions compute in this attempt, and each is on a node that is not lost.
                self.stale.extend(self.lost.iter().cloned());
                self.computed_on = self.placed.clone();
                self.reach(*test, *iteration);
                self.progress.aim.take_if(|aim| (*test, *iteration) >= *aim);
            }
            Event::CaughtUp { test, iteration, .. } => {
                self.reach(*test, *iteration);
                self.progress.aim = None;
            }
            Event::MemoryRemoved { node, .. } => {
                self.stale.remove(node);
            }
            Event::Saved { test, iteration, .. } => {
                self.reach(*test, *iteration);
                let saved = Some((*test, *iteration));
                self.progress.advanced |= saved > self.progress.last_saved;
                self.progress.last_saved = saved;
            }
            Event::Fault { kind, node, test, iteration, rank_iteration, ranks_seen, .. } => {
                self.reach(*test, *iteration);
                self.progress.aim = self.progress.aim.max(Some((*test, *iteration)));
                self.history.stopping = true;
                self.history.faults.push(PastFault {
                    kind: *kind,
                    node: node.clone(),
                    test: *test,
                    iteration: *iteration,
                    rank_iteration: *rank_iteration,
                    placed: *ranks_seen || !self.progress.computed,
                    advanced: std::mem::take(&mut self.progress.advanced),
                });
            }
            Event::GoneOn { test, iteration, boundary, .. } => {
                self.reach(*test, *iteration);
                if boundary.is_some_and(|boundary| boundary < *iteration) {
                    self.progress.aim = self.progress.aim.max(Some((*test, *iteration)));
                }
                self.history.gone_on += 1;
                self.history.gone_on_last += 1;
            }
            Event::NodeLost { node, .. } => {
                self.lost.insert(node.clone());
                let had_ranks = self.placed.iter().any(|host| host.name == *node);
                if let Some(last) =
                    self.history.faults.last_mut().filter(|_| self.history.stopping && had_ranks)
                {
                    let kind = last.kind.with_a_lost_node();
                    if kind != last.kind {
                        (last.kind, last.node) = (kind, Some(node.clone()));
                    }
                }
            }
            Event::Stopped { .. } => (self.running, self.history.stopping) = (None, false),
            Event::Replaced { by, .. } => {
                // A lost node that has returned and is used again is no longer lost.
                self.lost.remove(by);
            }
            Event::Finished { code, .. } => {
                self.finished = Some(*code);
                self.running = None;
            }
            _ => {}
        }
    }

    /// Returns whether the same command continues the run: the run has not ended, or its memory is kept. A run without protection
    /// that was given up leaves no memory.
    pub fn can_go_on(&self) -> bool {
        match self.finished {
            None | Some(STATUS_RESUMABLE) => true,
            Some(STATUS_LOSS) => self.job.is_some(),
            Some(_) => false,
        }
    }

    /// Prepares the state for continuing a run. If the run was given up, too many group members were missing on the nodes that
    /// had replaced lost nodes. So the run returns to the nodes that computed last, even to lost nodes. Nodes that still do not
    /// answer are declared lost again.
    pub fn go_on(&mut self) {
        if self.finished == Some(STATUS_LOSS) {
            self.history.given_up_after = self.history.faults.len();
            self.placed = self.computed_on.clone();
            let needed = |name: &String| self.placed.iter().any(|host| host.name == *name);
            let stale = &self.stale;
            self.lost.retain(|name| stale.contains(name) || !needed(name));
        }
    }

    /// Returns all nodes that have ever had ranks of the run. They may still have a running job, or memory from which the run can
    /// resume.
    pub fn had_ranks(&self) -> Vec<Host> {
        let mut known: Vec<Host> = self.placed.iter().chain(&self.computed_on).cloned().collect();
        // The number of ranks in earlier attempts is not recorded; one slot stands for it.
        known.extend(self.ran_on.iter().map(|name| Host::new(name, 1)));
        let mut names = BTreeSet::new();
        known.retain(|host| names.insert(host.name.clone()));
        known
    }

    /// Returns the faults since the user last continued a run that had been given up. The causes of earlier faults may have been
    /// repaired.
    pub fn faults_that_count(&self) -> &[PastFault] {
        &self.history.faults[self.history.given_up_after..]
    }

    /// Returns the number of the next fault.
    pub fn next_fault(&self) -> u32 {
        self.history.faults.len() as u32 + self.history.gone_on + 1
    }

    fn reach(&mut self, test: u32, iteration: u64) {
        if (test, iteration) > self.progress.furthest {
            self.progress.furthest = (test, iteration);
            self.progress.advanced = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::steady_ms;
    use crate::supervise::remember::events::samples;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    impl Journal {
        /// Writes an event and waits until the record is on disk.
        pub fn append(&mut self, event: Event) -> anyhow::Result<Record> {
            let record = Record { seq: self.next, at_ms: steady_ms(), event };
            self.write([&record])?;
            Ok(record)
        }

        pub(in crate::supervise::remember) fn disk(&self) -> Disk {
            self.disk.clone()
        }
    }

    /// The disk of a test. While it is full, half of the bytes are written.
    #[derive(Clone, Debug, Default)]
    pub(in crate::supervise::remember) struct Disk {
        pub full: Arc<AtomicBool>,
        /// Number of synchronisations of the disk.
        pub syncs: Arc<AtomicUsize>,
    }

    impl Disk {
        pub fn takes(&self, file: &mut File, lines: &[u8]) -> std::io::Result<()> {
            if self.full.load(Ordering::Relaxed) {
                file.write_all(&lines[..lines.len() / 2])?;
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.syncs.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    fn written(dir: &Path) -> (PathBuf, Vec<Record>) {
        let path = dir.join("journal");
        let (mut journal, before) = Journal::open(&path).unwrap();
        assert!(before.is_empty());
        let records = samples().into_iter().map(|event| journal.append(event).unwrap()).collect();
        (path, records)
    }

    #[test]
    fn a_journal_is_emptied_without_a_moment_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _) = written(dir.path());
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.clear().unwrap();
        assert_eq!(journal.next, 0);
        assert_eq!(Journal::held(&path), Held::Yes);
        let first = journal.append(samples().remove(0)).unwrap();
        drop(journal);
        assert_eq!(Journal::open(&path).unwrap().1, [first]);
    }

    /// Node n2 was replaced by s1. Then n1 and s1 were cut off, s2 and s3 replaced them, and no rank has computed since.
    #[test]
    fn a_run_that_was_given_up_goes_back_to_the_memory_that_counts() {
        let hosts = |names: [&str; 4]| names.map(|name| Host::new(name, 1)).to_vec();
        let launcher = ProcessId { pid: 1, started: 1 };
        let launched = |attempt, names| Event::Launched { attempt, launcher, hosts: hosts(names) };
        let lost = |node: &str| Event::NodeLost { node: node.to_owned(), why: String::new() };
        let replaced =
            |node: &str, by: &str| Event::Replaced { node: node.to_owned(), by: by.to_owned() };
        let fault = |fault, node: &str| Event::Fault {
            fault,
            attempt: fault,
            kind: FaultKind::NodeUnresponsive,
            failed_ms: 0,
            node: Some(node.to_owned()),
            position: None,
            test: 0,
            iteration: 9,
            rank_iteration: None,
            ranks_seen: true,
            detail: String::new(),
        };
        let mut started =
            samples().into_iter().find(|e| matches!(e, Event::RunStarted { .. })).unwrap();
        if let Event::RunStarted { hosts: named, job: name, .. } = &mut started {
            (*named, *name) = (hosts(["n1", "n2", "n3", "n4"]), Some("j".to_owned()));
        }
        let events = [
            started,
            launched(1, ["n1", "n2", "n3", "n4"]),
            Event::Computing { attempt: 1, test: 0, iteration: 2 },
            fault(1, "n2"),
            lost("n2"),
            replaced("n2", "s1"),
            launched(2, ["n1", "s1", "n3", "n4"]),
            Event::Computing { attempt: 2, test: 0, iteration: 7 },
            fault(2, "n1"),
            lost("n1"),
            lost("s1"),
            replaced("n1", "s2"),
            replaced("s1", "s3"),
            launched(3, ["s2", "s3", "n3", "n4"]),
            Event::Finished { code: STATUS_LOSS, why: String::new() },
        ];
        let mut state = RunState::default();
        let mut seq = 0;
        let mut say = |state: &mut RunState, event| {
            state.apply(&Record { seq, at_ms: 0, event });
            seq += 1;
        };
        events.into_iter().for_each(|event| say(&mut state, event));
        let names = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<BTreeSet<_>>();
        let known: Vec<String> = state.had_ranks().into_iter().map(|host| host.name).collect();
        assert_eq!(known, ["s2", "s3", "n3", "n4", "n1", "s1", "n2"]);
        assert!(state.can_go_on());
        assert_eq!(state.placed, hosts(["s2", "s3", "n3", "n4"]));
        assert_eq!(state.lost, names(&["n1", "n2", "s1"]));
        state.go_on();
        assert_eq!(state.placed, hosts(["n1", "s1", "n3", "n4"]));
        assert_eq!(state.lost, names(&["n2"]), "others have computed without it");
        assert_eq!(state.faults_that_count(), []);
        let once = state.clone();
        let supervisor_host = "h".to_owned();
        say(&mut state, Event::TookOver { supervisor_host, supervisor_pid: 1, adopted: false });
        assert_eq!(state, RunState { finished: None, ..once }, "said twice is as said once");
        say(&mut state, lost("n1"));
        say(&mut state, fault(3, "n1"));
        assert_eq!((state.faults_that_count().len(), state.next_fault()), (1, 4));
        // The state of a run that was stopped stays the same.
        say(&mut state, Event::Finished { code: STATUS_RESUMABLE, why: String::new() });
        let stopped = state.clone();
        state.go_on();
        assert_eq!(state, stopped);
    }

    /// Tests that a supervisor that takes a job over learns from the record of a recovered loss which iterations are repeated.
    #[test]
    fn a_loss_made_good_in_place_says_what_is_done_again() {
        let mut state = RunState::default();
        let mut say = |at: u64| {
            let event = Event::GoneOn {
                fault: 1,
                attempt: 1,
                failed_ms: 0,
                noticed_ms: 0,
                agreed_ms: 0,
                going_on_ms: 0,
                lost: Vec::new(),
                test: 1,
                iteration: at,
                boundary: Some(8),
                detail: String::new(),
            };
            state.apply(&Record { seq: 0, at_ms: 0, event });
            state.progress.aim
        };
        assert_eq!(say(20), Some((1, 20)));
        assert_eq!(say(14), Some((1, 20)), "it has not caught up yet");
        assert_eq!(say(30), Some((1, 30)));
    }

    #[test]
    fn a_finished_run_is_not_continued() {
        let ended = |finished, job: Option<&str>| {
            let job = job.map(str::to_owned);
            RunState { finished, job, ..RunState::default() }.can_go_on()
        };
        for job in [Some("j"), None] {
            assert!(ended(None, job) && ended(Some(STATUS_RESUMABLE), job));
            assert!([0, 1, 2, 3, 5, 6].iter().all(|code| !ended(Some(*code), job)));
        }
        assert!(ended(Some(STATUS_LOSS), Some("j")) && !ended(Some(STATUS_LOSS), None));
    }

    #[test]
    fn written_records_are_read_again() {
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

    fn refusal(path: &Path) -> String {
        Journal::open(path).unwrap_err().to_string()
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
            assert!(refusal(&path).contains("line 2: the record is damaged"), "byte {at} changed");
        }
        // A complete line that is missing is noticed by the sequence numbers.
        let third = second + whole[second..].iter().position(|&b| b == b'\n').unwrap() + 1;
        let without = [&whole[..second], &whole[third..]].concat();
        std::fs::write(&path, without).unwrap();
        assert!(refusal(&path).contains("line 2: the record is damaged"));
    }

    #[test]
    fn one_supervisor_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        assert_eq!(Journal::held(&path), Held::No);
        let (journal, _) = Journal::open(&path).unwrap();
        assert_eq!(Journal::held(&path), Held::Yes);
        assert!(refusal(&path).contains("another supervisor is at work"));
        drop(journal);
        // A process that a parallel test starts inherits the open file until it executes another program.
        let since = Instant::now();
        while Journal::held(&path) != Held::No {
            assert!(since.elapsed() < Duration::from_secs(30), "nobody lets go of it");
            std::thread::sleep(Duration::from_millis(1));
        }
        Journal::open(&path).unwrap();
    }

    /// NFSv4, and Lustre without `flock`, return errors that do not mean that another process has the lock.
    #[test]
    fn a_lock_that_cannot_be_asked_for_is_not_held() {
        assert_eq!(held_by(Ok(())), Held::No);
        assert_eq!(held_by(Err(Errno::EWOULDBLOCK)), Held::Yes);
        for errno in [Errno::EBADF, Errno::ENOLCK, Errno::ENOSYS, Errno::EOPNOTSUPP] {
            assert!(matches!(held_by(Err(errno)), Held::Unknown(_)), "{errno}");
        }
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Journal::held(&dir.path().join("no/journal")), Held::No);
        assert!(matches!(Journal::held(&dir.path().join(format!("{:0300}", 1))), Held::Unknown(_)));
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
        assert_eq!(
            (running.progress.furthest, running.progress.last_saved),
            ((0, 8), Some((0, 8)))
        );
        let broken = state_after(6);
        assert_eq!(broken.running, Some(ProcessId { pid: 5, started: 9 }), "not stopped yet");
        assert!(broken.lost.contains("n2"));
        assert!(broken.history.faults[0].advanced);
        let stopped = state_after(7);
        assert_eq!(stopped.running, None);
        let again = state_after(9);
        assert_eq!(again.attempts, 2);
        assert_eq!(again.placed[1].name, "n3");
        assert_eq!(state_after(12).finished, Some(0));
    }

    /// As long as no rank has computed since the loss, the memory of the lost node may still be needed.
    #[test]
    fn memory_is_stale_only_once_others_have_computed_without_it() {
        let mut state = RunState::default();
        let mut tell = |event: Event| {
            state.apply(&Record { seq: 0, at_ms: 0, event });
            state.stale.iter().cloned().collect::<Vec<String>>().join(" ")
        };
        let lost = |node: &str| Event::NodeLost { node: node.into(), why: String::new() };
        assert_eq!(tell(Event::Computing { attempt: 1, test: 0, iteration: 0 }), "");
        assert_eq!(tell(lost("n1")), "");
        assert_eq!(tell(Event::Saved { attempt: 1, test: 0, iteration: 8 }), "");
        assert_eq!(tell(Event::CaughtUp { attempt: 1, test: 0, iteration: 8 }), "");
        assert_eq!(tell(Event::Computing { attempt: 2, test: 0, iteration: 8 }), "n1");
        assert_eq!(tell(lost("n2")), "n1");
        assert_eq!(tell(Event::MemoryRemoved { node: "n1".into(), bytes: 7 }), "");
        // The node was used again, and is lost before a rank has computed on it.
        assert_eq!(tell(Event::Replaced { node: "n2".into(), by: "n1".into() }), "");
        assert_eq!(tell(lost("n1")), "");
        assert_eq!(tell(Event::Computing { attempt: 4, test: 0, iteration: 8 }), "n1 n2");
    }

    /// A node is lost in each of five tests of a sweep. No test comes further than the first.
    #[test]
    fn another_test_is_a_gain() {
        let mut state = RunState::default();
        let mut seq = 0;
        let mut tell = |test: u32, event: &str| {
            let text = format!(r#"{{"seq":{seq},"at_ms":0,"test":{test},"attempt":1,{event}}}"#);
            seq += 1;
            state.apply(&serde_json::from_str(&text).unwrap());
            state.history.faults.iter().map(|fault| fault.advanced).collect::<Vec<bool>>()
        };
        let fault = |at: u64| {
            format!(
                r#""event":"fault","fault":1,"kind":"node-unresponsive","failed_ms":0,"node":null,"position":null,"iteration":{at},"ranks_seen":true,"detail":"""#
            )
        };
        for test in 0..5 {
            tell(test, r#""event":"computing","iteration":0"#);
            tell(test, r#""event":"saved","iteration":8"#);
            assert!(tell(test, &fault(40 - u64::from(test))).into_iter().all(|advanced| advanced));
        }
        // A resumed test makes progress once an iteration or a save is new.
        tell(4, r#""event":"computing","iteration":8"#);
        assert_eq!(tell(4, &fault(36)).last(), Some(&false));
        tell(4, r#""event":"saved","iteration":16"#);
        assert_eq!(tell(4, &fault(36)).last(), Some(&true));
        // A finished test is progress, even if the next test makes none.
        assert_eq!(tell(5, &fault(0)).last(), Some(&true));
        assert_eq!(tell(5, &fault(0)).last(), Some(&false));
        assert_eq!(tell(0, &fault(40)).last(), Some(&false));
    }
}
