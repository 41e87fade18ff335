//! Messages between process rows in the pivot search: each sends its candidate, and the owner of the current row adds that row.

use crate::comm::Comm;

const TAG: i32 = 1;

/// Head of a message: magnitude, global row, and a flag: whether the current row follows.
const HEAD: usize = 3;

/// Number of doubles in a pivot message for a panel of `width` columns: the head, the candidate's row, the current row.
pub fn candidate_len(width: usize) -> usize {
    HEAD + 2 * width
}

/// Message buffers of the pivot search, for this rank's message and its partner's.
pub struct Candidates {
    mine: Vec<f64>,
    theirs: Vec<f64>,
    width: usize,
}

impl Candidates {
    /// Allocates buffers for messages of `len` doubles.
    pub fn new(len: usize) -> Self {
        Self { mine: Vec::with_capacity(len), theirs: Vec::with_capacity(len), width: 0 }
    }

    /// Number of doubles that fit in the buffers.
    pub fn capacity(&self) -> usize {
        self.mine.capacity() + self.theirs.capacity()
    }

    /// Prepares for searches in a panel of `width` columns.
    pub(super) fn begin(&mut self, width: usize) {
        self.width = width;
        self.mine.resize(candidate_len(width), 0.0);
        self.theirs.resize(candidate_len(width), 0.0);
    }

    /// Returns the buffer of the current row, which moves to the place that the pivot row leaves.
    ///
    /// The owner writes the row here before [`Self::agree`]; afterwards all ranks have it, until the next search ends.
    pub(super) fn present(&mut self) -> &mut [f64] {
        &mut self.mine[HEAD + self.width..]
    }

    /// Agrees on the best candidate among all ranks of a process column, which call this together. Returns its global row and
    /// elements.
    ///
    /// `candidate` is magnitude, global row and elements; `None` if this rank has no active rows. `present` says that this rank
    /// has filled [`Self::present`].
    pub(super) fn agree(
        &mut self,
        comm: &Comm,
        candidate: Option<(f64, f64, &[f64])>,
        present: bool,
    ) -> (f64, &[f64]) {
        // A rank without rows ranks below every candidate; NaN ranks below every number.
        let (magnitude, row) = candidate.map_or((-2.0, f64::INFINITY), |(magnitude, row, _)| {
            (if magnitude.is_nan() { -1.0 } else { magnitude }, row)
        });
        self.mine[..HEAD].copy_from_slice(&[magnitude, row, f64::from(u8::from(present))]);
        if let Some((_, _, elements)) = candidate {
            self.mine[HEAD..HEAD + self.width].copy_from_slice(elements);
        }
        self.exchange(comm);
        (self.mine[1], &self.mine[HEAD..HEAD + self.width])
    }

    /// Combines the messages of a process column so that all ranks have the same result: the best candidate, by magnitude and
    /// then by lower row, and the current row from its owner.
    ///
    /// Uses recursive doubling. Ranks beyond the largest power of two send their message first and receive the result last.
    fn exchange(&mut self, comm: &Comm) {
        let (me, size) = (comm.rank(), comm.size());
        let cube = 1 << size.ilog2();
        if me >= cube {
            comm.send(&self.mine, me - cube, TAG);
            comm.recv(&mut self.mine, me - cube, TAG);
            return;
        }
        if me + cube < size {
            comm.recv(&mut self.theirs, me + cube, TAG);
            combine(&mut self.mine, &self.theirs, self.width);
        }
        let mut distance = 1;
        while distance < cube {
            let partner = me ^ distance;
            comm.exchange(
                Some((&self.mine[..], partner)),
                Some((&mut self.theirs[..], partner)),
                TAG,
            );
            combine(&mut self.mine, &self.theirs, self.width);
            distance *= 2;
        }
        if me + cube < size {
            comm.send(&self.mine, me + cube, TAG);
        }
    }
}

/// Takes the better candidate, and the current row if present, from `theirs` into `mine`.
fn combine(mine: &mut [f64], theirs: &[f64], width: usize) {
    let (head, rows) = (HEAD, HEAD + width);
    if theirs[0] > mine[0] || (theirs[0] == mine[0] && theirs[1] < mine[1]) {
        mine[0] = theirs[0];
        mine[1] = theirs[1];
        mine[head..rows].copy_from_slice(&theirs[head..rows]);
    }
    if theirs[2] != 0.0 {
        mine[2] = theirs[2];
        mine[rows..].copy_from_slice(&theirs[rows..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_candidate_wins_whoever_is_first() {
        let message = |magnitude: f64, row: f64, owner: f64| {
            vec![magnitude, row, owner, row, row, owner * 7.0, owner * 8.0]
        };
        let a = message(2.0, 5.0, 0.0);
        let b = message(2.0, 3.0, 1.0);
        let c = message(-2.0, f64::INFINITY, 0.0);
        for order in [[&a, &b, &c], [&c, &b, &a], [&b, &c, &a]] {
            let mut mine = order[0].clone();
            combine(&mut mine, order[1], 2);
            combine(&mut mine, order[2], 2);
            assert_eq!(mine, vec![2.0, 3.0, 1.0, 3.0, 3.0, 7.0, 8.0]);
        }
    }
}
