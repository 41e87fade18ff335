//! The command line of the benchmark.

use std::path::PathBuf;

use clap::Parser;

use crate::usual::Usual;

/// Measures supervision: how soon what is noticed, how soon the run computes again, and what watching costs
///
/// Nodes are virtual ones on this machine (scripts/vcluster), the solver is the real one, and times are
/// those of the event log. Needs root, some GB of memory, and the machine for itself. Fails if any run comes to
/// another x than the undisturbed one.
#[derive(Clone, Debug, Parser)]
#[command(name = "supervision", max_term_width = 100)]
pub struct Flags {
    /// Size of the problem
    #[arg(short, long, value_name = "N", default_value = "8000")]
    pub n: usize,

    /// Block size
    #[arg(long, value_name = "NB", default_value = "64")]
    pub nb: usize,

    /// Save every so many block columns
    #[arg(long, value_name = "K", default_value = "10")]
    pub checkpoint: usize,

    /// How often each fault is injected
    #[arg(long, value_name = "TIMES", default_value = "3")]
    pub repeat: usize,

    /// Pairs of undisturbed runs, with and without supervision
    #[arg(long, value_name = "PAIRS", default_value = "7")]
    pub pairs: usize,

    /// Only these parts
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub only: Vec<Section>,

    /// Instead of all that: so many simulated agents under the real supervisor, a table of these sizes; no root needed
    #[arg(long, value_name = "COUNTS", value_delimiter = ',')]
    pub agents: Vec<usize>,

    /// With --agents: so many ranks on each of these nodes
    #[arg(long, value_name = "RANKS", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks_a_node: u32,

    /// Instead of all that: so many ranks on this machine under a real agent, a table of these numbers; no root needed
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', conflicts_with = "agents")]
    pub ranks: Vec<u32>,

    /// Shared memory of each node
    #[arg(long, value_name = "SIZE", default_value = "1g")]
    pub shm: String,

    #[command(flatten)]
    pub usual: Usual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Section {
    /// A node's power is cut, without a word
    Silent,
    /// A node's power is cut, its connections are closed
    Visible,
    /// A rank's process is killed
    Dead,
    /// A rank's process is stopped
    Hung,
    /// Cost of supervision without a fault
    Cost,
}

impl Flags {
    pub fn wants(&self, section: Section) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }
}
