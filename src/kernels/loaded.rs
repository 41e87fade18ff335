//! The BLAS that the program calls: the linked library, or another library that is named at the start of the program.
//!
//! The engine `blas` calls this library. [`load`] must be called before any routine of the library. The library may have
//! Fortran's names or only those of C, with or without a suffix for 64-bit integers. Its integers may have 32 or 64 bits. A
//! call that is harmless with either width detects the width. A small product is checked before the library is used.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use xxhash_rust::xxh3::Xxh3;

use super::library::Library;
use super::operands::{Matrix, Operand, Size};
use super::processor::processor_kind;
use super::routines::{CDot, Calls, FortranDot, Solve};
use crate::base::cores;
use crate::base::dynamic::{Opened, file_of};

#[cfg(not(any(feature = "blis", feature = "openblas")))]
compile_error!("skt-hpl needs a BLAS: build with the feature `blis` (the default) or `openblas`");

static CHOSEN: OnceLock<Loaded> = OnceLock::new();

/// Returns the BLAS in use: the library that [`load`] has loaded, or the linked library if [`load`] was not called.
pub fn active() -> &'static Loaded {
    static LINKED: OnceLock<Loaded> = OnceLock::new();
    CHOSEN.get().unwrap_or_else(|| LINKED.get_or_init(Loaded::linked))
}

/// Loads the BLAS `name`, which all later calls use in place of the linked library. Must be called before threads and before MPI
/// start. An error is one sentence.
pub fn load(name: &str) -> Result<(), String> {
    let loaded = Loaded::open(name)?;
    CHOSEN.set(loaded).map_err(|_| "a BLAS is chosen once".to_string())
}

impl Library {
    /// Returns the description of the BLAS in use.
    pub fn query() -> Self {
        active().library.clone()
    }
}

/// A BLAS in this process: its routines and its description.
pub struct Loaded {
    /// Name by which the library was loaded; empty for the linked library.
    pub(super) name: String,
    pub calls: Calls,
    pub library: Library,
    threads: Option<Setter>,
}

/// Functions of a BLAS that set the number of threads that each call of a routine uses.
#[derive(Clone, Copy)]
enum Setter {
    Plain(unsafe extern "C" fn(c_int)),
    /// Functions of BLIS. `ways`, if present, sets the number of threads for each of five loops.
    Blis {
        number: unsafe extern "C" fn(i64),
        ways: Option<Ways>,
    },
}

type Ways = unsafe extern "C" fn(i64, i64, i64, i64, i64);

#[cfg(feature = "blis")]
unsafe extern "C" {
    fn bli_thread_set_num_threads(threads: i64);
    fn bli_thread_set_ways(jc: i64, pc: i64, ic: i64, jr: i64, ir: i64);
}

#[cfg(all(feature = "openblas", not(feature = "blis")))]
unsafe extern "C" {
    fn openblas_set_num_threads(threads: c_int);
}

impl Setter {
    /// Functions of the linked library. A preloaded library that replaces `dgemm_` does not replace these functions.
    #[cfg(feature = "blis")]
    const LINKED: Self =
        Setter::Blis { number: bli_thread_set_num_threads, ways: Some(bli_thread_set_ways) };
    #[cfg(all(feature = "openblas", not(feature = "blis")))]
    const LINKED: Self = Setter::Plain(openblas_set_num_threads);

    fn address(self) -> *const c_void {
        match self {
            Setter::Plain(set) => set as *const c_void,
            Setter::Blis { number, .. } => number as *const c_void,
        }
    }
}

/// Finds the function `name` of OpenBLAS in an opened library. In a build whose routines have a suffix, the function has the
/// suffix, too. Returns `None` if the library has no such function.
///
/// # Safety
/// As for [`Opened::function`].
unsafe fn of_openblas<F: Copy>(opened: Opened, name: &str) -> Option<F> {
    // SAFETY: ensured by the caller.
    C.iter().find_map(|suffix| unsafe { opened.function(&format!("{name}{suffix}")) })
}

