//! Flags of `skt-hpl plan`, and the planner's inputs that follow from them and, for those not given, from this machine.

use std::path::PathBuf;

use clap::Args;

use crate::base::cores;
use crate::base::exit::Refusal;
use crate::base::topology::{Layout, Topology};
use crate::base::units::{bytes, bytes_per_second, seconds, seconds_or_none, show_bytes};
use crate::checkpoint::layout::ParityLayout;
use crate::cli::this_machine;
use crate::config::settings;
use crate::model::memory::{Method, Scope};
use crate::model::nonstop::Columns;
use crate::model::planner::{Inputs, Mtbf, NamedRoom};

const MACHINE: &str =
    "The machine (defaults come from this one, or are guesses that the plan lists)";
const FAILURES: &str = "Failures and deadlines";
const RUN: &str = "The run (the plan chooses what is not given)";
const OUTPUT: &str = "Measuring and writing";

/// Durations are written `90s`, `30min`, `5h`, `3d`, `5y`; memory `64GiB`, `64GB`; bandwidths `12.5GB/s`, `100Gbit/s`.
#[derive(Debug, Args)]
pub struct PlanFlags {
    #[command(flatten)]
    pub(super) machine: MachineFlags,

    #[command(flatten)]
    pub(super) failures: FailureFlags,

    #[command(flatten)]
    pub(super) run: ChoiceFlags,

    #[command(flatten)]
    pub(super) output: OutputFlags,
}

/// Flags of the machine.
#[derive(Debug, Args)]
#[command(next_help_heading = MACHINE)]
pub(super) struct MachineFlags {
    /// Number of nodes
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(super) nodes: u64,

    /// Ranks on each node [default: one for each last-level cache of four cores or more, else for each NUMA node]
    #[arg(long, value_name = "COUNT")]
    pub(super) ranks_per_node: Option<u64>,

    /// NUMA nodes of each node, with as many cores each [default: 1 where --cores is given]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub(super) numa: Option<u64>,

    /// Cores of each node, hardware threads of one counted once
    #[arg(long, value_name = "COUNT")]
    pub(super) cores: Option<u64>,

    /// Memory of each node
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(super) memory: Option<f64>,

    /// Room in /dev/shm of each node.
    ///
    /// The default is the room of this machine, if its memory is taken, too. Memory for which the room is too small goes to
    /// System V shared memory.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(super) shm: Option<f64>,

    /// Number of the plan's nodes that are on this machine.
    ///
    /// Each has its share of the cores, the memory and the room in /dev/shm.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000),
          conflicts_with = "memory")]
    pub(super) nodes_here: u64,

    /// Memory of a node that is left to the system [default: 5 %, at least 512 MiB]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(super) reserve: Option<f64>,

    /// Peak of a core in Gflop/s
    #[arg(long, value_name = "GFLOPS")]
    pub(super) peak_per_core: Option<f64>,

    /// Bandwidth of the network out of a node
    #[arg(long, value_name = "RATE", value_parser = bytes_per_second)]
    pub(super) network: Option<f64>,

    /// Latency of a message
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub(super) latency: Option<f64>,

    /// Bandwidth of copying within a node's memory, all cores together
    #[arg(long, value_name = "RATE", value_parser = bytes_per_second)]
    pub(super) copy: Option<f64>,

    /// Bandwidth of the file system, all nodes together (for --method disk and --level2)
    #[arg(long, value_name = "RATE", value_parser = bytes_per_second)]
    pub(super) disk: Option<f64>,
}

/// Flags of failures, repairs and deadlines.
#[derive(Debug, Args)]
#[command(next_help_heading = FAILURES)]
pub(super) struct FailureFlags {
    /// Mean time between failures of the whole system
    #[arg(long, value_name = "TIME", value_parser = seconds, conflicts_with = "mtbf_node")]
    pub(super) mtbf: Option<f64>,

    /// Mean time between failures of one node
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub(super) mtbf_node: Option<f64>,

    /// Time until a dead node is noticed
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub(super) detect: Option<f64>,

