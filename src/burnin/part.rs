//! Part of a node that a rank of a burn-in measures, and what the measurements of all parts share.

use std::time::{Duration, Instant};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Part of a node: its processors and memory, or a device.
pub(super) trait Part {
    /// Name of the engine that multiplies; for a device, the device and its libraries.
    fn engine(&self) -> &str;

    /// Multiplies for the time `slot`, and returns the operations per second. If `wanted`, also returns a digest of the product
    /// of the matrices.
    fn multiply(&mut self, slot: Duration, wanted: bool) -> (f64, u64);

    /// Copies memory for the time `slot`, and returns the bytes per second.
    fn copy(&mut self, slot: Duration) -> f64;
}

/// Repeats `work` for the time `slot`. `work` returns its amount; the result is the amount per second.
pub(super) fn per_second(slot: Duration, mut work: impl FnMut() -> f64) -> f64 {
    let (began, mut done) = (Instant::now(), 0.0);
    while began.elapsed() < slot {
        done += work();
    }
    done / began.elapsed().as_secs_f64()
}

/// Returns a function that returns different numbers, always the same ones. The rate of a multiplication depends on its numbers.
pub(super) fn numbers() -> impl FnMut() -> f64 {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    move || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 - 0.5
}
