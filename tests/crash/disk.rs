//! Method disk: nothing in memory but the matrix, and every save a save to DIR. Faults at every step in chains: a start fails at
//! one point, the next at the following one. Memory is kept or lost in turn, on shared storage and on nodes' own. Storage is
//! damaged, emptied, full. Never a wrong answer, and no computation ever from the content of memory.

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

/// Boundaries for a chain of faults with two saves to each start.
const LONG: &[&str] = &["-n", "603", "--nb", "10"];

/// Losses together with a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gone {
    Nothing,
    /// The memory of the failed position.
    Its,
    /// All memory.
    All,
    /// All memory, and the storage of the node of this position.
    Node(usize),
}

struct Disk {
    scene: Scene,
    /// Storage that all share, or of each rank, which is a node then.
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

    /// Folder that the node of a position writes to.
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

    /// Injects faults one after the other, each of which leads back to storage once there is a checkpoint; then an end with the
    /// right bits that leaves nothing.
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

    /// Checks that the run resumed from storage, no earlier than at `before`, having rebuilt the positions lost there.
    fn expect_back(&self, ran: &Ran, before: Option<usize>, lost: &[usize]) {
        // A start that fails while it comes back has not reported yet where it resumes.
        if ran.err.contains("resumes at boundary") {
            assert!(from_storage(ran), "{}", ran.told());
            assert!(resumed_at(ran) >= before, "{before:?}: {}", ran.told());
            assert_eq!(rebuilt(ran).unwrap_or_default(), lost, "{}", ran.told());
        } else {
            assert!(before.is_none() || ran.code != Some(0), "{}", ran.told());
        }
    }

    /// Ends well, leaving nothing in memory and nothing on storage.
    fn finish(&self) -> Ran {
        let ran = self.scene.finish();
        for node in 0..self.ranks {
            let left = checkpoints_in(&self.dir(node), self);
            assert!(left.is_empty(), "{left:?}: {}", ran.told());
        }
        ran
    }
}

/// A checkpoint that only one node could list must not replace an older one: that node may be the next to be lost.
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

/// The files with other layouts of the parity in them.
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

/// A file is damaged: the checkpoint before is used if it still exists; otherwise all files are named and kept. Storage that is
/// emptied, although memory refers to its content, is no reason to begin from scratch.
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

    // Also if memory was just made for the data that are read.
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

    // A missing DIR is no reason to resume from memory.
    let hidden = disk.path("hidden");
    let hide = Command::new("mv").arg(disk.storage.path()).arg(&hidden).status().unwrap();
    assert!(hide.success());
    disk.expect_refused(6, &["No such file"]);
    let show = Command::new("mv").arg(&hidden).arg(disk.storage.path()).status().unwrap();
    assert!(show.success());
    let ran = disk.finish();
    assert!(from_storage(&ran), "{}", ran.told());
}

/// All nodes off at once, in the middle of a save; others with other names resume. A stop ends on storage, and reports that.
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
    // 2 x 3 positions of 301 x 302 elements: the matrix, and little more.
    let largest = 8 * 160 * 110;
    assert!(protection.memory_bytes_max < largest * 11 / 10, "{protection:?}");
}

/// Storage is full: reported, the run continues, and the complete checkpoint stays.
#[test]
#[ignore = "mounts a tmpfs: root only"]
fn full_storage_is_told_and_the_checkpoint_before_stays() {
    let scene = Scene::of(2, 2, SMALL).protect(&["--checkpoint", "1"]);
    let at = scene.path("small");
    // Room for one checkpoint, not for two.
    let _small = crate::level2::Small::mount(&at, 1_300_000);
    let disk = Disk::within(at.to_str().unwrap(), scene, false);
    let ran = disk.inject("iteration:0:20:kill");
    assert_eq!(ran.err.matches("could not be written to").count(), 1, "{}", ran.told());
    assert!(ran.err.contains("protected by the previous checkpoint"), "{}", ran.told());
    lose_all(&disk);
    let ran = disk.finish();
    assert!(from_storage(&ran) && resumed_at(&ran) == Some(1), "{}", ran.told());
}

/// Left to `scripts/test.sh --all`: the simulation shows these losses, or a test above shows the same of another one.
mod rest {
    use super::*;

    /// Every step with storage of each node's own, one node of the four lost at a time.
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
            // The others may have listed theirs or not; the lost node may be one that has.
            ("manifest-synced", 2, 2, Gone::Node(3)),
            ("manifest-synced", 0, 2, Gone::Node(0)),
            ("manifest-whole", 3, 2, Gone::Node(3)),
            ("prune-half", 1, 2, Gone::Node(2)),
            ("pruned", 2, 2, Gone::Node(2)),
            ("committed", 3, 2, Gone::Node(0)),
        ]);
        // A loss comes again while it is recovered.
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
