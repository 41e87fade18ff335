//! Exclusive lock of this process on a position, from before the position's memory is read until the work with this memory ends.
//!
//! The header's file is locked before anything is read. The same file stays locked while the memory is opened, created or given
//! up. Names are removed only under the lock. So two runs that start at the same moment with the same job name cannot remove or
//! replace each other's memory.
//!
//! `checkpoint` takes the lock at the start of a test, `driver::signs` for the progress of an unprotected test, and `clean`
//! before removal.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::file::{is_ours, private_file, reserve};
use super::lock::{self, UNTIL_IT_HAS_ENDED};
use super::memory_store::{Held, MemoryStore};
use super::part::Part;
use super::region::{MemoryError, Region};
use crate::base::faults::{Point, hit};

/// Locked position. Dropping this value releases the lock. If nothing was ever written, or the contents were given up, the name
/// is removed, too.
#[derive(Debug)]
pub struct Hold {
    pub memory_store: MemoryStore,
    pub position: u32,
    file: File,
    path: PathBuf,
    name: String,
    /// True if the file is empty, or its contents are given up.
    vacant: bool,
}

impl MemoryStore {
    /// Locks a position for this process, whether the position has memory or not. If a process that is ending has the lock, waits
    /// as long as that process makes progress. If a process that is alive or stuck in the kernel has the lock, returns an error
    /// that names this process.
    pub fn hold(&self, position: u32) -> Result<Hold, MemoryError> {
        self.hold_with(position, UNTIL_IT_HAS_ENDED)
    }

    /// Locks a position for this process, whether the position has memory or not. Waits up to `timeout` for a process that has
    /// the lock and is ending. If another process keeps the lock, returns an error that names this process.
    fn hold_with(&self, position: u32, timeout: Duration) -> Result<Hold, MemoryError> {
        let (name, path) = (self.name(position, Part::Head), self.head_path(position));
        loop {
            let file = private_file().create(true).truncate(false).open(&path);
            let file = file.map_err(|error| MemoryError::os("cannot open", &path, error))?;
            is_ours(&file, &path, &name, self.uid)?;
            lock::take(&file, &name, timeout)?;
            // The earlier holder may have removed the name, or a third process may have created a new file under the name.
            if lock::is_named(&file, &path) {
                let vacant = file.metadata().is_ok_and(|meta| meta.len() == 0);
                return Ok(Hold { memory_store: self.clone(), position, file, path, name, vacant });
            }
        }
    }

    /// Removes this job's memory from this node, in stores of every kind, and returns the removed parts. If a process works in
    /// this memory, removes nothing and returns an error. Waits for killed processes that are still being torn down.
    pub fn clean(&self) -> Result<Vec<Held>, MemoryError> {
        self.clean_within(UNTIL_IT_HAS_ENDED)
    }

    /// Removes this job's memory from this node, and returns the removed parts. Waits for killed processes for at most `timeout`
    /// in total. If a process still works in this memory, removes nothing and returns an error.
    pub fn clean_within(&self, timeout: Duration) -> Result<Vec<Held>, MemoryError> {
        // All positions are locked before anything is removed, so a run that starts now finds all of the memory or none. A header
        // that cannot be locked for another reason than its use belongs to no running process of ours. Such a header is removed
        // without a lock.
        let mut holds: BTreeMap<u32, Option<Hold>> =
            self.list_all().iter().map(|held| (held.position, None)).collect();
        let began = Instant::now();
        for (&position, hold) in &mut holds {
            let timeout = timeout.saturating_sub(began.elapsed());
            *hold = match self.hold_with(position, timeout) {
                Err(error @ MemoryError::InUse { .. }) => return Err(error),
                locked => locked.ok(),
            };
        }
        let mut found = self.list_all();
        found.retain(|held| holds.contains_key(&held.position));
        for held in &found {
            hit(Point::GroundHalf, held.position as usize);
            match holds.get_mut(&held.position) {
                // The header is removed last, when its lock is released.
                Some(Some(hold)) if held.part == Part::Head => hold.give_up(),
                _ => _ = self.of_kind(held.store).unlink(held.position, held.part),
            }
        }
        // An empty header was created only to be locked, and does not count as found.
        found.retain(|held| held.part != Part::Head || held.bytes > 0);
        Ok(found)
    }
}

