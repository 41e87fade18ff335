//! Ends the processes of a job on all nodes, and finds out which nodes are lost.
//!
//! The restart loop calls this after every attempt, and after a failed trial of MPI. Losses are judged by `judge::nodes` as in
//! every other step, so a node whose connection is being made again has its full time here, too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Supervisor;
use super::contact::LOOK;
use crate::base::clock::Instant;
use crate::base::faults::{Sabotage, sabotaged};
use crate::supervise::judge::nodes::Loss;
use crate::supervise::remember::events::Event;
use crate::supervise::remember::io_thread::Answer;
use crate::supervise::start::job::Job;
use crate::supervise::talk::agent::LET_GO_TIMEOUT;
use crate::supervise::talk::cluster::{News, unreachable_words};
use crate::supervise::talk::processes::end_run;

/// Least time for a second call to a node whose connection ended during the run. Without a second call the memory of a healthy
/// node would be lost only because the agent or the connection failed.
const REDIAL_TIMEOUT: Duration = Duration::from_millis(1500);

/// Time for which the nodes of a finished run are asked again to remove its memory, if no node answers.
const TIDY_TIMEOUT: Duration = Duration::from_secs(60);

/// Time that an agent may take to end processes. If memory is to be removed, the time in which processes release memory is added.
const END_TIMEOUT: Duration = Duration::from_secs(4);

/// Nodes that are lost but not declared lost yet, each with the reason.
type Failed = Vec<(usize, String)>;

