//! Level two: helpers write a checkpoint that is committed in memory to storage, while the ranks compute.
//!
//! From a commit until the next save copies the matrix, the checkpoint and its small state do not change. So a helper of each
//! rank streams the checkpoint out of persistent shared memory, without a copy and without stopping the rank. When all files are
//! complete, the helper of position 0 checks the files, writes the manifest and removes older checkpoints. Rank 0 tells all ranks
//! when to begin a write and when to check the helpers. At a check, a reduction shows whether all helpers are done.
//!
//! If each node has a DIR of its own, the files include the parity from memory. The parity does not change during this time
//! either. It serves to rebuild files that are lost with their node. The first position of each DIR writes a manifest of the
//! files in this DIR, once all files on all nodes are complete. Dedicated checksum ranks write their parity to such a DIR. They
//! write nothing to a shared DIR, but take part in the agreements.
//!
//! *If the next save is due while helpers are writing, the save is postponed, and the ranks keep computing*, boundary by
//! boundary. Waiting would stop all ranks until the write has ended. Cancelling the write would mean that storage slower than the
//! interval never gets a checkpoint. The price is that the last save in memory gets older meanwhile, which is reported. If a
//! helper fails, or makes no progress for a minute, the checkpoint is cancelled on all ranks.
//!
//! *Without helpers* (`--helpers off`) the ranks stop after the commit until the checkpoint is on storage, including its
//! manifest. No save is postponed. The same threads write, so that hanging storage blocks no rank, but they never write while a
//! rank computes.
//!
//! Method disk has no level one: each save goes to storage, and ranks wait for it (`disk`).

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

pub use super::helper::TIMEOUT;
use super::helper::{State, Task};
use super::plan::{Buffers, Committed, Helpers};
use super::when::{Interval, Scheduler};
use super::world::World;
use crate::base::clock::Instant;
use crate::base::outcome;
use crate::base::terminal::say;
use crate::checkpoint::storage::checkpoint_dir::Claimed;
use crate::checkpoint::storage::names::Key;
use crate::checkpoint::storage::writing::{Flow, Stopped};
use crate::checkpoint::storage::{About, CheckpointDir, Counting, DirScope, FORMAT};
use crate::shm::Part;
use crate::shm::header::{CheckpointId, Identity};

/// Level two of one rank at the start of a test: the checkpoint directory, the settings, and the checkpoints found on storage.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Checkpoint directory of this rank.
    pub checkpoint_dir: CheckpointDir,
    pub dir_scope: DirScope,
    /// Directory id: equal on all ranks whose DIR is the same directory.
    pub dir_id: u64,
    /// Interval between checkpoints on storage, in saves or seconds. If it is in seconds, the first save after this time goes to
    /// storage.
    pub every: Interval,
    /// Determines whether ranks compute while helpers write.
    pub helpers: Helpers,
    /// Description of the solver's arithmetic: the engine and the device, on which the last bits of this run's results depend.
    pub arithmetic: String,
    /// Checkpoints on storage from which this test can resume, the best first; the same on every rank.
    pub stored: Vec<About>,
    /// Error texts about files on storage that cannot be trusted; the same on every rank.
    pub damaged: Vec<String>,
    /// All checkpoints that are complete on storage according to a manifest on any node; the same on every rank.
    pub whole: Vec<About>,
    /// Results of finished tests that are valid on storage. None after the clean-up of DIR, which removes all other results.
    pub results: Option<Counting>,
    /// Id that the run gets if it resumes from storage; greater than any id found. All ranks use rank 0's id.
    pub fresh_run: u128,
    /// True in an in-place attempt, after the loss of ranks of this launch; the same on every rank.
    pub in_place: bool,
    /// True if the run may resume from storage, but must not write there; the same on every rank.
    pub read_only: bool,
}

/// Default time in seconds between checkpoints on storage. Storage is needed only if too much memory is lost. Such a loss is
/// rare, and costs up to about this time of work.
pub const EVERY_DEFAULT_S: f64 = 3600.0;

