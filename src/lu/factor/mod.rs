//! Factors one panel recursively. All ranks of a process column share the work.
//!
//! Each rank copies its rows of the panel from the row-major matrix into a column-major work array W. L1, the `width x width`
//! block on the diagonal, is stored in an array of its own, on all ranks. With each pivot, the pivot row moves into L1 on all
//! ranks, so the triangular solves of the recursion need no messages. A row of W that moved into L1 is no longer active. In the
//! process row that owns the diagonal block, the inactive rows are always the first rows of W.
//!
//! Invariant of the recursion on columns c..e. On entry, W(active, c..e) is updated with all columns before c. On exit, W(active,
//! c..e) contains multipliers, and rows c..e of L1 are final in the columns before e. Columns from e on are not yet updated with
//! columns c..e.
//!
//! The panel threads divide operations on the active rows by rows. The division does not affect results: each element is computed
//! by the same operations in the same order.
//!
//! A thread touches only its own rows, because each element of a row of W lies in another cache line. The thread that owns a
//! candidate row copies this row to a message. The current row, which is exchanged with the pivot row, is also sent in a message.
//! The thread that owns the pivot row's place in W writes the current row there at the start of its next work (`Owed`).

mod candidate;
mod copies;
mod on_device;
mod rows;

pub use candidate::candidate_len;
pub use on_device::staging_len;
pub use rows::found_len;

use candidate::Candidates;
use copies::{lay_lower, transpose_in};
use on_device::OnDevice;
use rows::{Cuts, Found};

use super::clock::{Clock, Part};
use super::context::Context;
use super::lengths::Lengths;
use super::panel::Panel;
use crate::base::faults::{Point, hit};
use crate::base::params::{Fact, Form};
use crate::base::threads::{PanelThreads, Pool, Shareable};
use crate::device::{Buffer, Device, Pinned, Stream};
use crate::kernels::{
    Columns, Factors, Matrix, Owed, Size, Step, Strided, Strides, TriangleBlock, Update,
    copy_by_rows, leading_dimension,
};
use crate::matrix::HugeBuffer;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Work arrays of the panel factorisation, reused for every panel.
pub struct Factor {
    work: Pinned,
    /// Work array in device memory; `None` without a device.
    there: Option<Buffer>,
    /// Array through which the processor exchanges rows and factors with the device; empty without a device.
    staging: Pinned,
    /// Packing buffers, one per panel thread.
    scratch: Vec<Vec<f64>>,
    candidates: Candidates,
    /// Results of the panel threads' searches for a pivot.
    found: HugeBuffer,
}

impl Factor {
    pub fn new(
        lengths: &Lengths,
        device: Option<&Arc<dyn Device>>,
        pool: &mut Pool,
    ) -> io::Result<Self> {
        Ok(Self {
            work: Pinned::touched(device, lengths.panel, pool)?,
            there: device.map(|device| Buffer::new(device, lengths.there)).transpose()?,
            staging: Pinned::touched(device, lengths.staging, pool)?,
            scratch: (0..lengths.scratches).map(|_| Vec::with_capacity(lengths.scratch)).collect(),
            candidates: Candidates::new(lengths.candidate),
            found: HugeBuffer::touched(lengths.found, pool)?,
        })
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        let scratch: usize = self.scratch.iter().map(Vec::capacity).sum();
        let small = scratch + self.candidates.capacity();
        let there = self.there.as_ref().map_or(0, Buffer::bytes);
        self.work.bytes() + there + self.staging.bytes() + self.found.bytes() + small as u64 * 8
    }

