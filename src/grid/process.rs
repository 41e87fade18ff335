//! P x Q grid of processes.

use crate::base::params::{Mapping, TestParams};

/// P x Q grid, and the order in which ranks are assigned to its positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessGrid {
    pub p: usize,
    pub q: usize,
    pub mapping: Mapping,
}

impl ProcessGrid {
    /// Returns the grid of the test, with its mapping of ranks to positions.
    pub fn of(test: &TestParams) -> Self {
        Self { p: test.p, q: test.q, mapping: test.mapping }
    }

    pub fn size(&self) -> usize {
        self.p * self.q
    }

    /// Returns row and column of `rank` in the grid, or `None` if the rank is outside of the grid.
    pub fn coordinates(&self, rank: usize) -> Option<(usize, usize)> {
        (rank < self.size()).then(|| match self.mapping {
            Mapping::Row => (rank / self.q, rank % self.q),
            Mapping::Column => (rank % self.p, rank / self.p),
        })
    }

    /// Returns the rank at (`row`, `col`).
    pub fn rank(&self, row: usize, col: usize) -> usize {
        debug_assert!(row < self.p && col < self.q);
        match self.mapping {
            Mapping::Row => row * self.q + col,
            Mapping::Column => col * self.p + row,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_one_place_and_back() {
        for mapping in [Mapping::Row, Mapping::Column] {
            for p in 1..6 {
                for q in 1..6 {
                    let grid = ProcessGrid { p, q, mapping };
                    for rank in 0..p * q {
                        let (row, col) = grid.coordinates(rank).unwrap();
                        assert!(row < p && col < q);
                        assert_eq!(grid.rank(row, col), rank);
                    }
                    assert_eq!(grid.coordinates(p * q), None);
                }
            }
        }
        let row = ProcessGrid { p: 2, q: 3, mapping: Mapping::Row };
        assert_eq!(row.coordinates(1), Some((0, 1)));
        let col = ProcessGrid { p: 2, q: 3, mapping: Mapping::Column };
        assert_eq!(col.coordinates(1), Some((1, 0)));
    }
}
