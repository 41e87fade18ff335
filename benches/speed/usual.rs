//! Flags that all benchmarks share.

use std::path::PathBuf;

#[derive(Clone, Debug, clap::Args)]
pub struct Usual {
    /// Write everything measured, single samples included, to FILE
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// The program under test
    #[arg(long, value_name = "PROGRAM", env = "SKT_HPL_BIN",
          default_value = env!("CARGO_BIN_EXE_skt-hpl"), hide_default_value = true)]
    pub skt_hpl: PathBuf,

    /// Cargo adds this
    #[arg(long, hide = true)]
    pub bench: bool,
}

impl Usual {
    /// Returns the full path of the program, so that it can be started in another folder.
    #[allow(dead_code)] // not in the benchmark of speed
    pub fn program(&self) -> Result<PathBuf, String> {
        std::fs::canonicalize(&self.skt_hpl).map_err(|e| format!("{}: {e}", self.skt_hpl.display()))
    }
}