impl Hold {
    /// Returns true if the position has no memory to read.
    pub fn is_vacant(&self) -> bool {
        self.vacant
    }

    /// Maps the existing header.
    pub fn head(&self) -> Result<Region, MemoryError> {
        let length = self.file.metadata().map_or(0, |meta| meta.len()) as usize;
        self.map(&self.file, length)
    }

    fn map(&self, file: &File, length: usize) -> Result<Region, MemoryError> {
        let file = file.try_clone();
        let file = file.map_err(|error| MemoryError::os("cannot open", &self.path, error))?;
        let mapped = length.max(1).next_multiple_of(4096);
        let region = Region::map_file(file, length, mapped, true, &self.path)?;
        region.readable(&self.name)?;
        Ok(region)
    }

    /// Replaces the contents of the header's file by a blank header of `length` bytes. The file stays the same, and so does the
    /// lock. If a page of the file is unreadable, a new locked file replaces this file.
    pub fn renew(&mut self, length: usize) -> Result<Region, MemoryError> {
        reserve(&self.file, &self.path, 0, length)?;
        let mut region = match self.map(&self.file, length) {
            Err(MemoryError::Damaged { .. }) => self.replace(length)?,
            other => other?,
        };
        region.bytes_mut().fill(0);
        self.vacant = false;
        Ok(region)
    }

    /// Returns true if the header can be found by its name.
    pub fn is_named(&self) -> bool {
        lock::is_named(&self.file, &self.path)
    }

    /// Copies the header `head` to a new file under the header's name, after the name was removed. If another file has the name,
    /// returns an error.
    pub fn name_again(&mut self, head: &Region) -> Result<Region, MemoryError> {
        let mut new = self.replace(head.len())?;
        new.bytes_mut().copy_from_slice(head.bytes());
        Ok(new)
    }

    /// Creates a new locked file under the name. The name must be free, or name this header's file, which is then removed.
    fn replace(&mut self, length: usize) -> Result<Region, MemoryError> {
        self.remove();
        let file = private_file().create_new(true).open(&self.path);
        let file = file.map_err(|error| MemoryError::os("cannot make", &self.path, error))?;
        let ready = lock::take(&file, &self.name, Duration::ZERO)
            .and_then(|()| reserve(&file, &self.path, 0, length))
            .and_then(|()| self.map(&file, length));
        match ready {
            Ok(_) => self.file = file,
            // If the new file stayed, the next attempt would fail, or another process would take the file for the header.
            Err(_) => _ = std::fs::remove_file(&self.path),
        }
        ready
    }

    /// Gives the contents up: dropping this value removes the name, unless [`Self::renew`] is called before.
    pub fn give_up(&mut self) {
        self.vacant = true;
    }

    /// Removes the name now, under the lock. Returns false if the name is removed already, or names another file.
    pub fn remove(&mut self) -> bool {
        self.vacant = false;
        self.is_named() && std::fs::remove_file(&self.path).is_ok()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.vacant {
            self.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::process::{Child, Command};
    use std::sync::mpsc;

    use super::*;
    use crate::base::cores::left_out::left_out;
    use crate::shm::Store;
    use crate::shm::header::{BEAT_AT, HEAD_BYTES};
    use crate::testkit::memory::until_free;

    fn memory_store(name: &str) -> MemoryStore {
        MemoryStore::new(Store::Posix, &format!("t-hold-{name}-{}", std::process::id())).unwrap()
    }

    /// Returns true if `process` has a lock of type `kind`, such as `FLOCK`. A process that waits for the lock does not count.
    /// [`MemoryStore::in_use`] is less exact: a process that a concurrent test starts inherits for a moment all files that this
    /// process has open.
    fn has_lock(kind: &str, process: u32) -> bool {
        let is_its = |lock: &str| lock.contains(kind) && lock.contains(&format!(" {process} "));
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|lock| is_its(lock) && !lock.contains("->"))
    }

    /// Starts a process that has the lock on a header.
    fn holder(memory_store: &MemoryStore) -> Child {
        let path = memory_store.head_path(0);
        let path = path.to_str().unwrap();
        drop(memory_store.create(0, Part::Head, HEAD_BYTES).unwrap());
        // `-F` replaces `flock` by the command, so that the process with the lock is the one started here.
        let child =
            Command::new("flock").args(["-F", "-x", path, "sleep", "1000"]).spawn().unwrap();
        // The process is ready when it has its final name.
        let name = || std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap_or_default();
        while !has_lock("FLOCK", child.id()) || !name().starts_with(b"sleep\0") {
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }

    /// Sends SIGTERM to a process, but stops it at the beginning of its exit, like a process that the kernel is tearing down.
    /// `let_end` releases the process. Both functions must be called by the same thread.
    fn begin_end(pid: u32) {
        let pid = pid as libc::pid_t;
        let no = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: traces a process that this test has started, and that ends by `let_end`.
        unsafe {
            let options = libc::PTRACE_O_TRACEEXIT as usize as *mut libc::c_void;
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, pid, no, options), 0);
            assert_eq!(libc::kill(pid, libc::SIGTERM), 0);
            let mut status = 0;
            // First comes the delivery of the signal, which is passed on. Then comes the stop at exit.
            loop {
                assert_eq!(libc::waitpid(pid, &mut status, libc::__WALL), pid);
                assert!(libc::WIFSTOPPED(status), "{status:x}");
                if status >> 16 == libc::PTRACE_EVENT_EXIT {
                    break;
                }
                let signal = libc::WSTOPSIG(status) as usize as *mut libc::c_void;
                assert_eq!(libc::ptrace(libc::PTRACE_CONT, pid, no, signal), 0);
            }
        }
    }

