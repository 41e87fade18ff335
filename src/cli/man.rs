//! `skt-hpl man`: the man pages, made from the definition of the flags.
//!
//! The program has a page, and so has each subcommand, as in `git`: `man skt-hpl`, `man skt-hpl-run`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_mangen::Man;

use super::{EXAMPLES, command};
use crate::base::exit::{Exit, Refusal};
use crate::base::terminal::print;

#[derive(Debug, Args)]
pub struct ManFlags {
    /// Print the page of this subcommand [default: the page of the program itself]
    #[arg(value_name = "COMMAND")]
    command: Option<String>,

    /// Write all pages into DIR instead, each as skt-hpl-COMMAND.1
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

pub fn run(flags: &ManFlags) -> ExitCode {
    man(flags).map_or_else(|refusal| super::say_refusal("man", refusal), |page| print(&page))
}

/// Returns the man page to print. With --dir, writes all pages into that folder and returns an empty page.
fn man(flags: &ManFlags) -> Result<Vec<u8>, Refusal> {
    let definition = built();
    if let Some(dir) = &flags.dir {
        return write_all(&definition, dir).map(|()| Vec::new()).map_err(|error| {
            Refusal::environment(format!("cannot write into {}: {error}", dir.display()))
        });
    }
    let page = match &flags.command {
        None => main_page(&definition),
        Some(name) => match described(&definition).find(|sub| sub.get_name() == name) {
            Some(sub) => sub_page(sub),
            None => {
                let names: Vec<&str> = described(&definition).map(Command::get_name).collect();
                let names = names.join(", ");
                let why = format!("there is no subcommand {name:?}; the subcommands are {names}");
                return Err(Refusal::usage(why));
            }
        },
    };
    page.map_err(|error| Refusal::environment(format!("cannot make the page: {error}")))
}

/// Returns the definition of the command line with clap's own additions, such as the full names of subcommands.
fn built() -> Command {
    let mut definition = command().after_help("");
    definition.build();
    definition
}

/// Returns the subcommands that have a man page.
fn described(definition: &Command) -> impl Iterator<Item = &Command> {
    definition.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

fn write_all(definition: &Command, dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    std::fs::write(dir.join("skt-hpl.1"), main_page(definition)?)?;
    for sub in described(definition) {
        std::fs::write(dir.join(format!("skt-hpl-{}.1", sub.get_name())), sub_page(sub)?)?;
    }
    Ok(())
}

fn main_page(definition: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(definition.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    writeln!(page, ".SH SUBCOMMANDS\nEach has a page of its own: skt\\-hpl\\-COMMAND(1).")?;
    for sub in described(definition) {
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        writeln!(page, ".TP\n.B {}\n{}", sub.get_name(), escaped(&about))?;
    }
    writeln!(page, ".SH EXAMPLES\n.nf\n{}\n.fi", escaped(EXAMPLES))?;
    writeln!(page, ".SH EXIT STATUS\n.nf\n{}\n.fi", escaped(&Exit::table()))?;
    man.render_version_section(&mut page)?;
    Ok(page)
}

fn sub_page(sub: &Command) -> io::Result<Vec<u8>> {
    let title = format!("skt-hpl-{}", sub.get_name());
    let mut page = Vec::new();
    // The title has the subcommand's name with a hyphen; the synopsis has it as the user types it.
    let man = Man::new(sub.clone()).title(title.clone());
    man.render_title(&mut page)?;
    let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
    writeln!(page, ".SH NAME\n{} \\- {}", escaped(&title), escaped(&about))?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    // Some subcommands have topics, each with its own flags.
    for topic in sub.get_subcommands().filter(|topic| topic.get_name() != "help") {
        let about = topic.get_about().map(ToString::to_string).unwrap_or_default();
        writeln!(page, ".SH {}\n{}", escaped(&topic.get_name().to_uppercase()), escaped(&about))?;
        let mut options = Vec::new();
        Man::new(topic.clone()).render_options_section(&mut options)?;
        let options = String::from_utf8_lossy(&options).replacen(".SH OPTIONS\n", "", 1);
        page.write_all(options.as_bytes())?;
    }
    writeln!(page, ".SH EXIT STATUS\n.nf\n{}\n.fi", escaped(&Exit::table()))?;
    writeln!(page, ".SH SEE ALSO\nskt\\-hpl(1)")?;
    Ok(page)
}

/// Escapes text for the formatter of man pages. No line begins with a control character of the formatter: each line begins with a
/// letter or a blank.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}
