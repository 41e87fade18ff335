//! A pass over all nodes: starts a rank on each node, reads the output of rank 0, and judges the measurements.
//!
//! A pass without progress is ended, so a node that hangs costs the burn-in minutes and does not block it for ever.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use super::{BurninFlags, INTERRUPTED, names_of};
use crate::base::clock::unix_ms;
use crate::base::exit::Refusal;
use crate::base::params::Device;
use crate::base::units::show_seconds;
use crate::burnin::document::{self, Document};
use crate::burnin::probe::Extent;
use crate::burnin::rounds::rounds as all_rounds;
use crate::burnin::samples::{self, Here, Listener, Said, Sweep};
use crate::burnin::verdict::{Judged, WHOLE_EVERY, judge, sweeps_least, sweeps_wanted};
use crate::burnin::words;
use crate::cli::template::own_program;
use crate::supervise::remember::folder::Folder;
use crate::supervise::remember::io_thread::IoThread;
use crate::supervise::signals::{asked_by_signal, listen_to_signals};
use crate::supervise::start::hosts::Host;
use crate::supervise::start::job::Job;
use crate::supervise::start::launch::{LaunchPlan, launch};
use crate::supervise::start::room::Room;
use crate::supervise::talk::shell::{RemoteShell, library_path, variables};

/// Time of a measurement between two nodes, in slots. A slot is the time of `--slot`. The wait until both nodes are ready is
/// included.
const GAME_SLOTS: f64 = 1.5;

/// Time of each measurement that every node makes by itself, in slots. A slot is the time of `--slot`.
const ALONE_SLOTS: f64 = 1.5;

/// Share of the burn-in's time that a pass may take, from 0 to 1.
const PART: f64 = 0.25;

/// Time for which rank 0 may print nothing while MPI starts. During a sweep, the time of the sweep is added.
const TIMEOUT: Duration = Duration::from_secs(90);

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Longest wait for the end of a pass's job, and for the job's output.
const ENDS: Duration = Duration::from_secs(5);

pub struct Pass {
    pub here: Vec<Here>,
    pub sweeps: Vec<Sweep>,
    pub judged: Judged,
    pub took: Duration,
}

/// Returns the number of sweeps of a pass, and of rounds in a sweep, for a burn-in of `time`. The number of sweeps does not
/// depend on `time`. In a round each node is measured with one other node. A sweep has as many rounds as fit in its part of
/// `time`.
fn extent(nodes: usize, time: Duration, threads: usize, slot: Duration) -> Extent {
    let sweeps = sweeps_wanted(nodes);
    let whole = (sweeps / WHOLE_EVERY) as f64;
    let slots = time.as_secs_f64() * PART / slot.as_secs_f64().max(1e-3) / whole;
    let rounds = ((slots - ALONE_SLOTS * (WHOLE_EVERY + 1) as f64) / GAME_SLOTS).max(1.0) as usize;
    let rounds = rounds.min(all_rounds(nodes));
    Extent { sweeps, rounds, threads, slot, device: Device::None }
}

/// Returns the smallest number of measurements of a link in a pass.
fn meetings(nodes: usize, extent: &Extent) -> usize {
    extent.sweeps / WHOLE_EVERY * extent.rounds / all_rounds(nodes).max(1)
}

/// Returns the shortest time of a burn-in in which a pass measures each link often enough to name a slow link.
fn time_for_links(nodes: usize, slot: Duration) -> Duration {
    let whole = sweeps_wanted(nodes) / WHOLE_EVERY;
    let rounds = (sweeps_least(nodes) * all_rounds(nodes)).div_ceil(whole);
    // Half a round is added, because `extent` rounds the number of rounds down.
    let slots = GAME_SLOTS * (rounds as f64 + 0.5) + ALONE_SLOTS * (WHOLE_EVERY + 1) as f64;
    slot.max(Duration::from_millis(1)).mul_f64(slots * whole as f64 / PART)
}

/// Returns a warning if `time` is too short to measure the links between `nodes` nodes; None if `time` is long enough.
pub fn too_short(nodes: usize, time: Duration, slot: Duration) -> Option<String> {
    let (often, least) = (meetings(nodes, &extent(nodes, time, 0, slot)), sweeps_least(nodes));
    (often < least).then(|| {
        format!(
            "in {} a pass measures some links only {often} times, but at least {least} measurements are needed to name a slow \
             link: give --time {}min",
            show_seconds(time.as_secs_f64()),
            time_for_links(nodes, slot).as_secs().div_ceil(60)
        )
    })
}

