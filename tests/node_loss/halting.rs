//! Tests of runs that are stopped on purpose and resumed by the same command.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::lab::{Lab, Run, wait_until};
use crate::outages::launcher_by;

/// The run is halted in every possible way, one way in each attempt, and then completed. In each attempt a rank stops until the
/// request has arrived.
#[test]
#[ignore = "needs root and network namespaces"]
fn the_benchmark_is_halted_in_every_way_and_goes_on() {
    let lab = Lab::up(4, 0);
    let ways = ["halt", "after-checkpoint", "at", "signal", "limit"];
    let mut boundary = 0;
    for (number, way) in ways.iter().enumerate() {
        let limit: &[&str] = if *way == "limit" { &["--time-limit", "45s"] } else { &[] };
        let place = format!("{}@iteration:1:6", number + 1);
        let mut run = lab.benchmark("run").flags(limit).hold(&place);
        match *way {
            "halt" => run.halt(&[]),
            "after-checkpoint" => run.halt(&["--after-checkpoint"]),
            "at" => run.halt(&["--at", "+1s"]),
            "signal" => run.signal(Signal::SIGTERM),
            _ => {}
        }
        let asked = run.wait_for_halt(number + 1);
        assert_eq!(asked["after_checkpoint"], *way == "after-checkpoint");
        lab.vcluster(&["resume", "n2", "skt-hpl"]);
        let end = run.end();
        assert_eq!(end.code, Some(75), "{way}: {}", end.told());
        assert!(end.errors.contains("the same command"), "{way}: {}", end.told());
        assert!(end.of("fault").is_empty(), "{way}: {}", end.told());
        assert!(lab.memory_of("n1").contains(".p0."), "{way}: no memory was kept");
        if number > 0 {
            let from = end.resumed_at();
            assert!(from.len() == 1 && from[0] > boundary, "{way}: {}", end.told());
            boundary = from[0];
        }
    }
    let end = lab.benchmark("run").start().end();
    assert!(end.of("fault").is_empty(), "{}", end.told());
    assert!(end.resumed_at().len() == 1 && end.resumed_at()[0] > boundary, "{}", end.told());
    assert!(end.rebuilt().is_empty(), "{}", end.told());
    lab.same_x("run", &end);
}

/// A setting is changed between a halt and the next start. The benchmark refuses to resume and keeps its memory. The supervisor
/// reports neither a bug nor a fault of a node.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_refusal_of_the_benchmark_after_a_halt_is_no_nodes_fault() {
    let lab = Lab::up(4, 1);
    let mut run = lab.benchmark("run").hold("1@iteration:1:6");
    run.halt(&[]);
    run.wait_for_halt(1);
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    assert_eq!(run.end().code, Some(75));
    let other = lab.benchmark("run").flags(&["--export", "SKT_SEED=5"]).start().end();
    assert_eq!(other.code, Some(4), "{}", other.told());
    let said = &other.errors;
    assert!(said.contains("refuses to resume (status 1)"), "{}", other.told());
    assert!(
        said.contains("has memory of another run") && !said.contains("a bug"),
        "{}",
        other.told()
    );
    assert!(other.of("fault").iter().all(|fault| fault["node"].is_null()), "{}", other.told());
    let end = lab.benchmark("run").start().end();
    assert_eq!(end.resumed_at().len(), 1, "{}", end.told());
    assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"]);
    lab.same_x("run", &end);
}

/// A closed terminal may cause two hang-up signals, from the kernel and from the shell. They count as one request to stop.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_terminal_that_closes_is_one_request() {
    let lab = Lab::up(4, 0);
    let mut run = lab.benchmark("run").hold("1@iteration:1:6");
    run.signal(Signal::SIGHUP);
    run.wait_for("halt-requested", 1);
    run.signal(Signal::SIGHUP);
    std::thread::sleep(Duration::from_secs(2));
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    let end = run.end();
    assert_eq!(end.code, Some(75), "{}", end.told());
    assert!(!end.errors.contains("at once"), "{}", end.told());
    // The last save may end before a heartbeat reports it.
    assert!(end.told().contains("stopped as asked, after a save"), "{}", end.told());
    let end = lab.benchmark("run").start().end();
    assert_eq!(end.resumed_at().len(), 1, "{}", end.told());
    lab.same_x("run", &end);
}

