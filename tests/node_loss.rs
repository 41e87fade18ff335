//! Losing nodes for real: `skt-hpl run` on virtual clusters, plugs pulled by `scripts/vcluster`.
//!
//! Each test has a cluster of its own, which ends with the test process whatever happens. They need root and
//! make network namespaces, and take minutes together, so they are asked for by name:
//!
//! ```text
//! cargo test --test node_loss -- --ignored --test-threads 3
//! ```
//!
//! What runs under supervision is `tests/supervise/stand-in`: supervision does not care what it supervises, and
//! a rank that only counts and sleeps lets a fault be placed exactly.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

const LAUNCHERS: [&str; 2] = ["openmpi", "mpich"];
const PATIENCE: Duration = Duration::from_secs(60);
/// Nodes the stand-in runs on; the cluster's others are spares.
const WORKING: usize = 3;
const RANKS_A_NODE: usize = 2;

static LABS: AtomicUsize = AtomicUsize::new(0);

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A virtual cluster and a folder for runs on it.
struct Lab {
    name: String,
    dir: tempfile::TempDir,
    nodes: usize,
}

impl Lab {
    fn up(nodes: usize) -> Self {
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let name = format!("t{}-{number}", std::process::id());
        // Nodes have a /tmp of their own; this folder they share.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let lab = Self { name, dir, nodes };
        let pid = std::process::id().to_string();
        lab.vcluster(&["up", &nodes.to_string(), "--shm", "192m", "--while", &pid]);
        lab
    }

    fn vcluster(&self, words: &[&str]) -> String {
        let out = Command::new(repository().join("scripts/vcluster"))
            .args(["-c", &self.name])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "vcluster {words:?}: {errors}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn list(&self, name: &str, first: usize, last: usize) -> PathBuf {
        let path = self.path(name);
        let text: String = (first..=last).map(|n| format!("n{n} slots={RANKS_A_NODE}\n")).collect();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The command of a run, still to be started.
    fn command(&self, run: &str, launcher: &str, iterations: u32, flags: &[&str]) -> Command {
        let mut command = self.supervised(run, launcher);
        command.arg("--program").arg(repository().join("tests/supervise/stand-in"));
        command.args(flags).arg(self.path(run)).args([&iterations.to_string(), "0.1"]);
        command
    }

    /// The part of the command that does not depend on what is run.
    fn supervised(&self, run: &str, launcher: &str) -> Command {
        let work = self.path(run);
        std::fs::create_dir_all(&work).unwrap();
        let ssh = self.vcluster(&["ssh-config"]);
        let network = std::fs::read_to_string(Path::new(ssh.trim()).with_file_name("net")).unwrap();
        let network = format!("10.213.{}.0/24", network.trim());
        let mut command = Command::new(env!("CARGO_BIN_EXE_skt-hpl"));
        command.arg("run").arg("--state").arg(self.path(&format!("{run}.state")));
        command.arg("--hosts").arg(self.list("hosts", 1, WORKING));
        if self.nodes > WORKING {
            command.arg("--spares").arg(self.list("spares", WORKING + 1, self.nodes));
        }
        command.arg("--rsh").arg(format!("ssh -F {}", ssh.trim()));
        command.args(["--launcher", launcher, "--ranks", &(WORKING * RANKS_A_NODE).to_string()]);
        if launcher == "openmpi" {
            command.arg(format!(
                "--launcher-args=-mca btl self,tcp -mca btl_tcp_if_include {network} \
                 -mca oob_tcp_if_include {network} -mca mpi_yield_when_idle 1 --bind-to none"
            ));
        }
        command
    }

    /// A run of the benchmark itself, saving often.
    fn benchmark(&self, run: &str) -> Run {
        let mut command = self.supervised(run, "openmpi");
        command.current_dir(self.path(run));
        command
            .args("-n 3000 --nb 32 -p 2 -q 3 --threads 1 --no-preflight --checkpoint 6".split(' '));
        command.args(["--json", "result.json"]);
        Run::start(&mut command, self.path(&format!("{run}.state")))
    }

    /// The digest of the solution a run of the benchmark found.
    fn solution(&self, run: &str) -> String {
        let text = std::fs::read_to_string(self.path(run).join("result.json")).unwrap();
        let found = regex::Regex::new("\"x_digest\": *\"([0-9a-f]{16})\"").unwrap();
        found.captures(&text).expect("a digest in the result")[1].to_string()
    }

    fn run(&self, run: &str, launcher: &str, iterations: u32, flags: &[&str]) -> Run {
        let mut command = self.command(run, launcher, iterations, flags);
        Run::start(&mut command, self.path(&format!("{run}.state")))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.vcluster(&["down"]);
    }
}

struct Run {
    child: Child,
    state: PathBuf,
}

/// How a run ended.
struct Ended {
    code: Option<i32>,
    output: String,
    errors: String,
    events: Vec<Value>,
}

impl Run {
    fn start(command: &mut Command, state: PathBuf) -> Self {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, state }
    }

