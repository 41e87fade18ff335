//! Folders of files that replace the system's folders in tests.

use std::fs;

/// Returns a temporary folder that takes the place of the folder `/`. `files` has the path and the text of each file.
pub fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}