    /// Factors block column `panel.k`, of which this rank owns a part, and fills the panel's message.
    ///
    /// `a` is the local matrix. The process row that owns the diagonal block writes the factored block back to A, because back
    /// substitution needs its upper triangle. The multipliers below the block are not written back, because nothing reads them
    /// from A.
    ///
    /// # Safety
    /// `a` is the whole local matrix. Until this returns, no other thread and no queued operation touches the panel's columns.
    pub unsafe fn run(
        &mut self,
        context: &Context,
        panel: &mut Panel,
        a: *mut f64,
        panel_threads: &mut PanelThreads,
        clock: &mut Clock,
    ) {
        let before = clock.enter(Part::Recursion);
        assert!(
            panel_threads.size() <= self.scratch.len(),
            "each panel thread has a packing buffer"
        );
        let shape = &context.shape;
        let (width, first_row) = (panel.width, shape.row_from_block(panel.k));
        let rows = shape.rows - first_row;
        let owner = shape.row_map.owner(panel.k * shape.nb) == shape.row;
        let l1 = panel.triangle_pointer();
        let l1_ld = TriangleBlock::leading_dimension(width);
        let strides = TriangleBlock::strides(context.params.l1, l1_ld);
        let below = if owner { width } else { 0 };
        self.candidates.begin(width);
        // SAFETY: `block` is the panel's columns in the local rows from `first_row` on, and the work array is large enough for
        // these columns.
        unsafe {
            // If no local row is left, the pointer is past the end and is not dereferenced.
            let block = a.wrapping_add(first_row * shape.ld + shape.col_from_block(panel.k));
            let (block, device) = (Matrix::new(block, shape.ld), context.device.as_deref());
            let columns = Matrix::new(block.at.cast_const(), block.ld);
            let on_device = device.map(|device| OnDevice {
                device,
                l1: panel.triangle(context).raw.cast_mut(),
                staging: self.staging.as_mut_ptr(),
            });
            let there = self.there.as_ref().map(Buffer::address);
            let cuts = Cuts::new(panel_threads.size(), rows, below);
            let mut run = Run {
                context,
                w: there.unwrap_or(self.work.as_mut_ptr()),
                on_device,
                ld: leading_dimension(rows, context.params.align),
                rows,
                cuts,
                width,
                first_row,
                owner,
                l1,
                l1_ld,
                strides,
                pivots: panel.pivots().as_mut_ptr(),
                clock,
                scratch: &mut self.scratch,
                candidates: &mut self.candidates,
                found: Found { at: Shareable::new(self.found.as_mut_ptr()), width },
                parts: 0,
                owed: Owed::default(),
                panel_threads,
            };
            run.copy_in(columns);
            run.recurse(0..width);
            run.settle();
            debug_assert_eq!(rows - below, panel.below);
            let columns = run.columns();
            match device {
                Some(device) => panel.take_lower(context, device, columns, below),
                None => {
                    let out = panel.lower_pointer();
                    lay_lower(context.engine, panel_threads, cuts, columns, below, width, out);
                }
            }
            if owner {
                put_back(device, Strided { at: l1, strides }, width, block, self.room());
            }
        }
        clock.enter(before);
    }

    /// Returns the work array, which has room for the columns of a panel. The work array is unused between panels.
    pub fn room(&mut self) -> &mut [f64] {
        self.work.as_mut_slice()
    }
}

/// Copies L1, of order `width`, to `block` in A. If `block` is in device memory, L1 is first copied to `room`.
///
/// # Safety
/// L1 and the block are valid. No queued operation uses the block.
unsafe fn put_back(
    device: Option<&dyn Device>,
    l1: Strided,
    width: usize,
    block: Matrix<*mut f64>,
    room: &mut [f64],
) {
    let to = device.map_or(block, |_| Matrix::new(room.as_mut_ptr(), width));
    // SAFETY: ensured by the caller. The room is large enough for the panel's rows, and the copy from the room has ended on
    // return.
    unsafe {
        copy_by_rows(l1.at, l1.strides, width, width, to);
        if let Some(device) = device {
            let from = Matrix::new(to.at.cast_const(), width);
            device.copy_2d(Stream::Panel, from, block, width, width);
            device.finish(Stream::Panel);
        }
    }
}

/// State of the factorisation of one panel on this rank.
struct Run<'a, 'c> {
    context: &'a Context<'a>,
    /// Work array W, in device memory if `on_device` is `Some`.
    w: *mut f64,
    on_device: Option<OnDevice<'a>>,
    ld: usize,
    /// Number of rows of W.
    rows: usize,
    cuts: Cuts,
    width: usize,
    /// Local row of the matrix that corresponds to row 0 of W.
    first_row: usize,
    /// True if this process row owns the diagonal block.
    owner: bool,
    l1: *mut f64,
    l1_ld: usize,
    /// Strides of L1.
    strides: Strides,
    pivots: *mut f64,
    clock: &'a mut Clock,
    scratch: &'a mut [Vec<f64>],
    candidates: &'a mut Candidates,
    found: Found,
    /// Number of parts into which the last search for a pivot was divided.
    parts: usize,
    owed: Owed,
    panel_threads: &'a mut PanelThreads<'c>,
}

impl Run<'_, '_> {
    /// Copies the panel's columns, stored by rows, to W.
    ///
    /// # Safety
    /// The columns are valid in all rows of W.
    unsafe fn copy_in(&mut self, Matrix { at, ld: lda }: Matrix<*const f64>) {
        let (block, columns, width) = (Shareable::new(at.cast_mut()), self.columns(), self.width);
        if let Some(on_device) = self.on_device {
            // SAFETY: ensured by the caller.
            return unsafe { on_device.copy_in(Matrix::new(at, lda), self.rows, width, columns) };
        }
        self.cuts.share(self.panel_threads, 0, width, move |_, rows| {
            // SAFETY: each part has its own rows.
            unsafe {
                let (from, to) =
                    (block.get().add(rows.start * lda), columns.w.get().add(rows.start));
                transpose_in(from, lda, rows.len(), width, to, columns.ld);
            }
        });
    }

