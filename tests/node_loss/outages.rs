//! Tests of outages that are no node's fault: the supervisor is cut off, stopped, or has no room on its disk. The run continues,
//! no node is given up, and supervision resumes afterwards. Other tests lose nodes while MPI starts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use skt_hpl::supervise::remember::folder::read_whole;
use skt_hpl::supervise::remember::journal::parse;
use skt_hpl::supervise::start::launcher::Launcher;
use skt_hpl::supervise::tell::status::Status;

use crate::lab::{Lab, Run, Stall, launcher, wait_until};

/// Makes a launcher that runs the shell commands `first` before it launches. Returns its path.
fn launcher_after(lab: &Lab, first: &str) -> PathBuf {
    launcher_by(lab, &format!("{first}\nexec LAUNCH \"$@\""))
}

/// Makes a launcher that is a shell script of `words`, in which `LAUNCH` stands for the real launcher. Returns its path.
pub fn launcher_by(lab: &Lab, words: &str) -> PathBuf {
    let path = lab.path("launcher");
    let real = launcher()
        .programs()
        .iter()
        .find_map(|name| {
            std::env::split_paths(&std::env::var_os("PATH")?)
                .map(|folder| folder.join(name))
                .find(|path| path.is_file())
        })
        .expect("the launcher is in PATH");
    let script = format!("#!/bin/sh\n{words}\n").replace("LAUNCH", &real.display().to_string());
    std::fs::write(&path, script).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Makes a launcher that waits until the file `go` exists, in attempt `from` and later ones. Returns its path.
fn waiting_launcher(lab: &Lab, from: u32, go: &Path) -> PathBuf {
    let wait = format!(
        "while [ \"$SKT_ATTEMPT\" -ge {from} ] && [ ! -e {} ]; do sleep 0.05; done",
        go.display()
    );
    launcher_after(lab, &wait)
}

/// MPI sometimes fails to start for no lasting reason. If the trial before the run fails once, it is repeated, and no node is
/// blamed.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_trial_that_fails_once_is_no_nodes_fault() {
    let lab = Lab::up(4, 1);
    let once = lab.path("once");
    let fails = format!(
        "[ \"$SKT_ATTEMPT\" != 0 ] || ! mkdir {} 2>&- || {{ echo an accident >&2; exit 1; }}",
        once.display()
    );
    let launcher = launcher_after(&lab, &fails);
    let flags = ["--launcher-program", launcher.to_str().unwrap()];
    let end = lab.benchmark("run").flags(&flags).start().end();
    assert!(once.exists(), "the trial did not fail: {}", end.told());
    end.passed();
    assert!(end.errors.contains("an accident"), "{}", end.told());
    assert!(end.errors.contains("the trial is repeated"), "{}", end.told());
    assert!(!end.errors.contains("cannot be used"), "{}", end.told());
}

/// The trial of MPI before the run fails because of spare n5, but names no node. So the supervisor tries subsets of the nodes.
/// During this search n1, which is in all trials, is lost. The other spare is not blamed for this loss, and replaces n1.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_node_lost_while_a_culprit_is_searched_is_replaced() {
    let lab = Lab::up(4, 2);
    let (go, waits) = (lab.path("go"), lab.path("waits"));
    let hosts = lab.path("run.state").join("hosts.0");
    let words = format!(
        "if [ \"$SKT_ATTEMPT\" = 0 ]; then\n\
         grep -q n5 {hosts} && {{ echo an accident >&2; exit 1; }}\n\
         if ! grep -q n2 {hosts}; then touch {waits}; while [ ! -e {go} ]; do sleep 0.05; done; fi\n\
         fi",
        hosts = hosts.display(),
        waits = waits.display(),
        go = go.display()
    );
    let launcher = launcher_after(&lab, &words);
    let flags = ["--launcher-program", launcher.to_str().unwrap()];
    let mut run = lab.benchmark("run").flags(&flags).start();
    wait_until("the other spare is tried", || waits.exists());
    lab.vcluster(&["off", "n1"]);
    run.wait_for("node-lost", 1);
    std::fs::write(&go, "").unwrap();
    let end = run.end();
    end.passed();
    assert_eq!(end.hosts(), ["n6", "n2", "n3", "n4"], "{}", end.told());
    assert!(end.errors.contains("n5 cannot be used"), "{}", end.told());
    assert!(!end.errors.contains("n6 cannot be used"), "{}", end.told());
}

