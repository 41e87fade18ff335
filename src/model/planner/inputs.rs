//! Inputs of a plan: the user's figures of the machine, of failures and of the run.

use std::path::PathBuf;

use super::super::error::{Result, at_least, at_most, fraction, non_negative, positive, refused};
use super::super::fit::Fit;
use super::super::memory::{Method, Scope};
use super::super::nonstop::Columns;
use crate::base::params::{Device, Engine};
use crate::checkpoint::layout::ParityLayout;
use crate::lu::need::Means;
use crate::parity::code::LOSSES_MAX;

/// Mean time between failures, of a node or of the system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mtbf {
    Node(f64),
    System(f64),
}

/// Rates measured on this kind of machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub fit: Fit,
    /// Number of ranks in the measurement.
    pub ranks: u64,
    /// Number of threads of each rank in the measurement.
    pub threads: u64,
}

/// Bytes of persistent shared memory that a node has room for, by store; None if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NamedRoom {
    pub posix: Option<f64>,
    pub sysv: Option<f64>,
}

impl NamedRoom {
    /// Divides the room among `nodes` nodes.
    pub fn among(self, nodes: u64) -> Self {
        let part = |bytes: Option<f64>| bytes.map(|b| b / nodes as f64);
        Self { posix: part(self.posix), sysv: part(self.sysv) }
    }
}

/// Devices that compute, one for each rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Devices {
    /// Free bytes of a device's memory.
    pub memory: f64,
    /// Peak flop/s of a device.
    pub peak: Option<f64>,
    /// Bytes/s copied between a device and the memory of its node.
    pub link: Option<f64>,
}

/// Inputs of a plan. The planner guesses or chooses inputs that are None.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    pub nodes: u64,
    pub ranks_per_node: u64,
    /// Cores of a node.
    pub cores: u64,
    /// Bytes of memory of a node. The plan leaves `reserve` of these bytes free.
    pub memory: f64,
    pub named: NamedRoom,
    pub reserve: Option<f64>,
    /// Peak flop/s of a core.
    pub peak_per_core: Option<f64>,
    pub devices: Option<Devices>,
    /// Bytes/s out of a node.
    pub network: Option<f64>,
    /// Latency of a message in seconds.
    pub latency: Option<f64>,
    /// Bytes/s copied in a node's memory.
    pub copy: Option<f64>,
    /// Bytes/s of the file system, for all nodes together.
    pub disk: Option<f64>,
    pub mtbf: Option<Mtbf>,
    pub detect: Option<f64>,
    pub restart: Option<f64>,
    /// Share of failures that end a process but not its node.
    pub process_share: Option<f64>,
    /// Seconds from such a failure until the run continues without a restart. The time to restore or recompute data is not
    /// included.
    pub in_place: Option<f64>,
    pub spares: Option<u64>,
    /// Wall seconds the whole run may take.
    pub limit: Option<f64>,
    pub n: Option<u64>,
    pub nb: Option<u64>,
    pub grid: Option<(u64, u64)>,
    pub depth: u64,
    pub method: Option<Method>,
    pub scope: Scope,
    pub group: Option<u64>,
    pub losses: u64,
    /// Layout of the checksums.
    pub layout: ParityLayout,
    /// Whether helpers encode while the ranks continue (method double).
    pub helpers: bool,
    /// Number of process columns that keep checksums: under method abft, and in alternatives with method abft.
    pub checksum_columns: Option<u64>,
    /// Number of ranks that wait to make new checksums: under method abft, and in alternatives with method abft.
    pub spare_ranks: Option<u64>,
    pub measured: Option<Measured>,
    /// Name of the job, under which the run keeps its shared memory.
    pub job: Option<String>,
    /// Directory of checkpoints on storage. Under method disk these are all checkpoints; under other methods they are level two.
    pub level2: Option<PathBuf>,
    /// Seconds between checkpoints of level two.
    pub level2_every: Option<f64>,
    /// Number of runs to simulate for the chance to finish; 0 for none.
    pub simulate: usize,
    /// Number of threads of the simulation.
    pub threads: usize,
    /// Seed of the simulation.
    pub seed: u64,
}

impl Inputs {
    pub fn threads_per_rank(&self) -> u64 {
        (self.cores / self.ranks_per_node.max(1)).max(1)
    }

