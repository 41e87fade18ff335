//! Processes of a run on this node. They are found by run id, never by name.
//!
//! The launcher gives the variable `SKT_RUN_ID` to every process that it starts. Every process with this variable belongs to the
//! run: ranks, the user's wrapper scripts, the launcher's own daemon. Another job of the same program on the same node is never
//! affected.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::base::{host_name, new_thread};
use crate::shm::stat::Stat;
use crate::supervise::machine::simulated;
use crate::supervise::remember::events::ProcessId;
use crate::supervise::start::launcher::{ATTEMPT_VAR, RUN_ID_VAR};

/// Returns the state letter and start time of a process, or `None` if the process does not exist.
pub fn look(pid: u32) -> Option<(char, u64)> {
    let stat = Stat::of(pid)?;
    Some((stat.state()?, stat.started()?))
}

/// Returns the boot id of the running kernel, or the host's name if the kernel has no id. In containers and tests several nodes
/// may share a kernel.
pub fn kernel() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    match text.trim() {
        "" => host_name(),
        start => start.to_owned(),
    }
}

/// Returns whether this process still runs. Another process with the same pid does not count.
pub fn is_alive(id: ProcessId) -> bool {
    if let Some(machine) = simulated() {
        return machine.is_alive(id);
    }
    look(id.pid).is_some_and(|(state, started)| started == id.started && state != 'Z')
}

/// Returns whether a process handles a signal. A process without a handler would die of the signal.
pub fn catches(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal as i32 - 1) & 1 == 1)
}

/// Returns the value of the variable `name` in the environment of a process.
pub fn variable<'a>(environ: &'a [u8], name: &str) -> Option<&'a [u8]> {
    environ
        .split(|b| *b == 0)
        .find_map(|item| item.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// Returns whether a process belongs to the run.
pub fn belongs(pid: u32, run_id: &str) -> bool {
    environ(pid).is_some_and(|environ| is_of(&environ, run_id))
}

/// Returns the result of [`belongs`], or `None` if it is not known yet. While a process executes another program, its environment
/// cannot be read. For some microseconds of an exec, the kernel still shows the environment of the parent: a later look corrects
/// the result.
fn is_known_to_belong(pid: u32, run_id: &str) -> Option<bool> {
    let variables = environ(pid).unwrap_or_default();
    if !variables.is_empty() {
        return Some(is_of(&variables, run_id));
    }
    let Some(stat) = Stat::of(pid) else { return Some(false) };
    // A process that has ended has no program file, nor has a thread of the kernel.
    let becomes = !stat.has_variables() && fs::read_link(format!("/proc/{pid}/exe")).is_ok();
    // The process may have executed the program between the two checks.
    (!becomes).then(|| belongs(pid, run_id))
}

/// Returns the environment with which a process was started.
pub fn environ(pid: u32) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/environ")).ok()
}

/// Returns whether a process with this environment belongs to the run.
pub fn is_of(environ: &[u8], run_id: &str) -> bool {
    variable(environ, RUN_ID_VAR) == Some(run_id.as_bytes())
}

/// Returns the number of the attempt to which a process with this environment belongs.
pub fn attempt_of(environ: &[u8]) -> Option<u32> {
    std::str::from_utf8(variable(environ, ATTEMPT_VAR)?).ok()?.parse().ok()
}

/// Returns all processes of a run on this node. This process and its ancestors are left out.
pub fn of_run(run_id: &str) -> BTreeSet<u32> {
    seek(run_id, |_| false).0
}

/// Returns the run's processes that are not `known`. The second value is false if a process may be missing, because it is just
/// executing another program. A process never changes to another run.
pub fn seek(run_id: &str, known: impl Fn(u32) -> bool) -> (BTreeSet<u32>, bool) {
    let me = std::process::id();
    let uid = nix::unistd::getuid().as_raw();
    let mut kin = BTreeSet::from([me]);
    let mut ancestor = me;
    let parent_of = |pid| Stat::of(pid)?.parent();
    while let Some(parent) = parent_of(ancestor).filter(|p| *p > 0 && kin.insert(*p)) {
        ancestor = parent;
    }
    let (mut found, mut all) = (BTreeSet::new(), true);
    let others = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        (!kin.contains(&pid) && !known(pid) && entry.metadata().ok()?.uid() == uid).then_some(pid)
    });
    for pid in others {
        match is_known_to_belong(pid, run_id) {
            Some(true) if look(pid).is_some_and(|(state, _)| state != 'Z') => {
                found.insert(pid);
            }
            Some(_) => {}
            None => all = false,
        }
    }
    (found, all)
}

