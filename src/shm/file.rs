//! Files of persistent shared memory: how they are created and opened, who must own them, and how their blocks are allocated.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::fstatvfs;

use super::hugetlbfs::{find_hugetlbfs, free_huge_bytes};
use super::region::MemoryError;
use super::room::{available_bytes, free_on};
use crate::base::heartbeat;

/// Creates a file of persistent shared memory, which must not exist yet.
pub(super) fn new_file(path: &Path, name: &str) -> Result<File, MemoryError> {
    private_file().create_new(true).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => in_the_way(path, name),
        _ => MemoryError::os("cannot make", path, error),
    })
}

/// Returns the error for a name that exists already. All users may create files in /dev/shm, and `clean` removes no other user's
/// file.
fn in_the_way(path: &Path, name: &str) -> MemoryError {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.uid() != nix::unistd::geteuid().as_raw() => MemoryError::NotOurs {
            name: name.into(),
            why: format!(
                "user {} owns a file of that name; have the file removed, or give this run another --job name",
                meta.uid()
            ),
        },
        _ => MemoryError::Exists(name.into()),
    }
}

/// Options with which every file of persistent shared memory is opened: read and write, owner only, closed on exec, no symbolic
/// links. Opening never blocks, even if another user has made a pipe of that name.
pub(super) fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    options
}

/// Checks that the file system of `file` has room for `len` more bytes.
pub(super) fn room(file: &File, path: &Path, len: usize) -> Result<(), MemoryError> {
    let available = available(file, path);
    if len as u64 > available { Err(no_room(path, len, available)) } else { Ok(()) }
}

fn no_room(path: &Path, len: usize, available: u64) -> MemoryError {
    MemoryError::NoRoom {
        what: path.file_name().unwrap_or_default().to_string_lossy().into(),
        wanted: len as u64,
        available,
        place: path.parent().unwrap_or(path).display().to_string(),
    }
}

fn available(file: &File, path: &Path) -> u64 {
    match find_hugetlbfs() {
        // A hugetlbfs that was mounted without size= reports no size. Its limit is the number of free huge pages.
        Some((huge, page)) if path.parent() == Some(&huge) => {
            free_huge_bytes(page).unwrap_or(u64::MAX)
        }
        _ => {
            let on_mount = fstatvfs(file).ok().as_ref().map_or(u64::MAX, free_on);
            // A tmpfs may be larger than the free memory of the node. If the memory ran out, the kernel would kill a process.
            on_mount.min(available_bytes().unwrap_or(u64::MAX))
        }
    }
}

/// Allocates all missing blocks of the file from byte `first` to byte `end`.
pub(super) fn reserve(
    file: &File,
    path: &Path,
    first: usize,
    end: usize,
) -> Result<(), MemoryError> {
    let end = end.max(first + 1);
    for at in (first..end).step_by(heartbeat::BYTES) {
        let bytes = heartbeat::BYTES.min(end - at);
        let mut reserved = posix_fallocate(file, at as libc::off_t, bytes as libc::off_t);
        // A signal, such as a request to save and stop, interrupts the call. The call is then repeated.
        while reserved == Err(Errno::EINTR) {
            reserved = posix_fallocate(file, at as libc::off_t, bytes as libc::off_t);
        }
        match reserved {
            Ok(()) => heartbeat::beat(),
            Err(Errno::ENOSPC | Errno::ENOMEM) => {
                return Err(no_room(path, end - first, available(file, path)));
            }
            Err(other) => {
                return Err(cannot_grow("cannot reserve space in", path, end, other.into()));
            }
        }
    }
    Ok(())
}

/// Returns the error for a file that cannot have `len` bytes. If the user's limit on file size is the cause, the error names this
/// limit, which holds for files in memory, too.
pub(super) fn cannot_grow(
    what: &'static str,
    path: &Path,
    len: usize,
    error: io::Error,
) -> MemoryError {
    let limit = getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft);
    match error.raw_os_error() {
        Some(libc::EFBIG) if limit < len as u64 => MemoryError::TooLong {
            what: path.file_name().unwrap_or_default().to_string_lossy().into(),
            wanted: len as u64,
            limit,
        },
        _ => MemoryError::os(what, path, error),
    }
}

/// Returns the metadata of an open file if the file belongs to user `uid` alone; otherwise an error.
pub(super) fn is_ours(
    file: &File,
    path: &Path,
    name: &str,
    uid: u32,
) -> Result<Metadata, MemoryError> {
    let meta = file.metadata().map_err(|error| MemoryError::os("cannot stat", path, error))?;
    if meta.uid() != uid || !meta.is_file() || meta.mode() & 0o077 != 0 {
        return Err(MemoryError::NotOurs {
            name: name.into(),
            why: format!(
                "it belongs to user {} with mode {:o}, but must be private to this user",
                meta.uid(),
                meta.mode() & 0o7777
            ),
        });
    }
    Ok(meta)
}