/// SIGUSR1 and SIGUSR2, with which batch systems warn before the end of a job, halt the run after a save. A repeated warning does
/// not stop it at once.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_batch_systems_warning_is_a_request() {
    let lab = Lab::up(4, 0);
    for (number, signal) in [Signal::SIGUSR1, Signal::SIGUSR2].into_iter().enumerate() {
        let place = format!("{}@iteration:1:6", number + 1);
        let mut run = lab.benchmark("run").hold(&place);
        run.signal(signal);
        run.wait_for("halt-requested", number + 1);
        std::thread::sleep(Duration::from_millis(1200));
        run.signal(signal);
        lab.vcluster(&["resume", "n2", "skt-hpl"]);
        let end = run.end();
        assert_eq!(end.code, Some(75), "{signal}: {}", end.told());
        assert!(!end.errors.contains("at once"), "{signal}: {}", end.told());
        assert!(end.told().contains("stopped as asked, after a save"), "{}", end.told());
    }
}

/// Ctrl-C sends SIGINT to all processes in the foreground of a terminal. Only the supervisor reacts; no connection to an agent
/// ends.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_ctrl_c_ends_no_connection() {
    let lab = Lab::up(4, 0);
    let mut run = lab.benchmark("run").in_its_own_group().hold("1@iteration:1:6");
    run.signal_group(Signal::SIGINT);
    run.wait_for("halt-requested", 1);
    // If an agent's connection had ended, the supervisor would connect again within this time.
    std::thread::sleep(Duration::from_secs(2));
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    let end = run.end();
    assert_eq!(end.code, Some(75), "{}", end.told());
    assert!(end.of("agent-restarted").is_empty(), "{}", end.told());
    assert!(end.told().contains("stopped as asked, after a save"), "{}", end.told());
}