/// Returns the time for which rank 0 may print nothing before the pass is given up. Rank 0 prints at the end of each sweep, and a
/// sweep may take twice its planned time.
fn timeout(extent: &Extent, hosts: &[Host]) -> Duration {
    // The devices of a node are measured in turn.
    let turns = hosts.iter().map(|host| host.slots).max().unwrap_or(1);
    let slots = GAME_SLOTS * extent.rounds as f64 + ALONE_SLOTS * turns as f64;
    TIMEOUT + extent.slot.mul_f64(2.0 * slots)
}

/// Measures all nodes and links in one pass, judges the result, and puts the figures into the document.
pub fn measure(
    flags: &BurninFlags,
    shell: &RemoteShell,
    hosts: &[Host],
    document: &mut Document,
) -> Result<Pass, Refusal> {
    let began = Instant::now();
    let number = document.sweeps.len() + 1;
    let names = names_of(hosts, flags.device);
    let mut extent = extent(names.len(), flags.time, flags.cores, flags.slot);
    if flags.device != Device::None {
        (extent.device, extent.rounds) = (flags.device, 0);
    }
    let run_id = format!("burnin-{}-{}", std::process::id(), unix_ms());
    let pass = Measuring { flags, shell, hosts, names: &names, number, run_id, extent };
    let said = pass.listen(&mut pass.start()?)?;
    let mut here = Vec::new();
    let mut sweeps = Vec::new();
    for one in said {
        match one {
            Said::Begun(nodes) => here = nodes,
            Said::Measured(sweep) => sweeps.push(sweep),
            Said::WaitsFor { .. } | Said::AllCame => {}
        }
    }
    let engines: Vec<String> = here.iter().map(|node| node.engine.clone()).collect();
    let judged = judge(names.len(), &sweeps, &engines, &document.tolerance);
    document.sweeps.push(sweeps.len());
    document.nodes = document::nodes(&names, &here, &sweeps, &judged);
    document.links = document::links(&names, &sweeps, &judged);
    Ok(Pass { here, sweeps, judged, took: began.elapsed() })
}

/// Running pass over all nodes.
struct Measuring<'a> {
    flags: &'a BurninFlags,
    shell: &'a RemoteShell,
    hosts: &'a [Host],
    names: &'a [String],
    number: usize,
    run_id: String,
    extent: Extent,
}

