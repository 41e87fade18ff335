//! Tests of single losses: the kind of each fault, and whether the run keeps the node.

use crate::lab::Lab;

/// A run without losses passes and leaves nothing behind. Its x is the baseline for all other tests.
#[test]
#[ignore = "needs root and network namespaces"]
fn an_undisturbed_run_passes_and_leaves_nothing() {
    assert!(!Lab::undisturbed().is_empty());
}

/// A node loses power without closing its connections. The supervisor gives the node up; the launcher alone would wait for a
/// quarter of an hour.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_silent_power_off_costs_the_node() {
    let lab = Lab::up(4, 1);
    let run = lab.benchmark("run").hold("1@iteration:1:20");
    lab.vcluster(&["cut-off", "n2"]);
    let end = run.end();
    assert_eq!(end.survived(&["node-unresponsive"])["node"], "n2");
    assert_eq!(end.hosts(), ["n1", "n5", "n3", "n4"]);
    lab.same_x("run", &end);
    assert_eq!(end.rebuilt(), [[1]], "{}", end.told());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_hung_rank_is_ended_and_its_node_kept() {
    let lab = Lab::up(4, 1);
    let end = lab.hanging("run", "12s").hold("1@iteration:1:20").end();
    let fault = end.survived(&["rank-hung"]);
    assert_eq!((&fault["node"], &fault["position"]), (&"n2".into(), &1.into()));
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"]);
    lab.same_x("run", &end);
    assert_eq!(end.resumed_at().len(), 1, "{}", end.told());
    assert!(end.rebuilt().is_empty(), "its memory was there: {}", end.told());
}

/// A rank that hangs while MPI starts is noticed too, although it has no memory yet to show its progress. The stand-in hangs
/// here, since the benchmark has no crash point before MPI has started.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_rank_that_hangs_before_it_shows_progress_is_noticed_too() {
    let lab = Lab::up(3, 1);
    let flags = ["--hang-min", "12s", "--export", "STAND_IN_HANGS_AT_START=3"];
    let end = lab.stand_in("run", 20).flags(&flags).start().end();
    assert_eq!(end.survived(&["rank-hung"])["node"], "n2");
    assert_eq!(end.hosts(), ["n1", "n2", "n3"]);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_node_that_hangs_as_a_whole_is_lost() {
    let lab = Lab::up(4, 1);
    let run = lab.benchmark("run").hold("1@iteration:1:20");
    lab.vcluster(&["hang", "n3"]);
    let end = run.end();
    assert_eq!(end.survived(&["node-unresponsive"])["node"], "n3");
    assert_eq!(end.hosts(), ["n1", "n2", "n5", "n4"]);
    lab.same_x("run", &end);
    assert_eq!(end.rebuilt(), [[2]], "{}", end.told());
}

/// A node restarts and answers again within the node timeout. Its memory is empty, so its position is rebuilt.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_node_that_comes_back_empty_is_not_trusted() {
    let lab = Lab::up(4, 1);
    let run = lab.benchmark("run").flags(&["--node-timeout", "20s"]).hold("1@iteration:1:20");
    lab.vcluster(&["off", "n2"]);
    lab.vcluster(&["back", "n2"]);
    let end = run.end();
    end.survived(&["node-rebooted", "launcher-gone", "rank-died", "node-gone"]);
    lab.same_x("run", &end);
    assert_eq!(end.rebuilt(), [[1]], "{}", end.told());
}

/// A node with a slow network is reported and kept. A node counts as slow if its reply time is eight times that of other nodes.
/// Their reply time is tens of milliseconds on a busy machine. `tests/fit_nodes.rs` tests nodes that compute slowly.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_slow_node_is_named_and_kept() {
    let lab = Lab::up(3, 1);
    let mut run = lab.stand_in("run", 300).start();
    run.computing();
    lab.vcluster_late(&["slow", "n3", "300ms", "100mbit"]);
    let slow = run.wait_for("slow-node", 1);
    assert_eq!(slow["node"], "n3", "{}", run.told());
    lab.vcluster(&["slow", "n3", "off"]);
    let end = run.end();
    end.passed();
    assert!(end.of("fault").is_empty(), "{}", end.told());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_killed_rank_comes_back_on_its_own_node() {
    let lab = Lab::up(4, 1);
    let end = lab.benchmark("run").faults("1@iteration:2:20:kill").start().end();
    end.survived(&["rank-died", "launcher-gone"]);
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"], "no node was lost");
    assert!(end.of("node-lost").is_empty(), "{}", end.told());
    lab.same_x("run", &end);
    assert_eq!(end.resumed_at().len(), 1, "{}", end.told());
    assert!(end.rebuilt().is_empty(), "its memory was there: {}", end.told());
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// A node loses power and its connections close. The launcher, the agent or the ranks may be the first to report; the
    /// supervisor gives the node up in any case.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_visible_power_off_costs_the_node() {
        let lab = Lab::up(4, 1);
        let run = lab.benchmark("run").hold("1@iteration:1:20");
        lab.vcluster(&["off", "n3"]);
        let end = run.end();
        end.survived(&["node-gone", "launcher-gone", "rank-died"]);
        assert_eq!(end.of("node-lost")[0]["node"], "n3");
        assert_eq!(end.hosts(), ["n1", "n2", "n5", "n4"]);
        lab.same_x("run", &end);
        assert_eq!(end.rebuilt(), [[2]], "{}", end.told());
    }

    /// In a run without checkpoints, progress is visible too, so a hung rank is noticed. The run starts again from scratch.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_hung_rank_without_protection_is_noticed() {
        let lab = Lab::up(4, 1);
        let run = lab.unprotected("run").flags(&["--hang-min", "12s"]).hold("1@iteration:2:20");
        let end = run.end();
        let fault = end.survived(&["rank-hung"]);
        assert_eq!(fault["node"], "n3");
        // On a busy machine the process may be seen as stopped before its progress is known. The fault then names no position.
        assert!(fault["position"].is_null() || fault["position"] == 2, "{fault}");
        lab.same_x("run", &end);
        for node in ["n1", "n2", "n3", "n4"] {
            assert_eq!(lab.memory_of(node), "", "left behind on {node}");
        }
    }
}
