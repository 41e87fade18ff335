//! Limits of the machine: the peak of its multipliers, the DGEMM of the library, and our own multiplication.
//!
//! Each uses all cores of the case at the same time. Rates are in Gflop/s.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use skt_hpl::base::params;
use skt_hpl::base::threads::{Pool, Shareable};
use skt_hpl::kernels::processor::Level;
use skt_hpl::kernels::{
    Engine, Loaded, LowerBlock, Matrix, Operand, Size, UpperBlock, active, choice,
    set_library_threads,
};
use skt_hpl::matrix::HugeBuffer;

/// Duration of each measurement of the peak.
const PEAK_TIME: Duration = Duration::from_millis(100);
/// Number of measurements of the peak.
const PEAK_TRIES: usize = 5;
/// Number of multiplications whose median counts.
const MULTIPLICATIONS: usize = 5;
/// Largest number of rows and columns of C, as in the trailing submatrix of a large problem.
const LARGEST_SIDE: usize = 8000;

/// Returns the peak in Gflop/s: fused multiply-adds of registers, on `cores` threads at the same time. The best of several tries
/// counts, since a peak is what is possible.
pub fn peak(cores: usize, level: Level) -> f64 {
    let tries = (0..PEAK_TRIES).map(|_| {
        let barrier = Barrier::new(cores);
        std::thread::scope(|scope| {
            let one = || {
                // The clock rate depends on the load. This loop brings it to the rate under load.
                fma_rate(level, PEAK_TIME / 5);
                barrier.wait();
                fma_rate(level, PEAK_TIME)
            };
            let threads: Vec<_> = (0..cores).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|t| t.join().expect("arithmetic does not panic")).sum::<f64>()
        })
    });
    tries.fold(0.0, f64::max) / 1e9
}

/// Returns the number of floating-point operations that one thread does in a second.
fn fma_rate(level: Level, time: Duration) -> f64 {
    const ROUNDS: usize = 100_000;
    let start = Instant::now();
    let mut flops = 0;
    loop {
        flops += fma_rounds(level, ROUNDS);
        let elapsed = start.elapsed();
        if elapsed >= time {
            return flops as f64 / elapsed.as_secs_f64();
        }
    }
}

/// Runs multiply-adds in the widest registers of the processor, and returns the number of operations. Each round advances enough
/// independent sums to hide the latency of the units.
fn fma_rounds(level: Level, rounds: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    match level {
        // SAFETY: `level` states that the processor has AVX-512.
        Level::Avx512 => return unsafe { wide(rounds) },
        // SAFETY: `level` states that the processor has AVX2.
        Level::Avx2 => return unsafe { middle(rounds) },
        Level::Baseline => {}
    }
    let _ = level;
    plain(rounds)
}

macro_rules! fma_loop {
    ($name:ident, $feature:literal, $sums:literal, $lanes:literal, $set:ident, $fma:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $feature)]
        fn $name(rounds: usize) -> usize {
            use std::arch::x86_64::*;
            let (x, y) = ($set(black_box(0.5)), $set(black_box(0.5)));
            let mut sums = [$set(black_box(1.0)); $sums];
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = $fma(*sum, x, y);
                }
            }
            black_box(sums);
            rounds * $sums * $lanes * 2
        }
    };
}

fma_loop!(wide, "avx512f", 24, 8, _mm512_set1_pd, _mm512_fmadd_pd);
fma_loop!(middle, "avx2,fma", 12, 4, _mm256_set1_pd, _mm256_fmadd_pd);

/// Runs multiply-adds without wide registers, with separate multiplication and addition if the target has no fused ones. Returns
/// the number of operations.
fn plain(rounds: usize) -> usize {
    const SUMS: usize = 24;
    let (x, y) = (black_box(0.5), black_box(0.5));
    let mut sums = [black_box(1.0f64); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = if cfg!(target_feature = "fma") || cfg!(target_arch = "aarch64") {
                sum.mul_add(x, y)
            } else {
                *sum * x + y
            };
        }
    }
    black_box(sums);
    rounds * SUMS * 2
}

/// Returns the number of rows and columns of C that leaves most of the memory free. `available` is the free memory in bytes, if
/// known.
pub fn side(available: Option<u64>) -> usize {
    let fits = available.map_or(LARGEST_SIDE, |bytes| ((bytes / 4 / 8) as f64).sqrt() as usize);
    fits.min(LARGEST_SIDE) / 8 * 8
}

/// Returns the program's own kernels that `choice` allows and this processor can run.
pub fn engines(choice: params::Engine) -> Vec<Engine> {
    Engine::possible(choice).into_iter().filter(|engine| engine.cuts_freely()).collect()
}

/// Returns the fastest of the kernels that `choice` allows, measured as the program does. Returns the BLAS if `choice` is the
/// BLAS.
pub fn fastest(choice: params::Engine, k: usize, threads: usize) -> Result<Engine, String> {
    let engines = engines(choice);
    let mut pool = Pool::new(threads);
    let contest = choice::Contest::new(&engines, &[k], 1, &mut pool);
    let rates = contest.map_err(|why| why.to_string())?.rates(k, &mut pool);
    let rates: Vec<u64> = rates.into_iter().map(|(_, rate)| rate).collect();
    match choice::choose(&[rates]) {
        Some(at) => Ok(engines[at]),
        None => Engine::select(choice),
    }
}

