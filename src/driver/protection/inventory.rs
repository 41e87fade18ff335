//! Inventory at a launch. It lists what earlier starts of the job have left, and decides which results of finished tests count.
//! This module also removes the leftovers of earlier starts.
//!
//! All ranks take the inventory together, once in each launch, before the first test. `record` decides which results count. The
//! checkpoint of an unfinished test is examined when this test begins.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use super::record::{self, Kept, rounds_otherwise};
use super::{Prerequisites, ProtectionSession, signals};
use crate::base::exit::{Exit, Refusal};
use crate::base::faults::{Point, hit};
use crate::base::params::TestParams;
use crate::base::terminal::say;
use crate::checkpoint::level2::{TIMEOUT, with_timeout};
use crate::checkpoint::mpi::Positions;
use crate::checkpoint::storage::CheckpointDir;
use crate::checkpoint::storage::choice::{Inventory, Known};
use crate::checkpoint::{Arrival, StartError, World, new_run};
use crate::comm::Comm;
use crate::config::settings::{self, Restart};
use crate::driver::agreement::{gathered, shared_by, unanimous};
use crate::driver::level2::{self, Conditions, Level2};
use crate::driver::nonstop::RecoveryHistory;
use crate::lu::unix_seconds;
use crate::shm::{MemoryError, bus};
use crate::supervise::start::launcher::{own_attempt, own_run_id};

/// Returns true in the second and any later launch of a supervised run. Collective call; rank 0 decides.
fn launched_before(comm: &Comm) -> bool {
    shared_by(comm, 0, || own_run_id().is_some() && own_attempt() > 1)
}

/// Time limit for storage during recovery in place. Such a recovery takes seconds, and if it takes longer, a supervisor
/// restarts all ranks. Nothing is lost, because memory has everything that storage has.
const IN_PLACE: Duration = Duration::from_secs(5);

/// Finds the first rank whose host is not in the domain file, and returns this host; `None` if there is no such rank. Collective
/// call.
fn first_left_out(world: &impl World, left_out: bool, host: &str) -> Option<String> {
    let (me, ranks) = (world.rank() as u64, world.size() as u64);
    let first = world.least(&[if left_out { me } else { ranks }])[0];
    if first == ranks {
        return None;
    }
    let name = if first == me { host.as_bytes() } else { &[] };
    Some(String::from_utf8_lossy(&world.tell(name, first as usize)).into_owned())
}

impl<'a> ProtectionSession<'a> {
    /// Takes the inventory of earlier starts, with the same result on all ranks. `tests` are the digests of the run's tests,
    /// and `rounding` is the arithmetic of all ranks. If the recovery history `history` shows that this launch has begun,
    /// everything found belongs to this launch. Collective call.
    pub fn new(
        comm: &'a Comm,
        node: &Comm,
        settings: &'a settings::Saves,
        prerequisites: &'a Prerequisites,
        tests: &'a [u64],
        rounding: &'a str,
        history: &RecoveryHistory,
    ) -> Result<Self, Refusal> {
        let begun = history.known.begun;
        let started_unix_s = unix_seconds();
        bus::install();
        signals::obey();
        let Prerequisites { host, left_out, memory_store, .. } = prerequisites;
        // Two nodes may have the same name, so a node is identified by its first rank.
        let leader = shared_by(node, 0, || comm.rank());
        let all = comm.split(Some(0), comm.rank()).expect("everybody is in the world");
        let world = Positions::new(all);
        // All ranks have rank 0's settings, so either all ranks take part or none.
        if let Some(domains) = &settings.domains
            && let Some(node) = first_left_out(&world, *left_out, host)
            && comm.rank() == 0
            && !begun
        {
            say(format_args!(
                "warning: {} names failure domains of nodes, but not of {node}. Each node that the file leaves out counts as \
                 a domain by itself. The file must have the name that the node gives itself (hostname)",
                domains.display()
            ));
        }
        let arrival = Arrival::gather(&world, memory_store, leader);
        let mut this = Self {
            comm,
            settings,
            prerequisites,
            run: Cell::new(0),
            fresh_run: 0,
            continued: false,
            level2: None,
            unwanted: false,
            storage_gone: None,
            warned: Cell::new(false),
            rounding,
            tests,
            finished: Vec::new(),
            ended: RefCell::default(),
            arrival,
            leader,
            started_unix_s,
        };
        this.look_at_storage(node, history)?;
        this.take_stock(node)?;
        let requires = settings.restart == Restart::Require && !begun;
        if requires && !this.continued {
            return Err(StartError::Nothing { job: settings.job.clone() }.into());
        }
        Ok(this)
    }

