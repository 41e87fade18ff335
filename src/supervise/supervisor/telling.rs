//! Reports to people during a run: lines on standard error, and the status file.
//!
//! A closed terminal or a full disk does not end a run.

use std::collections::HashMap;
use std::time::Duration;

use super::{Benchmark, Supervisor};
use crate::base::clock::{Instant, steady_ms, unix_ms};
use crate::supervise::judge::fitness::Finding;
use crate::supervise::judge::policy::Fitness;
use crate::supervise::remember::events::{Event, Record};
use crate::supervise::talk::cluster::Node;
use crate::supervise::tell::echo::Echo;
use crate::supervise::tell::status::{self, Lines, NodeRole, NodeStatus};
use crate::supervise::tell::{say, say_on, timeline};

/// Interval at which the status is written during every step of the run. It shows other hosts that a supervisor works.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// State of the run's output for people.
#[derive(Default)]
pub(super) struct Display {
    /// Time at which the status was last written to the run's folder, if it was.
    pub(super) status_written: Option<Instant>,
    /// Time at which the progress was last shown.
    pub(super) shown: Option<Instant>,
    pub(super) line_shown: bool,
    pub(super) lines: Lines,
    /// Output of the benchmark in all attempts.
    pub(super) echo: Echo,
    /// Whether the supervisor has reported that records cannot be written.
    pub(super) unwritten: bool,
}

impl Supervisor<'_> {
    /// Prints an event, if it is one that people should see at once.
    pub(super) fn say(&mut self, event: &Event) {
        let text = match event {
            Event::Launched { attempt, hosts, .. } => {
                let names: Vec<&str> = hosts.iter().map(|h| h.name.as_str()).collect();
                format!("attempt {attempt} on {}", names.join(" "))
            }
            Event::Computing { attempt, iteration, .. } if *attempt > 1 => {
                format!("computing again, at iteration {iteration}")
            }
            Event::CaughtUp { iteration, .. } => {
                format!("caught up with the progress before the fault, at iteration {iteration}")
            }
            Event::Fault { fault, kind, detail, .. } => {
                format!("FAULT {fault}: {}: {detail}", kind.words())
            }
            Event::GoneOn { fault, failed_ms, going_on_ms, lost, .. } => format!(
                "FAULT {fault}: {}; recovered in place after {:.1} s",
                match lost.len() {
                    1 => "a rank died".to_string(),
                    several => format!("{several} ranks died"),
                },
                going_on_ms.saturating_sub(*failed_ms) as f64 / 1e3
            ),
            Event::NodeLost { node, why } => format!("node {node} is lost: {why}"),
            Event::NodeReturned { node, same_boot, ended } => format!(
                "node {node} answers again; it was {}; {ended} left-over process(es) ended there",
                if *same_boot { "cut off" } else { "restarted" }
            ),
            Event::MemoryRemoved { node, bytes } => {
                format!("node {node}: removed {bytes} bytes of memory from before the node was lost")
            }
            Event::Stopped { ended, .. } => format!("attempt stopped: {ended} process(es) ended"),
            Event::Replaced { node, by } => format!("{by} takes the ranks of {node}"),
            Event::SlowNode { node, detail } => format!("node {node} is slow: {detail}"),
            Event::AgentRestarted { node } => {
                format!("agent on {node} restarted; the ranks there are not affected")
            }
            Event::Alone => {
                "no node answers: this machine seems to be cut off. No node is given up; the supervisor \
                 connects to all nodes again"
                    .to_string()
            }
            Event::Together { after_ms } => {
                format!("nodes answer again, after {:.0} s", *after_ms as f64 / 1e3)
            }
            Event::Waiting { missing } => format!("waiting for {missing} node(s) to come back"),
            Event::BackOff { delay_ms } => {
                format!("next attempt in {:.0} s", *delay_ms as f64 / 1e3)
            }
            Event::HaltRequested { why, .. } => format!("halt: {why}"),
            Event::TookOver { adopted: true, .. } => "took the running job over".to_string(),
            Event::TookOver { adopted: false, .. } => {
                "continuing an interrupted run".to_string()
            }
            _ => return,
        };
        self.print(&text);
    }

    /// Returns a note on a node whose agent does not answer and that is not lost. Such a node is being called, or will be soon.
    fn called(&self, at: usize) -> Option<String> {
        let node = &self.cluster.nodes[at];
        let words = match self.cluster.called_for(at) {
            Some(so_long) => format!("its agent has not answered for {} s", so_long.as_secs()),
            None => "its agent does not answer yet".to_owned(),
        };
        (node.lost.is_none() && !node.up).then_some(words)
    }

    /// Returns the role of a node that is not being called, and a note on the node.
    fn role_of(&self, node: &Node, placed: bool) -> (NodeRole, String) {
        let name = &node.host.name;
        match self.cluster.fitness(name, &self.expected(name, placed)) {
            Fitness::Lost { returned } => {
                let why = node.lost.clone().unwrap_or_default();
                let back = if returned.is_some() { ", answers again" } else { "" };
                (NodeRole::Lost, format!("{why}{back}"))
            }
            Fitness::Unfit(why) => (NodeRole::Unfit, why),
            Fitness::Fit { .. } if placed => {
                let slow = self.attempt.slow.get(name).map(|why| format!("slow: {why}"));
                (NodeRole::Working, slow.unwrap_or_default())
            }
            Fitness::Fit { .. } => (NodeRole::Spare, String::new()),
        }
    }

    pub(super) fn refresh_status(&mut self) {
        let placed: HashMap<&str, usize> =
            self.state.placed.iter().map(|h| (h.name.as_str(), h.slots)).collect();
        let ranks_of = |name: &str| placed.get(name).copied();
        let gone = gone_from(&self.records, self.state.attempts, |told| {
            self.cluster.find_by_own_name(told)
        });
        let Benchmark { in_place, stays_vacant, .. } = self.settings.benchmark;
        let ranks = Some(&self.watch.ranks).filter(|ranks| in_place && !ranks.is_empty());
        let positions = ranks.map(|ranks| ranks.positions(stays_vacant));
        let of_node = |(at, node): (usize, &Node)| {
            let name = &node.host.name;
            let (role, note) = match (self.contact.given_up.get(&at), self.called(at)) {
                (Some(why), _) => (NodeRole::Unfit, why.clone()),
                (None, Some(note)) => (NodeRole::Called, note),
                (None, None) => self.role_of(node, ranks_of(name).is_some()),
            };
            let has_ranks = matches!(role, NodeRole::Working | NodeRole::Called);
            let ranks = if has_ranks { ranks_of(name).unwrap_or(0) } else { 0 };
            let part = match &positions {
                Some(positions) if role == NodeRole::Working => {
                    let here = positions.get(&at).map_or(&[][..], |positions| positions);
                    let gone = gone.get(&at).copied().unwrap_or(0);
                    status::part(ranks, here, gone, stays_vacant)
                }
                _ => String::new(),
            };
            NodeStatus { name: name.clone(), role, ranks, part, note }
        };
        self.status.nodes = self.cluster.nodes.iter().enumerate().map(of_node).collect();
        self.status.faults = timeline::faults(&self.records);
        match self.attempt.computing_since {
            Some((since, from)) => self.status.measure(from, since.elapsed().as_secs_f64()),
            None => self.status.measure(0, 0.0),
        }
    }

    pub(super) fn write_status(&mut self) {
        self.refresh_status();
        self.display.status_written = Some(Instant::now());
        self.status.updated_ms = unix_ms();
        self.status.own_ms = steady_ms();
        if let Ok(bytes) = serde_json::to_vec_pretty(&self.status) {
            self.journal_writer.file(self.settings.folder.status(), bytes);
        }
    }

    /// Writes the status if it is due. Before the journal has a record of the run, no status is written.
    pub(super) fn keep_status(&mut self) {
        if self.display.status_written.is_some_and(|at| at.elapsed() >= STATUS_EVERY) {
            self.write_status();
        }
    }

    pub(super) fn show_line(&mut self) {
        if !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            if self.display.lines.due(steady_ms(), self.status.share()) {
                say!("skt-hpl run: {}", self.status.line(steady_ms()).trim_start());
            }
            return;
        }
        say_on!("\r\x1b[K{}", self.status.line(steady_ms()));
        self.display.line_shown = true;
    }

    /// Clears the progress line, so that another line can be printed.
    pub(super) fn finish_line(&mut self) {
        if std::mem::take(&mut self.display.line_shown) {
            say_on!("\r\x1b[K");
        }
    }

    /// Prints a line, after clearing the progress line.
    pub(super) fn print(&mut self, text: &str) {
        self.finish_line();
        say!("skt-hpl run: {text}");
    }

    pub(super) fn print_findings(&mut self) {
        self.finish_line();
        for at in 0..self.cluster.nodes.len() {
            let name = &self.cluster.nodes[at].host.name;
            let expected = self.expected(name, self.is_placed(name));
            for finding in self.cluster.findings(at, &expected) {
                match finding {
                    Finding::Problem(text) => {
                        say!("skt-hpl run: {name} cannot be used: {text}")
                    }
                    Finding::Warning(text) => say!("skt-hpl run: {name}: {text}"),
                }
            }
        }
    }
}

