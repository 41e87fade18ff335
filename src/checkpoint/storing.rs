//! Writing of checkpoints to storage, in step on all ranks. This is the part of level two that communicates.
//!
//! `save` calls this at boundaries and after commits, and `disk` for each of its saves. `level2` describes which ranks write
//! which files, and when. Either all ranks are writing a checkpoint, or none is.

use super::helper::{State, TIMEOUT, Task};
use super::io_request::Write;
use super::level2::{AT_ONCE, LOOK, Level2, SAVE, SETTLES, STORE};
use super::save::Checkpointer;
use super::when::Scheduler;
use super::world::World;
use crate::base::clock::Instant;
use crate::base::faults::{Point, hit};
use crate::base::outcome;
use crate::base::terminal::say;
use crate::checkpoint::storage::writing::{Over, Stopped};
use crate::checkpoint::storage::{About, Check, DirScope};
use crate::parity::GroupComm;
use crate::shm::header::{Doing, Identity};

impl Level2 {
    /// Starts to write the manifests of the checkpoint in `flight`, once all its files are complete. Collective call.
    fn conclude(&mut self, world: &impl World) {
        let (about, task) = self.flight.take().expect("all ranks have one");
        let began = task.began;
        let mine = task.end().unwrap_or(0);
        let dir_scope = self.storage.dir_scope;
        // If each node has its own DIR, no single manifest has the sizes of all files. Method disk writes only parts of its
        // files.
        let apart = dir_scope == DirScope::Node || self.alone.is_some();
        let all = apart.then(|| world.gather(&mine).into_iter().sum::<u64>());
        if !self.lists.is_empty() {
            self.believed.push(about.clone());
            let stays = self.alone.and_then(|alone| alone.last).map(|last| last.key);
            let positions = self.lists.clone();
            let of = about.clone();
            let task = self.send(move |checkpoint_dir, _, flow| {
                let listed = checkpoint_dir.conclude(&of, dir_scope, &positions, stays, flow)?;
                Ok(all.unwrap_or(listed))
            });
            self.manifest = Some((about, began, task));
        }
    }

    /// Cancels the checkpoint that is being written. With `trouble`, the reason is a failure on some rank, and rank 0 reports it.
    /// Without `trouble`, a later checkpoint replaces the cancelled checkpoint. Collective call.
    fn call_off(&mut self, world: &impl World, trouble: bool) {
        let (about, mut task) = self.flight.take().expect("all ranks have one");
        let is_stuck = task.state() == State::Lost && !task.is_over();
        let mut why = is_stuck.then(|| "its helper is stuck".to_owned());
        task.give_up();
        if task.is_over() {
            match task.end() {
                // Other ranks may need the room. A helper removes the file, because that may take time.
                Ok(_) => {
                    let key = about.key();
                    let mut task = self.send(move |checkpoint_dir, position, _| {
                        hit(Point::PruneHalf, position as usize);
                        checkpoint_dir.withdraw(key, position);
                        Ok(0)
                    });
                    if self.stops_ranks() {
                        task.wait();
                    }
                    self.leaving.push(task);
                }
                Err(Stopped::GivenUp) => {}
                Err(Stopped::Failed(text)) => why = Some(text),
            }
        } else {
            self.stuck.push(task);
        }
        if trouble {
            self.untidy = true;
            let why = world.troubles(why);
            if world.rank() == 0 {
                self.tell(&about, &why.unwrap_or_default());
            }
        }
    }

    /// Waits until the checkpoint that is being written and its manifests are complete, or some write fails. Returns true if all
    /// files and manifests are complete. Collective call.
    pub(super) fn await_flight(&mut self, world: &impl World) -> bool {
        let (_, task) = self.flight.as_mut().expect("all ranks have one");
        // This wait may take any time, so the loss of a rank must end it.
        let mine = task.wait_and(|| world.attend());
        let files = world.least(&[mine as u64])[0] == State::Done as u64;
        if files {
            self.conclude(world);
        } else {
            self.call_off(world, true);
        }
        let mut whole = files;
        if files && let Some((.., task)) = &mut self.manifest {
            task.wait_and(|| world.attend());
            let before = self.tally.checkpoints;
            self.note_manifest();
            whole = self.tally.checkpoints > before;
        }
        // A single manifest shows that all files are complete. But this manifest may be lost with its node, and the next save of
        // method disk overwrites an older checkpoint. So a checkpoint counts only if all manifests are written.
        world.all(whole)
    }
}

