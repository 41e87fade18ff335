//! Every interleaving of the save and recovery protocol for four positions in two groups.
//!
//! The model drives the same pure functions as the program (`decide`, the header transitions); only
//! the memory is abstract: each of A, B and the two checksums is whole for some epoch, or is not. Ranks move one step at
//! a time in any order, die at any step with or without their memory, are relaunched, die again
//! while recovering, and a node that was given up may come back with the copy it had. The invariant:
//! whoever computes holds the epoch everybody holds, and a tolerable loss is never refused. Each broken
//! variant of the protocol must be caught, or the model proves nothing.
//!
//! Two reductions keep it small and lose nothing: members of a group, and groups, are
//! interchangeable, so states are sorted; and what no header vouches for is never read again after
//! a relaunch, so it is forgotten.

use skt_hpl::checkpoint::protocol::{
    Decision, Method, Recovery, Setup, Transitions, all_settled, decide,
};
use skt_hpl::memory::header::{Claim, EpochId, Phase};
use stateright::{Checker, HasDiscoveries, Model, Property};

const RANKS: usize = 4;
const GROUPS: [[usize; 2]; 2] = [[0, 1], [2, 3]];
const NOTHING: EpochId = EpochId { epoch: 0, made: 0 };

/// What a piece of memory is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Val {
    Garbage,
    Whole(EpochId),
    /// A checksum whose unsaved part was taken for zero.
    Hole(EpochId),
}
use Val::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Mem {
    claim: Claim,
    a: Val,
    b: Val,
    /// Checksums of even epochs, of odd ones.
    checks: [Val; 2],
}

impl Mem {
    fn blank(claim: Claim) -> Self {
        Mem { claim, a: Garbage, b: Garbage, checks: [Garbage; 2] }
    }

    fn check(&mut self, id: EpochId) -> &mut Val {
        &mut self.checks[(id.epoch % 2) as usize]
    }
}

