//! Calls for messages, by the MPI library or by the transport of a simulation.
//!
//! A rank of a simulated job is a process of its own, too. So a process uses either the library or the transport. A handle of the
//! library is an address or a number, and a handle of the transport is a number.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use mpi::ffi;

use super::turn;
use crate::base::dynamic::Opened;

/// Transport for the messages of a simulated job, with ULFM's calls for lost ranks. Errors are numbers of MPI error classes.
pub trait Transport: Sync {
    /// Returns the number of this rank.
    fn rank(&self) -> usize;
    fn node(&self) -> usize;
    /// Returns whether the job continues without a lost rank, as under `mpirun --with-ft ulfm`.
    fn survives(&self) -> bool;

    /// Begins to send `bytes` bytes at `data`. Returns the number of the message.
    ///
    /// # Safety
    /// The bytes must stay valid and unchanged until the message has ended.
    unsafe fn start_send(
        &self,
        on: usize,
        data: *const u8,
        bytes: usize,
        to: c_int,
        tag: c_int,
    ) -> Result<usize, c_int>;

    /// Begins to receive `bytes` bytes at `data`. Returns the number of the message.
    ///
    /// # Safety
    /// The bytes must stay valid and untouched until the message has ended.
    unsafe fn start_recv(
        &self,
        on: usize,
        data: *mut u8,
        bytes: usize,
        from: c_int,
        tag: c_int,
    ) -> Result<usize, c_int>;

    fn has_word(&self, on: usize, from: c_int, tag: c_int) -> Result<bool, c_int>;
    /// Returns whether a message has ended, successfully or not. Number 0 stands for no message and counts as ended.
    fn is_through(&self, request: usize) -> bool;
    /// Releases a message that has ended. Returns 0 if the message succeeded, otherwise its error class.
    fn end(&self, request: usize) -> c_int;
    fn cancel(&self, request: usize);

    /// Makes a further communicator of the ranks of `on`. All these ranks call this together.
    fn duplicate(&self, on: usize) -> usize;
    fn revoke(&self, on: usize);
    fn is_revoked(&self, on: usize) -> bool;
    /// Returns the ranks of a communicator that this rank knows to be lost.
    fn failed(&self, on: usize) -> Vec<c_int>;
    /// Returns the bits that all living ranks of `on` have set in `bits`, and the return code. All living ranks call this
    /// together.
    fn agree(&self, on: usize, bits: c_int) -> (c_int, c_int);
    /// Makes a communicator of the living ranks of `on`. All living ranks call this together.
    fn shrink(&self, on: usize) -> usize;
    fn size(&self, on: usize) -> usize;
    /// Returns the rank in `before` of each rank of `now`.
    fn places(&self, before: usize, now: usize) -> Vec<c_int>;

    /// Records the current activity of this rank.
    fn enters(&self, phase: &'static str);
    /// Ends the whole job.
    fn abort(&self, code: i32) -> !;
}

/// Number of the communicator of all ranks of a simulated job.
pub const ALL: usize = 1;

static SIMULATED: OnceLock<&'static dyn Transport> = OnceLock::new();

/// Makes the messages of this process use `transport`. Must be called before the first message.
pub fn simulate(transport: &'static dyn Transport) {
    assert!(SIMULATED.set(transport).is_ok(), "a process has one transport");
}

#[inline]
pub(super) fn simulated() -> Option<&'static dyn Transport> {
    SIMULATED.get().copied()
}

/// Returns the number of a handle of the transport.
pub(super) fn number<H: Copy>(handle: H) -> usize {
    const { assert!(size_of::<H>() <= size_of::<usize>()) };
    let mut number = 0;
    // SAFETY: copies the bytes of a handle to a number, which has at least as many bytes.
    unsafe {
        let from = std::ptr::from_ref(&handle).cast::<u8>();
        from.copy_to_nonoverlapping(std::ptr::from_mut(&mut number).cast(), size_of::<H>());
    }
    number
}

/// Returns the handle of the transport with this number.
pub(super) fn handle<H: Copy>(number: usize) -> H {
    const { assert!(size_of::<H>() <= size_of::<usize>()) };
    // SAFETY: a number has at least as many bytes as a handle, and any bytes are a handle.
    unsafe { std::ptr::from_ref(&number).cast::<H>().read_unaligned() }
}

/// Returns `value` if `rc` is the return code of a successful call; otherwise `rc`.
fn checked<T>(rc: c_int, value: T) -> Result<T, c_int> {
    if rc == ffi::MPI_SUCCESS as c_int { Ok(value) } else { Err(rc) }
}

