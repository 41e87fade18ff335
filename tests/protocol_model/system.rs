//! The system that is explored: the content of memory and storage, and the effect of each step of a rank on them.

use skt_hpl::checkpoint::placement::{Told, prevailing};
use skt_hpl::checkpoint::protocol::{
    Decision, Method, Order, Recovery, Setup, Trace, decide_in_place, decide_with, is_settled,
};
use skt_hpl::shm::header::{CheckpointId, Claim, Phase, Stage, attempt_number, count_of};

use crate::apart::{self, CheckpointDir};

pub const RANKS: usize = 4;
pub const GROUPS: [[usize; 2]; 2] = [[0, 1], [2, 3]];
pub const NOTHING: CheckpointId = CheckpointId { number: 0, made: 0 };

/// Content of a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Val {
    Garbage,
    Whole(CheckpointId),
    /// A checksum whose unsaved part was taken for zero.
    Hole(CheckpointId),
}
pub use Val::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mem {
    pub claim: Claim,
    pub a: Val,
    pub b: Val,
    /// Checksums of even checkpoints, of odd ones.
    pub checks: [Val; 2],
    /// The run it belongs to, and the boundary before that run's first checkpoint.
    pub run: Run,
}

/// A run in memory: one that resumes from storage has a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    pub number: u8,
    pub offset: u8,
}

impl Run {
    pub fn boundary(self, id: CheckpointId) -> u64 {
        u64::from(self.offset) + id.number
    }
}

impl Mem {
    /// Report of the run that this memory belongs to.
    fn told(&self, position: usize) -> Told {
        let (run, joined) = (self.run.number.into(), self.claim.joined);
        Told { run, position, joined, result: None }
    }

    pub fn blank(claim: Claim, run: Run) -> Self {
        Mem { claim, a: Garbage, b: Garbage, checks: [Garbage; 2], run }
    }

    /// Age of a copy. Of two copies of a position, one with a checkpoint is taken, and of those the one of the later attempt.
    pub fn age(&self, order: &Order) -> (u8, bool, (bool, u64, bool, u64)) {
        let holds = self.claim.stage != Stage::Vacant;
        (self.run.number, holds, order.rank(self.claim.joined))
    }

    pub fn check(&mut self, id: CheckpointId) -> &mut Val {
        &mut self.checks[(id.number % 2) as usize]
    }
}

/// The step a rank takes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pc {
    Start,
    Generate,
    Compute,
    Encode,
    /// Only if the seal is written too early: the header is sealed, but the checksum is missing.
    SealBarrier,
    Flush,
    Done,
    Pin,
    PinBarrier,
    Finish,
    SettleBarrier,
    Rebuild,
    AgreeBarrier,
    ResumeBarrier,
    Fetch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank {
    pub mem: Option<Mem>,
    /// A copy on a node that was given up.
    pub ghost: Option<Mem>,
    pub pc: Pc,
    pub dead: bool,
    /// Number of barriers this process has arrived at.
    pub arrived: u8,
    /// Whether the memory was lost and has not been rebuilt.
    pub gone: bool,
    /// Whether the decision was to finish this position's save.
    pub finish: bool,
    pub lost: bool,
    /// Whether its helper is at work.
    pub writing: bool,
    /// Its file of the checkpoint that is complete on storage, and of the one on its way there.
    pub file: Option<Val>,
    pub fresh: Option<Val>,
    /// Content of its node's own DIR, and the manifest it is about to write there.
    pub checkpoint_dir: CheckpointDir,
    pub lists: Option<Stored>,
    /// Whether its node was lost since all nodes had last listed a checkpoint.
    pub bare: bool,
}

