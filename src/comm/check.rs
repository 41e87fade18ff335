//! Checks of the library's return codes.

use mpi::ffi;

use super::abort::{die, die_in_turn, error_text};
use super::library::{self, On};
use super::loss;

/// Ends the job if `rc` says that the call `what` has failed. If losses are survived and a peer is lost, unwinds to
/// [`World::attempt`](super::World::attempt) instead.
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

/// Ends the job if `rc` says that the call `what`, which handles messages of `on`, has failed. If losses are survived and a peer
/// is lost, unwinds to [`World::attempt`](super::World::attempt) instead. Returns false if the loss was only recorded, because
/// this rank must first complete a step of its group.
pub(super) fn check_on(on: On, rc: i32, what: &str) -> bool {
    if rc != ffi::MPI_SUCCESS as i32 && loss::unwinds() && library::is_loss(rc) {
        loss::met(on);
        return false;
    }
    check(rc, what);
    true
}
