//! Test rig: a protected run that is started, made to fail and started again, and the memory that it leaves between starts.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use skt_hpl::base::outcome::Verdict;
use skt_hpl::checkpoint::storage::names::parse_checkpoint_folder;
use skt_hpl::report::json::Test;
use skt_hpl::shm::{MemoryStore, Store};
use tempfile::TempDir;

use crate::job::{Job, PROGRAM, Ran, Running};
use crate::left_out::retried;
use skt_hpl::supervise::start::launcher::WITH_ULFM;

/// Timeout of a run. No run of these tests takes longer, even on a busy machine; a run that exceeds it hangs.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Small problem with 31 blocks, so with many boundaries. N is not a multiple of NB.
pub const SMALL: &[&str] = &["-n", "301", "--nb", "10"];

/// Problem that takes long enough to write several checkpoints to storage.
pub const LONGER: &[&str] = &["-n", "903", "--nb", "10"];

/// A protected run under a job name of its own. Dropping the value removes the memory of the run.
pub struct Scene {
    pub name: String,
    pub ranks: usize,
    solver: Vec<String>,
    protect: Vec<String>,
    pub store: Store,
    env: Vec<(String, String)>,
    /// Arguments of the launcher.
    launcher: &'static [&'static str],
    limit: Duration,
    dir: TempDir,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = Command::new(PROGRAM).args(["clean", "--job", &self.name]).output();
    }
}

/// Digests of x of undisturbed, unprotected runs, by the arguments of the solver.
static UNDISTURBED: Mutex<Option<HashMap<Vec<String>, Vec<String>>>> = Mutex::new(None);

impl Scene {
    /// Makes a run of `SMALL` on a P x Q grid that saves at every boundary. Each rank is a failure domain of its own.
    pub fn new(p: usize, q: usize) -> Self {
        Self::of(p, q, SMALL).protect(&["--checkpoint", "1"])
    }

    /// Makes a run on a P x Q grid with the arguments `solver`, so far without checkpoints. Each rank is a failure domain of its
    /// own.
    pub fn of(p: usize, q: usize, solver: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("t-crash-{}-{n}", std::process::id());
        let dir = TempDir::new().unwrap();
        let domains: String = (0..p * q).map(|r| format!("rank:{r} d{r}\n")).collect();
        fs::write(dir.path().join("domains"), domains).unwrap();
        let (p_text, q_text) = (p.to_string(), q.to_string());
        let grid = ["-p", &p_text, "-q", &q_text];
        Self {
            name,
            ranks: p * q,
            solver: solver.iter().chain(&grid).map(|arg| arg.to_string()).collect(),
            protect: Vec::new(),
            store: Store::Posix,
            env: Vec::new(),
            launcher: &[],
            limit: LIMIT,
            dir,
        }
    }

    pub fn solver(mut self, args: &[&str]) -> Self {
        self.solver.extend(args.iter().map(|arg| arg.to_string()));
        self
    }

    /// Replaces the grid by a sweep over `grids`. Each of them has at most as many positions as the first grid.
    #[allow(dead_code)] // not in tests/nonstop
    pub fn grids(mut self, grids: &[(usize, usize)]) -> Self {
        let list = |size: fn(&(usize, usize)) -> usize| {
            grids.iter().map(|grid| size(grid).to_string()).collect::<Vec<_>>().join(",")
        };
        let (p, q) = (list(|grid| grid.0), list(|grid| grid.1));
        for (flag, sizes) in [("-p", p), ("-q", q)] {
            let at = self.solver.iter().position(|word| word == flag).expect("there is a grid");
            self.solver[at + 1] = sizes;
        }
        self
    }

    pub fn protect(mut self, args: &[&str]) -> Self {
        self.protect.extend(args.iter().map(|arg| arg.to_string()));
        self
    }

