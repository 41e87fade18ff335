//! Records in files on storage: readable text in which every changed byte is detected.
//!
//! A record is a JSON document, followed by its digest on a line of its own. A position's file begins with a record that is
//! padded to [`BLOCK_BYTES`]. The manifest is a record. A record is trusted only if its digest matches.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

use super::names::Key;
use super::{BLOCK_BYTES, DirScope, FORMAT};
use crate::base::params::{Mapping, Rng};

/// Text form of numbers that may have more than 53 bits: hexadecimal digits. JSON readers would round such numbers.
mod hex {
    use super::*;

    pub fn serialize<T: std::fmt::LowerHex, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{value:0width$x}", width = 2 * size_of::<T>()))
    }

    pub fn deserialize<'de, T: TryFrom<u128>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        let text = String::deserialize(from)?;
        let wide = u128::from_str_radix(&text, 16).map_err(serde::de::Error::custom)?;
        T::try_from(wide).map_err(|_| serde::de::Error::custom("too many digits"))
    }
}

/// Identity of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    pub format: u32,
    #[serde(with = "hex")]
    pub run: u128,
    pub test: u32,
    pub checkpoint: u64,
    /// Number of the attempt that made the checkpoint. After a start from scratch, another attempt may make a checkpoint with the
    /// same number. Files of the two checkpoints must not be mixed.
    #[serde(with = "hex")]
    pub made: u64,
    pub boundary: u64,
    pub n: u64,
    pub nb: u64,
    pub p: u32,
    pub q: u32,
    pub mapping: Mapping,
    pub rng: Rng,
    pub seed: u64,
    /// Digest of the solver's arithmetic ([`About::arithmetic`]) and of all settings that must be the same when a run resumes.
    #[serde(with = "hex")]
    pub params_digest: u64,
    /// Description of the solver's arithmetic: the engine and the device, on which the last bits of the result depend.
    pub arithmetic: String,
    /// Bytes reserved for the small state.
    pub state_bytes: u64,
}

impl About {
    pub fn key(&self) -> Key {
        Key { run: self.run, test: self.test, checkpoint: self.checkpoint }
    }

    /// Returns the progress of a checkpoint. Of two checkpoints of a test, the one with the greater progress is better, because
    /// every run computes the same bits. At the same boundary, the checkpoint of the later run is better.
    pub fn progress(&self) -> (u64, Key) {
        (self.boundary, self.key())
    }

    /// Returns a key that is greater for a checkpoint of more use to run `run`, which resumes from memory. Checkpoints of earlier
    /// runs are of least use, because run `run` began without them. Otherwise the key is the progress.
    pub fn worth(&self, run: u128) -> (bool, (u64, Key)) {
        (self.run >= run, self.progress())
    }

    /// Returns true if this checkpoint makes checkpoint `other` useless to run `run`. Both must belong to the same test, and this
    /// checkpoint must have greater [`Self::progress`] and greater [`Self::worth`].
    pub fn outdates(&self, other: &Self, run: u128) -> bool {
        let test = |about: &Self| (about.test, about.params_digest);
        test(self) == test(other)
            && self.progress() > other.progress()
            && self.worth(run) > other.worth(run)
    }

    pub fn positions(&self) -> usize {
        self.p as usize * self.q as usize
    }

    pub fn blocks(&self) -> u64 {
        self.n.div_ceil(self.nb.max(1))
    }
}

/// Group and parity of a position. If each node has a DIR of its own, the file contains the parity after the matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub group: u32,
    /// Positions of the group, in the order in which the code numbers members.
    pub members: Vec<u32>,
    /// Number of members that the group can lose at once and still rebuild.
    pub losses: u32,
    /// Number of the code, the same as in headers in memory.
    pub code: u8,
    /// Number of the parity layout.
    #[serde(default)]
    pub layout: u8,
    /// Words of this member's parity, for the matrix and the small state together.
    pub words: u64,
}

/// Header of a position's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Front {
    pub about: About,
    pub position: u32,
    pub rows: u64,
    pub cols: u64,
    /// Words from the beginning of a row to the beginning of the next row.
    pub ld: u64,
    /// Number of words after the header: the small state and the digests of the matrix, and of the parity if there is any.
    pub vouch_words: u64,
    /// Digest of the small state and of all digests, which are the words after the header. So the digest covers matrix and
    /// parity, too.
    #[serde(with = "hex")]
    pub root: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
}

/// Returns the bytes of whole blocks that contain `words` words. For absurdly large numbers the result does not overflow, but
/// exceeds the length of any file.
fn blocks_of(words: u64) -> u64 {
    words.min(1 << 58).saturating_mul(8).next_multiple_of(BLOCK_BYTES as u64)
}

