//! One thread at a time in the MPI library, where losses are survived.
//!
//! There a second thread calls it now and then, so that others see that this rank lives (`Alive` in [`world`](super::world)).
//! Open MPI lets any thread call it, but its agreement does not bear that (5.0.11, `era_cb_fn`): a word that comes in while
//! another thread is at the agreement is put aside, and the address where it is kept is written over what it says. So ranks
//! agreed on what nobody had said, and took each other for lost, in 2 of some 1,300 losses.
//!
//! Only calls that may let messages make progress take turns. Threads of the library's own that do the same must stay off
//! (`btl_tcp_progress_thread`, which is off unless somebody sets it).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

static SHARED: AtomicBool = AtomicBool::new(false);
static IN_USE: Mutex<()> = Mutex::new(());

/// From now on threads take turns. To be said before there is a second one.
pub(super) fn begin() {
    SHARED.store(true, Ordering::Relaxed);
}

/// Does a call, or a few that belong together, in a turn of this thread's. What is done in it must not ask for another.
#[inline]
pub(super) fn with<R>(call: impl FnOnce() -> R) -> R {
    // A turn guards no data of ours, so a panic within one has left nothing half done.
    let _turn = SHARED
        .load(Ordering::Relaxed)
        .then(|| IN_USE.lock().unwrap_or_else(PoisonError::into_inner));
    call()
}

/// The same, unless another thread is in the library. Then it need not be called: a call that takes long lets messages make
/// progress itself.
pub(super) fn if_free(call: impl FnOnce()) {
    match IN_USE.try_lock() {
        Ok(_turn) => call(),
        Err(TryLockError::Poisoned(turn)) => {
            let _turn = turn.into_inner();
            call();
        }
        Err(TryLockError::WouldBlock) => {}
    }
}
