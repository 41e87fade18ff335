//! Checks of the library's return codes.

use mpi::ffi;

use super::abort::{die, die_in_turn, error_text};
use super::library::{self, On};
use super::loss;

/// Ends the job if `rc` says that the call `what` has failed. Within an attempt, a lost peer only ends the attempt.
pub(super) fn check(rc: i32, what: &str) {
    if rc != ffi::MPI_SUCCESS as i32 {
        let why = || format!("{what} failed: {}", error_text(rc));
        if library::is_loss(rc) {
            if loss::unwinds() {
                loss::leave();
            }
            // The failure detector reports the loss to all ranks at the same moment.
            die_in_turn(6, &why());
        }
        die(6, &why());
    }
}

/// Checks `rc` as [`check`] does, for a call that handles messages of `on`. Returns false after a loss that does not end this
/// rank's current work.
pub(super) fn check_on(on: On, rc: i32, what: &str) -> bool {
    if rc != ffi::MPI_SUCCESS as i32 && loss::unwinds() && library::is_loss(rc) {
        loss::met(on);
        return false;
    }
    check(rc, what);
    true
}
