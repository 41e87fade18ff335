//! Scenario of a seed: nodes, a job, and faults with their times.

use std::time::Duration;

use super::site::{Work, Workload};
use crate::testkit::simulation::dice::Dice;

/// A fault.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// A node loses its power; if `back_ms` is given, it boots again after that time.
    Off {
        node: usize,
        back_ms: Option<u64>,
    },
    /// A node boots again.
    Boots {
        node: usize,
    },
    /// A node is cut off from the supervisor, or from the other nodes, too.
    Cut {
        node: usize,
        for_ms: u64,
        apart: bool,
    },
    /// The supervisor's machine is cut off from all nodes.
    Outage {
        for_ms: u64,
    },
    /// The kernel of a node stops for a time.
    Freeze {
        node: usize,
        for_ms: u64,
    },
    /// A node's agent is killed.
    Agent {
        node: usize,
    },
    RankDies {
        rank: usize,
    },
    RankStops {
        rank: usize,
        for_ms: u64,
    },
    RankHangs {
        rank: usize,
    },
    /// The launcher is killed. Its ranks end, or continue (`ranks_stay`).
    Launcher {
        ranks_stay: bool,
    },
    /// The disk of the run's folder stops for a time.
    Disk {
        for_ms: u64,
    },
    /// The wall clock is set.
    Wall {
        by_ms: i64,
    },
    /// The supervisor is killed; the same command is given again after `again_ms`.
    Supervisor {
        again_ms: u64,
    },
    /// A signal requests a stop; then the same command is given again.
    Halt,
    /// Two signals request a stop, the second an immediate one.
    HaltTwice {
        again_ms: u64,
    },
    HaltAgain,
    /// `skt-hpl halt` requests a stop, at once or after the next save.
    Request {
        after_checkpoint: bool,
    },
    /// Nodes lose their power at the same moment.
    OffTogether {
        nodes: [usize; 2],
    },
    /// The supervisor's machine cannot start a launcher: because it has no room (`full`), or for another reason.
    Refuses {
        for_ms: u64,
        full: bool,
    },
    /// Another user's files fill the shared memory of a node.
    Fills {
        node: usize,
        for_ms: u64,
    },
    /// The disk of the run's folder is full: no file there can be written.
    FullDisk {
        for_ms: u64,
    },
}

impl Fault {
    /// Returns the kind of fault.
    pub fn name(&self) -> &'static str {
        match self {
            Fault::Off { .. } => "node off",
            Fault::Boots { .. } => "node boots",
            Fault::Cut { apart: true, .. } => "node cut off from all",
            Fault::Cut { .. } => "node cut off from the supervisor",
            Fault::Outage { .. } => "supervisor cut off",
            Fault::Freeze { .. } => "node frozen",
            Fault::Agent { .. } => "agent killed",
            Fault::RankDies { .. } => "rank killed",
            Fault::RankStops { .. } => "rank stopped",
            Fault::RankHangs { .. } => "rank hangs",
            Fault::Launcher { .. } => "launcher killed",
            Fault::Disk { .. } => "disk stands still",
            Fault::Wall { .. } => "clock set",
            Fault::Supervisor { .. } => "supervisor killed",
            Fault::Halt => "halt",
            Fault::HaltTwice { .. } | Fault::HaltAgain => "two signals",
            Fault::Request { .. } => "halt by request",
            Fault::OffTogether { .. } => "two nodes off",
            Fault::Refuses { .. } => "launches refused",
            Fault::Fills { .. } => "node full",
            Fault::FullDisk { .. } => "disk full",
        }
    }

    /// Returns whether the fault ends the supervisor, or makes it end the run.
    fn ends_command(&self) -> bool {
        matches!(
            self,
            Fault::Supervisor { .. }
                | Fault::Halt
                | Fault::HaltTwice { .. }
                | Fault::HaltAgain
                | Fault::Request { .. }
        )
    }

    /// Returns the time for which the fault lasts.
    fn lasts_ms(&self) -> u64 {
        match *self {
            Fault::Cut { for_ms, .. }
            | Fault::Outage { for_ms }
            | Fault::Freeze { for_ms, .. }
            | Fault::RankStops { for_ms, .. }
            | Fault::Disk { for_ms }
            | Fault::FullDisk { for_ms }
            | Fault::Fills { for_ms, .. }
            | Fault::Refuses { for_ms, .. } => for_ms,
            Fault::Supervisor { again_ms } | Fault::HaltTwice { again_ms } => again_ms,
            Fault::Off { back_ms, .. } => back_ms.unwrap_or(0),
            _ => 0,
        }
    }
}