/// Bit in the number that rank 0 broadcasts at a boundary: a save is due.
pub(super) const SAVE: u64 = 1;
/// Bit in rank 0's broadcast at a boundary: the save that is due precedes a stop of the run and must not be postponed.
pub(super) const AT_ONCE: u64 = 2;
/// Bit in rank 0's broadcast at a boundary: all ranks check their helpers that write to storage.
pub(super) const LOOK: u64 = 4;
/// Bit in rank 0's broadcast at a boundary: the checkpoint of the next save goes to storage when it is committed.
pub(super) const STORE: u64 = 8;
/// Bit in rank 0's broadcast at a boundary: all ranks check their helpers that encode.
pub(super) const ENCODED: u64 = 16;

/// Returns the directory id of each position: the first position that uses the same DIR. Collective call.
pub(super) fn dir_ids(world: &impl World, storage: &Storage) -> Vec<usize> {
    match storage.dir_scope {
        DirScope::Shared => vec![0; world.size()],
        DirScope::Node => {
            let all = world.gather(&storage.dir_id);
            let mut firsts = HashMap::new();
            let first = |(rank, dir_id)| *firsts.entry(dir_id).or_insert(rank);
            all.iter().enumerate().map(first).collect()
        }
    }
}

/// State of level two on one rank.
pub(super) struct Level2 {
    pub(super) storage: Storage,
    /// Position of this rank.
    position: u32,
    /// Positions whose files this rank lists in a manifest. The first position of a DIR lists all positions that write to this
    /// DIR. Any other position lists none and writes no manifest.
    pub(super) lists: Vec<u32>,
    /// Schedule of the checkpoints on storage, in saves or seconds.
    pub(super) scheduler: Scheduler,
    pub(super) saves: usize,
    pub(super) begin_next: bool,
    /// Checkpoint that is being written to storage, with the helper that writes this rank's file. Either all ranks have one, or
    /// none has.
    pub(super) flight: Option<(About, Task<u64>)>,
    /// Manifest that is being written: its checkpoint, the time at which the write of the checkpoint began, and the helper.
    /// Always None on ranks that write no manifest.
    pub(super) manifest: Option<(About, Instant, Task<u64>)>,
    /// Checkpoints that are complete according to a manifest on any node, as far as this rank knows. They stay on storage until a
    /// later checkpoint is complete.
    pub(super) believed: Vec<About>,
    /// True if DIR needs a clean-up: at the start of a test, and after a failed write, which may have left files.
    pub(super) untidy: bool,
    /// Checkpoint on storage from which the run resumes, until all other checkpoints in DIR have been cleaned up.
    from: Option<About>,
    /// Last checkpoint that is on storage and for whose write the ranks have waited, either without helpers or before a stop.
    pub(super) brought: Option<CheckpointId>,
    /// Cancelled helpers that have not ended yet, of this `Level2` or of an earlier `Level2` of this process.
    pub(super) stuck: Vec<Task<u64>>,
    /// Helpers that remove this rank's files of cancelled checkpoints.
    pub(super) leaving: Vec<Task<u64>>,
    /// Time since which a save has been postponed. None if no save is postponed.
    pub(super) put_off_since: Option<Instant>,
    /// Time of the last warning about storage, which limits how often the warning is repeated. None if a checkpoint has reached
    /// storage since the warning.
    said: Option<Instant>,
    /// Checkpoints of method disk. None with other methods, which have their checkpoints in memory.
    pub(super) alone: Option<Alone>,
    /// Statistics of level two in this process. They are complete only at position 0.
    pub(super) tally: outcome::Level2,
}

