//! Reader of a position's file. Reads the file once, and trusts only data that match their digests.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::BLOCK_BYTES;
use super::record::{About, Front};
use crate::base::heartbeat;
use crate::parity::digest::digest;
use crate::shm::Region;

/// Maximum number of bytes that are read at a time, unless one row is longer. The bytes are checked while they are in the
/// processor's cache.
const CHUNK_BYTES: usize = 4 << 20;

/// Origin of the bytes of a position's file: a local file, or another rank.
pub trait Feed {
    /// Reads bytes from offset `at`. Callers read at ascending offsets.
    fn read_exact_at(&mut self, into: &mut [u8], at: u64) -> io::Result<()>;
}

impl Feed for File {
    fn read_exact_at(&mut self, into: &mut [u8], at: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, into, at)
    }
}

/// Consecutive rows in a file: offset of the first row, number of rows, and words of a row.
struct Rows {
    at: u64,
    count: usize,
    ld: usize,
}

/// File of a position, with a valid header.
pub struct Source<'a> {
    feed: Box<dyn Feed + 'a>,
    path: PathBuf,
    pub front: Front,
}

impl Source<'static> {
    /// Opens the file of a position in a checkpoint. An error text names the file and the problem.
    pub fn open(path: &Path, about: &About, position: u32) -> Result<Self, String> {
        let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let file = File::open(path).map_err(|e| wrong(&e))?;
        let length = file.metadata().map_err(|e| wrong(&e))?.len();
        if length < BLOCK_BYTES as u64 {
            return Err(wrong(&format!(
                "the file is {length} bytes long, too short for the file of a position"
            )));
        }
        let this = Self::over(Box::new(file), path, about, position)?;
        if this.front.file_bytes() != length {
            let wanted = this.front.file_bytes();
            return Err(wrong(&format!(
                "the file is {length} bytes long, but {wanted} bytes were written"
            )));
        }
        Ok(this)
    }
}

impl<'a> Source<'a> {
    /// Opens a file whose bytes come from `feed`. Error texts name `path`.
    pub fn over(
        mut feed: Box<dyn Feed + 'a>,
        path: &Path,
        about: &About,
        position: u32,
    ) -> Result<Self, String> {
        let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let mut block = vec![0; BLOCK_BYTES];
        feed.read_exact_at(&mut block, 0).map_err(|e| wrong(&e))?;
        let front = Front::from_block(&block).map_err(|e| wrong(&e))?;
        if front.about != *about || front.position != position {
            return Err(wrong(&"the file belongs to another checkpoint or position"));
        }
        Ok(Self { feed, path: path.into(), front })
    }

    /// Error text that names the file.
    pub fn wrong(&self, why: &dyn std::fmt::Display) -> String {
        format!("{}: {why}", self.path.display())
    }

    /// Reads the small state and the digests of the rows.
    pub fn vouch(&mut self) -> Result<Region, String> {
        let words = self.front.vouch_words as usize;
        let mut region = Region::anonymous(words * 8).map_err(|e| self.wrong(&e))?;
        let into = region.bytes_mut();
        self.feed.read_exact_at(into, BLOCK_BYTES as u64).map_err(|e| self.wrong(&e))?;
        if digest(region.words()) == self.front.root {
            Ok(region)
        } else {
            Err(self.wrong(&"the small state or the digests differ from those that were written"))
        }
    }

    /// Reads the matrix into `target`, or only checks the matrix if `target` is None. Calls `sound` with the number and the words
    /// of each row, and fails if `sound` returns false. Calls `half` midway.
    pub fn rows(
        &mut self,
        target: Option<&mut [u8]>,
        sound: impl FnMut(usize, &[u64]) -> bool,
        half: impl FnMut(),
    ) -> Result<(), String> {
        let (count, ld) = (self.front.rows as usize, self.front.ld as usize);
        self.read("matrix", Rows { at: self.front.data_at(), count, ld }, target, sound, half)
    }

    /// Reads the parity into `target`, or only checks the parity if `target` is None. The parity of the matrix has `count` rows
    /// of `pitch` words. The parity of the small state follows as one row, with number `count`. Fails if `sound` returns false
    /// for a row.
    pub fn check(
        &mut self,
        target: Option<&mut [u8]>,
        count: usize,
        pitch: usize,
        mut sound: impl FnMut(usize, &[u64]) -> bool,
    ) -> Result<(), String> {
        let words = self.front.check.as_ref().map_or(0, |check| check.words as usize);
        let Some(tail) = words.checked_sub(count * pitch) else {
            return Err(self.wrong(&"the parity is too short"));
        };
        let at = self.front.check_at();
        let (rows, rest) = match target {
            Some(target) => {
                let (rows, rest) = target.split_at_mut(count * pitch * 8);
                (Some(rows), Some(&mut rest[..tail * 8]))
            }
            None => (None, None),
        };
        self.read("parity", Rows { at, count, ld: pitch }, rows, &mut sound, || {})?;
        let last = Rows { at: at + (count * pitch * 8) as u64, count: 1, ld: tail };
        self.read("parity of the small state", last, rest, |_, line| sound(count, line), || {})
    }

