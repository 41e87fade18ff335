//! `skt-hpl burnin`: finds nodes and links that are slower than their peers, and nodes that compute wrong results.
//!
//! First the doctor checks the nodes. Then a pass ([`pass`]) measures nodes and links, and HPL runs in a loop under the
//! supervisor ([`hpl`]). A second pass measures the warm nodes. A slow node or link is named if two passes are sure that it is
//! slow. If only one pass is sure, a third pass decides.

mod hpl;
mod pass;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::doctor::{self, DoctorFlags};
use super::json_flag;
use super::node_flags::NodeFlags;
use super::run;
use crate::base::clock::unix_ms;
use crate::base::exit::{Exit, Refusal};
use crate::base::host_name;
use crate::base::params::Device;
use crate::base::units::{duration, some_time};
use crate::burnin::document::{self, Document, Finding};
use crate::burnin::probe::{self, Extent};
use crate::burnin::samples::{Here, Said};
use crate::burnin::verdict::{Judged, Tolerance, Wrong, named, undecided};
use crate::comm::World;
use crate::config::settings::other_than_stdout;
use crate::shm::room;
use crate::supervise::remember::folder::Folder;
use crate::supervise::signals::asked_by_signal;
use crate::supervise::start::hosts::Host;
use crate::supervise::start::room::maps;
use crate::supervise::talk::processes::kernel;
use crate::supervise::talk::shell::RemoteShell;

const COMPARING: &str = "Comparing";

const INTERRUPTED: &str = "interrupted by a signal; the burn-in has ended all its jobs";

#[derive(Clone, Debug, Args)]
#[command(trailing_var_arg = true)]
pub struct BurninFlags {
    #[command(flatten)]
    pub nodes: NodeFlags,

    /// Time of the whole burn-in.
    ///
    /// Two passes over many nodes, or over busy nodes, may take longer.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10min", help_heading = COMPARING)]
    pub time: Duration,

    /// Folder of this burn-in, for the output of the ranks and the HPL runs
    #[arg(long, value_name = "DIR", default_value = "skt-hpl.burnin", help_heading = COMPARING)]
    pub state: PathBuf,

    /// Write all measurements and findings to FILE as JSON
    #[arg(long, value_name = "FILE", value_parser = other_than_stdout, help_heading = COMPARING)]
    pub json: Option<PathBuf>,

    /// Tolerated slowdown of a node, compared with its peers
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "2%", help_heading = COMPARING)]
    pub tolerance: f64,

    /// Tolerated loss of bandwidth of a link, compared with its peers
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "5%", help_heading = COMPARING)]
    pub bandwidth_tolerance: f64,

    /// Tolerated excess latency of a link, compared with its peers
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "25%", help_heading = COMPARING)]
    pub latency_tolerance: f64,

    /// Cores of each node that multiply and copy [default: all]
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide_default_value = true, help_heading = COMPARING)]
    pub cores: usize,

    /// Time of each single measurement
    #[arg(long, value_name = "TIME", value_parser = some_time, default_value = "80ms", help_heading = COMPARING)]
    pub slot: Duration,

    /// Compare devices in place of nodes and links.
    ///
    /// The slots of a node in the host file are its devices. --time has no effect. HPL runs on devices with `skt-hpl run
    /// --device`.
    #[arg(long, value_name = "DEVICE", value_enum, default_value_t = Device::None, requires = "no_hpl",
          hide_short_help = true, help_heading = COMPARING)]
    pub device: Device,

    /// Compare only nodes and links, without HPL runs
    #[arg(long, conflicts_with = "bench", help_heading = COMPARING)]
    pub no_hpl: bool,

    /// Flags of the benchmark for the HPL runs [default: a size that fits memory and time]
    #[arg(value_name = "BENCHMARK FLAGS", allow_hyphen_values = true)]
    pub bench: Vec<OsString>,
}

/// Parses `2%`, `2 %` or `2` as a fraction.
fn percent(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(value) if (0.0..100.0).contains(&value) => Ok(value / 100.0),
        _ => Err("a percentage from 0 to below 100 is needed, such as 2%".to_owned()),
    }
}

