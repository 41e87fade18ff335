//! Simulation of whole runs from a seed: the ranks are processes that take turns, with faults at any call and any crash point.
//!
//! If faults end a launch, the run is launched again. In the end, the run must have the same bits of the solution as a run
//! without faults, and leave no memory behind.

mod arena;
mod job;
mod rank;
mod scenario;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use arena::{Arena, Fault, Manner, Place, SECOND};
use job::{Ended, Job, Launch};
use scenario::{Damage, Kind, Outage, Scenario};

use super::{Failure, Report, Simulation};
use crate::base::cores;
use crate::base::exit::Exit;
use crate::base::outcome::Verdict;
use crate::base::topology::Topology;
use crate::driver::node_facts;
use crate::kernels::cache;
use crate::report::json::Run;
use crate::shm::{MemoryStore, Store};

/// Simulator of runs, one after the other. Its process must have a single thread.
pub struct Stage {
    arena: &'static mut Arena,
    folder: PathBuf,
    job: String,
    /// Digests of the solution x of runs without faults, by the arguments of the run.
    undisturbed: HashMap<Vec<String>, String>,
    trace: Option<File>,
}

/// Files of persistent shared memory: position, path and content of each.
type Memory = Vec<(usize, PathBuf, Vec<u8>)>;

impl Simulation for Stage {
    /// All seeds of a problem go to one worker, which computes the problem's solution without faults once.
    const FAMILY: u64 = scenario::FAMILY;

    fn begin() -> Self {
        Self::new(None)
    }

    fn faults(&self, seed: u64) -> usize {
        Scenario::of(seed).faults().count()
    }

    fn run(&mut self, seed: u64) -> Result<Report, Failure> {
        self.play(&Scenario::of(seed))
    }

    fn run_with(&mut self, seed: u64, faults: &[usize]) -> Result<Report, Failure> {
        self.play(&Scenario::of(seed).with_faults(faults))
    }
}

impl Stage {
    /// Makes a simulator. If a file is given, every event is written to `trace`.
    pub fn new(trace: Option<File>) -> Self {
        // These values are read once in the parent, so that not every rank reads them.
        Topology::here();
        cores::count();
        cache::second_level();
        node_facts::here(1, None);
        let job = format!("sim-{}", std::process::id());
        let folder = PathBuf::from("/dev/shm").join(format!("skt-{job}"));
        Self { arena: Arena::new(), folder, job, undisturbed: HashMap::new(), trace }
    }

    fn play(&mut self, scenario: &Scenario) -> Result<Report, Failure> {
        let mut report = Report::default();
        let played = self.try_play(scenario, &mut report);
        let printed = fs::read_to_string(self.folder.join("err")).unwrap_or_default();
        self.clear();
        played.map(|()| report).map_err(|what| {
            let lines: Vec<&str> = printed.lines().collect();
            let last = lines[lines.len().saturating_sub(40)..].join("\n");
            Failure { what, scenario: described(scenario), log: last }
        })
    }

    fn try_play(&mut self, scenario: &Scenario, report: &mut Report) -> Result<(), String> {
        let wanted = self.undisturbed(&scenario.solver)?;
        self.clear();
        fs::create_dir_all(self.folder.join("stored")).expect("room in /dev/shm");
        let words = self.words(scenario);
        let mut before_launch = Vec::new();
        // True if memory has a checkpoint of all positions.
        let mut saved = false;
        for act in &scenario.acts {
            let before = report.injected.len();
            let launch = self.launch(scenario, &words, &act.faults, act.seed, report);
            let Launch { ended, injected, committed, generated, cleans, is_told, .. } = launch;
            if saved && generated {
                return Err(RUN_LOST.to_owned());
            }
            let ended = status(ended)?;
            // After the results are printed, the memory is not needed any more.
            if self.has_ended(ended, scenario, &injected, &wanted)? || is_told {
                return Ok(());
            }
            saved |=
                scenario.keeps_memory() && committed.count_ones() as usize >= scenario.positions();
            saved &= !act.outage.all && !cleans;
            if report.injected.len() == before {
                return Err(format!("it ended with {ended}, and no fault was injected"));
            }
            let now = self.memory();
            self.damage(&act.outage, &before_launch);
            // Memory that all nodes have lost does not return.
            before_launch = if act.outage.all { Vec::new() } else { now };
        }
        let launch = self.launch(scenario, &words, &[], scenario.seed, report);
        if saved && launch.generated {
            return Err(RUN_LOST.to_owned());
        }
        let ended = status(launch.ended)?;
        match self.has_ended(ended, scenario, &[], &wanted)? {
            true => Ok(()),
            false => Err(format!("a launch without a fault ended with {ended}")),
        }
    }

