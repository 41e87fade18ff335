//! Simulation of supervised runs from a seed: the real supervisor and real agents on virtual time, with nodes, a launcher and a
//! disk that fail.
//!
//! The simulation calls the supervisor as `skt-hpl run` does. If the supervisor is killed, the same command is given again. In
//! the end the real events must explain the status of the run.

mod evidence;
mod scenario;
mod site;
mod world;

use std::any::Any;
use std::fs::{self, File};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use scenario::{Scenario, Special};
use site::{RANK_BYTES, Workload};
use world::{Killed, Simulated, World, Wrong, now_ms};

use nix::sys::signal::{SigHandler, Signal, signal};

use super::{Failure, Report, Simulation};
use crate::base::clock::{self, steady_ms};
use crate::base::params::Engine;
use crate::base::simulated;
use crate::kernels::arithmetic::Rules;
use crate::shm::Store;
use crate::supervise::judge::fitness::Need;
use crate::supervise::judge::policy::{MAX_RESTARTS, SAME_FAULT_MAX};
use crate::supervise::judge::thresholds::Thresholds;
use crate::supervise::machine;
use crate::supervise::remember::events::{Event, Record};
use crate::supervise::remember::folder::Folder;
use crate::supervise::remember::journal;
use crate::supervise::start::hosts::Host;
use crate::supervise::start::launcher::{Launcher, Tool};
use crate::supervise::supervisor::{Benchmark, Settings, supervise};
use crate::supervise::talk::agent::binary_digest;
use crate::supervise::talk::shell::RemoteShell;

/// Simulator of supervised runs, one after the other. Its process has a single thread, and simulates nothing else.
pub struct Office {
    folder: PathBuf,
    binary: String,
    trace: Option<File>,
}

impl Simulation for Office {
    const FAMILY: u64 = 1;

    fn begin() -> Self {
        Self::new(None)
    }

    fn faults(&self, seed: u64) -> usize {
        Scenario::of(seed).faults.len()
    }

    fn run(&mut self, seed: u64) -> Result<Report, Failure> {
        self.play(&Scenario::of(seed))
    }

    fn run_with(&mut self, seed: u64, faults: &[usize]) -> Result<Report, Failure> {
        self.play(&Scenario::of(seed).with_faults(faults))
    }
}

impl Office {
    /// Makes an office. The events of each run are written to `trace`, if a file is given.
    pub fn new(trace: Option<File>) -> Self {
        simulated::begin(&Simulated);
        machine::simulate(&Simulated);
        // SAFETY: no handler is installed. A write to a full disk is then an error, and not the end of this process.
        unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.expect("a known signal");
        let folder = PathBuf::from(format!("/dev/shm/skt-office-{}", std::process::id()));
        Self { folder, binary: binary_digest(), trace }
    }

    /// Runs a seed on `nodes` nodes.
    pub fn run_on(&mut self, seed: u64, nodes: usize) -> Result<Report, Failure> {
        self.play(&Scenario::on(seed, nodes))
    }

    fn play(&mut self, scenario: &Scenario) -> Result<Report, Failure> {
        let (world, records, ended) = self.end_of(scenario);
        if let Some(trace) = &mut self.trace {
            let log = world.log(records.as_deref().unwrap_or_default());
            trace.write_all(log.as_bytes()).expect("the trace");
        }
        let checked = ended.and_then(|status| {
            check(scenario, &world, &records.clone()?, status)?;
            Ok(status)
        });
        match checked {
            Ok(status) => Ok(world.report(status)),
            Err(what) => {
                let log = world.log(&records.unwrap_or_default());
                Err(Failure { what, scenario: format!("{scenario:#?}"), log })
            }
        }
    }

    /// Simulates a run. Returns the world at its end, the records, and the status of the run or its violation.
    fn end_of(
        &mut self,
        scenario: &Scenario,
    ) -> (World, Result<Vec<Record>, String>, Result<u8, String>) {
        let _ = fs::remove_dir_all(&self.folder);
        let folder = Folder::new(&self.folder);
        World::begin(scenario, &self.binary, &folder);
        let settings = settings(scenario, folder.clone());
        let ended = command(settings, scenario.discards, scenario.limit_ms);
        let world = World::end();
        let text = fs::read(folder.journal()).unwrap_or_default();
        let _ = fs::remove_dir_all(&self.folder);
        let records = journal::parse(&text, &folder.journal());
        let records = records.map(|(records, _)| records);
        (world, records, ended)
    }
}

