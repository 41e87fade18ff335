//! Settings from `skt.toml` and from `SKT_*` environment variables.
//!
//! Both are turned into the text of a flag and read by the flag's own parser. So `nb = [128, 256]`, `SKT_NB=128,256` and `--nb
//! 128,256` accept the same values and refuse the same ones. `Input::load` merges the sources: variables win over the file, and
//! flags win over variables.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::ops::Range;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::diagnostic::{Diagnostic, and_list, or_list};
use super::settings::{Overrides, is_of_the_machine, replaces_a_line};

/// Prefix of the environment variables of settings.
pub const ENV_PREFIX: &str = "SKT_";

/// Prefix of variables that the program sets for itself, across a re-exec or from a supervisor to its ranks. Such variables are
/// never settings.
pub const ENV_INTERNAL_PREFIX: &str = "SKT_INTERNAL_";

/// Variable that names the file of settings; `flags` reads it, like the flag `--config`.
pub const ENV_CONFIG: &str = "SKT_CONFIG";

/// Table of `skt.toml` that may contain settings of protection. The key `every` in this table is the setting `checkpoint`.
pub const CHECKPOINT: &str = "checkpoint";

/// Returns the name of the setting that a key of `skt.toml` sets. `in_table` is true if the key is in the table [`CHECKPOINT`].
pub fn setting_of(key: &str, in_table: bool) -> String {
    match key.replace('_', "-") {
        name if in_table && name == "every" => CHECKPOINT.to_owned(),
        name => name,
    }
}

/// Prefixes of `SKT_*` variables that are no settings: the program's own variables, variables of the project's tests, and the
/// crash points that `faults` reads.
const ENV_OTHERS: [&str; 3] = [ENV_INTERNAL_PREFIX, "SKT_TEST_", "SKT_FAULT"];

/// Variables that a supervisor sets for the ranks of its run; `supervise` reads them.
const ENV_RUN: [&str; 2] = ["SKT_RUN_ID", "SKT_ATTEMPT"];

/// Source of a setting that no flag of the command line gives.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// File of settings, by its name.
    File(String),
    Variable,
}

impl Source {
    /// Returns a list of the settings `keys` in words. Each name is written as in this source: `nb` in a file, `SKT_NB` in the
    /// environment.
    fn names(&self, keys: &[&str]) -> String {
        let name = |key: &&str| match self {
            Source::File(_) => (*key).to_owned(),
            Source::Variable => env_name(key),
        };
        and_list(&keys.iter().map(name).collect::<Vec<_>>())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(name) => f.write_str(name),
            Source::Variable => f.write_str("the environment"),
        }
    }
}

/// Settings of all sources read so far. The values of each source replace those of earlier sources.
pub struct Layers {
    command: Command,
    /// Names of all settings, as flags have them: `swap-threshold`.
    pub keys: Vec<String>,
    /// Merged settings of all sources read so far. A later source replaces the value of an earlier one.
    pub merged: Overrides,
    /// Settings in force that no flag gives, each with its source, in the order in which they were read.
    unasked: Vec<(String, Source)>,
    pub diagnostics: Vec<Diagnostic>,
}

impl Default for Layers {
    fn default() -> Layers {
        let command = Overrides::augment_args(Command::new("settings"))
            .no_binary_name(true)
            .disable_help_flag(true);
        let keys =
            command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect();
        let (merged, unasked) = (Overrides::default(), Vec::new());
        Layers { command, keys, merged, unasked, diagnostics: Vec::new() }
    }
}

impl Layers {
    /// Returns a line for each source that sets any settings, except the command line. From these lines a user who copies a
    /// folder, or has forgotten an `export`, sees the origin of a value. `dat` is the file of tests, whose lines some settings
    /// replace. With `lines_alone`, only settings that replace such lines are listed.
    pub fn told(&self, dat: &str, lines_alone: bool) -> Vec<String> {
        let told = self.by_source().into_iter().filter_map(|(source, lines, others)| {
            let what = match (others.is_empty() || lines_alone, lines.is_empty()) {
                (true, true) => return None,
                (false, true) => source.names(&others),
                (true, false) => format!("{} in place of {dat}", source.names(&lines)),
                (false, false) => {
                    let (others, lines) = (source.names(&others), source.names(&lines));
                    format!("{others}, and {lines} in place of {dat}")
                }
            };
            Some(format!("{source} sets {what}"))
        });
        told.collect()
    }

