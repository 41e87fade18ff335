//! The simulated machine of the supervisor: time, connections, disk, launchers.
//!
//! A simulation has a single thread, which owns its world. Time passes only while the supervisor waits.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::scenario::{Fault, Scenario, Special, When};
use super::site::{NODE_BYTES, Site};
use crate::base::clock::steady_ms;
use crate::base::simulated::Simulator;
use crate::kernels::arithmetic::Arithmetic;
use crate::supervise::machine::{Connections, Machine, Stream, Work};
use crate::supervise::remember::events::{Event, ProcessId, Record};
use crate::supervise::remember::folder::{Folder, HaltRequest, write_whole};
use crate::supervise::remember::journal::parse;
use crate::supervise::start::launch::Launch;
use crate::supervise::start::trial::NUMBER as TRIAL;
use crate::supervise::talk::branch::{Heard, Lines};
use crate::supervise::talk::relay::Hands;
use crate::supervise::talk::wire::{Attend, Beat, Facts, Shm, WIRE_VERSION, Which};
use crate::testkit::simulated_agents::{self, Manner, OUTSIDE, SimulatedAgents};
use crate::testkit::simulation::Report;
use crate::testkit::simulation::dice::Dice;

/// Time after which a run counts as endless.
pub(super) const MOST_MS: u64 = 3_600_000;

/// Time at which the user stops the run if all nodes are off for good.
const LIMIT_MS: u64 = 600_000;

/// Time by the wall clock at which a run starts: more than all faults of a seed together set the clock back.
const START_MS: u64 = 86_400_000;

/// Number of waits without progress of time that counts as a loop.
const MOST_IDLE: u32 = 100_000;

/// Payload of a panic that ends the supervisor during a wait, as a kill does.
pub(super) struct Killed;

/// Payload of a panic that ends the simulation after a violation of the rules.
pub(super) struct Wrong;

/// Agent of a node, which acts on the simulated node.
pub(super) struct Agent {
    name: String,
    site: Rc<RefCell<Site>>,
    /// Requests to end the run that have been carried out.
    ended: Vec<u64>,
}

impl Hands for Agent {
    fn attend(&mut self, _: &Attend) {}

    fn beat(&mut self, seq: Option<u64>) -> Beat {
        self.site.borrow().beat(&self.name, seq)
    }

    fn end(&mut self, id: u64, clean: bool) {
        self.site.borrow_mut().ends_ranks(&self.name, clean);
        self.ended.push(id);
    }

    fn end_rank(&mut self, which: Which, below: u32) {
        self.site.borrow_mut().ends_rank(&self.name, which, below);
    }

    fn halt(&mut self, now: bool) {
        self.site.borrow_mut().halts(&self.name, now);
    }

    fn orphaned(&mut self, unheard: Duration, limit: Duration) -> bool {
        unheard >= limit && self.site.borrow_mut().is_orphaned(&self.name)
    }
}

/// All agents.
pub(super) struct Agents {
    site: Rc<RefCell<Site>>,
    agents: HashMap<String, Agent>,
    binary: String,
}

impl simulated_agents::Nodes for Agents {
    type Hands = Agent;

    fn facts(&mut self, node: &str, _: u64) -> Facts {
        let bytes = NODE_BYTES;
        let site = self.site.borrow();
        let version = if site.alien.as_deref() == Some(node) { "0.2" } else { "0.3" };
        Facts {
            wire: WIRE_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            binary: self.binary.clone(),
            host: node.to_owned(),
            boot: site.boot(node),
            unix_ms: crate::base::clock::since_1970().as_millis() as u64,
            cores: 4,
            memory_bytes: bytes,
            free: site.free(node),
            shm: Shm { bytes, is_memory: true, device: 0 },
            remove_ipc: Some(site.alien.is_some()),
            arithmetic: Arithmetic {
                engines: vec!["blas".to_owned()],
                library: format!("BLAS {version}"),
                ..Arithmetic::default()
            },
            uid: 1000,
            ..Facts::default()
        }
    }

