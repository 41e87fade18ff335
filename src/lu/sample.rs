//! Times stretches of a factorisation instead of all of it.
//!
//! The time of an iteration depends on the size of the trailing submatrix and hardly on its values. So the factorisation may
//! start at any boundary of a matrix that was only generated. The first iteration factors a panel without overlap, unlike in a
//! whole factorisation, so it is not counted.

use std::io;
use std::ops::Range;

use super::arrays::{own_part, work_arrays};
use super::clock::Clock;
use super::context::Context;
use super::observer::{Event, Observer};
use super::schedule::factorise;
use crate::base::threads::Pool;
use crate::comm::Reduce;
use crate::matrix::Generator;

/// Observer that records when the stretch begins and ends.
struct Watch {
    stretch: Range<usize>,
    began: f64,
    took: Option<f64>,
}

impl Observer for Watch {
    fn observe(&mut self, event: Event) {
        let Event::Iteration { k, elapsed, .. } = event else { return };
        if k == self.stretch.start {
            self.began = elapsed;
        }
        if k == self.stretch.end {
            self.took = Some(elapsed - self.began);
        }
    }

    fn leaves(&mut self, k: usize) -> bool {
        k == self.stretch.end
    }
}

/// Returns the seconds of each range of iterations, on the slowest rank. All ranks of the grid call this together.
///
/// # Errors
/// On all ranks, if any rank gets no memory.
pub fn time_stretches(
    context: &Context,
    stretches: &[Range<usize>],
    pool: &mut Pool,
) -> io::Result<Vec<f64>> {
    let params = context.params;
    let mut local = own_part(context)?;
    let mut work = work_arrays(context, pool)?;
    local.generate(&Generator::new(params.rng, params.seed, params.n), pool);
    let mut seconds = Vec::with_capacity(stretches.len());
    for stretch in stretches {
        let mut watch = Watch { stretch: stretch.clone(), began: 0.0, took: None };
        let from = stretch.start.saturating_sub(1);
        context.grid.barrier();
        let mut clock = Clock::start();
        // SAFETY: the whole local matrix, which is used nowhere else.
        unsafe {
            factorise(context, local.pointer(), from, &mut work, pool, &mut clock, &mut watch);
        }
        let mut took = [watch.took.unwrap_or_else(|| clock.elapsed() - watch.began)];
        context.grid.all_reduce(&mut took, Reduce::Max);
        seconds.push(took[0]);
    }
    Ok(seconds)
}
