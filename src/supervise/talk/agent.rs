//! The agent: the process that acts for the supervisor on each node.
//!
//! `skt-hpl agent` is started over the remote shell and exchanges the messages of `wire` on its standard streams. `relay` decides
//! how to handle each message, and this file acts on the node.
//!
//! If the parent sends nothing any more, the node may have been cut off, and the run continues on other nodes. Then the agent
//! ends the run's processes on its node, unless the ranks make progress (`orphaned`). When its input closes, the agent ends. But
//! while the run has processes on the node, it stays and watches them: on a node that is cut off, sshd may close the connection
//! (ClientAliveInterval). An agent that is started later for the same run and node replaces the agent, so that an old agent
//! without a parent cannot end a healthy run.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::statfs::{Statfs, statfs};
use serde::de::DeserializeOwned;

use super::branch::{Heard, MOST_TIMES};
use super::link::{Links, room_for};
use super::orphaned::Orphaned;
use super::processes::{self, Watched};
use super::progress::{Heads, Progress};
use super::relay::{Hands, LOOKS, Relay};
use super::wire::{
    Attend, Beat, Facts, Free, FromAgent, Shm, Storage, WIRE_VERSION, Which, to_line,
};
use crate::base::clock::unix_ms;
use crate::base::cores;
use crate::base::host_name;
use crate::base::timed_command::ask;
use crate::base::topology::{Topology, read_list};
use crate::kernels::arithmetic::Arithmetic;
use crate::shm::{MemoryStore, Store, hugetlbfs, room};
use crate::supervise::machine::Connections;
use crate::supervise::remember::io_thread::Answer;
use crate::supervise::signals::pass_over_warnings;
use crate::supervise::start::launcher::{OPEN_MPI_RANK_VAR, RANK_VARS};

/// Asks a rank to save at the next boundary and stop.
pub const HALT_NOW: Signal = Signal::SIGUSR1;
/// Asks a rank to stop after its next regular save.
pub const HALT_AFTER_SAVE: Signal = Signal::SIGUSR2;

/// Interval of searches through all processes of the node, once the ranks are known. These searches are costly.
const CENSUS_EVERY: Duration = Duration::from_secs(10);
/// Interval of these searches while no known process has reported progress, which some programs never do.
const CENSUS_EVERY_AT_START: Duration = Duration::from_secs(1);
/// Interval of these searches while no process of the run is known.
const CENSUS_EVERY_AT_FIRST: Duration = Duration::from_millis(500);
/// Time limit for loading a BLAS or reading a checkpoint directory. The caller of this agent waits longer for its first message.
const LOOK_MOST: Duration = Duration::from_secs(5);
/// Interval at which the agent checks whether processes have been ended.
const END_LOOK: Duration = Duration::from_millis(10);
/// Time that killed processes may take to release memory that is to be removed. Processes with hundreds of gigabytes of private
/// memory release the private memory first.
pub const LET_GO_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which a process without a handler for the stop signal is spared. It counts from the request, or from the
/// moment at which a later process is first seen. A rank that is still starting would die of the signal.
const DEAF_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of the connection to the parent. Connections to children count from 1.
const UP: u64 = 0;

#[derive(Default)]
struct Agent {
    source: Heads,
    run_id: String,
    /// Name of the run's persistent shared memory, if given.
    job: Option<String>,
    /// Processes of the run by pid.
    known: BTreeMap<u32, Watched>,
    /// Paths that the known processes leave in /tmp and /dev/shm if they are killed.
    leaves: BTreeSet<PathBuf>,
    /// Number of known processes that are stopped.
    stopped: usize,
    census_at: Option<Instant>,
    /// Progress of the ranks at the last check.
    before: Vec<Progress>,
    /// Time at which the run was first asked to stop.
    halted: Option<Instant>,
    ending: Option<Ending>,
    orphaned: Orphaned,
}

/// A request to end processes. Another thread carries it out. Otherwise the agent would not serve the nodes that it calls, and
/// these nodes would become unresponsive.
struct Ending {
    id: u64,
    /// Number of processes that were ended.
    count: Answer<usize>,
}

/// Facts about its node that an agent is asked to find out.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Name of the BLAS that the ranks will load.
    pub blas: Option<String>,
    /// Checkpoint directory, if there is one.
    pub storage: Option<Dir>,
    /// List of the processors that are reserved for helpers.
    pub helper_cores: Option<String>,
    /// Whether the ranks compute on devices.
    pub devices: bool,
}

