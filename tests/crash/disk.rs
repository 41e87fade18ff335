//! Tests of method disk: memory contains only the matrix, and every save goes to DIR.
//!
//! Faults come in chains: each start fails at a later step than the one before. Memory is kept or lost in turn, with a shared DIR
//! and with one DIR per node. Storage is damaged, emptied and full. A run never gives a wrong answer, and never resumes from
//! memory.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};

use crate::job::{PROGRAM, Ran};
use crate::level2::{ask, flip};
use crate::scene::{
    SMALL, Scene, checkpoints_in, folder_in, from_storage, lose_all, rebuilt, resumed_at, whole_in,
};
use crate::storage::Storage;

/// Problem with enough boundaries for a chain of faults, with two saves in each start.
const LONG: &[&str] = &["-n", "603", "--nb", "10"];

/// Losses that follow a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gone {
    Nothing,
    /// The memory of the failed position.
    Its,
    /// The memory of all positions.
    All,
    /// The memory of all positions, and the DIR of the node of this position.
    Node(usize),
}

struct Disk {
    scene: Scene,
    /// A DIR that all ranks share, or one DIR per rank; each rank then counts as a node.
    storage: Storage,
}

impl std::ops::Deref for Disk {
    type Target = Scene;
    fn deref(&self) -> &Scene {
        &self.scene
    }
}

impl Disk {
    fn new(scene: Scene, own: bool) -> Self {
        Self::within("/dev/shm", scene, own)
    }

    fn within(place: &str, scene: Scene, own: bool) -> Self {
        let storage = Storage::within(place, own, scene.ranks);
        let at = ["--level2", &storage.named(), "--level2-scope", storage.scope()];
        let scene = scene.protect(&["--method", "disk"]).protect(&at);
        Self { scene, storage }
    }

    /// Returns the DIR to which `node` writes.
    fn dir(&self, node: usize) -> PathBuf {
        self.storage.dir(node)
    }

    fn whole(&self, node: usize) -> Vec<PathBuf> {
        whole_in(&self.dir(node), self)
    }

    fn lose_what(&self, position: usize, gone: Gone) {
        match gone {
            Gone::Nothing => {}
            Gone::Its => self.lose(position),
            Gone::All => lose_all(self),
            Gone::Node(node) => {
                lose_all(self);
                self.storage.renew(node);
            }
        }
    }

    /// Injects each fault in a start of its own, followed by its loss. Each start must resume from storage if there is a
    /// checkpoint. A last start must end with the right bits and leave nothing.
    fn chain(&self, faults: &[(&str, usize, u64, Gone)]) {
        let mut history = String::new();
        let mut before: Option<usize> = None;
        let mut lost: Vec<usize> = Vec::new();
        for &(point, position, hit, gone) in faults {
            history += &format!("{point}:{position}:{hit} {gone:?}; ");
            println!("{history}");
            let ran = self.inject(&format!("{point}:{position}:{hit}:kill"));
            self.expect_back(&ran, before, &lost);
            before = resumed_at(&ran).or(before);
            if (0..self.ranks).any(|node| !self.whole(node).is_empty()) {
                before = before.or(Some(1));
            }
            self.lose_what(position, gone);
            lost = if let Gone::Node(node) = gone { vec![node] } else { Vec::new() };
        }
        let ran = self.finish();
        self.expect_back(&ran, before, &lost);
    }

    /// Asserts that the run resumed from storage at boundary `before` or later, and rebuilt exactly the positions `lost`. None:
    /// there was no checkpoint.
    fn expect_back(&self, ran: &Ran, before: Option<usize>, lost: &[usize]) {
        // A start that fails during the recovery has not yet reported its boundary.
        if ran.err.contains("resumes at boundary") {
            assert!(from_storage(ran), "{}", ran.told());
            assert!(resumed_at(ran) >= before, "{before:?}: {}", ran.told());
            assert_eq!(rebuilt(ran).unwrap_or_default(), lost, "{}", ran.told());
        } else {
            assert!(before.is_none() || ran.code != Some(0), "{}", ran.told());
        }
    }

    /// Finishes the run. Asserts that x has the bits of an undisturbed run, and that no memory and no checkpoint is left.
    fn finish(&self) -> Ran {
        let ran = self.scene.finish();
        for node in 0..self.ranks {
            let left = checkpoints_in(&self.dir(node), self);
            assert!(left.is_empty(), "{left:?}: {}", ran.told());
        }
        ran
    }
}

