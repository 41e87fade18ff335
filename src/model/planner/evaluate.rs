//! Evaluation of a choice: the largest matrix that fits the memory and the time limit, and the expected times.

use serde::Serialize;

use super::super::error::{Result, refused};
use super::super::fit::{RateModel, flops};
use super::super::helpers::{break_even_interval, helper_pays, overhead, overhead_with_helper};
use super::super::interval::Segment;
use super::super::memory::{Method, RANK_BASE_MOST, RankMemory, Scope, Shape};
use super::super::nonstop::Columns;
use super::super::profile::{SaveCost, Schedule};
use super::super::reliability::{failure_while_saving, survives};
use super::super::simulate::{self, Failures, GoingOn, Placement, Scenario, Summary, System};
use super::choice::{Choice, Groups};
use super::machine::Machine;
use crate::base::bisection::last_that_holds;
use crate::base::units::{HOUR_S, show_bytes, show_seconds};
use crate::checkpoint::layout::ParityLayout;
use crate::checkpoint::level2::EVERY_DEFAULT_S;
use crate::lu::DEPTH_IN_STEPS;
use crate::shm::Store;

/// Share of a time limit that a plan uses: start, generation and verification take the rest.
const LIMIT_SHARE: f64 = 0.9;

/// A way to run, evaluated. Units are seconds, bytes and flop/s.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub shape: Shape,
    /// Number of ranks: P x Q. With checksum columns, P x (Q+R) plus the waiting ranks.
    pub ranks: u64,
    pub threads_per_rank: u64,
    #[serde(flatten)]
    pub protection: Protected,
    /// Memory of the rank that needs most.
    pub rank: RankMemory,
    /// Bytes that the run takes of a node.
    pub node_memory: f64,
    /// Store of the persistent shared memory.
    pub store: Store,
    /// Bytes that the run may take of a node.
    pub node_budget: f64,
    /// Bytes that the run may take of a device. None without devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_budget: Option<f64>,
    pub rate: RateModel,
    #[serde(flatten)]
    pub pace: Pace,
    #[serde(flatten)]
    pub saving: Saving,
    pub mtbf_system: f64,
    /// Expected failures during the run.
    pub failures: Option<f64>,
    /// Probability that the protection survives all losses; with checksum columns, that the run never starts from scratch.
    pub survives: f64,
}

/// Protection of a planned run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Protected {
    pub method: Method,
    pub scope: Scope,
    /// Number of members of the smallest group; 1 without checkpoints in memory.
    pub group: u64,
    /// Number of members of the largest group; 1 without checkpoints in memory.
    pub group_most: u64,
    /// Value of `--group` with which the solver makes these groups.
    pub group_asked: u64,
    /// Number of losses that each group survives; 0 without checkpoints in memory.
    pub losses: u64,
    /// Layout of the checksums.
    pub parity_layout: ParityLayout,
    /// Process columns that keep checksums.
    pub checksum_columns: u64,
    /// Number of ranks that wait to make new checksums.
    pub spare_ranks: u64,
    /// Seconds that all ranks wait while a new checksum column is made; None without checksum columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewal: Option<f64>,
}

/// Times and rates of a planned run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pace {
    /// Time without saves and failures.
    pub seconds_bare: f64,
    /// Time with saves, without failures.
    pub seconds_saved: f64,
    /// Expected time with failures; None if the run would practically never end.
    pub seconds_expected: Option<f64>,
    pub rate_bare: f64,
    pub rate_saved: f64,
    pub rate_expected: Option<f64>,
}

/// Saves of a planned run, and recovery from one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Saving {
    pub saves: usize,
    /// Seconds of work in the first and in the last interval between saves.
    pub interval: Option<(f64, f64)>,
    /// Seconds of the first and of the last save.
    pub save_cost: Option<(f64, f64)>,
    pub saving: f64,
    /// Work that helpers do in a save; None if the ranks do the whole save.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helpers: Option<Helpers>,
    /// Checkpoints that go to storage in addition to memory. None if no checkpoint goes to storage, or if the speed of the
    /// storage is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storing: Option<Storing>,
    pub recover: f64,
}

/// Encoding by helpers, and whether it pays to keep a core of each node free for helpers (*helpers*, section 5.1). Times are in
/// seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Helpers {
    /// Time to encode the whole matrix while the ranks compute.
    pub encode: f64,
    /// Time to copy the whole matrix, for which the ranks stop.
    pub copy: f64,
    /// Interval between saves below which a free core pays.
    pub break_even: f64,
    /// Whether a free core pays at the largest interval between saves of this plan; None without saves.
    pub core_pays: Option<bool>,
}

