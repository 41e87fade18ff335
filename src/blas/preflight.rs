//! Before anything else: is the BLAS using the code that this processor is fast with?
//!
//! Libraries pick their kernels from a table of processors they know. On one they do not know they
//! take a generic or an old one, several times slower, and say nothing. Their environment variable
//! overrides the pick, but is read when the library loads: so where the pick is poor, the variable
//! is set and the program executes itself again, once, before MPI starts.

use std::os::unix::process::CommandExt;

use super::Library;

/// Set in the second life of the process, to the pick of the first.
const MARK: &str = "SKT_INTERNAL_PREFLIGHT";

/// What the processor can do, as far as kernels care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Baseline,
    Avx2,
    Avx512,
}

impl Level {
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let all512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl");
            if all512 {
                return Level::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Level::Avx2;
            }
        }
        Level::Baseline
    }

    pub fn name(self) -> &'static str {
        match self {
            Level::Baseline => "no AVX2",
            Level::Avx2 => "AVX2",
            Level::Avx512 => "AVX-512",
        }
    }
}

/// The level of the kernels a library calls `kernel`; unknown names count as made for the machine.
fn level_of(library: &str, kernel: &str) -> Option<Level> {
    let kernel = kernel.to_ascii_lowercase();
    let level = match (library, kernel.as_str()) {
        ("BLIS", "skx" | "knl" | "zen4" | "zen5") => Level::Avx512,
        ("BLIS", "haswell" | "zen" | "zen2" | "zen3") => Level::Avx2,
        (
            "BLIS",
            "generic" | "penryn" | "sandybridge" | "bulldozer" | "piledriver" | "steamroller"
            | "excavator",
        ) => Level::Baseline,
        ("OpenBLAS", "skylakex" | "cooperlake" | "sapphirerapids") => Level::Avx512,
        ("OpenBLAS", "haswell" | "zen") => Level::Avx2,
        (
            "OpenBLAS",
            "prescott" | "core2" | "nehalem" | "sandybridge" | "bulldozer" | "piledriver"
            | "steamroller" | "excavator" | "barcelona" | "athlon" | "opteron" | "penryn"
            | "dunnington" | "atom" | "generic" | "katmai" | "coppermine" | "northwood" | "banias"
            | "bobcat" | "nano" | "unknown",
        ) => Level::Baseline,
        _ => return None,
    };
    Some(level)
}

/// The value of the library's variable that gives kernels of `level`.
pub fn kernel_for(library: &str, level: Level) -> Option<&'static str> {
    match (library, level) {
        ("BLIS", Level::Avx512) => Some("skx"),
        ("BLIS", Level::Avx2) => Some("haswell"),
        ("OpenBLAS", Level::Avx512) => Some("SKYLAKEX"),
        ("OpenBLAS", Level::Avx2) => Some("Haswell"),
        _ => None,
    }
}

/// What to do about a library that picked `kernel` on a processor of `level`.
#[derive(Debug, PartialEq, Eq)]
pub enum Advice {
    Fine,
    Override(&'static str),
}

pub fn advise(library: &str, kernel: &str, level: Level) -> Advice {
    match level_of(library, kernel) {
        Some(picked) if picked < level => {
            kernel_for(library, level).map_or(Advice::Fine, Advice::Override)
        }
        _ => Advice::Fine,
    }
}

/// Looks at the library's pick and executes the program again if it is poor. Returns one line that
/// says what was found and done, for rank 0 to print. To be called before threads or MPI start.
pub fn run(enabled: bool) -> String {
    let library = Library::query();
    let level = Level::detect();
    let what = format!("{} {} with its {} kernels", library.name, library.version, library.kernel);
    let before = std::env::var(MARK).ok();
    if let Some(before) = before {
        return match before.split_once(':') {
            Some((kernel, variable)) => format!(
                "{what} ({variable} set; by itself it had picked {kernel}, and this processor has {})",
                level.name()
            ),
            None => what,
        };
    }
    let Advice::Override(value) = advise(library.name, &library.kernel, level) else {
        return format!("{what}, right for this processor ({})", level.name());
    };
    if !enabled {
        return format!(
            "{what}, POOR for this processor ({}): {}={value} would help, but the preflight is off",
            level.name(),
            library.variable
        );
    }
    if std::env::var_os(library.variable).is_some() {
        return format!(
            "{what}, POOR for this processor ({}), but {} asks for it: left alone",
            level.name(),
            library.variable
        );
    }
    let error = std::env::current_exe().map(|program| {
        std::process::Command::new(program)
            .args(std::env::args_os().skip(1))
            .env(library.variable, value)
            .env(MARK, format!("{}:{}={value}", library.kernel, library.variable))
            .exec()
    });
    let why = match error {
        Ok(e) | Err(e) => e,
    };
    format!(
        "{what}, POOR for this processor ({}); starting again with {}={value} failed: {why}",
        level.name(),
        library.variable
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poor_picks_are_overridden_and_good_ones_left_alone() {
        use Level::*;
        for (library, kernel, level, want) in [
            ("BLIS", "generic", Avx512, Advice::Override("skx")),
            ("BLIS", "haswell", Avx512, Advice::Override("skx")),
            ("BLIS", "generic", Avx2, Advice::Override("haswell")),
            ("BLIS", "skx", Avx512, Advice::Fine),
            ("BLIS", "zen3", Avx2, Advice::Fine),
            ("BLIS", "generic", Baseline, Advice::Fine),
            ("OpenBLAS", "Haswell", Avx512, Advice::Override("SKYLAKEX")),
            ("OpenBLAS", "Prescott", Avx2, Advice::Override("Haswell")),
            ("OpenBLAS", "SkylakeX", Avx512, Advice::Fine),
            ("OpenBLAS", "Zen", Avx2, Advice::Fine),
            ("OpenBLAS", "SomethingNew", Avx512, Advice::Fine),
        ] {
            assert_eq!(advise(library, kernel, level), want, "{library} {kernel} {level:?}");
        }
    }
}
