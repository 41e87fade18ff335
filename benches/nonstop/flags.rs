//! The command line of the benchmark.

use std::path::PathBuf;

use clap::Parser;

use crate::usual::Usual;

/// Measures going on without a restart: how soon, what it costs where nothing happens, what a loss costs
///
/// Needs Open MPI 5 and the machine for itself; the moments of a loss also root, for virtual nodes (scripts/vcluster). Each ratio
/// is of runs made in turn. Fails if a run ends with a wrong solution, or begins from scratch where it should go on.
#[derive(Clone, Debug, Parser)]
#[command(name = "nonstop", max_term_width = 100)]
pub struct Flags {
    /// Size of the problem
    #[arg(short, long, value_name = "N", default_value = "8000")]
    pub n: usize,

    /// Block size
    #[arg(long, value_name = "NB", default_value = "64")]
    pub nb: usize,

    /// Save every so many block columns, where something is saved
    #[arg(long, value_name = "K", default_value = "10")]
    pub checkpoint: usize,

    /// How often a loss is injected, and pairs of runs that are compared
    #[arg(long, value_name = "TIMES", default_value = "5")]
    pub repeat: usize,

    /// Random losses whose residuals are looked at
    #[arg(long, value_name = "COUNT", default_value = "200")]
    pub losses: usize,

    /// Size of the problem of those, in blocks of a fiftieth of it
    #[arg(long, value_name = "N", default_value = "1000")]
    pub small: usize,

    /// Seed of all random choices [default: the time of day]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,

    /// Only these parts
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub only: Vec<Section>,

    /// Shared memory of each virtual node
    #[arg(long, value_name = "SIZE", default_value = "1g")]
    pub shm: String,

    #[command(flatten)]
    pub usual: Usual,

    /// The launcher, if not the one of the MPI library this is linked with
    #[arg(long, value_name = "PROGRAM", env = "MPIRUN")]
    pub mpirun: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Section {
    /// A rank is killed, and one that stands by takes its place
    InPlace,
    /// A rank is killed, and checksums take the place of its process column
    Hot,
    /// Cost of --nonstop and --method abft without a loss
    Cost,
    /// Cost of a loss that checksums recover
    Loss,
    /// The residual after losses at random
    Residual,
}

impl Flags {
    pub fn wants(&self, section: Section) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }
}
