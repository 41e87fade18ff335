//! Streams a position's file to storage, past the page cache where the file system allows it.
//!
//! The page cache would be a second copy of what is written, on a node whose memory the matrix fills. So data goes to the
//! device as it lies in named memory (`O_DIRECT`); where that is refused, in pieces that are synced and dropped from
//! the cache. Whoever waits, or has lost patience, sees and says so through a [`Flow`].

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thiserror::Error;

use super::BLOCK_BYTES;
use super::names;
use super::record::Front;
use super::shelf::give_name;
use crate::base::faults::{Point, hit};
use crate::base::pulse;
use crate::shm::Region;

/// What one call of the kernel writes.
const CHUNK_BYTES: usize = 8 << 20;
/// What may lie in the page cache before it is synced and dropped.
const CACHED_BYTES: u64 = 64 << 20;
/// The same where the file system has taken `O_DIRECT`. Some that do (ext4 with data=journal) keep all of it in the page cache,
/// and the sync at the end, which tells of no step, would take as long as the whole file. Where nothing is kept a sync costs
/// little.
const TAKEN_BYTES: u64 = 512 << 20;

/// How a transfer gets on, seen from another thread.
#[derive(Debug, Default)]
pub struct Flow {
    moved: AtomicU64,
    /// Steps of any kind: what lists or removes files moves no bytes, and goes on all the same.
    steps: AtomicU64,
    given_up: AtomicBool,
    awaited: AtomicBool,
    /// What a test does at each step.
    #[cfg(test)]
    tell: Option<fn(u64)>,
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
    /// One whose steps a test sees, bytes each.
    #[cfg(test)]
    pub fn told_to(tell: fn(u64)) -> Self {
        Self { tell: Some(tell), ..Self::default() }
    }

    /// A step is done, of so many bytes; an error where nobody wants the rest.
    pub fn went_on(&self, bytes: u64) -> Result<(), Stopped> {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        self.steps.fetch_add(1, Ordering::Relaxed);
        #[cfg(test)]
        if let Some(tell) = self.tell {
            tell(bytes);
        }
        if self.awaited.load(Ordering::Relaxed) {
            // Beside a rank that computes this would hide that it hangs.
            pulse::beat();
        }
        match self.is_given_up() {
            true => Err(Stopped::GivenUp),
            false => Ok(()),
        }
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// How often it went on.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// From here on the rank does nothing but wait for this.
    pub fn is_awaited(&self) {
        self.awaited.store(true, Ordering::Relaxed);
    }
}

/// A file that is being written in whole blocks, from its beginning or over what is there.
pub(super) struct Target {
    file: File,
    path: PathBuf,
    /// Past the page cache.
    direct: bool,
    at: u64,
    /// Bytes that may lie in the page cache.
    cached: u64,
}

/// A file of an epoch that nobody needs any more, to be made the one that is written: what both have alike is left as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    pub from: PathBuf,
    /// Bytes of the matrix, and of the parity, that differ: ascending, side by side at most.
    pub data: Vec<Range<u64>>,
    pub check: Vec<Range<u64>>,
}

/// So little between two pieces is written through: a further call costs more.
const GAP_BYTES: u64 = 32 << 10;

/// Whole blocks of a part of so many bytes that cover these ranges.
fn in_blocks(ranges: &[Range<u64>], bytes: u64) -> Vec<Range<u64>> {
    let block = BLOCK_BYTES as u64;
    let mut found: Vec<Range<u64>> = Vec::new();
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        let start = range.start / block * block;
        let end = range.end.next_multiple_of(block).min(bytes);
        match found.last_mut() {
            Some(last) if start <= last.end + GAP_BYTES => last.end = last.end.max(end),
            _ => found.push(start..end),
        }
    }
    found
}

