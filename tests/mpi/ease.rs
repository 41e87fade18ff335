//! Settings that make a job of the tests cheaper, and libraries that are preloaded for that and more.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Variables for a launcher and its ranks: hwloc, which MPI libraries ask for cores, must not look at PCI devices as well. No
/// test uses them, and a quarter of the processor time of starting and ending a small job went there. (Open MPI 4.1, two cores of
/// an AMD EPYC of the Zen 4 generation.)
pub const NO_DEVICES: [(&str, &str); 2] =
    [("HWLOC_COMPONENTS", "-pci,-linuxio"), ("HWLOC_PLUGINS_PATH", "/nonexistent")];

/// Library that keeps waiting ranks from using the cores others need; see its source.
pub fn relax() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| preload("tests/mpi/relax.c"))
}

/// Builds a library that is loaded into processes before all others.
pub fn preload(source: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let built = folder.join(source.file_stem().unwrap()).with_extension("so");
    // Another program of tests may use it: it is never changed in place. Another test may build it meanwhile.
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
