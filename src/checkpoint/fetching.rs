//! Resuming from storage. If memory has no checkpoint, or an older one, each position's matrix is read from its file. An ordinary
//! save then makes the first checkpoint in memory.
//!
//! Until that save is committed, headers in memory name no checkpoint, and after a failure the run resumes from the same files
//! again. Groups are formed again for the available nodes.
//!
//! If each node has a DIR of its own, files are sent from the nodes that have them to the nodes of their positions. Files that
//! were lost with their nodes are rebuilt by the group that made their parity. `recall` assigns the work to ranks.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::level2::Storage;
use super::plan::{Buffers, Layout, Scheme, Scope};
use super::protocol::Method;
use super::recall::{Recall, Seen, Stored, Told, recall};
use super::save::Checkpointer;
use super::saved::{Shares, row_is_sound, state_of};
use super::terms::Terms;
use super::transfer::{Coming, send_file};
use super::world::{NOTHING, World};
use crate::base::faults::{Point, hit};
use crate::base::threads::Pool;
use crate::checkpoint::storage::reading::Source;
use crate::checkpoint::storage::{About, DirScope};
use crate::parity::code::bytes_mut;
use crate::parity::digest::digest;
use crate::parity::exchange::Coder;
use crate::parity::{GroupComm, Hands, Stripes, hands};
use crate::shm::Region;
use crate::shm::header::Doing;

/// A checkpoint on storage from which a run resumes.
#[derive(Clone, Copy)]
pub(super) struct StoredCheckpoint<'a> {
    pub storage: &'a Storage,
    pub about: &'a About,
}

impl StoredCheckpoint<'_> {
    /// Path of a position's file.
    fn path(&self, position: usize) -> PathBuf {
        self.storage.checkpoint_dir.position(self.about.key(), position as u32)
    }

    fn open(&self, position: usize) -> Result<Source<'static>, String> {
        Source::open(&self.path(position), self.about, position as u32)
    }
}

/// Open file of a position, with the digests of its rows.
struct Opened<'a> {
    source: Source<'a>,
    vouch: Region,
    buffers: Buffers,
}

impl<'a> Opened<'a> {
    /// Opens the file of position `me` on shared storage, and compares the file with the manifest. The error text names the file
    /// and the problem.
    fn new(stored: StoredCheckpoint, buffers: Buffers, me: usize) -> Result<Self, String> {
        let path = stored.path(me);
        let source = stored.open(me)?;
        let listed = stored.storage.checkpoint_dir.manifest(stored.about.key())?;
        let listed = listed.ok_or_else(|| {
            format!("{}: the manifest of this checkpoint no longer exists", path.display())
        })?;
        if listed.files[me].root != source.front.root {
            return Err(format!(
                "{}: the manifest has another digest for this file",
                path.display()
            ));
        }
        Self::of(source, buffers, false)
    }

    /// Reads the digests of an open file. With `parity`, the file must contain digests of parity, too. Returns an error if the
    /// sizes in the file differ from `buffers`.
    fn of(mut source: Source<'a>, buffers: Buffers, parity: bool) -> Result<Self, String> {
        let front = &source.front;
        let wanted = [buffers.rows, buffers.cols, buffers.ld, buffers.vouch_words(parity)];
        let found = [front.rows, front.cols, front.ld, front.vouch_words];
        if wanted.map(|words| words as u64) != found {
            return Err(source.wrong(&format!(
                "its matrix has another layout than this run's (rows, columns, leading dimension, words of \
                 digests: {found:?}, not {wanted:?})"
            )));
        }
        let vouch = source.vouch()?;
        Ok(Self { source, vouch, buffers })
    }

    fn state_words(&self) -> &[u64] {
        &self.vouch.words()[..self.buffers.state_words()]
    }

    fn rows(&mut self, into: Option<&mut [u8]>, half: impl FnMut()) -> Result<(), String> {
        let (cols, tiles) = (self.buffers.cols, self.buffers.data_tiles());
        let table = &self.vouch.words()[self.buffers.state_words()..];
        let sound =
            |row: usize, line: &[u64]| row_is_sound(&line[..cols], &table[row * tiles..][..tiles]);
        self.source.rows(into, sound, half)
    }

