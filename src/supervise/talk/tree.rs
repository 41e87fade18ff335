//! The tree of connections over the remote shell, in which no process has more than some tens of connections. Pure.
//!
//! The supervisor and every agent are in charge of a list of nodes. For it `branch` calls [`place`], which returns the next
//! steps. Up to the fan-out, nodes are called directly. If there are more nodes, each called child gets an even share of them,
//! and does the same with its share. So ten thousand nodes need three levels with a fan-out of 32.
//!
//! If the caller of nodes is lost, the next agent above places these nodes again in the same way. If that agent has no free
//! connections, its children that answer take the nodes, and all are called at once, not one after the other.

use std::collections::BTreeMap;

/// A step to reach nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call the node `head`, and put it in charge of the nodes `below`.
    Call { head: u32, below: Vec<u32> },
    /// Put a child that answers in charge of further nodes.
    Give { child: u32, nodes: Vec<u32> },
}

/// Distributes nodes. `free` is the number of nodes that may still be called directly, and `children` are the children that
/// answer. `tried` has the nodes that were called and have not answered since, each with the time of the call. The head of a
/// share is a node that was not tried, else the node whose call was the earliest. Returns no step if there is neither a free
/// connection nor a child; the nodes then wait.
pub fn place(
    nodes: &[u32],
    free: usize,
    children: &[u32],
    tried: &BTreeMap<u32, u64>,
) -> Vec<Step> {
    if nodes.len() <= free {
        let direct = |head: &u32| Step::Call { head: *head, below: Vec::new() };
        return nodes.iter().map(direct).collect();
    }
    if !children.is_empty() {
        return shares(nodes, children.len())
            .zip(children)
            .map(|(share, child)| Step::Give { child: *child, nodes: share.to_vec() })
            .collect();
    }
    // Neighbours in the list stay together. A lost rack then affects few shares, not all.
    let call = |share: &[u32]| {
        let at = (0..share.len()).min_by_key(|at| tried.get(&share[*at])).unwrap_or_default();
        Step::Call { head: share[at], below: [&share[..at], &share[at + 1..]].concat() }
    };
    shares(nodes, free).map(call).collect()
}

/// Splits the nodes into at most `count` shares of neighbours. The sizes of the shares differ by one at most, and no share is
/// empty.
fn shares(nodes: &[u32], count: usize) -> impl Iterator<Item = &[u32]> {
    let count = count.min(nodes.len());
    (0..count).map(move |at| &nodes[at * nodes.len() / count..(at + 1) * nodes.len() / count])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Builds the tree below a process in charge of `nodes`. Appends each called node to `called`, and returns the depth.
    /// Raises `most` to the largest number of nodes that one process calls.
    fn grow(nodes: &[u32], fanout: usize, called: &mut Vec<u32>, most: &mut usize) -> usize {
        let steps = place(nodes, fanout, &[], &BTreeMap::new());
        *most = (*most).max(steps.len());
        let depth = steps.iter().map(|step| match step {
            Step::Call { head, below } => {
                called.push(*head);
                1 + grow(below, fanout, called, most)
            }
            Step::Give { .. } => panic!("nobody to give to"),
        });
        depth.max().unwrap_or(0)
    }

    #[test]
    fn ten_thousand_are_three_levels_and_few_are_flat() {
        let grown = |count: u32, fanout: usize| {
            let (mut called, mut most) = (Vec::new(), 0);
            let depth = grow(&(0..count).collect::<Vec<_>>(), fanout, &mut called, &mut most);
            called.sort_unstable();
            assert_eq!(called, (0..count).collect::<Vec<_>>(), "each is called once");
            (depth, most)
        };
        assert_eq!(grown(32, 32), (1, 32));
        assert_eq!(grown(33, 32), (2, 32));
        assert_eq!(grown(10_000, 32), (3, 32));
        assert_eq!(grown(8, 2), (3, 2));
    }

    #[test]
    fn without_room_children_take_them_and_without_children_they_wait() {
        let give = |child, nodes: &[u32]| Step::Give { child, nodes: nodes.to_vec() };
        let place =
            |nodes: &[u32], free, children: &[u32]| place(nodes, free, children, &BTreeMap::new());
        assert_eq!(place(&[7, 8, 9], 0, &[1, 2]), [give(1, &[7]), give(2, &[8, 9])]);
        assert_eq!(place(&[7], 0, &[1, 2]), [give(1, &[7])]);
        assert_eq!(place(&[7, 8], 0, &[]), []);
    }

    #[test]
    fn a_node_that_did_not_answer_is_put_in_charge_last() {
        let tried = BTreeMap::from([(1, 100), (2, 200), (4, 100), (5, 300), (6, 200)]);
        let call = |head, below: &[u32]| Step::Call { head, below: below.to_vec() };
        let steps = place(&[1, 2, 3, 4, 5, 6], 2, &[], &tried);
        assert_eq!(steps, [call(3, &[1, 2]), call(4, &[5, 6])]);
    }

    proptest! {
        #[test]
        fn every_node_once_within_the_fan_out_and_deep_as_a_logarithm(
            nodes in proptest::collection::btree_set(0u32..5000, 0..600),
            fanout in 2usize..40,
        ) {
            let nodes: Vec<u32> = nodes.into_iter().collect();
            let (mut called, mut most) = (Vec::new(), 0);
            let depth = grow(&nodes, fanout, &mut called, &mut most);
            called.sort_unstable();
            prop_assert_eq!(&called, &nodes);
            prop_assert!(most <= fanout);
            let levels = (nodes.len().max(2) as f64).log(fanout as f64).ceil() as usize;
            prop_assert!(depth <= levels + 1, "{depth} levels for {} nodes", nodes.len());
        }

        #[test]
        fn nodes_are_given_once_and_evenly(
            nodes in proptest::collection::btree_set(0u32..5000, 1..300),
            free in 0usize..8, children in 1u32..32,
        ) {
            let nodes: Vec<u32> = nodes.into_iter().collect();
            let children: Vec<u32> = (10_000..10_000 + children).collect();
            let steps = place(&nodes, free, &children, &BTreeMap::new());
            let mut all = BTreeSet::new();
            let mut sizes = Vec::new();
            for step in &steps {
                match step {
                    Step::Call { head, below } => {
                        prop_assert!(below.is_empty());
                        prop_assert!(all.insert(*head));
                    }
                    Step::Give { nodes, .. } => {
                        sizes.push(nodes.len());
                        for node in nodes {
                            prop_assert!(all.insert(*node));
                        }
                    }
                }
            }
            prop_assert_eq!(all.into_iter().collect::<Vec<_>>(), nodes);
            let least = sizes.iter().min().copied().unwrap_or(0);
            prop_assert!(sizes.iter().all(|s| *s <= least + 1));
        }
    }
}
