//! Tests in which a rank dies or is stopped while the job starts. No other rank waits for it for ever.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::job::mpirun;
use crate::scene::Scene;

/// Timeout for the end of a job, even on a busy machine.
const BOUND: Duration = Duration::from_secs(30);

/// Returns true if the start-up watchdog of a process is active.
fn watches(pid: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut names = threads.filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
    names.any(|name| name.trim_end() == "siblings")
}

/// A rank is killed from outside, some time after the start-up watchdog of another rank is active. The job ends with a message
/// that names the rank.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_rank_that_dies_while_mpi_starts_ends_the_job() {
    let (mut told, mut unseen) = (0, 0);
    let usual = [(50, 4), (50, 0), (70, 2), (100, 1), (200, 3), (350, 0), (600, 4)];
    // A late kill may hit a job that has already started. Early kills are repeated until two were reported.
    let again = usual[..4].iter().copied().cycle().take(8);
    for (turn, (after_ms, who)) in usual.into_iter().chain(again).enumerate() {
        if turn >= usual.len() && told >= 2 {
            break;
        }
        let scene = Scene::new(2, 2).nonstop(1);
        let mut running = scene.job().start();
        let began = Instant::now();
        let ranks = loop {
            let ranks = running.ranks();
            if ranks.len() == scene.ranks && ranks.iter().any(|r| r.rank != who && watches(r.pid)) {
                break ranks;
            }
            assert!(!running.over() && began.elapsed() < BOUND, "{}", running.told());
            std::thread::sleep(Duration::from_millis(5));
        };
        std::thread::sleep(Duration::from_millis(after_ms));
        let killed = ranks[who].pid;
        kill(killed, Signal::SIGKILL).unwrap();
        let injected = Instant::now();
        while !running.over() && injected.elapsed() < BOUND {
            std::thread::sleep(Duration::from_millis(20));
        }
        // If no rank is left and the launcher has not ended, the launcher is blocked, and is ended below.
        if !running.over() && !running.ranks().is_empty() {
            // On a very busy machine, the rank may have died before any watchdog was active. The test then ends the job itself.
            unseen += 1;
            assert!(
                after_ms <= 100 && unseen == 1,
                "{after_ms} ms, rank {who}: {}",
                running.told()
            );
            for rank in running.ranks() {
                let _ = kill(rank.pid, Signal::SIGKILL);
            }
        }
        let ran = running.end();
        println!("{after_ms} ms, rank {who}: ended after {:?}, {:?}", injected.elapsed(), ran.code);
        if ran.err.contains("while MPI was starting") {
            told += 1;
            assert!(ran.ended_with(6), "{}", ran.told());
            let name = format!("rank {who} on ");
            assert!(ran.err.contains(&name), "{}", ran.told());
            assert!(ran.err.contains(&format!("process {killed})")), "{}", ran.told());
            assert!(ran.err.contains("Start the job again"), "{}", ran.told());
        }
    }
    assert!(told >= 2, "{told}");
}

/// A rank that takes long to start, here because it is stopped, does not end the job.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_slow_start_is_waited_for() {
    let scene = Scene::new(2, 2).nonstop(1);
    let mut running = scene.job().start();
    let began = Instant::now();
    let slow = loop {
        if let Some(rank) = running.ranks().into_iter().find(|rank| rank.rank == 3) {
            break rank.pid;
        }
        assert!(!running.over() && began.elapsed() < BOUND, "{}", running.told());
        std::thread::sleep(Duration::from_millis(1));
    };
    kill(slow, Signal::SIGSTOP).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert!(!running.over(), "{}", running.told());
    kill(slow, Signal::SIGCONT).unwrap();
    scene.expect_finished(running.end());
}

/// A rank is stopped after MPI has started, before the first roll call, and the other ranks end it. In a roll call, which begins
/// an attempt, the ranks exchange what they know. A stop before the first attempt ends the job. A rank that is stopped within an
/// attempt is replaced.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_rank_that_is_stopped_before_the_first_roll_call_is_ended() {
    for rank in [0, 2, 4] {
        let ran = Scene::new(2, 2).nonstop(1).inject(&format!("started:{rank}:1:stop"));
        assert!(ran.ended_with(6), "{}", ran.told());
        let ran = Scene::new(2, 2).nonstop(1).survive(&format!("1@roll-call:{rank}:1:stop"));
        assert!(ran.err.contains(&format!("rank {rank} on ")), "{}", ran.told());
    }
}

