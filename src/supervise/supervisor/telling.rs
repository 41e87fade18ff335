//! What people are told while a run goes on: lines on standard error, and the status file.
//!
//! Nothing here may end a run: a terminal that is gone or a full disk is passed over.

use std::collections::HashMap;

use super::Supervisor;
use crate::supervise::judge::fitness::Finding;
use crate::supervise::judge::policy::Fitness;
use crate::supervise::remember::events::{Event, steady_ms, unix_ms};
use crate::supervise::tell::status::{self, NodeRole, NodeStatus};
use crate::supervise::tell::{say, say_on, timeline};

impl Supervisor<'_> {
    /// Events people want to see at once.
    pub(super) fn say(&mut self, event: &Event) {
        let text = match event {
            Event::Launched { incarnation, hosts, .. } => {
                let names: Vec<&str> = hosts.iter().map(|h| h.name.as_str()).collect();
                format!("incarnation {incarnation} on {}", names.join(" "))
            }
            Event::Computing { incarnation, iteration, .. } if *incarnation > 1 => {
                format!("computing again, at iteration {iteration}")
            }
            Event::CaughtUp { iteration, .. } => format!("caught up at iteration {iteration}"),
            Event::Fault { fault, kind, detail, .. } => {
                format!("FAULT {fault}: {}: {detail}", kind.words())
            }
            Event::GoneOn { fault, struck_ms, going_on_ms, lost, .. } => format!(
                "FAULT {fault}: {}, made good in place {:.1} s after it struck",
                match lost.len() {
                    1 => "a rank died".to_string(),
                    several => format!("{several} ranks died"),
                },
                going_on_ms.saturating_sub(*struck_ms) as f64 / 1e3
            ),
            Event::NodeLost { node, why } => format!("node {node} is lost: {why}"),
            Event::NodeReturned { node, same_boot, ended } => format!(
                "node {node} answers again; it was {}; {ended} left-over process(es) ended there",
                if *same_boot { "cut off" } else { "restarted" }
            ),
            Event::Rounding { .. } => return,
            Event::MemoryRemoved { node, bytes } => {
                format!("node {node}: {bytes} bytes of memory from before it was lost are removed")
            }
            Event::Stopped { ended, .. } => format!("stopped, {ended} process(es) ended"),
            Event::Replaced { node, by } => format!("{by} takes the ranks of {node}"),
            Event::SlowNode { node, detail } => format!("node {node} is slow: {detail}"),
            Event::AgentRestarted { node } => {
                format!("agent on {node} restarted; its ranks are well")
            }
            Event::Alone => {
                "no node answers: this machine is cut off, it seems. Nobody is given up; they are called again"
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
                "going on with an interrupted run".to_string()
            }
            _ => return,
        };
        self.finish_line();
        say!("skt-hpl run: {text}");
    }

    pub(super) fn refresh_status(&mut self) {
        let placed: HashMap<&str, usize> =
            self.state.placed.iter().map(|h| (h.name.as_str(), h.slots)).collect();
        let ranks_of = |name: &str| placed.get(name).copied();
        let nodes = self
            .cluster
            .nodes
            .iter()
            .map(|node| {
                let name = &node.host.name;
                let (role, note) = match self
                    .cluster
                    .fitness(name, &self.expected_of(name, ranks_of(name).is_some()))
                {
                    Fitness::Lost { returned } => {
                        let why = node.lost.clone().unwrap_or_default();
                        let back = if returned.is_some() { ", answers again" } else { "" };
                        (NodeRole::Lost, format!("{why}{back}"))
                    }
                    Fitness::Unfit(why) => (NodeRole::Unfit, why),
                    Fitness::Fit { .. } if ranks_of(name).is_some() => {
                        let slow = self.slow.get(name).map(|why| format!("slow: {why}"));
                        (NodeRole::Working, slow.unwrap_or_default())
                    }
                    Fitness::Fit { .. } => (NodeRole::Spare, String::new()),
                };
                let ranks = if role == NodeRole::Working { ranks_of(name).unwrap_or(0) } else { 0 };
                let part = match &self.positions {
                    Some(positions) if role == NodeRole::Working => {
                        let here = self.cluster.find(name).and_then(|at| positions.get(&at));
                        let here = here.map_or(&[][..], |positions| positions);
                        status::part(ranks, here, self.gone_from(name), self.settings.stays_vacant)
                    }
                    _ => String::new(),
                };
                NodeStatus { name: name.clone(), role, ranks, part, note }
            })
            .collect();
        self.status.nodes = nodes;
        self.status.faults = timeline::faults(&self.records);
        self.status.updated_ms = unix_ms();
        self.status.own_ms = steady_ms();
        match self.computing_since {
            Some((since, from)) => self.status.measure(from, since.elapsed().as_secs_f64()),
            None => self.status.measure(0, 0.0),
        }
    }

    /// How many ranks of this incarnation a node has lost that others have gone on without.
    fn gone_from(&self, name: &str) -> usize {
        let now = self.state.incarnation;
        let gone = self.records.iter().filter_map(|record| match &record.event {
            Event::GoneOn { incarnation, lost, .. } if *incarnation == now => Some(lost),
            _ => None,
        });
        let node = self.cluster.find(name);
        gone.flatten().filter(|gone| self.cluster.find_told(&gone.node) == node).count()
    }

    pub(super) fn write_status(&mut self) {
        self.refresh_status();
        if let Ok(bytes) = serde_json::to_vec_pretty(&self.status) {
            self.scribe.file(self.settings.folder.status(), bytes);
        }
    }

    pub(super) fn show_line(&mut self) {
        if !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            if self.lines.due(self.now_ms(), self.status.share()) {
                say!("skt-hpl run: {}", self.status.line(steady_ms()).trim_start());
            }
            return;
        }
        say_on!("\r\x1b[K{}", self.status.line(steady_ms()));
        self.line_shown = true;
    }

    /// Makes room for a whole line where the progress line may stand.
    pub(super) fn finish_line(&mut self) {
        if std::mem::take(&mut self.line_shown) {
            say_on!("\r\x1b[K");
        }
    }

    pub(super) fn tell_findings(&mut self) {
        for at in 0..self.cluster.nodes.len() {
            let name = &self.cluster.nodes[at].host.name;
            for finding in self.cluster.findings(at, &self.expected(name)) {
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
