//! Checkpoints of a position: copies of the matrix, their parity, small states, and digests.
//!
//! The small state of each checkpoint is followed by tables with the digests of data and of parity: one for each tile of
//! [`TILE_WORDS`] words in each row. The header's root is the digest of state and tables. So a save computes new digests only for
//! changed parts. A restore detects any flipped bit in the data that it uses.
//!
//! This is separate from the rest of the position's memory (`holding`), because a helper may use all of it while the rank
//! computes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::plan::{Buffers, Corner, STATE_ROW_WORDS, TILE_WORDS};
use crate::base::faults::{Point, Sabotage, hit, sabotaged};
use crate::base::heartbeat;
use crate::base::threads::{PanelThreads, Pool};
use crate::device::Pin;
use crate::parity::code::{bytes, bytes_mut};
use crate::parity::digest::digest;
use crate::parity::exchange::Coder;
use crate::parity::stripes::Role;
use crate::parity::{Encoding, GroupComm, Hands, Shape, Share, Window};
use crate::shm::Region;

/// Memory of a position's checkpoints: copies, parity, small states and digests.
#[derive(Debug)]
pub struct Saved {
    /// Pins of the copies, if the matrix is on a device. Declared before the copies, so that the pins are dropped before the
    /// copies.
    pub(super) pins: Vec<Pin>,
    /// Copy of the matrix. With method double, the copy of checkpoints with even numbers. None with method disk.
    pub(super) b: Option<Region>,
    /// Parity. None if this position has none.
    pub(super) c: Option<Region>,
    /// Parity of checkpoints with odd numbers: part D (method self) or F (method double). `c` is then the parity of checkpoints
    /// with even numbers.
    pub(super) d: Option<Region>,
    /// With method double, the copy of checkpoints with odd numbers. Otherwise None.
    pub(super) e: Option<Region>,
    pub(super) s: Region,
    pub(super) buffers: Buffers,
}

/// Maximum number of words that a thread copies or digests at a time.
const TURN_WORDS: usize = 64 * 1024;

/// Code and extent of a group's encoding.
#[derive(Clone, Copy, Debug)]
pub struct Coding {
    pub coder: Coder,
    pub how: Encoding,
    pub window: Window,
    /// Data and parity that differ from an earlier checkpoint. Only the digests of these data and this parity are computed again.
    pub since: Since,
}

impl Saved {
    /// Returns the copy of the matrix that contains checkpoint `number`, or will contain it when it is committed. Empty with
    /// method disk.
    pub(super) fn copy(&mut self, number: u64) -> &mut [u64] {
        let words = self.buffers.data_words();
        match of_checkpoint(number, &mut self.b, &mut self.e) {
            Some(data) => &mut data.words_mut()[..words],
            None => &mut [],
        }
    }

    /// Returns the parity of checkpoint `number`. Empty if this position has no parity.
    fn check(&mut self, number: u64) -> &mut [u64] {
        let words = self.buffers.checksum_words();
        match of_checkpoint(number, &mut self.c, &mut self.d) {
            Some(check) => &mut check.words_mut()[..words],
            None => &mut [],
        }
    }

    fn slot(&mut self, number: u64) -> &mut [u64] {
        let range = self.buffers.slot_range(number);
        &mut self.s.words_mut()[range]
    }

    /// Writes the small state of checkpoint `number`.
    ///
    /// # Panics
    /// If the state is longer than the size requested at the start.
    pub fn write_state(&mut self, number: u64, state: &[u8]) {
        let room = self.buffers.state_words();
        let words = &mut self.slot(number)[..room];
        assert!(
            state.len() <= (words.len() - 1) * 8,
            "a state of {} bytes is longer than the {} bytes requested at the start",
            state.len(),
            (words.len() - 1) * 8
        );
        words.fill(0);
        words[0] = state.len() as u64;
        bytes_mut(&mut words[1..])[..state.len()].copy_from_slice(state);
    }

    /// Returns the small state of checkpoint `number`, whose root was verified, or which was just rebuilt.
    pub fn read_state(&mut self, number: u64) -> Vec<u8> {
        let room = self.buffers.state_words();
        state_of(&self.slot(number)[..room])
    }

    /// Returns two parts of memory that are unused before the first save, for temporary data of a start. The first has `words`
    /// words; None if no part has as many words. The second is the second copy of method double; None with other methods.
    pub fn spare(&mut self, words: usize) -> (Option<&mut [u64]>, Option<&mut [u64]>) {
        let mut all = [&mut self.b, &mut self.c].into_iter().flatten();
        let spare = all.find_map(|region| region.words_mut().get_mut(..words));
        (spare, self.e.as_mut().map(Region::words_mut))
    }

