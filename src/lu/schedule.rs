//! The schedule of a factorisation on one rank.
//!
//! [`Run::iterate`] is an iteration: it applies panel k to all columns right of it. With a lookahead of DEPTH, panel k + DEPTH is
//! factored meanwhile: its columns are updated before the rest, so that its broadcast overlaps the multiplication. [`Run::all`]
//! is the order of the iterations.
//!
//! If a rank has threads, its main thread factors while the others already multiply. The order of messages depends on whether any
//! rank has threads, and is the same on all ranks (`Context::order`). A rank without threads then factors a little later than it
//! could.
//!
//! A *boundary* k is the moment when all updates before panel k are complete on all ranks. The schedule passes through a clean
//! boundary only where one is requested, because no panel may be factored ahead there: the observer requests it to save, and
//! `in_steps` to compute checksums.

use std::time::{Duration, Instant};

use super::clock::{Clock, Part};
use super::context::Context;
use super::in_steps::InSteps;
use super::lookahead::Lookahead;
use super::observer::{Event, Halt, Observer};
use super::operations::Operations;
use super::panel_threads::panel_workers;
use super::section::Section;
use super::swap::Advance;
use super::work::Work;
use crate::base::faults::{Point, hit};
use crate::base::threads::{PanelThreads, Pool, Turn};

/// Time for which the main thread polls for rows, per other thread of the rank. The other threads multiply meanwhile.
const POLLS_FOR: Duration = Duration::from_micros(20);

/// Factors from boundary `start` to the end, or to the boundary at which the observer stops.
///
/// # Safety
/// `a` is the whole local matrix, and no other thread touches it.
pub unsafe fn factorise<O: Observer>(
    context: &Context,
    a: *mut f64,
    start: usize,
    work: &mut Work,
    pool: &mut Pool,
    clock: &mut Clock,
    observer: &mut O,
) -> Halt {
    // SAFETY: ensured by the caller.
    let operations = unsafe { Operations::new(context, a, work, clock) };
    Run::new(operations, pool, observer, None).all(start, false)
}

/// A factorisation in progress on one rank.
pub(super) struct Run<'a, O> {
    pub(super) operations: Operations<'a>,
    pub(super) pool: &'a mut Pool,
    pub(super) observer: &'a mut O,
    /// Present if each process column must complete every iteration or do none of it.
    pub(super) steps: Option<InSteps<'a>>,
    /// Rows of the next iteration's first section. All ranks of the process column exchange them, whichever factors the panel;
    /// the time at which each of them begins is its own.
    early: Option<Early>,
}

/// A row exchange that may begin before its iteration.
struct Early {
    k: usize,
    section: Section,
    begun: bool,
}

impl<'a, O: Observer> Run<'a, O> {
    pub(super) fn new(
        operations: Operations<'a>,
        pool: &'a mut Pool,
        observer: &'a mut O,
        steps: Option<InSteps<'a>>,
    ) -> Self {
        Self { operations, pool, observer, steps, early: None }
    }

    /// Factors from boundary `start` to the end, or to the boundary at which the observer stops. If `ready` is set, panel `start`
    /// is already factored.
    pub(super) fn all(&mut self, start: usize, ready: bool) -> Halt {
        let params = self.operations.context.params;
        let blocks = params.blocks();
        let mut lookahead = Lookahead::new(start, blocks, params.depth);
        if ready {
            lookahead.next(start, |_| false);
            if self.operations.context.owns(start) {
                self.operations.broadcast(start);
            } else {
                self.operations.begin_panel(start, true);
            }
        } else if let Some(own) = &mut self.steps {
            own.compute_checksums(&mut self.operations, self.observer, start);
        }
        for k in start..blocks {
            if lookahead.is_clean(k, |k| self.drains(k)) && self.boundary(k) == Halt::Stop {
                return Halt::Stop;
            }
            let elapsed = self.operations.clock.elapsed();
            self.observer.observe(Event::Iteration { k, blocks, elapsed });
            if self.observer.leaves(k) {
                // First end the operations for which all ranks wait in the same order.
                self.operations.finish_broadcasts();
                self.finish_early();
                return Halt::Stop;
            }
            // All panels that may be factored now, except the last, are factored without overlap. That happens only at the start,
            // after a boundary, and without lookahead.
            let mut last = None;
            while let Some(next) = lookahead.next(k, |k| self.drains(k)) {
                if let Some(earlier) = last.replace(next) {
                    self.factor_alone(k, earlier);
                }
            }
            if last.take_if(|next| *next == k).is_some() {
                self.factor_alone(k, k);
            }
            self.iterate(k, last, lookahead.factored());
            let seconds = self.operations.clock.spent(Part::Multiply);
            self.observer.observe(Event::Multiplied { seconds, flops: self.operations.flops });
        }
        self.operations.finish_broadcasts();
        self.end_steps();
        Halt::GoOn
    }

