//! `--tile`: measures how far a multiplication is below the peak, by leaving out one cost after the other.
//!
//! One thread multiplies with each kernel. First a single tile is repeated, whose operands and C stay in the first-level cache.
//! Then a whole task of the solver is computed with all rows of C at the same address, so that C stays in the cache. Finally it
//! is computed with its real C, in huge pages and in small pages.

use std::time::Instant;

use skt_hpl::kernels::processor::Level;
use skt_hpl::kernels::{Engine, LowerBlock, Matrix, UpperBlock};
use skt_hpl::matrix::HugeBuffer;

use crate::cases::Flags;
use crate::kernels;

/// Rows and columns of C. Each measurement uses another part of C.
const SIDE: usize = 8000;
/// Columns of a task, as in the solver.
const STRIP: usize = 1920;

/// Prints a table with a row for each kernel and NB: the best of `--repeat`, as fractions of the peak of one core.
///
/// # Errors
/// If there is not enough memory.
pub fn run(flags: &Flags) -> Result<(), String> {
    let peak = kernels::peak(1, Level::detect());
    println!("peak of one core: {peak:.1} Gflop/s\n");
    println!("| k | kernel | operands and C in L1 | C in L1 | all | without huge pages |");
    println!("|--:|---|--:|--:|--:|--:|");
    for &k in &flags.nb {
        for engine in kernels::engines(flags.engine) {
            let rates = rates(engine, k, SIDE, flags.repeat).map_err(|error| error.to_string())?;
            let cells = rates.map(|rate| format!("{:.3}", rate / peak)).join(" | ");
            println!("| {k} | {} | {cells} |", engine.name());
        }
    }
    Ok(())
}

/// Returns the rates of the four measurements in Gflop/s. Each measurement multiplies into parts of a C with `side` rows and
/// columns.
fn rates(engine: Engine, k: usize, side: usize, tries: usize) -> std::io::Result<[f64; 4]> {
    let filled = |len: usize| -> std::io::Result<HugeBuffer> {
        let mut buffer = HugeBuffer::new(len)?;
        buffer.as_mut_slice().iter_mut().enumerate().for_each(|(i, x)| *x = (i % 1013) as f64);
        Ok(buffer)
    };
    let mut c = filled(side * side)?;
    let mut small = vec![0.5; side * side];
    let (l, mut u) = (filled(engine.lower_len(side, k))?, filled(engine.upper_len(k, side))?);
    let upper = UpperBlock { engine, k, cols: side, data: u.as_mut_ptr() };
    let lower = LowerBlock { engine, rows: side, k, data: l.as_ptr() };
    let (step, unit) = (engine.row_step(), upper.column_unit());
    let (rows, cols) = (lower.row_unit().min(side) / step * step, STRIP.min(side) / unit * unit);
    let mut best = [0.0f64; 4];
    let mut measure = |at: usize, flops: usize, multiply: &mut dyn FnMut()| {
        let start = Instant::now();
        multiply();
        best[at] = best[at].max(flops as f64 / start.elapsed().as_secs_f64() / 1e9);
    };
    let tasks = side / rows;
    for task in (0..tasks).cycle().take(tries * tasks) {
        let part = task * rows..(task + 1) * rows;
        // With a leading dimension of 0, all rows of C are the same row.
        let one_row = Matrix::new(c.as_mut_ptr(), 0);
        // Half of k is used, so that the operands of a tile fit into the first-level cache together with C.
        let (short, times) = (k / 2, rows * cols / step / unit);
        let upper_short = UpperBlock { engine, k: short, cols: unit, data: upper.data };
        let lower_short = LowerBlock { engine, rows: step, k: short, data: lower.data };
        // SAFETY: the blocks are valid, their parts lie within them, and only this thread writes C.
        unsafe {
            measure(0, 2 * step * unit * short * times, &mut || {
                for _ in 0..times {
                    lower_short.multiply(&upper_short, 0..step, 0..unit, one_row);
                }
            });
            let flops = 2 * rows * cols * k;
            measure(1, flops, &mut || lower.multiply(&upper, part.clone(), 0..cols, one_row));
            for (at, c) in [(2, c.as_mut_ptr()), (3, small.as_mut_ptr())] {
                let c = Matrix::new(c, side);
                measure(at, flops, &mut || lower.multiply(&upper, part.clone(), 0..cols, c));
            }
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_rate() {
        let engine = Engine::runnable()[0];
        assert!(
            rates(engine, 8, 200, 1).unwrap().iter().all(|rate| rate.is_finite() && *rate > 0.0)
        );
    }
}