/// The same in pieces for one call each: two at least where there is more than a block, so that there is something between them.
fn in_pieces(ranges: &[Range<u64>]) -> Vec<Range<usize>> {
    let all: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    let piece = (all as usize / 2).next_multiple_of(BLOCK_BYTES).clamp(BLOCK_BYTES, CHUNK_BYTES);
    let cut = |range: &Range<u64>| {
        let (start, end) = (range.start as usize, range.end as usize);
        (start..end).step_by(piece).map(move |at| at..end.min(at + piece))
    };
    ranges.iter().flat_map(cut).collect()
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

impl Target {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Self::with(options().create(true).truncate(true), path)
    }

    /// Past the page cache where the file system can do that.
    fn with(options: &mut OpenOptions, path: &Path) -> io::Result<Self> {
        let (file, direct) = match options.custom_flags(libc::O_DIRECT).open(path) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (options.custom_flags(0).open(path)?, false)
            }
            opened => (opened?, true),
        };
        Ok(Self { file, path: path.into(), direct, at: 0, cached: 0 })
    }

    /// Opens a file that is there, of this length.
    fn open(path: &Path, bytes: u64) -> io::Result<Self> {
        let target = Self::with(&mut options(), path)?;
        match target.file.metadata()?.len() == bytes {
            true => Ok(target),
            false => Err(io::Error::other("it is not as long as it was written")),
        }
    }

    /// Puts whole blocks that lie at the beginning of a page.
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
        self.cached += bytes.len() as u64;
        if self.cached >= if self.direct { TAKEN_BYTES } else { CACHED_BYTES } {
            self.file.sync_data()?;
            // SAFETY: advice about a file that we hold open; nothing depends on it.
            unsafe {
                libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
            }
            self.cached = 0;
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// Writes the file of a position: `front`, then `vouch`, then the matrix, which is the beginning of `data`, then the parity if
/// the front tells of any, the beginning of `check`; both lie at the beginning of a page. Its name it gets when it is whole and
/// on the device, and if `same` says that what was written is what lay there from beginning to end. Returns the bytes that were
/// written, which are all of its, or those that `over` leaves to be written.
pub fn write_position(
    path: &Path,
    front: &Front,
    vouch: &[u64],
    [data, check]: [&[u8]; 2],
    over: Option<&Over>,
    flow: &Flow,
    same: impl FnOnce() -> Result<(), Stopped>,
) -> Result<u64, Stopped> {
    let aside = names::aside(path);
    let failed = |what: &str, error: io::Error| {
        Stopped::Failed(format!("cannot {what} {}: {error}", aside.display()))
    };
    let written =
        stream(&aside, front, vouch, [data, check], over, flow, &failed).and_then(|bytes| {
            same()?;
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
    over: Option<&Over>,
    flow: &Flow,
    failed: &dyn Fn(&str, io::Error) -> Stopped,
) -> Result<u64, Stopped> {
    let position = front.position as usize;
    hit(Point::StreamBegin, position);
    let target = match over {
        None => Target::create(aside),
        // From here on it is nobody's.
        Some(over) => {
            fs::rename(&over.from, aside).and_then(|()| Target::open(aside, front.file_bytes()))
        }
    };
    let mut target = target.map_err(|e| failed("make", e))?;
    let mut written = 0;
    // What does not lie in whole pages is put together in memory that does.
    let room = Region::anonymous(CHUNK_BYTES.min(front.data_at() as usize).max(BLOCK_BYTES));
    let mut room = room.map_err(|e| Stopped::Failed(e.to_string()))?;
    let mut put = |target: &mut Target, bytes: &[u8]| -> Result<(), Stopped> {
        target.put(bytes).map_err(|e| failed("write", e))?;
        written += bytes.len() as u64;
        flow.went_on(bytes.len() as u64)
    };
    let room = room.bytes_mut();
    room[..BLOCK_BYTES].copy_from_slice(&front.to_block());
    let mut held = BLOCK_BYTES;
    for &word in vouch {
        room[held..held + 8].copy_from_slice(&word.to_le_bytes());
        held += 8;
        if held == room.len() {
            put(&mut target, room)?;
            held = 0;
        }
    }
    let blocks = held.next_multiple_of(BLOCK_BYTES);
    room[held..blocks].fill(0);
    put(&mut target, &room[..blocks])?;

    let data = &data[..front.data_words() as usize * 8];
    let check = &check[..front.check.as_ref().map_or(0, |check| check.words as usize * 8)];
    // Who has no part of the matrix writes parity alone.
    let longer = usize::from(data.is_empty());
    for (part, bytes) in [data, check].into_iter().enumerate() {
        let at = [front.data_at(), front.check_at()][part];
        let (whole, rest) = bytes.split_at(bytes.len() / BLOCK_BYTES * BLOCK_BYTES);
        let all = 0..whole.len() as u64;
        let pieces = match over {
            None => in_pieces(std::slice::from_ref(&all)),
            Some(over) => in_pieces(&in_blocks([&over.data, &over.check][part], all.end)),
        };
        for (turn, piece) in pieces.iter().enumerate() {
            if part == longer && turn == pieces.len() / 2 {
                hit(Point::StreamHalf, position);
            }
            target.at = at + piece.start as u64;
            put(&mut target, &whole[piece.clone()])?;
        }
        if !rest.is_empty() {
            room[..rest.len()].copy_from_slice(rest);
            room[rest.len()..BLOCK_BYTES].fill(0);
            target.at = at + all.end;
            put(&mut target, &room[..BLOCK_BYTES])?;
        }
    }
    target.sync().map_err(|e| failed("sync", e))?;
    flow.went_on(0)?;
    hit(Point::StreamSynced, position);
    debug_assert!(over.is_some() || written == front.file_bytes());
    Ok(written)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::super::record::About;
    use super::*;
    use crate::parity::digest::digest;

    /// What lies there does not change.
    fn same() -> Result<(), Stopped> {
        Ok(())
    }

    /// Writes a file of a matrix and a parity, undisturbed and over nothing.
    pub(crate) fn anew(
        path: &Path,
        front: &Front,
        vouch: &[u64],
        parts: [&[u8]; 2],
    ) -> Result<u64, Stopped> {
        write_position(path, front, vouch, parts, None, &Flow::default(), same)
    }

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
        let bytes = anew(path, &front, &vouch, [data.bytes(), &[]]).unwrap();
        assert_eq!(fs::metadata(path).unwrap().len(), bytes);
    }

    #[test]
    fn who_is_given_up_leaves_nothing() {
        let about = super::super::record::tests::about(1, 0, 1, 10);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p0");
        let (front, vouch, data) = sample(&about, 0, 30);
        let parts = [data.bytes(), &[]];
        let flow = Flow::default();
        flow.give_up();
        let stopped = write_position(&path, &front, &vouch, parts, None, &flow, same);
        assert_eq!(stopped, Err(Stopped::GivenUp));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let moved = || Err(Stopped::Failed("it has changed".into()));
        let flow = Flow::default();
        let stopped = write_position(&path, &front, &vouch, parts, None, &flow, moved);
        assert_eq!(stopped, Err(Stopped::Failed("it has changed".into())));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let nowhere = dir.path().join("gone/p0");
        let stopped = anew(&nowhere, &front, &vouch, parts);
        let Err(Stopped::Failed(why)) = stopped else { panic!("{stopped:?}") };
        assert!(why.contains("gone/p0.aside") && why.contains("No such file"), "{why}");
    }

    proptest! {
        /// Whatever differs is covered, by whole blocks, in order, and no more is written than that needs.
        #[test]
        fn pieces_cover_what_differs(
            rows in 1u64..60, ld in 1u64..3000, from in (0.0f64..1.0, 0.0f64..1.0),
        ) {
            let (row, col) = ((rows as f64 * from.0) as u64, (ld as f64 * from.1) as u64);
            let wanted: Vec<Range<u64>> =
                (row..rows).map(|row| (row * ld + col) * 8..(row + 1) * ld * 8).collect();
            let bytes = rows * ld * 8 / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
            let blocks = in_blocks(&wanted, bytes);
            let pieces = in_pieces(&blocks);
            prop_assert!(blocks.windows(2).all(|pair| pair[0].end + GAP_BYTES < pair[1].start));
            for range in wanted {
                let inside = range.start.min(bytes)..range.end.min(bytes);
                let covers = |b: &Range<u64>| b.start <= inside.start && inside.end <= b.end;
                prop_assert!(inside.is_empty() || blocks.iter().any(covers), "{inside:?} {blocks:?}");
            }
            let whole = |piece: &Range<usize>| {
                piece.start.is_multiple_of(BLOCK_BYTES) && piece.len().is_multiple_of(BLOCK_BYTES)
            };
            prop_assert!(pieces.iter().all(|piece| whole(piece) && piece.len() <= CHUNK_BYTES));
            let cut: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
            prop_assert_eq!(cut, blocks.iter().map(|b| b.end - b.start).sum::<u64>());
        }
    }

    /// An old file becomes the new one by what differs, and is the very file that would have been written anew.
    #[test]
    fn a_file_written_over_is_the_file_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let of = super::super::record::tests::about;
        let (rows, ld) = (900, 40);
        let (old, old_vouch, mut data) = sample(&of(1, 0, 1, 10), 0, rows);
        let from = dir.path().join("old");
        anew(&from, &old, &old_vouch, [data.bytes(), &[]]).unwrap();
        let mut differs = Vec::new();
        for row in 700..rows {
            data.words_mut()[row * ld + 10..(row + 1) * ld].iter_mut().for_each(|w| *w ^= 0x5555);
            differs.push(((row * ld + 10) * 8) as u64..((row + 1) * ld * 8) as u64);
        }
        let vouch: Vec<u64> = data.words().chunks(ld).map(digest).collect();
        let front = Front { about: of(1, 0, 3, 30), root: digest(&vouch), ..old };
        let (over, new) = (dir.path().join("over"), dir.path().join("anew"));
        let parts = [data.bytes(), &[]];
        let all = anew(&new, &front, &vouch, parts).unwrap();
        let what = Over { from: from.clone(), data: differs, check: Vec::new() };
        let flow = Flow::default();
        let some = write_position(&over, &front, &vouch, parts, Some(&what), &flow, same).unwrap();
        assert!(some < all / 2, "{some} of {all}");
        assert!(fs::read(&over).unwrap() == fs::read(&new).unwrap() && !from.exists());
        // One that is not as it was written is not used.
        let what = Over { from: over.clone(), ..what };
        File::options().write(true).open(&over).unwrap().set_len(8192).unwrap();
        let stopped = write_position(&from, &front, &vouch, parts, Some(&what), &flow, same);
        assert!(matches!(stopped, Err(Stopped::Failed(why)) if why.contains("not as long")));
    }
}
