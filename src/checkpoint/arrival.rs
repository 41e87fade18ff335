//! Findings of a launch in the memory of its nodes: the run in progress, its finished tests, and the positions on each node.
//!
//! Every rank calls [`Arrival::gather`] once at its start, before it has a grid position. All ranks get the same result. If a
//! sweep was interrupted in its third test, the next launch finds the results of the first two tests.
//!
//! One rank reports for each node. Searches are reductions, and only one rank sends a result, even if many ranks have it. So if
//! no memory is found, a launch of a million ranks exchanges a single number.

use std::collections::BTreeMap;

use super::holding::survey;
use super::placement::{Found, Lying, RankCandidate, Told, assign, prevailing, reassign};
use super::world::{NOTHING, World};
use crate::shm::header::Header;
use crate::shm::ledger::{Entry, Ledger};
use crate::shm::{MemoryStore, Part};

/// Findings of a launch, the same on every rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Run in progress, if there is one.
    pub run: Option<u128>,
    /// Greatest id of all runs of this job that left a header or a result. The id of a new run must be greater.
    pub latest: Option<u128>,
    /// Number of the latest test of `run` that has memory on any node.
    pub test: Option<u32>,
    /// Digest of the settings of test `test`, from its memory (`Test::params_digest`).
    pub params_digest: Option<u64>,
    /// Results of the finished tests of `run`, by test number, as they were recorded.
    pub finished: BTreeMap<u32, Vec<u8>>,
    ranks: usize,
    /// Node of each rank, as the number of the first rank on the node. Empty if no memory was found.
    nodes: Vec<usize>,
    found: Vec<Vec<Found>>,
}

/// Largest value of all ranks. None if no rank has a value.
fn largest(world: &impl World, mine: Option<u64>) -> Option<u64> {
    let flipped = mine.map_or(NOTHING, |value| NOTHING - 1 - value.min(NOTHING - 1));
    let least = world.least(&[flipped])[0];
    (least < NOTHING).then(|| NOTHING - 1 - least)
}

/// Greatest run id of all ranks. None if no rank has one.
fn newest(world: &impl World, runs: impl Iterator<Item = u128> + Clone) -> Option<u128> {
    let upper = |run: u128| (run >> 64) as u64;
    let high = largest(world, runs.clone().map(upper).max())?;
    let lower = runs.filter(|&run| upper(run) == high).map(|run| run as u64).max();
    let low = largest(world, lower).unwrap_or_default();
    Some((high as u128) << 64 | low as u128)
}

/// Returns the recorded results of finished tests of each position on this node.
fn ledgers(memory_store: &MemoryStore) -> Vec<(usize, Vec<Entry>)> {
    let lists = memory_store.list().into_iter().filter(|held| held.part == Part::Done);
    lists
        .filter_map(|held| {
            let region = memory_store.peek(held.position, Part::Done).ok()?;
            Some((held.position as usize, Ledger::new(region).entries()))
        })
        .collect()
}

/// Returns the facts about runs from the headers and the results of finished tests on this node.
fn traces(headers: &[(Found, Header)], results: &[(usize, Vec<Entry>)]) -> Vec<Told> {
    let in_memory = headers.iter().map(|(found, _)| {
        let Found { run, position, trace, .. } = *found;
        Told { run, position, joined: trace.joined, result: None }
    });
    let finished = results.iter().flat_map(|(position, list)| {
        let one = |entry: &Entry| Told {
            run: entry.run,
            position: *position,
            joined: 0,
            result: Some(entry.mark()),
        };
        list.iter().map(one)
    });
    in_memory.chain(finished).collect()
}

/// Determines the run in progress from the `traces` of this node; `latest` is the greatest run id. Only if there are several
/// runs, ranks exchange their traces.
fn in_progress(world: &impl World, traces: Vec<Told>, latest: u128) -> u128 {
    let other = traces.iter().any(|told| told.run != latest);
    if world.all(!other) {
        return latest;
    }
    prevailing(world.gather(&traces).into_iter().flatten()).unwrap_or(latest)
}

