//! Generators of groups, and of sets of lost members.

use crate::parity::stripes::{Spread, Stripes};

/// Returns groups of 2 to `most` members, in every layout, and with every number of losses from 1 to 4 that they can survive.
pub fn all(most: usize) -> impl Iterator<Item = Stripes> {
    [Spread::Rotated, Spread::Copied, Spread::Apart].into_iter().flat_map(move |spread| {
        (2..=most).flat_map(move |size| {
            let fit = (1..size.min(5)).filter(move |&m| spread.members_least(m) <= size);
            fit.map(move |losses| Stripes::new(spread, size, losses))
        })
    })
}

/// Returns all sets of at most `most` numbers below `size`.
pub fn subsets(size: usize, most: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for x in 0..size {
        let with: Vec<Vec<usize>> = all
            .iter()
            .filter(|s| s.len() < most)
            .map(|s| s.iter().copied().chain([x]).collect())
            .collect();
        all.extend(with);
    }
    all
}
