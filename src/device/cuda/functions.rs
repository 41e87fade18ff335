//! Functions of the CUDA driver, of cuBLAS, of NVRTC and of NVML, found in their libraries when the program runs.
//!
//! Only the functions that this program calls are looked up. So any version of a library that has them will do.

use std::ffi::{CString, c_char, c_double, c_int, c_uint, c_void};

use crate::base::dynamic::Opened;

/// Status of a call; 0 means success in all four libraries.
pub type Status = c_int;

/// A handle, or an address of device memory.
pub type Handle = *mut c_void;

/// A copy of a matrix; the driver calls it `CUDA_MEMCPY2D`. Lengths are in bytes.
#[repr(C)]
pub struct Copy2d {
    pub from: Side,
    pub to: Side,
    pub width: usize,
    pub height: usize,
}

/// Source or destination of a [`Copy2d`].
#[repr(C)]
pub struct Side {
    pub x: usize,
    pub y: usize,
    pub kind: c_uint,
    pub host: *const c_void,
    pub device: *const c_void,
    pub array: *const c_void,
    pub pitch: usize,
}

/// Memory of a device in bytes; NVML calls it `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
pub struct Usage {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

/// Declares a table of a library's functions.
macro_rules! functions {
    ($table:ident of $libraries:expr; $($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        pub struct $table {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl $table {
            /// Names under which the loader looks for the library, in this order.
            pub const LIBRARIES: &[&str] = $libraries;

            /// Loads the library, and finds the functions. An error is one sentence without a full stop.
            pub fn open() -> Result<Self, String> {
                Self::of(load(Self::LIBRARIES)?).map_err(|symbol| {
                    format!("{} lacks the function {symbol}: install a newer version", Self::LIBRARIES[0])
                })
            }

            /// Finds the functions. An error is the name of the missing function.
            pub fn of(library: Opened) -> Result<Self, &'static str> {
                // SAFETY: functions of these names have these types, as NVIDIA documents them.
                unsafe { Ok(Self { $($name: library.function($symbol).ok_or($symbol)?,)* }) }
            }
        }
    };
}

functions! { Driver of &["libcuda.so.1"];
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    error_name = "cuGetErrorName" (Status, *mut *const c_char);
    error_string = "cuGetErrorString" (Status, *mut *const c_char);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    device_bus_id = "cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
    context_retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    context_set = "cuCtxSetCurrent" (Handle);
    memory_allocate = "cuMemAlloc_v2" (*mut Handle, usize);
    memory_free = "cuMemFree_v2" (Handle);
    memory_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    memory_unregister = "cuMemHostUnregister" (*mut c_void);
    copy = "cuMemcpyAsync" (Handle, Handle, usize, Handle);
    copy_2d = "cuMemcpy2DAsync_v2" (*const Copy2d, Handle);
    stream_create = "cuStreamCreateWithPriority" (*mut Handle, c_uint, c_int);
    stream_wait = "cuStreamWaitEvent" (Handle, Handle, c_uint);
    event_create = "cuEventCreate" (*mut Handle, c_uint);
    event_record = "cuEventRecord" (Handle, Handle);
    event_query = "cuEventQuery" (Handle);
    event_synchronize = "cuEventSynchronize" (Handle);
    module_load = "cuModuleLoadData" (*mut Handle, *const c_void);
    module_function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    launch = "cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
}

functions! { Blas of &["libcublas.so.13", "libcublas.so.12", "libcublas.so.11"];
    create = "cublasCreate_v2" (*mut Handle);
    version = "cublasGetVersion_v2" (Handle, *mut c_int);
    set_stream = "cublasSetStream_v2" (Handle, Handle);
    gemm = "cublasDgemm_v2" (
        Handle, c_int, c_int, c_int, c_int, c_int, *const c_double, *const c_double, c_int, *const c_double, c_int,
        *const c_double, *mut c_double, c_int
    );
    trsm = "cublasDtrsm_v2" (
        Handle, c_int, c_int, c_int, c_int, c_int, c_int, *const c_double, *const c_double, c_int, *mut c_double, c_int
    );
}

functions! { Compiler of &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"];
    create = "nvrtcCreateProgram" (
        *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    );
    compile = "nvrtcCompileProgram" (Handle, c_int, *const *const c_char);
    log_size = "nvrtcGetProgramLogSize" (Handle, *mut usize);
    log = "nvrtcGetProgramLog" (Handle, *mut c_char);
    code_size = "nvrtcGetCUBINSize" (Handle, *mut usize);
    code = "nvrtcGetCUBIN" (Handle, *mut c_char);
    destroy = "nvrtcDestroyProgram" (*mut Handle);
}

functions! { Management of &["libnvidia-ml.so.1"];
    init = "nvmlInit_v2" ();
    count = "nvmlDeviceGetCount_v2" (*mut c_uint);
    device = "nvmlDeviceGetHandleByIndex_v2" (c_uint, *mut Handle);
    name = "nvmlDeviceGetName" (Handle, *mut c_char, c_uint);
    memory = "nvmlDeviceGetMemoryInfo" (Handle, *mut Usage);
    ecc = "nvmlDeviceGetEccMode" (Handle, *mut c_int, *mut c_int);
    errors = "nvmlDeviceGetTotalEccErrors" (Handle, c_int, c_int, *mut u64);
    clock = "nvmlDeviceGetClockInfo" (Handle, c_int, *mut c_uint);
    max_clock = "nvmlDeviceGetMaxClockInfo" (Handle, c_int, *mut c_uint);
    energy = "nvmlDeviceGetTotalEnergyConsumption" (Handle, *mut u64);
}

/// Folder of a usual installation. The loader may not search this folder by itself.
const INSTALLED: &str = "/usr/local/cuda/lib64";

/// Loads the first of the libraries `names` that is installed. The library is never closed.
fn load(names: &[&str]) -> Result<Opened, String> {
    let mut why = String::new();
    for name in names {
        for file in [(*name).to_owned(), format!("{INSTALLED}/{name}")] {
            let path = CString::new(file).expect("a constant without zeros");
            // SAFETY: loading runs the library's initialisation, as the user requests with --device cuda.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Opened(handle));
            }
            if why.is_empty() {
                // SAFETY: the loader has just recorded the error, as a C string.
                let text = unsafe { std::ffi::CStr::from_ptr(libc::dlerror()) };
                why = text.to_string_lossy().into_owned();
            }
        }
    }
    Err(format!("no {} can be loaded ({why})", names.join(" or ")))
}
