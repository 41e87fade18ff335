//! Communicators, and the messages between the ranks of a communicator.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use mpi::ffi;

use super::check::{check, check_on};
use super::library::{self, Address, On, Transport};
use super::wire::{Wire, content};
use super::{loss, subset, turn};
use crate::base::clock::{self, Instant};
use crate::base::heartbeat;

/// Maximum number of elements in a message. Longer messages are divided, because MPI counts elements with a C int.
const CHUNK: usize = 1 << 30;

/// A communicator: an ordered set of ranks that exchange messages.
pub struct Comm {
    pub(super) on: On,
    rank: usize,
    size: usize,
    /// True if dropping this value frees the library's communicator. For a subset of ranks, true if dropping this value ends the
    /// subset.
    owned: bool,
    /// True if a thread that waits for messages sleeps between polls, and so leaves its core to a thread that computes.
    aside: bool,
    /// Number of each rank in the library's communicator. Present if the library itself has no communicator of these ranks
    /// ([`subset`]).
    pub(super) members: Option<Arc<[i32]>>,
}

/// A communicator for a thread other than the one that started MPI. Exists only if any thread may call the library.
///
/// Only one thread may use this communicator at a time. The communicator from which this value was made must live longer than
/// this value.
pub struct Elsewhere(Comm);

// SAFETY: to the library a communicator is a plain value. `Comm::elsewhere` returns one only if any thread may call the library.
unsafe impl Send for Elsewhere {}

/// Pause between two polls of a thread that waits while another thread computes. So the waiting thread takes no core from the
/// other.
const ASIDE: Duration = Duration::from_micros(20);

impl Borrow<Comm> for Elsewhere {
    fn borrow(&self) -> &Comm {
        &self.0
    }
}

/// Messages in transit. [`Pending::wait`] completes all messages, and [`Pending::test`] returns true when all are complete. If a
/// lost peer is survived, dropping this value ends messages that are still in transit. So this value must be dropped before the
/// buffers of its messages.
#[derive(Default)]
#[must_use = "wait for messages in transit, or test them"]
pub struct Pending {
    requests: Vec<ffi::MPI_Request>,
    /// Rank at the other end of each request, by the rank's number in the library's communicator.
    peers: Vec<i32>,
    /// Communicator of all the messages.
    on: Option<On>,
    /// True if a message failed within a step that the rank must not leave. [`Pending::test`] then never returns true.
    failed: bool,
}

/// Returns whether MPI was started so that any thread may call it.
pub(super) fn any_thread_may_call() -> bool {
    if library::simulated().is_some() {
        return false;
    }
    let mut provided = 0;
    // SAFETY: MPI is initialised, because there is a communicator. The level of threads is a constant of the library.
    unsafe {
        check(ffi::MPI_Query_thread(&mut provided), "reading which threads may call MPI");
        provided >= ffi::RSMPI_THREAD_MULTIPLE
    }
}

/// Aborts the process when dropped: a panic must not free a buffer that messages still write to.
struct Landing;

impl Drop for Landing {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Comm {
    /// Wraps a communicator that other code frees.
    ///
    /// # Safety
    /// `raw` must be a valid communicator for as long as the value lives.
    pub(super) unsafe fn borrowed(raw: ffi::MPI_Comm) -> Self {
        unsafe { Self::wrap(raw, false) }
    }

    /// Makes a communicator of the ranks of `raw` that are `members`, in this order. This rank must be one of the members. Other
    /// ranks of `raw` take no part.
    ///
    /// `raw` must be a valid communicator for as long as the value lives.
    pub(super) unsafe fn of_members(raw: ffi::MPI_Comm, members: Arc<[i32]>) -> Self {
        let whole = unsafe { Self::wrap(raw, false) };
        whole.among(members, 0).expect("this rank is one of the members")
    }

    /// Makes a communicator of `members`, by their numbers in the library's communicator. `series` distinguishes its messages
    /// from those of other sets of ranks. Returns `None` if this rank is not a member.
    pub(super) fn among(&self, members: Arc<[i32]>, series: u64) -> Option<Self> {
        let me = self.peer(self.rank);
        let rank = members.iter().position(|&member| member == me)?;
        let on = On { raw: self.on.raw, series };
        let (size, owned) = (members.len(), series > 0);
        Some(Self { on, rank, size, owned, aside: false, members: Some(members) })
    }

    /// Returns this communicator for use by another thread. `None` if MPI was not started so that any thread may call it.
    pub fn elsewhere(&self) -> Option<Elsewhere> {
        any_thread_may_call().then(|| {
            let mut comm = self.alias();
            comm.aside = true;
            Elsewhere(comm)
        })
    }

    /// Returns a copy of this communicator that does not own the library's communicator.
    pub(super) fn alias(&self) -> Self {
        let members = self.members.clone();
        Self { on: self.on, rank: self.rank, size: self.size, owned: false, aside: false, members }
    }

    /// Returns the number of a rank in the library's communicator.
    pub(super) fn peer(&self, rank: usize) -> i32 {
        self.members.as_ref().map_or(rank as i32, |members| members[rank])
    }

