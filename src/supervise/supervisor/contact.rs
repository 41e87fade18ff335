//! Contact with the nodes: the first calls, heartbeats, and what is made of news from nodes that run no ranks now.
//!
//! Every step of the supervisor that waits, waits in here, so that whether nodes are well is judged whatever the run
//! is busy with.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Supervisor;
use crate::base::clock::Instant;
use crate::supervise::judge::first_calls::FirstCalls;
use crate::supervise::judge::logins::Logins;
use crate::supervise::judge::nodes::{Judged, Loss, Report};
use crate::supervise::remember::events::{Event, FaultKind};
use crate::supervise::talk::cluster::{FIRST_CALL, News, Sign, unreachable_words};
use crate::supervise::talk::wire::Beat;

/// How often it is judged what time makes of silence.
const WEIGH_EVERY: Duration = Duration::from_millis(40);

/// How often those who have not answered their first call are looked at.
const FIRST_LOOK: Duration = Duration::from_millis(50);

/// Interval at which the time for heartbeats is checked.
const BEAT_LOOK: Duration = Duration::from_millis(20);

/// How often it is asked, while time only passes, whether somebody wants to stop.
const HALT_LOOK: Duration = Duration::from_millis(100);

/// How long a call that failed is repeated where no job runs that would be ended for it: a name that is wrong stays so.
const REPEAT_FIRST: Duration = Duration::from_secs(3);

/// State of the calls to nodes, and news of them that are still to be acted on.
#[derive(Default)]
pub(super) struct Contact {
    pub(super) logins: Logins,
    called_at_once: usize,
    /// All nodes have been called once.
    pub(super) all_called: bool,
    /// Nodes that are called no more meanwhile, and why.
    pub(super) given_up: BTreeMap<usize, String>,
    /// When it was last judged whether nodes are well.
    weighed: Option<Instant>,
    /// When lost nodes were last called.
    lost_called: Option<Instant>,
    /// Nodes judged lost that are not declared lost yet.
    pub(super) losses: Vec<Loss>,
    /// Nodes that send heartbeats again.
    pub(super) heard_again: Vec<usize>,
}

