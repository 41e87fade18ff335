//! Start of a protected test: from scratch, or from the memory or storage of an earlier process.
//!
//! Every rank calls [`Checkpointer::start`]. All decisions follow from the same gathered facts, so all ranks get the same result.
//! Either all ranks resume, or all get an error, and no rank waits for another one in vain.

use std::io;
use std::sync::Arc;

use super::fetching::{Fetched, StoredCheckpoint, Way, look};
use super::groups;
use super::holding::{Holding, open_head};
use super::identity::identity;
use super::known::{Fact, Known};
use super::lease::Lease;
use super::level2::{Level2, dir_ids};
use super::on_device::OnDevice;
use super::plan::Scheme;
use super::protocol::{Decision, Method, Recovery, Setup};
use super::save::Checkpointer;
use super::taking::{PositionMemory, Taken, make_way};
use super::terms::{Config, Origin, Restored, StartError, Started, Terms, Test};
use super::when::Scheduler;
use super::world::World;
use crate::base::clock::{self, Instant};
use crate::base::faults::{self, Point, hit};
use crate::base::threads::Pool;
use crate::checkpoint::storage::{About, DirScope};
use crate::device::{Buffer, Device};
use crate::parity::GroupComm;
use crate::parity::exchange::Coder;
use crate::shm::header::{CheckpointId, Claim, Doing, Header, HeaderFault, Mark, Stage};
use crate::shm::{MemoryError, MemoryStore, Part, Region};

/// Registers the functions with which injected faults damage or remove this job's memory.
fn arm(memory_store: &MemoryStore) {
    if faults::armed() {
        let of = memory_store.clone();
        faults::set_corruptor(move |position, part, offset| {
            let flipped = Part::parse(part).is_some_and(|p| of.flip(position as u32, p, offset));
            assert!(flipped, "position {position} has no byte {offset} in {part} to be flipped");
        });
        let of = memory_store.clone();
        faults::set_remover(move |position| of.unlink_position(position as u32));
    }
}

/// Facts about a rank without any memory.
fn fact_of(config: &Config) -> Fact {
    Fact {
        run: config.run,
        unix_ms: clock::since_1970().as_millis() as u64,
        domain: config.domain.clone(),
        node: config.node.clone(),
        leader: config.leader as u64,
        trouble: String::new(),
        unread: false,
        header: None,
    }
}

/// Locks this position and reads its header. Returns its memory, and the facts about this rank and its memory, which all ranks
/// receive. An error is the same on all ranks.
fn look_at_position<'a, W: World>(
    world: &W,
    config: &'a Config,
) -> Result<(PositionMemory<'a>, Fact), StartError> {
    let me = world.rank();
    // Rank 0 locks first. So if two runs with one name begin at the same moment, one run gets all positions.
    let mut hold = None;
    let mut opened = Ok(None);
    for turn in [true, false] {
        if (me == 0) == turn {
            match config.memory_store.hold(me as u32) {
                Ok(held) => hold = Some(held),
                Err(error) => opened = Err(error),
            }
        }
        let refused = matches!(opened, Err(MemoryError::InUse { .. }));
        if turn && world.first_says(u64::from(refused)) != 0 {
            break;
        }
    }
    // Reads this position's header, then exchanges problems with all other ranks.
    if let Some(hold) = &hold {
        opened = open_head(hold);
    }
    let is_taken = |error: &&MemoryError| matches!(error, MemoryError::InUse { .. });
    let taken = opened.as_ref().err().filter(is_taken).map(ToString::to_string);
    if let Some(text) = world.troubles(taken) {
        return Err(StartError::Taken(text));
    }
    let mut fact = fact_of(config);
    let mut head = None;
    match opened {
        Ok(None) => {}
        Ok(Some(open)) => {
            match open.header {
                Ok(header) => fact.header = Some(header),
                Err(fault) => {
                    fact.unread = !matches!(fault, HeaderFault::Blank | HeaderFault::Short(_));
                    fact.trouble = format!("a header, but {fault}");
                }
            }
            // A header of another version of the program is not changed.
            if !fact.unread {
                open.head.tick(Doing::Starting, 0);
                open.head.take_pulse();
            }
            head = Some(open.head);
        }
        // Memory that cannot be opened is lost. If creating it again fails, too, that error explains the problem.
        Err(error) => fact.trouble = error.to_string(),
    }
    Ok((PositionMemory::new(&config.memory_store, me, hold, head), fact))
}