pub fn run(flags: &BurninFlags) -> ExitCode {
    burn_in(flags).map_or_else(|refusal| super::say_refusal("burnin", refusal), Exit::into)
}

/// Runs one rank of a pass, which measures this node and its links, or a device. A pass has one rank on each node, or for each
/// device.
pub fn rank(extent: &Extent) -> ExitCode {
    // Open MPI binds each rank of a small job to a single core. Without this call, all other cores would not be measured.
    crate::base::cores::take_all();
    let threads = if extent.threads == 0 { crate::base::cores::count() } else { extent.threads };
    let here = Here {
        machine: kernel(),
        host: host_name(),
        threads,
        memory_free_bytes: room::available_bytes().unwrap_or(0),
        ..Here::default()
    };
    let world = World::init(false);
    probe::run(world.comm(), extent, here, |said: &Said| {
        // If rank 0 cannot print, the error cannot be reported either.
        let _ = crate::base::terminal::put(crate::burnin::samples::line(said).as_bytes());
    });
    Exit::Passed.into()
}

/// Refuses flags that the benchmark would not accept, before the measurements begin.
fn check_bench(bench: &[OsString]) -> Result<(), Refusal> {
    if bench.is_empty() {
        return Ok(());
    }
    run::plan(bench, &BurninFlags::augment_args(clap::Command::new("skt-hpl burnin")))?;
    let is_json = |word: &OsString| {
        let word = word.to_string_lossy();
        word == "--json" || word.starts_with("--json=")
    };
    if bench.iter().any(is_json) {
        let why = "--json after a flag of the benchmark applies to each HPL run, which overwrites the file: put --json before these flags";
        return Err(Refusal::usage(why));
    }
    Ok(())
}

fn burn_in(flags: &BurninFlags) -> Result<Exit, Refusal> {
    let began = Instant::now();
    let json = flags.json.clone().map(Some);
    check_bench(&flags.bench)?;
    let nodes = flags.nodes.some_nodes(Duration::ZERO)?;
    let ranks = |host: &Host| if flags.device == Device::None { 1 } else { host.slots };
    let hosts = nodes.hosts.iter().chain(&nodes.spares);
    let hosts: Vec<Host> = hosts.map(|host| Host::new(&host.name, ranks(host))).collect();
    let names = names_of(&hosts, flags.device);
    if flags.device != Device::None && maps(&flags.nodes.launcher()?.1) {
        let why = "--launcher-args maps ranks, but with --device each node's ranks must follow each other, so that devices can be named";
        return Err(Refusal::usage(why));
    }
    if names.len() < 2 {
        let why = match flags.device {
            Device::None => "a single node has no peers for a comparison: name two or more nodes",
            _ => {
                "a single device has no peers for a comparison: state the devices of each node (`n1 slots=8`)"
            }
        };
        return Err(Refusal::usage(why));
    }
    run::usable(&flags.nodes.launcher()?.0, &flags.state)?;
    Folder::new(&flags.state).prepare().map_err(Refusal::environment)?;
    json_flag::ready(&json, [])?;
    refuse_problems(&flags.nodes)?;
    let tolerance = Tolerance {
        node: flags.tolerance,
        bandwidth: flags.bandwidth_tolerance,
        latency: flags.latency_tolerance,
    };
    let short = pass::too_short(names.len(), flags.time, flags.slot);
    if let Some(words) = short.filter(|_| flags.device == Device::None) {
        tell!("skt-hpl burnin: {words}");
    }
    let mut document = Document::new(tolerance, names.len(), unix_ms() / 1000);
    document.of_devices = flags.device != Device::None;
    let first = pass::measure(flags, &nodes.shell, &hosts, &mut document)?;
    if !flags.no_hpl {
        let until = flags.time.saturating_sub(first.took);
        document.hpl = hpl::repeat(flags, &nodes.hosts, &first, began, until)?;
    }
    let mut passes: Vec<Judged> = vec![first.judged];
    let failed = measure_again(flags, &nodes.shell, &hosts, &mut document, &mut passes)?;
    document.findings = findings(&names, &passes);
    let of_hpl = document::hpl_findings(&document.hpl, &document.findings);
    document.findings.extend(of_hpl);
    document.seconds = began.elapsed().as_secs_f64();
    if let Some(Refusal { exit, why }) = failed {
        if document.findings.is_empty() {
            return Err(Refusal { exit, why });
        }
        tell!(
            "skt-hpl burnin: the findings are those of the passes so far; a further pass could not be measured: {why}"
        );
    }
    Ok(answer(&json, &document))
}