    fn read(
        &mut self,
        what: &str,
        Rows { at, count: rows, ld }: Rows,
        mut target: Option<&mut [u8]>,
        mut sound: impl FnMut(usize, &[u64]) -> bool,
        mut half: impl FnMut(),
    ) -> Result<(), String> {
        let row_bytes = ld * 8;
        if rows * row_bytes == 0 {
            return Ok(());
        }
        // At least two chunks, so that `half` is called between them.
        let step = (CHUNK_BYTES / row_bytes).clamp(1, rows.div_ceil(2));
        // A file contains words in the byte order of the machine that wrote it. On a machine with another byte order, digests do
        // not match.
        let mut chunk = Region::anonymous(step * row_bytes).map_err(|e| self.wrong(&e))?;
        let mut midway = false;
        for first in (0..rows).step_by(step) {
            if !midway && first > 0 && first >= rows / 2 {
                midway = true;
                half();
            }
            heartbeat::beat();
            let count = step.min(rows - first);
            let bytes = &mut chunk.bytes_mut()[..count * row_bytes];
            let at = at + (first * row_bytes) as u64;
            self.feed.read_exact_at(bytes, at).map_err(|e| self.wrong(&e))?;
            for (row, line) in chunk.words().chunks_exact(ld).take(count).enumerate() {
                if !sound(first + row, line) {
                    return Err(self.wrong(&format!(
                        "row {} of the {what} differs from the row that was written",
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

    use super::super::record::Check;
    use super::*;
    use crate::testkit::stored::about;
    use crate::testkit::stored::{sample, write_new, write_small};
    use proptest::prelude::*;

    fn read(path: &Path, about: &About, position: u32) -> Result<Vec<u64>, String> {
        let mut source = Source::open(path, about, position)?;
        let vouch = source.vouch()?;
        let mut into = Region::anonymous(source.front.data_words() as usize * 8).unwrap();
        let sound = |row: usize, line: &[u64]| digest(line) == vouch.words()[row];
        source.rows(Some(into.bytes_mut()), sound, || {})?;
        source.rows(None, sound, || {})?;
        Ok(into.words().to_vec())
    }

    #[test]
    fn written_rows_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p1");
        // The matrix has less than a block, many blocks, or more than a chunk.
        for rows in [1, 30, 4096 / 40, 40_000] {
            let (front, vouch, data) = sample(&about(1, 0, 1, 10), 1, rows);
            write_new(&path, &front, &vouch, [data.bytes(), &[]]).unwrap();
            assert!(read(&path, &front.about, 1).unwrap() == data.words(), "{rows}");
        }
    }

    #[test]
    fn parity_lies_behind_the_data_and_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p0");
        let (mut front, vouch, data) = sample(&about(1, 0, 1, 10), 0, 30);
        // The parity has ten rows of 70 words, then 64 words for the small state.
        let (rows, pitch, words) = (10, 70, 764);
        let mut parity = Region::anonymous(words * 8).unwrap();
        parity.words_mut().iter_mut().enumerate().for_each(|(i, word)| *word = i as u64 * 977);
        let check = Check {
            group: 0,
            members: vec![0, 1],
            losses: 1,
            code: 0,
            layout: 0,
            words: words as u64,
        };
        front.check = Some(check);
        let bytes = parity.bytes();
        write_new(&path, &front, &vouch, [data.bytes(), bytes]).unwrap();
        assert!(read(&path, &front.about, 0).unwrap() == data.words());
        let mut source = Source::open(&path, &front.about, 0).unwrap();
        let mut into = Region::anonymous(words * 8).unwrap();
        let mut seen = Vec::new();
        let note = |row: usize, line: &[u64]| {
            seen.push((row, line.len()));
            true
        };
        source.check(Some(into.bytes_mut()), rows, pitch, note).unwrap();
        assert!(into.words() == parity.words());
        assert_eq!((seen.len(), seen[9], seen[10]), (11, (9, 70), (10, 64)));
        let why = source.check(None, rows, pitch, |row, _| row != 10).unwrap_err();
        assert!(why.contains("the parity of the small state"), "{why}");
        assert!(source.check(None, rows, 77, |_, _| true).is_err());
    }

    /// Dedicated ranks have no rows of the matrix. The ranks that dedicated ranks protect have no parity.
    #[test]
    fn a_part_that_is_empty_is_read_as_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p0");
        let (front, vouch, data) = sample(&about(1, 0, 1, 10), 0, 30);
        let check = |words| {
            Some(Check { group: 0, members: vec![0, 1], losses: 1, code: 0, layout: 3, words })
        };
        let none = Front { check: check(0), ..front.clone() };
        write_new(&path, &none, &vouch, [data.bytes(), &[]]).unwrap();
        assert!(read(&path, &front.about, 0).unwrap() == data.words());
        let mut source = Source::open(&path, &front.about, 0).unwrap();
        source.check(Some(&mut []), 0, 40, |_, _| false).unwrap();
        // A file with parity only: thirty rows of 40 words, and no words for the small state.
        let alone = Front { rows: 0, cols: 0, ld: 0, check: check(1200), ..front };
        write_new(&path, &alone, &vouch, [&[], data.bytes()]).unwrap();
        let mut source = Source::open(&path, &alone.about, 0).unwrap();
        source.rows(Some(&mut []), |_, _| false, || panic!("there is no midway")).unwrap();
        let mut into = Region::anonymous(1200 * 8).unwrap();
        let mut rows = 0;
        let seen = |_: usize, line: &[u64]| {
            rows += 1;
            line.len() == 40
        };
        source.check(Some(into.bytes_mut()), 30, 40, seen).unwrap();
        assert!(into.words() == data.words() && rows == 30);
    }

    #[test]
    fn a_file_of_another_checkpoint_position_or_length_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p1");
        write_small(&path, &about(1, 0, 1, 10), 1);
        for (about, position) in
            [(about(1, 0, 2, 20), 1), (about(2, 0, 1, 10), 1), (about(1, 0, 1, 10), 0)]
        {
            let why = read(&path, &about, position).unwrap_err();
            assert!(why.contains("p1: the file belongs to another"), "{why}");
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
            write_new(&path, &front, &vouch, [data.bytes(), &[]]).unwrap();
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
