//! Heartbeats from inside long steps.
//!
//! A rank shows its progress in persistent shared memory, by a heartbeat at every boundary and every step. But on a rank with
//! hundreds of gigabytes, allocation, generation, a save and the check take minutes each, and the supervisor must not take a long
//! step for a hang. So long loops report heartbeats, from any thread. A rank that only waits for other ranks reports none.
//!
//! If the run can survive a loss, a waiting rank advances a second counter, which distinguishes it from a rank that hangs.
//! Without a supervisor, a heartbeat costs one load.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Bytes of memory that one system call handles between two heartbeats; a multiple of the size of a huge page.
pub const BYTES: usize = 512 << 20;

/// Address of a counter of heartbeats or waits; null until [`follow`] sets it.
struct Counter(AtomicPtr<AtomicU64>);

/// Counter of this process's heartbeats.
static PULSE: Counter = Counter(AtomicPtr::new(null_mut()));
/// Counter of this process's waits.
static WAITS: Counter = Counter(AtomicPtr::new(null_mut()));

impl Counter {
    fn follow(&self, counter: &'static AtomicU64) {
        self.0.store(std::ptr::from_ref(counter).cast_mut(), Ordering::Release);
    }

    #[inline]
    fn beat(&self) {
        // SAFETY: null, or made from a `&'static AtomicU64`.
        if let Some(counter) = unsafe { self.0.load(Ordering::Acquire).as_ref() } {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Sets the counters that [`beat`] and [`wait`] of this process advance.
pub fn follow(beats: &'static AtomicU64, waits: &'static AtomicU64) {
    PULSE.follow(beats);
    WAITS.follow(waits);
}

/// Reports a heartbeat: a long step has advanced.
#[inline]
pub fn beat() {
    PULSE.beat();
}

/// Reports that this rank waits for other ranks and monitors them.
#[inline]
pub fn wait() {
    WAITS.beat();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_are_counted_where_they_were_asked_for_last() {
        static FIRST: AtomicU64 = AtomicU64::new(0);
        static SECOND: AtomicU64 = AtomicU64::new(0);
        let heartbeat = Counter(AtomicPtr::new(null_mut()));
        heartbeat.beat();
        heartbeat.follow(&FIRST);
        heartbeat.beat();
        heartbeat.follow(&SECOND);
        heartbeat.beat();
        heartbeat.beat();
        assert_eq!([&FIRST, &SECOND].map(|c| c.load(Ordering::Relaxed)), [1, 2]);
    }
}
