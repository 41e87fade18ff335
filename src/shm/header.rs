//! Header of a position's memory: its run, its position, and the checkpoints in this memory.
//!
//! The `head` part begins with a word that publishes one of two slots. A header is written as a whole into the other slot, with a
//! checksum, and then published by a single release store. So a process killed at any moment leaves either the old header or the
//! new one.
//!
//! If the *published* slot is damaged, a reader must not use the other slot. The other slot is out of date, and describes memory
//! that has changed since. The position then counts as lost.
//!
//! Next to the slots are progress words: plain atomics, which an agent reads without a lock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::region::{LastingPage, Region};
use crate::base::clock;
use crate::base::heartbeat;
use crate::base::params::{Mapping, Rng};

/// Page on which this process's heartbeats are counted now.
static FOLLOWED: Mutex<Option<LastingPage>> = Mutex::new(None);

/// Version of the layout of persistent shared memory. Raise this number with every change of the layout.
pub const LAYOUT_VERSION: u32 = 7;
/// Size of the `head` part in bytes.
pub const HEAD_BYTES: usize = 16 * 1024;
/// Maximum number of members of a group: the member list has to fit into a slot.
pub const GROUP_MAX: usize = 240;

const MAGIC: u64 = u64::from_le_bytes(*b"SKTHPL\r\n");
const PUBLISHED_AT: usize = 0;
const PROGRESS_AT: usize = 64;
/// Byte offset of the heartbeat counter in the `head` part, for processes that read the file without mapping it.
pub(super) const BEAT_AT: u64 = PROGRESS_AT as u64;
const WAITS_AT: usize = PROGRESS_AT + 56;
const WORKED_AT: usize = PROGRESS_AT + 64;
/// Byte offset of the damage flag in the `head` part. The flag is nonzero after a memory fault of the position (`bus`).
const DAMAGED_AT: usize = 192;
const SLOT_AT: [usize; 2] = [4096, 8192];
const SLOT_BYTES: usize = 4096;

/// Number of a checkpoint, and the attempt that made the checkpoint. Checkpoints with equal ids have equal contents, because an
/// attempt seals each number at most once. Another attempt may save the same number with other times, which the digests cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CheckpointId {
    pub number: u64,
    pub made: u64,
}

/// Number of bits of an attempt's number that hold its start time in milliseconds: enough for five centuries.
const MOMENT_BITS: u32 = 44;

/// Returns the number of the `count`-th attempt, which starts at `unix_ms`. The time makes numbers unique, even if no record of
/// an earlier attempt with the same count is left.
pub fn attempt_number(count: u64, unix_ms: u64) -> u64 {
    // Ranks compare the numbers as signed integers.
    let count = count.min(i64::MAX as u64 >> MOMENT_BITS);
    count << MOMENT_BITS | unix_ms & ((1 << MOMENT_BITS) - 1)
}

/// Returns the number of the attempt after `last`, the greatest number in any header. The result is greater than `last`, whatever
/// the clock shows.
pub fn next_attempt(last: u64, unix_ms: u64) -> u64 {
    attempt_number(count_of(last) + 1, unix_ms)
}

/// Returns the count of attempts up to and including the attempt with this number.
pub fn count_of(attempt: u64) -> u64 {
    attempt >> MOMENT_BITS
}

/// State of the contents of a position's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Fresh memory, to be rebuilt from the other members of its group.
    Vacant,
    /// The matrix is being generated, or has not been saved yet.
    Generating,
    /// The memory contains the checkpoints that `base` and `seal` name; at least one of the two is set.
    Saved,
    /// Method single: the only copy is being overwritten, so the memory contains no checkpoint.
    Overwriting,
}

/// State of the position's process: computing or recovering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    Running,
    /// A recovery to this checkpoint has been agreed, and may have changed memory already.
    Recovering(CheckpointId),
}

/// Fields of a header from which recovery decides what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Claim {
    /// Number of the last attempt in which this position took part ([`next_attempt`]).
    pub joined: u64,
    pub phase: Phase,
    pub stage: Stage,
    /// Committed checkpoint. The copy contains the whole checkpoint until a later checkpoint is sealed and the barrier after the
    /// sealing has passed.
    pub base: Option<CheckpointId>,
    /// Sealed checkpoint, which is complete in the parts of memory that the next commit takes over. With the method self these
    /// are the matrix and the parity that does not belong to `base`.
    pub seal: Option<CheckpointId>,
}

