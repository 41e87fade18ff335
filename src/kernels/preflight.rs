//! Preflight: checks, before all other work, whether the BLAS uses fast kernels for this processor.
//!
//! Libraries select their kernels from a table of known processors. For an unknown processor they silently select a generic or
//! old kernel, which is several times slower. An environment variable overrides the selection, but the library reads this
//! variable only when it is loaded. So if the selection is poor, the preflight sets the variable, and the program executes
//! itself again, once, before MPI starts.

use std::env::consts::ARCH;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::library::Library;
use super::loaded::{self, Loaded};
use super::processor::Level;
use crate::base::timed_command::ask;

/// Environment variable that the preflight sets when it executes the program again. Its value names the kernels that the library
/// selected in the first execution, and the variable that overrides this selection.
const MARK: &str = "SKT_INTERNAL_PREFLIGHT";
/// Environment variable that marks a trial process. A trial process only tests whether the library accepts certain kernels.
const TRIAL: &str = "SKT_INTERNAL_TRIAL";

/// Maximum time for a trial process, which may hang with the requested kernels or on a hung file system. Without this limit all
/// ranks would wait for this rank at the start of MPI, which has no timeout.
const TRIAL_MOST: Duration = Duration::from_secs(15);

/// Returns the instruction-set level of the kernels that `library` calls `kernel`. Returns `None` if the name is unknown, such as
/// the name of kernels for a new processor.
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
        ("MKL", "avx-512") => Level::Avx512,
        ("MKL", "avx2") => Level::Avx2,
        ("MKL", "sse" | "avx") => Level::Baseline,
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

/// Returns the value of the library's environment variable that selects kernels of `level`. Returns `None` if no such value is
/// known.
pub fn kernel_for(library: &str, level: Level) -> Option<&'static str> {
    match (library, level) {
        ("BLIS", Level::Avx512) => Some("skx"),
        ("BLIS", Level::Avx2) => Some("haswell"),
        ("OpenBLAS", Level::Avx512) => Some("SKYLAKEX"),
        ("OpenBLAS", Level::Avx2) => Some("Haswell"),
        // MKL uses slower code on processors of other vendors. Some versions accept a setting against this.
        ("MKL", Level::Avx512) => Some("AVX512"),
        ("MKL", Level::Avx2) => Some("AVX2"),
        _ => None,
    }
}

