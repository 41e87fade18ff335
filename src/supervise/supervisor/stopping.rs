//! Ending what is left of a job everywhere, and finding out which nodes are lost by then.
//!
//! The restart loop comes by here after every incarnation, and after a trial of MPI that failed. Who is lost is judged as
//! always (`judge::nodes`); so a node whose way to the supervisor is being made anew has its time in here, too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{OUTAGE_PAUSE, Supervisor};
use crate::base::clock::Instant;
use crate::base::faults::{Sabotage, sabotaged};
use crate::supervise::remember::clerk::Answer;
use crate::supervise::remember::events::{Event, FaultKind};
use crate::supervise::start::job::Job;
use crate::supervise::talk::agent::LET_GO_PATIENCE;
use crate::supervise::talk::cluster::{News, unreachable_words};
use crate::supervise::talk::processes::end_run;

/// A second chance for a node whose connection ended while the run was on: an agent, or a line, may fail
/// where the node is well, and its memory is worth the wait.
const REDIAL_PATIENCE: Duration = Duration::from_millis(1500);

/// How often those who have not answered a request to end the run are looked at.
const END_LOOK: Duration = Duration::from_millis(50);

/// Ending the processes on this machine may take so long.
const HERE_PATIENCE: Duration = Duration::from_secs(3);

/// How long nodes of a run that is over are asked again to remove what it has left, where none of them answers.
const TIDY_PATIENCE: Duration = Duration::from_secs(60);

/// Ending processes may take an agent so long, beside the time that it gives them to let go of memory that is to be removed.
const END_PATIENCE: Duration = Duration::from_secs(4);

/// Nodes that are lost, though not yet declared so, and why.
type Failed = Vec<(usize, String)>;

