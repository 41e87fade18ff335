//! Assignment of grid positions to ranks: a position follows its memory.
//!
//! At a restart, the launcher may list the nodes in any order. Each node lists the positions in its memory. A pure function, with
//! the same result on every rank, assigns a position in memory to a rank on the node with this memory. Other ranks get the
//! remaining positions. If each node has storage of its own, a position without memory is assigned to a node that has its file.
//! So if a job has more ranks than positions, no node with needed files stays idle.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::protocol::{Order, Trace};

/// Memory or file of one position on a rank's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub position: usize,
    /// Run id. A later run has a greater id, and its memory is preferred to memory of an earlier run. For files, a number that is
    /// greater for a better checkpoint.
    pub run: u128,
    /// True if the memory is empty: it was created for a rebuild that never ended. Any memory of the position with contents is
    /// better. If empty memory is not used, its position counts as lost, and its group can rebuild the position.
    pub vacant: bool,
    /// Last attempt in which the memory took part. If two nodes have memory of a position, the memory of the later attempt is
    /// used ([`Order`]).
    pub trace: Trace,
}

/// Facts about a run from one header in memory, or from one result of a finished test in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    pub run: u128,
    pub position: usize,
    /// Last attempt in which the position took part, from its header. Zero for a result.
    pub joined: u64,
    /// Hash of a result's test and text; None for a header. A run that resumes under a new id copies its results, and their
    /// hashes stay the same.
    pub result: Option<u64>,
}

/// Returns the id of the run in progress, from every header and every result in memory. Returns None if memory has neither.
///
/// The run in progress is the run with the most positions. If several runs have the most positions, it is the run with the most
/// attempts among them. If these are equal, too, it is the run with the greatest id. An id contains the start time by the clock
/// of one node. So the id decides last: the old run of a node whose clock is ahead must not outrank the run of all other nodes.
///
/// If several runs have the same result, later runs have copied it. The result counts for the last of these runs, even at a
/// position that has taken part only in an earlier run. But if the position also has memory of the earlier run, the result counts
/// for the earlier run.
pub fn prevailing(told: impl IntoIterator<Item = Told>) -> Option<u128> {
    let told: Vec<Told> = told.into_iter().collect();
    let in_memory = |told: &&Told| told.result.is_none();
    let has_memory: HashSet<(u128, usize)> =
        told.iter().filter(in_memory).map(|told| (told.run, told.position)).collect();
    let mut heirs: HashMap<u64, u128> = HashMap::new();
    for (mark, run) in told.iter().filter_map(|told| Some((told.result?, told.run))) {
        let heir = heirs.entry(mark).or_default();
        *heir = run.max(*heir);
    }
    let mut runs: BTreeMap<u128, (BTreeSet<usize>, u64)> = BTreeMap::new();
    for Told { run, position, joined, result } in told {
        let handed_on = result.filter(|_| !has_memory.contains(&(run, position)));
        let run = handed_on.map_or(run, |mark| heirs[&mark]);
        let (positions, most) = runs.entry(run).or_default();
        positions.insert(position);
        *most = joined.max(*most);
    }
    let ranked = runs.into_iter().map(|(run, (positions, most))| (positions.len(), most, run));
    ranked.max().map(|(_, _, run)| run)
}

/// Memory or files that determine the node of a position. `nodes[r]` is the node of rank r. `found[r]` lists the memory or files
/// that rank r has found on its node. All ranks of a node may report the same list, or one rank may report for the node.
#[derive(Clone, Copy, Debug)]
pub struct Lying<'a> {
    pub nodes: &'a [usize],
    pub found: &'a [Vec<Found>],
}

