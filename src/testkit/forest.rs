//! Trees of agents on virtual time, for tests. The messages and the agents are real, but there are no processes.
//!
//! A [`Forest`] is a supervisor's branch, its judge of nodes, and any number of nodes. Logins and messages take time. Nodes are
//! lost, and may close their connections before. A minute of virtual time takes a fraction of a second, and gives the same result
//! each time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::simulated_agents::{self, Manner, SimulatedAgents};
use crate::supervise::judge::logins::Logins;
use crate::supervise::judge::nodes::{Judged, Nodes, Report};
use crate::supervise::judge::thresholds::Thresholds;
use crate::supervise::talk::branch::{Branch, Heard, MOST_TIMES};
use crate::supervise::talk::relay::Hands;
use crate::supervise::talk::shell::RemoteShell;
use crate::supervise::talk::wire::{Attend, Beat, Charge, Facts, FromAgent, ToAgent, Which};

const MANNER: Manner = Manner { login_ms: 300, refused_ms: 4000, travel_ms: (1, 3), seed: 1 };
const NODE_TIMEOUT_MS: u64 = 4000;
const REDIAL_MS: u64 = 700;

fn charge(node: u32, again: bool) -> Charge {
    Charge { node, name: node.to_string(), again }
}

/// A node that records the numbers of the requests to end the run.
#[derive(Default)]
struct Node {
    ended: Vec<u64>,
}

impl Hands for Node {
    fn attend(&mut self, _: &Attend) {}
    fn beat(&mut self, seq: Option<u64>) -> Beat {
        Beat { seq, ..Beat::default() }
    }
    fn end(&mut self, id: u64, _: bool) {
        self.ended.push(id);
    }
    fn end_rank(&mut self, _: Which, _: u32) {}
    fn halt(&mut self, _: bool) {}
    fn orphaned(&mut self, unheard: Duration, limit: Duration) -> bool {
        unheard >= limit
    }
}

#[derive(Default)]
struct Played(BTreeMap<String, Node>);

impl simulated_agents::Nodes for Played {
    type Hands = Node;
    fn facts(&mut self, node: &str, _: u64) -> Facts {
        Facts { boot: node.to_string(), ..Facts::default() }
    }
    fn hands(&mut self, node: &str) -> &mut Node {
        self.0.entry(node.to_string()).or_default()
    }
    fn ended(hands: &mut Node) -> Vec<u64> {
        std::mem::take(&mut hands.ended)
    }
}

struct Forest {
    now_ms: u64,
    branch: Branch,
    simulated_agents: SimulatedAgents<Played>,
    up: BTreeSet<u32>,
    judge: Nodes,
    logins: Logins,
    names: usize,
    /// Messages that the supervisor has received but not handled, each with the time of receipt.
    backlog: VecDeque<(u64, u64, Heard)>,
    /// Number of messages that the supervisor handles in a tick; None if it handles all.
    lines_a_tick: Option<usize>,
    /// Time in milliseconds for which each node has not answered, as last reported.
    unheard_ms: BTreeMap<u32, u64>,
    /// Nodes to which a login is in progress, with the time at which it began.
    called: BTreeMap<u32, u64>,
    off: BTreeSet<u32>,
    /// Time at which the supervisor learned of the loss of each lost node.
    lost: BTreeMap<u32, u64>,
    /// Number of the request to end the run; None without a request.
    end: Option<u64>,
    /// Number of times that each node has answered the request to end the run.
    ended: BTreeMap<u32, usize>,
    most_lines: usize,
}

impl Forest {
    fn new(nodes: u32, fanout: usize) -> Self {
        Self::with_node_timeout(nodes, fanout, NODE_TIMEOUT_MS)
    }

