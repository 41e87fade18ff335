//! Computes checksum columns from the process columns, at a boundary at which no panel is factored ahead. Rebuilds lost checksum
//! columns, and recomputes existing checksum columns.
//!
//! Pieces of some rows are sent along each process row, from process column to process column. Each process column adds its share
//! to a piece. The last receiver of a piece stores the sums. Every rank receives and sends about as much data as its part of the
//! matrix, and all ranks do so at the same time.
//!
//! Only checksum columns are written. So if a rank is lost during the computation, the data of the process columns remain intact.
//! When existing checksum columns are recomputed, each row is a valid sum before and after its recomputation.

use std::ops::Range;

use ndarray::ArrayViewMut2;

use super::carry::{LONGEST, Piece, carry};
use super::context::Context;
use super::roles::{Exchanges, alike_until, counts_at};
use crate::base::faults::{Point, hit};
use crate::comm::Comm;
use crate::kernels::vector;
use crate::matrix::Shape;

/// Fraction, as numerator and denominator, that decides when checksums are recomputed. The first recomputation is when this
/// fraction of all block columns is left. Each further recomputation is when this fraction of the block columns left at the
/// previous one is left.
const REFRESH: (usize, usize) = (2, 5);

/// Returns whether existing checksums are recomputed at `boundary`, in a matrix of `blocks` block columns. The first
/// recomputation is when two fifths of the block columns are left. The second is when two fifths of these are left, and so on.
///
/// Checksum columns have other rounding errors than the columns that they sum. So a U recomputed from checksums differs slightly
/// from the lost U. But L below the diagonal was computed with the lost U. This difference is larger for later columns, and the
/// solve with L multiplies it (docs/dev/nonstop.md, Weights). Recomputed checksums are free of this difference in the factored
/// rows.
pub fn refreshes_at(boundary: usize, blocks: usize) -> bool {
    let less = |left: usize| left * REFRESH.0 / REFRESH.1;
    let mut left = less(blocks);
    while left > blocks - boundary {
        left = less(left);
    }
    left > 0 && left == blocks - boundary
}

/// Rebuilds the checksum columns with the numbers `numbers` at `boundary`. Their ranks are the last along each process row.
///
/// All ranks of the grid call this together. `a` is the whole local matrix.
pub fn renew(
    context: &Context,
    mut a: ArrayViewMut2<f64>,
    boundary: usize,
    exchanges: &Exchanges,
    numbers: &[usize],
) {
    let along = context.along();
    let first = along.size() - numbers.len();
    for (&by, keeper) in numbers.iter().zip(first..) {
        if along.rank() == keeper {
            a.fill(0.0);
        }
        let sums = Sums { from: 0, ..Sums::new(context, boundary, by, keeper) };
        sums.make(context, &mut a, exchanges, Point::RenewHalf);
    }
}

/// Recomputes the existing checksums at `boundary`, in the local columns that are not yet factored and in all rows.
///
/// All ranks of the grid call this together. `a` is the whole local matrix.
pub fn refresh(
    context: &Context,
    mut a: ArrayViewMut2<f64>,
    boundary: usize,
    exchanges: &Exchanges,
) {
    let q = context.shape.grid.q;
    let cols = context.along().all_gather(&[context.shape.col as u64]);
    for (keeper, &col) in cols.iter().enumerate().skip(q) {
        let sums = Sums::new(context, boundary, col as usize - q, keeper);
        sums.make(context, &mut a, exchanges, Point::RefreshHalf);
    }
}

/// A checksum column that is being computed.
struct Sums {
    by: usize,
    boundary: usize,
    /// Rank that stores the sums, by its number along the process row ([`Context::along`]).
    keeper: usize,
    /// Number of local columns of the checksum column. The last of these local columns is b.
    cols: usize,
    /// First local column that is computed.
    from: usize,
}

impl Sums {
    /// Describes checksum column `by`, which rank `keeper` along the process row stores. The sums are computed from the local
    /// column of block `boundary` on.
    fn new(context: &Context, boundary: usize, by: usize, keeper: usize) -> Self {
        let Shape { nb, grid, .. } = context.shape;
        let cols = Shape::new(context.params, context.shape.row, grid.q).cols;
        Self { by, boundary, keeper, cols, from: boundary / grid.q * nb }
    }

    /// Computes the sums, row by row. `half` is the crash point for injected failures after half of the rows.
    fn make(
        &self,
        context: &Context,
        a: &mut ArrayViewMut2<f64>,
        exchanges: &Exchanges,
        half: Point,
    ) {
        let shape = &context.shape;
        let along: &Comm = context.along();
        if shape.is_sums() && along.rank() != self.keeper {
            return;
        }
        let from = if shape.is_sums() { Some(shape.grid.q - 1) } else { shape.col.checked_sub(1) };
        let next = if shape.col + 1 < shape.grid.q { shape.col + 1 } else { self.keeper };
        let to = (!shape.is_sums()).then_some(next);
        let pieces = self.strips(shape).into_iter().map(|what| {
            let doubles = what.rows.len() * what.wide;
            Piece { what, doubles, from, to }
        });
        let mut half = Some(half);
        carry(along, &pieces.collect::<Vec<_>>(), |strip, sums| {
            if shape.is_sums() {
                strip.keep(a, sums);
            } else {
                self.add(context, a, exchanges, strip, sums);
            }
            if strip.rows.end >= shape.rows / 2
                && let Some(half) = half.take()
            {
                hit(half, context.place);
            }
        });
    }