/// A checkpoint that goes to storage, or lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stored {
    pub id: CheckpointId,
    pub boundary: u64,
    pub run: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sys {
    pub attempt: u64,
    /// Number of starts; it stands for the moment of each.
    pub starts: u8,
    pub ranks: [Rank; RANKS],
    pub target: CheckpointId,
    pub crashes: u8,
    pub ghosts: u8,
    pub bad: bool,
    pub run: Run,
    /// Number of runs.
    pub runs: u8,
    /// Checkpoint whose files are being written; checkpoint whose files are all written; checkpoint with a manifest.
    pub flight: Option<Stored>,
    pub listing: Option<Stored>,
    pub whole: Option<Stored>,
    /// Whether any checkpoint has been complete on storage.
    pub ever: bool,
    /// Whether this launch has lost ranks, and continues in place.
    pub in_place: bool,
}

impl Sys {
    pub fn sorted(mut self) -> Self {
        self.ranks[..2].sort_unstable();
        self.ranks[2..].sort_unstable();
        if self.ranks[2..] < self.ranks[..2] {
            self.ranks.rotate_left(2);
        }
        self
    }

    /// Stops all writing; what was written of that checkpoint counts for nothing.
    pub fn forget_flight(&mut self) {
        self.flight = None;
        for r in &mut self.ranks {
            r.writing = false;
            r.fresh = None;
        }
    }

    pub fn anyone_dead(&self) -> bool {
        self.ranks.iter().any(|r| r.dead)
    }

    pub fn all_at(&self, pc: Pc) -> bool {
        self.ranks.iter().all(|r| r.pc == pc)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    Step(usize),
    Crash {
        rank: usize,
        memory: Fate,
    },
    Relaunch {
        ghost_returns: bool,
    },
    /// The job continues in place: spares take the positions of the dead, on their nodes or elsewhere. From elsewhere a dead
    /// rank's memory is out of reach, but not after a restart.
    GoOn {
        elsewhere: bool,
    },
    Decide,
    /// The job has ended, or the site is without power: all memory is lost at once.
    PowerOff,
    /// A helper has written its file.
    Write(usize),
    /// All agree that all files are complete.
    Conclude,
    /// The manifest is written, and older checkpoints are removed.
    Manifest,
    /// The manifest is written on one node.
    List(usize),
    /// The checkpoint on its way is given up: a disk is full, a helper hangs.
    GiveUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    Kept,
    Lost,
    /// Out of reach now, back later.
    CutOff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    No,
    NoBarrier,
    SealBeforeData,
    SealNotWithdrawn,
    AttemptIgnored,
    UnsavedPartZero,
    NoPin,
    /// Starts that did not see each other have equal numbers.
    MomentLeftOut,
    /// The next save does not wait for the helpers.
    FlushUnderHelper,
    /// The manifest is written before all files are.
    ManifestFirst,
    /// The older checkpoint is removed when the newer one begins.
    PruneFirst,
    /// A node writes its manifest when its own file is complete, whatever the state of the others.
    OwnManifestFirst,
    /// A node removes older checkpoints when its own file is complete.
    PruneBeforeAll,
    /// Files contain no parity.
    ParityLeftOut,
    /// A rank that recovers in place takes the checkpoint on storage if memory cannot be used.
    StorageStandsIn,
}

/// Whether every checkpoint goes to storage, and which nodes share it. With storage, any losses may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    None,
    Shared,
    /// Each node has its own, which is lost with it.
    Node,
}

/// Memory alone, nothing comes back, nothing is broken: the defaults of a test.
pub const PLAIN: Protocol = Protocol {
    checkpoints: 2,
    crashes: 2,
    ghosts: 0,
    storage: Storage::None,
    in_place: false,
    looks_again: false,
    clocks_back: false,
    broken: Broken::No,
};

#[derive(Clone, Debug)]
pub struct Protocol {
    pub checkpoints: u64,
    pub crashes: u8,
    pub ghosts: u8,
    pub storage: Storage,
    /// Whether losses are recovered in place, if any rank is left.
    pub in_place: bool,
    /// Whether a helper reads the header again before its file gets its name.
    pub looks_again: bool,
    /// Whether, of starts that did not see each other, the earlier ones have the later moments.
    pub clocks_back: bool,
    pub broken: Broken,
}

pub fn peer(rank: usize) -> usize {
    rank ^ 1
}

