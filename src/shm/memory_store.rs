//! Shared-memory store: the persistent shared memory of one job on this node, and its names.
//!
//! A name is `skt-hpl.<uid>.<job>.p<position>.<part>`. This name shows its owner and purpose to an administrator who looks into
//! /dev/shm. `checkpoint` creates and opens the memory of a position here. `status` lists all memory of a user, and `clean`
//! removes the memory of one job.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::unistd::geteuid;
use serde::Serialize;

use super::file::{cannot_grow, is_ours, new_file, private_file, reserve, room};
use super::huge::HUGE;
use super::hugetlbfs::find_hugetlbfs;
use super::lock;
use super::part::{Part, Store};
use super::region::{MemoryError, Region};
use super::room::sysv_outlives;
use super::sysv;
use crate::base::faults::{Point, hit};

/// Part of a position's memory, as found on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    pub job: String,
    pub position: u32,
    pub part: Part,
    pub bytes: u64,
    pub store: Store,
}

/// Shared-memory store of one job on this node.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    store: Store,
    job: String,
    pub(super) uid: u32,
    shm: PathBuf,
    huge: Option<(PathBuf, usize)>,
}

impl MemoryStore {
    pub fn new(store: Store, job: &str) -> Result<Self, MemoryError> {
        Self::with_directory(store, job, Path::new(SHM))
    }

