//! Tests of damaged memory. A run never gives a wrong answer.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use nix::sys::signal::{Signal, kill};
use skt_hpl::shm::header::LAYOUT_VERSION;

use crate::limits::Stash;
use crate::scene::{SMALL, Scene, rebuilt, resumed_at};

/// Starts a run on a 2 x 2 grid, stops each rank at the crash point `place`, and kills all of them. `*` in `place` stands for the
/// position.
fn all_at(place: &str) -> Scene {
    let scene = Scene::new(2, 2);
    let faults: Vec<String> =
        (0..4).map(|p| format!("{}:stop", place.replace('*', &p.to_string()))).collect();
    let running = scene.freeze(&faults.join(","));
    scene.kill_all(running);
    scene
}

/// Returns a run that was killed after checkpoint 9, while no rank saved. The checkpoint is in parts b (copy of the matrix), d
/// (parity of checkpoints with odd numbers) and s (small state).
fn computing() -> Scene {
    all_at("committed:*:9")
}

/// Returns a run that was killed after checkpoint 8, while no rank saved. The checkpoint is in parts b (copy of the matrix), c
/// (parity of checkpoints with even numbers) and s (small state).
fn computing_after_an_even_save() -> Scene {
    all_at("committed:*:8")
}

/// Returns a run that was killed when all ranks had sealed checkpoint 9. No rank had copied the matrix to part b yet, so the
/// checkpoint is in parts a (matrix), d (parity) and s (small state).
fn sealed() -> Scene {
    all_at("barrier-passed:*:9")
}

/// Flips one bit of a memory part of a position. `at` is the place as a fraction of the length of the part.
fn flip(scene: &Scene, position: usize, part: &str, at: f64) {
    let path = scene.file(position, part);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let length = file.metadata().unwrap().len();
    let offset = ((length as f64 * at) as u64).min(length - 1);
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

/// If no committed checkpoint is usable, the start is refused and keeps all memory. A start from scratch would give these
/// checkpoints up, so the user must ask for it.
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
    // A start with a wrong `--store` is refused and changes nothing.
    let scene = computing();
    let ran = scene.job().args(&["--store", "sysv"]).run().expect_code(4);
    assert!(ran.err.contains("another --store"), "{}", ran.told());
    assert!(resumed_at(&scene.finish()).is_some());
}

