//! Limits the MPI library to one thread at a time if losses are survived.
//!
//! If losses are survived, a second thread calls MPI regularly, so that other ranks see the heartbeats of this rank (`keep_alive`
//! in [`world`](super::world)). Open MPI lets any thread call it, but its agreement does not support this (5.0.11, `era_cb_fn`).
//! If a message arrives while another thread is in the agreement, the message is stored for later. The address of the stored
//! message then overwrites the content of the message. So ranks agreed on values that no rank had given, and took each other for
//! lost, in 2 of some 1,300 losses.
//!
//! Only calls in which messages may make progress take turns. Threads of the library in which messages make progress must stay
//! off (`btl_tcp_progress_thread`, which is off unless it is set).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

static SHARED: AtomicBool = AtomicBool::new(false);
static IN_USE: Mutex<()> = Mutex::new(());

/// Makes the threads of this process call the MPI library one at a time from now on. Must be called before a second thread
/// exists.
pub(super) fn begin() {
    SHARED.store(true, Ordering::Relaxed);
}

/// Runs `call`, which calls the MPI library, while no other thread is in the library. `call` must not use [`with`] or
/// [`if_free`].
#[inline]
pub(super) fn with<R>(call: impl FnOnce() -> R) -> R {
    // A turn protects no data of ours, so a panic within one leaves nothing inconsistent.
    let _turn = SHARED
        .load(Ordering::Relaxed)
        .then(|| IN_USE.lock().unwrap_or_else(PoisonError::into_inner));
    call()
}

/// Runs `call` only if no other thread is in the MPI library. Otherwise `call` is not needed, because messages make progress in
/// the other thread's call.
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
