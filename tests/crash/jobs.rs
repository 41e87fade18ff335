//! Tests of a run among other runs: sweeps, job names, requests to stop, and the output of `status` and `clean`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use skt_hpl::base::timeline::What;
use skt_hpl::supervise::start::job::Announcement;
use skt_hpl::supervise::talk::processes::catches;

use crate::job::{Job, PROGRAM, Ran};
use crate::level2::{account, ask};
use crate::scene::{LONGER, SMALL, Scene, from_storage, rebuilt, resumed_at, whole_in};
use crate::storage::Storage;

const SWEEP: &[&str] = &["-n", "120,151,181,210", "--nb", "10"];

/// Faults at each step of the removal of other runs' files: on rank 0, which removes them for its node, and on other ranks.
pub const GROUND: [&str; 5] = [
    "ground-seen:0:1:kill",
    "ground-half:2:2:kill",
    "ground-half:3:1:kill",
    "ground-seen:2:1:kill",
    "ground-cleared:3:1:kill",
];

/// Returns the result lines of the output, such as `WR00L2L2 ...`.
pub fn results(ran: &Ran) -> Vec<String> {
    let lines = ran.out.lines().filter(|line| line.starts_with("WR")).map(str::to_owned);
    lines.collect()
}

/// The time before a start that failed early counts as downtime, not as lost work: that start had computed nothing.
#[test]
fn time_before_a_start_that_came_to_nothing_is_no_lost_work() {
    let scene = Scene::new(2, 2);
    scene.inject("committed:1:4:kill");
    std::thread::sleep(Duration::from_secs(3));
    scene.inject("pinned:0:1:kill");
    let ran = scene.finish();
    let protection = ran.json().tests[0].outcome.as_ref().unwrap().protection.unwrap();
    let (lost_s, down_s) = (protection.lost_s, protection.down_s);
    assert!(lost_s < 1.5 && down_s > 2.5, "{lost_s} {down_s}: {}", ran.told());
}

#[test]
fn a_sweep_goes_on_in_its_third_test() {
    for fault in ["save-begin:1:41:kill", "solve-begin:2:3:kill", "clean-half:0:2:kill"] {
        let scene = Scene::of(2, 2, SWEEP).protect(&["--checkpoint", "1"]);
        let first = scene.inject(fault);
        assert_eq!(results(&first).len(), if fault.starts_with("clean") { 1 } else { 2 });
        scene.lose(1);
        let ran = scene.finish();
        let lines = results(&ran);
        assert_eq!(lines.len(), 4, "{}", ran.told());
        // Results of finished tests are printed again unchanged, including their times.
        for line in results(&first) {
            assert!(lines.contains(&line), "{line}: {}", ran.told());
        }
        assert_eq!(ran.out.matches("PASSED").count(), 4);
        let resumed = ran.err.matches("resumes at boundary").count();
        assert_eq!(resumed, if fault.starts_with("clean") { 0 } else { 1 }, "{}", ran.told());
        if !fault.starts_with("clean") {
            assert!(ran.err.contains("test 3 resumes"), "{}", ran.told());
        }
    }
}

/// All nodes are lost one after the other. Each new node receives the results of finished tests from the other nodes, so no
/// result is lost.
#[test]
fn results_outlive_all_nodes_that_had_them() {
    let scene = Scene::of(2, 2, SWEEP).protect(&["--checkpoint", "1"]);
    let first = scene.inject("iteration:1:20:kill");
    for position in 0..4 {
        scene.lose(position);
        let ran = scene.inject("iteration:1:2:kill");
        assert_eq!(rebuilt(&ran).as_deref(), Some(&[position][..]), "{}", ran.told());
    }
    let ran = scene.finish();
    assert_eq!((results(&first).len(), results(&ran).len()), (1, 4), "{}", ran.told());
    assert!(results(&ran).contains(&results(&first)[0]), "{}", ran.told());
    assert!(!ran.err.contains("has lost its result"), "{}", ran.told());
}