/// The program is replaced by a version with another memory layout. It cannot read the memory, so it refuses to start and leaves
/// the memory to the old version.
#[test]
fn checkpoints_of_another_version_are_refused_and_kept() {
    // The layout version follows the length and the digest in both headers of the head.
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

/// If the results in a position's memory cannot be read, the position is rebuilt with them; other positions are not affected.
#[test]
fn results_that_cannot_be_read_cost_their_position_alone() {
    let scene = computing();
    // Zeros, as in memory that was never allocated.
    let done = scene.file(1, "done");
    let length = fs::metadata(&done).unwrap().len();
    let file = OpenOptions::new().write(true).open(&done).unwrap();
    file.set_len(0).unwrap();
    file.set_len(length).unwrap();
    drop(file);
    let ran = scene.finish();
    assert_eq!(rebuilt(&ran), Some(vec![1]), "{}", ran.told());
}

/// A flipped bit in any part never changes the result. If the part belongs to the checkpoint from which the run resumes, the
/// position is rebuilt.
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

/// A flipped bit in the header or in the small state never changes the result. Both exist twice, and only one of the two is
/// valid: some flips cause a rebuild, others do not.
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

/// `SKT_FAULT` flips a byte in memory (`corrupt`) while the program runs; the result stays right.
#[test]
fn a_byte_flipped_while_the_program_runs() {
    let scene = Scene::new(2, 2);
    scene.inject("iteration:2:9:corrupt=b:5000,iteration:2:10:kill");
    // The save at boundary 9 may overwrite the flipped byte. The result is right in both cases.
    scene.finish();
    let scene = Scene::new(2, 2);
    // Both faults are at one crash point: if another rank died instead, the job might end before this rank flips the byte.
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
    // If two positions have each other's copy, both are lost: one more than a group of four survives.
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
    // In two groups, each group has one loss.
    let scene = Scene::new(2, 2).protect(&["--group", "2"]);
    scene.inject("iteration:0:9:kill");
    let (one, two, aside) = (scene.file(1, "head"), scene.file(2, "head"), scene.path("aside"));
    fs::copy(&one, &aside).unwrap();
    fs::copy(&two, &one).unwrap();
    fs::copy(&aside, &two).unwrap();
    let ran = scene.finish();
    assert_eq!(rebuilt(&ran), Some(vec![1, 2]), "{}", ran.told());
}

/// A node that was given up returns with old memory. Its checkpoint is older than the checkpoint of the other nodes, so its
/// position is rebuilt.
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

/// A node with old memory returns during a recovery to checkpoint 5, agreed without it. Its header is not sealed and asks for
/// checkpoint 4, which other ranks have overwritten. The recovery to checkpoint 5 still completes.
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

/// A memory part is cut short while its rank runs, which raises SIGBUS as an uncorrectable memory error does. The rank reports
/// the offset and exits in order; a restart rebuilds the position.
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
        // The file has its full length again, filled with zeros. Only the damage flag in its head shows the loss.
        file.set_len(length).unwrap();
        fs::write(scene.file(1, part), vec![0; length as usize]).unwrap();
        let ran = scene.finish();
        assert_eq!(rebuilt(&ran), Some(vec![1]), "{part}: {}", ran.told());
        assert!(ran.err.contains("position 1 could not be used"), "{}", ran.told());
    }
}

/// If files in /dev/shm are removed while the run is healthy, the run warns, creates them again, and is then protected as before.
#[test]
fn removed_names_are_made_again() {
    tidied_twice(&|| Scene::new(2, 2), 4);
}

/// The files of a rank that stores parity only, without a part of the matrix, are removed and created again.
#[test]
fn removed_names_of_a_rank_for_checksums_are_made_again() {
    let dedicated = ["--parity-layout", "dedicated"];
    tidied_twice(&|| Scene::new(2, 2).idle(1).protect(&dedicated), 5);
}

/// Removes the files of the first `positions` positions while all ranks are stopped. Asserts that the run ends well, and that a
/// second run can resume from the files that it created again.
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
    // A restart resumes from the files that were created again.
    let running = tidied(&scene, "iteration:*:13:stop");
    scene.await_halted(&running, 2 * positions);
    scene.kill_all(running);
    let ran = scene.finish();
    assert!(resumed_at(&ran).is_some_and(|at| at >= 10), "{}", ran.told());
    assert_eq!(rebuilt(&ran), None, "{}", ran.told());
}

/// If /dev/shm has too little room, the start reports the bytes wanted and free before it computes, and leaves nothing allocated.
/// If the test cannot run, `scripts/test.sh` lists it as skipped.
#[test]
#[ignore = "needs root and a mount namespace"]
fn no_room_for_the_memory() {
    // In the second case, each rank finds room for its first parts, in huge pages. All ranks together exhaust the room while they
    // create the parts.
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
    // MPICH creates segments in /dev/shm too, unless its messages go over the network.
    let job = scene.job().env("MPIR_CVAR_NOLOCAL", "1").env("UCX_TLS", "self,tcp");
    let ran = job.under(&["unshare", "-m", "sh", "-c", mount, "sh"]).run().expect_code(5);
    assert_eq!(ran.err.matches("shared memory cannot be allocated").count(), 1, "{}", ran.told());
    let numbers =
        regex::Regex::new(r"\d+ bytes are wanted, \d+ bytes are free in /dev/shm").unwrap();
    assert!(numbers.is_match(&ran.err), "{}", ran.told());
    assert!(!ran.out.contains("PASSED"), "{}", ran.told());
    assert!(!ran.out.contains(&scene.name), "left behind: {}", ran.told());
}
