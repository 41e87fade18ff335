//! Before anything else: is the BLAS using the code that this processor is fast with?
//!
//! Libraries pick their kernels from a table of processors they know. On one they do not know they
//! take a generic or an old one, several times slower, and say nothing. Their environment variable
//! overrides the pick, but is read when the library loads: so where the pick is poor, the variable
//! is set and the program executes itself again, once, before MPI starts.

use std::env::consts::ARCH;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use super::Library;
use super::arithmetic::Named;
use super::loaded::{self, Look};
use crate::base::question::ask;

/// Set in the second life of the process, to the pick of the first.
const MARK: &str = "SKT_INTERNAL_PREFLIGHT";
/// Set in a process that only tries whether the library can be told to take some kernels.
const TRIAL: &str = "SKT_INTERNAL_TRIAL";

/// How long that process may take. The library has been loaded here already; one that hangs when it is told of other kernels, or
/// on a disk, would have all ranks wait for this one in MPI's start, which has no end.
const TRIAL_MOST: Duration = Duration::from_secs(15);

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
            Level::Baseline if cfg!(target_arch = "x86_64") => "no AVX2",
            // Kernels of others are not told apart by what the processor can do.
            Level::Baseline => ARCH,
            Level::Avx2 => "AVX2",
            Level::Avx512 => "AVX-512",
        }
    }
}

/// The kind of this processor, by what libraries look at to pick their kernels.
pub(super) fn processor_kind() -> String {
    const TELLING: [&str; 5] = ["vendor_id", "cpu family", "model", "CPU implementer", "CPU part"];
    let kind = processor(&TELLING);
    match cfg!(target_arch = "x86_64") {
        true => format!("{kind}, {}", Level::detect().name()),
        false => kind,
    }
}

/// What the system says of this processor under these names.
pub(super) fn processor(names: &[&str]) -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let first = info.split("\n\n").next().unwrap_or_default();
    let fields = first.lines().filter_map(|line| line.split_once(':'));
    let told = fields.filter(|(name, _)| names.contains(&name.trim()));
    told.map(|(_, value)| value.trim()).collect::<Vec<_>>().join(" ")
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

/// The value of the library's variable that gives kernels of `level`.
pub fn kernel_for(library: &str, level: Level) -> Option<&'static str> {
    match (library, level) {
        ("BLIS", Level::Avx512) => Some("skx"),
        ("BLIS", Level::Avx2) => Some("haswell"),
        ("OpenBLAS", Level::Avx512) => Some("SKYLAKEX"),
        ("OpenBLAS", Level::Avx2) => Some("Haswell"),
        // Others' processors it sends to slower code, whatever they are able to; some versions can be told.
        ("MKL", Level::Avx512) => Some("AVX512"),
        ("MKL", Level::Avx2) => Some("AVX2"),
        _ => None,
    }
}

