//! The command line: one definition of every flag, and one file for each subcommand.
//!
//! The parser, `--help`, the completions and the man page are made from the definition below. The benchmark's own settings come
//! from `config::settings`, which `skt.toml` and the environment use, too. The program's `main` only calls [`main`]. Without a
//! subcommand the program is the benchmark, so `mpirun skt-hpl` replaces `mpirun xhpl`.

pub mod agent;
pub mod burnin;
mod check;
mod completions;
pub mod doctor;
pub mod halt;
mod held;
mod json_flag;
pub mod launchers;
mod man;
mod model;
pub mod node_flags;
mod passing;
mod plan;
mod report;
pub mod run;
mod running_job;
mod simulate;
mod status;
mod stored_checkpoints;
mod template;
mod this_machine;
mod tune;

use std::process::ExitCode;

use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::base::exit::{Exit, Refusal};
use crate::base::terminal::{print, printed, say};
use crate::base::{closed, cores};
use crate::config::flags::BenchFlags;
use crate::driver::{benchmark, launcher_rank};
use crate::supervise::start::job::Announcement;
use crate::supervise::start::launcher::own_run_id;

/// High-Performance Linpack that survives the loss of nodes
///
/// Without a subcommand, the program is the benchmark. Like HPL it reads ./HPL.dat, solves every test
/// of this file on its MPI ranks, and prints the same text. Every setting is a flag, a variable
/// SKT_<NAME> (SKT_NB=192) and a key of ./skt.toml (nb = 192). Flags override variables, variables
/// override skt.toml, and all three override HPL.dat.
#[derive(Debug, Parser)]
#[command(
    name = "skt-hpl",
    version,
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Sub>,

    #[command(flatten)]
    bench: BenchFlags,
}

#[derive(Debug, Subcommand)]
enum Sub {
    /// Read an HPL.dat (or a skt.toml) and explain it, without running anything
    Check(check::CheckFlags),
    /// Show a supervised run, and the memory of protected runs on this node
    Status(status::StatusFlags),
    /// Remove a protected run's memory from this node
    Clean(held::CleanFlags),
    /// Print the completions of a shell
    Completions(completions::CompletionsFlags),
    /// Print a man page, or write all of them
    Man(man::ManFlags),
    /// Run the benchmark under supervision, which restarts it when nodes fail
    Run(Box<run::RunFlags>),
    /// Check whether this node, or each node of a list, can run the benchmark
    Doctor(doctor::DoctorFlags),
    /// Ask a supervised run to save and stop
    Halt(halt::HaltFlags),
    #[command(hide = true)]
    Agent(agent::AgentFlags),
    /// Find slow nodes and links, and nodes that compute wrong results
    Burnin(Box<burnin::BurninFlags>),
    /// Report the results of finished runs, as text and as an HTML page
    Report(report::ReportFlags),
    /// Plan a run: problem, grid, protection, and the expected time
    Plan(Box<plan::PlanFlags>),
    /// Find good parameters for this machine by timing parts of runs
    Tune(Box<tune::TuneFlags>),
    #[command(hide = true)]
    Trials(tune::trials::TrialsFlags),
    /// Print or draw the models behind the plan
    Model(Box<model::ModelFlags>),
    /// Simulate whole runs under failures
    Simulate(Box<simulate::SimulateFlags>),
}

const EXAMPLES: &str = "  mpirun -n 4 skt-hpl
      run the tests of ./HPL.dat on 4 ranks
  mpirun -n 2 skt-hpl -n 20000 --nb 192 -p 1 -q 2
      one test, without a file
  mpirun -n 4 skt-hpl --dat sweep.dat --nb 128,192,256 --json sweep.json
      a file's tests with other block sizes; all results as JSON too
  skt-hpl check HPL.dat
      explain a file and report its faults
  skt-hpl completions bash > /etc/bash_completion.d/skt-hpl
      completions of the shell";

/// Text of `-h`: one screen, which names the commands that print more.
const OVERVIEW: &str = "\
High-Performance Linpack that survives the loss of nodes

Usage: mpirun -n RANKS skt-hpl [OPTIONS]     the benchmark, in place of xhpl: reads ./HPL.dat
       skt-hpl COMMAND [OPTIONS]

