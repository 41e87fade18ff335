//! The launcher's process. It outlives its supervisor, and the next supervisor can take it over.
//!
//! The launcher writes to files, because pipes would break at the end of the supervisor. A line of shell around it writes its
//! exit status to a file. So the supervisor that started it and one started an hour later read the same. The I/O thread reads the
//! files; this module keeps the results.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::in_place::GoneOn;
use super::launch::Launch;
use super::witness;
use crate::base::clock::{Instant, steady_ms};
use crate::base::new_thread;
use crate::supervise::machine::{Stream, simulated};
use crate::supervise::remember::events::ProcessId;
use crate::supervise::remember::folder::{Folder, read_if_there};
use crate::supervise::remember::io_thread::{Answer, IoThread};
use crate::supervise::talk::processes;
use crate::supervise::tell::echo::Echo;
use crate::supervise::tell::voice::say;

/// Shell script that runs the launcher and then writes its exit status to the file `$1`. A batch system may send its warning
/// before a job's end to every process. This shell must not die of the signal, and the launcher must receive it unchanged.
const WRAPPER: &str = r#"trap '' HUP INT; trap : USR1 USR2; f=$1; shift; "$@"; c=$?; echo $c >"$f.new" && mv "$f.new" "$f""#;

/// Time to wait for the exit status after the launcher has vanished. On a network file system the status may appear a moment
/// after its writer has ended.
const STATUS_TIMEOUT: Duration = Duration::from_millis(300);

/// A file that another process writes and that is read as it grows.
#[derive(Clone)]
struct Tail {
    path: PathBuf,
    at: u64,
    /// Bytes that the last [`look`](Self::look) has read.
    fresh: Vec<u8>,
}

impl Tail {
    fn look(&mut self) {
        let fresh = || -> io::Result<Vec<u8>> {
            // The supervisor looks several times a second, and most times nothing is new. One call finds that out.
            if fs::metadata(&self.path)?.len() <= self.at {
                return Ok(Vec::new());
            }
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.at))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        // If the file cannot be read now, a later call reads the bytes.
        self.fresh = fresh().unwrap_or_default();
        self.at += self.fresh.len() as u64;
    }
}

/// Announcement of the benchmark on its standard error, for the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// All tests are done and reported, with `printed` bytes on standard output. After that the benchmark only removes its memory
    /// and ends MPI. If it is killed or hangs then, no result is lost.
    Done { status: u8, printed: u64 },
    /// The benchmark ends with this status because its input is wrong, a requirement is not met, or too much is lost. The
    /// launcher's status alone does not show this: a launcher that fails by itself, or reports a signal, may end with the same
    /// status.
    Refused { status: u8 },
    /// The benchmark stops on request. No rank has work on storage in progress any more, and only the end of MPI is left.
    Halted,
}

const DONE: &str = "all tests are done: status ";
const REFUSED: &str = "refused: status ";
const HALTED: &str = "halted: all ranks are about to end";

impl std::fmt::Display for Announcement {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Done { status, printed } => {
                write!(f, "{DONE}{status}, {printed} bytes of results on standard output")
            }
            Self::Refused { status } => {
                write!(f, "{REFUSED}{status}, as every later start would be")
            }
            Self::Halted => f.write_str(HALTED),
        }
    }
}

impl Announcement {
    /// Parses a complete line, which may have a launcher's prefix.
    fn find(line: &str) -> Option<Self> {
        if let Some((_, rest)) = line.rsplit_once(DONE) {
            let (status, rest) = rest.split_once(", ")?;
            let (printed, _) = rest.split_once(" bytes ")?;
            return Some(Self::Done {
                status: status.parse().ok()?,
                printed: printed.parse().ok()?,
            });
        }
        if let Some((_, rest)) = line.rsplit_once(REFUSED) {
            let (status, _) = rest.split_once(", as every")?;
            return Some(Self::Refused { status: status.parse().ok()? });
        }
        line.contains(HALTED).then_some(Self::Halted)
    }
}

