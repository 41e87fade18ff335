//! Position memory before the agreement on its use: opened, checked, or created again.
//!
//! `start` calls this step by step during the agreement. Memory created before the agreement is removed again if the run is
//! refused, so that a refusal leaves everything as it was.

use super::holding::{Holding, open_head};
use super::plan::Buffers;
use super::protocol::{Method, Recovery};
use super::terms::{StartError, Terms};
use super::world::World;
use crate::base::threads::Pool;
use crate::shm::header::{Head, Header};
use crate::shm::{Hold, MemoryError, MemoryStore, Region};

/// Removes this node's memory of positions not in `here`, unless it is `of_use`: copies from before the position moved elsewhere,
/// memory of another run or test, or empty memory. It will not be used, and the positions here need its room, which `driver` has
/// counted as free. Memory stays if a process works there, and results of finished tests stay, too.
pub(super) fn make_way(
    memory_store: &MemoryStore,
    here: &[usize],
    of_use: impl Fn(&Header) -> bool,
) {
    for position in memory_store.positions().into_iter().map(|position| position as usize) {
        if here.contains(&position) {
            continue;
        }
        let Ok(mut hold) = memory_store.hold(position as u32) else { continue };
        let header = open_head(&hold, position).ok().flatten().and_then(|open| open.header.ok());
        if !header.is_some_and(|header| of_use(&header)) {
            Holding::discard(memory_store, position, &mut hold);
        }
    }
}

/// All parts of a position and its matrix, or the reason why they are not available.
type Made = Result<(Holding, Region), MemoryError>;

/// This position, with memory created while the others still check theirs, because that can take as long. The memory is removed
/// again if it is not taken, that is, if the run is refused.
struct Early<'a> {
    memory_store: &'a MemoryStore,
    position: usize,
    /// None only if the position could not be locked; locking again gives the reason.
    hold: Option<Hold>,
    made: Option<(Buffers, Made)>,
}

impl<'a> Early<'a> {
    /// Creates the memory, unless the position has any, even useless memory: that stays until the run is certain to begin.
    fn make(&mut self, buffers: &Buffers) {
        if self.made.is_none() && self.hold.as_ref().is_some_and(Hold::is_vacant) {
            self.made = Some((*buffers, self.create(buffers)));
        }
    }

    fn create(&mut self, buffers: &Buffers) -> Made {
        let hold = match &mut self.hold {
            Some(hold) => hold,
            none => none.insert(self.memory_store.hold(self.position as u32)?),
        };
        Holding::create(self.memory_store, self.position, *buffers, hold)
    }

    /// Hands the memory out, and creates it now unless it exists in that shape. There may be room now that was lacking before.
    fn take(&mut self, buffers: &Buffers) -> Made {
        match self.made.take() {
            Some((shape, Ok(made))) if shape == *buffers => return Ok(made),
            // While mapped, it takes the room that the other shape needs.
            other => drop(other),
        }
        self.create(buffers)
    }

    fn discard(&mut self) {
        self.made = None;
        if let Some(hold) = &mut self.hold {
            Holding::discard(self.memory_store, self.position, hold);
        }
    }

    /// Returns the lock on the position.
    fn keep(mut self) -> Hold {
        self.hold.take().expect("memory was opened or made")
    }
}

impl Drop for Early<'_> {
    fn drop(&mut self) {
        if self.made.is_some() {
            self.discard();
        }
    }
}

/// Describes why memory is not available. If there is a checkpoint to resume from, the advice must not be to remove it, nor to
/// choose another N, to which the checkpoint would not belong.
fn words(error: &MemoryError, resumes: bool) -> String {
    match error {
        MemoryError::NoRoom { what, wanted, available, place } if resumes => format!(
            "{what}: {wanted} bytes are wanted, {available} bytes are free in {place} on this node; make room there (a larger \
             size= mount option, or less of others' memory), or start with another node in its place"
        ),
        other => other.to_string(),
    }
}

/// Memory of this position before its use is decided.
pub(super) struct PositionMemory<'a> {
    /// Declared first, so that the lock is released before the memory is closed.
    early: Early<'a>,
    found: Memory,
}

/// Memory that an earlier process left.
enum Memory {
    /// The header is locked, the rest is not opened.
    Closed(Option<Head>),
    Open(Box<(Holding, Region)>),
}

/// Memory of this position, its matrix, and the lock on it.
pub(super) struct Taken {
    pub holding: Holding,
    pub a: Region,
    pub hold: Hold,
}

