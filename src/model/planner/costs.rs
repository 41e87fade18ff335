//! Costs of a choice on a machine: memory of a node, saves, recovery, time with failures.

use super::super::ModelError;
use super::super::encoding::{Link, dedicated_chain, localised_ring, striped_ring};
use super::super::error::{Result, refused};
use super::super::fit::RateModel;
use super::super::memory::{
    Method, RANK_BASE_BYTES, RANK_BASE_MOST, RankMemory, Shape, rank_memory,
};
use super::super::nonstop::{Columns, Failing, Renewing, Repair, Replacement};
use super::super::profile::{Every, Run, SaveCost, Schedule};
use super::choice::{Choice, block_size};
use super::machine::{GENERATE_BYTES_S, Machine, RECOVERY_FACTOR};
use crate::base::units::YEAR_S;
use crate::checkpoint::layout::ParityLayout;
use crate::parity::Spread;

/// Seconds beyond which an expected time counts as "never".
const NEVER: f64 = 1000.0 * YEAR_S;

impl Machine<'_> {
    pub(super) fn shape(&self, n: u64, choice: &Choice) -> Shape {
        Shape {
            n,
            nb: self.inputs.nb.unwrap_or_else(|| block_size(n, choice.grid, self.device.is_some())),
            p: choice.grid.0,
            q: choice.grid.1,
            depth: self.inputs.depth,
        }
    }

    /// Memory of the fullest rank at order `n`.
    pub(super) fn rank(&self, n: u64, choice: &Choice) -> Result<RankMemory> {
        let (shape, means) = (self.shape(n, choice), self.inputs.means());
        let (group, spread) = (choice.groups.smallest, choice.layout.spread());
        rank_memory(shape, means, choice.method, spread, group, choice.borne())
    }

    pub(super) fn node_memory(&self, n: u64, choice: &Choice) -> Result<f64> {
        Ok(self.rank(n, choice)?.total() * self.inputs.ranks_per_node as f64)
    }

    /// Whether order `n` fits the memory of a node, and the node's store of persistent shared memory.
    pub(super) fn fits(&self, n: u64, choice: &Choice) -> Result<bool> {
        Ok(self.fits_memory(n, choice)? && self.has_place(self.named(n, choice)?))
    }

    /// Whether order `n` fits the memory of a node and of its devices, without regard to the store.
    pub(super) fn fits_memory(&self, n: u64, choice: &Choice) -> Result<bool> {
        let most = (RANK_BASE_MOST - RANK_BASE_BYTES) * self.inputs.ranks_per_node as f64;
        Ok(self.node_memory(n, choice)? + most <= self.budget && self.fits_device(n, choice)?)
    }

    /// Whether order `n` fits the memory of the devices.
    pub(super) fn fits_device(&self, n: u64, choice: &Choice) -> Result<bool> {
        let rank = self.rank(n, choice)?;
        Ok(rank.on_device.zip(self.device).is_none_or(|(bytes, device)| bytes <= device.memory))
    }

    /// Seconds to encode the whole matrix, and seconds to copy it, for a checkpoint in memory.
    pub(super) fn in_memory(&self, n: u64, choice: &Choice) -> Result<(f64, f64)> {
        // Number of nodes that have a part of the matrix.
        let computing = (choice.grid.0 * choice.grid.1) as f64 / self.ranks as f64;
        let nodes = match choice.layout {
            ParityLayout::Dedicated => self.inputs.nodes as f64 * computing,
            _ => self.inputs.nodes as f64,
        };
        let data = 8.0 * n as f64 * (n as f64 + 1.0) / nodes;
        // The ranks of a node share its port. Combining reads two operands and writes one.
        let link = Link { alpha: self.latency, beta: 1.0 / self.network, gamma: 1.5 / self.copy };
        let encode = match choice.layout.spread() {
            Spread::Rotated => striped_ring,
            Spread::Apart => dedicated_chain,
            Spread::Copied => localised_ring,
        };
        let copy = self.device.map_or(self.copy, |device| {
            // All devices of a node copy at the same time.
            self.copy.min(device.link * self.inputs.ranks_per_node as f64)
        });
        Ok((encode(choice.groups.smallest.max(1), choice.losses, data, link)?, data / copy))
    }

    fn cost(&self, n: u64, choice: &Choice) -> Result<SaveCost> {
        let all = 8.0 * n as f64 * (n as f64 + 1.0);
        let barriers = 10.0 * self.latency * (self.ranks as f64).log2().max(1.0);
        let (encode, flush) = match choice.method {
            Method::SelfCheckpoint | Method::Double | Method::Single => {
                self.in_memory(n, choice)?
            }
            Method::Disk => {
                let Some(disk) = self.inputs.disk else {
                    return refused("the bandwidth of the file system is not known: give --disk");
                };
                (all / disk, 0.0)
            }
            Method::Abft | Method::None => (0.0, 0.0),
        };
        let inputs = self.inputs;
        Ok(SaveCost {
            // No rank stops while helpers encode; each helper takes a core meanwhile.
            encode: if choice.helpers {
                encode * (inputs.ranks_per_node as f64 / inputs.cores as f64).min(1.0)
            } else {
                encode
            },
            flush,
            fixed: if choice.method.saves() { barriers } else { 0.0 },
            recover: match choice.method {
                // The checksum column that replaces a lost column recomputes U at the end.
                Method::Abft => self.repair(n, choice).replacement_on_average()?,
                // The whole checkpoint is read once, as fast as it is written.
                Method::Disk => encode,
                // If a rank is lost before the helpers are done, the work of the previous interval is lost, too. On average over
                // all moments this is as much work as encoding takes.
                _ if choice.helpers => RECOVERY_FACTOR * encode + flush + encode,
                _ => RECOVERY_FACTOR * encode + flush,
            },
            scope: choice.scope,
        })
    }

    pub(super) fn repair(&self, n: u64, choice: &Choice) -> Repair {
        // All ranks of a node send at the same time.
        let share = self.inputs.ranks_per_node as f64;
        let link = Link {
            alpha: self.latency,
            beta: share / self.network,
            gamma: 1.5 * share / self.copy,
        };
        let (p, q) = choice.grid;
        Repair { n: n as f64, p, q, link }
    }

    /// Rate of a choice. With checksum columns or dedicated ranks, only the ranks of the grid count. They do not wait for the
    /// ranks that keep checksums.
    pub(super) fn rate(&self, choice: &Choice) -> Result<RateModel> {
        let apart = choice.method == Method::Abft || choice.layout == ParityLayout::Dedicated;
        if apart {
            self.rate.scaled(self.ranks, choice.grid.0 * choice.grid.1)
        } else {
            Ok(self.rate)
        }
    }

    pub(super) fn failing(&self) -> Failing {
        Failing { mtbf: self.mtbf_system, processes: self.processes }
    }

    /// Seconds that a failure costs before the first save, and after the first save. The work that is done again is not included.
    pub(super) fn downs(&self, n: u64, choice: &Choice, cost: &SaveCost) -> Result<(f64, f64)> {
        let again = self.detect + self.restart;
        let both = |restored: f64| {
            if !choice.in_place {
                return Ok(again + restored);
            }
            match self.failing().mean_down(self.in_place + restored, again + restored) {
                // A restart practically never ends, so recovery in place does not help, and the plan reports "never".
                Err(ModelError::Overflow { .. }) => Ok(again + restored),
                down => down,
            }
        };
        let recover = if choice.method.saves() { cost.recover } else { self.regenerate(n) };
        Ok((both(self.regenerate(n))?, both(recover)?))
    }

    pub(super) fn replacement(
        &self,
        n: u64,
        work: f64,
        choice: &Choice,
        cost: &SaveCost,
    ) -> Result<Replacement> {
        let each = self.repair(n, choice).renewal_on_average()?;
        Ok(Replacement {
            columns: Columns { q: choice.grid.1, sums: choice.sums },
            work,
            replace: self.in_place + cost.recover,
            from_scratch: self.detect + self.restart + self.regenerate(n),
            renewing: Renewing { rows: choice.grid.0, waiting: choice.waiting, each },
        })
    }

    /// Seconds to generate the matrix.
    pub(super) fn regenerate(&self, n: u64) -> f64 {
        let cores = self.inputs.nodes as f64 * self.inputs.cores as f64;
        let copied = self.device.map_or(0.0, |device| 1.0 / (device.link * self.ranks as f64));
        8.0 * (n as f64).powi(2) * (1.0 / (cores * GENERATE_BYTES_S) + copied)
    }

    pub(super) fn schedule(&self, n: u64, choice: &Choice) -> Result<(Run, SaveCost, Schedule)> {
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

    /// Expected wall seconds with failures; None if they exceed [`NEVER`].
    pub(super) fn expected(&self, n: u64, choice: &Choice) -> Result<Option<f64>> {
        let (_, cost, schedule) = self.schedule(n, choice)?;
        let (fresh, down) = self.downs(n, choice, &cost)?;
        let time = match choice.method {
            Method::Abft => {
                self.replacement(n, schedule.work(), choice, &cost)?.expected(self.failing())
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
}
