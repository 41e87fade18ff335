//! Measures the time of parts of a factorisation: ranges of iterations, or one panel.
//!
//! The time of an iteration depends on the size of the trailing submatrix and hardly on its values. So the measured factorisation
//! may start at any boundary with a newly generated matrix. The first iteration factors a panel without overlap, unlike in a
//! whole factorisation, so this iteration is not counted.

use std::io;
use std::ops::Range;

use super::arrays::{own_part, work_arrays};
use super::clock::Clock;
use super::context::Context;
use super::factor::Factor;
use super::observer::{Event, Observer};
use super::panel::Panel;
use super::schedule::factorise;
use crate::base::threads::Pool;
use crate::comm::Reduce;
use crate::matrix::Generator;

/// Observer that records how long the range of iterations takes.
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

/// Returns the seconds that each range of iterations takes on the slowest rank. All ranks of the grid call this together.
///
/// # Errors
/// Fails on all ranks if any rank cannot allocate its memory.
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
        // SAFETY: the pointer is the whole local matrix, which is used nowhere else.
        unsafe {
            factorise(context, local.pointer(), from, &mut work, pool, &mut clock, &mut watch);
        }
        let mut took = [watch.took.unwrap_or_else(|| clock.elapsed() - watch.began)];
        context.grid.all_reduce(&mut took, Reduce::Max);
        seconds.push(took[0]);
    }
    Ok(seconds)
}

/// Returns the seconds that a grid of one rank takes to factor its first panel with all threads: the shortest time of `tries`
/// tries.
///
/// The matrix has only the panel's columns, so N may be far too large for the memory.
///
/// # Errors
/// Fails if the memory for the panel cannot be allocated.
pub fn time_panel(mut context: Context, tries: usize, pool: &mut Pool) -> io::Result<f64> {
    let params = context.params;
    assert!(params.p * params.q == 1, "the grid has one rank");
    context.shape = context.shape.first_columns(context.width(0));
    let lengths = context.lengths(pool.threads());
    let mut local = own_part(&context)?;
    let (mut panel, mut factor) =
        (Panel::new(&lengths, None, pool)?, Factor::new(&lengths, None, pool)?);
    let generator = Generator::new(params.rng, params.seed, params.n);
    let mut shortest = f64::INFINITY;
    for _ in 0..tries {
        local.generate(&generator, pool);
        panel.begin(&context, 0);
        let (a, mut clock) = (local.pointer(), Clock::start());
        // SAFETY: the pointer is the local matrix, which is used nowhere else.
        pool.together(|threads| unsafe {
            factor.run(&context, &mut panel, a, threads, &mut clock);
        });
        shortest = shortest.min(clock.elapsed());
    }
    Ok(shortest)
}
