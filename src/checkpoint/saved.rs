//! What a position has saved: its copies of the matrix, their checksums, the small states, and the digests that vouch for
//! them.
//!
//! Beside each epoch's small state lie tables with one digest for each row and tile of data and of
//! parity; the header's root is the digest over state and tables. So a save digests again only what
//! it changed, and a restore notices any flipped bit of what it is about to trust.
//!
//! It is apart from the rest of a position's memory (`holding`) since a helper may have all of it while the rank computes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::plan::{Buffers, Corner, STATE_ROW_WORDS, TILE_WORDS};
use super::protocol::Method;
use crate::base::faults::{Sabotage, sabotaged};
use crate::base::threads::{Crew, Pool};
use crate::parity::digest::digest;
use crate::parity::exchange::Coder;
use crate::parity::stripes::Role;
use crate::parity::{Encode, GroupComm, Hands, Share, Window};
use crate::shm::Region;

/// Copies, checksums and small states.
#[derive(Debug)]
pub struct Saved {
    /// The copy; None where there is none in memory (disk).
    pub(super) b: Option<Region>,
    /// The checksum; None where nobody makes one.
    pub(super) c: Option<Region>,
    /// The checksum of odd epochs: D (self), F (double). C is then that of even ones.
    pub(super) d: Option<Region>,
    /// The second copy of method double.
    pub(super) e: Option<Region>,
    pub(super) s: Region,
    pub(super) buffers: Buffers,
}

/// Words that a thread copies or digests before it takes more.
const TURN_WORDS: usize = 64 * 1024;

/// How a group makes its checksum, and of what.
#[derive(Clone, Copy, Debug)]
pub struct Coding {
    pub coder: Coder,
    pub how: Encode,
    pub window: Window,
}

impl Saved {
    /// The copy that holds, or will hold, this epoch once it is committed; empty where there is none.
    fn copy(&mut self, epoch: u64) -> &mut [u64] {
        let words = self.buffers.data_words();
        match of_epoch(epoch, &mut self.b, &mut self.e) {
            Some(data) => &mut data.words_mut()[..words],
            None => &mut [],
        }
    }

    /// Its checksum.
    fn check(&mut self, epoch: u64) -> &mut [u64] {
        let words = self.buffers.checksum_words();
        match of_epoch(epoch, &mut self.c, &mut self.d) {
            Some(check) => &mut check.words_mut()[..words],
            None => &mut [],
        }
    }

    fn slot(&mut self, epoch: u64) -> &mut [u64] {
        let range = self.buffers.slot_range(epoch);
        &mut self.s.words_mut()[range]
    }

    /// Puts the small state into the place of this epoch.
    ///
    /// # Panics
    /// If it is longer than the room asked for at the start.
    pub fn write_state(&mut self, epoch: u64, state: &[u8]) {
        let room = self.buffers.state_words();
        let words = &mut self.slot(epoch)[..room];
        assert!(
            state.len() <= (words.len() - 1) * 8,
            "a state of {} bytes does not fit the {} asked for at the start",
            state.len(),
            (words.len() - 1) * 8
        );
        words.fill(0);
        words[0] = state.len() as u64;
        for (word, chunk) in words[1..].iter_mut().zip(state.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(bytes);
        }
    }

    /// The small state of an epoch whose root was verified or just rebuilt.
    pub fn read_state(&mut self, epoch: u64) -> Vec<u8> {
        let room = self.buffers.state_words();
        state_of(&self.slot(epoch)[..room])
    }

    /// So many words that nobody needs before the first save, for whatever a start puts together; None if there are fewer.
    pub fn spare(&mut self, words: usize) -> Option<&mut [u64]> {
        let mut all = [&mut self.b, &mut self.c].into_iter().flatten();
        all.find_map(|region| region.words_mut().get_mut(..words))
    }

