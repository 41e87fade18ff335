//! Position follows memory: which process takes which grid position.
//!
//! At a restart the launcher may have ordered nodes in any way. Each node lists the positions
//! whose memory it holds; here, purely and the same on every rank, each held position goes to a
//! process on the node that holds it, and what is left over goes to what is left over.

use serde::{Deserialize, Serialize};

/// One position's memory on the node of some rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub position: usize,
    /// Later runs compare greater; memory of an earlier run is never preferred.
    pub run: u128,
    /// The last incarnation that memory took part in: of two copies the later one is taken.
    pub joined: u32,
}

/// The position of each rank, None for ranks that are left over.
///
/// `nodes[r]` is the node of rank r, `found[r]` what rank r saw on its node (ranks of one node may
/// all report the same, or one may report for all). Without memory rank r gets position r.
pub fn assign(positions: usize, nodes: &[usize], found: &[Vec<Found>]) -> Vec<Option<usize>> {
    assert_eq!(nodes.len(), found.len());
    // The best copy of each position and the node it is on.
    let mut best: Vec<Option<(u128, u32, usize)>> = vec![None; positions];
    for (rank, list) in found.iter().enumerate() {
        for f in list.iter().filter(|f| f.position < positions) {
            let entry = &mut best[f.position];
            let better = entry.is_none_or(|(run, joined, _)| (f.run, f.joined) > (run, joined));
            if better {
                *entry = Some((f.run, f.joined, nodes[rank]));
            }
        }
    }
    let mut taken: Vec<Option<usize>> = vec![None; nodes.len()];
    let mut placed = vec![false; positions];
    let mut put = |rank: usize, position: usize, taken: &mut Vec<Option<usize>>| {
        taken[rank] = Some(position);
        placed[position] = true;
    };
    // First those whose default process is on the right node, then any process there.
    for (position, copy) in best.iter().enumerate() {
        if let Some((_, _, node)) = copy
            && nodes.get(position) == Some(node)
        {
            put(position, position, &mut taken);
        }
    }
    for (position, copy) in best.iter().enumerate() {
        let Some((_, _, node)) = copy else { continue };
        if taken.contains(&Some(position)) {
            continue;
        }
        if let Some(rank) = (0..nodes.len()).find(|&r| nodes[r] == *node && taken[r].is_none()) {
            put(rank, position, &mut taken);
        }
    }
    // The rest: the default where it is free, then in order.
    for position in 0..positions.min(nodes.len()) {
        if !placed[position] && taken[position].is_none() {
            taken[position] = Some(position);
            placed[position] = true;
        }
    }
    let mut free = (0..nodes.len()).filter(|&r| taken[r].is_none()).collect::<Vec<_>>().into_iter();
    for position in (0..positions).filter(|&p| !placed[p]) {
        if let Some(rank) = free.next() {
            taken[rank] = Some(position);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn held(position: usize, joined: u32) -> Found {
        Found { position, run: 1, joined }
    }

    #[test]
    fn without_memory_ranks_take_their_own_numbers() {
        let none = vec![vec![]; 5];
        assert_eq!(assign(4, &[0, 0, 1, 1, 2], &none), [Some(0), Some(1), Some(2), Some(3), None]);
    }

    #[test]
    fn memory_draws_its_position_wherever_the_launcher_put_the_node() {
        // Nodes come in another order, and node 9 is fresh in place of the one with position 1.
        let found = [vec![held(3, 1)], vec![held(0, 1)], vec![], vec![held(2, 1)]];
        assert_eq!(assign(4, &[7, 5, 9, 6], &found), [Some(3), Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn of_two_copies_the_later_wins() {
        let found = [vec![held(1, 1)], vec![held(0, 2)], vec![held(1, 2)]];
        assert_eq!(assign(2, &[0, 1, 2], &found), [None, Some(0), Some(1)]);
        let other_run = Found { position: 1, run: 2, joined: 1 };
        let found = [vec![held(1, 9)], vec![other_run]];
        assert_eq!(assign(2, &[0, 1], &found), [Some(0), Some(1)]);
    }

    #[test]
    fn a_node_with_more_memory_than_processes_gives_some_up() {
        let found = [vec![held(0, 1), held(1, 1)], vec![]];
        assert_eq!(assign(2, &[0, 1], &found), [Some(0), Some(1)]);
    }

    proptest! {
        #[test]
        fn every_position_is_taken_once_and_memory_is_followed(
            positions in 1usize..12, spare in 0usize..4, per_node in 1usize..4, seed: u64,
        ) {
            let ranks = positions + spare;
            let mut state = seed | 1;
            let mut random = |n: usize| {
                state ^= state << 13; state ^= state >> 7; state ^= state << 17;
                (state % n as u64) as usize
            };
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
            let taken = assign(positions, &nodes, &found);
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
