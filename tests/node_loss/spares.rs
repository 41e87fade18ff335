//! Tests of spare nodes: lost, unfit, and none left.

use crate::lab::{Lab, Plan, Run};

/// Spares with a different program file or with full shared memory are not used, and are reported.
#[test]
#[ignore = "needs root and network namespaces"]
fn unfit_spares_are_passed_over_and_named() {
    let lab = Lab::up(4, 3);
    lab.spoil_program("n5");
    lab.fill_memory("n6");
    let run = lab.benchmark("run").hold("1@iteration:1:20");
    lab.vcluster(&["cut-off", "n1"]);
    let end = run.end();
    end.survived(&["node-unresponsive"]);
    let words = "n5 cannot be used: the program file differs";
    assert!(end.errors.contains(words), "{}", end.told());
    assert_eq!(end.hosts(), ["n7", "n2", "n3", "n4"]);
    lab.same_x("run", &end);
}

/// If a node of the host file has a different program file, a spare replaces it before the run starts.
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

/// A spare whose processor lacks all kernels of the program would compute with the BLAS, with other bits. It is not used, and is
/// reported.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_spare_that_would_round_otherwise_is_passed_over_and_named() {
    let lab = Lab::up(4, 2);
    lab.pretend("n5", "SKT_FAULT_LACKS=packed");
    // Without AVX-512, n6 uses other instructions but computes the same bits.
    lab.pretend("n6", "SKT_FAULT_LACKS=avx512");
    let words =
        "the results of this node would differ in their last bits: this node computes with blas";
    let doctor = lab.doctor();
    assert!(doctor.contains(&format!("n5: PROBLEM: {words}")), "{doctor}");
    assert!(doctor.contains("1 problem(s) found"), "{doctor}");
    let run = lab.benchmark("run").hold("1@iteration:1:20");
    lab.vcluster(&["cut-off", "n1"]);
    let end = run.end();
    assert!(end.errors.contains(&format!("n5 cannot be used: {words}")), "{}", end.told());
    assert_eq!(end.hosts(), ["n6", "n2", "n3", "n4"], "{}", end.told());
    lab.same_x("run", &end);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn survivors_take_more_ranks() {
    let lab = Lab::up(4, 0);
    let run = lab.benchmark("run").hold("1@iteration:1:20");
    lab.vcluster(&["cut-off", "n3"]);
    let end = run.end();
    end.survived(&["node-unresponsive"]);
    assert_eq!(end.hosts(), ["n1", "n2", "n4"]);
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
    end.survived(&["node-unresponsive"]);
    assert_eq!(end.of("node-returned")[0]["same_boot"], false);
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"]);
    lab.same_x("run", &end);
}

/// A node loses its part of the run's memory, and another process takes the room. The benchmark refuses to start there, and a
/// spare replaces the node.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_node_without_room_for_what_it_has_lost_is_replaced() {
    let lab = Lab::up(4, 1);
    replaced_for_want_of_room(&lab, lab.benchmark("run"));
}

/// Shell commands that remove the run's memory on a node and take its room. Removed memory is free only after the rank has ended,
/// so the commands take room as soon as it is free.
const GREEDY: &str = "rm /dev/shm/skt-hpl.*; timeout 60 sh -c \
                      'while :; do dd if=/dev/zero bs=1M >>/dev/shm/full 2>/dev/null; sleep 0.05; done' \
                      </dev/null >/dev/null 2>&1 &";

fn replaced_for_want_of_room(lab: &Lab, plan: Plan) {
    let mut run = plan.hang_each(&["1@iteration:1:20"]);
    lab.on("n2", GREEDY);
    run.kill_launcher();
    with_a_spare_in_its_place(lab, run);
}