    /// Makes a store whose POSIX names are in the directory `shm`. Tests pass a small tmpfs.
    pub fn with_directory(store: Store, job: &str, shm: &Path) -> Result<Self, MemoryError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if job.is_empty() || job.len() > 64 || !job.chars().all(plain) {
            return Err(MemoryError::BadJob(job.into()));
        }
        let huge = find_hugetlbfs();
        if store == Store::HugeTlbfs && huge.is_none() {
            return Err(MemoryError::NoHugeTlbfs);
        }
        if store == Store::SysV && !sysv_outlives() {
            return Err(MemoryError::GoesWithProcesses);
        }
        Ok(Self { store, job: job.into(), uid: geteuid().as_raw(), shm: shm.into(), huge })
    }

    pub fn job(&self) -> &str {
        &self.job
    }

    pub fn store(&self) -> Store {
        self.store
    }

    pub fn name(&self, position: u32, part: Part) -> String {
        format!("skt-hpl.{}.{}.p{position}.{}", self.uid, self.job, part.name())
    }

    /// Returns the file of a part and its page size, or None for a System V segment.
    pub(super) fn file(&self, position: u32, part: Part) -> Option<(PathBuf, usize)> {
        let name = self.name(position, part);
        match (part.kept_in(self.store), &self.huge) {
            (Store::SysV, _) => None,
            (Store::HugeTlbfs, Some((dir, page))) => Some((dir.join(name), *page)),
            _ => Some((self.shm.join(name), 4096)),
        }
    }

    /// Creates a part of exactly `len` zero bytes, all allocated. The header of a position in use is created by
    /// [`Hold::renew`](super::Hold::renew) instead, under the lock.
    pub fn create(&self, position: u32, part: Part, len: usize) -> Result<Region, MemoryError> {
        let name = self.name(position, part);
        let Some((path, page)) = self.file(position, part) else {
            return sysv::create(&name, len, || hit(Point::PartNamed, position as usize));
        };
        let mapped = len.max(1).next_multiple_of(page);
        let file = new_file(&path, &name)?;
        // If creating fails from here on, the file is removed, so that no incomplete part stays.
        hit(Point::PartNamed, position as usize);
        let made = (|| {
            room(&file, &path, mapped)?;
            // The file's length is the requested size, which a later open returns. In a hugetlbfs, the length is rounded up to
            // whole pages.
            let length = if page == 4096 { len } else { mapped };
            let large = page == 4096 && len >= HUGE;
            if large {
                // Only large parts get their length before their pages. If a process is killed in between, the file has holes and
                // counts as another program's. A header must never have holes.
                file.set_len(length as u64)
                    .map_err(|source| cannot_grow("cannot size", &path, length, source))?;
            } else {
                reserve(&file, &path, 0, length)?;
            }
            let mut region = Region::map_file(file, len, mapped, true, &path)?;
            if large {
                region.in_huge_pages();
                // Allocates the pages that are still missing: all pages, or those that do not fill a huge page.
                reserve(region.file().expect("mapped from one"), &path, 0, length)?;
            }
            Ok(region)
        })();
        if made.is_err() {
            let _ = std::fs::remove_file(&path);
        }
        made
    }

    /// Extends a part in POSIX memory to `len` bytes, and opens the part. The new bytes are zero and allocated; the other bytes
    /// stay. Existing mappings keep their length. A part that is already longer keeps its length.
    pub fn extend(&self, position: u32, part: Part, len: usize) -> Result<Region, MemoryError> {
        let name = self.name(position, part);
        let Some((path, 4096)) = self.file(position, part) else {
            return Err(MemoryError::NotOurs {
                name,
                why: "System V segments and huge pages cannot be extended".into(),
            });
        };
        let file = private_file().open(&path);
        let file = file.map_err(|error| MemoryError::os("cannot open", &path, error))?;
        let there = is_ours(&file, &path, &name, self.uid)?.len() as usize;
        if len > there {
            room(&file, &path, len - there)?;
            reserve(&file, &path, there, len)?;
        }
        self.open(position, part)
    }

    /// Opens an existing part for reading and writing. Takes no lock: a process that works with a position has locked it by
    /// [`Self::hold`].
    pub fn open(&self, position: u32, part: Part) -> Result<Region, MemoryError> {
        self.open_as(position, part, true)
    }

    /// Opens an existing part read-only, even while another process works in it. Keeps no file open.
    pub fn peek(&self, position: u32, part: Part) -> Result<Region, MemoryError> {
        self.open_as(position, part, false)
    }

    fn open_as(&self, position: u32, part: Part, work: bool) -> Result<Region, MemoryError> {
        let name = self.name(position, part);
        let Some((path, page)) = self.file(position, part) else {
            return sysv::open(&name, work);
        };
        let file = private_file().write(work).open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => MemoryError::Missing(name.clone()),
            _ => MemoryError::os("cannot open", &path, error),
        })?;
        let meta = is_ours(&file, &path, &name, self.uid)?;
        let len = meta.len() as usize;
        // Another program has made a file with holes, or has cut it short. On a full node, touching a hole would be a SIGBUS.
        if page == 4096 && meta.blocks() * 512 < meta.len() {
            return Err(MemoryError::NotOurs {
                name,
                why: "it has holes, because parts of it were never allocated".into(),
            });
        }
        let mut region =
            Region::map_file(file, len, len.max(1).next_multiple_of(page), work, &path)?;
        if !work {
            region.close_file();
        }
        if matches!(part, Part::Head | Part::Done) {
            // Other processes, such as agents, read these parts. A bad page must not end such a process.
            region.readable(&name)?;
        }
        Ok(region)
    }

    pub(super) fn head_path(&self, position: u32) -> PathBuf {
        self.shm.join(self.name(position, Part::Head))
    }

    /// Opens a part that must be exactly `len` bytes long. In a hugetlbfs, this length is rounded up to whole pages.
    pub fn open_sized(&self, position: u32, part: Part, len: usize) -> Result<Region, MemoryError> {
        let region = self.open(position, part)?;
        let page = self.file(position, part).map_or(4096, |(_, page)| page);
        let expected = if page == 4096 { len } else { len.max(1).next_multiple_of(page) };
        if region.len() != expected {
            return Err(MemoryError::WrongSize {
                name: self.name(position, part),
                found: region.len() as u64,
                wanted: expected as u64,
            });
        }
        Ok(region)
    }

    /// Flips all bits of one byte of a part, as an injected fault. Returns false if there is no such byte.
    pub fn flip(&self, position: u32, part: Part, offset: usize) -> bool {
        let Ok(mut region) = self.open(position, part) else { return false };
        region.bytes_mut().get_mut(offset).map(|byte| *byte ^= 0xff).is_some()
    }

    /// Removes the name of a part. The memory is freed when the last process unmaps it. Returns true if the name existed.
    pub fn unlink(&self, position: u32, part: Part) -> bool {
        match self.file(position, part) {
            None => sysv::unlink(&self.name(position, part)),
            Some((path, _)) => std::fs::remove_file(path).is_ok(),
        }
    }

    /// Removes the names of all parts of one position, as if the node were lost. Does so even if a process uses the memory.
    pub fn unlink_position(&self, position: u32) {
        for part in Part::ALL {
            self.unlink(position, part);
        }
    }

    /// Lists the parts of this job on this node, in the kinds of memory that this store uses, ordered by position and part.
    pub fn list(&self) -> Vec<Held> {
        let mut all = self.list_all();
        all.retain(|held| self.keeps(held));
        all
    }

    /// Lists the parts of this job on this node, in all kinds of memory, ordered by position and part.
    pub(super) fn list_all(&self) -> Vec<Held> {
        let mut all = list_user_in(self.uid, &self.shm);
        all.retain(|held| held.job == self.job);
        all
    }

    /// Returns the store of the same job with another kind of memory.
    pub(super) fn of_kind(&self, store: Store) -> Self {
        Self { store, ..self.clone() }
    }

    /// Returns true if the part was found in the kind of memory that this store uses for such a part.
    fn keeps(&self, held: &Held) -> bool {
        held.store == held.part.kept_in(self.store)
    }

    /// Lists the positions of this job whose header is on this node.
    pub fn positions(&self) -> Vec<u32> {
        let heads = self.list().into_iter().filter(|held| held.part == Part::Head);
        heads.map(|held| held.position).collect()
    }

    /// Returns true if a live process works in the position's memory.
    pub fn in_use(&self, position: u32) -> bool {
        let head = private_file().write(false).open(self.head_path(position));
        head.is_ok_and(|file| lock::is_held(&file))
    }
}

