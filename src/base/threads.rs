//! The threads of one rank: a pool that runs numbered tasks.
//!
//! Only the main thread calls MPI, so it must be able to factor the next panel while the other threads run tasks.
//! [`Pool::spread`] first lets the main thread lead, while the workers already run tasks; then the main thread runs tasks, too.
//!
//! Some of the workers may be [`PanelThreads`] of the main thread. They do the work that the main thread divides among them while
//! it leads, and run tasks afterwards.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::base::cores;
use crate::base::futex_counter::FutexCounter;
use crate::base::heartbeat;
use crate::base::new_thread;

/// Time that a worker without tasks polls before it sleeps. The time is long compared with the gaps within an iteration, but too
/// short to cause a noticeable load.
const SPIN: Duration = Duration::from_micros(200);

/// Number of sleeping workers that the main thread wakes. Each woken worker wakes the same number of further workers. With
/// hundreds of workers, the main thread would otherwise make a kernel call for each.
const CALLS: u32 = 8;

/// Function that does the tasks of one round, which is one call of [`Pool::spread`]. Its argument is the number of a task.
type Task<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    /// Counter that advances when a round opens and when it closes; odd while a round is open to workers.
    round: Apart<FutexCounter>,
    next: Apart<AtomicUsize>,
    /// Number of workers that take part in the current round.
    inside: Apart<AtomicUsize>,
    present: Round,
    stop: AtomicBool,
    panicked: AtomicBool,
    orders: Orders,
}

