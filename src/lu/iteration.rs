//! One iteration of a factorisation on one rank: panels are factored, broadcast and applied.
//!
//! `pipeline` and `in_steps` decide the order of iterations; `apply` is the part of an iteration that takes most of the time.

use ndarray::{ArrayViewMut2, ShapeBuilder};

use super::ahead::{Ahead, await_panel, start_broadcast};
use super::clock::{Clock, Part};
use super::context::Context;
use super::observer::Observer;
use super::roles::Progress;
use super::work::Work;
use crate::base::faults::{Point, hit};
use crate::base::threads::Pool;
use crate::comm::{Step, Steps};
use crate::matrix::Shape;

/// State of a factorisation in progress on one rank.
pub(super) struct Run<'a, O> {
    pub(super) context: &'a Context<'a>,
    pub(super) a: *mut f64,
    pub(super) work: &'a mut Work,
    pub(super) pool: &'a mut Pool,
    pub(super) clock: &'a mut Clock,
    pub(super) observer: &'a mut O,
    /// Floating-point operations of the multiplications done so far.
    pub(super) flops: f64,
    pub(super) early: Early,
    /// Present if each process column must complete every iteration or do none of it.
    pub(super) steps: Option<InSteps<'a>>,
}

/// State of the row exchange that runs while other columns are multiplied.
#[derive(Default)]
pub(super) struct Early {
    /// Panel whose row exchange may start before its iteration. All ranks of the process column start that exchange early or will
    /// start it later, whichever process column owns the panel.
    pub(super) panel: Option<usize>,
    /// True if this rank has started the next row exchange.
    pub(super) begun: bool,
}

/// A factorisation in steps: a process column completes every step that it begins.
pub(super) struct InSteps<'a> {
    pub(super) steps: Steps,
    pub(super) progress: &'a mut Progress,
    /// True while panels are not broadcast.
    pub(super) quiet: bool,
}

impl<'a, O: Observer> Run<'a, O> {
    pub(super) fn new(
        context: &'a Context<'a>,
        a: *mut f64,
        work: &'a mut Work,
        pool: &'a mut Pool,
        clock: &'a mut Clock,
        observer: &'a mut O,
        steps: Option<InSteps<'a>>,
    ) -> Self {
        let early = Early::default();
        Self { context, a, work, pool, clock, observer, flops: 0.0, early, steps }
    }