/// Checkpoints on storage; the same on every rank.
struct Offers {
    /// Checkpoints that have not been found unusable, the best first.
    stored: Vec<About>,
    /// Error texts about checkpoints that turned out to be unusable.
    unusable: Vec<String>,
    /// Directory id of each position: the first position that uses the same DIR. Empty without storage.
    dir_ids: Vec<usize>,
}

impl Offers {
    fn of<W: World>(world: &W, config: &Config) -> Self {
        let storage = config.storage.as_ref();
        Self {
            stored: storage.map(|s| s.stored.clone()).unwrap_or_default(),
            unusable: storage.map(|s| s.damaged.clone()).unwrap_or_default(),
            dir_ids: storage.map(|storage| dir_ids(world, storage)).unwrap_or_default(),
        }
    }

    /// Removes the best checkpoint from the list, checks its files, and returns the checkpoint with the facts about its files.
    /// Returns None if the files cannot be used. With `whole`, reads the files completely.
    fn take_best<W: World>(
        &mut self,
        world: &W,
        terms: Terms,
        whole: bool,
    ) -> Option<(About, Way)> {
        let about = self.stored.remove(0);
        match look(world, terms, &about, &self.dir_ids, whole) {
            Ok(way) => Some((about, way)),
            Err(trouble) => {
                self.unusable.push(trouble);
                None
            }
        }
    }

    /// Returns the error of a start for which no checkpoint on storage can be used. `memory` describes why memory cannot be used
    /// either.
    fn refused(&self, config: &Config, memory: &str) -> StartError {
        let what: String = self.unusable.iter().map(|why| format!("  {why}\n")).collect();
        let storage = config
            .storage
            .as_ref()
            .expect("checkpoints on storage can only be unusable if there is storage");
        StartError::Storage {
            dir: storage.checkpoint_dir.dir().display().to_string(),
            apart: storage.dir_scope == DirScope::Node,
            job: config.memory_store.job().into(),
            what: format!("{memory}{what}"),
        }
    }
}

/// Source of the matrix on which all ranks have agreed.
enum Source {
    Nothing,
    /// A checkpoint in memory.
    Memory(Recovery),
    /// A checkpoint on storage, and the facts about its files that all ranks know.
    Storage(About, Way),
}

/// Agreement of all ranks on the start of a test; the same on every rank.
struct Agreement<'a> {
    terms: Terms<'a>,
    known: Known,
    /// True if memory at any position belongs to this test.
    has_memory: bool,
    setup: Setup,
    offers: Offers,
    source: Source,
    run: u128,
    /// Attempt from whose memory the run resumes. None if no memory belongs to this test.
    latest: Option<u64>,
    /// Number of the present attempt.
    joined: u64,
}

impl<'a> Agreement<'a> {
    /// Lets all ranks agree on the source of the matrix, and on the groups and the run id that follow from it.
    fn reach<W: World>(
        world: &W,
        terms: Terms<'a>,
        mut known: Known,
        memory: &mut PositionMemory,
        pool: &mut Pool,
    ) -> Result<Self, StartError> {
        let Terms { config, test } = terms;
        let Scheme { method, losses, .. } = config.scheme;
        let has_memory = known.tells();
        let setup = Setup { method, losses, groups: known.groups(test, config)? };
        let (run, latest, joined) = (known.run(), known.leading(), known.joins());
        let (offers, source) = (Offers::of(world, config), Source::Nothing);
        let mut this =
            Self { terms, known, has_memory, setup, offers, source, run, latest, joined };
        this.source = this.choose(world, memory, pool)?;
        hit(Point::Agreed, world.rank());
        if matches!(this.source, Source::Nothing) && config.must_resume {
            return Err(StartError::Nothing { job: config.memory_store.job().into() });
        }
        // A run that resumes from memory keeps the groups in the headers. Any other start may form new groups.
        if this.recovery().is_none() {
            this.setup.groups = this.known.new_groups(test, config)?;
        }
        // A run that resumes from storage gets a new run id. So memory of old copies never belongs to the run, on whatever node
        // it appears.
        if let (Source::Storage(..), Some(storage)) = (&this.source, &config.storage) {
            // All ranks use rank 0's id.
            let run = world.tell(&storage.fresh_run.to_le_bytes(), 0);
            this.run = u128::from_le_bytes(run.try_into().expect("sixteen bytes"));
        }
        Ok(this)
    }