Before a run:
  check        Read an HPL.dat (or a skt.toml) and explain it, without running anything
  doctor       Check whether this node, or each node of a list, can run the benchmark
  burnin       Find slow nodes and links, and nodes that compute wrong results
  plan         Plan a run: problem, grid, protection, and the expected time
  tune         Find good parameters for this machine by timing parts of runs
During a run:
  run          Run the benchmark under supervision, which restarts it when nodes fail
  status       Show a supervised run, and the memory of protected runs on this node
  halt         Ask a supervised run to save and stop
After a run:
  report       Report the results of finished runs, as text and as an HTML page
  clean        Remove a protected run's memory from this node
Other commands:
  model        Print or draw the models behind the plan
  simulate     Simulate whole runs under failures
  man          Print a man page, or write all of them
  completions  Print the completions of a shell

Most used options of the benchmark:
  -n N,..  --nb NB,..  -p P,..  -q Q,..   sizes, blocks and grids in place of HPL.dat's
      --dat FILE                          read the tests from FILE
      --json FILE                         write all measurements of each test to FILE
      --checkpoint K|TIME|auto            save, and survive the loss of nodes
      --timing  --progress                print the time by part; print the progress in lines

skt-hpl --help          every option        skt-hpl COMMAND -h    those of a command (--help: all)
skt-hpl man | man -l -  the man page        skt-hpl --version
";

/// Returns true if a call for help asks for the short help of the program itself. Returns false for `--help` and for the help of
/// a subcommand.
fn wants_overview(arguments: &[String], definition: &Command) -> bool {
    let all = arguments.iter().any(|word| word == "--help");
    let first = arguments.first().map(String::as_str);
    let of_subcommand = match first {
        Some("help") => arguments.len() > 1,
        Some(first) => definition.get_subcommands().any(|sub| sub.get_name() == first),
        None => false,
    };
    !all && !of_subcommand
}

/// Returns the whole definition of the command line, with the examples and the table of exit statuses.
pub fn command() -> Command {
    Cli::command().after_help(format!("Examples:\n{EXAMPLES}\n\nExit status:\n{}", Exit::table()))
}

/// Runs the program.
pub fn main() -> ExitCode {
    // Processes that this process starts inherit the effect of `take_back` and `take_for_full`.
    cores::take_back();
    closed::take_for_full();
    // A file that must not grow any more (`ulimit -f`) then causes an error like a full disk, and does not end the process.
    // Persistent shared memory, results, saves on storage and the journal are files.
    // SAFETY: no handler is set; the call only makes the process ignore the signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
        Err(answer) => {
            let arguments: Vec<String> = std::env::args_os()
                .skip(1)
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            let help = answer.kind() == clap::error::ErrorKind::DisplayHelp;
            if help && wants_overview(&arguments, &command()) && launcher_rank::speaks_for_all() {
                return print(OVERVIEW.as_bytes());
            }
            return tell_once(&answer);
        }
    };
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command {
        None => benchmark::run(&cli.bench).into(),
        Some(Sub::Check(flags)) => check::run(&flags),
        Some(Sub::Status(flags)) => status::run(&flags),
        Some(Sub::Clean(flags)) => held::run_clean(&flags),
        Some(Sub::Completions(flags)) => completions::run(&flags),
        Some(Sub::Man(flags)) => man::run(&flags),
        Some(Sub::Run(flags)) => run::run(&flags),
        Some(Sub::Doctor(flags)) => doctor::run(&flags),
        Some(Sub::Halt(flags)) => halt::run(&flags),
        Some(Sub::Agent(flags)) => agent::run(&flags),
        Some(Sub::Burnin(flags)) => burnin::run(&flags),
        Some(Sub::Report(flags)) => report::run(&flags),
        Some(Sub::Plan(flags)) => plan::run(&flags),
        Some(Sub::Tune(flags)) => tune::run(&flags),
        Some(Sub::Trials(flags)) => tune::trials::run(&flags),
        Some(Sub::Model(flags)) => model::run(&flags),
        Some(Sub::Simulate(flags)) => simulate::run(&flags),
    }
}

