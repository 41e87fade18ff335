//! `skt-hpl helper` (hidden): what a rank starts under `--helpers process` to bring something to storage.

use std::process::ExitCode;

use clap::Args;

use crate::checkpoint::process;

#[derive(Clone, Debug, Args)]
pub struct HelperFlags {
    /// The process of the rank that it is for
    #[arg(long, value_name = "PROCESS")]
    pub of: u32,
}

pub fn run(flags: &HelperFlags) -> ExitCode {
    process::serve(flags.of)
}