impl Measuring<'_> {
    /// Starts the job of the pass, with one rank on each node, or for each device.
    fn start(&self) -> Result<Job, Refusal> {
        let Self { flags, shell, hosts, names, number, run_id, extent } = self;
        let (tool, extra) = flags.nodes.launcher()?;
        let own = own_program()?.to_string_lossy().into_owned();
        let dir = std::path::absolute(flags.state.join(format!("pass-{number}")));
        let dir = dir.map_err(Refusal::environment)?;
        let folder = Folder::new(&dir);
        folder.prepare().map_err(Refusal::environment)?;
        let command = [own, "agent".to_owned(), "--measure".to_owned(), extent.to_string()];
        let env: Vec<(String, String)> = variables()
            .filter(|(name, _)| name.starts_with("SKT_FAULT"))
            .chain(library_path())
            .collect();
        let made = launch(&LaunchPlan {
            tool: &tool,
            room: Room::Enough,
            hosts,
            ranks: names.len(),
            run_id,
            attempt: 0,
            command: &command,
            env: &env,
            extra: &extra,
            shell,
            dir: &dir,
            as_root: nix::unistd::geteuid().is_root(),
        });
        listen_to_signals().map_err(Refusal::environment)?;
        let io_thread = IoThread::new("I/O").map_err(Refusal::environment)?;
        Job::start(&made, &folder, 0, &io_thread).map_err(|e| {
            Refusal::environment(format!("cannot start {}: {e}", tool.program.display()))
        })
    }

    /// Listens to rank 0 until all sweeps are measured, and ends the job.
    fn listen(&self, job: &mut Job) -> Result<Vec<Said>, Refusal> {
        let Self { number, run_id, extent, .. } = self;
        let timeout = timeout(extent, self.hosts);
        let shown = stderr().is_terminal();
        let mut listener = Listener::default();
        let mut said: Vec<Said> = Vec::new();
        let mut measured = 0;
        let mut since = Instant::now();
        loop {
            std::thread::sleep(LOOK_EVERY);
            job.look();
            let ended = if job.has_looked() { job.poll() } else { None };
            // Only new lines are read: all lines of a thousand nodes are a hundred megabytes, on a machine that is being
            // measured.
            let fresh = listener.hear(&job.printed());
            let sweeps = fresh.iter().filter(|s| matches!(s, Said::Measured(_))).count();
            measured += sweeps;
            let begins = said.is_empty() && !fresh.is_empty();
            said.extend(fresh);
            if sweeps > 0 || begins {
                since = Instant::now();
                if shown {
                    let all = extent.sweeps;
                    let _ = write!(stderr(), "\rpass {number}: {measured} of {all} sweeps ");
                }
            }
            let late = since.elapsed() > timeout;
            let interrupted = asked_by_signal();
            if ended.is_none() && !late && !interrupted {
                continue;
            }
            job.end(run_id).wait_for(ENDS);
            if shown {
                tell!("");
            }
            if interrupted {
                return Err(Refusal::environment(INTERRUPTED));
            }
            if ended == Some(Some(0)) && measured == extent.sweeps {
                return Ok(said);
            }
            return Err(self.failure(job, &said, measured, late));
        }
    }

    /// Returns the error that the measurements ended after `measured` sweeps. `late` is true if nothing was measured for too
    /// long.
    fn failure(&self, job: &Job, said: &[Said], measured: usize, late: bool) -> Refusal {
        let complaint = job.last_words().wait_for(ENDS).map(|words| words.complaint);
        let complaint = complaint.filter(|words| !words.is_empty());
        let complaint = complaint.map_or(String::new(), |words| format!(" ({words})"));
        Refusal::environment(match (samples::waits_for(said), late) {
            (Some((absent, seconds)), _) => format!(
                "{} stopped answering in the middle of the measurements: waited for {seconds} s{complaint}; skt-hpl doctor \
                 names the nodes that still answer",
                words::absent(absent, self.names)
            ),
            (None, true) => format!(
                "nothing was measured for {} s{complaint}; skt-hpl doctor checks whether MPI starts over these nodes",
                timeout(&self.extent, self.hosts).as_secs()
            ),
            (None, false) => format!(
                "the measurements ended after {measured} of {} sweeps{complaint}; skt-hpl doctor checks whether MPI starts over \
                 these nodes",
                self.extent.sweeps
            ),
        })
    }
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
        // A sweep of 999 rounds of 120 ms is over before it counts as late.
        assert!(timeout(&of(1000, 86_400), &[]) > Duration::from_secs(200));
        assert!(timeout(&of(4, 600), &[]) < TIMEOUT + Duration::from_secs(2));
    }

    /// Checks the warning for a time in which a pass measures links too seldom to name a slow link. The time that the warning
    /// suggests is long enough.
    #[test]
    fn a_time_too_short_for_the_links_is_told_with_one_that_does() {
        let (slot, minutes) =
            (Duration::from_millis(80), |count: u64| Duration::from_secs(60 * count));
        assert_eq!(meetings(100, &extent(100, minutes(10), 0, slot)), 10);
        let words = too_short(100, minutes(10), slot).unwrap();
        assert!(words.contains("only 10 times") && words.contains("at least 12"), "{words}");
        assert!(words.ends_with("--time 12min"), "{words}");
        assert_eq!(too_short(100, minutes(12), slot), None);
        assert!(too_short(100, minutes(10), slot / 2).is_none());
        // With few nodes, five minutes are enough.
        for nodes in 2..8 {
            assert_eq!(too_short(nodes, Duration::from_secs(300), slot), None, "{nodes}");
        }
        for nodes in [2, 3, 10, 64, 257, 1000] {
            for slot in [1, 80, 1000].map(Duration::from_millis) {
                let time = time_for_links(nodes, slot);
                let often = |time| meetings(nodes, &extent(nodes, time, 0, slot));
                assert!(often(time) >= sweeps_least(nodes), "{nodes}, {slot:?}");
                assert!(nodes < 64 || often(time.mul_f64(0.9)) < sweeps_least(nodes));
            }
        }
    }
}
