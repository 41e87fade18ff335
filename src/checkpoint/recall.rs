//! Choice of the files from which a checkpoint is read, if each node has a DIR of its own. Assigns a reader to each position's
//! file, and determines the positions that are rebuilt from the parity of their group. Pure, and the same on every rank.
//!
//! `fetching` calls [`recall`] when all ranks have reported their files, and again whenever files turn out to be damaged. The
//! calls end when all files that are read are sound, or when a group has lost more members than it survives.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::layout::ParityLayout;
use super::protocol::Refusal;
use crate::checkpoint::storage::Check;
use crate::parity::Code;

/// A position's file, with the description of its parity from the file's header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub position: usize,
    pub check: Check,
}

/// Report of one rank: its directory id and, if the rank is the first that uses the DIR, the files in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    pub dir_id: usize,
    pub seen: Vec<Seen>,
}

/// Group that made the parity of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub check: Check,
    /// Position from whose file `check` was read. `check.words` counts the parity of this position. With dedicated ranks, members
    /// have different amounts of parity.
    pub of: usize,
    pub code: Code,
    pub layout: ParityLayout,
    /// Members without a usable file, as indices in the group.
    pub lost: Vec<usize>,
}

/// Assignment of readers to files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Directory id and reading rank of each position's file. None if the position is rebuilt from parity.
    pub readers: Vec<Option<Reader>>,
    /// Groups in order of their numbers.
    pub groups: Vec<Stored>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    pub dir_id: usize,
    pub rank: usize,
}

impl Recall {
    /// Group of a position, and the index of the position in this group.
    pub fn group_of(&self, position: usize) -> (&Stored, usize) {
        let place = |group: &Stored| {
            group.check.members.iter().position(|&member| member as usize == position)
        };
        let mut found = self.groups.iter().filter_map(|group| Some((group, place(group)?)));
        found.next().expect("every position is in a group")
    }

    /// Positions that are rebuilt from parity.
    pub fn lost(&self) -> Vec<usize> {
        let readers = self.readers.iter().enumerate();
        readers.filter(|(_, reader)| reader.is_none()).map(|(position, _)| position).collect()
    }

    /// Returns true if the parity of this position is needed to rebuild a member of its group.
    pub fn needs_parity(&self, position: usize) -> bool {
        !self.group_of(position).0.lost.is_empty()
    }
}

/// Header fields that must match in all files of a group.
fn made(check: &Check) -> (&[u32], u32, u8, u8) {
    (&check.members, check.losses, check.code, check.layout)
}

/// Returns an error unless `members`, the members of all groups, are exactly the positions of this run, each in one group.
fn check_members(members: &[u32], positions: usize, working: usize) -> Result<(), String> {
    let dedicated = |how: &str| {
        Err(format!(
            "the checkpoint was written with {how} ranks for checksums than this run has: start this run with the checkpoint's \
             --parity-layout, --group and --losses"
        ))
    };
    // Dedicated positions have higher numbers than all others.
    if members.iter().any(|&member| member as usize >= positions) {
        return dedicated("more");
    }
    let mut placed = vec![false; positions];
    for &member in members {
        if std::mem::replace(&mut placed[member as usize], true) {
            return Err("files of this checkpoint name different groups".into());
        }
    }
    let missing: Vec<usize> = (0..positions).filter(|&position| !placed[position]).collect();
    match missing.first() {
        None => Ok(()),
        Some(&first) if first >= working => dedicated("fewer"),
        Some(_) => {
            Err(format!("for the groups of positions {missing:?}, no file of any member is left"))
        }
    }
}

