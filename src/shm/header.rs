//! What a position's memory says about itself: whose it is and which epochs it holds.
//!
//! The `head` part begins with a word that publishes one of two slots. A header is written whole
//! into the slot that is not published, sealed with a checksum, and only then published by a single
//! release-store; so a process killed anywhere leaves either the old header or the new one. A reader
//! that finds the *published* slot damaged must not fall back to the other one: that one is out of
//! date, and would vouch for memory that has been computed on since. Such memory counts as lost.
//!
//! Beside the slots lie progress words, plain atomics, which an agent reads without any lock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::bus::Watched;
use super::names::Named;
use super::region::{LastingPage, Region};
use crate::base::clock;
use crate::base::params::{Mapping, Rng};
use crate::base::pulse;

/// Where signs of life are counted now.
static FOLLOWED: Mutex<Option<LastingPage>> = Mutex::new(None);

/// Raised with every change of anything written to named memory.
pub const LAYOUT_VERSION: u32 = 6;
/// Size of the `head` part.
pub const HEAD_BYTES: usize = 16 * 1024;
/// A group's member list has to fit the slot.
pub const GROUP_MAX: usize = 240;

const MAGIC: u64 = u64::from_le_bytes(*b"SKTHPL\r\n");
const PUBLISHED_AT: usize = 0;
const PROGRESS_AT: usize = 64;
/// Where beats are counted, for who looks into the file.
pub(super) const BEAT_AT: u64 = PROGRESS_AT as u64;
const WAITS_AT: usize = PROGRESS_AT + 56;
const WORKED_AT: usize = PROGRESS_AT + 64;
/// Not zero once memory of the position could not be read any more (`bus`).
const DAMAGED_AT: usize = 192;
const SLOT_AT: [usize; 2] = [4096, 8192];
const SLOT_BYTES: usize = 4096;

/// A checkpoint's number, and the incarnation that made it. Equal ids mean equal content: within
/// one incarnation a number is sealed once, and what another incarnation computes may differ in
/// details (timers) that the checksums cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EpochId {
    pub epoch: u64,
    pub made: u64,
}

/// Bits of an incarnation's number that tell its moment, in milliseconds: enough for five centuries.
const MOMENT_BITS: u32 = 44;

/// The number of the `count`-th incarnation, which begins at that moment. So no two have one number, not even where nobody sees
/// any more what the first of them has written.
pub fn incarnation(count: u64, unix_ms: u64) -> u64 {
    // Ranks compare them as numbers with a sign.
    let count = count.min(i64::MAX as u64 >> MOMENT_BITS);
    count << MOMENT_BITS | unix_ms & ((1 << MOMENT_BITS) - 1)
}

/// The number after `last`, the greatest that memory tells of. It is the greater one whatever the clock says.
pub fn next_incarnation(last: u64, unix_ms: u64) -> u64 {
    incarnation(count_of(last) + 1, unix_ms)
}

/// How many incarnations there were, with that of this number.
pub fn count_of(incarnation: u64) -> u64 {
    incarnation >> MOMENT_BITS
}

/// What the memory is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Fresh memory that waits to be rebuilt from the others of its group.
    Vacant,
    /// The matrix is being generated, or has not been saved yet.
    Generating,
    /// `base`, `seal` or both say what is held.
    Saved,
    /// Method single: the only copy is being overwritten; nothing is held.
    Overwriting,
}

/// Whether the position's process computes or recovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    Running,
    /// A recovery to this epoch has been agreed, and may have begun to change memory.
    Recovering(EpochId),
}

/// The part of a header that decisions are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Claim {
    /// The last incarnation this position took part in ([`next_incarnation`]).
    pub joined: u64,
    pub phase: Phase,
    pub stage: Stage,
    /// Held whole in the checkpoint, until a seal on a later epoch is past its barrier.
    pub base: Option<EpochId>,
    /// Held whole in what the next commit will take over (method self: A and D).
    pub seal: Option<EpochId>,
}

/// Where an epoch was taken, and the digest of everything it consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// Boundary (iteration) at which the epoch was taken.
    pub boundary: u64,
    /// Digest over the small state and the tables of digests, hence over all data.
    pub root: u64,
}

/// What does not change while a test runs: whose memory this is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// Drawn at the run's first start; the upper half is that moment, so later runs compare greater.
    pub run: u128,
    /// Which test of the input file.
    pub test: u32,
    pub position: u32,
    pub n: u64,
    pub nb: u64,
    pub p: u32,
    pub q: u32,
    pub mapping: Mapping,
    pub rng: Rng,
    pub seed: u64,
    /// Digest of every other choice that must be the same for the run to continue.
    pub params_digest: u64,
    pub rows: u64,
    pub cols: u64,
    /// Doubles from one local row to the next.
    pub ld: u64,
    pub group: u32,
    /// Positions of the group in member order; this position is one of them.
    pub members: Vec<u32>,
    pub losses: u8,
    pub code: u8,
    pub method: u8,
    pub scope: u8,
    /// Where the group's parity lies.
    pub layout: u8,
    /// Room for the small state, in bytes.
    pub state_bytes: u64,
}