    /// Settings of the solver that determine its memory need.
    pub(super) fn means(&self) -> Means {
        let (engine, device) = match self.devices {
            Some(_) => (Engine::Blas, Device::Cuda),
            None => (Engine::Auto, Device::None),
        };
        let threads = usize::try_from(self.threads_per_rank()).unwrap_or(usize::MAX);
        Means { engine, threads, device }
    }

    /// Number of process columns that keep checksums under method abft.
    pub(super) fn sums(&self) -> u64 {
        self.checksum_columns.unwrap_or(1)
    }

    /// Number of ranks that wait to make new checksums under method abft.
    pub(super) fn waiting(&self) -> u64 {
        self.spare_ranks.unwrap_or(0)
    }

    /// Returns inputs that state only the size of the machine.
    pub fn machine(nodes: u64, cores: u64, memory: f64) -> Self {
        Self {
            nodes,
            ranks_per_node: 1,
            cores,
            memory,
            depth: 1,
            losses: 1,
            simulate: 1000,
            threads: 1,
            seed: 1,
            ..Self::default()
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        at_least("the number of nodes", self.nodes, 1, "at least 1")?;
        at_least("the number of ranks per node", self.ranks_per_node, 1, "at least 1")?;
        at_least("the number of cores", self.cores, 1, "at least 1")?;
        self.check_losses()?;
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if self.job.as_ref().is_some_and(|j| j.is_empty() || j.len() > 64 || !j.chars().all(fits)) {
            return refused(
                "the job's name must consist of at most 64 letters, digits, `-` and `_`",
            );
        }
        if self.nodes > 10_000_000 || self.ranks_per_node > 100_000 || self.cores > 10_000_000 {
            return refused(
                "the machine is too large: at most 10 million nodes, and 100,000 ranks and 10 million \
                 cores a node",
            );
        }
        positive("the memory of a node", self.memory)?;
        at_most("the memory of a node", self.memory, 1e18, "at most 10^18 bytes")?;
        self.check_figures()?;
        at_most("the lookahead depth", self.depth as f64, 64.0, "at most 64")?;
        let (p, q) = self.grid.unzip();
        for (what, value) in [
            ("the block size NB", self.nb),
            ("the order N", self.n),
            ("the number of process rows P", p),
            ("the number of process columns Q", q),
        ] {
            value.map_or(Ok(1), |value| at_least(what, value, 1, "at least 1"))?;
        }
        Ok(())
    }

    /// Checks the number of losses that groups or checksum columns are to survive.
    fn check_losses(&self) -> Result<()> {
        at_least("the number of losses", self.losses, 1, "at least 1")?;
        if let Some(sums) = self.checksum_columns {
            Columns { q: 1, sums }.factor()?;
        }
        if self.losses > LOSSES_MAX as u64 {
            return refused(format!(
                "the number of losses must be at most {LOSSES_MAX}, but it is {}",
                self.losses
            ));
        }
        if self.losses > self.layout.losses_max() as u64 {
            return refused(format!(
                "{} checksums survive at most {} losses, but {} are wanted",
                self.layout.name(),
                self.layout.losses_max(),
                self.losses
            ));
        }
        Ok(())
    }

    /// Checks the given figures of the machine and of failures.
    fn check_figures(&self) -> Result<()> {
        let mtbf = self.mtbf.map(|(Mtbf::Node(s) | Mtbf::System(s))| s);
        for (what, value) in [
            ("the peak of a core", self.peak_per_core),
            ("the network bandwidth", self.network),
            ("the network latency", self.latency),
            ("the copying bandwidth", self.copy),
            ("the file system bandwidth", self.disk),
            ("the memory of a device", self.devices.map(|devices| devices.memory)),
            ("the peak of a device", self.devices.and_then(|devices| devices.peak)),
            ("the copying bandwidth of a device", self.devices.and_then(|devices| devices.link)),
            ("the time limit", self.limit),
            ("the time between checkpoints on storage", self.level2_every),
            ("the MTBF", mtbf),
        ] {
            value.map_or(Ok(0.0), |v| positive(what, v))?;
        }
        for (what, value) in [
            ("the room for shared memory", self.named.posix),
            ("the room for shared memory", self.named.sysv),
            ("the reserved memory", self.reserve),
            ("the detection time", self.detect),
            ("the restart time", self.restart),
            ("the time to continue in place", self.in_place),
        ] {
            value.map_or(Ok(0.0), |v| non_negative(what, v))?;
        }
        if let Some(s) = self.process_share {
            fraction("the share of failures that end only a process", s)?;
        }
        Ok(())
    }
}
