//! Recovery of names of memory in use, after an administrator or a job that tidies /dev/shm has removed these names.
//!
//! Memory without a name stays as long as its process. But the next process cannot find this memory, and an agent considers the
//! rank that uses this memory ended. The kernel gives no new name to a file that has lost its last name. So a new file is
//! created under the name, and the contents are moved to the new file piece by piece. The move needs room for one piece, and all
//! addresses stay the same. A process that has opened the old file reads zeros from then on.
//!
//! `checkpoint` checks the names between iterations, for parts that no other thread reads at that moment. The name of a System V
//! segment is checked, but cannot be recovered.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::fcntl::{FallocateFlags, fallocate};

use super::file::{cannot_grow, new_file, reserve, room};
use super::huge::{self, HUGE};
use super::memory_store::MemoryStore;
use super::part::Part;
use super::region::{MemoryError, Region};
use super::{lock, sysv};
use crate::base::heartbeat;

/// Number of bytes that are moved at a time; a multiple of the huge page size.
const PIECE: usize = 64 << 20;

/// Handle to one part in use, independent of its [`Region`].
#[derive(Debug)]
pub struct Named {
    pub part: Part,
    /// Files that contain the part; empty for a System V segment. The part's name should refer to the last file. Earlier files
    /// contain pieces that could not be moved to the last file.
    files: Vec<File>,
    pub(super) base: *mut u8,
    pub(super) len: usize,
    mapped: usize,
}

// SAFETY: only `name_again` uses the address `base`. Its caller promises that no other thread uses the memory there meanwhile.
unsafe impl Send for Named {}

impl Named {
    /// Frees the room of a piece in the old files after the piece was moved to a new file. The next piece needs this room.
    fn free_piece(&self, at: usize, bytes: usize) {
        let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        for old in &self.files {
            // If freeing fails, only room is lost.
            let _ = fallocate(old, how, at as libc::off_t, bytes as libc::off_t);
        }
    }
}

impl MemoryStore {
    /// Makes a handle to a part that this store has opened or created.
    pub fn named(&self, position: u32, part: Part, region: &Region) -> Result<Named, MemoryError> {
        let file = region.file().map(File::try_clone).transpose().map_err(|error| {
            MemoryError::os("cannot keep open", self.name(position, part), error)
        })?;
        let (base, len, mapped) = (region.as_ptr(), region.len(), region.mapped());
        Ok(Named { part, files: file.into_iter().collect(), base, len, mapped })
    }

    /// Returns true if the part can be found by its name.
    pub fn has_name(&self, position: u32, named: &Named) -> bool {
        match (self.file(position, named.part), named.files.last()) {
            (Some((path, _)), Some(file)) => lock::is_named(file, &path),
            _ => sysv::exists(&self.name(position, named.part)),
        }
    }