/// Number of tasks of the current round, and the function that does them; None between rounds.
struct Round(UnsafeCell<(usize, Option<Task<'static>>)>);

// SAFETY: only the main thread writes it, while no round is open and no worker is inside one. Workers inside a round read it,
// after they have seen that the round is open, which happens after the write.
unsafe impl Sync for Round {}

/// Orders: work that the main thread divides among the panel threads while it leads. There is one order at a time, with at most
/// one part for each thread.
///
/// Each thread has the same part in every order, because its caches have the rows of this part. But a late thread must not delay
/// the others: the main thread does a part that no worker has begun after a while.
struct Orders {
    present: Order,
    /// State of each part. The part's number is the number of its thread.
    parts: Vec<Part>,
    /// Number of workers that are panel threads in the current round.
    panel_workers: AtomicUsize,
    /// True when the main thread has finished leading, so that the panel threads may run tasks.
    dismissed: AtomicBool,
}

/// The current order, in adjacent cache lines. The transfer of a cache line between cores takes as long as the computation of a
/// small part. A worker that has read `head` finds the whole order in these lines, and follows no pointer to other lines.
#[repr(C, align(128))]
struct Order {
    /// Number of the order, from 1, times `NUMBER_UNIT`, plus the number of its parts. Written after the other fields.
    head: AtomicU64,
    /// Function that does a part: its arguments are the work and the number of the part.
    call: UnsafeCell<unsafe fn(*const WorkRoom, usize)>,
    /// Copy of the closure that is the order's work.
    work: UnsafeCell<WorkRoom>,
}

/// Space for the values that the closure of an order captures.
type WorkRoom = [MaybeUninit<u64>; 46];

// SAFETY: only the main thread writes `call` and `work`, while all parts that were begun are done. A thread that has begun a part
// reads both; it has read the number, which was written after them.
unsafe impl Sync for Order {}

impl Default for Order {
    fn default() -> Self {
        let nothing: unsafe fn(*const WorkRoom, usize) = |_, _| ();
        let work = [MaybeUninit::uninit(); _];
        Self { head: AtomicU64::new(0), call: nothing.into(), work: work.into() }
    }
}

impl Order {
    /// Returns the number of the order, and the number of its parts.
    fn read(&self) -> (u64, usize) {
        let head = self.head.load(Ordering::Acquire);
        (head / NUMBER_UNIT, (head % NUMBER_UNIT) as usize)
    }

    /// Issues the next order and returns its number.
    ///
    /// # Safety
    /// All parts of the previous order are done, and all that `work` captures lives until the parts of this order are done.
    unsafe fn give<W: Fn(usize) + Sync + Copy>(&self, parts: usize, work: W) -> u64 {
        const {
            assert!(size_of::<W>() <= size_of::<WorkRoom>(), "the closure captures too much");
            assert!(align_of::<W>() <= align_of::<WorkRoom>());
        }
        /// Does a part of the work in `room`.
        ///
        /// # Safety
        /// `room` contains a `W`.
        unsafe fn call<W: Fn(usize)>(room: *const WorkRoom, part: usize) {
            // SAFETY: ensured by the caller; the work is only borrowed.
            unsafe { (*room.cast::<W>())(part) }
        }
        let number = self.read().0 + 1;
        // SAFETY: no thread reads them now. A closure that is `Copy` may be used in two places and needs no drop.
        unsafe {
            *self.call.get() = call::<W>;
            self.work.get().cast::<W>().write(work);
        }
        self.head.store(number * NUMBER_UNIT + parts as u64, Ordering::Release);
        number
    }
}

/// Numbers of the last order in which a part was begun, and in which it was done. The numbers are in separate cache lines,
/// because the main thread reads one while a worker writes the other.
#[derive(Default)]
struct Part {
    begun: Apart<AtomicU64>,
    done: Apart<AtomicU64>,
}

/// A value that shares its cache lines with no other value.
#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// Factor by which `head` multiplies the number of the order. The number of parts is added to the product.
const NUMBER_UNIT: u64 = 1 << 16;

/// Maximum number of threads of a pool.
pub const THREADS_MAX: usize = NUMBER_UNIT as usize - 1;

/// Number of polls after which the main thread does a part that no worker has begun: one to three microseconds.
const POLLS_MAX: u32 = 60;

impl Orders {
    fn new(threads: usize) -> Self {
        assert!(threads <= THREADS_MAX, "{threads} threads");
        Self {
            present: Order::default(),
            parts: (0..threads).map(|_| Part::default()).collect(),
            panel_workers: AtomicUsize::new(0),
            dismissed: AtomicBool::new(false),
        }
    }

    /// Does part `part` of order `number`, unless another thread has begun it. Returns false if the part panicked; a part that
    /// panicked counts as done.
    fn attempt(&self, number: u64, part: usize) -> bool {
        let Part { begun: Apart(begun), done: Apart(done) } = &self.parts[part];
        let last = begun.load(Ordering::Acquire);
        // A thread that read the order long ago finds that this order, or a later one, is begun.
        let mine = last < number
            && begun.compare_exchange(last, number, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !mine {
            return true;
        }
        let Order { call, work, .. } = &self.present;
        // SAFETY: until this part is done, the order stays valid and the data that it borrows are alive.
        let work = || unsafe { (*call.get())(work.get(), part) };
        let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
        done.store(number, Ordering::Release);
        well
    }
}

/// Moment at which [`Pool::spread`] calls its argument `main` on the main thread.
pub enum Turn<'t, 'p> {
    /// Before the first task. The main thread leads these panel threads.
    Lead(&'t mut PanelThreads<'p>),
    AfterTask,
}

/// The main thread and its panel workers, while the main thread leads.
pub struct PanelThreads<'a> {
    shared: Option<&'a Shared>,
    panel_workers: usize,
}

impl PanelThreads<'_> {
    /// Returns panel threads that consist only of the main thread.
    pub fn alone() -> Self {
        Self { shared: None, panel_workers: 0 }
    }

    /// Number of threads: the main thread and its panel workers.
    pub fn size(&self) -> usize {
        self.panel_workers + 1
    }

    /// Runs `work(0)` to `work(parts - 1)`, each part on its own thread. If a thread is late, the main thread does its part.
    /// Returns when all parts are done.
    ///
    /// There must not be more parts than threads. Workers read a copy of `work`, so it should capture small values and not
    /// references to them.
    pub fn run(&mut self, parts: usize, work: impl Fn(usize) + Sync + Copy) {
        assert!(parts <= self.size(), "{parts} parts for {} threads", self.size());
        let Some(shared) = self.shared.filter(|_| self.panel_workers > 0 && parts > 1) else {
            (0..parts).for_each(work);
            return;
        };
        let orders = &shared.orders;
        // SAFETY: this function neither returns nor unwinds before all parts of the order are done.
        let number = unsafe { orders.present.give(parts, work) };
        let mut well = orders.attempt(number, 0);
        let mut spins = 0u32;
        for part in 1..parts {
            while orders.parts[part].done.0.load(Ordering::Acquire) < number {
                if spins >= POLLS_MAX {
                    well &= orders.attempt(number, part);
                }
                pause(&mut spins);
            }
        }
        if !well {
            shared.panicked.store(true, Ordering::SeqCst);
        }
        assert!(!shared.panicked.load(Ordering::SeqCst), "a part of a shared step panicked");
    }
}

/// Returns the indices of part `part` if `len` elements are divided into `parts`. Parts are whole cache lines of words, so that
/// threads share no cache line.
fn part_of(len: usize, part: usize, parts: usize) -> Range<usize> {
    const LINE: usize = 16;
    let each = len.div_ceil(parts).next_multiple_of(LINE);
    (part * each).min(len)..((part + 1) * each).min(len)
}

impl PanelThreads<'_> {
    /// Calls `work` with parts of `0..len`, each part on its own thread. Uses fewer threads if parts would have fewer than
    /// `worth` elements.
    pub fn parts(&mut self, len: usize, worth: usize, work: impl Fn(Range<usize>) + Sync + Copy) {
        let parts = (len / worth).clamp(1, self.size());
        self.run(parts, move |part| work(part_of(len, part, parts)));
    }

    /// Divides a slice as [`PanelThreads::parts`] does. Calls `work` with each part and the index at which the part starts.
    pub fn cut<T: Send>(
        &mut self,
        all: &mut [T],
        worth: usize,
        work: impl Fn(usize, &mut [T]) + Sync + Copy,
    ) {
        let first = Shareable::new(all.as_mut_ptr());
        self.parts(all.len(), worth, move |range| {
            // SAFETY: parts are within the slice, which is borrowed until all are done, and no two overlap.
            let part = unsafe {
                std::slice::from_raw_parts_mut(first.get().add(range.start), range.len())
            };
            work(range.start, part);
        });
    }
}

