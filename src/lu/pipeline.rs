//! The factorisation: panels, broadcasts and updates in the order that overlaps them best.
//!
//! At iteration k panel k is applied to everything right of it. With a lookahead of DEPTH, panel
//! k + DEPTH is factored first: its columns are brought up to date ahead of the rest, so that its
//! broadcast is under way while the rest is multiplied. Where a rank has threads, its main thread
//! factors while the others already multiply. Whether any rank has decides the order of messages, on all
//! ranks alike (`Context::order`): a rank without threads then factors a little later than it could.
//!
//! A *boundary* k is the moment when all updates before panel k are done everywhere. The pipeline
//! passes through a clean boundary only where the observer asks for one, because there no panel may
//! be factored ahead.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::clock::{Clock, Part};
use super::context::Context;
use super::factor::Factor;
use super::halves;
use super::panel::Panel;
use super::renew::{refresh, refreshes_at, renew};
use super::roles::{Exchanges, Progress};
use super::swap::Swapper;
use super::update::{Columns, Multiplication, from_rest, prepare, solve};
use crate::comm::{Broadcast, Step, Steps};
use crate::faults::{Point, hit};
use crate::matrix::{HugeBuffer, Shape};
use crate::outcome::Halves;
use crate::threads::Pool;
use ndarray::{ArrayViewMut2, ShapeBuilder};

const TAG: i32 = 16;
/// Broadcasts of successive panels carry tags of their own, so that they cannot be mixed up.
const TAGS: usize = 64;
/// Exchanges of rows that may be under way side by side have a tag each.
const NEAR_TAG: i32 = 2;
const FAR_TAG: i32 = 4;
/// How long the main thread waits for rows, at a time, for each of the others: they go on multiplying.
const PATIENCE: Duration = Duration::from_micros(20);

/// Whether to go on from a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    GoOn,
    /// Stop here: whoever asked has saved what it needs.
    Stop,
}

/// Steps of a test around the factorisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// The matrix is about to be generated.
    Generating,
    /// It is there.
    Generated,
    /// It is factored.
    Factored,
    /// The solution is there.
    Solved,
}

/// Is told how the factorisation advances. All ranks must answer alike.
pub trait Observer {
    /// Whether boundary `k` is to be reached cleanly. Asked once for each, in order.
    fn drains(&mut self, k: usize) -> bool {
        let _ = k;
        false
    }

    /// Boundary `k` has been reached cleanly; `a` is the whole local matrix.
    fn boundary(&mut self, k: usize, a: *mut f64) -> Halt {
        let _ = (k, a);
        Halt::GoOn
    }

    /// The clock starts, or started in an earlier attempt, at that moment of the Unix epoch.
    fn began(&mut self, unix_s: f64) {
        let _ = unix_s;
    }

    /// A step of the test begins or ends.
    fn reached(&mut self, milestone: Milestone) {
        let _ = milestone;
    }

    /// Panel `k` of `blocks` is about to be applied, `elapsed` seconds after the start.
    fn iteration(&mut self, k: usize, blocks: usize, elapsed: f64) {
        let _ = (k, blocks, elapsed);
    }

    /// Whether the factorisation ends before panel `k` is applied, wherever it is in between boundaries: what has been
    /// computed is of no use then but for the time it took. Asked after [`Observer::iteration`].
    fn leaves(&mut self, k: usize) -> bool {
        let _ = k;
        false
    }

    /// This rank has spent so many seconds multiplying since the factorisation began, waiting for nobody, and
    /// has done so many operations in them.
    fn multiplied(&mut self, seconds: f64, flops: f64) {
        let _ = (seconds, flops);
    }

    /// New sums stand from boundary `k` on, after so many seconds.
    fn renewed(&mut self, k: usize, seconds: f64) {
        let _ = (k, seconds);
    }

    /// The system is solved; `x` is this process column's part of the solution.
    fn solved(&mut self, x: &[f64]) {
        let _ = x;
    }
}

/// An observer that asks for nothing.
pub struct Silent;

impl Observer for Silent {}

