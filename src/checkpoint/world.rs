//! Communication of all ranks for saving and recovery. The program uses the implementation over MPI in `mpi`.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Number that means "no value" in [`World::least`]. It is larger than any value. It is positive as a signed number, because MPI
/// libraries compare signed numbers.
pub const NOTHING: u64 = (1 << 63) - 1;

/// Maximum number of positions whose problems are printed. Further positions usually have the same problem.
const TELLERS: usize = 3;

/// Communication among all positions of a test; rank r is at position r.
///
/// As with `GroupComm`, no call returns an error: an implementation that cannot deliver a message ends the process or unwinds.
pub trait World {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    fn barrier(&self);
    /// Returns the bytes of all ranks on every rank, in order of ranks. Lengths may differ.
    fn allgather(&self, mine: &[u8]) -> Vec<Vec<u8>>;
    /// Returns the values of all ranks on every rank, in order of ranks.
    fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Vec<T> {
        let bytes = postcard::to_allocvec(mine).expect("plain values have a binary form");
        let read = |bytes: Vec<u8>| {
            postcard::from_bytes(&bytes)
                .expect("all ranks run the same program, so each reads what another wrote")
        };
        self.allgather(&bytes).into_iter().map(read).collect()
    }
    /// Returns rank 0's value on every rank.
    fn first_says(&self, value: u64) -> u64;
    /// Returns the minimum over all ranks of each value. No value may exceed [`NOTHING`]. All ranks must pass the same number of
    /// values.
    fn least(&self, mine: &[u64]) -> Vec<u64>;
    /// Returns true if `mine` is true on every rank.
    fn all(&self, mine: bool) -> bool {
        self.least(&[u64::from(mine)]) == [1]
    }
    /// Joins the problems of all ranks into one text, the same on every rank. Returns None if no rank has a problem.
    fn troubles(&self, mine: Option<String>) -> Option<String> {
        // Usually no rank has a problem, and only one number is exchanged.
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
    /// Returns the bytes of rank `teller` on every rank. The `bytes` of other ranks are ignored.
    fn tell(&self, bytes: &[u8], teller: usize) -> Vec<u8>;
    /// Sends words to one rank, which must receive the same number of words.
    fn send(&self, words: &[u64], to: usize);
    fn receive(&self, words: &mut [u64], from: usize);
    /// Checks for lost ranks. A rank calls this repeatedly while it waits for anything but a message, so that a loss ends the
    /// wait.
    fn attend(&self) {}
}
