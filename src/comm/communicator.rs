//! A communicator with its messages and collectives, for the three element types that are sent.

use std::sync::Arc;
use std::time::Duration;

use mpi::ffi;

use super::abort::{check, check_on, die};
use super::library::{self, Address, Content, Transport};
use super::{by_messages, loss, subset, turn};
use crate::base::clock::{self, Instant};
use crate::base::heartbeat;

/// Maximum number of elements in a message: longer ones are divided, because MPI counts elements with a C int.
const CHUNK: usize = 1 << 30;

/// Element types of messages.
pub trait Wire: Copy + Default + 'static {
    fn datatype() -> ffi::MPI_Datatype;

    /// Combines two elements as a reduction does.
    fn combined(op: Reduce, one: Self, other: Self) -> Self;
}

/// Returns the content of a message of `count` elements.
pub(super) fn content<T: Wire>(count: usize) -> Content {
    Content { count, each: size_of::<T>(), datatype: T::datatype() }
}

impl Wire for f64 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: a constant of the library.
        unsafe { ffi::RSMPI_DOUBLE }
    }

    fn combined(op: Reduce, one: Self, other: Self) -> Self {
        match op {
            Reduce::Sum => one + other,
            Reduce::Max => one.max(other),
            Reduce::Min => one.min(other),
            Reduce::Xor => unreachable!("MPI has no exclusive or of doubles"),
        }
    }
}

impl Wire for u64 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: a constant of the library.
        unsafe { ffi::RSMPI_UINT64_T }
    }

    fn combined(op: Reduce, one: Self, other: Self) -> Self {
        op.of_integers(one, other)
    }
}

impl Wire for u8 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: a constant of the library.
        unsafe { ffi::RSMPI_UINT8_T }
    }

    fn combined(op: Reduce, one: Self, other: Self) -> Self {
        op.of_integers(one, other)
    }
}

/// Operators of a reduction.
///
/// `Max` and `Min` of `u64` are correct only below 2^63: MPICH 4.0 compares them as signed numbers.
#[derive(Clone, Copy, Debug)]
pub enum Reduce {
    Sum,
    Max,
    Min,
    Xor,
}

impl Reduce {
    fn of_integers<T>(self, one: T, other: T) -> T
    where
        T: Ord + std::ops::Add<Output = T> + std::ops::BitXor<Output = T>,
    {
        match self {
            Reduce::Sum => one + other,
            Reduce::Max => one.max(other),
            Reduce::Min => one.min(other),
            Reduce::Xor => one ^ other,
        }
    }

    fn op(self) -> ffi::MPI_Op {
        // SAFETY: constants of the library.
        unsafe {
            match self {
                Reduce::Sum => ffi::RSMPI_SUM,
                Reduce::Max => ffi::RSMPI_MAX,
                Reduce::Min => ffi::RSMPI_MIN,
                Reduce::Xor => ffi::RSMPI_BXOR,
            }
        }
    }
}

/// A communicator: an ordered set of ranks that exchange messages.
pub struct Comm {
    on: On,
    rank: usize,
    size: usize,
    /// True if the library's communicator is freed with this value.
    owned: bool,
    /// Ranks in the library's communicator. Present if the library itself has no communicator of these ranks ([`subset`]).
    members: Option<Arc<[i32]>>,
}

/// Communicator and series of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct On {
    /// Communicator of the library.
    pub raw: ffi::MPI_Comm,
    /// Number that distinguishes sets of ranks on the same communicator; 0 for all of its ranks.
    pub series: u64,
}

/// A communicator for a thread other than the one that started MPI. Exists only if the library lets any thread call it.
///
/// Only one thread may use it at a time, and it must be kept until its use has ended.
pub struct Elsewhere(Comm);

// SAFETY: to the library a communicator is a plain value, and `Comm::elsewhere` returns one only if any thread may use it.
unsafe impl Send for Elsewhere {}

/// Pause between two polls of a thread that waits while another one computes, so that it takes no core from that thread.
const ASIDE: Duration = Duration::from_micros(20);

impl Elsewhere {
    pub fn comm(&self) -> &Comm {
        &self.0
    }

