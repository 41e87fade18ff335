//! The supervised run as `skt-hpl status` shows it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::exit::Exit;
use crate::supervise::events::unix_ms;
use crate::supervise::folder::{self, Folder, read_whole};
use crate::supervise::journal::Journal;
use crate::supervise::status::Status;

#[derive(Clone, Debug, Args)]
pub struct SupervisorStatusFlags {
    /// Folder of the run
    #[arg(long, value_name = "DIR", default_value = folder::DEFAULT)]
    pub state: PathBuf,

    /// As JSON
    #[arg(long)]
    pub json: bool,

    /// Show it again every second until the run has ended
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
}

pub fn run(flags: &SupervisorStatusFlags) -> ExitCode {
    let folder = Folder::new(&flags.state);
    loop {
        let Some(status) = read_whole::<Status>(&folder.status()) else {
            eprintln!(
                "skt-hpl: {} holds no supervised run; is --state right?",
                folder.path().display()
            );
            return Exit::Usage.into();
        };
        if flags.json {
            let text =
                serde_json::to_string_pretty(&status).expect("plain values have a JSON form");
            return super::print(format!("{text}\n").as_bytes());
        }
        let supervised = Journal::is_held(&folder.journal());
        let page = status.page(unix_ms(), supervised);
        if !flags.watch {
            return super::print(page.as_bytes());
        }
        super::print(format!("\x1b[H\x1b[2J{page}").as_bytes());
        if status.exit_code.is_some() || !supervised {
            return Exit::Passed.into();
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}
