//! Connections to agents. Each is a remote shell, and one poll watches all.
//!
//! The supervisor and every agent have a [`Links`]. `branch` decides which lines (connections) to open, and what to write. Only
//! [`Links::poll`] waits. Text that a line cannot take at once is kept, so that a node that has stopped reading delays no other.
//! The connection of an agent to its parent is one of the lines, too.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::pipe2;

use super::branch::{Heard, Lines};
use super::shell::{library_path, misleads};
use super::wire::Attend;
use crate::supervise::machine::Connections;
use crate::supervise::remember::io_thread::Answer;

/// Time that a remote shell has to end by itself after its input is closed. A shell whose node is lost does not end by itself.
const GOING: Duration = Duration::from_millis(300);
/// Time to wait for the last text on standard error after the end of standard output.
const LAST_WORDS: Duration = Duration::from_millis(20);
/// Number of bytes at the end of standard error that are kept. A site's banner comes before the error.
const COMPLAINT: usize = 2000;

/// A remote shell. Another thread starts the shell, because a file system that hangs may delay the start.
enum Shell {
    Starting(Answer<Option<Child>>),
    Running(Child),
    /// The shell could not be started.
    None,
}

impl Shell {
    /// Starts the shell with these ends of its standard streams. A failure to start is written to the error stream, like the
    /// shell's own errors. Relative paths in `words` begin in `dir`, if this machine has the folder.
    fn start(
        words: Vec<String>,
        dir: Option<String>,
        [input, output, errors]: [OwnedFd; 3],
    ) -> Self {
        Self::Starting(Answer::in_background(move || {
            let told = errors.try_clone();
            let mut command = Command::new(&words[0]);
            for (name, _) in std::env::vars_os().filter(|(name, _)| misleads(&words[0], name)) {
                command.env_remove(name);
            }
            if let Some(dir) = dir.filter(|dir| Path::new(dir).is_dir()) {
                command.current_dir(dir);
            }
            let spawned = command
                .args(&words[1..])
                .stdin(Stdio::from(input))
                .stdout(Stdio::from(output))
                .stderr(Stdio::from(errors))
                // Ctrl-C at the terminal, or the terminal's end, must not end the connections: the supervisor needs them to stop
                // the run.
                .process_group(0)
                .spawn();
            if let (Err(error), Ok(told)) = (&spawned, told) {
                let _ = nix::unistd::write(
                    told,
                    format!("cannot start {}: {error}\n", words[0]).as_bytes(),
                );
            }
            spawned.ok()
        }))
    }

    /// Returns true if the shell has ended or could not be started. If it still runs, returns false, and kills it if `now` is
    /// true.
    fn is_over(&mut self, now: bool) -> bool {
        if let Self::Starting(answer) = self
            && let Some(started) = answer.here()
        {
            *self = started.map_or(Self::None, Self::Running);
        }
        match self {
            Self::Starting(_) => false,
            Self::Running(child) => match child.try_wait() {
                Ok(None) => {
                    if now {
                        let _ = child.kill();
                    }
                    false
                }
                _ => true,
            },
            Self::None => true,
        }
    }
}

#[derive(Default)]
struct Open {
    shell: Option<Shell>,
    input: Option<OwnedFd>,
    output: Option<OwnedFd>,
    errors: Option<OwnedFd>,
    unsent: VecDeque<u8>,
    partial: Vec<u8>,
    said: Vec<u8>,
    /// Time at which the shell's standard output ended.
    ended: Option<Instant>,
}

impl Open {
    fn complaint(&self) -> String {
        let said = String::from_utf8_lossy(&self.said);
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        lines.join("; ")
    }

    /// Writes as much text as the other end takes without waiting.
    fn write(&mut self) {
        while let (Some(input), false) = (&self.input, self.unsent.is_empty()) {
            match nix::unistd::write(input, self.unsent.as_slices().0) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                // The end of standard output will report the end of the line.
                Err(_) => {
                    self.input = None;
                    self.unsent.clear();
                }
            }
        }
    }
}

/// All lines of this process.
#[derive(Default)]
pub struct Links {
    open: BTreeMap<u64, Open>,
    /// Shells whose lines are closed, each with the time up to which it may end by itself.
    going: Vec<(Shell, Instant)>,
    news: VecDeque<(u64, Heard)>,
}