    /// Sets the timeout of the run.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    pub fn store(mut self, store: Store) -> Self {
        self.store = store;
        self
    }

    /// Sets `--nonstop` with `spares` additional spare ranks.
    #[allow(dead_code)] // in tests/nonstop
    pub fn nonstop(mut self, spares: usize) -> Self {
        self.ranks += spares;
        self.launcher = WITH_ULFM;
        let spares = spares.to_string();
        self.protect(&["--nonstop", "--spare-ranks", &spares])
    }

    /// Adds `count` ranks without a grid position. Each is a failure domain of its own.
    pub fn idle(mut self, count: usize) -> Self {
        let more = (self.ranks..self.ranks + count).map(|rank| format!("rank:{rank} d{rank}\n"));
        let domains = fs::read_to_string(self.path("domains")).unwrap() + &more.collect::<String>();
        fs::write(self.path("domains"), domains).unwrap();
        self.ranks += count;
        self
    }

    /// Sets `--method abft`, and adds a process column of `rows` ranks for checksum columns.
    #[allow(dead_code)] // in tests/nonstop
    pub fn checksums(mut self, rows: usize) -> Self {
        self.ranks += rows;
        self.launcher = WITH_ULFM;
        self.protect(&["--method", "abft"])
    }

    /// Sets the pinning of threads (`SKT_PIN`) for later runs: `auto` pins each thread to its own core, `off` pins none.
    #[allow(dead_code)] // not in tests/nonstop
    pub fn pin(&mut self, when: &str) {
        self.also("SKT_PIN", when);
    }

    /// Sets an environment variable for later runs.
    pub fn also(&mut self, name: &str, value: &str) {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.into(), value.into()));
    }

    /// Leaves out the safeguard `what` (`SKT_SABOTAGE`).
    #[cfg(debug_assertions)]
    pub fn sabotage(mut self, what: &str) -> Self {
        self.env.push(("SKT_SABOTAGE".into(), what.into()));
        self
    }

    /// Returns the launcher job of the scene. Two scenes with equal arguments are different runs, since their job names differ.
    pub fn job(&self) -> Job {
        let texts = |args: &[String]| args.to_vec();
        let args: Vec<String> =
            texts(&self.solver).into_iter().chain(texts(&self.protect)).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let domains = self.path("domains");
        let mut job = self.bare(&args).args(&["--job", &self.name]);
        // `--method abft` needs no domains, and the run would warn.
        if !args.contains(&"abft") {
            job = job.args(&["--domains", domains.to_str().unwrap()]);
        }
        job = job.launcher(self.launcher);
        for (name, value) in &self.env {
            job = job.env(name, value);
        }
        job
    }

    fn bare(&self, args: &[&str]) -> Job {
        Job::of(PROGRAM.into(), self.ranks)
            .limit(self.limit)
            .args(&["--threads", "1", "--no-preflight", "--json", "run.json"])
            .args(args)
            // Open MPI leaves its own segments behind when ranks are killed. In this folder they are removed with it.
            .env("OMPI_MCA_btl_vader_backing_directory", self.dir.path().to_str().unwrap())
            // After a fault, the launcher kills the surviving ranks without delay.
            .env("OMPI_MCA_odls_base_sigkill_timeout", "0")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn armed(&self, faults: &str) -> Job {
        let log = self.path("faults");
        let _ = fs::remove_file(&log);
        self.job().env("SKT_FAULT", faults).env("SKT_FAULT_LOG", log.to_str().unwrap())
    }

    /// Returns the faults injected since the last start with faults, each as `POINT:POSITION:HIT`.
    pub fn injected(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("faults")).unwrap_or_default();
        let parse = |line: &str| {
            let (position, rest) =
                line.strip_prefix("skt-hpl: fault at position ")?.split_once(": ")?;
            let fields: Vec<&str> = rest.split(' ').collect();
            Some(format!("{}:{position}:{}", fields[0], fields[2]))
        };
        log.lines().filter_map(parse).collect()
    }

    /// Returns a fault that makes the thread that reaches `place` wait there until [`Self::let_go`] is called.
    #[allow(dead_code)] // not in tests/nonstop
    pub fn hang_at(&self, place: &str) -> String {
        format!("{place}:hang={}", self.let_go_file(place).display())
    }

    #[allow(dead_code)] // not in tests/nonstop
    pub fn let_go(&self, place: &str) {
        fs::write(self.let_go_file(place), "").unwrap();
    }

    fn let_go_file(&self, place: &str) -> PathBuf {
        self.path(&format!("let-go-{place}"))
    }

    /// Runs with `faults`. Asserts that the job failed and that all faults were injected.
    pub fn inject(&self, faults: &str) -> Ran {
        let ran = self.run_until_injected(faults);
        assert_ne!(ran.code, Some(0), "{faults}: {}", ran.told());
        ran
    }

    /// Runs with `faults` that must not end the job. Asserts that all were injected, that x has the bits of an undisturbed run,
    /// and that nothing is left.
    #[allow(dead_code)] // in tests/nonstop
    pub fn survive(&self, faults: &str) -> Ran {
        let ran = self.run_until_injected(faults);
        self.expect_finished(ran)
    }

    /// Runs with `faults` that must not end the job. Asserts that all were injected and that all tests passed; x may differ in
    /// its last bits.
    #[allow(dead_code)] // in tests/nonstop
    pub fn endure(&self, faults: &str) -> Ran {
        let ran = self.run_until_injected(faults);
        digests(&ran);
        ran.expect_code(0)
    }

    /// Runs until all `faults` are injected in one run. On a busy machine, a run may end before its helpers reach a fault. If it
    /// started from scratch, nothing is left, and the run is repeated, at most four times.
    fn run_until_injected(&self, faults: &str) -> Ran {
        let mut runs = 0;
        loop {
            let ran = self.armed(faults).run();
            let injected = self.injected();
            let Some(place) = places(faults).find(|place| !injected.contains(place)) else {
                return ran;
            };
            runs += 1;
            let over = ran.code == Some(0) && injected.is_empty() && resumed_at(&ran).is_none();
            assert!(over && runs < 5, "{place} was not injected: {}", ran.told());
            retried(&format!("{place}: the run was over before"));
        }
    }

    /// Runs once with `faults`, which need not all be injected.
    pub fn may_inject(&self, faults: &str) -> Ran {
        self.armed(faults).run()
    }

    /// Starts a run with `faults` and returns at once.
    pub fn start_with(&self, faults: &str) -> Running {
        self.holding(faults).start()
    }

    /// Returns a job with faults that stop ranks. MPI's failure detector waits 60 s, so it does not take stopped ranks for dead.
    fn holding(&self, faults: &str) -> Job {
        self.armed(faults).env("OMPI_MCA_mpi_ft_detector_timeout", "60")
    }

    /// Starts a run with faults that stop ranks (`...:stop`), and waits until all these ranks are stopped.
    pub fn freeze(&self, faults: &str) -> Running {
        let (running, came) = self.may_freeze(faults, LIMIT);
        assert!(came, "{faults}: {:?}", self.injected());
        // A fault is logged before it is injected. A signal in between would come too early.
        let began = Instant::now();
        let halted = || running.ranks().iter().filter(|rank| rank.halted()).count();
        while halted() < faults.split(',').count() {
            assert!(began.elapsed() < LIMIT, "{faults}");
            std::thread::sleep(Duration::from_millis(5));
        }
        running
    }

    /// Starts a run with `faults`, and waits until the ranks `halted` are stopped. Kills the ranks `victims`, lets the other
    /// stopped ranks continue, and returns the output of the run.
    #[allow(dead_code)] // in tests/nonstop
    pub fn amid(&self, faults: &str, halted: &[usize], victims: &[usize]) -> Ran {
        let running = self.start_with(faults);
        let began = Instant::now();
        let stands = |rank: usize| running.ranks().iter().any(|r| r.rank == rank && r.halted());
        while !halted.iter().all(|&rank| stands(rank)) {
            assert!(began.elapsed() < LIMIT, "{faults}: {:?}", self.injected());
            std::thread::sleep(Duration::from_millis(5));
        }
        let ranks = running.ranks();
        let of = |rank: usize| ranks.iter().find(|r| r.rank == rank).unwrap().pid;
        for &victim in victims {
            kill(of(victim), Signal::SIGKILL).unwrap();
        }
        for &rank in halted.iter().filter(|rank| !victims.contains(rank)) {
            kill(of(rank), Signal::SIGCONT).unwrap();
        }
        running.end()
    }

    /// Waits until the log has `count` faults and all ranks of the run are stopped.
    pub fn await_halted(&self, running: &Running, count: usize) {
        let began = Instant::now();
        let all = || {
            let ranks = running.ranks();
            self.injected().len() >= count
                && ranks.len() == self.ranks
                && ranks.iter().all(|r| r.halted())
        };
        while !all() {
            assert!(began.elapsed() < LIMIT, "{:?}", self.injected());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts a run with faults that stop ranks, and waits for them up to `limit`. Returns the run, and true if all faults were
    /// injected.
    pub fn may_freeze(&self, faults: &str, limit: Duration) -> (Running, bool) {
        let mut running = self.holding(faults).start();
        let came = self.await_faults(&mut running, faults, limit);
        (running, came)
    }

    /// Waits until all `faults` are injected, at most for `limit` or until the run ends. Returns true if all were injected.
    pub fn await_faults(&self, running: &mut Running, faults: &str, limit: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < limit && !running.over() {
            let injected = self.injected();
            if places(faults).all(|place| injected.contains(&place)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Kills all ranks at once, as a power failure would.
    pub fn kill_all(&self, running: Running) {
        running.kill_ranks();
        let ran = running.end();
        assert_ne!(ran.code, Some(0), "{}", ran.told());
    }

    fn memory_store(&self) -> MemoryStore {
        MemoryStore::new(self.store, &self.name).unwrap()
    }

    /// Removes the memory of a position, as the loss of its node would.
    pub fn lose(&self, position: usize) {
        match self.store {
            Store::Posix => {
                for file in self.files(position) {
                    fs::remove_file(file).unwrap();
                }
            }
            _ => self.memory_store().unlink_position(position as u32),
        }
    }

    /// Assigns ranks to failure domains for later runs: letter i of `domains` names the domain of rank i.
    #[allow(dead_code)] // not in tests/nonstop
    pub fn has_domains(&self, domains: &str) {
        let lines = domains.chars().enumerate().map(|(rank, at)| format!("rank:{rank} {at}\n"));
        fs::write(self.path("domains"), lines.collect::<String>()).unwrap();
    }

    /// Returns the paths of a position's memory files in /dev/shm.
    pub fn files(&self, position: usize) -> Vec<PathBuf> {
        shm(&format!("{}.p{position}.", self.name))
    }

    pub fn file(&self, position: usize, part: &str) -> PathBuf {
        let uid = nix::unistd::getuid();
        format!("/dev/shm/skt-hpl.{uid}.{}.p{position}.{part}", self.name).into()
    }

    /// Returns the positions of this run that have memory in the scene's store, in ascending order.
    pub fn held(&self) -> Vec<u32> {
        let mut held = self.memory_store().positions();
        held.sort_unstable();
        held
    }

    /// Returns the groups that the headers in memory name.
    pub fn groups(&self) -> Vec<Vec<usize>> {
        let out = Command::new(PROGRAM).args(["status", "--json"]).output().unwrap();
        let jobs: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let mine =
            jobs["memory"].as_array().unwrap().iter().find(|job| job["job"] == self.name.as_str());
        let mut groups: Vec<Vec<usize>> = mine
            .and_then(|job| job["positions"].as_array())
            .into_iter()
            .flatten()
            .filter_map(|position| serde_json::from_value(position["header"]["group"].clone()).ok())
            .collect();
        groups.sort();
        groups.dedup();
        groups
    }

    /// Returns the digests of x of a run with the same solver arguments, without faults and protection.
    pub fn undisturbed(&self) -> Vec<String> {
        // The lock is kept during the run, so that other tests wait for the same digests.
        let mut known = UNDISTURBED.lock().unwrap_or_else(|broken| broken.into_inner());
        let known = known.get_or_insert_default();
        if let Some(found) = known.get(&self.solver) {
            return found.clone();
        }
        let args: Vec<&str> = self.solver.iter().map(String::as_str).collect();
        let ran = self.bare(&args).run().expect_code(0);
        let digests = digests(&ran);
        known.insert(self.solver.clone(), digests.clone());
        digests
    }

    /// Starts the run again. Asserts that it ends with code 0, that x has the bits of an undisturbed run, and that nothing is
    /// left.
    pub fn finish(&self) -> Ran {
        let ran = self.job().run();
        self.expect_finished(ran)
    }

    pub fn expect_finished(&self, ran: Ran) -> Ran {
        let ran = ran.expect_code(0);
        assert_eq!(digests(&ran), self.undisturbed(), "{}", ran.told());
        self.expect_nothing_left();
        ran
    }

    /// Starts the run again. Asserts that its only test passes and that nothing is left. The bits of x are not compared, since
    /// rebuilt memory is exact only up to rounding.
    pub fn finish_up_to_rounding(&self) -> Ran {
        let ran = self.job().run().expect_code(0);
        assert_eq!(digests(&ran).len(), 1);
        self.expect_nothing_left();
        ran
    }

    pub fn expect_nothing_left(&self) {
        let left = shm(&format!("{}.", self.name));
        assert!(left.is_empty(), "{left:?}");
        assert!(self.held().is_empty(), "{:?}", self.held());
    }

    /// Starts the run again. Asserts that it is refused with exit code `code`, that its errors contain all of `words`, and that
    /// no memory changed.
    pub fn expect_refused(&self, code: i32, words: &[&str]) -> Ran {
        let before = (self.held(), contents(&self.name));
        let ran = self.job().run().expect_code(code);
        for word in words {
            assert!(ran.err.contains(word), "{word:?}: {}", ran.told());
        }
        assert!(!ran.out.contains("PASSED"), "{}", ran.told());
        assert!(before == (self.held(), contents(&self.name)), "memory changed: {}", ran.told());
        ran
    }
}

/// Removes the memory of all positions, as the loss of all nodes or the end of the job would.
pub fn lose_all(scene: &Scene) {
    (0..scene.ranks).for_each(|position| scene.lose(position));
    assert!(scene.held().is_empty());
}

/// Returns the places of `faults` in the form of [`Scene::injected`], without attempt and action.
fn places(faults: &str) -> impl Iterator<Item = String> {
    faults.split(',').map(|fault| {
        let fault = fault.split_once('@').map_or(fault, |(_, fault)| fault);
        fault.splitn(4, ':').take(3).collect::<Vec<_>>().join(":")
    })
}

/// Returns the checkpoint directory of the job in DIR `dir`.
pub fn folder_in(dir: &Path, scene: &Scene) -> PathBuf {
    dir.join(format!("skt-hpl.{}.{}", nix::unistd::getuid(), scene.name))
}

/// Returns the folders of the job's checkpoints in DIR `dir`, with or without a manifest, in the order in which they were begun.
pub fn checkpoints_in(dir: &Path, scene: &Scene) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder_in(dir, scene)).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|e| e.path()).filter(|path| path.is_dir()).collect();
    found.sort_by_key(|path| {
        path.file_name().and_then(|name| parse_checkpoint_folder(name.to_str()?))
    });
    found
}

/// Returns the folders of the job's checkpoints in DIR `dir` that have a manifest.
pub fn whole_in(dir: &Path, scene: &Scene) -> Vec<PathBuf> {
    let mut found = checkpoints_in(dir, scene);
    found.retain(|checkpoint| checkpoint.join("manifest").exists());
    found
}

/// Returns true if the run resumed from storage.
pub fn from_storage(ran: &Ran) -> bool {
    ran.err.contains("the checkpoint was read from")
}

/// Returns the boundary at which the run resumed; None if it started from scratch.
pub fn resumed_at(ran: &Ran) -> Option<usize> {
    let (_, rest) = ran.err.split_once("resumes at boundary ")?;
    rest.split(' ').next()?.parse().ok()
}

/// Returns the positions that the run reported as rebuilt; None if it reported none.
pub fn rebuilt(ran: &Ran) -> Option<Vec<usize>> {
    let (_, rest) = ran.err.split_once("rebuilt positions ")?;
    serde_json::from_str(&rest[..=rest.find(']')?]).ok()
}

/// Returns the digest of x of every test. Asserts that all tests ran and passed.
pub fn digests(ran: &Ran) -> Vec<String> {
    let digest = |test: &Test| {
        let outcome = test.outcome.as_ref().expect("not skipped");
        assert_eq!(outcome.verdict, Verdict::Passed, "{}", ran.told());
        outcome.x_digest.clone()
    };
    ran.json().tests.iter().map(digest).collect()
}

fn shm(prefix: &str) -> Vec<PathBuf> {
    let prefix = format!("skt-hpl.{}.{prefix}", nix::unistd::getuid());
    let entries = fs::read_dir("/dev/shm").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let mine = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
    };
    let mut found: Vec<PathBuf> = entries.filter(mine).collect();
    found.sort();
    found
}

/// Returns the content of all memory files of a job except the headers (`head`), which contain heartbeats.
fn contents(job: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let data = |path: &PathBuf| path.extension().is_none_or(|part| part != "head");
    let files = shm(&format!("{job}.")).into_iter().filter(data);
    files.map(|path| (path.clone(), fs::read(path).unwrap_or_default())).collect()
}