/// Returns a descriptor of the process, which becomes readable when the process ends. The descriptor stays with that process,
/// even if another process gets the same pid. Kernels before 5.3 return an error.
pub fn descriptor(pid: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: a plain system call, which returns a new descriptor without another owner, or an error.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
        Errno::result(fd).map(|fd| OwnedFd::from_raw_fd(fd as i32))
    }
}

/// Returns whether a state letter means that a signal or a debugger has stopped the process.
pub fn is_halt(state: char) -> bool {
    matches!(state, 'T' | 't')
}

/// A process of the run whose state is checked regularly.
pub struct Watched {
    pid: u32,
    /// Descriptor that becomes readable when the process ends, if the kernel has such descriptors.
    pub end: Option<OwnedFd>,
    pub known_since: Instant,
    /// State letter at the last check.
    pub state: char,
    /// Run time of the process at the last check, if it was read.
    ran: Option<u64>,
    /// Age at which the process is next searched for shared files, or `None` once files were found.
    shares_at: Option<Duration>,
}

/// Least age at which a process without shared files is searched again. After each search the next waits until the age has
/// doubled. The process may still be starting MPI, or never share a file. A search is costly, because the kernel lists hundreds
/// of mappings of the process.
const ASKED_AGAIN: Duration = Duration::from_millis(500);

impl Watched {
    pub fn new(pid: u32) -> Self {
        let (end, known_since) = (descriptor(pid).ok(), Instant::now());
        let shares_at = Some(Duration::ZERO);
        let mut watched = Self { pid, end, known_since, state: 'X', ran: None, shares_at };
        watched.look();
        watched
    }

    /// Checks the state of the process, and returns whether the process exists. A process that is stopped now, but has run since
    /// the last check, counts as running. Tools such as `cpulimit` slow a process down by stopping it again and again; such a
    /// process does not hang.
    pub fn look(&mut self) -> bool {
        let found = Stat::of(self.pid);
        let found = found.and_then(|stat| Some((stat.state()?, stat.ran()?)));
        let Some((state, ran)) = found else {
            self.state = 'X';
            return false;
        };
        let has_run = self.ran.is_some_and(|before| before < ran);
        self.state = if is_halt(state) && has_run { 'R' } else { state };
        self.ran = Some(ran);
        true
    }

    /// Notes that the rank has made progress since the last check, so the process runs. Its run time is not read. Returns false
    /// if the kernel has no descriptor that shows the process's end, so that the caller must call [`Self::look`].
    pub fn gets_on(&mut self) -> bool {
        if self.end.is_some() {
            (self.state, self.ran) = ('R', None);
        }
        self.end.is_some()
    }

    /// Returns the files that the process shares on this node, if they are not known and a search is due at this `age`. MPI
    /// creates a process's own files before it opens those of other processes. So if any files are found, the process's own are
    /// among them.
    pub fn shares(&mut self, age: Duration) -> Vec<PathBuf> {
        if self.shares_at.is_none_or(|at| age < at) {
            return Vec::new();
        }
        let found = segments_of(self.pid);
        self.shares_at = found.is_empty().then(|| ASKED_AGAIN.max(2 * age));
        found
    }
}

/// Signals a process, and returns whether the signal was sent. The caller has just checked that `pid` is the intended process. A
/// pid is given to another process only after all other pids, so not in the moment between check and signal.
pub fn send(pid: u32, signal: Signal) -> bool {
    kill(Pid::from_raw(pid as i32), signal).is_ok()
}

/// Returns the folder in /tmp, of some megabytes, that Open MPI's processes of a job share on this node. Folders that belong to
/// Slurm are left out.
pub fn session_of(pid: u32) -> Option<PathBuf> {
    let environ = environ(pid)?;
    let path = Path::new(OsStr::from_bytes(variable(&environ, "PMIX_SERVER_TMPDIR")?));
    let of_open_mpi =
        |part| matches!(part, Component::Normal(name) if name.as_bytes().starts_with(b"ompi."));
    let plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
    (plain && path.components().any(of_open_mpi)).then(|| path.to_owned())
}

/// Prefixes of the names of Open MPI's shared files on a node, in versions 4 and 5.
const SEGMENTS: [&str; 2] = ["/dev/shm/vader_segment.", "/dev/shm/sm_segment."];

