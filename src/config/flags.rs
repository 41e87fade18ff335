//! Flags of the benchmark, and the tests and settings that they ask for.

use std::path::PathBuf;

use clap::Args;

use crate::config::diagnostic::{Diagnostic, Diagnostics};
use crate::config::settings::Overrides;
use crate::config::{self, Loaded, sources};

/// Flags of the benchmark.
#[derive(Clone, Debug, Default, Args)]
pub struct BenchFlags {
    /// Read settings from FILE [default: skt.toml, if it is there]
    #[arg(long, value_name = "FILE", env = sources::ENV_CONFIG, hide_env_values = true,
          help_heading = "Input and output")]
    pub config: Option<PathBuf>,

    #[command(flatten)]
    pub overrides: Overrides,

    /// Same as --preflight=false
    #[arg(long, conflicts_with = "preflight", help_heading = "How to run")]
    pub no_preflight: bool,
}

impl BenchFlags {
    /// Settings among the flags, shorthands resolved.
    pub fn overrides(&self) -> Overrides {
        let mut overrides = self.overrides.clone();
        if self.no_preflight {
            overrides.preflight = Some(false);
        }
        overrides
    }
}

/// Merges the settings alone, without reading HPL.dat: for settings that must be known before MPI starts.
pub fn load_overrides(flags: &BenchFlags) -> Result<(Overrides, Vec<Diagnostic>), Diagnostics> {
    config::load_overrides(
        &flags.overrides(),
        flags.config.as_deref(),
        std::env::vars_os().collect(),
    )
}

/// Loads tests and settings from HPL.dat, `skt.toml`, the environment and the flags.
pub fn load(flags: &BenchFlags) -> Result<Loaded, Diagnostics> {
    config::load(&flags.overrides(), flags.config.as_deref(), std::env::vars_os().collect())
}

/// Lists the settings that skt.toml and the environment set and no flag does, in a line for each source.
pub fn told_sources(flags: &BenchFlags) -> Vec<String> {
    let variables = std::env::vars_os().collect();
    config::told_sources(&flags.overrides(), flags.config.as_deref(), variables)
}
