//! The benchmark under protection: which memory is whose, what is finished already, and the
//! observer that saves at boundaries.
//!
//! `benchmark` asks it, for each test, whether there is a result already, which position each rank
//! takes, and to solve. Everything about epochs and headers is `checkpoint`'s affair.

mod dedicated;

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::agreement::{Ended, unanimous};
use super::exit::Exit;
use super::level2::{self, Level2};
use super::nonstop::Story;
use super::{say, signs};
use crate::checkpoint::groups::DomainFile;
use crate::checkpoint::level2::{Storage, patiently};
use crate::checkpoint::mpi::{Group, Positions};
use crate::checkpoint::new_run;
use crate::checkpoint::placement::Lying;
use crate::checkpoint::plan::Layout;
use crate::checkpoint::protocol::Method;
use crate::checkpoint::{
    Arrival, Checkpointer, Config, Origin, Player, Renamed, Restart as Continue, StartError,
    Started, Test, World,
};
use crate::comm::{Comm, Reduce, set_phase};
use crate::course::{Recorder, What};
use crate::faults::{Point, hit};
use crate::input::settings::{self, Restart};
use crate::lu::{Context, Halt, Milestone, Observer, Start, solve_test, unix_seconds};
use crate::matrix::Local;
use crate::memory::header::{Doing, Head};
use crate::memory::{Depot, MemoryError, Part, bus};
use crate::outcome::{self, Outcome, Protection};
use crate::params::TestParams;
use crate::storage::Sight;
use crate::storage::choice::Stock;
use crate::supervise::start::in_place::{self, ANEW};
use crate::supervise::start::launcher::own_run_id;
use crate::threads::Pool;

/// Room for the small state: [`Account`] as text.
pub(super) const STATE_BYTES: usize = 1024 + Recorder::TEXT_BYTES_MAX;

/// Asked to stop at the next boundary (SIGTERM, SIGUSR1) or after the next save (SIGUSR2).
static STOP_NOW: AtomicBool = AtomicBool::new(false);
static STOP_AFTER_SAVE: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(signal: libc::c_int) {
    if signal == Signal::SIGUSR2 as libc::c_int {
        STOP_AFTER_SAVE.store(true, Ordering::Relaxed);
    } else {
        STOP_NOW.store(true, Ordering::Relaxed);
    }
}

/// From here on the signals that ask for an end are obeyed at boundaries.
fn obey_signals() {
    bus::install();
    let action =
        SigAction::new(SigHandler::Handler(on_signal), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2] {
        // SAFETY: the handler only stores to atomics.
        let _ = unsafe { sigaction(signal, &action) };
    }
}

impl From<StartError> for Ended {
    fn from(error: StartError) -> Self {
        let exit = match error {
            StartError::Scheme(_) | StartError::Groups(_) | StartError::Other { .. } => {
                Exit::BadInput
            }
            StartError::Memory(_) => Exit::NoSharedMemory,
            StartError::Refused { .. }
            | StartError::Storage { .. }
            | StartError::Nothing { .. }
            | StartError::NotWhole { .. } => Exit::Unrecoverable,
        };
        Self::new(exit, error.to_string())
    }
}

/// A finished test's result, as it is kept in memory.
#[derive(Serialize, Deserialize)]
struct Record {
    /// Which test exactly: a file that was changed meanwhile has other tests.
    digest: u64,
    /// The supervised run it was computed in, if any.
    #[serde(default)]
    run_id: Option<String>,
    outcome: Outcome,
}

/// Where the time of a test went so far: what is saved with each epoch beside the matrix.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Account {
    began_unix_s: f64,
    saved_unix_s: f64,
    told: Protection,
    #[serde(default)]
    way: Recorder,
}

impl Account {
    /// Seconds since the test's timer started first.
    fn elapsed(&self) -> f64 {
        (unix_seconds() - self.began_unix_s).max(0.0)
    }
}

/// What one rank needs to be protected at all: found by itself, before all agree to begin.
#[derive(Clone)]
pub struct Ground {
    pub host: String,
    pub domain: String,
    depot: Depot,
}

