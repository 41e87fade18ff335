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
    fn copy(&mut self, to: &mut dyn Write) -> io::Result<bool> {
        let Ok(mut file) = File::open(&self.path) else { return Ok(false) };
        file.seek(SeekFrom::Start(self.at))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        self.at += bytes.len() as u64;
        if !bytes.is_empty() {
            to.write_all(&bytes)?;
            to.flush()?;
        }
        Ok(!bytes.is_empty())
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

    /// Passes on what the job has written since the last call. True if there was anything.
    pub fn forward(&mut self) -> bool {
        // A standard output that is gone must not end the run.
        let out = self.output.copy(&mut io::stdout().lock()).unwrap_or(false);
        let err = self.errors.copy(&mut io::stderr().lock()).unwrap_or(false);
        out || err
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
