//! The operations of a rank's schedule: broadcast, factor and receive panels, exchange rows, solve U.
//!
//! `schedule` decides the order of the operations.

use std::ops::Range;

use ndarray::{ArrayViewMut2, ShapeBuilder};

use super::clock::{Clock, Part};
use super::context::Context;
use super::halves;
use super::section::Section;
use super::swap::Advance;
use super::update::{self, Multiplication, from_rest};
use super::work::Work;
use crate::base::faults::{Point, hit};
use crate::base::threads::{PanelThreads, Pool};
use crate::comm::Broadcast;
use crate::matrix::Shape;

const TAG: i32 = 16;
/// Number of tags for concurrent broadcasts of panels.
///
/// With some broadcast algorithms, a process column has two panels in transit from different senders. The process column may
/// forward the later panel first, so each panel needs its own tag. A rank that factors a panel has received all earlier panels,
/// so at most one panel per process column is in transit. The number of tags is far larger than needed.
const TAGS: usize = 8192;

/// A rank's part of a factorisation in progress: the data that its operations read and change.
pub(super) struct Operations<'a> {
    pub(super) context: &'a Context<'a>,
    /// Address of the whole local matrix.
    pub(super) a: *mut f64,
    pub(super) work: &'a mut Work,
    pub(super) clock: &'a mut Clock,
    /// Number of floating-point operations of all multiplications so far.
    pub(super) flops: f64,
}

impl<'a> Operations<'a> {
    /// # Safety
    /// `a` is the whole local matrix. Nothing else touches the matrix as long as the operations exist.
    pub(super) unsafe fn new(
        context: &'a Context<'a>,
        a: *mut f64,
        work: &'a mut Work,
        clock: &'a mut Clock,
    ) -> Self {
        Self { context, a, work, clock, flops: 0.0 }
    }

