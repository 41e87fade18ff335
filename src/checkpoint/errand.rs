//! What a helper is to do on storage.
//!
//! A helper looks at its position's memory by name, as whoever looks from outside, so the rank's own mappings are its own affair.
//! Before a file gets its name the header is read again: had the rank gone on to change what the file was made from, or had the
//! position begun anew, it would not say any more what it said when the errand was given.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::plan::Buffers;
use crate::base::faults::{Point, hit};
use crate::checkpoint::storage::names::Key;
use crate::checkpoint::storage::shelf::Claimed;
use crate::checkpoint::storage::writing::{Flow, Over, Stopped, write_position};
use crate::checkpoint::storage::{About, Check, Counting, Front, Shelf, Sight};
use crate::parity::digest::digest;
use crate::shm::header::{Claim, Head};
use crate::shm::{Depot, Part};

/// One thing to do, for the rank of a position.
pub(super) struct Errand {
    pub(super) shelf: Shelf,
    pub(super) depot: Depot,
    pub(super) position: u32,
    pub(super) what: What,
}

pub(super) enum What {
    /// To bring what memory holds to storage.
    Write(Box<Write>),
    /// To say that an epoch is whole, and remove what is older.
    List(List),
    /// To give up the epoch that is to be written over, and remove all but that and those to keep.
    MakeRoom {
        over: Option<Key>,
        keep: Vec<Key>,
    },
    Settle(Box<Settle>),
    /// To leave word that a start goes on from this epoch, and to tell how many did before it.
    SetOut(Key),
    /// To remove this position's part of an epoch that comes to nothing.
    Withdraw(Key),
}

/// To make DIR this start's, and remove what lies there of epochs that were never completed, but those that are whole elsewhere
/// and the next one, and results that do not count; where DIR is the node's own, to list what lies there of the epoch that the
/// run goes on from, or that has got furthest. At last, unless two are wanted, to remove what is whole and outdated.
pub(super) struct Settle {
    /// The run that begins or goes on, and its test.
    pub(super) run: u128,
    pub(super) test: u32,
    /// The epoch that it goes on from, if it is one on storage.
    pub(super) from: Option<About>,
    /// All that are known to be whole, by a manifest on whatever node.
    pub(super) whole: Vec<About>,
    /// One that others may have begun already.
    pub(super) next: Option<Key>,
    /// DIR is the node's own.
    pub(super) own: bool,
    pub(super) two: bool,
    pub(super) results: Option<Counting>,
}

impl Settle {
    /// By the helper of position `who`.
    fn run_at(&self, shelf: &Shelf, who: usize, flow: &Flow) -> Result<(), Stopped> {
        // First the room, which the claim may lack.
        let keep: Vec<Key> = self.whole.iter().map(About::key).chain(self.next).collect();
        shelf.tidy(&keep, who, flow)?;
        let claimed = shelf.claim().map_err(failed)?;
        // What this launch itself has left there counts.
        if let Some(counting) = &self.results
            && (counting.first || claimed == Claimed::Now)
        {
            shelf.keep_results(&counting.results, flow)?;
        }
        if self.own {
            let of_test = self.whole.iter().filter(|about| about.test == self.test);
            let furthest = of_test.max_by_key(|about| about.worth(self.run));
            if let Some(about) = self.from.as_ref().or(furthest) {
                shelf.list_too(about, flow)?;
            }
        }
        match &self.from {
            _ if self.two => Ok(()),
            Some(from) => shelf.outdate_but(from.key(), self.run, who, flow),
            None => shelf.outdate(&self.whole, self.run, who, flow),
        }
    }
}

/// What it takes to write one position's file.
pub(super) struct Write {
    pub(super) about: About,
    /// What the position's header says from beginning to end.
    pub(super) claim: Claim,
    pub(super) buffers: Buffers,
    pub(super) data: Part,
    pub(super) vouch: Range<usize>,
    /// The checksum, where it goes along.
    pub(super) check: Option<(Part, Check)>,
    /// What it is written over.
    pub(super) over: Option<Over>,
}

