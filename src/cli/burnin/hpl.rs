//! HPL in a loop: starts `skt-hpl run` until the time is over, and returns the result of each run.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::pass::Pass;
use super::{BurninFlags, INTERRUPTED};
use crate::base::exit::Refusal;
use crate::base::params::TestParams;
use crate::base::statistics::median;
use crate::burnin::document::HplRun;
use crate::burnin::rounds::machines;
use crate::cli::node_flags::NodeFlags;
use crate::cli::template::{own_program, run_this};
use crate::model::fit;
use crate::model::planner::{squarest_grid, usual};
use crate::supervise::remember::events::Event;
use crate::supervise::remember::folder::Folder;
use crate::supervise::remember::journal;
use crate::supervise::signals::asked_by_signal;
use crate::supervise::start::hosts::Host;
use crate::supervise::start::launcher::Launcher;
use crate::supervise::start::room::has_option;

const NB: u64 = 192;

/// Share of the remaining time for which a run is sized if the user gives no size. Further runs then fit in the rest.
const PART: f64 = 0.25;

/// Rate of HPL in a run of some minutes, as a share of the sum of the nodes' multiplication rates.
const REACHED: f64 = 0.5;

/// Largest share of the free memory that a matrix takes.
const MEMORY: f64 = 0.4;

/// Returns the size of a run that takes about `time` on the first `hosts` nodes, and the grid of its ranks. Later nodes are
/// spares.
fn size(pass: &Pass, hosts: usize, ranks: usize, time: Duration) -> (u64, (u64, u64)) {
    let here = pass.here.iter().take(hosts);
    let marks: Vec<String> = here.map(|here| here.machine.clone()).collect();
    let machine = machines(&marks);
    let rate = |node: usize| {
        let seen: Vec<f64> =
            pass.sweeps.iter().filter_map(|s| s.multiply.get(node)).copied().collect();
        median(&seen)
    };
    // Nodes on one machine share its rate and its memory, so the machine counts once.
    let firsts = (0..machine.len()).filter(|&node| machine[node] == node);
    let (mut flops, mut bytes) = (0.0, 0.0);
    for node in firsts {
        flops += rate(node);
        bytes += pass.here[node].memory_free_bytes as f64;
    }
    let in_time = (1.5 * REACHED * flops * time.as_secs_f64()).cbrt();
    let in_memory = (MEMORY * bytes / 8.0).sqrt();
    let n = in_time.min(in_memory).max(NB as f64) as u64;
    (n / NB * NB, squarest_grid(ranks as u64))
}

/// Returns the time for which a run is sized. `time` is the time of the burn-in, and `left` is the rest of it. A run gets a
/// quarter of the rest, so that further runs fit. If the measurements took longer than expected, the run is sized as if a quarter
/// of `time` were left. A very small run would pass on nodes that fail every larger run.
fn time_of_a_run(time: Duration, left: Duration) -> Duration {
    left.max(time.mul_f64(PART)).mul_f64(PART)
}

/// Returns arguments for the launcher in addition to the user's arguments `said`; None if none are needed. A rank must use its
/// whole share of the node, but Open MPI would bind it to a single core.
fn not_bound(kind: Launcher, said: &[String]) -> Option<String> {
    let binds = kind != Launcher::Srun && !has_option(said, "bind-to");
    binds.then(|| "--bind-to none".to_owned())
}

/// Returns the flags for the nodes as words of a command line, with the values that the user gave.
fn node_words(nodes: &NodeFlags) -> Vec<String> {
    let mut words = Vec::new();
    let mut give = |flag: &str, value: Option<String>| {
        if let Some(value) = value {
            words.push(format!("{flag}={value}"));
        }
    };
    let path = |path: &Path| path.to_string_lossy().into_owned();
    give("--hosts", nodes.hosts.as_deref().map(path));
    give("--spares", nodes.spares.as_deref().map(path));
    give("--spare-nodes", Some(nodes.spare_nodes.to_string()));
    give("--rsh", nodes.rsh.clone());
    give("--fanout", Some(nodes.fanout.to_string()));
    let kind = |kind: Launcher| {
        clap::ValueEnum::to_possible_value(&kind).map(|value| value.get_name().to_owned())
    };
    give("--launcher", nodes.launcher.and_then(kind));
    give("--launcher-program", nodes.launcher_program.as_deref().map(path));
    for text in &nodes.launcher_args {
        give("--launcher-args", Some(text.clone()));
    }
    words
}