    /// Exchanges messages as [`Comm::exchange_while`] does, but leaves the core to others while nothing arrives.
    pub fn exchange_while<T: Wire>(
        &self,
        out: Option<(&[T], usize)>,
        into: Option<(&mut [T], usize)>,
        tag: i32,
        work: impl FnOnce(),
    ) {
        self.0.exchange_with(out, into, tag, work, |pending| {
            while !pending.test() {
                clock::sleep(ASIDE);
            }
        });
    }
}

/// Messages in transit, completed by [`Pending::wait`] or by [`Pending::test`] returning true. If a lost peer is survived, they
/// end at the latest when this is dropped. So their buffers must be dropped later.
#[derive(Default)]
#[must_use = "a message under way has to be waited for"]
pub struct Pending {
    requests: Vec<ffi::MPI_Request>,
    /// Rank at the other end of each request, by its number in the library's communicator.
    peers: Vec<i32>,
    /// Communicator of all the messages.
    on: Option<On>,
    /// True if a message failed within a step that the rank must not leave. The messages then never complete.
    failed: bool,
}

/// Returns whether MPI was started so that any thread may call it.
pub(super) fn any_thread_may_call() -> bool {
    if library::simulated().is_some() {
        return false;
    }
    let mut provided = 0;
    // SAFETY: MPI is initialised, or there would be no communicator; a constant of the library.
    unsafe {
        check(ffi::MPI_Query_thread(&mut provided), "asking which threads may call MPI");
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

    /// Makes a communicator of the ranks of `raw` that are `members`, in that order. This rank must be one of them. Other ranks
    /// of `raw` take no part.
    ///
    /// # Safety
    /// As for [`Self::borrowed`].
    pub(super) unsafe fn of_members(raw: ffi::MPI_Comm, members: Arc<[i32]>) -> Self {
        let whole = unsafe { Self::wrap(raw, false) };
        whole.among(members, 0).expect("asked for by one of them")
    }

    /// Makes a communicator of these ranks of the library's communicator. Returns `None` if this rank is not one of them.
    fn among(&self, members: Arc<[i32]>, series: u64) -> Option<Self> {
        let me = self.peer(self.rank);
        let rank = members.iter().position(|&member| member == me)?;
        let on = On { raw: self.on.raw, series };
        Some(Self { on, rank, size: members.len(), owned: series > 0, members: Some(members) })
    }

    /// Returns the same communicator for another thread. `None` if the library was not started for that, or does not let any
    /// thread call it.
    pub fn elsewhere(&self) -> Option<Elsewhere> {
        any_thread_may_call().then(|| Elsewhere(self.alias()))
    }

    /// Returns the same communicator without its ownership.
    pub(super) fn alias(&self) -> Self {
        let members = self.members.clone();
        Self { on: self.on, rank: self.rank, size: self.size, owned: false, members }
    }

    pub(super) fn on(&self) -> On {
        self.on
    }

    /// Returns the number of a rank in the library's communicator.
    pub(super) fn peer(&self, rank: usize) -> i32 {
        self.members.as_ref().map_or(rank as i32, |members| members[rank])
    }

    /// Returns the tag that is used in the library's communicator.
    fn tag(&self, tag: i32) -> i32 {
        subset::tag(self.on.series, tag)
    }

    /// Returns the address of messages to or from a rank.
    fn address(&self, rank: usize, tag: i32) -> Address {
        Address { raw: self.on.raw, peer: self.peer(rank), tag: self.tag(tag) }
    }

    /// Returns whether single messages must be waited for until they end, even if their communicator is revoked.
    fn one_by_one() -> bool {
        loss::unwinds() || library::simulated().is_some()
    }

    /// Returns whether collectives must use single messages. That is so if the library has no communicator of these ranks, if a
    /// lost rank is survived, or if there is no library.
    fn by_messages(&self) -> bool {
        self.members.is_some() || loss::unwinds() || library::simulated().is_some()
    }

    unsafe fn wrap(raw: ffi::MPI_Comm, owned: bool) -> Self {
        if let Some(transport) = library::simulated() {
            return Self::simulated(transport, raw);
        }
        let (mut rank, mut size) = (0, 0);
        // SAFETY: ensured by the caller.
        unsafe {
            check(ffi::MPI_Comm_rank(raw, &mut rank), "asking for the rank");
            check(ffi::MPI_Comm_size(raw, &mut size), "asking for the number of ranks");
        }
        let on = On { raw, series: 0 };
        Self { on, rank: rank as usize, size: size as usize, owned, members: None }
    }

    /// Returns all ranks of a communicator of the transport, in the order of their original numbers.
    fn simulated(transport: &dyn Transport, raw: ffi::MPI_Comm) -> Self {
        let size = transport.size(library::number(raw));
        let launched = transport.places(library::ALL, library::number(raw));
        let me = transport.rank() as i32;
        let rank = launched.iter().position(|&number| number == me);
        let rank = rank.expect("this rank is one of them");
        Self { on: On { raw, series: 0 }, rank, size, owned: false, members: None }
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Splits into communicators of equal `colour`, ordered by `key`. A rank without a colour is in none and gets `None`.
    pub fn split(&self, colour: Option<usize>, key: usize) -> Option<Comm> {
        if self.by_messages() {
            return self.split_by_messages(colour, key);
        }
        // SAFETY: all ranks of the communicator call this together; the result is checked.
        unsafe {
            let mut raw = ffi::RSMPI_COMM_NULL;
            let colour = colour.map_or(ffi::RSMPI_UNDEFINED, |c| c as i32);
            let rc = turn::with(|| ffi::MPI_Comm_split(self.on.raw, colour, key as i32, &mut raw));
            check(rc, "splitting a communicator");
            (colour != ffi::RSMPI_UNDEFINED).then(|| Self::wrap(raw, true))
        }
    }

    fn split_by_messages(&self, colour: Option<usize>, key: usize) -> Option<Comm> {
        let free = subset::free(self.on.raw);
        let mine = [colour.map_or(0, |colour| colour as u64 + 1), key as u64, free];
        let all = self.all_gather(&mine);
        let asked: Vec<subset::Asked> = all
            .chunks_exact(mine.len())
            .map(|words| subset::Asked { colour: words[0], key: words[1], free: words[2] })
            .collect();
        let series = subset::series(&asked);
        let members = subset::members(&asked, self.rank).into_iter().map(|rank| self.peer(rank));
        let made = colour.and_then(|_| self.among(members.collect(), series))?;
        subset::begin(made.on);
        Some(made)
    }

    /// Returns a communicator of the ranks that share memory with this one.
    pub fn split_by_node(&self) -> Comm {
        if self.by_messages() {
            let node = loss::own_node();
            return self.split(Some(node), self.rank).expect("every rank has a node");
        }
        // SAFETY: as above.
        unsafe {
            let mut raw = ffi::RSMPI_COMM_NULL;
            let rc = turn::with(|| {
                ffi::MPI_Comm_split_type(
                    self.on.raw,
                    ffi::RSMPI_COMM_TYPE_SHARED,
                    self.rank as i32,
                    ffi::RSMPI_INFO_NULL,
                    &mut raw,
                )
            });
            check(rc, "finding the ranks of this node");
            Self::wrap(raw, true)
        }
    }

    /// Sends `data` to `to` and returns when `data` may be reused.
    pub fn send<T: Wire>(&self, data: &[T], to: usize, tag: i32) {
        if Self::one_by_one() {
            return self.exchange::<T>(Some((data, to)), None, tag);
        }
        for part in chunks(data) {
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

    /// Receives `data` from `from`.
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

    /// Minimum pause between two polls for a message. Also the right `most` if other ranks wait for the receiver afterwards.
    pub const PAUSE: Duration = Duration::from_millis(2);

    /// Waits until a message from `from` with that tag can be received. Sleeps meanwhile, so that an idle rank leaves the
    /// processor to others. The longer it has waited, the longer it sleeps, up to `most`.
    pub fn await_word(&self, from: usize, tag: i32, most: Duration) {
        let began = Instant::now();
        while !self.has_word(from, tag) {
            self.attend();
            // A heartbeat for the supervisor.
            heartbeat::wait();
            clock::sleep((began.elapsed() / 16).clamp(Self::PAUSE, most));
        }
    }

    /// Must be called repeatedly while a rank waits for an event other than a message. If a lost rank is survived, this leaves
    /// the current work as soon as one is lost.
    pub fn attend(&self) {
        if loss::unwinds() {
            loss::look(self.on);
        }
    }

    /// Returns whether a message from `from` with that tag can be received.
    pub fn has_word(&self, from: usize, tag: i32) -> bool {
        let mut there = false;
        check(library::has_word(self.address(from, tag), &mut there), "waiting for a word");
        there
    }

    /// Sends to one rank while receiving from another.
    pub fn exchange<T: Wire>(
        &self,
        out: Option<(&[T], usize)>,
        into: Option<(&mut [T], usize)>,
        tag: i32,
    ) {
        self.exchange_while(out, into, tag, || ());
    }

    /// Exchanges messages as [`Self::exchange`] does, and runs `work` while they are in transit.
    pub fn exchange_while<T: Wire>(
        &self,
        out: Option<(&[T], usize)>,
        into: Option<(&mut [T], usize)>,
        tag: i32,
        work: impl FnOnce(),
    ) {
        self.exchange_with(out, into, tag, work, Pending::wait);
    }

    /// Exchanges messages as [`Self::exchange_while`] does, and waits by `wait`, which returns when all have completed.
    fn exchange_with<T: Wire>(
        &self,
        out: Option<(&[T], usize)>,
        into: Option<(&mut [T], usize)>,
        tag: i32,
        work: impl FnOnce(),
        wait: impl FnOnce(&mut Pending),
    ) {
        let mut pending = Pending::default();
        if let Some((data, from)) = into {
            // SAFETY: `data` stays borrowed by this call until the wait below.
            unsafe { self.start_recv(data.as_mut_ptr(), data.len(), from, tag, &mut pending) };
        }
        if let Some((data, to)) = out {
            // SAFETY: as above.
            unsafe { self.start_send(data.as_ptr(), data.len(), to, tag, &mut pending) };
        }
        let landed = Landing;
        work();
        std::mem::forget(landed);
        wait(&mut pending);
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
        let mut done = 0;
        loop {
            let part = (len - done).min(CHUNK);
            let mut request = library::handle(0);
            // SAFETY: within the range that the caller ensures.
            let rc = unsafe {
                library::start_send(
                    data.add(done).cast(),
                    content::<T>(part),
                    self.address(to, tag),
                    &mut request,
                )
            };
            let begun = check_on(self.on, rc, "beginning to send a message");
            pending.push(begun.then_some(request), self.peer(to), self.on);
            done += part;
            if done == len {
                return;
            }
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
        let mut done = 0;
        loop {
            let part = (len - done).min(CHUNK);
            let mut request = library::handle(0);
            // SAFETY: within the range that the caller ensures.
            let rc = unsafe {
                library::start_recv(
                    data.add(done).cast(),
                    content::<T>(part),
                    self.address(from, tag),
                    &mut request,
                )
            };
            let begun = check_on(self.on, rc, "beginning to receive a message");
            pending.push(begun.then_some(request), self.peer(from), self.on);
            done += part;
            if done == len {
                return;
            }
        }
    }

    /// Copies `data` of `root` to all ranks.
    pub fn broadcast<T: Wire>(&self, data: &mut [T], root: usize) {
        // All ranks know the length. Open MPI refuses the address of an empty slice.
        if data.is_empty() {
            return;
        }
        if self.by_messages() {
            return by_messages::broadcast(self, data, root);
        }
        for part in chunks_mut(data) {
            // SAFETY: the slice is valid and exclusively ours for the given length.
            let rc = turn::with(|| unsafe {
                ffi::MPI_Bcast(
                    part.as_mut_ptr().cast(),
                    part.len() as i32,
                    T::datatype(),
                    root as i32,
                    self.on.raw,
                )
            });
            check(rc, "broadcasting");
        }
    }

    /// Copies bytes of `root` to all ranks, as [`Comm::broadcast`] does. Only `root` needs to know their number.
    pub fn broadcast_bytes(&self, data: &mut Vec<u8>, root: usize) {
        let mut len = [data.len() as u64];
        self.broadcast(&mut len, root);
        data.resize(len[0] as usize, 0);
        self.broadcast(data, root);
    }

    /// Combines `data` of all ranks element by element; all ranks get the result.
    pub fn all_reduce<T: Wire>(&self, data: &mut [T], op: Reduce) {
        if self.size == 1 || data.is_empty() {
            return;
        }
        if self.by_messages() {
            return by_messages::all_reduce(self, data, op);
        }
        for part in chunks_mut(data) {
            let own = part.to_vec();
            // SAFETY: two separate buffers of the same length.
            let rc = turn::with(|| unsafe {
                ffi::MPI_Allreduce(
                    own.as_ptr().cast(),
                    part.as_mut_ptr().cast(),
                    part.len() as i32,
                    T::datatype(),
                    op.op(),
                    self.on.raw,
                )
            });
            check(rc, "combining values of all ranks");
        }
    }

    /// Combines `data` of all ranks element by element into `result`, which only `root` needs.
    pub fn reduce<T: Wire>(&self, data: &[T], result: &mut [T], root: usize, op: Reduce) {
        assert!(self.rank != root || result.len() == data.len());
        if self.by_messages() {
            return by_messages::reduce(self, data, result, root, op);
        }
        let mut done = 0;
        loop {
            let part = (data.len() - done).min(CHUNK);
            let into = if self.rank == root {
                result[done..done + part].as_mut_ptr()
            } else {
                std::ptr::null_mut()
            };
            // SAFETY: both ranges were just checked; ranks other than the root pass no result.
            let rc = turn::with(|| unsafe {
                ffi::MPI_Reduce(
                    data[done..done + part].as_ptr().cast(),
                    into.cast(),
                    part as i32,
                    T::datatype(),
                    op.op(),
                    root as i32,
                    self.on.raw,
                )
            });
            check(rc, "combining values of all ranks at one");
            done += part;
            if done == data.len() {
                return;
            }
        }
    }

    /// Returns `data` of all ranks, of equal length, one after the other by rank, on all ranks.
    pub fn all_gather<T: Wire>(&self, data: &[T]) -> Vec<T> {
        let mut all = vec![T::default(); data.len() * self.size];
        if self.by_messages() {
            by_messages::gather(self, data, &mut all, |rank| rank * data.len());
            return all;
        }
        // SAFETY: the receive buffer has space for `size` times the data of each rank.
        let rc = turn::with(|| unsafe {
            ffi::MPI_Allgather(
                data.as_ptr().cast(),
                data.len() as i32,
                T::datatype(),
                all.as_mut_ptr().cast(),
                data.len() as i32,
                T::datatype(),
                self.on.raw,
            )
        });
        check(rc, "gathering values of all ranks");
        all
    }

    /// Returns the bytes of all ranks, of any length, by rank, on all ranks. Bytes are only padded to whole words: one rank may
    /// have much data and the others none.
    pub fn all_gather_bytes(&self, mine: &[u8]) -> Vec<Vec<u8>> {
        let lengths = self.all_gather(&[mine.len() as u64]);
        let total: usize = lengths.iter().map(|&length| words(length)).sum();
        if total > i32::MAX as usize {
            die(6, &format!("all ranks together say {total} words, more than MPI can count"));
        }
        let mut at = 0;
        let (mut counts, mut places) = (Vec::new(), Vec::new());
        for &length in &lengths {
            counts.push(words(length) as i32);
            places.push(at);
            at += words(length) as i32;
        }
        let mut padded = mine.to_vec();
        padded.resize(words(mine.len() as u64) * WORD, 0);
        let own: Vec<u64> = padded
            .chunks_exact(WORD)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
            .collect();
        let mut all = vec![0u64; total];
        if self.by_messages() {
            by_messages::gather(self, &own, &mut all, |rank| places[rank] as usize);
            return cut(&all, &lengths, &places);
        }
        // SAFETY: counts and places are those of `all`, and the count of each rank is the number of words that it sends.
        let rc = turn::with(|| unsafe {
            ffi::MPI_Allgatherv(
                own.as_ptr().cast(),
                own.len() as i32,
                u64::datatype(),
                all.as_mut_ptr().cast(),
                counts.as_ptr(),
                places.as_ptr(),
                u64::datatype(),
                self.on.raw,
            )
        });
        check(rc, "gathering what all ranks say");
        cut(&all, &lengths, &places)
    }

    /// Waits until all ranks have come.
    pub fn barrier(&self) {
        if self.by_messages() {
            return by_messages::barrier(self);
        }
        // SAFETY: a valid communicator.
        check(turn::with(|| unsafe { ffi::MPI_Barrier(self.on.raw) }), "waiting for all ranks");
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
            // SAFETY: made by our own split and not used afterwards.
            turn::with(|| unsafe { ffi::MPI_Comm_free(&mut self.on.raw) });
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(on) = self.survives().filter(|_| !self.requests.is_empty()) {
            loss::abandon(on.raw, &mut self.requests, &self.peers);
        }
    }
}

impl Pending {
    /// Returns the communicator of the messages if a lost peer is survived.
    fn survives(&self) -> Option<On> {
        self.on.filter(|_| loss::unwinds())
    }

    /// Adds a message that was begun; `None` if the library has refused it.
    fn push(&mut self, request: Option<ffi::MPI_Request>, peer: i32, on: On) {
        debug_assert!(self.requests.is_empty() || self.on == Some(on));
        self.peers.truncate(self.requests.len());
        self.failed |= request.is_none();
        if let Some(request) = request {
            self.requests.push(request);
            self.peers.push(peer);
        }
        self.on = Some(on);
    }

    /// Waits until all messages have completed. If one has failed, leaves the attempt as soon as no step is in progress.
    pub fn wait(&mut self) {
        if let Some(on) = self.survives() {
            loss::wait_through(on, &self.requests);
        }
        if !self.requests.is_empty() {
            let survives = self.survives().is_some();
            let rc = library::wait_all(&mut self.requests, survives);
            self.failed |= !self.check(rc, "waiting for messages");
            self.requests.clear();
        }
        if let Some(on) = self.on.filter(|_| self.failed) {
            loss::look_until_left(on);
        }
    }

    /// Returns whether all messages have completed and none has failed. Lets MPI make progress.
    pub fn test(&mut self) -> bool {
        if self.requests.is_empty() && !self.failed {
            return true;
        }
        if let Some(on) = self.survives()
            && (self.failed || !self.requests.iter().all(|&request| library::is_through(request)))
        {
            loss::look(on);
            return false;
        }
        let (survives, mut over) = (self.survives().is_some(), false);
        let rc = library::test_all(&mut self.requests, survives, &mut over);
        self.failed |= !self.check(rc, "looking after messages");
        if over {
            self.requests.clear();
        }
        over && !self.failed
    }

    /// Checks `rc` as [`check_on`] does if a lost peer is survived, else as [`check`] does.
    fn check(&self, rc: i32, what: &str) -> bool {
        match self.survives() {
            Some(on) => check_on(on, rc, what),
            None => {
                check(rc, what);
                true
            }
        }
    }
}

/// Bytes per word; bytes are sent as whole words.
const WORD: usize = 8;

fn words(bytes: u64) -> usize {
    (bytes as usize).div_ceil(WORD)
}

/// Returns the bytes of each rank, from words that begin at `places`.
fn cut(all: &[u64], lengths: &[u64], places: &[i32]) -> Vec<Vec<u8>> {
    let pieces = lengths.iter().zip(places).map(|(&length, &place)| {
        let piece = &all[place as usize..][..words(length)];
        let mut bytes: Vec<u8> = piece.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.truncate(length as usize);
        bytes
    });
    pieces.collect()
}

/// Returns `data` in parts that MPI can count. Empty data give one empty part, because an empty message is sent, too.
fn chunks<T>(data: &[T]) -> impl Iterator<Item = &[T]> {
    let empty = data.is_empty().then_some(data);
    empty.into_iter().chain(data.chunks(CHUNK))
}

fn chunks_mut<T>(data: &mut [T]) -> Box<dyn Iterator<Item = &mut [T]> + '_> {
    if data.is_empty() { Box::new(std::iter::once(data)) } else { Box::new(data.chunks_mut(CHUNK)) }
}
