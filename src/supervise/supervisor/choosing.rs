//! Choice of the nodes for the next attempt: asks `judge::policy`, waits for repaired nodes, and reports missing nodes.
//!
//! The restart loop calls [`Supervisor::choose_nodes`] before every launch. A newly chosen node is watched from then on.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use super::{Supervisor, over};
use crate::base::clock::Instant;
use crate::base::faults::{Sabotage, sabotaged};
use crate::supervise::judge::ending::{STATUS_ENVIRONMENT, STATUS_RESUMABLE};
use crate::supervise::judge::fitness::{Expected, Need};
use crate::supervise::judge::node_files::{NodeFiles, of_best};
use crate::supervise::judge::policy::{Fitness, Placement, Situation, place};
use crate::supervise::remember::events::Event;
use crate::supervise::start::hosts::Host;
use crate::supervise::talk::cluster::FIRST_CALL;
use crate::supervise::talk::progress::Progress;
use crate::supervise::talk::wire::Storage;
use crate::supervise::tell::status::Activity;

/// Words for a node that the command of a resumed run does not name.
pub const UNNAMED: &str = "this command does not name the node";

impl Supervisor<'_> {
    /// Returns whether a node has ranks.
    pub(super) fn is_placed(&self, name: &str) -> bool {
        self.state.placed.iter().any(|host| host.name == name)
    }

    pub(super) fn is_fit(&self, name: &str) -> bool {
        let expected = self.expected(name, self.is_placed(name));
        matches!(self.cluster.fitness(name, &expected), Fitness::Fit { .. })
    }

    /// Returns the requirements for a node. The ranks of a node that is `placed` already have memory there. Room for this memory
    /// is required only before the first launch, or after the benchmark has refused for lack of room.
    pub(super) fn expected(&self, name: &str, placed: bool) -> Expected<'_> {
        let needs = &self.settings.benchmark.needs;
        let most = self.room.most;
        let asked_again = self.state.attempts == 0 || self.room.is_doubted;
        let need = match needs.get(name).copied() {
            Some(own) if placed && asked_again => Some(own),
            None if placed && self.room.is_doubted => most,
            _ if placed => most.map(|need| Need { named_bytes: 0, own_bytes: 0, ..need }),
            _ => most,
        };
        // After the first attempt the ranks themselves handle missing storage: they continue in memory. The free memory of
        // devices was read before the first attempt.
        let need = need.map(|need| match self.state.attempts {
            0 => need,
            _ => Need { stored_bytes: 0, device_bytes: 0, ..need },
        });
        Expected {
            binary: &self.own.binary,
            need,
            rounding: self.settings.benchmark.rounding.zip(self.ranks.rounding.as_deref()),
        }
    }

    /// Sets the run's arithmetic: as noted in the journal, or, before the first launch, the arithmetic that the run's nodes
    /// share.
    pub(super) fn learn_rounding(&mut self) {
        let Some(rules) = self.settings.benchmark.rounding else { return };
        self.ranks.rounding = self.state.rounding.clone().or_else(|| {
            let placed = self.state.placed.iter().filter_map(|h| self.cluster.find(&h.name));
            let nodes = placed.map(|at| &self.cluster.nodes[at]);
            let nodes = nodes.filter(|node| node.lost.is_none() || node.returned);
            rules.rounding(
                nodes.filter_map(|n| n.facts.as_ref()).map(|(facts, _)| &facts.arithmetic),
            )
        });
    }

    /// Declares the nodes lost that this command does not name, if the run can resume from shared storage. Nodes of an earlier
    /// job may belong to other users by now. A run without shared storage needs these nodes.
    pub(super) fn leave_unnamed(&mut self) -> anyhow::Result<()> {
        if self.settings.benchmark.level2.is_none() {
            return Ok(());
        }
        let (hosts, spares) = (&self.settings.hosts, &self.settings.spares);
        let named: HashSet<&str> = hosts.iter().chain(spares).map(|h| h.name.as_str()).collect();
        let unnamed = self
            .cluster
            .those(|node| node.lost.is_none() && !named.contains(node.host.name.as_str()));
        self.lose_all(unnamed.into_iter().map(|at| (at, UNNAMED.to_owned())))
    }

    /// Chooses the nodes of the next attempt, and waits for a node if the settings allow it.
    pub(super) fn choose_nodes(&mut self) -> anyhow::Result<Vec<Host>> {
        let mut waiting_since: Option<Instant> = None;
        let mut unheard_since: Option<Instant> = None;
        let mut called = false;
        loop {
            if let Some(why) = self.is_to_halt()? {
                return over(STATUS_RESUMABLE, why);
            }
            self.learn_rounding();
            let placement = self.placement();
            if self.is_too_soon(&placement) {
                let since = *unheard_since.get_or_insert_with(Instant::now);
                if self.settings.wait.is_none_or(|limit| since.elapsed() < limit) {
                    self.idle(Duration::from_millis(50))?;
                    continue;
                }
            } else {
                unheard_since = None;
            }
            match placement {
                Placement::Go { replaced, .. } if !self.make_room(&replaced)? => {}
                Placement::Go { hosts, replaced } => {
                    self.replace(replaced)?;
                    return Ok(hosts);
                }
                // A launch on nodes that may have no room is better than none.
                Placement::GiveUp { .. } | Placement::Wait { .. } if self.room.is_doubted => {
                    self.room.is_doubted = false;
                }
                Placement::GiveUp { .. } if !called && self.cluster.call_lost_now() => {
                    // A lost node may have been repaired since the last call to it.
                    called = true;
                    self.idle_unless(FIRST_CALL, |this| {
                        Ok(!this.cluster.awaits_lost() || this.is_to_halt()?.is_some())
                    })?;
                }
                Placement::GiveUp { why } => {
                    return match self.state.attempts {
                        0 => over(STATUS_ENVIRONMENT, self.unfit_words()),
                        _ => over(STATUS_RESUMABLE, why),
                    };
                }
                Placement::Wait { missing } => {
                    if waiting_since.is_none() {
                        self.note(Event::Waiting { missing })?;
                    }
                    let since = *waiting_since
                        .get_or_insert_with(|| unheard_since.unwrap_or_else(Instant::now));
                    let limit = self.settings.wait.unwrap_or_default();
                    if since.elapsed() >= limit {
                        let why = format!("{missing} node(s) missing for {} s", limit.as_secs());
                        return over(STATUS_RESUMABLE, why);
                    }
                    self.status.activity = Activity::Waiting;
                    self.idle(Duration::from_millis(200))?;
                }
            }
        }
    }

    /// Returns whether the placement should wait for an unresponsive node that is not judged lost yet and may still answer. This
    /// is a node with ranks, or any node if too few nodes are left.
    fn is_too_soon(&self, placement: &Placement) -> bool {
        let is_placed = |at: usize| self.is_placed(&self.cluster.nodes[at].host.name);
        let is_enough = matches!(placement, Placement::Go { .. });
        !sabotaged(Sabotage::ChoosesSoon)
            && self.nodes.in_trouble().any(|at| !is_enough || is_placed(at))
    }

    /// Asks the policy for a placement on the nodes in their present state.
    fn placement(&self) -> Placement {
        let files = self.files_at_hand();
        let begins = self.state.attempts == 0;
        let placed: HashSet<&str> = self.state.placed.iter().map(|h| h.name.as_str()).collect();
        let nodes = self.cluster.nodes.iter().map(|n| n.host.clone());
        let spares: Vec<Host> = nodes.filter(|h| !placed.contains(h.name.as_str())).collect();
        place(&Situation {
            placed: &self.state.placed,
            spares: &spares,
            fitness: &|name| {
                self.cluster.fitness(name, &self.expected(name, placed.contains(name)))
            },
            ranks: self.settings.ranks,
            rank_bytes: self.ranks.bytes,
            files: &|name| files.get(name).cloned().unwrap_or_default(),
            begins,
            groups: &|name| self.groups_of(self.ranks.members.get(name)),
            // Before the first launch the placement uses only the given nodes and spares, with the given numbers of ranks.
            may_double: self.settings.may_double && !begins,
            may_wait: self.settings.wait.is_some(),
        })
    }

    /// Hands the ranks of nodes over to other nodes. Notes each replacement, unless it is already noted and the replacement has
    /// not been lost since.
    fn replace(&mut self, replaced: Vec<(String, String)>) -> anyhow::Result<()> {
        let mut events = Vec::new();
        for (node, by) in replaced {
            let kept = self.cluster.find(&node);
            let kept = kept.filter(|at| self.cluster.nodes[*at].lost.is_none());
            let problems = kept.map(|at| self.cluster.problems(at, &self.expected(&node, true)));
            if let Some(at) = self.cluster.find(&by) {
                self.take_in(at)?;
            }
            let pair = (node.clone(), by.clone());
            let is_known = self.attempt.replaced.contains(&pair);
            if is_known && !self.state.lost.contains(&by) {
                continue;
            }
            match problems {
                Some(problems) if problems.is_empty() => {
                    self.print(&format!("{by} has files of the checkpoint that this run resumes from, and {node} has none"));
                }
                // Problems of nodes were reported before the first launch.
                Some(problems) if self.room.is_doubted => {
                    let why = problems.join("; ");
                    self.print(&format!("{node} cannot be used: {why}"));
                }
                _ => {}
            }
            if !is_known {
                self.attempt.replaced.push(pair);
                let moved = self.ranks.members.remove(&node).unwrap_or_default();
                self.ranks.members.entry(by.clone()).or_default().extend(moved);
            }
            events.push(Event::Replaced { node, by });
        }
        self.note_all(events)
    }

    /// Returns, for each node, the positions whose files are on the node's own storage. Only files of the checkpoint from which
    /// the run resumes count. Returns an empty map after a launch, because the files have changed since the agents read their
    /// lists. Before the first launch of a run that discards checkpoints the map is empty, too.
    fn files_at_hand(&self) -> HashMap<String, BTreeSet<u32>> {
        let begun = self.state.attempts != self.began_after;
        let discards = self.state.from_scratch || self.settings.benchmark.restarts_never;
        if begun || discards && self.state.attempts == 0 {
            return HashMap::new();
        }
        let told = self.cluster.nodes.iter().filter(|node| node.lost.is_none());
        let told: Vec<(&str, &Storage)> = told
            .filter_map(|node| match &node.facts.as_ref()?.0.storage {
                Some(Ok(storage)) => Some((node.host.name.as_str(), storage)),
                _ => None,
            })
            .collect();
        let placed: HashSet<&str> = self.state.placed.iter().map(|h| h.name.as_str()).collect();
        let node_files = told.iter().map(|&(name, storage)| NodeFiles {
            placed: placed.contains(name),
            lying: &storage.lying,
        });
        let found = of_best(&node_files.collect::<Vec<NodeFiles>>());
        told.iter().map(|(name, _)| (*name).to_owned()).zip(found).collect()
    }

    /// Returns the groups of these positions, or none if the positions are unknown.
    fn groups_of(&self, positions: Option<&BTreeSet<u32>>) -> BTreeSet<usize> {
        let group =
            |position: &u32| self.settings.benchmark.groups.get(*position as usize).copied();
        positions.into_iter().flatten().filter_map(group).collect()
    }

    /// Notes the positions of a node's ranks, in case the node is lost. A heartbeat without ranks does not show that the node has
    /// none.
    pub(super) fn see_members(&mut self, node: usize, ranks: &[Progress]) {
        let all = self.settings.benchmark.groups.len();
        let positions = ranks.iter().map(|rank| rank.position);
        let mut positions = positions.filter(|position| (*position as usize) < all).peekable();
        let node = &self.cluster.nodes[node].host.name;
        // Nearly every heartbeat repeats the known positions, so these are compared first.
        let known = self.ranks.members.get(node).map(|known| known.iter().copied());
        if positions.peek().is_some() && !known.is_some_and(|known| known.eq(positions.clone())) {
            self.ranks.members.insert(node.clone(), positions.collect());
        }
    }

    /// Describes why the run cannot begin: the nodes that cannot be used, and a remedy.
    pub(super) fn unfit_words(&self) -> String {
        // Each reason with its nodes. A full folder that all nodes share, for example, is one reason for all nodes.
        let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for node in &self.cluster.nodes {
            let name = &node.host.name;
            let placed = self.is_placed(name);
            let why = match self.cluster.fitness(name, &self.expected(name, placed)) {
                Fitness::Fit { .. } => continue,
                Fitness::Unfit(why) => why,
                Fitness::Lost { .. } => node.lost.clone().unwrap_or_default(),
            };
            let name = if placed { name.clone() } else { format!("spare {name}") };
            reasons.entry(why).or_default().push(name);
        }
        let words: Vec<String> =
            reasons.iter().map(|(why, names)| format!("{}: {why}", names.join(", "))).collect();
        format!(
            "not started, because nodes cannot be used (repair them, remove them from the list, or give spares): {}",
            words.join("; ")
        )
    }

    /// Returns whether a node is fit and has ranks, and a fit spare could take its ranks.
    pub(super) fn has_spare_for(&self, node: &str) -> bool {
        let mut names = self.cluster.nodes.iter().map(|n| n.host.name.as_str());
        self.is_placed(node)
            && self.is_fit(node)
            && names.any(|name| !self.is_placed(name) && self.is_fit(name))
    }
}