    fn let_end(pid: u32) {
        let no = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: `begin_end` has stopped this process.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, pid as libc::pid_t, no, no) };
    }

    #[test]
    fn a_live_holder_is_refused_by_name() {
        let memory_store = memory_store("live");
        let mut child = holder(&memory_store);
        let told = memory_store.hold(0).unwrap_err().to_string();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(told.contains(&format!("process {} (sleep 1000)", child.id())), "{told}");
        memory_store.clean().unwrap();
    }

    /// While the kernel tears a killed process down, other processes wait for its lock. Here a tracer keeps that process from
    /// ending.
    #[test]
    fn a_holder_that_is_ending_is_waited_for() {
        let memory_store = memory_store("ending");
        let mut child = holder(&memory_store);
        begin_end(child.id());
        let soon = Duration::from_millis(50);
        assert!(matches!(memory_store.clean_within(soon), Err(MemoryError::InUse { .. })));
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| tell.send(memory_store.hold(0).map(drop)).unwrap());
            let early = told.recv_timeout(Duration::from_millis(400));
            let_end(child.id());
            assert!(early.is_err(), "not waited for: {early:?}");
            told.recv().unwrap().unwrap();
        });
        child.wait().unwrap();
        memory_store.clean().unwrap();
    }

    /// Tests the wait for a holder of the lock in another PID namespace, such as another container. The waiting process cannot
    /// see whether that holder was killed and is still freeing its memory. A heartbeat shows that the holder is alive, and ends
    /// the wait with an error.
    #[test]
    fn a_holder_that_cannot_be_seen_is_waited_for_unless_it_gets_on() {
        let within = || {
            let mut command = Command::new("unshare");
            command.args(["--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]);
            command
        };
        if !within().arg("true").status().is_ok_and(|status| status.success()) {
            return left_out("this user cannot create a PID namespace (unshare --pid failed)");
        }
        let memory_store = memory_store("elsewhere");
        let mut seen_by_us = holder(&memory_store);
        let child = "shm::hold::tests::a_process_looks_for_one_it_cannot_see";
        let looks = within()
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", child, "--ignored", "--nocapture"])
            .env("T_HOLD_JOB", memory_store.job())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Waits until the process in the namespace has counted a heartbeat, and was refused because of that heartbeat.
        let mut beat = [0];
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while beat != [2] && std::time::Instant::now() < until {
            let file = private_file().open(memory_store.head_path(0)).unwrap();
            file.read_exact_at(&mut beat, BEAT_AT).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        // Gives the process time to begin waiting.
        std::thread::sleep(Duration::from_millis(300));
        seen_by_us.kill().unwrap();
        seen_by_us.wait().unwrap();
        let ran = looks.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && told.contains("1 passed"), "{told}");
        memory_store.clean().unwrap();
    }

    #[test]
    #[ignore = "run by another test, in a PID namespace of its own"]
    fn a_process_looks_for_one_it_cannot_see() {
        let job = std::env::var("T_HOLD_JOB").unwrap();
        let memory_store = MemoryStore::new(Store::Posix, &job).unwrap();
        let told = memory_store.clean_within(Duration::from_millis(50)).unwrap_err().to_string();
        assert!(told.contains("cannot be seen from here"), "{told}");
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| tell.send(memory_store.hold(0).map(drop)).unwrap());
            let early = told.recv_timeout(Duration::from_millis(400));
            let file = private_file().open(memory_store.head_path(0)).unwrap();
            file.write_at(&[1], BEAT_AT).unwrap();
            assert!(early.is_err(), "not waited for: {early:?}");
            let alive = told.recv().unwrap();
            assert!(matches!(alive, Err(MemoryError::InUse { .. })), "{alive:?}");
            // From here on, the other test kills the process that has the lock.
            file.write_at(&[2], BEAT_AT).unwrap();
        });
        drop(memory_store.hold(0).unwrap());
    }

    #[test]
    fn memory_that_was_never_filled_leaves_no_name() {
        let memory_store = memory_store("vacant");
        let hold = memory_store.hold(3).unwrap();
        assert!(hold.is_vacant() && memory_store.in_use(3));
        assert!(matches!(memory_store.hold(3), Err(MemoryError::InUse { .. })));
        drop(hold);
        assert!(memory_store.list().is_empty());
        until_free(&memory_store, 3);
        let mut hold = memory_store.hold(3).unwrap();
        drop(hold.renew(HEAD_BYTES).unwrap());
        drop(hold);
        until_free(&memory_store, 3);
        let mut hold = memory_store.hold(3).unwrap();
        assert!(!hold.is_vacant());
        assert_eq!(hold.head().unwrap().len(), HEAD_BYTES);
        hold.give_up();
        drop(hold);
        assert!(memory_store.list().is_empty());
    }

    /// If a header cannot be mapped, no blank file stays under its name, and the next attempt succeeds.
    #[test]
    fn a_head_that_cannot_be_mapped_does_not_take_the_name() {
        let own = std::env::current_exe().unwrap();
        let child = "shm::hold::tests::a_process_without_room_among_its_addresses";
        let ran = Command::new(own).args(["--exact", child, "--ignored"]).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    }

    #[test]
    #[ignore = "run by another test, in a process with a limited address space"]
    fn a_process_without_room_among_its_addresses() {
        use nix::sys::resource::{Resource::RLIMIT_AS, getrlimit, setrlimit};
        let memory_store = memory_store("unmapped");
        let mut hold = memory_store.hold(0).unwrap();
        let mut head = hold.renew(HEAD_BYTES).unwrap();
        head.bytes_mut()[17] = 1;
        assert!(hold.remove());
        let (soft, hard) = getrlimit(RLIMIT_AS).unwrap();
        setrlimit(RLIMIT_AS, 0, hard).unwrap();
        let told = hold.name_again(&head).map(drop);
        setrlimit(RLIMIT_AS, soft, hard).unwrap();
        assert!(matches!(told, Err(MemoryError::Os { what: "cannot map", .. })), "{told:?}");
        assert!(!hold.is_named() && memory_store.list().is_empty());
        assert_eq!(hold.name_again(&head).unwrap().bytes()[17], 1);
        assert!(hold.is_named());
        drop(hold);
        memory_store.clean().unwrap();
    }

    /// A process may wait for the lock on a file that its holder then removes. The process must not take that file for the
    /// position.
    #[test]
    fn a_removed_head_is_not_the_position() {
        let memory_store = memory_store("removed");
        for _ in 0..200 {
            let taken = std::sync::atomic::AtomicU32::new(0);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        use std::sync::atomic::Ordering::SeqCst;
                        if let Ok(mut hold) = memory_store.hold(0) {
                            assert_eq!(taken.fetch_add(1, SeqCst), 0, "two have one position");
                            drop(hold.renew(HEAD_BYTES).unwrap());
                            // From the removal on, the next process may take the position.
                            taken.fetch_sub(1, SeqCst);
                            assert!(hold.remove());
                        }
                    });
                }
            });
        }
        assert!(memory_store.list().is_empty());
    }
}
