//! A factored panel in the form in which it is broadcast along a process row.
//!
//! One message contains the whole panel: the pivots, L1, and this process row's part of L below L1, already packed for the
//! engine. L1 is the diagonal block; every process row has a copy of it. All ranks of a process row have the same rows, so the
//! layout that the sender has packed is right for every receiver.

use std::io;
use std::sync::Arc;

use super::context::Context;
use super::lengths::Lengths;
use super::pivots::RowMoves;
use crate::base::threads::Pool;
use crate::comm::Broadcast;
use crate::device::{Buffer, Device, Event, Pinned, Stream};
use crate::kernels::{Columns, Engine, LowerBlock, Matrix, TriangleBlock};
use crate::matrix::HugeBuffer;

/// Offsets of the parts of a panel's message, and the length of the message (`len`), in doubles. The pivots are at offset 0.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Offset of L1.
    pub triangle: usize,
    /// Offset of this process row's part of L below L1.
    pub lower: usize,
    pub len: usize,
}

impl Layout {
    /// Returns the layout for a panel of width `width` with `below` local rows below its diagonal block.
    pub fn new(engine: Engine, align: usize, width: usize, below: usize) -> Self {
        let triangle = width.next_multiple_of(align);
        let lower =
            (triangle + width * TriangleBlock::leading_dimension(width)).next_multiple_of(align);
        Self { triangle, lower, len: lower + engine.lower_len(below, width) }
    }
}

/// A slot for one panel: its message, the data that each rank derives from the message, and the broadcast.
pub struct Panel {
    /// Number of the panel's block column.
    pub k: usize,
    pub width: usize,
    /// Number of local rows below the diagonal block.
    pub below: usize,
    /// First local row below the diagonal block.
    pub first_below: usize,
    pub layout: Layout,
    /// Broadcast in progress, or `None`. Declared before the message, whose buffer the broadcast uses, because fields are dropped
    /// in order.
    pub broadcast: Option<Broadcast>,
    /// Copy of the message in device memory; `None` without a device. Declared before `message`, because fields are dropped in
    /// order.
    copy: Option<Buffer>,
    /// Event at the end of the upload from `message` to `copy`; `None` if no upload was begun.
    upload: Option<Event>,
    /// True if L is already in device memory, because the device has factored the panel.
    lower_is_there: bool,
    message: Pinned,
    triangle: HugeBuffer,
    /// Row moves of the panel's pivots, or `None` until the panel is opened.
    pub moves: Option<Arc<RowMoves>>,
}

impl Panel {
    /// Allocates a slot that fits any panel of the test.
    pub fn new(
        lengths: &Lengths,
        device: Option<&Arc<dyn Device>>,
        pool: &mut Pool,
    ) -> io::Result<Self> {
        Ok(Self {
            k: 0,
            width: 0,
            below: 0,
            first_below: 0,
            layout: Layout { triangle: 0, lower: 0, len: 0 },
            message: Pinned::touched(device, lengths.message, pool)?,
            triangle: HugeBuffer::touched(lengths.triangle, pool)?,
            broadcast: None,
            copy: device.map(|device| Buffer::new(device, lengths.message)).transpose()?,
            upload: None,
            lower_is_there: false,
            moves: None,
        })
    }

    /// Bytes of the slot's buffers.
    pub fn bytes(&self) -> u64 {
        let copy = self.copy.as_ref().map_or(0, Buffer::bytes);
        self.message.bytes() + self.triangle.bytes() + copy
    }

    /// Assigns the slot to block column `k`. The previous broadcast of the slot must have ended.
    pub fn begin(&mut self, context: &Context, k: usize) {
        assert!(self.broadcast.is_none(), "the previous broadcast of the slot has ended");
        if let Some((device, upload)) = context.device.as_ref().zip(self.upload.take()) {
            device.synchronize(upload);
        }
        self.k = k;
        self.width = context.width(k);
        self.first_below = context.shape.row_from_block(k + 1);
        self.below = context.shape.rows - self.first_below;
        self.layout = Layout::new(context.engine, context.params.align, self.width, self.below);
        self.moves = None;
        self.lower_is_there = false;
    }

    pub fn message(&mut self) -> &mut [f64] {
        &mut self.message.as_mut_slice()[..self.layout.len]
    }

