//! Order of the measurements: tournament rounds. Each node has one partner in a round. Over all rounds every node is paired once
//! with every other node. The module is pure.
//!
//! All ranks compute the same rounds, so the order need not be sent.

use std::collections::BTreeSet;

/// Returns the number of rounds in which each of `players` nodes is paired once with every other node.
pub fn rounds(players: usize) -> usize {
    (players + players % 2).saturating_sub(1)
}

/// Returns the pairs of a round, each with the lower number first. Pairs of a round are disjoint, and each pair occurs in exactly
/// one round. In the circle method one node stays, and the other nodes move by one place in each round.
pub fn pairs(players: usize, round: usize) -> Vec<(usize, usize)> {
    // With an odd number of nodes, the node opposite the empty place rests in each round.
    let places = players + players % 2;
    let placed = |place: usize| match place {
        0 => 0,
        _ => (place - 1 + round) % (places - 1) + 1,
    };
    (0..places / 2)
        .map(|place| (placed(place), placed(places - 1 - place)))
        .map(|(one, other)| (one.min(other), one.max(other)))
        .filter(|&(_, other)| other < players)
        .collect()
}

/// Divides `jobs` into turns in which each machine has at most one job. Jobs of virtual nodes that share a machine would disturb
/// each other's measurement. The order is kept. If no two jobs share a machine, there is a single turn.
pub fn turns<T: Copy>(
    jobs: &[T],
    nodes: impl Fn(T) -> Vec<usize>,
    machine: &[usize],
) -> Vec<Vec<T>> {
    let mut turns: Vec<(BTreeSet<usize>, Vec<T>)> = Vec::new();
    for &job in jobs {
        let machines: BTreeSet<usize> = nodes(job).into_iter().map(|n| machine[n]).collect();
        match turns.iter_mut().find(|(taken, _)| taken.is_disjoint(&machines)) {
            Some((taken, turn)) => {
                taken.extend(machines);
                turn.push(job);
            }
            None => turns.push((machines, vec![job])),
        }
    }
    turns.into_iter().map(|(_, turn)| turn).collect()
}

/// Returns the number of the machine of each node. `marks` has the boot identity of each node's kernel, which is equal for nodes
/// of one machine.
pub fn machines(marks: &[String]) -> Vec<usize> {
    let first = |mark: &String| marks.iter().position(|other| other == mark).unwrap_or(0);
    marks.iter().map(first).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_pair_meets_once_and_nobody_twice_in_a_round(players in 0usize..70) {
            let mut met = BTreeSet::new();
            for round in (0..rounds(players)).map(|round| pairs(players, round)) {
                let mut busy = BTreeSet::new();
                for &(one, other) in &round {
                    prop_assert!(one < other && other < players);
                    prop_assert!(busy.insert(one) && busy.insert(other), "{round:?}");
                    prop_assert!(met.insert((one, other)), "{one} and {other} meet again");
                }
                // At most one node rests.
                prop_assert_eq!(round.len(), players / 2);
            }
            prop_assert_eq!(met.len(), players * players.saturating_sub(1) / 2);
        }

        #[test]
        fn no_machine_does_two_things_in_a_turn(marks in proptest::collection::vec(0usize..5, 2..24)) {
            let machine = machines(&marks.iter().map(ToString::to_string).collect::<Vec<_>>());
            for round in (0..rounds(machine.len())).map(|round| pairs(machine.len(), round)) {
                let turns = turns(&round, |(one, other)| vec![one, other], &machine);
                let mut done = Vec::new();
                for turn in turns {
                    let mut taken = BTreeSet::new();
                    for (one, other) in turn {
                        let here = BTreeSet::from([machine[one], machine[other]]);
                        prop_assert!(taken.is_disjoint(&here));
                        taken.extend(here);
                        done.push((one, other));
                    }
                }
                done.sort_unstable();
                let mut all = round.clone();
                all.sort_unstable();
                prop_assert_eq!(done, all);
            }
        }
    }

    #[test]
    fn machines_of_their_own_take_one_turn() {
        let nodes: Vec<usize> = (0..6).collect();
        assert_eq!(turns(&nodes, |n| vec![n], &nodes), std::slice::from_ref(&nodes));
        assert_eq!(turns(&nodes, |n| vec![n], &[0; 6]).len(), 6);
        assert_eq!(machines(&["a", "b", "a"].map(String::from)), [0, 1, 0]);
    }
}