/// A sweep resumes from storage, with a new run id, in its second test, whose grid has two positions. Four idle ranks still have
/// memory of the old run. The next start resumes from the memory of the new run, although it has fewer positions.
#[test]
fn results_of_idle_nodes_do_not_outweigh_memory_of_the_run_that_went_on() {
    let storage = Storage::within("/dev/shm", false, 1);
    let scene = Scene::of(2, 3, SMALL).grids(&[(2, 3), (1, 2)]).protect(&["--checkpoint", "5"]);
    let level2 = ["--level2", &storage.named(), "--level2-every", "1", "--helpers", "off"];
    let scene = scene.protect(&level2);
    let first = scene.inject("iteration:1:51:kill");
    assert_eq!(results(&first).len(), 1, "{}", first.told());
    scene.lose(0);
    scene.lose(1);
    // The first save is at the boundary at which the run resumed.
    let ran = scene.inject("committed:1:2:kill");
    assert!(from_storage(&ran) && ran.err.contains("test 2 resumes"), "{}", ran.told());
    let from = resumed_at(&ran);
    let ran = scene.finish();
    assert!(!from_storage(&ran) && resumed_at(&ran) > from, "{from:?}: {}", ran.told());
    assert_eq!(rebuilt(&ran), None, "{}", ran.told());
    assert!(results(&ran).contains(&results(&first)[0]), "{}", ran.told());
}

/// With a BLAS, a restarted run has the bits of a run without saves. A BLAS rounds differently if a call has another shape, and
/// saves end the lookahead early. The matrix is wide enough that several blocks are multiplied in one call.
#[test]
fn under_a_blas_a_run_that_goes_on_comes_to_the_same_bits() {
    for depth in ["0", "2"] {
        let problem = ["-n", "600", "--nb", "8", "--engine", "blas", "--depth", depth];
        for (p, q, fault) in [(2, 1, "iteration:1:20:kill"), (1, 2, "committed:0:2:kill")] {
            let scene = Scene::of(p, q, &problem).protect(&["--checkpoint", "7"]);
            scene.inject(fault);
            scene.lose(1);
            assert!(resumed_at(&scene.finish()).is_some());
            let scene = Scene::of(p, q, &problem).protect(&["--checkpoint", "3"]);
            scene.inject(fault);
            assert!(resumed_at(&scene.finish()).is_some());
        }
    }
}

/// The JSON document has the whole timeline of a test that was started twice: the iterations before the checkpoint, the lost
/// iterations, and the downtime.
#[test]
fn the_timeline_of_a_run_with_a_loss() {
    let scene = Scene::of(2, 2, SMALL).protect(&["--checkpoint", "5"]);
    scene.inject("iteration:1:19:kill");
    scene.lose(1);
    let ran = scene.finish();
    let from = resumed_at(&ran).unwrap() as u64;
    let run = ran.json();
    let outcome = run.tests[0].outcome.as_ref().unwrap();
    let timeline = &outcome.timeline;
    assert_eq!(timeline.iteration.first(), Some(&0));
    assert_eq!(timeline.iteration.last(), Some(&31));
    assert!(timeline.iteration.contains(&from) && timeline.iteration.is_sorted(), "{timeline:?}");
    assert!(timeline.seconds.is_sorted() && *timeline.seconds.last().unwrap() <= outcome.seconds);
    let told = |what| timeline.moments.iter().filter(|m| m.what == what).collect::<Vec<_>>();
    for what in [What::Lost, What::Down, What::Restore] {
        let found = told(what);
        assert!(found.len() == 1 && found[0].iteration == from, "{what:?}: {timeline:?}");
    }
    assert_eq!(told(What::Save).len() as u64, outcome.protection.unwrap().saves);
    let (down, restore) = (told(What::Down)[0], told(What::Restore)[0]);
    assert!((down.at_s + down.seconds - restore.at_s).abs() < 0.01, "{timeline:?}");
}

#[test]
fn restart_never_and_require() {
    let scene = Scene::new(2, 2);
    let ran = scene.job().args(&["--restart", "require"]).run().expect_code(4);
    assert!(ran.err.contains("--restart require"), "{}", ran.told());
    scene.expect_nothing_left();
    scene.inject("iteration:1:9:kill");
    let ran = scene.job().args(&["--restart", "require"]).run();
    assert!(resumed_at(&scene.expect_finished(ran)).is_some());
    scene.inject("iteration:1:9:kill");
    let ran = scene.job().args(&["--restart", "never"]).run();
    assert_eq!(resumed_at(&scene.expect_finished(ran)), None);
}

