//! What a position has saved: its copies of the matrix, their checksums, the small states, and the digests that vouch for
//! them.
//!
//! Beside each epoch's small state lie tables with one digest for each row and tile of data and of
//! parity; the header's root is the digest over state and tables. So a save digests again only what
//! it changed, and a restore notices any flipped bit of what it is about to trust.
//!
//! It is apart from the rest of a position's memory (`holding`) since a helper may have all of it while the rank computes.

use super::plan::{Buffers, Corner, STATE_ROW_WORDS, TILE_WORDS};
use super::protocol::Method;
use crate::faults::{Sabotage, sabotaged};
use crate::memory::Region;
use crate::parity::digest::digest;
use crate::parity::exchange::Coder;
use crate::parity::stripes::Role;
use crate::parity::{Encode, GroupComm, Share, Window};
use crate::pulse;

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
    /// `a` is the workspace when the epoch is being sealed, None when the committed copy is meant.
    pub fn with_shares(
        &mut self,
        epoch: u64,
        a: Option<&mut [u64]>,
        mut code: impl FnMut(&mut Share, bool),
    ) {
        let buffers = self.buffers;
        let slot = self.buffers.slot_range(epoch);
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
        let (parity, state_parity) = check[..buffers.checksum_words()].split_at_mut(parity_words);
        let mut matrix = Share {
            data,
            rows: buffers.rows,
            cols: buffers.cols,
            ld: buffers.ld,
            parity,
            pitch: buffers.pitch,
        };
        code(&mut matrix, false);
        let mut state = Share {
            data: &mut self.s.words_mut()[slot][..state_words],
            rows: buffers.state_rows,
            cols: STATE_ROW_WORDS,
            ld: STATE_ROW_WORDS,
            parity: state_parity,
            pitch: STATE_ROW_WORDS,
        };
        code(&mut state, true);
    }

    /// Encodes the checksum of `epoch` from the frozen matrix `a`, or where there is none from its copy, and takes the digests
    /// of what comes by. `between` is called now and then.
    pub fn encode(
        &mut self,
        group: &(impl GroupComm + ?Sized),
        Coding { coder, how, window }: Coding,
        epoch: u64,
        a: Option<&mut [u64]>,
        digests: &mut Digests,
        mut between: impl FnMut(),
    ) {
        let state_window = self.state_window();
        self.with_shares(epoch, a, |share, is_state| {
            let coder = coder.suited(is_state);
            let window = if is_state { state_window } else { window };
            let see = |share: &Share, role| {
                if !is_state {
                    digests.see(share, role);
                }
            };
            coder.encode(group, how, share, window, see, &mut between);
        });
    }

    /// The window that covers all of the small state, for every member.
    pub fn state_window(&self) -> Window {
        Window { rows: self.buffers.state_rows, width: STATE_ROW_WORDS }
    }

    /// Copies the part of A that can have changed to this epoch's copy. `half` is called midway.
    pub fn copy_in(&mut self, epoch: u64, a: &[u64], from: Corner, half: impl FnMut()) {
        let buffers = self.buffers;
        copy_rows(&buffers, a, self.copy(epoch), from, |_| true, half);
    }

    /// Copies this epoch's whole copy to A, rows that A has `taken` already apart.
    pub fn copy_out(&mut self, epoch: u64, a: &mut [u64], taken: &[bool], half: impl FnMut()) {
        let buffers = self.buffers;
        let from = Corner { row: 0, col: 0 };
        copy_rows(&buffers, self.copy(epoch), a, from, |row| !taken[row], half);
    }

    /// Brings the checksum of `epoch` up to the epoch before it, where that one differs from the last but
    /// one but the coming encoding does not write: `stale` is what the two can differ in, `coming` what is
    /// about to be encoded.
    pub fn carry_checksum(&mut self, epoch: u64, stale: Reach, coming: Reach) {
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
        // Rows from the first, columns from the right, as encoding has them.
        for row in 0..stale.rows.min(parity_rows) {
            let start = row * pitch;
            let kept = if row < coming.rows { coming.width } else { 0 };
            pulse::beat();
            if stale.width > kept {
                let range = start + pitch - stale.width..start + pitch - kept;
                to[range.clone()].copy_from_slice(&from[range]);
            }
        }
    }

    /// The digests of epoch `before` (of nothing, if there is none), to be brought up to date while
    /// rows are at hand. Data from `from` on and parity in the given rows and width are new; everything
    /// else is as in that epoch.
    pub fn digests(
        &mut self,
        before: Option<u64>,
        from: Corner,
        parity_rows: usize,
        width: usize,
    ) -> Digests {
        let buffers = self.buffers;
        let tables = match before {
            Some(before) => self.slot(before)[buffers.state_words()..].to_vec(),
            None => vec![0; buffers.slot_words() - buffers.state_words()],
        };
        Digests {
            buffers,
            tables,
            from,
            parity_rows: parity_rows.min(buffers.parity_rows),
            first: buffers.pitch - width,
        }
    }

    /// Puts the digests beside the small state of `epoch`, whose checksum is complete, and returns the
    /// root.
    pub fn seal_digests(&mut self, epoch: u64, mut digests: Digests) -> u64 {
        let buffers = self.buffers;
        let check = self.check(epoch);
        let tail = digest(&check[buffers.parity_words()..]);
        *digests.tables.last_mut().expect("slot_words() counts it") = tail;
        let slot = self.slot(epoch);
        slot[buffers.state_words()..].copy_from_slice(&digests.tables);
        digest(slot)
    }

    /// Whether this epoch's data, checksum, state and digests are what the root says. With `a`, data
    /// is in the workspace; else in the committed copy.
    pub fn verify(&mut self, epoch: u64, root: u64, a: Option<&[u64]>) -> bool {
        if sabotaged(Sabotage::NoDigest) {
            return true;
        }
        let buffers = self.buffers;
        let slot = self.slot(epoch).to_vec();
        if digest(&slot) != root {
            return false;
        }
        let tables = &slot[buffers.state_words()..];
        let (data_table, rest) = tables.split_at(buffers.rows * buffers.data_tiles());
        let (parity_table, tail) = rest.split_at(buffers.parity_rows * buffers.parity_tiles());
        let data_fits = {
            let data = match a {
                Some(a) => a,
                None => &*self.copy(epoch),
            };
            (0..buffers.rows).all(|row| {
                pulse::beat();
                let line = &data[buffers.row(row)];
                (0..buffers.data_tiles()).all(|tile| {
                    data_table[row * buffers.data_tiles() + tile] == digest(tile_of(line, tile))
                })
            })
        };
        let check = self.check(epoch);
        data_fits
            && (0..buffers.parity_rows).all(|row| {
                pulse::beat();
                let line = &check[row * buffers.pitch..][..buffers.pitch];
                (0..buffers.parity_tiles()).all(|tile| {
                    parity_table[row * buffers.parity_tiles() + tile] == digest(tile_of(line, tile))
                })
            })
            && tail[0] == digest(&check[buffers.parity_words()..])
    }
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

