//! The second level: an epoch that is committed in memory goes to storage while the ranks compute.
//!
//! From a commit to the next flush the checkpoint and its state do not change, so a helper of each rank streams them out
//! of named memory, without a copy and without a stop. When all files are whole, position 0's helper looks at
//! them, writes the manifest and removes what is older. All ranks decide alike: rank 0 says when to begin and when to look,
//! a reduction says whether everybody is done.
//!
//! Where each node has a DIR of its own, the checksum in memory goes along: from commit to flush it does not change either,
//! and it is the very parity that makes good the files that die with their node. There the first position of each DIR
//! writes a manifest for what lies in it, once all files everywhere are whole. Ranks that keep checksums alone write those there;
//! to a DIR that all share they write nothing, and go along with what the others agree on.
//!
//! *If the next save is due while helpers are at work, it is put off, and the ranks go on computing*, boundary by
//! boundary. To wait would cost all ranks all that time; to give the epoch up would mean that storage slower than the
//! interval never gets one. What it costs is that the last save in memory grows older meanwhile, and that is told. A
//! helper that moves nothing for a minute, or fails, is not waited for: the epoch is given up, everywhere.
//!
//! *Where there are no helpers* (`--helpers off`) the ranks stop after the commit until the epoch is there, manifest and all, and
//! nothing is ever put off. The same threads write, so that storage which hangs takes nobody with it, but never beside a rank
//! that computes.
//!
//! Under method disk there is no first level: each save is made here, and waited for (`disk`).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use super::errand::{Errand, List, Settle, What, Write};
pub use super::helper::PATIENCE;
use super::helper::{State, Task};
use super::plan::{Buffers, Committed, Helpers};
use super::save::Checkpointer;
use super::when::{Interval, Scheduler};
use super::world::World;
use crate::base::clock::Instant;
use crate::base::outcome;
use crate::checkpoint::storage::names::Key;
use crate::checkpoint::storage::writing::{Flow, Over, Stopped};
use crate::checkpoint::storage::{About, Check, Counting, FORMAT, Shelf, Sight};
use crate::parity::GroupComm;
use crate::shm::header::{Doing, EpochId, Identity};
use crate::shm::{Depot, Part};

/// Where the second level is, and when an epoch goes there.
#[derive(Clone, Debug)]
pub struct Storage {
    /// This rank's.
    pub shelf: Shelf,
    pub sight: Sight,
    /// Equal on ranks that see one DIR.
    pub seat: u64,
    /// Every so many saves, or at the first save after so long.
    pub every: Interval,
    /// Whether ranks go on while it is written.
    pub helpers: Helpers,
    /// What the last bits of this run's results depend on, in words.
    pub arithmetic: String,
    /// Epochs there that this test can go on from, the best first; the same on every rank.
    pub stored: Vec<About>,
    /// What lies there and cannot be believed, in words; the same on every rank.
    pub damaged: Vec<String>,
    /// All epochs that were whole there, by a manifest on any node; the same on every rank.
    pub whole: Vec<About>,
    /// The results that count there.
    pub results: Option<Counting>,
    /// The number of a run that goes on from there: greater than any that was found; rank 0's counts.
    pub fresh_run: u128,
    /// This launch has lost ranks and goes on in place; the same on every rank.
    pub in_place: bool,
    /// What lies there may be gone on from, but nothing is put there; the same on every rank.
    pub read_only: bool,
}

/// So much time, unless something else is asked for, lies between epochs that go to storage, seconds: it is for what takes all
/// memory, which is rare, and then an hour of work is what is lost.
pub const EVERY_DEFAULT_S: f64 = 3600.0;

/// What rank 0 says at a boundary, in bits.
pub(super) const SAVE: u64 = 1;
/// The save is for a stop, which does not wait.
pub(super) const AT_ONCE: u64 = 2;
/// Everybody looks how the helpers do.
const LOOK: u64 = 4;
/// What the save commits goes to storage.
pub(super) const STORE: u64 = 8;

/// For each position the first one that sees the same DIR.
pub(super) fn seats(world: &impl World, storage: &Storage) -> Vec<usize> {
    match storage.sight {
        Sight::Shared => vec![0; world.size()],
        Sight::Node => {
            let all = world.allgather(&storage.seat.to_le_bytes());
            let mut firsts = HashMap::new();
            let first = |(rank, seat)| *firsts.entry(seat).or_insert(rank);
            all.iter().enumerate().map(first).collect()
        }
    }
}