/// A checkpoint directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dir {
    pub path: PathBuf,
    /// Job whose checkpoints are in the directory.
    pub job: String,
    /// Whether each node has its own directory.
    pub own: bool,
}

impl Dir {
    /// Returns the agent's arguments for the job and for `own`. They follow the argument with the path.
    fn words(&self) -> Vec<String> {
        let own = self.own.then(|| "--own".to_owned());
        ["--job".to_owned(), self.job.clone()].into_iter().chain(own).collect()
    }
}

impl Asked {
    /// Returns the arguments by which an agent is asked for these facts.
    pub fn words(&self) -> Vec<String> {
        let blas = self.blas.iter().flat_map(|name| ["--blas".to_owned(), name.clone()]);
        let storage = self.storage.iter().flat_map(|dir| {
            let path = dir.path.to_string_lossy().into_owned();
            ["--level2".to_owned(), path].into_iter().chain(dir.words())
        });
        let cores = self.helper_cores.iter();
        let cores = cores.flat_map(|list| ["--helper-cores".to_owned(), list.clone()]);
        let devices = self.devices.then(|| "--devices".to_owned());
        blas.chain(storage).chain(cores).chain(devices).collect()
    }
}

/// Runs the agent until its input closes and the run has no process on the node. No program uses the exit status.
pub fn run(asked: &Asked) -> io::Result<()> {
    let mut agent = Agent::default();
    pass_over_warnings()?;
    let began = Instant::now();
    let now_ms = || began.elapsed().as_millis() as u64;
    let mut relay = Relay::new(now_ms());
    let mut links = Links::default();
    let own = |stream: BorrowedFd| stream.try_clone_to_owned();
    links.adopt(UP, own(io::stdin().as_fd())?, own(io::stdout().as_fd())?);
    // A login script may have printed text without a newline, such as a terminal's title.
    relay.up.push(format!("\n{}", to_line(&FromAgent::Hello(Box::new(facts(asked))))));
    loop {
        for text in relay.up.drain(..) {
            super::branch::Lines::send(&mut links, UP, &text);
        }
        let timeout = Duration::from_millis(relay.timeout_ms());
        let ended = agent.poll(&mut links, timeout)?;
        if !ended.is_empty() {
            for pid in &ended {
                // The earlier progress of the rank no longer shows that the process runs.
                agent.known.entry(*pid).and_modify(|process| process.end = None);
            }
            // The end of a process is reported at once, without a request.
            relay.beats(agent.beat(None));
            for pid in ended {
                agent.known.remove(&pid);
            }
        }
        let done = agent.ending.as_ref().and_then(|ending| Some((ending.id, ending.count.here()?)));
        if let Some((id, ended)) = done {
            (agent.ending, agent.census_at) = (None, None);
            agent.known.clear();
            relay.ended(id, ended, &mut agent);
        }
        // Messages from the parent are handled first, so that nodes that the parent has taken away are not called again.
        let mut below = Vec::new();
        while let Some((line, heard)) = links.heard() {
            match (line, heard) {
                (UP, Heard::Text(text)) => {
                    relay.from_above(&text, now_ms(), &mut agent, &mut links);
                }
                (UP, Heard::Closed(_)) => {
                    // This ends the connections to the agents below, which then also have no parent.
                    drop(links);
                    let (unheard, limit) = relay.unheard(now_ms());
                    agent.goes_on_alone(unheard, limit);
                    return Ok(());
                }
                other => below.push(other),
            }
        }
        for (line, heard) in below {
            relay.from_below(line, heard, now_ms(), &mut links);
        }
        if !relay.tick(now_ms(), &mut agent, &mut links) {
            return Ok(());
        }
    }
}

impl Hands for Agent {
    fn attend(&mut self, attend: &Attend) {
        self.run_id = attend.run_id.clone();
        self.source = Heads::new(attend.job.clone());
        self.job = attend.job.clone();
        // If there are too few file descriptors, the connections that cannot be made report it.
        let _ = room_for(MOST_TIMES * attend.fanout);
        processes::end_predecessors(&attend.run_id, &attend.node);
    }

