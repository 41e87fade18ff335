//! The part of U that was lost with a process column, regained from the sums.
//!
//! Done when all is factored, just before it is needed, in chunks of rows. It could be done beside the updates; but then it
//! would take from them, and nobody waits for it before. An attempt that is lost amid it goes on after the rows that are
//! done, since the sums are what it overwrites.

use super::context::Context;
use super::roles::Exchange;
use crate::comm::Reduce;
use crate::faults::{Point, hit};
use ndarray::ArrayViewMut2;

/// Doubles of one chunk at most, or those of one row.
const CHUNK: usize = 256 << 10;

/// All ranks that have columns, together. `regained`: local rows that are done; it counts on the ranks that have the sums.
/// `a` is the whole local matrix.
pub fn regain(
    context: &Context,
    mut a: ArrayViewMut2<f64>,
    exchange: &Exchange,
    regained: &mut usize,
) {
    let shape = &context.shape;
    let (nb, holder) = (shape.nb, exchange.col);
    let lost = exchange.first_sum(shape);
    let boundary = (exchange.boundary * nb).min(shape.n);
    let end = shape.row_map.count_below(boundary, shape.row);
    let mut at = [*regained as u64];
    context.row.broadcast(&mut at, holder);
    let mut at = at[0] as usize;
    let middle = at.midpoint(end);
    while at < end {
        let row = shape.row_map.global(at, shape.row);
        // Of this row block all columns from its diagonal on.
        let first = shape.col_map.count_below(row / nb * nb, holder);
        if first >= lost {
            break;
        }
        if at >= middle {
            hit(Point::RegainHalf, context.place);
        }
        let cols = first..lost;
        let block_end = ((at / nb + 1) * nb).min(end);
        let rows = at..block_end.min(at + (CHUNK / cols.len()).max(1));
        let mut part = vec![0.0; rows.len() * cols.len()];
        if shape.col != holder {
            for (i, line) in rows.clone().zip(part.chunks_exact_mut(cols.len())) {
                let row = shape.row_map.global(i, shape.row);
                for (l, value) in cols.clone().zip(line) {
                    if exchange.counts(shape, shape.col, row, l) {
                        *value = a[[i, l]];
                    }
                }
            }
        }
        let mut sum = vec![0.0; part.len()];
        context.row.reduce(&part, &mut sum, holder, Reduce::Sum);
        if shape.col == holder {
            for (i, line) in rows.clone().zip(sum.chunks_exact(cols.len())) {
                for (l, others) in cols.clone().zip(line) {
                    a[[i, l]] -= others;
                }
            }
            *regained = rows.end;
        }
        at = rows.end;
    }
}
