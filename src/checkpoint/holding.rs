//! Position memory: creates and opens the parts of one position, and restores their names if they are removed. `saved` handles
//! the contents.

use super::placement::Found;
use super::plan::Buffers;
use super::protocol::Trace;
use super::saved::Saved;
use crate::shm::bus::Watched;
use crate::shm::header::{Doing, HEAD_BYTES, Head, Header, HeaderFault, Stage};
use crate::shm::ledger::Ledger;
use crate::shm::{Hold, MemoryError, MemoryStore, Named, Part, Region};

/// Lists the positions of a job on this node that have a valid header, with the header.
pub fn survey(memory_store: &MemoryStore) -> Vec<(Found, Header)> {
    memory_store
        .positions()
        .into_iter()
        .filter_map(|position| {
            let header =
                Head::new(memory_store.peek(position, Part::Head).ok()?).ok()?.read().ok()?;
            let found = Found {
                position: position as usize,
                run: header.id.run,
                vacant: header.claim.stage == Stage::Vacant,
                trace: Trace::of(&header.claim),
            };
            (header.id.position == position).then_some((found, header))
        })
        .collect()
}

/// Header of a position that this process has locked, and its contents.
pub struct OpenHead {
    pub head: Head,
    pub header: Result<Header, HeaderFault>,
}

/// Opens the header of a locked position. Returns None if the position has no header.
pub fn open_head(hold: &Hold) -> Result<Option<OpenHead>, MemoryError> {
    if hold.is_vacant() {
        return Ok(None);
    }
    Ok(Head::new(hold.head()?).ok().map(|head| {
        let header = match head.read() {
            Ok(header) if header.id.position != hold.position => Err(HeaderFault::Damaged),
            other => other,
        };
        OpenHead { head, header }
    }))
}

/// All parts of a position except A, which belongs to the solver between saves.
#[derive(Debug)]
pub struct Holding {
    pub head: Head,
    pub done: Ledger,
    /// Memory of the checkpoints. None while a helper uses this memory.
    saved: Option<Saved>,
    pub buffers: Buffers,
    /// Names of all parts except the header. Includes part A.
    named: Vec<Named>,
    /// Registration of the parts, so that a memory fault is reported with the name of the part.
    watched: Watched,
}

/// Result of a check of the names of all parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renamed {
    /// Parts whose names were missing.
    pub missing: Vec<Part>,
    /// Missing parts whose names are restored later. Part A is restored before the next save. A part that a helper reads is
    /// restored after the helper has ended.
    pub later: Vec<Part>,
    /// Reason why names could not be restored. None if all names are restored or will be restored later.
    pub trouble: Option<String>,
}

/// Initial size of the memory for results of finished tests, enough for 60 to 100 results. If further results need room, the
/// memory is extended.
pub(super) const LEDGER_BYTES: usize = 256 * 1024;

impl Holding {
    /// Opens the memory that a valid header describes. Returns its parts, and part A separately. Returns an error if the memory
    /// does not match the header.
    pub fn open(hold: &Hold, head: Head, buffers: Buffers) -> Result<(Self, Region), MemoryError> {
        Self::gather(hold, head, buffers, |part, bytes| {
            hold.memory_store.open_sized(hold.position, part, bytes)
        })
    }

    /// Creates all parts and replaces existing parts. Returns the parts, and part A separately. Results of finished tests stay.
    pub fn create(hold: &mut Hold, buffers: Buffers) -> Result<(Self, Region), MemoryError> {
        // The header is invalidated before the memory that it describes is removed.
        let head = Head::new(hold.renew(HEAD_BYTES)?)
            .expect("the memory was created with the length of a header");
        let Hold { memory_store, position, .. } = &*hold;
        for part in Part::ALL {
            if !matches!(part, Part::Head | Part::Done) {
                memory_store.unlink(*position, part);
            }
        }
        // Other positions have these results, too. So an unreadable part is removed.
        if let Err(MemoryError::Damaged { .. } | MemoryError::NotOurs { .. }) =
            memory_store.open(*position, Part::Done)
        {
            memory_store.unlink(*position, Part::Done);
        }
        // Creating the other parts may take long.
        head.tick(Doing::Starting, 0);
        head.take_pulse();
        let made = Self::gather(hold, head, buffers, |part, bytes| {
            memory_store.create(*position, part, bytes)
        });
        if made.is_err() {
            // An incomplete set of parts is useless, and other positions may need the memory.
            Self::discard(hold);
        }
        made
    }

    /// Removes a position's memory that is of no use: all parts, and the header when the lock is released. The part with results
    /// of finished tests stays, unless it is empty.
    pub fn discard(hold: &mut Hold) {
        let Hold { memory_store, position, .. } = &*hold;
        let results = memory_store.peek(*position, Part::Done).map(Ledger::new);
        let empty = results.is_ok_and(|ledger| ledger.entries().is_empty());
        for part in Part::ALL {
            if part != Part::Head && (part != Part::Done || empty) {
                memory_store.unlink(*position, part);
            }
        }
        hold.give_up();
    }

