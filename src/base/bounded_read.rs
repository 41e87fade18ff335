//! Bounded reads of files that a user names: hosts, domains, traces, results, documents, tests and settings.
//!
//! A user may by mistake name another kind of file, such as an endless device. So reading stops at a length that such files never
//! have. Callers put the file's name before the error.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Maximum length of a file, in bytes. The JSON documents of the largest runs have about ten MiB.
const LONGEST: u64 = 256 << 20;

/// Reads the bytes of a file. Returns an error if the file is longer than `LONGEST`.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    bytes_up_to(path, LONGEST)?.ok_or_else(|| {
        let why = format!(
            "the file has more than {} MiB: this program does not read such a file",
            LONGEST >> 20
        );
        Error::new(ErrorKind::FileTooLarge, why)
    })
}

/// Reads a file as text. Returns an error if the file is longer than `LONGEST` or is not UTF-8.
pub fn text(path: &Path) -> Result<String> {
    let not_text = |_| Error::new(ErrorKind::InvalidData, "it is not text (UTF-8)");
    String::from_utf8(bytes(path)?).map_err(not_text)
}

/// Reads the bytes of a file; returns `None` if the file is longer than `longest` bytes.
pub fn bytes_up_to(path: &Path, longest: u64) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(longest + 1).read_to_end(&mut bytes)?;
    Ok((read as u64 <= longest).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_is_not_read_on() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abc").unwrap();
        assert_eq!(text(file.path()).unwrap(), "abc");
        assert_eq!(bytes_up_to(file.path(), 3).unwrap().unwrap(), b"abc");
        assert_eq!(bytes_up_to(file.path(), 2).unwrap(), None);
        let why = bytes(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(why, "the file has more than 256 MiB: this program does not read such a file");
        std::fs::write(file.path(), [0xff]).unwrap();
        assert_eq!(text(file.path()).unwrap_err().to_string(), "it is not text (UTF-8)");
        assert_eq!(bytes(file.path()).unwrap(), [0xff]);
    }
}