/// Time in which a fault is noticed, and the job is stopped and restarted, including all pauses of the supervisor.
const RECOVERED_MS: u64 = 90_000;

/// Property that few seeds have. It is drawn by the seed's remainder, so that the faults of seeds without it stay the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    /// In each attempt a rank dies on the node `node`, `after_ms` after the ranks began to compute.
    Sick { node: usize, after_ms: u64 },
    /// The user states the memory that ranks need, and other users fill nodes.
    Room,
    /// Identical bits are promised, and the node computes others.
    Alien { node: usize },
    /// The disk of the run's folder is full for a time.
    FullDisk,
    /// No launch succeeds for longer than the supervisor tries again.
    NoLaunch,
    /// Progress lines are printed.
    Lines,
    /// The launcher ends with status 0 if it lost a node.
    FalseZero,
    /// The run also saves to storage that all nodes share. The second command does not name the first node.
    Moves,
}

/// Divisor of the remainder that decides about [`Special`].
const SPECIAL_OF: u64 = 41;

/// Time of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    At(u64),
    /// After the record with this number has been written.
    Record(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub seed: u64,
    pub nodes: usize,
    pub spares: usize,
    pub slots: usize,
    pub fanout: usize,
    pub login_ms: u64,
    pub refused_ms: u64,
    pub travel_ms: (u64, u64),
    pub wait: Option<Duration>,
    pub may_double: bool,
    /// True if a trial launch of MPI comes first.
    pub trial: bool,
    /// Node on which MPI does not start, or whose ranks cannot connect to others (`is_cut`); None if there is no such node.
    pub defect: Option<usize>,
    /// True if ranks on the node `defect` start but cannot connect to others.
    pub is_cut: bool,
    /// Time limit of the first command, in milliseconds.
    pub limit_ms: Option<u64>,
    /// True if the command has `--new` when it is given again.
    pub discards: bool,
    pub special: Option<Special>,
    pub work: Work,
    pub faults: Vec<(When, Fault)>,
}