/// The work arrays of a factorisation.
pub struct Work {
    panels: Vec<Panel>,
    factor: Factor,
    /// For the columns of the panel that is next, and for the rest, whose exchange may be under way meanwhile.
    near: Swapper,
    far: Swapper,
    /// U for the same.
    ahead: HugeBuffer,
    rest: HugeBuffer,
    /// What was done in halves so far.
    pub halves: Halves,
}

impl Work {
    pub fn new(context: &Context, pool: &mut Pool) -> io::Result<Self> {
        let lengths = context.lengths(pool.threads());
        let panels = (0..lengths.slots).map(|_| Panel::new(&lengths, pool));
        Ok(Self {
            panels: panels.collect::<io::Result<_>>()?,
            factor: Factor::new(&lengths, pool)?,
            near: Swapper::new(lengths.swap_ahead, NEAR_TAG),
            far: Swapper::new(lengths.swap_rest, FAR_TAG),
            ahead: HugeBuffer::touched(lengths.ahead, pool)?,
            rest: HugeBuffer::touched(lengths.rest, pool)?,
            halves: Halves::default(),
        })
    }

    /// Ends the messages under way of an attempt that was lost; panels that are here stay.
    pub fn give_up_messages(&mut self) {
        self.panels.iter_mut().for_each(|panel| panel.broadcast = None);
        self.near.give_up();
        self.far.give_up();
    }

    /// Bytes of all of it, as it is.
    pub fn bytes(&self) -> u64 {
        let panels: u64 = self.panels.iter().map(Panel::bytes).sum();
        let upper = self.ahead.bytes() + self.rest.bytes();
        panels + self.factor.bytes() + self.near.bytes() + self.far.bytes() + upper
    }
}

/// One factorisation under way on one rank.
struct Run<'a, O> {
    context: &'a Context<'a>,
    a: *mut f64,
    work: &'a mut Work,
    pool: &'a mut Pool,
    clock: &'a mut Clock,
    observer: &'a mut O,
    /// Operations of the multiplications done.
    flops: f64,
    early: Early,
    /// There where each process column is to have done all of an iteration or nothing of it.
    steps: Option<InSteps<'a>>,
}

/// Rows that travel while others are multiplied.
#[derive(Default)]
struct Early {
    /// The panel whose rows may be under way before its iteration: the ranks of the process column have begun to exchange them
    /// or will, whoever has the panel.
    panel: Option<usize>,
    /// Whether this rank has begun to exchange what is next.
    begun: bool,
}

/// What sums are made of.
#[derive(Clone, Copy)]
pub struct Summing<'a> {
    pub exchanges: &'a Exchanges<'a>,
    /// The numbers of new ones, which are to be made as soon as no panel is factored ahead.
    pub new: &'a [usize],
}

/// A factorisation in steps: what a process column begins together it ends together.
struct InSteps<'a> {
    steps: Steps,
    progress: &'a mut Progress,
    /// Panels stay where they are for now.
    quiet: bool,
}

/// The largest lookahead with which a factorisation goes in steps: all panels that a step needs have come before it begins.
pub const DEPTH_IN_STEPS: usize = 1;

