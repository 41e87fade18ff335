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
//!
//! Whatever is done to all active rows is shared out to the crew by rows. No element depends on how:
//! each is computed by the same operations in the same order.
//!
//! A thread touches the rows of its own only, since a row of W lies in as many cache lines as the panel has columns. Whose row
//! may be the pivot's copies it to a message; the row that takes its place travels as a message, too, and who has that place
//! puts it there when it works on its rows the next time (`Owed`).

mod candidate;
mod copies;
mod rows;

pub use candidate::candidate_len;
pub use rows::found_len;

use candidate::Candidates;
use copies::{lay_lower, transpose_in};
use rows::{Columns, Cuts, Found, Owed};

use super::clock::{Clock, Part};
use super::context::Context;
use super::need::Lengths;
use super::panel::Panel;
use crate::base::faults::{Point, hit};
use crate::base::params::{Fact, Form};
use crate::base::threads::{Crew, Pool, Shareable};
use crate::kernels::{TriangleBlock, copy_by_rows, leading_dimension, vector};
use crate::matrix::HugeBuffer;
use std::io;
use std::ops::Range;

/// The work array of the factorisation, reused from panel to panel.
pub struct Factor {
    work: HugeBuffer,
    /// One for each of the crew.
    scratch: Vec<Vec<f64>>,
    candidates: Candidates,
    /// What the crew finds in its parts of the rows.
    found: HugeBuffer,
}

impl Factor {
    pub fn new(lengths: &Lengths, pool: &mut Pool) -> io::Result<Self> {
        Ok(Self {
            work: HugeBuffer::touched(lengths.panel, pool)?,
            scratch: (0..lengths.scratches).map(|_| Vec::with_capacity(lengths.scratch)).collect(),
            candidates: Candidates::new(lengths.candidate),
            found: HugeBuffer::touched(lengths.found, pool)?,
        })
    }

    /// Bytes of the arrays that grow with the problem.
    pub fn bytes(&self) -> u64 {
        let scratch: usize = self.scratch.iter().map(Vec::capacity).sum();
        let small = scratch + self.candidates.capacity();
        self.work.bytes() + self.found.bytes() + small as u64 * 8
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
        crew: &mut Crew,
        clock: &mut Clock,
    ) {
        let before = clock.enter(Part::Recursion);
        assert!(crew.size() <= self.scratch.len(), "each of the crew has a scratch of its own");
        let shape = &context.shape;
        let width = panel.width;
        let first_row = shape.row_from_block(panel.k);
        let rows = shape.rows - first_row;
        let owner = shape.row_map.owner(panel.k * shape.nb) == shape.row;
        let column = shape.col_from_block(panel.k);
        let ld = leading_dimension(rows, context.params.align);
        let l1 = panel.triangle_pointer();
        let l1_ld = TriangleBlock::leading_dimension(width);
        let (rs, cs) = TriangleBlock::strides(context.params.l1, l1_ld);
        // SAFETY: the panel's columns of the local rows from `first_row` on, and a work array
        // with room for them.
        unsafe {
            // Where no row is left, it points past the end, and nobody follows it.
            let from = Shareable::new(a.wrapping_add(first_row * shape.ld + column));
            let to = Shareable::new(self.work.as_mut_ptr());
            let cuts = Cuts::new(crew.size(), rows, if owner { width } else { 0 });
            cuts.share(crew, 0, width, move |_, part| {
                let (at, len) = (part.start, part.len());
                transpose_in(
                    from.get().add(at * shape.ld),
                    shape.ld,
                    (len, width),
                    to.get().add(at),
                    ld,
                );
            });
            self.candidates.begin(width);
            let mut run = Run {
                context,
                w: self.work.as_mut_ptr(),
                ld,
                rows,
                cuts,
                width,
                first_row,
                owner,
                l1,
                l1_ld,
                rs,
                cs,
                pivots: panel.pivots().as_mut_ptr(),
                clock,
                scratch: &mut self.scratch,
                candidates: &mut self.candidates,
                found: Found { at: Shareable::new(self.found.as_mut_ptr()), width },
                parts: 0,
                owed: Owed::default(),
                crew,
            };
            run.recurse(0..width);
            run.settle();
            let below = if owner { width } else { 0 };
            debug_assert_eq!(rows - below, panel.below);
            lay_lower(
                context.engine,
                (crew, cuts),
                (below, width),
                (to, ld),
                panel.lower_pointer(),
            );
            if owner {
                let to = a.add(first_row * shape.ld + column);
                copy_by_rows(l1, (rs, cs), (width, width), to, shape.ld);
            }
        }
        clock.enter(before);
    }
}

