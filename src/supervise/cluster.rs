//! The nodes of a run and what is known of each: connections, facts, heartbeats, losses.
//!
//! The restart loop asks this file's [`Cluster`] to reach nodes, to end the run on them, to tell how fit each
//! is. Everything that comes in passes through [`Cluster::hear`], so nothing known is known in two places.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::events::unix_ms;
use super::hosts::Host;
use super::link::{Heard, Links};
use super::policy::Fitness;
use super::preflight::{Expected, Finding, judge};
use super::shell::RemoteShell;
use super::wire::{Beat, Facts, FromAgent, ToAgent};
use crate::memory::Store;

pub struct Node {
    pub host: Host,
    /// Only ever a spare so far: its loss does not break the run.
    pub spare: bool,
    pub facts: Option<(Facts, u64)>,
    pub beat: Beat,
    /// When anything last came from it.
    pub heard: Option<Instant>,
    pub lost: Option<String>,
    /// A lost node that answers again.
    pub returned: bool,
    /// What a trial start of MPI found wrong with it.
    pub unfit: Option<String>,
    /// When a lost node is to be called next.
    call_at: Instant,
}

/// News from a node.
#[derive(Debug)]
pub enum News {
    Up(Box<Facts>),
    Beat { beat: Beat, round_trip_ms: f64 },
    Ended { id: u64, ended: usize },
    Halting { told: usize },
    Closed(String),
}

/// How long nodes are given at first. A login with all its start-up files may take long; a node that is not
/// there is known much sooner by the remote shell.
pub const FIRST_CALL: Duration = Duration::from_secs(30);

pub struct Cluster {
    pub nodes: Vec<Node>,
    links: Links,
    run_id: String,
    job: Option<String>,
    lonely_ms: u64,
    seq: u64,
    asked: BTreeMap<u64, Instant>,
    next_end: u64,
}

/// A second chance for a node whose connection ended while the run was on: an agent, or a line, may fail
/// where the node is well, and its memory is worth the wait.
const REDIAL_PATIENCE: Duration = Duration::from_millis(1500);

/// How often a lost node is called to see whether it is back.
const CALL_AGAIN: Duration = Duration::from_secs(5);