    /// Time to replace a dead node and to start again
    #[arg(long = "restart-time", value_name = "TIME", value_parser = seconds)]
    pub(super) restart: Option<f64>,

    /// Share of the failures that end a process and leave its node, 0 to 1 [default: 0].
    ///
    /// Only these failures are survived without a restart.
    #[arg(long, value_name = "SHARE")]
    pub(super) process_share: Option<f64>,

    /// Time to continue without a restart after such a failure, without the restore
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none)]
    pub(super) in_place: Option<f64>,

    /// Spare nodes [default: enough]
    #[arg(long = "spare-nodes", value_name = "COUNT")]
    pub(super) spares: Option<u64>,

    /// Longest wall time of the run
    #[arg(long = "time-limit", value_name = "TIME", value_parser = seconds)]
    pub(super) limit: Option<f64>,
}

/// Flags of the run.
#[derive(Debug, Args)]
#[command(next_help_heading = RUN)]
pub(super) struct ChoiceFlags {
    /// Order of the matrix [default: the largest that fits memory and limit]
    #[arg(short, long, value_name = "N")]
    pub(super) n: Option<u64>,

    /// Block size
    #[arg(long, value_name = "NB")]
    pub(super) nb: Option<u64>,

    /// Process rows, with -q
    #[arg(short, long, value_name = "P", requires = "q")]
    pub(super) p: Option<u64>,

    /// Process columns, with -p; for method abft without the checksum columns
    #[arg(short, long, value_name = "Q", requires = "p")]
    pub(super) q: Option<u64>,

    /// Panels of lookahead
    #[arg(long, value_name = "DEPTH", default_value_t = 1)]
    pub(super) depth: u64,

    /// Checkpoint method: self, double, single, abft, disk or none [default: self, on one node none]
    #[arg(long, value_name = "METHOD")]
    pub(super) method: Option<Method>,

    /// Part of the matrix that a save covers: whole, side or corner
    #[arg(long, value_name = "SCOPE", default_value = "corner")]
    pub(super) scope: Scope,

    /// Nodes of a group, which protect each other [default: about 16]
    #[arg(long, value_name = "COUNT")]
    pub(super) group: Option<u64>,

    /// Losses that each group survives
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(super) losses: u64,

    /// Distribution of the parity over the members of a group.
    ///
    /// With `dedicated`, ranks of their own hold the parity. --ranks-per-node counts them, and --group does not.
    #[arg(long, value_name = "LAYOUT", default_value = "striped", value_parser = settings::parity_layout())]
    pub(super) parity_layout: ParityLayout,

    /// Way to compute the parity.
    ///
    /// `pipelined`: segments travel round the group. `helper`: a helper of each rank computes it while the rank computes; this
    /// needs method double.
    #[arg(long, value_name = "NAME", default_value = "pipelined", value_parser = ["pipelined", "helper"])]
    pub(super) encode: String,

    /// Process columns that hold checksums, 1 to 4 [default: 1].
    ///
    /// They count for method abft, and for its comparison with other methods.
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u64).range(1..=Columns::SUMS_MAX))]
    pub(super) checksum_columns: Option<u64>,

    /// Ranks that stand by to rebuild checksums [default: 0].
    ///
    /// They count for method abft, and for its comparison with other methods.
    #[arg(long, value_name = "K")]
    pub(super) spare_ranks: Option<u64>,

    /// Name of the run's memory and checkpoints
    #[arg(long, value_name = "NAME")]
    pub(super) job: Option<String>,

    /// Folder for checkpoints on storage, which all nodes share.
    ///
    /// Method disk saves there. For other methods it holds the second level.
    #[arg(long, value_name = "DIR")]
    pub(super) level2: Option<PathBuf>,

    /// Time between two checkpoints in memory that go to storage as well [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = seconds, requires = "level2")]
    pub(super) level2_every: Option<f64>,
}

