//! System V shared memory with names.
//!
//! System V identifies segments only by a 32-bit key. The key is a hash of the name. The first page of each segment, its preface,
//! contains the name. If two names have the same hash, the second name takes the next key. Opening tries the same keys in the
//! same order.

use std::io;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::unistd::geteuid;
use xxhash_rust::xxh3::xxh3_64;

use super::huge;
use super::region::{self, MemoryError, Region};
use super::room::{available_bytes, sysv_allows, sysv_limits};

const PREFACE_BYTES: usize = 4096;
const MAGIC: &[u8; 8] = b"SKTSYSV1";
const NAME_AT: usize = 32;
/// Kernel's flag of a segment that is removed when the last process detaches.
const SHM_DEST: u32 = 0o1000;
/// Number of keys tried for one name. More names with equal hashes do not occur on one node.
const PROBES: u32 = 16;

fn key(name: &str, probe: u32) -> libc::key_t {
    // Zero is IPC_PRIVATE. Negative keys are valid, but confuse ipcs.
    let hash = (xxh3_64(name.as_bytes()) as u32).wrapping_add(probe) & 0x7fff_ffff;
    hash.max(1) as libc::key_t
}

fn attach(id: i32, read_only: bool) -> io::Result<NonNull<u8>> {
    let flags = if read_only { libc::SHM_RDONLY } else { 0 };
    let len = stat(id)?.shm_segsz;
    // Reserves address space that is aligned for huge pages. The segment then replaces it.
    let place = huge::map_aligned(len, libc::PROT_NONE, 1)?;
    // SAFETY: the segment replaces only the address space that was just reserved.
    let at = unsafe { libc::shmat(id, place.as_ptr().cast(), flags | libc::SHM_REMAP) };
    if at as isize == -1 {
        let error = io::Error::last_os_error();
        // SAFETY: the range was reserved above, and nothing uses it.
        unsafe { libc::munmap(place.as_ptr().cast(), len) };
        return Err(error);
    }
    // SHM_REMAP attaches the segment at exactly this address.
    Ok(place)
}

fn detach(at: NonNull<u8>) {
    // SAFETY: called once for each successful attach in this file.
    unsafe { libc::shmdt(at.as_ptr().cast()) };
}

fn stat(id: i32) -> io::Result<libc::shmid_ds> {
    // SAFETY: shmid_ds is plain data, which the kernel fills in.
    unsafe {
        let mut ds: libc::shmid_ds = std::mem::zeroed();
        Errno::result(libc::shmctl(id, libc::IPC_STAT, &mut ds))?;
        Ok(ds)
    }
}

/// Returns the name and the length in a segment's preface. None if the segment is not this user's, was not made by this module,
/// or is removed.
fn claim(id: i32) -> Option<(String, u64)> {
    let ds = stat(id).ok()?;
    // The segment is removed, and exists only until the last process detaches.
    if u32::from(ds.shm_perm.mode) & SHM_DEST != 0 {
        return None;
    }
    if ds.shm_perm.uid != geteuid().as_raw() || ds.shm_segsz < PREFACE_BYTES {
        return None;
    }
    let at = attach(id, true).ok()?;
    // SAFETY: at least a page is attached, as checked above.
    let answer = unsafe { preface(at) }.and_then(|page| {
        if &page[..8] != MAGIC {
            return None;
        }
        let len = u64::from_le_bytes(page[8..16].try_into().ok()?);
        let name_len = u64::from_le_bytes(page[16..24].try_into().ok()?) as usize;
        let seal = u64::from_le_bytes(page[24..32].try_into().ok()?);
        let name = page.get(NAME_AT..NAME_AT.checked_add(name_len)?)?;
        let fits = len.checked_add(PREFACE_BYTES as u64)? <= ds.shm_segsz as u64;
        (seal == xxh3_64(name) ^ len && fits)
            .then(|| Some((std::str::from_utf8(name).ok()?.to_owned(), len)))
            .flatten()
    });
    detach(at);
    answer
}

/// Returns the page with a segment's name. None if the page can no longer be read. A bad page must not end a process that lists
/// all segments, such as an agent.
///
/// # Safety
/// At least a page is attached at `at` as long as the result is used.
unsafe fn preface<'a>(at: NonNull<u8>) -> Option<&'a [u8]> {
    // SAFETY: as the caller promises.
    unsafe {
        region::readable(at, PREFACE_BYTES, "").ok()?;
        Some(std::slice::from_raw_parts(at.as_ptr(), PREFACE_BYTES))
    }
}

fn find(name: &str) -> Option<(i32, u64)> {
    for probe in 0..PROBES {
        // SAFETY: plain system call.
        let id = unsafe { libc::shmget(key(name, probe), 0, 0) };
        if id >= 0
            && let Some((found, len)) = claim(id)
            && found == name
        {
            return Some((id, len));
        }
    }
    None
}