impl Drop for PanelThreads<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared {
            shared.orders.dismissed.store(true, Ordering::SeqCst);
        }
    }
}

/// Error: a limit on threads is reached. Possible limits are those of the user (`ulimit -u`), of a container's or job's
/// processes, of memory or of mappings.
#[derive(Debug, thiserror::Error)]
#[error(
    "the system gives this process {given} of {threads} threads ({source}); {}",
    new_thread::HELP
)]
pub struct FewThreads {
    given: usize,
    threads: usize,
    source: std::io::Error,
}

/// A pool of threads: `threads - 1` workers and the thread that created the pool.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    pinned: bool,
}

impl Pool {
    /// Starts a pool of `threads` threads, which the system may run on any processor.
    ///
    /// # Panics
    /// If the system gives no more threads.
    pub fn new(threads: usize) -> Self {
        Self::of(threads, None).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Starts a pool of `threads` threads. If the system gives fewer, the error contains their number.
    pub fn try_new(threads: usize) -> Result<Self, FewThreads> {
        Self::of(threads, None)
    }

    /// Starts a pool with one thread for each of `processors`, bound to this processor. The calling thread is bound to the first
    /// processor until the pool ends.
    pub fn pinned(processors: &[usize]) -> Result<Self, FewThreads> {
        let mut pool = Self::of(processors.len(), Some(processors))?;
        // The calling thread is bound last: workers would inherit its binding.
        pool.pinned = processors.first().is_some_and(|&first| cores::pin(first));
        if pool.pinned {
            cores::keep_to(processors);
        }
        Ok(pool)
    }

    fn of(threads: usize, processors: Option<&[usize]>) -> Result<Self, FewThreads> {
        let shared = Arc::new(Shared::new(threads));
        let mut pool = Self { shared, workers: Vec::new(), pinned: false };
        for i in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let own = processors.map(|processors| processors[i]);
            let worker = new_thread::start(&format!("skt-hpl worker {i}"), move || {
                own.map(cores::pin);
                shared.serve(i);
            });
            // If this fails, dropping the pool ends the threads already started.
            let few = |new_thread::NoThread(source)| FewThreads { given: i, threads, source };
            pool.workers.push(worker.map_err(few)?);
        }
        Ok(pool)
    }

