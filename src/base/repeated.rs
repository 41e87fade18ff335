//! Work that a separate thread repeats until the caller ends the thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::new_thread::{self, NoThread};

/// Handle of the thread. If it is dropped, the thread continues to the end of the process.
pub struct Repeated {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Repeated {
    /// Starts a thread that calls `work` repeatedly. `work` receives a flag that is set when the thread must end. `work` returns
    /// the time until its next call.
    pub fn start(
        name: &str,
        mut work: impl FnMut(&AtomicBool) -> Duration + Send + 'static,
    ) -> Result<Self, NoThread> {
        let over = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&over);
        let thread = new_thread::start(name, move || {
            while !its.load(Ordering::Acquire) {
                thread::park_timeout(work(&its));
            }
        })?;
        Ok(Self { over, thread })
    }

    /// Waits for a call of `work` in progress, then ends the thread.
    pub fn end(self) {
        self.over.store(true, Ordering::Release);
        self.thread.thread().unpark();
        let _ = self.thread.join();
    }
}
