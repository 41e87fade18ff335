//! `skt-hpl check [FILE]`: reads a file and explains its content, without running a test.
//!
//! The explanation goes to the standard output, the diagnostics to the standard error. The diagnostics include notes, which the
//! benchmark does not print.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::base::exit::Exit;
use crate::base::units::counted;
use crate::config::choices::Choice;
use crate::config::dat_reader;
use crate::config::diagnostic::{Diagnostic, Severity};
use crate::config::hpl_dat::HplDat;
use crate::config::memory_need::{grid_bytes, human, rank_bytes};
use crate::config::settings::{CONFIG_DEFAULT, DAT_DEFAULT, Overrides, Settings};
use crate::config::sources::{CHECKPOINT, ENV_CONFIG, Layers, setting_of};
use crate::config::{Input, bytes_of};
use crate::shm::room;

#[derive(Debug, Args)]
pub struct CheckFlags {
    /// File to explain: an HPL.dat, or settings if its name ends in .toml
    #[arg(value_name = "FILE", default_value = DAT_DEFAULT)]
    file: PathBuf,
}

pub fn run(flags: &CheckFlags) -> ExitCode {
    let name = flags.file.display().to_string();
    let (explanation, diagnostics) = match bytes_of(&flags.file) {
        Err(fault) => (String::new(), vec![fault]),
        Ok(bytes) if is_toml(&flags.file) => check_toml(&bytes, &name),
        Ok(bytes) => check_dat(&bytes, &name),
    };
    for diagnostic in &diagnostics {
        tell!("{diagnostic}\n");
    }
    let count = |severity| diagnostics.iter().filter(|d| d.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    if errors > 0 {
        tell!("{name}: {errors} error(s), {warnings} warning(s)");
        return Exit::BadInput.into();
    }
    let verdict = match warnings {
        0 => "no fault found".to_owned(),
        _ => format!("usable, with {warnings} warning(s)"),
    };
    crate::base::terminal::print(format!("{explanation}\n{name}: {verdict}\n").as_bytes())
}

fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("toml"))
}

fn check_toml(bytes: &[u8], name: &str) -> (String, Vec<Diagnostic>) {
    let mut layers = Layers::default();
    layers.toml(bytes, name);
    let mut text = format!("{name}: settings of skt-hpl\n\n");
    let merged = &layers.merged;
    let set = serde_json::to_value(merged).expect("settings serialise");
    // The explanation shows values as the user wrote them; the serialised settings have another form.
    let file: toml::Table =
        std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).unwrap_or_default();
    let mut written = toml::Table::new();
    for (key, value) in file {
        match value {
            toml::Value::Table(table) if key == CHECKPOINT => {
                written
                    .extend(table.into_iter().map(|(key, value)| (setting_of(&key, true), value)));
            }
            value => _ = written.insert(setting_of(&key, false), value),
        }
    }
    let mut any = false;
    for (key, value) in set.as_object().into_iter().flatten() {
        if !value.is_null() {
            any = true;
            let name = key.replace('_', "-");
            let words = match written.get(&name) {
                Some(toml::Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => value.to_string(),
            };
            let _ = writeln!(text, "  {name:<16} {words}");
        }
    }
    if !any {
        text.push_str("  nothing is set: every key has its default\n");
    }
    let alone = merged.alone();
    layers.diagnostics.extend(alone);
    (text, layers.diagnostics)
}

/// Returns notes on the settings that replace lines of the file `name`, in a run that starts in the working directory without
/// flags.
fn replaced(name: &str) -> Vec<Diagnostic> {
    let config = std::env::var_os(ENV_CONFIG).map(PathBuf::from);
    let config = config.as_deref().filter(|config| !config.as_os_str().is_empty());
    let file = config.unwrap_or(Path::new(CONFIG_DEFAULT)).display().to_string();
    let layers = Input::here(config, Overrides::default()).layers();
    let note = |origin: &str, what: String| Diagnostic::new(Severity::Note, origin, what);
    let faulty = layers.diagnostics.iter().any(Diagnostic::is_error);
    let faulty = faulty.then(|| {
        note(
            &file,
            format!(
                "settings outside {name} have faults, so a run in this folder would be refused"
            ),
        )
        .help(format!(
            "`skt-hpl check {file}` shows the faults of {file}; other faults are in variables SKT_*"
        ))
    });
    let told = layers.told(name, true).into_iter().map(|line| {
        note(
            name,
            format!("a run started in this folder does not use all lines of this file: {line}"),
        )
    });
    faulty.into_iter().chain(told).collect()
}