    fn hands(&mut self, node: &str) -> &mut Agent {
        let site = &self.site;
        self.agents.entry(node.to_owned()).or_insert_with(|| Agent {
            name: node.to_owned(),
            site: Rc::clone(site),
            ended: Vec::new(),
        })
    }

    fn ended(hands: &mut Agent) -> Vec<u64> {
        std::mem::take(&mut hands.ended)
    }
}

/// The simulated machine outside the supervisor.
pub(super) struct World {
    pub site: Rc<RefCell<Site>>,
    simulated_agents: SimulatedAgents<Agents>,
    heard: VecDeque<(u64, Heard)>,
    /// Work by its time, and whether it uses the disk of the run's folder.
    works: BTreeMap<(u64, u64), (Work, bool)>,
    order: u64,
    /// Number of connections of all supervisors so far.
    shells: u64,
    /// Time at which each I/O thread finishes its last request.
    clerks: Vec<u64>,
    /// Start of the time in which the disk is stopped.
    disk_from_ms: u64,
    /// End of the time in which the disk is stopped.
    disk_ms: u64,
    /// End of the time in which the disk is full; 0 if it never was.
    pub full_ms: u64,
    faults: BTreeMap<(u64, u64), Fault>,
    at_record: Vec<(u64, Fault)>,
    names: Vec<String>,
    dice: Dice,
    pub asked_to_stop: bool,
    /// Set if a second signal has asked to stop at once.
    asked_again: bool,
    /// Set if `skt-hpl halt` has asked to stop.
    is_requested: bool,
    /// Time until which no launcher can be started, and whether the reason is a lack of room.
    refuses: (u64, bool),
    /// Set if the first launch of the run was refused.
    pub refused_first: bool,
    /// Set if the user does not give the command again.
    pub is_given_up: bool,
    /// Time at which the same command is given again after the supervisor's death.
    pub again_ms: u64,
    pub printed: Vec<u8>,
    /// Faults that were injected, each with the activity of the job.
    injected: Vec<String>,
    /// Messages of the supervisors.
    pub said: Vec<u8>,
    idle: u32,
    folder: Folder,
    /// The journal, which is one file from its creation on.
    journal: Option<File>,
    /// Length of the journal in bytes when it was last read.
    journal_bytes: u64,
    /// Number of records in the journal when it was last read.
    seen_records: usize,
}

/// Longest time in which a new supervisor makes its first calls; they also end when it launches a job.
const FIRST_CALLS_MS: u64 = 45_000;

/// Time after a stop of the disk in which the supervisor carries out the decisions that it made during the stop.
const DISK_LASTS_MS: u64 = 2000;

/// Number of faults on a node after which the supervisor may give the node up as defective.
const SICK_AFTER: usize = 3;

