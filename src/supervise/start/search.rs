//! Search for the nodes that spoil a trial without naming any, with the fewest further trials. Pure.
//!
//! The restart loop asks [`Search::next_set`] for the nodes to try together and reports the result. A set that fails is halved. A
//! culprit among ten thousand takes some fourteen trials, each further one as many again at most, and each trial that fails may
//! take minutes. Every set runs together with a node that is known to be well, if there is one. So a node which starts MPI by
//! itself and cannot be reached by others is found as well.

/// Nodes by number.
type Set = Vec<usize>;

#[derive(Clone, Debug)]
enum Group {
    /// Untried nodes.
    Unknown(Set),
    /// Nodes that failed together; if not `tried` themselves, they must have made a larger set fail.
    Bad { nodes: Set, tried: bool },
}

#[derive(Clone, Debug)]
enum Trying {
    Whole(Set),
    Half { left: Set, right: Set },
}

/// Number of culprits, while nothing has worked at all, from which the cause is not the nodes.
const HOPELESS: usize = 3;

#[derive(Clone, Debug)]
pub struct Search {
    groups: Vec<Group>,
    /// A node that has taken part in a successful trial.
    good: Option<usize>,
    trying: Option<Trying>,
    culprits: Set,
}

impl Search {
    /// Search among `suspects`, which failed together; `good` is a node that is well, if one is known.
    pub fn among(suspects: Set, good: Option<usize>) -> Self {
        let groups = vec![Group::Bad { nodes: suspects, tried: true }];
        Self { groups, good, trying: None, culprits: Vec::new() }
    }

    /// Returns the nodes to try next; None at the end.
    pub fn next_set(&mut self) -> Option<Set> {
        if self.good.is_none() && self.culprits.len() >= HOPELESS {
            return None;
        }
        while let Some(group) = self.groups.pop() {
            let (set, trying) = match group {
                Group::Bad { nodes, tried: true } if nodes.len() <= 1 => {
                    self.culprits.extend(nodes);
                    continue;
                }
                Group::Bad { nodes, .. } if nodes.len() > 1 => {
                    let (left, right) = nodes.split_at(nodes.len() / 2);
                    let (left, right) = (left.to_vec(), right.to_vec());
                    (left.clone(), Trying::Half { left, right })
                }
                Group::Bad { nodes, .. } | Group::Unknown(nodes) => {
                    (nodes.clone(), Trying::Whole(nodes))
                }
            };
            self.trying = Some(trying);
            let beside = self.good.filter(|good| !set.contains(good));
            return Some(beside.into_iter().chain(set).collect());
        }
        None
    }

    /// Takes in the result of the set that `next_set` named.
    pub fn went(&mut self, well: bool) {
        let Some(trying) = self.trying.take() else { return };
        let tried = match (trying, well) {
            (Trying::Whole(nodes), false) => Group::Bad { nodes, tried: true },
            (Trying::Whole(nodes), true) => {
                self.good = self.good.or(nodes.first().copied());
                return;
            }
            (Trying::Half { left, right }, true) => {
                self.good = self.good.or(left.first().copied());
                Group::Bad { nodes: right, tried: false }
            }
            (Trying::Half { left, right }, false) => {
                self.groups.push(Group::Unknown(right));
                Group::Bad { nodes: left, tried: true }
            }
        };
        self.groups.push(tried);
    }

    /// Nodes that failed by themselves, or together with a node that is well. None if nothing has worked at all, or if it takes
    /// more than one node to fail.
    pub fn culprits(mut self) -> Set {
        if self.good.is_none() && self.culprits.len() != 1 {
            return Vec::new();
        }
        self.culprits.sort_unstable();
        self.culprits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Searches `count` nodes with a trial that `fails`; returns the culprits and the number of trials.
    fn search(count: usize, fails: impl Fn(&[usize]) -> bool) -> (Set, usize) {
        let mut search = Search::among((0..count).collect(), None);
        let mut trials = 0;
        while let Some(set) = search.next_set() {
            trials += 1;
            assert!(trials < 10_000, "it does not end");
            let well = !fails(&set);
            search.went(well);
        }
        (search.culprits(), trials)
    }

    #[test]
    fn one_of_ten_thousand_takes_a_logarithm() {
        for culprit in [0, 1, 4999, 5000, 9999] {
            let (found, trials) = search(10_000, |set| set.contains(&culprit));
            assert_eq!(found, [culprit]);
            assert!(trials <= 29, "{trials} trials for {culprit}");
        }
    }

    #[test]
    fn a_launcher_that_never_works_blames_no_node() {
        for count in [2, 3, 10, 10_000] {
            let (found, trials) = search(count, |_| true);
            assert_eq!(found, [0usize; 0]);
            assert!(trials <= 20, "{trials} trials of {count}");
        }
    }

    #[test]
    fn two_nodes_that_cannot_meet_are_not_both_to_blame() {
        // Each is well with others; together they fail.
        let (found, _) = search(16, |set| set.contains(&2) && set.contains(&13));
        assert!(found.len() <= 1, "{found:?}");
    }

    #[test]
    fn a_node_that_is_well_only_alone_is_found() {
        let (found, _) = search(16, |set| set.contains(&11) && set.len() > 1);
        assert_eq!(found, [11]);
    }

    proptest! {
        #[test]
        fn all_culprits_are_found_and_nobody_else(
            count in 2usize..400,
            culprits in proptest::collection::btree_set(0usize..400, 1..6),
        ) {
            let culprits: BTreeSet<usize> = culprits.into_iter().filter(|c| *c < count).collect();
            prop_assume!(!culprits.is_empty() && culprits.len() < count);
            // The first three could not be distinguished from a launcher that never works.
            let (found, trials) = search(count, |set| set.iter().any(|n| culprits.contains(n)));
            let levels = count.next_power_of_two().ilog2() as usize;
            prop_assert!(trials <= culprits.len() * (2 * levels + 2) + 1, "{} trials", trials);
            let hopeless = (0..HOPELESS).all(|n| culprits.contains(&n));
            if !hopeless {
                prop_assert_eq!(found, culprits.into_iter().collect::<Vec<_>>());
            }
        }
    }
}