/// Prints help, the version or a usage error. If a launcher started several ranks, only one of them prints.
fn tell_once(answer: &clap::Error) -> ExitCode {
    let exit = if answer.exit_code() == 0 { Exit::Passed } else { Exit::Usage };
    if !launcher_rank::speaks_for_all() {
        // A launcher ends the job when the first rank fails. So all ranks but one wait until that rank has printed the reason.
        std::thread::sleep(std::time::Duration::from_millis(500));
        return exit.into();
    }
    if exit == Exit::Passed {
        let shown = answer.print().and_then(|()| std::io::Write::flush(&mut std::io::stdout()));
        return printed(shown, exit).into();
    }
    if own_run_id().is_some() {
        say(Announcement::Refused { status: exit.code() });
    }
    let _ = answer.print();
    if let Some(hint) = file_in_place_of_a_command(answer) {
        say(hint);
    }
    exit.into()
}

/// Returns a hint if the user gave the name of a file in place of a subcommand; None if there is no such file.
fn file_in_place_of_a_command(answer: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ContextValue};
    // After other flags, clap reports such a word as a subcommand that conflicts with these flags, or as an argument too many.
    let said = |kind| match answer.get(kind) {
        Some(ContextValue::String(word)) => Some(word),
        _ => None,
    };
    let word = said(ContextKind::InvalidSubcommand).or_else(|| said(ContextKind::InvalidArg))?;
    std::path::Path::new(word).is_file().then(|| {
        if word.ends_with(".toml") {
            format!("to run with the settings of {word}: skt-hpl --config {word}")
        } else {
            format!("to run the tests of {word}: skt-hpl --dat {word}")
        }
    })
}

/// Prints the error of a subcommand on stderr, after `skt-hpl COMMAND:`. Returns the exit code.
fn refuse(command: &str, Refusal { exit, why }: Refusal) -> ExitCode {
    tell!("skt-hpl {command}: {why}");
    exit.into()
}

/// Prints the error of a subcommand on stderr, after `skt-hpl:` and without the subcommand's name. Returns the exit code.
fn say_why(Refusal { exit, why }: Refusal) -> ExitCode {
    say(why);
    exit.into()
}

/// Prints the error of a subcommand on stderr, after `skt-hpl: COMMAND:`. Returns the exit code.
fn say_refusal(command: &str, Refusal { exit, why }: Refusal) -> ExitCode {
    say_why(Refusal { exit, why: format!("{command}: {why}") })
}

