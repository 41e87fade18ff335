//! Test rig: a virtual cluster, supervised runs on it, and their results.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use skt_hpl::comm::World;
use skt_hpl::supervise::remember::events::ProcessId;
use skt_hpl::supervise::start::launcher::{Launcher, major_version};
use skt_hpl::supervise::talk::processes::is_alive;

use crate::ease::{NO_DEVICES, preload, relax};
use crate::inheriting::inheriting;
use crate::stopped::stopped;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_skt-hpl");

/// Timeout of each wait. No awaited event takes longer on a busy machine, not even the end of ranks that hang in MPI_Finalize.
const TIMEOUT: Duration = Duration::from_secs(200);

/// Arguments of the benchmark for 2 x 2 ranks, one per node.
const PROBLEM: &str = "-n 1250 --nb 16 -p 2 -q 2 --threads 1 --no-preflight --json result.json";
/// Arguments of the benchmark for checkpoints, with n1 and n2 in one group, n3 and n4 in the other.
const PROTECTION: &str = "--checkpoint 4 --group 2";

/// Time for which a rank that a test stopped does not count as hung (`--hang-min`).
const HELD_MIN: &str = "60s";
const HELD: [&str; 2] = ["--hang-min", HELD_MIN];

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the launcher of the MPI library to which the program and this test are linked.
pub fn launcher() -> Launcher {
    Launcher::of_library(&World::library())
        .expect("a launcher is known for every MPI this is built with")
}

fn launcher_name(launcher: Launcher) -> &'static str {
    match launcher {
        Launcher::Openmpi => "openmpi",
        Launcher::Mpich => "mpich",
        Launcher::Srun => "srun",
    }
}

fn relaxed() -> String {
    format!("LD_PRELOAD={}", relax().display())
}

/// Returns the flags `--export SETTING` that set environment variables for the ranks.
fn exports(settings: impl IntoIterator<Item = String>) -> impl Iterator<Item = String> {
    settings.into_iter().flat_map(|setting| ["--export".to_string(), setting])
}

/// Builds the library that changes the clock of a process, and returns its path; see `clock.c`.
fn clock() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| preload("tests/node_loss/clock.c"))
}

/// Builds the library that makes file accesses hang, and returns its path; see `stall.c`.
fn stall() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| preload("tests/node_loss/stall.c"))
}

/// Makes accesses to chosen paths hang, in processes that are started with its settings.
pub struct Stall(PathBuf);

impl Stall {
    pub fn new(lab: &Lab) -> Self {
        Self(lab.path("stalled"))
    }

    fn settings(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", stall()), ("STALL", &self.0)]
    }

    /// Returns the settings as variable assignments in front of a shell command.
    pub fn words(&self) -> String {
        let words = self.settings().map(|(name, value)| format!("{name}={}", value.display()));
        words.join(" ")
    }

    /// From now on, makes every access to a path wait that begins with one of `paths`.
    pub fn begins(&self, paths: &[PathBuf]) {
        let lines: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let fresh = self.0.with_extension("new");
        std::fs::write(&fresh, lines.join("\n")).unwrap();
        let _ = std::fs::remove_file(self.seen());
        std::fs::rename(fresh, &self.0).unwrap();
    }

    fn seen(&self) -> PathBuf {
        self.0.with_extension("seen")
    }

    /// Waits until an access of a process to one of these paths hangs.
    pub fn await_access(&self) {
        wait_until("somebody touches what hangs", || self.seen().exists());
    }

    pub fn ends(&self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

fn benchmark_flags() -> Vec<String> {
    format!("{PROBLEM} {PROTECTION}").split(' ').map(String::from).collect()
}

/// Removes all `SKT_` variables from the environment, since a user's settings must not change the tests.
fn forget_settings(command: &mut Command) {
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("SKT_") {
            command.env_remove(variable);
        }
    }
    // Nodes and tests share the cores of this machine, so threads must not be pinned.
    command.env("SKT_PIN", "off");
    command.envs(NO_DEVICES);
}

/// A virtual cluster, and a folder for the runs on it. Dropping the value ends its launchers and the cluster.
pub struct Lab {
    name: String,
    dir: tempfile::TempDir,
    working: usize,
    nodes: usize,
}

impl Lab {
    /// Starts `working` nodes for the run, n1 first, and after them `spares` spare nodes.
    pub fn up(working: usize, spares: usize) -> Self {
        Self::up_after(working, spares, |_| ()).0
    }

    /// Starts a cluster whose nodes each have `memory` of shared memory.
    pub fn up_with_memory(working: usize, spares: usize, memory: &str) -> Self {
        Self::up_with(working, spares, memory, |_| ()).0
    }

