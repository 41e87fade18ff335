//! The start of a test under protection: fresh, or from what an earlier process left.
//!
//! Every rank calls [`Checkpointer::start`]; every decision is made from the same gathered facts, so
//! all ranks come to the same end: all go on, or all get an error, and none is left waiting.

use std::collections::BTreeMap;
use std::time::Instant;

use thiserror::Error;

use super::fetching::{Fetched, look};
use super::groups::{self, GroupError, Groups};
use super::holding::{Holding, OpenHead, open_head};
use super::layout::ChecksumLayout;
use super::level2::{Level2, Storage, seats};
use super::plan::{Buffers, Encoding, Layout, Scheme, SchemeError};
use super::protocol::{
    Decision, Method, Recovery, Refusal, Setup, Transitions, decide_in_place, decide_with,
    is_settled,
};
use super::save::Checkpointer;
use super::taking::{Early, Memory, mark_of};
use super::when::{Interval, Scheduler};
use super::world::{NOTHING, World};
use crate::faults::{self, Point, hit};
use crate::memory::header::{Claim, Doing, EpochId, Header, Identity, Mark};
use crate::memory::{Depot, MemoryError, Part, Region};
use crate::params::Rng;
use crate::parity::exchange::Coder;
use crate::parity::stripes::Role;
use crate::parity::{GroupComm, Share};
use crate::pulse;
use crate::storage::Sight;

/// What to do with memory an earlier process left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Continue from it if it is there.
    Auto,
    /// Remove it and begin anew.
    Never,
    /// Continue from it, or fail.
    Require,
}

/// Which test this is: memory of any other is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Its number in the input file.
    pub index: u32,
    pub layout: Layout,
    pub rng: Rng,
    pub seed: u64,
    /// Digest of every other choice that must be the same to continue (algorithm, thresholds).
    pub params_digest: u64,
}

/// How the test is to be protected.
#[derive(Clone, Debug)]
pub struct Config {
    pub depot: Depot,
    pub scheme: Scheme,
    /// Wanted group size; None for the default.
    pub group: Option<usize>,
    pub encode: Encoding,
    pub interval: Interval,
    pub restart: Restart,
    /// Room for the small state of a save, the same on every rank.
    pub state_bytes: usize,
    /// Doubles from one local row to the next on this rank.
    pub ld: usize,
    /// The run in progress, as `arrival` found it on the nodes, or a new one's number ([`new_run`]); rank 0's counts.
    pub run: u128,
    /// This rank's failure domain and node, the latter for messages.
    pub domain: String,
    pub node: String,
    /// The second level, if there is one.
    pub storage: Option<Storage>,
}

impl Config {
    /// What position `me` of these members keeps of a test.
    pub(super) fn buffers(&self, test: &Test, members: &[usize], me: usize) -> Buffers {
        Buffers::new(&test.layout, members, me, self.ld, &self.scheme, self.state_bytes)
    }
}

/// A number for a new run: the moment in its upper half, so that later runs compare greater.
pub fn new_run() -> u128 {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64 as u128) << 64 | std::process::id() as u128
}

/// What a test begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The matrix has to be generated.
    Fresh,
    Restored(Restored),
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    pub boundary: usize,
    pub epoch: u64,
    /// The small state that was saved with it; this rank's own.
    pub state: Vec<u8>,
    /// Positions that were rebuilt.
    pub rebuilt: Vec<usize>,
    /// What was wrong with memory that was there but could not be used, by position.
    pub damaged: Vec<(usize, String)>,
    /// Failure domains whose loss would now be more than a group survives, and how many members of one they hold:
    /// ranks took a lost node's place beside others of their group.
    pub crowded: Vec<(String, usize)>,
    /// Whether it came from storage.
    pub fetched: bool,
}

/// A protected test, ready to compute.
pub struct Started<W, G> {
    pub checkpointer: Checkpointer<W, G>,
    /// The local matrix: zeros if fresh, the saved one if restored.
    pub a: Region,
    pub origin: Origin,
    pub seconds: f64,
}