/// Order of the attempts of the last run that any of these copies belongs to.
pub fn order<'a>(copies: impl Iterator<Item = &'a Mem> + Clone) -> Order {
    let run = copies.clone().map(|m| m.run.number).max();
    Order::of(copies.filter(|m| Some(m.run.number) == run).map(|m| Trace::of(&m.claim)))
}

impl Protocol {
    pub fn setup(&self) -> Setup {
        Setup {
            method: Method::SelfCheckpoint,
            losses: 1,
            groups: GROUPS.iter().map(|g| g.to_vec()).collect(),
        }
    }

    /// Claim as the deciding ranks see it.
    pub fn seen(&self, claim: Claim) -> Claim {
        if self.broken != Broken::AttemptIgnored {
            return claim;
        }
        let flat = |id: CheckpointId| CheckpointId { made: 1, ..id };
        Claim {
            joined: 1,
            phase: Phase::Running,
            base: claim.base.map(flat),
            seal: claim.seal.map(flat),
            ..claim
        }
    }

    pub fn next(&self, run: Run, finished: Option<CheckpointId>) -> Pc {
        match finished {
            Some(base) if run.boundary(base) >= self.checkpoints => Pc::Done,
            _ => Pc::Compute,
        }
    }

    pub fn enabled(&self, s: &Sys, rank: usize) -> bool {
        let me = &s.ranks[rank];
        let barrier = || s.ranks.iter().all(|r| r.arrived >= me.arrived);
        if me.dead {
            return false;
        }
        match me.pc {
            Pc::Start | Pc::Done => false,
            // A save is put off as long as helpers are at work on the checkpoint before it.
            Pc::Compute if self.broken != Broken::FlushUnderHelper => {
                s.flight.is_none_or(|f| me.mem.is_some_and(|m| m.claim.base != Some(f.id)))
            }
            // A checksum needs the rows of every member of the group.
            Pc::Encode => {
                let pc = s.ranks[peer(rank)].pc;
                matches!(pc, Pc::Encode | Pc::SealBarrier)
                    || self.broken == Broken::NoBarrier && pc == Pc::Flush
            }
            Pc::SealBarrier => self.broken == Broken::NoBarrier || barrier(),
            Pc::PinBarrier | Pc::SettleBarrier | Pc::AgreeBarrier | Pc::ResumeBarrier => barrier(),
            Pc::Rebuild => s.ranks[peer(rank)].mem.is_some(),
            _ => true,
        }
    }

