//! Results of finished tests, kept in the `done` part of every position.
//!
//! A run that is restarted in its third test must not repeat the first two. So every rank appends the results of all finished
//! tests here. The results of any one surviving rank suffice. A record consists of a length, a digest and bytes. The first record
//! whose digest does not match ends the list.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::region::Region;

const RECORD_HEAD: usize = 32;
const SEED: u64 = 0x4c45_4447_4552;

/// Part `done` of a position's memory: the results of finished tests.
#[derive(Debug)]
pub struct Ledger {
    region: Region,
}

/// Result of one finished test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub run: u128,
    pub test: u32,
    /// Caller's data, such as the result as JSON.
    pub bytes: Vec<u8>,
}

impl Entry {
    /// Returns a number that is equal for entries of the same test and text, whatever the run.
    pub fn mark(&self) -> u64 {
        xxh3_64_with_seed(&self.bytes, self.test.into())
    }

    /// Number of bytes of the record, with its head.
    pub fn room(&self) -> usize {
        RECORD_HEAD + self.bytes.len()
    }
}

impl Ledger {
    pub fn new(region: Region) -> Self {
        Self { region }
    }

    /// Size of the part in bytes, including free room.
    pub fn bytes(&self) -> usize {
        self.region.len()
    }

    fn record(&self, at: usize) -> Option<(Entry, usize)> {
        let all = self.region.bytes();
        let head = all.get(at..at + RECORD_HEAD)?;
        let word = |i: usize| u64::from_le_bytes(head[i..i + 8].try_into().expect("eight bytes"));
        let length = (word(0) >> 32) as usize;
        let test = word(0) as u32;
        let start = at + RECORD_HEAD;
        let bytes = all.get(start..start.checked_add(length)?)?;
        if word(24) != digest(&head[..24], bytes) {
            return None;
        }
        let run = (word(16) as u128) << 64 | word(8) as u128;
        let next = (start + length).next_multiple_of(8);
        Some((Entry { run, test, bytes: bytes.to_vec() }, next))
    }

    /// Returns the records before the first damaged one, in the order of writing. Each record comes with the offset of the next
    /// one.
    fn records(&self) -> impl Iterator<Item = (Entry, usize)> {
        std::iter::successors(self.record(0), |(_, next)| self.record(*next))
    }

    /// Returns the records before the first damaged one, in the order of writing.
    pub fn entries(&self) -> Vec<Entry> {
        self.records().map(|(entry, _)| entry).collect()
    }

    /// Appends one record. Returns false if there is no room left.
    pub fn append(&mut self, entry: &Entry) -> bool {
        let at = self.records().last().map_or(0, |(_, next)| next);
        let Some(room) = self.region.bytes_mut().get_mut(at..at + entry.room()) else {
            return false;
        };
        let (head, body) = room.split_at_mut(RECORD_HEAD);
        body.copy_from_slice(&entry.bytes);
        let first = (entry.bytes.len() as u64) << 32 | entry.test as u64;
        head[..8].copy_from_slice(&first.to_le_bytes());
        head[8..24].copy_from_slice(&entry.run.to_le_bytes());
        // The digest is written last. Without its digest a record does not count.
        let seal = digest(&head[..24], body);
        head[24..32].copy_from_slice(&seal.to_le_bytes());
        true
    }
}

fn digest(head: &[u8], body: &[u8]) -> u64 {
    xxh3_64_with_seed(body, xxh3_64_with_seed(head, SEED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(test: u32, text: &str) -> Entry {
        Entry { run: 7 << 64 | 9, test, bytes: text.into() }
    }

    #[test]
    fn records_come_back_until_the_room_is_used_up() {
        let mut ledger = Ledger::new(Region::anonymous(160).unwrap());
        assert!(ledger.entries().is_empty());
        assert!(ledger.append(&entry(0, "first")));
        assert!(ledger.append(&entry(1, "")));
        assert!(ledger.append(&entry(2, "third, and longer")));
        assert!(!ledger.append(&entry(3, "no room")));
        let tests: Vec<u32> = ledger.entries().iter().map(|e| e.test).collect();
        assert_eq!(tests, [0, 1, 2]);
        assert_eq!(ledger.entries()[2], entry(2, "third, and longer"));
        ledger.region.bytes_mut().fill(0);
        assert!(ledger.entries().is_empty());
    }

    #[test]
    fn a_damaged_record_ends_the_list() {
        let mut ledger = Ledger::new(Region::anonymous(4096).unwrap());
        ledger.append(&entry(0, "first"));
        ledger.append(&entry(1, "second"));
        for at in 0..RECORD_HEAD + 5 {
            ledger.region.bytes_mut()[at] ^= 1;
            assert!(ledger.entries().is_empty(), "byte {at}");
            ledger.region.bytes_mut()[at] ^= 1;
        }
        assert_eq!(ledger.entries().len(), 2);
    }
}