/// Checkpoints of method disk, which has none in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Alone {
    /// Last complete checkpoint, from which the run resumes after a failure.
    pub(super) last: Option<Place>,
    /// Checkpoint before `last`. The next save overwrites those parts of its files that differ from the matrix.
    pub(super) spare: Option<Place>,
    /// Greatest number of a save that was begun, whether or not the save succeeded. No number is used twice, so a stuck helper
    /// cannot write to a later checkpoint.
    pub(super) tried: u64,
    /// True if the last save succeeded.
    pub(super) arrived: bool,
}

/// Checkpoint of method disk on storage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) key: Key,
    /// Boundary of the checkpoint. None if its files come from other ranks or groups and cannot be overwritten in place.
    pub(super) boundary: Option<usize>,
}

impl Level2 {
    /// Prepares level two of position `me`. `alone` means that memory has no checkpoint (method disk). The first `working`
    /// positions have a part of the matrix.
    pub(super) fn new(
        storage: Storage,
        dir_ids: &[usize],
        working: usize,
        me: usize,
        alone: bool,
    ) -> Self {
        let scheduler = Scheduler::new(storage.every, 0, 0.0);
        let waited = storage.helpers == Helpers::Off;
        let writes = |position: usize| storage.dir_scope == DirScope::Node || position < working;
        let here = dir_ids.iter().enumerate().filter(|(_, dir_id)| **dir_id == me);
        let lists = here.map(|(position, _)| position).filter(|&position| writes(position));
        let lists = lists.map(|position| position as u32).collect();
        let stuck = left_at(&storage.checkpoint_dir);
        let believed = storage.whole.clone();
        Self {
            storage,
            position: me as u32,
            lists,
            scheduler,
            saves: 0,
            begin_next: false,
            flight: None,
            manifest: None,
            believed,
            untidy: true,
            from: None,
            brought: None,
            stuck,
            leaving: Vec::new(),
            put_off_since: None,
            said: None,
            alone: alone.then(Alone::default),
            tally: outcome::Level2 { alone, waited, ..outcome::Level2::default() },
        }
    }

    pub(super) fn about(&self, id: &Identity, checkpoint: CheckpointId, boundary: u64) -> About {
        About {
            format: FORMAT,
            run: id.run,
            test: id.test,
            checkpoint: checkpoint.number,
            made: checkpoint.made,
            boundary,
            n: id.n,
            nb: id.nb,
            p: id.p,
            q: id.q,
            mapping: id.mapping,
            rng: id.rng,
            seed: id.seed,
            params_digest: id.params_digest,
            arithmetic: self.storage.arithmetic.clone(),
            state_bytes: id.state_bytes,
        }
    }

    /// Ends level two. Cancels a checkpoint that is being written. Waits for a manifest that is being written, which also removes
    /// older checkpoints, and for the removal of failed checkpoints. Each wait lasts as long as the helper makes progress.
    pub(super) fn end(&mut self, attend: impl Fn()) {
        // Tasks stay in their fields during the wait: if the rank stops its work because a rank is lost, dropping `self` handles
        // them.
        if let Some((_, task)) = &mut self.flight {
            task.give_up();
            task.wait_and(&attend);
        }
        self.stuck.extend(self.flight.take().map(|(_, task)| task));
        if let Some((.., task)) = &mut self.manifest {
            // This task must not run while later code removes or reads these files.
            task.wait_and(&attend);
        }
        self.note_manifest();
        for task in &mut self.leaving {
            task.wait_and(&attend);
        }
    }

    /// Returns the bits [`LOOK`] and [`STORE`] that rank 0 broadcasts at a boundary after `seconds` of computing. `save` is true
    /// if a save is due.
    pub(super) fn wishes(&mut self, save: bool, seconds: f64) -> u64 {
        self.note_manifest();
        let look = self.flight.as_mut().is_some_and(|(_, task)| task.state() != State::AtWork);
        let mut wishes = if look { LOOK } else { 0 };
        let free = self.flight.is_none() && self.manifest.is_none();
        if save && free && self.scheduler.due(self.saves + 1, seconds, 0.0) {
            wishes |= STORE;
        }
        wishes
    }

