//! `skt-hpl doctor`: says in words whether these nodes can run the benchmark, and what is wrong where.
//!
//! Without `--hosts` it looks at this node alone. With it, at all: can each be reached, is the same program
//! there, is there shared memory, do the clocks agree, and does MPI start over all of them.

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use super::exit::Exit;
use super::run::{NodeFlags, Nodes, Refusal};
use crate::supervise::agent::{binary_digest, facts};
use crate::supervise::cluster::Cluster;
use crate::supervise::events::unix_ms;
use crate::supervise::hosts::Host;
use crate::supervise::launcher::{LaunchPlan, launch};
use crate::supervise::preflight::{Expected, Finding, judge};
use crate::supervise::processes;

#[derive(Clone, Debug, Args)]
pub struct DoctorFlags {
    #[command(flatten)]
    pub nodes: NodeFlags,

    /// Do not start MPI over the nodes
    #[arg(long)]
    pub no_mpi: bool,
}

/// How long MPI may take to start over all nodes.
const MPI_PATIENCE: Duration = Duration::from_secs(60);

pub fn run(flags: &DoctorFlags) -> ExitCode {
    match examine(flags) {
        Ok(0) => {
            println!("no problem found");
            Exit::Passed.into()
        }
        Ok(problems) => {
            println!("{problems} problem(s) found");
            Exit::Environment.into()
        }
        Err(Refusal(exit, why)) => {
            eprintln!("skt-hpl doctor: {why}");
            exit.into()
        }
    }
}

fn tell(name: &str, findings: &[Finding]) -> usize {
    for finding in findings {
        match finding {
            Finding::Problem(text) => println!("{name}: PROBLEM: {text}"),
            Finding::Warning(text) => println!("{name}: warning: {text}"),
        }
    }
    findings.iter().filter(|f| matches!(f, Finding::Problem(_))).count()
}

fn examine(flags: &DoctorFlags) -> Result<usize, Refusal> {
    let binary = binary_digest();
    let expected = Expected {
        version: env!("CARGO_PKG_VERSION"),
        binary: &binary,
        unix_ms: unix_ms(),
        need_bytes: None,
        held_bytes: 0,
    };
    let Some(nodes) = flags.nodes.nodes()? else {
        let facts = facts();
        println!(
            "{}: {} cores, {} MiB of memory, /dev/shm {} MiB with {} MiB free",
            facts.host,
            facts.cores,
            facts.memory_bytes >> 20,
            facts.shm_bytes >> 20,
            facts.shm_free_bytes >> 20
        );
        let mut problems = tell(&facts.host, &judge(&facts, &expected));
        match flags.nodes.launcher() {
            Ok((_, program, _)) => println!("launcher: {}", program.display()),
            Err(Refusal(_, why)) => {
                println!("launcher: PROBLEM: {why}");
                problems += 1;
            }
        }
        return Ok(problems);
    };
    let own = std::env::current_exe()
        .map_err(|e| Refusal(Exit::Environment, format!("cannot tell where this program is: {e}")))?
        .to_string_lossy()
        .into_owned();
    let agent = vec![own.clone(), "agent".to_owned()];
    let mut cluster =
        Cluster::new(nodes.shell.clone(), agent, &nodes.hosts, &nodes.spares, "", None);
    let mut problems = 0;
    for (at, why) in cluster.call_all(Duration::from_secs(10)) {
        println!("{}: PROBLEM: {why}", cluster.nodes[at].host.name);
        problems += 1;
    }
    for at in 0..cluster.nodes.len() {
        let name = cluster.nodes[at].host.name.clone();
        if let Some((facts, _)) = &cluster.nodes[at].facts {
            println!(
                "{name}: {} cores, {} MiB of memory, /dev/shm {} MiB with {} MiB free",
                facts.cores,
                facts.memory_bytes >> 20,
                facts.shm_bytes >> 20,
                facts.shm_free_bytes >> 20
            );
        }
        problems += tell(&name, &cluster.findings(at, &expected));
    }
    if problems == 0 && !flags.no_mpi {
        match start_mpi(flags, &nodes, &cluster, &own) {
            Ok(text) => println!("{text}"),
            Err(text) => {
                println!("MPI: PROBLEM: {text}");
                problems += 1;
            }
        }
    }
    Ok(problems)
}