    fn with_node_timeout(nodes: u32, fanout: usize, node_timeout_ms: u64) -> Self {
        let attend = Attend {
            run_id: "run".into(),
            job: None,
            node: String::new(),
            orphan_timeout_ms: 60_000,
            beat_ms: 500,
            node_timeout_ms,
            fanout,
            login_ms: None,
            shell: RemoteShell::Ssh(vec!["ssh".into()]),
            dir: None,
            agent: vec!["agent".into()],
        };
        let mut forest = Self {
            now_ms: 0,
            branch: Branch::new(attend),
            simulated_agents: SimulatedAgents::new(Played::default(), MANNER),
            up: BTreeSet::new(),
            judge: Nodes::new(
                &Thresholds { node_timeout_ms, redial_ms: REDIAL_MS, ..Thresholds::default() },
                (0..nodes).map(|node| node.to_string()).collect(),
            ),
            logins: Logins::default(),
            names: nodes as usize,
            backlog: VecDeque::new(),
            lines_a_tick: None,
            unheard_ms: BTreeMap::new(),
            called: (0..nodes).map(|node| (node, 0)).collect(),
            off: BTreeSet::new(),
            lost: BTreeMap::new(),
            end: None,
            ended: BTreeMap::new(),
            most_lines: 0,
        };
        let all: Vec<Charge> = (0..nodes).map(|node| charge(node, false)).collect();
        forest.branch.call(&all, 0, &mut forest.simulated_agents);
        forest
    }

    /// Handles at most `most` of the messages that the supervisor has received.
    fn hear_backlog(&mut self, most: usize) {
        for _ in 0..most {
            let Some((_, line, heard)) = self.backlog.pop_front() else { return };
            let told = self.branch.hear(line, heard, self.now_ms, &mut self.simulated_agents);
            self.learn(told);
        }
    }

    /// Requests all nodes to end the run, as for a stop.
    fn end_run(&mut self, id: u64) {
        self.end = Some(id);
        let up: Vec<u32> = self.up.iter().copied().collect();
        self.ask_end(&up);
    }

    fn ask_end(&mut self, nodes: &[u32]) {
        if let Some(id) = self.end {
            let end = ToAgent::End { id, clean: false };
            self.branch.tell(nodes, &end, &mut self.simulated_agents);
        }
    }

    /// Handles the messages of the nodes as the supervisor does.
    fn learn(&mut self, told: Vec<(u32, FromAgent)>) {
        for (node, word) in told {
            let (now_ms, at) = (self.now_ms, node as usize);
            match &word {
                FromAgent::Quiet { age_ms } => drop(self.unheard_ms.insert(node, *age_ms)),
                _ => drop(self.unheard_ms.remove(&node)),
            }
            let report = match word {
                FromAgent::Hello(facts) => {
                    self.up.insert(node);
                    // An earlier request may not have arrived.
                    self.ask_end(&[node]);
                    if let Some(since_ms) = self.called.remove(&node) {
                        let at_once = self.called.len();
                        self.logins.note(now_ms - since_ms, at_once);
                    }
                    Report::AgentUp { boot: facts.boot }
                }
                FromAgent::Quiet { age_ms } => Report::Quiet { heard_ms: now_ms - age_ms },
                FromAgent::Closed { .. } => {
                    // A node that has never answered counts as unusable.
                    if !self.up.remove(&node) && self.called.remove(&node).is_some_and(|ms| ms == 0)
                    {
                        self.lost.entry(node).or_insert(now_ms);
                    }
                    Report::Closed
                }
                word => {
                    if matches!(word, FromAgent::Ended { .. }) {
                        *self.ended.entry(node).or_default() += 1;
                    }
                    Report::Heard
                }
            };
            let judged = self.judge.hear(now_ms, at, report);
            self.judged(judged);
        }
    }

    fn judged(&mut self, judged: Vec<Judged>) {
        let now_ms = self.now_ms;
        let mut redialled = Vec::new();
        for judged in judged {
            match judged {
                Judged::Redial { node } => {
                    self.called.insert(node as u32, now_ms);
                    redialled.push(charge(node as u32, true));
                }
                Judged::Lost(loss) => {
                    let node = loss.node as u32;
                    self.up.remove(&node);
                    self.called.remove(&node);
                    self.lost.entry(node).or_insert(now_ms);
                    self.branch.leave(&[node], now_ms, &mut self.simulated_agents);
                }
                Judged::Restarted { .. } | Judged::Alone | Judged::Together { .. } => {}
            }
        }
        // All logins begin in one step, as in the supervisor.
        self.branch.call(&redialled, now_ms, &mut self.simulated_agents);
    }

