//! Measurements of a device in a burn-in: multiplication in device memory, and copies from and to the node's memory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use super::part::{Part, numbers, per_second};
use crate::base::params;
use crate::base::threads::Pool;
use crate::comm::die;
use crate::device::near::Ranks;
use crate::device::{self, Buffer, Device, Pinned, Stream};
use crate::kernels::{Engine, LowerBlock, Matrix, UpperBlock};

/// Width of the panels in a multiplication.
const NB: usize = 512;

/// Number of rows and of columns of the product: enough to occupy the largest devices.
const SIDE: usize = 8192;

/// Number of rows and of columns of the product on the back end for tests.
const SIDE_OF_TESTS: usize = 128;

/// Doubles of a copy: 64 MiB.
const COPIED: usize = 8 << 20;

/// A device, with the operands of its measurements.
pub struct DeviceProbe {
    device: Arc<dyn Device>,
    side: usize,
    lower: Buffer,
    upper: Buffer,
    product: Buffer,
    /// Numbers in the node's memory, which are copied to the device.
    here: Pinned,
    /// Memory of the node for copies from the device.
    back: Pinned,
}

impl DeviceProbe {
    /// Opens the device of a rank, and fills the operands. Each rank of a node gets another device. An error is one sentence.
    pub fn open(choice: params::Device, ranks: &Ranks) -> Result<Option<Self>, String> {
        if choice == params::Device::Cuda {
            let (found, taken) = (device::survey()?.len(), ranks.memories.len());
            if found != taken {
                return Err(format!(
                    "{} has {found} device(s), but {taken} slot(s) in the host file: each device is a slot",
                    crate::base::host_name()
                ));
            }
        }
        let Some(device) = device::open(choice, ranks, 1)? else { return Ok(None) };
        let side = if choice == params::Device::Cuda { SIDE } else { SIDE_OF_TESTS };
        Self::new(device, side).map(Some).map_err(|why| why.to_string())
    }

    fn new(device: Arc<dyn Device>, side: usize) -> io::Result<Self> {
        let buffer = |len| Buffer::new(&device, len);
        let (lower, upper, product) =
            (buffer(side * NB)?, buffer(NB * side)?, buffer(side * side)?);
        let pinned = || Pinned::touched(Some(&device), COPIED.min(side * side), &mut Pool::new(1));
        let (mut here, back) = (pinned()?, pinned()?);
        here.as_mut_slice().fill_with(numbers());
        let probe = Self { device, side, lower, upper, product, here, back };
        probe.fill(&probe.lower, side * NB);
        probe.fill(&probe.upper, NB * side);
        Ok(probe)
    }

    /// Returns the number of doubles of a copy.
    fn copied(&self) -> usize {
        COPIED.min(self.side * self.side)
    }

    /// Fills the first `len` doubles of device memory with the numbers in the node's memory, which may repeat.
    fn fill(&self, buffer: &Buffer, len: usize) {
        for at in (0..len).step_by(self.copied()) {
            let some = self.copied().min(len - at);
            let from = Matrix::new(self.here.as_ptr(), some);
            let to = Matrix::new(buffer.address().wrapping_add(at), some);
            // SAFETY: the parts lie in both buffers, which live until the copy has ended.
            unsafe { self.device.copy_2d(Stream::Panel, from, to, 1, some) };
        }
        self.device.finish(Stream::Panel);
    }

    /// Multiplies once.
    fn run(&self) {
        let (engine, side) = (Engine::Blas, self.side);
        let lower = LowerBlock { engine, rows: side, k: NB, data: self.lower.address() };
        let upper = UpperBlock { engine, k: NB, cols: side, data: self.upper.address() };
        let product = Matrix::new(self.product.address(), side);
        // SAFETY: the blocks have these sizes, and live until the multiplication has ended.
        unsafe { self.device.multiply(Stream::Update, lower, upper, 0..side, product) };
        self.device.finish(Stream::Update);
    }

    /// Returns a digest of the product.
    fn digest(&mut self) -> u64 {
        let mut digest = Xxh3::new();
        let all = self.side * self.side;
        for at in (0..all).step_by(self.copied()) {
            let len = self.copied().min(all - at);
            self.copy_back(at, len);
            for value in &self.back.as_slice()[..len] {
                digest.update(&value.to_bits().to_le_bytes());
            }
        }
        digest.digest()
    }

    /// Copies `len` doubles of the product, from position `at`, to the node's memory.
    fn copy_back(&mut self, at: usize, len: usize) {
        let from = Matrix::new(self.product.address().cast_const().wrapping_add(at), len);
        let to = Matrix::new(self.back.as_mut_ptr(), len);
        // SAFETY: the parts lie in both buffers, which live until the copy has ended.
        unsafe { self.device.copy_2d(Stream::Panel, from, to, 1, len) };
        self.device.finish(Stream::Panel);
    }
}

impl Part for DeviceProbe {
    fn engine(&self) -> &str {
        self.device.name()
    }

    fn multiply(&mut self, slot: Duration, wanted: bool) -> (f64, u64) {
        self.fill(&self.product, self.side * self.side);
        // The first run warms up the device, and is not timed.
        self.run();
        let digest = if wanted { self.digest() } else { 0 };
        let each = 2.0 * (self.side * self.side * NB) as f64;
        let rate = per_second(slot, || {
            self.run();
            each
        });
        (rate, digest)
    }

    /// Copies to the device and back. The node's memory is allocated again, so the median of several measurements does not depend
    /// on one allocation.
    fn copy(&mut self, slot: Duration) -> f64 {
        let len = self.copied();
        let pinned = || Pinned::touched(Some(&self.device), len, &mut Pool::new(1));
        let (here, back) = (pinned(), pinned());
        let pair = here.and_then(|here| Ok((here, back?)));
        (self.here, self.back) = pair.unwrap_or_else(|why| die(6, &why.to_string()));
        self.here.as_mut_slice().fill_with(numbers());
        per_second(slot, || {
            self.fill(&self.product, len);
            self.copy_back(0, len);
            (2 * len * size_of::<f64>()) as f64
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_measures_itself_and_comes_to_the_same_product_each_time() {
        let open = || DeviceProbe::open(params::Device::Host, &Ranks::default()).unwrap().unwrap();
        let (mut one, mut two) = (open(), open());
        let slot = Duration::from_millis(1);
        let (rate, product) = one.multiply(slot, true);
        assert!(rate > 0.0 && one.copy(slot) > 0.0);
        assert_eq!(two.multiply(slot, true).1, product);
        assert_eq!(one.multiply(slot, true).1, product, "the operands are as before");
        assert_ne!(one.multiply(slot, false).1, product, "nothing was looked at");
        two.run();
        assert_ne!(two.digest(), product, "a product of other runs");
        assert!(DeviceProbe::open(params::Device::None, &Ranks::default()).unwrap().is_none());
    }
}
