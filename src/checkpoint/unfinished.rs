//! Checkpoint whose parity a helper computes, and this helper. `aside` starts the helper and commits the checkpoint.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::helper;
use super::saved::Saved;
use crate::checkpoint::storage::writing::Flow;
use crate::comm::die;
use crate::shm::header::CheckpointId;

/// Result of a helper that encodes: the memory that was lent to the helper, and the digest of the checkpoint (`root`).
pub(super) struct Encoded {
    pub(super) saved: Saved,
    pub(super) root: u64,
}

/// Checkpoint whose copy is complete, and whose parity is complete or being computed. Either all ranks have one, or none has.
pub(super) struct Unfinished {
    pub(super) checkpoint: CheckpointId,
    pub(super) boundary: usize,
    /// True if the checkpoint goes to storage once it is committed.
    pub(super) stores: bool,
    pub(super) helper: Helper,
}

/// Helper thread that encodes a checkpoint. None after its result was fetched.
pub(super) struct Helper(Option<(Arc<Flow>, JoinHandle<Encoded>)>);

impl Helper {
    /// Starts a helper. If the system provides no thread, ends the job: the helpers of other ranks would wait for ever for the
    /// rows of this helper.
    pub(super) fn start(work: impl FnOnce(&Flow) -> Encoded + Send + 'static) -> Self {
        let (flow, thread) = helper::start("encoding", work);
        let thread = thread.unwrap_or_else(|why| die(6, &why.to_string()));
        Self(Some((flow, thread)))
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(|(_, thread)| thread.is_finished())
    }

    /// Waits for the result. During the wait, progress of the helper counts as progress of the rank. Returns None if the result
    /// was fetched before.
    pub(super) fn end(&mut self) -> Option<Encoded> {
        let (flow, thread) = self.0.take()?;
        flow.is_awaited();
        match thread.join() {
            Ok(encoded) => Some(encoded),
            // The helper ended because a rank with which it communicates is lost. The rank ends in the same way.
            Err(why) => std::panic::resume_unwind(why),
        }
    }
}

/// Waits for the helper if the rank stops its work: the helper still uses the rank's memory and communicator.
impl Drop for Helper {
    fn drop(&mut self) {
        if let Some((_, thread)) = self.0.take() {
            let _ = thread.join();
        }
    }
}
