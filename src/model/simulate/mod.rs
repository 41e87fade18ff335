//! Discrete-event simulation of whole runs with failures, for questions without closed forms: ageing (Weibull), traces, spares
//! and repair, racks that fail together, the chance to finish within a time limit.
//!
//! The simulation computes only at failures. Between failures it looks the run up in prefix sums, and it samples no node
//! separately (see [`failures`]). So the cost depends on the number of failures, not on the number of nodes. Each run has its own
//! seed, made from the master seed and the number of the run, so results do not depend on the number of threads.

pub mod engine;
pub mod failures;
mod parts;
pub mod stats;

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::error::{Result, at_least, at_most, fraction, non_negative, positive, refused};
use super::memory::Method;
use super::nonstop::Columns;
use super::profile::Schedule;
pub use failures::{Age, Failures, Trace};
pub use stats::{Breakdown, Summary, summarise};

/// Placement of the members of a group: neighbours, or different failure domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    Neighbours,
    Spread,
}

/// Sets of nodes that fail together: racks, switches, power units.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Domains {
    /// Number of nodes in a domain.
    pub size: u64,
    /// Mean seconds between failures of one domain.
    pub mtbf: f64,
}

/// Ways of a run to continue without a restart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GoingOn {
    /// Share of failures that end a process but not its node. Only after these can a run continue without a restart.
    pub processes: f64,
    /// Seconds from the loss of a process until all ranks continue; the restoration is not included. None: the run restarts.
    pub in_place: Option<f64>,
    /// Number of waiting ranks in the job; after a restart all are available again. None: unlimited, but zero with checksums.
    pub spare_ranks: Option<u64>,
    /// Numbers of process columns that compute and that keep checksums; None without checksums.
    pub columns: Option<Columns>,
    /// Seconds for which all ranks wait for a new checksum column. None: no new column is made.
    pub renew: Option<f64>,
}

impl GoingOn {
    /// Every failure causes a restart.
    pub const NEVER: Self =
        Self { processes: 0.0, in_place: None, spare_ranks: None, columns: None, renew: None };

    fn check(&self, method: Method) -> Result<()> {
        fraction("the share of failures that end only a process", self.processes)?;
        if let Some(s) = self.in_place {
            non_negative("the time to continue in place", s)?;
        }
        if let Some(s) = self.renew {
            non_negative("the time to make new checksums", s)?;
        }
        match (method, self.columns) {
            (Method::Abft, Some(columns)) => {
                columns.factor()?;
                if self.in_place.is_none() {
                    return refused(
                        "method abft continues without a restart: give the time that this takes (--in-place)",
                    );
                }
                if self.spare_ranks.is_some() && self.renew.is_none() {
                    return refused(
                        "waiting ranks make new checksums under method abft: give the time that this takes (--renew-time)",
                    );
                }
                Ok(())
            }
            (Method::Abft, None) => refused(
                "the number of process columns without checksums decides what method abft survives, and must be given \
                 (--columns)",
            ),
            (m, Some(_)) => {
                refused(format!("method {} has no columns of checksums (--columns)", m.name()))
            }
            (m, None) if self.renew.is_some() => refused(format!(
                "method {} has no checksums to rebuild: leave --renew-time out",
                m.name()
            )),
            (m, None) if self.in_place.is_some() && !m.goes_on_in_place() => refused(format!(
                "method {} does not recover in place: {}; methods self and double do",
                m.name(),
                match m {
                    Method::Single =>
                        "after a loss during a save there may be no checkpoint to restore",
                    Method::Disk =>
                        "the program recovers in place from memory, not from a file system",
                    _ => "it has no save to restore",
                }
            )),
            (_, None) if self.spare_ranks.is_some() && self.in_place.is_none() => refused(
                "spare ranks are used only if the run recovers in place: give --in-place, or leave --spare-ranks out",
            ),
            _ => Ok(()),
        }
    }
}

/// The machine, and the times of detection, repair and recovery. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct System {
    pub nodes: u64,
    pub group: u64,
    pub losses: u64,
    pub placement: Placement,
    pub domains: Option<Domains>,
    /// Number of spare nodes; None: unlimited.
    pub spares: Option<u64>,
    /// Seconds until a failed node is repaired and becomes a spare; None: never.
    pub repair: Option<f64>,
    pub detect: f64,
    pub restart: f64,
    /// Seconds to rebuild lost data from the memory of other nodes, or to read it from disk.
    pub recover: f64,
    /// Seconds to generate the matrix again if there is no save to resume from.
    pub regenerate: f64,
    pub going_on: GoingOn,
}