impl Scenario {
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let nodes = 2 + dice.below(6) as usize;
        Self::with_nodes(seed, nodes, &mut dice)
    }

    pub fn on(seed: u64, nodes: usize) -> Self {
        Self::with_nodes(seed, nodes, &mut Dice::new(seed))
    }

    fn with_nodes(seed: u64, nodes: usize, dice: &mut Dice) -> Self {
        let spares = dice.below(3) as usize;
        let slots = 1 + dice.below(2) as usize;
        let ranks = nodes * slots;
        let workload = match seed % 11 {
            4 if nodes > 2 => Workload::InPlace { spare_ranks: slots },
            9 => Workload::Vacant,
            10 => Workload::Other,
            _ => Workload::Restarted,
        };
        let positions = ranks - workload.spare_ranks();
        // Members of a group are on different nodes.
        let size = 2 + dice.below(2) as usize;
        let groups =
            (0..positions).map(|position| position / slots / size * slots + position % slots);
        let work = Work {
            iterations: 10 + dice.below(30),
            step_ms: 200 + dice.below(1200),
            save_every: 2 + dice.below(6),
            start_ms: 100 + dice.below(2000),
            recover_ms: 200 + dice.below(2000),
            // Ranks that recover in place notice a dead rank themselves. Of another program's ranks, the supervisor learns from
            // the launcher alone that one is dead.
            notices_ms: (!dice.one_in(4) || workload != Workload::Restarted)
                .then(|| 50 + dice.below(3000)),
            lingers: dice.one_in(8) && workload != Workload::Other,
            workload,
            groups: groups.collect(),
        };
        let login_ms = dice.one_of(&[50, 300, 1000, 2500]);
        let all = nodes + spares;
        let time_ms = 2000 + work.iterations * work.step_ms;
        let mut faults = Vec::new();
        let mut at_ms = dice.below(time_ms);
        for _ in 0..1 + dice.below(4) {
            faults.push(drawn(dice, at_ms, all, ranks));
            // The next fault comes soon after the previous one, or at any time.
            at_ms = if dice.one_in(2) { at_ms + dice.below(6000) } else { dice.below(time_ms) };
        }
        let mut scenario = Self {
            seed,
            nodes,
            spares,
            slots,
            fanout: dice.one_of(&[2, 3, 32]),
            login_ms,
            refused_ms: 1000 + dice.below(8000),
            travel_ms: (1, 1 + dice.below(20)),
            wait: dice.one_in(2).then_some(Duration::from_secs(60)),
            may_double: dice.one_in(2),
            trial: seed % 4 == 1 && workload != Workload::Other,
            defect: (seed % 12 == 1 && workload != Workload::Other && spares > 0)
                .then_some(seed as usize / 12 % all),
            is_cut: seed % 24 == 13,
            limit_ms: (seed % 13 == 5).then_some(5000 + seed / 13 % 40_000),
            discards: seed % 6 == 4,
            special: None,
            work,
            faults,
        };
        if seed % 3 == 2 {
            let at_ms = if dice.one_in(2) { at_ms } else { dice.below(time_ms) };
            scenario.faults.push((When::At(at_ms), rare(dice, all)));
        }
        scenario.specialise(time_ms, dice);
        scenario
    }

    /// Gives the scenario the property that its seed has, if any, with the faults that belong to it.
    fn specialise(&mut self, time_ms: u64, dice: &mut Dice) {
        let all = self.nodes + self.spares;
        let node = dice.below(all as u64) as usize;
        let saves = self.work.workload.saves();
        match self.seed % SPECIAL_OF {
            0 | 5 | 10 => {
                let node = node % self.nodes;
                self.special = Some(Special::Sick { node, after_ms: dice.below(time_ms / 2) });
                if dice.one_in(2) {
                    self.faults.clear();
                }
            }
            1 | 6 | 11 | 16 if saves => {
                self.special = Some(Special::Room);
                if dice.one_in(3) {
                    // The first ranks die before they have memory, and then there is no room.
                    let node = dice.below(self.nodes as u64) as usize;
                    let for_ms = 20_000 + dice.below(400_000);
                    let faults =
                        [Fault::Launcher { ranks_stay: false }, Fault::Fills { node, for_ms }];
                    self.faults = faults.map(|fault| (When::Record(1), fault)).to_vec();
                    (self.limit_ms, self.discards) = (None, false);
                    return;
                }
                for _ in 0..1 + dice.below(2) {
                    let node = dice.below(all as u64) as usize;
                    let for_ms = 1000 + dice.below(120_000);
                    self.faults
                        .push((When::At(dice.below(time_ms)), Fault::Fills { node, for_ms }));
                }
            }
            3 | 8 if saves && (self.nodes > 2 || node >= self.nodes) => {
                self.special = Some(Special::Alien { node });
            }
            7 | 12 => {
                self.special = Some(Special::FullDisk);
                // Without its journal, a run cannot be resumed by another command.
                self.faults.retain(|(_, fault)| !fault.ends_command());
                (self.limit_ms, self.discards) = (None, false);
                let for_ms = 1000 + dice.below(60_000);
                let at_ms = 10_000 + dice.below(time_ms);
                self.faults.push((When::At(at_ms), Fault::FullDisk { for_ms }));
            }
            9 => {
                self.special = Some(Special::NoLaunch);
                let at_ms = 10_000 + dice.below(time_ms);
                let for_ms = 290_000 + dice.below(60_000);
                self.faults.push((When::At(at_ms), Fault::Refuses { for_ms, full: false }));
                let rank = dice.below(self.ranks() as u64) as usize;
                self.faults.push((When::At(at_ms + 1), Fault::RankDies { rank }));
            }
            17 => self.special = Some(Special::Lines),
            18 | 19 => self.special = Some(Special::FalseZero),
            23 | 25
                if self.work.workload == Workload::Restarted
                    && self.spares > 0
                    && !self.discards =>
            {
                self.special = Some(Special::Moves);
                self.faults.push((When::At(dice.below(time_ms)), Fault::Halt));
            }
            _ => {}
        }
        let shows_defect = self
            .special
            .is_some_and(|special| matches!(special, Special::Sick { .. } | Special::Alien { .. }));
        if shows_defect {
            // One defect is enough.
            self.defect = None;
        }
    }

    pub fn with_faults(&self, kept: &[usize]) -> Self {
        let faults = kept.iter().filter_map(|&at| self.faults.get(at).cloned()).collect();
        Self { faults, ..self.clone() }
    }

    pub fn ranks(&self) -> usize {
        self.nodes * self.slots
    }

    /// Returns the longest time of a run, unless no node can be reached. For each fault, the time includes the duration of the
    /// fault, the recovery, and a repetition of the whole job.
    pub fn most_ms(&self) -> u64 {
        let work = &self.work;
        let job_ms = work.start_ms + work.recover_ms + work.iterations * work.step_ms;
        let lasts_ms: u64 = self.faults.iter().map(|(_, fault)| fault.lasts_ms()).sum();
        let wait_ms = self.wait.map_or(0, |wait| wait.as_millis() as u64);
        let is_sick = matches!(self.special, Some(Special::Sick { .. }));
        let extra = [self.discards, self.trial, self.is_cut, self.limit_ms.is_some()];
        let extra = extra.into_iter().chain([is_sick; 5]);
        let begins = 1 + extra.map(u64::from).sum::<u64>();
        (begins + self.faults.len() as u64) * (job_ms + RECOVERED_MS + wait_ms) + lasts_ms
    }
}

