//! Back substitution: U x = y, where U is the factored matrix and y its last column.
//!
//! The blocks are solved from the last to the first. The rank on the diagonal solves its triangle; the process column then
//! subtracts its block's share from all rows above. Each process column accumulates these shares in a vector of its own. Only
//! when a block is next are its rows of these vectors sent to the diagonal. So a process column can work on its other rows while
//! the next one already solves.

use super::clock::{Clock, Part};
use super::context::Context;
use crate::base::faults::{Point, hit};
use crate::base::threads::Pool;
use crate::kernels::{ask_for, vector};
use crate::matrix::Shape;
use ndarray::{ArrayView2, s};
use std::ops::Range;
use std::sync::Mutex;

const TAG: i32 = 3;

/// Number of rows in one task, from which a block's share is subtracted.
const ROWS: usize = 512;

/// Distance in rows of prefetching.
const AHEAD: usize = 2;

/// Maximum number of doubles that back substitution needs: x, the remaining right-hand side, and a block's share.
pub fn room(shape: &Shape) -> usize {
    shape.cols + shape.rows + share_len(shape)
}

fn share_len(shape: &Shape) -> usize {
    shape.nb.min(shape.n)
}

/// Solves the system. Returns the part of x that belongs to this rank's columns, on all process rows. `a` is the whole factored
/// local matrix.
pub fn back_substitute(
    context: &Context,
    a: ArrayView2<f64>,
    pool: &mut Pool,
    clock: &mut Clock,
) -> Vec<f64> {
    let before = clock.enter(Part::Solve);
    let shape = &context.shape;
    let params = context.params;
    let n = params.n;
    let mut x = vec![0.0; shape.col_map.count_below(n, shape.col)];
    // Accumulated share of this process column in each local row, negated. In the process column of the right-hand side, it
    // starts as the right-hand side.
    let mut rest = vec![0.0; shape.rows];
    if shape.col_map.owner(n) == shape.col {
        for (y, b) in rest.iter_mut().zip(a.column(shape.col_map.local(n))) {
            *y = *b;
        }
    }
    let mut share = vec![0.0; share_len(shape)];
    let blocks = params.blocks();
    let is_ours = |k: usize| k < blocks && shape.col_map.owner(k * params.nb) == shape.col;
    for k in (0..blocks).rev() {
        if k == blocks / 2 {
            hit(Point::SolveHalf, context.place);
        }
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
            } else if !is_ours(k + 1) {
                context.row.send(&rest[mine], col_owner, TAG);
            }
        }
        if shape.col != col_owner {
            continue;
        }
        let local_col = shape.col_map.local(first);
        // The block's columns of a local row.
        let row = |i: usize| {
            let part = a.slice_move(s![i, local_col..local_col + width]);
            part.to_slice().expect("a row lies in one piece")
        };
        if shape.row == row_owner {
            for i in (0..width).rev() {
                if let Some(soon) = i.checked_sub(AHEAD) {
                    ask_for(row(local_row + soon)[soon..].as_ptr(), width - soon);
                }
                let row = row(local_row + i);
                let known = &x[local_col + i + 1..local_col + width];
                let y = rest[local_row + i] - vector::dot(&row[i + 1..], known);
                x[local_col + i] = y / row[i];
            }
        }
        context.column.broadcast(&mut x[local_col..local_col + width], row_owner);
        // Rows above the block, those of the next block first: another rank may wait for them.
        let above = shape.row_from_block(k);
        let next = shape.row_from_block(k.saturating_sub(1));
        let x = &x[local_col..local_col + width];
        let take = |rest: &mut [f64], rows: Range<usize>| {
            for (y, i) in rest.iter_mut().zip(rows) {
                let row = row(i);
                // Rows are too far apart for the hardware prefetcher.
                ask_for(row.as_ptr().wrapping_add(AHEAD * shape.ld), width);
                *y -= vector::dot(row, x);
            }
        };
        let (later, soon) = rest[..above].split_at_mut(next);
        take(soon, next..above);
        // With this share, the rows of the next block contain all shares of this process column, so they are sent to its diagonal
        // at once. The other process columns send theirs when the block is next.
        if k > 0 && !is_ours(k - 1) && shape.row == shape.row_map.owner(first - params.nb) {
            context.row.send(soon, shape.col_map.owner(first - params.nb), TAG);
        }
        hit(Point::SolveSent, context.place);
        let parts: Vec<Mutex<&mut [f64]>> = later.chunks_mut(ROWS).map(Mutex::new).collect();
        pool.run(parts.len(), |task| {
            let rest = &mut *parts[task].lock().expect("a part has one task");
            take(rest, task * ROWS..task * ROWS + rest.len());
        });
    }
    clock.enter(before);
    x
}