    /// Applies panel `k` to all columns from block `factored` on. Meanwhile factors and broadcasts panel `next`, the block just
    /// before those columns.
    pub(super) fn iterate(&mut self, k: usize, next: Option<usize>, factored: usize) {
        let (context, comes) = (self.operations.context, !self.is_quiet());
        // In steps, all ranks have panel k before any of them applies it.
        if self.steps.is_some() {
            self.operations.await_panel(k);
            hit(Point::PanelHere, context.place);
        }
        // Panel `next` begins to travel to the process columns that receive it.
        if let Some(next) = next {
            self.operations.begin_panel(next, comes);
        }
        let step = self.steps.as_ref().map(|own| own.begin_iteration(&mut self.operations));

        // The process column that owns panel `next` updates its columns first. Ranks without threads then factor it, so that
        // other process columns wait less for it. With threads, the main thread factors while the others multiply the rest.
        let (overlaps, meets) = (context.overlaps(), self.meets(k));
        let ours = next.filter(|&next| context.owns(next));
        if let Some(next) = ours {
            if meets {
                self.operations.begin_panel_rows(k, next, self.pool);
            } else {
                self.operations.update_panel(k, next, self.pool);
            }
            if !meets && !overlaps {
                self.factor(next);
                if comes {
                    self.operations.send_panel(next);
                }
            }
        }
        let mut lead = ours.filter(|_| meets || overlaps);
        self.operations.await_panel(k);

        // All other columns: one section, or the right half and then the left half.
        if self.steps.as_ref().is_none_or(InSteps::has_matrix) {
            let sections = self.operations.sections(k, context.first_column(k, factored));
            let mut early = self.early_section(k, factored, &sections);
            let mut begun = self.early.take().is_some_and(|early| early.begun);
            let counts = &mut self.operations.work.split_update;
            counts.iterations += u64::from(sections.len() > 1);
            counts.early += u64::from(begun);
            for (i, section) in sections.iter().enumerate() {
                // The section's rows have travelled while the section before was multiplied, or travel now.
                self.operations.finish_rows(k, section, begun, self.pool);
                if i == 0 && self.steps.is_some() {
                    hit(Point::MultiplyBegin, context.place);
                }
                // U is solved and the section multiplied. Meanwhile panel `next` is factored, and the rows of the following
                // section travel, which after the last one is the first of the next iteration.
                let travels = match sections.get(i + 1) {
                    Some(section) => Some((k, section)),
                    None => early.as_ref().map(|early| (early.k, &early.section)),
                };
                begun = self.multiply(k, section, lead.take(), travels);
            }
            if let Some(early) = &mut early {
                early.begun = begun;
            }
            self.early = early;
        }
        if let Some(own) = &mut self.steps {
            own.end_iteration(context, step, k, ours);
        }
    }

    /// Ends the last step: a rank that has passed this point knows that the others of its process column have completed it.
    pub(super) fn end_steps(&self) {
        drop(self.steps.as_ref().map(InSteps::step));
    }

