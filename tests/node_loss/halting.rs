//! Runs that are stopped on purpose, and resumed by the same command.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::lab::{Lab, Run, wait_until};
use crate::outages::launcher_by;

/// A run of the benchmark that is stopped in every possible way, one attempt after the other. Each time a rank waits until the
/// request is there.
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

/// A setting is changed before the run resumes: the benchmark refuses, and keeps its memory. That is no bug, nor is any node to
/// blame.
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

/// A terminal that closes may send two signals in a row: from the kernel and from the shell.
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
    // The last save may be over before a heartbeat reports it.
    assert!(end.told().contains("stopped as asked, after a save"), "{}", end.told());
    let end = lab.benchmark("run").start().end();
    assert_eq!(end.resumed_at().len(), 1, "{}", end.told());
    lab.same_x("run", &end);
}

/// Signals by which batch systems warn before a job's end. They may warn more than once; that does not mean at once.
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

/// Ctrl-C goes to all processes in a terminal's foreground, and is meant for the supervisor alone.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_ctrl_c_ends_no_connection() {
    let lab = Lab::up(4, 0);
    let mut run = lab.benchmark("run").in_its_own_group().hold("1@iteration:1:6");
    run.signal_group(Signal::SIGINT);
    run.wait_for("halt-requested", 1);
    // Long enough for an agent to be called again.
    std::thread::sleep(Duration::from_secs(2));
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    let end = run.end();
    assert_eq!(end.code, Some(75), "{}", end.told());
    assert!(end.of("agent-restarted").is_empty(), "{}", end.told());
    assert!(end.told().contains("stopped as asked, after a save"), "{}", end.told());
}

/// Started with `nohup`, it is to outlive the terminal.
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

/// Left to `scripts/test.sh --all`: the simulation shows these losses, or a test above shows the same of another one.
mod rest {
    use super::*;

    /// MPI libraries have been seen to hang at the end of a job: the timeout for that is shorter than for ranks without progress.
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
            // Otherwise the run might be over before its supervisor receives the request.
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

    /// The status of a launcher after all ranks have halted does not count.
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

    /// Before there is anything to save, the run still stops, and can be begun again.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_halt_while_it_starts() {
        let lab = Lab::up(4, 0);
        // Ranks receive the request every second until they listen, and one of them waits for that: all of it may take less.
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

    /// The next regular save may come later than saving and stopping may take.
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

    /// Ctrl-C while a successor calls the nodes of a healthy job: the job is taken over, and saves before it stops.
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
        // The nodes receive the request to stop after that.
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

    /// It does not end while the memory of a lost node is still being rebuilt.
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

    /// Every later attempt fails, and the next one waits longer and longer.
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

    /// A user who does not want to wait for that save any more asks again, in any way.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_halt_that_waits_for_a_save_is_brought_forward() {
        let lab = Lab::up(4, 0);
        for (number, way) in ["halt", "signal", "limit"].iter().enumerate() {
            let limit: &[&str] = if *way == "limit" { &["--time-limit", "45s"] } else { &[] };
            let place = format!("{}@iteration:1:6", number + 1);
            // The next regular save is after the run's end.
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
