//! The machine of a plan: the given inputs, and guesses for inputs that were not given. Warnings name the guesses.

use super::super::error::{Result, positive, refused};
use super::super::fit::RateModel;
use super::super::memory::Method;
use super::super::nonstop::IN_PLACE_S;
use super::choice::{Choice, Units, squarest_grid};
use super::inputs::{Devices, Inputs, Measured, Mtbf};
use crate::base::units::{YEAR_S, show_bytes};

/// Share of a node's memory that is left to the system by default.
const RESERVE_SHARE: f64 = 0.05;
/// Smallest number of bytes that are left to the system by default.
const RESERVE_LEAST: f64 = 512.0 * 1_048_576.0;

/// Bytes of a device's memory that driver and libraries may take, as a guess.
const DEVICE_BASE: f64 = 1024.0 * 1_048_576.0;

/// Peak flop/s of a device, if it is not given.
pub const DEVICE_PEAK: f64 = 30e12;

/// Peak flop/s of a core, if it is not given.
const CORE_PEAK: f64 = 40e9;

/// Seconds to detect a lost node: the node timeout, the time between two heartbeats, and the time to judge the node
/// (docs/PROTECTION.md).
const DETECT_S: f64 = 5.0;
/// Seconds to restart a job.
const RESTART_S: f64 = 10.0;

/// Ratio of the times of a recovery and of a save: 20 s to 16 s on Tianhe-2 (*self-checkpoint*, Fig. 15).
pub(super) const RECOVERY_FACTOR: f64 = 1.25;

/// Approximate bytes of the matrix that a core generates in a second.
pub(super) const GENERATE_BYTES_S: f64 = 1e9;

/// The inputs, with a guess for each input that was not given.
#[derive(Clone, Copy)]
pub(super) struct Machine<'a> {
    pub(super) inputs: &'a Inputs,
    pub(super) ranks: u64,
    pub(super) budget: f64,
    pub(super) rate: RateModel,
    pub(super) network: f64,
    pub(super) latency: f64,
    pub(super) copy: f64,
    pub(super) device: Option<DeviceOfRank>,
    pub(super) mtbf_system: f64,
    pub(super) mtbf_node: f64,
    pub(super) detect: f64,
    pub(super) restart: f64,
    pub(super) processes: f64,
    pub(super) in_place: f64,
}

/// Device of a rank.
#[derive(Clone, Copy)]
pub(super) struct DeviceOfRank {
    /// Bytes that the run may take of the device's memory.
    pub(super) memory: f64,
    /// Peak flop/s.
    pub(super) peak: f64,
    /// Bytes/s copied between the device and the memory of its node.
    pub(super) link: f64,
}

/// Guesses for inputs that were not given, each with a warning if it matters to the plan.
struct Guesses<'a>(&'a mut Vec<String>);

