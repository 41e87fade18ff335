//! The nodes of a run. Each has a connection, facts, a heartbeat, and the reason of its loss if it is lost.
//!
//! The restart loop uses the [`Cluster`] to reach nodes, to end the run on them, and to judge their fitness. All messages of
//! nodes pass through [`Cluster::hear`], which updates the nodes' states.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use super::branch::{Branch, MOST_TIMES};
use super::link::{Links, room_for};
use super::wire::{Attend, Beat, Charge, Facts, Free, FromAgent, ToAgent, Which};
use crate::base::clock::{Instant, steady_ms, unix_ms};
use crate::shm::Store;
use crate::supervise::judge::fitness::{Expected, Finding, judge};
use crate::supervise::judge::logins::Logins;
use crate::supervise::judge::nodes::Report;
use crate::supervise::judge::policy::Fitness;
use crate::supervise::machine::{Connections, Machine, simulated};
use crate::supervise::signals::asked_by_signal;
use crate::supervise::start::hosts::Host;

#[derive(Default)]
pub struct Node {
    pub host: Host,
    /// Whether the node has only been a spare so far. Its loss does not break the run.
    pub spare: bool,
    pub facts: Option<(Facts, u64)>,
    pub beat: Beat,
    pub lost: Option<String>,
    /// Whether the node is lost, but answers again.
    pub returned: bool,
    /// Fault of the node that a trial start of MPI has found.
    pub unfit: Option<String>,
    /// Time of the loss.
    lost_at: Option<Instant>,
    /// Time of the next call to the lost node.
    call_at: Option<Instant>,
    /// Time of the last call, if its connection has not ended.
    called: Option<Instant>,
    /// Whether the agent has answered on this connection.
    pub up: bool,
    /// Time without an answer, as last reported, while the node is unresponsive.
    pub unresponsive: Option<Duration>,
}

impl Node {
    /// Returns the node's free memory. It changes, unlike the other facts, so the last heartbeat counts. Before the first
    /// heartbeat, the facts that the agent first reported count.
    fn free(&self) -> Free {
        match &self.facts {
            Some((facts, _)) if self.beat.free.memory_bytes == 0 => facts.free,
            _ => self.beat.free,
        }
    }
}

/// News from a node.
#[derive(Debug)]
pub enum News {
    Up,
    Beat(Beat),
    Ended { id: u64, ended: usize },
    Closed(String),
}

/// Time limit for the first call to a node. A login with all its start-up files may take long. If a node does not exist, the
/// remote shell reports an error much sooner.
pub const FIRST_CALL: Duration = Duration::from_secs(30);

/// Interval at which missing messages are noticed. This adds to the time until a loss is noticed.
const TICK: Duration = Duration::from_millis(50);

pub struct Cluster {
    pub nodes: Vec<Node>,
    by_name: HashMap<String, usize>,
    branch: Branch,
    links: Box<dyn Connections>,
    ticked: Option<Instant>,
    /// Time at which messages were last received.
    looked_ms: u64,
    news: VecDeque<(usize, News)>,
    /// Reports that `judge::nodes` has not judged yet, each with its time and its node.
    pub reports: VecDeque<(u64, usize, Report)>,
    next_end: u64,
    /// Times that nodes took to answer a call.
    pub logins: Logins,
    /// Number of nodes that are called at once.
    pub called_at_once: usize,
}

/// Interval at which a wait for nodes' first answers checks whether to end.
const CALL_LOOK: Duration = Duration::from_millis(100);

/// Shortest interval at which a lost node is called, to find out whether it answers again.
const CALL_AGAIN: Duration = Duration::from_secs(5);
/// Longest interval at which a lost node is called.
const CALL_SELDOM: Duration = Duration::from_secs(60);

/// Time limit for a lost node's login, as a factor on the slowest login.
const LOGIN_TIMES: u32 = 2;

/// Returns the time until the next call to a node that has been `lost` for this time: a tenth of the time, within limits. With a
/// fixed interval, a node that runs but cannot be used would have thousands of logins in its logs. Some sites lock out users that
/// log in so often.
fn call_again_in(lost: Duration) -> Duration {
    (lost / 10).clamp(CALL_AGAIN, CALL_SELDOM)
}

