//! Method disk: memory contains only the matrix, and a save writes the matrix to storage while all ranks wait.
//!
//! Method disk is level two without level one: the same files, manifests, digests and parity. The files are written from A at a
//! boundary without pending work. Memory never counts as a checkpoint, because the matrix changes after the save. After a failure
//! of any rank, all ranks resume from the last complete checkpoint on storage (`fetching`). The solver uses `save` and `start` as
//! with any method.
//!
//! DIR has room for two checkpoints. The run would resume from the last checkpoint. The next save overwrites the checkpoint
//! before the last. A save writes only the parts that have changed since the overwritten checkpoint. It first invalidates the
//! overwritten checkpoint. The last checkpoint stays valid, even if the save is interrupted.

use std::ops::Range;

use super::level2::{Alone, Place};
use super::save::{Checkpointer, SaveReport};
use super::saved::Since;
use super::world::World;
use crate::base::clock::Instant;
use crate::base::faults::{Point, hit};
use crate::base::threads::Pool;
use crate::checkpoint::storage::About;
use crate::checkpoint::storage::writing::Over;
use crate::parity::GroupComm;
use crate::shm::header::{CheckpointId, Doing, Mark};

impl<W: World, G: GroupComm> Checkpointer<W, G> {
    /// Writes the frozen matrix to storage. If the write fails, prints a warning, and the run continues. After a failure, the run
    /// then resumes from the previous checkpoint.
    pub(super) fn save_on_disk(
        &mut self,
        begin: Instant,
        boundary: usize,
        a: &mut [u64],
        state: &[u8],
        pool: &mut Pool,
    ) -> SaveReport {
        let position = self.position();
        let made = self.header.claim.joined;
        let alone = self.alone();
        alone.tried = alone.tried.max(alone.last.map_or(0, |last| last.key.checkpoint)) + 1;
        let next = CheckpointId { number: alone.tried, made };
        let mut report = SaveReport { checkpoint: next.number, boundary, ..SaveReport::default() };

        self.holding.saved().write_state(next.number, state);
        hit(Point::SaveState, position);
        let known = self.copies[0].take();
        let (corner, window) = self.reach(known);
        // Memory has room for one set of digests. It contains the digests of the previous checkpoint.
        let (before, parity) = (known.map(|_| next.number), self.parity_of(window));
        let since = Since { before, corner, parity };
        let root = self.encode(next.number, since, a, window, pool, &mut report);
        self.copies[0] = Some(boundary);

        let writing = Instant::now();
        // Whatever the result of this save, the checkpoint that it overwrites is no longer valid.
        let (last, spare) = (self.alone().last, self.alone().spare.take());
        let spare = spare.filter(|spare| spare.boundary.is_some());
        let level2 = self.level2.as_mut().expect("method disk has storage");
        level2.make_room(last.map(|last| last.key), spare.map(|spare| spare.key));
        // No rank writes before the ranks that write manifests have made room.
        self.world.barrier();
        hit(Point::BarrierPassed, position);
        let level2 = self.level2.as_ref().expect("as above");
        let about = level2.about(&self.header.id, next, boundary as u64);
        let key = about.key();
        let overwritten = spare.and_then(|spare| spare.boundary);
        report.bytes = self.layout.bytes(position, overwritten.unwrap_or(0), self.scheme.scope);
        let over = spare.map(|spare| self.over(spare));
        self.begin(about, over);
        let level2 = self.level2.as_mut().expect("as above");
        let arrived = level2.await_flight(&self.world);
        self.alone().arrived = arrived;
        if arrived {
            let alone = self.alone();
            alone.spare = alone.last;
            alone.last = Some(Place { key, boundary: Some(boundary) });
            self.publish_stored(next, Mark { boundary: boundary as u64, root });
            hit(Point::Committed, position);
        }
        report.copy_s = writing.elapsed().as_secs_f64();
        self.account(begin, overwritten, &mut report);
        report
    }

    /// Returns this position's file of checkpoint `spare`, and those byte ranges in it that the next save must write.
    fn over(&self, spare: Place) -> Over {
        let position = self.position();
        let (corner, window) = self.reach(spare.boundary);
        let buffers = self.holding.buffers;
        let bytes = |words: Range<usize>| 8 * words.start as u64..8 * words.end as u64;
        let row = |row: usize| {
            let Range { start, end } = buffers.row(row);
            bytes(start + corner.col..end)
        };
        let parity = self.coder.stripes.parity_rows(window.rows).min(buffers.parity_rows);
        let state = buffers.parity_words()..buffers.checksum_words();
        let level2 = self.level2.as_ref().expect("method disk has storage");
        Over {
            from: level2.storage.checkpoint_dir.position(spare.key, position as u32),
            data: (corner.row..buffers.rows).map(row).collect(),
            check: vec![bytes(0..parity * buffers.pitch), bytes(state)],
        }
    }

    /// Boundary of the checkpoint that the next save overwrites. The save need not write the rows and columns before that
    /// boundary. Zero if the save overwrites no checkpoint.
    pub(super) fn stored_before(&self) -> usize {
        let alone = self.level2.as_ref().and_then(|level2| level2.alone);
        alone.and_then(|alone| alone.spare).and_then(|spare| spare.boundary).unwrap_or(0)
    }

    fn alone(&mut self) -> &mut Alone {
        let level2 = self.level2.as_mut().and_then(|level2| level2.alone.as_mut());
        level2.expect("method disk has storage")
    }

    /// Publishes in the header that this checkpoint is on storage.
    fn publish_stored(&mut self, checkpoint: CheckpointId, mark: Mark) {
        self.header.base = mark;
        self.header.claim = self.header.claim.settled(checkpoint);
        self.publish();
    }

    /// Records that the matrix was read from checkpoint `about`. Until the next save, a restart resumes from `about`.
    pub(super) fn adopt(&mut self, about: &About) {
        let level2 = self.level2.as_ref().expect("method disk has storage");
        // If nodes have their own DIRs, a node may now have files of other positions, and the groups may differ.
        let boundary = level2.is_shared().then_some(about.boundary as usize);
        let last = Some(Place { key: about.key(), boundary });
        *self.alone() = Alone { last, spare: None, tried: about.checkpoint, arrived: true };
        let checkpoint = CheckpointId { number: about.checkpoint, made: self.header.claim.joined };
        // Memory is never checked against this mark. It only shows agents and `skt-hpl status` the progress of the run.
        self.publish_stored(checkpoint, Mark { boundary: about.boundary, root: 0 });
        hit(Point::Resumed, self.position());
        self.world.barrier();
        self.tick(Doing::Computing, about.boundary as usize);
    }
}
