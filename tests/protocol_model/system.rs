//! State of the main model: the content of memory and storage, and the effect of each step of a rank on both.

use skt_hpl::checkpoint::placement::{Told, prevailing};
use skt_hpl::checkpoint::protocol::{
    Decision, Method, Order, Recovery, Setup, Trace, decide_in_place, decide_with, is_settled,
};
use skt_hpl::shm::header::{CheckpointId, Claim, Phase, Stage, attempt_number, count_of};

use crate::apart::{self, CheckpointDir};

pub const RANKS: usize = 4;
pub const GROUPS: [[usize; 2]; 2] = [[0, 1], [2, 3]];
pub const NOTHING: CheckpointId = CheckpointId { number: 0, made: 0 };

/// Content of one part of memory, or of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Val {
    Garbage,
    Whole(CheckpointId),
    /// Checksum of this checkpoint, in which the part of the matrix A that the last save did not copy counts as zero.
    Hole(CheckpointId),
}
pub use Val::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mem {
    pub claim: Claim,
    pub a: Val,
    pub b: Val,
    /// Checksums: index 0 for checkpoints with even numbers, 1 for odd numbers.
    pub checks: [Val; 2],
    /// Run to which this memory belongs.
    pub run: Run,
}

/// Run to which memory belongs. A start that resumes from storage begins a new run with the next number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    pub number: u8,
    /// Boundary before the run's first checkpoint.
    pub offset: u8,
}

impl Run {
    pub fn boundary(self, id: CheckpointId) -> u64 {
        u64::from(self.offset) + id.number
    }
}

impl Mem {
    /// Returns the report with which a rank announces the run of this memory, for `prevailing`.
    fn told(&self, position: usize) -> Told {
        let (run, joined) = (self.run.number.into(), self.claim.joined);
        Told { run, position, joined, result: None }
    }

    pub fn blank(claim: Claim, run: Run) -> Self {
        Mem { claim, a: Garbage, b: Garbage, checks: [Garbage; 2], run }
    }

    /// Returns the key by which two copies of a position's memory are compared; the greater key wins. A later run wins, then a
    /// copy with a checkpoint, then the later attempt.
    pub fn age(&self, order: &Order) -> (u8, bool, (bool, u64, bool, u64)) {
        let holds = self.claim.stage != Stage::Vacant;
        (self.run.number, holds, order.rank(self.claim.joined))
    }

    pub fn check(&mut self, id: CheckpointId) -> &mut Val {
        &mut self.checks[(id.number % 2) as usize]
    }
}

/// Next step of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pc {
    Start,
    Generate,
    Compute,
    Encode,
    /// Waits at the barrier until all ranks have sealed.
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
    /// Old copy of this position's memory, on a node that the supervisor gave up.
    pub ghost: Option<Mem>,
    pub pc: Pc,
    pub dead: bool,
    /// Number of barriers at which this process has arrived in this attempt.
    pub arrived: u8,
    /// True if this position's memory was lost and is not rebuilt yet.
    pub gone: bool,
    /// True if the seal of this position is on the target of the recovery. The position then first finishes its flush (copying A
    /// to B).
    pub finish: bool,
    pub lost: bool,
    /// True if the rank's helper is writing its file.
    pub writing: bool,
    /// Content of the position's file of the checkpoint with a manifest.
    pub file: Option<Val>,
    /// Content of the position's file of the checkpoint that is being written.
    pub fresh: Option<Val>,
    /// Content of the DIR of the rank's node.
    pub checkpoint_dir: CheckpointDir,
    /// Checkpoint whose manifest the node is about to write to its DIR.
    pub lists: Option<Stored>,
    /// True if the rank's node was lost after all nodes last had the manifest of the same checkpoint.
    pub bare: bool,
}

/// A checkpoint that is on storage or is being written to storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stored {
    pub id: CheckpointId,
    pub boundary: u64,
    pub run: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sys {
    pub attempt: u64,
    /// Number of starts so far. It serves as the clock: the start time of an attempt.
    pub starts: u8,
    pub ranks: [Rank; RANKS],
    pub target: CheckpointId,
    pub crashes: u8,
    pub ghosts: u8,
    pub bad: bool,
    pub run: Run,
    /// Number of runs so far; equal to the number of the newest run.
    pub runs: u8,
    /// Checkpoint whose files are being written.
    pub flight: Option<Stored>,
    /// Checkpoint whose files are complete, but which has no manifest yet.
    pub listing: Option<Stored>,
    /// Checkpoint with a manifest.
    pub whole: Option<Stored>,
    /// True if a checkpoint has ever been complete on storage.
    pub ever: bool,
    /// True if this launch has lost ranks and recovers in place.
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

    /// Gives up the checkpoint that helpers are writing, and drops the files written so far.
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
    /// The job continues in place: spares take the positions of dead ranks, on their nodes or elsewhere. A spare elsewhere cannot
    /// read a dead rank's memory; a restart can.
    GoOn {
        elsewhere: bool,
    },
    Decide,
    /// All processes end and all memory is lost at once, as when the site loses power.
    PowerOff,
    /// The helper of this rank finishes its file.
    Write(usize),
    /// All ranks agree that all files of the checkpoint are complete.
    Conclude,
    /// The manifest on shared storage is written, and older checkpoints are removed.
    Manifest,
    /// The manifest in the DIR of this rank's node is written.
    List(usize),
    /// The checkpoint that is being written is given up, as when a disk is full or a helper hangs.
    GiveUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    Kept,
    Lost,
    /// The memory is out of reach now, and may return with its node at a later relaunch.
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
    /// Attempt numbers contain no start time, so two attempts of which neither saw the other may have equal numbers.
    MomentLeftOut,
    /// The next save does not wait until helpers have written the last checkpoint.
    FlushUnderHelper,
    /// The manifest is written before all files of the checkpoint are complete.
    ManifestFirst,
    /// The older checkpoint on storage is removed when the newer one begins to be written.
    PruneFirst,
    /// A node writes its manifest when its own file is complete, although files of other nodes may be incomplete.
    OwnManifestFirst,
    /// A node removes older checkpoints when its own file is complete, before all files are.
    PruneBeforeAll,
    /// Files on storage contain no parity.
    ParityLeftOut,
    /// Ranks that recover in place resume from storage if memory within reach is not enough, although a restart might find a
    /// later checkpoint in memory.
    StorageStandsIn,
}