    /// Returns the rows of this member's matrix and small state, with their parity, for encoding or rebuilding. The matrix is `a`
    /// if given, otherwise the copy of checkpoint `number`. With `since`, also returns the checkpoint's digests, which the caller
    /// updates.
    pub fn shares<'a>(
        &'a mut self,
        number: u64,
        a: Option<&'a mut [u64]>,
        since: Option<Since>,
    ) -> (Shares<'a>, Option<Digests<'a>>) {
        let buffers = self.buffers;
        if let Some(since) = &since {
            self.lay_digests(number, since.before);
        }
        // The fields are borrowed separately, because several are needed at the same time.
        let check = of_checkpoint(number, &mut self.c, &mut self.d);
        let check = check.map_or(&mut [][..], Region::words_mut);
        let copy = of_checkpoint(number, &mut self.b, &mut self.e);
        let data = match (a, copy) {
            (Some(a), _) => a,
            (None, Some(copy)) => &mut copy.words_mut()[..buffers.data_words()],
            (None, None) => unreachable!("a checkpoint is either in the matrix or in a copy"),
        };
        let slot = &mut self.s.words_mut()[buffers.slot_range(number)];
        let (state, tables) = slot.split_at_mut(buffers.state_words());
        let digests = since.map(|since| Digests::new(buffers, tables, &since));
        (Shares::new(&buffers, data, state, check), digests)
    }

    /// Encodes the parity of checkpoint `number` from the frozen matrix `a`, or from its copy, and computes digests of the rows
    /// at the same time. Reading the rows again for the digests would cost as much as encoding. Calls `between` after each batch
    /// of rows.
    pub fn encode(
        &mut self,
        group: &(impl GroupComm + ?Sized),
        Coding { coder, how, window, since }: Coding,
        number: u64,
        a: Option<&mut [u64]>,
        panel_threads: &mut PanelThreads,
        mut between: impl FnMut(),
    ) {
        let (mut shares, digests) = self.shares(number, a, Some(since));
        let digests = digests.expect("asked for");
        let see = |share: &Share, role, columns| digests.see(share, role, columns);
        let hands = Hands { panel_threads: &mut *panel_threads, seen: Some(&see) };
        coder.encode(group, how, &mut shares.matrix, window, hands, &mut between);
        let (window, hands) = (shares.state.whole(), Hands { panel_threads, seen: None });
        coder.for_any_bits().encode(group, how, &mut shares.state, window, hands, &mut between);
    }

    /// Copies A, from row and column `from` to its end, to the copy of checkpoint `number`. Calls `half` midway.
    pub fn copy_in(
        &mut self,
        number: u64,
        a: &[u64],
        from: Corner,
        pool: &mut Pool,
        half: impl FnMut(),
    ) {
        let buffers = self.buffers;
        copy_rows(&buffers, from, a, self.copy(number), |_| true, pool, half);
    }

    /// Copies the copy of checkpoint `number` to A, except for rows that A already has (`taken`). Calls `half` midway.
    pub fn copy_out(
        &mut self,
        number: u64,
        a: &mut [u64],
        taken: &[bool],
        pool: &mut Pool,
        half: impl FnMut(),
    ) {
        let buffers = self.buffers;
        let from = Corner { row: 0, col: 0 };
        copy_rows(&buffers, from, self.copy(number), a, |row| !taken[row], pool, half);
    }

    /// Copies a part of the last checkpoint's parity to the parity of the next checkpoint, `number`: the range `stale`, in which
    /// the two can differ, without the range `coming`, which the next encoding writes.
    pub fn carry_checksum(&mut self, number: u64, stale: Reach, coming: Reach, pool: &mut Pool) {
        let (pitch, parity_rows) = (self.buffers.pitch, self.buffers.parity_rows);
        let (Some(c), Some(d)) = (&mut self.c, &mut self.d) else { return };
        let (from, to) = match number % 2 {
            1 => (c, d),
            _ => (d, c),
        };
        let (from, to) = (from.words(), to.words_mut());
        let rows = stale.rows.min(parity_rows);
        // Rows are counted from the first row, and columns from the last column, as in encoding.
        pool.rows(&mut to[..rows * pitch], pitch, TURN_WORDS, |row, line| {
            let kept = if row < coming.rows { coming.width } else { 0 };
            if stale.width > kept {
                let range = pitch - stale.width..pitch - kept;
                line[range.clone()].copy_from_slice(&from[row * pitch..][range]);
            }
        });
    }

    /// Copies the digests of checkpoint `before` to the digests of checkpoint `number`. If `before` is None, fills them with
    /// zeros.
    fn lay_digests(&mut self, number: u64, before: Option<u64>) {
        let tables = |slot: Range<usize>| slot.start + self.buffers.state_words()..slot.end;
        let to = tables(self.buffers.slot_range(number));
        match before.map(|before| tables(self.buffers.slot_range(before))) {
            None => self.s.words_mut()[to].fill(0),
            Some(from) => self.s.words_mut().copy_within(from, to.start),
        }
    }

    /// Computes the digests of the changed rows of `a`, if there is no parity to encode.
    pub fn digest_data(&mut self, number: u64, a: &[u64], since: Since, pool: &mut Pool) {
        let buffers = self.buffers;
        self.lay_digests(number, since.before);
        let tables = &mut self.slot(number)[buffers.state_words()..];
        let digests = Digests::new(buffers, tables, &since);
        let from = since.corner;
        pool.over(buffers.rows - from.row, rows_a_turn(buffers.ld), |rows| {
            for row in rows.start + from.row..rows.end + from.row {
                let table = row * buffers.data_tiles();
                digests.note(&a[buffers.row(row)], table, from.col..buffers.cols);
            }
        });
    }

    /// Returns the root of checkpoint `number`: the digest of its small state and of all its digests. Called when its parity is
    /// complete.
    pub fn seal(&mut self, number: u64) -> u64 {
        let parity_words = self.buffers.parity_words();
        let tail = digest(&self.check(number)[parity_words..]);
        let slot = self.slot(number);
        *slot.last_mut().expect("slot_words() counts it") = tail;
        digest(slot)
    }

    /// Returns true if the matrix, parity, small state and digests of checkpoint `number` match `root`. The matrix is `a` if
    /// given, otherwise the committed copy.
    pub fn verify(&mut self, number: u64, root: u64, a: Option<&[u64]>, pool: &mut Pool) -> bool {
        if sabotaged(Sabotage::NoDigest) {
            return true;
        }
        let buffers = self.buffers;
        let slot = &self.s.words()[buffers.slot_range(number)];
        if digest(slot) != root {
            return false;
        }
        let check = of_checkpoint(number, &mut self.c, &mut self.d);
        let check = check.map_or(&[][..], |check| &check.words()[..buffers.checksum_words()]);
        let copy = of_checkpoint(number, &mut self.b, &mut self.e);
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
            && rows_are_sound(data, rows, cols, ld, data_table, pool)
            && rows_are_sound(parity, parity_rows, pitch, pitch, parity_table, pool)
    }
}