    /// Number of threads: main thread and workers together.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(0)` to `task(tasks - 1)`, in no particular order, and returns when all are done.
    pub fn run(&mut self, tasks: usize, task: impl Fn(usize) + Sync) {
        self.spread(tasks, task, 0, |_| ());
    }

    /// Calls `work` once on each thread, with the thread's number from 0, and returns when all are done.
    pub fn on_each(&mut self, work: impl Fn(usize) + Sync) {
        let threads = self.threads();
        let came = AtomicUsize::new(0);
        self.run(threads, |_| {
            let here = Here(&came);
            work(NUMBER.get());
            drop(here);
            // A thread that finishes early must not take the part of another thread.
            let mut spins = 0u32;
            while came.load(Ordering::SeqCst) < threads {
                pause(&mut spins);
            }
        });
    }

    /// Runs `lead` with all threads as panel threads, and no tasks.
    pub fn together<R>(&mut self, lead: impl FnOnce(&mut PanelThreads) -> R) -> R {
        self.few(self.threads(), lead)
    }

    /// Runs `lead` with at most `threads` panel threads, the main thread included, and no tasks.
    pub fn few<R>(&mut self, threads: usize, lead: impl FnOnce(&mut PanelThreads) -> R) -> R {
        let (mut lead, mut result) = (Some(lead), None);
        self.spread(
            0,
            |_| (),
            threads.saturating_sub(1),
            |turn| {
                if let (Turn::Lead(panel_threads), Some(lead)) = (turn, lead.take()) {
                    result = Some(lead(panel_threads));
                }
            },
        );
        result.expect("the main thread leads once")
    }

    /// Calls `work` with parts of `0..len`, all of length `each` except the last, on all threads.
    pub fn over(&mut self, len: usize, each: usize, work: impl Fn(Range<usize>) + Sync) {
        self.run(len.div_ceil(each), |task| work(task * each..len.min((task + 1) * each)));
    }

    /// Calls `work` with the number and the elements of each row of a matrix, on all threads. `row` is the length of a row. A
    /// task has rows with about `each` elements in total.
    pub fn rows<T: Send>(
        &mut self,
        all: &mut [T],
        row: usize,
        each: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let (len, first) = (all.len(), Shareable::new(all.as_mut_ptr()));
        self.over(len.div_ceil(row.max(1)), (each / row.max(1)).max(1), |rows| {
            for number in rows {
                let (start, end) = (number * row, len.min((number + 1) * row));
                // SAFETY: within the matrix, which is borrowed until all are done, and no two rows overlap.
                let row =
                    unsafe { std::slice::from_raw_parts_mut(first.get().add(start), end - start) };
                work(number, row);
            }
        });
    }

