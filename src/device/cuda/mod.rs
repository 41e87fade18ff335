//! The back end `cuda`: a GPU of NVIDIA.
//!
//! The libraries are loaded when the run starts, so the program also runs where there are none. Every call is checked. If a call
//! fails during a test, the device is lost: the process ends with a message.

mod compile;
mod functions;
pub mod survey;

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

use super::near::{Ranks, assign};
use super::{Device, Event, RowCopy, STREAMS, Stream};
use crate::base::exit::Exit;
use crate::base::params::Form;
use crate::comm::die;
use crate::kernels::{
    Columns, LowerBlock, Matrix, Size, Step, Strided, Strides, TriangleBlock, UpperBlock,
};
use functions::{Blas, Compiler, Copy2d, Driver, Handle, Side, Status};

/// Environment variable by which a user makes cuBLAS emulate double precision.
const EMULATION: &str = "CUBLAS_EMULATE_DOUBLE_PRECISION";

/// Constants of the driver.
const NOT_READY: Status = 600;
const OUT_OF_MEMORY: Status = 2;
const UNIFIED: c_uint = 4;
const NON_BLOCKING: c_uint = 1;
const WITHOUT_TIMES: c_uint = 2;
/// Flags of pinned memory: kernels may use it, in every context.
const PORTABLE_AND_MAPPED: c_uint = 3;
/// Priority of the streams for panels and rows, which must not wait for the blocks of a multiplication. The driver takes the
/// nearest priority that the device has.
const FIRST: c_int = -100;
const LAST: c_int = 0;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
const USES_HOST_ADDRESSES: c_int = 91;

/// Constants of cuBLAS.
const NO: c_int = 0;
const YES: c_int = 1;

/// Number of rows that a launch of `copy_rows` copies.
const ROWS: usize = 480;
/// Number of threads in a block of `copy_rows`, of `step` and of `found`.
const THREADS: usize = 256;
/// Number of rows and of columns of a tile of `transpose`.
const TILE: usize = 32;
/// Number of rows of threads in a block of `transpose`.
const TILE_ROWS: c_uint = 8;
/// Largest number of blocks of `step`.
const BLOCKS: usize = 256;

/// Argument of the kernel `copy_rows`: row numbers in the source and in the destination.
#[repr(C)]
struct Rows {
    from: [u32; ROWS],
    to: [u32; ROWS],
}

/// Argument of the kernels `step` and `found`.
#[repr(C)]
struct StepArguments {
    w: *mut f64,
    ld: usize,
    first: usize,
    end: usize,
    width: usize,
    place: i64,
    row: *const f64,
    divided: i64,
    pivot: f64,
    j: i64,
    start: usize,
    right: i64,
    factors: *const f64,
    count: usize,
}

impl StepArguments {
    fn new(w: Columns, step: &Step, rows: Range<usize>) -> Self {
        let number = |place: Option<usize>| place.map_or(-1, |place| place as i64);
        let (row, column, update) = (step.owed.row, step.owed.column, step.update);
        Self {
            w: w.w.get(),
            ld: w.ld,
            first: rows.start,
            end: rows.end,
            width: step.width,
            place: number(row.map(|(place, _)| place)),
            row: row.map_or(std::ptr::null(), |(_, row)| row.get()),
            divided: number(column.map(|(j, _)| j)),
            pivot: column.map_or(1.0, |(_, pivot)| pivot),
            j: number(update.map(|update| update.j)),
            start: update.map_or(0, |update| update.start),
            right: update.is_some_and(|update| update.right).into(),
            factors: update.map_or(std::ptr::null(), |update| update.factors.many.get()),
            count: update.map_or(0, |update| update.factors.len),
        }
    }
}

/// Number of blocks and of threads of a launch, in two dimensions.
struct Launch {
    blocks: (usize, usize),
    threads: (usize, c_uint),
}

/// Handles of the kernels in `kernels.cu`.
struct Kernels {
    copy_rows: Handle,
    transpose: Handle,
    step: Handle,
    found: Handle,
}

/// Events that are pending: the driver has not reported yet that they have passed.
#[derive(Default)]
struct Events {
    count: u64,
    pending: HashMap<Event, Handle>,
    free: Vec<Handle>,
}

