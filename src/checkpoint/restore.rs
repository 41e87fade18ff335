//! Recovery of a checkpoint in memory, after all ranks have agreed on it. Begins with pinned headers and ends with resumed
//! headers.
//!
//! `start` calls this on every rank with the same decision. Between any two writes of a header there is a barrier or a crash
//! point. `protocol` explains the order.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::plan::{Buffers, Corner, Scope};
use super::protocol::{Method, Recovery, is_settled};
use super::save::Checkpointer;
use super::saved::Since;
use super::terms::{Restored, StartError};
use super::world::{NOTHING, World};
use crate::base::faults::{Point, Sabotage, hit, sabotaged};
use crate::base::threads::{Pool, Shareable};
use crate::parity::stripes::Role;
use crate::parity::{GroupComm, Hands, Share, hands};
use crate::shm::Region;
use crate::shm::header::{CheckpointId, Doing, Mark};

/// Corner of a part that is the whole local matrix.
const WHOLE: Corner = Corner { row: 0, col: 0 };

/// Workspace (part A) during a rebuild. Rows of the committed copy are copied to the workspace as the rebuild reads or writes
/// them.
struct Taken<'a> {
    a: Shareable<u64>,
    borrowed: PhantomData<&'a mut [u64]>,
    buffers: Buffers,
    /// Number of columns of each row that were copied. After all columns of a row were copied, further reports of the row are
    /// ignored.
    columns: Vec<AtomicUsize>,
}

impl<'a> Taken<'a> {
    fn new(a: &'a mut [u64], buffers: Buffers) -> Self {
        assert_eq!(a.len(), buffers.data_words());
        let columns = (0..buffers.rows).map(|_| AtomicUsize::new(0)).collect();
        Self { a: Shareable::new(a.as_mut_ptr()), borrowed: PhantomData, buffers, columns }
    }

    /// Copies `columns` of a data row from the committed copy to the workspace, unless all columns of the row have been copied.
    ///
    /// # Safety
    /// Threads that call this at the same time must pass different columns.
    unsafe fn see(&self, share: &Share, role: Role, columns: Range<usize>) {
        let Role::Data(row) = role else { return };
        let Some(row) = self.buffers.rows.checked_sub(row + 1) else { return };
        let has = &self.columns[row];
        if has.load(Ordering::Relaxed) == self.buffers.cols {
            return;
        }
        let all = self.buffers.row(row);
        let range = all.start + columns.start..all.start + columns.end;
        assert!(range.end <= all.end, "more columns than there are");
        // SAFETY: within the workspace, which is borrowed as long as this value lives; no other thread writes these columns.
        let own =
            unsafe { std::slice::from_raw_parts_mut(self.a.get().add(range.start), columns.len()) };
        own.copy_from_slice(&share.data[range]);
        has.fetch_add(columns.len(), Ordering::Relaxed);
    }

    /// Returns the workspace, and for each row whether it is complete.
    fn end(self) -> (&'a mut [u64], Vec<bool>) {
        let Buffers { cols, .. } = self.buffers;
        let has = self.columns.into_iter().map(|has| has.into_inner() == cols).collect();
        // SAFETY: the slice from which this was made, borrowed as long; no thread writes any more.
        let a = unsafe { std::slice::from_raw_parts_mut(self.a.get(), self.buffers.data_words()) };
        (a, has)
    }
}

impl<W: World, G: GroupComm> Checkpointer<W, G> {
    /// Restores the matrix from the checkpoint of `recovery`, which was taken at `boundary`. `known` is the digest in the header
    /// of this position, if the header is readable but the memory is lost. An error is the same on all ranks.
    pub(super) fn recover(
        &mut self,
        recovery: &Recovery,
        boundary: usize,
        known: Option<u64>,
        a: &mut Region,
        pool: &mut Pool,
    ) -> Result<Restored, StartError> {
        let me = self.position();
        let target = recovery.target;
        self.tick(Doing::Recovering, boundary);
        hit(Point::Pinned, me);
        self.world.barrier();

        // From here on memory changes. The pins in the headers protect it.
        let (buffers, words) = (self.holding.buffers, self.holding.buffers.workspace_words());
        self.settle(recovery, &a.words()[..words], pool);
        self.world.barrier();

        // From here on the contents of the workspace are invalid. While the group reads or writes rows of the committed copy, the
        // rows are in the cache and are copied to the workspace, unless a device has it.
        let workspace = self.on_device.is_none().then(|| &mut a.words_mut()[..words]);
        let taken = workspace.map(|workspace| Taken::new(workspace, buffers));
        let mut wrong = None;
        let rebuilds = self.members().iter().any(|member| recovery.lost.contains(member));
        if rebuilds {
            hit(Point::RebuildBegin, me);
            self.rebuild(recovery, taken.as_ref(), pool);
            if recovery.lost.contains(&me) {
                wrong = self.adopt_rebuilt(target, boundary, known).err();
            }
        }
        self.agree_on_settled(target, wrong)?;
        hit(Point::AgreedAgain, me);
        let half = || hit(Point::RestoreHalf, me);
        let saved = self.holding.saved();
        if let Some(matrix) = &self.on_device {
            matrix.copy_out(&buffers, saved.copy(target.number), half);
        } else if let Some((a, taken)) = taken.map(Taken::end) {
            saved.copy_out(target.number, a, &taken, pool, half);
        }
        self.copies = [None; 2];
        // If the code rebuilds only up to rounding, parity that is encoded again has other bits. The next saves then encode all
        // parity.
        if !rebuilds || self.scheme.code.exact() {
            self.copies[(target.number % 2) as usize] = Some(boundary);
        }
        let state = self.holding.saved().read_state(target.number);
        hit(Point::RestoreEnd, me);
        self.header.claim = self.header.claim.resumed();
        self.publish();
        hit(Point::Resumed, me);
        self.world.barrier();
        self.tick(Doing::Computing, boundary);
        Ok(Restored {
            boundary,
            checkpoint: target.number,
            state,
            rebuilt: recovery.lost.clone(),
            damaged: Vec::new(),
            fetched: None,
        })
    }