/// In the place of a code: nothing is saved, and the head only shows progress.
pub const NO_CODE: u8 = u8::MAX;

/// The same, of a position whose part of the matrix are checksums. `group` is then, as it is beside them, the process column
/// whose work it does: from `q` on it keeps them, below it they have taken that column's place.
pub const SUMS: u8 = NO_CODE - 1;

/// The same, of a position that has a part of the matrix itself, beside others that keep checksums; `group` is its process
/// column.
pub const BESIDE_SUMS: u8 = NO_CODE - 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Header {
    pub id: Identity,
    pub claim: Claim,
    /// Meaningful where `claim.base` is some.
    pub base: Mark,
    /// Meaningful where `claim.seal` is some.
    pub seal: Mark,
}

/// Why a head is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum HeaderFault {
    #[error("it was never written")]
    Blank,
    #[error("it is {0} bytes long, too short for a header")]
    Short(usize),
    #[error("it was written by layout version {0}, this program knows {LAYOUT_VERSION}")]
    Version(u32),
    #[error("its checksum does not match: it is damaged")]
    Damaged,
    #[error(
        "memory beside it could not be read any more: an uncorrectable memory error, or a file cut short"
    )]
    Struck,
}

// ---- text of a header in bytes --------------------------------------------------------------

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn epoch(&mut self, v: Option<EpochId>) {
        self.u8(v.is_some() as u8);
        let v = v.unwrap_or(EpochId { epoch: 0, made: 0 });
        self.u64(v.epoch);
        self.u64(v.made);
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const L: usize>(&mut self) -> Option<[u8; L]> {
        let (head, tail) = self.0.split_first_chunk::<L>()?;
        self.0 = tail;
        Some(*head)
    }
    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|b| b[0])
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
    fn epoch(&mut self) -> Option<Option<EpochId>> {
        let some = self.u8()?;
        let id = EpochId { epoch: self.u64()?, made: self.u64()? };
        Some((some == 1).then_some(id))
    }
}

impl Header {
    /// The header as bytes, for the slot and for exchange between ranks.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer(Vec::with_capacity(512));
        let id = &self.id;
        w.u32(LAYOUT_VERSION);
        w.u64(id.run as u64);
        w.u64((id.run >> 64) as u64);
        w.u32(id.test);
        w.u32(id.position);
        w.u64(id.n);
        w.u64(id.nb);
        w.u32(id.p);
        w.u32(id.q);
        w.u8(match id.mapping {
            Mapping::Row => 0,
            Mapping::Column => 1,
        });
        w.u8(match id.rng {
            Rng::Hpl => 0,
            Rng::Xoshiro => 1,
        });
        w.u64(id.seed);
        w.u64(id.params_digest);
        w.u64(id.rows);
        w.u64(id.cols);
        w.u64(id.ld);
        w.u32(id.group);
        w.u8(id.losses);
        w.u8(id.code);
        w.u8(id.method);
        w.u8(id.scope);
        w.u8(id.layout);
        w.u64(id.state_bytes);
        w.u64(self.claim.joined);
        w.u8(match self.claim.stage {
            Stage::Vacant => 0,
            Stage::Generating => 1,
            Stage::Saved => 2,
            Stage::Overwriting => 3,
        });
        w.epoch(match self.claim.phase {
            Phase::Running => None,
            Phase::Recovering(target) => Some(target),
        });
        w.epoch(self.claim.base);
        w.epoch(self.claim.seal);
        for mark in [self.base, self.seal] {
            w.u64(mark.boundary);
            w.u64(mark.root);
        }
        w.u32(id.members.len() as u32);
        for &member in &id.members {
            w.u32(member);
        }
        w.0
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let mut r = Reader(bytes);
        let version = r.u32().ok_or(HeaderFault::Short(bytes.len()))?;
        if version != LAYOUT_VERSION {
            return Err(HeaderFault::Version(version));
        }
        Self::fields(&mut r).ok_or(HeaderFault::Damaged)
    }

    fn fields(r: &mut Reader) -> Option<Self> {
        let (run_low, run_high) = (r.u64()?, r.u64()?);
        let mut id = Identity {
            run: (run_high as u128) << 64 | run_low as u128,
            test: r.u32()?,
            position: r.u32()?,
            n: r.u64()?,
            nb: r.u64()?,
            p: r.u32()?,
            q: r.u32()?,
            mapping: match r.u8()? {
                0 => Mapping::Row,
                1 => Mapping::Column,
                _ => return None,
            },
            rng: match r.u8()? {
                0 => Rng::Hpl,
                1 => Rng::Xoshiro,
                _ => return None,
            },
            seed: r.u64()?,
            params_digest: r.u64()?,
            rows: r.u64()?,
            cols: r.u64()?,
            ld: r.u64()?,
            group: r.u32()?,
            losses: r.u8()?,
            code: r.u8()?,
            method: r.u8()?,
            scope: r.u8()?,
            layout: r.u8()?,
            state_bytes: r.u64()?,
            members: Vec::new(),
        };
        let joined = r.u64()?;
        let stage = match r.u8()? {
            0 => Stage::Vacant,
            1 => Stage::Generating,
            2 => Stage::Saved,
            3 => Stage::Overwriting,
            _ => return None,
        };
        let phase = r.epoch()?.map_or(Phase::Running, Phase::Recovering);
        let (base, seal) = (r.epoch()?, r.epoch()?);
        let mut mark = || Some(Mark { boundary: r.u64()?, root: r.u64()? });
        let (base_mark, seal_mark) = (mark()?, mark()?);
        let count = r.u32()? as usize;
        if count > GROUP_MAX {
            return None;
        }
        id.members = (0..count).map(|_| r.u32()).collect::<Option<_>>()?;
        Some(Self {
            id,
            claim: Claim { joined, phase, stage, base, seal },
            base: base_mark,
            seal: seal_mark,
        })
    }
}

