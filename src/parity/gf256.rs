//! Arithmetic in GF(256), and `dst ^= c * src` at memory speed.
//!
//! The field is GF(2)[x] / (x^8 + x^4 + x^3 + x^2 + 1), in which x generates every nonzero element. Multiplication by a constant
//! is linear over bits. So it is an 8x8 bit matrix (GFNI, 64 bytes an instruction) or two lookups of 16 entries each (byte
//! shuffles). The engine is chosen once. All engines give the same bytes.

use std::sync::OnceLock;

const POLYNOMIAL: u16 = 0x11d;

struct Tables {
    log: [u8; 256],
    exp: [u8; 512],
}

const TABLES: Tables = {
    let mut log = [0u8; 256];
    let mut exp = [0u8; 512];
    let mut x: u16 = 1;
    let mut i = 0;
    while i < 255 {
        exp[i] = x as u8;
        exp[i + 255] = x as u8;
        log[x as usize] = i as u8;
        x <<= 1;
        if x & 0x100 != 0 {
            x ^= POLYNOMIAL;
        }
        i += 1;
    }
    Tables { log, exp }
};

pub fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    TABLES.exp[TABLES.log[a as usize] as usize + TABLES.log[b as usize] as usize]
}

/// Returns the inverse of a nonzero element.
pub fn inverse(a: u8) -> u8 {
    assert_ne!(a, 0, "zero has no inverse");
    TABLES.exp[255 - TABLES.log[a as usize] as usize]
}

/// Function of `c`, `src` and `dst` that computes `dst ^= c * src`, byte by byte. Both slices have the same length.
type Engine = fn(u8, &[u8], &mut [u8]);

/// Lists the engines that this processor can run, slowest first.
fn engines() -> Vec<Engine> {
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
    let mut found: Vec<Engine> = vec![portable];
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, as was just checked, and both slices have the same length.
            found.push(|c, src, dst| unsafe { x86::avx2(c, src, dst) });
        }
        if is_x86_feature_detected!("gfni")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
        {
            // SAFETY: the processor has these instructions, as was just checked, and both slices have the same length.
            found.push(|c, src, dst| unsafe { x86::gfni(c, src, dst) });
        }
    }
    found
}

/// Computes `dst ^= c * src`, byte by byte, with the fastest engine.
pub fn mul_add(c: u8, src: &[u8], dst: &mut [u8]) {
    static FASTEST: OnceLock<Engine> = OnceLock::new();
    assert_eq!(src.len(), dst.len());
    let fastest = || *engines().last().expect("the portable engine is always listed");
    FASTEST.get_or_init(fastest)(c, src, dst);
}

/// Returns the products of `c` with the 16 low half-bytes and with the 16 high half-bytes.
fn halves(c: u8) -> ([u8; 16], [u8; 16]) {
    let mut low = [0; 16];
    let mut high = [0; 16];
    for i in 0..16u8 {
        low[i as usize] = mul(c, i);
        high[i as usize] = mul(c, i << 4);
    }
    (low, high)
}

fn portable(c: u8, src: &[u8], dst: &mut [u8]) {
    let (low, high) = halves(c);
    for (d, s) in dst.iter_mut().zip(src) {
        *d ^= low[(s & 15) as usize] ^ high[(s >> 4) as usize];
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{halves, mul, portable};
    use std::arch::x86_64::*;

    /// Computes `dst ^= c * src`, 32 bytes at a time.
    ///
    /// # Safety
    /// The processor has AVX2, and both slices have the same length.
    #[target_feature(enable = "avx2")]
    pub unsafe fn avx2(c: u8, src: &[u8], dst: &mut [u8]) {
        let (low, high) = halves(c);
        let whole = src.len() / 32 * 32;
        // SAFETY: every access is below `whole`, which is at most the length of both slices.
        unsafe {
            let low = _mm256_broadcastsi128_si256(_mm_loadu_si128(low.as_ptr().cast()));
            let high = _mm256_broadcastsi128_si256(_mm_loadu_si128(high.as_ptr().cast()));
            let mask = _mm256_set1_epi8(15);
            for i in (0..whole).step_by(32) {
                let s = _mm256_loadu_si256(src.as_ptr().add(i).cast());
                let d = dst.as_mut_ptr().add(i).cast();
                let l = _mm256_shuffle_epi8(low, _mm256_and_si256(s, mask));
                let h = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi64(s, 4), mask));
                let sum = _mm256_xor_si256(_mm256_xor_si256(l, h), _mm256_loadu_si256(d));
                _mm256_storeu_si256(d, sum);
            }
        }
        portable(c, &src[whole..], &mut dst[whole..]);
    }

    /// Computes `dst ^= c * src`, 64 bytes at a time.
    ///
    /// # Safety
    /// The processor has GFNI, AVX-512F and AVX-512BW, and both slices have the same length.
    #[target_feature(enable = "gfni,avx512f,avx512bw")]
    pub unsafe fn gfni(c: u8, src: &[u8], dst: &mut [u8]) {
        // Bit i of the product is the parity of x and row i (bitwise AND). The instruction expects row i in byte 7-i.
        let mut rows = [0u8; 8];
        for bit in 0..8 {
            let column = mul(c, 1 << bit);
            for (i, row) in rows.iter_mut().enumerate() {
                *row |= (column >> i & 1) << bit;
            }
        }
        rows.reverse();
        let whole = src.len() / 64 * 64;
        // SAFETY: every access is below `whole`, which is at most the length of both slices.
        unsafe {
            let matrix = _mm512_set1_epi64(i64::from_le_bytes(rows));
            for i in (0..whole).step_by(64) {
                let s = _mm512_loadu_si512(src.as_ptr().add(i).cast());
                let d = dst.as_mut_ptr().add(i).cast();
                let product = _mm512_gf2p8affine_epi64_epi8(s, matrix, 0);
                _mm512_storeu_si512(d, _mm512_xor_si512(product, _mm512_loadu_si512(d)));
            }
        }
        portable(c, &src[whole..], &mut dst[whole..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplies by definition, bit by bit, to check the tables.
    fn slow(a: u8, b: u8) -> u8 {
        let mut product = 0u16;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= (a as u16) << bit;
            }
        }
        for bit in (8..16).rev() {
            if product >> bit & 1 == 1 {
                product ^= POLYNOMIAL << (bit - 8);
            }
        }
        product as u8
    }

    #[test]
    fn products_and_inverses_are_those_of_the_field() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                assert_eq!(mul(a, b), slow(a, b));
            }
            if a != 0 {
                assert_eq!(mul(a, inverse(a)), 1);
            }
        }
    }

    #[test]
    fn every_engine_multiplies_every_byte_by_every_constant() {
        let src: Vec<u8> = (0..=255u8).chain(0..77).collect();
        for (number, engine) in engines().into_iter().enumerate() {
            for c in 0..=255u8 {
                let mut dst: Vec<u8> = src.iter().rev().copied().collect();
                let expected: Vec<u8> = dst.iter().zip(&src).map(|(d, s)| d ^ mul(c, *s)).collect();
                engine(c, &src, &mut dst);
                assert_eq!(dst, expected, "engine {number}, {c}");
            }
        }
    }
}
