//! Text in, checked values or pointed diagnostics out.
//!
//! HPL.dat says what to test; `skt.toml`, `SKT_*` variables and flags change that, each over the one
//! before. [`load`] is the door: `cli` calls it on rank 0 and sends the result, plain values all
//! through, to the others. Nothing here prints, allocates a matrix or talks to MPI, so a bad file is
//! told about before anything costly begins.

pub mod choices;
mod dat_line;
pub mod dat_reader;
pub mod diagnostic;
pub mod hpl_dat;
pub mod memory_need;
pub mod node_memory;
pub mod settings;
pub mod sources;

use std::ffi::OsString;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::params::TestParams;
use dat_reader::Given;
use diagnostic::{Diagnostic, Diagnostics, Severity};
use hpl_dat::HplDat;
use settings::{CONFIG_DEFAULT, Overrides, Settings};
use sources::Layers;

/// Everything a run needs to know, and what its user should hear first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    /// The file with the overrides applied.
    pub dat: HplDat,
    pub settings: Settings,
    pub warnings: Vec<Diagnostic>,
}

impl Loaded {
    /// The tests, in the order to run them.
    pub fn tests(&self) -> impl Iterator<Item = TestParams> + '_ {
        self.dat.tests(self.settings.rng, self.settings.seed)
    }

    /// One test for each grid, N and NB: enough to judge the memory.
    pub fn largest_tests(&self) -> impl Iterator<Item = TestParams> + '_ {
        self.dat
            .largest_tests(self.settings.rng, self.settings.seed)
    }
}

/// A file's bytes, or why they cannot be had.
pub fn bytes_of(path: &Path) -> Result<Vec<u8>, Diagnostic> {
    std::fs::read(path).map_err(|error| {
        Diagnostic::error(
            path.display().to_string(),
            format!("the file cannot be read: {error}"),
        )
    })
}

/// File of settings, environment and flags as one, and what is to be said about them.
///
/// `config` names the file of settings; without it `skt.toml` is read if it is there.
pub fn load_overrides(
    flags: &Overrides,
    config: Option<&Path>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(Overrides, Vec<Diagnostic>), Diagnostics> {
    let mut layers = Layers::new();
    let default = Path::new(CONFIG_DEFAULT);
    if let Some(path) = config.or_else(|| default.exists().then_some(default)) {
        match bytes_of(path) {
            Ok(bytes) => layers.toml(&bytes, &path.display().to_string()),
            Err(fault) => layers.diagnostics.push(fault),
        }
    }
    layers.env(env);
    layers.flags(flags);
    if layers.diagnostics.iter().any(Diagnostic::is_error) {
        return Err(Diagnostics(layers.diagnostics));
    }
    let merged = layers.merged().clone();
    Ok((merged, layers.diagnostics))
}

/// Reads the tests and lays the settings over them.
///
/// On failure the diagnostics hold every fault found, warnings included.
pub fn load(
    flags: &Overrides,
    config: Option<&Path>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Loaded, Diagnostics> {
    let (overrides, mut found) = load_overrides(flags, config, env)?;
    let settings = Settings::from(&overrides);
    let given = Given {
        n: overrides.n.is_some(),
        nb: overrides.nb.is_some(),
        p: overrides.p.is_some(),
        q: overrides.q.is_some(),
    };
    let all_given = given.n && given.nb && given.p && given.q;
    let mut dat = if overrides.dat.is_none() && all_given && !settings.dat.exists() {
        // Nothing was promised to be in a file, and nothing needs to be.
        HplDat::default()
    } else {
        let bytes = bytes_of(&settings.dat).map_err(|fault| {
            Diagnostics::from(fault.help(
                "name the file with --dat FILE, or give -n, --nb, -p and -q and do without one",
            ))
        })?;
        let read = dat_reader::read(&bytes, &settings.dat.display().to_string(), given);
        let faulty = read.has_errors();
        let weighty = read
            .diagnostics
            .into_iter()
            .filter(|d| d.severity > Severity::Note);
        found.extend(weighty);
        if faulty {
            return Err(Diagnostics(found));
        }
        read.dat
    };
    if let Err(fault) = overrides.apply(&mut dat) {
        found.push(fault);
        return Err(Diagnostics(found));
    }
    Ok(Loaded {
        dat,
        settings,
        warnings: found,
    })
}
