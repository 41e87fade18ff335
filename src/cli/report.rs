//! `skt-hpl report`: reports the results of finished runs, on a terminal and as an HTML page.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::json_flag;
use crate::base::bounded_read;
use crate::base::exit::Refusal;
use crate::base::terminal::{print, say};
use crate::base::units::flops_per_second;
use crate::config::same_file;
use crate::config::settings::other_than_stdout;
use crate::review::sources::Material;
use crate::review::{page, text};
use crate::supervise::remember::folder::Folder;

#[derive(Debug, Args)]
pub struct ReportFlags {
    /// Documents of --json, event logs of `skt-hpl run` (or its --state folder), plans of `skt-hpl plan --json`
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Also write the report to FILE as an HTML page
    #[arg(short, long, value_name = "FILE", value_parser = other_than_stdout)]
    output: Option<PathBuf>,

    /// Title of the page
    #[arg(long, value_name = "TEXT", default_value = "skt-hpl report", requires = "output")]
    title: String,

    /// Theoretical peak of the machine, such as 83Gflop/s or 5.2T; a bare number is Gflop/s
    #[arg(long, value_name = "RATE", value_parser = flops_per_second)]
    rpeak: Option<f64>,
}

pub fn run(flags: &ReportFlags) -> ExitCode {
    let refused = |refusal| super::say_refusal("report", refusal);
    report(flags).map_or_else(refused, |words| print(words.as_bytes()))
}

fn report(flags: &ReportFlags) -> Result<String, Refusal> {
    let mut material = Material::default();
    let mut files: Vec<PathBuf> = Vec::new();
    for path in flags.files.iter().map(|path| file_of(path)) {
        if files.iter().any(|other| same_file(other, &path)) {
            say(format_args!("report: {} is named twice, but is read once", path.display()));
        } else {
            files.push(path);
        }
    }
    for (path, name) in files.iter().zip(names(&files)) {
        let text = bounded_read::text(path);
        let text =
            text.map_err(|error| Refusal::bad_input(format!("{}: {error}", path.display())))?;
        material.add(&name, &text).map_err(Refusal::bad_input)?;
    }
    if let Some(file) = &flags.output {
        json_flag::spares("--output", file, &files)?;
    }
    let mut words = text::text(&material, flags.rpeak);
    if let Some(file) = &flags.output {
        let page = page::page(&material, flags.rpeak, &flags.title);
        json_flag::write(file, &page).inspect_err(|_| {
            // The text is still valid, so it is printed.
            print(words.as_bytes());
        })?;
        words += &format!("\nWritten: {}\n", file.display());
    }
    Ok(words)
}

/// Returns the file to read. If `path` is the folder of a run, this is the run's event log; otherwise it is `path` itself.
fn file_of(path: &Path) -> PathBuf {
    if path.is_dir() { Folder::new(path).journal() } else { path.to_owned() }
}

/// Returns a name for each file. The name contains as many of the folders above the file as distinguish it from all other files.
fn names(files: &[PathBuf]) -> Vec<String> {
    let end = |path: &Path, parts: usize| -> PathBuf {
        let all: Vec<_> = path.components().collect();
        all[all.len().saturating_sub(parts)..].iter().collect()
    };
    let name = |(place, path): (usize, &PathBuf)| {
        let others = || files.iter().enumerate().filter(|(other, _)| *other != place);
        let told = |parts: &usize| others().all(|(_, file)| end(file, *parts) != end(path, *parts));
        let parts = (1..path.components().count()).find(told).unwrap_or(usize::MAX);
        end(path, parts).display().to_string()
    };
    files.iter().enumerate().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_called_by_what_tells_them_apart() {
        let called = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(called(&["/x/a/run.json"]), ["run.json"]);
        assert_eq!(
            called(&["a/run.json", "b/run.json", "c.json"]),
            ["a/run.json", "b/run.json", "c.json"]
        );
        assert_eq!(called(&["run.json", "old/run.json"]), ["run.json", "old/run.json"]);
        assert_eq!(called(&["/1/a/r", "/2/a/r", "/1/b/r"]), ["1/a/r", "2/a/r", "b/r"]);
        assert_eq!(called(&["/r", "r"]), ["/r", "r"]);
    }
}
