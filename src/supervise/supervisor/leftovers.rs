//! Ends the processes and removes the memory that a run has left on nodes that it no longer uses. If the run is given up, this is
//! done on all nodes.
//!
//! This happens when a lost node that is back is to take ranks, at a run's end, and for `--new`. Memory that could still be
//! needed stays. From a lost node, only memory is removed without which a later attempt has computed (`RunState::stale`): no
//! restart trusts that memory any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Supervisor;
use super::settings::Settings;
use super::telling::StatusFile;
use crate::base::clock::Instant;
use crate::supervise::remember::events::Event;
use crate::supervise::remember::folder::write_whole;
use crate::supervise::remember::io_thread::{Answer, IoThread};
use crate::supervise::remember::journal::RunState;
use crate::supervise::signals::asked_by_signal;
use crate::supervise::start::hosts::Host;
use crate::supervise::talk::cluster::{Cleared, Cluster, FIRST_CALL};
use crate::supervise::talk::processes::end_run;
use crate::supervise::tell::say;
use crate::supervise::tell::status::{NodeRole, NodeStatus, Status};

/// Time limit for the nodes' first heartbeat, which reports the memory that they have.
const BEAT_PATIENCE: Duration = Duration::from_secs(2);

impl Supervisor<'_> {
    /// Makes room on lost nodes that are back and are to take ranks. False: one of them could not, and is not available after
    /// all.
    pub(super) fn make_room(&mut self, replaced: &[(String, String)]) -> anyhow::Result<bool> {
        let chosen: BTreeSet<&String> = replaced.iter().map(|(_, by)| by).collect();
        let stale: Vec<usize> = chosen
            .into_iter()
            .filter(|name| self.state.stale.contains(*name))
            .filter_map(|name| self.cluster.find(name))
            .filter(|node| self.cluster.nodes[*node].lost.is_some())
            .collect();
        Ok(self.remove_from(&stale, asked_by_signal)?.len() == stale.len())
    }

    /// Removes the run's memory at its end, also from lost nodes that are back. Returns the nodes that have removed it.
    pub(super) fn clear_returned(&mut self) -> anyhow::Result<BTreeSet<String>> {
        if self.settings.job.is_none() {
            return Ok(BTreeSet::new());
        }
        let mut returned = self.cluster.those(|node| {
            node.lost.is_some() && node.returned && self.state.ran_on.contains(&node.host.name)
        });
        returned.retain(|at| self.cluster.is_up(*at));
        // An earlier request to stop is passed over, because the run came to its end all the same.
        self.remove_from(&returned, || false)
    }

    /// Asks nodes to remove the run's memory, and waits until `enough` says to stop. Returns the nodes that have done it.
    fn remove_from(
        &mut self,
        nodes: &[usize],
        enough: fn() -> bool,
    ) -> anyhow::Result<BTreeSet<String>> {
        let mut done = BTreeSet::new();
        if nodes.is_empty() {
            return Ok(done);
        }
        let silence = Duration::from_millis(self.settings.thresholds.silence_ms);
        let Self { cluster, display, status, journal_writer, .. } = self;
        let cleared = cluster.clear(nodes, silence, |_| {
            display.status_file.keep(status, journal_writer);
            enough()
        });
        for (at, cleared) in cleared {
            let node = self.cluster.nodes[at].host.name.clone();
            match cleared {
                Some(Cleared { freed_bytes, .. }) => {
                    done.insert(node.clone());
                    self.note(Event::MemoryRemoved { node, bytes: freed_bytes })?;
                }
                None if enough() => {}
                None => self.lose(at, "it was asked to remove memory, and does not answer")?,
            }
        }
        Ok(done)
    }
}

