//! A job that a command has started, while it runs: what its ranks tell, how long to wait for that, and that nothing of it stays
//! when nobody waits any more.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::supervise::signals::{asked_again, asked_by_signal};

/// What a launcher has to end its ranks in, on all nodes, before it is killed.
const TO_END: Duration = Duration::from_secs(10);
/// Who says nothing for so long, longer by what its work may take, will not say anything any more.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is looked whether a signal has come.
const LOOK: Duration = Duration::from_millis(20);

/// A signal asks to stop.
#[derive(Debug)]
pub struct Interrupted;

/// What comes of waiting for a line.
#[derive(Debug, PartialEq)]
pub enum Next {
    Line(String),
    /// The output is at its end.
    End,
    /// So long that nothing will come any more.
    Silence,
}

/// A launcher and all that it has started on this machine: whoever lets go of it ends it.
pub struct UnderWay {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

impl UnderWay {
    pub fn start(command: &mut Command) -> io::Result<Self> {
        // In a group of its own: where the launcher is a script, what that has started ends with it.
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        // Who is not in the terminal's own group is stopped where it reads from there, as MPICH's launcher does.
        command.stdin(Stdio::null());
        let mut child = command.spawn()?;
        let (lines, errors) = (lines_of(&mut child), errors_of(&mut child));
        Ok(Self { child, lines, errors })
    }

    /// The next line, waited for that long.
    pub fn next(&self, patience: Duration) -> Result<Next, Interrupted> {
        let mut waited = Duration::ZERO;
        // Counted by looks: who is stopped by Ctrl-Z and goes on has not waited meanwhile.
        while waited < patience {
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => return Ok(Next::Line(line)),
                Err(RecvTimeoutError::Disconnected) => return Ok(Next::End),
                Err(RecvTimeoutError::Timeout) => waited += LOOK,
            }
            if asked_by_signal() {
                return Err(Interrupted);
            }
        }
        Ok(Next::Silence)
    }

    /// How the launcher ended, waited for that long; none if it has not.
    pub fn ended(&mut self, patience: Duration) -> Result<Option<ExitStatus>, Interrupted> {
        let mut waited = Duration::ZERO;
        loop {
            // One that cannot be asked for has been waited for by somebody else.
            if let Some(status) = self.child.try_wait().ok().flatten() {
                return Ok(Some(status));
            }
            if asked_by_signal() {
                return Err(Interrupted);
            }
            if waited >= patience {
                return Ok(None);
            }
            std::thread::sleep(LOOK);
            waited += LOOK;
        }
    }

    /// Ends it, if it has not ended. What it said of its troubles.
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
            // A script ends before the launcher in it, which has ranks to end.
            if ended && killpg(group, None).is_err() {
                return;
            }
            std::thread::sleep(LOOK);
        }
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.end();
    }
}

/// A job's lines, as they come; the end of the channel is the end of its output.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (send, lines) = channel();
    let out = child.stdout.take().expect("it was asked for");
    std::thread::spawn(move || {
        let mut out = BufReader::new(out);
        let mut line = Vec::new();
        // By bytes: a launcher may say something in another encoding, and what comes after that counts.
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

/// What a job says of its troubles, once it has ended.
fn errors_of(child: &mut Child) -> Receiver<String> {
    let (send, said) = channel();
    let mut errors = child.stderr.take().expect("it was asked for");
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

    fn script(text: &str) -> UnderWay {
        UnderWay::start(Command::new("sh").args(["-c", text])).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(60);

    #[test]
    fn lines_come_until_the_end_or_until_patience_is_over() {
        let mut job = script("printf 'caf\\351\\none'; echo trouble >&2; exit 3");
        assert_eq!(job.next(LONG).unwrap(), Next::Line("caf\u{fffd}".into()));
        assert_eq!(job.next(LONG).unwrap(), Next::Line("one".into()));
        assert_eq!(job.next(LONG).unwrap(), Next::End);
        assert_eq!(job.ended(LONG).unwrap().unwrap().code(), Some(3));
        assert_eq!(job.troubles(), "trouble\n");
        let mut silent = script("echo trouble >&2; exec sleep 300");
        assert_eq!(silent.next(Duration::from_secs(1)).unwrap(), Next::Silence);
        assert_eq!(silent.ended(SHORT).unwrap(), None);
        let since = Instant::now();
        assert_eq!(silent.troubles(), "trouble\n");
        assert!(since.elapsed() < Duration::from_secs(8), "it ends when it is asked to");
    }

    /// Whoever is let go of is gone, and with it what it had started.
    #[test]
    fn who_is_let_go_of_is_ended() {
        for text in ["sh -c 'echo $$; sleep 300; :'; :", "exec sh -c 'echo $$; sleep 300; :'"] {
            let job = script(text);
            let Next::Line(line) = job.next(LONG).unwrap() else { panic!("{text}") };
            drop(job);
            let stat = std::fs::read_to_string(format!("/proc/{line}/stat")).unwrap_or_default();
            assert!(stat.is_empty() || stat.contains(") Z "), "{text}: {stat}");
        }
    }
}
