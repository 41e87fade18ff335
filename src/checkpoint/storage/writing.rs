//! Writer of a position's file. The writer bypasses the page cache if the file system allows it.
//!
//! The matrix fills the memory of a node, so there is no room for a second copy of the data in the page cache. So data goes to
//! the device directly from persistent shared memory (`O_DIRECT`). If the file system refuses `O_DIRECT`, data is written in
//! pieces, which are synced and dropped from the cache. A thread that waits for the writer sees its progress in a [`Flow`], by
//! which the thread can also cancel the write.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::iter;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use thiserror::Error;

use super::BLOCK_BYTES;
use super::names;
use super::record::Front;
use crate::base::faults::{self, Point, hit};
use crate::base::heartbeat;
use crate::parity::code::bytes;
use crate::shm::Region;

/// Maximum number of bytes written by one system call.
const CHUNK_BYTES: usize = 8 << 20;
/// Maximum number of written bytes in the page cache. When it is reached, these bytes are synced and dropped.
const CACHED_BYTES: u64 = 64 << 20;
/// Number of bytes between syncs if the file system accepts `O_DIRECT`. Some file systems accept it (ext4 with data=journal), but
/// keep all data in the page cache. A single sync at the end would then take as long as writing the whole file, without reported
/// progress. If nothing is cached, a sync costs little.
const TAKEN_BYTES: u64 = 512 << 20;

/// Progress of a transfer, visible to other threads.
#[derive(Debug, Default)]
pub struct Flow {
    /// Number of steps so far. A step is, for example, a written piece or a removed file.
    steps: AtomicU64,
    given_up: AtomicBool,
    awaited: AtomicBool,
    /// Function that a unit test sets. Each step calls the function.
    #[cfg(test)]
    tell: Option<fn()>,
}

/// Reason why a transfer failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Stopped {
    #[error("the operation was cancelled")]
    GivenUp,
    #[error("{0}")]
    Failed(String),
}

/// Makes the error of a transfer from the error text of a failed operation on files.
impl From<String> for Stopped {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl Flow {
    /// Creates a flow that calls `tell` at each step.
    #[cfg(test)]
    pub fn told_to(tell: fn()) -> Self {
        Self { tell: Some(tell), ..Self::default() }
    }

    /// Counts a step. Returns an error if the transfer is cancelled.
    pub fn step(&self) -> Result<(), Stopped> {
        self.steps.fetch_add(1, Ordering::Relaxed);
        #[cfg(test)]
        if let Some(tell) = self.tell {
            tell();
        }
        if self.awaited.load(Ordering::Relaxed) {
            // The heartbeat is sent only while the rank waits for the transfer. While the rank computes, such heartbeats would
            // hide that the rank hangs.
            heartbeat::beat();
        }
        if self.given_up.load(Ordering::Relaxed) { Err(Stopped::GivenUp) } else { Ok(()) }
    }

    /// Number of steps so far.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Records that from now on the rank only waits for this transfer. Each step then counts as a heartbeat of the rank.
    pub fn is_awaited(&self) {
        self.awaited.store(true, Ordering::Relaxed);
    }
}

/// File that is being written in whole blocks, either from its beginning or over its old contents.
pub(super) struct Target {
    file: File,
    path: PathBuf,
    /// True if the file is open with `O_DIRECT`, which bypasses the page cache.
    direct: bool,
    at: u64,
    /// Bytes that may be in the page cache.
    cached: u64,
}

/// File of an obsolete checkpoint that becomes the file of the new checkpoint. Parts that are equal in both checkpoints are not
/// written again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    pub from: PathBuf,
    /// Byte ranges of the matrix in which the two checkpoints differ, counted from the start of the matrix; ascending, without
    /// overlap.
    pub data: Vec<Range<u64>>,
    /// Byte ranges of the parity in which the two checkpoints differ, counted from the start of the parity; ascending, without
    /// overlap.
    pub check: Vec<Range<u64>>,
}

/// Maximum gap between two ranges that are written as one range. Writing the gap costs less than another system call.
const GAP_BYTES: u64 = 32 << 10;

/// Returns ranges of whole blocks that cover these `ranges`. Ranges with a gap of at most [`GAP_BYTES`] are joined. The results
/// end at `bytes`, the length of the matrix or parity, at the latest.
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

