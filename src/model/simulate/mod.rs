//! A discrete-event simulation of whole runs under failures, for questions without closed forms: wear-out (Weibull), traces,
//! spares and repair, racks that fail together, the chance to finish by a deadline.
//!
//! A run costs time only at its events. Between failures it is looked up in prefix sums, and no node is ever sampled by itself
//! (see [`failures`]). So a million nodes cost no more than their failures. Runs are independent, each seeded from the master
//! seed and its number: results do not depend on how many threads computed them.

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

/// Whether the members of a group are neighbours or on different failure domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    Neighbours,
    Spread,
}

/// Larger sets of nodes that fail as one: racks, switches, power units.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Domains {
    /// Nodes in each.
    pub size: u64,
    /// Mean seconds between failures of one domain.
    pub mtbf: f64,
}

/// Ways of a run to continue without a restart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GoingOn {
    /// Share of failures that end a process and leave its node; only these spare a restart.
    pub processes: f64,
    /// Seconds from such a loss until all continue, without the restoration; None: by a restart.
    pub in_place: Option<f64>,
    /// Number of ranks that wait inside the job, all available again after a restart; None: as many as are needed, with checksums
    /// none.
    pub spare_ranks: Option<u64>,
    /// Process columns that compute, and those that keep checksums.
    pub columns: Option<Columns>,
    /// Seconds for which all wait for a new column of checksums; None: none is made.
    pub renew: Option<f64>,
}

impl GoingOn {
    /// Every failure is a restart.
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
                        "method abft continues without a restart, so the time for that must be given",
                    );
                }
                if self.spare_ranks.is_some() && self.renew.is_none() {
                    return refused(
                        "ranks that wait under method abft make new checksums, and the time for that must be given (--renew-time)",
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
                "method {} has no checksums to make again (--renew-time)",
                m.name()
            )),
            (m, None) if self.in_place.is_some() && !m.goes_on_in_place() => refused(format!(
                "method {} does not continue in place: {}; methods self and double do",
                m.name(),
                match m {
                    Method::Single => "a loss during a save may leave it nothing to restore",
                    Method::Disk =>
                        "the program recovers in place from memory, not from a file system",
                    _ => "it has no save to restore",
                }
            )),
            (_, None) if self.spare_ranks.is_some() && self.in_place.is_none() => {
                refused("spare ranks are of use only where a run is recovered in place")
            }
            _ => Ok(()),
        }
    }
}

/// The machine and its repair. Times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct System {
    pub nodes: u64,
    pub group: u64,
    pub losses: u64,
    pub placement: Placement,
    pub domains: Option<Domains>,
    /// Number of spares; None: as many as are needed.
    pub spares: Option<u64>,
    /// Seconds until a failed node is back as a spare; None: never.
    pub repair: Option<f64>,
    pub detect: f64,
    pub restart: f64,
    /// Rebuilding from the others' memory, or reading from disk.
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
    /// Wall seconds after which a run is given up as late.
    pub limit: Option<f64>,
}

/// End of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum End {
    #[default]
    Finished,
    /// The time limit (or, without one, a hundred times the undisturbed time) passed.
    Late,
    /// More losses in one group than its code survives.
    GroupLost,
    /// A loss while the only checkpoint was being overwritten (single only).
    LostWhileSaving,
    /// No spare left and none under repair.
    NoSpare,
}

/// Result of a simulated run. Seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    pub end: End,
    pub wall: f64,
    /// Parts of `wall`, which add up to it.
    pub time: Breakdown,
    /// Number of failures (a domain counts once).
    pub failures: u64,
    /// Number of recoveries, and how many of them without a restart.
    pub recoveries: u64,
    pub in_place: u64,
    /// Number of times that the run began from scratch because a loss was not survived, though it had checksums.
    pub from_scratch: u64,
    /// Number of columns of checksums made during the run.
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
        if self.schedule.segments.is_empty() {
            return refused("the run has no work in it");
        }
        for g in &self.schedule.segments {
            non_negative("the work of a segment", g.work)?;
            non_negative("the encoding time of a segment", g.encode)?;
            non_negative("the flushing time of a segment", g.flush)?;
        }
        positive("the work of the run", self.schedule.work())?;
        s.going_on.check(self.method)?;
        if let Some(columns) = s.going_on.columns {
            let (all, waiting) = (columns.all(), s.going_on.spare_ranks.unwrap_or(0));
            let least = all.saturating_add(waiting);
            at_least(
                "the number of nodes",
                s.nodes,
                least,
                "at least Q+R and those that wait, one rank on each",
            )?;
            // A new column takes as many ranks as a process column has.
            if s.going_on.renew.is_some() && !(s.nodes - waiting).is_multiple_of(all) {
                return refused(format!(
                    "{} nodes with a rank each, {waiting} of which wait, are no P x (Q+R) = P x {all}",
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
    // Runs are handed out in small batches: one can cost far more than another.
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
