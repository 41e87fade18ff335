//! New sums, made of what the process columns have at a boundary at which no panel is factored ahead.
//!
//! Along each process row a chunk of rows goes from process column to process column, each of which adds its share, and ends
//! where the new sums are to be: every rank receives and sends about as much as its part of the matrix, all at the same time.
//! Nothing but the new sums is written, so whoever is lost meanwhile, what the others have is what it was.

use std::ops::Range;

use ndarray::ArrayViewMut2;

use super::context::Context;
use super::roles::{Exchanges, Which, counts_at};
use crate::comm::Comm;
use crate::faults::{Point, hit};
use crate::matrix::Shape;
use crate::pulse;

/// Doubles of one chunk at most, or those of one row.
pub const CHUNK: usize = 256 << 10;
const TAG: i32 = 5;

/// Makes the sums with these numbers, which are the last along each process row, at that boundary. All ranks of the grid
/// together; `a` is the whole local matrix.
pub fn renew(
    context: &Context,
    mut a: ArrayViewMut2<f64>,
    boundary: usize,
    exchanges: &Exchanges,
    numbers: &[usize],
) {
    let shape = &context.shape;
    let along = context.along();
    let first = along.size() - numbers.len();
    for (&by, keeper) in numbers.iter().zip(first..) {
        let cols = Shape::new(context.params, (shape.row, shape.grid.q)).cols;
        let of = Sums { by, boundary, keeper, cols };
        let keeps = along.rank() == keeper;
        if !keeps && shape.is_sums() {
            continue;
        }
        if keeps {
            a.fill(0.0);
        }
        let mut at = 0;
        let middle = shape.rows / 2;
        let mut half = false;
        while at < shape.rows {
            let row = shape.row_map.global(at, shape.row);
            let block = row / shape.nb;
            // Of columns before these nothing is left in this row.
            let wide = of.cols - block.min(boundary) / shape.grid.q * shape.nb;
            let block_end = ((at / shape.nb + 1) * shape.nb).min(shape.rows);
            let rows = at..block_end.min(at + (CHUNK / wide).max(1));
            of.chunk(context, &mut a, exchanges, &rows, of.cols - wide);
            at = rows.end;
            pulse::beat();
            if at > middle && !half {
                half = true;
                hit(Point::RenewHalf, context.place);
            }
        }
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
}

impl Sums {
    /// These rows of them, from local column `first` on.
    fn chunk(
        &self,
        context: &Context,
        a: &mut ArrayViewMut2<f64>,
        exchanges: &Exchanges,
        rows: &Range<usize>,
        first: usize,
    ) {
        let shape = &context.shape;
        let along: &Comm = context.along();
        let wide = self.cols - first;
        let mut sums = vec![0.0; rows.len() * wide];
        if shape.is_sums() {
            along.recv(&mut sums, shape.grid.q - 1, TAG);
            for (i, line) in rows.clone().zip(sums.chunks_exact(wide)) {
                let mut row = a.row_mut(i);
                let row = row.as_slice_mut().expect("a row lies in one piece");
                row[first..].copy_from_slice(line);
            }
            return;
        }
        if shape.col > 0 {
            along.recv(&mut sums, shape.col - 1, TAG);
        }
        let mut known = Known { of: (0, 0), adds: exchanges.adds(0, 0, self.by, shape.col) };
        for (i, line) in rows.clone().zip(sums.chunks_exact_mut(wide)) {
            self.add(context, a, exchanges, (i, first), &mut known, line);
        }
        let next = if shape.col + 1 < shape.grid.q { shape.col + 1 } else { self.keeper };
        along.send(&sums, next, TAG);
    }

    /// Adds what this process column has in local row `i` to the sums there, which begin at local column `first`.
    fn add(
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
            // In the first block, and in the last, columns differ; elsewhere blocks are all alike.
            let alike = at >= first + shape.nb && at + shape.nb < end;
            let next = if alike { at + shape.nb } else { at + 1 };
            let lost = exchanges.lost_at(shape, row, at);
            if exchanges.has(lost, shape.col) || counts_at(shape, self.boundary, shape.col, row, at)
            {
                let roles = exchanges.at(at);
                if known.of != (roles, lost) {
                    let adds = exchanges.adds(roles, lost, self.by, shape.col);
                    *known = Known { of: (roles, lost), adds };
                }
                let sums = &mut line[at - first..next - first];
                for (sum, own) in sums.iter_mut().zip(&mine[at..next]) {
                    *sum += known.adds * own;
                }
            }
            at = next;
        }
        if let Some(rhs) = shape.rhs() {
            let last = line.len() - 1;
            line[last] = a[[i, rhs]];
        }
    }
}
