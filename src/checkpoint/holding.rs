//! One position's memory: its parts, which copy is which, and the digests that vouch for them.
//!
//! Beside each epoch's small state lie tables with one digest for each row and tile of data and of
//! parity; the header's root is the digest over state and tables. So a save digests again only what
//! it changed, and a restore notices any flipped bit of what it is about to trust.

use super::placement::Found;
use super::plan::{Buffers, Corner, STATE_ROW_WORDS, TILE_WORDS};
use super::protocol::Method;
use crate::faults::{Sabotage, sabotaged};
use crate::memory::bus::Watched;
use crate::memory::header::{Doing, HEAD_BYTES, Head, Header, HeaderFault};
use crate::memory::ledger::Ledger;
use crate::memory::{Depot, Hold, MemoryError, Named, Part, Region};
use crate::parity::digest::digest;
use crate::parity::exchange::{Share, Window};
use crate::parity::stripes::Role;
use crate::pulse;

/// What this node holds of a job, with headers that can be believed.
pub fn survey(depot: &Depot) -> Vec<(Found, Header)> {
    depot
        .positions()
        .into_iter()
        .filter_map(|position| {
            let header = Head::new(depot.peek(position, Part::Head).ok()?).ok()?.read().ok()?;
            let found = Found {
                position: position as usize,
                run: header.id.run,
                joined: header.claim.joined,
            };
            (header.id.position == position).then_some((found, header))
        })
        .collect()
}

/// The head of a position that is ours, and what it says.
pub struct OpenHead {
    pub head: Head,
    pub header: Result<Header, HeaderFault>,
}

/// Looks into the head of a position that was taken, if there is one.
pub fn open_head(hold: &Hold, position: usize) -> Result<Option<OpenHead>, MemoryError> {
    if hold.is_vacant() {
        return Ok(None);
    }
    Ok(Head::new(hold.head()?).ok().map(|head| {
        let header = match head.read() {
            Ok(header) if header.id.position as usize != position => Err(HeaderFault::Damaged),
            other => other,
        };
        OpenHead { head, header }
    }))
}

/// All parts of a position, A apart: that is the solver's between saves.
#[derive(Debug)]
pub struct Holding {
    pub head: Head,
    pub done: Ledger,
    /// The copy; None where there is none in memory (disk).
    b: Option<Region>,
    /// The checksum; None where nobody makes one.
    c: Option<Region>,
    /// The checksum of odd epochs: D (self), F (double). C is then that of even ones.
    d: Option<Region>,
    /// The second copy of method double.
    e: Option<Region>,
    s: Region,
    pub buffers: Buffers,
    /// Every part but the head, with A.
    named: Vec<Named>,
    /// A fault in any of them is told by name.
    watched: Watched,
}

/// The parts of a committed epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// With the matrix.
    pub data: Part,
    /// With its checksum.
    pub check: Part,
    /// Its words in `S`: small state, digests of data, digests of parity.
    pub place: std::ops::Range<usize>,
}

/// What was found when names were looked after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renamed {
    /// Parts whose names were gone.
    pub missing: Vec<Part>,
    /// The workspace waits for the next save.
    pub later: bool,
    /// Why the memory could not be put under its names again.
    pub trouble: Option<String>,
}

/// Results of finished tests take little; a sweep of some hundred tests fits.
pub(super) const LEDGER_BYTES: usize = 256 * 1024;

impl Holding {
    /// Opens memory that a header vouches for; an error means it is not what the header says.
    pub fn open(
        depot: &Depot,
        position: usize,
        head: Head,
        buffers: Buffers,
    ) -> Result<(Self, Region), MemoryError> {
        Self::gather(depot, position, head, buffers, |part, bytes| {
            depot.open_sized(position as u32, part, bytes)
        })
    }

    /// Makes all parts anew, in place of whatever has these names; results of finished tests stay.
    pub fn create(
        depot: &Depot,
        position: usize,
        buffers: Buffers,
        hold: &mut Hold,
    ) -> Result<(Self, Region), MemoryError> {
        let number = position as u32;
        // Whatever the head says is void before what it speaks of goes.
        let head = Head::new(hold.renew(HEAD_BYTES)?).expect("made with the length of a head");
        for part in Part::ALL {
            if !matches!(part, Part::Head | Part::Done) {
                depot.unlink(number, part);
            }
        }
        // What follows may take long.
        head.tick(Doing::Starting, 0);
        head.take_pulse();
        let made = Self::gather(depot, position, head, buffers, |part, bytes| {
            depot.create(number, part, bytes)
        });
        if made.is_err() {
            // What was had is of no use without the rest, and others may need the room.
            Self::discard(depot, position, hold);
        }
        made
    }

    /// Removes memory just made that cannot be used, and a place for results that holds none. The head goes with
    /// its lock.
    pub fn discard(depot: &Depot, position: usize, hold: &mut Hold) {
        let number = position as u32;
        let results = depot.peek(number, Part::Done).map(|region| Ledger::new(region).entries());
        let empty = results.is_ok_and(|entries| entries.is_empty());
        for part in Part::ALL {
            if part != Part::Head && (part != Part::Done || empty) {
                depot.unlink(number, part);
            }
        }
        hold.give_up();
    }