/// A few numbers, at hand where they are read.
#[derive(Clone, Copy)]
struct Factors {
    few: [f64; 8],
    len: usize,
    /// All of them, where they are more.
    many: Shareable<f64>,
}

impl Factors {
    /// `factors` stays as it is as long as this is used.
    fn new(factors: &mut [f64]) -> Self {
        let (mut few, len) = ([0.0; 8], factors.len());
        if let Some(room) = few.get_mut(..len) {
            room.copy_from_slice(factors);
        }
        Self { few, len, many: Shareable::new(factors.as_mut_ptr()) }
    }

    fn get(&self) -> &[f64] {
        // SAFETY: they are there, see above.
        let many = || unsafe { std::slice::from_raw_parts(self.many.get(), self.len) };
        self.few.get(..self.len).unwrap_or_else(many)
    }
}

/// One factorisation under way.
struct Run<'a, 'c> {
    context: &'a Context<'a>,
    w: *mut f64,
    ld: usize,
    rows: usize,
    cuts: Cuts,
    width: usize,
    /// Local row of the matrix that row 0 of W is.
    first_row: usize,
    /// Whether this process row owns the diagonal block.
    owner: bool,
    l1: *mut f64,
    l1_ld: usize,
    rs: usize,
    cs: usize,
    pivots: *mut f64,
    clock: &'a mut Clock,
    scratch: &'a mut [Vec<f64>],
    candidates: &'a mut Candidates,
    found: Found,
    /// In how many parts the last search was done.
    parts: usize,
    owed: Owed,
    crew: &'a mut Crew<'c>,
}

