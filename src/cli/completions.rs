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
    // The name skt-hpl has a hyphen. In its list of the subcommands' options, the generator for bash takes this hyphen for the
    // one between command and subcommand. In the look-up it does not, so bash would find no options of subcommands.
    let text = String::from_utf8_lossy(&text).replace("skt__subcmd__hpl__", "skt__hpl__");
    crate::base::terminal::print(text.as_bytes())
}
