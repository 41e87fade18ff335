//! A node that is cut off and computes on: it is replaced, and its old copy loses.

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

/// The system there may end a session whose other end is unresponsive: the agent's lines then close before it counts as orphaned.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_node_that_is_cut_off_ends_its_ranks_also_where_its_session_ends() {
    let lab = Lab::up(3, 1);
    // The process that carries the agent's lines on its node can be ended by itself.
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

/// The node is needed again later, with a stale share of the matrix in its memory.
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
    // No other node is left to replace the replacement.
    lab.vcluster(&["cut-off", "n5"]);
    let end = run.end();
    assert_eq!(end.faults(), ["node-unresponsive", "node-unresponsive"], "{}", end.told());
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"]);
    lab.same_x("run", &end);
    assert_eq!(end.rebuilt(), [[1], [1]], "{}", end.told());
}

/// Left to `scripts/test.sh --all`: the simulation shows these losses, or a test above shows the same of another one.
mod rest {
    use super::*;

    /// The node answers again while the run is being stopped for another fault.
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
        // The agent cannot carry out the request.
        lab.vcluster(&["hang", "n3", "skt-hpl"]);
        lab.vcluster(&["kill", "n4", "python3"]);
        run.wait_for("fault", 2);
        std::thread::sleep(Duration::from_millis(1500));
        lab.vcluster(&["join", "n2"]);
        std::fs::remove_file(&gate).unwrap();
        // Long enough for its agent's first message.
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

    /// No process of a run outlives it, not even on a node that was lost and is back.
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

    /// A whole group is cut off, and no rank has computed since: its nodes have the only memory of it.
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
