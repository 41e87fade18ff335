//! Memory for doubles: for the matrix and for buffers.

use crate::base::threads::Pool;
use crate::shm::huge::HUGE;
use crate::shm::{MemoryError, Region};

/// Memory of a local matrix, private or persistent shared. The solver uses only the address and the length.
pub trait Storage {
    fn pointer(&mut self) -> *mut f64;
    /// Returns the length in doubles.
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Private memory, initially zero. It consists of huge pages if the system provides huge pages.
///
/// Huge pages matter, because a panel touches hundreds of addresses at a large stride. With small pages, each address would be on
/// another page.
pub struct HugeBuffer {
    /// Memory of the buffer: whole huge pages, if the buffer is at least one huge page long.
    room: Region,
    len: usize,
}

impl HugeBuffer {
    /// Allocates `len` doubles. Fails if the system does not provide the memory.
    pub fn new(len: usize) -> std::io::Result<Self> {
        Self::of(len, Region::anonymous)
    }

    /// Allocates `len` doubles as [`HugeBuffer::new`] does. All pages are already touched, and are spread over the rank's NUMA
    /// nodes: see [`Region::touched`].
    pub fn touched(len: usize, pool: &mut Pool) -> std::io::Result<Self> {
        Self::of(len, |bytes| Region::touched(bytes, pool))
    }

    fn of(
        len: usize,
        room: impl FnOnce(usize) -> Result<Region, MemoryError>,
    ) -> std::io::Result<Self> {
        let Some(bytes) = len.checked_mul(8) else {
            return Err(std::io::Error::from(std::io::ErrorKind::OutOfMemory));
        };
        let bytes = if bytes >= HUGE { Self::bytes_of(len) as usize } else { bytes };
        Ok(Self { room: room(bytes).map_err(std::io::Error::other)?, len })
    }

    pub fn as_slice(&self) -> &[f64] {
        &self.room.as_slice_f64()[..self.len]
    }

    pub fn as_mut_slice(&mut self) -> &mut [f64] {
        &mut self.room.as_slice_f64_mut()[..self.len]
    }

    pub fn as_ptr(&self) -> *const f64 {
        self.room.as_ptr().cast()
    }

    pub fn as_mut_ptr(&mut self) -> *mut f64 {
        self.room.as_ptr().cast()
    }

    /// Bytes of memory that the buffer takes.
    pub fn bytes(&self) -> u64 {
        Self::bytes_of(self.len) as u64
    }

    /// Bytes of memory that a buffer of `len` doubles takes: whole huge pages, if the buffer is at least one huge page long.
    pub fn bytes_of(len: usize) -> u128 {
        let bytes = len as u128 * 8;
        if bytes >= HUGE as u128 { bytes.next_multiple_of(HUGE as u128) } else { bytes }
    }
}

impl Storage for HugeBuffer {
    fn pointer(&mut self) -> *mut f64 {
        self.as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Storage for Region {
    fn pointer(&mut self) -> *mut f64 {
        self.as_slice_f64_mut().as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.as_slice_f64().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zero_and_writable_to_the_last_element() {
        for len in [0, 1, 1000, HUGE / 8 - 1, HUGE / 8, HUGE / 8 + 1] {
            let mut buffer = HugeBuffer::new(len).unwrap();
            assert_eq!(buffer.as_slice().len(), len);
            assert!(buffer.as_slice().iter().all(|&v| v == 0.0));
            let touched = HugeBuffer::touched(len, &mut Pool::new(3)).unwrap();
            assert!(touched.as_slice() == buffer.as_slice());
            if let Some(last) = buffer.as_mut_slice().last_mut() {
                *last = 1.0;
            }
            let bytes = buffer.bytes();
            assert!(bytes >= len as u64 * 8 && bytes < len as u64 * 8 + HUGE as u64);
            assert_eq!(bytes, buffer.room.len() as u64);
        }
        assert!(HugeBuffer::new(1 << 58).is_err());
    }
}