/// Assigns a position to each rank, or None to ranks that are not needed. Earlier entries of `all` take precedence. A position
/// without memory or file goes to the rank with its number, or to the next free rank if that rank is taken.
pub fn assign(positions: usize, ranks: usize, all: &[Lying]) -> Vec<Option<usize>> {
    let mut taken: Vec<Option<usize>> = vec![None; ranks];
    let mut placed = vec![false; positions];
    for &Lying { nodes, found } in all {
        assert_eq!((nodes.len(), found.len()), (ranks, ranks));
        let best = remembering(positions, nodes.iter().copied().zip(found));
        // First assigns positions whose default rank is on the right node, then all other positions to any free rank on their
        // node.
        for (position, node) in best.iter().enumerate() {
            let default = node.is_some() && nodes.get(position) == node.as_ref();
            if default && !placed[position] && taken[position].is_none() {
                taken[position] = Some(position);
                placed[position] = true;
            }
        }
        let mut free = free_by(&taken, |rank| nodes[rank]);
        for (position, node) in best.iter().enumerate() {
            let Some(node) = node else { continue };
            if !placed[position]
                && let Some(rank) = free.get_mut(node).and_then(Vec::pop)
            {
                taken[rank] = Some(position);
                placed[position] = true;
            }
        }
    }
    // Each remaining position goes to its default rank if that is free, otherwise to the next free rank.
    for position in 0..positions.min(ranks) {
        if !placed[position] && taken[position].is_none() {
            taken[position] = Some(position);
            placed[position] = true;
        }
    }
    let mut free = (0..ranks).filter(|&r| taken[r].is_none()).collect::<Vec<_>>().into_iter();
    for position in (0..positions).filter(|&p| !placed[p]) {
        if let Some(rank) = free.next() {
            taken[rank] = Some(position);
        }
    }
    taken
}

/// Returns the node with the best memory or file of each position; None if no node has any. Memory of the latest run is the best,
/// then memory with contents, then memory of the latest attempt. If several are equally good, the first is used.
fn remembering<'a>(
    positions: usize,
    found: impl Iterator<Item = (usize, &'a Vec<Found>)>,
) -> Vec<Option<usize>> {
    let found: Vec<(usize, &Vec<Found>)> = found.collect();
    let all = || found.iter().flat_map(|(_, list)| list.iter());
    let run = all().map(|f| f.run).max();
    let order = Order::of(all().filter(|f| Some(f.run) == run).map(|f| f.trace));
    let rank = |f: &Found| (f.run, !f.vacant, order.rank(f.trace.joined));
    let mut best: Vec<Option<(&Found, usize)>> = vec![None; positions];
    for (node, list) in found.iter().copied() {
        for f in list.iter().filter(|f| f.position < positions) {
            let entry = &mut best[f.position];
            if entry.is_none_or(|(best, _)| rank(f) > rank(best)) {
                *entry = Some((f, node));
            }
        }
    }
    best.into_iter().map(|copy| copy.map(|(_, node)| node)).collect()
}

/// Facts about a candidate rank, for the assignment of positions after a loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankCandidate {
    /// Node of the rank, as the number of the first rank on the node.
    pub node: usize,
    /// Failure domain of the rank.
    pub domain: String,
    /// Position of the rank, which the rank keeps. None if the rank has no position.
    pub kept: Option<usize>,
    /// Positions of the rank's group. Empty if the rank has been in no group.
    pub members: Vec<usize>,
}

