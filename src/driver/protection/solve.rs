//! One test under protection, on a rank of the grid: its memory is taken, it begins or goes on, and its result is kept.
//!
//! `take` and what stands at its end are for ranks that keep checksums alone as well (`dedicated`).

use super::account::{Account, STATE_BYTES};
use super::guard::{Guard, Whose};
use super::record::Record;
use super::stock::told_by;
use super::{Guardian, dedicated, words};
use crate::base::exit::Exit;
use crate::base::outcome::Outcome;
use crate::base::params::TestParams;
use crate::base::terminal::say;
use crate::base::threads::Pool;
use crate::checkpoint::level2::{Storage, patiently};
use crate::checkpoint::mpi::{Group, Positions};
use crate::checkpoint::{Checkpointer, Config, Origin, Restart as Continue, Started, Test, World};
use crate::comm::{Reduce, set_phase};
use crate::driver::agreement::Ended;
use crate::driver::level2;
use crate::driver::nonstop::Story;
use crate::lu::{Context, Observer, Start, solve_test, unix_seconds};
use crate::matrix::Local;
use crate::shm::Part;
use crate::shm::header::{Doing, Head};
use crate::supervise::start::in_place::{self, ANEW};
use crate::supervise::start::launcher::own_run_id;

impl Guardian<'_> {
    /// Takes this position's memory in a test, and gets it back where there is something to go on from. All of the `world`
    /// together.
    pub(super) fn take(
        &self,
        params: &TestParams,
        (number, digest): (usize, u64),
        world: Positions,
        ld: usize,
        storage: Option<Storage>,
        pool: &mut Pool,
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
            goes_on: self.continued,
            state_bytes: STATE_BYTES,
            ld,
            run: self.run.get(),
            domain: self.domain.clone(),
            node: self.host.clone(),
            leader: self.leader,
            storage,
        };
        set_phase("taking the memory of the run");
        Checkpointer::start(config, test, world, pool, |world, number, place, _| {
            Group::split(world, number, place)
        })
        .map_err(|error| words::refused(self.storage_gone.as_deref(), error))
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
        let Started { mut checkpointer, a, origin, crowded, .. } =
            self.take(params, (number, digest), world, shape.ld, storage, pool)?;
        for (domain, count) in crowded.iter().filter(|_| context.grid.rank() == 0) {
            say(format_args!(
                "warning: {domain} now holds {count} members of one group, which survives {}: losing it would end the run",
                self.settings.scheme.losses
            ));
        }
        story.cast.members = checkpointer.members();
        if context.grid.rank() == 0 {
            self.warn_of_storage();
        }
        let mut account = Account::default();
        let mut fetched = None;
        let start = match origin {
            Origin::Fresh => {
                if context.grid.rank() == 0
                    && let Some(notice) = story.notice.take()
                {
                    let how = format!("test {} {ANEW}, nothing was saved", number + 1);
                    say(notice.told(&how));
                }
                Start::Fresh
            }
            Origin::Restored(restored) => {
                account = serde_json::from_slice(&restored.state).unwrap_or_default();
                if context.grid.rank() == 0 {
                    for (position, why) in &restored.damaged {
                        say(format_args!("position {position} could not be used: {why}"));
                    }
                    let from =
                        in_place::from_boundary(number + 1, restored.boundary, params.blocks());
                    let how = words::restored(self.settings, &restored, &from);
                    let notice = story.notice.take();
                    say(notice.map_or(how.clone(), |notice| notice.told(&how)));
                }
                // The last sign of any survivor; positions without memory have none.
                let mut times =
                    [last_sign.unwrap_or(0.0), account.saved_unix_s, account.began_unix_s];
                context.grid.all_reduce(&mut times, Reduce::Max);
                let start = (self.started_unix_s, unix_seconds());
                account.charge_restart(times, start, restored.boundary);
                fetched = restored.fetched;
                if fetched.is_some() {
                    self.go_on_as_another_run(&mut checkpointer);
                    account.told.level2.get_or_insert_default().fetched += 1;
                } else {
                    checkpointer.count_on(account.unstored);
                }
                Start::Resumed { boundary: restored.boundary, began_unix_s: account.began_unix_s }
            }
        };
        self.hand_results_on(&mut checkpointer);
        account.count_start(checkpointer.run().1, fetched);
        // What was saved last may be older than the last loss.
        let losses = max(context, story.losses.into()) as u32;
        // Rank 0, which came here too, has told the last one.
        story.notice = None;
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
        let whose = Whose {
            position,
            host: &self.host,
            len: shape.len(),
            blocks: params.blocks(),
            others_wait,
            has_state: true,
            saved: &mut story.saved,
            test: number,
        };
        let mut guard = Guard::new(checkpointer, account, watcher, whose);
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
            return Err(Ended::new(Exit::Stopped, words::stopped(self.settings, stored)));
        };
        checkpointer.end_level2();
        account.told.level2 = level2::account(earlier, checkpointer.tally());
        outcome.protection = Some(account.told);
        outcome.course = account.way.course(params.n, params.nb);
        let record = Record { digest, run_id: own_run_id(), outcome };
        let bytes = serde_json::to_vec(&record).expect("plain values have a JSON form");
        // The same text everywhere: where nodes differ in it, they kept it in different runs.
        let bytes = checkpointer.world().tell(&bytes, dedicated::TELLER);
        self.end(checkpointer, number as u32, bytes);
        Ok(record.outcome)
    }

    /// A test is over: its result is kept, and what there is of its matrix goes. All ranks with a position together.
    pub(super) fn end(
        &self,
        mut checkpointer: Checkpointer<Positions, Group>,
        number: u32,
        result: Vec<u8>,
    ) {
        if !checkpointer.record(number, &result) && checkpointer.position() == 0 {
            say("no room to keep this result: a restart would run the test again");
        }
        let first = self.level2.as_ref().filter(|_| checkpointer.speaks_for_dir());
        let shelf = first.map(|level2| level2.shelf.clone().held_by(self.fresh_run));
        let kept = shelf.clone().map(|shelf| patiently(move |_| shelf.put_result(number, &result)));
        if let Some(Err(why)) = &kept {
            say(format_args!("this result is kept in memory alone: {why}"));
        }
        // Where not all nodes have it, a part of them is not enough to believe it by, nor would the others' epochs be enough.
        let is_kept = !matches!(kept, Some(Err(_)));
        let everywhere = checkpointer.world().least(&[u64::from(is_kept)]) == [1];
        checkpointer.finish();
        if let Some(shelf) = shelf.filter(|_| everywhere) {
            // What cannot be removed now goes with the run.
            let _ = patiently(move |flow| shelf.prune(flow).map_err(|stopped| stopped.to_string()));
        }
    }

    /// Says, once, why nothing is put on storage from now on, where something should be.
    fn warn_of_storage(&self) {
        let unwritable = self.level2.as_ref().and_then(|level2| level2.unwritable.as_ref());
        let told = match (&self.storage_gone, unwritable) {
            (Some(why), _) => format!("{why}. The run goes on from memory alone"),
            (None, Some(why)) => format!("{why}. The run goes on from what is there"),
            (None, None) => return,
        };
        if !self.warned.replace(true) {
            say(format_args!(
                "warning: {told}, and puts nothing on storage until it is started again"
            ));
        }
    }

    /// What the start of a test is told of the second level.
    pub(super) fn storage(&self, number: u32, digest: u64, in_place: bool) -> Option<Storage> {
        let helpers = self.settings.helpers;
        let level2 = self.level2.as_ref()?;
        let test = (number, digest);
        let finished = self.finished.iter().map(|test| test.number);
        let tests = (finished, &self.ended.borrow()[..]);
        Some(level2.of_test(test, tests, &self.rounding, self.fresh_run, in_place, helpers))
    }

    /// What was fetched from storage belongs to a run of its own in memory.
    pub(super) fn go_on_as_another_run(&self, checkpointer: &mut Checkpointer<Positions, Group>) {
        self.run.set(checkpointer.run().0);
    }

    /// Who came in place of others, or belongs to another run by now, has no results of finished tests yet: where all that had
    /// them were lost, one after the other, those tests would be run again.
    pub(super) fn hand_results_on(&self, checkpointer: &mut Checkpointer<Positions, Group>) {
        let here = checkpointer.results();
        for test in self.finished.iter().filter(|test| !here.contains(&test.number)) {
            checkpointer.record(test.number, &test.text);
        }
    }

    /// A test may have gone on from storage, as another run: so have all ranks then, those that had no part in it included. All
    /// ranks together, by the word of one that had.
    pub fn follow(&self, teller: usize) {
        if self.level2.is_some() {
            self.run.set(told_by(self.comm, teller, self.run.get()));
        }
    }

    /// When the position's memory was last worked on, if it is here.
    fn last_sign_of_life(&self, position: usize) -> Option<f64> {
        let region = self.depot.peek(position as u32, Part::Head).ok()?;
        let progress = Head::new(region).ok()?.progress();
        (progress.worked_unix_ms > 0).then_some(progress.worked_unix_ms as f64 / 1e3)
    }
}

fn max(context: &Context, value: u64) -> u64 {
    let mut value = [value];
    context.grid.all_reduce(&mut value, Reduce::Max);
    value[0]
}