fn do_not_wait(fd: &OwnedFd) {
    // If this fails, the pipe still works, but may block.
    if let Ok(flags) = fcntl(fd, FcntlArg::F_GETFL) {
        let flags = OFlag::from_bits_truncate(flags) | OFlag::O_NONBLOCK;
        let _ = fcntl(fd, FcntlArg::F_SETFL(flags));
    }
}

impl Links {
    /// Adds an existing line: the connection of an agent to its parent.
    pub fn adopt(&mut self, line: u64, output: OwnedFd, input: OwnedFd) {
        do_not_wait(&input);
        let open = Open { output: Some(output), input: Some(input), ..Open::default() };
        self.open.insert(line, open);
    }

    /// Waits until a line has news, or one of `others` is readable. Returns, for each of `others`, whether it is readable.
    pub fn poll(&mut self, others: &[BorrowedFd], timeout: Duration) -> std::io::Result<Vec<bool>> {
        self.reap();
        let mut timeout = if self.news.is_empty() { timeout } else { Duration::ZERO };
        for open in self.open.values() {
            if let Some(ended) = open.ended {
                timeout = timeout.min(LAST_WORDS.saturating_sub(ended.elapsed()));
            }
        }
        if !self.going.is_empty() {
            timeout = timeout.min(GOING);
        }
        let mut fds: Vec<PollFd> =
            others.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        let mut whose = Vec::new();
        for (line, open) in &self.open {
            let waits = (!open.unsent.is_empty()).then_some(open.input.as_ref()).flatten();
            let ends = [
                (open.output.as_ref(), PollFlags::POLLIN),
                (open.errors.as_ref(), PollFlags::POLLIN),
                (waits, PollFlags::POLLOUT),
            ];
            for (which, (fd, flags)) in ends.into_iter().enumerate() {
                if let Some(fd) = fd {
                    fds.push(PollFd::new(fd.as_fd(), flags));
                    whose.push((*line, which));
                }
            }
        }
        // The wait is rounded up, because a wait of less than a millisecond must not become zero.
        let millis = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready = |fd: &PollFd| fd.revents().is_some_and(|r| !r.is_empty());
        let (first, rest) = fds.split_at(others.len());
        let others: Vec<bool> = first.iter().map(ready).collect();
        let lines: Vec<(u64, usize)> =
            rest.iter().zip(whose).filter(|(fd, _)| ready(fd)).map(|(_, who)| who).collect();
        for (line, which) in lines {
            match which {
                0 => self.read_output(line),
                1 => self.read_errors(line),
                _ => self.open.get_mut(&line).into_iter().for_each(Open::write),
            }
        }
        self.end_lines();
        Ok(others)
    }

    fn read_output(&mut self, line: u64) {
        let Some(open) = self.open.get_mut(&line) else { return };
        let Some(output) = &open.output else { return };
        let mut chunk = vec![0u8; 1 << 16];
        match nix::unistd::read(output, &mut chunk) {
            Ok(count @ 1..) => {
                for piece in chunk[..count].split_inclusive(|&b| b == b'\n') {
                    open.partial.extend_from_slice(piece);
                    if let Some(text) = open.partial.strip_suffix(b"\n") {
                        let text = String::from_utf8_lossy(text).into_owned();
                        self.news.push_back((line, Heard::Text(text)));
                        open.partial.clear();
                    }
                }
            }
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Ok(0) | Err(_) => {
                open.output = None;
                open.ended = Some(Instant::now());
            }
        }
    }

    fn read_errors(&mut self, line: u64) {
        let Some(open) = self.open.get_mut(&line) else { return };
        let Some(errors) = &open.errors else { return };
        let mut chunk = [0u8; 4096];
        match nix::unistd::read(errors, &mut chunk) {
            Ok(count @ 1..) => {
                open.said.extend_from_slice(&chunk[..count]);
                let beyond = open.said.len().saturating_sub(COMPLAINT);
                open.said.drain(..beyond);
            }
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Ok(0) | Err(_) => open.errors = None,
        }
    }

