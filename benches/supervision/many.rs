//! Measures the real `skt-hpl run` over thousands of simulated agents (`forest`): the resources that it uses, and the times at
//! which it notices losses.
//!
//! The launcher is a script that waits. Agents report computing ranks after the journal names the nodes of the launch. Times are
//! those of the journal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use skt_hpl::base::clock::unix_ms;
use skt_hpl::supervise::remember::events::{Event, Record};
use skt_hpl::supervise::remember::journal;
use skt_hpl::supervise::talk::agent::digest_of;

use crate::lab::{Kept, used};
use crate::report::Report;

const TIMEOUT: Duration = Duration::from_secs(240);
/// Time for which the supervisor is measured without a fault.
const WATCHED: Duration = Duration::from_secs(15);
/// Number of nodes in a rack.
const RACK: usize = 200;

/// Result for one number of agents.
#[derive(Default, serde::Serialize)]
struct Row {
    agents: usize,
    connected_s: f64,
    share: f64,
    megabytes: f64,
    one_noticed_s: f64,
    one_relaunched_s: f64,
    rack_noticed_s: f64,
    rack_stopped_s: f64,
    rack_relaunched_s: f64,
    others_lost: usize,
}

/// Removes the socket, which ends the launchers, so that the next measurement has the machine for itself.
impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.folder.join("socket"));
    }
}

struct Stage {
    folder: PathBuf,
    supervisor: Kept,
    _simulator: Kept,
    began_ms: u64,
}

fn name(at: usize) -> String {
    format!("n{at:05}")
}

