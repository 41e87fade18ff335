//! Range of mapped memory: its start, its length and its removal.
//!
//! [`super::MemoryStore`] makes regions of persistent shared memory, [`Region::anonymous`] those that end with the process.
//! Persistent shared memory is allocated when it is created. So a node that is too small reports this at once, in numbers; later
//! it would be a SIGBUS.

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
         make room there (`skt-hpl status` shows what earlier runs left, `skt-hpl clean --job NAME` removes it; or mount it with \
         a larger size=), or choose a smaller N"
    )]
    NoRoom { what: String, wanted: u64, available: u64, place: String },
    #[error(
        "{what}: {wanted} bytes are wanted, and a file of this process may have {limit} (`ulimit -f`); raise that limit, or \
         choose --store sysv or a smaller N"
    )]
    TooLong { what: String, wanted: u64, limit: u64 },
    #[error(
        "{what}: {wanted} bytes are wanted in one more segment of System V shared memory, which the limits of this node do not \
         allow ({limits}); raise them (sysctl), remove what lies there (`skt-hpl status`, `ipcs -m`), or choose --store posix or \
         a smaller N"
    )]
    Limits { what: String, wanted: u64, limits: String },
    #[error("{0}: no such memory on this node")]
    Missing(String),
    #[error("{0}: exists already on this node; `skt-hpl clean --job NAME` removes a job's memory")]
    Exists(String),
    #[error("{name}: is in use by {by}; give this run another --job name or end that one")]
    InUse { name: String, by: String },
    #[error("{name}: cannot be read any more: {why}")]
    Damaged { name: String, why: &'static str },
    #[error("{name}: {why}; it is left alone and not used")]
    NotOurs { name: String, why: String },
    #[error("{name}: holds {found} bytes where {wanted} were expected")]
    WrongSize { name: String, found: u64, wanted: u64 },
    #[error("{0:?} is no name for a job: 1 to 64 letters, digits, '-' or '_'")]
    BadJob(String),
    #[error(
        "no hugetlbfs is mounted on this node (see /proc/mounts); mount one or choose --store posix"
    )]
    NoHugeTlbfs,
    #[error(
        "kernel.shm_rmid_forced is set on this node, with which System V shared memory goes with the processes that have it, and \
         no checkpoint would outlive them; set it to 0 (sysctl), or choose --store posix"
    )]
    GoesWithProcesses,
    #[error("{what} {path}: {source}")]
    Os { what: &'static str, path: PathBuf, source: io::Error },
}

impl MemoryError {
    /// Error of an operation on a file or segment.
    pub(super) fn os(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Os { what, path: path.into(), source }
    }
}

enum Owner {
    /// The file stays open: it carries the lock that shows a live process.
    Mapped {
        file: Option<File>,
    },
    SysV,
}