/// The supervisor updates the status at least every five seconds, even while logins take longer. Where a lock is not visible to
/// other machines, they see from the status that a supervisor works. The run's folder is in memory, since disks are busy with
/// other tests.
#[test]
#[ignore = "needs root and network namespaces"]
fn the_status_is_kept_whatever_the_run_is_busy_with() {
    let (lab, _in_memory) = Lab::up_after(4, 0, |folder| Small::mount(folder.join("run.state")));
    let mut run = lab.benchmark("run").reached_after(&lab, "sleep 8").start();
    let mut told = String::new();
    wait_until("it is told what happens", || {
        told = lab.status("run");
        told.contains("starting, calling nodes") && told.contains(" 4 being called")
    });
    assert!(
        told.contains("n1               called     1 rank(s)") && !told.contains("unfit"),
        "{told}"
    );
    let longest = longest_without_status(&mut run);
    run.end().passed();
    assert!(longest < Duration::from_secs(5), "{longest:?} without a word");
}

/// Returns the longest time for which the status of a run stayed unchanged before its end.
fn longest_without_status(run: &mut Run) -> Duration {
    let status = run.file("status.json");
    let (mut last, mut since, mut longest) = (None, Instant::now(), Duration::ZERO);
    while !run.over() {
        let now = read_whole::<Status>(&status).map(|status| status.updated_ms);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        longest = longest.max(since.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    longest
}

/// A small file system, mounted as a run's folder. Dropping the value unmounts it.
struct Small(PathBuf);

impl Small {
    fn mount(path: PathBuf) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        let small = Self(path);
        small.run("mount", &["-t", "tmpfs", "-o", "size=512k,mode=700", "small"]);
        small
    }
    fn run(&self, program: &str, words: &[&str]) {
        let done = Command::new(program).args(words).arg(&self.0).status();
        assert!(done.is_ok_and(|status| status.success()), "{program} {words:?}");
    }
    /// Fills the file system to the last byte.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("filler")).unwrap();
        for piece in [4096, 1] {
            while std::io::Write::write_all(&mut file, &vec![0; piece]).is_ok() {}
        }
    }
    fn make_room(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A rank dies while the disk is full, so the files of the next attempt cannot be written. The supervisor waits for room, and the
/// journal is complete afterwards.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_full_disk_is_told_and_outlived() {
    let (lab, small) = Lab::up_after(4, 0, |folder| Small::mount(folder.join("run.state")));
    let mut run = lab.benchmark("run").hang_each(&["1@iteration:1:20"]);
    small.fill();
    run.kill_launcher();
    run.wait_for_words("waiting for room");
    small.make_room();
    let end = run.end();
    end.survived(&["launcher-gone", "rank-died"]);
    assert_eq!(end.of("finished").len(), 1, "{}", end.told());
    assert_eq!(end.resumed_at().len(), 1, "{}", end.told());
    lab.same_x("run", &end);
}

/// The supervisor's machine refuses to start an attempt, and allows it later. The supervisor tries again. If starts stay refused,
/// it stops the run and keeps the memory on the nodes.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_launch_that_is_refused_is_tried_again() {
    let lab = Lab::up(4, 2);
    let mut run = lab.benchmark("run").hold_each(&["1@iteration:1:20", "2@iteration:1:10"]);
    let in_the_way = run.file("hosts.2");
    std::fs::create_dir(&in_the_way).unwrap();
    lab.vcluster(&["cut-off", "n3"]);
    run.wait_for_words("it is tried again");
    std::thread::sleep(Duration::from_secs(3));
    std::fs::remove_dir(&in_the_way).unwrap();
    run.await_fault("2@iteration:1:10");
    // This attempt began with the default start-up timeout, which is too long for a test.
    run.kill_supervisor();
    let mut run = lab.benchmark("run").flags(&["--startup-timeout", "3s"]).start();
    assert_eq!(run.wait_for("took-over", 1)["adopted"], true, "{}", run.told());
    let in_the_way = run.file("hosts.3");
    std::fs::create_dir(&in_the_way).unwrap();
    lab.vcluster(&["cut-off", "n4"]);
    let end = run.end();
    assert_eq!(end.code, Some(75), "{}", end.told());
    assert!(end.errors.contains("could not be restarted for 3 s"), "{}", end.told());
    assert!(end.errors.contains("the same command continues"), "{}", end.told());
    std::fs::remove_dir(&in_the_way).unwrap();
    let end = lab.benchmark("run").start().end();
    assert_eq!(end.hosts(), ["n1", "n2", "n5", "n6"], "{}", end.told());
    lab.same_x("run", &end);
}

