//! Checkpoint observer of a protected test: saves at boundaries, shows heartbeats, and obeys requests to stop.
//!
//! The solver reports its progress to the observer; on dedicated checksum ranks, `dedicated` does so. The observer passes all
//! reports on to a second observer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::account::Account;
use super::signals;
use crate::base::clock::Instant;
use crate::base::faults::{Point, hit};
use crate::base::outcome;
use crate::base::terminal::say;
use crate::base::threads::Pool;
use crate::base::timeline::What;
use crate::checkpoint::mpi::{Group, Positions};
use crate::checkpoint::{Checkpointer, Renamed, World};
use crate::driver::{level2, signs};
use crate::lu::{Event, Halt, Milestone, Observer, unix_seconds};
use crate::shm::Part;
use crate::shm::header::Doing;

/// Message of the computing ranks to the dedicated ranks that the test proceeds: before the first iteration, after the solution,
/// and at the end.
pub(super) const WELL: u64 = 0;
/// Message of the computing ranks to the dedicated ranks that the test could not begin.
pub(super) const CANNOT: u64 = 1;

/// Observer of a protected test: saves at boundaries, shows heartbeats, and obeys requests to stop.
pub(super) struct CheckpointObserver<'w, O> {
    pub(super) checkpointer: Checkpointer<Positions, Group>,
    pub(super) whose: Whose<'w>,
    pub(super) account: Account,
    /// Account of level two from earlier starts of the test; `None` if there is none.
    pub(super) earlier: Option<outcome::Level2>,
    /// True if the save of a requested stop was written to storage; `None` before a stop, or without level two.
    pub(super) stored: Option<bool>,
    pub(super) watcher: &'w mut O,
    stop: bool,
    /// Time of the last check that the names of this position's shared memory still exist.
    looked: Instant,
    /// Last warning about removed names of shared memory, and the time of the warning.
    said: Option<(Renamed, Instant)>,
}

/// Time between two checks that the names of shared memory still exist. If a name is missing for some time, an agent takes the
/// rank for lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two warnings about the same problem.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Facts about a position and its test, for the checkpoint observer.
pub(super) struct Whose<'w> {
    pub(super) position: usize,
    pub(super) host: &'w str,
    /// Number of doubles of the local matrix in this process's memory; 0 if a device has the matrix, or if the rank has none.
    pub(super) len: usize,
    pub(super) blocks: usize,
    /// True if dedicated checksum ranks wait for messages about the test.
    pub(super) others_wait: bool,
    /// True if this rank's small state is part of the checkpoint.
    pub(super) has_state: bool,
    /// Last test of which this rank has saved a checkpoint; `None` if there is none.
    pub(super) saved: &'w mut Option<usize>,
    /// Number of the observed test.
    pub(super) test: usize,
}

impl<'w, O: Observer> CheckpointObserver<'w, O> {
    pub(super) fn new(
        checkpointer: Checkpointer<Positions, Group>,
        account: Account,
        watcher: &'w mut O,
        whose: Whose<'w>,
    ) -> Self {
        Self {
            checkpointer,
            whose,
            earlier: account.told.level2,
            account,
            stored: None,
            watcher,
            stop: false,
            looked: Instant::now(),
            said: None,
        }
    }

    /// Sends message `word` to the dedicated checksum ranks, if there are any. Collective call of all ranks of the grid.
    pub(super) fn tell(&self, word: u64) {
        if self.whose.others_wait {
            self.checkpointer.world().first_says(word);
        }
    }

    /// Records that this rank has reached a milestone.
    pub(super) fn note(&mut self, milestone: Milestone) {
        let (point, doing) = signs::words(milestone);
        self.checkpointer.tick(doing, 0);
        hit(point, self.whose.position);
        if milestone == Milestone::Factored {
            let at_s = self.account.elapsed();
            self.account.way.pass(self.whose.blocks, self.whose.blocks, at_s);
        }
    }

