//! Judgement whether a node is lost, from reports on nodes in trouble and from the time that passes. Pure.
//!
//! The supervisor keeps one [`Nodes`] for as long as it lives, so the node timeout counts in every phase of a run: while nodes
//! are checked, while MPI starts, while ranks are restored. The supervisor reports to it when a node becomes unresponsive or
//! answers again, or when its connection ends. Healthy nodes cost no time here, however many there are.
//!
//! The time without a heartbeat is the time that is reported, not the time on the clock. Other nodes may relay between the
//! supervisor and a node, and if they are lost, the state of the node is unknown. So a node is lost only if the agent that calls
//! it reports to the supervisor a time without an answer as long as the timeout.
//!
//! If all nodes become unresponsive at once, the supervisor itself is cut off, and no node is judged lost. Once a node answers
//! again, the times of all other nodes start again at zero.
//!
//! Times are milliseconds of any clock that only goes forward.

use std::collections::{BTreeMap, BTreeSet};

use super::thresholds::Thresholds;
use crate::base::faults::{Sabotage, sabotaged};
use crate::supervise::remember::events::FaultKind;

/// Report on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The process that calls the node's agent has had no message from the agent since `heard_ms`. The report is repeated until
    /// the node answers.
    Quiet { heard_ms: u64 },
    /// The node has answered again after it was unresponsive.
    Heard,
    /// The connection to the node's agent ended, or could not be made.
    Closed,
    /// The node's agent has answered for the first time on this connection. `boot` is the node's boot identity.
    AgentUp { boot: String },
}

/// Loss of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub node: usize,
    pub kind: FaultKind,
    /// Last moment at which the node was known to be well.
    pub failed_ms: u64,
    pub detail: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The connection must be made again at once.
    Redial {
        node: usize,
    },
    /// The connection was made again, and the node is the same as before.
    Restarted {
        node: usize,
    },
    Lost(Loss),
    /// No node answers any more: the supervisor is cut off.
    Alone,
    /// A node answers again, `after_ms` after the last heartbeat of any node.
    Together {
        after_ms: u64,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    /// Moment of the last heartbeat.
    heard_ms: u64,
    closed_ms: Option<u64>,
    /// Moment at which to call again after a failed call.
    again_ms: Option<u64>,
    /// Time for which the node is known to have been unresponsive, or to have been called without an answer.
    known_ms: u64,
}

/// Nodes that have answered at least once, until they are forgotten. `trouble` lists those that are unresponsive or not
/// connected.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    node_timeout_ms: u64,
    /// Time in which a connection that ended must be made again.
    pub redial_ms: u64,
    names: Vec<String>,
    /// Nodes whose agents run on this machine. Their answers show nothing about the network.
    pub here: BTreeSet<usize>,
    /// Boot identity of each node that has answered.
    boots: BTreeMap<usize, String>,
    /// Lost nodes that answer again, which shows that the supervisor is not cut off.
    back: BTreeSet<usize>,
    trouble: BTreeMap<usize, Trouble>,
    /// Nodes that were judged lost, until the caller forgets them or they answer again.
    lost: BTreeSet<usize>,
    ticked_ms: Option<u64>,
    /// Moment up to which no node could be heard because the supervisor was suspended or cut off.
    deaf_until_ms: u64,
    alone_since_ms: Option<u64>,
    /// Moment of the next call to all nodes while no node answers.
    call_at_ms: u64,
    /// Least pause after that call.
    back_off_ms: u64,
}

/// Words for a node that has another boot id than before.
pub const WAS_RESTARTED: &str = "was restarted";

/// Longest time between two calls of `pass` without a suspension. After a longer time, the supervisor itself must have been
/// suspended.
const GAP_MS: u64 = 1000;
/// First pause between calls of all nodes while no node answers. Each call doubles the pause.
const CALL_FIRST_MS: u64 = 2_000;
/// Largest value of the pause that doubles.
const CALL_MAX_MS: u64 = 10_000;
/// Pause before a failed call is repeated while other nodes answer.
const CALL_AGAIN_MS: u64 = 100;
/// Least number of unresponsive nodes for an outage. With fewer, the supervisor does not count as cut off.
const OUTAGE_LEAST: usize = 2;

impl Nodes {
    pub fn new(thresholds: &Thresholds, names: Vec<String>) -> Self {
        Self {
            node_timeout_ms: thresholds.node_timeout_ms,
            redial_ms: thresholds.redial_ms,
            names,
            ..Self::default()
        }
    }

