//! Flags of `skt-hpl plan`, and the planner's inputs. If a flag is not given, the input may come from this machine.

use std::path::PathBuf;

use clap::Args;

use crate::base::cores;
use crate::base::exit::Refusal;
use crate::base::topology::{Layout, Topology};
use crate::base::units::{bytes, bytes_per_second, seconds, seconds_or_none, show_bytes};
use crate::checkpoint::groups::GROUP_DEFAULT;
use crate::checkpoint::layout::ParityLayout;
use crate::cli::this_machine;
use crate::config::settings;
use crate::model::memory::{Method, Scope};
use crate::model::nonstop::Columns;
use crate::model::planner::{Devices, Inputs, Mtbf, NamedRoom};

const MACHINE: &str =
    "The machine (defaults are values of this machine, or guesses that the plan lists)";
const FAILURES: &str = "Failures and deadlines";
const RUN: &str = "The run (the plan chooses values that are not given)";
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

    /// NUMA nodes of each node, all with the same number of cores [default: 1 if --cores is given, else as on this machine]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub(super) numa: Option<u64>,

    /// Cores of each node; the hardware threads of a core count once
    #[arg(long, value_name = "COUNT")]
    pub(super) cores: Option<u64>,

    /// Memory of each node
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(super) memory: Option<f64>,

    /// Free space of /dev/shm on each node.
    ///
    /// Without --memory, the default is the free space on this machine. Persistent shared memory for which the space is too small
    /// goes to System V shared memory.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(super) shm: Option<f64>,

    /// Number of the plan's nodes that are on this machine.
    ///
    /// Each of these nodes has its share of this machine's cores, memory and free space of /dev/shm.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000),
          conflicts_with = "memory")]
    pub(super) nodes_here: u64,

    /// Device of each rank, which computes and whose memory has the matrix: none or cuda
    #[arg(long, value_name = "DEVICE", default_value = "none", value_parser = ["none", "cuda"], hide_short_help = true)]
    pub(super) device: String,

    /// Memory of a device [default: the least free memory of a device of this machine]
    #[arg(long, value_name = "SIZE", value_parser = bytes, hide_short_help = true)]
    pub(super) device_memory: Option<f64>,

    /// Peak of a device in Tflop/s, in double precision
    #[arg(long, value_name = "TFLOPS", hide_short_help = true)]
    pub(super) device_peak: Option<f64>,

    /// Bandwidth of copies between a device and the memory of its node
    #[arg(long, value_name = "RATE", value_parser = bytes_per_second, hide_short_help = true)]
    pub(super) device_link: Option<f64>,

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

    /// Time to replace a dead node and to restart
    #[arg(long = "restart-time", value_name = "TIME", value_parser = seconds)]
    pub(super) restart: Option<f64>,

    /// Share of the failures that end a process and leave its node, 0 to 1 [default: 0].
    ///
    /// The run survives only these failures without a restart.
    #[arg(long, value_name = "SHARE")]
    pub(super) process_share: Option<f64>,

    /// Time to continue without a restart after the loss of a process, in addition to the time of the recovery
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none)]
    pub(super) in_place: Option<f64>,

    /// Spare nodes [default: as many as needed]
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
    /// Order of the matrix [default: the largest that fits the memory and --time-limit]
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

    /// Checkpoint method: self, double, single, abft, disk or none [default: self, on devices double, on one node none]
    #[arg(long, value_name = "METHOD")]
    pub(super) method: Option<Method>,

    /// Part of the matrix that a save covers: whole, side or corner
    #[arg(long, value_name = "SCOPE", default_value = "corner", hide_short_help = true)]
    pub(super) scope: Scope,

    #[arg(long, value_name = "COUNT",
          help = format!("Number of nodes in a group, which protect each other [default: about {GROUP_DEFAULT}]"))]
    pub(super) group: Option<u64>,

    /// Losses that each group survives
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(super) losses: u64,

    /// Distribution of the parity over the members of a group.
    ///
    /// With `dedicated`, additional ranks hold the parity. --ranks-per-node counts these ranks, and --group does not.
    #[arg(long, value_name = "LAYOUT", default_value = "striped", value_parser = settings::parity_layout())]
    pub(super) parity_layout: ParityLayout,

    /// Way to compute the parity.
    ///
    /// `pipelined`: segments travel round the group. `helper`: a helper of each rank computes the parity while the rank computes.
    /// This needs method double.
    #[arg(long, value_name = "NAME", default_value = "pipelined", value_parser = ["pipelined", "helper"],
          hide_short_help = true)]
    pub(super) encode: String,

    /// Process columns that hold checksums, 1 to 4 [default: 1].
    ///
    /// The plan uses this number for method abft, and to compare other methods with abft.
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u64).range(1..=Columns::SUMS_MAX))]
    pub(super) checksum_columns: Option<u64>,

    /// Ranks that stand by to rebuild checksums [default: 0].
    ///
    /// The plan uses this number for method abft, and to compare other methods with abft.
    #[arg(long, value_name = "K")]
    pub(super) spare_ranks: Option<u64>,

    /// Name of the run's memory and checkpoints
    #[arg(long, value_name = "NAME")]
    pub(super) job: Option<String>,

    /// Folder for checkpoints on storage, which all nodes share.
    ///
    /// Method disk saves to this folder. For other methods the folder is the second level of checkpoints.
    #[arg(long, value_name = "DIR")]
    pub(super) level2: Option<PathBuf>,

    /// Time between two checkpoints in memory that go to storage as well [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = seconds, requires = "level2")]
    pub(super) level2_every: Option<f64>,
}