/// Input of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    pub schedule: Schedule,
    pub method: Method,
    pub system: System,
    pub failures: Failures,
    /// Wall seconds after which a run is given up.
    pub limit: Option<f64>,
}

/// End of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum End {
    #[default]
    Finished,
    /// The time limit has passed (without a limit, a hundred times the time without failures).
    Late,
    /// A group lost more members than its code survives.
    GroupLost,
    /// A node was lost while the only checkpoint was overwritten (method single).
    LostWhileSaving,
    /// No spare was left, and no node was under repair.
    NoSpare,
}

/// Result of a simulated run. Times are in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    pub end: End,
    pub wall: f64,
    /// Parts of the time, whose sum is `wall`.
    pub time: Breakdown,
    /// Number of failures (a domain counts once).
    pub failures: u64,
    /// Number of recoveries.
    pub recoveries: u64,
    /// Number of recoveries without a restart.
    pub in_place: u64,
    /// Number of starts from scratch of a run with checksums, after losses that it did not survive.
    pub from_scratch: u64,
    /// Number of checksum columns made during the run.
    pub renewed: u64,
}

impl Scenario {
    pub fn check(&self) -> Result<()> {
        let s = &self.system;
        at_least("the number of nodes", s.nodes, 1, "at least 1")?;
        at_most("the number of nodes", s.nodes as f64, 2f64.powi(40), "at most 2^40")?;
        if self.method.in_memory() {
            super::memory::memory_factor(self.method, s.group, s.losses)?;
            at_least("the number of nodes", s.nodes, s.group, "at least the group size")?;
        }
        if let Some(d) = s.domains {
            at_least("the size of a domain", d.size, 1, "at least 1")?;
            positive("the MTBF of a domain", d.mtbf)?;
        }
        if let Some(r) = s.repair {
            positive("the repair time", r)?;
        }
        if let Some(l) = self.limit {
            positive("the time limit", l)?;
        }
        non_negative("the detection time", s.detect)?;
        non_negative("the restart time", s.restart)?;
        non_negative("the recovery time", s.recover)?;
        non_negative("the regeneration time", s.regenerate)?;
        positive("the work of the run", self.schedule.work())?;
        s.going_on.check(self.method)?;
        if let Some(columns) = s.going_on.columns {
            let (all, waiting) = (columns.all(), s.going_on.spare_ranks.unwrap_or(0));
            let least = all.saturating_add(waiting);
            at_least(
                "the number of nodes",
                s.nodes,
                least,
                "at least Q+R plus the waiting ranks, with one rank on each node",
            )?;
            // A new column takes the ranks of a whole process column.
            if s.going_on.renew.is_some() && !(s.nodes - waiting).is_multiple_of(all) {
                return refused(format!(
                    "{} nodes with a rank each, less {waiting} spare, are not a multiple of Q+R = {all}",
                    s.nodes
                ));
            }
        }
        if !self.method.saves() && self.schedule.saves() > 0 {
            return refused(format!(
                "a run with method {} saves nothing: its schedule must be one segment",
                self.method.name()
            ));
        }
        self.failures.check()
    }
}

/// Simulates `runs` runs on `threads` threads.
pub fn simulate(
    scenario: &Scenario,
    runs: usize,
    seed: u64,
    threads: usize,
) -> Result<Vec<Outcome>> {
    scenario.check()?;
    at_least("the number of runs", runs as u64, 1, "at least 1")?;
    at_most("the number of runs", runs as f64, 1e8, "at most a hundred million")?;
    let plan = engine::Plan::new(scenario);
    // Threads take runs in small batches, since some runs cost far more than others.
    const BATCH: usize = 8;
    let mut all = vec![Outcome::default(); runs];
    let batches = Mutex::new(all.chunks_mut(BATCH).enumerate());
    let next = || batches.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, runs) {
            scope.spawn(|| {
                while let Some((number, batch)) = next() {
                    for (i, outcome) in (BATCH * number..).zip(batch) {
                        *outcome = plan.run(seed, i as u64);
                    }
                }
            });
        }
    });
    Ok(all)
}