/// A checkpoint whose manifest exists on one node only does not replace the older checkpoint, since this node may be lost next.
#[test]
fn a_checkpoint_that_one_node_alone_has_listed_is_nothing_to_rely_on() {
    let disk = Disk::new(Scene::of(2, 2, LONG).protect(&["--checkpoint", "10"]), true);
    let mut running = disk.start_with("stream-half:0:2:stop,barrier-passed:0:3:kill");
    assert!(disk.await_faults(&mut running, "stream-half:0:2:stop", Duration::from_secs(60)));
    let halted = || running.ranks().iter().any(|rank| rank.halted());
    while !halted() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = checkpoints_in(&disk.dir(0), &disk).pop().unwrap();
    let name = second.file_name().unwrap();
    for node in 1..4 {
        let folder = folder_in(&disk.dir(node), &disk).join(name);
        fs::create_dir_all(folder.join("manifest.aside")).unwrap();
    }
    for rank in running.ranks() {
        kill(rank.pid, Signal::SIGCONT).unwrap();
    }
    let ran = running.end();
    assert!(ran.err.contains("could not be written"), "{}", ran.told());
    assert!(disk.injected().contains(&"barrier-passed:0:3".to_owned()), "{}", ran.told());
    lose_all(&disk);
    disk.storage.renew(0);
    let ran = disk.finish();
    assert_eq!(resumed_at(&ran), Some(10), "{}", ran.told());
}

#[test]
fn every_step_is_survived_on_storage_that_all_share() {
    let disk = Disk::new(Scene::of(2, 2, LONG).protect(&["--checkpoint", "1"]), false);
    disk.chain(&[
        ("generate-end", 3, 1, Gone::Its),
        ("stream-whole", 1, 1, Gone::Nothing),
        ("save-begin", 0, 2, Gone::Its),
        ("save-state", 1, 2, Gone::All),
        ("encode-end", 2, 2, Gone::Nothing),
        ("barrier-passed", 3, 2, Gone::All),
        ("stream-begin", 0, 2, Gone::All),
        ("stream-half", 1, 2, Gone::Its),
        ("stream-synced", 2, 2, Gone::Nothing),
        ("stream-whole", 3, 2, Gone::All),
        ("manifest-synced", 0, 2, Gone::All),
        ("manifest-whole", 0, 2, Gone::Its),
        ("prune-half", 0, 2, Gone::All),
        ("pruned", 0, 2, Gone::Nothing),
        ("committed", 1, 2, Gone::Its),
        ("agree-begin", 2, 1, Gone::All),
        ("agreed", 3, 1, Gone::Nothing),
        ("fetch-begin", 0, 1, Gone::Its),
        ("fetch-half", 1, 1, Gone::All),
        ("fetch-end", 2, 1, Gone::Nothing),
        ("resumed", 3, 1, Gone::Its),
        ("iteration", 0, 3, Gone::Nothing),
        ("solve-begin", 2, 1, Gone::All),
    ]);
}

/// The run resumes after a node and its DIR are lost, with parity layouts `localised` and `grid`.
#[test]
fn a_node_and_its_storage_with_each_layout_of_checksums() {
    for (layout, node) in [("localised", 2), ("grid", 1)] {
        let args = ["--checkpoint", "3", "--parity-layout", layout];
        let disk = Disk::new(Scene::of(2, 2, SMALL).protect(&args), true);
        disk.inject("stream-half:0:5:kill");
        disk.lose_what(0, Gone::Node(node));
        let ran = disk.finish();
        assert!(from_storage(&ran) && rebuilt(&ran) == Some(vec![node]), "{}", ran.told());
    }
}

/// If a file is damaged, the run resumes from the previous checkpoint. If no checkpoint is usable, the start names all damaged
/// files and keeps them. If storage is emptied although memory refers to its checkpoints, the start is refused instead of
/// starting from scratch.
#[test]
fn a_sound_file_is_believed_and_memory_never() {
    let disk = Disk::new(Scene::of(2, 2, SMALL).protect(&["--checkpoint", "1"]), false);
    disk.inject("manifest-whole:0:3:kill");
    let there = disk.whole(0);
    assert_eq!(there.len(), 2, "{there:?}");
    flip(&there[1].join("p1"), 0.6);
    let ran = disk.inject("iteration:2:4:kill");
    assert_eq!((from_storage(&ran), resumed_at(&ran)), (true, Some(2)), "{}", ran.told());

    let there = disk.whole(0);
    assert_eq!(there.len(), 2, "{there:?}");
    let newest = there[1].clone();
    flip(&newest.join("p3"), 0.6);
    flip(&there[0].join("p0"), 0.7);
    let ran = disk.job().run().expect_code(4);
    for word in ["p3: row", "p0: row", "--restart never", "Nothing is removed"] {
        assert!(ran.err.contains(word), "{word}: {}", ran.told());
    }
    flip(&newest.join("p3"), 0.6);
    flip(&there[0].join("p0"), 0.7);

    // The start is refused too if memory was only just created for data from storage.
    for fault in ["fetch-begin:1:1:kill", "fetch-half:1:1:kill", "resumed:1:1:kill"] {
        disk.inject(fault);
        let aside = disk.storage.path().join("aside");
        fs::rename(newest.parent().unwrap(), &aside).unwrap();
        disk.expect_refused(
            4,
            &["method disk keeps all its checkpoints on storage", "The memory is kept"],
        );
        fs::remove_dir_all(newest.parent().unwrap()).unwrap();
        fs::rename(&aside, newest.parent().unwrap()).unwrap();
    }

    // If DIR is missing, the start is refused and does not resume from memory.
    let hidden = disk.path("hidden");
    let hide = Command::new("mv").arg(disk.storage.path()).arg(&hidden).status().unwrap();
    assert!(hide.success());
    disk.expect_refused(6, &["No such file"]);
    let show = Command::new("mv").arg(&hidden).arg(disk.storage.path()).status().unwrap();
    assert!(show.success());
    let ran = disk.finish();
    assert!(from_storage(&ran), "{}", ran.told());
}