    /// Opens storage, and decides whether the leftovers of earlier runs are unwanted. If storage cannot be used, but memory has
    /// everything that storage may have, the run continues without storage. Collective call.
    fn look_at_storage(&mut self, node: &Comm, history: &RecoveryHistory) -> Result<(), Refusal> {
        let timeout = if history.known.begun { IN_PLACE } else { TIMEOUT };
        let never = self.settings.restart == Restart::Never && !history.known.begun;
        // A supervised run is one run in all its launches: memory and files of earlier launches belong to it.
        let again = never && launched_before(self.comm);
        self.unwanted = never && !again;
        if self.unwanted {
            self.forget_memory();
        }
        // If memory has the checkpoint, storage is not needed. If only storage may have it, the run cannot resume without
        // storage. Between two tests there are only results, and memory has these, too.
        let has = |test: usize| self.arrival.finished.contains_key(&(test as u32));
        let in_memory = self.arrival.test.is_some() || history.is_between_tests(has);
        self.level2 = match self.open_level2(node, timeout, self.unwanted) {
            Err(Refusal { why, .. }) if in_memory && !self.on_disk_alone() => {
                self.storage_gone = Some(why);
                None
            }
            opened => opened?,
        };
        if again && self.storage_gone.is_none() && !self.has_own() {
            // Earlier launches ended before they could remove the leftovers of other runs.
            self.unwanted = true;
            self.forget_memory();
            self.level2 = self.open_level2(node, TIMEOUT, true)?;
        }
        Ok(())
    }

    /// Makes the session ignore the memory that this launch has found.
    fn forget_memory(&mut self) {
        self.arrival = std::mem::take(&mut self.arrival).without_memory();
    }

    /// Opens level two within `timeout`; returns `None` if the settings have none. With `from_scratch`, checkpoints in DIR are
    /// ignored. The contents of memory must be known before the call. Collective call.
    fn open_level2(
        &self,
        node: &Comm,
        timeout: Duration,
        from_scratch: bool,
    ) -> Result<Option<Level2>, Refusal> {
        let Arrival { test, params_digest, .. } = &self.arrival;
        let ours =
            test.is_some_and(|test| self.tests.get(test as usize).copied() == *params_digest);
        let known = Known {
            in_memory: self.arrival.run.filter(|_| ours),
            launched_before: launched_before(self.comm),
        };
        let conditions = Conditions { tests: self.tests, known, timeout, from_scratch };
        Level2::open(self.comm, node, self.settings, &self.prerequisites.domain, conditions)
    }

    /// Returns true if an earlier launch of this supervised run has left anything in memory or on storage. The result is the same
    /// on every rank.
    fn has_own(&self) -> bool {
        let Some(own) = own_run_id() else { return false };
        let none = Inventory::default();
        let inventory = self.level2.as_ref().map_or(&none, |level2| &level2.inventory);
        let in_memory = [self.arrival.run, self.arrival.latest].into_iter().flatten();
        let on_storage = inventory.whole.iter().map(|about| about.run);
        in_memory.chain(on_storage).any(|run| record::is_of(run, &own))
            || inventory.results.iter().any(|(_, bytes)| record::was_kept_by(bytes, &own))
    }