/// Directory of the POSIX names.
const SHM: &str = "/dev/shm";

/// Lists this user's memory on this node, of all jobs and in all kinds of memory. `status` shows this list.
pub fn list_user() -> Vec<Held> {
    list_user_in(geteuid().as_raw(), Path::new(SHM))
}

/// Cached list of this user's memory, for callers that need the list often. The names are scanned again only if a name may have
/// appeared or disappeared, or if the last scan is old. A scan of hundreds of names takes processor time from the ranks of the
/// node.
#[derive(Debug)]
pub struct Listed {
    shm: PathBuf,
    held: Vec<Held>,
    /// Time of the last full scan, and the change times of the folders just before this scan. None if the next call must scan.
    looked: Option<(Instant, Vec<Option<SystemTime>>)>,
    folders: Vec<PathBuf>,
}

/// Maximum time between full scans. A file that grows and a new System V segment do not change the change time of a folder.
const LOOK_THROUGH_EVERY: Duration = Duration::from_secs(10);

/// Age from which a folder's change time is trusted. A folder that has just changed may change again within the same tick of the
/// kernel's clock. A new file in the folder may not have its final length yet.
const SETTLED: Duration = Duration::from_secs(2);

impl Default for Listed {
    fn default() -> Self {
        Self::under(Path::new(SHM))
    }
}

impl Listed {
    /// Makes an empty list for the memory whose POSIX names are in the folder `shm`.
    fn under(shm: &Path) -> Self {
        Self { shm: shm.into(), held: Vec::new(), looked: None, folders: Vec::new() }
    }

    pub fn held(&self) -> &[Held] {
        &self.held
    }