fn drawn(dice: &mut Dice, at_ms: u64, nodes: usize, ranks: usize) -> (When, Fault) {
    let node = dice.below(nodes as u64) as usize;
    let rank = dice.below(ranks as u64) as usize;
    let short_or_long = |dice: &mut Dice| {
        if dice.one_in(2) { dice.below(2400) } else { 5000 + dice.below(30_000) }
    };
    let fault = match dice.below(16) {
        0 | 1 => Fault::Off { node, back_ms: dice.one_in(2).then(|| 1000 + dice.below(40_000)) },
        2 | 3 => Fault::Cut { node, for_ms: short_or_long(dice), apart: dice.one_in(2) },
        4 | 5 => Fault::Outage { for_ms: short_or_long(dice) },
        6 => Fault::Freeze { node, for_ms: short_or_long(dice) },
        7 => Fault::Agent { node },
        8 => Fault::RankDies { rank },
        9 => Fault::RankStops { rank, for_ms: short_or_long(dice) },
        10 => Fault::RankHangs { rank },
        11 => Fault::Launcher { ranks_stay: dice.one_in(2) },
        12 => Fault::Disk { for_ms: dice.below(20_000) },
        13 => Fault::Wall { by_ms: dice.below(7_200_000) as i64 - 3_600_000 },
        14 => Fault::Halt,
        _ => Fault::Supervisor { again_ms: dice.below(20_000) },
    };
    let when = match fault {
        Fault::Supervisor { .. } if dice.one_in(2) => When::Record(dice.below(16)),
        _ => When::At(at_ms),
    };
    (when, fault)
}

/// Draws a fault of a kind that only every third seed has.
fn rare(dice: &mut Dice, nodes: usize) -> Fault {
    match dice.below(5) {
        0 => Fault::HaltTwice { again_ms: dice.below(5000) },
        1 => Fault::Request { after_checkpoint: dice.one_in(2) },
        2 => Fault::Refuses { for_ms: dice.below(60_000), full: dice.one_in(2) },
        _ => {
            let first = dice.below(nodes as u64) as usize;
            let second = (first + 1 + dice.below(nodes as u64 - 1) as usize) % nodes;
            Fault::OffTogether { nodes: [first, second] }
        }
    }
}
