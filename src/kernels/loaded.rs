//! A BLAS that is named at the start of the program and replaces the linked one.
//!
//! `ffi` calls it, and `load` must come before any call. The library may have Fortran's names or only those of C, with or without
//! a suffix for 64-bit integers, and integers of either width. The width is detected by a call that is harmless with both.
//! A small product is checked before the library is used.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use xxhash_rust::xxh3::Xxh3;

use super::library::{Library, NO_WAYS, text};
use super::operands::{Matrix, Operand, Size};
use super::processor::processor_kind;
use super::routines::{CDot, Calls, FortranDot, FortranGemm, FortranTrsm, Solve, WithIntegers};
use crate::base::cores;

static CHOSEN: OnceLock<Loaded> = OnceLock::new();

/// Returns the library that [`load`] has loaded, if any.
pub(super) fn chosen() -> Option<&'static Loaded> {
    CHOSEN.get()
}

/// Uses this library from now on. Must be called before threads and before MPI start. An error is one sentence.
pub fn load(name: &str) -> Result<(), String> {
    let loaded = Loaded::open(name)?;
    CHOSEN.set(loaded).map_err(|_| "a BLAS is chosen once".to_string())
}

/// A library that was loaded and checked.
pub struct Loaded {
    pub(super) name: String,
    calls: Calls,
    pub library: Library,
    threads: Option<Setter>,
}

/// Functions of a library that set the number of threads of a call.
#[derive(Clone, Copy)]
enum Setter {
    /// Function that takes an int.
    Plain(*mut c_void),
    /// Functions of BLIS: `number` takes an integer of 64 bits. `ways`, if present, sets the ways in which each of five loops is
    /// divided.
    Blis { number: *mut c_void, ways: Option<*mut c_void> },
}

// SAFETY: functions of a library that stays loaded; the pointers are only called.
unsafe impl Send for Loaded {}
// SAFETY: as above; a BLAS may be called by several threads at once.
unsafe impl Sync for Loaded {}

/// A library that is open in the dynamic loader.
struct Handle(*mut c_void);

impl Handle {
    fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: a handle that is never closed, and a C string.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    /// Returns a function of OpenBLAS itself, which has a suffix if its routines have one.
    fn openblas(&self, name: &str) -> Option<*mut c_void> {
        C.iter().find_map(|suffix| self.symbol(&format!("{name}{suffix}")))
    }

    /// Returns the addresses of several routines, such as `gemm`, whose symbols `name` builds. `None` if one is missing.
    fn routines<const N: usize>(
        &self,
        name: impl Fn(&str) -> String,
        of: [&str; N],
    ) -> Option<[*mut c_void; N]> {
        let mut found = [std::ptr::null_mut(); N];
        for (place, routine) in found.iter_mut().zip(of) {
            *place = self.symbol(&name(routine))?;
        }
        Some(found)
    }
}

/// Suffixes of `dgemm` in libraries with Fortran's names: first the usual one, then those of builds with 64-bit integers.
const FORTRAN: [&str; 4] = ["_", "_64_", "64_", "_64"];
/// Suffixes of `cblas_dgemm`, in the same order.
const C: [&str; 4] = ["", "64_", "_64", "_64_"];

const ROUTINES: [&str; 3] = ["dgemm", "dtrsm", "ddot"];

impl Loaded {
    /// Loads the library. An error is one sentence.
    pub fn open(name: &str) -> Result<Self, String> {
        // The loader would take an empty name for this program, with the linked library.
        if name.is_empty() {
            return Err("--blas names no library: leave it out for the linked one".into());
        }
        prepare(name);
        let path = CString::new(name).map_err(|_| format!("--blas {name}: not a name"))?;
        // The library's own symbols take precedence over those of the linked library, which may be another version of the same.
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND;
        // SAFETY: loading runs the library's own initialisation, as requested by the user.
        let handle = Handle(with_one_thread(|| unsafe { libc::dlopen(path.as_ptr(), flags) }));
        // An OpenMP library that it depends on may have bound this thread to a core.
        cores::take_back();
        if handle.0.is_null() {
            // SAFETY: the loader has just recorded the error.
            let why = unsafe { text(libc::dlerror()) };
            return Err(format!("--blas {name} cannot be loaded: {why}"));
        }
        let (calls, wide) = Self::find(&handle).map_err(|why| format!("--blas {name}: {why}"))?;
        let loaded = Self {
            name: name.to_owned(),
            library: describe(&handle, name, &calls, wide),
            calls,
            threads: threads(&handle),
        };
        loaded.set_threads(1);
        if !loaded.multiplies_rightly() {
            return Err(format!(
                "--blas {name} does not multiply rightly: it is no BLAS this program can use"
            ));
        }
        Ok(loaded)
    }

