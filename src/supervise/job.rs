//! The launcher's process: started so that it outlives its supervisor, watched, and taken over by the next.
//!
//! It writes to files, not to pipes that would break with the supervisor, and a line of shell around it
//! leaves its exit status in a file. So whoever looks, its parent or a supervisor started an hour later, sees
//! the same.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::echo::Echo;
use super::events::ProcessId;
use super::folder::Folder;
use super::launcher::Launch;
use super::processes;

/// Writes the exit status when the launcher has ended; `$1` is the file.
const WRAPPER: &str =
    r#"trap '' HUP INT; f=$1; shift; "$@"; c=$?; echo $c >"$f.new" && mv "$f.new" "$f""#;

/// A file being written by somebody else, copied on as it grows.
struct Tail {
    path: PathBuf,
    at: u64,
}

impl Tail {
    /// What has been written since the last call.
    fn read(&mut self) -> io::Result<Vec<u8>> {
        let Ok(mut file) = File::open(&self.path) else { return Ok(Vec::new()) };
        file.seek(SeekFrom::Start(self.at))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        self.at += bytes.len() as u64;
        Ok(bytes)
    }
}

/// Writes something; a stream that is gone must not end the run. True if there was anything.
fn pass(bytes: io::Result<Vec<u8>>, mut to: impl Write) -> bool {
    let bytes = bytes.unwrap_or_default();
    !bytes.is_empty() && to.write_all(&bytes).and_then(|()| to.flush()).is_ok()
}

/// What the benchmark says on its standard error when all tests are over and told, before it tidies up and MPI
/// ends: where it is killed after that, or hangs, its work is not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub status: u8,
    /// Bytes it has written to its standard output.
    pub printed: u64,
}

const DONE: &str = "all tests are done: status ";

/// The status the benchmark will end with, once it has said that all is done and all it has printed is here:
/// from then on nothing that happens to it matters any more.
fn told(output: &Path, errors: &Path) -> Option<u8> {
    let errors = fs::read(errors).ok()?;
    let done = Done::find(&String::from_utf8_lossy(&errors))?;
    let printed = fs::metadata(output).map_or(0, |meta| meta.len());
    (printed >= done.printed).then_some(done.status)
}

/// Whether a status says that all tests are over, be it that they passed or that a residual failed.
pub fn is_over(status: i32) -> bool {
    matches!(status, 0 | 3)
}

/// The status with which an incarnation has come to its end, or said it would, if it has.
pub fn end_of(folder: &Folder, incarnation: u32) -> Option<u8> {
    let left = fs::read_to_string(folder.exit(incarnation));
    let left = left.ok().and_then(|text| text.trim().parse().ok());
    left.filter(|status| is_over(*status))
        .map(|status| status as u8)
        .or_else(|| told(&folder.output(incarnation), &folder.errors(incarnation)))
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{DONE}{}, {} bytes of results on standard output", self.status, self.printed)
    }
}

impl Done {
    fn find(text: &str) -> Option<Self> {
        let (status, rest) = text.rsplit_once(DONE)?.1.split_once(", ")?;
        let printed = rest.split_once(" bytes ")?.0;
        Some(Self { status: status.parse().ok()?, printed: printed.parse().ok()? })
    }
}

pub struct Job {
    id: ProcessId,
    exit: PathBuf,
    /// Ours to reap, unless it was started by an earlier supervisor.
    child: Option<Child>,
    output: Tail,
    errors: Tail,
    vanished: Option<Instant>,
}

impl Job {
    /// Writes the launch's files and starts it.
    pub fn start(launch: &Launch, folder: &Folder, incarnation: u32) -> io::Result<Self> {
        for (path, content, executable) in &launch.files {
            fs::write(path, content)?;
            if *executable {
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
            }
        }
        let exit = folder.exit(incarnation);
        let _ = fs::remove_file(&exit);
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
            .stdout(File::create(folder.output(incarnation))?)
            .stderr(File::create(folder.errors(incarnation))?)
            // A Ctrl-C at the terminal is for the supervisor to act on, not for the ranks to die of.
            .process_group(0)
            .spawn()?;
        let pid = child.id();
        let started = processes::look(pid).map_or(0, |(_, started)| started);
        Ok(Self::over(ProcessId { pid, started }, folder, incarnation, Some(child)))
    }

    /// A job an earlier supervisor started.
    pub fn adopt(id: ProcessId, folder: &Folder, incarnation: u32) -> Self {
        Self::over(id, folder, incarnation, None)
    }

