//! Tests of the judgement of nodes by `skt-hpl run`, `doctor` and `burnin`, on virtual clusters. Unfit nodes are found before the
//! first launch, slow nodes during the run.
//!
//! The benchmark itself runs with a small problem, since nodes are judged by its memory need and its pace. The tests need root,
//! create network namespaces, and take a minute or two:
//!
//! ```text
//! cargo test --test fit_nodes -- --ignored --test-threads 3
//! ```

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

#[path = "mpi/inheriting.rs"]
mod inheriting;

use inheriting::inheriting;

const PROGRAM: &str = env!("CARGO_BIN_EXE_skt-hpl");
const SMALL: &str = "-n 1000 --nb 32 -p 2 -q 2 --threads 1 --no-preflight --checkpoint 10";

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A virtual cluster of four nodes and some spares, each with little shared memory, and a folder for runs on it.
struct Lab {
    name: String,
    dir: tempfile::TempDir,
    ssh: String,
    launcher_args: String,
}

impl Lab {
    fn up(test: &str, spares: usize, shm: &str) -> Self {
        let name = format!("fit-{test}-{}", std::process::id());
        // Nodes share this folder, but each has a /tmp of its own.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut lab = Self { name, dir, ssh: String::new(), launcher_args: String::new() };
        let pid = std::process::id().to_string();
        lab.vcluster(&["up", &(4 + spares).to_string(), "--shm", shm, "--while", &pid]);
        lab.ssh = lab.vcluster(&["ssh-config"]).trim().to_string();
        lab.launcher_args = lab.vcluster(&["launcher-args", PROGRAM]).trim().to_string();
        let list = |nodes: std::ops::RangeInclusive<usize>| -> String {
            nodes.map(|n| format!("n{n} slots=1\n")).collect()
        };
        std::fs::write(lab.dir.path().join("hosts"), list(1..=4)).unwrap();
        std::fs::write(lab.dir.path().join("spares"), list(5..=4 + spares)).unwrap();
        lab
    }

