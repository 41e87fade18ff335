//! I/O requests to a helper.
//!
//! A helper opens its position's memory by name, like an outside reader, so it does not use the rank's mappings. Before a file
//! gets its name, the helper reads the header again. The header must be the same as at the time of the request. Otherwise the
//! rank has changed the source of the file, or the position has started from scratch.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::plan::Buffers;
use crate::base::faults::{Point, hit};
use crate::checkpoint::storage::checkpoint_dir::Claimed;
use crate::checkpoint::storage::names::Key;
use crate::checkpoint::storage::writing::{Flow, Over, Stopped, write_position};
use crate::checkpoint::storage::{About, Check, CheckpointDir, Counting, DirScope, Front};
use crate::parity::digest::digest;
use crate::shm::header::{Claim, Head};
use crate::shm::{MemoryStore, Part};

/// I/O request of the rank of a position.
pub(super) struct IoRequest {
    pub(super) checkpoint_dir: CheckpointDir,
    pub(super) memory_store: MemoryStore,
    pub(super) position: u32,
    pub(super) what: What,
}

pub(super) enum What {
    /// Write the checkpoint from memory to storage.
    Write(Box<Write>),
    /// Write the manifest of a complete checkpoint, and remove older checkpoints.
    List(List),
    /// Invalidate the checkpoint that will be overwritten, and remove all but that one and those to keep.
    MakeRoom {
        over: Option<Key>,
        keep: Vec<Key>,
    },
    Settle(Box<Settle>),
    /// Record that a start resumes from this checkpoint, and return the number of starts that did so before.
    SetOut(Key),
    /// Remove this position's part of a failed checkpoint.
    Withdraw(Key),
}

/// Request to take over DIR for this start and to clean it.
///
/// Removes incomplete checkpoints, except those that are complete elsewhere and the next one, and results that do not count. On a
/// node's own DIR, writes a manifest of the files of the checkpoint from which the run resumes, or of the latest one. At the end,
/// unless two are kept, removes complete but outdated checkpoints.
pub(super) struct Settle {
    /// Run that begins or resumes, and its test.
    pub(super) run: u128,
    pub(super) test: u32,
    /// Checkpoint from which the run resumes, if that is on storage.
    pub(super) from: Option<About>,
    /// All checkpoints known to be complete, by a manifest on any node.
    pub(super) whole: Vec<About>,
    /// Checkpoint that other ranks may have begun already.
    pub(super) next: Option<Key>,
    /// True if DIR is the node's own.
    pub(super) own: bool,
    pub(super) two: bool,
    pub(super) results: Option<Counting>,
}

impl Settle {
    /// Carries the request out, by the helper of position `who`.
    fn run_at(
        &self,
        checkpoint_dir: &CheckpointDir,
        who: usize,
        flow: &Flow,
    ) -> Result<(), Stopped> {
        // Files are removed first, because the claim needs room.
        let keep: Vec<Key> = self.whole.iter().map(About::key).chain(self.next).collect();
        checkpoint_dir.tidy(&keep, who, flow)?;
        let claimed = checkpoint_dir.claim().map_err(failed)?;
        // Results that this launch itself has written count.
        if let Some(counting) = &self.results
            && (counting.first || claimed == Claimed::Now)
        {
            checkpoint_dir.keep_results(&counting.results, flow)?;
        }
        if self.own {
            let of_test = self.whole.iter().filter(|about| about.test == self.test);
            let furthest = of_test.max_by_key(|about| about.worth(self.run));
            if let Some(about) = self.from.as_ref().or(furthest) {
                checkpoint_dir.list_too(about, flow)?;
            }
        }
        match &self.from {
            _ if self.two => Ok(()),
            Some(from) => checkpoint_dir.outdate_but(from.key(), self.run, who, flow),
            None => checkpoint_dir.outdate(&self.whole, self.run, who, flow),
        }
    }
}

/// Data for writing one position's file.
pub(super) struct Write {
    pub(super) about: About,
    /// State in the position's header, which must not change during the request.
    pub(super) claim: Claim,
    pub(super) buffers: Buffers,
    pub(super) data: Part,
    pub(super) vouch: Range<usize>,
    /// Parity, if it is part of the file.
    pub(super) check: Option<(Part, Check)>,
    /// File to overwrite.
    pub(super) over: Option<Over>,
}

