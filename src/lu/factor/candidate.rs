//! What process rows tell each other in the search for a pivot: each its candidate, and who has it the row that leaves.

use crate::comm::Comm;

const TAG: i32 = 1;

/// Head of a message: magnitude, global row, whether the present row follows.
const HEAD: usize = 3;

/// Doubles of a pivot message of a panel of `width` columns: the head, the candidate's row, the current row.
pub fn candidate_len(width: usize) -> usize {
    HEAD + 2 * width
}

/// The messages of one search after the other: own and partner's.
pub struct Candidates {
    mine: Vec<f64>,
    theirs: Vec<f64>,
    width: usize,
}

impl Candidates {
    /// With room for messages of so many doubles.
    pub fn new(len: usize) -> Self {
        Self { mine: Vec::with_capacity(len), theirs: Vec::with_capacity(len), width: 0 }
    }

    /// Doubles there is room for.
    pub fn capacity(&self) -> usize {
        self.mine.capacity() + self.theirs.capacity()
    }

    /// The next searches are in a panel of `width` columns.
    pub(super) fn begin(&mut self, width: usize) {
        self.width = width;
        self.mine.resize(candidate_len(width), 0.0);
        self.theirs.resize(candidate_len(width), 0.0);
    }

    /// The present row, which leaves for where the pivot comes from: who has it puts it here, and after [`Self::agree`] all have
    /// it. It stays until the next search ends.
    pub(super) fn present(&mut self) -> &mut [f64] {
        &mut self.mine[HEAD + self.width..]
    }

    /// All ranks of a process column together: of their candidates, each by magnitude, global row and elements, the best one's
    /// row and elements. `None` from who has no rows; `present`: whether this rank has put the present row where it belongs.
    pub(super) fn agree(
        &mut self,
        comm: &Comm,
        candidate: Option<(f64, f64, &[f64])>,
        present: bool,
    ) -> (f64, &[f64]) {
        // Nothing is below any candidate; NaN is below every number.
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

    /// Combines the messages of a process column so that all have the same: the better
    /// candidate, by magnitude and then by lower row, and the current row from its owner.
    /// Recursive doubling; ranks beyond the largest power of two hand over and are told.
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

/// Takes over from `theirs` whatever is better or new.
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