fn with_a_spare_in_its_place(lab: &Lab, run: Run) {
    let end = run.end();
    lab.same_x("run", &end);
    assert_eq!(end.hosts(), ["n1", "n5", "n3", "n4"], "{}", end.told());
    assert!(end.errors.contains("n2 cannot be used: /dev/shm has"), "{}", end.told());
    assert!(end.of("node-lost").is_empty(), "{}", end.told());
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_lost_spare_disturbs_nobody_and_is_not_used() {
        let lab = Lab::up(3, 2);
        let mut run = lab.stand_in("run", 300).start();
        run.computing();
        lab.vcluster(&["off", "n4"]);
        assert_eq!(run.wait_for("node-lost", 1)["node"], "n4");
        lab.vcluster(&["cut-off", "n2"]);
        let end = run.end();
        assert_eq!(end.survived(&["node-unresponsive"])["node"], "n2");
        assert_eq!(end.hosts(), ["n1", "n5", "n3"]);
    }

    /// Four nodes compute, and two store only their parity. A spare replaces a lost parity node as it replaces a computing node.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_node_that_keeps_checksums_alone_is_replaced_as_the_others_are() {
        let lab = Lab::up(6, 2);
        let mut run =
            lab.with_dedicated("run").hold_each(&["1@iteration:1:20", "2@iteration:1:10"]);
        lab.vcluster(&["cut-off", "n6"]);
        run.await_fault("iteration:1:10");
        lab.vcluster(&["cut-off", "n2"]);
        let end = run.end();
        end.passed();
        assert_eq!(end.hosts(), ["n1", "n8", "n3", "n4", "n5", "n7"]);
        lab.same_x("run", &end);
    }

    /// Ranks of a lost node do not move to the node with the other member of their group, although it has room. One loss would
    /// then take both members.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn ranks_do_not_go_to_the_node_that_protects_them() {
        let lab = Lab::up(4, 0);
        let run = lab.benchmark("run").hold("1@iteration:1:20");
        lab.vcluster(&["cut-off", "n1"]);
        let end = run.end();
        assert_eq!(end.of("replaced")[0]["by"], "n3", "{}", end.told());
        assert!(!end.errors.contains("members of one group"), "{}", end.told());
        lab.same_x("run", &end);
    }

    /// With `--no-doubling` and without spares, the run stops with its memory kept. After the lost node is repaired, the same
    /// command resumes.
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

    /// A supervisor waits for the login to a repaired node, even if the login takes longer than the pause between calls.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_repaired_node_is_waited_for_as_long_as_a_login_takes() {
        let lab = Lab::up(4, 0);
        let run = lab.benchmark("run").flags(&["--no-doubling"]).hold("1@iteration:1:20");
        lab.vcluster(&["cut-off", "n3"]);
        assert_eq!(run.end().code, Some(75));
        lab.vcluster(&["back", "n3"]);
        let plan = lab.benchmark("run").flags(&["--no-doubling"]).reached_after(&lab, "sleep 8");
        let end = plan.start().end();
        end.passed();
        assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"]);
        lab.same_x("run", &end);
    }

    /// A node returns after its loss, and later takes the ranks of another node. Its old memory is removed, to make room for the
    /// new ranks.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_node_that_is_back_makes_room_for_what_it_takes() {
        let lab = Lab::up(4, 1);
        let plan = lab.benchmark("run").flags(&["--no-doubling"]);
        let mut run = plan.hold_each(&["1@iteration:3:20", "2@iteration:3:30"]);
        lab.vcluster(&["cut", "n2"]);
        run.await_fault("2@iteration:3:30");
        lab.vcluster(&["join", "n2"]);
        run.wait_for("node-returned", 1);
        // A position needs some 12 MiB. With less than that free, the node has no room for it next to the old memory.
        lab.leave_free("n2", 8);
        lab.vcluster(&["cut-off", "n3"]);
        let end = run.end();
        assert_eq!(end.hosts(), ["n1", "n5", "n2", "n4"], "{}", end.told());
        let removed = end.of("memory-removed")[0];
        assert_eq!(removed["node"], "n2");
        assert!(removed["bytes"].as_u64().unwrap() > 10 << 20, "{removed}");
        assert_eq!(end.rebuilt(), [[1], [2]], "{}", end.told());
        lab.same_x("run", &end);
    }

    /// If the benchmark finds no room on a node, the node is replaced before the launcher ends. The ranks' refusal is known long
    /// before that.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_node_without_room_is_replaced_although_the_launcher_ends_late() {
        let lab = Lab::up(4, 1);
        let launcher = lab.slow_to_end().display().to_string();
        let plan = lab.benchmark("run").flags(&["--launcher-program", &launcher]);
        replaced_for_want_of_room(&lab, plan);
    }

    /// A rank dies while it starts, and then its node has no room. The two failures are not counted as one repeated fault: before
    /// a new attempt, the supervisor asks the nodes for their room.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_node_without_room_is_replaced_after_a_start_that_failed_otherwise() {
        let lab = Lab::up(4, 1);
        let failed = "2@agree-begin:3:1";
        let mut run = lab.benchmark("run").hang_each(&["1@iteration:1:20", failed]);
        run.kill_launcher();
        run.await_fault(failed);
        lab.on("n2", GREEDY);
        run.kill_launcher_of(2);
        with_a_spare_in_its_place(&lab, run);
    }
}