/// One rank's second level.
pub(super) struct Level2 {
    storage: Storage,
    /// Its position, and where the memory of that is.
    position: u32,
    depot: Depot,
    /// The positions whose files this rank lists: those of its DIR, if it is the first there.
    lists: Vec<u32>,
    /// When the next epoch goes to storage, in saves or seconds.
    scheduler: Scheduler,
    saves: usize,
    begin_next: bool,
    /// An epoch on its way: on all ranks or on none.
    flight: Option<(About, Task<u64>)>,
    /// Who lists files: the manifest of the epoch before.
    manifest: Option<(About, Instant, Task<u64>)>,
    /// Epochs that are whole by what is known here, whoever has a manifest: they stay until a later one is.
    believed: Vec<About>,
    /// Something has come to nothing since it was looked for what is left over, and may have left something.
    untidy: bool,
    /// The epoch on storage that the run goes on from, as long as what is left over beside that has not been removed.
    from: Option<About>,
    /// The epoch that ranks have waited for, and that is there: without helpers, or at a stop.
    brought: Option<EpochId>,
    /// Helpers that were given up and have not noticed yet, this second level's or one's before it in this process.
    stuck: Vec<Task<u64>>,
    /// Helpers that remove what is there of an epoch that came to nothing.
    leaving: Vec<Task<u64>>,
    /// Since when a save has been put off.
    put_off_since: Option<Instant>,
    /// When trouble was said last, if nothing has got to storage since: nobody needs to hear it again and again.
    said: Option<Instant>,
    /// Where memory holds no checkpoint: what became of those here.
    pub(super) alone: Option<Alone>,
    /// What it did in this process. Position 0 knows all of it.
    pub(super) tally: outcome::Level2,
}

/// The checkpoints of method disk, which are all there are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Alone {
    /// The last one that was whole: what a fault leads back to.
    pub(super) last: Option<Place>,
    /// The one before: the next is written over it, where only what has changed since differs.
    pub(super) spare: Option<Place>,
    /// The greatest number that one was begun under, whatever became of it: a helper that is stuck in it must not meet another.
    pub(super) tried: u64,
    /// Whether the last save came to something.
    pub(super) arrived: bool,
}

/// An epoch of method disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) key: Key,
    /// Where it was taken; None where its files are not those of these ranks in these groups, to be written over by them.
    pub(super) boundary: Option<usize>,
}

/// What became of an epoch that was waited for.
pub(super) struct Awaited {
    /// Whether all files of it are whole; the same on every rank.
    pub(super) files: bool,
    /// Whether this rank's manifest is; None where it writes none.
    pub(super) listed: Option<bool>,
}