#[test]
fn a_refusal_under_restart_never_removes_nothing() {
    let scene = Scene::new(2, 2);
    scene.inject("iteration:1:9:kill");
    let no_folder = scene.path("domains");
    let no_folder = no_folder.to_str().unwrap();
    for wrong in [
        ["--losses", "5"],
        ["--group", "7"],
        ["--json", "/no/such/folder/run.json"],
        ["--output", "/no/such/folder/HPL.out"],
        ["--level2", no_folder],
    ] {
        let ran = scene.job().args(&["--restart", "never"]).args(&wrong).run();
        assert!(ran.ended_with(1) || ran.ended_with(6), "{wrong:?}: {}", ran.told());
        assert_eq!(scene.held(), [0, 1, 2, 3], "{wrong:?}: {}", ran.told());
    }
    assert!(resumed_at(&scene.finish()).is_some());
}

/// All launches of a supervised run are one run. `--restart never` removes the memory of other runs, in any launch, but never the
/// memory of the run itself.
#[test]
fn restart_never_keeps_what_earlier_launches_of_a_supervised_run_have_saved() {
    let scene = Scene::new(2, 2);
    scene.inject("iteration:1:9:kill");
    let mut scene = scene.protect(&["--restart", "never"]);
    scene.also("SKT_RUN_ID", "supervised");
    // The first launch failed early, so the second launch finds the memory of another run.
    scene.also("SKT_ATTEMPT", "2");
    let ran = scene.inject("iteration:1:19:kill");
    assert_eq!(resumed_at(&ran), None, "{}", ran.told());
    scene.lose(1);
    scene.also("SKT_ATTEMPT", "3");
    let ran = scene.inject("iteration:0:5:kill");
    assert!(resumed_at(&ran).is_some(), "{}", ran.told());
    scene.also("SKT_ATTEMPT", "4");
    assert!(resumed_at(&scene.finish()).is_some());
}

/// A stop is obeyed while one rank of a supervised job has not started yet. The other ranks handle the signal before MPI starts,
/// which takes long on many nodes.
#[test]
fn a_stop_while_ranks_still_start_is_obeyed() {
    let mut scene = Scene::new(2, 2);
    scene.also("SKT_RUN_ID", "supervised");
    let folder = tempfile::tempdir().unwrap();
    let asked = folder.path().join("asked");
    let wait = format!("until [ -e '{}' ]; do sleep 0.1; done; exec \"$@\"", asked.display());
    let late = ["sh", "-c", &wait, "sh"];
    let running = scene.job().parts(&[(3, &[]), (1, &late)]).start();
    let began = Instant::now();
    let listen = || {
        running
            .ranks()
            .iter()
            .filter(|rank| catches(rank.pid.as_raw() as u32, Signal::SIGUSR1))
            .count()
    };
    while listen() < 3 {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", running.told());
        std::thread::sleep(Duration::from_millis(5));
    }
    ask(&running, Signal::SIGUSR1);
    std::fs::write(&asked, "").unwrap();
    let ran = running.end().expect_code(75);
    assert!(ran.err.contains(&Announcement::Halted.to_string()), "{}", ran.told());
    assert!(resumed_at(&scene.finish()).is_some());
}

#[test]
fn another_problem_under_the_same_name_is_refused() {
    let scene = Scene::new(2, 2);
    scene.inject("iteration:1:9:kill");
    let before = scene.held();
    for other in [["--seed", "7"], ["--nbmin", "8"], ["--depth", "0"], ["--method", "double"]] {
        let ran = scene.job().args(&other).run().expect_code(1);
        assert!(ran.err.contains(&scene.name) && !ran.out.contains("PASSED"), "{}", ran.told());
        assert_eq!(scene.held(), before);
    }
    assert!(resumed_at(&scene.finish()).is_some());
}

#[test]
fn two_jobs_side_by_side() {
    let (one, two) = (Scene::new(2, 2), Scene::new(2, 2));
    let running = one.freeze("iteration:0:9:stop");
    let ran = two.job().run();
    two.expect_finished(ran);
    one.kill_all(running);
    assert!(resumed_at(&one.finish()).is_some());
}

#[test]
fn the_same_name_twice_at_once_is_refused() {
    let scene = Scene::new(2, 2);
    let running = scene.freeze("iteration:0:9:stop");
    for restart in ["auto", "never"] {
        let second = scene.job().args(&["--restart", restart]).run();
        let second = second.expect_code(5);
        assert!(second.err.contains("in use"), "{}", second.told());
        assert_eq!(scene.held(), [0, 1, 2, 3]);
    }
    // `clean` refuses to remove the memory of a running job.
    let clean = Command::new(PROGRAM).args(["clean", "--job", &scene.name]).output().unwrap();
    assert_eq!(clean.status.code(), Some(5));
    // The first run is not affected.
    for rank in running.ranks() {
        kill(rank.pid, Signal::SIGCONT).unwrap();
    }
    scene.expect_finished(running.end());
}