impl Ground {
    pub fn prepare(settings: &settings::Protection, rank: usize) -> Result<Self, Ended> {
        let bad = |why: String| Ended::new(Exit::BadInput, why);
        settings.scheme.check().map_err(|e| bad(e.to_string()))?;
        let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let domain = domain(settings, rank, &host).map_err(bad)?;
        let depot = Depot::new(settings.store, &settings.job)
            .map_err(|e| Ended::new(Exit::NoSharedMemory, e.to_string()))?;
        Ok(Self { host, domain, depot })
    }
}

/// One run's protection on one rank.
pub struct Guardian<'a> {
    comm: &'a Comm,
    settings: &'a settings::Protection,
    depot: Depot,
    /// The run in memory; another one once a test has gone on from storage.
    run: Cell<u128>,
    /// A number that no run has had.
    fresh_run: u128,
    /// Whether there was something of this run at the start.
    continued: bool,
    /// The second level, if there is one.
    level2: Option<Level2<'a>>,
    /// Why this start does without it, although there should be one.
    storage_gone: Option<String>,
    /// What the last bits of results depend on.
    rounding: String,
    /// Finished tests: number and result.
    finished: Vec<(u32, Record)>,
    /// What the launch found on its nodes.
    arrival: Arrival,
    host: String,
    domain: String,
    started_unix_s: f64,
}

impl<'a> Guardian<'a> {
    /// Looks at what an earlier start left. All ranks together; all end alike. `tests` are the
    /// digests of the run's tests, `rounding` what all ranks' results depend on. Once this very launch has `begun`, what it
    /// finds is its own.
    pub fn new(
        comm: &'a Comm,
        node: &Comm,
        settings: &'a settings::Protection,
        ground: Ground,
        (tests, rounding): (&[u64], &str),
        begun: bool,
    ) -> Result<Self, Ended> {
        let started_unix_s = unix_seconds();
        obey_signals();
        let Ground { host, domain, depot } = ground;
        // Two nodes may have one name; the rank that leads a node tells them apart.
        let mut leader = [comm.rank() as u64];
        node.broadcast(&mut leader, 0);
        let all = comm.split(Some(0), comm.rank()).expect("everybody is in the world");
        let world = Positions::new(all);
        let gather = || Arrival::gather(&world, &depot, leader[0] as usize);
        let arrival = gather();
        let mut this = Self {
            comm,
            settings,
            depot: depot.clone(),
            run: Cell::new(0),
            fresh_run: 0,
            continued: false,
            level2: None,
            storage_gone: None,
            rounding: rounding.to_owned(),
            finished: Vec::new(),
            arrival,
            host,
            domain,
            started_unix_s,
        };
        let restart = if begun { Restart::Auto } else { settings.restart };
        if restart == Restart::Never {
            this.clean(node)?;
            this.arrival = gather();
        }
        this.level2 = match Level2::open(comm, node, settings, &this.domain) {
            // What memory has needs no storage; where nothing but storage has it, there is nothing to go on from.
            Err(Ended { why, .. }) if this.arrival.test.is_some() && !this.on_disk_alone() => {
                this.storage_gone = Some(why);
                None
            }
            opened => opened?,
        };
        this.take_stock(node, tests, rounding)?;
        if restart == Restart::Require && !this.continued {
            return Err(StartError::Nothing { job: settings.job.clone() }.into());
        }
        Ok(this)
    }

    /// Whether memory keeps no checkpoint.
    fn on_disk_alone(&self) -> bool {
        self.settings.scheme.method == Method::Disk
    }