/// Returns Open MPI's files in /dev/shm for a process. These are some megabytes, which stay if the process is killed.
pub fn segments_of(pid: u32) -> Vec<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let path = |line: &str| line.split_ascii_whitespace().nth(5).map(str::to_owned);
    let paths = maps.lines().filter_map(path);
    let mut found: Vec<PathBuf> = paths
        .filter(|path| SEGMENTS.iter().any(|begin| path.starts_with(begin)))
        .map(PathBuf::from)
        .collect();
    found.dedup();
    found
}

/// Returns the paths that a process leaves in /tmp and /dev/shm if it is killed now. mpirun of Open MPI 5 has no variable with
/// its folder, but names the folder after its pid. A later mpirun with the same pid has a folder of the same name, so `pid` must
/// still exist.
fn left_by(pid: u32) -> Vec<PathBuf> {
    let folder = session_of(pid).or_else(|| {
        let environ = environ(pid)?;
        let folder = variable(&environ, "TMPDIR").unwrap_or(b"/tmp");
        let folder = Path::new(OsStr::from_bytes(folder));
        folder.is_absolute().then(|| folder.join(format!("ompi.{pid}")))
    });
    folder.into_iter().chain(segments_of(pid)).collect()
}

/// Returns the paths that the processes of a run on this node leave if they are killed now.
pub fn left_by_run(run_id: &str) -> BTreeSet<PathBuf> {
    if simulated().is_some() {
        return BTreeSet::new();
    }
    of_run(run_id).into_iter().flat_map(left_by).collect()
}

/// Removes the files that a killed launcher and its processes could not remove. This runs on another thread, because /tmp may
/// hang.
pub fn remove_left(left: BTreeSet<PathBuf>) {
    if left.is_empty() {
        return;
    }
    // If no thread can be started, the files stay.
    let _ = new_thread::start("removes", move || {
        let uid = nix::unistd::geteuid().as_raw();
        for path in left {
            let _ = match fs::symlink_metadata(&path) {
                Ok(meta) if meta.uid() != uid => Ok(()),
                Ok(meta) if meta.is_dir() => fs::remove_dir_all(&path),
                Ok(meta) if meta.is_file() => fs::remove_file(&path),
                _ => Ok(()),
            };
        }
    });
}