thread_local! {
    static NOW_MS: Cell<u64> = const { Cell::new(0) };
    /// Sum of the changes of the wall clock until now.
    static WALL_MS: Cell<i64> = const { Cell::new(0) };
    /// Sum of the changes of the wall clock until the start of the supervisor.
    static STEADY_MS: Cell<i64> = const { Cell::new(0) };
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

pub(super) fn now_ms() -> u64 {
    NOW_MS.get()
}

impl World {
    /// Makes a world from a scenario, at time 0, and stores it as the world of this thread.
    pub fn begin(scenario: &Scenario, binary: &str, folder: &Folder) {
        NOW_MS.set(0);
        WALL_MS.set(0);
        STEADY_MS.set(0);
        let all = scenario.nodes + scenario.spares;
        let names: Vec<String> = (1..=all).map(|number| format!("n{number}")).collect();
        let is_tree = scenario.fanout < names.len();
        let defect = scenario.defect.map(|node| names[node].clone());
        let mut site = Site::new(scenario.work.clone(), names.iter().cloned(), is_tree, defect);
        (site.is_cut, site.limit_ms) = (scenario.is_cut, scenario.limit_ms);
        match scenario.special {
            Some(Special::Sick { node, after_ms }) => site.sickens(&names[node], after_ms),
            Some(Special::Alien { node }) => site.alienates(&names[node]),
            Some(Special::FalseZero) => site.hides_losses = true,
            Some(Special::Moves) => site.stored = Some(0),
            _ => {}
        }
        let site = Rc::new(RefCell::new(site));
        let agents =
            Agents { site: Rc::clone(&site), agents: HashMap::new(), binary: binary.to_owned() };
        let manner = Manner {
            login_ms: scenario.login_ms,
            refused_ms: scenario.refused_ms,
            travel_ms: scenario.travel_ms,
            seed: scenario.seed,
        };
        let mut world = World {
            site,
            simulated_agents: SimulatedAgents::new(agents, manner),
            heard: VecDeque::new(),
            works: BTreeMap::new(),
            order: 0,
            shells: 0,
            clerks: Vec::new(),
            disk_from_ms: 0,
            disk_ms: 0,
            full_ms: 0,
            faults: BTreeMap::new(),
            at_record: Vec::new(),
            names,
            dice: Dice::new(!scenario.seed),
            asked_to_stop: false,
            asked_again: false,
            is_requested: false,
            refuses: (0, false),
            refused_first: false,
            is_given_up: false,
            again_ms: 0,
            printed: Vec::new(),
            injected: Vec::new(),
            said: Vec::new(),
            idle: 0,
            folder: folder.clone(),
            journal: None,
            journal_bytes: 0,
            seen_records: 0,
        };
        for (when, fault) in &scenario.faults {
            match when {
                When::At(at_ms) => world.injects_at(*at_ms, fault.clone()),
                When::Record(number) => world.at_record.push((*number, fault.clone())),
            }
        }
        WORLD.set(Some(world));
    }

    pub fn end() -> World {
        WORLD.take().expect("a world has begun")
    }

    pub fn with<T>(act: impl FnOnce(&mut World) -> T) -> T {
        WORLD.with_borrow_mut(|world| act(world.as_mut().expect("a world has begun")))
    }

    fn injects_at(&mut self, at_ms: u64, fault: Fault) {
        self.order += 1;
        self.faults.insert((at_ms, self.order), fault);
    }

    /// Records that a supervisor begins. The unfinished work of the previous supervisor is dropped.
    pub fn starts_supervisor(&mut self) {
        STEADY_MS.set(WALL_MS.get());
        self.site.borrow_mut().first_calls_ms = now_ms() + FIRST_CALLS_MS;
        self.works.clear();
        self.heard.clear();
    }

    /// Injects a fault. Returns whether the supervisor lives.
    fn injects(&mut self, fault: &Fault) -> bool {
        let now_ms = now_ms();
        let mut site = self.site.borrow_mut();
        site.now_ms = now_ms;
        site.trial_was_hit |= site.is_on_trial();
        if !matches!(fault, Fault::Boots { .. } | Fault::HaltAgain) {
            self.injected.push(format!("{} while {}", fault.name(), site.doing()));
        }
        site.notes(format!("FAULT {fault:?}"));
        match fault {
            Fault::Off { node, back_ms } => {
                drop(site);
                self.switches_off(*node);
                if let Some(ms) = back_ms {
                    self.injects_at(now_ms + ms, Fault::Boots { node: *node });
                }
            }
            Fault::OffTogether { nodes } => {
                drop(site);
                nodes.iter().for_each(|node| self.switches_off(*node));
            }
            Fault::Boots { node } => {
                let name = &self.names[*node];
                self.simulated_agents.switch_on([name.as_str()]);
                site.boots(name);
            }
            Fault::Cut { node, for_ms, apart } => {
                let name = &self.names[*node];
                self.simulated_agents.hold(name, now_ms + for_ms);
                site.cuts_off(name, now_ms + for_ms, *apart);
            }
            Fault::Outage { for_ms } => {
                self.simulated_agents.hold(OUTSIDE, now_ms + for_ms);
                site.is_out_of_reach(now_ms + for_ms);
            }
            Fault::Freeze { node, for_ms } => {
                let name = &self.names[*node];
                self.simulated_agents.hold(name, now_ms + for_ms);
                site.freezes(name, now_ms + for_ms);
            }
            Fault::Agent { node } => {
                let name = &self.names[*node];
                site.loses_agent(name);
                self.simulated_agents.end_agent(name);
            }
            Fault::RankDies { rank } => site.kills_rank(*rank),
            Fault::RankStops { rank, for_ms } => site.stops_rank(*rank, now_ms + for_ms),
            Fault::RankHangs { rank } => site.hangs_rank(*rank),
            Fault::Launcher { ranks_stay } => site.kills_launcher(*ranks_stay),
            Fault::Disk { for_ms } => {
                if self.disk_ms < now_ms {
                    self.disk_from_ms = now_ms;
                }
                self.disk_ms = self.disk_ms.max(now_ms + for_ms);
                let held: Vec<_> = std::mem::take(&mut self.works).into_iter().collect();
                for ((due_ms, order), work) in held {
                    self.works.insert((due_ms.max(self.disk_ms), order), work);
                }
                self.clerks.iter_mut().for_each(|last_ms| *last_ms = self.disk_ms.max(*last_ms));
            }
            Fault::Wall { by_ms } => WALL_MS.set(WALL_MS.get() + by_ms),
            Fault::Halt => {
                site.may_be_halted();
                self.asked_to_stop = true;
            }
            Fault::HaltTwice { again_ms } => {
                site.may_be_halted();
                self.asked_to_stop = true;
                drop(site);
                self.injects_at(now_ms + again_ms, Fault::HaltAgain);
            }
            // The command may have been given again in the meantime.
            Fault::HaltAgain => self.asked_again = self.asked_to_stop,
            Fault::Request { after_checkpoint } => {
                site.may_be_halted();
                self.is_requested = true;
                let request = HaltRequest { after_checkpoint: *after_checkpoint, at_ms: None };
                // Before the run's folder exists, there is no run to stop.
                let _ = write_whole(&self.folder.halt(), &request);
            }
            Fault::Refuses { for_ms, full } => self.refuses = (now_ms + for_ms, *full),
            Fault::Fills { node, for_ms } => site.fills(&self.names[*node], now_ms + for_ms),
            Fault::FullDisk { for_ms } => self.full_ms = now_ms + for_ms,
            Fault::Supervisor { again_ms } => {
                let attempt = site.attempt_number();
                let is_it = |event: &Event| matches!(event, Event::Launched { attempt: it, .. } if *it == attempt);
                if !has_recorded(&self.folder, is_it) {
                    site.is_unrecorded();
                }
                self.again_ms = now_ms + again_ms;
                let is_fault = |event: &Event| matches!(event, Event::Fault { attempt: it, .. } if *it == attempt);
                let is_loss = |event: &Event| matches!(event, Event::NodeLost { node, .. } if site.runs_on(node));
                let folder = &self.folder;
                if has_recorded(folder, is_fault) && has_recorded(folder, is_loss) {
                    site.is_decided(self.again_ms + FIRST_CALLS_MS);
                }
                return false;
            }
        }
        true
    }

    fn switches_off(&mut self, node: usize) {
        let name = &self.names[node];
        self.simulated_agents.switch_off([name.as_str()]);
        self.simulated_agents.end_agent(name);
        self.site.borrow_mut().switches_off(name);
    }

    /// Returns true if the run was asked to stop and the user gives the command again. Forgets the requests to stop.
    pub fn is_to_go_on(&mut self) -> bool {
        self.asked_again = false;
        let asked = std::mem::take(&mut self.asked_to_stop);
        (std::mem::take(&mut self.is_requested) || asked) && !self.is_given_up
    }

    pub fn report(&self, status: u8) -> Report {
        let came_to = format!("status {status}");
        Report {
            launches: self.site.borrow().launches,
            steps: now_ms(),
            injected: self.injected.iter().map(|fault| (fault.clone(), came_to.clone())).collect(),
        }
    }

    /// Returns the log of all real events, records and messages.
    pub fn log(&self, records: &[Record]) -> String {
        let recorded = |record: &Record| {
            let begins_ms = 1_800_000_000_000 + START_MS;
            let at_s = (record.at_ms as f64 - begins_ms as f64) / 1e3;
            let text = match &record.event {
                // The number and the process of a run differ each time, so they are left out.
                Event::RunStarted { .. } => "RunStarted".to_owned(),
                Event::TookOver { adopted, .. } => format!("TookOver, adopted: {adopted}"),
                event => format!("{event:?}"),
            };
            format!("{at_s:>9.3} s  {}\n", text.chars().take(300).collect::<String>())
        };
        let records: String = records.iter().map(recorded).collect();
        let folder = self.folder.path().display().to_string();
        let said = String::from_utf8_lossy(&self.said).replace(&folder, "FOLDER");
        let said: Vec<&str> = said.lines().collect();
        format!(
            "--- really:\n{}\n--- recorded:\n{records}--- said:\n{}",
            self.site.borrow().log.join("\n"),
            said[said.len().saturating_sub(30)..].join("\n")
        )
    }

    /// Returns whether the job was launched, other than on trial.
    pub fn has_launched(&self) -> bool {
        self.site.borrow().attempt_number() != TRIAL
    }

    /// Advances the time by one step, or returns an action that must be done outside of the world.
    fn step(&mut self, until_ms: u64, wants_news: bool) -> Step {
        let now_ms = now_ms();
        if let Some(entry) = self.works.first_entry().filter(|entry| entry.key().0 <= now_ms) {
            return Step::Work(entry.remove());
        }
        if let Some(entry) = self.faults.first_entry().filter(|entry| entry.key().0 <= now_ms) {
            let fault = entry.remove();
            return if self.injects(&fault) { Step::On } else { Step::Kill };
        }
        let next_ms = {
            let mut site = self.site.borrow_mut();
            site.passes(now_ms);
            site.next_ms()
        };
        let heard = self.simulated_agents.play(now_ms);
        self.heard.extend(heard);
        if now_ms >= LIMIT_MS && self.site.borrow().all_are_off() {
            (self.asked_to_stop, self.is_given_up) = (true, true);
        }
        if now_ms >= MOST_MS {
            self.site.borrow_mut().goes_wrong("the run never ends".to_owned());
        }
        if self.site.borrow().wrong.is_some() {
            return Step::Wrong;
        }
        if wants_news && !self.heard.is_empty() || now_ms >= until_ms {
            return Step::Waited;
        }
        let due = [self.works.keys().next(), self.faults.keys().next()];
        let due = due.into_iter().flatten().map(|(due_ms, _)| *due_ms);
        let next_ms =
            due.chain(next_ms).chain(self.simulated_agents.next_ms()).chain([until_ms]).min();
        NOW_MS.set(next_ms.unwrap_or(until_ms).max(now_ms + 1));
        Step::On
    }

    /// Reads the journal after a write to the disk, and injects the faults that are due at its new records. Returns whether the
    /// supervisor survives these faults.
    fn sees_journal(&mut self) -> bool {
        if self.journal.is_none() {
            self.journal = File::open(self.folder.journal()).ok();
        }
        let journal = self.journal.as_ref();
        let length = journal.and_then(|file| file.metadata().ok()).map_or(0, |file| file.len());
        if std::mem::replace(&mut self.journal_bytes, length) == length {
            return true;
        }
        let records = records(&self.folder);
        let number = records.len() as u64;
        if records.len() < self.seen_records {
            // A new run has a new journal.
            self.seen_records = 0;
        }
        for record in records.iter().skip(self.seen_records) {
            if let Event::NodeLost { node, why } = &record.event {
                let blamed = |record: &&Record| matches!(&record.event, Event::Fault { node: Some(it), .. } if it == node);
                let mut site = self.site.borrow_mut();
                if records.iter().filter(blamed).count() >= SICK_AFTER {
                    site.is_sick(node);
                }
                // A stopped disk may have delayed this record, or an earlier record and with it the step.
                let late_ms = steady_ms().saturating_sub(record.at_ms);
                let judged_ms = now_ms().saturating_sub(late_ms);
                let is_late = judged_ms <= self.disk_ms + DISK_LASTS_MS;
                let judged_ms = if is_late { self.disk_from_ms.min(judged_ms) } else { judged_ms };
                site.is_given_up(node, why, judged_ms);
            }
        }
        self.seen_records = records.len();
        let due = |(at, _): &(u64, Fault)| *at < number;
        let due: Vec<(u64, Fault)> = self.at_record.extract_if(.., |at| due(at)).collect();
        due.iter().all(|(_, fault)| self.injects(fault))
    }
}

enum Step {
    Work((Work, bool)),
    On,
    Waited,
    Kill,
    Wrong,
}

/// Lets time pass until `until_ms`, or until a message arrives if `wants_news`.
fn pass(until_ms: u64, wants_news: bool) {
    loop {
        match World::with(|world| world.step(until_ms, wants_news)) {
            Step::On => {}
            Step::Waited => return,
            Step::Work((work, on_disk)) => {
                let is_full = on_disk && World::with(|world| now_ms() < world.full_ms);
                if is_full {
                    without_room(work)
                } else {
                    work()
                }
                if !World::with(World::sees_journal) {
                    resume_unwind(Box::new(Killed));
                }
            }
            Step::Kill => resume_unwind(Box::new(Killed)),
            Step::Wrong => resume_unwind(Box::new(Wrong)),
        }
    }
}

/// Does work while no file can grow.
fn without_room(work: Work) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).expect("a limit of this process");
    setrlimit(Resource::RLIMIT_FSIZE, 0, hard).expect("a lower limit");
    work();
    setrlimit(Resource::RLIMIT_FSIZE, soft, hard).expect("the limit before");
}