impl Level2 {
    /// `alone`: memory holds no checkpoint. `working`: so many positions, the first ones, have a part of the matrix.
    pub(super) fn new(
        storage: Storage,
        depot: &Depot,
        (seats, working): (&[usize], usize),
        me: usize,
        alone: bool,
    ) -> Self {
        let scheduler = Scheduler::new(storage.every, 0, 0.0);
        let waited = storage.helpers == Helpers::Off;
        let writes = |position: usize| storage.sight == Sight::Node || position < working;
        let here = seats.iter().enumerate().filter(|(_, seat)| **seat == me);
        let lists = here.map(|(position, _)| position).filter(|&position| writes(position));
        let lists = lists.map(|position| position as u32).collect();
        let stuck = left_at(&storage.shelf);
        let believed = storage.whole.clone();
        Self {
            storage,
            position: me as u32,
            depot: depot.clone(),
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

    pub(super) fn about(&self, id: &Identity, epoch: EpochId, boundary: u64) -> About {
        About {
            format: FORMAT,
            run: id.run,
            test: id.test,
            epoch: epoch.epoch,
            made: epoch.made,
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

    /// Gives an epoch up that is on its way, and lets a manifest be finished, which prunes what is older, and what came to
    /// nothing be removed: waits for all of it, as long as it moves.
    fn end(&mut self, attend: impl Fn()) {
        // Whatever is waited for stays where it is meanwhile: who leaves at a loss takes care of it.
        if let Some((_, task)) = &mut self.flight {
            task.give_up();
            task.wait_and(&attend);
        }
        self.stuck.extend(self.flight.take().map(|(_, task)| task));
        if let Some((.., task)) = &mut self.manifest {
            // Whoever removes or reads what lies there must not meet it.
            task.wait_and(&attend);
        }
        self.note_manifest();
        for task in &mut self.leaving {
            task.wait_and(&attend);
        }
    }

    /// Rank 0's wishes at a boundary where `save` says whether a save is due.
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

    /// An epoch is on its way, or its manifest.
    pub(super) fn is_under_way(&self) -> bool {
        self.flight.is_some() || self.manifest.is_some()
    }

    /// Takes note of a manifest that is written, or not.
    fn note_manifest(&mut self) {
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
                self.tally.epochs += 1;
                self.tally.bytes += bytes;
                self.tally.write_s += began.elapsed().as_secs_f64();
                self.said = None;
                // Older ones are gone.
                self.believed.retain(|known| known.key() >= key);
            }
            Err(why) => {
                // Elsewhere there may be a manifest of it, unless there is one DIR; and here, if what is older could not go.
                if self.is_shared() {
                    self.believed.retain(|known| known.key() != key);
                }
                self.untidy = true;
                self.tell(&about, &why.to_string());
            }
        }
    }

    /// Says, on the standard error, that an epoch did not get to storage; not every time while none does.
    fn tell(&mut self, about: &About, why: &str) {
        if self.said.is_some_and(|at| at.elapsed() < SAY_EVERY) {
            return;
        }
        self.said = Some(Instant::now());
        let protected = match self.alone {
            None => "protected in memory as before; what was whole there stays",
            Some(Alone { last: Some(_), .. }) => {
                "protected by the checkpoint before it, which stays (--method disk keeps none in memory)"
            }
            Some(_) => {
                "NOT PROTECTED: --method disk keeps no checkpoint in memory, and none is there yet"
            }
        };
        say(&format!(
            "the checkpoint of boundary {} could not be written to {}: {why}. The run goes on, {protected}; later \
             checkpoints are tried in their turn",
            about.boundary,
            self.storage.shelf.dir().display(),
        ));
    }

    /// Whoever lists files gives up the epoch that is to be written over, and removes all but that and the one to fall back on:
    /// the next one needs their room. Waits until that is done, or a minute if it gets nowhere.
    pub(super) fn make_room(&mut self, keep: Option<Key>, over: Option<Key>) {
        if !self.lists.is_empty() {
            let keep = keep.into_iter().chain(over).collect();
            let mut task = self.send(What::MakeRoom { over, keep });
            task.wait();
            // What it would still remove may be the next epoch.
            task.give_up();
            self.stuck.push(task);
        }
    }

    /// Whoever lists files makes DIR this start's, and removes what epochs have left there that were never completed, cut off or
    /// called off, and those that a later one outdates: there is to be room for two, not three. Nothing of this rank's is on its
    /// way. Waits, no longer than `patience` where nothing moves. `next`: an epoch that others may have begun already.
    fn settle(
        &mut self,
        patience: Duration,
        id: &Identity,
        (from, next): (Option<&About>, Option<Key>),
        attend: impl Fn(),
    ) {
        self.from = from.cloned().or(self.from.take());
        self.stuck.retain(|task| !task.is_over());
        // Another helper would only get stuck beside one that is.
        if !self.untidy || self.lists.is_empty() || !self.stuck.is_empty() {
            return;
        }
        let (from, whole, own) = (self.from.clone(), self.believed.clone(), !self.is_shared());
        // The checkpoints of method disk take turns.
        let two = self.alone.is_some();
        // Later ones are this launch's own.
        let results = self.storage.results.clone();
        let (run, test) = (id.run, id.test);
        let settle = Settle { run, test, from, whole, next, own, two, results };
        let done = self.wait_for(What::Settle(Box::new(settle)), patience, attend) == State::Done;
        // Where it was cut off the next epoch begins with it.
        self.untidy = !done;
        if done {
            self.from = None;
            self.storage.results = None;
        }
    }

    /// The same at the start of a test, when nobody refuses it any more, and before the first save where the run goes on `from`
    /// an epoch on storage: a start after that goes on from memory, and knows nothing of files that could not be read.
    pub(super) fn settle_first(&mut self, id: &Identity, from: Option<&About>, attend: impl Fn()) {
        self.settle(self.patience_at_start(), id, (from, None), attend);
    }

    fn patience_at_start(&self) -> Duration {
        if self.storage.in_place { MOVES } else { PATIENCE }
    }

    /// Whoever lists files leaves word there that this start goes on from an epoch. How many did before it; none on other ranks,
    /// and where that cannot be told.
    pub(super) fn set_out(&mut self, key: Key, attend: impl Fn()) -> u32 {
        if self.lists.is_empty() {
            return 0;
        }
        self.wait_for(What::SetOut(key), self.patience_at_start(), attend);
        let told = self.stuck.pop_if(|task| task.is_over()).and_then(|task| task.end().ok());
        told.map_or(0, |before| u32::try_from(before).unwrap_or(u32::MAX))
    }

    /// A helper sets out and is waited for, no longer than `patience` where nothing moves; then it is given up. From the first it
    /// is the last of those that may be stuck: who leaves at a loss takes care of it.
    fn wait_for(&mut self, what: What, patience: Duration, attend: impl Fn()) -> State {
        self.stuck.push(self.send(what).within(patience));
        let task = self.stuck.last_mut().expect("it is there");
        let state = task.wait_and(attend);
        task.give_up();
        state
    }

    /// A helper sets out.
    fn send(&self, what: What) -> Task<u64> {
        let (shelf, depot) = (self.storage.shelf.clone(), self.depot.clone());
        let errand = Errand { shelf, depot, position: self.position, what };
        Task::start(move |flow| errand.run(flow))
    }

    /// A position's file of an epoch, on this rank's storage.
    pub(super) fn file(&self, key: Key, position: u32) -> PathBuf {
        self.storage.shelf.position(key, position)
    }

    /// Whether each rank finds its own file where it wrote it, whoever reads for whom.
    pub(super) fn is_shared(&self) -> bool {
        self.storage.sight == Sight::Shared
    }

    /// The parts that a helper reads just now, by files of its own opening.
    pub(super) fn reads(&self, buffers: &Buffers) -> Vec<Part> {
        match &self.flight {
            Some((about, task)) if !task.is_over() => {
                let Committed { data, check, .. } = buffers.committed_parts(about.epoch);
                vec![data, check, Part::S]
            }
            _ => Vec::new(),
        }
    }

    /// Whether what is being saved goes to storage when it is committed; asked once.
    pub(super) fn begins_next(&mut self) -> bool {
        std::mem::take(&mut self.begin_next)
    }

    /// Whether ranks stop for what goes to storage, whatever it is.
    fn stops_ranks(&self) -> bool {
        self.storage.helpers == Helpers::Off
    }

    /// Counts on from what had passed before this start: seconds, and saves.
    fn count_on(&mut self, (seconds, saves): (f64, usize)) {
        self.scheduler = Scheduler::new(self.storage.every, 0, -seconds);
        self.saves = saves;
    }

    /// A save has been made.
    pub(super) fn saved(&mut self) {
        self.saves += 1;
        if let Some(since) = self.put_off_since.take() {
            self.tally.put_off += 1;
            self.tally.put_off_s += since.elapsed().as_secs_f64();
        }
    }
}

/// A rank that leaves its work because another is lost looks at memory and storage anew, in the same process and within seconds:
/// so nothing of what it had begun goes on there, but for what hangs, which the next second level there takes up.
impl Drop for Level2 {
    fn drop(&mut self) {
        let flight = self.flight.take().map(|(_, task)| task);
        flight.iter().for_each(Task::give_up);
        // All files are whole: it is finished before anybody looks there again, as long as it moves.
        let mut manifest = self.manifest.take().map(|(.., task)| task.within(MOVES));
        manifest.iter_mut().for_each(|task| _ = task.wait());
        manifest.iter().for_each(Task::give_up);
        let mut left: Vec<Task<u64>> = flight.into_iter().chain(manifest).collect();
        left.append(&mut self.leaving);
        left.append(&mut self.stuck);
        let until = Instant::now() + SETTLES;
        left.iter().for_each(|task| task.settle(until.saturating_duration_since(Instant::now())));
        left.retain(|task| !task.is_over());
        let left = left.into_iter().map(|task| (self.storage.shelf.clone(), task));
        LEFT.lock().unwrap_or_else(|broken| broken.into_inner()).extend(left);
    }
}

/// Helpers of this process that hang, whose second level is over, and where.
static LEFT: Mutex<Vec<(Shelf, Task<u64>)>> = Mutex::new(Vec::new());

/// Those of them that hang there.
fn left_at(shelf: &Shelf) -> Vec<Task<u64>> {
    let mut left = LEFT.lock().unwrap_or_else(|broken| broken.into_inner());
    let (here, elsewhere) =
        std::mem::take(&mut *left).into_iter().partition(|(at, _)| at.is_at(shelf));
    *left = elsewhere;
    here.into_iter().map(|(_, task)| task).collect()
}

/// A helper that was told to give up is usually over so soon.
const SETTLES: Duration = Duration::from_millis(500);
/// A helper that does not move for so long holds nobody up who goes on in place.
const MOVES: Duration = Duration::from_secs(2);
/// Between two words about trouble with storage.
const SAY_EVERY: Duration = Duration::from_secs(600);
/// So many positions tell their trouble; the others' is the same, as a rule.
const TELLERS: usize = 3;

fn say(text: &str) {
    use std::io::Write;
    // Nobody can be told that nothing can be told.
    let _ = std::io::stderr().write_all(format!("skt-hpl: {text}\n").as_bytes());
}

/// Something small on storage that a rank must wait for: no longer than a helper may stand still, so that a file system
/// that hangs cannot keep a result from being told. Where it is more than a step, it tells of each, and does none after it was
/// given up.
pub fn patiently<T: Send + 'static>(
    work: impl FnOnce(&Flow) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    patiently_for(PATIENCE, work)
}

/// The same, no longer than it stands still for so long.
pub fn patiently_for<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce(&Flow) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let mut task = Task::start(move |flow| work(flow).map_err(Stopped::Failed)).within(patience);
    task.wait();
    task.end().map_err(|why| why.to_string())
}