/// Why a test cannot begin. The same on every rank; memory is kept.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Scheme(#[from] SchemeError),
    #[error(transparent)]
    Groups(#[from] GroupError),
    /// Shared memory cannot be allocated: what each rank that failed says.
    #[error("shared memory cannot be allocated: {0}")]
    Memory(String),
    /// More is lost than the checkpoints can make good.
    #[error("{refusal}.\n{survey}The memory is kept; `skt-hpl clean` removes it.")]
    Refused { refusal: Refusal, survey: String },
    /// Memory cannot give the run back, and what lies on storage cannot be believed.
    #[error(
        "memory cannot give this run back, nor can {dir}:\n{what}Nothing is removed; to begin anew, \
         `skt-hpl clean --job {job} --level2 {dir}`{} or --restart never", if *apart { " on each node" } else { "" }
    )]
    Storage { dir: String, apart: bool, job: String, what: String },
    /// There is memory of this job, but not of this test.
    #[error(
        "job {job:?} has memory of another run: {what}. Finish that run, give this one another --job \
         name, or remove the memory with `skt-hpl clean` or --restart never"
    )]
    Other { job: String, what: String },
    #[error("--restart require: no memory of job {job:?} that this run could continue from")]
    Nothing { job: String },
    /// Something changed while it was being recovered.
    #[error("the recovery of epoch {epoch} did not come out whole: {why}")]
    NotWhole { epoch: u64, why: String },
}

/// What each rank tells the others at the start.
struct Fact {
    run: u128,
    domain: String,
    node: String,
    trouble: String,
    header: Option<Header>,
}

impl Fact {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.run.to_le_bytes().to_vec();
        let header = self.header.as_ref().map(Header::to_bytes).unwrap_or_default();
        for piece in
            [self.domain.as_bytes(), self.node.as_bytes(), self.trouble.as_bytes(), &header]
        {
            out.extend_from_slice(&(piece.len() as u64).to_le_bytes());
            out.extend_from_slice(piece);
        }
        out
    }

    fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let run = u128::from_le_bytes(*bytes.split_off(..16)?.first_chunk()?);
        let mut piece = || {
            let length = u64::from_le_bytes(*bytes.split_off(..8)?.first_chunk()?) as usize;
            bytes.split_off(..length)
        };
        let mut text = || Some(String::from_utf8_lossy(piece()?).into_owned());
        let (domain, node, trouble) = (text()?, text()?, text()?);
        Some(Self { run, domain, node, trouble, header: Header::from_bytes(piece()?).ok() })
    }
}

fn gather<W: World>(world: &W, fact: &Fact) -> Vec<Fact> {
    world
        .allgather(&fact.to_bytes())
        .iter()
        .map(|bytes| Fact::from_bytes(bytes).expect("ranks of one run are one program"))
        .collect()
}

