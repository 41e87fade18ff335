//! Model of level two with one DIR per node. A DIR is lost with its node. Each node writes its own manifest, and the files
//! contain the parity of their group. `recall` recovers the data of lost nodes.
//!
//! Claim to prove: the run resumes if each group has lost at most `losses` nodes since all nodes last had the manifest of one
//! checkpoint. It resumes in spite of any losses of memory at any step. Files that no node's manifest lists are never read, so
//! the model drops them.

use std::collections::BTreeSet;

use skt_hpl::checkpoint::recall::{Recall, Seen, Told, recall};
use skt_hpl::checkpoint::storage::Check;
use skt_hpl::parity::Code;
use skt_hpl::shm::header::CheckpointId;

use crate::system::{
    Broken, GROUPS, Garbage, Protocol, RANKS, Rank, Stored, Sys, Val, Whole, peer,
};

/// File of one grid position for one checkpoint, in the DIR of the position's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Filed {
    pub of: Stored,
    pub data: Val,
    pub parity: Val,
    /// True if the manifest in the same DIR lists this file.
    pub listed: bool,
}

/// Content of one node's DIR: at most one file for each checkpoint.
pub type CheckpointDir = [Option<Filed>; 3];

fn file_of(r: &Rank, of: Stored) -> Option<&Filed> {
    r.checkpoint_dir.iter().flatten().find(|file| file.of == of)
}

/// Returns all checkpoints that the manifest of at least one node lists, ordered from the furthest boundary to the earliest.
pub fn whole(s: &Sys) -> Vec<Stored> {
    let listed =
        s.ranks.iter().flat_map(|r| r.checkpoint_dir.iter().flatten()).filter(|file| file.listed);
    let mut all: Vec<Stored> = listed.map(|file| file.of).collect();
    all.sort_unstable_by_key(|of| std::cmp::Reverse((of.boundary, of.run, of.id)));
    all.dedup();
    all
}

/// Returns the furthest checkpoint that the files in all DIRs can recover, and the recovery plan of `recall`. Returns None if no
/// listed checkpoint can be recovered.
pub fn best(s: &Sys) -> Option<(Stored, Recall)> {
    whole(s).into_iter().find_map(|of| {
        let told: Vec<Told> = (0..RANKS)
            .map(|dir_id| {
                let group = dir_id / 2;
                let members = GROUPS[group].map(|member| member as u32).to_vec();
                let code = Code::Xor as u8;
                let check =
                    Check { group: group as u32, members, losses: 1, code, layout: 0, words: 1 };
                let here = file_of(&s.ranks[dir_id], of).map(|_| Seen { position: dir_id, check });
                Told { dir_id, seen: here.into_iter().collect() }
            })
            .collect();
        Some((of, recall(RANKS, &told, &BTreeSet::new()).ok()?))
    })
}

/// Returns true if the run must be able to resume from storage. For this, all nodes must have had the manifest of one checkpoint.
/// Each group may since have lost at most one node.
pub fn bears(s: &Sys) -> bool {
    s.ever && GROUPS.iter().all(|group| group.iter().filter(|&&p| s.ranks[p].bare).count() <= 1)
}

/// Returns the data of checkpoint `of` for position `rank`: from the position's own file, or else from the parity in its peer's
/// file. Returns `Garbage` if neither file is usable.
pub fn fetched(s: &Sys, of: Stored, rank: usize) -> Val {
    let whole = |rank: usize| file_of(&s.ranks[rank], of).filter(|file| file.data == Whole(of.id));
    match (file_of(&s.ranks[rank], of), whole(peer(rank))) {
        (Some(file), _) => file.data,
        (None, Some(other)) => other.parity,
        (None, None) => Garbage,
    }
}

impl Protocol {
    /// Writes the file of `rank` for checkpoint `of` to the DIR of the rank's node. The helper copies B and the checksum as
    /// memory contains them at this moment, even if the rank has changed them meanwhile.
    pub fn write_apart(&self, s: &mut Sys, rank: usize, of: Stored) {
        // Files whose manifest is still to be written are kept, as listed files are.
        let pending = s.ranks.iter().filter_map(|r| r.lists);
        let vouched: Vec<Stored> = whole(s).into_iter().chain(pending).collect();
        let r = &mut s.ranks[rank];
        let (mut data, mut parity) = (Garbage, Garbage);
        if let Some(m) = &mut r.mem {
            (data, parity) = (m.b, *m.check(of.id));
        }
        if self.broken == Broken::ParityLeftOut {
            parity = Garbage;
        }
        for place in &mut r.checkpoint_dir {
            if place.is_some_and(|file| !vouched.contains(&file.of)) {
                *place = None;
            }
        }
        let free = r.checkpoint_dir.iter_mut().find(|place| place.is_none());
        *free.expect("three checkpoints at most are worth something") =
            Some(Filed { of, data, parity, listed: false });
        match self.broken {
            Broken::OwnManifestFirst => r.lists = Some(of),
            Broken::PruneBeforeAll => prune(r, of),
            _ => {}
        }
        r.checkpoint_dir.sort_unstable();
    }

    /// Writes the manifest of the node of `rank`, and removes the node's files of older checkpoints. Enabled only when all files
    /// of the checkpoint are complete on all nodes.
    pub fn list(&self, s: &mut Sys, rank: usize) {
        let r = &mut s.ranks[rank];
        let Some(of) = r.lists.take() else { unreachable!("not enabled") };
        for file in r.checkpoint_dir.iter_mut().flatten().filter(|file| file.of == of) {
            file.listed = true;
        }
        prune(r, of);
        r.checkpoint_dir.sort_unstable();
        let all = |r: &Rank| file_of(r, of).is_some_and(|file| file.listed);
        if s.ranks.iter().all(all) {
            s.ever = true;
            s.ranks.iter_mut().for_each(|r| r.bare = false);
        }
    }
}

/// Removes the files of one node, except those of checkpoint `keep` and of later checkpoints of the same run.
fn prune(r: &mut Rank, keep: Stored) {
    let later = |of: Stored| of.run == keep.run && of.id >= keep.id;
    for place in &mut r.checkpoint_dir {
        if place.is_some_and(|file| !later(file.of)) {
            *place = None;
        }
    }
}

/// Removes all files that no node's manifest lists, as an attempt begins. Manifests that are not written yet are dropped.
pub fn forget(s: &mut Sys) {
    let vouched = whole(s);
    for r in &mut s.ranks {
        r.lists = None;
        for place in &mut r.checkpoint_dir {
            if place.is_some_and(|file| !vouched.contains(&file.of)) {
                *place = None;
            }
        }
        r.checkpoint_dir.sort_unstable();
    }
}

/// Returns checkpoint `id` of `run` as a checkpoint on storage. Its boundary is the checkpoint number plus the run's offset.
pub fn stored(run: crate::system::Run, id: CheckpointId) -> Stored {
    Stored { id, boundary: run.boundary(id), run: run.number }
}
