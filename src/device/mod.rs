//! A device: memory that the processor cannot read, and queues of operations on this memory.
//!
//! Device memory contains the local matrix, U and the panels that are applied. The solver passes addresses of device memory to
//! operations, and never dereferences such an address. Operations are queued in streams. A stream runs its operations in order.
//! Operations of different streams run in any order that events permit, or at the same time.
//!
//! Back ends: `cuda`, and `host` for tests without an accelerator.

mod cuda;
mod host;
pub mod near;

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::base::params;
use crate::base::threads::Pool;
use crate::kernels::{Columns, LowerBlock, Matrix, Size, Step, Strided, TriangleBlock, UpperBlock};
use crate::matrix::{HugeBuffer, Storage};

/// A stream: a queue of operations of a device. Each kind of operation has its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Copies of panels from and to the processor's memory.
    Panel,
    /// Exchange of rows.
    Rows,
    /// Solve and multiplication of the update.
    Update,
}

impl Stream {
    const ALL: [Stream; STREAMS] = [Stream::Panel, Stream::Rows, Stream::Update];
}

/// Number of streams.
const STREAMS: usize = 3;

/// A point in a stream. The event has passed when all operations that were queued before it are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(u64);

/// A row to copy: its row number in the source and in the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowCopy {
    pub from: usize,
    pub to: usize,
}

/// Memory and operations of a device.
///
/// Matrices are stored by rows. An address may be in device memory or in pinned memory of the processor. An operation without
/// rows or columns may have any address.
///
/// An operation may run after the call that queues it. So its memory must stay valid until a later event of the stream has
/// passed. Until then, no thread and no concurrent operation uses memory that the operation writes, or writes memory that the
/// operation reads.
pub trait Device: Send + Sync {
    /// Describes the device and the libraries that act on it, for a reader.
    fn name(&self) -> &str;

    /// Allocates `len` doubles of device memory.
    ///
    /// # Errors
    /// If the device has too little memory left.
    fn allocate(&self, len: usize) -> io::Result<NonNull<f64>>;

    /// Frees memory that [`Device::allocate`] returned, after all queued operations.
    ///
    /// # Safety
    /// No later operation uses the memory.
    unsafe fn free(&self, memory: NonNull<f64>);

    /// Pins `len` doubles of the processor's memory, so that operations may use them.
    ///
    /// # Errors
    /// If the system does not permit the pinning.
    fn pin(&self, memory: NonNull<f64>, len: usize) -> io::Result<()>;

    /// Ends the pinning that [`Device::pin`] began.
    ///
    /// # Safety
    /// No operation uses the memory any more.
    unsafe fn unpin(&self, memory: NonNull<f64>);

    /// Copies a matrix of `rows` x `cols`.
    ///
    /// # Safety
    /// As for all operations ([`Device`]). The matrices do not overlap.
    unsafe fn copy_2d(
        &self,
        stream: Stream,
        from: Matrix<*const f64>,
        to: Matrix<*mut f64>,
        rows: usize,
        cols: usize,
    );

    /// Copies the first `cols` columns of the rows `rows`, in any order.
    ///
    /// # Safety
    /// As for all operations ([`Device`]). Each destination is a row that is not a source and not another destination.
    unsafe fn copy_rows(
        &self,
        stream: Stream,
        from: Matrix<*const f64>,
        to: Matrix<*mut f64>,
        rows: Vec<RowCopy>,
        cols: usize,
    );

    /// Copies a matrix of `rows` x `cols` to its transpose.
    ///
    /// # Safety
    /// As for all operations ([`Device`]); the matrices do not overlap.
    unsafe fn transpose(
        &self,
        stream: Stream,
        from: Matrix<*const f64>,
        to: Matrix<*mut f64>,
        rows: usize,
        cols: usize,
    );

