//! System V shared memory with names.
//!
//! SysV knows segments only by a 32-bit key. The key here is a hash of the name, and the first
//! page of each segment carries the name itself, so two names with one hash are told apart: the
//! second takes the next key, and whoever opens it walks the same way.

use std::ptr::NonNull;

use xxhash_rust::xxh3::xxh3_64;

use super::huge;
use super::region::{MemoryError, Region, mem_available};

const PREFACE_BYTES: usize = 4096;
const MAGIC: &[u8; 8] = b"SKTSYSV1";
const NAME_AT: usize = 32;
/// Keys tried for one name; that many names sharing a hash prefix do not meet on one node.
const PROBES: u32 = 16;

fn key(name: &str, probe: u32) -> libc::key_t {
    // Zero is IPC_PRIVATE, negative keys only confuse ipcs.
    let hash = (xxh3_64(name.as_bytes()) as u32).wrapping_add(probe) & 0x7fff_ffff;
    hash.max(1) as libc::key_t
}

fn attach(id: i32, read_only: bool) -> Option<NonNull<u8>> {
    let flags = if read_only { libc::SHM_RDONLY } else { 0 };
    let len = stat(id)?.shm_segsz;
    // Address space where a huge page can be one, which the segment then replaces.
    let place = huge::map_aligned(len, libc::PROT_NONE).ok()?;
    // SAFETY: over nothing but the address space just taken.
    let at = unsafe { libc::shmat(id, place.as_ptr().cast(), flags | libc::SHM_REMAP) };
    if at as isize == -1 {
        // SAFETY: taken above, not used.
        unsafe { libc::munmap(place.as_ptr().cast(), len) };
        return None;
    }
    NonNull::new(at.cast())
}

fn detach(at: NonNull<u8>) {
    // SAFETY: called once for each successful attach in this file.
    unsafe { libc::shmdt(at.as_ptr().cast()) };
}

fn stat(id: i32) -> Option<libc::shmid_ds> {
    // SAFETY: shmid_ds is plain data the kernel fills in.
    unsafe {
        let mut ds: libc::shmid_ds = std::mem::zeroed();
        (libc::shmctl(id, libc::IPC_STAT, &mut ds) == 0).then_some(ds)
    }
}

/// The name and length a segment claims, if it is one of ours and not somebody else's.
fn claim(id: i32) -> Option<(String, u64)> {
    let ds = stat(id)?;
    // SAFETY: geteuid cannot fail.
    if ds.shm_perm.uid != unsafe { libc::geteuid() } || ds.shm_segsz < PREFACE_BYTES {
        return None;
    }
    let at = attach(id, true)?;
    // SAFETY: at least a page is attached, as checked above.
    let page = unsafe { std::slice::from_raw_parts(at.as_ptr(), PREFACE_BYTES) };
    let answer = (|| {
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
    })();
    detach(at);
    answer
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

pub(super) fn create(name: &str, len: usize) -> Result<Region, MemoryError> {
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
    let available = mem_available().unwrap_or(u64::MAX);
    if whole as u64 > available {
        return Err(no_room(available));
    }
    for probe in 0..PROBES {
        // SAFETY: plain system call.
        let id = unsafe {
            libc::shmget(key(name, probe), whole, libc::IPC_CREAT | libc::IPC_EXCL | 0o600)
        };
        if id < 0 {
            match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EEXIST) => continue,
                Some(libc::ENOMEM | libc::ENOSPC | libc::EINVAL) => return Err(no_room(available)),
                _ => return Err(MemoryError::os("cannot make SysV segment", name)),
            }
        }
        let Some(at) = attach(id, false) else {
            let error = MemoryError::os("cannot attach SysV segment", name);
            remove_id(id);
            return Err(error);
        };
        // SAFETY: just attached, with that length.
        unsafe { huge::collapse(at, whole) };
        // Take every page now, or say why not.
        // SAFETY: the attached range.
        let populated = unsafe { huge::populate(at, whole) };
        if populated.is_err_and(|error| error.raw_os_error() != Some(libc::EINVAL)) {
            detach(at);
            remove_id(id);
            return Err(no_room(mem_available().unwrap_or(0)));
        }
        // SAFETY: the preface page is attached and nobody else knows this segment yet.
        let page = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), PREFACE_BYTES) };
        page[8..16].copy_from_slice(&(len as u64).to_le_bytes());
        page[16..24].copy_from_slice(&(name.len() as u64).to_le_bytes());
        page[24..32].copy_from_slice(&(xxh3_64(name.as_bytes()) ^ len as u64).to_le_bytes());
        page[NAME_AT..NAME_AT + name.len()].copy_from_slice(name.as_bytes());
        page[..8].copy_from_slice(MAGIC);
        // SAFETY: attached above with preface and len bytes, handed over here.
        return Ok(unsafe { Region::from_sysv(at, PREFACE_BYTES, len) });
    }
    Err(MemoryError::NotOurs {
        name: name.into(),
        why: format!("all {PROBES} SysV keys for this name are taken by other segments"),
    })
}

pub(super) fn open(name: &str, writable: bool) -> Result<Region, MemoryError> {
    let (id, len) = find(name).ok_or_else(|| MemoryError::Missing(name.into()))?;
    let at =
        attach(id, !writable).ok_or_else(|| MemoryError::os("cannot attach SysV segment", name))?;
    // SAFETY: claim() compared len with the size of the segment.
    Ok(unsafe { Region::from_sysv(at, PREFACE_BYTES, len as usize) })
}

fn remove_id(id: i32) {
    // SAFETY: plain system call.
    unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
}

pub(super) fn unlink(name: &str) -> bool {
    match find(name) {
        Some((id, _)) => {
            remove_id(id);
            true
        }
        None => false,
    }
}

/// Names and lengths of all of this user's segments that this file made.
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
