//! Back substitution: U x = y, where U is the factored matrix and y its last column.
//!
//! Block by block from the last to the first. The rank on the diagonal solves its triangle; the
//! process column then takes its block's share off all rows above. Each process column keeps the
//! shares it has taken in a vector of its own, and only when a block's turn comes are its rows of
//! these vectors sent to the diagonal: so a process column can go on with its rows while the next
//! one already solves.

use super::clock::{Clock, Part};
use super::context::Context;
use crate::blas::vector;
use crate::threads::{Pool, Shareable};
use std::ops::Range;

const TAG: i32 = 3;

/// Rows one task takes a block's share off.
const ROWS: usize = 512;

/// Solves and returns the part of x that belongs to this rank's columns, at all process rows.
///
/// # Safety
/// `a` is the whole factored local matrix and nobody else touches it.
pub unsafe fn back_substitute(
    context: &Context,
    a: *mut f64,
    pool: &mut Pool,
    clock: &mut Clock,
) -> Vec<f64> {
    let before = clock.enter(Part::Solve);
    let shape = &context.shape;
    let params = context.params;
    let n = params.n;
    let mut x = vec![0.0; shape.col_map.count_below(n, shape.col)];
    // What this process column's part of the solution has added up to in each local row, negated;
    // in the column that holds the right-hand side it begins as that.
    let mut rest = vec![0.0; shape.rows];
    if shape.col_map.owner(n) == shape.col {
        let at = shape.col_map.local(n);
        for (i, y) in rest.iter_mut().enumerate() {
            // SAFETY: within the local matrix.
            *y = unsafe { *a.add(i * shape.ld + at) };
        }
    }
    let mut share = vec![0.0; params.nb];
    for k in (0..params.blocks()).rev() {
        let first = k * params.nb;
        let width = context.width(k);
        let row_owner = shape.row_map.owner(first);
        let col_owner = shape.col_map.owner(first);
        let local_row = shape.row_map.local(first);
        if shape.row == row_owner {
            let mine = local_row..local_row + width;
            if shape.col == col_owner {
                for col in (0..params.q).filter(|&col| col != col_owner) {
                    context.row.recv(&mut share[..width], col, TAG);
                    for (y, s) in rest[mine.clone()].iter_mut().zip(&share) {
                        *y += s;
                    }
                }
            } else {
                context.row.send(&rest[mine], col_owner, TAG);
            }
        }
        if shape.col != col_owner {
            continue;
        }
        let local_col = shape.col_map.local(first);
        if shape.row == row_owner {
            for i in (0..width).rev() {
                // SAFETY: a row of the diagonal block.
                let row = unsafe {
                    let start = a.add((local_row + i) * shape.ld + local_col);
                    std::slice::from_raw_parts(start, width)
                };
                let known = &x[local_col + i + 1..local_col + width];
                let y = rest[local_row + i] - vector::dot(&row[i + 1..], known);
                x[local_col + i] = y / row[i];
            }
        }
        context.column.broadcast(&mut x[local_col..local_col + width], row_owner);
        // Rows above the block, those of the next block first: somebody may wait for them.
        let above = shape.row_from_block(k);
        let next = shape.row_from_block(k.saturating_sub(1));
        let x = &x[local_col..local_col + width];
        let (out, base) = (Shareable::new(rest.as_mut_ptr()), Shareable::new(a));
        let ld = shape.ld;
        let take = |rows: Range<usize>| {
            for i in rows {
                // SAFETY: row i of the block's columns; each row is taken by one task.
                unsafe {
                    let start = base.get().add(i * ld + local_col);
                    *out.get().add(i) -= vector::dot(std::slice::from_raw_parts(start, width), x);
                }
            }
        };
        take(next..above);
        pool.run(next.div_ceil(ROWS), |task| take(task * ROWS..((task + 1) * ROWS).min(next)));
    }
    clock.enter(before);
    x
}
