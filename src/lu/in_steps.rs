//! The steps of a factorisation with checksum columns. A process column completes each step or does no part of it.
//!
//! So the next attempt can continue at the step in which an attempt failed, with other roles. An attempt can also rebuild
//! checksum columns during the factorisation. `abft_test` begins the steps, and `schedule` calls this file in each iteration.

use std::time::Instant;

use super::clock::Part;
use super::context::Context;
use super::observer::{Event, Observer};
use super::operations::Operations;
use super::renew::{refresh, refreshes_at, renew};
use super::roles::{Exchanges, Progress};
use crate::base::faults::{Point, hit};
use crate::comm::{Step, Steps};

/// Input of the computation of checksums.
#[derive(Clone, Copy)]
pub struct Summing<'a> {
    pub exchanges: &'a Exchanges<'a>,
    /// Numbers of the checksum columns to rebuild at the first boundary at which no panel is factored ahead.
    pub new: &'a [usize],
}

/// Maximum lookahead (HPL's DEPTH) of a test with checksum columns. Such a test is divided into steps, and a step begins only
/// after all panels that the step needs have arrived.
pub const DEPTH_IN_STEPS: usize = 1;

/// The steps of a factorisation, and the progress that a rank keeps when an attempt fails.
pub(super) struct InSteps<'a> {
    steps: Steps,
    pub(super) progress: &'a mut Progress,
    /// Input of the computation of checksums. `None` while this process column catches up with the other process columns. A
    /// process column that catches up neither broadcasts panels nor computes checksums.
    summing: Option<Summing<'a>>,
}

impl<'a> InSteps<'a> {
    /// Begins the steps of this rank's process column.
    ///
    /// Before the step of iteration k, all ranks of the grid have panel k. So when an attempt fails, each process column has
    /// applied all panels before some k and no part of panel k. These numbers k differ by at most one between process columns. A
    /// process column that is behind has all data that it needs to catch up. Ranks whose checksums are not yet rebuilt also wait
    /// for the panels, but apply no panel.
    pub(super) fn begin(
        context: &Context,
        progress: &'a mut Progress,
        summing: Option<Summing<'a>>,
    ) -> Self {
        assert!(
            context.params.depth <= DEPTH_IN_STEPS,
            "a larger lookahead is refused before the test"
        );
        Self { steps: Steps::begin(&context.column), progress, summing }
    }

    /// Returns whether panels are not broadcast, because this process column is catching up.
    pub(super) fn is_quiet(&self) -> bool {
        self.summing.is_none()
    }

    /// Returns whether this rank has its part of the matrix or of the checksums.
    pub(super) fn has_matrix(&self) -> bool {
        self.progress.generated
    }

    /// Begins a step, which this process column completes or does no part of. The step ends when the returned value is dropped.
    pub(super) fn step(&self) -> Step {
        self.steps.step()
    }

    /// Begins the step of an iteration, after waiting until all ranks of the grid have the iteration's panel. This rank has the
    /// panel already.
    pub(super) fn begin_iteration(&self, operations: &mut Operations) -> Step {
        let Operations { context, clock, .. } = operations;
        let before = clock.enter(Part::Broadcast);
        if !self.is_quiet() {
            // After this barrier, all ranks have the panel.
            context.grid.barrier();
        }
        let step = self.step();
        clock.enter(before);
        hit(Point::StepBegin, context.place);
        step
    }

    /// Ends `step`, in which panel `k` was applied. `factored` is the panel that this process column factored in the step, or
    /// `None`.
    pub(super) fn end_iteration(
        &mut self,
        context: &Context,
        step: Option<Step>,
        k: usize,
        factored: Option<usize>,
    ) {
        self.progress.applied = k + 1;
        if let Some(next) = factored {
            self.progress.factored = next + 1;
        }
        drop(step);
        hit(Point::StepEnd, context.place);
    }

    /// Returns whether checksums are computed at boundary `k`, so that no panel may be factored ahead at this boundary.
    pub(super) fn drains(&self, context: &Context, k: usize) -> bool {
        let new = self.summing.is_some_and(|summing| !summing.new.is_empty());
        new || refreshes(context, k)
    }

    /// Computes the checksums that are due at the clean boundary `k`.
    ///
    /// A rank changes its part of the matrix only in a step of its process column. The next step begins only when all ranks of
    /// the process column have added their share to the sums. So no element changes before it is summed. When existing checksums
    /// are recomputed, each row is a valid sum before and after its recomputation. So checksums remain usable if a rank is lost
    /// during the recomputation.
    pub(super) fn compute_checksums(
        &mut self,
        operations: &mut Operations,
        observer: &mut impl Observer,
        k: usize,
    ) {
        let Some(Summing { exchanges, new }) = &mut self.summing else { return };
        let (context, new) = (operations.context, std::mem::take(new));
        let before = operations.clock.enter(Part::Other);
        if !new.is_empty() {
            let began = Instant::now();
            renew(context, operations.view(), k, exchanges, new);
            if !self.progress.generated {
                let Progress { generated, applied, factored, .. } = &mut *self.progress;
                (*generated, *applied, *factored) = (true, k, k);
            }
            observer.observe(Event::Rebuilt { k, seconds: began.elapsed().as_secs_f64() });
            hit(Point::Renewed, context.place);
        }
        if refreshes(context, k) {
            refresh(context, operations.view(), k, exchanges);
        }
        operations.clock.enter(before);
    }
}

/// Returns whether existing checksums are recomputed at boundary `k`.
fn refreshes(context: &Context, k: usize) -> bool {
    context.has_sums() && refreshes_at(k, context.params.blocks())
}
