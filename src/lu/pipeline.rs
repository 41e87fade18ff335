//! The factorisation: panels, broadcasts and updates in the order that overlaps them best.
//!
//! At iteration k, panel k is applied to all columns right of it. With a lookahead of DEPTH, panel k + DEPTH is factored first:
//! its columns are updated before the rest, so that its broadcast overlaps the multiplication.
//!
//! If a rank has threads, its main thread factors while the others already multiply. The order of messages depends on whether any
//! rank has threads, and is the same on all ranks (`Context::order`). A rank without threads then factors a little later than it
//! could. Some runs have no threads but split updates in halves. Then a rank that reaches a panel early multiplies until the
//! other ranks of its process column come.
//!
//! A *boundary* k is the moment when all updates before panel k are complete on all ranks. The pipeline passes through a clean
//! boundary only where the observer requests one, because no panel may be factored ahead there.
//!
//! This file runs the iterations in the order that `lookahead` decides; `iteration` contains a single one. `in_steps` takes the
//! place of this file if the test has checksum columns.

use super::clock::{Clock, Part};
use super::context::Context;
use super::iteration::Run;
use super::lookahead::Lookahead;
use super::observer::{Halt, Observer};
use super::work::Work;
use crate::base::threads::Pool;

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
    let blocks = context.params.blocks();
    let mut run = Run::new(context, a, work, pool, clock, observer, None);
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
            // First end the operations for which all ranks wait in the same order.
            run.finish_broadcasts();
            run.finish_early();
            return Halt::Stop;
        }
        // All panels that may be factored now, except the last, are factored without overlap. That happens only at the start,
        // after a drain, and without lookahead.
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