    /// Returns the tag in the library's communicator for `tag` in this communicator.
    fn tag(&self, tag: i32) -> i32 {
        subset::tag(self.on.series, tag)
    }

    /// Returns the address of messages to or from a rank.
    fn address(&self, rank: usize, tag: i32) -> Address {
        Address { raw: self.on.raw, peer: self.peer(rank), tag: self.tag(tag) }
    }

    /// Returns whether each message must be waited for until it ends, even if its communicator is revoked.
    fn one_by_one() -> bool {
        loss::unwinds() || library::simulated().is_some()
    }

    pub(super) unsafe fn wrap(raw: ffi::MPI_Comm, owned: bool) -> Self {
        if let Some(transport) = library::simulated() {
            return Self::simulated(transport, raw);
        }
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the caller ensures that `raw` is a valid communicator.
        unsafe {
            check(ffi::MPI_Comm_rank(raw, &mut rank), "reading the number of this rank");
            check(ffi::MPI_Comm_size(raw, &mut size), "reading the number of ranks");
        }
        let (on, rank, size) = (On { raw, series: 0 }, rank as usize, size as usize);
        Self { on, rank, size, owned, aside: false, members: None }
    }

    /// Wraps a communicator of the transport of a simulation. Its ranks are in the order of their numbers in the whole job.
    fn simulated(transport: &dyn Transport, raw: ffi::MPI_Comm) -> Self {
        let size = transport.size(library::number(raw));
        let launched = transport.places(library::ALL, library::number(raw));
        let me = transport.rank() as i32;
        let rank = launched.iter().position(|&number| number == me);
        let rank = rank.expect("this rank is in its communicator");
        let on = On { raw, series: 0 };
        Self { on, rank, size, owned: false, aside: false, members: None }
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Sends `data` to rank `to` and returns when `data` may be reused.
    pub fn send<T: Wire>(&self, data: &[T], to: usize, tag: i32) {
        if Self::one_by_one() {
            return self.exchange::<T>(Some((data, to)), None, tag);
        }
        for part in parts(data.len()).map(|part| &data[part]) {
            // SAFETY: the slice is valid for the given length.
            let rc = turn::with(|| unsafe {
                ffi::MPI_Send(
                    part.as_ptr().cast(),
                    part.len() as i32,
                    T::datatype(),
                    self.peer(to),
                    self.tag(tag),
                    self.on.raw,
                )
            });
            check(rc, "sending a message");
        }
    }

    /// Waits for a message from rank `from` and stores it in `data`.
    pub fn recv<T: Wire>(&self, data: &mut [T], from: usize, tag: i32) {
        if Self::one_by_one() {
            return self.exchange::<T>(None, Some((data, from)), tag);
        }
        for part in chunks_mut(data) {
            // SAFETY: the slice is valid and exclusively ours for the given length.
            let rc = turn::with(|| unsafe {
                ffi::MPI_Recv(
                    part.as_mut_ptr().cast(),
                    part.len() as i32,
                    T::datatype(),
                    self.peer(from),
                    self.tag(tag),
                    self.on.raw,
                    ffi::RSMPI_STATUS_IGNORE,
                )
            });
            check(rc, "receiving a message");
        }
    }

    /// Minimum pause of [`Self::await_word`] between two polls. Pass it as `most`, too, if other ranks wait for the receiver. The
    /// receiver then finds its message after one such pause.
    pub const PAUSE: Duration = Duration::from_millis(2);

    /// Waits until a message from `from` with this tag can be received. Sleeps meanwhile, so that an idle rank leaves the
    /// processor to other processes. The longer the rank has waited, the longer it sleeps, up to `most`.
    pub fn await_word(&self, from: usize, tag: i32, most: Duration) {
        let began = Instant::now();
        while !self.has_word(from, tag) {
            self.attend();
            // The rank reports to the supervisor that it waits.
            heartbeat::wait();
            clock::sleep((began.elapsed() / 16).clamp(Self::PAUSE, most));
        }
    }

    /// Looks for lost ranks. If losses are survived and a rank is lost, unwinds to [`World::attempt`](super::World::attempt).
    /// Must be called repeatedly while a rank waits for an event other than a message.
    pub fn attend(&self) {
        if loss::unwinds() {
            loss::look(self.on);
        }
    }

    /// Returns whether a message from `from` with this tag can be received.
    pub fn has_word(&self, from: usize, tag: i32) -> bool {
        let mut there = false;
        check(library::has_word(self.address(from, tag), &mut there), "probing for a message");
        there
    }

    /// Sends `out` to one rank while receiving `into` from another rank. `out` and `into` are each a buffer and a rank, or `None`
    /// for no message.
    pub fn exchange<T: Wire>(
        &self,
        out: Option<(&[T], usize)>,
        into: Option<(&mut [T], usize)>,
        tag: i32,
    ) {
        self.exchange_while(out, into, tag, || ());
    }

    /// Sends `out` to one rank and receives `into` from another rank, and runs `work` while the messages are in transit. `out`
    /// and `into` are each a buffer and a rank, or `None` for no message.
    pub fn exchange_while<T: Wire>(
        &self,
        out: Option<(&[T], usize)>,
        into: Option<(&mut [T], usize)>,
        tag: i32,
        work: impl FnOnce(),
    ) {
        let mut pending = Pending::default();
        if let Some((data, from)) = into {
            // SAFETY: `data` stays borrowed by this call until the wait below.
            unsafe { self.start_recv(data.as_mut_ptr(), data.len(), from, tag, &mut pending) };
        }
        if let Some((data, to)) = out {
            // SAFETY: `data` stays borrowed by this call until the wait below.
            unsafe { self.start_send(data.as_ptr(), data.len(), to, tag, &mut pending) };
        }
        let landed = Landing;
        work();
        std::mem::forget(landed);
        if !self.aside {
            return pending.wait();
        }
        while !pending.test() {
            clock::sleep(ASIDE);
        }
    }

    /// Begins to send `len` elements at `data`.
    ///
    /// # Safety
    /// The elements must stay valid and unchanged until `pending` has completed.
    pub unsafe fn start_send<T: Wire>(
        &self,
        data: *const T,
        len: usize,
        to: usize,
        tag: i32,
        pending: &mut Pending,
    ) {
        for part in parts(len) {
            let (content, address) = (content::<T>(part.len()), self.address(to, tag));
            // SAFETY: the part is within the range that the caller ensures.
            let begun =
                unsafe { library::start_send(data.add(part.start).cast(), content, address) };
            pending.push(begun, self.peer(to), self.on, "beginning to send a message");
        }
    }

    /// Begins to receive `len` elements at `data`.
    ///
    /// # Safety
    /// The elements must stay valid until `pending` has completed, and no other code may touch them.
    pub unsafe fn start_recv<T: Wire>(
        &self,
        data: *mut T,
        len: usize,
        from: usize,
        tag: i32,
        pending: &mut Pending,
    ) {
        for part in parts(len) {
            let (content, address) = (content::<T>(part.len()), self.address(from, tag));
            // SAFETY: the part is within the range that the caller ensures.
            let begun =
                unsafe { library::start_recv(data.add(part.start).cast(), content, address) };
            pending.push(begun, self.peer(from), self.on, "beginning to receive a message");
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        if self.on.series > 0 {
            subset::end(self.on);
        } else if !std::thread::panicking() {
            // While a thread unwinds, the communicator is not freed: all of its ranks must free it together.
            // SAFETY: a split of this program made the communicator, which is not used afterwards.
            turn::with(|| unsafe { ffi::MPI_Comm_free(&mut self.on.raw) });
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(on) = self.on.filter(|_| loss::unwinds() && !self.requests.is_empty()) {
            loss::abandon(on.raw, &mut self.requests, &self.peers);
        }
    }
}

impl Pending {
    /// Adds the request of a message to or from `peer`, which the call `what` has begun or refused.
    fn push(&mut self, begun: Result<ffi::MPI_Request, i32>, peer: i32, on: On, what: &str) {
        debug_assert!(self.requests.is_empty() || self.on == Some(on));
        self.peers.truncate(self.requests.len());
        match begun {
            Ok(request) => {
                self.requests.push(request);
                self.peers.push(peer);
            }
            Err(rc) => self.failed |= !check_on(on, rc, what),
        }
        self.on = Some(on);
    }

    /// Waits until all messages have completed. If a message has failed because of a lost rank, leaves the attempt as soon as no
    /// step is in progress.
    pub fn wait(&mut self) {
        let Some(on) = self.on else { return };
        let survives = loss::unwinds();
        if survives {
            loss::wait_through(on, &self.requests);
        }
        if !self.requests.is_empty() {
            let rc = library::wait_all(&mut self.requests, survives);
            self.failed |= !check_on(on, rc, "waiting for messages");
            self.requests.clear();
        }
        if self.failed {
            loss::look_until_left(on);
        }
    }

    /// Returns whether all messages have completed and no message has failed. Lets MPI make progress.
    pub fn test(&mut self) -> bool {
        let Some(on) = self.on.filter(|_| self.failed || !self.requests.is_empty()) else {
            return true;
        };
        let (survives, mut over) = (loss::unwinds(), false);
        let through = |&request: &ffi::MPI_Request| library::is_through(request);
        if survives && (self.failed || !self.requests.iter().all(through)) {
            loss::look(on);
            return false;
        }
        let rc = library::test_all(&mut self.requests, survives, &mut over);
        self.failed |= !check_on(on, rc, "testing messages");
        if over {
            self.requests.clear();
        }
        over && !self.failed
    }
}

/// Divides `len` elements into parts that MPI can count. No elements give one empty part, because an empty message is sent, too.
pub(super) fn parts(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len.max(1)).step_by(CHUNK).map(move |first| first..len.min(first + CHUNK))
}

/// Returns `data` in parts that MPI can count. Empty data give one empty part, because an empty message is received, too.
pub(super) fn chunks_mut<T>(data: &mut [T]) -> Box<dyn Iterator<Item = &mut [T]> + '_> {
    if data.is_empty() { Box::new(std::iter::once(data)) } else { Box::new(data.chunks_mut(CHUNK)) }
}
