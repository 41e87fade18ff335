//! Digest of a row: one word computed from all words of the row, and stored in the tables of a checkpoint.
//!
//! A save digests all data that it encodes, and a restore digests all data before trusting them, so the digest must run at memory
//! speed. The digest detects flipped bits, lost data and stale data, but no changes by an adversary. One kind of processor may
//! read memory that another kind has written. So all variants below are the same function, compiled for different vector units.

/// Number of words in one step: two vectors of the widest kind.
const LANES: usize = 16;
const CHAINS: usize = 4;
const LOW: u64 = 0xffff_ffff;
/// Odd constant with well-mixed bits: the first digits of the fraction of the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Odd constant with well-mixed bits: the first digits of the fraction of the square root of two.
const ROOT: u64 = 0x6a09_e667_f3bc_c909;

const fn first_keys() -> [u64; LANES] {
    let mut keys = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        keys[lane] = ROOT.wrapping_mul(2 * lane as u64 + 1) ^ GOLDEN.rotate_left(lane as u32);
        lane += 1;
    }
    keys
}

const KEYS: [u64; LANES] = first_keys();

/// Intermediate state of a digest.
///
/// The plain sums detect any single changed word with certainty. For the products, each word is combined by exclusive or with a
/// key that differs for every position. Then the two halves of the combined word are multiplied. The products detect what the
/// sums miss: exchanged words, and changes that cancel out.
struct State {
    sums: [u64; LANES],
    products: [u64; LANES],
    keys: [u64; LANES],
}

impl State {
    #[inline(always)]
    fn take(&mut self, words: &[u64; LANES]) {
        for (lane, &word) in words.iter().enumerate() {
            let keyed = word ^ self.keys[lane];
            self.sums[lane] = self.sums[lane].wrapping_add(word);
            self.products[lane] = self.products[lane].wrapping_add((keyed & LOW) * (keyed >> 32));
            self.keys[lane] = self.keys[lane].wrapping_add(GOLDEN);
        }
    }
}

/// Mixes a word into a hash. Any change of `word` alone or of `hash` alone changes the result.
fn mix(hash: u64, word: u64) -> u64 {
    let mixed = (hash.rotate_left(29) ^ word).wrapping_mul(GOLDEN);
    mixed ^ (mixed >> 32)
}

#[inline(always)]
fn over(words: &[u64]) -> u64 {
    let mut state = State { sums: [0; LANES], products: [0; LANES], keys: KEYS };
    let (whole, rest) = words.as_chunks::<LANES>();
    for chunk in whole {
        state.take(chunk);
    }
    if !rest.is_empty() {
        // The length is part of the digest, so zeros in the data differ from this padding.
        let mut padded = [0; LANES];
        padded[..rest.len()].copy_from_slice(rest);
        state.take(&padded);
    }
    // Four independent chains are faster. A single chain over all lanes would take as long as the words of a row.
    let mut chains = [ROOT ^ words.len() as u64; CHAINS];
    for lanes in (0..LANES).step_by(CHAINS) {
        for (chain, lane) in chains.iter_mut().zip(lanes..) {
            *chain = mix(mix(*chain, state.sums[lane]), state.products[lane]);
        }
    }
    chains.into_iter().fold(0, mix)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
fn over_avx512(words: &[u64]) -> u64 {
    over(words)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn over_avx2(words: &[u64]) -> u64 {
    over(words)
}

/// Returns the digest of these words, which is the same on every machine.
pub fn digest(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
            // SAFETY: the processor has AVX-512F and AVX-512DQ, as was just checked.
            return unsafe { over_avx512(words) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, as was just checked.
            return unsafe { over_avx2(words) };
        }
    }
    over(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn noise(words: usize) -> Vec<u64> {
        let mut state = 88_172_645_463_325_252;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (0..words).map(|_| next()).collect()
    }

    #[test]
    fn every_processor_gets_the_same() {
        for words in [0, 1, 15, 16, 17, 100, 1024, 1025] {
            let words = noise(words);
            assert_eq!(digest(&words), over(&words));
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2, as was just checked.
                assert_eq!(unsafe { over_avx2(&words) }, over(&words));
            }
        }
        // The values are fixed, because one build reads memory that another build has written.
        assert_eq!(digest(&[]), 3_058_699_895_980_679_880);
        assert_eq!(digest(&noise(1024)), 12_447_402_309_119_017_736);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for mut words in [noise(100), vec![0; 100], vec![u64::MAX; 100]] {
            let sound = digest(&words);
            for at in 0..words.len() {
                for bit in 0..64 {
                    words[at] ^= 1 << bit;
                    assert_ne!(digest(&words), sound, "bit {bit} of word {at}");
                    words[at] ^= 1 << bit;
                }
            }
        }
    }

    #[test]
    fn pairs_of_flipped_bits_are_noticed() {
        let mut words = noise(40);
        let sound = digest(&words);
        // The same bit is flipped in two words. If one word grows and the other word shrinks, a plain sum does not change.
        for first in 0..words.len() {
            for second in 0..first {
                for bit in [0, 1, 31, 32, 62, 63] {
                    words[first] ^= 1 << bit;
                    words[second] ^= 1 << bit;
                    assert_ne!(digest(&words), sound, "bit {bit} of words {first} and {second}");
                    words[first] ^= 1 << bit;
                    words[second] ^= 1 << bit;
                }
            }
        }
    }

    #[test]
    fn words_out_of_place_are_noticed() {
        let words = noise(64);
        let sound = digest(&words);
        for first in 0..words.len() {
            for second in 0..first {
                let mut swapped = words.clone();
                swapped.swap(first, second);
                assert_ne!(digest(&swapped), sound, "words {first} and {second}");
            }
            let mut turned = words.clone();
            turned.rotate_left(first);
            assert_eq!(digest(&turned) == sound, first == 0);
        }
    }

    #[test]
    fn lengths_differ_and_so_do_digests_of_much_the_same() {
        let mut seen = HashSet::new();
        for words in 0..2000 {
            assert!(seen.insert(digest(&vec![0; words])), "{words} zeros");
        }
        for value in 1..2000u64 {
            assert!(seen.insert(digest(&[value])), "{value}");
            assert!(seen.insert(digest(&[value << 40])), "{value} << 40");
        }
    }
}
