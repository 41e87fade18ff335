//! The schedule of a factorisation on one rank.
//!
//! [`Run::iterate`] is iteration k: it applies panel k to all columns right of the panel. With a lookahead of DEPTH, panel k +
//! DEPTH is factored in the same iteration. The columns of panel k + DEPTH are updated first, so that the broadcast of this panel
//! overlaps the multiplication. [`Run::all`] is the order of the iterations.
//!
//! If a rank has threads, its main thread factors while the other threads already multiply. The order of messages is the same on
//! all ranks, and depends on whether any rank has threads (`Context::order`). If another rank has threads, a rank without threads
//! factors a little later than it could.
//!
//! A *boundary* k is the point at which all updates with the panels before k are complete on all ranks. A boundary is *clean* if
//! no panel is factored ahead there. Boundaries are clean only on request: the observer requests clean boundaries to save, and
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

/// Time without progress after which the main thread stops polling for rows of other process rows. The time is multiplied by the
/// number of the rank's other threads, which multiply while the main thread polls.
const POLLS_FOR: Duration = Duration::from_micros(20);

/// Factors from boundary `start` to the end, or to the boundary at which the observer ends the factorisation. Returns
/// [`Halt::Stop`] if the observer ended the factorisation.
///
/// # Safety
/// `a` is the whole local matrix, and no other thread touches the matrix.
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
    /// Steps of a factorisation with checksum columns, or `None` without checksum columns. A process column completes each step
    /// or does no part of the step.
    pub(super) steps: Option<InSteps<'a>>,
    /// Row exchange in the first section of the next iteration, or `None`. All ranks of the process column do this exchange, but
    /// ranks may begin at different times.
    early: Option<Early>,
}

