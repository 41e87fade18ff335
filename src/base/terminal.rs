//! Messages for a person, on the standard streams.

use std::process::ExitCode;

use super::closed;
use super::exit::Exit;

/// Writes a line to the standard error. If the line cannot be written (a full disk, a closed pipe), the program continues, where
/// `eprintln!` would panic.
macro_rules! tell {
    ($($words:tt)*) => {
        $crate::base::terminal::write_to(&mut std::io::stderr(), format_args!($($words)*))
    };
}

/// Writes a line to the standard output. If the line cannot be written, the program continues. Subcommands write their output
/// with [`print`] instead, which reports a failure.
macro_rules! show {
    ($($words:tt)*) => {
        $crate::base::terminal::write_to(&mut std::io::stdout(), format_args!($($words)*))
    };
}

/// Writes a message to the standard error in one piece, because other ranks and the launcher write there too.
pub fn say(text: impl std::fmt::Display) {
    tell!("skt-hpl: {text}");
}

/// Writes a line to `stream` in one piece, and ignores errors.
pub fn write_to(stream: &mut impl std::io::Write, words: std::fmt::Arguments) {
    // A failure cannot be reported: the stream for reports has failed.
    let _ = stream.write_all(format!("{words}\n").as_bytes());
}

/// Writes the output of a subcommand to the standard output, and returns the exit status. If a reader has closed the pipe early
/// (`| head`), this is not an error.
pub fn print(bytes: &[u8]) -> ExitCode {
    print_then(bytes, Exit::Passed).into()
}

/// Writes the output of a subcommand whose exit status is `exit`, and returns this status. If `exit` is `Passed` and the output
/// cannot be written, returns an error status instead.
pub fn print_then(bytes: &[u8], exit: Exit) -> Exit {
    printed(put(bytes), exit)
}

pub fn put(bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

pub fn printed(written: std::io::Result<()>, exit: Exit) -> Exit {
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            say(format_args!("cannot write to the standard output: {}", closed::why(&error)));
            if exit == Exit::Passed { Exit::Environment } else { exit }
        }
        _ => exit,
    }
}
