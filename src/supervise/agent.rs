//! The agent: one a node, the supervisor's eyes and hands there.
//!
//! `skt-hpl agent` is started over the remote shell and speaks the messages of `wire` on its standard
//! streams. It answers heartbeats, watches the run's processes on its node and ends them when told. It ends
//! itself when its input closes. When the supervisor falls silent without closing, the node has been cut off
//! and the run goes on elsewhere: then it ends the run's processes here too, so that the old copy of
//! a position does not burn cores nobody watches.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::events::unix_ms;
use super::processes;
use super::progress::{Heads, Progress, ProgressSource};
use super::watch::RankSeen;
use super::wire::{Beat, Facts, FromAgent, ToAgent, WIRE_VERSION, from_line, to_line};
use crate::memory::{Depot, Store, depot};

/// Asks a rank to save at the next boundary and stop.
pub const HALT_NOW: Signal = Signal::SIGUSR1;
/// Asks a rank to stop after its next regular save.
pub const HALT_AFTER_SAVE: Signal = Signal::SIGUSR2;

/// Looking through all processes of the node costs; once the ranks are known it is done this seldom.
const CENSUS_EVERY: Duration = Duration::from_secs(10);
/// While the launcher is at work, and no rank has shown up yet.
const CENSUS_EVERY_AT_START: Duration = Duration::from_secs(1);
const CENSUS_EVERY_AT_FIRST: Duration = Duration::from_millis(500);
const END_PATIENCE: Duration = Duration::from_secs(3);
/// A process that does not listen to a request to stop is spared so long: a rank that still starts would die of
/// the signal it is about to listen to.
const DEAF_PATIENCE: Duration = Duration::from_secs(10);

struct Agent<S> {
    source: S,
    run_id: String,
    /// The name of its memory, where it has one of its own.
    job: Option<String>,
    /// Processes of the run by pid; the descriptor becomes readable when the process ends.
    known: BTreeMap<u32, Option<OwnedFd>>,
    /// How many of these are stopped.
    stopped: usize,
    census_at: Option<Instant>,
    /// When the run was first asked to stop.
    halted: Option<Instant>,
}