    fn beat(&mut self, seq: Option<u64>) -> Beat {
        let mut ranks = self.source.sample();
        self.orphaned.sees(Instant::now(), &ranks);
        self.census(&ranks);
        let (held_bytes, held_positions) = self.source.held();
        ranks.retain(|rank| rank.pid != 0);
        for rank in &mut ranks {
            // If the pid belongs to no process of this run, the pid was reused, or the memory belongs to another run.
            rank.state = self.known.get(&rank.pid).map_or('X', |process| process.state);
        }
        Beat {
            seq,
            round_trip_ms: None,
            processes: self.known.len(),
            stopped: self.stopped,
            ranks,
            free: free(),
            held_bytes,
            held_positions,
        }
    }

    fn end(&mut self, id: u64, clean: bool) {
        // An earlier request that is still being carried out ends the same processes, so only the last request is answered.
        if let Some(ending) = &mut self.ending {
            ending.id = id;
            if !clean {
                return;
            }
        }
        let (run_id, job) = (self.run_id.clone(), self.job.clone());
        let before = self.ending.take();
        let leaves = std::mem::take(&mut self.leaves);
        let count = Answer::in_background(move || {
            let before = before.and_then(|before| before.count.wait()).unwrap_or_default();
            let ended = processes::end_run(&run_id);
            // Processes that could not be ended may still use some of these files.
            if processes::of_run(&run_id).is_empty() {
                processes::remove_left(leaves);
            }
            if clean && let Some(job) = &job {
                // This removes memory in all kinds of stores. Memory in use stays. The processes that were ended may still be
                // releasing their private memory.
                let _ = MemoryStore::new(Store::Posix, job)
                    .and_then(|memory_store| memory_store.clean_within(LET_GO_TIMEOUT));
            }
            before + ended
        });
        self.ending = Some(Ending { id, count });
    }

    fn end_rank(&mut self, which: Which, below: u32) {
        for pid in processes::of_run(&self.run_id) {
            let Some(environ) = processes::environ(pid) else { continue };
            let is_meant = match which {
                Which::Process(number) => pid == number,
                Which::Launched(rank) => {
                    let number = rank.to_string();
                    processes::variable(&environ, OPEN_MPI_RANK_VAR) == Some(number.as_bytes())
                }
            };
            let is_before = processes::attempt_of(&environ).is_some_and(|attempt| attempt < below);
            if is_meant && is_before && processes::is_of(&environ, &self.run_id) {
                processes::send(pid, Signal::SIGKILL);
            }
        }
    }

    /// Signals the ranks. Ranks are found by their shared memory or, if no rank has any, by the variables that the launcher sets
    /// for ranks.
    fn halt(&mut self, now: bool) {
        let signal = if now { HALT_NOW } else { HALT_AFTER_SAVE };
        self.census_at = None;
        let sample = self.source.sample();
        self.census(&sample);
        let mut ranks: Vec<u32> =
            sample.iter().map(|p| p.pid).filter(|pid| self.known.contains_key(pid)).collect();
        if ranks.is_empty() {
            ranks = self.known.keys().copied().filter(|pid| has_rank(*pid)).collect();
        }
        let asked = *self.halted.get_or_insert_with(Instant::now);
        let starts = |pid: u32| {
            let seen = self.known.get(&pid).map_or(asked, |process| process.known_since);
            seen.max(asked).elapsed() <= DEAF_TIMEOUT
        };
        for pid in ranks {
            let catches = processes::catches(pid, signal) || !starts(pid);
            if catches && processes::belongs(pid, &self.run_id) {
                processes::send(pid, signal);
            }
        }
    }

    fn orphaned(&mut self, unheard: Duration, limit: Duration) -> bool {
        let now = Instant::now();
        self.orphaned.sees(now, &self.source.sample());
        let over = self.orphaned.is_over(now, unheard, limit);
        if over && !self.run_id.is_empty() {
            processes::end_run(&self.run_id);
        }
        over
    }
}

