//! Starts jobs under `mpirun` and collects their output.
//!
//! Each job has a folder of its own. A job that does not end within its timeout is ended, and its test fails. As many jobs run at
//! a time as the test runner has threads (`--test-threads`). A launcher that starts or ends leaves the processors idle for much
//! of the time.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skt_hpl::report::json::Run;
use skt_hpl::shm::stat::Stat;
use tempfile::TempDir;

use crate::dat::Dat;
use crate::ease::{NO_DEVICES, relax};

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_skt-hpl");

pub fn mpirun() -> String {
    std::env::var("SKT_TEST_MPIRUN").unwrap_or_else(|_| "mpirun".into())
}

/// Returns true if the launcher is MPICH's Hydra. Otherwise tests take it for Open MPI's.
pub fn mpich() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let version = Command::new(mpirun()).arg("--version").output();
        let version = version.unwrap_or_else(|e| panic!("{} cannot be started: {e}", mpirun()));
        String::from_utf8_lossy(&version.stdout).contains("HYDRA")
    })
}

/// Sets the environment variables that a launcher needs in tests.
pub fn for_a_launcher(command: &mut Command) {
    // A user's settings must not change the tests.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SKT_") {
            command.env_remove(name);
        }
    }
    // Jobs run at the same time on the same cores, so threads must not be pinned.
    command.env("SKT_PIN", "off");
    command.env("LD_PRELOAD", relax());
    command.envs(NO_DEVICES);
    if mpich() {
        // All ranks are on this machine. Otherwise UCX examines every network device, and MPI does not start if a device
        // disappears meanwhile, as those of virtual nodes do. This failed 20 of 612 starts while virtual nodes were created and
        // removed, and none of 357 with this setting.
        command.env("UCX_TLS", "self,sm");
    } else {
        command.envs([
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
            ("OMPI_MCA_hwloc_base_binding_policy", "none"),
            ("OMPI_MCA_mpi_yield_when_idle", "1"),
            // The same settings for Open MPI 5.
            ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
            ("PRTE_MCA_hwloc_default_binding_policy", "none"),
        ]);
    }
}

/// A job that is not started yet.
pub struct Job {
    ranks: usize,
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    dir: TempDir,
    limit: Duration,
    /// Command that starts the launcher; empty if the test itself starts it.
    under: Vec<String>,
    /// Arguments of the launcher.
    launcher: Vec<String>,
    /// Groups of ranks, each with the command that starts them; empty if all ranks are started alike.
    parts: Vec<(usize, Vec<String>)>,
}

impl Job {
    /// Makes a job of the program under test on `ranks` ranks, one thread each.
    pub fn new(ranks: usize) -> Self {
        Self::of(PROGRAM.into(), ranks).args(&["--threads", "1"])
    }

    pub fn of(program: PathBuf, ranks: usize) -> Self {
        let (args, env) = (Vec::new(), Vec::new());
        let limit = Duration::from_secs(180);
        let dir = TempDir::new().unwrap();
        let (under, launcher, parts) = (Vec::new(), Vec::new(), Vec::new());
        Self { ranks, program, args, env, dir, limit, under, launcher, parts }
    }

    /// Makes a job of the tests of `dat`, with as many ranks as the largest grid needs. The results are also written as JSON.
    pub fn tests(dat: &Dat) -> Self {
        Self::new(dat.ranks()).dat(dat).args(&["--json", "run.json"])
    }

