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

use super::clock::{Clock, Part};
use super::context::Context;
use super::need::Lengths;
use super::panel::Panel;
use crate::blas::{Engine, TriangleBlock, ask_for, leading_dimension, vector};
use crate::faults::{Point, hit};
use crate::matrix::HugeBuffer;
use crate::params::{Fact, Form};
use crate::threads::{Crew, Pool, Shareable};
use std::io;
use std::ops::Range;

const TAG: i32 = 1;

/// The work array of the factorisation, reused from panel to panel.
pub struct Factor {
    work: HugeBuffer,
    /// One for each of the crew.
    scratch: Vec<Vec<f64>>,
    /// Messages of the pivot search: own and partner's.
    mine: Vec<f64>,
    theirs: Vec<f64>,
    /// What the crew finds in its parts of the rows.
    found: HugeBuffer,
}

/// Head of a pivot message: magnitude, global row, whether the current row follows.
const HEAD: usize = 3;

/// Head of what one of the crew finds: magnitude, row of W, and the row's elements follow.
const FOUND_HEAD: usize = 2;

/// Doubles from what one of the crew finds to what the next does, in a panel of `width` columns: no cache line has any of both.
pub fn found_len(width: usize) -> usize {
    (FOUND_HEAD + width).next_multiple_of(16)
}

/// Doubles of a pivot message of a panel of `width` columns: the head, the candidate's row, the current row.
pub fn candidate_len(width: usize) -> usize {
    HEAD + 2 * width
}

impl Factor {
    pub fn new(lengths: &Lengths, pool: &mut Pool) -> io::Result<Self> {
        Ok(Self {
            work: HugeBuffer::touched(lengths.panel, pool)?,
            scratch: (0..lengths.scratches).map(|_| Vec::with_capacity(lengths.scratch)).collect(),
            mine: Vec::with_capacity(lengths.candidate),
            theirs: Vec::with_capacity(lengths.candidate),
            found: HugeBuffer::touched(lengths.found, pool)?,
        })
    }

    /// Bytes of the arrays that grow with the problem.
    pub fn bytes(&self) -> u64 {
        let scratch: usize = self.scratch.iter().map(Vec::capacity).sum();
        let small = scratch + self.mine.capacity() + self.theirs.capacity();
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
            let from = Shareable::new(a.add(first_row * shape.ld + column));
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
                mine: &mut self.mine,
                theirs: &mut self.theirs,
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
                copy_out(l1, (rs, cs), width, to, shape.ld);
            }
        }
        clock.enter(before);
    }
}