    /// Calls `code` with this member's matrix rows and checksum, then with those of its small state.
    /// `a` is the workspace when the epoch is being sealed, None when the committed copy is meant. With `since`, `code` gets
    /// the epoch's digests to be brought up to date.
    pub fn with_shares(
        &mut self,
        epoch: u64,
        a: Option<&mut [u64]>,
        since: Option<Since>,
        mut code: impl FnMut(&mut Share, Rows),
    ) {
        let buffers = self.buffers;
        if let Some(since) = &since {
            self.lay_digests(epoch, since.before);
        }
        let slot = buffers.slot_range(epoch);
        let (parity_words, state_words) = (buffers.parity_words(), buffers.state_words());
        // Borrowed field by field: the parts are needed side by side.
        let check = of_epoch(epoch, &mut self.c, &mut self.d);
        let check = check.map_or(&mut [][..], Region::words_mut);
        let copy = of_epoch(epoch, &mut self.b, &mut self.e);
        let data = match (a, copy) {
            (Some(a), _) => a,
            (None, Some(copy)) => &mut copy.words_mut()[..buffers.data_words()],
            (None, None) => unreachable!("nothing is recovered from a copy that is not there"),
        };
        let (state, tables) = self.s.words_mut()[slot].split_at_mut(state_words);
        let digests = since.map(|since| Digests::new(buffers, tables, &since));
        let (parity, state_parity) = check[..buffers.checksum_words()].split_at_mut(parity_words);
        let mut matrix = Share {
            data,
            rows: buffers.rows,
            cols: buffers.cols,
            ld: buffers.ld,
            parity,
            pitch: buffers.pitch,
        };
        code(&mut matrix, Rows::Matrix(digests.as_ref()));
        let mut state = Share {
            data: state,
            rows: buffers.state_rows,
            cols: STATE_ROW_WORDS,
            ld: STATE_ROW_WORDS,
            parity: state_parity,
            pitch: STATE_ROW_WORDS,
        };
        code(&mut state, Rows::State);
    }

    /// Encodes the checksum of `epoch` from the frozen matrix `a`, or where there is none from its copy, and takes the digests
    /// of what comes by: read once more from memory, it would cost as much as encoding. `between` is called now and then.
    pub fn encode(
        &mut self,
        group: &(impl GroupComm + ?Sized),
        Coding { coder, how, window }: Coding,
        (epoch, since): (u64, Since),
        a: Option<&mut [u64]>,
        crew: &mut Crew,
        mut between: impl FnMut(),
    ) {
        let state_window = self.state_window();
        self.with_shares(epoch, a, Some(since), |share, rows| match rows {
            Rows::Matrix(digests) => {
                let digests = digests.expect("asked for");
                let see = |share: &Share, role, columns| digests.see(share, role, columns);
                let hands = Hands { crew, seen: Some(&see) };
                coder.encode(group, how, share, window, hands, &mut between);
            }
            Rows::State => {
                let hands = Hands { crew, seen: None };
                coder.suited(true).encode(group, how, share, state_window, hands, &mut between);
            }
        });
    }

    /// The window that covers all of the small state, for every member.
    pub fn state_window(&self) -> Window {
        Window { rows: self.buffers.state_rows, width: STATE_ROW_WORDS }
    }

    /// Copies the part of A that can have changed to this epoch's copy. `half` is called midway.
    pub fn copy_in(
        &mut self,
        epoch: u64,
        a: &[u64],
        from: Corner,
        pool: &mut Pool,
        half: impl FnMut(),
    ) {
        let buffers = self.buffers;
        copy_rows((&buffers, from), a, self.copy(epoch), |_| true, pool, half);
    }

    /// Copies this epoch's whole copy to A, rows that A has `taken` already apart.
    pub fn copy_out(
        &mut self,
        epoch: u64,
        a: &mut [u64],
        taken: &[bool],
        pool: &mut Pool,
        half: impl FnMut(),
    ) {
        let buffers = self.buffers;
        let from = Corner { row: 0, col: 0 };
        copy_rows((&buffers, from), self.copy(epoch), a, |row| !taken[row], pool, half);
    }

    /// Brings the checksum of `epoch` up to the epoch before it, where that one differs from the last but
    /// one but the coming encoding does not write: `stale` is what the two can differ in, `coming` what is
    /// about to be encoded.
    pub fn carry_checksum(&mut self, epoch: u64, stale: Reach, coming: Reach, pool: &mut Pool) {
        let (pitch, parity_rows) = (self.buffers.pitch, self.buffers.parity_rows);
        if self.buffers.method != Method::SelfCheckpoint {
            return;
        }
        let (Some(c), Some(d)) = (&mut self.c, &mut self.d) else { return };
        let (from, to) = match epoch % 2 {
            1 => (c, d),
            _ => (d, c),
        };
        let (from, to) = (from.words(), to.words_mut());
        let rows = stale.rows.min(parity_rows);
        // Rows from the first, columns from the right, as encoding has them.
        pool.rows(&mut to[..rows * pitch], pitch, TURN_WORDS, |row, line| {
            let kept = if row < coming.rows { coming.width } else { 0 };
            if stale.width > kept {
                let range = pitch - stale.width..pitch - kept;
                line[range.clone()].copy_from_slice(&from[row * pitch..][range]);
            }
        });
    }

