//! I/O request to write the file of a position.
//!
//! A helper opens its position's memory by name, as another process would, so it does not use the rank's mappings. Before a file
//! gets its name, the helper reads the header again. If the header differs from the header at the time of the request, the
//! request fails: the rank has changed the data, or the position has started from scratch.

use std::sync::atomic::{Ordering, fence};

use super::plan::Buffers;
use crate::checkpoint::storage::writing::{Flow, Over, Stopped, write_position};
use crate::checkpoint::storage::{About, Check, CheckpointDir, Front};
use crate::parity::digest::digest;
use crate::shm::header::{Claim, Head};
use crate::shm::{MemoryStore, Part};

/// Request to write the checkpoint in a position's memory to its file.
pub(super) struct Write {
    pub(super) memory_store: MemoryStore,
    pub(super) about: About,
    /// Claim in the position's header: the committed and the sealed checkpoint. If the claim changes during the request, the
    /// request fails.
    pub(super) claim: Claim,
    pub(super) buffers: Buffers,
    /// Description of the parity. None if the file contains no parity.
    pub(super) check: Option<Check>,
    /// File of an obsolete checkpoint, to be overwritten. None for a new file.
    pub(super) over: Option<Over>,
}

fn failed(why: impl std::fmt::Display) -> Stopped {
    Stopped::Failed(why.to_string())
}

impl Write {
    /// Carries out the request in the helper of `position`. Returns the number of bytes written. If the request fails or is
    /// cancelled, removes the file.
    pub(super) fn run_at(
        self,
        checkpoint_dir: &CheckpointDir,
        position: u32,
        flow: &Flow,
    ) -> Result<u64, Stopped> {
        let written = self.write(checkpoint_dir, position, flow);
        // If the request was cancelled after the write, no other code removes the file.
        let written = written.and_then(|bytes| flow.step().map(|()| bytes));
        if written.is_err() {
            checkpoint_dir.withdraw(self.about.key(), position);
        }
        written
    }

    fn write(
        &self,
        checkpoint_dir: &CheckpointDir,
        position: u32,
        flow: &Flow,
    ) -> Result<u64, Stopped> {
        let Self { about, buffers, check, .. } = self;
        let key = about.key();
        let peek = |part| self.memory_store.peek(position, part).map_err(failed);
        let head = Head::new(peek(Part::Head)?).map_err(failed)?;
        checkpoint_dir.is_held()?;
        checkpoint_dir.make_folder(key)?;
        let committed = buffers.committed_parts(about.checkpoint);
        let (data, small) = (peek(committed.data)?, peek(Part::S)?);
        let start = committed.place.start;
        let vouch = start..start + buffers.vouch_words(check.is_some());
        if data.len() < buffers.data_words() * 8 || small.words().len() < vouch.end {
            return Err(failed("the position's memory is shorter than when it was created"));
        }
        let parity_bytes = check.as_ref().map_or(0, |check| check.words as usize * 8);
        // If dedicated ranks have the parity, this position has no such part.
        let parity = (parity_bytes > 0).then(|| peek(committed.check)).transpose()?;
        let parity = parity.as_ref().map_or(&[][..], |region| region.bytes());
        if parity.len() < parity_bytes {
            return Err(failed("the position's parity is shorter than when it was created"));
        }
        let vouch = &small.words()[vouch];
        let front = Front {
            about: about.clone(),
            position,
            rows: buffers.rows as u64,
            cols: buffers.cols as u64,
            ld: buffers.ld as u64,
            vouch_words: vouch.len() as u64,
            root: digest(vouch),
            check: check.clone(),
        };
        let same = || {
            // Orders all earlier reads before the read of the header.
            fence(Ordering::SeqCst);
            let now = head.read().map_err(failed)?;
            let of = (now.id.run, now.id.test, now.claim);
            if of == (about.run, about.test, self.claim) {
                Ok(())
            } else {
                Err(failed("the position's memory changed while the file was written"))
            }
        };
        let path = checkpoint_dir.position(key, position);
        let parts = [data.bytes(), parity];
        write_position(&path, &front, vouch, parts, self.over.as_ref(), flow, same)
    }
}
