//! Model check of the save and recovery protocol: every interleaving of its steps, for four positions in two groups.
//!
//! The model calls the same pure functions as the program (`decide`, the header transitions). Only memory is abstract: each of
//! the matrix A, its copy B and the two checksums either is complete for one checkpoint or is garbage. Ranks move one step at a
//! time, in any order. A rank can die at any step, with or without its memory, and can die again during recovery. A relaunch
//! starts all ranks again. A node that was given up may return with its old copy.
//!
//! Invariant: a rank that computes has the checkpoint that all ranks have, and a tolerable loss is never refused. Each broken
//! variant of the protocol must be caught; otherwise the model proves nothing.
//!
//! Losses can also be recovered in place. The surviving processes and spares then resume from the memory within reach. If this
//! memory is not enough, the job ends, and a restart may find more memory.
//!
//! Two reductions keep the number of states small without losing faults. Members of a group are interchangeable, and so are
//! groups: states are sorted. Data that no header names are never read after a relaunch: the model sets them to garbage.

mod apart;
mod aside;
mod disk;
mod explore;
mod system;

use skt_hpl::shm::header::attempt_number;
use stateright::{Model, Property};

use explore::explore;
use system::{
    Act, Broken, Fate, NOTHING, PLAIN, Pc, Protocol, RANKS, Rank, Run, Storage, Sys, order, peer,
};

impl Model for Protocol {
    type State = Sys;
    type Action = Act;

    fn init_states(&self) -> Vec<Sys> {
        vec![Sys {
            attempt: attempt_number(1, 0),
            starts: 0,
            ranks: [Rank {
                mem: None,
                ghost: None,
                pc: Pc::Generate,
                dead: false,
                arrived: 0,
                gone: false,
                finish: false,
                lost: false,
                writing: false,
                file: None,
                fresh: None,
                checkpoint_dir: [None; 3],
                lists: None,
                bare: false,
            }; RANKS],
            target: NOTHING,
            crashes: self.crashes,
            ghosts: self.ghosts,
            bad: false,
            run: Run { number: 1, offset: 0 },
            runs: 1,
            flight: None,
            listing: None,
            whole: None,
            ever: false,
            in_place: false,
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
            let last = s.ranks[peer(rank)].gone;
            let node = self.storage == Storage::Node;
            let has = s.ranks[rank].mem.is_some() || node && !s.ranks[rank].bare;
            if has && (self.storage != Storage::None || !last) {
                actions.push(Act::Crash { rank, memory: Fate::Lost });
                if s.ghosts > 0 {
                    actions.push(Act::Crash { rank, memory: Fate::CutOff });
                }
            }
        }
        if self.storage != Storage::None && s.crashes > 0 {
            actions.push(Act::PowerOff);
        }
        if s.anyone_dead() {
            actions.push(Act::Relaunch { ghost_returns: false });
            if s.ranks.iter().any(|r| r.ghost.is_some()) {
                actions.push(Act::Relaunch { ghost_returns: true });
            }
            if self.in_place && s.ranks.iter().any(|r| !r.dead) {
                actions.push(Act::GoOn { elsewhere: false });
                if s.ranks.iter().any(|r| r.dead && r.mem.is_some()) {
                    actions.push(Act::GoOn { elsewhere: true });
                }
            }
        } else if s.all_at(Pc::Start) {
            actions.push(Act::Decide);
        }
        self.storage_actions(s, actions);
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
                    let mem = r.mem.take();
                    r.gone = true;
                    if memory == Fate::CutOff {
                        s.ghosts -= 1;
                        r.ghost = mem;
                    }
                    if self.storage == Storage::Node {
                        (r.checkpoint_dir, r.lists, r.bare) = ([None; 3], None, true);
                    }
                }
            }
            Act::Relaunch { ghost_returns } => {
                s.in_place = false;
                let there = s.ranks.iter().flat_map(|r| r.mem.iter().chain(&r.ghost));
                let order = order(there);
                for r in &mut s.ranks {
                    if ghost_returns && let Some(old) = r.ghost.take() {
                        let newer = r.mem.is_none_or(|m| old.age(&order) > m.age(&order));
                        if newer || self.broken == Broken::AttemptIgnored {
                            r.mem = Some(old);
                        }
                    }
                }
                self.begin(&mut s);
            }
            // In the program, a living rank first completes a manifest that it is writing. The model has `Act::Manifest` for this
            // as a step of its own.
            Act::GoOn { elsewhere } => {
                s.in_place = true;
                for r in s.ranks.iter_mut().filter(|r| elsewhere && r.dead && r.mem.is_some()) {
                    (r.ghost, r.gone) = (r.mem.take(), true);
                }
                self.begin(&mut s);
            }
            Act::Decide => self.decide(&mut s),
            Act::PowerOff => {
                s.crashes -= 1;
                for r in &mut s.ranks {
                    (r.dead, r.gone, r.mem) = (true, true, None);
                }
            }
            Act::Write(rank) => self.write(&mut s, rank),
            Act::Conclude => self.conclude(&mut s),
            Act::Manifest => self.manifest(&mut s),
            Act::List(rank) => self.list(&mut s, rank),
            Act::GiveUp => s.forget_flight(),
        }
        Some(s.sorted())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![Property::always(
            "one common checkpoint, whole, or no computing",
            |_, s: &Sys| !s.bad,
        )];
        if self.broken == Broken::No {
            all.push(Property::sometimes("the end is reached", |_, s: &Sys| s.all_at(Pc::Done)));
            all.push(Property::sometimes("the end is reached after all crashes", |_, s: &Sys| {
                s.all_at(Pc::Done) && s.crashes == 0
            }));
        }
        all
    }
}