/// Refuses nodes on which the doctor finds a problem. The doctor does not start MPI here.
fn refuse_problems(nodes: &NodeFlags) -> Result<(), Refusal> {
    let looked = doctor::examine(&DoctorFlags {
        nodes: nodes.clone(),
        no_mpi: true,
        mpi_timeout: Duration::from_secs(60),
        bench: Vec::new(),
    })?;
    if looked > 0 {
        let why = format!(
            "the burn-in did not begin: first correct the {looked} problem(s) printed above"
        );
        return Err(Refusal::environment(why));
    }
    Ok(())
}

/// Returns the names of the nodes, or of all devices of the nodes.
fn names_of(hosts: &[Host], device: Device) -> Vec<String> {
    let of = |host: &Host| -> Vec<String> {
        match device {
            Device::None => vec![host.name.clone()],
            _ => (0..host.slots).map(|number| format!("{} device {number}", host.name)).collect(),
        }
    };
    hosts.iter().flat_map(of).collect()
}

/// Measures further passes as long as the verdict needs them. Returns the refusal of a pass that could not be measured; `None` if
/// the verdict is final. Returns an error if a signal interrupts a pass.
fn measure_again(
    flags: &BurninFlags,
    shell: &RemoteShell,
    hosts: &[Host],
    document: &mut Document,
    passes: &mut Vec<Judged>,
) -> Result<Option<Refusal>, Refusal> {
    loop {
        let decided = match passes.len() {
            1 => flags.no_hpl && !passes[0].leans,
            2 => !undecided(passes),
            _ => true,
        };
        if decided {
            return Ok(None);
        }
        match pass::measure(flags, shell, hosts, document) {
            Ok(pass) => passes.push(pass.judged),
            Err(refusal) if asked_by_signal() => return Err(refusal),
            // A node may have failed since the earlier passes, whose findings must not be lost.
            Err(refusal) => return Ok(Some(refusal)),
        }
    }
}

/// Returns the findings of all passes together.
fn findings(names: &[String], passes: &[Judged]) -> Vec<Finding> {
    let wrong: Vec<Wrong> = passes.iter().flat_map(|pass| pass.wrong.clone()).collect();
    let torn: BTreeSet<Vec<usize>> = passes.iter().flat_map(|pass| pass.torn.clone()).collect();
    document::findings(names, &named(passes), &Wrong::merged(&wrong), &Vec::from_iter(torn))
}

/// Prints the document as text, writes it to the file of --json, and returns the exit status.
fn answer(json: &Option<Option<PathBuf>>, document: &Document) -> Exit {
    let written = json_flag::answer(json, document, String::new);
    let found = match (&written, document.findings.is_empty()) {
        (_, false) => Exit::Suspect,
        (Ok(_), true) => Exit::Passed,
        (Err(Refusal { exit, .. }), true) => *exit,
    };
    // Stdout already has the progress of the burn-in. The JSON document goes to stdout only if the file of --json is stdout.
    let mut text = written.unwrap_or_else(|Refusal { why, .. }| {
        tell!("skt-hpl burnin: {why}");
        String::new()
    });
    text += &document.text();
    crate::base::terminal::print_then(text.as_bytes(), found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_given_in_per_cent() {
        assert_eq!(percent("2%"), Ok(0.02));
        assert_eq!(percent(" 2.5 % "), Ok(0.025));
        assert_eq!(percent("0"), Ok(0.0));
        for bad in ["", "x", "100%", "-1", "NaN"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
