//! From a machine and a deadline to a run: N, NB, grid, protection, interval, and what to expect of it.
//!
//! The planner only combines the other models; each decision is one function here, with its reason. Inputs
//! nobody gave are guessed, and every guess is told as a warning: a plan that hides its guesses would be
//! believed.

use serde::Serialize;

use super::ModelError;
use super::encoding::{Link, striped_ring};
use super::error::{Result, at_least, fraction, non_negative, positive};
use super::fit::{Fit, RateModel, flops};
use super::hpl_dat::hpl_dat;
use super::memory::{
    ALIGN, Method, RANK_BASE_BYTES, RANK_BASE_MOST, RankMemory, Scope, Shape, memory_factor,
    rank_memory,
};
use super::nonstop::{Failing, Repair, Replacement};
use super::profile::{Every, Run, SaveCost, Schedule};
use super::reliability::{failure_while_saving, survives};
use super::simulate::{self, Failures, GoingOn, Placement, Scenario, Summary, System};
use crate::lu::DEPTH_IN_STEPS;
use crate::memory::header::GROUP_MAX;
use crate::params::{Bcast, Fact, Form, Mapping, Rng, Swap, TestParams};
use crate::parity::code::LOSSES_MAX;
use crate::units::{HOUR_S, YEAR_S, show_bytes, show_seconds};

/// Mean time between failures, as the user knows it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mtbf {
    Node(f64),
    System(f64),
}

/// Rates measured on this kind of machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub fit: Fit,
    /// Ranks they were measured on.
    pub ranks: u64,
}

/// What the user told. `None`: not told, to be guessed or chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inputs {
    pub nodes: u64,
    pub ranks_per_node: u64,
    /// Cores of a node.
    pub cores: u64,
    /// Bytes of a node that can be taken, or of which `reserve` is to be left alone.
    pub memory: f64,
    pub reserve: Option<f64>,
    /// Flop/s of a core at most.
    pub peak_per_core: Option<f64>,
    /// Bytes/s out of a node; seconds of a message; bytes/s copied in a node's memory; bytes/s of the whole
    /// file system.
    pub network: Option<f64>,
    pub latency: Option<f64>,
    pub copy: Option<f64>,
    pub disk: Option<f64>,
    pub mtbf: Option<Mtbf>,
    pub detect: Option<f64>,
    pub restart: Option<f64>,
    /// Share of failures that end a process and leave its node; seconds to go on then without a restart, from the
    /// failure on, what is restored or regained not counted.
    pub process_share: Option<f64>,
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
    pub measured: Option<Measured>,
    /// Name the run's memory is kept under.
    pub job: Option<String>,
    /// Runs to simulate for the chance to finish, 0 for none, and the threads and seed for it.
    pub simulate: usize,
    pub threads: usize,
    pub seed: u64,
}

impl Inputs {
    /// Everything open but the machine's size.
    pub fn machine(nodes: u64, cores: u64, memory: f64) -> Self {
        Self {
            nodes,
            ranks_per_node: 1,
            cores,
            memory,
            reserve: None,
            peak_per_core: None,
            network: None,
            latency: None,
            copy: None,
            disk: None,
            mtbf: None,
            detect: None,
            restart: None,
            process_share: None,
            in_place: None,
            spares: None,
            limit: None,
            n: None,
            nb: None,
            grid: None,
            depth: 1,
            method: None,
            scope: Scope::Corner,
            group: None,
            losses: 1,
            measured: None,
            job: None,
            simulate: 1000,
            threads: 1,
            seed: 1,
        }
    }

    fn check(&self) -> Result<()> {
        at_least("the number of nodes", self.nodes, 1, "at least 1")?;
        at_least("the number of ranks per node", self.ranks_per_node, 1, "at least 1")?;
        at_least("the number of cores", self.cores, 1, "at least 1")?;
        at_least("the number of losses", self.losses, 1, "at least 1")?;
        if self.losses > LOSSES_MAX as u64 {
            return Err(ModelError::OutOfRange {
                what: "the number of losses",
                rule: "at most 4",
                value: self.losses as f64,
            });
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if self.job.as_ref().is_some_and(|j| j.is_empty() || j.len() > 64 || !j.chars().all(fits)) {
            return Err(ModelError::Data(
                "the job's name must be letters, digits, `-` and `_`, at most 64".into(),
            ));
        }
        if self.nodes > 10_000_000 || self.ranks_per_node > 100_000 || self.cores > 10_000_000 {
            return Err(ModelError::DoesNotFit(
                "the machine is larger than any: at most 10 million nodes, 100,000 ranks and 10 million \
                 cores a node"
                    .into(),
            ));
        }
        positive("the memory of a node", self.memory)?;
        if self.memory > 1e18 {
            return Err(ModelError::OutOfRange {
                what: "the memory of a node",
                rule: "at most 10^18 bytes",
                value: self.memory,
            });
        }
        if let Some(r) = self.reserve {
            non_negative("the reserved memory", r)?;
        }
        for (what, value) in [
            ("the peak of a core", self.peak_per_core),
            ("the network bandwidth", self.network),
            ("the network latency", self.latency),
            ("the copying bandwidth", self.copy),
            ("the file system bandwidth", self.disk),
            ("the time limit", self.limit),
        ] {
            if let Some(v) = value {
                positive(what, v)?;
            }
        }
        if let Some(Mtbf::Node(s) | Mtbf::System(s)) = self.mtbf {
            positive("the MTBF", s)?;
        }
        if let Some(d) = self.detect {
            non_negative("the detection time", d)?;
        }
        if let Some(r) = self.restart {
            non_negative("the restart time", r)?;
        }
        if let Some(s) = self.process_share {
            fraction("the share of failures that end only a process", s)?;
        }
        if let Some(s) = self.in_place {
            non_negative("the time to go on in place", s)?;
        }
        if self.depth > 64 {
            return Err(ModelError::OutOfRange {
                what: "the lookahead depth",
                rule: "at most 64",
                value: self.depth as f64,
            });
        }
        if let Some(nb) = self.nb {
            at_least("the block size NB", nb, 1, "at least 1")?;
        }
        if let Some(n) = self.n {
            at_least("the order N", n, 1, "at least 1")?;
        }
        if let Some((p, q)) = self.grid {
            at_least("the number of process rows P", p, 1, "at least 1")?;
            at_least("the number of process columns Q", q, 1, "at least 1")?;
        }
        Ok(())
    }
}

/// One way to run, fully worked out. Seconds, bytes, flop/s.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub shape: Shape,
    /// P x Q, or with a column of checksums P x (Q+1).
    pub ranks: u64,
    pub threads_per_rank: u64,
    pub method: Method,
    pub scope: Scope,
    /// Members of the smallest and of the largest group, and the losses each survives; 1, 1 and 0 where nothing
    /// is protected.
    pub group: u64,
    pub group_most: u64,
    pub losses: u64,
    /// Of the fullest rank, and of a node against what it may take.
    pub rank: RankMemory,
    pub node_memory: f64,
    pub node_budget: f64,
    pub rate: RateModel,
    /// Without saves and failures.
    pub seconds_bare: f64,
    /// With saves, without failures.
    pub seconds_saved: f64,
    /// Expected with failures; None where it would practically never end.
    pub seconds_expected: Option<f64>,
    pub rate_bare: f64,
    pub rate_saved: f64,
    pub rate_expected: Option<f64>,
    pub saves: usize,
    /// Work between saves, first and last; cost of a save, first and last.
    pub interval: Option<(f64, f64)>,
    pub save_cost: Option<(f64, f64)>,
    pub saving: f64,
    pub recover: f64,
    pub mtbf_system: f64,
    /// Expected failures during the run.
    pub failures: Option<f64>,
    /// Probability that no loss is more than the protection survives; with a column of checksums, that the run need not
    /// begin anew.
    pub survives: f64,
}