impl Run<'_, '_> {
    /// The first row of W that is active once `done` rows are in L1.
    fn first(&self, done: usize) -> usize {
        if self.owner { done } else { 0 }
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
            self.base(c);
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
            self.context.engine.solve_in_panel(
                (m, n),
                self.context.params.l1,
                l,
                b,
                self.l1_ld,
                &mut self.scratch[0],
            );
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
            let ld = self.l1_ld;
            let engine = self.context.engine;
            match self.context.params.l1 {
                Form::Transposed => engine.multiply_in_panel(
                    (rows.len(), cols.len(), inner.len()),
                    a,
                    (b, 1, ld),
                    c,
                    ld,
                    &mut self.scratch[0],
                ),
                // Row-major: the transposes of all three.
                Form::NotTransposed => engine.multiply_in_panel(
                    (cols.len(), rows.len(), inner.len()),
                    b,
                    (a, 1, ld),
                    c,
                    ld,
                    &mut self.scratch[0],
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
        let (engine, width, columns) = (self.context.engine, self.width, self.columns());
        let owed = std::mem::take(&mut self.owed);
        // SAFETY: within L1.
        let b = unsafe { self.l1.add(inner.start * self.rs + cols.start * self.cs) };
        let (b, rs, cs) = (Shareable::new(b), self.rs, self.cs);
        let scratch = Shareable::new(self.scratch.as_mut_ptr());
        let (from, to) = (inner.start, cols.start);
        let (inner, cols) = (inner.len(), cols.len());
        let multiply = move |part: usize, rows: Range<usize>| {
            let Columns { w, ld } = columns;
            // SAFETY: different columns of W, and L1 apart from it. Parts have rows and a scratch of their own.
            unsafe {
                owed.pay(columns, width, &rows);
                engine.multiply_in_panel(
                    (rows.len(), cols, inner),
                    w.get().add(from * ld + rows.start),
                    (b.get(), rs, cs),
                    w.get().add(to * ld + rows.start),
                    ld,
                    &mut *scratch.get().add(part),
                );
            }
        };
        if engine.cuts_freely() {
            self.cuts.share(self.crew, first, inner * cols / 4, multiply);
        } else {
            // A BLAS rounds by the shape of the call.
            multiply(0, first..self.rows);
        }
    }

    /// Has the crew do what it owes to the rows that are left when all columns are done.
    fn settle(&mut self) {
        let (owed, width, columns) = (std::mem::take(&mut self.owed), self.width, self.columns());
        self.cuts.share(self.crew, self.first(width), 2, move |_, rows| {
            // SAFETY: parts have rows of their own.
            unsafe { owed.pay(columns, width, &rows) }
        });
    }

    fn columns(&self) -> Columns {
        Columns { w: Shareable::new(self.w), ld: self.ld }
    }

    /// Base of the recursion: column by column.
    ///
    /// The crew is called once a column: it does what it owes, brings column j up to date (and, looking right, those after
    /// it), and finds its largest element on the way.
    fn base(&mut self, c: Range<usize>) {
        let pfact = self.context.params.pfact;
        for j in c.clone() {
            if pfact == Fact::Left {
                // L1(c.start..j, j) := L^-1 L1(c.start..j, j).
                for t in c.start..j {
                    let u = *self.top(t, j);
                    for i in t + 1..j {
                        *self.top(i, j) -= *self.top(i, t) * u;
                    }
                }
            }
            self.search(&c, j);
            self.pivot(j);
            if pfact == Fact::Crout {
                // Row j of U: L1(j, j+1..c.end) -= L1(j, c.start..j) L1(c.start..j, j+1..c.end).
                for t in j + 1..c.end {
                    let sum: f64 = (c.start..j).map(|i| *self.top(j, i) * *self.top(i, t)).sum();
                    *self.top(j, t) -= sum;
                }
            }
        }
    }

    /// Over the rows active when `j` rows are in L1: brings column j up to date with those of `c` before it, and finds its
    /// largest element in each part.
    fn search(&mut self, c: &Range<usize>, j: usize) {
        let pfact = self.context.params.pfact;
        let first = self.first(j).min(self.rows);
        let (columns, width, found) = (self.columns(), self.width, self.found);
        let owed = std::mem::take(&mut self.owed);
        // What the columns to the left are multiplied by in column j; looking right, what column j - 1 is
        // multiplied by in those from j on.
        let mut factors: Vec<f64> = match pfact {
            _ if j == c.start => Vec::new(),
            Fact::Left | Fact::Crout => (c.start..j).map(|t| *self.top(t, j)).collect(),
            Fact::Right => (j..c.end).map(|t| *self.top(j - 1, t)).collect(),
        };
        let factors = Factors::new(&mut factors);
        let start = c.start;
        let work = move |part: usize, rows: Range<usize>| {
            // SAFETY: parts have rows of their own, and a place of their own for what they find; columns written are
            // not among those read.
            unsafe {
                owed.pay(columns, width, &rows);
                let factors = factors.get();
                if pfact == Fact::Right {
                    for (t, factor) in factors.iter().enumerate() {
                        let y = columns.get_mut(j + t, &rows);
                        vector::subtract_scaled(y, *factor, columns.get(j - 1, &rows));
                    }
                } else {
                    let y = columns.get_mut(j, &rows);
                    let x = |t: usize| columns.get(start + t, &rows);
                    let (fours, rest) = factors.as_chunks::<4>();
                    for (at, four) in fours.iter().enumerate() {
                        vector::subtract_four(y, four, &[0, 1, 2, 3].map(|i| x(4 * at + i)));
                    }
                    for (i, factor) in rest.iter().enumerate() {
                        vector::subtract_scaled(y, *factor, x(4 * fours.len() + i));
                    }
                }
                found.look(columns, j, part, &rows);
            }
        };
        self.parts = self.cuts.share(self.crew, first, factors.len + 2, work);
    }

    /// Settles for the largest element of column j over all process rows: its row becomes row j of L1 everywhere, and what was
    /// row j is to take its place.
    fn pivot(&mut self, j: usize) {
        if j == self.width / 2 {
            hit(Point::PanelHalf, self.context.place);
        }
        let before = self.clock.enter(Part::Pivot);
        let shape = self.context.shape;
        // SAFETY: the search is through.
        let (magnitude, at, row) = unsafe { self.found.largest(self.parts) };
        if self.owner {
            for (t, x) in self.candidates.present().iter_mut().enumerate() {
                // SAFETY: row j is in W.
                *x = unsafe { *self.w.add(t * self.ld + j) };
            }
        }
        let global = shape.row_map.global(self.first_row + at, shape.row) as f64;
        let active = self.first(j) < self.rows;
        let column = &self.context.column;
        let (winner, row) = match column.size() {
            1 => (global, row),
            _ => {
                let candidate = active.then_some((magnitude, global, row));
                self.candidates.agree(column, candidate, self.owner)
            }
        };
        let (top, rs, cs) = (self.l1, self.rs, self.cs);
        for (t, x) in row.iter().enumerate() {
            // SAFETY: L1(j, t).
            unsafe { *top.add(j * rs + t * cs) = *x };
        }
        // SAFETY: there is a pivot for each column.
        unsafe { *self.pivots.add(j) = winner };
        self.owed = Owed {
            column: Some((j, *self.top(j, j))),
            row: (active && winner == global)
                .then(|| (at, Shareable::new(self.candidates.present().as_mut_ptr()))),
        };
        self.clock.enter(before);
    }
}
