//! Times stretches of a factorisation, in place of all of it.
//!
//! How long an iteration takes depends on what is left of the matrix, hardly on its values: so the factorisation may
//! begin at any boundary of a matrix that was only generated. The iteration it begins with factors a panel that
//! would have been factored beside another's multiplication, so it does not count.

use std::io;
use std::ops::Range;

use super::arrays::{own_part, work_arrays};
use super::clock::Clock;
use super::context::Context;
use super::observer::Observer;
use super::pipeline::factorise;
use crate::base::threads::Pool;
use crate::comm::Reduce;
use crate::matrix::Generator;

/// Notes when the stretch begins and ends.
struct Watch {
    stretch: Range<usize>,
    began: f64,
    took: Option<f64>,
}

impl Observer for Watch {
    fn iteration(&mut self, k: usize, _blocks: usize, elapsed: f64) {
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

/// Seconds that each of these ranges of iterations takes, on the rank where it takes longest. All ranks of the grid
/// together.
///
/// # Errors
/// At all of them, if any gets no memory.
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
        // SAFETY: the whole local matrix, which nobody else knows of.
        unsafe {
            factorise(context, local.pointer(), from, &mut work, pool, &mut clock, &mut watch);
        }
        let mut took = [watch.took.unwrap_or_else(|| clock.elapsed() - watch.began)];
        context.grid.all_reduce(&mut took, Reduce::Max);
        seconds.push(took[0]);
    }
    Ok(seconds)
}