/// Returns true if all rows of a matrix match their digests. Rows are `ld` words apart.
fn rows_are_sound(
    words: &[u64],
    rows: usize,
    cols: usize,
    ld: usize,
    table: &[u64],
    pool: &mut Pool,
) -> bool {
    let (tiles, sound) = (cols.div_ceil(TILE_WORDS), AtomicBool::new(true));
    let fits = |row| row_is_sound(&words[row * ld..][..cols], &table[row * tiles..][..tiles]);
    pool.over(rows, rows_a_turn(ld), |mut rows| {
        // After a mismatch, the remaining rows are skipped.
        if sound.load(Ordering::Relaxed) && !rows.all(fits) {
            sound.store(false, Ordering::Relaxed);
        }
    });
    sound.into_inner()
}

/// Number of rows that a thread processes at a time. A row has `words` words.
fn rows_a_turn(words: usize) -> usize {
    (TURN_WORDS / words.max(1)).max(1)
}

/// Returns the small state that `words` contain: one word with the length in bytes, then the bytes.
pub(super) fn state_of(words: &[u64]) -> Vec<u8> {
    let Some((&length, words)) = words.split_first() else { return Vec::new() };
    let bytes = bytes(words);
    bytes[..bytes.len().min(length as usize)].to_vec()
}

/// Returns true if a row matches its digests.
pub(super) fn row_is_sound(line: &[u64], digests: &[u64]) -> bool {
    let tiles = line.len().div_ceil(TILE_WORDS);
    tiles == digests.len() && (0..tiles).all(|tile| digests[tile] == digest(tile_of(line, tile)))
}

/// Range of a parity: the first `rows` rows and the last `width` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    pub rows: usize,
    pub width: usize,
}

/// Data and parity of a checkpoint that differ from an earlier checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    /// Number of the earlier checkpoint, whose digests are available. None if there is no such checkpoint, and all data is new.
    pub before: Option<u64>,
    /// First row and column of the changed part of the matrix.
    pub corner: Corner,
    /// Changed part of the parity.
    pub parity: Reach,
}