    fn parity(&mut self, into: Option<&mut [u8]>) -> Result<(), String> {
        let Buffers { parity_rows: count, pitch, .. } = self.buffers;
        let table = &self.vouch.words()[self.buffers.vouch_words(false)..];
        let tiles = self.buffers.parity_tiles();
        let sound = |row: usize, line: &[u64]| {
            if row < count {
                row_is_sound(line, &table[row * tiles..][..tiles])
            } else {
                // Parity of the small state.
                table[count * tiles] == digest(line)
            }
        };
        self.source.check(into, count, pitch, sound)
    }
}

/// Returns the buffers that a position had in the group that made its parity. The error means that no group of this run can have
/// made the file.
fn buffers_then(
    layout: &Layout,
    scheme: &Scheme,
    group: &Stored,
    position: usize,
    ld: usize,
    state_bytes: usize,
) -> Result<Buffers, String> {
    let Stored { check, of, layout: parity_layout, .. } = group;
    let scheme = Scheme { losses: check.losses as usize, layout: *parity_layout, ..*scheme };
    let members: Vec<usize> = check.members.iter().map(|&member| member as usize).collect();
    let known = members.iter().all(|&member| member < layout.positions());
    let large_enough = parity_layout.spread().members_least(scheme.losses) <= members.len();
    if !known || !members.contains(&position) || scheme.losses == 0 || !large_enough {
        return Err("its group cannot be a group of this run".into());
    }
    let buffers = |position| Buffers::new(layout, &members, position, ld, &scheme, state_bytes);
    if buffers(*of).checksum_words() as u64 == check.words {
        Ok(buffers(position))
    } else {
        Err("its parity has another length than in this run".into())
    }
}

/// Facts that all ranks know about the files of the chosen checkpoint.
pub(super) enum Way {
    /// All ranks can open all files.
    Shared,
    Apart(Apart),
}

/// Facts about a checkpoint's files if each node has a DIR of its own; the same on every rank.
pub(super) struct Apart {
    told: Vec<Told>,
    /// Directory id and position of each file that a reader found damaged.
    bad: BTreeSet<(usize, usize)>,
    /// Position and error text of each file that cannot be used.
    wrong: Vec<(usize, String)>,
}

/// File that a reader found damaged: directory id, position, and error text.
#[derive(Serialize, Deserialize)]
struct Damage(usize, usize, String);

impl Apart {
    /// Collects the headers of the files in each DIR, for every rank. Collective call.
    fn gather(world: &impl World, stored: StoredCheckpoint, dir_ids: &[usize]) -> Self {
        let me = world.rank();
        let (checkpoint_dir, key) = (&stored.storage.checkpoint_dir, stored.about.key());
        let mut mine = Told { dir_id: dir_ids[me], seen: Vec::new() };
        let mut wrong: Vec<(usize, String)> = Vec::new();
        let files = if mine.dir_id == me { checkpoint_dir.positions(key) } else { Ok(Vec::new()) };
        // If the folder cannot be listed, the first rank of the DIR reports the problem.
        let files = files.unwrap_or_else(|why| {
            wrong.push((me, why));
            Vec::new()
        });
        for position in files.into_iter().map(|position| position as usize) {
            match stored.open(position).map(|source| source.front.check) {
                Ok(Some(check)) => mine.seen.push(Seen { position, check }),
                Ok(None) => {
                    let path = stored.path(position);
                    wrong.push((position, format!("{}: it contains no parity", path.display())))
                }
                Err(why) => wrong.push((position, why)),
            }
        }
        let mut this = Self { told: Vec::new(), bad: BTreeSet::new(), wrong: Vec::new() };
        for (told, wrong) in world.gather(&(mine, wrong)) {
            this.told.push(told);
            this.wrong.extend(wrong);
        }
        this
    }

    /// Assigns readers to files. If a group has lost more members than it survives, the error gives the reason and the problems
    /// of the files.
    fn verdict(&self, about: &About) -> Result<Recall, String> {
        recall(about.positions(), &self.told, &self.bad).map_err(|why| {
            let wrong: String = self.wrong.iter().map(|(_, why)| format!("\n  {why}")).collect();
            format!("the checkpoint of boundary {}: {why}{wrong}", about.boundary)
        })
    }