    /// Returns the whole local matrix.
    pub(super) fn view(&mut self) -> ArrayViewMut2<'a, f64> {
        let Shape { rows, cols, ld, .. } = self.context.shape;
        // SAFETY: the matrix outlives the view, and no other thread touches it.
        unsafe { ArrayViewMut2::from_shape_ptr((rows, cols).strides((ld, 1)), self.a) }
    }

    /// Broadcasts panel `k`, which is already factored.
    pub(super) fn share(&mut self, k: usize) {
        let slot = self.slot(k);
        if !self.owns_column(k) {
            self.work.panels[slot].begin(self.context, k);
        }
        start_broadcast(self.context, &mut self.work.panels[slot]);
    }

    /// Starts a step, which this process column completes or does not do at all. The step ends when the returned value is
    /// dropped.
    fn step(&self) -> Option<Step> {
        self.steps.as_ref().map(|own| own.steps.step())
    }

    pub(super) fn quiet(&self) -> bool {
        self.steps.as_ref().is_some_and(|own| own.quiet)
    }

    pub(super) fn slot(&self, k: usize) -> usize {
        k % self.work.panels.len()
    }

    fn owns_column(&self, k: usize) -> bool {
        self.context.shape.col_map.owner(k * self.context.params.nb) == self.context.shape.col
    }

    /// Waits for the message of panel `k` and derives from it the data that the update needs.
    pub(super) fn await_panel(&mut self, k: usize) {
        let slot = self.slot(k);
        let panel = &mut self.work.panels[slot];
        debug_assert_eq!(panel.k, k);
        await_panel(self.context, panel, self.clock);
    }

    /// Returns the parts of the run that handle the next panel, and the threads.
    fn ahead(&mut self) -> (Ahead<'_>, &mut Pool) {
        let (ahead, _) = self.work.ahead(self.context, self.a, self.clock, &mut self.flops);
        (ahead, self.pool)
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

    /// Prepares the slot of panel `k`. If the panel comes from another process column, starts to receive it.
    fn begin_panel(&mut self, k: usize) {
        let slot = self.slot(k);
        let panel = &mut self.work.panels[slot];
        if let Some(mut broadcast) = panel.broadcast.take() {
            let before = self.clock.enter(Part::Broadcast);
            broadcast.finish(self.context.along());
            self.clock.enter(before);
        }
        self.work.panels[slot].begin(self.context, k);
        if !self.owns_column(k) && !self.quiet() {
            start_broadcast(self.context, &mut self.work.panels[slot]);
        }
    }

    /// Factors panel `next` while panels `k..next` wait, without other work to overlap it with.
    pub(super) fn factor_alone(&mut self, k: usize, next: usize) {
        self.begin_panel(next);
        if self.owns_column(next) {
            let step = self.step();
            let (mut ahead, pool) = self.ahead();
            ahead.catch_up(k, next, false, pool);
            pool.together(|panel_threads| ahead.factor(next, true, panel_threads));
            if let Some(own) = &mut self.steps {
                own.progress.factored = next + 1;
            }
            drop(step);
            let slot = self.slot(next);
            start_broadcast(self.context, &mut self.work.panels[slot]);
            hit(Point::PanelSent, self.context.place);
        }
    }

    /// Applies panel `k` to all columns from block `factored` on. Meanwhile factors panel `next`, the block just before those
    /// columns.
    pub(super) fn iterate(&mut self, k: usize, next: Option<usize>, factored: usize) {
        let in_steps = self.steps.is_some();
        if in_steps {
            self.await_panel(k);
            hit(Point::PanelHere, self.context.place);
        }
        if let Some(next) = next {
            self.begin_panel(next);
        }
        let before = self.clock.enter(Part::Broadcast);
        if in_steps && !self.quiet() {
            // A rank that has passed this barrier knows that all ranks have the panel.
            self.context.grid.barrier();
        }
        let step = self.step();
        self.clock.enter(before);
        if in_steps {
            hit(Point::StepBegin, self.context.place);
        }
        let quiet = self.quiet();
        let ours = next.filter(|&next| self.owns_column(next));
        // If ranks have threads, the rest of the update is prepared before the panel is factored, so that the other threads can
        // multiply meanwhile. Otherwise the panel comes first, so that other process columns wait less for it.
        //
        // If the update is split in halves, other ranks of the process column may still work on their last half. Until they come,
        // the first half is multiplied (`amid`). All ranks of the column decide alike, because they wait for messages in the same
        // order.
        let overlap = self.context.order.overlap();
        let amid = !overlap && !in_steps && self.context.cut(k).is_some();
        let mut lead = None;
        if let Some(next) = ours {
            let (mut ahead, pool) = self.ahead();
            if amid {
                ahead.begin(k, next, pool);
            } else {
                ahead.catch_up(k, next, false, pool);
            }
            if amid || overlap {
                lead = Some(next);
            } else {
                pool.together(|panel_threads| ahead.factor(next, quiet, panel_threads));
            }
        }
        self.await_panel(k);
        if self.steps.as_ref().is_none_or(|own| own.progress.generated) {
            self.apply(k, lead, factored);
        }
        if let Some(own) = &mut self.steps {
            own.progress.applied = k + 1;
            if let Some(next) = ours {
                own.progress.factored = next + 1;
            }
        }
        drop(step);
        if in_steps {
            hit(Point::StepEnd, self.context.place);
        }
    }
}
