//! Where the text goes: HPL.dat's lines 3 and 4.
//!
//! The driver opens it on rank 0 before any work begins, so that a file that cannot be written is
//! an error at once and not after hours. Device 6 and 7 are Fortran's units for the two standard
//! streams; any other number means the named file.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A place for text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    Stdout,
    Stderr,
    /// Created, or emptied if it is there.
    File(PathBuf),
}

impl Destination {
    /// The place HPL.dat names by a device number and a file name.
    pub fn from_device(device: i64, name: impl AsRef<Path>) -> Self {
        match device {
            6 => Self::Stdout,
            7 => Self::Stderr,
            _ => Self::File(name.as_ref().to_owned()),
        }
    }

    /// Opens it for writing.
    ///
    /// # Errors
    /// Where the file can be neither created nor emptied; the message names it.
    pub fn open(&self) -> io::Result<Box<dyn Write + Send>> {
        Ok(match self {
            Self::Stdout => Box::new(io::stdout()),
            Self::Stderr => Box::new(io::stderr()),
            Self::File(path) => Box::new(File::create(path).map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("cannot write the output file {}: {error}", path.display()),
                )
            })?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_those_of_hpl() {
        assert_eq!(Destination::from_device(6, "x"), Destination::Stdout);
        assert_eq!(Destination::from_device(7, "x"), Destination::Stderr);
        for other in [-1, 0, 5, 8, 66] {
            assert_eq!(
                Destination::from_device(other, "x"),
                Destination::File("x".into())
            );
        }
    }

    #[test]
    fn a_file_is_emptied_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("HPL.out");
        std::fs::write(&path, "of an earlier run").unwrap();
        let mut out = Destination::File(path.clone()).open().unwrap();
        out.write_all(b"new").unwrap();
        drop(out);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "new");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("no-such-folder").join("HPL.out");
        let Err(error) = Destination::File(path.clone()).open() else {
            panic!("opened {}", path.display());
        };
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
}