    /// Exchanges and records the damaged files that ranks have found. Returns false if no rank has found a damaged file.
    fn learn(&mut self, world: &impl World, mine: Vec<Damage>) -> bool {
        if world.all(mine.is_empty()) {
            return false;
        }
        for Damage(dir_id, position, why) in world.gather(&mine).into_iter().flatten() {
            self.bad.insert((dir_id, position));
            self.wrong.push((position, why));
        }
        true
    }

    /// Lets each rank read its assigned files completely, on its node. If files are damaged, assigns readers again without the
    /// damaged files, and lets them read again. Succeeds when all assigned files are sound. Fails if a group has lost more
    /// members than it survives.
    fn look(
        &mut self,
        world: &impl World,
        Terms { config, test }: Terms,
        stored: StoredCheckpoint,
    ) -> Result<(), String> {
        loop {
            let plan = self.verdict(stored.about)?;
            let mut damage = Vec::new();
            for (position, reader) in plan.readers.iter().enumerate() {
                let Some(reader) = reader.filter(|reader| reader.rank == world.rank()) else {
                    continue;
                };
                let group = plan.group_of(position).0;
                let read = stored.open(position).and_then(|source| {
                    let (ld, state_bytes) = (source.front.ld as usize, config.state_bytes);
                    let (layout, scheme) = (&test.layout, &config.scheme);
                    let buffers = buffers_then(layout, scheme, group, position, ld, state_bytes);
                    let buffers = buffers.map_err(|why| source.wrong(&why))?;
                    let mut opened = Opened::of(source, buffers, true)?;
                    opened.rows(None, || {}).and_then(|()| opened.parity(None))
                });
                damage.extend(read.err().map(|why| Damage(reader.dir_id, position, why)));
            }
            if !self.learn(world, damage) {
                return Ok(());
            }
        }
    }
}

/// Checks whether a checkpoint's files can be used, and changes nothing. With `whole`, reads the files completely: this is
/// necessary before memory is given up for the checkpoint. An error is the same on all ranks.
pub(super) fn look(
    world: &impl World,
    terms: Terms,
    about: &About,
    dir_ids: &[usize],
    whole: bool,
) -> Result<Way, String> {
    let Terms { config, test } = terms;
    let storage = config.storage.as_ref().expect("a checkpoint on storage was chosen");
    let stored = StoredCheckpoint { storage, about };
    let me = world.rank();
    if storage.dir_scope == DirScope::Node {
        let mut apart = Apart::gather(world, stored, dir_ids);
        if whole {
            apart.look(world, terms, stored)?;
        } else {
            apart.verdict(about)?;
        }
        return Ok(Way::Apart(apart));
    }
    let without_parity = Scheme { losses: 0, ..config.scheme };
    let (ld, state_bytes) = (config.ld, config.state_bytes);
    let buffers = Buffers::new(&test.layout, &[me], me, ld, &without_parity, state_bytes);
    let seen = || {
        let mut opened = Opened::new(stored, buffers, me)?;
        if whole { opened.rows(None, || {}) } else { Ok(()) }
    };
    // A dedicated checksum rank has no file on shared storage.
    let seen = if me < test.layout.working() { seen() } else { Ok(()) };
    world.troubles(seen.err()).map_or(Ok(Way::Shared), Err)
}

/// Data and facts about a checkpoint that was read from storage; the matrix is not included.
#[derive(Default)]
pub(super) struct Fetched {
    /// Small state of this position.
    pub state: Vec<u8>,
    /// Positions that were rebuilt from parity on storage.
    pub rebuilt: Vec<usize>,
    /// Position and error text of each file that could not be used.
    pub wrong: Vec<(usize, String)>,
    /// Number of earlier starts that resumed from this checkpoint.
    pub starts: u32,
}

/// Message for a missing second copy. A matrix in device memory requires method double. Files are read into its second copy,
/// which is unused before the first save.
const TWO_COPIES: &str = "a matrix in device memory has two copies";

