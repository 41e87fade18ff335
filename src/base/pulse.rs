//! Signs of life from inside steps that take long.
//!
//! A rank shows its progress in named memory: a beat at every boundary and every step. But making memory, generating, saving and
//! checking take minutes each where a rank has hundreds of gigabytes, and whoever watches must not take that for a hang. So loops
//! that may run long beat in between, from whatever thread; a rank that only waits for others does not. Who waits where a loss
//! would be survived says that by another count: what tells it from one that hangs. One load where nobody watches.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Bytes of memory that one call of the kernel works on between two beats; whole huge pages.
pub const BYTES: usize = 512 << 20;

/// Where beats are counted, if anywhere.
struct Pulse(AtomicPtr<AtomicU64>);

/// A process has one position at a time.
static PULSE: Pulse = Pulse(AtomicPtr::new(null_mut()));
static WAITS: Pulse = Pulse(AtomicPtr::new(null_mut()));

impl Pulse {
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

/// From now on this process's beats are counted in the first, its waiting in the second.
pub fn follow(beats: &'static AtomicU64, waits: &'static AtomicU64) {
    PULSE.follow(beats);
    WAITS.follow(waits);
}

/// Something that takes its time has got on.
#[inline]
pub fn beat() {
    PULSE.beat();
}

/// This rank waits for others, and looks after them.
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
        let pulse = Pulse(AtomicPtr::new(null_mut()));
        pulse.beat();
        pulse.follow(&FIRST);
        pulse.beat();
        pulse.follow(&SECOND);
        pulse.beat();
        pulse.beat();
        assert_eq!([&FIRST, &SECOND].map(|c| c.load(Ordering::Relaxed)), [1, 2]);
    }
}