/// Returns the kernel's name in the form that this version of the library reads. BLIS before 1.0 reads a number, and reads every
/// word as 0, the number of skx. So the name haswell would make BLIS execute instructions that the processor does not have.
fn as_read(library: &str, version: &str, kernel: &'static str) -> &'static str {
    match (library, version.starts_with("0."), kernel) {
        ("BLIS", true, "skx") => "0",
        ("BLIS", true, "haswell") => "3",
        _ => kernel,
    }
}

/// Judgement of the kernels that a library has selected.
#[derive(Debug, PartialEq, Eq)]
pub enum Advice {
    Fine,
    /// The name of the kernels is unknown to this program.
    Unknown,
    /// The kernels are generic, and no name of better kernels is known.
    Plain,
    /// Better kernels exist: the value for the library's environment variable that selects them.
    Override(&'static str),
}

/// Judges whether the kernels `kernel`, which `library` selected, suit a processor of this `architecture` and `level`.
pub fn advise(library: &str, kernel: &str, level: Level, architecture: &str) -> Advice {
    // The levels are those of x86-64. On other architectures, only generic kernels are recognised.
    let x86 = architecture == "x86_64";
    match level_of(library, kernel) {
        None => Advice::Unknown,
        Some(_) if !x86 && is_plain(kernel) => Advice::Plain,
        Some(_) if !x86 => Advice::Unknown,
        Some(picked) if picked < level => {
            kernel_for(library, level).map_or(Advice::Fine, Advice::Override)
        }
        Some(_) => Advice::Fine,
    }
}

/// Returns whether `kernel` is a library's name for generic kernels.
fn is_plain(kernel: &str) -> bool {
    ["generic", "unknown"].iter().any(|plain| kernel.eq_ignore_ascii_case(plain))
}

impl Advice {
    /// Returns a line about the library on a processor of kind `processor`. `what` describes the library. Returns `None` for
    /// [`Advice::Override`].
    fn told(&self, what: &str, processor: &str) -> Option<String> {
        match self {
            Advice::Fine => Some(format!("{what}, right for this processor ({processor})")),
            Advice::Unknown => Some(format!(
                "{what}; skt-hpl does not know whether these kernels suit this processor ({processor})"
            )),
            Advice::Plain => Some(format!(
                "{what}, POOR for this processor ({processor}): the library was built without kernels for this processor"
            )),
            Advice::Override(_) => None,
        }
    }
}

/// A BLAS on one node, as far as it determines the last bits of results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Name and version of the library.
    pub library: String,
    /// Kernels that the library selects by itself.
    pub picked: String,
    /// Kernels that the library uses after the preflight.
    pub preflight: String,
}

impl Named {
    /// Describes the library on this node. `name` is the name by which it was loaded; empty for the linked library.
    pub fn of(library: &Library, name: &str) -> Self {
        Self {
            library: format!("{} {}", library.name, library.version),
            picked: library.kernel.to_ascii_lowercase(),
            preflight: kernel_after(library, name),
        }
    }
}

/// Result of [`look`]: the library, or the reason why the library cannot be used. `skt-hpl agent` prints this result as one line
/// of JSON.
pub type Look = Result<Named, String>;

/// Describes the library `name`, or the linked library if `name` is empty. An error is one sentence.
///
/// The library remains loaded in this process. A process that must not load the library starts another process to call this
/// function.
pub fn look(name: &str) -> Look {
    match name {
        "" => Ok(Named::of(&Library::query(), name)),
        name => Ok(Named::of(&Loaded::open(name)?.library, name)),
    }
}

/// Returns the kernels that the ranks' library will use after the preflight on this processor. If better kernels exist and the
/// library's environment variable is not set, returns the better kernels. Otherwise returns the library's own selection. `name`
/// is the name by which the library was loaded; empty for the linked library.
pub fn kernel_after(library: &Library, name: &str) -> String {
    let set = std::env::var_os(library.variable).is_some();
    let told = |value| as_read(library.name, &library.version, value);
    match advise(library.name, &library.kernel, Level::detect(), ARCH) {
        Advice::Override(value) if !set => taken(library, name, told(value)).ok(),
        _ => None,
    }
    .unwrap_or_else(|| library.kernel.clone())
    .to_ascii_lowercase()
}

/// Returns the kernels that the library uses if its environment variable has the value `value`. Returns an error with the reason
/// if these kernels are not available.
///
/// A trial process loads the library with this value, because BLIS ends a process that requests kernels which the build does not
/// contain. BLIS is often built for a single kind of processor. Other libraries ignore such a request.
fn taken(library: &Library, name: &str, value: &str) -> Result<String, String> {
    let told = format!("{}={value}", library.variable);
    let none =
        || Err(format!("this build of {} does not contain the kernels of {told}", library.name));
    let tried = std::env::current_exe().and_then(|program| {
        let mut trial = Command::new(program);
        trial.args(["agent", "--look-at-blas", name]);
        ask(trial.env(library.variable, value).env(TRIAL, "1"), TRIAL_MOST)
    });
    let said = match tried {
        Ok((status, said)) if status.success() => said,
        Ok(_) => return none(),
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            let most_s = TRIAL_MOST.as_secs();
            return Err(format!(
                "a trial with {told} did not end within {most_s} s, so {told} is not set"
            ));
        }
        // If the program cannot be started, starting it again will fail, too, and the caller reports the reason.
        Err(_) => return Ok(named_by(value)),
    };
    let found: Option<Look> = said.lines().find_map(|line| serde_json::from_str(line).ok());
    match found {
        Some(Ok(Named { picked, .. })) if is_better(library.name, &picked, &library.kernel) => {
            Ok(picked)
        }
        Some(_) => none(),
        // A program other than `skt-hpl` has no agent, but it has at least started with these kernels.
        None => Ok(named_by(value)),
    }
}

/// Returns the library's own name for the kernels that the value `value` of its environment variable selects.
fn named_by(value: &str) -> String {
    match value {
        "0" => "skx",
        "3" => "haswell",
        "AVX512" => "AVX-512",
        _ => value,
    }
    .to_owned()
}

/// Returns whether the library's kernels `other` have a higher instruction-set level than its kernels `picked`. Returns true if
/// the level of `other` is unknown.
fn is_better(library: &str, other: &str, picked: &str) -> bool {
    level_of(library, other).is_none_or(|level| Some(level) > level_of(library, picked))
}