/// If a test panics while its job runs, no process and no memory of the job is left, even if a rank is stopped.
#[test]
fn a_test_that_fails_leaves_nothing_of_its_job() {
    let mut name = String::new();
    let failed = catch_unwind(AssertUnwindSafe(|| {
        let scene = Scene::new(2, 2);
        name = scene.name.clone();
        let running = scene.freeze("iteration:0:9:stop");
        assert_eq!((running.ranks().len(), scene.held().len()), (4, 4));
        resume_unwind(Box::new("the test has failed"));
    }));
    assert!(failed.is_err());
    let processes = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == name.as_bytes())
    });
    let left: Vec<_> = processes.map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
    let memory = Command::new(PROGRAM).arg("status").output().unwrap();
    let memory = String::from_utf8(memory.stdout).unwrap();
    assert!(!memory.contains(&name), "{memory}");
}

/// A second start under the same job name is refused, and keeps the first run's files on storage. With method disk, these are its
/// only checkpoints.
#[test]
fn the_same_name_twice_at_once_leaves_storage_alone() {
    for method in ["self", "disk"] {
        let scene = Scene::of(2, 2, LONGER).protect(&["--checkpoint", "20", "--method", method]);
        let every: &[&str] = if method == "disk" { &[] } else { &["--level2-every", "1"] };
        let storage = Storage::within("/dev/shm", false, 1);
        let scene = scene.protect(&["--level2", &storage.named()]).protect(every);
        let running = scene.freeze("stream-begin:0:2:stop");
        let there = whole_in(storage.path(), &scene);
        assert_eq!(there.len(), 1, "{method}: {there:?}");
        for restart in ["auto", "never"] {
            let second = scene.job().args(&["--restart", restart]).run();
            let second = second.expect_code(5);
            assert!(second.err.contains("in use"), "{}", second.told());
            assert_eq!(whole_in(storage.path(), &scene), there, "{method}: {}", second.told());
        }
        for rank in running.ranks() {
            kill(rank.pid, Signal::SIGCONT).unwrap();
        }
        let ran = scene.expect_finished(running.end());
        assert!(!ran.err.contains("could not be written"), "{method}: {}", ran.told());
        assert!(account(&ran).checkpoints >= 2, "{method}: {}", ran.told());
    }
}

/// Two runs with one job name on different nodes. They share only DIR.
struct Twins {
    storage: Storage,
    first: Scene,
    second: Scene,
}

impl Twins {
    fn new() -> Self {
        let storage = Storage::within(env!("CARGO_TARGET_TMPDIR"), false, 1);
        let of = || {
            let every = ["--checkpoint", "20", "--level2-every", "1"];
            let scene = Scene::of(2, 2, LONGER).protect(&every);
            scene.protect(&["--level2", &storage.named(), "--helpers", "off"])
        };
        let (first, mut second) = (of(), of());
        second.name = first.name.clone();
        Self { storage, first, second }
    }

    fn second_job(&self) -> Job {
        let elsewhere = "mount -t tmpfs tmpfs /dev/shm && exec \"$@\"";
        self.second.job().under(&["unshare", "-m", "sh", "-c", elsewhere, "sh"])
    }

    fn whole(&self) -> Vec<PathBuf> {
        whole_in(self.storage.path(), &self.second)
    }

    /// Stops the first run at `point`, starts the second run, and kills it after it has a checkpoint. Then the first run ends and
    /// must keep this checkpoint, and the second run resumes from it. Returns the output of the first run.
    fn meet(&self, point: &str) -> Ran {
        let running = self.first.freeze(point);
        let ran = self.second_job().env("SKT_FAULT", "manifest-whole:0:2:kill").run();
        let there = self.whole();
        assert!(!there.is_empty(), "{}", ran.told());
        for rank in running.ranks() {
            kill(rank.pid, Signal::SIGCONT).unwrap();
        }
        let ended = self.first.expect_finished(running.end());
        assert_eq!(self.whole(), there, "{}", ended.told());
        assert!(ended.err.contains("another start of this job"), "{}", ended.told());
        let ran = self.second_job().run().expect_code(0);
        assert!(from_storage(&ran), "{}", ran.told());
        ended
    }
}