/// Communicator of a message, and the number (series) that distinguishes the message's set of ranks on this communicator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct On {
    /// Communicator of the library.
    pub raw: ffi::MPI_Comm,
    /// Number that distinguishes sets of ranks on the same communicator; 0 for the set of all its ranks.
    pub series: u64,
}

/// Address of a message: communicator, rank at the other end, and tag.
#[derive(Clone, Copy)]
pub(super) struct Address {
    pub raw: ffi::MPI_Comm,
    pub peer: c_int,
    pub tag: c_int,
}

/// Content of a message: number of elements, bytes of an element, and MPI's type of the elements.
#[derive(Clone, Copy)]
pub(super) struct Content {
    pub count: usize,
    pub each: usize,
    pub datatype: ffi::MPI_Datatype,
}

/// Begins to send the elements at `data`. Returns the request, or the return code of an error.
///
/// The elements must stay valid and unchanged until the message has ended.
pub(super) unsafe fn start_send(
    data: *const c_void,
    content: Content,
    to: Address,
) -> Result<ffi::MPI_Request, c_int> {
    if let Some(transport) = simulated() {
        let bytes = content.count * content.each;
        // SAFETY: ensured by the caller.
        let begun =
            unsafe { transport.start_send(number(to.raw), data.cast(), bytes, to.peer, to.tag) };
        return begun.map(handle);
    }
    let mut request = handle(0);
    // SAFETY: ensured by the caller.
    let rc = turn::with(|| unsafe {
        let Content { count, datatype, .. } = content;
        ffi::MPI_Isend(data, count as c_int, datatype, to.peer, to.tag, to.raw, &mut request)
    });
    checked(rc, request)
}

/// Begins to receive the elements at `data`. Returns the request, or the return code of an error.
///
/// The elements must stay valid and untouched until the message has ended.
pub(super) unsafe fn start_recv(
    data: *mut c_void,
    content: Content,
    from: Address,
) -> Result<ffi::MPI_Request, c_int> {
    if let Some(transport) = simulated() {
        let bytes = content.count * content.each;
        // SAFETY: ensured by the caller.
        let begun = unsafe {
            transport.start_recv(number(from.raw), data.cast(), bytes, from.peer, from.tag)
        };
        return begun.map(handle);
    }
    let mut request = handle(0);
    // SAFETY: ensured by the caller.
    let rc = turn::with(|| unsafe {
        let Content { count, datatype, .. } = content;
        ffi::MPI_Irecv(data, count as c_int, datatype, from.peer, from.tag, from.raw, &mut request)
    });
    checked(rc, request)
}

/// Tests whether a message from the address `from` can be received, and sets `there` to the result. Returns the return code.
pub(super) fn has_word(from: Address, there: &mut bool) -> c_int {
    if let Some(transport) = simulated() {
        let found = transport.has_word(number(from.raw), from.peer, from.tag);
        *there = found == Ok(true);
        return found.err().unwrap_or(ffi::MPI_SUCCESS as c_int);
    }
    let mut flag = 0;
    // SAFETY: the communicator is valid, and the status is not requested.
    let rc = turn::with(|| unsafe {
        ffi::MPI_Iprobe(from.peer, from.tag, from.raw, &mut flag, ffi::RSMPI_STATUS_IGNORE)
    });
    *there = flag != 0;
    rc
}

/// Returns whether a message has ended, successfully or not. Lets MPI make progress.
///
/// If a lost peer is survived, callers call the library's wait only after this function has returned true. That wait abandons a
/// message as soon as its communicator is revoked, while the buffer is still in use.
pub(super) fn is_through(request: ffi::MPI_Request) -> bool {
    if let Some(transport) = simulated() {
        return transport.is_through(number(request));
    }
    let mut flag = 0;
    // SAFETY: this process has begun the request.
    turn::with(|| unsafe {
        ffi::MPI_Request_get_status(request, &mut flag, ffi::RSMPI_STATUS_IGNORE)
    });
    flag != 0
}

/// Waits until all messages of `requests` have completed, and returns the return code. If `survives` is true and a message failed
/// because of a loss, returns the code of the loss.
pub(super) fn wait_all(requests: &mut [ffi::MPI_Request], survives: bool) -> c_int {
    if let Some(transport) = simulated() {
        let through = |request: &ffi::MPI_Request| transport.is_through(number(*request));
        while !requests.iter().all(through) {}
        return end_all(transport, requests);
    }
    let mut statuses = Statuses::new(requests, survives);
    // SAFETY: the requests are the caller's, and differ from each other.
    let rc = turn::with(|| unsafe {
        ffi::MPI_Waitall(requests.len() as c_int, requests.as_mut_ptr(), statuses.pointer())
    });
    statuses.code(rc)
}

