//! The virtual cluster of the benchmark, and its processes as seen from this machine.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skt_hpl::supervise::start::hosts::Host;

/// Number of nodes that work. One more node is a spare.
pub const WORKING: usize = 4;

pub struct Lab {
    name: String,
    /// Folder in which `scripts/vcluster` keeps the state of the cluster.
    state: PathBuf,
    pub ssh: String,
    pub network: String,
}

/// Returns the hosts of the nodes with the given numbers, one rank each.
pub fn hosts(numbers: RangeInclusive<usize>) -> Vec<Host> {
    numbers.map(|n| Host::new(format!("n{n}"), 1)).collect()
}

/// Processor time and memory that a process has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    pub cpu_s: f64,
    pub resident_bytes: u64,
}

impl Lab {
    pub fn up(shm: &str) -> Result<Self, String> {
        let name = format!("bench{}", std::process::id());
        let mut lab =
            Self { name, state: PathBuf::new(), ssh: String::new(), network: String::new() };
        let (nodes, pid) = ((WORKING + 1).to_string(), std::process::id().to_string());
        lab.vcluster(&["up", &nodes, "--shm", shm, "--while", &pid])?;
        lab.ssh = lab.vcluster(&["ssh-config"])?.trim().to_string();
        lab.state = Path::new(&lab.ssh).parent().map(Path::to_path_buf).unwrap_or_default();
        let net = fs::read_to_string(lab.state.join("net")).map_err(|e| e.to_string())?;
        lab.network = format!("10.213.{}.0/24", net.trim());
        Ok(lab)
    }

    pub fn vcluster(&self, words: &[&str]) -> Result<String, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/vcluster");
        let out = Command::new(script)
            .args(["-c", &self.name])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("scripts/vcluster: {e}"))?;
        match out.status.success() {
            true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&out.stderr).trim().to_string()),
        }
    }

    fn init(&self, node: &str) -> Result<i32, String> {
        let path = self.state.join(node).join("init");
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let pid = text.split_whitespace().next().and_then(|p| p.parse().ok());
        pid.ok_or_else(|| format!("{}: no pid", path.display()))
    }

    /// Switches a node off at once, without the delay of a script. Its connections close, so other nodes notice.
    pub fn power_off(&self, node: &str) -> Result<(), String> {
        kill(Pid::from_raw(self.init(node)?), Signal::SIGKILL).map_err(|e| e.to_string())
    }

    /// Starts all nodes that are off. Their memory is empty.
    pub fn heal(&self) -> Result<(), String> {
        for line in self.vcluster(&["status"])?.lines() {
            if let Some(node) = line.strip_suffix(" off") {
                // A node that was killed a moment ago may still be ending.
                let until = Instant::now() + Duration::from_secs(5);
                while self.vcluster(&["back", node]).is_err() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
        Ok(())
    }

    /// Returns the process ids of the processes on a node for whose command line `is` returns true.
    fn processes(&self, node: &str, is: impl Fn(&[&[u8]]) -> bool) -> Result<Vec<i32>, String> {
        let space = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let here = space(self.init(node)?);
        let entries = fs::read_dir("/proc").map_err(|e| e.to_string())?.flatten();
        Ok(entries
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| here.is_some() && space(*pid) == here)
            .filter(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let words: Vec<&[u8]> = line.split(|b| *b == 0).filter(|w| !w.is_empty()).collect();
                is(&words)
            })
            .collect())
    }

    /// Returns the process ids of the benchmark's ranks on a node: processes of the program that are not agents.
    pub fn ranks(&self, node: &str, program: &Path) -> Result<Vec<i32>, String> {
        self.processes(node, |words| {
            words.first() == Some(&program.as_os_str().as_encoded_bytes())
                && words.get(1) != Some(&b"agent".as_slice())
        })
    }

    /// Returns the process of the only rank on a node. An Err names the number of ranks that were found instead.
    pub fn rank(&self, node: &str, program: &Path) -> Result<Pid, String> {
        match self.ranks(node, program)?[..] {
            [pid] => Ok(Pid::from_raw(pid)),
            ref found => Err(format!("{} ranks on {node}, where one was looked for", found.len())),
        }
    }

    pub fn agents(&self, program: &Path) -> Vec<i32> {
        let nodes = (1..=WORKING + 1).map(|n| format!("n{n}"));
        let is_agent = |words: &[&[u8]]| {
            words.len() >= 2
                && words[0] == program.as_os_str().as_encoded_bytes()
                && words[1] == b"agent"
        };
        nodes.filter_map(|node| self.processes(&node, is_agent).ok()).flatten().collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(why) = self.vcluster(&["down"]) {
            eprintln!("supervision: {why}");
        }
    }
}

/// A child process that ends when the value is dropped.
pub struct Kept(pub Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the processor time of all threads of a process, to the nanosecond, and its largest resident memory. None if the
/// process has ended.
pub fn used(pid: i32) -> Option<Used> {
    let mut cpu_ns = 0u64;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        cpu_ns += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = resident.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Used { cpu_s: cpu_ns as f64 / 1e9, resident_bytes: kib * 1024 })
}
