//! A futex counter: a number on which threads sleep until it changes.
//!
//! Threads that sleep on a condition variable wake one after the other, each with its mutex. Here, all woken threads run at once.
//! The thread that counts up need not wake all of them itself: each woken thread may wake some more.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The number, and how many threads sleep until it changes or are about to.
#[derive(Debug, Default)]
pub struct Bell {
    number: AtomicU32,
    asleep: AtomicUsize,
}

impl Bell {
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::SeqCst)
    }

    /// Adds `by` to the number. Sleeping threads sleep until they are woken. No thread falls asleep any more that expects the old
    /// number.
    pub fn advance(&self, by: u32) {
        self.number.fetch_add(by, Ordering::SeqCst);
    }

    /// Wakes at most `most` threads.
    pub fn wake(&self, most: u32) {
        // All threads see these operations in one order. A thread that is not counted here yet finds the new number when it asks
        // the kernel to sleep.
        if self.asleep.load(Ordering::SeqCst) > 0 {
            self.call(libc::FUTEX_WAKE, most.min(i32::MAX as u32));
        }
    }

    /// Sleeps until another thread wakes this one, if the number still is `seen`. A signal may end the sleep sooner.
    pub fn sleep(&self, seen: u32) {
        self.asleep.fetch_add(1, Ordering::SeqCst);
        self.call(libc::FUTEX_WAIT, seen);
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }

    fn call(&self, what: i32, value: u32) {
        let none: *const libc::timespec = ptr::null();
        // SAFETY: the kernel reads the number, which lives as long as the call. Without a timeout it waits until it is woken. A
        // changed number or a signal is not an error here.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.number.as_ptr(),
                what | libc::FUTEX_PRIVATE_FLAG,
                value,
                none,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    /// Two threads take turns, each asleep when it is not its turn: a missed call would end the exchange.
    #[test]
    fn nobody_sleeps_through_its_number() {
        let bell = Arc::new(Bell::default());
        let turns = 20_000;
        let other = {
            let bell = Arc::clone(&bell);
            thread::spawn(move || turn(&bell, 1, turns))
        };
        turn(&bell, 0, turns);
        other.join().unwrap();
        assert_eq!(bell.number(), 2 * turns);
    }

    fn turn(bell: &Bell, own: u32, turns: u32) {
        for _ in 0..turns {
            loop {
                let number = bell.number();
                if number % 2 == own {
                    break;
                }
                bell.sleep(number);
            }
            bell.advance(1);
            bell.wake(1);
        }
    }

    #[test]
    fn all_wake_where_each_wakes_two() {
        let bell = Arc::new(Bell::default());
        let sleepers: Vec<_> = (0..20)
            .map(|_| {
                let bell = Arc::clone(&bell);
                thread::spawn(move || {
                    while bell.number() == 0 {
                        bell.sleep(0);
                    }
                    bell.wake(2);
                })
            })
            .collect();
        let until = Instant::now() + Duration::from_secs(10);
        while bell.asleep.load(Ordering::SeqCst) < 20 {
            assert!(Instant::now() < until, "they do not fall asleep");
            thread::sleep(Duration::from_millis(1));
        }
        bell.advance(1);
        bell.wake(2);
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        assert_eq!(bell.asleep.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn an_old_number_is_nothing_to_sleep_for() {
        let bell = Bell::default();
        bell.advance(3);
        bell.sleep(0);
        bell.sleep(2);
        assert_eq!(bell.number(), 3);
    }
}