impl Guesses<'_> {
    fn of(&mut self, given: Option<f64>, guess: f64, matters: bool, text: String) -> f64 {
        if given.is_none() && matters {
            self.0.push(text);
        }
        given.unwrap_or(guess)
    }

    /// Mean time between failures, of a node and of the system.
    fn mtbf(&mut self, inputs: &Inputs) -> (f64, f64) {
        let nodes = inputs.nodes as f64;
        match inputs.mtbf {
            Some(Mtbf::Node(s)) => (s, s / nodes),
            Some(Mtbf::System(s)) => (s * nodes, s),
            None => {
                let text = "the MTBF of a node is a guess: 5 years (--mtbf-node or --mtbf)".into();
                let node = self.of(None, 5.0 * YEAR_S, true, text);
                (node, node / nodes)
            }
        }
    }

    fn device(&mut self, devices: Devices) -> Result<DeviceOfRank> {
        let memory = devices.memory - DEVICE_BASE;
        if memory <= 0.0 {
            return refused(format!(
                "a device has {} of memory, of which driver and libraries may take {}: nothing remains for the matrix",
                show_bytes(devices.memory),
                show_bytes(DEVICE_BASE)
            ));
        }
        let peak = "the peak of a device is a guess: 30 Tflop/s (--device-peak)".into();
        let link =
            "the bandwidth of copies from and to a device is a guess: 25 GB/s (--device-link)";
        Ok(DeviceOfRank {
            memory,
            peak: self.of(devices.peak, DEVICE_PEAK, true, peak),
            link: self.of(devices.link, 25e9, true, link.into()),
        })
    }

    /// Seconds to detect a lost node, to restart, and to continue in place. A warning names guesses only if there are `several`
    /// nodes.
    fn times_of_a_loss(&mut self, inputs: &Inputs, several: bool) -> [f64; 3] {
        let detect = format!(
            "the time to detect a lost node is a guess: {DETECT_S} s, one second more than the node timeout (--detect)"
        );
        let restart = format!(
            "the time to replace a node and restart the job is a guess: {RESTART_S} s; four nodes take 4 s, and a large \
             job takes as long as its MPI needs to start (--restart-time)"
        );
        let in_place = format!(
            "the time to continue without a restart is a guess: {IN_PLACE_S} s; a few ranks take 0.01 to 0.2 s after the \
             report of the loss (--in-place)"
        );
        [
            self.of(inputs.detect, DETECT_S, several, detect),
            self.of(inputs.restart, RESTART_S, several, restart),
            self.of(inputs.in_place, IN_PLACE_S, several, in_place),
        ]
    }
}

impl<'a> Machine<'a> {
    pub(super) fn new(inputs: &'a Inputs, warnings: &mut Vec<String>) -> Result<Self> {
        inputs.check()?;
        let budget = budget(inputs)?;
        let ranks = inputs.nodes * inputs.ranks_per_node;
        let several = inputs.nodes > 1;
        let mut guesses = Guesses(warnings);
        let copy = guesses.of(
            inputs.copy,
            10e9,
            true,
            "the copying bandwidth of a node is a guess: 10 GB/s (--copy)".into(),
        );
        // Ranks of one node exchange through its memory, with one copy in and one copy out.
        let network = guesses.of(
            inputs.network,
            if several { 12.5e9 } else { copy / 2.0 },
            several,
            "the network bandwidth of a node is a guess: 100 Gbit/s (--network)".into(),
        );
        let latency = guesses.of(
            inputs.latency,
            if several { 2e-6 } else { 1e-6 },
            several,
            "the network latency is a guess: 2 us (--latency)".into(),
        );
        let (mtbf_node, mtbf_system) = guesses.mtbf(inputs);
        let [detect, restart, in_place] = guesses.times_of_a_loss(inputs, several);
        let device = inputs.devices.map(|devices| guesses.device(devices)).transpose()?;
        let rate = match inputs.measured {
            Some(measured) => {
                // The threads of a rank do not matter if a device computes.
                let threads = device.map_or(inputs.threads_per_rank(), |_| measured.threads);
                scaled_rate(&measured, ranks, threads, guesses.0)?
            }
            None => guessed_rate(inputs, ranks, network, device, &mut guesses)?,
        };
        if several {
            guesses.0.push(format!(
                "two guesses: a recovery takes {RECOVERY_FACTOR} times the encoding of a save, plus its copying, as on \
                 Tianhe-2; a core generates {} of the matrix a second",
                show_bytes(GENERATE_BYTES_S)
            ));
        }
        Ok(Self {
            inputs,
            ranks,
            budget,
            rate,
            network,
            latency,
            copy,
            device,
            mtbf_system: positive("the MTBF of the system", mtbf_system)?,
            mtbf_node: positive("the MTBF of a node", mtbf_node)?,
            detect,
            restart,
            // The share of process failures is not guessed: by default every failure loses a node, the most expensive case.
            processes: inputs.process_share.unwrap_or(0.0),
            in_place,
        })
    }