/// Another way to run, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    pub what: String,
    pub why: String,
    pub plan: std::result::Result<Plan, String>,
}

/// Self-checkpoint by restarts and in place, and a column of checksums, beside each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Share of failures that end a process and leave its node.
    pub process_share: f64,
    /// Expected flop/s; None where that practically never ends or cannot be had.
    pub restart: Option<f64>,
    pub in_place: Option<f64>,
    pub abft: Option<f64>,
    /// The least share from which checksums are expected to be faster than self-checkpoint in place, at the sizes
    /// of these plans; None: not even if all failures were of processes.
    pub abft_from: Option<f64>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    pub plan: Plan,
    pub alternatives: Vec<Alternative>,
    /// Where nodes can protect each other.
    pub without_restart: Option<Comparison>,
    pub warnings: Vec<String>,
    /// The chance to finish, and when, from simulated runs.
    pub simulated: Option<Summary>,
    /// Text of the two files.
    pub hpl_dat: String,
    pub skt_toml: String,
}

/// Share of a node's memory (at least half a GiB) left to the system when nothing else is said.
const RESERVE_SHARE: f64 = 0.05;
const RESERVE_LEAST: f64 = 512.0 * 1_048_576.0;

/// Share of a time limit that is planned for: start, generation and verification take the rest.
const LIMIT_SHARE: f64 = 0.9;

/// The group size of the paper: larger ones save little memory.
const GROUP_WANTED: u64 = 16;

/// Recovery takes longer than a save as 20 s to 16 s on Tianhe-2 (*self-checkpoint*, Fig. 15).
const RECOVERY_FACTOR: f64 = 1.25;

/// What a core generates of the matrix in a second, about.
const GENERATE_BYTES_S: f64 = 1e9;

/// A node that is silent for 4 s is lost; with the beats in between, and a look at what it was (docs/SUPERVISION.md).
const DETECT_S: f64 = 5.0;
const RESTART_S: f64 = 10.0;

/// From the death of a process until all go on without a restart. A few ranks on one machine need 0.01 to 0.2 s from the
/// notice on; that a process is gone its node's daemon tells at once.
const IN_PLACE_S: f64 = 1.0;

/// Expected times beyond this are "never".
const NEVER: f64 = 1000.0 * YEAR_S;

/// The inputs with every guess made.
#[derive(Clone, Copy)]
struct Machine<'a> {
    inputs: &'a Inputs,
    ranks: u64,
    budget: f64,
    rate: RateModel,
    network: f64,
    latency: f64,
    copy: f64,
    mtbf_system: f64,
    mtbf_node: f64,
    detect: f64,
    restart: f64,
    processes: f64,
    in_place: f64,
}

/// What distinguishes one alternative from another.
#[derive(Clone, Copy)]
struct Choice {
    method: Method,
    scope: Scope,
    /// Members of the smallest group, which has the largest checksums, and of the largest, which is hit most.
    group: u64,
    largest: u64,
    losses: u64,
    /// Of the ranks that compute.
    grid: (u64, u64),
    /// Whether a spare rank takes the place of one that is lost without its node.
    in_place: bool,
}

/// The most square grid with P <= Q: fewest bytes on the wire, and HPL prefers rows to be the fewer.
pub fn squarest_grid(ranks: u64) -> (u64, u64) {
    let mut p = ranks.isqrt().max(1);
    while !ranks.is_multiple_of(p) {
        p -= 1;
    }
    (p, ranks / p)
}

/// The most square grid with P <= Q + 1 of those where one process column more takes all ranks.
pub fn squarest_with_checksums(ranks: u64) -> Result<(u64, u64)> {
    let (p, columns) = squarest_grid(ranks);
    if columns < 2 {
        return Err(ModelError::DoesNotFit(
            "a column of checksums (method abft) needs two ranks at least, one of them for the checksums".into(),
        ));
    }
    Ok((p, columns - 1))
}

