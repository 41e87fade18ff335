//! Tests of level two together with recovery in place: ranks die while a checkpoint is written to storage, or later. The
//! checkpoint on storage is complete afterwards. A restart resumes from it if memory is not enough.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use skt_hpl::base::faults::Point;
use tempfile::TempDir;

use crate::extent::whole;
use crate::job::{PROGRAM, Ran};
use crate::points::in_place;
use crate::scene::{LONGER, Scene, folder_in, from_storage, lose_all, resumed_at, whole_in};

/// A run of four positions with spare ranks. Every save goes to storage, as soon as the previous checkpoint is complete there.
struct Stored {
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
    fn new(spares: usize, scope: &str) -> Self {
        Self::of(LONGER, spares, scope)
    }

    fn of(problem: &[&str], spares: usize, scope: &str) -> Self {
        let storage = tempfile::Builder::new().prefix("t-stored-").tempdir_in("/dev/shm").unwrap();
        let scene = Scene::of(2, 2, problem).idle(spares).nonstop(0);
        let dirs = (0..scene.ranks).map(|rank| storage.path().join(format!("d{rank}")));
        dirs.for_each(|dir| fs::create_dir(dir).unwrap());
        let dir = match scope {
            "node" => storage.path().join("{domain}"),
            _ => storage.path().to_owned(),
        };
        let level2 = ["--level2", dir.to_str().unwrap(), "--level2-scope", scope];
        let scene = scene.protect(&["--checkpoint", "1", "--level2-every", "1"]).protect(&level2);
        Self { scene, storage }
    }

    fn protect(self, args: &[&str]) -> Self {
        Self { scene: self.scene.protect(args), ..self }
    }

    /// Returns the remaining checkpoint directories of the job, in the shared DIR and in the DIRs of nodes.
    fn folders(&self) -> Vec<PathBuf> {
        let all = self.dirs().into_iter().map(|dir| folder_in(&dir, &self.scene));
        all.filter(|folder| folder.exists()).collect()
    }

    /// Returns the DIR of each node, followed by the shared DIR.
    fn dirs(&self) -> Vec<PathBuf> {
        let own = (0..self.ranks).map(|rank| self.storage.path().join(format!("d{rank}")));
        own.chain([self.storage.path().to_owned()]).collect()
    }

    /// Returns the number of complete checkpoints in all DIRs. With one DIR per node, a checkpoint counts once for each node.
    fn whole(&self) -> usize {
        self.dirs().iter().map(|dir| whole_in(dir, &self.scene).len()).sum()
    }

    /// Runs with `faults`, which must not end the job. Asserts that checkpoint directories remain only on the nodes `dead`, whose
    /// only rank has died.
    fn survive(&self, faults: &str, dead: &[&str]) -> Ran {
        let ran = self.scene.survive(faults);
        let left: Vec<PathBuf> = self.folders();
        let expected: Vec<PathBuf> =
            dead.iter().map(|node| self.storage.path().join(node)).collect();
        assert!(left.iter().map(|f| f.parent().unwrap()).eq(&expected), "{left:?}: {}", ran.told());
        ran
    }

    /// Starts the run again. Asserts that it resumes from storage and leaves nothing.
    fn comes_back(&self) -> Ran {
        assert!(self.whole() > 0, "{:?}", self.folders());
        let ran = self.finish();
        assert!(from_storage(&ran), "{}", ran.told());
        assert!(self.folders().is_empty(), "{:?}: {}", self.folders(), ran.told());
        ran
    }
}