/// The file system of the run's folder hangs during a launch and during the computation. Heartbeats are still received, nodes are
/// judged, and the journal is complete afterwards.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_disk_that_hangs_holds_up_only_the_next_step() {
    let lab = Lab::up(4, 1);
    let stall = Stall::new(&lab);
    let places = ["1@iteration:1:20", "2@iteration:1:30"];
    // The supervisor allows 1.5 times the usual login time for a new login. Without the delay of 3 s, this is a fraction of a
    // second, which a busy machine may exceed.
    let plan = lab.benchmark("run").with(&stall).reached_after(&lab, "sleep 3");
    let mut run = plan.hang_each(&places);
    stall.begins(&[run.file("hosts.2")]);
    run.kill_launcher();
    stall.await_access();
    lab.vcluster(&["kill", "n3", "skt-hpl"]);
    run.wait_for("agent-restarted", 1);
    stall.ends();
    run.await_fault(places[1]);
    stall.begins(&[run.file("")]);
    stall.await_access();
    lab.vcluster(&["cut-off", "n2"]);
    // The supervisor knows the fault at once, but its next step waits for the disk.
    run.wait_for_words("the disk is slow");
    stall.ends();
    let journal = run.file("events.jsonl");
    let end = run.end();
    lab.same_x("run", &end);
    assert_eq!(end.faults()[1..], ["node-unresponsive"], "{}", end.told());
    assert_eq!(end.hosts(), ["n1", "n5", "n3", "n4"], "{}", end.told());
    let (records, _) = parse(&std::fs::read(&journal).unwrap(), &journal).unwrap();
    assert_eq!(records.len(), end.events.len());
    assert!(end.moments().is_sorted(), "{:?}", end.moments());
}

/// The first folder of PATH hangs, so no remote shell can be started. Only the node whose agent has died is lost.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_remote_shell_that_is_not_found_holds_up_nobody() {
    let lab = Lab::up(3, 1);
    let stall = Stall::new(&lab);
    let folder = lab.path("bin");
    std::fs::create_dir(&folder).unwrap();
    let mut run = lab.stand_in("run", 250).with(&stall).path_begins(&folder).start();
    run.computing();
    stall.begins(&[folder]);
    lab.vcluster(&["kill", "n2", "skt-hpl"]);
    assert_eq!(run.wait_for("node-lost", 1)["node"], "n2");
    // Hydra itself searches PATH when it starts a job, so it waits too.
    if launcher() != Launcher::Mpich {
        run.wait_for("computing", 2);
    }
    stall.ends();
    run.wait_for("computing", 2);
    assert_eq!(run.end().survived(&["node-gone"])["node"], "n2");
}

