//! Choice of the checkpoints on storage from which a run can resume, and their order of preference. All functions are pure.
//!
//! All ranks choose from the same list, so all ranks choose the same checkpoint.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use std::collections::BTreeMap;
use std::path::Path;

use super::DirScope;
use super::names::{Key, parse_checkpoint_folder};
use super::record::About;

/// Inventory of checkpoints: contents of a job's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Checkpoints with a valid manifest.
    pub whole: Vec<About>,
    /// Directory scopes that the manifests name.
    pub sights: Vec<DirScope>,
    /// Damaged manifests, results and file headers: error texts that name the file.
    pub damaged: Vec<String>,
    /// Folders of incomplete checkpoints.
    pub unfinished: Vec<String>,
    /// Results of finished tests, each with its test number and its text as it was written.
    pub results: Vec<(u32, Vec<u8>)>,
    /// Number of the latest start that has claimed the folder; None if no start has.
    pub owner: Option<u128>,
}

/// Results of finished tests that may stay on storage, by test number. Each has the hash of the text that may stay, or None if
/// any text may stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Results(pub BTreeMap<u32, Option<u64>>);

impl Results {
    pub fn mark(text: &[u8]) -> u64 {
        xxh3_64(text)
    }

    pub fn has(&self, test: u32, text: &[u8]) -> bool {
        let mark = self.0.get(&test);
        mark.is_some_and(|mark| mark.is_none_or(|mark| mark == Self::mark(text)))
    }
}

/// Results of finished tests that were valid when the launch began. In the first test of the launch (`first` is true), a start
/// removes all other results from storage. In a later test, a start removes other results only if this launch has not claimed the
/// DIR before. All results in the DIR are then from earlier launches.
#[derive(Clone, Debug)]
pub struct Counting {
    pub results: Results,
    /// True in the first test of the launch.
    pub first: bool,
}

/// Relation of a checkpoint to the run that is starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The checkpoint belongs to one of the run's tests, and was computed with the same arithmetic ([`About::arithmetic`]).
    Ours,
    /// The checkpoint belongs to one of the run's tests, but was computed with another arithmetic.
    RoundsOtherwise,
    /// The checkpoint belongs to another problem.
    Foreign,
}

/// Determines the relation of a checkpoint to a run. `tests` has the digest of each of the run's tests. The upper half of a
/// digest's bits comes from the parameters, the lower half from the arithmetic.
pub fn kind(about: &About, tests: &[u64]) -> Kind {
    match tests.get(about.test as usize) {
        Some(&digest) if digest == about.params_digest => Kind::Ours,
        Some(digest) if digest >> 32 == about.params_digest >> 32 => Kind::RoundsOtherwise,
        _ => Kind::Foreign,
    }
}

/// Facts about a starting run that are known before storage is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Id of the run to which memory of one of the tests belongs. None if there is no such memory.
    pub in_memory: Option<u128>,
    /// True if the supervisor has launched the run before. The supervisor may then have replaced nodes.
    pub launched_before: bool,
}

/// Leaves the checkpoints of a DIR out of the choice if the DIR has only checkpoints of other problems, as the DIR of a
/// replacement node may. Removes no file. `stocks` has the inventory of each DIR, with the name of its node. Such an inventory
/// keeps only its greatest number of a run or start, because a new run's number must be greater. Returns the node and one
/// checkpoint of each such DIR, for a message.
///
/// There are two conditions, of which one must be met. Either some position's memory belongs to one of the `tests`, and another
/// DIR keeps its checkpoints. Or this is a later launch of the run, and at least as many DIRs have checkpoints of the run as are
/// left out.
pub fn leave_out_strays(
    stocks: &mut [(String, Inventory)],
    tests: &[u64],
    known: Known,
) -> Vec<(String, About)> {
    let foreign = |about: &About| kind(about, tests) == Kind::Foreign;
    let is_stray =
        |inventory: &Inventory| !inventory.whole.is_empty() && inventory.whole.iter().all(foreign);
    let is_own = |inventory: &Inventory| inventory.whole.iter().any(|about| !foreign(about));
    let count = |is: &dyn Fn(&Inventory) -> bool| {
        stocks.iter().filter(|(_, inventory)| is(inventory)).count()
    };
    let (strays, own) = (count(&is_stray), count(&is_own));
    let by_storage = known.launched_before && own > 0 && own >= strays;
    if !(known.in_memory.is_some() && strays < stocks.len() || by_storage) {
        return Vec::new();
    }
    let of_strays =
        stocks.iter_mut().filter(|(_, inventory)| is_stray(inventory)).map(|(node, inventory)| {
            let about = inventory.whole[0].clone();
            *inventory = Inventory { owner: inventory.latest(), ..Inventory::default() };
            (node.clone(), about)
        });
    of_strays.collect()
}