    /// Determines to which run the memory belongs, and which results of that run count.
    fn take_stock(&mut self, node: &Comm) -> Result<(), Refusal> {
        if let Some(level2) = &self.level2 {
            level2.check(self.tests, self.rounding, &self.settings.job)?;
        }
        let none = Inventory::default();
        let inventory = self.level2.as_ref().map_or(&none, |level2| &level2.inventory);
        let in_progress = self.arrival.test.is_some() || !inventory.whole.is_empty();
        let in_memory = self.arrival.finished.iter().map(|(number, bytes)| (*number, bytes));
        let on_storage = inventory.results.iter().map(|(number, bytes)| (*number, bytes));
        let own = own_run_id();
        let results = in_memory.chain(on_storage);
        let Kept { finished, stale } =
            record::sort(results, self.tests, own.as_deref(), in_progress);
        self.finished = finished;
        self.check_memory(stale && in_progress)?;
        let latest = self.arrival.latest.max(inventory.latest());
        let on_storage = !inventory.whole.is_empty()
            || !inventory.results.is_empty()
            || !inventory.damaged.is_empty();
        let something = self.arrival.run.is_some() || on_storage;
        if stale {
            // The results belong to a run that has ended or was given up, and there is nothing to resume.
            self.finished.clear();
            self.remove(node, None)?;
            self.level2 = self.open_level2(node, TIMEOUT, false)?;
        }
        let number = || record::run_number(new_run(), own.as_deref(), latest);
        self.fresh_run = shared_by(self.comm, 0, number);
        self.continued = something && !stale;
        self.run.set(self.arrival.run.filter(|_| self.continued).unwrap_or(self.fresh_run));
        Ok(())
    }

    /// Refuses the run if memory or checkpoints belong to another run. `other_tests` is true if there are checkpoints of a run
    /// with other tests than this run's.
    fn check_memory(&self, other_tests: bool) -> Result<(), Refusal> {
        let (tests, rounding) = (self.tests, self.rounding);
        let here = self.arrival.test.and_then(|test| tests.get(test as usize));
        if let (Some(&here), Some(there)) = (here, self.arrival.params_digest)
            && rounds_otherwise(here, there)
        {
            return Err(Refusal::environment(format!(
                "job {:?} has memory of this run that was computed with another arithmetic than that of these ranks \
                 ({rounding}): resuming would change the last bits of the result. Start on nodes with the same \
                 processors and BLAS as before, or give this run another --job name",
                self.settings.job
            )));
        }
        if other_tests {
            return Err(Refusal::bad_input(format!(
                "job {job:?} has checkpoints of a run with other tests. Finish that run, give this run \
                 another --job name, or remove the checkpoints with `skt-hpl clean --job {job}` or --restart never",
                job = self.settings.job
            )));
        }
        let open = |test: &u32| self.finished(*test as usize).is_none();
        let theirs = |test: &u32| tests.get(*test as usize).copied() != self.arrival.params_digest;
        if let Some(test) = self.arrival.test.filter(open).filter(theirs)
            // If it is the first open test, that test checks its own memory when it begins, with more precise messages.
            && (0..tests.len() as u32).find(open) != Some(test)
        {
            let what = format!("test {} of that run is not a test of this run", test + 1);
            return Err(StartError::Other { job: self.settings.job.clone(), what }.into());
        }
        Ok(())
    }

    /// Removes everything that earlier runs left, if the user wants to begin from scratch; otherwise does nothing. If some test
    /// in `tests` cannot be protected, refuses the run and removes nothing. Collective call.
    pub fn clear_ground(
        &self,
        node: &Comm,
        tests: impl Iterator<Item = TestParams>,
    ) -> Result<(), Refusal> {
        if !self.unwanted {
            return Ok(());
        }
        let domains = gathered(self.comm, &self.prerequisites.domain);
        let scheme = &self.settings.scheme;
        let mut grids = BTreeSet::new();
        for params in tests.filter(|params| params.n > 0 && grids.insert((params.p, params.q))) {
            let layout = self.layout(&params);
            let mut at = vec![String::new(); layout.positions()];
            let taken = self.arrival.place(0, layout.positions(), None);
            for (domain, position) in domains.iter().zip(taken) {
                if let Some(position) = position {
                    at[position].clone_from(domain);
                }
            }
            let groups = scheme.check().map_err(StartError::from).and_then(|()| {
                Ok(scheme.layout.groups(&layout, &at, self.settings.group, scheme.losses)?)
            });
            groups?;
        }
        self.remove(node, None)
    }