/// If the /tmp, home and shared folders of a node hang, its agent and ranks still work.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_node_whose_disks_hang_computes_on() {
    let lab = Lab::up(4, 0);
    let stall = Stall::new(&lab);
    lab.pretend("n2", &stall.words());
    let mut run = lab.benchmark("run").hold("1@iteration:1:20");
    stall.begins(&[PathBuf::from("/tmp"), PathBuf::from("/root"), lab.path("")]);
    // This is longer than the node timeout.
    std::thread::sleep(Duration::from_secs(6));
    lab.vcluster(&["resume", "n2", "same-program"]);
    run.wait_for_words("PASSED");
    stall.ends();
    let end = run.end();
    assert!(end.faults().is_empty() && end.of("agent-restarted").is_empty(), "{}", end.told());
    lab.same_x("run", &end);
}

/// Results are lost if they are printed to a full disk. The supervisor reports this, and the run does not count as passed.
#[test]
#[ignore = "needs root and network namespaces"]
fn results_that_did_not_fit_are_not_called_passed() {
    let (lab, small) = Lab::up_after(4, 0, |folder| Small::mount(folder.join("run.state")));
    // The results of this many tests do not fit into the rest of the page that contains the heading.
    let tests = ["-n", "1250,60,60,60,60,60,60,60,60"];
    let mut run = lab.benchmark("run").benchmark_flags(&tests).hold("1@iteration:1:10");
    small.fill();
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    if launcher() == Launcher::Mpich {
        // Hydra ends the job if it cannot write. The run then waits for room and resumes.
        run.wait_for_words("waiting for room");
        small.make_room();
        let end = run.end();
        end.passed();
        assert_eq!(end.faults(), ["launcher-gone"], "{}", end.told());
        return;
    }
    let end = run.end();
    assert_eq!(end.code, Some(6), "{}", end.told());
    assert!(end.errors.contains("its results are incomplete"), "{}", end.told());
}