    /// Does a step of a panel's factorisation, in the rows `rows` of the panel `w`. If the step has an update, writes its result
    /// to `found`, which is pinned. The result is the magnitude and the row of the largest element, the elements of this row, and
    /// the elements of row `current`.
    ///
    /// # Safety
    /// As for all operations ([`Device`]), and as for [`Step::run`]; the factors and the row to write are pinned. There is at
    /// least one row.
    unsafe fn step(
        &self,
        stream: Stream,
        w: Columns,
        step: Step,
        rows: Range<usize>,
        current: usize,
        found: *mut f64,
    );

    /// Computes A(m x n) -= L(m x k) B(k x n) within a panel. A and L are stored by columns, with the same leading dimension. `b`
    /// contains the strides of B.
    ///
    /// # Safety
    /// As for all operations ([`Device`]); A overlaps neither L nor B.
    unsafe fn multiply_in_panel(
        &self,
        stream: Stream,
        size: Size,
        l: *const f64,
        b: Strided,
        a: Matrix<*mut f64>,
    );

    /// Computes U(:, cols) := L1^-1 U(:, cols).
    ///
    /// # Safety
    /// As for all operations ([`Device`]). The blocks have the layouts of the engine `blas`.
    unsafe fn solve(&self, stream: Stream, l1: TriangleBlock, u: UpperBlock, cols: Range<usize>);

    /// Computes C(:, cols) -= L U(:, cols). `c` begins at row 0 and column 0 of the blocks.
    ///
    /// # Safety
    /// As for all operations ([`Device`]). The blocks have the layouts of the engine `blas`.
    unsafe fn multiply(
        &self,
        stream: Stream,
        l: LowerBlock,
        u: UpperBlock,
        cols: Range<usize>,
        c: Matrix<*mut f64>,
    );

    /// Records an event in `stream`, behind all operations that are queued in it.
    fn record(&self, stream: Stream) -> Event;

    /// Makes all later operations of `stream` wait for `event`.
    fn wait(&self, stream: Stream, event: Event);

    /// Returns whether `event` has passed.
    fn has_passed(&self, event: Event) -> bool;

    /// Waits until `event` has passed.
    fn synchronize(&self, event: Event);

    /// Waits until `stream` has run all its queued operations.
    fn finish(&self, stream: Stream) {
        self.synchronize(self.record(stream));
    }
}

/// A device of a node, for a check before a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    pub model: String,
    pub memory_bytes: u64,
    pub free_bytes: u64,
    /// True if the device corrects errors in its memory (ECC).
    pub corrects_errors: bool,
    /// Number of memory errors that could not be corrected, since the driver was loaded.
    pub memory_errors: u64,
    /// Present clock rate of the device's processors.
    pub clock_mhz: u32,
    /// Maximum clock rate of the device's processors.
    pub max_clock_mhz: u32,
}

impl fmt::Display for DeviceFacts {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let DeviceFacts { model, clock_mhz, max_clock_mhz, .. } = self;
        let [all, free] = [self.memory_bytes, self.free_bytes].map(|bytes| bytes >> 20);
        let ecc = if self.corrects_errors { "on" } else { "off" };
        write!(
            f,
            "{model}: {all} MiB with {free} MiB free, ECC {ecc}, {clock_mhz} of {max_clock_mhz} MHz"
        )
    }
}

/// Returns the devices of this node that `--device cuda` could use. If a variable of CUDA hides devices, the first of the node's
/// devices are returned. An error is one sentence without a full stop.
pub fn survey() -> Result<Vec<DeviceFacts>, String> {
    let mut found = cuda::survey::survey().map_err(|why| format!("--device cuda: {why}"))?;
    if let Ok(visible) = std::env::var("CUDA_VISIBLE_DEVICES") {
        found.truncate(visible.split(',').filter(|one| !one.is_empty()).count());
    }
    Ok(found)
}

pub use cuda::survey::Energy;