    /// Returns whether the panel that is factored in iteration `k` waits until the other ranks of the process column have come,
    /// while the first section is multiplied.
    ///
    /// Waiting pays with a single process column, as no other one waits for the panel. If columns are split, the other ranks may
    /// still multiply their last section. All ranks decide alike, because they wait for messages in the same order.
    fn meets(&self, k: usize) -> bool {
        let context = self.operations.context;
        let alone = !context.overlaps() && self.steps.is_none();
        alone && context.shape.grid.q == 1 && context.cut(k).is_some()
    }

    /// Returns whether panels are not broadcast.
    fn is_quiet(&self) -> bool {
        self.steps.as_ref().is_some_and(InSteps::is_quiet)
    }

    /// Factors panel `next` while panels `k..next` wait, without other work to overlap it with.
    fn factor_alone(&mut self, k: usize, next: usize) {
        self.operations.begin_panel(next, !self.is_quiet());
        if self.operations.context.owns(next) {
            let step = self.steps.as_ref().map(InSteps::step);
            self.operations.update_panel(k, next, self.pool);
            self.factor(next);
            if let Some(own) = &mut self.steps {
                own.progress.factored = next + 1;
            }
            drop(step);
            self.operations.send_panel(next);
        }
    }

    /// Factors panel `next`, whose columns are up to date, with all threads.
    fn factor(&mut self, next: usize) {
        self.pool.together(|panel_threads| self.operations.factor(next, panel_threads));
    }

    /// Applies panel `k` to `section`, whose row exchange is complete. Returns whether the exchange of the rows that travel
    /// meanwhile has begun.
    ///
    /// `lead` is the panel to factor meanwhile. If ranks have threads, its columns are up to date. Otherwise the row exchange for
    /// its columns has begun. `travels` is a panel and a section: the row exchange of that panel in this section runs meanwhile,
    /// as soon as the panel's message has arrived.
    fn multiply(
        &mut self,
        k: usize,
        section: &Section,
        lead: Option<usize>,
        travels: Option<(usize, &Section)>,
    ) -> bool {
        let (context, threads, comes) =
            (self.operations.context, self.pool.threads(), !self.is_quiet());
        let q = context.shape.grid.q;
        let (ready, awaited) = if context.overlaps() { (lead, None) } else { (None, lead) };
        let Self { operations, pool, .. } = self;
        let begun = false;
        let mut beside = Beside { operations, k, awaited, travels, begun, threads };
        beside.look_after_panel(false);
        let meets = beside.awaited.is_some();
        // If Q > 1, panels in transit are forwarded between tasks, which therefore must be short.
        let often = travels.is_some() || q > 1;
        // SAFETY: no other thread touches these columns.
        let rest = unsafe { beside.operations.solve(k, section, often, pool) };
        beside.look_after_panel(false);
        if let Some((_, section)) = travels.filter(|(of, _)| *of == k) {
            // Started here, and not between tasks, so that all threads help to copy the first messages.
            beside.operations.begin_rows(k, section, Some(pool));
            beside.begun = true;
        }
        beside.operations.flops += rest.flops();
        let before = beside.operations.clock.enter(Part::Multiply);
        let panel_workers =
            ready.map_or(0, |next| panel_workers(threads, context.width(next), rest.columns(), q));
        let main = |turn: Turn| match turn {
            Turn::Lead(panel_threads) => {
                if let Some(next) = ready {
                    beside.operations.factor(next, panel_threads);
                    if comes {
                        beside.operations.send_panel(next);
                    }
                }
                beside.look_after_rows();
            }
            Turn::AfterTask => beside.look_after_all(),
        };
        rest.run(panel_workers, pool, main);
        beside.look_after_panel(true);
        let begun = beside.begun;
        self.operations.clock.enter(before);
        self.operations.work.split_update.amid += u64::from(meets);
        begun
    }

    /// Returns the first section of the next iteration, if its rows may travel while the last of these `sections` is multiplied.
    fn early_section(&mut self, k: usize, factored: usize, sections: &[Section]) -> Option<Early> {
        if sections.len() < 2 || self.steps.is_some() || factored <= k + 1 {
            return None;
        }
        let cut = self.operations.context.cut(k + 1)?;
        let section = |this: &mut Self| this.operations.sections(k + 1, cut).swap_remove(0);
        (cut >= sections[0].cols.start).then(|| Early {
            k: k + 1,
            section: section(self),
            begun: false,
        })
    }