/// Interval between two checks whether a run has ended.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs HPL repeatedly, and at least once, until the time `until` has passed since `began`. Returns the result of each run. A run
/// that fails is the last.
pub fn repeat(
    flags: &BurninFlags,
    hosts: &[Host],
    pass: &Pass,
    began: Instant,
    until: Duration,
) -> Result<Vec<HplRun>, Refusal> {
    let left = until.saturating_sub(began.elapsed());
    let ranks: usize = hosts.iter().map(|host| host.slots).sum();
    // Without flags of the user, a run has a single problem, whose result is checked. Files in this folder have no effect on it.
    let own_test = flags.bench.is_empty().then(|| {
        let (n, (p, q)) = size(pass, hosts.len(), ranks, time_of_a_run(flags.time, left));
        usual(n as usize, NB as usize, (p as usize, q as usize))
    });
    let (tool, said) = flags.nodes.launcher()?;
    let unbound = not_bound(tool.kind, &said);
    let mut runs: Vec<HplRun> = Vec::new();
    loop {
        let number = runs.len() + 1;
        let dir = flags.state.join(format!("hpl-{number}"));
        Folder::new(&dir).prepare().map_err(Refusal::environment)?;
        let started = Instant::now();
        let mut run = start(flags, unbound.as_deref(), own_test.as_ref(), &dir)?;
        let status = until_ended(&mut run).map_err(Refusal::environment)?;
        if asked_by_signal() {
            return Err(Refusal::environment(INTERRUPTED));
        }
        let took = started.elapsed();
        let run = outcome(&dir, status.code(), took);
        show!(
            "HPL run {number}: N = {}, {:.1} Gflop/s, {:.0} s, exit status {}",
            run.n,
            run.gflops,
            took.as_secs_f64(),
            status.code().map_or("none".to_owned(), |code| code.to_string())
        );
        let fails = !matches!(run.status, Some(0 | 3));
        runs.push(run);
        // If a run fails, the next run would fail as well.
        if fails || began.elapsed() + took > until {
            return Ok(runs);
        }
    }
}

/// Starts `skt-hpl run` with the folder `dir`. `unbound` has further arguments for the launcher. `test` is the problem; None if
/// the user's flags describe it.
fn start(
    flags: &BurninFlags,
    unbound: Option<&str>,
    test: Option<&TestParams>,
    dir: &Path,
) -> Result<Child, Refusal> {
    let own = own_program()?;
    let file = |name: &str| {
        let path = dir.join(name);
        File::create(&path).map_err(|e| Refusal::environment(format!("{}: {e}", path.display())))
    };
    let mut command = Command::new(&own);
    command
        .arg("run")
        .args(node_words(&flags.nodes))
        .args(unbound.map(|words| format!("--launcher-args={words}")))
        .arg("--new")
        .arg("--state")
        .arg(dir)
        .args(&flags.bench);
    if let Some(test) = test {
        run_this(&mut command, test, &[test.n]);
    }
    command.stdin(Stdio::null()).stdout(file("output")?).stderr(file("told")?);
    command
        .spawn()
        .map_err(|e| Refusal::environment(format!("cannot start {}: {e}", own.display())))
}

