//! Method disk on storage that all share: every interleaving of its saves, of losses of ranks with memory kept or lost, and of
//! power cuts, for three positions.
//!
//! `decide_with` and the claims of headers are the program's; files are abstract: each is complete for some checkpoint, or is
//! not. A checkpoint is written over the one before the last, and is complete only if that one was. The claim: a start resumes
//! from the best checkpoint that was complete, with all its files, on all positions; never from memory, and never from nothing
//! once there was one.

use skt_hpl::checkpoint::protocol::{Decision, Method, Setup, decide_with};
use skt_hpl::shm::header::{CheckpointId, Claim};
use stateright::{Model, Property};

use crate::explore::explore;

const RANKS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Checkpoint {
    boundary: u8,
    /// The start that made it.
    run: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct File {
    of: Checkpoint,
    named: bool,
    /// Whether the content is the right one.
    sound: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pc {
    Start,
    Generate,
    Fetch(Checkpoint),
    Compute,
    /// At a boundary, A frozen.
    Frozen,
    Room,
    Open,
    Half,
    Written,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rank {
    pc: Pc,
    claim: Option<Claim>,
    /// The boundary A is at.
    a: u8,
    last: Option<Checkpoint>,
    spare: Option<Checkpoint>,
    files: [Option<File>; 4],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sys {
    ranks: [Rank; RANKS],
    /// Checkpoints with a manifest.
    whole: [Option<Checkpoint>; 4],
    run: u8,
    crashes: u8,
    /// The furthest checkpoint that was ever complete.
    reached: u8,
    bad: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    No,
    /// The last checkpoint is written over, not the one before.
    OverLast,
    /// The manifest is written when one file is whole.
    ManifestFirst,
    /// All continue, and to the next save, before there is a manifest.
    NotAgreed,
    /// The claims of headers are taken for the content of memory.
    MemoryTrusted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Step(usize),
    Manifest,
    /// The job ends; these positions' memory is lost (by bits).
    Crash(u8),
    Restart,
}

#[derive(Debug)]
struct Disk {
    checkpoints: u8,
    crashes: u8,
    broken: Broken,
}

fn place<T>(places: &mut [Option<T>], thing: T) {
    let free = places.iter_mut().find(|place| place.is_none());
    *free.expect("two checkpoints lie there, and one on its way") = Some(thing);
}

impl Sys {
    fn best(&self) -> Option<Checkpoint> {
        self.whole.iter().flatten().max().copied()
    }

    fn has(&self, checkpoint: Checkpoint) -> bool {
        self.whole.contains(&Some(checkpoint))
    }

    /// Removes all but these, manifests first.
    fn prune_but(&mut self, keep: [Option<Checkpoint>; 2]) {
        let stays = |of: Checkpoint| keep.contains(&Some(of));
        for place in &mut self.whole {
            *place = place.filter(|of| stays(*of));
        }
        for place in self.ranks.iter_mut().flat_map(|r| &mut r.files) {
            *place = place.filter(|file| stays(file.of));
        }
    }

    /// Whether all ranks have come as far as this at the boundary of rank `rank`, or further.
    fn all(&self, rank: usize, there: impl Fn(Pc) -> bool) -> bool {
        let at = self.ranks[rank].a;
        self.ranks.iter().all(|r| r.a > at || r.a == at && there(r.pc))
    }
}

impl Disk {
    fn next(&self, s: &Sys, rank: usize) -> Checkpoint {
        Checkpoint { boundary: s.ranks[rank].a, run: s.run }
    }

    /// State after a boundary.
    fn after(&self, boundary: u8) -> Pc {
        if boundary == self.checkpoints { Pc::Done } else { Pc::Compute }
    }

    fn enabled(&self, s: &Sys, rank: usize) -> bool {
        use Pc::*;
        match s.ranks[rank].pc {
            Start | Done => false,
            // Pieces of the factored part come from all ranks.
            Compute => s.ranks.iter().all(|r| r.a >= s.ranks[rank].a),
            Room => s.all(rank, |pc| matches!(pc, Room | Open | Half | Written | Done)),
            Written if self.broken == Broken::NotAgreed => s.all(rank, |pc| pc == Written),
            Written => {
                s.has(self.next(s, rank))
                    && s.all(rank, |pc| pc == Written || pc == Compute || pc == Done)
            }
            Generate | Fetch(_) | Frozen | Open | Half => true,
        }
    }

    fn step(&self, s: &mut Sys, rank: usize) {
        let next = self.next(s, rank);
        let mut r = s.ranks[rank];
        match r.pc {
            Pc::Generate => r.pc = Pc::Compute,
            Pc::Fetch(of) => {
                let file = r.files.iter().flatten().find(|file| file.of == of && file.named);
                s.bad |= file.is_none_or(|file| !file.sound);
                let id = CheckpointId { number: of.boundary.into(), made: s.run.into() };
                r.claim = r.claim.map(|claim| claim.settled(id));
                (r.a, r.last, r.pc) = (of.boundary, Some(of), self.after(of.boundary));
            }
            Pc::Compute => {
                r.a += 1;
                r.pc = Pc::Frozen;
            }
            Pc::Frozen => {
                r.pc = Pc::Room;
                if rank == 0 {
                    let over = if self.broken == Broken::OverLast { r.last } else { r.spare };
                    for place in &mut s.whole {
                        *place = place.filter(|of| Some(*of) != over);
                    }
                    s.prune_but([r.last, r.spare]);
                    r.files = s.ranks[rank].files;
                }
            }
            Pc::Room => {
                s.bad |= s.ranks.iter().any(|other| other.a != r.a);
                r.pc = Pc::Open;
            }
            Pc::Open => {
                let over = if self.broken == Broken::OverLast { r.last } else { r.spare };
                let old = r
                    .files
                    .iter_mut()
                    .find(|place| place.is_some_and(|file| Some(file.of) == over));
                // If there is nothing to write over, all of it is written.
                let base = old.and_then(Option::take).is_none_or(|file| file.sound);
                place(&mut r.files, File { of: next, named: false, sound: base });
                r.pc = Pc::Half;
            }
            Pc::Half => {
                for file in r.files.iter_mut().flatten().filter(|file| file.of == next) {
                    file.named = true;
                }
                r.pc = Pc::Written;
            }
            Pc::Written => {
                let id = CheckpointId { number: next.boundary.into(), made: s.run.into() };
                r.claim = r.claim.map(|claim| claim.settled(id));
                (r.spare, r.last) = (r.last, Some(next));
                r.pc = self.after(r.a);
            }
            Pc::Start | Pc::Done => unreachable!("not enabled"),
        }
        s.ranks[rank] = r;
    }

    /// Returns the checkpoint whose files position 0 lists, once it has written its own.
    fn lists(&self, s: &Sys) -> Option<Checkpoint> {
        let next = self.next(s, 0);
        let written = |r: &Rank| r.files.iter().flatten().any(|file| file.of == next && file.named);
        let ready = match self.broken {
            Broken::ManifestFirst => written(&s.ranks[0]),
            // Or never, if it has not come to it before the next boundary.
            _ => s.ranks.iter().all(written),
        };
        (ready && !s.has(next)).then_some(next)
    }

    fn restart(&self, s: &mut Sys) {
        s.run += 1;
        let setup = Setup {
            method: match self.broken {
                Broken::MemoryTrusted => Method::SelfCheckpoint,
                _ => Method::Disk,
            },
            losses: if self.broken == Broken::MemoryTrusted { RANKS - 1 } else { 0 },
            groups: match self.broken {
                Broken::MemoryTrusted => vec![(0..RANKS).collect()],
                _ => (0..RANKS).map(|rank| vec![rank]).collect(),
            },
        };
        let claims: Vec<Option<Claim>> = s.ranks.iter().map(|r| r.claim).collect();
        let best = s.best();
        let at = |id: CheckpointId| Some(id.number);
        let decision = decide_with(&setup, &claims, at, best.map(|best| best.boundary.into()));
        for r in &mut s.ranks {
            (r.last, r.spare) = (None, None);
            // Files without a name are made again before anything is written there.
            for place in &mut r.files {
                *place = place.filter(|file| file.named);
            }
            let fresh = Some(Claim::generating(s.run.into()));
            match (&decision, best) {
                (Decision::Fetch, Some(best)) => {
                    s.bad |= best.boundary < s.reached;
                    (r.claim, r.a, r.pc) = (fresh, 0, Pc::Fetch(best));
                }
                (Decision::Fresh, _) => {
                    s.bad |= s.reached > 0;
                    (r.claim, r.a, r.pc) = (fresh, 0, Pc::Generate);
                }
                // The run resumes from memory as it is.
                (Decision::Restore(r2), _) => {
                    s.bad |= u64::from(r.a) != r2.target.number;
                    r.pc = Pc::Compute;
                }
                // There is always a checkpoint to resume from, or none was complete.
                _ => s.bad = true,
            }
        }
    }
}

impl Model for Disk {
    type State = Sys;
    type Action = Act;

    fn init_states(&self) -> Vec<Sys> {
        let rank = Rank {
            pc: Pc::Generate,
            claim: Some(Claim::generating(1)),
            a: 0,
            last: None,
            spare: None,
            files: [None; 4],
        };
        let ranks = [rank; RANKS];
        vec![Sys { ranks, whole: [None; 4], run: 1, crashes: self.crashes, reached: 0, bad: false }]
    }

    fn actions(&self, s: &Sys, actions: &mut Vec<Act>) {
        if s.bad {
            return;
        }
        if s.ranks.iter().all(|r| r.pc == Pc::Start) {
            actions.push(Act::Restart);
            return;
        }
        actions.extend((0..RANKS).filter(|&rank| self.enabled(s, rank)).map(Act::Step));
        if self.lists(s).is_some() {
            actions.push(Act::Manifest);
        }
        if s.crashes > 0 {
            // Memory of no rank, of one, or of all.
            actions.extend([0, 1, 2, 4, 7].map(Act::Crash));
        }
    }

    fn next_state(&self, last: &Sys, action: Act) -> Option<Sys> {
        let mut s = *last;
        match action {
            Act::Step(rank) => self.step(&mut s, rank),
            Act::Manifest => {
                let of = self.lists(&s)?;
                place(&mut s.whole, of);
                s.reached = s.reached.max(of.boundary);
                let last = s.ranks[0].last;
                s.prune_but([Some(of), last]);
            }
            Act::Crash(lost) => {
                s.crashes -= 1;
                for (rank, r) in s.ranks.iter_mut().enumerate() {
                    r.pc = Pc::Start;
                    if lost >> rank & 1 == 1 {
                        (r.claim, r.a) = (None, u8::MAX);
                    }
                }
            }
            Act::Restart => self.restart(&mut s),
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all =
            vec![Property::always("the last whole checkpoint, or no computing", |_, s: &Sys| {
                !s.bad
            })];
        if self.broken == Broken::No {
            all.push(Property::sometimes("the end is reached after all crashes", |_, s: &Sys| {
                s.crashes == 0 && s.ranks.iter().all(|r| r.pc == Pc::Done)
            }));
        }
        all
    }
}

#[test]
fn no_fault_of_method_disk_whatever_is_lost() {
    for (checkpoints, crashes) in [(5, 2), (4, 3)] {
        assert!(!explore(Disk { checkpoints, crashes, broken: Broken::No }));
    }
}

#[test]
fn every_broken_method_disk_is_caught() {
    for broken in
        [Broken::OverLast, Broken::ManifestFirst, Broken::NotAgreed, Broken::MemoryTrusted]
    {
        assert!(explore(Disk { checkpoints: 4, crashes: 2, broken }), "{broken:?} was not noticed");
    }
}