    pub fn step(&self, s: &mut Sys, rank: usize) {
        let (target, attempt) = (s.target, s.attempt);
        let all: Vec<Option<Claim>> = s.ranks.iter().map(|r| r.mem.map(|m| m.claim)).collect();
        let peer_whole = s.ranks[peer(rank)]
            .mem
            .is_some_and(|mut m| m.b == Whole(target) && *m.check(target) == Whole(target));
        let begins = s.flight.is_none()
            && match self.storage {
                Storage::None => false,
                Storage::Shared => s.listing.is_none(),
                // Rank 0's manifest must be written, and any rank may be rank 0.
                Storage::Node => s.ranks.iter().any(|r| r.lists.is_none()),
            };
        let r = &mut s.ranks[rank];
        if r.pc == Pc::Fetch {
            // The file becomes the matrix, of which an ordinary save makes the first checkpoint of a new run.
            let Some(stored) = s.whole else { unreachable!("decided for it") };
            s.bad |= r.file != Some(Whole(stored.id));
            if self.storage == Storage::Node {
                r.file = None;
            }
            let mut m = Mem::blank(Claim::generating(attempt), s.run);
            m.a = Whole(m.claim.next_checkpoint());
            r.mem = Some(m);
            r.gone = false;
            r.pc = Pc::Encode;
            return;
        }
        if r.pc == Pc::Generate {
            r.mem = Some(Mem::blank(Claim::generating(attempt), s.run));
            r.gone = false;
            r.pc = Pc::Compute;
            return;
        }
        if r.pc == Pc::Pin && r.lost {
            r.mem = Some(Mem::blank(Claim::vacant(attempt, target), s.run));
            r.arrived += 1;
            r.pc = Pc::PinBarrier;
            return;
        }
        let Some(m) = &mut r.mem else {
            s.bad = true;
            return;
        };
        r.pc = match r.pc {
            Pc::Compute => {
                let next = m.claim.next_checkpoint();
                // Rank 0 announces with the save that its checkpoint goes to storage.
                if begins {
                    s.flight = Some(apart::stored(m.run, next));
                    if self.broken == Broken::PruneFirst {
                        s.whole = None;
                    }
                }
                m.a = Whole(next);
                *m.check(next) = Garbage;
                if self.broken == Broken::SealBeforeData {
                    m.claim = m.claim.sealed(Method::SelfCheckpoint, next);
                }
                Pc::Encode
            }
            Pc::Encode => {
                let Whole(id) = m.a else { unreachable!("A is frozen") };
                let hole = self.broken == Broken::UnsavedPartZero && m.claim.base.is_some();
                *m.check(id) = if hole { Hole(id) } else { Whole(id) };
                if self.broken != Broken::SealBeforeData {
                    m.claim = m.claim.sealed(Method::SelfCheckpoint, id);
                }
                r.arrived += 1;
                Pc::SealBarrier
            }
            Pc::SealBarrier => {
                m.b = Garbage;
                Pc::Flush
            }
            Pc::Flush => {
                m.b = m.a;
                m.claim = m.claim.committed();
                m.a = Garbage;
                r.writing = s.flight.is_some_and(|flight| Some(flight.id) == m.claim.base);
                self.next(m.run, m.claim.base)
            }
            Pc::Pin => {
                if self.broken != Broken::NoPin {
                    m.claim = m.claim.pinned(attempt, target);
                }
                r.arrived += 1;
                Pc::PinBarrier
            }
            Pc::PinBarrier if r.finish => {
                m.b = Garbage;
                Pc::Finish
            }
            Pc::PinBarrier | Pc::Finish => {
                if r.finish {
                    m.b = m.a;
                }
                if !r.lost {
                    let seal = m.claim.seal;
                    m.claim = m.claim.settled(target);
                    if self.broken == Broken::SealNotWithdrawn && seal != Some(target) {
                        m.claim.seal = seal;
                    }
                }
                r.arrived += 1;
                Pc::SettleBarrier
            }
            Pc::SettleBarrier if r.lost => Pc::Rebuild,
            Pc::SettleBarrier => {
                // Rows of B go to A as they are read for the lost ranks.
                m.a = Garbage;
                r.arrived += 1;
                Pc::AgreeBarrier
            }
            Pc::Rebuild => {
                let value = if peer_whole { Whole(target) } else { Garbage };
                (m.b, *m.check(target)) = (value, value);
                m.claim = m.claim.settled(target);
                r.gone = false;
                r.arrived += 1;
                Pc::AgreeBarrier
            }
            Pc::AgreeBarrier => {
                // A rank that dies now takes its header with it; ranks that have agreed already continue.
                s.bad |= self.broken == Broken::No
                    && all.iter().all(|c| c.is_some_and(|c| c.phase != Phase::Running))
                    && !all.iter().all(|claim| {
                        claim.is_some_and(|c| c.joined == attempt && is_settled(&c, target))
                    });
                m.a = m.b;
                if self.broken == Broken::NoPin {
                    m.claim.joined = attempt;
                }
                m.claim = m.claim.resumed();
                r.arrived += 1;
                Pc::ResumeBarrier
            }
            Pc::ResumeBarrier => {
                s.bad |= [m.a, m.b, *m.check(target)] != [Whole(target); 3];
                m.a = Garbage;
                self.next(m.run, m.claim.base)
            }
            Pc::Start | Pc::Done | Pc::Generate | Pc::Fetch => unreachable!("not enabled"),
        };
    }