/// What positions say, in one text.
pub(super) fn troubles(all: &[Vec<u8>]) -> String {
    let told = all.iter().enumerate().filter(|(_, text)| !text.is_empty());
    let mut told: Vec<String> = told
        .map(|(at, text)| format!("position {at}: {}", String::from_utf8_lossy(text)))
        .collect();
    let more = told.len().saturating_sub(TELLERS);
    told.truncate(TELLERS);
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    told.join("; ")
}

impl<W: World, G: GroupComm> Checkpointer<W, G> {
    /// What the second level did so far; None where there is none. Position 0's is whole.
    pub fn tally(&self) -> Option<outcome::Level2> {
        self.level2.as_ref().map(|level2| level2.tally)
    }

    /// All ranks, at a boundary where rank 0 said `told`: whether the save that is due can be made now.
    pub(super) fn attend(&mut self, told: u64) -> bool {
        let Some(level2) = &mut self.level2 else { return true };
        level2.begin_next = told & STORE != 0;
        if told & (SAVE | LOOK) == 0 {
            return true;
        }
        let Some((_, task)) = &mut level2.flight else { return true };
        let worst = self.world.least(&[task.state() as u64])[0];
        if worst == State::Done as u64 {
            self.conclude();
        } else if worst == State::Lost as u64 {
            self.call_off(true);
        } else if told & AT_ONCE != 0 {
            // What the stop saves goes to storage instead.
            self.call_off(false);
        } else if told & SAVE != 0 {
            level2.put_off_since.get_or_insert_with(Instant::now);
            return false;
        }
        true
    }

