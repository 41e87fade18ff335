//! Model of method disk on shared storage. It explores every interleaving of saves, power cuts and losses of ranks whose memory
//! is kept or lost, for three positions.
//!
//! `decide_with` and the claims of headers are the program's own. Files are abstract: each file either is complete for one
//! checkpoint or is not. A save overwrites the files of the checkpoint before the last. The new file is complete only if the old
//! file was, since a save writes only the part that has changed.
//!
//! Claim to prove: a start resumes from the furthest checkpoint that was ever complete, with the files of all positions. It never
//! resumes from memory, and never starts from scratch after a checkpoint was complete.

use skt_hpl::checkpoint::protocol::{Decision, Method, Setup, decide_with};
use skt_hpl::shm::header::{CheckpointId, Claim};
use stateright::{Model, Property};

use crate::explore::explore;

const RANKS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Checkpoint {
    boundary: u8,
    /// Number of the start that wrote this checkpoint.
    run: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct File {
    of: Checkpoint,
    named: bool,
    /// True if the file contains the complete data of its checkpoint.
    sound: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pc {
    Start,
    Generate,
    Fetch(Checkpoint),
    Compute,
    /// Has reached a boundary; the matrix A stays unchanged until the save ends.
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
    /// Boundary up to which the matrix A is computed.
    a: u8,
    last: Option<Checkpoint>,
    spare: Option<Checkpoint>,
    files: [Option<File>; 4],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sys {
    ranks: [Rank; RANKS],
    /// Checkpoints that have a manifest.
    whole: [Option<Checkpoint>; 4],
    run: u8,
    crashes: u8,
    /// Boundary of the furthest checkpoint that was ever complete on storage.
    reached: u8,
    bad: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    No,
    /// A save overwrites the files of the last checkpoint, not of the checkpoint before the last.
    OverLast,
    /// The manifest is written when the file of position 0 is complete, before the files of other positions are.
    ManifestFirst,
    /// All ranks continue, and may begin the next save, before the manifest of this save is written.
    NotAgreed,
    /// The start trusts the claims of headers, as if memory contained the checkpoint that a header names.
    MemoryTrusted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Step(usize),
    Manifest,
    /// The job ends. Bit i of the argument is set if the memory of position i is lost.
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

    /// Removes the manifests and files of all checkpoints except the two in `keep`.
    fn prune_but(&mut self, keep: [Option<Checkpoint>; 2]) {
        let stays = |of: Checkpoint| keep.contains(&Some(of));
        for place in &mut self.whole {
            *place = place.filter(|of| stays(*of));
        }
        for place in self.ranks.iter_mut().flat_map(|r| &mut r.files) {
            *place = place.filter(|file| stays(file.of));
        }
    }

    /// Returns true if every rank is past the boundary of rank `rank`, or is at this boundary in a step for which `there` returns
    /// true.
    fn all(&self, rank: usize, there: impl Fn(Pc) -> bool) -> bool {
        let at = self.ranks[rank].a;
        self.ranks.iter().all(|r| r.a > at || r.a == at && there(r.pc))
    }
}

impl Disk {
    fn next(&self, s: &Sys, rank: usize) -> Checkpoint {
        Checkpoint { boundary: s.ranks[rank].a, run: s.run }
    }

    /// Returns the step of a rank that has completed `boundary`: `Done` after the last boundary, otherwise `Compute`.
    fn after(&self, boundary: u8) -> Pc {
        if boundary == self.checkpoints { Pc::Done } else { Pc::Compute }
    }

    fn enabled(&self, s: &Sys, rank: usize) -> bool {
        use Pc::*;
        match s.ranks[rank].pc {
            Start | Done => false,
            // A rank cannot compute beyond the next boundary of another rank: each iteration needs panels from all ranks.
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
                // Without an old file to overwrite, the save writes the whole matrix, so the new file is sound.
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

    /// Returns the checkpoint whose manifest position 0 can write now; None if files are missing or the manifest exists already.
    /// All positions must have written their files.
    fn lists(&self, s: &Sys) -> Option<Checkpoint> {
        let next = self.next(s, 0);
        let written = |r: &Rank| r.files.iter().flatten().any(|file| file.of == next && file.named);
        let ready = match self.broken {
            Broken::ManifestFirst => written(&s.ranks[0]),
            // In the broken variant `NotAgreed`, position 0 may reach the next boundary first. The manifest is then never
            // written.
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
            // An unfinished file has no name yet, so a start drops it.
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
                // Only the broken variant `MemoryTrusted` resumes from memory. This is a fault if memory is not at the claimed
                // boundary.
                (Decision::Restore(r2), _) => {
                    s.bad |= u64::from(r.a) != r2.target.number;
                    r.pc = Pc::Compute;
                }
                // A refusal is always a fault: the run resumes from a complete checkpoint, or starts from scratch if none was
                // complete.
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
            // Loss of the memory of no rank, of one rank, or of all three ranks.
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