/// Implementation of the program's interfaces to its machine, for the simulated world.
pub(super) struct Simulated;

fn ms(time: Duration) -> u64 {
    time.as_micros().div_ceil(1000).min(u128::from(MOST_MS)) as u64
}

impl Simulator for Simulated {
    fn now(&self) -> Duration {
        Duration::from_millis(now_ms())
    }

    fn steady(&self) -> Duration {
        Duration::from_millis((START_MS + now_ms()).saturating_add_signed(STEADY_MS.get()))
    }

    fn wall(&self) -> Duration {
        Duration::from_millis((START_MS + now_ms()).saturating_add_signed(WALL_MS.get()))
    }

    fn sleep(&self, how_long: Duration) {
        pass(now_ms() + ms(how_long).max(1), false);
    }
}

impl Machine for Simulated {
    fn connections(&self) -> Box<dyn Connections> {
        World::with(|world| {
            world.shells += 1;
            Box::new(Shells { first: world.shells << 32, open: Vec::new() })
        })
    }

    fn io_thread(&self) -> u32 {
        World::with(|world| {
            world.clerks.push(0);
            world.clerks.len() as u32 - 1
        })
    }

    fn does_later(&self, work: Work, io_thread: Option<u32>) {
        World::with(|world| {
            let takes_ms = match world.dice.one_in(50) {
                true => world.dice.below(500),
                false => 1 + world.dice.below(20),
            };
            let mut due_ms = now_ms() + takes_ms;
            if let Some(io_thread) = io_thread {
                let last_ms = &mut world.clerks[io_thread as usize];
                due_ms = due_ms.max(*last_ms).max(world.disk_ms);
                *last_ms = due_ms;
            }
            world.order += 1;
            world.works.insert((due_ms, world.order), (work, io_thread.is_some()));
        });
    }