impl<W: World, G: GroupComm> Checkpointer<W, G> {
    /// Fills the matrix from storage. Then makes a save in memory, unless the method is disk. An error is the same on all ranks.
    pub(super) fn fetch(
        &mut self,
        stored: StoredCheckpoint,
        way: Way,
        a: &mut Region,
        make_group: impl Fn(&W, usize, usize, &[usize]) -> G,
        pool: &mut Pool,
    ) -> Result<Fetched, String> {
        let (me, about) = (self.position(), stored.about);
        self.tick(Doing::Recovering, about.boundary as usize);
        let starts = self.set_out(about);
        hit(Point::FetchBegin, me);
        let mut fetched = match way {
            Way::Shared => self.read_own(stored, a)?,
            Way::Apart(apart) => self.bring_together(stored, apart, a, make_group, pool)?,
        };
        fetched.starts = starts;
        hit(Point::FetchEnd, me);
        if let Some(level2) = &mut self.level2 {
            level2.settle_first(&self.header.id, Some(about), || self.world.attend());
        }
        hit(Point::Tidied, me);
        match self.scheme.method {
            // With method disk, the checkpoint on storage remains the only one.
            Method::Disk => self.adopt(about),
            _ => {
                let boundary = about.boundary as usize;
                if let Some(matrix) = &self.on_device {
                    let buffers = self.holding.buffers;
                    let (_, data) = self.holding.saved().spare(0);
                    matrix.copy_out(&buffers, data.expect(TWO_COPIES), || {});
                }
                self.save(boundary, a.as_slice_f64_mut(), &fetched.state, pool);
            }
        }
        Ok(fetched)
    }

    /// Records in each DIR that this start resumes from the checkpoint. Returns the number of earlier starts that did so: the
    /// largest in any DIR. A start that must not write to storage records nothing and returns zero. Collective call.
    fn set_out(&mut self, about: &About) -> u32 {
        let Self { level2, world, .. } = self;
        let mine = level2.as_mut().map_or(0, |l| l.set_out(about.key(), || world.attend()));
        (NOTHING - world.least(&[NOTHING - u64::from(mine)])[0]) as u32
    }

    fn read_own(&mut self, stored: StoredCheckpoint, a: &mut Region) -> Result<Fetched, String> {
        let me = self.position();
        let buffers = self.holding.buffers;
        let mut fetched = Fetched::default();
        let data = match (&self.on_device, self.holding.saved().spare(0)) {
            (None, _) => a.bytes_mut(),
            (Some(_), (_, data)) => bytes_mut(data.expect(TWO_COPIES)),
        };
        let mut read = || {
            let mut opened = Opened::new(stored, buffers, me)?;
            fetched.state = state_of(opened.state_words());
            opened.rows(Some(&mut *data), || hit(Point::FetchHalf, me))
        };
        let read = if me < self.layout.working() { read() } else { Ok(()) };
        self.world.troubles(read.err()).map_or(Ok(fetched), Err)
    }

    /// Sends each file to the rank of its position, and rebuilds lost files from parity. A file that turns out to be damaged
    /// counts as lost.
    fn bring_together(
        &mut self,
        stored: StoredCheckpoint,
        mut apart: Apart,
        a: &mut Region,
        make_group: impl Fn(&W, usize, usize, &[usize]) -> G,
        pool: &mut Pool,
    ) -> Result<Fetched, String> {
        let me = self.position();
        let mut room: Option<Region> = None;
        loop {
            let plan = apart.verdict(stored.about)?;
            let then = self.room_for_parity(plan.group_of(me).0, &mut room)?;
            let words = then.checksum_words();
            let Self { world, holding, on_device, .. } = self;
            let (spare, second) = holding.saved().spare(words);
            let data = match on_device {
                None => a.words_mut(),
                Some(_) => second.expect(TWO_COPIES),
            };
            let parity = match (spare, &mut room) {
                (Some(spare), _) => spare,
                (None, Some(room)) => room.words_mut(),
                (None, None) => unreachable!("room was made"),
            };
            let mut state = vec![0; then.state_words()];
            let read = exchange_files(world, stored, &plan, |source| {
                let mut opened = Opened::of(source, then, true)?;
                state.copy_from_slice(opened.state_words());
                opened.rows(Some(bytes_mut(data)), || hit(Point::FetchHalf, me))?;
                if plan.needs_parity(me) { opened.parity(Some(bytes_mut(parity))) } else { Ok(()) }
            });
            let damage = read.err().zip(plan.readers[me]);
            let damage = damage.map(|(why, reader)| Damage(reader.dir_id, me, why));
            if apart.learn(world, damage.into_iter().collect()) {
                continue;
            }
            let rebuilt = plan.lost();
            if !rebuilt.is_empty() {
                let data = &mut data[..then.data_words()];
                let shares = Shares::new(&then, data, &mut state, parity);
                rebuild(shares, world, &self.layout, &plan, make_group, pool);
            }
            // The first save may leave gaps between rows of parity. The gaps must be zero.
            parity.fill(0);
            let (state, wrong) = (state_of(&state), apart.wrong);
            return Ok(Fetched { state, rebuilt, wrong, starts: 0 });
        }
    }

