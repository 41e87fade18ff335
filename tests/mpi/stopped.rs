//! Process that a fault has stopped. Faults are logged before they are injected: a signal in between would come too early.

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

/// Returns the process of a job that a fault has stopped, if any: recognised by the log of its faults.
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
