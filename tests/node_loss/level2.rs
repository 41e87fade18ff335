//! A second level of checkpoints: on other nodes, in another job, and if a group has lost more than it survives.

use std::path::PathBuf;

use skt_hpl::supervise::remember::folder::Folder;

use crate::lab::{Ended, Lab};

/// Flags for saves to a folder that all nodes share.
fn storage(lab: &Lab) -> [String; 4] {
    let dir = lab.path("storage");
    std::fs::create_dir_all(&dir).unwrap();
    ["--level2", dir.to_str().unwrap(), "--level2-every", "1"].map(String::from)
}

/// Returns a node's own storage.
fn own(lab: &Lab, node: usize) -> PathBuf {
    lab.path("own").join(format!("n{node}"))
}

/// Flags for saves to a folder of each node's own, which so many nodes have.
fn own_storage(lab: &Lab, nodes: usize) -> [String; 6] {
    (1..=nodes).for_each(|node| std::fs::create_dir_all(own(lab, node)).unwrap());
    let dir = lab.path("own").join("{domain}");
    let dir = dir.to_str().unwrap();
    ["--level2", dir, "--level2-scope", "node", "--level2-every", "1"].map(String::from)
}

/// Halts a job, with its checkpoint on storage, and removes all its memory.
fn halted_without_memory(lab: &Lab, level2: &[String]) {
    halted("run", lab, level2);
}

/// Halts a job with this state folder, and removes all its memory.
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

/// The first job is halted. The next one has other nodes, in another order, and no memory at all.
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

/// The supervisor dies once it has recorded that the run is given up and put its journal aside, before it begins the new one's.
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

/// Both members of a pair are lost at once: with memory alone the run would end here.
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

/// Runs a job that knows only the name of the first, and is given other nodes to work on: one that is new, and one that is off.
/// Of the spares the first is new, too; the next ones have the files of a pair, neither of which could be rebuilt.
fn next_job(lab: &Lab, level2: &[String]) -> Ended {
    let next = lab.benchmark("next").benchmark_flags(level2);
    std::fs::write(lab.path("hosts"), "n5 slots=1\nn6 slots=1\nn3 slots=1\nn4 slots=1\n").unwrap();
    std::fs::write(lab.path("spares"), "n7 slots=1\nn1 slots=1\nn2 slots=1\n").unwrap();
    lab.vcluster(&["off", "n6"]);
    let end = next.start().end();
    lab.same_x("next", &end);
    end
}

/// The spares with files take the places.
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

/// Each node has a folder of its own. All memory is lost after the first job, and with one node its folder.
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

/// Left to `scripts/test.sh --all`: the simulation shows these losses, or a test above shows the same of another one.
mod rest {
    use super::*;

    /// The next job knows only the name of the first. It has most of its ranks on one node, which leaves no pairs of different
    /// nodes.
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

    /// A run that is given up begins from scratch, although storage has its checkpoint; and so does the command that resumes the
    /// new one.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_run_that_is_given_up_is_not_gone_on_from() {
        let lab = Lab::up(4, 0);
        let level2 = storage(&lab);
        halted_without_memory(&lab, &level2);
        let again = || lab.benchmark("run").benchmark_flags(&level2);
        // It is stopped before it has saved anything of its own.
        let mut new = again().flags(&["--new"]).hold("1@iteration:1:1");
        new.kill_launcher();
        new.kill_supervisor();
        let end = again().start().end();
        lab.same_x("run", &end);
        assert!(!end.errors.contains("the checkpoint was read from"), "{}", end.told());
    }

    /// As below, but the next job removes the files, so their place makes no difference.
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

    /// A spare still has its part of another problem's checkpoint, under the same job's name. It takes the place of a lost node,
    /// and that part does not hinder it; the lost node's files are named in the end.
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
