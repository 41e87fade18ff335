//! Tests of recovery in place: a rank dies, and a spare rank inside the job takes its position. No launcher and no other process
//! is started.
//!
//! If a whole node is lost, the launcher ends, and the run is restarted with a spare node. Other tests use checksum columns
//! (`--method abft`), with which a restart begins from scratch. The tests need Open MPI 5; with other launchers such runs are
//! refused (`without_ulfm`).
//!
//! The other ranks take a stopped rank for dead within seconds. So each test stops the rank whose node it removes.

use skt_hpl::comm::World;
use skt_hpl::supervise::start::launcher::{Launcher, major_version};

use crate::extent;
use crate::lab::{Ended, Lab, launcher, wait_until};

pub fn goes_on() -> bool {
    launcher() == Launcher::Openmpi
        && major_version(&World::library()).is_some_and(|major| major >= 5)
}

fn lab(nodes: usize, spares: usize) -> Lab {
    goes_on_here();
    Lab::up(nodes, spares)
}

fn goes_on_here() {
    assert!(goes_on(), "needs Open MPI 5; with any other MPI leave these out: --skip in_place::");
}

/// Asserts that no memory of the run is left on `nodes`.
fn nothing_left(lab: &Lab, end: &Ended, nodes: &[&str]) {
    for node in nodes {
        let memory = lab.memory_of(node);
        assert!(!memory.contains("skt-hpl."), "left on {node}: {memory}{}", end.told());
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_killed_rank_is_replaced_inside_the_job() {
    let lab = lab(5, 0);
    let end = lab.in_place("run").faults("1@iteration:1:20:kill").start().end();
    end.passed();
    assert_eq!(end.of("launched").len(), 1, "{}", end.told());
    assert!(end.errors.contains("rank 4 on n5 takes position 1"), "{}", end.told());
    lab.same_x("run", &end);
    let [gone_on] = end.of("gone-on")[..] else { panic!("told once: {}", end.told()) };
    let lost = serde_json::json!([{ "rank": 1, "node": "n2", "position": 1 }]);
    assert_eq!((&gone_on["lost"], &gone_on["fault"]), (&lost, &1.into()), "{gone_on}");
    let moments = ["failed_ms", "noticed_ms", "agreed_ms", "going_on_ms", "at_ms"];
    let moments = moments.map(|moment| gone_on[moment].as_u64().unwrap());
    assert!(moments.is_sorted(), "{gone_on}");
    assert!(moments[4] - moments[0] < 10_000, "{gone_on}");
    // Heartbeats may be too rare to show the repeated work.
    let [boundary, iteration] = ["boundary", "iteration"].map(|at| gone_on[at].as_u64().unwrap());
    assert!(0 < boundary && boundary <= iteration, "{gone_on}");
    assert_eq!(end.of("caught-up").len(), usize::from(boundary < iteration), "{}", end.told());
    assert!(end.errors.contains("and was recovered in place (the ranks agreed"), "{}", end.told());
    let status = lab.status("run");
    for words in ["1 rank(s)  1 lost", "1 rank(s)  position 1", "recovered in place after"] {
        assert!(status.contains(words), "{words}: {status}");
    }
    // The memory of the dead rank was on n2, a node without ranks.
    nothing_left(&lab, &end, &["n1", "n2", "n3", "n4", "n5"]);
}

/// The other ranks take a stopped rank for dead. The rank is ended on its node, so that it frees its memory and cannot return.
/// The supervisor does not report a hung rank, and nothing is restarted.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_stopped_rank_is_replaced_inside_the_job_and_ended() {
    let lab = lab(5, 0);
    let mut run = lab.in_place("run").faults("1@iteration:1:20:stop").start();
    run.await_fault("iteration:1:20");
    let end = run.end();
    end.passed();
    assert_eq!(end.of("launched").len(), 1, "{}", end.told());
    assert!(end.of("fault").is_empty(), "{}", end.told());
    assert_eq!(end.of("gone-on").len(), 1, "{}", end.told());
    assert!(end.errors.contains("rank 4 on n5 takes position 1"), "{}", end.told());
    lab.same_x("run", &end);
    nothing_left(&lab, &end, &["n1", "n2", "n3", "n4", "n5"]);
}

/// A rank hangs without progress, and does not report that it waits. Its agent ends it, and a spare replaces it as a dead rank.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_hung_rank_is_ended_and_replaced_inside_the_job() {
    let lab = lab(5, 0);
    // The rank may hang before three iterations are timed. `--progress-timeout` is then the limit.
    let when = ["--hang-min", "1s", "--progress-timeout", "20s"];
    let end = lab.hanging_in_place("run", &when).faults("1@iteration:2:20:hang").start().end();
    end.passed();
    assert_eq!(end.of("launched").len(), 1, "{}", end.told());
    assert!(end.of("fault").is_empty(), "{}", end.told());
    let [gone_on] = end.of("gone-on")[..] else { panic!("told once: {}", end.told()) };
    let lost = serde_json::json!([{ "rank": 2, "node": "n3", "position": 2 }]);
    assert_eq!(gone_on["lost"], lost, "{}", end.told());
    assert!(
        end.errors
            .contains("the process of this position is ended, so that the other ranks continue"),
        "{}",
        end.told()
    );
    lab.same_x("run", &end);
    nothing_left(&lab, &end, &["n1", "n2", "n3", "n4", "n5"]);
}

