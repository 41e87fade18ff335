//! Runs one test, from the generation of the matrix to the verdict.

use std::io;

use ndarray::ArrayViewMut2;

use super::arrays::work_arrays;
use super::clock::{Clock, Part};
use super::context::Context;
use super::observer::{Event, Halt, Milestone, Observer};
use super::residual;
use super::schedule::factorise;
use super::solve::{Factored, back_substitute, room};
use super::work::Work;
use crate::base::clock;
use crate::base::outcome::{Outcome, Times, Verdict, combined};
use crate::base::threads::Pool;
use crate::base::timeline::Timeline;
use crate::comm::{Reduce, Wire, set_phase};
use crate::device::Stream;
use crate::kernels::Matrix;
use crate::matrix::{Generator, Local, Shape, Storage, generate_columns};
use xxhash_rust::xxh3::Xxh3;

const DIGEST_TAG: i32 = 6;

/// State in which a test begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// The matrix is not yet generated.
    Fresh,
    /// All panels before `boundary` are applied to the matrix. The clock of the test first started at `began_unix_s`, in seconds
    /// since the Unix epoch.
    Resumed { boundary: usize, began_unix_s: f64 },
}

/// Solves one test. All ranks of the grid call this together. The outcome is the same on all ranks.
///
/// Returns `None` if the observer stopped the test. Fails on all ranks if any rank cannot allocate its work arrays.
pub fn solve_test<S: Storage, O: Observer>(
    context: &Context,
    local: &mut Local<S>,
    start: Start,
    pool: &mut Pool,
    observer: &mut O,
) -> io::Result<Option<Outcome>> {
    forget_resident_peak();
    let mut work = work_arrays(context, pool)?;
    if start == Start::Fresh {
        set_phase("generating the matrix");
        observer.observe(Event::Reached(Milestone::Generating));
        generate(context, local, &mut work, pool);
        observer.observe(Event::Reached(Milestone::Generated));
    }
    let a = local.pointer();
    let (boundary, began) = match start {
        Start::Fresh => (0, None),
        Start::Resumed { boundary, began_unix_s } => (boundary, Some(began_unix_s)),
    };
    let mut timer = Timer::start(context, began);
    observer.observe(Event::Began { unix_s: timer.began });
    // SAFETY: the local matrix is borrowed mutably for the whole test.
    let halt =
        unsafe { factorise(context, a, boundary, &mut work, pool, &mut timer.clock, observer) };
    if halt == Halt::Stop {
        return Ok(None);
    }
    set_phase("solving");
    observer.observe(Event::Reached(Milestone::Factored));
    let factored = match context.device.as_deref() {
        Some(device) => {
            let a = Matrix::new(a.cast_const(), context.shape.ld);
            Factored::On { device, a, room: work.factor.room() }
        }
        None => Factored::Here(local.view()),
    };
    let x = back_substitute(context, factored, pool, &mut timer.clock);
    Ok(Some(conclude(context, timer, &mut Some(work), x, pool, observer)))
}

/// Generates this rank's part of the matrix. If the part is in the memory of a device, the processor generates columns by the
/// width of a panel at a time, and copies them to the device.
pub(super) fn generate<S: Storage>(
    context: &Context,
    local: &mut Local<S>,
    work: &mut Work,
    pool: &mut Pool,
) {
    let generator = &generator(context);
    let Some(device) = &context.device else { return local.generate(generator, pool) };
    let (a, ld) = (local.pointer(), local.shape.ld);
    let Shape { n, nb, rows, cols, .. } = context.shape;
    let (room, width) = (work.factor.room(), nb.min(n).max(1));
    for first in (0..cols).step_by(width) {
        let some = first..(first + width).min(cols);
        let len = some.len();
        let part = &mut room[..rows * len];
        let mut view = ArrayViewMut2::from_shape((rows, len), part)
            .expect("the slice has `rows` times `len` elements");
        generate_columns(&context.shape, some, generator, view.view_mut(), pool);
        let from = Matrix::new(view.as_ptr(), len);
        let to = Matrix::new(a.wrapping_add(first), ld);
        // SAFETY: nothing else uses these columns of the matrix yet. The copy ends before the room is written again.
        unsafe { device.copy_2d(Stream::Panel, from, to, rows, len) };
        device.finish(Stream::Panel);
    }
}

pub(super) fn generator(context: &Context) -> Generator {
    let params = context.params;
    Generator::new(params.rng, params.seed, params.n)
}

/// Measures the time that counts for the result.
pub(super) struct Timer {
    /// Time at which this attempt began, in seconds since the Unix epoch, by the clock of rank 0.
    now: f64,
    /// Time at which the first attempt of the test began, in seconds since the Unix epoch.
    pub began: f64,
    pub clock: Clock,
}

impl Timer {
    /// Starts the clock on all ranks of the grid at the same time. `began` is the time at which the test's first attempt began,
    /// in seconds since the Unix epoch, or `None` in the first attempt.
    pub fn start(context: &Context, began: Option<f64>) -> Self {
        set_phase("factoring");
        context.grid.barrier();
        // The time of a test includes earlier attempts and the time between attempts. All ranks use the time of rank 0, because
        // the clocks of nodes may differ.
        let mut now = [unix_seconds()];
        context.grid.broadcast(&mut now, 0);
        let [now] = now;
        let began = began.map_or(now, |began| began.min(now));
        Self { now, began, clock: Clock::start() }
    }
}

