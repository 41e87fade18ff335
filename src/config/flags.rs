//! Flags of the benchmark.

use std::path::PathBuf;

use clap::Args;

use super::settings::Overrides;
use super::{Input, sources};

/// Flags of the benchmark.
#[derive(Clone, Debug, Default, Args)]
pub struct BenchFlags {
    /// Read settings from FILE [default: skt.toml, if it exists]
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
    /// Returns the settings that the flags give. A short form such as --no-preflight becomes the setting that it stands for.
    pub fn overrides(&self) -> Overrides {
        let mut overrides = self.overrides.clone();
        if self.no_preflight {
            overrides.preflight = Some(false);
        }
        overrides
    }

    /// Returns the sources of the benchmark's input: these flags, and the file and environment of this process.
    pub fn input(&self) -> Input<'_> {
        Input::here(self.config.as_deref(), self.overrides())
    }
}