/// Starts one rank a node and lets them sum something up.
fn start_mpi(
    flags: &DoctorFlags,
    nodes: &Nodes,
    cluster: &Cluster,
    own: &str,
) -> Result<String, String> {
    let (kind, program, extra) = flags.nodes.launcher().map_err(|Refusal(_, why)| why)?;
    let hosts: Vec<Host> =
        nodes.hosts.iter().chain(&nodes.spares).map(|h| Host::new(&h.name, 1)).collect();
    let folder = std::env::temp_dir().join(format!("skt-hpl-doctor-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let run_id = format!("doctor-{}-{}", std::process::id(), unix_ms());
    let command = [own, "agent", "--mpi-check"].map(String::from);
    let made = launch(&LaunchPlan {
        launcher: kind,
        program: &program,
        hosts: &hosts,
        ranks: hosts.len(),
        run_id: &run_id,
        incarnation: 1,
        command: &command,
        env: &[],
        extra: &extra,
        shell: &nodes.shell,
        dir: &folder,
        as_root: nix::unistd::geteuid().is_root(),
        pmi: "pmi2",
    });
    let result = run_to_end(&made, &run_id);
    let _ = std::fs::remove_dir_all(&folder);
    let (output, took) = result?;
    let seen: Vec<Vec<&str>> = output
        .lines()
        .filter_map(|l| l.strip_prefix("skt-hpl-mpi-check "))
        .map(|l| l.split(' ').collect())
        .collect();
    if seen.len() != hosts.len() {
        return Err(format!("{} of {} ranks answered: {output}", seen.len(), hosts.len()));
    }
    for line in &seen {
        let [host, boot, device] = line[..] else { continue };
        let agents = cluster.nodes.iter().filter_map(|n| n.facts.as_ref());
        if let Some((facts, _)) = agents.into_iter().find(|(f, _)| f.host == host && f.boot == boot)
            && facts.shm_device.to_string() != device
        {
            return Err(format!(
                "a job's ranks on {host} see another /dev/shm than this user's remote shell (a private one, as \
                 Slurm's job_container/tmpfs makes): memory would vanish with the job step"
            ));
        }
    }
    Ok(format!("MPI: {} ranks on {} nodes in {:.1} s", seen.len(), hosts.len(), took.as_secs_f64()))
}

fn run_to_end(
    made: &crate::supervise::launcher::Launch,
    run_id: &str,
) -> Result<(String, Duration), String> {
    for (path, text, executable) in &made.files {
        use std::os::unix::fs::PermissionsExt;
        let mode = if *executable { 0o755 } else { 0o644 };
        std::fs::write(path, text)
            .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)))
            .map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let started = Instant::now();
    let mut command = Command::new(&made.argv[0]);
    for (name, _) in std::env::vars_os() {
        if made.removes(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    let child = command
        .args(&made.argv[1..])
        .envs(made.set.iter().map(|(n, v)| (n, v)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start {}: {e}", made.argv[0]))?;
    let pid = child.id();
    let id = run_id.to_owned();
    let (done, finished) = std::sync::mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if finished.recv_timeout(MPI_PATIENCE).is_ok() {
            return false;
        }
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid as i32),
            nix::sys::signal::Signal::SIGKILL,
        );
        processes::end_run(&id, None, Duration::from_secs(3));
        true
    });
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    let _ = done.send(());
    let late = guard.join().unwrap_or(false);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if late {
        return Err(format!("it did not come up within {} s. {errors}", MPI_PATIENCE.as_secs()));
    }
    if !output.status.success() {
        return Err(format!("the launcher ended with {}. {errors}", output.status));
    }
    Ok((text, started.elapsed()))
}
