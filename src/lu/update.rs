//! Updates columns with a panel: exchanges rows (with a single process row), solves U, and multiplies.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::clock::{Clock, Part};
use super::context::Context;
use super::cuts::Strips;
use super::panel::Panel;
use super::section::Section;
use super::swap::{solves, within};
use crate::base::heartbeat;
use crate::base::threads::{Pool, Shareable, Turn};
use crate::device::{Device, RowCopy, Stream};
use crate::kernels::{LowerBlock, Matrix, UpperBlock};
use crate::matrix::Shape;

/// Multiplication of an update in a range of columns, as tasks that may run in any order. U is already solved.
pub struct Multiplication {
    lower: LowerBlock,
    upper: UpperBlock,
    c: Shareable<f64>,
    ld: usize,
    row_unit: usize,
    row_blocks: usize,
    strips: Vec<Range<usize>>,
    device: Option<Arc<dyn Device>>,
}

impl Multiplication {
    /// Runs all tasks. At the same time the main thread calls `main`, with `panel_workers` workers as panel threads, as in
    /// [`Pool::spread`]. If a device multiplies, all workers are panel threads.
    pub fn run(&self, panel_workers: usize, pool: &mut Pool, mut main: impl FnMut(Turn)) {
        let Some(device) = &self.device else {
            let tasks = self.row_blocks * self.strips.len();
            return pool.spread(tasks, |task| self.run_task(task), panel_workers, main);
        };
        for strip in &self.strips {
            let (cols, c) = (strip.clone(), Matrix::new(self.c.get(), self.ld));
            // SAFETY: until the stream has passed the event below, the operands are only read, and nothing else touches C.
            unsafe { device.multiply(Stream::Update, self.lower, self.upper, cols, c) }
        }
        let done = device.record(Stream::Update);
        pool.together(|panel_threads| main(Turn::Lead(panel_threads)));
        while !device.has_passed(done) {
            heartbeat::beat();
            main(Turn::AfterTask);
        }
    }

    /// Returns the number of columns that are updated.
    pub fn columns(&self) -> usize {
        self.strips.iter().map(Range::len).sum()
    }

    /// Returns the number of floating-point operations of all tasks together.
    pub fn flops(&self) -> f64 {
        2.0 * self.lower.rows as f64 * self.columns() as f64 * self.upper.k as f64
    }

    /// Runs one task. Consecutive tasks use the same row block of L, so that this row block remains in the cache.
    fn run_task(&self, task: usize) {
        let (block, strip) = (task / self.strips.len(), task % self.strips.len());
        let rows = block * self.row_unit..((block + 1) * self.row_unit).min(self.lower.rows);
        let cols = self.strips[strip].clone();
        // SAFETY: each task writes its own part of C; the operands are only read from here on.
        unsafe { self.lower.multiply(&self.upper, rows, cols, Matrix::new(self.c.get(), self.ld)) }
    }
}

/// Prepares the update of `section` with `panel`, after the row exchange between process rows.
///
/// Solves U, and writes U to A if this process row owns the diagonal block. With a device, these operations are only queued
/// before the multiplication. Returns the multiplication, which the caller still has to run. A single process row exchanges its
/// rows here, one strip at a time, so the strip is still in the cache for the solve. If `often` is true, tasks are short, for
/// callers that handle messages between tasks.
///
/// # Safety
/// The pointers of `section` are valid, and no other thread touches the data to which they point.
pub unsafe fn solve(
    context: &Context,
    panel: &Panel,
    section: &Section,
    often: bool,
    pool: &mut Pool,
    clock: &mut Clock,
) -> Multiplication {
    let shape = &context.shape;
    let Section { a, cols, upper, .. } = section.clone();
    let lower = panel.lower(context);
    let owner = shape.row_map.owner(panel.k * shape.nb) == shape.row;
    let solved = solves(context, section.wide);
    // If U is already solved, it only remains to write U to A, in the process row that owns the diagonal block.
    if !cols.is_empty() && (owner || !solved) {
        let before = clock.enter(Part::Triangle);
        // SAFETY: ensured by the caller.
        unsafe {
            match context.device.as_deref() {
                Some(device) => launch_upper(device, context, panel, section, owner),
                None => {
                    let swapping = solve_upper(context, panel, section, owner, solved, pool);
                    clock.give(Part::Swap, swapping);
                }
            }
        }
        clock.enter(before);
    }
    // If no local row is below the panel's block, the pointer is past the end and is not dereferenced.
    let c = Shareable::new(a.get().wrapping_add(panel.first_below * shape.ld + cols.start));
    let (row_unit, ld) = (lower.row_unit(), shape.ld);
    let row_blocks = lower.rows.div_ceil(row_unit);
    let done = done_with(shape, panel.k).saturating_sub(cols.start).min(cols.len());
    let strips = if context.engine.cuts_freely() {
        wide_strips(&upper, done, row_blocks, often, pool.threads())
    } else {
        let mut strips = blas_strips(shape, context.params.lookahead(), panel.k, &cols);
        strips.retain(|strip| strip.end > done);
        strips
    };
    let device = context.device.clone();
    Multiplication { lower, upper, c, ld, row_unit, row_blocks, strips, device }
}