impl Cluster {
    pub fn new(
        shell: RemoteShell,
        agent: Vec<String>,
        hosts: &[Host],
        spares: &[Host],
        run_id: &str,
        job: Option<String>,
    ) -> Self {
        let now = Instant::now();
        let node = |host: &Host, spare| Node {
            host: host.clone(),
            spare,
            facts: None,
            beat: Beat::default(),
            heard: None,
            lost: None,
            returned: false,
            unfit: None,
            call_at: now,
        };
        let nodes: Vec<Node> = hosts
            .iter()
            .map(|h| node(h, false))
            .chain(spares.iter().map(|h| node(h, true)))
            .collect();
        let names = nodes.iter().map(|n| n.host.name.clone()).collect();
        Self {
            links: Links::new(shell, agent, names),
            nodes,
            run_id: run_id.to_string(),
            job,
            lonely_ms: 60_000,
            seq: 0,
            asked: BTreeMap::new(),
            next_end: 0,
        }
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|n| n.host.name == name)
    }

    pub fn is_up(&self, node: usize) -> bool {
        self.links.is_greeted(node)
    }

    /// Opens a connection to a node.
    pub fn call(&mut self, node: usize) {
        let attend = ToAgent::Attend {
            run_id: self.run_id.clone(),
            job: self.job.clone(),
            lonely_ms: self.lonely_ms,
        };
        self.links.open(node, &[attend]);
    }

    /// Calls all nodes that are not lost and waits until each has answered or failed. Returns what is
    /// wrong with those that failed.
    pub fn call_all(&mut self, patience: Duration) -> Vec<(usize, String)> {
        let wanted: Vec<usize> =
            (0..self.nodes.len()).filter(|n| self.nodes[*n].lost.is_none()).collect();
        for node in &wanted {
            if !self.links.is_open(*node) {
                self.call(*node);
            }
        }
        let mut failed: BTreeMap<usize, String> = BTreeMap::new();
        let deadline = Instant::now() + patience;
        while wanted.iter().any(|n| !self.is_up(*n) && !failed.contains_key(n)) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if let Some((node, News::Closed(why))) = self.hear(left) {
                failed.insert(node, unreachable_words(&why));
            }
        }
        for node in wanted {
            if !self.is_up(node) {
                failed.entry(node).or_insert_with(|| {
                    let said = self.links.complaint(node);
                    let words = format!(
                        "no answer within {} s; how long does a login there take? {said}",
                        patience.as_secs()
                    );
                    words.trim_end().to_owned()
                });
                self.links.close(node);
            }
        }
        failed.into_iter().collect()
    }

    /// Sends a heartbeat to all.
    pub fn beat_all(&mut self) {
        self.seq += 1;
        self.asked.insert(self.seq, Instant::now());
        if self.asked.len() > 1000 {
            self.asked.pop_first();
        }
        for node in 0..self.nodes.len() {
            if self.links.is_greeted(node) {
                self.links.send(node, &ToAgent::Beat { seq: self.seq });
            }
        }
    }

    pub fn halt_all(&mut self, now: bool) {
        for node in 0..self.nodes.len() {
            self.links.send(node, &ToAgent::Halt { now });
        }
    }

    /// The next news, within `patience`; what is to be remembered is.
    pub fn hear(&mut self, patience: Duration) -> Option<(usize, News)> {
        let (at, heard) = self.links.hear(patience)?;
        let node = &mut self.nodes[at];
        let news = match heard {
            Heard::Closed(why) => News::Closed(why),
            Heard::Message(message) => {
                node.heard = Some(Instant::now());
                match message {
                    FromAgent::Hello(facts) => {
                        node.facts = Some(((*facts).clone(), unix_ms()));
                        News::Up(facts)
                    }
                    FromAgent::Beat(beat) => {
                        node.beat = beat.clone();
                        let sent = beat.seq.and_then(|seq| self.asked.get(&seq));
                        let round_trip_ms = sent.map_or(0.0, |s| s.elapsed().as_secs_f64() * 1e3);
                        News::Beat { beat, round_trip_ms }
                    }
                    FromAgent::Ended { id, ended, beat, .. } => {
                        node.beat = beat;
                        News::Ended { id, ended }
                    }
                    FromAgent::Halting { told } => News::Halting { told },
                }
            }
        };
        Some((at, news))
    }

    /// Declares a node lost: down stays down.
    pub fn lose(&mut self, node: usize, why: &str) {
        self.links.close(node);
        let state = &mut self.nodes[node];
        state.lost = Some(why.to_string());
        state.returned = false;
        state.beat = Beat::default();
        state.call_at = Instant::now() + CALL_AGAIN;
    }

    /// Ends the run's processes on all nodes that are not lost. Returns how many were ended, and which
    /// nodes would not answer: those are lost, though not yet declared so.
    ///
    /// Those named in `clean` remove what memory the run has left, too.
    pub fn end_run(
        &mut self,
        silence: Duration,
        clean: &BTreeSet<String>,
    ) -> (usize, Vec<(usize, String)>) {
        self.next_end += 1;
        let id = self.next_end;
        let mut waiting: Vec<usize> =
            (0..self.nodes.len()).filter(|n| self.nodes[*n].lost.is_none()).collect();
        let mut redialled: BTreeMap<usize, Instant> = BTreeMap::new();
        for node in &waiting {
            if self.is_up(*node) {
                self.tell_end(*node, id, clean);
            } else {
                if !self.links.is_open(*node) {
                    self.call(*node);
                }
                redialled.insert(*node, Instant::now());
            }
        }
        let asked = Instant::now();
        let mut total = 0;
        let mut failed = Vec::new();
        while !waiting.is_empty() {
            match self.hear(Duration::from_millis(50)) {
                Some((node, News::Ended { id: of, ended })) if of == id => {
                    total += ended;
                    waiting.retain(|n| *n != node);
                }
                Some((node, News::Up(_))) => {
                    self.tell_end(node, id, clean);
                }
                Some((node, News::Closed(why))) if waiting.contains(&node) => {
                    // Once more, in case only the connection was at fault.
                    if redialled.insert(node, Instant::now()).is_some() {
                        failed.push((node, unreachable_words(&why)));
                        waiting.retain(|n| *n != node);
                    } else {
                        self.call(node);
                    }
                }
                _ => {}
            }
            let nodes = &self.nodes;
            waiting.retain(|node| {
                // A silent node was silent before we asked: that time counts. A new connection has a time of
                // its own, which ends once the agent has spoken on it.
                let heard = nodes[*node].heard.unwrap_or(asked);
                let late = match redialled.get(node) {
                    Some(called) if heard < *called => called.elapsed() >= REDIAL_PATIENCE,
                    _ => heard.elapsed() >= silence,
                };
                if late {
                    failed.push((*node, "it does not answer".to_string()));
                }
                !late
            });
        }
        (total, failed)
    }

    /// Calls lost nodes from time to time, to see whether they are back.
    pub fn call_lost(&mut self) {
        for node in 0..self.nodes.len() {
            let state = &self.nodes[node];
            if state.lost.is_none() || state.returned || Instant::now() < state.call_at {
                continue;
            }
            let waiting = self.links.waiting(node);
            if waiting.is_none() || waiting.is_some_and(|w| w > CALL_AGAIN) {
                self.nodes[node].call_at = Instant::now() + CALL_AGAIN;
                self.call(node);
            }
        }
    }

    /// Calls all lost nodes that are not back, whenever they were called last. False if there are none.
    pub fn call_lost_now(&mut self) -> bool {
        let lost = |n: &Node| n.lost.is_some() && !n.returned;
        let absent: Vec<usize> =
            (0..self.nodes.len()).filter(|at| lost(&self.nodes[*at])).collect();
        for &node in &absent {
            self.nodes[node].call_at = Instant::now() + CALL_AGAIN;
            self.call(node);
        }
        !absent.is_empty()
    }

    /// Whether a lost node that was called has neither come back nor failed to.
    pub fn awaits_lost(&self) -> bool {
        let awaited = |at: &usize| {
            let node = &self.nodes[*at];
            node.lost.is_some() && !node.returned && self.links.is_open(*at)
        };
        (0..self.nodes.len()).any(|at| awaited(&at))
    }

    fn tell_end(&mut self, node: usize, id: u64, clean: &BTreeSet<String>) {
        let clean = clean.contains(&self.nodes[node].host.name);
        self.links.send(node, &ToAgent::End { id, below: None, clean });
    }

    /// For a lost node that has just said hello.
    pub fn end_leftovers(&mut self, node: usize, clean: &BTreeSet<String>) {
        self.next_end += 1;
        let id = self.next_end;
        self.tell_end(node, id, clean);
    }

    /// What a node offers, by its facts and last heartbeat.
    pub fn fitness(&self, name: &str, expected: &Expected) -> Fitness {
        let Some(at) = self.find(name) else {
            return Fitness::Unfit("it is not on any list".to_string());
        };
        let node = &self.nodes[at];
        if node.lost.is_some() {
            let returned = (node.returned && self.is_up(at)).then(|| self.free_bytes(at, expected));
            return Fitness::Lost { returned };
        }
        if !self.is_up(at) {
            return Fitness::Unfit("it cannot be reached".to_string());
        }
        match self.problems(at, expected) {
            problems if problems.is_empty() => {
                let free_bytes = self.free_bytes(at, expected);
                Fitness::Fit { free_bytes, held_bytes: node.beat.held_bytes }
            }
            problems => Fitness::Unfit(problems.join("; ")),
        }
    }

    /// What makes a node unfit.
    pub fn problems(&self, at: usize, expected: &Expected) -> Vec<String> {
        self.findings(at, expected)
            .into_iter()
            .filter_map(|finding| match finding {
                Finding::Problem(text) => Some(text),
                Finding::Warning(_) => None,
            })
            .collect()
    }

    pub fn findings(&self, at: usize, expected: &Expected) -> Vec<Finding> {
        let node = &self.nodes[at];
        let Some((facts, at_ms)) = &node.facts else { return Vec::new() };
        // Room changes, the rest of the facts does not.
        let mut facts = facts.clone();
        if node.beat.memory_free_bytes > 0 {
            facts.shm_free_bytes = node.beat.shm_free_bytes;
            facts.memory_free_bytes = node.beat.memory_free_bytes;
        }
        let expected =
            Expected { unix_ms: *at_ms, held_bytes: node.beat.held_bytes, ..expected.clone() };
        let mut found = judge(&facts, &expected);
        found.extend(node.unfit.clone().map(Finding::Problem));
        found
    }

    /// What new named memory of the wanted kind could take on a node.
    fn free_bytes(&self, at: usize, expected: &Expected) -> u64 {
        let node = &self.nodes[at];
        let beat = &node.beat;
        match expected.need.map_or(Store::Posix, |need| need.store) {
            Store::Posix => beat.shm_free_bytes.min(beat.memory_free_bytes),
            Store::SysV => beat.memory_free_bytes,
            Store::HugeTlbfs => {
                node.facts.as_ref().and_then(|(f, _)| f.huge_free_bytes).unwrap_or(0)
            }
        }
    }

    /// What a rank's memory takes, as far as can be seen on the nodes now.
    pub fn rank_bytes(&self) -> Option<u64> {
        self.nodes
            .iter()
            .filter(|n| n.beat.held_positions > 0)
            .map(|n| n.beat.held_bytes / n.beat.held_positions as u64)
            .max()
    }
}

/// What a remote shell's last words mean to people.
fn unreachable_words(said: &str) -> String {
    match said {
        "" => "the connection ended without a word".to_string(),
        text if text.contains("not found") || text.contains("No such file") => {
            format!("skt-hpl is not there, or not executable ({text}); install it at the same path")
        }
        text => format!("cannot be reached ({text})"),
    }
}