/// Flags of measurements and of output.
#[derive(Debug, Args)]
#[command(next_help_heading = OUTPUT)]
pub(super) struct OutputFlags {
    /// Take the rate from results of earlier runs: output of any HPL, or JSON.
    ///
    /// For a protected run, only JSON has the time of saves and failures, which must not count in the rate.
    #[arg(long, value_name = "FILE")]
    pub(super) results: Vec<PathBuf>,

    /// Ranks of the runs in --results [default: P x Q of the results]
    #[arg(long, value_name = "COUNT", requires = "results")]
    pub(super) results_ranks: Option<u64>,

    /// Threads of each rank of the runs in --results [default: as in the results, or else as in the plan]
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

    /// Overwrite the HPL.dat and skt.toml of --write if they exist
    #[arg(long, requires = "write")]
    pub(super) force: bool,

    /// Print only the number of ranks that suits the cores of a node, and the threads of each rank
    #[arg(long, conflicts_with_all = ["calibrate", "results", "write", "json"])]
    pub(super) show_ranks: bool,

    /// Print only the free memory of this machine.
    ///
    /// The result respects the limits of a container and of a batch job.
    #[arg(long, conflicts_with_all = ["calibrate", "results", "write", "json", "show_ranks"])]
    pub(super) free_memory: bool,

    /// Write JSON to FILE; without FILE, or with `-`, print JSON in place of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub(super) json: Option<Option<PathBuf>>,

    /// Number of simulated runs, for the chance to finish; 0 for none
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub(super) runs: usize,

    /// Seed of the simulation
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(super) seed: u64,
}

/// Returns the cores of a node if --cores is not given: this machine's cores, divided by the number of nodes on this machine.
fn cores_here(machine: &MachineFlags) -> usize {
    (cores::count() / machine.nodes_here as usize).max(1)
}

