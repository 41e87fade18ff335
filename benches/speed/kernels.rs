//! Limits of the machine: the peak of its multipliers, the library's DGEMM, our multiplication.
//!
//! All of them use the cores that the case uses, at the same time. Rates are in Gflop/s.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use skt_hpl::base::params;
use skt_hpl::base::threads::{Pool, Shareable};
use skt_hpl::kernels::processor::Level;
use skt_hpl::kernels::{
    Engine, Loaded, LowerBlock, Matrix, Operand, Size, UpperBlock, choice, gemm,
    set_library_threads,
};
use skt_hpl::matrix::HugeBuffer;

/// How long the peak is looked for, and how often.
const PEAK_TIME: Duration = Duration::from_millis(100);
const PEAK_TRIES: usize = 5;
/// Multiplications of which the middle one counts.
const MULTIPLICATIONS: usize = 5;
/// Sides of C: as large as the trailing matrix of a large problem.
const LARGEST_SIDE: usize = 8000;

/// Fused multiply-adds of registers with registers, on `cores` threads together: the best of a few
/// tries, since a peak is what is possible.
pub fn peak(cores: usize, level: Level) -> f64 {
    let tries = (0..PEAK_TRIES).map(|_| {
        let barrier = Barrier::new(cores);
        std::thread::scope(|scope| {
            let one = || {
                // Clocks rise and fall with what runs: get there first.
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

/// Operations a second of one thread.
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

/// Runs the widest loop the processor has and returns its operations. Each round advances enough
/// independent sums to cover the latency of the units.
fn fma_rounds(level: Level, rounds: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    match level {
        // SAFETY: the processor has what the level says.
        Level::Avx512 => return unsafe { wide(rounds) },
        // SAFETY: as above.
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

/// Without wider registers: separate multiplication and addition where there is no fused one.
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

/// The side of C that leaves most of the memory free.
pub fn side(available: Option<u64>) -> usize {
    let fits = available.map_or(LARGEST_SIDE, |bytes| ((bytes / 4 / 8) as f64).sqrt() as usize);
    fits.min(LARGEST_SIDE) / 8 * 8
}

/// Those of the program's own kernels that `choice` means and this processor runs.
pub fn engines(choice: params::Engine) -> Vec<Engine> {
    Engine::possible(choice).into_iter().filter(|engine| engine.cuts_freely()).collect()
}

/// The fastest of the kernels that `choice` means, as the program itself finds it; the BLAS where it means that.
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

/// C(side x side) -= A B with k = `k`, kept from one repetition to the next.
pub struct Multiplication {
    side: usize,
    k: usize,
    c: HugeBuffer,
    a: HugeBuffer,
    b: HugeBuffer,
}

impl Multiplication {
    /// # Errors
    /// Where the memory is not there.
    pub fn new(side: usize, k: usize, engine: Engine) -> std::io::Result<Self> {
        let a_len = (side * k).max(engine.lower_len(side, k));
        let b_len = (side * k).max(engine.upper_len(k, side));
        let mut buffers = [side * side, a_len, b_len].map(HugeBuffer::new);
        // Values of no importance, but none that are slow to compute with.
        for buffer in buffers.iter_mut().flatten() {
            for (i, x) in buffer.as_mut_slice().iter_mut().enumerate() {
                *x = (i % 1013) as f64 / 1013.0 - 0.5;
            }
        }
        let [c, a, b] = buffers;
        Ok(Self { side, k, c: c?, a: a?, b: b? })
    }

    /// The library's DGEMM with `threads` threads of its own.
    pub fn library(&mut self, threads: usize) -> f64 {
        set_library_threads(threads);
        let (side, k) = (self.side, self.k);
        let (a, b, c) = (self.a.as_ptr(), self.b.as_ptr(), self.c.as_mut_ptr());
        self.rate(|| {
            // SAFETY: buffers of these sizes, borrowed for the call.
            unsafe {
                let (a, b) = (Operand::plain(a, side), Operand::plain(b, k));
                gemm(Size::new(side, side, k), -1.0, a, b, Matrix::new(c, side));
            }
        })
    }

    /// Another library's.
    pub fn peer(&mut self, peer: &Loaded, threads: usize) -> f64 {
        peer.set_threads(threads);
        let (side, k) = (self.side, self.k);
        let (a, b, c) = (self.a.as_ptr(), self.b.as_ptr(), self.c.as_mut_ptr());
        self.rate(|| {
            // SAFETY: as above.
            unsafe {
                let (a, b) = (Operand::plain(a, side), Operand::plain(b, k));
                peer.calls.gemm(Size::new(side, side, k), -1.0, a, b, Matrix::new(c, side));
            }
        })
    }

    /// The program's own engine on operands that are laid out already, as the solver has them,
    /// cut into tasks as the solver cuts them.
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
                // SAFETY: tasks write parts of C of their own; the operands are only read.
                unsafe { lower.multiply(&upper, rows, cols, Matrix::new(c.get(), side)) }
            });
        })
    }

    fn rate(&self, mut multiply: impl FnMut()) -> f64 {
        // The first wakes threads and fills the library's buffers.
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
