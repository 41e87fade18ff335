//! Judgement of nodes whose replies take much longer than those of other nodes. Pure.
//!
//! `watch` passes the round trip of every heartbeat. The usual time is the median of all nodes, computed once a second.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Smoothed time of a round trip.
    trip_ms: f64,
    /// Number of slow replies in a row.
    slow: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Trips {
    nodes: BTreeMap<usize, Node>,
    usual_ms: Option<f64>,
    worked_out_ms: Option<u64>,
    told: BTreeSet<usize>,
}

/// Factor on the median. A slow reply takes longer than that, and longer than `SLOW_LEAST_MS`.
const SLOW_FACTOR: f64 = 8.0;
/// Time up to which no reply is slow, however short the median is.
const SLOW_LEAST_MS: f64 = 20.0;
/// Least number of nodes for a median.
const NODES_LEAST: usize = 3;
/// Number of slow replies in a row before a node is reported as slow.
const SLOW_REPLIES: u32 = 5;
/// Interval at which the median is computed.
const EVERY_MS: u64 = 1000;

impl Trips {
    /// Takes in the time of a reply. Returns a description if the node is slow, once for each node.
    pub fn see(&mut self, now_ms: u64, node: usize, trip_ms: f64) -> Option<String> {
        if self.worked_out_ms.is_none_or(|at| now_ms.saturating_sub(at) >= EVERY_MS) {
            self.worked_out_ms = Some(now_ms);
            self.usual_ms = self.median();
        }
        let state = self.nodes.entry(node).or_insert(Node { trip_ms, slow: 0 });
        state.trip_ms = 0.7 * state.trip_ms + 0.3 * trip_ms;
        let usual_ms = self.usual_ms?;
        // Both times must be slow: a single stall keeps the smoothed time high for many quick replies.
        let is_slow = |ms: f64| ms > SLOW_LEAST_MS && ms > SLOW_FACTOR * usual_ms;
        let slow = is_slow(trip_ms) && is_slow(state.trip_ms);
        state.slow = if slow { state.slow + 1 } else { 0 };
        if state.slow < SLOW_REPLIES || !self.told.insert(node) {
            return None;
        }
        let own_ms = state.trip_ms;
        Some(format!("replies take {own_ms:.0} ms; those of the other nodes take {usual_ms:.1} ms"))
    }

    fn median(&self) -> Option<f64> {
        if self.nodes.len() < NODES_LEAST {
            return None;
        }
        let mut all: Vec<f64> = self.nodes.values().map(|n| n.trip_ms).collect();
        let middle = (all.len() - 1) / 2;
        Some(*all.select_nth_unstable_by(middle, f64::total_cmp).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates `nodes` nodes. Replies of the first node take `slow_ms` from 20 s on. Returns the nodes found slow.
    fn said(nodes: usize, slow_ms: f64) -> Vec<(u64, usize)> {
        let mut trips = Trips::default();
        let mut said = Vec::new();
        for now in (0..60_000).step_by(500) {
            for node in 0..nodes {
                let trip = if node == 0 && now >= 20_000 { slow_ms } else { 1.0 };
                said.extend(trips.see(now, node, trip).map(|_| (now, node)));
            }
        }
        said
    }

    #[test]
    fn a_slow_one_is_named_once() {
        let said = said(4, 100.0);
        assert_eq!(said.len(), 1, "{said:?}");
        assert_eq!(said[0].1, 0);
        assert!(said[0].0 < 25_000, "{said:?}");
    }

    /// A stall of any length is followed by quick replies.
    #[test]
    fn one_stall_is_no_slowness() {
        for stall in [300.0, 1000.0, 30_000.0] {
            let mut trips = Trips::default();
            for now in (0..60_000).step_by(500) {
                for node in 0..4 {
                    let trip = if node == 0 && now == 20_000 { stall } else { 1.0 };
                    assert_eq!(trips.see(now, node, trip), None, "{stall} {now}");
                }
            }
        }
    }

    #[test]
    fn two_have_no_median_and_a_little_slower_is_not_slow() {
        assert_eq!(said(2, 100.0), []);
        assert_eq!(said(4, 7.0), []);
    }
}