    /// Removes all memory of the finished run, and its files on storage, unless a later start has taken over the files.
    /// Collective call.
    pub fn clean(&self, node: &Comm) -> Result<(), Refusal> {
        self.remove(node, Some(self.fresh_run))
    }

    /// Removes all memory of the job, and its files on storage. If `start`, the id of this start, is given, files that a later
    /// start has taken over are not removed. Memory is removed first. If its locks show that a run of this name is active,
    /// storage is left alone. Collective call.
    fn remove(&self, node: &Comm, start: Option<u128>) -> Result<(), Refusal> {
        self.comm.barrier();
        let inject = |point| {
            if start.is_none() {
                hit(point, self.comm.rank());
            }
        };
        inject(Point::GroundSeen);
        let cleaned = match node.rank() {
            0 => self.prerequisites.memory_store.clean().map(|_| ()),
            _ => Ok(()),
        };
        let ended = |e: MemoryError| Refusal::new(Exit::NoSharedMemory, e);
        unanimous(self.comm, cleaned.map_err(ended))?;
        let scope = self.settings.level2.as_ref().map(|level2| level2.scope).unwrap_or_default();
        let checkpoint_dir = level2::checkpoint_dir(self.settings, &self.prerequisites.domain);
        // A start without an id has written nothing yet, and removes everything. The locks on memory have shown that no run of
        // this name is active on these nodes. But a run on other nodes that share DIR would lose its checkpoints.
        let checkpoint_dir = checkpoint_dir.map(|checkpoint_dir| match start {
            None => checkpoint_dir,
            Some(number) => checkpoint_dir.held_by(number),
        });
        let checkpoint_dir = checkpoint_dir.filter(|checkpoint_dir| {
            level2::dir_id(self.comm, node, scope, checkpoint_dir) == self.comm.rank()
        });
        let left = match checkpoint_dir
            .map_or(Ok(()), |checkpoint_dir| self.clean_storage(checkpoint_dir))
        {
            // The run has ended, so a failed removal is only reported.
            Err(why) if start.is_some() => {
                say(why);
                Ok(())
            }
            // If the run that begins is restarted, it would find these files.
            left => left.map_err(Refusal::environment),
        };
        // No rank reads storage before the removal is complete.
        unanimous(self.comm, left)?;
        inject(Point::GroundCleared);
        Ok(())
    }

    /// Removes all files of the job from this DIR, unless another start has taken over the files. The error is a message for the
    /// user.
    fn clean_storage(&self, checkpoint_dir: CheckpointDir) -> Result<(), String> {
        let (dir, job) = (checkpoint_dir.dir().to_owned(), &self.settings.job);
        // In a missing DIR there would seem to be nothing to remove, so DIR is checked first.
        let removed = with_timeout(move |flow| {
            checkpoint_dir.check()?;
            let cleaned = checkpoint_dir.clean(flow);
            // Files that another start has taken over belong to that start.
            let theirs = checkpoint_dir.is_held().err();
            if theirs.is_none() {
                cleaned?;
            }
            Ok(theirs)
        });
        match removed {
            Ok(None) => Ok(()),
            Ok(Some(theirs)) => {
                say(format_args!("checkpoints on storage are not removed: {theirs}"));
                Ok(())
            }
            Err(why) => Err(format!(
                "the checkpoints of job {job:?} on storage could not be removed: {why}. The next start would resume \
                 from these checkpoints. To remove them, give `skt-hpl clean --job {job} --level2 {}`",
                dir.display()
            )),
        }
    }
}
