//! Measures the time of parts of a factorisation: ranges of iterations, or one panel.
//!
//! The time of an iteration depends on the size of the trailing submatrix and hardly on its values. So the measured factorisation
//! may start at any boundary with a newly generated matrix. The first iteration factors a panel without overlap, unlike in a
//! whole factorisation, so this iteration is not counted.

use std::io;
use std::ops::Range;

use super::arrays::{own_part, part_on, work_arrays};
use super::clock::Clock;
use super::context::Context;
use super::observer::{Event, Observer};
use super::schedule::factorise;
use super::test::generate;
use crate::base::threads::Pool;
use crate::comm::Reduce;
use crate::device::Stream;
use crate::matrix::{Local, Storage};

/// Observer that measures the time of a range of iterations, and ends the factorisation after this range.
struct Watch {
    /// Iterations whose time is measured.
    stretch: Range<usize>,
    /// Start of the range, in seconds on the clock of the factorisation.
    began: f64,
    /// Seconds that the range took; `None` if its end was not observed.
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
    match &context.device {
        None => time_each(context, own_part(context)?, stretches, pool),
        Some(device) => time_each(context, part_on(device, context)?, stretches, pool),
    }
}

/// Returns the seconds that each range of iterations takes on the slowest rank, in the memory `local`.
fn time_each<S: Storage>(
    context: &Context,
    mut local: Local<S>,
    stretches: &[Range<usize>],
    pool: &mut Pool,
) -> io::Result<Vec<f64>> {
    let work = &mut work_arrays(context, pool)?;
    generate(context, &mut local, work, pool);
    let a = local.pointer();
    let mut seconds = Vec::with_capacity(stretches.len());
    for stretch in stretches {
        let mut watch = Watch { stretch: stretch.clone(), began: 0.0, took: None };
        let from = stretch.start.saturating_sub(1);
        context.grid.barrier();
        let mut clock = Clock::start();
        // SAFETY: the pointer is the whole local matrix, which is used nowhere else.
        unsafe {
            factorise(context, a, from, work, pool, &mut clock, &mut watch);
        }
        if let Some(device) = &context.device {
            for stream in [Stream::Panel, Stream::Rows, Stream::Update] {
                device.finish(stream);
            }
        }
        let mut took = [watch.took.unwrap_or_else(|| clock.elapsed() - watch.began)];
        context.grid.all_reduce(&mut took, Reduce::Max);
        seconds.push(took[0]);
    }
    Ok(seconds)
}

/// Returns the seconds that a grid of one rank takes to factor its first panel, with all threads or on the device. The result is
/// the shortest time of `tries` tries.
///
/// The matrix has only the panel's columns, so N may be far too large for the memory.
///
/// # Errors
/// Fails if the memory for the panel cannot be allocated.
pub fn time_panel(mut context: Context, tries: usize, pool: &mut Pool) -> io::Result<f64> {
    let params = context.params;
    assert!(params.p * params.q == 1, "the grid has one rank");
    context.shape = context.shape.first_columns(context.width(0));
    match &context.device {
        None => time_tries(&context, own_part(&context)?, tries, pool),
        Some(device) => time_tries(&context, part_on(device, &context)?, tries, pool),
    }
}

/// Returns the shortest time of `tries` factorisations of the first panel, in the memory `local`.
fn time_tries<S: Storage>(
    context: &Context,
    mut local: Local<S>,
    tries: usize,
    pool: &mut Pool,
) -> io::Result<f64> {
    let work = &mut work_arrays(context, pool)?;
    let mut shortest = f64::INFINITY;
    for _ in 0..tries {
        generate(context, &mut local, work, pool);
        let (a, panel, mut clock) = (local.pointer(), &mut work.panels[0], Clock::start());
        panel.begin(context, 0);
        // SAFETY: the pointer is the local matrix, which is used nowhere else.
        pool.together(|threads| unsafe { work.factor.run(context, panel, a, threads, &mut clock) });
        if let Some(device) = &context.device {
            device.finish(Stream::Panel);
        }
        shortest = shortest.min(clock.elapsed());
    }
    Ok(shortest)
}
