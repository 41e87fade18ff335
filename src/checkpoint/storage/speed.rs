//! Measurement of a device's write speed. The test file is written in the same way as a position's file.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::unistd::mkdtemp;

use super::writing::Target;
use crate::shm::Region;

const CHUNK_BYTES: usize = 8 << 20;
/// Maximum number of bytes that a measurement writes.
const MOST_BYTES: u64 = 512 << 20;
/// Time after which a measurement writes no further chunk.
const LONGEST: Duration = Duration::from_secs(3);

/// Divisor of the free bytes. A measurement writes at most one `PART`th of the free bytes, so that most of the space stays free
/// for other users.
const PART: u64 = 8;

/// Measures the bytes per second that one process can write to a temporary file in `dir`. `free_bytes` is the free space in
/// `dir`.
pub fn measure(dir: &Path, free_bytes: u64) -> Result<f64, String> {
    let cannot = |why: String| format!("cannot write to {}: {why}", dir.display());
    // The temporary file is in a new folder, so that it replaces no file of another program.
    let own = mkdtemp(&dir.join("skt-hpl.speed.XXXXXX")).map_err(|e| cannot(e.to_string()))?;
    let measured = write(&own.join("data"), MOST_BYTES.min(free_bytes / PART));
    let _ = fs::remove_dir_all(&own);
    measured.map_err(cannot)
}

/// Writes `most_bytes` to a new file, or fewer if the time of `LONGEST` runs out, but at least one chunk. Returns the bytes per
/// second. The sync counts as part of the time.
fn write(path: &Path, most_bytes: u64) -> Result<f64, String> {
    let mut chunk = Region::anonymous(CHUNK_BYTES).map_err(|e| e.to_string())?;
    // The bytes are not zero, because some file systems do not store zeros.
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    for place in chunk.words_mut() {
        word = word.rotate_left(7).wrapping_mul(0x6a09_e667_f3bc_c909);
        *place = word;
    }
    let mut target = Target::create(path).map_err(|e| e.to_string())?;
    let began = Instant::now();
    let mut written = 0;
    loop {
        target.put(chunk.bytes()).map_err(|e| e.to_string())?;
        written += CHUNK_BYTES as u64;
        if written >= most_bytes || began.elapsed() >= LONGEST {
            break;
        }
    }
    target.sync().map_err(|e| e.to_string())?;
    Ok(written as f64 / began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_a_speed_and_keeps_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let speed = measure(dir.path(), 1 << 40).unwrap();
        // The bounds are the speeds of a floppy disk and of memory: a wrong unit gives a value outside.
        assert!((1e4..1e12).contains(&speed), "{speed}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(measure(dir.path(), 0).unwrap() > 0.0);
        assert!(measure(Path::new("/nonexistent"), 0).is_err());
    }
}