    fn vcluster_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(repository().join("scripts/vcluster"));
        command.args(["-c", &self.name]).args(words).stdin(Stdio::null());
        command
    }

    fn vcluster(&self, words: &[&str]) -> String {
        let out = self.vcluster_command(words).output().unwrap();
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "vcluster {words:?}: {errors}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Returns a command of `skt-hpl` with a subcommand and the flags to reach the nodes, and the spares if `with_spares` is set.
    fn command(&self, subcommand: &str, with_spares: bool) -> Command {
        let mut command = Command::new(PROGRAM);
        command.current_dir(self.dir.path()).arg(subcommand).args(["--hosts", "hosts"]);
        if with_spares {
            command.args(["--spares", "spares"]);
        }
        // Nodes and other tests share the cores of this machine, so threads must not be pinned.
        command.env("SKT_PIN", "off");
        command.arg("--rsh").arg(format!("ssh -F {}", self.ssh)).args(["--launcher", "openmpi"]);
        command.arg(format!("--launcher-args={}", self.launcher_args));
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, state: &str, with_spares: bool, bench: &str) -> Output {
        let mut command = self.command("run", with_spares);
        command.args(["--state", state, "--startup-timeout", "60s"]).args(bench.split(' '));
        command.output().unwrap()
    }

    fn events(&self, state: &str) -> Vec<Value> {
        let path = self.dir.path().join(state).join("events.jsonl");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn launched_on(&self, state: &str) -> Vec<String> {
        let events = self.events(state);
        let launched = events.iter().find(|e| e["event"] == "launched").expect("a launch");
        let hosts = launched["hosts"].as_array().unwrap();
        hosts.iter().map(|h| h["name"].as_str().unwrap().to_string()).collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // If the test has failed, it has its own message, so this output is not shown.
        let _ = self.vcluster_command(&["down"]).output();
    }
}

/// A started program. Dropping the value ends the program and all processes that it has started.
struct Running(Option<Child>);

/// Timeout for an event, on a machine that meanwhile builds and runs other tests.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Timeout for a program to end after a signal. The program first ends its own processes.
const END_TIMEOUT: Duration = Duration::from_secs(30);

impl Running {
    fn start(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().unwrap()))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it has not ended yet")
    }

    fn over(&mut self) -> bool {
        self.child().try_wait().unwrap().is_some()
    }

    fn signal(&mut self, signal: Signal) {
        kill(Pid::from_raw(self.child().id() as i32), signal).unwrap();
    }

    fn end(mut self) -> Output {
        self.0.take().expect("it has not ended yet").wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        // A program that is killed at once would leave launchers behind, which wait for their nodes.
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let _ = kill(Pid::from_raw(child.id() as i32), signal);
            let until = Instant::now() + END_TIMEOUT;
            while Instant::now() < until {
                if !matches!(child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn errors(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
#[ignore = "needs root"]
fn a_node_with_too_little_memory_is_named_with_both_figures() {
    let lab = Lab::up("room", 1, "200m");
    // All ranks together would need two thirds of a gigabyte. No node has room, so the run is not started.
    let large = "-n 9000 --nb 64 -p 2 -q 2 --threads 1 --no-preflight --checkpoint 10";
    let out = lab.run("large", true, large);
    assert_eq!(out.status.code(), Some(6), "{}", errors(&out));
    // Calculated by hand: n3 has position 2, with 70 blocks of 64 rows and 4521 columns of [A|b], twice. It has twice the parity
    // too, a third of the 4520 rows of the tallest position. 8 * 4521 * 2 * (4480 + 1507) bytes are 413.01 MiB. Padding, digests
    // and heads are less than one per cent.
    let text = errors(&out);
    let said = regex::Regex::new(r"n3: /dev/shm has 200 MiB free, the ranks there need (\d+) MiB;");
    let said = said.unwrap().captures(&text).unwrap_or_else(|| panic!("{text}"));
    let need: u64 = said[1].parse().unwrap();
    assert!((414..=417).contains(&need), "{text}");
    assert!(!lab.events("large").iter().any(|e| e["event"] == "launched"));
    // `doctor` finds the same problem for the same run. For a small run it finds none, and MPI starts.
    let doctor = |bench: &str| {
        let out = lab.command("doctor", true).args(bench.split(' ')).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (code, text) = doctor(large);
    assert_eq!(code, Some(6), "{text}");
    assert!(text.lines().any(|line| line.trim() == "5 problem(s) found"), "{text}");
    let (code, text) = doctor(SMALL);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("MPI: 5 rank(s) on 5 node(s)"), "{text}");
    // A spare replaces a node with full memory. Without a spare, the run is not started.
    lab.vcluster(&["ssh", "n2", "dd if=/dev/zero of=/dev/shm/full bs=1M 2>/dev/null || true"]);
    let out = lab.run("spare", true, SMALL);
    assert_eq!(out.status.code(), Some(0), "{}", errors(&out));
    assert_eq!(lab.launched_on("spare"), ["n1", "n5", "n3", "n4"]);
    let out = lab.run("none", false, SMALL);
    assert_eq!(out.status.code(), Some(6), "{}", errors(&out));
    assert!(errors(&out).contains("n2: /dev/shm has 0 MiB free"), "{}", errors(&out));
}

/// A node must have room for two checkpoints in its own DIR, including the parity of its group. If not, the run names the node,
/// the need and the free room.
#[test]
#[ignore = "needs root"]
fn a_node_with_too_little_storage_of_its_own_is_named_with_both_figures() {
    let lab = Lab::up("storage", 1, "200m");
    let own = |node: usize| lab.dir.path().join(format!("own/n{node}"));
    for node in 1..=5 {
        std::fs::create_dir_all(own(node)).unwrap();
        let size = if node == 2 { "3m" } else { "30m" };
        let at = own(node);
        let mount = format!("mount -t tmpfs -o size={size} tmpfs {}", at.display());
        lab.vcluster(&["ssh", &format!("n{node}"), &mount]);
    }
    let dir = lab.dir.path().join("own/{domain}");
    let bench = format!("{SMALL} --level2 {} --level2-scope node", dir.display());
    // Calculated by hand: a quarter of 1000 times 1001 doubles, and a third of it as parity, is 2.54 MiB, plus digests and block
    // sizes.
    let out = lab.run("none", false, &bench);
    let text = errors(&out);
    assert_eq!(out.status.code(), Some(6), "{text}");
    let said = regex::Regex::new(
        r"n2: --level2 \S+/own/n2: a checkpoint there takes 3 MiB, .* (\d+) MiB are needed, (\d+) MiB are free",
    );
    let said = said.unwrap().captures(&text).unwrap_or_else(|| panic!("{text}"));
    assert!(["5", "6"].contains(&&said[1]) && ["2", "3"].contains(&&said[2]), "{text}");
    assert!(!text.contains("n1: --level2"), "{text}");
    // `doctor` finds the same problem, and a spare replaces the node.
    let out = lab.command("doctor", true).args(bench.split(' ')).output().unwrap();
    let told = String::from_utf8_lossy(&out.stdout);
    assert!(
        told.contains("n2: PROBLEM: --level2") && told.contains("1 problem(s) found"),
        "{told}"
    );
    let out = lab.run("spare", true, &bench);
    assert_eq!(out.status.code(), Some(0), "{}", errors(&out));
    assert_eq!(lab.launched_on("spare"), ["n1", "n5", "n3", "n4"]);
}

#[test]
#[ignore = "needs root"]
fn a_node_on_which_mpi_does_not_start_is_found_before_the_first_launch() {
    let lab = Lab::up("mpi", 2, "200m");
    // Open MPI's daemon cannot be started on n3, nor on the first spare.
    for node in ["n3", "n5"] {
        lab.vcluster(&[
            "ssh",
            node,
            "mount --bind /bin/false $(readlink -f $(command -v orted || command -v prted))",
        ]);
    }
    let out = lab.run("with", true, SMALL);
    let text = errors(&out);
    assert_eq!(out.status.code(), Some(0), "{text}");
    assert!(text.contains("n5 cannot be used: MPI does not start there"), "{text}");
    assert_eq!(lab.launched_on("with"), ["n1", "n2", "n6", "n4"], "{text}");
    let out = lab.run("without", false, SMALL);
    let text = errors(&out);
    assert_eq!(out.status.code(), Some(6), "{text}");
    assert!(text.contains("n3: MPI does not start there"), "{text}");
    assert!(!lab.events("without").iter().any(|e| e["event"] == "launched"));
}

/// A node with a slow processor is reported and kept. The test stops and continues one of its ranks several times a second, as a
/// throttled clock would. The rank runs for a fifteenth of the time. It does not count as hung, although it is mostly found
/// stopped.
///
/// The four ranks share the cores of this machine, so any rank may take twice as long as the others. The slow factor of this run,
/// 3, is above that. The throttling process is on the node before the run starts, since the run takes only seconds.
#[test]
#[ignore = "needs root"]
fn a_node_that_computes_slowly_is_named_and_kept() {
    let lab = Lab::up("slow", 0, "700m");
    let mut command = lab.command("run", false);
    command.args("--state slow --slow-factor 3 --slow-after 4500ms --progress-every 5s".split(' '));
    command
        .args("-n 9000 --nb 64 -p 2 -q 2 --threads 1 --no-preflight --checkpoint 1000".split(' '));
    let (begun, enough) = (lab.dir.path().join("begun"), lab.dir.path().join("enough"));
    let throttle = format!(
        "until test -e {}; do sleep 0.01; done; \
         for p in $(pgrep -x skt-hpl); do \
           tr '\\0' ' ' </proc/$p/cmdline | grep -q ' agent' || rank=$p; done; \
         until test -e {}; do kill -STOP $rank || break; sleep 0.14; kill -CONT $rank; sleep 0.01; done",
        begun.display(),
        enough.display()
    );
    let slow = Running::start(Command::new("ssh").args(["-F", &lab.ssh, "n3", &throttle]));
    let mut run = Running::start(&mut command);
    let until = Instant::now() + TIMEOUT;
    let saw = |name: &str| lab.events("slow").iter().any(|e| e["event"] == name);
    while !saw("computing") {
        assert!(Instant::now() < until, "it does not begin");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::write(begun, "").unwrap();
    while !saw("slow-node") && !run.over() {
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::write(enough, "").unwrap();
    slow.end();
    let out = run.end();
    let text = errors(&out);
    assert_eq!(out.status.code(), Some(0), "{text}");
    let events = lab.events("slow");
    let named: Vec<&Value> = events.iter().filter(|e| e["event"] == "slow-node").collect();
    assert_eq!(named.len(), 1, "{text}");
    assert_eq!(named[0]["node"], "n3");
    assert!(named[0]["detail"].as_str().unwrap().contains("position 2"), "{named:?}");
    assert!(!events.iter().any(|e| e["event"] == "fault"), "{text}");
    // Without a terminal, progress is reported in lines, and the last lines have the result.
    assert!(text.contains("Gflop/s") && text.contains("nodes 4 working 0 spare 0 lost"), "{text}");
    assert!(text.contains("result: WR11C2R4 N=9000") && text.contains("PASSED"), "{text}");
}

/// Returns the command of a burn-in of three nodes, of which n2 computes wrong results. This fault does not depend on the speed
/// of the nodes.
fn burnin_with_a_wrong_node(lab: &Lab) -> Command {
    std::fs::write(lab.dir.path().join("hosts"), "n1 slots=1\nn2 slots=1\nn3 slots=1\n").unwrap();
    let mut command = lab.command("burnin", false);
    command.env("SKT_FAULT_PRODUCT", "n2");
    command.args(["--state", "state", "--time", "1s", "--slot", "1ms", "--cores", "1"]);
    command.args(["--json", "found.json"]);
    command.args("-n 500 --nb 64 -p 1 -q 3 --threads 1 --no-preflight".split(' '));
    command
}

/// The burn-in names the node that computes wrong results, and runs HPL. Its findings about speed are not checked.
#[test]
#[ignore = "needs root"]
fn a_burn_in_names_the_node_that_computes_wrong_and_runs_hpl() {
    let lab = Lab::up("burnin", 0, "200m");
    let out = burnin_with_a_wrong_node(&lab).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(7), "{text}{}", errors(&out));
    assert!(text.contains("FOUND: n2 computes wrong"), "{text}");
    assert!(text.contains("HPL run 1: N = 500") && text.contains("1 passed"), "{text}");
    let document = std::fs::read(lab.dir.path().join("found.json")).unwrap();
    let document: Value = serde_json::from_slice(&document).unwrap();
    assert!(document["sweeps"].as_array().unwrap().len() >= 2, "{document}");
    assert_eq!(document["links"].as_array().unwrap().len(), 6);
    let found = document["findings"].as_array().unwrap();
    let wrong: Vec<&Value> = found.iter().filter(|f| f["kind"] == "wrong").collect();
    assert_eq!(wrong.len(), 1, "{document}");
    assert_eq!(wrong[0]["nodes"], serde_json::json!(["n2"]));
}

/// A burn-in of devices names each device by its node and number. It measures no links and runs no HPL.
#[test]
#[ignore = "needs root"]
fn a_burn_in_of_devices_names_those_that_compute_wrong() {
    let lab = Lab::up("devices", 0, "200m");
    std::fs::write(lab.dir.path().join("hosts"), "n1 slots=2\nn2 slots=1\nn3 slots=1\n").unwrap();
    let burnin = |more: &[&str]| {
        let mut command = lab.command("burnin", false);
        command.env("SKT_FAULT_PRODUCT", "n2");
        command.args(["--state", "state", "--time", "1s", "--slot", "1ms", "--json", "found.json"]);
        command.args(["--device", "host"]).args(more).output().unwrap()
    };
    let out = burnin(&["--no-hpl"]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(7), "{text}{}", errors(&out));
    assert!(text.contains("FOUND: n2 device 0 computes wrong"), "{text}");
    let document = std::fs::read(lab.dir.path().join("found.json")).unwrap();
    let document: Value = serde_json::from_slice(&document).unwrap();
    let nodes = document["nodes"].as_array().unwrap();
    let names: Vec<&str> = nodes.iter().map(|node| node["node"].as_str().unwrap()).collect();
    assert_eq!(names, ["n1 device 0", "n1 device 1", "n2 device 0", "n3 device 0"]);
    assert_eq!(nodes[1]["host"], "n1", "{document}");
    assert!(nodes.iter().all(|node| node["memory"]["median"].as_f64().unwrap() > 1e6));
    assert_eq!(document["links"], serde_json::json!([]));
    let out = burnin(&[]);
    assert!(errors(&out).contains("--no-hpl"), "{}", errors(&out));
}

/// A burn-in that is interrupted during a measurement or during a run of HPL leaves nothing behind on any node.
#[test]
#[ignore = "needs root"]
fn a_burn_in_that_is_interrupted_leaves_nothing_behind() {
    let lab = Lab::up("interrupted", 0, "200m");
    let there = |node: &str| {
        let look = "pgrep -x skt-hpl; ls /dev/shm | grep skt-hpl; true";
        lab.vcluster(&["ssh", node, look]).lines().count()
    };
    let nodes = ["n1", "n2", "n3", "n4"];
    // HPL takes much longer than the test waits.
    let bench = "-n 20000 --nb 128 -p 2 -q 2 --threads 1 --no-preflight";
    for (state, time, signal) in
        [("amid-pass", "600s", Signal::SIGINT), ("amid-run", "1s", Signal::SIGTERM)]
    {
        let mut command = lab.command("burnin", false);
        command.args(["--state", state, "--time", time, "--slot", "1ms", "--cores", "1"]);
        command.args(bench.split(' '));
        inheriting(&mut command, signal, SigHandler::SigDfl);
        let mut burnin = Running::start(&mut command);
        let launched = || {
            let hpl = lab.events(&format!("{state}/hpl-1"));
            state == "amid-pass" || hpl.iter().any(|event| event["event"] == "computing")
        };
        let until = Instant::now() + TIMEOUT;
        while !(launched() && nodes.iter().all(|node| there(node) > 0)) {
            assert!(Instant::now() < until, "{state}: nothing runs");
            std::thread::sleep(Duration::from_millis(100));
        }
        let asked = Instant::now();
        burnin.signal(signal);
        let out = burnin.end();
        let text = errors(&out);
        assert_eq!(out.status.code(), Some(6), "{state}: {text}");
        assert!(text.contains("interrupted by a signal"), "{state}: {text}");
        assert!(asked.elapsed() < Duration::from_secs(60), "{state}: {:?}", asked.elapsed());
        let left: Vec<_> = nodes.iter().map(|node| (node, there(node))).collect();
        assert!(left.iter().all(|(_, count)| *count == 0), "{state}: {left:?} {text}");
    }
}

/// Tests that only `scripts/test.sh --all` runs, since each takes a minute or more.
mod rest {
    use super::*;

    /// A burn-in ignores HPL.dat, skt.toml and variables of other runs: it solves one problem and checks it.
    #[test]
    #[ignore = "needs root"]
    fn a_burn_in_heeds_no_input_of_other_runs() {
        let lab = Lab::up("input", 0, "200m");
        let at = |name: &str| lab.dir.path().join(name);
        std::fs::write(at("hosts"), "n1 slots=1\nn2 slots=1\n").unwrap();
        let shipped = include_str!("../hpl-configs/few-nodes.dat");
        let mut lines: Vec<&str> = shipped.lines().collect();
        (lines[12], lines[13], lines[14]) = ("-1.0 threshold", "3 # of panel fact", "0 1 2 PFACTs");
        std::fs::write(at("HPL.dat"), lines.join("\n") + "\n").unwrap();
        std::fs::write(at("skt.toml"), "nbmin = [2, 4]\n").unwrap();
        let mut command = lab.command("burnin", false);
        command.env("SKT_JSON", "mine.json").env("SKT_BCAST", "0,1");
        command.args(["--state", "state", "--time", "40s", "--slot", "1ms", "--cores", "1"]);
        let out = command.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(text.contains("HPL run 1: N = "), "{text}{}", errors(&out));
        let output = std::fs::read_to_string(at("state/hpl-1/output")).unwrap();
        let count = |begin: &str| output.lines().filter(|line| line.starts_with(begin)).count();
        assert_eq!((count("WR"), count("||Ax-b||")), (1, 1), "{output}");
        assert!(!at("mine.json").exists());
    }

    /// A node is lost after the last run of HPL. The earlier findings count, and the report states that the final measurement is
    /// missing.
    #[test]
    #[ignore = "needs root"]
    fn a_burn_in_that_loses_a_node_before_its_last_pass_tells_what_it_found() {
        let lab = Lab::up("lost", 0, "200m");
        let mut command = burnin_with_a_wrong_node(&lab);
        let burnin = Running::start(&mut command);
        let until = Instant::now() + TIMEOUT;
        while !lab.dir.path().join("state/pass-2").exists() {
            assert!(Instant::now() < until, "no second pass");
            std::thread::sleep(Duration::from_millis(5));
        }
        lab.vcluster(&["off", "n3"]);
        let out = burnin.end();
        let text = String::from_utf8_lossy(&out.stdout);
        assert_eq!(out.status.code(), Some(7), "{text}{}", errors(&out));
        assert!(text.contains("FOUND: n2 computes wrong"), "{text}");
        assert!(text.contains("HPL run 1: N = 500") && text.contains("1 passed"), "{text}");
        assert!(
            errors(&out).contains("a further pass could not be measured: "),
            "{}",
            errors(&out)
        );
    }
}