    /// Runs tasks as [`Pool::run`] does, and calls `main` on the main thread: first with [`Turn::Lead`], then after each of its
    /// tasks.
    ///
    /// During [`Turn::Lead`], `panel_workers` workers are panel threads. Afterwards these workers run tasks, too.
    pub fn spread(
        &mut self,
        tasks: usize,
        task: impl Fn(usize) + Sync,
        panel_workers: usize,
        mut main: impl FnMut(Turn),
    ) {
        let panel_workers = panel_workers.min(self.workers.len());
        if self.workers.is_empty() || (tasks == 0 && panel_workers == 0) {
            main(Turn::Lead(&mut PanelThreads::alone()));
            for i in 0..tasks {
                task(i);
                heartbeat::beat();
                main(Turn::AfterTask);
            }
            return;
        }
        let shared = &*self.shared;
        let work: Task<'_> = &task;
        // SAFETY: the borrow is only used by workers inside the round. This function neither returns nor unwinds past `Close`
        // before the round is closed and they have left it.
        let work: Task<'static> = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(work) };
        shared.open(tasks, work, panel_workers);
        let close = Close(shared);
        main(Turn::Lead(&mut PanelThreads { shared: Some(shared), panel_workers }));
        loop {
            let i = shared.next.0.fetch_add(1, Ordering::Relaxed);
            if i >= tasks {
                break;
            }
            task(i);
            heartbeat::beat();
            main(Turn::AfterTask);
        }
        drop(close);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // An even step keeps the counter's parity, so no round begins.
        self.shared.round.0.advance(2);
        self.shared.round.0.wake(u32::MAX);
        for worker in self.workers.drain(..) {
            // A worker that panicked has already reported it.
            let _ = worker.join();
        }
        if self.pinned {
            cores::keep_to(&[]);
            cores::unpin();
        }
    }
}

thread_local! {
    /// Number of a worker in its pool, from 1; 0 for the thread that created a pool.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// Guard of a thread in [`Pool::on_each`]: when the thread drops its guard, the thread counts as finished. If one thread panics,
/// all threads count as finished, because the round ends and some threads may never start.
struct Here<'a>(&'a AtomicUsize);

impl Drop for Here<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(usize::MAX / 2, Ordering::SeqCst);
        } else {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Closes the round when it is dropped, even if the main thread panics.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        shared.orders.dismissed.store(true, Ordering::SeqCst);
        if std::thread::panicking() {
            // The rest of the round is no longer needed: workers inside finish only their current task.
            shared.next.0.store(usize::MAX / 2, Ordering::SeqCst);
        }
        // The counter is even from here on, so no worker enters. Those inside finish their tasks.
        shared.round.0.advance(1);
        let mut spins = 0u32;
        while shared.inside.0.load(Ordering::SeqCst) != 0 {
            pause(&mut spins);
        }
        // SAFETY: no round is open, and no worker is inside one.
        unsafe { *shared.present.0.get() = (0, None) };
        if shared.panicked.load(Ordering::SeqCst) && !std::thread::panicking() {
            panic!("a worker thread panicked");
        }
    }
}

impl Shared {
    fn new(threads: usize) -> Self {
        Self {
            round: Apart::default(),
            next: Apart::default(),
            inside: Apart::default(),
            present: Round(UnsafeCell::new((0, None))),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            orders: Orders::new(threads),
        }
    }

    fn open(&self, tasks: usize, work: Task<'static>, panel_workers: usize) {
        self.orders.panel_workers.store(panel_workers, Ordering::SeqCst);
        self.orders.dismissed.store(panel_workers == 0, Ordering::SeqCst);
        // SAFETY: no round is open, and the previous one has waited until no worker was inside.
        unsafe { *self.present.0.get() = (tasks, Some(work)) };
        self.next.0.store(0, Ordering::Relaxed);
        self.round.0.advance(1);
        self.round.0.wake(CALLS);
    }

