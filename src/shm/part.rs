//! Parts of a position's memory, and the kind of memory in which each part is kept.

use serde::{Deserialize, Serialize};

/// Kind of memory that outlives the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    Posix,
    /// System V segments for all parts except header and results, which stay in POSIX files. A file, unlike a segment, can carry
    /// the lock that shows a live process. An agent can read a file without counting as attached.
    SysV,
    /// Huge pages for the large parts. Small parts stay in POSIX memory, because a huge page has at least 2 MB.
    HugeTlbfs,
}

/// Part of a position's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Header: run, checkpoint and state.
    Head,
    /// Workspace A: the matrix.
    A,
    /// Checkpoint B: the copy of the matrix.
    B,
    /// Parity of checkpoints with even numbers, for methods self and double. Parity of every checkpoint, for other methods.
    C,
    /// Parity of checkpoints with odd numbers, for method self.
    D,
    /// Second full copy, for method double.
    E,
    /// Parity of the second copy.
    F,
    /// Small state: the account of the test's time. The part also has the tables of digests, and space for two checkpoints.
    S,
    /// Results of the finished tests.
    Done,
}

impl Part {
    pub const ALL: [Part; 9] =
        [Part::Head, Part::A, Part::B, Part::C, Part::D, Part::E, Part::F, Part::S, Part::Done];

    pub fn name(self) -> &'static str {
        match self {
            Part::Head => "head",
            Part::A => "a",
            Part::B => "b",
            Part::C => "c",
            Part::D => "d",
            Part::E => "e",
            Part::F => "f",
            Part::S => "s",
            Part::Done => "done",
        }
    }

    pub fn parse(text: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|p| p.name() == text)
    }

    /// Page size of this part in a store of kind `store`; `huge` is the size of the huge pages.
    pub fn page_bytes(self, store: Store, huge: usize) -> usize {
        if self.kept_in(store) == Store::HugeTlbfs { huge } else { 4096 }
    }

    /// Kind of memory that a store of kind `store` uses for this part.
    pub(super) fn kept_in(self, store: Store) -> Store {
        match (store, self) {
            (_, Part::Head | Part::Done) => Store::Posix,
            (Store::HugeTlbfs, Part::S) => Store::Posix,
            _ => store,
        }
    }
}
