//! Computes the memory that a test needs on a rank, from the length of every buffer that the solver allocates: pure arithmetic.
//!
//! The solver allocates its buffers with the lengths in [`Lengths`]. The benchmark, `check`, `plan` and `run` add up the same
//! lengths ([`Problem`]) to decide beforehand whether a test fits. So the amount checked is the amount allocated. Each step of
//! the solver defines the layout of its buffers, and this file calls these definitions.
//!
//! Every new buffer of the solver must be counted in this file; otherwise the test `memory_is_what_is_told` fails.

use super::context::Context;
use super::cuts::array_len;
use super::factor::{candidate_len, found_len, staging_len};
pub use super::lengths::Lengths;
use super::panel::Layout;
use super::{halves, residual, solve};
use crate::base::params::{Device, Engine as EngineChoice, Mapping, SIZE_MOST, TestParams};
use crate::grid::ProcessGrid;
use crate::kernels::{Engine, leading_dimension};
use crate::matrix::{HugeBuffer, Shape};

const DOUBLE_BYTES: u128 = 8;

impl Context<'_> {
    /// Returns the lengths of this rank's work arrays with `threads` threads.
    pub fn lengths(&self, threads: usize) -> Lengths {
        Lengths::new(&self.shape, self.params.depth, self.params.align, threads, self.engine)
            .with_device(self.device.is_some(), self.shape.nb.min(self.shape.n))
    }
}

impl Lengths {
    pub fn new(shape: &Shape, depth: usize, align: usize, threads: usize, engine: Engine) -> Self {
        let width = shape.nb.min(shape.n);
        let blocks = shape.n.div_ceil(shape.nb);
        let across = shape.grid.p > 1;
        Self {
            slots: depth.saturating_add(1).min(blocks.max(1)),
            message: Layout::new(engine, align, width, shape.rows).len,
            triangle: engine.triangle_len(width),
            copy: 0,
            there: 0,
            staging: 0,
            panel: leading_dimension(shape.rows, align) * width,
            scratches: threads,
            scratch: engine.scratch_len(width),
            candidate: candidate_len(width),
            found: threads * found_len(width),
            // The columns of the last panel may include the right-hand side.
            swap_ahead: if across { array_len(width, width + 1) } else { 0 },
            swap_rest: if across { array_len(width, shape.cols) } else { 0 },
            ahead: engine.upper_len(width, width + 1),
            rest: engine.upper_len(width, shape.cols)
                + if across { halves::slack(engine, width) } else { 0 },
            solve: solve::room(shape),
            verify: residual::room(shape),
        }
    }

    /// Returns the lengths for a test on a device with panels of `width` columns. If `device` is false, returns the lengths
    /// unchanged.
    pub fn with_device(self, device: bool, width: usize) -> Self {
        if !device {
            return self;
        }
        Self { copy: self.message, there: self.panel, staging: staging_len(width), ..self }
    }

    /// Returns the lengths without the arrays that lie in device memory.
    fn in_memory_of_the_node(self) -> Self {
        Self { copy: 0, there: 0, ahead: 0, rest: 0, ..self }
    }

    /// Returns the bytes of the arrays that exist during the factorisation, including arrays in device memory.
    pub fn work_bytes(&self) -> u128 {
        let slot = [self.message, self.triangle, self.copy].map(buffer_bytes).iter().sum::<u128>();
        let scratch = self.scratches as u128 * self.scratch as u128;
        let swap = buffer_bytes(self.swap_ahead) + buffer_bytes(self.swap_rest);
        let alone = scratch + 2 * self.candidate as u128;
        self.slots as u128 * slot
            + [self.panel, self.there, self.staging, self.found, self.ahead, self.rest]
                .map(buffer_bytes)
                .iter()
                .sum::<u128>()
            + 3 * swap
            + alone * DOUBLE_BYTES
    }

    /// Returns the maximum number of bytes that are allocated at any moment, without the matrix.
    pub fn most_bytes(&self) -> u128 {
        let solving = self.work_bytes() + self.solve as u128 * DOUBLE_BYTES;
        solving.max(self.verify as u128 * DOUBLE_BYTES)
    }
}

/// Returns the bytes of a private buffer of `len` doubles.
fn buffer_bytes(len: usize) -> u128 {
    HugeBuffer::bytes_of(len)
}

/// The parameters of a test that determine its memory need. `means.engine` is the requested engine. If the request allows several
/// engines, the choice is not known beforehand, so the largest need of these engines is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    pub n: usize,
    pub nb: usize,
    pub p: usize,
    pub q: usize,
    pub depth: usize,
    pub align: usize,
    pub means: Means,
}