    /// Runs `prepare` on the lab's folder, then starts the nodes. File systems must be mounted in the folder before the nodes
    /// start, or the nodes do not see their content.
    pub fn up_after<T>(
        working: usize,
        spares: usize,
        prepare: impl FnOnce(&Path) -> T,
    ) -> (Self, T) {
        Self::up_with(working, spares, "192m", prepare)
    }

    fn up_with<T>(
        working: usize,
        spares: usize,
        memory: &str,
        prepare: impl FnOnce(&Path) -> T,
    ) -> (Self, T) {
        static LABS: AtomicUsize = AtomicUsize::new(0);
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let name = format!("t{}-{number}", std::process::id());
        // Nodes share this folder, but each has a /tmp of its own.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let prepared = prepare(dir.path());
        let nodes = working + spares;
        let lab = Self { name, dir, working, nodes };
        let pid = std::process::id().to_string();
        lab.vcluster(&["up", &nodes.to_string(), "--shm", memory, "--while", &pid]);
        (lab, prepared)
    }

    /// Runs `scripts/vcluster` with the arguments `words`, and returns its standard output.
    pub fn vcluster(&self, words: &[&str]) -> String {
        succeeded(&mut self.vcluster_command(words))
    }

    /// Runs `scripts/vcluster` with a Python that takes five seconds to start, as on a busy machine. Returns its standard output.
    pub fn vcluster_late(&self, words: &[&str]) -> String {
        let folder = self.path("late");
        std::fs::create_dir_all(&folder).unwrap();
        self.script("late/python3", "#!/bin/sh\nsleep 5\nPATH=${PATH#*:} exec python3 \"$@\"\n");
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        succeeded(self.vcluster_command(words).env("PATH", path))
    }

    fn vcluster_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(repository().join("scripts/vcluster"));
        command.args(["-c", &self.name]).args(words).stdin(Stdio::null());
        command
    }

    /// Runs a shell command on a node, and returns its standard output.
    pub fn on(&self, node: &str, command: &str) -> String {
        self.vcluster(&["ssh", node, command])
    }

    /// Returns the number of processes `name` on a node. The processes are counted from this machine, so the node need not be
    /// reachable.
    pub fn count_on(&self, node: &str, name: &str) -> usize {
        let init = self.ssh_config().with_file_name(node).join("init");
        let init = std::fs::read_to_string(init).unwrap();
        let init = init.split_whitespace().next().unwrap().to_owned();
        let words = ["--nslist", "pid", "--ns", &init, "-x", name];
        let found = Command::new("pgrep").args(words).output().unwrap();
        String::from_utf8(found.stdout).unwrap().lines().count()
    }

    /// Returns the number of ranks on a node: processes `name` that are not agents.
    pub fn ranks_on(&self, node: &str, name: &str) -> usize {
        let look = format!(
            "for p in $(pgrep -x {name}); do tr '\\0' ' ' </proc/$p/cmdline 2>/dev/null; echo; done"
        );
        self.on(node, &look).lines().filter(|l| !l.is_empty() && !l.contains(" agent")).count()
    }

    /// Returns the output of `skt-hpl status` for a run.
    pub fn status(&self, name: &str) -> String {
        let mut status = Command::new(PROGRAM);
        status.arg("status").arg("--state").arg(self.path(&format!("{name}.state")));
        String::from_utf8(status.output().unwrap().stdout).unwrap()
    }

    /// Returns the names of the files in a node's /dev/shm.
    pub fn memory_of(&self, node: &str) -> String {
        self.on(node, "ls /dev/shm")
    }

    /// Mounts a different program file over the program on a node.
    pub fn spoil_program(&self, node: &str) {
        let other = self.path("other-program");
        let mut bytes = std::fs::read(PROGRAM).unwrap();
        bytes.push(0);
        std::fs::write(&other, bytes).unwrap();
        let other = other.display();
        self.on(node, &format!("chmod 755 {other} && mount --bind {other} {PROGRAM}"));
    }

    /// Makes every start of the program on a node run with an environment variable set. The content of the program is unchanged.
    pub fn pretend(&self, node: &str, variable: &str) {
        let same = self.path("same-program");
        let wrapper = self.path(&format!("wrapper-{node}"));
        std::fs::copy(PROGRAM, &same).unwrap();
        let text = format!("#!/bin/sh\nexec env {variable} {} \"$@\"\n", same.display());
        std::fs::write(&wrapper, text).unwrap();
        let wrapper = wrapper.display();
        self.on(node, &format!("chmod 755 {wrapper} && mount --bind {wrapper} {PROGRAM}"));
    }

    /// Fills a node's shared memory.
    pub fn fill_memory(&self, node: &str) {
        self.on(node, "dd if=/dev/zero of=/dev/shm/full bs=1M 2>/dev/null || true");
    }