    /// Returns each source except the command line: with its keys that replace lines of HPL.dat, and with its other keys.
    fn by_source(&self) -> Vec<(&Source, Vec<&str>, Vec<&str>)> {
        let mut found: Vec<(&Source, Vec<&str>, Vec<&str>)> = Vec::new();
        for (key, source) in &self.unasked {
            let at = found.iter().position(|(known, ..)| *known == source).unwrap_or_else(|| {
                found.push((source, Vec::new(), Vec::new()));
                found.len() - 1
            });
            let (_, lines, others) = &mut found[at];
            if replaces_a_line(key) { lines } else { others }.push(key);
        }
        found
    }

    /// Adds the sources of settings to the help of `fault`: for each setting that `fault` names, the file or the variable that
    /// sets it. Settings given as flags are left out. Without this, `fault` could ask a user to leave out a flag that the user
    /// did not give.
    pub fn with_sources(&self, fault: Diagnostic) -> Diagnostic {
        let text = format!("{} {}", fault.message, fault.help.as_deref().unwrap_or_default());
        let from: Vec<String> = self
            .unasked
            .iter()
            .filter(|(key, _)| speaks_of(&text, key))
            .map(|(key, source)| match source {
                Source::File(name) => format!("{key} is set in {name}"),
                Source::Variable => format!("{key} is set by the variable {}", env_name(key)),
            })
            .collect();
        if from.is_empty() {
            return fault;
        }
        let help: Vec<String> = fault.help.iter().cloned().chain([from.join(", ")]).collect();
        fault.help(help.join("; "))
    }

    /// Returns true if the setting `key` comes from a source that outranks the source of the setting `other`. Flags outrank
    /// variables, and variables outrank the file.
    pub fn outranks(&self, key: &str, other: &str) -> bool {
        let rank = |key: &str| match self.unasked.iter().find(|(known, _)| known == key) {
            Some((_, Source::File(_))) => 0,
            Some((_, Source::Variable)) => 1,
            None => 2,
        };
        rank(key) > rank(other)
    }

    /// Records that the setting `key` comes from `source`. An earlier source of this setting is forgotten.
    fn comes_from(&mut self, key: &str, source: Source) {
        self.unasked.retain(|(known, _)| known != key);
        self.unasked.push((key.to_owned(), source));
    }

    /// Parses the text of the setting `key` with the flag's parser.
    fn parsed(&mut self, key: &str, text: &OsStr) -> Result<ArgMatches, clap::Error> {
        let mut flag = OsString::from(format!("--{key}="));
        flag.push(text);
        self.command.try_get_matches_from_mut([flag])
    }

    /// Parses the text of the setting `key`, and replaces the present value.
    fn set(&mut self, key: &str, text: &OsStr) -> Result<(), clap::Error> {
        let matches = self.parsed(key, text)?;
        self.merged.update_from_arg_matches(&matches)
    }

    /// Replaces the values of all earlier sources by those of `flags`. The flags are already parsed.
    pub fn flags(&mut self, flags: &Overrides) {
        // The flags are merged in serialised form, so that this code cannot forget a field. A field that a flag sets is not null.
        let mut merged = serde_json::to_value(&self.merged).expect("settings serialise");
        let flags = serde_json::to_value(flags).expect("settings serialise");
        self.unasked.retain(|(key, _)| flags[key.replace('-', "_")].is_null());
        if let (Some(merged), serde_json::Value::Object(flags)) = (merged.as_object_mut(), flags) {
            merged.extend(flags.into_iter().filter(|(_, value)| !value.is_null()));
        }
        self.merged = serde_json::from_value(merged).expect("settings survive their own form");
    }