/// Settings of the program that determine the memory need of a test, apart from the test's own parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Means {
    pub engine: EngineChoice,
    /// Threads of each rank.
    pub threads: usize,
    /// Device that computes and whose memory has the matrix, or [`Device::None`]. With [`Device::Host`], which tests use, the
    /// device memory is part of the node's memory.
    pub device: Device,
}

/// Memory need of one rank, or of several ranks together, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Local part of [A|b].
    pub matrix: u128,
    /// All other buffers, at the moment at which their sum is the largest.
    pub beside: u128,
}

impl Bytes {
    pub fn total(self) -> u128 {
        self.matrix.saturating_add(self.beside)
    }
}

impl Problem {
    pub fn of(test: &TestParams, means: Means) -> Self {
        let TestParams { n, nb, p, q, depth, align, .. } = *test;
        Self { n, nb, p, q, depth, align, means }
    }

    /// Returns the shape of the local matrix at grid position (`row`, `col`). `None` if the matrix is absurdly large, as sizes
    /// are not yet validated. Such a matrix fits nowhere, so other buffers do not matter.
    fn shape(&self, row: usize, col: usize) -> Option<Shape> {
        const ABSURD: usize = 1 << 30;
        let nb = self.nb.clamp(1, self.n.saturating_add(1));
        let grid = ProcessGrid { p: self.p, q: self.q, mapping: Mapping::Row };
        (self.n <= ABSURD).then(|| Shape::of(self.n, nb, grid, row, col))
    }

    /// Returns a rank's part of an absurdly large matrix, in bytes.
    fn absurd_bytes(&self) -> u128 {
        let n = self.n as u128;
        let ranks = (self.p as u128).saturating_mul(self.q as u128);
        (n * n).div_ceil(ranks).saturating_mul(DOUBLE_BYTES)
    }

    /// Returns the lengths of a rank's arrays, for each engine that may be chosen.
    fn lengths(&self, shape: &Shape) -> impl Iterator<Item = Lengths> {
        let Means { engine, threads, device } = self.means;
        let (align, width) = (self.align.min(SIZE_MOST), shape.nb.min(self.n));
        Engine::made(engine)
            .into_iter()
            .map(move |engine| Lengths::new(shape, self.depth, align, threads, engine))
            .map(move |lengths| lengths.with_device(device != Device::None, width))
    }

    /// Returns the memory need of the rank at grid position (`row`, `col`).
    pub fn rank(&self, row: usize, col: usize) -> Bytes {
        let Some(shape) = self.shape(row, col) else {
            return Bytes { matrix: self.absurd_bytes(), beside: 0 };
        };
        let apart = self.means.device == Device::Cuda;
        let of_node = |all: Lengths| if apart { all.in_memory_of_the_node() } else { all };
        let beside = self.lengths(&shape).map(|lengths| of_node(lengths).most_bytes()).max();
        let matrix = if apart { 0 } else { buffer_bytes(shape.len()) };
        Bytes { matrix, beside: beside.unwrap_or(0) }
    }

    /// Returns the bytes of device memory that the first rank needs. This rank has the largest need. Zero without a device that
    /// has memory of its own.
    pub fn on_device(&self) -> u128 {
        if self.means.device != Device::Cuda {
            return 0;
        }
        let Some(shape) = self.shape(0, 0) else { return self.absurd_bytes() };
        let arrays = self.lengths(&shape);
        let arrays = arrays.map(|all| all.work_bytes() - all.in_memory_of_the_node().work_bytes());
        buffer_bytes(shape.len()) + arrays.max().unwrap_or(0)
    }

    /// Returns the memory need of the first rank, which has the most rows and columns and so the largest need.
    pub fn largest_rank(&self) -> Bytes {
        self.rank(0, 0)
    }

    /// Returns the memory need of all ranks together.
    pub fn all_ranks(&self) -> Bytes {
        let mut all = Bytes::default();
        for (row, rows) in alike(self.n, self.nb, self.p) {
            for (col, cols) in alike(self.n.saturating_add(1), self.nb, self.q) {
                let ranks = (rows as u128).saturating_mul(cols as u128);
                let one = self.rank(row, col);
                all.matrix = all.matrix.saturating_add(one.matrix.saturating_mul(ranks));
                all.beside = all.beside.saturating_add(one.beside.saturating_mul(ranks));
            }
        }
        all
    }
}

