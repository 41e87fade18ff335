//! Applies a panel to the trailing submatrix, in one part or two.
//!
//! Meanwhile rows of the next part travel and the next panel is factored. `halves` divides the columns into parts,
//! `panel_threads` chooses the number of threads that factor, and `update` prepares the multiplication.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::ahead::Ahead;
use super::clock::Part;
use super::halves;
use super::iteration::{Early, Run};
use super::observer::Observer;
use super::panel_threads::mates;
use super::swap::{Step, Swapper};
use super::update::{Columns, from_rest, solve};
use crate::base::faults::{Point, hit};
use crate::base::threads::{PanelThreads, Pool};

/// Time for which the main thread polls for rows, per other thread of the rank. The other threads multiply meanwhile.
const PATIENCE: Duration = Duration::from_micros(20);

impl<O: Observer> Run<'_, O> {
    /// Applies panel `k`, whose message has arrived, to all columns from block `factored` on.
    ///
    /// `lead` is the panel to factor meanwhile. If ranks have threads, the columns of `lead` are up to date. Otherwise the first
    /// row exchange for these columns has been started.
    pub(super) fn apply(&mut self, k: usize, lead: Option<usize>, factored: usize) {
        let in_steps = self.steps.is_some();
        let shape = &self.context.shape;
        let first = (factored * self.context.params.nb).min(self.context.params.n);
        let first = if shape.is_sums() {
            // Checksum columns also contain the panel's own columns: their share is eliminated, too.
            shape.col_from_block(k)
        } else {
            shape.col_map.count_below(first, shape.col)
        };
        let parts = self.parts(k, first);
        let cut = (parts.len() > 1).then(|| parts[0].cols.start);
        // While the last part is multiplied, the exchange for the next iteration's first part may already run.
        let then = cut.filter(|_| !in_steps && factored > k + 1).and_then(|cut| {
            let next = self.context.cut(k + 1).filter(|&next| next >= cut)?;
            Some((k + 1, self.parts(k + 1, next).swap_remove(0)))
        });
        if cut.is_some() {
            self.work.halves.iterations += 1;
        }
        let Early { panel, begun } = std::mem::take(&mut self.early);
        let early = begun && panel == Some(k);
        self.work.halves.early += u64::from(early);
        self.exchange(k, &parts[0], early);
        if in_steps {
            hit(Point::MultiplyBegin, self.context.place);
        }
        match parts.get(1) {
            None => self.update(k, &parts[0], lead, None),
            Some(left) => {
                self.update(k, &parts[0], lead, Some((k, left)));
                self.early.begun = false;
                self.exchange(k, left, true);
                self.update(k, left, None, then.as_ref().map(|(k, columns)| (*k, columns)));
            }
        }
        self.early.panel = then.map(|(next, _)| next);
    }

    /// Returns the columns from `first` on to which panel `k` is applied, divided into parts in the order of multiplication.
    fn parts(&mut self, k: usize, first: usize) -> Vec<Columns> {
        let (context, width) = (self.context, self.context.width(k));
        let cut = context.cut(k);
        let halves = halves::parts(first..context.shape.cols, cut);
        let wide = context.shape.cols - from_rest(&context.shape, context.params.lookahead(), k);
        let (u, len) = (self.work.rest.as_mut_ptr(), self.work.rest.as_slice().len());
        let column = |(i, cols): (usize, Range<usize>)| {
            let of = context.engine.upper_len(width, cols.len());
            let at = if cut.is_some() && i == 0 { halves::right_at(len, of) } else { 0 };
            // SAFETY: the offset lies within the buffer.
            let mut columns = Columns::new(context, width, self.a, cols, unsafe { u.add(at) });
            if cut.is_some() {
                columns.wide = wide;
            }
            columns
        };
        halves.into_iter().enumerate().map(column).collect()
    }

    /// Completes the row exchange of panel `k` in `columns`. If `begun` is set, the exchange has been started earlier and may be
    /// complete.
    fn exchange(&mut self, k: usize, columns: &Columns, begun: bool) {
        let slot = self.slot(k);
        let before = self.clock.enter(Part::Swap);
        let work = &mut *self.work;
        if begun {
            work.halves.hidden += u64::from(!work.far.under_way());
        } else {
            let request = columns.request(self.context, &work.panels[slot]);
            // SAFETY: `a` is the whole local matrix, no other thread touches these columns, and `u` is their buffer.
            unsafe { work.far.begin(self.context, request, Some(self.pool)) };
        }
        work.far.finish(self.context, self.pool, self.clock);
        self.clock.enter(before);
    }

    /// Returns whether the row exchange of a later iteration's panel may have been started.
    pub(super) fn is_early(&self) -> bool {
        self.early.panel.is_some()
    }

    /// Completes the row exchange that may have been started early, for an iteration that will not happen.
    pub(super) fn finish_early(&mut self) {
        let Early { panel, begun } = std::mem::take(&mut self.early);
        if let Some(k) = panel {
            self.await_panel(k);
            let cut = self.context.cut(k).expect("what is early is one half");
            let columns = self.parts(k, cut).swap_remove(0);
            self.exchange(k, &columns, begun);
        }
    }

    /// Applies panel `k` to `columns`, whose row exchange is complete.
    ///
    /// `lead` is the panel to factor meanwhile, as in [`Run::apply`]. `soon` is a panel and columns: the row exchange of that
    /// panel in these columns runs meanwhile, as soon as the panel's message has arrived.
    fn update(
        &mut self,
        k: usize,
        columns: &Columns,
        lead: Option<usize>,
        soon: Option<(usize, &Columns)>,
    ) {
        let (context, slot, quiet) = (self.context, self.slot(k), self.quiet());
        let threads = self.pool.threads();
        let (ready, awaited) = if context.order.overlap() { (lead, None) } else { (None, lead) };
        let (ahead, far) = self.work.ahead(context, self.a, self.clock, &mut self.flops);
        let meanwhile = Meanwhile {
            ahead: RefCell::new(ahead),
            k,
            awaited: Cell::new(awaited),
            quiet,
            soon,
            far: RefCell::new(far),
            begun: RefCell::new(&mut self.early.begun),
            threads,
        };
        meanwhile.look_after_panel(false);
        let amid = meanwhile.awaited.get().is_some();
        // SAFETY: `a` is the whole local matrix, no other thread touches these columns, and `u` is their buffer.
        let rest = unsafe {
            let ahead = &mut *meanwhile.ahead.borrow_mut();
            // If Q > 1, panels in transit are forwarded between tasks, which therefore must be short.
            let often = soon.is_some() || context.shape.grid.q > 1;
            solve(context, &ahead.panels[slot], columns, often, self.pool, ahead.clock)
        };
        meanwhile.look_after_panel(false);
        if let Some((_, columns)) = soon.filter(|(of, _)| *of == k) {
            // Started here, and not between tasks, so that all threads help to copy the first messages.
            meanwhile.begin_rows(columns, slot, self.pool);
        }
        *meanwhile.ahead.borrow_mut().flops += rest.flops();
        let before = meanwhile.ahead.borrow_mut().clock.enter(Part::Multiply);
        let q = context.shape.grid.q;
        let mates = ready.map_or(0, |next| mates(threads, context.width(next), rest.columns(), q));
        self.pool.spread(
            rest.tasks(),
            |task| rest.run(task),
            mates,
            |panel_threads| {
                if let Some(next) = ready {
                    meanwhile.ahead.borrow_mut().factor(next, quiet, panel_threads);
                }
                meanwhile.look_after_rows();
            },
            || meanwhile.look_after_all(),
        );
        meanwhile.look_after_panel(true);
        meanwhile.ahead.borrow_mut().clock.enter(before);
        self.work.halves.amid += u64::from(amid);
    }
}

