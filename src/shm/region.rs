//! Range of mapped memory, which is unmapped when it is dropped.
//!
//! [`super::MemoryStore`] makes regions of persistent shared memory. [`Region::anonymous`] makes regions that end with the
//! process. Persistent shared memory is allocated when it is created. So a node without room reports an error with numbers at
//! once. Otherwise a later touch would be a SIGBUS.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use thiserror::Error;

use super::huge;
use super::room::available_bytes;
use crate::base::threads::{Pool, Shareable};

/// Reason why persistent shared memory is not available.
#[derive(Debug, Error)]
pub enum MemoryError {
    #[error(
        "{what}: {wanted} bytes are wanted, {available} bytes are free in {place}; \
         to make room, remove the memory of earlier runs (`skt-hpl status` lists it, `skt-hpl clean --job NAME` removes it), or \
         mount a tmpfs with a larger size=; or choose a smaller N"
    )]
    NoRoom { what: String, wanted: u64, available: u64, place: String },
    #[error(
        "{what}: {wanted} bytes are wanted, but a file of this process may have at most {limit} bytes (`ulimit -f`); raise this \
         limit, or choose --store sysv or a smaller N"
    )]
    TooLong { what: String, wanted: u64, limit: u64 },
    #[error(
        "{what}: {wanted} bytes are wanted in one more segment of System V shared memory, which the limits of this node do not \
         allow ({limits}); raise the limits (sysctl), remove old segments (`skt-hpl status`, `ipcs -m`), or choose --store posix \
         or a smaller N"
    )]
    Limits { what: String, wanted: u64, limits: String },
    #[error("{0}: no such memory on this node")]
    Missing(String),
    #[error("{0}: exists already on this node; `skt-hpl clean --job NAME` removes a job's memory")]
    Exists(String),
    #[error("{name}: is in use by {by}; give this run another --job name, or end that process")]
    InUse { name: String, by: String },
    #[error("{name}: cannot be read any more: {why}")]
    Damaged { name: String, why: &'static str },
    #[error("{name}: {why}; this memory is left alone and not used")]
    NotOurs { name: String, why: String },
    #[error("{name}: has {found} bytes, but {wanted} bytes were expected")]
    WrongSize { name: String, found: u64, wanted: u64 },
    #[error("{0:?} is not a valid job name: use 1 to 64 letters, digits, '-' or '_'")]
    BadJob(String),
    #[error(
        "no hugetlbfs is mounted on this node (see /proc/mounts); mount one or choose --store posix"
    )]
    NoHugeTlbfs,
    #[error(
        "kernel.shm_rmid_forced is set on this node: System V shared memory would be removed when its processes end, and with it \
         every checkpoint; set kernel.shm_rmid_forced to 0 (sysctl), or choose --store posix"
    )]
    GoesWithProcesses,
    #[error("{what} {path}: {source}")]
    Os { what: &'static str, path: PathBuf, source: io::Error },
}

impl MemoryError {
    /// Returns the error of a failed system call on a file or segment. `what` names the operation.
    pub(super) fn os(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Os { what, path: path.into(), source }
    }
}

/// Mapped memory. Dropping a region unmaps its memory. Persistent shared memory stays until its name is removed.
pub struct Region {
    /// First byte of the caller's range.
    base: NonNull<u8>,
    len: usize,
    /// Range mapped by the system, which may begin before `base` and end after it.
    map_base: NonNull<u8>,
    map_len: usize,
    /// Mapped file. None for private memory, for a System V segment, and for a file that was closed. An open header file carries
    /// the lock that shows a live process.
    file: Option<File>,
}

// SAFETY: a region is a plain range of memory, valid until drop in whatever thread owns it; shared
// access goes through `&self` methods that only read, or through atomics.
unsafe impl Send for Region {}
unsafe impl Sync for Region {}