#[test]
fn no_fault_over_three_checkpoints_with_two_crashes_and_an_old_copy() {
    assert!(!explore(Protocol { checkpoints: 3, crashes: 2, ghosts: 1, ..PLAIN }));
}

#[test]
fn no_fault_over_two_checkpoints_with_three_crashes_and_an_old_copy() {
    assert!(!explore(Protocol { checkpoints: 2, crashes: 3, ghosts: 1, ..PLAIN }));
}

/// Tests unique attempt numbers while the clock runs backwards. If all data of an attempt are on a node that is away, the next
/// attempt has the same count. Only the start times distinguish the two attempts.
#[test]
fn no_fault_where_the_clock_goes_back_from_start_to_start() {
    assert!(!explore(Protocol {
        checkpoints: 2,
        crashes: 3,
        ghosts: 1,
        clocks_back: true,
        ..PLAIN
    }));
}

#[test]
fn every_broken_variant_is_caught() {
    for (broken, crashes, ghosts) in [
        (Broken::NoBarrier, 1, 0),
        (Broken::SealBeforeData, 1, 0),
        (Broken::UnsavedPartZero, 1, 0),
        (Broken::SealNotWithdrawn, 2, 0),
        (Broken::AttemptIgnored, 2, 1),
        (Broken::NoPin, 3, 1),
        (Broken::MomentLeftOut, 3, 1),
    ] {
        assert!(
            explore(Protocol { checkpoints: 2, crashes, ghosts, broken, ..PLAIN }),
            "{broken:?} was not noticed"
        );
    }
}

/// Shared storage: after any losses at any step, up to all four positions at once, the run resumes from a checkpoint that was
/// complete on storage.
#[test]
fn no_fault_with_storage_whatever_is_lost() {
    for (checkpoints, crashes, ghosts) in [(3, 3, 0), (2, 2, 1)] {
        assert!(!explore(Protocol {
            checkpoints,
            crashes,
            ghosts,
            storage: Storage::Shared,
            ..PLAIN
        }));
    }
}

#[test]
fn every_broken_second_level_is_caught() {
    for (broken, crashes, ghosts) in [
        (Broken::FlushUnderHelper, 1, 0),
        (Broken::ManifestFirst, 1, 0),
        (Broken::PruneFirst, 1, 0),
    ] {
        assert!(
            explore(Protocol {
                checkpoints: 3,
                crashes,
                ghosts,
                storage: Storage::Shared,
                broken,
                ..PLAIN
            }),
            "{broken:?} was not noticed"
        );
    }
}

/// Saves that begin while helpers still write do no harm if each helper reads the header again. A helper whose checkpoint has
/// been overwritten gives its file no name.
#[test]
fn no_fault_where_saves_do_not_wait_for_helpers_that_look_again() {
    assert!(!explore(Protocol {
        checkpoints: 3,
        crashes: 1,
        storage: Storage::Shared,
        looks_again: true,
        broken: Broken::FlushUnderHelper,
        ..PLAIN
    }));
}

/// Storage of each node's own is lost with the node. The lost nodes, at any step: one node; one node and all memory; nodes of
/// both groups.
#[test]
fn no_fault_with_storage_of_each_nodes_own() {
    for (checkpoints, crashes) in [(3, 1), (2, 2)] {
        assert!(!explore(Protocol { checkpoints, crashes, storage: Storage::Node, ..PLAIN }));
    }
}

#[test]
fn every_broken_storage_of_nodes_own_is_caught() {
    for broken in [
        Broken::FlushUnderHelper,
        Broken::OwnManifestFirst,
        Broken::PruneBeforeAll,
        Broken::ParityLeftOut,
    ] {
        let model =
            Protocol { checkpoints: 2, crashes: 2, storage: Storage::Node, broken, ..PLAIN };
        assert!(explore(model), "{broken:?} was not noticed");
    }
}

/// Spares take the grid positions of dead ranks, with and without level two. Ranks resume from memory; if memory contains no
/// checkpoint, from storage. Greater losses end the job and are left to a restart.
#[test]
fn no_fault_in_place_with_storage_and_without() {
    for (checkpoints, crashes, storage) in [(2, 2, Storage::None), (2, 2, Storage::Shared)] {
        assert!(!explore(Protocol { checkpoints, crashes, storage, in_place: true, ..PLAIN }));
    }
}

#[test]
fn storage_that_stands_in_for_memory_in_place_is_caught() {
    let (storage, broken) = (Storage::Shared, Broken::StorageStandsIn);
    let model = Protocol { checkpoints: 2, crashes: 2, storage, in_place: true, broken, ..PLAIN };
    assert!(explore(model), "{broken:?} was not noticed");
}