    /// Decides on the source of the matrix, and lets every rank check the data of this source. If the memory of a rank is
    /// damaged, discards this memory and decides again.
    fn choose<W: World>(
        &mut self,
        world: &W,
        memory: &mut PositionMemory,
        pool: &mut Pool,
    ) -> Result<Source, StartError> {
        let Self { terms, known, has_memory, setup, offers, run, .. } = self;
        let (Terms { config, test }, has_memory, run) = (*terms, *has_memory, *run);
        let me = world.rank();
        let in_place = config.storage.as_ref().is_some_and(|storage| storage.in_place);
        // If memory belongs to a run, checkpoints of earlier runs come last, whatever their boundary.
        offers.stored.sort_by_key(|about| has_memory && about.run < run);
        loop {
            let best = offers.stored.first().map(|about| (about.run, about.boundary));
            let recovery = match known.decide(setup, in_place, best) {
                Decision::Fetch => {
                    // If memory is given up for the checkpoint, or if there are other checkpoints, all files are read before the
                    // decision.
                    let disk = config.scheme.method == Method::Disk;
                    let whole = !disk && (has_memory || offers.stored.len() > 1);
                    match offers.take_best(world, *terms, whole) {
                        Some((about, way)) => return Ok(Source::Storage(about, way)),
                        None => continue,
                    }
                }
                // If there were checkpoints that cannot be used, the program must not decide to start from scratch.
                Decision::Fresh if !offers.unusable.is_empty() => {
                    return Err(offers.refused(config, ""));
                }
                Decision::Fresh => return Ok(Source::Nothing),
                Decision::Refuse(refusal) if !offers.unusable.is_empty() => {
                    let survey = format!("{refusal}\n{}", known.survey());
                    return Err(offers.refused(config, &survey));
                }
                Decision::Refuse(refusal) => return Err(known.refused(refusal, config)),
                Decision::Restore(r) => r,
            };
            let sound = match known.header(me) {
                Some(header) if !recovery.lost.contains(&me) => {
                    memory.sound(*terms, header, &recovery, pool)
                }
                _ => {
                    // This rank needs new memory even if other ranks find their memory damaged.
                    let members = setup.groups.iter().find(|members| members.contains(&me));
                    let members = members.expect("every position is in a group");
                    memory.make_early(&config.buffers(test, members, me));
                    Ok(())
                }
            };
            let trouble = sound.err().unwrap_or_default();
            if world.all(trouble.is_empty()) {
                return Ok(Source::Memory(recovery));
            }
            known.discard(world.gather(&trouble));
        }
    }

    /// Recovery to carry out. None unless the run resumes from memory.
    fn recovery(&self) -> Option<&Recovery> {
        match &self.source {
            Source::Memory(recovery) => Some(recovery),
            _ => None,
        }
    }

    /// Header of this position's usable memory. None if the memory is lost, or the run does not resume from memory.
    fn kept(&self, me: usize) -> Option<&Header> {
        self.recovery().filter(|recovery| !recovery.lost.contains(&me))?;
        self.known.header(me)
    }

    /// Removes memory on this node that will not be used. Only the first rank of a node does this; other ranks do nothing.
    fn make_way(&self, me: usize) {
        let neighbours = self.known.neighbours(me);
        if neighbours.first() != Some(&me) {
            return;
        }
        let Terms { config, test } = self.terms;
        // A copy of a position that must still be rebuilt stays. If this start is interrupted before the rebuild, the next start
        // may need the copy.
        let stands_in = |header: &Header| {
            self.recovery().is_some_and(|recovery| {
                recovery.lost.contains(&(header.id.position as usize))
                    && header.claim.supplies(recovery.target)
            })
        };
        make_way(&config.memory_store, &neighbours, |header| {
            (header.id.run, header.id.test) == (self.run, test.index)
                && header.claim.stage != Stage::Vacant
                && (Some(header.claim.joined) == self.latest || stands_in(header))
        });
    }