/// Stops the clock, checks the solution and returns the outcome. `x` is this process column's part of the solution. The work
/// arrays are freed before the check.
pub(super) fn conclude<O: Observer>(
    context: &Context,
    timer: Timer,
    work: &mut Option<Work>,
    x: Vec<f64>,
    pool: &mut Pool,
    observer: &mut O,
) -> Outcome {
    let params = context.params;
    let Timer { now, began, mut clock } = timer;
    let before = clock.enter(Part::Other);
    debug_assert_eq!(before, Part::Other);
    let own = clock.stop();
    let seconds = combine(context, [now - began + own.total], Reduce::Max)[0];
    observer.observe(Event::Reached(Milestone::Solved));
    observer.observe(Event::Solved(&x));
    let (times, times_mean) = gather_times(context, own);
    let work = work.take();
    let work_bytes = work.as_ref().map_or(0, Work::bytes) + 8 * room(&context.shape) as u64;
    let split_update = work.map(|work| work.split_update).unwrap_or_default();
    let split_update = combined(split_update, |counts: &mut [u64]| {
        context.grid.all_reduce(counts, Reduce::Sum);
    });
    set_phase("checking the solution");
    let residual =
        (params.threshold > 0.0).then(|| residual::check(context, &generator(context), &x, pool));
    let verdict = match &residual {
        None => Verdict::Unchecked,
        Some(r) if r.scaled < params.threshold => Verdict::Passed,
        Some(_) => Verdict::Failed,
    };
    let sizes = combine(
        context,
        [context.shape.len() as f64 * 8.0, work_bytes as f64, resident_peak()],
        Reduce::Max,
    );
    set_phase("reporting");
    Outcome {
        started_unix_s: began as u64,
        ended_unix_s: (began + seconds) as u64,
        seconds,
        gflops: if seconds > 0.0 { params.flops() / seconds / 1e9 } else { 0.0 },
        times,
        times_mean,
        residual,
        verdict,
        split_update,
        x_digest: digest(context, &x),
        threads: pool.threads(),
        matrix_bytes_max: sizes[0] as u64,
        work_bytes_max: sizes[1] as u64,
        resident_bytes_max: sizes[2] as u64,
        protection: None,
        checksums: None,
        timeline: Timeline::default(),
        power: None,
    }
}

/// Returns the seconds since the Unix epoch, according to this node's clock.
pub fn unix_seconds() -> f64 {
    clock::since_1970().as_secs_f64()
}

fn combine<T: Wire, const LEN: usize>(
    context: &Context,
    mut values: [T; LEN],
    op: Reduce,
) -> [T; LEN] {
    context.grid.all_reduce(&mut values, op);
    values
}

/// Returns the maximum and the mean over all ranks of the grid, for each part of the time.
fn gather_times(context: &Context, own: Times) -> (Times, Times) {
    let max = combined(own, |figures: &mut [f64]| context.grid.all_reduce(figures, Reduce::Max));
    let mean = combined(own, |figures: &mut [f64]| {
        context.grid.all_reduce(figures, Reduce::Sum);
        figures.iter_mut().for_each(|sum| *sum /= context.grid.size() as f64);
    });
    (max, mean)
}

/// Resets the operating system's record of this process's largest resident set, so that each test of a sweep reports its own
/// peak.
pub(super) fn forget_resident_peak() {
    // If the reset is not permitted, the peak of the whole process is reported, which is never too small.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Returns the largest resident set of this process so far, in bytes. Returns zero if the system does not report a value.
fn resident_peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0
}

/// Returns a hash over the bits of x in the order of indices, in hexadecimal. The hash is the same on all ranks that have a part
/// of x. Ranks of checksum columns get an empty text.
///
/// The first rank of each process row receives x block by block, so that no rank needs memory for the whole x.
fn digest(context: &Context, x: &[f64]) -> String {
    let Context { shape, params, row, .. } = context;
    if shape.is_sums() {
        return String::new();
    }
    let (mut hash, mut received) = (Xxh3::new(), vec![0.0; params.nb.min(params.n)]);
    for k in 0..params.blocks() {
        let first = k * params.nb;
        let (owner, at, width) =
            (shape.col_map.owner(first), shape.col_map.local(first), context.width(k));
        if shape.col == 0 {
            let block = if owner == 0 {
                &x[at..at + width]
            } else {
                row.recv(&mut received[..width], owner, DIGEST_TAG);
                &received[..width]
            };
            block.iter().for_each(|x| hash.update(&x.to_bits().to_le_bytes()));
        } else if shape.col == owner {
            row.send(&x[at..at + width], 0, DIGEST_TAG);
        }
    }
    let mut digest = [hash.digest()];
    row.broadcast(&mut digest, 0);
    format!("{:016x}", digest[0])
}
