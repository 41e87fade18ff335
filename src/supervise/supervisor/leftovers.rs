//! Ends the processes, and removes the memory, that a run has left on nodes that it no longer uses, or on all nodes if the run is
//! given up.
//!
//! This happens when a lost node that answers again is to take ranks, at a run's end, and for `--new`. Memory that could still be
//! needed stays. The memory of a lost node is removed only if a later attempt has computed without it (`RunState::stale`),
//! because no restart uses such memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::bail;

use super::opening::Run;
use super::{LAST_WRITES, Supervisor};
use crate::supervise::remember::events::Event;
use crate::supervise::tell::say;

/// Time limit for the nodes' first heartbeat, which reports the memory that they have.
const BEAT_TIMEOUT: Duration = Duration::from_secs(2);

/// Result of removing the processes and memory of a run from a node.
#[derive(Clone, Copy)]
struct Cleared {
    ended: usize,
    freed_bytes: u64,
    /// Bytes that remain because another process uses them.
    left_bytes: u64,
}

/// Words for a node that has not removed the run's memory.
pub const ASKED_IN_VAIN: &str = "it was asked to remove memory, and does not answer";

impl Supervisor<'_> {
    /// Removes useless memory of the run from lost nodes that answer again and are to take ranks. Returns false if a node did not
    /// do so and is lost again.
    pub(super) fn make_room(&mut self, replaced: &[(String, String)]) -> anyhow::Result<bool> {
        let chosen: BTreeSet<&String> = replaced.iter().map(|(_, by)| by).collect();
        let stale = |name: &String| chosen.contains(name) && self.state.stale.contains(name);
        let stale = self.cluster.those(|node| node.lost.is_some() && stale(&node.host.name));
        let done = self.remove_from(&stale, |this| this.halt.is_some())?;
        Ok(done.len() == stale.len())
    }

    /// Removes the run's memory from lost nodes that answer again, when the run ends. Returns the nodes that have removed it.
    pub(super) fn clear_returned(&mut self) -> anyhow::Result<BTreeSet<String>> {
        if self.settings.job.is_none() {
            return Ok(BTreeSet::new());
        }
        let returned = self.cluster.those(|node| {
            let back = node.lost.is_some() && node.returned && node.up;
            back && self.state.ran_on.contains(&node.host.name)
        });
        // An earlier request to stop is ignored, because the run has ended by itself.
        self.remove_from(&returned, |this| this.nodes.is_alone())
    }

    /// Has nodes remove the run's memory, until `enough` returns true. Returns the nodes that have removed it.
    fn remove_from(
        &mut self,
        nodes: &[usize],
        enough: fn(&Self) -> bool,
    ) -> anyhow::Result<BTreeSet<String>> {
        let mut done = BTreeSet::new();
        for (at, cleared) in self.clear(nodes, enough)? {
            let node = self.cluster.nodes[at].host.name.clone();
            match cleared {
                Some(Cleared { freed_bytes, .. }) => {
                    done.insert(node.clone());
                    self.note(Event::MemoryRemoved { node, bytes: freed_bytes })?;
                }
                None if enough(self) => {}
                None => self.lose(at, ASKED_IN_VAIN)?,
            }
        }
        Ok(done)
    }

    /// Has nodes end the run's processes and remove the run's memory. Lost nodes that answer again may be among the nodes. The
    /// result of a node is `None` if the node did not answer.
    fn clear(
        &mut self,
        nodes: &[usize],
        enough: fn(&Self) -> bool,
    ) -> anyhow::Result<Vec<(usize, Option<Cleared>)>> {
        if nodes.is_empty() {
            return Ok(Vec::new());
        }
        let all = nodes.iter().map(|at| &self.cluster.nodes[*at]);
        let (clean, before): (BTreeSet<String>, Vec<u64>) =
            all.map(|node| (node.host.name.clone(), node.beat.held_bytes)).unzip();
        let (counts, _) = self.end_on(nodes, &clean, enough)?;
        let cleared = nodes.iter().zip(before).map(|(at, before_bytes)| {
            let left_bytes = self.cluster.nodes[*at].beat.held_bytes;
            let freed_bytes = before_bytes.saturating_sub(left_bytes);
            (*at, counts.get(at).map(|&ended| Cleared { ended, freed_bytes, left_bytes }))
        });
        Ok(cleared.collect())
    }

    /// Ends a run that is given up for a new run, and removes its memory, on all its nodes that can be reached. A message names
    /// the other nodes. A request to stop meanwhile is an error.
    pub(super) fn give_up(mut self, job: &str) -> anyhow::Result<Run> {
        self.status.doing = "giving up the old run".to_owned();
        self.write_status();
        let here = self.end_here()?;
        if here > 0 {
            say!(
                "skt-hpl run: --new: on this machine {here} process(es) of the old run were ended"
            );
        }
        let mut lines = BTreeMap::new();
        if let Some(failed) = self.first_contact(false)? {
            let command = self.settings.clean_command(job, None);
            let stays = |why: &str| {
                format!("{why}; files of the old run stay there: {command} removes them")
            };
            lines.extend(failed.iter().map(|(node, why)| (*node, stays(why))));
            self.await_beats(self.cluster.up(), BEAT_TIMEOUT, |_, _| ())?;
            let up = Vec::from_iter(self.cluster.up());
            let cleared = self.clear(&up, |this| this.halt.is_some())?.into_iter();
            lines.extend(cleared.map(|(node, cleared)| {
                (node, cleared.map_or_else(|| stays("it does not answer"), words))
            }));
        }
        if self.halt.is_some() {
            bail!(
                "--new: stopped on request before the old run (job {job}) was given up on all its nodes; give the same \
                 command again"
            );
        }
        for (node, line) in lines {
            say!("skt-hpl run: --new: {}: {line}", self.cluster.nodes[node].host.name);
        }
        self.journal_writer.settle(LAST_WRITES);
        let Self { journal_writer, records, state, io_thread, .. } = self;
        Ok(Run { journal_writer, records, state, io_thread, resumed: true })
    }
}

/// Describes the result of a node's clean-up.
fn words(cleared: Cleared) -> String {
    let Cleared { ended, freed_bytes, left_bytes } = cleared;
    let mut words = format!(
        "{ended} process(es) of the old run ended, {freed_bytes} bytes of its memory removed"
    );
    if left_bytes > 0 {
        words +=
            &format!("; {left_bytes} bytes under the old run's name are in use by another process");
    }
    words
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
        assert!(
            text.ends_with("; 7 bytes under the old run's name are in use by another process"),
            "{text}"
        );
    }
}