/// Assigns positions after a loss. Each rank with a position keeps it, and spare ranks take the vacant positions. Returns None if
/// there are too few spare ranks.
///
/// A vacant position goes to a rank on the node with its memory. If no such rank is free, it goes to a rank whose failure domain
/// has no other position of its group. Otherwise it goes to any free rank.
pub fn reassign(
    positions: usize,
    candidates: &[RankCandidate],
    found: &[Vec<Found>],
) -> Option<Vec<Option<usize>>> {
    let mut taken: Vec<Option<usize>> =
        candidates.iter().map(|p| p.kept.filter(|&kept| kept < positions)).collect();
    // Rank at each position. No loop below visits all ranks for each position: there may be a million of both.
    let mut holder: Vec<Option<usize>> = vec![None; positions];
    for (rank, position) in taken.iter().enumerate() {
        if let Some(position) = position {
            holder[*position] = Some(rank);
        }
    }
    let mut vacant: Vec<usize> = (0..positions).filter(|&p| holder[p].is_none()).collect();

    // First choice: ranks on the node with the position's memory.
    let best = remembering(positions, candidates.iter().map(|candidate| candidate.node).zip(found));
    let mut on_node = free_by(&taken, |rank| candidates[rank].node);
    vacant.retain(|&position| {
        let rank = best[position].and_then(|node| on_node.get_mut(&node)?.pop());
        if let Some(rank) = rank {
            (taken[rank], holder[position]) = (Some(position), Some(rank));
        }
        rank.is_none()
    });

    // Second choice: ranks whose domain has no other member of the group. Only the first free rank of each domain is considered.
    let group = groups_known(positions, candidates);
    let mut in_domain = free_by(&taken, |rank| candidates[rank].domain.as_str());
    let firsts = in_domain.iter().filter_map(|(domain, ranks)| Some((*ranks.last()?, *domain)));
    let mut firsts: BTreeMap<usize, &str> = firsts.collect();
    vacant.retain(|&position| {
        let others = group[position].iter().filter(|&&other| other != position);
        let ranks = others.filter_map(|&other| holder.get(other).copied().flatten());
        let crowded: BTreeSet<&str> = ranks.map(|rank| candidates[rank].domain.as_str()).collect();
        let found = firsts.iter().find(|(_, domain)| !crowded.contains(*domain));
        let Some((rank, domain)) = found.map(|(rank, domain)| (*rank, *domain)) else {
            return true;
        };
        firsts.remove(&rank);
        let free = in_domain.get_mut(domain).expect("its first one was free");
        free.pop();
        firsts.extend(free.last().map(|next| (*next, domain)));
        (taken[rank], holder[position]) = (Some(position), Some(rank));
        false
    });

    // Last choice: any free rank.
    let free: Vec<usize> = (0..taken.len()).filter(|&rank| taken[rank].is_none()).collect();
    for (&position, &rank) in vacant.iter().zip(&free) {
        taken[rank] = Some(position);
    }
    (vacant.len() <= free.len()).then_some(taken)
}

/// Group of each position, as candidate ranks know it. Empty if no candidate rank knows it.
fn groups_known(positions: usize, candidates: &[RankCandidate]) -> Vec<&[usize]> {
    let mut group: Vec<&[usize]> = vec![&[]; positions];
    for members in candidates.iter().map(|candidate| &candidate.members) {
        for &position in members.iter().filter(|&&position| position < positions) {
            if group[position].is_empty() {
                group[position] = members;
            }
        }
    }
    group
}