    /// Checks the helper that writes a manifest. If the helper has ended or is stuck, records the result, and warns of a failure.
    pub(super) fn note_manifest(&mut self) {
        let over = |of: &mut (About, Instant, Task<u64>)| of.2.state() != State::AtWork;
        let Some((about, began, task)) = self.manifest.take_if(over) else { return };
        if !task.is_over() {
            task.give_up();
            let why = task.stands_still();
            self.stuck.push(task);
            return self.tell(&about, &why);
        }
        let key = about.key();
        match task.end() {
            Ok(bytes) => {
                self.tally.checkpoints += 1;
                self.tally.bytes += bytes;
                self.tally.write_s += began.elapsed().as_secs_f64();
                self.said = None;
                // The helper has removed older checkpoints.
                self.believed.retain(|known| known.key() >= key);
            }
            Err(why) => {
                // If nodes have their own DIRs, another DIR may have a manifest of this checkpoint. In this DIR the manifest may
                // exist, too, if only the removal of older checkpoints failed.
                if self.is_shared() {
                    self.believed.retain(|known| known.key() != key);
                }
                self.untidy = true;
                self.tell(&about, &why.to_string());
            }
        }
    }

    /// Warns that checkpoint `about` did not reach storage, and why. Prints at most one such warning in ten minutes, unless a
    /// checkpoint has reached storage since the last warning.
    pub(super) fn tell(&mut self, about: &About, why: &str) {
        if self.said.is_some_and(|at| at.elapsed() < SAY_EVERY) {
            return;
        }
        self.said = Some(Instant::now());
        let protected = match self.alone {
            None => "protected in memory; complete checkpoints stay on storage",
            Some(Alone { last: Some(_), .. }) => {
                "protected by the previous checkpoint, which stays on storage (--method disk keeps no checkpoint in memory)"
            }
            Some(_) => {
                "NOT PROTECTED: --method disk keeps no checkpoint in memory, and none is complete on storage yet"
            }
        };
        say(format_args!(
            "the checkpoint of boundary {} could not be written to {}: {why}. The run continues, {protected}. \
             Later checkpoints will be written there if possible",
            about.boundary,
            self.storage.checkpoint_dir.dir().display(),
        ));
    }

    /// Makes room for the next checkpoint, on ranks that write manifests: invalidates checkpoint `over`, which will be
    /// overwritten, and removes all others except `keep`, from which the run would resume. Waits until the removal ends, or makes
    /// no progress for a minute.
    pub(super) fn make_room(&mut self, keep: Option<Key>, over: Option<Key>) {
        if !self.lists.is_empty() {
            let keep: Vec<Key> = keep.into_iter().chain(over).collect();
            let request = self.send(move |checkpoint_dir, position, flow| {
                if let Some(over) = over {
                    checkpoint_dir.give_up(over, position as usize)?;
                }
                checkpoint_dir.prune_but(&keep, position as usize, flow).map(|()| 0)
            });
            // The request is cancelled after the wait, because a late removal could remove the next checkpoint.
            self.wait_for(request, TIMEOUT, || {});
        }
    }

