//! Tests of the parity layouts other than `striped`: as many losses as each tolerates, and one more. Other tests start with
//! another layout than memory has, or with too few ranks for `dedicated`.

use nix::sys::signal::{Signal, kill};
use skt_hpl::shm::Store;

use crate::extent::whole;
use crate::limits::Stash;
use crate::scene::{Scene, rebuilt, resumed_at};

const LOCALISED: &[&str] = &["--parity-layout", "localised", "--losses", "2"];
const GRID: &[&str] = &["--parity-layout", "grid"];
const DEDICATED: &[&str] = &["--parity-layout", "dedicated"];

fn six(args: &[&str]) -> Scene {
    Scene::new(2, 3).protect(args)
}

/// Any two of six positions can be lost with layout `localised`, which stores each parity on three positions, with every code and
/// encoding.
#[test]
fn any_two_of_six_with_localised_checksums() {
    let ways: &[&[&str]] =
        &[&[], &["--encode", "reduce"], &["--method", "double"], &["--scope", "whole"]];
    let mut pairs: Vec<[usize; 2]> = (0..6).flat_map(|a| (0..a).map(move |b| [b, a])).collect();
    if !whole() {
        pairs = vec![[0, 2], [1, 4], [2, 5], [3, 4]];
    }
    for (i, pair) in pairs.iter().enumerate() {
        let scene = six(LOCALISED).protect(ways[i % ways.len()]);
        let point = ["flush-half", "iteration", "encode-end", "committed"][i % 4];
        scene.inject(&format!("{point}:{}:4:kill", pair[0]));
        assert_eq!(scene.groups(), [[0, 1, 2, 3, 4, 5]]);
        pair.iter().for_each(|&position| scene.lose(position));
        let ran = scene.finish();
        assert_eq!(rebuilt(&ran), Some(pair.to_vec()), "{}", ran.told());
        assert!(resumed_at(&ran).is_some_and(|k| k > 0), "{}", ran.told());
    }
}

/// With layout `localised` and code `weighted`, lost members are rebuilt up to rounding.
#[test]
fn localised_checksums_of_real_numbers() {
    let scene = six(LOCALISED).protect(&["--parity-code", "weighted"]);
    scene.inject("flush-half:1:3:kill");
    [1, 3].iter().for_each(|&position| scene.lose(position));
    assert_eq!(rebuilt(&scene.finish_up_to_rounding()), Some(vec![1, 3]));
}

/// For one loss, layout `localised` makes pairs in which each member stores the parity of both. One member of each pair is lost.
#[test]
fn one_of_each_pair() {
    let scene = Scene::new(2, 3).protect(&["--parity-layout", "localised"]);
    scene.inject("flush-data:3:4:kill");
    let groups = scene.groups();
    assert!(groups.len() == 3 && groups.iter().all(|pair| pair.len() == 2), "{groups:?}");
    let mut lost: Vec<usize> = groups.iter().enumerate().map(|(i, pair)| pair[i % 2]).collect();
    lost.sort_unstable();
    lost.iter().for_each(|&position| scene.lose(position));
    assert_eq!(rebuilt(&scene.finish()), Some(lost));
}

/// Layout `grid` makes groups of process rows on a 2 x 3 grid and of process columns on a 3 x 2 grid, for either mapping. One
/// member of each group is lost.
#[test]
fn a_loss_in_each_line_of_the_grid() {
    type Case<'a> = ((usize, usize), &'a [&'a str], [&'a [usize]; 2], &'a str);
    let cases: [Case; 3] = [
        ((2, 3), &[], [&[0, 1, 2], &[3, 4, 5]], "encode-end"),
        ((3, 2), &["--method", "double"], [&[0, 2, 4], &[1, 3, 5]], "flush-half"),
        (
            (2, 3),
            &["--pmap", "column", "--encode", "reduce"],
            [&[0, 2, 4], &[1, 3, 5]],
            "committed",
        ),
    ];
    for ((p, q), args, groups, point) in cases {
        let scene = Scene::new(p, q).protect(GRID).protect(args);
        scene.inject(&format!("{point}:2:4:kill"));
        assert_eq!(scene.groups(), groups.map(<[usize]>::to_vec));
        let mut lost = vec![groups[0][1], groups[1][2]];
        lost.iter().for_each(|&position| scene.lose(position));
        lost.sort_unstable();
        assert_eq!(rebuilt(&scene.finish()), Some(lost));
    }
    let scene = six(GRID);
    scene.inject("iteration:0:4:kill");
    [3, 5].iter().for_each(|&position| scene.lose(position));
    scene.expect_refused(4, &["[3, 5]", "position 3 on", "kept"]);
}

