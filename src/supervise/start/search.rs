//! Search for the nodes that make a trial of MPI fail, with few further trials. It is needed if the error names no node. Pure.
//!
//! A set of nodes that fails is halved. To find one culprit among ten thousand nodes takes up to 29 trials, and each trial that
//! fails may take minutes. Every set runs together with a node that is known to be well, if there is one. So a node that can
//! start MPI alone, but cannot be reached by others, is found as well.

/// Number of culprits found without a successful trial at which the search stops. The cause is then not in the nodes.
const HOPELESS: usize = 3;

/// A search. `trial` tries a set of nodes and returns whether it succeeded; an error ends the search.
pub struct Search<F> {
    trial: F,
    /// A node that has taken part in a successful trial.
    good: Option<usize>,
    culprits: Vec<usize>,
}

impl<E, F: FnMut(&[usize]) -> Result<bool, E>> Search<F> {
    /// Returns the culprits among `suspects`, which failed together. A culprit fails alone, or together with a node that is well.
    /// `good` is a node that is well, if one is known. The result is empty if no trial succeeds, or if only several nodes
    /// together fail.
    pub fn culprits(suspects: &[usize], good: Option<usize>, trial: F) -> Result<Vec<usize>, E> {
        let mut search = Self { trial, good, culprits: Vec::new() };
        search.halve(suspects, true)?;
        if search.good.is_none() && search.culprits.len() != 1 {
            return Ok(Vec::new());
        }
        search.culprits.sort_unstable();
        Ok(search.culprits)
    }

    fn works(&mut self, nodes: &[usize]) -> Result<bool, E> {
        let known = self.good.filter(|good| !nodes.contains(good));
        let set: Vec<usize> = known.into_iter().chain(nodes.iter().copied()).collect();
        let works = (self.trial)(&set)?;
        if works {
            self.good = self.good.or(nodes.first().copied());
        }
        Ok(works)
    }

    /// Searches a set of nodes for culprits. A set that was `tried` has failed. Any other set is half of a set that failed, whose
    /// other half succeeded.
    fn halve(&mut self, nodes: &[usize], tried: bool) -> Result<(), E> {
        if nodes.len() <= 1 {
            if tried || !self.works(nodes)? {
                self.culprits.extend(nodes);
            }
            return Ok(());
        }
        let (left, right) = nodes.split_at(nodes.len() / 2);
        if self.works(left)? {
            return self.halve(right, false);
        }
        self.halve(left, true)?;
        let hopeless = self.good.is_none() && self.culprits.len() >= HOPELESS;
        if !hopeless && !self.works(right)? {
            self.halve(right, true)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::convert::Infallible;

    /// Searches `count` nodes, where a trial of a set fails if `fails`. Returns the culprits and the number of trials.
    fn search(count: usize, fails: impl Fn(&[usize]) -> bool) -> (Vec<usize>, usize) {
        let mut trials = 0;
        let suspects: Vec<usize> = (0..count).collect();
        let Ok::<_, Infallible>(found) = Search::culprits(&suspects, None, |set| {
            trials += 1;
            assert!(trials < 10_000, "it does not end");
            Ok(!fails(set))
        });
        (found, trials)
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
        // Each of the two nodes works with other nodes, but they fail together.
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