    /// Header that this position writes first in this attempt.
    fn header(&self, me: usize) -> Header {
        let Terms { config, test } = self.terms;
        let mut groups = self.setup.groups.iter().enumerate();
        let own = groups.find(|(_, members)| members.contains(&me));
        let (number, members) = own.expect("every position is in a group");
        // A group keeps the number that is in its headers.
        let kept = self.recovery().and_then(|_| self.known.number_of_group(me));
        let id = identity(test, config, self.run, me, kept.unwrap_or(number), members);
        let (joined, none) = (self.joined, Mark::default());
        let (claim, base, seal) = match (&self.source, self.kept(me)) {
            (Source::Memory(r), Some(header)) => {
                (header.claim.pinned(joined, r.target), header.base, header.seal)
            }
            (Source::Memory(r), None) => (Claim::vacant(joined, r.target), none, none),
            // With method disk, the header records that there was a checkpoint, even if the process is killed while it reads the
            // checkpoint.
            (Source::Storage(about, _), _) if config.scheme.method == Method::Disk => {
                let checkpoint = CheckpointId { number: about.checkpoint, made: joined };
                let base = Mark { boundary: about.boundary, root: 0 };
                (Claim::generating(joined).settled(checkpoint), base, none)
            }
            _ => (Claim::generating(joined), none, none),
        };
        Header { id, claim, base, seal }
    }

    /// Level two of this position. None if the run has no storage or must not write there.
    fn level2(&self, me: usize) -> Option<Level2> {
        let Terms { config, test } = self.terms;
        let storage = config.storage.clone().filter(|storage| !storage.read_only)?;
        let disk = config.scheme.method == Method::Disk;
        let (dir_ids, working) = (&self.offers.dir_ids, test.layout.working());
        Some(Level2::new(storage, dir_ids, working, me, disk))
    }
}

/// Allocates the matrix in device memory, and pins the copies of checkpoints.
fn pin_and_allocate(
    device: &Arc<dyn Device>,
    holding: &mut Holding,
) -> io::Result<(OnDevice, Buffer)> {
    let (matrix, buffer) = OnDevice::allocate(device, &holding.buffers)?;
    let saved = holding.saved();
    let copies = [&mut saved.b, &mut saved.e].into_iter().flatten();
    saved.pins = copies.map(|copy| matrix.pin(copy)).collect::<io::Result<_>>()?;
    Ok((matrix, buffer))
}

impl<W: World, G: GroupComm> Checkpointer<W, G> {
    /// Begins a test: locks this position's memory, agrees with all ranks on a checkpoint, and restores it or starts from
    /// scratch. `world` has one rank for each position, in order of positions. All ranks call `make_group` at the same time,
    /// because MPI then splits its communicator. The arguments of `make_group` are the world, the number of the group, the rank's
    /// index in the group, and the members. All threads of the `pool` take part in checking, copying and rebuilding.
    pub fn start(
        config: Config,
        test: Test,
        world: W,
        pool: &mut Pool,
        make_group: impl Fn(&W, usize, usize, &[usize]) -> G,
    ) -> Result<Started<W, G>, StartError> {
        config.scheme.check()?;
        let (me, scheme) = (world.rank(), config.scheme);
        assert_eq!(world.size(), test.layout.positions(), "one rank for each position");
        arm(&config.memory_store);
        let terms = Terms { config: &config, test: &test };

        let (mut memory, fact) = look_at_position(&world, &config)?;
        hit(Point::AgreeBegin, me);
        let known = Known::new(world.gather(&fact), &test, &config)?;
        let agreement = Agreement::reach(&world, terms, known, &mut memory, pool)?;

        let Setup { groups, losses, .. } = &agreement.setup;
        let crowded = groups::crowded(groups, &agreement.known.domains(), *losses);
        let header = agreement.header(me);
        let members: Vec<usize> = header.id.members.iter().map(|&member| member as usize).collect();
        let place = members.iter().position(|&member| member == me).expect("it is one of them");
        let group = make_group(&world, header.id.group as usize, place, &members);
        agreement.make_way(me);
        // All ranks wait here: memory is created only after unused memory has been removed.
        world.barrier();
        let buffers = config.buffers(&test, &members, me);
        let resumes = !matches!(agreement.source, Source::Nothing);
        let kept = agreement.kept(me).is_some();
        let Taken { mut holding, mut a, mut hold } =
            memory.take(&world, resumes, kept, &buffers)?;
        let device = config.device.as_ref().map(|device| pin_and_allocate(device, &mut holding));
        let on_device = device.transpose();
        let problem = on_device.as_ref().err().map(|why| format!("device memory: {why}"));
        if let Some(text) = world.troubles(problem) {
            if !kept {
                Holding::discard(&mut hold);
            }
            return Err(StartError::Memory(text));
        }
        let (on_device, buffer) = on_device.expect("no rank has a problem").unzip();
        let mut this = Checkpointer {
            unfinished: None,
            group,
            holding,
            hold,
            header,
            layout: test.layout,
            scheme,
            coder: Coder { code: scheme.code, stripes: scheme.stripes(members.len()) },
            encode: config.encode,
            scheduler: Scheduler::new(config.interval, 0, 0.0),
            lease: Lease::default(),
            copies: [None; 2],
            on_device,
            started: Instant::now(),
            level2: agreement.level2(me),
            world,
        };
        this.publish();
        let origin = this.fill(agreement, &mut a, make_group, pool)?;
        if let Some(level2) = &mut this.level2 {
            level2.settle_first(&this.header.id, None, || this.world.attend());
        }
        this.started = Instant::now();
        this.scheduler = Scheduler::new(config.interval, origin.boundary(), 0.0);
        Ok(Started { checkpointer: this, a, on_device: buffer, origin, crowded })
    }