impl<W: World, G: GroupComm> Checkpointer<W, G> {
    /// Statistics of level two so far, complete only at position 0. None without level two.
    pub fn tally(&self) -> Option<outcome::Level2> {
        self.level2.as_ref().map(|level2| level2.tally)
    }

    /// Acts on the bits `told`, which rank 0 broadcast at a boundary. Returns true if a save that is due can be made now, and
    /// false if the save is postponed. Collective call.
    pub(super) fn attend(&mut self, told: u64) -> bool {
        let Some(level2) = &mut self.level2 else { return true };
        level2.begin_next = told & STORE != 0;
        if told & (SAVE | LOOK) == 0 {
            return true;
        }
        let Some((_, task)) = &mut level2.flight else { return true };
        let worst = self.world.least(&[task.state() as u64])[0];
        if worst == State::Done as u64 {
            level2.conclude(&self.world);
        } else if worst == State::Lost as u64 {
            level2.call_off(&self.world, true);
        } else if told & AT_ONCE != 0 {
            // The checkpoint of the stop replaces the one that is being written.
            level2.call_off(&self.world, false);
        } else if told & SAVE != 0 {
            level2.put_off_since.get_or_insert_with(Instant::now);
            return false;
        }
        true
    }

    /// Returns true if this rank does the work that must be done once for each DIR, such as writing manifests.
    pub fn speaks_for_dir(&self) -> bool {
        self.level2.as_ref().is_some_and(|level2| !level2.lists.is_empty())
    }

