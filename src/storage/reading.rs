//! Reads a position's file back, once, and believes nothing in it that its digests do not vouch for.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::BLOCK_BYTES;
use super::record::{About, Front};
use crate::memory::Region;
use crate::parity::digest::digest;
use crate::pulse;

/// Rows are read so many bytes at a time, and checked while they are in the cache.
const CHUNK_BYTES: usize = 4 << 20;

/// An open file whose front is right.
pub struct Source {
    file: File,
    path: PathBuf,
    pub front: Front,
}

impl Source {
    /// Opens the file of a position of an epoch; an error says which file, and what is wrong with it.
    pub fn open(path: &Path, about: &About, position: u32) -> Result<Self, String> {
        let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let file = File::open(path).map_err(|e| wrong(&e))?;
        let length = file.metadata().map_err(|e| wrong(&e))?.len();
        if length < BLOCK_BYTES as u64 {
            return Err(wrong(&format!("it is {length} bytes long, too short for any position")));
        }
        let mut block = vec![0; BLOCK_BYTES];
        file.read_exact_at(&mut block, 0).map_err(|e| wrong(&e))?;
        let front = Front::from_block(&block).map_err(|e| wrong(&e))?;
        if front.about != *about || front.position != position {
            return Err(wrong(&"it belongs to another epoch or position"));
        }
        if front.file_bytes() != length {
            let wanted = front.file_bytes();
            return Err(wrong(&format!("it is {length} bytes long where {wanted} were written")));
        }
        Ok(Self { file, path: path.into(), front })
    }

    fn wrong(&self, why: &dyn std::fmt::Display) -> String {
        format!("{}: {why}", self.path.display())
    }

    /// The small state and the digests of the rows.
    pub fn vouch(&self) -> Result<Region, String> {
        let words = self.front.vouch_words as usize;
        let mut region = Region::anonymous(words * 8).map_err(|e| self.wrong(&e))?;
        let into = region.bytes_mut();
        self.file.read_exact_at(into, BLOCK_BYTES as u64).map_err(|e| self.wrong(&e))?;
        match digest(region.words()) == self.front.root {
            true => Ok(region),
            false => Err(self.wrong(&"its state and digests are not what was written")),
        }
    }

    /// Reads the matrix into `target`, or only looks at it. Every row must be as `sound` wants it; `half` is called
    /// midway.
    pub fn rows(
        &self,
        mut target: Option<&mut [u8]>,
        mut sound: impl FnMut(usize, &[u64]) -> bool,
        mut half: impl FnMut(),
    ) -> Result<(), String> {
        let (rows, ld) = (self.front.rows as usize, self.front.ld as usize);
        let row_bytes = ld * 8;
        // Two chunks at least, so that there is something between them.
        let step = (CHUNK_BYTES / row_bytes.max(1)).clamp(1, rows.div_ceil(2).max(1));
        // Bytes of a file are words of this machine: what a person carries to another kind does not check.
        let mut chunk = Region::anonymous(step * row_bytes).map_err(|e| self.wrong(&e))?;
        let mut midway = false;
        for first in (0..rows).step_by(step) {
            if !midway && first > 0 && first >= rows / 2 {
                midway = true;
                half();
            }
            pulse::beat();
            let count = step.min(rows - first);
            let bytes = &mut chunk.bytes_mut()[..count * row_bytes];
            let at = self.front.data_at() + (first * row_bytes) as u64;
            self.file.read_exact_at(bytes, at).map_err(|e| self.wrong(&e))?;
            for (row, line) in chunk.words().chunks_exact(ld).take(count).enumerate() {
                if !sound(first + row, line) {
                    return Err(self.wrong(&format!(
                        "row {} of its matrix is not what was written",
                        first + row
                    )));
                }
            }
            if let Some(target) = &mut target {
                let from = first * row_bytes;
                target[from..from + count * row_bytes]
                    .copy_from_slice(&chunk.bytes()[..count * row_bytes]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::record::tests::about;
    use super::super::writing::tests::{sample, write_small};
    use super::super::writing::{Flow, write_position};
    use super::*;
    use proptest::prelude::*;

    fn read(path: &Path, about: &About, position: u32) -> Result<Vec<u64>, String> {
        let source = Source::open(path, about, position)?;
        let vouch = source.vouch()?;
        let mut into = Region::anonymous(source.front.data_words() as usize * 8).unwrap();
        let sound = |row: usize, line: &[u64]| digest(line) == vouch.words()[row];
        source.rows(Some(into.bytes_mut()), sound, || {})?;
        source.rows(None, sound, || {})?;
        Ok(into.words().to_vec())
    }

    #[test]
    fn what_was_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p1");
        // Less than a block, many blocks, more than a chunk.
        for rows in [1, 30, 4096 / 40, 40_000] {
            let (front, vouch, data) = sample(&about(1, 0, 1, 10), 1, rows);
            write_position(&path, &front, &vouch, data.bytes(), &Flow::default()).unwrap();
            assert!(read(&path, &front.about, 1).unwrap() == data.words(), "{rows}");
        }
    }

    #[test]
    fn a_file_of_another_epoch_position_or_length_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p1");
        write_small(&path, &about(1, 0, 1, 10), 1);
        for (about, position) in
            [(about(1, 0, 2, 20), 1), (about(2, 0, 1, 10), 1), (about(1, 0, 1, 10), 0)]
        {
            let why = read(&path, &about, position).unwrap_err();
            assert!(why.contains("p1: it belongs to another"), "{why}");
        }
        let length = fs::metadata(&path).unwrap().len();
        for wrong in [0, 100, length - 1, length + 4096] {
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(wrong).unwrap();
            let why = read(&path, &about(1, 0, 1, 10), 1).unwrap_err();
            assert!(why.contains("bytes long") || why.contains("damaged"), "{why}");
        }
    }

    proptest! {
        #[test]
        fn any_flipped_bit_that_counts_is_noticed(at in 0.0f64..1.0, bit in 0u8..8) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("p0");
            let (front, vouch, data) = sample(&about(1, 0, 1, 10), 0, 30);
            write_position(&path, &front, &vouch, data.bytes(), &Flow::default()).unwrap();
            let mut bytes = fs::read(&path).unwrap();
            let at = (bytes.len() as f64 * at) as usize;
            bytes[at] ^= 1 << bit;
            fs::write(&path, &bytes).unwrap();
            let vouched = BLOCK_BYTES..BLOCK_BYTES + vouch.len() * 8;
            let data_at = front.data_at() as usize;
            let counts = at < BLOCK_BYTES
                || vouched.contains(&at)
                || (data_at..data_at + data.len()).contains(&at);
            match read(&path, &front.about, 0) {
                Ok(found) => prop_assert!(!counts && found == data.words()),
                Err(_) => prop_assert!(counts),
            }
        }
    }
}
