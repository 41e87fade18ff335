//! Test under protection on a rank of the grid. Takes the position's memory, starts or resumes the test, and keeps its result.
//!
//! Dedicated checksum ranks (`dedicated`) also use `take` and the functions for the end of a test.

use super::account::{Account, STATE_BYTES};
use super::checkpoint_observer::{CANNOT, CheckpointObserver, WELL, Whose};
use super::record::Record;
use super::{ProtectionSession, dedicated, words};
use crate::base::exit::{Exit, Refusal};
use crate::base::outcome::Outcome;
use crate::base::params::TestParams;
use crate::base::terminal::say;
use crate::base::threads::Pool;
use crate::checkpoint::level2::{Storage, with_timeout};
use crate::checkpoint::mpi::{Group, Positions};
use crate::checkpoint::storage::Counting;
use crate::checkpoint::{Checkpointer, Config, Origin, Started, Test, World};
use crate::comm::{Reduce, set_phase};
use crate::config::settings;
use crate::driver::agreement::{reduced, shared_by};
use crate::driver::level2;
use crate::driver::nonstop::RecoveryHistory;
use crate::lu::{Context, Observer, Start, solve_test, unix_seconds};
use crate::matrix::Local;
use crate::shm::Part;
use crate::shm::header::{Doing, Head};
use crate::supervise::start::in_place::{self, FROM_SCRATCH};
use crate::supervise::start::launcher::own_run_id;

