//! Sums, made of what the process columns have at a boundary at which no panel is factored ahead: new ones, and those that there
//! are again.
//!
//! Along each process row some rows at a time go from process column to process column, each of which adds its share, and ends
//! where the new sums are to be: every rank receives and sends about as much as its part of the matrix, all at the same time.
//! Nothing but the sums is written, so whoever is lost meanwhile, what the others have is what it was; and of sums that are made
//! again each row is one before and after.

use std::ops::Range;

use ndarray::ArrayViewMut2;

use super::carry::{LONGEST, Piece, carry};
use super::context::Context;
use super::roles::{Exchanges, Which, alike_until, counts_at};
use crate::base::faults::{Point, hit};
use crate::comm::Comm;
use crate::kernels::vector;
use crate::matrix::Shape;

/// So much of the matrix's width is left, as a fraction, when sums are made again for the first time, and from one time to the
/// next.
const REFRESH: (usize, usize) = (2, 5);

/// Whether the sums are made again at this boundary: where two fifths of the block columns are left, two fifths of these, and so
/// on.
///
/// Sums round differently from what they are made of. What is regained of U fits the rows above its diagonal all the same, but L
/// below it was made with the U that is lost, and there what differs is multiplied with what L solves for: the later the column,
/// the larger (docs/dev/nonstop.md, Weights). In sums made again what is done has no such rounding.
pub fn refreshes_at(boundary: usize, blocks: usize) -> bool {
    let less = |left: usize| left * REFRESH.0 / REFRESH.1;
    let mut left = less(blocks);
    while left > blocks - boundary {
        left = less(left);
    }
    left > 0 && left == blocks - boundary
}

/// Makes the sums with these numbers, which are the last along each process row, at that boundary. All ranks of the grid
/// together; `a` is the whole local matrix.
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
        let sums = Sums { from: 0, ..Sums::new(context, boundary, (by, keeper)) };
        sums.make(context, &mut a, exchanges, Point::RenewHalf);
    }
}

/// Makes the sums that there are again at that boundary, from the columns on that are not factored: in all rows, also those that
/// are done. All ranks of the grid together; `a` is the whole local matrix.
pub fn refresh(
    context: &Context,
    mut a: ArrayViewMut2<f64>,
    boundary: usize,
    exchanges: &Exchanges,
) {
    let q = context.shape.grid.q;
    let cols = context.along().all_gather(&[context.shape.col as u64]);
    for (keeper, &col) in cols.iter().enumerate().skip(q) {
        let sums = Sums::new(context, boundary, (col as usize - q, keeper));
        sums.make(context, &mut a, exchanges, Point::RefreshHalf);
    }
}

/// What a process column's elements are multiplied with where these exchanges and these lost elements are, which is the same for
/// many.
struct Known {
    of: (Which, Which),
    adds: f64,
}

/// Sums that are being made.
struct Sums {
    by: usize,
    boundary: usize,
    /// Who is to keep them, by its place along a process row.
    keeper: usize,
    /// Their local columns, b's the last.
    cols: usize,
    /// The first of them that is made.
    from: usize,
}

impl Sums {
    /// From the local column on that the boundary is in.
    fn new(context: &Context, boundary: usize, (by, keeper): (usize, usize)) -> Self {
        let Shape { nb, grid, .. } = context.shape;
        let cols = Shape::new(context.params, (context.shape.row, grid.q)).cols;
        Self { by, boundary, keeper, cols, from: boundary / grid.q * nb }
    }

    /// Makes them, row by row. `half`: where half of the rows are made.
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
        let from = match shape.is_sums() {
            true => Some(shape.grid.q - 1),
            false => shape.col.checked_sub(1),
        };
        let next = if shape.col + 1 < shape.grid.q { shape.col + 1 } else { self.keeper };
        let to = (!shape.is_sums()).then_some(next);
        let pieces = self.strips(shape).into_iter().map(|what| {
            let doubles = what.rows.len() * what.wide;
            Piece { what, doubles, from, to }
        });
        let mut half = Some(half);
        carry(along, &pieces.collect::<Vec<_>>(), |strip, sums| {
            match shape.is_sums() {
                true => strip.keep(a, sums),
                false => self.add(context, a, exchanges, strip, sums),
            }
            if strip.rows.end >= shape.rows / 2
                && let Some(half) = half.take()
            {
                hit(half, context.place);
            }
        });
    }

    /// What goes along a process row in one message each, from above downward. One begins at half of the rows.
    fn strips(&self, shape: &Shape) -> Vec<Strip> {
        let mut strips: Vec<Strip> = Vec::new();
        for at in 0..shape.rows {
            let block = shape.row_map.global(at, shape.row) / shape.nb;
            // Of columns before these nothing is left in this row.
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

    /// Adds what this process column has in these rows to the sums there.
    fn add(
        &self,
        context: &Context,
        a: &ArrayViewMut2<f64>,
        exchanges: &Exchanges,
        strip: &Strip,
        sums: &mut [f64],
    ) {
        let mut known =
            Known { of: (0, 0), adds: exchanges.adds(0, 0, self.by, context.shape.col) };
        for (i, line) in strip.lines(sums) {
            self.add_row(context, a, exchanges, (i, strip.first), &mut known, line);
        }
    }

    /// Adds what this process column has in local row `i` to the sums there, which begin at local column `first`.
    fn add_row(
        &self,
        context: &Context,
        a: &ArrayViewMut2<f64>,
        exchanges: &Exchanges,
        (i, first): (usize, usize),
        known: &mut Known,
        line: &mut [f64],
    ) {
        let shape = &context.shape;
        let row = shape.row_map.global(i, shape.row);
        let end = shape.col_map.count_below(shape.n, shape.col);
        let mine = a.row(i);
        let mine = mine.as_slice().expect("a row lies in one piece");
        let mut at = first;
        while at < end {
            let next = alike_until(shape, row, at).min(end);
            let lost = exchanges.lost_at(shape, row, at);
            if exchanges.has(lost, shape.col) || counts_at(shape, self.boundary, shape.col, row, at)
            {
                let roles = exchanges.at(at);
                if known.of != (roles, lost) {
                    let adds = exchanges.adds(roles, lost, self.by, shape.col);
                    *known = Known { of: (roles, lost), adds };
                }
                let sums = &mut line[at - first..next - first];
                vector::subtract_scaled(sums, -known.adds, &mine[at..next]);
            }
            at = next;
        }
        if let Some(rhs) = shape.rhs() {
            let last = line.len() - 1;
            line[last] = a[[i, rhs]];
        }
    }
}

/// Some of them, which go in one message: these local rows of them, from a local column on.
struct Strip {
    rows: Range<usize>,
    first: usize,
    wide: usize,
}

impl Strip {
    /// Each of its local rows with the sums there.
    fn lines<'a>(&self, sums: &'a mut [f64]) -> impl Iterator<Item = (usize, &'a mut [f64])> {
        self.rows.clone().zip(sums.chunks_exact_mut(self.wide))
    }

    fn keep(&self, a: &mut ArrayViewMut2<f64>, sums: &mut [f64]) {
        for (i, line) in self.lines(sums) {
            let mut row = a.row_mut(i);
            let row = row.as_slice_mut().expect("a row lies in one piece");
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
                let shape = Shape::of(n, nb, grid, (row, 0));
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
                    // What could be longer is so.
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
