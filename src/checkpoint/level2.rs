//! Level two: helpers write a checkpoint that is committed in memory to storage, while the ranks compute.
//!
//! From a commit to the next flush, the checkpoint and its state do not change. So a helper of each rank streams the checkpoint
//! out of persistent shared memory, without a copy and without stopping the rank. When all files are complete, the helper of
//! position 0 checks the files, writes the manifest and removes older checkpoints. Rank 0 announces to all ranks when to begin
//! and when to check. A reduction then shows whether all helpers are done.
//!
//! If each node has a DIR of its own, the files include the parity from memory. The parity does not change from commit to flush
//! either. It serves to rebuild files that are lost with their node. The first position of each DIR writes a manifest of the
//! files in this DIR, once all files on all nodes are complete. Dedicated checksum ranks write their parity to such a DIR. They
//! write nothing to a shared DIR, but take part in the agreements.
//!
//! *If the next save is due while helpers are writing, the save is postponed, and the ranks keep computing*, boundary by
//! boundary. Waiting would cost all ranks that time. Cancelling the write would mean that storage slower than the interval never
//! gets a checkpoint. The price is that the last save in memory gets older meanwhile, which is reported. If a helper fails, or
//! makes no progress for a minute, the checkpoint is cancelled on all ranks.
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

/// Location of level two, and the interval between its checkpoints.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Checkpoint directory of this rank.
    pub checkpoint_dir: CheckpointDir,
    pub dir_scope: DirScope,
    /// Directory id: equal on all ranks whose DIR is the same directory.
    pub dir_id: u64,
    /// Interval in saves or seconds. If it is in seconds, the first save after that time goes to storage.
    pub every: Interval,
    /// Determines whether ranks compute while helpers write.
    pub helpers: Helpers,
    /// Arithmetic on which the last bits of this run's results depend, as text.
    pub arithmetic: String,
    /// Checkpoints on storage from which this test can resume, the best first; the same on every rank.
    pub stored: Vec<About>,
    /// Descriptions of files on storage that cannot be trusted; the same on every rank.
    pub damaged: Vec<String>,
    /// All checkpoints that are complete on storage according to a manifest on any node; the same on every rank.
    pub whole: Vec<About>,
    /// Results of finished tests that are valid on storage.
    pub results: Option<Counting>,
    /// Id for a run that resumes from storage, greater than any id found. All ranks use rank 0's id.
    pub fresh_run: u128,
    /// True if this launch has lost ranks and recovers in place; the same on every rank.
    pub in_place: bool,
    /// True if the run may resume from storage, but must not write there; the same on every rank.
    pub read_only: bool,
}

/// Default time in seconds between checkpoints on storage. Storage is needed only if too much memory is lost. Such a loss is
/// rare, and costs up to about this time of work.
pub const EVERY_DEFAULT_S: f64 = 3600.0;

/// Bits of the number that rank 0 broadcasts at a boundary. This bit: a save is due.
pub(super) const SAVE: u64 = 1;
/// The save is for a stop: it is not postponed.
pub(super) const AT_ONCE: u64 = 2;
/// All ranks check their helpers that write to storage.
pub(super) const LOOK: u64 = 4;
/// The checkpoint of the next save goes to storage when it is committed.
pub(super) const STORE: u64 = 8;
/// All ranks check the helpers that encode.
pub(super) const ENCODED: u64 = 16;

/// Directory id for each position: the first position that uses the same DIR.
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

/// Level two of one rank.
pub(super) struct Level2 {
    pub(super) storage: Storage,
    /// Position of this rank.
    position: u32,
    /// Positions whose files this rank lists in a manifest: all positions of its DIR if this rank is the first of them, otherwise
    /// none.
    pub(super) lists: Vec<u32>,
    /// Schedule of the checkpoints on storage, in saves or seconds.
    pub(super) scheduler: Scheduler,
    pub(super) saves: usize,
    pub(super) begin_next: bool,
    /// Checkpoint that is being written. Either all ranks have one, or none has.
    pub(super) flight: Option<(About, Task<u64>)>,
    /// Manifest of the last checkpoint, while it is being written. Only on ranks that write manifests.
    pub(super) manifest: Option<(About, Instant, Task<u64>)>,
    /// Checkpoints that are complete by a manifest on any node, as far as this rank knows. These checkpoints stay on storage
    /// until a later checkpoint is complete.
    pub(super) believed: Vec<About>,
    /// True if a write has failed since the last clean-up, and may have left files.
    pub(super) untidy: bool,
    /// Checkpoint on storage from which the run resumes, until all other checkpoints in DIR have been cleaned up.
    from: Option<About>,
    /// Checkpoint that is on storage and for which ranks have waited, either without helpers or before a stop.
    pub(super) brought: Option<CheckpointId>,
    /// Cancelled helpers that have not ended yet, of this value or of an earlier one in this process.
    pub(super) stuck: Vec<Task<u64>>,
    /// Helpers that remove files of a failed checkpoint.
    pub(super) leaving: Vec<Task<u64>>,
    /// Time since which a save has been postponed.
    pub(super) put_off_since: Option<Instant>,
    /// Time of the last warning. None if a checkpoint has reached storage since. Limits how often the warning is repeated.
    said: Option<Instant>,
    /// Checkpoints of method disk. None with other methods, which have their checkpoints in memory.
    pub(super) alone: Option<Alone>,
    /// Statistics of level two in this process. Only those of position 0 are complete.
    pub(super) tally: outcome::Level2,
}

