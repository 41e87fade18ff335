//! Measures the times after the death of a rank, on virtual nodes under `skt-hpl run`. The times come from the journal of the run
//! and from the processes that this machine sees.

use std::collections::BTreeSet;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skt_hpl::supervise::remember::events::Event;

use crate::lab::WORKING;
use crate::report::Report;
use crate::run::{Stage, now_ms};
use crate::stats::median;

/// A method of recovery without a restart, with its target.
pub struct Way<'a> {
    pub name: &'a str,
    /// True if x must have the bits of a run without faults.
    pub same_bits: bool,
    pub going_on_s_max: f64,
}

const NOTICED_S_MAX: f64 = 0.5;

/// Node whose rank is killed.
const NODE: &str = "n3";

/// Times of one fault, in seconds after it was injected.
#[derive(serde::Serialize)]
struct Faulted {
    noticed_s: f64,
    agreed_s: f64,
    going_on_s: f64,
    /// Number of iterations that were repeated.
    back: u64,
}

/// Kills a rank in each of `repeat` runs, and reports the times.
pub fn kill_ranks(
    stage: &Stage,
    repeat: usize,
    way: &Way,
    report: &mut Report,
) -> Result<(), String> {
    let folder = way.name.replace(' ', "-");
    let undisturbed = stage.supervised(&format!("{folder}-undisturbed"))?.end(|_| {})?;
    let mut all = Vec::new();
    for turn in 1..=repeat {
        let faulted = kill_one(stage, &format!("{folder}-{turn}"), way, &undisturbed.x)?;
        all.push(faulted);
    }
    let middle = |of: fn(&Faulted) -> f64| {
        median(&all.iter().map(of).collect::<Vec<_>>()).unwrap_or(f64::NAN)
    };
    let name = way.name;
    let (noticed, going_on) = (middle(|s| s.noticed_s), middle(|s| s.going_on_s));
    report.at_most(&format!("{name}: noticed after, s, median"), noticed, NOTICED_S_MAX);
    report.at_most(
        &format!("{name}: computing again after, s, median"),
        going_on,
        way.going_on_s_max,
    );
    let row = |s: &Faulted| {
        let seconds = [s.noticed_s, s.agreed_s, s.going_on_s].map(|v| format!("{v:.3}"));
        [&seconds[..], &[s.back.to_string()]].concat()
    };
    let heads = ["noticed", "agreed", "computing", "iterations done again"];
    let title = format!(
        "A rank of {NODE} is killed, {name}, seconds after it; no other process ends or begins"
    );
    report.table(&title, &heads, all.iter().map(row).collect());
    report.keep(name, &all);
    Ok(())
}

fn kill_one(stage: &Stage, name: &str, way: &Way, x: &str) -> Result<Faulted, String> {
    let (lab, program) = (stage.lab, &stage.program);
    let ranks = || -> Result<BTreeSet<i32>, String> {
        let mut all = BTreeSet::new();
        for node in 1..=WORKING + 1 {
            all.extend(lab.ranks(&format!("n{node}"), program)?);
        }
        Ok(all)
    };
    let mut run = stage.supervised(name)?;
    run.wait_for(1, |e| matches!(e, Event::Computing { .. }))?;
    // The fault comes during the computation, after a checkpoint exists.
    match way.same_bits {
        true => run.wait_for(2, |e| matches!(e, Event::Saved { .. }))?,
        false => std::thread::sleep(AMID),
    }
    let mut left = ranks()?;
    let victim = *lab.ranks(NODE, program)?.first().ok_or(format!("no rank on {NODE}"))?;
    let failed_ms = now_ms();
    kill(Pid::from_raw(victim), Signal::SIGKILL).map_err(|e| format!("{name}: {e}"))?;
    run.wait_for(1, |e| matches!(e, Event::GoneOn { .. } | Event::Fault { .. }))?;
    left.remove(&victim);
    let there = ranks()?;
    if there != left {
        return Err(format!("{name}: processes {left:?} were to go on, and {there:?} are there"));
    }
    let mut strangers: BTreeSet<i32> = BTreeSet::new();
    let mut records = Vec::new();
    let came = run.end(|run| {
        strangers.extend(ranks().unwrap_or_default().difference(&left));
        records = run.records();
    })?;
    if !strangers.is_empty() {
        return Err(format!("{name}: processes {strangers:?} were started after the loss"));
    }
    if way.same_bits && came.x != x {
        return Err(format!("{name}: x is {}, and {x} where nothing happened", came.x));
    }
    let after = |at_ms: u64| (at_ms as f64 - failed_ms as f64) / 1e3;
    let told = records.iter().find_map(|record| match record.event {
        Event::GoneOn { noticed_ms, agreed_ms, going_on_ms, iteration, boundary, .. } => {
            Some(Faulted {
                noticed_s: after(noticed_ms),
                agreed_s: after(agreed_ms),
                going_on_s: after(going_on_ms),
                back: iteration.saturating_sub(boundary.unwrap_or(iteration)),
            })
        }
        _ => None,
    });
    told.ok_or_else(|| format!("{name}: the run began from scratch"))
}

/// Delay before a rank is killed in a run without checkpoints. All ranks compute by then, and no run worth measuring has ended.
const AMID: std::time::Duration = std::time::Duration::from_millis(1000);
