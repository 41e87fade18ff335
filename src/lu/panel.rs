//! A factored panel as it travels along a process row.
//!
//! One message carries all of it: the pivots, L1 (the diagonal block, replicated in every process
//! row), and this process row's part of L below, already laid out for the engine. All ranks of a
//! process row have the same rows, so the layout one of them packs serves the others.

use std::io;
use std::sync::Arc;

use super::context::Context;
use super::need::Lengths;
use super::pivots::RowMoves;
use crate::base::threads::Pool;
use crate::comm::Broadcast;
use crate::kernels::{Engine, LowerBlock, TriangleBlock};
use crate::matrix::HugeBuffer;

/// Where the parts of a panel's message begin, in doubles.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub triangle: usize,
    pub lower: usize,
    pub len: usize,
}

impl Layout {
    /// The message of a panel of width `width` with `below` rows under its diagonal block.
    pub fn new(engine: Engine, align: usize, width: usize, below: usize) -> Self {
        let triangle = width.next_multiple_of(align);
        let lower =
            (triangle + width * TriangleBlock::leading_dimension(width)).next_multiple_of(align);
        Self { triangle, lower, len: lower + engine.lower_len(below, width) }
    }
}

/// A slot for one panel: its message, what each rank derives from it, and its broadcast.
pub struct Panel {
    /// Block column.
    pub k: usize,
    pub width: usize,
    /// Local rows below the diagonal block, and the first of them.
    pub below: usize,
    pub first_below: usize,
    pub layout: Layout,
    /// Before the message, whose buffer it uses: fields are dropped in order.
    pub broadcast: Option<Broadcast>,
    message: HugeBuffer,
    triangle: HugeBuffer,
    /// What the pivots ask for; there once the message has arrived.
    pub moves: Option<Arc<RowMoves>>,
}

impl Panel {
    /// A slot with room for any panel of the test.
    pub fn new(lengths: &Lengths, pool: &mut Pool) -> io::Result<Self> {
        Ok(Self {
            k: 0,
            width: 0,
            below: 0,
            first_below: 0,
            layout: Layout { triangle: 0, lower: 0, len: 0 },
            message: HugeBuffer::touched(lengths.message, pool)?,
            triangle: HugeBuffer::touched(lengths.triangle, pool)?,
            broadcast: None,
            moves: None,
        })
    }

    /// Bytes a slot takes.
    pub fn bytes(&self) -> u64 {
        self.message.bytes() + self.triangle.bytes()
    }

    /// Makes the slot block column `k`'s. Its last broadcast must have been finished.
    pub fn begin(&mut self, context: &Context, k: usize) {
        assert!(self.broadcast.is_none(), "a slot is reused only when its broadcast is over");
        self.k = k;
        self.width = context.width(k);
        self.first_below = context.shape.row_from_block(k + 1);
        self.below = context.shape.rows - self.first_below;
        self.layout = Layout::new(context.engine, context.params.align, self.width, self.below);
        self.moves = None;
    }

    pub fn message(&mut self) -> &mut [f64] {
        &mut self.message.as_mut_slice()[..self.layout.len]
    }

    /// The pivots: for each column the global row it exchanged with.
    pub fn pivots(&mut self) -> &mut [f64] {
        let width = self.width;
        &mut self.message()[..width]
    }

    /// L1 as it travels.
    pub fn triangle_pointer(&mut self) -> *mut f64 {
        let at = self.layout.triangle;
        self.message()[at..].as_mut_ptr()
    }

    pub fn lower_pointer(&mut self) -> *mut f64 {
        let at = self.layout.lower;
        self.message()[at..].as_mut_ptr()
    }

    /// Whether block column `k`'s message is here, though perhaps not yet passed on. Where it comes from elsewhere it has been
    /// begun.
    pub fn is_here(&self, k: usize) -> bool {
        self.k == k && self.broadcast.as_ref().is_none_or(Broadcast::arrived)
    }

    /// Derives what the update needs from a message that is here.
    pub fn open(&mut self, context: &Context) {
        if self.moves.is_some() {
            return;
        }
        let pivots: Vec<usize> = self.pivots().iter().map(|&row| row as usize).collect();
        self.moves = Some(Arc::new(RowMoves::compose(self.k * context.params.nb, &pivots)));
        // SAFETY: the slot has room for both forms of the triangle.
        unsafe { self.triangle(context).lay(context.engine) }
    }

    pub fn triangle(&self, context: &Context) -> TriangleBlock {
        TriangleBlock {
            k: self.width,
            form: context.params.l1,
            raw: self.message.as_slice()[self.layout.triangle..].as_ptr(),
            laid: self.triangle.as_ptr().cast_mut(),
        }
    }

    pub fn lower(&self, context: &Context) -> LowerBlock {
        LowerBlock {
            engine: context.engine,
            rows: self.below,
            k: self.width,
            data: self.message.as_slice()[self.layout.lower..].as_ptr(),
        }
    }
}
