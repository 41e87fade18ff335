//! The watchdog: tells a healthy run from a broken one, by what it is told and when. Pure.
//!
//! The restart loop feeds every heartbeat, every lost connection and the launcher's end into
//! [`Watch::see`], and the clock into [`Watch::tick`]; out come verdicts. No thread, no socket, no system clock
//! in here: a silent power-off that mpirun sleeps through for a quarter of an hour is a few lines of test.
//!
//! Times are milliseconds of any clock that only goes forward.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::events::FaultKind;
use super::pace::{Limits, Pace, Work};
use crate::memory::header::EpochId;

use super::progress::{Doing, Progress, words};

/// After how long what is taken for what.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// A node without a heartbeat for so long is lost.
    pub silence_ms: u64,
    /// A connection that ended may take so long to be made again.
    pub redial_ms: u64,
    /// A dead rank waits so long for the launcher's exit status, which says more.
    pub exit_grace_ms: u64,
    /// The same where all ranks are gone.
    pub end_grace_ms: u64,
    /// A rank that takes so many times its usual iteration hangs...
    pub hang_factor: f64,
    /// ...but never before this.
    pub hang_min_ms: u64,
    /// The same for what has no yardstick: starting, generating, saving, restoring, solving.
    pub patience_ms: u64,
    /// The first rank must show up so soon after the launch.
    pub start_ms: u64,
    /// A node whose replies take so many times the others' (and at least `slow_min_ms`) is slow.
    pub slow_factor: f64,
    pub slow_min_ms: f64,
    /// A node whose ranks compute so many times slower than the others', for so long, is slow too.
    pub pace_factor: f64,
    pub pace_ms: u64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            silence_ms: 4000,
            redial_ms: 700,
            exit_grace_ms: 300,
            end_grace_ms: 5000,
            hang_factor: 3.0,
            hang_min_ms: 9_000,
            patience_ms: 120_000,
            start_ms: 300_000,
            slow_factor: 8.0,
            slow_min_ms: 20.0,
            pace_factor: 1.5,
            pace_ms: 15_000,
        }
    }
}

/// A rank as its node's agent sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSeen {
    pub progress: Progress,
    /// State letter of the process as in /proc/PID/stat; 'X' where there is none any more.
    pub state: char,
}

/// What the restart loop is told by the outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// A node's agent has answered for the first time on this connection.
    AgentUp { node: usize, boot: String },
    /// A heartbeat came back.
    Beat {
        node: usize,
        round_trip_ms: f64,
        /// Processes of the job on the node, ranks or not, and how many of them are stopped.
        processes: usize,
        stopped: usize,
        ranks: Vec<RankSeen>,
    },
    /// The connection to the node's agent ended.
    Closed { node: usize },
    /// The launcher ended with this status; None where it vanished without one.
    LauncherEnded { code: Option<i32> },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Breakage {
    pub kind: FaultKind,
    /// Last moment at which what failed was known to be well.
    pub struck_ms: u64,
    pub node: Option<usize>,
    pub position: Option<u32>,
    pub iteration: u64,
    pub detail: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The connection should be made again, at once.
    Redial { node: usize },
    /// It was made again and the ranks are well.
    AgentRestarted { node: usize },
    /// The launcher ended; whether that is the end of the run is the status's to say.
    Ended { code: Option<i32>, struck_ms: u64 },
    /// The run is broken. Given once; nothing more follows.
    Broken(Breakage),
    /// A node has become much slower than the others; given once per node.
    Slow { node: usize, detail: String },
    /// Ranks compute for the first time in this incarnation.
    Computing { iteration: u64 },
    /// A save was seen to end.
    Saved { iteration: u64 },
}

#[derive(Clone, Debug)]
struct Node {
    name: String,
    heard_ms: u64,
    closed_ms: Option<u64>,
    boot: Option<String>,
    /// Smoothed round trip, and how many went into it.
    round_trip_ms: f64,
    beats: u32,
    slow_beats: u32,
    told_slow: bool,
    processes: usize,
    stopped_since_ms: Option<u64>,
}

#[derive(Clone, Debug)]
struct Rank {
    node: usize,
    pid: u32,
    last: Progress,
    state: char,
    changed_ms: u64,
    iteration_ms: u64,
    stopped_since_ms: Option<u64>,
    died: Option<(u64, u64)>,
}

impl Rank {
    fn is_through(&self) -> bool {
        self.died.is_some() || self.last.doing == Doing::Done
    }
}

/// How many iterations back the usual time is looked for.
const RECENT: usize = 8;

/// One incarnation under watch.
#[derive(Clone, Debug)]
pub struct Watch {
    thresholds: Thresholds,
    nodes: Vec<Node>,
    ranks: BTreeMap<u32, Rank>,
    started_ms: u64,
    ticked_ms: u64,
    over: bool,
    end_expected: bool,
    progress_shows: bool,
    seen_processes: bool,
    computing: bool,
    saved: Option<EpochId>,
    test: u32,
    /// Times between iterations of the foremost rank.
    recent_ms: VecDeque<u64>,
    foremost: u64,
    foremost_ms: Option<u64>,
    /// The longest that nobody got on outside of iterations.
    longest_other_ms: u64,
    /// Since when all compute.
    in_step_since_ms: Option<u64>,
    pace: Pace,
}