    fn launch(&self, launch: &Launch, folder: &Folder, attempt: u32) -> std::io::Result<ProcessId> {
        let (hosts, ranks) = asked_for(launch);
        World::with(|world| {
            let (until_ms, full) = world.refuses;
            // If a trial were refused, the command would end with an error.
            if now_ms() < until_ms && attempt != TRIAL {
                world.refused_first |= attempt == 1;
                let code = if full { libc::ENOSPC } else { libc::EAGAIN };
                return Err(std::io::Error::from_raw_os_error(code));
            }
            let mut site = world.site.borrow_mut();
            let is_stop = |event: &Event| matches!(event, Event::Stopped { attempt: it, .. } if *it + 1 == attempt);
            // A run continues while its records cannot be written.
            if attempt > 1 && world.full_ms == 0 && !has_recorded(folder, is_stop) {
                site.goes_wrong("a launch before its reason was recorded".to_owned());
            }
            let launcher = site.launch(&hosts, ranks, folder, attempt);
            if world.asked_to_stop || world.is_requested {
                site.may_be_halted();
            }
            Ok(launcher)
        })
    }

    fn is_alive(&self, process: ProcessId) -> bool {
        World::with(|world| world.site.borrow().launcher_runs(process))
    }

    fn kill(&self, process: ProcessId) {
        World::with(|world| world.site.borrow_mut().ends_launcher(process));
    }