impl Agent {
    /// Waits until a connection has news or a process of the run has ended. Returns the processes that have ended.
    fn poll(&self, links: &mut Links, timeout: Duration) -> io::Result<Vec<u32>> {
        // The thread that ends processes does not wake this wait when it is done.
        let timeout = if self.ending.is_some() { timeout.min(END_LOOK) } else { timeout };
        let ends = self.known.iter().filter_map(|(pid, known)| Some((*pid, known.end.as_ref()?)));
        let (pids, fds): (Vec<u32>, Vec<BorrowedFd>) =
            ends.map(|(pid, end)| (pid, end.as_fd())).unzip();
        let ready = links.poll(&fds, timeout)?;
        Ok(pids.into_iter().zip(ready).filter_map(|(pid, ready)| ready.then_some(pid)).collect())
    }

    /// Watches the run's processes after the connection to the parent has closed. Ends them if they make no progress for too
    /// long. An agent that is started later for the same run and node ends this agent.
    fn goes_on_alone(&mut self, unheard: Duration, limit: Duration) {
        let closed = Instant::now();
        // A request that is still being carried out is finished first.
        if let Some(ending) = self.ending.take() {
            ending.count.wait();
        }
        while !self.run_id.is_empty() && !processes::of_run(&self.run_id).is_empty() {
            let ranks = self.source.sample();
            let now = Instant::now();
            self.orphaned.sees(now, &ranks);
            // If a program reports no progress, it is unknown whether its ranks are stuck, so they are not ended. The connection
            // may have closed because the supervisor died, and the next supervisor takes the job over.
            if !ranks.is_empty() && self.orphaned.is_over(now, unheard + closed.elapsed(), limit) {
                processes::end_run(&self.run_id);
                return;
            }
            std::thread::sleep(limit / LOOKS);
        }
    }

    /// Updates the list of the run's processes. Ranks in `sample`, which have shared memory, are added at once, other processes
    /// at the next search through all processes.
    fn census(&mut self, sample: &[Progress]) {
        if self.run_id.is_empty() {
            return;
        }
        self.stopped = 0;
        // The state of processes whose ranks make progress is not read. With hundreds of ranks this would take most of the time.
        let before = std::mem::replace(&mut self.before, sample.to_vec());
        let gets_on = |(now, before): &(&Progress, &Progress)| now.has_got_on_since(before);
        let pairs = sample.iter().zip(&before).filter(gets_on);
        let moving: HashSet<u32> = pairs.map(|(now, _)| now.pid).collect();
        self.known.retain(|pid, process| {
            let found = moving.contains(pid) && process.gets_on() || process.look();
            self.stopped += usize::from(processes::is_halt(process.state));
            found
        });
        let mut shown = false;
        for progress in sample {
            shown |= self.known.contains_key(&progress.pid);
            if !self.known.contains_key(&progress.pid)
                && processes::belongs(progress.pid, &self.run_id)
            {
                self.known.insert(progress.pid, Watched::new(progress.pid));
                self.leaves.extend(processes::session_of(progress.pid));
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
        let known = |pid| self.known.contains_key(&pid);
        for pid in processes::seek(&self.run_id, known).0 {
            self.leaves.extend(processes::session_of(pid));
            self.known.insert(pid, Watched::new(pid));
        }
        for process in self.known.values_mut() {
            self.leaves.extend(process.shares(process.known_since.elapsed()));
        }
    }
}

/// Returns whether the launcher gave the process a rank.
fn has_rank(pid: u32) -> bool {
    processes::environ(pid).is_some_and(|environ| {
        RANK_VARS.iter().any(|name| processes::variable(&environ, name).is_some())
    })
}

fn shm() -> Shm {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let mut shm = Shm::default();
    if let Ok(fs) = statfs("/dev/shm") {
        (shm.bytes, _) = room_of(&fs);
        #[allow(clippy::unnecessary_cast)] // The type differs between C libraries.
        let kind = fs.filesystem_type().0 as i64;
        shm.is_memory = kind == TMPFS_MAGIC;
    }
    shm.device = fs::metadata("/dev/shm").map_or(0, |m| m.dev());
    shm
}

/// Returns the size of a file system, and its free room.
fn room_of(fs: &Statfs) -> (u64, u64) {
    room::of_mount(fs.blocks(), fs.blocks_available(), fs.block_size() as u64)
}

/// Returns the total memory of the node.
fn memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    room::meminfo_bytes(&text, "MemTotal").unwrap_or(u64::MAX)
}

/// Returns the free memory of this node. The limit of a control group counts as well.
fn free() -> Free {
    Free {
        shm_bytes: statfs("/dev/shm").map_or(0, |fs| room_of(&fs).1),
        memory_bytes: room::available_bytes().unwrap_or(u64::MAX),
        huge_bytes: hugetlbfs::huge_free_bytes(),
        sysv_bytes: room::sysv_free_bytes(),
    }
}

/// Returns whether logind removes shared memory of users who have logged out, or `None` if there is no logind.
fn remove_ipc() -> Option<bool> {
    if !Path::new("/run/systemd/system").exists() {
        return None;
    }
    // A user with lingering enabled never counts as logged out. The environment gives the user's name, because a directory
    // service may hang.
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let user = user.filter(|user| !user.is_empty() && !user.contains('/'));
    let lingers = user.is_some_and(|user| Path::new(LINGER).join(user).exists());
    Some(!lingers && removes_ipc(Path::new("/")))
}

/// Folder in which logind notes the users with lingering enabled.
const LINGER: &str = "/var/lib/systemd/linger";

/// Folders of logind's settings. A file in a later folder replaces a file of the same name in an earlier folder.
const LOGIND: [&str; 4] =
    ["usr/lib/systemd", "usr/local/lib/systemd", "run/systemd", "etc/systemd"];

/// Returns logind's setting RemoveIPC below `root`. Of several lines with the setting, the last counts. Drop-in files, in the
/// order of their names, come after the main file. systemd's default is yes.
fn removes_ipc(root: &Path) -> bool {
    let main = LOGIND.iter().rev().map(|folder| root.join(folder).join("logind.conf"));
    let mut dropped = BTreeMap::new();
    for folder in LOGIND {
        let files = fs::read_dir(root.join(folder).join("logind.conf.d")).into_iter().flatten();
        let files = files.flatten().filter(|file| file.path().extension() == Some("conf".as_ref()));
        dropped.extend(files.map(|file| (file.file_name(), file.path())));
    }
    let files =
        main.into_iter().find(|file| file.exists()).into_iter().chain(dropped.into_values());
    let texts: Vec<String> = files.map(|f| fs::read_to_string(f).unwrap_or_default()).collect();
    let mut lines = texts.iter().flat_map(|text| text.lines()).rev();
    let last = lines.find_map(|line| {
        let (name, value) = line.split_once('=')?;
        if name.trim() == "RemoveIPC" { yes_or_no(value.trim()) } else { None }
    });
    last.unwrap_or(true)
}

/// Returns the value as systemd reads it, or `None` for values that systemd ignores.
fn yes_or_no(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "yes" | "y" | "true" | "t" | "on" => Some(true),
        "0" | "no" | "n" | "false" | "f" | "off" => Some(false),
        _ => None,
    }
}