/// Flags of measurements and of what is written.
#[derive(Debug, Args)]
#[command(next_help_heading = OUTPUT)]
pub(super) struct OutputFlags {
    /// Take the rate from results of earlier runs: output of any HPL, or JSON.
    ///
    /// For a protected run, only JSON has the time of saves and failures, which must not count in the rate.
    #[arg(long, value_name = "FILE")]
    pub(super) results: Vec<PathBuf>,

    /// Ranks of those runs [default: P x Q of the results]
    #[arg(long, value_name = "COUNT", requires = "results")]
    pub(super) results_ranks: Option<u64>,

    /// Threads of each of these ranks [default: those of the results, else those of the plan]
    #[arg(long, value_name = "COUNT", requires = "results", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) results_threads: Option<u64>,

    /// Measure the rate first, for about this time
    #[arg(long, value_name = "TIME", value_parser = seconds, num_args = 0..=1, default_missing_value = "30s",
          conflicts_with = "results")]
    pub(super) calibrate: Option<f64>,

    /// Command that starts the measurement [default: mpirun, with equal ranks on each node, not bound].
    ///
    /// {ranks} stands for the number of ranks, {per_node} for the ranks of a node, {threads} for the threads of a rank.
    #[arg(long, value_name = "WORDS", requires = "calibrate")]
    pub(super) launch_command: Option<String>,

    /// Program to measure [default: this one]
    #[arg(long, value_name = "FILE", requires = "calibrate")]
    pub(super) program: Option<PathBuf>,

    /// Write HPL.dat and skt.toml into DIR
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = ".")]
    pub(super) write: Option<PathBuf>,

    /// Overwrite these files if they exist
    #[arg(long, requires = "write")]
    pub(super) force: bool,

    /// Print only the number of ranks that suits the cores of a node, and the threads of each
    #[arg(long, conflicts_with_all = ["calibrate", "results", "write", "json"])]
    pub(super) show_ranks: bool,

    /// Print only the free memory of this machine.
    ///
    /// The limits of a container and of a job count.
    #[arg(long, conflicts_with_all = ["calibrate", "results", "write", "json", "show_ranks"])]
    pub(super) free_memory: bool,

    /// JSON, into FILE; without FILE, or with `-`, on stdout in place of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub(super) json: Option<Option<PathBuf>>,

    /// Number of simulated runs, for the chance to finish; 0 for none
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub(super) runs: usize,

    /// Seed of the simulation
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(super) seed: u64,
}

/// Cores of a node if none are given: this machine's, or its share of them.
fn cores_here(machine: &MachineFlags) -> usize {
    (cores::count() / machine.nodes_here as usize).max(1)
}

/// Number of ranks that suit a node, and number of threads each.
pub(super) fn layout(machine: &MachineFlags) -> Layout {
    let own = match (machine.cores, machine.numa) {
        (None, None) => share_of(this_machine::layout(), machine.nodes_here as usize),
        (cores, numa) => {
            // More than there are of anything, but not more than fit here.
            let cores =
                cores.map_or_else(|| cores_here(machine), |cores| cores.clamp(1, 1 << 16) as usize);
            Topology::even(cores, numa.unwrap_or(1) as usize).layout()
        }
    };
    match machine.ranks_per_node.unwrap_or(0) as usize {
        0 => own,
        ranks => Layout { ranks, threads: (own.ranks * own.threads / ranks).max(1) },
    }
}

/// The layout of one of so many nodes that share a machine like this one: its part of the ranks, or a rank with its part of the
/// cores if these do not divide evenly.
fn share_of(machine: Layout, nodes: usize) -> Layout {
    let Layout { ranks, threads } = machine;
    if ranks.is_multiple_of(nodes) {
        Layout { ranks: ranks / nodes, threads }
    } else {
        Layout { ranks: 1, threads: (ranks * threads / nodes).max(1) }
    }
}

/// Bytes a second that a node copies, measured on this machine: its part of the bytes that all nodes here copy at once.
pub(super) fn copy_bandwidth(machine: &MachineFlags, cores: u64) -> Option<f64> {
    let here = machine.nodes_here;
    Some(this_machine::copy_bandwidth(cores.saturating_mul(here) as usize)? / here as f64)
}

