//! `skt-hpl man`: the man page, made from the definition of the flags.

use std::process::ExitCode;

use super::exit::Exit;

pub fn run() -> ExitCode {
    let mut page = Vec::new();
    match clap_mangen::Man::new(super::command()).render(&mut page) {
        Ok(()) => super::print(&page),
        Err(error) => {
            eprintln!("skt-hpl: cannot make the man page: {error}");
            Exit::Environment.into()
        }
    }
}