    /// Replaces present values by those of `skt.toml`, whose content is `bytes`. `origin` is the file's name. Faults are added to
    /// `diagnostics`.
    pub fn toml(&mut self, bytes: &[u8], origin: &str) {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let (line, column) = place(bytes, error.valid_up_to());
                let shown = String::from_utf8_lossy(bytes);
                let fault = Diagnostic::error(origin, "the file is not UTF-8 text")
                    .at(line, column, 1, shown.lines().nth(line - 1).unwrap_or_default())
                    .help("save it as UTF-8");
                self.diagnostics.push(fault);
                return;
            }
        };
        let file = File { text, origin };
        let (table, faults) = DeTable::parse_recoverable(text);
        for fault in &faults {
            let mut message = fault.message().lines();
            let diagnostic = Diagnostic::error(
                origin,
                format!("this is not TOML: {}", message.next().unwrap_or_default()),
            );
            let rest: Vec<&str> = message.collect();
            let diagnostic =
                if rest.is_empty() { diagnostic } else { diagnostic.allowed(rest.join("; ")) };
            self.diagnostics.push(file.point(diagnostic, fault.span().unwrap_or(0..0)));
        }
        if !faults.is_empty() {
            return;
        }
        self.toml_table(&file, table.get_ref(), false);
    }

    /// Replaces present values by the entries of `table`. `inside` is true if the table is `[checkpoint]`.
    fn toml_table(&mut self, file: &File, table: &DeTable, inside: bool) {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            match value.get_ref() {
                DeValue::Table(table) if !inside && key.get_ref() == CHECKPOINT => {
                    self.toml_table(file, table, true);
                }
                _ => self.toml_entry(file, &setting_of(key.get_ref(), inside), key, value),
            }
        }
    }

    fn toml_entry(
        &mut self,
        file: &File,
        name: &str,
        key: &Spanned<DeString>,
        value: &Spanned<DeValue>,
    ) {
        if !self.keys.iter().any(|key| key == name) {
            let kind = if matches!(value.get_ref(), DeValue::Table(_)) { "table" } else { "key" };
            let fault =
                Diagnostic::error(file.origin, format!("there is no setting for this {kind}"))
                    .read(key.get_ref().as_ref())
                    .help(self.nearest(name, |key| format!("`{key}`")));
            self.diagnostics.push(file.point(fault, key.span()));
            return;
        }
        let (text, items) = match value.get_ref() {
            DeValue::Array(items) => {
                let texts: Option<Vec<_>> = items
                    .iter()
                    .map(|item| plain(item.get_ref()).map(|text| (text, item.span())))
                    .collect();
                match texts {
                    Some(texts) if !texts.is_empty() => {
                        let all: Vec<&str> = texts.iter().map(|(text, _)| text.as_str()).collect();
                        (Some(all.join(",")), texts)
                    }
                    _ => (None, Vec::new()),
                }
            }
            other => (plain(other), Vec::new()),
        };
        let Some(text) = text else {
            let fault = Diagnostic::error(file.origin, format!("`{name}` cannot have this value"))
                .read(format!("a value of type {}", type_words(value.get_ref())))
                .allowed("a number, a string, true, false, or a non-empty list of such values");
            self.diagnostics.push(file.point(fault, value.span()));
            return;
        };
        // Each diagnostic points at a wrong item, not at the whole list.
        let mut wrong = false;
        for (item, span) in &items {
            if let Err(error) = self.parsed(name, OsStr::new(item)) {
                wrong = true;
                let diagnostic = refused(&error, file.origin, name, item);
                self.diagnostics.push(file.point(diagnostic, span.clone()));
            }
        }
        if wrong {
            return;
        }
        match self.set(name, OsStr::new(&text)) {
            Ok(()) => self.comes_from(name, Source::File(file.origin.to_owned())),
            Err(error) => {
                let diagnostic = refused(&error, file.origin, name, &text);
                self.diagnostics.push(file.point(diagnostic, value.span()));
            }
        }
    }

    /// Replaces present values by those of the `SKT_*` variables in `vars`. Empty variables count as unset. Faults are added to
    /// `diagnostics`.
    pub fn env(&mut self, vars: impl IntoIterator<Item = (OsString, OsString)>) {
        let mut vars: Vec<(String, OsString)> = vars
            .into_iter()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, value)| {
                name.starts_with(ENV_PREFIX)
                    && !ENV_OTHERS.iter().any(|prefix| name.starts_with(prefix))
                    && !ENV_RUN.contains(&name.as_str())
                    && name != ENV_CONFIG
                    && !value.is_empty()
            })
            .collect();
        vars.sort();
        for (name, value) in vars {
            let key = name[ENV_PREFIX.len()..].to_lowercase().replace('_', "-");
            if name != env_name(&key) || !self.keys.contains(&key) {
                let warning = Diagnostic::warning(
                    format!("environment variable {name}"),
                    "there is no setting of this name, so the variable has no effect",
                )
                .help(self.nearest(&key, env_name));
                self.diagnostics.push(warning);
                continue;
            }
            match self.set(&key, &value) {
                Ok(()) => self.comes_from(&key, Source::Variable),
                Err(error) => {
                    let origin = format!("environment variable {name}");
                    let text = value.to_string_lossy();
                    self.diagnostics.push(refused(&error, &origin, &key, &text));
                }
            }
        }
    }

    /// Suggests the setting whose name is most similar to `name` ("did you mean X?"). If no name is similar, lists all settings.
    /// `spell` writes a name as the source does.
    fn nearest(&self, name: &str, spell: impl Fn(&str) -> String) -> String {
        match nearest(name, &self.keys) {
            Some(key) => format!("did you mean {}?", spell(key)),
            None => {
                let all: Vec<String> = self.keys.iter().map(|key| spell(key)).collect();
                format!("the settings are {}", all.join(", "))
            }
        }
    }
}

