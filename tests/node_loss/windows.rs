//! The benchmark loses a node in a certain window of its life, or at random, and finds the same x.
//!
//! A rank stops at a named point (docs/dev/protocol.md has them all), so that the loss happens there and nowhere else: the others
//! cannot have continued without it.

use std::time::Duration;

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::extent;
use crate::lab::{Ended, Lab};

/// Stops a rank in the first attempt, and makes a node unresponsive meanwhile.
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

/// The first save is not complete anywhere, or already valid: both a beginning from scratch and resuming are right.
#[test]
#[ignore = "needs root and network namespaces"]
fn during_the_first_save() {
    let end = lose("encode-batch:1:1", "n2");
    assert!(end.resumed_at().is_empty(), "{}", end.told());
}

/// Loses n2 while the benchmark computes, and another node in a window of the recovery.
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

/// The lost node's data are complete on another when its partner is lost, too.
#[test]
#[ignore = "needs root and network namespaces"]
fn during_the_recovery_the_partner() {
    let end = lose_again("restore-end:0:1", "n1");
    assert_eq!(end.hosts(), ["n6", "n5", "n3", "n4"]);
    assert_eq!(end.rebuilt(), [[0]], "{}", end.told());
}

/// The results on a node that was cut off just then do not belong to the next run.
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
    // The agent would have ended the processes there after a minute without a supervisor.
    lab.vcluster(&["kill", "n1", "skt-hpl"]);
    lab.vcluster(&["join", "n1"]);
    assert!(lab.memory_of("n1").contains(".done"), "{}", lab.memory_of("n1"));
    // The second run computes: a rank of it reaches this iteration.
    let run = lab.benchmark("second").hold("1@iteration:1:20");
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    lab.same_x("second", &run.end());
}

/// A reader of the supervisor's output sees a single run: the result of the first test is not printed again by the attempt that
/// resumes the second.
#[test]
#[ignore = "needs root and network namespaces"]
fn in_the_second_test() {
    let lab = Lab::up(4, 1);
    // Iterations of both tests count: 38 of the first.
    let run = lab.benchmark("run").orders("600,1250").hold("1@iteration:1:60");
    lab.vcluster(&["off", "n2"]);
    let end = run.end();
    end.passed();
    assert_eq!(end.faults().len(), 1, "{}", end.told());
    // The fault was in the second test, and was recovered there. `ranks` tests the saves: the recovered state may be over between
    // two heartbeats.
    let of_second = |name: &str| end.of(name).iter().filter(|event| event["test"] == 1).count();
    assert_eq!(of_second("fault"), 1, "{}", end.told());
    // The first test may be through before the first heartbeat.
    assert!((1..=2).contains(&of_second("computing")), "{}", end.told());
    let caught_up = end.of("caught-up");
    assert!(caught_up.iter().all(|event| event["test"] == 1), "{caught_up:?}");
    for (what, times) in [("PASSED", 2), ("HPLinpack", 1), ("End of Tests", 1), ("\nWR", 2)] {
        assert_eq!(end.output.matches(what).count(), times, "{what}: {}", end.told());
    }
}

/// Any node, any way, any time from the launch on. Returns whether that was during the run.
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
        // The agent ends with the rank; and there may be none yet, or none any more.
        "kill" => drop(lab.on(&node, "pkill -KILL -x skt-hpl || true")),
        _ => drop(lab.vcluster(&[way, &node])),
    }
    let end = run.end();
    lab.same_x("run", &end);
    assert!(end.of("fault").len() <= 1, "{}", end.told());
    !end.of("fault").is_empty()
}

/// Left to `scripts/test.sh --all`: the simulation shows these losses, or a test above shows the same of another one.
mod rest {
    use super::*;

    /// There is no checkpoint yet: the matrix is made again.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn while_the_matrix_is_generated() {
        for (place, node) in [("generate-begin:1:1", "n2"), ("generate-end:2:1", "n1")] {
            let end = lose(place, node);
            assert!(end.resumed_at().is_empty(), "{}", end.told());
        }
    }

    /// Saves are at every fourth boundary: the fifth is at 20. The rank that stopped must be on the lost node: mpirun's daemons
    /// wake stopped ranks up before they end them, and one that survived could complete the save.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn during_a_save_before_it_counts() {
        for (place, node) in [("save-begin:3:5", "n4"), ("save-state:1:5", "n2")] {
            let end = lose(place, node);
            assert_eq!(end.resumed_at(), [16], "{}", end.told());
            assert_eq!(end.rebuilt().len(), 1, "{}", end.told());
        }
    }

    /// All survivors have sealed it: it counts, although none has finished.
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

    /// The replacement is lost while its share is rebuilt; the next one takes over.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn during_the_recovery_the_replacement() {
        let end = lose_again("rebuild-end:1:1", "n5");
        assert_eq!(end.hosts(), ["n1", "n6", "n3", "n4"]);
        assert_eq!(end.rebuilt(), [[1]], "{}", end.told());
    }

    /// The factorisation is over, or the result is even recorded.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn near_the_end() {
        for (place, node) in [("solve-begin:2:1", "n3"), ("clean-begin:1:1", "n2")] {
            lose(place, node);
        }
    }

    /// A failure or a hang after the announced end costs nothing; and the remaining memory is removed.
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

    /// As many as are asked for; else some, and more if the run was over, or not begun, each time.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn at_random_times_from_a_seed() {
        let (seed, asked) = (extent::seed(), extent::soak());
        let runs = asked.unwrap_or(3);
        println!("SKT_TEST_SEED={seed} SKT_TEST_SOAK={runs}");
        let (mut run, mut hit) = (0, false);
        while run < runs || (asked.is_none() && !hit) {
            assert!(run < runs * 10, "none of {run} runs had a loss");
            // Each has a seed of its own, so that one can be repeated alone.
            hit |= at_random(seed + run);
            run += 1;
        }
    }
}