    /// Begins an attempt: all ranks read the memory, in new processes or in those that are left.
    pub fn begin(&self, s: &mut Sys) {
        s.starts += 1;
        s.target = NOTHING;
        // The writers of files have ended as well, but no rank lists these files any more.
        s.forget_flight();
        s.listing = None;
        if self.storage == Storage::Node {
            s.whole = None;
            apart::forget(s);
        }
        for r in &mut s.ranks {
            if let Some(m) = &mut r.mem {
                if m.claim.seal.is_none() {
                    m.a = Garbage;
                }
                if m.claim.base.is_none() {
                    m.b = Garbage;
                }
                let claimed = [m.claim.base, m.claim.seal];
                for (parity, check) in m.checks.iter_mut().enumerate() {
                    if !claimed.iter().flatten().any(|id| id.number % 2 == parity as u64) {
                        *check = Garbage;
                    }
                }
            }
            *r = Rank { pc: Pc::Start, dead: false, arrived: 0, finish: false, lost: false, ..*r };
        }
    }

    /// Adds the steps of helpers, while their ranks do something else.
    pub fn storage_actions(&self, s: &Sys, actions: &mut Vec<Act>) {
        for (rank, r) in s.ranks.iter().enumerate() {
            if r.writing && !r.dead {
                actions.push(Act::Write(rank));
            }
        }
        if s.listing.is_some() && s.ranks.iter().any(|r| !r.dead && r.pc != Pc::Start) {
            actions.push(Act::Manifest);
        }
        for (rank, r) in s.ranks.iter().enumerate().filter(|(_, r)| !r.dead && r.pc != Pc::Start) {
            if r.lists.is_some() {
                actions.push(Act::List(rank));
            }
        }
        let begun = |r: &Rank| {
            let there = |of| r.checkpoint_dir.iter().flatten().any(|file| file.of == of);
            r.writing || r.fresh.is_some() || s.flight.is_some_and(there)
        };
        if s.flight.is_none() || s.anyone_dead() || !s.ranks.iter().all(begun) {
            return;
        }
        actions.push(Act::GiveUp);
        if s.ranks.iter().all(|r| !r.writing) {
            actions.push(Act::Conclude);
        } else if self.broken == Broken::ManifestFirst {
            actions.push(Act::Manifest);
        }
    }

    /// Writes the file of a rank: a helper streams the checkpoint out of memory, whatever is there by then.
    pub fn write(&self, s: &mut Sys, rank: usize) {
        let r = &mut s.ranks[rank];
        r.writing = false;
        let says = |of: Stored| {
            r.mem.is_some_and(|m| m.claim.base == Some(of.id) && m.claim.seal.is_none())
        };
        if self.looks_again && !s.flight.is_some_and(says) {
            s.forget_flight();
            return;
        }
        match (self.storage, s.flight) {
            (Storage::Node, Some(of)) => self.write_apart(s, rank, of),
            _ => r.fresh = r.mem.map(|m| m.b),
        }
    }

    /// Concludes the files: all are complete, and manifests are to be written.
    pub fn conclude(&self, s: &mut Sys) {
        let flight = s.flight.take();
        match self.storage {
            Storage::Node if self.broken != Broken::OwnManifestFirst => {
                s.ranks.iter_mut().for_each(|r| r.lists = flight);
            }
            Storage::Node => {}
            _ => s.listing = flight,
        }
    }

    /// Writes the manifest, which lists the existing files; the older checkpoint is removed.
    pub fn manifest(&self, s: &mut Sys) {
        s.whole = s.listing.take().or(s.flight);
        s.ever = true;
        for r in &mut s.ranks {
            r.file = r.fresh.take();
        }
    }