/// Lists the ranks without a position, in one list for each value that `what` returns. Each list is in descending order of ranks.
fn free_by<K: Eq + Hash>(
    taken: &[Option<usize>],
    what: impl Fn(usize) -> K,
) -> HashMap<K, Vec<usize>> {
    let mut free: HashMap<K, Vec<usize>> = HashMap::new();
    for rank in (0..taken.len()).rev().filter(|&rank| taken[rank].is_none()) {
        free.entry(what(rank)).or_default().push(rank);
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::header::attempt_number;
    use proptest::prelude::*;
    use rand_xoshiro::Xoshiro256StarStar;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    fn held(position: usize, joined: u64) -> Found {
        let trace = Trace { joined: attempt_number(joined, 0), ..Trace::default() };
        Found { position, run: 1, vacant: false, trace }
    }

    #[test]
    fn a_fast_clock_gives_no_precedence() {
        const HOUR: u128 = 3_600_000_000_000 << 64;
        let (run, left_over) = (10 * HOUR, 13 * HOUR);
        let of = |run, position, joined| Told { run, position, joined, result: None };
        let ours = |position, joined| of(run, position, joined);
        let other = of(left_over, 2, 1);
        let told = [ours(0, 3), ours(1, 3), other, ours(3, 3), other];
        assert_eq!(prevailing(told), Some(run));
        // One position of each run is left. The run with more attempts is in progress.
        assert_eq!(prevailing([ours(0, 2), of(left_over, 1, 1)]), Some(run));
        // Both runs have as many positions and attempts, so the greater id decides.
        assert_eq!(prevailing([ours(0, 1), of(left_over, 1, 1)]), Some(left_over));
        // A position counts once, however many nodes have a copy of it.
        let copies = [other, of(left_over, 2, 2), ours(0, 1), ours(1, 1)];
        assert_eq!(prevailing(copies), Some(run));
        assert_eq!(prevailing([]), None);
    }

    /// A run of six positions had one result. It resumed from storage under a new id, in a test of two positions. The four idle
    /// positions keep the result under the old id. It counts for the run in progress.
    #[test]
    fn results_that_were_handed_on_speak_for_the_later_run() {
        let (run, later) = (10 << 64, 11 << 64);
        let told = |run, position, result| Told { run, position, joined: 0, result };
        let kept =
            (0..6).map(|position| told(if position < 2 { later } else { run }, position, Some(7)));
        let header = |position| Told { joined: 1, ..told(later, position, None) };
        let all: Vec<Told> = kept.chain([header(0), header(1)]).collect();
        assert_eq!(prevailing(all.iter().copied()), Some(later));
        // Old memory that returns at two positions does not outweigh the later run.
        let old = [2, 3].map(|position| Told { joined: 5, ..told(run, position, None) });
        assert_eq!(prevailing(all.iter().copied().chain(old)), Some(later));
        // A different result counts for its own run.
        let others = (2..5).map(|position| told(run, position, Some(8)));
        assert_eq!(prevailing(others.chain([header(0), header(1)])), Some(run));
        // A result at a position with memory of the first run counts for the first run. The later run is on one node only, with
        // its unfinished test.
        let first = |position| Told { joined: 1, ..told(run, position, None) };
        let back = (0..3).flat_map(|position| [first(position), told(run, position, Some(7))]);
        let left = [header(3), told(later, 3, Some(7))];
        assert_eq!(prevailing(back.chain(left)), Some(run));
    }

    fn by_memory(positions: usize, nodes: &[usize], found: &[Vec<Found>]) -> Vec<Option<usize>> {
        assign(positions, nodes.len(), &[Lying { nodes, found }])
    }

    /// Ranks 4 and 5 would be idle if they had no files. In the last case, rank 0 has memory.
    #[test]
    fn files_draw_what_memory_does_not() {
        let nodes = [0, 1, 2, 3, 4, 5];
        let none = vec![vec![]; 6];
        let memory = Lying { nodes: &nodes, found: &none };
        let lying =
            vec![vec![], vec![], vec![], vec![held(1, 2)], vec![held(0, 2)], vec![held(1, 1)]];
        let files = Lying { nodes: &nodes, found: &lying };
        let taken = assign(4, 6, &[memory, files]);
        assert_eq!(taken, [Some(3), None, Some(2), Some(1), Some(0), None]);
        assert_eq!(assign(4, 6, &[files]), taken);
        // Position 1 is assigned to the node with its memory. The file of position 1 moves no other rank.
        let in_memory = vec![vec![held(1, 1)], vec![], vec![], vec![], vec![], vec![]];
        let memory = Lying { nodes: &nodes, found: &in_memory };
        let taken = assign(4, 6, &[memory, files]);
        assert_eq!(taken, [Some(1), None, Some(2), Some(3), Some(0), None]);
    }

    #[test]
    fn without_memory_ranks_take_their_own_numbers() {
        let none = vec![vec![]; 5];
        assert_eq!(
            by_memory(4, &[0, 0, 1, 1, 2], &none),
            [Some(0), Some(1), Some(2), Some(3), None]
        );
    }

    #[test]
    fn memory_draws_its_position_wherever_the_launcher_put_the_node() {
        // The nodes have another order. Node 9 is new and replaces the node of position 1.
        let found = [vec![held(3, 1)], vec![held(0, 1)], vec![], vec![held(2, 1)]];
        assert_eq!(by_memory(4, &[7, 5, 9, 6], &found), [Some(3), Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn of_two_copies_the_later_wins() {
        let found = [vec![held(1, 1)], vec![held(0, 2)], vec![held(1, 2)]];
        assert_eq!(by_memory(2, &[0, 1, 2], &found), [None, Some(0), Some(1)]);
        let other_run = Found { run: 2, ..held(1, 1) };
        let found = [vec![held(1, 9)], vec![other_run]];
        assert_eq!(by_memory(2, &[0, 1], &found), [Some(0), Some(1)]);
    }

    /// Two starts did not notice each other. The clock of the first start's node is ahead.
    #[test]
    fn of_two_copies_of_one_count_that_of_the_start_which_more_know_of_wins() {
        let of = |position, moment| Found {
            trace: Trace { joined: attempt_number(2, moment), ..Trace::default() },
            ..held(position, 0)
        };
        let found = [vec![of(0, 1)], vec![of(1, 9)], vec![of(1, 1)]];
        assert_eq!(by_memory(2, &[0, 1, 2], &found), [Some(0), None, Some(1)]);
        let mut first = of(1, 9);
        first.trace.made = true;
        let found = [vec![of(0, 1)], vec![first], vec![of(1, 1)]];
        assert_eq!(by_memory(2, &[0, 1, 2], &found), [Some(0), Some(1), None]);
        // A checkpoint of all positions outranks any number of starts from scratch on other nodes. This holds also for a position
        // that did not begin a checkpoint.
        let mut main = held(0, 2);
        main.trace.past_the_first = true;
        let found = [vec![held(0, 4)], vec![held(1, 4)], vec![main, held(1, 2)], vec![]];
        assert_eq!(by_memory(3, &[0, 1, 2, 2], &found), [Some(2), None, Some(0), Some(1)]);
    }

    /// A node returns after another node has replaced it. The other node's memory was never rebuilt.
    #[test]
    fn memory_that_was_never_rebuilt_outranks_nothing() {
        let vacant = |joined| Found { vacant: true, ..held(1, joined) };
        for found in [[vec![vacant(3)], vec![held(1, 1)]], [vec![vacant(2)], vec![held(1, 2)]]] {
            assert_eq!(by_memory(2, &[0, 1], &found), [Some(0), Some(1)]);
        }
        let found = [vec![held(1, 1)], vec![vacant(3)], vec![vacant(4)]];
        assert_eq!(by_memory(3, &[0, 1, 2], &found), [Some(1), Some(0), Some(2)]);
        let found = [vec![], vec![vacant(3)], vec![vacant(4)]];
        assert_eq!(by_memory(2, &[0, 1, 2], &found), [Some(0), None, Some(1)]);
        // Memory of an earlier run does not outrank the empty memory, even with contents.
        let found = [vec![held(1, 9)], vec![Found { run: 2, ..vacant(1) }]];
        assert_eq!(by_memory(2, &[0, 1], &found), [Some(0), Some(1)]);
    }

    #[test]
    fn a_node_with_more_memory_than_processes_gives_some_up() {
        let found = [vec![held(0, 1), held(1, 1)], vec![]];
        assert_eq!(by_memory(2, &[0, 1], &found), [Some(0), Some(1)]);
    }

    /// Four nodes with one position each, in groups of two neighbours, and the spare ranks.
    fn candidates_of(spares: &[(usize, &str)]) -> Vec<RankCandidate> {
        let mut candidates: Vec<RankCandidate> = (0..4)
            .map(|p| RankCandidate {
                node: p,
                domain: format!("n{p}"),
                kept: Some(p),
                members: vec![p / 2 * 2, p / 2 * 2 + 1],
            })
            .collect();
        let spare = |(node, domain): &(usize, &str)| RankCandidate {
            node: *node,
            domain: domain.to_string(),
            ..RankCandidate::default()
        };
        candidates.extend(spares.iter().map(spare));
        candidates
    }

    #[test]
    fn a_spare_on_the_node_with_the_memory_takes_the_position() {
        let mut candidates = candidates_of(&[(8, "n8"), (2, "n2")]);
        candidates.remove(2);
        let mut found = vec![Vec::new(); candidates.len()];
        found[4] = vec![held(2, 1)];
        let taken = reassign(4, &candidates, &found).unwrap();
        assert_eq!(taken, [Some(0), Some(1), Some(3), None, Some(2)]);
        // Without that memory, the first spare rank takes the position.
        let taken = reassign(4, &candidates, &vec![Vec::new(); 5]).unwrap();
        assert_eq!(taken, [Some(0), Some(1), Some(3), Some(2), None]);
    }

    #[test]
    fn a_group_is_not_crowded_where_that_can_be_helped() {
        // Position 2 is lost. Position 3 is in its group.
        let mut candidates = candidates_of(&[(3, "n3"), (0, "n0")]);
        candidates.remove(2);
        let none = vec![Vec::new(); 5];
        let taken = reassign(4, &candidates, &none).unwrap();
        assert_eq!(taken, [Some(0), Some(1), Some(3), None, Some(2)]);
        candidates.pop();
        let taken = reassign(4, &candidates, &none[..4]).unwrap();
        assert_eq!(taken[3], Some(2), "rather crowded than not at all");
        candidates.pop();
        assert_eq!(reassign(4, &candidates, &none[..3]), None);
    }

    /// If no rank has a position, the assignment is the same as at a start.
    #[test]
    fn without_any_position_the_last_stand_by() {
        let candidates: Vec<RankCandidate> =
            (0..6).map(|r| RankCandidate { node: r / 2, ..RankCandidate::default() }).collect();
        let taken = reassign(4, &candidates, &vec![Vec::new(); 6]).unwrap();
        assert_eq!(taken, by_memory(4, &[0, 0, 1, 1, 2, 2], &vec![Vec::new(); 6]));
    }

    /// Returns a function that returns a random number below its argument.
    fn dice(seed: u64) -> impl FnMut(usize) -> usize {
        let mut state = Xoshiro256StarStar::seed_from_u64(seed);
        move |n| (state.next_u64() % n as u64) as usize
    }

    proptest! {
        #[test]
        fn after_a_loss_survivors_stay_and_every_position_is_taken_once(
            positions in 1usize..10, spares in 0usize..4, lost in 0usize..4, seed: u64,
        ) {
            let mut random = dice(seed);
            let mut candidates: Vec<RankCandidate> = (0..positions + spares).map(|r| RankCandidate {
                node: r / 2,
                domain: format!("n{}", r / 2),
                kept: (r < positions).then_some(r),
                members: if r < positions { (0..positions).filter(|p| p % 2 == r % 2).collect() } else { vec![] },
            }).collect();
            for _ in 0..lost.min(candidates.len() - 1) {
                candidates.remove(random(candidates.len()));
            }
            let found: Vec<Vec<Found>> = candidates.iter().map(|_| match random(3) {
                0 => vec![held(random(positions), 1)],
                _ => vec![],
            }).collect();
            match reassign(positions, &candidates, &found) {
                None => prop_assert!(candidates.len() < positions),
                Some(taken) => {
                    let mut all: Vec<usize> = taken.iter().flatten().copied().collect();
                    all.sort_unstable();
                    prop_assert!(all.iter().copied().eq(0..positions));
                    for (candidate, taken) in candidates.iter().zip(taken) {
                        prop_assert!(candidate.kept.is_none() || candidate.kept == taken);
                    }
                }
            }
        }

        /// For any distribution of data, a node that alone has data of a position is not idle.
        #[test]
        fn no_node_with_a_file_that_is_needed_stands_idle(
            positions in 1usize..8, idle in 0usize..6, per_node in 1usize..4, seed: u64,
        ) {
            let ranks = positions + idle;
            let mut random = dice(seed);
            let nodes: Vec<usize> = (0..ranks).map(|r| r / per_node).collect();
            let mut found = vec![Vec::new(); ranks];
            let mut holders = Vec::new();
            for position in (0..positions).filter(|_| random(3) > 0).collect::<Vec<_>>() {
                let rank = random(ranks);
                found[rank].push(held(position, 1));
                holders.push(nodes[rank]);
            }
            let taken = assign(positions, ranks, &[Lying { nodes: &nodes, found: &found }]);
            for node in holders {
                prop_assert!((0..ranks).any(|rank| nodes[rank] == node && taken[rank].is_some()));
            }
        }

        #[test]
        fn every_position_is_taken_once_and_memory_is_followed(
            positions in 1usize..12, spare in 0usize..4, per_node in 1usize..4, seed: u64,
        ) {
            let ranks = positions + spare;
            let mut random = dice(seed);
            let nodes: Vec<usize> = (0..ranks).map(|r| r / per_node).collect();
            let mut found = vec![Vec::new(); ranks];
            let mut on_node = std::collections::HashMap::new();
            for position in 0..positions {
                if random(4) > 0 {
                    let rank = random(ranks);
                    found[rank].push(held(position, 1));
                    on_node.entry(nodes[rank]).or_insert_with(Vec::new).push(position);
                }
            }
            let taken = by_memory(positions, &nodes, &found);
            let mut all: Vec<usize> = taken.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert!(all.iter().copied().eq(0..positions));
            for (node, held) in on_node {
                let processes = nodes.iter().filter(|&&n| n == node).count();
                let kept = (0..ranks)
                    .filter(|&r| nodes[r] == node && taken[r].is_some_and(|p| held.contains(&p)))
                    .count();
                prop_assert_eq!(kept, held.len().min(processes));
            }
        }
    }
}
