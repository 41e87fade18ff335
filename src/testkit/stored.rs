//! Examples of files of a checkpoint on storage.

use std::fs;
use std::path::Path;

use crate::base::params::{Mapping, Rng};
use crate::checkpoint::storage::writing::{Flow, Stopped, write_position};
use crate::checkpoint::storage::{About, FORMAT, Front};
use crate::parity::digest::digest;
use crate::shm::Region;

/// Returns the identity of a checkpoint on storage.
pub fn about(run: u128, test: u32, checkpoint: u64, boundary: u64) -> About {
    About {
        format: FORMAT,
        run,
        test,
        checkpoint,
        made: 1,
        boundary,
        n: 1000,
        nb: 64,
        p: 1,
        q: 2,
        mapping: Mapping::Row,
        rng: Rng::Hpl,
        seed: 100,
        params_digest: u64::MAX - 5,
        arithmetic: "kernels of the program's own".into(),
        state_bytes: 1024,
    }
}

/// Writes a new file with a matrix and a parity, without injected faults. Returns as [`write_position`] does.
pub fn write_new(
    path: &Path,
    front: &Front,
    vouch: &[u64],
    parts: [&[u8]; 2],
) -> Result<u64, Stopped> {
    write_position(path, front, vouch, parts, None, &Flow::default(), || Ok(()))
}

/// Returns the header of a file, the digests of its rows, and its matrix of `rows` rows.
pub fn sample(about: &About, position: u32, rows: usize) -> (Front, Vec<u64>, Region) {
    let ld = 40;
    let mut data = Region::anonymous(rows * ld * 8).unwrap();
    let word = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(position);
    data.words_mut().iter_mut().enumerate().for_each(|(i, w)| *w = word(i));
    let vouch: Vec<u64> = data.words().chunks(ld).map(digest).collect();
    let front = Front {
        about: about.clone(),
        position,
        rows: rows as u64,
        cols: ld as u64,
        ld: ld as u64,
        vouch_words: vouch.len() as u64,
        root: digest(&vouch),
        check: None,
    };
    (front, vouch, data)
}

/// Writes the file of a position, with a matrix of 30 rows.
pub fn write_small(path: &Path, about: &About, position: u32) {
    let (front, vouch, data) = sample(about, position, 30);
    let bytes = write_new(path, &front, &vouch, [data.bytes(), &[]]).unwrap();
    assert_eq!(fs::metadata(path).unwrap().len(), bytes);
}