/// Repeats the command until the run has ended. The run is stopped at the time `limit_ms`, and then goes on without a limit. If
/// `discards`, the second command has `--new`. Returns the status of the run; the error is a violation of the rules.
fn command(
    mut settings: Settings,
    mut discards: bool,
    mut limit_ms: Option<u64>,
) -> Result<u8, String> {
    loop {
        World::with(World::starts_supervisor);
        if settings.discard {
            World::with(|world| world.site.borrow_mut().begins_from_scratch());
        }
        // A command that is given after the time limit has no limit.
        settings.stop_at_ms = limit_ms.and_then(|at| Some(steady_ms() + at.checked_sub(now_ms())?));
        let old = world::run_id(&settings.folder);
        let ended = catch_unwind(AssertUnwindSafe(|| supervise(&settings)));
        // After a stop at the time limit, the user gives the command again.
        let mut goes_on =
            || World::with(World::is_to_go_on) || limit_ms.take_if(|at| now_ms() >= *at).is_some();
        let has_discarded = std::mem::replace(&mut settings.discard, std::mem::take(&mut discards));
        match ended {
            Ok(Ok(75)) if goes_on() => {
                if settings.benchmark.level2.is_some() && !settings.spares.is_empty() {
                    let spare = settings.spares.remove(0);
                    settings.hosts.remove(0);
                    settings.hosts.push(spare);
                }
                pause(1000)?;
            }
            Ok(Ok(status)) => return Ok(status),
            // The supervisor was stopped while it gave up the old run. The same command continues to give it up.
            Ok(Err(_)) if has_discarded && goes_on() => {
                settings.discard = true;
                pause(1000)?;
            }
            // The first launch had no room on the disk.
            Ok(Err(_)) if World::with(|world| world.full_ms > 0 && !world.has_launched()) => {
                return Ok(6);
            }
            Ok(Err(error)) => return Err(format!("the supervisor gives up: {error:#}")),
            Err(thrown) if thrown.is::<Killed>() => {
                let again_ms = World::with(|world| {
                    world.starts_supervisor();
                    world.again_ms
                });
                pause(again_ms.saturating_sub(now_ms()))?;
                // If the supervisor died before it gave up the old run, the same command does that.
                let folder = &settings.folder;
                let is_old = world::run_id(folder) == old && !folder.given_up().exists();
                settings.discard |= has_discarded && is_old;
                // After the end of the run, the command would begin another run.
                if let Some(status) =
                    world::recorded_end(&settings.folder).filter(|&code| code != 75)
                {
                    return Ok(status);
                }
            }
            Err(thrown) => return Err(failure(&*thrown)),
        }
    }
}

