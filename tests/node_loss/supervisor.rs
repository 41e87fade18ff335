//! Tests of the loss of the supervisor or the launcher, and of nodes that are lost while no supervisor runs.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::lab::{Lab, wait_until};
use skt_hpl::supervise::talk::processes::is_alive;

#[test]
#[ignore = "needs root and network namespaces"]
fn a_successor_takes_the_running_job_over() {
    let lab = Lab::up(4, 1);
    let run = lab.benchmark("run").hold("1@iteration:1:20");
    run.kill_supervisor();
    let mut run = lab.benchmark("run").start();
    assert_eq!(run.wait_for("took-over", 1)["adopted"], true);
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    let end = run.end();
    assert!(end.of("fault").is_empty(), "{}", end.told());
    assert_eq!(end.of("launched").len(), 1, "the job was to go on undisturbed");
    lab.same_x("run", &end);
}

/// A user stops a new supervisor that reaches no node yet. No node is lost, and the same command resumes later.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_successor_that_reaches_nobody_can_be_stopped() {
    let lab = Lab::up(4, 1);
    lab.benchmark("run").hold("1@iteration:1:20").kill_supervisor();
    let mut run = lab.benchmark("run").reached_after(&lab, "exit 255").start();
    let supervised = format!("supervised by process {} ", run.pid());
    wait_until("the nodes are being called", || {
        let told = lab.status("run");
        told.contains("starting") && told.contains(&supervised)
    });
    run.signal(Signal::SIGINT);
    run.wait_for_halt(1);
    assert!(!run.over(), "the job could have saved: {}", run.told());
    run.signal(Signal::SIGINT);
    let end = run.end();
    assert_eq!(end.code, Some(75), "{}", end.told());
    assert!(end.of("node-lost").is_empty(), "{}", end.told());
    let end = lab.benchmark("run").start().end();
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"], "{}", end.told());
    lab.same_x("run", &end);
}

/// After a loss stops the run, a second command adds the spare n5, which replaces the lost node. Then the supervisor dies. The
/// first command, which does not name n5, takes the run over and keeps n5.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_node_that_an_earlier_command_added_is_known_to_the_successor() {
    let lab = Lab::up(4, 2);
    lab.fill_memory("n6");
    let at_first = || {
        let plan = lab.benchmark("run").flags(&["--no-doubling"]);
        lab.list("spares", 6, 6, 1);
        plan
    };
    let run = at_first().hold("1@iteration:1:20");
    lab.vcluster(&["cut-off", "n3"]);
    let end = run.end();
    assert_eq!(end.code, Some(75), "{}", end.told());
    let run = lab.benchmark("run").flags(&["--no-doubling"]).hold("2@iteration:1:10");
    run.kill_supervisor();
    let mut run = at_first().start();
    assert_eq!(run.wait_for("took-over", 2)["adopted"], true, "{}", run.told());
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    let end = run.end();
    end.passed();
    assert_eq!(end.hosts(), ["n1", "n2", "n5", "n4"], "{}", end.told());
    assert_eq!(end.of("launched").len(), 2, "{}", end.told());
    lab.same_x("run", &end);
}

/// Kills the supervisor, lets the run end without one, and loses `nodes` by the `vcluster` command `way`. Asserts that the next
/// supervisor reports the result and does not compute again.
fn over_when_nobody_watched(way: &str, nodes: &[&str]) {
    let lab = Lab::up(4, 0);
    let run = lab.benchmark("run").hold("1@iteration:1:20");
    let left = run.exit_file(1);
    run.kill_supervisor();
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    wait_until("the launcher has ended", || left.exists());
    for node in nodes {
        lab.vcluster(&[way, node]);
    }
    let end = lab.benchmark("run").start().end();
    assert_eq!(end.of("took-over")[0]["adopted"], false);
    assert_eq!(end.of("launched").len(), 1, "{}", end.told());
    lab.same_x("run", &end);
}

/// The run has ended without a supervisor, and one of its nodes is off. The next supervisor needs no node.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_run_that_ended_while_nobody_watched_is_over() {
    over_when_nobody_watched("cut-off", &["n3"]);
}