/// Lays the rows of L(rows x width), column-major at `l`, from `first` on out as a lower block, each of the crew those it has.
///
/// # Safety
/// As for [`Engine::lay_lower`].
unsafe fn lay_lower(
    engine: Engine,
    (crew, cuts): (&mut Crew, Cuts),
    (first, width): (usize, usize),
    (l, ld): (Shareable<f64>, usize),
    out: *mut f64,
) {
    let rows = cuts.end - first;
    let Some(step) = engine.row_step() else {
        // SAFETY: passed on from the caller.
        return unsafe { engine.lay_lower(rows, width, (l.get().add(first), ld), out) };
    };
    let out = Shareable::new(out);
    // Counted from `first`, and by whole panels of the block.
    let start = |part: usize| match part {
        _ if part == cuts.parts => rows,
        _ => cuts.start(part).saturating_sub(first) / step * step,
    };
    crew.run(cuts.parts, move |part| {
        let (start, end) = (start(part), start(part + 1));
        // SAFETY: parts have rows of their own, and whole panels of the block.
        unsafe {
            let (from, to) = (l.get().add(first + start), out.get().add(start * width));
            engine.lay_lower(end - start, width, (from, ld), to);
        }
    });
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
    /// A row's piece is too short for the processor to see where the next one begins.
    const AHEAD: usize = UNIT;
    // SAFETY: passed on from the caller.
    unsafe {
        let mut i = 0;
        while i + UNIT <= rows {
            let from = a.add(i * lda);
            for j in 0..width {
                if j % UNIT == 0 {
                    for r in AHEAD..AHEAD + UNIT {
                        ask_for(from.wrapping_add(r * lda + j), 1);
                    }
                }
                let to = w.add(j * ldw + i);
                ask_for(to.wrapping_add(AHEAD), 1);
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

/// Copies L1, of `width` rows and columns, element (i, j) at `l1 + i * rs + j * cs`, to row-major A.
unsafe fn copy_out(
    l1: *const f64,
    (rs, cs): (usize, usize),
    width: usize,
    a: *mut f64,
    lda: usize,
) {
    /// So many rows at a time: their lines of A stay in the first cache, and one of L1 is all of a column's.
    const UNIT: usize = 8;
    // SAFETY: passed on from the caller.
    unsafe {
        for first in (0..width).step_by(UNIT) {
            let rows = first..(first + UNIT).min(width);
            for j in 0..width {
                for i in rows.clone() {
                    *a.add(i * lda + j) = *l1.add(i * rs + j * cs);
                }
            }
        }
    }
}

/// Where the rows of a panel are cut for the crew. Each thread keeps its rows while the panel is factored: cut anew as the first
/// ones leave, they would wander from cache to cache.
#[derive(Clone, Copy)]
struct Cuts {
    /// The row from which on all parts have as many.
    from: usize,
    end: usize,
    parts: usize,
}

impl Cuts {
    /// For so many threads and rows, of which the first `leaving` become rows of L1, one after the other.
    fn new(threads: usize, rows: usize, leaving: usize) -> Self {
        /// Fewer rows than this are not worth a mate's attention.
        const FEWEST: usize = 256;
        let parts = (rows / FEWEST).clamp(1, threads);
        // Only the first part loses rows, so it begins with more than the others have.
        let from = (leaving / (parts - 1).max(1)).min(rows);
        Self { from, end: rows, parts }
    }

    /// The first row of a part. Parts begin with a cache line.
    fn start(&self, part: usize) -> usize {
        match part {
            0 => 0,
            _ if part == self.parts => self.end,
            _ => {
                let row = self.from + (self.end - self.from) * part / self.parts;
                row - row % 8
            }
        }
    }

    /// Has the crew work on the rows from `first` on, each on its part; `work` handles so many elements of a row and is told the
    /// number of its part, too. Returns how many parts there are, of which the first may be without rows.
    fn share(
        &self,
        crew: &mut Crew,
        first: usize,
        elements: usize,
        work: impl Fn(usize, Range<usize>) + Sync + Copy,
    ) -> usize {
        /// Fewer elements take as long as calling a mate: 4,000 were best of 1,000 to 16,000 on a Zen 5 processor.
        const LEAST: usize = 4_000;
        let rows = self.end - first.min(self.end);
        let parts = (rows * elements / LEAST).clamp(1, self.parts);
        let cuts = *self;
        crew.run(parts, move |part| {
            let start = cuts.start(cuts.parts * part / parts).max(first);
            let end = cuts.start(cuts.parts * (part + 1) / parts).max(start);
            work(part, start..end);
        });
        parts
    }
}

/// The work array as the crew shares it.
#[derive(Clone, Copy)]
struct Columns {
    w: Shareable<f64>,
    ld: usize,
}

impl Columns {
    /// # Safety
    /// The rows are in the array and nobody writes to them.
    unsafe fn get<'a>(self, j: usize, rows: &Range<usize>) -> &'a [f64] {
        // SAFETY: passed on from the caller.
        unsafe {
            std::slice::from_raw_parts(self.w.get().add(j * self.ld + rows.start), rows.len())
        }
    }

    /// # Safety
    /// The rows are in the array and nobody else touches them.
    unsafe fn get_mut<'a>(self, j: usize, rows: &Range<usize>) -> &'a mut [f64] {
        // SAFETY: passed on from the caller.
        unsafe {
            std::slice::from_raw_parts_mut(self.w.get().add(j * self.ld + rows.start), rows.len())
        }
    }
}

/// What the crew has not done yet: whatever is next done to all active rows begins with it. So each thread is called once a
/// column, and puts a row where its caches have it.
#[derive(Clone, Copy, Default)]
struct Owed {
    /// A column to be divided by its pivot, and the pivot.
    column: Option<(usize, f64)>,
    /// A row whose place another takes, and the elements of that.
    row: Option<(usize, Shareable<f64>)>,
}

impl Owed {
    /// Does it to these rows of W, which has so many columns.
    ///
    /// # Safety
    /// The rows are in the array and nobody else touches them; nobody writes to the row that takes a place.
    unsafe fn pay(self, columns: Columns, width: usize, rows: &Range<usize>) {
        // SAFETY: as the caller vouches.
        unsafe {
            if let Some((place, row)) = self.row.filter(|(place, _)| rows.contains(place)) {
                for t in 0..width {
                    *columns.w.get().add(t * columns.ld + place) = *row.get().add(t);
                }
            }
            if let Some((j, pivot)) = self.column {
                vector::divide(columns.get_mut(j, rows), pivot);
            }
        }
    }
}

/// What each of the crew finds in its rows: the largest element of the next pivot's column, and the whole row it is in.
#[derive(Clone, Copy)]
struct Found {
    at: Shareable<f64>,
    width: usize,
}

impl Found {
    /// Where part `part` puts what it finds.
    fn of(self, part: usize) -> *mut f64 {
        // SAFETY: there is room for each of the crew.
        unsafe { self.at.get().add(part * found_len(self.width)) }
    }

    /// Looks through `rows` of column `j`, for part `part`.
    ///
    /// # Safety
    /// The rows are in the array and nobody writes to them, nor to the part's place.
    unsafe fn look(self, columns: Columns, j: usize, part: usize, rows: &Range<usize>) {
        // SAFETY: as the caller vouches.
        unsafe {
            let (magnitude, at) = vector::max_abs(columns.get(j, rows));
            let (at, to) = (rows.start + at, self.of(part));
            *to = magnitude;
            *to.add(1) = at as f64;
            if !rows.is_empty() {
                for t in 0..self.width {
                    *to.add(FOUND_HEAD + t) = *columns.w.get().add(t * columns.ld + at);
                }
            }
        }
    }

    /// What was found in so many parts, that with the largest magnitude: this, the row, and the row's elements, which mean
    /// nothing where no part has rows.
    ///
    /// # Safety
    /// The parts are through.
    unsafe fn largest<'a>(self, parts: usize) -> (f64, usize, &'a [f64]) {
        // SAFETY: as the caller vouches.
        unsafe {
            let best = self.of(largest((0..parts).map(|part| *self.of(part))));
            let row = std::slice::from_raw_parts(best.add(FOUND_HEAD), self.width);
            (*best, *best.add(1) as usize, row)
        }
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
    mine: &'a mut Vec<f64>,
    theirs: &'a mut Vec<f64>,
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
        let (shape, width) = (self.context.shape, self.width);
        self.mine.resize(candidate_len(width), 0.0);
        self.theirs.resize(candidate_len(width), 0.0);
        // SAFETY: the search is through.
        let (magnitude, at, row) = unsafe { self.found.largest(self.parts) };
        let present = HEAD + width;
        if self.owner {
            for (t, x) in self.mine[present..].iter_mut().enumerate() {
                // SAFETY: row j is in W.
                *x = unsafe { *self.w.add(t * self.ld + j) };
            }
        }
        let global = shape.row_map.global(self.first_row + at, shape.row) as f64;
        let active = self.first(j) < self.rows;
        let winner = if self.context.column.size() == 1 {
            (0..width).for_each(|t| *self.top(j, t) = row[t]);
            global
        } else {
            // Nothing is below any candidate; NaN is below every number.
            self.mine[0] = match active {
                false => -2.0,
                true if magnitude.is_nan() => -1.0,
                true => magnitude,
            };
            self.mine[1] = if active { global } else { f64::INFINITY };
            self.mine[2] = f64::from(u8::from(self.owner));
            if active {
                self.mine[HEAD..present].copy_from_slice(row);
            }
            self.agree();
            (0..width).for_each(|t| *self.top(j, t) = self.mine[HEAD + t]);
            self.mine[1]
        };
        // SAFETY: there is a pivot for each column.
        unsafe { *self.pivots.add(j) = winner };
        self.owed = Owed {
            column: Some((j, *self.top(j, j))),
            row: (active && winner == global)
                .then(|| (at, Shareable::new(self.mine[present..].as_mut_ptr()))),
        };
        self.clock.enter(before);
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

/// The part in which the largest magnitude was found, the first of several: -1 where there are no rows, and NaN, which counts
/// where there is nothing else.
fn largest(magnitudes: impl Iterator<Item = f64>) -> usize {
    let mut best = (-1.0, 0);
    for (part, magnitude) in magnitudes.enumerate() {
        if magnitude > best.0
            || (best.0.is_nan() && magnitude >= 0.0)
            || (best.0 == -1.0 && magnitude.is_nan())
        {
            best = (magnitude, part);
        }
    }
    best.1
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn the_first_largest_part_wins_and_nan_only_alone() {
        let largest = |found: &[f64]| largest(found.iter().copied());
        assert_eq!(largest(&[2.0, 3.0, 3.0]), 1);
        assert_eq!(largest(&[f64::NAN, 1.0, 0.5]), 1);
        assert_eq!(largest(&[f64::NAN, f64::NAN]), 0);
        assert_eq!(largest(&[-1.0, 0.0]), 1);
        assert_eq!(largest(&[f64::NAN, -1.0, 0.0]), 2);
        assert_eq!(largest(&[-1.0, f64::NAN, f64::NAN]), 1);
        assert_eq!(largest(&[-1.0, -1.0]), 0);
    }

    /// However the rows are cut and whatever is gone already, each is in one part.
    #[test]
    fn parts_cover_all_rows_once() {
        let mut pool = crate::threads::Pool::new(4);
        pool.together(|crew| {
            for (rows, leaving) in
                [(0, 0), (0, 64), (6, 0), (30, 64), (259, 0), (1024, 192), (1100, 700), (5000, 64)]
            {
                let cuts = Cuts::new(crew.size(), rows, leaving);
                for first in (0..=leaving.min(rows)).step_by(5) {
                    for elements in [0, 1, 30, 1000] {
                        let hits: Vec<AtomicUsize> =
                            (0..rows).map(|_| AtomicUsize::new(0)).collect();
                        let parts = cuts.share(crew, first, elements, |_, part| {
                            part.for_each(|row| {
                                hits[row].fetch_add(1, Ordering::Relaxed);
                            })
                        });
                        assert!(parts <= crew.size());
                        for (row, hits) in hits.iter().enumerate() {
                            assert_eq!(hits.load(Ordering::Relaxed), usize::from(row >= first));
                        }
                    }
                }
            }
        });
    }

    /// A thread's rows stay its own from the first column to the last.
    #[test]
    fn cuts_do_not_move_while_rows_leave() {
        let mut pool = crate::threads::Pool::new(4);
        pool.together(|crew| {
            let cuts = Cuts::new(crew.size(), 3000, 256);
            let keepers: Vec<AtomicUsize> =
                (0..3000).map(|_| AtomicUsize::new(usize::MAX)).collect();
            for first in 0..256 {
                cuts.share(crew, first, 1000, |part, rows| {
                    for row in rows {
                        let before = keepers[row].swap(part, Ordering::Relaxed);
                        assert!(
                            before == part || first == 0,
                            "row {row} goes from {before} to {part}"
                        );
                    }
                });
            }
            let of = |part| {
                keepers.iter().skip(256 / 3).filter(|k| k.load(Ordering::Relaxed) == part).count()
            };
            assert!(
                (0..4).all(|part| of(part).abs_diff((3000 - 256 / 3) / 4) <= 8),
                "as many when a third is gone"
            );
        });
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
