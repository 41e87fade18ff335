//! Factoring one panel: recursive, with the work shared by a process column.
//!
//! The panel is copied out of the row-major matrix into a column-major work array W, one rank's
//! rows of it. L1, the `width x width` block on the diagonal, is kept apart and replicated: with
//! each pivot the winning row moves into it at all ranks, so that the triangular solves of the
//! recursion need no messages. Rows of W that went into L1 are not active any more; on the process
//! row that owns the block these are the first ones.
//!
//! Invariant of the recursion on columns c..e: on entry W(active, c..e) is up to date with columns
//! before c; on exit W(active, c..e) holds multipliers, and rows c..e of L1 are final in columns
//! before e and not yet touched by columns c..e from column e on.

use super::clock::{Clock, Part};
use super::context::Context;
use super::panel::Panel;
use crate::blas::{TriangleBlock, trsm_left_lower_unit, trsm_right_upper_unit, vector};
use crate::matrix::HugeBuffer;
use crate::params::{Fact, Form};
use std::io;
use std::ops::Range;

const TAG: i32 = 1;

/// The work array of the factorisation, reused from panel to panel.
pub struct Factor {
    work: HugeBuffer,
    scratch: Vec<f64>,
    /// Messages of the pivot search: own and partner's.
    mine: Vec<f64>,
    theirs: Vec<f64>,
}

/// Head of a pivot message: magnitude, global row, whether the current row follows.
const HEAD: usize = 3;

impl Factor {
    pub fn new(context: &Context) -> io::Result<Self> {
        Ok(Self {
            work: HugeBuffer::touched(Self::room(context))?,
            scratch: Vec::new(),
            mine: Vec::new(),
            theirs: Vec::new(),
        })
    }

    /// Doubles of the work array.
    pub fn room(context: &Context) -> usize {
        let width = context.params.nb.min(context.params.n);
        leading_dimension(context.shape.rows, context.params.align) * width
    }

    /// Factors block column `panel.k`, of which this rank has a part, and fills the panel's
    /// message. `a` is the local matrix. The factored diagonal block is written back to A by the
    /// process row that owns it: back substitution needs its upper triangle. The multipliers below
    /// it are not: nothing looks at them again.
    ///
    /// # Safety
    /// `a` is the whole local matrix, and nobody touches the panel's columns meanwhile.
    pub unsafe fn run(
        &mut self,
        context: &Context,
        panel: &mut Panel,
        a: *mut f64,
        clock: &mut Clock,
    ) {
        let before = clock.enter(Part::Recursion);
        let shape = &context.shape;
        let width = panel.width;
        let first_row = shape.row_from_block(panel.k);
        let rows = shape.rows - first_row;
        let owner = shape.row_map.owner(panel.k * shape.nb) == shape.row;
        let column = shape.col_from_block(panel.k);
        let ld = leading_dimension(rows, context.params.align);
        let l1 = panel.triangle_pointer();
        let (rs, cs) = TriangleBlock::strides(context.params.l1, width);
        // SAFETY: the panel's columns of the local rows from `first_row` on, and a work array
        // with room for them.
        unsafe {
            transpose_in(
                a.add(first_row * shape.ld + column),
                shape.ld,
                (rows, width),
                self.work.as_mut_ptr(),
                ld,
            );
            let mut run = Run {
                context,
                w: self.work.as_mut_ptr(),
                ld,
                rows,
                width,
                first_row,
                owner,
                l1,
                rs,
                cs,
                pivots: panel.pivots().as_mut_ptr(),
                clock,
                scratch: &mut self.scratch,
                mine: &mut self.mine,
                theirs: &mut self.theirs,
            };
            run.recurse(0..width);
            let below = if owner { width } else { 0 };
            debug_assert_eq!(rows - below, panel.below);
            context.engine.lay_lower(
                panel.below,
                width,
                (self.work.as_ptr().add(below), ld),
                panel.lower_pointer(),
            );
            if owner {
                for i in 0..width {
                    let row = a.add((first_row + i) * shape.ld + column);
                    for j in 0..width {
                        *row.add(j) = *l1.add(i * rs + j * cs);
                    }
                }
            }
        }
        clock.enter(before);
    }
}

/// An odd number of cache lines, so that the rows of neighbouring columns do not meet in the same
/// cache sets, and a multiple of the alignment asked for.
fn leading_dimension(rows: usize, align: usize) -> usize {
    let unit = if align.is_multiple_of(8) { align } else { 8 };
    let ld = rows.next_multiple_of(unit);
    if (ld / 8).is_multiple_of(2) { ld + 8 } else { ld }
}