impl Supervisor<'_> {
    /// Ends what is left of the job everywhere, and finds out which nodes do not answer.
    /// Where the run is `over`, the nodes it ran on remove what memory it has left. Returns which cannot be reached.
    pub(super) fn stop(
        &mut self,
        job: Option<&mut Job>,
        over: bool,
    ) -> anyhow::Result<BTreeSet<String>> {
        // Memory that only shows progress says nothing about what a rank takes.
        if !self.settings.shows_only_progress()
            && let Some(bytes) = self.cluster.rank_bytes()
        {
            self.ranks.bytes = Some(self.ranks.bytes.map_or(bytes, |known| known.max(bytes)));
        }
        let run_id = self.state.run_id.clone();
        let here = match job {
            Some(job) => job.end(&run_id),
            None => Answer::beside(move || end_run(&run_id, None, HERE_PATIENCE).0),
        };
        let here = self.meanwhile(here)?;
        let clean = self.to_clean(over);
        let asked = self.cluster.those(|node| node.lost.is_none());
        // What is only to be tidied up is not waited for very long.
        let until = over.then(|| Instant::now() + TIDY_PATIENCE);
        let (mut there, mut failed) = self.end_everywhere(&clean, until)?;
        let alone = |this: &Self, failed: &Failed| {
            // One that was started anew has answered.
            let silent = failed.iter().map(|(node, _)| *node).filter(|at| !this.is_anew(*at));
            this.nodes.none_answers(&asked, silent)
        };
        // Nobody is lost only because nobody can be reached from here.
        let mut alone_since_ms = None;
        let mut was_alone = false;
        while self.halt.is_none() && until.is_none_or(|until| Instant::now() < until) {
            if alone(self, &failed) {
                // Nor has the judge seen it meanwhile, which knows fewer than two of them.
                let untold = alone_since_ms.is_none() && !self.nodes.is_alone();
                if std::mem::replace(&mut was_alone, true) && untold {
                    alone_since_ms = Some(self.now_ms());
                    self.note(Event::Alone)?;
                }
                self.pass_time(OUTAGE_PAUSE, |this| {
                    this.forgive();
                    Ok(())
                })?;
                if self.is_to_halt()?.is_some() {
                    break;
                }
            } else if failed.is_empty() || !std::mem::take(&mut was_alone) {
                break;
            } else {
                // Some node answers: the others have all their time from now on.
                self.forgive();
            }
            let (more, again) = self.end_everywhere(&clean, until)?;
            (there, failed) = (there + more, again);
        }
        if let Some(since_ms) = alone_since_ms.filter(|_| !alone(self, &failed)) {
            self.note(Event::Together { after_ms: self.now_ms() - since_ms })?;
        }
        // Heartbeats that were laid aside are of ranks that have just been ended: the next incarnation's watchdog would
        // take them for its own, and see them die.
        self.backlog.retain(|(_, news)| !matches!(news, News::Beat { .. }));
        let mut unreachable = self.state.lost.clone();
        unreachable
            .extend(failed.iter().map(|(node, _)| self.cluster.nodes[*node].host.name.clone()));
        if !alone(self, &failed) && !self.nodes.is_alone() {
            self.lose_all(failed)?;
        }
        self.note(Event::Stopped {
            incarnation: self.state.incarnation,
            ended: here + there,
            unreachable: unreachable.iter().cloned().collect(),
        })?;
        Ok(unreachable)
    }

    /// Whether the node was judged lost since it was started anew.
    fn is_anew(&self, node: usize) -> bool {
        self.contact
            .losses
            .iter()
            .any(|loss| loss.node == node && loss.kind == FaultKind::NodeRebooted)
    }

    /// While nobody can be reached no silence counts, nor that which was judged before it was seen.
    fn forgive(&mut self) {
        let now_ms = self.now_ms();
        let nodes = &mut self.nodes;
        self.contact.losses.retain(|loss| {
            let anew = loss.kind == FaultKind::NodeRebooted;
            if !anew {
                nodes.forgive(now_ms, loss.node);
            }
            anew
        });
    }

    /// Ends the run's processes on all nodes that are not lost. Returns how many were ended, and which nodes are lost.
    /// Those named in `clean` remove what memory the run has left, too. Where nobody can be reached from here, it waits until
    /// somebody can be, or `until` then.
    pub(super) fn end_everywhere(
        &mut self,
        clean: &BTreeSet<String>,
        until: Option<Instant>,
    ) -> anyhow::Result<(usize, Failed)> {
        let silence = Duration::from_millis(self.settings.thresholds.silence_ms);
        let redial = REDIAL_PATIENCE.max((2 * self.cluster.login()).min(silence));
        let id = self.cluster.next_end();
        let begun = Instant::now();
        let here = self.cluster.those(|node| node.lost.is_none());
        let (up, down): (Vec<usize>, Vec<usize>) =
            here.into_iter().partition(|node| self.cluster.is_up(*node));
        // Who was asked, and when; of whom nobody has been able to ask yet, since when that is tried.
        let mut waiting: BTreeMap<usize, Instant> =
            up.iter().chain(&down).map(|node| (*node, begun)).collect();
        // That a connection ended, which was laid aside, is known: `down` says so.
        self.backlog
            .retain(|(node, news)| !waiting.contains_key(node) || !matches!(news, News::Closed(_)));
        // What memory each was last seen to have.
        let mut held: BTreeMap<usize, u64> = BTreeMap::new();
        let mut called: BTreeSet<usize> = down.iter().copied().collect();
        self.cluster.ask_end(&up, id, clean);
        self.cluster.call_new();
        let mut total = 0;
        let mut failed = Vec::new();
        let mut looked = begun;
        while !waiting.is_empty() && !sabotaged(Sabotage::LeavesRanks) {
            match self.hear(END_LOOK)? {
                Some((node, News::Ended { id: of, ended }))
                    if of == id && waiting.remove(&node).is_some() =>
                {
                    total += ended;
                }
                // What it was told before may have been lost on the way.
                Some((node, News::Up(_))) if waiting.contains_key(&node) => {
                    self.cluster.ask_end(&[node], id, clean);
                    waiting.insert(node, Instant::now());
                }
                Some((node, News::Closed(why)))
                    if waiting.contains_key(&node) && !self.nodes.knows(node) =>
                {
                    // Once more, in case only the connection was at fault.
                    if called.insert(node) {
                        self.cluster.call(&[node]);
                    } else {
                        failed.push((node, unreachable_words(&why)));
                        waiting.remove(&node);
                    }
                }
                _ => {}
            }
            for loss in &self.contact.losses {
                if waiting.remove(&loss.node).is_some() {
                    failed.push((loss.node, loss.detail.clone()));
                }
            }
            let enough = until.is_some_and(|until| Instant::now() >= until);
            if self.nodes.is_alone() && (enough || self.is_to_halt()?.is_some()) {
                break;
            }
            if looked.elapsed() < END_LOOK {
                continue;
            }
            looked = Instant::now();
            waiting.retain(|node, asked| {
                // As long as some of its memory goes, the node is at work.
                let bytes = self.cluster.nodes[*node].beat.held_bytes;
                if held.insert(*node, bytes).is_some_and(|before| before != bytes) {
                    *asked = looked;
                }
                let late = self.is_late(*node, asked, redial, clean);
                if late {
                    failed.push((*node, "it does not answer".to_string()));
                }
                !late
            });
        }
        let unasked = waiting.into_keys().map(|node| (node, "it does not answer".to_string()));
        failed.extend(unasked);
        Ok((total, failed))
    }

    /// Whether a node, asked at that time to end its processes, has had its time. The time begins again while nothing is held
    /// against it.
    fn is_late(
        &self,
        node: usize,
        asked: &mut Instant,
        redial: Duration,
        clean: &BTreeSet<String>,
    ) -> bool {
        let called_for = self.cluster.called_for(node);
        // That no node can be reached is held against none.
        if self.nodes.is_alone() || called_for.is_none() && self.nodes.is_in_trouble(node) {
            *asked = Instant::now();
            return false;
        }
        if let Some(so_long) = called_for {
            // A node that the judge knows is judged there.
            return !self.nodes.knows(node) && so_long.min(asked.elapsed()) >= redial;
        }
        // The node lives, but does not do it.
        let silence = Duration::from_millis(self.settings.thresholds.silence_ms);
        let state = &self.cluster.nodes[node];
        // A node that was silent when the run ended is not judged any more.
        let removes = clean.contains(&state.host.name)
            && state.silent.is_none_or(|so_long| so_long < silence);
        let most = if removes { LET_GO_PATIENCE } else { Duration::ZERO };
        asked.elapsed() >= silence + END_PATIENCE + most
    }
}
