//! `cargo bench --bench supervision -- --help`: the time until a loss is noticed and recovered, and the cost of supervision.
//! benches/NOTEBOOK.md explains each figure, and names those with a target.
//!
//! The program notes the moment at which it injects a fault. It reads from the journal of the run when the fault was noticed, and
//! when the ranks computed again. A fault that changes a bit of the solution fails the benchmark.

// Cargo also compiles a benchmark as a test, although it has its own `main`.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod flags;
mod forest;
mod lab;
mod many;
mod node;
#[allow(dead_code)] // Shared with the benchmark of checkpoints, which uses more of it.
#[path = "../checkpoint/report.rs"]
mod report;
mod run;
#[allow(dead_code)]
#[path = "../speed/stats.rs"]
mod stats;
#[path = "../speed/usual.rs"]
mod usual;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use nix::sys::signal::{Signal, kill};
use skt_hpl::base::cores;
use skt_hpl::base::exit::Refusal;
use skt_hpl::cli::node_flags::NodeFlags;
use skt_hpl::comm::World;
use skt_hpl::supervise::remember::events::Event;

use flags::{Flags, Section};
use lab::{Lab, Used, WORKING, hosts, used};
use report::Report;
use run::{Came, Stage, now_ms};
use stats::{median, spread};

fn main() -> ExitCode {
    // Roles of this program for simulated agents and for a node of many ranks. Users do not give these arguments.
    let words: Vec<String> = std::env::args().collect();
    let role = match words.get(1).map(String::as_str) {
        Some("--shell") => Some(forest::shell(&words[2..])),
        Some("--simulate") => {
            Some(forest::simulate(words[2].as_ref(), words[3].as_ref(), &words[4]))
        }
        Some("--rank") => Some(node::rank(&words[2], &words[3], &words[4])),
        _ => None,
    };
    if let Some(result) = role {
        return if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let flags = Flags::parse();
    match measure(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("supervision: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(flags: &Flags) -> Result<(), String> {
    let library = World::library();
    let (tool, _) = NodeFlags::default().launcher().map_err(|Refusal { why, .. }| why)?;
    let program = flags.usual.program()?;
    let cores = cores::count();
    let mut report = Report::new(cores, library, flags.usual.json.clone());
    if !flags.agents.is_empty() || !flags.ranks.is_empty() {
        match flags.agents.is_empty() {
            true => node::measure(&program, &flags.ranks, &mut report)?,
            false => many::measure(&program, &flags.agents, flags.ranks_a_node, &mut report)?,
        }
        let missed = report.verdicts();
        report.write()?;
        return match missed {
            0 => Ok(()),
            _ => Err(format!("{missed} target(s) missed")),
        };
    }
    // Nodes share this folder, but each has a /tmp of its own.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|e| e.to_string())?;
    let lab = Lab::up(&flags.shm)?;
    let Flags { n, nb, checkpoint, .. } = flags;
    let benchmark = format!("-n {n} --nb {nb} -p 2 -q 2 --checkpoint {checkpoint}");
    let benchmark = benchmark.split(' ').map(String::from).collect();
    let (hosts, spares) = (hosts(1..=WORKING), hosts(WORKING + 1..=WORKING + 1));
    let folder = folder.path();
    let stage = Stage { lab: &lab, hosts, spares, benchmark, tool, program, folder };
    let reference = stage.supervised("undisturbed")?.end(|_| {})?;
    println!("undisturbed: {:.2} s, x {}", reference.seconds, reference.x);
    for kind in FAULTS {
        if flags.wants(kind.section) {
            inject(flags, &stage, kind, &reference.x, &mut report)?;
            report.write()?;
        }
    }
    if flags.wants(Section::Cost) {
        cost(flags, &stage, &reference.x, &mut report)?;
    }
    report.verdicts();
    report.write()
}

/// A kind of fault, with the node that it hits and its targets.
struct Kind {
    section: Section,
    name: &'static str,
    node: &'static str,
    noticed_s_max: f64,
    /// True if the fault is a loss, for which the time until the ranks compute again has a target.
    loss: bool,
}

const FAULTS: [Kind; 4] = [
    Kind {
        section: Section::Silent,
        name: "silent power-off",
        node: "n2",
        noticed_s_max: 5.0,
        loss: true,
    },
    Kind {
        section: Section::Visible,
        name: "visible power-off",
        node: "n2",
        noticed_s_max: 1.0,
        loss: true,
    },
    Kind { section: Section::Dead, name: "dead rank", node: "n3", noticed_s_max: 1.0, loss: true },
    Kind {
        section: Section::Hung,
        name: "hung rank",
        node: "n3",
        noticed_s_max: 10.0,
        loss: false,
    },
];

const COMPUTING_S_MAX: f64 = 12.0;

/// Times of one fault, in seconds after it was injected.
#[derive(serde::Serialize)]
struct Faulted {
    noticed_s: f64,
    stopped_s: f64,
    relaunched_s: f64,
    computing_s: f64,
    caught_up_s: f64,
    /// Duration of an iteration, in seconds.
    iteration_s: f64,
}

fn inject(
    flags: &Flags,
    stage: &Stage,
    kind: Kind,
    x: &str,
    report: &mut Report,
) -> Result<(), String> {
    let mut all: Vec<Faulted> = Vec::new();
    for turn in 1..=flags.repeat {
        let name = format!("{}-{turn}", kind.name.replace(' ', "-"));
        let mut run = stage.supervised(&name)?;
        run.wait_for(2, |e| matches!(e, Event::Saved { .. }))?;
        let iteration_s = run.iteration_s().unwrap_or(f64::NAN);
        let lab = stage.lab;
        let rank = lab.rank(kind.node, &stage.program)?;
        let signal = |signal| kill(rank, signal).map_err(|e| format!("{name}: {e}"));
        let failed_ms = now_ms();
        match kind.section {
            // A script switches the node off. Its delay of 0.1 s is part of the measured time.
            Section::Silent => lab.vcluster(&["cut-off", kind.node]).map(|_| ())?,
            Section::Visible => lab.power_off(kind.node)?,
            Section::Dead => signal(Signal::SIGKILL)?,
            Section::Hung => signal(Signal::SIGSTOP)?,
            Section::Cost => {}
        }
        run.wait_for(1, |e| matches!(e, Event::Fault { .. }))?;
        let mut faults = Vec::new();
        let result = run.end(|run| faults = run.faults())?;
        same(x, &result, &name)?;
        let [fault] = &faults[..] else {
            return Err(format!(
                "{name}: {} faults in the log where one was injected",
                faults.len()
            ));
        };
        let after =
            |at_ms: Option<u64>| at_ms.map_or(f64::NAN, |at| (at as f64 - failed_ms as f64) / 1e3);
        all.push(Faulted {
            noticed_s: after(Some(fault.noticed_ms)),
            stopped_s: after(fault.stopped_ms),
            relaunched_s: after(fault.relaunched_ms),
            computing_s: after(fault.restored_ms),
            caught_up_s: after(fault.caught_up_ms),
            iteration_s,
        });
        lab.heal()?;
    }
    // If a value is unknown for one fault, the worst value is unknown too.
    let worse = |one: f64, other: f64| match one.is_nan() || other.is_nan() {
        true => f64::NAN,
        false => one.max(other),
    };
    let worst = |of: fn(&Faulted) -> f64| all.iter().map(of).reduce(worse).unwrap_or(f64::NAN);
    // A rank counts as hung only after the time of three iterations.
    let slack_s = match kind.section {
        Section::Hung => 3.0 * worst(|s| s.iteration_s),
        _ => 0.0,
    };
    let most_s = kind.noticed_s_max.max(slack_s);
    report.at_most(
        &format!("{}: noticed after, s, at worst", kind.name),
        worst(|s| s.noticed_s),
        most_s,
    );
    if kind.loss {
        let what = format!("{}: computing again after, s, at worst", kind.name);
        report.at_most(&what, worst(|s| s.computing_s), COMPUTING_S_MAX);
    }
    let mut rows: Vec<Vec<String>> = all
        .iter()
        .map(|s| {
            [s.noticed_s, s.stopped_s, s.relaunched_s, s.computing_s, s.caught_up_s]
                .map(|v| format!("{v:.2}"))
                .to_vec()
        })
        .collect();
    for row in &mut rows {
        row.push("bit-identical".into());
    }
    let heads = ["noticed", "stopped", "relaunched", "computing again", "caught up", "x"];
    report.table(&format!("{} on {}, seconds after it", kind.name, kind.node), &heads, rows);
    report.keep(kind.name, &all);
    Ok(())
}

fn same(x: &str, result: &Came, name: &str) -> Result<(), String> {
    match result.x == x {
        true => Ok(()),
        false => Err(format!("{name}: x is {}, and {x} where nothing happened", result.x)),
    }
}

/// Resources of supervision in a run: processor time as a share of one core, and the largest resident memory in bytes. For
/// agents, each figure is that of the agent with the largest one.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
struct Watching {
    agent_share_max: f64,
    agent_bytes_max: u64,
    supervisor_share: f64,
    supervisor_bytes: u64,
    /// Share of all cores of the machine that agents and supervisor used together.
    machine_share: f64,
}

fn cost(flags: &Flags, stage: &Stage, x: &str, report: &mut Report) -> Result<(), String> {
    let mut pairs: Vec<(f64, f64)> = Vec::new();
    let mut walls: Vec<(f64, f64)> = Vec::new();
    let mut watching: Vec<Watching> = Vec::new();
    // The first pair warms the machine up. The order of a pair alternates, so that a machine that becomes slower or faster
    // favours neither.
    for turn in 0..=flags.pairs {
        let bare = |when: &str| -> Result<Came, String> {
            stage.bare(&format!("bare-{turn}{when}"))?.end(|_| {})
        };
        let mut seen = Watching::default();
        let mut supervised = || -> Result<Came, String> {
            let run = stage.supervised(&format!("supervised-{turn}"))?;
            watched(stage, run, &mut seen)
        };
        let (without, with) = match turn % 2 {
            0 => {
                let without = bare("")?;
                (without, supervised()?)
            }
            _ => {
                let with = supervised()?;
                (bare("")?, with)
            }
        };
        same(x, &without, "a run without supervision")?;
        same(x, &with, "a run with supervision")?;
        if turn > 0 {
            pairs.push((without.seconds, with.seconds));
            walls.push((without.wall_s, with.wall_s));
            watching.push(seen);
        }
    }
    let column = |of: fn(&(f64, f64)) -> f64| -> Vec<f64> { pairs.iter().map(of).collect() };
    let ratios = column(|p| p.1 / p.0);
    let middle = |values: &[f64]| median(values).unwrap_or(f64::NAN);
    report.at_most("a run with supervision / without, median of pairs", middle(&ratios), 1.005);
    let share = |of: fn(&Watching) -> f64| middle(&watching.iter().map(of).collect::<Vec<_>>());
    let agent = share(|w| w.agent_share_max * 100.0);
    report.at_most("an agent's processor time, % of a core", agent, 0.1);
    let bytes = share(|w| w.agent_bytes_max as f64 / 1e6);
    report.at_most("an agent's memory, MB", bytes, 10.0);
    let heads = ["", "without", "with", "with / without", "spread of the ratios"];
    let row = |name: &str, pairs: &[(f64, f64)]| {
        let ratios: Vec<f64> = pairs.iter().map(|p| p.1 / p.0).collect();
        vec![
            name.to_string(),
            format!("{:.3}", middle(&pairs.iter().map(|p| p.0).collect::<Vec<_>>())),
            format!("{:.3}", middle(&pairs.iter().map(|p| p.1).collect::<Vec<_>>())),
            format!("{:.4}", middle(&ratios)),
            format!("{:.3}", spread(&ratios).unwrap_or(f64::NAN)),
        ]
    };
    let rows = vec![row("factor and solve, s", &pairs), row("the whole command, s", &walls)];
    let title = format!("{} pairs of undisturbed runs, medians", pairs.len());
    report.table(&title, &heads, rows);
    let heads = ["", "% of a core", "MB"];
    let rows = vec![
        vec!["agent".into(), format!("{agent:.3}"), format!("{bytes:.1}")],
        vec![
            "supervisor".into(),
            format!("{:.3}", share(|w| w.supervisor_share * 100.0)),
            format!("{:.1}", share(|w| w.supervisor_bytes as f64 / 1e6)),
        ],
        vec![
            "all, of the machine".into(),
            format!("{:.3}", share(|w| w.machine_share * 100.0)),
            String::new(),
        ],
    ];
    report.table("Cost of watching while ranks compute", &heads, rows);
    report.keep("pairs", &pairs);
    report.keep("watching", &watching);
    Ok(())
}

/// Waits for the end of a run. Stores in `seen` what its agents and its supervisor used while the ranks computed, and returns its
/// result.
fn watched(stage: &Stage, run: run::Run, seen: &mut Watching) -> Result<Came, String> {
    let supervisor = run.child.id() as i32;
    let mut first: BTreeMap<i32, Used> = BTreeMap::new();
    let mut last: BTreeMap<i32, Used> = BTreeMap::new();
    let mut began = None;
    let mut lasted_s = 0.0;
    let mut agents = Vec::new();
    let result = run.end(|run| {
        if began.is_none() {
            if !run.records().iter().any(|r| matches!(r.event, Event::Computing { .. })) {
                return;
            }
            agents = stage.lab.agents(&stage.program);
            agents.push(supervisor);
            began = Some(Instant::now());
            first = agents.iter().filter_map(|pid| Some((*pid, used(*pid)?))).collect();
        }
        let now: BTreeMap<i32, Used> =
            agents.iter().filter_map(|pid| Some((*pid, used(*pid)?))).collect();
        // At the end of the run, agents end one after another. The last measurement of all of them counts.
        if now.len() == first.len() {
            last = now;
            lasted_s = began.map_or(0.0, |b| b.elapsed().as_secs_f64());
        }
    })?;
    if lasted_s < 1.0 || first.len() < 2 {
        return Err("the run was too short to watch its agents; take a larger N".into());
    }
    let share = |pid: &i32| (last[pid].cpu_s - first[pid].cpu_s) / lasted_s;
    for (pid, used) in &last {
        if *pid == supervisor {
            seen.supervisor_share = share(pid);
            seen.supervisor_bytes = used.resident_bytes;
        } else {
            seen.agent_share_max = seen.agent_share_max.max(share(pid));
            seen.agent_bytes_max = seen.agent_bytes_max.max(used.resident_bytes);
        }
    }
    let processors = cores::bound_to().len();
    seen.machine_share = last.keys().map(share).sum::<f64>() / processors as f64;
    Ok(result)
}