/// The run continues from memory if a rank dies while its helper writes to storage, at any step. This includes the rank that
/// writes the manifest.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_loss_on_the_way_to_storage_is_gone_on_from() {
    let steps = Point::between(Point::StreamBegin, Point::Pruned);
    for (turn, &point) in steps.iter().enumerate() {
        let of_first = !point.name().starts_with("stream");
        for position in 0..4 {
            let chosen = turn % 3 == 1 && position == if of_first { 0 } else { turn % 4 };
            if (of_first && position > 0) || (!whole() && !chosen) {
                continue;
            }
            let action = ["kill", "lose"][(turn + position) % 2];
            let fault = format!("1@{}:{position}:2:{action}", point.name());
            println!("{fault}");
            let ran = Stored::new(1, "shared").survive(&fault, &[]);
            assert_eq!(in_place(&ran), 1, "{fault}: {}", ran.told());
            assert!(!from_storage(&ran), "{fault}: {}", ran.told());
        }
    }
}

/// Removes all memory and starts the run again. Asserts that it resumes from storage, at a later boundary than the recovery in
/// place of `ran`.
fn comes_back_later(stored: &Stored, ran: &Ran) {
    let went_on = resumed_at(ran).unwrap();
    lose_all(stored);
    let ran = stored.comes_back();
    assert!(resumed_at(&ran).unwrap() > went_on, "{went_on}: {}", ran.told());
}

/// A rank is lost after data are read from storage, before they are saved in memory. The data are read again.
#[test]
#[ignore = "needs Open MPI 5"]
fn coming_back_from_storage_survives_a_loss() {
    let cases: [(&str, &str, &[&str]); 2] =
        [("shared", "fetch-half:1:1", &[]), ("node", "encode-batch:3:1", &["d3"])];
    for (scope, place, dead) in cases {
        if scope == "node" && !whole() {
            continue;
        }
        let stored = Stored::new(1, scope);
        // Both members of a group are lost, which memory does not survive. If one loss is noticed at once, the second rank may
        // not reach its fault. Its memory is removed below.
        let ran = stored
            .may_inject("1@iteration:0:60:lose,2@iteration:1:20:lose,2@iteration:0:20:lose")
            .expect_code(75);
        let injected = stored.injected();
        let has = |place: &str| injected.iter().any(|injected| injected == place);
        assert!(has("iteration:0:60"), "{injected:?}");
        assert!(has("iteration:1:20") || has("iteration:0:20"), "{injected:?}");
        assert!(ran.err.contains("The run cannot be recovered in place"), "{}", ran.told());
        lose_all(&stored);
        let ran = stored.survive(&format!("1@{place}:kill"), dead);
        assert!(from_storage(&ran), "{scope}: {}", ran.told());
        assert_eq!(in_place(&ran), 1, "{scope}: {}", ran.told());
    }
}