/// Factors from boundary `start` to the end, or to where the observer stops it.
///
/// # Safety
/// `a` is the whole local matrix and nobody else touches it.
pub unsafe fn factorise<O: Observer>(
    context: &Context,
    a: *mut f64,
    start: usize,
    work: &mut Work,
    pool: &mut Pool,
    clock: &mut Clock,
    observer: &mut O,
) -> Halt {
    let blocks = context.params.blocks();
    let depth = context.params.depth;
    let mut run = Run::new(context, a, work, (pool, clock), observer, None);
    // Panels before `factored` are; `drain` is a boundary no panel may be factored across.
    let mut factored = start;
    let mut asked = start;
    let mut drain = None;
    for k in start..blocks {
        // Without lookahead nobody has asked about this boundary before.
        if factored == k && factored > asked {
            asked = factored;
            if run.observer.drains(k) {
                drain = Some(k);
            }
        }
        if drain == Some(k) {
            drain = None;
            debug_assert!(run.early.panel.is_none(), "no panel is factored across a drain");
            run.finish_broadcasts();
            let before = run.clock.enter(Part::Save);
            let halt = run.observer.boundary(k, a);
            run.clock.enter(before);
            if halt == Halt::Stop {
                return Halt::Stop;
            }
        }
        run.observer.iteration(k, blocks, run.clock.elapsed());
        if run.observer.leaves(k) {
            // First what all ranks wait for in the same order.
            run.finish_broadcasts();
            run.finish_early();
            return Halt::Stop;
        }
        // Everything that may be factored by now but the last is factored on its own, which
        // happens only at the start, after a drain, and where there is no lookahead.
        let mut last = None;
        while factored < blocks && factored <= k + depth && drain.is_none() {
            if factored > asked {
                asked = factored;
                if run.observer.drains(factored) {
                    drain = Some(factored);
                    break;
                }
            }
            if let Some(next) = last.take() {
                run.factor_alone(k, next);
            }
            last = Some(factored);
            factored += 1;
        }
        match last {
            Some(next) if next > k => run.iterate(k, Some(next), factored),
            Some(next) => {
                run.factor_alone(k, next);
                run.iterate(k, None, factored);
            }
            None => run.iterate(k, None, factored),
        }
        run.observer.multiplied(run.clock.spent(Part::Multiply), run.flops);
    }
    run.finish_broadcasts();
    Halt::GoOn
}

/// Factors in steps from boundary `start`, where panel `start` may be factored already: then its process column has it.
///
/// Before a step of iteration k all ranks of the grid have panel k. So wherever an attempt is lost, each process column has
/// applied all panels before some k and nothing of k, and those k differ by one at most; whoever is behind has all it needs to
/// catch up ([`catch_up_in_steps`]). Ranks whose sums are still to be made wait for panels with all others, and apply none.
///
/// # Safety
/// As for [`factorise`].
#[allow(clippy::too_many_arguments)] // those of `factorise` and two
pub unsafe fn factorise_in_steps<O: Observer>(
    context: &Context,
    a: *mut f64,
    (start, ready): (usize, bool),
    summing: Summing,
    work: &mut Work,
    progress: &mut Progress,
    pool: &mut Pool,
    clock: &mut Clock,
    observer: &mut O,
) {
    let (blocks, depth) = (context.params.blocks(), context.params.depth);
    assert!(depth <= DEPTH_IN_STEPS, "refused beforehand");
    let steps = Some(InSteps { steps: Steps::begin(&context.column), progress, quiet: false });
    let mut run = Run::new(context, a, work, (pool, clock), observer, steps);
    let mut factored = start;
    if ready {
        run.share(start);
        factored += 1;
    }
    let mut renewing = !summing.new.is_empty();
    let refreshes = |k: usize| context.has_sums() && refreshes_at(k, blocks);
    for k in start..blocks {
        if factored == k {
            if std::mem::take(&mut renewing) {
                run.renew(k, summing);
            }
            if refreshes(k) {
                run.refresh(k, summing.exchanges);
            }
        }
        run.observer.iteration(k, blocks, run.clock.elapsed());
        if factored == k {
            run.factor_alone(k, k);
            factored += 1;
        }
        let ahead = factored <= k + depth && factored < blocks && !renewing && !refreshes(factored);
        let next = ahead.then_some(factored);
        factored += usize::from(next.is_some());
        run.iterate(k, next, factored);
        run.observer.multiplied(run.clock.spent(Part::Multiply), run.flops);
    }
    run.finish_broadcasts();
    // Whoever is past this knows that the others of its process column have done their last step.
    let last = run.steps.as_ref().map(|own| own.steps.step());
    drop(last);
}

