//! The simulated nodes and the job on them: their real state, of which the supervisor knows only a part.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::Write as _;

use super::evidence::Evidence;
use crate::base::clock::unix_ms;
use crate::shm::header::CheckpointId;
use crate::supervise::judge::nodes::WAS_RESTARTED;
use crate::supervise::remember::events::ProcessId;
use crate::supervise::remember::folder::Folder;
use crate::supervise::start::in_place::{FROM_SCRATCH, Gone, Notice, from_boundary};
use crate::supervise::start::job::Announcement;
use crate::supervise::start::trial::{self, NUMBER as TRIAL};
use crate::supervise::supervisor::{ASKED_IN_VAIN, UNNAMED};
use crate::supervise::talk::progress::{Doing, Progress};
use crate::supervise::talk::wire::{Beat, Free, Which};

/// Bytes of shared memory of a rank.
pub(super) const RANK_BYTES: u64 = 1 << 20;
/// Bytes of the whole memory of a node.
pub(super) const NODE_BYTES: u64 = 1 << 34;

/// Time from one call of a node to the next while no node answers, including the duration of the call.
const CALLS_MS: u64 = 20_000;

/// Time after which the other ranks take a stopped rank for dead, if they recover in place.
const TAKEN_FOR_DEAD_MS: u64 = 5000;

/// Position of a rank in the grid, as the supervisor knows it.
type Position = u32;

/// Kind of program that the ranks run, and its way to recover from the loss of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    /// The benchmark, which a new launch resumes from checkpoints.
    Restarted,
    /// The benchmark, with ranks that stand by and take the positions of lost ranks.
    InPlace { spare_ranks: usize },
    /// The benchmark without checkpoints. Checksums replace one lost rank, whose position stays vacant.
    Vacant,
    /// Another program. The supervisor sees its processes, but no progress.
    Other,
}

impl Workload {
    pub fn saves(self) -> bool {
        matches!(self, Workload::Restarted | Workload::InPlace { .. })
    }

    pub fn recovers_in_place(self) -> bool {
        matches!(self, Workload::InPlace { .. } | Workload::Vacant)
    }

    pub fn spare_ranks(self) -> usize {
        match self {
            Workload::InPlace { spare_ranks } => spare_ranks,
            _ => 0,
        }
    }
}

/// Properties of a run.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub iterations: u64,
    pub step_ms: u64,
    pub save_every: u64,
    /// Time from the launcher's start to the first process.
    pub start_ms: u64,
    /// Time from the first process until the ranks compute.
    pub recover_ms: u64,
    /// Time until the launcher notices a dead rank; None if never.
    pub notices_ms: Option<u64>,
    /// Whether the launcher stays when all ranks have ended.
    pub lingers: bool,
    pub workload: Workload,
    /// Group of each position. Each group survives the loss of one member.
    pub groups: Vec<usize>,
}

impl Work {
    /// Returns the time from a loss until the other ranks continue in place.
    fn rejoin_ms(&self) -> u64 {
        self.step_ms + self.recover_ms
    }
}

/// A position's persistent memory on a node.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// Iteration of the last save.
    saved: Option<u64>,
    pid: u32,
    /// Number of the run to which the memory belongs.
    run: u32,
}

#[derive(Debug, Default)]
struct Node {
    boots: u64,
    is_off: bool,
    /// Time until which the node's kernel is stopped.
    frozen_ms: u64,
    /// Time until which the node is cut off from other nodes.
    apart_ms: u64,
    /// Time until which other users' files fill the node's shared memory.
    filled_ms: u64,
    memory: BTreeMap<Position, Memory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Well,
    Dead,
    Stopped {
        from_ms: u64,
        until_ms: u64,
    },
    /// The rank runs but makes no progress.
    Hangs,
}

#[derive(Debug)]
struct Rank {
    /// Position in the grid; None for a rank that stands by.
    position: Option<Position>,
    node: String,
    pid: u32,
    health: Health,
    /// True if the other ranks have continued without this rank.
    is_out: bool,
}

impl Rank {
    /// Returns whether the other ranks take this rank for dead at `now_ms`.
    fn counts_as_dead(&self, now_ms: u64) -> bool {
        match self.health {
            Health::Dead => true,
            Health::Stopped { from_ms, until_ms } => {
                now_ms < until_ms && now_ms >= from_ms + TAKEN_FOR_DEAD_MS
            }
            Health::Well | Health::Hangs => false,
        }
    }