/// Chooses the files of a checkpoint. `told` has the report of each rank, in order of ranks. The first `working` positions have a
/// part of the matrix. `bad` contains the directory id and the position of each damaged file. Returns an error text if a group
/// has lost more members than it survives, or if files contradict each other or this run.
pub fn recall(
    working: usize,
    told: &[Told],
    bad: &BTreeSet<(usize, usize)>,
) -> Result<Recall, String> {
    let positions = told.len();
    let mut readers: Vec<Option<Reader>> = vec![None; positions];
    let mut groups: BTreeMap<u32, (usize, &Check)> = BTreeMap::new();
    for told_here in told {
        let dir_id = told_here.dir_id;
        for seen in &told_here.seen {
            let (at, check) = (seen.position, &seen.check);
            if at >= positions || bad.contains(&(dir_id, at)) {
                continue;
            }
            // If several DIRs have a copy of a file, the copy on the position's own node is read, otherwise the first one.
            let own = told[at].dir_id == dir_id;
            if readers[at].is_none() || own {
                readers[at] = Some(Reader { dir_id, rank: if own { at } else { dir_id } });
            }
            let (_, known) = groups.entry(check.group).or_insert((at, check));
            if made(known) != made(check) {
                return Err("files of this checkpoint name different groups".into());
            }
        }
    }
    let members: Vec<u32> =
        groups.values().flat_map(|(_, check)| check.members.iter().copied()).collect();
    check_members(&members, positions, working)?;
    let mut stored = Vec::new();
    for (of, check) in groups.into_values() {
        let members = check.members.iter().map(|&member| member as usize);
        let is_lost = |member: &usize| readers[*member].is_none();
        let lost: Vec<usize> = members.clone().filter(is_lost).collect();
        if lost.len() > check.losses as usize {
            let refusal = Refusal::TooManyLost {
                group: check.group as usize,
                size: check.members.len(),
                losses: check.losses as usize,
                lost,
            };
            return Err(refusal.to_string());
        }
        let lost =
            members.enumerate().filter(|(_, m)| is_lost(m)).map(|(place, _)| place).collect();
        let code = Code::from_byte(check.code)
            .ok_or("the parity has a code that is not known to this program")?;
        let layout = ParityLayout::from_byte(check.layout)
            .ok_or("the parity has a layout that is not known to this program")?;
        stored.push(Stored { check: check.clone(), of, code, layout, lost });
    }
    Ok(Recall { readers, groups: stored })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(position: usize, size: usize, losses: u32) -> Seen {
        let group = (position / size) as u32;
        let first = position / size * size;
        let members = (first..first + size).map(|m| m as u32).collect();
        Seen { position, check: Check { group, members, losses, code: 2, layout: 0, words: 9 } }
    }

    /// Each rank has a DIR of its own, which contains the files of these positions.
    fn apart(files: &[&[usize]], size: usize, losses: u32) -> Vec<Told> {
        let told = |(dir_id, files): (usize, &&[usize])| Told {
            dir_id,
            seen: files.iter().map(|&position| seen(position, size, losses)).collect(),
        };
        files.iter().enumerate().map(told).collect()
    }

    fn ranks(recall: &Recall) -> Vec<Option<usize>> {
        recall.readers.iter().map(|reader| reader.map(|reader| reader.rank)).collect()
    }

    #[test]
    fn files_are_read_where_they_lie_and_what_is_gone_is_rebuilt() {
        let none = BTreeSet::new();
        let found = recall(4, &apart(&[&[0], &[1], &[2], &[3]], 2, 1), &none).unwrap();
        assert_eq!(ranks(&found), [Some(0), Some(1), Some(2), Some(3)]);
        assert!(found.lost().is_empty() && !(0..4).any(|p| found.needs_parity(p)));
        // Nodes in another order. One of them is new.
        let told = apart(&[&[2], &[], &[0], &[1]], 2, 1);
        let found = recall(4, &told, &none).unwrap();
        assert_eq!(ranks(&found), [Some(2), Some(3), Some(0), None]);
        assert_eq!((found.lost(), &found.groups[1].lost), (vec![3], &vec![1]));
        assert_eq!(found.group_of(3).1, 1);
        assert!(!found.needs_parity(0) && found.needs_parity(2));
        // If two nodes have the file, the position's own node reads it.
        let found = recall(4, &apart(&[&[0, 1], &[1], &[2], &[3]], 2, 1), &none).unwrap();
        assert_eq!(found.readers[1], Some(Reader { dir_id: 1, rank: 1 }));
        // If that file is damaged, the other one is read. If both are damaged, the position is rebuilt.
        let told = apart(&[&[0, 1], &[1], &[2], &[3]], 2, 1);
        let mut bad = BTreeSet::from([(1, 1)]);
        assert_eq!(recall(4, &told, &bad).unwrap().readers[1], Some(Reader { dir_id: 0, rank: 0 }));
        bad.insert((0, 1));
        assert_eq!(recall(4, &told, &bad).unwrap().lost(), [1]);
    }

    /// Two ranks on each node: the first one reports the files of both, and each reads its own file.
    #[test]
    fn ranks_of_one_node_read_their_own_files() {
        let mut told = apart(&[&[0, 1], &[], &[2, 3], &[]], 2, 1);
        told[1].dir_id = 0;
        told[3].dir_id = 2;
        let found = recall(4, &told, &BTreeSet::new()).unwrap();
        assert_eq!(ranks(&found), [Some(0), Some(1), Some(2), Some(3)]);
    }

    #[test]
    fn more_losses_than_the_code_bears_are_named() {
        let none = BTreeSet::new();
        let why = recall(4, &apart(&[&[0], &[1], &[], &[]], 4, 1), &none).unwrap_err();
        assert!(why.contains("[2, 3]") && why.contains("survives 1"), "{why}");
        assert!(recall(4, &apart(&[&[0], &[1], &[], &[]], 4, 2), &none).is_ok());
        let why = recall(4, &apart(&[&[0], &[1], &[], &[]], 2, 1), &none).unwrap_err();
        assert!(why.contains("positions [2, 3]"), "{why}");
        let mut other = apart(&[&[0], &[1], &[2], &[3]], 2, 1);
        other[1].seen[0].check.members = vec![1, 3];
        assert!(recall(4, &other, &none).unwrap_err().contains("different groups"));
        // All ranks must get the same error.
        let mut other = apart(&[&[0], &[1], &[2], &[3]], 2, 1);
        other[1].seen[0].check.code = 1;
        assert!(recall(4, &other, &none).unwrap_err().contains("different groups"));
        other[0].seen[0].check.code = 77;
        other[1].seen[0].check.code = 77;
        assert!(recall(4, &other, &none).unwrap_err().contains("a code that is not known"));
    }

    /// Four members in one group. The last member has only parity.
    #[test]
    fn members_that_keep_checksums_alone_are_members() {
        let none = BTreeSet::new();
        let told = apart(&[&[0], &[], &[2], &[3]], 4, 1);
        assert_eq!(recall(3, &told, &none).unwrap().lost(), [1]);
        let told = apart(&[&[0], &[1], &[2], &[]], 4, 1);
        assert_eq!(recall(3, &told, &none).unwrap().lost(), [3]);
        // A run without dedicated ranks, and a run with one more dedicated rank.
        let fewer = apart(&[&[0], &[1], &[2]], 4, 1);
        assert!(recall(3, &fewer, &none).unwrap_err().contains("with more ranks"));
        let more = apart(&[&[0], &[1], &[2], &[3], &[]], 4, 1);
        assert!(recall(4, &more, &none).unwrap_err().contains("with fewer ranks"));
        let why = recall(5, &more, &none).unwrap_err();
        assert!(
            why.contains("for the groups of positions [4], no file of any member is left"),
            "{why}"
        );
    }

    /// Each node may be at any step between two checkpoints when a node is lost. If a remaining node has a manifest of the newer
    /// checkpoint, the newer checkpoint can be read; otherwise the older checkpoint.
    #[test]
    fn between_two_checkpoints_there_is_always_one() {
        // Steps of a node: no file of the newer checkpoint yet, its file, its manifest, the older checkpoint removed.
        const STEPS: usize = 4;
        for at in 0..STEPS.pow(3) {
            let steps: Vec<usize> = (0..3).map(|node| at / STEPS.pow(node) % STEPS).collect();
            // A manifest is written only when all files are complete.
            if steps.iter().any(|&step| step >= 2) && steps.contains(&0) {
                continue;
            }
            for gone in [None, Some(0), Some(1), Some(2)] {
                let left = |node: usize| gone != Some(node);
                let files = |there: &dyn Fn(usize) -> bool| -> Vec<Vec<usize>> {
                    let of =
                        |node| if left(node) && there(steps[node]) { vec![node] } else { vec![] };
                    (0..3).map(of).collect()
                };
                let newer = (0..3).any(|node| left(node) && steps[node] >= 2);
                let files = match newer {
                    true => files(&|step| step >= 1),
                    false => files(&|step| step < 3),
                };
                let files: Vec<&[usize]> = files.iter().map(Vec::as_slice).collect();
                let found = recall(3, &apart(&files, 3, 1), &BTreeSet::new()).unwrap();
                assert_eq!(found.lost(), Vec::from_iter(gone), "{steps:?}");
            }
        }
    }

    proptest! {
        /// For any remaining nodes and any damaged files, every position is read from a sound file or rebuilt. The result is an
        /// error exactly if some group has lost more members than it survives.
        #[test]
        fn the_verdict_counts_what_is_lost_in_each_group(
            files in proptest::collection::vec(proptest::collection::vec(0usize..6, 0..4), 6),
            bad in proptest::collection::btree_set((0usize..6, 0usize..6), 0..6),
            losses in 1u32..3,
        ) {
            let files: Vec<&[usize]> = files.iter().map(Vec::as_slice).collect();
            let there = |p: usize| (0..6).any(|s| files[s].contains(&p) && !bad.contains(&(s, p)));
            let bears = [0..3, 3..6].into_iter().all(|group| {
                group.filter(|&p| !there(p)).count() <= losses as usize
            });
            match recall(6, &apart(&files, 3, losses), &bad) {
                Ok(found) => {
                    prop_assert!(bears);
                    for (position, reader) in found.readers.iter().enumerate() {
                        prop_assert_eq!(reader.is_some(), there(position));
                        if let Some(Reader { dir_id, rank }) = *reader {
                            prop_assert!(files[dir_id].contains(&position) && rank == dir_id);
                            prop_assert!(!bad.contains(&(dir_id, position)));
                        }
                    }
                }
                Err(_) => prop_assert!(!bears),
            }
        }
    }
}