/// Prints the text of a subcommand on stdout, or its error on stderr. Returns the exit code.
fn print_or_refuse(command: &str, answer: Result<String, Refusal>) -> ExitCode {
    answer.map_or_else(|refusal| refuse(command, refusal), |text| print(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsString;
    use std::path::Path;

    use clap::Arg;

    use super::*;
    use crate::supervise::talk::shell::split_words;

    /// Returns the commands in the code blocks of a page, each in one line. Commands with placeholders, or with features of a
    /// shell, are left out.
    fn commands(page: &str) -> Vec<String> {
        let joined = page.replace("\\\n", " ");
        let blocks = joined.split("\n```").skip(1).step_by(2);
        let lines = blocks.flat_map(|block| block.lines().skip(1));
        let command = |line: &str| {
            let line = line.split("  #").next().unwrap_or_default().trim();
            let line = line.strip_suffix('&').unwrap_or(line).trim();
            let at = line.find("skt-hpl ").filter(|&at| at == 0 || line.starts_with("mpirun "))?;
            // Lines of the program's output also begin with `skt-hpl`, but with a colon after it.
            let plain = !["...", ": ", "<", "|", "$(", ";", "&&", ">", "[", " = "]
                .iter()
                .any(|odd| line.contains(odd));
            plain.then(|| line[at..].to_owned())
        };
        lines.filter_map(command).collect()
    }

    /// Parses a command line as the program does. Flags of the benchmark after `run` and `doctor` are parsed by the benchmark's
    /// own definition.
    fn understood(words: &[OsString]) -> Result<(), clap::Error> {
        let cli = Cli::try_parse_from(words)?;
        let bench = match cli.command {
            Some(Sub::Run(flags)) => flags.bench,
            Some(Sub::Doctor(flags)) => flags.bench,
            _ => return Ok(()),
        };
        Cli::try_parse_from([OsString::from("skt-hpl")].into_iter().chain(bench)).map(|_| ())
    }

    /// Converts the pseudo-errors with which clap answers `--help` and `--version` to success.
    fn shown(error: clap::Error) -> Result<(), clap::Error> {
        if error.use_stderr() { Err(error) } else { Ok(()) }
    }

    #[test]
    fn commands_in_the_docs_are_understood() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folders =
            ["docs", "docs/dev"].map(|folder| std::fs::read_dir(root.join(folder)).unwrap());
        let docs = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
        let pages = docs.filter(|path| path.extension() == Some("md".as_ref()));
        let (mut count, mut faults) = (0, Vec::new());
        for path in pages.chain([root.join("README.md")]) {
            for command in commands(&std::fs::read_to_string(&path).unwrap()) {
                let words = split_words(&command).unwrap();
                let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
                if let Err(error) = understood(&words).or_else(shown) {
                    faults.push(format!("{}: {command}\n{error}", path.display()));
                }
                count += 1;
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        assert!(count > 30, "{count} were found");
    }

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn the_overview_fits_a_screen_and_names_every_subcommand() {
        let definition = command();
        assert!(
            OVERVIEW.lines().count() <= 40 && OVERVIEW.lines().all(|l| l.chars().count() <= 100)
        );
        for sub in definition.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            assert!(
                OVERVIEW.contains(&format!("\n  {:<13}", sub.get_name())),
                "{}",
                sub.get_name()
            );
        }
        let wants = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
            wants_overview(&words, &definition)
        };
        assert!(wants(&["-h"]) && wants(&["help"]) && wants(&["-n", "5", "-h"]));
        assert!(!wants(&["run", "-h"]) && !wants(&["help", "run"]) && !wants(&["--help"]));
    }

    /// Options that few users need. A command that has one of them shows it under `--help` alone.
    const ADVANCED: [&str; 24] = [
        "align",
        "device",
        "device-link",
        "device-memory",
        "device-peak",
        "encode",
        "equil",
        "fanout",
        "hang-factor",
        "helper-cores",
        "helpers",
        "l1",
        "level2-scope",
        "memory-name",
        "orphan-timeout",
        "parity-code",
        "rank-memory",
        "rng",
        "scope",
        "slow-after",
        "slow-factor",
        "split-update",
        "store",
        "u",
    ];

    /// `-h` and `--help` of a command differ by the advanced options alone. Each advanced option belongs to some command.
    #[test]
    fn advanced_options_are_hidden_from_the_short_help() {
        let mut definition = command();
        let mut found = BTreeSet::new();
        let option = |long: &str| format!("--{long} ");
        for sub in definition.get_subcommands_mut().filter(|sub| !sub.is_hide_set()) {
            let (short, long) = (sub.render_help().to_string(), sub.render_long_help().to_string());
            for name in sub.get_arguments().filter_map(Arg::get_long) {
                let advanced = ADVANCED.contains(&name);
                found.extend(advanced.then(|| name.to_owned()));
                let takes = |help: &str| {
                    help.contains(&option(name)) || help.contains(&format!("--{name}\n"))
                };
                let (in_short, in_long) = (takes(&short), takes(&long));
                assert!(in_long || name == "help", "{}: --{name}", sub.get_name());
                assert_eq!(in_short, !advanced, "{}: --{name}\n{short}", sub.get_name());
            }
        }
        let of_bench = definition.get_arguments().filter(|arg| arg.is_hide_short_help_set());
        found.extend(of_bench.filter_map(|arg| arg.get_long().map(str::to_owned)));
        assert_eq!(found, ADVANCED.map(str::to_owned).into());
    }

    /// Every flag of every visible subcommand has a description.
    #[test]
    fn every_flag_is_described() {
        fn look(command: &Command, lacking: &mut Vec<String>) {
            for argument in command.get_arguments() {
                if argument.get_help().is_none() {
                    lacking.push(format!("{} {}", command.get_name(), argument.get_id()));
                }
            }
            command
                .get_subcommands()
                .filter(|sub| !sub.is_hide_set())
                .for_each(|sub| look(sub, lacking));
        }
        let mut lacking = Vec::new();
        look(&command(), &mut lacking);
        assert_eq!(lacking, Vec::<String>::new());
    }

    #[test]
    fn the_benchmark_needs_no_subcommand() {
        let cli = Cli::try_parse_from(["skt-hpl", "-n", "1000,2000", "--no-preflight"]).unwrap();
        assert!(cli.command.is_none());
        assert_eq!(cli.bench.overrides.n, Some(vec![1000, 2000]));
        assert_eq!(cli.bench.overrides().preflight, Some(false));
    }
}