/// Operands of C -= A B, where C has `side` rows and columns, and A has `k` columns. They are reused for all measurements.
pub struct Multiplication {
    side: usize,
    k: usize,
    c: HugeBuffer,
    a: HugeBuffer,
    b: HugeBuffer,
}

impl Multiplication {
    /// Allocates the operands, large enough for the BLAS and for `engine`.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(side: usize, k: usize, engine: Engine) -> std::io::Result<Self> {
        let a_len = (side * k).max(engine.lower_len(side, k));
        let b_len = (side * k).max(engine.upper_len(k, side));
        let mut buffers = [side * side, a_len, b_len].map(HugeBuffer::new);
        // The values do not matter, but must not be slow to compute with.
        for buffer in buffers.iter_mut().flatten() {
            for (i, x) in buffer.as_mut_slice().iter_mut().enumerate() {
                *x = (i % 1013) as f64 / 1013.0 - 0.5;
            }
        }
        let [c, a, b] = buffers;
        Ok(Self { side, k, c: c?, a: a?, b: b? })
    }

    /// Returns the rate of the linked library's DGEMM with `threads` threads of its own, in Gflop/s.
    pub fn library(&mut self, threads: usize) -> f64 {
        set_library_threads(threads);
        let (side, k) = (self.side, self.k);
        let (a, b, c) = (self.a.as_ptr(), self.b.as_ptr(), self.c.as_mut_ptr());
        self.rate(|| {
            // SAFETY: the buffers have these sizes, and are borrowed for the call.
            unsafe {
                let (a, b) = (Operand::plain(a, side), Operand::plain(b, k));
                active().calls.gemm(Size::new(side, side, k), -1.0, a, b, Matrix::new(c, side));
            }
        })
    }

    /// Returns the rate of another library's DGEMM with `threads` threads of its own, in Gflop/s.
    pub fn peer(&mut self, peer: &Loaded, threads: usize) -> f64 {
        peer.set_threads(threads);
        let (side, k) = (self.side, self.k);
        let (a, b, c) = (self.a.as_ptr(), self.b.as_ptr(), self.c.as_mut_ptr());
        self.rate(|| {
            // SAFETY: the buffers have these sizes, and are borrowed for the call.
            unsafe {
                let (a, b) = (Operand::plain(a, side), Operand::plain(b, k));
                peer.calls.gemm(Size::new(side, side, k), -1.0, a, b, Matrix::new(c, side));
            }
        })
    }

    /// Returns the rate of the program's own engine in Gflop/s. The operands are already packed, and the work is divided into
    /// tasks as in the solver.
    pub fn engine(&mut self, engine: Engine, threads: usize) -> f64 {
        const STRIP: usize = 1920;
        let (side, k) = (self.side, self.k);
        let lower = LowerBlock { engine, rows: side, k, data: self.a.as_ptr() };
        let upper = UpperBlock { engine, k, cols: side, data: self.b.as_mut_ptr() };
        let c = Shareable::new(self.c.as_mut_ptr());
        let row_unit = lower.row_unit();
        let width = STRIP / upper.column_unit() * upper.column_unit();
        let strips = side.div_ceil(width);
        let mut pool = Pool::new(threads);
        self.rate(|| {
            pool.run(side.div_ceil(row_unit) * strips, |task| {
                let (block, strip) = (task / strips, task % strips);
                let rows = block * row_unit..((block + 1) * row_unit).min(side);
                let cols = strip * width..((strip + 1) * width).min(side);
                // SAFETY: each task writes its own part of C, and the operands are only read.
                unsafe { lower.multiply(&upper, rows, cols, Matrix::new(c.get(), side)) }
            });
        })
    }

    fn rate(&self, mut multiply: impl FnMut()) -> f64 {
        // The first multiplication starts threads and fills buffers of the library, so it does not count.
        multiply();
        let mut seconds: Vec<f64> = (0..MULTIPLICATIONS)
            .map(|_| {
                let start = Instant::now();
                multiply();
                start.elapsed().as_secs_f64()
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        2.0 * (self.side * self.side * self.k) as f64 / seconds[MULTIPLICATIONS / 2] / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_side_leaves_memory_free() {
        assert_eq!(side(None), LARGEST_SIDE);
        assert_eq!(side(Some(1 << 40)), LARGEST_SIDE);
        let small = side(Some(1 << 30));
        assert!(small > 4000 && (small * small * 8) as u64 <= 1 << 28, "{small}");
    }

    #[test]
    fn rates_are_plausible_and_operations_counted() {
        for level in [Level::Baseline, Level::detect()] {
            assert_eq!(fma_rounds(level, 10) % 20, 0);
            let rate = fma_rate(level, Duration::from_millis(2));
            assert!(rate > 1e7, "{rate}");
        }
        let engine = Engine::select(skt_hpl::base::params::Engine::Auto).unwrap();
        let mut small = Multiplication::new(64, 16, engine).unwrap();
        assert!(small.library(1) > 0.0 && small.engine(engine, 2) > 0.0);
    }
}
