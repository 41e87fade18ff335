//! What a test cannot do here counts as passed all the same: so that it is told, `scripts/test.sh` names a file for it.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;

/// This test, or a part of it, is left out, and why: on standard error, and a line of the file that `SKT_TEST_LEFT_OUT` names.
#[track_caller]
pub fn left_out(why: &str) {
    let place = Location::caller();
    let line = format!("{}:{}: {why}\n", place.file(), place.line());
    eprint!("left out: {line}");
    if let Some(file) = std::env::var_os("SKT_TEST_LEFT_OUT") {
        let file = OpenOptions::new().create(true).append(true).open(file);
        // One write: other tests append as well.
        file.and_then(|mut file| file.write_all(line.as_bytes())).unwrap();
    }
}