    /// Updates the list. Returns false if nothing can have changed since the last call.
    pub fn look(&mut self) -> bool {
        let now = SystemTime::now();
        let changed =
            self.folders.iter().map(|folder| folder.metadata().and_then(|m| m.modified()));
        let changed: Vec<Option<SystemTime>> = changed.map(Result::ok).collect();
        // If a change time is in the future, the clock has been set back since. Such a time is not trusted.
        let is_old = |at: &Option<SystemTime>| {
            at.is_none_or(|at| now.duration_since(at).is_ok_and(|age| age >= SETTLED))
        };
        if let Some((at, before)) = &self.looked
            && at.elapsed() < LOOK_THROUGH_EVERY
            && *before == changed
            && changed.iter().all(is_old)
        {
            return false;
        }
        let huge = find_hugetlbfs().map(|(dir, _)| dir);
        let folders: Vec<PathBuf> = [self.shm.clone()].into_iter().chain(huge).collect();
        // `changed` belongs to the folders of the last scan. If the folders are different now, the next call scans again.
        self.looked = (folders == self.folders).then(|| (Instant::now(), changed));
        self.folders = folders;
        self.held = list_user_in(geteuid().as_raw(), &self.shm);
        true
    }
}

fn list_user_in(uid: u32, shm: &Path) -> Vec<Held> {
    let mut all = Vec::new();
    let mut scan = |dir: &Path, store: Store| {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let Some((job, position, part)) =
                entry.file_name().to_str().and_then(|n| parse(n, uid))
            else {
                continue;
            };
            if let Ok(meta) = entry.metadata()
                && meta.uid() == uid
                && meta.is_file()
            {
                all.push(Held { job, position, part, bytes: meta.len(), store });
            }
        }
    };
    scan(shm, Store::Posix);
    if let Some((dir, _)) = find_hugetlbfs() {
        scan(&dir, Store::HugeTlbfs);
    }
    for (name, bytes) in sysv::list() {
        if let Some((job, position, part)) = parse(&name, uid) {
            all.push(Held { job, position, part, bytes, store: Store::SysV });
        }
    }
    all.sort_by(|a, b| (&a.job, a.position, a.part).cmp(&(&b.job, b.position, b.part)));
    all
}