/// Group sizes as the solver makes them, none larger than `most` and as even as possible: (smallest, largest).
pub fn even_groups(nodes: u64, most: u64) -> (u64, u64) {
    let groups = nodes.div_ceil(most.max(1)).max(1);
    (nodes / groups, nodes.div_ceil(groups))
}

/// The largest block size of those that perform well which still leaves each process a dozen blocks a side.
fn block_size(n: u64, grid: (u64, u64)) -> u64 {
    let side = n / grid.0.max(grid.1);
    [192, 128, 96, 64, 32, 16].into_iter().find(|nb| side >= 12 * nb).unwrap_or(8)
}

impl<'a> Machine<'a> {
    fn new(inputs: &'a Inputs, warnings: &mut Vec<String>) -> Result<Self> {
        inputs.check()?;
        let mut guess = |given: Option<f64>, value: f64, text: String| {
            given.unwrap_or_else(|| {
                warnings.push(text);
                value
            })
        };
        let reserve =
            inputs.reserve.unwrap_or_else(|| RESERVE_LEAST.max(RESERVE_SHARE * inputs.memory));
        let budget = inputs.memory - reserve;
        if budget <= 0.0 {
            return Err(ModelError::DoesNotFit(format!(
                "a node has {}, of which {} are left to the system: nothing remains for the matrix; give \
                 less to --reserve",
                show_bytes(inputs.memory),
                show_bytes(reserve)
            )));
        }
        let ranks = inputs.nodes * inputs.ranks_per_node;
        let copy = guess(
            inputs.copy,
            10e9,
            "the copying bandwidth of a node is a guess: 10 GB/s (--copy)".into(),
        );
        let (network, latency) = if inputs.nodes > 1 {
            (
                guess(
                    inputs.network,
                    12.5e9,
                    "the network bandwidth of a node is a guess: 100 Gbit/s (--network)".into(),
                ),
                guess(
                    inputs.latency,
                    2e-6,
                    "the network latency is a guess: 2 us (--latency)".into(),
                ),
            )
        } else {
            // Ranks of one node exchange through its memory: in and out is two copies.
            (inputs.network.unwrap_or(copy / 2.0), inputs.latency.unwrap_or(1e-6))
        };
        let (mtbf_node, mtbf_system) = match inputs.mtbf {
            Some(Mtbf::Node(s)) => (s, s / inputs.nodes as f64),
            Some(Mtbf::System(s)) => (s * inputs.nodes as f64, s),
            None => {
                let node = guess(
                    None,
                    5.0 * YEAR_S,
                    "the MTBF of a node is a guess: 5 years (--mtbf-node or --mtbf)".into(),
                );
                (node, node / inputs.nodes as f64)
            }
        };
        let protected = inputs.nodes > 1;
        let quiet = |given: Option<f64>, value| given.unwrap_or(value);
        let (detect, restart) = if protected {
            (
                guess(
                    inputs.detect,
                    DETECT_S,
                    format!(
                        "the time to detect a dead node is a guess: {DETECT_S} s; what is silent for 4 s is lost (--detect)"
                    ),
                ),
                guess(
                    inputs.restart,
                    RESTART_S,
                    format!(
                        "the time to replace it and start again is a guess: {RESTART_S} s; four nodes take 4 s, and a large \
                         job as long as its MPI takes to start (--restart)"
                    ),
                ),
            )
        } else {
            (quiet(inputs.detect, DETECT_S), quiet(inputs.restart, RESTART_S))
        };
        // Nothing is guessed of the kind of failures: that a node goes with each is the case that costs most.
        let processes = inputs.process_share.unwrap_or(0.0);
        let in_place = if protected {
            guess(
                inputs.in_place,
                IN_PLACE_S,
                format!(
                    "the time to go on without a restart is a guess: {IN_PLACE_S} s; a few ranks take 0.01 to 0.2 s after the \
                     notice (--in-place)"
                ),
            )
        } else {
            quiet(inputs.in_place, IN_PLACE_S)
        };
        let rate = match inputs.measured {
            Some(m) => {
                if m.ranks != ranks {
                    warnings.push(format!(
                        "the rate was measured on {} ranks and is carried over to {ranks} in proportion",
                        m.ranks
                    ));
                }
                if m.fit.samples == 1 || m.fit.model.n_half == 0.0 {
                    warnings.push(
                        "how the rate grows with N was not measured well: measure two or more sizes".into(),
                    );
                }
                m.fit.model.scaled(m.ranks, ranks)?
            }
            None => {
                let peak = guess(
                    inputs.peak_per_core,
                    40e9,
                    "the peak of a core is a guess: 40 Gflop/s (--peak-per-core)".into(),
                );
                warnings.push(
                    "the rate is a guess from peak and network, good to a factor; measure it (--calibrate or \
                     --results)"
                        .into(),
                );
                guessed_rate(inputs, ranks, peak, network)?
            }
        };
        if protected {
            warnings.push(format!(
                "that a recovery takes {RECOVERY_FACTOR} encodings of a save and its flush is a guess, as on Tianhe-2; that \
                 a core generates {} of the matrix a second, too",
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
            mtbf_system: positive("the MTBF of the system", mtbf_system)?,
            mtbf_node: positive("the MTBF of a node", mtbf_node)?,
            detect,
            restart,
            processes,
            in_place,
        })
    }

    fn shape(&self, n: u64, choice: &Choice) -> Shape {
        Shape {
            n,
            nb: self.inputs.nb.unwrap_or_else(|| block_size(n, choice.grid)),
            p: choice.grid.0,
            q: choice.grid.1,
            depth: self.inputs.depth,
        }
    }

    fn threads_per_rank(&self) -> u64 {
        (self.inputs.cores / self.inputs.ranks_per_node).max(1)
    }

    fn node_memory(&self, shape: Shape, choice: &Choice) -> Result<f64> {
        let threads = self.threads_per_rank();
        let rank = rank_memory(shape, threads, choice.method, choice.group, choice.losses)?;
        Ok(rank.total() * self.inputs.ranks_per_node as f64)
    }

    /// Whether order `n` fits a node.
    fn fits(&self, n: u64, choice: &Choice) -> Result<bool> {
        let most = (RANK_BASE_MOST - RANK_BASE_BYTES) * self.inputs.ranks_per_node as f64;
        Ok(self.node_memory(self.shape(n, choice), choice)? + most <= self.budget)
    }

    /// The largest multiple of its own block size, at most `high`, for which `good` holds; `good` must hold
    /// from some size downward.
    fn largest(
        &self,
        high: u64,
        choice: &Choice,
        good: impl Fn(u64) -> Result<bool>,
    ) -> Result<u64> {
        let (mut low, mut high) = (0, high.saturating_add(1));
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if good(middle)? {
                low = middle;
            } else {
                high = middle;
            }
        }
        // A smaller block size may be chosen where the memory rises with the block: step down until it holds.
        let mut n = low;
        loop {
            let nb = self.shape(n, choice).nb;
            n -= n % nb;
            if n == 0 || good(n)? {
                return Ok(n);
            }
            n -= 1;
        }
    }