/// Examines the kernels that the library selected. If better kernels are available, sets the library's environment variable and
/// executes the program again. Otherwise returns one line about the library, for rank 0 to print. If `enabled` is false, only
/// returns the line. Must be called before threads or MPI start.
pub fn run(enabled: bool) -> String {
    let library = Library::query();
    if std::env::var_os(TRIAL).is_some() {
        // The library has accepted the kernels, otherwise it would have ended this process. `skt-hpl agent` reports the kernels
        // without this call. A benchmark that links this code does not know the agent's arguments, so it ends here.
        std::process::exit(0);
    }
    let level = Level::detect();
    let what = format!("{} {} with its {} kernels", library.name, library.version, library.kernel);
    let poor = format!("{what}, POOR for this processor ({})", level.name());
    if let Ok(before) = std::env::var(MARK) {
        return match before.split_once(':') {
            // This case occurs only if the trial process could not be started.
            Some((kernel, variable)) if !is_better(library.name, &library.kernel, kernel) => {
                format!("{poor}: {variable} had no effect")
            }
            Some((kernel, variable)) => format!(
                "{what} ({variable} is set: the library itself had chosen {kernel}, but this processor has {})",
                level.name()
            ),
            None => what,
        };
    }
    let advice = advise(library.name, &library.kernel, level, ARCH);
    let Advice::Override(value) = advice else {
        return advice.told(&what, level.name()).unwrap_or(what);
    };
    let value = as_read(library.name, &library.version, value);
    if !enabled {
        return format!(
            "{poor}: {}={value} would help, but the preflight is off",
            library.variable
        );
    }
    if std::env::var_os(library.variable).is_some() {
        return format!(
            "{poor}; skt-hpl does not choose other kernels, because {} is set",
            library.variable
        );
    }
    if let Err(why) = taken(&library, &loaded::active().name, value) {
        return format!("{poor}: {why}");
    }
    let error = std::env::current_exe().map(|program| {
        Command::new(program)
            .args(std::env::args_os().skip(1))
            .env(library.variable, value)
            .env(MARK, format!("{}:{}={value}", library.kernel, library.variable))
            .exec()
    });
    let why = match error {
        Ok(e) | Err(e) => e,
    };
    format!("{poor}; starting again with {}={value} failed: {why}", library.variable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_better_where_their_level_is_higher_or_not_known() {
        for (other, picked, better) in [
            ("skx", "generic", true),
            ("haswell", "generic", true),
            ("haswell", "haswell", false),
            ("generic", "haswell", false),
            ("of another kind", "generic", true),
        ] {
            assert_eq!(is_better("BLIS", other, picked), better, "{other} {picked}");
        }
        // The library was built for a single processor, and ignores the variable.
        assert!(!is_better("OpenBLAS", "Haswell", "HASWELL"));
    }

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
            ("OpenBLAS", "SomethingNew", Avx512, Advice::Unknown),
        ] {
            let advice = advise(library, kernel, level, "x86_64");
            assert_eq!(advice, want, "{library} {kernel} {level:?}");
        }
    }

    /// Tests that generic kernels count as poor on other architectures than x86-64, such as those of a BLIS built for any 64-bit
    /// ARM processor.
    #[test]
    fn off_x86_plain_kernels_are_poor_and_no_others_are_known() {
        for (library, kernel, want) in [
            ("BLIS", "generic", Advice::Plain),
            ("OpenBLAS", "GENERIC", Advice::Plain),
            ("OpenBLAS", "unknown", Advice::Plain),
            ("OpenBLAS", "NEOVERSEN1", Advice::Unknown),
            ("BLIS", "altramax", Advice::Unknown),
        ] {
            assert_eq!(advise(library, kernel, Level::Baseline, "aarch64"), want, "{kernel}");
        }
        let told = |advice: Advice| advice.told("BLIS 1.0 with its generic kernels", "aarch64");
        assert_eq!(
            told(Advice::Plain).unwrap(),
            "BLIS 1.0 with its generic kernels, POOR for this processor (aarch64): the library was built without kernels for this processor"
        );
        assert!(told(Advice::Fine).unwrap().ends_with(", right for this processor (aarch64)"));
        assert!(told(Advice::Unknown).unwrap().ends_with("suit this processor (aarch64)"));
        assert_eq!(told(Advice::Override("skx")), None);
    }

    #[test]
    fn older_blis_is_told_a_number() {
        for (library, version, kernel, want) in [
            ("BLIS", "0.9.0", "haswell", "3"),
            ("BLIS", "0.9.0", "skx", "0"),
            ("BLIS", "1.0", "haswell", "haswell"),
            ("OpenBLAS", "0.3.21", "Haswell", "Haswell"),
        ] {
            assert_eq!(as_read(library, version, kernel), want, "{library} {version}");
        }
    }
}
