//! Reads the benchmark's input, and returns checked values, or diagnostics that point at a line and a column.
//!
//! HPL.dat lists the tests. `skt.toml` changes them; `SKT_*` variables win over `skt.toml`, and flags win over variables.
//! [`Input::load`] is the entry: `driver` calls it on rank 0 and sends the result, plain values only, to the other ranks. No code
//! of this folder prints, allocates a matrix or calls MPI, so a bad file is reported before costly work begins.

// Diagnostics of the input are large, but few are made.
#![allow(clippy::result_large_err)]

pub mod choices;
mod dat_line;
pub mod dat_reader;
mod dat_shape;
mod dat_values;
pub mod diagnostic;
pub mod flags;
pub mod hpl_dat;
pub mod job_name;
pub mod memory_need;
pub mod processors;
pub mod settings;
pub mod sources;
mod together;

use std::ffi::OsString;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::bounded_read::bytes_up_to;
use crate::base::params::TestParams;
use diagnostic::{Diagnostic, Diagnostics, Severity};
use hpl_dat::{HplDat, Output};
use settings::{CONFIG_DEFAULT, Overrides, Settings};
use sources::Layers;

/// All input of a run, and the warnings about this input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    /// The values of HPL.dat, some of them replaced by settings.
    pub dat: HplDat,
    pub settings: Settings,
    pub warnings: Vec<Diagnostic>,
}

impl Loaded {
    /// Iterates over the tests, in the order in which they run.
    pub fn tests(&self) -> impl Iterator<Item = TestParams> + '_ {
        self.dat.tests(self.settings.rng, self.settings.seed)
    }

    /// Iterates over one test for each combination of grid, N, NB and lookahead. The memory need depends on nothing else.
    pub fn tests_by_memory(&self) -> impl Iterator<Item = TestParams> + '_ {
        self.dat.tests_by_memory(self.settings.rng, self.settings.seed)
    }

    /// Iterates over one test for each combination of grid, N and NB. These suffice to find the largest memory need.
    pub fn largest_tests(&self) -> impl Iterator<Item = TestParams> + '_ {
        self.dat.largest_tests(self.settings.rng, self.settings.seed)
    }
}

/// Largest size of HPL.dat or of a file of settings, in bytes. Real files are far smaller.
const LONGEST: u64 = 16 << 20;

/// Returns the bytes of a file, or an error if the file cannot be read or is too large. Of a file without an end, such as
/// `/dev/zero`, only the beginning is read.
pub fn bytes_of(path: &Path) -> Result<Vec<u8>, Diagnostic> {
    let why = match bytes_up_to(path, LONGEST) {
        Ok(Some(bytes)) => return Ok(bytes),
        Ok(None) => {
            let most = LONGEST >> 20;
            format!("the file has more than {most} MiB, so it contains neither tests nor settings")
        }
        Err(error) => format!("the file cannot be read: {error}"),
    };
    Err(Diagnostic::error(path.display().to_string(), why))
}

/// Returns true if `path` is a pipe or a socket, such as `/dev/stdin` or `<(command)`. The data of a pipe cannot be read twice.
fn is_a_pipe(path: &Path) -> bool {
    path.metadata().is_ok_and(|about| about.file_type().is_fifo() || about.file_type().is_socket())
}

/// Returns true if both paths name the same file, which need not exist. Returns false for a device or a pipe, because a write to
/// it overwrites no data.
pub fn same_file(one: &Path, other: &Path) -> bool {
    if let (Ok(one), Ok(other)) = (one.metadata(), other.metadata()) {
        return one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino());
    }
    let whole = |path: &Path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    whole(one).is_some_and(|one| whole(other) == Some(one))
}

/// Returns an error if two results would go to one file, or if a result would overwrite an input file in `read`. Otherwise
/// returns `None`.
fn overwritten(
    folder: &Path,
    dat: &HplDat,
    json: Option<&Path>,
    read: [(&PathBuf, &str); 2],
) -> Option<Diagnostic> {
    let output = match &dat.output {
        Output::File(path) => Some(path.as_path()),
        Output::Stdout | Output::Stderr => None,
    };
    let written: Vec<(&str, PathBuf)> = [("output", output), ("json", json)]
        .into_iter()
        .filter_map(|(name, path)| Some((name, folder.join(path?))))
        .collect();
    if let [(_, output), (_, json)] = &written[..]
        && same_file(output, json)
    {
        let what = format!("output and json name the same file, {}", json.display());
        return Some(Diagnostic::error("settings", what).help("name a different file for json"));
    }
    written.iter().find_map(|(name, to)| {
        let (path, what) = read.iter().find(|(path, _)| same_file(path, to))?;
        let path = path.display();
        let what = format!(
            "{name} names {path}, but {what} are read from this file: its content would be lost"
        );
        Some(Diagnostic::error("settings", what).help("name another file for the results"))
    })
}

