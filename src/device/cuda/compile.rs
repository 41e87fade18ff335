//! Compiles the kernels for a device.

use std::ffi::{CStr, CString};

use super::functions::{Compiler, Handle, Status};

/// Source of all kernels.
const SOURCE: &str = include_str!("kernels.cu");

/// Compiles the kernels for devices of compute capability `capability`: 90 for 9.0. Returns the code of the device.
pub fn compile(compiler: &Compiler, capability: i32) -> Result<Vec<u8>, String> {
    let failed = |call: &str, status: Status| match status {
        0 => Ok(()),
        _ => Err(format!("{call} failed with status {status} of NVRTC")),
    };
    let source = CString::new(SOURCE).expect("a text without zeros");
    let option = CString::new(format!("--gpu-architecture=sm_{capability}")).expect("no zeros");
    let mut program: Handle = std::ptr::null_mut();
    let none = std::ptr::null();
    // SAFETY: the strings live until the program is destroyed, and each array is as long as the library says.
    unsafe {
        let created =
            (compiler.create)(&mut program, source.as_ptr(), c"skt-hpl.cu".as_ptr(), 0, none, none);
        failed("nvrtcCreateProgram", created)?;
        let status = (compiler.compile)(program, 1, [option.as_ptr()].as_ptr());
        let code = if status == 0 {
            let mut len = 0;
            failed("nvrtcGetCUBINSize", (compiler.code_size)(program, &mut len)).and_then(|()| {
                let mut code = vec![0u8; len];
                failed("nvrtcGetCUBIN", (compiler.code)(program, code.as_mut_ptr().cast()))?;
                Ok(code)
            })
        } else {
            Err(format!(
                "libnvrtc cannot compile for compute capability {}.{} (status {status}): {}",
                capability / 10,
                capability % 10,
                log_of(compiler, program)
            ))
        };
        (compiler.destroy)(&mut program);
        code
    }
}

/// Returns the messages of the compiler, in one line.
fn log_of(compiler: &Compiler, program: Handle) -> String {
    let mut len = 0;
    // SAFETY: the text is as long as the library says, and ends with a zero.
    unsafe {
        if (compiler.log_size)(program, &mut len) != 0 || len == 0 {
            return "no messages".into();
        }
        let mut log = vec![0u8; len];
        (compiler.log)(program, log.as_mut_ptr().cast());
        let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy);
        text.map_or_else(
            |_| "no messages".into(),
            |text| text.split_whitespace().collect::<Vec<_>>().join(" "),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::functions::Blas;
    use super::*;
    use crate::base::cores::left_out::left_out;

    /// Returns a library; `None` if it is not installed, after a message that the test was not run.
    fn installed<T>(library: Result<T, String>) -> Option<T> {
        if let Err(why) = &library {
            assert!(why.contains("can be loaded"), "{why}");
            left_out(why);
        }
        library.ok()
    }

    /// Compute capabilities, times ten, of V100, A100, H100 and H200, and B200.
    const CAPABILITIES: [i32; 4] = [70, 80, 90, 100];

    #[test]
    fn kernels_compile_for_all_devices() {
        let Some(compiler) = installed(Compiler::open()) else { return };
        let mut compiled = 0;
        for capability in CAPABILITIES {
            match compile(&compiler, capability) {
                Ok(code) => {
                    assert!(code.starts_with(b"\x7fELF"), "{capability}: {:?}", &code[..4]);
                    compiled += 1;
                }
                // Version 13 has no compute capability below 7.5, version 12.6 none of 10.0.
                Err(why) => assert!(why.contains("invalid value for --gpu-architecture"), "{why}"),
            }
        }
        assert!(compiled >= 3, "only {compiled} of {CAPABILITIES:?}");
    }

    #[test]
    fn an_error_of_the_compiler_is_told() {
        let Some(compiler) = installed(Compiler::open()) else { return };
        let why = compile(&compiler, 5).unwrap_err();
        assert!(why.contains("compute capability 0.5"), "{why}");
        assert!(why.contains("gpu-architecture"), "{why}");
    }

    /// Checks that cuBLAS has all functions that the program looks up.
    #[test]
    fn cublas_has_all_functions() {
        installed(Blas::open());
    }
}