/// Kind of level two. With storage, every checkpoint is written to it, and losses of any number of positions may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    None,
    Shared,
    /// Each node has its own DIR, which is lost with the node.
    Node,
}

/// Model without storage, returning nodes, recovery in place or a broken rule. Tests change single fields of it.
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
    /// True if losses are also recovered in place, as long as a rank is left.
    pub in_place: bool,
    /// True if a helper reads the header again before it gives its file a name.
    pub looks_again: bool,
    /// True if the clock runs backwards: each start has an earlier start time than the start before.
    pub clocks_back: bool,
    pub broken: Broken,
}

pub fn peer(rank: usize) -> usize {
    rank ^ 1
}

/// Returns the order of the attempts of the newest run that is found in `copies`.
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

    /// Returns a claim as the deciding ranks see it. In the broken variant `AttemptIgnored`, every claim looks like a claim of
    /// attempt 1 without recovery.
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
            // A save waits while helpers write the rank's last checkpoint to storage.
            Pc::Compute if self.broken != Broken::FlushUnderHelper => {
                s.flight.is_none_or(|f| me.mem.is_some_and(|m| m.claim.base != Some(f.id)))
            }
            // Encoding needs the rows of every member of the group.
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
                // Rank 0 must have written its manifest. States are sorted, so any rank may be rank 0.
                Storage::Node => s.ranks.iter().any(|r| r.lists.is_none()),
            };
        let r = &mut s.ranks[rank];
        if r.pc == Pc::Fetch {
            // The content of the file becomes A. An ordinary save then makes the first checkpoint of a new run.
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
                // With this save, rank 0 announces that the checkpoint goes to storage.
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
                // While lost ranks are rebuilt, survivors copy rows of B to A, so A is overwritten.
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
                // Invariant: the first rank that resumes finds all headers settled on the target. Two cases are exempt: a rank
                // has just died with its header, or another rank has resumed before.
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

    /// Begins an attempt: new processes, or the surviving ones in place, read the headers in memory.
    pub fn begin(&self, s: &mut Sys) {
        s.starts += 1;
        s.target = NOTHING;
        // Helpers have ended too. Their unlisted files are dropped.
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

    /// Adds the possible steps of helpers and manifests, which can happen between any two steps of ranks.
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

    /// Finishes the file of a rank. The helper copies B as memory contains it at this moment, even if the rank has changed B
    /// meanwhile.
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

    /// Ends the writing of files: all files of the checkpoint are complete, and its manifests can be written.
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

    /// Writes the manifest on shared storage. The older checkpoint is removed.
    pub fn manifest(&self, s: &mut Sys) {
        s.whole = s.listing.take().or(s.flight);
        s.ever = true;
        for r in &mut s.ranks {
            r.file = r.fresh.take();
        }
    }

    pub fn decide(&self, s: &mut Sys) {
        // Memory of other runs than the prevailing run (`prevailing`) is ignored.
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
        // Fault: an in-place attempt resumes from storage, although a restart could resume from a later checkpoint in memory.
        s.bad |= s.in_place && decision == Decision::Fetch && self.within_reach(s) > stored;
        match decision {
            Decision::Fresh => {
                // Fault: a checkpoint that was complete on storage has been lost.
                s.bad |= due;
                s.ranks.iter_mut().for_each(|r| r.pc = Pc::Generate);
            }
            Decision::Fetch => {
                let stored = s.whole.expect("decided for it");
                if let Some((of, plan)) = found {
                    // The model reads all files of surviving nodes at once. In the program, a node that is lost during the
                    // reading ends the attempt.
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
                // A refusal in place ends the job. A restart may find more memory.
                s.bad |= tolerable || due && !s.in_place;
                if std::mem::take(&mut s.in_place) {
                    s.ranks.iter_mut().for_each(|r| r.dead = true);
                }
            }
        }
    }

    /// Returns the boundary at which a restart would resume from memory if all nodes returned; None if it could not resume from
    /// memory.
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
