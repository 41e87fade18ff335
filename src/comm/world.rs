//! The start and the end of MPI.

use mpi::ffi;

use super::abort::{arm, check, disarm};
use super::communicator::Comm;

/// All ranks of the job. Made once; dropping it finalises MPI.
pub struct World {
    comm: Comm,
}

impl World {
    /// Starts MPI. Only the calling thread may use it afterwards.
    pub fn init() -> Self {
        let mut provided = 0;
        // SAFETY: called once per process, before any other MPI call; null argument pointers are
        // allowed since MPI-2.
        let rc = unsafe {
            ffi::MPI_Init_thread(
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                ffi::RSMPI_THREAD_FUNNELED,
                &mut provided,
            )
        };
        check(rc, "starting MPI");
        // SAFETY: MPI is up; the handles are constants of the library.
        let comm = unsafe {
            check(
                ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN),
                "setting the error handler",
            );
            Comm::borrowed(ffi::RSMPI_COMM_WORLD)
        };
        arm(comm.rank() as i32);
        // SAFETY: reading a constant of the library.
        if provided < unsafe { ffi::RSMPI_THREAD_FUNNELED } {
            super::die(6, "this MPI library does not allow threads beside the one that calls it");
        }
        Self { comm }
    }

    pub fn comm(&self) -> &Comm {
        &self.comm
    }

    /// The MPI library's own description of itself, first line only.
    pub fn library() -> String {
        let mut text = vec![0u8; ffi::MPI_MAX_LIBRARY_VERSION_STRING as usize + 1];
        let mut length = 0;
        // SAFETY: the buffer has the size that MPI prescribes.
        let rc = unsafe { ffi::MPI_Get_library_version(text.as_mut_ptr().cast(), &mut length) };
        check(rc, "asking for the MPI library's version");
        text.truncate(length as usize);
        let text = String::from_utf8_lossy(&text);
        text.lines().next().unwrap_or("").trim_end_matches('\0').trim().to_owned()
    }

    /// Seconds on MPI's clock, which only differences have a meaning on.
    pub fn seconds() -> f64 {
        // SAFETY: no arguments, MPI is up.
        unsafe { ffi::RSMPI_Wtime() }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        disarm();
        // SAFETY: the last MPI call of the process.
        unsafe {
            ffi::MPI_Finalize();
        }
    }
}