/// With layout `dedicated`, any one of four computing ranks and of the rank with their parity can be lost. The fault is on the
/// lost rank or on another, with every code and encoding.
#[test]
fn any_one_of_four_and_of_the_rank_that_keeps_their_checksum() {
    let cases: [(usize, &str, &[&str]); 8] = [
        (4, "encode-end:4", &[]),
        (1, "flush-half:1", &[]),
        (4, "iteration:0", &["--method", "double"]),
        (0, "encode-batch:4", &["--encode", "reduce"]),
        (4, "committed:4", &["--scope", "whole"]),
        (3, "sealed:3", &["--method", "double", "--encode", "reduce"]),
        (2, "iteration:4", &["--pmap", "column", "--depth", "0"]),
        (4, "flush-data:4", &["--store", "sysv"]),
    ];
    for (lost, point, args) in cases {
        let mut scene = Scene::new(2, 2).idle(1).protect(DEDICATED).protect(args);
        if args.contains(&"sysv") {
            scene = scene.store(Store::SysV);
        }
        scene.inject(&format!("{point}:4:kill"));
        assert_eq!(scene.groups(), [[0, 1, 2, 3, 4]]);
        scene.lose(lost);
        let ran = scene.finish();
        assert_eq!(rebuilt(&ran), Some(vec![lost]), "{point} {args:?}: {}", ran.told());
        assert!(resumed_at(&ran).is_some_and(|k| k > 0), "{}", ran.told());
    }
}

/// With layout `dedicated` and two groups, a computing rank of one group and a parity rank of the other are lost. Then the roles
/// of the groups are exchanged. One rank more than needed stands by.
#[test]
fn a_loss_in_each_of_two_groups_with_ranks_of_their_own() {
    let scene = Scene::new(2, 3).idle(3).protect(DEDICATED).protect(&["--group", "3"]);
    scene.inject("barrier-passed:7:4:kill");
    let groups = scene.groups();
    assert!(groups.len() == 2 && groups.iter().all(|group| group.len() == 4), "{groups:?}");
    let first = [groups[0][1], groups[1][3]];
    assert!(first[0] < 6 && first[1] >= 6, "{groups:?}");
    first.iter().for_each(|&position| scene.lose(position));
    scene.inject("iteration:6:9:kill");
    let then = [groups[0][3], groups[1][0]];
    then.iter().for_each(|&position| scene.lose(position));
    let mut then = then.to_vec();
    then.sort_unstable();
    assert_eq!(rebuilt(&scene.finish()), Some(then));
}

/// A flipped bit in the parity of a rank that stores parity only is found, and the parity is computed again.
#[test]
fn a_damaged_checksum_on_a_rank_of_its_own() {
    let scene = Scene::new(2, 2).idle(1).protect(DEDICATED);
    scene.inject("iteration:1:6:kill");
    for part in ["c", "d"] {
        let mut bytes = std::fs::read(scene.file(4, part)).unwrap();
        bytes[77] ^= 4;
        std::fs::write(scene.file(4, part), bytes).unwrap();
    }
    let ran = scene.finish();
    assert_eq!(rebuilt(&ran), Some(vec![4]), "{}", ran.told());
}

/// With layout `dedicated`, a stop in the second of two tests ends all ranks. The same command resumes in the second test.
#[test]
fn a_stop_between_tests_with_ranks_of_their_own() {
    let tests = &["-n", "150,301", "--nb", "10"];
    let scene = Scene::of(2, 2, tests).idle(1).protect(&["--checkpoint", "10"]).protect(DEDICATED);
    // Boundaries 1 to 14 belong to the first test.
    let running = scene.freeze("iteration:0:25:stop");
    let first = running.ranks().into_iter().find(|rank| rank.rank == 0).unwrap();
    kill(first.pid, Signal::SIGUSR1).unwrap();
    kill(first.pid, Signal::SIGCONT).unwrap();
    let ran = running.end().expect_code(75);
    assert!(ran.err.contains("stopped as asked"), "{}", ran.told());
    assert_eq!(scene.held(), [0, 1, 2, 3, 4]);
    let ran = scene.finish();
    assert!(ran.err.contains("test 2 resumes"), "{}", ran.told());
    assert!(resumed_at(&ran).is_some_and(|k| k >= 10), "{}", ran.told());
}

/// Layout `dedicated` is refused if there are too few ranks, if the parity rank shares a node with its group, or if memory has
/// other groups.
#[test]
fn ranks_of_their_own_that_cannot_be_had_are_told() {
    let mut scene = Scene::new(2, 2).protect(DEDICATED);
    let ran = scene.job().run().expect_code(1);
    for word in
        ["at least 5 processes", "plus 1 to hold parity (--parity-layout dedicated)", "only 4"]
    {
        assert!(ran.err.contains(word), "{word}: {}", ran.told());
    }
    scene = scene.idle(1);
    let domains: String = (0..5).map(|rank| format!("rank:{rank} d{}\n", rank % 4)).collect();
    std::fs::write(scene.path("domains"), domains).unwrap();
    let ran = scene.job().run().expect_code(1);
    for word in ["position 4", "\"d0\"", "only checksums"] {
        assert!(ran.err.contains(word), "{word}: {}", ran.told());
    }
    scene.expect_nothing_left();

    let mut scene = Scene::new(2, 2).idle(2).protect(DEDICATED);
    scene.also("SKT_GROUP", "2");
    scene.inject("iteration:1:4:kill");
    scene.also("SKT_GROUP", "4");
    scene.expect_refused(1, &["of another run"]);
    scene.also("SKT_GROUP", "2");
    scene.finish();
    let mut scene = Scene::new(2, 2).idle(2).protect(DEDICATED);
    scene.also("SKT_GROUP", "4");
    scene.inject("iteration:1:4:kill");
    scene.also("SKT_GROUP", "2");
    scene.expect_refused(1, &["fewer ranks for checksums", "--group"]);
    scene.also("SKT_GROUP", "4");
    scene.finish();
}