    /// Returns the pivots: for column i of the panel, the global row that was exchanged with row i of the block.
    pub fn pivots(&mut self) -> &mut [f64] {
        let width = self.width;
        &mut self.message()[..width]
    }

    /// Returns the address of L1 in the message.
    pub fn triangle_pointer(&mut self) -> *mut f64 {
        let at = self.layout.triangle;
        self.message()[at..].as_mut_ptr()
    }

    pub fn lower_pointer(&mut self) -> *mut f64 {
        let at = self.layout.lower;
        self.message()[at..].as_mut_ptr()
    }

    /// Returns whether the message of panel `k` has arrived on this rank, even if the message is not yet forwarded. If another
    /// process column sends the message, the broadcast must have been started.
    pub fn is_here(&self, k: usize) -> bool {
        self.k == k && self.broadcast.as_ref().is_none_or(Broadcast::arrived)
    }

    /// Derives the data that the update needs from the message, which has arrived.
    pub fn open(&mut self, context: &Context) {
        if self.moves.is_some() {
            return;
        }
        let pivots: Vec<usize> = self.pivots().iter().map(|&row| row as usize).collect();
        self.moves = Some(Arc::new(RowMoves::compose(self.k * context.params.nb, &pivots)));
        match &context.device {
            Some(device) => self.begin_upload(device.as_ref()),
            // SAFETY: the slot has space for both layouts of the triangle.
            None => unsafe { self.triangle(context).lay(context.engine) },
        }
    }

    /// Copies L, within device memory, from W to the panel. L is in the rows of W from `first` on, where the device has computed
    /// it. If other process columns need L, also copies L to the message.
    ///
    /// # Safety
    /// W has this rank's rows of the panel.
    pub unsafe fn take_lower(
        &mut self,
        context: &Context,
        device: &dyn Device,
        Columns { w, ld }: Columns,
        first: usize,
    ) {
        let (rows, width) = (self.below, self.width);
        let from = Matrix::new(w.get().wrapping_add(first).cast_const(), ld);
        let there = self.data().cast_mut().wrapping_add(self.layout.lower);
        let here = self.lower_pointer();
        // SAFETY: ensured by the caller. The message has room for L in both memories, and is not in use.
        unsafe {
            device.transpose(Stream::Panel, from, Matrix::new(there, width), width, rows);
            if context.params.q > 1 {
                let (from, to) = (Matrix::new(there.cast_const(), width), Matrix::new(here, width));
                device.copy_2d(Stream::Panel, from, to, rows, width);
                device.finish(Stream::Panel);
            }
        }
        self.lower_is_there = true;
    }

    /// Begins to copy L1 to device memory. Also copies L, unless the device has computed L.
    fn begin_upload(&mut self, device: &dyn Device) {
        let at = self.layout.triangle;
        let end = if self.lower_is_there { self.layout.lower } else { self.layout.len };
        let len = end - at;
        let from = Matrix::new(self.message.as_slice()[at..].as_ptr(), len);
        let to = Matrix::new(self.data().cast_mut().wrapping_add(at), len);
        // SAFETY: both buffers have the layout's length. Before the upload has ended, the message is not written, and neither
        // buffer is freed.
        unsafe { device.copy_2d(Stream::Panel, from, to, 1, len) };
        self.upload = Some(device.record(Stream::Panel));
    }

    /// Makes all later operations of `stream` wait until the panel is in device memory.
    pub fn await_upload(&self, device: &dyn Device, stream: Stream) {
        device.wait(stream, self.upload.expect("the panel was opened before"));
    }

    /// Returns the address of the message that the multiplication uses: in device memory, if there is a device.
    fn data(&self) -> *const f64 {
        self.copy.as_ref().map_or(self.message.as_ptr(), |copy| copy.address().cast_const())
    }

    pub fn triangle(&self, context: &Context) -> TriangleBlock {
        TriangleBlock {
            k: self.width,
            form: context.params.l1,
            raw: self.data().wrapping_add(self.layout.triangle),
            laid: self.triangle.as_ptr().cast_mut(),
        }
    }

    pub fn lower(&self, context: &Context) -> LowerBlock {
        LowerBlock {
            engine: context.engine,
            rows: self.below,
            k: self.width,
            data: self.data().wrapping_add(self.layout.lower),
        }
    }
}