    /// Returns the buffers of this position in the group that wrote the files, once every rank has room for its parity. The
    /// parity uses checkpoint memory that is unused until the first save. If this memory is too small, allocates `room`.
    fn room_for_parity(
        &mut self,
        group: &Stored,
        room: &mut Option<Region>,
    ) -> Result<Buffers, String> {
        let me = self.position();
        let (ld, state_bytes) = (self.holding.buffers.ld, self.header.id.state_bytes as usize);
        let then = buffers_then(&self.layout, &self.scheme, group, me, ld, state_bytes);
        let then = then.and_then(|buffers| {
            let words = buffers.checksum_words();
            if self.holding.saved().spare(words).0.is_none() && room.is_none() {
                *room = Some(Region::anonymous(words * 8).map_err(|e| e.to_string())?);
            }
            Ok(buffers)
        });
        self.world.troubles(then.as_ref().err().cloned()).map_or(then, Err)
    }
}

/// Rebuilds the lost members of this position's group, with the layout of the group that wrote the files. Collective call of the
/// world.
fn rebuild<W: World, G: GroupComm>(
    shares: Shares,
    world: &W,
    layout: &Layout,
    plan: &Recall,
    make_group: impl Fn(&W, usize, usize, &[usize]) -> G,
    pool: &mut Pool,
) {
    let me = world.rank();
    let (group, place) = plan.group_of(me);
    let members: Vec<usize> = group.check.members.iter().map(|&member| member as usize).collect();
    let comm = make_group(world, group.check.group as usize, place, &members);
    let stripes = Stripes::new(group.layout.spread(), members.len(), group.check.losses as usize);
    let coder = Coder { code: group.code, stripes };
    let whole = layout.window(&members, 0, Scope::Whole);
    pool.few(hands::MOST, |panel_threads| {
        let hands = Hands { panel_threads, seen: None };
        shares.rebuild(&comm, coder, whole, &group.lost, hands, me);
    });
}

/// Passes each position's file to `take` on the position's rank. If another rank has the file, that rank sends it. All ranks work
/// in the order of positions, so there is no deadlock. An error concerns only this position's file.
fn exchange_files<W: World>(
    world: &W,
    stored: StoredCheckpoint,
    plan: &Recall,
    mut take: impl FnMut(Source) -> Result<(), String>,
) -> Result<(), String> {
    let me = world.rank();
    let mut taken = Ok(());
    for (position, reader) in plan.readers.iter().enumerate() {
        let Some(reader) = reader else { continue };
        match (reader.rank == me, position == me) {
            (true, true) => taken = stored.open(position).and_then(&mut take),
            (true, false) => send_file(world, &stored.path(position), position),
            (false, true) => {
                let mut coming = Coming::new(world, reader.rank);
                let name =
                    PathBuf::from(format!("p{position} on the node of position {}", reader.rank));
                taken = Source::over(Box::new(&mut coming), &name, stored.about, position as u32)
                    .and_then(&mut take);
                coming.drain();
            }
            (false, false) => {}
        }
    }
    taken
}