impl Front {
    /// Offset of the matrix in the file.
    pub fn data_at(&self) -> u64 {
        BLOCK_BYTES as u64 + blocks_of(self.vouch_words)
    }

    pub fn data_words(&self) -> u64 {
        self.rows.saturating_mul(self.ld)
    }

    /// Offset of the parity in the file. Without parity, this is the length of the file.
    pub fn check_at(&self) -> u64 {
        self.data_at() + blocks_of(self.data_words())
    }

    pub fn file_bytes(&self) -> u64 {
        self.check_at()
            .saturating_add(self.check.as_ref().map_or(0, |check| blocks_of(check.words)))
    }

    /// Returns the first block of the file.
    ///
    /// # Panics
    /// If the text is longer than a block. Names of processors and libraries are too short for that.
    pub fn to_block(&self) -> Vec<u8> {
        let mut block = seal(self).into_bytes();
        assert!(
            block.len() <= BLOCK_BYTES,
            "the header of {} bytes does not fit into a block",
            block.len()
        );
        block.resize(BLOCK_BYTES, b'\n');
        block
    }

    pub fn from_block(block: &[u8]) -> Result<Self, Fault> {
        unseal(block)
    }
}

/// File of one position, as listed in the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    pub position: u32,
    pub bytes: u64,
    #[serde(with = "hex")]
    pub root: u64,
}

/// Manifest: states that a checkpoint is complete, and lists all its files, or the files of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub about: About,
    #[serde(default)]
    pub dir_scope: DirScope,
    pub written_unix_s: u64,
    pub files: Vec<File>,
}

impl Manifest {
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    pub fn to_text(&self) -> String {
        seal(self)
    }

    pub fn from_text(text: &[u8]) -> Result<Self, Fault> {
        let manifest: Self = unseal(text)?;
        let (files, positions) = (&manifest.files, manifest.about.positions());
        let known = files.iter().all(|file| (file.position as usize) < positions);
        let ordered = files.windows(2).all(|pair| pair[0].position < pair[1].position);
        let listed = ordered && !files.is_empty();
        // If each node has its own DIR, the files may include parity of dedicated positions.
        if listed && (manifest.dir_scope == DirScope::Node || (known && files.len() == positions)) {
            Ok(manifest)
        } else {
            Err(Fault::Damaged)
        }
    }
}

/// Reason why a record is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("the digest does not match: the file is damaged")]
    Damaged,
    #[error("the file has format {0}, but this program can only read format {FORMAT}")]
    Format(u32),
}

/// Returns the text of a record: the document and its digest.
pub fn seal(document: &impl Serialize) -> String {
    let text = serde_json::to_string(document).expect("plain values have a JSON form");
    format!("{text}\n{:016x}\n", xxh3_64(text.as_bytes()))
}

