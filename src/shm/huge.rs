//! Huge pages for large memory: aligned mappings, and huge pages for shared memory.
//!
//! The kernel maps a huge page only if address and file offset are equal modulo the size of a huge page. By default the kernel
//! gives /dev/shm no huge pages. Since Linux 6.1 the kernel collapses small pages into huge ones on request (MADV_COLLAPSE),
//! whatever the default. Without huge pages, work on a matrix in shared memory is slower by some percent, and a restart has a
//! page fault for each 4 KB.
//!
//! `region`, `memory_store` and `sysv` call this module, and so do the matrix's private buffers. Huge pages are optional: if the
//! kernel gives none, the memory has small pages.

use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::base::cores;
use crate::base::heartbeat;
use crate::base::new_thread;
use crate::base::threads::Pool;
use crate::base::topology::Topology;

/// Size in bytes of a huge page on x86-64 and most ARM kernels. On other kernels, requests for huge pages of this size have no
/// effect.
pub const HUGE: usize = 2 << 20;

/// Maps `len` bytes of private, zeroed memory at a multiple of `boundary`. If `len` is at least the size of a huge page, the
/// address is a multiple of this size, too.
pub fn map_aligned(len: usize, protection: i32, boundary: usize) -> std::io::Result<NonNull<u8>> {
    let page = page();
    let boundary = boundary.max(if len >= HUGE { HUGE } else { page });
    // The mapping is longer, so that it contains an aligned address.
    let span = if boundary > page { len + boundary } else { len };
    // SAFETY: a fresh anonymous mapping; the parts cut off are not used again.
    unsafe {
        let base = libc::mmap(
            std::ptr::null_mut(),
            span,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        );
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let mut start = base as usize;
        if boundary > page {
            let aligned = start.next_multiple_of(boundary);
            if aligned > start {
                libc::munmap(base, aligned - start);
            }
            // The kernel unmaps whole pages, so the kept range ends at a page boundary.
            let kept = aligned + len.next_multiple_of(page);
            if start + span > kept {
                libc::munmap(kept as *mut _, start + span - kept);
            }
            start = aligned;
        }
        Ok(NonNull::new_unchecked(start as *mut u8))
    }
}