/// Boundary of a checkpoint, and the digest of all its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// Boundary (iteration) at which the checkpoint was taken.
    pub boundary: u64,
    /// Digest of the small state (the account of the test's time) and of the tables of digests, hence of all data.
    pub root: u64,
}

/// Fields that stay the same during a test: they identify the run, the test and the position.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// Random id, drawn at the run's first start. The upper half is the start time, so later runs compare greater.
    pub run: u128,
    /// Index of the test in the input file.
    pub test: u32,
    pub position: u32,
    pub n: u64,
    pub nb: u64,
    pub p: u32,
    pub q: u32,
    pub mapping: Mapping,
    pub rng: Rng,
    pub seed: u64,
    /// Digest of all other settings that must be the same to resume the run.
    pub params_digest: u64,
    pub rows: u64,
    pub cols: u64,
    /// Number of doubles from one local row to the next.
    pub ld: u64,
    pub group: u32,
    /// Positions of the group in member order, including this position.
    pub members: Vec<u32>,
    pub losses: u8,
    pub code: u8,
    pub method: u8,
    pub scope: u8,
    /// Parity layout of the group.
    pub layout: u8,
    /// Size of the room for the small state, in bytes.
    pub state_bytes: u64,
}

/// Value of [`Identity::code`] in a test without checkpoints. The header then only shows progress.
pub const NO_CODE: u8 = u8::MAX;

/// Value of [`Identity::code`] for a position of the checksum columns, in a test without checkpoints. [`Identity::group`] is then
/// the process column whose work the position does. If `group` is at least `q`, this column contains checksums. Otherwise the
/// position has taken over a column of the matrix.
pub const SUMS: u8 = NO_CODE - 1;

/// Value of [`Identity::code`] for a position with a part of the matrix, in a test with checksum columns. [`Identity::group`] is
/// then the position's process column.
pub const WITHOUT_SUMS: u8 = NO_CODE - 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Header {
    pub id: Identity,
    pub claim: Claim,
    /// Boundary and digest of the committed checkpoint. Valid if `claim.base` is set.
    pub base: Mark,
    /// Boundary and digest of the sealed checkpoint. Valid if `claim.seal` is set.
    pub seal: Mark,
}

/// Reason why a header is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum HeaderFault {
    #[error("it was never written")]
    Blank,
    #[error("it is {0} bytes long, too short for a header")]
    Short(usize),
    #[error("it has layout version {0}, but this program reads version {LAYOUT_VERSION} only")]
    Version(u32),
    #[error("its checksum does not match: it is damaged")]
    Damaged,
    #[error(
        "its position's memory became unreadable: by an uncorrectable memory error, or because a file was cut short"
    )]
    Unreadable,
}

impl Header {
    /// Returns the boundary and the digest of `checkpoint`; None if this header does not name the checkpoint.
    pub fn mark_of(&self, checkpoint: CheckpointId) -> Option<Mark> {
        let marks = [(self.claim.base, self.base), (self.claim.seal, self.seal)];
        marks.into_iter().find(|(named, _)| *named == Some(checkpoint)).map(|(_, mark)| mark)
    }

    /// Returns the header as bytes, for a slot and for exchange between ranks. The layout version comes first, so that programs
    /// with another layout can read the version.
    pub fn to_bytes(&self) -> Vec<u8> {
        let version = LAYOUT_VERSION.to_le_bytes().to_vec();
        postcard::to_extend(self, version).expect("plain values have a binary form")
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let (version, fields) = bytes.split_first_chunk().ok_or(HeaderFault::Short(bytes.len()))?;
        match u32::from_le_bytes(*version) {
            LAYOUT_VERSION => postcard::from_bytes(fields).map_err(|_| HeaderFault::Damaged),
            other => Err(HeaderFault::Version(other)),
        }
    }
}

/// Progress of a rank. Agents read these values without locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Heartbeat counter. If the counter stands still for long, the rank hangs.
    pub heartbeat: u64,
    pub iteration: u64,
    /// Activity: one of [`Doing`], as a number.
    pub doing: u64,
    /// Process id of the rank; zero before its first report.
    pub pid: u64,
    /// Time of the last report, by the node's clock.
    pub at_unix_ms: u64,
    /// Last time at which the rank worked on the test itself; zero if the rank never did. A failed start leaves the value
    /// unchanged.
    pub worked_unix_ms: u64,
    /// Time in microseconds that this process has multiplied, without waits. With `flops`, this time distinguishes a slow
    /// processor from a rank that waits for a slow processor.
    pub busy_us: u64,
    /// Number of floating-point operations in the time `busy_us`.
    pub flops: u64,
    /// Counter that rises while the rank waits for other ranks and checks meanwhile that none is lost.
    pub waits: u64,
}

