//! Tests in which the benchmark loses a node in a certain window, or at a random time, and finds the same x.
//!
//! A rank stops at a crash point (listed in docs/dev/protocol.md), and the other ranks wait for it. So the loss happens exactly
//! at this point.

use std::time::Duration;

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::extent;
use crate::lab::{Ended, Lab};

/// Stops a rank at `place` in the first attempt, and loses `node` without closing its connections. Asserts that a spare replaces
/// the node and that x is right; returns the result.
fn lose(place: &str, node: &str) -> Ended {
    let lab = Lab::up(4, 1);
    let run = lab.benchmark("run").hold(&format!("1@{place}"));
    lab.vcluster(&["cut-off", node]);
    let end = run.end();
    assert_eq!(end.survived(&["node-unresponsive"])["node"], node, "{place}");
    assert!(end.hosts().contains(&"n5"), "{:?}", end.hosts());
    lab.same_x("run", &end);
    end
}

/// A node is lost during the first save, before its parity is complete. The run starts again from scratch.
#[test]
#[ignore = "needs root and network namespaces"]
fn during_the_first_save() {
    let end = lose("encode-batch:1:1", "n2");
    assert!(end.resumed_at().is_empty(), "{}", end.told());
}

/// Loses n2 while the benchmark computes, and `node` when the recovery reaches `place`. Asserts that x is right, and returns the
/// result.
fn lose_again(place: &str, node: &str) -> Ended {
    let lab = Lab::up(4, 2);
    let place = format!("2@{place}");
    let mut run = lab.benchmark("run").hold_each(&["1@iteration:1:30", &place]);
    lab.vcluster(&["cut-off", "n2"]);
    run.await_fault(&place);
    lab.vcluster(&["cut-off", node]);
    let end = run.end();
    assert_eq!(end.faults(), ["node-unresponsive", "node-unresponsive"], "{}", end.told());
    lab.same_x("run", &end);
    end
}

/// The position of the first lost node is already rebuilt on another node when the other node of its group is lost.
#[test]
#[ignore = "needs root and network namespaces"]
fn during_the_recovery_the_partner() {
    let end = lose_again("restore-end:0:1", "n1");
    assert_eq!(end.hosts(), ["n6", "n5", "n3", "n4"]);
    assert_eq!(end.rebuilt(), [[0]], "{}", end.told());
}

/// A node is cut off when the run ends, and keeps the results in its memory. A later run does not use them.
#[test]
#[ignore = "needs root and network namespaces"]
fn results_left_behind_are_not_believed_by_another_run() {
    let lab = Lab::up(4, 0);
    let run = lab.benchmark("first").hold("1@told:2:1");
    lab.vcluster(&["cut", "n1"]);
    let end = run.end();
    lab.same_x("first", &end);
    assert!(
        end.errors.contains("not reached: n1. These commands remove the files of this run there"),
        "{}",
        end.told()
    );
    // Without a supervisor, the agent would end the processes on this node after a minute.
    lab.vcluster(&["kill", "n1", "skt-hpl"]);
    lab.vcluster(&["join", "n1"]);
    assert!(lab.memory_of("n1").contains(".done"), "{}", lab.memory_of("n1"));
    // The second run computes, since one of its ranks reaches this iteration.
    let run = lab.benchmark("second").hold("1@iteration:1:20");
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    lab.same_x("second", &run.end());
}

/// A node is lost in the second of two tests. The output looks like that of a single run: the attempt that resumes does not print
/// the first result again.
#[test]
#[ignore = "needs root and network namespaces"]
fn in_the_second_test() {
    let lab = Lab::up(4, 1);
    // Iterations of both tests are counted; the first test has 38.
    let run = lab.benchmark("run").orders("600,1250").hold("1@iteration:1:60");
    lab.vcluster(&["off", "n2"]);
    let end = run.end();
    end.passed();
    assert_eq!(end.faults().len(), 1, "{}", end.told());
    // The fault was in the second test and was recovered there. Only the fault is counted: the recovered state may end between
    // two heartbeats.
    let of_second = |name: &str| end.of(name).iter().filter(|event| event["test"] == 1).count();
    assert_eq!(of_second("fault"), 1, "{}", end.told());
    // The first test may end before the first heartbeat.
    assert!((1..=2).contains(&of_second("computing")), "{}", end.told());
    let caught_up = end.of("caught-up");
    assert!(caught_up.iter().all(|event| event["test"] == 1), "{caught_up:?}");
    for (what, times) in [("PASSED", 2), ("HPLinpack", 1), ("End of Tests", 1), ("\nWR", 2)] {
        assert_eq!(end.output.matches(what).count(), times, "{what}: {}", end.told());
    }
}