/// Bytes before the twenty bytes of the build id in an ELF file. The build id is the linker's digest of the program.
const BUILD_ID: [u8; 16] = [4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0];

/// Number of bytes at each end of a program file that are read if the file has a build id.
const ENDS: u64 = 1 << 16;

/// Returns a digest of this program's file. Nodes with different digests run different builds.
pub fn binary_digest() -> String {
    fs::File::open("/proc/self/exe").and_then(|file| digest_of(&file)).unwrap_or_default()
}

/// Returns a digest of a program file. The digest covers the parts by which builds differ: the length, the beginning with the
/// build id, and the end. Thousands of nodes may read the same file from one server at once, so only these parts are read. A
/// file without a build id is read in full.
pub fn digest_of(file: &fs::File) -> io::Result<String> {
    let length = file.metadata()?.len();
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    hasher.update(&length.to_le_bytes());
    let ends = length.min(ENDS);
    let mut chunk = vec![0u8; ends as usize];
    file.read_exact_at(&mut chunk, 0)?;
    hasher.update(&chunk);
    let named = chunk.windows(BUILD_ID.len()).any(|window| window == BUILD_ID);
    let mut at = if named { length - ends } else { ends };
    while at < length {
        let count = file.read_at(&mut chunk, at)?;
        if count == 0 {
            break;
        }
        hasher.update(&chunk[..count]);
        at += count as u64;
    }
    Ok(format!("{:016x}", hasher.digest()))
}

/// Returns an id that changes with every boot of this node.
pub fn boot() -> String {
    // The kernel's boot id is not enough in a container, whose restart only changes the start time of its first process.
    let first = processes::look(1).map_or(0, |(_, started)| started);
    format!("{}-{first}", processes::kernel())
}