    /// Runs the loop of worker `number`, from 1.
    fn serve(&self, number: usize) {
        NUMBER.set(number);
        let mut seen = 0;
        while let Some(round) = self.await_round(seen) {
            seen = round;
            self.inside.0.fetch_add(1, Ordering::SeqCst);
            // If the round has closed in the meantime, its work must not be used.
            if self.round.0.number() == round {
                // SAFETY: the round is open, or the main thread that closes it waits for this worker, which is inside.
                let (tasks, work) = unsafe { *self.present.0.get() };
                if number <= self.orders.panel_workers.load(Ordering::SeqCst) {
                    self.follow(number);
                }
                if let Some(work) = work {
                    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        loop {
                            let i = self.next.0.fetch_add(1, Ordering::Relaxed);
                            if i >= tasks {
                                break;
                            }
                            work(i);
                            heartbeat::beat();
                        }
                    }));
                    if done.is_err() {
                        self.panicked.store(true, Ordering::SeqCst);
                    }
                }
            }
            self.inside.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Does part `own` of each order on the worker `own`, until the main thread has finished leading.
    fn follow(&self, own: usize) {
        let mut spins = 0u32;
        let mut last = 0;
        while !self.orders.dismissed.load(Ordering::SeqCst) {
            let (number, parts) = self.orders.present.read();
            if number > last {
                last = number;
                spins = 0;
                if own < parts && !self.orders.attempt(number, own) {
                    self.panicked.store(true, Ordering::SeqCst);
                }
            }
            pause(&mut spins);
        }
    }

    /// Waits for an open round other than `seen`, and returns its number; returns `None` when the pool ends.
    fn await_round(&self, seen: u32) -> Option<u32> {
        let start = Instant::now();
        let (mut spins, mut has_slept) = (0, false);
        loop {
            let round = self.round.0.number();
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            if round != seen && round % 2 == 1 {
                if has_slept {
                    self.round.0.wake(CALLS);
                }
                return Some(round);
            }
            if has_slept || start.elapsed() >= SPIN {
                self.round.0.sleep(round);
                has_slept = true;
            } else {
                pause(&mut spins);
            }
        }
    }
}

