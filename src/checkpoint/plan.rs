//! Buffers of a position, their sizes, and the part of the buffers that a save changes.
//!
//! The shapes of *other* positions, such as the trailing submatrix of the member with the most rows, follow from the problem and
//! the grid by arithmetic. Ranks exchange no messages to learn these shapes.

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use super::distribution::{Corner, Layout, Scope};
use super::layout::ParityLayout;
use super::protocol::Method;
pub use crate::parity::Encoding;
use crate::parity::code::LOSSES_MAX;
use crate::parity::{Code, Stripes};
use crate::shm::Part;
use crate::shm::header::GROUP_MAX;

/// Threads that encode or write while the ranks compute (`--helpers`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Helpers {
    /// A helper thread of each rank.
    #[default]
    Threads,
    /// No helpers: the ranks stop until the work is done.
    Off,
}

impl Layout {
    /// Adds the dedicated positions of this scheme to the layout, for groups of at most `group` grid positions, or of the default
    /// size.
    pub fn kept_by(self, scheme: &Scheme, group: Option<usize>) -> Self {
        let dedicated = scheme.layout.dedicated(self.working(), group, scheme.losses);
        Self { dedicated, ..self }
    }
}

/// Settings of the user for copies and parity. [`Scheme::check`] checks whether they are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheme {
    pub method: Method,
    pub scope: Scope,
    pub code: Code,
    /// Number of members that each group can lose at once. Zero for method disk on shared storage, where each position is a group
    /// of its own.
    pub losses: usize,
    #[serde(default)]
    pub layout: ParityLayout,
    /// True if the matrix is in device memory. Part A of the position memory is then empty.
    #[serde(default)]
    pub on_device: bool,
}

/// Settings that no code or layout supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SchemeError {
    #[error("--losses must be from 1 to {LOSSES_MAX}, not {0}")]
    Losses(usize),
    #[error(
        "--parity-code {name} survives {most} in a group; for {1} losses use --parity-code reed-solomon",
        name = .0.name(),
        most = match .0.losses_max() {
            1 => "one loss".into(),
            n => format!("{n} losses"),
        }
    )]
    Code(Code, usize),
    #[error(
        "--parity-layout {name} needs groups of {members} members for {losses} losses, but a group has at most {GROUP_MAX}: \
         with this layout, --losses is at most {most}",
        losses = .1, name = .0.name(), members = .0.spread().members_least(*.1), most = .0.losses_max()
    )]
    Layout(ParityLayout, usize),
}

impl Scheme {
    /// Arrangement of data and parity rows in a group with this number of members.
    pub fn stripes(&self, members: usize) -> Stripes {
        Stripes::new(self.layout.spread(), members, self.losses)
    }

    pub fn check(&self) -> Result<(), SchemeError> {
        let least = if self.method == Method::Disk { 0 } else { 1 };
        if !(least..=LOSSES_MAX).contains(&self.losses) {
            Err(SchemeError::Losses(self.losses))
        } else if self.losses > self.code.losses_max() {
            Err(SchemeError::Code(self.code, self.losses))
        } else if self.losses > self.layout.losses_max() {
            Err(SchemeError::Layout(self.layout, self.losses))
        } else {
            Ok(())
        }
    }
}

/// Words of a row that share one digest.
pub const TILE_WORDS: usize = 1024;
/// Words of a row of the small state. The small state is encoded in such rows.
pub const STATE_ROW_WORDS: usize = 64;

/// Number of rows of [`STATE_ROW_WORDS`] words for a small state of `state_bytes` bytes and for one word with its length.
pub fn state_rows(state_bytes: usize) -> usize {
    (8 + state_bytes).div_ceil(8 * STATE_ROW_WORDS)
}

/// Parts of the position memory that contain a committed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Part with the matrix.
    pub data: Part,
    /// Part with the parity of the matrix and of the small state.
    pub check: Part,
    /// Range of words in part S: the small state, the digests of the matrix, and the digests of the parity.
    pub place: std::ops::Range<usize>,
}