/// The benchmark's announcement, and the part of its output that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// The benchmark has not announced its end.
    Nothing,
    /// The benchmark has stopped, and the run can resume.
    Halted,
    /// The benchmark will end with this status, and all its output can be read. Later failures do not matter.
    All { status: u8 },
    /// The benchmark has printed `printed` bytes, but only `here` bytes can be read.
    Part { status: u8, here: u64, printed: u64 },
}

/// Whether a status means that all tests are done, with success or with a failed residual.
pub fn is_over(status: i32) -> bool {
    matches!(status, 0 | 3)
}

/// Returns the status of an attempt that has completed all tests, by its exit status or by the benchmark's announcement. Returns
/// `None` for any other attempt. `zero_counts` tells whether status 0 of the launcher means success.
pub fn end_of(folder: &Folder, attempt: u32, zero_counts: bool) -> Option<u8> {
    let mut files = Files::of(folder, attempt);
    files.look();
    match (files.status, files.announced()) {
        (Some(status), _) if is_over(status) && (status != 0 || zero_counts) => Some(status as u8),
        (_, Announced::All { status }) => Some(status),
        (_, Announced::Nothing | Announced::Halted | Announced::Part { .. }) => None,
    }
}

/// Files of a launch, and their content when they were last read. Only the I/O thread reads them.
#[derive(Clone)]
pub struct Files {
    exit: PathBuf,
    output: Tail,
    errors: Tail,
    /// Moment at which the last [`look`](Self::look) began.
    looked: Option<Instant>,
    /// Exit status of the launcher.
    status: Option<i32>,
    /// Status, and number of bytes of results, that the benchmark has announced once all tests were done.
    done: Option<(u8, u64)>,
    halted: bool,
    /// Status with which the benchmark has refused to run, if it has.
    pub refused: Option<u8>,
    /// Losses that the benchmark has recovered in place, each with the moment at which its message was read.
    pub gone_on: Vec<(GoneOn, u64)>,
    /// The last line of standard error, as long as it is not complete.
    line: Vec<u8>,
}

impl Files {
    fn of(folder: &Folder, attempt: u32) -> Self {
        let tail = |path| Tail { path, at: 0, fresh: Vec::new() };
        Self {
            exit: folder.exit(attempt),
            output: tail(folder.output(attempt)),
            errors: tail(folder.errors(attempt)),
            looked: None,
            status: None,
            done: None,
            halted: false,
            refused: None,
            gone_on: Vec::new(),
            line: Vec::new(),
        }
    }

    fn look(&mut self) {
        self.looked = Some(Instant::now());
        // The status is written last. Once it can be read, all other output is complete.
        let exit = read_if_there(&self.exit).and_then(|text| String::from_utf8(text).ok());
        self.status = self.status.or(exit.and_then(|text| text.trim().parse().ok()));
        self.errors.look();
        self.output.look();
        self.read_lines();
    }

    /// Notes announcements and recovered losses from the lines of standard error that are complete now. A recovered loss cancels
    /// an earlier refusal.
    fn read_lines(&mut self) {
        self.line.extend_from_slice(&self.errors.fresh);
        let Some(end) = self.line.iter().rposition(|&b| b == b'\n') else { return };
        let lines: Vec<u8> = self.line.drain(..=end).collect();
        let read_ms = steady_ms();
        for line in String::from_utf8_lossy(&lines).lines() {
            match Announcement::find(line) {
                Some(Announcement::Done { status, printed }) => self.done = Some((status, printed)),
                Some(Announcement::Refused { status }) => self.refused = Some(status),
                Some(Announcement::Halted) => self.halted = true,
                None => {}
            }
            if let Some(it) = GoneOn::find(line) {
                self.refused = None;
                self.gone_on.push((it, read_ms));
            }
        }
    }