impl Supervisor<'_> {
    /// Calls all nodes and waits until each has answered or failed: what is wrong with those that failed. Who has
    /// answered is under watch from then on. None: somebody asked to stop. A job that may be running (`runs`) is stopped by
    /// way of its nodes, so for that they are waited for all the same, as long as a halt may take; and it would be ended for want
    /// of one of them, so they have all the time there is, and where none at all answers it is we who are cut off.
    pub(super) fn first_contact(
        &mut self,
        runs: bool,
    ) -> anyhow::Result<Option<BTreeMap<usize, String>>> {
        let asked = self.cluster.call_new();
        self.contact.called_at_once = asked.len();
        let began_ms = self.now_ms();
        let mut calls = FirstCalls::new(began_ms, &asked);
        let placed = self.state.placed.iter().filter(|_| runs);
        let needed: BTreeSet<usize> = placed.filter_map(|h| self.cluster.find(&h.name)).collect();
        let mut looked = Instant::now();
        // Whether it was told here that no node answers: of nodes that had answered it is told where their signs are judged.
        let mut told = false;
        // When some node answered again after none did: silence counts from then.
        let mut heard: Option<Instant> = None;
        while !calls.are_over() {
            match self.hear(FIRST_LOOK)? {
                Some((node, News::Up(_))) => calls.answers(node),
                Some((node, News::Closed(why))) => {
                    calls.fails(self.now_ms(), node, unreachable_words(&why));
                }
                _ => {}
            }
            for loss in std::mem::take(&mut self.contact.losses) {
                // The judge sees no outage where one alone had answered.
                let rebooted = loss.kind == FaultKind::NodeRebooted;
                if !rebooted && runs && self.nobody_answers(&asked, &calls, Some(loss.node)) {
                    calls.falls_silent(self.now_ms(), loss.node, loss.detail);
                } else {
                    self.contact.given_up.insert(loss.node, loss.detail);
                }
            }
            if looked.elapsed() < FIRST_LOOK {
                continue;
            }
            looked = Instant::now();
            let enough = if runs { self.halting()? } else { self.is_to_halt()? };
            if enough.is_some() {
                return Ok(None);
            }
            let now_ms = self.now_ms();
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
            let usual_ms = self.contact.logins.first_ms(most_ms, answered, asked.len());
            // It counts from when the node itself was called: those that were to call it may have been lost first.
            let in_vain = |node| {
                let ms = if needed.contains(&node) { most_ms } else { usual_ms };
                let patience = Duration::from_millis(ms);
                let so_long = self.cluster.silent_for(node);
                let so_long = heard.map_or(so_long, |heard| so_long.min(heard.elapsed()));
                (so_long >= patience).then_some((node, patience))
            };
            let late: Vec<(usize, Duration)> = calls.open().filter_map(in_vain).collect();
            let repeated = REPEAT_FIRST.as_millis() as u64;
            let time_ms = |node| if nobody || needed.contains(&node) { most_ms } else { repeated };
            let spent = calls.in_vain(time_ms);
            if nobody
                && !(late.is_empty() && spent.is_empty())
                && calls.none_answers()
                && !self.nodes.is_alone()
            {
                told = true;
                self.note(Event::Alone)?;
            }
            for (node, patience) in late {
                let why = self.cluster.give_up(node, patience);
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
        self.contact.called_at_once = 1;
        Ok(Some(std::mem::take(&mut self.contact.given_up)))
    }

    /// Whether none of those `asked` is heard, `lost` not either: who had answered may have fallen silent since.
    fn nobody_answers(&self, asked: &[usize], calls: &FirstCalls, lost: Option<usize>) -> bool {
        let silent = calls.open().chain(self.contact.given_up.keys().copied()).chain(lost);
        let silent: BTreeSet<usize> = silent.chain(self.nodes.in_trouble()).collect();
        self.nodes.none_answers(asked, silent.into_iter())
    }

    /// The next news within `patience`. Whether nodes are well is judged here, and lost ones that are back are looked after,
    /// whatever the run is busy with.
    pub(super) fn hear(&mut self, patience: Duration) -> anyhow::Result<Option<(usize, News)>> {
        self.keep_status();
        let news = match self.backlog.pop_front() {
            None => self.cluster.hear(patience),
            known => known,
        };
        if let Some((node, news)) = &news {
            self.mind_lost(*node, news)?;
        }
        self.weigh_if_due()?;
        Ok(news)
    }

    /// Judges nodes when there is something to judge by.
    pub(super) fn weigh_if_due(&mut self) -> anyhow::Result<()> {
        // News come by the thousand; time passes in tens of milliseconds.
        if self.cluster.has_signs()
            || self.contact.weighed.is_none_or(|at| at.elapsed() >= WEIGH_EVERY)
        {
            self.weigh_signs()
        } else {
            Ok(())
        }
    }

    /// Judges what nodes have shown of themselves since the last call.
    fn weigh_signs(&mut self) -> anyhow::Result<()> {
        self.contact.weighed = Some(Instant::now());
        let zero = self.own.zero;
        let ms = |at: Instant| at.saturating_duration_since(zero).as_millis() as u64;
        let mut judged = Vec::new();
        for (at, node, sign) in self.cluster.signs().collect::<Vec<_>>() {
            if self.cluster.nodes[node].lost.is_some() {
                continue;
            }
            if self.nodes.is_in_trouble(node) && matches!(sign, Sign::Up { .. } | Sign::Heard) {
                self.contact.heard_again.push(node);
            }
            let report = match sign {
                Sign::Up { boot, took } => {
                    // One that was called again by another way has no time of its own.
                    if !took.is_zero() {
                        self.contact
                            .logins
                            .note(took.as_millis() as u64, self.contact.called_at_once);
                    }
                    if boot == self.own.boot {
                        self.nodes.is_here(node);
                    }
                    Report::AgentUp { node, boot }
                }
                Sign::Quiet { since } => Report::Quiet { node, heard_ms: ms(since) },
                Sign::Heard => Report::Heard { node },
                Sign::Closed => Report::Closed { node },
            };
            judged.extend(self.nodes.hear(ms(at), report));
        }
        let called = self.nodes.in_trouble().count();
        if called > 0 {
            let least_ms = self.settings.thresholds.redial_ms;
            self.nodes.redial_within(self.contact.logins.patience_ms(least_ms, called));
        }
        judged.extend(self.nodes.tick(self.now_ms()));
        self.heed(judged)
    }

    /// Does what has been judged of nodes.
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
                    // One that was silent may have been started anew, which is what counts then.
                    self.contact.losses.retain(|before| before.node != loss.node);
                    self.contact.losses.push(loss);
                }
                Judged::Alone => self.note(Event::Alone)?,
                Judged::Together { after_ms } => self.note(Event::Together { after_ms })?,
            }
        }
        // Once each, and nobody who has come back by another way within the same batch: a call ends the connection before it.
        redialled.retain(|node| self.nodes.is_in_trouble(*node));
        if !redialled.is_empty() {
            // All at once: so they are shared out evenly.
            self.cluster.call(&Vec::from_iter(redialled));
        }
        Ok(())
    }

    pub(super) fn lose(&mut self, node: usize, why: &str) -> anyhow::Result<()> {
        self.lose_all([(node, why.to_string())])
    }

    /// Declares nodes lost, all of them with one wait for the disk.
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

    /// Declares those lost that were judged so. True if there were any.
    pub(super) fn settle_losses(&mut self) -> anyhow::Result<bool> {
        // A node that was off may have answered anew, while the run was being stopped: its memory is empty.
        self.weigh_signs()?;
        let mut losses = std::mem::take(&mut self.contact.losses);
        losses.retain(|loss| self.cluster.nodes[loss.node].lost.is_none());
        let any = !losses.is_empty();
        self.lose_all(losses.into_iter().map(|loss| (loss.node, loss.detail)))?;
        Ok(any)
    }

    /// One heartbeat of every node, so that memory is known before nodes are chosen.
    pub(super) fn beat_once(&mut self) -> anyhow::Result<()> {
        self.await_beats(self.cluster.up(), Duration::from_millis(500), |_, _| ())?;
        // Losses are left to who comes next: a job that was taken over is broken by them.
        Ok(())
    }

    /// Passes time as [`idle`](Self::idle) does, but not beyond somebody's wish to stop.
    pub(super) fn idle_unless_halted(&mut self, time: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + time;
        while self.is_to_halt()?.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.idle(left.min(HALT_LOOK))?;
        }
        Ok(())
    }

    /// Passes time between incarnations: heartbeats, lost nodes, the line of progress.
    pub(super) fn idle(&mut self, time: Duration) -> anyhow::Result<()> {
        self.pass_time(time, |this| this.settle_losses().map(drop))
    }

    /// Passes time, with `then` done to what has been judged meanwhile.
    pub(super) fn pass_time(
        &mut self,
        time: Duration,
        mut then: impl FnMut(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.housekeeping()?;
            self.hear(Duration::from_millis(50))?;
            then(self)?;
        }
        Ok(())
    }

    /// What is due from time to time whatever else goes on.
    pub(super) fn housekeeping(&mut self) -> anyhow::Result<()> {
        let beat = Duration::from_millis(self.settings.beat_ms);
        if self.contact.lost_called.is_none_or(|at| at.elapsed() >= beat) {
            self.contact.lost_called = Some(Instant::now());
            self.cluster.call_lost();
        }
        if self.display.shown.is_none_or(|t| t.elapsed() >= Duration::from_secs(1)) {
            self.display.shown = Some(Instant::now());
            self.print_journal_trouble();
            self.show_line();
        }
        Ok(())
    }

    /// News from lost nodes: what one that is back still runs of this run is ended, and then it counts as back.
    fn mind_lost(&mut self, node: usize, news: &News) -> anyhow::Result<()> {
        if self.cluster.nodes[node].lost.is_none() {
            return Ok(());
        }
        match news {
            News::Up(_) => {
                let clean = self.to_clean(false);
                self.cluster.end_leftovers(node, &clean);
            }
            // What was laid aside may be from before it was lost.
            News::Ended { ended, .. }
                if self.cluster.is_up(node) && !self.cluster.nodes[node].returned =>
            {
                self.cluster.nodes[node].returned = true;
                let state = &self.cluster.nodes[node];
                let event = Event::NodeReturned {
                    node: state.host.name.clone(),
                    same_boot: state.beat.held_positions > 0 || *ended > 0,
                    ended: *ended,
                };
                self.note(event)?;
            }
            News::Closed(_) => self.cluster.nodes[node].returned = false,
            _ => {}
        }
        Ok(())
    }

    /// A spare, or a lost node that is back, takes ranks: from now on it matters.
    pub(super) fn take_in(&mut self, node: usize) -> anyhow::Result<()> {
        let now_ms = self.now_ms();
        let state = &mut self.cluster.nodes[node];
        state.lost = None;
        state.spare = false;
        let Some((facts, _)) = &state.facts else { return Ok(()) };
        let boot = facts.boot.clone();
        if boot == self.own.boot {
            self.nodes.is_here(node);
        }
        let judged = self.nodes.hear(now_ms, Report::AgentUp { node, boot });
        self.heed(judged)
    }

    /// Whether a launcher's status 0 means that all went well. Where it does not, the benchmark says by itself
    /// when it is over, which is looked for first; of any other program only the nodes can tell.
    pub(super) fn believes_zero(&mut self) -> anyhow::Result<bool> {
        Ok(!self.settings.tool.hides_losses()
            || !self.settings.benchmark.progress_shows && self.all_nodes_answer()?)
    }

    fn all_nodes_answer(&mut self) -> anyhow::Result<bool> {
        // What was said before the question is no answer.
        while self.hear(Duration::ZERO)?.is_some() {}
        let placed = self.state.placed.iter().map(|host| self.cluster.find(&host.name));
        let Some(placed) = placed.collect::<Option<BTreeSet<usize>>>() else {
            return Ok(false);
        };
        let silence = Duration::from_millis(self.settings.thresholds.silence_ms);
        self.await_beats(placed, silence, |_, _| ())
    }

    /// Asks all nodes for a heartbeat and waits for those of the `missing` ones. Returns whether all have come in `time`.
    pub(super) fn await_beats(
        &mut self,
        mut missing: BTreeSet<usize>,
        time: Duration,
        mut seen: impl FnMut(&mut Self, &Beat),
    ) -> anyhow::Result<bool> {
        self.cluster.beat_all();
        let until = Instant::now() + time;
        while !missing.is_empty() && Instant::now() < until {
            if let Some((node, News::Beat { beat, .. })) = self.hear(BEAT_LOOK)? {
                missing.remove(&node);
                seen(self, &beat);
            }
        }
        Ok(missing.is_empty())
    }
}