impl Region {
    /// Maps zeroed memory of this process alone, in huge pages if the system grants them.
    pub fn anonymous(len: usize) -> Result<Self, MemoryError> {
        let map_len = len.max(1);
        let base =
            huge::map_aligned(map_len, libc::PROT_READ | libc::PROT_WRITE, 1).map_err(|_| {
                MemoryError::NoRoom {
                    what: "private memory of one process".into(),
                    wanted: len as u64,
                    available: available_bytes().unwrap_or(0),
                    place: "this node's memory".into(),
                }
            })?;
        // SAFETY: the range was mapped just above. Advice may be refused; nothing depends on it.
        unsafe { libc::madvise(base.as_ptr().cast(), map_len, libc::MADV_HUGEPAGE) };
        Ok(Self { base, len, map_base: base, map_len, file: None })
    }

    /// Maps zeroed memory of this process alone, and touches all pages. Use it for memory whose first use is timed: the first
    /// touch of a page costs more than its use.
    ///
    /// A page is placed in the NUMA node of the core that touches the page first. All threads use all of this memory, so they
    /// touch its huge pages in turn. The memory is then spread evenly over the rank's NUMA nodes, and no node gets all the
    /// traffic.
    pub fn touched(len: usize, pool: &mut Pool) -> Result<Self, MemoryError> {
        let region = Self::anonymous(len)?;
        let start = Shareable::new(region.base.as_ptr());
        huge::in_turn(len, pool, |_, bytes| {
            for at in bytes.step_by(huge::page()) {
                // SAFETY: the byte is within the region, and only one thread touches each page. The write is volatile, so that
                // writing a zero over a zero is not optimised away.
                unsafe { start.get().add(at).write_volatile(0) }
            }
        });
        Ok(region)
    }