    /// Whether the node has answered and is neither lost nor forgotten.
    pub fn knows(&self, node: usize) -> bool {
        self.boots.contains_key(&node) && !self.lost.contains(&node)
    }

    /// Whether the node is unresponsive or not connected now.
    pub fn is_in_trouble(&self, node: usize) -> bool {
        self.trouble.contains_key(&node)
    }

    /// Whether no node answers. The supervisor may then miss events.
    pub fn is_alone(&self) -> bool {
        self.alone_since_ms.is_some()
    }

    pub fn in_trouble(&self) -> impl Iterator<Item = usize> {
        self.trouble.keys().copied()
    }

    /// Forgets a node that was declared lost, or that the run no longer uses, until it answers again.
    pub fn forget(&mut self, node: usize) {
        self.boots.remove(&node);
        self.back.remove(&node);
        self.trouble.remove(&node);
        self.lost.remove(&node);
    }

    pub fn hear(&mut self, now_ms: u64, node: usize, report: Report) -> Vec<Judged> {
        self.pass(now_ms);
        let mut judged = Vec::new();
        match report {
            Report::Quiet { .. } | Report::Closed if !self.knows(node) => {}
            Report::Quiet { heard_ms } => {
                let fresh = Trouble { heard_ms, ..Trouble::default() };
                let trouble = self.trouble.entry(node).or_insert(fresh);
                let since_ms = match trouble.closed_ms {
                    // While a connection is being made, the time counts from the call.
                    Some(closed_ms) => heard_ms.max(closed_ms),
                    None => {
                        trouble.heard_ms = heard_ms.max(self.deaf_until_ms).max(trouble.heard_ms);
                        trouble.heard_ms
                    }
                };
                trouble.known_ms = now_ms.saturating_sub(since_ms);
            }
            Report::Heard => {
                // The node may have been judged lost without the caller having acted on it yet.
                self.lost.remove(&node);
                if self.trouble.get(&node).is_none_or(|t| t.closed_ms.is_none()) {
                    self.speaks(now_ms, node, &mut judged);
                }
            }
            Report::Closed => {
                let (from_ms, is_alone) = (self.called_from_ms(now_ms), self.is_alone());
                let fresh = Trouble { heard_ms: now_ms, ..Trouble::default() };
                let trouble = self.trouble.entry(node).or_insert(fresh);
                match trouble.closed_ms {
                    // A failed call is repeated until the node is judged lost.
                    Some(closed_ms) => {
                        trouble.again_ms = Some(now_ms + CALL_AGAIN_MS);
                        trouble.known_ms = now_ms.saturating_sub(closed_ms);
                    }
                    None => {
                        (trouble.closed_ms, trouble.known_ms) = (Some(from_ms), 0);
                        judged.extend((!is_alone).then_some(Judged::Redial { node }));
                    }
                }
            }
            Report::AgentUp { boot } => self.agent_up(now_ms, node, boot, &mut judged),
        }
        judged
    }

    /// Notes whether a node that was declared lost answers again.
    pub fn hear_lost(&mut self, now_ms: u64, node: usize, answers: bool) -> Vec<Judged> {
        self.pass(now_ms);
        let mut judged = Vec::new();
        if answers {
            self.back.insert(node);
            self.speaks(now_ms, node, &mut judged);
        } else {
            self.back.remove(&node);
        }
        judged
    }

    fn agent_up(&mut self, now_ms: u64, node: usize, boot: String, judged: &mut Vec<Judged>) {
        let before = self.trouble.get(&node).copied();
        self.speaks(now_ms, node, judged);
        self.back.remove(&node);
        self.lost.remove(&node);
        match self.boots.insert(node, boot.clone()) {
            Some(known) if known != boot => {
                judged.push(Judged::Lost(Loss {
                    node,
                    kind: FaultKind::NodeRebooted,
                    failed_ms: before.map_or(now_ms, |t| t.heard_ms),
                    detail: format!("{} {WAS_RESTARTED}: its memory is empty", self.names[node]),
                }));
            }
            Some(_) if before.is_some_and(|t| t.closed_ms.is_some()) => {
                judged.push(Judged::Restarted { node });
            }
            _ => {}
        }
    }

