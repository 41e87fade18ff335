//! Converts the pivots of a panel to row moves: pure functions.
//!
//! The factorisation of a panel chooses, for each column i of the panel, a row to exchange with row i of the diagonal block. One
//! after the other, these exchanges could move a row many times. This file composes the exchanges, so that each row moves once.
//! Two kinds of moves remain. A *source* row becomes a row of U. A row of the block that does not stay in the block is
//! *displaced*: it moves to the former place of a source.

use std::collections::HashMap;

/// Row moves of one panel, in global row numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowMoves {
    /// Row i of U is the former row `sources[i]` of the matrix.
    pub sources: Vec<usize>,
    /// Pairs `(from, to)`: row `to`, outside the block, becomes the former row `from`, inside the block.
    pub displaced: Vec<(usize, usize)>,
}

impl RowMoves {
    /// Returns the row moves that have the same effect as all exchanges of rows `first + i` and `pivots[i]`, done in the order of
    /// i.
    pub fn compose(first: usize, pivots: &[usize]) -> Self {
        let width = pivots.len();
        // For each row of the block (`inside`) and each exchanged row below the block (`outside`): the former number of its
        // current content.
        let mut inside: Vec<usize> = (first..first + width).collect();
        let mut outside: HashMap<usize, usize> = HashMap::new();
        let mut order = Vec::new();
        for (i, &pivot) in pivots.iter().enumerate() {
            debug_assert!(
                pivot >= first + i,
                "the pivot row of a column is at or below the diagonal"
            );
            if pivot < first + width {
                inside.swap(i, pivot - first);
            } else {
                let held = outside.entry(pivot).or_insert_with(|| {
                    order.push(pivot);
                    pivot
                });
                std::mem::swap(&mut inside[i], held);
            }
        }
        let displaced: Vec<(usize, usize)> =
            order.into_iter().map(|to| (outside[&to], to)).collect();
        debug_assert!(displaced.iter().all(|&(from, _)| (first..first + width).contains(&from)));
        Self { sources: inside, displaced }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Tests that the composed moves have the same effect as the single exchanges.
        #[test]
        fn agree_with_exchanging_one_by_one(
            first in 0usize..5,
            rows in 1usize..14,
            picks in prop::collection::vec(0usize..1000, 1..9),
        ) {
            let width = picks.len().min(rows);
            let pivots: Vec<usize> =
                (0..width).map(|i| first + i + picks[i] % (rows - i)).collect();
            let mut held: Vec<usize> = (0..first + rows).collect();
            for (i, &pivot) in pivots.iter().enumerate() {
                held.swap(first + i, pivot);
            }
            let moves = RowMoves::compose(first, &pivots);
            let mut got: Vec<usize> = (0..first + rows).collect();
            for (i, &source) in moves.sources.iter().enumerate() {
                got[first + i] = source;
            }
            for &(from, to) in &moves.displaced {
                prop_assert!((first..first + width).contains(&from));
                prop_assert!(to >= first + width);
                got[to] = from;
            }
            prop_assert_eq!(got, held);
        }
    }
}