/// The step a rank takes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Pc {
    Start,
    Generate,
    Compute,
    Encode,
    /// Only where the seal is written too early: the header says sealed, the checksum is not there.
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Rank {
    mem: Option<Mem>,
    /// A copy on a node that was given up.
    ghost: Option<Mem>,
    pc: Pc,
    dead: bool,
    /// Barriers this process has arrived at.
    arrived: u8,
    /// The memory went and has not been rebuilt.
    gone: bool,
    /// What the decision said about this position.
    finish: bool,
    lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sys {
    incarnation: u32,
    ranks: [Rank; RANKS],
    target: EpochId,
    crashes: u8,
    ghosts: u8,
    bad: bool,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Step(usize),
    Crash { rank: usize, memory: Fate },
    Relaunch { ghost_returns: bool },
    Decide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    Kept,
    Lost,
    /// Out of reach now, back later.
    CutOff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    No,
    NoBarrier,
    SealBeforeData,
    SealNotWithdrawn,
    IncarnationIgnored,
    UnsavedPartZero,
    NoPin,
}

#[derive(Clone)]
struct Protocol {
    epochs: u64,
    crashes: u8,
    ghosts: u8,
    broken: Broken,
}

fn peer(rank: usize) -> usize {
    rank ^ 1
}

impl Protocol {
    fn setup(&self) -> Setup {
        Setup {
            method: Method::SelfCheckpoint,
            losses: 1,
            groups: GROUPS.iter().map(|g| g.to_vec()).collect(),
        }
    }

    /// What the deciding ranks believe they see.
    fn seen(&self, claim: Claim) -> Claim {
        if self.broken != Broken::IncarnationIgnored {
            return claim;
        }
        let flat = |id: EpochId| EpochId { made: 1, ..id };
        Claim {
            joined: 1,
            phase: Phase::Running,
            base: claim.base.map(flat),
            seal: claim.seal.map(flat),
            ..claim
        }
    }

    fn next(&self, finished: Option<EpochId>) -> Pc {
        match finished {
            Some(base) if base.epoch >= self.epochs => Pc::Done,
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

    fn step(&self, s: &mut Sys, rank: usize) {
        let (target, incarnation) = (s.target, s.incarnation);
        let all: Vec<Option<Claim>> = s.ranks.iter().map(|r| r.mem.map(|m| m.claim)).collect();
        let peer_whole = s.ranks[peer(rank)]
            .mem
            .is_some_and(|mut m| m.b == Whole(target) && *m.check(target) == Whole(target));
        let r = &mut s.ranks[rank];
        if r.pc == Pc::Generate {
            r.mem = Some(Mem::blank(Claim::generating(incarnation)));
            r.gone = false;
            r.pc = Pc::Compute;
            return;
        }
        if r.pc == Pc::Pin && r.lost {
            r.mem = Some(Mem::blank(Claim::vacant(incarnation, target)));
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
                let next = m.claim.next_epoch();
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
                self.next(m.claim.base)
            }
            Pc::Pin => {
                if self.broken != Broken::NoPin {
                    m.claim = m.claim.pinned(incarnation, target);
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
                // Rows of B go to A as they are read for the lost.
                m.a = Garbage;
                r.arrived += 1;
                Pc::AgreeBarrier
            }
            Pc::Rebuild => {
                let value = if peer_whole { Whole(target) } else { Garbage };
                (m.b, *m.check(target)) = (value, value);
                m.claim = m.claim.rebuilt(target);
                r.gone = false;
                r.arrived += 1;
                Pc::AgreeBarrier
            }
            Pc::AgreeBarrier => {
                // A rank that dies now takes its header with it; who already agreed goes on.
                s.bad |= self.broken == Broken::No
                    && all.iter().all(|c| c.is_some_and(|c| c.phase != Phase::Running))
                    && !all_settled(&all, incarnation, target);
                m.a = m.b;
                if self.broken == Broken::NoPin {
                    m.claim.joined = incarnation;
                }
                m.claim = m.claim.resumed();
                r.arrived += 1;
                Pc::ResumeBarrier
            }
            Pc::ResumeBarrier => {
                s.bad |= [m.a, m.b, *m.check(target)] != [Whole(target); 3];
                m.a = Garbage;
                self.next(m.claim.base)
            }
            Pc::Start | Pc::Done | Pc::Generate => unreachable!("not enabled"),
        };
    }

    fn decide(&self, s: &mut Sys) {
        let claims: Vec<Option<Claim>> =
            s.ranks.iter().map(|r| r.mem.map(|m| self.seen(m.claim))).collect();
        match decide(&self.setup(), &claims) {
            Decision::Fresh => s.ranks.iter_mut().for_each(|r| r.pc = Pc::Generate),
            Decision::Restore(Recovery { target, finish, lost })
            | Decision::FinishAndRestore(Recovery { target, finish, lost }) => {
                s.target = target;
                for (position, r) in s.ranks.iter_mut().enumerate() {
                    r.finish = finish.contains(&position);
                    r.lost = lost.contains(&position);
                    r.pc = Pc::Pin;
                }
            }
            Decision::Refuse(_) => {
                s.bad |= GROUPS.iter().all(|g| g.iter().filter(|&&r| s.ranks[r].gone).count() <= 1);
            }
        }
    }
}

impl Model for Protocol {
    type State = Sys;
    type Action = Act;

    fn init_states(&self) -> Vec<Sys> {
        vec![Sys {
            incarnation: 1,
            ranks: [Rank {
                mem: None,
                ghost: None,
                pc: Pc::Generate,
                dead: false,
                arrived: 0,
                gone: false,
                finish: false,
                lost: false,
            }; RANKS],
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
            if s.crashes == 0 {
                continue;
            }
            if !s.anyone_dead() {
                actions.push(Act::Crash { rank, memory: Fate::Kept });
            }
            if s.ranks[rank].mem.is_some() && !s.ranks[peer(rank)].gone {
                actions.push(Act::Crash { rank, memory: Fate::Lost });
                if s.ghosts > 0 {
                    actions.push(Act::Crash { rank, memory: Fate::CutOff });
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
            Act::Crash { rank, memory } => {
                s.crashes -= 1;
                let r = &mut s.ranks[rank];
                r.dead = true;
                if memory != Fate::Kept {
                    let mem = r.mem.take()?;
                    r.gone = true;
                    if memory == Fate::CutOff {
                        s.ghosts -= 1;
                        r.ghost = Some(mem);
                    }
                }
            }
            Act::Relaunch { ghost_returns } => {
                s.incarnation += 1;
                s.target = NOTHING;
                for r in &mut s.ranks {
                    if ghost_returns && let Some(old) = r.ghost.take() {
                        // Of two copies of a position the one that took part later is taken.
                        let newer = r.mem.is_none_or(|m| old.claim.joined > m.claim.joined);
                        if newer || self.broken == Broken::IncarnationIgnored {
                            r.mem = Some(old);
                        }
                    }
                    if let Some(m) = &mut r.mem {
                        if m.claim.seal.is_none() {
                            m.a = Garbage;
                        }
                        if m.claim.base.is_none() {
                            m.b = Garbage;
                        }
                        let claimed = [m.claim.base, m.claim.seal];
                        for (parity, check) in m.checks.iter_mut().enumerate() {
                            if !claimed.iter().flatten().any(|id| id.epoch % 2 == parity as u64) {
                                *check = Garbage;
                            }
                        }
                    }
                    *r = Rank {
                        pc: Pc::Start,
                        dead: false,
                        arrived: 0,
                        finish: false,
                        lost: false,
                        ..*r
                    };
                }
            }
            Act::Decide => self.decide(&mut s),
        }
        Some(s.sorted())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all =
            vec![Property::always("one common epoch, whole, or no computing", |_, s: &Sys| !s.bad)];
        if self.broken == Broken::No {
            all.push(Property::sometimes("the end is reached", |_, s: &Sys| s.all_at(Pc::Done)));
            all.push(Property::sometimes("the end is reached after all crashes", |_, s: &Sys| {
                s.all_at(Pc::Done) && s.crashes == 0
            }));
        }
        all
    }
}

/// Explores everything, or as much as it takes to find a fault.
fn explore(model: Protocol) -> bool {
    let start = std::time::Instant::now();
    let Protocol { epochs, crashes, ghosts, broken } = model;
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let fault = checker
        .discovery("one common epoch, whole, or no computing")
        .map(|path| format!("{:#?}", path.into_actions()));
    let states = checker.unique_state_count();
    let live = broken != Broken::No
        || ["the end is reached", "the end is reached after all crashes"]
            .iter()
            .all(|name| checker.discovery(name).is_some());
    println!(
        "{broken:?}, {epochs} epochs, {crashes} crashes, {ghosts} old copies: {states} states in {:.1?}",
        start.elapsed()
    );
    if broken == Broken::No
        && let Some(path) = &fault
    {
        println!("{path}");
    }
    assert!(live || fault.is_some(), "the end was never reached");
    fault.is_some()
}

#[test]
fn no_fault_over_three_epochs_with_two_crashes_and_an_old_copy() {
    assert!(!explore(Protocol { epochs: 3, crashes: 2, ghosts: 1, broken: Broken::No }));
}

#[test]
fn no_fault_over_two_epochs_with_three_crashes_and_an_old_copy() {
    assert!(!explore(Protocol { epochs: 2, crashes: 3, ghosts: 1, broken: Broken::No }));
}

#[test]
fn every_broken_variant_is_caught() {
    for (broken, crashes, ghosts) in [
        (Broken::NoBarrier, 1, 0),
        (Broken::SealBeforeData, 1, 0),
        (Broken::UnsavedPartZero, 1, 0),
        (Broken::SealNotWithdrawn, 2, 0),
        (Broken::IncarnationIgnored, 2, 1),
        (Broken::NoPin, 3, 1),
    ] {
        assert!(
            explore(Protocol { epochs: 2, crashes, ghosts, broken }),
            "{broken:?} was not noticed"
        );
    }
}
