//! The back end `host`: device memory and streams without an accelerator, for tests.
//!
//! Device memory is mapped twice. The solver gets addresses of a mapping without access rights, so a wrong access by the solver
//! ends the process at once. Operations use the other mapping.
//!
//! Queued operations run in the calling thread, whenever this thread queues another operation or waits. The order of the streams
//! is random, with a seed. So all permitted orders occur. If an operation does not wait for another one that it depends on,
//! results become wrong.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::{Device, Event, RowCopy, STREAMS, Stream};
use crate::base::threads::Shareable;
use crate::kernels::{
    Columns, Engine, LowerBlock, Matrix, Owed, Size, Step, Strided, Strides, TriangleBlock,
    UpperBlock, copy_by_rows,
};

/// Device memory, mapped twice.
struct Memory {
    /// Mapping without access rights. The solver gets its addresses.
    closed: NonNull<f64>,
    /// Mapping that operations use.
    open: NonNull<f64>,
    bytes: usize,
}

// SAFETY: the mappings are shared mappings, and operations that use the memory run one at a time.
unsafe impl Send for Memory {}

impl Memory {
    fn new(len: usize) -> io::Result<Self> {
        let Some(bytes) = len.max(1).checked_mul(8) else {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        };
        // SAFETY: the name is a string that ends with a zero byte.
        let file = unsafe { libc::memfd_create(c"skt-hpl-device".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was opened above, and is used nowhere else.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: the descriptor is a file of this process.
        if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let closed = map(&file, bytes, libc::PROT_NONE)?;
        let open = map(&file, bytes, libc::PROT_READ | libc::PROT_WRITE).inspect_err(|_| {
            // SAFETY: the memory was mapped above, and is not used.
            unsafe { unmap(closed, bytes) }
        })?;
        Ok(Self { closed, open, bytes })
    }

    /// Translates an address of the closed mapping to an address of the open mapping. Returns `None` for other addresses. The
    /// address just behind the memory counts as part of the memory.
    fn translate(&self, address: *mut f64) -> Option<*mut f64> {
        let offset = address.addr().checked_sub(self.closed.addr().get())?;
        (offset <= self.bytes).then(|| self.open.as_ptr().wrapping_byte_add(offset))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: both mappings were made by `new`.
        unsafe {
            unmap(self.closed, self.bytes);
            unmap(self.open, self.bytes);
        }
    }
}

fn map(file: &OwnedFd, bytes: usize, access: i32) -> io::Result<NonNull<f64>> {
    // One more page keeps the address just behind a memory out of the next mapping.
    let (anywhere, kind) = (std::ptr::null_mut(), libc::MAP_SHARED);
    // SAFETY: this is a new mapping, at an address that the kernel chooses.
    let at = unsafe { libc::mmap(anywhere, bytes + PAGE, access, kind, file.as_raw_fd(), 0) };
    match NonNull::new(at) {
        Some(mapped) if at != libc::MAP_FAILED => Ok(mapped.cast()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// # Safety
/// `at` is a mapping that [`map`] returned, and nothing uses it any more.
unsafe fn unmap(at: NonNull<f64>, bytes: usize) {
    // SAFETY: ensured by the caller.
    unsafe { libc::munmap(at.as_ptr().cast(), bytes + PAGE) };
}

/// Number of bytes by which each mapping is longer than its memory. So the address just behind the memory is in no other
/// mapping.
const PAGE: usize = 4096;

/// Returns a random number below `end`.
fn below(random: &mut SplitMix64, end: usize) -> usize {
    (random.next_u64() % end as u64) as usize
}

/// Entry of a stream's queue.
enum Queued {
    Work(Box<dyn FnOnce(&mut SplitMix64) + Send>),
    Record(Event),
    Wait(Event),
}

struct State {
    memories: Vec<Memory>,
    /// Pinned memory of the processor: the length in bytes of each range, by its first address.
    pinned: HashMap<usize, usize>,
    queues: [VecDeque<Queued>; STREAMS],
    /// Number of events recorded so far.
    events: u64,
    /// Events that have not passed.
    ahead: HashSet<Event>,
    /// Random numbers for the order of operations.
    random: SplitMix64,
}

impl State {
    /// Translates an address to an address that operations may use. An address outside device memory stays the same.
    fn translate(&self, address: *mut f64) -> Shareable<f64> {
        let own = self.memories.iter().find_map(|memory| memory.translate(address));
        Shareable::new(own.unwrap_or_else(|| {
            let within =
                |(&at, &bytes): (&usize, &usize)| (at..=at + bytes).contains(&address.addr());
            assert!(
                self.pinned.iter().any(within),
                "the address is neither in device memory nor in pinned memory"
            );
            address
        }))
    }

    /// Queues an operation. After that, runs a random number of queued operations, possibly including the new one.
    fn queue(&mut self, stream: Stream, queued: Queued) {
        self.queues[stream as usize].push_back(queued);
        while below(&mut self.random, 4) == 0 && self.step() {}
    }

    fn queue_work(&mut self, stream: Stream, work: impl FnOnce(&mut SplitMix64) + Send + 'static) {
        self.queue(stream, Queued::Work(Box::new(work)));
    }

    /// Runs the next operation of a randomly chosen stream. Returns false if no operation may run.
    fn step(&mut self) -> bool {
        let ready = |queue: &VecDeque<Queued>| match queue.front() {
            Some(Queued::Wait(event)) => !self.ahead.contains(event),
            Some(_) => true,
            None => false,
        };
        let ready: Vec<usize> = (0..STREAMS).filter(|&i| ready(&self.queues[i])).collect();
        if ready.is_empty() {
            return false;
        }
        let stream = ready[below(&mut self.random, ready.len())];
        match self.queues[stream].pop_front() {
            Some(Queued::Work(work)) => work(&mut self.random),
            Some(Queued::Record(event)) => {
                self.ahead.remove(&event);
            }
            Some(Queued::Wait(_)) | None => {}
        }
        true
    }
}

/// The back end `host`: each process has a device of its own.
pub struct Host(Mutex<State>);

impl Host {
    /// Makes a device. `seed` determines the order in which its streams run.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(State {
            memories: Vec::new(),
            pinned: HashMap::new(),
            queues: Default::default(),
            events: 0,
            ahead: HashSet::new(),
            random: SplitMix64::seed_from_u64(seed),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no operation panicked")
    }
}

/// Copies the first `cols` columns of a row.
///
/// # Safety
/// The rows are valid in these columns, and do not overlap.
unsafe fn copy_row(
    from: Matrix<Shareable<f64>>,
    to: Matrix<Shareable<f64>>,
    row: RowCopy,
    cols: usize,
) {
    // SAFETY: ensured by the caller.
    unsafe {
        let (from, to) = (from.at.get().add(row.from * from.ld), to.at.get().add(row.to * to.ld));
        std::ptr::copy_nonoverlapping(from.cast_const(), to, cols);
    }
}

impl Device for Host {
    fn name(&self) -> &str {
        "the processor in place of a device, for tests; its rate means nothing"
    }

    fn allocate(&self, len: usize) -> io::Result<NonNull<f64>> {
        let memory = Memory::new(len)?;
        let address = memory.closed;
        self.state().memories.push(memory);
        Ok(address)
    }

    unsafe fn free(&self, memory: NonNull<f64>) {
        let mut state = self.state();
        while state.step() {}
        state.memories.retain(|own| own.closed != memory);
    }

    fn pin(&self, memory: NonNull<f64>, len: usize) -> io::Result<()> {
        self.state().pinned.insert(memory.addr().get(), len * 8);
        Ok(())
    }

    unsafe fn unpin(&self, memory: NonNull<f64>) {
        self.state().pinned.remove(&memory.addr().get());
    }

    unsafe fn copy_2d(
        &self,
        stream: Stream,
        from: Matrix<*const f64>,
        to: Matrix<*mut f64>,
        rows: usize,
        cols: usize,
    ) {
        let rows = (0..rows).map(|row| RowCopy { from: row, to: row }).collect();
        // SAFETY: ensured by the caller.
        unsafe { self.copy_rows(stream, from, to, rows, cols) }
    }

    unsafe fn copy_rows(
        &self,
        stream: Stream,
        from: Matrix<*const f64>,
        to: Matrix<*mut f64>,
        mut rows: Vec<RowCopy>,
        cols: usize,
    ) {
        if rows.is_empty() || cols == 0 {
            return;
        }
        let mut state = self.state();
        let from = Matrix::new(state.translate(from.at.cast_mut()), from.ld);
        let to = Matrix::new(state.translate(to.at), to.ld);
        state.queue_work(stream, move |random| {
            while !rows.is_empty() {
                let row = rows.swap_remove(below(random, rows.len()));
                // SAFETY: ensured by the caller.
                unsafe { copy_row(from, to, row, cols) }
            }
        });
    }

    unsafe fn transpose(
        &self,
        stream: Stream,
        from: Matrix<*const f64>,
        to: Matrix<*mut f64>,
        rows: usize,
        cols: usize,
    ) {
        if rows == 0 || cols == 0 {
            return;
        }
        let mut state = self.state();
        let from = Matrix::new(state.translate(from.at.cast_mut()), from.ld);
        let to = Matrix::new(state.translate(to.at), to.ld);
        state.queue_work(stream, move |_| {
            let strides = Strides { row: 1, col: from.ld };
            let to = Matrix::new(to.at.get(), to.ld);
            // SAFETY: ensured by the caller. A row of the transpose is a column of the matrix.
            unsafe { copy_by_rows(from.at.get().cast_const(), strides, cols, rows, to) }
        });
    }

    unsafe fn step(
        &self,
        stream: Stream,
        w: Columns,
        step: Step,
        rows: Range<usize>,
        current: usize,
        found: *mut f64,
    ) {
        let mut state = self.state();
        let w = Columns { w: state.translate(w.w.get()), ..w };
        let row = step.owed.row.map(|(place, row)| (place, state.translate(row.get())));
        let step = Step { owed: Owed { row, ..step.owed }, ..step };
        if let Some(update) = &step.update {
            state.translate(update.factors.many.get());
        }
        let found = state.translate(found);
        // SAFETY: ensured by the caller.
        state.queue_work(stream, move |_| unsafe {
            let Some((magnitude, at)) = step.run(w, rows) else { return };
            let found = found.get();
            (*found, *found.add(1)) = (magnitude, at as f64);
            for t in 0..step.width {
                let column = w.w.get().add(t * w.ld);
                *found.add(2 + t) = *column.add(at);
                *found.add(2 + step.width + t) = *column.add(current);
            }
        });
    }

    unsafe fn multiply_in_panel(
        &self,
        stream: Stream,
        size: Size,
        l: *const f64,
        b: Strided,
        a: Matrix<*mut f64>,
    ) {
        let mut state = self.state();
        let l = state.translate(l.cast_mut());
        let (at, strides) = (state.translate(b.at.cast_mut()), b.strides);
        let a = Matrix::new(state.translate(a.at), a.ld);
        state.queue_work(stream, move |_| {
            let (l, b) = (l.get().cast_const(), Strided { at: at.get().cast_const(), strides });
            let a = Matrix::new(a.at.get(), a.ld);
            // SAFETY: ensured by the caller.
            unsafe { Engine::Blas.multiply_in_panel(size, l, b, a, &mut Vec::new()) }
        });
    }

    unsafe fn solve(&self, stream: Stream, l1: TriangleBlock, u: UpperBlock, cols: Range<usize>) {
        if cols.is_empty() {
            return;
        }
        let mut state = self.state();
        let l1 = TriangleBlock { raw: state.translate(l1.raw.cast_mut()).get(), ..l1 };
        let u = UpperBlock { data: state.translate(u.data).get(), ..u };
        // SAFETY: ensured by the caller.
        state.queue_work(stream, move |_| unsafe { u.solve(&l1, cols) });
    }

    unsafe fn multiply(
        &self,
        stream: Stream,
        l: LowerBlock,
        u: UpperBlock,
        cols: Range<usize>,
        c: Matrix<*mut f64>,
    ) {
        if l.rows == 0 || cols.is_empty() {
            return;
        }
        let mut state = self.state();
        let l = LowerBlock { data: state.translate(l.data.cast_mut()).get(), ..l };
        let u = UpperBlock { data: state.translate(u.data).get(), ..u };
        let c = Matrix::new(state.translate(c.at), c.ld);
        // The calls have the same shapes as without a device, because the rounding of a BLAS depends on the shape.
        for first in (0..l.rows).step_by(l.row_unit()) {
            let (rows, cols) = (first..(first + l.row_unit()).min(l.rows), cols.clone());
            state.queue_work(stream, move |_| {
                // SAFETY: ensured by the caller.
                unsafe { l.multiply(&u, rows, cols, Matrix::new(c.at.get(), c.ld)) }
            });
        }
    }

    fn record(&self, stream: Stream) -> Event {
        let mut state = self.state();
        let event = Event(state.events);
        state.events += 1;
        state.ahead.insert(event);
        state.queue(stream, Queued::Record(event));
        event
    }

    fn wait(&self, stream: Stream, event: Event) {
        self.state().queue(stream, Queued::Wait(event));
    }

    fn has_passed(&self, event: Event) -> bool {
        let mut state = self.state();
        state.step();
        !state.ahead.contains(&event)
    }

    fn synchronize(&self, event: Event) {
        let mut state = self.state();
        while state.ahead.contains(&event) {
            assert!(state.step(), "the streams wait for each other");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use nix::sys::signal::Signal;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    use proptest::prelude::*;

    use super::*;
    use crate::device::Pin;

    const ALL: [Stream; STREAMS] = [Stream::Panel, Stream::Rows, Stream::Update];

    /// Numbers of operations, in the order in which they ran.
    type Log = Arc<Mutex<Vec<usize>>>;

    fn log_in(host: &Host, stream: Stream, log: &Log, number: usize) {
        let log = log.clone();
        host.state().queue_work(stream, move |_| log.lock().unwrap().push(number));
    }

    proptest! {
        /// Checks that a stream runs its operations in order. After a wait, a stream runs nothing before the event has passed.
        #[test]
        fn operations_run_in_an_order_that_streams_and_events_allow(
            seed in any::<u64>(),
            program in prop::collection::vec((0..STREAMS, prop::option::of(0..STREAMS)), 1..60),
        ) {
            let (host, log) = (Host::new(seed), Log::default());
            // Pairs of operations: the first must run before the second.
            let mut pairs = Vec::new();
            let mut of: [Vec<usize>; STREAMS] = Default::default();
            let mut before: [Vec<usize>; STREAMS] = Default::default();
            for (number, &(at, waits_for)) in program.iter().enumerate() {
                if let Some(other) = waits_for {
                    host.wait(ALL[at], host.record(ALL[other]));
                    before[at].extend(of[other].last());
                }
                before[at].extend(of[at].last());
                pairs.extend(before[at].iter().map(|&first| (first, number)));
                of[at].push(number);
                log_in(&host, ALL[at], &log, number);
            }
            let ends = ALL.map(|stream| host.record(stream));
            ends.iter().for_each(|&end| host.synchronize(end));
            prop_assert!(ends.iter().all(|&end| host.has_passed(end)));
            let log = log.lock().unwrap();
            let when = |number: usize| log.iter().position(|&at| at == number).unwrap();
            prop_assert_eq!(log.len(), program.len());
            for (first, second) in pairs {
                prop_assert!(when(first) < when(second), "{} {}: {:?}", first, second, log);
            }
        }

        /// Rows that are copied to the device and back are unchanged, for every leading dimension.
        #[test]
        fn rows_go_to_the_device_and_back(
            seed in any::<u64>(), rows in 1usize..9, cols in 1usize..9, pad in 0usize..3,
        ) {
            let host = Host::new(seed);
            let (len, ld) = (rows * cols, cols + pad);
            let memory = host.allocate(rows * ld).unwrap();
            let there = Matrix::new(memory.as_ptr(), ld);
            let from_there = Matrix::new(memory.as_ptr().cast_const(), ld);
            let here: Vec<f64> = (0..len).map(|at| at as f64).collect();
            let (mut all, mut turned) = (vec![-1.0; len], vec![-1.0; len]);
            for array in [here.as_ptr(), all.as_ptr(), turned.as_ptr()] {
                host.pin(NonNull::new(array.cast_mut()).unwrap(), len).unwrap();
            }
            let turn = (0..rows).map(|row| RowCopy { from: row, to: rows - 1 - row }).collect();
            let sent = Matrix::new(here.as_ptr(), cols);
            // SAFETY: the arrays live until both streams are finished.
            unsafe {
                host.copy_2d(Stream::Panel, sent, there, rows, cols);
                host.wait(Stream::Rows, host.record(Stream::Panel));
                let to = Matrix::new(turned.as_mut_ptr(), cols);
                host.copy_rows(Stream::Rows, from_there, to, turn, cols);
                host.copy_2d(Stream::Panel, from_there, Matrix::new(all.as_mut_ptr(), cols), rows, cols);
            }
            ALL.iter().for_each(|&stream| host.finish(stream));
            prop_assert_eq!(&all, &here);
            let rows: Vec<&[f64]> = here.chunks(cols).rev().collect();
            prop_assert_eq!(turned, rows.concat());
        }
    }

    #[test]
    fn seeds_pick_all_orders_of_two_streams() {
        let orders: BTreeSet<Vec<usize>> = (0..300)
            .map(|seed| {
                let (host, log) = (Host::new(seed), Log::default());
                for number in 0..4 {
                    log_in(&host, ALL[number % 2], &log, number);
                }
                ALL.iter().for_each(|&stream| host.finish(stream));
                let log = log.lock().unwrap();
                log.clone()
            })
            .collect();
        // There are six ways to merge two pairs.
        assert_eq!(orders.len(), 6, "{orders:?}");
    }

    #[test]
    fn memory_is_freed_after_the_operations_that_use_it() {
        for seed in 0..20 {
            let (host, mut got) = (Host::new(seed), [0.0; 3]);
            let memory = host.allocate(3).unwrap();
            let there = Matrix::new(memory.as_ptr(), 3);
            let sent = [1.0, 2.0, 3.0];
            for array in [sent.as_ptr(), got.as_ptr()] {
                host.pin(NonNull::new(array.cast_mut()).unwrap(), 3).unwrap();
            }
            // SAFETY: the arrays live until the memory is freed.
            unsafe {
                host.copy_2d(Stream::Panel, Matrix::new(sent.as_ptr(), 3), there, 1, 3);
                let from = Matrix::new(there.at.cast_const(), 3);
                host.copy_2d(Stream::Panel, from, Matrix::new(got.as_mut_ptr(), 3), 1, 3);
                host.free(memory);
            }
            assert_eq!(got, sent);
            assert!(host.state().memories.is_empty());
        }
    }

    #[test]
    fn a_pinning_ends_after_the_operations_that_use_it() {
        for seed in 0..20 {
            let device: Arc<dyn Device> = Arc::new(Host::new(seed));
            let memory = device.allocate(3).unwrap();
            let sent = [1.0, 2.0, 3.0];
            let mut got = [0.0; 3];
            let pin = |array: *const f64| {
                Pin::new(&device, NonNull::new(array.cast_mut()).unwrap(), 3).unwrap()
            };
            let pins = [pin(sent.as_ptr()), pin(got.as_ptr())];
            let there = Matrix::new(memory.as_ptr(), 3);
            // SAFETY: the arrays live until the memory is freed.
            unsafe {
                device.copy_2d(Stream::Rows, Matrix::new(sent.as_ptr(), 3), there, 1, 3);
                let from = Matrix::new(there.at.cast_const(), 3);
                device.copy_2d(Stream::Rows, from, Matrix::new(got.as_mut_ptr(), 3), 1, 3);
                drop(pins);
                assert_eq!(got, sent);
                device.free(memory);
            }
        }
    }

    /// The solver must not touch device memory: a process that touches it is ended by SIGSEGV.
    #[test]
    fn a_stray_access_to_device_memory_is_a_fault() {
        let host = Host::new(1);
        let memory = host.allocate(1000).unwrap();
        for at in [0, 999] {
            for writes in [false, true] {
                // SAFETY: the child calls nothing that depends on other threads.
                match unsafe { fork() }.unwrap() {
                    ForkResult::Child => {
                        // SAFETY: the address is within the mapping without access rights. The process ends at the access, or
                        // right behind it.
                        unsafe {
                            let address = memory.as_ptr().add(at);
                            if writes {
                                address.write_volatile(1.0);
                            } else {
                                std::hint::black_box(address.read_volatile());
                            }
                            libc::_exit(0);
                        }
                    }
                    ForkResult::Parent { child } => {
                        let status = waitpid(child, None).unwrap();
                        let fault = matches!(status, WaitStatus::Signaled(_, Signal::SIGSEGV, _));
                        assert!(fault, "{at} {writes}: {status:?}");
                    }
                }
            }
        }
    }
}