/// Cuts ranges into pieces, each of which is written by one system call. If the ranges have more than one block, there are at
/// least two pieces, so that a crash point fits between the pieces.
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

    /// Opens a file with `O_DIRECT`, or without `O_DIRECT` if the file system refuses it.
    fn with(options: &mut OpenOptions, path: &Path) -> io::Result<Self> {
        faults::stores()?;
        let (file, direct) = match options.custom_flags(libc::O_DIRECT).open(path) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (options.custom_flags(0).open(path)?, false)
            }
            opened => (opened?, true),
        };
        Ok(Self { file, path: path.into(), direct, at: 0, cached: 0 })
    }

    /// Opens an existing file. Fails if its length is not `bytes`.
    fn open(path: &Path, bytes: u64) -> io::Result<Self> {
        let target = Self::with(&mut options(), path)?;
        if target.file.metadata()?.len() != bytes {
            return Err(io::Error::other(
                "the old file, which is to be overwritten, does not have the expected length",
            ));
        }
        Ok(target)
    }

    /// Writes `bytes`, which must be whole blocks in page-aligned memory.
    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(bytes.len().is_multiple_of(BLOCK_BYTES));
        faults::stores()?;
        let mut written = self.file.write_all_at(bytes, self.at);
        if self.direct && matches!(&written, Err(e) if e.raw_os_error() == Some(libc::EINVAL)) {
            // The device requires larger blocks, or does not accept this memory.
            self.file = options().open(&self.path)?;
            self.direct = false;
            written = self.file.write_all_at(bytes, self.at);
        }
        written?;
        self.at += bytes.len() as u64;
        self.cached += bytes.len() as u64;
        if self.cached >= if self.direct { TAKEN_BYTES } else { CACHED_BYTES } {
            self.file.sync_data()?;
            // An error is ignored: the advice only frees memory earlier.
            let _ = posix_fadvise(&self.file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
            self.cached = 0;
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        faults::stores()?;
        self.file.sync_all()
    }
}

/// Writes the file of a position: the header `front`, the small state and digests `vouch`, the matrix, and the parity if the
/// header has any. The matrix is the beginning of `data`, the parity is the beginning of `check`. Both `data` and `check` must be
/// page-aligned.
///
/// The file gets its final name when it is complete and on the device. Before it gets the name, `same` checks that the data in
/// memory has not changed during the write. If `same` fails, the file is removed. With `over`, only blocks that differ from the
/// old file are written. Returns the number of bytes written.
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
    let written = stream(&aside, front, vouch, [data, check], over, flow).and_then(|bytes| {
        same()?;
        give_name(&aside, path)?;
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
) -> Result<u64, Stopped> {
    let position = front.position as usize;
    hit(Point::StreamBegin, position);
    let target = match over {
        None => Target::create(aside),
        // After this rename, the old file no longer exists.
        Some(over) => {
            fs::rename(&over.from, aside).and_then(|()| Target::open(aside, front.file_bytes()))
        }
    };
    let target = target.map_err(|e| cannot("create", aside, e))?;
    // Data that is not page-aligned is copied to page-aligned memory.
    let room = Region::anonymous(CHUNK_BYTES.min(front.data_at() as usize).max(BLOCK_BYTES));
    let mut room = room.map_err(|e| Stopped::Failed(e.to_string()))?;
    let room = room.bytes_mut();
    let mut stream = Stream { target, written: 0, flow };
    stream.head(front, vouch, room)?;

    let data = &data[..front.data_words() as usize * 8];
    let check = &check[..front.check.as_ref().map_or(0, |check| check.words as usize * 8)];
    let half = || hit(Point::StreamHalf, position);
    // If a position has no part of the matrix, only parity is written, and the crash point is midway in the parity.
    let half: &dyn Fn() = &half;
    let halves = if data.is_empty() { [None, Some(half)] } else { [Some(half), None] };
    stream.part(front.data_at(), data, over.map(|over| &over.data[..]), room, halves[0])?;
    stream.part(front.check_at(), check, over.map(|over| &over.check[..]), room, halves[1])?;
    stream.target.sync().map_err(|e| cannot("sync", aside, e))?;
    flow.step()?;
    hit(Point::StreamSynced, position);
    debug_assert!(over.is_some() || stream.written == front.file_bytes());
    Ok(stream.written)
}

/// File of a position that is being written, and its progress.
struct Stream<'a> {
    target: Target,
    written: u64,
    flow: &'a Flow,
}