    fn gather(
        hold: &Hold,
        head: Head,
        buffers: Buffers,
        get: impl Fn(Part, usize) -> Result<Region, MemoryError>,
    ) -> Result<(Self, Region), MemoryError> {
        let (memory_store, number) = (&hold.memory_store, hold.position);
        let done = Self::open_results(memory_store, number)?;
        let mut had = Vec::new();
        for (part, bytes) in buffers.parts() {
            let mut region = get(part, bytes)?;
            // If the pages were not allocated here, the first save would pay a page fault for each.
            region.populate(&memory_store.name(number, part))?;
            had.push((part, region));
        }
        let parts = had.iter().map(|(part, region)| (*part, region)).chain([(Part::Done, &done)]);
        let named: Vec<Named> = parts
            .map(|(part, region)| memory_store.named(number, part, region))
            .collect::<Result<_, _>>()?;
        let watched = Watched::parts(&head, number, &named);
        let mut take = |wanted: Part| {
            let at = had.iter().position(|(part, _)| *part == wanted)?;
            Some(had.swap_remove(at).1)
        };
        let always = "parts() lists A (the matrix) and S (the small state) for every method";
        let a = take(Part::A).expect(always);
        Ok((
            Self {
                head,
                done: Ledger::new(done),
                saved: Some(Saved {
                    pins: Vec::new(),
                    b: take(Part::B),
                    c: take(Part::C),
                    s: take(Part::S).expect(always),
                    d: take(Part::D).or_else(|| take(Part::F)),
                    e: take(Part::E),
                    buffers,
                }),
                buffers,
                named,
                watched,
            },
            a,
        ))
    }

    /// Opens the memory for results, or creates it.
    fn open_results(memory_store: &MemoryStore, number: u32) -> Result<Region, MemoryError> {
        match memory_store.open(number, Part::Done) {
            Ok(region) if region.bytes().len() >= LEDGER_BYTES => return Ok(region),
            // The creator of the name died before it allocated the memory, or the file was cut short.
            Ok(region) => {
                drop(region);
                memory_store.unlink(number, Part::Done);
            }
            Err(MemoryError::Missing(_)) => {}
            Err(error) => return Err(error),
        }
        memory_store.create(number, Part::Done, LEDGER_BYTES)
    }

    /// Extends the memory for results of finished tests by at least `more` bytes. Existing results stay.
    pub fn extend_results(&mut self, hold: &Hold, more: usize) -> Result<(), MemoryError> {
        let (memory_store, number) = (&hold.memory_store, hold.position);
        let done = self.named.iter_mut().find(|named| named.part == Part::Done);
        let done = done.expect("results are one of the parts");
        // By now the name may belong to a file of another owner.
        if !memory_store.has_name(number, done) {
            return Err(MemoryError::Missing(memory_store.name(number, Part::Done)));
        }
        let there = self.done.bytes();
        let len = there + there.max(more.next_multiple_of(LEDGER_BYTES));
        let region = memory_store.extend(number, Part::Done, len)?;
        *done = memory_store.named(number, Part::Done, &region)?;
        self.watched = Watched::parts(&self.head, number, &self.named);
        self.done = Ledger::new(region);
        Ok(())
    }

    /// Memory of the checkpoints. A helper must not use this memory now.
    pub fn saved(&mut self) -> &mut Saved {
        self.saved.as_mut().expect("no helper has it")
    }

    /// Lends all memory of the checkpoints to a helper. No other thread reads or writes it until it is returned.
    pub fn lend(&mut self) -> Saved {
        self.saved.take().expect("one helper at a time")
    }

    pub fn take_back(&mut self, saved: Saved) {
        self.saved = Some(saved);
    }

    /// Checks that all parts can be found by their names, and restores missing names. Restores the name of A only if A is
    /// `frozen`. Does not restore a part that a helper is `reading`: the helper reads the old file, and restoring empties that
    /// file. Returns the missing names and problems. Returns None if no name is missing, or if a helper uses the memory of the
    /// checkpoints.
    pub fn look_after_names(
        &mut self,
        hold: &mut Hold,
        frozen: bool,
        reading: &[Part],
    ) -> Option<Renamed> {
        // While a helper writes, no part can be moved. The next check, after the helper has ended or before the next save,
        // restores all names.
        self.saved.as_ref()?;
        let mut told = Renamed::default();
        if !hold.is_named() {
            told.missing.push(Part::Head);
            match hold.name_again(self.head.region()).map(Head::new) {
                Ok(Ok(head)) => {
                    self.head = head;
                    self.head.take_pulse();
                    self.watched = Watched::parts(&self.head, hold.position, &self.named);
                }
                Ok(Err(fault)) => told.trouble = Some(fault.to_string()),
                Err(error) => told.trouble = Some(error.to_string()),
            }
        }
        for named in &mut self.named {
            if hold.memory_store.has_name(hold.position, named) {
                continue;
            }
            told.missing.push(named.part);
            if named.part == Part::A && !frozen || reading.contains(&named.part) {
                told.later.push(named.part);
                continue;
            }
            // SAFETY: the parts are mapped as long as this value lives, and so is A while the test runs; only saves write into
            // them, A is frozen, and no helper uses any of them.
            if let Err(error) = unsafe { hold.memory_store.name_again(hold.position, named) } {
                told.trouble = Some(error.to_string());
            }
        }
        (!told.missing.is_empty()).then_some(told)
    }
}