/// Creates a segment. Calls `named` as soon as the segment can be found by its name. At that moment only the preface is
/// allocated.
pub(super) fn create(name: &str, len: usize, named: impl FnOnce()) -> Result<Region, MemoryError> {
    if find(name).is_some() {
        return Err(MemoryError::Exists(name.into()));
    }
    let whole = len + PREFACE_BYTES;
    let no_room = |available| MemoryError::NoRoom {
        what: name.into(),
        wanted: len as u64,
        available,
        place: "System V shared memory".into(),
    };
    let too_much =
        || MemoryError::Limits { what: name.into(), wanted: whole as u64, limits: sysv_limits() };
    let available = available_bytes().unwrap_or(u64::MAX);
    if whole as u64 > available {
        return Err(no_room(available));
    }
    if !sysv_allows(whole as u64) {
        return Err(too_much());
    }
    for probe in 0..PROBES {
        // SAFETY: plain system call.
        let id = unsafe {
            libc::shmget(key(name, probe), whole, libc::IPC_CREAT | libc::IPC_EXCL | 0o600)
        };
        if id < 0 {
            match Errno::last() {
                Errno::EEXIST => continue,
                Errno::ENOMEM => return Err(no_room(available)),
                Errno::ENOSPC | Errno::EINVAL => return Err(too_much()),
                other => {
                    return Err(MemoryError::os("cannot make SysV segment", name, other.into()));
                }
            }
        }
        let at = attach(id, false).map_err(|error| {
            remove_id(id);
            MemoryError::os("cannot attach SysV segment", name, error)
        })?;
        // SAFETY: the segment was just attached, and no other code uses it yet.
        if !unsafe { fill(at, name, len, named) } {
            detach(at);
            remove_id(id);
            return Err(no_room(available_bytes().unwrap_or(0)));
        }
        // SAFETY: the segment was attached above with the preface and `len` bytes. Nothing else detaches it.
        return Ok(unsafe { Region::from_sysv(at, PREFACE_BYTES, len) });
    }
    Err(MemoryError::NotOurs {
        name: name.into(),
        why: format!("all {PROBES} SysV keys for this name are taken by other segments"),
    })
}

/// Writes the preface of a new segment, calls `named` and allocates all pages. Returns false if there is no room for all pages.
///
/// # Safety
/// The preface and `len` bytes are attached at `at`, and nothing else refers to these bytes.
unsafe fn fill(at: NonNull<u8>, name: &str, len: usize, named: impl FnOnce()) -> bool {
    // The name is written first: if the process is killed during allocation, `clean` can find the segment.
    // SAFETY: the first page is attached.
    if let Err(error) = unsafe { huge::populate(at, PREFACE_BYTES) }
        && error.raw_os_error() != Some(libc::EINVAL)
    {
        return false;
    }
    // SAFETY: the first page is attached.
    let page = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), PREFACE_BYTES) };
    page[8..16].copy_from_slice(&(len as u64).to_le_bytes());
    page[16..24].copy_from_slice(&(name.len() as u64).to_le_bytes());
    page[24..32].copy_from_slice(&(xxh3_64(name.as_bytes()) ^ len as u64).to_le_bytes());
    page[NAME_AT..NAME_AT + name.len()].copy_from_slice(name.as_bytes());
    page[..8].copy_from_slice(MAGIC);
    named();
    let whole = len + PREFACE_BYTES;
    // Allocates every page now, or fails.
    // SAFETY: the whole range is attached.
    unsafe {
        huge::collapse(at, whole);
        match huge::populate(at, whole) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let has_room = |bytes| available_bytes().is_none_or(|free| bytes as u64 <= free);
                huge::touch(at, whole, has_room)
            }
            Err(_) => false,
        }
    }
}

pub(super) fn open(name: &str, writable: bool) -> Result<Region, MemoryError> {
    let (id, len) = find(name).ok_or_else(|| MemoryError::Missing(name.into()))?;
    let at = attach(id, !writable)
        .map_err(|error| MemoryError::os("cannot attach SysV segment", name, error))?;
    // SAFETY: the segment was just attached, and claim() has compared `len` with its size.
    Ok(unsafe { Region::from_sysv(at, PREFACE_BYTES, len as usize) })
}

/// Returns true if there is a segment of this name.
pub(super) fn exists(name: &str) -> bool {
    find(name).is_some()
}

fn remove_id(id: i32) {
    // SAFETY: plain system call.
    unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
}

pub(super) fn unlink(name: &str) -> bool {
    find(name).map(|(id, _)| remove_id(id)).is_some()
}

