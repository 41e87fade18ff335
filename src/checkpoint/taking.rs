//! Opens, checks or creates the memory of a position, before all ranks have agreed on its use.
//!
//! `start` calls these functions step by step during the agreement. If the run is refused, memory that was created before the
//! agreement is removed again. So a refused run leaves all memory as it was.

use super::holding::{Holding, open_head};
use super::plan::Buffers;
use super::protocol::{Method, Recovery};
use super::terms::{StartError, Terms};
use super::world::World;
use crate::base::threads::Pool;
use crate::shm::header::{Head, Header};
use crate::shm::{Hold, MemoryError, MemoryStore, Region};

/// Removes this node's memory of positions not in `here`, unless `of_use` returns true for its header. Such memory is a copy from
/// before the position moved to another node, belongs to another run or test, or is empty. The positions in `here` need the room
/// of such memory, which `driver` has counted as free. Memory stays if a process has locked it. Results of finished tests stay,
/// too.
pub(super) fn make_way(
    memory_store: &MemoryStore,
    here: &[usize],
    of_use: impl Fn(&Header) -> bool,
) {
    let others = memory_store.positions().into_iter().filter(|&at| !here.contains(&(at as usize)));
    for position in others {
        let Ok(mut hold) = memory_store.hold(position) else { continue };
        let header = open_head(&hold).ok().flatten().and_then(|open| open.header.ok());
        if !header.is_some_and(|header| of_use(&header)) {
            Holding::discard(&mut hold);
        }
    }
}

/// All parts of a position and its matrix, or the reason why they are not available.
type Made = Result<(Holding, Region), MemoryError>;

/// Describes why memory is not available. If the run resumes from a checkpoint, the text must not advise the user to remove the
/// checkpoint. It must not advise another N either, because the checkpoint is for this N.
fn words(error: &MemoryError, resumes: bool) -> String {
    match error {
        MemoryError::NoRoom { what, wanted, available, place } if resumes => format!(
            "{what}: {wanted} bytes are wanted, {available} bytes are free in {place} on this node; make room there (a larger \
             size= mount option, or less memory of other jobs), or start with another node instead"
        ),
        other => other.to_string(),
    }
}

/// Memory of this position at a start, before all ranks have agreed on its use.
pub(super) struct PositionMemory<'a> {
    memory_store: &'a MemoryStore,
    position: usize,
    /// Lock on the position. None only if the position could not be locked; a second attempt then returns the reason. Declared
    /// before the memory, so that the lock is released before the memory is closed.
    hold: Option<Hold>,
    /// Header that an earlier process left. None if there is none, and after the other parts were opened.
    head: Option<Head>,
    /// Memory that an earlier process left, and its matrix.
    found: Option<(Holding, Region)>,
    /// Memory that was created while other ranks still check their memory. Both the creation and the check take long, so they
    /// overlap. If the run is refused, this memory is removed again.
    early: Option<(Buffers, Made)>,
}

/// Memory of this position, its matrix, and the lock on it.
pub(super) struct Taken {
    pub holding: Holding,
    pub a: Region,
    pub hold: Hold,
}

impl<'a> PositionMemory<'a> {
    /// Returns the memory of a position of which only the header is opened. `hold` is None only if the position could not be
    /// locked.
    pub(super) fn new(
        memory_store: &'a MemoryStore,
        position: usize,
        hold: Option<Hold>,
        head: Option<Head>,
    ) -> Self {
        Self { memory_store, position, hold, head, found: None, early: None }
    }

    /// Creates memory for this position if it has none. Existing memory, even if useless, stays until the run is certain to
    /// begin.
    pub(super) fn make_early(&mut self, buffers: &Buffers) {
        if self.early.is_none() && self.hold.as_ref().is_some_and(Hold::is_vacant) {
            self.early = Some((*buffers, self.make(buffers)));
        }
    }

    /// Creates the memory, or returns the memory that was created early with the same sizes. If creating it early failed, tries
    /// again: there may be enough room now.
    fn make(&mut self, buffers: &Buffers) -> Made {
        match self.early.take() {
            Some((shape, Ok(made))) if shape == *buffers => return Ok(made),
            // As long as it is mapped, early memory of another shape takes the room that the new memory needs.
            other => drop(other),
        }
        let hold = match &mut self.hold {
            Some(hold) => hold,
            none => none.insert(self.memory_store.hold(self.position as u32)?),
        };
        Holding::create(hold, *buffers)
    }

