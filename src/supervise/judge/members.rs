//! Positions of each node's ranks, as far as they are known. Pure.
//!
//! The nodes' agents report the positions to the supervisor while ranks run. The supervisor needs them when a survivor is to take
//! the ranks of a lost node: `policy` then keeps members of one group apart. A node may be lost before its agent has reported.
//! Positions that no other node has reported then count as the positions of this node.

use std::collections::{BTreeMap, BTreeSet};

use crate::supervise::start::hosts::Host;

#[derive(Debug, Default)]
pub struct Members {
    known: BTreeMap<String, BTreeSet<u32>>,
}

impl Members {
    /// Notes the positions of a node's ranks. An empty set is ignored: it does not show that the node has no ranks.
    pub fn learn(&mut self, node: &str, positions: BTreeSet<u32>) {
        if !positions.is_empty() {
            self.known.insert(node.to_owned(), positions);
        }
    }

    /// Notes that the ranks of node `from` move to node `to`, which may have ranks already.
    pub fn hand_over(&mut self, from: &str, to: &str) {
        if from == to {
            return;
        }
        match self.known.remove(from) {
            Some(theirs) => self.known.entry(to.to_owned()).or_default().extend(theirs),
            // The positions of `from` are unknown, so those of `to` are unknown from now on.
            None => drop(self.known.remove(to)),
        }
    }

    /// Returns the positions of a node's ranks: those that the node has reported, and those handed over from other nodes. Returns
    /// `None` if the positions are unknown.
    pub fn of(&self, node: &str) -> Option<&BTreeSet<u32>> {
        self.known.get(node)
    }

    /// Returns the positions below `all` that no node of `placed`, the nodes with ranks, has reported. Each belongs to a node
    /// that has reported nothing. The set is empty if no node has reported.
    pub fn unknown(&self, placed: &[Host], all: u32) -> BTreeSet<u32> {
        let known = placed.iter().filter_map(|host| self.of(&host.name));
        let known: BTreeSet<u32> = known.flatten().copied().collect();
        if known.is_empty() {
            BTreeSet::new()
        } else {
            (0..all).filter(|position| !known.contains(position)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(names: &[&str]) -> Vec<Host> {
        names.iter().map(|name| Host::new(*name, 2)).collect()
    }

    fn reported(of: &[(&str, [u32; 2])]) -> Members {
        let mut members = Members::default();
        for (node, positions) in of {
            members.learn(node, (*positions).into());
        }
        members
    }

    #[test]
    fn positions_of_no_other_node_are_of_the_one_lost_before_its_report() {
        let hosts = placed(&["n1", "n2", "n3"]);
        let mut members = reported(&[("n2", [2, 3]), ("n3", [4, 5])]);
        members.learn("n1", [].into());
        assert_eq!(members.of("n1"), None);
        assert_eq!(members.unknown(&hosts, 6), [0, 1].into());
        members.learn("n1", [0, 1].into());
        members.learn("n1", [].into());
        assert_eq!(members.of("n1"), Some(&[0, 1].into()));
        assert_eq!(members.unknown(&hosts, 6), [].into());
        assert_eq!(Members::default().unknown(&hosts, 6), [].into());
        // Node n1, which has no ranks any more, does not count.
        assert_eq!(members.unknown(&placed(&["s1", "n2", "n3"]), 6), [0, 1].into());
    }

    #[test]
    fn ranks_that_went_to_another_node_are_its_own() {
        let mut members = reported(&[("n1", [0, 1]), ("n2", [2, 3]), ("n3", [4, 5])]);
        members.hand_over("n1", "n2");
        members.hand_over("n3", "n3");
        assert_eq!(members.of("n2"), Some(&[0, 1, 2, 3].into()));
        assert_eq!(members.of("n3"), Some(&[4, 5].into()));
        members.hand_over("n3", "s1");
        assert_eq!(members.of("s1"), Some(&[4, 5].into()));
        assert_eq!(members.of("n3"), None);
        // The positions of n1 are unknown, so all positions that no other node has reported count as those of n2.
        let mut members = reported(&[("n2", [2, 3]), ("n3", [4, 5])]);
        members.hand_over("n1", "n2");
        assert_eq!(members.of("n2"), None);
        assert_eq!(members.unknown(&placed(&["n2", "n3"]), 6), [0, 1, 2, 3].into());
    }
}
