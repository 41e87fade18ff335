//! Start of a test under protection: fresh, or from the memory or storage of an earlier process.
//!
//! Every rank calls [`Checkpointer::start`]. All decisions follow from the same gathered facts, so all ranks get the same result:
//! all resume, or all get an error, and none is left waiting.

use super::fetching::{Fetched, Way, look};
use super::groups;
use super::holding::{Holding, OpenHead, open_head};
use super::identity::identity;
use super::known::{Fact, Known};
use super::lease::Lease;
use super::level2::{Level2, seats};
use super::plan::Buffers;
use super::protocol::{Decision, Method, Recovery, Setup, Transitions};
use super::save::Checkpointer;
use super::taking::{Early, Memory, make_way};
use super::terms::{Config, Origin, Restart, Restored, StartError, Started, Test, now};
use super::when::Scheduler;
use super::world::{NOTHING, World};
use crate::base::clock::Instant;
use crate::base::faults::{self, Point, hit};
use crate::base::threads::Pool;
use crate::checkpoint::storage::{About, Sight};
use crate::parity::GroupComm;
use crate::parity::exchange::Coder;
use crate::shm::header::{Claim, Doing, EpochId, Head, Header, HeaderFault, Mark, Stage};
use crate::shm::{Depot, Hold, MemoryError, Part, Region};

/// Lets injected faults reach this job's memory.
fn arm(depot: &Depot) {
    if faults::armed() {
        let of = depot.clone();
        faults::set_corruptor(move |position, part, offset| {
            let flipped = Part::parse(part).is_some_and(|p| of.flip(position as u32, p, offset));
            assert!(flipped, "position {position} has no byte {offset} in {part} to be flipped");
        });
        let of = depot.clone();
        faults::set_remover(move |position| of.unlink_position(position as u32));
    }
}

/// Describes why memory is not available. If there is a checkpoint to resume from, the advice must not be to remove it, nor to
/// choose another N, to which the checkpoint would not belong.
fn words(error: &MemoryError, goes_on: bool) -> String {
    match error {
        MemoryError::NoRoom { what, wanted, available, place } if goes_on => format!(
            "{what}: {wanted} bytes are wanted, {available} bytes are free in {place} on this node; make room there (a larger \
             size= mount option, or less of others' memory), or start with another node in its place"
        ),
        other => other.to_string(),
    }
}

