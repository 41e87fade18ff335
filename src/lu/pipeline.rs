//! The factorisation: panels, broadcasts and updates in the order that overlaps them best.
//!
//! At iteration k panel k is applied to everything right of it. With a lookahead of DEPTH, panel
//! k + DEPTH is factored first: its columns are brought up to date ahead of the rest, so that its
//! broadcast is under way while the rest is multiplied. Where a rank has threads, its main thread
//! factors while the others already multiply.
//!
//! A *boundary* k is the moment when all updates before panel k are done everywhere. The pipeline
//! passes through a clean boundary only where the observer asks for one, because there no panel may
//! be factored ahead.

use std::io;

use super::clock::{Clock, Part};
use super::context::Context;
use super::factor::Factor;
use super::panel::Panel;
use super::swap::Swapper;
use super::update::{Multiplication, prepare};
use crate::comm::Broadcast;
use crate::matrix::HugeBuffer;
use crate::threads::Pool;

const TAG: i32 = 16;
/// Broadcasts of successive panels carry tags of their own, so that they cannot be mixed up.
const TAGS: usize = 64;

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

    /// This rank has spent so many seconds multiplying since the factorisation began, waiting for nobody, and
    /// has done so many operations in them.
    fn multiplied(&mut self, seconds: f64, flops: f64) {
        let _ = (seconds, flops);
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
    swapper: Swapper,
    /// U for the columns of the panel that is next, and for the rest.
    ahead: HugeBuffer,
    rest: HugeBuffer,
}

impl Work {
    pub fn new(context: &Context) -> io::Result<Self> {
        let slots = slots(context);
        let width = context.params.nb.min(context.params.n);
        Ok(Self {
            panels: (0..slots).map(|_| Panel::new(context)).collect::<io::Result<_>>()?,
            factor: Factor::new(context)?,
            swapper: Swapper::default(),
            ahead: HugeBuffer::touched(context.engine.upper_len(width, width + 1))?,
            rest: HugeBuffer::touched(context.engine.upper_len(width, context.shape.cols))?,
        })
    }

    /// Bytes of all of it, at most.
    pub fn bytes(context: &Context) -> u64 {
        let width = context.params.nb.min(context.params.n);
        let doubles = slots(context) * Panel::room(context)
            + Factor::room(context)
            + Swapper::room(context)
            + context.engine.upper_len(width, width + 1)
            + context.engine.upper_len(width, context.shape.cols);
        doubles as u64 * 8
    }
}

/// Panels that exist at the same time: the one being applied and those factored ahead.
fn slots(context: &Context) -> usize {
    (context.params.depth + 1).min(context.params.blocks().max(1))
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
}

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
    let mut run = Run { context, a, work, pool, clock, observer, flops: 0.0 };
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
            run.finish_broadcasts();
            let before = run.clock.enter(Part::Save);
            let halt = run.observer.boundary(k, a);
            run.clock.enter(before);
            if halt == Halt::Stop {
                return Halt::Stop;
            }
        }
        run.observer.iteration(k, blocks, run.clock.elapsed());
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

