//! One position's memory: its parts, how they are had, and that they keep their names. What lies in them is `saved`.

use super::placement::Found;
use super::plan::Buffers;
use super::protocol::Trace;
use super::saved::Saved;
use crate::shm::bus::Watched;
use crate::shm::header::{Doing, HEAD_BYTES, Head, Header, HeaderFault, Stage};
use crate::shm::ledger::Ledger;
use crate::shm::{Depot, Hold, MemoryError, Named, Part, Region};

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
                vacant: header.claim.stage == Stage::Vacant,
                trace: Trace::of(&header.claim),
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
    /// None while a helper has it.
    saved: Option<Saved>,
    pub buffers: Buffers,
    /// Every part but the head, with A.
    named: Vec<Named>,
    /// A fault in any of them is told by name.
    watched: Watched,
}

/// What was found when names were looked after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renamed {
    /// Parts whose names were gone.
    pub missing: Vec<Part>,
    /// Those of them that wait: the workspace for the next save, others for a helper that reads them.
    pub later: Vec<Part>,
    /// Why the memory could not be put under its names again.
    pub trouble: Option<String>,
}

/// Room for results of finished tests to begin with: those of some sixty to a hundred. More is made when they need it.
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
        // Others have these results, too; what cannot be read is taken out of use.
        if let Err(MemoryError::Damaged { .. } | MemoryError::NotOurs { .. }) =
            depot.open(number, Part::Done)
        {
            depot.unlink(number, Part::Done);
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
                saved: Some(Saved {
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

    /// Makes room for more results, so many bytes at least; those that are there stay.
    pub fn extend_results(
        &mut self,
        depot: &Depot,
        position: usize,
        more: usize,
    ) -> Result<(), MemoryError> {
        let number = position as u32;
        let done = self.named.iter_mut().find(|named| named.part == Part::Done);
        let done = done.expect("results are one of the parts");
        let name = || depot.name(number, Part::Done);
        // What lies under the name may be somebody else's by now.
        if !depot.has_name(number, done) {
            return Err(MemoryError::Missing(name()));
        }
        let there = self.done.bytes();
        let len = there + there.max(more.next_multiple_of(LEDGER_BYTES));
        let region = depot.extend(number, Part::Done, len)?;
        *done = Named::new(Part::Done, &region).map_err(|source| MemoryError::Os {
            what: "cannot keep open",
            path: name().into(),
            source,
        })?;
        self.watched = self.head.watch(number, &self.named);
        self.done = Ledger::new(region);
        Ok(())
    }

    /// What was saved.
    pub fn saved(&mut self) -> &mut Saved {
        self.saved.as_mut().expect("no helper has it")
    }

    /// All of it, for a helper. Nobody else reads or writes it until it is given back.
    pub fn lend(&mut self) -> Saved {
        self.saved.take().expect("one helper at a time")
    }

    pub fn take_back(&mut self, saved: Saved) {
        self.saved = Some(saved);
    }

    /// Looks whether all parts can still be found by their names, and puts those that cannot under them again; A
    /// only where it is `frozen`, and none that a helper is `reading`: it looks at the file whose room the new one takes. What
    /// was found and what could not be put right, None if all is well.
    pub fn look_after_names(
        &mut self,
        depot: &Depot,
        position: usize,
        hold: &mut Hold,
        frozen: bool,
        reading: &[Part],
    ) -> Option<Renamed> {
        // Where a helper writes nothing can be moved: the next look, after it or before the next save, mends all.
        self.saved.as_ref()?;
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
            if named.part == Part::A && !frozen || reading.contains(&named.part) {
                told.later.push(named.part);
                continue;
            }
            // SAFETY: the parts are mapped as long as this is, and so is A while the test runs; only saves write
            // into them, A is frozen, and no helper is amid any of them.
            if let Err(error) = unsafe { depot.name_again(position as u32, named) } {
                told.trouble = Some(error.to_string());
            }
        }
        (!told.missing.is_empty()).then_some(told)
    }
}