    /// Returns the whole local matrix.
    pub(super) fn view(&mut self) -> ArrayViewMut2<'a, f64> {
        let Shape { rows, cols, ld, .. } = self.context.shape;
        // SAFETY: the matrix outlives the view, and no other thread touches the matrix.
        unsafe { ArrayViewMut2::from_shape_ptr((rows, cols).strides((ld, 1)), self.a) }
    }

    pub(super) fn slot(&self, k: usize) -> usize {
        k % self.work.panels.len()
    }

    /// Waits until the broadcast of the previous panel in this slot has ended, and assigns the slot to panel `k`. If another
    /// process column factors panel `k` and `comes` is true, starts to receive panel `k`.
    pub(super) fn begin_panel(&mut self, k: usize, comes: bool) {
        let slot = self.slot(k);
        if let Some(mut broadcast) = self.work.panels[slot].broadcast.take() {
            let before = self.clock.enter(Part::Broadcast);
            broadcast.finish(self.context.along());
            self.clock.enter(before);
        }
        self.work.panels[slot].begin(self.context, k);
        if comes && !self.context.owns(k) {
            self.broadcast(k);
        }
    }

    /// Starts the broadcast of panel `k` along the process row. The process column that factors the panel calls this after the
    /// factorisation. Other process columns call this as soon as the panel's slot is free.
    pub(super) fn broadcast(&mut self, k: usize) {
        let (context, slot) = (self.context, self.slot(k));
        if context.along().size() == 1 {
            return;
        }
        let panel = &mut self.work.panels[slot];
        let root = context.shape.col_map.owner(panel.k * context.params.nb);
        let tag = TAG + (panel.k % TAGS) as i32;
        let message = panel.message();
        let (data, len) = (message.as_mut_ptr(), message.len());
        // SAFETY: the slot keeps the message in place, and is not reused before the broadcast has ended. Receivers read the
        // message only after it has arrived.
        panel.broadcast = Some(unsafe {
            Broadcast::start(context.along(), context.params.bcast, data, len, root, tag)
        });
    }

    /// Waits for the message of panel `k` and derives from the message the data that the update needs.
    pub(super) fn await_panel(&mut self, k: usize) {
        let slot = self.slot(k);
        let panel = &mut self.work.panels[slot];
        debug_assert_eq!(panel.k, k);
        if let Some(broadcast) = &mut panel.broadcast {
            let before = self.clock.enter(Part::Broadcast);
            broadcast.wait_arrived(self.context.along());
            self.clock.enter(before);
        }
        panel.open(self.context);
    }

    /// Forwards panels that have arrived to further process columns. Does not wait.
    pub(super) fn forward_panels(&mut self) {
        for panel in &mut self.work.panels {
            if let Some(broadcast) = &mut panel.broadcast
                && broadcast.complete(self.context.along())
            {
                panel.broadcast = None;
            }
        }
    }

    pub(super) fn finish_broadcasts(&mut self) {
        let before = self.clock.enter(Part::Broadcast);
        for panel in &mut self.work.panels {
            if let Some(mut broadcast) = panel.broadcast.take() {
                broadcast.finish(self.context.along());
            }
        }
        self.clock.enter(before);
    }

    /// Factors panel `k`, to whose columns all earlier panels are applied.
    pub(super) fn factor(&mut self, k: usize, panel_threads: &mut PanelThreads) {
        let slot = self.slot(k);
        let Work { panels, factor, .. } = &mut *self.work;
        // SAFETY: `a` is the whole local matrix, and no other thread works on the panel's columns.
        unsafe { factor.run(self.context, &mut panels[slot], self.a, panel_threads, self.clock) };
    }

    /// Broadcasts panel `k`, which this rank has factored.
    pub(super) fn send_panel(&mut self, k: usize) {
        self.broadcast(k);
        hit(Point::PanelSent, self.context.place);
    }

    /// Waits for panel `k`, then starts its row exchange in the columns of panel `next`.
    pub(super) fn begin_panel_rows(&mut self, k: usize, next: usize, pool: &mut Pool) {
        self.await_panel(k);
        let before = self.clock.enter(Part::Swap);
        let (section, slot) = (self.panel_section(k, next), self.slot(k));
        let Work { panels, near, .. } = &mut *self.work;
        // SAFETY: `a` is the whole local matrix, no other thread touches these columns, and the section has their buffer for U.
        unsafe { near.begin(self.context, &panels[slot], section, Some(pool)) };
        self.clock.enter(before);
    }

    /// Advances the row exchange in the columns of the next panel, without waiting. Returns true if a round was completed or no
    /// exchange is in progress.
    ///
    /// If this rank has received rows in the first round, the other process rows have begun the same exchange, so the remaining
    /// rounds end soon. If this rank only sends in the first round, the other process rows may be late, although true is
    /// returned. The rank waits for late process rows in a further round, which costs time, but is not an error.
    pub(super) fn others_have_panel_rows(&mut self) -> bool {
        let before = self.clock.enter(Part::Swap);
        let near = &mut self.work.near;
        let here = !near.is_active() || near.advance(self.context) != Advance::Nothing;
        self.clock.enter(before);
        here
    }

    /// Completes the row exchange of panel `k` in the columns of panel `next`, and updates the columns of panel `next` with panel
    /// `k`.
    pub(super) fn finish_panel_rows(&mut self, k: usize, next: usize, pool: &mut Pool) {
        let before = self.clock.enter(Part::Swap);
        self.work.near.finish(self.context, pool, self.clock);
        self.clock.enter(Part::Multiply);
        let section = self.panel_section(k, next);
        // SAFETY: as for `begin_panel_rows`. The row exchange is complete.
        let multiplication = unsafe { self.solve(k, &section, false, pool) };
        multiplication.run(0, pool, |_| ());
        self.clock.enter(before);
        self.flops += multiplication.flops();
    }

    /// Updates the columns of panel `next` with panels `k..next`.
    pub(super) fn update_panel(&mut self, k: usize, next: usize, pool: &mut Pool) {
        for earlier in k..next {
            self.begin_panel_rows(earlier, next, pool);
            self.finish_panel_rows(earlier, next, pool);
        }
    }

    /// Starts the row exchange of panel `k`, which has arrived, in `section`. If `pool` is `None`, this thread copies rows alone.
    pub(super) fn begin_rows(&mut self, k: usize, section: &Section, pool: Option<&mut Pool>) {
        let before = self.clock.enter(Part::Swap);
        let slot = self.slot(k);
        let Work { panels, far, .. } = &mut *self.work;
        // SAFETY: `a` is the whole local matrix, no multiplication in progress touches these columns, and the section has their
        // buffer for U.
        unsafe { far.begin(self.context, &panels[slot], section.clone(), pool) };
        self.clock.enter(before);
    }

    /// Completes the row exchange of panel `k` in `section`. If `begun` is false, the exchange is begun first.
    pub(super) fn finish_rows(
        &mut self,
        k: usize,
        section: &Section,
        begun: bool,
        pool: &mut Pool,
    ) {
        if begun {
            self.work.split_update.hidden += u64::from(!self.work.far.is_active());
        } else {
            self.begin_rows(k, section, Some(pool));
        }
        let before = self.clock.enter(Part::Swap);
        self.work.far.finish(self.context, pool, self.clock);
        self.clock.enter(before);
    }

    /// Solves U of panel `k` in `section`, and returns the multiplication, which the caller still has to run. If `often` is true,
    /// the tasks of the multiplication are short.
    ///
    /// # Safety
    /// No other thread touches the columns of the section or its buffer for U.
    pub(super) unsafe fn solve(
        &mut self,
        k: usize,
        section: &Section,
        often: bool,
        pool: &mut Pool,
    ) -> Multiplication {
        let slot = self.slot(k);
        let panel = &self.work.panels[slot];
        // SAFETY: `a` is the whole local matrix. The caller ensures the other conditions.
        unsafe { update::solve(self.context, panel, section, often, pool, self.clock) }
    }

    /// Returns the sections of the update with panel `k`, in the order of multiplication. The sections cover the local columns
    /// from `first` on: one section, or two if the update is split in halves.
    pub(super) fn sections(&mut self, k: usize, first: usize) -> Vec<Section> {
        let (context, width) = (self.context, self.context.width(k));
        let cut = context.cut(k);
        let halves = halves::parts(first..context.shape.cols, cut);
        let wide = context.shape.cols - from_rest(&context.shape, context.params.lookahead(), k);
        let (u, len) = (self.work.rest.pointer(), self.work.rest.len());
        let section = |(i, cols): (usize, Range<usize>)| {
            let of = context.engine.upper_len(width, cols.len());
            let at = if cut.is_some() && i == 0 { halves::right_at(len, of) } else { 0 };
            // SAFETY: the offset lies within the buffer.
            let mut section = Section::new(context, width, self.a, cols, unsafe { u.add(at) });
            if cut.is_some() {
                section.wide = wide;
            }
            section
        };
        halves.into_iter().enumerate().map(section).collect()
    }

    /// Returns the columns of panel `next` as a section to be updated with panel `k`. The section does not include the right-hand
    /// side, even if the right-hand side is in the same block.
    fn panel_section(&mut self, k: usize, next: usize) -> Section {
        let context = self.context;
        let first = context.shape.col_from_block(next);
        let cols = first..first + context.width(next);
        Section::new(context, context.width(k), self.a, cols, self.work.ahead.pointer())
    }
}

impl Context<'_> {
    /// Returns whether this process column factors panel `k`.
    pub(super) fn owns(&self, k: usize) -> bool {
        self.shape.col_map.owner(k * self.params.nb) == self.shape.col
    }

    /// Returns the first local column to which panel `k` is applied. In a process column of the grid, the result is the first
    /// local column from block `factored` on. In a checksum column, the result is the local column of block `k`: the sums in that
    /// local column contain a share of panel `k`.
    pub(super) fn first_column(&self, k: usize, factored: usize) -> usize {
        if self.shape.is_sums() {
            self.shape.col_from_block(k)
        } else {
            let first = (factored * self.params.nb).min(self.params.n);
            self.shape.col_map.count_below(first, self.shape.col)
        }
    }
}
