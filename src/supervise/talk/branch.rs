//! The part of the tree below the supervisor or an agent: the child through which each node is reached, and children that are
//! quiet or bypassed. Pure.
//!
//! The supervisor's `cluster` has a [`Branch`], and so has every agent that is in charge of nodes. A branch asks its children for
//! a heartbeat every period. It passes messages on to the child through which their node is reached, and turns messages of
//! children into news of nodes. A branch owns no connection and no clock: it opens, writes and closes lines (connections) through
//! [`Lines`], and every call passes the time. So a test of a thousand nodes that loses half of them needs no process.
//!
//! A child is quiet if it has sent no message for two periods. A child that is quiet for half the node timeout is bypassed: the
//! nodes below it are placed again. An agent that has had no message from its own parent for almost as long calls no node, so
//! that two agents never call the same node.
//!
//! The caller of a quiet node reports regularly how long the node has been quiet, and only these reports count for the
//! supervisor. Callers of a node may be lost one after the other. The node's quiet time then begins again with each new caller. A
//! node that has just lost its caller is reported at once, even before another agent calls it. Otherwise it would count as a node
//! that answers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::tree::{Step, place};
use super::wire::{Attend, Charge, FromAgent, ToAgent, from_line, to_line};

/// Connections to children. The branch gives each a number.
pub trait Lines {
    fn open(&mut self, line: u64, node: &str, words: &[String], attend: &Attend);
    /// Sends a text. A failure to write is reported later, as the end of the line.
    fn send(&mut self, line: u64, text: &str);
    fn close(&mut self, line: u64);
    /// Returns the other end's error messages.
    fn complaint(&self, line: u64) -> String;
}

/// A message on a line.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Text(String),
    /// The line ended. The text is the end of its standard error.
    Closed(String),
}

#[derive(Default)]
struct Link {
    line: u64,
    opened_ms: u64,
    greeted_ms: Option<u64>,
    heard_ms: u64,
    /// Whether the node's agent had answered before this line was opened. The child then counts as quiet from the opening until
    /// it answers.
    again: bool,
    /// Time of the last report that the child is quiet, if it is.
    quiet_ms: Option<u64>,
    bypassed: bool,
    /// All nodes that the child is in charge of, directly or through other agents.
    below: BTreeSet<u32>,
    asked: VecDeque<(u64, u64)>,
}

impl Link {
    fn is_well(&self) -> bool {
        self.greeted_ms.is_some() && self.quiet_ms.is_none() && !self.bypassed
    }

    /// Notes the answer to the request `seq`, and returns the time since the request.
    fn answers(&mut self, seq: Option<u64>, now_ms: u64) -> Option<u32> {
        let mut round_trip_ms = None;
        while let Some((asked, at_ms)) = self.asked.front().copied() {
            if seq.is_none_or(|seq| seq < asked) {
                break;
            }
            self.asked.pop_front();
            if seq == Some(asked) {
                round_trip_ms = Some(now_ms.saturating_sub(at_ms) as u32);
            }
        }
        round_trip_ms
    }

    /// Returns the time for which the child has sent no message. If the child has answered all requests, the time without a
    /// request does not count, because this process may be late to send one.
    fn unheard_ms(&self, now_ms: u64, beat_ms: u64) -> u64 {
        let asked_ms = match (self.greeted_ms, self.asked.front()) {
            (Some(_), oldest) => oldest.map_or(now_ms, |(_, at_ms)| *at_ms).saturating_sub(beat_ms),
            (None, _) => 0,
        };
        now_ms.saturating_sub(self.heard_ms.max(asked_ms))
    }
}

/// Number of the first line. An agent's connection to its parent has number 0.
const FIRST_LINE: u64 = 1;

/// Number of heartbeat periods without a message after which a child is quiet.
const MISSED: u64 = 2;

/// Largest number of open lines, including bypassed lines, as a multiple of the fan-out.
pub const MOST_TIMES: usize = 3;

/// Largest number of unanswered requests that are kept for each child.
const MOST_ASKED: usize = 100;