    fn discard(&mut self) {
        self.early = None;
        if let Some(hold) = &mut self.hold {
            Holding::discard(hold);
        }
    }

    /// Opens the memory that an earlier process left. Checks that all parts exist, have the right sizes, and match the root in
    /// the header. The error text names the reason.
    pub(super) fn sound(
        &mut self,
        Terms { config, test }: Terms,
        header: &Header,
        recovery: &Recovery,
        pool: &mut Pool,
    ) -> Result<(), String> {
        if self.found.is_none() {
            let members: Vec<usize> = header.id.members.iter().map(|&m| m as usize).collect();
            // The leading dimension must be the same as when the memory was created.
            if header.id.ld != config.ld as u64 {
                return Err(
                    "its rows in memory have another length than the rows of this run".into()
                );
            }
            let buffers = config.buffers(test, &members, self.position);
            let (head, hold) =
                self.head.take().zip(self.hold.as_ref()).ok_or("its header no longer exists")?;
            let open = Holding::open(hold, head, buffers);
            self.found = Some(open.map_err(|error| error.to_string())?);
        }
        let (holding, a) = self.found.as_mut().expect("opened just now");
        let number = recovery.target.number;
        let mark = header
            .mark_of(recovery.target)
            .ok_or("its header does not name the checkpoint to be recovered")?;
        let finish = header.claim.base != Some(recovery.target);
        let words = holding.buffers.workspace_words();
        let workspace =
            (finish && config.scheme.method == Method::SelfCheckpoint).then(|| &a.words()[..words]);
        if holding.saved().verify(number, mark.root, workspace, pool) {
            Ok(())
        } else {
            Err(format!("its memory of checkpoint {number} differs from the digest in its header"))
        }
    }

    /// Returns the memory that an earlier process left if `kept` is true, otherwise new memory. `resumes` is true if the run
    /// resumes from a checkpoint, and changes only the text of an error. An error is the same on all ranks.
    pub(super) fn take<W: World>(
        mut self,
        world: &W,
        resumes: bool,
        kept: bool,
        buffers: &Buffers,
    ) -> Result<Taken, StartError> {
        let made = match self.found.take() {
            Some(found) if kept => Ok(found),
            other => {
                // The lock on replaced memory must be released before new memory is created.
                drop((other, self.head.take()));
                self.make(buffers)
            }
        };
        let problem = made.as_ref().err().map(|error| words(error, resumes));
        if let Some(text) = world.troubles(problem) {
            if !kept {
                // If another rank has no memory, this position's memory is useless, and takes room.
                self.discard();
            }
            return Err(StartError::Memory(text));
        }
        let (holding, a) = made.expect("a rank whose memory failed has returned its error already");
        let hold = self.hold.take().expect("memory was opened or made");
        Ok(Taken { holding, a, hold })
    }
}

impl Drop for PositionMemory<'_> {
    fn drop(&mut self) {
        if self.early.is_some() {
            self.discard();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Store;
    use crate::testkit::small_tmpfs::in_a_small_tmpfs;

    /// New groups may need memory of another shape than the groups in the headers, and there may be no room for both.
    #[test]
    fn early_memory_of_another_shape_makes_room() {
        let buffers = |pitch| Buffers {
            rows: 256,
            cols: 256,
            ld: 256,
            pitch,
            parity_rows: 128,
            state_rows: 1,
            state_parity_rows: 1,
            method: Method::SelfCheckpoint,
            on_device: false,
        };
        let [early, wanted] = [256, 264].map(buffers);
        let bytes = |buffers: &Buffers| buffers.parts().iter().map(|part| part.1).sum::<usize>();
        in_a_small_tmpfs(bytes(&early) * 3 / 2 + (128 << 10), |folder| {
            let memory_store = MemoryStore::with_directory(Store::Posix, "early", folder).unwrap();
            let hold = Some(memory_store.hold(1).unwrap());
            let mut memory = PositionMemory::new(&memory_store, 1, hold, None);
            memory.make_early(&early);
            assert!(matches!(memory.early, Some((_, Ok(_)))));
            let (holding, _) = memory.make(&wanted).unwrap();
            assert_eq!(holding.buffers, wanted);
        });
    }
}
