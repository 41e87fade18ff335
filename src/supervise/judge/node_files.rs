//! Nodes with files of the checkpoint from which a run would resume, if each node has its own storage. Pure.
//!
//! The supervisor calls [`of_best`] before it chooses nodes. Agents have reported the files in their checkpoint directories.
//! `policy` then prefers nodes with files, because these files need not be rebuilt or sent. The ranks themselves check the files.

use std::collections::{BTreeMap, BTreeSet};

use crate::supervise::talk::wire::Lying;

/// Facts about a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeFiles<'a> {
    /// Whether the node has ranks in the present placement.
    pub placed: bool,
    pub lying: &'a [Lying],
}

/// Returns, for each node, the positions whose files of the best checkpoint it has.
///
/// The best checkpoint is the furthest that a node reports as complete on all nodes and of which a node with ranks has files. A
/// checkpoint with files only on nodes without ranks does not count: it is left over from an earlier run.
pub fn of_best(nodes: &[NodeFiles]) -> Vec<BTreeSet<u32>> {
    let key = |lying: &Lying| (lying.run, lying.test, lying.checkpoint);
    let all = || nodes.iter().flat_map(|node| node.lying.iter().map(move |l| (node.placed, l)));
    let mut whole_at = BTreeMap::new();
    for (_, lying) in all() {
        if let Some(boundary) = lying.whole_at {
            whole_at.insert(key(lying), boundary);
        }
    }
    let seen = all().filter(|(placed, lying)| *placed && !lying.positions.is_empty());
    let worth = |(_, lying): (bool, &Lying)| {
        let boundary = *whole_at.get(&key(lying))?;
        Some((lying.test, boundary, lying.run, lying.checkpoint))
    };
    let best = seen.filter_map(worth).max();
    let best = best.map(|(test, _, run, checkpoint)| (run, test, checkpoint));
    let of_node = |node: &NodeFiles| {
        let lying = node.lying.iter().filter(|lying| Some(key(lying)) == best);
        lying.flat_map(|lying| lying.positions.iter().copied()).collect()
    };
    nodes.iter().map(of_node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lying(checkpoint: u64, whole_at: Option<u64>, positions: &[u32]) -> Lying {
        Lying { run: 5, test: 0, checkpoint, whole_at, positions: positions.to_vec() }
    }

    fn found(nodes: &[(bool, Vec<Lying>)]) -> Vec<Vec<u32>> {
        let node_files = nodes.iter().map(|(placed, lying)| NodeFiles { placed: *placed, lying });
        let node_files: Vec<NodeFiles> = node_files.collect();
        of_best(&node_files).into_iter().map(|positions| positions.into_iter().collect()).collect()
    }

    #[test]
    fn the_checkpoint_that_was_whole_and_has_got_furthest_counts() {
        // No node had completed checkpoint 3. Only the last node had time to write the manifest of checkpoint 2.
        let nodes = [
            (true, vec![lying(1, Some(10), &[0]), lying(2, None, &[0]), lying(3, None, &[0])]),
            (true, vec![]),
            (false, vec![lying(1, Some(10), &[1])]),
            (false, vec![lying(2, Some(20), &[1, 2])]),
        ];
        assert_eq!(found(&nodes), [vec![0], vec![], vec![], vec![1, 2]]);
        // A later test of a sweep counts, not a later run that has got less far.
        let sweep = Lying { test: 1, ..lying(1, Some(1), &[0]) };
        let run = Lying { run: 6, ..lying(1, Some(9), &[0]) };
        let nodes = [(true, vec![lying(2, Some(20), &[3]), run, sweep])];
        assert_eq!(found(&nodes), [[0]]);
    }

    #[test]
    fn files_on_other_nodes_alone_draw_no_position() {
        let old = || vec![lying(1, Some(10), &[1])];
        assert_eq!(found(&[(true, vec![]), (false, old())]), [vec![], Vec::<u32>::new()]);
        let fresh = (true, vec![lying(2, Some(5), &[0])]);
        assert_eq!(found(&[fresh, (false, old())]), [vec![0], vec![]]);
        assert_eq!(found(&[]), Vec::<Vec<u32>>::new());
        // A folder without a file is nothing to resume from.
        assert_eq!(found(&[(true, vec![lying(1, Some(1), &[])])]), [Vec::<u32>::new()]);
    }
}