impl<'a> PositionMemory<'a> {
    /// `hold` is None only if the position could not be locked.
    pub(super) fn new(
        memory_store: &'a MemoryStore,
        position: usize,
        hold: Option<Hold>,
        head: Option<Head>,
    ) -> Self {
        let early = Early { memory_store, position, hold, made: None };
        Self { early, found: Memory::Closed(head) }
    }

    /// Creates memory for this position, in case it has none.
    pub(super) fn make_early(&mut self, buffers: &Buffers) {
        self.early.make(buffers);
    }

    /// Checks that the parts exist, have their sizes, and match the header's root; otherwise returns the reason.
    pub(super) fn sound(
        &mut self,
        Terms { config, test }: Terms,
        header: &Header,
        recovery: &Recovery,
        pool: &mut Pool,
    ) -> Result<(), String> {
        let me = self.early.position;
        if let Memory::Closed(head) = &mut self.found {
            let members: Vec<usize> = header.id.members.iter().map(|&m| m as usize).collect();
            // The memory has the leading dimension with which it was created, which must be today's.
            if header.id.ld != config.ld as u64 {
                return Err("its rows are of another length".into());
            }
            let buffers = config.buffers(test, &members, me);
            let head = head.take().ok_or("its header is gone")?;
            let open = Holding::open(&config.memory_store, me, head, buffers);
            self.found = Memory::Open(Box::new(open.map_err(|error| error.to_string())?));
        }
        let Memory::Open(open) = &mut self.found else {
            return Err("its memory is gone".into());
        };
        let (holding, a) = &mut **open;
        let number = recovery.target.number;
        let mark = header.mark_of(recovery.target).ok_or("it does not have the checkpoint")?;
        let finish = header.claim.base != Some(recovery.target);
        let words = holding.buffers.data_words();
        let workspace =
            (finish && config.scheme.method == Method::SelfCheckpoint).then(|| &a.words()[..words]);
        if holding.saved().verify(number, mark.root, workspace, pool) {
            Ok(())
        } else {
            Err(format!("its memory of checkpoint {number} is not what its header says"))
        }
    }

    /// Returns the memory, created again unless it exists and is usable (`kept`). `resumes` means that the run resumes from a
    /// checkpoint. An error is the same on all ranks.
    pub(super) fn take<W: World>(
        mut self,
        world: &W,
        resumes: bool,
        kept: bool,
        buffers: &Buffers,
    ) -> Result<Taken, StartError> {
        let (holding, a) = match self.found {
            Memory::Open(open) if kept => {
                if let Some(text) = world.troubles(None) {
                    return Err(StartError::Memory(text));
                }
                *open
            }
            other => {
                // The lock on replaced memory must be released before new memory is created.
                drop(other);
                let made = self.early.take(buffers);
                let problem = made.as_ref().err().map(|error| words(error, resumes));
                if let Some(text) = world.troubles(problem) {
                    // Without the others' memory it is useless, and takes their room.
                    self.early.discard();
                    return Err(StartError::Memory(text));
                }
                made.expect("a failure here would have been reported")
            }
        };
        Ok(Taken { holding, a, hold: self.early.keep() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Store;
    use crate::testkit::small_tmpfs::in_a_small_tmpfs;

    /// New groups may need another shape than the groups in the headers, and there may be no room for both.
    #[test]
    fn what_was_made_early_in_another_shape_makes_room() {
        let buffers = |pitch| Buffers {
            rows: 256,
            cols: 256,
            ld: 256,
            pitch,
            parity_rows: 128,
            state_rows: 1,
            state_parity_rows: 1,
            method: Method::SelfCheckpoint,
        };
        let [early, wanted] = [256, 264].map(buffers);
        let bytes = |buffers: &Buffers| buffers.parts().iter().map(|part| part.1).sum::<usize>();
        in_a_small_tmpfs(bytes(&early) * 3 / 2 + (128 << 10), |folder| {
            let memory_store = MemoryStore::with_directory(Store::Posix, "early", folder).unwrap();
            let hold = Some(memory_store.hold(1).unwrap());
            let mut memory = Early { memory_store: &memory_store, position: 1, hold, made: None };
            memory.make(&early);
            assert!(matches!(memory.made, Some((_, Ok(_)))));
            let (holding, _) = memory.take(&wanted).unwrap();
            assert_eq!(holding.buffers, wanted);
        });
    }
}
