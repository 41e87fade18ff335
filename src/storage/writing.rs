//! Streams a position's file to storage, past the page cache where the file system allows it.
//!
//! The page cache would be a second copy of what is written, on a node whose memory the matrix fills. So data goes to the
//! device as it lies in named memory (`O_DIRECT`); where that is refused, in pieces that are synced and dropped from
//! the cache. Whoever waits, or has lost patience, sees and says so through a [`Flow`].

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thiserror::Error;

use super::BLOCK_BYTES;
use super::names;
use super::record::Front;
use super::shelf::give_name;
use crate::faults::{Point, hit};
use crate::memory::Region;
use crate::pulse;

/// What one call of the kernel writes.
const CHUNK_BYTES: usize = 8 << 20;
/// What may lie in the page cache before it is synced and dropped.
const CACHED_BYTES: u64 = 64 << 20;

/// How a transfer gets on, seen from another thread.
#[derive(Debug, Default)]
pub struct Flow {
    moved: AtomicU64,
    given_up: AtomicBool,
    awaited: AtomicBool,
}

/// Why a transfer came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Stopped {
    #[error("it was given up")]
    GivenUp,
    #[error("{0}")]
    Failed(String),
}

impl Flow {
    /// So many bytes more are done; an error where nobody wants the rest.
    pub fn went_on(&self, bytes: u64) -> Result<(), Stopped> {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        if self.awaited.load(Ordering::Relaxed) {
            // Beside a rank that computes this would hide that it hangs.
            pulse::beat();
        }
        match self.given_up.load(Ordering::Relaxed) {
            true => Err(Stopped::GivenUp),
            false => Ok(()),
        }
    }

    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// From here on the rank does nothing but wait for this.
    pub fn is_awaited(&self) {
        self.awaited.store(true, Ordering::Relaxed);
    }
}