    pub fn dat(self, dat: &Dat) -> Self {
        fs::write(self.dir.path().join("HPL.dat"), dat.text()).unwrap();
        self
    }

    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| arg.to_string()));
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets the timeout after which a job counts as hung.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Divides the ranks into groups that are started differently. Each group has its number of ranks and the command that starts
    /// them, such as `taskset -c 0` or `env NAME=VALUE`.
    pub fn parts(mut self, parts: &[(usize, &[&str])]) -> Self {
        assert_eq!(parts.iter().map(|(ranks, _)| ranks).sum::<usize>(), self.ranks);
        let owned = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
        self.parts = parts.iter().map(|(ranks, words)| (*ranks, owned(words))).collect();
        self
    }

    /// Sets a command that starts the launcher. The launcher and its arguments follow the command as its last arguments.
    pub fn under(mut self, command: &[&str]) -> Self {
        self.under = command.iter().map(|word| word.to_string()).collect();
        self
    }

    /// Adds arguments of the launcher, in front of all others.
    pub fn launcher(mut self, words: &[&str]) -> Self {
        self.launcher.extend(words.iter().map(|word| word.to_string()));
        self
    }

    pub fn start(self) -> Running {
        let path = |name: &str| self.dir.path().join(name);
        let words: Vec<String> = self.under.iter().cloned().chain([mpirun()]).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(&self.launcher);
        let alike = [(self.ranks, Vec::new())];
        let parts = if self.parts.is_empty() { &alike[..] } else { &self.parts[..] };
        for (at, (ranks, first)) in parts.iter().enumerate() {
            if at > 0 {
                command.arg(":");
            }
            command.arg("-n").arg(ranks.to_string()).args(first);
            command.arg(&self.program).args(&self.args);
        }
        command.current_dir(self.dir.path());
        for_a_launcher(&mut command);
        // Open MPI 5 names the folder of a job after the process id of mpirun. It does not start if a killed mpirun with the same
        // id has left its folder.
        let left = path("launcher");
        std::fs::create_dir_all(&left).unwrap();
        command.env("PRTE_MCA_prte_tmpdir_base", left);
        command.envs(self.env);
        command.stdin(Stdio::null());
        command.stdout(File::create(path("stdout")).unwrap());
        command.stderr(File::create(path("stderr")).unwrap());
        let child = command.spawn().unwrap();
        Running {
            processes: Processes { child, program: self.program },
            dir: self.dir,
            limit: self.limit,
            began: Instant::now(),
        }
    }

    pub fn run(self) -> Ran {
        self.start().end()
    }
}

/// A started job. Dropping the value ends the job, for example if its test fails.
pub struct Running {
    processes: Processes,
    dir: TempDir,
    limit: Duration,
    began: Instant,
}

/// Process of a rank.
#[derive(Clone, Debug)]
pub struct RankProcess {
    pub rank: usize,
    pub pid: Pid,
}

impl RankProcess {
    /// Returns true if a signal has stopped the process.
    pub fn halted(&self) -> bool {
        state(self.pid) == Some('T')
    }

    /// Returns true if the process still runs. A process that has ended does not count, even if nobody has waited for it yet.
    pub fn alive(&self) -> bool {
        alive(self.pid)
    }
}

/// Returns the state of a process from /proc; None if the process does not exist.
pub fn stat(pid: Pid) -> Option<Stat> {
    Stat::of(pid.as_raw().try_into().ok()?)
}

fn state(pid: Pid) -> Option<char> {
    stat(pid)?.state()
}

fn parent(pid: Pid) -> Option<Pid> {
    stat(pid)?.parent().map(|parent| Pid::from_raw(parent as i32))
}

/// Returns true if the process still runs. A process that has ended does not count, even if nobody has waited for it yet.
pub fn alive(pid: Pid) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// The launcher of a job and, through it, its ranks. Dropping the value ends them.
struct Processes {
    child: Child,
    program: PathBuf,
}

impl Drop for Processes {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.kill();
        }
    }
}

impl Processes {
    /// Returns the exit status of the launcher; None if it has not ended.
    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    fn launcher(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Kills the ranks, and asks the launcher to end, so that it cleans up. Kills the launcher after five seconds. Ranks are
    /// killed at once, since some may be stopped, and others would save before they end.
    fn kill(&mut self) -> ExitStatus {
        // Ranks are found through the launcher, so they are killed first. They are killed again later, since some may just be
        // starting.
        self.kill_ranks();
        let _ = kill(self.launcher(), Signal::SIGTERM);
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            self.kill_ranks();
            if let Some(status) = self.ended() {
                return status;
            }
            if Instant::now() > until {
                let _ = self.child.kill();
                return self.child.wait().unwrap();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn kill_ranks(&self) {
        for rank in self.ranks() {
            let _ = kill(rank.pid, Signal::SIGKILL);
        }
    }

    fn ranks(&self) -> Vec<RankProcess> {
        let launcher = self.launcher();
        let descends = |pid: Pid| {
            let mut at = pid;
            while let Some(above) = parent(at) {
                if above == launcher {
                    return true;
                }
                at = above;
            }
            false
        };
        let wanted = fs::canonicalize(&self.program).unwrap();
        let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid = Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?);
            let runs =
                |pid: Pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|p| p == wanted);
            if !runs(pid) || !descends(pid) || runs(parent(pid)?) {
                return None;
            }
            let variables = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let name = if mpich() { "PMI_RANK=" } else { "OMPI_COMM_WORLD_RANK=" };
            let rank = String::from_utf8_lossy(&variables)
                .split('\0')
                .find_map(|variable| variable.strip_prefix(name)?.parse().ok())?;
            Some(RankProcess { rank, pid })
        });
        let mut found: Vec<_> = processes.collect();
        found.sort_by_key(|process| process.rank);
        found
    }
}

