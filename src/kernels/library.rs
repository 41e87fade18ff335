//! Description of a BLAS.

use std::ffi::c_int;

/// Description of a BLAS, as the library reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// `BLIS`, `OpenBLAS`, `MKL`, or `BLAS` if the library does not report its name.
    pub name: &'static str,
    pub version: String,
    /// Kernels that the library selected for this processor, under the library's own name; empty if it reports no name.
    pub kernel: String,
    /// Environment variable that overrides the library's selection of kernels; empty if none is known.
    pub variable: &'static str,
}

impl Library {
    /// Environment variables with which users select kernels, for all known libraries together.
    pub const VARIABLES: [&str; 4] =
        ["BLIS_ARCH_TYPE", "OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"];

    /// Returns the environment variables that may select other kernels without a change of `kernel`, the name that the library
    /// reports.
    pub(super) fn unseen_variables(&self) -> &'static [&'static str] {
        match (self.kernel.as_str(), self.name) {
            ("", "MKL") => &["MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"],
            ("", _) => &Self::VARIABLES,
            // MKL reports the code branch that it would choose by default.
            (_, "MKL") => &["MKL_CBWR"],
            _ => &[],
        }
    }

    pub(super) fn blis(version: String, kernel: String) -> Self {
        Self { name: "BLIS", version, kernel, variable: "BLIS_ARCH_TYPE" }
    }

    /// Describes OpenBLAS from the text `config`, which begins with the name and the version.
    pub(super) fn openblas(config: &str, kernel: String) -> Self {
        let version = config
            .split_whitespace()
            .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
            .unwrap_or("")
            .to_owned();
        Self { name: "OpenBLAS", version, kernel, variable: "OPENBLAS_CORETYPE" }
    }

    /// Describes MKL from a text such as "... Version 2026.2-Product Build ...", and from the number of its code branch.
    pub(super) fn mkl(words: &str, branch: Option<c_int>) -> Self {
        let version = words.split_once("Version ").map_or(words, |(_, rest)| rest);
        let version = version.split([' ', '-']).next().unwrap_or_default().to_owned();
        let kernel = match branch {
            Some(3..=8) => "SSE",
            Some(9) => "AVX",
            Some(10) => "AVX2",
            Some(11..=14) => "AVX-512",
            _ => "",
        };
        Self {
            name: "MKL",
            version,
            kernel: kernel.to_owned(),
            variable: "MKL_ENABLE_INSTRUCTIONS",
        }
    }
}
