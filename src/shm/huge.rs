//! Huge pages for everything large: where to map it, and how to get them for shared memory.
//!
//! The kernel maps a huge page as one only where address and offset in the file agree modulo its size, and
//! gives none to /dev/shm by default. But it collapses small pages into huge ones when asked to
//! (MADV_COLLAPSE, since Linux 6.1), whatever that default says. Without them a matrix in shared memory is
//! slower to work in by some percent, and a restart pays a fault for each 4 KB. Called by `region`, `depot`
//! and `sysv`, and by the matrix's private buffers. All of it is a wish: where the kernel cannot, the
//! memory is the same in small pages.

use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::base::cores;
use crate::base::new_thread;
use crate::base::pulse;
use crate::base::threads::Pool;
use crate::base::topology::Topology;

/// What x86-64 and most ARM kernels call huge; on others the wishes below have no effect.
pub const HUGE: usize = 2 << 20;

/// `len` bytes of private, zeroed memory that begin on a multiple of `boundary`, and on a boundary of huge pages if that many
/// would fill one.
pub fn map_aligned(len: usize, protection: i32, boundary: usize) -> std::io::Result<NonNull<u8>> {
    let page = page();
    let boundary = boundary.max(if len >= HUGE { HUGE } else { page });
    // One more, so that an aligned address can be picked.
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
            // What is kept ends on a page, as the kernel counts.
            let kept = aligned + len.next_multiple_of(page);
            if start + span > kept {
                libc::munmap(kept as *mut _, start + span - kept);
            }
            start = aligned;
        }
        Ok(NonNull::new_unchecked(start as *mut u8))
    }
}

/// Bytes of a small page: on ARM often more than elsewhere.
pub fn page() -> usize {
    // SAFETY: asks for a constant of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Bytes of a page of a file's memory, which a mapping of it begins on: those of a hugetlbfs are larger than others.
pub fn page_of(file: &File) -> usize {
    const HUGETLBFS: i64 = 0x9584_58f6;
    let about = nix::sys::statfs::fstatfs(file).ok();
    #[allow(clippy::unnecessary_cast)] // The type differs between C libraries.
    let huge = about.filter(|about| about.filesystem_type().0 as i64 == HUGETLBFS);
    huge.map_or_else(page, |about| about.block_size() as usize)
}

/// Threads that fill memory at once, at least: one zeroes some GB a second, and a restart waits for it.
const FILLERS: usize = 4;
/// Huge pages below which a further thread is not worth its start.
const SHARE: usize = 16;
/// Bytes that a thread fills at a time, one after the other in turn.
const TURN: usize = SHARE * HUGE;

/// Turns the whole huge pages of a mapping of new shared memory into huge pages that are really there, or, where the kernel makes
/// none, takes small ones in their place. What is left over, or all of it, stays unallocated. Each filler takes the pages of its
/// turn near the cores on which it runs, which are spread over the rank's: so the memory lies in all of the NUMA nodes that the
/// rank computes on.
///
/// # Safety
/// `base` is a shared, writable mapping of `len` bytes, and what it maps is at least that long.
pub(super) unsafe fn collapse(base: NonNull<u8>, len: usize) {
    let first = (base.as_ptr() as usize).next_multiple_of(HUGE);
    let pages = ((base.as_ptr() as usize + len) / HUGE).saturating_sub(first / HUGE);
    by_fillers(pages, |thread, threads| {
        collapse_pages(first + thread * TURN, first + pages * HUGE, threads * TURN);
    });
}

/// Takes every page of a mapping by a store: for memory that is no file, kernels before 5.14 know no other way. Each filler asks
/// before every turn whether the node `has_room` for its bytes. Whether all pages were taken.
///
/// # Safety
/// `base` is a shared, writable mapping of `len` bytes, from the beginning of a page, to which nobody else writes.
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
                // SAFETY: within the mapping, and of this filler's turn; contents stay as they are.
                unsafe { place.write_volatile(place.read_volatile()) };
            }
            pulse::beat();
        }
    });
    !full.into_inner()
}