/// A file that is being written from its beginning, in whole blocks.
pub(super) struct Target {
    file: File,
    path: PathBuf,
    /// Past the page cache.
    direct: bool,
    at: u64,
    synced: u64,
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

impl Target {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let make = |flags| {
            let mut options = options();
            options.create(true).truncate(true).custom_flags(flags).open(path)
        };
        let (file, direct) = match make(libc::O_DIRECT) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (make(0)?, false),
            made => (made?, true),
        };
        Ok(Self { file, path: path.into(), direct, at: 0, synced: 0 })
    }

    /// Appends whole blocks that lie at the beginning of a page.
    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(bytes.len().is_multiple_of(BLOCK_BYTES));
        let mut written = self.file.write_all_at(bytes, self.at);
        if self.direct && matches!(&written, Err(e) if e.raw_os_error() == Some(libc::EINVAL)) {
            // The device wants other blocks than ours, or will not take this memory.
            self.file = options().open(&self.path)?;
            self.direct = false;
            written = self.file.write_all_at(bytes, self.at);
        }
        written?;
        self.at += bytes.len() as u64;
        if !self.direct && self.at - self.synced >= CACHED_BYTES {
            self.file.sync_data()?;
            // SAFETY: advice about a file that we hold open; nothing depends on it.
            unsafe {
                libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
            }
            self.synced = self.at;
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// Writes the file of a position: `front`, then `vouch`, then the matrix, which is the beginning of `data`, then the parity if
/// the front tells of any, the beginning of `check`; both lie at the beginning of a page. Its name it gets when it is whole and
/// on the device. Returns its bytes.
pub fn write_position(
    path: &Path,
    front: &Front,
    vouch: &[u64],
    data: &[u8],
    check: &[u8],
    flow: &Flow,
) -> Result<u64, Stopped> {
    let aside = names::aside(path);
    let failed = |what: &str, error: io::Error| {
        Stopped::Failed(format!("cannot {what} {}: {error}", aside.display()))
    };
    let written = stream(&aside, front, vouch, [data, check], flow, &failed).and_then(|bytes| {
        give_name(&aside, path).map_err(Stopped::Failed)?;
        Ok(bytes)
    });
    match &written {
        Ok(_) => hit(Point::StreamWhole, front.position as usize),
        Err(_) => {
            let _ = fs::remove_file(&aside);
        }
    }
    written
}

fn stream(
    aside: &Path,
    front: &Front,
    vouch: &[u64],
    [data, check]: [&[u8]; 2],
    flow: &Flow,
    failed: &dyn Fn(&str, io::Error) -> Stopped,
) -> Result<u64, Stopped> {
    let position = front.position as usize;
    hit(Point::StreamBegin, position);
    let mut target = Target::create(aside).map_err(|e| failed("make", e))?;
    // What does not lie in whole pages is put together in memory that does.
    let room = Region::anonymous(CHUNK_BYTES.min(front.data_at() as usize).max(BLOCK_BYTES));
    let mut room = room.map_err(|e| Stopped::Failed(e.to_string()))?;
    let mut put = |bytes: &[u8]| -> Result<(), Stopped> {
        target.put(bytes).map_err(|e| failed("write", e))?;
        flow.went_on(bytes.len() as u64)
    };
    let room = room.bytes_mut();
    room[..BLOCK_BYTES].copy_from_slice(&front.to_block());
    let mut held = BLOCK_BYTES;
    for &word in vouch {
        room[held..held + 8].copy_from_slice(&word.to_le_bytes());
        held += 8;
        if held == room.len() {
            put(room)?;
            held = 0;
        }
    }
    let blocks = held.next_multiple_of(BLOCK_BYTES);
    room[held..blocks].fill(0);
    put(&room[..blocks])?;

    let data = &data[..front.data_words() as usize * 8];
    let check = &check[..front.check.as_ref().map_or(0, |check| check.words as usize * 8)];
    for (part, bytes) in [data, check].into_iter().enumerate() {
        let (whole, rest) = bytes.split_at(bytes.len() / BLOCK_BYTES * BLOCK_BYTES);
        // Two chunks at least, so that there is something between them.
        let chunk = (whole.len() / 2).next_multiple_of(BLOCK_BYTES).clamp(BLOCK_BYTES, CHUNK_BYTES);
        let chunks = whole.len().div_ceil(chunk);
        for (at, bytes) in whole.chunks(chunk).enumerate() {
            if part == 0 && at == chunks / 2 {
                hit(Point::StreamHalf, position);
            }
            put(bytes)?;
        }
        if !rest.is_empty() {
            room[..rest.len()].copy_from_slice(rest);
            room[rest.len()..BLOCK_BYTES].fill(0);
            put(&room[..BLOCK_BYTES])?;
        }
    }
    target.sync().map_err(|e| failed("sync", e))?;
    flow.went_on(0)?;
    hit(Point::StreamSynced, position);
    debug_assert_eq!(target.at, front.file_bytes());
    Ok(target.at)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::record::About;
    use super::*;
    use crate::parity::digest::digest;

    /// A matrix of some rows, its state and digests, and its front.
    pub(crate) fn sample(about: &About, position: u32, rows: usize) -> (Front, Vec<u64>, Region) {
        let ld = 40;
        let mut data = Region::anonymous(rows * ld * 8).unwrap();
        let word =
            |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(position);
        data.words_mut().iter_mut().enumerate().for_each(|(i, w)| *w = word(i));
        let vouch: Vec<u64> = data.words().chunks(ld).map(digest).collect();
        let front = Front {
            about: about.clone(),
            position,
            rows: rows as u64,
            cols: ld as u64,
            ld: ld as u64,
            vouch_words: vouch.len() as u64,
            root: digest(&vouch),
            check: None,
        };
        (front, vouch, data)
    }

    pub(crate) fn write_small(path: &Path, about: &About, position: u32) {
        let (front, vouch, data) = sample(about, position, 30);
        let bytes =
            write_position(path, &front, &vouch, data.bytes(), &[], &Flow::default()).unwrap();
        assert_eq!(fs::metadata(path).unwrap().len(), bytes);
    }

    #[test]
    fn who_is_given_up_leaves_nothing() {
        let about = super::super::record::tests::about(1, 0, 1, 10);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p0");
        let (front, vouch, data) = sample(&about, 0, 30);
        let flow = Flow::default();
        flow.give_up();
        let stopped = write_position(&path, &front, &vouch, data.bytes(), &[], &flow);
        assert_eq!(stopped, Err(Stopped::GivenUp));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let nowhere = dir.path().join("gone/p0");
        let stopped = write_position(&nowhere, &front, &vouch, data.bytes(), &[], &Flow::default());
        let Err(Stopped::Failed(why)) = stopped else { panic!("{stopped:?}") };
        assert!(why.contains("gone/p0.aside") && why.contains("No such file"), "{why}");
    }
}
