//! Tests of level two under the supervisor: a run resumes on other nodes, in another job, and after a group has lost more than it
//! survives.

use std::path::PathBuf;

use skt_hpl::supervise::remember::folder::Folder;

use crate::lab::{Ended, Lab};

/// Returns flags for level two in a folder that all nodes share.
fn storage(lab: &Lab) -> [String; 4] {
    let dir = lab.path("storage");
    std::fs::create_dir_all(&dir).unwrap();
    ["--level2", dir.to_str().unwrap(), "--level2-every", "1"].map(String::from)
}

/// Returns the DIR of a node, for level two with one DIR per node.
fn own(lab: &Lab, node: usize) -> PathBuf {
    lab.path("own").join(format!("n{node}"))
}

/// Returns flags for level two with one DIR per node, and creates the DIRs of nodes n1 to n`nodes`.
fn own_storage(lab: &Lab, nodes: usize) -> [String; 6] {
    (1..=nodes).for_each(|node| std::fs::create_dir_all(own(lab, node)).unwrap());
    let dir = lab.path("own").join("{domain}");
    let dir = dir.to_str().unwrap();
    ["--level2", dir, "--level2-scope", "node", "--level2-every", "1"].map(String::from)
}

/// Halts the run named `run` with its checkpoint on storage, and removes all its memory.
fn halted_without_memory(lab: &Lab, level2: &[String]) {
    halted("run", lab, level2);
}

/// Halts the run `name` with its checkpoint on storage, and removes all its memory.
fn halted(name: &str, lab: &Lab, level2: &[String]) {
    let mut run = lab.benchmark(name).benchmark_flags(level2).hold("1@iteration:1:20");
    run.halt(&[]);
    run.wait_for_halt(1);
    lab.vcluster(&["resume", "n2", "skt-hpl"]);
    let end = run.end();
    assert_eq!(end.code, Some(75), "{}", end.told());
    assert!(end.errors.contains("is on storage"), "{}", end.told());
    for node in ["n1", "n2", "n3", "n4"] {
        lab.on(node, "rm -f /dev/shm/skt-hpl.*");
    }
}

/// The first job is halted. The next job has other nodes, in another order and without memory, and resumes from storage.
#[test]
#[ignore = "needs root and network namespaces"]
fn the_next_job_goes_on_from_storage_on_other_nodes() {
    let lab = Lab::up(4, 5);
    let level2 = storage(&lab);
    halted_without_memory(&lab, &level2);
    let next = lab.benchmark("run").benchmark_flags(&level2);
    std::fs::write(lab.path("hosts"), "n8 slots=1\nn6 slots=1\nn7 slots=1\nn5 slots=1\n").unwrap();
    lab.list("spares", 9, 9, 1);
    let end = next.start().end();
    lab.same_x("run", &end);
    assert_eq!(end.hosts(), ["n5", "n6", "n7", "n8"]);
    assert!(end.errors.contains("the checkpoint was read from"), "{}", end.told());
    assert!(end.resumed_at().first().is_some_and(|from| *from > 0), "{}", end.told());
    let left = std::fs::read_dir(lab.path("storage")).unwrap().count();
    assert_eq!(left, 0, "the run's folder goes with it");
}

/// `--new` gives an old run up: it records this, moves the journal aside, and begins a new journal. If the supervisor dies before
/// the new journal, the next supervisor still gives the old run up.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_run_that_is_given_up_stays_so_until_the_next_one_has_a_journal() {
    let lab = Lab::up(4, 0);
    let level2 = storage(&lab);
    halted_without_memory(&lab, &level2);
    let folder = Folder::new(lab.path("run.state"));
    let records = std::fs::read_to_string(folder.journal()).unwrap();
    let job = records.lines().find_map(|line| {
        let record: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(record["job"].as_str()?.to_owned())
    });
    std::fs::write(folder.given_up(), job.expect("the run's first record names its job")).unwrap();
    std::fs::write(folder.journal(), "").unwrap();
    let end = lab.benchmark("run").benchmark_flags(&level2).start().end();
    lab.same_x("run", &end);
    assert!(!end.errors.contains("the checkpoint was read from"), "{}", end.told());
    assert!(!folder.given_up().exists(), "it would give the next run up as well");
}

/// Both members of a group are lost at once. The run resumes from storage; memory alone would not be enough.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_whole_group_is_lost_and_storage_makes_it_good() {
    let lab = Lab::up(4, 2);
    let level2 = storage(&lab);
    let run = lab.benchmark("run").benchmark_flags(&level2).hold("1@iteration:0:60");
    lab.vcluster(&["off", "n1"]);
    lab.vcluster(&["off", "n2"]);
    let end = run.end();
    lab.same_x("run", &end);
    assert!(end.errors.contains("the checkpoint was read from"), "{}", end.told());
}

/// Runs the next job under the job name of the first one. Its hosts are n5, n6, n3 and n4. Of these, n5 and n6 are new, and n6 is
/// off. Its spares are n7, which is new, n1 and n2. Nodes n1 and n2 have the files of one group, which cannot be rebuilt without
/// at least one of them.
fn next_job(lab: &Lab, level2: &[String]) -> Ended {
    let next = lab.benchmark("next").benchmark_flags(level2);
    std::fs::write(lab.path("hosts"), "n5 slots=1\nn6 slots=1\nn3 slots=1\nn4 slots=1\n").unwrap();
    std::fs::write(lab.path("spares"), "n7 slots=1\nn1 slots=1\nn2 slots=1\n").unwrap();
    lab.vcluster(&["off", "n6"]);
    let end = next.start().end();
    lab.same_x("next", &end);
    end
}

