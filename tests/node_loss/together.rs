//! Several nodes at once: as many as the benchmark can survive, and one more.

use crate::lab::Lab;

/// Rank 0 reads the input, writes the results, and sits where the launcher began.
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

/// Left to `scripts/test.sh --all`: the simulation shows these losses, or a test above shows the same of another one.
mod rest {
    use super::*;

    /// Pairs protect each other, n1 with n2 and n3 with n4: one node may be lost in each.
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

    /// More is lost than can be rebuilt: the run names the missing positions, touches nothing, and does not try again.
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

    /// Both of a pair were cut off, one of them a spare that had taken a lost node's place. Once they answer again, the same
    /// command resumes from their memory. It uses neither the node that was replaced long before nor those called in for them.
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