/// Solves U unless `solved` is true. If `owner` is true, this process row owns the diagonal block, and U is written to A. With a
/// single process row, first exchanges the rows. Returns the fraction of the time that the row exchange took.
///
/// # Safety
/// As for [`solve`].
unsafe fn solve_upper(
    context: &Context,
    panel: &Panel,
    section: &Section,
    owner: bool,
    solved: bool,
    pool: &mut Pool,
) -> f64 {
    let (shape, width) = (context.shape, panel.width);
    let Section { a, cols, upper, .. } = section.clone();
    let triangle = panel.triangle(context);
    let first_row = shape.row_from_block(panel.k);
    let strips = if context.engine.cuts_freely() {
        Strips::new(cols.len(), upper.column_unit(), pool.threads()).all()
    } else {
        blas_strips(&shape, context.params.lookahead(), panel.k, &cols)
    };
    let first_col = cols.start;
    let moves = panel.moves.as_deref().expect("the panel was opened before");
    let alone = context.params.p == 1;
    let (swapping, all) = (AtomicU64::new(0), AtomicU64::new(0));
    pool.run(strips.len(), |task| {
        let strip = strips[task].clone();
        // SAFETY: each task has its own columns.
        unsafe {
            let start = Instant::now();
            if alone {
                within(&shape, moves, section, strip.clone());
                add(&swapping, start);
            }
            if !solved {
                upper.solve(&triangle, strip.clone());
            }
            if owner {
                for i in 0..width {
                    let row = a.get().add((first_row + i) * shape.ld + first_col);
                    upper.get_row(i, strip.start, strip.len(), row.add(strip.start));
                }
            }
            add(&all, start);
        }
    });
    swapping.into_inner() as f64 / all.into_inner().max(1) as f64
}

/// Queues the operations of [`solve_upper`] on `device`, after the row exchanges that are queued and after the upload of the
/// panel.
///
/// # Safety
/// As for [`solve`].
unsafe fn launch_upper(
    device: &dyn Device,
    context: &Context,
    panel: &Panel,
    section: &Section,
    owner: bool,
) {
    let shape = &context.shape;
    let Section { a, cols, upper, .. } = section;
    let a = Matrix::new(a.get().wrapping_add(cols.start), shape.ld);
    let u = Matrix::new(upper.data, upper.cols);
    let constant = |m: Matrix<*mut f64>| Matrix::new(m.at.cast_const(), m.ld);
    device.wait(Stream::Update, device.record(Stream::Rows));
    panel.await_upload(device, Stream::Update);
    // SAFETY: ensured by the caller. Rows of U are read before displaced rows are written. Displaced rows are read from the
    // diagonal block's rows, which are written last.
    unsafe {
        if context.params.p == 1 {
            let moves = panel.moves.as_deref().expect("the panel was opened before");
            // With a single process row, global row numbers are local row numbers.
            let sources = moves.sources.iter().enumerate();
            let sources = sources.map(|(i, &source)| RowCopy { from: source, to: i }).collect();
            device.copy_rows(Stream::Update, constant(a), u, sources, cols.len());
            let displaced = moves.displaced.iter().map(|&(from, to)| RowCopy { from, to });
            device.copy_rows(Stream::Update, constant(a), a, displaced.collect(), cols.len());
        }
        for strip in blas_strips(shape, context.params.lookahead(), panel.k, cols) {
            device.solve(Stream::Update, panel.triangle(context), *upper, strip);
        }
        if owner {
            let first = a.at.wrapping_add(shape.row_from_block(panel.k) * shape.ld);
            let rows = Matrix::new(first, shape.ld);
            device.copy_2d(Stream::Update, constant(u), rows, panel.width, cols.len());
        }
    }
}

