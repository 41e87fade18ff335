//! The command line of the benchmark.

use std::path::PathBuf;

use clap::Parser;
use skt_hpl::base::units::bytes;

use crate::usual::Usual;

/// Measures what protection costs: memory, saves, restores, and a run that nothing happens to
///
/// Each figure is a quotient of two things measured in turn in the same run, so that a slow hour of
/// the machine does not matter. Needs some GB of memory in /dev/shm, and the machine for itself.
#[derive(Clone, Debug, Parser)]
#[command(name = "checkpoint", max_term_width = 100)]
pub struct Flags {
    /// Size of the problem of saves, restores and whole runs
    #[arg(short, long, value_name = "N", default_value = "8000")]
    pub n: usize,

    /// Size of the problem where many combinations are compared
    #[arg(long, value_name = "N", default_value = "4000")]
    pub small: usize,

    /// Block size of whole runs
    #[arg(long, value_name = "NB", default_value = "192")]
    pub nb: usize,

    /// How often each is measured
    #[arg(long, value_name = "TIMES", default_value = "5")]
    pub repeat: usize,

    /// Only these parts, of: memory, save, restore, threads, storage, storing, pipeline, run, scopes, codes, groups, layouts
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub only: Vec<Section>,

    /// Threads of each of two ranks with which saves and restores are compared
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "1,2")]
    pub threads: Vec<usize>,

    /// Ranks up to which layouts are compared; those that are more than cores take turns
    #[arg(long, value_name = "COUNT", default_value = "16")]
    pub ranks: usize,

    /// Losses up to which layouts are compared
    #[arg(long, value_name = "COUNT", default_value = "3")]
    pub losses: usize,

    /// Part of the matrix that each rank has where layouts are compared
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "8MB")]
    pub each: f64,

    /// Folder of the second level, on the device that is to be measured
    #[arg(long, value_name = "DIR", default_value = env!("CARGO_TARGET_TMPDIR"), hide_default_value = true)]
    pub storage: PathBuf,

    #[command(flatten)]
    pub usual: Usual,

    /// The launcher, if not the one of the MPI library this is linked with
    #[arg(long, value_name = "PROGRAM", env = "MPIRUN")]
    pub mpirun: Option<PathBuf>,

    /// Request of the benchmark to itself under the launcher
    #[arg(long, hide = true)]
    pub probe: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Section {
    Memory,
    Save,
    Restore,
    Threads,
    Storage,
    Storing,
    Pipeline,
    Run,
    Scopes,
    Codes,
    Groups,
    Layouts,
}

impl Flags {
    pub fn wants(&self, section: Section) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }
}
