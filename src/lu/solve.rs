//! Back substitution: solves U x = y, where U is the upper triangle of the factored matrix and y its last column.
//!
//! The blocks are solved from the last to the first. The rank that owns the diagonal block solves its triangle. The process
//! column then subtracts the block's share from all rows above the block. Each process column accumulates its shares in a vector
//! of its own. Just before a block is solved, each process column sends its shares in the block's rows to the rank that owns the
//! diagonal block. So a process column can work on its other rows while the next process column already solves.

use super::clock::{Clock, Part};
use super::context::Context;
use crate::base::faults::{Point, hit};
use crate::base::threads::Pool;
use crate::device::{Device, Stream};
use crate::kernels::{Matrix, ask_for, vector};
use crate::matrix::Shape;
use ndarray::{ArrayView2, s};
use std::ops::Range;
use std::sync::Mutex;

const TAG: i32 = 3;

/// Number of rows in a task that subtracts a block's share.
const ROWS: usize = 512;

/// Number of rows to prefetch ahead.
const AHEAD: usize = 2;

/// Maximum number of doubles that back substitution allocates: x, the remaining right-hand side, and a block's share.
pub fn room(shape: &Shape) -> usize {
    shape.cols + shape.rows + share_len(shape)
}

fn share_len(shape: &Shape) -> usize {
    shape.nb.min(shape.n)
}

/// The whole factored local matrix.
pub enum Factored<'a> {
    Here(ArrayView2<'a, f64>),
    /// The matrix is in device memory. `room` has space for all local rows of a block column.
    On {
        device: &'a dyn Device,
        a: Matrix<*const f64>,
        room: &'a mut [f64],
    },
}

impl Factored<'_> {
    /// Returns the first `rows` local rows of the local columns `cols`. `cols` is at most NB columns.
    fn columns(&mut self, rows: usize, cols: Range<usize>) -> ArrayView2<'_, f64> {
        match self {
            Self::Here(a) => a.slice(s![..rows, cols]),
            Self::On { device, a, room } => {
                let len = cols.len();
                let room = &mut room[..rows * len];
                let from = Matrix::new(a.at.wrapping_add(cols.start), a.ld);
                let to = Matrix::new(room.as_mut_ptr(), len);
                // SAFETY: no operation writes these elements of the matrix any more. The copy ends before `room` is read.
                unsafe { device.copy_2d(Stream::Panel, from, to, rows, len) };
                device.finish(Stream::Panel);
                ArrayView2::from_shape((rows, len), &*room)
                    .expect("the slice has `rows` times `len` elements")
            }
        }
    }
}

/// Solves the system. Returns the part of x that belongs to this rank's process column, in every process row. `a` is the whole
/// factored local matrix.
pub fn back_substitute(
    context: &Context,
    mut a: Factored,
    pool: &mut Pool,
    clock: &mut Clock,
) -> Vec<f64> {
    let before = clock.enter(Part::Solve);
    let shape = &context.shape;
    let n = context.params.n;
    let x = vec![0.0; shape.col_map.count_below(n, shape.col)];
    let mut rest = vec![0.0; shape.rows];
    if shape.col_map.owner(n) == shape.col {
        let at = shape.col_map.local(n);
        for (y, b) in rest.iter_mut().zip(a.columns(shape.rows, at..at + 1)) {
            *y = *b;
        }
    }
    let share = vec![0.0; share_len(shape)];
    let mut run = Substitution { context, x, rest, share };
    let blocks = context.params.blocks();
    for k in (0..blocks).rev() {
        if k == blocks / 2 {
            hit(Point::SolveHalf, context.place);
        }
        run.collect_shares(k);
        if run.owns(k) {
            let first = shape.col_from_block(k);
            let block = a.columns(shape.row_from_block(k + 1), first..first + context.width(k));
            run.solve_block(k, block);
            run.subtract_block(k, block, pool);
        }
    }
    clock.enter(before);
    run.x
}

/// Back substitution in progress on one rank.
struct Substitution<'a> {
    context: &'a Context<'a>,
    x: Vec<f64>,
    /// For each local row: the right-hand side y, if this process column has y, minus this process column's share of U x so far.
    rest: Vec<f64>,
    /// Buffer for the shares that another process column sends for the rows of a block.
    share: Vec<f64>,
}