    /// Returns the announcement, and the part of the announced output that can be read.
    pub fn announced(&self) -> Announced {
        let here = self.output.at;
        match self.done {
            None if self.halted => Announced::Halted,
            None => Announced::Nothing,
            Some((status, printed)) if here >= printed => Announced::All { status },
            Some((status, printed)) => Announced::Part { status, here, printed },
        }
    }
}

/// Output of a launcher that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastWords {
    /// The complete standard output.
    pub output: String,
    /// Node on which a process ended first.
    pub first_to_end: Option<String>,
    /// The last lines of standard error.
    pub complaint: String,
}

impl LastWords {
    fn read(output: &Path, errors: &Path) -> Self {
        let read = |path| fs::read(path).unwrap_or_default();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (output, errors) = (text(&read(output)), read(errors));
        // Hydra names the node on its standard output.
        let first_to_end = witness::first_to_end(&text(&errors));
        let first_to_end = first_to_end.or_else(|| witness::first_to_end(&output));
        Self { output, first_to_end, complaint: last_lines(&errors) }
    }
}

/// Returns the last lines of the launcher's standard error.
fn last_lines(errors: &[u8]) -> String {
    let text = String::from_utf8_lossy(&errors[errors.len().saturating_sub(2000)..]).into_owned();
    // Open MPI puts lines of dashes around its messages, and adds hints on further messages.
    let tells = |line: &&str| {
        !line.trim_matches('-').is_empty()
            && !line.contains("help message")
            && !line.contains("help / error messages")
    };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(tells).collect();
    lines[lines.len().saturating_sub(3)..].join(" | ")
}

pub struct Job {
    pub id: ProcessId,
    /// Child process to reap, or `None` if an earlier supervisor started the job.
    child: Option<Child>,
    io_thread: IoThread,
    /// Files of the launch, as last read.
    pub files: Files,
    looking: Option<Answer<Files>>,
    /// Standard output and standard error that were read but not passed on yet.
    unsaid: (Vec<u8>, Vec<u8>),
    vanished: Option<Instant>,
}

impl Job {
    /// Writes the files of the launch and starts the launcher. Both may have to wait for a disk.
    pub fn start(
        launch: &Launch,
        folder: &Folder,
        attempt: u32,
        io_thread: &IoThread,
    ) -> io::Result<Self> {
        let job = |id| Self::adopt(id, folder, attempt, io_thread);
        for (path, content, executable) in &launch.files {
            fs::write(path, content)?;
            if *executable {
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
            }
        }
        let exit = folder.exit(attempt);
        let _ = fs::remove_file(&exit);
        if let Some(machine) = simulated() {
            return Ok(job(machine.launch(launch, folder, attempt)?));
        }
        let mut command = Command::new("/bin/sh");
        command.args(["-c", WRAPPER, "skt-hpl-launch"]).arg(&exit).args(&launch.argv);
        for (name, _) in std::env::vars_os() {
            if launch.removes(&name.to_string_lossy()) {
                command.env_remove(&name);
            }
        }
        let child = command
            .envs(launch.set.iter().map(|(n, v)| (n, v)))
            .stdin(Stdio::null())
            .stdout(File::create(folder.output(attempt))?)
            .stderr(File::create(folder.errors(attempt))?)
            // A Ctrl-C at the terminal is for the supervisor, and must not end the ranks.
            .process_group(0)
            .spawn()?;
        let pid = child.id();
        let started = processes::look(pid).map_or(0, |(_, started)| started);
        Ok(Self { child: Some(child), ..job(ProcessId { pid, started }) })
    }

    /// Returns a job that an earlier supervisor started.
    pub fn adopt(id: ProcessId, folder: &Folder, attempt: u32, io_thread: &IoThread) -> Self {
        Self {
            id,
            child: None,
            io_thread: io_thread.clone(),
            files: Files::of(folder, attempt),
            looking: None,
            unsaid: Default::default(),
            vanished: None,
        }
    }

