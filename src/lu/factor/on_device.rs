//! Operations on a work array W in device memory.
//!
//! L1, pivots and messages between process rows are in the processor's memory. For each column, a device updates W and searches
//! the largest element; the processor waits for the result, and chooses the pivot.

use std::ops::Range;

use super::rows::FOUND_HEAD;
use crate::base::threads::Shareable;
use crate::device::{Device, Stream};
use crate::kernels::{Columns, Factors, Matrix, Size, Step, Strided, Strides, Update};

/// Length of the staging area for panels of `width` columns, in doubles. The staging area has the factors of an update, a row to
/// write to W, the result of a search, and the current row.
pub fn staging_len(width: usize) -> usize {
    FOUND_HEAD + 4 * width
}

/// Device that factors a panel, and the memory through which the processor works with the device.
#[derive(Clone, Copy)]
pub(super) struct OnDevice<'a> {
    pub(super) device: &'a dyn Device,
    /// L1 in device memory, in the layout of L1 in the processor's memory.
    pub(super) l1: *mut f64,
    /// Staging area: [`staging_len`] doubles of the processor's memory, pinned for the device.
    pub(super) staging: *mut f64,
}

impl OnDevice<'_> {
    /// Copies the panel's columns, stored by rows in device memory, to W.
    ///
    /// # Safety
    /// The columns are valid in all rows of W. No queued operation writes the columns.
    pub(super) unsafe fn copy_in(
        &self,
        from: Matrix<*const f64>,
        rows: usize,
        width: usize,
        w: Columns,
    ) {
        // SAFETY: ensured by the caller.
        unsafe {
            self.device.transpose(Stream::Panel, from, Matrix::new(w.w.get(), w.ld), rows, width)
        }
    }

    /// Does `step` in the rows `rows` of W, and waits for its result. Returns the address of the result: magnitude, row and
    /// elements of the pivot candidate, then the elements of row `current`.
    ///
    /// # Safety
    /// The rows are within W.
    pub(super) unsafe fn search(
        &self,
        w: Columns,
        step: Step,
        rows: Range<usize>,
        current: usize,
        factors: &[f64],
    ) -> *mut f64 {
        let found = self.staging.wrapping_add(2 * step.width);
        // SAFETY: the staging area has room for all of this, and no operation uses the area: the last search has ended, and so
        // have the operations queued before the search.
        unsafe {
            if rows.is_empty() {
                *found = -1.0;
                *found.add(1) = 0.0;
                return found;
            }
            std::ptr::copy_nonoverlapping(factors.as_ptr(), self.staging, factors.len());
            let own = std::slice::from_raw_parts_mut(self.staging, factors.len());
            let update = step.update.map(|update| Update { factors: Factors::new(own), ..update });
            self.device.step(Stream::Panel, w, Step { update, ..step }, rows, current, found);
        }
        self.device.finish(Stream::Panel);
        found
    }

    /// Queues `step`, which only does the work that the last pivot left, without an update and a search.
    ///
    /// # Safety
    /// The rows are within W.
    pub(super) unsafe fn complete(&self, w: Columns, step: Step, rows: Range<usize>) {
        if !rows.is_empty() {
            // SAFETY: ensured by the caller; without an update there is no result.
            unsafe { self.device.step(Stream::Panel, w, step, rows, 0, self.staging) }
        }
    }

    /// Copies `row` to the staging area, from which the next step writes the row to W. Returns the address of the copy.
    pub(super) fn keep(&self, row: &[f64]) -> Shareable<f64> {
        let kept = self.staging.wrapping_add(row.len());
        // SAFETY: the staging area has room for the row, and no operation uses the area: the last search has ended.
        unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), kept, row.len()) };
        Shareable::new(kept)
    }

    /// Copies B, the block of L1 at `b`, to device memory, and computes A -= L B. Here A and L are columns of W.
    ///
    /// `first` is the offset of the block in L1, in doubles.
    ///
    /// # Safety
    /// As for [`crate::kernels::Engine::multiply_in_panel`]. Until the next search has ended, the block is not changed.
    pub(super) unsafe fn multiply(
        &self,
        size: Size,
        l: *const f64,
        b: Strided,
        first: usize,
        a: Matrix<*mut f64>,
    ) {
        let (rows, cols, ld) = match b.strides {
            Strides { row: 1, col } => (size.n, size.k, col),
            Strides { row, .. } => (size.k, size.n, row),
        };
        let there = self.l1.wrapping_add(first);
        // SAFETY: ensured by the caller.
        unsafe {
            let from = Matrix::new(b.at, ld);
            self.device.copy_2d(Stream::Panel, from, Matrix::new(there, ld), rows, cols);
            let b = Strided { at: there, strides: b.strides };
            self.device.multiply_in_panel(Stream::Panel, size, l, b, a);
        }
    }
}
