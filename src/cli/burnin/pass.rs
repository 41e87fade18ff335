//! One pass over all nodes: starts a rank on each, reads what rank 0 says, and has it judged.
//!
//! A pass that stands still is ended: a node that hangs costs the burn-in a minute, not for ever.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::{BurninFlags, INTERRUPTED};
use crate::burnin::probe::Extent;
use crate::burnin::rounds::rounds as all_rounds;
use crate::burnin::samples::{Here, Listener, Said, Sweep};
use crate::burnin::verdict::{Judged, Tolerance, WHOLE_EVERY, judge, sweeps_wanted};
use crate::cli::exit::{Exit, Refusal};
use crate::cli::template::own_program;
use crate::supervise::remember::clerk::{Answer, Clerk};
use crate::supervise::remember::events::unix_ms;
use crate::supervise::remember::folder::Folder;
use crate::supervise::signals::{asked_by_signal, listen_to_signals};
use crate::supervise::start::hosts::Host;
use crate::supervise::start::job::Job;
use crate::supervise::start::launcher::{LaunchPlan, launch};
use crate::supervise::start::room::Room;
use crate::supervise::talk::shell::{RemoteShell, library_path, variables};

/// A turn of two nodes, and what meeting before it takes, in slots.
const GAME_SLOTS: f64 = 1.5;

/// The same for each of what every node measures by itself.
const ALONE_SLOTS: f64 = 1.5;

/// What part of the time a pass may take.
const PART: f64 = 0.25;

/// How long rank 0 may have nothing to say while MPI starts, and beyond what a sweep takes.
const PATIENCE: Duration = Duration::from_secs(90);

const LOOK_EVERY: Duration = Duration::from_millis(100);

pub struct Pass {
    pub here: Vec<Here>,
    pub sweeps: Vec<Sweep>,
    pub judged: Judged,
    pub took: Duration,
}

/// How much fits into the time: enough sweeps always, and in each as many tournament rounds as there is time for.
fn extent(nodes: usize, time: Duration, threads: usize, slot: Duration) -> Extent {
    let sweeps = sweeps_wanted(nodes);
    let whole = (sweeps / WHOLE_EVERY) as f64;
    let slots = time.as_secs_f64() * PART / slot.as_secs_f64().max(1e-3) / whole;
    let rounds = ((slots - ALONE_SLOTS * (WHOLE_EVERY + 1) as f64) / GAME_SLOTS).max(1.0) as usize;
    Extent { sweeps, rounds: rounds.min(all_rounds(nodes)), threads, slot }
}

/// How long rank 0 may have nothing to say: it speaks when a sweep is over, and a sweep may take twice its time.
fn patience(extent: &Extent) -> Duration {
    let slots = GAME_SLOTS * extent.rounds as f64 + ALONE_SLOTS;
    PATIENCE + extent.slot.mul_f64(2.0 * slots)
}