    /// Units that protect each other: the nodes, or the ranks of a single node.
    pub(super) fn units(&self) -> Units {
        let count = if self.inputs.nodes > 1 { self.inputs.nodes } else { self.ranks };
        Units { count, ranks: self.ranks / count }
    }

    /// Whether a method can protect the matrix where it lies: device memory goes with method double alone.
    pub(super) fn allows(&self, method: Method) -> bool {
        self.device.is_none() || matches!(method, Method::Double | Method::None)
    }

    /// Whether there are enough nodes for groups that survive the losses.
    pub(super) fn has_groups(&self, choice: &Choice) -> bool {
        self.inputs.nodes > 1 && self.units().count > choice.losses
    }
}

/// Bytes that a run may take of a node.
fn budget(inputs: &Inputs) -> Result<f64> {
    let reserve =
        inputs.reserve.unwrap_or_else(|| RESERVE_LEAST.max(RESERVE_SHARE * inputs.memory));
    let budget = inputs.memory - reserve;
    if budget > 0.0 {
        return Ok(budget);
    }
    refused(format!(
        "a node has {} of memory, of which {} are reserved for the system: nothing remains for the matrix; set a smaller --reserve",
        show_bytes(inputs.memory),
        show_bytes(reserve)
    ))
}

/// Returns the measured rate, scaled to the ranks and threads of the plan.
fn scaled_rate(
    measured: &Measured,
    ranks: u64,
    threads: u64,
    warnings: &mut Vec<String>,
) -> Result<RateModel> {
    let Measured { fit, ranks: measured_ranks, threads: measured_threads } = *measured;
    if (measured_ranks, measured_threads) != (ranks, threads) {
        warnings.push(format!(
            "the rate was measured on {measured_ranks} ranks with {measured_threads} thread(s) each and is scaled to {ranks} \
             ranks with {threads} thread(s) each, in proportion to the total number of threads"
        ));
    }
    if fit.samples == 1 || fit.model.n_half == 0.0 {
        warnings.push(
            "the growth of the rate with N is not well measured: measure two or more sizes".into(),
        );
    }
    fit.model.scaled(measured_ranks.saturating_mul(measured_threads), ranks.saturating_mul(threads))
}

/// Returns an estimate of the rate without any measurement. The asymptote is nine tenths of peak. The half-rate order has a part
/// for the work that each process does alone (panels, swaps) and a part for the network. Moving 8 (3P+Q)/(2PQ) N^2 bytes through
/// each process's share of a port, against 2 N^3 / (3PQ) flops, gives N_half = 6 (3P+Q) speed / bandwidth.
fn guessed_rate(
    inputs: &Inputs,
    ranks: u64,
    network: f64,
    device: Option<DeviceOfRank>,
    guesses: &mut Guesses,
) -> Result<RateModel> {
    // Cores that are left over when the ranks have equally many threads are idle.
    let threads = inputs.threads_per_rank() as f64;
    // A device counts as as many cores as it has their peak.
    let (peak, cores) = if let Some(device) = device {
        (device.peak, device.peak / CORE_PEAK)
    } else {
        let text = "the peak of a core is a guess: 40 Gflop/s (--peak-per-core)".into();
        (guesses.of(inputs.peak_per_core, CORE_PEAK, true, text) * threads, threads)
    };
    guesses.0.push(
        "the rate is a guess from peak and network, and may be far off; measure it (--calibrate or --results)"
            .into(),
    );
    let (p, q) = inputs.grid.unwrap_or_else(|| squarest_grid(ranks));
    let speed = 0.9 * peak;
    let bandwidth = network / inputs.ranks_per_node as f64;
    let wire = if ranks > 1 { 6.0 * (3.0 * p as f64 + q as f64) * speed / bandwidth } else { 0.0 };
    RateModel::new(speed * ranks as f64, 800.0 * (ranks as f64 * cores).sqrt() + wire)
}
