//! The codes: which weights make parity rows out of data rows, and how a weighted row is added.
//!
//! XOR and Reed-Solomon give back every bit. Sums of real numbers, the other codes of the papers, give
//! back a lost row only up to rounding; they are there to be compared with.

use serde::{Deserialize, Serialize};

use super::field::Byte;
use super::gf256;

/// How parity is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    Xor,
    Sum,
    ReedSolomon,
    Weighted,
}

/// Weight of one row in a combination. Zero: it takes no part.
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

    /// `dst += weight * src` in the weight's arithmetic, on rows of words.
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
            // Times 1 and -1 is exact, so that a plain sum is one.
            Weight::Real(weight) => {
                for (d, s) in dst.iter_mut().zip(src) {
                    *d = (f64::from_bits(*d) + weight * f64::from_bits(*s)).to_bits();
                }
            }
        }
    }

    /// `dst = weight * src`.
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

/// Losses a group may be made to survive: half of a group of 32.
pub const LOSSES_MAX: usize = 16;

/// Members that a group may have with Reed-Solomon: the field has no more elements.
pub const MEMBERS_MAX: usize = 256 - LOSSES_MAX;
const _: () =
    assert!(MEMBERS_MAX >= crate::shm::header::GROUP_MAX, "any group can have Reed-Solomon");

impl Code {
    pub const ALL: [Code; 4] = [Code::Xor, Code::Sum, Code::ReedSolomon, Code::Weighted];

    /// As `--code` has it.
    pub fn name(self) -> &'static str {
        match self {
            Code::Xor => "xor",
            Code::Sum => "sum",
            Code::ReedSolomon => "reed-solomon",
            Code::Weighted => "weighted",
        }
    }

    /// Losses of one group this code can make good.
    pub fn losses_max(self) -> usize {
        match self {
            Code::Xor | Code::Sum => 1,
            Code::ReedSolomon => LOSSES_MAX,
            // More rows, and some of their square parts are nearly singular.
            Code::Weighted => 4,
        }
    }

    /// Whether a rebuilt row equals the lost one bit for bit.
    pub fn exact(self) -> bool {
        matches!(self, Code::Xor | Code::ReedSolomon)
    }

    /// The code for what is no real number, beside rows that this one is for.
    pub fn for_any_bits(self, losses: usize) -> Code {
        match self {
            _ if self.exact() => self,
            _ if losses == 1 => Code::Xor,
            _ => Code::ReedSolomon,
        }
    }

    pub fn to_byte(self) -> u8 {
        match self {
            Code::Xor => 0,
            Code::Sum => 1,
            Code::ReedSolomon => 2,
            Code::Weighted => 3,
        }
    }

    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.to_byte() == byte)
    }
}

/// Weight of member `member`'s data in parity row `parity` of Reed-Solomon.
///
/// A Cauchy matrix, 1 / (x_p + y_i), of which every square part can be inverted: so any losses can be
/// solved for, whichever members hold data in a stripe. Each column is scaled to make the first row all
/// ones, which changes none of that and makes the first parity row a plain XOR.
pub fn byte_weight(parity: usize, member: usize) -> Byte {
    debug_assert!(parity < LOSSES_MAX && member < MEMBERS_MAX);
    let y = (LOSSES_MAX + member) as u8;
    Byte(gf256::mul(y, gf256::inverse(parity as u8 ^ y)))
}

/// The same for sums of real numbers: ones in the first row, so that it is the plain sum, and below numbers drawn
/// once between -1 and 1. Of a matrix drawn at random every square part can be inverted, as good as surely and
/// without losing many digits; those of a Vandermonde or Cauchy matrix lose more with every row.
pub fn real_weight(parity: usize, member: usize) -> f64 {
    debug_assert!(parity < LOSSES_MAX);
    if parity == 0 {
        return 1.0;
    }
    // One step of splitmix64, from a place of its own for each weight.
    let place = (member * LOSSES_MAX + parity) as u64 + DRAWN_FROM;
    let mut z = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as i64 as f64 / -(i64::MIN as f64)
}

/// Of the first ten thousand draws the one with which a group of 16 loses the fewest digits.
const DRAWN_FROM: u64 = 8528 * 4096;

pub(crate) fn bytes(words: &[u64]) -> &[u8] {
    // SAFETY: the same memory; bytes need no alignment and any bits are a byte.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) }
}

pub(crate) fn bytes_mut(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: the same memory, exclusively borrowed; any bits are a word.
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
            assert_eq!(Code::from_byte(code.to_byte()), Some(code));
        }
        assert_eq!(Code::from_byte(9), None);
    }
}
