//! A communicator, its messages and its collectives, for the three element types we send.

use std::sync::Arc;
use std::time::Duration;

use mpi::ffi;

use super::abort::{check, check_on, die};
use super::library::{self, Address, Transport};
use super::{by_messages, loss, subset, turn};
use crate::base::clock::{self, Instant};
use crate::base::faults::{Sabotage, sabotaged};
use crate::base::pulse;

/// Messages longer than this many elements are cut: MPI counts them with a C int.
const CHUNK: usize = 1 << 30;

/// Element types that travel.
pub trait Wire: Copy + Default + 'static {
    fn datatype() -> ffi::MPI_Datatype;
    /// Two of them as a reduction combines them.
    fn combined(op: Reduce, one: Self, other: Self) -> Self;
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
/// `Max` and `Min` of `u64` hold below 2^63 only: MPICH 4.0 compares as if there were signs.
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

/// A communicator: an ordered set of ranks that talk among themselves.
pub struct Comm {
    on: On,
    rank: usize,
    size: usize,
    /// Whether it ends with this value.
    owned: bool,
    /// Where the library has none of their own for these ranks ([`subset`]): their ranks in the one that their messages are on.
    members: Option<Arc<[i32]>>,
}

/// What messages are on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct On {
    /// The library's communicator.
    pub raw: ffi::MPI_Comm,
    /// Tells apart the sets of ranks that talk over it; 0 for all of them.
    pub series: u64,
}

/// A communicator for another thread than the one that started MPI: there where the library lets any thread call it. One thread
/// at a time talks over it, and it must be kept until nobody does.
pub struct Elsewhere(Comm);

// SAFETY: to the library a communicator is a plain value, and `Comm::elsewhere` gives one only where any thread may use it.
unsafe impl Send for Elsewhere {}

/// Between two looks of a thread that waits beside one that computes: it is to take no core from that.
const ASIDE: Duration = Duration::from_micros(20);

impl Elsewhere {
    pub fn comm(&self) -> &Comm {
        &self.0
    }

    /// As [`Comm::exchange_while`], but a core is free while nothing comes.
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

/// Messages under way. Completed by [`Pending::wait`] or by [`Pending::test`] saying so; where a lost peer is survived,
/// at the latest when it is dropped, so their buffers must be dropped after it.
#[derive(Default)]
#[must_use = "a message under way has to be waited for"]
pub struct Pending {
    requests: Vec<ffi::MPI_Request>,
    /// Of each the rank at its other end, by its number in the library's communicator.
    peers: Vec<i32>,
    /// What they were begun on, all of them.
    on: Option<On>,
    /// One of them has failed, within a step that is not left for its sake: they never complete.
    failed: bool,
}

/// Whether MPI was started so that any thread may call it.
pub(super) fn any_thread_may_call() -> bool {
    if library::simulated().is_some() {
        return false;
    }
    let mut provided = 0;
    // SAFETY: MPI is up, or there would be no communicator; a constant of the library.
    unsafe {
        check(ffi::MPI_Query_thread(&mut provided), "asking which threads may call MPI");
        provided >= ffi::RSMPI_THREAD_MULTIPLE
    }
}

/// Ends the process if it is dropped: a panic must not free a buffer that messages still go to.
struct Landing;

impl Drop for Landing {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Comm {
    /// Wraps a communicator that somebody else frees.
    ///
    /// # Safety
    /// `raw` must be a valid communicator for as long as the value lives.
    pub(super) unsafe fn borrowed(raw: ffi::MPI_Comm) -> Self {
        unsafe { Self::wrap(raw, false) }
    }

    /// The ranks of `raw` that are `members`, in that order; this one is one of them. Whoever else there is in it takes no part.
    ///
    /// # Safety
    /// As for [`Self::borrowed`].
    pub(super) unsafe fn of_members(raw: ffi::MPI_Comm, members: Arc<[i32]>) -> Self {
        let whole = unsafe { Self::wrap(raw, false) };
        whole.among(members, 0).expect("asked for by one of them")
    }

    /// These ranks of the library's communicator that this one's messages are on, if this rank is one of them.
    fn among(&self, members: Arc<[i32]>, series: u64) -> Option<Self> {
        let me = self.peer(self.rank);
        let rank = members.iter().position(|&member| member == me)?;
        let on = On { raw: self.on.raw, series };
        Some(Self { on, rank, size: members.len(), owned: series > 0, members: Some(members) })
    }