/// A group has lost more members than it survives. Storage has a checkpoint, but a restart may still reach the memory of the lost
/// ranks. So the job ends without recovery in place.
#[test]
#[ignore = "needs Open MPI 5"]
fn more_than_a_group_survives_is_left_to_a_restart() {
    let stored = Stored::new(2, "shared");
    let ran = crate::limits::at_once(&stored, &[1, 2], "iteration", 60, true).expect_code(75);
    assert!(ran.err.contains("cannot be recovered in place"), "{}", ran.told());
    assert!(!from_storage(&ran), "{}", ran.told());
    stored.comes_back();
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// A rank is lost between two tests of a sweep, and DIR is missing. Memory has only results, so the next test begins without
    /// storage. In the first test of a launch the job ends instead, since storage may have a checkpoint.
    #[test]
    #[ignore = "needs Open MPI 5"]
    fn a_loss_between_two_tests_is_gone_on_from_without_storage() {
        let sweep = &["-n", "903,301", "--nb", "10"];
        let stored = Stored::of(sweep, 1, "shared");
        let aside = stored.path("aside");
        let lose_with_storage = |place: &str| {
            let mut running = stored.start_with(&format!("1@{place}:stop"));
            let came = stored.await_faults(&mut running, place, Duration::from_secs(60));
            assert!(came, "{}", running.told());
            let done = Command::new("mv").arg(stored.storage.path()).arg(&aside).status();
            assert!(done.unwrap().success());
            let of = |rank| running.ranks().into_iter().find(|r| r.rank == rank).unwrap().pid;
            kill(of(1), Signal::SIGKILL).unwrap();
            let ran = running.end();
            let done = Command::new("mv").arg(&aside).arg(stored.storage.path()).status();
            assert!(done.unwrap().success());
            ran
        };
        let ran = lose_with_storage("verdict:1:1");
        let ran = stored.scene.expect_finished(ran);
        assert!(ran.err.contains("The run continues from memory alone"), "{}", ran.told());
        assert_eq!(ran.out.matches("PASSED").count(), 2, "{}", ran.told());
        let clean = ["clean", "--job", &stored.name, "--level2"];
        let clean = Command::new(PROGRAM).args(clean).arg(stored.storage.path()).status();
        assert!(clean.unwrap().success());

        // If all ranks are killed, the launcher of Open MPI 5 ends with status 0.
        let running = stored.freeze("1@manifest-whole:0:2:stop");
        running.kill_ranks();
        let ran = running.end();
        assert!(!ran.out.contains("PASSED"), "{}", ran.told());
        lose_all(&stored);
        assert!(stored.whole() > 0, "{:?}", stored.folders());
        let ran = lose_with_storage("agree-begin:1:1").expect_code(6);
        assert!(!ran.out.contains("PASSED"), "{}", ran.told());
        stored.comes_back();
    }

    /// Without helpers, a rank dies while all ranks wait for storage. The run continues from memory.
    #[test]
    #[ignore = "needs Open MPI 5"]
    fn a_loss_while_all_wait_for_storage_is_gone_on_from() {
        for place in ["stream-half:2:2:lose", "manifest-synced:0:2:kill"] {
            let stored = Stored::new(1, "shared").protect(&["--helpers", "off"]);
            let ran = stored.survive(&format!("1@{place}"), &[]);
            assert_eq!(in_place(&ran), 1, "{place}: {}", ran.told());
            assert!(!from_storage(&ran), "{place}: {}", ran.told());
        }
    }

    /// A replacement rank writes the files of its position to storage. If all memory is lost two checkpoints later, storage has a
    /// later checkpoint than that of the recovery.
    #[test]
    #[ignore = "needs Open MPI 5"]
    fn checkpoints_written_after_a_loss_are_whole() {
        for (scope, place) in [("shared", "stream-half:1:2"), ("node", "stream-synced:2:2")] {
            let stored = Stored::new(1, scope);
            let ran = stored.inject(&format!("1@{place}:lose,2@pruned:0:2:kill"));
            comes_back_later(&stored, &ran.expect_code(75));
        }
    }

    /// All memory of a test is lost, storage has its checkpoint, and DIR is missing. The test does not begin from scratch; a
    /// later start resumes from storage.
    #[test]
    #[ignore = "needs Open MPI 5"]
    fn a_test_of_which_storage_alone_has_something_waits_for_it() {
        let stored = Stored::of(&["-n", "121,903", "--nb", "10"], 4, "shared");
        let aside = stored.path("aside");
        let mut running = stored.start_with("1@iteration:0:60:stop");
        assert!(stored.await_faults(&mut running, "1@iteration:0:60", Duration::from_secs(60)));
        assert!(stored.whole() > 0, "{:?}", stored.folders());
        assert!(
            Command::new("mv").arg(stored.storage.path()).arg(&aside).status().unwrap().success()
        );
        (0..4).for_each(|position| stored.lose(position));
        for rank in running.ranks().into_iter().filter(|rank| rank.rank < 4) {
            kill(rank.pid, Signal::SIGKILL).unwrap();
        }
        let ran = running.end();
        assert!(
            Command::new("mv").arg(&aside).arg(stored.storage.path()).status().unwrap().success()
        );
        assert_eq!(ran.out.matches("PASSED").count(), 1, "{}", ran.told());
        let ran = ran.expect_code(6);
        assert!(!ran.err.contains("nothing was saved"), "{}", ran.told());
        stored.comes_back();
    }
}
