//! The parts of U that were lost with process columns, regained from the sums.
//!
//! Done when all is factored, just before it is needed, in chunks of rows. It could be done beside the updates; but then it
//! would take from them, and nobody waits for it before. An attempt that is lost amid it goes on after the rows that are
//! done, since the sums are what it overwrites.

use std::ops::Range;

use super::context::Context;
use super::roles::{Exchanges, counts};
use crate::comm::Reduce;
use crate::faults::{Point, hit};
use ndarray::ArrayViewMut2;

/// Doubles of one chunk at most, or those of one row.
const CHUNK: usize = 256 << 10;

/// A process column that was replaced, whose sums are being overwritten.
struct Column {
    /// Which exchange.
    which: usize,
    col: usize,
    /// Local rows that are done, when this begins.
    done: usize,
    /// Local columns with what was lost in the rows at hand.
    cols: Range<usize>,
}

/// All ranks that have columns, together. `regained`: local rows that are done; it counts on the ranks that have sums.
/// `a` is the whole local matrix.
pub fn regain(
    context: &Context,
    mut a: ArrayViewMut2<f64>,
    exchanges: &Exchanges,
    regained: &mut usize,
) {
    let shape = &context.shape;
    let nb = shape.nb;
    let mut columns: Vec<Column> = Vec::new();
    let mut end = 0;
    for &which in &exchanges.there {
        let exchange = exchanges.of(which);
        let mut done = [*regained as u64];
        context.row.broadcast(&mut done, exchange.col);
        let boundary = (exchange.boundary * nb).min(shape.n);
        end = end.max(shape.row_map.count_below(boundary, shape.row));
        columns.push(Column { which, col: exchange.col, done: done[0] as usize, cols: 0..0 });
    }
    let mut at = columns.iter().map(|column| column.done).min().unwrap_or(end);
    let middle = at.midpoint(end);
    while at < end {
        let row = shape.row_map.global(at, shape.row);
        let mut rows_end = ((at / nb + 1) * nb).min(end);
        for column in &mut columns {
            if column.done > at {
                rows_end = rows_end.min(column.done);
                column.cols = 0..0;
                continue;
            }
            // Of this row block all columns from its diagonal on.
            let first = shape.col_map.count_below(row / nb * nb, column.col);
            column.cols = first..exchanges.first_sum(column.which).max(first);
        }
        let widest = columns.iter().map(|column| column.cols.len()).max().unwrap_or(0);
        if widest == 0 {
            at = rows_end;
            continue;
        }
        if at >= middle {
            hit(Point::RegainHalf, context.place);
        }
        let rows = at..rows_end.min(at + (CHUNK / widest).max(1));
        // All of them are made before any sums are overwritten.
        let shares: Vec<Vec<f64>> =
            columns.iter().map(|of| shares(context, &a, exchanges, &columns, of, &rows)).collect();
        for (column, mine) in columns.iter().zip(shares).filter(|(_, mine)| !mine.is_empty()) {
            let mut others = vec![0.0; mine.len()];
            if shape.col != column.col {
                context.row.reduce(&mine, &mut others, column.col, Reduce::Sum);
                continue;
            }
            context.row.reduce(&vec![0.0; mine.len()], &mut others, column.col, Reduce::Sum);
            let mut found = mine.iter().zip(&others).map(|(mine, others)| mine - others);
            for i in rows.clone() {
                for l in column.cols.clone() {
                    a[[i, l]] = found.next().expect("one for each");
                }
            }
            *regained = rows.end;
        }
        at = rows.end;
    }
}

/// What this rank's part adds to what is regained of a column, or is what the others' are taken from.
fn shares(
    context: &Context,
    a: &ArrayViewMut2<f64>,
    exchanges: &Exchanges,
    columns: &[Column],
    of: &Column,
    rows: &Range<usize>,
) -> Vec<f64> {
    let shape = &context.shape;
    let mut shares = vec![0.0; rows.len() * of.cols.len()];
    // It is the same for many columns.
    let mut known = ((0, 0), 0.0);
    for (i, line) in rows.clone().zip(shares.chunks_exact_mut(of.cols.len().max(1))) {
        let row = shape.row_map.global(i, shape.row);
        for (l, share) in of.cols.clone().zip(line) {
            let is_lost = |c: &&Column| c.cols.contains(&l) && counts(shape, c.col, row, l);
            if !is_lost(&of) {
                continue;
            }
            let lost = columns.iter().filter(is_lost);
            let (wanted, is_sums) = lost.fold((0, false), |(wanted, mine), c| {
                (wanted | 1 << c.which, mine || c.col == shape.col)
            });
            if is_sums || counts(shape, shape.col, row, l) {
                let at = exchanges.at(l);
                if known.0 != (at, wanted) {
                    let factor = exchanges.factor(at, wanted, of.which, shape.col);
                    known = ((at, wanted), factor);
                }
                *share = known.1 * a[[i, l]];
            }
        }
    }
    shares
}