/// Variables of the environment, as [`std::env::vars_os`] returns them.
pub type Variables = Vec<(OsString, OsString)>;

/// Sources of the benchmark's input, except HPL.dat. The settings name the file that is read as HPL.dat.
pub struct Input<'a> {
    /// Folder to which all file names are relative.
    pub folder: &'a Path,
    /// File of settings. If `None`, `skt.toml` is read if it exists.
    pub config: Option<&'a Path>,
    pub env: Variables,
    pub flags: Overrides,
}

impl<'a> Input<'a> {
    /// Returns the input of this process: the file of settings, the environment of the process, and its flags. File names are
    /// relative to the working directory.
    pub fn here(config: Option<&'a Path>, flags: Overrides) -> Self {
        Self { folder: Path::new(""), config, env: std::env::vars_os().collect(), flags }
    }

    fn config(&self) -> PathBuf {
        self.folder.join(self.config.unwrap_or(Path::new(CONFIG_DEFAULT)))
    }

    /// Merges the settings of the file, the environment and the flags. Later sources win. The result also has all faults found.
    pub fn layers(&self) -> Layers {
        let mut layers = Layers::default();
        let path = self.config();
        // A broken link is a file that exists but cannot be read.
        if self.config.is_some() || path.symlink_metadata().is_ok() {
            let read = if is_a_pipe(&path) {
                let why = "this is a pipe, but the program reads settings several times, also on other nodes: name a file";
                Err(Diagnostic::error(path.display().to_string(), why))
            } else {
                bytes_of(&path)
            };
            match read {
                Ok(bytes) => layers.toml(&bytes, &path.display().to_string()),
                Err(fault) => layers.diagnostics.push(fault),
            }
        }
        layers.env(self.env.clone());
        layers.flags(&self.flags);
        layers
    }

    /// Merges the settings, without reading HPL.dat. Returns `None` if a fault of the settings is an error. [`Input::load`]
    /// reports the faults.
    pub fn overrides(&self) -> Option<Overrides> {
        let Layers { merged, diagnostics, .. } = self.layers();
        (!diagnostics.iter().any(Diagnostic::is_error)).then_some(merged)
    }

    /// Describes the settings in force that no flag sets: one line for the file of settings, and one line for the variables. A
    /// source without such settings has no line. Faults are not described, because [`Input::load`] reports them.
    pub fn told(&self) -> Vec<String> {
        let layers = self.layers();
        layers.told(&Settings::from(&layers.merged).dat.display().to_string(), false)
    }

    /// Reads the settings and HPL.dat, and replaces values of HPL.dat by settings.
    ///
    /// On failure the diagnostics contain every fault found, warnings included.
    pub fn load(&self) -> Result<Loaded, Diagnostics> {
        let mut layers = self.layers();
        let mut found = std::mem::take(&mut layers.diagnostics);
        if found.iter().any(Diagnostic::is_error) {
            return Err(Diagnostics(found));
        }
        let overrides = &layers.merged;
        let settings = Settings::from(overrides);
        let path = self.folder.join(&settings.dat);
        let Some(mut dat) = read_dat(&path, overrides, &mut found) else {
            return Err(Diagnostics(found));
        };
        let fault = overrides.apply(&mut dat).err().or_else(|| dat.too_many());
        if let Some(fault) = fault {
            found.push(layers.with_sources(fault));
            return Err(Diagnostics(found));
        }
        let since = layers.outranks("checkpoint", "mtbf");
        let warnings = overrides.idle(since).into_iter().chain(overrides.unchecked(dat.threshold));
        found.extend(warnings.map(|warning| layers.with_sources(warning)));
        let read = [(&path, "the tests"), (&self.config(), "settings")];
        if let Some(fault) = overwritten(self.folder, &dat, settings.json.as_deref(), read) {
            found.push(fault);
            return Err(Diagnostics(found));
        }
        Ok(Loaded { dat, settings, warnings: found })
    }
}