    fn over(id: ProcessId, folder: &Folder, incarnation: u32, child: Option<Child>) -> Self {
        let tail = |path| Tail { path, at: 0 };
        Self {
            id,
            exit: folder.exit(incarnation),
            child,
            output: tail(folder.output(incarnation)),
            errors: tail(folder.errors(incarnation)),
            vanished: None,
        }
    }

    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Whether it runs, or has left an exit status.
    pub fn is_known(id: ProcessId, exit: &Path) -> bool {
        processes::is_alive(id) || exit.exists()
    }

    /// None while it runs; then its exit status, or None again if it vanished without one.
    pub fn poll(&mut self) -> Option<Option<i32>> {
        if let Some(child) = &mut self.child {
            // Reap it; its status comes from the file, as for everybody.
            let _ = child.try_wait();
        }
        let status = || fs::read_to_string(&self.exit).ok()?.trim().parse::<i32>().ok();
        if let Some(code) = status() {
            return Some(Some(code));
        }
        if processes::is_alive(self.id) {
            return None;
        }
        // On a network file system the file may show up a moment after its writer has gone.
        let since = *self.vanished.get_or_insert_with(Instant::now);
        (since.elapsed() > Duration::from_millis(300)).then_some(None)
    }

    /// Ends the launcher and what it started on this machine.
    pub fn end(&mut self, run_id: &str) -> usize {
        if processes::is_alive(self.id) {
            let _ = killpg(Pid::from_raw(self.id.pid as i32), Signal::SIGKILL);
        }
        let (ended, _) = processes::end_run(run_id, None, Duration::from_secs(3));
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
        ended
    }

    /// Passes on what the job has written since the last call, unless an earlier incarnation has said the same.
    /// True if there was anything.
    pub fn forward(&mut self, echo: &mut Echo) -> bool {
        let fresh = self.output.read().map(|bytes| echo.fresh(&bytes));
        let out = pass(fresh, io::stdout().lock());
        let err = pass(self.errors.read(), io::stderr().lock());
        out || err
    }

    /// Passes on a last line that has no end.
    pub fn forward_rest(&mut self, echo: &mut Echo) {
        self.forward(echo);
        pass(Ok(echo.rest()), io::stdout().lock());
    }

    /// The status the benchmark will end with; see [`told`].
    pub fn done(&self) -> Option<u8> {
        told(&self.output.path, &self.errors.path)
    }

    /// The end of what the launcher complained about.
    pub fn last_words(&self) -> String {
        let text = fs::read(&self.errors.path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(2000)..]).into_owned();
        // Open MPI frames what it has to say, and adds that it could say more.
        let tells = |line: &&str| {
            !line.trim_matches('-').is_empty()
                && !line.contains("help message")
                && !line.contains("help / error messages")
        };
        let lines: Vec<&str> = text.lines().map(str::trim).filter(tells).collect();
        lines[lines.len().saturating_sub(3)..].join(" | ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::launcher::RUN_ID_VAR;

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
        let job = Job::start(&launch, &folder, 1).unwrap();
        (dir, folder, job, run_id)
    }

    fn wait(job: &mut Job) -> Option<i32> {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            match job.poll() {
                Some(end) => return end,
                None if Instant::now() > until => panic!("it does not end"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    #[test]
    fn an_exit_status_is_there_for_whoever_asks() {
        let (_dir, folder, mut job, _) = started("cat hosts 2>/dev/null; echo out; exit 42");
        assert_eq!(wait(&mut job), Some(42));
        let mut other = Job::adopt(job.id(), &folder, 1);
        assert_eq!(wait(&mut other), Some(42));
        assert!(fs::read_to_string(folder.output(1)).unwrap().contains("out"));
    }

    #[test]
    fn done_is_done_when_all_that_was_printed_is_here() {
        let done = Done { status: 3, printed: 12 };
        assert_eq!(
            Done::find(&format!("noise\n[1,0]<stderr>:skt-hpl: {done}\nmore\n")),
            Some(done)
        );
        assert_eq!(Done::find("all tests are done: status 3, 1"), None, "cut short");
        for (text, told) in [("twelve bytes", Some(3)), ("eleven byte", None)] {
            let script = format!("printf '%s' '{text}'; echo 'skt-hpl: {done}' >&2");
            let (_dir, _folder, mut job, _) = started(&script);
            wait(&mut job);
            assert_eq!(job.done(), told);
        }
    }

    #[test]
    fn a_job_is_adopted_and_ended_with_all_it_started() {
        let (_dir, folder, mut job, run_id) = started("sleep 50 & sleep 50");
        std::thread::sleep(Duration::from_millis(100));
        let mut adopted = Job::adopt(job.id(), &folder, 1);
        assert_eq!(adopted.poll(), None);
        adopted.end(&run_id);
        assert_eq!(wait(&mut job), None, "killed: no exit status");
        assert!(processes::of_run(&run_id, None).is_empty());
    }
}
