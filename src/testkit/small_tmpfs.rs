//! A small file system in memory, for tests.

use std::ffi::CString;
use std::path::Path;
use std::ptr::null;
use std::thread;

/// Calls `test` with a folder in which files take at most `bytes` bytes (0: no limit). The folder is in a separate mount
/// namespace. Does nothing if this process may not mount.
pub fn in_a_small_tmpfs(bytes: usize, test: impl FnOnce(&Path) + Send) {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let mount = || {
        let [path, what, options] = [here.to_str().unwrap(), "tmpfs", &format!("size={bytes}")]
            .map(|text| CString::new(text).unwrap());
        let root = c"/".as_ptr();
        let none = null();
        // SAFETY: the strings end in a null byte. The mount namespace belongs to this thread, so the mounts affect no other
        // thread.
        let done = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(none, root, none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
                && libc::mount(
                    what.as_ptr(),
                    path.as_ptr(),
                    what.as_ptr(),
                    0,
                    options.as_ptr().cast(),
                ) == 0
        };
        if done {
            test(here);
        }
    };
    thread::scope(|scope| scope.spawn(mount).join().unwrap());
}
