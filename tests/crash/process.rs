//! Helpers that are processes (`--helpers process`): each step of theirs struck, which costs the epoch and nothing else; their
//! ranks killed at each of these steps, which leaves nobody behind; one that hangs; where they run, and what they are told.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skt_hpl::base::cores;
use skt_hpl::base::topology::{Topology, read_list};

use crate::job::{Running, alive, stat};
use crate::left_out::left_out;
use crate::level2::{
    LONG, Stored, account, ask, epochs, finish, goes_on, of_first, to_storage, whole,
};
use crate::scene::{LONGER, SMALL, Scene, from_storage, resumed_at};

/// Helpers are found by whose they are.
const MARK: &str = "SKT_HELPER_OF=";

/// Ranks that have much to compute, and do so slowly: so helpers that are processes have time for several epochs also where the
/// machine is busy with other tests.
pub fn slow() -> Scene {
    Scene::of(2, 2, &["-n", "1403", "--nb", "10"]).solver(&["--engine", "portable"])
}

/// What is limited here: every save goes to storage, by processes.
pub fn by_processes() -> Stored {
    Stored::of(slow().protect(&["--checkpoint", "2"]).by_processes(), "1")
}

/// The helpers of these ranks.
fn helpers(running: &Running) -> Vec<Pid> {
    let marks: Vec<String> =
        running.ranks().iter().map(|rank| format!("{MARK}{}\0", rank.pid)).collect();
    let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
        let variables = String::from_utf8(fs::read(entry.path().join("environ")).ok()?).ok()?;
        marks.iter().any(|mark| variables.contains(mark)).then_some(pid)
    });
    processes.filter(|pid| alive(*pid)).collect()
}

/// Waits until that is so.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < Duration::from_secs(60), "not {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A helper stands still at this step, and then all ranks are killed at once: it must go with them.
pub fn end_with_helper(scene: &Scene, fault: &str) {
    let (running, came) = scene.may_freeze(fault, Duration::from_secs(60));
    assert!(came, "{fault}: {}", running.told());
    let stand_still = helpers(&running);
    assert!(!stand_still.is_empty(), "{fault}: {}", running.told());
    scene.kill_all(running);
    until("gone with its rank", || !stand_still.iter().any(|pid| alive(*pid)));
}

/// It is told, with how the helper ended; the epoch is given up, everything else goes on, and the next epoch has another helper.
#[test]
fn a_helper_that_dies_at_any_step_costs_its_epoch_alone() {
    for (i, point) in to_storage().into_iter().enumerate() {
        let position = if of_first(point) { 0 } else { i % 4 };
        let scene = by_processes();
        let fault = format!("{}:{position}:2:kill", point.name());
        let ran = scene.survive(&fault);
        let told = format!("position {position}: its helper process was ended by SIGKILL");
        let told = if of_first(point) { &told[told.find("its").unwrap()..] } else { &told };
        assert!(ran.err.contains(told), "{fault}: {}", ran.told());
        assert_eq!(ran.err.matches("could not be written to").count(), 1, "{}", ran.told());
        assert!(ran.err.contains("The run goes on"), "{}", ran.told());
        // One before it, and at least one after.
        let account = account(&ran);
        assert!(account.epochs >= 2 && account.process, "{fault}: {account:?} {}", ran.told());
    }
}

/// A bug in a helper is no bug of its rank's; what it says is heard.
#[test]
fn a_helper_that_ends_otherwise_is_told_of_as_well() {
    for (action, told) in [("panic", "status 101"), ("exit", "status 111")] {
        let scene = by_processes();
        let ran = scene.survive(&format!("stream-half:2:1:{action}"));
        let told = format!("position 2: its helper process has ended with {told}");
        assert!(ran.err.contains(&told), "{}", ran.told());
        assert_eq!(ran.err.contains("fault on purpose at stream-half"), action == "panic");
        assert!(account(&ran).epochs >= 1, "{}", ran.told());
    }
}

/// Ranks killed at each step of a helper, which stands still there, halted or not: it goes with them, and what was whole stays.
#[test]
fn ranks_killed_at_every_step_of_their_helpers_leave_nobody() {
    for (i, point) in to_storage().into_iter().enumerate() {
        let position = if of_first(point) { 0 } else { i % 4 };
        let scene = by_processes();
        let stands = if i % 2 == 0 { "stop" } else { "hang" };
        end_with_helper(&scene, &format!("{}:{position}:2:{stands}", point.name()));
        assert!(!whole(&scene).is_empty(), "{}: {:?}", point.name(), scene.struck());
        goes_on(&scene, i % 4 < 2, point.name());
    }
}