    /// Maps the first `map_len` bytes of `file`. The region shows the first `len` bytes of the mapping.
    pub(super) fn map_file(
        file: File,
        len: usize,
        map_len: usize,
        writable: bool,
        path: &Path,
    ) -> Result<Self, MemoryError> {
        let protection =
            if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let map_len = map_len.max(1);
        // Reserves address space that is aligned for huge pages, then maps the file there.
        let place = huge::map_aligned(map_len, libc::PROT_NONE, huge::page_of(&file))
            .map_err(|error| MemoryError::os("cannot map", path, error))?;
        // SAFETY: the file is open, and the mapping replaces only the address space that was just reserved.
        let base = unsafe {
            libc::mmap(
                place.as_ptr().cast(),
                map_len,
                protection,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            let error = MemoryError::os("cannot map", path, io::Error::last_os_error());
            // SAFETY: the range was reserved above, and nothing uses it.
            unsafe { libc::munmap(place.as_ptr().cast(), map_len) };
            return Err(error);
        }
        Ok(Self { base: place, len, map_base: place, map_len, file: Some(file) })
    }

    /// Allocates the pages of memory that was just created and is empty, as huge pages if the kernel gives some.
    pub(super) fn in_huge_pages(&mut self) {
        // SAFETY: the range is this region's mapping, and its file has at least this length.
        unsafe { huge::collapse(self.map_base, self.map_len) };
    }

    /// Maps all pages of the region now. Otherwise the first touch of each page would cost a page fault during the computation.
    /// If the kernel is too old to map pages in advance, pages are mapped when they are touched. Returns an error if a page is
    /// unreadable, because a touch would end the process.
    pub fn populate(&mut self, name: &str) -> Result<(), MemoryError> {
        // SAFETY: the range is this region's mapping, borrowed mutably.
        damage(unsafe { huge::populate(self.base, self.len) }, name)
    }

    /// Checks that every page of the region can be read. Used for small parts that other processes read.
    pub(super) fn readable(&self, name: &str) -> Result<(), MemoryError> {
        // SAFETY: the range is this region's mapping.
        unsafe { readable(self.base, self.len, name) }
    }

    /// Closes the file, for callers that keep many regions open and would exceed the limit of open files.
    pub(super) fn close_file(&mut self) {
        self.file = None;
    }

    pub(super) fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Maps the first page of the region's file for the life of the process. Returns None if the region has no file, or if
    /// mapping fails.
    pub(super) fn lasting_page(&self) -> Option<LastingPage> {
        // The file is opened a second time. A mapping of the first descriptor would keep that file open, and with it the lock.
        let own = format!("/proc/self/fd/{}", self.file()?.as_raw_fd());
        let file = std::fs::OpenOptions::new().read(true).write(true).open(own).ok()?;
        let mut spare = SPARE_PAGES.lock().unwrap_or_else(|broken| broken.into_inner());
        let (place, fixed) = match spare.last() {
            Some(&base) => (std::ptr::with_exposed_provenance_mut(base), libc::MAP_FIXED),
            None => (std::ptr::null_mut(), 0),
        };
        // SAFETY: the file has at least a page. The new mapping is at an address of the kernel's choice, or replaces a page of
        // ours that is no longer used. From now on, a page is mapped at this address at every moment.
        let base = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(place, PAGE, access, libc::MAP_SHARED | fixed, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        spare.pop();
        Some(LastingPage { base: base.expose_provenance() })
    }

    /// Takes over a System V attachment whose first `skip` bytes contain its name.
    ///
    /// # Safety
    /// `attached` is the result of shmat for a segment of at least `skip + len` bytes, and no other code detaches it.
    pub(super) unsafe fn from_sysv(attached: NonNull<u8>, skip: usize, len: usize) -> Self {
        Self {
            // SAFETY: the result is within the attachment, as the caller promises.
            base: unsafe { attached.add(skip) },
            len,
            map_base: attached,
            map_len: skip + len,
            file: None,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of mapped bytes from `as_ptr` on.
    pub(super) fn mapped(&self) -> usize {
        self.map_len - (self.base.as_ptr() as usize - self.map_base.as_ptr() as usize)
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for the life of self; writers need &mut self or are other processes that
        // this program's protocol keeps away (a position has one live process).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and exclusive through &mut self.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// Returns the region as doubles. A remainder of fewer than eight bytes is left out.
    pub fn as_slice_f64(&self) -> &[f64] {
        // SAFETY: the region begins at a multiple of 4096, and any bits are a double.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    pub fn as_slice_f64_mut(&mut self) -> &mut [f64] {
        // SAFETY: the region begins at a multiple of 4096, any bits are a double, and the access is exclusive through &mut self.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().cast(), self.len / 8) }
    }

    /// Returns the region as 64-bit words, for codes and copies.
    pub fn words(&self) -> &[u64] {
        // SAFETY: the region begins at a multiple of 4096, and any bits are a word.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: the region begins at a multiple of 4096, any bits are a word, and the access is exclusive through &mut self.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().cast(), self.len / 8) }
    }
}

/// Checks that every page of a range can be read.
///
/// # Safety
/// `at` is within a mapping that extends `len` bytes from there.
pub(super) unsafe fn readable(at: NonNull<u8>, len: usize, name: &str) -> Result<(), MemoryError> {
    let (at, len) = huge::on_a_page(at, len);
    // SAFETY: the caller promises that the range is mapped. The contents stay as they are.
    let code = unsafe { libc::madvise(at.as_ptr().cast(), len, libc::MADV_POPULATE_READ) };
    let asked = if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    damage(asked, name)
}

/// Converts the kernel's errors that mean a SIGBUS on touch to [`MemoryError::Damaged`]. Ignores all other errors.
fn damage(answer: io::Result<()>, name: &str) -> Result<(), MemoryError> {
    let why = match answer.map_err(|error| error.raw_os_error()) {
        Err(Some(libc::EHWPOISON)) => "a page of it has an uncorrectable memory error",
        Err(Some(libc::EFAULT)) => "its file was cut short",
        _ => return Ok(()),
    };
    Err(MemoryError::Damaged { name: name.into(), why })
}

const PAGE: usize = 4096;

/// Addresses of lasting pages that are no longer used. New lasting pages get these addresses, because a process has a limited
/// number of mappings.
static SPARE_PAGES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Page that is never unmapped, so that references to its words stay valid. After the page is dropped, its address may show the
/// first page of another file.
#[derive(Debug)]
pub(super) struct LastingPage {
    base: usize,
}

impl LastingPage {
    /// Returns the word at byte `at` of the page; None if no word begins there. Do not use the word after the page is dropped,
    /// because it may then belong to another file.
    pub(super) fn word(&self, at: usize) -> Option<&'static AtomicU64> {
        if !at.is_multiple_of(8) || at + 8 > PAGE {
            return None;
        }
        // SAFETY: the word is within a page that is mapped as long as the process lives. All accesses by this address are atomic.
        Some(unsafe {
            AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut::<u64>(self.base + at))
        })
    }
}

impl Drop for LastingPage {
    fn drop(&mut self) {
        SPARE_PAGES.lock().unwrap_or_else(|broken| broken.into_inner()).push(self.base);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the one that was mapped or attached, and nothing else unmaps or detaches it. Unmapping a
        // System V segment detaches it.
        unsafe { libc::munmap(self.map_base.as_ptr().cast(), self.map_len) };
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({} bytes at {:p})", self.len, self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn anonymous_memory_is_zero_and_writable() {
        let mut region = Region::anonymous(1 << 20).unwrap();
        assert!(region.bytes().iter().all(|&b| b == 0));
        region.as_slice_f64_mut()[17] = 2.5;
        assert_eq!(region.words()[17], 2.5f64.to_bits());
    }

    /// Tests a lasting page that may take over the address of a dropped lasting page of another file. A write to the new page
    /// reaches only the new file.
    #[test]
    fn a_page_that_lasts_is_the_next_files_when_it_is_dropped() {
        let made = || {
            let file = tempfile::tempfile().unwrap();
            file.set_len(4096).unwrap();
            Region::map_file(file, 4096, 4096, true, Path::new("t")).unwrap()
        };
        let (one, other) = (made(), made());
        let page = one.lasting_page().unwrap();
        page.word(64).unwrap().store(1, Ordering::SeqCst);
        drop(page);
        // Another test may have taken the old page by now.
        let page = other.lasting_page().unwrap();
        page.word(64).unwrap().store(2, Ordering::SeqCst);
        assert_eq!((one.words()[8], other.words()[8]), (1, 2));
        assert!(page.word(4).is_none() && page.word(4096).is_none() && page.word(4088).is_some());
    }

    /// A page past the end of its file is an error, as a page with a memory error is.
    #[test]
    fn a_page_that_cannot_be_touched_is_an_error_and_no_signal() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let cut = file.try_clone().unwrap();
        let mut region = Region::map_file(file, 8192, 8192, true, Path::new("t")).unwrap();
        assert!(region.populate("t").is_ok() && region.readable("t").is_ok());
        cut.set_len(4096).unwrap();
        for answer in [region.populate("t"), region.readable("t")] {
            assert!(matches!(answer, Err(MemoryError::Damaged { .. })), "{answer:?}");
        }
        let poisoned = damage(Err(io::Error::from_raw_os_error(libc::EHWPOISON)), "x");
        assert!(poisoned.unwrap_err().to_string().contains("uncorrectable"));
        assert!(damage(Err(io::Error::from_raw_os_error(libc::EINVAL)), "x").is_ok());
    }

    #[test]
    fn anonymous_memory_of_impossible_size_is_an_error_with_numbers() {
        let error = Region::anonymous(1 << 60).unwrap_err().to_string();
        assert!(error.contains(&(1u64 << 60).to_string()), "{error}");
    }
}