    fn cost(&self, n: u64, choice: &Choice) -> Result<SaveCost> {
        let nodes = self.inputs.nodes as f64;
        let all = 8.0 * n as f64 * (n as f64 + 1.0);
        let data = all / nodes;
        let members = choice.group.max(1);
        let barriers = 10.0 * self.latency * (self.ranks as f64).log2().max(1.0);
        let (encode, flush) = match choice.method {
            Method::SelfCheckpoint | Method::Double | Method::Single => {
                // A node's ranks share its port; combining reads two operands and writes one.
                let link =
                    Link { alpha: self.latency, beta: 1.0 / self.network, gamma: 1.5 / self.copy };
                (striped_ring(members, choice.losses, data, link)?, data / self.copy)
            }
            Method::Disk => {
                let disk = self.inputs.disk.ok_or_else(|| {
                    ModelError::Data(
                        "the bandwidth of the file system is not known (--disk)".into(),
                    )
                })?;
                (all / disk, 0.0)
            }
            Method::Abft | Method::None => (0.0, 0.0),
        };
        let cost = SaveCost {
            encode,
            flush,
            fixed: if choice.method.saves() { barriers } else { 0.0 },
            recover: match choice.method {
                Method::Abft => self.regain(n, choice)?,
                _ => RECOVERY_FACTOR * encode + flush,
            },
            scope: choice.scope,
        };
        cost.check()?;
        Ok(cost)
    }

    /// Seconds that a column of checksums costs at the end when it has taken a lost one's place, on average.
    fn regain(&self, n: u64, choice: &Choice) -> Result<f64> {
        // All ranks of a node regain at the same time.
        let share = self.inputs.ranks_per_node as f64;
        let link = Link {
            alpha: self.latency,
            beta: share / self.network,
            gamma: 1.5 * share / self.copy,
        };
        let (p, q) = choice.grid;
        Repair { n: n as f64, p, q, link }.replacement_on_average()
    }

    /// Ranks that keep checksums compute as much as the others, but nothing that anybody waits for.
    fn rate(&self, choice: &Choice) -> Result<RateModel> {
        match choice.method {
            Method::Abft => self.rate.scaled(self.ranks, choice.grid.0 * choice.grid.1),
            _ => Ok(self.rate),
        }
    }

    fn failing(&self) -> Failing {
        Failing { mtbf: self.mtbf_system, processes: self.processes }
    }

    /// What a failure costs before the first save and after it, beside the work that is done again.
    fn downs(&self, n: u64, choice: &Choice, cost: &SaveCost) -> Result<(f64, f64)> {
        let again = self.detect + self.restart;
        let both = |restored: f64| {
            if !choice.in_place {
                return Ok(again + restored);
            }
            match self.failing().mean_down(self.in_place + restored, again + restored) {
                // A restart that is never left: going on in place now and then does not help, and it is told as never.
                Err(ModelError::Overflow { .. }) => Ok(again + restored),
                down => down,
            }
        };
        let recover = if choice.method.saves() { cost.recover } else { self.regenerate(n) };
        Ok((both(self.regenerate(n))?, both(recover)?))
    }

    fn replacement(&self, n: u64, work: f64, choice: &Choice, cost: &SaveCost) -> Replacement {
        Replacement {
            q: choice.grid.1,
            work,
            replace: self.in_place + cost.recover,
            anew: self.detect + self.restart + self.regenerate(n),
        }
    }

    /// Seconds to generate the matrix.
    fn regenerate(&self, n: u64) -> f64 {
        let cores = self.inputs.nodes as f64 * self.inputs.cores as f64;
        8.0 * (n as f64).powi(2) / (cores * GENERATE_BYTES_S)
    }

    fn schedule(&self, n: u64, choice: &Choice) -> Result<(Run, SaveCost, Schedule)> {
        let shape = self.shape(n, choice);
        let run = Run::new(n, shape.nb, self.rate(choice)?)?;
        let cost = self.cost(n, choice)?;
        let every = match choice.method {
            m if !m.saves() => Every::Never,
            _ => Every::Auto { mtbf: self.mtbf_system },
        };
        let schedule = Schedule::of(&run, &cost, every)?;
        Ok((run, cost, schedule))
    }