impl Cluster {
    /// Returns the nodes of a run, before any call. Returns an error if there are too few file descriptors for the connections.
    pub fn new(attend: Attend, hosts: &[Host], spares: &[Host]) -> Result<Self, String> {
        // Bypassed connections stay open for a while, in addition to the connections that replace them.
        room_for(MOST_TIMES * attend.fanout.min(hosts.len() + spares.len()))?;
        let node = |spare| move |host: &Host| Node { host: host.clone(), spare, ..Node::default() };
        let nodes = hosts.iter().map(node(false)).chain(spares.iter().map(node(true)));
        let nodes: Vec<Node> = nodes.collect();
        let by_name = nodes.iter().enumerate().map(|(at, n)| (n.host.name.clone(), at)).collect();
        Ok(Self {
            branch: Branch::new(attend),
            links: simulated()
                .map_or_else(|| Box::new(Links::default()) as _, Machine::connections),
            nodes,
            by_name,
            ticked: None,
            looked_ms: steady_ms(),
            news: VecDeque::new(),
            reports: VecDeque::new(),
            next_end: 0,
            logins: Logins::default(),
            called_at_once: 1,
        })
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Returns the node with the host name `name`, as ranks and launchers report it. The list of nodes may have an address, an
    /// alias or a longer name instead. The names in the list are tried first, then the host names that agents report, then both
    /// without their domain. Returns `None` if several nodes match.
    pub fn find_by_own_name(&self, name: &str) -> Option<usize> {
        let own = |node: &Node| Some(node.facts.as_ref()?.0.host.clone());
        let named = |node: &Node| own(node).as_deref() == Some(name);
        let alike = |node: &Node| {
            // An address is not compared by its first part, with which other addresses begin, too.
            let listed = Some(node.host.name.clone()).filter(|n| n.parse::<IpAddr>().is_err());
            [own(node), listed].iter().flatten().any(|other| short(other) == short(name))
        };
        self.find(name).or_else(|| self.only(named)).or_else(|| self.only(alike))
    }

    /// Returns the only node for which `holds` is true.
    fn only(&self, holds: impl Fn(&Node) -> bool) -> Option<usize> {
        match self.those(holds)[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Returns the nodes for which `holds` is true.
    pub fn those(&self, holds: impl Fn(&Node) -> bool) -> Vec<usize> {
        (0..self.nodes.len()).filter(|at| holds(&self.nodes[*at])).collect()
    }

    /// Returns the nodes whose agents answer.
    pub fn up(&self) -> BTreeSet<usize> {
        self.those(|node| node.up).into_iter().collect()
    }

    pub fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.host.name.clone()).collect()
    }

    /// Returns the time since a node was called, if it has not answered yet.
    pub fn called_for(&self, node: usize) -> Option<Duration> {
        let node = &self.nodes[node];
        node.called.filter(|_| !node.up).map(|at| at.elapsed())
    }

    /// Opens connections to nodes, directly or, if there are many, through other nodes.
    pub fn call(&mut self, nodes: &[usize]) {
        let now = Instant::now();
        let charge = |node: &usize| Charge {
            node: *node as u32,
            name: self.nodes[*node].host.name.clone(),
            // No step waits for news of a lost node.
            again: self.nodes[*node].facts.is_some() && self.nodes[*node].lost.is_none(),
        };
        let charges: Vec<Charge> = nodes.iter().map(charge).collect();
        for node in nodes {
            let node = &mut self.nodes[*node];
            (node.called, node.up, node.unresponsive) = (Some(now), false, None);
        }
        self.branch.call(&charges, steady_ms(), &mut *self.links);
    }

    fn leave(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        (state.called, state.up, state.unresponsive) = (None, false, None);
        self.branch.leave(&[node as u32], steady_ms(), &mut *self.links);
    }

    /// Calls all nodes that are not lost and have not been called. Returns all nodes that are not lost.
    pub fn call_new(&mut self) -> Vec<usize> {
        self.call(&self.those(|node| node.lost.is_none() && node.called.is_none()));
        self.those(|node| node.lost.is_none())
    }

    /// Gives up waiting for an answer of a node. Returns the reason as text.
    pub fn give_up(&mut self, node: usize, timeout: Duration) -> String {
        let said = self.branch.complaint(node as u32, &*self.links);
        self.leave(node);
        let words = format!(
            "no answer within {} s; how long does a login there take? {said}",
            timeout.as_secs()
        );
        words.trim_end().to_owned()
    }

    /// Calls all nodes that are not lost and waits until each has answered or failed, or a signal asks to stop. Returns the nodes
    /// that failed, each with the reason. The `timeout` of a node counts from the call to the node itself, because the nodes that
    /// were to call it may have failed first. If no node answers within `timeout`, no node could call others, so all have failed.
    pub fn call_all(&mut self, timeout: Duration) -> Vec<(usize, String)> {
        let began = Instant::now();
        let mut missing: BTreeSet<usize> = self.call_new().into_iter().collect();
        let all = missing.len();
        missing.retain(|node| !self.nodes[*node].up);
        let mut failed: BTreeMap<usize, String> = BTreeMap::new();
        while !missing.is_empty() {
            match self.hear(CALL_LOOK) {
                Some((node, News::Up)) => drop(missing.remove(&node)),
                Some((node, News::Closed(why))) if missing.remove(&node) => {
                    failed.insert(node, unreachable_words(&why));
                }
                _ => {}
            }
            let nobody = missing.len() + failed.len() == all && began.elapsed() >= timeout;
            let enough = nobody || asked_by_signal();
            let long = |unheard: Duration| unheard >= timeout;
            let in_vain =
                |node: &&usize| enough || self.nodes[**node].unresponsive.is_some_and(long);
            let late: Vec<usize> = missing.iter().filter(in_vain).copied().collect();
            for node in late {
                missing.remove(&node);
                failed.insert(node, self.give_up(node, timeout));
            }
        }
        failed.into_iter().collect()
    }

    /// Makes the next [`hear`](Self::hear) ask for heartbeats at once, not only at their interval.
    pub fn beat_all(&mut self) {
        self.branch.asked_ms = None;
        self.ticked = None;
    }

    pub fn halt_all(&mut self, now: bool) {
        let all = Vec::from_iter(0..self.nodes.len() as u32);
        self.branch.tell(&all, &ToAgent::Halt { now }, &mut *self.links);
    }

    /// Returns the next news that comes within `timeout`, and updates the nodes' states by it. This function also asks for
    /// heartbeats.
    pub fn hear(&mut self, timeout: Duration) -> Option<(usize, News)> {
        let deadline = Instant::now() + timeout;
        let mut is_late = false;
        loop {
            if let Some(news) = self.news.pop_front() {
                return Some(news);
            }
            if let Some((line, heard)) = self.links.heard() {
                let told = self.branch.hear(line, heard, steady_ms(), &mut *self.links);
                self.take_in(told);
                continue;
            }
            if self.ticked.is_none_or(|at| at.elapsed() >= TICK) {
                self.ticked = Some(Instant::now());
                self.branch.ask(steady_ms(), &mut *self.links);
                // All messages that came up to `looked_ms` have been handled. Later messages may still be unread, so the time now
                // would make nodes seem unresponsive.
                let told = self.branch.tick(self.looked_ms, &mut *self.links);
                self.take_in(told);
                continue;
            }
            if is_late {
                return None;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            self.links.wait(left.min(TICK));
            self.looked_ms = steady_ms();
            is_late = left.is_zero();
        }
    }

    fn take_in(&mut self, told: Vec<super::branch::Told>) {
        for (node, word) in told {
            let at = node as usize;
            let now_ms = steady_ms();
            let Some(node) = self.nodes.get_mut(at) else { continue };
            if node.called.is_none() {
                continue;
            }
            // Any message that the node itself sends is a heartbeat.
            let of_others = matches!(word, FromAgent::Quiet { .. } | FromAgent::Closed { .. });
            if !of_others && node.unresponsive.take().is_some() {
                self.reports.push_back((now_ms, at, Report::Heard));
            }
            let news = match word {
                FromAgent::Hello(facts) => {
                    // A node that was called again on another path does not count as a login.
                    if let Some(called) = node.called.filter(|_| !node.up) {
                        let took_ms = called.elapsed().as_millis() as u64;
                        self.logins.note(took_ms, self.called_at_once);
                    }
                    node.up = true;
                    let boot = facts.boot.clone();
                    self.reports.push_back((now_ms, at, Report::AgentUp { boot }));
                    node.facts = Some((*facts, unix_ms()));
                    News::Up
                }
                FromAgent::Beat(beat) => {
                    node.beat = beat.clone();
                    News::Beat(beat)
                }
                FromAgent::Moved(moved) => {
                    node.beat.moves(&moved);
                    News::Beat(node.beat.clone())
                }
                FromAgent::Ended { id, ended, beat } => {
                    node.beat = beat;
                    News::Ended { id, ended }
                }
                FromAgent::Closed { why } => {
                    (node.called, node.up, node.unresponsive) = (None, false, None);
                    self.reports.push_back((now_ms, at, Report::Closed));
                    News::Closed(why)
                }
                FromAgent::Quiet { age_ms } => {
                    node.unresponsive = Some(Duration::from_millis(age_ms));
                    let heard_ms = now_ms.saturating_sub(age_ms);
                    self.reports.push_back((now_ms, at, Report::Quiet { heard_ms }));
                    continue;
                }
                FromAgent::Heard | FromAgent::Below { .. } => continue,
            };
            self.news.push_back((at, news));
        }
    }

    /// Declares a node lost. It stays lost until it takes ranks again.
    pub fn lose(&mut self, node: usize, why: &str) {
        self.leave(node);
        let state = &mut self.nodes[node];
        state.lost = Some(why.to_string());
        state.returned = false;
        state.beat = Beat::default();
        let now = Instant::now();
        (state.lost_at, state.call_at) = (Some(now), Some(now + CALL_AGAIN));
    }

    /// Ends the run's processes on all nodes that answer, and waits up to `timeout` for them.
    pub fn end_run(&mut self, timeout: Duration) {
        let mut waiting = self.up();
        let up = Vec::from_iter(waiting.clone());
        let id = self.next_end();
        self.ask_end(&up, id, &BTreeSet::new());
        let until = Instant::now() + timeout;
        while !waiting.is_empty() && Instant::now() < until {
            match self.hear(until.saturating_duration_since(Instant::now())) {
                Some((node, News::Ended { .. } | News::Closed(_))) => drop(waiting.remove(&node)),
                Some((node, News::Up)) => self.ask_end(&[node], id, &BTreeSet::new()),
                _ => {}
            }
        }
    }

    /// Returns a number for a request to end the run's processes.
    pub fn next_end(&mut self) -> u64 {
        self.next_end += 1;
        self.next_end
    }

    /// Returns the time that a lost node may take to answer a call. If the node has answered before, the time is derived from
    /// earlier logins.
    fn login_timeout(&self, node: &Node) -> Duration {
        match node.facts {
            // The node has not answered this supervisor yet.
            None => FIRST_CALL,
            Some(_) => CALL_AGAIN.max(LOGIN_TIMES * self.logins.slowest()),
        }
    }

    /// Returns whether a lost node that was called may still answer. Another call would end its login.
    fn may_answer(&self, node: &Node) -> bool {
        node.called.is_some_and(|at| at.elapsed() <= self.login_timeout(node))
    }

    /// Returns whether a lost node may answer again, because it was called lately.
    pub fn awaits_lost(&self) -> bool {
        let away = |node: &Node| node.lost.is_some() && !node.returned;
        self.nodes.iter().any(|node| away(node) && self.may_answer(node))
    }

    /// Calls lost nodes from time to time, to find out whether they answer again.
    pub fn call_lost(&mut self) {
        let now = Instant::now();
        self.call_away(|node| !node.up && node.call_at.is_none_or(|at| now >= at));
    }

    /// Calls all lost nodes that neither answer again nor are being called, however recent their last call. Returns false if all
    /// lost nodes answer again.
    pub fn call_lost_now(&mut self) -> bool {
        self.call_away(|_| true);
        self.nodes.iter().any(|node| node.lost.is_some() && !node.returned)
    }

    /// Calls the lost nodes that do not answer yet and are `due`.
    fn call_away(&mut self, due: impl Fn(&Node) -> bool) {
        let away = |node: &Node| node.lost.is_some() && !node.returned;
        let login = |node: &Node| !node.up && self.may_answer(node);
        let nodes = self.those(|node| away(node) && due(node) && !login(node));
        for node in &nodes {
            let node = &mut self.nodes[*node];
            let lost = node.lost_at.map_or(Duration::ZERO, |at| at.elapsed());
            node.call_at = Some(Instant::now() + call_again_in(lost));
        }
        if !nodes.is_empty() {
            self.call(&nodes);
        }
    }

    /// Asks nodes to end the run's processes. Nodes named in `clean` also remove the memory that the run has left.
    pub fn ask_end(&mut self, nodes: &[usize], id: u64, clean: &BTreeSet<String>) {
        let (cleaned, kept): (Vec<u32>, Vec<u32>) = nodes
            .iter()
            .map(|n| *n as u32)
            .partition(|n| clean.contains(&self.nodes[*n as usize].host.name));
        for (to, clean) in [(cleaned, true), (kept, false)] {
            let end = ToAgent::End { id, clean };
            self.branch.tell(&to, &end, &mut *self.links);
        }
    }

    /// Asks a node to end a rank without which the other ranks continue, or are to continue. Only a rank of an attempt before
    /// attempt `below` is ended.
    pub fn ask_end_rank(&mut self, node: usize, which: Which, below: u32) {
        let end = ToAgent::EndRank { which, below };
        self.branch.tell(&[node as u32], &end, &mut *self.links);
    }

    /// Returns the node's fitness, by its facts and last heartbeat.
    pub fn fitness(&self, name: &str, expected: &Expected) -> Fitness {
        let Some(at) = self.find(name) else {
            return Fitness::Unfit("it is in no list of nodes".to_string());
        };
        let node = &self.nodes[at];
        if node.lost.is_some() {
            // The memory of this run on the node counts as free: it is removed before ranks start there, or used again.
            let well = node.returned && node.up && self.problems(at, expected).is_empty();
            let returned = well.then(|| self.free_bytes(at, expected) + node.beat.held_bytes);
            return Fitness::Lost { returned };
        }
        if !node.up {
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

    /// Returns the reasons why a node is unfit.
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
        let facts = Facts { free: node.free(), ..facts.clone() };
        let mut found = judge(&facts, *at_ms, node.beat.held_bytes, expected);
        found.extend(node.unfit.clone().map(Finding::Problem));
        found
    }

    /// Returns how many bytes of new persistent shared memory, of the kind that the run needs, fit on a node.
    fn free_bytes(&self, at: usize, expected: &Expected) -> u64 {
        let free = self.nodes[at].free();
        match expected.need.map_or(Store::Posix, |need| need.store) {
            Store::Posix => free.shm_bytes.min(free.memory_bytes),
            Store::SysV => free.sysv_bytes.unwrap_or(u64::MAX).min(free.memory_bytes),
            Store::HugeTlbfs => free.huge_bytes.unwrap_or(0),
        }
    }

    /// Returns the largest size of a rank's memory that the nodes report now.
    pub fn rank_bytes(&self) -> Option<u64> {
        self.nodes
            .iter()
            .filter(|n| n.beat.held_positions > 0)
            .map(|n| n.beat.held_bytes / n.beat.held_positions as u64)
            .max()
    }
}

/// Returns a host's name without its domain.
fn short(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Message of ssh if the file that was given with -F does not exist.
const NO_SSH_CONFIG: &str = "Can't open user config";

/// Returns whether a line of a remote shell reports a missing program. The warning of ssh about a missing key file does not
/// count.
fn is_missing(line: &str) -> bool {
    !line.starts_with("Warning: Identity file")
        && (line.contains("not found") || line.contains("No such file"))
}

/// Describes, for people, why a node cannot be reached, from the last lines of the remote shell.
pub fn unreachable_words(said: &str) -> String {
    match said {
        "" => "the connection ended without an error message".to_string(),
        text if text.starts_with("cannot start ") => format!("{text}; is --rsh right?"),
        text if text.contains("shared librar") => {
            format!(
                "a library that skt-hpl needs is missing there ({text}); install the library there, or name its folder in \
                 LD_LIBRARY_PATH on this machine, which is passed on to the node"
            )
        }
        text if text.contains(NO_SSH_CONFIG) => {
            format!(
                "ssh does not find its configuration file ({text}); give its full path in --rsh; every node \
                 that connects to other nodes needs this file"
            )
        }
        text if text.split("; ").any(is_missing) => {
            format!(
                "skt-hpl is not there, or not executable ({text}); install it at the path it has on this machine"
            )
        }
        text => format!("cannot be reached ({text})"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::shell::RemoteShell;
    use super::super::wire::{Shm, WIRE_VERSION};
    use super::*;
    use crate::supervise::judge::fitness::Need;

    fn attend(shell: RemoteShell) -> Attend {
        Attend::new(shell, vec!["agent".to_owned()], "r", None)
    }

    /// Returns a cluster of nodes, each with a name in the list and a host name that its agent reports.
    fn cluster(nodes: &[(&str, &str)]) -> Cluster {
        let hosts: Vec<Host> = nodes.iter().map(|(name, _)| Host::new(*name, 1)).collect();
        let shell = RemoteShell::parse(None).unwrap();
        let mut cluster = Cluster::new(attend(shell), &hosts, &[]).unwrap();
        for (node, (_, host)) in cluster.nodes.iter_mut().zip(nodes) {
            let facts = Facts { host: (*host).to_owned(), ..Facts::default() };
            node.facts = (!host.is_empty()).then_some((facts, 0));
        }
        cluster
    }

    #[test]
    fn a_node_lost_for_long_is_called_seldom() {
        let seconds = Duration::from_secs;
        for (lost, again) in [(0, 5), (50, 5), (120, 12), (600, 60), (36_000, 60)] {
            assert_eq!(call_again_in(seconds(lost)), seconds(again), "{lost} s");
        }
    }

    #[test]
    fn a_node_is_found_by_what_it_calls_itself() {
        let lists = [
            ["n1", "n2"],
            ["10.0.0.1", "10.0.0.2"],
            ["fe80::1", "fe80::2"],
            ["n1.site", "n2.site"],
            ["first", "second"],
        ];
        for list in lists {
            for own in [["n1", "n2"], ["n1.site", "n2.site"]] {
                let cluster = cluster(&[(list[0], own[0]), (list[1], own[1])]);
                for (at, name) in own.iter().chain(&["n1", "n2"]).chain(&list).enumerate() {
                    assert_eq!(
                        cluster.find_by_own_name(name),
                        Some(at % 2),
                        "{name} of {list:?}, {own:?}"
                    );
                }
                assert_eq!(cluster.find_by_own_name("n3"), None);
                assert_eq!(cluster.find_by_own_name("10.0.0.3"), None);
            }
        }
    }

    #[test]
    fn files_that_ssh_lacks_are_not_the_program() {
        let said = |text| unreachable_words(text).split(" (").next().unwrap().to_owned();
        for text in [
            "bash: line 1: /opt/skt-hpl: No such file or directory",
            "Warning: Identity file k not accessible: No such file or directory.; sh: 1: /opt/skt-hpl: not found",
        ] {
            assert_eq!(said(text), "skt-hpl is not there, or not executable", "{text}");
        }
        let config = "Can't open user config file ssh.conf: No such file or directory";
        assert_eq!(said(config), "ssh does not find its configuration file");
        let key = "Warning: Identity file k not accessible: No such file or directory.; n1: Permission denied";
        assert_eq!(said(key), "cannot be reached");
    }

    #[test]
    fn a_name_that_two_have_is_nobodys() {
        let alike =
            cluster(&[("a", "localhost"), ("b", "localhost"), ("n1.east", ""), ("n1.west", "")]);
        for name in ["localhost", "n1", "n1.north"] {
            assert_eq!(alike.find_by_own_name(name), None, "{name}");
        }
        assert_eq!(
            ["a", "b", "n1.west"].map(|name| alike.find_by_own_name(name)),
            [Some(0), Some(1), Some(3)]
        );
    }

    /// The first heartbeat of a node that is called through other nodes may come later than any time limit.
    #[test]
    fn free_memory_of_a_node_is_known_before_its_first_heartbeat() {
        const GIB: u64 = 1 << 30;
        let mut cluster = cluster(&[("n1", "n1")]);
        let expected = Expected { binary: "b", need: None, rounding: None };
        let node = &mut cluster.nodes[0];
        node.up = true;
        node.facts = Some((
            Facts {
                wire: WIRE_VERSION,
                version: env!("CARGO_PKG_VERSION").into(),
                binary: "b".into(),
                shm: Shm { is_memory: true, ..Shm::default() },
                free: Free { shm_bytes: 90 * GIB, memory_bytes: 100 * GIB, ..Free::default() },
                ..Facts::default()
            },
            0,
        ));
        let fit = |free_bytes, held_bytes| Fitness::Fit { free_bytes, held_bytes };
        assert_eq!(cluster.fitness("n1", &expected), fit(90 * GIB, 0));
        cluster.nodes[0].beat = Beat {
            free: Free { shm_bytes: 80 * GIB, memory_bytes: 70 * GIB, ..Free::default() },
            held_bytes: GIB,
            ..Beat::default()
        };
        assert_eq!(cluster.fitness("n1", &expected), fit(70 * GIB, GIB));

        // The ranks use most of the pool of huge pages.
        let of = |store| {
            let need = Need { named_bytes: 100 * GIB, ..Need::none(store) };
            Expected { need: Some(need), ..expected.clone() }
        };
        let (huge, sysv) = (of(Store::HugeTlbfs), of(Store::SysV));
        let beat = &mut cluster.nodes[0].beat;
        beat.held_bytes = 90 * GIB;
        (beat.free.huge_bytes, beat.free.sysv_bytes) = (Some(10 * GIB), Some(20 * GIB));
        assert_eq!(cluster.fitness("n1", &huge), fit(10 * GIB, 90 * GIB));
        assert_eq!(cluster.fitness("n1", &sysv), fit(20 * GIB, 90 * GIB));
        // Other processes use a part of the pool.
        cluster.nodes[0].beat.free.huge_bytes = Some(9 * GIB);
        assert!(
            matches!(cluster.fitness("n1", &huge), Fitness::Unfit(why) if why.contains("pool"))
        );
    }

    #[test]
    fn nodes_that_never_answer_are_given_up() {
        // The shell gives no answer, like a login that hangs.
        let shell = RemoteShell::Ssh(["sh", "-c", "sleep 60"].map(str::to_owned).to_vec());
        let hosts = [Host::new("n1", 1), Host::new("n2", 1)];
        let mut cluster = Cluster::new(attend(shell), &hosts, &[]).unwrap();
        let began = Instant::now();
        let failed = cluster.call_all(Duration::from_secs(2));
        let waited = began.elapsed();
        assert_eq!(failed.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [0, 1]);
        assert!(
            failed.iter().all(|(_, why)| why.starts_with("no answer within 2 s")),
            "{failed:?}"
        );
        assert!((2.0..20.0).contains(&waited.as_secs_f64()), "{waited:?}");
        // In a cluster of many nodes most nodes are not called yet. They are given up as well.
        let shell = RemoteShell::Ssh(["sh", "-c", "sleep 60"].map(str::to_owned).to_vec());
        let hosts: Vec<Host> = (0..12).map(|node| Host::new(format!("n{node}"), 1)).collect();
        let attend = Attend { fanout: 2, ..attend(shell) };
        let mut cluster = Cluster::new(attend, &hosts, &[]).unwrap();
        let began = Instant::now();
        assert_eq!(cluster.call_all(Duration::from_secs(2)).len(), 12);
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    }
}