/// Takes the one step by which this process column is behind the others, with the panel that it has.
///
/// # Safety
/// As for [`factorise`].
pub unsafe fn catch_up_in_steps(
    context: &Context,
    a: *mut f64,
    work: &mut Work,
    progress: &mut Progress,
    pool: &mut Pool,
) {
    let k = progress.applied;
    let ahead = context.params.depth > 0 && k + 1 < context.params.blocks();
    let steps = Some(InSteps { steps: Steps::begin(&context.column), progress, quiet: true });
    let (mut clock, mut observer) = (Clock::start(), Silent);
    let (clock, observer) = (&mut clock, &mut observer);
    let mut run = Run::new(context, a, work, (pool, clock), observer, steps);
    let next = ahead.then_some(k + 1);
    run.iterate(k, next, k + 1 + usize::from(ahead));
    let last = run.steps.as_ref().map(|own| own.steps.step());
    drop(last);
}

impl<'a, O: Observer> Run<'a, O> {
    fn new(
        context: &'a Context<'a>,
        a: *mut f64,
        work: &'a mut Work,
        (pool, clock): (&'a mut Pool, &'a mut Clock),
        observer: &'a mut O,
        steps: Option<InSteps<'a>>,
    ) -> Self {
        let early = Early::default();
        Self { context, a, work, pool, clock, observer, flops: 0.0, early, steps }
    }