/// Tests whether all messages of `requests` have completed, and sets `over` to the result. Returns the return code. If `survives`
/// is true and a message failed because of a loss, returns the code of the loss.
pub(super) fn test_all(
    requests: &mut [ffi::MPI_Request],
    survives: bool,
    over: &mut bool,
) -> c_int {
    if let Some(transport) = simulated() {
        *over = requests.iter().all(|&request| transport.is_through(number(request)));
        return if *over { end_all(transport, requests) } else { ffi::MPI_SUCCESS as c_int };
    }
    let mut flag = 0;
    let mut statuses = Statuses::new(requests, survives);
    let (count, first) = (requests.len() as c_int, requests.as_mut_ptr());
    // SAFETY: as in `wait_all`.
    let rc =
        turn::with(|| unsafe { ffi::MPI_Testall(count, first, &mut flag, statuses.pointer()) });
    *over = flag != 0;
    statuses.code(rc)
}

/// Releases messages that have ended and clears their requests. Returns the first error of a message, or success.
fn end_all(transport: &dyn Transport, requests: &mut [ffi::MPI_Request]) -> c_int {
    let codes: Vec<c_int> = requests
        .iter_mut()
        .map(|request| transport.end(number(std::mem::replace(request, handle(0)))))
        .collect();
    codes.into_iter().find(|&code| code != 0).unwrap_or(ffi::MPI_SUCCESS as c_int)
}

/// Cancels a receive whose message no rank has begun to send. A send is not affected.
pub(super) fn cancel(request: &mut ffi::MPI_Request) {
    match simulated() {
        Some(transport) => transport.cancel(number(*request)),
        // SAFETY: this process has begun the request.
        None => turn::with(|| unsafe {
            ffi::MPI_Cancel(request);
        }),
    }
}

/// Releases a message that has ended, and ignores its result.
pub(super) fn give_back(mut request: ffi::MPI_Request) {
    match simulated() {
        Some(transport) => drop(transport.end(number(request))),
        // SAFETY: this process has begun the request.
        None => turn::with(|| unsafe {
            ffi::MPI_Wait(&mut request, ffi::RSMPI_STATUS_IGNORE);
        }),
    }
}

/// Statuses of several messages. If a lost peer is survived, the error of each message is read from its own status. Otherwise
/// there are no statuses.
struct Statuses(Vec<ffi::MPI_Status>);

impl Statuses {
    fn new(requests: &[ffi::MPI_Request], survives: bool) -> Self {
        // SAFETY: a status has plain numbers only, which the library fills in.
        let none = || unsafe { std::mem::zeroed::<ffi::MPI_Status>() };
        let wanted = if survives { requests.len() } else { 0 };
        Self((0..wanted).map(|_| none()).collect())
    }

    fn pointer(&mut self) -> *mut ffi::MPI_Status {
        if self.0.is_empty() {
            // SAFETY: a constant of the library.
            unsafe { ffi::RSMPI_STATUSES_IGNORE }
        } else {
            self.0.as_mut_ptr()
        }
    }

    /// Returns the return code `rc` of a call for all messages. If a message failed because of a loss, returns the code of the
    /// loss.
    fn code(&self, rc: c_int) -> c_int {
        let failed = rc != ffi::MPI_SUCCESS as c_int;
        let lost = || self.0.iter().map(|status| status.MPI_ERROR).find(|&rc| is_loss(rc));
        failed.then(lost).flatten().unwrap_or(rc)
    }
}

/// Open MPI's error classes for a lost process: failed, failed with messages pending, revoked.
const LOSSES: std::ops::RangeInclusive<c_int> = 75..=77;

/// Error class that a [`Transport`] returns for a lost rank.
pub const FAILED: c_int = 75;
/// Error class that a [`Transport`] returns for a revoked communicator.
pub const REVOKED: c_int = 77;

/// Returns whether the error reports a lost process.
pub(super) fn is_loss(rc: c_int) -> bool {
    let mut class = rc;
    if simulated().is_none() {
        // SAFETY: `rc` is a return code of the library.
        unsafe { ffi::MPI_Error_class(rc, &mut class) };
    }
    LOSSES.contains(&class)
}

