//! `skt-hpl status`: prints the supervised run of this folder, if there is one, and the memory of protected runs on this node.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::json_flag;
use super::{held, stored_checkpoints};
use crate::base::clock::unix_ms;
use crate::base::exit::{Exit, Refusal};
use crate::supervise::remember::folder::{self, Folder, read_whole};
use crate::supervise::remember::journal::Held;
use crate::supervise::tell::status::{Status, supervised};

#[derive(Clone, Debug, Args)]
pub struct StatusFlags {
    /// Folder of the supervised run [default: skt-hpl.run, if it exists]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// Also list the checkpoints in DIR (the benchmark's --level2)
    #[arg(long, value_name = "DIR")]
    pub level2: Option<PathBuf>,

    /// Write JSON to FILE; without FILE, or with `-`, print JSON in place of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub json: Option<Option<PathBuf>>,

    /// Show the supervised run again every second until it ends
    #[arg(long, conflicts_with_all = ["json", "level2"])]
    pub watch: bool,
}

/// Document of `--json`.
#[derive(Serialize)]
struct Page {
    /// The supervised run; `null` if there is none.
    run: Option<Status>,
    /// This node's memory, by job.
    memory: Vec<held::Job>,
    /// Checkpoints on storage, by job; absent without --level2.
    #[serde(skip_serializing_if = "Option::is_none")]
    storage: Option<Vec<stored_checkpoints::Job>>,
}

pub fn run(flags: &StatusFlags) -> ExitCode {
    status(flags).unwrap_or_else(super::say_why)
}

fn status(flags: &StatusFlags) -> Result<ExitCode, Refusal> {
    json_flag::ready(&flags.json, [])?;
    let folder = Folder::new(flags.state.as_deref().unwrap_or(folder::DEFAULT.as_ref()));
    let run: Option<Status> = read_whole(&folder.status());
    if run.is_none() && (flags.state.is_some() || flags.watch) {
        let folder = folder.path().display();
        let why = format!("{folder} contains no supervised run: check --state");
        return Err(Refusal::usage(why));
    }
    let storage = flags.level2.as_deref().map(stored_checkpoints::survey).transpose();
    let storage = storage.map_err(Refusal::usage)?;
    if flags.watch {
        return Ok(watch(&folder));
    }
    let page = Page { run, memory: held::survey(), storage };
    let text = json_flag::answer(&flags.json, &page, || {
        let mut text = String::new();
        if let Some(run) = &page.run {
            text += &run.page(unix_ms(), &supervised(&folder));
            text += "\n";
        }
        text += &held::words(&page.memory);
        if let Some((dir, jobs)) = flags.level2.as_deref().zip(page.storage.as_ref()) {
            text += &stored_checkpoints::words(dir, jobs);
        }
        text
    })?;
    Ok(crate::base::terminal::print(text.as_bytes()))
}

fn watch(folder: &Folder) -> ExitCode {
    loop {
        let Some(status) = read_whole::<Status>(&folder.status()) else {
            return Exit::Usage.into();
        };
        let held = supervised(folder);
        let page = status.page(unix_ms(), &held);
        if let Err(error) = crate::base::terminal::put(format!("\x1b[H\x1b[2J{page}").as_bytes()) {
            return crate::base::terminal::printed(Err(error), Exit::Passed).into();
        }
        if status.exit_code.is_some() || held == Held::No {
            return Exit::Passed.into();
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}