/// Lists the names and lengths of all segments of this user that this module has made.
pub(super) fn list() -> Vec<(String, u64)> {
    let Ok(table) = std::fs::read_to_string("/proc/sysvipc/shm") else {
        return Vec::new();
    };
    table
        .lines()
        .skip(1)
        .filter_map(|line| claim(line.split_whitespace().nth(1)?.parse().ok()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::denied::denied;

    fn unique(what: &str) -> String {
        format!("t-sysv-{what}-{}", std::process::id())
    }

    /// An agent attaches to every segment for a moment, and so keeps removed segments in existence. A removed segment must not be
    /// listed.
    #[test]
    fn a_removed_segment_is_not_listed_though_somebody_is_attached() {
        let name = unique("removed");
        let held = create(&name, 1000, || ()).unwrap();
        let listed = || list().iter().any(|(found, _)| *found == name);
        assert!(listed());
        assert!(unlink(&name));
        assert!(!listed());
        drop(held);
    }

    /// Tests that all pages of a segment are allocated on kernels before 5.14, which allocate a page only when it is touched.
    /// The test makes the requests of newer kernels fail.
    #[test]
    fn all_pages_of_a_segment_are_taken_where_an_older_kernel_has_to_be_touched() {
        let unknown = [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE, libc::MADV_COLLAPSE];
        let (name, len) = (unique("old"), 70 << 20);
        denied(libc::SYS_madvise, &unknown, libc::EINVAL, || {
            let region = create(&name, len, || ()).unwrap();
            let (id, told) = find(&name).unwrap();
            assert_eq!(told, len as u64);
            assert!(resident(id) >= len as u64, "{} bytes are there", resident(id));
            assert!(region.bytes().iter().all(|&byte| byte == 0));
            drop(region);
            assert!(unlink(&name));
        });
    }

    /// Number of bytes of a segment that are allocated.
    fn resident(id: i32) -> u64 {
        let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
        let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let rows: Vec<Vec<&str>> = rows.collect();
        let rss = rows[0].iter().position(|&title| title == "rss").unwrap();
        let row = rows.iter().find(|row| row[1] == id.to_string()).unwrap();
        row[rss].parse().unwrap()
    }

    /// Tests that the error names the kernel limit that a new segment exceeds. Lowers the limits in a new IPC namespace. Tests
    /// nothing if the system allows no such namespace.
    #[test]
    fn a_limit_of_the_kernels_is_named() {
        let within = |limit: &str, value: &str, wanted: &[usize]| {
            let test = || {
                // SAFETY: a plain system call; the namespace is this thread's own.
                if unsafe { libc::unshare(libc::CLONE_NEWIPC) } != 0 {
                    return;
                }
                let path = format!("/proc/sys/kernel/{limit}");
                // Only this thread sees the new limit, because the process keeps its namespace.
                if std::fs::write(&path, value).is_err() {
                    return;
                }
                let made: Vec<_> =
                    wanted.iter().map(|&len| create(&format!("t-{len}"), len, || ())).collect();
                let (last, before) = made.split_last().unwrap();
                assert!(before.iter().all(Result::is_ok), "{limit}");
                let why = last.as_ref().err().unwrap().to_string();
                assert!(why.contains(&format!("kernel.{limit} {value}")), "{why}");
            };
            std::thread::scope(|scope| scope.spawn(test).join().unwrap());
        };
        within("shmmax", "1048576", &[500_000, 8 << 20]);
        within("shmall", "400", &[1 << 20, 2 << 20]);
        within("shmmni", "2", &[4096, 5000, 6000]);
    }

    #[test]
    fn a_segment_can_be_found_before_its_pages_are_made() {
        let name = unique("named");
        let mut seen = 0;
        let region = create(&name, 100_000, || {
            seen = list().into_iter().filter(|(n, len)| *n == name && *len == 100_000).count();
        });
        assert!(unlink(&name));
        assert!(region.unwrap().bytes().iter().all(|&b| b == 0));
        assert_eq!(seen, 1, "killed there, it would stay for ever");
    }

    /// Tests that an unreadable preface gives `None`. A segment cannot be cut short, so the test cuts a file. The result is the
    /// same for a page with a memory error.
    #[test]
    fn a_preface_that_cannot_be_read_names_nothing() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(PREFACE_BYTES as u64).unwrap();
        let cut = file.try_clone().unwrap();
        let path = std::path::Path::new("t");
        let region = Region::map_file(file, PREFACE_BYTES, PREFACE_BYTES, false, path).unwrap();
        let at = NonNull::new(region.as_ptr()).unwrap();
        // SAFETY: a page is mapped at `at` until the end of the test.
        let look = || unsafe { preface(at) }.map(|page| page[0]);
        assert_eq!(look(), Some(0));
        cut.set_len(0).unwrap();
        assert_eq!(look(), None);
    }
}
