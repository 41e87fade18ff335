//! The second level with a DIR of each node's own, which is lost with the node: files with the group's parity in them, a manifest
//! of each node, and the data that `recall` recovers from them.
//!
//! The claim: losses of nodes are counted from the last time that all nodes had written the manifest of one checkpoint. Up to
//! `losses` of a group are recovered, whatever happens to memory and at any step. Files that no manifest on any node lists are
//! never read, so they are forgotten.

use std::collections::BTreeSet;

use skt_hpl::checkpoint::recall::{Recall, Seen, Told, recall};
use skt_hpl::checkpoint::storage::Check;
use skt_hpl::parity::Code;
use skt_hpl::shm::header::CheckpointId;

use crate::system::{
    Broken, GROUPS, Garbage, Protocol, RANKS, Rank, Stored, Sys, Val, Whole, peer,
};

/// A position's file on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Filed {
    pub of: Stored,
    pub data: Val,
    pub parity: Val,
    /// This node's manifest lists it.
    pub listed: bool,
}

/// A node's DIR: a file of each of a few checkpoints.
pub type CheckpointDir = [Option<Filed>; 3];

fn file_of(r: &Rank, of: Stored) -> Option<&Filed> {
    r.checkpoint_dir.iter().flatten().find(|file| file.of == of)
}

/// Returns the checkpoints that a manifest on some node lists, the best first.
pub fn whole(s: &Sys) -> Vec<Stored> {
    let listed =
        s.ranks.iter().flat_map(|r| r.checkpoint_dir.iter().flatten()).filter(|file| file.listed);
    let mut all: Vec<Stored> = listed.map(|file| file.of).collect();
    all.sort_unstable_by_key(|of| std::cmp::Reverse((of.boundary, of.run, of.id)));
    all.dedup();
    all
}

/// Returns the best checkpoint that can be recovered, and how: as the program does it, by the existing files.
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

/// Whether losses since the last checkpoint that all nodes had listed leave one to resume from.
pub fn bears(s: &Sys) -> bool {
    s.ever && GROUPS.iter().all(|group| group.iter().filter(|&&p| s.ranks[p].bare).count() <= 1)
}

/// Returns the data of a checkpoint from a position's file, or from the parity of its group.
pub fn fetched(s: &Sys, of: Stored, rank: usize) -> Val {
    let whole = |rank: usize| file_of(&s.ranks[rank], of).filter(|file| file.data == Whole(of.id));
    match (file_of(&s.ranks[rank], of), whole(peer(rank))) {
        (Some(file), _) => file.data,
        (None, Some(other)) => other.parity,
        (None, None) => Garbage,
    }
}

impl Protocol {
    /// A helper brings checkpoint and checksum out of memory into its node's DIR, whatever is there by then.
    pub fn write_apart(&self, s: &mut Sys, rank: usize, of: Stored) {
        // Manifests may still be on their way.
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

    /// Writes a node's manifest, once all files on all nodes are complete; older files are removed from there.
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

/// Removes all but this checkpoint and later ones of its run.
fn prune(r: &mut Rank, keep: Stored) {
    let later = |of: Stored| of.run == keep.run && of.id >= keep.id;
    for place in &mut r.checkpoint_dir {
        if place.is_some_and(|file| !later(file.of)) {
            *place = None;
        }
    }
}

/// Forgets files that no manifest lists and no helper is writing.
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

/// Returns a checkpoint with its number after `run`'s offset.
pub fn stored(run: crate::system::Run, id: CheckpointId) -> Stored {
    Stored { id, boundary: run.boundary(id), run: run.number }
}