// ---- the head part ---------------------------------------------------------------------------

/// What a rank tells the world while it works; read by agents without locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Counts up whenever the rank does anything; standing still means it hangs.
    pub heartbeat: u64,
    pub iteration: u64,
    /// One of [`Doing`], as a number.
    pub doing: u64,
    /// Process id of the rank, zero before it said so.
    pub pid: u64,
    /// When it last said so, by its node's clock.
    pub at_unix_ms: u64,
    /// When it was last at the test itself: a start that came to nothing leaves that as it was. Zero where it never was.
    pub worked_unix_ms: u64,
    /// Time this process has spent multiplying, waiting for nobody, and the operations it did in it: what tells
    /// a slow processor from a rank that waits for one.
    pub busy_us: u64,
    pub flops: u64,
    /// Counts up while it waits for others, where it looks after them meanwhile.
    pub waits: u64,
}

/// What a rank is busy with, for `status` and the watchdog.
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
        [
            Self::Starting,
            Self::Generating,
            Self::Computing,
            Self::Saving,
            Self::Recovering,
            Self::Solving,
            Self::Verifying,
            Self::Done,
        ]
        .into_iter()
        .find(|d| *d as u64 == word)
    }
}

/// The `head` part of a position, to read and to write.
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

    /// Whether it can still be read, for who keeps it open to look at it again and again: a file that was cut short meanwhile
    /// would end whoever touches it.
    pub fn is_readable(&self) -> bool {
        self.region.readable("head").is_ok()
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= HEAD_BYTES);
        // SAFETY: aligned, inside the mapping, and only ever accessed as an atomic.
        unsafe { AtomicU64::from_ptr(self.region.as_ptr().add(at).cast()) }
    }

    /// Slot and sequence that are published now.
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

    /// The published header, if it can be believed.
    pub fn read(&self) -> Result<Header, HeaderFault> {
        if self.word(DAMAGED_AT).load(Ordering::Acquire) != 0 {
            return Err(HeaderFault::Struck);
        }
        // A live writer may publish twice while we copy; then what we copied is torn. Look again.
        for _ in 0..8 {
            let before = self.published()?;
            let header = self.read_slot(before.0, before.1);
            // What was copied was there before the next look at what is published.
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
        // The version comes before the checksum: another version may seal differently.
        if let Some(version) = payload.first_chunk::<4>().map(|b| u32::from_le_bytes(*b))
            && version != LAYOUT_VERSION
            && slot_digest(sequence, payload) == digest
        {
            return Err(HeaderFault::Version(version));
        }
        if slot_digest(sequence, payload) != digest {
            return Err(HeaderFault::Damaged);
        }
        Header::from_bytes(payload)
    }

    /// Writes a header and publishes it.
    ///
    /// # Panics
    /// If the group is larger than [`GROUP_MAX`]: settings are checked long before.
    pub fn write(&mut self, header: &Header) {
        assert!(header.id.members.len() <= GROUP_MAX);
        let (slot, sequence) = match self.published() {
            Ok((slot, sequence)) => (1 - slot, (sequence + 1) & 0x7fff_ffff),
            Err(_) => (0, 1),
        };
        let payload = header.to_bytes();
        let digest = slot_digest(sequence, &payload);
        // Whoever sees anything of what follows sees that the other slot was published before.
        fence(Ordering::Release);
        let at = SLOT_AT[slot];
        let bytes = &mut self.region.bytes_mut()[at..at + SLOT_BYTES];
        bytes[..8].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&digest.to_le_bytes());
        bytes[16..16 + payload.len()].copy_from_slice(&payload);
        self.word(PUBLISHED_AT).store(published_word(slot as u32, sequence), Ordering::Release);
    }

    /// Makes the head say nothing, before its memory is put to another use.
    pub fn blank(&mut self) {
        self.word(PUBLISHED_AT).store(0, Ordering::Release);
    }

    /// This process's signs of life (`pulse`) are counted in this head from now on, even after its region
    /// has gone: they have a mapping of their own, a page that stays until they are counted in another.
    pub fn take_pulse(&self) {
        let Some(page) = self.region.lasting_page() else { return };
        if let (Some(beats), Some(waits)) = (page.word(PROGRESS_AT), page.word(WAITS_AT)) {
            pulse::follow(beats, waits);
            // The page of the head before may be put to another use: a thread that still beats there counts in vain, no more.
            *FOLLOWED.lock().unwrap_or_else(|broken| broken.into_inner()) = Some(page);
        }
    }

    /// Makes the head say that the position is lost: what the handler of memory faults does.
    pub fn strike(&self) {
        self.word(DAMAGED_AT).store(1, Ordering::Release);
    }

    /// From now on a fault in one of these parts is told by name, and makes this head say that the position is lost.
    pub fn watch(&self, position: u32, parts: &[Named]) -> Watched {
        let page = self.region.lasting_page();
        let Some((page, mark)) =
            page.and_then(|page| page.word(DAMAGED_AT).map(|mark| (page, mark)))
        else {
            return Watched::default();
        };
        let mut watched = Watched::marking(page);
        for (part, base, len) in parts.iter().map(Named::span) {
            watched.add((base, len), (position, part), mark);
        }
        watched
    }

    /// Says that this process lives and what it does.
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

    /// Says what this process has computed by itself so far. A reader between the two stores sees them one
    /// iteration apart, which no judgement hangs on.
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

    /// The raw memory, for faults on purpose.
    pub fn region_mut(&mut self) -> &mut Region {
        &mut self.region
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Header {
        Header {
            id: Identity {
                run: 0x0123_4567_89ab_cdef_1111_2222_3333_4444,
                test: 2,
                position: 5,
                n: 1000,
                nb: 64,
                p: 2,
                q: 3,
                mapping: Mapping::Column,
                rng: Rng::Xoshiro,
                seed: 42,
                params_digest: 77,
                rows: 500,
                cols: 340,
                ld: 344,
                group: 1,
                members: vec![1, 3, 5],
                losses: 1,
                code: 2,
                method: 1,
                scope: 0,
                layout: 2,
                state_bytes: 4096,
            },
            claim: Claim {
                joined: 3,
                phase: Phase::Recovering(EpochId { epoch: 8, made: 2 }),
                stage: Stage::Saved,
                base: Some(EpochId { epoch: 8, made: 2 }),
                seal: Some(EpochId { epoch: 9, made: 2 }),
            },
            base: Mark { boundary: 80, root: 1 },
            seal: Mark { boundary: 90, root: 2 },
        }
    }

    fn head() -> Head {
        Head::new(Region::anonymous(HEAD_BYTES).unwrap()).unwrap()
    }

    #[test]
    fn no_two_incarnations_have_one_number_and_later_ones_are_greater() {
        let first = next_incarnation(0, 1_800_000_000_000);
        assert_eq!((count_of(0), count_of(first)), (0, 1));
        // Nobody has seen the first one.
        let again = next_incarnation(0, 1_800_000_000_001);
        assert!(again > first && count_of(again) == 1);
        // A clock that goes back, or stands still.
        for unix_ms in [0, 1_800_000_000_000, u64::MAX] {
            let next = next_incarnation(again, unix_ms);
            assert!(next > again && count_of(next) == 2, "{unix_ms}");
        }
        let last = next_incarnation(i64::MAX as u64, u64::MAX);
        assert!(last <= i64::MAX as u64 && count_of(last) == count_of(i64::MAX as u64));
    }

    #[test]
    fn headers_come_back_as_written_many_times_over() {
        let mut head = head();
        assert_eq!(head.read(), Err(HeaderFault::Blank));
        for epoch in 0..9 {
            let mut header = sample();
            header.claim.base = Some(EpochId { epoch, made: 1 });
            if epoch % 2 == 0 {
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
        // The published word is stored last: everything else may have arrived in part.
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
        assert_eq!(
            head.progress().heartbeat,
            2,
            "no sign of life, which another thread could give"
        );
    }
}
