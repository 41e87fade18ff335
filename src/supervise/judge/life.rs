//! Proof of life: conclusions from the ranks' own iterations about an unresponsive node. Pure.
//!
//! In HPL every rank needs the work of all others. Ranks of one process column exchange rows in every iteration. So none of them
//! gets further ahead of another than the look-ahead and the panel in progress. From other columns a rank needs a panel, each
//! when that column's turn comes. So it may get ahead by as many more iterations as there are columns. If any rank is further
//! than that beyond the last known iteration of an unresponsive node, the node's ranks have worked meanwhile. The time without a
//! heartbeat then counts from that moment: the supervisor's way to the node has failed, not the node.

use std::collections::BTreeSet;

use super::ranks::Ranks;
use crate::base::params::TestParams;
use crate::grid::ProcessGrid;

/// Iterations that ranks of a column may be ahead of each other, in addition to the look-ahead: the iteration in progress, the
/// panel that is being passed on, and one more since not all are seen at the same moment.
const STEPS: u64 = 3;

/// A test and an iteration of it.
type Front = (u32, u64);

/// Largest lead that the tests of a run allow between ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bonds {
    depth: u64,
    columns: u64,
    /// Grid of the positions, if it is the same in all tests.
    grid: Option<ProcessGrid>,
}

impl Bonds {
    /// Bonds of these tests; None without a test.
    pub fn of(tests: impl Iterator<Item = TestParams>) -> Option<Self> {
        let bonds = |test: TestParams| Self {
            depth: test.depth as u64,
            columns: test.q as u64,
            grid: Some(ProcessGrid::of(&test)),
        };
        tests.map(bonds).reduce(|one, other| Self {
            depth: one.depth.max(other.depth),
            columns: one.columns.max(other.columns),
            grid: one.grid.filter(|_| one.grid == other.grid),
        })
    }

    /// The bonds if positions are not the grid's.
    pub fn without_grid(self) -> Self {
        Self { grid: None, ..self }
    }

    /// Whether the progress of other ranks proves that the ranks of this node have advanced since they were last seen.
    pub fn prove(&self, ranks: &Ranks, node: usize) -> bool {
        let Some(seen) = ranks.front_of(node) else { return false };
        let lead = self.depth.saturating_add(STEPS);
        // This check runs for every unresponsive node again and again, and mostly ends here.
        is_beyond(ranks.front(), seen, lead)
            && (is_beyond(ranks.front(), seen, lead.saturating_add(self.columns))
                || self.beside(ranks, node).any(|front| is_beyond(front, seen, lead)))
    }

    /// Last iterations of ranks on other nodes that share a process column with a rank of this node.
    fn beside(&self, ranks: &Ranks, node: usize) -> impl Iterator<Item = Front> {
        let column = |position: u32| Some(self.grid?.coordinates(position as usize)?.1);
        let columns: BTreeSet<usize> = ranks.at(node).filter_map(column).collect();
        let places = columns.into_iter().flat_map(move |column| {
            let grid = self.grid.into_iter();
            grid.flat_map(move |grid| (0..grid.p).map(move |row| grid.rank(row, column)))
        });
        let seen = places.filter_map(|position| ranks.seen_at(position as u32));
        seen.filter(move |(at, _)| *at != node).map(|(_, front)| front)
    }
}

/// Whether a test and iteration are further than `lead` iterations beyond another.
fn is_beyond(front: Front, (test, iteration): Front, lead: u64) -> bool {
    // Iterations count from zero again in another test, which begins when all are through with the last.
    match front.0.checked_sub(test) {
        Some(0) => front.1 > iteration.saturating_add(lead),
        Some(_) => front.1 > lead,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::ranks::RankSeen;
    use super::*;
    use crate::base::params::Mapping;
    use crate::supervise::talk::progress::{Doing, Progress};

    #[test]
    fn only_what_cannot_be_done_alone_is_a_proof() {
        let lead = 4;
        assert!(!is_beyond((0, 10), (0, 10), lead));
        assert!(!is_beyond((0, 14), (0, 10), lead));
        assert!(is_beyond((0, 15), (0, 10), lead));
        // All ranks begin the next test together.
        assert!(!is_beyond((1, 3), (0, 10), lead));
        assert!(is_beyond((1, 5), (0, 10), lead));
        assert!(!is_beyond((0, 99), (1, 10), lead));
        assert!(!is_beyond((0, 99), (0, 10), u64::MAX));
    }

    fn test(p: usize, q: usize, depth: usize, mapping: Mapping) -> TestParams {
        TestParams { p, q, depth, mapping, ..crate::report::test_values::params() }
    }

    /// A rank on each node; node 0 was last seen at iteration 10, and the others are `ahead` of it.
    fn proven(bonds: &Bonds, ahead: &[u64]) -> bool {
        let mut ranks = Ranks::default();
        for (node, ahead) in std::iter::once(&0).chain(ahead).enumerate() {
            let progress = Progress {
                position: node as u32,
                pid: 5,
                iteration: 10 + ahead,
                doing: Doing::Computing,
                ..Progress::default()
            };
            ranks.beat(0, node, &[RankSeen { progress, state: 'S' }]);
        }
        bonds.prove(&ranks, 0)
    }

    #[test]
    fn who_is_in_another_column_gets_ahead_until_that_columns_turn_comes() {
        // Position 4 is below position 0, and the others are in other columns.
        let rows = Bonds::of([test(2, 4, 1, Mapping::Row)].into_iter()).unwrap();
        let all_but = |position: usize, most: u64, beside: u64| {
            let mut ahead = [most; 7];
            ahead[position - 1] = beside;
            ahead
        };
        assert!(!proven(&rows, &all_but(4, 8, 4)));
        assert!(proven(&rows, &all_but(4, 8, 5)), "its column exchanges rows with it");
        assert!(proven(&rows, &all_but(4, 9, 4)), "its column has had its turn");
        // The same check by columns: position 1 is below position 0.
        let columns = Bonds::of([test(2, 4, 1, Mapping::Column)].into_iter()).unwrap();
        assert!(!proven(&columns, &all_but(1, 8, 4)));
        assert!(proven(&columns, &all_but(1, 8, 5)));
        // If a position has different places in several tests, or is none of the grid's, only the turn counts.
        let both =
            Bonds::of([(2, 4), (4, 2)].map(|(p, q)| test(p, q, 1, Mapping::Row)).into_iter());
        for bonds in [both.unwrap(), rows.without_grid()] {
            assert!(!proven(&bonds, &[8; 7]));
            assert!(proven(&bonds, &[9; 7]));
        }
    }

    #[test]
    fn a_node_without_a_rank_is_not_proven_alive() {
        let bonds = Bonds::of([test(1, 2, 0, Mapping::Row)].into_iter()).unwrap();
        assert!(!bonds.prove(&Ranks::default(), 0));
        assert_eq!(Bonds::of(std::iter::empty()), None);
    }
}