    /// Notes that this node answers. If no node had answered before, the time of all other nodes starts again.
    fn speaks(&mut self, now_ms: u64, node: usize, judged: &mut Vec<Judged>) {
        let heard_ms = || self.trouble.values().map(|trouble| trouble.heard_ms).max();
        let unheard_since_ms =
            if !self.is_alone() && self.is_our_outage() { heard_ms() } else { None };
        self.trouble.remove(&node);
        if self.here.contains(&node) {
            return;
        }
        // An outage too short to be noted also counts against no node.
        if let Some(since_ms) = unheard_since_ms {
            let gap_ms = now_ms.saturating_sub(since_ms);
            for trouble in self.trouble.values_mut() {
                trouble.heard_ms += gap_ms;
                trouble.closed_ms = trouble.closed_ms.map(|closed_ms| closed_ms + gap_ms);
                trouble.known_ms = trouble.known_ms.saturating_sub(gap_ms);
            }
        }
        if let Some(since_ms) = self.alone_since_ms.take() {
            judged.push(Judged::Together { after_ms: now_ms.saturating_sub(since_ms) });
            self.excuse(now_ms);
            let closed = self.trouble.iter_mut().filter(|(_, trouble)| trouble.closed_ms.is_some());
            judged.extend(closed.map(|(&node, trouble)| {
                // This redial replaces the call that was due after a failed call. A second call would end the connection that the
                // redial makes.
                trouble.again_ms = None;
                Judged::Redial { node }
            }));
        }
    }

    /// Makes the time before `now_ms` count against no node.
    fn excuse(&mut self, now_ms: u64) {
        self.deaf_until_ms = now_ms;
        let called_ms = self.called_from_ms(now_ms);
        for trouble in self.trouble.values_mut() {
            trouble.heard_ms = now_ms;
            trouble.closed_ms = trouble.closed_ms.map(|_| called_ms);
            trouble.known_ms = 0;
        }
    }

    /// Returns the moment from which a node that is called now has time to answer: usually `now_ms`. If no node could be heard a
    /// moment ago, all nodes are called at once. The moment is then later by the node timeout.
    fn called_from_ms(&self, now_ms: u64) -> u64 {
        let deaf = self.deaf_until_ms > 0
            && now_ms.saturating_sub(self.deaf_until_ms) < self.node_timeout_ms;
        if deaf { now_ms + self.node_timeout_ms } else { now_ms }
    }

    /// Notes the time. If the supervisor itself was suspended since the last call, the time up to now counts against no node.
    fn pass(&mut self, now_ms: u64) {
        let last_ms = self.ticked_ms.unwrap_or(now_ms);
        self.ticked_ms = Some(last_ms.max(now_ms));
        if now_ms.saturating_sub(last_ms) > GAP_MS {
            self.excuse(now_ms);
        }
    }