    /// Counts nodes as lost that have not answered the first login for too long.
    fn give_up(&mut self) {
        let asked = self.names;
        let first: Vec<u32> =
            self.called.iter().filter(|(_, since)| **since == 0).map(|(node, _)| *node).collect();
        let limit_ms = self.logins.first_ms(30_000, asked - first.len(), asked);
        let in_vain = |node: &u32| self.unheard_ms.get(node).is_some_and(|ms| *ms >= limit_ms);
        let first: Vec<u32> = first.into_iter().filter(in_vain).collect();
        for node in first {
            self.called.remove(&node);
            self.lost.insert(node, self.now_ms);
            self.branch.leave(&[node], self.now_ms, &mut self.simulated_agents);
        }
    }

    fn run(&mut self, until_ms: u64) {
        while self.now_ms < until_ms {
            let next_ms = self.simulated_agents.next_ms().unwrap_or(until_ms).max(self.now_ms + 1);
            self.now_ms = next_ms.min(self.now_ms / 100 * 100 + 100).min(until_ms);
            let now_ms = self.now_ms;
            let heard = self.simulated_agents.play(now_ms);
            self.backlog.extend(heard.into_iter().map(|(line, heard)| (now_ms, line, heard)));
            if self.lines_a_tick.is_none() {
                self.hear_backlog(usize::MAX);
            }
            if now_ms.is_multiple_of(100) {
                self.hear_backlog(self.lines_a_tick.unwrap_or(usize::MAX));
                self.branch.ask(now_ms, &mut self.simulated_agents);
                // As in `cluster`, the check for quiet nodes uses the time up to which all messages have been handled.
                let heard_ms = self.backlog.front().map_or(now_ms, |(at_ms, ..)| *at_ms);
                let told = self.branch.tick(heard_ms, &mut self.simulated_agents);
                self.learn(told);
                let in_trouble = self.judge.in_trouble().count();
                if in_trouble > 0 {
                    self.judge.redial_ms = self.logins.timeout_ms(REDIAL_MS, in_trouble);
                }
                let judged = self.judge.tick(now_ms);
                self.judged(judged);
                self.give_up();
            }
            self.most_lines = self.most_lines.max(self.branch.load());
        }
    }

    /// Switches nodes off. If `with_a_word`, the nodes close their connections before.
    fn lose(&mut self, nodes: &BTreeSet<u32>, with_a_word: bool) {
        let names: Vec<String> = nodes.iter().map(u32::to_string).collect();
        if with_a_word {
            names.iter().for_each(|name| self.simulated_agents.end_agent(name));
            // The closing messages are sent before the power is lost.
            self.run(self.now_ms + MANNER.travel_ms.1 + 1);
        }
        self.simulated_agents.switch_off(names.iter().map(String::as_str));
        self.off.extend(nodes);
    }

    /// Makes nodes reachable again that were switched off.
    fn join(&mut self, nodes: &BTreeSet<u32>) {
        let names: Vec<String> = nodes.iter().map(u32::to_string).collect();
        self.simulated_agents.switch_on(names.iter().map(String::as_str));
        self.off.retain(|node| !nodes.contains(node));
    }

    /// Returns the number of agents on each node that is not off.
    fn agents(&self) -> BTreeMap<u32, usize> {
        let mut agents = BTreeMap::new();
        for (node, _) in self.simulated_agents.agents() {
            *agents.entry(node.parse().unwrap()).or_default() += 1;
        }
        agents
    }

    fn inner(&self) -> u32 {
        let inner = self.simulated_agents.agents().filter(|(_, lines)| *lines > 0);
        inner.map(|(node, _)| node.parse().unwrap()).min().unwrap()
    }

    /// Returns the number of agents that have been started.
    fn started(&self) -> usize {
        self.simulated_agents.history().0
    }

    /// Returns the largest number of connections that a process has had.
    fn most_lines(&self) -> usize {
        self.most_lines.max(self.simulated_agents.history().1)
    }
}

#[test]
fn all_are_reached_with_a_login_a_level() {
    for (nodes, fanout, levels) in [(8, 32, 1), (8, 2, 3), (300, 8, 3)] {
        let mut forest = Forest::new(nodes, fanout);
        forest.run(levels * (MANNER.login_ms + 100) + 100);
        assert_eq!(forest.up.len(), nodes as usize, "{nodes} nodes, {fanout} each");
        assert!(forest.most_lines() <= fanout);
        assert_eq!(forest.started(), nodes as usize, "each is called once");
        forest.run(30_000);
        assert!(forest.lost.is_empty() && forest.judge.in_trouble().count() == 0);
        assert_eq!(forest.started(), nodes as usize, "and stays");
    }
}