/// Parity layouts that the grid does not allow are refused before the run. Memory that was saved with another layout is kept.
#[test]
fn layouts_that_cannot_be_had_and_memory_of_another_one() {
    let refused = |scene: &Scene, words: &[&str]| {
        let ran = scene.job().run().expect_code(1);
        for word in words {
            assert!(ran.err.contains(word), "{word}: {}", ran.told());
        }
        scene.expect_nothing_left();
    };
    let four = Scene::new(2, 2).protect(LOCALISED);
    refused(&four, &["--parity-layout localised", "at least 6 failure domains", "--losses 1"]);
    let lines = Scene::new(2, 2).protect(GRID).protect(&["--losses", "2"]);
    refused(&lines, &["2 x 2 grid", "3 are needed", "--parity-layout striped"]);

    let mut scene = six(&[]);
    scene.inject("iteration:1:4:kill");
    scene.also("SKT_PARITY_LAYOUT", "localised");
    scene.expect_refused(
        1,
        &["--parity-layout striped, but this run has --parity-layout localised"],
    );
    scene.also("SKT_PARITY_LAYOUT", "striped");
    scene.finish();
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    #[test]
    fn a_second_loss_during_the_recovery_of_localised_checksums_and_a_third() {
        for point in ["rebuild-batch", "rebuilt", "restore-half"] {
            let scene = six(LOCALISED);
            scene.inject("flush-data:0:4:kill");
            scene.lose(2);
            let second = if point == "rebuilt" { 2 } else { 4 };
            scene.inject(&format!("{point}:{second}:1:kill"));
            scene.lose(second);
            scene.finish();
        }
        let scene = six(LOCALISED);
        scene.inject("iteration:0:4:kill");
        let back = Stash::take(&scene, 4);
        [0, 3, 4].iter().for_each(|&position| scene.lose(position));
        scene.expect_refused(4, &["[0, 3, 4]", "position 4 on", "kept"]);
        back.put_back();
        assert_eq!(rebuilt(&scene.finish()), Some(vec![0, 3]));
    }

    #[test]
    fn a_second_loss_during_the_recovery_with_ranks_of_their_own_and_a_third() {
        let six = || Scene::new(2, 2).idle(2).protect(DEDICATED).protect(&["--losses", "2"]);
        for (point, first, second) in
            [("rebuild-batch", 5, 1), ("rebuilt", 2, 2), ("rebuilt", 4, 4), ("restore-half", 1, 3)]
        {
            let scene = six();
            scene.inject("flush-data:0:4:kill");
            scene.lose(first);
            scene.inject(&format!("{point}:{second}:1:kill"));
            scene.lose(second);
            scene.finish();
        }
        let scene = six();
        scene.inject("iteration:0:4:kill");
        let back = Stash::take(&scene, 4);
        [1, 4, 5].iter().for_each(|&position| scene.lose(position));
        scene.expect_refused(4, &["[1, 4, 5]", "position 4 on", "kept"]);
        back.put_back();
        assert_eq!(rebuilt(&scene.finish()), Some(vec![1, 5]));
    }

    /// With layout `dedicated` and two parity ranks, any two of the six ranks can be lost.
    #[test]
    fn any_two_of_four_and_of_the_ranks_that_keep_their_checksums() {
        let two = ["--losses", "2"];
        let mut pairs: Vec<[usize; 2]> = (0..6).flat_map(|a| (0..a).map(move |b| [b, a])).collect();
        if !whole() {
            pairs = vec![[4, 5], [1, 4], [0, 3], [2, 5]];
        }
        for (i, pair) in pairs.iter().enumerate() {
            let way: &[&str] = [&["--encode", "reduce"][..], &[]][i % 2];
            let scene = Scene::new(2, 2).idle(2).protect(DEDICATED).protect(&two).protect(way);
            let point = ["flush-data", "iteration", "encode-end"][i % 3];
            scene.inject(&format!("{point}:{}:4:kill", pair[0]));
            pair.iter().for_each(|&position| scene.lose(position));
            assert_eq!(rebuilt(&scene.finish()), Some(pair.to_vec()));
        }
    }
}
