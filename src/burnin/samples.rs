//! Measurements of a burn-in as plain values. A sweep measures every node; some sweeps also measure links between nodes.
//!
//! Rank 0 writes a line for each sweep, and the command that started rank 0 reads these lines. Launchers may add text to the
//! output, so the lines have a mark.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Measurement of one direction of a link between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passage {
    pub from: usize,
    pub to: usize,
    /// Half of the time of a round trip of a few bytes, in seconds; equal in both directions.
    pub latency_s: f64,
    pub bytes_per_s: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// Operations per second of the multiplication, by node.
    pub multiply: Vec<f64>,
    /// Bytes per second of copying in memory, by node. Empty in sweeps without links.
    pub memory: Vec<f64>,
    /// Digest of the product, by node; equal for equal products. Empty in sweeps without links.
    pub products: Vec<u64>,
    pub passages: Vec<Passage>,
}

/// A node, as its own rank describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Here {
    /// Host name.
    pub host: String,
    /// Boot identity of the Linux kernel, equal for virtual nodes that share a machine.
    pub machine: String,
    /// Engine that multiplies on this node.
    pub engine: String,
    /// Number of cores that multiply and copy.
    pub threads: usize,
    pub memory_free_bytes: u64,
}

/// A node, or a pair of nodes, that rank 0 waits for before the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Absent {
    Node(usize),
    /// Two nodes that measure their link. One node waits for the other, but it is unknown which of the two waits.
    Pair(usize, usize),
}

/// Describes the nodes `missing` after a turn in which `pairs` measured their links. If both nodes of a pair are missing, they
/// are one entry.
pub fn absent(missing: &[usize], pairs: &[(usize, usize)]) -> Vec<Absent> {
    let missing: BTreeSet<usize> = missing.iter().copied().collect();
    let partners = pairs.iter().flat_map(|&(one, other)| [(one, other), (other, one)]);
    let partners: BTreeMap<usize, usize> = partners.collect();
    let who = |&node: &usize| match partners.get(&node).filter(|other| missing.contains(other)) {
        // The entry of the partner names both nodes.
        Some(&other) if other < node => None,
        Some(&other) => Some(Absent::Pair(node, other)),
        None => Some(Absent::Node(node)),
    };
    missing.iter().filter_map(who).collect()
}

/// Returns the nodes that rank 0 waits for after the reports `said`, and the seconds of the wait. None if the last report is not
/// a wait.
pub fn waits_for(said: &[Said]) -> Option<(&[Absent], u64)> {
    match said.last()? {
        Said::WaitsFor { absent, seconds } => Some((absent, *seconds)),
        Said::Begun(_) | Said::AllCame | Said::Measured(_) => None,
    }
}

/// Report that rank 0 sends to the command that started it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// All ranks have started.
    Begun(Vec<Here>),
    /// Rank 0 has waited this number of seconds for some nodes before the next turn.
    WaitsFor {
        absent: Vec<Absent>,
        seconds: u64,
    },
    /// All nodes that rank 0 waited for have come.
    AllCame,
    Measured(Sweep),
}

const MARK: &str = "skt-hpl-burnin ";

pub fn line(said: &Said) -> String {
    format!("{MARK}{}\n", serde_json::to_string(said).expect("plain values have a JSON form"))
}

/// Reads reports from output that comes in parts.
#[derive(Default)]
pub struct Listener {
    /// Last line of the output, not complete yet.
    line: Vec<u8>,
}

impl Listener {
    /// Adds `bytes` to the output, and returns the reports in the lines that `bytes` completes.
    pub fn hear(&mut self, bytes: &[u8]) -> Vec<Said> {
        self.line.extend_from_slice(bytes);
        // The bytes received before have no end of a line.
        let Some(end) = bytes.iter().rposition(|&byte| byte == b'\n') else { return Vec::new() };
        let rest = self.line.split_off(self.line.len() - (bytes.len() - end - 1));
        let whole = std::mem::replace(&mut self.line, rest);
        String::from_utf8_lossy(&whole).lines().filter_map(read).collect()
    }
}

fn read(line: &str) -> Option<Said> {
    let at = line.find(MARK)?;
    let mut values = serde_json::Deserializer::from_str(&line[at + MARK.len()..]).into_iter();
    values.next()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If node 7 hangs and node 3 waits for it, both nodes are named.
    #[test]
    fn of_a_pair_that_does_not_come_both_are_named() {
        let pairs = [(0, 5), (1, 2), (3, 7), (4, 6)];
        assert_eq!(absent(&[3, 7], &pairs), [Absent::Pair(3, 7)]);
        assert_eq!(absent(&[7], &pairs), [Absent::Node(7)], "its partner was through");
        let several = [Absent::Pair(1, 2), Absent::Pair(3, 7), Absent::Node(8)];
        assert_eq!(absent(&[1, 2, 3, 7, 8], &pairs), several);
        assert_eq!(absent(&[3, 7], &[]), [Absent::Node(3), Absent::Node(7)]);
        assert_eq!(absent(&[], &pairs), []);
    }

    #[test]
    fn a_node_that_was_late_and_came_is_not_accused() {
        let waits = |node| Said::WaitsFor { absent: vec![Absent::Node(node)], seconds: 16 };
        let (begun, measured) = (Said::Begun(vec![]), Said::Measured(Sweep::default()));
        assert_eq!(waits_for(&[]), None);
        let still = [begun.clone(), waits(1), measured.clone(), waits(2)];
        assert_eq!(waits_for(&still), Some((&[Absent::Node(2)][..], 16)));
        // The wait counts if the launcher ends before the sweep is complete.
        assert_eq!(waits_for(&[begun, waits(1), Said::AllCame]), None);
    }

    #[test]
    fn lines_of_ranks_are_read_whatever_stands_around_them() {
        let sweep = Sweep {
            multiply: vec![1.5e10, 2e10],
            memory: vec![1e9, 2e9],
            products: vec![u64::MAX, 7],
            passages: vec![Passage { from: 0, to: 1, latency_s: 2e-5, bytes_per_s: 1e9 }],
        };
        let said = [
            Said::Begun(vec![Here { host: "n1".into(), threads: 2, ..Here::default() }]),
            Said::Measured(sweep),
            Said::WaitsFor { absent: vec![Absent::Node(1), Absent::Pair(2, 3)], seconds: 20 },
        ];
        let mut output = String::from("Welcome\n");
        for one in &said {
            output += &format!("[1,0]<stdout>:{}", line(one));
        }
        for part in [1, 7, 100, output.len()] {
            let mut listener = Listener::default();
            let parts = output.as_bytes().chunks(part);
            let heard: Vec<Said> = parts.flat_map(|bytes| listener.hear(bytes)).collect();
            assert_eq!(heard, said, "parts of {part}");
            assert!(listener.hear(b"").is_empty() && listener.line.is_empty());
        }
        // The last line is not complete yet.
        let mut listener = Listener::default();
        assert_eq!(listener.hear(&output.as_bytes()[..output.len() - 1]), said[..2]);
        assert_eq!(listener.hear(b"\n"), said[2..]);
    }
}