    /// Returns the routines, and whether their integers have 64 bits.
    fn find(handle: &Handle) -> Result<(Calls, bool), String> {
        for suffix in FORTRAN {
            let Some([gemm, trsm, dot]) =
                handle.routines(|name| format!("{name}{suffix}"), ROUTINES)
            else {
                continue;
            };
            // SAFETY: routines of these names have these types in every BLAS.
            let (gemm, trsm, dot) = unsafe {
                (
                    std::mem::transmute::<*mut c_void, FortranGemm>(gemm),
                    std::mem::transmute::<*mut c_void, FortranTrsm>(trsm),
                    std::mem::transmute::<*mut c_void, FortranDot>(dot),
                )
            };
            // SAFETY: the vectors have one element, or none.
            let product = unsafe { dot(&ONE_OR_LESS, &3.0, &1, &5.0, &1) };
            return Ok((Calls::Fortran { gemm, trsm }, width(product)?));
        }
        for suffix in C {
            let Some([gemm, trsm, dot]) =
                handle.routines(|name| format!("cblas_{name}{suffix}"), ROUTINES)
            else {
                continue;
            };
            // SAFETY: as above. A 32-bit integer is the lower half of the register or stack slot of a 64-bit one.
            let wide = unsafe {
                let dot = std::mem::transmute::<*mut c_void, CDot>(dot);
                width(dot(ONE_OR_LESS, &3.0, 1, &5.0, 1))?
            };
            // SAFETY: as above, and the width is known.
            let calls = unsafe {
                if wide {
                    Calls::Wide(WithIntegers::at(gemm, trsm))
                } else {
                    Calls::Narrow(WithIntegers::at(gemm, trsm))
                }
            };
            return Ok((calls, wide));
        }
        Err(format!(
            "it has neither {} nor cblas_{}: it is not a BLAS, or not all of one",
            ROUTINES.map(|name| format!("{name}_")).join(", "),
            ROUTINES.join(", cblas_")
        ))
    }

    /// Sets the number of threads that a call starts.
    pub fn set_threads(&self, threads: usize) {
        match self.threads {
            // SAFETY: setters of these names take an int.
            Some(Setter::Plain(set)) => unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(set)(
                    threads as c_int,
                )
            },
            Some(Setter::Blis { number, ways }) => {
                let [jc, pc, ic, jr, ir] = NO_WAYS;
                // SAFETY: functions of these names take this number of 64-bit integers.
                unsafe {
                    if let Some(ways) = ways {
                        std::mem::transmute::<*mut c_void, Ways>(ways)(jc, pc, ic, jr, ir);
                    }
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn(i64)>(number)(
                        threads as i64,
                    );
                }
            }
            None => {}
        }
    }

    /// Computes C(m x n) += alpha op(A) op(B).
    ///
    /// # Safety
    /// As for [`super::ffi::gemm`].
    pub unsafe fn gemm(&self, size: Size, alpha: f64, a: Operand, b: Operand, c: Matrix<*mut f64>) {
        // SAFETY: ensured by the caller.
        unsafe { self.calls.gemm(size, alpha, a, b, c) }
    }

    /// Solves with a unit triangle.
    ///
    /// # Safety
    /// As for [`super::ffi::gemm`].
    pub(super) unsafe fn trsm(
        &self,
        solve: Solve,
        m: usize,
        n: usize,
        t: Matrix<*const f64>,
        b: Matrix<*mut f64>,
    ) {
        // SAFETY: ensured by the caller.
        unsafe { self.calls.trsm(solve, m, n, t, b) }
    }

    /// Checks a small product and a small solution, which every BLAS computes exactly.
    fn multiplies_rightly(&self) -> bool {
        // A(2x3) and B(2x3), by columns: A B^T = [22 28; 49 64] with A = [1 2 3; 4 5 6], B = [1 3 5; 2 4 6].
        let a = [1.0, 4.0, 2.0, 5.0, 3.0, 6.0];
        let b = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut c = [0.5f64; 4];
        // L = [1 .; 3 1]: L^-1 [2; 10] = [2; 4].
        let l = [1.0, 3.0, 9.0, 1.0];
        let mut x = [2.0, 10.0];
        let solve = Solve { right: false, lower: true, transposed: false };
        // SAFETY: arrays of these sizes.
        unsafe {
            let (a, b) = (Operand::plain(a.as_ptr(), 2), Operand::transposed(b.as_ptr(), 2));
            self.gemm(Size::new(2, 2, 3), -1.0, a, b, Matrix::new(c.as_mut_ptr(), 2));
            let (l, x) = (Matrix::new(l.as_ptr(), 2), Matrix::new(x.as_mut_ptr(), 2));
            self.trsm(solve, 2, 1, l, x);
        }
        c == [-21.5, -48.5, -27.5, -63.5] && x == [2.0, 4.0]
    }
}