/// Work of the main thread between the tasks of a multiplication.
struct Meanwhile<'m, 'a> {
    ahead: RefCell<Ahead<'a>>,
    /// Panel that is being applied.
    k: usize,
    /// Panel that all ranks of the process column factor once they have come.
    awaited: Cell<Option<usize>>,
    quiet: bool,
    /// Panel and columns of the row exchange that runs meanwhile.
    soon: Option<(usize, &'m Columns)>,
    far: RefCell<&'a mut Swapper>,
    /// True once that row exchange has been started.
    begun: RefCell<&'m mut bool>,
    threads: usize,
}

impl Meanwhile<'_, '_> {
    /// Factors the awaited panel. All ranks of the process column factor it together, so this rank waits for them (`wait`) or
    /// tests whether they have come.
    fn look_after_panel(&self, wait: bool) {
        let Some(next) = self.awaited.get() else { return };
        let mut ahead = self.ahead.borrow_mut();
        if wait || ahead.others_are_here() {
            // The panel is postponed up to here only if no rank has more than one thread.
            ahead.catch_up(self.k, next, true, &mut Pool::new(1));
            ahead.factor(next, self.quiet, &mut PanelThreads::alone());
            self.awaited.set(None);
        }
    }

    /// Advances everything that waits for messages.
    fn look_after_all(&self) {
        // Reports a lost rank at once, even if no message is awaited until the multiplication ends.
        self.ahead.borrow().context.grid.attend();
        self.forward_panels();
        self.look_after_panel(false);
        self.look_after_rows();
    }