    /// Fills a node's shared memory up to `mib` MiB.
    pub fn leave_free(&self, node: &str, mib: u64) {
        let free = "$(df --output=avail -m /dev/shm | tail -1)";
        self.on(node, &format!("fallocate -l $(({free} - {mib}))m /dev/shm/full"));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes an executable script to the lab's folder, and returns its path.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Returns the path of a launcher that ends three seconds after its ranks if they have failed.
    pub fn slow_to_end(&self) -> PathBuf {
        let real = std::env::var("SKT_TEST_MPIRUN").unwrap_or("mpirun".to_string());
        let text = format!(
            "#!/bin/sh\n{real} \"$@\"\nstatus=$?\n[ $status = 0 ] || sleep 3\nexit $status\n"
        );
        self.script("slow-to-end", &text)
    }

    pub fn ssh_config(&self) -> PathBuf {
        PathBuf::from(self.vcluster(&["ssh-config"]).trim())
    }

    /// Returns the network of the cluster, as address and prefix length.
    pub fn network(&self) -> String {
        let number = std::fs::read_to_string(self.ssh_config().with_file_name("net")).unwrap();
        format!("10.213.{}.0/24", number.trim())
    }

    /// Writes a host file of nodes `first` to `last` with `slots` ranks each, and returns its path.
    pub fn list(&self, name: &str, first: usize, last: usize, slots: usize) -> PathBuf {
        let path = self.path(name);
        let text: String = (first..=last).map(|n| format!("n{n} slots={slots}\n")).collect();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Returns the arguments of Open MPI's mpirun for virtual nodes, which have one network and share cores.
    fn openmpi_args(&self) -> Vec<String> {
        let network = self.network();
        // Open MPI 5 has another runtime, with its own option for the network.
        let runtime = match major_version(&World::library()) {
            Some(5..) => "--prtemca prte_if_include",
            _ => "-mca oob_tcp_if_include",
        };
        let words = format!(
            "--launcher-args=--mca btl self,tcp --mca btl_tcp_if_include {network} \
             {runtime} {network} --mca mpi_yield_when_idle 1 --bind-to none"
        );
        exports([relaxed()]).chain([words]).collect()
    }

    /// Returns the flags that set Open MPI's variables for ranks that another launcher starts on virtual nodes.
    fn openmpi_exports(&self) -> Vec<String> {
        let network = self.network();
        let settings = [
            "OMPI_MCA_btl=self,tcp".to_string(),
            format!("OMPI_MCA_btl_tcp_if_include={network}"),
            "OMPI_MCA_mpi_yield_when_idle=1".to_string(),
            relaxed(),
        ];
        exports(settings).collect()
    }

    /// Returns the flags that set MPICH's variables for ranks on virtual nodes.
    fn mpich_exports(&self) -> Vec<String> {
        let settings =
            [relaxed(), "UCX_TLS=tcp,self".to_string(), "UCX_NET_DEVICES=eth0".to_string()];
        exports(settings).collect()
    }

    /// Returns a supervised run on all nodes with `slots` ranks per node, without the program and its arguments.
    fn supervised(&self, name: &str, slots: usize) -> Plan {
        let work = self.path(name);
        std::fs::create_dir_all(&work).unwrap();
        let state = self.path(&format!("{name}.state"));
        let mut command = Command::new(PROGRAM);
        forget_settings(&mut command);
        command.current_dir(&work).arg("run").arg("--state").arg(&state);
        command.arg("--hosts").arg(self.list("hosts", 1, self.working, slots));
        if self.nodes > self.working {
            let spares = self.list("spares", self.working + 1, self.nodes, slots);
            command.arg("--spares").arg(spares);
        }
        command.arg("--rsh").arg(format!("ssh -F {}", self.ssh_config().display()));
        command.args(["--launcher", launcher_name(launcher())]);
        if launcher() == Launcher::Openmpi {
            command.args(self.openmpi_args());
        }
        let faults = self.path(&format!("{name}.faults"));
        let plan = Plan { command, state, faults, tail: Vec::new() };
        plan.inheriting(Signal::SIGINT, SigHandler::SigDfl)
            .inheriting(Signal::SIGHUP, SigHandler::SigDfl)
    }

    /// Returns the output of `skt-hpl doctor` for the benchmark on all nodes, without the check of MPI.
    pub fn doctor(&self) -> String {
        let mut doctor = Command::new(PROGRAM);
        forget_settings(&mut doctor);
        doctor.arg("doctor").arg("--hosts").arg(self.list("hosts", 1, self.working, 1));
        doctor.arg("--spares").arg(self.list("spares", self.working + 1, self.nodes, 1));
        doctor.arg("--rsh").arg(format!("ssh -F {}", self.ssh_config().display())).arg("--no-mpi");
        let out = doctor.args(benchmark_flags()).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Returns a run of the stand-in program, two ranks per node. It counts to `iterations`, and each iteration takes 0.1 s.
    pub fn stand_in(&self, name: &str, iterations: u32) -> Plan {
        let mut plan = self.supervised(name, 2);
        plan.command.args(["--ranks", &(2 * self.working).to_string()]);
        plan.command.arg("--program").arg(repository().join("tests/node_loss/stand-in"));
        plan.tail =
            vec![self.path(name).display().to_string(), iterations.to_string(), "0.1".into()];
        plan
    }

    /// Returns a run of the benchmark, one rank on each of four nodes.
    pub fn benchmark(&self, name: &str) -> Plan {
        self.hanging(name, HELD_MIN)
    }

    /// Returns a run of the benchmark on four nodes. A rank counts as hung after `hang_min` without progress.
    pub fn hanging(&self, name: &str, hang_min: &str) -> Plan {
        assert_eq!(self.working, 4, "a 2 x 2 grid");
        let mut plan = self.supervised(name, 1);
        if launcher() == Launcher::Mpich {
            plan.command.args(self.mpich_exports());
        }
        plan.command.args(["--hang-min", hang_min]);
        plan.tail = benchmark_flags();
        plan
    }

    /// Returns a run of the benchmark under `--nonstop`, with a spare rank on a fifth node.
    pub fn in_place(&self, name: &str) -> Plan {
        self.hanging_in_place(name, &HELD)
    }

    /// Returns a run of the benchmark under `--nonstop` with a spare rank. The flags `when` set the time after which a rank
    /// counts as hung.
    pub fn hanging_in_place(&self, name: &str, when: &[&str]) -> Plan {
        assert_eq!(self.working, 5, "a 2 x 2 grid and a spare rank");
        let mut plan = self.supervised(name, 1);
        plan.command.args(when);
        plan.tail = benchmark_flags();
        plan.benchmark_flags(&["--nonstop", "--spare-ranks", "1"])
    }

    /// Returns a run of the benchmark under `--nonstop` with two ranks on each of three nodes. The two ranks of the third node
    /// are spares.
    pub fn in_place_by_twos(&self, name: &str) -> Plan {
        assert_eq!(self.working, 3, "a 2 x 2 grid and two spare ranks");
        let mut plan = self.supervised(name, 2);
        plan.command.args(HELD);
        plan.tail = benchmark_flags();
        plan.benchmark_flags(&["--nonstop", "--spare-ranks", "2"])
    }

    /// Returns a run of the benchmark on six nodes. The last two store only the parity of the two groups.
    pub fn with_dedicated(&self, name: &str) -> Plan {
        assert_eq!(self.working, 6, "a 2 x 2 grid and two ranks for checksums");
        let mut plan = self.supervised(name, 1);
        if launcher() == Launcher::Mpich {
            plan.command.args(self.mpich_exports());
        }
        plan.command.args(HELD);
        plan.tail = benchmark_flags();
        plan.benchmark_flags(&["--parity-layout", "dedicated"])
    }

    /// Returns a run of the benchmark with checksum columns, one rank on each of six nodes. Two of the ranks form the process
    /// column of checksums.
    pub fn with_checksums(&self, name: &str) -> Plan {
        assert_eq!(self.working, 6, "a 2 x 2 grid and a column of two ranks");
        let mut plan = self.supervised(name, 1);
        plan.command.args(HELD);
        plan.tail = PROBLEM.split(' ').map(String::from).collect();
        plan.benchmark_flags(&["--method", "abft"])
    }

    /// Returns a run of the benchmark with checksum columns, two ranks on each of four nodes. The last two ranks are spares.
    pub fn with_new_checksums(&self, name: &str) -> Plan {
        assert_eq!(self.working, 4, "a 2 x 2 grid, a column of two ranks and two that stand by");
        let mut plan = self.supervised(name, 2);
        plan.command.args(HELD);
        plan.tail = PROBLEM.split(' ').map(String::from).collect();
        plan.benchmark_flags(&["--method", "abft", "--spare-ranks", "2"])
    }

    /// Returns a run of the benchmark without checkpoints.
    pub fn unprotected(&self, name: &str) -> Plan {
        let mut plan = self.supervised(name, 1);
        if launcher() == Launcher::Mpich {
            plan.command.args(self.mpich_exports());
        }
        plan.tail = PROBLEM.split(' ').map(String::from).collect();
        plan
    }

    /// Returns a run of the benchmark in a Slurm allocation of all nodes, of which one is a spare. `by` is the launcher.
    pub fn allocated(&self, name: &str, by: Launcher) -> Plan {
        let work = self.path(name);
        std::fs::create_dir_all(&work).unwrap();
        let state = self.path(&format!("{name}.state"));
        let mut command = Command::new("salloc");
        forget_settings(&mut command);
        command.current_dir(&work);
        command.env("SLURM_CONF", self.ssh_config().with_file_name("slurm.conf"));
        command.args(["--no-kill", "--quiet", "--ntasks-per-node=1", "-t", "10"]);
        command.args(["-N", &self.nodes.to_string(), PROGRAM, "run", "--state"]).arg(&state);
        command.args(["--spare-nodes", "1", "--launcher", launcher_name(by)]).args(HELD);
        match (launcher(), by) {
            (Launcher::Mpich, _) => command.args(self.mpich_exports()),
            (_, Launcher::Srun) => command.args(self.openmpi_exports()),
            _ => command.args(self.openmpi_args()),
        };
        let faults = self.path(&format!("{name}.faults"));
        Plan { command, state, faults, tail: benchmark_flags() }
    }

    /// Returns a run of the benchmark in a Slurm job of all nodes, started by `hpl-configs/job.slurm`.
    pub fn job_script(&self, name: &str) -> Plan {
        let work = self.path(name);
        let state = self.path(&format!("{name}.state"));
        let told = told_in(&state);
        for folder in [&work, &told] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let mut command = Command::new("sbatch");
        forget_settings(&mut command);
        command.current_dir(&work);
        command.env("SLURM_CONF", self.ssh_config().with_file_name("slurm.conf"));
        command.env("HPL_PROGRAM", PROGRAM).env("SPARE_NODES", "0");
        // The batch job writes its output to the files that `Run` reads.
        for (stream, file) in [("output", "test.out"), ("error", "test.err")] {
            command.arg(format!("--{stream}={}", told.join(file).display()));
        }
        command.args(["--wait", "--open-mode=append", "--cpus-per-task=1", "--time=10"]);
        command.args(["--nodes", &self.nodes.to_string()]);
        command.arg(repository().join("hpl-configs/job.slurm"));
        command.arg("--state").arg(&state).args(HELD);
        command.args(["--launcher", launcher_name(launcher())]);
        match launcher() {
            Launcher::Mpich => command.args(self.mpich_exports()),
            _ => command.args(self.openmpi_args()),
        };
        let faults = self.path(&format!("{name}.faults"));
        Plan { command, state, faults, tail: benchmark_flags() }
    }

    /// Returns the digest of x from the result file of a run of the benchmark.
    pub fn solution(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.path(name).join("result.json")).unwrap();
        let result: Value = serde_json::from_str(&text).unwrap();
        let outcome = &result["tests"][0]["outcome"];
        outcome["x_digest"].as_str().unwrap_or_else(|| panic!("no digest in {text}")).to_string()
    }

    /// Returns the digest of x of an undisturbed run. It is the same for all tests, so it is computed once, on a cluster of its
    /// own, whose nodes no test has lost.
    pub fn undisturbed() -> String {
        static KNOWN: Mutex<Option<String>> = Mutex::new(None);
        // The lock is kept during the run, so that other tests wait for the digest.
        let mut known = KNOWN.lock().unwrap_or_else(|broken| broken.into_inner());
        known
            .get_or_insert_with(|| {
                let lab = Self::up(4, 0);
                let end = lab.benchmark("undisturbed").start().end();
                end.passed();
                assert!(end.of("fault").is_empty(), "{}", end.told());
                for node in ["n1", "n2", "n3", "n4"] {
                    assert_eq!(lab.memory_of(node), "", "left behind on {node}");
                }
                lab.solution("undisturbed")
            })
            .clone()
    }

    /// Asserts that the run passed and found the x of an undisturbed run, bit for bit.
    pub fn same_x(&self, name: &str, end: &Ended) {
        end.passed();
        assert_eq!(self.solution(name), Self::undisturbed(), "another x. {}", end.told());
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // A launcher may outlive its supervisor, and would wait for its nodes for ever.
        for entry in std::fs::read_dir(self.dir.path()).into_iter().flatten().flatten() {
            for launched in events_in(&entry.path()).iter().filter(|e| e["event"] == "launched") {
                let id: Option<ProcessId> =
                    serde_json::from_value(launched["launcher"].clone()).ok();
                if let Some(id) = id.filter(|id| is_alive(*id)) {
                    let _ = killpg(Pid::from_raw(id.pid as i32), Signal::SIGKILL);
                }
            }
        }
        // If the test has failed, it has its own message, so this output is not shown.
        let _ = self.vcluster_command(&["down"]).output();
    }
}

/// Runs a command, which must succeed, and returns its standard output.
fn succeeded(command: &mut Command) -> String {
    let out = command.output().unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Waits until `come` returns true. Panics after `TIMEOUT`, and names `what` in the message.
pub fn wait_until(what: &str, mut come: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !come() {
        assert!(Instant::now() < deadline, "not yet: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the folder for a supervisor's output. It is not inside the run's folder, which may be on a full disk.
fn told_in(state: &Path) -> PathBuf {
    state.with_extension("told")
}

fn events_in(state: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(state.join("events.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// A run that is not started yet.
pub struct Plan {
    command: Command,
    state: PathBuf,
    faults: PathBuf,
    /// Arguments of the supervised program.
    tail: Vec<String>,
}

impl Plan {
    /// Adds flags of the supervisor.
    pub fn flags(mut self, flags: &[&str]) -> Self {
        self.command.args(flags);
        self
    }

    /// Adds flags of the supervised program.
    pub fn benchmark_flags(mut self, flags: &[impl AsRef<str>]) -> Self {
        self.tail.extend(flags.iter().map(|flag| flag.as_ref().to_owned()));
        self
    }

    /// Injects faults into the ranks. `Run::await_fault` waits for a fault.
    pub fn faults(mut self, faults: &str) -> Self {
        self.command.env("SKT_FAULT", faults).env("SKT_FAULT_LOG", &self.faults);
        self
    }

    /// Sets the supervisor's clock ahead by as many seconds as `file` contains at any moment.
    pub fn clock_ahead_by(mut self, file: &Path) -> Self {
        self.command.env("LD_PRELOAD", clock()).env("CLOCK_STEP", file);
        self
    }

    /// Makes the paths of `stall` hang for the supervisor and the launcher.
    pub fn with(mut self, stall: &Stall) -> Self {
        self.command.envs(stall.settings());
        self
    }

    /// Puts `folder` at the beginning of the supervisor's PATH.
    pub fn path_begins(mut self, folder: &Path) -> Self {
        let rest = std::env::var("PATH").unwrap();
        self.command.env("PATH", format!("{}:{rest}", folder.display()));
        self
    }

    /// Starts the supervisor with a signal ignored, as `nohup` does with SIGHUP.
    pub fn ignoring(self, which: Signal) -> Self {
        self.inheriting(which, SigHandler::SigIgn)
    }

    /// Starts the supervisor so that it inherits the action `does` for the signal `which`.
    fn inheriting(mut self, which: Signal, does: SigHandler) -> Self {
        inheriting(&mut self.command, which, does);
        self
    }

    /// Starts the supervisor in a process group of its own, like the foreground group of a terminal.
    pub fn in_its_own_group(mut self) -> Self {
        self.command.process_group(0);
        self
    }

    /// Starts the supervisor in a process namespace of its own. Otherwise it sees the processes of all virtual nodes, which share
    /// its kernel. It would then end leftover processes of the run there as its own.
    pub fn apart_from_nodes(mut self) -> Self {
        let mut apart = Command::new("unshare");
        apart.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        apart.arg(self.command.get_program()).args(self.command.get_args());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => apart.env(name, value),
                None => apart.env_remove(name),
            };
        }
        apart.current_dir(self.command.get_current_dir().expect("it has a folder of its own"));
        self.command = apart;
        self
    }

    /// Makes the remote shell run the shell command `first` before it connects to a node.
    pub fn reached_after(mut self, lab: &Lab, first: &str) -> Self {
        let config = lab.ssh_config();
        let text = format!("#!/bin/sh\n{first}\nexec ssh -F {} \"$@\"\n", config.display());
        self.command.arg("--rsh").arg(lab.script("shell", &text));
        self
    }

    /// Sets the orders N of the tests, separated by commas.
    pub fn orders(self, orders: &str) -> Self {
        self.with_other("-n", orders)
    }

    /// Sets the block size NB.
    pub fn blocks(self, width: &str) -> Self {
        self.with_other("--nb", width)
    }

    /// Sets the interval of saves (`--checkpoint`).
    pub fn saves_every(self, iterations: &str) -> Self {
        self.with_other("--checkpoint", iterations)
    }

    /// Replaces the value of a flag that the program's arguments contain.
    fn with_other(mut self, flag: &str, value: &str) -> Self {
        let at = self.tail.iter().position(|word| word == flag).unwrap();
        self.tail[at + 1] = value.to_string();
        self
    }

    pub fn start(mut self) -> Run {
        self.command.args(&self.tail);
        Run::start(&mut self.command, self.state, self.faults)
    }

    /// Starts a second supervisor for the job of `run`. Its output goes to files of its own.
    pub fn start_second(mut self, run: &Run) -> Run {
        self.command.args(&self.tail);
        let state = run.state.join("second");
        let mut second = Run::start(&mut self.command, state, self.faults);
        second.state = run.state.join("second");
        second
    }

    /// Starts the run, and waits until a rank has stopped at `place` (`ATTEMPT@POINT:POSITION:HIT`). All other ranks wait for
    /// this rank, or soon will.
    pub fn hold(self, place: &str) -> Run {
        self.hold_each(&[place])
    }

    /// Starts the run with a fault at each of `places` that stops a rank there. The run reaches the places one after the other.
    /// Waits for the first fault.
    pub fn hold_each(self, places: &[&str]) -> Run {
        self.keep_at(places, "stop")
    }

    /// Starts the run with a fault at each of `places` that makes a rank hang there. Waits for the first fault. Tests that kill
    /// the launcher use it: daemons of a killed launcher would wake stopped ranks.
    pub fn hang_each(self, places: &[&str]) -> Run {
        self.keep_at(places, "hang")
    }

    fn keep_at(self, places: &[&str], action: &str) -> Run {
        // Faults injected under an earlier supervisor do not count.
        let _ = std::fs::remove_file(&self.faults);
        let faults: Vec<String> = places.iter().map(|place| format!("{place}:{action}")).collect();
        let mut run = self.faults(&faults.join(",")).start();
        run.await_fault(places[0]);
        run
    }
}

/// A started supervised run. Dropping the value kills its supervisor.
pub struct Run {
    child: Option<Child>,
    state: PathBuf,
    faults: PathBuf,
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Run {
    pub fn start(command: &mut Command, state: PathBuf, faults: PathBuf) -> Self {
        // The output goes to files: nobody reads pipes while the run lasts.
        let told = told_in(&state);
        std::fs::create_dir_all(&told).unwrap();
        let create = |name: &str| std::fs::File::create(told.join(name)).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(create("test.out"))
            .stderr(create("test.err"))
            .spawn()
            .unwrap();
        Self { child: Some(child), state, faults }
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("it has not ended yet")
    }

    /// Returns the process id of the supervisor.
    pub fn pid(&mut self) -> u32 {
        self.child().id()
    }

    pub fn over(&mut self) -> bool {
        self.child().try_wait().unwrap().is_some()
    }

    pub fn events(&self) -> Vec<Value> {
        events_in(&self.state)
    }

    /// Returns the supervisor's standard output and standard error so far.
    pub fn told(&self) -> String {
        let told = told_in(&self.state);
        let read = |name: &str| std::fs::read_to_string(told.join(name)).unwrap_or_default();
        format!("{}\n{}", read("test.out"), read("test.err"))
    }

    /// Waits until `found` returns Some, and returns its value. Panics if the run ends before, or after `TIMEOUT`, and names
    /// `what` in the message.
    fn until<T>(&mut self, what: &str, mut found: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let over = self.over() || Instant::now() > deadline;
            if let Some(found) = found(self) {
                return found;
            }
            assert!(!over, "no {what}: {}", self.told());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the `nth` event `name`, counted from 1, and returns it.
    pub fn wait_for(&mut self, name: &str, nth: usize) -> Value {
        self.until(&format!("'{name}' number {nth}"), |run| {
            run.events().into_iter().filter(|e| e["event"] == name).nth(nth - 1)
        })
    }

    /// Waits until the `nth` halt is requested and rank 0 has received it, and returns the event. The other ranks follow rank 0.
    /// The request goes to rank 0 through its node, which repeats it each second.
    pub fn wait_for_halt(&mut self, nth: usize) -> Value {
        let asked = self.wait_for("halt-requested", nth);
        std::thread::sleep(Duration::from_secs(2));
        asked
    }

    /// Waits until the file `name` is in the run's folder.
    pub fn wait_for_file(&mut self, name: &str) {
        self.until(name, |run| run.state.join(name).exists().then_some(()));
    }

    /// Waits until the output of the supervisor contains `words`.
    pub fn wait_for_words(&mut self, words: &str) {
        self.until(words, |run| run.told().contains(words).then_some(()));
    }

    /// Waits until the fault at `place` (`POINT:POSITION:HIT`, with or without `ATTEMPT@` in front) is injected.
    pub fn await_fault(&mut self, place: &str) {
        let place = place.split_once('@').map_or(place, |(_, place)| place);
        let fields: Vec<&str> = place.split(':').collect();
        let line = format!("position {}: {} hit {} ", fields[1], fields[0], fields[2]);
        self.until(place, |run| {
            let log = std::fs::read_to_string(&run.faults).unwrap_or_default();
            log.contains(&line).then_some(())
        });
        // A fault is logged before it is injected, so the rank may not be stopped yet. Another rank may have been stopped before.
        // A rank that stays stopped may be taken for dead and ended.
        let began = Instant::now();
        while stopped(&self.faults).is_none() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50));
    }

    /// Waits until the run computes, and then for 1.5 s.
    pub fn computing(&mut self) {
        self.wait_for("computing", 1);
        std::thread::sleep(Duration::from_millis(1500));
    }

    pub fn signal(&mut self, signal: Signal) {
        kill(Pid::from_raw(self.child().id() as i32), signal).unwrap();
    }

    /// Sends a signal to the supervisor's process group, as a terminal does to its foreground group.
    pub fn signal_group(&mut self, signal: Signal) {
        killpg(Pid::from_raw(self.child().id() as i32), signal).unwrap();
    }

    /// Kills the supervisor with SIGKILL, and no other process.
    pub fn kill_supervisor(mut self) {
        self.signal(Signal::SIGKILL);
        assert_eq!(self.end().code, None);
    }

    /// Returns the path of a file in the run's folder, or the folder for an empty name.
    pub fn file(&self, name: &str) -> PathBuf {
        self.state.join(name)
    }

    /// Returns the path of the file to which an attempt's launcher writes its exit status.
    pub fn exit_file(&self, attempt: u32) -> PathBuf {
        self.state.join(format!("exit.{attempt}"))
    }

    /// Returns the launcher's process of the first attempt.
    pub fn launcher(&mut self) -> ProcessId {
        serde_json::from_value(self.wait_for("launched", 1)["launcher"].clone()).unwrap()
    }

    /// Kills the first attempt's launcher together with its wrapper, so that no exit status is written.
    pub fn kill_launcher(&mut self) {
        self.kill_launcher_of(1);
    }

    /// Kills the launcher of an attempt together with its wrapper.
    pub fn kill_launcher_of(&mut self, attempt: usize) {
        let launched = self.wait_for("launched", attempt);
        let pid = launched["launcher"]["pid"].as_i64().unwrap();
        killpg(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap();
    }

    /// Runs `skt-hpl halt` with `flags`.
    pub fn halt(&self, flags: &[&str]) {
        let mut halt = Command::new(PROGRAM);
        halt.arg("halt").arg("--state").arg(&self.state).args(flags).stdout(Stdio::null());
        assert!(halt.status().unwrap().success());
    }

    /// Waits for the end of the run, and returns its result.
    pub fn end(mut self) -> Ended {
        let deadline = Instant::now() + TIMEOUT;
        while !self.over() {
            assert!(Instant::now() < deadline, "the run does not end: {}", self.told());
            std::thread::sleep(Duration::from_millis(20));
        }
        let code = self.child().wait().unwrap().code();
        self.child = None;
        let told = told_in(&self.state);
        let read = |name: &str| std::fs::read_to_string(told.join(name)).unwrap_or_default();
        Ended { code, output: read("test.out"), errors: read("test.err"), events: self.events() }
    }
}

/// Result of an ended run.
pub struct Ended {
    pub code: Option<i32>,
    pub output: String,
    pub errors: String,
    pub events: Vec<Value>,
}

impl Ended {
    /// Returns the exit code and all output, for a message.
    pub fn told(&self) -> String {
        format!("status {:?}\n{}\n{}", self.code, self.output, self.errors)
    }

    pub fn of(&self, name: &str) -> Vec<&Value> {
        self.events.iter().filter(|e| e["event"] == name).collect()
    }

    /// Returns the times of all events, in milliseconds.
    pub fn moments(&self) -> Vec<u64> {
        self.events.iter().filter_map(|event| event["at_ms"].as_u64()).collect()
    }

    pub fn passed(&self) {
        assert_eq!(self.code, Some(0), "{}", self.told());
        assert!(self.output.contains("PASSED"), "{}", self.told());
        assert!(self.errors.contains("wall time"), "no report at the end: {}", self.told());
    }

    /// Returns the kinds of the faults that the supervisor noticed, in order.
    pub fn faults(&self) -> Vec<&str> {
        self.of("fault").iter().map(|fault| fault["kind"].as_str().unwrap()).collect()
    }

    /// Asserts that the run passed with a single fault, whose kind is one of `kinds`. Returns the event of the fault.
    pub fn survived(&self, kinds: &[&str]) -> &Value {
        self.passed();
        let faults = self.faults();
        assert!(faults.len() == 1 && kinds.contains(&faults[0]), "{faults:?}: {}", self.told());
        self.of("fault")[0]
    }

    /// Returns the host names of the last attempt, in rank order.
    pub fn hosts(&self) -> Vec<&str> {
        let launched = self.of("launched");
        let hosts = launched.last().unwrap()["hosts"].as_array().unwrap();
        hosts.iter().map(|h| h["name"].as_str().unwrap()).collect()
    }

    /// Returns the boundaries at which the ranks resumed, in order, from their output.
    pub fn resumed_at(&self) -> Vec<usize> {
        let told = self.errors.split("resumes at boundary ").skip(1);
        told.map(|rest| rest[..rest.find(' ').unwrap()].parse().unwrap()).collect()
    }

    /// Returns the lists of rebuilt positions, in order, from the ranks' output.
    pub fn rebuilt(&self) -> Vec<Vec<usize>> {
        let told = self.errors.split("rebuilt positions ").skip(1);
        told.map(|rest| serde_json::from_str(&rest[..=rest.find(']').unwrap()]).unwrap()).collect()
    }
}
