//! Settings that make the jobs of tests cheaper, and libraries that tests preload.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Environment variables for a launcher and its ranks that keep hwloc from examining PCI devices. No test needs these devices.
/// Examining them took a quarter of the processor time of starting and ending a small job (Open MPI 4.1, two cores of an AMD
/// EPYC, Zen 4).
pub const NO_DEVICES: [(&str, &str); 2] =
    [("HWLOC_COMPONENTS", "-pci,-linuxio"), ("HWLOC_PLUGINS_PATH", "/nonexistent")];

/// Builds the library that makes waiting ranks yield their cores, and returns its path; see `relax.c`.
pub fn relax() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| preload("tests/mpi/relax.c"))
}

/// Builds a library from a C source for `LD_PRELOAD`, and returns its path.
pub fn preload(source: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let built = folder.join(source.file_stem().unwrap()).with_extension("so");
    // Other test programs may use the library now, so it is replaced as a whole. Another test may build it at the same time, so
    // each build has a file name of its own.
    static BUILDS: AtomicUsize = AtomicUsize::new(0);
    let build = BUILDS.fetch_add(1, Ordering::Relaxed);
    let aside = built.with_extension(format!("so.{}-{build}", std::process::id()));
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"])
        .args([aside.as_os_str(), source.as_os_str(), "-ldl".as_ref()])
        .status();
    assert!(done.is_ok_and(|status| status.success()), "cc builds {}", source.display());
    std::fs::rename(&aside, &built).unwrap();
    built
}
