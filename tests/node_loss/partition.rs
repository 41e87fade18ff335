//! Tests of a node that is cut off from the network and computes further. The node is replaced, and its old memory is not used.

use std::time::Duration;

use crate::lab::{Lab, wait_until};

#[test]
#[ignore = "needs root and network namespaces"]
fn a_partition_that_heals_finds_its_old_copy_ended() {
    let lab = Lab::up(3, 1);
    let mut run = lab.stand_in("run", 300).start();
    run.computing();
    lab.vcluster(&["cut", "n2"]);
    run.wait_for("computing", 2);
    lab.vcluster(&["join", "n2"]);
    let back = run.wait_for("node-returned", 1);
    assert_eq!((&back["node"], &back["same_boot"]), (&"n2".into(), &true.into()));
    assert_eq!(lab.ranks_on("n2", "python3"), 0, "the old copy still runs");
    let end = run.end();
    assert_eq!(end.survived(&["node-unresponsive"])["node"], "n2");
    assert_eq!(end.hosts(), ["n1", "n4", "n3"], "down stays down");
}

/// A node that is cut off ends its ranks and its agent, even if the system on the node ends the login session. The agent's input
/// and output then close before the agent counts as orphaned.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_node_that_is_cut_off_ends_its_ranks_also_where_its_session_ends() {
    let lab = Lab::up(3, 1);
    // `cat` carries the agent's input and output on its node, so that the test can end it alone.
    let line = "case \"$2\" in *agent*--node*) set -- \"$1\" \"cat | $2 | cat\" ;; esac";
    let plan =
        lab.stand_in("run", 600).flags(&["--orphan-timeout", "20s"]).reached_after(&lab, line);
    let mut run = plan.apart_from_nodes().start();
    run.computing();
    lab.vcluster(&["cut", "n2"]);
    std::thread::sleep(Duration::from_secs(2));
    lab.vcluster(&["kill", "n2", "cat"]);
    run.wait_for("computing", 2);
    assert_eq!(lab.count_on("n2", "python3"), 2, "they are ended when they have stood still");
    wait_until("its ranks are ended", || lab.count_on("n2", "python3") == 0);
    wait_until("its agent, which has nothing left to do, ends", || {
        lab.count_on("n2", "skt-hpl") == 0
    });
    run.halt(&[]);
    assert_eq!(run.end().code, Some(75));
}

/// A node returns, with an old part of the matrix in its memory, and is used again later. The old memory is not used: its
/// position is rebuilt.
#[test]
#[ignore = "needs root and network namespaces"]
fn an_old_copy_is_not_believed() {
    let lab = Lab::up(4, 1);
    let plan = lab.benchmark("run").flags(&["--no-doubling"]);
    let mut run = plan.hold_each(&["1@iteration:3:20", "2@iteration:3:30"]);
    lab.vcluster(&["cut", "n2"]);
    run.await_fault("2@iteration:3:30");
    lab.vcluster(&["join", "n2"]);
    run.wait_for("node-returned", 1);
    assert_eq!(lab.ranks_on("n2", "skt-hpl"), 0, "the old copy still runs");
    assert!(lab.memory_of("n2").contains(".p1."), "its memory is gone");
    // No other node is left to replace n5.
    lab.vcluster(&["cut-off", "n5"]);
    let end = run.end();
    assert_eq!(end.faults(), ["node-unresponsive", "node-unresponsive"], "{}", end.told());
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"]);
    lab.same_x("run", &end);
    assert_eq!(end.rebuilt(), [[1], [1]], "{}", end.told());
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// A lost node answers again while the run is being stopped for another fault. Its return is still noticed.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_node_that_is_back_while_the_run_is_stopped_is_noticed() {
        let lab = Lab::up(3, 1);
        let (gate, waits) = (lab.path("gate"), lab.path("waits"));
        let first = format!(
            "case \" $* \" in *' n2 '*) while [ -e {} ]; do : >{}; sleep 0.1; done ;; esac",
            gate.display(),
            waits.display()
        );
        let plan =
            lab.stand_in("run", 600).flags(&["--node-timeout", "20s"]).reached_after(&lab, &first);
        let mut run = plan.start();
        run.computing();
        std::fs::write(&gate, "").unwrap();
        lab.vcluster(&["cut", "n2"]);
        run.wait_for("computing", 2);
        wait_until("n2 is called", || waits.exists());
        // The agent of n3 is stopped, so it cannot end its ranks.
        lab.vcluster(&["hang", "n3", "skt-hpl"]);
        lab.vcluster(&["kill", "n4", "python3"]);
        run.wait_for("fault", 2);
        std::thread::sleep(Duration::from_millis(1500));
        lab.vcluster(&["join", "n2"]);
        std::fs::remove_file(&gate).unwrap();
        // The agent of n2 sends its first message within this time.
        std::thread::sleep(Duration::from_secs(5));
        let stopped = run.events().iter().filter(|event| event["event"] == "stopped").count();
        assert_eq!(stopped, 1, "it was to come while the run is stopped: {}", run.told());
        lab.vcluster(&["resume", "n3", "skt-hpl"]);
        run.wait_for("computing", 3);
        let back = run.wait_for("node-returned", 1);
        assert_eq!(back["node"], "n2");
        assert_eq!(lab.ranks_on("n2", "python3"), 0, "the old copy still runs");
        run.halt(&[]);
        assert_eq!(run.end().code, Some(75));
    }

    /// At the end of a run, its processes and memory are removed also on a node that was lost and has returned.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn memory_on_a_node_that_is_back_goes_with_the_run() {
        let lab = Lab::up(4, 1);
        let mut run = lab.benchmark("run").hold_each(&["1@iteration:3:20", "2@iteration:3:30"]);
        lab.vcluster(&["cut", "n2"]);
        run.await_fault("2@iteration:3:30");
        lab.vcluster(&["join", "n2"]);
        run.wait_for("node-returned", 1);
        assert!(lab.memory_of("n2").contains(".p1."), "its memory is gone too early");
        lab.vcluster(&["resume", "n4", "skt-hpl"]);
        let end = run.end();
        lab.same_x("run", &end);
        assert_eq!(end.hosts(), ["n1", "n5", "n3", "n4"]);
        assert_eq!(end.of("memory-removed")[0]["node"], "n2");
        assert!(lab.memory_of("n2").is_empty(), "{}", lab.memory_of("n2"));
        assert!(!end.errors.contains("skt-hpl clean"), "{}", end.told());
    }

    /// All nodes of a group are cut off and return. No rank has computed meanwhile, so only their memory has the state of the
    /// group. It is not removed.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn memory_that_is_still_needed_is_not_removed() {
        let lab = Lab::up(4, 0);
        let mut run = lab
            .benchmark("run")
            .flags(&["--no-doubling", "--wait", "100s"])
            .hold("1@iteration:3:20");
        lab.vcluster(&["cut", "n1"]);
        lab.vcluster(&["cut", "n2"]);
        run.wait_for("waiting", 1);
        lab.vcluster(&["join", "n1"]);
        lab.vcluster(&["join", "n2"]);
        let end = run.end();
        assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"]);
        assert!(end.of("memory-removed").is_empty(), "{}", end.told());
        lab.same_x("run", &end);
        assert_eq!(end.resumed_at().len(), 1, "{}", end.told());
    }
}