#[test]
fn nodes_below_a_lost_one_are_kept() {
    for with_a_word in [true, false] {
        let mut forest = Forest::new(100, 4);
        forest.run(5000);
        let lost = BTreeSet::from([forest.inner()]);
        forest.lose(&lost, with_a_word);
        forest.run(12_000);
        assert_eq!(forest.lost.keys().copied().collect::<BTreeSet<_>>(), lost);
        let noticed_ms = forest.lost[lost.first().unwrap()] - 5000;
        assert!(noticed_ms <= if with_a_word { 2000 } else { 4700 }, "{noticed_ms} ms");
        assert_eq!(forest.up.len(), 99);
    }
}

/// For half a minute the supervisor handles fewer messages than it receives. In the end it handles messages that are many seconds
/// old.
#[test]
fn a_supervisor_that_falls_behind_gives_nobody_up() {
    let mut forest = Forest::new(100, 8);
    forest.run(5000);
    forest.lines_a_tick = Some(1);
    forest.run(35_000);
    let (since_ms, ..) = forest.backlog.front().unwrap();
    assert!(35_000 - since_ms > 2 * NODE_TIMEOUT_MS, "behind since {since_ms} ms");
    assert_eq!(forest.judge.in_trouble().count(), 0);
    assert_eq!(forest.started(), 100, "nobody was called again");
    forest.lines_a_tick = None;
    forest.run(36_000);
    forest.lose(&BTreeSet::from([50]), false);
    forest.run(42_000);
    assert_eq!(forest.lost.keys().copied().collect::<Vec<_>>(), [50]);
}

/// There are more nodes than the supervisor can call within the node timeout. It learns nothing about the nodes that it does not
/// call.
#[test]
fn a_supervisor_that_is_cut_off_gives_nobody_up_however_many_nodes_there_are() {
    let mut forest = Forest::new(200, 8);
    forest.run(5000);
    let all: BTreeSet<u32> = (0..200).collect();
    forest.lose(&all, false);
    forest.run(20_000);
    assert_eq!(forest.lost, BTreeMap::new());
    assert!(forest.judge.is_alone());
    assert_eq!(forest.judge.in_trouble().count(), 200);
    forest.join(&all);
    forest.run(60_000);
    assert_eq!(forest.lost, BTreeMap::new());
    assert_eq!((forest.up.len(), forest.judge.in_trouble().count()), (200, 0));
    assert!(!forest.judge.is_alone());
    assert_eq!(forest.agents(), all.iter().map(|node| (*node, 1)).collect());
}

/// Whole branches are lost, together with the agents that call their nodes, and parts of other branches.
#[test]
fn most_of_the_nodes_are_no_outage_of_ours_while_some_answer() {
    let mut forest = Forest::new(200, 8);
    forest.run(5000);
    let lost: BTreeSet<u32> = (0..200).filter(|node| node % 20 != 7).collect();
    forest.lose(&lost, false);
    forest.run(60_000);
    assert_eq!(forest.lost.keys().copied().collect::<BTreeSet<_>>(), lost);
    assert_eq!((forest.up.len(), forest.judge.in_trouble().count()), (10, 0));
}

/// All nodes with a connection to the supervisor are lost, and so are the nodes that the supervisor calls first. The supervisor
/// still reaches a live node.
#[test]
fn a_supervisor_that_can_call_few_at_once_comes_past_those_that_are_off() {
    let mut forest = Forest::new(82, 2);
    forest.run(6000);
    let lost: BTreeSet<u32> = (0..7).chain(32..46).collect();
    forest.lose(&lost, false);
    forest.run(120_000);
    assert_eq!(forest.lost.keys().copied().collect::<BTreeSet<_>>(), lost);
    assert_eq!((forest.up.len(), forest.judge.in_trouble().count()), (82 - lost.len(), 0));
}

