//! Checks how well x solves the system, with A and b generated again.
//!
//! Elements are generated when they are needed, and are not stored. So the check needs no memory for the matrix, and does not
//! touch the factored matrix.

use super::context::Context;
use crate::base::outcome::Residual;
use crate::base::threads::Pool;
use crate::comm::Reduce;
use crate::matrix::{Generator, Shape};
use std::sync::Mutex;

/// Number of rows of A that are generated together.
const ROWS: usize = 8;
/// Maximum number of tasks into which the rows of a rank are divided: several tasks for each thread.
const TASKS: usize = 128;

/// Returns the number of rows per task on a rank with `rows` rows.
///
/// A task has many rows, so that the column sums of only a few tasks must be stored. The number of rows does not depend on the
/// number of threads, so the rounding of the sums does not depend on it either.
fn rows_per_task(rows: usize) -> usize {
    rows.div_ceil(TASKS).next_multiple_of(ROWS).max(ROWS)
}

/// Maximum number of doubles that the check allocates, including x: the results of each task, and the sums of these results.
pub fn room(shape: &Shape) -> usize {
    let cols = shape.cols;
    let tasks = TASKS.min(shape.rows.div_ceil(ROWS));
    cols + tasks * cols + 3 * shape.rows + (3 * shape.rows + cols) + 3 * rows_per_task(shape.rows)
}

/// Result of one task.
struct Partial {
    /// For each row: the sums of |A| and of A x over the local columns, and the element of b if b is local.
    row: Vec<[f64; 3]>,
    /// For each local column: the sum of |A| over the rows of the task.
    column: Vec<f64>,
}

/// Computes the scaled residual and the norms from which it follows. `x` is this rank's part of the solution. The result is the
/// same on all ranks of the grid.
pub fn check(context: &Context, generator: &Generator, x: &[f64], pool: &mut Pool) -> Residual {
    let shape = context.shape;
    let n = context.params.n;
    // Number of local columns of A, without the right-hand side.
    let cols = shape.col_map.count_below(n, shape.col);
    let per_task = rows_per_task(shape.rows);
    let tasks = shape.rows.div_ceil(per_task);
    let found: Vec<Mutex<Option<Partial>>> = (0..tasks).map(|_| Mutex::new(None)).collect();
    let work = |task: usize| {
        let range = task * per_task..((task + 1) * per_task).min(shape.rows);
        let partial = rows_of(&shape, generator, x, range);
        *found[task].lock().expect("no task panicked") = Some(partial);
    };
    pool.spread(tasks, work, 0, |_| context.grid.attend());
    let mut rows = Vec::with_capacity(3 * shape.rows);
    let mut columns = vec![0.0; cols];
    for partial in found {
        let partial = partial.into_inner().expect("no task panicked").expect("every task ran");
        rows.extend(partial.row.concat());
        for (total, part) in columns.iter_mut().zip(partial.column) {
            *total += part;
        }
    }
    context.row.all_reduce(&mut rows, Reduce::Sum);
    context.column.all_reduce(&mut columns, Reduce::Sum);
    let max = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0.0f64, |max, v| if v > max || v.is_nan() { v } else { max })
    };
    let row = |what: fn(&[f64]) -> f64| max(&mut rows.chunks_exact(3).map(what));
    // MPI's maximum may drop NaN, so infinity is sent in its place.
    let finite = |v: f64| if v.is_nan() { f64::INFINITY } else { v };
    let mut norms = [
        finite(row(|r| (r[2] - r[1]).abs())),
        row(|r| r[0]),
        row(|r| r[2].abs()),
        max(&mut columns.iter().copied()),
        finite(max(&mut x.iter().map(|v| v.abs()))),
    ];
    context.grid.all_reduce(&mut norms, Reduce::Max);
    let mut x_1 = [x.iter().map(|v| v.abs()).sum::<f64>()];
    context.row.all_reduce(&mut x_1, Reduce::Sum);
    let [r_inf, a_inf, b_inf, a_1, x_inf] = norms;
    let scaled = scaled(r_inf, a_inf, x_inf, b_inf, n);
    Residual { scaled, r_inf, a_inf, a_1, x_inf, x_1: x_1[0], b_inf }
}