    /// Expected wall seconds with failures; None for "never".
    fn expected(&self, n: u64, choice: &Choice) -> Result<Option<f64>> {
        let (_, cost, schedule) = self.schedule(n, choice)?;
        let (fresh, down) = self.downs(n, choice, &cost)?;
        let time = match choice.method {
            Method::Abft => {
                self.replacement(n, schedule.work(), choice, &cost).expected(self.failing())
            }
            Method::SelfCheckpoint | Method::None => {
                schedule.expected(fresh, down, self.mtbf_system)
            }
            _ => schedule.expected_sealing_late(fresh, down, self.mtbf_system),
        };
        match time {
            Ok(t) if t < NEVER => Ok(Some(t)),
            Ok(_) | Err(ModelError::Overflow { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn evaluate(&self, choice: &Choice) -> Result<Plan> {
        let inputs = self.inputs;
        if choice.method.in_memory() {
            memory_factor(choice.method, choice.group, choice.losses)?;
        }
        if choice.method == Method::Abft && inputs.depth > DEPTH_IN_STEPS as u64 {
            return Err(ModelError::DoesNotFit(format!(
                "method abft goes with a lookahead of 0 or 1, and {} is asked for: --depth 1",
                inputs.depth
            )));
        }
        // More rows than the whole machine's memory holds need not be tried.
        let ceiling = (self.budget * inputs.nodes as f64 / 8.0).sqrt().min(1e12) as u64 + 1;
        let most = self.largest(ceiling, choice, |n| Ok(n == 0 || self.fits(n, choice)?))?;
        if most == 0 {
            return Err(ModelError::DoesNotFit(format!(
                "no matrix fits: a node may take {}, and {} of ranks alone need {}; use fewer ranks per node \
                 or nodes with more memory",
                show_bytes(self.budget),
                inputs.ranks_per_node,
                show_bytes(inputs.ranks_per_node as f64 * RANK_BASE_MOST)
            )));
        }
        let n = match inputs.n {
            Some(n) if self.fits(n, choice)? => n,
            Some(n) => {
                return Err(ModelError::DoesNotFit(format!(
                    "N = {n} needs {} of each node, which may take {}; the largest N that fits is {most}",
                    show_bytes(self.node_memory(self.shape(n, choice), choice)?),
                    show_bytes(self.budget)
                )));
            }
            None => most,
        };
        let n = match inputs.limit {
            None => n,
            Some(limit) => {
                let time_fits = |n: u64| {
                    Ok(n == 0
                        || self.expected(n, choice)?.is_some_and(|t| t <= LIMIT_SHARE * limit))
                };
                if time_fits(n)? {
                    n
                } else if let Some(n) = inputs.n {
                    let time = self.expected(n, choice)?;
                    return Err(ModelError::DoesNotFit(format!(
                        "N = {n} is expected to take {}, more than nine tenths of the limit of {}",
                        time.map_or("practically for ever".into(), show_seconds),
                        show_seconds(limit)
                    )));
                } else {
                    self.largest(n, choice, time_fits)?
                }
            }
        };
        if n == 0 {
            return Err(ModelError::DoesNotFit(
                "no problem is small enough to finish within the time limit on this machine".into(),
            ));
        }
        self.work_out(n, choice)
    }

    fn work_out(&self, n: u64, choice: &Choice) -> Result<Plan> {
        let inputs = self.inputs;
        let (run, cost, schedule) = self.schedule(n, choice)?;
        let shape = self.shape(n, choice);
        let bare = run.seconds()?;
        let saved = schedule.undisturbed();
        let expected = self.expected(n, choice)?;
        let window = self.downs(n, choice, &cost)?.1;
        let failures = expected.map(|t| t / self.mtbf_system);
        let survives = match choice.method {
            Method::None | Method::Disk => {
                if expected.is_some() {
                    1.0
                } else {
                    0.0
                }
            }
            Method::Abft => {
                self.replacement(n, schedule.work(), choice, &cost).finishes(self.failing())?
            }
            _ => {
                let incidents = failures.unwrap_or(f64::MAX / 1e10);
                let groups =
                    survives(incidents, choice.largest, choice.losses, window, self.mtbf_node)?;
                let while_saving = if choice.method == Method::Single {
                    failure_while_saving(schedule.saving(), 1.0, self.mtbf_system)?
                } else {
                    0.0
                };
                groups * (1.0 - while_saving)
            }
        };
        let rate = |seconds: f64| flops(n as f64) / seconds;
        let segments = &schedule.segments;
        let saves = schedule.saves();
        let ends = |f: fn(&super::interval::Segment) -> f64| {
            (saves > 0).then(|| (f(&segments[0]), f(&segments[saves - 1])))
        };
        let threads = self.threads_per_rank();
        let rank = rank_memory(shape, threads, choice.method, choice.group, choice.losses)?;
        Ok(Plan {
            shape,
            ranks: self.ranks,
            threads_per_rank: threads,
            method: choice.method,
            scope: choice.scope,
            group: if choice.method.in_memory() { choice.group } else { 1 },
            group_most: if choice.method.in_memory() { choice.largest } else { 1 },
            losses: if choice.method.in_memory() { choice.losses } else { 0 },
            rank,
            node_memory: rank.total() * inputs.ranks_per_node as f64,
            node_budget: self.budget,
            rate: self.rate(choice)?,
            seconds_bare: bare,
            seconds_saved: saved,
            seconds_expected: expected,
            rate_bare: rate(bare),
            rate_saved: rate(saved),
            rate_expected: expected.map(rate),
            saves,
            interval: ends(|s| s.work),
            save_cost: ends(|s| s.encode + s.flush),
            saving: schedule.saving(),
            recover: cost.recover,
            mtbf_system: self.mtbf_system,
            failures,
            survives,
        })
    }

    /// The plan's run, many times.
    fn simulate(&self, plan: &Plan, choice: &Choice) -> Result<Option<Summary>> {
        let inputs = self.inputs;
        let failures = plan.failures.unwrap_or(f64::INFINITY);
        // No more than some tens of millions of events.
        let runs = (inputs.simulate as f64).min(3e7 / failures.max(1.0)) as usize;
        if runs < 10 {
            return Ok(None);
        }
        let (_, cost, schedule) = self.schedule(plan.shape.n, choice)?;
        let checksums = choice.method == Method::Abft;
        // Of a process that is lost it matters in which process column it is, so ranks are counted there.
        let nodes = if checksums { self.ranks } else { inputs.nodes.max(choice.largest) };
        let scenario = Scenario {
            schedule,
            method: choice.method,
            system: System {
                nodes,
                group: choice.largest.max(1),
                losses: choice.losses,
                placement: Placement::Neighbours,
                domains: None,
                spares: inputs.spares,
                repair: None,
                detect: self.detect,
                restart: self.restart,
                recover: cost.recover,
                regenerate: self.regenerate(plan.shape.n),
                going_on: GoingOn {
                    processes: self.processes,
                    in_place: match choice.method {
                        // What is regained at the end is told as part of the loss.
                        Method::Abft => Some(self.in_place + cost.recover),
                        _ => choice.in_place.then_some(self.in_place),
                    },
                    spare_ranks: None,
                    columns: checksums.then_some(choice.grid.1),
                },
            },
            failures: Failures::Exponential { mtbf: self.mtbf_system * nodes as f64 },
            limit: inputs.limit,
        };
        let outcomes = simulate::simulate(&scenario, runs, inputs.seed, inputs.threads)?;
        simulate::summarise(&outcomes).map(Some)
    }
}

/// A first idea of the rate without any measurement. The asymptote is nine tenths of peak. The half-rate order
/// has a part for what each process does alone (panels, swaps) and one for the network: moving
/// 8 (3P+Q)/(2PQ) N^2 bytes through each process's share of a port, against 2 N^3 / (3PQ) flops, is
/// N_half = 6 (3P+Q) speed / bandwidth.
fn guessed_rate(inputs: &Inputs, ranks: u64, peak: f64, network: f64) -> Result<RateModel> {
    let (p, q) = inputs.grid.unwrap_or_else(|| squarest_grid(ranks));
    let threads = (inputs.cores as f64 / inputs.ranks_per_node as f64).max(1.0);
    let speed = 0.9 * peak * threads;
    let bandwidth = network / inputs.ranks_per_node as f64;
    let wire = if ranks > 1 { 6.0 * (3 * p + q) as f64 * speed / bandwidth } else { 0.0 };
    RateModel::new(speed * ranks as f64, 800.0 * (ranks as f64 * threads).sqrt() + wire)
}

/// Plans a run.
pub fn plan(inputs: &Inputs) -> Result<Advice> {
    let mut warnings = Vec::new();
    let machine = Machine::new(inputs, &mut warnings)?;
    let checksums = inputs.method == Some(Method::Abft);
    let grid = match inputs.grid {
        Some(grid) => grid,
        None if checksums => squarest_with_checksums(machine.ranks)?,
        None => squarest_grid(machine.ranks),
    };
    let columns = grid.1.checked_add(u64::from(checksums));
    if columns.and_then(|c| c.checked_mul(grid.0)) != Some(machine.ranks) {
        return Err(ModelError::DoesNotFit(format!(
            "a {} x {} grid{} does not take the {} ranks there are ({} nodes with {} each)",
            grid.0,
            grid.1,
            if checksums { " with a process column more for checksums" } else { "" },
            machine.ranks,
            inputs.nodes,
            inputs.ranks_per_node
        )));
    }
    if inputs.grid.is_none() && grid.1 > 4 * grid.0 && machine.ranks > 4 {
        let fewer = (1..machine.ranks)
            .rev()
            .find(|r| {
                let (p, q) = squarest_grid(*r);
                q <= 2 * p
            })
            .unwrap_or(1);
        let (p, q) = squarest_grid(fewer);
        warnings.push(format!(
            "{} ranks only make a flat grid of {} x {}; {fewer} ranks ({p} x {q}) may well be faster",
            machine.ranks, grid.0, grid.1
        ));
    }
    if inputs.cores < inputs.ranks_per_node {
        warnings.push(format!(
            "{} ranks on {} cores of a node take turns: expect far less than the plan says",
            inputs.ranks_per_node, inputs.cores
        ));
    }

    // Who protects whom: nodes, or on a single one its ranks, for want of anything better.
    let units = if inputs.nodes > 1 { inputs.nodes } else { machine.ranks };
    let method = inputs.method.unwrap_or(if inputs.nodes > 1 {
        Method::SelfCheckpoint
    } else {
        Method::None
    });
    if inputs.nodes == 1 {
        warnings.push(if method.in_memory() {
            "on one node memory checkpoints survive the crash of a process, not of the node; the solver then \
             wants a --domains file that names a domain for each rank"
                .into()
        } else if checksums {
            "on one node a column of checksums survives the crash of a process, not of the node".into()
        } else {
            "one node cannot be protected by others: nothing is saved".to_string()
        });
    }
    if let Some(g) = inputs.group.filter(|g| *g > units) {
        return Err(ModelError::DoesNotFit(format!(
            "a group of {g} needs {g} nodes, and there are {units}; at most --group {units}"
        )));
    }
    let (group, largest) = even_groups(units, inputs.group.unwrap_or(GROUP_WANTED));
    if method.in_memory() && group <= inputs.losses {
        return Err(ModelError::DoesNotFit(format!(
            "groups of {group} cannot survive {} losses; use more nodes, fewer --losses or --method disk",
            inputs.losses
        )));
    }
    if method.in_memory() && largest > GROUP_MAX as u64 {
        return Err(ModelError::DoesNotFit(format!(
            "a group has at most {GROUP_MAX} members, {largest} were asked for"
        )));
    }
    if method.in_memory() && largest != group {
        warnings.push(format!(
            "groups have {group} or {largest} members; memory is counted for the smaller ones"
        ));
    }
    let chosen = Choice {
        method,
        scope: inputs.scope,
        group,
        largest,
        losses: inputs.losses,
        grid,
        in_place: false,
    };
    if checksums {
        warnings.push(
            "checksums need Open MPI 5 under mpirun --with-ft ulfm, and bear the loss of processes, not of nodes; that no process \
             begins an iteration before all can costs some overlap, which is not counted"
                .into(),
        );
        if inputs.process_share.is_none() {
            warnings.push(
                "every failure is taken for one of a node, which checksums do not bear: say which share ends a process only \
                 (--process-share)"
                    .into(),
            );
        }
    }
    let plan = machine.evaluate(&chosen)?;
    if plan.seconds_expected.is_none() {
        warnings.push(format!(
            "with a failure every {} this run practically never ends",
            show_seconds(machine.mtbf_system)
        ));
    }
    if plan.survives < 0.95 {
        warnings.push(format!(
            "the run {} with probability {:.1} %: {}",
            if checksums { "has to begin anew" } else { "is lost" },
            100.0 * (1.0 - plan.survives),
            if checksums {
                "checksums bear the loss of one process column, and no node; nothing is saved beside them"
            } else if method == Method::Single {
                "a single checkpoint is lost when a node fails during a save"
            } else {
                "more than the group survives may fail during one recovery; use --losses 2 or smaller groups"
            }
        ));
    }
    if plan.rank.base > plan.rank.matrix {
        warnings.push(
            "a rank's matrix is smaller than what a process takes anyway: use fewer ranks per node"
                .into(),
        );
    }
    let in_shared =
        (plan.rank.total() - plan.rank.base - plan.rank.work) * inputs.ranks_per_node as f64;
    if method.in_memory() && in_shared > 0.5 * inputs.memory {
        warnings.push(format!(
            "{} of shared memory a node is more than half of it, the usual limit of /dev/shm: raise it \
             (mount -o remount,size=95% /dev/shm) or choose another store",
            show_bytes(in_shared)
        ));
    }
    let simulated = if inputs.simulate > 0 { machine.simulate(&plan, &chosen)? } else { None };
    let alternatives = alternatives(&machine, &chosen, units);
    let without_restart =
        (units > chosen.losses && inputs.nodes > 1).then(|| compare(&machine, &chosen));
    let test = test_params(&plan);
    Ok(Advice {
        hpl_dat: hpl_dat(
            &test,
            &[test.n],
            &format!("planned for {} nodes of {}", inputs.nodes, show_bytes(inputs.memory)),
        ),
        skt_toml: skt_toml(&plan, inputs.job.as_deref()),
        plan,
        alternatives,
        without_restart,
        warnings,
        simulated,
    })
}

fn alternatives(machine: &Machine, taken: &Choice, units: u64) -> Vec<Alternative> {
    // What is not said of an alternative is as chosen, on a grid of all ranks.
    let chosen = &beside_checksums(machine, taken);
    let mut list: Vec<(String, &str, Choice)> = Vec::new();
    let mut add = |what: String, why, choice: Choice| {
        let same = choice.method == taken.method
            && choice.scope == taken.scope
            && choice.grid == taken.grid
            && choice.in_place == taken.in_place
            && (!choice.method.in_memory()
                || (choice.group == taken.group && choice.losses == taken.losses));
        if !same {
            list.push((what, why, choice));
        }
    };
    let protectable = units > chosen.losses && machine.inputs.nodes > 1;
    if protectable {
        let with = |method| Choice { method, ..*chosen };
        add(
            "self-checkpoint".into(),
            "survives a loss at any time, with one copy",
            with(Method::SelfCheckpoint),
        );
        for (wanted, why) in [
            (8, "smaller groups: fewer double losses, less memory"),
            (32, "larger groups: a little more memory, more double losses"),
        ] {
            let (g, largest) = even_groups(units, wanted);
            if g > chosen.losses && units >= wanted {
                add(
                    format!("self, groups of {g}"),
                    why,
                    Choice { method: Method::SelfCheckpoint, group: g, largest, ..*chosen },
                );
            }
        }
        if chosen.group > 2 * (chosen.losses + 1) {
            add(
                format!("self, {} losses", chosen.losses + 1),
                "survives one more loss in each group, for parity and arithmetic",
                Choice { method: Method::SelfCheckpoint, losses: chosen.losses + 1, ..*chosen },
            );
        }
        add(
            "double checkpoint".into(),
            "as safe, but two copies: a third of the memory",
            with(Method::Double),
        );
        add(
            "single checkpoint".into(),
            "a little more memory, but a loss during a save is fatal",
            with(Method::Single),
        );
        if chosen.method.in_memory() {
            add(
                "whole matrix saved".into(),
                "what saving only the corner is worth",
                Choice { scope: Scope::Whole, ..*chosen },
            );
        }
    }
    if protectable {
        add(
            "self, in place".into(),
            "--nonstop: spare ranks take the places of processes that die, without a restart",
            Choice { method: Method::SelfCheckpoint, in_place: true, ..*chosen },
        );
    }
    if let Ok(grid) = squarest_with_checksums(machine.ranks) {
        add(
            "column of checksums".into(),
            "--method abft: bears the loss of one process column, saves nothing; a node lost begins the run anew",
            Choice { method: Method::Abft, grid, ..*chosen },
        );
    }
    if machine.inputs.disk.is_some() {
        add(
            "to disk".into(),
            "all memory, survives everything, slow saves",
            Choice { method: Method::Disk, ..*chosen },
        );
    }
    add(
        "unprotected".into(),
        "all memory; any failure starts the run again",
        Choice { method: Method::None, ..*chosen },
    );
    let (p, q) = chosen.grid;
    if p % 2 == 0 && p > 1 {
        add(
            format!("grid {} x {}", p / 2, q * 2),
            "flatter: cheaper pivoting on slow networks (the rate model does not tell grids apart)",
            Choice { grid: (p / 2, q * 2), ..*chosen },
        );
    }
    list.into_iter()
        .map(|(what, why, choice)| Alternative {
            what,
            why: why.into(),
            plan: machine.evaluate(&choice).map_err(|e| e.to_string()),
        })
        .collect()
}

/// The choice on a grid of all ranks: that of the ranks without checksums, where `chosen` has some.
fn beside_checksums(machine: &Machine, chosen: &Choice) -> Choice {
    match chosen.method {
        Method::Abft => Choice { grid: squarest_grid(machine.ranks), ..*chosen },
        _ => *chosen,
    }
}

/// The ways to go on beside each other, at the inputs' share of processes, and from which share checksums would be faster.
fn compare(machine: &Machine, chosen: &Choice) -> Comparison {
    let restart = Choice {
        method: Method::SelfCheckpoint,
        in_place: false,
        ..beside_checksums(machine, chosen)
    };
    let in_place = Choice { in_place: true, ..restart };
    let checksums = squarest_with_checksums(machine.ranks)
        .map(|grid| Choice { method: Method::Abft, grid, ..restart })
        .ok();
    let sized = |choice: Choice| machine.evaluate(&choice).ok().map(|p| (choice, p.shape.n));
    let (restart, in_place) = (sized(restart), sized(in_place));
    let checksums = checksums.and_then(sized);
    // An order that fits is kept for every share: only so many failures more or less are asked for.
    let rate = |processes: f64, sized: Option<(Choice, u64)>| -> Option<f64> {
        let (choice, n) = sized?;
        let seconds = Machine { processes, ..*machine }.expected(n, &choice).ok()??;
        Some(flops(n as f64) / seconds)
    };
    let faster = |percent: u32| {
        let share = f64::from(percent) / 100.0;
        rate(share, checksums).unwrap_or(0.0) > rate(share, in_place).unwrap_or(0.0)
    };
    let abft_from = faster(100).then(|| {
        let (mut low, mut high) = (0_u32, 100);
        while low < high {
            let middle = low.midpoint(high);
            if faster(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        f64::from(high) / 100.0
    });
    let share = machine.processes;
    Comparison {
        process_share: share,
        restart: rate(share, restart),
        in_place: rate(share, in_place),
        abft: rate(share, checksums),
        abft_from,
    }
}

/// The plan as the solver's own parameters.
pub fn test_params(plan: &Plan) -> TestParams {
    let shape = &plan.shape;
    let grid = (shape.p as usize, shape.q as usize);
    TestParams { depth: shape.depth as usize, ..usual(shape.n as usize, shape.nb as usize, grid) }
}

/// A test with the choices that are good on most machines.
pub fn usual(n: usize, nb: usize, (p, q): (usize, usize)) -> TestParams {
    TestParams {
        n,
        nb,
        p,
        q,
        mapping: Mapping::Row,
        depth: 1,
        bcast: Bcast::OneRingM,
        rfact: Fact::Crout,
        ndiv: 2,
        pfact: Fact::Right,
        nbmin: 4,
        swap: Swap::Mix,
        swap_threshold: 64,
        l1: Form::Transposed,
        u: Form::Transposed,
        equilibrate: true,
        align: ALIGN,
        threshold: 16.0,
        rng: Rng::Hpl,
        seed: 100,
    }
}

/// skt.toml for a plan.
pub fn skt_toml(plan: &Plan, job: Option<&str>) -> String {
    let mut text = String::from("# written by skt-hpl plan\n");
    text += &format!("threads = {}\n", plan.threads_per_rank);
    if plan.method.in_memory() {
        text += &format!(
            "\n[checkpoint]\n\
             # at the optimal interval for a failure of the system every so many seconds\n\
             every = \"auto\"\n\
             mtbf = \"{:.0}s\"\n\
             method = \"{}\"\n\
             scope = \"{}\"\n\
             code = \"{}\"\n\
             losses = {}\n\
             group = {}\n",
            plan.mtbf_system.max(1.0),
            plan.method.name(),
            plan.scope.name(),
            if plan.losses > 1 { "reed-solomon" } else { "xor" },
            plan.losses,
            plan.group_most,
        );
        if let Some(job) = job {
            text += &format!("job = {}\n", toml::Value::String(job.into()));
        }
    }
    if plan.method == Method::Abft {
        text += "\n# a process column more than the grid has, for checksums\nmethod = \"abft\"\n";
    }
    text
}

/// Sizes for a short calibration: three problems that together take about `seconds`, none larger than
/// `most`, far enough apart to tell the half-rate order.
pub fn calibration_sizes(rate: &RateModel, nb: u64, most: u64, seconds: f64) -> Result<Vec<u64>> {
    positive("the time for the calibration", seconds)?;
    at_least("the block size NB", nb, 1, "at least 1")?;
    let total = |top: f64| -> Result<f64> {
        Ok(rate.seconds(top)? + rate.seconds(top * 0.6)? + rate.seconds(top * 0.35)?)
    };
    let (mut low, mut high) = (1.0, most as f64 + 1.0);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if total(middle)? <= seconds {
            low = middle;
        } else {
            high = middle;
        }
    }
    let mut sizes: Vec<u64> =
        [0.35, 0.6, 1.0].iter().map(|f| ((low * f) as u64 / nb * nb).max(nb)).collect();
    sizes.dedup();
    Ok(sizes)
}

/// Node hours a plan costs, with failures where it ends.
pub fn node_hours(plan: &Plan, nodes: u64) -> f64 {
    plan.seconds_expected.unwrap_or(plan.seconds_saved) * nodes as f64 / HOUR_S
}
