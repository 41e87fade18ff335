//! The benchmark under protection: which memory is whose, what is finished already, and the
//! observer that saves at boundaries.
//!
//! `benchmark` asks it, for each test, whether there is a result already, which position each rank
//! takes, and to solve. Everything about epochs and headers is `checkpoint`'s affair.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::exit::Exit;
use super::{say, signs};
use crate::checkpoint::groups::DomainFile;
use crate::checkpoint::mpi::{Group, Positions};
use crate::checkpoint::plan::Layout;
use crate::checkpoint::restore::new_run;
use crate::checkpoint::{
    Arrival, Checkpointer, Config, Origin, Restart as Continue, StartError, Started, Test, World,
};
use crate::comm::{Comm, Reduce, set_phase};
use crate::faults::{Point, hit};
use crate::grid::ProcessGrid;
use crate::input::settings::{self, Restart};
use crate::lu::{Context, Halt, Milestone, Observer, Start, solve_test, unix_seconds};
use crate::matrix::Local;
use crate::memory::header::{Doing, Head};
use crate::memory::{Depot, Part};
use crate::outcome::{Outcome, Protection};
use crate::params::TestParams;
use crate::supervise::launcher::own_run_id;
use crate::threads::Pool;

/// Room for the small state: [`Account`] as text.
pub(super) const STATE_BYTES: usize = 1024;

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
    let action =
        SigAction::new(SigHandler::Handler(on_signal), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2] {
        // SAFETY: the handler only stores to atomics.
        let _ = unsafe { sigaction(signal, &action) };
    }
}

/// Why a run ends before its tests do.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ended {
    pub exit: Exit,
    /// Said by rank 0; the same on every rank.
    pub why: String,
}

impl Ended {
    fn new(exit: Exit, why: impl Into<String>) -> Self {
        Self { exit, why: why.into() }
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
}

/// One run's protection on one rank.
pub struct Guardian<'a> {
    comm: &'a Comm,
    settings: &'a settings::Protection,
    depot: Depot,
    run: u128,
    /// Whether memory of this run was there at the start.
    continued: bool,
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
    /// digests of the run's tests.
    pub fn new(
        comm: &'a Comm,
        node: &Comm,
        settings: &'a settings::Protection,
        tests: &[u64],
    ) -> Result<Self, Ended> {
        let started_unix_s = unix_seconds();
        obey_signals();
        agreed(comm, settings.scheme.check().map_err(|e| e.to_string()), Exit::BadInput)?;
        let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let domain = agreed(comm, domain(settings, comm.rank(), &host), Exit::BadInput)?;
        let depot = Depot::new(settings.store, &settings.job).map_err(|e| e.to_string());
        let depot = agreed(comm, depot, Exit::NoSharedMemory)?;
        // Two nodes may have one name; the rank that leads a node tells them apart.
        let mut leader = [comm.rank() as u64];
        node.broadcast(&mut leader, 0);
        let world = Positions(comm.split(Some(0), comm.rank()).expect("everybody is in the world"));
        let name = format!("{host}/{}", leader[0]);
        let gather = || Arrival::gather(&world, &depot, &name);
        let arrival = gather();
        let mut this = Self {
            comm,
            settings,
            depot: depot.clone(),
            run: 0,
            continued: false,
            finished: Vec::new(),
            arrival,
            host,
            domain,
            started_unix_s,
        };
        if settings.restart == Restart::Never {
            this.clean(node)?;
            this.arrival = gather();
        }
        this.take_stock(node, tests)?;
        if settings.restart == Restart::Require && !this.continued {
            return Err(StartError::Nothing { job: settings.job.clone() }.into());
        }
        Ok(this)
    }

    /// Sorts out the run that memory belongs to and the results it holds.
    fn take_stock(&mut self, node: &Comm, tests: &[u64]) -> Result<(), Ended> {
        let mut stale = false;
        // What another supervised run has left behind, on a node it had lost, say, is its result, not this one's;
        // unless there is a test to be gone on with.
        let own = own_run_id();
        let others = |record: &Record| {
            let both = own.is_some() && record.run_id.is_some();
            both && own != record.run_id && self.arrival.test.is_none()
        };
        for (&number, bytes) in &self.arrival.finished {
            match serde_json::from_slice::<Record>(bytes) {
                Ok(record) if others(&record) => stale = true,
                Ok(record) if tests.get(number as usize) == Some(&record.digest) => {
                    self.finished.push((number, record));
                }
                _ => stale = true,
            }
        }
        if stale && self.arrival.test.is_some() {
            return Err(Ended::new(
                Exit::BadInput,
                format!(
                    "job {:?} has memory of a run with other tests. Finish that run, give this one \
                     another --job name, or remove the memory with `skt-hpl clean` or --restart never",
                    self.settings.job
                ),
            ));
        }
        if stale {
            // Results of a run that is over or given up, and nothing that could be continued.
            self.finished.clear();
            self.clean(node)?;
        }
        let mut number = new_run().to_le_bytes().to_vec();
        self.comm.broadcast_bytes(&mut number, 0);
        let fresh = u128::from_le_bytes(number.try_into().expect("sixteen bytes"));
        self.continued = self.arrival.run.is_some() && !stale;
        self.run = self.arrival.run.filter(|_| self.continued).unwrap_or(fresh);
        Ok(())
    }

