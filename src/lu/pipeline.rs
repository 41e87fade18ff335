//! The factorisation: panels, broadcasts and updates in the order that overlaps them best.
//!
//! At iteration k panel k is applied to everything right of it. With a lookahead of DEPTH, panel
//! k + DEPTH is factored first: its columns are brought up to date ahead of the rest, so that its
//! broadcast is under way while the rest is multiplied. Where a rank has threads, its main thread
//! factors while the others already multiply. Whether any rank has decides the order of messages, on all
//! ranks alike (`Context::order`): a rank without threads then factors a little later than it could. Where none has and the
//! update goes in halves, a rank that comes to a panel before others of its process column multiplies until they are there.
//!
//! A *boundary* k is the moment when all updates before panel k are done everywhere. The pipeline
//! passes through a clean boundary only where the observer asks for one, because there no panel may
//! be factored ahead.
//!
//! This is the order of iterations, which `lookahead` decides; what one of them does is in `iteration`. `in_steps` is the order
//! where process columns keep sums.

use super::clock::{Clock, Part};
use super::context::Context;
use super::iteration::Run;
use super::lookahead::Lookahead;
use super::observer::{Halt, Observer};
use super::work::Work;
use crate::base::threads::Pool;

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
    let mut run = Run::new(context, a, work, (pool, clock), observer, None);
    let mut ahead = Lookahead::new(start, blocks, context.params.depth);
    for k in start..blocks {
        if ahead.is_clean(k, |k| run.observer.drains(k)) {
            debug_assert!(!run.is_early(), "no panel is factored across a drain");
            run.finish_broadcasts();
            let before = run.clock.enter(Part::Save);
            let halt = run.observer.boundary(k, a, run.pool);
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
        while let Some(next) = ahead.next(k, |k| run.observer.drains(k)) {
            if let Some(earlier) = last.replace(next) {
                run.factor_alone(k, earlier);
            }
        }
        let factored = ahead.factored();
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