    /// Asks the I/O thread to read the files, unless it is still reading them.
    pub fn look(&mut self) {
        if self.looking.is_none() {
            let mut files = self.files.clone();
            let look = move || {
                files.look();
                files
            };
            self.looking = Some(self.io_thread.ask(look));
        }
    }

    /// Takes in the result of [`Self::look`]. Returns false while the I/O thread is still reading.
    pub fn has_looked(&mut self) -> bool {
        let Some(looking) = &self.looking else { return true };
        let Some(files) = looking.here() else { return false };
        (self.looking, self.files) = (None, files);
        self.unsaid.0.append(&mut self.files.output.fresh);
        self.unsaid.1.append(&mut self.files.errors.fresh);
        true
    }

    /// Returns `None` while the launcher runs. Returns `Some` with its exit status once it has ended, or `Some(None)` if it
    /// vanished without a status. The result follows from the files as last read.
    pub fn poll(&mut self) -> Option<Option<i32>> {
        if let Some(child) = &mut self.child {
            // The child is only reaped here. Its status comes from the file, as for an adopted job.
            let _ = child.try_wait();
        }
        if self.files.status.is_some() {
            return Some(self.files.status);
        }
        if processes::is_alive(self.id) {
            return None;
        }
        let since = *self.vanished.get_or_insert_with(Instant::now);
        self.files.looked.is_some_and(|at| at > since + STATUS_TIMEOUT).then_some(None)
    }

    /// Ends the launcher and the processes of the run on this machine. Returns the number of these processes.
    pub fn end(&mut self, run_id: &str) -> Answer<usize> {
        let (id, child, run_id) = (self.id, self.child.take(), run_id.to_owned());
        Answer::in_background(move || {
            let left = processes::left_by_run(&run_id);
            if processes::is_alive(id) {
                match simulated() {
                    None => drop(killpg(Pid::from_raw(id.pid as i32), Signal::SIGKILL)),
                    Some(machine) => machine.kill(id),
                }
            }
            // A process that waits for a hanging disk ends only when the disk answers. Only this thread waits for that.
            if let Some(mut child) = child {
                let _ = new_thread::start("wait", move || child.wait());
            }
            let ended = processes::end_run(&run_id);
            processes::remove_left(left);
            ended
        })
    }

    /// Passes on the output of the job that has been read, without lines that an earlier attempt has printed. Returns true if
    /// there was any output.
    pub fn forward(&mut self, echo: &mut Echo) -> bool {
        let (output, errors) = std::mem::take(&mut self.unsaid);
        let words = [(Stream::Output, echo.fresh(&output)), (Stream::Errors, errors)];
        let words = words.into_iter().filter(|(_, bytes)| !bytes.is_empty());
        words.map(|(stream, bytes)| say(stream, bytes)).count() > 0
    }