    /// Returns the first active row of W once `done` pivot rows are in L1.
    fn first(&self, done: usize) -> usize {
        if self.owner { done } else { 0 }
    }

    /// Returns L1(i, j).
    #[allow(clippy::mut_from_ref)] // each value is used at once
    fn top(&self, i: usize, j: usize) -> &mut f64 {
        debug_assert!(i < self.width && j < self.width);
        // SAFETY: the element is within L1. Elements are read or written one at a time.
        unsafe { &mut *self.l1.add(self.strides.to(i, j)) }
    }

    /// Factors columns `c` of the panel recursively. All earlier columns are already applied to these columns.
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

    /// Computes L1(rows, cols) := L1(rows, rows)^-1 L1(rows, cols), where L1(rows, rows) is unit lower triangular.
    fn solve_top(&mut self, rows: Range<usize>, cols: Range<usize>) {
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        let (m, n) = (rows.len(), cols.len());
        // SAFETY: both blocks are within L1. The triangle and the right-hand sides are in different columns.
        unsafe {
            let l = self.l1.add(self.strides.to(rows.start, rows.start));
            let b = self.l1.add(self.strides.to(rows.start, cols.start));
            let (form, b) = (self.context.params.l1, Matrix::new(b, self.l1_ld));
            self.context.engine.solve_in_panel(m, n, form, l, b, &mut self.scratch[0]);
        }
    }

    /// Computes L1(rows, cols) -= L1(rows, inner) L1(inner, cols).
    fn update_top(&mut self, rows: Range<usize>, inner: Range<usize>, cols: Range<usize>) {
        if rows.is_empty() || inner.is_empty() || cols.is_empty() {
            return;
        }
        // SAFETY: the three blocks are within L1 and disjoint.
        unsafe {
            let at = |i: usize, j: usize| self.l1.add(self.strides.to(i, j));
            let a = at(rows.start, inner.start);
            let b = at(inner.start, cols.start);
            let c = at(rows.start, cols.start);
            let (rows, cols, inner) = (rows.len(), cols.len(), inner.len());
            let (c, ld) = (Matrix::new(c, self.l1_ld), self.l1_ld);
            let (size, left, right) = match self.context.params.l1 {
                Form::Transposed => (Size::new(rows, cols, inner), a, b),
                // L1 is row-major, so the call multiplies the transposes of all three blocks.
                Form::NotTransposed => (Size::new(cols, rows, inner), b, a),
            };
            let (engine, right) = (self.context.engine, Strided::new(right, 1, ld));
            engine.multiply_in_panel(size, left, right, c, &mut self.scratch[0]);
        }
    }

    /// Computes W(active, cols) -= W(active, inner) L1(inner, cols), where `done` pivot rows are in L1 and the remaining rows are
    /// active.
    fn update(&mut self, inner: Range<usize>, cols: Range<usize>, done: usize) {
        let first = self.first(done);
        if inner.is_empty() || cols.is_empty() || first >= self.rows {
            return;
        }
        let (engine, columns, step) = (self.context.engine, self.columns(), self.completion());
        let (place, strides) = (self.strides.to(inner.start, cols.start), self.strides);
        // SAFETY: the element is within L1.
        let b = Shareable::new(unsafe { self.l1.add(place) });
        if let Some(on_device) = self.on_device {
            let Columns { w, ld } = columns;
            let size = Size::new(self.rows - first, cols.len(), inner.len());
            // SAFETY: the columns of W that are read and written differ. The block of L1 is changed only after the next search.
            return unsafe {
                on_device.complete(columns, step, first..self.rows);
                let l = w.get().wrapping_add(inner.start * ld + first);
                let a = Matrix::new(w.get().wrapping_add(cols.start * ld + first), ld);
                on_device.multiply(size, l, Strided { at: b.get(), strides }, place, a)
            };
        }
        let scratch = Shareable::new(self.scratch.as_mut_ptr());
        let (from, to) = (inner.start, cols.start);
        let (inner, cols) = (inner.len(), cols.len());
        let multiply = move |part: usize, rows: Range<usize>| {
            let Columns { w, ld } = columns;
            // SAFETY: the columns of W that are read and written differ, and L1 is not part of W. Each part has its own rows and
            // its own packing buffer.
            unsafe {
                step.pay(columns, &rows);
                engine.multiply_in_panel(
                    Size::new(rows.len(), cols, inner),
                    w.get().add(from * ld + rows.start),
                    Strided { at: b.get(), strides },
                    Matrix::new(w.get().add(to * ld + rows.start), ld),
                    &mut *scratch.get().add(part),
                );
            }
        };
        if engine.cuts_freely() {
            self.cuts.share(self.panel_threads, first, inner * cols / 4, multiply);
        } else {
            // The rounding of a BLAS depends on the shape of the call, so the rows are not divided.
            multiply(0, first..self.rows);
        }
    }

