//! `skt-hpl completions SHELL`: completions made from the definition of the flags.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use clap_complete::Shell;

/// Shells that are offered.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub struct CompletionsFlags {
    /// Shell for which to print completions
    shell: Name,
}

pub fn run(flags: &CompletionsFlags) -> ExitCode {
    let shell = match flags.shell {
        Name::Bash => Shell::Bash,
        Name::Zsh => Shell::Zsh,
        Name::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut super::command(), "skt-hpl", &mut text);
    // In our name, the generator for bash takes the hyphen for the seam between command and subcommand. It does so in its list of
    // the subcommands' options, but not in the look-up: none of them would ever be found.
    let text = String::from_utf8_lossy(&text).replace("skt__subcmd__hpl__", "skt__hpl__");
    crate::base::terminal::print(text.as_bytes())
}