    /// Returns the output that has been read since the last call, for a caller that does not pass it on.
    pub fn printed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unsaid.0)
    }

    /// Passes on the remaining output, with a last line that has no end.
    pub fn forward_rest(&mut self, echo: &mut Echo) {
        self.forward(echo);
        say(Stream::Output, echo.rest());
    }

    /// Reads the output of the launcher, which has ended.
    pub fn last_words(&self) -> Answer<LastWords> {
        let (output, errors) = (self.files.output.path.clone(), self.files.errors.path.clone());
        self.io_thread.ask(move || LastWords::read(&output, &errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::start::in_place::{Gone, Notice};
    use crate::supervise::start::launcher::RUN_ID_VAR;
    use crate::supervise::talk::processes::catches;

    fn started(script: &str) -> (tempfile::TempDir, Folder, Job, String) {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path());
        let run_id = format!("job-{}-{}", std::process::id(), dir.path().display());
        let launch = Launch {
            argv: ["sh", "-c", script].map(String::from).to_vec(),
            set: vec![(RUN_ID_VAR.to_string(), run_id.clone())],
            remove_prefixes: vec![],
            files: vec![(dir.path().join("hosts"), "n1\n".to_string(), false)],
        };
        let job = Job::start(&launch, &folder, 1, &IoThread::new("I/O").unwrap()).unwrap();
        (dir, folder, job, run_id)
    }

    fn wait(job: &mut Job) -> Option<i32> {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            job.look();
            match job.has_looked().then(|| job.poll()).flatten() {
                Some(end) => return end,
                None if Instant::now() > until => panic!("it does not end"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    #[test]
    fn an_exit_status_is_there_for_all_that_ask() {
        let (_dir, folder, mut job, _) = started("cat hosts 2>/dev/null; echo out; exit 42");
        assert_eq!(wait(&mut job), Some(42));
        let mut other = Job::adopt(job.id, &folder, 1, &IoThread::new("I/O").unwrap());
        assert_eq!(wait(&mut other), Some(42));
        assert!(fs::read_to_string(folder.output(1)).unwrap().contains("out"));
    }

    /// LSF sends its warning to all processes of a job. The shell that waits for the launcher must not die of it.
    #[test]
    fn a_batch_systems_warning_costs_no_exit_status() {
        let (_dir, _folder, mut job, _) = started("sleep 1; exit 42");
        for signal in [Signal::SIGUSR1, Signal::SIGUSR2] {
            let since = Instant::now();
            while !catches(job.id.pid, signal) {
                assert!(since.elapsed() < Duration::from_secs(10), "{signal} is not minded");
                std::thread::sleep(Duration::from_millis(1));
            }
            nix::sys::signal::kill(Pid::from_raw(job.id.pid as i32), signal).unwrap();
        }
        assert_eq!(wait(&mut job), Some(42));
    }

    #[test]
    fn done_is_done_when_all_that_was_printed_is_here() {
        let done = Announcement::Done { status: 3, printed: 12 };
        assert_eq!(Announcement::find(&format!("[1,0]<stderr>:skt-hpl: {done}")), Some(done));
        assert_eq!(Announcement::find("all tests are done: status 3, 1"), None, "cut short");
        let part = Announced::Part { status: 3, here: 11, printed: 12 };
        for (text, told) in [("twelve bytes", Announced::All { status: 3 }), ("eleven byte", part)]
        {
            let script = format!("printf '%s' '{text}'; echo 'skt-hpl: {done}' >&2");
            let (_dir, _folder, mut job, _) = started(&script);
            wait(&mut job);
            assert_eq!(job.files.announced(), told);
        }
    }

    /// A launcher's own status does not count as a refusal of the benchmark.
    #[test]
    fn only_the_benchmark_refuses() {
        let refused = Announcement::Refused { status: 1 };
        let lost = vec![Gone { rank: 1, node: "n1".into(), position: None }];
        let lost = Notice { lost, noticed_unix_s: 0.0, agreed_s: 0.0, takers: String::new() };
        let gone_on = format!("skt-hpl: {}", lost.told("all tests are done"));
        let line = format!("[1,0]<stderr>:skt-hpl: {refused}");
        assert_eq!(Announcement::find(&line), Some(refused));
        assert_eq!(Announcement::find("refused: status 1"), None, "cut short");
        for (script, found) in [
            ("exit 1".to_owned(), None),
            (format!("echo 'skt-hpl: {refused}' >&2; exit 1"), Some(1)),
            ("echo 'connection refused: status unknown' >&2; exit 1".to_owned(), None),
            (format!("echo '{refused}' >&2; echo '{gone_on}' >&2; exit 1"), None),
            (format!("echo '{gone_on}' >&2; echo '{refused}' >&2; exit 1"), Some(1)),
        ] {
            let (_dir, _folder, mut job, _) = started(&script);
            assert_eq!(wait(&mut job), Some(1));
            assert_eq!(job.files.refused, found, "{script}");
        }
    }

    /// Open MPI 5 ends with 0 when a node is lost, so only the benchmark's announcement counts.
    #[test]
    fn a_launchers_zero_is_no_word_of_the_benchmarks() {
        let done = Announcement::Done { status: 0, printed: 0 };
        for (script, loose, strict) in [
            ("exit 0".to_string(), Some(0), None),
            ("exit 3".to_string(), Some(3), Some(3)),
            (format!("echo 'skt-hpl: {done}' >&2"), Some(0), Some(0)),
        ] {
            let (_dir, folder, mut job, _) = started(&script);
            wait(&mut job);
            assert_eq!(end_of(&folder, 1, true), loose, "{script}");
            assert_eq!(end_of(&folder, 1, false), strict, "{script}");
        }
    }

    #[test]
    fn a_job_is_adopted_and_ended_with_all_it_started() {
        let (_dir, folder, mut job, run_id) = started("sleep 50 & sleep 50");
        std::thread::sleep(Duration::from_millis(100));
        let mut adopted = Job::adopt(job.id, &folder, 1, &IoThread::new("I/O").unwrap());
        assert_eq!(adopted.poll(), None);
        let ended = adopted.end(&run_id);
        while ended.here().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(wait(&mut job), None, "killed: no exit status");
        assert!(processes::of_run(&run_id).is_empty());
    }

    /// If the disk hangs, the launcher has not vanished. Only files read after its end show that it left no status.
    #[test]
    fn a_launcher_that_cannot_be_looked_at_has_not_vanished() {
        let (_dir, folder, mut job, _) = started("exit 7");
        let left = folder.exit(1);
        while !left.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (go, held) = std::sync::mpsc::channel::<()>();
        let _hangs = job.io_thread.ask(move || held.recv());
        job.look();
        let until = Instant::now() + 2 * STATUS_TIMEOUT;
        while Instant::now() < until {
            assert!(!job.has_looked());
            assert_eq!(job.poll(), None);
            std::thread::sleep(Duration::from_millis(10));
        }
        go.send(()).unwrap();
        assert_eq!(wait(&mut job), Some(7));
    }

    #[test]
    fn a_loss_that_is_told_in_parts_is_heard_once() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path());
        let words = "rank 2 on n3 (position 1) is lost: noticed at 06:01:02.500 UTC, agreed 0.012 s later; rank 4 on n5 \
                     takes position 1; test 1 resumes at boundary 6 of 31 (checkpoint 2); 0.100 s after the notice";
        let text = format!("noise\nskt-hpl: {words}\nmore");
        fs::write(folder.output(1), "").unwrap();
        let mut files = Files::of(&folder, 1);
        let mut heard = Vec::new();
        for cut in [3, 100, text.len() - 5, text.len()] {
            fs::write(folder.errors(1), &text[..cut]).unwrap();
            files.look();
            heard.extend(files.gone_on.drain(..).map(|(it, _)| (it.words, cut)));
        }
        assert_eq!(heard, [(words.to_owned(), text.len())]);
    }

    /// The announcement may be written in pieces.
    #[test]
    fn an_end_that_is_told_in_parts_is_heard() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path());
        let done = Announcement::Done { status: 3, printed: 0 };
        for (said, told) in
            [(done, Announced::All { status: 3 }), (Announcement::Halted, Announced::Halted)]
        {
            let words = said.to_string();
            let text = format!("{}\nskt-hpl: {words}\n", "x".repeat(1000));
            fs::write(folder.output(1), "").unwrap();
            let mut files = Files::of(&folder, 1);
            for cut in [3, 1010, 1020, text.len() - words.len() / 2] {
                fs::write(folder.errors(1), &text[..cut]).unwrap();
                files.look();
                assert_eq!(files.announced(), Announced::Nothing);
            }
            fs::write(folder.errors(1), &text).unwrap();
            for when in ["at once", "and stays"] {
                files.look();
                assert_eq!(files.announced(), told, "{when}");
            }
        }
    }
}