    /// Checks the names of this position's shared memory, restores removed names, and warns. A problem that remains is reported
    /// once a minute. `frozen` is true at a boundary, where the matrix does not change.
    fn look_after_names(&mut self, frozen: bool) {
        self.looked = Instant::now();
        let Some(found) = self.checkpointer.look_after_names(frozen) else { return };
        // A problem that cannot be solved, or that must wait for a save, is found again at each check.
        let known = self.said.as_ref().is_some_and(|(before, at)| {
            let same = *before == found
                || found.later == found.missing
                    && found.later.iter().all(|part| before.later.contains(part));
            same && at.elapsed() < SAY_EVERY
        });
        if known {
            return;
        }
        self.said = Some((found.clone(), self.looked));
        let names: Vec<&str> = found.missing.iter().map(|part| part.name()).collect();
        let what = format!(
            "position {} on {}: names of its shared memory were removed from outside ({})",
            self.whose.position,
            self.whose.host,
            names.join(", ")
        );
        if let Some(why) = found.trouble {
            return say(format_args!(
                "WARNING: {what}, and could not be restored: {why}. This position is NOT PROTECTED: its \
                 data is lost if its process dies"
            ));
        }
        let read: Vec<&str> =
            found.later.iter().filter(|part| **part != Part::A).map(|part| part.name()).collect();
        let mut when = String::new();
        if !read.is_empty() {
            when +=
                &format!("; the names of {} follow when their data is on storage", read.join(", "));
        }
        if found.later.contains(&Part::A) {
            when += "; the name of the matrix follows at the next save";
        }
        if when.is_empty() {
            when += "; the run is protected as before";
        }
        say(format_args!("{what}; names restored{when}"));
    }
}

impl<O: Observer> Observer for CheckpointObserver<'_, O> {
    fn drains(&mut self, k: usize) -> bool {
        self.stop = signals::STOP_NOW.load(Ordering::Relaxed);
        self.checkpointer.due(k, self.stop)
    }

    fn boundary(&mut self, k: usize, a: *mut f64, pool: &mut Pool) -> Halt {
        self.look_after_names(true);
        self.account.saved_unix_s = unix_seconds();
        self.account.told.saves += 1;
        // The save is recorded before it begins, for a run that resumes from it. Its duration is not known yet.
        let at_s = self.account.saved_unix_s - self.account.began_unix_s;
        self.account.way.interrupt(What::Save, k, at_s, 0.0);
        self.account.told.level2 = level2::account(self.earlier, self.checkpointer.tally());
        self.account.unstored = self.checkpointer.unstored();
        let state = if self.whose.has_state {
            serde_json::to_vec(&self.account).expect("plain values have a JSON form")
        } else {
            Vec::new()
        };
        // SAFETY: the whole local matrix, which the factorisation does not touch at a boundary.
        let a = unsafe { std::slice::from_raw_parts_mut(a, self.whose.len) };
        let report = self.checkpointer.save(k, a, &state, pool);
        *self.whose.saved = Some(self.whose.test);
        self.account.told.save_s += report.seconds;
        self.account.way.took(report.seconds);
        let stop = self.stop || signals::STOP_AFTER_SAVE.load(Ordering::Relaxed);
        match self.checkpointer.world().first_says(u64::from(stop)) {
            0 => Halt::GoOn,
            _ => {
                self.stored = self.checkpointer.store_now();
                Halt::Stop
            }
        }
    }

    fn observe(&mut self, event: Event) {
        match event {
            Event::Began { unix_s } => {
                self.tell(WELL);
                self.account.began_unix_s = unix_s;
            }
            Event::Reached(milestone) => {
                if milestone == Milestone::Solved {
                    self.tell(WELL);
                }
                self.note(milestone);
            }
            Event::Iteration { k, blocks, .. } => {
                let at_s = self.account.elapsed();
                self.account.way.pass(k, blocks, at_s);
                if self.looked.elapsed() > LOOK_EVERY {
                    self.look_after_names(false);
                }
                self.checkpointer.tick(Doing::Computing, k);
                hit(Point::Iteration, self.whose.position);
            }
            Event::Multiplied { seconds, flops } => self.checkpointer.worked(seconds, flops),
            Event::Rebuilt { .. } | Event::Solved(_) => {}
        }
        self.watcher.observe(event);
    }
}
