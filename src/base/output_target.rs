//! Output target of a document or page: a file, a pipe or a device.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::fstat;

/// A target that may be written to repeatedly.
#[derive(Debug)]
pub enum OutputTarget {
    /// A file. If the folder permits it, each text replaces the file in one step, so that readers always find a complete text.
    File(PathBuf),
    /// A pipe or a device, which a rename would replace. It stays open and receives each text after the previous one.
    Stream(File),
}

impl OutputTarget {
    /// Opens the target of `path`. If `path` is a link, its destination is the target, so that the link stays.
    pub fn of(path: &Path) -> io::Result<Self> {
        // Metadata, not the resolved name, identify the target: `/dev/stdout` may lead to a pipe, which has no name to resolve
        // to.
        match fs::metadata(path) {
            // A folder cannot be opened for writing, and that is the error to return.
            Ok(there) if !there.is_file() => {
                Ok(Self::Stream(File::options().write(true).open(path)?))
            }
            Ok(_) => Ok(Self::File(fs::canonicalize(path)?)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if fs::symlink_metadata(path).is_ok() {
                    // A link to a file that does not exist yet: the file is created to find its real name.
                    File::create(path)?;
                    return Ok(Self::File(fs::canonicalize(path)?));
                }
                Ok(Self::File(path.to_owned()))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes `text` to the target. If `durable`, the text in a file survives a failure of the machine after this call.
    pub fn put(&mut self, text: &[u8], durable: bool) -> io::Result<()> {
        let path = match self {
            Self::File(path) => &*path,
            Self::Stream(stream) => return stream.write_all(text),
        };
        let temporary = aside(path)?;
        let written = File::create(&temporary).and_then(|mut file| {
            // The new file gets the permissions of the old one, so that the same users can read it.
            if let Ok(before) = fs::metadata(path) {
                // Not every file system has permissions.
                let _ = file.set_permissions(before.permissions());
            }
            file.write_all(text)?;
            if durable {
                file.sync_all()?;
            }
            fs::rename(&temporary, path)
        });
        let Err(error) = written else { return Ok(()) };
        // The error of the write is returned; the removal may fail.
        let _ = fs::remove_file(&temporary);
        if !is_barred(&error) {
            return Err(error);
        }
        let mut file = File::options().write(true).open(path).map_err(|_| error)?;
        // The old text is overwritten and not truncated beforehand, so its space is available.
        file.write_all(text)?;
        file.set_len(text.len() as u64)?;
        if durable { file.sync_all() } else { Ok(()) }
    }
}

/// Returns whether `error` means that the file may be written but not replaced. The folder may belong to another user, or the
/// file alone was mounted into a container.
fn is_barred(error: &io::Error) -> bool {
    use ErrorKind::{PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | ResourceBusy)
}

/// Returns the temporary name under which a new file is written before it replaces the old file.
fn aside(path: &Path) -> io::Result<PathBuf> {
    let mut name = path.file_name().ok_or(ErrorKind::InvalidFilename)?.to_owned();
    name.push(format!(".{}.part", std::process::id()));
    Ok(path.with_file_name(name))
}

/// Checks that `path` can be written, before the work whose result is written to it. Does not open a pipe or device, because
/// opening it could block until another process opens the other end.
pub fn is_open_to_us(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(there) if !there.is_file() => Ok(()),
        _ => {
            let OutputTarget::File(path) = OutputTarget::of(path)? else { return Ok(()) };
            let temporary = aside(&path)?;
            match File::create(&temporary) {
                Ok(_) => fs::remove_file(temporary),
                Err(error) if is_barred(&error) => {
                    File::options().write(true).open(path).map(drop).map_err(|_| error)
                }
                Err(error) => Err(error),
            }
        }
    }
}

/// Writes `text` to `path` once.
pub fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    OutputTarget::of(path)?.put(text, false)
}

/// Compares the file at `path` with the open file `open`. Returns `None` if they are different files. If they are the same file,
/// returns whether it is a regular file.
pub fn is_open_as(path: &Path, open: impl AsFd) -> Option<bool> {
    let (there, open) = (fs::metadata(path).ok()?, fstat(open).ok()?);
    let same = (there.dev(), there.ino()) == (open.st_dev, open.st_ino);
    same.then_some(there.is_file())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_is_replaced_and_its_neighbours_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (file, neighbour) = (dir.path().join("a.json"), dir.path().join("a.new"));
        fs::write(&neighbour, "mine").unwrap();
        let mut place = OutputTarget::of(&file).unwrap();
        for text in ["old and long", "new"] {
            place.put(text.as_bytes(), text == "new").unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        assert_eq!(fs::read_to_string(&neighbour).unwrap(), "mine");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
        let link = dir.path().join("link");
        symlink(&file, &link).unwrap();
        put(&link, b"through the link").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "through the link");
        let dangling = dir.path().join("dangling");
        symlink(dir.path().join("fresh"), &dangling).unwrap();
        put(&dangling, b"made").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("fresh")).unwrap(), "made");
        for path in [file.as_path(), &dir.path().join("other"), Path::new("/dev/null")] {
            is_open_to_us(path).unwrap();
        }
        assert!(!dir.path().join("other").exists());
        for path in [dir.path(), Path::new("/no/such/folder/file")] {
            assert!(OutputTarget::of(path).and_then(|mut place| place.put(b"x", false)).is_err());
            is_open_to_us(path).unwrap_err();
        }
    }

    #[test]
    fn permissions_stay_and_without_room_for_a_new_file_the_old_one_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("page");
        fs::write(&file, "an older and longer one").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o604)).unwrap();
        put(&file, b"new").unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o604);
        if nix::unistd::geteuid().is_root() {
            // Only the system can refuse a write of root: see the kinds of errors.
            assert!(is_barred(&ErrorKind::PermissionDenied.into()));
            assert!(!is_barred(&ErrorKind::StorageFull.into()));
            return;
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
        let done = is_open_to_us(&file).and_then(|()| put(&file, b"in place"));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        done.unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "in place");
    }

    /// A reader that reads a pipe to its end receives all texts.
    #[test]
    fn a_pipe_stays_open_from_the_first_text_to_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let read = fifo.clone();
        let reader = std::thread::spawn(move || fs::read_to_string(read).unwrap());
        let mut place = OutputTarget::of(&fifo).unwrap();
        place.put(b"one", true).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        place.put(b"two", true).unwrap();
        drop(place);
        assert_eq!(reader.join().unwrap(), "onetwo");
        put(Path::new("/dev/null"), b"x").unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }

    #[test]
    fn an_open_file_is_known_by_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("out"), dir.path().join("other"));
        let open = File::create(&file).unwrap();
        File::create(&other).unwrap();
        let own = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        for name in [&file, &own] {
            assert_eq!(is_open_as(name, &open), Some(true));
        }
        assert_eq!(is_open_as(&other, &open), None);
        assert_eq!(is_open_as(&dir.path().join("none"), &open), None);
        let (mut reader, writer) = io::pipe().unwrap();
        let own = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
        assert_eq!(is_open_as(&own, &writer), Some(false));
        drop(writer);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}