/// Divides `procs` processes into groups of consecutive processes that own equally many of `n` indices, dealt out in blocks of
/// `nb`. Returns the first process and the number of processes of each group.
fn alike(n: usize, nb: usize, procs: usize) -> Vec<(usize, usize)> {
    // Three groups: the processes with one more whole block, the process with the last, shorter block, and all later processes.
    let odd = n / nb.max(1) % procs;
    [(0, odd), (odd, 1), (odd + 1, procs - odd - 1)]
        .into_iter()
        .filter(|&(_, count)| count > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MEANS: Means = Means { engine: EngineChoice::Auto, threads: 2, device: Device::None };

    fn problem(n: usize, nb: usize, p: usize, q: usize, depth: usize) -> Problem {
        Problem { n, nb, p, q, depth, align: 8, means: MEANS }
    }

    #[test]
    fn an_absurd_size_needs_more_device_memory_than_there_is() {
        let means = Means { device: Device::Cuda, ..MEANS };
        for n in [1 << 40, usize::MAX] {
            let problem = Problem { n, nb: 64, p: 2, q: 2, depth: 1, align: 8, means };
            assert!(problem.on_device() > 1 << 70, "{n}");
        }
    }

    proptest! {
        #[test]
        fn all_ranks_are_those_there_are(
            n in 0usize..300, nb in 1usize..60, p in 1usize..7, q in 1usize..7, depth in 0usize..4,
        ) {
            let problem = problem(n, nb, p, q, depth);
            let ranks: Vec<Bytes> = (0..p * q).map(|at| problem.rank(at / q, at % q)).collect();
            let all = problem.all_ranks();
            prop_assert_eq!(all.matrix, ranks.iter().map(|r| r.matrix).sum::<u128>());
            prop_assert_eq!(all.beside, ranks.iter().map(|r| r.beside).sum::<u128>());
            let largest = problem.largest_rank();
            prop_assert!(ranks.iter().all(|r| r.matrix <= largest.matrix && r.beside <= largest.beside));
        }

        #[test]
        fn the_need_never_falls_as_n_grows(
            n in 0usize..3000, nb in 1usize..300, p in 1usize..4, q in 1usize..4, depth in 0usize..4,
        ) {
            let (now, next) = (problem(n, nb, p, q, depth), problem(n + 1, nb, p, q, depth));
            prop_assert!(now.largest_rank().total() <= next.largest_rank().total());
            prop_assert!(now.all_ranks().total() <= next.all_ranks().total());
        }

        /// Tests that no engine needs more memory than is counted, and that our own kernels need hardly less.
        #[test]
        fn no_engine_takes_more(
            n in 1usize..20_000, nb in 1usize..6000, p in 1usize..4, q in 1usize..4, depth in 0usize..3,
        ) {
            let problem = problem(n, nb, p, q, depth);
            let counted = problem.largest_rank();
            let grid = ProcessGrid { p, q, mapping: Mapping::Row };
            let shape = Shape::of(n, nb.min(n + 1), grid, 0, 0);
            for engine in Engine::made(EngineChoice::Auto) {
                let taken = Lengths::new(&shape, depth, 8, MEANS.threads, engine).most_bytes();
                prop_assert!(taken <= counted.beside);
                if engine != Engine::Blas && nb >= 32 {
                    let more = counted.beside - taken;
                    prop_assert!(more < counted.total() / 40 + (24 << 20), "{engine:?} {more}");
                }
            }
        }
    }

    /// Tests the memory need with two panels, each half as wide as the matrix. Wide panels need much memory for their triangles
    /// and for U, in addition to their rows.
    #[test]
    fn panels_of_half_the_matrix_take_three_times_as_much_as_it() {
        let bytes = problem(40_000, 20_000, 1, 1, 1).largest_rank();
        let gb = |bytes: u128| bytes as f64 / 1e9;
        assert!((12.8..12.9).contains(&gb(bytes.matrix)), "{bytes:?}");
        // Each of two threads has packed a quarter of a triangle.
        assert!((43.2..43.5).contains(&gb(bytes.beside)), "{bytes:?}");
    }

    #[test]
    fn absurd_sizes_are_counted_without_overflow() {
        let most = usize::MAX;
        for n in [most, most - 1, 1 << 62, 1 << 30, 1 << 20, 0] {
            for (nb, p, q, depth, align) in
                [(most, most, most, most, most), (1, 1, 1, most, 1), (1, most, 1, 0, most)]
            {
                let problem = Problem { n, nb, p, q, depth, align, means: MEANS };
                assert!(problem.largest_rank().total() <= problem.all_ranks().total());
            }
        }
    }
}
