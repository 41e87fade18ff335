//! Single losses: the kind of each fault, and the fate of its node.

use crate::lab::Lab;

/// The baseline for all others.
#[test]
#[ignore = "needs root and network namespaces"]
fn an_undisturbed_run_passes_and_leaves_nothing() {
    assert!(!Lab::undisturbed().is_empty());
}

/// The launchers would wait for a quarter of an hour.
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

/// A rank stopped while MPI starts has no memory yet that could show its progress. The benchmark has no point to stop at before
/// MPI has started; the stand-in has.
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

/// The node answers again before the node timeout is over, with nothing in its memory.
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

/// Slow by its network. Slow computing is tested with the benchmark (`tests/fit_nodes.rs`); here only a steady pace for as long
/// as needed counts. The slow wire may take any time to start: it comes without a gap. Slow is eight times the others' reply
/// time, and on a busy machine that is tens of milliseconds.
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

/// Left to `scripts/test.sh --all`: the simulation shows these losses, or a test above shows the same of another one.
mod rest {
    use super::*;

    /// The launcher, the agent or the ranks may report first; the node is lost in any case.
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

    /// Nothing is saved, but progress shows all the same; and the run begins from scratch.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_hung_rank_without_protection_is_noticed() {
        let lab = Lab::up(4, 1);
        let run = lab.unprotected("run").flags(&["--hang-min", "12s"]).hold("1@iteration:2:20");
        let end = run.end();
        let fault = end.survived(&["rank-hung"]);
        assert_eq!(fault["node"], "n3");
        // On a busy machine the process may be seen stopped before its progress is seen: then no position is known.
        assert!(fault["position"].is_null() || fault["position"] == 2, "{fault}");
        lab.same_x("run", &end);
        for node in ["n1", "n2", "n3", "n4"] {
            assert_eq!(lab.memory_of(node), "", "left behind on {node}");
        }
    }
}
