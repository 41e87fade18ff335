//! Tests of level two with a DIR that all nodes share. Faults are injected at every step of writing to storage and of recovery
//! from it, and all memory is lost. Files are damaged, and storage is full or missing. A run never gives a wrong answer, never
//! hangs, and never loses a complete checkpoint on storage.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skt_hpl::base::cores;
use skt_hpl::base::faults::Point;
use skt_hpl::base::outcome::Level2;
use skt_hpl::base::topology::{Topology, read_list};
use skt_hpl::checkpoint::storage::Front;
use skt_hpl::checkpoint::storage::names::{owner, parse_owner};
use skt_hpl::config::processors::List;
use tempfile::TempDir;

use crate::job::{PROGRAM, Ran, Running};
use crate::jobs::{GROUND, results};
use crate::left_out::left_out;
use crate::points::of_level2;
use crate::scene::{
    LIMIT, LONGER, SMALL, Scene, checkpoints_in, folder_in, from_storage, lose_all, resumed_at,
    whole_in,
};

/// Problem that takes long enough for helpers to write several checkpoints to storage, even on a busy machine.
pub const LONG: &[&str] = &["-n", "1803", "--nb", "20"];

/// A run with level two. Its DIR is by default in /dev/shm, where writes complete at once, so that a short run has many steps at
/// which it can fail.
pub struct Stored {
    scene: Scene,
    storage: TempDir,
}

impl std::ops::Deref for Stored {
    type Target = Scene;
    fn deref(&self) -> &Scene {
        &self.scene
    }
}

impl Stored {
    pub fn of(scene: Scene, every: &str) -> Self {
        Self::within("/dev/shm", scene, every)
    }

    pub fn within(place: &str, scene: Scene, every: &str) -> Self {
        let storage = tempfile::Builder::new().prefix("t-level2-").tempdir_in(place).unwrap();
        let dir = storage.path().to_str().unwrap();
        let scene = scene.protect(&["--level2", dir, "--level2-every", every]);
        Self { scene, storage }
    }

    pub fn protect(mut self, args: &[&str]) -> Self {
        self.scene = self.scene.protect(args);
        self
    }

    pub fn solver(mut self, args: &[&str]) -> Self {
        self.scene = self.scene.solver(args);
        self
    }

    /// Returns the checkpoint directory of the job in DIR.
    pub fn folder(&self) -> PathBuf {
        folder_in(self.storage.path(), self)
    }

    pub fn expect_finished(&self, ran: Ran) -> Ran {
        let ran = self.scene.expect_finished(ran);
        assert!(!self.folder().exists(), "{:?}: {}", checkpoints(self), ran.told());
        ran
    }
}

/// Makes a run that writes every save to storage, as soon as the previous checkpoint is complete there.
pub fn stored(p: usize, q: usize) -> Stored {
    Stored::of(Scene::of(p, q, LONGER).protect(&["--checkpoint", "1"]), "1")
}

fn stored_at_every_second() -> Stored {
    Stored::of(Scene::of(2, 2, LONGER).protect(&["--checkpoint", "2"]), "1")
}

/// Waits until `so` returns true. Panics after `LIMIT`, and names `what` in the message.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < LIMIT, "not {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn checkpoints(scene: &Stored) -> Vec<PathBuf> {
    checkpoints_in(scene.storage.path(), scene)
}

pub fn whole(scene: &Stored) -> Vec<PathBuf> {
    whole_in(scene.storage.path(), scene)
}

/// Returns the figures of level two for the first test, from the JSON document of the run.
pub fn account(ran: &Ran) -> Level2 {
    let tests = ran.json().tests;
    let protection = tests[0].outcome.as_ref().unwrap().protection.unwrap();
    protection.level2.expect("there is a second level")
}

/// Starts the run again. Asserts that it ends with the right bits, and that nothing is left in memory and on storage.
pub fn finish(scene: &Stored) -> Ran {
    scene.expect_finished(scene.job().run())
}

/// Removes all memory if `lost` is set, and starts the run again. Asserts that it resumes, from storage if `lost` is set and
/// otherwise from memory, and ends with the right bits.
pub fn goes_on(scene: &Stored, lost: bool, what: &str) -> Ran {
    if lost {
        lose_all(scene);
    }
    let ran = finish(scene);
    assert_eq!(from_storage(&ran), lost, "{what}: {}", ran.told());
    assert!(resumed_at(&ran).is_some(), "{what}: {}", ran.told());
    ran
}

#[test]
fn a_run_nobody_disturbs_writes_checkpoints_and_leaves_nothing() {
    // DIR is on a disk here, not in /dev/shm.
    let problem = Scene::of(2, 2, &["-n", "2403", "--nb", "20"]).protect(&["--checkpoint", "2"]);
    let scene = Stored::within(env!("CARGO_TARGET_TMPDIR"), problem, "1");
    let ran = finish(&scene);
    let account = account(&ran);
    assert!(account.checkpoints >= 1 && account.bytes > 100_000, "{account:?}: {}", ran.told());
    assert_eq!(account.fetched, 0);
    assert!(ran.err.contains("on storage: "), "{}", ran.told());
}

/// After all memory is lost, the run resumes from storage with the bits of an undisturbed run. The nodes have other names, the
/// domains are other ones, and the ranks are in another order.
#[test]
fn all_memory_gone_the_run_goes_on_from_storage() {
    for (grid, method) in [((2, 2), "self"), ((2, 3), "double"), ((1, 2), "single")] {
        let scene = stored(grid.0, grid.1).protect(&["--method", method]);
        scene.inject("manifest-whole:0:2:kill");
        let checkpoint = whole(&scene).pop().unwrap();
        lose_all(&scene);
        let ranks = scene.ranks;
        let domains: String =
            (0..ranks).map(|r| format!("rank:{r} other{}\n", ranks - r)).collect();
        fs::write(scene.path("domains"), domains).unwrap();
        let ran = finish(&scene);
        assert!(from_storage(&ran), "{}", ran.told());
        let text = fs::read_to_string(checkpoint.join("manifest")).unwrap_or_default();
        assert!(text.is_empty(), "older checkpoints go");
        assert_eq!(account(&ran).fetched, 1);
    }
}

/// Files on shared storage do not depend on groups and codes: a start with another method, code and group resumes from them.
#[test]
fn another_method_code_and_group_go_on_from_the_same_files() {
    let scene = stored(2, 2);
    scene.inject("manifest-whole:0:2:kill");
    lose_all(&scene);
    let job = scene.job().args(&["--method", "double", "--losses", "2", "--store", "sysv"]);
    let ran = scene.expect_finished(job.run());
    assert!(from_storage(&ran), "{}", ran.told());
}

/// Returns the crash points of writing to storage. Only position 0 reaches those for which [`of_first`] returns true.
pub fn to_storage() -> Vec<Point> {
    let back = Point::between(Point::FetchBegin, Point::Tidied);
    of_level2().into_iter().filter(|p| !back.contains(p)).collect()
}

pub fn of_first(point: Point) -> bool {
    point.name().starts_with("manifest") || point.name().starts_with("prune")
}