    /// All files are whole.
    fn conclude(&mut self) {
        let level2 = self.level2.as_mut().expect("an epoch was on its way");
        let (about, task) = level2.flight.take().expect("all ranks have one");
        let began = task.began;
        let mine = task.end().unwrap_or(0);
        let sight = level2.storage.sight;
        // What others have written no single manifest tells.
        let all = match sight {
            Sight::Shared if level2.alone.is_none() => None,
            _ => {
                let all = self.world.allgather(&mine.to_le_bytes());
                let bytes =
                    |told: &Vec<u8>| u64::from_le_bytes(told[..].try_into().expect("eight bytes"));
                Some(all.iter().map(bytes).sum())
            }
        };
        if !level2.lists.is_empty() {
            level2.believed.push(about.clone());
            let stays = level2.alone.and_then(|alone| alone.last).map(|last| last.key);
            let positions = level2.lists.clone();
            let list = List { about: about.clone(), sight, positions, stays, all };
            let task = level2.send(What::List(list));
            level2.manifest = Some((about, began, task));
        }
    }

    /// Whether this rank does what is to be done once for each DIR.
    pub fn speaks_for_dir(&self) -> bool {
        self.level2.as_ref().is_some_and(|level2| !level2.lists.is_empty())
    }

    /// The epoch on its way comes to nothing: because of somebody's `trouble`, which is told, or of something better.
    fn call_off(&mut self, trouble: bool) {
        let level2 = self.level2.as_mut().expect("an epoch was on its way");
        let (about, mut task) = level2.flight.take().expect("all ranks have one");
        let mut why = String::new();
        if task.state() == State::Lost && !task.is_over() {
            why = "its helper is stuck".into();
        }
        task.give_up();
        if task.is_over() {
            match task.end() {
                // Others may lack the room; and removing can take its time.
                Ok(_) => {
                    let mut task = level2.send(What::Withdraw(about.key()));
                    if level2.stops_ranks() {
                        task.wait();
                    }
                    level2.leaving.push(task);
                }
                Err(Stopped::GivenUp) => {}
                Err(Stopped::Failed(text)) => why = text,
            }
        } else {
            level2.stuck.push(task);
        }
        if !trouble {
            return;
        }
        level2.untidy = true;
        let all = self.world.allgather(why.as_bytes());
        if self.world.rank() == 0 {
            self.level2.as_mut().expect("as above").tell(&about, &troubles(&all));
        }
    }