/// Two runs with one job name on different nodes do not see each other's memory. DIR belongs to the run that claimed it last. The
/// other run does not remove the owner's files.
#[test]
#[ignore = "needs root"]
fn the_same_name_on_other_nodes_does_not_take_the_others_checkpoints() {
    let ran = Twins::new().meet("iteration:0:9:stop");
    assert_eq!(ran.err.matches("could not be written to").count(), 1, "{}", ran.told());
}

/// A run that ends removes its checkpoints, its result, its token and its claim. Another run of the same job name claims DIR
/// meanwhile: its files stay.
#[test]
#[ignore = "needs root"]
fn a_run_at_its_end_leaves_the_checkpoints_of_the_same_name_on_other_nodes() {
    Twins::new().meet("prune-half:0:6:stop");
}

/// On a request to stop, the run saves and reports this. The same command then resumes.
#[test]
fn stopped_on_request_and_resumed() {
    for signal in [Signal::SIGUSR1, Signal::SIGTERM, Signal::SIGUSR2] {
        let scene = Scene::of(2, 2, SMALL).protect(&["--checkpoint", "10"]);
        let running = scene.freeze("iteration:0:6:stop");
        let first = running.ranks().into_iter().find(|rank| rank.rank == 0).unwrap();
        kill(first.pid, signal).unwrap();
        kill(first.pid, Signal::SIGCONT).unwrap();
        let ran = running.end().expect_code(75);
        assert!(ran.err.contains("stopped as asked"), "{}", ran.told());
        assert_eq!(scene.held(), [0, 1, 2, 3]);
        let from = resumed_at(&scene.finish()).unwrap();
        // SIGUSR1 and SIGTERM stop the run at once, SIGUSR2 after the next regular save.
        assert!(
            if signal == Signal::SIGUSR2 { from == 10 } else { (4..10).contains(&from) },
            "{from}"
        );
    }
}