/// Has another process of this program examine `what`, and returns its result. Loading or reading it may hang or crash.
fn look<T: DeserializeOwned>(what: &str, words: &[&str]) -> Result<T, String> {
    let own = std::env::current_exe();
    let told = own.and_then(|own| ask(Command::new(own).arg("agent").args(words), LOOK_MOST));
    let why = match told {
        // Libraries that the process has loaded may print other lines before or after the result.
        Ok((status, text)) => match text.lines().find_map(|line| serde_json::from_str(line).ok()) {
            Some(found) => return found,
            None => format!("the check ended with {status}"),
        },
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            format!("that took longer than {} s", LOOK_MOST.as_secs())
        }
        Err(error) => error.to_string(),
    };
    Err(format!("{what} cannot be examined: {why}"))
}

/// Returns the state of a checkpoint directory on this node. Another process reads it, because the file system may hang.
pub fn storage(dir: &Dir) -> Result<Storage, String> {
    let (path, more) = (dir.path.to_string_lossy(), dir.words());
    let words = ["--look-at-level2", &path].into_iter().chain(more.iter().map(String::as_str));
    look(&format!("--level2 {path}"), &words.collect::<Vec<&str>>())
}

/// Returns the facts about this node, with those that were asked for.
pub fn facts(asked: &Asked) -> Facts {
    let named = asked.blas.as_ref();
    let named = named.map(|name| look(&format!("--blas {name}"), &["--look-at-blas", name]));
    let storage = asked.storage.as_ref().map(storage);
    let helper_cores = asked.helper_cores.as_ref().and_then(|list| {
        let named = read_list(list).into_iter().collect();
        cannot_have(list, &named, Topology::here(), cores::bound_to())
    });
    let devices = asked.devices.then(|| look("--device cuda", &["--look-at-devices"]));
    Facts {
        wire: WIRE_VERSION,
        version: env!("CARGO_PKG_VERSION").to_string(),
        binary: binary_digest(),
        arithmetic: Arithmetic { named, ..Arithmetic::here() },
        host: host_name(),
        boot: boot(),
        unix_ms: unix_ms(),
        cores: cores::count(),
        memory_bytes: memory_bytes(),
        free: free(),
        shm: shm(),
        remove_ipc: remove_ipc(),
        uid: nix::unistd::getuid().as_raw(),
        storage,
        helper_cores,
        devices,
    }
}