/// Returns local row `i` of a block column.
fn row_of(block: ArrayView2<'_, f64>, i: usize) -> &[f64] {
    block.slice_move(s![i, ..]).to_slice().expect("a row is contiguous in memory")
}

impl Substitution<'_> {
    /// Returns whether this process column owns block `k`.
    fn owns(&self, k: usize) -> bool {
        let Context { params, shape, .. } = self.context;
        k < params.blocks() && shape.col_map.owner(k * params.nb) == shape.col
    }

    /// Sends the shares of all process columns in the rows of block `k` to the rank that owns the diagonal block. This rank adds
    /// the shares up.
    fn collect_shares(&mut self, k: usize) {
        let Context { params, shape, row, .. } = self.context;
        let first = k * params.nb;
        if shape.row != shape.row_map.owner(first) {
            return;
        }
        let width = self.context.width(k);
        let local_row = shape.row_map.local(first);
        let mine = local_row..local_row + width;
        let col_owner = shape.col_map.owner(first);
        if shape.col == col_owner {
            for col in (0..params.q).filter(|&col| col != col_owner) {
                row.recv(&mut self.share[..width], col, TAG);
                for (y, s) in self.rest[mine.clone()].iter_mut().zip(&self.share) {
                    *y += s;
                }
            }
        } else if !self.owns(k + 1) {
            row.send(&self.rest[mine], col_owner, TAG);
        }
    }

    /// Solves block `k` on the rank that owns the diagonal block, and broadcasts the block's part of x to all process rows.
    fn solve_block(&mut self, k: usize, block: ArrayView2<f64>) {
        let Context { params, shape, column, .. } = self.context;
        let first = k * params.nb;
        let width = self.context.width(k);
        let row_owner = shape.row_map.owner(first);
        let (local_row, local_col) = (shape.row_map.local(first), shape.col_map.local(first));
        if shape.row == row_owner {
            let row = |i: usize| row_of(block, local_row + i);
            for i in (0..width).rev() {
                if let Some(soon) = i.checked_sub(AHEAD) {
                    ask_for(row(soon)[soon..].as_ptr(), width - soon);
                }
                let row = row(i);
                let known = &self.x[local_col + i + 1..local_col + width];
                let y = self.rest[local_row + i] - vector::dot(&row[i + 1..], known);
                self.x[local_col + i] = y / row[i];
            }
        }
        column.broadcast(&mut self.x[local_col..local_col + width], row_owner);
    }

    /// Subtracts the share of block `k` from all rows above the block. The rows of the next block come first, because another
    /// rank may wait for their shares.
    fn subtract_block(&mut self, k: usize, block: ArrayView2<f64>, pool: &mut Pool) {
        let Context { params, shape, .. } = self.context;
        let (first, width) = (k * params.nb, self.context.width(k));
        let local_col = shape.col_map.local(first);
        let above = shape.row_from_block(k);
        let next = shape.row_from_block(k.saturating_sub(1));
        let x = &self.x[local_col..local_col + width];
        let ld = block.strides()[0] as usize;
        let take = |rest: &mut [f64], rows: Range<usize>| {
            for (y, i) in rest.iter_mut().zip(rows) {
                let row = row_of(block, i);
                // The hardware prefetcher does not prefetch rows at this distance.
                ask_for(row.as_ptr().wrapping_add(AHEAD * ld), width);
                *y -= vector::dot(row, x);
            }
        };
        let owns_next = k > 0 && self.owns(k - 1);
        let (later, soon) = self.rest[..above].split_at_mut(next);
        take(soon, next..above);
        // The rows of the next block now contain all shares of this process column. So these rows are sent at once to the rank
        // that owns the next diagonal block. The other process columns send their shares in `collect_shares`.
        if k > 0 && !owns_next && shape.row == shape.row_map.owner(first - params.nb) {
            self.context.row.send(soon, shape.col_map.owner(first - params.nb), TAG);
        }
        hit(Point::SolveSent, self.context.place);
        let parts: Vec<Mutex<&mut [f64]>> = later.chunks_mut(ROWS).map(Mutex::new).collect();
        pool.run(parts.len(), |task| {
            let rest = &mut *parts[task].lock().expect("a part has one task");
            take(rest, task * ROWS..task * ROWS + rest.len());
        });
    }
}
