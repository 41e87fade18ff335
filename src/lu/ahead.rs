//! Looks ahead: updates the columns of the next panel before all other columns, and factors that panel.
//!
//! `iteration` decides whether this happens before the rest of the update or in the middle of it.

use std::ops::Range;

use super::clock::{Clock, Part};
use super::context::Context;
use super::factor::Factor;
use super::panel::Panel;
use super::swap::{Step, Swapper};
use super::update::{Columns, solve};
use crate::base::faults::{Point, hit};
use crate::base::threads::{PanelThreads, Pool};
use crate::comm::Broadcast;

const TAG: i32 = 16;
/// Number of tags for concurrent broadcasts of panels.
///
/// With some broadcast orders, a process column has two panels in transit from different senders. The process column may forward
/// the later one first, so each panel needs its own tag. The number is far larger than needed. A rank that factors a panel has
/// received all panels before it, so at most one more per process column is in transit.
const TAGS: usize = 8192;

/// The parts of a run that looking ahead needs.
pub(super) struct Ahead<'a> {
    pub(super) context: &'a Context<'a>,
    /// The whole local matrix.
    pub(super) a: *mut f64,
    pub(super) panels: &'a mut [Panel],
    pub(super) factor: &'a mut Factor,
    pub(super) near: &'a mut Swapper,
    /// Buffer for the rows of U in the columns of a panel.
    pub(super) u: *mut f64,
    pub(super) clock: &'a mut Clock,
    /// Floating-point operations of the multiplications done so far.
    pub(super) flops: &'a mut f64,
}

impl Ahead<'_> {
    /// Waits for panel `k`, then starts the row exchange of panel `k` in the columns of panel `next`.
    pub(super) fn begin(&mut self, k: usize, next: usize, pool: &mut Pool) {
        let (columns, slot) = (self.columns(k, next), k % self.panels.len());
        await_panel(self.context, &mut self.panels[slot], self.clock);
        let before = self.clock.enter(Part::Swap);
        let request = columns.request(self.context, &self.panels[slot]);
        // SAFETY: `a` is the whole local matrix; the columns are the panel's, and `u` is their buffer for U.
        unsafe { self.near.begin(self.context, request, Some(pool)) };
        self.clock.enter(before);
    }

    /// Returns whether a round of the row exchange is complete.
    ///
    /// If this rank receives rows in the first round, the other process rows have reached this panel, and the remaining rounds
    /// follow soon. A rank that only sends in the first round may wait for them afterwards, which costs time and nothing else.
    pub(super) fn others_are_here(&mut self) -> bool {
        let before = self.clock.enter(Part::Swap);
        let here = !self.near.under_way() || self.near.advance(self.context) != Step::Nothing;
        self.clock.enter(before);
        here
    }

    /// Updates the columns of panel `next` with panels `k..next`. `begun` means that the first row exchange has already been
    /// started.
    pub(super) fn catch_up(&mut self, k: usize, next: usize, mut begun: bool, pool: &mut Pool) {
        for earlier in k..next {
            if !std::mem::take(&mut begun) {
                self.begin(earlier, next, pool);
            }
            let before = self.clock.enter(Part::Swap);
            self.near.finish(self.context, pool, self.clock);
            self.clock.enter(Part::Multiply);
            let columns = self.columns(earlier, next);
            let panel = &self.panels[earlier % self.panels.len()];
            // SAFETY: `a` is the whole local matrix; the columns are the panel's, and `u` is their buffer for U. The row exchange
            // is complete.
            let multiplication =
                unsafe { solve(self.context, panel, &columns, false, pool, self.clock) };
            pool.run(multiplication.tasks(), |task| multiplication.run(task));
            self.clock.enter(before);
            *self.flops += multiplication.flops();
        }
    }

    /// Factors panel `next`, whose columns are up to date. Starts its broadcast unless `stays` is set.
    pub(super) fn factor(&mut self, next: usize, stays: bool, panel_threads: &mut PanelThreads) {
        let panel = &mut self.panels[next % self.panels.len()];
        // SAFETY: `a` is the whole local matrix, and no other thread works on the panel's columns.
        unsafe { self.factor.run(self.context, panel, self.a, panel_threads, self.clock) };
        if !stays {
            start_broadcast(self.context, panel);
            hit(Point::PanelSent, self.context.place);
        }
    }

    /// Returns the columns of panel `next` as the target of an update with panel `k`.
    fn columns(&self, k: usize, next: usize) -> Columns {
        let context = self.context;
        Columns::new(context, context.width(k), self.a, panel_columns(context, next), self.u)
    }
}

/// Starts the broadcast of the panel in `panel`: on its owner after the factorisation, on the other ranks as soon as the slot is
/// free.
pub(super) fn start_broadcast(context: &Context, panel: &mut Panel) {
    if context.along().size() == 1 {
        return;
    }
    let root = context.shape.col_map.owner(panel.k * context.params.nb);
    let tag = TAG + (panel.k % TAGS) as i32;
    let message = panel.message();
    let (data, len) = (message.as_mut_ptr(), message.len());
    // SAFETY: the slot keeps the message in place and is not reused before the broadcast has ended; receivers read the message
    // only after it has arrived.
    panel.broadcast = Some(unsafe {
        Broadcast::start(context.along(), context.params.bcast, data, len, root, tag)
    });
}

/// Waits for the message of a panel and derives from it the data that the update needs.
pub(super) fn await_panel(context: &Context, panel: &mut Panel, clock: &mut Clock) {
    if let Some(broadcast) = &mut panel.broadcast {
        let before = clock.enter(Part::Broadcast);
        broadcast.wait_arrived(context.along());
        clock.enter(before);
    }
    panel.open(context);
}

/// Returns the local columns of panel `k`, without the right-hand side even if that is in the same block.
fn panel_columns(context: &Context, k: usize) -> Range<usize> {
    let first = context.shape.col_from_block(k);
    first..first + context.width(k)
}
