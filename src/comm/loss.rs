//! What becomes of a lost peer.
//!
//! As a rule the job ends with it. An MPI library that can go on without a process (ULFM: Open MPI 5 under `mpirun --with-ft
//! ulfm`) lets [`World::attempt`](super::World::attempt) do better: within an attempt a call that fails because a process is gone
//! unwinds, and the attempt returns [`Lost`] on every rank that is left, whatever each of them was doing. Nobody else sees a
//! failed call, so solver and checkpoints need not know of losses at all.
//!
//! The order of things is what makes that safe. Whoever notices *revokes* every communicator it has, so that nobody waits for it
//! in vain: whoever waits for one who has left the work leaves it, too. Then it waits until all have left (the agreement), and
//! only then unwinds: buffers stay where they are for as long as anybody may still send to them. Messages under way are completed
//! when their [`Pending`](super::Pending) goes, which is before the buffer does.
//!
//! Which library is loaded is asked at run time: one program serves any. The numbers of the error classes are Open MPI's.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mpi::ffi;

use super::abort::die;
use super::steps;
use super::world::World;
use crate::pulse;

/// A process of the job is gone, and every rank has left what it was doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lost {
    /// When this rank noticed, by its clock.
    pub noticed_unix_s: f64,
}

impl Lost {
    fn now() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self { noticed_unix_s: now.map_or(0.0, |d| d.as_secs_f64()) }
    }
}

/// Open MPI's classes of errors that speak of a lost process: failed, failed with messages pending, revoked.
const CLASSES: std::ops::RangeInclusive<c_int> = 75..=77;

/// The first version of Open MPI that has all this.
const LEAST_MAJOR: u32 = 5;

/// Whether `mpirun` was told to let the job go on; it tells its processes.
const ENABLED_VAR: &str = "OMPI_MCA_mpi_ft_enable";

type OnComm = unsafe extern "C" fn(ffi::MPI_Comm) -> c_int;
type MakeComm = unsafe extern "C" fn(ffi::MPI_Comm, *mut ffi::MPI_Comm) -> c_int;
type OnFlag = unsafe extern "C" fn(ffi::MPI_Comm, *mut c_int) -> c_int;

type MakeGroup = unsafe extern "C" fn(ffi::MPI_Comm, *mut ffi::MPI_Group) -> c_int;

/// The calls that other libraries lack.
#[derive(Clone, Copy)]
struct Calls {
    revoke: OnComm,
    is_revoked: OnFlag,
    failed: MakeGroup,
    shrink: MakeComm,
    agree: OnFlag,
}

thread_local! {
    /// There within an attempt.
    static CALLS: RefCell<Option<Calls>> = const { RefCell::new(None) };
    /// Every communicator of this process that is in use, the world's first.
    static LIVE: RefCell<Vec<ffi::MPI_Comm>> = const { RefCell::new(Vec::new()) };
    /// When this rank first noticed the loss that it is leaving for.
    static NOTICED: Cell<Option<Lost>> = const { Cell::new(None) };
}

/// Whether an attempt is under way: all that costs anything is asked this first.
static ATTEMPT: AtomicBool = AtomicBool::new(false);

/// Whether the MPI library that is loaded can go on without a lost process. May be asked before MPI is started.
pub(super) fn library_goes_on() -> bool {
    knows_how(&World::library()) && calls().is_some()
}

/// What the library reads when it is started: whether, how often and for how long ranks watch each other, and that who notices a
/// loss tells all. Without the first, nobody notices that a rank is stopped; without the last, one rank does, and the others wait
/// for ever (5.0.11).
const NOTICE: &[(&str, &str)] = &[
    ("OMPI_MCA_mpi_ft_detector", "true"),
    ("OMPI_MCA_mpi_ft_detector_period", "1"),
    ("OMPI_MCA_mpi_ft_detector_timeout", "6"),
    ("OMPI_MCA_mpi_ft_propagator_with_rbcast", "true"),
];

