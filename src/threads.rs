//! The threads of one rank: a pool that shares out numbered tasks.
//!
//! Only the main thread talks to MPI, so it must be free to leave the others at work and factor
//! the next panel meanwhile: [`Pool::spread`] runs `lead` on the main thread first, while the
//! workers already take tasks, and lets it join them afterwards.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::pulse;

/// How long a worker without tasks looks for some before it sleeps. Long against the gaps within
/// an iteration, short against anything a person would notice as load.
const SPIN: Duration = Duration::from_micros(200);

/// The work of one round: called with the task's number.
type Task<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts rounds; odd while a round is open to workers.
    round: AtomicUsize,
    tasks: AtomicUsize,
    next: AtomicUsize,
    /// Workers inside the current round.
    inside: AtomicUsize,
    work: Mutex<Option<Task<'static>>>,
    asleep: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
    panicked: AtomicBool,
}

/// `threads - 1` workers and the thread that made them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            round: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            work: Mutex::new(None),
            asleep: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        let workers = (1..threads)
            .map(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("skt-hpl worker {i}"))
                    .spawn(move || shared.serve())
                    .expect("the system gives no more threads")
            })
            .collect();
        Self { shared, workers }
    }

    /// Main thread and workers together.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(0)` to `task(tasks - 1)`, in no particular order, and returns when all are done.
    pub fn run(&mut self, tasks: usize, task: impl Fn(usize) + Sync) {
        self.spread(tasks, task, || (), || ());
    }

    /// As [`Pool::run`], but the main thread first runs `lead`, then takes tasks like the workers
    /// and calls `between` after each.
    pub fn spread<R>(
        &mut self,
        tasks: usize,
        task: impl Fn(usize) + Sync,
        lead: impl FnOnce() -> R,
        mut between: impl FnMut(),
    ) -> R {
        if self.workers.is_empty() || tasks == 0 {
            let result = lead();
            for i in 0..tasks {
                task(i);
                pulse::beat();
                between();
            }
            return result;
        }
        let shared = &*self.shared;
        let work: Task<'_> = &task;
        // SAFETY: the borrow is only followed by workers inside the round, and this function does
        // not return, nor unwind past `Close`, before the round is closed and they have left it.
        let work: Task<'static> = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(work) };
        shared.open(tasks, work);
        let close = Close(shared);
        let result = lead();
        loop {
            let i = shared.next.fetch_add(1, Ordering::Relaxed);
            if i >= tasks {
                break;
            }
            task(i);
            pulse::beat();
            between();
        }
        drop(close);
        result
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.shared.asleep.lock());
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has said so already.
            let _ = worker.join();
        }
    }
}

/// Closes a round, however the main thread leaves it.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        // Even from here on: no worker enters any more. Those inside finish their tasks.
        shared.round.fetch_add(1, Ordering::SeqCst);
        let mut spins = 0u32;
        while shared.inside.load(Ordering::SeqCst) != 0 {
            pause(&mut spins);
        }
        *shared.work.lock().unwrap_or_else(|e| e.into_inner()) = None;
        if shared.panicked.load(Ordering::SeqCst) && !std::thread::panicking() {
            panic!("a worker thread panicked");
        }
    }
}

impl Shared {
    fn open(&self, tasks: usize, work: Task<'static>) {
        *self.work.lock().unwrap_or_else(|e| e.into_inner()) = Some(work);
        self.tasks.store(tasks, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
        self.round.fetch_add(1, Ordering::SeqCst);
        // A worker takes this lock to look at `round` before it sleeps, so none can miss it.
        drop(self.asleep.lock());
        self.wake.notify_all();
    }

    fn serve(&self) {
        let mut seen = 0;
        while let Some(round) = self.await_round(seen) {
            seen = round;
            self.inside.fetch_add(1, Ordering::SeqCst);
            // The round may have closed in between: then it must not be touched any more.
            if self.round.load(Ordering::SeqCst) == round {
                let work = *self.work.lock().unwrap_or_else(|e| e.into_inner());
                let tasks = self.tasks.load(Ordering::Relaxed);
                if let Some(work) = work {
                    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        loop {
                            let i = self.next.fetch_add(1, Ordering::Relaxed);
                            if i >= tasks {
                                break;
                            }
                            work(i);
                            pulse::beat();
                        }
                    }));
                    if done.is_err() {
                        self.panicked.store(true, Ordering::SeqCst);
                    }
                }
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The next open round after `seen`; nothing when the pool ends.
    fn await_round(&self, seen: usize) -> Option<usize> {
        let open = || {
            let round = self.round.load(Ordering::SeqCst);
            (round != seen && round % 2 == 1).then_some(round)
        };
        let start = Instant::now();
        let mut spins = 0;
        while start.elapsed() < SPIN {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(round) = open() {
                return Some(round);
            }
            pause(&mut spins);
        }
        let mut guard = self.asleep.lock().unwrap_or_else(|e| e.into_inner());
        loop {
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            if let Some(round) = open() {
                return Some(round);
            }
            guard = self.wake.wait(guard).unwrap_or_else(|e| e.into_inner());
        }
    }
}

/// A short rest; a longer one, which lets others have the core, every now and then.
fn pause(spins: &mut u32) {
    *spins += 1;
    if (*spins).is_multiple_of(64) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// A raw pointer that tasks may share: each task promises to touch a part of its own.
pub struct Shareable<T>(*mut T);

impl<T> Clone for Shareable<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shareable<T> {}

// SAFETY: the pointer alone does nothing; every use of it is an unsafe block with its own reason.
unsafe impl<T> Send for Shareable<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shareable<T> {}

impl<T> Shareable<T> {
    pub fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    pub fn get(&self) -> *mut T {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in 1..5 {
            let mut pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 100] {
                for _ in 0..200 {
                    let hits: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                    let mut between = 0;
                    let lead = pool.spread(
                        tasks,
                        |i| {
                            hits[i].fetch_add(1, Ordering::Relaxed);
                        },
                        || 42,
                        || between += 1,
                    );
                    assert_eq!(lead, 42);
                    assert!(between <= tasks);
                    assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let mut pool = Pool::new(3);
        for _ in 0..3 {
            std::thread::sleep(5 * SPIN);
            let sum = AtomicUsize::new(0);
            pool.run(10, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 45);
        }
    }

    #[test]
    fn a_panicking_task_is_not_swallowed() {
        let mut pool = Pool::new(2);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(64, |i| {
                std::thread::sleep(Duration::from_micros(50));
                assert!(i != 33, "task 33 fails");
            });
        }));
        assert!(caught.is_err());
    }
}