    /// Sorts out the run that memory belongs to and the results it holds.
    fn take_stock(&mut self, node: &Comm, tests: &[u64], rounding: &str) -> Result<(), Ended> {
        if let Some(level2) = &self.level2 {
            level2.check(tests, rounding, &self.settings.job)?;
        }
        let none = Stock::default();
        let stock = self.level2.as_ref().map_or(&none, |level2| &level2.stock);
        let in_progress = self.arrival.test.is_some() || !stock.whole.is_empty();
        let mut stale = false;
        // What another supervised run has left behind, on a node it had lost, say, is its result, not this one's;
        // unless there is a test to be gone on with.
        let own = own_run_id();
        let others = |record: &Record| {
            let both = own.is_some() && record.run_id.is_some();
            both && own != record.run_id && !in_progress
        };
        let in_memory = self.arrival.finished.iter().map(|(number, bytes)| (*number, bytes));
        let on_storage = stock.results.iter().map(|(number, bytes)| (*number, bytes));
        for (number, bytes) in in_memory.chain(on_storage) {
            match serde_json::from_slice::<Record>(bytes) {
                Ok(record) if others(&record) => stale = true,
                Ok(record) if tests.get(number as usize) == Some(&record.digest) => {
                    if self.finished.iter().all(|(known, _)| *known != number) {
                        self.finished.push((number, record));
                    }
                }
                _ => stale = true,
            }
        }
        let here = self.arrival.test.and_then(|test| tests.get(test as usize));
        if let (Some(&here), Some(there)) = (here, self.arrival.params_digest)
            && rounds_otherwise(here, there)
        {
            return Err(Ended::new(
                Exit::Environment,
                format!(
                    "job {:?} has memory of this run that was computed with another arithmetic than {rounding}, \
                     which these ranks have: going on would change the last bits of the result. Start on nodes \
                     whose processors and BLAS are as before, or give this run another --job name",
                    self.settings.job
                ),
            ));
        }
        if stale && in_progress {
            return Err(Ended::new(
                Exit::BadInput,
                format!(
                    "job {:?} has checkpoints of a run with other tests. Finish that run, give this one \
                     another --job name, or remove them with `skt-hpl clean` or --restart never",
                    self.settings.job
                ),
            ));
        }
        let latest = self.arrival.latest.max(stock.latest_run());
        let on_storage =
            !stock.whole.is_empty() || !stock.results.is_empty() || !stock.damaged.is_empty();
        let something = self.arrival.run.is_some() || on_storage;
        if stale {
            // Results of a run that is over or given up, and nothing that could be continued.
            self.finished.clear();
            self.clean(node)?;
            self.level2 = Level2::open(self.comm, node, self.settings, &self.domain)?;
        }
        let mut number = new_run().to_le_bytes().to_vec();
        self.comm.broadcast_bytes(&mut number, 0);
        let fresh = u128::from_le_bytes(number.try_into().expect("sixteen bytes"));
        // Clocks differ: whatever lies here, what begins now is later.
        self.fresh_run = fresh.max(latest.map_or(0, |latest| latest.saturating_add(1)));
        self.continued = something && !stale;
        self.run.set(self.arrival.run.filter(|_| self.continued).unwrap_or(self.fresh_run));
        Ok(())
    }

    /// Removes all memory of the job, and what it has on storage.
    pub fn clean(&self, node: &Comm) -> Result<(), Ended> {
        self.comm.barrier();
        let scope = self.settings.level2.as_ref().map(|level2| level2.scope).unwrap_or_default();
        let shelf = level2::shelf(self.settings, &self.domain);
        let shelf =
            shelf.filter(|shelf| level2::seat(self.comm, node, scope, shelf) == self.comm.rank());
        if let Some(shelf) = shelf {
            let (dir, job) = (shelf.dir().to_owned(), &self.settings.job);
            // A DIR that is gone has nothing to remove, it seems.
            let removed = patiently(move || shelf.check().and_then(|()| shelf.clean()));
            if let Err(why) = removed {
                // This run does not depend on it.
                say(format_args!(
                    "what job {job:?} has on storage could not be removed: {why}. The next start would go on from there: \
                     `skt-hpl clean --job {job} --level2 {}` removes it",
                    dir.display()
                ));
            }
        }
        let cleaned = match node.rank() {
            0 => self.depot.clean_when_ended().map(|_| ()),
            _ => Ok(()),
        };
        let ended = |e: MemoryError| Ended::new(Exit::NoSharedMemory, e.to_string());
        unanimous(self.comm, cleaned.map_err(ended))
    }