fn parse(name: &str, uid: u32) -> Option<(String, u32, Part)> {
    let rest = name.strip_prefix("skt-hpl.")?;
    let mut fields = rest.split('.');
    if fields.next()?.parse::<u32>().ok()? != uid {
        return None;
    }
    let job = fields.next()?;
    let position = fields.next()?.strip_prefix('p')?.parse().ok()?;
    let part = Part::parse(fields.next()?)?;
    fields.next().is_none().then(|| (job.to_owned(), position, part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::memory::until_free;
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::OpenOptionsExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn unique() -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("t-store-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// A repeated listing shows new and removed names at once. A folder counts as unchanged only some time after its last change.
    #[test]
    fn files_that_come_and_go_are_seen_at_once_without_vain_looks() {
        let dir = tempfile::tempdir().unwrap();
        let memory_store =
            MemoryStore::with_directory(Store::Posix, &unique(), dir.path()).unwrap();
        let mut listed = Listed::under(dir.path());
        let mut look = || {
            let changed = listed.look();
            let ours = listed.held().iter().filter(|held| held.job == memory_store.job());
            (changed, ours.map(|held| (held.position, held.part, held.bytes)).collect::<Vec<_>>())
        };
        let changed = |ago: u64| {
            let at = SystemTime::now() - Duration::from_secs(ago);
            File::open(dir.path()).unwrap().set_modified(at).unwrap();
        };
        assert_eq!(look(), (true, vec![]));
        for round in 0..3 {
            let head = memory_store.create(round, Part::Head, 100).unwrap();
            assert_eq!(look(), (true, vec![(round, Part::Head, 100)]));
            // The folder may have changed again within the tick of its last known change.
            assert!(look().0);
            let done = memory_store.create(round, Part::Done, 5000).unwrap();
            let both = vec![(round, Part::Head, 100), (round, Part::Done, 5000)];
            assert_eq!(look(), (true, both.clone()));
            changed(10);
            assert_eq!(look(), (true, both.clone()));
            assert_eq!(look(), (false, both));
            // The change time is in the future, as if the clock had been set back.
            let later = SystemTime::now() + Duration::from_secs(1000);
            File::open(dir.path()).unwrap().set_modified(later).unwrap();
            assert!((0..2).all(|_| look().0));
            drop((head, done));
            memory_store.unlink_position(round);
            assert_eq!(look(), (true, vec![]));
        }
    }

    struct Cleaned(MemoryStore);
    impl Drop for Cleaned {
        fn drop(&mut self) {
            let _ = self.0.clean();
        }
    }

    fn stores() -> Vec<Store> {
        let mut stores = vec![Store::Posix, Store::SysV];
        // Huge pages exist only if an administrator reserved some.
        let free =
            std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        if find_hugetlbfs().is_some() && free.is_ok_and(|n| n.trim().parse().unwrap_or(0) >= 2) {
            stores.push(Store::HugeTlbfs);
        }
        stores
    }

    #[test]
    fn a_part_that_is_made_longer_keeps_what_it_holds() {
        let memory_store =
            MemoryStore::new(Store::SysV, &format!("t-longer-{}", std::process::id())).unwrap();
        let mut before = memory_store.create(1, Part::Done, 5000).unwrap();
        before.bytes_mut().fill(7);
        let mut longer = memory_store.extend(1, Part::Done, 9000).unwrap();
        assert_eq!((before.len(), longer.len()), (5000, 9000));
        assert!(longer.bytes()[..5000] == *before.bytes());
        assert!(longer.bytes()[5000..].iter().all(|&byte| byte == 0));
        longer.bytes_mut()[8999] = 9;
        assert_eq!(memory_store.open(1, Part::Done).unwrap().bytes()[8999], 9);
        // A shorter length and a lack of room both leave the contents as they are.
        assert_eq!(memory_store.extend(1, Part::Done, 10).unwrap().bytes(), longer.bytes());
        assert!(matches!(
            memory_store.extend(1, Part::Done, 1 << 60),
            Err(MemoryError::NoRoom { .. })
        ));
        assert_eq!(memory_store.open(1, Part::Done).unwrap().bytes(), longer.bytes());
        assert!(matches!(memory_store.extend(2, Part::Done, 10), Err(MemoryError::Os { .. })));
        memory_store.unlink(1, Part::Done);
    }

    #[test]
    fn memory_outlives_its_region_in_every_store() {
        for store in stores() {
            let memory_store = Cleaned(MemoryStore::new(store, &unique()).unwrap());
            let mut region = memory_store.0.create(3, Part::A, 10_000).unwrap();
            region.as_slice_f64_mut()[1249] = 6.25;
            drop(region);
            assert!(matches!(memory_store.0.create(3, Part::A, 10), Err(MemoryError::Exists(_))));
            let region = memory_store.0.open_sized(3, Part::A, 10_000).unwrap();
            assert_eq!(region.as_slice_f64()[1249], 6.25);
            assert!(matches!(
                memory_store.0.open_sized(3, Part::A, 9_000_000),
                Err(MemoryError::WrongSize { .. })
            ));
            drop(region);
            assert_eq!(memory_store.0.list().len(), 1);
            assert!(memory_store.0.unlink(3, Part::A));
            assert!(!memory_store.0.unlink(3, Part::A));
            assert!(matches!(memory_store.0.open(3, Part::A), Err(MemoryError::Missing(_))));
        }
    }

    /// All users may create files in /dev/shm, so an entry under one of our names may belong to another user, or be no file.
    #[test]
    fn foreign_files_under_our_names_are_left_alone_and_not_waited_for() {
        let memory_store = Cleaned(MemoryStore::new(Store::Posix, &unique()).unwrap());
        let (head, _) = memory_store.0.file(0, Part::Head).unwrap();
        nix::unistd::mkfifo(&head, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for told in [memory_store.0.open(0, Part::Head), memory_store.0.peek(0, Part::Head)] {
            let told = told.unwrap_err().to_string();
            assert!(told.contains("left alone"), "{told}");
        }
        assert!(memory_store.0.hold(0).is_err() && !memory_store.0.in_use(0));
        let _ = memory_store.0.clean();
        let _ = std::fs::remove_file(&head);
        let (path, _) = memory_store.0.file(0, Part::A).unwrap();
        std::fs::write(&path, "").unwrap();
        let told = memory_store.0.create(0, Part::A, 10).unwrap_err().to_string();
        assert!(told.contains("`skt-hpl clean --job NAME` removes"), "{told}");
        // Only root can change a file's owner.
        if std::os::unix::fs::chown(&path, Some(65534), None).is_ok() {
            let told = memory_store.0.create(0, Part::A, 10).unwrap_err().to_string();
            assert!(told.contains("user 65534") && told.contains("--job"), "{told}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn large_parts_are_zero_and_all_there_whatever_their_pages() {
        for store in [Store::Posix, Store::SysV] {
            for len in [HUGE - 1, HUGE, 5 * HUGE + 4096 + 17] {
                let memory_store = Cleaned(MemoryStore::new(store, &unique()).unwrap());
                let mut region = memory_store.0.create(1, Part::B, len).unwrap();
                assert_eq!(region.len(), len);
                assert!(region.bytes().iter().all(|&b| b == 0));
                region.bytes_mut()[len - 1] = 7;
                drop(region);
                // Opening checks that every block is allocated.
                let region = memory_store.0.open_sized(1, Part::B, len).unwrap();
                assert_eq!(region.bytes()[len - 1], 7);
                // A mapping that is large enough for huge pages starts at a multiple of the huge page size.
                let skipped = if store == Store::SysV { 4096 } else { 0 };
                assert!(len < HUGE || (region.as_ptr() as usize - skipped).is_multiple_of(HUGE));
            }
        }
    }

    #[test]
    fn a_head_has_one_process_and_anyone_of_this_user_may_look() {
        for store in [Store::Posix, Store::SysV] {
            let memory_store = Cleaned(MemoryStore::new(store, &unique()).unwrap());
            let mut hold = memory_store.0.hold(0).unwrap();
            let head = hold.renew(4096).unwrap();
            assert!(matches!(memory_store.0.hold(0), Err(MemoryError::InUse { .. })));
            assert!(memory_store.0.in_use(0));
            assert!(memory_store.0.peek(0, Part::Head).is_ok());
            assert!(matches!(memory_store.0.clean(), Err(MemoryError::InUse { .. })));
            drop((head, hold));
            until_free(&memory_store.0, 0);
            assert!(memory_store.0.hold(0).is_ok());
        }
    }

    #[test]
    fn clean_removes_the_named_job_and_nothing_else() {
        let (mine, other) = (unique(), unique());
        for store in [Store::Posix, Store::SysV] {
            let mine = Cleaned(MemoryStore::new(store, &mine).unwrap());
            let longer = Cleaned(MemoryStore::new(store, &format!("{}x", mine.0.job())).unwrap());
            let other = Cleaned(MemoryStore::new(store, &other).unwrap());
            for memory_store in [&mine, &longer, &other] {
                drop(memory_store.0.create(1, Part::B, 100).unwrap());
                drop(memory_store.0.create(12, Part::Head, 100).unwrap());
            }
            assert_eq!(mine.0.positions(), vec![12]);
            assert_eq!(mine.0.clean().unwrap().len(), 2);
            assert!(mine.0.list().is_empty());
            assert_eq!(longer.0.list().len(), 2);
            assert_eq!(other.0.list().len(), 2);
        }
    }

    #[test]
    fn names_say_user_job_position_and_part_and_nobody_else_may_read() {
        let job = unique();
        let memory_store = Cleaned(MemoryStore::new(Store::Posix, &job).unwrap());
        drop(memory_store.0.create(7, Part::C, 1).unwrap());
        let uid = geteuid();
        let path = format!("/dev/shm/skt-hpl.{uid}.{job}.p7.c");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(memory_store.0.open(7, Part::C), Err(MemoryError::NotOurs { .. })));
        for bad in ["", "a.b", "a/b", "../x", "ü"] {
            assert!(matches!(MemoryStore::new(Store::Posix, bad), Err(MemoryError::BadJob(_))));
        }
    }

    #[test]
    fn a_node_without_room_says_both_numbers_and_keeps_nothing() {
        for store in [Store::Posix, Store::SysV] {
            let memory_store = Cleaned(MemoryStore::new(store, &unique()).unwrap());
            let wanted = 1usize << 50;
            match memory_store.0.create(0, Part::A, wanted) {
                Err(MemoryError::NoRoom { wanted: w, available, .. }) => {
                    assert_eq!(w, wanted as u64);
                    assert!(available > 0 && available < w);
                }
                other => panic!("{other:?}"),
            }
            assert!(memory_store.0.list().is_empty());
        }
    }

    /// Beyond a control group's limit the kernel kills a process, so an allocation that does not fit must be refused at once.
    #[test]
    fn the_limit_of_a_control_group_is_a_refusal_and_no_kill() {
        const INSIDE: &str = "SKT_TEST_IN_A_SMALL_GROUP";
        const LIMIT: u64 = 96 << 20;
        if std::env::var_os(INSIDE).is_some() {
            for store in [Store::Posix, Store::SysV] {
                let memory_store = Cleaned(MemoryStore::new(store, &unique()).unwrap());
                match memory_store.0.create(0, Part::A, 2 * LIMIT as usize) {
                    Err(MemoryError::NoRoom { available, .. }) => assert!(available < LIMIT),
                    other => panic!("{other:?}"),
                }
                assert!(memory_store.0.create(0, Part::A, 1 << 20).is_ok());
            }
            return;
        }
        // The test makes a group below its own, which needs version 1 of control groups. In version 2, a group with processes can
        // have no group below it.
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = groups.lines().find_map(|l| l.split_once(":memory:").map(|(_, path)| path));
        let Some(own) = own else {
            println!("not run: no control groups of version 1");
            return;
        };
        let group = format!("/sys/fs/cgroup/memory{own}/t-skt-{}", std::process::id());
        if std::fs::create_dir(&group).is_err() {
            println!("not run: no control group can be made here");
            return;
        }
        let limited = std::fs::write(format!("{group}/memory.limit_in_bytes"), LIMIT.to_string());
        let ran = std::process::Command::new("sh")
            .args(["-c", "echo $$ >$0/cgroup.procs && exec \"$@\"", &group])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "--test-threads", "1"])
            .arg("shm::memory_store::tests::the_limit_of_a_control_group_is_a_refusal_and_no_kill")
            .env(INSIDE, "1")
            .output();
        let removed = std::fs::remove_dir(&group);
        assert!(limited.is_ok() && removed.is_ok(), "{limited:?} {removed:?}");
        let ran = ran.unwrap();
        let words = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && words.contains("1 passed"), "{:?}: {words}", ran.status);
    }

    #[test]
    fn a_file_with_holes_is_not_used() {
        let job = unique();
        let memory_store = Cleaned(MemoryStore::new(Store::Posix, &job).unwrap());
        let path = Path::new("/dev/shm").join(memory_store.0.name(0, Part::B));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        assert!(matches!(memory_store.0.open(0, Part::B), Err(MemoryError::NotOurs { .. })));
    }
}