impl Watch {
    /// Begins to watch a job just launched on these nodes.
    pub fn new(thresholds: Thresholds, nodes: &[String], now_ms: u64) -> Self {
        Self {
            thresholds,
            nodes: nodes
                .iter()
                .map(|name| Node {
                    name: name.clone(),
                    heard_ms: now_ms,
                    closed_ms: None,
                    boot: None,
                    round_trip_ms: 0.0,
                    beats: 0,
                    slow_beats: 0,
                    told_slow: false,
                    processes: 0,
                    stopped_since_ms: None,
                })
                .collect(),
            ranks: BTreeMap::new(),
            started_ms: now_ms,
            ticked_ms: now_ms,
            over: false,
            end_expected: false,
            progress_shows: false,
            seen_processes: false,
            computing: false,
            saved: None,
            test: 0,
            recent_ms: VecDeque::new(),
            foremost: 0,
            foremost_ms: None,
            longest_other_ms: 0,
            in_step_since_ms: None,
            pace: Pace::new(Limits {
                factor: thresholds.pace_factor,
                after_ms: thresholds.pace_ms,
            }),
        }
    }

    /// The furthest iteration any rank has been seen at.
    pub fn iteration(&self) -> u64 {
        self.foremost
    }

    /// What most ranks are busy with.
    pub fn doing(&self) -> Doing {
        let mut votes: Vec<(usize, Doing)> = Vec::new();
        for rank in self.ranks.values() {
            match votes.iter_mut().find(|(_, d)| *d == rank.last.doing) {
                Some(vote) => vote.0 += 1,
                None => votes.push((1, rank.last.doing)),
            }
        }
        votes.into_iter().max_by_key(|(n, _)| *n).map_or(Doing::Starting, |(_, d)| d)
    }

    /// Usual milliseconds an iteration takes, once three have been seen.
    pub fn iteration_ms(&self) -> Option<u64> {
        (self.recent_ms.len() >= 3).then(|| self.recent_ms.iter().copied().max().unwrap_or(0))
    }

    pub fn round_trip_ms(&self, node: usize) -> Option<f64> {
        (self.nodes[node].beats > 0).then_some(self.nodes[node].round_trip_ms)
    }

    /// Every rank shows progress once MPI has started; of another program nobody knows.
    pub fn progress_shows(mut self, shows: bool) -> Self {
        self.progress_shows = shows;
        self
    }

    /// Whether all ranks that have shown up are done, or gone.
    pub fn all_through(&self) -> bool {
        self.ranks.values().all(Rank::is_through)
    }

    fn at_work(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.values().filter(|rank| !rank.is_through())
    }

    /// When any rank that still works last got on.
    fn latest_ms(&self) -> Option<u64> {
        self.at_work().map(|rank| rank.changed_ms).max()
    }

    /// The ranks have been asked to stop: that they go is no fault.
    pub fn expect_end(&mut self) {
        self.end_expected = true;
    }

    pub fn see(&mut self, now_ms: u64, seen: Seen) -> Vec<Verdict> {
        if self.over {
            return Vec::new();
        }
        match seen {
            Seen::AgentUp { node, boot } => self.agent_up(now_ms, node, boot),
            Seen::Beat { node, round_trip_ms, processes, stopped, ranks } => {
                let state = &mut self.nodes[node];
                state.processes = processes;
                state.stopped_since_ms =
                    (stopped > 0).then(|| state.stopped_since_ms.unwrap_or(now_ms));
                self.seen_processes |= processes > 0;
                self.beat(now_ms, node, round_trip_ms, &ranks)
            }
            Seen::Closed { node } => {
                let state = &mut self.nodes[node];
                if state.closed_ms.is_some() {
                    return Vec::new();
                }
                state.closed_ms = Some(now_ms);
                vec![Verdict::Redial { node }]
            }
            Seen::LauncherEnded { code } => {
                self.over = true;
                let died = self.ranks.values().filter_map(|r| r.died).map(|d| d.0).min();
                vec![Verdict::Ended { code, struck_ms: died.unwrap_or(self.ticked_ms.min(now_ms)) }]
            }
        }
    }

    fn broken(&mut self, breakage: Breakage) -> Vec<Verdict> {
        self.over = true;
        vec![Verdict::Broken(breakage)]
    }

    fn agent_up(&mut self, now_ms: u64, node: usize, boot: String) -> Vec<Verdict> {
        let state = &mut self.nodes[node];
        let again = state.closed_ms.take().is_some();
        let heard_ms = std::mem::replace(&mut state.heard_ms, now_ms);
        let same_boot = state.boot.as_ref().is_none_or(|b| *b == boot);
        if !same_boot {
            let detail = format!("{} was started anew: its memory is empty", state.name);
            return self.broken(Breakage {
                kind: FaultKind::NodeRebooted,
                struck_ms: heard_ms,
                node: Some(node),
                position: None,
                iteration: self.foremost,
                detail,
            });
        }
        state.boot = Some(boot);
        if again { vec![Verdict::AgentRestarted { node }] } else { Vec::new() }
    }

