//! Local matrix in device memory. The checkpoints of such a run are in the processor's memory (method double).
//!
//! Part A of the position memory is empty. A save copies the changed part of the matrix from the device to one of two copies, and
//! parity is encoded from this copy. A restart copies the restored copy to the device.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::plan::{Buffers, Corner};
use crate::base::threads::Shareable;
use crate::device::{Buffer, Device, Pin, Stream};
use crate::kernels::Matrix;
use crate::shm::Region;

/// Local matrix in device memory, as saves and recovery use it. The solver owns the memory.
pub(super) struct OnDevice {
    device: Arc<dyn Device>,
    at: Shareable<f64>,
}

impl OnDevice {
    /// Allocates the matrix in device memory. Returns the matrix for saves, and the buffer for the solver.
    pub(super) fn allocate(
        device: &Arc<dyn Device>,
        buffers: &Buffers,
    ) -> io::Result<(Self, Buffer)> {
        let buffer = Buffer::new(device, buffers.data_words())?;
        Ok((Self { device: device.clone(), at: Shareable::new(buffer.address()) }, buffer))
    }

    /// Pins a copy of the matrix in the processor's memory, so that the device can transfer directly from and to the copy.
    pub(super) fn pin(&self, copy: &mut Region) -> io::Result<Pin> {
        let words = copy.words_mut();
        let memory = NonNull::from(&mut *words).cast();
        Pin::new(&self.device, memory, words.len())
    }

    /// Copies the matrix, from `corner` to its end, from the device to a pinned copy. Calls `half` midway.
    pub(super) fn copy_in(
        &self,
        buffers: &Buffers,
        corner: Corner,
        copy: &mut [u64],
        mut half: impl FnMut(),
    ) {
        let first = corner.row.min(buffers.rows);
        let middle = first + (buffers.rows - first) / 2;
        self.copy_rows_in(buffers, first..middle, corner.col, copy);
        half();
        self.copy_rows_in(buffers, middle..buffers.rows, corner.col, copy);
    }

    /// Copies these rows, from column `col` to their end, from the device to `copy`. First waits until all operations on the
    /// matrix have ended.
    fn copy_rows_in(&self, buffers: &Buffers, rows: Range<usize>, col: usize, copy: &mut [u64]) {
        let from = self.at.get().wrapping_add(rows.start * buffers.ld + col).cast_const();
        let to = copy[rows.start * buffers.ld..].as_mut_ptr().cast::<f64>().wrapping_add(col);
        let (from, to) = (Matrix::new(from, buffers.ld), Matrix::new(to, buffers.ld));
        self.device.finish(Stream::Update);
        self.device.finish(Stream::Rows);
        let cols = buffers.cols.saturating_sub(col);
        // SAFETY: rows of the matrix, and of the copy, which no other thread uses. The copy has ended on return.
        unsafe { self.device.copy_2d(Stream::Panel, from, to, rows.len(), cols) };
        self.device.finish(Stream::Panel);
    }

    /// Copies a pinned copy to the matrix on the device. Calls `half` before the transfer has ended.
    pub(super) fn copy_out(&self, buffers: &Buffers, copy: &[u64], half: impl FnOnce()) {
        let from = Matrix::new(copy.as_ptr().cast::<f64>(), buffers.ld);
        let to = Matrix::new(self.at.get(), buffers.ld);
        // SAFETY: both have these rows; the solver does not use the matrix, and the copy has ended below.
        unsafe { self.device.copy_2d(Stream::Panel, from, to, buffers.rows, buffers.cols) };
        half();
        self.device.finish(Stream::Panel);
    }
}