    /// Returns the seconds of computing and the number of saves since a checkpoint last went to storage. The number includes a
    /// save that is made now. Returns zeros without level two.
    pub fn unstored(&self) -> (f64, usize) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.level2.as_ref().map_or((0.0, 0), |l| l.scheduler.since(l.saves + 1, seconds))
    }

    /// Sets the seconds and the number of saves from which [`Self::unstored`] counts on, as an earlier attempt has saved them.
    /// Otherwise no checkpoint would go to storage if each attempt is shorter than the interval between checkpoints on storage.
    pub fn count_on(&mut self, unstored: (f64, usize)) {
        let (seconds, saves) = unstored;
        if let Some(level2) = &mut self.level2 {
            level2.scheduler = Scheduler::new(level2.storage.every, 0, -seconds);
            level2.saves = saves;
        }
    }

    /// Starts to write the committed checkpoint to storage, if rank 0 requested that. Returns the seconds for which the ranks
    /// stopped; zero if helpers write or nothing is due.
    pub(super) fn begin_if_due(&mut self) -> f64 {
        let Some(level2) = &mut self.level2 else { return 0.0 };
        if !level2.saved() {
            return 0.0;
        }
        self.begin_committed();
        if !self.level2.as_ref().expect("as above").stops_ranks() {
            return 0.0;
        }
        let waiting = Instant::now();
        self.bring();
        let waited = waiting.elapsed().as_secs_f64();
        let level2 = self.level2.as_mut().expect("as above");
        level2.tally.wait_s += waited;
        // Only time with computation counts from one checkpoint to the next on storage.
        level2.scheduler.saved(level2.saves, self.started.elapsed().as_secs_f64(), 0.0, 0.0);
        waited
    }

    /// Waits until the committed checkpoint, which is being written, is on storage with all its manifests. Returns false if a
    /// write failed. Collective call.
    fn bring(&mut self) -> bool {
        let level2 = self.level2.as_mut().expect("a checkpoint was on its way");
        let whole = level2.await_flight(&self.world);
        level2.brought = self.header.claim.base.filter(|_| whole);
        whole
    }

    /// Starts a helper that writes the committed checkpoint to a new file on storage.
    pub(super) fn begin_committed(&mut self) {
        let seconds = self.started.elapsed().as_secs_f64();
        let level2 = self.level2.as_mut().expect("somebody asked for it");
        level2.scheduler.saved(level2.saves, seconds, 0.0, 0.0);
        let base = self.header.claim.base.expect("only committed checkpoints are stored");
        let about = level2.about(&self.header.id, base, self.header.base.boundary);
        self.begin(about, None);
    }

    /// Starts a helper that writes this position's part of checkpoint `about` from memory to storage, to a new file or over the
    /// old file `over`. While another helper is stuck, the write fails at once.
    pub(super) fn begin(&mut self, about: About, over: Option<Over>) {
        let level2 = self.level2.as_mut().expect("as above");
        for mut task in std::mem::take(&mut level2.leaving) {
            match task.state() {
                State::AtWork => level2.leaving.push(task),
                _ => level2.stuck.push(task),
            }
        }
        level2.stuck.iter().for_each(|task| task.settle(SETTLES));
        level2.stuck.retain(|task| !task.is_over());
        let idle =
            level2.stuck.is_empty() && level2.leaving.is_empty() && level2.manifest.is_none();
        // Method disk has made room before. It keeps only the last checkpoint and the one that it overwrites.
        if idle && level2.alone.is_none() {
            let next = Some(about.key());
            level2.settle(TIMEOUT, &self.header.id, None, next, || self.world.attend());
            level2.stuck.retain(|task| !task.is_over());
        }
        let buffers = self.holding.buffers;
        let id = &self.header.id;
        // If nodes share DIR, no file is lost with a node, and the parity is not written.
        let check = (!level2.is_shared()).then(|| {
            let words = buffers.checksum_words() as u64;
            let (members, losses) = (id.members.clone(), id.losses.into());
            let Identity { group, code, layout, .. } = *id;
            Check { group, members, losses, code, layout, words }
        });
        let nothing = check.is_none() && id.position as usize >= self.layout.working();
        let (memory_store, claim) = (self.hold.memory_store.clone(), self.header.claim);
        let write = Write { memory_store, about: about.clone(), claim, buffers, check, over };
        let task = if !level2.stuck.is_empty() {
            // While a helper is stuck, a further helper would get stuck, too.
            Task::failed("the helper that writes an earlier checkpoint is still stuck")
        } else if nothing {
            Task::start(|_| Ok(0))
        } else {
            level2.send(move |checkpoint_dir, position, flow| {
                write.run_at(checkpoint_dir, position, flow)
            })
        };
        level2.flight = Some((about, task));
    }

    /// Writes the checkpoint in memory to storage before the run stops, and waits for it. Collective call, right after a save.
    /// Returns true if the checkpoint is complete on storage. Returns false if the write failed, which rank 0 has reported.
    /// Returns None without level two.
    pub fn store_now(&mut self) -> Option<bool> {
        self.finish_save();
        let level2 = self.level2.as_mut()?;
        if let Some(alone) = level2.alone {
            // The save itself has written the checkpoint, or failed to.
            return Some(alone.arrived);
        }
        let waiting = Instant::now();
        let boundary = self.header.base.boundary as usize;
        self.holding.head.tick(Doing::Saving, boundary as u64);
        if let Some((.., task)) = &mut level2.manifest {
            task.wait_and(|| self.world.attend());
        }
        level2.note_manifest();
        // Without helpers, the save may have written the checkpoint already.
        let there = level2.brought.is_some() && level2.brought == self.header.claim.base;
        if !there && level2.flight.is_none() {
            // A helper that was cancelled for the stop may be in a slow write, or may be removing its file, whose room is needed.
            // The wait costs nothing: ranks have nothing else to do.
            for task in level2.stuck.iter_mut().chain(&mut level2.leaving) {
                task.wait_and(|| self.world.attend());
            }
            self.begin_committed();
        }
        let whole = there || self.bring();
        let level2 = self.level2.as_mut().expect("as above");
        level2.tally.wait_s += waiting.elapsed().as_secs_f64();
        if whole && self.world.rank() == 0 {
            say(format_args!(
                "the checkpoint of boundary {boundary} is on storage, in {}",
                level2.storage.checkpoint_dir.dir().display()
            ));
        }
        Some(whole)
    }

    /// Ends level two at the end of a test. Unfinished writes are no longer needed.
    pub fn end_level2(&mut self) {
        if let Some(level2) = &mut self.level2 {
            // A loss of a rank must end the wait.
            level2.end(|| self.world.attend());
        }
    }
}