/// Returns HPL's scaled residual from the norms of Ax-b, A, x and b.
///
/// A wrong x may be so large that the divisor overflows although Ax-b does not. The quotient would then be 0, as for a perfect
/// solution. So an overflow of the divisor is avoided.
fn scaled(r_inf: f64, a_inf: f64, x_inf: f64, b_inf: f64, n: usize) -> f64 {
    // The unit roundoff, as in HPL.
    let eps = f64::EPSILON / 2.0;
    let divisor = eps * (a_inf * x_inf + b_inf) * n as f64;
    match (n, divisor.is_finite(), x_inf.is_finite()) {
        (0, ..) => 0.0,
        (_, true, _) => r_inf / divisor,
        (_, false, true) => r_inf / x_inf / (eps * (a_inf + b_inf / x_inf) * n as f64),
        (_, false, false) => f64::INFINITY,
    }
}

fn rows_of(
    shape: &Shape,
    generator: &Generator,
    x: &[f64],
    rows: std::ops::Range<usize>,
) -> Partial {
    let n = shape.n;
    let mut partial = Partial { row: vec![[0.0; 3]; rows.len()], column: vec![0.0; x.len()] };
    let mut start = rows.start;
    while start < rows.end {
        let count = ROWS.min(rows.end - start);
        let mut global = [0; ROWS];
        for (r, g) in global.iter_mut().enumerate().take(count) {
            *g = shape.row_map.global(start + r, shape.row);
        }
        let mut norm = [0.0; ROWS];
        let mut product = [0.0; ROWS];
        let mut at = 0;
        while at < x.len() {
            let len = (shape.nb - at % shape.nb).min(x.len() - at);
            let first = shape.col_map.global(at, shape.col);
            generator.block(&global[..count], first, len, |r, j, v| {
                norm[r] += v.abs();
                product[r] += v * x[at + j];
                partial.column[at + j] += v.abs();
            });
            at += len;
        }
        let b_here = shape.col_map.owner(n) == shape.col;
        for r in 0..count {
            let b = if b_here { generator.at(global[r], n) } else { 0.0 };
            partial.row[start - rows.start + r] = [norm[r], product[r], b];
        }
        start += count;
    }
    partial
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wrong_solution_is_so_large_that_it_passes() {
        let of = |r, x| scaled(r, 256.0, x, 0.5, 1000);
        // A solution in which the highest bit of an element's exponent is flipped.
        let flipped = of(3.8e307, 7.9e307);
        assert!((1.6e10..1.8e10).contains(&flipped), "{flipped}");
        let before = of(3.8e300, 7.9e300);
        assert!((flipped / before - 1.0).abs() < 1e-12, "{before}");
        for (r, x) in [
            (f64::MAX, f64::MAX),
            (1.0, f64::INFINITY),
            (f64::INFINITY, f64::MAX),
            (f64::INFINITY, f64::INFINITY),
            (f64::INFINITY, 1.0),
            (f64::NAN, 1.0),
        ] {
            let found = of(r, x);
            assert!(found.is_nan() || found > 1e9, "{r} {x}: {found}");
        }
    }

    #[test]
    fn a_good_solution_has_the_references_number() {
        let eps = f64::EPSILON / 2.0;
        let wanted = 1e-13 / (eps * (256.0 * 3.5 + 0.5) * 1000.0);
        assert_eq!(scaled(1e-13, 256.0, 3.5, 0.5, 1000), wanted);
        assert_eq!(scaled(0.0, 0.0, 0.0, 0.0, 0), 0.0);
    }
}