/// All nodes fail at once during a save, and nodes with other names resume. A requested stop then writes a checkpoint to storage
/// and reports this.
#[test]
fn all_nodes_off_and_a_stop() {
    let disk = Disk::new(Scene::of(2, 3, SMALL).protect(&["--checkpoint", "2"]), false);
    let running = disk.freeze("stream-half:1:4:stop,stream-synced:3:4:stop");
    disk.kill_all(running);
    lose_all(&disk);
    let domains: String = (0..6).map(|rank| format!("rank:{rank} other{}\n", 6 - rank)).collect();
    fs::write(disk.path("domains"), domains).unwrap();
    let running = disk.freeze("iteration:0:9:stop");
    let status = Command::new(PROGRAM).args(["status"]).output().unwrap();
    let words = String::from_utf8(status.stdout).unwrap();
    assert!(words.contains("is on storage, none in memory"), "{words}");
    ask(&running, Signal::SIGUSR1);
    let ran = running.end().expect_code(75);
    assert!(
        ran.err.contains(&format!("after a save in {}", disk.storage.named())),
        "{}",
        ran.told()
    );
    assert!(from_storage(&ran) && resumed_at(&ran) == Some(6), "{}", ran.told());
    assert_eq!(disk.whole(0).len(), 2);
    lose_all(&disk);
    let ran = disk.finish();
    assert!(resumed_at(&ran) > Some(14), "{}", ran.told());
    assert!(ran.err.contains("while the ranks waited"), "{}", ran.told());
    let tests = ran.json().tests;
    let protection = tests[0].outcome.as_ref().unwrap().protection.unwrap();
    let level2 = protection.level2.unwrap();
    assert!(level2.alone && level2.fetched == 2 && level2.checkpoints > 5, "{level2:?}");
    // Memory of 2 x 3 positions with 301 x 302 elements: the matrix, and less than 10 % more.
    let largest = 8 * 160 * 110;
    assert!(protection.memory_bytes_max < largest * 11 / 10, "{protection:?}");
}

/// If storage is full, the run warns and continues, and the complete checkpoint stays.
#[test]
#[ignore = "mounts a tmpfs: root only"]
fn full_storage_is_told_and_the_checkpoint_before_stays() {
    let scene = Scene::of(2, 2, SMALL).protect(&["--checkpoint", "1"]);
    let at = scene.path("small");
    // Storage has room for one checkpoint, not for two.
    let _small = crate::level2::Small::mount(&at, 1_300_000);
    let disk = Disk::within(at.to_str().unwrap(), scene, false);
    let ran = disk.inject("iteration:0:20:kill");
    assert_eq!(ran.err.matches("could not be written to").count(), 1, "{}", ran.told());
    assert!(ran.err.contains("protected by the previous checkpoint"), "{}", ran.told());
    lose_all(&disk);
    let ran = disk.finish();
    assert!(from_storage(&ran) && resumed_at(&ran) == Some(1), "{}", ran.told());
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// The run resumes after a fault at every step, with one DIR per node and the loss of one of four nodes at a time.
    #[test]
    fn every_step_is_survived_on_storage_of_nodes_own() {
        let disk = Disk::new(Scene::of(2, 2, LONG).protect(&["--checkpoint", "1"]), true);
        disk.chain(&[
            ("encode-batch", 0, 2, Gone::Its),
            ("stream-whole", 1, 2, Gone::Node(3)),
            ("encode-end", 1, 2, Gone::Node(1)),
            ("stream-begin", 2, 2, Gone::Node(0)),
            ("stream-half", 3, 2, Gone::Nothing),
            ("stream-synced", 0, 2, Gone::Node(2)),
            ("stream-whole", 1, 2, Gone::Node(1)),
            // Other nodes may have written their manifests or not. The lost node may be one that has.
            ("manifest-synced", 2, 2, Gone::Node(3)),
            ("manifest-synced", 0, 2, Gone::Node(0)),
            ("manifest-whole", 3, 2, Gone::Node(3)),
            ("prune-half", 1, 2, Gone::Node(2)),
            ("pruned", 2, 2, Gone::Node(2)),
            ("committed", 3, 2, Gone::Node(0)),
        ]);
        // The same node is lost again during each recovery.
        disk.inject("iteration:0:5:kill");
        disk.lose_what(0, Gone::Node(2));
        for (step, position) in [("fetch-half", 0), ("rebuild-batch", 1), ("fetch-end", 3)] {
            disk.inject(&format!("{step}:{position}:1:kill"));
            disk.lose_what(0, Gone::Node(2));
        }
        let ran = disk.finish();
        assert!(from_storage(&ran) && rebuilt(&ran) == Some(vec![2]), "{}", ran.told());
    }
}