#[derive(Default)]
pub struct Branch {
    pub attend: Attend,
    /// Nodes that this process is in charge of.
    charges: BTreeMap<u32, Charge>,
    links: BTreeMap<u32, Link>,
    lines: BTreeMap<u64, u32>,
    /// Child through which each node below a child is reached.
    route: BTreeMap<u32, u32>,
    /// Nodes that no agent calls yet, because there is no room.
    unplaced: BTreeSet<u32>,
    /// Time of this process's last call to a node, by node, as long as the node has not answered since.
    tried: BTreeMap<u32, u64>,
    next_line: u64,
    seq: u64,
    /// Time of the last requests for heartbeats. `None` makes the next `ask` send requests at once.
    pub asked_ms: Option<u64>,
    ticked_ms: Option<u64>,
    /// Shortest time between a call and the child's first answer, a measure of a login's time.
    quickest_ms: Option<u64>,
    /// Set while this process calls no node and gives none to its children. Its parent may already have given the nodes to other
    /// agents.
    pub paused: bool,
}

/// A node, and news of this node.
pub type Told = (u32, FromAgent);

/// Returns the report on a node that no agent calls from now on. Its state is unknown, so its quiet time begins again at zero.
fn unheard(node: u32) -> Told {
    (node, FromAgent::Quiet { age_ms: 0 })
}