    /// Claims DIR for this start and cleans it. Does nothing on ranks that write no manifest, if DIR is clean, or while a helper
    /// is stuck. Removes incomplete checkpoints, except checkpoints that are complete on another node, and except `next`, which
    /// other ranks may already be writing. Removes results that are not valid. If each node has its own DIR, lists this node's
    /// files of checkpoint `from` in a manifest. The run resumes from `from`; without `from`, lists the files of the best
    /// checkpoint of this test. At the end removes complete but outdated checkpoints, so that DIR needs room for two checkpoints
    /// only. Method disk overwrites its two checkpoints in turn, so both stay.
    ///
    /// This rank must not be writing to storage. Waits until the clean-up has ended, or has made no progress for `timeout`.
    pub(super) fn settle(
        &mut self,
        timeout: Duration,
        id: &Identity,
        from: Option<&About>,
        next: Option<Key>,
        attend: impl Fn(),
    ) {
        self.from = from.cloned().or(self.from.take());
        self.stuck.retain(|task| !task.is_over());
        // While a helper is stuck, a further helper would get stuck, too.
        if !self.untidy || self.lists.is_empty() || !self.stuck.is_empty() {
            return;
        }
        let (from, whole, own) = (self.from.clone(), self.believed.clone(), !self.is_shared());
        // Method disk needs both of its checkpoints.
        let two = self.alone.is_some();
        let results = self.storage.results.clone();
        let (run, test) = (id.run, id.test);
        let request = self.send(move |checkpoint_dir, position, flow| {
            let who = position as usize;
            // Files are removed first, because the claim file needs room.
            let keep: Vec<Key> = whole.iter().map(About::key).chain(next).collect();
            checkpoint_dir.tidy(&keep, who, flow)?;
            let claimed = checkpoint_dir.claim()?;
            // Results that this launch itself has written stay valid.
            if let Some(counting) = &results
                && (counting.first || claimed == Claimed::Now)
            {
                checkpoint_dir.keep_results(&counting.results, flow)?;
            }
            if own {
                let of_test = whole.iter().filter(|about| about.test == test);
                let furthest = of_test.max_by_key(|about| about.worth(run));
                if let Some(about) = from.as_ref().or(furthest) {
                    checkpoint_dir.list_too(about, flow)?;
                }
            }
            match &from {
                _ if two => {}
                Some(from) => checkpoint_dir.outdate_but(from.key(), run, who, flow)?,
                None => checkpoint_dir.outdate(&whole, run, who, flow)?,
            }
            Ok(0)
        });
        let done = self.wait_for(request, timeout, attend) == State::Done;
        // If this clean-up was interrupted, the next checkpoint begins with another one.
        self.untidy = !done;
        if done {
            self.from = None;
            // From now on, results on storage are this launch's own.
            self.storage.results = None;
        }
    }

    /// Cleans DIR at the start of a test, once no rank can refuse the test any more. If the run resumes from checkpoint `from` on
    /// storage, the clean-up precedes the first save. After that save, a start would resume from memory, and would not find out
    /// which files are unreadable.
    pub(super) fn settle_first(&mut self, id: &Identity, from: Option<&About>, attend: impl Fn()) {
        self.settle(self.timeout_at_start(), id, from, None, attend);
    }

    fn timeout_at_start(&self) -> Duration {
        if self.storage.in_place { MOVES } else { TIMEOUT }
    }

    /// Records in DIR that this start resumes from checkpoint `key`. Returns the number of earlier starts that resumed from
    /// `key`; zero if the number cannot be read. On ranks that write no manifest, records nothing and returns zero.
    pub(super) fn set_out(&mut self, key: Key, attend: impl Fn()) -> u32 {
        if self.lists.is_empty() {
            return 0;
        }
        let request =
            self.send(move |checkpoint_dir, _, _| Ok(checkpoint_dir.set_out_from(key).into()));
        self.wait_for(request, self.timeout_at_start(), attend);
        let told = self.stuck.pop_if(|task| task.is_over()).and_then(|task| task.end().ok());
        told.map_or(0, |before| u32::try_from(before).unwrap_or(u32::MAX))
    }

    /// Waits until the helper of `task` ends, or makes no progress for `timeout`. Then cancels the task, and returns its state.
    /// The task is the last entry of `stuck` during the wait and afterwards. So no task is forgotten if a loss makes this rank
    /// stop its work.
    fn wait_for(&mut self, task: Task<u64>, timeout: Duration, attend: impl Fn()) -> State {
        self.stuck.push(task.within(timeout));
        let task = self.stuck.last_mut().expect("it is there");
        let state = task.wait_and(attend);
        task.give_up();
        state
    }

