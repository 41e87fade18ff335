//! Measurement of the rate at which a position's file can be written to a device.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::unistd::mkdtemp;

use super::writing::Target;
use crate::shm::Region;

const CHUNK_BYTES: usize = 8 << 20;
/// Maximum bytes and time of a measurement.
const MOST_BYTES: u64 = 512 << 20;
const LONGEST: Duration = Duration::from_secs(3);

/// The measurement writes at most one eighth of the free bytes, so that most stays free for other programs.
const PART: u64 = 8;

/// Measures the bytes per second that one process can write to the device, with a temporary file. The device has `free_bytes`
/// free bytes.
pub fn measure(dir: &Path, free_bytes: u64) -> Result<f64, String> {
    let cannot = |why: String| format!("cannot write to {}: {why}", dir.display());
    // A new folder, which contains no other files.
    let own = mkdtemp(&dir.join("skt-hpl.speed.XXXXXX")).map_err(|e| cannot(e.to_string()))?;
    let measured = write(&own.join("data"), MOST_BYTES.min(free_bytes / PART));
    let _ = fs::remove_dir_all(&own);
    measured.map_err(cannot)
}

/// Writes at most `most_bytes`, but at least one chunk. Returns the bytes per second.
fn write(path: &Path, most_bytes: u64) -> Result<f64, String> {
    let mut chunk = Region::anonymous(CHUNK_BYTES).map_err(|e| e.to_string())?;
    // The data is not zero, because some file systems do not store zeros.
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
        // A speed between a floppy disk and memory shows that the unit is right.
        assert!((1e4..1e12).contains(&speed), "{speed}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(measure(dir.path(), 0).unwrap() > 0.0);
        assert!(measure(Path::new("/nonexistent"), 0).is_err());
    }
}
