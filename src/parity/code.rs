//! The codes: which weights make parity rows out of data rows, and how a weighted row is added.
//!
//! XOR and Reed-Solomon give back every bit. The numeric sum, the other code of the paper, gives
//! back a lost row only up to rounding; it is there to be compared with.

use serde::{Deserialize, Serialize};

use super::gf256;

/// How parity is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    Xor,
    Sum,
    ReedSolomon,
}

/// Weight of one row in a combination. Zero: it takes no part. For [`Code::Sum`], [`PLUS`] or
/// [`MINUS`]; for the others an element of the field of 256.
pub type Weight = u8;
pub const PLUS: Weight = 1;
pub const MINUS: Weight = 2;

/// Losses a group may be made to survive.
pub const LOSSES_MAX: usize = 4;

impl Code {
    pub const ALL: [Code; 3] = [Code::Xor, Code::Sum, Code::ReedSolomon];

    /// Losses of one group this code can make good.
    pub fn losses_max(self) -> usize {
        match self {
            Code::Xor | Code::Sum => 1,
            Code::ReedSolomon => LOSSES_MAX,
        }
    }

    /// Whether a rebuilt row equals the lost one bit for bit.
    pub fn exact(self) -> bool {
        self != Code::Sum
    }

    pub fn to_byte(self) -> u8 {
        match self {
            Code::Xor => 0,
            Code::Sum => 1,
            Code::ReedSolomon => 2,
        }
    }

    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.to_byte() == byte)
    }

    /// Weight of member `member`'s data in parity row `parity`.
    ///
    /// Reed-Solomon takes a Cauchy matrix, 1 / (x_p + y_i), of which every square part can be
    /// inverted: so any losses can be solved for, whichever members hold data in a stripe. Each
    /// column is scaled to make the first row all ones, which changes none of that and makes
    /// the first parity row a plain XOR.
    pub fn weight(self, parity: usize, member: usize) -> Weight {
        match self {
            Code::Xor => 1,
            Code::Sum => PLUS,
            Code::ReedSolomon => {
                debug_assert!(parity < LOSSES_MAX && member + LOSSES_MAX < 256);
                let y = (LOSSES_MAX + member) as u8;
                gf256::mul(y, gf256::inverse(parity as u8 ^ y))
            }
        }
    }

    /// `dst += weight * src` in this code's arithmetic, on rows of words.
    pub fn add(self, weight: Weight, src: &[u64], dst: &mut [u64]) {
        debug_assert_eq!(src.len(), dst.len());
        match (self, weight) {
            (_, 0) => {}
            (Code::Sum, MINUS) => {
                for (d, s) in dst.iter_mut().zip(src) {
                    *d = (f64::from_bits(*d) - f64::from_bits(*s)).to_bits();
                }
            }
            (Code::Sum, _) => {
                for (d, s) in dst.iter_mut().zip(src) {
                    *d = (f64::from_bits(*d) + f64::from_bits(*s)).to_bits();
                }
            }
            (_, 1) => {
                for (d, s) in dst.iter_mut().zip(src) {
                    *d ^= s;
                }
            }
            _ => gf256::mul_add(weight, bytes(src), bytes_mut(dst)),
        }
    }

    /// `dst = weight * src`.
    pub fn set(self, weight: Weight, src: &[u64], dst: &mut [u64]) {
        if weight == 1 {
            dst.copy_from_slice(src);
        } else {
            dst.fill(0);
            self.add(weight, src, dst);
        }
    }
}

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
        for member in 0..252 {
            assert_eq!(Code::ReedSolomon.weight(0, member), 1);
            for parity in 1..LOSSES_MAX {
                assert_ne!(Code::ReedSolomon.weight(parity, member), 0);
            }
        }
    }

    #[test]
    fn sums_are_sums() {
        let src = [1.5f64.to_bits(), 2.0f64.to_bits()];
        let mut dst = [1.0f64.to_bits(), 4.0f64.to_bits()];
        Code::Sum.add(MINUS, &src, &mut dst);
        assert_eq!(dst.map(f64::from_bits), [-0.5, 2.0]);
        Code::Sum.add(PLUS, &src, &mut dst);
        assert_eq!(dst.map(f64::from_bits), [1.0, 4.0]);
        Code::Sum.set(MINUS, &src, &mut dst);
        assert_eq!(dst.map(f64::from_bits), [-1.5, -2.0]);
    }

    #[test]
    fn codes_have_bytes() {
        for code in Code::ALL {
            assert_eq!(Code::from_byte(code.to_byte()), Some(code));
        }
        assert_eq!(Code::from_byte(9), None);
    }
}