/// If processes die on one node again and again, the node counts as sick, and a spare replaces it.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_sick_node_is_replaced() {
    let lab = Lab::up(3, 1);
    let mut run = lab.stand_in("run", 120).start();
    for nth in 1..=3 {
        run.wait_for("computing", nth);
        lab.vcluster(&["kill", "n2", "python3"]);
        run.wait_for("fault", nth);
    }
    let lost = run.wait_for("node-lost", 1);
    assert_eq!(lost["node"], "n2");
    assert!(lost["why"].as_str().unwrap().contains("sick"), "{lost}");
    let end = run.end();
    end.passed();
    assert_eq!(end.hosts(), ["n1", "n4", "n3"]);
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// A node becomes unresponsive while MPI is tried or launched. The launcher waits for this node; the supervisor does not, and
    /// replaces it.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_node_lost_while_mpi_starts_is_replaced() {
        for (from, faults) in [(0, 0), (1, 1)] {
            let lab = Lab::up(4, 1);
            let go = lab.path("go");
            let waiting = waiting_launcher(&lab, from, &go);
            let flags = ["--launcher-program", waiting.to_str().unwrap()];
            let mut run = lab.benchmark("run").flags(&flags).start();
            match from {
                0 => run.wait_for_file("out.0"),
                _ => drop(run.wait_for("launched", 1)),
            }
            lab.vcluster(&["cut-off", "n2"]);
            assert_eq!(run.wait_for("node-lost", 1)["node"], "n2");
            std::fs::write(&go, "").unwrap();
            let end = run.end();
            assert_eq!(end.faults().len(), faults, "{}", end.told());
            assert_eq!(end.hosts(), ["n1", "n5", "n3", "n4"]);
            lab.same_x("run", &end);
        }
    }

    /// The status is updated at least every five seconds while an old run is given up (`--new`), even if logins take longer. The
    /// run's folder is in memory, since disks are busy with other tests.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn the_status_is_kept_while_an_old_run_is_given_up() {
        let (lab, _in_memory) =
            Lab::up_after(4, 0, |folder| Small::mount(folder.join("run.state")));
        lab.benchmark("run").hold("1@iteration:1:20").kill_supervisor();
        let mut run = lab.benchmark("run").flags(&["--new"]).reached_after(&lab, "sleep 8").start();
        let supervised = format!("supervised by process {} ", run.pid());
        wait_until("it is told what happens", || {
            let told = lab.status("run");
            let doing = "starting, giving up the old run";
            told.contains(doing) && told.contains(" 4 being called") && told.contains(&supervised)
        });
        let longest = longest_without_status(&mut run);
        let end = run.end();
        end.passed();
        assert!(end.errors.contains("of the old run ended"), "{}", end.told());
        assert!(longest < Duration::from_secs(5), "{longest:?} without a word");
    }

    /// The user stops the run while the supervisor reaches no node. No node is lost, and the same command resumes on all of them.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_run_that_is_stopped_amid_an_outage_has_lost_nobody() {
        let lab = Lab::up(4, 1);
        let mut run = lab.benchmark("run").hang_each(&["1@iteration:1:20"]);
        lab.vcluster(&["cut", "uplink"]);
        run.wait_for("alone", 1);
        run.signal(Signal::SIGINT);
        run.wait_for_halt(1);
        run.signal(Signal::SIGINT);
        let end = run.end();
        lab.vcluster(&["join", "uplink"]);
        assert_eq!(end.code, Some(75), "{}", end.told());
        assert!(end.of("node-lost").is_empty(), "{}", end.told());
        let end = lab.benchmark("run").start().end();
        lab.same_x("run", &end);
        assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"], "{}", end.told());
    }

    /// The launcher dies, and the supervisor reaches no node while it ends the remaining processes. No node is lost.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn an_outage_while_an_attempt_is_being_stopped_loses_nobody() {
        let lab = Lab::up(4, 1);
        let mut run = lab.benchmark("run").hang_each(&["1@iteration:1:20"]);
        lab.vcluster(&["cut", "uplink"]);
        run.kill_launcher();
        run.wait_for("fault", 1);
        run.wait_for("alone", 1);
        std::thread::sleep(Duration::from_secs(2));
        lab.vcluster(&["join", "uplink"]);
        let end = run.end();
        assert!(end.of("node-lost").is_empty(), "{}", end.told());
        assert_eq!((end.of("alone").len(), end.of("together").len()), (1, 1), "{}", end.told());
        assert_eq!((end.faults().len(), end.of("launched").len()), (1, 2), "{}", end.told());
        assert_eq!(end.hosts(), ["n1", "n2", "n3", "n4"], "{}", end.told());
        lab.same_x("run", &end);
    }

    /// After all results are reported, the supervisor reaches no node any more, before most nodes have reported the end of their
    /// ranks. The run still ends well, and names the memory that it could not remove.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_run_that_is_over_ends_although_nobody_can_be_reached() {
        let lab = Lab::up(4, 0);
        let places = ["1@iteration:0:60", "1@told:2:1"];
        // On a busy machine, the rest of the run takes longer than the default node timeout.
        let mut run = lab.benchmark("run").flags(&["--node-timeout", "20s"]).hold_each(&places);
        for node in ["n2", "n3", "n4"] {
            lab.on(node, "pkill -STOP -f 'skt-hpl agent'");
        }
        lab.vcluster(&["resume", "n1", "skt-hpl"]);
        run.await_fault(places[1]);
        run.wait_for_words("all tests are done");
        lab.vcluster(&["cut", "uplink"]);
        let end = run.end();
        lab.vcluster(&["join", "uplink"]);
        lab.same_x("run", &end);
        assert!(end.of("node-lost").is_empty() && end.faults().is_empty(), "{}", end.told());
        let words =
            "not reached: n1, n2, n3, n4. These commands remove the files of this run there";
        assert!(end.errors.contains(words), "{}", end.told());
    }

    /// The clock of the supervisor's machine is set forward and back by an hour, although the run has a time limit of ten
    /// minutes. Nothing changes in the run.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_clock_that_is_set_changes_nothing() {
        for step in ["3600", "-3600"] {
            let lab = Lab::up(4, 1);
            let ahead = lab.path("ahead");
            std::fs::write(&ahead, "0").unwrap();
            let plan = lab.benchmark("run").clock_ahead_by(&ahead).flags(&["--time-limit", "10m"]);
            let mut run = plan.hold("1@iteration:1:20");
            let supervisor = run.pid();
            std::fs::write(&ahead, step).unwrap();
            lab.vcluster(&["cut-off", "n2"]);
            let end = run.end();
            assert!(
                lab.path(&format!("ahead.{supervisor}")).exists(),
                "no clock was set: {}",
                end.told()
            );
            end.survived(&["node-unresponsive"]);
            assert_eq!(end.hosts(), ["n1", "n5", "n3", "n4"], "{}", end.told());
            assert!(end.of("halt-requested").is_empty(), "{}", end.told());
            let moments = end.moments();
            assert!(moments.is_sorted(), "{moments:?}");
            let took = moments[moments.len() - 1] - moments[0];
            assert!(took < 600_000, "{took} ms: {}", end.told());
            lab.same_x("run", &end);
        }
    }

    /// A node is lost while the next attempt waits for room on the disk. Another node replaces it before the launch.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_node_lost_while_there_is_no_room_is_replaced() {
        let (lab, small) = Lab::up_after(4, 1, |folder| Small::mount(folder.join("run.state")));
        let mut run = lab.benchmark("run").hang_each(&["1@iteration:1:20"]);
        small.fill();
        run.kill_launcher();
        run.wait_for_words("waiting for room");
        lab.vcluster(&["off", "n3"]);
        run.wait_for_words("node n3 is lost");
        small.make_room();
        let end = run.end();
        assert_eq!(end.hosts(), ["n1", "n2", "n5", "n4"], "{}", end.told());
        let places = |launch: &serde_json::Value| launch["hosts"].to_string().contains("n3");
        let with_it: Vec<bool> = end.of("launched").into_iter().map(places).collect();
        assert_eq!(with_it, [true, false], "{}", end.told());
        lab.same_x("run", &end);
    }

    /// The supervisor is first cut off from all nodes and then stopped, each time for longer than any timeout. The run computes
    /// on without a fault. Timeouts are reduced for this test, unless `SKT_TEST_OUTAGE` sets the length of the outage in seconds.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn the_supervisors_own_outages_cost_nothing() {
        let asked = std::env::var("SKT_TEST_OUTAGE").ok().map(|text| text.parse().unwrap());
        let outage = Duration::from_secs(asked.unwrap_or(16));
        let lab = Lab::up(3, 1);
        // Each iteration takes 0.1 s.
        let mut plan = lab.stand_in("run", (2 * outage.as_secs() + 6) as u32 * 10);
        if asked.is_none() {
            plan = plan.flags(&[
                "--node-timeout",
                "6s",
                "--orphan-timeout",
                "8s",
                "--hang-min",
                "14s",
            ]);
            plan = plan.flags(&["--progress-timeout", "14s", "--startup-timeout", "14s"]);
        }
        let mut run = plan.start();
        run.computing();
        lab.vcluster(&["cut", "uplink"]);
        std::thread::sleep(outage);
        lab.vcluster(&["join", "uplink"]);
        run.wait_for("together", 1);
        run.signal(Signal::SIGSTOP);
        // Nothing can be polled while the supervisor is stopped, so the test sleeps.
        std::thread::sleep(outage);
        run.signal(Signal::SIGCONT);
        let end = run.end();
        end.passed();
        assert!(end.faults().is_empty() && end.of("node-lost").is_empty(), "{}", end.told());
        assert_eq!(end.of("launched").len(), 1, "{}", end.told());
        assert_eq!(end.of("alone").len(), 1, "{}", end.told());
    }
}