/// Data for writing a manifest.
pub(super) struct List {
    pub(super) about: About,
    pub(super) dir_scope: DirScope,
    /// Positions whose files the manifest lists.
    pub(super) positions: Vec<u32>,
    pub(super) stays: Option<Key>,
    /// Bytes of all files everywhere, if this manifest does not list all of them.
    pub(super) all: Option<u64>,
}

fn failed(why: impl std::fmt::Display) -> Stopped {
    Stopped::Failed(why.to_string())
}

impl IoRequest {
    /// Carries the request out. Returns the number of bytes written.
    pub(super) fn run(&self, flow: &Flow) -> Result<u64, Stopped> {
        let Self { checkpoint_dir, position, .. } = self;
        match &self.what {
            What::Write(file) => {
                let written = self.write(file, flow);
                // If the request is cancelled only now, no other code withdraws the file.
                let late = written.is_ok() && flow.is_given_up();
                if late || written.is_err() {
                    checkpoint_dir.withdraw(file.about.key(), *position);
                }
                if late { Err(Stopped::GivenUp) } else { written }
            }
            What::List(List { about, dir_scope, positions, stays, all }) => {
                let listed = checkpoint_dir.conclude(about, *dir_scope, positions, *stays, flow)?;
                Ok(all.unwrap_or(listed))
            }
            What::MakeRoom { over, keep } => {
                if let Some(over) = over {
                    checkpoint_dir.give_up(*over, *position as usize)?;
                }
                checkpoint_dir.prune_but(keep, *position as usize, flow)?;
                Ok(0)
            }
            What::Settle(settle) => {
                settle.run_at(checkpoint_dir, *position as usize, flow).map(|()| 0)
            }
            What::SetOut(key) => Ok(checkpoint_dir.set_out_from(*key).into()),
            What::Withdraw(key) => {
                hit(Point::PruneHalf, *position as usize);
                checkpoint_dir.withdraw(*key, *position);
                Ok(0)
            }
        }
    }

    fn write(&self, file: &Write, flow: &Flow) -> Result<u64, Stopped> {
        let Write { about, buffers, .. } = file;
        let key = about.key();
        let peek = |part| self.memory_store.peek(self.position, part).map_err(failed);
        let head = Head::new(peek(Part::Head)?).map_err(failed)?;
        self.checkpoint_dir.is_held().map_err(failed)?;
        self.checkpoint_dir.make_folder(key).map_err(failed)?;
        let (data, small) = (peek(file.data)?, peek(Part::S)?);
        if data.len() < buffers.data_words() * 8 || small.words().len() < file.vouch.end {
            return Err(failed("the position's memory is not as long as it was made"));
        }
        let parity = match &file.check {
            // If other ranks keep the parity, there is no such part.
            Some((part, check)) if check.words > 0 => Some(peek(*part)?),
            _ => None,
        };
        let check = file.check.as_ref().map(|(_, check)| check.clone());
        let parity = parity.as_ref().map_or(&[][..], |region| region.bytes());
        if parity.len() < check.as_ref().map_or(0, |check| check.words as usize * 8) {
            return Err(failed("the position's checksum is not as long as it was made"));
        }
        let vouch = &small.words()[file.vouch.clone()];
        let front = Front {
            about: about.clone(),
            position: self.position,
            rows: buffers.rows as u64,
            cols: buffers.cols as u64,
            ld: buffers.ld as u64,
            vouch_words: vouch.len() as u64,
            root: digest(vouch),
            check,
        };
        let same = || {
            // Orders all earlier reads before the reading of the header.
            fence(Ordering::SeqCst);
            let now = head.read().map_err(failed)?;
            let of = (now.id.run, now.id.test, now.claim);
            if of == (about.run, about.test, file.claim) {
                Ok(())
            } else {
                Err(failed("the position's memory has changed meanwhile"))
            }
        };
        let path = self.checkpoint_dir.position(key, self.position);
        let parts = [data.bytes(), parity];
        write_position(&path, &front, vouch, parts, file.over.as_ref(), flow, same)
    }
}