/// Returns the name that is most similar to `word`, the first of equally similar names; `None` if no name is similar.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a String>) -> Option<&'a String> {
    let distance = |name: &&String| strsim::damerau_levenshtein(name, word);
    let near = names.into_iter().min_by_key(distance);
    near.filter(|name| distance(name) <= 1 + word.chars().count() / 3)
}

/// Returns the environment variable of a setting: `SKT_SWAP_THRESHOLD` for `swap-threshold`.
pub fn env_name(key: &str) -> String {
    format!("{ENV_PREFIX}{}", key.replace('-', "_").to_uppercase())
}

/// Returns the variables of settings that belong to a single run and not to a machine. A program that starts a run of another
/// problem removes these variables from the run's environment.
pub fn variables_of_own_runs() -> Vec<String> {
    let layers = Layers::default();
    let own =
        layers.command.get_arguments().filter(|arg| !is_of_the_machine(arg.get_help_heading()));
    own.filter_map(|arg| arg.get_long().map(env_name)).collect()
}

/// Returns true if the text of a refusal names the setting `key`. The text has a flag such as `--encode`, or words such as
/// `encode is helper`.
fn speaks_of(text: &str, key: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-');
    let flag = format!("--{key}");
    text.match_indices(&flag).any(|(at, _)| ends(&text[at + flag.len()..]))
        || text
            .match_indices(&format!("{key} is "))
            .any(|(at, _)| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '-'))
}

/// Returns the diagnostic of a value that the parser of a flag refused with `error`. `text` is the value of the setting `key`.
fn refused(error: &clap::Error, origin: &str, key: &str, text: &str) -> Diagnostic {
    let strings = |kind| match error.get(kind) {
        Some(ContextValue::Strings(values)) => values.clone(),
        Some(ContextValue::String(value)) => vec![value.clone()],
        _ => Vec::new(),
    };
    let words = strings(ContextKind::ValidValue);
    let allowed = if !words.is_empty() {
        or_list(&words)
    } else if let Some(source) = std::error::Error::source(error) {
        match source.to_string().as_str() {
            // Clap's text names the mistake and not the allowed values.
            "value was not a boolean" => "true or false".to_owned(),
            words => words.to_owned(),
        }
    } else {
        "a value (see `skt-hpl --help`)".to_owned()
    };
    // The refused value may be one element of a list. Not every parser reports it.
    let read = strings(ContextKind::InvalidValue).into_iter().next();
    Diagnostic::error(origin, format!("`{key}` cannot have this value"))
        .read(read.unwrap_or_else(|| text.to_owned()))
        .allowed(allowed)
}

/// Returns a scalar of a TOML file as the text of a flag. Returns `None` for a date, a list and a table.
fn plain(value: &DeValue) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        // No flag accepts a number in another base than ten, so such a number is converted.
        DeValue::Integer(integer) => {
            Some(match u64::from_str_radix(integer.as_str(), integer.radix()) {
                Ok(value) => value.to_string(),
                Err(_) => integer.as_str().to_owned(),
            })
        }
        DeValue::Float(float) => Some(float.as_str().to_owned()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

fn type_words(value: &DeValue) -> &'static str {
    match value {
        DeValue::Array(items) if items.is_empty() => "empty list",
        DeValue::Array(_) => "list of lists, dates or tables",
        DeValue::Table(_) => "table",
        DeValue::Datetime(_) => "date",
        _ => "scalar",
    }
}