impl Supervisor<'_> {
    /// Ends the processes of the job on all nodes, and finds out which nodes do not answer. If the run is `over`, its nodes
    /// remove the memory that the run has left. Returns the nodes that cannot be reached.
    pub(super) fn stop(
        &mut self,
        job: Option<&mut Job>,
        over: bool,
    ) -> anyhow::Result<BTreeSet<String>> {
        // The size of memory that only shows progress is not what a rank needs.
        if !self.settings.shows_only_progress()
            && let Some(bytes) = self.cluster.rank_bytes()
        {
            self.ranks.bytes = Some(self.ranks.bytes.map_or(bytes, |known| known.max(bytes)));
        }
        let here = match job {
            Some(job) => self.meanwhile(job.end(&self.state.run_id))?,
            None => self.end_here()?,
        };
        let clean = self.to_clean(over);
        let asked = self.cluster.those(|node| node.lost.is_none());
        // If only memory is to be removed, the wait has a limit.
        let until = Instant::now() + TIDY_TIMEOUT;
        let late = |this: &Self| this.halt.is_some() || over && Instant::now() >= until;
        let (ended, failed) =
            self.end_on(&asked, &clean, |this| this.nodes.is_alone() && late(this))?;
        let unresponsive = failed.iter().map(|(node, _)| *node);
        let nobody = self.nodes.is_alone() || self.nodes.none_answers(&asked, unresponsive);
        let mut unreachable = self.state.lost.clone();
        unreachable
            .extend(failed.iter().map(|(node, _)| self.cluster.nodes[*node].host.name.clone()));
        // If no node can be reached, this machine is cut off, and none of them is declared lost.
        if !nobody {
            self.lose_all(failed)?;
        }
        self.note(Event::Stopped {
            attempt: self.state.attempts,
            ended: here + ended.values().sum::<usize>(),
            unreachable: unreachable.iter().cloned().collect(),
        })?;
        Ok(unreachable)
    }

    /// Ends the run's processes on this machine, and returns their number.
    pub(super) fn end_here(&mut self) -> anyhow::Result<usize> {
        let run_id = self.state.run_id.clone();
        self.meanwhile(Answer::in_background(move || end_run(&run_id)))
    }

    /// Ends the run's processes on these nodes. Returns the number of processes ended on each node, and the nodes that do not
    /// answer. Nodes named in `clean` also remove the memory that the run has left. If no node can be reached, waits until a node
    /// can be, or until `enough` returns true.
    pub(super) fn end_on(
        &mut self,
        nodes: &[usize],
        clean: &BTreeSet<String>,
        enough: impl Fn(&Self) -> bool,
    ) -> anyhow::Result<(BTreeMap<usize, usize>, Failed)> {
        let node_timeout = Duration::from_millis(self.settings.thresholds.node_timeout_ms);
        let redial = REDIAL_TIMEOUT.max((2 * self.cluster.logins.slowest()).min(node_timeout));
        let id = self.cluster.next_end();
        let begun = Instant::now();
        let up: Vec<usize> =
            nodes.iter().copied().filter(|node| self.cluster.nodes[*node].up).collect();
        // For each node, the moment at which it was asked, or, if it is not connected, at which the attempts to ask it began.
        let mut waiting: BTreeMap<usize, Instant> =
            nodes.iter().map(|node| (*node, begun)).collect();
        // Bytes of memory that each node has last reported.
        let mut held: BTreeMap<usize, u64> = BTreeMap::new();
        let mut called = BTreeSet::new();
        self.cluster.ask_end(&up, id, clean);
        self.cluster.call_new();
        let mut counts = BTreeMap::new();
        let mut failed = Vec::new();
        let mut looked = begun;
        // A node that was judged lost may answer again while other nodes are waited for.
        while waiting.keys().any(|node| self.judged_lost(*node).is_none())
            && !sabotaged(Sabotage::LeavesRanks)
        {
            match self.hear(LOOK)? {
                Some((node, News::Ended { id: of, ended }))
                    if of == id
                        && self.judged_lost(node).is_none()
                        && waiting.remove(&node).is_some() =>
                {
                    counts.insert(node, ended);
                }
                // An earlier request may have been lost with the connection.
                Some((node, News::Up)) if waiting.contains_key(&node) => {
                    self.cluster.ask_end(&[node], id, clean);
                    waiting.insert(node, Instant::now());
                }
                // For a node that `nodes` knows, the judge itself has it called again.
                Some((node, News::Closed(why)))
                    if !self.nodes.knows(node)
                        && self.judged_lost(node).is_none()
                        && waiting.contains_key(&node) =>
                {
                    // The node is called a second time, in case only the connection failed.
                    if called.insert(node) {
                        self.cluster.call(&[node]);
                    } else {
                        failed.push((node, unreachable_words(&why)));
                        waiting.remove(&node);
                    }
                }
                _ => {}
            }
            self.is_to_halt()?;
            if enough(self) {
                break;
            }
            if looked.elapsed() < LOOK {
                continue;
            }
            looked = Instant::now();
            waiting.retain(|node, asked| {
                // While the size of a node's memory changes, the node is still working on the request.
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
        failed.extend(waiting.into_keys().map(|node| {
            let why = self.judged_lost(node).map_or("it does not answer", |loss| &loss.detail);
            (node, why.to_owned())
        }));
        Ok((counts, failed))
    }

    /// Returns the loss of a node that was judged lost and has not been declared lost yet.
    pub(super) fn judged_lost(&self, node: usize) -> Option<&Loss> {
        self.contact.losses.iter().find(|loss| loss.node == node)
    }

    /// Returns whether a node that was `asked` at this moment to end its processes is late. The time begins again while no node
    /// can be reached, and while the judge waits for the node.
    fn is_late(
        &self,
        node: usize,
        asked: &mut Instant,
        redial: Duration,
        clean: &BTreeSet<String>,
    ) -> bool {
        let called_for = self.cluster.called_for(node);
        // If the judge knows a node, the judge decides as long as the node is being called or unresponsive. A node that was
        // judged lost may answer again.
        let waits = self.judged_lost(node).is_some()
            || match called_for {
                Some(_) => self.nodes.knows(node),
                None => self.nodes.is_in_trouble(node),
            };
        // If no node can be reached, no node is late.
        if self.nodes.is_alone() || waits {
            *asked = Instant::now();
            return false;
        }
        if let Some(so_long) = called_for {
            return so_long.min(asked.elapsed()) >= redial;
        }
        // The node answers, but has not ended its processes.
        let node_timeout = Duration::from_millis(self.settings.thresholds.node_timeout_ms);
        let state = &self.cluster.nodes[node];
        // A node that was unresponsive when the run ended has no additional time for removing memory.
        let removes = clean.contains(&state.host.name)
            && state.unresponsive.is_none_or(|so_long| so_long < node_timeout);
        let most = if removes { LET_GO_TIMEOUT } else { Duration::ZERO };
        asked.elapsed() >= node_timeout + END_TIMEOUT + most
    }
}