/// Waits for the end of a run. If a signal interrupts the burn-in, the run is interrupted as well, and ends its own processes.
fn until_ended(run: &mut Child) -> std::io::Result<ExitStatus> {
    let mut told = false;
    loop {
        if let Some(status) = run.try_wait()? {
            return Ok(status);
        }
        if asked_by_signal() && !std::mem::replace(&mut told, true) {
            // An error means that the run has just ended.
            let _ = kill(Pid::from_raw(run.id() as i32), Signal::SIGTERM);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Reads the result of an HPL run from its folder. `status` is the run's exit status, and `took` its duration.
fn outcome(dir: &Path, status: Option<i32>, took: Duration) -> HplRun {
    let output = std::fs::read_to_string(dir.join("output")).unwrap_or_default();
    let mut run = HplRun { status, seconds: took.as_secs_f64(), ..HplRun::default() };
    if let Some(sample) = fit::last(&output) {
        run.n = sample.n as u64;
        run.gflops = sample.rate / 1e9;
    }
    let path = Folder::new(dir).journal();
    let records = std::fs::read(&path).ok().and_then(|bytes| journal::parse(&bytes, &path).ok());
    for record in records.map(|(records, _)| records).unwrap_or_default() {
        match record.event {
            Event::SlowNode { node, detail } => run.slow.push((node, detail)),
            Event::Fault { kind, node, detail, .. } => {
                run.faults.push((node, format!("{}, {detail}", kind.words())));
            }
            _ => {}
        }
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burnin::samples::{Here, Sweep};
    use crate::burnin::verdict::Judged;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Probe {
        #[command(flatten)]
        nodes: NodeFlags,
    }

    #[test]
    fn the_run_gets_the_nodes_as_they_were_given() {
        let words = [
            "x",
            "--hosts",
            "h",
            "--spare-nodes",
            "1",
            "--rsh",
            "ssh -F f",
            "--launcher",
            "mpich",
            "--launcher-args",
            "-a b",
            "--launcher-args=-c",
        ];
        let nodes = Probe::try_parse_from(words).unwrap().nodes;
        let again = [vec!["x".to_owned()], node_words(&nodes)].concat();
        let read = Probe::try_parse_from(again).unwrap().nodes;
        assert_eq!(format!("{nodes:?}"), format!("{read:?}"));
    }

    fn pass(machines: &[&str], memory: u64) -> Pass {
        let here = machines.iter().map(|m| Here {
            machine: m.to_string(),
            memory_free_bytes: memory,
            ..Here::default()
        });
        Pass {
            here: here.collect(),
            sweeps: vec![Sweep { multiply: vec![1e12; machines.len()], ..Sweep::default() }],
            judged: Judged::default(),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn a_run_is_never_of_next_to_nothing() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        assert_eq!(time_of_a_run(minutes(16), minutes(8)), minutes(2));
        // Measuring has taken nearly all of the time, or more.
        for left in [minutes(4), minutes(1), Duration::ZERO] {
            assert_eq!(time_of_a_run(minutes(16), left), minutes(1));
        }
    }

    #[test]
    fn a_size_fits_time_and_memory_and_counts_a_shared_machine_once() {
        let minute = Duration::from_secs(60);
        let (one, grid) = size(&pass(&["a", "a", "a", "a"], 1 << 40), 4, 4, minute);
        assert_eq!(grid, (2, 2));
        assert!((30_000..40_000).contains(&one), "{one}");
        let (four, _) = size(&pass(&["a", "b", "c", "d"], 1 << 40), 4, 4, minute);
        assert!((1.5..1.65).contains(&(four as f64 / one as f64)), "{four}");
        let (small, _) = size(&pass(&["a", "b"], 1 << 30), 2, 2, minute);
        let spares = pass(&["a", "b", "c", "d", "e", "f", "g", "h"], 1 << 30);
        assert_eq!(size(&spares, 2, 2, minute).0, small);
        assert!(8 * small * small <= 1 << 30 && small.is_multiple_of(NB));
    }

    #[test]
    fn a_folder_tells_what_happened() {
        let dir = tempfile::tempdir().unwrap();
        let line =
            "WR11C2R4        9000    64     2     2              12.00             4.0500e+01\n";
        std::fs::write(dir.path().join("output"), line).unwrap();
        let run = outcome(dir.path(), Some(0), Duration::from_secs(13));
        assert_eq!((run.n, run.gflops, run.status), (9000, 40.5, Some(0)));
        assert!(run.slow.is_empty() && run.faults.is_empty());
    }
}