/// Cases of a fault in one process row, while a rank of the other process row sends panel 4 or 5 over a slow network. The fields
/// are the point at which the test makes the network slow, the point of the fault, and the slow node. The last save is at
/// boundary 3.
const OVER_A_SLOW_WIRE: &[(&str, &str, &str)] = &[
    ("iteration:0:4", "panel-sent:0:3", "n4"),
    ("iteration:1:5", "panel-sent:1:3", "n3"),
    ("iteration:0:4", "panel-sent:0:3", "n3"),
    ("iteration:1:5", "panel-sent:1:3", "n4"),
    ("iteration:0:4", "iteration:0:5", "n4"),
    ("iteration:1:5", "iteration:1:6", "n3"),
];

/// Asserts that the run was restarted once, on `hosts`, and found the x of an undisturbed run.
fn restarted(lab: &Lab, end: &Ended, hosts: &[&str]) {
    assert_eq!(end.of("launched").len(), 2, "{}", end.told());
    assert_eq!(end.faults().len(), 1, "{}", end.told());
    assert_eq!(end.hosts(), hosts, "{}", end.told());
    lab.same_x("run", end);
    for (what, times) in [("HPLinpack", 1), ("PASSED", 1), ("End of Tests", 1)] {
        assert_eq!(end.output.matches(what).count(), times, "{what}: {}", end.told());
    }
    nothing_left(lab, end, hosts);
}