    /// Starts a helper that carries out `request` with this rank's checkpoint directory and position.
    pub(super) fn send(
        &self,
        request: impl FnOnce(&CheckpointDir, u32, &Flow) -> Result<u64, Stopped> + Send + 'static,
    ) -> Task<u64> {
        let (checkpoint_dir, position) = (self.storage.checkpoint_dir.clone(), self.position);
        Task::start(move |flow| request(&checkpoint_dir, position, flow))
    }

    /// Returns true if all nodes share DIR, so that each rank finds its own file on any node.
    pub(super) fn is_shared(&self) -> bool {
        self.storage.dir_scope == DirScope::Shared
    }

    /// Parts of the position memory that a helper is reading now through its own file handles. Empty if no helper writes to
    /// storage.
    pub(super) fn reads(&self, buffers: &Buffers) -> Vec<Part> {
        match &self.flight {
            Some((about, task)) if !task.is_over() => {
                let Committed { data, check, .. } = buffers.committed_parts(about.checkpoint);
                vec![data, check, Part::S]
            }
            _ => Vec::new(),
        }
    }

    /// Returns true if the ranks wait for each write to storage (`--helpers off`).
    pub(super) fn stops_ranks(&self) -> bool {
        self.storage.helpers == Helpers::Off
    }

    /// Records that a save was made. Returns true if rank 0 has requested that the checkpoint of this save goes to storage when
    /// it is committed. The request ends with this call.
    pub(super) fn saved(&mut self) -> bool {
        self.saves += 1;
        if let Some(since) = self.put_off_since.take() {
            self.tally.put_off += 1;
            self.tally.put_off_s += since.elapsed().as_secs_f64();
        }
        std::mem::take(&mut self.begin_next)
    }
}

/// Cancels all helpers of this rank. After the loss of another rank, this process reads memory and storage again within seconds,
/// so no helper may continue to change files. Helpers that hang go to [`LEFT`]: the next `Level2` of the same directory takes
/// them over.
impl Drop for Level2 {
    fn drop(&mut self) {
        let flight = self.flight.take().map(|(_, task)| task);
        flight.iter().for_each(Task::give_up);
        // All files are complete. The manifest is finished before DIR is read again, as long as its helper makes progress.
        let mut manifest = self.manifest.take().map(|(.., task)| task.within(MOVES));
        manifest.iter_mut().for_each(|task| _ = task.wait());
        manifest.iter().for_each(Task::give_up);
        let mut left: Vec<Task<u64>> = flight.into_iter().chain(manifest).collect();
        left.append(&mut self.leaving);
        left.append(&mut self.stuck);
        let until = Instant::now() + SETTLES;
        left.iter().for_each(|task| task.settle(until.saturating_duration_since(Instant::now())));
        left.retain(|task| !task.is_over());
        let left = left.into_iter().map(|task| (self.storage.checkpoint_dir.clone(), task));
        LEFT.lock().unwrap_or_else(|broken| broken.into_inner()).extend(left);
    }
}

/// Hanging helpers of this process whose `Level2` has ended, with their directories.
static LEFT: Mutex<Vec<(CheckpointDir, Task<u64>)>> = Mutex::new(Vec::new());

/// Removes from `LEFT` the helpers that hang in this directory, and returns them.
fn left_at(checkpoint_dir: &CheckpointDir) -> Vec<Task<u64>> {
    let mut left = LEFT.lock().unwrap_or_else(|broken| broken.into_inner());
    let (here, elsewhere) =
        std::mem::take(&mut *left).into_iter().partition(|(at, _)| at.is_at(checkpoint_dir));
    *left = elsewhere;
    here.into_iter().map(|(_, task)| task).collect()
}

