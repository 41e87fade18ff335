//! `skt-hpl completions SHELL`: completions made from the definition of the flags.

use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap_complete::Shell;

#[derive(Debug, Args)]
pub struct CompletionsFlags {
    /// Shell for which to print completions
    #[arg(value_parser = PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|name| name.parse::<Shell>()))]
    shell: Shell,
}

pub fn run(flags: &CompletionsFlags) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(flags.shell, &mut super::command(), "skt-hpl", &mut text);
    // In our name, the generator for bash takes the hyphen for the seam between command and subcommand. It does so in its list of
    // the subcommands' options, but not in the look-up: none of them would ever be found.
    let text = String::from_utf8_lossy(&text).replace("skt__subcmd__hpl__", "skt__hpl__");
    crate::base::terminal::print(text.as_bytes())
}