/// A node leaves more requests unanswered than the supervisor remembers. Its loss is still noticed.
#[test]
fn missing_heartbeats_are_noticed_after_any_time() {
    for fanout in [8, 2] {
        let mut forest = Forest::with_node_timeout(8, fanout, 60_000);
        forest.run(5000);
        let last = BTreeSet::from([7]);
        forest.lose(&last, false);
        forest.run(64_000);
        assert_eq!(forest.lost, BTreeMap::new());
        forest.run(75_000);
        assert_eq!(forest.lost.keys().copied().collect::<BTreeSet<_>>(), last, "{fanout}");
    }
}

/// A request to end the run reaches all nodes.
#[test]
fn everybody_hears_what_is_said_to_all() {
    let mut forest = Forest::new(60, 4);
    forest.run(5000);
    forest.end_run(1);
    forest.run(6500);
    assert_eq!(forest.ended.len(), 60);
    assert!(forest.ended.values().all(|count| *count == 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]
    /// Nodes are lost in up to three batches, some seconds apart, with or without closing their connections. The first batch may
    /// be lost while the tree is being built, and any batch while the run is stopped. All losses are noticed, no other node
    /// counts as lost, and each remaining node has a single agent.
    #[test]
    fn whatever_is_lost_the_rest_is_reached_once(
        nodes in 10u32..120,
        fanout in prop_oneof![Just(2usize), Just(3), 2usize..9],
        first_ms in prop_oneof![Just(6000u64), 100u64..1500],
        strokes in proptest::collection::vec(stroke(), 1..4),
        end_at in 0usize..4,
    ) {
        let mut forest = Forest::new(nodes, fanout);
        forest.run(first_ms);
        let mut lost = BTreeSet::new();
        for (at, stroke) in strokes.iter().enumerate() {
            if at == end_at {
                forest.end_run(7);
            }
            let these = stroke.nodes(nodes);
            forest.lose(&these, stroke.with_a_word);
            lost.extend(these);
            forest.run(forest.now_ms + stroke.then_ms);
        }
        // If no node is left, the supervisor counts as cut off.
        prop_assume!(lost.len() + 2 <= nodes as usize);
        // With a fan-out of two, the supervisor calls only a few of the lost nodes at a time.
        forest.run(forest.now_ms + if fanout < 4 { 240_000 } else { 60_000 });
        prop_assert_eq!(&forest.lost.keys().copied().collect::<BTreeSet<_>>(), &lost);
        let alive: BTreeMap<u32, usize> =
            (0..nodes).filter(|n| !lost.contains(n)).map(|n| (n, 1)).collect();
        prop_assert_eq!(forest.agents(), alive.clone());
        if end_at < strokes.len() {
            let unasked = alive.keys().find(|node| !forest.ended.contains_key(node));
            prop_assert_eq!(unasked, None, "a node that was not asked to end the run");
        }
        prop_assert_eq!(forest.up.clone(), alive.keys().copied().collect::<BTreeSet<_>>());
        prop_assert_eq!(forest.judge.in_trouble().collect::<Vec<_>>(), Vec::<usize>::new());
        prop_assert!(forest.most_lines() <= MOST_TIMES * fanout, "{}", forest.most_lines());
    }
}

/// Number of cases of the property test; PROPTEST_CASES sets it.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(40)
}

/// Batch of nodes that are lost at the same moment: single nodes and a rack.
#[derive(Debug, Clone)]
struct Stroke {
    single: Vec<bool>,
    rack: u32,
    rack_size: u32,
    with_a_word: bool,
    then_ms: u64,
}

impl Stroke {
    fn nodes(&self, of: u32) -> BTreeSet<u32> {
        let rack = self.rack % of;
        let single = (0..of).filter(|n| self.single[*n as usize]);
        single.chain(rack..of.min(rack + of * self.rack_size / 100)).collect()
    }
}

fn stroke() -> impl Strategy<Value = Stroke> {
    let single = proptest::collection::vec(proptest::bool::weighted(0.1), 120);
    let then_ms = prop_oneof![0u64..1000, 0u64..6000];
    (single, 0u32..1000, 0u32..25, any::<bool>(), then_ms).prop_map(
        |(single, rack, rack_size, with_a_word, then_ms)| Stroke {
            single,
            rack,
            rack_size,
            with_a_word,
            then_ms,
        },
    )
}