/// A later run resumes from storage, writes a checkpoint, and loses its memory. Then nodes return with the memory of an earlier
/// run, which has a further boundary. The earlier run writes its checkpoint to storage. The next start keeps this checkpoint,
/// which has the further boundary, and removes that of the later run.
#[test]
fn a_later_run_that_got_less_far_outdates_nothing() {
    let scene = Stored::of(Scene::of(2, 2, LONGER).protect(&["--checkpoint", "1"]), "4");
    scene.inject("committed:0:8:kill");
    assert_eq!(whole(&scene).len(), 1);
    let memory: Vec<_> = (0..4).map(|p| crate::limits::Stash::take(&scene, p)).collect();
    lose_all(&scene);
    let scene = scene.protect(&["--level2-every", "1"]);
    assert!(resumed_at(&scene.inject("pruned:0:1:kill")).is_some());
    lose_all(&scene);
    memory.into_iter().for_each(|stash| stash.put_back());
    scene.inject("manifest-whole:0:1:kill");
    let mut there = whole(&scene);
    there.sort_by_key(|checkpoint| matrices(checkpoint)[0].0);
    assert_eq!(there.len(), 2, "{there:?}");
    let running = scene.freeze("iteration:0:1:stop");
    assert_eq!(whole(&scene), there[1..]);
    scene.kill_all(running);
    goes_on(&scene, true, "the furthest is there");
}

/// A start resumes from the older of two checkpoints, since the later is damaged, and ends after its first save. The next start
/// resumes from memory, and cannot know which checkpoint was used. So only the used checkpoint may be on storage when it begins.
#[test]
fn the_checkpoint_that_was_of_use_is_the_one_that_stays() {
    let scene = with_the_later_checkpoint_damaged();
    scene.inject("committed:1:1:kill");
    scene.inject("iteration:1:1:kill");
    goes_on(&scene, true, "the older one was of use");
}

/// A run that resumes from memory removes an unfinished checkpoint on storage before it writes the next. A fault during the
/// removal does no harm.
#[test]
fn files_left_at_a_start_go_before_the_next_checkpoint_is_begun() {
    let scene = stored(2, 2);
    scene.kill_all(scene.freeze("stream-half:1:2:stop"));
    scene.inject("tidy-half:0:1:kill");
    goes_on(&scene, false, "cut off while it tidies");
}

/// Returns the boundary, the checkpoint number and the bytes of the matrix from the file of each of the four positions.
pub fn matrices(checkpoint: &Path) -> Vec<(u64, u64, Vec<u8>)> {
    let read = |position| {
        let bytes = fs::read(checkpoint.join(format!("p{position}"))).unwrap();
        let front = Front::from_block(&bytes[..4096]).unwrap();
        assert_eq!(bytes.len() as u64, front.file_bytes());
        let data = front.data_at() as usize..front.check_at() as usize;
        (front.about.boundary, front.about.checkpoint, bytes[data].to_vec())
    };
    (0..4).map(read).collect()
}

/// Makes a run with one rank more than positions. This rank stores the parity of the others, and writes nothing to shared
/// storage.
fn with_dedicated(args: &[&str]) -> Stored {
    let scene = Scene::of(2, 2, LONGER).idle(1).protect(&["--checkpoint", "1"]);
    Stored::of(scene.protect(&["--parity-layout", "dedicated"]).protect(args), "1")
}

/// With a rank that stores parity only, the run survives faults during the recovery from storage. A requested stop writes a
/// checkpoint to storage.
#[test]
fn with_a_rank_for_checksums_coming_back_is_killed_and_a_stop_ends_on_storage() {
    let scene = with_dedicated(&[]);
    scene.inject("manifest-whole:0:2:kill");
    for fault in ["fetch-begin:4:1:kill", "fetch-half:1:1:kill", "encode-end:4:1:kill"] {
        lose_all(&scene);
        scene.inject(fault);
    }
    lose_all(&scene);
    let running = scene.freeze("iteration:0:6:stop");
    ask(&running, Signal::SIGUSR1);
    let ran = running.end().expect_code(75);
    assert!(ran.err.contains("is on storage"), "{}", ran.told());
    lose_all(&scene);
    assert!(from_storage(&finish(&scene)));
}

/// A stop arrives during a checkpoint that some ranks have not written. The other ranks first remove their files of this
/// checkpoint, which may take long, and then write the checkpoint of the stop.
#[test]
fn a_stop_waits_for_what_helpers_still_remove() {
    let scene = stored_at_every_second();
    let (main, writes, removes) = ("iteration:0:21", "stream-half:0:1", "prune-half:1:1");
    let faults = [main, writes, removes].map(|place| scene.hang_at(place)).join(",");
    let mut running = scene.start_with(&faults);
    let first = [main, writes].join(",");
    assert!(scene.await_faults(&mut running, &first, LIMIT), "{}", running.told());
    let written = |position: &str| {
        checkpoints(&scene).iter().any(|checkpoint| checkpoint.join(position).exists())
    };
    until("written", || ["p1", "p2", "p3"].iter().all(|position| written(position)));
    ask(&running, Signal::SIGTERM);
    scene.let_go(main);
    assert!(scene.await_faults(&mut running, removes, LIMIT), "{}", running.told());
    std::thread::sleep(Duration::from_secs(2));
    assert!(!running.over(), "{}", running.told());
    [writes, removes].iter().for_each(|place| scene.let_go(place));
    let ran = running.end().expect_code(75);
    assert!(ran.err.contains("is on storage"), "{}", ran.told());
    assert_eq!(whole(&scene).len(), 1, "{}", ran.told());
    goes_on(&scene, true, "a stop amid removing");
}

/// The name of a memory part is removed while a helper reads the part. The data stay in place until the helper has read them;
/// then the name is created again.
#[test]
fn names_removed_under_a_helper_cost_nothing() {
    let scene = stored_at_every_second();
    // The rank checks the names between the two iterations.
    let (before, after) = ("iteration:1:10", "iteration:1:11");
    let (reads, there) = ("stream-half:1:1", "pruned:0:1");
    let faults = [before, after, reads, there].map(|place| scene.hang_at(place)).join(",");
    let mut running = scene.start_with(&faults);
    let first = [before, reads].join(",");
    assert!(scene.await_faults(&mut running, &first, LIMIT), "{}", running.told());
    let b = scene.file(1, "b");
    fs::remove_file(&b).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    scene.let_go(before);
    assert!(scene.await_faults(&mut running, after, LIMIT), "{}", running.told());
    assert!(!b.exists(), "moved under its reader: {}", running.told());
    scene.let_go(reads);
    until("written", || {
        checkpoints(&scene).iter().any(|checkpoint| checkpoint.join("p1").exists())
    });
    scene.let_go(after);
    assert!(scene.await_faults(&mut running, there, LIMIT), "{}", running.told());
    until("named again", || b.exists());
    scene.kill_all(running);
    assert_eq!(whole(&scene).len(), 1);
    let ran = goes_on(&scene, true, "names removed");
    assert_eq!(resumed_at(&ran), Some(2), "{}", ran.told());
}

/// Returns each thread of a process: its name, and the processors on which it may run.
fn threads_of(process: Pid) -> Vec<(String, BTreeSet<usize>)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let read = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some((name.trim().to_owned(), read_list(list).into_iter().collect()))
    };
    tasks.filter_map(read).collect()
}