/// Checkpoints of method disk, which has none in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Alone {
    /// Last complete checkpoint, from which the run resumes after a failure.
    pub(super) last: Option<Place>,
    /// Checkpoint before `last`. The next save overwrites its parts that differ from the matrix.
    pub(super) spare: Option<Place>,
    /// Greatest number of a save that was begun, whether or not the save succeeded. No number is used twice, so a stuck helper
    /// cannot write to a later checkpoint.
    pub(super) tried: u64,
    /// True if the last save succeeded.
    pub(super) arrived: bool,
}

/// Checkpoint of method disk.
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

    /// Returns the bits that rank 0 broadcasts at a boundary after `seconds` of computing. `save` is true if a save is due.
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

    /// Records the result of a manifest that was being written, if that has ended or is stuck.
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

    /// Warns that checkpoint `about` did not reach storage. If warnings follow each other, at most one is printed in ten minutes.
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

    /// Takes over DIR for this start and cleans it, on ranks that write manifests. Removes invalid results, and incomplete
    /// checkpoints except those that are complete on another node. Checkpoint `next` stays, too: other ranks may have begun it
    /// already. On a node's own DIR, writes a manifest of the files of checkpoint `from`, from which the run resumes. Without
    /// `from`, does this for the latest checkpoint of this test. At the end removes complete but outdated checkpoints, so that
    /// there is room for two checkpoints; method disk keeps two.
    ///
    /// This rank must not be writing. Waits as long as the helper makes progress within each `timeout`.
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
        // Method disk overwrites its two checkpoints in turn, and needs both.
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

    /// Cleans DIR at the start of a test, once no rank can refuse the test any more. If the run resumes `from` a checkpoint on
    /// storage, the clean-up precedes the first save. A later start would resume from memory, and not find out which files are
    /// unreadable.
    pub(super) fn settle_first(&mut self, id: &Identity, from: Option<&About>, attend: impl Fn()) {
        self.settle(self.timeout_at_start(), id, from, None, attend);
    }

    fn timeout_at_start(&self) -> Duration {
        if self.storage.in_place { MOVES } else { TIMEOUT }
    }

    /// Records in DIR that this start resumes from checkpoint `key`, on ranks that write manifests. Returns the number of earlier
    /// starts that resumed from it. Returns zero on other ranks, and if the number cannot be determined.
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

    /// Waits for a request until it ends or makes no progress for `timeout`, then cancels it. During the wait the task is the
    /// last entry of `stuck`. So it is handled if the rank stops its work because of a loss.
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

    /// Parts of the position's memory that a helper is reading now through its own file handles.
    pub(super) fn reads(&self, buffers: &Buffers) -> Vec<Part> {
        match &self.flight {
            Some((about, task)) if !task.is_over() => {
                let Committed { data, check, .. } = buffers.committed_parts(about.checkpoint);
                vec![data, check, Part::S]
            }
            _ => Vec::new(),
        }
    }

    /// Returns true if ranks stop for all writes to storage.
    pub(super) fn stops_ranks(&self) -> bool {
        self.storage.helpers == Helpers::Off
    }

    /// Records that a save was made. Returns true if its checkpoint goes to storage when it is committed. The next call returns
    /// false again unless rank 0 requests it again.
    pub(super) fn saved(&mut self) -> bool {
        self.saves += 1;
        if let Some(since) = self.put_off_since.take() {
            self.tally.put_off += 1;
            self.tally.put_off_s += since.elapsed().as_secs_f64();
        }
        std::mem::take(&mut self.begin_next)
    }
}

/// If another rank is lost, a rank stops its work and reads memory and storage again, in the same process and within seconds. So
/// no task of this value may continue there. Hanging helpers are the exception: the next value for the same directory takes them
/// over.
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
/// Runs a small task on storage for which a rank must wait. Waits as long as the task makes progress: hanging storage must not
/// delay the report of a result for ever. A task of several steps reports each step to its [`Flow`], and stops after it is
/// cancelled.
pub fn with_timeout<T: Send + 'static>(
    work: impl FnOnce(&Flow) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    within(TIMEOUT, work)
}

/// Runs a task on storage like [`with_timeout`], with another timeout for progress.
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
        // Another loss.
        drop(after);
        let after = level2(here.path());
        assert_eq!(after.stuck.len(), 1);
        drop(lets_go);
        after.stuck[0].settle(Duration::from_secs(60));
        drop(after);
        assert!(level2(here.path()).stuck.is_empty());
    }
}