/// The supervisor is killed twice while its machine refuses to start the next attempt. Each new supervisor tries again, and the
/// run resumes from memory.
#[test]
#[ignore = "needs root and network namespaces"]
fn killed_while_a_launch_is_refused() {
    let lab = Lab::up(4, 1);
    let mut run = lab.benchmark("run").hold("1@iteration:1:20");
    let in_the_way = run.file("hosts.2");
    std::fs::create_dir(&in_the_way).unwrap();
    lab.vcluster(&["cut-off", "n3"]);
    for _ in 0..2 {
        run.wait_for_words("it is tried again");
        run.kill_supervisor();
        run = lab.benchmark("run").start();
    }
    run.wait_for_words("it is tried again");
    std::fs::remove_dir(&in_the_way).unwrap();
    let end = run.end();
    let adopted: Vec<_> = end.of("took-over").iter().map(|e| e["adopted"].clone()).collect();
    assert_eq!(adopted, [false; 2], "{}", end.told());
    assert_eq!(end.hosts(), ["n1", "n2", "n5", "n4"], "{}", end.told());
    assert_eq!((end.of("launched").len(), end.of("fault").len()), (2, 1), "{}", end.told());
    assert_eq!(end.rebuilt(), [[2]], "{}", end.told());
    lab.same_x("run", &end);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_killed_launcher_is_started_again() {
    let lab = Lab::up(4, 1);
    let mut run = lab.benchmark("run").hang_each(&["1@iteration:1:20"]);
    run.kill_launcher();
    let end = run.end();
    // The ranks end a second after the launcher. If the supervisor was delayed meanwhile, it sees the end of the ranks first.
    end.survived(&["launcher-gone", "rank-died"]);
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"]);
    assert_eq!(end.resumed_at().len(), 1, "{}", end.told());
    lab.same_x("run", &end);
    // Files in /tmp that the launcher's daemons shared with the ranks are removed too.
    wait_until("/tmp is tidy", || lab.on("n1", "ls /tmp/ompi.* 2>/dev/null || true").is_empty());
}

/// `--new` ends the processes of an old run that has no supervisor, and removes its memory. It names the node that cannot be
/// reached.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_run_that_is_given_up_leaves_nothing_behind() {
    let lab = Lab::up(4, 1);
    let mut run = lab.benchmark("run").hold("1@iteration:1:20");
    let launcher = run.launcher();
    run.kill_supervisor();
    assert_eq!(lab.ranks_on("n1", "skt-hpl"), 1);
    lab.vcluster(&["off", "n4"]);
    let run = lab.benchmark("run").flags(&["--new"]).hold("1@iteration:1:20");
    assert!(!is_alive(launcher), "the old launcher is still there");
    for node in ["n1", "n2", "n3"] {
        assert_eq!(lab.ranks_on(node, "skt-hpl"), 1, "the new run's and no other");
    }
    let told = run.told();
    let line = |node: &str| {
        let begin = format!("--new: {node}: ");
        told.lines().find_map(|line| line.split_once(&begin)).expect(node).1.to_owned()
    };
    for node in ["n1", "n2", "n3"] {
        let text = line(node);
        let bytes = text.split(" bytes of its memory removed").next().unwrap();
        let bytes: u64 = bytes.rsplit(' ').next().unwrap().parse().expect(&text);
        assert!(bytes > 10 << 20, "{text}");
    }
    let gone = line("n4");
    assert!(gone.contains("stay there: skt-hpl clean --job"), "{gone}");
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    let end = run.end();
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n5"]);
    assert!(end.resumed_at().is_empty(), "{}", end.told());
    lab.same_x("run", &end);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_second_supervisor_is_refused() {
    let lab = Lab::up(3, 0);
    let mut run = lab.stand_in("run", 300).start();
    run.computing();
    for flags in [&[][..], &["--new"]] {
        let second = lab.stand_in("run", 300).flags(flags).start_second(&run).end();
        assert_eq!(second.code, Some(6));
        assert!(second.errors.contains("another supervisor"), "{}", second.told());
        assert!(second.errors.contains("skt-hpl halt"), "{}", second.told());
    }
    run.end().passed();
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// One login of the first supervisor fails, and one login of the next supervisor, although the node is well. No node is lost.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_login_that_fails_once_loses_no_node() {
        let lab = Lab::up(4, 1);
        let failing_once = |name: &str| {
            let once = lab.path(name).display().to_string();
            format!("case \" $* \" in *' n3 '*) ! mkdir {once} 2>/dev/null || exit 255 ;; esac")
        };
        let plan = lab.benchmark("run").reached_after(&lab, &failing_once("first"));
        plan.hold("1@iteration:1:20").kill_supervisor();
        let plan = lab.benchmark("run").reached_after(&lab, &failing_once("second"));
        let mut run = plan.start();
        assert_eq!(run.wait_for("took-over", 1)["adopted"], true, "{}", run.told());
        lab.vcluster(&["resume", "n2", "skt-hpl"]);
        let end = run.end();
        let both = ["first", "second"].map(|name| lab.path(name).exists());
        assert_eq!(both, [true; 2], "no login failed: {}", end.told());
        assert!(end.of("node-lost").is_empty() && end.of("replaced").is_empty(), "{}", end.told());
        assert_eq!(end.of("launched").len(), 1, "{}", end.told());
        lab.same_x("run", &end);
    }

    /// All logins of a new supervisor fail for longer than the limit for a node's first answer, as without name resolution. It
    /// leaves the job alone, and takes it over when the logins succeed.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_successor_that_reaches_nobody_leaves_the_job_alone() {
        let lab = Lab::up(4, 1);
        let down = lab.path("down");
        // Stopped ranks make no progress. Agents without a supervisor would end them after the default orphan timeout of a
        // minute.
        let plan = || {
            let first = format!("[ ! -e {} ] || exit 255", down.display());
            lab.benchmark("run").flags(&["--orphan-timeout", "200s"]).reached_after(&lab, &first)
        };
        plan().hold("1@iteration:1:20").kill_supervisor();
        std::fs::write(&down, "").unwrap();
        let mut run = plan().start();
        run.wait_for("alone", 1);
        std::thread::sleep(Duration::from_secs(2));
        std::fs::remove_file(&down).unwrap();
        assert_eq!(run.wait_for("took-over", 1)["adopted"], true, "{}", run.told());
        lab.vcluster(&["resume", "n2", "skt-hpl"]);
        let end = run.end();
        assert!(end.of("node-lost").is_empty() && end.of("fault").is_empty(), "{}", end.told());
        assert_eq!(end.of("together").len(), 1, "{}", end.told());
        assert_eq!(end.of("launched").len(), 1, "{}", end.told());
        lab.same_x("run", &end);
    }

    /// A new supervisor reaches one node, which then becomes unresponsive like all others. It concludes that it is itself cut
    /// off, and leaves the job alone.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_successor_whose_only_node_becomes_unresponsive_leaves_the_job_alone() {
        let lab = Lab::up(4, 0);
        let down = lab.path("down");
        let plan = || {
            let first = format!(
                "case \" $* \" in *' n2 '*) ;; *) [ ! -e {} ] || exit 255 ;; esac",
                down.display()
            );
            lab.benchmark("run").flags(&["--orphan-timeout", "200s"]).reached_after(&lab, &first)
        };
        plan().hold("1@iteration:1:20").kill_supervisor();
        std::fs::write(&down, "").unwrap();
        let mut run = plan().start();
        let supervised = format!("supervised by process {} ", run.pid());
        wait_until("n2 has answered", || {
            let told = lab.status("run");
            told.contains(&supervised) && told.contains(" 3 being called")
        });
        lab.vcluster(&["cut", "uplink", "n2"]);
        run.wait_for("alone", 1);
        std::thread::sleep(Duration::from_secs(2));
        std::fs::remove_file(&down).unwrap();
        lab.vcluster(&["join", "uplink", "n2"]);
        assert_eq!(run.wait_for("took-over", 1)["adopted"], true, "{}", run.told());
        lab.vcluster(&["resume", "n2", "skt-hpl"]);
        let end = run.end();
        assert!(end.of("node-lost").is_empty() && end.of("fault").is_empty(), "{}", end.told());
        assert_eq!(end.of("together").len(), 1, "{}", end.told());
        assert_eq!(end.of("launched").len(), 1, "{}", end.told());
        lab.same_x("run", &end);
    }

    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_node_lost_while_nobody_watched_is_replaced_by_the_successor() {
        let lab = Lab::up(4, 1);
        let run = lab.benchmark("run").hold("1@iteration:1:20");
        run.kill_supervisor();
        lab.vcluster(&["cut-off", "n3"]);
        let end = lab.benchmark("run").start().end();
        assert_eq!(end.of("took-over")[0]["adopted"], false);
        assert_eq!(end.hosts(), ["n1", "n2", "n5", "n4"]);
        lab.same_x("run", &end);
        assert_eq!(end.rebuilt(), [[2]], "{}", end.told());
    }

    /// No node exists any more after the run has ended. The next supervisor reports the result without waiting for nodes.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_run_that_ended_while_nobody_watched_is_over_though_no_node_answers() {
        over_when_nobody_watched("off", &["n1", "n2", "n3", "n4"]);
    }

    /// The supervisor dies after all results are reported, before it has ended the remaining processes. The next supervisor
    /// reports the result.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn an_end_that_was_told_is_not_forgotten_by_the_successor() {
        let lab = Lab::up(4, 0);
        let mut run = lab.benchmark("run").hold("1@told:2:1");
        run.kill_launcher();
        run.kill_supervisor();
        lab.vcluster(&["off", "n2"]);
        let end = lab.benchmark("run").start().end();
        assert_eq!(end.of("took-over")[0]["adopted"], false);
        assert_eq!(end.of("launched").len(), 1, "{}", end.told());
        lab.same_x("run", &end);
        assert!(lab.memory_of("n1").is_empty(), "{}", lab.memory_of("n1"));
    }

    /// The supervisor is killed at each step of a recovery. Its journal is enough for the next supervisor to continue.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn killed_again_and_again() {
        let lab = Lab::up(4, 1);
        let (first, second) = ("1@iteration:1:20", "2@iteration:3:10");
        let mut run = lab.benchmark("run").hold_each(&[first, second]);
        lab.vcluster(&["cut-off", "n2"]);
        for (number, (event, nth)) in [("fault", 1), ("launched", 2)].into_iter().enumerate() {
            run.wait_for(event, nth);
            // The supervisor may have taken a further step meanwhile.
            run.kill_supervisor();
            run = lab.benchmark("run").faults(&format!("{second}:stop")).start();
            run.wait_for("took-over", number + 1);
        }
        run.await_fault(second);
        run.kill_supervisor();
        let mut run = lab.benchmark("run").start();
        assert_eq!(run.wait_for("took-over", 3)["adopted"], true);
        lab.vcluster(&["resume", "n4", "skt-hpl"]);
        let end = run.end();
        lab.same_x("run", &end);
        assert_eq!(end.hosts(), ["n1", "n5", "n3", "n4"]);
        assert_eq!(end.of("launched").len(), 2, "{}", end.told());
    }

    /// The supervisor is killed while its logins fail and are repeated: once before the launch, and twice during a takeover. No
    /// node is lost, and the job continues undisturbed.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn killed_while_nodes_are_called_in_vain() {
        let lab = Lab::up(4, 1);
        let (down, calls) = (lab.path("down"), lab.path("calls"));
        let plan = || {
            let fails = format!(
                "[ ! -e {} ] || {{ echo >>{}; sleep 2; exit 255; }}",
                down.display(),
                calls.display()
            );
            // Stopped ranks make no progress. Agents without a supervisor would end them after the default orphan timeout of a
            // minute.
            lab.benchmark("run").flags(&["--orphan-timeout", "200s"]).reached_after(&lab, &fails)
        };
        let killed_when_all_are_called_again = || {
            std::fs::write(&down, "").unwrap();
            let _ = std::fs::remove_file(&calls);
            let mut run = plan().start();
            wait_until("all nodes are called a second time", || {
                let made = std::fs::read_to_string(&calls).unwrap_or_default();
                made.lines().count() >= 10
            });
            assert!(!run.over(), "{}", run.told());
            run.kill_supervisor();
            std::fs::remove_file(&down).unwrap();
        };
        killed_when_all_are_called_again();
        plan().hold("1@iteration:1:20").kill_supervisor();
        killed_when_all_are_called_again();
        killed_when_all_are_called_again();
        let mut run = plan().start();
        assert_eq!(run.wait_for("took-over", 2)["adopted"], true, "{}", run.told());
        assert_eq!(run.wait_for("took-over", 1)["adopted"], false, "{}", run.told());
        lab.vcluster(&["resume", "n2", "skt-hpl"]);
        let end = run.end();
        assert!(end.of("node-lost").is_empty() && end.of("fault").is_empty(), "{}", end.told());
        assert_eq!(end.of("launched").len(), 1, "{}", end.told());
        assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"], "{}", end.told());
        lab.same_x("run", &end);
    }

    #[test]
    #[ignore = "needs root and network namespaces"]
    fn launcher_and_supervisor_at_once() {
        let lab = Lab::up(4, 1);
        let mut run = lab.benchmark("run").hang_each(&["1@iteration:1:20"]);
        run.kill_launcher();
        run.kill_supervisor();
        let end = lab.benchmark("run").start().end();
        assert_eq!(end.resumed_at().len(), 1, "{}", end.told());
        lab.same_x("run", &end);
    }
}