/// The kernels' name as this version of the library reads it. BLIS before 1.0 takes a number, and
/// any word for the number 0, which is skx: asked for haswell by name it would take code that the
/// processor cannot run.
fn as_read(library: &str, version: &str, kernel: &'static str) -> &'static str {
    match (library, version.starts_with("0."), kernel) {
        ("BLIS", true, "skx") => "0",
        ("BLIS", true, "haswell") => "3",
        _ => kernel,
    }
}

/// What to think of a library's pick.
#[derive(Debug, PartialEq, Eq)]
pub enum Advice {
    Fine,
    /// Nothing is known here of kernels of that name.
    Unknown,
    /// They are for no processor in particular, and there are none of another name that would be known to be better.
    Plain,
    Override(&'static str),
}

/// What to think of a library that picked `kernel` on a processor of this `architecture` and `level`.
pub fn advise(library: &str, kernel: &str, level: Level, architecture: &str) -> Advice {
    // Levels are those of x86-64; of others' kernels those alone are known that any processor runs.
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

/// Whether a library calls kernels so that are for no processor in particular.
fn is_plain(kernel: &str) -> bool {
    ["generic", "unknown"].iter().any(|plain| kernel.eq_ignore_ascii_case(plain))
}

impl Advice {
    /// A line about the library that is told of as `what`, on a processor of that kind; None where there is something to do
    /// first.
    fn told(&self, what: &str, processor: &str) -> Option<String> {
        match self {
            Advice::Fine => Some(format!("{what}, right for this processor ({processor})")),
            Advice::Unknown => Some(format!(
                "{what}: whether they suit this processor ({processor}) is not known here"
            )),
            Advice::Plain => Some(format!(
                "{what}, POOR for this processor ({processor}): it is built without kernels for it"
            )),
            Advice::Override(_) => None,
        }
    }
}

/// The kernels that ranks' library will have once the preflight has been, on this processor: its pick, or what replaces
/// it where nobody has set the library's variable. `name` is what the library was loaded by, if it is not the linked one.
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

/// The kernels that this library takes where its variable says `value`, or why they are not to be had. Another process finds
/// out: BLIS ends whoever asks for some that it was built without, and it is often built for one kind of processor alone; others
/// pass over what they do not have.
fn taken(library: &Library, name: &str, value: &str) -> Result<String, String> {
    let told = format!("{}={value}", library.variable);
    let none = || Err(format!("this build of it has none that {told} could give it"));
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
                "a trial of {told} had not ended after {most_s} s, so it is left alone"
            ));
        }
        // The caller will not start again either, and says why.
        Err(_) => return Ok(named_by(value)),
    };
    let found: Option<Look> = said.lines().find_map(|line| serde_json::from_str(line).ok());
    match found {
        Some(Ok(Named { picked, .. })) if is_better(library.name, &picked, &library.kernel) => {
            Ok(picked)
        }
        Some(_) => none(),
        // Who is no `skt-hpl` knows no agent, and has started with them at least.
        None => Ok(named_by(value)),
    }
}

/// What a library calls the kernels that its variable names so.
fn named_by(value: &str) -> String {
    match value {
        "0" => "skx",
        "3" => "haswell",
        "AVX512" => "AVX-512",
        _ => value,
    }
    .to_owned()
}

/// Whether kernels called `other` are of a higher level than those called `picked`, as far as that is known.
fn is_better(library: &str, other: &str, picked: &str) -> bool {
    level_of(library, other).is_none_or(|level| Some(level) > level_of(library, picked))
}

/// Looks at the library's pick and executes the program again if it is poor. Returns one line that
/// says what was found and done, for rank 0 to print. To be called before threads or MPI start.
pub fn run(enabled: bool) -> String {
    let library = Library::query();
    if std::env::var_os(TRIAL).is_some() {
        // The library has taken the kernels, or it would have ended this process. `skt-hpl agent` says so without coming here; a
        // benchmark does not know the agent's arguments.
        std::process::exit(0);
    }
    let level = Level::detect();
    let what = format!("{} {} with its {} kernels", library.name, library.version, library.kernel);
    let before = std::env::var(MARK).ok();
    if let Some(before) = before {
        return match before.split_once(':') {
            // It was found out beforehand where another process could be asked.
            Some((kernel, variable)) if !is_better(library.name, &library.kernel, kernel) => {
                format!(
                    "{what}, POOR for this processor ({}): {variable} changes nothing",
                    level.name()
                )
            }
            Some((kernel, variable)) => format!(
                "{what} ({variable} set; by itself it had picked {kernel}, and this processor has {})",
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
    let name = loaded::chosen().map_or("", |loaded| &loaded.name);
    if let Err(why) = taken(&library, name, value) {
        return format!("{what}, POOR for this processor ({}): {why}", level.name());
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
        // A build for one processor alone, which looks at no variable.
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

    /// A BLIS built for any 64-bit ARM was called right for it.
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
            "BLIS 1.0 with its generic kernels, POOR for this processor (aarch64): it is built without kernels for it"
        );
        assert!(told(Advice::Fine).unwrap().ends_with(", right for this processor (aarch64)"));
        assert!(told(Advice::Unknown).unwrap().ends_with("(aarch64) is not known here"));
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