    /// Closes lines whose standard output has ended and whose last error messages have come.
    fn end_lines(&mut self) {
        let over = |open: &Open| {
            open.ended.is_some_and(|at| open.errors.is_none() || at.elapsed() >= LAST_WORDS)
        };
        let ended: Vec<u64> =
            self.open.iter().filter(|(_, open)| over(open)).map(|(line, _)| *line).collect();
        for line in ended {
            let why = self.open.get(&line).map(Open::complaint).unwrap_or_default();
            self.news.push_back((line, Heard::Closed(why)));
            self.close(line);
        }
    }

    fn reap(&mut self) {
        // A shell that waits for a disk may take long to end, even after it was killed.
        self.going.retain_mut(|(shell, until)| !shell.is_over(Instant::now() >= *until));
    }
}

impl Lines for Links {
    fn open(&mut self, line: u64, node: &str, words: &[String], attend: &Attend) {
        let words = attend.shell.command(node, words, library_path());
        let pipe = || pipe2(OFlag::O_CLOEXEC);
        let (Ok((theirs, input)), Ok((output, out)), Ok((errors, err))) = (pipe(), pipe(), pipe())
        else {
            let why = format!("cannot start {}: too many open files", words[0]);
            self.news.push_back((line, Heard::Closed(why)));
            return;
        };
        do_not_wait(&input);
        let open = Open {
            input: Some(input),
            output: Some(output),
            errors: Some(errors),
            shell: Some(Shell::start(words, attend.dir.clone(), [theirs, out, err])),
            ..Open::default()
        };
        self.open.insert(line, open);
    }

    fn send(&mut self, line: u64, text: &str) {
        if let Some(open) = self.open.get_mut(&line) {
            open.unsent.extend(text.as_bytes());
            open.write();
        }
    }

    /// Closes a line. The agent ends by itself when its input closes, but the remote shell must be ended here: a shell that
    /// cannot reach its node any more would stay for minutes.
    fn close(&mut self, line: u64) {
        if let Some(open) = self.open.remove(&line)
            && let Some(shell) = open.shell
        {
            self.going.push((shell, Instant::now() + GOING));
        }
    }

    fn complaint(&self, line: u64) -> String {
        self.open.get(&line).map(Open::complaint).unwrap_or_default()
    }
}

impl Connections for Links {
    fn heard(&mut self) -> Option<(u64, Heard)> {
        self.news.pop_front()
    }

