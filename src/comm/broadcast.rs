//! Broadcast of a panel in progress: carries out a [`schedule`](super::schedule) without blocking.

use std::collections::VecDeque;
use std::ops::Range;

use super::communicator::{Comm, Pending};
use super::schedule::{Step, parts, schedule};
use crate::base::params::Bcast;

/// A broadcast of a buffer along a communicator. [`Broadcast::poll`] advances the broadcast between pieces of other work, and
/// [`Broadcast::finish`] completes the broadcast.
///
/// A broadcast refers to the buffer by address, because the solver reads the buffer while the buffer is still being forwarded.
/// The creator must keep the buffer alive and must not write to it before [`Broadcast::complete`].
pub struct Broadcast {
    data: *mut f64,
    len: usize,
    parts: usize,
    root: usize,
    tag: i32,
    steps: Vec<Step>,
    /// Index in `steps` of the first step that is not yet begun.
    next: usize,
    /// Receives that are begun and not known to be complete, in the order of `steps`: the index of each step, and its request.
    receives: VecDeque<(usize, Pending)>,
    sends: Pending,
}

impl Broadcast {
    /// Begins a broadcast of `len` doubles at `data` from `root` along `comm`.
    ///
    /// # Safety
    /// The doubles must stay valid until [`Broadcast::complete`] returns true, and no other code may change them. On ranks other
    /// than the root, the doubles must not be read until [`Broadcast::arrived`] returns true.
    pub unsafe fn start(
        comm: &Comm,
        kind: Bcast,
        data: *mut f64,
        len: usize,
        root: usize,
        tag: i32,
    ) -> Self {
        let me = (comm.rank() + comm.size() - root) % comm.size();
        let mut this = Self {
            data,
            len,
            parts: parts(kind, comm.size()),
            root,
            tag,
            steps: schedule(kind, comm.size(), me),
            next: 0,
            receives: VecDeque::new(),
            sends: Pending::default(),
        };
        this.poll(comm);
        this
    }

    /// Advances the broadcast as far as possible without waiting.
    pub fn poll(&mut self, comm: &Comm) {
        // Only the first receive is tested. There may be as many receives as ranks, and messages arrive about in order.
        while self.receives.front_mut().is_some_and(|(_, pending)| pending.test()) {
            self.receives.pop_front();
        }
        while let Some(step) = self.steps.get(self.next) {
            match step.clone() {
                Step::Recv { from, piece } => {
                    let range = self.range(&piece);
                    let mut pending = Pending::default();
                    // SAFETY: the piece is within the buffer that the creator ensures. Pieces of receives in progress never
                    // overlap, because a schedule receives each piece once, or only after the earlier copy was forwarded.
                    unsafe {
                        comm.start_recv(
                            self.data.add(range.start),
                            range.len(),
                            self.real(comm, from),
                            self.tag,
                            &mut pending,
                        )
                    };
                    self.receives.push_back((self.next, pending));
                }
                Step::Send { to, piece } => {
                    let waits = self.receives.iter().any(|(at, _)| match &self.steps[*at] {
                        Step::Recv { piece: got, .. } => {
                            got.start < piece.end && piece.start < got.end
                        }
                        Step::Send { .. } => false,
                    });
                    if waits {
                        return;
                    }
                    let range = self.range(&piece);
                    // SAFETY: the piece is within the buffer, and has arrived.
                    unsafe {
                        comm.start_send(
                            self.data.add(range.start),
                            range.len(),
                            self.real(comm, to),
                            self.tag,
                            &mut self.sends,
                        )
                    };
                }
            }
            self.next += 1;
        }
    }

    /// Returns whether the whole buffer has arrived at this rank, even if this rank has not yet forwarded it.
    pub fn arrived(&self) -> bool {
        self.receives.is_empty()
            && !self.steps[self.next..].iter().any(|s| matches!(s, Step::Recv { .. }))
    }

    /// Returns whether the broadcast is complete. If so, the buffer may be reused.
    pub fn complete(&mut self, comm: &Comm) -> bool {
        self.poll(comm);
        self.next == self.steps.len() && self.receives.is_empty() && self.sends.test()
    }

    /// Waits until the whole buffer has arrived, and forwards it meanwhile.
    pub fn wait_arrived(&mut self, comm: &Comm) {
        loop {
            self.poll(comm);
            if self.arrived() {
                return;
            }
            if let Some((_, pending)) = self.receives.front_mut() {
                pending.wait();
            }
        }
    }

    /// Waits until the broadcast is complete.
    pub fn finish(&mut self, comm: &Comm) {
        self.wait_arrived(comm);
        self.poll(comm);
        debug_assert_eq!(self.next, self.steps.len());
        self.sends.wait();
    }

    fn real(&self, comm: &Comm, virtual_rank: usize) -> usize {
        (virtual_rank + self.root) % comm.size()
    }

    /// Returns the range of the buffer, in doubles, that the parts `piece` occupy.
    fn range(&self, piece: &Range<usize>) -> Range<usize> {
        let at = |part: usize| (self.len as u128 * part as u128 / self.parts as u128) as usize;
        at(piece.start)..at(piece.end)
    }
}
