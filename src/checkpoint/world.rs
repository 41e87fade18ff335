//! What saving and recovery need from all ranks together; and a world of threads for tests.

/// All positions of the grid, rank r being at position r.
///
/// As with `GroupComm`, no call returns an error: what cannot be delivered ends the process or unwinds.
pub trait World {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    fn barrier(&self);
    /// Everyone's bytes, by rank; lengths may differ.
    fn allgather(&self, mine: &[u8]) -> Vec<Vec<u8>>;
    /// Rank 0's value, on every rank.
    fn first_says(&self, value: u64) -> u64;
}

/// Ranks as threads of one process.
pub mod threads {
    use super::World;
    use crate::parity::comm::threads::{Member, Post};
    use std::sync::Arc;

    /// One thread's end of the world.
    pub struct ThreadWorld {
        all: Member,
        rank: usize,
        size: usize,
    }

    impl ThreadWorld {
        /// `post` must not be the one the groups use: their messages would mix.
        pub fn new(post: Arc<Post>, rank: usize, size: usize) -> Self {
            Self { all: Member::new(post, (0..size).collect(), rank), rank, size }
        }
    }

    impl World for ThreadWorld {
        fn rank(&self) -> usize {
            self.rank
        }
        fn size(&self) -> usize {
            self.size
        }
        fn barrier(&self) {
            self.allgather(&[]);
        }
        fn allgather(&self, mine: &[u8]) -> Vec<Vec<u8>> {
            let mut words = vec![mine.len() as u64];
            words.extend(mine.chunks(8).map(|c| {
                let mut word = [0; 8];
                word[..c.len()].copy_from_slice(c);
                u64::from_le_bytes(word)
            }));
            for to in 0..self.size {
                self.all.send(to, &words);
            }
            (0..self.size)
                .map(|from| {
                    let words = self.all.receive(from);
                    let mut bytes: Vec<u8> =
                        words[1..].iter().flat_map(|w| w.to_le_bytes()).collect();
                    bytes.truncate(words[0] as usize);
                    bytes
                })
                .collect()
        }
        fn first_says(&self, value: u64) -> u64 {
            let all = self.allgather(&value.to_le_bytes());
            u64::from_le_bytes(all[0][..8].try_into().expect("eight bytes"))
        }
    }
}
