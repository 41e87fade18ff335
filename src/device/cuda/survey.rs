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
    let library = Management::open()?;
    let mut count = 0;
    // SAFETY: the library is initialised first, and fills the value.
    unsafe {
        try_call("nvmlInit", (library.init)())?;
        try_call("nvmlDeviceGetCount", (library.count)(&mut count))?;
    }
    (0..count).map(|number| examine(&library, number)).collect()
}

fn examine(library: &Management, number: c_uint) -> Result<DeviceFacts, String> {
    let mut device: Handle = NULL;
    let mut usage = Usage::default();
    let (mut ecc, mut after_boot, mut errors) = (0, 0, 0);
    let (mut clock, mut max_clock) = (0, 0);
    // SAFETY: the library fills the handle first, then the values of this device.
    let (has_ecc, counts) = unsafe {
        try_call("nvmlDeviceGetHandleByIndex", (library.device)(number, &mut device))?;
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
