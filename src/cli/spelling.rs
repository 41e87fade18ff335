//! Former names of flags: still accepted in this version, with a note of the present name.
//!
//! One name means one thing in all commands. `--restart` decides whether a run resumes from its memory, so the time of a restart
//! is `--restart-time`. `--spares` is a file of nodes, so their number is `--spare-nodes`. `--launcher` names the MPI of the
//! launcher, so the words of a whole command are `--launch-command`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Command, the flag's former name, its present name.
const RENAMED: &[(&str, &str, &str)] = &[
    ("plan", "--restart", "--restart-time"),
    ("plan", "--spares", "--spare-nodes"),
    ("plan", "--limit", "--time-limit"),
    ("plan", "--launcher", "--launch-command"),
    ("tune", "--launcher", "--launch-command"),
    ("model", "--restart", "--restart-time"),
    ("model", "--encode", "--encode-time"),
    ("simulate", "--restart", "--restart-time"),
    ("simulate", "--spares", "--spare-nodes"),
    ("simulate", "--limit", "--time-limit"),
    ("simulate", "--every", "--checkpoint"),
    ("simulate", "--encode", "--encode-time"),
    ("simulate", "--flush", "--flush-time"),
];

/// Returns the words of a command line (the program's name first) with present names, and a note for each former name.
pub fn renewed(words: impl Iterator<Item = OsString>) -> (Vec<OsString>, Vec<String>) {
    let mut words: Vec<OsString> = words.collect();
    let mut notes = Vec::new();
    let Some(command) = words.get(1).cloned() else { return (words, notes) };
    for word in words.iter_mut().skip(2).take_while(|word| *word != "--") {
        let bytes = word.as_bytes();
        let name = bytes.split(|b| *b == b'=').next().unwrap_or_default();
        let known =
            RENAMED.iter().find(|(of, before, _)| command == *of && name == before.as_bytes());
        let Some((_, before, now)) = known else { continue };
        let mut renewed = OsString::from(now);
        renewed.push(OsStr::from_bytes(&bytes[before.len()..]));
        *word = renewed;
        notes.push(format!("{before} is called {now} now; the next version takes only that"));
    }
    (words, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> (String, usize) {
        let (words, notes) = renewed(line.split(' ').map(OsString::from));
        let words: Vec<String> = words.into_iter().map(|w| w.into_string().unwrap()).collect();
        (words.join(" "), notes.len())
    }

    #[test]
    fn names_of_before_are_those_of_now() {
        for (line, now, notes) in [
            ("skt-hpl plan --limit 2h --nodes 4", "skt-hpl plan --time-limit 2h --nodes 4", 1),
            (
                "skt-hpl plan --limit=2h --spares=3",
                "skt-hpl plan --time-limit=2h --spare-nodes=3",
                2,
            ),
            ("skt-hpl plan --time-limit 2h", "skt-hpl plan --time-limit 2h", 0),
            (
                "skt-hpl run --spares FILE --restart auto",
                "skt-hpl run --spares FILE --restart auto",
                0,
            ),
            ("skt-hpl plan --limits 2h -- --limit", "skt-hpl plan --limits 2h -- --limit", 0),
            ("skt-hpl simulate --every 10min", "skt-hpl simulate --checkpoint 10min", 1),
            ("skt-hpl tune --launcher srun", "skt-hpl tune --launch-command srun", 1),
            ("skt-hpl run --launcher srun", "skt-hpl run --launcher srun", 0),
            ("skt-hpl", "skt-hpl", 0),
        ] {
            assert_eq!(of(line), (now.to_owned(), notes));
        }
    }

    /// The page of the models names commands with renamed flags, but never `run` and the benchmark.
    #[test]
    fn the_page_of_the_models_has_the_names_of_now() {
        let page = include_str!("../../docs/MODELS.md");
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-');
        for (command, before, now) in RENAMED {
            let found = page.match_indices(before).find(|(at, _)| ends(&page[at + before.len()..]));
            let line = found.map(|(at, _)| page[..at].lines().count());
            // A flag of the benchmark with this name keeps it.
            let elsewhere = ["--launcher", "--encode"].contains(before);
            assert!(line.is_none() || elsewhere, "{command}: {before} is {now} now, line {line:?}");
        }
    }

    /// A former name that another flag of the command now has would never be reached, and a present name must exist.
    #[test]
    fn every_name_of_now_is_a_flag_of_its_command() {
        let program = crate::cli::command();
        for (command, before, now) in RENAMED {
            let command = program.find_subcommand(command).unwrap();
            let topics = command.get_subcommands().flat_map(|topic| topic.get_arguments());
            let flags: Vec<String> = command
                .get_arguments()
                .chain(topics)
                .filter_map(|a| Some(format!("--{}", a.get_long()?)))
                .collect();
            assert!(flags.contains(&(*now).to_owned()), "{} has no {now}", command.get_name());
            assert!(!flags.contains(&(*before).to_owned()), "{} has {before}", command.get_name());
        }
    }
}