impl Arrival {
    /// Gathers the findings of all ranks. `world` has all launched ranks in launch order. `node` is the first rank on this rank's
    /// node, which reports for the node.
    pub fn gather(world: &impl World, memory_store: &MemoryStore, node: usize) -> Self {
        let (me, ranks) = (world.rank(), world.size());
        let speaks = me == node;
        let mut held = if speaks { survey(memory_store) } else { Vec::new() };
        let lists = if speaks { ledgers(memory_store) } else { Vec::new() };
        let traces = traces(&held, &lists);
        let mut results: Vec<Entry> = lists.into_iter().flat_map(|(_, list)| list).collect();
        let latest = newest(world, traces.iter().map(|told| told.run));
        let mut this = Self { ranks, latest, ..Self::default() };
        let Some(latest) = latest else {
            return this;
        };
        let run = in_progress(world, traces, latest);
        this.run = Some(run);
        // Memory of other tests and runs does not influence the assignment of positions.
        held.retain(|(found, _)| found.run == run);
        results.retain(|entry| entry.run == run);
        let test = largest(world, held.iter().map(|(_, header)| header.id.test.into()).max());
        this.test = test.map(|test| test as u32);
        held.retain(|(_, header)| Some(header.id.test) == this.test);
        let last = largest(world, results.iter().map(|entry| entry.test.into()).max());

        // First rank that has each item to be sent: the digest of the settings, then each result.
        let mut tellers = vec![NOTHING; 1 + last.map_or(0, |last| last as usize + 1)];
        if !held.is_empty() {
            tellers[0] = me as u64;
        }
        for entry in &results {
            tellers[1 + entry.test as usize] = me as u64;
        }
        let tellers = world.least(&tellers);
        let tell = |teller: u64, mine: &dyn Fn() -> Vec<u8>| {
            let mine = if teller == me as u64 { mine() } else { Vec::new() };
            world.tell(&mine, teller as usize)
        };
        if tellers[0] < NOTHING {
            let digest = || held[0].1.id.params_digest.to_le_bytes().to_vec();
            let bytes = tell(tellers[0], &digest);
            this.params_digest = Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        }
        for (test, &teller) in tellers[1..].iter().enumerate() {
            if teller < NOTHING {
                let mine = || {
                    let entry = results.iter().find(|entry| entry.test as usize == test);
                    entry.expect("the first that has it").bytes.clone()
                };
                this.finished.insert(test as u32, tell(teller, &mine));
            }
        }
        if this.test.is_some() {
            this.gather_places(world, node, run, held.into_iter().map(|(found, _)| found));
        }
        this
    }

    /// Returns the findings without run, memory and results, so that a new run begins. `latest` stays, because the id of the new
    /// run must be greater than `latest`.
    pub fn without_memory(self) -> Self {
        Self { ranks: self.ranks, latest: self.latest, ..Self::default() }
    }

    /// Gathers the positions with memory on each node. A rank sends a few bytes, plus a few for each position.
    fn gather_places(
        &mut self,
        world: &impl World,
        node: usize,
        run: u128,
        mine: impl Iterator<Item = Found>,
    ) {
        // All have the same run id, which is not sent.
        let mine: Vec<_> = mine.map(|found| (found.position, found.vacant, found.trace)).collect();
        for (node, copies) in world.gather(&(node, mine)) {
            self.nodes.push(node);
            let copy = |(position, vacant, trace)| Found { position, run, vacant, trace };
            self.found.push(copies.into_iter().map(copy).collect());
        }
    }

    /// Assigns a position in test `test` to each rank. A position goes to a rank on a node with its memory of this test. If there
    /// is no such node, the position goes to a rank on a node with its file, according to `files`. Any other position goes to the
    /// rank with its number, or to a free rank. Ranks that are not needed get None.
    pub fn place(&self, test: u32, positions: usize, files: Option<Lying>) -> Vec<Option<usize>> {
        let memory = Lying { nodes: &self.nodes, found: &self.found };
        let memory = (self.test == Some(test)).then_some(memory);
        let all: Vec<Lying> = memory.into_iter().chain(files).collect();
        assign(positions, self.ranks, &all)
    }