    pub fn decide(&self, s: &mut Sys) {
        // Memory of another run than the one in progress belongs to a stranger.
        let traces = s.ranks.iter().enumerate();
        let traces = traces.filter_map(|(p, r)| Some((p, r.mem?)));
        let found = prevailing(traces.map(|(p, m)| m.told(p)));
        let of_run = |m: &Mem| Some(u128::from(m.run.number)) == found;
        if let Some(run) = s.ranks.iter().filter_map(|r| r.mem).find(|m| of_run(m)) {
            s.run = run.run;
        }
        let mine: Vec<Option<Mem>> = s.ranks.iter().map(|r| r.mem.filter(of_run)).collect();
        let last = mine.iter().flatten().map(|m| count_of(m.claim.joined)).max();
        let moment = match self.broken {
            Broken::MomentLeftOut => 0,
            _ if self.clocks_back => u8::MAX - s.starts,
            _ => s.starts,
        };
        s.attempt = attempt_number(last.unwrap_or(0) + 1, moment.into());
        let claims: Vec<Option<Claim>> =
            mine.iter().map(|m| m.map(|m| self.seen(m.claim))).collect();
        let run = s.run;
        let found = apart::best(s);
        if self.storage == Storage::Node {
            s.whole = found.as_ref().map(|(of, _)| *of);
        }
        let due = match self.storage {
            Storage::Node => apart::bears(s),
            _ => s.ever,
        };
        let stored = s.whole.map(|whole| whole.boundary);
        let boundary = |id| Some(run.boundary(id));
        let decision = match s.in_place && self.broken != Broken::StorageStandsIn {
            true => decide_in_place(&self.setup(), &claims, boundary, stored),
            false => decide_with(&self.setup(), &claims, boundary, stored),
        };
        // A checkpoint from which a restart could still resume is not given up for an older one.
        s.bad |= s.in_place && decision == Decision::Fetch && self.within_reach(s) > stored;
        match decision {
            Decision::Fresh => {
                // A checkpoint that was complete on storage is never lost.
                s.bad |= due;
                s.ranks.iter_mut().for_each(|r| r.pc = Pc::Generate);
            }
            Decision::Fetch => {
                let stored = s.whole.expect("decided for it");
                if let Some((of, plan)) = found {
                    // All memory that is not rebuilt is read at this moment; a node that is lost meanwhile ends the start.
                    for rank in 0..RANKS {
                        let value = apart::fetched(s, of, rank);
                        assert_eq!(plan.readers[rank].is_none(), plan.lost().contains(&rank));
                        s.ranks[rank].file = Some(value);
                    }
                }
                s.runs += 1;
                s.run = Run { number: s.runs, offset: stored.boundary as u8 - 1 };
                s.ranks.iter_mut().for_each(|r| r.pc = Pc::Fetch);
            }
            Decision::Restore(Recovery { target, finish, lost }) => {
                s.target = target;
                for (position, r) in s.ranks.iter_mut().enumerate() {
                    r.finish = finish.contains(&position);
                    r.lost = lost.contains(&position);
                    r.pc = Pc::Pin;
                }
            }
            Decision::Refuse(_) => {
                let gone = |p: usize| s.ranks[p].gone || mine[p].is_none();
                let tolerable = GROUPS.iter().all(|g| g.iter().filter(|&&p| gone(p)).count() <= 1);
                // In place this ends the job, and a restart finds more.
                s.bad |= tolerable || due && !s.in_place;
                if std::mem::take(&mut s.in_place) {
                    s.ranks.iter_mut().for_each(|r| r.dead = true);
                }
            }
        }
    }

    /// Boundary at which a restart resumes that finds all existing memory.
    fn within_reach(&self, s: &Sys) -> Option<u64> {
        let all = s.ranks.iter().flat_map(|r| r.mem.iter().chain(&r.ghost));
        let order = order(all);
        let newest = |r: &Rank| r.mem.into_iter().chain(r.ghost).max_by_key(|m| m.age(&order));
        let copies: Vec<Option<Mem>> = s.ranks.iter().map(newest).collect();
        let found = copies.iter().enumerate().filter_map(|(p, m)| Some((p, (*m)?)));
        let found = prevailing(found.map(|(p, m)| m.told(p)))?;
        let of_run = |m: &Mem| u128::from(m.run.number) == found;
        let run = copies.iter().flatten().find(|m| of_run(m))?.run;
        let claims: Vec<Option<Claim>> =
            copies.iter().map(|m| m.filter(of_run).map(|m| m.claim)).collect();
        match decide_with(&self.setup(), &claims, |id| Some(run.boundary(id)), None) {
            Decision::Restore(recovery) => Some(run.boundary(recovery.target)),
            _ => None,
        }
    }
}