/// All ranks' trouble in one text, None if nobody has any.
fn trouble<W: World>(world: &W, mine: Option<&MemoryError>) -> Option<String> {
    // Nobody has any, as a rule: then one number has travelled.
    if world.least(&[if mine.is_some() { 0 } else { NOTHING }]) == [NOTHING] {
        return None;
    }
    let text = mine.map(|e| e.to_string()).unwrap_or_default();
    let all: Vec<String> = world
        .allgather(text.as_bytes())
        .iter()
        .enumerate()
        .filter(|(_, t)| !t.is_empty())
        .map(|(position, t)| format!("position {position}: {}", String::from_utf8_lossy(t)))
        .collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// What a header must say to belong to this test, apart from its run.
fn belongs(header: &Header, test: &Test, config: &Config) -> bool {
    let id = &header.id;
    let (l, s) = (&test.layout, &config.scheme);
    id.test == test.index
        && (id.n, id.nb) == (l.n as u64, l.nb as u64)
        && (id.p, id.q) == (l.p as u32, l.q as u32)
        && id.mapping == l.mapping
        && (id.rng, id.seed) == (test.rng, test.seed)
        && id.params_digest == test.params_digest
        && id.losses as usize == s.losses
        && id.code == s.code.to_byte()
        && id.method == s.method.to_byte()
        && id.scope == s.scope.to_byte()
        && id.layout == s.layout.to_byte()
        && id.state_bytes == config.state_bytes as u64
        && id.members.contains(&id.position)
        && id.members.iter().all(|&m| (m as usize) < l.positions())
}

/// Groups as the surviving headers tell them; positions nobody tells of form one more group, which
/// then has lost all its members. None if headers contradict each other.
fn told_groups(headers: &[Option<Header>], positions: usize) -> Option<Groups> {
    let mut told: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for header in headers.iter().flatten() {
        let members: Vec<usize> = header.id.members.iter().map(|&m| m as usize).collect();
        if told.entry(header.id.group).or_insert_with(|| members.clone()) != &members {
            return None;
        }
    }
    let mut seen = vec![false; positions];
    for &member in told.values().flatten() {
        if std::mem::replace(&mut seen[member], true) {
            return None;
        }
    }
    let mut groups: Groups = told.into_values().collect();
    let rest: Vec<usize> = (0..positions).filter(|&p| !seen[p]).collect();
    if !rest.is_empty() {
        groups.push(rest);
    }
    Some(groups)
}

/// Whether nobody of a group has a part of the matrix.
fn keep_nothing(group: &[usize], layout: &Layout) -> bool {
    group.iter().all(|&member| member >= layout.working())
}

/// Who has what, for a refusal.
fn words_about(facts: &[Fact], headers: &[Option<Header>]) -> String {
    let mut text = String::new();
    for (position, (fact, header)) in facts.iter().zip(headers).enumerate() {
        let holds = match header {
            None if fact.trouble.is_empty() => "no memory of this run".to_owned(),
            None => fact.trouble.clone(),
            Some(h) => match (h.claim.base, h.claim.seal) {
                (Some(b), Some(s)) => format!("epoch {} and, sealed, {}", b.epoch, s.epoch),
                (Some(b), None) => format!("epoch {}", b.epoch),
                (None, Some(s)) => format!("epoch {}, sealed", s.epoch),
                (None, None) => "memory without a whole epoch".to_owned(),
            },
        };
        text.push_str(&format!("  position {position} on {}: {holds}\n", fact.node));
    }
    text
}

/// Where an epoch was taken, by any header that has it.
fn boundary_of(headers: &[Option<Header>], target: EpochId) -> Option<u64> {
    let recovery = Recovery { target, finish: Vec::new(), lost: Vec::new() };
    headers.iter().flatten().find_map(|header| mark_of(header, &recovery)).map(|mark| mark.boundary)
}

/// What was wrong with memory that was there but could not be used, by position.
fn unusable_positions(facts: &[Fact]) -> Vec<(usize, String)> {
    let troubled = facts.iter().enumerate().filter(|(_, fact)| !fact.trouble.is_empty());
    troubled.map(|(position, fact)| (position, fact.trouble.clone())).collect()
}

fn unusable_storage(config: &Config, unusable: &[String], memory: &str) -> StartError {
    let what: String = unusable.iter().map(|why| format!("  {why}\n")).collect();
    let dir = config.storage.as_ref().map(|s| s.shelf.dir().display().to_string());
    StartError::Storage {
        dir: dir.unwrap_or_default(),
        apart: config.storage.as_ref().is_some_and(|storage| storage.sight == Sight::Node),
        job: config.depot.job().into(),
        what: format!("{memory}{what}"),
    }
}

/// Rank 0's number.
fn agreed_run(world: &impl World, mine: u128) -> u128 {
    let told = world.tell(&mine.to_le_bytes(), 0);
    u128::from_le_bytes(told.try_into().expect("sixteen bytes"))
}

impl<W: World, G: GroupComm> Checkpointer<W, G> {
    /// Begins a test: takes this position's memory, agrees with the others on what it is worth, and
    /// restores or starts fresh. `world` has one rank for each position, in order of positions.
    /// `make_group` gets (group number, own place, member positions) and is called on all ranks at once: MPI splits its
    /// communicator there.
    pub fn start(
        config: Config,
        test: Test,
        world: W,
        make_group: impl Fn(&W, usize, usize, &[usize]) -> G,
    ) -> Result<Started<W, G>, StartError> {
        let begin = Instant::now();
        config.scheme.check()?;
        let me = world.rank();
        let positions = test.layout.positions();
        assert_eq!(world.size(), positions, "one rank for each position");
        if faults::armed() {
            let depot = config.depot.clone();
            faults::set_corruptor(move |position, part, offset| {
                if let Some(part) = Part::parse(part) {
                    depot.flip(position as u32, part, offset);
                }
            });
            let depot = config.depot.clone();
            faults::set_remover(move |position| depot.unlink_position(position as u32));
        }

        // Rank 0 first: of two runs that begin at the same moment under one name, one gets all positions.
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
        // What lies here, and what all the others have.
        if let Some(hold) = &mut hold {
            opened = open_head(hold, me);
            if config.restart == Restart::Never && !matches!(opened, Ok(None)) {
                opened = Ok(None);
                config.depot.unlink(me as u32, Part::Done);
                Holding::discard(&config.depot, me, hold);
            }
        }
        let (head, header, trouble_here) = match opened {
            Ok(Some(OpenHead { head, header: Ok(header) })) => {
                (Some(head), Some(header), String::new())
            }
            Ok(Some(OpenHead { head, header: Err(fault) })) => {
                (Some(head), None, format!("a header, but {fault}"))
            }
            Ok(None) => (None, None, String::new()),
            Err(error @ MemoryError::InUse { .. }) => {
                let text = trouble(&world, Some(&error)).unwrap_or_default();
                return Err(StartError::Memory(text));
            }
            // Memory that cannot be opened is lost; making it anew will say why, if it still fails.
            Err(error) => (None, None, error.to_string()),
        };
        if let Some(text) = trouble(&world, None) {
            return Err(StartError::Memory(text));
        }
        if let Some(head) = &head {
            head.tick(Doing::Starting, 0);
            head.take_pulse();
        }
        hit(Point::AgreeBegin, me);
        let mut facts = gather(
            &world,
            &Fact {
                run: config.run,
                domain: config.domain.clone(),
                node: config.node.clone(),
                trouble: trouble_here,
                header,
            },
        );

        // Which run is in progress was decided when it was looked for; memory of any other is a stranger's.
        let run = facts[0].run;
        let mut headers: Vec<Option<Header>> =
            facts.iter().map(|f| f.header.clone().filter(|h| h.id.run == run)).collect();
        if let Some(other) = headers.iter().flatten().find(|h| !belongs(h, &test, &config)) {
            // Memory of an earlier test of this run is left over from its clean-up; any other
            // difference means that something else was started under this name.
            if headers.iter().flatten().all(|h| h.id.test < test.index) {
                headers.iter_mut().for_each(|h| *h = None);
            } else {
                let id = &other.id;
                let settings = match ChecksumLayout::from_byte(id.layout) {
                    Some(layout) if layout != config.scheme.layout => format!(
                        "with --layout {}, and this one asks for {}",
                        layout.name(),
                        config.scheme.layout.name()
                    ),
                    _ => "or other settings of the same problem".into(),
                };
                return Err(StartError::Other {
                    job: config.depot.job().into(),
                    what: format!(
                        "test {}, N = {}, NB = {}, grid {} x {}, {settings}",
                        id.test, id.n, id.nb, id.p, id.q
                    ),
                });
            }
        }

        let domains: Vec<String> = facts.iter().map(|f| f.domain.clone()).collect();
        let fresh_groups = || {
            let Scheme { layout, losses, .. } = config.scheme;
            layout.groups(&test.layout, &domains, config.group, losses).map_err(StartError::from)
        };
        let told = headers.iter().any(Option::is_some);
        let refuse = |refusal: Refusal, facts: &[Fact], headers: &[Option<Header>]| {
            Err(StartError::Refused { refusal, survey: words_about(facts, headers) })
        };
        // Memory that holds no checkpoint says nothing of groups that anybody needs.
        let disk = config.scheme.method == Method::Disk;
        let setup_groups = if told && !disk {
            match told_groups(&headers, positions) {
                // Nobody tells of them: the run had fewer.
                Some(groups) if groups.iter().any(|group| keep_nothing(group, &test.layout)) => {
                    return Err(StartError::Other {
                        job: config.depot.job().into(),
                        what: "with fewer ranks for checksums, so another --group".into(),
                    });
                }
                Some(groups) => groups,
                None if config.storage.as_ref().is_some_and(|s| !s.stored.is_empty()) => {
                    // Memory that contradicts itself is not needed.
                    headers.iter_mut().for_each(|h| *h = None);
                    fresh_groups()?
                }
                None => {
                    let why = "they tell of different groups".into();
                    return refuse(Refusal::Inconsistent(0, 0, why), &facts, &headers);
                }
            }
        } else {
            fresh_groups()?
        };
        let setup = Setup {
            method: config.scheme.method,
            losses: config.scheme.losses,
            groups: setup_groups,
        };
        let joined = headers.iter().flatten().map(|h| h.claim.joined).max().unwrap_or(0) + 1;

        // Decide; let everyone check what the decision relies on; decide again without the damaged.
        let mut memory = Memory::Closed(head);
        let mut early = Early::new(&config.depot, me, hold);
        let mut stored = config.storage.as_ref().map(|s| s.stored.clone()).unwrap_or_default();
        let mut unusable = config.storage.as_ref().map(|s| s.damaged.clone()).unwrap_or_default();
        let seats = config.storage.as_ref().map(|storage| seats(&world, storage));
        let seats = seats.unwrap_or_default();
        let mut fetched = None;
        let recovery = loop {
            let claims: Vec<Option<Claim>> =
                headers.iter().map(|h| h.as_ref().map(|h| h.claim)).collect();
            let boundary = |target| boundary_of(&headers, target);
            let furthest = stored.first().map(|about| about.boundary);
            let decision = match config.storage.as_ref().is_some_and(|storage| storage.in_place) {
                true => decide_in_place(&setup, &claims, boundary, furthest),
                false => decide_with(&setup, &claims, boundary, furthest),
            };
            let recovery = match decision {
                Decision::Fetch => {
                    // All of it is read beforehand where there is something to be given up for it, or to choose from.
                    let whole = !disk && (told || stored.len() > 1);
                    match look(&world, (&config, &test), &stored[0], &seats, whole) {
                        Ok(way) => {
                            fetched = Some((stored.remove(0), way));
                            break None;
                        }
                        Err(trouble) => {
                            unusable.push(trouble);
                            stored.remove(0);
                            continue;
                        }
                    }
                }
                // To begin anew although something was there is not for a program to decide.
                Decision::Fresh if !unusable.is_empty() => {
                    return Err(unusable_storage(&config, &unusable, ""));
                }
                Decision::Fresh => break None,
                Decision::Refuse(refusal) if !unusable.is_empty() => {
                    let survey = format!("{refusal}\n{}", words_about(&facts, &headers));
                    return Err(unusable_storage(&config, &unusable, &survey));
                }
                Decision::Refuse(refusal) => return refuse(refusal, &facts, &headers),
                Decision::Restore(r) | Decision::FinishAndRestore(r) => r,
            };
            let sound = match &headers[me] {
                Some(header) if !recovery.lost.contains(&me) => {
                    memory.sound(&config, &test, header, &recovery, me)
                }
                _ => {
                    // Whoever lost all of it needs memory anew whatever the others find out about theirs.
                    let members = setup.groups.iter().find(|members| members.contains(&me));
                    let members = members.expect("every position is in a group");
                    early.make(&config.buffers(&test, members, me));
                    Ok(())
                }
            };
            let trouble = sound.err().unwrap_or_default();
            if world.least(&[u64::from(trouble.is_empty())]) == [1] {
                break Some(recovery);
            }
            let votes = world.allgather(trouble.as_bytes());
            for ((header, fact), vote) in headers.iter_mut().zip(&mut facts).zip(votes) {
                if !vote.is_empty() {
                    *header = None;
                    fact.trouble = String::from_utf8_lossy(&vote).into_owned();
                }
            }
        };
        hit(Point::Agreed, me);
        if recovery.is_none() && fetched.is_none() && config.restart == Restart::Require {
            return Err(StartError::Nothing { job: config.depot.job().into() });
        }

        // Groups stay as they were saved; a fresh start may divide anew.
        let groups = match recovery {
            Some(_) => setup.groups,
            None => fresh_groups()?,
        };
        // What comes from storage is a run of its own: old copies in memory, wherever they turn up, are none of it.
        let run = match (&fetched, &config.storage) {
            (Some(_), Some(storage)) => agreed_run(&world, storage.fresh_run),
            _ => run,
        };
        let crowded = groups::crowded(&groups, &domains, config.scheme.losses);
        let (number, members) = groups
            .into_iter()
            .enumerate()
            .find(|(_, members)| members.contains(&me))
            .expect("every position is in a group");
        // A group keeps the number its headers have, whatever the order here.
        let number = match &recovery {
            Some(_) => headers
                .iter()
                .flatten()
                .find(|h| h.id.members.contains(&(me as u32)))
                .map_or(number, |h| h.id.group as usize),
            None => number,
        };
        let place = members.iter().position(|&m| m == me).expect("found above");
        let group = make_group(&world, number, place, &members);
        let buffers = config.buffers(&test, &members, me);
        let (rows, cols) = test.layout.shape(me);
        let identity = Identity {
            run,
            test: test.index,
            position: me as u32,
            n: test.layout.n as u64,
            nb: test.layout.nb as u64,
            p: test.layout.p as u32,
            q: test.layout.q as u32,
            mapping: test.layout.mapping,
            rng: test.rng,
            seed: test.seed,
            params_digest: test.params_digest,
            rows: rows as u64,
            cols: cols as u64,
            ld: config.ld as u64,
            group: number as u32,
            members: members.iter().map(|&m| m as u32).collect(),
            losses: config.scheme.losses as u8,
            code: config.scheme.code.to_byte(),
            method: config.scheme.method.to_byte(),
            scope: config.scheme.scope.to_byte(),
            layout: config.scheme.layout.to_byte(),
            state_bytes: config.state_bytes as u64,
        };
        let stripes = config.scheme.stripes(members.len());
        let coder = Coder { code: config.scheme.code, stripes };
        let lost = recovery.as_ref().is_none_or(|r| r.lost.contains(&me));
        let (holding, a) = match memory {
            Memory::Open(open) if !lost => {
                if let Some(text) = trouble(&world, None) {
                    return Err(StartError::Memory(text));
                }
                *open
            }
            other => {
                // Any lock on what is replaced must be gone before the new is made.
                drop(other);
                let made = early.take(&buffers);
                if let Some(text) = trouble(&world, made.as_ref().err()) {
                    // Without the others' it is of no use, and takes their room.
                    early.discard();
                    return Err(StartError::Memory(text));
                }
                made.expect("somebody would have had trouble")
            }
        };
        let hold = early.keep();
        let claim = match (&recovery, &headers[me]) {
            (None, _) => Claim::generating(joined),
            (Some(r), Some(header)) if !lost => header.claim.pinned(joined, r.target),
            (Some(r), _) => Claim::vacant(joined, r.target),
        };
        let kept = headers[me].clone().filter(|_| !lost);
        let mut this = Checkpointer {
            unfinished: None,
            group,
            depot: config.depot.clone(),
            holding,
            hold,
            header: Header {
                id: identity,
                claim,
                base: kept.as_ref().map(|h| h.base).unwrap_or_default(),
                seal: kept.as_ref().map(|h| h.seal).unwrap_or_default(),
            },
            layout: test.layout,
            scheme: config.scheme,
            coder,
            encode: config.encode,
            scheduler: Scheduler::new(config.interval, 0, 0.0),
            copies: [None; 2],
            started: Instant::now(),
            level2: config.storage.clone().map(|storage| {
                let seats = (&seats[..], test.layout.working());
                Level2::new(storage, &config.depot, seats, me, disk)
            }),
            world,
        };
        this.holding.head.write(&this.header);
        let mut a = a;
        let origin = match recovery {
            None if fetched.is_some() => {
                let storage = config.storage.as_ref().expect("an epoch there was chosen");
                loop {
                    let (about, way) = fetched.take().expect("just seen");
                    match this.fetch((storage, &about), way, &mut a, &make_group) {
                        Ok(Fetched { state, rebuilt, wrong }) => {
                            break Origin::Restored(Restored {
                                boundary: about.boundary as usize,
                                epoch: about.epoch,
                                state,
                                rebuilt,
                                damaged: [unusable_positions(&facts), wrong].concat(),
                                crowded,
                                fetched: true,
                            });
                        }
                        Err(trouble) => unusable.push(trouble),
                    }
                    // Where nothing was given up for it, nothing was read beforehand: an older one may do.
                    while disk && fetched.is_none() && !stored.is_empty() {
                        let about = stored.remove(0);
                        match look(&this.world, (&config, &test), &about, &seats, false) {
                            Ok(way) => fetched = Some((about, way)),
                            Err(trouble) => unusable.push(trouble),
                        }
                    }
                    if fetched.is_none() {
                        // What was made of it is worth nothing.
                        Holding::discard(&this.depot, me, &mut this.hold);
                        return Err(unusable_storage(&config, &unusable, ""));
                    }
                }
            }
            None => {
                this.tick(Doing::Generating, 0);
                hit(Point::GenerateBegin, me);
                Origin::Fresh
            }
            Some(recovery) => {
                // Any accepted header names the boundary of the target.
                let mark = headers
                    .iter()
                    .enumerate()
                    .filter(|(position, _)| recovery.lost.binary_search(position).is_err())
                    .find_map(|(_, h)| mark_of(h.as_ref()?, &recovery))
                    .expect("a target has a supplier");
                // What the position says it held, though it could not be used: the rebuilt must be that.
                let known = facts[me].header.as_ref().filter(|h| lost && h.id.run == run);
                let known = known.and_then(|h| mark_of(h, &recovery)).map(|mark| mark.root);
                let mut restored = this.recover(&recovery, mark, known, &mut a)?;
                restored.crowded = crowded;
                restored.damaged = unusable_positions(&facts);
                Origin::Restored(restored)
            }
        };
        let boundary = match &origin {
            Origin::Fresh => 0,
            Origin::Restored(r) => r.boundary,
        };
        this.started = Instant::now();
        this.scheduler = Scheduler::new(config.interval, boundary, 0.0);
        Ok(Started { checkpointer: this, a, origin, seconds: begin.elapsed().as_secs_f64() })
    }

    fn recover(
        &mut self,
        recovery: &Recovery,
        mark: Mark,
        known: Option<u64>,
        a: &mut Region,
    ) -> Result<Restored, StartError> {
        let mut wrong = String::new();
        let me = self.position();
        let target = recovery.target;
        let lost = recovery.lost.contains(&me);
        let members = self.members();
        self.tick(Doing::Recovering, mark.boundary as usize);
        hit(Point::Pinned, me);
        self.world.barrier();

        // From here on memory changes on the strength of the pins.
        let words = self.holding.buffers.data_words();
        if recovery.finish.contains(&me) {
            if self.scheme.method == Method::SelfCheckpoint {
                let whole = super::plan::Corner { row: 0, col: 0 };
                self.holding.saved().copy_in(target.epoch, &a.words()[..words], whole, || {
                    hit(Point::FinishHalf, me)
                });
            }
            self.header.base = self.header.seal;
            hit(Point::FinishEnd, me);
        }
        if !lost {
            self.header.claim = self.header.claim.settled(target);
            self.holding.head.write(&self.header);
        }
        hit(Point::Settled, me);
        self.world.barrier();

        // The workspace is void from here on, whatever it held: rows that the group reads or writes of the
        // committed copy go into it while they are in the cache.
        let mut taken = vec![false; self.holding.buffers.rows];
        let lost_members: Vec<usize> = members
            .iter()
            .enumerate()
            .filter(|(_, m)| recovery.lost.contains(m))
            .map(|(i, _)| i)
            .collect();
        if !lost_members.is_empty() {
            hit(Point::RebuildBegin, me);
            let whole = self.layout.window(&members, 0, super::plan::Scope::Whole);
            let state_window = self.holding.saved().state_window();
            let (coder, group) = (self.coder, &self.group);
            let buffers = self.holding.buffers;
            let all = super::plan::Corner { row: 0, col: 0 };
            let mut digests = lost.then(|| {
                self.holding.saved().digests(None, all, buffers.parity_rows, buffers.pitch)
            });
            self.holding.saved().with_shares(target.epoch, None, |share, is_state| {
                let coder = coder.suited(is_state);
                let window = if is_state { state_window } else { whole };
                let see = |share: &Share, role| {
                    if is_state {
                        return;
                    }
                    if let Some(digests) = &mut digests {
                        digests.see(share, role);
                    }
                    if let Role::Data(row) = role
                        && let Some(row) = buffers.rows.checked_sub(row + 1)
                        && !std::mem::replace(&mut taken[row], true)
                    {
                        let range = buffers.row(row);
                        a.words_mut()[range.clone()].copy_from_slice(&share.data[range]);
                    }
                };
                let possible = coder.rebuild(group, share, window, &lost_members, see, || {
                    pulse::beat();
                    hit(Point::RebuildBatch, me)
                });
                assert!(possible, "decide() counted the losses of every group");
            });
            if let Some(digests) = digests {
                let root = self.holding.saved().seal_digests(target.epoch, digests);
                hit(Point::RebuildEnd, me);
                // Sums of real numbers come back only up to rounding.
                if self.scheme.code.exact() && known.is_some_and(|known| known != root) {
                    wrong = format!("position {me} as rebuilt is not what its header says it held");
                } else {
                    self.header.base = Mark { boundary: mark.boundary, root };
                    self.header.claim = self.header.claim.rebuilt(target);
                    self.holding.head.write(&self.header);
                    hit(Point::Rebuilt, me);
                }
            }
        }

        let claim = self.header.claim;
        let settled = u64::from(is_settled(&claim, target));
        let joined = u64::from(claim.joined);
        // One incarnation at all: the smallest is the largest.
        if self.world.least(&[settled, joined, NOTHING - joined]) != [1, joined, NOTHING - joined] {
            let all = self.world.allgather(wrong.as_bytes());
            let said: Vec<_> =
                all.iter().filter(|w| !w.is_empty()).map(|w| String::from_utf8_lossy(w)).collect();
            let why = match said.is_empty() {
                true => "start again to repeat it".to_owned(),
                false => {
                    format!("{}; a further start would take it as it was rebuilt", said.join("; "))
                }
            };
            return Err(StartError::NotWhole { epoch: target.epoch, why });
        }
        hit(Point::AgreedAgain, me);
        let rest = &mut a.words_mut()[..words];
        self.holding.saved().copy_out(target.epoch, rest, &taken, || hit(Point::RestoreHalf, me));
        self.copies = [None; 2];
        self.copies[(target.epoch % 2) as usize] = Some(mark.boundary as usize);
        let state = self.holding.saved().read_state(target.epoch);
        hit(Point::RestoreEnd, me);
        self.header.claim = self.header.claim.resumed();
        self.holding.head.write(&self.header);
        hit(Point::Resumed, me);
        self.world.barrier();
        self.tick(Doing::Computing, mark.boundary as usize);
        Ok(Restored {
            boundary: mark.boundary as usize,
            epoch: target.epoch,
            state,
            rebuilt: recovery.lost.clone(),
            damaged: Vec::new(),
            crowded: Vec::new(),
            fetched: false,
        })
    }
}
