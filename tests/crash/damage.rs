//! Memory with damage: never a wrong answer.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use nix::sys::signal::{Signal, kill};
use skt_hpl::shm::header::LAYOUT_VERSION;

use crate::limits::Stash;
use crate::scene::{SMALL, Scene, rebuilt, resumed_at};

/// Returns a run whose ranks are all stopped there, and killed.
fn all_at(place: &str) -> Scene {
    let scene = Scene::new(2, 2);
    let faults: Vec<String> =
        (0..4).map(|p| format!("{}:stop", place.replace('*', &p.to_string()))).collect();
    let running = scene.freeze(&faults.join(","));
    scene.kill_all(running);
    scene
}

/// No rank saves. The ninth checkpoint's checksum is in d, as that of every odd one: b, d and s are in force.
fn computing() -> Scene {
    all_at("committed:*:9")
}

/// A scene like `computing`, a checkpoint earlier: b, c and s.
fn computing_after_an_even_save() -> Scene {
    all_at("committed:*:8")
}

/// All are sealed on the ninth checkpoint, and none has flushed: a, d and s are in force.
fn sealed() -> Scene {
    all_at("barrier-passed:*:9")
}

/// Flips a bit at a fraction of the file's length.
fn flip(scene: &Scene, position: usize, part: &str, at: f64) {
    let path = scene.file(position, part);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let length = file.metadata().unwrap().len();
    let offset = ((length as f64 * at) as u64).min(length - 1);
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

/// A beginning from scratch would give up committed checkpoints, so the user must ask for it.
#[test]
fn checkpoints_of_which_none_can_be_used_are_refused_and_kept() {
    let gone = |scene: &Scene, position| fs::remove_file(scene.file(position, "b")).unwrap();
    let damaged = |scene: &Scene, position| flip(scene, position, "b", 0.3);
    for (what, spoil) in [("gone", &gone as &dyn Fn(&Scene, usize)), ("damaged", &damaged)] {
        let scene = computing();
        (0..4).for_each(|position| spoil(&scene, position));
        let clean = format!("`skt-hpl clean --job {}`", scene.name);
        let ran = scene.expect_refused(4, &["none of them can be used", "position 3 on", &clean]);
        assert!(ran.err.matches("  position ").count() == 4, "{what}: {}", ran.told());
        let ran = scene.job().args(&["--restart", "never"]).run();
        assert_eq!(resumed_at(&scene.expect_finished(ran)), None, "{what}");
    }
    // A mistyped word costs nothing.
    let scene = computing();
    let ran = scene.job().args(&["--store", "sysv"]).run().expect_code(4);
    assert!(ran.err.contains("another --store"), "{}", ran.told());
    assert!(resumed_at(&scene.finish()).is_some());
}

/// The program is replaced by one with another layout of memory: it cannot read the existing memory, and leaves it to the old
/// one.
#[test]
fn checkpoints_of_another_version_are_refused_and_kept() {
    // Beginnings of both headers of a head, behind their length and digest.
    let lay_out = |scene: &Scene, position: usize, version: u32| {
        let head = OpenOptions::new().write(true).open(scene.file(position, "head")).unwrap();
        for slot in [4096, 8192] {
            head.write_all_at(&version.to_le_bytes(), slot + 16).unwrap();
        }
    };
    let scene = computing();
    (0..4).for_each(|position| lay_out(&scene, position, LAYOUT_VERSION + 1));
    let ran = scene.expect_refused(4, &["another version of this program", "position 3 on"]);
    assert_eq!(ran.err.matches("a header, but").count(), 4, "{}", ran.told());
    (0..4).for_each(|position| lay_out(&scene, position, LAYOUT_VERSION));
    assert!(resumed_at(&scene.finish()).is_some());
}

/// Results that cannot be read are made again with their position, and hinder no other.
#[test]
fn results_that_cannot_be_read_cost_their_position_alone() {
    let scene = computing();
    // A hole, like memory that was never allocated.
    let done = scene.file(1, "done");
    let length = fs::metadata(&done).unwrap().len();
    let file = OpenOptions::new().write(true).open(&done).unwrap();
    file.set_len(0).unwrap();
    file.set_len(length).unwrap();
    drop(file);
    let ran = scene.finish();
    assert_eq!(rebuilt(&ran), Some(vec![1]), "{}", ran.told());
}

/// For any damaged byte the end is right; if the byte counts, its position was rebuilt.
#[test]
fn a_flipped_bit_in_every_part() {
    let cases = vec![
        (computing as fn() -> Scene, "b", 0.3, true),
        (computing, "d", 0.0, true),
        (computing_after_an_even_save, "c", 0.0, true),
        (computing, "a", 0.5, false),
        (computing, "c", 0.5, false),
        (computing_after_an_even_save, "d", 0.5, false),
        (sealed, "a", 0.3, true),
        (sealed, "d", 0.0, true),
        (sealed, "b", 0.5, false),
        (sealed, "c", 0.5, false),
    ];
    for (i, (make, part, at, counts)) in cases.into_iter().enumerate() {
        let position = i % 4;
        let scene = make();
        flip(&scene, position, part, at);
        let ran = scene.finish();
        assert_eq!(rebuilt(&ran), counts.then(|| vec![position]), "{part}: {}", ran.told());
    }
}

/// A head has two places for a header, and the small state two for itself; a flip may hit the one that
/// counts, or not. Several places, so that both happen.
#[test]
fn a_flipped_bit_in_the_head_and_in_the_small_state() {
    let mut seen = [false; 2];
    for (part, at) in [("head", 0.002), ("head", 0.3), ("head", 0.52), ("s", 0.01), ("s", 0.51)] {
        let scene = computing();
        flip(&scene, 1, part, at);
        let lost = rebuilt(&scene.finish());
        assert!(matches!(lost.as_deref(), None | Some([1])), "{part}: {lost:?}");
        seen[lost.is_some() as usize] = true;
    }
    assert!(seen[1], "no flip was noticed");
}

/// The fault harness's own corruption: in memory, by the running program.
#[test]
fn a_byte_flipped_while_the_program_runs() {
    let scene = Scene::new(2, 2);
    scene.inject("iteration:2:9:corrupt=b:5000,iteration:2:10:kill");
    // The save at boundary 9 may have written the byte again; the end is right either way.
    scene.finish();
    let scene = Scene::new(2, 2);
    // One place has both faults: another rank's death could come before this one has got as far.
    let killed = scene.inject("committed:2:9:corrupt=b:5000,committed:2:9:kill");
    let ran = scene.finish();
    assert_eq!(rebuilt(&ran), Some(vec![2]), "{}{}", killed.told(), ran.told());
}

#[test]
fn truncated_grown_and_swapped_segments() {
    type Change = fn(&Scene);
    let changes: [(&str, Change); 4] = [
        ("cut short", |scene| {
            let file = OpenOptions::new().write(true).open(scene.file(1, "b")).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }),
        ("empty", |scene| fs::write(scene.file(1, "head"), []).unwrap()),
        ("grown", |scene| {
            let file = OpenOptions::new().write(true).open(scene.file(1, "c")).unwrap();
            file.set_len(file.metadata().unwrap().len() + 4096).unwrap();
        }),
        ("missing", |scene| fs::remove_file(scene.file(1, "s")).unwrap()),
    ];
    for (what, change) in changes {
        let scene = computing();
        change(&scene);
        let ran = scene.finish();
        assert_eq!(rebuilt(&ran), Some(vec![1]), "{what}: {}", ran.told());
    }
    // Two positions' copies in each other's place are two losses: one more than a group survives.
    let scene = computing();
    let (one, two, aside) = (scene.file(1, "b"), scene.file(2, "b"), scene.path("aside"));
    let swap = || {
        fs::copy(&one, &aside).unwrap();
        fs::copy(&two, &one).unwrap();
        fs::copy(&aside, &two).unwrap();
    };
    swap();
    scene.expect_refused(4, &["kept"]);
    swap();
    let ran = scene.finish();
    assert!(resumed_at(&ran).is_some() && rebuilt(&ran).is_none(), "{}", ran.told());
    // In two groups they are one loss each.
    let scene = Scene::new(2, 2).protect(&["--group", "2"]);
    scene.inject("iteration:0:9:kill");
    let (one, two, aside) = (scene.file(1, "head"), scene.file(2, "head"), scene.path("aside"));
    fs::copy(&one, &aside).unwrap();
    fs::copy(&two, &one).unwrap();
    fs::copy(&aside, &two).unwrap();
    let ran = scene.finish();
    assert_eq!(rebuilt(&ran), Some(vec![1, 2]), "{}", ran.told());
}

/// A node that was given up comes back with its memory of then: its checkpoint is older than the others'.
#[test]
fn memory_of_an_older_attempt_is_never_used() {
    for later in ["iteration:0:9:kill", "flush-half:0:6:kill"] {
        let scene = Scene::new(2, 2);
        scene.inject("barrier-passed:2:5:kill");
        let old = Stash::take(&scene, 2);
        scene.lose(2);
        scene.inject(later);
        scene.lose(2);
        old.put_back();
        let ran = scene.finish();
        assert_eq!(rebuilt(&ran), Some(vec![2]), "{later}: {}", ran.told());
    }
}

/// It comes back in the middle of a recovery that was agreed without it. Its own header, not sealed, calls for a recovery of
/// checkpoint 4; by then others have overwritten theirs.
#[test]
fn old_memory_does_not_undo_an_agreed_recovery() {
    for middle in ["pinned:0:1:kill", "finish-end:1:1:kill", "rebuild-batch:3:1:kill"] {
        let scene = Scene::new(2, 2);
        let running =
            scene.freeze("encode-end:2:5:stop,sealed:0:5:stop,sealed:1:5:stop,sealed:3:5:stop");
        scene.kill_all(running);
        let old = Stash::take(&scene, 2);
        scene.lose(2);
        scene.inject(middle);
        scene.lose(2);
        old.put_back();
        let ran = scene.finish();
        assert_eq!((resumed_at(&ran), rebuilt(&ran)), (Some(5), Some(vec![2])), "{middle}");
    }
}

/// A part is cut short under a running rank: the rank reports the place and ends in order, and the position is rebuilt. A page
/// with an uncorrectable error has the same effect, as SIGBUS.
#[test]
fn memory_that_cannot_be_touched_any_more_ends_the_rank_in_order() {
    for part in ["a", "b"] {
        let scene = Scene::new(2, 2);
        let running = scene.freeze("iteration:1:9:stop");
        let file = OpenOptions::new().write(true).open(scene.file(1, part)).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(4096).unwrap();
        for rank in running.ranks() {
            kill(rank.pid, Signal::SIGCONT).unwrap();
        }
        let ran = running.end();
        assert_ne!(ran.code, Some(0), "{}", ran.told());
        let words = format!("of part {part} cannot be read any more");
        assert!(
            ran.err.contains("position 1: byte ") && ran.err.contains(&words),
            "{}",
            ran.told()
        );
        // The file looks whole again, with holes filled: only its head shows the damage.
        file.set_len(length).unwrap();
        fs::write(scene.file(1, part), vec![0; length as usize]).unwrap();
        let ran = scene.finish();
        assert_eq!(rebuilt(&ran), Some(vec![1]), "{part}: {}", ran.told());
        assert!(ran.err.contains("position 1 could not be used"), "{}", ran.told());
    }
}

/// Files in /dev/shm are removed under a healthy run: it reports that, and is as protected as before.
#[test]
fn removed_names_are_made_again() {
    tidied_twice(&|| Scene::new(2, 2), 4);
}

/// Files of a rank with checksums alone, whose own part of the matrix is empty, are removed.
#[test]
fn removed_names_of_a_rank_for_checksums_are_made_again() {
    let dedicated = ["--parity-layout", "dedicated"];
    tidied_twice(&|| Scene::new(2, 2).idle(1).protect(&dedicated), 5);
}

/// Removes all names of so many positions, while all ranks are stopped.
fn tidied_twice(scene: &dyn Fn() -> Scene, positions: usize) {
    let tidied = |scene: &Scene, later: &str| {
        let (first, log) = ("iteration:*:9:stop", scene.path("faults"));
        let job = scene.job().env("SKT_FAULT_LOG", log.to_str().unwrap());
        let each: Vec<String> = (0..positions)
            .flat_map(|p| [first, later].map(|fault| fault.replace('*', &p.to_string())))
            .collect();
        let running = job.env("SKT_FAULT", &each.join(",")).start();
        scene.await_halted(&running, positions);
        for position in 0..positions {
            scene.lose(position);
        }
        for rank in running.ranks() {
            kill(rank.pid, Signal::SIGCONT).unwrap();
        }
        running
    };
    let scene = scene();
    let ran = tidied(&scene, "iteration:*:500:stop").end().expect_code(0);
    for position in 0..positions {
        let words = format!("position {position} on ");
        assert!(ran.err.contains(&words) && ran.err.contains("names restored"), "{}", ran.told());
    }
    scene.expect_nothing_left();
    // The files under the names are the ones a restart needs.
    let running = tidied(&scene, "iteration:*:13:stop");
    scene.await_halted(&running, 2 * positions);
    scene.kill_all(running);
    let ran = scene.finish();
    assert!(resumed_at(&ran).is_some_and(|at| at >= 10), "{}", ran.told());
    assert_eq!(rebuilt(&ran), None, "{}", ran.told());
}

/// The node's /dev/shm has no room: reported with both numbers, before anything is computed, and nothing stays allocated.
/// `scripts/test.sh` runs it if it can, and otherwise notes that it cannot.
#[test]
#[ignore = "needs root and a mount namespace"]
fn no_room_for_the_memory() {
    // The second time each rank finds room for its first parts, which are in huge pages. Together they run out of it while these
    // are being made.
    let large: &[&str] = &["-n", "3000", "--nb", "64"];
    for (problem, size) in [(SMALL, "1m"), (large, "100m"), (large, "171m")] {
        no_room(problem, size);
    }
}

fn no_room(problem: &[&str], size: &str) {
    let scene = Scene::of(2, 2, problem).protect(&["--checkpoint", "3"]);
    let mount = &format!(
        "mount -t tmpfs -o size={size} none /dev/shm && \"$@\"; code=$?; ls /dev/shm; exit $code"
    );
    // MPICH has segments of its own there, but for messages over the network it needs none.
    let job = scene.job().env("MPIR_CVAR_NOLOCAL", "1").env("UCX_TLS", "self,tcp");
    let ran = job.under(&["unshare", "-m", "sh", "-c", mount, "sh"]).run().expect_code(5);
    assert_eq!(ran.err.matches("shared memory cannot be allocated").count(), 1, "{}", ran.told());
    let numbers =
        regex::Regex::new(r"\d+ bytes are wanted, \d+ bytes are free in /dev/shm").unwrap();
    assert!(numbers.is_match(&ran.err), "{}", ran.told());
    assert!(!ran.out.contains("PASSED"), "{}", ran.told());
    assert!(!ran.out.contains(&scene.name), "left behind: {}", ran.told());
}
