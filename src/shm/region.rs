//! One stretch of mapped memory: where it starts, how long it is, and what unmaps it.
//!
//! Made by [`super::Depot`] for named memory and by [`Region::anonymous`] for what ends with the
//! process. Space for named memory is taken when it is made: a node that is too small says so there and then, in
//! numbers, and is not killed by SIGBUS hours later.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use thiserror::Error;

use super::huge;
use super::room::available_bytes;
use crate::base::threads::{Pool, Shareable};

/// Why named memory could not be had.
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
    Os { what: &'static str, path: PathBuf, source: std::io::Error },
}

impl MemoryError {
    pub(super) fn os(what: &'static str, path: impl Into<PathBuf>) -> Self {
        Self::Os { what, path: path.into(), source: std::io::Error::last_os_error() }
    }
}

enum Owner {
    /// The file stays open: it carries the lock that says a process is alive on it.
    Mapped {
        file: Option<File>,
    },
    SysV,
}

/// Mapped memory. Dropping it unmaps; named memory itself stays until it is unlinked.
pub struct Region {
    /// First byte of the caller's part.
    base: NonNull<u8>,
    len: usize,
    /// What the system mapped, which may begin before `base` and end after it.
    map_base: NonNull<u8>,
    map_len: usize,
    owner: Owner,
}

// SAFETY: a region is a plain range of memory, valid until drop in whatever thread owns it; shared
// access goes through `&self` methods that only read, or through atomics.
unsafe impl Send for Region {}
unsafe impl Sync for Region {}

impl Region {
    /// Zeroed memory of this process alone, in huge pages where the system grants them.
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