/// Time within which a cancelled helper usually ends.
pub(super) const SETTLES: Duration = Duration::from_millis(500);
/// Timeout for progress of a helper during recovery in place.
const MOVES: Duration = Duration::from_secs(2);
/// Minimum time between two warnings about storage.
const SAY_EVERY: Duration = Duration::from_secs(600);
/// Runs a small task on storage in a helper, waits for its end, and returns its result. If the task makes no progress for 60 s
/// ([`TIMEOUT`]), cancels it and returns an error, because hanging storage must not block the rank. A task of several steps
/// reports each step to its [`Flow`], and stops after it is cancelled.
pub fn with_timeout<T: Send + 'static>(
    work: impl FnOnce(&Flow) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    within(TIMEOUT, work)
}

/// Runs a task on storage like [`with_timeout`]. Cancels the task if it makes no progress for `timeout`.
pub fn within<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce(&Flow) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let mut task = Task::start(move |flow| Ok(work(flow)?)).within(timeout);
    task.wait();
    task.end().map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::base::params::{Mapping, Rng};

    /// Starts a manifest task that hangs until the returned sender is dropped, for at most 20 s.
    fn hanging(level2: &mut Level2) -> Sender<()> {
        let (lets_go, hangs) = channel::<()>();
        let about = About {
            format: FORMAT,
            run: 1,
            test: 0,
            checkpoint: 1,
            made: 1,
            boundary: 10,
            n: 1000,
            nb: 64,
            p: 1,
            q: 1,
            mapping: Mapping::Row,
            rng: Rng::Hpl,
            seed: 100,
            params_digest: 0,
            arithmetic: String::new(),
            state_bytes: 1024,
        };
        let task = Task::start(move |_| {
            let _ = hangs.recv_timeout(Duration::from_secs(20));
            Ok(0)
        });
        level2.manifest = Some((about, Instant::now(), task));
        lets_go
    }

    fn level2(dir: &std::path::Path) -> Level2 {
        let storage = Storage {
            checkpoint_dir: CheckpointDir::new(dir, "job"),
            dir_scope: DirScope::Shared,
            dir_id: 0,
            every: Interval::Iterations(1),
            helpers: Helpers::Threads,
            arithmetic: String::new(),
            stored: Vec::new(),
            damaged: Vec::new(),
            whole: Vec::new(),
            results: None,
            fresh_run: 1,
            in_place: false,
            read_only: false,
        };
        Level2::new(storage, &[0], 1, 0, false)
    }

    /// Another rank is lost while this rank waits for hanging storage.
    #[test]
    fn a_rank_that_leaves_while_it_waits_for_storage_forgets_no_helper() {
        let here = tempfile::tempdir().unwrap();
        let mut before = level2(here.path());
        let lets_go = hanging(&mut before);
        before.flight = before.manifest.take().map(|(about, _, task)| (about, task));
        let leaves = std::panic::AssertUnwindSafe(|| {
            before.end(|| std::panic::resume_unwind(Box::new("somebody is lost")));
        });
        assert!(std::panic::catch_unwind(leaves).is_err());
        drop(before);
        let after = level2(here.path());
        assert_eq!(after.stuck.len(), 1);
        drop(lets_go);
        after.stuck[0].settle(Duration::from_secs(60));
    }

    /// Recovery in place takes seconds. A helper that hangs in the kernel can take any time, and must not be forgotten.
    #[test]
    fn a_rank_that_leaves_waits_for_no_hung_storage_and_its_successor_knows() {
        let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut before = level2(here.path());
        let lets_go = hanging(&mut before);
        let leaves = Instant::now();
        drop(before);
        assert!(leaves.elapsed() < Duration::from_secs(9), "{:?}", leaves.elapsed());
        assert!(level2(elsewhere.path()).stuck.is_empty());
        let after = level2(here.path());
        assert_eq!(after.stuck.len(), 1);
        // The process stops its work for another loss, so this `Level2` is dropped, too.
        drop(after);
        let after = level2(here.path());
        assert_eq!(after.stuck.len(), 1);
        drop(lets_go);
        after.stuck[0].settle(Duration::from_secs(60));
        drop(after);
        assert!(level2(here.path()).stuck.is_empty());
    }
}
