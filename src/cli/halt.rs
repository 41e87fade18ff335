//! `skt-hpl halt`: asks a supervised run to save and stop. The run can be resumed later.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::base::clock::unix_ms;
use crate::base::exit::Refusal;
use crate::base::units::duration;
use crate::supervise::remember::folder::{self, Folder, HaltRequest, write_whole};
use crate::supervise::remember::journal::Held;
use crate::supervise::tell::status::supervised;

#[derive(Clone, Debug, Args)]
pub struct HaltFlags {
    /// Folder of the run
    #[arg(long, value_name = "DIR", default_value = folder::DEFAULT)]
    pub state: PathBuf,

    /// Wait for the next regular save instead of saving at once
    #[arg(long)]
    pub after_checkpoint: bool,

    /// Time when the request takes effect: +90m (from now), 23:30 (UTC, today or tomorrow) or @1790000000 (seconds since 1970)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub at: Option<u64>,
}

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;

fn moment(text: &str) -> Result<u64, String> {
    moment_after(text, unix_ms())
}

/// Parses the time of a request, such as +90m, 23:30 or @SECONDS, and returns it in Unix milliseconds. `now_ms` is the present
/// moment.
fn moment_after(text: &str, now_ms: u64) -> Result<u64, String> {
    let wrong = || "a time such as +90m, 23:30 (UTC) or @SECONDS (Unix time) is needed".to_owned();
    if let Some(later) = text.strip_prefix('+') {
        return Ok(now_ms + duration(later)?.as_millis() as u64);
    }
    if let Some(seconds) = text.strip_prefix('@') {
        let seconds: u64 = seconds.parse().map_err(|_| wrong())?;
        return seconds.checked_mul(1000).ok_or_else(wrong);
    }
    let (hours, minutes) = text.split_once(':').ok_or_else(wrong)?;
    let (hours, minutes): (u64, u64) =
        (hours.parse().map_err(|_| wrong())?, minutes.parse().map_err(|_| wrong())?);
    if hours > 23 || minutes > 59 {
        return Err(wrong());
    }
    let today = now_ms / DAY_MS * DAY_MS + (hours * 60 + minutes) * MINUTE_MS;
    Ok(if today < now_ms { today + DAY_MS } else { today })
}

pub fn run(flags: &HaltFlags) -> ExitCode {
    super::print_or_refuse("halt", halt(flags))
}

fn halt(flags: &HaltFlags) -> Result<String, Refusal> {
    let folder = Folder::new(&flags.state);
    let path = folder.path().display();
    match supervised(&folder) {
        Held::Yes => {}
        Held::No => {
            let why = format!(
                "no supervisor works on {path}: check --state, and whether `skt-hpl run` still runs"
            );
            return Err(Refusal::usage(why));
        }
        Held::Unknown(why) => tell!(
            "skt-hpl halt: it is not known whether a supervisor works on {path} ({why}); the request was written to this folder"
        ),
    }
    let request = HaltRequest { after_checkpoint: flags.after_checkpoint, at_ms: flags.at };
    write_whole(&folder.halt(), &request)
        .map_err(|error| Refusal::environment(format!("{}: {error}", folder.halt().display())))?;
    let words = words(&request, unix_ms());
    Ok(format!("{words}; `skt-hpl run` then ends with status 75\n"))
}

/// Describes a request to halt as text.
fn words(request: &HaltRequest, now_ms: u64) -> String {
    let how = if request.after_checkpoint { "after its next regular save" } else { "now" };
    match request.at_ms.map(|at| at.saturating_sub(now_ms) / 1000) {
        None => format!("the run is asked to stop {how}"),
        Some(seconds) if request.after_checkpoint => {
            format!("in {seconds} s the run is asked to stop {how}")
        }
        Some(seconds) => format!("the run is asked to stop in {seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_what_was_asked_for() {
        let said = |after_checkpoint, at_ms| words(&HaltRequest { after_checkpoint, at_ms }, 1000);
        assert_eq!(said(false, None), "the run is asked to stop now");
        assert_eq!(said(true, None), "the run is asked to stop after its next regular save");
        assert_eq!(said(false, Some(91_000)), "the run is asked to stop in 90 s");
        let later = "in 90 s the run is asked to stop after its next regular save";
        assert_eq!(said(true, Some(91_000)), later);
    }

    #[test]
    fn moments() {
        let noon = 20_000 * DAY_MS + 12 * 60 * MINUTE_MS;
        assert_eq!(moment_after("+90s", noon), Ok(noon + 90_000));
        assert_eq!(moment_after("@5", noon), Ok(5000));
        assert_eq!(moment_after("12:30", noon), Ok(noon + 30 * MINUTE_MS));
        assert_eq!(moment_after("11:30", noon), Ok(noon + DAY_MS - 30 * MINUTE_MS));
        for bad in ["", "noon", "24:00", "1:60", "@x", "+", "12:30:15"] {
            assert!(moment_after(bad, noon).is_err(), "{bad}");
        }
    }
}