/// Mapped memory. Dropping it unmaps; persistent shared memory itself stays until it is unlinked.
pub struct Region {
    /// First byte of the caller's range.
    base: NonNull<u8>,
    len: usize,
    /// Range mapped by the system, which may begin before `base` and end after it.
    map_base: NonNull<u8>,
    map_len: usize,
    owner: Owner,
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
                    what: "memory of one process".into(),
                    wanted: len as u64,
                    available: available_bytes().unwrap_or(0),
                    place: "this node's memory".into(),
                }
            })?;
        // SAFETY: the range was mapped just above. Advice may be refused; nothing depends on it.
        unsafe { libc::madvise(base.as_ptr().cast(), map_len, libc::MADV_HUGEPAGE) };
        Ok(Self { base, len, map_base: base, map_len, owner: Owner::Mapped { file: None } })
    }

    /// Maps memory like [`Region::anonymous`], and touches all pages. Use it for memory whose first use is timed: the first touch
    /// of a page costs more than its use.
    ///
    /// A page is placed in the NUMA node of the core that touches it first. All threads use all of this memory, so they touch its
    /// huge pages in turn. The memory is then spread evenly over the rank's NUMA nodes, and none gets all the traffic.
    pub fn touched(len: usize, pool: &mut Pool) -> Result<Self, MemoryError> {
        let region = Self::anonymous(len)?;
        let start = Shareable::new(region.base.as_ptr());
        huge::in_turn(len, pool, |_, bytes| {
            for at in bytes.step_by(huge::page()) {
                // SAFETY: within the region, and each page is one thread's; volatile so that writing a zero over a zero is not
                // optimised away.
                unsafe { start.get().add(at).write_volatile(0) }
            }
        });
        Ok(region)
    }

    /// Maps the first `map_len` bytes of `file`, of which the caller sees `len`.
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
        // SAFETY: maps a file we hold open, over nothing but the address space just taken.
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
            // SAFETY: taken above, not used.
            unsafe { libc::munmap(place.as_ptr().cast(), map_len) };
            return Err(error);
        }
        Ok(Self {
            base: place,
            len,
            map_base: place,
            map_len,
            owner: Owner::Mapped { file: Some(file) },
        })
    }

    /// Allocates huge pages, if the kernel gives some, for memory that was just created and is empty.
    pub(super) fn in_huge_pages(&mut self) {
        // SAFETY: our own mapping, whose file was given this length.
        unsafe { huge::collapse(self.map_base, self.map_len) };
    }

    /// Maps all pages now; otherwise the first touch of each costs a page fault within the computation's time. If the kernel
    /// cannot do so, pages are mapped on touch. An unreadable page is an error here; a touch would end the process.
    pub fn populate(&mut self, name: &str) -> Result<(), MemoryError> {
        // SAFETY: our own mapping, borrowed mutably.
        damage(unsafe { huge::populate(self.base, self.len) }, name)
    }

    /// Checks that every page can be read: for small parts that other processes read.
    pub(super) fn readable(&self, name: &str) -> Result<(), MemoryError> {
        // SAFETY: our own mapping.
        unsafe { readable(self.base, self.len, name) }
    }

    /// Closes the file, for callers that keep many regions open and would exceed the limit of open files.
    pub(super) fn close_file(&mut self) {
        if let Owner::Mapped { file } = &mut self.owner {
            *file = None;
        }
    }

    pub(super) fn file(&self) -> Option<&File> {
        match &self.owner {
            Owner::Mapped { file } => file.as_ref(),
            Owner::SysV => None,
        }
    }

    /// Maps the first page of the region's file for the life of the process. Returns None if the region has no file.
    pub(super) fn lasting_page(&self) -> Option<LastingPage> {
        // Opened a second time, because a mapping keeps its file open, and with it any lock.
        let own = format!("/proc/self/fd/{}", self.file()?.as_raw_fd());
        let file = std::fs::OpenOptions::new().read(true).write(true).open(own).ok()?;
        let mut spare = SPARE_PAGES.lock().unwrap_or_else(|broken| broken.into_inner());
        let (place, fixed) = match spare.last() {
            Some(&base) => (std::ptr::with_exposed_provenance_mut(base), libc::MAP_FIXED),
            None => (std::ptr::null_mut(), 0),
        };
        // SAFETY: a fresh mapping of a file that holds a page, at a place of the kernel's choice or over a page of ours that is
        // no longer used; there is a page at that address at every moment from now on.
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

    /// Takes over a System V attachment whose first `skip` bytes hold its name.
    ///
    /// # Safety
    /// `attached` is what shmat returned for a segment of `skip + len` bytes or more, and no other code detaches it.
    pub(super) unsafe fn from_sysv(attached: NonNull<u8>, skip: usize, len: usize) -> Self {
        Self {
            // SAFETY: within the attachment, as the caller promises.
            base: unsafe { attached.add(skip) },
            len,
            map_base: attached,
            map_len: skip + len,
            owner: Owner::SysV,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of mapped address space from `as_ptr` on.
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
        // SAFETY: as above, and exclusive through &mut self.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// The region as doubles, without a remainder that fills none.
    pub fn as_slice_f64(&self) -> &[f64] {
        // SAFETY: page-aligned, any bits are a double.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    pub fn as_slice_f64_mut(&mut self) -> &mut [f64] {
        // SAFETY: page-aligned, any bits are a double, exclusive through &mut self.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().cast(), self.len / 8) }
    }

    /// The region as 64-bit words, for codes and copies.
    pub fn words(&self) -> &[u64] {
        // SAFETY: page-aligned, any bits are a word.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: page-aligned, any bits are a word, exclusive through &mut self.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().cast(), self.len / 8) }
    }
}

/// Checks that every page of a range can be read.
///
/// # Safety
/// `at` is within a mapping that extends `len` bytes from there.
pub(super) unsafe fn readable(at: NonNull<u8>, len: usize, name: &str) -> Result<(), MemoryError> {
    let (at, len) = huge::on_a_page(at, len);
    // SAFETY: as the caller promises; contents stay as they are.
    let code = unsafe { libc::madvise(at.as_ptr().cast(), len, libc::MADV_POPULATE_READ) };
    let asked = if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    damage(asked, name)
}

/// Turns the kernel's errors that mean a SIGBUS on touch into [`MemoryError::Damaged`]; ignores all others.
fn damage(answer: io::Result<()>, name: &str) -> Result<(), MemoryError> {
    let why = match answer.map_err(|error| error.raw_os_error()) {
        Err(Some(libc::EHWPOISON)) => "a page of it has an uncorrectable memory error",
        Err(Some(libc::EFAULT)) => "its file was cut short",
        _ => return Ok(()),
    };
    Err(MemoryError::Damaged { name: name.into(), why })
}

const PAGE: usize = 4096;

/// Addresses of lasting pages that are no longer used. New ones reuse them, because a process has a limited number of mappings.
static SPARE_PAGES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Page that is never unmapped, so that references to its words stay valid. After a drop it may become the first page of another
/// file.
#[derive(Debug)]
pub(super) struct LastingPage {
    base: usize,
}

impl LastingPage {
    /// Returns a word of the page. Do not use it after the page is dropped: it may then belong to another file.
    pub(super) fn word(&self, at: usize) -> Option<&'static AtomicU64> {
        if !at.is_multiple_of(8) || at + 8 > PAGE {
            return None;
        }
        // SAFETY: within a page that is mapped as long as the process lives; all accesses by this address are atomic.
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
        // SAFETY: exactly what was mapped or attached, once.
        unsafe {
            match self.owner {
                Owner::Mapped { .. } => {
                    libc::munmap(self.map_base.as_ptr().cast(), self.map_len);
                }
                Owner::SysV => {
                    libc::shmdt(self.map_base.as_ptr().cast());
                }
            }
        }
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

    /// A write always reaches the file that the page belongs to now, even if the page belonged to another before.
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

    /// The kernel gives the same answer for a page that it cannot provide and for a poisoned page.
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