#[test]
fn status_and_clean() {
    let (scene, other) = (Scene::new(2, 2), Scene::new(2, 2));
    scene.inject("iteration:1:9:kill");
    other.inject("iteration:1:9:kill");
    scene.lose(3);
    let say = |args: &[&str]| {
        let out = Command::new(PROGRAM).args(args).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let words = say(&["status"]);
    let (_, mine) = words.split_once(&format!("job {} (left over)", scene.name)).expect(&words);
    let mine = mine.split("\njob ").next().unwrap();
    assert_eq!(mine.matches("  position ").count(), 3, "{mine}");
    assert!(mine.contains("N = 301, NB = 10, 2 x 2"), "{mine}");
    let jobs: serde_json::Value = serde_json::from_str(&say(&["status", "--json"])).unwrap();
    let job =
        jobs["memory"].as_array().unwrap().iter().find(|job| job["job"] == scene.name.as_str());
    let positions = job.unwrap()["positions"].as_array().unwrap();
    assert_eq!(positions.len(), 3);
    for position in positions {
        assert_eq!(position["in_use"], false);
        assert_eq!(position["header"]["n"], 301);
        assert_eq!(position["header"]["attempt"], 1);
    }
    let said = say(&["clean", "--job", &scene.name]);
    assert!(said.contains("removed"), "{said}");
    scene.expect_nothing_left();
    // `clean --job` removes only the memory of this job.
    assert_eq!(other.held(), [0, 1, 2, 3]);
    assert!(say(&["clean", "--job", &scene.name]).contains("nothing"));
    other.finish();
}

/// With many process columns, ranks agree less often on whether to save. They still save at the same boundaries, also after a
/// loss, and still obey a stop.
#[test]
fn many_columns_save_where_few_do() {
    let scene = Scene::of(1, 10, LONGER).protect(&["--checkpoint", "20"]);
    scene.inject("iteration:7:67:kill");
    let ran = scene.inject("iteration:3:25:kill");
    assert_eq!(resumed_at(&ran), Some(60), "{}", ran.told());
    let ran = scene.finish();
    assert_eq!(resumed_at(&ran), Some(80), "{}", ran.told());
    // A stop is obeyed when the ranks agree the next time: at most one round of all process columns later.
    let running = scene.freeze("iteration:0:44:stop");
    ask(&running, Signal::SIGUSR1);
    running.end().expect_code(75);
    let from = resumed_at(&scene.finish()).unwrap();
    assert!((42..=55).contains(&from), "{from}");
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// Results of a finished run that stay in memory are ignored by the next run. This holds too if the next run fails while it
    /// removes them.
    #[test]
    fn a_run_killed_while_it_removes_results_of_another_begins_from_scratch() {
        for fault in GROUND {
            let mut scene = Scene::of(2, 2, SWEEP).protect(&["--checkpoint", "1"]);
            scene.also("SKT_RUN_ID", "one");
            scene.inject("told:2:1:kill");
            scene.also("SKT_RUN_ID", "other");
            scene.inject(fault);
            scene.also("SKT_ATTEMPT", "2");
            // All four tests are solved, and no result of the other run is printed.
            scene.inject("solve-begin:1:4:kill");
            scene.also("SKT_ATTEMPT", "3");
            let ran = scene.finish();
            assert_eq!(results(&ran).len(), 4, "{fault}: {}", ran.told());
        }
    }

    /// A run that starts from scratch removes the memory of another run. After a fault at any step of this removal, the next
    /// launch starts from scratch too, supervised or not.
    #[test]
    fn a_run_killed_while_it_removes_what_another_has_left_begins_from_scratch() {
        for (turn, fault) in GROUND.into_iter().enumerate() {
            let scene = Scene::new(2, 2);
            scene.inject("iteration:1:9:kill");
            let mut scene = scene.protect(&["--restart", "never"]);
            if turn % 2 == 0 {
                scene.also("SKT_RUN_ID", "supervised");
            }
            scene.inject(fault);
            if fault.contains("half") {
                assert!(!scene.held().is_empty(), "{fault}: it removed all");
            }
            scene.also("SKT_ATTEMPT", "2");
            let ran = scene.finish();
            assert_eq!(resumed_at(&ran), None, "{fault}: {}", ran.told());
        }
    }

    /// If a sweep has more results than a position's memory has room for, the position allocates more. A restart has all results.
    #[test]
    fn a_sweep_of_two_hundred_tests_goes_on() {
        let list = |numbers: std::ops::RangeInclusive<usize>| {
            numbers.map(|n| n.to_string()).collect::<Vec<_>>().join(",")
        };
        let (nbmins, ndivs) = (list(1..=20), list(2..=11));
        let sweep = ["-n", "60", "--nb", "10", "--nbmin", &nbmins, "--ndiv", &ndivs];
        let scene = Scene::of(1, 2, &sweep).protect(&["--checkpoint", "1"]);
        let first = scene.inject("solve-begin:1:190:kill");
        assert!(!first.err.contains("no memory to keep"), "{}", first.told());
        scene.lose(0);
        let ran = scene.finish();
        assert_eq!(results(&ran).len(), 200, "{}", ran.told());
        for line in results(&first) {
            assert!(ran.out.contains(&line), "{line}: {}", ran.told());
        }
        assert!(ran.err.contains("test 190 resumes"), "{}", ran.told());
    }

    /// The nodes with the result of a finished test are lost, but not too many for the running test. The running test resumes,
    /// and the finished test runs again.
    #[test]
    fn a_test_under_way_is_not_given_up_for_an_earlier_one_whose_result_is_lost() {
        let scene = Scene::of(2, 2, SMALL).grids(&[(1, 2), (2, 2)]).protect(&[
            "--checkpoint",
            "1",
            "--parity-layout",
            "grid",
        ]);
        for later in ["iteration:3:9:kill", "solve-begin:3:1:kill"] {
            scene.inject(later);
            scene.lose(0);
            scene.lose(1);
            let ran = scene.finish();
            assert!(ran.err.contains("test 2 resumes at boundary"), "{}", ran.told());
            assert!(ran.err.contains("test 1 has lost its result"), "{}", ran.told());
            assert_eq!(results(&ran).len(), 2, "{}", ran.told());
        }
        // After a fault while the first test runs again, the second test keeps its result.
        scene.inject("iteration:3:9:kill");
        scene.lose(0);
        scene.lose(1);
        let ran = scene.inject("iteration:0:35:kill");
        assert!(ran.err.contains("test 2 resumes at boundary"), "{}", ran.told());
        let ran = scene.finish();
        assert!(ran.err.contains("test 1 resumes at boundary"), "{}", ran.told());
        assert!(!ran.err.contains("test 2 resumes"), "{}", ran.told());
        assert_eq!(results(&ran).len(), 2, "{}", ran.told());
    }
}