    /// The same communicator for another thread; None where the library was not asked for that, or does not let any thread
    /// call it.
    pub fn elsewhere(&self) -> Option<Elsewhere> {
        any_thread_may_call().then(|| Elsewhere(self.alias()))
    }

    /// The same communicator, which stays whoever's it is.
    pub(super) fn alias(&self) -> Self {
        let members = self.members.clone();
        Self { on: self.on, rank: self.rank, size: self.size, owned: false, members }
    }

    pub(super) fn on(&self) -> On {
        self.on
    }

    /// The number of a rank in the library's communicator.
    pub(super) fn peer(&self, rank: usize) -> i32 {
        self.members.as_ref().map_or(rank as i32, |members| members[rank])
    }

    /// A tag as it is on the way.
    fn tag(&self, tag: i32) -> i32 {
        subset::tag(self.on.series, tag)
    }

    /// Where messages to or from a rank go.
    fn address(&self, rank: usize, tag: i32) -> Address {
        Address { raw: self.on.raw, peer: self.peer(rank), tag: self.tag(tag) }
    }

    /// Whether single messages end only when they are through, whatever becomes of their communicator.
    fn one_by_one() -> bool {
        loss::unwinds() || library::simulated().is_some()
    }

    /// Whether the library's collectives are not for these ranks: it does not know that they belong together, a lost one is
    /// survived, or there is no library.
    fn by_messages(&self) -> bool {
        self.members.is_some() || loss::unwinds() || library::simulated().is_some()
    }

    unsafe fn wrap(raw: ffi::MPI_Comm, owned: bool) -> Self {
        if let Some(transport) = library::simulated() {
            return Self::simulated(transport, raw);
        }
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the caller vouches for `raw`.
        unsafe {
            check(ffi::MPI_Comm_rank(raw, &mut rank), "asking for the rank");
            check(ffi::MPI_Comm_size(raw, &mut size), "asking for the number of ranks");
        }
        let on = On { raw, series: 0 };
        Self { on, rank: rank as usize, size: size as usize, owned, members: None }
    }

    /// All ranks of a communicator of the transport's, in the order of their first numbers.
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