/// A row exchange that may begin before the iteration to which the exchange belongs.
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

    /// Factors from boundary `start` to the end, or to the boundary at which the observer ends the factorisation. If `ready` is
    /// true, panel `start` is already factored. Returns [`Halt::Stop`] if the observer ended the factorisation.
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
                // Complete the messages in transit first, in the same order on all ranks.
                self.operations.finish_broadcasts();
                self.finish_early();
                return Halt::Stop;
            }
            // If several panels may be factored now, all except the last are factored without overlap. Several are possible only
            // at the start and after a clean boundary. Without lookahead, panel k itself is factored without overlap.
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

    /// Applies panel `k` to all columns from block `factored` on. At the same time, factors and broadcasts panel `next`, the
    /// block just before block `factored`.
    pub(super) fn iterate(&mut self, k: usize, next: Option<usize>, factored: usize) {
        let (context, comes) = (self.operations.context, !self.is_quiet());
        // With checksum columns, all ranks have panel k before any rank applies panel k.
        if self.steps.is_some() {
            self.operations.await_panel(k);
            hit(Point::PanelHere, context.place);
        }
        // Process columns that do not own panel `next` start to receive it.
        if let Some(next) = next {
            self.operations.begin_panel(next, comes);
        }
        let step = self.steps.as_ref().map(|own| own.begin_iteration(&mut self.operations));

        // The process column that owns panel `next` updates the panel's columns first. Ranks without threads then factor the
        // panel at once, because other process columns wait for it. With threads, the main thread factors the panel while the
        // other threads multiply the remaining columns.
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

        // All remaining columns: one section, or the right half and then the left half.
        if self.steps.as_ref().is_none_or(InSteps::has_matrix) {
            let sections = self.operations.sections(k, context.first_column(k, factored));
            let mut early = self.early_section(k, factored, &sections);
            let mut begun = self.early.take().is_some_and(|early| early.begun);
            let counts = &mut self.operations.work.split_update;
            counts.iterations += u64::from(sections.len() > 1);
            counts.early += u64::from(begun);
            for (i, section) in sections.iter().enumerate() {
                // The section's rows were exchanged during the multiplication of the previous section, or are exchanged now.
                self.operations.finish_rows(k, section, begun, self.pool);
                if i == 0 && self.steps.is_some() {
                    hit(Point::MultiplyBegin, context.place);
                }
                // U is solved and the section multiplied. At the same time panel `next` is factored, and the rows of the
                // following section are exchanged. After the last section, the following section is the first section of the next
                // iteration.
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

    /// Waits until all ranks of this process column have completed the last step. Does nothing in a factorisation without steps.
    pub(super) fn end_steps(&self) {
        drop(self.steps.as_ref().map(InSteps::step));
    }

    /// Returns whether the panel that is factored in iteration `k` is postponed. A postponed panel is factored during the
    /// multiplication of the first section, as soon as all ranks of the process column are ready.
    ///
    /// A panel is postponed only if the grid has a single process column and the update is split. With a single process column,
    /// no other process column waits for the panel. With a split update, other ranks may still be multiplying the last section of
    /// the previous iteration. The result is the same on all ranks, so all ranks wait for messages in the same order.
    fn meets(&self, k: usize) -> bool {
        let context = self.operations.context;
        let alone = !context.overlaps() && self.steps.is_none();
        alone && context.shape.grid.q == 1 && context.cut(k).is_some()
    }

    /// Returns whether panels are not broadcast, because this process column is catching up.
    fn is_quiet(&self) -> bool {
        self.steps.as_ref().is_some_and(InSteps::is_quiet)
    }

    /// Applies panels `k..next` to the columns of panel `next`, then factors and broadcasts panel `next`, without other work at
    /// the same time.
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

    /// Factors panel `next`, to whose columns all earlier panels are applied, with all threads.
    fn factor(&mut self, next: usize) {
        self.pool.together(|panel_threads| self.operations.factor(next, panel_threads));
    }

    /// Applies panel `k` to `section`, whose row exchange is complete. Returns whether the row exchange of `travels` has begun.
    ///
    /// `lead` is the panel to factor during the multiplication. If factorisation and multiplication overlap
    /// ([`Context::overlaps`]), panel `k` is already applied to the columns of `lead`. Otherwise only the row exchange in these
    /// columns has begun. `travels` is a panel and a section. The row exchange of this panel in this section begins during the
    /// multiplication, as soon as the panel's message has arrived.
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
        // If Q > 1, panels in transit are forwarded between tasks, so tasks must be short.
        let often = travels.is_some() || q > 1;
        // SAFETY: no other thread touches these columns.
        let rest = unsafe { beside.operations.solve(k, section, often, pool) };
        beside.look_after_panel(false);
        if let Some((_, section)) = travels.filter(|(of, _)| *of == k) {
            // The exchange begins here, not between tasks, so that all threads copy rows to the first messages.
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

    /// Returns the first section of the next iteration, if its rows may be exchanged during the multiplication of the last of
    /// `sections`. Returns `None` otherwise.
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

    /// Completes the row exchange for the next iteration, when the factorisation ends before that iteration. All ranks of the
    /// process column call this, even if they have not begun the exchange.
    fn finish_early(&mut self) {
        if let Some(Early { k, section, begun }) = self.early.take() {
            self.operations.await_panel(k);
            self.operations.finish_rows(k, &section, begun, self.pool);
        }
    }

    /// Returns whether boundary `k` must be clean, so that panel `k` is not factored ahead.
    fn drains(&mut self, k: usize) -> bool {
        match &self.steps {
            Some(own) => own.drains(self.operations.context, k),
            None => self.observer.drains(k),
        }
    }

    /// Lets the observer save at the clean boundary `k`, and returns the observer's decision. With checksum columns, computes
    /// checksums instead, and returns [`Halt::GoOn`].
    fn boundary(&mut self, k: usize) -> Halt {
        debug_assert!(
            self.early.is_none(),
            "at a clean boundary, no exchange of rows for the next iteration has begun"
        );
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
    /// Postponed panel, or `None`. The panel is factored once all ranks of the process column are ready to factor it.
    awaited: Option<usize>,
    /// Panel and section of the row exchange that runs during the multiplication, or `None`.
    travels: Option<(usize, &'m Section)>,
    /// True once the row exchange of `travels` has begun.
    begun: bool,
    threads: usize,
}

impl Beside<'_, '_> {
    /// Factors the postponed panel, if there is one and all ranks of the process column are ready to factor it. If `wait` is
    /// true, waits for late ranks. If `wait` is false and no rows of other ranks have arrived, returns without factoring.
    fn look_after_panel(&mut self, wait: bool) {
        let Some(next) = self.awaited else { return };
        if wait || self.operations.others_have_panel_rows() {
            // A panel is postponed only if no rank has more than one thread.
            let pool = &mut Pool::new(1);
            self.operations.finish_panel_rows(self.k, next, pool);
            self.operations.update_panel(self.k + 1, next, pool);
            self.operations.factor(next, &mut PanelThreads::alone());
            self.operations.send_panel(next);
            self.awaited = None;
        }
    }

    /// Advances all operations that wait for messages.
    fn look_after_all(&mut self) {
        // Notices a lost rank at once, even if this rank waits for no message until the multiplication ends.
        self.operations.context.grid.attend();
        self.operations.forward_panels();
        self.look_after_panel(false);
        self.look_after_rows();
    }

    /// Begins and advances the row exchange of `travels` while the other threads multiply.
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
        // In most calls, the exchange is already complete.
        if !work.far.is_active() {
            return;
        }
        let before = clock.enter(Part::Swap);
        let polls_for = POLLS_FOR * (self.threads as u32 - 1);
        let mut since = Instant::now();
        while work.far.is_active() {
            match work.far.advance(context) {
                Advance::Moved => since = Instant::now(),
                // Other threads may soon wait for this thread: no task may be left, or a panel may need all its threads.
                Advance::Solved if self.threads > 1 => break,
                Advance::Solved => {}
                Advance::Nothing if since.elapsed() >= polls_for => break,
                Advance::Nothing => {}
            }
        }
        clock.enter(before);
    }
}