    /// Removes all memory of the job.
    pub fn clean(&self, node: &Comm) -> Result<(), Ended> {
        self.comm.barrier();
        let cleaned = match node.rank() {
            0 => self.depot.clean().map(|_| ()).map_err(|e| e.to_string()),
            _ => Ok(()),
        };
        agreed(self.comm, cleaned, Exit::NoSharedMemory)
    }

    /// The result of test `number`, if it is finished.
    pub fn finished(&self, number: usize) -> Option<&Outcome> {
        let found = self.finished.iter().find(|(n, _)| *n as usize == number);
        found.map(|(_, record)| &record.outcome)
    }

    /// The grid position of this rank in test `number`: where its node's memory is, if any.
    pub fn place(&self, number: usize, params: &TestParams) -> Option<(usize, usize)> {
        let grid = ProcessGrid { p: params.p, q: params.q, mapping: params.mapping };
        let taken = self.arrival.place(number as u32, grid.size());
        grid.coordinates(taken[self.comm.rank()]?)
    }

    /// Solves test `number` under protection. All ranks of the grid together.
    pub fn solve(
        &self,
        context: &Context,
        number: usize,
        digest: u64,
        pool: &mut Pool,
        watcher: &mut impl Observer,
    ) -> Result<Outcome, Ended> {
        let params = context.params;
        let shape = context.shape;
        let position = shape.grid.rank(shape.row, shape.col);
        let last_sign = self.last_sign_of_life(position);
        let layout = Layout::of(params);
        let test = Test {
            index: number as u32,
            layout,
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
            restart: Continue::Auto,
            state_bytes: STATE_BYTES,
            ld: shape.ld,
            run: self.run,
            domain: self.domain.clone(),
            node: self.host.clone(),
        };
        set_phase("taking the memory of the run");
        let world = context.grid.split(Some(0), position).expect("everybody is in the world");
        let Started { checkpointer, a, origin, .. } =
            Checkpointer::start(config, test, Positions(world), |world, number, place, _| {
                Group::split(world, number, place)
            })?;
        let mut account = Account::default();
        let start = match origin {
            Origin::Fresh => Start::Fresh,
            Origin::Restored(restored) => {
                account = serde_json::from_slice(&restored.state).unwrap_or_default();
                self.charge_restart(context, &mut account, last_sign);
                if context.grid.rank() == 0 {
                    let rebuilt = match restored.rebuilt.len() {
                        0 => "nothing had to be rebuilt".to_owned(),
                        _ => format!("rebuilt positions {:?}", restored.rebuilt),
                    };
                    say(format_args!(
                        "test {} goes on from boundary {} of {} (epoch {}); {rebuilt}",
                        number + 1,
                        restored.boundary,
                        layout.blocks(),
                        restored.epoch
                    ));
                }
                Start::Resumed { boundary: restored.boundary, began_unix_s: account.began_unix_s }
            }
        };
        account.told.attempts += 1;
        account.told.memory_bytes_max = max(context, checkpointer.bytes() as u64);
        let mut group_min = [checkpointer.members().len() as u64];
        context.grid.all_reduce(&mut group_min, Reduce::Min);
        account.told.group_min = group_min[0] as usize;
        // The process before this one has left its own figures.
        checkpointer.worked(0.0, 0.0);
        let mut guard =
            Guard { checkpointer, len: shape.len(), account, watcher, stop: false, position };
        let mut local = Local::new(shape, a);
        let outcome = solve_test(context, &mut local, start, pool, &mut guard).map_err(|e| {
            Ended::new(Exit::Environment, format!("no memory for work arrays: {e}"))
        })?;
        let Guard { mut checkpointer, account, .. } = guard;
        // Whoever watches must not take the end that follows for a death.
        checkpointer.tick(Doing::Done, params.blocks());
        let Some(mut outcome) = outcome else {
            return Err(Ended::new(
                Exit::Stopped,
                format!(
                    "stopped as asked, after a save; the same command goes on from memory (job {:?})",
                    self.settings.job
                ),
            ));
        };
        outcome.protection = Some(account.told);
        let record = Record { digest, run_id: own_run_id(), outcome };
        let bytes = serde_json::to_vec(&record).expect("plain values have a JSON form");
        if !checkpointer.record(&bytes) && context.grid.rank() == 0 {
            say("no room to keep this result: a restart would run the test again");
        }
        checkpointer.finish();
        Ok(record.outcome)
    }