impl ProtectionSession<'_> {
    /// Takes this position's memory for a test. If there is a checkpoint of the test, restores the memory from the checkpoint. A
    /// rank without a position in the grid has no `context`. Collective call of the `world`.
    pub(super) fn take(
        &self,
        params: &TestParams,
        number: usize,
        world: Positions,
        context: Option<&Context>,
        storage: Option<Storage>,
        pool: &mut Pool,
    ) -> Result<Started<Positions, Group>, Refusal> {
        let test = Test {
            index: number as u32,
            layout: self.layout(params),
            rng: params.rng,
            seed: params.seed,
            params_digest: self.tests[number],
        };
        let config = Config {
            memory_store: self.prerequisites.memory_store.clone(),
            scheme: self.settings.scheme,
            group: self.settings.group,
            encode: self.settings.encode,
            interval: self.settings.interval,
            // Storage may have a checkpoint that memory lacks.
            must_resume: self.storage_gone.is_some() && self.arrival.test == Some(number as u32),
            goes_on: self.continued,
            state_bytes: STATE_BYTES,
            ld: context.map_or(0, |context| context.shape.ld),
            run: self.run.get(),
            domain: self.prerequisites.domain.clone(),
            node: self.prerequisites.host.clone(),
            leader: self.leader,
            storage,
            device: context.and_then(|context| context.device.clone()),
        };
        set_phase("taking the memory of the run");
        Checkpointer::start(config, test, world, pool, |world, number, place, _| {
            Group::split(world, number, place)
        })
        .map_err(|error| words::refused(self.storage_gone.as_deref(), error))
    }

    /// Solves a test under protection, and returns the outcome. The error is the refusal that ends the run. `everybody` is the
    /// communicator that includes the dedicated checksum ranks; `None` if there are none. Collective call of all ranks of the
    /// grid.
    pub fn solve(
        &self,
        context: &Context,
        number: usize,
        everybody: Option<Positions>,
        pool: &mut Pool,
        watcher: &mut impl Observer,
        history: &mut RecoveryHistory,
    ) -> Result<Outcome, Refusal> {
        let params = context.params;
        let shape = context.shape;
        let position = shape.grid.rank(shape.row, shape.col);
        let last_sign = self.last_sign_of_life(position);
        let storage = self.level2.as_ref().and_then(|_| {
            let in_place = max(context, history.has_lost.into()) > 0;
            self.storage(number, in_place)
        });
        let among = || context.grid.split(Some(0), position).expect("everybody is in the world");
        let others_wait = everybody.is_some();
        let world = everybody.unwrap_or_else(|| Positions::new(among()));
        let Started { mut checkpointer, a, on_device, origin, crowded, .. } =
            self.take(params, number, world, Some(context), storage, pool)?;
        for (domain, count) in crowded.iter().filter(|_| context.grid.rank() == 0) {
            say(format_args!(
                "warning: {domain} now holds {count} members of one group, which survives the loss of at most {} of its members: \
                 if {domain} is lost, the run ends",
                self.settings.scheme.losses
            ));
        }
        history.known.part.members = checkpointer.members();
        if context.grid.rank() == 0 {
            self.warn_of_storage();
        }
        let (start, account) =
            self.resume(context, number, origin, last_sign, &mut checkpointer, history);
        let whose = Whose {
            position,
            host: &self.prerequisites.host,
            len: if on_device.is_some() { 0 } else { shape.len() },
            blocks: params.blocks(),
            others_wait,
            has_state: true,
            saved: &mut history.known.saved,
            test: number,
        };
        let mut checkpoint_observer =
            CheckpointObserver::new(checkpointer, account, watcher, whose);
        // A stays mapped as long as its name is checked.
        let solved = match on_device {
            None => solve_test(
                context,
                &mut Local::new(shape, a),
                start,
                pool,
                &mut checkpoint_observer,
            ),
            Some(buffer) => {
                let mut local = Local::new(shape, buffer);
                let solved = solve_test(context, &mut local, start, pool, &mut checkpoint_observer);
                drop(a);
                solved
            }
        };
        let outcome = solved
            .inspect_err(|_| checkpoint_observer.tell(CANNOT))
            .map_err(Refusal::environment)?;
        if outcome.is_some() {
            checkpoint_observer.tell(WELL);
        }
        self.conclude(params, number, checkpoint_observer, outcome)
    }

    /// Keeps the outcome of a test, and returns it. `outcome` is `None` if the test was stopped. In this case the error is the
    /// refusal that ends the run. Collective call of all ranks of the grid.
    fn conclude<O: Observer>(
        &self,
        params: &TestParams,
        number: usize,
        checkpoint_observer: CheckpointObserver<O>,
        outcome: Option<Outcome>,
    ) -> Result<Outcome, Refusal> {
        let CheckpointObserver { mut checkpointer, mut account, earlier, stored, .. } =
            checkpoint_observer;
        // A reader of the heartbeats must not take the end of this process for a failure.
        checkpointer.tick(Doing::Done, params.blocks());
        let Some(mut outcome) = outcome else {
            return Err(Refusal::new(Exit::Stopped, words::stopped(self.settings, stored)));
        };
        checkpointer.end_level2();
        account.told.level2 = level2::account(earlier, checkpointer.tally());
        outcome.protection = Some(account.told);
        outcome.timeline = account.way.timeline(params.n, params.nb);
        let record = Record { digest: self.tests[number], run_id: own_run_id(), outcome };
        let bytes = serde_json::to_vec(&record).expect("plain values have a JSON form");
        // All nodes keep the same text. Different texts on nodes would mean different runs.
        let bytes = checkpointer.world().tell(&bytes, dedicated::TELLER);
        self.end(checkpointer, number as u32, bytes);
        Ok(record.outcome)
    }

    /// Prints the origin of a test's matrix. Returns the start of the computation, and the account of the test's time, continued
    /// from earlier starts. `last_sign` is the Unix time of the position's last heartbeat, in seconds. Collective call of all
    /// ranks of the grid.
    fn resume(
        &self,
        context: &Context,
        number: usize,
        origin: Origin,
        last_sign: Option<f64>,
        checkpointer: &mut Checkpointer<Positions, Group>,
        history: &mut RecoveryHistory,
    ) -> (Start, Account) {
        let mut account = Account::default();
        let mut fetched = None;
        let start = match origin {
            Origin::Fresh => {
                if context.grid.rank() == 0
                    && let Some(notice) = history.notice.take()
                {
                    let how = format!("test {} {FROM_SCRATCH}, nothing was saved", number + 1);
                    say(notice.told(&how));
                }
                Start::Fresh
            }
            Origin::Restored(restored) => {
                account = serde_json::from_slice(&restored.state).unwrap_or_default();
                if context.grid.rank() == 0 {
                    for (position, why) in &restored.damaged {
                        say(format_args!(
                            "the data of position {position} could not be used: {why}"
                        ));
                    }
                    let blocks = context.params.blocks();
                    let from = in_place::from_boundary(number + 1, restored.boundary, blocks);
                    let how = words::restored(self.settings, &restored, &from);
                    let notice = history.notice.take();
                    say(notice.map_or(how.clone(), |notice| notice.told(&how)));
                }
                // The first number is the time of the last heartbeat of this position, or 0 if this node does not have the
                // position's memory.
                let mut times =
                    [last_sign.unwrap_or(0.0), account.saved_unix_s, account.began_unix_s];
                context.grid.all_reduce(&mut times, Reduce::Max);
                let (started, now) = (self.started_unix_s, unix_seconds());
                account.charge_restart(times, started, now, restored.boundary);
                fetched = restored.fetched;
                if fetched.is_some() {
                    self.go_on_as_another_run(checkpointer);
                    account.told.level2.get_or_insert_default().fetched += 1;
                } else {
                    checkpointer.count_on(account.unstored);
                }
                Start::Resumed { boundary: restored.boundary, began_unix_s: account.began_unix_s }
            }
        };
        self.hand_results_on(checkpointer);
        account.count_start(checkpointer.run().1, fetched);
        count_losses(context, &mut account, history);
        account.told.memory_bytes_max = max(context, checkpointer.bytes() as u64);
        let members = checkpointer.members().len() as u64;
        account.told.group_min = reduced(&context.grid, members, Reduce::Min) as usize;
        // Clears the figures of the process that had this memory before.
        checkpointer.worked(0.0, 0.0);
        (start, account)
    }

    /// Ends a test: keeps its result, and removes its matrix from memory. Collective call of all ranks with a position.
    pub(super) fn end(
        &self,
        mut checkpointer: Checkpointer<Positions, Group>,
        number: u32,
        result: Vec<u8>,
    ) {
        if !checkpointer.record(number, &result) && checkpointer.position() == 0 {
            say(format_args!(
                "there is no memory to keep the result of test {}: a restart would run the test again",
                number + 1
            ));
        }
        let first = self.level2.as_ref().filter(|_| checkpointer.speaks_for_dir());
        let checkpoint_dir =
            first.map(|level2| level2.checkpoint_dir.clone().held_by(self.fresh_run));
        let kept = checkpoint_dir.clone().map(|checkpoint_dir| {
            with_timeout(move |_| checkpoint_dir.put_result(number, &result))
        });
        if let Some(Err(why)) = &kept {
            say(format_args!("the result of test {} is kept in memory only: {why}", number + 1));
        }
        // A result that only some nodes have would not be trusted. The checkpoints of the remaining nodes would not suffice
        // either. So in this case the checkpoints stay.
        let is_kept = !matches!(kept, Some(Err(_)));
        let everywhere = checkpointer.world().all(is_kept);
        checkpointer.finish();
        if let Some(checkpoint_dir) = checkpoint_dir.filter(|_| everywhere) {
            // Files that cannot be removed at this time are removed at the end of the run.
            let _ = with_timeout(move |flow| {
                checkpoint_dir.prune(flow).map_err(|stopped| stopped.to_string())
            });
        }
    }

    /// Warns once if the run writes nothing to storage, although the settings request it.
    fn warn_of_storage(&self) {
        let unwritable = self.level2.as_ref().and_then(|level2| level2.unwritable.as_ref());
        let told = match (&self.storage_gone, unwritable) {
            (Some(why), _) => format!("{why}. The run continues from memory alone"),
            (None, Some(why)) => format!("{why}. The run uses the checkpoints that are there"),
            (None, None) => return,
        };
        if !self.warned.replace(true) {
            say(format_args!(
                "warning: {told}, and writes nothing to storage until it is started again"
            ));
        }
    }

    /// Returns the description of storage for the start of a test; `None` without level two. `in_place` is true in a launch that
    /// has lost ranks.
    pub(super) fn storage(&self, number: usize, in_place: bool) -> Option<Storage> {
        let (number, digest) = (number as u32, self.tests[number]);
        let level2 = self.level2.as_ref()?;
        let settings::Level2 { scope, every, .. } = self.settings.level2.as_ref()?;
        let finished = self.finished.iter().map(|test| test.number);
        let results = level2.counting(finished, &self.ended.borrow());
        let first = level2.begins_with(number);
        let inventory = &level2.inventory;
        Some(Storage {
            checkpoint_dir: level2.checkpoint_dir.clone().held_by(self.fresh_run),
            dir_scope: *scope,
            dir_id: level2.dir_id as u64,
            every: *every,
            helpers: self.settings.helpers,
            arithmetic: self.rounding.to_owned(),
            stored: if first { inventory.for_test(number, digest) } else { Vec::new() },
            damaged: if first { inventory.damaged.clone() } else { Vec::new() },
            whole: inventory.whole.clone(),
            results: Some(Counting { results, first }),
            fresh_run: self.fresh_run,
            in_place,
            read_only: level2.unwritable.is_some(),
        })
    }

    /// Adopts the id of the run in `checkpointer`. The run is new, because its checkpoint was read from storage.
    pub(super) fn go_on_as_another_run(&self, checkpointer: &mut Checkpointer<Positions, Group>) {
        self.run.set(checkpointer.run().0);
    }

    /// Copies the results of finished tests to this position's memory, if the memory lacks them because it is new. Otherwise the
    /// tests would be run again after the loss of all ranks that had the results.
    pub(super) fn hand_results_on(&self, checkpointer: &mut Checkpointer<Positions, Group>) {
        let here = checkpointer.results();
        for test in self.finished.iter().filter(|test| !here.contains(&test.number)) {
            checkpointer.record(test.number, &test.text);
        }
    }

    /// Adopts the run id of rank `teller`, which took part in the test. A test that resumed from storage has a new id, and idle
    /// ranks must know it. Collective call.
    pub fn follow(&self, teller: usize) {
        if self.level2.is_some() {
            self.run.set(shared_by(self.comm, teller, || self.run.get()));
        }
    }

    /// Returns the Unix time, in seconds, of the last work that was recorded in the position's memory. Returns `None` if the
    /// memory is not on this node.
    fn last_sign_of_life(&self, position: usize) -> Option<f64> {
        let region = self.prerequisites.memory_store.peek(position as u32, Part::Head).ok()?;
        let progress = Head::new(region).ok()?.progress();
        (progress.worked_unix_ms > 0).then_some(progress.worked_unix_ms as f64 / 1e3)
    }
}

/// Sets the number of recovered losses of ranks in the account to the highest number that any rank knows. Collective call of all
/// ranks of the grid.
fn count_losses(context: &Context, account: &mut Account, history: &mut RecoveryHistory) {
    // The account is as old as the last save, and may lack later losses. So the losses in the ranks' histories count.
    let losses = max(context, history.losses.into()) as u32;
    // Rank 0, which also runs this function, has printed the last notice.
    history.notice = None;
    history.losses_before = match losses {
        0 => account.told.in_place,
        _ => max(context, history.losses_before.into()) as u32,
    };
    account.told.in_place = history.losses_before + losses;
    account.told.attempts = account.told.attempts.max(account.told.in_place + 1);
}

fn max(context: &Context, value: u64) -> u64 {
    reduced(&context.grid, value, Reduce::Max)
}