    /// Assigns the positions in test `test` to the ranks that are left after a loss. Each rank with a position keeps the
    /// position. Spare ranks take the other positions, if possible on a node with the memory of the position. Returns None if
    /// there are too few spare ranks.
    pub fn place_again(
        &self,
        test: u32,
        positions: usize,
        candidates: &[RankCandidate],
    ) -> Option<Vec<Option<usize>>> {
        let none = vec![Vec::new(); candidates.len()];
        reassign(positions, candidates, if self.test == Some(test) { &self.found } else { &none })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::super::groups::{crowded, divide};
    use super::super::protocol::{Decision, Method, Setup, Trace, decide};
    use super::*;
    use crate::parity::Spread;
    use crate::shm::Store;
    use crate::shm::header::{CheckpointId, Claim};

    const POSITIONS: usize = 1_000_000;
    const PER_NODE: usize = 4;
    const RUN: u128 = 7 << 64 | 9;
    const TEST: u32 = 2;

    /// World of a million ranks, from the view of rank 1. The messages of all other ranks are known beforehand. Node 0 is last in
    /// the new launch, so every rank gets another position. Node 17 was lost with its positions.
    struct Million {
        /// Results of the reductions that are still to come, the next one last.
        least: RefCell<Vec<Vec<u64>>>,
        reduced_words: Cell<usize>,
        gathered_bytes: Cell<usize>,
        told_bytes: Cell<usize>,
    }

    impl Million {
        fn expecting(least: &[&[u64]]) -> Self {
            let mut least: Vec<Vec<u64>> = least.iter().map(|words| words.to_vec()).collect();
            least.reverse();
            let none = || Cell::new(0);
            Self {
                least: RefCell::new(least),
                reduced_words: none(),
                gathered_bytes: none(),
                told_bytes: none(),
            }
        }
    }

    fn held_on(node: usize) -> std::ops::Range<usize> {
        let first = (node * PER_NODE + PER_NODE) % POSITIONS;
        if node == 17 { 0..0 } else { first..first + PER_NODE }
    }

    impl World for Million {
        fn rank(&self) -> usize {
            1
        }
        fn size(&self) -> usize {
            POSITIONS
        }
        fn barrier(&self) {}
        fn allgather(&self, mine: &[u8]) -> Vec<Vec<u8>> {
            let told = |rank: usize| {
                let node = rank / PER_NODE;
                let here = if rank.is_multiple_of(PER_NODE) { held_on(node) } else { 0..0 };
                let trace = Trace { joined: 1, ..Trace::default() };
                let copies: Vec<_> = here.map(|position| (position, false, trace)).collect();
                postcard::to_allocvec(&(node * PER_NODE, copies)).unwrap()
            };
            assert_eq!(mine, told(1), "only the first rank of a node sends the node's list");
            let all: Vec<Vec<u8>> = (0..POSITIONS).map(told).collect();
            self.gathered_bytes
                .set(self.gathered_bytes.get() + all.iter().map(Vec::len).sum::<usize>());
            all
        }
        fn first_says(&self, value: u64) -> u64 {
            value
        }
        fn least(&self, mine: &[u64]) -> Vec<u64> {
            let nothing = mine.iter().all(|&value| value == NOTHING);
            assert!(nothing || mine == [1], "nothing lies on this node");
            self.reduced_words.set(self.reduced_words.get() + mine.len());
            self.least.borrow_mut().pop().expect("one more reduction than is needed")
        }
        fn tell(&self, bytes: &[u8], teller: usize) -> Vec<u8> {
            assert!(bytes.is_empty() && teller == 4);
            let told = 77u64.to_le_bytes().to_vec();
            self.told_bytes.set(self.told_bytes.get() + told.len());
            told
        }
        fn send(&self, _: &[u64], _: usize) {
            unreachable!("nothing is sent from one to another");
        }
        fn receive(&self, _: &mut [u64], _: usize) {
            unreachable!("as above");
        }
    }

    /// Checks that every position has one rank, which is on the node with the position's memory.
    fn follows_memory(taken: &[Option<usize>]) {
        let mut seen = vec![false; POSITIONS];
        for (rank, position) in taken.iter().enumerate() {
            let position = position.expect("as many ranks as positions");
            assert!(!std::mem::replace(&mut seen[position], true));
            let node = rank / PER_NODE;
            assert!(node == 17 || held_on(node).contains(&position), "{rank} at {position}");
        }
    }

    /// In no step of a launch, up to the recovery, do work or messages grow with the square of the number of ranks. With a
    /// million ranks that would take too long.
    #[test]
    fn a_million_positions_are_placed_grouped_and_judged() {
        let dir = tempfile::tempdir().unwrap();
        let memory_store =
            MemoryStore::with_directory(Store::Posix, "million", dir.path()).unwrap();
        let inverted = |value: u64| NOTHING - 1 - value;
        let world = Million::expecting(&[
            &[inverted(7)],
            &[inverted(9)],
            // No rank has found another run.
            &[1],
            &[inverted(TEST.into())],
            &[NOTHING],
            &[4],
        ]);
        let arrival = Arrival::gather(&world, &memory_store, 0);
        assert_eq!((arrival.run, arrival.test), (Some(RUN), Some(TEST)));
        assert_eq!((arrival.params_digest, arrival.finished.len()), (Some(77), 0));
        assert_eq!(world.reduced_words.get(), 6);
        assert_eq!(world.told_bytes.get(), 8);
        // Each rank sends its node, and the number and the attempt of each position with memory.
        let bytes = 4 * POSITIONS + 12 * (POSITIONS - PER_NODE);
        assert!(world.gathered_bytes.get() <= bytes);

        let taken = arrival.place(TEST, POSITIONS, None);
        follows_memory(&taken);
        let next = arrival.place(TEST + 1, POSITIONS, None);
        assert!(next.iter().enumerate().all(|(rank, position)| *position == Some(rank)));

        let mut domains = vec![String::new(); POSITIONS];
        for (rank, position) in taken.iter().enumerate() {
            domains[position.unwrap()] = format!("n{}", rank / PER_NODE);
        }
        let groups = divide(&domains, None, 1, Spread::Rotated).unwrap();
        assert_eq!(groups.len(), POSITIONS / 16);
        assert_eq!(crowded(&groups, &domains, 1), []);

        // Assigns positions after a loss. First, no rank has a position, and candidate ranks may know their groups. Then, all
        // ranks but those of one node have a position.
        let mut candidates: Vec<RankCandidate> = (0..POSITIONS)
            .map(|rank| RankCandidate {
                node: rank / PER_NODE * PER_NODE,
                domain: format!("n{}", rank / PER_NODE),
                ..RankCandidate::default()
            })
            .collect();
        let cast = |candidates: &[RankCandidate], test| {
            arrival.place_again(test, POSITIONS, candidates).unwrap()
        };
        follows_memory(&cast(&candidates, TEST));
        assert_eq!(cast(&candidates, TEST + 1), next);
        for members in &groups {
            for &position in members {
                candidates[position].members = members.clone();
            }
        }
        let mut there: Vec<Option<usize>> = cast(&candidates, TEST + 1);
        there.sort_unstable();
        assert!(there.iter().copied().eq((0..POSITIONS).map(Some)));
        for (rank, candidate) in candidates.iter_mut().enumerate() {
            let kept = taken[rank].filter(|_| rank / PER_NODE != 17);
            (candidate.kept, candidate.members) = (kept, Vec::new());
        }
        for members in &groups {
            // One member of each group knows the group.
            candidates[members[0]].members = members.clone();
        }
        let again = cast(&candidates, TEST + 1);
        assert!(again.iter().zip(&taken).enumerate().all(|(rank, (again, taken))| {
            again == taken || rank / PER_NODE == 17 && again.is_some()
        }));

        let target = CheckpointId { number: 5, made: 1 };
        let claims: Vec<Option<Claim>> = (0..POSITIONS)
            .map(|position| {
                (domains[position] != "n17").then(|| Claim::generating(1).settled(target))
            })
            .collect();
        let setup = Setup { method: Method::SelfCheckpoint, losses: 1, groups };
        let Decision::Restore(recovery) = decide(&setup, &claims) else {
            panic!("one of each group is lost at most");
        };
        assert_eq!((recovery.target, recovery.lost.len()), (target, PER_NODE));
    }

    /// A start of any size that finds no memory exchanges one number.
    #[test]
    fn where_nothing_is_found_nothing_is_gathered() {
        let dir = tempfile::tempdir().unwrap();
        let memory_store =
            MemoryStore::with_directory(Store::Posix, "million", dir.path()).unwrap();
        let world = Million::expecting(&[&[NOTHING]]);
        let arrival = Arrival::gather(&world, &memory_store, 0);
        assert_eq!((arrival.run, arrival.test), (None, None));
        assert_eq!((world.reduced_words.get(), world.gathered_bytes.get()), (1, 0));
        let taken = arrival.place(0, POSITIONS - 1, None);
        assert_eq!((taken[5], taken[POSITIONS - 1]), (Some(5), None));
    }
}