/// Sizes of the buffers of one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    pub rows: usize,
    pub cols: usize,
    pub ld: usize,
    /// Words of a parity row: the number of columns of the group's widest member.
    pub pitch: usize,
    pub parity_rows: usize,
    /// Number of rows of [`STATE_ROW_WORDS`] words for the small state and for its length.
    pub state_rows: usize,
    pub state_parity_rows: usize,
    pub method: Method,
    /// True if the matrix is in device memory, and part A is empty.
    pub on_device: bool,
}

impl Buffers {
    pub fn new(
        layout: &Layout,
        members: &[usize],
        position: usize,
        ld: usize,
        scheme: &Scheme,
        state_bytes: usize,
    ) -> Self {
        let (rows, cols) = layout.shape(position);
        let whole = layout.window(members, 0, Scope::Whole);
        let stripes = scheme.stripes(members.len());
        let state_rows = state_rows(state_bytes);
        let place = members.iter().position(|&member| member == position);
        let parity_rows = |rows| match place {
            Some(place) if !stripes.holds_parity(place) => 0,
            _ => stripes.parity_rows(rows),
        };
        Self {
            rows,
            cols,
            ld,
            pitch: whole.width,
            parity_rows: parity_rows(whole.rows),
            state_rows,
            state_parity_rows: parity_rows(state_rows),
            method: scheme.method,
            on_device: scheme.on_device,
        }
    }

    /// Words of the local matrix, and of each full copy of it. A copy has the matrix's leading dimension, so that corresponding
    /// rows have the same offset.
    pub fn data_words(&self) -> usize {
        self.rows * self.ld
    }

    /// Words of the matrix in part A. Zero if the matrix is in device memory.
    pub fn workspace_words(&self) -> usize {
        if self.on_device { 0 } else { self.data_words() }
    }

    /// Range of words of row `row`, in part A and in each full copy.
    pub fn row(&self, row: usize) -> std::ops::Range<usize> {
        let start = row * self.ld;
        start..start + self.cols
    }

    pub fn parity_words(&self) -> usize {
        self.parity_rows * self.pitch
    }

    /// Words of all parity: the parity of the matrix, followed by the parity of the small state.
    pub fn checksum_words(&self) -> usize {
        self.parity_words() + self.state_parity_rows * STATE_ROW_WORDS
    }

    pub fn state_words(&self) -> usize {
        self.state_rows * STATE_ROW_WORDS
    }

    pub fn data_tiles(&self) -> usize {
        self.cols.div_ceil(TILE_WORDS)
    }

    pub fn parity_tiles(&self) -> usize {
        self.pitch.div_ceil(TILE_WORDS)
    }

    /// Number of slots in part S of the position memory. A slot has the small state and the digests of one checkpoint. There are
    /// two slots; with method disk, only one.
    pub fn places(&self) -> usize {
        if self.method == Method::Disk { 1 } else { 2 }
    }

    /// Words of one slot of part S: small state, digests of the matrix, digests of the parity, and one digest for the parity of
    /// the small state.
    pub fn slot_words(&self) -> usize {
        self.state_words()
            + self.rows * self.data_tiles()
            + self.parity_rows * self.parity_tiles()
            + 1
    }

    /// Words at the beginning of a slot of part S: the small state and the digests that verify a checkpoint's matrix. With
    /// `parity`, counts the digests that verify the parity, too.
    pub fn vouch_words(&self, parity: bool) -> usize {
        if parity { self.slot_words() } else { self.state_words() + self.rows * self.data_tiles() }
    }

    /// Range of words in part S that contain the small state and the digests of checkpoint `number`.
    pub fn slot_range(&self, number: u64) -> std::ops::Range<usize> {
        let words = self.slot_words();
        let start = (number % self.places() as u64) as usize * words;
        start..start + words
    }

    /// Returns the parts that contain the committed checkpoint `number`, until the next save overwrites them. With method disk,
    /// the matrix is in part A, which stays unchanged while the checkpoint is written to storage.
    pub fn committed_parts(&self, number: u64) -> Committed {
        let odd = number % 2 == 1;
        let data = match self.method {
            Method::Disk => Part::A,
            Method::Double if odd => Part::E,
            _ => Part::B,
        };
        let check = match self.method {
            Method::SelfCheckpoint if odd => Part::D,
            Method::Double if odd => Part::F,
            _ => Part::C,
        };
        Committed { data, check, place: self.slot_range(number) }
    }

