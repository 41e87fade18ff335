//! Tests of level two with one DIR per node, which is lost with the node. All memory is lost, and the DIR of a node too. There
//! are faults at every step, damaged files, and nodes in another order. Each rank counts as a node.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::extent::whole;
use crate::job::{PROGRAM, Ran};
use crate::level2::{ask, flip, to_storage, until};
use crate::scene::{
    LONGER, Scene, checkpoints_in, folder_in, from_storage, lose_all, rebuilt, resumed_at, whole_in,
};
use crate::storage::Storage;

/// A run with one rank per node. Each rank sees only the DIR of its own failure domain.
struct Apart {
    scene: Scene,
    storage: Storage,
}

impl std::ops::Deref for Apart {
    type Target = Scene;
    fn deref(&self) -> &Scene {
        &self.scene
    }
}

impl Apart {
    fn new(p: usize, q: usize, args: &[&str]) -> Self {
        Self::with_idle(p, q, 0, args)
    }

    /// Makes a run on a P x Q grid with `idle` more nodes than there are grid positions.
    fn with_idle(p: usize, q: usize, idle: usize, args: &[&str]) -> Self {
        let scene =
            Scene::of(p, q, LONGER).idle(idle).protect(&["--checkpoint", "1"]).protect(args);
        let storage = Storage::within("/dev/shm", true, scene.ranks);
        let at = ["--level2", &storage.named(), "--level2-scope", storage.scope()];
        let scene = scene.protect(&at).protect(&["--level2-every", "1"]);
        Self { scene, storage }
    }

    fn protect(mut self, args: &[&str]) -> Self {
        self.scene = self.scene.protect(args);
        self
    }

    fn solver(mut self, args: &[&str]) -> Self {
        self.scene = self.scene.solver(args);
        self
    }

    fn grids(mut self, grids: &[(usize, usize)]) -> Self {
        self.scene = self.scene.grids(grids);
        self
    }

    fn dir(&self, node: usize) -> PathBuf {
        self.storage.dir(node)
    }

    /// Returns the folders of all checkpoints in the DIR of `node`, with or without a manifest.
    fn checkpoints(&self, node: usize) -> Vec<PathBuf> {
        checkpoints_in(&self.dir(node), self)
    }

    /// Returns the path of file `p<node>` in the last checkpoint that has a manifest in the DIR of `node`.
    fn file(&self, node: usize) -> PathBuf {
        let whole = whole_in(&self.dir(node), self);
        whole.last().expect("a checkpoint was concluded").join(format!("p{node}"))
    }

    /// Removes the memory of all nodes, and the DIRs of `nodes`, as if new nodes took their places.
    fn lose_all_and(&self, nodes: &[usize]) {
        lose_all(self);
        nodes.iter().for_each(|&node| self.storage.renew(node));
    }

    /// Finishes the run. Asserts that x has the bits of an undisturbed run, and that no memory and no file is left on any node.
    fn finish(&self) -> Ran {
        let ran = self.scene.finish();
        for node in 0..self.ranks {
            let left: Vec<_> = fs::read_dir(self.dir(node)).unwrap().flatten().collect();
            assert!(left.is_empty(), "{left:?}: {}", ran.told());
        }
        ran
    }

    /// Finishes the run. Asserts that it resumed from storage and rebuilt exactly the positions `lost`.
    fn comes_back(&self, lost: &[usize]) -> Ran {
        let ran = self.finish();
        assert!(from_storage(&ran), "{}", ran.told());
        assert_eq!(rebuilt(&ran).unwrap_or_default(), lost, "{}", ran.told());
        ran
    }
}

/// Returns all cases if `SKT_TEST_WHOLE=1` is set, otherwise the first `by_default` cases.
fn some<T>(all: &[T], by_default: usize) -> &[T] {
    &all[..if whole() { all.len() } else { by_default }]
}