    /// What will have passed, once a save is made now, since an epoch last went to storage: seconds in which something was
    /// computed, and saves. Nothing without a second level.
    pub fn unstored(&self) -> (f64, usize) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.level2.as_ref().map_or((0.0, 0), |l| l.scheduler.since(l.saves + 1, seconds))
    }

    /// Goes on from a save that told [`Self::unstored`]: starts that follow each other sooner than epochs are wanted on storage
    /// must not leave it without any.
    pub fn count_on(&mut self, unstored: (f64, usize)) {
        if let Some(level2) = &mut self.level2 {
            level2.count_on(unstored);
        }
    }

    /// What was just committed goes to storage, if rank 0 said so. The seconds that the ranks have stopped for that.
    pub(super) fn begin_if_due(&mut self) -> f64 {
        let Some(level2) = &mut self.level2 else { return 0.0 };
        level2.saved();
        if !level2.begins_next() {
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
        // From one epoch to the next time counts in which something was computed.
        level2.scheduler.saved(level2.saves, self.started.elapsed().as_secs_f64(), 0.0, 0.0);
        waited
    }

    /// Waits until the committed epoch, which is on its way, is on storage with all its manifests. All ranks together: whether it
    /// is.
    fn bring(&mut self) -> bool {
        let Awaited { files, listed } = self.await_flight();
        let whole = files && listed != Some(false);
        let whole = self.world.least(&[u64::from(whole)]) == [1];
        let level2 = self.level2.as_mut().expect("an epoch was on its way");
        level2.brought = self.header.claim.base.filter(|_| whole);
        whole
    }

    /// A helper sets out with what lies committed in memory.
    pub(super) fn begin_committed(&mut self) {
        let seconds = self.started.elapsed().as_secs_f64();
        let level2 = self.level2.as_mut().expect("somebody asked for it");
        level2.scheduler.saved(level2.saves, seconds, 0.0, 0.0);
        let base = self.header.claim.base.expect("only what is committed is stored");
        let about = level2.about(&self.header.id, base, self.header.base.boundary);
        self.begin(about, None);
    }

    /// A helper sets out with the epoch that lies in memory, to make a file of it or to make another one that file.
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
        // Method disk has made room before, all but for what it writes over.
        if idle && level2.alone.is_none() {
            let next = Some(about.key());
            level2.settle(PATIENCE, &self.header.id, (None, next), || self.world.attend());
            level2.stuck.retain(|task| !task.is_over());
        }
        let Committed { data, check, place } = self.holding.buffers.committed_parts(about.epoch);
        let buffers = self.holding.buffers;
        let id = &self.header.id;
        let apart = level2.storage.sight == Sight::Node;
        let check = apart.then(|| {
            let words = buffers.checksum_words() as u64;
            let (members, losses) = (id.members.clone(), id.losses.into());
            let Identity { group, code, layout, .. } = *id;
            (check, Check { group, members, losses, code, layout, words })
        });
        let vouch = match apart {
            true => place,
            false => place.start..place.start + buffers.vouch_words(),
        };
        // Checksums alone are of no use where nothing is lost with a node.
        let nothing = !apart && self.header.id.position as usize >= self.layout.working();
        let claim = self.header.claim;
        let write = Write { about: about.clone(), claim, buffers, data, vouch, check, over };
        let task = match level2.stuck.is_empty() {
            true if nothing => Task::start(|_| Ok(0)),
            true => level2.send(What::Write(Box::new(write))),
            // Another one would only get stuck beside it.
            false => Task::failed("the helper is still stuck in an earlier epoch"),
        };
        level2.flight = Some((about, task));
    }

    /// Brings what memory holds to storage before the run stops, and waits for it. All ranks together, right after a
    /// save. False if it did not get there, which rank 0 has said; None without a second level.
    pub fn store_now(&mut self) -> Option<bool> {
        self.finish_save();
        let level2 = self.level2.as_mut()?;
        if let Some(alone) = level2.alone {
            // The save itself has brought it there, or not.
            return Some(alone.arrived);
        }
        let waiting = Instant::now();
        let boundary = self.header.base.boundary as usize;
        self.holding.head.tick(Doing::Saving, boundary as u64);
        if let Some((.., task)) = &mut level2.manifest {
            task.wait_and(|| self.world.attend());
        }
        level2.note_manifest();
        // Without helpers the save has waited for it, if it was its turn.
        let there = level2.brought.is_some() && level2.brought == self.header.claim.base;
        if !there && level2.flight.is_none() {
            // A helper that was called off for this may be amid slow writing, or remove what it had written, whose room is
            // needed; and ranks have nothing else to do.
            for task in level2.stuck.iter_mut().chain(&mut level2.leaving) {
                task.wait_and(|| self.world.attend());
            }
            self.begin_committed();
        }
        let whole = there || self.bring();
        let level2 = self.level2.as_mut().expect("as above");
        level2.tally.wait_s += waiting.elapsed().as_secs_f64();
        if whole && self.world.rank() == 0 {
            say(&format!(
                "the checkpoint of boundary {boundary} is on storage, in {}",
                level2.storage.shelf.dir().display()
            ));
        }
        Some(whole)
    }

    /// Waits for the epoch on its way, and for its manifest. All ranks together.
    pub(super) fn await_flight(&mut self) -> Awaited {
        let level2 = self.level2.as_mut().expect("an epoch was on its way");
        let (_, task) = level2.flight.as_mut().expect("all ranks have one");
        // However long that takes: who is lost meanwhile is not to be waited for.
        let mine = task.wait_and(|| self.world.attend());
        let files = self.world.least(&[mine as u64])[0] == State::Done as u64;
        match files {
            true => self.conclude(),
            false => self.call_off(true),
        }
        let level2 = self.level2.as_mut().expect("as above");
        let listed = (files && !level2.lists.is_empty()).then(|| {
            if let Some((.., task)) = &mut level2.manifest {
                task.wait_and(|| self.world.attend());
            }
            let before = level2.tally.epochs;
            level2.note_manifest();
            level2.tally.epochs > before
        });
        Awaited { files, listed }
    }

    /// The test is over: whatever is still on its way is of no use any more.
    pub fn end_level2(&mut self) {
        if let Some(level2) = &mut self.level2 {
            // Who is lost meanwhile is not to be waited for.
            level2.end(|| self.world.attend());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::base::params::{Mapping, Rng};
    use crate::shm::Store;

    /// A second level whose storage hangs until the other end goes, or for some seconds.
    fn hanging(level2: &mut Level2) -> Sender<()> {
        let (lets_go, hangs) = channel::<()>();
        let about = About {
            format: FORMAT,
            run: 1,
            test: 0,
            epoch: 1,
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
            shelf: Shelf::new(dir, "job"),
            sight: Sight::Shared,
            seat: 0,
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
        let depot = Depot::new(Store::Posix, "t-level2-hangs").unwrap();
        Level2::new(storage, &depot, (&[0], 1), 0, false)
    }

    /// The same of one that was waited for when somebody was lost.
    #[test]
    fn who_leaves_while_it_waits_for_storage_forgets_no_helper() {
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

    /// Going on in place takes seconds; a helper stuck in the kernel takes as long as it likes, and is not forgotten.
    #[test]
    fn who_leaves_waits_for_no_storage_that_hangs_and_who_comes_knows_of_it() {
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