    fn wait(&mut self, timeout: Duration) {
        // If polling fails, this machine cannot wait, and the agents' messages will be missing.
        let _ = self.poll(&[], timeout);
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        let lines: Vec<u64> = self.open.keys().copied().collect();
        lines.into_iter().for_each(|line| self.close(line));
        let until = Instant::now() + 3 * GOING;
        while !self.going.is_empty() && Instant::now() < until {
            self.reap();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Raises the limit of open files so that `lines` connections fit. The limit is raised no further, because some launchers first
/// close every descriptor up to the limit.
pub fn room_for(lines: usize) -> Result<(), String> {
    let wanted = lines as u64 * 3 + 128;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|e| e.to_string())?;
    if wanted <= soft {
        return Ok(());
    }
    if wanted > hard {
        return Err(format!(
            "{lines} connections at once need {wanted} open files, and this machine allows {hard} (ulimit -Hn): \
             take a smaller --fanout"
        ));
    }
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::talk::processes::script;
    use crate::supervise::talk::shell::RemoteShell;

    fn attend(shell: &[&str]) -> Attend {
        Attend {
            run_id: "run".into(),
            job: None,
            node: "n1".into(),
            orphan_timeout_ms: 60_000,
            beat_ms: 500,
            node_timeout_ms: 4000,
            fanout: 32,
            login_ms: None,
            shell: RemoteShell::Ssh(shell.iter().map(|w| w.to_string()).collect()),
            dir: None,
            agent: Vec::new(),
        }
    }

    /// Opens a line with `sh -c` instead of ssh, and a shell script instead of an agent.
    fn open(links: &mut Links, line: u64, script: &str) {
        let argv = ["sh", "-c", script].map(String::from);
        let shell = attend(&["sh", "-c", "shift; exec sh -c \"$1\"", "x"]);
        links.open(line, "n1", &argv, &shell);
    }

    fn next(links: &mut Links) -> Option<(u64, Heard)> {
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            if let Some(news) = links.heard() {
                return Some(news);
            }
            links.poll(&[], Duration::from_millis(50)).unwrap();
        }
        None
    }

    /// Checks that relative paths begin in the supervisor's folder, although an agent works in its user's home folder.
    #[test]
    fn paths_of_a_shell_begin_in_the_supervisors_folder() {
        let dir = tempfile::tempdir().unwrap();
        let wrap = dir.path().join("wrap");
        script(&wrap, "cat words");
        std::fs::write(dir.path().join("words"), "here\n").unwrap();
        let mut links = Links::default();
        let there = dir.path().to_str().map(str::to_owned);
        links.open(1, "n1", &[], &Attend { dir: there, ..attend(&["./wrap"]) });
        assert_eq!(next(&mut links), Some((1, Heard::Text("here".into()))));
        assert_eq!(next(&mut links), Some((1, Heard::Closed(String::new()))));
        // On a node without such a folder, full paths still work.
        let gone = Some("/no/such/folder".to_owned());
        links.open(2, "n1", &[], &Attend { dir: gone, ..attend(&[wrap.to_str().unwrap()]) });
        let told = next(&mut links);
        assert!(
            matches!(&told, Some((2, Heard::Closed(why))) if why.contains("words")),
            "{told:?}"
        );
    }

    #[test]
    fn lines_come_through_in_order_and_last_words_with_the_end() {
        let mut links = Links::default();
        open(&mut links, 3, "echo one; echo trouble >&2; printf two; echo; echo more >&2");
        assert_eq!(next(&mut links), Some((3, Heard::Text("one".into()))));
        assert_eq!(next(&mut links), Some((3, Heard::Text("two".into()))));
        assert_eq!(next(&mut links), Some((3, Heard::Closed("trouble; more".into()))));
    }

    #[test]
    fn a_line_that_is_closed_says_nothing_more_and_another_does() {
        let mut links = Links::default();
        open(&mut links, 1, "read line; echo old");
        open(&mut links, 2, "read line; echo got $line");
        links.close(1);
        links.send(2, "this\n");
        assert_eq!(next(&mut links), Some((2, Heard::Text("got this".into()))));
        assert_eq!(next(&mut links), Some((2, Heard::Closed(String::new()))));
    }

    /// Text that a pipe cannot take is kept until the pipe is read, and no call waits for that.
    #[test]
    fn a_reader_that_is_slow_holds_nobody_up() {
        let mut links = Links::default();
        open(&mut links, 1, "read go </dev/null; head -c 3000000 | wc -c");
        let text = "x".repeat(1_000_000);
        for _ in 0..3 {
            links.send(1, &text);
        }
        assert!(!links.open[&1].unsent.is_empty());
        assert_eq!(next(&mut links), Some((1, Heard::Text("3000000".into()))));
    }

    /// If the machine allows fewer connections, an error before the first call names the remedy.
    #[test]
    fn more_connections_than_files_are_refused() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        if hard < u64::MAX / 8 {
            let why = room_for(hard as usize).unwrap_err();
            assert!(why.contains("--fanout") && why.contains(&hard.to_string()), "{why}");
        }
        room_for(1).unwrap();
    }

    #[test]
    fn an_error_is_reported_after_a_long_banner() {
        let mut links = Links::default();
        let banner = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); \
                      echo 'You are accessing a system of somebody who owns it.' >&2; done; \
                      echo 'sh: skt-hpl: not found' >&2";
        links.open(1, "n1", &["x".to_string()], &attend(&["sh", "-c", banner]));
        match next(&mut links) {
            Some((1, Heard::Closed(why))) => assert!(why.contains("skt-hpl: not found"), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_shell_that_is_not_there_is_told() {
        let mut links = Links::default();
        links.open(1, "n1", &["x".to_string()], &attend(&["/nowhere/ssh"]));
        match next(&mut links) {
            Some((1, Heard::Closed(why))) => assert!(why.contains("/nowhere/ssh"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}