/// Reads HPL.dat from `path`, and adds errors and warnings to `found`. Returns `None` if a fault is an error. If the user did not
/// name the file, it may be missing if the settings `given` have all values without a default.
fn read_dat(path: &Path, given: &Overrides, found: &mut Vec<Diagnostic>) -> Option<HplDat> {
    let all_given = [&given.n, &given.nb, &given.p, &given.q].iter().all(|list| list.is_some());
    if given.dat.is_none() && all_given && path.symlink_metadata().is_err() {
        // The user named no file, and the flags need none.
        return Some(HplDat::default());
    }
    match bytes_of(path) {
        // An empty file suffices, too: a user who gives all values in flags may name an empty file, so that no HPL.dat counts.
        Ok(bytes) if bytes.is_empty() && all_given => Some(HplDat::default()),
        Ok(bytes) => {
            let read = dat_reader::read(&bytes, &path.display().to_string(), given);
            let dat = (!read.has_errors()).then_some(read.dat);
            found.extend(read.diagnostics.into_iter().filter(|d| d.severity > Severity::Note));
            dat
        }
        Err(fault) => {
            let help = "name the file with --dat FILE, or give -n, --nb, -p and -q and no \
                        file at all";
            found.push(fault.help(help));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::when::Interval;
    use settings::Saving;
    use std::fs;

    fn load_in(
        folder: &Path,
        flags: &Overrides,
        config: Option<&Path>,
        env: Variables,
    ) -> Result<Loaded, Diagnostics> {
        Input { folder, config, env, flags: flags.clone() }.load()
    }

    const FILE: &str = "\n\nx\n6\n1\n100 N\n1\n8 NB\n0\n1\n1 P\n1 Q\n16.0\n1\n9 PFACT\n";

    fn env(vars: &[(&str, &str)]) -> Variables {
        vars.iter().map(|(n, v)| (n.into(), v.into())).collect()
    }

    #[test]
    fn a_file_without_end_is_not_read_whole() {
        let why = bytes_of(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(why.contains("/dev/zero") && why.contains("more than 16 MiB"), "{why}");
        assert_eq!(bytes_of(Path::new("/dev/null")), Ok(Vec::new()));
        assert!(bytes_of(Path::new("/")).unwrap_err().to_string().contains("cannot be read"));
    }

    #[test]
    fn a_link_to_nothing_is_not_taken_for_no_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("HPL.dat"), FILE).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("skt.toml")).unwrap();
        let why = load_in(dir.path(), &Overrides::default(), None, env(&[])).unwrap_err();
        assert!(why.to_string().contains("skt.toml"), "{why}");
    }

    #[test]
    fn results_take_the_place_of_nothing_that_is_read_nor_of_each_other() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("HPL.dat"), FILE).unwrap();
        fs::write(dir.path().join("skt.toml"), "seed = 5\n").unwrap();
        std::os::unix::fs::symlink("HPL.dat", dir.path().join("link")).unwrap();
        let load = |json: &str, output: &str| {
            let vars = env(&[("SKT_JSON", json), ("SKT_OUTPUT", output)]);
            load_in(dir.path(), &Overrides::default(), None, vars).map_err(|why| why.to_string())
        };
        for (json, output, word) in [
            ("HPL.dat", "stdout", "the tests"),
            ("link", "stdout", "the tests"),
            ("skt.toml", "new", "settings"),
            ("new", "HPL.dat", "output names"),
            ("new", "new", "the same file"),
            ("./new", "new", "the same file"),
        ] {
            let why = load(json, output).unwrap_err();
            assert!(why.contains(word), "{json} {output}: {why}");
        }
        for (json, output) in [("new", "other"), ("/dev/null", "/dev/null"), ("none/x", "none/x")] {
            load(json, output).unwrap();
        }
    }

    #[test]
    fn file_settings_variables_and_flags_come_together() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("HPL.dat"), FILE).unwrap();
        fs::write(dir.path().join("skt.toml"), "n = [10, 20]\nnb = 3\nseed = 5\n").unwrap();
        let flags = Overrides { align: Some(32), ..Overrides::default() };
        let vars = env(&[("SKT_NB", "4"), ("SKT_XYZ", "4")]);
        let loaded = load_in(dir.path(), &flags, None, vars).unwrap();
        assert_eq!(loaded.dat.ns, [10, 20]);
        assert_eq!(loaded.dat.nbs, [4]);
        assert_eq!(loaded.dat.align, 32);
        assert_eq!(loaded.settings.seed, 5);
        let tests: Vec<_> = loaded.tests().map(|t| (t.n, t.nb, t.seed)).collect();
        assert_eq!(tests, [(10, 4, 5), (20, 4, 5)]);
        assert_eq!(loaded.largest_tests().count(), 2);
        // Three warnings: the unknown variable, the short file, the odd PFACT.
        assert_eq!(loaded.warnings.len(), 3, "{:#?}", loaded.warnings);
        assert!(loaded.warnings.iter().all(|w| w.severity == Severity::Warning));

        // The other ranks receive exactly what rank 0 sends.
        let sent = serde_json::to_vec(&loaded).unwrap();
        assert_eq!(serde_json::from_slice::<Loaded>(&sent).unwrap(), loaded);

        // The other file of settings is read instead of skt.toml, not in addition.
        fs::write(dir.path().join("own.toml"), "nb = 7\n").unwrap();
        let own = load_in(dir.path(), &flags, Some(Path::new("own.toml")), env(&[])).unwrap();
        assert_eq!((own.dat.ns, own.dat.nbs), (vec![100], vec![7]));
    }

    /// Checks when an unused mtbf causes a warning. There is none if the file sets mtbf, and a variable or a flag sets the
    /// interval. The file may set this mtbf for runs with the interval `auto`.
    #[test]
    fn an_mtbf_for_nothing_is_told_where_it_was_meant() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("HPL.dat"), FILE).unwrap();
        let told = |file: &str, vars: &[(&str, &str)], flags: &Overrides| {
            fs::write(dir.path().join("skt.toml"), file).unwrap();
            let loaded = load_in(dir.path(), flags, None, env(vars)).unwrap();
            let all = loaded.warnings.iter().map(ToString::to_string);
            all.filter(|warning| warning.contains("mtbf is set and does nothing")).count()
        };
        let none = Overrides::default();
        let checkpoint = Some(Saving::Every(Interval::Iterations(2)));
        let flag = Overrides { checkpoint, ..none.clone() };
        let planned = "[checkpoint]\nevery = \"auto\"\nmtbf = \"60s\"\n";
        assert_eq!(told(planned, &[], &none), 0);
        assert_eq!(told(planned, &[], &flag), 0);
        assert_eq!(told(planned, &[("SKT_CHECKPOINT", "2")], &none), 0);
        assert_eq!(told("checkpoint = 2\nmtbf = \"60s\"\n", &[], &none), 1);
        assert_eq!(told("checkpoint = 2\n", &[("SKT_MTBF", "60s")], &none), 1);
        let mtbf = Overrides { mtbf: Some(60.0), ..none };
        assert_eq!(told("checkpoint = 2\n", &[], &mtbf), 1);
        assert_eq!(told("", &[], &Overrides { mtbf: Some(60.0), ..flag }), 1);
    }

    #[test]
    fn a_threshold_of_the_file_that_checks_nothing_is_warned_of_under_abft() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("HPL.dat"), FILE.replace("16.0", "0.0")).unwrap();
        let method = Some(settings::Guarding::Checksums);
        let abft = Overrides { method, ..Overrides::default() };
        let told = |flags: &Overrides| {
            let loaded = load_in(dir.path(), flags, None, env(&[])).unwrap();
            let all = loaded.warnings.iter().map(ToString::to_string);
            all.filter(|warning| warning.contains("the result is not checked")).count()
        };
        assert_eq!([told(&abft), told(&Overrides::default())], [1, 0]);
        assert_eq!(told(&Overrides { threshold: Some(16.0), ..abft }), 0);
    }

    #[test]
    fn without_a_file_everything_without_a_default_must_be_given() {
        let dir = tempfile::tempdir().unwrap();
        let load = |set: &Overrides| load_in(dir.path(), set, None, env(&[]));
        let mut all = Overrides {
            n: Some(vec![5]),
            nb: Some(vec![2]),
            p: Some(vec![1]),
            q: Some(vec![1]),
            ..Overrides::default()
        };
        let loaded = load(&all).unwrap();
        assert_eq!((loaded.dat.test_count(), loaded.warnings), (1, vec![]));

        all.dat = Some("nowhere.dat".into());
        let faults = load(&all).unwrap_err();
        assert!(faults.to_string().contains("nowhere.dat"), "a named file must be there");
        all.dat = Some("/dev/null".into());
        assert_eq!(load(&all).unwrap().dat, loaded.dat, "nothing has to be in it");
        all.nb = None;
        assert!(load(&all).unwrap_err().to_string().contains("/dev/null"));
        all.nb = Some(vec![2]);
        all.dat = None;
        all.q = None;
        let faults = load(&all).unwrap_err();
        assert!(faults.to_string().contains("-n, --nb, -p and -q"));
    }
}