impl Inventory {
    /// Merges the inventories of several DIRs, given with the names of their nodes. A checkpoint with a single manifest is
    /// complete, because a manifest is written only after all nodes have their files.
    ///
    /// A result of a finished test is valid if its node also has a checkpoint of the latest run, or if more than half of the
    /// nodes have the same text. Other results are left out: a node that was absent when a run ended may still have results of
    /// that run. `in_memory` is the run to which memory belongs; it may be the latest run.
    pub fn merged(stocks: Vec<(String, Inventory)>, in_memory: Option<u128>) -> Inventory {
        let mut all = Inventory::default();
        let nodes = stocks.len();
        let on_storage = stocks.iter().filter_map(|(_, inventory)| inventory.latest_run()).max();
        let latest = on_storage.max(in_memory);
        // All nodes of a run have the same text of a result.
        let mut texts: BTreeMap<u32, BTreeMap<Vec<u8>, usize>> = BTreeMap::new();
        for (node, inventory) in stocks {
            let trusted = latest.is_some() && inventory.latest_run() == latest;
            for (test, bytes) in inventory.results {
                let votes = texts.entry(test).or_default().entry(bytes).or_insert(0);
                *votes += if trusted { nodes + 1 } else { 1 };
            }
            let here = |text: String| format!("on {node}: {text}");
            let new = |about: &About| !all.whole.contains(about);
            let whole: Vec<About> = inventory.whole.into_iter().filter(new).collect();
            all.whole.extend(whole);
            all.sights.extend(inventory.sights);
            all.owner = all.owner.max(inventory.owner);
            all.damaged.extend(inventory.damaged.into_iter().map(here));
            all.unfinished.extend(inventory.unfinished.into_iter().map(here));
        }
        let best =
            |texts: BTreeMap<Vec<u8>, usize>| texts.into_iter().max_by_key(|(_, votes)| *votes);
        for (test, texts) in texts {
            let counts = best(texts).filter(|(_, votes)| 2 * votes > nodes);
            all.results.extend(counts.map(|(bytes, _)| (test, bytes)));
        }
        all.sights.sort_by_key(|dir_scope| *dir_scope == DirScope::Node);
        all.sights.dedup();
        // A checkpoint without a manifest on one node is complete if another node has its manifest.
        let whole: Vec<Key> = all.whole.iter().map(About::key).collect();
        let key = |folder: &str| {
            Path::new(folder).file_name().and_then(|name| parse_checkpoint_folder(name.to_str()?))
        };
        all.unfinished.retain(|folder| key(folder).is_none_or(|key| !whole.contains(&key)));
        all
    }

    /// Checkpoints from which test `test` with digest `digest` can resume, in order of preference: the best first.
    pub fn for_test(&self, test: u32, digest: u64) -> Vec<About> {
        let ours = |about: &&About| about.test == test && about.params_digest == digest;
        let mut found: Vec<About> = self.whole.iter().filter(ours).cloned().collect();
        found.sort_by_key(|about| std::cmp::Reverse(about.progress()));
        found
    }

    /// Returns the first checkpoint from which none of the run's tests can resume, with its relation to the run. None if there is
    /// no such checkpoint.
    pub fn odd_one(&self, tests: &[u64]) -> Option<(&About, Kind)> {
        let kinds = self.whole.iter().map(|about| (about, kind(about, tests)));
        kinds.into_iter().find(|(_, kind)| *kind != Kind::Ours)
    }

    /// Greatest run id of all complete checkpoints. None without a complete checkpoint.
    pub fn latest_run(&self) -> Option<u128> {
        self.whole.iter().map(|about| about.run).max()
    }

