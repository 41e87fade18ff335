//! `skt-hpl man`: the man page, made from the definition of the flags.
//!
//! One page for the whole program: the subcommands are described in it, so that no page has to be
//! installed beside it.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_mangen::Man;

use super::exit::Exit;
use super::{Cli, EXAMPLES};

pub fn run() -> ExitCode {
    match page() {
        Ok(page) => super::print(&page),
        Err(error) => {
            eprintln!("skt-hpl: cannot make the man page: {error}");
            Exit::Environment.into()
        }
    }
}

fn page() -> io::Result<Vec<u8>> {
    let command = Cli::command();
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    writeln!(page, ".SH SUBCOMMANDS")?;
    for sub in command.get_subcommands() {
        let arguments: Vec<String> = sub.get_positionals().map(|arg| format!(" {arg}")).collect();
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        writeln!(page, ".TP\n.B {}{}", sub.get_name(), arguments.concat())?;
        writeln!(page, "{}", escaped(&about))?;
    }
    writeln!(page, ".SH EXAMPLES\n.nf\n{}\n.fi", escaped(EXAMPLES))?;
    writeln!(page, ".SH EXIT STATUS\n.nf\n{}\n.fi", escaped(&Exit::table()))?;
    man.render_version_section(&mut page)?;
    Ok(page)
}

/// Text in which no character means anything to the formatter. Lines that would begin with a
/// control character do not occur: ours begin with a letter or a blank.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}