/// Checkpoints that also go to storage, and their cost by writer (*helpers*, section 5.1, but without a copy in memory first).
/// Units are seconds and bytes; a cost is a share of the time between two checkpoints on storage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Storing {
    /// Bytes of a checkpoint.
    pub bytes: f64,
    /// Seconds to write a checkpoint.
    pub write: f64,
    /// Seconds between two checkpoints on storage, as set by the user.
    pub every: f64,
    /// Cost if the ranks write, and wait meanwhile.
    pub waiting: f64,
    /// Cost if additional threads write. They take at most a core for each rank.
    pub threads: f64,
    /// Cost if threads write on a core of each node that is kept free.
    pub kept_free: f64,
    /// Interval between checkpoints on storage below which a free core costs less than waiting ranks.
    pub break_even: f64,
    /// Whether a free core pays in this plan; None if the run ends before the first checkpoint on storage.
    pub core_pays: Option<bool>,
}

impl Machine<'_> {
    /// Cost of checkpoints on a file system that all nodes share; `seconds` is the duration of the run.
    fn storing(&self, n: u64, choice: &Choice, seconds: f64) -> Result<Option<Storing>> {
        let inputs = self.inputs;
        let asked = inputs.level2.is_some() && choice.method.in_memory();
        let Some(disk) = inputs.disk.filter(|_| asked) else { return Ok(None) };
        let bytes = 8.0 * n as f64 * (n as f64 + 1.0);
        let (write, every) = (bytes / disk, inputs.level2_every.unwrap_or(EVERY_DEFAULT_S));
        let waiting = overhead(write, every)?;
        let cores = inputs.cores;
        let helpers = (inputs.ranks_per_node as f64 / cores as f64).min(1.0);
        let threads = helpers * waiting.min(1.0);
        let pays = || helper_pays(cores, 0.0, write, every);
        Ok(Some(Storing {
            bytes,
            write,
            every,
            waiting,
            threads,
            kept_free: overhead_with_helper(cores, 0.0, every)?,
            break_even: break_even_interval(cores, 0.0, write)?,
            core_pays: (every <= seconds).then(pays).transpose()?,
        }))
    }

    fn helpers(&self, n: u64, choice: &Choice, interval: Option<f64>) -> Result<Helpers> {
        let (encode, copy) = self.in_memory(n, choice)?;
        let cores = self.inputs.cores;
        let pays = |interval| helper_pays(cores, copy, encode, interval);
        Ok(Helpers {
            encode,
            copy,
            break_even: break_even_interval(cores, copy, encode)?,
            core_pays: interval.map(pays).transpose()?,
        })
    }

    /// Returns the largest order up to `high` that is a multiple of its own block size and for which `good` is true. `good` must
    /// be true for all orders below some limit.
    fn largest(
        &self,
        high: u64,
        choice: &Choice,
        good: impl Fn(u64) -> Result<bool>,
    ) -> Result<u64> {
        // The memory rises with the block size, and rounding down can change the block size. So the loop steps down until `good`
        // is true.
        let mut n = last_that_holds(0, high.saturating_add(1), &good)?;
        loop {
            let nb = self.shape(n, choice).nb;
            n -= n % nb;
            if n == 0 || good(n)? {
                return Ok(n);
            }
            n -= 1;
        }
    }

    pub(super) fn evaluate(&self, choice: &Choice) -> Result<Plan> {
        let inputs = self.inputs;
        if choice.method == Method::Abft && inputs.depth > DEPTH_IN_STEPS as u64 {
            return refused(format!(
                "method abft needs a lookahead of 0 or 1, but it is {}: set --depth 1",
                inputs.depth
            ));
        }
        let most = self.largest_that_fits(choice)?;
        let n = inputs.n.unwrap_or(most);
        if let Some(why) = self.obstacle(n, choice)? {
            return refused(format!("N = {n} {why}; the largest N that fits is {most}"));
        }
        let n = inputs.limit.map_or(Ok(n), |limit| self.within(limit, n, choice))?;
        self.work_out(n, choice)
    }

    /// Returns the reason why order `n` does not fit the machine; None if it fits.
    fn obstacle(&self, n: u64, choice: &Choice) -> Result<Option<String>> {
        if self.fits(n, choice)? {
            return Ok(None);
        }
        if self.fits_memory(n, choice)? {
            let (named, room) = (show_bytes(self.named(n, choice)?), self.more_room());
            return Ok(Some(format!("keeps {named} in shared memory of each node, and {room}")));
        }
        let (needs, most, place) = match self.device {
            Some(device) if !self.fits_device(n, choice)? => {
                let needs = self.rank(n, choice)?.on_device.unwrap_or(0.0);
                (needs, device.memory, "of each device's memory")
            }
            _ => (self.node_memory(n, choice)?, self.budget, "of memory on each node"),
        };
        let (needs, most) = (show_bytes(needs), show_bytes(most));
        Ok(Some(format!("needs {needs} {place}, but the run may take only {most} there")))
    }

    /// The largest order whose matrix fits the memory of the nodes.
    fn largest_that_fits(&self, choice: &Choice) -> Result<u64> {
        let inputs = self.inputs;
        // Upper bound of the order: the matrix alone would fill the memory of all nodes, or of all devices.
        let nodes = self.budget * inputs.nodes as f64;
        let all = self.device.map_or(nodes, |device| device.memory * self.ranks as f64);
        let ceiling = (all / 8.0).sqrt().min(1e12) as u64 + 1;
        let most = self.largest(ceiling, choice, |n| Ok(n == 0 || self.fits(n, choice)?))?;
        if most > 0 {
            return Ok(most);
        }
        if self.largest(ceiling, choice, |n| Ok(n == 0 || self.fits_memory(n, choice)?))? > 0 {
            return refused(format!("no matrix fits: {}", self.more_room()));
        }
        let budget = show_bytes(self.budget);
        let bare = inputs.ranks_per_node as f64 * RANK_BASE_MOST;
        if let Some(nb) = inputs.nb
            && bare < self.budget
        {
            return refused(format!(
                "no matrix fits: the run may take {budget} on a node, and not even one block of NB = {nb} fits into that; \
                 give a smaller --nb"
            ));
        }
        refused(format!(
            "no matrix fits: the run may take {budget} on a node, and its {} ranks need {} even without a matrix; use fewer ranks per node or \
             nodes with more memory",
            inputs.ranks_per_node,
            show_bytes(bare)
        ))
    }

    /// Returns the largest order, `n` or smaller, of a run that is expected to end within the time limit. Refuses an order set by
    /// the user that takes longer.
    fn within(&self, limit: f64, n: u64, choice: &Choice) -> Result<u64> {
        let in_time = |n: u64| {
            Ok(n == 0 || self.expected(n, choice)?.is_some_and(|t| t <= LIMIT_SHARE * limit))
        };
        if in_time(n)? {
            return Ok(n);
        }
        if let Some(n) = self.inputs.n {
            let time = self.expected(n, choice)?;
            return refused(format!(
                "N = {n} is expected to take {}, more than nine tenths of the time limit of {}: set a smaller -n or a longer --time-limit",
                time.map_or("practically for ever".into(), show_seconds),
                show_seconds(limit)
            ));
        }
        match self.largest(n, choice, in_time)? {
            0 => refused(
                "no problem is small enough to finish within the time limit on this machine",
            ),
            n => Ok(n),
        }
    }

    fn work_out(&self, n: u64, choice: &Choice) -> Result<Plan> {
        let (run, cost, schedule) = self.schedule(n, choice)?;
        let shape = self.shape(n, choice);
        let bare = run.seconds()?;
        let saved = schedule.undisturbed();
        let expected = self.expected(n, choice)?;
        let survives = self.survival(n, choice, &cost, &schedule, expected)?;
        let rate = |seconds: f64| flops(n as f64) / seconds;
        let segments = &schedule.segments;
        let saves = schedule.saves();
        let ends = |f: fn(&Segment) -> f64| {
            (saves > 0).then(|| (f(&segments[0]), f(&segments[saves - 1])))
        };
        let interval = ends(|s| s.work);
        let first = interval.map(|(first, _)| first);
        let rank = self.rank(n, choice)?;
        let in_groups = choice.method.in_memory();
        let alone = Groups { smallest: 1, largest: 1, asked: 1 };
        let groups = if in_groups { choice.groups } else { alone };
        let with_checksums = choice.method == Method::Abft;
        let renewal = || self.repair(n, choice).renewal_on_average();
        let protection = Protected {
            method: choice.method,
            scope: choice.scope,
            group: groups.smallest,
            group_most: groups.largest,
            group_asked: groups.asked,
            losses: if in_groups { choice.losses } else { 0 },
            parity_layout: choice.layout,
            checksum_columns: choice.columns(),
            spare_ranks: choice.spare_ranks(),
            renewal: with_checksums.then(renewal).transpose()?,
        };
        let pace = Pace {
            seconds_bare: bare,
            seconds_saved: saved,
            seconds_expected: expected,
            rate_bare: rate(bare),
            rate_saved: rate(saved),
            rate_expected: expected.map(rate),
        };
        let saving = Saving {
            saves,
            interval,
            save_cost: ends(|s| s.encode + s.flush),
            saving: schedule.saving(),
            helpers: choice.helpers.then(|| self.helpers(n, choice, first)).transpose()?,
            storing: self.storing(n, choice, saved)?,
            recover: cost.recover,
        };
        Ok(Plan {
            shape,
            ranks: self.ranks,
            threads_per_rank: self.inputs.threads_per_rank(),
            protection,
            rank,
            node_memory: rank.total() * self.inputs.ranks_per_node as f64,
            node_budget: self.budget,
            device_budget: self.device.map(|device| device.memory),
            store: self.store(self.named(n, choice)?),
            rate: self.rate(choice)?,
            pace,
            saving,
            mtbf_system: self.mtbf_system,
            failures: expected.map(|t| t / self.mtbf_system),
            survives,
        })
    }

    /// Probability that the protection survives all losses in a run of `expected` seconds.
    fn survival(
        &self,
        n: u64,
        choice: &Choice,
        cost: &SaveCost,
        schedule: &Schedule,
        expected: Option<f64>,
    ) -> Result<f64> {
        let (_, window) = self.downs(n, choice, cost)?;
        match choice.method {
            Method::None | Method::Disk => Ok(if expected.is_some() { 1.0 } else { 0.0 }),
            Method::Abft => {
                self.replacement(n, schedule.work(), choice, cost)?.finishes(self.failing())
            }
            _ => {
                let incidents = expected.map_or(f64::MAX / 1e10, |t| t / self.mtbf_system);
                let (largest, losses) = (choice.groups.largest, choice.losses);
                let groups = survives(incidents, largest, losses, window, self.mtbf_node)?;
                let while_saving = if choice.method == Method::Single {
                    failure_while_saving(schedule.saving(), 1.0, self.mtbf_system)?
                } else {
                    0.0
                };
                Ok(groups * (1.0 - while_saving))
            }
        }
    }

    /// Simulates the plan's run, many times.
    pub(super) fn simulate(&self, plan: &Plan, choice: &Choice) -> Result<Option<Summary>> {
        let inputs = self.inputs;
        let failures = plan.failures.unwrap_or(f64::INFINITY);
        // The number of runs is limited so that there are at most some ten million failures.
        let runs = (inputs.simulate as f64).min(3e7 / failures.max(1.0)) as usize;
        if runs < 10 {
            return Ok(None);
        }
        let (_, cost, schedule) = self.schedule(plan.shape.n, choice)?;
        let checksums = choice.method == Method::Abft;
        // Method abft loses process columns, so its simulation counts ranks instead of nodes.
        let nodes = if checksums { self.ranks } else { inputs.nodes.max(choice.groups.largest) };
        let scenario = Scenario {
            schedule,
            method: choice.method,
            system: System {
                nodes,
                group: choice.groups.largest.max(1),
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
                        // The recomputation at the end counts as part of the loss.
                        Method::Abft => Some(self.in_place + cost.recover),
                        _ => choice.in_place.then_some(self.in_place),
                    },
                    spare_ranks: checksums.then_some(choice.waiting),
                    columns: checksums.then_some(Columns { q: choice.grid.1, sums: choice.sums }),
                    renew: plan.protection.renewal,
                },
            },
            failures: Failures::Exponential { mtbf: self.mtbf_system * nodes as f64 },
            limit: inputs.limit,
        };
        let outcomes = simulate::simulate(&scenario, runs, inputs.seed, inputs.threads)?;
        Ok(Some(simulate::summarise(&outcomes)))
    }
}

/// Node hours of a plan, for the expected time with failures. If the run would never end, for the time with saves and without
/// failures.
pub fn node_hours(plan: &Plan, nodes: u64) -> f64 {
    plan.pace.seconds_expected.unwrap_or(plan.pace.seconds_saved) * nodes as f64 / HOUR_S
}