    /// Divides the rows into strips from top to bottom. A strip is one message. One strip begins at half of the rows, where
    /// [`Self::make`] has a crash point.
    fn strips(&self, shape: &Shape) -> Vec<Strip> {
        let mut strips: Vec<Strip> = Vec::new();
        for at in 0..shape.rows {
            let block = shape.row_map.global(at, shape.row) / shape.nb;
            // Earlier local columns have no elements that count in this row.
            let first = (block.min(self.boundary) / shape.grid.q * shape.nb).max(self.from);
            let wide = self.cols - first;
            match strips.last_mut().filter(|_| at != shape.rows / 2) {
                Some(last) if last.first == first && (last.rows.len() + 1) * wide <= LONGEST => {
                    last.rows.end += 1;
                }
                _ => strips.push(Strip { rows: at..at + 1, first, wide }),
            }
        }
        strips
    }

    /// Adds this process column's share to the sums in the rows of `strip`.
    fn add(
        &self,
        context: &Context,
        a: &ArrayViewMut2<f64>,
        exchanges: &Exchanges,
        strip: &Strip,
        sums: &mut [f64],
    ) {
        let shape = &context.shape;
        let end = shape.col_map.count_below(shape.n, shape.col);
        // The last factor, and the arguments from which it was computed. Many elements have the same factor.
        let mut known = (0, 0);
        let mut adds = exchanges.adds(0, 0, self.by, shape.col);
        for (i, line) in strip.lines(sums) {
            let row = shape.row_map.global(i, shape.row);
            let mine = a.row(i);
            let mine = mine.as_slice().expect("a row is contiguous in memory");
            let mut at = strip.first;
            while at < end {
                let next = alike_until(shape, row, at).min(end);
                let lost = exchanges.lost_at(shape, row, at);
                if exchanges.has(lost, shape.col)
                    || counts_at(shape, self.boundary, shape.col, row, at)
                {
                    let roles = exchanges.at(at);
                    if known != (roles, lost) {
                        known = (roles, lost);
                        adds = exchanges.adds(roles, lost, self.by, shape.col);
                    }
                    let sums = &mut line[at - strip.first..next - strip.first];
                    vector::subtract_scaled(sums, -adds, &mine[at..next]);
                }
                at = next;
            }
            if let Some(rhs) = shape.rhs() {
                let last = line.len() - 1;
                line[last] = a[[i, rhs]];
            }
        }
    }
}

/// Part of the sums that is sent in one message: some local rows, from local column `first` on.
struct Strip {
    rows: Range<usize>,
    first: usize,
    wide: usize,
}

impl Strip {
    /// Returns the local rows of the strip, each with the part of `sums` for that row.
    fn lines<'a>(&self, sums: &'a mut [f64]) -> impl Iterator<Item = (usize, &'a mut [f64])> {
        self.rows.clone().zip(sums.chunks_exact_mut(self.wide))
    }

    fn keep(&self, a: &mut ArrayViewMut2<f64>, sums: &mut [f64]) {
        for (i, line) in self.lines(sums) {
            let mut row = a.row_mut(i);
            let row = row.as_slice_mut().expect("a row is contiguous in memory");
            row[self.first..].copy_from_slice(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::params::Mapping;
    use crate::grid::ProcessGrid;

    #[test]
    fn sums_are_made_again_when_so_much_is_left() {
        let left = |blocks: usize| -> Vec<usize> {
            let at = (0..=blocks).filter(|&k| refreshes_at(k, blocks));
            at.map(|k| blocks - k).collect()
        };
        assert_eq!(left(125), [50, 20, 8, 3, 1]);
        assert_eq!(left(50), [20, 8, 3, 1]);
        assert_eq!(left(16), [6, 2]);
        assert_eq!((left(4), left(3), left(2), left(0)), (vec![1], vec![1], vec![], vec![]));
    }

    #[test]
    fn strips_are_all_rows_once_each_with_what_is_left_in_it_and_of_some_length() {
        let grid = ProcessGrid { p: 2, q: 3, mapping: Mapping::Row };
        for (n, nb) in [(1, 4), (97, 8), (301, 10), (900, 300), (3000, 7)] {
            for (boundary, row) in
                (0..=n / nb).step_by(n / nb / 6 + 1).zip([0, 1].into_iter().cycle())
            {
                let shape = Shape::of(n, nb, grid, row, 0);
                for from in [0, boundary / grid.q * nb] {
                    let sums = Sums { by: 0, boundary, keeper: 3, cols: shape.cols, from };
                    let strips = sums.strips(&shape);
                    let mut next = 0;
                    for strip in &strips {
                        assert_eq!(strip.rows.start, next);
                        next = strip.rows.end;
                        assert_eq!(strip.wide, shape.cols - strip.first);
                        assert!(strip.rows.len() * strip.wide <= LONGEST || strip.rows.len() == 1);
                        for at in strip.rows.clone() {
                            let block = shape.row_map.global(at, row) / nb;
                            let first = block.min(boundary) / grid.q * nb;
                            assert_eq!(strip.first, first.max(from), "{n} {nb} {boundary} {at}");
                        }
                    }
                    assert_eq!(next, shape.rows);
                    let middle = shape.rows / 2;
                    assert!(middle == 0 || strips.iter().any(|strip| strip.rows.end == middle));
                    // No strip could be longer.
                    for two in strips.windows(2).filter(|two| two[0].first == two[1].first) {
                        let longer = (two[0].rows.len() + 1) * two[0].wide;
                        let ends = two[0].rows.end;
                        assert!(longer > LONGEST || ends == middle, "{n} {nb} {boundary} {ends}");
                    }
                }
            }
        }
    }
}