    /// The result of test `number`, if it is finished.
    pub fn finished(&self, number: usize) -> Option<&Outcome> {
        let found = self.finished.iter().find(|(n, _)| *n as usize == number);
        found.map(|(_, record)| &record.outcome)
    }

    /// The position of each rank in test `number`: where its node's memory is, or its file. Of `players`, who may lose some of
    /// their number, each keeps its own. None if they are too few.
    pub fn place(
        &self,
        (number, digest): (usize, u64),
        params: &TestParams,
        players: &[Player],
    ) -> Option<Vec<Option<usize>>> {
        let positions = self.layout(params).positions();
        let level2 = self.level2.as_ref();
        let files = level2.and_then(|level2| level2.files_of(number as u32, digest));
        let files = files.as_ref().map(|(nodes, found)| Lying { nodes, found });
        let nobody_keeps = players.iter().all(|player| player.kept.is_none());
        // Who takes a lost one's position finds it in memory; a file draws where all begin.
        let by_files = files.is_some() && nobody_keeps && players.len() >= positions;
        match players.is_empty() || by_files {
            true => Some(self.arrival.place(number as u32, positions, files)),
            false => self.arrival.place_again(number as u32, positions, players),
        }
    }

    /// How a test lies over all positions, those beside the grid included.
    pub fn layout(&self, params: &TestParams) -> Layout {
        Layout::of(params).kept_by(&self.settings.scheme, self.settings.group)
    }

    /// Takes this position's memory in a test, and gets it back where there is something to go on from. All of the `world`
    /// together.
    fn take(
        &self,
        params: &TestParams,
        (number, digest): (usize, u64),
        world: Positions,
        ld: usize,
        storage: Option<Storage>,
    ) -> Result<Started<Positions, Group>, Ended> {
        let test = Test {
            index: number as u32,
            layout: self.layout(params),
            rng: params.rng,
            seed: params.seed,
            params_digest: digest,
        };
        let config = Config {
            depot: self.depot.clone(),
            scheme: self.settings.scheme,
            group: self.settings.group,
            encode: self.settings.encode,
            interval: self.settings.interval,
            restart: match &self.storage_gone {
                // Storage may have what memory has not.
                Some(_) if self.arrival.test == Some(number as u32) => Continue::Require,
                _ => Continue::Auto,
            },
            state_bytes: STATE_BYTES,
            ld,
            run: self.run.get(),
            domain: self.domain.clone(),
            node: self.host.clone(),
            storage,
        };
        set_phase("taking the memory of the run");
        Checkpointer::start(config, test, world, |world, number, place, _| {
            Group::split(world, number, place)
        })
        .map_err(|error| self.without_storage(error))
    }

