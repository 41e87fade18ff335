//! Parameters of one test of the benchmark, as plain values.
//!
//! All layers describe a test by [`TestParams`]: `config` makes it, the solver uses it, the report prints it. [`TestParams`]
//! contains only checked values. This module reads no file and does not call MPI.
//!
//! The help prints the comments of the values. The alias of a value is its digit in HPL.dat.

use serde::{Deserialize, Serialize};

/// Largest accepted block size and alignment: the reference HPL counts them in C's `int`.
pub const SIZE_MOST: usize = i32::MAX as usize;

/// Order in which the ranks are assigned to the P x Q grid (HPL.dat line 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mapping {
    /// neighbouring ranks fill a row of the grid first
    #[value(alias = "0")]
    Row,
    /// neighbouring ranks fill a column of the grid first
    #[value(alias = "1")]
    Column,
}

/// Variant of the panel factorisation: the side of the panel that is updated at each step (HPL.dat lines 15 and 21).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fact {
    /// left-looking
    #[value(alias = "0")]
    Left,
    /// Crout
    #[value(alias = "1")]
    Crout,
    /// right-looking
    #[value(alias = "2")]
    Right,
}

/// Algorithm that broadcasts a factored panel along its process row (HPL.dat line 23).
///
/// A new algorithm must also be added to these lists, which the compiler does not check: `tune/space.rs`,
/// `testkit/simulation/ranks/scenario.rs`, `tests/mpi/options.rs`, `tests/mpi/oracle.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Bcast {
    /// one ring
    #[value(name = "1ring", alias = "0")]
    OneRing,
    /// one ring; the process after the sender does not forward
    #[value(name = "1ringM", alias = "1")]
    OneRingM,
    /// two rings
    #[value(name = "2ring", alias = "2")]
    TwoRing,
    /// two rings; the process after the sender does not forward
    #[value(name = "2ringM", alias = "3")]
    TwoRingM,
    /// spread and roll, for slow networks and large panels
    #[value(name = "blong", alias = "4")]
    Long,
    /// spread and roll; the process after the sender receives the panel first
    #[value(name = "blongM", alias = "5")]
    LongM,
}

/// Algorithm that exchanges rows between process rows (HPL.dat line 26).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Swap {
    /// pairs of process rows exchange, in log2(P) steps
    #[value(alias = "0")]
    BinaryExchange,
    /// spread and roll over the process rows
    #[value(alias = "1")]
    Long,
    /// binary exchange up to the threshold (number of columns), long above it
    #[value(alias = "2")]
    Mix,
}

/// Storage form of a work array (HPL.dat lines 28 and 29).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// stored transposed
    #[value(alias = "0")]
    Transposed,
    /// stored as it is
    #[value(alias = "1")]
    NotTransposed,
}

/// Generator of the matrix elements: the 64-bit linear congruential generator of the reference HPL, or xoshiro256++, which is
/// seeded per block so that the matrix does not depend on the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Rng {
    /// the generator of the reference HPL, bit for bit
    Hpl,
    /// xoshiro256++, seeded per block
    Xoshiro,
}

impl Rng {
    /// Only seed of the reference HPL.
    pub const HPL_SEED: u64 = 100;

    /// Returns whether this generator and `seed` generate the matrix of the reference HPL.
    pub fn makes_hpl_matrix(self, seed: u64) -> bool {
        self == Rng::Hpl && seed == Self::HPL_SEED
    }
}

/// Binding of threads to processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pinning {
    /// If each thread of the node's ranks has a core and no core is left over
    #[default]
    Auto,
    /// The system places the threads
    Off,
}

/// Treatment of tests that need more memory than a node seems to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryCheck {
    /// Skip tests that do not fit; refuse the whole run if no test fits, or if the run is protected
    #[default]
    On,
    /// Report tests that do not fit, and run them
    Warn,
    /// Compare nothing, for nodes that report less memory than they have
    Off,
}

/// Splitting of the trailing update in two halves: the rows of one half are exchanged while the other half is multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SplitUpdate {
    /// Split each update whose halves take long enough to multiply
    #[default]
    Auto,
    /// Split each update of at least two block columns
    Always,
    /// Exchange all rows before the multiplication
    Never,
}

/// Code that multiplies in the trailing update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// The fastest on this machine
    #[default]
    Auto,
    /// The fastest of the program's own kernels
    Packed,
    /// The program's kernels for AVX-512
    Avx512,
    /// The program's kernels for AVX2 with fused multiply-add
    Avx2,
    /// The program's kernels for 64-bit ARM
    Neon,
    /// The program's kernel for any processor
    Portable,
    /// The BLAS's DGEMM and DTRSM
    Blas,
}

/// Accelerator whose memory has the local matrix.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// No accelerator
    #[default]
    None,
    /// A GPU of NVIDIA
    Cuda,
    /// The processor in place of a device, to test the program
    Host,
}

impl Device {
    /// Returns the name that the value has on the command line and in `skt.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Device::None => "none",
            Device::Cuda => "cuda",
            Device::Host => "host",
        }
    }
}

/// Parameters of a test: the problem, the grid and every algorithmic choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestParams {
    pub n: usize,
    pub nb: usize,
    pub p: usize,
    pub q: usize,
    pub mapping: Mapping,
    pub depth: usize,
    pub bcast: Bcast,
    pub rfact: Fact,
    pub ndiv: usize,
    pub pfact: Fact,
    pub nbmin: usize,
    pub swap: Swap,
    /// Maximum number of columns for which [`Swap::Mix`] uses the binary exchange.
    pub swap_threshold: usize,
    pub l1: Form,
    pub u: Form,
    pub equilibrate: bool,
    /// Alignment of work arrays, in doubles.
    pub align: usize,
    /// Upper limit of the scaled residual; zero or less skips the check.
    pub threshold: f64,
    pub rng: Rng,
    pub seed: u64,
}

impl TestParams {
    /// Number of block columns, hence of iterations of the factorisation.
    pub fn blocks(&self) -> usize {
        self.n.div_ceil(self.nb)
    }

    /// Maximum number of panels that are factored ahead: DEPTH, or the number of panels if that is less.
    pub fn lookahead(&self) -> usize {
        self.depth.min(self.blocks())
    }

    /// Floating-point operations that the benchmark credits: N^2 (2N/3 + 3/2).
    pub fn flops(&self) -> f64 {
        let n = self.n as f64;
        n * n * (2.0 * n / 3.0 + 1.5)
    }
}