impl Stream<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Stopped> {
        self.target.put(bytes).map_err(|e| cannot("write", &self.target.path, e))?;
        self.written += bytes.len() as u64;
        self.flow.step()
    }

    /// Writes the header, the small state and the digests, each copied to `room`, which is page-aligned.
    fn head(&mut self, front: &Front, vouch: &[u64], room: &mut [u8]) -> Result<(), Stopped> {
        for piece in iter::once(&front.to_block()[..]).chain(bytes(vouch).chunks(room.len())) {
            let blocks = piece.len().next_multiple_of(BLOCK_BYTES);
            room[..piece.len()].copy_from_slice(piece);
            room[piece.len()..blocks].fill(0);
            self.put(&room[..blocks])?;
        }
        Ok(())
    }

    /// Writes `bytes`, the matrix or the parity, to offset `at` of the file. If `changed` is given, writes only these ranges.
    /// Calls `half` midway.
    fn part(
        &mut self,
        at: u64,
        bytes: &[u8],
        changed: Option<&[Range<u64>]>,
        room: &mut [u8],
        half: Option<&dyn Fn()>,
    ) -> Result<(), Stopped> {
        let (whole, rest) = bytes.split_at(bytes.len() / BLOCK_BYTES * BLOCK_BYTES);
        let all = 0..whole.len() as u64;
        let pieces = match changed {
            None => in_pieces(std::slice::from_ref(&all)),
            Some(changed) => in_pieces(&in_blocks(changed, all.end)),
        };
        for (turn, piece) in pieces.iter().enumerate() {
            if turn == pieces.len() / 2
                && let Some(half) = half
            {
                half();
            }
            self.target.at = at + piece.start as u64;
            self.put(&whole[piece.clone()])?;
        }
        if !rest.is_empty() {
            room[..rest.len()].copy_from_slice(rest);
            room[rest.len()..BLOCK_BYTES].fill(0);
            self.target.at = at + all.end;
            self.put(&room[..BLOCK_BYTES])?;
        }
        Ok(())
    }
}

/// Returns the error text for a failed operation `what` on a file or folder.
pub(super) fn cannot(what: &str, path: &Path, error: io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

/// Syncs the names in a folder to the device. A file system that reports EINVAL needs no such sync.
pub fn sync_names(folder: &Path) -> io::Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        told => told,
    }
}

pub(super) fn sync_folder(path: &Path) -> Result<(), String> {
    sync_names(path).map_err(|error| cannot("sync", path, error))
}

/// Renames a complete file to its final name, and syncs the folder.
pub(super) fn give_name(aside: &Path, path: &Path) -> Result<(), String> {
    let named = faults::stores().and_then(|()| fs::rename(aside, path));
    named.map_err(|e| cannot("rename", aside, e))?;
    sync_folder(path.parent().expect("a file is in a folder"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::parity::digest::digest;
    use crate::testkit::stored::{about, sample, write_new};

    /// procfs reports EINVAL, like file systems that cannot sync.
    #[test]
    fn a_file_system_that_cannot_sync_names_need_not() {
        assert!(File::open("/proc").unwrap().sync_all().is_err());
        sync_names(Path::new("/proc")).unwrap();
        let missing = sync_names(Path::new("/no/such/folder")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    /// Confirms that the source has not changed.
    fn same() -> Result<(), Stopped> {
        Ok(())
    }

    #[test]
    fn a_writer_that_is_given_up_leaves_nothing() {
        let about = about(1, 0, 1, 10);
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
        let stopped = write_new(&nowhere, &front, &vouch, parts);
        let Err(Stopped::Failed(why)) = stopped else { panic!("{stopped:?}") };
        assert!(why.contains("gone/p0.aside") && why.contains("No such file"), "{why}");
    }

    proptest! {
        /// The pieces cover all bytes that differ, in whole blocks and in ascending order.
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

    /// A file that is written over an old file, only where the contents differ, equals a file that is newly written.
    #[test]
    fn a_file_written_over_is_the_file_written_from_scratch() {
        let dir = tempfile::tempdir().unwrap();
        let of = about;
        let (rows, ld) = (900, 40);
        let (old, old_vouch, mut data) = sample(&of(1, 0, 1, 10), 0, rows);
        let from = dir.path().join("old");
        write_new(&from, &old, &old_vouch, [data.bytes(), &[]]).unwrap();
        let mut differs = Vec::new();
        for row in 700..rows {
            data.words_mut()[row * ld + 10..(row + 1) * ld].iter_mut().for_each(|w| *w ^= 0x5555);
            differs.push(((row * ld + 10) * 8) as u64..((row + 1) * ld * 8) as u64);
        }
        let vouch: Vec<u64> = data.words().chunks(ld).map(digest).collect();
        let front = Front { about: of(1, 0, 3, 30), root: digest(&vouch), ..old };
        let (over, new) = (dir.path().join("over"), dir.path().join("new"));
        let parts = [data.bytes(), &[]];
        let all = write_new(&new, &front, &vouch, parts).unwrap();
        let what = Over { from: from.clone(), data: differs, check: Vec::new() };
        let flow = Flow::default();
        let some = write_position(&over, &front, &vouch, parts, Some(&what), &flow, same).unwrap();
        assert!(some < all / 2, "{some} of {all}");
        assert!(fs::read(&over).unwrap() == fs::read(&new).unwrap() && !from.exists());
        // A file of the wrong length is not used.
        let what = Over { from: over.clone(), ..what };
        File::options().write(true).open(&over).unwrap().set_len(8192).unwrap();
        let stopped = write_position(&from, &front, &vouch, parts, Some(&what), &flow, same);
        assert!(matches!(stopped, Err(Stopped::Failed(why)) if why.contains("expected length")));
    }
}