/// Returns, for each node, how many of its ranks were lost in attempt `now` while the other ranks continued. `find` may look at
/// all nodes, so it is called once for each lost rank. Pure.
fn gone_from(
    records: &[Record],
    now: u32,
    find: impl Fn(&str) -> Option<usize>,
) -> HashMap<usize, usize> {
    let lost = records.iter().filter_map(|record| match &record.event {
        Event::GoneOn { attempt, lost, .. } if *attempt == now => Some(lost),
        _ => None,
    });
    let mut gone = HashMap::new();
    for node in lost.flatten().filter_map(|lost| find(&lost.node)) {
        *gone.entry(node).or_default() += 1;
    }
    gone
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::supervise::start::in_place::Gone;

    #[test]
    fn a_node_is_looked_for_once_for_each_rank_that_it_has_lost() {
        let record = |seq: u64, attempt, nodes: &[&str]| {
            let gone = |node: &&str| Gone { rank: 0, node: node.to_string(), position: None };
            let event = Event::GoneOn {
                fault: 1,
                attempt,
                failed_ms: 0,
                noticed_ms: 0,
                agreed_ms: 0,
                going_on_ms: 0,
                lost: nodes.iter().map(gone).collect(),
                test: 0,
                iteration: 0,
                boundary: None,
                detail: String::new(),
            };
            Record { seq, at_ms: 0, event }
        };
        let records = [
            record(0, 1, &["n1", "n1"]),
            record(1, 2, &["n3", "n3", "n7"]),
            record(2, 2, &["elsewhere", "n3"]),
        ];
        let asked = RefCell::new(Vec::new());
        let find = |name: &str| {
            asked.borrow_mut().push(name.to_string());
            name.strip_prefix('n')?.parse().ok()
        };
        let gone = gone_from(&records, 2, find);
        assert_eq!(gone, HashMap::from([(3, 3), (7, 1)]), "of others and of before nothing");
        assert_eq!(*asked.borrow(), ["n3", "n3", "n7", "elsewhere", "n3"]);
        assert_eq!(gone_from(&records, 3, |_| panic!("nothing is lost")), HashMap::new());
    }
}
