//! Communication of all ranks for saving and recovery. The program uses an implementation over MPI (`mpi`).

use serde::Serialize;
use serde::de::DeserializeOwned;

/// "No value" in [`World::least`]: larger than any value. MPI libraries compare signed numbers.
pub const NOTHING: u64 = (1 << 63) - 1;

/// Number of positions whose problems are printed; the others' are usually the same.
const TELLERS: usize = 3;

/// All positions of a test; rank r is at position r.
///
/// As with `GroupComm`, no call returns an error: an implementation that cannot deliver a message ends the process or unwinds.
pub trait World {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    fn barrier(&self);
    /// Gathers the bytes of all ranks, by rank; lengths may differ.
    fn allgather(&self, mine: &[u8]) -> Vec<Vec<u8>>;
    /// Gathers a value of each rank, by rank.
    fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Vec<T> {
        let bytes = postcard::to_allocvec(mine).expect("plain values have a binary form");
        let read = |bytes: Vec<u8>| {
            postcard::from_bytes(&bytes).expect("ranks of one run are one program")
        };
        self.allgather(&bytes).into_iter().map(read).collect()
    }
    /// Returns rank 0's value on every rank.
    fn first_says(&self, value: u64) -> u64;
    /// Returns the minimum over all ranks of each value. None may exceed [`NOTHING`], and all ranks must pass equally many.
    fn least(&self, mine: &[u64]) -> Vec<u64>;
    /// Returns true if `mine` is true on every rank.
    fn all(&self, mine: bool) -> bool {
        self.least(&[u64::from(mine)]) == [1]
    }
    /// Joins the problems of all ranks into one text, the same on every rank; None if there are none.
    fn troubles(&self, mine: Option<String>) -> Option<String> {
        // Usually there are none, and only one number is exchanged.
        if self.all(mine.is_none()) {
            return None;
        }
        let all = self.allgather(mine.unwrap_or_default().as_bytes());
        let told = all.iter().enumerate().filter(|(_, text)| !text.is_empty());
        let mut told: Vec<String> = told
            .map(|(at, text)| format!("position {at}: {}", String::from_utf8_lossy(text)))
            .collect();
        let more = told.len().saturating_sub(TELLERS);
        told.truncate(TELLERS);
        if more > 0 {
            told.push(format!("and {more} more"));
        }
        Some(told.join("; "))
    }
    /// Returns the bytes of rank `teller` on every rank; the others' arguments are ignored.
    fn tell(&self, bytes: &[u8], teller: usize) -> Vec<u8>;
    /// Sends words to one rank, which must receive equally many.
    fn send(&self, words: &[u64], to: usize);
    fn receive(&self, words: &mut [u64], from: usize);
    /// Checks for lost ranks. Call it repeatedly while waiting for something other than a message, so that a loss is noticed.
    fn attend(&self) {}
}
