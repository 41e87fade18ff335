//! Premature end of a rank, which ends the whole job.

use std::ffi::CStr;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use mpi::ffi;

use super::library;
use crate::base::clock;

/// Current activity of this rank, in words for a person, as error messages name it.
static PHASE: Mutex<&'static str> = Mutex::new("starting");
/// True while MPI is initialised, so that an abort may call MPI.
static MPI_UP: AtomicBool = AtomicBool::new(false);
static RANK: AtomicI32 = AtomicI32::new(-1);

/// Sets the current activity of this rank, which error messages name.
pub fn set_phase(phase: &'static str) {
    *PHASE.lock().unwrap_or_else(|e| e.into_inner()) = phase;
    if let Some(transport) = library::simulated() {
        transport.enters(phase);
    }
}

/// Returns the current activity of this rank, as set by [`set_phase`].
pub fn phase() -> &'static str {
    *PHASE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Ends the whole job with `code` after writing `why` to stderr.
///
/// `code` is the exit status that `mpirun` returns, if the MPI library passes it on.
pub fn die(code: i32, why: &str) -> ! {
    let rank = RANK.load(Ordering::Relaxed);
    let who = if rank >= 0 { format!("rank {rank}, ") } else { String::new() };
    // The text is written in one piece, because other ranks may end at the same moment.
    let text = format!("skt-hpl: {who}while {}: {why}\n", phase());
    let _ = std::io::stderr().write_all(text.as_bytes());
    if let Some(transport) = library::simulated() {
        transport.abort(code);
    }
    if MPI_UP.load(Ordering::Acquire) {
        // Launchers drop unread output of an aborted job. This pause gives the launcher time to read the text.
        std::thread::sleep(Duration::from_millis(150));
        // SAFETY: MPI is initialised and not yet finalised. MPI_Abort may be called at any time in between, from any thread.
        unsafe {
            ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code);
        }
    }
    std::process::exit(code)
}

/// Ends the whole job with exit code `code` after writing `why` to stderr, for errors that occur on all ranks at the same moment.
/// Rank 0 calls MPI_Abort at once. The other ranks call MPI_Abort later, if they have not been ended by then. Open MPI 5's mpirun
/// may hang for minutes if all ranks call MPI_Abort at once.
pub fn die_in_turn(code: i32, why: &str) -> ! {
    let rank = RANK.load(Ordering::Relaxed).clamp(0, 10);
    clock::sleep(rank as u32 * Duration::from_millis(300));
    die(code, why)
}

/// Sets the number of this rank, which error messages name.
pub(super) fn rank_is(rank: i32) {
    RANK.store(rank, Ordering::Relaxed);
}

/// Makes a panic end the whole job from now on, and lets [`die`] call MPI. `rank` is the number of this rank in error messages.
pub(super) fn arm(rank: i32) {
    rank_is(rank);
    MPI_UP.store(true, Ordering::Release);
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        die(101, "a panic, which is a bug in skt-hpl: please report the lines above");
    }));
}

/// Records that MPI is about to be finalised. From then on no code may call MPI.
pub(super) fn disarm() {
    MPI_UP.store(false, Ordering::Release);
}

/// Returns the MPI library's text for the return code `rc`.
pub(super) fn error_text(rc: i32) -> String {
    if library::simulated().is_some() {
        return format!("simulated error {rc}");
    }
    let mut text = [0 as std::ffi::c_char; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut length = 0;
    let mut class = 0;
    // SAFETY: the buffer is as long as MPI requires, plus a terminating zero that MPI never overwrites.
    unsafe {
        ffi::MPI_Error_class(rc, &mut class);
        ffi::MPI_Error_string(rc, text.as_mut_ptr(), &mut length);
        format!("{} (MPI error class {class})", CStr::from_ptr(text.as_ptr()).to_string_lossy())
    }
}