fn check_dat(bytes: &[u8], name: &str) -> (String, Vec<Diagnostic>) {
    let mut read = dat_reader::read(bytes, name, &Overrides::default());
    read.diagnostics.extend(replaced(name));
    read.diagnostics.extend(read.dat.too_many());
    let text = if read.has_errors() {
        String::new()
    } else {
        format!("{}\n{}", explain(&read.dat, name), explain_cost(&read.dat))
    };
    (text, read.diagnostics)
}

fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = values.into_iter().map(|v| v.to_string()).collect();
    words.join(", ")
}

fn names<T: Choice>(values: &[T]) -> String {
    list(values.iter().map(|v| v.name()))
}

fn one<T: Choice>(value: T) -> String {
    let named = value.named();
    let meaning = named.get_help().map(ToString::to_string).unwrap_or_default();
    format!("{}: {meaning}", named.get_name())
}

/// Returns an explanation of each line of the HPL.dat with the name `name`.
fn explain(dat: &HplDat, name: &str) -> String {
    let grids = list(dat.grids.iter().map(|(p, q)| format!("{p} x {q}")));
    let swap_threshold = format!(
        "{} columns{}",
        dat.swap_threshold,
        if dat.swap == crate::base::params::Swap::Mix {
            ""
        } else {
            " (not used: only SWAP mix has a threshold)"
        }
    );
    let check = if dat.threshold > 0.0 {
        format!("a solution passes if its scaled residual is below {}", dat.threshold)
    } else {
        "zero or less: solutions are not checked".to_owned()
    };
    let rows: [(&str, &str, String); 18] = [
        ("3-4", "results", format!("go to {}", dat.output)),
        ("5-6", "N", list(&dat.ns)),
        ("7-8", "NB", list(&dat.nbs)),
        ("9", "PMAP", one(dat.mapping)),
        ("10-12", "P x Q", grids),
        ("13", "threshold", check),
        ("14-15", "PFACT", names(&dat.pfacts)),
        ("16-17", "NBMIN", list(&dat.nbmins)),
        ("18-19", "NDIV", list(&dat.ndivs)),
        ("20-21", "RFACT", names(&dat.rfacts)),
        ("22-23", "BCAST", names(&dat.bcasts)),
        ("24-25", "DEPTH", list(&dat.depths)),
        ("26", "SWAP", one(dat.swap)),
        ("27", "swap threshold", swap_threshold),
        ("28", "L1", one(dat.l1)),
        ("29", "U", one(dat.u)),
        ("30", "equilibration", if dat.equilibrate { "yes" } else { "no" }.to_owned()),
        ("31", "alignment", format!("{} doubles", dat.align)),
    ];
    let mut text = format!("{name}: input of the HPL benchmark\n\n");
    let _ = writeln!(text, "  {:<7} {:<15} here", "line", "what");
    for (line, what, here) in rows {
        let _ = writeln!(text, "  {line:<7} {what:<15} {here}");
    }
    text
}

/// Returns a text with the number of tests in the file, and with the ranks and the memory that these tests need.
fn explain_cost(dat: &HplDat) -> String {
    let settings = Settings::default();
    let means = settings.means(settings.threads.unwrap_or(1));
    let largest = dat
        .largest_tests(settings.rng, settings.seed)
        .max_by_key(|test| grid_bytes(test, means))
        .expect("a file without errors has a test");
    let all = grid_bytes(&largest, means);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}, on at least {}.",
        counted(dat.test_count() as usize, "test"),
        counted(dat.ranks_needed(), "rank"),
    );
    let _ = writeln!(
        text,
        "The largest memory need is that of N={} with NB={} on {} x {}: {} in all, up to {} on a rank.",
        largest.n,
        largest.nb,
        largest.p,
        largest.q,
        human(all),
        human(rank_bytes(&largest, means)),
    );
    if let Some(available) = room::available_bytes() {
        let available = u128::from(available);
        let fit = if all <= available { "would" } else { "would not" };
        let _ = writeln!(
            text,
            "This node has {} available: all ranks of this test {fit} fit here.",
            human(available)
        );
    }
    text
}
