//! Spares: lost, unfit, or none left.

use crate::lab::Lab;

#[test]
#[ignore = "needs root and network namespaces"]
fn a_lost_spare_disturbs_nobody_and_is_not_used() {
    let lab = Lab::up(3, 2);
    let mut run = lab.stand_in("run", 80).start();
    run.computing();
    lab.vcluster(&["off", "n4"]);
    assert_eq!(run.wait_for("node-lost", 1)["node"], "n4");
    lab.vcluster(&["cut-off", "n2"]);
    let end = run.end();
    assert_eq!(end.survived(&["node-silent"])["node"], "n2");
    assert_eq!(end.hosts(), ["n1", "n5", "n3"]);
}

/// Another program file at the same place; a shared memory that is full.
#[test]
#[ignore = "needs root and network namespaces"]
fn unfit_spares_are_passed_over_and_named() {
    let lab = Lab::up(4, 3);
    lab.spoil_program("n5");
    lab.fill_memory("n6");
    let run = lab.benchmark("run").hold("1@iteration:1:20");
    lab.vcluster(&["cut-off", "n1"]);
    let end = run.end();
    end.survived(&["node-silent"]);
    let words = "n5 cannot be used: the program file differs";
    assert!(end.errors.contains(words), "{}", end.told());
    assert_eq!(end.hosts(), ["n7", "n2", "n3", "n4"]);
    lab.same_x("run", &end);
}

/// The same where the node was to work: a spare takes its place before anything starts.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_node_with_another_program_does_not_even_begin() {
    let lab = Lab::up(4, 1);
    lab.spoil_program("n3");
    let end = lab.benchmark("run").start().end();
    assert!(end.errors.contains("n3 cannot be used: the program file differs"), "{}", end.told());
    assert_eq!(end.hosts(), ["n1", "n2", "n5", "n4"]);
    assert!(end.of("fault").is_empty(), "{}", end.told());
    lab.same_x("run", &end);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn survivors_take_more_ranks() {
    let lab = Lab::up(4, 0);
    let run = lab.benchmark("run").hold("1@iteration:1:20");
    lab.vcluster(&["cut-off", "n3"]);
    let end = run.end();
    end.survived(&["node-silent"]);
    assert_eq!(end.hosts(), ["n1", "n2", "n4"]);
    lab.same_x("run", &end);
    assert_eq!(end.rebuilt(), [[2]], "{}", end.told());
}

/// Where they must not, the run stops with its memory kept, and goes on when the node is repaired.
#[test]
#[ignore = "needs root and network namespaces"]
fn none_left_and_none_may_take_more() {
    let lab = Lab::up(4, 0);
    let run = lab.benchmark("run").flags(&["--no-doubling"]).hold("1@iteration:1:20");
    lab.vcluster(&["cut-off", "n3"]);
    let end = run.end();
    assert_eq!(end.code, Some(75), "{}", end.told());
    assert!(end.errors.contains("the same command"), "{}", end.told());
    assert!(lab.memory_of("n1").contains(".p0."), "memory was not kept");
    lab.vcluster(&["back", "n3"]);
    let end = lab.benchmark("run").flags(&["--no-doubling"]).start().end();
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"]);
    lab.same_x("run", &end);
    assert_eq!(end.rebuilt(), [[2]], "{}", end.told());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_run_waits_for_a_repaired_node() {
    let lab = Lab::up(4, 0);
    let flags = ["--no-doubling", "--wait", "100s"];
    let mut run = lab.benchmark("run").flags(&flags).hold("1@iteration:1:20");
    lab.vcluster(&["cut-off", "n3"]);
    run.wait_for("waiting", 1);
    lab.vcluster(&["back", "n3"]);
    let end = run.end();
    end.survived(&["node-silent"]);
    assert_eq!(end.of("node-returned")[0]["same_boot"], false);
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"]);
    lab.same_x("run", &end);
}