/// Activity of a rank, for `status` and the watchdog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u64)]
pub enum Doing {
    #[default]
    Starting = 0,
    Generating = 1,
    Computing = 2,
    Saving = 3,
    Recovering = 4,
    Solving = 5,
    Verifying = 6,
    Done = 7,
}

impl Doing {
    pub fn from_word(word: u64) -> Option<Self> {
        use Doing::*;
        let all = [Starting, Generating, Computing, Saving, Recovering, Solving, Verifying, Done];
        all.into_iter().find(|doing| *doing as u64 == word)
    }
}

/// `head` part of a position, for reading and writing.
#[derive(Debug)]
pub struct Head {
    region: Region,
}

fn published_word(slot: u32, sequence: u32) -> u64 {
    let value = (sequence << 1) | slot;
    (value as u64) << 32 | (xxh3_64(&(MAGIC ^ value as u64).to_le_bytes()) & 0xffff_ffff)
}

fn slot_digest(sequence: u32, payload: &[u8]) -> u64 {
    xxh3_64(payload) ^ xxh3_64(&(MAGIC.rotate_left(17) ^ sequence as u64).to_le_bytes())
}

impl Head {
    pub fn new(region: Region) -> Result<Self, HeaderFault> {
        if region.len() < HEAD_BYTES {
            return Err(HeaderFault::Short(region.len()));
        }
        Ok(Self { region })
    }

