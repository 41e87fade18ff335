//! Contact with the nodes: the first calls, heartbeats, and the handling of news from nodes without ranks.
//!
//! Every step of the supervisor that waits calls these functions, so nodes are judged during every step of the run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Supervisor;
use crate::base::clock::{Instant, steady_ms};
use crate::supervise::judge::first_calls::FirstCalls;
use crate::supervise::judge::nodes::{Judged, Loss, Report};
use crate::supervise::remember::events::{Event, FaultKind};
use crate::supervise::talk::cluster::{FIRST_CALL, News, unreachable_words};
use crate::supervise::talk::wire::Beat;

/// Interval at which nodes without heartbeats are judged.
const WEIGH_EVERY: Duration = Duration::from_millis(40);

/// Interval at which a wait for nodes checks their answers, and whether to end.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// Time for which failed calls to a node are repeated, if the node has no ranks of a running job. If the name is wrong, further
/// calls fail as well.
const REPEAT_FIRST_MS: u64 = 3_000;

/// State of the calls to nodes, and news of nodes that the supervisor has not acted on yet.
#[derive(Default)]
pub(super) struct Contact {
    /// Nodes that are no longer called during the first calls, each with the reason.
    pub(super) given_up: BTreeMap<usize, String>,
    /// Time at which nodes were last judged.
    weighed: Option<Instant>,
    /// Time at which lost nodes were last called.
    lost_called: Option<Instant>,
    /// Nodes judged lost that are not declared lost yet.
    pub(super) losses: Vec<Loss>,
    /// Nodes that send heartbeats again.
    pub(super) heard_again: Vec<usize>,
}