/// Runs until the input closes. The exit status is for the remote shell and means nothing.
pub fn run() -> io::Result<()> {
    let mut agent = Agent {
        source: Heads::new(None),
        run_id: String::new(),
        job: None,
        known: BTreeMap::new(),
        stopped: 0,
        census_at: None,
        halted: None,
    };
    say(&FromAgent::Hello(Box::new(facts())))?;
    let stdin = io::stdin();
    let mut pending = Vec::new();
    let mut lonely = Duration::from_secs(60);
    let mut heard = Instant::now();
    loop {
        let ended = {
            let mut fds = vec![PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
            let watched: Vec<u32> = agent
                .known
                .iter()
                .filter_map(|(pid, fd)| {
                    fds.push(PollFd::new(fd.as_ref()?.as_fd(), PollFlags::POLLIN));
                    Some(*pid)
                })
                .collect();
            let left = lonely.saturating_sub(heard.elapsed());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut fds, timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let ready = |fd: &PollFd| fd.revents().is_some_and(|r| !r.is_empty());
            let ended: Vec<u32> = watched
                .into_iter()
                .zip(&fds[1..])
                .filter(|(_, fd)| ready(fd))
                .map(|(pid, _)| pid)
                .collect();
            if ready(&fds[0]) {
                let mut chunk = [0u8; 4096];
                // Straight from the descriptor: what a buffered reader holds back, poll cannot see.
                match nix::unistd::read(stdin.as_fd(), &mut chunk) {
                    Ok(0) => return Ok(()),
                    Ok(count) => pending.extend_from_slice(&chunk[..count]),
                    Err(nix::errno::Errno::EINTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
                heard = Instant::now();
            }
            ended
        };
        if heard.elapsed() >= lonely {
            if !agent.run_id.is_empty() {
                processes::end_run(&agent.run_id, None, END_PATIENCE);
            }
            return Ok(());
        }
        if !ended.is_empty() {
            // A rank's end is news that does not wait to be asked for.
            let beat = agent.beat(None);
            say(&FromAgent::Beat(beat))?;
            for pid in ended {
                agent.known.remove(&pid);
            }
        }
        while let Some(end) = pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let Some(message) = from_line::<ToAgent>(&String::from_utf8_lossy(&line)) else {
                continue;
            };
            match message {
                ToAgent::Attend { run_id, job, lonely_ms } => {
                    agent.run_id = run_id;
                    agent.source = Heads::new(job.clone());
                    agent.job = job;
                    lonely = Duration::from_millis(lonely_ms);
                }
                ToAgent::Beat { seq } => {
                    let beat = agent.beat(Some(seq));
                    say(&FromAgent::Beat(beat))?;
                }
                ToAgent::End { id, below, clean } => {
                    let (ended, left) = processes::end_run(&agent.run_id, below, END_PATIENCE);
                    if clean && let Some(job) = &agent.job {
                        // Whatever its store; what somebody is using stays.
                        let _ = Depot::new(Store::Posix, job).and_then(|depot| depot.clean());
                    }
                    agent.known.clear();
                    agent.census_at = None;
                    let beat = agent.beat(None);
                    say(&FromAgent::Ended { id, ended, left, beat })?;
                }
                ToAgent::Halt { now } => {
                    let told = agent.halt(if now { HALT_NOW } else { HALT_AFTER_SAVE });
                    say(&FromAgent::Halting { told })?;
                }
            }
        }
    }
}

fn say(message: &FromAgent) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(to_line(message).as_bytes())?;
    out.flush()
}

impl<S: ProgressSource> Agent<S> {
    fn beat(&mut self, seq: Option<u64>) -> Beat {
        let sample = self.source.sample();
        self.census(&sample);
        let (held_bytes, held_positions) = self.source.held();
        let ranks: Vec<RankSeen> = sample
            .into_iter()
            .filter(|p| p.pid != 0)
            .map(|progress| {
                // A pid that is not of this run has been recycled, or the memory is another run's.
                let state = match processes::look(progress.pid) {
                    Some((state, _)) if self.known.contains_key(&progress.pid) => state,
                    _ => 'X',
                };
                RankSeen { progress, state }
            })
            .collect();
        Beat {
            seq,
            processes: self.known.len(),
            stopped: self.stopped,
            ranks,
            shm_free_bytes: shm().free,
            memory_free_bytes: memory().1,
            held_bytes,
            held_positions,
        }
    }

    /// Brings the list of the run's processes up to date: ranks that show in memory at once, others at the
    /// next look through all.
    fn census(&mut self, sample: &[Progress]) {
        if self.run_id.is_empty() {
            return;
        }
        self.stopped = 0;
        self.known.retain(|pid, _| {
            let found = processes::look(*pid);
            self.stopped += usize::from(matches!(found, Some(('T' | 't', _))));
            found.is_some()
        });
        let mut shown = false;
        for progress in sample {
            shown |= self.known.contains_key(&progress.pid);
            if !self.known.contains_key(&progress.pid)
                && processes::belongs(progress.pid, &self.run_id, None)
            {
                self.known.insert(progress.pid, watch_process(progress.pid));
            }
        }
        let every = match (self.known.is_empty(), shown) {
            (true, _) => CENSUS_EVERY_AT_FIRST,
            (false, false) => CENSUS_EVERY_AT_START,
            (false, true) => CENSUS_EVERY,
        };
        if self.census_at.is_some_and(|at| at.elapsed() < every) {
            return;
        }
        self.census_at = Some(Instant::now());
        for pid in processes::of_run(&self.run_id, None) {
            self.known.entry(pid).or_insert_with(|| watch_process(pid));
        }
    }

    /// Signals the ranks: by their memory, or, where none has memory, by the launcher's marks.
    fn halt(&mut self, signal: Signal) -> usize {
        self.census_at = None;
        let sample = self.source.sample();
        self.census(&sample);
        let mut ranks: Vec<u32> =
            sample.iter().map(|p| p.pid).filter(|pid| self.known.contains_key(pid)).collect();
        if ranks.is_empty() {
            ranks = self.known.keys().copied().filter(|pid| has_rank(*pid)).collect();
        }
        let deaf_too = self.halted.get_or_insert_with(Instant::now).elapsed() > DEAF_PATIENCE;
        ranks
            .into_iter()
            .filter(|pid| deaf_too || processes::catches(*pid, signal))
            .filter(|pid| kill(Pid::from_raw(*pid as i32), signal).is_ok())
            .count()
    }
}

/// Whether the launcher gave the process a rank.
fn has_rank(pid: u32) -> bool {
    const MARKS: [&[u8]; 4] =
        [b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=", b"PMIX_RANK=", b"SLURM_PROCID="];
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|e| e.split(|b| *b == 0).any(|item| MARKS.iter().any(|m| item.starts_with(m))))
}

/// A descriptor that becomes readable when the process ends; None where the kernel has no such thing,
/// and then the next heartbeat tells.
fn watch_process(pid: u32) -> Option<OwnedFd> {
    // SAFETY: a plain system call; it gives a new descriptor that nobody else owns, or an error.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as i32))
    }
}