    /// Completes the row exchange that may have begun early, for an iteration that will not happen.
    fn finish_early(&mut self) {
        if let Some(Early { k, section, begun }) = self.early.take() {
            self.operations.await_panel(k);
            self.operations.finish_rows(k, &section, begun, self.pool);
        }
    }

    /// Returns whether boundary `k` must be clean.
    fn drains(&mut self, k: usize) -> bool {
        match &self.steps {
            Some(own) => own.drains(self.operations.context, k),
            None => self.observer.drains(k),
        }
    }

    /// Passes the clean boundary `k`.
    fn boundary(&mut self, k: usize) -> Halt {
        debug_assert!(self.early.is_none(), "no panel is factored across a clean boundary");
        self.operations.finish_broadcasts();
        if let Some(own) = &mut self.steps {
            own.compute_checksums(&mut self.operations, self.observer, k);
            return Halt::GoOn;
        }
        let before = self.operations.clock.enter(Part::Save);
        let halt = self.observer.boundary(k, self.operations.a, self.pool);
        self.operations.clock.enter(before);
        halt
    }
}

/// Work of the main thread between the tasks of a multiplication.
struct Beside<'m, 'a> {
    operations: &'m mut Operations<'a>,
    /// Panel that is being applied.
    k: usize,
    /// Panel that all ranks of the process column factor once they have come.
    awaited: Option<usize>,
    /// Panel and section of the row exchange that runs meanwhile.
    travels: Option<(usize, &'m Section)>,
    /// True once that row exchange has begun.
    begun: bool,
    threads: usize,
}

impl Beside<'_, '_> {
    /// Factors the awaited panel. All ranks of the process column factor it together, so this rank waits for them (`wait`) or
    /// tests whether they have come.
    fn look_after_panel(&mut self, wait: bool) {
        let Some(next) = self.awaited else { return };
        if wait || self.operations.others_have_panel_rows() {
            // The panel is postponed up to here only if no rank has more than one thread.
            let pool = &mut Pool::new(1);
            self.operations.finish_panel_rows(self.k, next, pool);
            self.operations.update_panel(self.k + 1, next, pool);
            self.operations.factor(next, &mut PanelThreads::alone());
            self.operations.send_panel(next);
            self.awaited = None;
        }
    }

    /// Advances everything that waits for messages.
    fn look_after_all(&mut self) {
        // Reports a lost rank at once, even if no message is awaited until the multiplication ends.
        self.operations.context.grid.attend();
        self.operations.forward_panels();
        self.look_after_panel(false);
        self.look_after_rows();
    }

    /// Begins and advances the row exchange while the other threads multiply.
    fn look_after_rows(&mut self) {
        let Some((of, section)) = self.travels else { return };
        if !self.begun {
            let slot = self.operations.slot(of);
            if !self.operations.work.panels[slot].is_here(of) {
                return;
            }
            self.operations.await_panel(of);
            self.operations.begin_rows(of, section, None);
            self.begun = true;
        }
        let Operations { context, work, clock, .. } = &mut *self.operations;
        // Most calls come after the exchange is complete.
        if !work.far.is_active() {
            return;
        }
        let before = clock.enter(Part::Swap);
        let polls_for = POLLS_FOR * (self.threads as u32 - 1);
        let mut since = Instant::now();
        while work.far.is_active() {
            match work.far.advance(context) {
                Advance::Moved => since = Instant::now(),
                // Other threads may soon wait for this one: they may run out of tasks, or wait for help with the panel.
                Advance::Solved if self.threads > 1 => break,
                Advance::Solved => {}
                Advance::Nothing if since.elapsed() >= polls_for => break,
                Advance::Nothing => {}
            }
        }
        clock.enter(before);
    }
}