/// Adds the nanoseconds since `start` to `sum`.
fn add(sum: &AtomicU64, start: Instant) {
    sum.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
}

/// Returns the first local column in which panel `k` changes elements below the panel's rows. The result is 0 in a process column
/// of the grid. In a checksum column, earlier local columns have no sums below the panel's rows. In these local columns U is
/// solved, but nothing is multiplied.
fn done_with(shape: &Shape, k: usize) -> usize {
    if shape.is_sums() { (k + 1) / shape.grid.q * shape.nb } else { 0 }
}

/// Number of strips for a BLAS, which multiplies each strip in one call.
///
/// A library packs L again in every call, so a few wide strips are fast. Threads that share the strips need many strips. If `n`
/// block columns are left, a strip has `n / STRIPS` block columns, but at most [`WIDEST_BLOCKS`], so that each thread gets some
/// strips.
const STRIPS: usize = 16;
/// Maximum width of a strip for a BLAS, in block columns.
const WIDEST_BLOCKS: usize = 6;

/// Returns the first local column to the right of panel `k + depth`. Panel `k + depth` is the last panel that a lookahead of
/// `depth` may factor while panel `k` is applied.
pub fn from_rest(shape: &Shape, depth: usize, k: usize) -> usize {
    shape.col_map.count_below(((k + depth + 1) * shape.nb).min(shape.n), shape.col)
}

/// Returns the strips in which a BLAS updates the local columns `cols` with panel `k`, counted from the start of `cols`. `depth`
/// is the lookahead.
///
/// A BLAS chooses its kernels by the shape of a call, and kernels round differently. The results must not depend on the number of
/// threads, or on which boundaries are clean, which differs after a failure. So the strips depend only on the shape, `k` and
/// `depth`. Each panel that may be factored ahead is a strip, whether or not it is factored ahead. The right-hand side is a
/// strip, too.
pub fn blas_strips(
    shape: &Shape,
    depth: usize,
    k: usize,
    cols: &Range<usize>,
) -> Vec<Range<usize>> {
    let owner = shape.col_map.owner(shape.n) == shape.col;
    let right_hand_side = if owner { shape.col_map.local(shape.n) } else { shape.cols };
    let rest = from_rest(shape, depth, k);
    let blocks = right_hand_side.saturating_sub(rest).div_ceil(shape.nb);
    let wide = (blocks / STRIPS).clamp(1, WIDEST_BLOCKS) * shape.nb;
    let mut strips = Vec::new();
    let mut at = cols.start;
    while at < cols.end {
        let mut end = if at < rest {
            (at / shape.nb + 1) * shape.nb
        } else {
            rest + ((at - rest) / wide + 1) * wide
        };
        if at < right_hand_side {
            end = end.min(right_hand_side);
        }
        let end = end.min(cols.end);
        strips.push(at - cols.start..end - cols.start);
        at = end;
    }
    strips
}

