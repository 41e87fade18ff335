//! Lock for tests that pin threads.

use std::sync::{Mutex, MutexGuard};

/// Lock for tests that pin threads: a test that releases bound threads must not affect another test's.
static PINNING: Mutex<()> = Mutex::new(());

pub fn alone() -> MutexGuard<'static, ()> {
    PINNING.lock().unwrap_or_else(|e| e.into_inner())
}