    /// Returns true if the header can still be read. Callers that keep a header open check this first, because touching a file
    /// that was cut short would end the process.
    pub fn is_readable(&self) -> bool {
        self.region.readable("head").is_ok()
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= HEAD_BYTES);
        // SAFETY: the word is aligned and inside the mapping, and all accesses to it are atomic.
        unsafe { AtomicU64::from_ptr(self.region.as_ptr().add(at).cast()) }
    }

    /// Returns the number of the published slot, and the sequence number of its header. Returns an error if no header is
    /// published, or if the word that publishes the slot is damaged.
    fn published(&self) -> Result<(usize, u32), HeaderFault> {
        let word = self.word(PUBLISHED_AT).load(Ordering::Acquire);
        if word == 0 {
            return Err(HeaderFault::Blank);
        }
        let value = (word >> 32) as u32;
        let (slot, sequence) = (value & 1, value >> 1);
        if published_word(slot, sequence) != word {
            return Err(HeaderFault::Damaged);
        }
        Ok((slot as usize, sequence))
    }

    fn slot(&self, slot: usize) -> &[u8] {
        &self.region.bytes()[SLOT_AT[slot]..SLOT_AT[slot] + SLOT_BYTES]
    }

    /// Returns the published header, or the reason why it is not trusted.
    pub fn read(&self) -> Result<Header, HeaderFault> {
        if self.word(DAMAGED_AT).load(Ordering::Acquire) != 0 {
            return Err(HeaderFault::Unreadable);
        }
        // If a live writer publishes twice during the copy, the copy is torn. The header is then read again.
        for _ in 0..8 {
            let before = self.published()?;
            let header = self.read_slot(before.0, before.1);
            // Orders the copy before the second read of the published word.
            fence(Ordering::Acquire);
            if self.published()? == before {
                return header;
            }
        }
        Err(HeaderFault::Damaged)
    }

    fn read_slot(&self, slot: usize, sequence: u32) -> Result<Header, HeaderFault> {
        let bytes = self.slot(slot).to_vec();
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let digest = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        let payload = length
            .checked_add(16)
            .and_then(|end| bytes.get(16..end))
            .ok_or(HeaderFault::Damaged)?;
        if slot_digest(sequence, payload) != digest {
            return Err(HeaderFault::Damaged);
        }
        Header::from_bytes(payload)
    }

    /// Writes a header and publishes it.
    ///
    /// # Panics
    /// If the group is larger than [`GROUP_MAX`]. Settings are checked before a run.
    pub fn write(&mut self, header: &Header) {
        assert!(header.id.members.len() <= GROUP_MAX);
        let (slot, sequence) = match self.published() {
            Ok((slot, sequence)) => (1 - slot, (sequence + 1) & 0x7fff_ffff),
            Err(_) => (0, 1),
        };
        let payload = header.to_bytes();
        let digest = slot_digest(sequence, &payload);
        // A reader that sees any of the following writes also sees that the other slot was published before.
        fence(Ordering::Release);
        let at = SLOT_AT[slot];
        let bytes = &mut self.region.bytes_mut()[at..at + SLOT_BYTES];
        bytes[..8].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&digest.to_le_bytes());
        bytes[16..16 + payload.len()].copy_from_slice(&payload);
        self.word(PUBLISHED_AT).store(published_word(slot as u32, sequence), Ordering::Release);
    }

    /// Withdraws the header, so that [`Self::read`] returns [`HeaderFault::Blank`] from now on. Called before the position's
    /// memory gets other contents.
    pub fn blank(&mut self) {
        self.word(PUBLISHED_AT).store(0, Ordering::Release);
    }

    /// Counts this process's heartbeats (`heartbeat`) in this header, until this function is called for another header. The
    /// counter is on a page that stays mapped after the region is dropped.
    pub fn take_pulse(&self) {
        let Some(page) = self.region.lasting_page() else { return };
        if let (Some(beats), Some(waits)) = (page.word(PROGRESS_AT), page.word(WAITS_AT)) {
            heartbeat::follow(beats, waits);
            // The page of the earlier header is now free for another file. A thread that still counts on that page does no harm.
            *FOLLOWED.lock().unwrap_or_else(|broken| broken.into_inner()) = Some(page);
        }
    }

    /// Sets the damage flag of the header, as the handler of memory faults does (`bus`). The position then counts as lost.
    pub fn flag_damage(&self) {
        self.word(DAMAGED_AT).store(1, Ordering::Release);
    }

    /// Returns the damage flag and its page, which stays mapped after the region is dropped. None if the page cannot be mapped.
    pub(super) fn damage_flag(&self) -> Option<(LastingPage, &'static AtomicU64)> {
        let page = self.region.lasting_page()?;
        let flag = page.word(DAMAGED_AT)?;
        Some((page, flag))
    }

    /// Records a heartbeat of this process, with its activity and iteration.
    pub fn tick(&self, doing: Doing, iteration: u64) {
        self.word(PROGRESS_AT + 8).store(iteration, Ordering::Relaxed);
        self.word(PROGRESS_AT + 16).store(doing as u64, Ordering::Relaxed);
        self.word(PROGRESS_AT + 24).store(std::process::id() as u64, Ordering::Relaxed);
        let since = clock::since_1970();
        self.word(PROGRESS_AT + 32).store(since.as_millis() as u64, Ordering::Relaxed);
        if !matches!(doing, Doing::Starting | Doing::Recovering) {
            self.word(WORKED_AT).store(since.as_millis() as u64, Ordering::Relaxed);
        }
        self.word(PROGRESS_AT).fetch_add(1, Ordering::Release);
    }

    /// Records the computing time and operations of this process so far. A reader between the two stores sees values one
    /// iteration apart, which is close enough for all uses.
    pub fn worked(&self, busy_us: u64, flops: u64) {
        self.word(PROGRESS_AT + 40).store(busy_us, Ordering::Relaxed);
        self.word(PROGRESS_AT + 48).store(flops, Ordering::Relaxed);
    }

    pub fn progress(&self) -> Progress {
        Progress {
            heartbeat: self.word(PROGRESS_AT).load(Ordering::Acquire),
            iteration: self.word(PROGRESS_AT + 8).load(Ordering::Relaxed),
            doing: self.word(PROGRESS_AT + 16).load(Ordering::Relaxed),
            pid: self.word(PROGRESS_AT + 24).load(Ordering::Relaxed),
            at_unix_ms: self.word(PROGRESS_AT + 32).load(Ordering::Relaxed),
            worked_unix_ms: self.word(WORKED_AT).load(Ordering::Relaxed),
            busy_us: self.word(PROGRESS_AT + 40).load(Ordering::Relaxed),
            flops: self.word(PROGRESS_AT + 48).load(Ordering::Relaxed),
            waits: self.word(WAITS_AT).load(Ordering::Relaxed),
        }
    }

    pub fn region(&self) -> &Region {
        &self.region
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::memory::sample;

    fn head() -> Head {
        Head::new(Region::anonymous(HEAD_BYTES).unwrap()).unwrap()
    }

    #[test]
    fn no_two_attempts_have_one_number_and_later_ones_are_greater() {
        let first = next_attempt(0, 1_800_000_000_000);
        assert_eq!((count_of(0), count_of(first)), (0, 1));
        // No header of the first attempt was found.
        let again = next_attempt(0, 1_800_000_000_001);
        assert!(again > first && count_of(again) == 1);
        // The clock goes back, or stands still.
        for unix_ms in [0, 1_800_000_000_000, u64::MAX] {
            let next = next_attempt(again, unix_ms);
            assert!(next > again && count_of(next) == 2, "{unix_ms}");
        }
        let last = next_attempt(i64::MAX as u64, u64::MAX);
        assert!(last <= i64::MAX as u64 && count_of(last) == count_of(i64::MAX as u64));
    }

    #[test]
    fn headers_come_back_as_written_many_times_over() {
        let mut head = head();
        assert_eq!(head.read(), Err(HeaderFault::Blank));
        for number in 0..9 {
            let mut header = sample();
            header.claim.base = Some(CheckpointId { number, made: 1 });
            if number % 2 == 0 {
                header.claim.phase = Phase::Running;
                header.claim.seal = None;
                header.id.mapping = Mapping::Row;
                header.id.rng = Rng::Hpl;
            }
            head.write(&header);
            assert_eq!(head.read().unwrap(), header);
        }
        head.blank();
        assert_eq!(head.read(), Err(HeaderFault::Blank));
    }

    #[test]
    fn every_corrupted_byte_is_noticed_or_harmless_and_never_leads_to_the_older_header() {
        let mut head = head();
        head.write(&sample());
        let mut newer = sample();
        newer.claim.seal = None;
        head.write(&newer);
        let (active, _) = head.published().unwrap();
        let used = 16 + newer.to_bytes().len();
        for at in 0..HEAD_BYTES {
            for flip in [0x01, 0x80, 0xff] {
                head.region.bytes_mut()[at] ^= flip;
                let matters = at < 8
                    || (DAMAGED_AT..DAMAGED_AT + 8).contains(&at)
                    || (SLOT_AT[active]..SLOT_AT[active] + used).contains(&at);
                match head.read() {
                    Ok(header) => assert!(!matters && header == newer, "byte {at}"),
                    Err(_) => assert!(matters, "byte {at}"),
                }
                head.region.bytes_mut()[at] ^= flip;
            }
        }
        assert_eq!(head.read().unwrap(), newer);
    }

    #[test]
    fn a_write_torn_at_any_byte_leaves_the_header_before_it() {
        let mut head = head();
        let older = sample();
        head.write(&older);
        head.write(&older);
        let before = head.region.bytes().to_vec();
        let mut newer = sample();
        newer.claim.joined = 9;
        head.write(&newer);
        let after = head.region.bytes().to_vec();
        // The published word is stored last, so all other bytes may have arrived in part.
        let changed: Vec<usize> = (8..HEAD_BYTES).filter(|&i| before[i] != after[i]).collect();
        for cut in 0..=changed.len() {
            head.region.bytes_mut().copy_from_slice(&before);
            for &at in &changed[..cut] {
                head.region.bytes_mut()[at] = after[at];
            }
            assert_eq!(head.read().unwrap(), older);
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut head = head();
        head.write(&sample());
        let (slot, sequence) = head.published().unwrap();
        let at = SLOT_AT[slot];
        let length = u64::from_le_bytes(head.slot(slot)[..8].try_into().unwrap()) as usize;
        head.region.bytes_mut()[at + 16] = 99;
        let digest = slot_digest(sequence, &head.slot(slot)[16..16 + length]);
        head.region.bytes_mut()[at + 8..at + 16].copy_from_slice(&digest.to_le_bytes());
        assert_eq!(head.read(), Err(HeaderFault::Version(99)));
    }

    #[test]
    fn the_largest_group_fits_a_slot() {
        let mut header = sample();
        header.id.members = (0..GROUP_MAX as u32).collect();
        let mut head = head();
        head.write(&header);
        assert_eq!(head.read().unwrap(), header);
    }

    #[test]
    fn progress_counts_up() {
        let head = head();
        head.tick(Doing::Computing, 12);
        head.tick(Doing::Saving, 13);
        let progress = head.progress();
        assert_eq!((progress.heartbeat, progress.iteration), (2, 13));
        assert_eq!(Doing::from_word(progress.doing), Some(Doing::Saving));
        assert_eq!(progress.pid, std::process::id() as u64);
        head.worked(1500, 3_000_000);
        assert_eq!((head.progress().busy_us, head.progress().flops), (1500, 3_000_000));
        assert_eq!(head.progress().heartbeat, 2, "`worked` counts no heartbeat");
    }
}
