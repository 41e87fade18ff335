//! Running job that a command of this program has started. The command reads the lines of the job's ranks, with a timeout for
//! each line. When the value is dropped, all processes of the job are ended.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::template::cannot_start;
use crate::supervise::signals::{asked_again, asked_by_signal};

/// Time that a launcher has to end its ranks on all nodes. After this time the launcher is killed.
const TO_END: Duration = Duration::from_secs(10);
/// Time without output after which a job is given up. Callers add the time of the job's work.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// Interval between checks for a signal.
const LOOK: Duration = Duration::from_millis(20);

/// Error text of a wait during which a signal has asked this process to stop.
const INTERRUPTED: &str = "interrupted by a signal; the job was ended";

/// Result of waiting for a line of a job's output.
#[derive(Debug, PartialEq)]
pub enum Next {
    Line(String),
    /// The output has ended.
    End,
    /// There was no output during the timeout.
    Timeout,
}

/// Launcher and all processes that the launcher has started on this machine. Dropping this value ends all of these processes.
pub struct RunningJob {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

impl RunningJob {
    pub fn start(command: &mut Command) -> Result<Self, String> {
        // The launcher gets a process group of its own. If it is a script, its children then end together with it.
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        // MPICH's launcher reads its standard input. A process outside the terminal's group is stopped if that is the terminal.
        command.stdin(Stdio::null());
        let mut child = command.spawn().map_err(|error| cannot_start(command, &error))?;
        let (lines, errors) = (lines_of(&mut child), errors_of(&mut child));
        Ok(Self { child, lines, errors })
    }

    /// Waits for the next line of the job's output, for at most `timeout`.
    pub fn next(&self, timeout: Duration) -> Result<Next, String> {
        let mut waited = Duration::ZERO;
        // Only the time in `recv_timeout` is counted: the time for which Ctrl-Z stops this process is no waiting time.
        while waited < timeout {
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => return Ok(Next::Line(line)),
                Err(RecvTimeoutError::Disconnected) => return Ok(Next::End),
                Err(RecvTimeoutError::Timeout) => waited += LOOK,
            }
            if asked_by_signal() {
                return Err(INTERRUPTED.to_owned());
            }
        }
        Ok(Next::Timeout)
    }

    /// Waits for the launcher's end, for at most `timeout`. Returns the launcher's exit status; None if the launcher has not
    /// ended.
    pub fn ended(&mut self, timeout: Duration) -> Result<Option<ExitStatus>, String> {
        let mut waited = Duration::ZERO;
        loop {
            // An error means that another part of this process has already received the status.
            if let Some(status) = self.child.try_wait().ok().flatten() {
                return Ok(Some(status));
            }
            if asked_by_signal() {
                return Err(INTERRUPTED.to_owned());
            }
            if waited >= timeout {
                return Ok(None);
            }
            std::thread::sleep(LOOK);
            waited += LOOK;
        }
    }

    /// Ends the launcher, if it has not ended, and returns its standard error output.
    pub fn troubles(mut self) -> String {
        self.end();
        self.errors.recv_timeout(Duration::from_secs(1)).unwrap_or_default()
    }

    fn end(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let group = Pid::from_raw(self.child.id() as i32);
        let _ = killpg(group, Signal::SIGTERM);
        let since = Instant::now();
        while since.elapsed() < TO_END && !asked_again() {
            let ended = !matches!(self.child.try_wait(), Ok(None));
            // A script can end before the launcher that it started, which still ends its ranks.
            if ended && killpg(group, None).is_err() {
                return;
            }
            std::thread::sleep(LOOK);
        }
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns a channel with the lines of a job. The channel ends when the job's output ends.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (send, lines) = channel();
    let out = child.stdout.take().expect("stdout is a pipe");
    std::thread::spawn(move || {
        let mut out = BufReader::new(out);
        let mut line = Vec::new();
        // Lines are read as bytes: a launcher may print a line in another encoding, and later lines must be read, too.
        while out.read_until(b'\n', &mut line).is_ok_and(|got| got > 0) {
            let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
            if send.send(text.into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    lines
}

/// Returns a channel with the standard error output of a job, which arrives when the job has ended.
fn errors_of(child: &mut Child) -> Receiver<String> {
    let (send, said) = channel();
    let mut errors = child.stderr.take().expect("stderr is a pipe");
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = errors.read_to_end(&mut bytes);
        let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> RunningJob {
        RunningJob::start(Command::new("sh").args(["-c", text])).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(60);

    #[test]
    fn lines_come_until_the_end_or_the_timeout() {
        let mut job = script("printf 'caf\\351\\none'; echo trouble >&2; exit 3");
        assert_eq!(job.next(LONG).unwrap(), Next::Line("caf\u{fffd}".into()));
        assert_eq!(job.next(LONG).unwrap(), Next::Line("one".into()));
        assert_eq!(job.next(LONG).unwrap(), Next::End);
        assert_eq!(job.ended(LONG).unwrap().unwrap().code(), Some(3));
        assert_eq!(job.troubles(), "trouble\n");
        let mut silent = script("echo trouble >&2; exec sleep 300");
        assert_eq!(silent.next(Duration::from_secs(1)).unwrap(), Next::Timeout);
        assert_eq!(silent.ended(SHORT).unwrap(), None);
        let since = Instant::now();
        assert_eq!(silent.troubles(), "trouble\n");
        assert!(since.elapsed() < Duration::from_secs(8), "it ends when it is asked to");
    }

    /// Dropping a job ends the job and the processes that it has started.
    #[test]
    fn a_dropped_job_is_ended() {
        for text in ["sh -c 'echo $$; sleep 300; :'; :", "exec sh -c 'echo $$; sleep 300; :'"] {
            let job = script(text);
            let Next::Line(line) = job.next(LONG).unwrap() else { panic!("{text}") };
            drop(job);
            let stat = std::fs::read_to_string(format!("/proc/{line}/stat")).unwrap_or_default();
            assert!(stat.is_empty() || stat.contains(") Z "), "{text}: {stat}");
        }
    }
}