/// Has ranks watch each other, as far as the launcher was not told otherwise. To be called before MPI is started.
pub(super) fn watch_each_other() {
    for (name, value) in NOTICE {
        if std::env::var_os(name).is_none() {
            // SAFETY: MPI has not been started, and no thread of this program asks the C library for variables.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// Why this job cannot go on without a lost process; None if it can. `threads`: whether the library lets any thread call it.
pub(super) fn obstacle(threads: bool) -> Option<String> {
    let library = World::library();
    if !library_goes_on() {
        return Some(format!(
            "this MPI library ends a job that has lost a rank ({library}); Open MPI {LEAST_MAJOR} can go on \
             (scripts/setup.sh --with-openmpi5)"
        ));
    }
    if !threads {
        return Some(format!(
            "this MPI library does not let several threads call it ({library}), which signs of life need"
        ));
    }
    let told = std::env::var(ENABLED_VAR).is_ok_and(|v| v == "1" || v == "true");
    (!told).then(|| {
        "mpirun was not told to let the job go on without a lost rank: start it with `mpirun --with-ft ulfm`".to_owned()
    })
}

/// Whether a library that describes itself so goes on without a lost process. MPICH has calls of the same names, but its
/// launcher ends the job all the same.
fn knows_how(library: &str) -> bool {
    let version = library.split_once("Open MPI v").map(|(_, rest)| rest);
    let major = version.and_then(|v| v.split('.').next()).and_then(|v| v.parse::<u32>().ok());
    major.is_some_and(|major| major >= LEAST_MAJOR)
}

fn calls() -> Option<Calls> {
    // SAFETY: looks names up among the libraries that are loaded; each has the signature that ULFM gives it.
    unsafe {
        let find = |name: &CStr| {
            let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            (!found.is_null()).then_some(found)
        };
        Some(Calls {
            revoke: std::mem::transmute::<*mut libc::c_void, OnComm>(find(c"MPIX_Comm_revoke")?),
            is_revoked: std::mem::transmute::<*mut libc::c_void, OnFlag>(find(
                c"MPIX_Comm_is_revoked",
            )?),
            failed: std::mem::transmute::<*mut libc::c_void, MakeGroup>(find(
                c"MPIX_Comm_get_failed",
            )?),
            shrink: std::mem::transmute::<*mut libc::c_void, MakeComm>(find(c"MPIX_Comm_shrink")?),
            agree: std::mem::transmute::<*mut libc::c_void, OnFlag>(find(c"MPIX_Comm_agree")?),
        })
    }
}

/// Whether a lost peer unwinds here instead of ending the job.
#[inline]
pub(super) fn unwinds() -> bool {
    ATTEMPT.load(Ordering::Relaxed)
}

/// Whether that error speaks of a lost process.
pub(super) fn is_loss(rc: c_int) -> bool {
    let mut class = 0;
    // SAFETY: a return code of the library.
    unsafe { ffi::MPI_Error_class(rc, &mut class) };
    CLASSES.contains(&class)
}

/// A communicator is in use from here on.
pub(super) fn enrol(raw: ffi::MPI_Comm) {
    LIVE.with_borrow_mut(|live| live.push(raw));
}

/// It is about to be freed.
pub(super) fn strike_off(raw: ffi::MPI_Comm) {
    LIVE.with_borrow_mut(|live| live.retain(|&other| other != raw));
}

/// Leaves what this rank is doing: an attempt is under way and a process is gone. Returns to [`attempt`] when every rank
/// has left.
pub(super) fn leave() -> ! {
    let lost = NOTICED.get().unwrap_or_else(Lost::now);
    NOTICED.set(Some(lost));
    steps::tell();
    let calls = within();
    LIVE.with_borrow(|live| {
        for &raw in live {
            // SAFETY: in use until its owner is dropped. Whether somebody has revoked it before is of no account.
            unsafe { (calls.revoke)(raw) };
        }
    });
    agree(calls, false);
    resume_unwind(Box::new(lost))
}

fn within() -> Calls {
    CALLS.with_borrow(|calls| calls.expect("asked within an attempt only"))
}

fn base() -> ffi::MPI_Comm {
    LIVE.with_borrow(|live| *live.first().expect("the world comes first"))
}

/// Whether all ranks that are left say yes; the same answer to all, also if one is lost meanwhile.
fn agree(calls: Calls, mine: bool) -> bool {
    let mut flag = c_int::from(mine);
    // SAFETY: every rank of the world comes here once for each attempt.
    let rc = unsafe { (calls.agree)(base(), &mut flag) };
    // That somebody is gone is no news here; the answer holds all the same.
    if rc != ffi::MPI_SUCCESS as c_int && !is_loss(rc) {
        die(6, "the ranks that are left could not agree after a loss");
    }
    flag != 0
}

/// As [`World::attempt`](super::World::attempt).
pub(super) fn attempt<R>(work: impl FnOnce() -> R) -> Result<R, Lost> {
    let calls = calls().expect("asked for only where there is no obstacle");
    CALLS.set(Some(calls));
    ATTEMPT.store(true, Ordering::Relaxed);
    // What unwinds is dropped, or left for good by those who see `Lost`.
    let ended = catch_unwind(AssertUnwindSafe(work));
    let ended = match ended {
        Ok(done) if agree(calls, true) => Ok(done),
        Ok(_) => Err(Lost::now()),
        Err(payload) => match payload.downcast::<Lost>() {
            Ok(lost) => Err(*lost),
            Err(panic) => resume_unwind(panic),
        },
    };
    ATTEMPT.store(false, Ordering::Relaxed);
    steps::over();
    NOTICED.set(None);
    if ended.is_err() {
        // Revoked ones are not freed: that is a collective call. There are at most as many as losses are survived.
        LIVE.with_borrow_mut(|live| live.truncate(1));
    }
    ended
}

/// The processes of `raw` that are left, as a communicator of their own; all of them call this together.
pub(super) fn shrink(raw: ffi::MPI_Comm) -> ffi::MPI_Comm {
    let calls = calls().expect("asked for only where there is no obstacle");
    // SAFETY: every rank of `raw` that is left comes here after an attempt that was lost.
    let (rc, new) = unsafe {
        let mut new = ffi::RSMPI_COMM_NULL;
        ((calls.shrink)(raw, &mut new), new)
    };
    if rc != ffi::MPI_SUCCESS as c_int {
        die(6, "the ranks that are left could not find together after a loss");
    }
    // Nobody revokes it before all have it, as with those made of it.
    let mut flag = 1;
    // SAFETY: all that are left come here after the call above.
    unsafe { (calls.agree)(raw, &mut flag) };
    LIVE.with_borrow_mut(Vec::clear);
    new
}

/// Looks whether what goes on over `raw` still can: leaves if it is revoked or one of its ranks is gone. To be called
/// again and again by whoever waits.
pub(super) fn look(raw: ffi::MPI_Comm) {
    /// Between two looks at who is gone, which takes longer than the look whether somebody has revoked.
    const EVERY: Duration = Duration::from_millis(1);
    thread_local! {
        static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    pulse::wait();
    if steps::shields(raw, false) {
        return;
    }
    let calls = within();
    let due = LAST.get().is_none_or(|last| last.elapsed() > EVERY);
    if due {
        LAST.set(Some(Instant::now()));
    }
    if is_revoked(calls, raw) || (due && has_failed(calls, raw)) {
        leave();
    }
    // Who left before it had the communicator that this rank waits on has not revoked that one.
    let left = || !steps::under_way() && is_revoked(calls, base());
    if due && (left() || steps::between() && somebody_is_gone()) {
        leave();
    }
}

fn is_revoked(calls: Calls, raw: ffi::MPI_Comm) -> bool {
    let mut revoked = 0;
    // SAFETY: a communicator in use.
    unsafe { (calls.is_revoked)(raw, &mut revoked) };
    revoked != 0
}

/// Whether any rank of the job is known to be gone, or to have left.
pub(super) fn somebody_is_gone() -> bool {
    let calls = within();
    is_revoked(calls, base()) || has_failed(calls, base())
}

/// A call on `raw` has met a lost process.
pub(super) fn met(raw: ffi::MPI_Comm) {
    if !steps::shields(raw, true) {
        leave();
    }
}

fn has_failed(calls: Calls, raw: ffi::MPI_Comm) -> bool {
    let mut size = 0;
    // SAFETY: a communicator in use; the group is ours.
    unsafe {
        let mut group = ffi::RSMPI_GROUP_NULL;
        if (calls.failed)(raw, &mut group) != ffi::MPI_SUCCESS as c_int {
            return false;
        }
        ffi::MPI_Group_size(group, &mut size);
        ffi::MPI_Group_free(&mut group);
    }
    size > 0
}

/// Whether a message is through, well or not; lets MPI make progress. The library's own waiting gives a message up as
/// soon as its communicator is revoked, with its buffer still in use.
pub(super) fn is_through(request: ffi::MPI_Request) -> bool {
    let mut flag = 0;
    // SAFETY: a request of ours.
    unsafe { ffi::MPI_Request_get_status(request, &mut flag, ffi::RSMPI_STATUS_IGNORE) };
    flag != 0
}

/// Waits until all of these messages are through.
pub(super) fn wait_through(raw: ffi::MPI_Comm, requests: &[ffi::MPI_Request]) {
    for &request in requests {
        while !is_through(request) {
            look(raw);
        }
    }
}

/// Ends messages under way on `raw`, so that their buffers may go: none is of use any more.
pub(super) fn abandon(raw: ffi::MPI_Comm, requests: &mut Vec<ffi::MPI_Request>) {
    /// Of those that live the library ends all messages soon. What should come from a lost one never does, nor goes
    /// anywhere.
    const PATIENCE: Duration = Duration::from_secs(2);
    let calls = within();
    // SAFETY: in use as long as there are messages under way on it; the requests are ours.
    unsafe {
        (calls.revoke)(raw);
        for request in requests.iter_mut() {
            if !is_through(*request) {
                // Ends what nobody has begun to send; what is to be sent stays.
                ffi::MPI_Cancel(request);
            }
        }
    }
    let began = Instant::now();
    for request in requests.drain(..) {
        let mut request = request;
        while !is_through(request) && began.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        if is_through(request) {
            // SAFETY: gives it back; how it ended is of no account.
            unsafe { ffi::MPI_Wait(&mut request, ffi::RSMPI_STATUS_IGNORE) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_open_mpi_from_its_fifth_version_on_goes_on() {
        for (library, can) in [
            ("Open MPI v5.0.11, package: Open MPI x@y Distribution, ident: 5.0.11", true),
            ("Open MPI v10.0.0, package: x", true),
            ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", false),
            ("MPICH Version:\t4.0.2", false),
            ("", false),
        ] {
            assert_eq!(knows_how(library), can, "{library}");
        }
    }
}