    /// As [`Region::anonymous`], with the pages already there: for what is first touched while a clock runs, since a page's first
    /// touch costs more than using it.
    ///
    /// A page lies in the memory of the core that touches it first. All threads use all of what is made so, so they touch its
    /// huge pages in turn: then it lies in all of the rank's memories alike, and none has all the traffic.
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
        path: &std::path::Path,
    ) -> Result<Self, MemoryError> {
        let protection =
            if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let map_len = map_len.max(1);
        // Address space first, where a huge page can be one; then the file in its place.
        let place = huge::map_aligned(map_len, libc::PROT_NONE, huge::page_of(&file))
            .map_err(|_| MemoryError::os("cannot map", path))?;
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
            let error = MemoryError::os("cannot map", path);
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

    /// Gets huge pages for memory that was just made and is still empty, where the kernel gives some.
    pub(super) fn in_huge_pages(&mut self) {
        // SAFETY: our own mapping, whose file was given this length.
        unsafe { huge::collapse(self.map_base, self.map_len) };
    }

    /// Maps all pages now: whoever touches one first would otherwise take a fault for each, as part of its
    /// time. Only a wish: where the kernel cannot, they come one by one. But a page that nobody can touch any more is
    /// an error, where a touch would end the process.
    pub fn populate(&mut self, name: &str) -> Result<(), MemoryError> {
        // SAFETY: our own mapping, borrowed mutably.
        damage(unsafe { huge::populate(self.base, self.len) }, name)
    }

    /// Whether every page can be read: for small parts that are looked at by others.
    pub(super) fn readable(&self, name: &str) -> Result<(), MemoryError> {
        // SAFETY: our own mapping.
        unsafe { readable(self.base, self.len, name) }
    }

    /// Without the file behind it: for who keeps many regions to look at, where files that are open are counted.
    pub(super) fn without_file(mut self) -> Self {
        if let Owner::Mapped { file } = &mut self.owner {
            *file = None;
        }
        self
    }

    pub(super) fn file(&self) -> Option<&File> {
        match &self.owner {
            Owner::Mapped { file } => file.as_ref(),
            Owner::SysV => None,
        }
    }

    /// The first page of a file's memory in a mapping that lasts as long as the process. None where there is no file behind the
    /// region.
    pub(super) fn lasting_page(&self) -> Option<LastingPage> {
        // Opened anew: a mapping keeps what it was made from open, and with it any lock.
        let own = format!("/proc/self/fd/{}", self.file()?.as_raw_fd());
        let file = std::fs::OpenOptions::new().read(true).write(true).open(own).ok()?;
        let mut spare = SPARE_PAGES.lock().unwrap_or_else(|broken| broken.into_inner());
        let (place, fixed) = match spare.last() {
            Some(&base) => (std::ptr::with_exposed_provenance_mut(base), libc::MAP_FIXED),
            None => (std::ptr::null_mut(), 0),
        };
        // SAFETY: a fresh mapping of a file that holds a page, where the kernel likes it or in place of a page of ours that
        // nobody uses any more; there is a page at that address at every moment from now on.
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

    /// Takes over a SysV attachment whose first `skip` bytes name it.
    ///
    /// # Safety
    /// `attached` is what shmat returned for a segment of `skip + len` bytes or more, and nobody
    /// else detaches it.
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

    /// Bytes of address space it takes, from `as_ptr` on.
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

    /// The region as doubles; the tail that fills no double is left out.
    pub fn as_slice_f64(&self) -> &[f64] {
        // SAFETY: page-aligned, any bits are a double.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    pub fn as_slice_f64_mut(&mut self) -> &mut [f64] {
        // SAFETY: page-aligned, any bits are a double, exclusive through &mut self.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().cast(), self.len / 8) }
    }

    /// The region as 64-bit words: what the codes and copies work on.
    pub fn words(&self) -> &[u64] {
        // SAFETY: page-aligned, any bits are a word.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: page-aligned, any bits are a word, exclusive through &mut self.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().cast(), self.len / 8) }
    }
}

/// Whether every page there can be read.
///
/// # Safety
/// Within a mapping that goes on for so many bytes.
pub(super) unsafe fn readable(at: NonNull<u8>, len: usize, name: &str) -> Result<(), MemoryError> {
    let (at, len) = huge::on_a_page(at, len);
    // SAFETY: as the caller promises; contents stay as they are.
    let code = unsafe { libc::madvise(at.as_ptr().cast(), len, libc::MADV_POPULATE_READ) };
    let asked = if code == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
    damage(asked, name)
}

/// Of the kernel's answers to a wish for pages, those that say that a touch would be a SIGBUS.
fn damage(answer: std::io::Result<()>, name: &str) -> Result<(), MemoryError> {
    let why = match answer.map_err(|error| error.raw_os_error()) {
        Err(Some(libc::EHWPOISON)) => "a page of it has an uncorrectable memory error",
        Err(Some(libc::EFAULT)) => "its file was cut short",
        _ => return Ok(()),
    };
    Err(MemoryError::Damaged { name: name.into(), why })
}

const PAGE: usize = 4096;

/// Addresses of pages that lasted and are not used any more: the next ones take their place, as a process has only so many
/// mappings.
static SPARE_PAGES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A page that is never unmapped, so its words live for ever. Dropped, it may become the first page of another file.
#[derive(Debug)]
pub(super) struct LastingPage {
    base: usize,
}

impl LastingPage {
    /// Once the page is dropped the word may be another file's: it is to be used no longer than that.
    pub(super) fn word(&self, at: usize) -> Option<&'static AtomicU64> {
        if !at.is_multiple_of(8) || at + 8 > PAGE {
            return None;
        }
        // SAFETY: within a page that is mapped as long as the process lives; nobody but through atomics touches it by this
        // address.
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

    /// A mark always goes to the file that its page is of now, also where the page was another's before.
    #[test]
    fn a_page_that_lasts_is_the_next_files_when_it_is_dropped() {
        let made = || {
            let file = tempfile::tempfile().unwrap();
            file.set_len(4096).unwrap();
            Region::map_file(file, 4096, 4096, true, std::path::Path::new("t")).unwrap()
        };
        let (one, other) = (made(), made());
        let page = one.lasting_page().unwrap();
        page.word(64).unwrap().store(1, Ordering::SeqCst);
        drop(page);
        // Another test may have taken its place by now.
        let page = other.lasting_page().unwrap();
        page.word(64).unwrap().store(2, Ordering::SeqCst);
        assert_eq!((one.words()[8], other.words()[8]), (1, 2));
        assert!(page.word(4).is_none() && page.word(4096).is_none() && page.word(4088).is_some());
    }

    /// The kernel's answer for a page that it cannot give, which is what a poisoned one has too.
    #[test]
    fn a_page_that_cannot_be_touched_is_an_error_and_no_signal() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let cut = file.try_clone().unwrap();
        let mut region =
            Region::map_file(file, 8192, 8192, true, std::path::Path::new("t")).unwrap();
        assert!(region.populate("t").is_ok() && region.readable("t").is_ok());
        cut.set_len(4096).unwrap();
        for answer in [region.populate("t"), region.readable("t")] {
            assert!(matches!(answer, Err(MemoryError::Damaged { .. })), "{answer:?}");
        }
        let poisoned = damage(Err(std::io::Error::from_raw_os_error(libc::EHWPOISON)), "x");
        assert!(poisoned.unwrap_err().to_string().contains("uncorrectable"));
        assert!(damage(Err(std::io::Error::from_raw_os_error(libc::EINVAL)), "x").is_ok());
    }

    #[test]
    fn anonymous_memory_of_impossible_size_is_an_error_with_numbers() {
        let error = Region::anonymous(1 << 60).unwrap_err().to_string();
        assert!(error.contains(&(1u64 << 60).to_string()), "{error}");
    }
}
