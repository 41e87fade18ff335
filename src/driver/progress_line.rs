//! Progress line on a terminal during a plain `mpirun skt-hpl`.
//!
//! Rank 0 writes the line to standard error, and overwrites the line at each update. The line is written only if the standard
//! error of this process, or of the launcher which forwards it, ends on a terminal. The line is written neither to files nor to
//! standard output. Nor is the line written if the progress is shown elsewhere (`--progress`, `skt-hpl run`).

use std::fmt::Write as _;
use std::fs;
use std::io::{IsTerminal, Write as _};
use std::path::Path;

use crate::base::timeline::flops_until;
use crate::shm::stat::Stat;
use crate::supervise::tell::status::duration;

/// Launchers that forward the standard error of their ranks. The kernel truncates their names to fifteen characters.
const LAUNCHERS: [&str; 9] = [
    "mpirun",
    "mpiexec",
    "orterun",
    "prterun",
    "mpirun.openmpi",
    "mpirun.mpich",
    "mpiexec.hydra",
    "hydra_pmi_proxy",
    "srun",
];

/// Maximum number of launchers between this process and a terminal.
const GENERATIONS: usize = 4;

/// Control sequence that clears the line and moves the cursor to the start of the line.
const CLEAR: &str = "\r\x1b[K";

/// Returns true if this process's standard error appears on a terminal.
pub fn watched() -> bool {
    let term = std::env::var("TERM").unwrap_or_default();
    let able = !term.is_empty() && term != "dumb";
    able && (std::io::stderr().is_terminal()
        || launcher_has_a_terminal(Path::new("/proc"), std::process::id()))
}

/// Returns true if a launcher among this process's ancestors has a terminal as its standard error.
fn launcher_has_a_terminal(proc: &Path, pid: u32) -> bool {
    let mut pid = pid;
    for _ in 0..GENERATIONS {
        let Some(parent) = parent_of(&proc.join(pid.to_string())) else { return false };
        let folder = proc.join(parent.to_string());
        let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
        let name = name.trim();
        // The kernel truncates long names.
        if !LAUNCHERS.iter().any(|launcher| name == &launcher[..launcher.len().min(15)]) {
            return false;
        }
        let goes_to = fs::read_link(folder.join("fd/2")).unwrap_or_default();
        if goes_to.starts_with("/dev/pts") || goes_to.starts_with("/dev/tty") {
            return true;
        }
        pid = parent;
    }
    false
}

fn parent_of(folder: &Path) -> Option<u32> {
    Stat::within(folder)?.parent().filter(|&parent| parent > 1)
}

/// Returns the text of the progress line for iteration `k` of `blocks`, after `seconds`. The rate is computed from the iteration
/// and time in `since`.
pub fn line(
    n: usize,
    nb: usize,
    k: usize,
    blocks: usize,
    seconds: f64,
    since: (usize, f64),
) -> String {
    let all = flops_until(n, nb, blocks as u64).max(1.0);
    let done = flops_until(n, nb, k as u64);
    let mut text = format!("{:5.1} % of N={n}, iteration {k} of {blocks}", 100.0 * done / all);
    let (from, at) = since;
    let rate = (done - flops_until(n, nb, from as u64)) / (seconds - at);
    if rate.is_finite() && rate > 0.0 {
        let left = duration((all - done) / rate);
        let _ = write!(text, ", {:.1} Gflop/s, {left} left", rate / 1e9);
    }
    text
}

/// Progress line of one test.
#[derive(Default)]
pub struct ProgressLine {
    first: Option<(usize, f64)>,
    shown_s: Option<f64>,
    shown: bool,
}

/// Least time between two updates of the progress line, in seconds. People cannot read faster.
const EVERY_S: f64 = 0.5;

impl ProgressLine {
    pub fn at(&mut self, n: usize, nb: usize, k: usize, blocks: usize, seconds: f64) {
        // A test that resumes from a checkpoint starts at a later iteration.
        let since = *self.first.get_or_insert((k, seconds));
        if self.shown_s.is_some_and(|shown_s| seconds - shown_s < EVERY_S) {
            return;
        }
        self.shown_s = Some(seconds);
        self.shown = true;
        write(&format!("{CLEAR}{}", line(n, nb, k, blocks, seconds, since)));
    }

    /// Clears the line, so that results are printed on an empty line.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.shown) {
            write(CLEAR);
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.end();
    }
}

fn write(text: &str) {
    // If the line cannot be written, the run continues.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_and_how_long() {
        assert_eq!(line(1000, 100, 0, 10, 0.0, (0, 0.0)), "  0.0 % of N=1000, iteration 0 of 10");
        let text = line(1000, 100, 5, 10, 2.0, (0, 0.0));
        assert_eq!(text, " 87.5 % of N=1000, iteration 5 of 10, 0.3 Gflop/s, 0 s left");
        let text = line(100_000, 100, 500, 1000, 7000.0, (400, 3500.0));
        assert!(
            text.starts_with(
                " 87.5 % of N=100000, iteration 500 of 1000, 17.3 Gflop/s, 1 h 20 min left"
            ),
            "{text}"
        );
    }

    #[test]
    fn only_a_launcher_with_a_terminal_passes_the_line_on() {
        let dir = tempfile::tempdir().unwrap();
        let process = |pid: u32, parent: u32, name: &str, goes_to: &str| {
            let folder = dir.path().join(pid.to_string());
            fs::create_dir_all(folder.join("fd")).unwrap();
            fs::write(folder.join("stat"), format!("1 (x) S {parent} 1 1\n")).unwrap();
            fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
            std::os::unix::fs::symlink(goes_to, folder.join("fd/2")).unwrap();
        };
        process(10, 9, "mpirun", "/dev/pts/3");
        process(11, 10, "skt-hpl", "pipe:[1]");
        process(20, 10, "hydra_pmi_proxy", "pipe:[2]");
        process(21, 20, "skt-hpl", "pipe:[3]");
        process(30, 9, "mpirun", "/home/x/log");
        process(31, 30, "skt-hpl", "pipe:[4]");
        process(9, 1, "bash", "/dev/pts/3");
        process(41, 9, "skt-hpl", "pipe:[5]");
        let seen = |pid| launcher_has_a_terminal(dir.path(), pid);
        assert!(seen(11) && seen(21));
        assert!(!seen(31), "mpirun 2> log");
        assert!(!seen(41), "a shell passes nothing on: skt-hpl 2>&1 | cat");
        assert!(!seen(77));
    }
}
