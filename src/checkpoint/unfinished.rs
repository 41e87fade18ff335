//! Checkpoint whose parity a helper computes, and that helper. `aside` starts it and commits its result.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::helper;
use super::saved::Saved;
use crate::checkpoint::storage::writing::Flow;
use crate::comm::die;
use crate::shm::header::CheckpointId;

/// Result of a helper: the memory that was lent to it, and the digest over it.
pub(super) struct Encoded {
    pub(super) saved: Saved,
    pub(super) root: u64,
}

/// Checkpoint whose copy is complete, and whose parity is being computed or complete: on all ranks or on none.
pub(super) struct Unfinished {
    pub(super) checkpoint: CheckpointId,
    pub(super) boundary: usize,
    /// True if the checkpoint goes to storage once it is committed.
    pub(super) stores: bool,
    pub(super) helper: Helper,
}

/// Running helper; None once its result was fetched.
pub(super) struct Helper(Option<(Arc<Flow>, JoinHandle<Encoded>)>);

impl Helper {
    /// Starts a helper. Ends the job if the system gives no more threads: the other ranks' helpers would wait for this one's rows
    /// for ever.
    pub(super) fn start(work: impl FnOnce(&Flow) -> Encoded + Send + 'static) -> Self {
        let (flow, thread) = helper::start("encoding", work);
        let thread = thread.unwrap_or_else(|why| die(6, &why.to_string()));
        Self(Some((flow, thread)))
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(|(_, thread)| thread.is_finished())
    }

    /// Waits for the result; meanwhile the helper's progress counts as the rank's. None if the result was fetched before.
    pub(super) fn end(&mut self) -> Option<Encoded> {
        let (flow, thread) = self.0.take()?;
        flow.is_awaited();
        match thread.join() {
            Ok(encoded) => Some(encoded),
            // The helper ended as its rank would have, because a peer is gone.
            Err(why) => std::panic::resume_unwind(why),
        }
    }
}

/// A rank that leaves waits for its helper: the helper needs the memory that it writes, and its communicator.
impl Drop for Helper {
    fn drop(&mut self) {
        if let Some((_, thread)) = self.0.take() {
            let _ = thread.join();
        }
    }
}
