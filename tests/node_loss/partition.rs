//! A node that is cut off and computes on: it is replaced, and its old copy loses.

use crate::lab::Lab;

#[test]
#[ignore = "needs root and network namespaces"]
fn a_partition_that_heals_finds_its_old_copy_ended() {
    let lab = Lab::up(3, 1);
    let mut run = lab.stand_in("run", 150).start();
    run.computing();
    lab.vcluster(&["cut", "n2"]);
    run.wait_for("computing", 2);
    lab.vcluster(&["join", "n2"]);
    let back = run.wait_for("node-returned", 1);
    assert_eq!((&back["node"], &back["same_boot"]), (&"n2".into(), &true.into()));
    assert_eq!(lab.ranks_on("n2", "python3"), 0, "the old copy still runs");
    let end = run.end();
    assert_eq!(end.survived(&["node-silent"])["node"], "n2");
    assert_eq!(end.hosts(), ["n1", "n4", "n3"], "down stays down");
}

/// Nothing of a run outlives it, on a node either that was lost and is back.
#[test]
#[ignore = "needs root and network namespaces"]
fn memory_on_a_node_that_is_back_goes_with_the_run() {
    let lab = Lab::up(4, 1);
    let mut run = lab.benchmark("run").hold_each(&["1@iteration:3:20", "2@iteration:3:30"]);
    lab.vcluster(&["cut", "n2"]);
    run.struck("2@iteration:3:30");
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

/// A whole group is cut off, and nobody has computed since: what its nodes hold is all there is of it.
#[test]
#[ignore = "needs root and network namespaces"]
fn memory_that_is_still_needed_is_not_removed() {
    let lab = Lab::up(4, 0);
    let mut run =
        lab.benchmark("run").flags(&["--no-doubling", "--wait", "100s"]).hold("1@iteration:3:20");
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

/// The node is needed again later, with a stale share of the matrix in its memory.
#[test]
#[ignore = "needs root and network namespaces"]
fn an_old_copy_is_not_believed() {
    let lab = Lab::up(4, 1);
    let plan = lab.benchmark("run").flags(&["--no-doubling"]);
    let mut run = plan.hold_each(&["1@iteration:3:20", "2@iteration:3:30"]);
    lab.vcluster(&["cut", "n2"]);
    run.struck("2@iteration:3:30");
    lab.vcluster(&["join", "n2"]);
    run.wait_for("node-returned", 1);
    assert_eq!(lab.ranks_on("n2", "skt-hpl"), 0, "the old copy still runs");
    assert!(lab.memory_of("n2").contains(".p1."), "its memory is gone");
    // No other is left to stand in for the one that stood in.
    lab.vcluster(&["cut-off", "n5"]);
    let end = run.end();
    assert_eq!(end.faults(), ["node-silent", "node-silent"], "{}", end.told());
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"]);
    lab.same_x("run", &end);
    assert_eq!(end.rebuilt(), [[1], [1]], "{}", end.told());
}