    /// Returns whether this rank does its work at `now_ms`, if its node does.
    fn is_well(&self, now_ms: u64) -> bool {
        match self.health {
            Health::Well => true,
            Health::Stopped { until_ms, .. } => now_ms >= until_ms,
            Health::Dead | Health::Hangs => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Launching {
        until_ms: u64,
    },
    Recovering {
        until_ms: u64,
    },
    Computing {
        from: u64,
        since_ms: u64,
    },
    /// A rank, or its node, delays all other ranks.
    Stuck {
        at: u64,
        since_ms: u64,
    },
    /// MPI ends, after all iterations are done or a halt was carried out.
    Ending {
        until_ms: u64,
        status: i32,
    },
    Over,
}

/// A save of all positions.
#[derive(Debug)]
struct Save {
    iteration: u64,
    at_ms: u64,
    /// Node of each position.
    holders: Vec<(Position, String)>,
}

#[derive(Debug)]
struct Attempt {
    number: u32,
    run: u32,
    folder: Folder,
    launcher: ProcessId,
    launcher_runs: bool,
    hosts: Vec<String>,
    ranks: Vec<Rank>,
    /// Ranks on each node.
    on: HashMap<String, Vec<usize>>,
    phase: Phase,
    fresh: bool,
    /// Iteration of the last save, or at which the ranks last got stuck.
    reached: u64,
    /// Whether the ranks ended by themselves.
    has_ended: bool,
    /// Time at which the launcher ends the job.
    notices_ms: Option<u64>,
    /// Time at which the ranks continue in place after a loss.
    rejoins_ms: Option<u64>,
    /// Number of losses from which the ranks have recovered in place.
    recoveries: usize,
    /// Iteration at which the ranks resume.
    resumes_at: u64,
    /// Time that is left to recover, if the ranks got stuck while they recovered.
    recovers_ms: Option<u64>,
    /// Time up to which a fault of a rank is a reason to end the job.
    excused_ms: u64,
    /// Time at which a rank dies on the node `sick`.
    dies_ms: Option<u64>,
    halt: Option<bool>,
}

impl Attempt {
    /// Returns true if the supervisor has recorded the launch. If not, a new supervisor cannot know the saves and the results
    /// of this launch.
    fn is_known(&self) -> bool {
        self.excused_ms < u64::MAX
    }
}

/// Real state of all nodes and of the job.
#[derive(Debug)]
pub(super) struct Site {
    pub now_ms: u64,
    work: Work,
    nodes: BTreeMap<String, Node>,
    /// Node on which MPI does not start, or whose ranks cannot connect to others (`is_cut`).
    defect: Option<String>,
    /// True if ranks on the node `defect` start but cannot connect to others.
    pub is_cut: bool,
    /// Time from which the time limit of the run's first command is a reason to end the job.
    pub limit_ms: Option<u64>,
    /// Node on which a rank dies in each attempt, and the time from the beginning of the computation to the death.
    sick: Option<(String, u64)>,
    /// Node that computes other bits than the others.
    pub alien: Option<String>,
    /// Whether the launcher ends with status 0 if it lost a node.
    pub hides_losses: bool,
    /// Whether a fault was injected while a trial of MPI ran.
    pub trial_was_hit: bool,
    /// Iteration of the last save in storage that all nodes share: 0 if there is none, `None` without such storage.
    pub stored: Option<u64>,
    /// Number of the present run: the count of earlier runs that were given up for a new run.
    run: u32,
    /// Nodes that the supervisor has given up.
    given_up: BTreeSet<String>,
    /// Time up to which no node can be reached from the supervisor.
    outage_ms: u64,
    outage_end_ms: u64,
    evidence: Evidence,
    /// Time until which the supervisor makes its first calls. Before a job runs, nodes that do not answer these calls are given
    /// up.
    pub first_calls_ms: u64,
    /// Whether a stop of the job was requested.
    may_halt: bool,
    attempt: Option<Attempt>,
    /// Time at which the next frozen node or stopped rank continues.
    wakes_ms: Option<u64>,
    last_save: Option<Save>,
    pids: u32,
    /// Whether the results are complete.
    pub is_done: bool,
    /// Whether the benchmark has refused to continue, for a good reason.
    pub has_refused: bool,
    pub launches: usize,
    /// A violation of the rules, with its time.
    pub wrong: Option<String>,
    pub log: Vec<String>,
}

impl Site {
    /// Makes the site of a run. `is_tree` states that some nodes are called by other nodes.
    pub fn new(
        work: Work,
        nodes: impl Iterator<Item = String>,
        is_tree: bool,
        defect: Option<String>,
    ) -> Self {
        let mut evidence = Evidence::new(is_tree);
        if let Some(node) = &defect {
            // The defect remains when the node boots again.
            evidence.condemns(node, 0, u64::MAX / 2);
        }
        Self {
            now_ms: 0,
            defect,
            is_cut: false,
            limit_ms: None,
            sick: None,
            alien: None,
            hides_losses: false,
            trial_was_hit: false,
            stored: None,
            run: 0,
            given_up: BTreeSet::new(),
            work,
            nodes: nodes.map(|name| (name, Node::default())).collect(),
            outage_ms: 0,
            outage_end_ms: 0,
            evidence,
            first_calls_ms: 0,
            may_halt: false,
            attempt: None,
            wakes_ms: None,
            last_save: None,
            pids: 100,
            is_done: false,
            has_refused: false,
            launches: 0,
            wrong: None,
            log: Vec::new(),
        }
    }

    /// Makes a node sick: in each attempt a rank dies there, `after_ms` after the ranks began to compute.
    pub fn sickens(&mut self, node: &str, after_ms: u64) {
        self.evidence.condemns(node, 0, u64::MAX / 2);
        self.sick = Some((node.to_owned(), after_ms));
    }

    /// Makes a node compute other bits than the others.
    pub fn alienates(&mut self, node: &str) {
        self.evidence.condemns(node, 0, u64::MAX / 2);
        self.alien = Some(node.to_owned());
    }

    /// Fills the shared memory of a node with other users' files.
    pub fn fills(&mut self, name: &str, until_ms: u64) {
        self.evidence.condemns(name, self.now_ms, until_ms);
        if let Some(node) = self.nodes.get_mut(name) {
            node.filled_ms = node.filled_ms.max(until_ms);
        }
    }

    /// Returns the free memory of a node.
    pub fn free(&self, name: &str) -> Free {
        let node = &self.nodes[name];
        let left = NODE_BYTES - node.memory.len() as u64 * RANK_BYTES;
        let shm_bytes = if self.now_ms < node.filled_ms { 0 } else { left };
        Free { shm_bytes, memory_bytes: left, ..Free::default() }
    }

    pub fn notes(&mut self, what: String) {
        self.log.push(format!("{:>9.3} s  {what}", self.now_ms as f64 / 1e3));
    }

    pub fn goes_wrong(&mut self, what: String) {
        self.notes(format!("WRONG: {what}"));
        self.wrong.get_or_insert(what);
    }

    /// Returns a name that is different after each boot of the node.
    pub fn boot(&self, node: &str) -> String {
        format!("{node}.{}", self.nodes[node].boots)
    }

    /// Records a node that the supervisor has blamed for repeated faults.
    pub fn is_sick(&mut self, node: &str) {
        self.evidence.condemns(node, self.now_ms, u64::MAX);
    }

    /// Checks that there was evidence against a node that the supervisor has given up now. The judgement began at `judged_ms`.
    pub fn is_given_up(&mut self, node: &str, why: &str, judged_ms: u64) {
        // A new supervisor judges by the state that it finds.
        let begins = judged_ms < self.first_calls_ms;
        // In an outage, the supervisor does not wait for nodes without ranks.
        let runs = |attempt: &Attempt| attempt.hosts.iter().any(|host| host == node);
        let is_spare = !self.attempt.as_ref().is_some_and(runs);
        let in_outage = is_spare && judged_ms <= Evidence::end_of(self.outage_end_ms);
        if !self.evidence.has_held(node, judged_ms, self.now_ms)
            // After the request to remove memory, the node may have answered and been lost again.
            && !((begins || why.contains(ASKED_IN_VAIN)) && self.evidence.has_held_since(node, 0))
            && !(begins && in_outage)
            // The memory of a node that was started again is gone, whenever that is noticed.
            && !(why.contains(WAS_RESTARTED) && self.nodes[node].boots > 0)
            && !(why.contains(UNNAMED) && self.stored.is_some())
        {
            self.goes_wrong(format!("node {node} was given up without evidence: {why}"));
        }
        self.given_up.insert(node.to_owned());
    }

    /// Returns the number of nodes against which there has never been any evidence.
    pub fn blameless(&self) -> usize {
        self.nodes.keys().filter(|node| !self.evidence.has_held_since(node, 0)).count()
    }

    /// Returns the activity of the job in a word or two.
    pub fn doing(&self) -> &'static str {
        match self.attempt.as_ref().map(|attempt| attempt.phase) {
            None => "nothing runs",
            Some(Phase::Launching { .. }) => "launching",
            Some(Phase::Recovering { .. }) => "recovering",
            Some(Phase::Computing { .. }) => "computing",
            Some(Phase::Stuck { .. }) => "ranks wait",
            Some(Phase::Ending { .. }) => "ending",
            Some(Phase::Over) => "ended",
        }
    }

    // Faults

    fn has_fault(&mut self, name: &str, lasts_ms: u64) {
        self.evidence.adds(name, self.now_ms, lasts_ms);
        // With an outage just before, a node that is unresponsive for a short time is so for a long one.
        if self.outage_end_ms > 0 && self.now_ms <= Evidence::end_of(self.outage_end_ms) {
            let until_ms = self.now_ms.saturating_add(lasts_ms);
            self.evidence.condemns(name, self.now_ms, until_ms);
        }
    }

    pub fn switches_off(&mut self, name: &str) {
        self.has_fault(name, u64::MAX);
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.is_off = true;
        node.memory.clear();
        self.kills_ranks(|rank| rank.node == name);
    }

    pub fn boots(&mut self, name: &str) {
        let now_ms = self.now_ms;
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.is_off = false;
        node.boots += 1;
        // In an outage the boot is noticed later, and while all seem unresponsive each node is called every 10 s.
        self.evidence.boots(name, (now_ms + CALLS_MS).max(self.outage_end_ms));
    }

    pub fn freezes(&mut self, name: &str, until_ms: u64) {
        self.has_fault(name, until_ms - self.now_ms);
        if let Some(node) = self.nodes.get_mut(name) {
            node.frozen_ms = node.frozen_ms.max(until_ms);
        }
        self.settles();
    }

    /// Cuts a node off from the supervisor, and if `apart` also from the other nodes.
    pub fn cuts_off(&mut self, name: &str, until_ms: u64, apart: bool) {
        self.has_fault(name, until_ms - self.now_ms);
        if let Some(node) = self.nodes.get_mut(name).filter(|_| apart) {
            node.apart_ms = node.apart_ms.max(until_ms);
        }
        self.settles();
    }

    /// Makes all nodes unreachable from the supervisor. No node may be given up because of this, with three exceptions: no job
    /// runs and the supervisor makes its first calls; there are fewer than two nodes without evidence against them, so a single
    /// node may have failed; or another fault came just before.
    pub fn is_out_of_reach(&mut self, until_ms: u64) {
        self.outage_ms = self.outage_ms.max(until_ms);
        self.outage_end_ms = self.outage_end_ms.max(until_ms);
        // First calls that no node answers are repeated.
        if self.now_ms < self.first_calls_ms {
            self.first_calls_ms = self.first_calls_ms.max(until_ms + CALLS_MS);
        }
        if self.evidence.is_unjudged(self.now_ms) {
            self.condemns_all();
        }
        // A node that has failed already stays unresponsive as long as the outage lasts.
        let failed = self.nodes.keys().filter(|node| self.evidence.holds(node, self.now_ms));
        for node in failed.cloned().collect::<Vec<String>>() {
            self.evidence.condemns(&node, self.now_ms, until_ms);
        }
        self.judges_outage();
    }

    fn judges_outage(&mut self) {
        if self.now_ms >= self.outage_ms {
            return;
        }
        // A supervisor that died before it recorded a launch has a successor that knows no job.
        let runs = |attempt: &Attempt| attempt.launcher_runs && attempt.phase != Phase::Over;
        let known = self.attempt.as_ref().filter(|attempt| attempt.is_known());
        let runs = known.is_some_and(runs);
        let begins = self.now_ms < self.first_calls_ms;
        // Nodes that were given up do not count, unless they are in use again.
        let hosts = self.attempt.iter().flat_map(|attempt| &attempt.hosts);
        let counts =
            |node: &String| !self.given_up.contains(node) || hosts.clone().any(|host| host == node);
        let well = |node: &&String| counts(node) && !self.evidence.holds(node, self.now_ms);
        let well = self.nodes.keys().filter(well);
        if !runs && begins || well.count() < 2 {
            self.condemns_all();
        }
    }

    fn condemns_all(&mut self) {
        let until_ms = std::mem::take(&mut self.outage_ms).max(self.now_ms);
        for node in self.nodes.keys() {
            self.evidence.condemns(node, self.now_ms, until_ms);
        }
    }

    pub fn all_are_off(&self) -> bool {
        self.nodes.values().all(|node| node.is_off)
    }

    /// Records that the supervisor dies before it has recorded the last launch, so its successor cannot know the launcher.
    pub fn is_unrecorded(&mut self) {
        self.attempt.iter_mut().for_each(|attempt| attempt.excused_ms = u64::MAX);
    }

    /// Returns whether the node has ranks of the present attempt.
    pub fn runs_on(&self, node: &str) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.hosts.iter().any(|host| host == node))
    }

    /// Records that the supervisor dies after it has recorded a fault of the present attempt and the loss of one of its nodes.
    /// Its successor ends the job until `until_ms`.
    pub fn is_decided(&mut self, until_ms: u64) {
        let decided = self.attempt.iter_mut().filter(|attempt| attempt.is_known());
        decided.for_each(|attempt| attempt.excused_ms = attempt.excused_ms.max(until_ms));
    }

    /// Returns whether a trial of MPI runs.
    pub fn is_on_trial(&self) -> bool {
        let runs = |attempt: &Attempt| attempt.number == TRIAL && attempt.phase != Phase::Over;
        self.attempt.as_ref().is_some_and(runs)
    }

    pub fn attempt_number(&self) -> u32 {
        self.attempt.as_ref().map_or(0, |attempt| attempt.number)
    }

    /// Ends the agent of a node. This does not justify giving the node up.
    pub fn loses_agent(&mut self, name: &str) {
        self.has_fault(name, 0);
    }

    pub fn kills_rank(&mut self, number: usize) {
        self.fails_rank(number, Health::Dead, 0);
    }

    pub fn stops_rank(&mut self, number: usize, until_ms: u64) {
        let from_ms = self.now_ms;
        self.fails_rank(number, Health::Stopped { from_ms, until_ms }, until_ms - from_ms);
    }

    /// Makes a rank hang. Does nothing if the ranks run another program, since nobody could notice that.
    pub fn hangs_rank(&mut self, number: usize) {
        if self.work.workload != Workload::Other {
            self.fails_rank(number, Health::Hangs, 0);
        }
    }

    /// Gives a rank the state `health`, as a fault that lasts `lasts_ms`. Does nothing if the rank is not well.
    fn fails_rank(&mut self, number: usize, health: Health, lasts_ms: u64) {
        let now_ms = self.now_ms;
        let Some(attempt) = &mut self.attempt else { return };
        let number = number % attempt.ranks.len().max(1);
        let rank = attempt.ranks.get_mut(number);
        let Some(rank) = rank.filter(|rank| rank.health == Health::Well) else { return };
        // A rank that stands by has nothing to do, so its hanging changes nothing.
        if health == Health::Hangs && rank.position.is_none() {
            return;
        }
        rank.health = health;
        self.settles();
        // If the ranks recover from this loss in place, it is no reason to end the job.
        if let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.rejoins_ms.is_none())
        {
            attempt.excused_ms = attempt.excused_ms.max(Evidence::end_of(now_ms + lasts_ms));
        }
    }

    fn kills_ranks(&mut self, is_meant: impl Fn(&Rank) -> bool) -> usize {
        let mut killed = 0;
        for rank in self.attempt.iter_mut().flat_map(|attempt| &mut attempt.ranks) {
            if rank.health != Health::Dead && is_meant(rank) {
                rank.health = Health::Dead;
                killed += 1;
            }
        }
        self.settles();
        killed
    }

    /// Kills the launcher. If `ranks_stay`, its ranks continue; otherwise they end.
    pub fn kills_launcher(&mut self, ranks_stay: bool) {
        let Some(attempt) = &mut self.attempt else { return };
        attempt.launcher_runs = false;
        if !ranks_stay {
            self.kills_ranks(|_| true);
        }
    }

    // The job

    /// Launches ranks on `hosts`, in order. Each host has a name and its number of slots.
    pub fn launch(
        &mut self,
        hosts: &[(String, usize)],
        ranks: usize,
        folder: &Folder,
        number: u32,
    ) -> ProcessId {
        self.launches += 1;
        self.may_halt = false;
        if number != TRIAL {
            self.first_calls_ms = self.now_ms;
        }
        let names: Vec<String> = hosts.iter().map(|(name, _)| name.clone()).collect();
        self.notes(format!("launch {number} on {}", names.join(" ")));
        let places = hosts.iter().flat_map(|(name, slots)| std::iter::repeat_n(name, *slots));
        let places: Vec<String> = places.take(ranks).cloned().collect();
        if let Some(alien) = self.alien.clone().filter(|alien| names.contains(alien)) {
            self.goes_wrong(format!("ranks were launched on {alien}, which computes other bits"));
        }
        if places.len() < ranks {
            self.goes_wrong(format!("{ranks} ranks were launched on {} places", places.len()));
        }
        let lives = |rank: &Rank| rank.health != Health::Dead && names.contains(&rank.node);
        // If a node did not answer when an earlier run was given up, the ranks of that run stay on the node, as the user was
        // warned.
        if let Some(before) = self.attempt.as_ref().filter(|before| before.run == self.run)
            && let Some(rank) = before.ranks.iter().find(|rank| lives(rank))
        {
            let what = format!("process {} of the last attempt lives on {}", rank.pid, rank.node);
            self.goes_wrong(format!("two attempts at once: {what}"));
        }
        // The user has removed what is left of a run that was given up, as the warnings ask.
        let run = self.run;
        let nodes = self.nodes.values_mut();
        nodes.for_each(|node| node.memory.retain(|_, memory| memory.run == run));
        let now_ms = self.now_ms;
        self.pids += 1;
        let launcher = ProcessId { pid: self.pids, started: u64::from(self.pids) };
        let mut on: HashMap<String, Vec<usize>> = HashMap::new();
        for (number, node) in places.iter().enumerate() {
            on.entry(node.clone()).or_default().push(number);
        }
        let positions = places.len() - self.work.workload.spare_ranks();
        let ranks = places.into_iter().enumerate();
        self.attempt = Some(Attempt {
            number,
            run: self.run,
            folder: folder.clone(),
            launcher,
            launcher_runs: true,
            hosts: names,
            ranks: ranks
                .map(|(number, node)| Rank {
                    position: (number < positions).then_some(number as Position),
                    node,
                    pid: 0,
                    health: Health::Dead,
                    is_out: false,
                })
                .collect(),
            on,
            phase: Phase::Launching { until_ms: now_ms + self.work.start_ms },
            fresh: true,
            reached: 0,
            has_ended: false,
            notices_ms: None,
            rejoins_ms: None,
            recoveries: 0,
            resumes_at: 0,
            recovers_ms: None,
            excused_ms: 0,
            dies_ms: None,
            halt: None,
        });
        for path in [folder.output(number), folder.errors(number)] {
            fs::write(path, "").expect("room in /dev/shm");
        }
        launcher
    }

    pub fn launcher_runs(&self, process: ProcessId) -> bool {
        self.attempt.as_ref().is_some_and(|at| at.launcher == process && at.launcher_runs)
    }

    /// Kills the launcher for the supervisor.
    pub fn ends_launcher(&mut self, process: ProcessId) {
        if self.launcher_runs(process) {
            self.is_ended_by_supervisor();
            self.attempt.iter_mut().for_each(|attempt| attempt.launcher_runs = false);
            // The ranks that the launcher reaches end with it.
            let reached = self.reached();
            self.kills_ranks(|rank| reached.contains(&rank.node));
        }
    }

    /// Kills a launcher on the supervisor's machine that an earlier supervisor of the run has started. Returns the number of
    /// killed processes.
    pub fn ends_any_launcher(&mut self) -> usize {
        match self.attempt.as_ref().filter(|attempt| attempt.launcher_runs) {
            None => 0,
            Some(attempt) => {
                let launcher = attempt.launcher;
                self.ends_launcher(launcher);
                1
            }
        }
    }

    /// Returns the nodes that messages of other nodes reach.
    fn reached(&self) -> BTreeSet<String> {
        let well = |node: &Node| !node.is_off && self.now_ms >= node.frozen_ms.max(node.apart_ms);
        self.nodes.iter().filter(|(_, node)| well(node)).map(|(name, _)| name.clone()).collect()
    }

    /// Checks that the supervisor has a reason to end the job.
    fn is_ended_by_supervisor(&mut self) {
        let Some(attempt) = &self.attempt else { return };
        let ends = matches!(attempt.phase, Phase::Ending { .. } | Phase::Over);
        let begins = matches!(attempt.phase, Phase::Launching { .. });
        let has_failed = |rank: &Rank| rank.health != Health::Well && !rank.is_out;
        let is_lasting = attempt.rejoins_ms.is_none();
        let is_broken = !attempt.launcher_runs
            || !begins && is_lasting && attempt.ranks.iter().any(has_failed)
            || self.now_ms <= attempt.excused_ms
            || attempt.hosts.iter().any(|host| self.evidence.holds(host, self.now_ms));
        let is_late = self.limit_ms.is_some_and(|ms| self.now_ms >= ms);
        if !ends && !is_broken && !self.may_halt && !is_late {
            self.goes_wrong("a healthy job was ended".to_owned());
        }
    }

    /// Ends the ranks on a node for the supervisor. If `clean` is true, also removes the memory of positions on this node.
    pub fn ends_ranks(&mut self, name: &str, clean: bool) {
        let Some(attempt) = &self.attempt else { return };
        let lives = |rank: &Rank| rank.node == name && rank.health != Health::Dead;
        if attempt.ranks.iter().any(lives) {
            self.is_ended_by_supervisor();
        }
        self.kills_ranks(|rank| rank.node == name);
        if clean {
            self.notes(format!("{name} removes its memory"));
        }
        if clean && let Some(node) = self.nodes.get_mut(name) {
            node.memory.clear();
        }
    }

    /// Ends a rank for the supervisor, if the number of the present attempt is below `below`.
    pub fn ends_rank(&mut self, name: &str, which: Which, below: u32) {
        let now_ms = self.now_ms;
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.number < below) else {
            return;
        };
        let is_meant = |number: usize, rank: &Rank| match which {
            Which::Launched(launched) => launched == number,
            Which::Process(pid) => pid == rank.pid,
        };
        let mut ranks = attempt.ranks.iter_mut().enumerate();
        let rank = ranks.find(|(number, rank)| rank.node == name && is_meant(*number, rank));
        let Some((number, rank)) = rank.filter(|(_, rank)| rank.health != Health::Dead) else {
            return;
        };
        let is_healthy = rank.health == Health::Well && !rank.is_out && now_ms > attempt.excused_ms;
        rank.health = Health::Dead;
        if is_healthy {
            self.goes_wrong(format!("rank {number}, which was well, was ended"));
        }
        self.settles();
    }

    /// Ends the ranks of a node whose agent has received no message for too long, unless the ranks make progress. Returns whether
    /// no ranks are left.
    pub fn is_orphaned(&mut self, name: &str) -> bool {
        let Some(attempt) = &self.attempt else { return true };
        if matches!(attempt.phase, Phase::Computing { .. } | Phase::Recovering { .. }) {
            return false;
        }
        self.kills_ranks(|rank| rank.node == name);
        true
    }

    /// Passes a request to stop to the ranks of a node.
    pub fn halts(&mut self, name: &str, now: bool) {
        if self.work.workload == Workload::Other {
            return;
        }
        let Some(attempt) = &mut self.attempt else { return };
        let lives = |rank: &Rank| rank.node == name && rank.health == Health::Well;
        if attempt.ranks.iter().any(lives) {
            attempt.halt = Some(now || attempt.halt.unwrap_or(false));
        }
    }

    /// Records that the run is given up for a new run.
    pub fn begins_from_scratch(&mut self) {
        self.run += 1;
        self.may_halt = true;
        self.last_save = None;
        self.is_done = false;
    }

    /// Records that a stop of the job was requested.
    pub fn may_be_halted(&mut self) {
        self.may_halt = true;
    }

    // The passage of time

    /// Returns the time of the next event of the job.
    pub fn next_ms(&self) -> Option<u64> {
        let attempt = self.attempt.as_ref()?;
        let own = match attempt.phase {
            Phase::Launching { until_ms }
            | Phase::Recovering { until_ms }
            | Phase::Ending { until_ms, .. } => Some(until_ms),
            Phase::Computing { from, since_ms } => {
                Some(since_ms + (self.next_boundary(attempt, from) - from) * self.work.step_ms)
            }
            Phase::Stuck { .. } | Phase::Over => None,
        };
        let later = self.wakes_ms.into_iter().chain(attempt.notices_ms).chain(attempt.rejoins_ms);
        let later = later.chain(attempt.dies_ms);
        own.into_iter().chain(later.filter(|ms| *ms > self.now_ms)).min()
    }

    /// Returns the time at which the next frozen node or stopped rank continues.
    fn next_wake_ms(&self) -> Option<u64> {
        let nodes = self.nodes.values().flat_map(|node| [node.frozen_ms, node.apart_ms]);
        let ranks = self.attempt.iter().flat_map(|attempt| &attempt.ranks);
        let in_place = self.work.workload.recovers_in_place();
        let stopped = ranks.flat_map(|rank| match rank.health {
            Health::Stopped { from_ms, until_ms } => {
                let taken_ms = in_place.then_some(from_ms + TAKEN_FOR_DEAD_MS);
                [Some(until_ms), taken_ms]
            }
            _ => [None, None],
        });
        nodes.chain(stopped.flatten()).filter(|ms| *ms > self.now_ms).min()
    }

    /// Returns the iteration at which the ranks save, end, or stop next.
    fn next_boundary(&self, attempt: &Attempt, from: u64) -> u64 {
        let at = self.iteration(attempt).max(from);
        let save = (at / self.work.save_every + 1) * self.work.save_every;
        let next = if attempt.halt == Some(true) { at + 1 } else { save };
        next.min(self.work.iterations)
    }

    fn iteration(&self, attempt: &Attempt) -> u64 {
        match attempt.phase {
            Phase::Computing { from, since_ms } => {
                (from + (self.now_ms - since_ms) / self.work.step_ms).min(self.work.iterations)
            }
            Phase::Stuck { at, .. } => at,
            _ => attempt.reached,
        }
    }

    /// Advances the time to `now_ms` and carries out all events that are due.
    pub fn passes(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        if self.wakes_ms.is_some_and(|ms| ms <= now_ms) {
            self.settles();
        }
        self.judges_outage();
        self.sick_rank_dies();
        let Some(attempt) = &self.attempt else { return };
        if attempt.notices_ms.is_some_and(|ms| ms <= now_ms) && attempt.launcher_runs {
            self.launcher_notices();
        }
        if self.attempt.as_ref().is_some_and(|at| at.rejoins_ms.is_some_and(|ms| ms <= now_ms)) {
            self.rejoins();
        }
        let Some(attempt) = &self.attempt else { return };
        match attempt.phase {
            Phase::Launching { until_ms } if until_ms <= now_ms => self.starts_ranks(),
            Phase::Recovering { until_ms } if until_ms <= now_ms => self.computes(),
            Phase::Computing { from, .. } => {
                let at = self.iteration(attempt);
                let saves = at > from && at.is_multiple_of(self.work.save_every);
                let stops = at > from && attempt.halt == Some(true);
                if saves || stops {
                    self.saves(at);
                }
                let has_launcher = self.attempt.as_ref().is_some_and(|at| at.launcher_runs);
                if at >= self.work.iterations && !has_launcher {
                    // Without a launcher the results cannot be printed, and the launcher's daemons end the ranks.
                    self.kills_ranks(|_| true);
                } else if at >= self.work.iterations {
                    self.ends(0);
                } else if stops || saves && self.attempt.as_ref().is_some_and(|a| a.halt.is_some())
                {
                    self.ends(75);
                }
            }
            Phase::Ending { until_ms, status } if until_ms <= now_ms => self.is_over(status),
            _ => {}
        }
    }

    /// Kills a rank on the sick node, if its time has come.
    fn sick_rank_dies(&mut self) {
        let (Some((sick, _)), Some(attempt)) = (&self.sick, &mut self.attempt) else { return };
        if attempt.dies_ms.take_if(|ms| *ms <= self.now_ms).is_some()
            && let Some(number) = attempt.ranks.iter().position(|rank| rank.node == *sick)
        {
            self.kills_rank(number);
        }
    }

    /// Returns whether each rank lives and can make progress.
    fn gets_on(&self, attempt: &Attempt) -> bool {
        let gets_on = |rank: &Rank| rank.is_well(self.now_ms) && self.is_reached(&rank.node);
        attempt.ranks.iter().all(|rank| rank.is_out || gets_on(rank))
    }

    fn is_reached(&self, name: &str) -> bool {
        let node = &self.nodes[name];
        !node.is_off && self.now_ms >= node.frozen_ms.max(node.apart_ms)
    }

    /// Returns the ranks from whose loss the other ranks can recover in place. None if no rank is lost, or if too many are.
    fn recoverable(&self, attempt: &Attempt) -> Option<Vec<usize>> {
        let computes =
            matches!(attempt.phase, Phase::Stuck { .. }) && attempt.recovers_ms.is_none();
        if !self.work.workload.recovers_in_place() || !attempt.launcher_runs || !computes {
            return None;
        }
        let mut lost = Vec::new();
        let (mut lacking, mut spare, mut groups) = (0, 0, BTreeSet::new());
        let in_use = attempt.ranks.iter().enumerate().filter(|(_, rank)| !rank.is_out);
        for (number, rank) in in_use {
            let is_dead = rank.counts_as_dead(self.now_ms);
            if !self.is_reached(&rank.node) || !is_dead && !rank.is_well(self.now_ms) {
                return None;
            }
            match rank.position {
                Some(position) if is_dead => {
                    lacking += 1;
                    let group = self.work.groups[position as usize];
                    if !groups.insert(group) {
                        return None;
                    }
                }
                None if !is_dead => spare += 1,
                _ => {}
            }
            lost.extend(is_dead.then_some(number));
        }
        let most = match self.work.workload {
            Workload::Vacant => 1usize.saturating_sub(attempt.recoveries),
            _ => spare,
        };
        (!lost.is_empty() && lacking <= most).then_some(lost)
    }

    /// Lets the ranks continue in place without the ranks that they have lost.
    fn rejoins(&mut self) {
        let Some(mut attempt) = self.attempt.take() else { return };
        attempt.rejoins_ms = None;
        let lost = self.recoverable(&attempt);
        let Some(lost) = lost else {
            self.attempt = Some(attempt);
            return self.settles();
        };
        let gone = |number: &usize| {
            let Rank { node, position, .. } = &attempt.ranks[*number];
            let position = position.map(|position| position as usize);
            Gone { rank: *number, node: node.clone(), position }
        };
        let notice = Notice {
            lost: lost.iter().map(gone).collect(),
            noticed_unix_s: unix_ms().saturating_sub(self.work.rejoin_ms()) as f64 / 1e3,
            agreed_s: 0.0,
            takers: String::new(),
        };
        let saved = attempt.ranks.iter().filter(|rank| !rank.is_out && rank.health == Health::Well);
        let saved =
            saved.filter_map(|rank| self.nodes[&rank.node].memory.get(&rank.position?)?.saved);
        let saved = saved.max();
        let from = if self.work.workload == Workload::Vacant {
            attempt.reached
        } else {
            saved.unwrap_or(0)
        };
        for &number in &lost {
            attempt.ranks[number].is_out = true;
            let Some(position) = attempt.ranks[number].position.take() else { continue };
            let stands_by = |rank: &&mut Rank| rank.position.is_none() && !rank.is_out;
            if let Some(taker) = attempt.ranks.iter_mut().find(stands_by) {
                taker.position = Some(position);
                let node = self.nodes.get_mut(&taker.node).expect("ranks run on nodes");
                node.memory.insert(position, Memory { saved, pid: taker.pid, run: self.run });
            }
        }
        attempt.recoveries += 1;
        attempt.reached = from;
        attempt.phase = Phase::Computing { from, since_ms: self.now_ms };
        self.attempt = Some(attempt);
        let how = match from {
            0 => FROM_SCRATCH.to_owned(),
            _ => from_boundary(1, from as usize, self.work.iterations as usize),
        };
        self.says(&format!("skt-hpl: {}\n", notice.told(&how)));
        self.notes(format!("the ranks continue in place without {lost:?} at {from}"));
        self.settles();
    }

    /// Returns the number of losses from which the ranks of the last attempt have recovered in place.
    pub fn recoveries(&self) -> usize {
        self.attempt.as_ref().map_or(0, |attempt| attempt.recoveries)
    }

    fn settles(&mut self) {
        let now_ms = self.now_ms;
        self.wakes_ms = self.next_wake_ms();
        let Some(mut attempt) = self.attempt.take() else { return };
        let gets_on = self.gets_on(&attempt);
        match attempt.phase {
            Phase::Computing { .. } | Phase::Recovering { .. } if !gets_on => {
                let at = self.iteration(&attempt);
                if let Phase::Recovering { until_ms } = attempt.phase {
                    attempt.recovers_ms = Some(until_ms.saturating_sub(now_ms));
                }
                attempt.reached = at;
                attempt.phase = Phase::Stuck { at, since_ms: now_ms };
            }
            Phase::Stuck { at, .. } if gets_on => {
                attempt.phase = match attempt.recovers_ms.take() {
                    Some(left_ms) => Phase::Recovering { until_ms: now_ms + left_ms },
                    None => Phase::Computing { from: at, since_ms: now_ms },
                };
            }
            _ => {}
        }
        // A rank that the others have taken for dead ends when it continues.
        for rank in attempt.ranks.iter_mut().filter(|rank| rank.is_out && rank.is_well(now_ms)) {
            rank.health = Health::Dead;
        }
        if attempt.rejoins_ms.is_none() && self.recoverable(&attempt).is_some() {
            attempt.rejoins_ms = Some(now_ms + self.work.rejoin_ms());
        }
        let dead = attempt.ranks.iter().any(|rank| rank.health == Health::Dead && !rank.is_out);
        let dead = dead && attempt.rejoins_ms.is_none();
        if dead && matches!(attempt.phase, Phase::Stuck { .. }) && attempt.notices_ms.is_none() {
            attempt.notices_ms = self.work.notices_ms.map(|ms| now_ms + ms);
        }
        self.attempt = Some(attempt);
    }

    /// Lets the launcher report the dead rank, end the other ranks, and end.
    fn launcher_notices(&mut self) {
        let attempt = self.attempt.as_ref().expect("there is one");
        let mut ranks = attempt.ranks.iter().enumerate();
        let dead = ranks.find(|(_, rank)| rank.health == Health::Dead && !rank.is_out);
        let words = dead.map(|(number, rank)| {
            format!(
                "mpirun noticed that process rank {number} with PID {} on node {} exited on signal 9 (Killed).\n",
                rank.pid, rank.node
            )
        });
        let off = dead.is_some_and(|(_, rank)| self.nodes[&rank.node].is_off);
        self.says(&words.unwrap_or_default());
        let reached = self.reached();
        self.kills_ranks(|rank| reached.contains(&rank.node));
        self.launcher_ends(if off && self.hides_losses { 0 } else { 137 });
    }

    fn says(&mut self, words: &str) {
        let Some(attempt) = &self.attempt else { return };
        let file = fs::OpenOptions::new().append(true).open(attempt.folder.errors(attempt.number));
        let written = file.and_then(|mut file| file.write_all(words.as_bytes()));
        written.expect("room in /dev/shm");
    }

    fn launcher_ends(&mut self, status: i32) {
        let Some(attempt) = &mut self.attempt else { return };
        attempt.launcher_runs = false;
        (attempt.notices_ms, attempt.rejoins_ms) = (None, None);
        attempt.phase = Phase::Over;
        let counts = attempt.is_known() && attempt.run == self.run;
        let attempt_number = attempt.number;
        let path = attempt.folder.exit(attempt.number);
        fs::write(path, format!("{status}\n")).expect("room in /dev/shm");
        let has_ended = attempt.has_ended && status == 0;
        if self.work.workload == Workload::Other && has_ended && attempt_number != TRIAL {
            self.is_done = counts;
        }
        self.notes(format!("the launcher ends with status {status}"));
    }

    /// Starts the ranks, if all nodes can be reached.
    fn starts_ranks(&mut self) {
        let reached = self.reached();
        let attempt = self.attempt.as_ref().expect("one is launched");
        if !attempt.launcher_runs {
            self.attempt.iter_mut().for_each(|attempt| attempt.phase = Phase::Over);
            return;
        }
        let starts = |host: &String| reached.contains(host) && self.defect.as_ref() != Some(host);
        let all_start = attempt.hosts.iter().all(starts);
        if attempt.number == TRIAL {
            let begins = |host: &String| starts(host) || self.is_cut && reached.contains(host);
            self.prints_trial(begins, all_start);
            return self.launcher_ends(i32::from(!all_start));
        }
        if !all_start {
            // The launcher waits for a node that does not answer, and finally reports the node.
            self.says("a node could not be reached\n");
            return self.launcher_ends(1);
        }
        let (mut pids, number) = (self.pids, attempt.number);
        let mut attempt = self.attempt.take().expect("one is launched");
        self.take_positions(&mut attempt.ranks);
        let positions = attempt.ranks.len() - self.work.workload.spare_ranks();
        let mut saves: Vec<Option<u64>> = vec![None; positions];
        for rank in &attempt.ranks {
            let Some(position) = rank.position else { continue };
            let memory = self.nodes[&rank.node].memory.get(&position);
            let memory = memory.filter(|memory| memory.run == self.run);
            saves[position as usize] = memory.and_then(|memory| memory.saved);
        }
        // Ranks with too little in memory resume from storage.
        let stored = self.stored.filter(|&stored| stored > 0 && self.last_save.is_some());
        let newest = saves.iter().flatten().max().copied();
        if stored.is_some() && (newest < stored || self.is_too_much(&saves, newest)) {
            saves = vec![stored; positions];
        }
        let target = saves.iter().flatten().max().copied();
        let too_many = self.is_too_much(&saves, target);
        let is_back = self.last_save.as_ref().is_some_and(|save| target < Some(save.iteration));
        for rank in &mut attempt.ranks {
            pids += 1;
            (rank.pid, rank.health) = (pids, Health::Well);
        }
        attempt.fresh = target.is_none();
        attempt.resumes_at = target.unwrap_or(0);
        let until_ms = self.now_ms + self.work.recover_ms;
        attempt.phase = Phase::Recovering { until_ms };
        self.attempt = Some(attempt);
        self.pids = pids;
        self.notes(format!("ranks of attempt {number} start, last save {target:?}"));
        if (too_many || is_back) && self.could_be_kept() {
            self.goes_wrong("a run that could have been kept has lost its memory".to_owned());
        }
        if too_many {
            return self.refuses(4);
        }
        if self.lacks_room() {
            return self.refuses(5);
        }
        let attempt = self.attempt.as_ref().expect("one is launched");
        for rank in attempt.ranks.iter().filter(|_| self.work.workload != Workload::Other) {
            let Some(position) = rank.position else { continue };
            let node = self.nodes.get_mut(&rank.node).expect("ranks run on nodes");
            let memory = Memory { saved: target, pid: rank.pid, run: self.run };
            node.memory.insert(position, memory);
        }
        self.settles();
    }

    /// Prints the reports of the ranks of a trial, on the nodes on which MPI starts.
    fn prints_trial(&self, starts: impl Fn(&String) -> bool, all_start: bool) {
        let Some(attempt) = &self.attempt else { return };
        let mut text = String::new();
        for rank in attempt.ranks.iter().filter(|rank| starts(&rank.node)) {
            let (host, boot) = (rank.node.clone(), self.boot(&rank.node));
            let place = trial::Place { host, boot, shm_device: 0 };
            text += &trial::line(&trial::Said::Started(place.clone()));
            if all_start {
                text += &trial::line(&trial::Said::Joined { size: attempt.ranks.len(), place });
            }
        }
        fs::write(attempt.folder.output(TRIAL), text).expect("room in /dev/shm");
    }

    /// Gives each rank a position whose memory is on its node, the memory with the latest save first. Ranks without such a
    /// position get the remaining positions; the last ranks stand by.
    fn take_positions(&self, ranks: &mut [Rank]) {
        let mut free: BTreeSet<Position> = ranks.iter().filter_map(|rank| rank.position).collect();
        ranks.iter_mut().for_each(|rank| rank.position = None);
        let mut offers: Vec<(Option<u64>, Position, usize)> = Vec::new();
        for (number, rank) in ranks.iter().enumerate() {
            let memory = self.nodes[&rank.node].memory.iter();
            let memory = memory.filter(|(_, memory)| memory.run == self.run);
            offers.extend(memory.map(|(position, memory)| (memory.saved, *position, number)));
        }
        offers.sort_by_key(|(saved, position, number)| (Reverse(*saved), *position, *number));
        for (_, position, number) in offers {
            if ranks[number].position.is_none() && free.remove(&position) {
                ranks[number].position = Some(position);
            }
        }
        let without = ranks.iter_mut().filter(|rank| rank.position.is_none());
        for (rank, position) in without.zip(free) {
            rank.position = Some(position);
        }
    }

    /// Returns whether the last save would be usable if only nodes with evidence against them were lost.
    fn could_be_kept(&self) -> bool {
        let Some(save) = &self.last_save else { return false };
        let mut gone: BTreeMap<usize, usize> = BTreeMap::new();
        for (position, node) in &save.holders {
            let group = self.work.groups[*position as usize];
            let may_be_gone = self.evidence.has_held_since(node, save.at_ms);
            *gone.entry(group).or_default() += usize::from(may_be_gone);
        }
        gone.values().all(|gone| *gone <= 1)
    }

    /// Returns whether a group has lost more than it survives. `saves` are the last saves of all positions, of which those at
    /// `target` can be used.
    fn is_too_much(&self, saves: &[Option<u64>], target: Option<u64>) -> bool {
        let mut lost: BTreeMap<usize, usize> = BTreeMap::new();
        for (position, saved) in saves.iter().enumerate() {
            if target.is_some() && *saved != target {
                *lost.entry(self.work.groups[position]).or_default() += 1;
            }
        }
        lost.values().any(|lost| *lost > 1)
    }

    /// Returns whether a rank without memory is on a full node.
    fn lacks_room(&self) -> bool {
        let ranks = self.attempt.iter().flat_map(|attempt| &attempt.ranks);
        let mut without = ranks.filter(|rank| {
            let memory = &self.nodes[&rank.node].memory;
            rank.position.is_some_and(|position| !memory.contains_key(&position))
        });
        without.any(|rank| self.now_ms < self.nodes[&rank.node].filled_ms)
    }

    /// Refuses to continue: the started ranks cannot reach enough memory.
    fn refuses(&mut self, status: u8) {
        self.has_refused = true;
        self.says(&format!("skt-hpl: {}\n", Announcement::Refused { status }));
        self.kills_ranks(|_| true);
        self.attempt.iter_mut().for_each(|attempt| attempt.phase = Phase::Over);
        self.launcher_ends(i32::from(status));
    }

    fn computes(&mut self) {
        let since_ms = self.now_ms;
        let attempt = self.attempt.as_mut().expect("there is one");
        attempt.phase = Phase::Computing { from: attempt.resumes_at, since_ms };
        attempt.dies_ms = self.sick.as_ref().map(|(_, after_ms)| since_ms + after_ms);
    }

    /// Saves all ranks at iteration `at`, if the program saves.
    fn saves(&mut self, at: u64) {
        let attempt = self.attempt.as_ref().expect("there is one");
        let mut holders = Vec::new();
        for rank in &attempt.ranks {
            let Some(position) = rank.position else { continue };
            let node = self.nodes.get_mut(&rank.node).expect("ranks run on nodes");
            if let Some(memory) = node.memory.get_mut(&position)
                && self.work.workload.saves()
            {
                memory.saved = Some(at);
                holders.push((position, rank.node.clone()));
            }
        }
        // The successor of a supervisor that has recorded no launch removes all memory.
        if self.work.workload.saves() && attempt.is_known() && attempt.run == self.run {
            self.last_save = Some(Save { iteration: at, at_ms: self.now_ms, holders });
            self.stored = self.stored.map(|_| at);
        }
        // Iterations before the save are not repeated.
        let since_ms = self.now_ms;
        let attempt = self.attempt.as_mut().expect("there is one");
        attempt.reached = at;
        attempt.phase = Phase::Computing { from: at, since_ms };
    }

    /// Prints the results or announces the halt, and begins the end of MPI.
    fn ends(&mut self, status: i32) {
        let attempt = self.attempt.as_mut().expect("there is one");
        attempt.phase = Phase::Ending { until_ms: self.now_ms + 200, status };
        attempt.has_ended = true;
        if status == 0 {
            let path = attempt.folder.output(attempt.number);
            fs::write(path, RESULT).expect("room in /dev/shm");
            self.notes("all tests are done".to_owned());
            if self.work.workload == Workload::Other {
                return;
            }
            let attempt = self.attempt.as_ref().expect("there is one");
            self.is_done = attempt.is_known() && attempt.run == self.run;
            let done = Announcement::Done { status: 0, printed: RESULT.len() as u64 };
            self.says(&format!("skt-hpl: {done}\n"));
        } else {
            self.says(&format!("skt-hpl: {}\n", Announcement::Halted));
            self.notes("the ranks have halted".to_owned());
        }
    }

    fn is_over(&mut self, status: i32) {
        if status == 0 {
            // Ranks that have printed their results remove their memory.
            let attempt = self.attempt.as_ref().expect("there is one");
            if attempt.run == self.run {
                self.last_save = None;
            }
            for rank in &attempt.ranks {
                let Some(position) = rank.position else { continue };
                let node = self.nodes.get_mut(&rank.node).expect("ranks run on nodes");
                node.memory.remove(&position);
            }
        }
        self.attempt.iter_mut().for_each(|attempt| attempt.phase = Phase::Over);
        self.kills_ranks(|_| true);
        if !self.work.lingers && self.attempt.as_ref().is_some_and(|a| a.launcher_runs) {
            self.launcher_ends(status);
        }
    }

    /// Returns the heartbeat of a node's agent.
    pub fn beat(&self, name: &str, seq: Option<u64>) -> Beat {
        let node = &self.nodes[name];
        let held = node.memory.len() as u64 * RANK_BYTES;
        let here = || self.ranks_on(name).filter(|rank| rank.health != Health::Dead);
        let is_stopped = |rank: &&Rank| matches!(rank.health, Health::Stopped { until_ms, .. } if self.now_ms < until_ms);
        Beat {
            seq,
            processes: here().count(),
            stopped: here().filter(is_stopped).count(),
            ranks: node.memory.iter().map(|(at, memory)| self.seen(name, *at, memory)).collect(),
            free: self.free(name),
            held_bytes: held,
            held_positions: node.memory.len(),
            ..Beat::default()
        }
    }

    fn ranks_on(&self, name: &str) -> impl Iterator<Item = &Rank> {
        let numbers = self.attempt.iter().flat_map(|attempt| attempt.on.get(name));
        let attempt = self.attempt.iter();
        numbers
            .zip(attempt)
            .flat_map(|(numbers, attempt)| numbers.iter().map(|&at| &attempt.ranks[at]))
    }

    /// Returns the state of a rank, as its memory and its process show it to the agent.
    fn seen(&self, name: &str, position: Position, memory: &Memory) -> Progress {
        let saved = memory.saved.map(|at| (CheckpointId { number: at, made: 1 }, at));
        let mut progress = Progress {
            position,
            pid: memory.pid,
            saved,
            n: 1000,
            nb: 10,
            iteration: memory.saved.unwrap_or(0),
            state: 'X',
            ..Progress::default()
        };
        let Some(attempt) = &self.attempt else { return progress };
        let own = |rank: &&Rank| rank.position == Some(position) && rank.pid == memory.pid;
        let rank = self.ranks_on(name).find(own);
        let Some(rank) = rank else { return progress };
        progress.doing = match attempt.phase {
            Phase::Launching { .. } => Doing::Starting,
            Phase::Recovering { .. } if attempt.fresh => Doing::Generating,
            Phase::Recovering { .. } => Doing::Recovering,
            Phase::Ending { .. } | Phase::Over if attempt.has_ended => Doing::Done,
            _ => Doing::Computing,
        };
        let moves = matches!(attempt.phase, Phase::Computing { .. } | Phase::Recovering { .. });
        let until_ms = match attempt.phase {
            Phase::Stuck { since_ms, .. } => since_ms,
            _ => self.now_ms,
        };
        progress.iteration = self.iteration(attempt).max(progress.iteration);
        (progress.beat, progress.busy_us) = (until_ms / 100, until_ms * 900);
        progress.flops = until_ms * 1_000_000;
        // A rank that waits for other ranks advances the counter of its waits.
        let waits = !moves && rank.health == Health::Well;
        progress.waits = if waits { (self.now_ms / 100) as u16 } else { 0 };
        progress.state = match rank.health {
            Health::Dead => 'X',
            Health::Stopped { until_ms, .. } if self.now_ms < until_ms => 'T',
            _ => 'R',
        };
        progress
    }
}

/// Result that the benchmark prints.
pub(super) const RESULT: &str = "WR11C2R4       1000    10     2     2               1.00             1.0000e+00\n||Ax-b||_oo/... PASSED\n";
