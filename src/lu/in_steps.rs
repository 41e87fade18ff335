//! Factors a matrix with checksum columns in steps: a process column completes each step or does none of it.
//!
//! The factorisation can continue from the point where an attempt was lost, with other roles, and rebuild checksum columns on its
//! way. `standing` calls it. An iteration is the same as in `pipeline`.

use std::time::Instant;

use super::clock::{Clock, Part};
use super::context::Context;
use super::iteration::{InSteps, Run};
use super::observer::{Observer, Silent};
use super::renew::{refresh, refreshes_at, renew};
use super::roles::{Exchanges, Progress};
use super::work::Work;
use crate::base::faults::{Point, hit};
use crate::base::threads::Pool;
use crate::comm::Steps;

/// Input of the computation of checksums.
#[derive(Clone, Copy)]
pub struct Summing<'a> {
    pub exchanges: &'a Exchanges<'a>,
    /// Numbers of the checksum columns to rebuild as soon as no panel is factored ahead.
    pub new: &'a [usize],
}

/// Maximum lookahead of a factorisation in steps: all panels that a step needs must have arrived before it begins.
pub const DEPTH_IN_STEPS: usize = 1;

/// Factors in steps from boundary `start`. If `ready` is set, panel `start` is already factored and its process column has it.
///
/// Before a step of iteration k, all ranks of the grid have panel k. So wherever an attempt is lost, each process column has
/// applied all panels before some k and no part of k. These k differ by at most one, and a process column that is behind has all
/// it needs to catch up ([`catch_up_in_steps`]). Ranks whose checksums are not yet built wait for panels with all others and
/// apply none.
///
/// # Safety
/// As for [`super::pipeline::factorise`].
#[allow(clippy::too_many_arguments)] // the parameters of `factorise` and two more
pub unsafe fn factorise_in_steps<O: Observer>(
    context: &Context,
    a: *mut f64,
    start: usize,
    ready: bool,
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
    let mut run = Run::new(context, a, work, pool, clock, observer, steps);
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
    // A rank that has passed this point knows that the others of its process column have completed their last step.
    let last = run.steps.as_ref().map(|own| own.steps.step());
    drop(last);
}

/// Takes the one step by which this process column is behind the others, with the panel that it has.
///
/// # Safety
/// As for [`super::pipeline::factorise`].
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
    let mut run = Run::new(context, a, work, pool, clock, observer, steps);
    let next = ahead.then_some(k + 1);
    run.iterate(k, next, k + 1 + usize::from(ahead));
    let last = run.steps.as_ref().map(|own| own.steps.step());
    drop(last);
}

impl<O: Observer> Run<'_, O> {
    /// Rebuilds checksum columns at boundary `k`.
    ///
    /// No rank changes the input of the sums before its process column's next step. That step begins only when all ranks of the
    /// process column have added their share.
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

    /// Recomputes the existing checksums at boundary `k`.
    ///
    /// The rows already recomputed and the remaining rows are both valid sums at this boundary. So the checksums remain usable
    /// whichever rank is lost meanwhile.
    fn refresh(&mut self, k: usize, exchanges: &Exchanges) {
        let before = self.clock.enter(Part::Other);
        refresh(self.context, self.view(), k, exchanges);
        self.clock.enter(before);
    }
}
