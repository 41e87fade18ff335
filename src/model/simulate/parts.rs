//! Part of each rank in a run with checksums, by the number of its node: a rank on each.
//!
//! The first P x (Q+R) ranks have the columns in turn, the others wait. The ranks left of a lost column are free, like those. If
//! new checksums are made, each P free ranks make a column of them, which counts like the others once it is finished.

use std::collections::{HashMap, HashSet, VecDeque};

use super::GoingOn;
use crate::lu::SUMS_EVER;
use crate::model::nonstop::Columns;

pub struct Parts {
    columns: Columns,
    /// Number of ranks with a part at the beginning.
    working: u64,
    /// Ranks of a process column; 0 if no new columns are made.
    rows: u64,
    /// Lost columns by their number; new columns are numbered after the first ones.
    lost: HashSet<u64>,
    /// Number of finished columns, lost ones included.
    finished: u64,
    /// Number of columns begun, including columns of checksums that were never finished.
    given: u64,
    dead: HashSet<u64>,
    /// Ranks in new columns, with the column of each.
    new_columns: HashMap<u64, u64>,
    /// Free ranks in the order in which they became free; the dead are among them.
    free: VecDeque<u64>,
}

impl Parts {
    /// Returns None without checksums.
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

    /// Returns the process column that a rank has a part in, if any.
    fn column(&self, node: u64) -> Option<u64> {
        let first = (node < self.working).then(|| node % self.columns.all());
        let column = self.new_columns.get(&node).copied().or(first)?;
        (!self.lost.contains(&column)).then_some(column)
    }

    /// Number of columns of checksums that are left.
    fn sums(&self) -> u64 {
        self.finished - self.lost.len() as u64 - self.columns.q
    }

    /// Loses a rank. Returns false if it was lost already. None: that is one process column too many, and nothing was changed.
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

    /// Begins new columns and returns their number. Columns that were begun before and are not finished are void.
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

    /// Finishes the last columns that were begun.
    pub fn renew(&mut self, new: u64) {
        for _ in 0..new {
            let ranks: Vec<u64> = self.free.drain(..self.rows as usize).collect();
            self.new_columns.extend(ranks.into_iter().map(|node| (node, self.finished)));
            self.finished += 1;
        }
    }
}