    /// Restores the matrix from the source on which all ranks have agreed. If the matrix must be generated, only returns
    /// [`Origin::Fresh`].
    fn fill(
        &mut self,
        agreement: Agreement,
        a: &mut Region,
        make_group: impl Fn(&W, usize, usize, &[usize]) -> G,
        pool: &mut Pool,
    ) -> Result<Origin, StartError> {
        let me = self.position();
        let kept = agreement.kept(me).is_some();
        let Agreement { terms, known, offers, source, .. } = agreement;
        let restored = match source {
            Source::Storage(about, way) => {
                let fetched = self.fetch_any(terms, (about, way), offers, a, make_group, pool);
                let (about, Fetched { state, rebuilt, wrong, starts }) = fetched?;
                Restored {
                    boundary: about.boundary as usize,
                    checkpoint: about.checkpoint,
                    state,
                    rebuilt,
                    damaged: [known.unusable(), wrong].concat(),
                    fetched: Some(starts),
                }
            }
            Source::Nothing => {
                self.tick(Doing::Generating, 0);
                hit(Point::GenerateBegin, me);
                return Ok(Origin::Fresh);
            }
            Source::Memory(recovery) => {
                let boundary = known.boundary_of(recovery.target);
                let boundary = boundary.expect("a target has a supplier") as usize;
                // Digest in the header of memory that could not be used. The rebuilt data must match it.
                let root = known.root_once_held(me, recovery.target).filter(|_| !kept);
                let restored = self.recover(&recovery, boundary, root, a, pool)?;
                Restored { damaged: known.unusable(), ..restored }
            }
        };
        Ok(Origin::Restored(restored))
    }

    /// Fills the matrix from the checkpoint `best`. If its files turn out to be unusable, method disk tries its other checkpoints
    /// on storage. With any other method the result is an error.
    fn fetch_any(
        &mut self,
        terms: Terms,
        best: (About, Way),
        mut offers: Offers,
        a: &mut Region,
        make_group: impl Fn(&W, usize, usize, &[usize]) -> G,
        pool: &mut Pool,
    ) -> Result<(About, Fetched), StartError> {
        let config = terms.config;
        let storage = config.storage.as_ref().expect("a checkpoint there was chosen");
        let disk = config.scheme.method == Method::Disk;
        let mut best = Some(best);
        while let Some((about, way)) = best.take() {
            let stored = StoredCheckpoint { storage, about: &about };
            match self.fetch(stored, way, a, &make_group, pool) {
                Ok(fetched) => return Ok((about, fetched)),
                Err(trouble) => offers.unusable.push(trouble),
            }
            // Method disk has not read the files before the decision and has given up no memory. So an older checkpoint can be
            // used.
            while disk && best.is_none() && !offers.stored.is_empty() {
                best = offers.take_best(&self.world, terms, false);
            }
        }
        // The memory is only partly filled, and useless.
        Holding::discard(&mut self.hold);
        Err(offers.refused(config, ""))
    }
}