/// Lets time pass without a supervisor. A kill does not end this wait.
fn pause(ms: u64) -> Result<(), String> {
    let until_ms = now_ms() + ms;
    while now_ms() < until_ms {
        let left = Duration::from_millis(until_ms - now_ms());
        match catch_unwind(|| clock::sleep(left)) {
            Err(thrown) if !thrown.is::<Killed>() => return Err(failure(&*thrown)),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the violation or panic that ended the supervisor.
fn failure(thrown: &(dyn Any + Send)) -> String {
    if thrown.is::<Wrong>() {
        return World::with(|world| world.site.borrow().wrong.clone()).unwrap_or_default();
    }
    let words = thrown.downcast_ref::<String>().map(String::as_str);
    let words = words.or_else(|| thrown.downcast_ref::<&str>().copied());
    format!("the supervisor panics: {}", words.unwrap_or_default())
}

/// Compares the end of a run with the real events.
fn check(scenario: &Scenario, world: &World, records: &[Record], status: u8) -> Result<(), String> {
    let site = world.site.borrow();
    let most_ms = scenario.most_ms();
    if now_ms() > most_ms && !world.is_given_up {
        return Err(format!("it took {} ms of at most {most_ms}", now_ms()));
    }
    // If the launcher hides losses, another program counts as done only if all its nodes answer.
    let is_doubted = site.hides_losses && scenario.work.workload == Workload::Other;
    let is_doubted = is_doubted && status != 0 && site.blameless() < scenario.nodes;
    if site.is_done != (status == 0) && !is_doubted {
        return Err(format!(
            "the run ended with {status}, and its tests are done: {}",
            site.is_done
        ));
    }
    match status {
        0 => {
            let printed = String::from_utf8_lossy(&world.printed);
            if printed.matches("PASSED").count() == 0 {
                return Err("the results were not passed on".to_owned());
            }
            let (last, really) = (site.attempt_number(), site.recoveries());
            let is_of_last = |record: &&Record| matches!(record.event, Event::GoneOn { attempt, .. } if attempt == last);
            let recorded = records.iter().filter(is_of_last).count();
            // While the disk is full, nothing is recorded.
            if recorded != really && now_ms() >= world.full_ms {
                return Err(format!("{recorded} of {really} recoveries in place were recorded"));
            }
            Ok(())
        }
        75 | 6 if site.blameless() < scenario.nodes => Ok(()),
        4 if site.has_refused => Ok(()),
        // Without room at the first launch nothing is lost, and the run ends.
        5 if site.has_refused && site.attempt_number() == 1 => Ok(()),
        6 if world.refused_first || world.full_ms > 0 && !world.has_launched() => Ok(()),
        75 if scenario.special == Some(Special::NoLaunch) => Ok(()),
        // A fault during the search for the node at fault may hit a trial of healthy nodes, which this command then does not
        // use. Nothing is lost by that.
        6 | 75 if site.trial_was_hit => Ok(()),
        // The status of another program that fails is the status of the run.
        1 if scenario.work.workload == Workload::Other => Ok(()),
        // If the same fault occurs three times in a row, the supervisor takes it for a bug and stops the run, with status 6 if
        // nothing was computed. This check counts all such faults, in a row or not.
        4 | 6
            if records.iter().filter(|record| may_be_a_bug(&record.event)).count()
                >= SAME_FAULT_MAX
                && !has_only_a_sick_node(scenario) =>
        {
            Ok(())
        }
        _ => Err(format!(
            "the run ended with {status}, and {} nodes were well all the time",
            site.blameless()
        )),
    }
}

/// Returns whether the only fault is that of a sick node, which a spare can replace.
fn has_only_a_sick_node(scenario: &Scenario) -> bool {
    matches!(scenario.special, Some(Special::Sick { .. }))
        && scenario.faults.is_empty()
        && scenario.spares > 0
}

fn may_be_a_bug(event: &Event) -> bool {
    matches!(event, Event::Fault { kind, .. } if kind.may_be_a_bug())
}

fn settings(scenario: &Scenario, folder: Folder) -> Settings {
    let (workload, usual) = (scenario.work.workload, Thresholds::default());
    let in_place = workload.recovers_in_place();
    let host = |number: usize| Host::new(format!("n{number}"), scenario.slots);
    let named_bytes = scenario.slots as u64 * RANK_BYTES;
    let need = || Need { named_bytes, ..Need::none(Store::Posix) };
    let needs = (1..=scenario.nodes).map(|number| (format!("n{number}"), need()));
    let rules = Rules { engine: Engine::Auto, preflight: false, told: false, named: false };
    let tool = Tool {
        kind: Launcher::Openmpi,
        program: "mpirun".into(),
        major: Some(if scenario.special == Some(Special::FalseZero) { 5 } else { 4 }),
        prefix: None,
        pmi: "",
        fence_is_chosen: false,
        cpus_per_rank: None,
    };
    Settings {
        hosts: (1..=scenario.nodes).map(host).collect(),
        spares: (scenario.nodes + 1..=scenario.nodes + scenario.spares).map(host).collect(),
        ranks: scenario.ranks(),
        tool,
        shell: RemoteShell::Ssh(vec!["ssh".to_owned()]),
        extra: Vec::new(),
        command: vec!["skt-hpl".to_owned()],
        env: Vec::new(),
        agent: vec!["skt-hpl".to_owned(), "agent".to_owned()],
        folder,
        job: workload.saves().then(|| "simulated".to_owned()),
        benchmark: Benchmark {
            progress_shows: workload != Workload::Other,
            in_place,
            stays_vacant: workload == Workload::Vacant,
            groups: if workload.saves() { scenario.work.groups.clone() } else { Vec::new() },
            saves: workload.saves(),
            needs: needs.filter(|_| scenario.special == Some(Special::Room)).collect(),
            level2: (scenario.special == Some(Special::Moves)).then(|| PathBuf::from("/shared")),
            rounding: matches!(scenario.special, Some(Special::Alien { .. })).then_some(rules),
            ..Benchmark::default()
        },
        thresholds: if in_place { usual.in_place() } else { usual },
        beat_ms: 500,
        orphan_timeout_ms: 60_000,
        fanout: scenario.fanout,
        max_restarts: MAX_RESTARTS,
        may_double: scenario.may_double,
        wait: scenario.wait,
        stop_at_ms: None,
        stop_timeout: Duration::from_secs(60),
        rank_bytes: None,
        trial: scenario.trial,
        progress_every: Duration::from_secs(
            10 * u64::from(scenario.special == Some(Special::Lines)),
        ),
        discard: false,
    }
}