struct Shm {
    total: u64,
    free: u64,
    is_memory: bool,
    device: u64,
}

fn shm() -> Shm {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let mut shm = Shm { total: 0, free: 0, is_memory: false, device: 0 };
    if let Ok(fs) = nix::sys::statfs::statfs("/dev/shm") {
        let block = fs.block_size() as u64;
        shm.total = fs.blocks() * block;
        shm.free = fs.blocks_available() * block;
        #[allow(clippy::unnecessary_cast)] // The type differs between C libraries.
        let kind = fs.filesystem_type().0 as i64;
        shm.is_memory = kind == TMPFS_MAGIC;
    }
    shm.device = fs::metadata("/dev/shm").map_or(0, |m| m.dev());
    shm
}

/// Total and available memory of the node.
fn memory() -> (u64, u64) {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        text.lines()
            .find_map(|l| {
                l.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
            })
            .map_or(u64::MAX, |kib| kib * 1024)
    };
    (field("MemTotal:"), field("MemAvailable:"))
}

/// What logind does with shared memory of users who have logged out; None where there is no logind.
fn remove_ipc() -> Option<bool> {
    if !std::path::Path::new("/run/systemd/system").exists() {
        return None;
    }
    let mut files = vec!["/etc/systemd/logind.conf".into()];
    for folder in ["/usr/lib/systemd/logind.conf.d", "/etc/systemd/logind.conf.d"] {
        let mut more: Vec<_> =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
        more.sort();
        files.extend(more);
    }
    // systemd's own default is yes; the last word counts.
    let mut removes = true;
    for file in files {
        for line in fs::read_to_string(file).unwrap_or_default().lines() {
            if let Some(value) = line.trim().strip_prefix("RemoveIPC=") {
                removes = matches!(value.trim(), "yes" | "true" | "1" | "on");
            }
        }
    }
    Some(removes)
}

/// Digest of this program's file: two nodes with different ones would not compute the same.
pub fn binary_digest() -> String {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    let mut chunk = vec![0u8; 1 << 16];
    if let Ok(mut file) = fs::File::open("/proc/self/exe") {
        while let Ok(count @ 1..) = file.read(&mut chunk) {
            hasher.update(&chunk[..count]);
        }
    }
    format!("{:016x}", hasher.digest())
}

/// What this node is like.
pub fn facts() -> Facts {
    let shm = shm();
    let (memory_bytes, memory_free_bytes) = memory();
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // In a container the kernel's boot says nothing; there it is the first process that was started anew.
    let first = processes::look(1).map_or(0, |(_, started)| started);
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident_pages: u64 =
        statm.split_whitespace().nth(1).and_then(|p| p.parse().ok()).unwrap_or(0);
    let host = nix::unistd::gethostname().unwrap_or_default();
    Facts {
        wire: WIRE_VERSION,
        version: env!("CARGO_PKG_VERSION").to_string(),
        binary: binary_digest(),
        host: host.to_string_lossy().into_owned(),
        boot: format!("{}-{first}", boot_id.trim()),
        unix_ms: unix_ms(),
        cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
        memory_bytes,
        memory_free_bytes,
        shm_bytes: shm.total,
        shm_free_bytes: shm.free,
        shm_is_memory: shm.is_memory,
        shm_device: shm.device,
        huge_free_bytes: depot::huge_free_bytes(),
        remove_ipc: remove_ipc(),
        uid: nix::unistd::getuid().as_raw(),
        agent_resident_bytes: resident_pages * 4096,
    }
}
