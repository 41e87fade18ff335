//! `skt-hpl report`: what finished runs come to, for a terminal and as one HTML page.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::exit::Exit;
use crate::input::same_file;
use crate::input::settings::beside_stdout;
use crate::review::form::Stated;
use crate::review::sources::Material;
use crate::review::{page, text};
use crate::supervise::remember::folder::Folder;
use crate::units::flops_per_second;
use crate::whole;

#[derive(Debug, Args)]
pub struct ReportFlags {
    /// Documents of --json, event logs of `skt-hpl run` (or its --state folder), plans of `skt-hpl plan --json`
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Also write the report to FILE, as one HTML page
    #[arg(short, long, value_name = "FILE", value_parser = beside_stdout)]
    output: Option<PathBuf>,

    /// Title of the page
    #[arg(long, value_name = "TEXT", default_value = "skt-hpl report", requires = "output")]
    title: String,

    /// Theoretical peak of the machine, such as 83Gflop/s or 5.2T; a bare number is Gflop/s
    #[arg(long, value_name = "RATE", value_parser = flops_per_second)]
    rpeak: Option<f64>,
}

pub fn run(flags: &ReportFlags) -> ExitCode {
    let mut material = Material::default();
    for path in &flags.files {
        let (path, name) = file_of(path);
        let added = whole::text(&path)
            .map_err(|error| format!("{}: {error}", path.display()))
            .and_then(|text| material.add(&name, &text));
        if let Err(why) = added {
            super::say(format_args!("report: {why}"));
            return Exit::BadInput.into();
        }
    }
    let read = |to: &&PathBuf| flags.files.iter().any(|path| same_file(&file_of(path).0, to));
    if let Some(file) = flags.output.as_ref().filter(read) {
        let file = file.display();
        super::say(format_args!(
            "report: {file} is read, and would be lost: name another --output"
        ));
        return Exit::BadInput.into();
    }
    let stated = Stated { rpeak: flags.rpeak };
    let mut words = text::text(&material, &stated);
    if let Some(file) = &flags.output {
        if let Err(error) = std::fs::write(file, page::page(&material, &stated, &flags.title)) {
            super::say(format_args!("report: cannot write {}: {error}", file.display()));
            return Exit::Environment.into();
        }
        words += &format!("\nWritten: {}\n", file.display());
    }
    super::print(words.as_bytes())
}

/// The file to read and what to call it: of a run's folder the event log.
fn file_of(path: &Path) -> (PathBuf, String) {
    let path = if path.is_dir() { Folder::new(path).journal() } else { path.to_owned() };
    let name =
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    (path, name)
}