/// Copies a row-major `rows x width` part of A to column-major W.
unsafe fn transpose_in(
    a: *const f64,
    lda: usize,
    (rows, width): (usize, usize),
    w: *mut f64,
    ldw: usize,
) {
    const UNIT: usize = 8;
    // SAFETY: passed on from the caller.
    unsafe {
        let mut i = 0;
        while i + UNIT <= rows {
            let from = a.add(i * lda);
            for j in 0..width {
                let to = w.add(j * ldw + i);
                for r in 0..UNIT {
                    *to.add(r) = *from.add(r * lda + j);
                }
            }
            i += UNIT;
        }
        for i in i..rows {
            for j in 0..width {
                *w.add(j * ldw + i) = *a.add(i * lda + j);
            }
        }
    }
}

/// One factorisation under way.
struct Run<'a> {
    context: &'a Context<'a>,
    w: *mut f64,
    ld: usize,
    rows: usize,
    width: usize,
    /// Local row of the matrix that row 0 of W is.
    first_row: usize,
    /// Whether this process row owns the diagonal block.
    owner: bool,
    l1: *mut f64,
    rs: usize,
    cs: usize,
    pivots: *mut f64,
    clock: &'a mut Clock,
    scratch: &'a mut Vec<f64>,
    mine: &'a mut Vec<f64>,
    theirs: &'a mut Vec<f64>,
}