/// Number of elements that is one if only its lower 32 bits are read, and negative if all are read.
const ONE_OR_LESS: i64 = 1 - (1 << 32);

/// Returns whether integers have 64 bits, given the product of 3 and 5 with [`ONE_OR_LESS`] elements.
fn width(product: f64) -> Result<bool, String> {
    match product {
        15.0 => Ok(false),
        0.0 => Ok(true),
        other => Err(format!("its ddot of 3 and 5 is {other}: it is no BLAS this program can use")),
    }
}

/// Sets the variables that a library reads when it is loaded.
fn prepare(name: &str) {
    let file = Path::new(name)
        .file_name()
        .map_or_else(String::new, |file| file.to_string_lossy().into_owned());
    // MKL's threads would only disturb ours, and would need an OpenMP library.
    if file.starts_with("libmkl_rt") && std::env::var_os("MKL_THREADING_LAYER").is_none() {
        // SAFETY: no other thread has been started yet.
        unsafe { std::env::set_var("MKL_THREADING_LAYER", "SEQUENTIAL") };
    }
}

/// Loads a library while OpenBLAS is set to start no threads of its own, unless the user has set their number.
///
/// A build for POSIX threads starts one thread per core when it is loaded, before any setter can be called. With many ranks,
/// these can exceed a node's limit. OpenBLAS reads the variable only then, so it is removed afterwards: other programs must not
/// take it for the user's.
fn with_one_thread<R>(load: impl FnOnce() -> R) -> R {
    const THREADS: &str = "OPENBLAS_NUM_THREADS";
    if std::env::var_os(THREADS).is_some() {
        return load();
    }
    // SAFETY: no other thread has been started yet.
    unsafe { std::env::set_var(THREADS, "1") };
    let loaded = load();
    // SAFETY: a library may have started threads, but these do not read variables yet.
    unsafe { std::env::remove_var(THREADS) };
    loaded
}

fn threads(handle: &Handle) -> Option<Setter> {
    if let Some(number) = handle.symbol("bli_thread_set_num_threads") {
        return Some(Setter::Blis { number, ways: handle.symbol("bli_thread_set_ways") });
    }
    if let Some(openblas) = handle.openblas("openblas_set_num_threads") {
        return Some(Setter::Plain(openblas));
    }
    let setters = [
        "MKL_Set_Num_Threads",
        "nvpl_blas_set_num_threads",
        "armpl_set_num_threads",
        // The OpenMP library that the BLAS depends on.
        "omp_set_num_threads",
    ];
    setters.into_iter().find_map(|name| handle.symbol(name)).map(Setter::Plain)
}

type Ways = unsafe extern "C" fn(i64, i64, i64, i64, i64);
type Words = unsafe extern "C" fn() -> *const c_char;
type WordsOf = unsafe extern "C" fn(c_int) -> *const c_char;
type Number = unsafe extern "C" fn() -> c_int;