    /// Solves test `number` under protection. All ranks of the grid together; `everybody`: with those who keep checksums alone,
    /// if there are any.
    pub fn solve(
        &self,
        context: &Context,
        (number, digest): (usize, u64),
        everybody: Option<Positions>,
        pool: &mut Pool,
        watcher: &mut impl Observer,
        story: &mut Story,
    ) -> Result<Outcome, Ended> {
        let params = context.params;
        let shape = context.shape;
        let position = shape.grid.rank(shape.row, shape.col);
        let last_sign = self.last_sign_of_life(position);
        let storage = self.level2.as_ref().and_then(|_| {
            let in_place = max(context, story.has_lost.into()) > 0;
            self.storage(number as u32, digest, in_place)
        });
        let among = || context.grid.split(Some(0), position).expect("everybody is in the world");
        let others_wait = everybody.is_some();
        let world = everybody.unwrap_or_else(|| Positions::new(among()));
        let Started { mut checkpointer, a, origin, .. } =
            self.take(params, (number, digest), world, shape.ld, storage)?;
        story.cast.members = checkpointer.members();
        let notice = story.notice.take();
        let mut account = Account::default();
        let start = match origin {
            Origin::Fresh => {
                if let Some(notice) = notice.filter(|_| context.grid.rank() == 0) {
                    let how = format!("test {} {ANEW}, nothing was saved", number + 1);
                    say(notice.told(&how));
                }
                Start::Fresh
            }
            Origin::Restored(restored) => {
                if let Some(why) = self.storage_gone.as_ref().filter(|_| context.grid.rank() == 0) {
                    say(format_args!(
                        "warning: {why}. The run goes on from memory alone, and puts nothing on storage until it is started \
                         again"
                    ));
                }
                account = serde_json::from_slice(&restored.state).unwrap_or_default();
                self.charge_restart(context, &mut account, last_sign, restored.boundary);
                if context.grid.rank() == 0 {
                    for (position, why) in &restored.damaged {
                        say(format_args!("position {position} could not be used: {why}"));
                    }
                    for (domain, count) in &restored.crowded {
                        say(format_args!(
                            "warning: {domain} now holds {count} members of one group, which survives {}: losing it \
                             would end the run",
                            self.settings.scheme.losses
                        ));
                    }
                    let rebuilt = match restored.rebuilt.len() {
                        0 => "nothing had to be rebuilt".to_owned(),
                        _ => format!("rebuilt positions {:?}", restored.rebuilt),
                    };
                    let rebuilt = match self.settings.level2.as_ref().filter(|_| restored.fetched) {
                        Some(settings::Level2 { dir, scope: Sight::Shared, .. }) => {
                            format!("it was read from {}", dir.display())
                        }
                        Some(settings::Level2 { dir, scope: Sight::Node, .. }) => {
                            format!("it was read from {} of the nodes; {rebuilt}", dir.display())
                        }
                        None => rebuilt,
                    };
                    let from =
                        in_place::from_boundary(number + 1, restored.boundary, params.blocks());
                    let how = format!("{from} (epoch {}); {rebuilt}", restored.epoch);
                    say(notice.map_or(how.clone(), |notice| notice.told(&how)));
                }
                if restored.fetched {
                    self.go_on_as_another_run(&mut checkpointer);
                    account.told.level2.get_or_insert_default().fetched += 1;
                }
                Start::Resumed { boundary: restored.boundary, began_unix_s: account.began_unix_s }
            }
        };
        account.told.attempts += 1;
        // What was saved last may be older than the last loss.
        let losses = max(context, story.losses.into()) as u32;
        story.losses_before = match losses {
            0 => account.told.in_place,
            _ => max(context, story.losses_before.into()) as u32,
        };
        account.told.in_place = story.losses_before + losses;
        account.told.attempts = account.told.attempts.max(account.told.in_place + 1);
        account.told.memory_bytes_max = max(context, checkpointer.bytes() as u64);
        let mut group_min = [checkpointer.members().len() as u64];
        context.grid.all_reduce(&mut group_min, Reduce::Min);
        account.told.group_min = group_min[0] as usize;
        // The process before this one has left its own figures.
        checkpointer.worked(0.0, 0.0);
        let mut guard = Guard {
            checkpointer,
            len: shape.len(),
            earlier: account.told.level2,
            account,
            stored: None,
            watcher,
            stop: false,
            blocks: params.blocks(),
            position,
            host: &self.host,
            looked: Instant::now(),
            said: None,
            others_wait,
            has_state: true,
        };
        let mut local = Local::new(shape, a);
        let outcome = solve_test(context, &mut local, start, pool, &mut guard)
            .inspect_err(|_| guard.tell(dedicated::CANNOT))
            .map_err(|error| Ended::new(Exit::Environment, error.to_string()))?;
        if outcome.is_some() {
            guard.tell(dedicated::WELL);
        }
        let Guard { mut checkpointer, mut account, earlier, stored, .. } = guard;
        // Whoever watches must not take the end that follows for a death.
        checkpointer.tick(Doing::Done, params.blocks());
        let Some(mut outcome) = outcome else {
            return Err(Ended::new(Exit::Stopped, self.stopped(stored)));
        };
        checkpointer.end_level2();
        account.told.level2 = level2::account(earlier, checkpointer.tally());
        outcome.protection = Some(account.told);
        outcome.course = account.way.course(params.n, params.nb);
        let record = Record { digest, run_id: own_run_id(), outcome };
        let bytes = serde_json::to_vec(&record).expect("plain values have a JSON form");
        if others_wait {
            checkpointer.world().tell(&bytes, dedicated::TELLER);
        }
        self.end(checkpointer, number as u32, bytes);
        Ok(record.outcome)
    }