/// Pauses briefly; every 64th call yields the core to other threads.
fn pause(spins: &mut u32) {
    *spins = spins.wrapping_add(1);
    if (*spins).is_multiple_of(64) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// A raw pointer that tasks may share. Each task must touch only its own part of the data.
pub struct Shareable<T>(*mut T);

impl<T> Clone for Shareable<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shareable<T> {}

// SAFETY: the pointer alone does nothing; every use is in an unsafe block with its own justification.
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
    use std::sync::Mutex;

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in 1..5 {
            let mut pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 100] {
                for _ in 0..200 {
                    let hits: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                    let mut between = 0;
                    let mut leads = 0;
                    pool.spread(
                        tasks,
                        |i| {
                            hits[i].fetch_add(1, Ordering::Relaxed);
                        },
                        0,
                        |turn| match turn {
                            Turn::Lead(_) => leads += 1,
                            Turn::AfterTask => between += 1,
                        },
                    );
                    assert_eq!(leads, 1);
                    assert!(between <= tasks);
                    assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn threads_that_are_pinned_keep_to_their_processors_and_the_first_is_let_go() {
        use crate::base::cores::allowed;
        use crate::testkit::pinning::alone;
        use std::collections::BTreeSet;
        let _alone = alone();
        let all: Vec<usize> = cores::bound_to().iter().copied().collect();
        for processors in [&all[..1], &all[..], &[all[all.len() - 1]; 3]] {
            let mut pool = Pool::pinned(processors).unwrap();
            assert_eq!(pool.threads(), processors.len());
            let seen = Mutex::new(BTreeSet::new());
            for _ in 0..20 {
                pool.run(processors.len(), |_| {
                    let at = allowed();
                    assert_eq!(at.len(), 1);
                    seen.lock().unwrap().extend(at);
                    std::thread::sleep(Duration::from_millis(1));
                });
            }
            assert!(seen.into_inner().unwrap().is_subset(&processors.iter().copied().collect()));
            assert_eq!(allowed(), BTreeSet::from([processors[0]]));
            drop(pool);
            assert_eq!(&allowed(), cores::bound_to());
        }
    }

    #[test]
    fn each_thread_does_its_own_part_once() {
        for threads in 1..6 {
            let mut pool = Pool::new(threads);
            for _ in 0..50 {
                let hits: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
                pool.on_each(|thread| {
                    hits[thread].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
            }
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                pool.on_each(|thread| assert!(thread != 0, "a part fails"));
            }));
            assert!(caught.is_err(), "{threads} threads");
        }
    }

    #[test]
    fn a_crew_does_every_part_once_and_then_takes_tasks() {
        for threads in 1..5 {
            let mut pool = Pool::new(threads);
            for panel_workers in 0..threads + 1 {
                for _ in 0..100 {
                    let tasks = AtomicUsize::new(0);
                    let mut size = 0;
                    pool.spread(
                        20,
                        |_| {
                            tasks.fetch_add(1, Ordering::Relaxed);
                        },
                        panel_workers,
                        |turn| {
                            let Turn::Lead(panel_threads) = turn else { return };
                            for parts in 0..=panel_threads.size() {
                                let hits: Vec<AtomicUsize> =
                                    (0..parts).map(|_| AtomicUsize::new(0)).collect();
                                panel_threads.run(parts, |i| {
                                    hits[i].fetch_add(1, Ordering::Relaxed);
                                });
                                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
                            }
                            size = panel_threads.size();
                        },
                    );
                    assert_eq!(size, panel_workers.min(threads - 1) + 1);
                    assert_eq!(tasks.into_inner(), 20);
                }
            }
        }
    }

    #[test]
    fn parts_see_what_earlier_orders_wrote() {
        let mut pool = Pool::new(3);
        let cells: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        pool.together(|panel_threads| {
            for round in 0..500 {
                panel_threads.run(cells.len(), |i| {
                    // The neighbour's value is that of the round before or of this one.
                    let neighbour = cells[(i + 1) % cells.len()].load(Ordering::Relaxed);
                    assert!(neighbour == round || neighbour == round + 1);
                    cells[i].store(round + 1, Ordering::Relaxed);
                });
            }
        });
        assert!(cells.iter().all(|c| c.load(Ordering::Relaxed) == 500));
    }

    #[test]
    fn the_lead_does_what_no_mate_comes_for() {
        let shared = Shared::new(4);
        let mut panel_threads = PanelThreads { shared: Some(&shared), panel_workers: 3 };
        for round in 1..50 {
            let hits: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
            panel_threads.run(4, |part| {
                hits[part].fetch_add(1, Ordering::Relaxed);
                // A late worker, which has read this order or an old one, finds that all parts are begun.
                let number = shared.orders.present.read().0;
                assert_eq!(number, round);
                assert!(
                    shared.orders.attempt(number, part) && shared.orders.attempt(number - 1, 3)
                );
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_part_that_panics_is_not_swallowed() {
        for threads in 1..4 {
            for bad in 0..threads {
                let mut pool = Pool::new(threads);
                let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    pool.together(|panel_threads| {
                        panel_threads.run(threads, |i| assert!(i != bad, "part {bad} fails"))
                    });
                }));
                assert!(caught.is_err(), "{threads} threads");
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

    /// Unwinds during a round, as the main thread does after a loss. The remaining tasks are no longer needed.
    #[test]
    fn a_thread_that_leaves_a_round_does_not_wait_for_all_of_its_tasks() {
        let mut pool = Pool::new(2);
        let done = AtomicUsize::new(0);
        let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let task = |_| {
                std::thread::sleep(Duration::from_millis(5));
                done.fetch_add(1, Ordering::Relaxed);
            };
            pool.spread(200, task, 0, |turn| {
                if matches!(turn, Turn::AfterTask) {
                    std::panic::resume_unwind(Box::new("a loss"));
                }
            });
        }));
        assert!(left.is_err());
        assert!(done.load(Ordering::Relaxed) < 20, "{done:?}");
        // The pool can still be used.
        pool.run(7, |_| _ = done.fetch_add(1000, Ordering::Relaxed));
        assert!(done.into_inner() >= 7000);
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