/// Ends a run that is given up for a new one, and removes its memory, on all its nodes that can be reached. The other nodes are
/// named in a message. Error: the reason why the run is not given up on all its nodes.
pub(super) fn give_up(
    settings: &Settings,
    state: &RunState,
    io_thread: &IoThread,
) -> Result<(), String> {
    let nodes = ran_on(state);
    let mut status = OldStatus::new(settings, state, &nodes, io_thread);
    let here = end_run(&state.run_id, Duration::from_secs(3));
    if here > 0 {
        say!("skt-hpl run: --new: on this machine {here} process(es) of the old run were ended");
    }
    if nodes.is_empty() {
        status.settle();
        return Ok(());
    }
    // If nothing was saved, ranks have shown their progress under the run's own name.
    let job = state.job.clone().unwrap_or_else(|| state.run_id.clone());
    let silence_ms = settings.thresholds.silence_ms;
    let mut cluster = Cluster::new(settings.attend(&state.run_id, Some(job.clone())), &nodes, &[])?;
    let mut lines: Vec<(usize, String)> = Vec::new();
    let command = settings.clean_command(&job, None);
    let stays =
        |why: &str| format!("{why}; what the old run left there stays: {command} removes it");
    let interrupted = || {
        if asked_by_signal() {
            Err(format!(
                "--new: stopped on request before the old run (job {job}) was given up on all its nodes; the same command continues that"
            ))
        } else {
            Ok(())
        }
    };
    let failed = cluster.call_all(FIRST_CALL, |cluster| status.keep(cluster));
    lines.extend(failed.iter().map(|(node, why)| (*node, stays(why))));
    status.failed = failed.into_iter().collect();
    interrupted()?;
    let up: Vec<usize> = (0..nodes.len()).filter(|node| cluster.is_up(*node)).collect();
    await_beats(&mut cluster, &up, &mut status);
    status.clears = true;
    let enough = |cluster: &Cluster| {
        status.keep(cluster);
        asked_by_signal()
    };
    for (node, cleared) in cluster.clear(&up, Duration::from_millis(silence_ms), enough) {
        lines.push((node, cleared.map_or_else(|| stays("it does not answer"), words)));
    }
    interrupted()?;
    lines.sort();
    for (node, line) in lines {
        say!("skt-hpl run: --new: {}: {line}", nodes[node].name);
    }
    status.settle();
    Ok(())
}

/// Status of the old run, shown while the run is given up, because there is no new run yet. A host that cannot see the journal's
/// lock learns from it that a supervisor works.
struct OldStatus {
    written: StatusFile,
    io_thread: IoThread,
    status: Status,
    /// The write that is not on disk yet, if any.
    writing: Option<Answer<()>>,
    /// Nodes that cannot be reached, and why.
    failed: BTreeMap<usize, String>,
    /// Set once the nodes have been asked to end their processes: no node is called any more.
    clears: bool,
}

impl OldStatus {
    fn new(settings: &Settings, state: &RunState, nodes: &[Host], io_thread: &IoThread) -> Self {
        let host = nix::unistd::gethostname().unwrap_or_default();
        let node = |host: &Host| NodeStatus {
            name: host.name.clone(),
            role: NodeRole::Called,
            ranks: 0,
            part: String::new(),
            note: String::new(),
        };
        let status = Status {
            run_id: state.run_id.clone(),
            doing: "giving up the old run".to_owned(),
            attempt: state.attempts,
            started_ms: state.started_ms,
            supervisor_host: host.to_string_lossy().into_owned(),
            supervisor_pid: std::process::id(),
            nodes: nodes.iter().map(node).collect(),
            ..Status::default()
        };
        let mut shown = Self {
            written: StatusFile::new(settings.folder.status()),
            io_thread: io_thread.clone(),
            status,
            writing: None,
            failed: BTreeMap::new(),
            clears: false,
        };
        shown.write();
        shown
    }