/// A device with its streams and kernels.
pub struct Cuda {
    driver: Driver,
    blas: Blas,
    /// Name of the device with the versions of the libraries, for a reader.
    name: String,
    /// Address of the device on the bus.
    bus: String,
    context: Handle,
    streams: [Handle; STREAMS],
    kernels: Kernels,
    /// Device memory in which each thread block of the kernel `step` leaves magnitude and row of its largest element.
    best: NonNull<f64>,
    /// Handles of cuBLAS: the first for panels, the second for updates. One thread at a time may use them.
    blas_handles: Mutex<[Handle; 2]>,
    events: Mutex<Events>,
}

// SAFETY: threads may share the handles of the driver. The handles of cuBLAS have a lock.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// Opens the device of this rank. `ranks` describes the ranks of this node. An error is a sentence without a full stop.
    pub fn open(ranks: &Ranks) -> Result<Self, String> {
        if std::env::var(EMULATION).is_ok_and(|value| value != "0") {
            return Err(format!(
                "{EMULATION} is set, but HPL requires native double precision: unset this variable"
            ));
        }
        let driver =
            Driver::open().map_err(|why| format!("{why}: is NVIDIA's driver installed?"))?;
        let (blas, compiler) = (Blas::open()?, Compiler::open()?);
        let (mut count, mut device, mut version) = (0, 0, 0);
        // SAFETY: the driver is initialised first, and fills the values.
        unsafe {
            try_call(&driver, "cuInit", (driver.init)(0))?;
            try_call(&driver, "cuDriverGetVersion", (driver.driver_version)(&mut version))?;
            try_call(&driver, "cuDeviceGetCount", (driver.device_count)(&mut count))?;
            if count == 0 {
                return Err("the driver finds no device".into());
            }
            let memories = (0..count).map(|number| memory_of(&driver, number));
            let memories = memories.collect::<Result<Vec<_>, _>>()?;
            let number = assign(&ranks.memories, &memories)[ranks.own] as c_int;
            try_call(&driver, "cuDeviceGet", (driver.device_get)(&mut device, number))?;
        }
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: the driver fills the value.
            let status = unsafe { (driver.device_attribute)(&mut value, which, device) };
            try_call(&driver, "cuDeviceGetAttribute", status).map(|()| value)
        };
        let capability = 10 * attribute(CAPABILITY_MAJOR)? + attribute(CAPABILITY_MINOR)?;
        if attribute(USES_HOST_ADDRESSES)? == 0 {
            return Err("the device cannot use addresses of the processor's memory".into());
        }
        let code = compile::compile(&compiler, capability)?;
        let (mut context, mut module, mut best) = (NULL, NULL, NULL);
        let (mut streams, mut blas_handles) = ([NULL; STREAMS], [NULL; 2]);
        let mut blas_version = 0;
        // SAFETY: the libraries fill the handles, and read the code and the name of the function.
        unsafe {
            let retained = (driver.context_retain)(&mut context, device);
            try_call(&driver, "cuDevicePrimaryCtxRetain", retained)?;
            try_call(&driver, "cuCtxSetCurrent", (driver.context_set)(context))?;
            let loaded = (driver.module_load)(&mut module, code.as_ptr().cast());
            try_call(&driver, "cuModuleLoadData", loaded)?;
            let allocated = (driver.memory_allocate)(&mut best, 2 * BLOCKS * size_of::<f64>());
            try_call(&driver, "cuMemAlloc", allocated)?;
            for (i, stream) in streams.iter_mut().enumerate() {
                let priority = if i == Stream::Update as usize { LAST } else { FIRST };
                let created = (driver.stream_create)(stream, NON_BLOCKING, priority);
                try_call(&driver, "cuStreamCreateWithPriority", created)?;
            }
            let of = [Stream::Panel, Stream::Update].map(|stream| streams[stream as usize]);
            for (handle, stream) in blas_handles.iter_mut().zip(of) {
                try_blas("cublasCreate", (blas.create)(handle))?;
                try_blas("cublasSetStream", (blas.set_stream)(*handle, stream))?;
            }
            try_blas("cublasGetVersion", (blas.version)(blas_handles[0], &mut blas_version))?;
        }
        let kernel = |name: &CStr| {
            let mut function = NULL;
            // SAFETY: the driver fills the handle.
            let found = unsafe { (driver.module_function)(&mut function, module, name.as_ptr()) };
            try_call(&driver, "cuModuleGetFunction", found).map(|()| function)
        };
        let kernels = Kernels {
            copy_rows: kernel(c"copy_rows")?,
            transpose: kernel(c"transpose")?,
            step: kernel(c"step")?,
            found: kernel(c"found")?,
        };
        let best = NonNull::new(best.cast()).ok_or("the driver has allocated no memory")?;
        let model = text(|at, len| unsafe { (driver.device_name)(at, len, device) });
        let bus = text(|at, len| unsafe { (driver.device_bus_id)(at, len, device) });
        let name = format!(
            "{model}, compute capability {}.{}, driver for CUDA {}.{}, cuBLAS {}.{}.{}",
            capability / 10,
            capability % 10,
            version / 1000,
            version % 1000 / 10,
            blas_version / 10000,
            blas_version % 10000 / 100,
            blas_version % 100
        );
        let (blas_handles, events) = (Mutex::new(blas_handles), Mutex::default());
        Ok(Self { driver, blas, name, bus, context, streams, kernels, best, blas_handles, events })
    }

    /// Makes this device current for the calling thread, and returns the driver.
    fn driver(&self) -> &Driver {
        // SAFETY: the context exists as long as the process.
        self.check("cuCtxSetCurrent", unsafe { (self.driver.context_set)(self.context) });
        &self.driver
    }

    /// Ends this process if a call has failed. A call may also report errors of earlier operations.
    fn check(&self, call: &str, status: Status) {
        if let Err(why) = try_call(&self.driver, call, status) {
            self.is_lost(&why);
        }
    }

    fn check_blas(&self, call: &str, status: Status) {
        if let Err(why) = try_blas(call, status) {
            self.is_lost(&why);
        }
    }

    /// Calls cuBLAS with its handle for `stream`.
    fn with_blas(&self, stream: Stream, name: &str, call: impl FnOnce(&Blas, Handle) -> Status) {
        self.driver();
        let [panel, update] = *self.blas_handles.lock().expect("no call panicked");
        let handle = match stream {
            Stream::Panel => panel,
            Stream::Update => update,
            Stream::Rows => unreachable!("nothing is multiplied in this stream"),
        };
        self.check_blas(name, call(&self.blas, handle));
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// The arguments have the types that the kernel expects, and the conditions of the operation ([`Device`]) are met.
    unsafe fn launch<const N: usize>(
        &self,
        kernel: Handle,
        stream: Stream,
        Launch { blocks, threads }: Launch,
        mut arguments: [*mut c_void; N],
    ) {
        // SAFETY: ensured by the caller; the driver copies the arguments.
        let launched = unsafe {
            (self.driver().launch)(
                kernel,
                narrow(blocks.0),
                narrow(blocks.1),
                1,
                narrow(threads.0),
                threads.1,
                1,
                0,
                self.stream(stream),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.check("cuLaunchKernel", launched);
    }

    fn is_lost(&self, why: &str) -> ! {
        let lost = format!(
            "the device at {} ({}) is lost: {why}; look for an Xid error in the log of the Linux kernel (dmesg)",
            self.bus, self.name
        );
        die(Exit::Environment.code().into(), &lost)
    }

    fn stream(&self, stream: Stream) -> Handle {
        self.streams[stream as usize]
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().expect("no call panicked")
    }

    /// Returns whether a pending event has passed.
    fn query(&self, handle: Handle) -> bool {
        // SAFETY: an event of this device.
        match unsafe { (self.driver().event_query)(handle) } {
            NOT_READY => false,
            status => {
                self.check("cuEventQuery", status);
                true
            }
        }
    }

    /// Copies up to [`ROWS`] rows.
    ///
    /// # Safety
    /// As for [`Device::copy_rows`].
    unsafe fn launch_copies(
        &self,
        stream: Stream,
        from: Matrix<*const f64>,
        to: Matrix<*mut f64>,
        rows: &[RowCopy],
        cols: usize,
    ) {
        let mut numbers = Rows { from: [0; ROWS], to: [0; ROWS] };
        for (i, row) in rows.iter().enumerate() {
            (numbers.from[i], numbers.to[i]) = (narrow(row.from), narrow(row.to));
        }
        let (mut from, mut to, mut cols) = (from, to, cols);
        let arguments = [
            (&raw mut from.at).cast(),
            (&raw mut from.ld).cast(),
            (&raw mut to.at).cast(),
            (&raw mut to.ld).cast(),
            (&raw mut cols).cast(),
            (&raw mut numbers).cast(),
        ];
        // A few elements a thread, and no more blocks in a row than keep the memory busy.
        let blocks = (cols.div_ceil(4 * THREADS).min(64), rows.len());
        let size = Launch { blocks, threads: (THREADS, 1) };
        // SAFETY: ensured by the caller.
        unsafe { self.launch(self.kernels.copy_rows, stream, size, arguments) }
    }
}

const NULL: Handle = std::ptr::null_mut();

/// Converts a number of rows or columns to an integer type of the libraries. Panics if the number is too large.
fn narrow<N: TryFrom<usize>>(number: usize) -> N {
    N::try_from(number).ok().expect("a rank's part of the matrix has sides below 2^31")
}

/// Returns the text that `write`, a call of the driver, puts into a buffer; `?` if the call fails.
fn text(write: impl FnOnce(*mut std::ffi::c_char, c_int) -> Status) -> String {
    let mut bytes = [0u8; 128];
    let status = write(bytes.as_mut_ptr().cast(), 127);
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy();
    if status == 0 { text.trim().to_owned() } else { "?".to_owned() }
}

/// Returns the NUMA node of device `number`; `None` if the system does not report it. Returns an error if the driver has no such
/// device.
fn memory_of(driver: &Driver, number: c_int) -> Result<Option<usize>, String> {
    let mut device = 0;
    // SAFETY: the driver fills the value.
    try_call(driver, "cuDeviceGet", unsafe { (driver.device_get)(&mut device, number) })?;
    // SAFETY: the driver writes a text of at most this length.
    let bus = text(|at, len| unsafe { (driver.device_bus_id)(at, len, device) });
    let file = format!("/sys/bus/pci/devices/{}/numa_node", bus.to_lowercase());
    Ok(std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()))
}

/// Returns an error with the name of the call and the reason if `status` means that the call has failed.
fn try_call(driver: &Driver, call: &str, status: Status) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    let mut found = [std::ptr::null(); 2];
    // SAFETY: the driver sets both to constant strings, or leaves them.
    let [name, meaning] = unsafe {
        (driver.error_name)(status, &mut found[0]);
        (driver.error_string)(status, &mut found[1]);
        found.map(|at| if at.is_null() { "?".into() } else { CStr::from_ptr(at).to_string_lossy() })
    };
    Err(format!("{call} failed: {name} ({status}), {meaning}"))
}

