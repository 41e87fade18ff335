//! Tests of agents that form a tree. With two connections per agent (`--fanout 2`), seven nodes form three levels. If a node is
//! lost, the nodes below it stay in the run.
//!
//! The supervisor connects to n1 and n4; n1 connects to n2 and n3, n4 to n5 and n6, and n6 to n7, the spare.

use crate::lab::{Ended, Lab, Plan};

fn deep(lab: &Lab, iterations: u32) -> Plan {
    lab.stand_in("run", iterations).flags(&["--fanout", "2"])
}

/// Asserts that `node` is the only node that the run lost.
fn only(end: &Ended, node: &str) {
    let lost: Vec<&str> = end.of("node-lost").iter().map(|e| e["node"].as_str().unwrap()).collect();
    assert_eq!(lost, [node], "{}", end.told());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_silent_power_off_in_the_middle_of_the_tree_costs_one_node() {
    let lab = Lab::up(6, 1);
    let mut run = deep(&lab, 120).start();
    run.computing();
    lab.vcluster(&["cut-off", "n4"]);
    let end = run.end();
    assert_eq!(end.survived(&["node-unresponsive"])["node"], "n4");
    only(&end, "n4");
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n7", "n5", "n6"]);
}

/// An agent that connects to others runs in another folder than the supervisor. It still finds the files that `--rsh` names by
/// relative paths.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_remote_shell_of_relative_paths_reaches_the_whole_tree() {
    let lab = Lab::up(6, 1);
    let plan = deep(&lab, 20).flags(&["--rsh", "ssh -F ssh.conf"]);
    std::fs::copy(lab.ssh_config(), lab.path("run").join("ssh.conf")).unwrap();
    let end = plan.start().end();
    end.passed();
    assert!(end.of("fault").is_empty() && end.of("node-lost").is_empty(), "{}", end.told());
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4", "n5", "n6"]);
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_killed_agent_with_nodes_below_costs_nobody() {
        let lab = Lab::up(6, 1);
        let mut run = deep(&lab, 120).start();
        run.computing();
        lab.vcluster(&["kill", "n4", "skt-hpl"]);
        let end = run.end();
        end.passed();
        assert!(end.of("node-lost").is_empty(), "{}", end.told());
        // On a busy machine a login may take longer than the node timeout. The job is then restarted, with the same node.
        match end.faults()[..] {
            [] => assert_eq!(end.of("agent-restarted")[0]["node"], "n4", "{}", end.told()),
            _ => assert_eq!(end.survived(&["node-gone"])["node"], "n4"),
        }
        assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4", "n5", "n6"]);
    }

    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_visible_power_off_in_the_middle_of_the_tree_costs_one_node() {
        let lab = Lab::up(6, 1);
        let mut run = deep(&lab, 120).start();
        run.computing();
        lab.vcluster(&["off", "n4"]);
        let end = run.end();
        end.survived(&["node-gone", "launcher-gone", "rank-died"]);
        only(&end, "n4");
        assert_eq!(end.hosts(), ["n1", "n2", "n3", "n7", "n5", "n6"]);
    }

    /// A node three connections away from the supervisor is noticed like a node that the supervisor connects to itself. Of eight
    /// nodes, n4 is such a node.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_node_at_the_tip_of_the_tree_is_noticed() {
        let lab = Lab::up(7, 1);
        let mut run = deep(&lab, 120).start();
        run.computing();
        lab.vcluster(&["cut-off", "n4"]);
        let end = run.end();
        assert_eq!(end.survived(&["node-unresponsive"])["node"], "n4");
        only(&end, "n4");
    }
}