/// Spares with files of the checkpoint replace nodes without files.
#[test]
#[ignore = "needs root and network namespaces"]
fn nodes_that_hold_files_are_taken_before_others() {
    let lab = Lab::up(4, 3);
    let own = |node: usize| own(&lab, node);
    let level2 = own_storage(&lab, 7);
    halted("first", &lab, &level2);
    let end = next_job(&lab, &level2);
    assert_eq!(end.hosts(), ["n2", "n1", "n3", "n4"], "{}", end.told());
    assert!(end.errors.contains("nothing had to be rebuilt"), "{}", end.told());
    assert!(end.errors.contains("n2 has files of the checkpoint"), "{}", end.told());
    let replaced = end.of("replaced");
    let pairs: Vec<_> = replaced.iter().map(|e| (e["node"].as_str(), e["by"].as_str())).collect();
    assert_eq!(pairs, [(Some("n6"), Some("n1")), (Some("n5"), Some("n2"))]);
    assert!((1..=4).all(|node| std::fs::read_dir(own(node)).unwrap().count() == 0));
}

/// Each node has its own DIR. After the first job, all memory is lost, and the DIR of one node: its position is rebuilt.
#[test]
#[ignore = "needs root and network namespaces"]
fn nodes_have_storage_of_their_own_and_one_is_gone_with_it() {
    let lab = Lab::up(4, 1);
    let own = |node: usize| own(&lab, node);
    let level2 = own_storage(&lab, 5);
    halted_without_memory(&lab, &level2);
    std::fs::remove_dir_all(own(3)).unwrap();
    std::fs::create_dir(own(3)).unwrap();
    let end = lab.benchmark("run").benchmark_flags(&level2).start().end();
    lab.same_x("run", &end);
    assert!(end.errors.contains("the checkpoint was read from"), "{}", end.told());
    assert!(end.errors.contains("rebuilt positions [2]"), "{}", end.told());
    assert!((1..=4).all(|node| std::fs::read_dir(own(node)).unwrap().count() == 0));
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// The next job has only the job name of the first. Three of its four ranks are on one node, so no groups of different nodes
    /// are possible. The run still resumes from storage.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn the_next_job_goes_on_from_storage_where_its_groups_cannot_be_had() {
        let lab = Lab::up(4, 3);
        let level2 = storage(&lab);
        halted("first", &lab, &level2);
        let next = lab.benchmark("next").benchmark_flags(&level2);
        std::fs::write(lab.path("hosts"), "n5 slots=3\nn6 slots=1\n").unwrap();
        lab.list("spares", 7, 7, 3);
        let end = next.start().end();
        lab.same_x("next", &end);
        assert_eq!(end.hosts(), ["n5", "n6"]);
        assert!(end.errors.contains("would then be too small to survive"), "{}", end.told());
        assert!(end.errors.contains("n5 now holds 2 members of one group"), "{}", end.told());
        assert!(end.errors.contains("the checkpoint was read from"), "{}", end.told());
    }

    /// A run that `--new` gives up is not resumed, although storage has its checkpoint. The command that resumes the new run does
    /// not use this checkpoint either.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_run_that_is_given_up_is_not_gone_on_from() {
        let lab = Lab::up(4, 0);
        let level2 = storage(&lab);
        halted_without_memory(&lab, &level2);
        let again = || lab.benchmark("run").benchmark_flags(&level2);
        // The new run ends before its first save.
        let mut new = again().flags(&["--new"]).hold("1@iteration:1:1");
        new.kill_launcher();
        new.kill_supervisor();
        let end = again().start().end();
        lab.same_x("run", &end);
        assert!(!end.errors.contains("the checkpoint was read from"), "{}", end.told());
    }

    /// Under `--restart never`, the next job removes the files on storage, so spares with files are not preferred.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn files_that_will_be_thrown_away_draw_nobody() {
        let lab = Lab::up(4, 3);
        let level2 = own_storage(&lab, 7);
        halted("first", &lab, &level2);
        let end =
            next_job(&lab, &[&level2[..], &["--restart", "never"].map(String::from)].concat());
        assert_eq!(end.hosts(), ["n5", "n7", "n3", "n4"], "{}", end.told());
    }

    /// A spare replaces a lost node, and has files of another problem under the same job name. These files are ignored. At the
    /// end the run reports the files that are left on the lost node.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_spare_enters_with_what_another_run_has_left() {
        let lab = Lab::up(4, 1);
        let own = |node: usize| own(&lab, node);
        let level2 = own_storage(&lab, 4);
        halted("first", &lab, &[&level2[..], &["--seed", "77"].map(String::from)].concat());
        std::fs::rename(own(1), own(5)).unwrap();
        for node in 1..=4 {
            let _ = std::fs::remove_dir_all(own(node));
            std::fs::create_dir(own(node)).unwrap();
        }
        let run = lab.benchmark("run").benchmark_flags(&level2).hold("1@iteration:0:20");
        lab.vcluster(&["off", "n3"]);
        let end = run.end();
        lab.same_x("run", &end);
        assert_eq!(end.hosts(), ["n1", "n2", "n5", "n4"], "{}", end.told());
        assert_eq!(end.resumed_at().len(), 1, "{}", end.told());
        assert!(
            end.errors.contains("not used: on n5: a checkpoint of another run"),
            "{}",
            end.told()
        );
        let left = format!("--level2 {}", own(3).display());
        assert!(end.errors.contains("on n3: skt-hpl clean --job"), "{}", end.told());
        assert!(end.errors.contains(&left), "{}", end.told());
        let empty = |node: &usize| std::fs::read_dir(own(*node)).unwrap().count() == 0;
        assert!([1, 2, 4, 5].iter().all(empty), "{}", end.told());
    }
}
