//! Devices of a node, as NVIDIA's management library (NVML) reports them. No context is made on a device.

use std::ffi::{c_char, c_int, c_uint};

use super::functions::{Blas, Compiler, Driver, Handle, Management, Status, Usage};
use super::{NULL, text};
use crate::device::DeviceFacts;

/// Constants of NVML.
const NOT_SUPPORTED: Status = 3;
const PROCESSOR_CLOCK: c_int = 1;
const UNCORRECTED: c_int = 1;
const SINCE_LOADED: c_int = 0;

/// Returns all devices of this node. An error is a sentence without a full stop: a library is missing, or a call has failed.
pub fn survey() -> Result<Vec<DeviceFacts>, String> {
    Driver::open().map_err(|why| format!("{why}: is NVIDIA's driver installed?"))?;
    Blas::open()?;
    Compiler::open()?;
    let (library, devices) = manage()?;
    devices.into_iter().map(|device| examine(&library, device)).collect()
}

/// Returns NVML and its handles of all devices of this node.
fn manage() -> Result<(Management, Vec<Handle>), String> {
    let library = Management::open()?;
    let mut count = 0;
    // SAFETY: the library is initialised first, and fills the value.
    unsafe {
        try_call("nvmlInit", (library.init)())?;
        try_call("nvmlDeviceGetCount", (library.count)(&mut count))?;
    }
    let handle = |number| {
        let mut device: Handle = NULL;
        // SAFETY: the library fills the handle.
        let status = unsafe { (library.device)(number, &mut device) };
        try_call("nvmlDeviceGetHandleByIndex", status).map(|()| device)
    };
    let devices = (0..count).map(handle).collect::<Result<_, _>>()?;
    Ok((library, devices))
}

/// Energy counters of all devices of this node.
pub struct Energy {
    library: Management,
    devices: Vec<Handle>,
}

// SAFETY: any thread may call NVML with its handles.
unsafe impl Send for Energy {}
// SAFETY: as above.
unsafe impl Sync for Energy {}

impl Energy {
    /// Returns `None` if NVML does not count the energy of each device.
    pub fn open() -> Option<Self> {
        let (library, devices) = manage().ok()?;
        let energy = Self { library, devices };
        energy.microjoules().filter(|counters| !counters.is_empty()).map(|_| energy)
    }

    /// Returns the energy that each device has used since the driver was loaded. Returns `None` if a device does not answer.
    pub fn microjoules(&self) -> Option<Vec<u64>> {
        let read = |&device: &Handle| {
            let mut millijoules = 0;
            // SAFETY: the library fills the value.
            let status = unsafe { (self.library.energy)(device, &mut millijoules) };
            (status == 0).then_some(millijoules * 1000)
        };
        self.devices.iter().map(read).collect()
    }
}

fn examine(library: &Management, device: Handle) -> Result<DeviceFacts, String> {
    let mut usage = Usage::default();
    let (mut ecc, mut after_boot, mut errors) = (0, 0, 0);
    let (mut clock, mut max_clock) = (0, 0);
    // SAFETY: the library fills the values.
    let (has_ecc, counts) = unsafe {
        try_call("nvmlDeviceGetMemoryInfo", (library.memory)(device, &mut usage))?;
        let of = PROCESSOR_CLOCK;
        try_call("nvmlDeviceGetClockInfo", (library.clock)(device, of, &mut clock))?;
        try_call("nvmlDeviceGetMaxClockInfo", (library.max_clock)(device, of, &mut max_clock))?;
        let has_ecc = (library.ecc)(device, &mut ecc, &mut after_boot);
        let counts = (library.errors)(device, UNCORRECTED, SINCE_LOADED, &mut errors);
        (has_ecc, counts)
    };
    for (call, status) in
        [("nvmlDeviceGetEccMode", has_ecc), ("nvmlDeviceGetTotalEccErrors", counts)]
    {
        if status != NOT_SUPPORTED {
            try_call(call, status)?;
        }
    }
    let name = |at: *mut c_char, len: c_int| {
        // SAFETY: the library writes a text of at most this length.
        unsafe { (library.name)(device, at, len as c_uint) }
    };
    Ok(DeviceFacts {
        model: text(name),
        memory_bytes: usage.total,
        free_bytes: usage.free,
        corrects_errors: has_ecc == 0 && ecc != 0,
        memory_errors: errors,
        clock_mhz: clock,
        max_clock_mhz: max_clock,
    })
}

fn try_call(call: &str, status: Status) -> Result<(), String> {
    match status {
        0 => Ok(()),
        _ => Err(format!("{call} failed with status {status} of NVML")),
    }
}