    /// A test is over: its result is kept, and what there is of its matrix goes. All ranks with a position together.
    fn end(&self, mut checkpointer: Checkpointer<Positions, Group>, number: u32, result: Vec<u8>) {
        if !checkpointer.record(number, &result) && checkpointer.position() == 0 {
            say("no room to keep this result: a restart would run the test again");
        }
        let first = self.level2.as_ref().filter(|_| checkpointer.speaks_for_dir());
        let shelf = first.map(|level2| level2.shelf.clone());
        let kept = shelf.clone().map(|shelf| patiently(move || shelf.put_result(number, &result)));
        if let Some(Err(why)) = &kept {
            say(format_args!("this result is kept in memory alone: {why}"));
        }
        checkpointer.finish();
        if let (Some(shelf), Some(Ok(()))) = (shelf, kept) {
            // What cannot be removed now goes with the run.
            let _ = patiently(move || {
                shelf.prune();
                Ok(())
            });
        }
    }

    /// What the start of a test is told of the second level.
    fn storage(&self, number: u32, digest: u64, in_place: bool) -> Option<Storage> {
        let helpers = self.settings.helpers;
        let level2 = self.level2.as_ref()?;
        Some(level2.of_test((number, digest), &self.rounding, self.fresh_run, in_place, helpers))
    }

    /// What is wrong with a start, where storage is gone that might have helped.
    fn without_storage(&self, error: StartError) -> Ended {
        match (&self.storage_gone, error) {
            (None, error) => error.into(),
            (Some(why), StartError::Nothing { job }) => Ended::new(
                Exit::Environment,
                format!(
                    "memory of job {job:?} has no checkpoint of this run, and storage, which may have one, cannot be used: \
                     {why}. Nothing is removed; start again when it is there, or begin anew with --restart never \
                     without --level2"
                ),
            ),
            (Some(gone), error) => {
                let Ended { exit, why } = error.into();
                Ended::new(exit, format!("{why}\nStorage might help, but cannot be used: {gone}"))
            }
        }
    }

    /// What was fetched from storage belongs to a run of its own in memory; the results of finished tests go along.
    fn go_on_as_another_run(&self, checkpointer: &mut Checkpointer<Positions, Group>) {
        self.run.set(checkpointer.run().0);
        for (number, record) in &self.finished {
            let bytes = serde_json::to_vec(record).expect("plain values have a JSON form");
            checkpointer.record(*number, &bytes);
        }
    }

    /// What is said of a stop; `stored`: whether it got to storage, where there is a second level.
    fn stopped(&self, stored: Option<bool>) -> String {
        let job = &self.settings.job;
        let level2 = self.settings.level2.as_ref();
        let dir = level2.map(|level2| level2.dir.display().to_string());
        let own = level2.is_some_and(|level2| level2.scope == Sight::Node);
        let memory = if self.on_disk_alone() { "" } else { " in memory and" };
        match (stored, dir) {
            (Some(false), Some(dir)) if self.on_disk_alone() => format!(
                "stopped as asked, but THE SAVE DID NOT GET TO {dir}; whatever lay there before is still there, and the same \
                 command goes on from that. Its name is {job}: from another batch job add --job {job}"
            ),
            (Some(true), Some(dir)) if own => format!(
                "stopped as asked, after a save{memory} in {dir} of each node; the same command goes on, on these nodes, \
                 {} of each group of which may be others by then. Its name is {job}: from another batch job with \
                 these nodes add --job {job}",
                self.settings.scheme.losses
            ),
            (Some(true), Some(dir)) => format!(
                "stopped as asked, after a save{memory} in {dir}; the same command goes on, on these nodes or any \
                 others that see {dir}. Its name is {job}: from another batch job add --job {job}"
            ),
            (Some(false), Some(dir)) => format!(
                "stopped as asked, after a save in memory; IT DID NOT GET TO {dir}, whatever lay there before is still \
                 there. The same command goes on from memory, on these nodes. Its name is {job}: from another \
                 batch job with these nodes, add --job {job}"
            ),
            _ => format!(
                "stopped as asked, after a save; the same command goes on from memory. Its name is {job}: from \
                 another batch job with these nodes, add --job {job}"
            ),
        }
    }