/// Helpers run on the cores of `--helper-cores`. No other thread of the run uses these cores, not even threads of the library.
#[test]
fn helpers_have_the_cores_that_are_named_for_them() {
    let topology = Topology::here();
    let all = cores::bound_to();
    let [_, .., last] = topology.among(all).one_a_core()[..] else {
        return left_out("one core: none is left for helpers");
    };
    let theirs = topology.of_their_cores(&BTreeSet::from([last]));
    let left: BTreeSet<usize> = all.difference(&theirs).copied().collect();
    let named = last.to_string();
    let scene = stored(1, 2).protect(&["--helper-cores", &named]);
    let faults = "stream-half:0:1:hang,stream-half:1:1:hang";
    let (running, came) = scene.may_freeze(faults, Duration::from_secs(60));
    assert!(came, "{}", running.told());
    for rank in running.ranks() {
        let threads = threads_of(rank.pid);
        let (helpers, others): (Vec<_>, Vec<_>) =
            threads.into_iter().partition(|(name, _)| name == "level-two");
        assert!(!helpers.is_empty() && !others.is_empty());
        assert!(helpers.iter().all(|(_, at)| *at == BTreeSet::from([last])), "{helpers:?}");
        assert!(others.iter().all(|(_, at)| at.is_subset(&left)), "{others:?} {left:?}");
    }
    let line = format!("a thread of each rank for storage, on processors {named} of each node");
    assert!(running.told().contains(&line), "{}", running.told());
    scene.kill_all(running);
    finish(&scene);

    let all = List(all.clone()).to_string();
    let scene = stored(1, 2).protect(&["--helper-cores", &all]);
    scene.expect_refused(1, &["--helper-cores", "nothing to compute with"]);
    let beyond = (cores::most() - 1).to_string();
    if !topology.among(&BTreeSet::from([cores::most() - 1])).in_order().is_empty() {
        return left_out("the system counts no processor that is not there");
    }
    let scene = stored(1, 2).protect(&["--helper-cores", &beyond]);
    scene.expect_refused(1, &["this node has no processor", &beyond]);
}

/// Losses that the groups survive are recovered from memory. After one loss more, the run resumes from storage.
#[test]
fn one_loss_more_than_memory_survives() {
    let scene = stored(2, 2);
    scene.inject("stream-begin:0:2:kill");
    assert!(!whole(&scene).is_empty());
    scene.lose(1);
    scene.inject("iteration:0:3:kill");
    scene.lose(2);
    scene.lose(3);
    let ran = finish(&scene);
    assert!(from_storage(&ran), "{}", ran.told());
}

/// If nodes return with old memory, the run resumes from the checkpoint on storage, which is further.
#[test]
fn old_memory_does_not_outrank_storage() {
    let problem = Scene::of(2, 2, LONGER).protect(&["--checkpoint", "1"]);
    let scene = Stored::of(problem, "1");
    scene.inject("manifest-whole:0:1:kill");
    let old: Vec<_> = (0..4).map(|p| crate::limits::Stash::take(&scene, p)).collect();
    lose_all(&scene);
    let first = resumed_at(&scene.inject("pruned:0:3:kill")).unwrap();
    lose_all(&scene);
    old.into_iter().for_each(|stash| stash.put_back());
    let ran = finish(&scene);
    assert!(from_storage(&ran) && resumed_at(&ran).unwrap() > first, "{}", ran.told());
}

