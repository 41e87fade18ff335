//! A futex counter: a number on which threads sleep until it changes.
//!
//! Threads that sleep on a condition variable wake one after the other, since each must take the mutex. Threads that sleep on a
//! futex counter run at once when they are woken. The thread that advances the counter need not wake all of them: each woken
//! thread may wake further threads.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The number, and the count of threads that sleep until it changes or are about to sleep.
#[derive(Debug, Default)]
pub struct FutexCounter {
    number: AtomicU32,
    asleep: AtomicUsize,
}

impl FutexCounter {
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::SeqCst)
    }

    /// Adds `by` to the number. Sleeping threads stay asleep until they are woken. From now on no thread that expects the old
    /// number falls asleep.
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

    /// If the number still is `seen`, sleeps until another thread calls [`FutexCounter::wake`]. A signal may end the sleep
    /// sooner.
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

    /// Two threads take turns, and each sleeps while the other has its turn. A missed wake-up would stop both threads.
    #[test]
    fn nobody_sleeps_through_its_number() {
        let futex_counter = Arc::new(FutexCounter::default());
        let turns = 20_000;
        let other = {
            let futex_counter = Arc::clone(&futex_counter);
            thread::spawn(move || turn(&futex_counter, 1, turns))
        };
        turn(&futex_counter, 0, turns);
        other.join().unwrap();
        assert_eq!(futex_counter.number(), 2 * turns);
    }

    fn turn(futex_counter: &FutexCounter, own: u32, turns: u32) {
        for _ in 0..turns {
            loop {
                let number = futex_counter.number();
                if number % 2 == own {
                    break;
                }
                futex_counter.sleep(number);
            }
            futex_counter.advance(1);
            futex_counter.wake(1);
        }
    }

    #[test]
    fn all_wake_where_each_wakes_two() {
        let futex_counter = Arc::new(FutexCounter::default());
        let sleepers: Vec<_> = (0..20)
            .map(|_| {
                let futex_counter = Arc::clone(&futex_counter);
                thread::spawn(move || {
                    while futex_counter.number() == 0 {
                        futex_counter.sleep(0);
                    }
                    futex_counter.wake(2);
                })
            })
            .collect();
        let until = Instant::now() + Duration::from_secs(10);
        while futex_counter.asleep.load(Ordering::SeqCst) < 20 {
            assert!(Instant::now() < until, "the threads do not fall asleep");
            thread::sleep(Duration::from_millis(1));
        }
        futex_counter.advance(1);
        futex_counter.wake(2);
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        assert_eq!(futex_counter.asleep.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn an_old_number_is_nothing_to_sleep_for() {
        let futex_counter = FutexCounter::default();
        futex_counter.advance(3);
        futex_counter.sleep(0);
        futex_counter.sleep(2);
        assert_eq!(futex_counter.number(), 3);
    }
}
