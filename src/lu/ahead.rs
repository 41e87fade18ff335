//! The panel that is next: its columns are brought up to date ahead of the others, and it is factored.
//!
//! Whether that comes before the rest or amid it `iteration` says.

use std::ops::Range;

use super::clock::{Clock, Part};
use super::context::Context;
use super::factor::Factor;
use super::iteration::start_broadcast;
use super::panel::Panel;
use super::swap::{Step, Swapper};
use super::update::{Columns, solve};
use crate::base::faults::{Point, hit};
use crate::base::threads::{Crew, Pool};

/// What it takes of a run.
pub(super) struct Ahead<'a> {
    pub(super) context: &'a Context<'a>,
    /// The whole local matrix.
    pub(super) a: *mut f64,
    pub(super) panels: &'a mut [Panel],
    pub(super) factor: &'a mut Factor,
    pub(super) near: &'a mut Swapper,
    /// A buffer for U of a panel's width.
    pub(super) u: *mut f64,
    pub(super) clock: &'a mut Clock,
    /// Operations of the multiplications done.
    pub(super) flops: &'a mut f64,
}

impl Ahead<'_> {
    /// Waits for panel `k` and begins to exchange the rows of panel `next`'s columns as it asks for.
    pub(super) fn begin(&mut self, k: usize, next: usize, pool: &mut Pool) {
        let (columns, slot) = (self.columns(k, next), k % self.panels.len());
        await_panel(self.context, &mut self.panels[slot], self.clock);
        let before = self.clock.enter(Part::Swap);
        let request = columns.request(self.context, &self.panels[slot]);
        // SAFETY: the whole local matrix, these columns, and their U's buffer.
        unsafe { self.near.begin(self.context, request, Some(pool)) };
        self.clock.enter(before);
    }

    /// Whether a round of the exchange is over. Where others' rows come in the first one, they have got to this panel, and the
    /// rest comes soon; whoever only sends in it goes on to wait, which costs time alone.
    pub(super) fn others_are_here(&mut self) -> bool {
        let before = self.clock.enter(Part::Swap);
        let here = !self.near.under_way() || self.near.advance(self.context) != Step::Nothing;
        self.clock.enter(before);
        here
    }

    /// Brings the columns of panel `next` up to date with panels `k..next`. `begun`: the first exchange of rows is under way.
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
            // SAFETY: the whole local matrix, these columns, and their U's buffer; the rows are there.
            let multiplication =
                unsafe { solve(self.context, panel, &columns, false, pool, self.clock) };
            pool.run(multiplication.tasks(), |task| multiplication.run(task));
            self.clock.enter(before);
            *self.flops += multiplication.flops();
        }
    }

    /// Factors panel `next`, whose columns are up to date, and passes it on unless it is to stay here.
    pub(super) fn factor(&mut self, next: usize, stays: bool, crew: &mut Crew) {
        let panel = &mut self.panels[next % self.panels.len()];
        // SAFETY: the whole local matrix; nobody else works on the panel's columns.
        unsafe { self.factor.run(self.context, panel, self.a, crew, self.clock) };
        if !stays {
            start_broadcast(self.context, panel);
            hit(Point::PanelSent, self.context.place);
        }
    }

    /// The columns of panel `next`, to be brought up to date with panel `k`.
    fn columns(&self, k: usize, next: usize) -> Columns {
        let context = self.context;
        Columns::new(context, context.width(k), self.a, panel_columns(context, next), self.u)
    }
}

/// Waits for a panel's message and derives from it what the update needs.
pub(super) fn await_panel(context: &Context, panel: &mut Panel, clock: &mut Clock) {
    if let Some(broadcast) = &mut panel.broadcast {
        let before = clock.enter(Part::Broadcast);
        broadcast.wait_arrived(context.along());
        clock.enter(before);
    }
    panel.open(context);
}

/// Local columns of panel `k`, without the right-hand side where that is in the same block.
fn panel_columns(context: &Context, k: usize) -> Range<usize> {
    let first = context.shape.col_from_block(k);
    first..first + context.width(k)
}
