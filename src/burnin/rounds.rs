//! Who measures when: tournament rounds, in which every node meets every other once, and nobody two at a time. Pure.
//!
//! The ranks all work out the same rounds by themselves; so no order of who does what next travels.

use std::collections::BTreeSet;

/// How many rounds it takes until everybody has met everybody.
pub fn rounds(players: usize) -> usize {
    (players + players % 2).saturating_sub(1)
}

/// One of these rounds: disjoint pairs, lower number first; over all rounds each pair is met exactly once. By the circle method:
/// one stays, the others move on by a place from round to round.
pub fn pairs(players: usize, round: usize) -> Vec<(usize, usize)> {
    // With an odd number somebody rests in each round: whoever meets the one that is not there.
    let seats = players + players % 2;
    let seated = |seat: usize| match seat {
        0 => 0,
        _ => (seat - 1 + round) % (seats - 1) + 1,
    };
    (0..seats / 2)
        .map(|seat| (seated(seat), seated(seats - 1 - seat)))
        .map(|(one, other)| (one.min(other), one.max(other)))
        .filter(|&(_, other)| other < players)
        .collect()
}

/// Cuts what is to be done into turns, in which no machine does two things: nodes that are virtual share one, and would
/// measure each other. In the order given; where no machine is shared, it is one turn.
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

/// The same number for nodes of the same machine, by what tells machines apart (the boot's identity).
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
                // Nobody rests who need not.
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