/// Suffixes of `dgemm` in libraries with Fortran's names. The usual suffix is first; the others belong to builds with 64-bit
/// integers.
const FORTRAN: [&str; 4] = ["_", "_64_", "64_", "_64"];
/// Suffixes of `cblas_dgemm` in libraries with C's names. The usual suffix is first; the others belong to builds with 64-bit
/// integers.
const C: [&str; 4] = ["", "64_", "_64", "_64_"];

const ROUTINES: [&str; 3] = ["dgemm", "dtrsm", "ddot"];

impl Loaded {
    /// Returns the linked library.
    fn linked() -> Self {
        let calls = Calls::LINKED;
        let opened = Opened::of(Setter::LINKED.address()).unwrap_or(Opened::ALL);
        let library = describe(opened, "", &calls, false);
        Self { name: String::new(), library, calls, threads: Some(Setter::LINKED) }
    }

    /// Loads the BLAS `name` and checks it with a small product. An error is one sentence.
    pub fn open(name: &str) -> Result<Self, String> {
        // The loader would return this program, with the linked library, for an empty name.
        if name.is_empty() {
            return Err(
                "--blas names no library: give a name, or leave out --blas to use the linked library".into()
            );
        }
        prepare(name);
        let path = CString::new(name).map_err(|_| format!("--blas {name}: not a name"))?;
        // The library's own symbols take precedence over those of the linked library, which may be another version of the same
        // library.
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND;
        // SAFETY: loading runs the library's own initialisation, as requested by the user.
        let opened = Opened(with_one_thread(|| unsafe { libc::dlopen(path.as_ptr(), flags) }));
        // If the library depends on an OpenMP library, that library may have bound this thread to a core.
        cores::take_back();
        if opened.0.is_null() {
            // SAFETY: the loader has just recorded the error.
            let why = unsafe { text(libc::dlerror()) };
            return Err(format!("--blas {name} cannot be loaded: {why}"));
        }
        let (calls, wide) = Self::find(opened).map_err(|why| format!("--blas {name}: {why}"))?;
        let loaded = Self {
            name: name.to_owned(),
            library: describe(opened, name, &calls, wide),
            calls,
            threads: threads(opened),
        };
        loaded.set_threads(1);
        if !loaded.multiplies_rightly() {
            return Err(format!(
                "--blas {name} computes wrong results in a trial: this program cannot use this library"
            ));
        }
        Ok(loaded)
    }

    /// Finds the routines of an opened library. Returns the routines, and true if their integers have 64 bits.
    fn find(opened: Opened) -> Result<(Calls, bool), String> {
        for suffix in FORTRAN {
            let [gemm, trsm, dot] = ROUTINES.map(|name| format!("{name}{suffix}"));
            // SAFETY: routines of these names have these types in every BLAS.
            let found = unsafe {
                (
                    opened.function(&gemm),
                    opened.function(&trsm),
                    opened.function::<FortranDot>(&dot),
                )
            };
            let (Some(gemm), Some(trsm), Some(dot)) = found else { continue };
            // SAFETY: the vectors have one element, or none.
            let product = unsafe { dot(&ONE_OR_LESS, &3.0, &1, &5.0, &1) };
            return Ok((Calls::Fortran { gemm, trsm }, width(product)?));
        }
        for suffix in C {
            let [gemm, trsm, dot] = ROUTINES.map(|name| format!("cblas_{name}{suffix}"));
            // SAFETY: as above.
            let found = unsafe {
                (opened.function(&gemm), opened.function(&trsm), opened.function::<CDot>(&dot))
            };
            let (Some(gemm), Some(trsm), Some(dot)) = found else { continue };
            // SAFETY: as above.
            let product = unsafe { dot(ONE_OR_LESS, &3.0, 1, &5.0, 1) };
            return Ok((Calls::C { gemm, trsm }, width(product)?));
        }
        Err(format!(
            "the library has neither {} nor cblas_{}: it is not a BLAS, or not a complete one",
            ROUTINES.map(|name| format!("{name}_")).join(", "),
            ROUTINES.join(", cblas_")
        ))
    }