/// Describes the library, as far as it can be asked.
fn describe(handle: &Handle, name: &str, calls: &Calls, wide: bool) -> Library {
    let words = |symbol: Option<*mut c_void>| {
        // SAFETY: functions of these names take nothing and return a constant string.
        symbol.map(|ask| unsafe { text(std::mem::transmute::<*mut c_void, Words>(ask)()) })
    };
    let mut library = if let Some(config) = words(handle.openblas("openblas_get_config")) {
        let kernel = words(handle.openblas("openblas_get_corename"));
        Library::openblas(&config, kernel.unwrap_or_default())
    } else if let Some(version) = words(handle.symbol("bli_info_get_version_str")) {
        Library::blis(version, ask_blis_kernel(handle).unwrap_or_default())
    } else if let Some(ask) = handle.symbol("MKL_Get_Version_String") {
        let mut buffer = [0 as c_char; 256];
        // SAFETY: a buffer of the given length, whose last byte stays zero.
        let words = unsafe {
            let ask =
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_char, c_int)>(ask);
            ask(buffer.as_mut_ptr(), buffer.len() as c_int - 1);
            CStr::from_ptr(buffer.as_ptr()).to_string_lossy().into_owned()
        };
        Library::mkl(&words, call_number(handle, "MKL_CBWR_Get_Auto_Branch"))
    } else {
        let file = Path::new(name).file_name().map_or(name.into(), |file| file.to_string_lossy());
        // Many builds have the same name, so the digest identifies the build.
        let version = match digest_of_file(calls.address()) {
            Some(digest) => format!("{file} {digest:016x}"),
            None => file.into_owned(),
        };
        Library { name: "BLAS", version, kernel: String::new(), variable: "" }
    };
    let set = |name: &&str| Some(format!("{name}={}", std::env::var_os(name)?.to_string_lossy()));
    let told: Vec<String> = library.unseen_variables().iter().filter_map(set).collect();
    // An unknown kernel can only depend on the processor and the library's variables.
    if library.kernel.is_empty() {
        library.kernel = format!("own ({})", processor_kind());
    }
    for variable in told {
        library.kernel.push_str(&format!(" {variable}"));
    }
    if wide {
        library.version.push_str(" (64-bit integers)");
    }
    library
}

/// Calls a function of the library that takes nothing and returns an int.
fn call_number(handle: &Handle, symbol: &str) -> Option<c_int> {
    // SAFETY: functions of the names in question have this type.
    handle.symbol(symbol).map(|ask| unsafe { std::mem::transmute::<*mut c_void, Number>(ask)() })
}

/// Returns the name of the kernel that BLIS has chosen.
fn ask_blis_kernel(handle: &Handle) -> Option<String> {
    if let Some(init) = handle.symbol("bli_init") {
        // SAFETY: takes nothing; more than one call is allowed.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(init)() }
    }
    let id = call_number(handle, "bli_arch_query_id")?;
    let ask = handle.symbol("bli_arch_string")?;
    // SAFETY: takes the number that the library has just returned.
    Some(unsafe { text(std::mem::transmute::<*mut c_void, WordsOf>(ask)(id)) })
}

/// Returns a digest of the file that contains this routine. Code that the routine calls in other files is not included. `None` if
/// the file cannot be read.
fn digest_of_file(routine: *mut c_void) -> Option<u64> {
    // SAFETY: plain values, which the loader fills. If it knows the address, the name stays valid as long as the library.
    let path = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(routine, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(info.dli_fname).to_owned()
    };
    let mut file = std::fs::File::open(OsStr::from_bytes(path.to_bytes())).ok()?;
    let mut digest = Xxh3::new();
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes).ok()? {
            0 => return Some(digest.digest()),
            some => digest.update(&bytes[..some]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is not a BLAS gives an error of one sentence that names it.
    #[test]
    fn what_cannot_be_used_gets_one_sentence() {
        for (name, why) in [
            ("/nowhere/libblas.so", "cannot be loaded"),
            ("libm.so.6", "neither dgemm_, dtrsm_, ddot_ nor cblas_dgemm"),
            ("/etc/hostname", "cannot be loaded"),
            ("", "names no library"),
        ] {
            let told = Loaded::open(name).err().unwrap();
            assert!(told.starts_with(&format!("--blas {name}")) && told.contains(why), "{told}");
            assert!(!told.contains('\n'), "{told}");
        }
    }

    #[test]
    fn widths_are_told_apart_by_a_harmless_call() {
        assert_eq!(ONE_OR_LESS as i32, 1);
        const { assert!(ONE_OR_LESS < 0) }
        assert_eq!((width(15.0), width(0.0)), (Ok(false), Ok(true)));
        assert!(width(1.5).is_err());
    }
}