/// Under `nohup`, a run continues after its terminal closes.
#[test]
#[ignore = "needs root and network namespaces"]
fn under_nohup_a_terminal_that_closes_stops_nothing() {
    let lab = Lab::up(4, 0);
    let mut run = lab.benchmark("run").ignoring(Signal::SIGHUP).hold("1@iteration:1:6");
    run.signal(Signal::SIGHUP);
    std::thread::sleep(Duration::from_millis(500));
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    let end = run.end();
    end.passed();
    assert!(end.of("halt-requested").is_empty(), "{}", end.told());
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// After a halt, the run ends although the launcher hangs. The timeout for launchers at the end of a job is shorter than the
    /// timeout for ranks without progress.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_halt_is_over_when_all_ranks_are_although_the_launcher_stays() {
        let lab = Lab::up(4, 0);
        let stays = "LAUNCH \"$@\"; c=$?; [ \"${SKT_ATTEMPT:-0}\" = 0 ] || sleep 600; exit $c";
        let launcher = launcher_by(&lab, stays);
        let flags = ["--launcher-program", launcher.to_str().unwrap()];
        for (number, way) in [&[][..], &["--after-checkpoint"]].into_iter().enumerate() {
            let place = &format!("{}@iteration:1:6", number + 1);
            let mut run = lab.benchmark("run").flags(&flags).hold(place);
            run.halt(way);
            // The run must not end before its supervisor receives the request.
            run.wait_for_halt(number + 1);
            lab.vcluster(&["resume", "n2", "skt-hpl"]);
            let asked = Instant::now();
            let end = run.end();
            assert_eq!(end.code, Some(75), "{}", end.told());
            assert!(end.errors.contains("did not end by themselves"), "{}", end.told());
            assert!(end.of("fault").is_empty(), "{}", end.told());
            assert!(asked.elapsed() < Duration::from_secs(60), "{:?}", asked.elapsed());
        }
        let end = lab.benchmark("run").start().end();
        lab.same_x("run", &end);
    }

    /// After all ranks have halted, a failure of the launcher is not a fault.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_launcher_that_fails_after_the_halt_is_no_fault() {
        let lab = Lab::up(4, 0);
        let fails = "LAUNCH \"$@\"; c=$?; [ \"${SKT_ATTEMPT:-0}\" = 0 ] || exit 1; exit $c";
        let launcher = launcher_by(&lab, fails);
        let flags = ["--launcher-program", launcher.to_str().unwrap()];
        let mut run = lab.benchmark("run").flags(&flags).hold("1@iteration:1:6");
        run.halt(&[]);
        run.wait_for_halt(1);
        lab.vcluster(&["resume", "n2", "skt-hpl"]);
        let end = run.end();
        assert_eq!(end.code, Some(75), "{}", end.told());
        assert!(end.of("fault").is_empty(), "{}", end.told());
        let end = lab.benchmark("run").start().end();
        assert_eq!(end.resumed_at().len(), 1, "{}", end.told());
        lab.same_x("run", &end);
    }

    /// A halt before the first save stops the run too. The next start begins from scratch.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_halt_while_it_starts() {
        let lab = Lab::up(4, 0);
        // The supervisor sends the request every second until the ranks handle signals. One rank is stopped so that the run does
        // not end before.
        let place = "1@generate-begin:1:1";
        let mut run = lab.benchmark("run").faults(&format!("{place}:stop")).start();
        run.wait_for("launched", 1);
        run.halt(&[]);
        run.await_fault(place);
        std::thread::sleep(Duration::from_secs(3));
        lab.vcluster(&["resume", "n2", "skt-hpl"]);
        let end = run.end();
        assert_eq!(end.code, Some(75), "{}", end.told());
        let end = lab.benchmark("run").start().end();
        lab.same_x("run", &end);
    }

    /// `halt --after-checkpoint` waits for the next regular save, even longer than the stop timeout (`--stop-timeout`).
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_halt_after_the_next_save_waits_for_it() {
        let lab = Lab::up(4, 0);
        let timeout = ["--stop-timeout", "3s"];
        let mut run = lab.benchmark("run").flags(&timeout).hold("1@iteration:1:6");
        run.halt(&["--after-checkpoint"]);
        run.wait_for("halt-requested", 1);
        std::thread::sleep(Duration::from_secs(5));
        lab.vcluster(&["resume", "n2", "skt-hpl"]);
        let end = run.end();
        assert_eq!(end.code, Some(75), "{}", end.told());
        assert!(end.told().contains("stopped as asked, after a save"), "{}", end.told());
        let end = lab.benchmark("run").start().end();
        lab.same_x("run", &end);
        assert_eq!(end.resumed_at(), [8], "{}", end.told());
    }

    /// On Ctrl-C during a takeover of a healthy job, the new supervisor completes the takeover. The job saves before it stops.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_ctrl_c_during_a_takeover_costs_nothing() {
        let lab = Lab::up(4, 0);
        lab.benchmark("run").hold("1@iteration:1:6").kill_supervisor();
        let called = lab.path("called");
        let first = format!(": >{}; sleep 4", called.display());
        let mut run = lab.benchmark("run").reached_after(&lab, &first).in_its_own_group().start();
        wait_until("a node is called", || called.exists());
        std::thread::sleep(Duration::from_millis(500));
        run.signal_group(Signal::SIGINT);
        assert_eq!(run.wait_for("took-over", 1)["adopted"], true, "{}", run.told());
        // The nodes receive the request to stop after the takeover.
        std::thread::sleep(Duration::from_secs(3));
        lab.vcluster(&["resume", "n2", "skt-hpl"]);
        let end = run.end();
        assert_eq!(end.code, Some(75), "{}", end.told());
        assert!(end.of("node-lost").is_empty(), "{}", end.told());
        assert!(end.told().contains("stopped as asked, after a save"), "{}", end.told());
        let end = lab.benchmark("run").start().end();
        assert_eq!(end.resumed_at().len(), 1, "{}", end.told());
        lab.same_x("run", &end);
    }

    /// If a node is lost between a halt and the next start, a spare replaces it and its position is rebuilt. The run then
    /// completes.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_halted_run_has_lost_a_node_meanwhile() {
        let lab = Lab::up(4, 1);
        let mut run = lab.benchmark("run").hold("1@iteration:1:20");
        run.signal(Signal::SIGTERM);
        run.wait_for_halt(1);
        lab.vcluster(&["resume", "n2", "skt-hpl"]);
        assert_eq!(run.end().code, Some(75));
        lab.vcluster(&["cut-off", "n4"]);
        let end = lab.benchmark("run").start().end();
        assert_eq!(end.hosts(), ["n1", "n2", "n3", "n5"]);
        lab.same_x("run", &end);
        assert_eq!(end.rebuilt(), [[3]], "{}", end.told());
    }

    /// A halt is obeyed at once while the supervisor waits for the next attempt. All later attempts fail, so this wait grows.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_halt_is_not_kept_waiting_by_the_next_attempt() {
        let lab = Lab::up(4, 0);
        let fails = "[ \"${SKT_ATTEMPT:-0}\" -lt 2 ] || exit 1; LAUNCH \"$@\"";
        let launcher = launcher_by(&lab, fails);
        let flags = ["--launcher-program", launcher.to_str().unwrap()];
        let mut run = lab.benchmark("run").flags(&flags).hang_each(&["1@iteration:1:20"]);
        run.kill_launcher();
        let paused = |run: &Run| {
            let all = run.events();
            all.last().filter(|e| e["event"] == "back-off").and_then(|e| e["delay_ms"].as_u64())
        };
        wait_until("the next attempt is far off", || paused(&run).is_some_and(|ms| ms >= 8000));
        let delay = Duration::from_millis(paused(&run).unwrap());
        let asked = Instant::now();
        run.signal(Signal::SIGTERM);
        run.wait_for("halt-requested", 1);
        let told = asked.elapsed();
        let end = run.end();
        assert_eq!(end.code, Some(75), "{}", end.told());
        assert!(told < delay / 2, "it was told after {told:?} of {delay:?}: {}", end.told());
        let end = lab.benchmark("run").start().end();
        lab.same_x("run", &end);
    }

    /// A halt that waits for the next regular save is brought forward by a second request, of any kind.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_halt_that_waits_for_a_save_is_brought_forward() {
        let lab = Lab::up(4, 0);
        for (number, way) in ["halt", "signal", "limit"].iter().enumerate() {
            let limit: &[&str] = if *way == "limit" { &["--time-limit", "45s"] } else { &[] };
            let place = format!("{}@iteration:1:6", number + 1);
            // No regular save follows before the run would end.
            let plan = lab.benchmark("run").flags(limit).saves_every("100");
            let mut run = plan.hold(&place);
            let asked = 2 * number;
            run.halt(&["--after-checkpoint"]);
            assert_eq!(run.wait_for("halt-requested", asked + 1)["after_checkpoint"], true);
            match *way {
                "halt" => run.halt(&[]),
                "signal" => run.signal(Signal::SIGTERM),
                _ => {}
            }
            assert_eq!(run.wait_for_halt(asked + 2)["after_checkpoint"], false, "{way}");
            lab.vcluster(&["resume", "n2", "skt-hpl"]);
            let end = run.end();
            assert_eq!(end.code, Some(75), "{way}: {}", end.told());
            assert!(end.told().contains("stopped as asked, after a save"), "{way}: {}", end.told());
        }
    }
}