/// One rank killed while its helper stands still: the launcher ends the others, and nobody is left.
#[test]
fn a_rank_that_dies_takes_its_helper_along() {
    let scene = by_processes();
    let (running, came) = scene.may_freeze("stream-synced:1:2:stop", Duration::from_secs(60));
    assert!(came, "{}", running.told());
    let stand_still = helpers(&running);
    let rank = running.ranks().into_iter().find(|rank| rank.rank == 1).unwrap();
    kill(rank.pid, Signal::SIGKILL).unwrap();
    let ran = running.end();
    assert_ne!(ran.code, Some(0), "{}", ran.told());
    until("gone", || !stand_still.iter().any(|pid| alive(*pid)));
    scene.lose(1);
    assert!(resumed_at(&finish(&scene)).is_some());
}

/// One that is halted is not waited for: it is ended with its epoch, and the run ends as it should.
#[test]
fn a_helper_that_hangs_keeps_no_run_from_its_end() {
    for stands in ["stop", "hang"] {
        let scene = by_processes();
        let began = Instant::now();
        let ran = scene.survive(&format!("stream-half:1:1:{stands}"));
        assert!(began.elapsed() < Duration::from_secs(59), "{}", ran.told());
        assert_eq!(account(&ran).epochs, 0, "{}", ran.told());
    }
}

/// The epoch of a helper that dies is withdrawn by those whose files were whole: DIR has room for two epochs, not for three.
#[test]
fn an_epoch_that_is_called_off_leaves_no_files() {
    let scene = Scene::of(2, 2, LONG).protect(&["--checkpoint", "2"]).by_processes();
    let scene = Stored::of(scene, "20");
    // Rank 0 is halted right after the save, while they write, and computes no further after it has learnt of it; its helpers do
    // not hang.
    let (stands, later) = ("iteration:0:41:stop", "iteration:0:70:hang");
    let dies = "stream-half:1:1:kill";
    let mut running = scene.start_with(&[stands, later, dies].join(","));
    let first = [stands, dies].join(",");
    assert!(
        scene.await_strikes(&mut running, &first, Duration::from_secs(60)),
        "{}",
        running.told()
    );
    let written = |position: &str| epochs(&scene).iter().any(|epoch| epoch.join(position).exists());
    until("written", || ["p2", "p3"].iter().all(|position| written(position)));
    go_on(&running, 0);
    assert!(
        scene.await_strikes(&mut running, later, Duration::from_secs(60)),
        "{}",
        running.told()
    );
    until("withdrawn", || epochs(&scene).is_empty());
    assert!(running.told().contains("could not be written to"), "{}", running.told());
    scene.kill_all(running);
    assert!(!from_storage(&finish(&scene)));
}

/// Lets a rank go on that stands still.
fn go_on(running: &Running, number: usize) {
    let rank = || running.ranks().into_iter().find(|rank| rank.rank == number).unwrap();
    until("halted", || rank().halted());
    kill(rank().pid, Signal::SIGCONT).unwrap();
}

/// Somebody removes names while a helper reads what they lead to: what it reads stays where it is until it has it.
#[test]
fn names_removed_under_a_helper_cost_nothing() {
    let scene = by_processes();
    // The names are looked at between the two iterations.
    let (before, after) = ("iteration:1:10:stop", "iteration:1:11:stop");
    let (amid, there) = ("stream-half:1:1:stop", "pruned:0:1:stop");
    let mut running = scene.start_with(&[before, after, amid, there].join(","));
    let limit = Duration::from_secs(60);
    assert!(
        scene.await_strikes(&mut running, &[before, amid].join(","), limit),
        "{}",
        running.told()
    );
    let b = scene.file(1, "b");
    fs::remove_file(&b).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    go_on(&running, 1);
    assert!(scene.await_strikes(&mut running, after, limit), "{}", running.told());
    helpers(&running).into_iter().for_each(|pid| kill(pid, Signal::SIGCONT).unwrap());
    until("written", || epochs(&scene).iter().any(|epoch| epoch.join("p1").exists()));
    go_on(&running, 1);
    assert!(scene.await_strikes(&mut running, there, limit), "{}", running.told());
    until("named again", || b.exists());
    scene.kill_all(running);
    assert_eq!(whole(&scene).len(), 1);
    let ran = goes_on(&scene, true, "names removed");
    assert_eq!(resumed_at(&ran), Some(2), "{}", ran.told());
}

/// A stop waits for the epoch it ends in, but for a helper that moves nothing a minute at most. That one is ended, and the last
/// word says that storage has nothing.
#[test]
fn a_stop_waits_a_minute_for_a_helper_that_hangs() {
    let scene = Scene::of(2, 2, SMALL).protect(&["--checkpoint", "10", "--helpers", "process"]);
    let scene = Stored::of(scene.limit(Duration::from_secs(200)), "1h");
    let running = scene.start_with("iteration:0:6:stop,stream-half:1:1:stop");
    until("at its boundary", || scene.struck().iter().any(|struck| struck == "iteration:0:6"));
    until("halted", || running.ranks().iter().any(|rank| rank.rank == 0 && rank.halted()));
    ask(&running, Signal::SIGUSR1);
    until("at its step", || scene.struck().iter().any(|struck| struck == "stream-half:1:1"));
    let stands_still = helpers(&running);
    let ran = running.end().expect_code(75);
    assert!(ran.err.contains("DID NOT GET TO"), "{}", ran.told());
    assert!(ran.err.contains("position 1: its helper is stuck"), "{}", ran.told());
    assert!(!stands_still.is_empty() && !stands_still.iter().any(|pid| alive(*pid)));
    assert!(whole(&scene).is_empty());
    assert!(!from_storage(&finish(&scene)));
}