/// Loses a random node, by a random `vcluster` command, at a random time after the launch. Returns true if the loss happened
/// during the run.
fn at_random(seed: u64) -> bool {
    let mut dice = Xoshiro256StarStar::seed_from_u64(seed);
    let mut below = |n: u64| dice.next_u64() % n;
    let lab = Lab::up(4, 1);
    let node = format!("n{}", 1 + below(4));
    let way = ["cut-off", "off", "kill"][below(3) as usize];
    let moment = Duration::from_millis(below(4000));
    println!("SKT_TEST_SEED={seed} SKT_TEST_SOAK=1: {way} {node} {moment:?} after the launch");
    let mut run = lab.benchmark("run").start();
    run.wait_for("launched", 1);
    std::thread::sleep(moment);
    match way {
        // The agent ends together with the rank. Neither may exist yet, or still.
        "kill" => drop(lab.on(&node, "pkill -KILL -x skt-hpl || true")),
        _ => drop(lab.vcluster(&[way, &node])),
    }
    let end = run.end();
    lab.same_x("run", &end);
    assert!(end.of("fault").len() <= 1, "{}", end.told());
    !end.of("fault").is_empty()
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// A node is lost while the matrix is generated. There is no checkpoint yet, so the matrix is generated again.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn while_the_matrix_is_generated() {
        for (place, node) in [("generate-begin:1:1", "n2"), ("generate-end:2:1", "n1")] {
            let end = lose(place, node);
            assert!(end.resumed_at().is_empty(), "{}", end.told());
        }
    }

    /// A node is lost during the fifth save, at boundary 20, before all ranks have sealed: the run resumes at boundary 16. The
    /// stopped rank must be on the lost node. Daemons of mpirun wake stopped ranks before they end them, and such a rank could
    /// complete the save.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn during_a_save_before_it_counts() {
        for (place, node) in [("save-begin:3:5", "n4"), ("save-state:1:5", "n2")] {
            let end = lose(place, node);
            assert_eq!(end.resumed_at(), [16], "{}", end.told());
            assert_eq!(end.rebuilt().len(), 1, "{}", end.told());
        }
    }

    /// A node is lost after all survivors have sealed the save at boundary 20. The run resumes at boundary 20, although no rank
    /// has finished the save.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn during_a_save_that_counts_already() {
        for (place, node) in
            [("encode-end:1:5", "n2"), ("flush-half:1:5", "n2"), ("barrier-passed:2:5", "n1")]
        {
            let end = lose(place, node);
            assert_eq!(end.resumed_at(), [20], "{}", end.told());
            assert_eq!(end.rebuilt().len(), 1, "{}", end.told());
        }
    }

    /// The replacement node is lost while its position is rebuilt. The next spare replaces it.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn during_the_recovery_the_replacement() {
        let end = lose_again("rebuild-end:1:1", "n5");
        assert_eq!(end.hosts(), ["n1", "n6", "n3", "n4"]);
        assert_eq!(end.rebuilt(), [[1]], "{}", end.told());
    }

    /// A node is lost after the factorisation, or after the result is recorded.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn near_the_end() {
        for (place, node) in [("solve-begin:2:1", "n3"), ("clean-begin:1:1", "n2")] {
            lose(place, node);
        }
    }

    /// A failure or a hang after the announced end is not a fault, and the remaining memory is removed.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn after_the_end_is_told() {
        for action in ["kill", "stop"] {
            let lab = Lab::up(4, 0);
            let end = lab.benchmark("run").faults(&format!("1@told:2:1:{action}")).start().end();
            lab.same_x("run", &end);
            assert!(end.faults().is_empty(), "{}", end.told());
            assert!(end.errors.contains("the run is finished; afterwards"), "{}", end.told());
            for node in ["n1", "n2", "n3", "n4"] {
                assert_eq!(lab.memory_of(node), "", "left behind on {node}");
            }
        }
    }

    /// Loses a node at random times, in `SKT_TEST_SOAK` runs or else three. By default, further runs follow until one loss has
    /// hit a running job.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn at_random_times_from_a_seed() {
        let (seed, asked) = (extent::seed(), extent::soak());
        let runs = asked.unwrap_or(3);
        println!("SKT_TEST_SEED={seed} SKT_TEST_SOAK={runs}");
        let (mut run, mut hit) = (0, false);
        while run < runs || (asked.is_none() && !hit) {
            assert!(run < runs * 10, "none of {run} runs had a loss");
            // Each run has a seed of its own, so that a single run can be repeated.
            hit |= at_random(seed + run);
            run += 1;
        }
    }
}