/// Each filler of a mapping of so many huge pages does its part of the `work`, which is told its number and how many there are.
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
            // Where the system gives no more threads, those that are here do it.
            if filler.is_err() {
                work(thread);
            }
        }
        work(0);
    });
}

/// How many fill so many pages: as many for each of the memories, but not more than may run here: a rank that is bound to one
/// core has one.
fn fillers(cores: usize, memories: usize, pages: usize) -> usize {
    let wanted = FILLERS.next_multiple_of(memories.max(1));
    wanted.min(cores).min(pages / SHARE).max(1)
}

/// All threads of a pool work on `len` bytes, each on its huge pages: they take them in turn. `work` is told the thread's number
/// and what bytes a page has.
pub(super) fn in_turn(len: usize, pool: &mut Pool, work: impl Fn(usize, Range<usize>) + Sync) {
    let (turns, threads) = (len.div_ceil(HUGE), pool.threads());
    let of = |thread: usize| {
        for turn in (thread..turns).step_by(threads) {
            work(thread, turn * HUGE..len.min((turn + 1) * HUGE));
        }
    };
    match turns {
        // Not worth a word to the others.
        0 | 1 => of(0),
        _ => pool.on_each(of),
    }
}

/// Every `step` bytes from `first` to `end`, all on boundaries of huge pages within a mapping that `collapse` was given, a turn.
fn collapse_pages(first: usize, end: usize, step: usize) {
    for start in (first..end).step_by(step) {
        let stop = end.min(start + TURN);
        for place in (start..stop).step_by(HUGE) {
            // The kernel leaves alone what holds no page at all. Asked this way, it says if there is no room
            // for one; a plain store would be a SIGBUS.
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
        pulse::beat();
    }
}

/// Allocates and maps all pages of a mapping now. The kernel answers with an error where a later touch would
/// kill, and with EINVAL where it does not know how to.
///
/// # Safety
/// `base` is within a writable mapping that goes on for `len` bytes.
pub(super) unsafe fn populate(base: NonNull<u8>, len: usize) -> std::io::Result<()> {
    // The kernel takes whole pages, and what is behind the head of a segment need not begin on one.
    let (base, len) = on_a_page(base, len);
    for at in (0..len).step_by(pulse::BYTES) {
        let bytes = pulse::BYTES.min(len - at);
        // SAFETY: within the mapping; contents stay as they are.
        let code = unsafe {
            let place = base.as_ptr().byte_add(at);
            libc::madvise(place.cast(), bytes, libc::MADV_POPULATE_WRITE)
        };
        if code != 0 {
            return Err(std::io::Error::last_os_error());
        }
        pulse::beat();
    }
    Ok(())
}

/// The same range from the beginning of its first page on.
pub(super) fn on_a_page(base: NonNull<u8>, len: usize) -> (NonNull<u8>, usize) {
    let before = base.as_ptr().addr() % page();
    // SAFETY: what is mapped is mapped by whole pages.
    (unsafe { base.byte_sub(before) }, before + len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    /// The main thread alone would have all of it in its memory.
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

    /// By turns, so by threads: each memory gets an equal part, however many there are.
    #[test]
    fn memory_is_filled_from_all_memories_of_a_rank() {
        for (machine, memories) in [(8, 8), (64, 8), (96, 12), (64, 4), (6, 3), (16, 2), (4, 1)]
            .map(|(c, m)| (Topology::even(c, m), m))
        {
            let own = machine.one_a_core();
            let threads = fillers(machine.cores(), machine.own_memories(), 1 << 20);
            let mut parts = BTreeMap::new();
            for thread in 0..threads {
                let seat = cores::seat(&own, thread, threads).unwrap();
                *parts.entry(machine.memory_of(seat)).or_insert(0) += 1;
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
    fn what_can_hold_a_huge_page_begins_on_one() {
        let lengths = [1, page(), HUGE - 1, HUGE, HUGE + 1, 5 * HUGE + 12345];
        // Address space alone is what a boundary of pages of 1 GB takes.
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