/// Digests of data and parity on their way from one epoch to the next.
pub struct Digests {
    buffers: Buffers,
    tables: Vec<u64>,
    from: Corner,
    parity_rows: usize,
    /// First column of parity that is new.
    first: usize,
}

impl Digests {
    /// Takes the digests of all data that are new, where no code comes by.
    pub fn see_data(&mut self, a: &[u64]) {
        for row in self.from.row..self.buffers.rows {
            pulse::beat();
            let range = self.buffers.row(row);
            self.note(&a[range], row * self.buffers.data_tiles(), self.from.col);
        }
    }

    fn note(&mut self, line: &[u64], table: usize, first: usize) {
        for tile in first / TILE_WORDS..line.len().div_ceil(TILE_WORDS) {
            self.tables[table + tile] = digest(tile_of(line, tile));
        }
    }

    /// Takes the digests of a row that the code has just read or written, if it is new.
    pub fn see(&mut self, share: &Share, role: Role) {
        let buffers = &self.buffers;
        let (data_tiles, parity_tiles) = (buffers.data_tiles(), buffers.parity_tiles());
        let (line, table, first) = match role {
            Role::Data(row) => {
                let Some(row) = buffers.rows.checked_sub(row + 1).filter(|&r| r >= self.from.row)
                else {
                    return;
                };
                (&share.data[buffers.row(row)], row * data_tiles, self.from.col)
            }
            Role::Parity(row) if row < self.parity_rows => (
                &share.parity[row * buffers.pitch..][..buffers.pitch],
                buffers.rows * data_tiles + row * parity_tiles,
                self.first,
            ),
            Role::Parity(_) => return,
        };
        self.note(line, table, first);
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

/// Copies what of a corner lies in rows that are `wanted`. `half` is called midway.
fn copy_rows(
    buffers: &Buffers,
    source: &[u64],
    target: &mut [u64],
    from: Corner,
    wanted: impl Fn(usize) -> bool,
    mut half: impl FnMut(),
) {
    let middle = from.row + (buffers.rows - from.row) / 2;
    for row in from.row..buffers.rows {
        if row == middle {
            half();
        }
        pulse::beat();
        if wanted(row) {
            let range = buffers.row(row).start + from.col..buffers.row(row).end;
            target[range.clone()].copy_from_slice(&source[range]);
        }
    }
}