/// A stop amid an epoch that not all have written: who has written removes that first, and then writes what the stop has saved,
/// however long the removing takes.
#[test]
fn a_stop_waits_for_what_helpers_still_remove() {
    let scene = by_processes();
    let (stands, amid, removes) =
        ("iteration:0:21:stop", "stream-half:0:1:stop", "prune-half:1:1:stop");
    let mut running = scene.start_with(&[stands, amid, removes].join(","));
    let limit = Duration::from_secs(60);
    let first = [stands, amid].join(",");
    assert!(scene.await_strikes(&mut running, &first, limit), "{}", running.told());
    let written = |position: &str| epochs(&scene).iter().any(|epoch| epoch.join(position).exists());
    until("written", || ["p1", "p2", "p3"].iter().all(|position| written(position)));
    until("halted", || running.ranks().iter().any(|rank| rank.rank == 0 && rank.halted()));
    ask(&running, Signal::SIGTERM);
    assert!(scene.await_strikes(&mut running, removes, limit), "{}", running.told());
    std::thread::sleep(Duration::from_secs(2));
    helpers(&running).into_iter().for_each(|pid| kill(pid, Signal::SIGCONT).unwrap());
    let ran = running.end().expect_code(75);
    assert!(ran.err.contains("is on storage"), "{}", ran.told());
    assert_eq!(whole(&scene).len(), 1, "{}", ran.told());
    goes_on(&scene, true, "a stop amid removing");
}

/// The field of the kernel's line on a process.
const NICE: usize = 19;

/// What a process may run on, and how much it wants it.
fn place(pid: Pid) -> (BTreeSet<usize>, i32) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    (read_list(list).into_iter().collect(), stat(pid).unwrap().field(NICE).unwrap())
}

/// Beside ranks that compute they give way to all else; on cores of their own they need not.
#[test]
fn helpers_give_way_or_have_cores_of_their_own() {
    let topology = Topology::here();
    let all = cores::bound_to();
    let cores = topology.among(all).one_a_core();
    let last = *cores.last().unwrap();
    let named = last.to_string();
    let beside: &[&str] = &[];
    let own = ["--helper-cores", named.as_str()];
    for (words, at, nice) in [(beside, all.clone(), 19), (&own[..], BTreeSet::from([last]), 0)] {
        if !words.is_empty() && cores.len() < 2 {
            return left_out("one core: none is left for helpers");
        }
        let problem = Scene::of(1, 2, LONGER).protect(&["--checkpoint", "1"]).protect(words);
        let scene = Stored::of(problem, "1").protect(&["--helpers", "process"]);
        // Ranks that stand still as well, so that the run is not over first.
        let faults = "iteration:0:9:hang,stream-half:0:1:hang,stream-half:1:1:hang";
        let (running, came) = scene.may_freeze(faults, Duration::from_secs(60));
        assert!(came, "{}", running.told());
        let found = helpers(&running);
        assert_eq!(found.len(), 2, "{}", running.told());
        for pid in found {
            assert_eq!(place(pid), (at.clone(), nice));
            // A launcher may tell a rank's children what it tells the rank.
            kill(pid, Signal::SIGTERM).unwrap();
            kill(pid, Signal::SIGUSR1).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            assert!(alive(pid));
            // Nothing of the rank's is open there: an errand, and a pipe. The log of faults is closed a moment after it is read.
            let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
            let open = open.filter_map(|fd| fs::read_link(fd.path()).ok());
            let open: Vec<_> = open.filter(|path| *path != scene.path("faults")).collect();
            let files = open.iter().filter(|path| path.starts_with("/dev/shm")).count();
            assert!(open.len() - files <= 3 && files <= 5, "{open:?}");
        }
        let told = running.told();
        assert!(told.contains("helpers: a process beside each rank for storage, on "), "{told}");
        scene.kill_all(running);
        finish(&scene);
    }
}

/// Checksums need messages, which a process beside a rank has not: they are left to a thread, and where there is nothing else to
/// do that is said.
#[test]
fn what_a_process_cannot_do_a_thread_does_or_is_refused() {
    let scene = by_processes().protect(&["--method", "double", "--encode", "helper"]);
    let ran = finish(&scene);
    let told = "a process beside each rank for storage, a thread of it for checksums";
    assert!(ran.err.contains(told) && account(&ran).epochs >= 1, "{}", ran.told());
    let words = ["--helpers", "process", "--method", "double", "--encode", "helper"];
    let scene = Scene::new(2, 2).protect(&words);
    scene.expect_refused(1, &["helpers is process", "by MPI", "--level2"]);
}