    /// Returns the persistent memory of the job: the files of each position, and their content.
    fn memory(&self) -> Memory {
        let of = |name: &str| -> Option<usize> {
            let (_, rest) = name.split_once(&format!(".{}.p", self.job))?;
            rest.split('.').next()?.parse().ok()
        };
        let files = fs::read_dir("/dev/shm").into_iter().flatten().flatten().filter_map(|file| {
            let position = of(file.file_name().to_str()?)?;
            Some((position, file.path(), fs::read(file.path()).ok()?))
        });
        files.collect()
    }

    fn damage(&self, outage: &Outage, earlier: &Memory) {
        let memory_store = self.memory_store();
        let lose = |position: usize| memory_store.unlink_position(position as u32);
        for &(position, damage) in &outage.damaged {
            match damage {
                Damage::Lost => lose(position),
                Damage::Flipped(part, offset) => {
                    memory_store.flip(position as u32, part, offset);
                }
                Damage::Old => {
                    lose(position);
                    for (_, path, content) in earlier.iter().filter(|file| file.0 == position) {
                        let mut file = OpenOptions::new();
                        let file =
                            file.create(true).truncate(true).write(true).mode(0o600).open(path);
                        let written = file.and_then(|mut file| file.write_all(content));
                        written.expect("room in /dev/shm");
                    }
                }
            }
        }
        if outage.all {
            memory_store.positions().into_iter().for_each(|position| lose(position as usize));
        }
    }

    /// Returns true if the run is complete, and false if it must be launched again. The error is a violation of the rules.
    fn has_ended(
        &self,
        status: i32,
        scenario: &Scenario,
        injected: &[Fault],
        wanted: &str,
    ) -> Result<bool, String> {
        const KILLED: i32 = 137;
        if status == 0 {
            let (verdict, digest) = self.result()?;
            if verdict != Verdict::Passed {
                return Err("the residual check failed".to_owned());
            }
            if !scenario.rounds() && digest != wanted {
                return Err(format!("x is {digest}, and {wanted} undisturbed"));
            }
            let left = self.memory_store().list();
            if !left.is_empty() && scenario.kind != Kind::InPlace {
                return Err(format!("{} parts of persistent memory are left behind", left.len()));
            }
            return Ok(true);
        }
        let is = |exit: Exit| status == i32::from(exit.code());
        match scenario.kind {
            _ if status == KILLED => Ok(false),
            // There were more losses than checksums or spare ranks can recover.
            Kind::Abft if is(Exit::Unrecoverable) => Ok(false),
            Kind::InPlace if is(Exit::Stopped) => Ok(false),
            // The run failed while its only copy was overwritten, so it cannot be resumed.
            Kind::Restart if scenario.is_single() && is(Exit::Unrecoverable) => Ok(true),
            // The program refuses a folder that it cannot write before the run begins.
            _ if injected.iter().any(Fault::is_of_storage) && is(Exit::Environment) => Ok(false),
            // A loss before the first attempt ends the job.
            Kind::Abft | Kind::InPlace if is(Exit::Environment) => Ok(false),
            _ => Err(format!("it ended with {status}")),
        }
    }

    fn result(&self) -> Result<(Verdict, String), String> {
        let text = fs::read_to_string(self.folder.join("run.json")).map_err(|e| e.to_string())?;
        let run: Run = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        let outcome = run.tests.first().and_then(|test| test.outcome.as_ref());
        let outcome = outcome.ok_or("the results have no outcome")?;
        Ok((outcome.verdict, outcome.x_digest.clone()))
    }

    fn launch(
        &mut self,
        scenario: &Scenario,
        words: &[String],
        faults: &[Fault],
        seed: u64,
        report: &mut Report,
    ) -> Launch {
        let (ranks, manner) = (scenario.ranks(), scenario.manner);
        let trace = self.trace.as_ref();
        let job = Job { ranks, words, folder: &self.folder, seed, manner, faults, trace };
        let launch = job::launch(self.arena, &job);
        report.launches += 1;
        report.steps += launch.steps;
        let came_to = match launch.ended {
            Ended::Status(0) => "the launch solved it",
            Ended::Status(137) => "the job was ended",
            Ended::Status(_) => "the job ended itself",
            Ended::Hang(_) | Ended::Broken(_) => "failed",
        };
        report.injected.extend(launch.injected.iter().map(|fault| {
            let phase = fault.phase.unwrap_or("starting");
            (format!("{:?} while {phase}", fault.effect), came_to.to_owned())
        }));
        launch
    }