/// Inputs from the flags, completed by this machine.
pub(super) fn inputs(flags: &PlanFlags, warnings: &mut Vec<String>) -> Result<Inputs, Refusal> {
    let PlanFlags { machine, failures, run, output } = flags;
    let cores = machine.cores.unwrap_or_else(|| take_cores(machine, warnings));
    let ranks_per_node = machine.ranks_per_node.unwrap_or_else(|| choose_ranks(machine, warnings));
    let memory = machine.memory.map_or_else(|| take_memory(machine, warnings), Ok)?;
    // The room on this machine does not apply to nodes with another memory.
    let here = match machine.memory {
        Some(_) => NamedRoom::default(),
        None => this_machine::named_room().among(machine.nodes_here),
    };
    let named = NamedRoom { posix: machine.shm.or(here.posix), ..here };
    let peak = machine.peak_per_core.map(|g| g * 1e9).or_else(|| {
        // This guess is useful only if the nodes are like this one.
        (machine.cores.is_none()).then(this_machine::peak_per_core).flatten()
    });
    Ok(Inputs {
        nodes: machine.nodes,
        ranks_per_node,
        cores,
        memory,
        named,
        reserve: machine.reserve,
        peak_per_core: peak,
        network: machine.network,
        latency: machine.latency,
        copy: machine.copy,
        disk: machine.disk,
        mtbf: failures.mtbf.map(Mtbf::System).or(failures.mtbf_node.map(Mtbf::Node)),
        detect: failures.detect,
        restart: failures.restart,
        process_share: failures.process_share,
        in_place: failures.in_place,
        spares: failures.spares,
        limit: failures.limit,
        n: run.n,
        nb: run.nb,
        grid: run.p.zip(run.q),
        depth: run.depth,
        method: run.method,
        scope: run.scope,
        group: run.group,
        losses: run.losses,
        layout: run.parity_layout,
        helpers: run.encode == "helper",
        checksum_columns: run.checksum_columns,
        spare_ranks: run.spare_ranks,
        measured: None,
        job: run.job.clone(),
        level2: run.level2.clone(),
        level2_every: run.level2_every,
        simulate: output.runs,
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        seed: output.seed,
    })
}

/// Cores of a node, taken from this machine.
fn take_cores(machine: &MachineFlags, warnings: &mut Vec<String>) -> u64 {
    let cores = cores_here(machine) as u64;
    let of = if machine.nodes_here > 1 { "its part of those of" } else { "taken from" };
    warnings.push(format!("{cores} cores a node: {of} this machine (--cores)"));
    cores
}

/// Number of ranks that suits a node.
fn choose_ranks(machine: &MachineFlags, warnings: &mut Vec<String>) -> u64 {
    let ranks = layout(machine).ranks as u64;
    if ranks > 1 {
        warnings.push(format!(
            "{ranks} ranks a node: one for each part of it with caches or memory of its own (--ranks-per-node)"
        ));
    }
    ranks
}

/// Memory of a node, taken from this machine.
fn take_memory(machine: &MachineFlags, warnings: &mut Vec<String>) -> Result<f64, Refusal> {
    let memory = this_machine::memory("; say it with --memory")?;
    let (memory, of) = match machine.nodes_here {
        1 => (memory, ""),
        here => (memory / here as f64, "its part of "),
    };
    warnings.push(format!(
        "{} of memory a node: {of}what is free on this machine now (--memory)",
        show_bytes(memory)
    ));
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_one_machine_share_its_ranks_or_its_cores() {
        let of = |ranks, threads, nodes| share_of(Layout { ranks, threads }, nodes);
        assert_eq!(of(8, 4, 1), Layout { ranks: 8, threads: 4 });
        assert_eq!(of(8, 4, 2), Layout { ranks: 4, threads: 4 });
        assert_eq!(of(8, 4, 3), Layout { ranks: 1, threads: 10 });
        assert_eq!(of(1, 2, 2), Layout { ranks: 1, threads: 1 });
        assert_eq!(of(1, 2, 5), Layout { ranks: 1, threads: 1 });
    }
}