    fn end_run(&self, _: &str) -> usize {
        World::with(|world| world.site.borrow_mut().ends_any_launcher())
    }

    fn asked_to_stop(&self) -> (bool, bool) {
        World::with(|world| (world.asked_to_stop, world.asked_again))
    }

    fn prints(&self, stream: Stream, bytes: &[u8]) {
        World::with(|world| match stream {
            Stream::Output => world.printed.extend_from_slice(bytes),
            Stream::Errors => world.said.extend_from_slice(bytes),
        });
    }
}

/// Returns the records that are on the disk.
fn records(folder: &Folder) -> Vec<Record> {
    let journal = folder.journal();
    let text = std::fs::read(&journal).unwrap_or_default();
    parse(&text, &journal).map(|(records, _)| records).unwrap_or_default()
}

fn has_recorded(folder: &Folder, is_meant: impl Fn(&Event) -> bool) -> bool {
    records(folder).iter().any(|record| is_meant(&record.event))
}

/// Returns the status of the run's end, if the end is recorded.
pub(super) fn recorded_end(folder: &Folder) -> Option<u8> {
    records(folder).iter().rev().find_map(|record| match record.event {
        Event::Finished { code, .. } => Some(code),
        _ => None,
    })
}

/// Returns the id of the run that the journal records.
pub(super) fn run_id(folder: &Folder) -> Option<String> {
    records(folder).into_iter().find_map(|record| match record.event {
        Event::RunStarted { run_id, .. } => Some(run_id),
        _ => None,
    })
}