/// Loses node n2 while the ranks compute, by the `vcluster` command `way`. The launcher's daemon on n2 is lost too, and so the
/// whole job: the run is restarted.
fn a_node_is_lost(way: &str) {
    let lab = lab(5, 1);
    let run = lab.in_place("run").hold("1@iteration:1:20");
    lab.vcluster(&[way, "n2"]);
    let end = run.end();
    restarted(&lab, &end, &["n1", "n6", "n3", "n4", "n5"]);
    assert_eq!(end.of("replaced")[0]["node"], "n2", "{}", end.told());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_node_is_lost_without_a_word() {
    a_node_is_lost("cut-off");
}

/// Kills a rank of n2 at the 20th boundary, so that the spare rank on n5 takes its position. Then loses `node` when the run
/// reaches `place`. Returns the result of the run, which must have restarted on `hosts`.
fn a_node_is_lost_later(place: &str, node: &str, hosts: &[&str]) -> Ended {
    println!("{place} {node}");
    let lab = lab(5, 1);
    let mut run =
        lab.in_place("run").faults(&format!("1.1@iteration:1:20:kill,1.2@{place}:stop")).start();
    run.await_fault(place);
    lab.vcluster(&["cut-off", node]);
    let end = run.end();
    restarted(&lab, &end, hosts);
    end
}

/// Positions 0 and 1 are on n1, 2 and 3 on n2, and two spare ranks are on n3. Spare ranks take positions 2 and 1. Before either
/// is rebuilt, n1 is lost. The group of positions 0 and 2 still has the memory that the dead rank left on n2, so a restart
/// resumes.
#[test]
#[ignore = "needs root and network namespaces"]
fn the_copy_of_a_dead_rank_brings_the_run_back_if_its_position_was_not_rebuilt() {
    let lab = lab(3, 1);
    let faults = "1.1@iteration:2:20:kill,1.2@settled:1:1:kill,1.3@settled:0:1:stop";
    let mut run = lab.in_place_by_twos("run").faults(faults).start();
    run.await_fault("settled:0:1");
    lab.vcluster(&["cut-off", "n1"]);
    let end = run.end();
    restarted(&lab, &end, &["n4", "n2", "n3"]);
    assert_eq!(end.rebuilt().last().unwrap(), &[0, 1], "{}", end.told());
}

/// Without a spare node, the loss of a node stops the run with its memory kept. After the node is repaired, the same command
/// resumes.
#[test]
#[ignore = "needs root and network namespaces"]
fn when_no_node_is_left_the_run_can_be_gone_on_with() {
    let lab = lab(5, 0);
    let plan = || lab.in_place("run").flags(&["--no-doubling"]);
    let mut run = plan().faults("1.1@iteration:1:20:kill,1.2@iteration:3:10:stop").start();
    run.await_fault("iteration:3:10");
    lab.vcluster(&["cut-off", "n4"]);
    let end = run.end();
    assert_eq!(end.code, Some(75), "{}", end.told());
    lab.vcluster(&["back", "n4"]);
    let end = plan().start().end();
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4", "n5"], "{}", end.told());
    lab.same_x("run", &end);
}

/// A killed rank's process column is replaced by the checksum column. Positions 0 to 2 are the first row of the 2 x 3 grid;
/// positions 2 and 5 store checksums.
#[test]
#[ignore = "needs root and network namespaces"]
fn checksums_take_the_place_of_a_killed_ranks_column() {
    let lab = lab(6, 0);
    // With this N, iterations take long enough for `status` to see idle ranks: other ranks must have worked for a second.
    let end =
        lab.with_checksums("run").orders("4000").faults("1@iteration:1:20:kill").start().end();
    end.passed();
    assert_eq!(end.of("launched").len(), 1, "{}", end.told());
    assert!(end.of("fault").is_empty(), "{}", end.told());
    let words = "the checksums take the place of process column 1; no new checksums, for which 2 ranks are needed, and \
                 1 rank is free; test 1 resumes at boundary";
    assert!(end.errors.contains(words), "{}", end.told());
    let [gone_on] = end.of("gone-on")[..] else { panic!("told once: {}", end.told()) };
    let lost = serde_json::json!([{ "rank": 1, "node": "n2", "position": 1 }]);
    assert_eq!((&gone_on["lost"], &gone_on["fault"]), (&lost, &1.into()), "{gone_on}");
    assert!(gone_on["boundary"].as_u64().unwrap() >= 19, "{gone_on}");
    assert!(end.errors.contains("and was recovered in place (the ranks agreed"), "{}", end.told());
    let status = lab.status("run");
    for (node, part) in [
        ("n1", "position 0"),
        ("n2", "1 lost"),
        ("n3", "position 2 in the place of process column 1"),
        ("n4", "position 3"),
        ("n5", "1 idle"),
        ("n6", "position 5 in the place of process column 1"),
    ] {
        let line = status.lines().find(|line| line.trim_start().starts_with(node)).unwrap();
        assert!(line.ends_with(&format!("1 rank(s)  {part}")), "{part}: {status}");
    }
    nothing_left(&lab, &end, &["n1", "n2", "n3", "n4", "n5", "n6"]);
}

/// Asserts that the run was restarted once, on `hosts`, and passed.
fn began_from_scratch(lab: &Lab, end: &Ended, hosts: &[&str]) {
    end.passed();
    assert_eq!((end.of("launched").len(), end.faults().len()), (2, 1), "{}", end.told());
    assert_eq!(end.hosts(), hosts, "{}", end.told());
    assert_eq!(end.output.matches("PASSED").count(), 1, "{}", end.told());
    nothing_left(lab, end, hosts);
}

/// One checksum column cannot replace a second process column. The second loss is then an ordinary fault, and the supervisor
/// restarts the run from scratch.
#[test]
#[ignore = "needs root and network namespaces"]
fn losses_beyond_the_checksums_begin_from_scratch() {
    let lab = lab(6, 0);
    let faults = "1.1@iteration:1:20:kill,1.2@iteration:0:10:kill";
    let end = lab.with_checksums("run").faults(faults).start().end();
    began_from_scratch(&lab, &end, &["n1", "n2", "n3", "n4", "n5", "n6"]);
    let words = "process column 0 has lost a rank, and the checksums are used up";
    assert!(end.errors.contains(words), "{}", end.told());
    assert!(end.errors.contains("The next attempt begins from scratch"), "{}", end.told());
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// The supervisor dies before a rank is lost and recovered in place. The run ends without a supervisor, and a node is
    /// switched off. The next supervisor reports the recovery and the result.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_loss_that_nobody_watched_is_told_by_the_successor() {
        let lab = lab(5, 0);
        let mut run = lab.in_place("run").faults("1@iteration:1:60:kill").start();
        run.wait_for("launched", 1);
        let (left, journal) = (run.exit_file(1), run.file("events.jsonl"));
        run.kill_supervisor();
        wait_until("the launcher has ended", || left.exists());
        let known = std::fs::read_to_string(journal).unwrap();
        assert!(!known.contains("gone-on"), "somebody watched: {known}");
        lab.vcluster(&["off", "n4"]);
        let end = lab.in_place("run").start().end();
        end.passed();
        let [took_over] = end.of("took-over")[..] else { panic!("told once: {}", end.told()) };
        assert_eq!(took_over["adopted"], false, "{}", end.told());
        assert_eq!(end.of("launched").len(), 1, "{}", end.told());
        let [gone_on] = end.of("gone-on")[..] else { panic!("told once: {}", end.told()) };
        let lost = serde_json::json!([{ "rank": 1, "node": "n2", "position": 1 }]);
        assert_eq!(gone_on["lost"], lost, "{gone_on}");
        assert!(gone_on["seq"].as_u64() < took_over["seq"].as_u64(), "{}", end.told());
        lab.same_x("run", &end);
    }

    /// Messages between surviving ranks keep their buffers until they have arrived. A panel of 10 MB takes eight seconds over the
    /// slow network, while all ranks leave the iteration for the recovery. Freed memory is filled with a pattern, which would
    /// change the result.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn messages_of_living_ranks_over_a_slow_wire_end_before_their_buffers_go() {
        goes_on_here();
        let lab = Lab::up_with_memory(5, 0, "1g");
        let settings = [
            "MALLOC_PERTURB_=165",
            // Heartbeats may be late, and messages of the agreement must not wait behind the panel.
            "OMPI_MCA_mpi_ft_detector_timeout=60",
            "OMPI_MCA_btl_tcp_sndbuf=65536",
            "OMPI_MCA_btl_tcp_rcvbuf=65536",
        ];
        let plan = |name: &str| {
            let plan = lab.in_place(name).orders("6000").blocks("512").saves_every("3");
            let plan = plan.benchmark_flags(&["--depth", "1"]);
            plan.flags(&settings.map(|setting| ["--export", setting]).concat())
        };
        plan("undisturbed").start().end().passed();
        let dealt = [OVER_A_SLOW_WIRE[extent::seed() as usize % OVER_A_SLOW_WIRE.len()]];
        let faults_dealt = if extent::whole() { OVER_A_SLOW_WIRE } else { &dealt };
        for (turn, (held, fault, slow)) in faults_dealt.iter().enumerate() {
            println!("{fault}, {slow} is slow");
            let (name, ready) = (format!("run{turn}"), lab.path(&format!("ready{turn}")));
            let faults = format!("1@{held}:hang={},1@{fault}:kill", ready.display());
            let mut run = plan(&name).faults(&faults).start();
            run.await_fault(held);
            lab.vcluster(&["slow", slow, "1ms", "10mbit"]);
            std::fs::write(ready, "").unwrap();
            run.wait_for("gone-on", 1);
            lab.vcluster(&["slow", slow, "off"]);
            let end = run.end();
            end.passed();
            assert_eq!(end.of("launched").len(), 1, "{}", end.told());
            // The ranks agree on the survivors after all buffers are free.
            let moment = |name: &str| end.of("gone-on")[0][name].as_u64().unwrap();
            let waited_ms = moment("agreed_ms") - moment("noticed_ms");
            assert!(waited_ms > 4000, "nothing was on its way: {}", end.told());
            assert_eq!(lab.solution(&name), lab.solution("undisturbed"), "{}", end.told());
        }
    }

    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_node_is_lost_visibly() {
        a_node_is_lost("off");
    }

    /// After a spare rank has replaced a rank, the node of the spare is lost. The memory that the first rank left on n2 is of an
    /// earlier save, and is not used.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn the_node_of_the_replacement_is_lost() {
        let hosts = ["n1", "n2", "n3", "n4", "n6"];
        let end = a_node_is_lost_later("iteration:1:10", "n5", &hosts);
        assert_eq!(end.rebuilt(), [[1], [1]], "{}", end.told());
        assert!(end.errors.contains("rank 1 on n2 (position 1) is lost"), "{}", end.told());
    }

    /// A node is lost during a recovery in place: the node of the replacement, of a rank that helps to rebuild, or of a rank in
    /// another group.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_node_is_lost_while_a_place_is_taken() {
        a_node_is_lost_later("rebuild-end:1:1", "n5", &["n1", "n2", "n3", "n4", "n6"]);
        if extent::whole() {
            a_node_is_lost_later("rebuild-begin:0:1", "n1", &["n6", "n2", "n3", "n4", "n5"]);
            a_node_is_lost_later("restore-end:2:1", "n3", &["n1", "n2", "n6", "n4", "n5"]);
        }
    }

    /// A second rank is lost, and no spare rank is left inside the job. The run is restarted on the same nodes, with all its
    /// ranks.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn when_nobody_stands_by_the_run_is_started_again() {
        let lab = lab(5, 0);
        let faults = "1.1@iteration:1:20:kill,1.2@iteration:2:10:kill";
        let end = lab.in_place("run").faults(faults).start().end();
        restarted(&lab, &end, &["n1", "n2", "n3", "n4", "n5"]);
        assert!(end.errors.contains("cannot be recovered in place"), "{}", end.told());
    }

    /// Each node has two ranks: positions 0 and 1 on n1, 2 and 3 on n2, 4 and 5 on n3, and two spare ranks on n4. After the first
    /// loss, ranks of n3 and n4 rebuild checksums. These replace the next process column that is lost.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn ranks_of_several_nodes_make_the_checksums_that_bear_the_next_loss() {
        let lab = lab(4, 0);
        let faults = "1.1@step-end:1:20:kill,1.2@step-end:3:20:kill";
        let end = lab.with_new_checksums("run").faults(faults).start().end();
        end.passed();
        assert_eq!(end.of("launched").len(), 1, "{}", end.told());
        assert!(end.of("fault").is_empty(), "{}", end.told());
        let lost: Vec<_> =
            end.of("gone-on").into_iter().map(|event| event["lost"].clone()).collect();
        let on = |rank: usize, node: &str| serde_json::json!([{ "rank": rank, "node": node, "position": rank }]);
        assert_eq!(lost, [on(1, "n1"), on(3, "n2")], "{}", end.told());
        for words in [
            "rank 4 on n3 takes position 6; rank 6 on n4 takes position 7; the checksums take the place of process column 1",
            "the checksums take the place of process column 0",
        ] {
            assert!(end.errors.contains(words), "{words}: {}", end.told());
        }
        assert_eq!(end.errors.matches("new checksums: test 1 has").count(), 2, "{}", end.told());
        nothing_left(&lab, &end, &["n1", "n2", "n3", "n4"]);
    }

    /// With checksum columns, the loss of a whole node ends the job, and a restart begins from scratch. If the ranks continue
    /// before the loss is noticed, the test stops them before they finish.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_node_lost_under_checksums_begins_from_scratch() {
        let lab = lab(6, 1);
        let places = ["1@iteration:1:20", "1.2@iteration:0:20"];
        let run = lab.with_checksums("run").hold_each(&places);
        lab.vcluster(&["cut-off", "n2"]);
        let end = run.end();
        began_from_scratch(&lab, &end, &["n1", "n7", "n3", "n4", "n5", "n6"]);
    }
}
