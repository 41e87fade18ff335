//! Nodes that have not answered their first call. Decides which nodes to call again after a failed call, and which to give up.
//! Pure.
//!
//! Of thousands of logins one may fail although the node is well, so a failed call is repeated until the node's time is over. The
//! time depends on the importance of the node for the run, so the supervisor passes it.
//!
//! Times are milliseconds of any clock that only goes forward.

use std::collections::BTreeMap;

/// Pause before a call is repeated after its first failure. Each further failure makes the pause four times as long.
const AGAIN_FIRST_MS: u64 = 100;
/// Longest pause before a call is repeated.
const AGAIN_MAX_MS: u64 = 10_000;

/// A node that has not answered yet.
#[derive(Clone, Debug)]
struct Open {
    /// Moment from which the node's time counts.
    since_ms: u64,
    /// Number of calls that have failed.
    failed: u32,
    /// Moment of the next call, or `None` during a call.
    again_ms: Option<u64>,
    /// Reason of the last failed call.
    why: String,
}

/// Nodes that have not answered their first call and are not given up.
#[derive(Clone, Debug)]
pub struct FirstCalls {
    open: BTreeMap<usize, Open>,
    /// Whether no node had answered when a node was due to be given up, and no node has answered since.
    alone: bool,
}

impl FirstCalls {
    /// Returns the state of the first calls to `nodes`, which are all made at `now_ms`.
    pub fn new(now_ms: u64, nodes: &[usize]) -> Self {
        let fresh = Open { since_ms: now_ms, failed: 0, again_ms: None, why: String::new() };
        Self { open: nodes.iter().map(|node| (*node, fresh.clone())).collect(), alone: false }
    }

    pub fn open(&self) -> impl Iterator<Item = usize> {
        self.open.keys().copied()
    }

    /// Whether every node has answered or has been given up. After [`Self::none_answers`] this is false until
    /// [`Self::one_answers`] is called, even if all nodes answer at once.
    pub fn are_over(&self) -> bool {
        self.open.is_empty() && !self.alone
    }

    /// Notes that no node answers although a node is due to be given up. Returns true if this is new.
    pub fn none_answers(&mut self) -> bool {
        !std::mem::replace(&mut self.alone, true)
    }

    /// Notes that a node answers. Returns true if this ends the state that [`Self::none_answers`] began: earlier failures then
    /// count against no node.
    pub fn one_answers(&mut self, now_ms: u64) -> bool {
        let was_alone = std::mem::take(&mut self.alone);
        for open in self.open.values_mut().filter(|_| was_alone) {
            (open.since_ms, open.failed) = (now_ms, 0);
            open.again_ms = open.again_ms.map(|_| now_ms);
        }
        was_alone
    }

    /// Notes that a node which had answered has no heartbeat any more. The node is called again at once, and has its full time to
    /// answer.
    pub fn loses_heartbeat(&mut self, now_ms: u64, node: usize, why: String) {
        let again = Open { since_ms: now_ms, failed: 0, again_ms: Some(now_ms), why };
        self.open.insert(node, again);
    }

    pub fn answers(&mut self, node: usize) {
        self.open.remove(&node);
    }

    /// Notes that a call has failed, or was broken off because the node did not answer in time.
    pub fn fails(&mut self, now_ms: u64, node: usize, why: String) {
        if let Some(open) = self.open.get_mut(&node) {
            let pause_ms = (AGAIN_FIRST_MS << (2 * open.failed).min(20)).min(AGAIN_MAX_MS);
            open.failed += 1;
            open.again_ms = Some(now_ms + pause_ms);
            open.why = why;
        }
    }

    /// Returns the nodes to call again now.
    pub fn due(&mut self, now_ms: u64) -> Vec<usize> {
        let is_due = |open: &mut Open| open.again_ms.take_if(|at| *at <= now_ms).is_some();
        self.open.iter_mut().filter_map(|(node, open)| is_due(open).then_some(*node)).collect()
    }

    /// Returns the nodes whose next call would come too late. `time_ms` returns the time that a node has to answer. Every node is
    /// called at least twice, because a first login that fails may take long.
    pub fn in_vain(&self, time_ms: impl Fn(usize) -> u64) -> Vec<usize> {
        let late = |(node, open): (&usize, &Open)| {
            let at_ms = open.again_ms.filter(|_| open.failed > 1)?;
            (at_ms > open.since_ms + time_ms(*node)).then_some(*node)
        };
        self.open.iter().filter_map(late).collect()
    }