    /// Puts the digests of epoch `before` (of nothing, if there is none) beside the small state of `epoch`.
    fn lay_digests(&mut self, epoch: u64, before: Option<u64>) {
        let tables = |slot: Range<usize>| slot.start + self.buffers.state_words()..slot.end;
        let to = tables(self.buffers.slot_range(epoch));
        match before.map(|before| tables(self.buffers.slot_range(before))) {
            None => self.s.words_mut()[to].fill(0),
            Some(from) => self.s.words_mut().copy_within(from, to.start),
        }
    }

    /// Takes the digests of all data that are new, where no code comes by.
    pub fn digest_data(&mut self, epoch: u64, a: &[u64], since: Since, pool: &mut Pool) {
        let buffers = self.buffers;
        self.lay_digests(epoch, since.before);
        let tables = &mut self.slot(epoch)[buffers.state_words()..];
        let digests = Digests::new(buffers, tables, &since);
        let from = since.corner;
        pool.over(buffers.rows - from.row, rows_a_turn(buffers.ld), |rows| {
            for row in rows.start + from.row..rows.end + from.row {
                let table = row * buffers.data_tiles();
                digests.note(&a[buffers.row(row)], table, from.col..buffers.cols);
            }
        });
    }

    /// The digest of an epoch over its small state and all digests, now that its checksum is complete.
    pub fn seal(&mut self, epoch: u64) -> u64 {
        let parity_words = self.buffers.parity_words();
        let tail = digest(&self.check(epoch)[parity_words..]);
        let slot = self.slot(epoch);
        *slot.last_mut().expect("slot_words() counts it") = tail;
        digest(slot)
    }

    /// Whether this epoch's data, checksum, state and digests are what the root says. With `a`, data
    /// is in the workspace; else in the committed copy.
    pub fn verify(&mut self, epoch: u64, root: u64, a: Option<&[u64]>, pool: &mut Pool) -> bool {
        if sabotaged(Sabotage::NoDigest) {
            return true;
        }
        let buffers = self.buffers;
        let slot = &self.s.words()[buffers.slot_range(epoch)];
        if digest(slot) != root {
            return false;
        }
        let check = of_epoch(epoch, &mut self.c, &mut self.d);
        let check = check.map_or(&[][..], |check| &check.words()[..buffers.checksum_words()]);
        let copy = of_epoch(epoch, &mut self.b, &mut self.e);
        let data = match (a, copy) {
            (Some(a), _) => a,
            (None, Some(copy)) => &copy.words()[..buffers.data_words()],
            (None, None) => &[],
        };
        let tables = &slot[buffers.state_words()..];
        let (data_table, rest) = tables.split_at(buffers.rows * buffers.data_tiles());
        let (parity_table, tail) = rest.split_at(buffers.parity_rows * buffers.parity_tiles());
        let (parity, state_parity) = check.split_at(buffers.parity_words());
        let Buffers { rows, cols, ld, pitch, parity_rows, .. } = buffers;
        tail[0] == digest(state_parity)
            && rows_are_sound(data, (rows, cols, ld), data_table, pool)
            && rows_are_sound(parity, (parity_rows, pitch, pitch), parity_table, pool)
    }
}

/// Whether a matrix of so many rows and columns is what its digests say; one row begins `ld` words after the other.
fn rows_are_sound(
    words: &[u64],
    (rows, cols, ld): (usize, usize, usize),
    table: &[u64],
    pool: &mut Pool,
) -> bool {
    let (tiles, sound) = (cols.div_ceil(TILE_WORDS), AtomicBool::new(true));
    let fits = |row| row_is_sound(&words[row * ld..][..cols], &table[row * tiles..][..tiles]);
    pool.over(rows, rows_a_turn(ld), |mut rows| {
        // Once something is wrong the rest makes no difference.
        if sound.load(Ordering::Relaxed) && !rows.all(fits) {
            sound.store(false, Ordering::Relaxed);
        }
    });
    sound.into_inner()
}

/// Rows of so many words that a thread takes at a time.
fn rows_a_turn(words: usize) -> usize {
    (TURN_WORDS / words.max(1)).max(1)
}

/// The small state that these words hold.
pub(super) fn state_of(words: &[u64]) -> Vec<u8> {
    let Some((&length, words)) = words.split_first() else { return Vec::new() };
    let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes.truncate(length as usize);
    bytes
}