/// Joins the problems of all ranks into one text; None if there are none.
fn trouble<W: World>(world: &W, mine: Option<String>) -> Option<String> {
    // Usually there are none, and only one number is exchanged.
    if world.least(&[if mine.is_some() { 0 } else { NOTHING }]) == [NOTHING] {
        return None;
    }
    let text = mine.unwrap_or_default();
    let all: Vec<String> = world
        .allgather(text.as_bytes())
        .iter()
        .enumerate()
        .filter(|(_, t)| !t.is_empty())
        .map(|(position, t)| format!("position {position}: {}", String::from_utf8_lossy(t)))
        .collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Memory of this position at the start.
struct Here {
    /// None only if the position could not be locked.
    hold: Option<Hold>,
    head: Option<Head>,
    header: Option<Header>,
    /// Reason why this memory cannot be used.
    trouble: String,
    /// True if a header exists that may once have been valid.
    unread: bool,
}

impl Here {
    /// Locks the position and reads its header. An error is the same on all ranks.
    fn look<W: World>(world: &W, config: &Config) -> Result<Self, StartError> {
        let me = world.rank();
        // Rank 0 comes first: of two runs that begin at the same moment under one name, one gets all positions.
        let mut hold = None;
        let mut opened = Ok(None);
        for turn in [true, false] {
            if (me == 0) == turn {
                match config.depot.hold(me as u32) {
                    Ok(held) => hold = Some(held),
                    Err(error) => opened = Err(error),
                }
            }
            let refused = matches!(opened, Err(MemoryError::InUse { .. }));
            if turn && world.first_says(u64::from(refused)) != 0 {
                break;
            }
        }
        // Reads this position's memory, then exchanges problems with all others.
        if let Some(hold) = &mut hold {
            opened = open_head(hold, me);
            if config.restart == Restart::Never && !matches!(opened, Ok(None)) {
                opened = Ok(None);
                config.depot.unlink(me as u32, Part::Done);
                Holding::discard(&config.depot, me, hold);
            }
        }
        let mut unread = false;
        let (head, header, trouble_here) = match opened {
            Ok(Some(OpenHead { head, header: Ok(header) })) => {
                (Some(head), Some(header), String::new())
            }
            Ok(Some(OpenHead { head, header: Err(fault) })) => {
                unread = !matches!(fault, HeaderFault::Blank | HeaderFault::Short(_));
                (Some(head), None, format!("a header, but {fault}"))
            }
            Ok(None) => (None, None, String::new()),
            Err(error @ MemoryError::InUse { .. }) => {
                let text = trouble(world, Some(error.to_string())).unwrap_or_default();
                return Err(StartError::Taken(text));
            }
            // Memory that cannot be opened is lost. If creating it again fails, that error will explain it.
            Err(error) => (None, None, error.to_string()),
        };
        if let Some(text) = trouble(world, None) {
            return Err(StartError::Taken(text));
        }
        // Memory with the layout of another program stays as it is.
        if let Some(head) = head.as_ref().filter(|_| !unread) {
            head.tick(Doing::Starting, 0);
            head.take_pulse();
        }
        Ok(Self { hold, head, header, trouble: trouble_here, unread })
    }
}

/// Gathers the facts of all ranks, by position.
fn gather<W: World>(world: &W, fact: &Fact) -> Vec<Fact> {
    world
        .allgather(&fact.to_bytes())
        .iter()
        .map(|bytes| Fact::from_bytes(bytes).expect("ranks of one run are one program"))
        .collect()
}

/// Checkpoints on storage; the same on every rank.
struct Offers {
    /// Checkpoints not found unusable so far, the best first.
    stored: Vec<About>,
    /// Problems of other checkpoints, in words.
    unusable: Vec<String>,
    /// Directory id for each position: the first position that sees the same DIR.
    seats: Vec<usize>,
}

impl Offers {
    fn of<W: World>(world: &W, config: &Config) -> Self {
        let storage = config.storage.as_ref();
        Self {
            stored: storage.map(|s| s.stored.clone()).unwrap_or_default(),
            unusable: storage.map(|s| s.damaged.clone()).unwrap_or_default(),
            seats: storage.map(|storage| seats(world, storage)).unwrap_or_default(),
        }
    }

    /// Removes the best checkpoint from the list and returns it; None if its files cannot be used. `whole` reads all of them.
    fn take_best<W: World>(
        &mut self,
        world: &W,
        asked: (&Config, &Test),
        whole: bool,
    ) -> Option<(About, Way)> {
        let about = self.stored.remove(0);
        match look(world, asked, &about, &self.seats, whole) {
            Ok(way) => Some((about, way)),
            Err(trouble) => {
                self.unusable.push(trouble);
                None
            }
        }
    }

    /// Error if none of them can be used, nor `memory`.
    fn refused(&self, config: &Config, memory: &str) -> StartError {
        let what: String = self.unusable.iter().map(|why| format!("  {why}\n")).collect();
        let dir = config.storage.as_ref().map(|s| s.shelf.dir().display().to_string());
        StartError::Storage {
            dir: dir.unwrap_or_default(),
            apart: config.storage.as_ref().is_some_and(|storage| storage.sight == Sight::Node),
            job: config.depot.job().into(),
            what: format!("{memory}{what}"),
        }
    }
}

/// Origin on which the ranks have agreed.
enum Agreed {
    Nothing,
    /// A checkpoint in memory.
    Memory(Recovery),
    /// A checkpoint on storage, and the way to read its files.
    Storage(About, Way),
}

/// Decides; lets every rank check the data on which the decision relies; decides again without damaged memory.
fn agree<W: World>(
    world: &W,
    (config, test, setup): (&Config, &Test, &Setup),
    known: &mut Known,
    (memory, early): (&mut Memory, &mut Early),
    offers: &mut Offers,
    told: bool,
    pool: &mut Pool,
) -> Result<Agreed, StartError> {
    let me = world.rank();
    let in_place = config.storage.as_ref().is_some_and(|storage| storage.in_place);
    // If memory has a run, checkpoints of earlier runs come last, however far they are.
    let run = known.run();
    offers.stored.sort_by_key(|about| told && about.run < run);
    loop {
        let best = offers.stored.first().map(|about| (about.run, about.boundary));
        let recovery = match known.decide(setup, in_place, best) {
            Decision::Fetch => {
                // All files are read beforehand if something would be given up for them, or if there is a choice.
                let disk = config.scheme.method == Method::Disk;
                let whole = !disk && (told || offers.stored.len() > 1);
                match offers.take_best(world, (config, test), whole) {
                    Some((about, way)) => return Ok(Agreed::Storage(about, way)),
                    None => continue,
                }
            }
            // If there was something, the program must not decide to start from scratch.
            Decision::Fresh if !offers.unusable.is_empty() => {
                return Err(offers.refused(config, ""));
            }
            Decision::Fresh => return Ok(Agreed::Nothing),
            Decision::Refuse(refusal) if !offers.unusable.is_empty() => {
                let survey = format!("{refusal}\n{}", known.survey());
                return Err(offers.refused(config, &survey));
            }
            Decision::Refuse(refusal) => return Err(known.refused(refusal, config)),
            Decision::Restore(r) | Decision::FinishAndRestore(r) => r,
        };
        let sound = match known.header(me) {
            Some(header) if !recovery.lost.contains(&me) => {
                memory.sound(config, test, header, &recovery, me, pool)
            }
            _ => {
                // This rank needs new memory, whatever the others find about theirs.
                let members = setup.groups.iter().find(|members| members.contains(&me));
                let members = members.expect("every position is in a group");
                early.make(&config.buffers(test, members, me));
                Ok(())
            }
        };
        let trouble = sound.err().unwrap_or_default();
        if world.least(&[u64::from(trouble.is_empty())]) == [1] {
            return Ok(Agreed::Memory(recovery));
        }
        known.strike_out(world.allgather(trouble.as_bytes()));
    }
}

/// Returns this position's memory, created again unless it exists and is usable (`kept`). `goes_on` means that the run resumes
/// from a checkpoint. An error is the same on all ranks.
fn take_memory<W: World>(
    world: &W,
    memory: Memory,
    (goes_on, kept): (bool, bool),
    early: &mut Early,
    buffers: &Buffers,
) -> Result<(Holding, Region), StartError> {
    match memory {
        Memory::Open(open) if kept => {
            if let Some(text) = trouble(world, None) {
                return Err(StartError::Memory(text));
            }
            Ok(*open)
        }
        other => {
            // The lock on replaced memory must be released before new memory is created.
            drop(other);
            let made = early.take(buffers);
            if let Some(text) =
                trouble(world, made.as_ref().err().map(|error| words(error, goes_on)))
            {
                // Without the others' memory it is useless, and takes their room.
                early.discard();
                return Err(StartError::Memory(text));
            }
            Ok(made.expect("somebody would have had trouble"))
        }
    }
}

/// Broadcasts rank 0's run id.
fn agreed_run(world: &impl World, mine: u128) -> u128 {
    let told = world.tell(&mine.to_le_bytes(), 0);
    u128::from_le_bytes(told.try_into().expect("sixteen bytes"))
}

impl<W: World, G: GroupComm> Checkpointer<W, G> {
    /// Begins a test: locks this position's memory, agrees with the others on a checkpoint, and restores it or starts fresh.
    /// `world` has one rank for each position, in order of positions. All ranks call `make_group` at the same time, with group
    /// number, own index and member positions: MPI splits its communicator there. All threads of the `pool` take part in
    /// checking, copying and rebuilding.
    pub fn start(
        config: Config,
        test: Test,
        world: W,
        pool: &mut Pool,
        make_group: impl Fn(&W, usize, usize, &[usize]) -> G,
    ) -> Result<Started<W, G>, StartError> {
        let begin = Instant::now();
        config.scheme.check()?;
        let me = world.rank();
        assert_eq!(world.size(), test.layout.positions(), "one rank for each position");
        arm(&config.depot);

        let Here { hold, head, header, trouble, unread } = Here::look(&world, &config)?;
        hit(Point::AgreeBegin, me);
        let fact = Fact {
            run: config.run,
            unix_ms: now().as_millis() as u64,
            domain: config.domain.clone(),
            node: config.node.clone(),
            leader: config.leader as u64,
            trouble,
            unread,
            header,
        };
        let mut known = Known::new(gather(&world, &fact), &test, &config)?;
        let told = known.tells();
        let setup = Setup {
            method: config.scheme.method,
            losses: config.scheme.losses,
            groups: known.groups(&test, &config)?,
        };
        let (latest, joined) = (known.leading(), known.joins());
        let mut memory = Memory::Closed(head);
        let mut early = Early::new(&config.depot, me, hold);
        let mut offers = Offers::of(&world, &config);
        let taking = (&mut memory, &mut early);
        let asked = (&config, &test, &setup);
        let agreed = agree(&world, asked, &mut known, taking, &mut offers, told, pool)?;
        hit(Point::Agreed, me);
        if matches!(agreed, Agreed::Nothing) && config.restart == Restart::Require {
            return Err(StartError::Nothing { job: config.depot.job().into() });
        }

        // Groups stay as they were saved; a fresh start may form new ones.
        let groups = match agreed {
            Agreed::Memory(_) => setup.groups,
            _ => known.groups_anew(&test, &config)?,
        };
        // A checkpoint from storage gets a new run id, so that old copies in memory never belong to it, wherever they appear.
        let run = match (&agreed, &config.storage) {
            (Agreed::Storage(..), Some(storage)) => agreed_run(&world, storage.fresh_run),
            _ => known.run(),
        };
        let crowded = groups::crowded(&groups, &known.domains(), config.scheme.losses);
        let (number, members) = groups
            .into_iter()
            .enumerate()
            .find(|(_, members)| members.contains(&me))
            .expect("every position is in a group");
        // A group keeps the number in its headers, whatever the order here.
        let number = match &agreed {
            Agreed::Memory(_) => known.number_of_group(me).unwrap_or(number),
            _ => number,
        };
        let place = members.iter().position(|&m| m == me).expect("found above");
        let group = make_group(&world, number, place, &members);
        let buffers = config.buffers(&test, &members, me);
        let stripes = config.scheme.stripes(members.len());
        let coder = Coder { code: config.scheme.code, stripes };
        // Header of this position's usable memory, if it is not lost.
        let kept = match &agreed {
            Agreed::Memory(recovery) if !recovery.lost.contains(&me) => known.header(me),
            _ => None,
        };
        let neighbours = known.neighbours(me);
        if neighbours.first() == Some(&me) {
            let recovery = match &agreed {
                Agreed::Memory(recovery) => Some(recovery),
                _ => None,
            };
            // A copy of a position that must still be rebuilt stays: if this start is interrupted before, the next may need it.
            let stands_in = |header: &Header| {
                recovery.is_some_and(|recovery| {
                    recovery.lost.contains(&(header.id.position as usize))
                        && header.claim.supplies(recovery.target)
                })
            };
            make_way(&config.depot, &neighbours, |header| {
                (header.id.run, header.id.test) == (run, test.index)
                    && header.claim.stage != Stage::Vacant
                    && (Some(header.claim.joined) == latest || stands_in(header))
            });
        }
        // Memory is created only after the room is free.
        world.barrier();
        let goes_on = !matches!(agreed, Agreed::Nothing);
        let taken = (goes_on, kept.is_some());
        let (holding, mut a) = take_memory(&world, memory, taken, &mut early, &buffers)?;
        let hold = early.keep();
        let claim = match (&agreed, kept) {
            (Agreed::Memory(r), Some(header)) => header.claim.pinned(joined, r.target),
            (Agreed::Memory(r), None) => Claim::vacant(joined, r.target),
            // For method disk, memory records that there was a checkpoint, even if the process is killed while reading it.
            (Agreed::Storage(about, _), _) if config.scheme.method == Method::Disk => {
                let epoch = EpochId { epoch: about.epoch, made: joined };
                Claim::generating(joined).stored(epoch)
            }
            _ => Claim::generating(joined),
        };
        let base = match &agreed {
            Agreed::Storage(about, _) if claim.base.is_some() => {
                Mark { boundary: about.boundary, root: 0 }
            }
            _ => kept.map(|h| h.base).unwrap_or_default(),
        };
        let mut this = Checkpointer {
            unfinished: None,
            group,
            depot: config.depot.clone(),
            holding,
            hold,
            header: Header {
                id: identity(&test, &config, run, me, (number, &members)),
                claim,
                base,
                seal: kept.map(|h| h.seal).unwrap_or_default(),
            },
            layout: test.layout,
            scheme: config.scheme,
            coder,
            encode: config.encode,
            scheduler: Scheduler::new(config.interval, 0, 0.0),
            lease: Lease::default(),
            copies: [None; 2],
            started: Instant::now(),
            level2: config.storage.clone().filter(|storage| !storage.read_only).map(|storage| {
                let seats = (&offers.seats[..], test.layout.working());
                let disk = config.scheme.method == Method::Disk;
                Level2::new(storage, &config.depot, seats, me, disk)
            }),
            world,
        };
        this.holding.head.write(&this.header);
        let origin = match agreed {
            Agreed::Storage(about, way) => {
                let asked = (&config, &test);
                let best = (about, way);
                let fetched = this.fetch_any(asked, best, offers, &mut a, &make_group, pool);
                let (about, Fetched { state, rebuilt, wrong, starts }) = fetched?;
                Origin::Restored(Restored {
                    boundary: about.boundary as usize,
                    epoch: about.epoch,
                    state,
                    rebuilt,
                    damaged: [known.unusable(), wrong].concat(),
                    fetched: Some(starts),
                })
            }
            Agreed::Nothing => {
                this.tick(Doing::Generating, 0);
                hit(Point::GenerateBegin, me);
                Origin::Fresh
            }
            Agreed::Memory(recovery) => {
                let mark = known.mark(&recovery);
                // Digest from the header of memory that could not be used: the rebuilt data must match it.
                let held = known.root_once_held(me, &recovery).filter(|_| kept.is_none());
                let mut restored = this.recover(&recovery, mark, held, &mut a, pool)?;
                restored.damaged = known.unusable();
                Origin::Restored(restored)
            }
        };
        let boundary = match &origin {
            Origin::Fresh => 0,
            Origin::Restored(r) => r.boundary,
        };
        if let Some(level2) = &mut this.level2 {
            level2.settle_first(&this.header.id, None, || this.world.attend());
        }
        this.started = Instant::now();
        this.scheduler = Scheduler::new(config.interval, boundary, 0.0);
        let seconds = begin.elapsed().as_secs_f64();
        Ok(Started { checkpointer: this, a, origin, crowded, seconds })
    }

    /// Fills the matrix from `best`. If that one's files turn out to be unusable, tries other checkpoints on storage, unless
    /// something was given up for `best`.
    fn fetch_any(
        &mut self,
        (config, test): (&Config, &Test),
        best: (About, Way),
        mut offers: Offers,
        a: &mut Region,
        make_group: impl Fn(&W, usize, usize, &[usize]) -> G,
        pool: &mut Pool,
    ) -> Result<(About, Fetched), StartError> {
        let storage = config.storage.as_ref().expect("an epoch there was chosen");
        let disk = config.scheme.method == Method::Disk;
        let mut best = Some(best);
        while let Some((about, way)) = best.take() {
            match self.fetch((storage, &about), way, a, &make_group, pool) {
                Ok(fetched) => return Ok((about, fetched)),
                Err(trouble) => offers.unusable.push(trouble),
            }
            // If nothing was given up for it, its files were not read beforehand, and an older checkpoint may do.
            while disk && best.is_none() && !offers.stored.is_empty() {
                best = offers.take_best(&self.world, (config, test), false);
            }
        }
        // The partly filled memory is useless.
        let me = self.position();
        Holding::discard(&self.depot, me, &mut self.hold);
        Err(offers.refused(config, ""))
    }
}
