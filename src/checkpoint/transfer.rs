//! Transfer of a file, piece by piece, from a rank whose node has it to the rank that needs it. `fetching` thus reads a file of
//! another node like a local file. The receiver receives all pieces, even those that it does not need.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::world::World;
use crate::base::heartbeat;
use crate::checkpoint::storage::reading::Feed;
use crate::shm::Region;

const PIECE_WORDS: usize = 128 * 1024;
/// Flag in a piece's first word, next to the byte count: this piece is the last.
const LAST: u64 = 1 << 62;
/// Flag in a piece's first word, next to the byte count: the sender cannot read the file.
const FAILED: u64 = 1 << 61;

fn room() -> Region {
    Region::anonymous(8 * (1 + PIECE_WORDS)).expect("memory for a message")
}

/// Sends a file to rank `to`. If a part of the file cannot be read, the transfer ends with a piece that has the flag `FAILED`.
pub(super) fn send_file(world: &impl World, path: &Path, to: usize) {
    let mut piece = room();
    let file = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file))).ok();
    let mut at = 0;
    loop {
        heartbeat::beat();
        let read = file.as_ref().and_then(|(length, file)| {
            let bytes = &mut piece.bytes_mut()[8..];
            let count = (length - at).min(bytes.len() as u64);
            FileExt::read_exact_at(file, &mut bytes[..count as usize], at).ok()?;
            Some((count, if at + count >= *length { LAST } else { 0 }))
        });
        let (count, last) = read.unwrap_or((0, LAST | FAILED));
        piece.words_mut()[0] = count | last;
        world.send(piece.words(), to);
        if last != 0 {
            return;
        }
        at += count;
    }
}

/// File that another rank is sending, and its last piece that has arrived.
pub(super) struct Coming<'a, W> {
    world: &'a W,
    from: usize,
    piece: Region,
    /// Offset of the piece in the file.
    start: u64,
    count: u64,
    last: bool,
    failed: bool,
}

impl<'a, W: World> Coming<'a, W> {
    pub(super) fn new(world: &'a W, from: usize) -> Self {
        Self { world, from, piece: room(), start: 0, count: 0, last: false, failed: false }
    }

    fn next(&mut self) {
        self.start += self.count;
        self.world.receive(self.piece.words_mut(), self.from);
        let head = self.piece.words()[0];
        self.count = head & !(LAST | FAILED);
        (self.last, self.failed) = (head & LAST != 0, head & FAILED != 0);
    }

    /// Receives all remaining pieces, because the sender sends all of them.
    pub(super) fn drain(&mut self) {
        while !self.last {
            self.next();
        }
    }
}

impl<W: World> Feed for &mut Coming<'_, W> {
    fn read_exact_at(&mut self, mut into: &mut [u8], mut at: u64) -> io::Result<()> {
        assert!(at >= self.start, "files are read forward");
        while !into.is_empty() {
            if self.failed {
                return Err(io::Error::other("the node that has the file cannot read it"));
            }
            if at < self.start + self.count {
                let from = (at - self.start) as usize;
                let count = into.len().min(self.count as usize - from);
                let (now, later) = into.split_at_mut(count);
                now.copy_from_slice(&self.piece.bytes()[8 + from..][..count]);
                (into, at) = (later, at + count as u64);
            } else if self.last {
                return Err(io::ErrorKind::UnexpectedEof.into());
            } else {
                self.next();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testkit::thread_ranks::{Post, ThreadWorld};

    /// Runs both ends of a transfer as threads. `take` reads from the receiver.
    fn between(path: &Path, take: impl FnOnce(&mut Coming<ThreadWorld>) + Send) {
        let post = Arc::new(Post::default());
        std::thread::scope(|scope| {
            let world = ThreadWorld::new(post.clone(), 0, 2);
            scope.spawn(move || send_file(&world, path, 1));
            let world = ThreadWorld::new(post.clone(), 1, 2);
            scope.spawn(move || {
                let mut coming = Coming::new(&world, 0);
                take(&mut coming);
                coming.drain();
            });
        });
    }

    #[test]
    fn a_file_is_read_elsewhere_as_it_lies_here() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p3");
        for length in [0, 7, PIECE_WORDS * 8, 2 * PIECE_WORDS * 8 + 4096 + 3] {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 31 % 251) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            between(&path, |mut coming| {
                let mut read = vec![0; length];
                let (front, rest) = read.split_at_mut(length / 3);
                coming.read_exact_at(front, 0).unwrap();
                coming.read_exact_at(rest, (length / 3) as u64).unwrap();
                assert!(read == bytes, "{length}");
                // A read beyond the end fails.
                assert!(coming.read_exact_at(&mut [0], length as u64).is_err());
            });
            // A receiver may skip parts of the file, or read none of it.
            between(&path, |mut coming| {
                if length > 4096 {
                    let mut byte = [0];
                    coming.read_exact_at(&mut byte, (length - 1) as u64).unwrap();
                    assert_eq!(byte[0], bytes[length - 1]);
                }
            });
        }
        between(&dir.path().join("gone"), |mut coming| {
            let why = coming.read_exact_at(&mut [0], 0).unwrap_err().to_string();
            assert!(why.contains("cannot read it"), "{why}");
        });
    }
}