pub fn flip(path: &Path, at: f64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let offset = (length as f64 * at) as u64;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

/// Saves of several starts count together towards `--level2-every`. So a checkpoint goes to storage even if no start lasts for
/// the whole interval.
#[test]
fn saves_of_several_starts_count_together() {
    let scene = Stored::of(Scene::of(2, 2, LONGER).protect(&["--checkpoint", "1"]), "5");
    for _ in 0..2 {
        scene.inject("committed:0:2:kill");
    }
    // The first checkpoint on storage is complete. At least four saves were made before this start.
    scene.inject("pruned:0:1:kill");
    lose_all(&scene);
    let ran = scene.expect_finished(scene.job().run());
    assert!(from_storage(&ran), "{}", ran.told());
    assert!((4..8).contains(&resumed_at(&ran).unwrap()), "{}", ran.told());
}

/// Damaged files are named and not used. If no checkpoint is usable, the start is refused, and the user decides whether to start
/// from scratch.
#[test]
fn files_that_are_not_what_was_written_are_named() {
    type Change = fn(&Path);
    let changes: &[(&str, &str, Change)] = &[
        ("a bit in a front", "p1", |checkpoint| flip(&checkpoint.join("p1"), 0.001)),
        ("a bit in the digests", "p2", |checkpoint| {
            // The digests follow the front and the small state.
            let length = fs::metadata(checkpoint.join("p2")).unwrap().len() as f64;
            flip(&checkpoint.join("p2"), (4096.0 + 1536.0 + 16.0) / length);
        }),
        ("a bit in a matrix", "p3", |checkpoint| flip(&checkpoint.join("p3"), 0.5)),
        ("a bit in the manifest", "manifest", |checkpoint| flip(&checkpoint.join("manifest"), 0.3)),
        ("a file cut short", "p0", |checkpoint| {
            let file = OpenOptions::new().write(true).open(checkpoint.join("p0")).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }),
        ("a file missing", "p2", |checkpoint| fs::remove_file(checkpoint.join("p2")).unwrap()),
        ("a manifest without files", "p0", |checkpoint| {
            (0..4).for_each(|p| fs::remove_file(checkpoint.join(format!("p{p}"))).unwrap());
        }),
        ("two files in each other's place", "p1", |checkpoint| {
            fs::rename(checkpoint.join("p1"), checkpoint.join("x")).unwrap();
            fs::rename(checkpoint.join("p2"), checkpoint.join("p1")).unwrap();
            fs::rename(checkpoint.join("x"), checkpoint.join("p2")).unwrap();
        }),
    ];
    for (what, named, change) in changes {
        let scene = stored(2, 2);
        scene.inject("pruned:0:2:kill");
        lose_all(&scene);
        let there = whole(&scene);
        assert_eq!(there.len(), 1);
        change(&there[0]);
        let ran = scene.job().run().expect_code(4);
        assert!(
            ran.err.contains(named) && ran.err.contains("--restart never"),
            "{what}: {}",
            ran.told()
        );
        assert!(!ran.out.contains("PASSED"), "{what}");
        scene.expect_nothing_left();
        // The refused start removes nothing. To start from scratch, a user must ask for it.
        assert_eq!(checkpoints(&scene).len(), 1, "{what}");
        let ran = scene.job().args(&["--restart", "never"]).run();
        assert_eq!(resumed_at(&scene.expect_finished(ran)), None);
    }
}

/// Makes a run without memory and with two complete checkpoints on storage. A file of the later checkpoint is damaged.
fn with_the_later_checkpoint_damaged() -> Stored {
    let scene = stored(2, 2);
    scene.inject("manifest-whole:0:2:kill");
    lose_all(&scene);
    let there = whole(&scene);
    assert_eq!(there.len(), 2);
    flip(&there[1].join("p1"), 0.5);
    scene
}

/// If a file of the latest checkpoint is damaged, the run resumes from the older complete checkpoint.
#[test]
fn an_older_checkpoint_stands_in_for_a_damaged_one() {
    let scene = with_the_later_checkpoint_damaged();
    let ran = finish(&scene);
    assert!(from_storage(&ran), "{}", ran.told());
}

/// A run with too few nodes for its groups is refused at its start, even if there is a checkpoint to resume from or `--restart
/// never` is set.
#[test]
fn with_too_few_nodes_for_groups_no_run_begins() {
    let scene = stored(2, 2).protect(&["--group", "4"]);
    scene.has_domains("abab");
    let refused = |ran: Ran| {
        let ran = ran.expect_code(1);
        assert!(ran.err.contains("groups of 4 cannot be formed"), "{}", ran.told());
    };
    refused(scene.job().run());
    scene.has_domains("abcd");
    scene.inject("pruned:0:2:kill");
    scene.has_domains("abab");
    refused(scene.job().args(&["--restart", "never"]).run());
    goes_on(&scene, true, "it took nothing away");
}

/// A checkpoint without a manifest is not used, and is reported.
#[test]
fn a_checkpoint_without_a_manifest_was_never_whole() {
    let scene = stored(2, 2);
    scene.inject("manifest-synced:0:1:kill");
    lose_all(&scene);
    let ran = finish(&scene);
    assert!(ran.err.contains("never completed") && resumed_at(&ran).is_none(), "{}", ran.told());
}

#[test]
fn another_run_under_the_same_name_is_refused() {
    let scene = stored(2, 2);
    scene.inject("pruned:0:2:kill");
    lose_all(&scene);
    let before = whole(&scene);
    for other in [["--seed", "7"], ["--nbmin", "8"]] {
        let ran = scene.job().args(&other).run().expect_code(1);
        assert!(ran.err.contains("another run") && ran.err.contains("boundary"), "{}", ran.told());
    }
    let ran = scene.job().args(&["--engine", "blas"]).run().expect_code(6);
    assert!(ran.err.contains("another arithmetic"), "{}", ran.told());
    assert_eq!(whole(&scene), before);
    assert!(from_storage(&finish(&scene)));
}

#[test]
fn restart_require_and_never() {
    let scene = stored(2, 2);
    let ran = scene.job().args(&["--restart", "require"]).run().expect_code(4);
    assert!(ran.err.contains("--restart require"), "{}", ran.told());
    scene.inject("pruned:0:1:kill");
    lose_all(&scene);
    let ran = scene.job().args(&["--restart", "require"]).run();
    assert!(from_storage(&scene.expect_finished(ran)));
    scene.inject("pruned:0:1:kill");
    lose_all(&scene);
    let ran = scene.job().args(&["--restart", "never"]).run();
    assert_eq!(resumed_at(&scene.expect_finished(ran)), None);
}

/// `--restart never` is refused if old files on storage cannot be removed. The first restart of the run would find them.
#[test]
fn restart_never_does_not_begin_if_old_files_cannot_be_removed() {
    let scene = stored(2, 2);
    scene.inject("pruned:0:1:kill");
    lose_all(&scene);
    // If others may write to the folder, the files may be theirs, so the program does not remove them.
    let open = |mode| {
        fs::set_permissions(scene.folder(), fs::Permissions::from_mode(mode)).unwrap();
    };
    open(0o770);
    let ran = scene.job().args(&["--restart", "never"]).run().expect_code(6);
    assert!(ran.err.contains("could not be removed"), "{}", ran.told());
    open(0o700);
    assert!(from_storage(&finish(&scene)));
}

/// A stop writes its checkpoint to storage. The next job resumes from it, with all memory lost.
#[test]
fn a_stop_ends_on_storage() {
    for (signal, every, helpers) in [
        (Signal::SIGUSR1, "1h", "threads"),
        (Signal::SIGTERM, "1", "threads"),
        (Signal::SIGUSR2, "2h", "threads"),
        // Without helpers, the last save of these runs has waited for storage already (`1`), or has not (`1h`).
        (Signal::SIGTERM, "1", "off"),
        (Signal::SIGUSR1, "1h", "off"),
    ] {
        let scene = Stored::of(Scene::of(2, 2, SMALL).protect(&["--checkpoint", "10"]), every);
        let scene = scene.protect(&["--helpers", helpers]);
        let running = scene.freeze("iteration:0:6:stop");
        ask(&running, signal);
        let ran = running.end().expect_code(75);
        let said = ran.err.matches("is on storage").count();
        assert!(ran.err.contains("and in ") && said == 1, "{}", ran.told());
        assert_eq!(whole(&scene).len(), 1);
        lose_all(&scene);
        let ran = finish(&scene);
        assert!(from_storage(&ran), "{}", ran.told());
        let from = resumed_at(&ran).unwrap();
        let regular = signal == Signal::SIGUSR2;
        assert!(if regular { from == 10 } else { (4..10).contains(&from) }, "{signal} {from}");
    }
}

pub fn ask(running: &Running, signal: Signal) {
    let first = running.ranks().into_iter().find(|rank| rank.rank == 0).unwrap();
    kill(first.pid, signal).unwrap();
    kill(first.pid, Signal::SIGCONT).unwrap();
}

/// A sweep whose memory is lost in its third test has the results of the first two tests on storage.
#[test]
fn a_sweep_goes_on_in_its_third_test_without_memory() {
    let sweep = ["-n", "120,151,181,210", "--nb", "10"];
    let scene = Stored::of(Scene::of(2, 2, &sweep).protect(&["--checkpoint", "1"]), "1");
    // Asserts that results of finished tests are printed again unchanged, including their times, and that their tests are not
    // repeated.
    let told_again = |first: &[String], ran: &Ran| {
        assert_eq!((first.len(), results(ran).len()), (2, 4), "{}", ran.told());
        for line in first {
            assert!(results(ran).contains(line), "{line}: {}", ran.told());
        }
        assert_eq!(ran.out.matches("PASSED").count(), 4, "{}", ran.told());
        assert!(!ran.err.contains("any more"), "{}", ran.told());
    };
    let first = results(&scene.inject("solve-begin:1:3:kill"));
    lose_all(&scene);
    let third = !whole(&scene).is_empty();
    let ran = finish(&scene);
    told_again(&first, &ran);
    assert_eq!(ran.err.contains("test 3 resumes"), third, "{}", ran.told());
    assert!(!ran.err.contains("test 1 resumes") && !ran.err.contains("test 2 resumes"));
    // After a recovery from storage, the results of finished tests are in memory again. A further fault does not lose them.
    let first = results(&scene.inject("solve-begin:1:3:kill"));
    lose_all(&scene);
    scene.inject("iteration:0:3:kill");
    told_again(&first, &finish(&scene));
}

/// A start cannot claim DIR at first. It keeps the results of its finished tests in memory until it can claim DIR and write them.
#[test]
fn results_stay_where_dir_becomes_its_own_late() {
    let sweep = ["-n", "301,120", "--nb", "10"];
    let scene = Stored::of(Scene::of(2, 2, &sweep).protect(&["--checkpoint", "1"]), "1h");
    let mut running =
        scene.start_with("agree-begin:0:1:stop,iteration:0:3:stop,solve-begin:1:2:kill");
    let stops_at = |running: &mut Running, place: &str| {
        assert!(scene.await_faults(running, place, Duration::from_secs(60)), "{place}");
        let halted = || running.ranks().iter().any(|rank| rank.rank == 0 && rank.halted());
        while !halted() {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // The start has read the folder, and is about to claim it.
    stops_at(&mut running, "agree-begin:0:1");
    let in_the_way = scene.folder().join(owner(u128::MAX));
    fs::write(&in_the_way, "").unwrap();
    ask(&running, Signal::SIGCONT);
    stops_at(&mut running, "iteration:0:3");
    assert_eq!(owners(&scene), [u128::MAX]);
    fs::remove_file(&in_the_way).unwrap();
    ask(&running, Signal::SIGCONT);
    let ran = running.end();
    let first = results(&ran);
    assert_eq!(first.len(), 1, "{}", ran.told());
    assert_eq!(owners(&scene).len(), 1, "{}", ran.told());
    lose_all(&scene);
    let ran = finish(&scene);
    assert!(results(&ran).contains(&first[0]) && results(&ran).len() == 2, "{}", ran.told());
    assert!(!ran.err.contains("any more"), "{}", ran.told());
}

/// Returns the start numbers that the claims in DIR name.
fn owners(scene: &Stored) -> Vec<u128> {
    let entries = fs::read_dir(scene.folder()).unwrap().flatten();
    entries.filter_map(|entry| parse_owner(entry.file_name().to_str()?)).collect()
}

/// All memory is lost between two launches of a supervised run. Under `--restart never`, the second launch still uses the run's
/// own checkpoints on storage.
#[test]
fn restart_never_keeps_what_a_supervised_run_has_on_storage() {
    let mut scene = stored(2, 2).protect(&["--restart", "never"]);
    scene.scene.also("SKT_RUN_ID", "supervised");
    scene.inject("manifest-whole:0:2:kill");
    lose_all(&scene);
    scene.scene.also("SKT_ATTEMPT", "2");
    let ran = finish(&scene);
    assert!(from_storage(&ran), "{}", ran.told());
}

#[test]
fn a_dir_that_cannot_be_used_is_told_before_anything_begins() {
    let scene = Scene::new(2, 2);
    for (dir, says) in [("/nonexistent/dir", "No such file"), ("/etc/passwd", "not a folder")] {
        let ran = scene.job().args(&["--level2", dir]).run().expect_code(6);
        assert!(ran.err.contains(dir) && ran.err.contains(says), "{}", ran.told());
        scene.expect_nothing_left();
    }
}

/// If storage is missing at a restart, the run resumes from memory if memory has a checkpoint. Otherwise the start is refused,
/// and never starts from scratch.
#[test]
fn storage_that_is_gone_at_a_restart() {
    let scene = stored(2, 2);
    scene.inject("manifest-whole:0:2:kill");
    let aside = scene.path("aside");
    let hide = || Command::new("mv").arg(scene.storage.path()).arg(&aside).status().unwrap();
    let show = || Command::new("mv").arg(&aside).arg(scene.storage.path()).status().unwrap();
    assert!(hide().success());
    // The memory of two of four positions is lost, one more than the group survives.
    scene.lose(0);
    scene.lose(1);
    let dir = scene.storage.path().to_str().unwrap();
    scene.expect_refused(4, &["Storage might help", dir, "kept"]);
    assert!(show().success());
    scene.inject("manifest-whole:0:2:kill");
    assert!(hide().success());
    scene.lose(2);
    let ran = scene.scene.expect_finished(scene.job().run());
    assert!(ran.err.contains("continues from memory alone"), "{}", ran.told());
    assert!(ran.err.contains("could not be removed"), "{}", ran.told());
    assert!(show().success());
    let clean = ["clean", "--job", &scene.name, "--level2", dir];
    assert!(Command::new(PROGRAM).args(clean).status().unwrap().success());
    // Storage cannot be read, and memory is empty or contains no checkpoint. The program cannot know whether there is a
    // checkpoint to resume from.
    assert!(hide().success());
    scene.expect_refused(6, &["No such file", dir]);
    assert!(show().success());
    scene.inject("generate-end:0:1:kill");
    assert!(hide().success());
    scene.expect_refused(6, &["no checkpoint of this run", dir]);
    assert!(show().success());
    finish(&scene);
}

#[test]
fn status_and_clean_know_dir() {
    let scene = stored(2, 2);
    scene.inject("pruned:0:1:kill");
    let dir = scene.storage.path().to_str().unwrap().to_owned();
    let say = |args: &[&str]| {
        let out = Command::new(PROGRAM).args(args).args(["--level2", &dir]).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let words = say(&["status"]);
    assert!(words.contains("N = 903, NB = 10, grid 2 x 2, boundary "), "{words}");
    let page: serde_json::Value = serde_json::from_str(&say(&["status", "--json"])).unwrap();
    let checkpoint = &page["storage"][0]["checkpoints"][0];
    assert_eq!((checkpoint["n"].as_u64(), checkpoint["p"].as_u64()), (Some(903), Some(2)));
    assert!(checkpoint["bytes"].as_u64().unwrap() >= 903 * 904 * 8, "{checkpoint}");
    // `clean` does not remove files of another job.
    let said = say(&["clean", "--job", "somebody-else"]);
    assert!(said.contains("nothing of yours in") && !whole(&scene).is_empty(), "{said}");
    let said = say(&["clean", "--job", &scene.name]);
    assert!(said.contains("files from") && !scene.folder().exists(), "{said}");
    scene.expect_nothing_left();
}

/// Small file system that only root can mount. Dropping the value unmounts it.
pub struct Small(PathBuf);

impl Small {
    pub fn mount(at: &Path, bytes: u64) -> Self {
        let size = format!("size={bytes}");
        let mounted = Self::mounted(at, &["-t", "tmpfs", "-o", &size, "tmpfs"]);
        mounted.expect("this test mounts a tmpfs: root only")
    }

    /// Mounts an ext4 file system of `bytes` bytes in a file, through a loop device. Returns None if the system cannot make or
    /// mount one.
    fn on_a_loop_device(at: &Path, bytes: u64) -> Option<Self> {
        let image = at.with_extension("img");
        fs::File::create(&image).and_then(|file| file.set_len(bytes)).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image).status();
        made.ok().filter(|status| status.success())?;
        Self::mounted(at, &["-o", "loop", image.to_str().unwrap()])
    }

    /// Remounts the file system read-only if `only` is set, otherwise writable.
    fn only_read(&self, only: bool) {
        let how = if only { "remount,ro" } else { "remount,rw" };
        assert!(Command::new("mount").args(["-o", how]).arg(&self.0).status().unwrap().success());
    }

    fn mounted(at: &Path, how: &[&str]) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let done = Command::new("mount").args(how).arg(at).status();
        done.unwrap().success().then(|| Self(at.into()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// If storage is full, the run warns once and continues. The complete checkpoint stays.
#[test]
#[ignore = "mounts a tmpfs and an ext4: root only"]
fn full_storage_is_told_once_and_the_checkpoint_before_stays() {
    type Kind = fn(&Path) -> Option<Small>;
    // Storage has room for one checkpoint, not for two.
    let tmpfs: Kind = |at| Some(Small::mount(at, 40 << 20));
    let ext4: Kind = |at| Small::on_a_loop_device(at, 52 << 20);
    for (kind, helpers) in
        [tmpfs, ext4].into_iter().flat_map(|kind| ["threads", "off"].map(|helpers| (kind, helpers)))
    {
        let scene = Scene::of(2, 2, LONG).protect(&["--checkpoint", "2", "--helpers", helpers]);
        let at = scene.path("small");
        let Some(_small) = kind(&at) else {
            left_out("no ext4 on a loop device can be had");
            continue;
        };
        let scene = Stored::within(at.to_str().unwrap(), scene, "1");
        let ran = scene.inject("iteration:0:85:kill");
        assert_eq!(ran.err.matches("could not be written to").count(), 1, "{}", ran.told());
        assert!(
            ran.err.contains("No space left") && ran.err.contains("The run continues"),
            "{}",
            ran.told()
        );
        lose_all(&scene);
        let ran = finish(&scene);
        assert!(from_storage(&ran), "{}", ran.told());
    }
}

/// Thread that makes a file system slow: it lets it write for 10 ms, then freezes it for a longer time, and repeats this.
struct Slow {
    over: Arc<AtomicBool>,
    /// Length of the next freeze, in milliseconds.
    stops: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Slow {
    const USUAL_MS: u64 = 250;

    fn begin(at: &Path) -> Self {
        let (over, at) = (Arc::new(AtomicBool::new(false)), at.to_owned());
        let told = Arc::clone(&over);
        let stops = Arc::new(AtomicU64::new(Self::USUAL_MS));
        let next = Arc::clone(&stops);
        let thread = std::thread::spawn(move || {
            let set = |how| Command::new("fsfreeze").arg(how).arg(&at).status().unwrap().success();
            while !told.load(Ordering::Relaxed) {
                assert!(set("-f"), "this test freezes a file system: root only");
                let stop = next.swap(Self::USUAL_MS, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(stop));
                assert!(set("-u"));
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self { over, stops, thread: Some(thread) }
    }

    /// Freezes the file system for the duration `stop`. Returns when the freeze begins.
    fn stop(&self, stop: Duration) {
        let ms = stop.as_millis() as u64;
        self.stops.store(ms, Ordering::Relaxed);
        while self.stops.load(Ordering::Relaxed) == ms {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()), "not slow");
    }
}

/// Slow storage delays only checkpoints: they are completed, ranks that need them wait, and the run can resume from them.
#[test]
#[ignore = "mounts an ext4 and freezes it: root only"]
fn slow_storage_is_waited_for_where_it_must_be() {
    for helpers in ["threads", "off"] {
        let scene = Scene::of(2, 2, LONG).protect(&["--checkpoint", "20", "--helpers", helpers]);
        let at = scene.path("small");
        let Some(_small) = Small::on_a_loop_device(&at, 96 << 20) else {
            return left_out("no ext4 on a loop device can be had");
        };
        let scene = Stored::within(at.to_str().unwrap(), scene, "1");
        let slow = Slow::begin(&at);
        // On a stop between two saves, the run waits until its checkpoint is on storage. Helpers that still write an older
        // checkpoint must first give it up, which takes long on slow storage.
        let running = scene.freeze("iteration:0:50:stop");
        slow.stop(Duration::from_secs(2));
        ask(&running, Signal::SIGUSR1);
        let ran = running.end().expect_code(75);
        assert!(ran.err.contains("is on storage"), "{helpers}: {}", ran.told());
        assert!(!ran.err.contains("could not be written to"), "{helpers}: {}", ran.told());
        lose_all(&scene);
        let ran = finish(&scene);
        drop(slow);
        assert!(from_storage(&ran) && resumed_at(&ran) >= Some(50), "{helpers}: {}", ran.told());
        let account = account(&ran);
        assert_eq!(account.fetched, 1, "{helpers}: {account:?}");
        // With helpers, ranks do not wait, so the run may end before any checkpoint is complete.
        let waited = account.checkpoints > 0 && account.wait_s > 0.25;
        assert!(waited || helpers != "off", "{account:?}");
    }
}

/// If storage has no room for the checkpoint of a stop, the run reports this. The checkpoint is in memory.
#[test]
#[ignore = "mounts a tmpfs: root only"]
fn a_stop_that_does_not_get_to_storage_says_so() {
    let scene = Scene::of(2, 2, SMALL).protect(&["--checkpoint", "10"]);
    let at = scene.path("small");
    let _small = Small::mount(&at, 300_000);
    let scene = Stored::within(at.to_str().unwrap(), scene, "1h");
    let running = scene.freeze("iteration:0:6:stop");
    ask(&running, Signal::SIGUSR1);
    let ran = running.end().expect_code(75);
    assert!(
        ran.err.contains("THE SAVE IS NOT IN") && ran.err.contains("No space left"),
        "{}",
        ran.told()
    );
    assert!(whole(&scene).is_empty());
    let ran = finish(&scene);
    assert!(!from_storage(&ran) && resumed_at(&ran).is_some(), "{}", ran.told());
}

/// All memory is lost, and storage can be read but not written, as after a disk error. The run resumes from storage and warns
/// that it writes no checkpoints. A new run, which finds no checkpoint there, is refused.
#[test]
#[ignore = "mounts a tmpfs: root only"]
fn storage_that_can_only_be_read_brings_the_run_back() {
    for scope in ["shared", "node"] {
        let scene = Scene::of(2, 2, LONGER).protect(&["--checkpoint", "1"]);
        let at = scene.path("small");
        let small = Small::mount(&at, 64 << 20);
        (0..4).for_each(|node| fs::create_dir(at.join(format!("d{node}"))).unwrap());
        let dir = at.join(if scope == "node" { "{domain}" } else { "d0" });
        let words = ["--level2-every", "1", "--level2-scope", scope, "--level2"];
        let scene = scene.protect(&words).protect(&[dir.to_str().unwrap()]);
        let there = || whole_in(&at.join("d0"), &scene);
        small.only_read(true);
        scene.expect_refused(6, &["cannot be written in", "d0"]);
        small.only_read(false);
        scene.inject("manifest-whole:0:2:kill");
        lose_all(&scene);
        let before = there();
        assert!(!before.is_empty());
        small.only_read(true);
        let ran = scene.inject("iteration:1:20:kill");
        assert!(from_storage(&ran), "{}", ran.told());
        let says = "uses the checkpoints that are there, and writes nothing to storage until it is started again";
        assert_eq!(ran.err.matches(says).count(), 1, "{}", ran.told());
        let ran = scene.expect_finished(scene.job().run());
        assert!(!from_storage(&ran) && resumed_at(&ran).is_some(), "{}", ran.told());
        assert!(ran.err.contains("could not be removed"), "{}", ran.told());
        assert!(!ran.err.contains("could not be written to"), "{}", ran.told());
        assert_eq!(there(), before);
        // A start from scratch would have to remove the files on storage.
        let ran = scene.job().args(&["--restart", "never"]).run().expect_code(6);
        assert!(ran.err.contains("cannot be written in"), "{}", ran.told());
        // On a stop, the run reports that only memory has the checkpoint.
        let running = scene.freeze("iteration:0:6:stop");
        ask(&running, Signal::SIGUSR1);
        let ran = running.end().expect_code(75);
        assert!(ran.err.contains("THE SAVE IS NOT IN"), "{}", ran.told());
        small.only_read(false);
        scene.expect_finished(scene.job().run());
        assert!(there().is_empty());
    }
}

/// If the disk disappears during the run, the run warns and ends as if it had no level two.
#[test]
#[ignore = "mounts a tmpfs: root only"]
fn storage_that_vanishes_costs_nothing_but_itself() {
    let scene = Scene::of(2, 2, LONGER).protect(&["--checkpoint", "1"]);
    let at = scene.path("small");
    let small = Small::mount(&at, 64 << 20);
    let scene = Stored::within(at.to_str().unwrap(), scene, "1");
    let running = scene.freeze("iteration:0:9:stop");
    drop(small);
    ask(&running, Signal::SIGCONT);
    let ran = scene.expect_finished(running.end());
    assert!(ran.err.contains("could not be written to"), "{}", ran.told());
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// The run survives a fault at each step of a recovery from storage and of the save that follows it. Memory is then kept, or
    /// lost again.
    #[test]
    fn coming_back_survives_a_fault_at_every_step() {
        let steps = [
            "fetch-begin",
            "fetch-half",
            "fetch-end",
            "tidied",
            "encode-batch",
            "sealed",
            "flush-half",
        ];
        for (i, step) in steps.into_iter().enumerate() {
            for lost in [false, true] {
                let scene = stored(2, 2);
                scene.inject("manifest-whole:0:2:kill");
                lose_all(&scene);
                scene.inject(&format!("{step}:{}:1:kill", i % 4));
                if lost {
                    lose_all(&scene);
                }
                let ran = finish(&scene);
                // After all ranks have sealed, memory has the checkpoint. If a rank fails at `sealed`, other ranks may not have
                // sealed yet.
                match (step, lost) {
                    ("flush-half", false) => assert!(!from_storage(&ran), "{}", ran.told()),
                    ("sealed", false) => {}
                    _ => assert!(from_storage(&ran), "{step}, {lost}: {}", ran.told()),
                }
                assert!(resumed_at(&ran).is_some());
            }
        }
    }

    /// The run resumes after a fault at each step of writing to storage, with all memory lost and with all memory kept.
    #[test]
    fn a_run_survives_a_fault_at_every_step_to_storage() {
        for (i, point) in to_storage().into_iter().enumerate() {
            let position = if of_first(point) { 0 } else { i % 4 };
            for lost in [true, false] {
                let scene = stored(2, 2);
                scene.inject(&format!("{}:{position}:2:kill", point.name()));
                // At least one earlier checkpoint was completed, so one complete checkpoint remains in any case.
                let there = whole(&scene);
                assert!(
                    !there.is_empty(),
                    "{} at {position}: {:?}",
                    point.name(),
                    checkpoints(&scene)
                );
                goes_on(&scene, lost, &format!("{} at {position}", point.name()));
            }
        }
    }

    /// Without helpers, while ranks wait for storage, the run survives a fault at each step. Memory is lost and kept in turn.
    #[test]
    fn without_helpers_a_fault_at_every_step_to_storage_is_survived() {
        for (i, point) in to_storage().into_iter().enumerate() {
            let position = if of_first(point) { 0 } else { i % 4 };
            let scene = stored(2, 2).protect(&["--helpers", "off"]);
            scene.inject(&format!("{}:{position}:2:kill", point.name()));
            assert!(!whole(&scene).is_empty(), "{}: {:?}", point.name(), checkpoints(&scene));
            goes_on(&scene, i % 2 == 0, point.name());
        }
    }

    /// Without helpers, ranks wait at most a minute for storage that hangs. They then continue without it.
    #[test]
    fn without_helpers_storage_that_hangs_keeps_ranks_for_a_minute_at_most() {
        let problem = Scene::of(2, 2, SMALL).protect(&["--checkpoint", "5", "--helpers", "off"]);
        let scene = Stored::of(problem.limit(Duration::from_secs(200)), "1");
        let began = Instant::now();
        let ran = scene.may_inject("stream-half:1:2:hang");
        let took = began.elapsed().as_secs_f64();
        assert_eq!(scene.injected(), ["stream-half:1:2"]);
        let ran = scene.expect_finished(ran);
        assert_eq!(ran.err.matches("could not be written to").count(), 1, "{}", ran.told());
        assert!(ran.err.contains("position 1: its helper is stuck"), "{}", ran.told());
        let account = account(&ran);
        assert_eq!(account.checkpoints, 1, "{account:?}");
        assert!((59.0..took).contains(&account.wait_s), "{account:?} of {took} s");
    }

    /// A stop waits at most a minute for a helper that makes no progress. The last message reports that storage has no
    /// checkpoint. The other ranks remove their files, so that DIR needs room for two checkpoints only.
    #[test]
    fn a_stop_waits_a_minute_for_a_helper_that_hangs() {
        let scene = Scene::of(2, 2, SMALL).protect(&["--checkpoint", "10"]);
        let scene = Stored::of(scene.limit(Duration::from_secs(200)), "1h");
        let held = scene.hang_at("iteration:0:6");
        let running = scene.start_with(&format!("{held},stream-half:1:1:hang"));
        until("at its boundary", || {
            scene.injected().iter().any(|injected| injected == "iteration:0:6")
        });
        ask(&running, Signal::SIGUSR1);
        scene.let_go("iteration:0:6");
        let ran = running.end().expect_code(75);
        assert!(ran.err.contains("THE SAVE IS NOT IN"), "{}", ran.told());
        assert!(ran.err.contains("position 1: its helper is stuck"), "{}", ran.told());
        let checkpoints = checkpoints(&scene);
        assert_eq!(checkpoints.len(), 1, "{checkpoints:?}");
        let files: Vec<_> = fs::read_dir(&checkpoints[0]).unwrap().flatten().collect();
        let names: Vec<_> = files.iter().map(|file| file.file_name()).collect();
        assert_eq!(names, ["p1.aside"], "{}", ran.told());
        assert!(!from_storage(&finish(&scene)));
    }

    /// A run that starts from scratch removes the files of another run from memory first and from storage second. After a fault
    /// in between, its next launch starts from scratch too.
    #[test]
    fn a_run_killed_while_it_removes_storage_of_another_begins_from_scratch() {
        for fault in GROUND.into_iter().chain(["prune-half:0:1:kill"]) {
            let scene = stored(2, 2);
            scene.inject("manifest-whole:0:2:kill");
            let mut scene = scene.protect(&["--restart", "never"]);
            scene.scene.also("SKT_RUN_ID", "supervised");
            scene.inject(fault);
            scene.scene.also("SKT_ATTEMPT", "2");
            let ran = finish(&scene);
            assert!(!from_storage(&ran), "{fault}: {}", ran.told());
            assert_eq!(resumed_at(&ran), None, "{fault}: {}", ran.told());
        }
    }

    /// A start is killed while it removes the damaged later checkpoint, or after the removal, before its first save. The older
    /// checkpoint remains usable.
    #[test]
    fn a_start_that_is_cut_off_while_it_removes_what_nobody_needs_leaves_what_is_of_use() {
        for (step, lost) in
            [("tidy-half:0", true), ("tidied:0", true), ("tidy-half:0", false), ("tidied:3", false)]
        {
            let scene = with_the_later_checkpoint_damaged();
            let there = whole(&scene);
            scene.inject(&format!("{step}:1:kill"));
            // Other ranks do not wait until position 0 has removed the later checkpoint.
            assert!(step == "tidied:3" || whole(&scene) == there[..1], "{step}");
            if lost {
                lose_all(&scene);
            }
            let ran = finish(&scene);
            assert!(from_storage(&ran) && resumed_at(&ran).is_some(), "{step}: {}", ran.told());
        }
    }

    /// After all memory is lost, fewer nodes are left than a group has members, so nodes have two members each. The run resumes
    /// from storage and completes its sweep. If a group does not survive the loss of a node, the run warns in each test.
    #[test]
    fn with_too_few_nodes_for_groups_the_run_goes_on_from_storage() {
        let cases = [
            ("abab", ["--group", "4"], 0),
            ("aaaa", ["--group", "4"], 2),
            ("abab", ["--losses", "2"], 0),
        ];
        for (domains, asked, warned) in cases {
            let sweep = Scene::of(2, 2, LONGER).grids(&[(2, 2), (1, 4)]);
            let scene = Stored::of(sweep.protect(&["--checkpoint", "1"]), "1").protect(&asked);
            scene.inject("pruned:0:2:kill");
            lose_all(&scene);
            scene.has_domains(domains);
            let ran = finish(&scene);
            assert!(from_storage(&ran), "{}", ran.told());
            let words = "a now holds 4 members of one group";
            assert_eq!(ran.err.matches(words).count(), warned, "{}", ran.told());
        }
    }

    /// An unfinished checkpoint is removed before the next begins. DIR needs room for two checkpoints, not for three.
    #[test]
    fn files_of_an_interrupted_checkpoint_go_before_the_next_is_begun() {
        for lost in [false, true] {
            // Without helpers, each save waits for storage, even on a busy machine.
            let scene = stored(2, 2).protect(&["--helpers", "off"]);
            scene.kill_all(scene.freeze("stream-half:1:2:stop"));
            let there = checkpoints(&scene);
            assert_eq!((there.len(), whole(&scene)), (2, vec![there[0].clone()]), "{there:?}");
            if lost {
                lose_all(&scene);
            }
            let running = scene.freeze("stream-half:0:1:stop");
            let now = checkpoints(&scene);
            assert_eq!(now.len(), 2, "{now:?}");
            assert!(now[0] == there[0] && now[1] != there[1], "{there:?}: {now:?}");
            scene.kill_all(running);
            goes_on(&scene, lost, "interrupted twice");
        }
    }

    /// A complete checkpoint that is out of date when the run is killed is removed before the next checkpoint begins.
    #[test]
    fn outdated_checkpoints_go_before_the_next_is_begun() {
        for lost in [false, true] {
            let scene = stored(2, 2).protect(&["--helpers", "off"]);
            scene.inject("manifest-whole:0:2:kill");
            let there = whole(&scene);
            assert_eq!(there.len(), 2, "{there:?}");
            if lost {
                lose_all(&scene);
            }
            let running = scene.freeze("stream-half:0:1:stop");
            let left: Vec<_> =
                whole(&scene).into_iter().filter(|checkpoint| there.contains(checkpoint)).collect();
            assert_eq!(left.len(), 1, "{there:?}: {left:?}");
            scene.kill_all(running);
            goes_on(&scene, lost, "cut off before it was removed");
        }
    }

    /// Without helpers, ranks wait until each checkpoint is on storage. The files and the recovery are the same as with helpers.
    #[test]
    fn without_helpers_the_same_checkpoints_are_written_and_come_back() {
        let written = ["threads", "off"].map(|helpers| {
            let problem = Scene::of(2, 2, LONG).protect(&["--checkpoint", "20"]);
            let scene = Stored::of(problem.protect(&["--helpers", helpers]), "1");
            scene.inject("manifest-whole:0:1:kill");
            let there = whole(&scene);
            assert_eq!(there.len(), 1, "{helpers}: {:?}", checkpoints(&scene));
            let written = matrices(&there[0]);
            lose_all(&scene);
            let ran = finish(&scene);
            assert!(from_storage(&ran) && resumed_at(&ran) == Some(20), "{}", ran.told());
            let account = account(&ran);
            assert_eq!((account.fetched, account.waited), (1, helpers == "off"), "{account:?}");
            if helpers == "off" {
                // The run wrote checkpoints at boundaries 40, 60 and 80, and put none off.
                assert!(account.checkpoints >= 3 && account.put_off == 0, "{account:?}");
                assert!(account.wait_s > 0.0 && account.wait_s < 60.0, "{account:?}");
                assert!(ran.err.contains("for which the ranks waited"), "{}", ran.told());
                assert!(ran.err.contains("helpers: none"), "{}", ran.told());
            }
            written
        });
        assert_eq!(written[0][0].0, 20);
        assert!(written[0] == written[1], "other files");
    }

    /// Ranks that are idle in the first test of a start learn the content of storage together with the other ranks. They can take
    /// part in a recovery in the next test.
    #[test]
    fn ranks_that_were_idle_in_the_first_test_go_along_in_the_next() {
        let sweep =
            Scene::of(2, 2, LONGER).grids(&[(1, 2), (2, 2)]).protect(&["--checkpoint", "2"]);
        let scene = Stored::of(sweep, "1");
        scene.inject("iteration:1:40:kill");
        fs::write(scene.folder().join("result-9"), "garbage").unwrap();
        let ran = finish(&scene);
        assert!(
            ran.err.contains("not used, because damaged") && resumed_at(&ran).is_some(),
            "{}",
            ran.told()
        );
        // The first test is read from storage. From this moment, the memory of all ranks belongs to one run.
        scene.inject("manifest-whole:0:2:kill");
        for position in 0..2 {
            scene.lose(position);
        }
        let ran = scene.inject("iteration:3:20:kill");
        assert!(from_storage(&ran), "{}", ran.told());
        let ran = finish(&scene);
        assert!(ran.err.contains("test 2 resumes"), "{}", ran.told());
        assert!(!ran.err.contains("test 1 resumes"), "{}", ran.told());
    }

    /// Starts that resume from storage and die before their first save count as attempts. Memory is lost after each start, except
    /// after the last.
    #[test]
    fn starts_that_come_back_and_die_before_they_save_are_counted() {
        let scene = stored(2, 2);
        scene.inject("manifest-whole:0:2:kill");
        for (fault, lost) in
            [("fetch-begin:1:1", true), ("fetch-half:2:1", true), ("tidied:3:1", false)]
        {
            lose_all(&scene);
            scene.inject(&format!("{fault}:kill"));
            if lost {
                lose_all(&scene);
            }
        }
        let ran = finish(&scene);
        assert!(from_storage(&ran), "{}", ran.told());
        let protection = ran.json().tests[0].outcome.as_ref().unwrap().protection.unwrap();
        assert_eq!((protection.attempts, protection.in_place), (5, 0), "{}", ran.told());
    }

    /// With many process columns, ranks agree less often on whether to save. Checkpoints still reach storage, also after a loss,
    /// and a requested stop still writes one.
    #[test]
    fn many_columns_that_ask_seldom_bring_checkpoints_to_storage() {
        for helpers in ["threads", "off"] {
            let scene = Scene::of(1, 10, LONGER).protect(&["--checkpoint", "20"]);
            let scene = Stored::of(scene, "1").protect(&["--helpers", helpers]);
            scene.inject("iteration:7:67:kill");
            assert_eq!(whole(&scene).len(), 1, "{helpers}");
            lose_all(&scene);
            let running = scene.freeze("iteration:0:9:stop");
            ask(&running, Signal::SIGUSR1);
            let ran = running.end().expect_code(75);
            assert!(from_storage(&ran), "{}", ran.told());
            let stood = resumed_at(&ran).unwrap();
            assert!([20, 40, 60].contains(&stood), "{}", ran.told());
            assert!(ran.err.contains("is on storage"), "{}", ran.told());
            lose_all(&scene);
            let ran = finish(&scene);
            let from = resumed_at(&ran).unwrap();
            assert!(
                from_storage(&ran) && (stood + 8..=stood + 21).contains(&from),
                "{}",
                ran.told()
            );
        }
    }

    /// With a rank that stores parity only, the run survives a fault at a step to storage or elsewhere, with memory lost or kept.
    /// Runs with and without such a rank can read each other's files.
    #[test]
    fn a_rank_that_keeps_checksums_alone_goes_along_to_storage_and_back() {
        let steps: [(&str, &[&str]); 5] = [
            ("manifest-whole:0:2", &[]),
            ("stream-half:2:2", &["--helpers", "off"]),
            // The fault is in a save while a checkpoint is being written to storage.
            ("encode-end:4:40", &["--method", "double"]),
            ("pruned:0:2", &["--losses", "1", "--method", "single"]),
            ("iteration:4:70", &["--encode", "reduce"]),
        ];
        for (i, (step, args)) in steps.iter().enumerate() {
            let scene = with_dedicated(args);
            scene.inject(&format!("{step}:kill"));
            let there = whole(&scene);
            assert!(!there.is_empty(), "{step}: {:?}", checkpoints(&scene));
            let files = fs::read_dir(there.last().unwrap()).unwrap().count();
            assert_eq!(files, 5, "a file of each of four and the manifest: {there:?}");
            let ran = goes_on(&scene, i != 4, step);
            assert!(resumed_at(&ran).is_some_and(|k| k > 0), "{step}: {}", ran.told());
        }
        for layouts in [["dedicated", "striped"], ["striped", "dedicated"]] {
            let scene = Scene::of(2, 2, LONGER).idle(1).protect(&["--checkpoint", "1"]);
            let mut scene = Stored::of(scene, "1");
            scene.scene.also("SKT_PARITY_LAYOUT", layouts[0]);
            scene.inject("manifest-whole:0:2:kill");
            lose_all(&scene);
            scene.scene.also("SKT_PARITY_LAYOUT", layouts[1]);
            let ran = finish(&scene);
            assert!(from_storage(&ran), "{layouts:?}: {}", ran.told());
        }
    }
}
