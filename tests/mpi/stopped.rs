//! Who a fault has stopped. What faults strike is logged before they do: a signal in between would come too early.

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

/// The process of a job that a fault has stopped, if one is: known by the log that its faults are told in.
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