/// Returns the number of ranks that suits a node, and the number of threads of each rank.
pub(super) fn layout(machine: &MachineFlags) -> Layout {
    let own = match (machine.cores, machine.numa) {
        (None, None) => share_of(this_machine::layout(), machine.nodes_here as usize),
        (cores, numa) => {
            // The bound is above every real machine, and keeps the topology small enough to build.
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

/// Returns the layout of one of `nodes` nodes that share a machine with the layout `machine`. Each node gets an equal part of the
/// ranks. If the ranks do not divide evenly, each node gets one rank with an equal part of the cores.
fn share_of(machine: Layout, nodes: usize) -> Layout {
    let Layout { ranks, threads } = machine;
    if ranks.is_multiple_of(nodes) {
        Layout { ranks: ranks / nodes, threads }
    } else {
        Layout { ranks: 1, threads: (ranks * threads / nodes).max(1) }
    }
}

/// Returns the bytes that a node copies in memory in a second. This is an equal part of the bytes that all nodes on this machine
/// copy at once. None if this machine cannot be measured.
pub(super) fn copy_bandwidth(machine: &MachineFlags, cores: u64) -> Option<f64> {
    let here = machine.nodes_here;
    Some(this_machine::copy_bandwidth(cores.saturating_mul(here) as usize)? / here as f64)
}

/// Returns the planner's inputs from the flags, completed by values of this machine. Adds a warning for values that come from
/// this machine.
pub(super) fn inputs(flags: &PlanFlags, warnings: &mut Vec<String>) -> Result<Inputs, Refusal> {
    let PlanFlags { machine, failures, run, output } = flags;
    let cores = machine.cores.unwrap_or_else(|| take_cores(machine, warnings));
    let devices = devices(machine, warnings)?;
    let ranks_per_node = match (machine.ranks_per_node, devices) {
        (Some(ranks), _) => ranks,
        (None, Some((count, _))) => count,
        (None, None) => choose_ranks(machine, warnings),
    };
    let memory = machine.memory.map_or_else(|| take_memory(machine, warnings), Ok)?;
    // If --memory is given, the nodes differ from this machine, and its shared memory does not count.
    let here = match machine.memory {
        Some(_) => NamedRoom::default(),
        None => this_machine::named_room().among(machine.nodes_here),
    };
    let named = NamedRoom { posix: machine.shm.or(here.posix), ..here };
    let peak = machine.peak_per_core.map(|g| g * 1e9).or_else(|| {
        // This guess is useful only if the nodes are like this machine.
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
        devices: devices.map(|(_, devices)| devices),
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

/// Returns the number of devices of a node, which is 1 if it is unknown, and their properties. None without devices. Adds a
/// warning for values that come from this machine.
fn devices(
    machine: &MachineFlags,
    warnings: &mut Vec<String>,
) -> Result<Option<(u64, Devices)>, Refusal> {
    if machine.device != "cuda" {
        let flags = [machine.device_memory, machine.device_peak, machine.device_link];
        return match flags {
            [None, None, None] => Ok(None),
            _ => Err(Refusal::usage("flags of a device need --device cuda")),
        };
    }
    let (count, memory) = if let Some(memory) = machine.device_memory {
        if machine.ranks_per_node.is_none() {
            warnings
                .push("one device a node is assumed; --ranks-per-node sets another number".into());
        }
        (1, memory)
    } else {
        let found = this_machine::devices().map_err(|Refusal { why, .. }| {
            Refusal::environment(format!("{why}; give --device-memory to plan for other machines"))
        })?;
        let count = found.len() as u64 / machine.nodes_here;
        let ranks = machine.ranks_per_node.unwrap_or(count);
        if ranks == 0 || ranks > count {
            return Err(Refusal::usage(format!(
                "each rank needs a device: there are {} device(s) here for {} node(s) with {ranks} rank(s) each",
                found.len(),
                machine.nodes_here
            )));
        }
        let least = found.iter().map(|device| device.free_bytes).min().unwrap_or(0) as f64;
        warnings.push(format!(
            "{count} device(s) a node with {} of memory each are assumed, as on this machine now; --ranks-per-node and \
             --device-memory set other values",
            show_bytes(least)
        ));
        (count, least)
    };
    let peak = machine.device_peak.map(|tflops| tflops * 1e12);
    Ok(Some((count, Devices { memory, peak, link: machine.device_link })))
}

/// Returns the number of cores of a node, taken from this machine. Adds a warning that says so.
fn take_cores(machine: &MachineFlags, warnings: &mut Vec<String>) -> u64 {
    let cores = cores_here(machine) as u64;
    let of = if machine.nodes_here > 1 { "an equal part of the cores of" } else { "the cores of" };
    warnings.push(format!(
        "{cores} cores a node are assumed: {of} this machine; --cores sets another number"
    ));
    cores
}

/// Returns the number of ranks that suits a node. Adds a warning if this is more than one.
fn choose_ranks(machine: &MachineFlags, warnings: &mut Vec<String>) -> u64 {
    let ranks = layout(machine).ranks as u64;
    if ranks > 1 {
        warnings.push(format!(
            "{ranks} ranks a node are assumed: one for each part with its own caches or memory; --ranks-per-node sets another number"
        ));
    }
    ranks
}

/// Returns the memory of a node in bytes, taken from this machine. Adds a warning that says so.
fn take_memory(machine: &MachineFlags, warnings: &mut Vec<String>) -> Result<f64, Refusal> {
    let memory = this_machine::memory("; give it with --memory")?;
    let (memory, of) = match machine.nodes_here {
        1 => (memory, ""),
        here => (memory / here as f64, "an equal part of "),
    };
    warnings.push(format!(
        "{} of memory a node are assumed: {of}the memory that is free on this machine now; --memory sets another size",
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
