//! Timeout of measured programs. A program that hangs is a failed run, and the benchmark continues.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Default timeout in seconds. The largest problems measured with these benchmarks take minutes.
const LIMIT_S: u64 = 7200;
/// Seconds that a launcher has to end its ranks before it is killed.
const TO_END_S: u64 = 30;

/// Runs `command` and returns its output. Ends the command after `limit_s` seconds, or after the default timeout.
///
/// # Errors
/// If the command cannot be started, or had to be ended.
pub fn output(command: &Command, limit_s: Option<u64>) -> Result<Output, String> {
    let limit_s = limit_s.unwrap_or(LIMIT_S);
    // The command stays in the foreground, so that Ctrl-C ends it together with the benchmark.
    let mut limited = Command::new("timeout");
    limited.arg("--foreground").arg(format!("--kill-after={TO_END_S}")).arg(limit_s.to_string());
    limited.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    let cannot = |why: String| format!("cannot start {}: {why}", command.get_program().display());
    let since = Instant::now();
    let output = limited.output().map_err(|error| cannot(format!("timeout: {error}")))?;
    match output.status.code() {
        // Exit codes of timeout(1): timed out, not found, not executable. The measured program may return them too.
        Some(124 | 137) if since.elapsed() >= Duration::from_secs(limit_s) => {
            Err(format!("{command:?} had not ended after {limit_s} s, and was ended"))
        }
        Some(code @ (126 | 127)) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(cannot(format!("status {code}, {}", said.trim())))
        }
        _ => Ok(output),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_ended_and_another_is_heard() {
        let mut well = Command::new("sh");
        well.args(["-c", "echo out; echo $WORD >&2; exit 3"]).env("WORD", "err");
        let output = output(&well, Some(60)).unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(3), &b"out\n"[..]));
        assert_eq!(output.stderr, b"err\n");
        let mut hangs = Command::new("sleep");
        hangs.arg("300");
        assert!(super::output(&hangs, Some(1)).unwrap_err().contains("after 1 s"));
        let none = Command::new("/no/such/program");
        assert!(super::output(&none, None).unwrap_err().contains("/no/such/program"));
    }
}