impl Supervisor<'_> {
    /// Calls all nodes and waits until each has answered or failed. Returns the nodes that failed, each with the reason, or
    /// `None` after a request to stop. A node that has answered is watched from then on.
    ///
    /// If a job may be running (`runs`), each of the job's nodes has the longest time to answer: to give up one node would end
    /// the job. A request to stop then does not end the wait before the time of a halt, because the nodes stop the job's ranks.
    /// If no node answers, this machine is cut off, and no node is given up.
    pub(super) fn first_contact(
        &mut self,
        runs: bool,
    ) -> anyhow::Result<Option<BTreeMap<usize, String>>> {
        let asked = self.cluster.call_new();
        self.cluster.called_at_once = asked.len();
        let began_ms = steady_ms();
        let mut calls = FirstCalls::new(began_ms, &asked);
        let placed = self.state.placed.iter().filter(|_| runs);
        let needed: BTreeSet<usize> = placed.filter_map(|h| self.cluster.find(&h.name)).collect();
        let mut looked = Instant::now();
        // Whether this step has reported that no node answers. If nodes had answered before, `judge::nodes` reports it.
        let mut told = false;
        // Time at which a node answered again after no node had. The times of all nodes count from then.
        let mut heard: Option<Instant> = None;
        while !calls.are_over() {
            match self.hear(LOOK)? {
                Some((node, News::Up)) => calls.answers(node),
                Some((node, News::Closed(why))) => {
                    calls.fails(steady_ms(), node, unreachable_words(&why));
                }
                _ => {}
            }
            for loss in std::mem::take(&mut self.contact.losses) {
                // If only one node had answered, its loss is no outage for `judge::nodes`.
                let rebooted = loss.kind == FaultKind::NodeRebooted;
                if !rebooted && runs && self.nobody_answers(&asked, &calls, Some(loss.node)) {
                    calls.loses_heartbeat(steady_ms(), loss.node, loss.detail);
                } else {
                    self.contact.given_up.insert(loss.node, loss.detail);
                }
            }
            if looked.elapsed() < LOOK {
                continue;
            }
            looked = Instant::now();
            let enough = if runs { self.halting()? } else { self.is_to_halt()? };
            if enough.is_some() {
                return Ok(None);
            }
            let now_ms = steady_ms();
            let nobody =
                runs && calls.open().next().is_some() && self.nobody_answers(&asked, &calls, None);
            if !nobody && calls.one_answers(now_ms) {
                heard = Some(looked);
                if std::mem::take(&mut told) {
                    self.note(Event::Together { after_ms: now_ms - began_ms })?;
                }
            }
            let due = calls.due(now_ms);
            if !due.is_empty() {
                self.cluster.call(&due);
            }
            let most_ms = FIRST_CALL.as_millis() as u64;
            let answered =
                asked.len().saturating_sub(calls.open().count() + self.contact.given_up.len());
            let usual_ms = self.cluster.logins.first_ms(most_ms, answered, asked.len());
            // The time counts from the call to the node itself, because the nodes that were to call it may have been lost first.
            let in_vain = |node| {
                let ms = if needed.contains(&node) { most_ms } else { usual_ms };
                let timeout = Duration::from_millis(ms);
                let so_long = self.cluster.nodes[node].unresponsive.unwrap_or_default();
                let so_long = heard.map_or(so_long, |heard| so_long.min(heard.elapsed()));
                (so_long >= timeout).then_some((node, timeout))
            };
            let late: Vec<(usize, Duration)> = calls.open().filter_map(in_vain).collect();
            let time_ms =
                |node| if nobody || needed.contains(&node) { most_ms } else { REPEAT_FIRST_MS };
            let spent = calls.in_vain(time_ms);
            if nobody
                && !(late.is_empty() && spent.is_empty())
                && calls.none_answers()
                && !self.nodes.is_alone()
            {
                told = true;
                self.note(Event::Alone)?;
            }
            for (node, timeout) in late {
                let why = self.cluster.give_up(node, timeout);
                if nobody {
                    calls.fails(now_ms, node, why);
                } else {
                    calls.answers(node);
                    self.contact.given_up.insert(node, why);
                }
            }
            if !nobody {
                let given_up = |node| Some((node, calls.give_up(node)?));
                self.contact.given_up.extend(spent.into_iter().filter_map(given_up));
            }
        }
        self.cluster.called_at_once = 1;
        Ok(Some(std::mem::take(&mut self.contact.given_up)))
    }

    /// Returns whether no node of `asked` answers now. `lost` is a node that has just been judged lost. Nodes that have answered
    /// may have become unresponsive since.
    fn nobody_answers(&self, asked: &[usize], calls: &FirstCalls, lost: Option<usize>) -> bool {
        // A node that was rebooted was given up, and answers.
        let given_up = self.contact.given_up.keys().filter(|node| !self.cluster.nodes[**node].up);
        let unresponsive = calls.open().chain(given_up.copied()).chain(lost);
        let unresponsive: BTreeSet<usize> = unresponsive.chain(self.nodes.in_trouble()).collect();
        self.nodes.none_answers(asked, unresponsive)
    }

    /// Returns the next news within `timeout`. This function also judges nodes, calls lost nodes and handles their news, so that
    /// this happens during every step of the run.
    pub(super) fn hear(&mut self, timeout: Duration) -> anyhow::Result<Option<(usize, News)>> {
        self.keep_status();
        let beat = Duration::from_millis(self.settings.beat_ms);
        if self.contact.lost_called.is_none_or(|at| at.elapsed() >= beat) {
            self.contact.lost_called = Some(Instant::now());
            self.cluster.call_lost();
        }
        let news = match self.backlog.pop_front() {
            None => self.cluster.hear(timeout),
            known => known,
        };
        if let Some((node, news)) = &news {
            self.mind_lost(*node, news)?;
        }
        self.weigh_if_due()?;
        Ok(news)
    }

    /// Judges nodes if there are new reports or enough time has passed.
    pub(super) fn weigh_if_due(&mut self) -> anyhow::Result<()> {
        // There may be thousands of news in the time between two judgements.
        if !self.cluster.reports.is_empty()
            || self.contact.weighed.is_none_or(|at| at.elapsed() >= WEIGH_EVERY)
        {
            self.weigh_reports()
        } else {
            Ok(())
        }
    }

    /// Judges the reports of nodes since the last call.
    fn weigh_reports(&mut self) -> anyhow::Result<()> {
        self.contact.weighed = Some(Instant::now());
        let mut judged = Vec::new();
        for (at_ms, node, report) in std::mem::take(&mut self.cluster.reports) {
            let answers = matches!(report, Report::AgentUp { .. } | Report::Heard);
            if matches!(&report, Report::AgentUp { boot } if *boot == self.own.boot) {
                self.nodes.here.insert(node);
            }
            if self.cluster.nodes[node].lost.is_some() {
                judged.extend(self.nodes.hear_lost(at_ms, node, answers));
                continue;
            }
            if answers && (self.nodes.is_in_trouble(node) || self.judged_lost(node).is_some()) {
                self.contact.heard_again.push(node);
            }
            judged.extend(self.nodes.hear(at_ms, node, report));
        }
        let called = self.nodes.in_trouble().count();
        if called > 0 {
            let least_ms = self.settings.thresholds.redial_ms;
            self.nodes.redial_ms = self.cluster.logins.timeout_ms(least_ms, called);
        }
        judged.extend(self.nodes.tick(steady_ms()));
        self.heed(judged)
    }

    /// Acts on judgements of nodes.
    fn heed(&mut self, judged: Vec<Judged>) -> anyhow::Result<()> {
        let mut redialled = BTreeSet::new();
        for judged in judged {
            match judged {
                Judged::Redial { node } => _ = redialled.insert(node),
                Judged::Restarted { node } => {
                    let node = self.cluster.nodes[node].host.name.clone();
                    self.note(Event::AgentRestarted { node })?;
                }
                Judged::Lost(loss) => {
                    // A later loss replaces an earlier one: a node judged unresponsive may turn out to have been rebooted.
                    self.contact.losses.retain(|before| before.node != loss.node);
                    self.contact.losses.push(loss);
                }
                Judged::Alone => self.note(Event::Alone)?,
                Judged::Together { after_ms } => self.note(Event::Together { after_ms })?,
            }
        }
        // A node that answers again before it is declared lost is not lost, unless its memory is empty.
        let Self { nodes, contact, .. } = self;
        contact
            .losses
            .retain(|loss| loss.kind == FaultKind::NodeRebooted || !nodes.knows(loss.node));
        // Each node is called once, unless it answers again within the same batch. A call would end a connection that works
        // again.
        redialled.retain(|node| self.nodes.is_in_trouble(*node) || self.nodes.is_alone());
        if !redialled.is_empty() {
            // All nodes are called in a single step, so that the calls are spread evenly over the agents.
            self.cluster.call(&Vec::from_iter(redialled));
        }
        Ok(())
    }

    pub(super) fn lose(&mut self, node: usize, why: &str) -> anyhow::Result<()> {
        self.lose_all([(node, why.to_string())])
    }

    /// Declares nodes lost, with a single wait for the disk.
    pub(super) fn lose_all(
        &mut self,
        nodes: impl IntoIterator<Item = (usize, String)>,
    ) -> anyhow::Result<()> {
        let mut events = Vec::new();
        for (node, why) in nodes {
            self.cluster.lose(node, &why);
            self.nodes.forget(node);
            let node = self.cluster.nodes[node].host.name.clone();
            events.push(Event::NodeLost { node, why });
        }
        self.note_all(events)
    }

    /// Declares the nodes lost that were judged lost.
    pub(super) fn settle_losses(&mut self) -> anyhow::Result<()> {
        // A rebooted node may have answered again while the run was being stopped. Its memory is empty.
        self.weigh_reports()?;
        let mut losses = std::mem::take(&mut self.contact.losses);
        losses.retain(|loss| self.cluster.nodes[loss.node].lost.is_none());
        self.lose_all(losses.into_iter().map(|loss| (loss.node, loss.detail)))
    }

    /// Waits for `time` between attempts. Heartbeats, lost nodes and the progress line are handled meanwhile.
    pub(super) fn idle(&mut self, time: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.show_progress();
            self.hear(LOOK)?;
            self.settle_losses()?;
        }
        Ok(())
    }

    /// Waits as [`idle`](Self::idle) does, but only until `enough` returns true. `enough` is called at intervals, not with every
    /// message.
    pub(super) fn idle_unless(
        &mut self,
        time: Duration,
        enough: impl Fn(&mut Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until && !enough(self)? {
            self.idle(LOOK.min(until.saturating_duration_since(Instant::now())))?;
        }
        Ok(())
    }

    /// Prints the progress line and reports problems with the journal, once a second.
    pub(super) fn show_progress(&mut self) {
        if self.display.shown.is_none_or(|t| t.elapsed() >= Duration::from_secs(1)) {
            self.display.shown = Some(Instant::now());
            self.print_journal_trouble();
            self.show_line();
        }
    }

    /// Handles news from lost nodes. A node that answers again first ends its processes of this run. Then it counts as returned.
    fn mind_lost(&mut self, node: usize, news: &News) -> anyhow::Result<()> {
        let state = &mut self.cluster.nodes[node];
        if state.lost.is_none() {
            return Ok(());
        }
        match news {
            News::Up => {
                let (id, clean) = (self.cluster.next_end(), self.to_clean(false));
                self.cluster.ask_end(&[node], id, &clean);
            }
            // News in the backlog may be from before the loss.
            News::Ended { ended, .. } if state.up && !state.returned => {
                state.returned = true;
                let event = Event::NodeReturned {
                    node: state.host.name.clone(),
                    same_boot: state.beat.held_positions > 0 || *ended > 0,
                    ended: *ended,
                };
                self.note(event)?;
            }
            News::Closed(_) => state.returned = false,
            _ => {}
        }
        Ok(())
    }

    /// Takes in a spare, or a lost node that answers again, to run ranks. From now on the node is watched.
    pub(super) fn take_in(&mut self, node: usize) -> anyhow::Result<()> {
        let state = &mut self.cluster.nodes[node];
        (state.lost, state.spare) = (None, false);
        if let Some((facts, _)) = &state.facts {
            let report = Report::AgentUp { boot: facts.boot.clone() };
            self.cluster.reports.push_back((steady_ms(), node, report));
        }
        self.weigh_reports()
    }

    /// Returns whether status 0 of the launcher means success. With a launcher that hides losses, the benchmark's announcement
    /// decides instead. For another program, status 0 means success if all its nodes answer, and this supervisor has watched
    /// them to the launcher's end.
    pub(super) fn believes_zero(&mut self) -> anyhow::Result<bool> {
        Ok(!self.settings.tool.hides_losses()
            || !self.settings.benchmark.progress_shows
                && !self.attempt.ended_unseen
                && self.all_nodes_answer()?)
    }

    /// Ends what the job has left on its nodes. Returns whether all of them answer. Heartbeats would prove less, because an agent
    /// may pass on a heartbeat that a node has sent before its loss.
    fn all_nodes_answer(&mut self) -> anyhow::Result<bool> {
        let placed = self.state.placed.iter().map(|host| self.cluster.find(&host.name));
        let Some(placed) = placed.collect::<Option<BTreeSet<usize>>>() else {
            return Ok(false);
        };
        let placed = Vec::from_iter(placed);
        let halted = |this: &Self| this.nodes.is_alone() && this.halt.is_some();
        let (answered, _) = self.end_on(&placed, &BTreeSet::new(), halted)?;
        Ok(answered.len() == placed.len())
    }

    /// Asks all nodes for a heartbeat and waits for those of the `missing` nodes. Passes each heartbeat to `seen`. Returns
    /// whether all have come within `time`.
    pub(super) fn await_beats(
        &mut self,
        mut missing: BTreeSet<usize>,
        time: Duration,
        mut seen: impl FnMut(&mut Self, &Beat),
    ) -> anyhow::Result<bool> {
        self.cluster.beat_all();
        let until = Instant::now() + time;
        while !missing.is_empty() && Instant::now() < until {
            if let Some((node, News::Beat(beat))) = self.hear(LOOK)? {
                missing.remove(&node);
                seen(self, &beat);
            }
        }
        Ok(missing.is_empty())
    }
}
