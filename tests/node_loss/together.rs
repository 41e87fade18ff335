//! Tests of the loss of several nodes at once: as many as the benchmark survives, and one more.

use crate::lab::Lab;

/// The node of rank 0 is lost. Rank 0 reads the input and writes the results, and the launcher starts on its node.
#[test]
#[ignore = "needs root and network namespaces"]
fn rank_zeros_node() {
    let lab = Lab::up(4, 1);
    let run = lab.benchmark("run").hold("1@iteration:3:30");
    lab.vcluster(&["off", "n1"]);
    let end = run.end();
    end.survived(&["node-gone", "launcher-gone", "rank-died"]);
    assert_eq!(end.hosts(), ["n5", "n2", "n3", "n4"]);
    lab.same_x("run", &end);
    assert_eq!(end.rebuilt(), [[0]], "{}", end.told());
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// The groups are n1, n2 and n3, n4. One node of each is lost, and both positions are rebuilt.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn two_nodes_of_different_groups() {
        let lab = Lab::up(4, 2);
        let run = lab.benchmark("run").flags(&["--node-timeout", "15s"]).hold("1@iteration:0:30");
        lab.vcluster(&["cut-off", "n1"]);
        lab.vcluster(&["cut-off", "n3"]);
        let end = run.end();
        end.survived(&["node-unresponsive"]);
        assert_eq!(end.of("node-lost").len(), 2, "{}", end.told());
        assert_eq!(end.hosts(), ["n5", "n2", "n6", "n4"]);
        lab.same_x("run", &end);
        assert_eq!(end.rebuilt(), [[0, 2]], "{}", end.told());
    }

    /// Both nodes of a group are lost, which cannot be rebuilt. The run names the lost positions, keeps all memory, and does not
    /// try again.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn two_nodes_of_the_same_group_are_refused() {
        let lab = Lab::up(4, 2);
        let run = lab.benchmark("run").flags(&["--node-timeout", "15s"]).hold("1@iteration:0:30");
        lab.vcluster(&["cut-off", "n3"]);
        lab.vcluster(&["cut-off", "n4"]);
        let end = run.end();
        assert_eq!(end.code, Some(4), "{}", end.told());
        assert_eq!(end.of("launched").len(), 2, "{}", end.told());
        for words in ["positions [2, 3]", "The memory is kept", "n3", "n4"] {
            assert!(end.errors.contains(words), "{words}: {}", end.told());
        }
        assert!(!end.output.contains("PASSED"), "{}", end.told());
        for (node, position) in [("n1", ".p0."), ("n2", ".p1.")] {
            let memory = lab.memory_of(node);
            assert!(memory.contains(position), "{node} has {memory}");
        }
    }

    /// Both nodes of a group are cut off; one is a spare that replaced a lost node. After they return, the same command resumes
    /// from their memory. It uses neither the node that was replaced before nor the spares that replaced the two.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn more_was_lost_than_can_be_borne_until_it_is_back() {
        let lab = Lab::up(4, 3);
        let mut run = lab.benchmark("run").hold_each(&["1@iteration:3:20", "2@iteration:3:30"]);
        lab.vcluster(&["cut-off", "n2"]);
        run.await_fault("2@iteration:3:30");
        lab.vcluster(&["cut", "n1"]);
        lab.vcluster(&["cut", "n5"]);
        let end = run.end();
        assert_eq!(end.code, Some(4), "{}", end.told());
        assert!(end.errors.contains("the same command"), "{}", end.told());
        for node in ["n1", "n5"] {
            lab.vcluster(&["join", node]);
        }
        let end = lab.benchmark("run").start().end();
        assert_eq!(end.hosts(), ["n1", "n5", "n3", "n4"], "{}", end.told());
        lab.same_x("run", &end);
        assert_eq!(end.resumed_at().len(), 1, "{}", end.told());
        assert!(end.rebuilt().is_empty(), "{}", end.told());
    }
}