fn try_blas(call: &str, status: Status) -> Result<(), String> {
    match status {
        0 => Ok(()),
        _ => Err(format!("{call} failed with status {status} of cuBLAS")),
    }
}

impl Device for Cuda {
    fn name(&self) -> &str {
        &self.name
    }

    fn allocate(&self, len: usize) -> io::Result<NonNull<f64>> {
        let bytes = len.max(1).checked_mul(8).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut memory = NULL;
        // SAFETY: the driver fills the address.
        let status = unsafe { (self.driver().memory_allocate)(&mut memory, bytes) };
        if status == OUT_OF_MEMORY {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        self.check("cuMemAlloc", status);
        NonNull::new(memory.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    unsafe fn free(&self, memory: NonNull<f64>) {
        // SAFETY: ensured by the caller. The driver waits for the operations.
        let status = unsafe { (self.driver().memory_free)(memory.as_ptr().cast()) };
        self.check("cuMemFree", status);
    }

    fn pin(&self, memory: NonNull<f64>, len: usize) -> io::Result<()> {
        let at = memory.as_ptr().cast();
        // SAFETY: the driver only locks pages and maps them.
        let status = unsafe { (self.driver().memory_register)(at, len * 8, PORTABLE_AND_MAPPED) };
        try_call(&self.driver, "cuMemHostRegister", status).map_err(io::Error::other)
    }

    unsafe fn unpin(&self, memory: NonNull<f64>) {
        // SAFETY: ensured by the caller.
        let status = unsafe { (self.driver().memory_unregister)(memory.as_ptr().cast()) };
        self.check("cuMemHostUnregister", status);
    }

    unsafe fn copy_2d(
        &self,
        stream: Stream,
        from: Matrix<*const f64>,
        to: Matrix<*mut f64>,
        rows: usize,
        cols: usize,
    ) {
        if rows == 0 || cols == 0 {
            return;
        }
        let (source, destination) = (from.at.cast::<c_void>(), to.at.cast::<c_void>());
        // Distances of rows are limited, lengths are not.
        if rows == 1 || (from.ld == cols && to.ld == cols) {
            let (bytes, stream) = (rows * cols * 8, self.stream(stream));
            // SAFETY: ensured by the caller.
            let status =
                unsafe { (self.driver().copy)(destination, source.cast_mut(), bytes, stream) };
            return self.check("cuMemcpyAsync", status);
        }
        let side = |at, ld| Side {
            x: 0,
            y: 0,
            kind: UNIFIED,
            host: std::ptr::null(),
            device: at,
            array: std::ptr::null(),
            pitch: ld * 8,
        };
        let (from, to) = (side(source, from.ld), side(destination, to.ld));
        let copy = Copy2d { from, to, width: cols * 8, height: rows };
        // SAFETY: ensured by the caller.
        let status = unsafe { (self.driver().copy_2d)(&copy, self.stream(stream)) };
        self.check("cuMemcpy2DAsync", status);
    }

    unsafe fn copy_rows(
        &self,
        stream: Stream,
        from: Matrix<*const f64>,
        to: Matrix<*mut f64>,
        rows: Vec<RowCopy>,
        cols: usize,
    ) {
        if cols > 0 {
            for some in rows.chunks(ROWS) {
                // SAFETY: ensured by the caller.
                unsafe { self.launch_copies(stream, from, to, some, cols) }
            }
        }
    }

    unsafe fn transpose(
        &self,
        stream: Stream,
        mut from: Matrix<*const f64>,
        mut to: Matrix<*mut f64>,
        mut rows: usize,
        mut cols: usize,
    ) {
        if rows == 0 || cols == 0 {
            return;
        }
        let blocks = (cols.div_ceil(TILE), rows.div_ceil(TILE));
        let size = Launch { blocks, threads: (TILE, TILE_ROWS) };
        let arguments = [
            (&raw mut from.at).cast(),
            (&raw mut from.ld).cast(),
            (&raw mut to.at).cast(),
            (&raw mut to.ld).cast(),
            (&raw mut rows).cast(),
            (&raw mut cols).cast(),
        ];
        // SAFETY: ensured by the caller.
        unsafe { self.launch(self.kernels.transpose, stream, size, arguments) }
    }

    unsafe fn step(
        &self,
        stream: Stream,
        w: Columns,
        step: Step,
        rows: Range<usize>,
        mut current: usize,
        mut found: *mut f64,
    ) {
        assert_eq!(
            stream,
            Stream::Panel,
            "a step runs in the panel stream only: `best` has room for the results of one step"
        );
        let mut blocks = rows.len().div_ceil(THREADS).min(BLOCKS);
        let mut arguments = StepArguments::new(w, &step, rows);
        let mut best = self.best.as_ptr();
        let (step_at, best_at) = ((&raw mut arguments).cast(), (&raw mut best).cast());
        let size = Launch { blocks: (blocks, 1), threads: (THREADS, 1) };
        // SAFETY: ensured by the caller.
        unsafe { self.launch(self.kernels.step, stream, size, [step_at, best_at]) }
        if step.update.is_none() {
            return;
        }
        let size = Launch { blocks: (1, 1), threads: (THREADS, 1) };
        let arguments = [
            step_at,
            best_at,
            (&raw mut blocks).cast(),
            (&raw mut current).cast(),
            (&raw mut found).cast(),
        ];
        // SAFETY: ensured by the caller.
        unsafe { self.launch(self.kernels.found, stream, size, arguments) }
    }

    unsafe fn multiply_in_panel(
        &self,
        stream: Stream,
        size: Size,
        l: *const f64,
        b: Strided,
        a: Matrix<*mut f64>,
    ) {
        if size.is_empty() {
            return;
        }
        let (transposed, b_ld) = match b.strides {
            Strides { row: 1, col } => (NO, col),
            Strides { row, .. } => (YES, row),
        };
        let (m, n, k, ld) = (narrow(size.m), narrow(size.n), narrow(size.k), narrow(a.ld));
        // SAFETY: ensured by the caller.
        self.with_blas(stream, "cublasDgemm", |blas, handle| unsafe {
            let (minus, one) = (&-1.0, &1.0);
            let b_ld = narrow(b_ld);
            (blas.gemm)(handle, NO, transposed, m, n, k, minus, l, ld, b.at, b_ld, one, a.at, ld)
        });
    }

    unsafe fn solve(&self, stream: Stream, l1: TriangleBlock, u: UpperBlock, cols: Range<usize>) {
        if cols.is_empty() || u.k == 0 {
            return;
        }
        // Row-major U is U^T to cuBLAS: U^T := U^T L1^-T. A row-major lower triangle is an upper one.
        let (upper, transposed) = match l1.form {
            Form::NotTransposed => (YES, NO),
            Form::Transposed => (NO, YES),
        };
        let (right, unit) = (YES, YES);
        let (m, n, ld) = (narrow(cols.len()), narrow(u.k), narrow(u.cols));
        let l1_ld = narrow(TriangleBlock::leading_dimension(l1.k));
        let at = u.data.wrapping_add(cols.start);
        // SAFETY: ensured by the caller.
        self.with_blas(stream, "cublasDtrsm", |blas, handle| unsafe {
            (blas.trsm)(handle, right, upper, transposed, unit, m, n, &1.0, l1.raw, l1_ld, at, ld)
        });
    }

    unsafe fn multiply(
        &self,
        stream: Stream,
        l: LowerBlock,
        u: UpperBlock,
        cols: Range<usize>,
        c: Matrix<*mut f64>,
    ) {
        if cols.is_empty() || l.rows == 0 || l.k == 0 {
            return;
        }
        let (m, n, k) = (narrow(cols.len()), narrow(l.rows), narrow(l.k));
        let (u_ld, c_ld) = (narrow(u.cols), narrow(c.ld));
        let (u, c) = (u.data.wrapping_add(cols.start), c.at.wrapping_add(cols.start));
        // SAFETY: ensured by the caller. Row-major C is C^T to cuBLAS: C^T -= U^T L^T.
        self.with_blas(stream, "cublasDgemm", |blas, handle| unsafe {
            (blas.gemm)(handle, NO, NO, m, n, k, &-1.0, u, u_ld, l.data, k, &1.0, c, c_ld)
        });
    }

    fn record(&self, stream: Stream) -> Event {
        let mut events = self.events();
        /// If there are so many pending events, the events that have passed are removed from the list.
        const MANY: usize = 64;
        if events.pending.len() >= MANY {
            let passed: Vec<Event> = events
                .pending
                .iter()
                .filter(|(_, handle)| self.query(**handle))
                .map(|(event, _)| *event)
                .collect();
            for event in passed {
                let handle = events.pending.remove(&event);
                events.free.extend(handle);
            }
        }
        let handle = events.free.pop().unwrap_or_else(|| {
            let mut handle = NULL;
            // SAFETY: the driver fills the handle.
            let status = unsafe { (self.driver().event_create)(&mut handle, WITHOUT_TIMES) };
            self.check("cuEventCreate", status);
            handle
        });
        // SAFETY: an event and a stream of this device.
        let status = unsafe { (self.driver().event_record)(handle, self.stream(stream)) };
        self.check("cuEventRecord", status);
        let event = Event(events.count);
        events.count += 1;
        events.pending.insert(event, handle);
        event
    }

    fn wait(&self, stream: Stream, event: Event) {
        if let Some(handle) = self.events().pending.get(&event) {
            // SAFETY: as above.
            let status = unsafe { (self.driver().stream_wait)(self.stream(stream), *handle, 0) };
            self.check("cuStreamWaitEvent", status);
        }
    }

    fn has_passed(&self, event: Event) -> bool {
        let mut events = self.events();
        let Some(&handle) = events.pending.get(&event) else { return true };
        let passed = self.query(handle);
        if passed {
            events.pending.remove(&event);
            events.free.push(handle);
        }
        passed
    }

    fn synchronize(&self, event: Event) {
        let mut events = self.events();
        if let Some(handle) = events.pending.remove(&event) {
            // SAFETY: as above.
            let status = unsafe { (self.driver().event_synchronize)(handle) };
            self.check("cuEventSynchronize", status);
            events.free.push(handle);
        }
    }
}