impl Stage {
    fn up(
        program: &Path,
        folder: &Path,
        (agents, spares): (usize, usize),
        ranks_a_node: u32,
    ) -> Result<Self, String> {
        let say = |e: std::io::Error| format!("{}: {e}", folder.display());
        fs::create_dir_all(folder).map_err(say)?;
        let own = std::env::current_exe().map_err(say)?;
        let (socket, state) = (folder.join("socket"), folder.join("state"));
        let digest = fs::File::open(program).and_then(|f| digest_of(&f)).map_err(say)?;
        let simulator = Command::new(&own)
            .arg("--simulate")
            .args([&socket, &state.join("events.jsonl")])
            .arg(digest)
            .stdin(Stdio::null())
            .spawn()
            .map_err(say)?;
        let simulator = Kept(simulator);
        let until = Instant::now() + TIMEOUT;
        while !socket.exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let list = |from: usize, to: usize| -> String {
            (from..to).map(|n| format!("{} slots={ranks_a_node}\n", name(n))).collect()
        };
        let working = agents - spares;
        fs::write(folder.join("hosts"), list(0, working)).map_err(say)?;
        fs::write(folder.join("spares"), list(working, agents)).map_err(say)?;
        let launcher = folder.join("launcher");
        // The launcher is first asked for its version. Afterwards it waits, like a launcher whose ranks compute. It outlives its
        // supervisor, as launchers must, but not this measurement.
        let script = format!(
            "#!/bin/sh\ncase $1 in --version|-V) echo 'mpirun (Open MPI) 4.1.4'; exit ;; esac\n\
             while kill -0 {} 2>/dev/null && [ -e '{}' ]; do sleep 1; done\n",
            std::process::id(),
            socket.display()
        );
        fs::write(&launcher, script).map_err(say)?;
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)).map_err(say)?;
        let mut command = Command::new(program);
        for (variable, _) in std::env::vars_os() {
            if variable.to_str().is_some_and(|name| name.starts_with("SKT_")) {
                command.env_remove(variable);
            }
        }
        let began_ms = unix_ms();
        let supervisor = command
            .current_dir(folder)
            .args(["run", "--hosts", "hosts", "--spares", "spares", "--state", "state"])
            .arg(format!("--rsh={} --shell {}", own.display(), socket.display()))
            .args(["--launcher", "openmpi", "--launcher-program"])
            .arg(&launcher)
            .args(["--ranks", &(working * ranks_a_node as usize).to_string(), "--no-doubling"])
            .args(["--program", "/bin/true"])
            .stdin(Stdio::null())
            .stdout(fs::File::create(folder.join("out")).map_err(say)?)
            .stderr(fs::File::create(folder.join("err")).map_err(say)?)
            .spawn()
            .map_err(say)?;
        let folder = folder.to_path_buf();
        Ok(Self { folder, supervisor: Kept(supervisor), _simulator: simulator, began_ms })
    }

    fn records(&self) -> Vec<Record> {
        let text = fs::read_to_string(self.folder.join("state/events.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| journal::from_line(line).ok()).collect()
    }

    /// Waits for the `nth` event, counted from 1, for which `is` returns true. Returns its time, in milliseconds since 1970. An
    /// Err reports that the run has ended before, or hangs.
    fn when(&mut self, nth: usize, is: impl Fn(&Event) -> bool) -> Result<u64, String> {
        let until = Instant::now() + TIMEOUT;
        loop {
            if let Some(record) = self.records().iter().filter(|r| is(&r.event)).nth(nth - 1) {
                return Ok(record.at_ms);
            }
            let ended = self.supervisor.0.try_wait().is_ok_and(|status| status.is_some());
            if ended || Instant::now() > until {
                let said = fs::read_to_string(self.folder.join("err")).unwrap_or_default();
                let said: String = said.chars().take(3000).collect();
                return Err(format!("the run {}: {said}", if ended { "ended" } else { "hangs" }));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn cut_power(&self, nodes: &[String]) -> Result<u64, String> {
        let at_ms = unix_ms();
        crate::forest::cut_power(&self.folder.join("socket"), nodes).map_err(|e| e.to_string())?;
        Ok(at_ms)
    }
}

fn size(program: &Path, folder: &Path, agents: usize, ranks_a_node: u32) -> Result<Row, String> {
    let rack = RACK.min(agents / 5);
    let spares = rack + rack / 4 + 2;
    let mut stage = Stage::up(program, folder, (agents, spares), ranks_a_node)?;
    let launched = |e: &Event| matches!(e, Event::Launched { .. });
    let computing = |e: &Event| matches!(e, Event::Computing { .. });
    let fault = |e: &Event| matches!(e, Event::Fault { .. });
    let stopped = |e: &Event| matches!(e, Event::Stopped { .. });
    let seconds = |from_ms: u64, to_ms: u64| (to_ms as f64 - from_ms as f64) / 1e3;
    let mut row = Row { agents, ..Row::default() };
    row.connected_s = seconds(stage.began_ms, stage.when(1, launched)?);
    stage.when(1, computing)?;
    std::thread::sleep(Duration::from_secs(2));
    let pid = stage.supervisor.0.id() as i32;
    let before = used(pid).ok_or("the supervisor is gone")?;
    let since = Instant::now();
    std::thread::sleep(WATCHED);
    let after = used(pid).ok_or("the supervisor is gone")?;
    row.share = (after.cpu_s - before.cpu_s) / since.elapsed().as_secs_f64();
    row.megabytes = after.resident_bytes as f64 / 1e6;

    let one = agents / 3 + 1;
    let failed_ms = stage.cut_power(&[name(one)])?;
    row.one_noticed_s = seconds(failed_ms, stage.when(1, fault)?);
    row.one_relaunched_s = seconds(failed_ms, stage.when(2, launched)?);
    stage.when(2, computing)?;
    std::thread::sleep(Duration::from_secs(3));

    let from = agents / 2;
    let nodes: Vec<String> = (from..from + rack).map(name).collect();
    let failed_ms = stage.cut_power(&nodes)?;
    row.rack_noticed_s = seconds(failed_ms, stage.when(2, fault)?);
    row.rack_stopped_s = seconds(failed_ms, stage.when(2, stopped)?);
    row.rack_relaunched_s = seconds(failed_ms, stage.when(3, launched)?);
    let failed = |node: &String| *node == name(one) || nodes.contains(node);
    let records = stage.records();
    let lost = records.iter().filter_map(|r| match &r.event {
        Event::NodeLost { node, .. } => Some(node),
        _ => None,
    });
    row.others_lost = lost.filter(|node| !failed(node)).count();
    Ok(row)
}

pub fn measure(
    program: &Path,
    sizes: &[usize],
    ranks_a_node: u32,
    report: &mut Report,
) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut rows = Vec::new();
    for agents in sizes {
        let folder = folder.path().join(agents.to_string());
        let row = size(program, &folder, *agents, ranks_a_node)?;
        let what = |text: &str| format!("{agents} agents of {ranks_a_node} rank(s): {text}");
        report.at_most(&what("all connected after, s"), row.connected_s, 60.0);
        report.at_most(&what("supervisor's share of a core"), row.share, 0.5);
        report.at_most(&what("supervisor's memory, MB"), row.megabytes, 1000.0);
        report.at_most(&what("a silent loss noticed after, s"), row.one_noticed_s, 5.0);
        report.at_most(&what("a rack's loss noticed after, s"), row.rack_noticed_s, 6.0);
        let rest = row.rack_relaunched_s - row.rack_noticed_s;
        report.at_most(&what("relaunched after that, s"), rest, 10.0);
        report.at_most(&what("nodes lost that were well"), row.others_lost as f64, 0.0);
        rows.push(row);
    }
    let heads = [
        "agents",
        "connected, s",
        "share of a core",
        "MB",
        "one noticed, s",
        "relaunched, s",
        "rack noticed, s",
        "stopped, s",
        "relaunched, s",
    ];
    let cells = rows.iter().map(|r| {
        let mut cells = vec![r.agents.to_string(), format!("{:.1}", r.connected_s)];
        cells.push(format!("{:.3}", r.share));
        cells.push(format!("{:.0}", r.megabytes));
        let times = [
            r.one_noticed_s,
            r.one_relaunched_s,
            r.rack_noticed_s,
            r.rack_stopped_s,
            r.rack_relaunched_s,
        ];
        cells.extend(times.map(|s| format!("{s:.1}")));
        cells
    });
    report.table(
        &format!(
            "Many nodes of {ranks_a_node} rank(s): seconds after the start, and after the loss"
        ),
        &heads,
        cells.collect(),
    );
    report.keep("many", &rows);
    report.write()
}