    fn gather(
        depot: &Depot,
        position: usize,
        head: Head,
        buffers: Buffers,
        get: impl Fn(Part, usize) -> Result<Region, MemoryError>,
    ) -> Result<(Self, Region), MemoryError> {
        let number = position as u32;
        let done = match depot.open(number, Part::Done) {
            // Whoever made the name died before it had made the room, or somebody cut it off.
            Ok(region) if region.bytes().len() < LEDGER_BYTES => {
                drop(region);
                depot.unlink(number, Part::Done);
                depot.create(number, Part::Done, LEDGER_BYTES)?
            }
            Ok(region) => region,
            Err(MemoryError::Missing(_)) => depot.create(number, Part::Done, LEDGER_BYTES)?,
            Err(error) => return Err(error),
        };
        let mut had = Vec::new();
        for (part, bytes) in buffers.parts() {
            let mut region = get(part, bytes)?;
            // The first save would otherwise take a fault for each page, as part of its time.
            region.populate(&depot.name(position as u32, part))?;
            had.push((part, region));
        }
        let parts = had.iter().map(|(part, region)| (*part, region)).chain([(Part::Done, &done)]);
        let named: Result<Vec<Named>, _> =
            parts.map(|(part, region)| Named::new(part, region)).collect();
        let named = named.map_err(|source| MemoryError::Os {
            what: "cannot keep open",
            path: depot.name(position as u32, Part::A).into(),
            source,
        })?;
        let watched = head.watch(position as u32, &named);
        let mut take = |wanted: Part| {
            let at = had.iter().position(|(part, _)| *part == wanted)?;
            Some(had.swap_remove(at).1)
        };
        let always = "parts() lists A and S for every method";
        let a = take(Part::A).expect(always);
        Ok((
            Self {
                head,
                done: Ledger::new(done),
                b: take(Part::B),
                c: take(Part::C),
                s: take(Part::S).expect(always),
                d: take(Part::D).or_else(|| take(Part::F)),
                e: take(Part::E),
                buffers,
                named,
                watched,
            },
            a,
        ))
    }

    /// Looks whether all parts can still be found by their names, and puts those that cannot under them again; A
    /// only where it is `frozen`. What was found and what could not be put right, None if all is well.
    pub fn look_after_names(
        &mut self,
        depot: &Depot,
        position: usize,
        hold: &mut Hold,
        frozen: bool,
    ) -> Option<Renamed> {
        let mut told = Renamed::default();
        if !hold.is_named() {
            told.missing.push(Part::Head);
            match hold.name_again(self.head.region()).map(Head::new) {
                Ok(Ok(head)) => {
                    self.head = head;
                    self.head.take_pulse();
                    self.watched = self.head.watch(position as u32, &self.named);
                }
                Ok(Err(fault)) => told.trouble = Some(fault.to_string()),
                Err(error) => told.trouble = Some(error.to_string()),
            }
        }
        for named in &mut self.named {
            if depot.has_name(position as u32, named) {
                continue;
            }
            told.missing.push(named.part);
            if named.part == Part::A && !frozen {
                told.later = true;
                continue;
            }
            // SAFETY: the parts are mapped as long as this is, and so is A while the test runs; only saves write
            // into them, and A is frozen.
            if let Err(error) = unsafe { depot.name_again(position as u32, named) } {
                told.trouble = Some(error.to_string());
            }
        }
        (!told.missing.is_empty()).then_some(told)
    }

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

    fn slot_range(&self, epoch: u64) -> std::ops::Range<usize> {
        let words = self.buffers.slot_words();
        let start = (epoch % self.buffers.places() as u64) as usize * words;
        start..start + words
    }

    fn slot(&mut self, epoch: u64) -> &mut [u64] {
        let range = self.slot_range(epoch);
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

    /// Where a committed epoch lies until the next flush; where there is no copy, the one that is being stored: in A, frozen.
    pub fn committed_parts(&self, epoch: u64) -> Committed {
        let odd = epoch % 2 == 1;
        let data = match &self.b {
            None => Part::A,
            Some(_) if odd && self.e.is_some() => Part::E,
            Some(_) => Part::B,
        };
        let check = match self.buffers.method {
            Method::SelfCheckpoint if odd => Part::D,
            Method::Double if odd => Part::F,
            _ => Part::C,
        };
        Committed { data, check, place: self.slot_range(epoch) }
    }

    /// So many words that nobody needs before the first save, for whatever a start puts together; None if there are fewer.
    pub fn spare(&mut self, words: usize) -> Option<&mut [u64]> {
        self.b.as_mut().or(self.c.as_mut())?.words_mut().get_mut(..words)
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
        let slot = self.slot_range(epoch);
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
        pulse::beat();
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
