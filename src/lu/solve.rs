//! Back substitution: U x = y, where U is the factored matrix and y its last column.
//!
//! Block by block from the last to the first. The rank on the diagonal solves its triangle; the
//! process column then takes its block's share off all rows above. Each process column keeps the
//! shares it has taken in a vector of its own, and only when a block's turn comes are its rows of
//! these vectors sent to the diagonal: so a process column can go on with its rows while the next
//! one already solves.

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

/// Rows one task takes a block's share off.
const ROWS: usize = 512;

/// A row is asked for when the one so many before it is at hand.
const AHEAD: usize = 2;

/// Doubles of what it takes at most: x, what is left of the right-hand side, and a block's share of it.
pub fn room(shape: &Shape) -> usize {
    shape.cols + shape.rows + share_len(shape)
}

fn share_len(shape: &Shape) -> usize {
    shape.nb.min(shape.n)
}

/// Solves and returns the part of x that belongs to this rank's columns, at all process rows. `a` is the whole
/// factored local matrix.
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
    // What this process column's part of the solution has added up to in each local row, negated;
    // in the column that holds the right-hand side it begins as that.
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
        // Rows above the block, those of the next block first: somebody may wait for them.
        let above = shape.row_from_block(k);
        let next = shape.row_from_block(k.saturating_sub(1));
        let x = &x[local_col..local_col + width];
        let take = |rest: &mut [f64], rows: Range<usize>| {
            for (y, i) in rest.iter_mut().zip(rows) {
                let row = row(i);
                // Rows are too far apart for the processor to see what comes next.
                ask_for(row.as_ptr().wrapping_add(AHEAD * shape.ld), width);
                *y -= vector::dot(row, x);
            }
        };
        let (later, soon) = rest[..above].split_at_mut(next);
        take(soon, next..above);
        // With this share the next block's rows have all of this process column's: its diagonal gets them at once. The other
        // columns send theirs when the block's turn comes.
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