/// Whether a row of the matrix is what its digests say.
pub(super) fn row_is_sound(line: &[u64], digests: &[u64]) -> bool {
    let tiles = line.len().div_ceil(TILE_WORDS);
    tiles == digests.len() && (0..tiles).all(|tile| digests[tile] == digest(tile_of(line, tile)))
}

/// Rows and columns of a checksum: as many rows from the first and columns from the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    pub rows: usize,
    pub width: usize,
}

/// What an epoch differs from another in.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    /// The epoch whose digests are at hand; None: there is none, and all of it is new.
    pub before: Option<u64>,
    /// Of the data.
    pub corner: Corner,
    pub parity: Reach,
}

/// What rows are coded: those of the matrix, with digests to be brought up to date if these were asked for, or those of the
/// small state.
pub enum Rows<'a> {
    Matrix(Option<&'a Digests<'a>>),
    State,
}

/// The digests of an epoch on their way from those of another: all threads put them in place while rows are at hand.
pub struct Digests<'a> {
    buffers: Buffers,
    tables: &'a [AtomicU64],
    corner: Corner,
    parity_rows: usize,
    /// First column of parity that is new.
    first: usize,
}

impl<'a> Digests<'a> {
    /// In tables that hold those of the epoch before.
    fn new(buffers: Buffers, tables: &'a mut [u64], since: &Since) -> Self {
        // SAFETY: an atomic word is laid out as a word is, and as long as this borrow lasts nobody has them by another way.
        let tables = unsafe { &*(std::ptr::from_mut(tables) as *const [AtomicU64]) };
        Self {
            buffers,
            tables,
            corner: since.corner,
            parity_rows: since.parity.rows.min(buffers.parity_rows),
            first: buffers.pitch - since.parity.width,
        }
    }

    /// Takes the digests of the tiles of a row that end within these columns.
    fn note(&self, line: &[u64], table: usize, columns: Range<usize>) {
        // The last tile may be a short one, which ends where the row does.
        let before = |column: usize| match column == line.len() {
            true => column.div_ceil(TILE_WORDS),
            false => column / TILE_WORDS,
        };
        for tile in before(columns.start)..before(columns.end) {
            self.tables[table + tile].store(digest(tile_of(line, tile)), Ordering::Relaxed);
        }
    }

    /// Takes the digests of what the code has just read or written of a row, if it is new. Several threads call this, each
    /// with other columns.
    pub fn see(&self, share: &Share, role: Role, columns: Range<usize>) {
        let buffers = &self.buffers;
        let (data_tiles, parity_tiles) = (buffers.data_tiles(), buffers.parity_tiles());
        let (line, table, first) = match role {
            Role::Data(row) => {
                let row = buffers.rows.checked_sub(row + 1).filter(|&r| r >= self.corner.row);
                let Some(row) = row else { return };
                (&share.data[buffers.row(row)], row * data_tiles, self.corner.col)
            }
            Role::Parity(row) if row < self.parity_rows => (
                &share.parity[row * buffers.pitch..][..buffers.pitch],
                buffers.rows * data_tiles + row * parity_tiles,
                self.first,
            ),
            Role::Parity(_) => return,
        };
        self.note(line, table, columns.start.max(first)..columns.end.max(first));
    }
}

/// Of two regions that epochs take in turn, this one's; where there is only one, that.
fn of_epoch<'a>(
    epoch: u64,
    even: &'a mut Option<Region>,
    odd: &'a mut Option<Region>,
) -> Option<&'a mut Region> {
    match odd {
        Some(odd) if epoch % 2 == 1 => Some(odd),
        _ => even.as_mut(),
    }
}

fn tile_of(line: &[u64], tile: usize) -> &[u64] {
    let start = tile * TILE_WORDS;
    &line[start..(start + TILE_WORDS).min(line.len())]
}

/// Copies what of a corner lies in rows that are `wanted`, by all threads. `half` is called midway.
fn copy_rows(
    (buffers, from): (&Buffers, Corner),
    source: &[u64],
    target: &mut [u64],
    wanted: impl Fn(usize) -> bool + Sync,
    pool: &mut Pool,
    mut half: impl FnMut(),
) {
    let Buffers { rows, cols, ld, .. } = *buffers;
    let middle = from.row + (rows - from.row) / 2;
    let mut copy = |first: usize, last: usize| {
        pool.rows(&mut target[first * ld..last * ld], ld, TURN_WORDS, |row, line| {
            let row = first + row;
            if wanted(row) {
                line[from.col..cols].copy_from_slice(&source[row * ld..][from.col..cols]);
            }
        });
    };
    copy(from.row, middle);
    if middle < rows {
        half();
    }
    copy(middle, rows);
}