    /// When the position's memory was last worked on, if it is here.
    fn last_sign_of_life(&self, position: usize) -> Option<f64> {
        let region = self.depot.peek(position as u32, Part::Head).ok()?;
        let progress = Head::new(region).ok()?.progress();
        (progress.at_unix_ms > 0).then_some(progress.at_unix_ms as f64 / 1e3)
    }

    /// Adds what the failure and the restart took to the account.
    fn charge_restart(
        &self,
        context: &Context,
        account: &mut Account,
        last_sign: Option<f64>,
        boundary: usize,
    ) {
        // The last sign of any survivor; positions without memory have none.
        let mut times = [last_sign.unwrap_or(0.0), account.saved_unix_s, account.began_unix_s];
        context.grid.all_reduce(&mut times, Reduce::Max);
        let [last, saved, began] = times;
        let last = last.clamp(saved, self.started_unix_s.max(saved));
        account.began_unix_s = began;
        let down_s = (self.started_unix_s - last).max(0.0);
        let restore_s = (unix_seconds() - self.started_unix_s).max(0.0);
        account.told.lost_s += last - saved;
        account.told.down_s += down_s;
        account.told.restore_s += restore_s;
        for (what, from, seconds) in [
            (What::Lost, saved, last - saved),
            (What::Down, last, down_s),
            (What::Restore, self.started_unix_s, restore_s),
        ] {
            account.way.interrupt(what, boundary, (from - began).max(0.0), seconds);
        }
    }
}

fn max(context: &Context, value: u64) -> u64 {
    let mut value = [value];
    context.grid.all_reduce(&mut value, Reduce::Max);
    value[0]
}

/// The failure domain of a rank.
fn domain(settings: &settings::Protection, rank: usize, host: &str) -> Result<String, String> {
    match &settings.domains {
        None => Ok(host.to_owned()),
        Some(path) => Ok(read_domains(path)?.domain(rank, host)),
    }
}

pub(super) fn read_domains(path: &Path) -> Result<DomainFile, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| format!("the domain file {} cannot be read: {e}", path.display()))?;
    DomainFile::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// A digest of everything that must be alike for a test to be the same: of its choices in the upper half, of
/// what the last bits of results depend on in the lower.
pub fn digest(params: &TestParams, rounding: &str) -> u64 {
    let text = serde_json::to_string(params).expect("plain values have a JSON form");
    xxh3_64(text.as_bytes()) >> 32 << 32 | xxh3_64(rounding.as_bytes()) >> 32
}

/// Whether two digests are of one test that was not computed alike.
fn rounds_otherwise(one: u64, other: u64) -> bool {
    one >> 32 == other >> 32 && one != other
}

/// The observer: saves at boundaries, shows signs of life, stops when asked to.
struct Guard<'w, O> {
    checkpointer: Checkpointer<Positions, Group>,
    len: usize,
    account: Account,
    /// What earlier starts did on the second level.
    earlier: Option<outcome::Level2>,
    /// At a stop: whether it got to storage.
    stored: Option<bool>,
    watcher: &'w mut O,
    stop: bool,
    blocks: usize,
    position: usize,
    host: &'w str,
    /// When names were last looked after.
    looked: Instant,
    /// What was said about them last, and when.
    said: Option<(Renamed, Instant)>,
    /// Whether there are ranks that keep checksums alone, who are told how the test goes on.
    others_wait: bool,
    /// Whether this rank's small state is part of what is saved.
    has_state: bool,
}

/// Between two looks at the names of our memory: an agent takes a rank without one for gone after a while.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two words about the same trouble.
const SAY_EVERY: Duration = Duration::from_secs(60);

