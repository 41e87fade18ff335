//! The way back to an epoch in memory, once all have agreed on it: from the pins to headers that say it is resumed.
//!
//! `start` calls it on every rank with the same decision. Between any two headers that are written here stands a barrier or
//! a crash point; `protocol` says why the order is this one.

use super::plan::{Corner, Scope};
use super::protocol::{Method, Recovery, Transitions, is_settled};
use super::save::Checkpointer;
use super::terms::{Restored, StartError};
use super::world::{NOTHING, World};
use crate::faults::{Point, hit};
use crate::memory::Region;
use crate::memory::header::{Doing, Mark};
use crate::parity::stripes::Role;
use crate::parity::{GroupComm, Share};
use crate::pulse;

impl<W: World, G: GroupComm> Checkpointer<W, G> {
    /// Brings the matrix back to the epoch of `recovery`, which was taken at `mark`. `known`: what this position, if it is lost,
    /// says it held. An error is everybody's.
    pub(super) fn recover(
        &mut self,
        recovery: &Recovery,
        mark: Mark,
        known: Option<u64>,
        a: &mut Region,
    ) -> Result<Restored, StartError> {
        let mut wrong = String::new();
        let me = self.position();
        let target = recovery.target;
        let lost = recovery.lost.contains(&me);
        let members = self.members();
        self.tick(Doing::Recovering, mark.boundary as usize);
        hit(Point::Pinned, me);
        self.world.barrier();

        // From here on memory changes on the strength of the pins.
        let words = self.holding.buffers.data_words();
        if recovery.finish.contains(&me) {
            if self.scheme.method == Method::SelfCheckpoint {
                let whole = Corner { row: 0, col: 0 };
                self.holding.saved().copy_in(target.epoch, &a.words()[..words], whole, || {
                    hit(Point::FinishHalf, me)
                });
            }
            self.header.base = self.header.seal;
            hit(Point::FinishEnd, me);
        }
        if !lost {
            self.header.claim = self.header.claim.settled(target);
            self.holding.head.write(&self.header);
        }
        hit(Point::Settled, me);
        self.world.barrier();

        // The workspace is void from here on, whatever it held: rows that the group reads or writes of the
        // committed copy go into it while they are in the cache.
        let mut taken = vec![false; self.holding.buffers.rows];
        let lost_members: Vec<usize> = members
            .iter()
            .enumerate()
            .filter(|(_, m)| recovery.lost.contains(m))
            .map(|(i, _)| i)
            .collect();
        if !lost_members.is_empty() {
            hit(Point::RebuildBegin, me);
            let whole = self.layout.window(&members, 0, Scope::Whole);
            let state_window = self.holding.saved().state_window();
            let (coder, group) = (self.coder, &self.group);
            let buffers = self.holding.buffers;
            let all = Corner { row: 0, col: 0 };
            let mut digests = lost.then(|| {
                self.holding.saved().digests(None, all, buffers.parity_rows, buffers.pitch)
            });
            self.holding.saved().with_shares(target.epoch, None, |share, is_state| {
                let coder = coder.suited(is_state);
                let window = if is_state { state_window } else { whole };
                let see = |share: &Share, role| {
                    if is_state {
                        return;
                    }
                    if let Some(digests) = &mut digests {
                        digests.see(share, role);
                    }
                    if let Role::Data(row) = role
                        && let Some(row) = buffers.rows.checked_sub(row + 1)
                        && !std::mem::replace(&mut taken[row], true)
                    {
                        let range = buffers.row(row);
                        a.words_mut()[range.clone()].copy_from_slice(&share.data[range]);
                    }
                };
                let possible = coder.rebuild(group, share, window, &lost_members, see, || {
                    pulse::beat();
                    hit(Point::RebuildBatch, me)
                });
                assert!(possible, "decide() counted the losses of every group");
            });
            if let Some(digests) = digests {
                let root = self.holding.saved().seal_digests(target.epoch, digests);
                hit(Point::RebuildEnd, me);
                // Sums of real numbers come back only up to rounding.
                if self.scheme.code.exact() && known.is_some_and(|known| known != root) {
                    wrong = format!("position {me} as rebuilt is not what its header says it held");
                } else {
                    self.header.base = Mark { boundary: mark.boundary, root };
                    self.header.claim = self.header.claim.rebuilt(target);
                    self.holding.head.write(&self.header);
                    hit(Point::Rebuilt, me);
                }
            }
        }

        let claim = self.header.claim;
        let settled = u64::from(is_settled(&claim, target));
        let joined = u64::from(claim.joined);
        // One incarnation at all: the smallest is the largest.
        if self.world.least(&[settled, joined, NOTHING - joined]) != [1, joined, NOTHING - joined] {
            let all = self.world.allgather(wrong.as_bytes());
            let said: Vec<_> =
                all.iter().filter(|w| !w.is_empty()).map(|w| String::from_utf8_lossy(w)).collect();
            let why = match said.is_empty() {
                true => "start again to repeat it".to_owned(),
                false => {
                    format!("{}; a further start would take it as it was rebuilt", said.join("; "))
                }
            };
            return Err(StartError::NotWhole { epoch: target.epoch, why });
        }
        hit(Point::AgreedAgain, me);
        let rest = &mut a.words_mut()[..words];
        self.holding.saved().copy_out(target.epoch, rest, &taken, || hit(Point::RestoreHalf, me));
        self.copies = [None; 2];
        self.copies[(target.epoch % 2) as usize] = Some(mark.boundary as usize);
        let state = self.holding.saved().read_state(target.epoch);
        hit(Point::RestoreEnd, me);
        self.header.claim = self.header.claim.resumed();
        self.holding.head.write(&self.header);
        hit(Point::Resumed, me);
        self.world.barrier();
        self.tick(Doing::Computing, mark.boundary as usize);
        Ok(Restored {
            boundary: mark.boundary as usize,
            epoch: target.epoch,
            state,
            rebuilt: recovery.lost.clone(),
            damaged: Vec::new(),
            crowded: Vec::new(),
            fetched: false,
        })
    }
}