    /// Forwards panels that have arrived during the multiplication.
    fn forward_panels(&self) {
        let ahead = &mut *self.ahead.borrow_mut();
        for panel in ahead.panels.iter_mut() {
            if let Some(broadcast) = &mut panel.broadcast
                && broadcast.complete(ahead.context.along())
            {
                panel.broadcast = None;
            }
        }
    }

    /// Starts the row exchange of the panel in `slot` in these columns.
    fn begin_rows(&self, columns: &Columns, slot: usize, pool: &mut Pool) {
        let ahead = &mut *self.ahead.borrow_mut();
        let before = ahead.clock.enter(Part::Swap);
        let request = columns.request(ahead.context, &ahead.panels[slot]);
        // SAFETY: `a` is the whole local matrix; the multiplication does not touch these columns, and `u` is their buffer.
        unsafe { self.far.borrow_mut().begin(ahead.context, request, Some(pool)) };
        **self.begun.borrow_mut() = true;
        ahead.clock.enter(before);
    }

    /// Advances the row exchange while the other threads multiply.
    fn look_after_rows(&self) {
        let Some((of, columns)) = self.soon else { return };
        let (mut far, mut begun) = (self.far.borrow_mut(), self.begun.borrow_mut());
        if **begun && !far.under_way() {
            return;
        }
        let ahead = &mut *self.ahead.borrow_mut();
        let context = ahead.context;
        let before = ahead.clock.enter(Part::Swap);
        let slots = ahead.panels.len();
        let panel = &mut ahead.panels[of % slots];
        if !**begun && panel.is_here(of) {
            panel.open(context);
            // SAFETY: `a` is the whole local matrix; the multiplication does not touch these columns, and `u` is their buffer.
            unsafe { far.begin(context, columns.request(context, panel), None) };
            **begun = true;
        }
        let patience = PATIENCE * (self.threads as u32 - 1);
        let mut since = Instant::now();
        while far.under_way() {
            match far.advance(context) {
                Step::Moved => since = Instant::now(),
                // Other threads may soon wait for this one: they may run out of tasks, or wait for help with the panel.
                Step::Solved if self.threads > 1 => break,
                Step::Solved => {}
                Step::Nothing if since.elapsed() >= patience => break,
                Step::Nothing => {}
            }
        }
        ahead.clock.enter(before);
    }
}