    /// Sets the number of threads that a call of the library uses.
    pub fn set_threads(&self, threads: usize) {
        match self.threads {
            // SAFETY: sets a number.
            Some(Setter::Plain(set)) => unsafe { set(threads as c_int) },
            // SAFETY: as above. A negative number of ways makes BLIS divide no loop in a fixed way. Variables such as
            // `BLIS_IC_NT` fix the ways of some loops, and fixed ways take precedence over the number of threads.
            Some(Setter::Blis { number, ways }) => unsafe {
                if let Some(set) = ways {
                    set(-1, -1, -1, -1, -1);
                }
                number(threads as i64);
            },
            None => {}
        }
    }

    /// Returns whether the results of a small product and of a small triangular solve are exact, as with every correct BLAS.
    fn multiplies_rightly(&self) -> bool {
        // A(2x3) and B(2x3), by columns: A B^T = [22 28; 49 64] with A = [1 2 3; 4 5 6], B = [1 3 5; 2 4 6].
        let a = [1.0, 4.0, 2.0, 5.0, 3.0, 6.0];
        let b = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut c = [0.5f64; 4];
        // L = [1 .; 3 1]: L^-1 [2; 10] = [2; 4].
        let l = [1.0, 3.0, 9.0, 1.0];
        let mut x = [2.0, 10.0];
        // SAFETY: arrays of these sizes.
        unsafe {
            let (a, b) = (Operand::plain(a.as_ptr(), 2), Operand::transposed(b.as_ptr(), 2));
            self.calls.gemm(Size::new(2, 2, 3), -1.0, a, b, Matrix::new(c.as_mut_ptr(), 2));
            let (l, x) = (Matrix::new(l.as_ptr(), 2), Matrix::new(x.as_mut_ptr(), 2));
            self.calls.trsm(Solve::LEFT_LOWER, 2, 1, l, x);
        }
        c == [-21.5, -48.5, -27.5, -63.5] && x == [2.0, 4.0]
    }
}

/// Number of elements that is 1 if a library reads only its lower 32 bits, and negative if a library reads all bits.
const ONE_OR_LESS: i64 = 1 - (1 << 32);

/// Returns whether a library's integers have 64 bits. `product` is the result of the library's ddot for the vectors (3) and (5),
/// with [`ONE_OR_LESS`] as the number of elements. Returns an error if `product` is neither 15 (32 bits) nor 0 (64 bits).
fn width(product: f64) -> Result<bool, String> {
    match product {
        15.0 => Ok(false),
        0.0 => Ok(true),
        other => Err(format!(
            "the ddot of 3 and 5 is {other}, not 15 or 0: this program cannot use this library"
        )),
    }
}

/// Sets the environment variables that the library `name` reads when it is loaded.
fn prepare(name: &str) {
    let file = Path::new(name)
        .file_name()
        .map_or_else(String::new, |file| file.to_string_lossy().into_owned());
    // MKL's threads would disturb ours, and would need an OpenMP library.
    if file.starts_with("libmkl_rt") && std::env::var_os("MKL_THREADING_LAYER").is_none() {
        // SAFETY: no other thread has been started yet.
        unsafe { std::env::set_var("MKL_THREADING_LAYER", "SEQUENTIAL") };
    }
}

/// Loads a library while OpenBLAS is set to start no threads of its own, unless the user has set the number of threads.
///
/// A build for POSIX threads starts one thread for each core when it is loaded, before any setter can be called. With many ranks,
/// these threads can exceed a node's limit. OpenBLAS reads its environment variable only when it is loaded. So the variable is
/// removed after loading, and programs that this program starts do not take the variable for the user's setting.
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

