//! Finds a process that a fault has stopped. A fault is logged before it is injected, so a test that relies on the log alone may
//! act too early.

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

/// Returns the stopped process of the job whose faults are logged in `log`; None if no process of the job is stopped.
pub fn stopped(log: &Path) -> Option<Pid> {
    let wanted = format!("SKT_FAULT_LOG={}", log.display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut folders = processes.map(|entry| entry.path());
    let folder = folders.find(|folder: &PathBuf| {
        let stat = fs::read_to_string(folder.join("stat")).unwrap_or_default();
        let variables = fs::read(folder.join("environ")).unwrap_or_default();
        stat.contains(") T ") && String::from_utf8_lossy(&variables).contains(&wanted)
    })?;
    folder.file_name()?.to_str()?.parse().ok().map(Pid::from_raw)
}