/// A rank is lost before the first roll call of an attempt. Checksum columns or a spare rank replace it, whichever rank it is.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_rank_that_is_lost_before_the_first_roll_call_is_replaced() {
    Scene::of(2, 2, &["-n", "301", "--nb", "10"]).checksums(2).endure("1@roll-call:1:1:stop");
    for rank in 0..5 {
        Scene::new(2, 2).nonstop(1).survive(&format!("1@roll-call:{rank}:1:kill"));
    }
}

/// Starts a job with `words` as launcher arguments and one environment variable set. Returns the number of threads of rank 0
/// after MPI has started.
fn threads_after_the_start(words: &[&str], (name, value): (&str, &str)) -> usize {
    let scene = Scene::new(2, 2).nonstop(1);
    let job = scene.job().launcher(words).env("SKT_FAULT", "started:0:1:stop").env(name, value);
    let mut running = job.start();
    let began = Instant::now();
    let halted = loop {
        let ranks = running.ranks();
        if let Some(rank) = ranks.iter().find(|rank| rank.rank == 0 && rank.halted()) {
            break rank.pid;
        }
        assert!(!running.over() && began.elapsed() < BOUND, "{}", running.told());
        std::thread::sleep(Duration::from_millis(5));
    };
    let threads = std::fs::read_dir(format!("/proc/{halted}/task")).unwrap().count();
    running.kill_ranks();
    running.end();
    threads
}

/// With Open MPI's own thread for heartbeats, one start in four crashes in MPI_Init (5.0.11). Settings that ask for this thread
/// have no effect.
#[test]
#[ignore = "needs Open MPI 5"]
fn nobody_switches_the_librarys_detector_thread_on() {
    const THREAD: &str = "mpi_ft_detector_thread";
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".openmpi")).unwrap();
    let file = home.path().join(".openmpi/mca-params.conf");
    std::fs::write(&file, format!("{THREAD} = true\n")).unwrap();
    let usual = threads_after_the_start(&[], ("SKT_PIN", "off"));
    for (words, variable) in [
        (&["--mca", THREAD, "true"][..], ("SKT_PIN", "off")),
        (&[], ("OMPI_MCA_mpi_ft_detector_thread", "true")),
        (&[], ("OMPI_MCA_mca_base_param_files", file.to_str().unwrap())),
        (&[], ("HOME", home.path().to_str().unwrap())),
    ] {
        assert_eq!(threads_after_the_start(words, variable), usual, "{words:?} {variable:?}");
    }
}

/// A site's override file takes precedence over all variables. If it asks for Open MPI's heartbeat thread, the run is refused.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_site_that_insists_on_the_detector_thread_is_refused() {
    let installed = Path::new(&mpirun()).canonicalize().unwrap();
    let installed = installed.parent().and_then(Path::parent).unwrap();
    let site = tempfile::tempdir().unwrap();
    for part in std::fs::read_dir(installed).unwrap().flatten() {
        if part.file_name() != "etc" {
            symlink(part.path(), site.path().join(part.file_name())).unwrap();
        }
    }
    std::fs::create_dir(site.path().join("etc")).unwrap();
    let file = site.path().join("etc/openmpi-mca-params-override.conf");
    let scene = Scene::new(2, 2).nonstop(1);
    let prefix = format!("OPAL_PREFIX={}", site.path().display());
    for (value, refused) in [("true", true), ("false", false)] {
        std::fs::write(&file, format!("mpi_ft_detector_thread = {value}\n")).unwrap();
        let ran = scene.job().launcher(&["-x", &prefix]).run();
        let told = ran.err.matches("openmpi-mca-params-override.conf sets").count();
        assert_eq!(told, usize::from(refused), "{}", ran.told());
        match refused {
            true => assert!(ran.ended_with(6), "{}", ran.told()),
            false => drop(scene.expect_finished(ran)),
        }
    }
}
