//! Meaning of the program's exit status: one table for the code, the help and the man page.
//!
//! Scripts and supervisors act on these numbers, so a number never changes its meaning.

use std::process::ExitCode;

/// Exit status of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
pub enum Exit {
    Passed = 0,
    BadInput = 1,
    Usage = 2,
    ResidualFailed = 3,
    Unrecoverable = 4,
    NoSharedMemory = 5,
    Environment = 6,
    Suspect = 7,
    Stopped = 75,
}

impl Exit {
    pub const ALL: [Exit; 9] = [
        Exit::Passed,
        Exit::BadInput,
        Exit::Usage,
        Exit::ResidualFailed,
        Exit::Unrecoverable,
        Exit::NoSharedMemory,
        Exit::Environment,
        Exit::Suspect,
        Exit::Stopped,
    ];

    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn meaning(self) -> &'static str {
        match self {
            Exit::Passed => "all tests passed",
            Exit::BadInput => "bad input in HPL.dat, skt.toml or an environment variable",
            Exit::Usage => "the command line is not understood",
            Exit::ResidualFailed => "a residual check FAILED",
            Exit::Unrecoverable => "more was lost than can be recovered; the memory is kept",
            Exit::NoSharedMemory => "shared memory cannot be allocated",
            Exit::Environment => {
                "the launcher or the environment cannot be used, a test got no memory, or results could not be written"
            }
            Exit::Suspect => {
                "burnin: a node or a link is slower than its peers, or a node computes wrong results"
            }
            Exit::Stopped => {
                "stopped on request, or for lack of nodes or ranks; the run can be resumed"
            }
        }
    }

    /// Returns the table of exit statuses, as the help shows it.
    pub fn table() -> String {
        let lines: Vec<String> = Exit::ALL
            .iter()
            .map(|exit| format!("  {:>3}  {}", exit.code(), exit.meaning()))
            .collect();
        lines.join("\n")
    }
}

/// Reason that a command or a run ends before its work is done: the exit status and the message.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Refusal {
    pub exit: Exit,
    pub why: String,
}

impl Refusal {
    pub fn new(exit: Exit, why: impl ToString) -> Self {
        Self { exit, why: why.to_string() }
    }

    pub fn usage(why: impl ToString) -> Self {
        Self::new(Exit::Usage, why)
    }

    pub fn bad_input(why: impl ToString) -> Self {
        Self::new(Exit::BadInput, why)
    }

    pub fn environment(why: impl ToString) -> Self {
        Self::new(Exit::Environment, why)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_published_ones() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|e| e.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 75]);
        assert_eq!(Exit::table().lines().count(), codes.len());
    }
}
