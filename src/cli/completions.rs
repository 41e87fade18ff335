//! `skt-hpl completions SHELL`: completions made from the definition of the flags.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use clap_complete::Shell;

/// The shells that are offered.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub struct CompletionsFlags {
    /// The shell to print completions for
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
    // For bash the generator takes the hyphen of our name for the seam between command and subcommand where it lists the
    // subcommands' options, and does not where it looks them up: none of them would ever be found.
    let text = String::from_utf8_lossy(&text).replace("skt__subcmd__hpl__", "skt__hpl__");
    crate::base::terminal::print(text.as_bytes())
}