    /// Returns the digest of the solution x of a run without faults. The error states why the run failed.
    fn undisturbed(&mut self, solver: &[String]) -> Result<String, String> {
        if let Some(known) = self.undisturbed.get(solver) {
            return Ok(known.clone());
        }
        self.clear();
        fs::create_dir_all(&self.folder).expect("room in /dev/shm");
        let manner =
            Manner { survives: false, eager_bytes: 0, turn_every: 8, notice_within: SECOND };
        let mut words = solver.to_vec();
        words.extend(COMMON.iter().map(|word| (*word).to_owned()));
        let number = |flag: &str| -> usize {
            let at = solver.iter().position(|word| word == flag).expect("a problem has a grid");
            solver[at + 1].parse().expect("a number")
        };
        let ranks = number("-p") * number("-q");
        let (folder, faults) = (&self.folder, &[]);
        let job = Job { ranks, words: &words, folder, seed: 1, manner, faults, trace: None };
        let ended = job::launch(self.arena, &job).ended;
        if ended != Ended::Status(0) {
            return Err(format!("undisturbed it ended so: {ended:?}"));
        }
        let (_, digest) = self.result()?;
        self.undisturbed.insert(solver.to_vec(), digest.clone());
        Ok(digest)
    }

    /// Returns the arguments of the run, and makes the files that the arguments name.
    fn words(&self, scenario: &Scenario) -> Vec<String> {
        let mut words: Vec<String> = scenario.solver.clone();
        words.extend(scenario.protection.iter().cloned());
        words.extend(COMMON.iter().map(|word| (*word).to_owned()));
        if scenario.domains > 0 {
            let lines: String = (0..scenario.domains).map(|r| format!("rank:{r} d{r}\n")).collect();
            fs::write(self.folder.join("domains"), lines).expect("room in /dev/shm");
            // Folders for the case that each node has its own storage.
            for rank in 0..scenario.domains {
                fs::create_dir_all(self.folder.join(format!("stored/d{rank}"))).expect("room");
            }
            words.extend(["--domains", "domains"].map(str::to_owned));
        }
        words.extend(["--job".to_owned(), self.job.clone()]);
        words
    }

    fn memory_store(&self) -> MemoryStore {
        MemoryStore::new(Store::Posix, &self.job).expect("a job's name")
    }

    fn clear(&self) {
        let _ = self.memory_store().clean();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.clear();
    }
}

const RUN_LOST: &str = "memory had a checkpoint, and a launch generated the matrix again";

/// Returns the exit status of a launch. The error states why the launch has no status.
fn status(ended: Ended) -> Result<i32, String> {
    match ended {
        Ended::Status(status) => Ok(status),
        Ended::Hang(phases) => Err(format!("it hangs:\n  {}", phases.join("\n  "))),
        Ended::Broken(how) => Err(how),
    }
}

/// Arguments of all runs.
const COMMON: &[&str] = &["--threads", "1", "--pin", "off", "--no-preflight", "--json", "run.json"];

/// Returns a readable description of a scenario: the command, and the numbered faults.
fn described(scenario: &Scenario) -> String {
    let mut text = format!(
        "seed {}: {} ranks, {:?}: {} {}\n{:?}\n",
        scenario.seed,
        scenario.ranks(),
        scenario.kind,
        scenario.solver.join(" "),
        scenario.protection.join(" "),
        scenario.manner,
    );
    let mut number = 0;
    for (launch, act) in scenario.acts.iter().enumerate() {
        for fault in &act.faults {
            text += &format!("  fault {number}, launch {}: {}\n", launch + 1, told(fault));
            number += 1;
        }
        text += &format!("  after launch {}: {:?}\n", launch + 1, act.outage);
    }
    text
}

/// Describes a fault: the effect, and where it is injected.
pub fn told(fault: &Fault) -> String {
    match fault.place {
        Place::Call { rank, number } => format!("{:?} rank {rank} at call {number}", fault.effect),
        Place::Point { point, position, hit } => {
            format!("{:?} position {position} at {}, hit {hit}", fault.effect, point.name())
        }
        Place::Storage { rank, first, count } => {
            let last = first + count - 1;
            format!("{:?}: storage of rank {rank}, operations {first} to {last}", fault.effect)
        }
    }
}
