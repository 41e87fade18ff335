//! Model of method double with helpers that encode. It explores every interleaving of ranks, helpers and losses, for four
//! positions in two groups.
//!
//! `decide` and the claims of headers are the program's own. Data are abstract: each copy and each checksum either is complete
//! for one checkpoint or is garbage. A save only copies the matrix A, and the rank then changes A further, so A is of no use to a
//! recovery. The rank's helper encodes the copy later, together with the helper of its peer. After its helper has finished, a
//! rank seals. After all ranks have sealed, each rank commits.
//!
//! Claim to prove: a rank that computes after a recovery has the checkpoint that all ranks have, and a tolerable loss is never
//! refused.

use skt_hpl::checkpoint::protocol::{Decision, Method, Recovery, Setup, decide, is_settled};
use skt_hpl::shm::header::{CheckpointId, Claim, Phase, Stage, next_attempt};
use stateright::{Model, Property};

use crate::explore::explore;
use crate::system::{Fate, GROUPS, Garbage, NOTHING, RANKS, Val, Whole, peer};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Mem {
    claim: Claim,
    /// Copies of the matrix: index 0 for checkpoints with even numbers, 1 for odd numbers.
    copies: [Val; 2],
    checks: [Val; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Pc {
    Start,
    Generate,
    Compute,
    /// Is copying A to one of the two copies.
    Copy,
    /// Computes while the helper encodes the new checkpoint, which is not sealed yet.
    GoOn,
    /// Computes with the new checkpoint sealed, until all ranks have sealed it.
    Sealed,
    Done,
    Pin,
    PinBarrier,
    SettleBarrier,
    Rebuild,
    AgreeBarrier,
    ResumeBarrier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Rank {
    mem: Option<Mem>,
    /// Old copy of this position's memory, on a node that the supervisor gave up.
    ghost: Option<Mem>,
    pc: Pc,
    dead: bool,
    /// Number of barriers at which this process has arrived in this attempt.
    arrived: u8,
    /// True if this position's memory was lost and is not rebuilt yet.
    gone: bool,
    lost: bool,
    /// Checkpoint that the rank's helper is encoding.
    helper: Option<CheckpointId>,
    /// Checkpoint that the rank's helper has finished encoding.
    over: Option<CheckpointId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sys {
    attempt: u64,
    ranks: [Rank; RANKS],
    target: CheckpointId,
    crashes: u8,
    ghosts: u8,
    bad: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Step(usize),
    /// The helper of this rank finishes encoding.
    Encode(usize),
    Crash(usize, Fate),
    Relaunch {
        ghost_returns: bool,
    },
    Decide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    No,
    /// A rank that has sealed commits at once, without waiting until all ranks have sealed.
    CommitsAlone,
    /// A rank seals when its copy is complete, before the helper has encoded.
    SealsTheCopy,
    /// Memory contains a single copy in addition to the matrix, as with method self.
    OneCopy,
    /// The next save overwrites the copy while the helper still encodes it.
    SavesUnderHelper,
}

#[derive(Debug)]
struct Aside {
    checkpoints: u64,
    crashes: u8,
    ghosts: u8,
    broken: Broken,
}

impl Sys {
    fn sorted(mut self) -> Self {
        self.ranks[..2].sort_unstable();
        self.ranks[2..].sort_unstable();
        if self.ranks[2..] < self.ranks[..2] {
            self.ranks.rotate_left(2);
        }
        self
    }

    fn anyone_dead(&self) -> bool {
        self.ranks.iter().any(|r| r.dead)
    }

    fn all_at(&self, pc: Pc) -> bool {
        self.ranks.iter().all(|r| r.pc == pc)
    }
}

impl Aside {
    /// Returns the index in `copies` of the copy for checkpoint `id`.
    fn place(&self, id: CheckpointId) -> usize {
        if self.broken == Broken::OneCopy { 0 } else { (id.number % 2) as usize }
    }

    fn whole(&self, mem: &Mem, id: CheckpointId) -> bool {
        let check = mem.checks[(id.number % 2) as usize];
        mem.copies[self.place(id)] == Whole(id) && check == Whole(id)
    }

    fn next(&self, finished: Option<CheckpointId>) -> Pc {
        match finished {
            Some(base) if base.number >= self.checkpoints => Pc::Done,
            _ => Pc::Compute,
        }
    }

    fn enabled(&self, s: &Sys, rank: usize) -> bool {
        let me = &s.ranks[rank];
        let barrier = || s.ranks.iter().all(|r| r.arrived >= me.arrived);
        if me.dead {
            return false;
        }
        match me.pc {
            Pc::Start | Pc::Done => false,
            Pc::GoOn => me.over.is_some() || self.broken == Broken::SavesUnderHelper,
            Pc::Sealed => self.broken == Broken::CommitsAlone || barrier(),
            Pc::PinBarrier | Pc::SettleBarrier | Pc::AgreeBarrier | Pc::ResumeBarrier => barrier(),
            Pc::Rebuild => s.ranks[peer(rank)].mem.is_some(),
            Pc::Generate | Pc::Compute | Pc::Copy | Pc::Pin => true,
        }
    }

    /// Returns true if the helper of `rank` can encode. This needs the helper of its peer, which is encoding the same checkpoint
    /// or has finished it.
    fn encodes(&self, s: &Sys, rank: usize) -> bool {
        let (me, other) = (&s.ranks[rank], &s.ranks[peer(rank)]);
        let there = |id| other.helper == Some(id) && !other.dead || other.over == Some(id);
        !me.dead && me.helper.is_some_and(there)
    }

    fn encode(&self, s: &mut Sys, rank: usize) {
        let Some(id) = s.ranks[rank].helper.take() else { unreachable!("it is at work") };
        let has = |rank: usize| {
            s.ranks[rank].mem.is_some_and(|mem| mem.copies[self.place(id)] == Whole(id))
        };
        // A peer's helper that has finished has already sent its data, even if the peer has died since.
        let sent = s.ranks[peer(rank)].over == Some(id) || has(peer(rank));
        let value = if has(rank) && sent { Whole(id) } else { Garbage };
        let r = &mut s.ranks[rank];
        r.over = Some(id);
        if let Some(mem) = &mut r.mem {
            mem.checks[(id.number % 2) as usize] = value;
        }
    }

    fn step(&self, s: &mut Sys, rank: usize) {
        let (target, attempt) = (s.target, s.attempt);
        let all: Vec<Option<Claim>> = s.ranks.iter().map(|r| r.mem.map(|m| m.claim)).collect();
        let peer_whole = s.ranks[peer(rank)].mem.is_some_and(|mem| self.whole(&mem, target));
        let blank = |claim| Mem { claim, copies: [Garbage; 2], checks: [Garbage; 2] };
        let r = &mut s.ranks[rank];
        if r.pc == Pc::Generate {
            r.mem = Some(blank(Claim::generating(attempt)));
            r.gone = false;
            r.pc = Pc::Compute;
            return;
        }
        if r.pc == Pc::Pin && r.lost {
            r.mem = Some(blank(Claim::vacant(attempt, target)));
            r.arrived += 1;
            r.pc = Pc::PinBarrier;
            return;
        }
        let Some(m) = &mut r.mem else {
            s.bad = true;
            return;
        };
        let next = m.claim.next_checkpoint();
        r.pc = match r.pc {
            Pc::Compute => {
                m.copies[self.place(next)] = Garbage;
                Pc::Copy
            }
            Pc::Copy => {
                m.copies[self.place(next)] = Whole(next);
                if r.over.is_none() {
                    m.checks[(next.number % 2) as usize] = Garbage;
                    r.helper = Some(next);
                }
                if self.broken == Broken::SealsTheCopy {
                    m.claim = m.claim.sealed(Method::Double, next);
                    r.arrived += 1;
                    Pc::Sealed
                } else {
                    Pc::GoOn
                }
            }
            // The next save overwrites the copy that the helper reads.
            Pc::GoOn if r.over.is_none() => {
                m.copies[self.place(next)] = Garbage;
                Pc::Copy
            }
            Pc::GoOn => {
                m.claim = m.claim.sealed(Method::Double, next);
                r.arrived += 1;
                Pc::Sealed
            }
            Pc::Sealed => {
                (r.helper, r.over) = (None, None);
                m.claim = m.claim.committed();
                self.next(m.claim.base)
            }
            Pc::Pin => {
                m.claim = m.claim.pinned(attempt, target);
                r.arrived += 1;
                Pc::PinBarrier
            }
            Pc::PinBarrier => {
                if !r.lost {
                    m.claim = m.claim.settled(target);
                }
                r.arrived += 1;
                Pc::SettleBarrier
            }
            Pc::SettleBarrier if r.lost => Pc::Rebuild,
            Pc::SettleBarrier => {
                r.arrived += 1;
                Pc::AgreeBarrier
            }
            Pc::Rebuild => {
                let value = if peer_whole { Whole(target) } else { Garbage };
                m.copies[self.place(target)] = value;
                m.checks[(target.number % 2) as usize] = value;
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
                m.claim = m.claim.resumed();
                r.arrived += 1;
                Pc::ResumeBarrier
            }
            Pc::ResumeBarrier => {
                s.bad |= !self.whole(m, target);
                self.next(m.claim.base)
            }
            Pc::Start | Pc::Done | Pc::Generate => unreachable!("not enabled"),
        };
    }

    fn decide(&self, s: &mut Sys) {
        let setup = Setup {
            method: Method::Double,
            losses: 1,
            groups: GROUPS.iter().map(|g| g.to_vec()).collect(),
        };
        let claims: Vec<Option<Claim>> = s.ranks.iter().map(|r| r.mem.map(|m| m.claim)).collect();
        match decide(&setup, &claims) {
            Decision::Fresh => s.ranks.iter_mut().for_each(|r| r.pc = Pc::Generate),
            Decision::Restore(Recovery { target, lost, .. }) => {
                s.target = target;
                for (position, r) in s.ranks.iter_mut().enumerate() {
                    r.lost = lost.contains(&position);
                    r.pc = Pc::Pin;
                }
            }
            Decision::Refuse(_) => {
                let gone = |p: usize| s.ranks[p].gone || s.ranks[p].mem.is_none();
                s.bad |= GROUPS.iter().all(|g| g.iter().filter(|&&p| gone(p)).count() <= 1);
            }
            Decision::Fetch => unreachable!("there is no storage"),
        }
    }

    fn relaunch(&self, s: &mut Sys, ghost_returns: bool) {
        s.attempt = next_attempt(s.attempt, 0);
        s.target = NOTHING;
        for r in &mut s.ranks {
            if ghost_returns && let Some(old) = r.ghost.take() {
                // Of two copies of a position's memory, the copy with a checkpoint is taken; if both have one, the copy with the
                // later attempt.
                let age = |m: &Mem| (m.claim.stage != Stage::Vacant, m.claim.joined);
                if r.mem.is_none_or(|m| age(&old) > age(&m)) {
                    r.mem = Some(old);
                }
            }
            if let Some(m) = &mut r.mem {
                // Copies and checksums that the header does not name are never read again. Setting them to garbage reduces the
                // number of states.
                let claimed = [m.claim.base, m.claim.seal];
                let vouched = |parity: usize| {
                    claimed.iter().flatten().any(|id| id.number % 2 == parity as u64)
                };
                for parity in (0..2).filter(|&parity| !vouched(parity)) {
                    m.checks[parity] = Garbage;
                    if self.broken != Broken::OneCopy {
                        m.copies[parity] = Garbage;
                    }
                }
            }
            let (helper, over) = (None, None);
            *r = Rank { pc: Pc::Start, dead: false, arrived: 0, lost: false, helper, over, ..*r };
        }
    }
}

impl Model for Aside {
    type State = Sys;
    type Action = Act;

    fn init_states(&self) -> Vec<Sys> {
        let rank = Rank {
            mem: None,
            ghost: None,
            pc: Pc::Generate,
            dead: false,
            arrived: 0,
            gone: false,
            lost: false,
            helper: None,
            over: None,
        };
        vec![Sys {
            attempt: next_attempt(0, 0),
            ranks: [rank; RANKS],
            target: NOTHING,
            crashes: self.crashes,
            ghosts: self.ghosts,
            bad: false,
        }]
    }

    fn actions(&self, s: &Sys, actions: &mut Vec<Act>) {
        if s.bad {
            return;
        }
        for rank in 0..RANKS {
            if self.enabled(s, rank) {
                actions.push(Act::Step(rank));
            }
            if self.encodes(s, rank) {
                actions.push(Act::Encode(rank));
            }
            if s.crashes == 0 {
                continue;
            }
            if !s.anyone_dead() {
                actions.push(Act::Crash(rank, Fate::Kept));
            }
            if !s.ranks[peer(rank)].gone && s.ranks[rank].mem.is_some() {
                actions.push(Act::Crash(rank, Fate::Lost));
                if s.ghosts > 0 {
                    actions.push(Act::Crash(rank, Fate::CutOff));
                }
            }
        }
        if s.anyone_dead() {
            actions.push(Act::Relaunch { ghost_returns: false });
            if s.ranks.iter().any(|r| r.ghost.is_some()) {
                actions.push(Act::Relaunch { ghost_returns: true });
            }
        } else if s.all_at(Pc::Start) {
            actions.push(Act::Decide);
        }
    }

    fn next_state(&self, last: &Sys, action: Act) -> Option<Sys> {
        let mut s = *last;
        match action {
            Act::Step(rank) => self.step(&mut s, rank),
            Act::Encode(rank) => self.encode(&mut s, rank),
            Act::Crash(rank, fate) => {
                s.crashes -= 1;
                let r = &mut s.ranks[rank];
                r.dead = true;
                if fate != Fate::Kept {
                    let mem = r.mem.take();
                    r.gone = true;
                    if fate == Fate::CutOff {
                        s.ghosts -= 1;
                        r.ghost = mem;
                    }
                }
            }
            Act::Relaunch { ghost_returns } => self.relaunch(&mut s, ghost_returns),
            Act::Decide => self.decide(&mut s),
        }
        Some(s.sorted())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![Property::always(
            "one common checkpoint, whole, or no computing",
            |_, s: &Sys| !s.bad,
        )];
        if self.broken == Broken::No {
            all.push(Property::sometimes("the end is reached after all crashes", |_, s: &Sys| {
                s.all_at(Pc::Done) && s.crashes == 0
            }));
        }
        all
    }
}

#[test]
fn no_fault_with_helpers_that_encode() {
    for (checkpoints, crashes, ghosts) in [(3, 2, 0), (2, 2, 1)] {
        assert!(!explore(Aside { checkpoints, crashes, ghosts, broken: Broken::No }));
    }
}

#[test]
fn every_broken_helper_is_caught() {
    for broken in
        [Broken::CommitsAlone, Broken::SealsTheCopy, Broken::OneCopy, Broken::SavesUnderHelper]
    {
        assert!(
            explore(Aside { checkpoints: 2, crashes: 1, ghosts: 0, broken }),
            "{broken:?} was not noticed"
        );
    }
}