impl<O: Observer> Guard<'_, O> {
    /// Tells those who keep checksums alone. All ranks of the grid together.
    fn tell(&self, word: u64) {
        if self.others_wait {
            self.checkpointer.world().first_says(word);
        }
    }

    /// This rank is so far.
    fn note(&mut self, milestone: Milestone) {
        let (point, doing) = signs::words(milestone);
        self.checkpointer.tick(doing, 0);
        hit(point, self.position);
        if milestone == Milestone::Factored {
            let at_s = self.account.elapsed();
            self.account.way.pass(self.blocks, self.blocks, at_s);
        }
        self.watcher.reached(milestone);
    }

    /// Says what became of names that were removed: nobody goes on unprotected without a word.
    fn look_after_names(&mut self, frozen: bool) {
        self.looked = Instant::now();
        let Some(found) = self.checkpointer.look_after_names(frozen) else { return };
        // What cannot be put right, or waits for a save, is found each time.
        let known = self.said.as_ref().is_some_and(|(before, at)| {
            let same = *before == found || (found.later && found.missing == [Part::A]);
            same && at.elapsed() < SAY_EVERY
        });
        if known {
            return;
        }
        self.said = Some((found.clone(), self.looked));
        let names: Vec<&str> = found.missing.iter().map(|part| part.name()).collect();
        let what = format!(
            "position {} on {}: somebody removed the names of its memory ({})",
            self.position,
            self.host,
            names.join(", ")
        );
        match (found.trouble, found.later) {
            (Some(why), _) => say(format_args!(
                "WARNING: {what}, and they could not be made again: {why}. This position is NOT PROTECTED: what it \
                 holds is lost with its process"
            )),
            (None, true) => {
                say(format_args!("{what}; made again, that of the matrix at the next save"))
            }
            (None, false) => {
                say(format_args!("{what}; made again, the run is protected as before"))
            }
        }
    }
}

impl<O: Observer> Observer for Guard<'_, O> {
    fn drains(&mut self, k: usize) -> bool {
        self.stop = STOP_NOW.load(Ordering::Relaxed);
        self.checkpointer.due(k, self.stop)
    }

    fn boundary(&mut self, k: usize, a: *mut f64) -> Halt {
        self.look_after_names(true);
        self.account.saved_unix_s = unix_seconds();
        self.account.told.saves += 1;
        // Whoever goes on from this save must know of it; how long it takes nobody knows yet.
        let at_s = self.account.saved_unix_s - self.account.began_unix_s;
        self.account.way.interrupt(What::Save, k, at_s, 0.0);
        self.account.told.level2 = level2::account(self.earlier, self.checkpointer.tally());
        let state = match self.has_state {
            true => serde_json::to_vec(&self.account).expect("plain values have a JSON form"),
            false => Vec::new(),
        };
        // SAFETY: the whole local matrix, which the factorisation leaves alone at a boundary.
        let a = unsafe { std::slice::from_raw_parts_mut(a, self.len) };
        let report = self.checkpointer.save(k, a, &state);
        self.account.told.save_s += report.seconds;
        self.account.way.took(report.seconds);
        let stop = self.stop || STOP_AFTER_SAVE.load(Ordering::Relaxed);
        match self.checkpointer.world().first_says(u64::from(stop)) {
            0 => Halt::GoOn,
            _ => {
                self.stored = self.checkpointer.store_now();
                Halt::Stop
            }
        }
    }

    fn began(&mut self, unix_s: f64) {
        self.tell(dedicated::WELL);
        self.account.began_unix_s = unix_s;
        self.watcher.began(unix_s);
    }

    fn reached(&mut self, milestone: Milestone) {
        if milestone == Milestone::Solved {
            self.tell(dedicated::WELL);
        }
        self.note(milestone);
    }

    fn iteration(&mut self, k: usize, blocks: usize, elapsed: f64) {
        let at_s = self.account.elapsed();
        self.account.way.pass(k, blocks, at_s);
        if self.looked.elapsed() > LOOK_EVERY {
            self.look_after_names(false);
        }
        self.checkpointer.tick(Doing::Computing, k);
        hit(Point::Iteration, self.position);
        self.watcher.iteration(k, blocks, elapsed);
    }

    fn multiplied(&mut self, seconds: f64, flops: f64) {
        self.checkpointer.worked(seconds, flops);
    }
}