impl Run<'_> {
    /// The first row of W that is active once `done` rows are in L1.
    fn first(&self, done: usize) -> usize {
        if self.owner { done } else { 0 }
    }

    /// Rows `from..` of column `j` of W.
    fn column(&self, j: usize, from: usize) -> &[f64] {
        debug_assert!(j < self.width && from <= self.rows);
        // SAFETY: within the work array.
        unsafe { std::slice::from_raw_parts(self.w.add(j * self.ld + from), self.rows - from) }
    }

    /// Rows `from..` of column `j` to write, beside columns to read.
    ///
    /// # Safety
    /// No other reference to column `j` may live.
    #[allow(clippy::mut_from_ref)] // columns of one array, kept apart by the callers
    unsafe fn column_mut(&self, j: usize, from: usize) -> &mut [f64] {
        debug_assert!(j < self.width && from <= self.rows);
        // SAFETY: within the work array; the caller keeps columns apart.
        unsafe { std::slice::from_raw_parts_mut(self.w.add(j * self.ld + from), self.rows - from) }
    }

    /// L1(i, j).
    #[allow(clippy::mut_from_ref)] // values, each used at once
    fn top(&self, i: usize, j: usize) -> &mut f64 {
        debug_assert!(i < self.width && j < self.width);
        // SAFETY: within L1; values are read or written one at a time.
        unsafe { &mut *self.l1.add(i * self.rs + j * self.cs) }
    }

    /// Factors columns `c`, whose update by earlier columns is done.
    fn recurse(&mut self, c: Range<usize>) {
        let nbmin = self.context.params.nbmin.max(1);
        if c.len() <= nbmin {
            let before = self.clock.enter(Part::Base);
            match self.context.params.pfact {
                Fact::Left => self.base_left(c),
                Fact::Crout => self.base_crout(c),
                Fact::Right => self.base_right(c),
            }
            self.clock.enter(before);
            return;
        }
        let step = c.len().div_ceil(nbmin).div_ceil(self.context.params.ndiv.max(2)) * nbmin;
        let mut at = c.start;
        while at < c.end {
            let part = at..(at + step).min(c.end);
            match self.context.params.rfact {
                Fact::Left => {
                    // L1(c.start..at, part) := L^-1 L1(c.start..at, part), then
                    // W(active, part) -= W(active, c.start..at) L1(c.start..at, part).
                    self.solve_top(c.start..at, part.clone());
                    self.update(c.start..at, part.clone(), at);
                    self.recurse(part.clone());
                }
                Fact::Crout => {
                    self.update(c.start..at, part.clone(), at);
                    self.recurse(part.clone());
                    // Rows `part` of U: L1(part, right) -= L1(part, c.start..at) L1(.., right).
                    self.update_top(part.clone(), c.start..at, part.end..c.end);
                    self.solve_top(part.clone(), part.end..c.end);
                }
                Fact::Right => {
                    self.recurse(part.clone());
                    self.solve_top(part.clone(), part.end..c.end);
                    self.update(part.clone(), part.end..c.end, part.end);
                }
            }
            at = part.end;
        }
    }

    /// L1(rows, cols) := L1(rows, rows)^-1 L1(rows, cols), unit lower.
    fn solve_top(&mut self, rows: Range<usize>, cols: Range<usize>) {
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        let (m, n) = (rows.len(), cols.len());
        // SAFETY: within L1; the triangle and the right-hand sides are different columns.
        unsafe {
            let l = self.l1.add(rows.start * self.rs + rows.start * self.cs);
            let b = self.l1.add(rows.start * self.rs + cols.start * self.cs);
            match self.context.params.l1 {
                Form::Transposed => {
                    trsm_left_lower_unit((m, n), (l, self.width), (b, self.width));
                }
                // Row-major: the BLAS sees the transposes of all three.
                Form::NotTransposed => {
                    trsm_right_upper_unit((n, m), (l, self.width), (b, self.width));
                }
            }
        }
    }

    /// L1(rows, cols) -= L1(rows, inner) L1(inner, cols).
    fn update_top(&mut self, rows: Range<usize>, inner: Range<usize>, cols: Range<usize>) {
        if rows.is_empty() || inner.is_empty() || cols.is_empty() {
            return;
        }
        // SAFETY: three disjoint blocks of L1.
        unsafe {
            let at = |i: usize, j: usize| self.l1.add(i * self.rs + j * self.cs);
            let a = at(rows.start, inner.start);
            let b = at(inner.start, cols.start);
            let c = at(rows.start, cols.start);
            let ld = self.width;
            match self.context.params.l1 {
                Form::Transposed => crate::blas::gemm(
                    false,
                    false,
                    (rows.len(), cols.len(), inner.len()),
                    -1.0,
                    (a, ld),
                    (b, ld),
                    (c, ld),
                ),
                Form::NotTransposed => crate::blas::gemm(
                    false,
                    false,
                    (cols.len(), rows.len(), inner.len()),
                    -1.0,
                    (b, ld),
                    (a, ld),
                    (c, ld),
                ),
            }
        }
    }

    /// W(active, cols) -= W(active, inner) L1(inner, cols), with `done` rows in L1.
    fn update(&mut self, inner: Range<usize>, cols: Range<usize>, done: usize) {
        let first = self.first(done);
        if inner.is_empty() || cols.is_empty() || first >= self.rows {
            return;
        }
        // SAFETY: different columns of W, and L1 apart from it.
        unsafe {
            self.context.engine.multiply_in_panel(
                (self.rows - first, cols.len(), inner.len()),
                self.w.add(inner.start * self.ld + first),
                (self.l1.add(inner.start * self.rs + cols.start * self.cs), self.rs, self.cs),
                self.w.add(cols.start * self.ld + first),
                self.ld,
                self.scratch,
            );
        }
    }

    /// Base of the recursion: each column updates those to its right.
    fn base_right(&mut self, c: Range<usize>) {
        for j in c.clone() {
            self.pivot(j);
            self.divide(j);
            let first = self.first(j + 1);
            let x = self.column(j, first);
            for t in j + 1..c.end {
                // SAFETY: column t is not column j.
                let y = unsafe { self.column_mut(t, first) };
                vector::subtract_scaled(y, *self.top(j, t), x);
            }
        }
    }

    /// Base of the recursion: each column is updated by those to its left when its turn comes.
    fn base_left(&mut self, c: Range<usize>) {
        for j in c.clone() {
            // L1(c.start..j, j) := L^-1 L1(c.start..j, j).
            for t in c.start..j {
                let u = *self.top(t, j);
                for i in t + 1..j {
                    *self.top(i, j) -= *self.top(i, t) * u;
                }
            }
            self.update_column(c.start..j, j);
            self.pivot(j);
            self.divide(j);
        }
    }

    /// Base of the recursion: each column and each row of U is updated when its turn comes.
    fn base_crout(&mut self, c: Range<usize>) {
        for j in c.clone() {
            self.update_column(c.start..j, j);
            self.pivot(j);
            for t in j + 1..c.end {
                let sum: f64 = (c.start..j).map(|i| *self.top(j, i) * *self.top(i, t)).sum();
                *self.top(j, t) -= sum;
            }
            self.divide(j);
        }
    }

    /// W(active, j) -= W(active, left) L1(left, j).
    fn update_column(&mut self, left: Range<usize>, j: usize) {
        let first = self.first(j);
        // SAFETY: column j is not among `left`.
        let y = unsafe { self.column_mut(j, first) };
        let mut t = left.start;
        while t + 4 <= left.end {
            let u = [0, 1, 2, 3].map(|i| *self.top(t + i, j));
            let x = [0, 1, 2, 3].map(|i| self.column(t + i, first));
            vector::subtract_four(y, &u, &x);
            t += 4;
        }
        for t in t..left.end {
            vector::subtract_scaled(y, *self.top(t, j), self.column(t, first));
        }
    }

    /// Turns column j of the active rows into multipliers.
    fn divide(&mut self, j: usize) {
        // SAFETY: the only reference to the column.
        let x = unsafe { self.column_mut(j, self.first(j + 1)) };
        vector::divide(x, *self.top(j, j));
    }

    /// Finds the largest element of column j over all process rows, moves its row into row j of
    /// L1 everywhere, and what was row j to where it came from.
    fn pivot(&mut self, j: usize) {
        let before = self.clock.enter(Part::Pivot);
        let first = self.first(j);
        let (magnitude, at) = vector::max_abs(self.column(j, first));
        let at = first + at;
        if self.context.column.size() == 1 {
            let shape = &self.context.shape;
            // SAFETY: row j is in W, since this process row owns everything; so is `at`.
            unsafe {
                *self.pivots.add(j) = shape.row_map.global(self.first_row + at, shape.row) as f64;
                for t in 0..self.width {
                    let column = self.w.add(t * self.ld);
                    *self.top(j, t) = *column.add(at);
                    *column.add(at) = *column.add(j);
                }
            }
        } else {
            self.pivot_among_rows(j, magnitude, at);
        }
        self.clock.enter(before);
    }

    fn pivot_among_rows(&mut self, j: usize, magnitude: f64, at: usize) {
        let shape = self.context.shape;
        let width = self.width;
        let len = HEAD + 2 * width;
        self.mine.resize(len, 0.0);
        self.theirs.resize(len, 0.0);
        let active = self.first(j) < self.rows;
        // Nothing is below any candidate; NaN is below every number.
        self.mine[0] = match active {
            false => -2.0,
            true if magnitude.is_nan() => -1.0,
            true => magnitude,
        };
        let first_row = self.first_row;
        let global = |row: usize| shape.row_map.global(first_row + row, shape.row) as f64;
        self.mine[1] = if active { global(at) } else { f64::INFINITY };
        self.mine[2] = f64::from(u8::from(self.owner));
        // SAFETY: rows `at` and, for the owner, j are in W.
        unsafe {
            for t in 0..width {
                let column = self.w.add(t * self.ld);
                self.mine[HEAD + t] = if active { *column.add(at) } else { 0.0 };
                self.mine[HEAD + width + t] = if self.owner { *column.add(j) } else { 0.0 };
            }
        }
        self.agree();
        let winner = self.mine[1];
        // SAFETY: the winner's row is one of ours if its global row says so.
        unsafe {
            *self.pivots.add(j) = winner;
            for t in 0..width {
                *self.top(j, t) = self.mine[HEAD + t];
            }
            if active && winner == global(at) {
                for t in 0..width {
                    *self.w.add(t * self.ld + at) = self.mine[HEAD + width + t];
                }
            }
        }
    }

    /// Combines the pivot messages of a process column so that all have the same: the better
    /// candidate, by magnitude and then by lower row, and the current row from its owner.
    /// Recursive doubling; ranks beyond the largest power of two hand over and are told.
    fn agree(&mut self) {
        let comm = &self.context.column;
        let (me, size) = (comm.rank(), comm.size());
        let cube = 1 << size.ilog2();
        if me >= cube {
            comm.send(self.mine, me - cube, TAG);
            comm.recv(self.mine, me - cube, TAG);
            return;
        }
        if me + cube < size {
            comm.recv(self.theirs, me + cube, TAG);
            combine(self.mine, self.theirs, self.width);
        }
        let mut distance = 1;
        while distance < cube {
            let partner = me ^ distance;
            comm.exchange(
                Some((&self.mine[..], partner)),
                Some((&mut self.theirs[..], partner)),
                TAG,
            );
            combine(self.mine, self.theirs, self.width);
            distance *= 2;
        }
        if me + cube < size {
            comm.send(self.mine, me + cube, TAG);
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
    fn leading_dimensions_are_odd_in_cache_lines() {
        for align in [1, 4, 8, 16, 64] {
            for rows in 0..3000 {
                let ld = leading_dimension(rows, align);
                assert!(
                    ld >= rows && ld.is_multiple_of(8) && (ld / 8) % 2 == 1,
                    "{rows} {align} {ld}"
                );
            }
        }
    }

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