    /// Puts the target of `recovery` in force at this position, unless the position is lost. Any other sealed checkpoint becomes
    /// invalid. If this position has only sealed the target, first completes it; with method self, copies the workspace `a` to
    /// the copy.
    fn settle(&mut self, recovery: &Recovery, a: &[u64], pool: &mut Pool) {
        let me = self.position();
        let target = recovery.target;
        if recovery.finish.contains(&me) {
            if self.scheme.method == Method::SelfCheckpoint && !sabotaged(Sabotage::NoFinish) {
                let half = || hit(Point::FinishHalf, me);
                self.holding.saved().copy_in(target.number, a, WHOLE, pool, half);
            }
            self.header.base = self.header.seal;
            hit(Point::FinishEnd, me);
        }
        if !recovery.lost.contains(&me) && !sabotaged(Sabotage::KeepsSeal) {
            self.header.claim = self.header.claim.settled(target);
            self.publish();
        }
        hit(Point::Settled, me);
    }

    /// Rebuilds the lost members of this group. Computes digests if this position is one of the lost members. If `taken` is
    /// given, copies this position's rows to the workspace at the same time.
    fn rebuild(&mut self, recovery: &Recovery, taken: Option<&Taken>, pool: &mut Pool) {
        let me = self.position();
        let members = self.members();
        let is_lost = |member: &usize| recovery.lost.contains(member);
        let lost_members: Vec<usize> =
            (0..members.len()).filter(|&index| is_lost(&members[index])).collect();
        let whole = self.layout.window(&members, 0, Scope::Whole);
        let (coder, group) = (self.coder, &self.group);
        let all = Since { before: None, corner: WHOLE, parity: self.parity_of(whole) };
        let (saved, since) = (self.holding.saved(), is_lost(&me).then_some(all));
        let (shares, digests) = saved.shares(recovery.target.number, None, since);
        let see = |share: &Share, role, columns: Range<usize>| {
            if let Some(digests) = &digests {
                digests.see(share, role, columns.clone());
            }
            if let Some(taken) = taken {
                // SAFETY: the code never reports a column to two threads at the same time.
                unsafe { taken.see(share, role, columns) }
            }
        };
        pool.few(hands::MOST, |panel_threads| {
            let hands = Hands { panel_threads, seen: Some(&see) };
            shares.rebuild(group, coder, whole, &lost_members, hands, me);
        });
    }

    /// Puts this position's rebuilt checkpoint in force. Returns an error if its digest differs from the `known` one.
    fn adopt_rebuilt(
        &mut self,
        target: CheckpointId,
        boundary: usize,
        known: Option<u64>,
    ) -> Result<(), String> {
        let me = self.position();
        let root = self.holding.saved().seal(target.number);
        hit(Point::RebuildEnd, me);
        // Sums of real numbers are rebuilt only up to rounding, so their digests may differ.
        if self.scheme.code.exact() && known.is_some_and(|known| known != root) {
            return Err("its rebuilt checkpoint differs from the digest in its old header".into());
        }
        self.header.base = Mark { boundary: boundary as u64, root };
        self.header.claim = self.header.claim.settled(target);
        self.publish();
        hit(Point::Rebuilt, me);
        Ok(())
    }

    /// Checks that all positions have the checkpoint in force, and are in the same attempt. `wrong` is the error text of this
    /// position's rebuild. The error is the same on all ranks. Collective call.
    fn agree_on_settled(
        &self,
        target: CheckpointId,
        wrong: Option<String>,
    ) -> Result<(), StartError> {
        let claim = self.header.claim;
        let settled = u64::from(is_settled(&claim, target));
        let joined = claim.joined;
        // If the smallest number of an attempt equals the largest, all are equal.
        if self.world.least(&[settled, joined, NOTHING - joined]) == [1, joined, NOTHING - joined] {
            return Ok(());
        }
        let why = match self.world.troubles(wrong) {
            None => "start again to repeat the recovery".to_owned(),
            Some(said) => {
                format!(
                    "{said}; the next start would use the rebuilt checkpoint without this check; to begin from scratch \
                     instead, give --restart never"
                )
            }
        };
        Err(StartError::NotWhole { checkpoint: target.number, why })
    }
}
