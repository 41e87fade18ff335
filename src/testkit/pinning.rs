//! Lock for tests that pin threads.

use std::sync::{Mutex, MutexGuard};

/// Lock that a test holds while it pins threads. Otherwise the test could release the pinned threads of another test.
static PINNING: Mutex<()> = Mutex::new(());

pub fn alone() -> MutexGuard<'static, ()> {
    PINNING.lock().unwrap_or_else(|e| e.into_inner())
}