/// What it takes to write a manifest.
pub(super) struct List {
    pub(super) about: About,
    pub(super) sight: Sight,
    /// The positions whose files it lists.
    pub(super) positions: Vec<u32>,
    pub(super) stays: Option<Key>,
    /// Bytes of all files everywhere, where this manifest does not tell them.
    pub(super) all: Option<u64>,
}

fn failed(why: impl std::fmt::Display) -> Stopped {
    Stopped::Failed(why.to_string())
}

impl Errand {
    /// Bytes that were written.
    pub(super) fn run(&self, flow: &Flow) -> Result<u64, Stopped> {
        let Self { shelf, position, .. } = self;
        match &self.what {
            What::Write(file) => {
                let written = self.write(file, flow);
                // Who is given up this late has nobody else who would withdraw it.
                let late = written.is_ok() && flow.is_given_up();
                if late || written.is_err() {
                    shelf.withdraw(file.about.key(), *position);
                }
                if late { Err(Stopped::GivenUp) } else { written }
            }
            What::List(List { about, sight, positions, stays, all }) => {
                let listed = shelf.conclude(about, *sight, positions, *stays, flow)?;
                Ok(all.unwrap_or(listed))
            }
            What::MakeRoom { over, keep } => {
                if let Some(over) = over {
                    shelf.give_up(*over, *position as usize)?;
                }
                shelf.prune_but(keep, *position as usize, flow)?;
                Ok(0)
            }
            What::Settle(settle) => settle.run_at(shelf, *position as usize, flow).map(|()| 0),
            What::SetOut(key) => Ok(shelf.set_out_from(*key).into()),
            What::Withdraw(key) => {
                hit(Point::PruneHalf, *position as usize);
                shelf.withdraw(*key, *position);
                Ok(0)
            }
        }
    }

    fn write(&self, file: &Write, flow: &Flow) -> Result<u64, Stopped> {
        let Write { about, buffers, .. } = file;
        let key = about.key();
        let peek = |part| self.depot.peek(self.position, part).map_err(failed);
        let head = Head::new(peek(Part::Head)?).map_err(failed)?;
        self.shelf.is_held().map_err(failed)?;
        self.shelf.make_epoch(key).map_err(failed)?;
        let (data, small) = (peek(file.data)?, peek(Part::S)?);
        if data.len() < buffers.data_words() * 8 || small.words().len() < file.vouch.end {
            return Err(failed("the position's memory is not as long as it was made"));
        }
        let parity = match &file.check {
            // Where others keep it there is no such part.
            Some((part, check)) if check.words > 0 => Some(peek(*part)?),
            _ => None,
        };
        let check = file.check.as_ref().map(|(_, check)| check.clone());
        let parity = parity.as_ref().map_or(&[][..], |region| region.bytes());
        if parity.len() < check.as_ref().map_or(0, |check| check.words as usize * 8) {
            return Err(failed("the position's checksum is not as long as it was made"));
        }
        let vouch = &small.words()[file.vouch.clone()];
        let front = Front {
            about: about.clone(),
            position: self.position,
            rows: buffers.rows as u64,
            cols: buffers.cols as u64,
            ld: buffers.ld as u64,
            vouch_words: vouch.len() as u64,
            root: digest(vouch),
            check,
        };
        let same = || {
            // What was read is read.
            fence(Ordering::SeqCst);
            let now = head.read().map_err(failed)?;
            let of = (now.id.run, now.id.test, now.claim);
            match of == (about.run, about.test, file.claim) {
                true => Ok(()),
                false => Err(failed("the position's memory has gone on meanwhile")),
            }
        };
        let path = self.shelf.position(key, self.position);
        let parts = [data.bytes(), parity];
        write_position(&path, &front, vouch, parts, file.over.as_ref(), flow, same)
    }
}
