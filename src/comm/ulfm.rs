//! Ability of the MPI library to continue without a lost process (ULFM: Open MPI 5 under `mpirun --with-ft ulfm`), and the
//! settings for this.
//!
//! The loaded library is identified at run time, so the same program works with any library.

use std::ffi::CStr;

use mpi::ffi;

use super::check::check;
use super::library;

/// First major version of Open MPI that can continue without a lost process.
const LEAST_MAJOR: u32 = 5;

/// Variable that `mpirun` sets for its processes if the job is to continue after a loss.
const ENABLED_VAR: &str = "OMPI_MCA_mpi_ft_enable";

/// Returns whether the loaded MPI library can continue without a lost process. May be called before MPI is started.
pub(super) fn library_goes_on() -> bool {
    match library::simulated() {
        Some(transport) => transport.survives(),
        None => knows_how(&library_version()) && library::ulfm().is_some(),
    }
}

/// Variables that the library reads at its start. The first three make ranks monitor each other: the switch, the period and the
/// timeout, in seconds. Without the first, a stopped rank is never noticed. The last makes a rank that notices a loss report the
/// loss to all ranks. Without the last, only one rank notices a loss, and the other ranks wait forever (5.0.11).
const NOTICE: &[(&str, &str)] = &[
    ("OMPI_MCA_mpi_ft_detector", "true"),
    ("OMPI_MCA_mpi_ft_detector_period", "1"),
    ("OMPI_MCA_mpi_ft_detector_timeout", "6"),
    ("OMPI_MCA_mpi_ft_propagator_with_rbcast", "true"),
];

/// Setting of the library's own thread for heartbeats. With this thread, some starts crashed, and jobs did not end (5.0.11).
const THREAD: &CStr = c"mpi_ft_detector_thread";

/// Disables the library's own thread, whatever a user's or a site's file sets. The variable of this process overrides both files,
/// but not the site's `openmpi-mca-params-override.conf`. Must be called before MPI is started.
pub(super) fn without_the_librarys_thread() {
    // SAFETY: MPI has not been started, and no thread of this program reads variables through the C library.
    unsafe { std::env::set_var(format!("OMPI_MCA_{}", THREAD.to_string_lossy()), "false") };
}

/// Makes ranks monitor each other, unless the launcher has set otherwise. Must be called before MPI is started.
pub(super) fn watch_each_other() {
    without_the_librarys_thread();
    for (name, value) in NOTICE {
        if std::env::var_os(name).is_none() {
            // SAFETY: MPI has not been started, and no thread of this program reads variables through the C library.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// Returns why MPI cannot be started to survive a loss; `None` if MPI can. The reason is the library's own thread for heartbeats,
/// which a file enables in spite of this process's variable. Must be called before MPI is started.
pub(super) fn refusal() -> Option<String> {
    if !is_enabled() {
        return None;
    }
    watch_each_other();
    has_thread().then(|| {
        format!(
            "the MPI library's file openmpi-mca-params-override.conf sets {}, which makes ranks crash while MPI starts: remove \
             this setting from the file, or run without --nonstop and --method abft",
            THREAD.to_string_lossy()
        )
    })
}

/// Returns whether the library reports that it will use its own thread for heartbeats.
fn has_thread() -> bool {
    let (mut provided, mut index, mut count) = (0, 0, 0);
    // The library writes as many bytes as the setting has.
    let mut value = [0u8; 64];
    // SAFETY: the tools interface may be used before MPI is started. The index belongs to a variable that is bound to no object.
    unsafe {
        if ffi::MPI_T_init_thread(ffi::RSMPI_THREAD_FUNNELED, &mut provided) != 0 {
            return false;
        }
        let mut handle = std::mem::zeroed();
        if ffi::MPI_T_cvar_get_index(THREAD.as_ptr(), &mut index) == 0
            && ffi::MPI_T_cvar_handle_alloc(index, std::ptr::null_mut(), &mut handle, &mut count)
                == 0
        {
            ffi::MPI_T_cvar_read(handle, value.as_mut_ptr().cast());
            ffi::MPI_T_cvar_handle_free(&mut handle);
        }
        // The interface stays open: once it is closed, MPI_Init may crash (5.0.11, opal_common_ucx_support_level).
    }
    value.iter().any(|&byte| byte != 0)
}

/// Returns why this job cannot continue without a lost process; `None` if it can. `threads` is true if any thread may call the
/// library.
pub(super) fn obstacle(threads: bool) -> Option<String> {
    if library::simulated().is_some_and(|transport| transport.survives()) {
        return None;
    }
    let library = library_version();
    if !library_goes_on() {
        return Some(format!(
            "this MPI library ends a job that has lost a rank ({library}); Open MPI {LEAST_MAJOR} can continue \
             such a job (scripts/setup.sh --with-openmpi5 installs it)"
        ));
    }
    if !threads {
        return Some(format!(
            "this MPI library ({library}) does not let several threads call it, but heartbeats need this; use another MPI library"
        ));
    }
    (!is_enabled()).then(|| {
        "mpirun was not started to continue without a lost rank: use `mpirun --with-ft ulfm`"
            .to_owned()
    })
}

/// Returns whether the launcher was started so that the job continues without a lost process.
fn is_enabled() -> bool {
    std::env::var(ENABLED_VAR).is_ok_and(|v| v == "1" || v == "true")
}

/// Returns whether a library with this description continues without a lost process. MPICH has calls of the same names, but its
/// launcher ends the job nevertheless.
fn knows_how(library: &str) -> bool {
    let version = library.split_once("Open MPI v").map(|(_, rest)| rest);
    let major = version.and_then(|v| v.split('.').next()).and_then(|v| v.parse::<u32>().ok());
    major.is_some_and(|major| major >= LEAST_MAJOR)
}

/// Returns the first line of the MPI library's description of itself.
pub(super) fn library_version() -> String {
    if library::simulated().is_some() {
        return "simulated".to_owned();
    }
    let mut text = vec![0u8; ffi::MPI_MAX_LIBRARY_VERSION_STRING as usize + 1];
    let mut length = 0;
    // SAFETY: the buffer has the size that MPI prescribes.
    let rc = unsafe { ffi::MPI_Get_library_version(text.as_mut_ptr().cast(), &mut length) };
    check(rc, "reading the MPI library's version");
    text.truncate(length as usize);
    let text = String::from_utf8_lossy(&text);
    text.lines().next().unwrap_or("").trim_end_matches('\0').trim().to_owned()
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