/// Returns the nodes with their places, and the number of ranks, in the arguments of a launcher.
fn asked_for(launch: &Launch) -> (Vec<(String, usize)>, usize) {
    let (_, listed, _) = launch.files.iter().find(|file| !file.2).expect("a list of hosts");
    let host = |line: &str| {
        let (name, slots) = line.split_once(" slots=")?;
        Some((name.to_owned(), slots.trim().parse().ok()?))
    };
    let hosts = listed.lines().filter_map(host).collect();
    let at = launch.argv.iter().position(|word| word == "-np").expect("a number of ranks");
    (hosts, launch.argv[at + 1].parse().expect("a number"))
}

/// Remote shells of a supervisor. Their connections close when the supervisor ends.
struct Shells {
    /// Smallest connection number of this supervisor, so that connections of different supervisors have different numbers.
    first: u64,
    open: Vec<u64>,
}

impl Lines for Shells {
    fn open(&mut self, line: u64, node: &str, words: &[String], attend: &Attend) {
        self.open.push(line);
        World::with(|world| world.simulated_agents.open(self.first + line, node, words, attend));
    }

    fn send(&mut self, line: u64, text: &str) {
        World::with(|world| world.simulated_agents.send(self.first + line, text));
    }

    fn close(&mut self, line: u64) {
        self.open.retain(|open| *open != line);
        World::with(|world| world.simulated_agents.close(self.first + line));
    }

    fn complaint(&self, _: u64) -> String {
        String::new()
    }
}

impl Connections for Shells {
    fn heard(&mut self) -> Option<(u64, Heard)> {
        let heard = World::with(|world| world.heard.pop_front());
        heard.map(|(line, heard)| (line - self.first, heard))
    }

    fn wait(&mut self, timeout: Duration) {
        World::with(|world| {
            world.idle = if timeout.is_zero() { world.idle + 1 } else { 0 };
            if world.idle > MOST_IDLE {
                world.site.borrow_mut().goes_wrong("a loop in which no time passes".to_owned());
            }
        });
        pass(now_ms() + ms(timeout), true);
    }
}

impl Drop for Shells {
    fn drop(&mut self) {
        std::mem::take(&mut self.open).into_iter().for_each(|line| self.close(line));
        World::with(|world| world.heard.clear());
    }
}