    /// Writes the status if that is due and the disk has taken the last one.
    fn keep(&mut self, cluster: &Cluster) {
        if !self.written.is_due() {
            return;
        }
        // An answer comes only once: a second request would find no sender.
        if self.writing.as_ref().is_some_and(|writing| writing.here().is_none()) {
            return;
        }
        for (at, (node, seen)) in self.status.nodes.iter_mut().zip(&cluster.nodes).enumerate() {
            (node.role, node.note) = match self.failed.get(&at) {
                Some(why) => (NodeRole::Unfit, why.clone()),
                None => match (self.clears, cluster.is_up(at)) {
                    (false, false) => (NodeRole::Called, String::new()),
                    (false, true) => (NodeRole::Called, "its agent has answered".to_owned()),
                    (true, false) => (NodeRole::Unfit, "it answers no more".to_owned()),
                    (true, true) => {
                        let bytes = seen.beat.held_bytes;
                        let held = format!("{bytes} bytes of the old run's memory are there");
                        let known = seen.beat.seq.is_some();
                        (NodeRole::Clearing, if known { held } else { String::new() })
                    }
                },
            };
        }
        self.write();
    }

    fn write(&mut self) {
        self.written.stamp(&mut self.status);
        let (path, status) = (self.written.path.clone(), self.status.clone());
        // After a write that fails, the next status is written all the same.
        self.writing = Some(self.io_thread.ask(move || drop(write_whole(&path, &status))));
    }

    /// Waits until the last status is written.
    fn settle(self) {
        self.writing.and_then(Answer::wait);
    }
}

/// Returns a text about a node's clean-up.
fn words(cleared: Cleared) -> String {
    let Cleared { ended, freed_bytes, left_bytes } = cleared;
    let mut words = format!(
        "{ended} process(es) of the old run ended, {freed_bytes} bytes of its memory removed"
    );
    if left_bytes > 0 {
        words += &format!("; {left_bytes} bytes under its name are in use by somebody else");
    }
    words
}

/// Waits until each node has reported its memory.
fn await_beats(cluster: &mut Cluster, nodes: &[usize], status: &mut OldStatus) {
    cluster.beat_all();
    let until = Instant::now() + BEAT_PATIENCE;
    let silent = |cluster: &Cluster| nodes.iter().any(|n| cluster.nodes[*n].beat.seq.is_none());
    while silent(cluster) && Instant::now() < until {
        let _ = cluster.hear(Duration::from_millis(50));
        status.keep(cluster);
    }
}

/// Returns every node that any of the run's attempts was launched on.
fn ran_on(state: &RunState) -> Vec<Host> {
    let known = state.placed.iter().chain(&state.hosts).chain(&state.spares);
    let known: Vec<&Host> = known.collect();
    let host = |name: &String| match known.iter().find(|host| host.name == *name) {
        Some(host) => (*host).clone(),
        None => Host::new(name, 1),
    };
    state.ran_on.iter().map(host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_what_it_has_done() {
        let done = Cleared { ended: 3, freed_bytes: 4096, left_bytes: 0 };
        assert_eq!(
            words(done),
            "3 process(es) of the old run ended, 4096 bytes of its memory removed"
        );
        let text = words(Cleared { left_bytes: 7, ..done });
        assert!(text.ends_with("; 7 bytes under its name are in use by somebody else"), "{text}");
    }

    #[test]
    fn nodes_of_all_attempts_are_asked() {
        let names = ["n1", "n2", "s1", "later"].map(str::to_owned);
        let mut state = RunState::default();
        state.hosts = vec![Host::new("n1", 2), Host::new("n2", 2), Host::new("n3", 2)];
        state.spares = vec![Host::new("s1", 4)];
        state.placed = vec![Host::new("n1", 2), Host::new("later", 2)];
        state.ran_on = names.into_iter().collect();
        let asked: Vec<String> = ran_on(&state).into_iter().map(|host| host.name).collect();
        assert_eq!(asked, ["later", "n1", "n2", "s1"], "a node that never ran ranks is left alone");
    }
}