    /// Splits into communicators of equal `colour`, ordered by `key`. No colour: part of none.
    pub fn split(&self, colour: Option<usize>, key: usize) -> Option<Comm> {
        if self.by_messages() {
            return self.split_by_messages(colour, key);
        }
        // SAFETY: all ranks of the communicator come here together; the result is checked.
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

    /// The ranks that share memory with this one.
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

    /// Sends `data` to `to` and returns when it may be reused.
    pub fn send<T: Wire>(&self, data: &[T], to: usize, tag: i32) {
        if Self::one_by_one() {
            return self.exchange::<T>(Some((data, to)), None, tag);
        }
        for part in chunks(data) {
            // SAFETY: the slice is valid for the length given.
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

    /// Fills `data` with what `from` sends.
    pub fn recv<T: Wire>(&self, data: &mut [T], from: usize, tag: i32) {
        if Self::one_by_one() {
            return self.exchange::<T>(None, Some((data, from)), tag);
        }
        for part in chunks_mut(data) {
            // SAFETY: the slice is valid and ours alone for the length given.
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

    /// How long who awaits a word sleeps at least between two looks; as `most`, at most, where others wait for it afterwards.
    pub const PAUSE: Duration = Duration::from_millis(2);

    /// Returns when `from` has sent something with that tag, which is still to be received. Sleeps meanwhile, so that whoever
    /// has nothing to do leaves the processor to the others: the longer it has waited, the longer, up to `most`.
    pub fn await_word(&self, from: usize, tag: i32, most: Duration) {
        let began = Instant::now();
        while !self.has_word(from, tag) {
            self.attend();
            // Whoever watches is to see that it lives.
            pulse::wait();
            clock::sleep((began.elapsed() / 16).clamp(Self::PAUSE, most));
        }
    }

    /// To be called again and again by who waits for something else than a message: where a lost rank is survived it leaves what
    /// it is doing once one is.
    pub fn attend(&self) {
        if loss::unwinds() {
            loss::look(self.on);
        }
    }

    /// Whether `from` has sent something with that tag, which is still to be received.
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

    /// As [`Self::exchange`], doing `work` while the messages are under way.
    pub fn exchange_while<T: Wire>(
        &self,
        out: Option<(&[T], usize)>,
        into: Option<(&mut [T], usize)>,
        tag: i32,
        work: impl FnOnce(),
    ) {
        self.exchange_with(out, into, tag, work, Pending::wait);
    }

    /// As [`Self::exchange_while`], waiting by `wait`, which returns when all have completed.
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
            // SAFETY: likewise.
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
            // SAFETY: within the range the caller vouches for.
            let rc = unsafe {
                library::start_send(data.add(done), part, self.address(to, tag), &mut request)
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
    /// The elements must stay valid and untouched by anybody else until `pending` has completed.
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
            // SAFETY: within the range the caller vouches for.
            let rc = unsafe {
                library::start_recv(data.add(done), part, self.address(from, tag), &mut request)
            };
            let begun = check_on(self.on, rc, "beginning to receive a message");
            pending.push(begun.then_some(request), self.peer(from), self.on);
            done += part;
            if done == len {
                return;
            }
        }
    }

    /// Copies `root`'s `data` to everybody.
    pub fn broadcast<T: Wire>(&self, data: &mut [T], root: usize) {
        // Everybody knows the length; Open MPI refuses the address of an empty slice.
        if data.is_empty() {
            return;
        }
        if self.by_messages() {
            return by_messages::broadcast(self, data, root);
        }
        for part in chunks_mut(data) {
            // SAFETY: the slice is valid and ours alone for the length given.
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

    /// Like [`Comm::broadcast`] for bytes whose number only `root` knows.
    pub fn broadcast_bytes(&self, data: &mut Vec<u8>, root: usize) {
        let mut len = [data.len() as u64];
        self.broadcast(&mut len, root);
        data.resize(len[0] as usize, 0);
        self.broadcast(data, root);
    }

    /// Combines everybody's `data` element by element; everybody gets the result.
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

    /// Combines everybody's `data` element by element into `result`, which only `root` gives.
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

    /// Everybody's `data`, of equal length, one after the other by rank, at everybody.
    pub fn all_gather<T: Wire>(&self, data: &[T]) -> Vec<T> {
        let mut all = vec![T::default(); data.len() * self.size];
        if self.by_messages() {
            by_messages::gather(self, data, &mut all, |rank| rank * data.len());
            return all;
        }
        // SAFETY: the receive buffer has room for `size` times what each sends.
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

    /// Everybody's bytes, of any length, by rank, at everybody. Nothing is padded but to whole words: one
    /// rank may have much to say and the others nothing.
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
        // SAFETY: counts and places are those of `all`, and everybody's count is what it sends.
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

    /// Nobody leaves before everybody has come.
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
            // Who unwinds leaves it as it is: freeing one is for all of its ranks together.
            // SAFETY: made by a split of ours and not used after this.
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
    /// What its messages are on, where a lost peer is survived.
    fn survives(&self) -> Option<On> {
        self.on.filter(|_| loss::unwinds())
    }

    /// Adds a message that was begun; None: the library has refused it.
    fn push(&mut self, request: Option<ffi::MPI_Request>, peer: i32, on: On) {
        debug_assert!(self.requests.is_empty() || self.on == Some(on));
        self.peers.truncate(self.requests.len());
        self.failed |= request.is_none() && !sabotaged(Sabotage::TakesRefused);
        if let Some(request) = request {
            self.requests.push(request);
            self.peers.push(peer);
        }
        self.on = Some(on);
    }

    /// Returns when all messages have completed. If one has failed it leaves the attempt as soon as no step is under way.
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

    /// Whether all messages have completed, none of which has failed; lets MPI make progress.
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

    /// As [`check_on`] where a lost peer is survived, else as [`check`].
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

/// Bytes travel as whole words of so many.
const WORD: usize = 8;

fn words(bytes: u64) -> usize {
    (bytes as usize).div_ceil(WORD)
}

/// What each rank has said, of words that begin at `places`.
fn cut(all: &[u64], lengths: &[u64], places: &[i32]) -> Vec<Vec<u8>> {
    let pieces = lengths.iter().zip(places).map(|(&length, &place)| {
        let piece = &all[place as usize..][..words(length)];
        let mut bytes: Vec<u8> = piece.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.truncate(length as usize);
        bytes
    });
    pieces.collect()
}

/// `data` in parts MPI can count; one empty part where it is empty, since a message still counts.
fn chunks<T>(data: &[T]) -> impl Iterator<Item = &[T]> {
    let empty = data.is_empty().then_some(data);
    empty.into_iter().chain(data.chunks(CHUNK))
}

fn chunks_mut<T>(data: &mut [T]) -> Box<dyn Iterator<Item = &mut [T]> + '_> {
    if data.is_empty() { Box::new(std::iter::once(data)) } else { Box::new(data.chunks_mut(CHUNK)) }
}