/// Rows of a member's matrix and of its small state, in the form in which the codes use them.
pub struct Shares<'a> {
    matrix: Share<'a>,
    state: Share<'a>,
}

impl<'a> Shares<'a> {
    /// Combines the matrix (`data`) and the small state with their parity. `check` contains first the parity of the matrix, then
    /// the parity of the small state.
    pub fn new(
        buffers: &Buffers,
        data: &'a mut [u64],
        state: &'a mut [u64],
        check: &'a mut [u64],
    ) -> Self {
        let &Buffers { rows, cols, ld, pitch, state_rows, .. } = buffers;
        let check = &mut check[..buffers.checksum_words()];
        let (parity, state_parity) = check.split_at_mut(buffers.parity_words());
        let width = STATE_ROW_WORDS;
        let of_state = Shape { rows: state_rows, cols: width, ld: width, pitch: width };
        Self {
            matrix: Share { data, parity, shape: Shape { rows, cols, ld, pitch } },
            state: Share { data: state, parity: state_parity, shape: of_state },
        }
    }

    /// Rebuilds the members `lost` of a group, given as indices, in this `window` of the matrix and in all of the small state.
    /// `hands.seen` receives the rows of the matrix.
    pub fn rebuild(
        mut self,
        group: &impl GroupComm,
        coder: Coder,
        window: Window,
        lost: &[usize],
        Hands { panel_threads, seen }: Hands,
        position: usize,
    ) {
        let between = || {
            heartbeat::beat();
            hit(Point::RebuildBatch, position)
        };
        let hands = Hands { panel_threads: &mut *panel_threads, seen };
        let matrix = coder.rebuild(group, &mut self.matrix, window, lost, hands, between);
        let (window, hands) = (self.state.whole(), Hands { panel_threads, seen: None });
        let coder = coder.for_any_bits();
        let state = coder.rebuild(group, &mut self.state, window, lost, hands, between);
        assert!(matrix && state, "groups with too many losses are refused before a rebuild");
    }
}

/// Digests of a checkpoint, which begin as the digests of an earlier checkpoint. While threads encode or rebuild rows, they store
/// the digests of changed data.
pub struct Digests<'a> {
    buffers: Buffers,
    tables: &'a [AtomicU64],
    corner: Corner,
    parity_rows: usize,
    /// First column of parity that has changed.
    first: usize,
}

impl<'a> Digests<'a> {
    /// Starts from tables that contain the digests of the previous checkpoint.
    fn new(buffers: Buffers, tables: &'a mut [u64], since: &Since) -> Self {
        // SAFETY: an atomic word has the layout of a word, and no other code accesses these words during this borrow.
        let tables = unsafe { &*(std::ptr::from_mut(tables) as *const [AtomicU64]) };
        Self {
            buffers,
            tables,
            corner: since.corner,
            parity_rows: since.parity.rows.min(buffers.parity_rows),
            first: buffers.pitch - since.parity.width,
        }
    }

    /// Stores the digests of those tiles of row `line` that end within `columns`. The row's digests begin at index `table`.
    fn note(&self, line: &[u64], table: usize, columns: Range<usize>) {
        // The last tile ends with the row, and may be shorter than the others.
        let before = |column: usize| {
            if column == line.len() { column.div_ceil(TILE_WORDS) } else { column / TILE_WORDS }
        };
        for tile in before(columns.start)..before(columns.end) {
            self.tables[table + tile].store(digest(tile_of(line, tile)), Ordering::Relaxed);
        }
    }

    /// Stores the digests of columns that the code has just read or written, if these columns have changed. Several threads call
    /// this, with different columns.
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

/// Returns the region of checkpoint `number`: `odd` if the number is odd, otherwise `even`. If `odd` is None, always `even`.
fn of_checkpoint<'a>(
    number: u64,
    even: &'a mut Option<Region>,
    odd: &'a mut Option<Region>,
) -> Option<&'a mut Region> {
    match odd {
        Some(odd) if number % 2 == 1 => Some(odd),
        _ => even.as_mut(),
    }
}

fn tile_of(line: &[u64], tile: usize) -> &[u64] {
    let start = tile * TILE_WORDS;
    &line[start..(start + TILE_WORDS).min(line.len())]
}

/// Copies rows for which `wanted` returns true, from row and column `from` to the end, with all threads. Calls `half` midway.
fn copy_rows(
    buffers: &Buffers,
    from: Corner,
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