impl<O: Observer> Run<'_, O> {
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
            broadcast.wait_arrived(&self.context.row);
            self.clock.enter(before);
        }
        panel.open(self.context);
    }

    fn finish_broadcasts(&mut self) {
        let before = self.clock.enter(Part::Broadcast);
        for panel in &mut self.work.panels {
            if let Some(mut broadcast) = panel.broadcast.take() {
                broadcast.finish(&self.context.row);
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
            broadcast.finish(&self.context.row);
            self.clock.enter(before);
        }
        self.work.panels[slot].begin(self.context, k);
        if !self.owns_column(k) {
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
            // SAFETY: the whole local matrix, these columns, and a buffer of a panel's width.
            left = Some(unsafe {
                prepare(
                    self.context,
                    &work.panels[slot],
                    self.a,
                    cols.clone(),
                    &mut work.ahead,
                    &mut work.swapper,
                    self.pool,
                    self.clock,
                )
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
            if let Some(multiplication) = self.catch_up(k, next) {
                self.multiply(&multiplication);
            }
            let slot = self.slot(next);
            let work = &mut *self.work;
            // SAFETY: the whole local matrix.
            unsafe {
                work.factor.run(self.context, &mut work.panels[slot], self.a, self.clock);
            }
            start_broadcast(self.context, &mut work.panels[slot]);
        }
    }

    /// Applies panel `k` to all columns from block `factored` on, and factors panel `next`, whose
    /// block is the one before those, on the way.
    fn iterate(&mut self, k: usize, next: Option<usize>, factored: usize) {
        if let Some(next) = next {
            self.begin_panel(next);
        }
        let ours = next.filter(|&next| self.owns_column(next));
        // With threads the rest is prepared before the panel is factored, so that they can
        // multiply meanwhile; alone, the panel goes first, so that others wait less for it.
        let overlap = self.pool.threads() > 1;
        if let Some(next) = ours {
            if let Some(multiplication) = self.catch_up(k, next) {
                self.multiply(&multiplication);
            }
            if !overlap {
                let slot = self.slot(next);
                let work = &mut *self.work;
                // SAFETY: the whole local matrix.
                unsafe {
                    work.factor.run(self.context, &mut work.panels[slot], self.a, self.clock);
                }
                start_broadcast(self.context, &mut work.panels[slot]);
            }
        }
        self.await_panel(k);
        let shape = &self.context.shape;
        let first = (factored * self.context.params.nb).min(self.context.params.n);
        let cols = shape.col_map.count_below(first, shape.col)..shape.cols;
        let slot = self.slot(k);
        let work = &mut *self.work;
        // SAFETY: the whole local matrix, columns nobody else touches, and U's buffer.
        let rest = unsafe {
            prepare(
                self.context,
                &work.panels[slot],
                self.a,
                cols,
                &mut work.rest,
                &mut work.swapper,
                self.pool,
                self.clock,
            )
        };
        self.flops += rest.flops();
        let before = self.clock.enter(Part::Multiply);
        let context = self.context;
        let a = self.a;
        let clock = std::cell::RefCell::new(&mut *self.clock);
        let panels = std::cell::RefCell::new(&mut work.panels);
        let factor = &mut work.factor;
        let next_slot = next.map(|next| next % panels.borrow().len());
        self.pool.spread(
            rest.tasks(),
            |task| rest.run(task),
            || {
                if let (Some(_), true, Some(slot)) = (ours, overlap, next_slot) {
                    let mut panels = panels.borrow_mut();
                    // SAFETY: the panel's columns are not among those the tasks work on.
                    unsafe {
                        factor.run(context, &mut panels[slot], a, &mut clock.borrow_mut());
                    }
                    start_broadcast(context, &mut panels[slot]);
                }
            },
            || {
                // Pass on what has come in while we multiply.
                for panel in panels.borrow_mut().iter_mut() {
                    if let Some(broadcast) = &mut panel.broadcast
                        && broadcast.complete(&context.row)
                    {
                        panel.broadcast = None;
                    }
                }
            },
        );
        self.clock.enter(before);
    }
}

/// Begins the broadcast of the panel in `panel`, at its owner once it is factored, at the others
/// as soon as its slot is free.
fn start_broadcast(context: &Context, panel: &mut Panel) {
    if context.params.q == 1 {
        return;
    }
    let root = context.shape.col_map.owner(panel.k * context.params.nb);
    let tag = TAG + (panel.k % TAGS) as i32;
    let message = panel.message();
    let (data, len) = (message.as_mut_ptr(), message.len());
    // SAFETY: the slot keeps the message where it is and is not begun anew before the broadcast
    // is over; receivers look at it only after it has arrived.
    panel.broadcast =
        Some(unsafe { Broadcast::start(&context.row, context.params.bcast, data, len, root, tag) });
}
