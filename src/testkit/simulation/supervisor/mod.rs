//! Supervised runs from a seed: the real supervisor and real agents on virtual time, with nodes, a launcher and a disk that fail.
//!
//! A supervisor is called as `skt-hpl run` calls it. Where it is killed, the same command is given again. In the end the run's
//! status must have its reason in what has really happened.

mod scenario;
mod site;
mod world;

use std::fmt;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use scenario::Scenario;
use world::{Killed, Simulated, World, Wrong, now_ms};

use crate::base::clock;
use crate::base::simulated;
use crate::supervise::judge::policy::Patience;
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

/// A place to simulate supervised runs in, one after the other. The process has one thread, and simulates nothing else.
pub struct Office {
    folder: PathBuf,
    binary: String,
}

/// Summary of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub launches: usize,
    pub supervisors: usize,
    pub strikes: usize,
    pub status: u8,
    pub virtual_ms: u64,
}

/// What must not happen.
#[derive(Clone, Debug)]
pub struct Failure {
    pub what: String,
    pub scenario: String,
    /// What has really happened, and what was recorded and said.
    pub log: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}\n{}\n{}", self.what, self.scenario, self.log)
    }
}

impl Default for Office {
    fn default() -> Self {
        Self::new()
    }
}

impl Office {
    pub fn new() -> Self {
        simulated::begin(&Simulated);
        machine::simulate(&Simulated);
        let folder = PathBuf::from(format!("/dev/shm/skt-office-{}", std::process::id()));
        Self { folder, binary: binary_digest() }
    }

    pub fn run(&mut self, seed: u64) -> Result<Report, Failure> {
        self.play(&Scenario::of(seed))
    }

    /// Runs a seed on so many nodes.
    pub fn run_large(&mut self, seed: u64, nodes: usize) -> Result<Report, Failure> {
        self.play(&Scenario::large(seed, nodes))
    }

    /// Runs a seed with some of its strikes only.
    pub fn run_with(&mut self, seed: u64, strikes: &[usize]) -> Result<Report, Failure> {
        self.play(&Scenario::of(seed).with_strikes(strikes))
    }

    /// Of the strikes of a seed whose run fails, those that it takes to fail, by their numbers.
    pub fn smallest(&mut self, seed: u64) -> Vec<usize> {
        let scenario = Scenario::of(seed);
        let mut kept: Vec<usize> = (0..scenario.strikes.len()).collect();
        let mut at = 0;
        while at < kept.len() {
            let mut fewer = kept.clone();
            fewer.remove(at);
            if self.play(&scenario.with_strikes(&fewer)).is_err() {
                kept = fewer;
            } else {
                at += 1;
            }
        }
        kept
    }

    fn play(&mut self, scenario: &Scenario) -> Result<Report, Failure> {
        let _ = fs::remove_dir_all(&self.folder);
        let folder = Folder::new(&self.folder);
        World::begin(scenario, &self.binary, &folder);
        let settings = settings(scenario, folder.clone());
        let mut report = Report::default();
        let ended = command(&settings, &mut report);
        let world = World::end();
        let site = world.site.borrow();
        report.launches = site.launches;
        report.strikes = world.struck;
        report.virtual_ms = now_ms();
        let text = fs::read(folder.journal()).unwrap_or_default();
        let records = journal::parse(&text, &folder.journal());
        let records = records.map(|(records, _)| records).map_err(|error| error.to_string());
        let checked = ended.and_then(|status| {
            report.status = status;
            check(scenario, &world, &records.clone()?, status)
        });
        let _ = fs::remove_dir_all(&self.folder);
        checked.map(|()| report).map_err(|what| {
            let lines = records.unwrap_or_default().iter().map(recorded).collect::<String>();
            let said = String::from_utf8_lossy(&world.said).into_owned();
            let said: Vec<&str> = said.lines().collect();
            let said = said[said.len().saturating_sub(30)..].join("\n");
            let log = format!(
                "--- really:\n{}\n--- recorded:\n{lines}--- said:\n{said}",
                site.log.join("\n")
            );
            Failure { what, scenario: format!("{scenario:#?}"), log }
        })
    }
}

