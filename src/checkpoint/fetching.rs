//! Going on from storage: where memory is gone, or holds less, each position's file becomes its matrix, and an ordinary
//! save makes the first epoch of it.
//!
//! So there is nothing new in memory: until that save is committed its headers claim nothing, and a failure anywhere
//! leads back to the same files. Groups are divided anew, over whatever nodes there are.

use super::holding::{row_is_sound, state_of};
use super::level2::{Storage, troubles};
use super::plan::{Buffers, STATE_ROW_WORDS, TILE_WORDS, state_rows};
use super::restore::{Config, Test};
use super::save::Checkpointer;
use super::world::World;
use crate::faults::{Point, hit};
use crate::memory::Region;
use crate::memory::header::Doing;
use crate::parity::GroupComm;
use crate::storage::About;
use crate::storage::reading::Source;

/// What a position's file must hold, whatever groups there are.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    cols: usize,
    ld: usize,
    state_words: usize,
}

/// This position's file of an epoch, with what vouches for its rows.
struct Opened {
    source: Source,
    vouch: Region,
    state_words: usize,
    cols: usize,
}

impl Opened {
    /// Opens it; an error names the file and what is wrong with it.
    fn new(storage: &Storage, about: &About, shape: Shape, me: usize) -> Result<Self, String> {
        let path = storage.shelf.position(about.key(), me as u32);
        let source = Source::open(&path, about, me as u32)?;
        let front = &source.front;
        let Shape { rows, cols, ld, state_words } = shape;
        let wanted = [rows, cols, ld, state_words + rows * cols.div_ceil(TILE_WORDS)];
        let found = [front.rows, front.cols, front.ld, front.vouch_words];
        if wanted.map(|words| words as u64) != found {
            return Err(format!(
                "{}: its matrix is laid out otherwise than this run's ({found:?}, not {wanted:?})",
                path.display()
            ));
        }
        let listed = storage.shelf.manifest(about.key())?;
        let listed = listed.ok_or_else(|| format!("{}: its manifest is gone", path.display()))?;
        if listed.files[me].root != front.root {
            return Err(format!("{}: the manifest names another file", path.display()));
        }
        let vouch = source.vouch()?;
        Ok(Self { source, vouch, state_words, cols })
    }

    fn state(&self) -> Vec<u8> {
        state_of(&self.vouch.words()[..self.state_words])
    }

    fn rows(&self, into: Option<&mut [u8]>, half: impl FnMut()) -> Result<(), String> {
        let tiles = self.cols.div_ceil(TILE_WORDS);
        let table = &self.vouch.words()[self.state_words..];
        let sound = |row: usize, line: &[u64]| {
            row_is_sound(&line[..self.cols], &table[row * tiles..][..tiles])
        };
        self.source.rows(into, sound, half)
    }
}

/// Looks whether this position's file of an epoch can be used; `whole`, all of it, where something would be given up for
/// it. Changes nothing.
pub(super) fn look(
    config: &Config,
    test: &Test,
    about: &About,
    me: usize,
    whole: bool,
) -> Result<(), String> {
    let storage = config.storage.as_ref().expect("an epoch on storage was chosen");
    let (rows, cols) = test.layout.shape(me);
    let state_words = state_rows(config.state_bytes) * STATE_ROW_WORDS;
    let shape = Shape { rows, cols, ld: config.ld, state_words };
    let opened = Opened::new(storage, about, shape, me)?;
    match whole {
        true => opened.rows(None, || {}),
        false => Ok(()),
    }
}

/// All ranks' trouble with storage, None if nobody has any.
pub(super) fn trouble_of_all(world: &impl World, mine: &Result<(), String>) -> Option<String> {
    if world.least(&[u64::from(mine.is_ok())]) == [1] {
        return None;
    }
    let text = mine.as_ref().err().cloned().unwrap_or_default();
    Some(troubles(&world.allgather(text.as_bytes())))
}

impl<W: World, G: GroupComm> Checkpointer<W, G> {
    /// Fills the matrix from storage and saves it in memory; returns the small state. An error is everybody's.
    pub(super) fn fetch(
        &mut self,
        storage: &Storage,
        about: &About,
        a: &mut Region,
    ) -> Result<Vec<u8>, String> {
        let me = self.position();
        self.tick(Doing::Recovering, about.boundary as usize);
        hit(Point::FetchBegin, me);
        let buffers = self.holding.buffers;
        let mut state = Vec::new();
        let Buffers { rows, cols, ld, .. } = buffers;
        let shape = Shape { rows, cols, ld, state_words: buffers.state_words() };
        let read = Opened::new(storage, about, shape, me).and_then(|opened| {
            state = opened.state();
            opened.rows(Some(a.bytes_mut()), || hit(Point::FetchHalf, me))
        });
        if let Some(trouble) = trouble_of_all(&self.world, &read) {
            return Err(trouble);
        }
        hit(Point::FetchEnd, me);
        self.save(about.boundary as usize, a.as_slice_f64_mut(), &state);
        Ok(state)
    }
}