/// What was asked for, unless it takes too long.
fn wait<T>(answer: &Answer<T>) -> Option<T> {
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(5) {
        if let Some(found) = answer.here() {
            return Some(found);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

/// Measures and judges.
pub fn measure(
    flags: &BurninFlags,
    shell: &RemoteShell,
    hosts: &[Host],
    number: usize,
    tolerance: &Tolerance,
) -> Result<Pass, Refusal> {
    let environment = |why: String| Refusal(Exit::Environment, why);
    let began = Instant::now();
    let (tool, extra) = flags.nodes.launcher()?;
    let own = own_program()?;
    let extent = extent(hosts.len(), flags.time, flags.threads, flags.slot);
    let patience = patience(&extent);
    let dir = std::path::absolute(flags.state.join(format!("pass-{number}")))
        .map_err(|e| environment(e.to_string()))?;
    let folder = Folder::new(&dir);
    folder.prepare().map_err(environment)?;
    let run_id = format!("burnin-{}-{}", std::process::id(), unix_ms());
    let own = own.to_string_lossy().into_owned();
    let command = [own, "agent".to_owned(), "--measure".to_owned(), extent.to_string()];
    let env: Vec<(String, String)> = variables()
        .filter(|(name, _)| name.starts_with("SKT_FAULT"))
        .chain(library_path())
        .collect();
    let made = launch(&LaunchPlan {
        tool: &tool,
        room: Room::Enough,
        hosts,
        ranks: hosts.len(),
        run_id: &run_id,
        incarnation: 0,
        command: &command,
        env: &env,
        extra: &extra,
        shell,
        dir: &dir,
        as_root: nix::unistd::geteuid().is_root(),
    });
    listen_to_signals().map_err(|error| environment(error.to_string()))?;
    let clerk = Clerk::new().map_err(|error| environment(error.to_string()))?;
    let started = Job::start(&made, &folder, 0)
        .map_err(|e| environment(format!("cannot start {}: {e}", tool.program.display())))?;
    let mut job = Job::new(started, &folder, 0, &clerk);
    let shown = std::io::stderr().is_terminal();
    let mut listener = Listener::default();
    let mut said: Vec<Said> = Vec::new();
    let mut measured = 0;
    let mut since = Instant::now();
    loop {
        std::thread::sleep(LOOK_EVERY);
        job.look();
        let ended = if job.has_looked() { job.poll() } else { None };
        // Only what is new: all of a thousand nodes' is a hundred megabytes, on a machine that is being measured.
        let fresh = listener.hear(&job.printed());
        let sweeps = fresh.iter().filter(|s| matches!(s, Said::Measured(_))).count();
        measured += sweeps;
        let begins = said.is_empty() && !fresh.is_empty();
        said.extend(fresh);
        if sweeps > 0 || begins {
            since = Instant::now();
            if shown {
                let _ = write!(
                    std::io::stderr(),
                    "\rpass {number}: {measured} of {} sweeps ",
                    extent.sweeps
                );
                let _ = std::io::stderr().flush();
            }
        }
        let late = since.elapsed() > patience;
        let interrupted = asked_by_signal();
        if ended.is_none() && !late && !interrupted {
            continue;
        }
        wait(&job.end(&run_id));
        if shown {
            tell!("");
        }
        if interrupted {
            return Err(environment(INTERRUPTED.into()));
        }
        if ended == Some(Some(0)) && measured == extent.sweeps {
            break;
        }
        let words = match wait(&job.words()).map(|(_, complaint)| complaint.words) {
            Some(words) if !words.is_empty() => format!(" ({words})"),
            _ => String::new(),
        };
        let waited = said.iter().rev().find_map(|s| match s {
            Said::WaitsFor { node, seconds } => Some((*node, *seconds)),
            _ => None,
        });
        return Err(environment(match (waited, late) {
            (Some((node, seconds)), _) => format!(
                "{} has stopped answering in the middle of the measurements: waited for it for {seconds} s{words}; \
                 skt-hpl doctor tells whether it still answers",
                hosts[node].name
            ),
            (None, true) => format!(
                "nothing was measured for {} s{words}; skt-hpl doctor tells whether MPI starts over these nodes",
                patience.as_secs()
            ),
            (None, false) => format!(
                "the measurements ended after {measured} of {} sweeps{words}; skt-hpl doctor tells whether MPI starts over \
                 these nodes",
                extent.sweeps
            ),
        }));
    }
    let mut here = Vec::new();
    let mut sweeps = Vec::new();
    for one in said {
        match one {
            Said::Begun(nodes) => here = nodes,
            Said::Measured(sweep) => sweeps.push(sweep),
            Said::WaitsFor { .. } => {}
        }
    }
    let engines: Vec<String> = here.iter().map(|node| node.engine.clone()).collect();
    let judged = judge(hosts.len(), &sweeps, &engines, tolerance);
    Ok(Pass { here, sweeps, judged, took: began.elapsed() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_nodes_meet_all_in_every_sweep_and_many_as_far_as_time_goes() {
        let slot = Duration::from_millis(80);
        let of = |nodes, seconds| extent(nodes, Duration::from_secs(seconds), 0, slot);
        assert_eq!(of(4, 600).rounds, 3);
        assert_eq!(of(5, 600).rounds, 5);
        assert_eq!(of(2, 1).rounds, 1);
        let many = of(1000, 600);
        assert!((5..100).contains(&many.rounds), "{many:?}");
        assert!(of(1000, 86_400).rounds == 999);
        // A sweep of 999 rounds of 120 ms is over before it is called late.
        assert!(patience(&of(1000, 86_400)) > Duration::from_secs(200));
        assert!(patience(&of(4, 600)) < PATIENCE + Duration::from_secs(2));
    }
}