impl Branch {
    pub fn new(attend: Attend) -> Self {
        let quickest_ms = attend.login_ms;
        Self { attend, next_line: FIRST_LINE, quickest_ms, ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// Returns the number of open lines.
    pub fn load(&self) -> usize {
        self.links.len()
    }

    /// Takes charge of nodes and calls them. Existing connections to these nodes are made again.
    pub fn call(&mut self, nodes: &[Charge], now_ms: u64, lines: &mut dyn Lines) {
        let wanted: Vec<u32> = nodes.iter().map(|c| c.node).collect();
        let mut orphans = self.forget(&wanted, lines);
        self.charges.extend(nodes.iter().map(|charge| (charge.node, charge.clone())));
        orphans.retain(|node| !wanted.contains(node));
        orphans.extend(wanted);
        self.reach(&orphans, now_ms, lines);
    }

    /// Gives up charge of nodes. Other nodes below them are placed again.
    pub fn leave(&mut self, nodes: &[u32], now_ms: u64, lines: &mut dyn Lines) {
        let mut orphans = self.forget(nodes, lines);
        for node in nodes {
            self.charges.remove(node);
            self.tried.remove(node);
        }
        orphans.retain(|node| self.charges.contains_key(node));
        self.reach(&orphans, now_ms, lines);
    }

    /// Ends the connections to nodes. Returns the nodes below them.
    fn forget(&mut self, nodes: &[u32], lines: &mut dyn Lines) -> Vec<u32> {
        let mut orphans = Vec::new();
        let mut leaving: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for node in nodes {
            self.unplaced.remove(node);
            if let Some(child) = self.route.remove(node)
                && let Some(link) = self.links.get_mut(&child)
            {
                link.below.remove(node);
                leaving.entry(link.line).or_default().push(*node);
            }
            if let Some(link) = self.links.remove(node) {
                self.lines.remove(&link.line);
                lines.close(link.line);
                for below in &link.below {
                    self.route.remove(below);
                }
                orphans.extend(link.below);
            }
        }
        for (line, nodes) in leaving {
            lines.send(line, &to_line(&ToAgent::Leave { nodes }));
        }
        orphans
    }

    fn reach(&mut self, nodes: &[u32], now_ms: u64, lines: &mut dyn Lines) {
        if nodes.is_empty() || self.paused {
            self.unplaced.extend(nodes);
            return;
        }
        // Bypassed lines stay open until their nodes are lost or answer again.
        let busy = self.links.values().filter(|l| !l.bypassed).count();
        let fanout = self.attend.fanout;
        let room = (MOST_TIMES * fanout).saturating_sub(self.links.len());
        let free = fanout.saturating_sub(busy).min(room);
        // Children with the fewest nodes come first, because nodes are often placed one by one.
        let well = self.links.iter().filter(|(_, link)| link.is_well());
        let mut children: Vec<u32> = well.map(|(node, _)| *node).collect();
        children.sort_by_key(|child| self.links[child].below.len());
        let steps = place(nodes, free, &children, &self.tried);
        if steps.is_empty() {
            self.unplaced.extend(nodes);
        }
        for step in steps {
            match step {
                Step::Call { head, below } => self.open(head, below, now_ms, lines),
                Step::Give { child, nodes } => self.give(child, &nodes, lines),
            }
        }
    }

    fn give(&mut self, child: u32, nodes: &[u32], lines: &mut dyn Lines) {
        let charges = nodes.iter().filter_map(|node| self.charges.get(node).cloned());
        let message = ToAgent::Call { nodes: charges.collect() };
        let Some(link) = self.links.get_mut(&child) else { return };
        lines.send(link.line, &to_line(&message));
        link.below.extend(nodes);
        self.route.extend(nodes.iter().map(|node| (*node, child)));
    }

    fn open(&mut self, head: u32, below: Vec<u32>, now_ms: u64, lines: &mut dyn Lines) {
        let Some(Charge { name, again, .. }) = self.charges.get(&head).cloned() else { return };
        let line = self.next_line;
        self.next_line += 1;
        let (node, login_ms) = (name.clone(), self.quickest_ms);
        let attend = Attend { node, login_ms, ..self.attend.clone() };
        // The agent's command line names run and node, so that a later agent finds an earlier one.
        let mut words = self.attend.agent.clone();
        words.extend(["--run", &attend.run_id, "--node", &name].map(String::from));
        lines.open(line, &name, &words, &attend);
        self.tried.insert(head, now_ms);
        self.lines.insert(line, head);
        let link = Link { line, opened_ms: now_ms, heard_ms: now_ms, again, ..Link::default() };
        self.links.insert(head, link);
        lines.send(line, &to_line(&ToAgent::Attend(attend)));
        if !below.is_empty() {
            self.give(head, &below, lines);
        }
    }

    /// Sends a message to nodes, directly or through the child by which they are reached.
    pub fn tell(&mut self, to: &[u32], message: &ToAgent, lines: &mut dyn Lines) {
        let mut passed: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for node in to {
            if let Some(link) = self.links.get(node) {
                lines.send(link.line, &to_line(message));
            } else if let Some(child) = self.route.get(node) {
                passed.entry(*child).or_default().push(*node);
            }
        }
        for (child, nodes) in passed {
            if let Some(link) = self.links.get(&child) {
                let pass = ToAgent::Pass { to: nodes, message: Box::new(message.clone()) };
                lines.send(link.line, &to_line(&pass));
            }
        }
    }

    /// Handles a message on a line. Returns the news that the message contains.
    pub fn hear(
        &mut self,
        line: u64,
        heard: Heard,
        now_ms: u64,
        lines: &mut dyn Lines,
    ) -> Vec<Told> {
        let Some(&child) = self.lines.get(&line) else { return Vec::new() };
        match heard {
            Heard::Closed(why) => {
                // After the end of a line, the nodes below the child are placed again.
                let orphans = self.forget(&[child], lines);
                self.charges.remove(&child);
                self.reach(&orphans, now_ms, lines);
                let mut told = vec![(child, FromAgent::Closed { why })];
                told.extend(orphans.into_iter().map(unheard));
                told
            }
            Heard::Text(text) => match from_line::<FromAgent>(&text) {
                Some(message) => self.said(child, message, now_ms, lines),
                None => Vec::new(),
            },
        }
    }

    fn said(
        &mut self,
        child: u32,
        message: FromAgent,
        now_ms: u64,
        lines: &mut dyn Lines,
    ) -> Vec<Told> {
        let Some(link) = self.links.get_mut(&child) else { return Vec::new() };
        let mut told = Vec::new();
        link.heard_ms = now_ms;
        if link.quiet_ms.take().is_some() {
            told.push((child, FromAgent::Heard));
        }
        match message {
            FromAgent::Hello(facts) => {
                link.greeted_ms.get_or_insert(now_ms);
                let took_ms = now_ms.saturating_sub(link.opened_ms);
                self.quickest_ms = Some(self.quickest_ms.map_or(took_ms, |ms| ms.min(took_ms)));
                self.greets(child);
                told.push((child, FromAgent::Hello(facts)));
                let waiting: Vec<u32> = std::mem::take(&mut self.unplaced).into_iter().collect();
                self.reach(&waiting, now_ms, lines);
            }
            FromAgent::Beat(mut beat) => {
                beat.round_trip_ms = link.answers(beat.seq, now_ms);
                told.push((child, FromAgent::Beat(beat)));
            }
            FromAgent::Moved(mut moved) => {
                moved.1 = link.answers(moved.0, now_ms);
                told.push((child, FromAgent::Moved(moved)));
            }
            FromAgent::Below { told: news } => told.extend(self.hear_below(child, news, lines)),
            // No agent sends these messages about itself.
            FromAgent::Closed { .. } | FromAgent::Quiet { .. } | FromAgent::Heard => {}
            own @ FromAgent::Ended { .. } => told.push((child, own)),
        }
        told
    }

    /// Notes that the agent of a node has answered its caller.
    fn greets(&mut self, node: u32) {
        self.charges.entry(node).and_modify(|charge| charge.again = true);
        self.tried.remove(&node);
    }

    /// Handles news of nodes below a child. Returns the news of nodes that are still reached through this child, and drops the
    /// rest.
    fn hear_below(&mut self, child: u32, mut news: Vec<Told>, lines: &mut dyn Lines) -> Vec<Told> {
        news.retain(|(node, word)| {
            // News of a node is valid only from the child through which the node is reached now.
            let counts = self.route.get(node) == Some(&child);
            match word {
                FromAgent::Hello(_) if counts => {
                    self.greets(*node);
                }
                FromAgent::Closed { .. } if counts => {
                    self.forget(&[*node], lines);
                    self.charges.remove(node);
                }
                _ => {}
            }
            counts
        });
        news
    }

    /// Asks the children for heartbeats, if this is due. Called several times a second.
    pub fn ask(&mut self, now_ms: u64, lines: &mut dyn Lines) {
        if self.asked_ms.is_some_and(|at| now_ms.saturating_sub(at) < self.attend.beat_ms) {
            return;
        }
        self.asked_ms = Some(now_ms);
        self.seq += 1;
        let line_text = to_line(&ToAgent::Beat { seq: self.seq });
        for link in self.links.values_mut().filter(|l| l.greeted_ms.is_some()) {
            link.asked.push_back((self.seq, now_ms));
            if link.asked.len() > MOST_ASKED {
                // The oldest request is kept, because the child has been quiet since then.
                link.asked.remove(1);
            }
            lines.send(link.line, &line_text);
        }
    }

    /// Reports and bypasses quiet children. Called several times a second, once all messages up to `now_ms` have been handled.
    pub fn tick(&mut self, now_ms: u64, lines: &mut dyn Lines) -> Vec<Told> {
        let gap_ms = now_ms.saturating_sub(self.ticked_ms.replace(now_ms).unwrap_or(now_ms));
        if gap_ms > 1000 {
            // This process itself was suspended, and messages of children from that time are not read yet.
            for link in self.links.values_mut() {
                link.heard_ms += gap_ms;
                link.opened_ms += gap_ms;
            }
            return Vec::new();
        }
        let mut told = Vec::new();
        let mut orphans = Vec::new();
        let Attend { beat_ms, node_timeout_ms, .. } = self.attend;
        for (node, link) in &mut self.links {
            let unheard_ms = link.unheard_ms(now_ms, beat_ms);
            let greeted = link.greeted_ms.is_some();
            // A repeated call is reported at once as quiet, because a node whose connection ended has little time to answer.
            let hurried = !greeted && link.again;
            let is_quiet = hurried || unheard_ms >= MISSED * beat_ms;
            let again = link.quiet_ms.is_none_or(|at_ms| {
                let begins =
                    |limit_ms| (limit_ms..limit_ms + (now_ms - at_ms)).contains(&unheard_ms);
                hurried || now_ms - at_ms >= beat_ms || begins(node_timeout_ms)
            });
            if is_quiet && again {
                link.quiet_ms = Some(now_ms);
                told.push((*node, FromAgent::Quiet { age_ms: unheard_ms }));
            }
            let called_ms = now_ms.saturating_sub(link.opened_ms);
            let late = self.quickest_ms.is_some_and(|ms| called_ms >= 1000 + 3 * ms);
            let bypass = if greeted { unheard_ms >= node_timeout_ms / 2 } else { late };
            if bypass && !link.bypassed {
                link.bypassed = true;
                let below: Vec<u32> = std::mem::take(&mut link.below).into_iter().collect();
                for node in &below {
                    self.route.remove(node);
                }
                if !below.is_empty() {
                    lines.send(link.line, &to_line(&ToAgent::Leave { nodes: below.clone() }));
                }
                orphans.extend(below);
            }
            // A child that answers again may take nodes again.
            link.bypassed &= bypass;
        }
        told.extend(orphans.iter().copied().map(unheard));
        orphans.extend(std::mem::take(&mut self.unplaced));
        self.reach(&orphans, now_ms, lines);
        told
    }

    /// Returns the error messages of the connection to a node. Returns an empty text if this process does not call the node
    /// itself.
    pub fn complaint(&self, node: u32, lines: &dyn Lines) -> String {
        self.links.get(&node).map_or(String::new(), |link| lines.complaint(link.line))
    }
}
