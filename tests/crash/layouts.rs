//! Layouts of checksums other than the striped one: as many losses as each tolerates, and one more; the next start with
//! another layout than memory has.

use crate::limits::Stash;
use crate::scene::{Scene, rebuilt, resumed_at, sampled, whole};

const LOCALISED: &[&str] = &["--layout", "localised", "--losses", "2"];
const GRID: &[&str] = &["--layout", "grid"];

fn six(args: &[&str]) -> Scene {
    Scene::new(2, 3).protect(args)
}

/// Of six positions with a copy of each checksum on three, any two; whatever is made of them and how.
#[test]
fn any_two_of_six_with_localised_checksums() {
    let ways: &[&[&str]] =
        &[&[], &["--encode", "reduce"], &["--method", "double"], &["--scope", "whole"]];
    let mut pairs: Vec<[usize; 2]> = (0..6).flat_map(|a| (0..a).map(move |b| [b, a])).collect();
    if !whole() {
        pairs = vec![[0, 2], [1, 4], [2, 5], [3, 4]];
    }
    if sampled() {
        pairs.truncate(1);
    }
    for (i, pair) in pairs.iter().enumerate() {
        let scene = six(LOCALISED).protect(ways[i % ways.len()]);
        let point = ["flush-half", "iteration", "encode-end", "committed"][i % 4];
        scene.strike(&format!("{point}:{}:4:kill", pair[0]));
        assert_eq!(scene.groups(), [[0, 1, 2, 3, 4, 5]]);
        pair.iter().for_each(|&position| scene.lose(position));
        let ran = scene.finish();
        assert_eq!(rebuilt(&ran), Some(pair.to_vec()), "{}", ran.told());
        assert!(resumed_at(&ran).is_some_and(|k| k > 0), "{}", ran.told());
    }
}

/// Weighted sums come back up to rounding.
#[test]
fn localised_checksums_of_real_numbers() {
    let scene = six(LOCALISED).protect(&["--code", "weighted"]);
    scene.strike("flush-half:1:3:kill");
    [1, 3].iter().for_each(|&position| scene.lose(position));
    assert_eq!(rebuilt(&scene.finish_up_to_rounding()), Some(vec![1, 3]));
}

/// One for one loss: pairs, each of which has the checksum of both.
#[test]
fn one_of_each_pair() {
    let scene = Scene::new(2, 3).protect(&["--layout", "localised"]);
    scene.strike("flush-data:3:4:kill");
    let groups = scene.groups();
    assert!(groups.len() == 3 && groups.iter().all(|pair| pair.len() == 2), "{groups:?}");
    let mut lost: Vec<usize> = groups.iter().enumerate().map(|(i, pair)| pair[i % 2]).collect();
    lost.sort_unstable();
    lost.iter().for_each(|&position| scene.lose(position));
    assert_eq!(rebuilt(&scene.finish()), Some(lost));
}

#[test]
fn a_second_loss_during_the_recovery_of_localised_checksums_and_a_third() {
    for point in ["rebuild-batch", "rebuilt", "restore-half"] {
        let scene = six(LOCALISED);
        scene.strike("flush-data:0:4:kill");
        scene.lose(2);
        let second = if point == "rebuilt" { 2 } else { 4 };
        scene.strike(&format!("{point}:{second}:1:kill"));
        scene.lose(second);
        scene.finish();
        if sampled() {
            return;
        }
    }
    let scene = six(LOCALISED);
    scene.strike("iteration:0:4:kill");
    let back = Stash::take(&scene, 4);
    [0, 3, 4].iter().for_each(|&position| scene.lose(position));
    scene.expect_refused(4, &["[0, 3, 4]", "position 4 on", "kept"]);
    back.put_back();
    assert_eq!(rebuilt(&scene.finish()), Some(vec![0, 3]));
}

/// Rows are the longer lines of 2 x 3, columns those of 3 x 2, whatever the mapping: one of each may be lost.
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
        scene.strike(&format!("{point}:2:4:kill"));
        assert_eq!(scene.groups(), groups.map(<[usize]>::to_vec));
        let mut lost = vec![groups[0][1], groups[1][2]];
        lost.iter().for_each(|&position| scene.lose(position));
        lost.sort_unstable();
        assert_eq!(rebuilt(&scene.finish()), Some(lost));
        if sampled() {
            return;
        }
    }
    let scene = six(GRID);
    scene.strike("iteration:0:4:kill");
    [3, 5].iter().for_each(|&position| scene.lose(position));
    scene.expect_refused(4, &["[3, 5]", "position 3 on", "kept"]);
}

/// What cannot be had is told before the run; memory of another layout is left alone.
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
    refused(&four, &["--layout localised", "at least 6 failure domains", "--losses 1"]);
    let lines = Scene::new(2, 2).protect(GRID).protect(&["--losses", "2"]);
    refused(&lines, &["2 x 2 grid", "3 are needed", "--layout striped"]);

    let mut scene = six(&[]);
    scene.strike("iteration:1:4:kill");
    scene.also("SKT_LAYOUT", "localised");
    scene.expect_refused(1, &["--layout striped, and this one asks for localised"]);
    scene.also("SKT_LAYOUT", "striped");
    scene.finish();
}
