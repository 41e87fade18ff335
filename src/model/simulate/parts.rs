//! Process column of each rank in a run with checksums. Each node has one rank, so the number of the node identifies the rank.
//!
//! The first P x (Q+R) ranks are assigned to the columns in turn, and the other ranks wait. Waiting ranks, and the ranks left of
//! a lost column, are free. If the run makes new checksums, each P free ranks make a new column, which counts like the others
//! when it is finished.

use std::collections::{HashMap, HashSet, VecDeque};

use super::GoingOn;
use crate::lu::SUMS_EVER;
use crate::model::nonstop::Columns;

pub struct Parts {
    columns: Columns,
    /// Number of ranks that have a column at the start.
    working: u64,
    /// Number of ranks of a process column; 0 if no new columns are made.
    rows: u64,
    /// Numbers of lost columns. New columns have numbers after those of the first columns.
    lost: HashSet<u64>,
    /// Number of finished columns, lost ones included.
    finished: u64,
    /// Number of columns that were begun, including those that were never finished.
    given: u64,
    dead: HashSet<u64>,
    /// Ranks in new columns, with the column of each.
    new_columns: HashMap<u64, u64>,
    /// Free ranks, in the order in which they became free. The list may contain dead ranks.
    free: VecDeque<u64>,
}

impl Parts {
    /// Returns the columns at the start of a run; None for a run without checksums.
    pub fn new(nodes: u64, going_on: &GoingOn) -> Option<Self> {
        let columns = going_on.columns?;
        let working = nodes - going_on.spare_ranks.unwrap_or(0).min(nodes);
        let renews = going_on.renew.is_some();
        Some(Self {
            columns,
            working,
            rows: if renews { working / columns.all() } else { 0 },
            lost: HashSet::new(),
            finished: columns.all(),
            given: columns.sums,
            dead: HashSet::new(),
            new_columns: HashMap::new(),
            free: if renews { (working..nodes).collect() } else { VecDeque::new() },
        })
    }

    /// Returns the process column of a rank, if it has one that is not lost.
    fn column(&self, node: u64) -> Option<u64> {
        let first = (node < self.working).then(|| node % self.columns.all());
        let column = self.new_columns.get(&node).copied().or(first)?;
        (!self.lost.contains(&column)).then_some(column)
    }

    /// Number of columns of checksums that are left.
    fn sums(&self) -> u64 {
        self.finished - self.lost.len() as u64 - self.columns.q
    }

    /// Marks the rank of a node as lost. Returns false if it was lost before. Returns None, and changes nothing, if the run does
    /// not survive this loss.
    pub fn lose(&mut self, node: u64) -> Option<bool> {
        if self.dead.contains(&node) {
            return Some(false);
        }
        let column = self.column(node);
        if column.is_some() && self.sums() == 0 {
            return None;
        }
        self.dead.insert(node);
        if let Some(column) = column {
            self.lost.insert(column);
            if self.rows > 0 {
                let all = self.columns.all();
                let first = (column < all).then(|| (column..self.working).step_by(all as usize));
                let made =
                    self.new_columns.iter().filter(|(_, of)| **of == column).map(|(node, _)| *node);
                let mut made: Vec<u64> = made.collect();
                made.sort_unstable();
                self.new_columns.retain(|_, of| *of != column);
                self.free.extend(first.into_iter().flatten().chain(made));
            }
        }
        Some(true)
    }

    /// Begins new columns and returns their number. Columns that were begun before but are not finished are given up.
    pub fn begin_new(&mut self) -> u64 {
        if self.rows == 0 {
            return 0;
        }
        self.free.retain(|node| !self.dead.contains(node));
        let new = (self.columns.sums - self.sums())
            .min(self.free.len() as u64 / self.rows)
            .min(SUMS_EVER as u64 - self.given);
        self.given += new;
        new
    }

    /// Finishes the `new` columns that [`Parts::begin_new`] has begun last.
    pub fn renew(&mut self, new: u64) {
        for _ in 0..new {
            let ranks: Vec<u64> = self.free.drain(..self.rows as usize).collect();
            self.new_columns.extend(ranks.into_iter().map(|node| (node, self.finished)));
            self.finished += 1;
        }
    }
}