type OnComm = unsafe extern "C" fn(ffi::MPI_Comm) -> c_int;
type MakeComm = unsafe extern "C" fn(ffi::MPI_Comm, *mut ffi::MPI_Comm) -> c_int;
type OnFlag = unsafe extern "C" fn(ffi::MPI_Comm, *mut c_int) -> c_int;
type MakeGroup = unsafe extern "C" fn(ffi::MPI_Comm, *mut ffi::MPI_Group) -> c_int;

/// Calls of ULFM, which other libraries do not have.
#[derive(Clone, Copy)]
pub(super) struct Ulfm {
    revoke: OnComm,
    is_revoked: OnFlag,
    failed: MakeGroup,
    shrink: MakeComm,
    agree: OnFlag,
}

/// Returns ULFM's calls for lost ranks; `None` if the library does not have all of them.
pub(super) fn ulfm() -> Option<Ulfm> {
    static FOUND: OnceLock<Option<Ulfm>> = OnceLock::new();
    *FOUND.get_or_init(find_ulfm)
}

fn find_ulfm() -> Option<Ulfm> {
    let all = Opened::ALL;
    // SAFETY: ULFM defines functions of these names with these types.
    unsafe {
        Some(Ulfm {
            revoke: all.function("MPIX_Comm_revoke")?,
            is_revoked: all.function("MPIX_Comm_is_revoked")?,
            failed: all.function("MPIX_Comm_get_failed")?,
            shrink: all.function("MPIX_Comm_shrink")?,
            agree: all.function("MPIX_Comm_agree")?,
        })
    }
}

fn needed() -> Ulfm {
    ulfm().expect("losses are survived only if the library has ULFM")
}

pub(super) fn revoke(raw: ffi::MPI_Comm) {
    match simulated() {
        Some(transport) => transport.revoke(number(raw)),
        // SAFETY: the communicator is in use. An earlier revocation by another rank does not matter.
        None => turn::with(|| unsafe {
            (needed().revoke)(raw);
        }),
    }
}

pub(super) fn is_revoked(raw: ffi::MPI_Comm) -> bool {
    if let Some(transport) = simulated() {
        return transport.is_revoked(number(raw));
    }
    let mut revoked = 0;
    // SAFETY: the communicator is in use.
    unsafe { (needed().is_revoked)(raw, &mut revoked) };
    revoked != 0
}

/// Sets `bits` to the bits that all remaining ranks have set. All remaining ranks call this together. Returns the return code.
pub(super) fn agree(raw: ffi::MPI_Comm, bits: &mut c_int) -> c_int {
    if let Some(transport) = simulated() {
        let (agreed, rc) = transport.agree(number(raw), *bits);
        *bits = agreed;
        return rc;
    }
    // SAFETY: the communicator is in use.
    turn::with(|| unsafe { (needed().agree)(raw, bits) })
}

/// Makes a communicator of the remaining ranks of `raw`. All remaining ranks call this together. Returns the communicator and its
/// size, or the return code of an error.
pub(super) fn shrink(raw: ffi::MPI_Comm) -> Result<(ffi::MPI_Comm, c_int), c_int> {
    if let Some(transport) = simulated() {
        let made = transport.shrink(number(raw));
        return Ok((handle(made), transport.size(made) as c_int));
    }
    // SAFETY: one communicator is in use, and the other was just made.
    unsafe {
        let mut made = ffi::RSMPI_COMM_NULL;
        checked(turn::with(|| (needed().shrink)(raw, &mut made)), ())?;
        let mut size = 0;
        ffi::MPI_Comm_size(made, &mut size);
        Ok((made, size))
    }
}

/// Returns the ranks of `raw` that this rank knows to be lost.
pub(super) fn failed(raw: ffi::MPI_Comm) -> Vec<c_int> {
    if let Some(transport) = simulated() {
        return transport.failed(number(raw));
    }
    let mut size = 0;
    // SAFETY: the communicator is in use, the groups are ours, and the arrays have the given length.
    unsafe {
        let mut gone = ffi::RSMPI_GROUP_NULL;
        if (needed().failed)(raw, &mut gone) != ffi::MPI_SUCCESS as c_int {
            return Vec::new();
        }
        ffi::MPI_Group_size(gone, &mut size);
        let (own, mut ranks) = ((0..size).collect::<Vec<_>>(), vec![0; size as usize]);
        if size > 0 {
            let mut all = ffi::RSMPI_GROUP_NULL;
            ffi::MPI_Comm_group(raw, &mut all);
            ffi::MPI_Group_translate_ranks(gone, size, own.as_ptr(), all, ranks.as_mut_ptr());
            ffi::MPI_Group_free(&mut all);
        }
        ffi::MPI_Group_free(&mut gone);
        ranks
    }
}