    /// Moves the part to a new file under its name. Returns an error for a System V segment, or if another file has the name.
    ///
    /// # Safety
    /// The region from which `named` was made is still mapped, and no thread writes there meanwhile. No process that has opened
    /// the part by its old name still reads the part, because the old file is emptied.
    pub unsafe fn name_again(&self, position: u32, named: &mut Named) -> Result<(), MemoryError> {
        let name = self.name(position, named.part);
        let Some((path, page)) = self.file(position, named.part) else {
            let why = "a removed System V segment cannot get its name back".into();
            return Err(MemoryError::NotOurs { name, why });
        };
        let file = new_file(&path, &name)?;
        let mut some = false;
        let moved = (|| {
            let length = if page == 4096 { named.len } else { named.mapped };
            // Room is checked first. The attempt is repeated every second, and must not use up the last memory each time.
            room(&file, &path, PIECE.max(page).min(named.mapped))?;
            file.set_len(length as u64)
                .map_err(|source| cannot_grow("cannot size", &path, length, source))?;
            let copy = file.try_clone();
            let copy = copy.map_err(|error| MemoryError::os("cannot open", &path, error))?;
            let new = Region::map_file(copy, named.len, named.mapped, true, &path)?;
            for at in (0..named.mapped).step_by(PIECE.max(page)) {
                let bytes = PIECE.max(page).min(named.mapped - at);
                // SAFETY: both mappings are `mapped` bytes long, and every page of this piece is allocated before it is touched.
                // The new mapping of a piece contains the same bytes as the old one.
                unsafe {
                    let (from, to) = (named.base.add(at), new.as_ptr().add(at));
                    if page == 4096 && bytes >= HUGE {
                        huge::collapse(std::ptr::NonNull::new_unchecked(to), bytes);
                    }
                    reserve(&file, &path, at, (at + bytes).min(length))?;
                    std::ptr::copy_nonoverlapping(from, to, bytes);
                    let placed = libc::mmap(
                        from.cast(),
                        bytes,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_SHARED | libc::MAP_FIXED,
                        file.as_raw_fd(),
                        at as libc::off_t,
                    );
                    if placed == libc::MAP_FAILED {
                        let error = io::Error::last_os_error();
                        return Err(MemoryError::os("cannot map", &path, error));
                    }
                    some = true;
                }
                named.free_piece(at, bytes);
                heartbeat::beat();
            }
            Ok(())
        })();
        // If only some pieces were moved, the part stays whole at its addresses, but has no name.
        if moved.is_err() {
            let _ = std::fs::remove_file(&path);
        } else {
            named.files.clear();
        }
        if some || moved.is_ok() {
            named.files.push(file);
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Store;
    use crate::testkit::small_tmpfs::in_a_small_tmpfs;

    fn memory_store(what: &str, store: Store) -> MemoryStore {
        MemoryStore::new(store, &format!("t-names-{what}-{}", std::process::id())).unwrap()
    }

    #[test]
    fn memory_whose_name_was_removed_gets_it_back_with_all_it_holds() {
        let memory_store = memory_store("back", Store::Posix);
        for len in [5000, 3 * HUGE + 4096 + 17, PIECE + 3 * 4096] {
            let mut region = memory_store.create(1, Part::B, len).unwrap();
            let mut named = memory_store.named(1, Part::B, &region).unwrap();
            for (i, byte) in region.bytes_mut().iter_mut().enumerate() {
                *byte = (i / 7 % 251) as u8;
            }
            let (before, at) = (region.bytes().to_vec(), region.as_ptr());
            assert!(memory_store.has_name(1, &named));
            for _ in 0..2 {
                assert!(memory_store.unlink(1, Part::B) && !memory_store.has_name(1, &named));
                // SAFETY: the region is mapped, and no thread works in it.
                unsafe { memory_store.name_again(1, &mut named).unwrap() };
                assert!(memory_store.has_name(1, &named));
            }
            assert!(region.as_ptr() == at && region.bytes() == before);
            // A later open by the name sees later writes.
            region.bytes_mut()[len - 1] = 252;
            drop(region);
            let again = memory_store.open_sized(1, Part::B, len).unwrap();
            assert!(again.bytes()[..len - 1] == before[..len - 1] && again.bytes()[len - 1] == 252);
            memory_store.unlink(1, Part::B);
        }
    }

    #[test]
    fn another_ones_memory_under_the_name_is_left_alone() {
        let memory_store = memory_store("taken", Store::Posix);
        let region = memory_store.create(1, Part::B, 5000).unwrap();
        let mut named = memory_store.named(1, Part::B, &region).unwrap();
        memory_store.unlink(1, Part::B);
        let mut theirs = memory_store.create(1, Part::B, 6000).unwrap();
        theirs.bytes_mut().fill(3);
        assert!(!memory_store.has_name(1, &named));
        // SAFETY: the region is mapped, and no thread works in it.
        let told = unsafe { memory_store.name_again(1, &mut named) };
        assert!(matches!(told, Err(MemoryError::Exists(_))), "{told:?}");
        assert_eq!(memory_store.open(1, Part::B).unwrap().bytes(), theirs.bytes());
        memory_store.unlink(1, Part::B);
    }

    /// Tests that a failed recovery of a name leaves no files or memory behind. A rank repeats a failed recovery every second,
    /// so such remains would add up.
    #[test]
    fn a_name_that_cannot_be_given_back_costs_nothing() {
        in_a_small_tmpfs(64 << 10, |folder| {
            let memory_store = MemoryStore::with_directory(Store::Posix, "full", folder).unwrap();
            let region = memory_store.create(1, Part::B, 5000).unwrap();
            let mut named = memory_store.named(1, Part::B, &region).unwrap();
            let mut hold = memory_store.hold(1).unwrap();
            let head = hold.renew(4096).unwrap();
            memory_store.unlink(1, Part::B);
            assert!(hold.remove());
            // Fills the file system to the last page.
            let rest = folder.join("rest");
            let mut file = File::create(&rest).unwrap();
            while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
            let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
            let (files, before) = (named.files.len(), open());
            for _ in 0..20 {
                // SAFETY: the region is mapped, and no thread works in it.
                let told = unsafe { memory_store.name_again(1, &mut named) };
                assert!(matches!(told, Err(MemoryError::NoRoom { .. })), "{told:?}");
                assert!(hold.name_again(&head).is_err());
            }
            assert_eq!(named.files.len(), files);
            assert!(open() < before + 20, "other tests may have some open");
            std::fs::remove_file(&rest).unwrap();
            drop(file);
            // SAFETY: the region is mapped, and no thread works in it.
            unsafe { memory_store.name_again(1, &mut named).unwrap() };
            assert!(memory_store.has_name(1, &named));
            drop(hold.name_again(&head).unwrap());
            assert!(hold.is_named());
        });
    }

    /// A tmpfs that reports no size has no limit.
    #[test]
    fn a_tmpfs_without_a_limit_has_room() {
        in_a_small_tmpfs(0, |folder| {
            let memory_store =
                MemoryStore::with_directory(Store::Posix, "endless", folder).unwrap();
            assert_eq!(memory_store.create(1, Part::B, 5000).unwrap().len(), 5000);
        });
    }

    #[test]
    fn a_system_v_segment_without_its_name_is_noticed() {
        let memory_store = memory_store("sysv", Store::SysV);
        let region = memory_store.create(1, Part::B, 5000).unwrap();
        let mut named = memory_store.named(1, Part::B, &region).unwrap();
        assert!(memory_store.has_name(1, &named));
        memory_store.unlink(1, Part::B);
        assert!(!memory_store.has_name(1, &named));
        // SAFETY: the region is mapped, and no thread works in it.
        assert!(unsafe { memory_store.name_again(1, &mut named) }.is_err());
    }
}