    fn beat(
        &mut self,
        now_ms: u64,
        node: usize,
        round_trip_ms: f64,
        ranks: &[RankSeen],
    ) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        let before_ms = std::mem::replace(&mut self.nodes[node].heard_ms, now_ms);
        for seen in ranks {
            self.rank(now_ms, before_ms, node, seen, &mut verdicts);
        }
        // Who has removed its memory is through, although its process may take a moment to end.
        for (position, rank) in &mut self.ranks {
            let here = || ranks.iter().any(|seen| seen.progress.position == *position);
            if rank.node == node && rank.last.doing != Doing::Done && !here() {
                rank.last.doing = Doing::Done;
                rank.changed_ms = now_ms;
            }
        }
        verdicts.extend(self.judge_speed(node, round_trip_ms));
        verdicts
    }

    fn rank(
        &mut self,
        now_ms: u64,
        before_ms: u64,
        node: usize,
        seen: &RankSeen,
        verdicts: &mut Vec<Verdict>,
    ) {
        let progress = seen.progress;
        let latest_ms = self.latest_ms().unwrap_or(now_ms);
        let gone = matches!(seen.state, 'X' | 'Z');
        let Some(rank) = self.ranks.get_mut(&progress.position) else {
            // Memory that an earlier incarnation left behind is not a rank that died.
            if gone {
                return;
            }
            self.ranks.insert(
                progress.position,
                Rank {
                    node,
                    pid: progress.pid,
                    last: progress,
                    state: seen.state,
                    changed_ms: now_ms,
                    iteration_ms: now_ms,
                    stopped_since_ms: None,
                    died: None,
                },
            );
            self.advance(now_ms, progress, verdicts);
            return;
        };
        if rank.pid != progress.pid {
            if gone {
                return;
            }
            rank.pid = progress.pid;
            rank.died = None;
        }
        rank.node = node;
        rank.state = seen.state;
        if gone {
            // A rank that had finished may go.
            if rank.died.is_none()
                && rank.last.doing != Doing::Done
                && progress.doing != Doing::Done
            {
                rank.died = Some((before_ms, now_ms));
            }
            return;
        }
        rank.stopped_since_ms = match seen.state {
            'T' | 't' => rank.stopped_since_ms.or(Some(now_ms)),
            _ => None,
        };
        if progress.doing == Doing::Computing {
            let Progress { position, pid, busy_us, flops, .. } = progress;
            self.pace.see(position, node, Work { pid, busy_us, flops });
        }
        let last = rank.last;
        if (last.beat, last.iteration, last.doing)
            != (progress.beat, progress.iteration, progress.doing)
        {
            if !matches!(last.doing, Doing::Computing | Doing::Done) {
                self.longest_other_ms = self.longest_other_ms.max(now_ms - latest_ms);
            }
            rank.changed_ms = now_ms;
            if last.iteration != progress.iteration {
                rank.iteration_ms = now_ms;
            }
            rank.last = progress;
        }
        self.advance(now_ms, progress, verdicts);
    }

    /// What a new sample says about the run as a whole.
    fn advance(&mut self, now_ms: u64, progress: Progress, verdicts: &mut Vec<Verdict>) {
        let works = matches!(
            progress.doing,
            Doing::Computing | Doing::Saving | Doing::Solving | Doing::Verifying | Doing::Done
        );
        if works && !self.computing {
            self.computing = true;
            self.foremost = progress.iteration;
            self.foremost_ms = Some(now_ms);
            verdicts.push(Verdict::Computing { iteration: progress.iteration });
        }
        if let Some((epoch, at)) = progress.saved
            && self.computing
            && self.saved.is_none_or(|last| last < epoch)
        {
            // What was held when we began to look is no news.
            if self.saved.replace(epoch).is_some() || epoch.epoch == 1 {
                verdicts.push(Verdict::Saved { iteration: at });
            }
        }
        if progress.test > self.test {
            // Iterations count from zero again.
            self.test = progress.test;
            self.foremost = progress.iteration;
            self.foremost_ms = Some(now_ms);
            self.recent_ms.clear();
        }
        if self.computing && progress.test == self.test && progress.iteration > self.foremost {
            if let Some(last_ms) = self.foremost_ms {
                // Several iterations between two samples share the time.
                let each = (now_ms - last_ms).div_ceil(progress.iteration - self.foremost);
                if self.recent_ms.len() == RECENT {
                    self.recent_ms.pop_front();
                }
                self.recent_ms.push_back(each);
            }
            self.foremost = progress.iteration;
            self.foremost_ms = Some(now_ms);
        }
    }

    fn judge_speed(&mut self, node: usize, round_trip_ms: f64) -> Option<Verdict> {
        let state = &mut self.nodes[node];
        state.beats += 1;
        state.round_trip_ms = if state.beats == 1 {
            round_trip_ms
        } else {
            0.7 * state.round_trip_ms + 0.3 * round_trip_ms
        };
        let mut others: Vec<f64> = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(at, n)| *at != node && n.beats > 0)
            .map(|(_, n)| n.round_trip_ms)
            .collect();
        if others.len() < 2 {
            return None;
        }
        others.sort_by(f64::total_cmp);
        let usual = others[others.len() / 2];
        let state = &mut self.nodes[node];
        let slow = state.round_trip_ms > self.thresholds.slow_min_ms
            && state.round_trip_ms > self.thresholds.slow_factor * usual;
        state.slow_beats = if slow { state.slow_beats + 1 } else { 0 };
        if state.slow_beats < 5 || state.told_slow {
            return None;
        }
        state.told_slow = true;
        Some(Verdict::Slow {
            node,
            detail: format!(
                "replies take {:.0} ms, the other nodes' {usual:.1} ms",
                state.round_trip_ms
            ),
        })
    }

    /// Passes judgement on what has not happened. To be called several times a second.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Verdict> {
        if self.over {
            return Vec::new();
        }
        let gap_ms = now_ms.saturating_sub(self.ticked_ms);
        self.ticked_ms = now_ms;
        if gap_ms > 1000 {
            // It was us who stood still (suspended, or starved). Nobody could be heard meanwhile.
            self.forgive(gap_ms);
            return Vec::new();
        }
        let t = self.thresholds;

        // Where all have gone at once, the benchmark has most likely ended by itself, and its exit status
        // is on its way.
        let all_gone = self.end_expected
            || self.ranks.values().all(|r| r.died.is_some() || r.last.doing == Doing::Done);
        let grace_ms = if all_gone { t.end_grace_ms } else { t.exit_grace_ms };
        if let Some(rank) = self
            .ranks
            .values()
            .find(|r| r.died.is_some_and(|(_, noticed)| now_ms - noticed >= grace_ms))
        {
            let (struck_ms, _) = rank.died.unwrap_or_default();
            let (node, position, iteration) = (rank.node, rank.last.position, rank.last.iteration);
            return self.broken(Breakage {
                kind: FaultKind::RankDied,
                struck_ms,
                node: Some(node),
                position: Some(position),
                iteration: self.foremost.max(iteration),
                detail: format!(
                    "the process of position {position} on {} is gone, while it was {}",
                    self.nodes[node].name,
                    words(self.ranks[&position].last.doing)
                ),
            });
        }

        for (at, node) in self.nodes.iter().enumerate() {
            let quiet_ms = now_ms.saturating_sub(node.heard_ms);
            let (kind, detail) = if node
                .closed_ms
                .is_some_and(|closed| now_ms.saturating_sub(closed) >= t.redial_ms)
            {
                (
                    FaultKind::NodeGone,
                    format!("the connection to {} ended and cannot be made again", node.name),
                )
            } else if quiet_ms >= t.silence_ms {
                (
                    FaultKind::NodeSilent,
                    format!("no heartbeat from {} for {:.1} s", node.name, quiet_ms as f64 / 1e3),
                )
            } else {
                continue;
            };
            let struck_ms = node.heard_ms;
            return self.broken(Breakage {
                kind,
                struck_ms,
                node: Some(at),
                position: None,
                iteration: self.foremost,
                detail,
            });
        }

        let nobody = !self.seen_processes || (self.progress_shows && self.ranks.is_empty());
        if nobody && now_ms - self.started_ms >= t.start_ms {
            let detail = match self.seen_processes {
                false => "no process of the run has appeared on any node",
                true => {
                    "its processes are there, but no rank has begun to work: MPI does not start"
                }
            };
            return self.broken(Breakage {
                kind: FaultKind::LaunchFailed,
                struck_ms: self.started_ms,
                node: None,
                position: None,
                iteration: 0,
                detail: format!("{} s after the launch {detail}", t.start_ms / 1000),
            });
        }
        let mut verdicts = self.find_hang(now_ms);
        for slow in self.pace.tick(now_ms) {
            verdicts.push(Verdict::Slow {
                node: slow.node,
                detail: format!(
                    "position {} takes {:.1} times the others' time to compute the same: its processor is \
                     throttled, or something else runs there",
                    slow.position, slow.times
                ),
            });
        }
        verdicts
    }

    fn find_hang(&mut self, now_ms: u64) -> Vec<Verdict> {
        let t = self.thresholds;
        let usual_ms = self.iteration_ms();
        // Whoever computes waits for others an iteration at most. In anything else a rank may wait for long
        // for one that has more to do: there nothing hangs as long as somebody gets on.
        let in_step = self.at_work().all(|rank| rank.last.doing == Doing::Computing);
        self.in_step_since_ms = in_step.then(|| self.in_step_since_ms.unwrap_or(now_ms));
        let latest_ms = self.latest_ms().unwrap_or(now_ms);
        let limit_ms = match usual_ms {
            Some(usual) if in_step => t.hang_min_ms.max((t.hang_factor * usual as f64) as u64),
            // Nothing to compare with but what the like has taken before.
            _ => t.patience_ms.max((t.hang_factor * self.longest_other_ms as f64) as u64),
        };
        let still_since_ms = |rank: &Rank| {
            self.in_step_since_ms.map_or(latest_ms, |since| since.max(rank.changed_ms))
        };
        // One that is done waits for others; if all are, they wait for the MPI library or the launcher.
        if let Some(last_ms) = self.ranks.values().map(|rank| rank.changed_ms).max()
            && self.all_through()
            && now_ms.saturating_sub(last_ms) >= t.patience_ms
        {
            let waited_s = now_ms.saturating_sub(last_ms) / 1000;
            return self.broken(Breakage {
                kind: FaultKind::RankHung,
                struck_ms: last_ms,
                node: None,
                position: None,
                iteration: self.foremost,
                detail: format!("all ranks are through, but have not ended for {waited_s} s"),
            });
        }
        // Also one that shows no progress yet, or never will: the launcher's own.
        if let Some(at) = self.nodes.iter().position(|node| {
            node.stopped_since_ms.is_some_and(|since| now_ms - since >= t.hang_min_ms)
        }) && !self.ranks.values().any(|rank| rank.stopped_since_ms.is_some())
        {
            let since_ms = self.nodes[at].stopped_since_ms.unwrap_or(now_ms);
            let detail = format!(
                "a process of the run on {} that is no working rank has been stopped (state T) for {:.1} s",
                self.nodes[at].name,
                (now_ms - since_ms) as f64 / 1e3
            );
            return self.broken(Breakage {
                kind: FaultKind::RankHung,
                struck_ms: since_ms,
                node: Some(at),
                position: None,
                iteration: self.foremost,
                detail,
            });
        }
        let stopped = |rank: &Rank| {
            rank.stopped_since_ms.is_some_and(|since| now_ms - since >= t.hang_min_ms)
        };
        let hangs = self.ranks.values().any(|rank| rank.died.is_none() && stopped(rank))
            || self.at_work().any(|rank| now_ms.saturating_sub(still_since_ms(rank)) >= limit_ms);
        if !hangs {
            return Vec::new();
        }
        // All wait for one. A stopped process is surely it; otherwise who is furthest behind, and of
        // those who stood still first.
        let Some(rank) = self
            .ranks
            .values()
            .filter(|r| r.last.doing != Doing::Done)
            .min_by_key(|r| (r.stopped_since_ms.is_none(), r.last.iteration, r.changed_ms))
        else {
            return Vec::new();
        };
        let struck_ms = if in_step { rank.changed_ms } else { latest_ms };
        let still_s = now_ms.saturating_sub(struck_ms) as f64 / 1e3;
        let usual = usual_ms.map_or(String::new(), |ms| {
            format!(", where an iteration takes {:.1} s", ms as f64 / 1e3)
        });
        let breakage = Breakage {
            kind: FaultKind::RankHung,
            struck_ms,
            node: Some(rank.node),
            position: Some(rank.last.position),
            iteration: self.foremost,
            detail: format!(
                "position {} on {} ({}, process state {}) has stood still for {still_s:.1} s{usual}",
                rank.last.position,
                self.nodes[rank.node].name,
                words(rank.last.doing),
                rank.state
            ),
        };
        self.broken(breakage)
    }

    fn forgive(&mut self, gap_ms: u64) {
        self.pace.pause(self.ticked_ms);
        let later = |at: &mut u64| *at += gap_ms;
        later(&mut self.started_ms);
        for node in &mut self.nodes {
            later(&mut node.heard_ms);
            node.closed_ms.iter_mut().for_each(later);
            node.stopped_since_ms.iter_mut().for_each(later);
        }
        for rank in self.ranks.values_mut() {
            later(&mut rank.changed_ms);
            later(&mut rank.iteration_ms);
            rank.stopped_since_ms.iter_mut().for_each(later);
            if let Some(died) = &mut rank.died {
                later(&mut died.1);
            }
        }
        self.foremost_ms.iter_mut().for_each(later);
        self.in_step_since_ms.iter_mut().for_each(later);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Four nodes with a rank each, an iteration a second, heartbeats twice a second. Events are applied as
    /// the clock passes them.
    struct Run {
        watch: Watch,
        now: u64,
        verdicts: Vec<(u64, Verdict)>,
        beating: [bool; 4],
        moving: bool,
        doing: Doing,
        /// What one of them does that the others do not.
        own: [Option<Doing>; 4],
        states: [char; 4],
        round_trip: [f64; 4],
        stuck: [Option<u64>; 4],
        saved: Option<(EpochId, u64)>,
    }

    fn beat_without_ranks(node: usize, processes: usize, stopped: usize) -> Seen {
        Seen::Beat { node, round_trip_ms: 1.0, processes, stopped, ranks: vec![] }
    }

    impl Run {
        fn new() -> Self {
            let nodes: Vec<String> = (1..=4).map(|n| format!("n{n}")).collect();
            let mut watch = Watch::new(Thresholds::default(), &nodes, 0);
            for node in 0..4 {
                assert_eq!(watch.see(0, Seen::AgentUp { node, boot: format!("b{node}") }), []);
            }
            Self {
                watch,
                now: 0,
                verdicts: Vec::new(),
                beating: [true; 4],
                moving: true,
                doing: Doing::Computing,
                own: [None; 4],
                states: ['R'; 4],
                round_trip: [1.0; 4],
                stuck: [None; 4],
                saved: None,
            }
        }
        fn until(&mut self, end: u64) -> &mut Self {
            while self.now < end {
                self.now += 100;
                if self.now.is_multiple_of(500) {
                    for node in 0..4 {
                        self.beat(node);
                    }
                }
                let more = self.watch.tick(self.now);
                self.note(more);
            }
            self
        }
        fn note(&mut self, more: Vec<Verdict>) {
            let now = self.now;
            self.verdicts.extend(more.into_iter().map(|v| (now, v)));
        }
        fn beat(&mut self, node: usize) {
            if !self.beating[node] {
                return;
            }
            let moved = if self.moving { self.now } else { 20_000 };
            let at = self.stuck[node].unwrap_or(moved);
            let seen = RankSeen {
                progress: Progress {
                    position: node as u32,
                    pid: 100 + node as u32,
                    beat: at / 250,
                    iteration: at / 1000,
                    doing: self.own[node].unwrap_or(self.doing),
                    saved: self.saved,
                    ..Progress::default()
                },
                state: self.states[node],
            };
            let more = self.watch.see(
                self.now,
                Seen::Beat {
                    node,
                    round_trip_ms: self.round_trip[node],
                    processes: 1,
                    stopped: usize::from(self.states[node] == 'T'),
                    ranks: vec![seen],
                },
            );
            self.note(more);
        }
        fn see(&mut self, seen: Seen) -> &mut Self {
            let more = self.watch.see(self.now, seen);
            self.note(more);
            self
        }
        fn breakage(&self) -> (u64, &Breakage) {
            let found: Vec<_> = self
                .verdicts
                .iter()
                .filter_map(|(at, v)| match v {
                    Verdict::Broken(b) => Some((*at, b)),
                    _ => None,
                })
                .collect();
            assert_eq!(found.len(), 1, "{:?}", self.verdicts);
            found[0]
        }
    }

    #[test]
    fn a_healthy_run_gives_no_cause_for_alarm() {
        let mut run = Run::new();
        run.until(100_000);
        assert_eq!(
            run.verdicts,
            [(500, Verdict::Computing { iteration: 0 })],
            "only that it computes"
        );
        assert_eq!(run.watch.iteration(), 100);
        assert!(run.watch.iteration_ms().unwrap().abs_diff(1000) <= 500);
    }

    #[test]
    fn a_silent_node_is_noticed_within_five_seconds() {
        let mut run = Run::new();
        run.until(20_000).beating[2] = false;
        run.until(40_000);
        let (at, broken) = run.breakage();
        assert_eq!((broken.kind, broken.node), (FaultKind::NodeSilent, Some(2)));
        assert_eq!(broken.struck_ms, 20_000);
        assert!(at - 20_000 <= 5000, "noticed after {} ms", at - 20_000);
        assert_eq!(broken.iteration, 24, "others had gone on meanwhile");
    }

    #[test]
    fn a_closed_connection_may_be_made_again() {
        let mut run = Run::new();
        run.until(20_000).see(Seen::Closed { node: 1 });
        assert_eq!(run.verdicts.last(), Some(&(20_000, Verdict::Redial { node: 1 })));
        run.see(Seen::Closed { node: 1 });
        run.until(20_500).see(Seen::AgentUp { node: 1, boot: "b1".into() });
        assert_eq!(run.verdicts.last(), Some(&(20_500, Verdict::AgentRestarted { node: 1 })));
        run.until(60_000);
        assert_eq!(run.verdicts.len(), 3, "{:?}", run.verdicts);
    }

    #[test]
    fn a_node_whose_connection_ended_for_good_is_noticed_within_a_second() {
        let mut run = Run::new();
        run.until(20_000).beating[1] = false;
        run.see(Seen::Closed { node: 1 }).until(30_000);
        let (at, broken) = run.breakage();
        assert_eq!((broken.kind, broken.node), (FaultKind::NodeGone, Some(1)));
        assert!(at - 20_000 <= 1000);
    }

    #[test]
    fn a_node_that_comes_back_empty_is_lost() {
        let mut run = Run::new();
        run.until(20_000).beating[1] = false;
        run.see(Seen::Closed { node: 1 }).until(20_300);
        run.see(Seen::AgentUp { node: 1, boot: "another".into() });
        assert_eq!(run.breakage().1.kind, FaultKind::NodeRebooted);
    }

    #[test]
    fn a_dead_rank_waits_for_the_launchers_word_but_not_long() {
        let mut run = Run::new();
        run.until(20_000).states[3] = 'X';
        run.until(30_000);
        let (at, broken) = run.breakage();
        assert_eq!((broken.kind, broken.position), (FaultKind::RankDied, Some(3)));
        assert!(at - 20_500 <= 300);

        let mut run = Run::new();
        run.until(20_000).states[3] = 'X';
        run.until(20_600).see(Seen::LauncherEnded { code: Some(137) });
        run.until(30_000);
        assert_eq!(
            run.verdicts.last(),
            Some(&(20_600, Verdict::Ended { code: Some(137), struck_ms: 20_000 }))
        );
    }

    #[test]
    fn ranks_that_have_all_gone_are_given_time_to_say_why() {
        let mut run = Run::new();
        run.until(20_000).states = ['X'; 4];
        run.until(24_000).see(Seen::LauncherEnded { code: Some(4) });
        assert_eq!(
            run.verdicts.last(),
            Some(&(24_000, Verdict::Ended { code: Some(4), struck_ms: 20_000 }))
        );
    }

    #[test]
    fn a_rank_that_is_done_may_go() {
        let mut run = Run::new();
        run.until(20_000).doing = Doing::Done;
        run.until(21_000).states = ['X'; 4];
        run.until(100_000);
        assert!(!run.verdicts.iter().any(|(_, v)| matches!(v, Verdict::Broken(_))));
    }

    #[test]
    fn ranks_that_are_through_but_do_not_end_are_a_hang_in_the_end() {
        let mut run = Run::new();
        run.until(20_000).doing = Doing::Solving;
        run.until(21_000);
        // Their memory is removed, the processes are still there.
        let patience_ms = Thresholds::default().patience_ms;
        for now in (21_500..23_000 + patience_ms).step_by(500) {
            run.now = now;
            for node in 0..4 {
                run.see(beat_without_ranks(node, 1, 0));
            }
            let more = run.watch.tick(now);
            run.note(more);
        }
        let (at, broken) = run.breakage();
        assert_eq!((broken.kind, broken.position), (FaultKind::RankHung, None));
        assert_eq!((broken.struck_ms, at), (21_500, 21_500 + patience_ms));
    }

    #[test]
    fn memory_left_by_an_earlier_incarnation_is_not_a_death() {
        let mut run = Run::new();
        run.states = ['X'; 4];
        run.until(5000);
        assert_eq!(run.verdicts, []);
        run.states = ['R'; 4];
        run.until(30_000);
        assert_eq!(run.verdicts.len(), 1);
    }

    #[test]
    fn the_hung_rank_is_named_not_those_who_wait_for_it() {
        let mut run = Run::new();
        run.until(20_000);
        run.stuck[2] = Some(19_900);
        run.moving = false;
        run.until(60_000);
        let (at, broken) = run.breakage();
        assert_eq!((broken.kind, broken.position), (FaultKind::RankHung, Some(2)));
        assert!(at - 20_000 <= 11_000, "noticed after {} ms", at - 20_000);
        assert!(broken.detail.contains("n3"), "{}", broken.detail);
    }

    #[test]
    fn a_stopped_process_gives_the_culprit_away() {
        let mut run = Run::new();
        run.until(20_000).moving = false;
        run.states[1] = 'T';
        run.until(60_000);
        assert_eq!(run.breakage().1.position, Some(1));
    }

    /// One copies, generates or digests for minutes, the others wait for it.
    #[test]
    fn nothing_hangs_while_somebody_gets_on() {
        for doing in [Doing::Starting, Doing::Generating, Doing::Saving, Doing::Recovering] {
            let mut run = Run::new();
            run.until(20_000).doing = doing;
            run.stuck = [Some(20_000), Some(20_000), None, Some(20_000)];
            run.until(400_000);
            assert_eq!(run.verdicts.len(), 1, "{doing:?}: {:?}", run.verdicts);
            run.stuck[2] = Some(400_000);
            run.until(900_000);
            assert_eq!(run.breakage().1.kind, FaultKind::RankHung);
        }
    }

    /// Those who have waited long for one are no reason to wait as long for all.
    #[test]
    fn a_hang_after_a_long_wait_is_noticed_as_soon_as_any() {
        let mut run = Run::new();
        run.until(20_000).doing = Doing::Saving;
        run.stuck = [Some(20_000), Some(20_000), None, Some(20_000)];
        run.until(320_000).stuck = [None; 4];
        run.until(321_000).moving = false;
        run.until(900_000);
        let (at, broken) = run.breakage();
        assert!(at <= 321_500 + Thresholds::default().patience_ms, "noticed at {at}: {broken:?}");
    }

    /// Whoever was through with a save first has waited for the last one, which is no hang of its own.
    #[test]
    fn nobody_hangs_when_the_last_one_is_through_with_a_save() {
        let mut run = Run::new();
        run.until(20_000).own[2] = Some(Doing::Saving);
        run.stuck = [Some(20_000), Some(20_000), None, Some(20_000)];
        run.until(80_000).own[2] = None;
        run.until(82_000).stuck = [None; 4];
        run.until(100_000);
        assert_eq!(run.verdicts.len(), 1, "{:?}", run.verdicts);
    }

    #[test]
    fn saving_takes_its_time_and_is_told() {
        let mut run = Run::new();
        run.until(20_000).doing = Doing::Saving;
        run.moving = false;
        run.until(50_000);
        run.doing = Doing::Computing;
        run.moving = true;
        run.saved = Some((EpochId { epoch: 1, made: 1 }, 20));
        run.until(60_000);
        assert_eq!(run.verdicts[1..], [(50_500, Verdict::Saved { iteration: 20 })],);
    }

    #[test]
    fn a_supervisor_that_stood_still_blames_nobody() {
        let mut run = Run::new();
        run.until(20_000);
        run.now += 3_600_000;
        let more = run.watch.tick(run.now);
        run.note(more);
        run.until(3_700_000);
        assert_eq!(run.verdicts.len(), 1, "{:?}", run.verdicts);
    }

    #[test]
    fn a_launch_without_ranks_has_failed() {
        let mut watch = Watch::new(Thresholds::default(), &["n1".to_string()], 0);
        let mut found = Vec::new();
        for now in (0..310_000).step_by(100) {
            watch.see(now, beat_without_ranks(0, 0, 0));
            found.extend(watch.tick(now));
        }
        assert!(matches!(&found[..], [Verdict::Broken(b)] if b.kind == FaultKind::LaunchFailed));
    }

    #[test]
    fn mpi_that_does_not_start_is_a_failed_launch() {
        for (shows, verdicts) in [(true, 1), (false, 0)] {
            let nodes = ["n1".to_string()];
            let mut watch = Watch::new(Thresholds::default(), &nodes, 0).progress_shows(shows);
            let mut found = Vec::new();
            for now in (0..310_000).step_by(100) {
                watch.see(now, beat_without_ranks(0, 3, 0));
                found.extend(watch.tick(now));
            }
            assert_eq!(found.len(), verdicts, "of another program nobody knows: {found:?}");
            for verdict in found {
                assert!(matches!(verdict, Verdict::Broken(b) if b.kind == FaultKind::LaunchFailed));
            }
        }
    }

    /// Before MPI has started, or of the launcher's own.
    #[test]
    fn a_stopped_process_is_noticed_although_it_shows_no_progress() {
        let mut run = Run::new();
        run.beating[2] = false;
        for now in (100..30_000).step_by(100) {
            run.see(beat_without_ranks(2, 2, usize::from(now >= 5000)));
            run.until(now);
        }
        let (at, broken) = run.breakage();
        assert_eq!(
            (broken.kind, broken.node, broken.position),
            (FaultKind::RankHung, Some(2), None)
        );
        assert!(at - 5000 <= 10_000, "noticed after {} ms", at - 5000);
        assert!(broken.detail.contains("n3"), "{}", broken.detail);
    }

    #[test]
    fn a_slow_node_is_named_once_and_left_alone() {
        let mut run = Run::new();
        run.until(20_000).round_trip[0] = 100.0;
        run.until(60_000);
        let slow: Vec<_> = run
            .verdicts
            .iter()
            .filter(|(_, v)| matches!(v, Verdict::Slow { node: 0, .. }))
            .collect();
        assert_eq!(slow.len(), 1);
        assert_eq!(run.verdicts.len(), 2);
    }

    proptest! {
        /// Jitter of heartbeats below the silence threshold never breaks a run, and a run is broken at most
        /// once however much goes wrong.
        #[test]
        fn no_false_alarm_and_no_second_one(
            delays in proptest::collection::vec(100u64..3500, 50),
            end in 0usize..3,
        ) {
            let nodes = vec!["a".to_string(), "b".to_string()];
            let mut watch = Watch::new(Thresholds::default(), &nodes, 0);
            let mut now = 0;
            let mut broken = 0;
            let mut count = |more: Vec<Verdict>| {
                broken += more.iter().filter(|v| matches!(v, Verdict::Broken(_) | Verdict::Ended { .. })).count();
                broken
            };
            for (beat, delay) in delays.iter().enumerate() {
                for _ in 0..delay / 100 {
                    now += 100;
                    prop_assert_eq!(count(watch.tick(now)), 0);
                }
                for node in 0..2 {
                    let progress = Progress {
                        position: node as u32, pid: 1, beat: beat as u64, iteration: beat as u64,
                        doing: Doing::Computing, ..Progress::default()
                    };
                    let ranks = vec![RankSeen { progress, state: 'R' }];
                    let seen = Seen::Beat { node, round_trip_ms: 1.0, processes: 1, stopped: 0, ranks };
                    prop_assert_eq!(count(watch.see(now, seen)), 0);
                }
            }
            match end {
                0 => { count(watch.see(now, Seen::LauncherEnded { code: None })); }
                1 => { count(watch.see(now, Seen::Closed { node: 0 })); }
                _ => {}
            }
            for _ in 0..600 {
                now += 100;
                count(watch.tick(now));
            }
            prop_assert_eq!(count(watch.see(now, Seen::LauncherEnded { code: Some(1) })), 1);
        }
    }
}