impl Running {
    /// Returns true if the launcher has ended.
    pub fn over(&mut self) -> bool {
        self.processes.ended().is_some()
    }

    pub fn out(&self) -> String {
        fs::read_to_string(self.dir.path().join("stdout")).unwrap()
    }

    /// Waits until the job has written `text` to its standard output.
    pub fn await_out(&mut self, text: &str) {
        while !self.out().contains(text) {
            assert!(!self.over(), "ended before {text:?}: {}", self.told());
            assert!(self.began.elapsed() < self.limit, "no {text:?}: {}", self.told());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn told(&self) -> String {
        let err = fs::read_to_string(self.dir.path().join("stderr")).unwrap();
        format!("{}\n{err}", self.out())
    }

    /// Returns the processes of the ranks, found among the descendants of the launcher. A child that a rank has just forked looks
    /// like a rank. It is left out, since its parent is a rank.
    pub fn ranks(&self) -> Vec<RankProcess> {
        self.processes.ranks()
    }

    /// Kills all ranks at once, as a power failure would. Their parents are stopped meanwhile: after the first death, Open MPI's
    /// launcher wakes stopped ranks, which would continue for a moment.
    #[allow(dead_code)] // in some of the programs that have this file
    pub fn kill_ranks(&self) {
        let ranks = self.ranks();
        let parents: HashSet<Pid> = ranks.iter().filter_map(|rank| parent(rank.pid)).collect();
        let killed = ranks.iter().map(|rank| rank.pid);
        let held = |signal| parents.iter().map(move |&parent| (parent, signal));
        let signals = held(Signal::SIGSTOP)
            .chain(killed.map(|pid| (pid, Signal::SIGKILL)))
            .chain(held(Signal::SIGCONT));
        for (pid, signal) in signals {
            let _ = kill(pid, signal);
        }
    }

    /// Waits for the end of the job. Panics if it does not end within the timeout.
    pub fn end(mut self) -> Ran {
        let mut launcher_hangs = false;
        let status = loop {
            if let Some(status) = self.processes.ended() {
                break status;
            }
            if self.began.elapsed() > self.limit {
                // Open MPI's mpirun sometimes blocks itself when no rank is left. Version 4.1 did in PMIx_server_finalize after a
                // rank had been killed. Version 5.0.11 did on a lock of its own after ranks had ended with an error, once in some
                // 700 times on a busy machine. The job has then ended, but no status shows how.
                let ended = self.ranks().is_empty();
                let status = self.processes.kill();
                assert!(ended, "the job hangs. It wrote: {}", self.told());
                eprintln!("the launcher had to be killed: its ranks were gone, it was not");
                launcher_hangs = true;
                break status;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let read = |name: &str| fs::read_to_string(self.dir.path().join(name)).unwrap();
        Ran {
            code: status.code(),
            launcher_hangs,
            out: read("stdout"),
            err: read("stderr"),
            dir: self.dir,
        }
    }
}

/// An ended job.
pub struct Ran {
    /// Exit code of the launcher. `None` if a signal ended it.
    pub code: Option<i32>,
    /// True if the launcher hung after its ranks had ended, and was killed.
    pub launcher_hangs: bool,
    pub out: String,
    pub err: String,
    dir: TempDir,
}

impl Ran {
    /// Returns true if the launcher returned exit code `code`, or hung and returned none.
    pub fn ended_with(&self, code: i32) -> bool {
        self.code == Some(code) || self.launcher_hangs
    }

    pub fn expect_code(self, code: i32) -> Self {
        assert!(self.ended_with(code), "not {code}: {}", self.told());
        self
    }

    /// Returns the exit code and all output, for a message.
    pub fn told(&self) -> String {
        format!("exit {:?}\n{}\n{}", self.code, self.out, self.err)
    }

    pub fn file(&self, name: &str) -> String {
        let read = fs::read_to_string(self.dir.path().join(name));
        read.unwrap_or_else(|e| panic!("{name}: {e}\n{}", self.told()))
    }

    /// Returns the JSON document of the run, which must be complete.
    pub fn json(&self) -> Run {
        let run: Run = serde_json::from_str(&self.file("run.json")).unwrap();
        assert!(run.complete);
        assert_eq!(run.tests.len(), run.planned);
        run
    }
}