/// Returns the strips for our own kernels. The strips cover the columns of `upper` from `done` on, where `done` is rounded down
/// to the column unit of U.
///
/// Strips are wide for speed, but narrow enough for several tasks per thread. If `often` is true, strips are narrower, and a task
/// takes about a millisecond.
fn wide_strips(
    upper: &UpperBlock,
    done: usize,
    row_blocks: usize,
    often: bool,
    threads: usize,
) -> Vec<Range<usize>> {
    const WIDEST: usize = 1920;
    const OFTEN: usize = 480;
    let widest = if often { OFTEN } else { WIDEST };
    let unit = upper.column_unit();
    let first = done / unit * unit;
    let units = (upper.cols - first).div_ceil(unit);
    let mut width = (widest / unit).min(units.max(1));
    if threads > 1 {
        while width > 4 && row_blocks * units.div_ceil(width) < 12 * threads {
            width = width.div_ceil(2);
        }
    }
    let width = width * unit;
    (first..upper.cols).step_by(width).map(|at| at..(at + width).min(upper.cols)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::cuts::offset;
    use super::super::roles::counts_at;
    use super::*;
    use crate::base::params::Mapping;
    use crate::grid::{Cyclic, ProcessGrid};
    use crate::kernels::Engine;

    /// Tests that the same columns have the same strips for every number of panels factored ahead. Each panel that may be
    /// factored next is a strip.
    #[test]
    fn strips_of_a_blas_depend_on_the_panel_alone() {
        for (n, nb, q) in [
            (10, 3, 1),
            (9, 3, 1),
            (10, 3, 2),
            (12, 4, 3),
            (1, 5, 1),
            (7, 1, 2),
            (97, 1, 1),
            (400, 2, 2),
        ] {
            for (col, depth) in (0..q).flat_map(|col| (0..3).map(move |depth| (col, depth))) {
                let col_map = Cyclic::new(n + 1, nb, q);
                let cols = col_map.count(col);
                let shape = Shape {
                    n,
                    nb,
                    grid: ProcessGrid { p: 1, q, mapping: Mapping::Row },
                    row: 0,
                    col,
                    row_map: Cyclic::new(n, nb, 1),
                    col_map,
                    rows: n,
                    cols,
                    ld: cols,
                };
                for k in 0..n.div_ceil(nb) {
                    let from =
                        |ahead: usize| col_map.count_below(((k + 1 + ahead) * nb).min(n), col);
                    let strips = |ahead: usize| -> Vec<Range<usize>> {
                        let start = from(ahead);
                        let strips = blas_strips(&shape, depth, k, &(start..cols));
                        strips.into_iter().map(|strip| offset(strip, start)).collect()
                    };
                    let whole = strips(0);
                    assert_eq!(whole.iter().map(Range::len).sum::<usize>(), cols - from(0));
                    assert!(whole.iter().all(|s| !s.is_empty() && s.len() <= WIDEST_BLOCKS * nb));
                    for ahead in 1..=depth {
                        let tail: Vec<Range<usize>> =
                            whole.iter().filter(|s| s.start >= from(ahead)).cloned().collect();
                        assert_eq!(
                            strips(ahead),
                            tail,
                            "n {n} nb {nb} q {q}, panel {k}, {ahead} ahead"
                        );
                        // A panel that is updated alone.
                        let alone = from(ahead - 1)..from(ahead);
                        let cut = blas_strips(&shape, depth, k, &alone);
                        assert!(alone.is_empty() || whole.contains(&alone) && cut.len() == 1);
                    }
                }
            }
        }
    }

    /// Tests which local columns are not multiplied in a checksum column. In these local columns, the sums below the panel's
    /// rows contain no element of any process column. In the next local column, they contain some elements.
    #[test]
    fn what_is_not_multiplied_of_sums_counts_nowhere() {
        for (n, nb, q) in [(40, 4, 2), (41, 4, 3), (39, 5, 1), (17, 3, 4), (12, 12, 2)] {
            let grid = ProcessGrid { p: 1, q, mapping: Mapping::Row };
            let sums = Shape::of(n, nb, grid, 0, q);
            for k in 0..n.div_ceil(nb) {
                let done = done_with(&sums, k);
                let below = (k + 1) * nb..n;
                let adds = |l: usize| {
                    let mut cols = (0..q).map(|col| Shape::of(n, nb, grid, 0, col));
                    cols.any(|shape| {
                        let within = l < shape.col_map.count_below(n, shape.col);
                        within
                            && below.clone().any(|row| counts_at(&shape, k + 1, shape.col, row, l))
                    })
                };
                assert!((0..done).all(|l| !adds(l)), "{n} {nb} {q} {k}");
                assert!(below.is_empty() || adds(done), "{n} {nb} {q} {k}");
                for col in 0..q {
                    assert_eq!(done_with(&Shape::of(n, nb, grid, 0, col), k), 0);
                }
            }
        }
    }

    /// Tests for every kernel that the strips follow one another without gaps, and end at the last column. The first strip
    /// begins at `done`, rounded down to a column unit of U.
    #[test]
    fn strips_begin_where_something_is_left() {
        for engine in Engine::runnable().into_iter().filter(|engine| engine.cuts_freely()) {
            for (cols, done) in [(0, 0), (1, 0), (1, 1), (500, 192), (500, 500), (4000, 192)] {
                let upper = UpperBlock { engine, k: 8, cols, data: std::ptr::null_mut() };
                let unit = upper.column_unit();
                for (often, threads) in [(false, 1), (true, 1), (false, 4)] {
                    let strips = wide_strips(&upper, done, 3, often, threads);
                    let mut next = strips.first().map_or(cols, |first| first.start);
                    assert!(next.is_multiple_of(unit) || next == cols);
                    assert!(done < next + unit && next <= done);
                    for strip in strips {
                        assert_eq!(strip.start, next);
                        next = strip.end;
                    }
                    assert_eq!(next, cols);
                }
            }
        }
    }
}