    /// Returns the parts of the position memory with their sizes in bytes, except the header and the results of finished tests.
    pub fn parts(&self) -> Vec<(Part, usize)> {
        // Positions without a part of the matrix have these parts, too, so that the code need not distinguish them.
        let data = self.data_words().max(1) * 8;
        let checksum = self.checksum_words() * 8;
        let workspace = self.workspace_words().max(1) * 8;
        let mut parts =
            vec![(Part::A, workspace), (Part::S, self.places() * self.slot_words() * 8)];
        if self.method != Method::Disk {
            parts.push((Part::B, data));
        }
        parts.push((Part::C, checksum));
        match self.method {
            Method::SelfCheckpoint => parts.push((Part::D, checksum)),
            Method::Double => parts.extend([(Part::E, data), (Part::F, checksum)]),
            Method::Single | Method::Disk => {}
        }
        // An empty parity needs no part.
        parts.retain(|(_, bytes)| *bytes > 0);
        parts
    }

    pub fn total_bytes(&self) -> usize {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::params::Mapping;
    use crate::testkit::papers::available;
    use proptest::prelude::*;

    fn layout(n: usize, nb: usize, p: usize, q: usize) -> Layout {
        Layout { n, nb, p, q, mapping: Mapping::Row, dedicated: 0 }
    }

    fn scheme(method: Method, losses: usize) -> Scheme {
        let layout = ParityLayout::Striped;
        Scheme {
            method,
            scope: Scope::Corner,
            code: Code::ReedSolomon,
            losses,
            layout,
            on_device: false,
        }
    }

    proptest! {
        #[test]
        fn local_corners_are_the_global_corner_counted_one_by_one(
            n in 1usize..60, nb in 1usize..9, p in 1usize..4, q in 1usize..4, k in 0usize..12,
            column: bool,
        ) {
            let mapping = if column { Mapping::Column } else { Mapping::Row };
            let layout = Layout { n, nb, p, q, mapping, dedicated: 0 };
            let k = k.min(layout.blocks());
            let done = (k * nb).min(n);
            let mut seen = std::collections::HashSet::new();
            for position in 0..p * q {
                let (row, col) = layout.place(position);
                prop_assert!(row < p && col < q && seen.insert((row, col)));
                let rows: Vec<usize> = (0..n).filter(|i| i / nb % p == row).collect();
                let cols: Vec<usize> = (0..=n).filter(|j| j / nb % q == col).collect();
                prop_assert_eq!(layout.shape(position), (rows.len(), cols.len()));
                let corner = layout.corner(position, k, Scope::Corner);
                prop_assert_eq!(corner.row, rows.iter().filter(|&&i| i < done).count());
                prop_assert_eq!(corner.col, cols.iter().filter(|&&j| j < done).count());
            }
        }
    }

    #[test]
    fn memory_is_what_the_formula_says() {
        let striped = [(1, 2), (1, 4), (1, 16), (2, 16), (4, 8)];
        let copied = [(1, 2), (2, 6), (3, 12), (3, 16)].map(|of| (ParityLayout::Localised, of));
        let striped = striped.map(|of| (ParityLayout::Striped, of));
        for (how, (losses, size)) in striped.into_iter().chain(copied) {
            let layout = layout(12_000, 128, 4, 4);
            let members: Vec<usize> = (0..size).collect();
            for method in Method::ALL {
                let scheme = Scheme { layout: how, ..scheme(method, losses) };
                for position in [0, size - 1] {
                    let (rows, cols) = layout.shape(position);
                    let buffers = Buffers::new(&layout, &members, position, cols, &scheme, 8192);
                    let ideal = (rows * cols * 8) as f64 / available(&scheme, size);
                    let real = buffers.total_bytes() as f64;
                    assert!(
                        (real / ideal - 1.0).abs() < 0.05,
                        "{method:?} {how:?} m={losses} G={size}: {real} for {ideal}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_dedicated_rank_has_whole_checksums_and_no_other_has_any() {
        for (group, losses) in [(4, 1), (4, 2), (16, 4), (2, 1)] {
            for method in [Method::SelfCheckpoint, Method::Double, Method::Single] {
                let scheme = Scheme { layout: ParityLayout::Dedicated, ..scheme(method, losses) };
                let layout = layout(12_000, 128, 4, 4).kept_by(&scheme, Some(group));
                assert_eq!(layout.positions(), 16 + 16 / group * losses);
                let domains: Vec<String> =
                    (0..layout.positions()).map(|i| format!("n{i}")).collect();
                let groups = scheme.layout.groups(&layout, &domains, Some(group), losses).unwrap();
                let (mut real, mut matrix) = (0.0, 0.0);
                for members in &groups {
                    assert_eq!(members.len(), group + losses);
                    for &position in members {
                        let (rows, cols) = layout.shape(position);
                        let buffers = Buffers::new(&layout, members, position, cols, &scheme, 8192);
                        assert_eq!(buffers.checksum_words() > 0, position >= 16);
                        assert_eq!(buffers.data_words() > 0, position < 16);
                        real += buffers.total_bytes() as f64;
                        matrix += (rows * cols * 8) as f64;
                    }
                }
                let ideal = matrix / available(&scheme, group + losses);
                assert!(
                    (real / ideal - 1.0).abs() < 0.03,
                    "{method:?} {group} {losses}: {real} {ideal}"
                );
            }
        }
    }

    #[test]
    fn the_papers_table_of_available_memory() {
        let percent = |method, size| (100.0 * available(&scheme(method, 1), size)).round();
        let self_checkpoint = [2, 3, 4, 8, 16].map(|g| percent(Method::SelfCheckpoint, g));
        assert_eq!(self_checkpoint, [25.0, 33.0, 38.0, 44.0, 47.0]);
        let double = [2, 3, 4, 8, 16].map(|g| percent(Method::Double, g));
        assert_eq!(double, [20.0, 25.0, 27.0, 30.0, 32.0]);
        let single = [2, 3, 4, 8, 16].map(|g| percent(Method::Single, g));
        assert_eq!(single, [33.0, 40.0, 43.0, 47.0, 48.0]);
    }

    #[test]
    fn corner_side_and_whole_are_as_one_to_one_and_a_half_to_three() {
        let layout = layout(4000, 10, 2, 2);
        let total = |scope| -> f64 {
            (0..layout.blocks())
                .map(|k| (0..4).map(|p| layout.bytes(p, k, scope) as f64).sum::<f64>())
                .sum()
        };
        let corner = total(Scope::Corner);
        assert!((total(Scope::Side) / corner - 1.5).abs() < 0.01);
        assert!((total(Scope::Whole) / corner - 3.0).abs() < 0.02);
    }

    #[test]
    fn codes_that_cannot_are_refused() {
        let ask = |code, losses| Scheme { code, ..scheme(Method::SelfCheckpoint, losses) }.check();
        assert!(ask(Code::Xor, 1).is_ok() && ask(Code::ReedSolomon, 4).is_ok());
        assert_eq!(ask(Code::Xor, 2), Err(SchemeError::Code(Code::Xor, 2)));
        assert!(ask(Code::ReedSolomon, 16).is_ok() && ask(Code::Weighted, 4).is_ok());
        assert_eq!(ask(Code::ReedSolomon, 17), Err(SchemeError::Losses(17)));
        assert_eq!(ask(Code::Weighted, 5), Err(SchemeError::Code(Code::Weighted, 5)));
        assert_eq!(ask(Code::Xor, 0), Err(SchemeError::Losses(0)));
        let localised = |losses| {
            let layout = ParityLayout::Localised;
            Scheme { layout, ..scheme(Method::SelfCheckpoint, losses) }.check()
        };
        assert!(localised(15).is_ok());
        let why = localised(16).unwrap_err().to_string();
        assert!(why.contains("groups of 272") && why.contains("at most 15"), "{why}");
    }
}