/// Parses the document of a record. Fails if the digest does not match, or if the record has another format.
pub fn unseal<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|_| Fault::Damaged)?;
    let (document, rest) = text.split_once('\n').ok_or(Fault::Damaged)?;
    let (digest, rest) = rest.split_once('\n').ok_or(Fault::Damaged)?;
    let blank = rest.bytes().all(|byte| byte == b'\n');
    if !blank || digest != format!("{:016x}", xxh3_64(document.as_bytes())) {
        return Err(Fault::Damaged);
    }
    // Every format has this field. All other fields may differ.
    #[derive(Deserialize)]
    struct Outer {
        about: Option<Inner>,
    }
    #[derive(Deserialize)]
    struct Inner {
        format: u32,
    }
    if let Ok(Outer { about: Some(Inner { format }) }) = serde_json::from_str(document)
        && format != FORMAT
    {
        return Err(Fault::Format(format));
    }
    serde_json::from_str(document).map_err(|_| Fault::Damaged)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;
    use crate::testkit::stored::about;

    /// An earlier run of this test has a checkpoint at a later boundary, on a node that was absent.
    #[test]
    fn to_a_run_in_memory_what_an_earlier_one_has_is_worth_less() {
        let (earlier, ours, next) = (about(1, 0, 8, 80), about(2, 0, 4, 40), about(2, 0, 5, 50));
        let all = [&earlier, &ours, &next];
        let best = |run| *all.iter().max_by_key(|about| about.worth(run)).unwrap();
        assert_eq!([1, 2, 3].map(best), [&earlier, &next, &earlier]);
        let outdated = |by: &About, run| all.map(|about| by.outdates(about, run));
        assert_eq!(outdated(&next, 2), [false, true, false]);
        assert_eq!(outdated(&earlier, 2), [false; 3]);
        assert_eq!(outdated(&earlier, 1), [false, true, true]);
        let others =
            [About { params_digest: 1, ..next.clone() }, About { test: 1, ..next.clone() }];
        assert!(others.iter().all(|other| outdated(other, 2) == [false; 3]));
    }

    fn front() -> Front {
        Front {
            about: about(u128::MAX - 1, 3, 9, 40),
            position: 1,
            rows: 1000,
            cols: 481,
            ld: 488,
            vouch_words: 1700,
            root: 1 << 63,
            check: None,
        }
    }

    fn manifest(about: About) -> Manifest {
        let file = |position| File { position, bytes: 8192, root: 7 + u64::from(position) };
        let dir_scope = DirScope::Shared;
        Manifest { about, dir_scope, written_unix_s: 1_790_000_000, files: vec![file(0), file(1)] }
    }

    #[test]
    fn fronts_and_manifests_come_back_as_written() {
        let block = front().to_block();
        assert_eq!(block.len(), BLOCK_BYTES);
        assert_eq!(Front::from_block(&block), Ok(front()));
        let whole = manifest(about(5, 0, 2, 8));
        assert_eq!(Manifest::from_text(whole.to_text().as_bytes()), Ok(whole));
        // The group is the largest possible group.
        let members = (1_000_000..1_000_240).collect();
        let check =
            Check { group: 1 << 20, members, losses: 16, code: 2, layout: 2, words: 1 << 40 };
        let front = Front { check: Some(check), ..front() };
        assert_eq!(Front::from_block(&front.to_block()), Ok(front));
    }

    #[test]
    fn parts_of_a_file_begin_at_blocks_and_do_not_overlap() {
        let front = front();
        assert!(front.data_at().is_multiple_of(BLOCK_BYTES as u64));
        assert!(front.data_at() >= BLOCK_BYTES as u64 + front.vouch_words * 8);
        assert!(front.file_bytes() >= front.data_at() + front.data_words() * 8);
        assert!(front.file_bytes() < front.data_at() + front.data_words() * 8 + 4096);
        // Sizes that are far too large do not overflow.
        let huge = Front { rows: u64::MAX / 2, ld: 9, vouch_words: 1 << 50, ..front };
        assert!(huge.file_bytes() > 1 << 60);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let block = front().to_block();
        let text = manifest(about(5, 0, 2, 8)).to_text().into_bytes();
        for bit in 0..8 {
            for at in 0..block.len() {
                let mut flipped = block.clone();
                flipped[at] ^= 1 << bit;
                assert!(Front::from_block(&flipped).is_err(), "byte {at}");
            }
            for at in 0..text.len() {
                let mut flipped = text.clone();
                flipped[at] ^= 1 << bit;
                assert!(Manifest::from_text(&flipped).is_err(), "byte {at}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_text_cut_short_anywhere_is_noticed(cut in 0usize..600) {
            let text = manifest(about(5, 0, 2, 8)).to_text().into_bytes();
            if cut < text.len() {
                prop_assert!(Manifest::from_text(&text[..cut]).is_err());
            }
            let block = front().to_block();
            let text = block.iter().rposition(|&b| b != b'\n').unwrap();
            // Line feeds after the line of the digest do not count.
            if cut <= text {
                prop_assert!(Front::from_block(&block[..cut]).is_err());
            }
        }
    }

    #[test]
    fn another_format_is_named_and_a_manifest_lists_every_position() {
        let other = manifest(About { format: 9, ..about(5, 0, 2, 8) });
        assert_eq!(Manifest::from_text(other.to_text().as_bytes()), Err(Fault::Format(9)));
        let mut short = manifest(about(5, 0, 2, 8));
        short.files.pop();
        assert_eq!(Manifest::from_text(short.to_text().as_bytes()), Err(Fault::Damaged));
        // A manifest of one node may list fewer files. It must list at least one file, and no file twice.
        short.dir_scope = DirScope::Node;
        assert_eq!(Manifest::from_text(short.to_text().as_bytes()), Ok(short.clone()));
        let file = short.files[0];
        for files in [vec![], vec![file, file]] {
            let odd = Manifest { files, ..short.clone() };
            assert_eq!(Manifest::from_text(odd.to_text().as_bytes()), Err(Fault::Damaged));
        }
        // Dedicated positions have greater numbers than positions of the grid. Only the manifest of one node may list dedicated
        // positions.
        let dedicated = Manifest { files: vec![File { position: 2, ..file }], ..short };
        assert_eq!(Manifest::from_text(dedicated.to_text().as_bytes()), Ok(dedicated.clone()));
        let mut shared = manifest(about(5, 0, 2, 8));
        shared.files[1].position = 2;
        assert_eq!(Manifest::from_text(shared.to_text().as_bytes()), Err(Fault::Damaged));
    }
}