fn recorded(record: &Record) -> String {
    let text = format!("{:?}", record.event);
    let from_ms = 1_800_003_600_000_u64;
    let at_s = (record.at_ms as f64 - from_ms as f64) / 1e3;
    format!("{at_s:>9.3} s  {}\n", text.chars().take(300).collect::<String>())
}

/// Gives the command again and again until the run has ended: with its status, or what went wrong.
fn command(settings: &Settings, report: &mut Report) -> Result<u8, String> {
    loop {
        report.supervisors += 1;
        World::with(World::starts_supervisor);
        let ended = catch_unwind(AssertUnwindSafe(|| supervise(settings)));
        match ended {
            Ok(Ok(75)) if World::with(|world| std::mem::take(&mut world.asked_to_stop)) => {
                pause(1000)?;
            }
            Ok(Ok(status)) => return Ok(status),
            Ok(Err(error)) => return Err(format!("the supervisor gives up: {error:#}")),
            Err(thrown) if thrown.is::<Killed>() => {
                let again_ms = World::with(|world| {
                    world.starts_supervisor();
                    world.again_ms
                });
                pause(again_ms.saturating_sub(now_ms()))?;
            }
            Err(thrown) if thrown.is::<Wrong>() => {
                let wrong = World::with(|world| world.site.borrow().wrong.clone());
                return Err(wrong.unwrap_or_default());
            }
            Err(thrown) => {
                let words = thrown.downcast_ref::<String>().cloned();
                let words =
                    words.or_else(|| thrown.downcast_ref::<&str>().map(|&text| text.to_owned()));
                return Err(format!("the supervisor panics: {}", words.unwrap_or_default()));
            }
        }
    }
}

/// Time passes without a supervisor.
fn pause(ms: u64) -> Result<(), String> {
    let slept = catch_unwind(|| clock::sleep(Duration::from_millis(ms)));
    match slept {
        Err(thrown) if thrown.is::<Wrong>() => {
            let wrong = World::with(|world| world.site.borrow().wrong.clone());
            Err(wrong.unwrap_or_default())
        }
        // It was not there to be killed.
        _ => Ok(()),
    }
}

/// Holds the end of a run against what has really happened.
fn check(scenario: &Scenario, world: &World, records: &[Record], status: u8) -> Result<(), String> {
    let site = world.site.borrow();
    for record in records {
        if let Event::NodeLost { node, why } = &record.event {
            // The clock of the record may have been set before its supervisor began.
            if !site.was_condemned(node) {
                return Err(format!("node {node} was given up without evidence: {why}"));
            }
        }
    }
    if site.is_done != (status == 0) {
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
            Ok(())
        }
        75 | 6 if site.blameless() < scenario.nodes => Ok(()),
        4 if site.has_refused => Ok(()),
        _ => Err(format!(
            "the run ended with {status}, and {} nodes were well all the time",
            site.blameless()
        )),
    }
}

fn settings(scenario: &Scenario, folder: Folder) -> Settings {
    let host = |number: usize| Host::new(format!("n{number}"), scenario.slots);
    let tool = Tool {
        kind: Launcher::Openmpi,
        program: "mpirun".into(),
        major: Some(4),
        prefix: None,
        pmi: "",
        fence_is_chosen: false,
        cpus_per_rank: None,
    };
    Settings {
        hosts: (1..=scenario.nodes).map(host).collect(),
        spares: (scenario.nodes + 1..=scenario.nodes + scenario.spares).map(host).collect(),
        ranks: scenario.positions(),
        tool,
        shell: RemoteShell::Ssh(vec!["ssh".to_owned()]),
        extra: Vec::new(),
        command: vec!["skt-hpl".to_owned()],
        env: Vec::new(),
        agent: vec!["skt-hpl".to_owned(), "agent".to_owned()],
        folder,
        job: Some("simulated".to_owned()),
        benchmark: Benchmark {
            progress_shows: true,
            groups: scenario.work.groups.clone(),
            saves: true,
            ..Benchmark::default()
        },
        thresholds: Thresholds::default(),
        beat_ms: 500,
        lonely_ms: 60_000,
        fanout: scenario.fanout,
        patience: Patience::default(),
        may_double: scenario.may_double,
        wait: scenario.wait,
        stop_at_ms: None,
        halt_patience: Duration::from_secs(60),
        rank_bytes: None,
        trial: false,
        progress_every: Duration::ZERO,
        discard: false,
    }
}
