//! Which positions the ranks of each node have, as far as is known. Pure.
//!
//! The supervisor hears it from the nodes' agents while ranks run, and asks when a node is lost and a survivor shall take its
//! ranks: `policy` then keeps those that protect each other apart. A node may be lost before it has told anything; so what
//! nobody else has is taken for its own.

use std::collections::{BTreeMap, BTreeSet};

use crate::supervise::start::hosts::Host;

#[derive(Debug, Default)]
pub struct Members {
    told: BTreeMap<String, BTreeSet<u32>>,
}

impl Members {
    /// A node's ranks have these positions. That none has one yet says nothing.
    pub fn hear(&mut self, node: &str, positions: BTreeSet<u32>) {
        if !positions.is_empty() && self.told.get(node) != Some(&positions) {
            self.told.insert(node.to_owned(), positions);
        }
    }

    /// The ranks of one node go to another, which may have some of its own.
    pub fn go(&mut self, from: &str, to: &str) {
        if from == to {
            return;
        }
        match self.told.remove(from) {
            Some(theirs) => self.told.entry(to.to_owned()).or_default().extend(theirs),
            // What it has from now on is not known.
            None => drop(self.told.remove(to)),
        }
    }

    /// What a node has told, or what has come to it since from one that has.
    pub fn told(&self, node: &str) -> Option<&BTreeSet<u32>> {
        self.told.get(node)
    }

    /// Of `all` positions those of which no node with ranks, `placed`, has told: each belongs to one of those that told nothing.
    /// Nothing where nobody has told, as then nothing is known.
    pub fn untold(&self, placed: &[Host], all: u32) -> BTreeSet<u32> {
        let told = placed.iter().filter_map(|host| self.told(&host.name));
        let told: BTreeSet<u32> = told.flatten().copied().collect();
        if told.is_empty() {
            BTreeSet::new()
        } else {
            (0..all).filter(|position| !told.contains(position)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(names: &[&str]) -> Vec<Host> {
        names.iter().map(|name| Host::new(*name, 2)).collect()
    }

    fn told(of: &[(&str, [u32; 2])]) -> Members {
        let mut members = Members::default();
        for (node, positions) in of {
            members.hear(node, (*positions).into());
        }
        members
    }

    #[test]
    fn what_no_other_node_has_is_of_the_one_that_was_lost_before_it_told() {
        let hosts = placed(&["n1", "n2", "n3"]);
        let mut members = told(&[("n2", [2, 3]), ("n3", [4, 5])]);
        members.hear("n1", [].into());
        assert_eq!(members.told("n1"), None);
        assert_eq!(members.untold(&hosts, 6), [0, 1].into());
        members.hear("n1", [0, 1].into());
        members.hear("n1", [].into());
        assert_eq!(members.told("n1"), Some(&[0, 1].into()));
        assert_eq!(members.untold(&hosts, 6), [].into());
        assert_eq!(Members::default().untold(&hosts, 6), [].into());
        // Who has no ranks any more has no positions either.
        assert_eq!(members.untold(&placed(&["s1", "n2", "n3"]), 6), [0, 1].into());
    }

    #[test]
    fn ranks_that_went_to_another_node_are_its_own() {
        let mut members = told(&[("n1", [0, 1]), ("n2", [2, 3]), ("n3", [4, 5])]);
        members.go("n1", "n2");
        members.go("n3", "n3");
        assert_eq!(members.told("n2"), Some(&[0, 1, 2, 3].into()));
        assert_eq!(members.told("n3"), Some(&[4, 5].into()));
        members.go("n3", "s1");
        assert_eq!(members.told("s1"), Some(&[4, 5].into()));
        assert_eq!(members.told("n3"), None);
        // What came from a node that told nothing is not known, so the rest is its own.
        let mut members = told(&[("n2", [2, 3]), ("n3", [4, 5])]);
        members.go("n1", "n2");
        assert_eq!(members.told("n2"), None);
        assert_eq!(members.untold(&placed(&["n2", "n3"]), 6), [0, 1, 2, 3].into());
    }
}