    /// Does the work in W that is still queued after the last column: a row move and the division of a column by its pivot.
    fn settle(&mut self) {
        let (step, first, columns) = (self.completion(), self.first(self.width), self.columns());
        if let Some(on_device) = self.on_device {
            // SAFETY: the active rows.
            return unsafe { on_device.complete(columns, step, first.min(self.rows)..self.rows) };
        }
        self.cuts.share(self.panel_threads, first, 2, move |_, rows| {
            // SAFETY: each part has its own rows.
            unsafe { step.pay(columns, &rows) }
        });
    }

    /// Returns a step that does only the queued work, and empties the queue.
    fn completion(&mut self) -> Step {
        Step { width: self.width, owed: std::mem::take(&mut self.owed), update: None }
    }

    fn columns(&self) -> Columns {
        Columns { w: Shareable::new(self.w), ld: self.ld }
    }

    /// Factors the columns `c`, the base of the recursion, one by one.
    ///
    /// The panel threads are called once per column. In one pass, the threads complete the queued work, update column j, and
    /// search for its largest element. With `Fact::Right`, the threads also update the columns after j.
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

    /// Updates column `j` with the columns of `c` before `j`. Finds the largest element of column `j` in each part of the rows.
    /// Covers the rows that are active when `j` pivot rows are in L1.
    fn search(&mut self, c: &Range<usize>, j: usize) {
        let pfact = self.context.params.pfact;
        let first = self.first(j).min(self.rows);
        let (columns, found) = (self.columns(), self.found);
        // Factors of the columns left of j in the update of column j. With `Fact::Right`: factors of column j - 1 in the updates
        // of the columns from j on.
        let mut factors: Vec<f64> = match pfact {
            _ if j == c.start => Vec::new(),
            Fact::Left | Fact::Crout => (c.start..j).map(|t| *self.top(t, j)).collect(),
            Fact::Right => (j..c.end).map(|t| *self.top(j - 1, t)).collect(),
        };
        let list = Factors::new(&mut factors);
        let right = pfact == Fact::Right;
        let update = Update { j, start: c.start, right, factors: list };
        let step = Step { update: Some(update), ..self.completion() };
        if let Some(on_device) = self.on_device {
            // SAFETY: the active rows.
            let at = unsafe { on_device.search(columns, step, first..self.rows, j, &factors) };
            (self.found.at, self.parts) = (Shareable::new(at), 1);
            return;
        }
        self.parts = self.cuts.share(self.panel_threads, first, list.len + 2, move |part, rows| {
            // SAFETY: each part has its own rows, and its own space for its result.
            unsafe { found.put(columns, part, step.run(columns, rows)) }
        });
    }

    /// Chooses the largest element of column j over all process rows as the pivot. The pivot row becomes row j of L1 on all
    /// ranks. The old row j is queued to take the place of the pivot row.
    fn pivot(&mut self, j: usize) {
        if j == self.width / 2 {
            hit(Point::PanelHalf, self.context.place);
        }
        let before = self.clock.enter(Part::Pivot);
        let shape = self.context.shape;
        // SAFETY: the search is complete.
        let (magnitude, at, row) = unsafe { self.found.largest(self.parts) };
        if self.owner {
            let (from, distance) = match self.on_device {
                Some(_) => (row.as_ptr().wrapping_add(self.width), 1),
                None => (self.w.wrapping_add(j).cast_const(), self.ld),
            };
            for (t, x) in self.candidates.present().iter_mut().enumerate() {
                // SAFETY: row j is within W. A device has put this row behind the row of the pivot.
                *x = unsafe { *from.add(t * distance) };
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
        let (top, strides) = (self.l1, self.strides);
        for (t, x) in row.iter().enumerate() {
            // SAFETY: element (j, t) is within L1.
            unsafe { *top.add(strides.to(j, t)) = *x };
        }
        // SAFETY: the array of pivots has an element for each column.
        unsafe { *self.pivots.add(j) = winner };
        self.owed = Owed {
            column: Some((j, *self.top(j, j))),
            row: (active && winner == global).then(|| {
                let row = self.candidates.present();
                let kept = self.on_device.map(|on_device| on_device.keep(row));
                (at, kept.unwrap_or(Shareable::new(row.as_mut_ptr())))
            }),
        };
        self.clock.enter(before);
    }
}