    /// The whole local matrix.
    fn view(&mut self) -> ArrayViewMut2<'a, f64> {
        let Shape { rows, cols, ld, .. } = self.context.shape;
        // SAFETY: it is there as long as this, and nobody else touches it.
        unsafe { ArrayViewMut2::from_shape_ptr((rows, cols).strides((ld, 1)), self.a) }
    }

    /// Has new sums made at boundary `k`. Nobody changes what these are made of before its process column's next step, so when
    /// all of its ranks have given their share.
    fn renew(&mut self, k: usize, of: Summing) {
        let before = self.clock.enter(Part::Other);
        let began = Instant::now();
        renew(self.context, self.view(), k, of.exchanges, of.new);
        if let Some(own) = &mut self.steps
            && !own.progress.generated
        {
            (own.progress.generated, own.progress.applied, own.progress.factored) = (true, k, k);
        }
        self.clock.enter(before);
        self.observer.renewed(k, began.elapsed().as_secs_f64());
        hit(Point::Renewed, self.context.place);
    }

    /// Has the sums made again at boundary `k`, as above. Rows of which they are made again and those of which they are not yet
    /// are both the sums at this boundary: so they are of use whoever is lost amid it.
    fn refresh(&mut self, k: usize, exchanges: &Exchanges) {
        let before = self.clock.enter(Part::Other);
        refresh(self.context, self.view(), k, exchanges);
        self.clock.enter(before);
    }

    /// Passes on panel `k`, which is factored.
    fn share(&mut self, k: usize) {
        let slot = self.slot(k);
        if !self.owns_column(k) {
            self.work.panels[slot].begin(self.context, k);
        }
        start_broadcast(self.context, &mut self.work.panels[slot]);
    }

    /// From here on this process column does a step, all of it or nothing.
    fn step(&self) -> Option<Step> {
        self.steps.as_ref().map(|own| own.steps.step())
    }

    fn quiet(&self) -> bool {
        self.steps.as_ref().is_some_and(|own| own.quiet)
    }

    fn slot(&self, k: usize) -> usize {
        k % self.work.panels.len()
    }

    fn owns_column(&self, k: usize) -> bool {
        self.context.shape.col_map.owner(k * self.context.params.nb) == self.context.shape.col
    }

    /// Local columns of panel `k`, without the right-hand side where that is in the same block.
    fn panel_columns(&self, k: usize) -> std::ops::Range<usize> {
        let first = self.context.shape.col_from_block(k);
        first..first + self.context.width(k)
    }

    /// Waits for panel `k`'s message and derives from it what the update needs.
    fn await_panel(&mut self, k: usize) {
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

    fn finish_broadcasts(&mut self) {
        let before = self.clock.enter(Part::Broadcast);
        for panel in &mut self.work.panels {
            if let Some(mut broadcast) = panel.broadcast.take() {
                broadcast.finish(self.context.along());
            }
        }
        self.clock.enter(before);
    }

    /// Makes the slot of panel `k` ready for it and, where it comes from elsewhere, begins to
    /// receive it.
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

    /// Brings the columns of panel `next` up to date with panels `k..next`, all but the last
    /// multiplication, which is returned.
    fn catch_up(&mut self, k: usize, next: usize) -> Option<Multiplication> {
        let cols = self.panel_columns(next);
        let mut left = None;
        for earlier in k..next {
            if let Some(multiplication) = left.take() {
                self.multiply(&multiplication);
            }
            self.await_panel(earlier);
            let slot = self.slot(earlier);
            let work = &mut *self.work;
            let (panel, u) = (&work.panels[slot], work.ahead.as_mut_ptr());
            let columns = Columns::new(self.context, panel.width, self.a, cols.clone(), u);
            // SAFETY: the whole local matrix, these columns, and a buffer of a panel's width.
            left = Some(unsafe {
                prepare(self.context, panel, &columns, &mut work.near, self.pool, self.clock)
            });
        }
        left
    }

    fn multiply(&mut self, multiplication: &Multiplication) {
        let before = self.clock.enter(Part::Multiply);
        self.pool.run(multiplication.tasks(), |task| multiplication.run(task));
        self.clock.enter(before);
        self.flops += multiplication.flops();
    }

    /// Factors panel `next` while panels `k..next` wait, with nothing else to overlap it with.
    fn factor_alone(&mut self, k: usize, next: usize) {
        self.begin_panel(next);
        if self.owns_column(next) {
            let step = self.step();
            if let Some(multiplication) = self.catch_up(k, next) {
                self.multiply(&multiplication);
            }
            let slot = self.slot(next);
            let work = &mut *self.work;
            let panel = &mut work.panels[slot];
            // SAFETY: the whole local matrix.
            self.pool.together(|crew| unsafe {
                work.factor.run(self.context, panel, self.a, crew, self.clock);
            });
            if let Some(own) = &mut self.steps {
                own.progress.factored = next + 1;
            }
            drop(step);
            start_broadcast(self.context, &mut self.work.panels[slot]);
            hit(Point::PanelSent, self.context.place);
        }
    }

    /// Applies panel `k` to all columns from block `factored` on, and factors panel `next`, whose
    /// block is the one before those, on the way.
    fn iterate(&mut self, k: usize, next: Option<usize>, factored: usize) {
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
            // Whoever is past this knows that all have the panel.
            self.context.grid.barrier();
        }
        let step = self.step();
        self.clock.enter(before);
        if in_steps {
            hit(Point::StepBegin, self.context.place);
        }
        let quiet = self.quiet();
        let ours = next.filter(|&next| self.owns_column(next));
        // With threads the rest is prepared before the panel is factored, so that they can multiply
        // meanwhile; where no rank has any, the panel goes first, so that others wait less for it.
        let overlap = self.context.order.overlap();
        if let Some(next) = ours {
            if let Some(multiplication) = self.catch_up(k, next) {
                self.multiply(&multiplication);
            }
            if !overlap {
                let slot = self.slot(next);
                let work = &mut *self.work;
                let panel = &mut work.panels[slot];
                // SAFETY: the whole local matrix.
                self.pool.together(|crew| unsafe {
                    work.factor.run(self.context, panel, self.a, crew, self.clock);
                });
                if !quiet {
                    start_broadcast(self.context, &mut work.panels[slot]);
                    hit(Point::PanelSent, self.context.place);
                }
            }
        }
        self.await_panel(k);
        if self.steps.as_ref().is_none_or(|own| own.progress.generated) {
            self.apply(k, ours.filter(|_| overlap), factored);
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

    /// Applies panel `k`, which is here, to all columns from block `factored` on. `lead`: the panel to be factored meanwhile.
    fn apply(&mut self, k: usize, lead: Option<usize>, factored: usize) {
        let in_steps = self.steps.is_some();
        let shape = &self.context.shape;
        let first = (factored * self.context.params.nb).min(self.context.params.n);
        let first = match shape.is_sums() {
            // What the panel's own columns add to them is eliminated, too.
            true => shape.col_from_block(k),
            false => shape.col_map.count_below(first, shape.col),
        };
        let parts = self.parts(k, first);
        let cut = (parts.len() > 1).then(|| parts[0].cols.start);
        // While the last part is multiplied, the next iteration's first may be on its way.
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

    /// The columns from `first` on that panel `k` is applied to, in the parts and the order in which they are multiplied.
    fn parts(&mut self, k: usize, first: usize) -> Vec<Columns> {
        let (context, width) = (self.context, self.context.width(k));
        let cut = context.cut(k);
        let halves = halves::parts(first..context.shape.cols, cut);
        let wide = context.shape.cols - from_rest(&context.shape, context.params.depth, k);
        let (u, len) = (self.work.rest.as_mut_ptr(), self.work.rest.as_slice().len());
        let column = |(i, cols): (usize, Range<usize>)| {
            let of = context.engine.upper_len(width, cols.len());
            let at = if cut.is_some() && i == 0 { halves::right_at(len, of) } else { 0 };
            // SAFETY: within the buffer.
            let mut columns = Columns::new(context, width, self.a, cols, unsafe { u.add(at) });
            if cut.is_some() {
                columns.wide = wide;
            }
            columns
        };
        halves.into_iter().enumerate().map(column).collect()
    }

    /// Has the rows of `columns` exchanged as panel `k` asks for. `begun`: that is under way, or through already.
    fn exchange(&mut self, k: usize, columns: &Columns, begun: bool) {
        let slot = self.slot(k);
        let before = self.clock.enter(Part::Swap);
        let work = &mut *self.work;
        if begun {
            work.halves.hidden += u64::from(!work.far.under_way());
        } else {
            let request = columns.request(&work.panels[slot]);
            // SAFETY: the whole local matrix, columns nobody else touches, and U's buffer.
            unsafe { work.far.begin(self.context, request, Some(self.pool)) };
        }
        work.far.finish(self.context, self.pool, self.clock);
        self.clock.enter(before);
    }

    /// Ends the exchange that may be under way before its iteration, which does not come.
    fn finish_early(&mut self) {
        let Early { panel, begun } = std::mem::take(&mut self.early);
        if let Some(k) = panel {
            self.await_panel(k);
            let cut = self.context.cut(k).expect("what is early is one half");
            let columns = self.parts(k, cut).swap_remove(0);
            self.exchange(k, &columns, begun);
        }
    }

    /// Applies panel `k` to `columns`, whose rows have been exchanged. `lead`: the panel to be factored meanwhile. `soon`: a
    /// panel, and the columns whose rows are exchanged meanwhile as it asks for, from when it is here.
    fn update(
        &mut self,
        k: usize,
        columns: &Columns,
        lead: Option<usize>,
        soon: Option<(usize, &Columns)>,
    ) {
        let (context, slot, quiet) = (self.context, self.slot(k), self.quiet());
        let slots = self.work.panels.len();
        let work = &mut *self.work;
        // SAFETY: the whole local matrix, columns nobody else touches, and U's buffer.
        let rest = unsafe {
            let often = soon.is_some();
            solve(context, &work.panels[slot], columns, often, self.pool, self.clock)
        };
        if let Some((_, columns)) = soon.filter(|(of, _)| *of == k) {
            // All threads help to copy what is sent first.
            let before = self.clock.enter(Part::Swap);
            let request = columns.request(&work.panels[slot]);
            // SAFETY: as above; the multiplication does not touch these.
            unsafe { work.far.begin(context, request, Some(self.pool)) };
            self.early.begun = true;
            self.clock.enter(before);
        }
        self.flops += rest.flops();
        let before = self.clock.enter(Part::Multiply);
        let threads = self.pool.threads();
        let mates = lead.map_or(0, |next| mates(threads, context.width(next), rest.columns()));
        let a = self.a;
        let clock = RefCell::new(&mut *self.clock);
        let panels = RefCell::new(&mut work.panels);
        let (factor, far) = (&mut work.factor, RefCell::new(&mut work.far));
        let begun = RefCell::new(&mut self.early.begun);
        // Rows that may travel meanwhile do.
        let look_after_rows = || {
            let Some((of, columns)) = soon else { return };
            let (mut far, mut begun) = (far.borrow_mut(), begun.borrow_mut());
            if **begun && !far.under_way() {
                return;
            }
            let mut clock = clock.borrow_mut();
            let before = clock.enter(Part::Swap);
            let panel = &mut panels.borrow_mut()[of % slots];
            if !**begun && panel.is_here(of) {
                panel.open(context);
                // SAFETY: as above.
                unsafe { far.begin(context, columns.request(panel), None) };
                **begun = true;
            }
            let patience = PATIENCE * (threads as u32 - 1);
            let mut since = Instant::now();
            while far.under_way() {
                if far.advance(context) {
                    since = Instant::now();
                } else if since.elapsed() >= patience {
                    break;
                }
            }
            clock.enter(before);
        };
        self.pool.spread(
            rest.tasks(),
            |task| rest.run(task),
            mates,
            |crew| {
                if let Some(next) = lead {
                    let panel = &mut panels.borrow_mut()[next % slots];
                    // SAFETY: the panel's columns are not among those the tasks work on.
                    unsafe { factor.run(context, panel, a, crew, &mut clock.borrow_mut()) };
                    if !quiet {
                        start_broadcast(context, panel);
                        hit(Point::PanelSent, context.place);
                    }
                }
                look_after_rows();
            },
            || {
                // Pass on what has come in while we multiply.
                for panel in panels.borrow_mut().iter_mut() {
                    if let Some(broadcast) = &mut panel.broadcast
                        && broadcast.complete(context.along())
                    {
                        panel.broadcast = None;
                    }
                }
                look_after_rows();
            },
        );
        self.clock.enter(before);
    }
}

/// How many workers help to factor a panel of `width` columns while the others multiply it into `columns`.
///
/// The others should not wait for the panel, and threads that factor together do less each than one alone. A rank's
/// rows count in both alike. An operation of the panel takes up to four times as long as one of the multiplication, which
/// has two for each of the panel's (28 and 84 Gflop/s a thread on a Xeon of the Sapphire Rapids generation, `width` 256),
/// so one thread needs the share 2 `width` / `columns` of the others' time. The crew is such that they need twice as
/// long.
pub fn mates(threads: usize, width: usize, columns: usize) -> usize {
    let crew = (4 * width * threads).div_ceil(columns + 4 * width);
    crew.clamp(1, threads) - 1
}

/// Begins the broadcast of the panel in `panel`, at its owner once it is factored, at the others
/// as soon as its slot is free.
fn start_broadcast(context: &Context, panel: &mut Panel) {
    if context.along().size() == 1 {
        return;
    }
    let root = context.shape.col_map.owner(panel.k * context.params.nb);
    let tag = TAG + (panel.k % TAGS) as i32;
    let message = panel.message();
    let (data, len) = (message.as_mut_ptr(), message.len());
    // SAFETY: the slot keeps the message where it is and is not begun anew before the broadcast
    // is over; receivers look at it only after it has arrived.
    panel.broadcast = Some(unsafe {
        Broadcast::start(context.along(), context.params.bcast, data, len, root, tag)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crew_grows_as_the_multiplication_shrinks() {
        for threads in 1..130 {
            let mut last = 0;
            for columns in (0..40_000).rev().step_by(500) {
                let mates = mates(threads, 192, columns);
                assert!(mates >= last && mates < threads);
                last = mates;
            }
            assert_eq!(mates(threads, 192, 0), threads - 1, "nothing else to do");
        }
        assert_eq!(mates(2, 256, 15_000), 0);
        assert_eq!(mates(16, 384, 40_000), 0);
        assert_eq!(mates(64, 256, 15_000), 4);
        assert_eq!(mates(1, 384, 40_000), 0);
    }
}