/// Returns the line and the column, counted from 1, of the byte `at` of a text.
fn place(bytes: &[u8], at: usize) -> (usize, usize) {
    let before = &bytes[..at.min(bytes.len())];
    let start = before.iter().rposition(|b| *b == b'\n').map_or(0, |k| k + 1);
    let line = 1 + before.iter().filter(|b| **b == b'\n').count();
    let column = 1 + String::from_utf8_lossy(&before[start..]).chars().count();
    (line, column)
}

struct File<'a> {
    text: &'a str,
    origin: &'a str,
}

impl File<'_> {
    fn point(&self, diagnostic: Diagnostic, span: Range<usize>) -> Diagnostic {
        let (line, column) = place(self.text.as_bytes(), span.start);
        let len =
            self.text.get(span).map_or(1, |s| s.lines().next().unwrap_or_default().chars().count());
        let shown = self.text.lines().nth(line - 1).unwrap_or_default();
        diagnostic.at(line, column, len.max(1), shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::params::Engine;
    use crate::base::params::{Bcast, Fact, Mapping, Rng};
    use crate::config::diagnostic::Severity;
    use crate::config::hpl_dat::Output;
    use proptest::prelude::*;

    fn toml(text: &str) -> Layers {
        let mut layers = Layers::default();
        layers.toml(text.as_bytes(), "skt.toml");
        layers
    }

    fn env(vars: &[(&str, &str)]) -> Layers {
        let mut layers = Layers::default();
        layers.env(vars.iter().map(|(n, v)| (OsString::from(n), OsString::from(v))));
        layers
    }

    #[test]
    fn a_run_of_another_problem_keeps_what_is_said_of_the_machine() {
        let own = variables_of_own_runs();
        let has = |key: &str| own.contains(&env_name(key));
        for key in Layers::default().keys.iter().filter(|key| replaces_a_line(key)) {
            assert!(has(key), "{key}");
        }
        for key in ["json", "progress", "timing", "rng", "seed", "checkpoint", "level2", "nonstop"]
        {
            assert!(has(key), "{key}");
        }
        for key in ["blas", "engine", "pin", "threads", "preflight", "split-update", "memory-check"]
        {
            assert!(!has(key), "{key}");
        }
    }

    /// Returns the single diagnostic, and its line, column and length.
    fn only(layers: &Layers) -> (&Diagnostic, Option<(usize, usize, usize)>) {
        assert_eq!(layers.diagnostics.len(), 1, "{:#?}", layers.diagnostics);
        let one = &layers.diagnostics[0];
        (one, one.span.as_ref().map(|s| (s.line, s.column, s.len)))
    }

    #[test]
    fn a_file_of_all_kinds_of_values_is_read() {
        let layers = toml(
            "n = [1_000, 0x7d0]\nnb = 192\npfact = ['left', 2]\nbcast = \"blong,1ringm\"\n\
             pmap = 1\nthreshold = -1.5\nequil = false\nprogress = true\nswap_threshold = 7\n\
             swap-threshold = 8\nrng = \"xoshiro\"\nseed = 18446744073709551615\n\
             output = 'a, b'\nengine = 'blas'\n",
        );
        assert_eq!(layers.diagnostics, []);
        let set = &layers.merged;
        assert_eq!(set.n, Some(vec![1000, 2000]));
        assert_eq!(set.nb, Some(vec![192]));
        assert_eq!(set.pfact, Some(vec![Fact::Left, Fact::Right]));
        assert_eq!(set.bcast, Some(vec![Bcast::Long, Bcast::OneRingM]));
        assert_eq!(set.pmap, Some(Mapping::Column));
        assert_eq!(set.threshold, Some(-1.5));
        assert_eq!((set.equil, set.progress), (Some(false), Some(true)));
        assert_eq!(set.swap_threshold, Some(8));
        assert_eq!((set.rng, set.seed), (Some(Rng::Xoshiro), Some(u64::MAX)));
        assert_eq!(set.output, Some(Output::File("a, b".into())));
        assert_eq!(set.engine, Some(Engine::Blas));
        assert_eq!(set.q, None);
    }

    #[test]
    fn unknown_keys_name_the_nearest() {
        let layers = toml("nb = 1\n  swap-treshold = 3\n");
        let (one, at) = only(&layers);
        assert_eq!((one.severity, at), (Severity::Error, Some((2, 3, 13))));
        assert_eq!(one.help.as_deref(), Some("did you mean `swap-threshold`?"));
        let layers = toml("[qqqqqqqqqqqqqqq]\nx = 1\n");
        let (one, at) = only(&layers);
        assert_eq!(at, Some((1, 2, 15)));
        assert!(one.message.contains("table"), "{one}");
        assert!(one.help.as_ref().unwrap().contains("`swap-threshold`"));
    }

    #[test]
    fn wrong_values_are_pointed_at() {
        let layers =
            toml("nb = [128, 0, 'x', 256]\nrng = 'mersenne'\nn = [[1]]\nalign = []\nu = [0, 1]");
        let places: Vec<_> = layers
            .diagnostics
            .iter()
            .map(|d| {
                let s = d.span.as_ref().unwrap();
                (s.line, s.column, d.read.clone().unwrap())
            })
            .collect();
        let at = |line, column, read: &str| (line, column, read.to_owned());
        assert_eq!(
            places,
            [
                at(1, 12, "0"),
                at(1, 15, "x"),
                at(2, 7, "mersenne"),
                at(3, 5, "a value of type list of lists, dates or tables"),
                at(4, 9, "a value of type empty list"),
                at(5, 5, "0,1"),
            ]
        );
        assert_eq!(
            layers.diagnostics[0].allowed.as_deref(),
            Some("a whole number from 1 to 2147483647 is needed")
        );
        assert_eq!(layers.diagnostics[2].allowed.as_deref(), Some("hpl or xoshiro"));
        let mut layers = Layers::default();
        layers.toml(b"timing = \"maybe\"\nseed = \"abc\"\n", "x");
        assert_eq!(layers.diagnostics[0].allowed.as_deref(), Some("true or false"));
        assert!(
            layers.diagnostics[1].allowed.as_deref().unwrap().contains("a whole number from 0")
        );
        assert_eq!(layers.merged, Overrides::default(), "nothing wrong is taken over");
    }

    #[test]
    fn broken_toml_is_pointed_at() {
        let layers = toml("nb = 1\nn = [1,\nq 7\n");
        assert!(!layers.diagnostics.is_empty());
        for one in &layers.diagnostics {
            assert!(one.message.starts_with("this is not TOML"), "{one}");
            assert!(one.span.as_ref().unwrap().line >= 2, "{one}");
        }
        let layers = toml("nb = 1\nnb = 2\n");
        let (_, at) = only(&layers);
        assert_eq!(at.unwrap().0, 2);
        let mut layers = Layers::default();
        layers.toml(b"nb = 1\nn = '\xff'", "skt.toml");
        let (one, at) = only(&layers);
        assert_eq!(at, Some((2, 6, 1)), "{one}");
    }

    #[test]
    fn variables_are_read_and_unknown_ones_warned_of() {
        let layers = env(&[
            ("SKT_NB", "128,256"),
            ("SKT_SWAP_THRESHOLD", "9"),
            ("SKT_PROGRESS", "yes"),
            ("SKT_P", ""),
            ("SKT_INTERNAL_REEXEC", "1"),
            ("SKT_CONFIG", "x.toml"),
            ("PATH", "/bin"),
        ]);
        assert_eq!(layers.diagnostics, []);
        assert_eq!(layers.merged.nb, Some(vec![128, 256]));
        assert_eq!(layers.merged.swap_threshold, Some(9));
        assert_eq!(layers.merged.progress, Some(true));
        assert_eq!(layers.merged.p, None);

        for (name, meant) in [
            ("SKT_THREDS", "SKT_THREADS"),
            ("SKT_nb", "SKT_NB"),
            ("SKT_SWAP-THRESHOLD", "SKT_SWAP_THRESHOLD"),
        ] {
            let layers = env(&[(name, "1")]);
            let (one, _) = only(&layers);
            assert_eq!(one.severity, Severity::Warning);
            assert_eq!(one.help, Some(format!("did you mean {meant}?")));
            assert_eq!(layers.merged, Overrides::default());
        }
        let layers = env(&[("SKT_NB", "128,many")]);
        let (one, _) = only(&layers);
        assert!(one.is_error());
        assert_eq!(one.origin, "environment variable SKT_NB");
        assert_eq!(one.read.as_deref(), Some("many"));
    }

    #[test]
    fn flags_win_over_variables_and_variables_over_the_file() {
        let mut layers = toml("n = 1\nnb = 1\nalign = 1\n");
        layers.env([("SKT_NB", "2"), ("SKT_ALIGN", "2")].map(|(n, v)| (n.into(), v.into())));
        layers.flags(&Overrides {
            align: Some(3),
            output: Some(Output::File("x".into())),
            threshold: Some(0.1),
            ..Overrides::default()
        });
        let set = &layers.merged;
        assert_eq!((&set.n, &set.nb), (&Some(vec![1]), &Some(vec![2])));
        assert_eq!(set.align, Some(3));
        assert_eq!(set.output, Some(Output::File("x".into())));
        assert_eq!(set.threshold, Some(0.1));
    }

    /// Each source has one line, with its settings in force. A setting given as a flag is not listed.
    #[test]
    fn settings_that_are_no_flags_are_reported_with_their_source() {
        let mut layers =
            toml("nb = 1\nthreads = 2\nalign = 1\nseed = 1\n[checkpoint]\nevery = 5\n");
        layers.env([("SKT_NB", "2"), ("SKT_JOB", "a")].map(|(n, v)| (n.into(), v.into())));
        layers.env([("SKT_RUN_ID", "7"), ("SKT_ATTEMPT", "2")].map(|(n, v)| (n.into(), v.into())));
        layers.flags(&Overrides { align: Some(3), ..Overrides::default() });
        assert_eq!(
            layers.told("HPL.dat", false),
            [
                "skt.toml sets threads, seed and checkpoint",
                "the environment sets SKT_JOB, and SKT_NB in place of HPL.dat",
            ]
        );
        let layers = env(&[("SKT_N", "5"), ("SKT_SWAP_THRESHOLD", "3")]);
        let told = ["the environment sets SKT_N and SKT_SWAP_THRESHOLD in place of a.dat"];
        assert_eq!(layers.told("a.dat", false), told);
        let mut layers = toml("n = 5\n");
        layers.flags(&Overrides { n: Some(vec![1]), ..Overrides::default() });
        assert_eq!((layers.told("x", false), Layers::default().told("x", false)), (vec![], vec![]));
    }

    #[test]
    fn a_fault_names_the_sources_of_what_it_speaks_of() {
        let layers = toml("encode = 'helper'\nhelpers = 'off'\nn = 5\n");
        let fault = Diagnostic::error("settings", "encode is helper, and helpers is off");
        let told =
            layers.with_sources(fault.help("give --encode pipelined, so that threads make them"));
        assert_eq!(
            told.help.unwrap(),
            "give --encode pipelined, so that threads make them; encode is set in skt.toml, helpers is set in skt.toml"
        );
        let layers = env(&[("SKT_HELPER_CORES", "1")]);
        let told =
            layers.with_sources(Diagnostic::error("settings", "helper-cores is set, and so on"));
        assert_eq!(told.help.unwrap(), "helper-cores is set by the variable SKT_HELPER_CORES");
        let other = Diagnostic::error("settings", "--helper-cores-x");
        assert_eq!(layers.with_sources(other.clone()), other);
    }

    #[test]
    fn every_field_is_a_key_a_variable_and_a_flag() {
        let fields = serde_json::to_value(Overrides::default()).unwrap();
        let mut fields: Vec<String> =
            fields.as_object().unwrap().keys().map(|k| k.replace('_', "-")).collect();
        let mut keys = Layers::default().keys.to_vec();
        fields.sort();
        keys.sort();
        assert_eq!(fields, keys);
        assert_eq!(env_name("swap-threshold"), "SKT_SWAP_THRESHOLD");
    }

    proptest! {
        #[test]
        fn no_file_panics(text in "(nb|n|rng|x|progress) ?= ?[-0-9a-z,.'\"\\[\\]{} \n\u{e9}]{0,40}|\\PC{0,60}") {
            for one in toml(&text).diagnostics {
                prop_assert!(!one.to_string().is_empty());
            }
        }

        #[test]
        fn no_variable_panics(name in "SKT_[A-Z_]{0,8}", value in "\\PC{0,20}") {
            for one in env(&[(&name, &value)]).diagnostics {
                prop_assert!(!one.to_string().is_empty());
            }
        }
    }
}