/// Size of a small page, which on ARM is often more than 4096 bytes.
pub fn page() -> usize {
    // SAFETY: the call returns a constant of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Page size of a file's memory, to which a mapping of the file is aligned. A hugetlbfs has larger pages than other file systems.
pub fn page_of(file: &File) -> usize {
    const HUGETLBFS: i64 = 0x9584_58f6;
    let about = nix::sys::statfs::fstatfs(file).ok();
    #[allow(clippy::unnecessary_cast)] // The type differs between C libraries.
    let huge = about.filter(|about| about.filesystem_type().0 as i64 == HUGETLBFS);
    huge.map_or_else(page, |about| about.block_size() as usize)
}

/// Minimum number of threads that fill memory together, if there are enough cores. One thread zeroes some GB a second, and a
/// restart waits until the memory is filled.
const FILLERS: usize = 4;
/// Minimum number of huge pages for each filler thread. With fewer pages, starting a further thread takes longer than it saves.
const SHARE: usize = 16;
/// Size in bytes of the pieces of memory that filler threads fill in turn.
const TURN: usize = SHARE * HUGE;

/// Allocates the whole huge pages of a new shared mapping, as small pages if the kernel makes no huge pages. The rest of the
/// mapping may stay unallocated. If memory is short, even the whole mapping may stay unallocated.
///
/// Each filler thread allocates near its cores, and the fillers are spread over the rank's cores. So the memory is spread over
/// all NUMA nodes on which the rank computes.
///
/// # Safety
/// `base` is a shared, writable mapping of `len` bytes, and the mapped file or segment is at least that long.
pub(super) unsafe fn collapse(base: NonNull<u8>, len: usize) {
    let first = (base.as_ptr() as usize).next_multiple_of(HUGE);
    let pages = ((base.as_ptr() as usize + len) / HUGE).saturating_sub(first / HUGE);
    by_fillers(pages, |thread, threads| {
        collapse_pages(first + thread * TURN, first + pages * HUGE, threads * TURN);
    });
}

/// Allocates every page of a mapping by a store. Before version 5.14, the kernel allocates memory without a file in no other
/// way. Before each piece, a filler calls `has_room` with the size of the piece. If the result is false, all fillers stop.
/// Returns true if all pages were allocated.
///
/// # Safety
/// `base` is a shared, writable mapping of `len` bytes, from the beginning of a page, to which no other thread or process writes.
pub(super) unsafe fn touch(
    base: NonNull<u8>,
    len: usize,
    has_room: impl Fn(usize) -> bool + Sync,
) -> bool {
    let (base, full) = (base.as_ptr().expose_provenance(), AtomicBool::new(false));
    by_fillers(len.div_ceil(HUGE), |thread, threads| {
        for start in (thread * TURN..len).step_by(threads * TURN) {
            let bytes = TURN.min(len - start);
            if full.load(Relaxed) || !has_room(bytes) {
                full.store(true, Relaxed);
                return;
            }
            for at in (start..start + bytes).step_by(page()) {
                let place = std::ptr::with_exposed_provenance_mut::<u8>(base + at);
                // SAFETY: the byte is within the mapping, and this filler alone touches its piece. The contents stay as they are.
                unsafe { place.write_volatile(place.read_volatile()) };
            }
            heartbeat::beat();
        }
    });
    !full.into_inner()
}

/// Runs `work` on the filler threads for a mapping of `pages` huge pages. `work` gets the number of its thread and the number of
/// threads.
fn by_fillers(pages: usize, work: impl Fn(usize, usize) + Sync) {
    let memories = Topology::here().memories_of(cores::bound_to());
    let threads = fillers(cores::count(), memories, pages);
    let work = |thread| work(thread, threads);
    std::thread::scope(|scope| {
        for thread in 1..threads {
            let filler = new_thread::start_scoped(scope, "filler", move || {
                cores::spread(thread, threads);
                work(thread);
            });
            // If the system starts no more threads, this thread does the work.
            if filler.is_err() {
                work(thread);
            }
        }
        work(0);
    });
}

/// Number of filler threads for `pages` huge pages. All NUMA nodes get the same number of threads, as far as the cores and the
/// pages suffice. A rank that is bound to one core has one thread.
fn fillers(cores: usize, memories: usize, pages: usize) -> usize {
    let wanted = FILLERS.next_multiple_of(memories.max(1));
    wanted.min(cores).min(pages / SHARE).max(1)
}

/// Runs `work` on `len` bytes with all threads of a pool, which take huge pages in turn. `work` gets the thread's number and the
/// byte range of a page.
pub(super) fn in_turn(len: usize, pool: &mut Pool, work: impl Fn(usize, Range<usize>) + Sync) {
    let (turns, threads) = (len.div_ceil(HUGE), pool.threads());
    let of = |thread: usize| {
        for turn in (thread..turns).step_by(threads) {
            work(thread, turn * HUGE..len.min((turn + 1) * HUGE));
        }
    };
    match turns {
        // One huge page is too little to wake the other threads.
        0 | 1 => of(0),
        _ => pool.on_each(of),
    }
}

/// Allocates a piece of [`TURN`] bytes at every `step` bytes from `first` to `end`, and stops if there is no room. The bounds are
/// addresses within a mapping, and multiples of the huge page size.
fn collapse_pages(first: usize, end: usize, step: usize) {
    for start in (first..end).step_by(step) {
        let stop = end.min(start + TURN);
        for place in (start..stop).step_by(HUGE) {
            // The kernel does not collapse a range that has no page at all, so each huge page gets one small page first. If there
            // is no room, this call returns an error, whereas a plain store would be a SIGBUS.
            // SAFETY: within the mapping; contents stay as they are.
            if unsafe { libc::madvise(place as *mut _, page(), libc::MADV_POPULATE_WRITE) } != 0 {
                return;
            }
        }
        let (start, bytes) = (start as *mut _, stop - start);
        // SAFETY: within the mapping; contents stay as they are. A refusal changes nothing.
        let collapsed = unsafe { libc::madvise(start, bytes, libc::MADV_COLLAPSE) } == 0;
        // SAFETY: as above.
        if !collapsed && unsafe { libc::madvise(start, bytes, libc::MADV_POPULATE_WRITE) } != 0 {
            return;
        }
        heartbeat::beat();
    }
}

/// Allocates and maps all pages of a mapping now. Returns an error if a later touch would kill the process, or EINVAL if the
/// kernel does not know the request.
///
/// # Safety
/// `base` is within a writable mapping that extends `len` bytes from there.
pub(super) unsafe fn populate(base: NonNull<u8>, len: usize) -> std::io::Result<()> {
    // The kernel wants whole pages, but the data behind a segment's preface need not begin at a page.
    let (base, len) = on_a_page(base, len);
    for at in (0..len).step_by(heartbeat::BYTES) {
        let bytes = heartbeat::BYTES.min(len - at);
        // SAFETY: within the mapping; contents stay as they are.
        let code = unsafe {
            let place = base.as_ptr().byte_add(at);
            libc::madvise(place.cast(), bytes, libc::MADV_POPULATE_WRITE)
        };
        if code != 0 {
            return Err(std::io::Error::last_os_error());
        }
        heartbeat::beat();
    }
    Ok(())
}

/// Extends a range to the beginning of its first page.
pub(super) fn on_a_page(base: NonNull<u8>, len: usize) -> (NonNull<u8>, usize) {
    let before = base.as_ptr().addr() % page();
    // SAFETY: only whole pages are mapped, so the first page is mapped from its beginning.
    (unsafe { base.byte_sub(before) }, before + len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    /// Tests that the threads of a pool get huge pages in turn. If only the main thread touched the pages, all pages would be in
    /// the main thread's NUMA node.
    #[test]
    fn every_thread_of_a_pool_takes_its_turn() {
        for (len, threads) in [(0, 3), (1, 3), (HUGE, 2), (7 * HUGE + 5, 3), (2 * HUGE, 4)] {
            let seen = Mutex::new(BTreeMap::new());
            in_turn(len, &mut Pool::new(threads), |thread, bytes| {
                let own = thread_number();
                assert_eq!(
                    seen.lock().unwrap().insert(bytes.start, (thread, bytes.end, own)),
                    None
                );
            });
            let seen = seen.into_inner().unwrap();
            assert_eq!(seen.len(), len.div_ceil(HUGE));
            let mut own = BTreeMap::new();
            for (turn, (start, (thread, end, number))) in seen.into_iter().enumerate() {
                assert_eq!((start, end), (turn * HUGE, len.min((turn + 1) * HUGE)));
                assert_eq!(thread, turn % threads, "{len} {threads}");
                assert_eq!(*own.entry(thread).or_insert(number), number);
            }
            let numbers: std::collections::BTreeSet<_> = own.values().collect();
            assert_eq!(numbers.len(), own.len(), "{len} {threads}");
        }
    }

    fn thread_number() -> i32 {
        nix::unistd::gettid().as_raw()
    }

    /// The fillers take pieces in turn, so every NUMA node gets an equal part, whatever the number of nodes.
    #[test]
    fn memory_is_filled_from_all_memories_of_a_rank() {
        for (machine, memories) in [(8, 8), (64, 8), (96, 12), (64, 4), (6, 3), (16, 2), (4, 1)]
            .map(|(c, m)| (Topology::even(c, m), m))
        {
            let own = machine.one_a_core();
            let threads = fillers(machine.cores(), machine.own_memories(), 1 << 20);
            let mut parts = BTreeMap::new();
            for thread in 0..threads {
                let core = cores::core_of(&own, thread, threads).unwrap();
                *parts.entry(machine.memory_of(core)).or_insert(0) += 1;
            }
            assert_eq!(parts.len(), memories, "{parts:?}");
            assert!(parts.values().all(|&part| part == threads / memories), "{parts:?}");
            assert!(threads >= FILLERS.min(machine.cores()));
        }
        assert_eq!(fillers(1, 1, 1 << 20), 1);
        assert_eq!(fillers(64, 8, 3 * SHARE), 3);
        assert_eq!(fillers(64, 8, 0), 1);
    }

    #[test]
    fn a_region_that_can_hold_a_huge_page_begins_on_one() {
        let lengths = [1, page(), HUGE - 1, HUGE, HUGE + 1, 5 * HUGE + 12345];
        // A boundary for pages of 1 GB takes address space only.
        for (len, boundary) in
            lengths.iter().flat_map(|&len| [(len, 1), (len, HUGE), (len, 1 << 30)])
        {
            let base = map_aligned(len, libc::PROT_READ | libc::PROT_WRITE, boundary).unwrap();
            assert_eq!(base.as_ptr() as usize % boundary, 0);
            if len >= HUGE {
                assert_eq!(base.as_ptr() as usize % HUGE, 0);
            }
            // SAFETY: mapped just above, of that length, unmapped once.
            unsafe {
                let bytes = std::slice::from_raw_parts_mut(base.as_ptr(), len);
                assert!(bytes.iter().all(|&b| b == 0));
                bytes[0] = 1;
                bytes[len - 1] = 1;
                assert_eq!(libc::munmap(base.as_ptr().cast(), len), 0);
            }
        }
    }
}