fn threads(opened: Opened) -> Option<Setter> {
    // SAFETY: functions of these names have these types in every library.
    unsafe {
        if let Some(number) = opened.function("bli_thread_set_num_threads") {
            return Some(Setter::Blis { number, ways: opened.function("bli_thread_set_ways") });
        }
        let setters = [
            "MKL_Set_Num_Threads",
            "nvpl_blas_set_num_threads",
            "armpl_set_num_threads",
            // The number of threads may also be set in the OpenMP library on which the BLAS depends.
            "omp_set_num_threads",
        ];
        of_openblas(opened, "openblas_set_num_threads")
            .or_else(|| setters.into_iter().find_map(|name| opened.function(name)))
            .map(Setter::Plain)
    }
}

/// Copies the C string at `pointer`, which a library has returned. Returns an empty text if the pointer is null.
///
/// # Safety
/// `pointer` is null or a C string.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: ensured by the caller.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

type Words = unsafe extern "C" fn() -> *const c_char;
type WordsOf = unsafe extern "C" fn(c_int) -> *const c_char;
type PutWords = unsafe extern "C" fn(*mut c_char, c_int);
type Number = unsafe extern "C" fn() -> c_int;

/// Describes an opened BLAS, from all facts that its functions report. `name` is the name by which the BLAS was loaded, or empty
/// for the linked one. `wide` is true if its integers have 64 bits.
fn describe(opened: Opened, name: &str, calls: &Calls, wide: bool) -> Library {
    // SAFETY: functions of these names have these types in every library; the texts are constants.
    let mut library = unsafe {
        if let Some(config) = of_openblas::<Words>(opened, "openblas_get_config") {
            let kernel = of_openblas::<Words>(opened, "openblas_get_corename");
            Library::openblas(&text(config()), kernel.map_or_else(String::new, |ask| text(ask())))
        } else if let Some(version) = opened.function::<Words>("bli_info_get_version_str") {
            Library::blis(text(version()), ask_blis_kernel(opened).unwrap_or_default())
        } else if let Some(ask) = opened.function::<PutWords>("MKL_Get_Version_String") {
            // The last byte stays zero.
            let mut buffer = [0 as c_char; 256];
            ask(buffer.as_mut_ptr(), buffer.len() as c_int - 1);
            let branch = opened.function::<Number>("MKL_CBWR_Get_Auto_Branch");
            Library::mkl(&text(buffer.as_ptr()), branch.map(|ask| ask()))
        } else {
            let file = Path::new(name).file_name();
            let file = file.map_or(name.into(), |file| file.to_string_lossy());
            // Many builds have the same name, so a digest identifies the build.
            let version = match digest_of_file(calls.address()) {
                Some(digest) => format!("{file} {digest:016x}"),
                None => file.into_owned(),
            };
            Library { name: "BLAS", version, kernel: String::new(), variable: "" }
        }
    };
    let set = |name: &&str| Some(format!("{name}={}", std::env::var_os(name)?.to_string_lossy()));
    let told: Vec<String> = library.unseen_variables().iter().filter_map(set).collect();
    // A library that does not name its kernel can only choose it by the processor and by the library's variables.
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

/// Returns the name of the kernel that BLIS has chosen.
fn ask_blis_kernel(opened: Opened) -> Option<String> {
    // SAFETY: functions of these names have these types in every BLIS. The last function gets a number that the library has
    // returned.
    unsafe {
        // Without this call, the library checks an overridden kernel against tables that are still empty, and aborts. The
        // function may be called more than once.
        if let Some(init) = opened.function::<unsafe extern "C" fn()>("bli_init") {
            init();
        }
        let id = opened.function::<Number>("bli_arch_query_id")?();
        Some(text(opened.function::<WordsOf>("bli_arch_string")?(id)))
    }
}

/// Returns a digest of the file that contains `routine`. The digest does not cover code in other files that the routine calls.
/// Returns `None` if the file cannot be read.
fn digest_of_file(routine: *const c_void) -> Option<u64> {
    let path = file_of(routine)?;
    // The file is read in pieces. All ranks of a node read at the same time, and some libraries have hundreds of megabytes.
    let mut file = File::open(OsStr::from_bytes(path.to_bytes())).ok()?;
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

    /// Tests that a file that is not a BLAS gives an error of one sentence, which names the file.
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
