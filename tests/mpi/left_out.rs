//! Notes of passing tests about what they left out. `scripts/test.sh` names a file for the notes, and prints them at its end.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;

/// Notes that a test, or a part of it, cannot run on this machine, with the reason.
#[track_caller]
pub fn left_out(why: &str) {
    let place = Location::caller();
    note(&format!("{}:{}: {why}", place.file(), place.line()));
}

/// Notes that a fault was not injected, and that its run is started again.
#[allow(dead_code)] // only some programs inject faults
pub fn retried(fault: &str) {
    note(&format!("RETRIED: {fault}"));
}

/// Writes a line to standard error, and appends it to the file that `SKT_TEST_NOTES` names.
fn note(line: &str) {
    eprintln!("{line}");
    if let Some(file) = std::env::var_os("SKT_TEST_NOTES") {
        let file = OpenOptions::new().create(true).append(true).open(file);
        // The line is written by a single call, since other tests append to the file too.
        file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())).unwrap();
    }
}