/// Time limit for ending the processes of a run.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// Ends all processes of a run on this node, and returns their number. Their files in /tmp and /dev/shm, which would otherwise
/// accumulate with every attempt, are removed a moment later.
///
/// The signal is SIGKILL, not SIGTERM. A rank's persistent shared memory is consistent at every moment by design. A handler could
/// wait for a dead rank and delay the restart.
pub fn end_run(run_id: &str) -> usize {
    if let Some(machine) = simulated() {
        return machine.end_run(run_id);
    }
    let deadline = Instant::now() + END_TIMEOUT;
    let mut ended = BTreeSet::new();
    let mut leave = BTreeSet::new();
    loop {
        // The search is repeated, because a launcher may start processes in the meantime.
        let (left, all) = seek(run_id, |_| false);
        if left.is_empty() && all || Instant::now() > deadline {
            remove_left(leave);
            return ended.len();
        }
        for pid in left {
            leave.extend(left_by(pid));
            // The process may have ended by itself in between.
            if belongs(pid, run_id) && send(pid, Signal::SIGKILL) {
                ended.insert(pid);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends agents that were started before this one for the same run and node. No parent is connected to them any more.
pub fn end_predecessors(run_id: &str, node: &str) {
    let me = std::process::id();
    let born = |pid: u32| look(pid).map_or(u64::MAX, |(_, started)| started);
    let mine = (born(me), me);
    let marks = ["--run", run_id, "--node", node];
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(pid) = pid.filter(|pid| *pid != me) else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|b| *b == 0).filter(|w| !w.is_empty()).collect();
        // The marks must be separate last words of the command line. A remote shell that starts an agent on another node has them
        // in a single word.
        let is_agent = words.len() >= marks.len() + 2
            && words[1] == b"agent"
            && words[words.len() - marks.len()..]
                .iter()
                .zip(marks)
                .all(|(w, m)| *w == m.as_bytes());
        if is_agent && (born(pid), pid) < mine {
            // The process may have ended by itself in between, or belong to another user.
            send(pid, Signal::SIGKILL);
        }
    }
}

#[cfg(test)]
pub(crate) use tests::script;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::process::{Child, Command};

    /// Files that ranks share stay in memory if all ranks are killed and the files are not removed.
    #[test]
    fn shared_files_of_open_mpi_are_found_and_removed() {
        let path = PathBuf::from(format!("{}test.{}", SEGMENTS[0], std::process::id()));
        fs::write(&path, [1; 4096]).unwrap();
        let file = fs::File::open(&path).unwrap();
        let (any, of) = (std::ptr::null_mut(), file.as_raw_fd());
        let mut watched = Watched::new(std::process::id());
        let mut shares = |ms| watched.shares(Duration::from_millis(ms));
        assert!(shares(400).is_empty());
        // SAFETY: a new mapping, which this test does not read.
        let mapped = unsafe { libc::mmap(any, 4096, libc::PROT_READ, libc::MAP_SHARED, of, 0) };
        assert_ne!(mapped, libc::MAP_FAILED);
        assert_eq!(segments_of(std::process::id()), std::slice::from_ref(&path));
        // The process is searched again at twice the age, and no more once files were found.
        let told = [799, 800, 900, 100_000].map(|ms| shares(ms).len());
        assert_eq!(told, [0, 1, 0, 0]);
        // SAFETY: the address and length of the mapping above.
        assert_eq!(unsafe { libc::munmap(mapped, 4096) }, 0);
        assert!(segments_of(std::process::id()).is_empty());
        remove_left(BTreeSet::from([path.clone()]));
        let until = Instant::now() + Duration::from_secs(10);
        while path.exists() {
            assert!(Instant::now() < until, "it is still there");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A process that is stopped most of the time, for example by `cpulimit`, does not count as stopped.
    #[test]
    fn a_process_that_ran_between_two_looks_is_not_halted() {
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let say = |signal| kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let halt = || {
            say(Signal::SIGSTOP);
            let until = Instant::now() + Duration::from_secs(5);
            while look(child.id()).unwrap().0 != 'T' {
                assert!(Instant::now() < until, "it is not halted");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let ran = || Stat::of(child.id()).unwrap().ran().unwrap();
        let run_a_little = || {
            let before = ran();
            say(Signal::SIGCONT);
            while ran() == before {
                std::thread::sleep(Duration::from_millis(1));
            }
            halt();
        };
        halt();
        let mut watched = Watched::new(child.id());
        assert!(is_halt(watched.state), "nothing is known of it before");
        for _ in 0..3 {
            run_a_little();
            assert!(watched.look());
            assert_eq!((watched.state, is_halt(watched.state)), ('R', false));
        }
        assert!(watched.look());
        assert_eq!((watched.state, is_halt(watched.state)), ('T', true));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!watched.look());
        assert_eq!(watched.state, 'X');
    }

    /// A process that has made progress runs. Once it has ended, its earlier progress does not count.
    #[test]
    fn a_rank_with_progress_need_not_be_looked_at_until_it_ends() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let mut watched = Watched::new(child.id());
        assert!(watched.gets_on());
        assert_eq!(watched.state, 'R');
        kill(Pid::from_raw(child.id() as i32), Signal::SIGSTOP).unwrap();
        let until = Instant::now() + Duration::from_secs(5);
        while look(child.id()).unwrap().0 != 'T' {
            assert!(Instant::now() < until, "it is not halted");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(watched.look() && is_halt(watched.state), "since when it did nothing");
        child.kill().unwrap();
        child.wait().unwrap();
        watched.end = None;
        assert!(!watched.gets_on() && !watched.look());
        assert_eq!(watched.state, 'X');
    }

    fn sleeper(run_id: &str, attempt: &str) -> Child {
        Command::new("sleep")
            .arg("60")
            .env(RUN_ID_VAR, run_id)
            .env(ATTEMPT_VAR, attempt)
            .spawn()
            .unwrap()
    }

    #[test]
    fn a_run_is_ended_and_no_other() {
        let run = format!("test-{}", std::process::id());
        let other = format!("{run}0");
        let mut ours = [sleeper(&run, "1"), sleeper(&run, "2")];
        let mut theirs = sleeper(&other, "1");
        // A child has its environment only once it has called exec.
        let until = Instant::now() + Duration::from_secs(5);
        while of_run(&run).len() < 2 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let attempts = of_run(&run).into_iter().map(|pid| attempt_of(&environ(pid).unwrap()));
        assert_eq!(attempts.collect::<BTreeSet<_>>(), BTreeSet::from([Some(1), Some(2)]));
        assert_eq!(end_run(&run), 2);
        assert!(of_run(&run).is_empty());
        assert!(theirs.try_wait().unwrap().is_none(), "another run was touched");
        theirs.kill().unwrap();
        theirs.wait().unwrap();
        for child in &mut ours {
            child.wait().unwrap();
        }
    }

    /// The environment of a process that has just been started cannot be read for a moment. The process must not be taken for one
    /// of another run.
    #[test]
    fn whose_a_process_is_that_becomes_a_program_is_not_known_yet() {
        let run = format!("becomes-{}", std::process::id());
        let mut taken_for_another = 0;
        for _ in 0..200 {
            let mut ours = sleeper(&run, "1");
            let first = is_known_to_belong(ours.id(), &run);
            let until = Instant::now() + Duration::from_secs(5);
            while is_known_to_belong(ours.id(), &run).is_none() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            let then = is_known_to_belong(ours.id(), &run);
            ours.kill().unwrap();
            ours.wait().unwrap();
            taken_for_another += u32::from(first == Some(false));
            assert_eq!(then, Some(true));
        }
        // Without the check, this was most of them. On a busy machine one in thousands reads the parent's environment.
        assert!(taken_for_another <= 2, "{taken_for_another} of 200");
    }

    /// A killed launcher's folder is removed; a folder that is not from one of our launchers stays.
    #[test]
    fn files_of_a_killed_launcher_in_tmp_go() {
        let dir = tempfile::tempdir().unwrap();
        let run = format!("session-{}", std::process::id());
        let told = ["ompi.n1.0/jf.7", "pmix.7"].map(|name| dir.path().join(name));
        let started = |name: &str, value: &Path| {
            let mut sleeper = Command::new("sleep");
            sleeper.arg("60").env_remove("PMIX_SERVER_TMPDIR").env("TMPDIR", dir.path());
            sleeper.env(RUN_ID_VAR, &run).env(name, value).spawn().unwrap()
        };
        let mut sleepers =
            Vec::from(told.each_ref().map(|folder| started("PMIX_SERVER_TMPDIR", folder)));
        sleepers.push(started("TMPDIR", dir.path()));
        let own = dir.path().join(format!("ompi.{}", sleepers[2].id()));
        let others = dir.path().join("ompi.1");
        let [shared, not_ours] = told;
        let folders = [shared, own, not_ours, others];
        for folder in &folders {
            fs::create_dir_all(folder.join("0")).unwrap();
        }
        let until = Instant::now() + Duration::from_secs(5);
        while of_run(&run).len() < 3 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(end_run(&run), 3);
        while folders[..2].iter().any(|folder| folder.exists()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(folders.each_ref().map(|folder| folder.exists()), [false, false, true, true]);
        for sleeper in &mut sleepers {
            sleeper.wait().unwrap();
        }
    }

    /// Makes a program from shell text. Another process writes the file, because a file open for writing cannot be executed, and
    /// a process that a parallel test starts inherits the open files of this process for a moment.
    pub(crate) fn script(path: &Path, words: &str) {
        let write = "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
        let status = Command::new("sh").arg("-c").arg(write).arg(path).arg(words).status();
        assert!(status.unwrap().success());
    }

    /// The kernel keeps 15 bytes of a program's name, and may cut it inside a character.
    #[test]
    fn a_name_that_is_no_text_hides_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let run = format!("named-{}", std::process::id());
        let program = dir.path().join("fourteen-bytes\u{e9}");
        // The program is a link, not a copy: a file cannot be executed while a process, even one of another test, has it open for
        // writing.
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("60").env(RUN_ID_VAR, &run).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(5);
        while of_run(&run).is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let found = of_run(&run);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, BTreeSet::from([child.id()]));
    }

    #[test]
    fn a_process_that_listens_to_a_signal_is_known() {
        let sleeps = "while :; do sleep 0.01; done";
        let mut shell = Command::new("sh");
        let mut child = shell.args(["-c", &format!("trap : USR1; {sleeps}")]).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(5);
        while !catches(child.id(), Signal::SIGUSR1) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let found = [Signal::SIGUSR1, Signal::SIGUSR2].map(|signal| catches(child.id(), signal));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [true, false]);
    }

    #[test]
    fn a_recycled_pid_is_not_the_process() {
        let pid = std::process::id();
        let (_, started) = look(pid).unwrap();
        assert!(is_alive(ProcessId { pid, started }));
        assert!(!is_alive(ProcessId { pid, started: started + 1 }));
    }
}