    /// Gives a node up, and returns the reason of its last failure.
    pub fn give_up(&mut self, node: usize) -> Option<String> {
        self.open.remove(&node).map(|open| open.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls a node whose calls all fail at once, up to the moment `until_ms`. The node has `time_ms` to answer. Returns the
    /// moments of the calls after the first, and the moment at which the node is given up.
    fn called_in_vain(time_ms: u64, until_ms: u64) -> (Vec<u64>, Option<u64>) {
        let mut calls = FirstCalls::new(0, &[7]);
        calls.fails(0, 7, "refused".to_owned());
        let mut made = Vec::new();
        for now_ms in (0..until_ms).step_by(10) {
            if calls.in_vain(|_| time_ms) == [7] {
                assert_eq!(calls.give_up(7).as_deref(), Some("refused"));
                assert!(calls.are_over());
                return (made, Some(now_ms));
            }
            for node in calls.due(now_ms) {
                made.push(now_ms);
                calls.fails(now_ms, node, "refused".to_owned());
            }
        }
        (made, None)
    }

    #[test]
    fn a_call_that_fails_is_repeated_while_there_is_time() {
        let (made, given_up) = called_in_vain(3_000, 60_000);
        assert_eq!((made, given_up), (vec![100, 500, 2_100], Some(2_110)));
        let (made, given_up) = called_in_vain(30_000, 60_000);
        assert_eq!(made, [100, 500, 2_100, 8_500, 18_500, 28_500]);
        assert_eq!(given_up, Some(28_510));
        // A node that is never given up is called every ten seconds.
        let (made, given_up) = called_in_vain(u64::MAX / 2, 100_000);
        assert_eq!(
            (made[5..].to_vec(), given_up),
            ((28..100).step_by(10).map(|s| s * 1_000 + 500).collect(), None)
        );
    }

    #[test]
    fn a_second_call_is_made_however_long_the_first_one_took() {
        let mut calls = FirstCalls::new(0, &[0, 1]);
        calls.fails(20_000, 0, "no route".to_owned());
        assert_eq!(calls.in_vain(|_| 3_000), [0; 0]);
        assert_eq!(calls.due(20_100), [0]);
        assert_eq!(calls.due(20_200), [0; 0], "it is under way");
        calls.fails(23_000, 0, "no route".to_owned());
        assert_eq!(calls.in_vain(|_| 3_000), [0]);
        assert_eq!(calls.in_vain(|_| 30_000), [0; 0], "another node of which more is lost");
        calls.answers(0);
        assert_eq!(calls.open().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn an_excused_node_is_called_at_once_and_has_all_its_time() {
        let mut calls = FirstCalls::new(0, &[0, 1]);
        for at_ms in [1_000, 2_000, 40_000] {
            calls.fails(at_ms, 0, "no such name".to_owned());
        }
        assert_eq!(calls.in_vain(|_| 30_000), [0]);
        assert!(calls.none_answers() && !calls.none_answers(), "it is told once");
        assert!(calls.one_answers(41_000) && !calls.one_answers(41_000));
        assert_eq!(calls.in_vain(|_| 30_000), [0; 0]);
        assert_eq!(calls.due(41_000), [0], "the other one is being called");
        calls.fails(41_000, 0, "no such name".to_owned());
        assert_eq!(calls.due(41_100), [0], "as at first");
    }

    #[test]
    fn a_node_without_heartbeat_is_called_at_once_and_has_all_its_time() {
        let mut calls = FirstCalls::new(0, &[0, 1]);
        calls.answers(0);
        calls.loses_heartbeat(9_000, 0, "no heartbeat".to_owned());
        assert_eq!(calls.open().collect::<Vec<_>>(), [0, 1]);
        assert_eq!((calls.due(9_000), calls.due(9_010)), (vec![0], vec![]));
        calls.fails(9_100, 0, "no route".to_owned());
        assert_eq!(calls.due(9_200), [0], "as at first");
        calls.fails(12_100, 0, "no route".to_owned());
        assert_eq!(calls.in_vain(|_| 3_000), [0]);
        assert_eq!(calls.in_vain(|_| 5_000), [0; 0], "nine seconds had gone before");
        calls.answers(0);
        assert_eq!(calls.open().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn that_nodes_answer_again_is_told_where_all_do_so_at_once() {
        let mut calls = FirstCalls::new(0, &[0, 1]);
        assert!(!calls.one_answers(10), "nothing was told that is to be taken back");
        assert!(calls.none_answers());
        calls.answers(0);
        calls.answers(1);
        assert!(!calls.are_over());
        assert!(calls.one_answers(20));
        assert!(calls.are_over());
    }
}
