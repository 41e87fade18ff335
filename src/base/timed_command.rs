//! Runs a command with a timeout and returns its output.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::base::new_thread;

/// Runs `command` and returns its exit status and output, which must fit into a pipe. If the command takes longer than `limit`,
/// it is killed and the error is [`io::ErrorKind::TimedOut`].
pub fn ask(command: &mut Command, limit: Duration) -> io::Result<(ExitStatus, String)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // The command gets its own process group, so that its children are killed with it.
    command.process_group(0);
    let mut child = command.spawn()?;
    let began = Instant::now();
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if began.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => break Err(io::ErrorKind::TimedOut.into()),
            Err(error) => break Err(error),
        }
    };
    let mut out = child.stdout.take().expect("it is piped");
    let status = match ended {
        Ok(status) => status,
        Err(why) => {
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            // A process that is blocked by a disk ends only when the disk responds; this function does not wait for it.
            let _ = new_thread::start("wait", move || child.wait());
            return Err(why);
        }
    };
    // A child of the command may keep the pipe open, but the output is already there.
    fcntl(&out, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let mut bytes = Vec::new();
    match out.read_to_end(&mut bytes) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok((status, String::from_utf8_lossy(&bytes).into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(words: &str, limit: Duration) -> io::Result<(ExitStatus, String)> {
        ask(Command::new("/bin/sh").args(["-c", words]), limit)
    }

    #[test]
    fn output_in_time_is_heard() {
        let long = Duration::from_secs(20);
        let (status, text) = shell("echo 1 2; exit 3", long).unwrap();
        assert_eq!((status.code(), text.as_str()), (Some(3), "1 2\n"));
        // Another process keeps the pipe open.
        assert_eq!(shell("sleep 20 & echo 3", long).unwrap().1, "3\n");
        let late = shell("sleep 20", Duration::from_millis(50)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        assert!(ask(&mut Command::new("/no/such/program"), long).is_err());
        // Children of the command are killed with it.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("here");
        let file = file.to_str().unwrap();
        let words = format!("(while :; do echo . >> {file}; sleep 0.01; done); true");
        // On a busy machine the command may not have started by then.
        while !folder.path().join("here").exists() {
            assert!(shell(&words, Duration::from_millis(300)).is_err());
        }
        std::thread::sleep(Duration::from_millis(200));
        let size = || std::fs::metadata(file).unwrap().len();
        let before = size();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(size(), before);
    }
}