    /// Whether the supervisor is cut off: it `asked` at least two nodes on other machines, and all of these are `unresponsive`.
    /// Lost nodes that answer again count as asked.
    pub fn none_answers<'n>(
        &self,
        asked: impl IntoIterator<Item = &'n usize>,
        unresponsive: impl IntoIterator<Item = usize>,
    ) -> bool {
        let elsewhere = |node: &usize| !self.here.contains(node);
        let asked = asked.into_iter().copied().chain(self.back.iter().copied());
        let asked = asked.filter(elsewhere).count();
        asked >= OUTAGE_LEAST && unresponsive.into_iter().filter(elsewhere).count() == asked
    }

    /// Returns whether no known node answers, so that the supervisor may be cut off.
    fn is_our_outage(&self) -> bool {
        // If enough nodes are well, the nodes need not be counted.
        let few_are_well =
            self.trouble.len() + self.here.len() + self.lost.len() >= self.boots.len();
        let known = self.boots.keys().filter(|node| !self.lost.contains(node));
        few_are_well && self.none_answers(known, self.in_trouble())
    }

    /// Judges the nodes in trouble. The supervisor calls it several times a second.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Judged> {
        self.pass(now_ms);
        let mut judged = Vec::new();
        if self.trouble.is_empty() {
            return judged;
        }
        if self.is_our_outage() && !sabotaged(Sabotage::NoOutage) {
            self.call_all(now_ms, &mut judged);
            return judged;
        }
        let mut lost = Vec::new();
        for (&node, trouble) in &mut self.trouble {
            let name = &self.names[node];
            let known_ms = trouble.known_ms;
            let (kind, detail) = match trouble.closed_ms {
                Some(_) if known_ms >= self.redial_ms || sabotaged(Sabotage::NoRedial) => (
                    FaultKind::NodeGone,
                    format!("the connection to {name} ended and cannot be made again"),
                ),
                None if known_ms >= self.node_timeout_ms => (
                    FaultKind::NodeUnresponsive,
                    format!("no heartbeat from {name} for {:.1} s", known_ms as f64 / 1e3),
                ),
                _ => {
                    if trouble.again_ms.take_if(|at| *at <= now_ms).is_some() {
                        judged.push(Judged::Redial { node });
                    }
                    continue;
                }
            };
            lost.push(Loss { node, kind, failed_ms: trouble.heard_ms, detail });
        }
        for loss in lost {
            self.trouble.remove(&loss.node);
            self.lost.insert(loss.node);
            judged.push(Judged::Lost(loss));
        }
        judged
    }

    /// Calls all nodes again and again while no node answers, with a pause that doubles up to a maximum.
    fn call_all(&mut self, now_ms: u64, judged: &mut Vec<Judged>) {
        if self.alone_since_ms.is_none() {
            // The supervisor counts as cut off only once a node would otherwise be judged lost.
            let due = self.trouble.values().any(|t| {
                now_ms.saturating_sub(t.heard_ms) >= self.node_timeout_ms
                    || t.closed_ms.is_some_and(|c| now_ms.saturating_sub(c) >= self.redial_ms)
            });
            if !due {
                return;
            }
            let since_ms = self.trouble.values().map(|t| t.heard_ms).max().unwrap_or(now_ms);
            self.alone_since_ms = Some(since_ms);
            self.back_off_ms = CALL_FIRST_MS;
            self.call_at_ms = now_ms;
            judged.push(Judged::Alone);
        }
        if now_ms < self.call_at_ms {
            return;
        }
        // A call ends the call before it. It takes the time to give up the caller of a node, and then to log in at the node.
        self.call_at_ms = now_ms + self.back_off_ms.max(2 * self.redial_ms);
        self.back_off_ms = (2 * self.back_off_ms).min(CALL_MAX_MS);
        for (node, trouble) in &mut self.trouble {
            trouble.closed_ms.get_or_insert(now_ms);
            judged.push(Judged::Redial { node: *node });
        }
        // A node that was judged lost before may be the first to answer.
        judged.extend(self.lost.iter().map(|&node| Judged::Redial { node }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four nodes, with the judgements and their moments. An unresponsive node is reported at every step. A node that is called
    /// again does not answer.
    struct World {
        nodes: Nodes,
        now: u64,
        judged: Vec<(u64, Judged)>,
        quiet: BTreeMap<usize, u64>,
    }

    impl World {
        fn new() -> Self {
            let names = (1..=4).map(|n| format!("n{n}")).collect();
            let nodes = Nodes::new(&Thresholds::default(), names);
            let mut world = Self { nodes, now: 0, judged: Vec::new(), quiet: BTreeMap::new() };
            for node in 0..4 {
                world.up(node);
            }
            world
        }
        fn hear(&mut self, node: usize, report: Report) {
            match report {
                Report::Quiet { heard_ms } => self.quiet.insert(node, heard_ms),
                _ => self.quiet.remove(&node),
            };
            let more = self.nodes.hear(self.now, node, report);
            self.note(more);
        }
        fn note(&mut self, more: Vec<Judged>) {
            for judged in more {
                if let Judged::Redial { node } = judged {
                    self.quiet.insert(node, self.now);
                }
                self.judged.push((self.now, judged));
            }
        }
        fn up(&mut self, node: usize) {
            self.hear(node, Report::AgentUp { boot: format!("b{node}") });
        }
        fn until(&mut self, end: u64) -> &mut Self {
            while self.now < end {
                self.now += 100;
                for (node, heard_ms) in self.quiet.clone() {
                    self.hear(node, Report::Quiet { heard_ms });
                }
                let more = self.nodes.tick(self.now);
                self.note(more);
            }
            self
        }
        fn calls(&self, node: usize) -> Vec<u64> {
            let its = self.judged.iter().filter(|(_, j)| *j == Judged::Redial { node });
            its.map(|(at, _)| *at).collect()
        }
        fn lost(&self) -> Vec<(u64, usize, FaultKind)> {
            let of = |(at, judged): &(u64, Judged)| match judged {
                Judged::Lost(loss) => Some((*at, loss.node, loss.kind)),
                _ => None,
            };
            self.judged.iter().filter_map(of).collect()
        }
    }

    /// A node that was judged lost answers before the supervisor has acted on the judgement. If the node was rebooted, it is
    /// lost, unless its loss is already declared.
    #[test]
    fn a_node_that_was_judged_lost_is_judged_by_its_boot() {
        let judged_lost = || {
            let mut world = World::new();
            world.until(1000).hear(1, Report::Closed);
            world.until(5000);
            assert_eq!(world.lost(), [(1700, 1, FaultKind::NodeGone)]);
            assert!(!world.nodes.knows(1));
            world
        };
        let mut rebooted = judged_lost();
        rebooted.hear(1, Report::AgentUp { boot: "another".into() });
        assert_eq!(rebooted.lost()[1..], [(5000, 1, FaultKind::NodeRebooted)]);
        let mut declared = judged_lost();
        declared.nodes.forget(1);
        declared.hear(1, Report::AgentUp { boot: "another".into() });
        assert_eq!(declared.lost().len(), 1, "it is nobody's concern until it answers again");
    }

    #[test]
    fn a_well_node_is_not_looked_at() {
        let mut world = World::new();
        world.until(100_000);
        assert_eq!(world.judged, []);
    }

    /// A node is judged lost and answers again before the supervisor has acted on the judgement. Then the other three become
    /// unresponsive.
    #[test]
    fn a_node_that_was_judged_lost_and_answers_shows_that_the_supervisor_is_not_cut_off() {
        let mut world = World::new();
        world.hear(3, Report::Quiet { heard_ms: 0 });
        world.until(5000).hear(3, Report::Heard);
        assert_eq!(world.lost(), [(4000, 3, FaultKind::NodeUnresponsive)]);
        for node in 0..3 {
            world.hear(node, Report::Quiet { heard_ms: 5000 });
        }
        world.until(10_000);
        let lost: Vec<usize> = world.lost().iter().map(|(_, node, _)| *node).collect();
        assert_eq!(lost, [3, 0, 1, 2]);
        assert!(world.nodes.knows(3));
    }

    /// Three nodes become unresponsive, which would be an outage of this side, if not for a lost node that answers.
    #[test]
    fn a_lost_node_that_answers_shows_that_the_supervisor_is_not_cut_off() {
        for answers in [false, true] {
            let mut world = World::new();
            world.nodes.forget(3);
            let judged = world.nodes.hear_lost(world.now, 3, true);
            assert_eq!(judged, []);
            if !answers {
                world.nodes.hear_lost(world.now, 3, false);
            }
            for node in 0..3 {
                world.hear(node, Report::Quiet { heard_ms: 0 });
            }
            world.until(6000);
            let lost: Vec<usize> = world.lost().iter().map(|(_, node, _)| *node).collect();
            assert_eq!(lost, if answers { vec![0, 1, 2] } else { vec![] });
            assert_eq!(world.nodes.is_alone(), !answers);
            // A lost node that answers ends an outage, too.
            let judged = world.nodes.hear_lost(world.now, 3, true);
            assert_eq!(judged.iter().any(|j| matches!(j, Judged::Together { .. })), !answers);
        }
    }

    #[test]
    fn the_node_timeout_counts_from_the_last_heartbeat() {
        let mut world = World::new();
        world.until(10_500).hear(2, Report::Quiet { heard_ms: 8_500 });
        world.until(60_000);
        assert_eq!(world.lost(), [(12_500, 2, FaultKind::NodeUnresponsive)]);
        assert!(!world.nodes.is_in_trouble(2), "given once");
    }

    /// The agents that called a node are lost one after the other. Each knew only for a moment that the node did not answer.
    #[test]
    fn the_node_timeout_counts_only_while_somebody_can_tell_of_it() {
        for closed in [false, true] {
            let mut world = World::new();
            world.until(20_000);
            if closed {
                world.hear(2, Report::Closed);
                world.quiet.clear();
            }
            for at in [22_000, 25_000, 28_000] {
                world.until(at).hear(2, Report::Quiet { heard_ms: at - 600 });
                world.quiet.clear();
            }
            world.until(60_000);
            assert_eq!(world.lost(), [], "closed: {closed}");
            assert!(world.nodes.is_in_trouble(2));
            world.hear(2, Report::Quiet { heard_ms: 59_900 });
            world.until(90_000);
            let (at, kind) = match closed {
                true => (60_600, FaultKind::NodeGone),
                false => (63_900, FaultKind::NodeUnresponsive),
            };
            assert_eq!(world.lost(), [(at, 2, kind)]);
        }
    }

    #[test]
    fn a_heartbeat_ends_the_judgement() {
        let mut world = World::new();
        world.until(10_500).hear(2, Report::Quiet { heard_ms: 8_500 });
        world.until(12_000).hear(2, Report::Heard);
        world.until(60_000);
        assert_eq!(world.judged, []);
    }

    #[test]
    fn a_closed_connection_is_made_again_at_once_or_the_node_is_gone() {
        let mut world = World::new();
        world.until(20_000).hear(1, Report::Closed);
        world.hear(1, Report::Closed);
        world.until(20_500).up(1);
        assert_eq!(
            world.judged,
            [
                (20_000, Judged::Redial { node: 1 }),
                (20_100, Judged::Redial { node: 1 }),
                (20_500, Judged::Restarted { node: 1 })
            ]
        );
        world.until(60_000).hear(1, Report::Closed);
        world.until(90_000);
        assert_eq!(world.lost(), [(60_700, 1, FaultKind::NodeGone)]);
    }

    /// The time without a heartbeat on the old connection does not count on the new one.
    #[test]
    fn a_login_that_takes_long_is_given_its_time() {
        let mut world = World::new();
        world.nodes.redial_ms = 9000;
        world.until(20_000).hear(1, Report::Closed);
        world.hear(1, Report::Quiet { heard_ms: 19_000 });
        world.until(28_000).up(1);
        world.until(60_000);
        assert_eq!(world.lost(), []);
    }

    #[test]
    fn a_node_that_comes_back_empty_is_lost() {
        let mut world = World::new();
        world.until(20_000).hear(1, Report::Closed);
        world.until(20_300).hear(1, Report::AgentUp { boot: "another".into() });
        assert_eq!(world.lost(), [(20_300, 1, FaultKind::NodeRebooted)]);
    }

    #[test]
    fn a_node_that_has_never_answered_is_not_lost() {
        let names = vec!["n1".to_string(), "n2".to_string()];
        let mut nodes = Nodes::new(&Thresholds::default(), names);
        assert_eq!(nodes.hear(0, 0, Report::Quiet { heard_ms: 0 }), []);
        assert_eq!(nodes.hear(0, 1, Report::Closed), []);
        assert!((0..50_000).step_by(100).all(|now| nodes.tick(now).is_empty()));
    }

    /// Nothing can be heard while the supervisor itself is suspended.
    #[test]
    fn a_supervisor_that_stood_still_blames_nobody() {
        let mut world = World::new();
        world.until(20_000);
        world.now += 60_000;
        // The cluster reports unresponsive nodes before any node is judged.
        for node in 0..4 {
            world.hear(node, Report::Quiet { heard_ms: 19_800 });
        }
        world.until(81_000);
        (0..4).for_each(|node| world.hear(node, Report::Heard));
        world.until(120_000);
        assert_eq!(world.judged, []);
    }

    /// Agents that heard nothing during a long suspension have ended, so all nodes are called at once. This machine may still
    /// be busy, and the logins slow.
    #[test]
    fn a_node_called_after_the_supervisor_stood_still_has_time_to_answer() {
        let mut world = World::new();
        world.until(10_000).now = 71_000;
        for node in [1, 3] {
            world.hear(node, Report::Closed);
        }
        world.until(74_900).up(1);
        world.until(80_000);
        assert_eq!(world.lost(), [(75_700, 3, FaultKind::NodeGone)]);
        // Later the judgement is as usual.
        world.hear(1, Report::Closed);
        world.until(90_000);
        assert_eq!(world.lost()[1], (80_700, 1, FaultKind::NodeGone));
    }

    /// A short outage of the supervisor ends just before a node would be given up. The nodes then answer one after the other. A
    /// node that is really lost is found by the time in which others answered.
    #[test]
    fn an_outage_that_ends_in_time_counts_against_no_node() {
        let mut world = World::new();
        world.until(10_000);
        for node in 0..4 {
            world.hear(node, Report::Quiet { heard_ms: if node == 3 { 8_000 } else { 9_500 } });
        }
        world.until(11_900).hear(0, Report::Heard);
        world.until(13_000);
        world.hear(1, Report::Heard);
        world.hear(2, Report::Heard);
        assert_eq!(world.lost(), []);
        world.until(20_000);
        assert_eq!(world.lost(), [(14_400, 3, FaultKind::NodeUnresponsive)]);
    }

    #[test]
    fn if_all_are_unresponsive_no_node_is_lost() {
        for closed in [false, true] {
            let mut world = World::new();
            world.until(20_000);
            for node in 0..4 {
                match closed {
                    true => world.hear(node, Report::Closed),
                    false => {
                        world.hear(node, Report::Quiet { heard_ms: 18_000 + 100 * node as u64 })
                    }
                }
            }
            world.until(140_000);
            assert_eq!(world.lost(), [], "closed: {closed}");
            assert!(world.nodes.is_alone());
            let mut calls = world.calls(0);
            calls.retain(|at| *at > 20_000);
            assert!(calls.len() >= 8, "called again: {calls:?}");
            assert!(calls.windows(2).all(|w| w[1] - w[0] <= CALL_MAX_MS), "{calls:?}");
            // All nodes but one answer again.
            (0..3).for_each(|node| world.up(node));
            assert!(world.judged.iter().any(|(_, j)| matches!(j, Judged::Together { .. })));
            assert!(!world.nodes.is_alone());
            world.until(200_000);
            assert_eq!(world.lost(), [(144_700, 3, FaultKind::NodeGone)]);
        }
    }

    /// Failed calls are due to be repeated when a node answers again. Each node is then called once, not twice.
    #[test]
    fn a_node_called_when_nodes_answer_again_is_called_once() {
        let mut world = World::new();
        world.until(20_000);
        (0..4).for_each(|node| world.hear(node, Report::Quiet { heard_ms: 18_000 }));
        world.until(30_000);
        assert!(world.nodes.is_alone());
        (0..4).for_each(|node| world.hear(node, Report::Closed));
        world.until(30_500).up(0);
        world.until(31_000);
        let calls = world.calls(1).into_iter().filter(|at| *at >= 30_500).count();
        assert_eq!(calls, 1, "{:?}", world.judged);
    }

    /// A new call to a node ends the earlier call. If logins take long, calls are two login times apart: to give up the node's
    /// caller, and to log in at the node.
    #[test]
    fn calls_of_all_leave_a_login_its_time() {
        let mut world = World::new();
        world.nodes.redial_ms = 15_000;
        world.until(20_000);
        (0..4).for_each(|node| world.hear(node, Report::Quiet { heard_ms: 18_000 }));
        world.until(140_000);
        let calls = world.calls(0);
        assert!(calls.len() >= 4 && calls.windows(2).all(|w| w[1] - w[0] >= 30_000), "{calls:?}");
    }

    #[test]
    fn the_machine_the_supervisor_runs_on_says_nothing_about_the_network() {
        let mut world = World::new();
        world.nodes.here.insert(0);
        world.until(20_000);
        (1..4).for_each(|node| world.hear(node, Report::Quiet { heard_ms: 19_000 }));
        world.until(60_000);
        world.hear(0, Report::Heard);
        assert_eq!(world.lost(), []);
        assert!(world.nodes.is_alone());
    }

    /// The answer of a node on the supervisor's own machine does not show that the network works.
    #[test]
    fn a_node_on_this_machine_does_not_count() {
        let mut nodes = World::new().nodes;
        nodes.here.insert(0);
        let none = |asked: &[usize], unresponsive: &[usize]| {
            nodes.none_answers(asked, unresponsive.iter().copied())
        };
        assert!(none(&[0, 1, 2, 3], &[1, 2, 3]));
        assert!(none(&[0, 1, 2, 3], &[0, 1, 2, 3]));
        assert!(none(&[1, 2], &[1, 2]));
        assert!(!none(&[0, 1, 2, 3], &[0, 1, 2]), "another answers");
        assert!(!none(&[0, 1], &[0, 1]), "a single one elsewhere");
        assert!(!none(&[], &[]));
    }

    #[test]
    fn two_of_four_are_two_lost_nodes() {
        let mut world = World::new();
        world.until(20_000);
        for node in [1, 2] {
            world.hear(node, Report::Quiet { heard_ms: 19_000 });
        }
        world.until(60_000);
        let at = 23_000;
        assert_eq!(
            world.lost(),
            [(at, 1, FaultKind::NodeUnresponsive), (at, 2, FaultKind::NodeUnresponsive)]
        );
    }
}
