//! Messages between process rows in the pivot search. Each process row sends its candidate for the pivot row. The current row
//! will be exchanged with the pivot row. The owner of the current row adds the current row to its message.

use crate::comm::Comm;

const TAG: i32 = 1;

/// Length of the head of a message, in doubles. The head is the candidate's magnitude, its global row, and 1 if the message
/// contains the current row, 0 otherwise.
const HEAD: usize = 3;

/// Number of doubles in a message of the pivot search, for a panel of `width` columns. The message has the head, the candidate's
/// row, and the current row.
pub fn candidate_len(width: usize) -> usize {
    HEAD + 2 * width
}

/// Message buffers of the pivot search: this rank's message and the message of its partner.
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

    /// Number of doubles that fit in both buffers together.
    pub fn capacity(&self) -> usize {
        self.mine.capacity() + self.theirs.capacity()
    }

    /// Prepares the buffers for searches in a panel of `width` columns.
    pub(super) fn begin(&mut self, width: usize) {
        self.width = width;
        self.mine.resize(candidate_len(width), 0.0);
        self.theirs.resize(candidate_len(width), 0.0);
    }

    /// Returns the buffer of the current row, which is exchanged with the pivot row.
    ///
    /// The owner of the current row writes the row to this buffer before the call of [`Self::agree`]. On return from
    /// [`Self::agree`], the buffer contains the row on all ranks.
    pub(super) fn present(&mut self) -> &mut [f64] {
        &mut self.mine[HEAD + self.width..]
    }

    /// Agrees with the other ranks of the process column on the best candidate. All of these ranks call this together. Returns
    /// the candidate's global row and elements.
    ///
    /// `candidate` is the magnitude, global row and elements of this rank's candidate, or `None` if this rank has no active rows.
    /// `present` is true if this rank has written the current row to the buffer [`Self::present`].
    pub(super) fn agree(
        &mut self,
        comm: &Comm,
        candidate: Option<(f64, f64, &[f64])>,
        present: bool,
    ) -> (f64, &[f64]) {
        // A rank without active rows has a smaller magnitude than every candidate. NaN has a smaller magnitude than every number.
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

    /// Combines the messages of a process column, so that all ranks of the process column have the best candidate and the current
    /// row. The best candidate has the largest magnitude and, among equal magnitudes, the lowest row.
    ///
    /// Uses recursive doubling. Ranks beyond the largest power of two do not take part: each sends its message to a partner first
    /// and receives the result last.
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

/// Copies the candidate of the message `theirs` to `mine` if that candidate is better. If `theirs` contains the current row,
/// copies this row, too.
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