    fn events(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.state.join("events.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until an event of this name is the `nth` (from 1).
    fn wait_for(&mut self, name: &str, nth: usize) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let found: Vec<Value> =
                self.events().into_iter().filter(|e| e["event"] == name).collect();
            if found.len() >= nth {
                return found[nth - 1].clone();
            }
            let over = self.child.try_wait().unwrap().is_some() || Instant::now() > until;
            assert!(!over, "no '{name}' number {nth} among {:#?}", self.events());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Lets it compute for a moment.
    fn computing(&mut self) {
        self.wait_for("computing", 1);
        std::thread::sleep(Duration::from_millis(1500));
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    fn end(mut self) -> Ended {
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() > until {
                let events = self.events();
                let _ = self.child.kill();
                panic!("the run does not end: {events:#?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let events = self.events();
        let out = self.child.wait_with_output().unwrap();
        Ended {
            code: out.status.code(),
            output: String::from_utf8_lossy(&out.stdout).into_owned(),
            errors: String::from_utf8_lossy(&out.stderr).into_owned(),
            events,
        }
    }
}

impl Ended {
    fn of(&self, name: &str) -> Vec<&Value> {
        self.events.iter().filter(|e| e["event"] == name).collect()
    }

    /// One fault of the kind, the run going on to its result.
    fn survived(&self, kind: &str) -> &Value {
        let faults = self.of("fault");
        assert_eq!(faults.len(), 1, "{}", self.errors);
        assert_eq!(faults[0]["kind"], kind, "{}", self.errors);
        self.passed();
        faults[0]
    }

    fn passed(&self) {
        assert_eq!(self.code, Some(0), "{}", self.errors);
        assert!(self.output.contains("PASSED"), "{} {}", self.output, self.errors);
        let text = &self.errors;
        assert!(text.contains("wall time"), "no report at the end: {text}");
    }

    fn last_hosts(&self) -> Vec<String> {
        let launched = self.of("launched");
        let hosts = launched.last().unwrap()["hosts"].as_array().unwrap();
        hosts.iter().map(|h| h["name"].as_str().unwrap().to_string()).collect()
    }
}

fn since_ms(event: &Value, moment_ms: u64) -> u64 {
    event["at_ms"].as_u64().unwrap().saturating_sub(moment_ms)
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_millis() as u64
}

#[test]
#[ignore = "needs root"]
fn an_undisturbed_run_passes() {
    let lab = Lab::up(4);
    for launcher in LAUNCHERS {
        let end = lab.run(launcher, launcher, 20, &[]).end();
        end.passed();
        assert!(end.of("fault").is_empty());
        assert!(lab.vcluster(&["ssh", "n1", "ls", "/dev/shm"]).is_empty());
    }
}

#[test]
#[ignore = "needs root"]
fn a_silent_power_off_is_noticed_within_five_seconds() {
    let lab = Lab::up(4);
    for launcher in LAUNCHERS {
        let mut run = lab.run(launcher, launcher, 60, &[]);
        run.computing();
        let struck = now_ms();
        lab.vcluster(&["cut-off", "n2"]);
        let end = run.end();
        let fault = end.survived("node-silent");
        assert!(since_ms(fault, struck) <= 5000, "after {} ms", since_ms(fault, struck));
        assert_eq!(end.last_hosts(), ["n1", "n4", "n3"]);
        let again = end.of("computing")[1];
        assert!(since_ms(again, struck) < 12_000, "computing after {} ms", since_ms(again, struck));
        lab.vcluster(&["back", "n2"]);
    }
}

#[test]
#[ignore = "needs root"]
fn a_visible_power_off_is_noticed_within_a_second() {
    let lab = Lab::up(4);
    for launcher in LAUNCHERS {
        let mut run = lab.run(launcher, launcher, 60, &[]);
        run.computing();
        let struck = now_ms();
        lab.vcluster(&["off", "n1"]);
        let end = run.end();
        let faults = end.of("fault");
        assert_eq!(faults.len(), 1, "{}", end.errors);
        assert!(since_ms(faults[0], struck) <= 1000, "after {} ms", since_ms(faults[0], struck));
        end.passed();
        assert_eq!(end.last_hosts(), ["n4", "n2", "n3"]);
        lab.vcluster(&["back", "n1"]);
    }
}

#[test]
#[ignore = "needs root"]
fn a_killed_rank_comes_back_on_its_own_node() {
    let lab = Lab::up(4);
    for launcher in LAUNCHERS {
        let mut run = lab.run(launcher, launcher, 60, &[]);
        run.computing();
        let struck = now_ms();
        lab.vcluster(&["kill", "n3", "python3"]);
        let end = run.end();
        let faults = end.of("fault");
        assert_eq!(faults.len(), 1, "{}", end.errors);
        assert!(since_ms(faults[0], struck) <= 1000, "after {} ms", since_ms(faults[0], struck));
        end.passed();
        assert_eq!(end.last_hosts(), ["n1", "n2", "n3"], "no node was lost");
        assert!(end.of("node-lost").is_empty());
    }
}

#[test]
#[ignore = "needs root"]
fn a_hung_rank_is_noticed_and_its_node_kept() {
    let lab = Lab::up(4);
    for launcher in LAUNCHERS {
        let mut run = lab.run(launcher, launcher, 60, &["--hang-min", "5s"]);
        run.computing();
        let struck = now_ms();
        lab.vcluster(&["hang", "n2", "python3"]);
        let end = run.end();
        let fault = end.survived("rank-hung");
        assert_eq!(fault["node"], "n2");
        assert!(since_ms(fault, struck) <= 7000, "after {} ms", since_ms(fault, struck));
        assert_eq!(end.last_hosts(), ["n1", "n2", "n3"]);
    }
}

#[test]
#[ignore = "needs root"]
fn a_node_that_hangs_as_a_whole_is_lost() {
    let lab = Lab::up(4);
    let mut run = lab.run("run", "openmpi", 60, &[]);
    run.computing();
    lab.vcluster(&["hang", "n3"]);
    let end = run.end();
    end.survived("node-silent");
    assert_eq!(end.last_hosts(), ["n1", "n2", "n4"]);
}

#[test]
#[ignore = "needs root"]
fn a_partition_that_heals_finds_its_old_copy_ended() {
    let lab = Lab::up(4);
    for launcher in LAUNCHERS {
        let mut run = lab.run(launcher, launcher, 200, &[]);
        run.computing();
        lab.vcluster(&["cut", "n2"]);
        run.wait_for("computing", 2);
        assert!(!lab.vcluster(&["status"]).is_empty());
        lab.vcluster(&["join", "n2"]);
        let back = run.wait_for("node-returned", 1);
        assert_eq!((&back["node"], &back["same_boot"]), (&"n2".into(), &true.into()));
        let processes = lab.vcluster(&["ssh", "n2", "pgrep -c python3 || true"]);
        assert_eq!(processes.trim(), "0", "the old copy still runs");
        let end = run.end();
        end.survived("node-silent");
        assert_eq!(end.last_hosts(), ["n1", "n4", "n3"], "down stays down");
    }
}

#[test]
#[ignore = "needs root"]
fn a_lost_spare_disturbs_nobody_and_is_not_used() {
    let lab = Lab::up(5);
    let mut run = lab.run("run", "openmpi", 100, &[]);
    run.computing();
    lab.vcluster(&["off", "n4"]);
    run.wait_for("node-lost", 1);
    lab.vcluster(&["cut-off", "n2"]);
    let end = run.end();
    end.survived("node-silent");
    assert_eq!(end.last_hosts(), ["n1", "n5", "n3"]);
}

#[test]
#[ignore = "needs root"]
fn two_nodes_at_once() {
    let lab = Lab::up(5);
    for launcher in LAUNCHERS {
        let mut run = lab.run(launcher, launcher, 60, &[]);
        run.computing();
        lab.vcluster(&["cut-off", "n1"]);
        lab.vcluster(&["cut-off", "n3"]);
        let end = run.end();
        end.survived("node-silent");
        assert_eq!(end.last_hosts(), ["n4", "n2", "n5"]);
        lab.vcluster(&["back", "n1"]);
        lab.vcluster(&["back", "n3"]);
    }
}

#[test]
#[ignore = "needs root"]
fn a_replacement_that_dies_during_recovery_is_replaced() {
    let lab = Lab::up(5);
    for launcher in LAUNCHERS {
        let mut run = lab.run(launcher, launcher, 60, &[]);
        run.computing();
        lab.vcluster(&["cut-off", "n2"]);
        run.wait_for("launched", 2);
        lab.vcluster(&["cut-off", "n4"]);
        let end = run.end();
        assert_eq!(end.of("fault").len(), 2, "{}", end.errors);
        end.passed();
        assert_eq!(end.last_hosts(), ["n1", "n5", "n3"]);
        lab.vcluster(&["back", "n2"]);
        lab.vcluster(&["back", "n4"]);
    }
}

#[test]
#[ignore = "needs root"]
fn a_killed_launcher_is_started_again() {
    let lab = Lab::up(3);
    for launcher in LAUNCHERS {
        let mut run = lab.run(launcher, launcher, 60, &[]);
        run.computing();
        let launched = run.wait_for("launched", 1);
        // Its wrapper and all: nobody leaves a status.
        let group = format!("-{}", launched["launcher"]["pid"]);
        assert!(Command::new("kill").args(["-KILL", "--", &group]).status().unwrap().success());
        let end = run.end();
        end.survived("launcher-gone");
        assert_eq!(end.last_hosts(), ["n1", "n2", "n3"]);
    }
}

#[test]
#[ignore = "needs root"]
fn a_killed_supervisors_successor_takes_the_running_job_over() {
    let lab = Lab::up(3);
    for launcher in LAUNCHERS {
        let mut run = lab.run(launcher, launcher, 80, &[]);
        run.computing();
        run.signal("-KILL");
        assert_eq!(run.end().code, None);
        let end = lab.run(launcher, launcher, 80, &[]).end();
        end.passed();
        assert!(end.of("fault").is_empty(), "{}", end.errors);
        assert_eq!(end.of("launched").len(), 1, "the job was to go on undisturbed");
        assert_eq!(end.of("took-over")[0]["adopted"], true);
    }
}

#[test]
#[ignore = "needs root"]
fn a_node_lost_while_nobody_watched_is_replaced_by_the_successor() {
    let lab = Lab::up(4);
    for launcher in LAUNCHERS {
        let mut run = lab.run(launcher, launcher, 60, &[]);
        run.computing();
        run.signal("-KILL");
        run.end();
        lab.vcluster(&["cut-off", "n3"]);
        let end = lab.run(launcher, launcher, 60, &[]).end();
        end.passed();
        assert_eq!(end.last_hosts(), ["n1", "n2", "n4"]);
        lab.vcluster(&["back", "n3"]);
    }
}

#[test]
#[ignore = "needs root"]
fn a_second_supervisor_is_refused() {
    let lab = Lab::up(3);
    let mut run = lab.run("run", "openmpi", 30, &[]);
    run.computing();
    let second = lab.run("run", "openmpi", 30, &[]).end();
    assert_eq!(second.code, Some(6));
    assert!(second.errors.contains("another supervisor"), "{}", second.errors);
    run.end().passed();
}

#[test]
#[ignore = "needs root"]
fn halt_and_resume() {
    let lab = Lab::up(3);
    for launcher in LAUNCHERS {
        for way in ["halt", "signal", "limit"] {
            let name = format!("{launcher}-{way}");
            let flags: &[&str] = if way == "limit" { &["--time-limit", "5s"] } else { &[] };
            let mut run = lab.run(&name, launcher, 60, flags);
            run.computing();
            match way {
                "halt" => {
                    let state = lab.path(&format!("{name}.state"));
                    let mut halt = Command::new(env!("CARGO_BIN_EXE_skt-hpl"));
                    assert!(halt.arg("halt").arg("--state").arg(state).status().unwrap().success());
                }
                "signal" => run.signal("-TERM"),
                _ => {}
            }
            let end = run.end();
            assert_eq!(end.code, Some(75), "{}", end.errors);
            assert!(end.errors.contains("the same command"), "{}", end.errors);
            let end = lab.run(&name, launcher, 60, &[]).end();
            end.passed();
            assert!(end.of("fault").is_empty(), "{way}: {} {:#?}", end.errors, end.events);
            let from = end.of("computing")[1]["iteration"].as_u64().unwrap();
            assert!(from > 0, "it was to go on, not to begin anew");
        }
    }
}

#[test]
#[ignore = "needs root"]
fn without_spares_survivors_take_more_ranks_or_the_run_stops_resumable() {
    let lab = Lab::up(3);
    let mut run = lab.run("double", "openmpi", 60, &[]);
    run.computing();
    lab.vcluster(&["cut-off", "n3"]);
    let end = run.end();
    end.survived("node-silent");
    assert_eq!(end.last_hosts(), ["n1", "n2"]);
    lab.vcluster(&["back", "n3"]);

    let mut run = lab.run("stop", "openmpi", 60, &["--no-doubling"]);
    run.computing();
    lab.vcluster(&["cut-off", "n3"]);
    let end = run.end();
    assert_eq!(end.code, Some(75), "{}", end.errors);
    assert!(lab.vcluster(&["ssh", "n1", "ls", "/dev/shm"]).contains("head"), "memory was not kept");
    lab.vcluster(&["back", "n3"]);

    let mut run = lab.run("wait", "openmpi", 60, &["--no-doubling", "--wait", "60s"]);
    run.computing();
    lab.vcluster(&["cut-off", "n3"]);
    run.wait_for("waiting", 1);
    lab.vcluster(&["back", "n3"]);
    let end = run.end();
    end.survived("node-silent");
    assert_eq!(end.of("node-returned")[0]["same_boot"], false);
    assert_eq!(end.last_hosts(), ["n1", "n2", "n3"]);
}

#[test]
#[ignore = "needs root"]
fn a_bug_is_told_from_bad_luck_and_bad_input_from_both() {
    let lab = Lab::up(3);
    for launcher in LAUNCHERS {
        let crash = ["--export", "STAND_IN_CRASH_AT=5"];
        let end = lab.run(&format!("{launcher}-bug"), launcher, 60, &crash).end();
        assert_eq!(end.code, Some(4), "{}", end.errors);
        assert_eq!(end.of("launched").len(), 3, "{}", end.errors);
        assert!(end.errors.contains("bug"), "{}", end.errors);
        for code in [1, 3] {
            let export = format!("STAND_IN_EXIT={code}");
            let name = format!("{launcher}-{code}");
            let end = lab.run(&name, launcher, 60, &["--export", &export]).end();
            assert_eq!(end.code, Some(code), "{}", end.errors);
            assert_eq!(end.of("launched").len(), 1, "{}", end.errors);
        }
    }
}

#[test]
#[ignore = "needs root"]
fn an_unfit_spare_is_passed_over() {
    let lab = Lab::up(6);
    // n4 has another program file at the same place, n5 no room.
    let own = env!("CARGO_BIN_EXE_skt-hpl");
    let other = lab.path("other");
    let mut bytes = std::fs::read(own).unwrap();
    bytes.push(0);
    std::fs::write(&other, bytes).unwrap();
    lab.vcluster(&["ssh", "n4", "chmod", "755", other.to_str().unwrap()]);
    lab.vcluster(&["ssh", "n4", "mount", "--bind", other.to_str().unwrap(), own]);
    lab.vcluster(&["ssh", "n5", "dd if=/dev/zero of=/dev/shm/full bs=1M 2>/dev/null || true"]);
    let mut run = lab.run("run", "openmpi", 60, &[]);
    run.computing();
    lab.vcluster(&["cut-off", "n1"]);
    let end = run.end();
    end.survived("node-silent");
    assert!(end.errors.contains("n4 cannot be used: the program file differs"), "{}", end.errors);
    assert_eq!(end.last_hosts(), ["n6", "n2", "n3"]);
}

#[test]
#[ignore = "needs root"]
fn a_slow_node_is_named_and_kept() {
    let lab = Lab::up(4);
    let mut run = lab.run("run", "openmpi", 120, &[]);
    run.computing();
    lab.vcluster(&["slow", "n3", "60ms", "100mbit"]);
    let slow = run.wait_for("slow-node", 1);
    assert_eq!(slow["node"], "n3");
    let end = run.end();
    end.passed();
    assert!(end.of("fault").is_empty(), "{}", end.errors);
}

#[test]
#[ignore = "needs root"]
fn the_doctor_finds_what_is_wrong_where() {
    let lab = Lab::up(3);
    let ssh = lab.vcluster(&["ssh-config"]);
    let doctor = |flags: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_skt-hpl"))
            .arg("doctor")
            .arg("--hosts")
            .arg(lab.list("hosts", 1, 3))
            .arg("--rsh")
            .arg(format!("ssh -F {}", ssh.trim()))
            .args(flags)
            .output()
            .unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (code, text) = doctor(&["--no-mpi"]);
    assert_eq!(code, Some(0), "{text}");
    lab.vcluster(&["cut-off", "n2"]);
    let (code, text) = doctor(&["--no-mpi"]);
    assert_eq!(code, Some(6), "{text}");
    assert!(text.contains("n2: PROBLEM"), "{text}");
}

/// The whole of it: the matrix of a dead node rebuilt from the others', and the same x, bit for bit.
#[test]
#[ignore = "needs root"]
fn the_benchmark_itself_finds_the_same_x_whatever_is_lost() {
    let lab = Lab::up(5);
    lab.benchmark("undisturbed").end().passed();
    let expected = lab.solution("undisturbed");
    for (name, fault) in [("silent", ["cut-off", "n2"]), ("first", ["off", "n1"])] {
        let mut run = lab.benchmark(name);
        run.wait_for("saved", 2);
        lab.vcluster(&fault);
        let end = run.end();
        end.passed();
        assert_eq!(end.of("fault").len(), 1, "{}", end.errors);
        assert_eq!(lab.solution(name), expected, "another x");
        assert!(end.errors.contains("rebuilt"), "{}", end.errors);
        lab.vcluster(&["back", fault[1]]);
    }
    // The supervisor dies and comes back while the ranks compute on.
    let mut run = lab.benchmark("orphan");
    run.wait_for("saved", 1);
    run.signal("-KILL");
    run.end();
    lab.benchmark("orphan").end().passed();
    assert_eq!(lab.solution("orphan"), expected);
}

/// Inside a Slurm allocation that survives its nodes, under srun and under mpirun over srun.
#[test]
#[ignore = "needs root, and Slurm"]
fn a_node_lost_inside_a_slurm_allocation() {
    let lab = Lab::up(WORKING + 1);
    lab.vcluster(&["slurm"]);
    let ssh = lab.vcluster(&["ssh-config"]);
    let configuration = Path::new(ssh.trim()).with_file_name("slurm.conf");
    let network = std::fs::read_to_string(Path::new(ssh.trim()).with_file_name("net")).unwrap();
    for launcher in ["srun", "openmpi"] {
        let work = lab.path(launcher);
        std::fs::create_dir_all(&work).unwrap();
        let state = lab.path(&format!("{launcher}.state"));
        let mut command = Command::new("salloc");
        command.env("SLURM_CONF", &configuration);
        let nodes = (WORKING + 1).to_string();
        command.args(["--no-kill", "--quiet", "--ntasks-per-node=2", "-t", "10", "-N", &nodes]);
        command.arg(env!("CARGO_BIN_EXE_skt-hpl")).arg("run").arg("--state").arg(&state);
        command.args(["--spare-nodes", "1", "--launcher", launcher, "--ranks", "6"]);
        command.arg(match launcher {
            "srun" => "--launcher-args=--mpi=none".to_string(),
            _ => format!(
                "--launcher-args=-mca oob_tcp_if_include 10.213.{}.0/24 --bind-to none",
                network.trim()
            ),
        });
        command.arg("--program").arg(repository().join("tests/supervise/stand-in"));
        command.arg(&work).args(["60", "0.1"]);
        let mut run = Run::start(&mut command, state);
        run.computing();
        lab.vcluster(&["cut-off", "n2"]);
        let end = run.end();
        end.survived("node-silent");
        assert_eq!(end.last_hosts(), ["n1", "n4", "n3"]);
        lab.vcluster(&["back", "n2"]);
        // Slurm takes a moment to see that the node is back.
        let until = Instant::now() + PATIENCE;
        loop {
            let mut sinfo = Command::new("sinfo");
            let out = sinfo
                .env("SLURM_CONF", &configuration)
                .args(["-h", "-t", "idle", "-o", "%D"])
                .output();
            if String::from_utf8_lossy(&out.unwrap().stdout).trim() == nodes {
                break;
            }
            assert!(Instant::now() < until, "Slurm does not take the node back");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
