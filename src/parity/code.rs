//! Codes: the weights that make parity rows out of data rows, and the addition of a weighted row.
//!
//! XOR and Reed-Solomon rebuild every bit. Sums of real numbers, which the papers also use, rebuild a lost row only up to
//! rounding. These sums are here for comparison.

use serde::{Deserialize, Serialize};

use super::field::Byte;
use super::gf256;

/// Arithmetic of the parity. Headers and files contain the number of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    Xor = 0,
    Sum = 1,
    ReedSolomon = 2,
    Weighted = 3,
}

/// Weight of one row in a weighted sum of rows. A row of weight zero is left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weight {
    Byte(u8),
    Real(f64),
}

impl Weight {
    pub fn is_zero(self) -> bool {
        matches!(self, Weight::Byte(0)) || self == Weight::Real(0.0)
    }

    fn is_one(self) -> bool {
        matches!(self, Weight::Byte(1)) || self == Weight::Real(1.0)
    }

    /// Adds `self * src` to `dst`. A `Byte` multiplies bytes in GF(256), and a `Real` multiplies doubles.
    pub fn add(self, src: &[u64], dst: &mut [u64]) {
        debug_assert_eq!(src.len(), dst.len());
        match self {
            weight if weight.is_zero() => {}
            Weight::Byte(1) => {
                for (d, s) in dst.iter_mut().zip(src) {
                    *d ^= s;
                }
            }
            Weight::Byte(weight) => gf256::mul_add(weight, bytes(src), bytes_mut(dst)),
            // Multiplication by 1 and -1 is exact, so these weights give a plain sum.
            Weight::Real(weight) => {
                for (d, s) in dst.iter_mut().zip(src) {
                    *d = (f64::from_bits(*d) + weight * f64::from_bits(*s)).to_bits();
                }
            }
        }
    }

    /// Sets `dst` to `self * src`.
    pub fn set(self, src: &[u64], dst: &mut [u64]) {
        if self.is_one() {
            dst.copy_from_slice(src);
        } else {
            dst.fill(0);
            self.add(src, dst);
        }
    }
}

impl From<Byte> for Weight {
    fn from(byte: Byte) -> Self {
        Weight::Byte(byte.0)
    }
}

impl From<f64> for Weight {
    fn from(real: f64) -> Self {
        Weight::Real(real)
    }
}

/// Maximum number of losses that a group can be configured to survive.
pub const LOSSES_MAX: usize = 16;

/// Maximum number of members of a group with Reed-Solomon. The weights need a different element of GF(256) for each parity row
/// and for each member ([`byte_weight`]).
pub const MEMBERS_MAX: usize = 256 - LOSSES_MAX;
const _: () = assert!(
    MEMBERS_MAX >= crate::shm::header::GROUP_MAX,
    "Reed-Solomon works for groups of any permitted size"
);

impl Code {
    pub const ALL: [Code; 4] = [Code::Xor, Code::Sum, Code::ReedSolomon, Code::Weighted];

    /// Name of the code as in `--parity-code`.
    pub fn name(self) -> &'static str {
        match self {
            Code::Xor => "xor",
            Code::Sum => "sum",
            Code::ReedSolomon => "reed-solomon",
            Code::Weighted => "weighted",
        }
    }

    /// Maximum number of losses in one group that this code can rebuild.
    pub fn losses_max(self) -> usize {
        match self {
            Code::Xor | Code::Sum => 1,
            Code::ReedSolomon => LOSSES_MAX,
            // With more parity rows, some square submatrices of the weights are nearly singular.
            Code::Weighted => 4,
        }
    }

    /// Returns whether this code rebuilds a lost row bit for bit.
    pub fn exact(self) -> bool {
        matches!(self, Code::Xor | Code::ReedSolomon)
    }

    /// Returns the code for data that are not real numbers, if the group uses this code for its real numbers. Sums are replaced
    /// by XOR, or by Reed-Solomon if the group survives several losses.
    pub fn for_any_bits(self, losses: usize) -> Code {
        match self {
            _ if self.exact() => self,
            _ if losses == 1 => Code::Xor,
            _ => Code::ReedSolomon,
        }
    }

    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|code| *code as u8 == byte)
    }
}

/// Returns the weight of member `member`'s data in parity row `parity` of Reed-Solomon.
///
/// The weights are a Cauchy matrix, 1 / (x_p + y_i). Here x_p is the element of GF(256) for parity row p, and y_i is the element
/// for member i. Every square submatrix of this matrix can be inverted, so any losses can be rebuilt, whichever members have data
/// in a stripe. Each column is scaled so that the first row is all ones. Scaled submatrices can still be inverted, and the first
/// parity row is a plain XOR.
pub fn byte_weight(parity: usize, member: usize) -> Byte {
    debug_assert!(parity < LOSSES_MAX && member < MEMBERS_MAX);
    let y = (LOSSES_MAX + member) as u8;
    Byte(gf256::mul(y, gf256::inverse(parity as u8 ^ y)))
}

/// Returns the weight of member `member`'s data in parity row `parity` of the sums of real numbers.
///
/// All weights of the first parity row are one, so the row is the plain sum. The weights of the other rows are fixed random
/// numbers between -1 and 1. Almost surely, every square submatrix of a random matrix can be inverted without losing many digits.
/// A Vandermonde or Cauchy matrix loses more digits with every row.
pub fn real_weight(parity: usize, member: usize) -> f64 {
    debug_assert!(parity < LOSSES_MAX);
    if parity == 0 {
        return 1.0;
    }
    // One step of splitmix64, from a different start for each weight.
    let place = (member * LOSSES_MAX + parity) as u64 + DRAWN_FROM;
    let mut z = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as i64 as f64 / -(i64::MIN as f64)
}

/// Seed of the weights. Of the first ten thousand seeds, this seed makes a group of 16 lose the fewest digits.
const DRAWN_FROM: u64 = 8528 * 4096;

pub(crate) fn bytes(words: &[u64]) -> &[u8] {
    // SAFETY: the bytes are the memory of `words`. A byte needs no alignment, and any bits are a valid byte.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) }
}

pub(crate) fn bytes_mut(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: the bytes are the memory of `words`, which is borrowed exclusively. A byte needs no alignment, and any bits are a
    // valid word.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 8) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_parity_of_reed_solomon_is_xor() {
        for member in 0..MEMBERS_MAX {
            assert_eq!(byte_weight(0, member), Byte(1));
            for parity in 1..LOSSES_MAX {
                assert_ne!(byte_weight(parity, member), Byte(0));
            }
        }
    }

    #[test]
    fn sums_are_sums() {
        let src = [1.5f64.to_bits(), 2.0f64.to_bits()];
        let mut dst = [1.0f64.to_bits(), 4.0f64.to_bits()];
        Weight::Real(-1.0).add(&src, &mut dst);
        assert_eq!(dst.map(f64::from_bits), [-0.5, 2.0]);
        Weight::Real(1.0).add(&src, &mut dst);
        assert_eq!(dst.map(f64::from_bits), [1.0, 4.0]);
        Weight::Real(-0.5).set(&src, &mut dst);
        assert_eq!(dst.map(f64::from_bits), [-0.75, -1.0]);
    }

    #[test]
    fn codes_have_bytes() {
        for code in Code::ALL {
            assert_eq!(Code::from_byte(code as u8), Some(code));
        }
        assert_eq!(Code::from_byte(9), None);
    }
}