    /// When the position's memory was last worked on, if it is here.
    fn last_sign_of_life(&self, position: usize) -> Option<f64> {
        let region = self.depot.peek(position as u32, Part::Head).ok()?;
        let progress = Head::new(region).ok()?.progress();
        (progress.at_unix_ms > 0).then_some(progress.at_unix_ms as f64 / 1e3)
    }

    /// Adds what the failure and the restart took to the account.
    fn charge_restart(&self, context: &Context, account: &mut Account, last_sign: Option<f64>) {
        // The last sign of any survivor; positions without memory have none.
        let mut times = [last_sign.unwrap_or(0.0), account.saved_unix_s, account.began_unix_s];
        context.grid.all_reduce(&mut times, Reduce::Max);
        let [last, saved, began] = times;
        let last = last.clamp(saved, self.started_unix_s.max(saved));
        account.began_unix_s = began;
        account.told.lost_s += last - saved;
        account.told.down_s += (self.started_unix_s - last).max(0.0);
        account.told.restore_s += (unix_seconds() - self.started_unix_s).max(0.0);
    }
}

fn max(context: &Context, value: u64) -> u64 {
    let mut value = [value];
    context.grid.all_reduce(&mut value, Reduce::Max);
    value[0]
}

/// Everybody's success, or the first failure at everybody.
fn agreed<T>(comm: &Comm, result: Result<T, String>, exit: Exit) -> Result<T, Ended> {
    let mine = result.as_ref().err().cloned().unwrap_or_default();
    let all = comm.all_gather_bytes(mine.as_bytes());
    match all.iter().find(|why| !why.is_empty()) {
        None => result.map_err(|why| Ended::new(exit, why)),
        Some(why) => Err(Ended::new(exit, String::from_utf8_lossy(why))),
    }
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

/// A digest of everything that must be alike for a test to be the same.
pub fn digest(params: &TestParams, engine: &str) -> u64 {
    let text = serde_json::to_string(&(params, engine)).expect("plain values have a JSON form");
    xxh3_64(text.as_bytes())
}

/// The observer: saves at boundaries, shows signs of life, stops when asked to.
struct Guard<'w, O> {
    checkpointer: Checkpointer<Positions, Group>,
    len: usize,
    account: Account,
    watcher: &'w mut O,
    stop: bool,
    position: usize,
}

impl<O: Observer> Observer for Guard<'_, O> {
    fn drains(&mut self, k: usize) -> bool {
        self.stop = STOP_NOW.load(Ordering::Relaxed);
        self.checkpointer.due(k, self.stop)
    }

    fn boundary(&mut self, k: usize, a: *mut f64) -> Halt {
        self.account.saved_unix_s = unix_seconds();
        self.account.told.saves += 1;
        let state = serde_json::to_vec(&self.account).expect("plain values have a JSON form");
        // SAFETY: the whole local matrix, which the factorisation leaves alone at a boundary.
        let a = unsafe { std::slice::from_raw_parts_mut(a, self.len) };
        let report = self.checkpointer.save(k, a, &state);
        self.account.told.save_s += report.seconds;
        let stop = self.stop || STOP_AFTER_SAVE.load(Ordering::Relaxed);
        match self.checkpointer.world().first_says(u64::from(stop)) {
            0 => Halt::GoOn,
            _ => Halt::Stop,
        }
    }

    fn began(&mut self, unix_s: f64) {
        self.account.began_unix_s = unix_s;
        self.watcher.began(unix_s);
    }

    fn reached(&mut self, milestone: Milestone) {
        let (point, doing) = signs::words(milestone);
        self.checkpointer.tick(doing, 0);
        hit(point, self.position);
        self.watcher.reached(milestone);
    }

    fn iteration(&mut self, k: usize, blocks: usize, elapsed: f64) {
        self.checkpointer.tick(Doing::Computing, k);
        hit(Point::Iteration, self.position);
        self.watcher.iteration(k, blocks, elapsed);
    }

    fn multiplied(&mut self, seconds: f64, flops: f64) {
        self.checkpointer.worked(seconds, flops);
    }
}