    /// Greatest number of all runs and starts in the inventory. A new run's number must be greater. None without a run or start.
    pub fn latest(&self) -> Option<u128> {
        self.latest_run().max(self.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::stored::about;
    use proptest::prelude::*;

    const MINE: u64 = u64::MAX - 5;

    #[test]
    fn the_furthest_checkpoint_of_this_very_test_comes_first() {
        let mut other = about(9, 1, 9, 99);
        other.params_digest = 1;
        let inventory = Inventory {
            whole: vec![
                about(5, 1, 7, 30),
                about(8, 1, 2, 40),
                other,
                about(7, 2, 9, 90),
                about(9, 1, 1, 30),
            ],
            ..Inventory::default()
        };
        let found = inventory.for_test(1, MINE);
        let order: Vec<(u128, u64)> = found.iter().map(|a| (a.run, a.boundary)).collect();
        assert_eq!(order, [(8, 40), (9, 30), (5, 30)]);
        assert!(inventory.for_test(3, MINE).is_empty());
        assert_eq!(inventory.latest_run(), Some(9));
    }

    #[test]
    fn foreign_and_otherwise_rounded_checkpoints_are_told_apart() {
        let inventory = |digest| {
            let whole = vec![About { params_digest: digest, ..about(1, 1, 1, 1) }];
            Inventory { whole, ..Inventory::default() }
        };
        let tests = [7, 7 << 32 | 1];
        let found = |digest| inventory(digest).odd_one(&tests).map(|(_, kind)| kind);
        assert_eq!(found(7 << 32 | 1), None);
        assert_eq!(found(7 << 32 | 2), Some(Kind::RoundsOtherwise));
        assert_eq!(found(8 << 32 | 1), Some(Kind::Foreign));
        assert_eq!(inventory(7).odd_one(&[7]).map(|(_, kind)| kind), Some(Kind::Foreign));
    }

    #[test]
    fn checkpoints_of_a_new_node_are_left_out_if_the_run_has_its_own() {
        let inventory = |kinds: &[Kind]| {
            let about = |(at, kind): (usize, &Kind)| {
                let params_digest = match kind {
                    Kind::Ours => 7 << 32,
                    Kind::RoundsOtherwise => 7 << 32 | 1,
                    Kind::Foreign => 9 << 32,
                };
                About { params_digest, ..about(at as u128 + 5, 0, 1, 10) }
            };
            let whole: Vec<About> = kinds.iter().enumerate().map(about).collect();
            let sights = if whole.is_empty() { Vec::new() } else { vec![DirScope::Shared] };
            Inventory { whole, sights, results: vec![(0, b"r".to_vec())], ..Inventory::default() }
        };
        let (ours, none, stray) =
            (inventory(&[Kind::Ours]), inventory(&[]), inventory(&[Kind::Foreign; 2]));
        let otherwise = inventory(&[Kind::RoundsOtherwise]);
        let both = inventory(&[Kind::Foreign, Kind::Ours]);
        // Each case: inventories of the nodes, facts that are known before storage is read, and the inventories that are emptied.
        let neither = Known::default();
        let memory = Known { in_memory: Some(9), ..neither };
        let later = Known { launched_before: true, ..neither };
        type Case<'a> = (&'a [&'a Inventory], Known, &'a [usize]);
        let cases: [Case; 14] = [
            (&[&ours, &stray], later, &[1]),
            // In a first launch, the user has chosen these nodes, so no inventory is emptied.
            (&[&ours, &stray], neither, &[]),
            (&[&ours, &stray, &stray], later, &[]),
            (&[&ours, &stray, &stray], memory, &[1, 2]),
            (&[&stray, &none, &none], memory, &[0]),
            (&[&stray, &none, &none], later, &[]),
            (&[&stray, &stray], memory, &[]),
            (&[&stray], memory, &[]),
            (&[&both, &both], later, &[]),
            (&[&both, &stray], later, &[1]),
            // A checkpoint with another arithmetic belongs to the run, so it is not foreign.
            (&[&otherwise, &stray], later, &[1]),
            (&[&none, &none], memory, &[]),
            (&[&none, &ours], memory, &[]),
            (&[&none, &ours], later, &[]),
        ];
        for (at, (have, known, out)) in cases.into_iter().enumerate() {
            let named =
                |(at, inventory): (usize, &&Inventory)| (format!("n{at}"), (*inventory).clone());
            let before: Vec<(String, Inventory)> = have.iter().enumerate().map(named).collect();
            let mut after = before.clone();
            let told = leave_out_strays(&mut after, &[7 << 32], known);
            let wanted: Vec<String> = out.iter().map(|at| format!("n{at}")).collect();
            assert!(told.iter().map(|(node, _)| node).eq(&wanted), "case {at}: {told:?}");
            for (node, (before, after)) in before.iter().zip(&after).enumerate() {
                let left = Inventory { owner: Some(6), ..Inventory::default() };
                let wanted = if out.contains(&node) { &left } else { &before.1 };
                assert_eq!(&after.1, wanted, "case {at}");
            }
        }
    }

    #[test]
    fn inventories_of_nodes_are_joined() {
        let (old, new) = (about(5, 0, 1, 10), about(5, 0, 2, 20));
        let folder = |about: &About| {
            format!("/local/job/{}", super::super::names::checkpoint_folder(about.key()))
        };
        let one = Inventory {
            whole: vec![new.clone()],
            sights: vec![DirScope::Node],
            results: vec![(0, b"a".to_vec())],
            ..Inventory::default()
        };
        // The node has not written its manifest of the newer checkpoint, and has not completed its part of the next checkpoint.
        let other = Inventory {
            whole: vec![old.clone()],
            sights: vec![DirScope::Node],
            unfinished: vec![folder(&new), folder(&about(5, 0, 3, 30))],
            damaged: vec!["x".into()],
            results: vec![(0, b"a".to_vec()), (1, b"c".to_vec())],
            owner: Some(7),
        };
        let all = Inventory::merged(vec![("n1".into(), one), ("n2".into(), other)], None);
        assert_eq!((all.latest_run(), all.latest()), (Some(5), Some(7)));
        assert_eq!(all.for_test(0, MINE), [new, old]);
        assert_eq!(all.unfinished, [format!("on n2: {}", folder(&about(5, 0, 3, 30)))]);
        assert_eq!((all.sights, all.damaged), (vec![DirScope::Node], vec!["on n2: x".to_owned()]));
        assert_eq!(all.results, [(0, b"a".to_vec()), (1, b"c".to_vec())]);
    }

    #[test]
    fn results_of_a_run_that_is_over_do_not_come_back_with_one_node() {
        let with = |results: &[u32], whole: Vec<About>| {
            let results = results.iter().map(|test| (*test, vec![1])).collect();
            ("n".to_owned(), Inventory { whole, results, ..Inventory::default() })
        };
        let tests = |stocks| {
            let all = Inventory::merged(stocks, None).results;
            all.into_iter().map(|(test, _)| test).collect::<Vec<u32>>()
        };
        let none = Vec::new;
        assert_eq!(tests(vec![with(&[0], none()), with(&[], none()), with(&[], none())]), [0; 0]);
        assert_eq!(tests(vec![with(&[0], none()), with(&[0], none()), with(&[], none())]), [0]);
        // A result of the latest run is valid even if a single node has it. A result of an earlier run is not.
        let (earlier, latest) = (vec![about(3, 0, 1, 10)], vec![about(5, 1, 1, 10)]);
        let stocks = vec![with(&[0], latest), with(&[1], earlier.clone()), with(&[], none())];
        assert_eq!(tests(stocks), [0]);
        // There is memory of a later run, which has no checkpoint on storage yet.
        let stocks = || vec![with(&[0], earlier.clone()), with(&[], none()), with(&[], none())];
        let counting = |in_memory| Inventory::merged(stocks(), in_memory).results.len();
        assert_eq!([None, Some(3), Some(5)].map(counting), [1, 1, 0]);
    }

    /// The result of the later run is valid in any order of the nodes.
    #[test]
    fn of_two_results_of_one_test_the_latest_runs_counts() {
        let with = |text: &[u8], run: Option<u128>| {
            let whole = run.map(|run| about(run, 1, 1, 10)).into_iter().collect();
            Inventory { whole, results: vec![(0, text.to_vec())], ..Inventory::default() }
        };
        let results = |stocks: &[Inventory]| {
            let named =
                |(at, inventory): (usize, &Inventory)| (format!("n{at}"), inventory.clone());
            Inventory::merged(stocks.iter().enumerate().map(named).collect(), None).results
        };
        let (old, new) = (with(b"old", Some(3)), with(b"new", Some(5)));
        for stocks in [[old.clone(), new.clone()], [new.clone(), old.clone()]] {
            assert_eq!(results(&stocks), [(0, b"new".to_vec())]);
        }
        // No node has a checkpoint, so the majority of the nodes decides. Two of three nodes first have different results, then
        // the same result.
        let (one, other, none) = (with(b"a", None), with(b"b", None), Inventory::default());
        assert_eq!(results(&[one.clone(), other.clone(), none]), []);
        assert_eq!(results(&[one, other.clone(), other]), [(0, b"b".to_vec())]);
    }

    proptest! {
        /// The order of the entries of a folder does not change the choice.
        #[test]
        fn the_order_of_finding_does_not_matter(
            kinds in proptest::collection::vec((0u128..4, 0u32..2, 0u64..4, 0u64..5), 0..12),
            turn in 0usize..12,
        ) {
            let mut kinds = kinds;
            kinds.sort_unstable();
            kinds.dedup_by_key(|k| (k.0, k.1, k.2));
            let whole: Vec<About> =
                kinds.into_iter().map(|(run, test, checkpoint, at)| about(run, test, checkpoint, at)).collect();
            let mut turned = whole.clone();
            let by = turn.min(turned.len());
            turned.rotate_left(by);
            let one = Inventory { whole, ..Inventory::default() }.for_test(1, MINE);
            let other = Inventory { whole: turned, ..Inventory::default() }.for_test(1, MINE);
            prop_assert_eq!(&one, &other);
            prop_assert!(one.windows(2).all(|w| w[0].boundary >= w[1].boundary));
        }
    }
}