/// Opens the device of this rank. `ranks` describes the ranks of this node. Returns `None` if the setting is `none`. `seed`
/// determines the order in which the back end `host` runs its streams. An error is one sentence.
pub fn open(
    choice: params::Device,
    ranks: &near::Ranks,
    seed: u64,
) -> Result<Option<Arc<dyn Device>>, String> {
    Ok(match choice {
        params::Device::None => None,
        params::Device::Host => Some(Arc::new(host::Host::new(seed))),
        params::Device::Cuda => {
            Some(Arc::new(cuda::Cuda::open(ranks).map_err(|why| format!("--device cuda: {why}"))?))
        }
    })
}

/// Device memory for doubles, freed on drop. Its content is undefined until it is written.
pub struct Buffer {
    memory: NonNull<f64>,
    len: usize,
    device: Arc<dyn Device>,
}

impl Buffer {
    /// Allocates `len` doubles.
    ///
    /// # Errors
    /// If the device has too little memory left.
    pub fn new(device: &Arc<dyn Device>, len: usize) -> io::Result<Self> {
        Ok(Self { memory: device.allocate(len)?, len, device: device.clone() })
    }

    /// Returns the address of the memory. Only operations of the device may use this address.
    pub fn address(&self) -> *mut f64 {
        self.memory.as_ptr()
    }

    /// Bytes of the memory, rounded up to whole huge pages as [`HugeBuffer::bytes_of`] does.
    pub fn bytes(&self) -> u64 {
        HugeBuffer::bytes_of(self.len) as u64
    }
}

// SAFETY: only the device dereferences the address.
unsafe impl Send for Buffer {}

impl Storage for Buffer {
    fn pointer(&mut self) -> *mut f64 {
        self.address()
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl fmt::Debug for dyn Device {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Pinned memory of the processor. The pinning ends when the value is dropped.
#[derive(Debug)]
pub struct Pin {
    memory: NonNull<f64>,
    device: Arc<dyn Device>,
}

impl Pin {
    /// Pins `len` doubles of the processor's memory, from the address `memory`.
    ///
    /// # Errors
    /// As for [`Device::pin`].
    pub fn new(device: &Arc<dyn Device>, memory: NonNull<f64>, len: usize) -> io::Result<Self> {
        device.pin(memory, len)?;
        Ok(Self { memory, device: device.clone() })
    }
}

// SAFETY: the address is only passed to the device.
unsafe impl Send for Pin {}

impl Drop for Pin {
    fn drop(&mut self) {
        // After the loss of a rank, operations may still be queued.
        Stream::ALL.into_iter().for_each(|stream| self.device.finish(stream));
        // SAFETY: the owner of the memory queues no operation on it any more, and those before are complete.
        unsafe { self.device.unpin(self.memory) }
    }
}

/// Memory of the processor. If there is a device, its operations may use the memory.
pub struct Pinned {
    /// Pinning of `buffer`. It is declared before `buffer`, because fields are dropped in order and the pinning must end first.
    _pin: Option<Pin>,
    buffer: HugeBuffer,
}

impl Pinned {
    /// Allocates `len` doubles as [`HugeBuffer::touched`] does, and pins them if there is a device.
    ///
    /// # Errors
    /// If the system has too little memory left, or does not permit the pinning.
    pub fn touched(
        device: Option<&Arc<dyn Device>>,
        len: usize,
        pool: &mut Pool,
    ) -> io::Result<Self> {
        let mut buffer = HugeBuffer::touched(len, pool)?;
        // Memory without bytes cannot be pinned.
        let (device, memory) = (device.filter(|_| len > 0), NonNull::new(buffer.as_mut_ptr()));
        let pin = device.zip(memory).map(|(device, memory)| Pin::new(device, memory, len));
        Ok(Self { _pin: pin.transpose()?, buffer })
    }
}

impl Deref for Pinned {
    type Target = HugeBuffer;

    fn deref(&self) -> &HugeBuffer {
        &self.buffer
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut HugeBuffer {
        &mut self.buffer
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the owner of the buffer queues no operation on it any more.
        unsafe { self.device.free(self.memory) }
    }
}