/// With `--parity-layout dedicated`, the run resumes after all memory and the DIRs of up to `losses` nodes are lost. The lost
/// nodes are any of the four that compute and of those that store parity only.
#[test]
fn memory_is_gone_and_nodes_that_keep_checksums_alone() {
    type Case<'a> = (&'a [&'a str], &'a str, &'a [usize]);
    let two = &["--losses", "2"];
    let cases: &[Case] = &[
        (&[], "stream-half:4:2", &[4]),
        (&[], "manifest-synced:4:2", &[1]),
        (two, "stream-synced:5:2", &[0, 5]),
        (&["--helpers", "off"], "manifest-whole:0:2", &[4]),
        (&["--method", "double"], "prune-half:4:2", &[2]),
        (two, "manifest-whole:4:2", &[4, 5]),
        (&["--method", "single"], "pruned:4:2", &[4]),
        (two, "stream-whole:1:2", &[1, 3]),
    ];
    for (args, point, lost) in some(cases, 4) {
        let idle = if args == two { 2 } else { 1 };
        let scene = Apart::with_idle(2, 2, idle, args).protect(&["--parity-layout", "dedicated"]);
        scene.inject(&format!("{point}:kill"));
        scene.lose_all_and(lost);
        let ran = scene.comes_back(lost);
        assert!(resumed_at(&ran).is_some_and(|k| k > 0), "{point}: {}", ran.told());
    }
}

/// With `--parity-layout dedicated`, the run is refused, and the unusable positions are named, in three cases: one lost node too
/// many; damaged parity that is needed; a start with another layout.
#[test]
fn files_of_checksums_alone_are_named_where_they_cannot_be_used() {
    let scene = Apart::with_idle(2, 2, 1, &["--parity-layout", "dedicated"]);
    scene.inject("pruned:0:2:kill");
    scene.lose_all_and(&[]);
    // Older checkpoints are removed, so that the run cannot resume from them.
    let all: Vec<PathBuf> = (0..5).flat_map(|node| scene.checkpoints(node)).collect();
    let newest = all.iter().filter_map(|path| path.file_name()).max().unwrap().to_owned();
    all.iter().filter(|path| path.file_name() != Some(&newest)).for_each(|checkpoint| {
        fs::remove_dir_all(checkpoint).unwrap();
    });
    let set_aside = |node: usize| {
        let aside = scene.storage.path().join(format!("aside{node}"));
        fs::rename(scene.dir(node), &aside).unwrap();
        fs::create_dir(scene.dir(node)).unwrap();
    };
    let put_back = |node: usize| {
        fs::remove_dir_all(scene.dir(node)).unwrap();
        fs::rename(scene.storage.path().join(format!("aside{node}")), scene.dir(node)).unwrap();
    };
    (3..5).for_each(set_aside);
    let ran = scene.job().run().expect_code(4);
    for word in ["positions [3, 4]", "survives 1", "Nothing is removed"] {
        assert!(ran.err.contains(word), "{word}: {}", ran.told());
    }
    (3..5).for_each(put_back);
    let ran = scene.job().args(&["--parity-layout", "striped"]).run().expect_code(4);
    assert!(ran.err.contains("--parity-layout, --group and --losses"), "{}", ran.told());
    // One bit of the parity is flipped, and the file that needs this parity for its rebuild is gone.
    let file = scene.checkpoints(4).pop().unwrap().join("p4");
    flip(&file, 0.9);
    set_aside(1);
    let ran = scene.job().run().expect_code(4);
    assert!(ran.err.contains("positions [1, 4]"), "{}", ran.told());
    put_back(1);
    flip(&file, 0.9);
    scene.comes_back(&[]);
}

/// If a group has lost one node more than it survives, the start is refused, names the positions and removes nothing. After one
/// of the nodes returns, the run resumes.
#[test]
fn one_node_more_than_a_group_survives() {
    let scene = Apart::new(2, 2, &[]);
    scene.inject("pruned:0:2:kill");
    scene.lose_all_and(&[]);
    let aside = scene.storage.path().join("aside");
    fs::rename(scene.dir(3), &aside).unwrap();
    fs::create_dir(scene.dir(3)).unwrap();
    let kept: Vec<_> = (0..3).map(|node| scene.checkpoints(node)).collect();
    fs::rename(scene.dir(1), scene.storage.path().join("gone")).unwrap();
    fs::create_dir(scene.dir(1)).unwrap();
    let ran = scene.job().run().expect_code(4);
    for word in ["positions [1, 3]", "survives 1", "--restart never", "Nothing is removed"] {
        assert!(ran.err.contains(word), "{word}: {}", ran.told());
    }
    scene.expect_nothing_left();
    assert_eq!((scene.checkpoints(0), scene.checkpoints(2)), (kept[0].clone(), kept[2].clone()));
    fs::remove_dir_all(scene.dir(3)).unwrap();
    fs::rename(&aside, scene.dir(3)).unwrap();
    scene.comes_back(&[1]);
}

/// A file that is damaged at any place counts as lost and is reported. If files of two positions are damaged, one more than the
/// group survives, the start is refused.
#[test]
fn a_damaged_file_counts_as_lost() {
    // Damage in the digests, the parity, the matrix and the front of the file; a file cut short.
    let scene = Apart::new(2, 2, &[]);
    let places = [Some(0.0041), Some(0.9), Some(0.4), Some(0.0005), None];
    for (i, &at) in some(&places, 2).iter().enumerate() {
        scene.inject(&format!("manifest-whole:{}:2:kill", i % 4));
        let node = (i + 1) % 4;
        let older: Vec<Vec<PathBuf>> = (0..4).map(|node| scene.checkpoints(node)).collect();
        scene.lose_all_and(&[]);
        // Older checkpoints are removed, so that the run cannot resume from them.
        let newest = older.iter().flatten().filter_map(|path| path.file_name()).max().unwrap();
        let newest = newest.to_owned();
        for checkpoint in older.iter().flatten().filter(|path| path.file_name() != Some(&newest)) {
            fs::remove_dir_all(checkpoint).unwrap();
        }
        let file = scene.dir(node).join(older[node].last().unwrap().parent().unwrap());
        let file = file.join(&newest).join(format!("p{node}"));
        match at {
            Some(at) => flip(&file, at),
            None => OpenOptions::new().write(true).open(&file).unwrap().set_len(9000).unwrap(),
        }
        if i == 0 {
            // Damage in the front of another position's file: one loss more than the group survives.
            let other = file.with_file_name(format!("p{}", (node + 1) % 4));
            let other = scene
                .dir((node + 1) % 4)
                .join(other.strip_prefix(scene.dir(node)).expect("the same folders on each node"));
            flip(&other, 0.0005);
            let ran = scene.job().run().expect_code(4);
            assert!(ran.err.contains("is damaged"), "{}", ran.told());
            assert!(ran.err.contains("digests differ from those"), "{}", ran.told());
            flip(&other, 0.0005);
        }
        // Damaged parity is reported only if a rebuild needs it.
        let lost = if at == Some(0.9) { vec![] } else { vec![node] };
        let ran = scene.comes_back(&lost);
        let told = format!("position {node} could not be used");
        assert_eq!(ran.err.contains(&told), !lost.is_empty(), "{at:?}: {}", ran.told());
    }
}

/// If the nodes start in another order, each position goes to the node that has its file. One node has lost its DIR.
#[test]
fn nodes_in_another_order() {
    let scene = Apart::new(2, 2, &[]);
    scene.inject("pruned:0:2:kill");
    scene.lose_all_and(&[2]);
    fs::write(scene.path("domains"), "rank:0 d3\nrank:1 d2\nrank:2 d0\nrank:3 d1\n").unwrap();
    scene.comes_back(&[2]);
}

/// A node with one rank has the files of two positions. It sends one of the files to the present node of that position.
#[test]
fn a_node_with_more_files_than_ranks_sends_them() {
    let scene = Apart::new(2, 2, &[]);
    let moved = |damaged: bool| {
        scene.inject("pruned:0:2:kill");
        scene.lose_all_and(&[]);
        for checkpoint in scene.checkpoints(1) {
            let there = scene.dir(0).join(checkpoint.strip_prefix(scene.dir(1)).unwrap());
            if there.exists()
                && fs::rename(checkpoint.join("p1"), there.join("p1")).is_ok()
                && damaged
            {
                flip(&there.join("p1"), 0.4);
            }
            fs::remove_dir_all(checkpoint).unwrap();
        }
    };
    moved(false);
    scene.comes_back(&[]);
    // The rank that reads the file finds the damage; the position belongs to another rank.
    moved(true);
    scene.comes_back(&[1]);
}

/// Tests that nodes with files receive positions before nodes without. Two more nodes than positions start, in another order, and
/// one node has lost its DIR. The run rebuilds only the lost position.
#[test]
fn nodes_with_files_are_not_left_idle() {
    let scene = Apart::with_idle(2, 2, 2, &[]);
    scene.inject("pruned:0:2:kill");
    scene.lose_all_and(&[1]);
    let domains = ["d4", "d5", "d1", "d0", "d2", "d3"];
    let domains =
        domains.iter().enumerate().map(|(rank, domain)| format!("rank:{rank} {domain}\n"));
    fs::write(scene.path("domains"), domains.collect::<String>()).unwrap();
    scene.comes_back(&[1]);
}

/// Copies the folder `from` of another run to the DIR of `node` of `scene`.
fn leave(from: PathBuf, scene: &Apart, node: usize) {
    let to = folder_in(&scene.dir(node), scene);
    let copied = Command::new("cp").arg("-r").args([from, to]).status().unwrap();
    assert!(copied.success());
}

/// A node returns with a checkpoint of an earlier run of the same problem, at a later boundary. The present run ignores this
/// checkpoint, which has another run id, and resumes from its own memory.
#[test]
fn an_earlier_run_of_the_same_problem_had_got_further() {
    let earlier = Apart::new(1, 2, &[]);
    earlier.inject("pruned:0:5:kill");
    lose_all(&earlier);
    let scene = Apart::new(1, 2, &[]);
    scene.inject("pruned:0:2:kill");
    scene.lose(1);
    scene.storage.renew(1);
    leave(folder_in(&earlier.dir(1), &earlier), &scene, 1);
    let ran = scene.finish();
    assert!(!from_storage(&ran), "{}", ran.told());
    assert_eq!(rebuilt(&ran).as_deref(), Some(&[1][..]), "{}", ran.told());
}

/// A node returns with the result of an earlier run of the same problem. The present run does not use this result, even after the
/// node has taken part in a checkpoint.
#[test]
fn an_earlier_run_of_the_same_problem_has_left_its_result() {
    let earlier = Apart::new(2, 2, &[]);
    earlier.inject("told:0:1:kill");
    let left = folder_in(&earlier.dir(2), &earlier);
    assert!(left.join("result-0").exists() && earlier.checkpoints(2).is_empty());
    lose_all(&earlier);
    let scene = Apart::new(2, 2, &[]);
    leave(left, &scene, 2);
    scene.inject("pruned:0:2:kill");
    let ran = scene.finish();
    assert!(resumed_at(&ran).is_some_and(|from| from > 0), "{}", ran.told());
}

/// In a sweep, a node returns with an earlier run's result of a test in which it takes part for the first time. The present run
/// does not use this result.
#[test]
fn an_earlier_run_has_left_the_result_of_a_test_that_the_node_comes_to_later() {
    let of_two = || Apart::new(2, 2, &[]).grids(&[(1, 2), (2, 2)]);
    let earlier = of_two();
    earlier.inject("told:0:1:kill");
    let left = folder_in(&earlier.dir(2), &earlier);
    assert!(left.join("result-1").exists());
    lose_all(&earlier);
    let scene = of_two();
    leave(left, &scene, 2);
    scene.inject("pruned:2:1:kill");
    assert!(!folder_in(&scene.dir(2), &scene).join("result-1").exists());
    let ran = scene.finish();
    let later = ran.json().tests[1].outcome.clone().unwrap().protection.unwrap();
    assert!(later.attempts > 1, "{}", ran.told());
}

/// A node stops before it has written its manifest. Its DIR has two checkpoints; the second is complete by the manifests of other
/// nodes. The next start writes the manifest of the second on this node too, and removes the first: DIR needs room for two
/// checkpoints only.
#[test]
fn a_node_without_its_manifest_keeps_no_third_checkpoint() {
    let scene = Apart::new(2, 2, &["--helpers", "off"]);
    let running = scene.freeze("manifest-synced:2:2:stop");
    until("node 0 is done", || scene.checkpoints(0).len() == 1);
    scene.kill_all(running);
    assert_eq!(scene.checkpoints(2).len(), 2);
    let running = scene.freeze("stream-half:2:1:stop");
    assert_eq!(scene.checkpoints(2).len(), 2);
    scene.kill_all(running);
    scene.finish();
}

/// Two of four nodes could not store the result of the test. The result on the other two nodes counts, since these nodes also
/// have a checkpoint of the present run. So the next start, without memory, does not compute the test again.
#[test]
fn a_result_that_not_all_nodes_could_keep() {
    let scene = Apart::new(2, 2, &[]);
    scene.inject("pruned:0:2:kill");
    for node in [2, 3] {
        fs::create_dir(folder_in(&scene.dir(node), &scene).join("result-0.aside")).unwrap();
    }
    scene.inject("told:0:1:kill");
    lose_all(&scene);
    let ran = scene.finish();
    assert!(!from_storage(&ran) && rebuilt(&ran).is_none(), "{}", ran.told());
}

/// A node that replaces a lost node has checkpoints of another run of the same job name, from its own DIR or from shared storage.
/// The present run ignores them and resumes from memory. If all memory is lost, it resumes from storage only if a supervisor
/// replaced the node. If the user did, or all nodes have such checkpoints, the start is refused and removes nothing.
#[test]
fn a_node_that_enters_has_what_another_run_left() {
    let other = Apart::new(2, 2, &[]).solver(&["--seed", "77"]);
    other.inject("pruned:0:2:kill");
    lose_all(&other);
    let shared = crate::level2::stored(2, 2).solver(&["--seed", "78"]);
    shared.inject("pruned:0:2:kill");
    lose_all(&shared);
    let of_node = |node: usize| folder_in(&other.dir(node), &other);
    for (memory, from) in [(true, of_node(2)), (true, shared.folder()), (false, of_node(2))] {
        let mut scene = Apart::new(2, 2, &[]);
        scene.inject("pruned:0:2:kill");
        scene.storage.renew(2);
        leave(from, &scene, 2);
        let ran = if memory {
            scene.lose(2);
            let ran = scene.finish();
            assert_eq!(rebuilt(&ran).as_deref(), Some(&[2][..]), "{}", ran.told());
            ran
        } else {
            lose_all(&scene);
            scene.job().run().expect_code(1);
            scene.scene.also("SKT_RUN_ID", "crash");
            scene.scene.also("SKT_ATTEMPT", "2");
            scene.comes_back(&[2])
        };
        assert_eq!(ran.err.matches("not used: on d2: a checkpoint of another run").count(), 1);
    }
    // All nodes have checkpoints of the other run, so nothing shows that they are not the present run's own. The start is
    // refused.
    let scene = Apart::new(2, 2, &[]);
    (0..4).for_each(|node| leave(of_node(node), &scene, node));
    let ran = scene.job().run().expect_code(1);
    assert!(ran.err.contains("has a checkpoint of another run of job"), "{}", ran.told());
    assert!((0..4).all(|node| whole_in(&scene.dir(node), &scene).len() == 1));
}

/// A stop writes the checkpoint to the DIRs of all nodes. `status` and `clean` report the part of one node. A start with a wrong
/// `--level2-scope` is refused.
#[test]
fn a_stop_and_what_is_told_of_dir() {
    let scene = Apart::new(2, 2, &["--level2-every", "1h"]);
    let running = scene.freeze("iteration:0:6:stop");
    ask(&running, Signal::SIGUSR1);
    let ran = running.end().expect_code(75);
    assert!(
        ran.err.contains("of each node") && ran.err.contains("is on storage"),
        "{}",
        ran.told()
    );
    assert!((0..4).all(|node| scene.file(node).exists()));
    scene.lose_all_and(&[0]);

    let dir = scene.dir(1).to_str().unwrap().to_owned();
    let say = |args: &[&str]| {
        let out = Command::new(PROGRAM).args(args).args(["--level2", &dir]).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let words = say(&["status"]);
    assert!(words.contains("this node's part, positions [1] and their parity"), "{words}");
    let page: serde_json::Value = serde_json::from_str(&say(&["status", "--json"])).unwrap();
    assert_eq!(page["storage"][0]["checkpoints"][0]["positions"], serde_json::json!([1]));

    // Files written with `--level2-scope node` are refused under `--level2-scope shared`.
    let ran = scene.job().args(&["--level2", &dir, "--level2-scope", "shared"]).run();
    let ran = ran.expect_code(1);
    assert!(ran.err.contains("written with --level2-scope node"), "{}", ran.told());
    // Two nodes see the same folder, which `--level2-scope node` does not allow.
    let aside = scene.storage.path().join("aside");
    fs::rename(scene.dir(2), &aside).unwrap();
    symlink(scene.dir(1), scene.dir(2)).unwrap();
    let ran = scene.job().run().expect_code(6);
    assert!(ran.err.contains("use --level2-scope shared"), "{}", ran.told());
    fs::remove_file(scene.dir(2)).unwrap();
    fs::rename(&aside, scene.dir(2)).unwrap();
    let ran = scene.comes_back(&[0]);
    assert!((4..10).contains(&resumed_at(&ran).unwrap()), "{}", ran.told());
    let said = say(&["clean", "--job", &scene.name]);
    assert!(said.contains("nothing of yours"), "{said}");
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// The run resumes after all memory is lost, and each group has lost the DIRs of as many nodes as it survives.
    #[test]
    fn memory_is_gone_and_nodes_with_their_storage() {
        type Case<'a> = ((usize, usize), &'a [&'a str], &'a [usize]);
        let cases: &[Case] = &[
            ((2, 2), &["--losses", "2", "--method", "double"], &[1, 3]),
            ((1, 2), &["--method", "single"], &[0]),
            ((2, 2), &["--helpers", "off"], &[2]),
            ((2, 3), &["--losses", "2", "--parity-layout", "localised"], &[1, 4]),
            ((2, 3), &["--parity-layout", "grid"], &[2, 3]),
            ((2, 2), &["--group", "2"], &[1, 2]),
            ((2, 2), &["--losses", "3", "--encode", "reduce"], &[0, 1, 2]),
            ((2, 3), &["--losses", "2"], &[0, 4]),
        ];
        for (grid, args, lost) in some(cases, 5) {
            let scene = Apart::new(grid.0, grid.1, args);
            scene.inject("manifest-whole:0:2:kill");
            let groups = scene.groups();
            assert!(args[..] != ["--group", "2"] || !groups.contains(&lost.to_vec()), "{groups:?}");
            scene.lose_all_and(lost);
            scene.comes_back(lost);
        }
    }

    /// The run resumes after a fault at each step of writing to storage. All memory is lost after the fault, and the DIR of one
    /// node.
    #[test]
    fn a_run_survives_a_fault_at_every_step_to_storage() {
        let mut to = to_storage();
        // Steps around the manifests come first, since each node writes its own.
        to.reverse();
        to.sort_by_key(|point| !point.name().starts_with("manifest"));
        for (i, &point) in some(&to, 3).iter().enumerate() {
            let scene = Apart::new(2, 2, &[]);
            scene.inject(&format!("{}:{}:2:kill", point.name(), i % 4));
            // The failed node may have written its file or not. The lost DIR is its own or another node's, in turn.
            let gone = [(i + 1) % 4, i % 4][i % 2];
            scene.lose_all_and(&[gone]);
            let ran = scene.comes_back(&[gone]);
            assert!(
                resumed_at(&ran).is_some_and(|from| from > 0),
                "{}: {}",
                point.name(),
                ran.told()
            );
        }
    }

    /// The run resumes after a fault at each step of a recovery from storage. All memory and the DIR of one node are lost before
    /// the recovery, and again after the fault.
    #[test]
    fn coming_back_survives_a_fault_at_every_step() {
        let steps =
            ["fetch-half", "rebuild-batch", "fetch-end", "encode-batch", "fetch-begin", "tidied"];
        for (i, &step) in some(&steps, 2).iter().enumerate() {
            let scene = Apart::new(2, 2, &[]);
            scene.inject("pruned:0:2:kill");
            let first = i % 4;
            scene.lose_all_and(&[first]);
            let position = if step == "fetch-half" { (i + 1) % 4 } else { i % 4 };
            scene.inject(&format!("{step}:{position}:1:kill"));
            scene.lose_all_and(&[first]);
            scene.comes_back(&[first]);
        }
    }
}