/// Describes why the processors `named` of this node cannot be reserved for helpers. Returns `None` if they can. Ranks may run on
/// the processors `all`.
fn cannot_have(
    list: &str,
    named: &BTreeSet<usize>,
    topology: &Topology,
    all: &BTreeSet<usize>,
) -> Option<String> {
    let lacking: Vec<String> = topology.lacking(named).iter().map(usize::to_string).collect();
    if !lacking.is_empty() {
        let lacking = lacking.join(", ");
        return Some(format!(
            "--helper-cores {list}: there is no processor {lacking}; name other processors"
        ));
    }
    // Ranks cannot use any processor of a core of which a helper has one.
    let left = all - &topology.of_their_cores(named);
    (!all.is_empty() && left.is_empty()).then(|| {
        format!(
            "--helper-cores {list}: nothing would be left to compute with; name fewer processors"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::start::launcher::RUN_ID_VAR;
    use std::io::Write;
    use std::process::Stdio;

    #[test]
    fn helpers_have_processors_that_are_there_and_leave_some() {
        let topology = Topology::even(4, 1);
        let all: BTreeSet<usize> = (0..4).collect();
        let why = |named: &[usize], all: &BTreeSet<usize>| {
            cannot_have("x", &named.iter().copied().collect(), &topology, all)
        };
        assert_eq!(why(&[3], &all), None);
        assert!(why(&[3, 4, 7], &all).unwrap().contains("no processor 4, 7"));
        assert!(why(&[0, 1, 2, 3], &all).unwrap().contains("nothing would be left"));
        // If it is unknown where ranks may run, the ranks check this themselves.
        assert_eq!(why(&[0, 1, 2, 3], &BTreeSet::new()), None);
    }

    /// A launcher may start some of many ranks long after the request.
    #[test]
    fn a_rank_started_after_a_request_is_spared_until_it_listens() {
        let run_id = format!("starts-{}", std::process::id());
        let ways = ["exec sleep 60", "trap : USR1; while :; do read line; done"];
        let mut ranks = ways.map(|way| {
            let mut rank = Command::new("sh");
            rank.args(["-c", way])
                .stdin(Stdio::piped())
                .env(RUN_ID_VAR, &run_id)
                .env(RANK_VARS[0], "0")
                .spawn()
                .unwrap()
        });
        let until = Instant::now() + Duration::from_secs(5);
        while !processes::catches(ranks[1].id(), HALT_NOW) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let long_ago = Instant::now().checked_sub(10 * DEAF_TIMEOUT);
        let mut agent = Agent { run_id, halted: long_ago, ..Agent::default() };
        agent.halt(true);
        std::thread::sleep(Duration::from_millis(50));
        let ended = ranks.each_mut().map(|rank| rank.try_wait().unwrap().is_some());
        for rank in &mut ranks {
            rank.kill().unwrap();
            rank.wait().unwrap();
        }
        assert_eq!(ended, [false, false]);
    }

    /// A process started in the meantime, such as a remote shell, may run for hours. It must not delay the report.
    #[test]
    fn the_end_of_all_is_reported_although_others_start_meanwhile() {
        let run_id = format!("ends-{}", std::process::id());
        let sleep = || {
            let mut command = Command::new("sleep");
            command.arg("60");
            command
        };
        let mut rank = sleep().env(RUN_ID_VAR, &run_id).spawn().unwrap();
        let mut agent = Agent { run_id, ..Agent::default() };
        agent.end(1, false);
        let mut meanwhile = sleep().spawn().unwrap();
        let told = agent.ending.take().unwrap().count.wait_for(Duration::from_secs(10));
        meanwhile.kill().unwrap();
        meanwhile.wait().unwrap();
        assert!(!rank.wait().unwrap().success());
        assert_eq!(told, Some(1));
    }

    #[test]
    fn the_last_word_on_shared_memory_counts() {
        let root = tempfile::tempdir().unwrap();
        let removes = || removes_ipc(root.path());
        let say = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("[Login]\n#RemoveIPC=no\n{text}\n")).unwrap();
        };
        assert!(removes(), "systemd's default");
        for (word, yes) in [("no", false), ("y", true), ("F", false), ("True", true), ("0", false)]
        {
            say("etc/systemd/logind.conf", &format!("RemoveIPC = {word}"));
            assert_eq!(removes(), yes, "{word}");
        }
        say("run/systemd/logind.conf.d/50-site.conf", "RemoveIPC=t");
        assert!(removes(), "a drop-in comes after the main file");
        say("etc/systemd/logind.conf.d/10-site.conf", "RemoveIPC=no");
        assert!(removes(), "drop-ins go by their names");
        say("etc/systemd/logind.conf.d/50-site.conf", "RemoveIPC=off");
        assert!(!removes(), "one of the same name takes its place");
        say("usr/lib/systemd/logind.conf.d/60-site.conf", "RemoveIPC=perhaps");
        say("usr/lib/systemd/logind.conf.d/70-site.txt", "RemoveIPC=yes");
        assert!(!removes(), "systemd ignores such a line");
    }

    #[test]
    fn another_build_has_another_digest_and_few_bytes_tell() {
        let digest = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            digest_of(&file).unwrap()
        };
        let mut plain = vec![7u8; 300_000];
        let mut named = plain.clone();
        named[500..516].copy_from_slice(&BUILD_ID);
        assert_eq!(digest(&plain), digest(&plain));
        // A change of the length, the end or the build id changes the digest.
        let mut longer = named.clone();
        longer.push(0);
        let mut other_end = named.clone();
        other_end[299_999] = 8;
        let mut other_name = named.clone();
        other_name[520] = 8;
        let all = [&named, &longer, &other_end, &other_name].map(|bytes| digest(bytes));
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
        // Without a build id, the middle counts as well.
        let before = digest(&plain);
        plain[150_000] = 8;
        assert_ne!(digest(&plain), before);
        // This program must have a build id, or every node would read the whole file.
        let head = fs::read("/proc/self/exe").unwrap();
        let head = &head[..ENDS as usize];
        assert!(head.windows(BUILD_ID.len()).any(|window| window == BUILD_ID));
    }
}
