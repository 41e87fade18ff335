//! `skt-hpl tune`: starts jobs that time parts of runs, searches for the best parameters, and writes these.
//!
//! DIR/tune.json keeps every measurement. The search itself keeps no state. A resumed search gets the earlier measurements again,
//! reaches the same point, and continues from there. So a search can be interrupted at any time.

mod jobs;
mod kept;
mod table;
pub mod trials;
mod written;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use self::jobs::Jobs;
use self::kept::{KEPT, Kept};
use self::table::{Table, report};
use self::written::{dat, launch_text, write};
use super::json_flag;
use super::launchers::usual_words;
use super::passing::Passing;
use super::template::own_program;
use super::this_machine;
use crate::base::cores;
use crate::base::exit::{Exit, Refusal};
use crate::base::params::Device;
use crate::base::topology::Topology;
use crate::base::units::{seconds, show_seconds};
use crate::device::DeviceFacts;
use crate::model::planner::DEVICE_PEAK;
use crate::supervise::signals::{asked_by_signal, listen_to_signals};
use crate::tune::estimate::{self, Care};
use crate::tune::search::search;
use crate::tune::space::{DEVICE_NBS, Domain, USUAL_NBS, layouts};

const SEARCH: &str = "The search";

/// Durations are written `90s`, `20min`, `2h`.
#[derive(Debug, Args)]
pub struct TuneFlags {
    /// Order of the matrix.
    ///
    /// The default fills four fifths of the free memory, with --device of the devices' memory. A resumed search keeps its order.
    #[arg(short, long, value_name = "N", help_heading = "The problem")]
    n: Option<usize>,

    /// Number of nodes
    #[arg(long, value_name = "COUNT", default_value_t = 1, help_heading = "The problem")]
    nodes: usize,

    /// Cores of each node [default: the cores of this machine]
    #[arg(long, value_name = "COUNT", help_heading = "The problem")]
    cores: Option<usize>,

    /// Device of each rank, which keeps the matrix in its memory
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Device::None,
          hide_short_help = true, help_heading = "The problem")]
    device: Device,

    /// Time of the search
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "20min", help_heading = SEARCH)]
    budget: f64,

    /// Try only these block sizes
    #[arg(long, value_name = "NB", value_delimiter = ',', help_heading = SEARCH)]
    nb: Vec<usize>,

    /// Try only these process rows, each with the value of -q at the same place in the list
    #[arg(short, long, value_name = "P", value_delimiter = ',', requires = "q", help_heading = SEARCH)]
    p: Vec<usize>,

    /// Try only these process columns
    #[arg(short, long, value_name = "Q", value_delimiter = ',', requires = "p", help_heading = SEARCH)]
    q: Vec<usize>,

    /// Try only these numbers of ranks a node.
    ///
    /// By default the search tries the number that suits the node's caches, twice this number, one for each NUMA node, a single
    /// rank, and one for each core; with --device one for each device. With -p and -q it also tries the numbers that fill these
    /// grids.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', help_heading = SEARCH)]
    ranks_per_node: Vec<usize>,

    /// Try these BLAS libraries in addition to the linked one
    #[arg(long, value_name = "LIBRARY", value_delimiter = ',', help_heading = SEARCH)]
    blas: Vec<String>,

    /// Command that starts a job [default: mpirun, with equal ranks on each node, not bound].
    ///
    /// {ranks} stands for the number of ranks, {per_node} for the ranks of a node, {threads} for the threads of a rank.
    #[arg(long, value_name = "WORDS", help_heading = SEARCH)]
    launch_command: Option<String>,

    /// Program to measure [default: this one]
    #[arg(long, value_name = "FILE", help_heading = SEARCH)]
    program: Option<PathBuf>,

    /// Keep the measurements in DIR, continue from them, and write the result there.
    ///
    /// The result is HPL.dat, skt.toml, launch.sh, job.slurm and tune.svg.
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    write: Option<PathBuf>,

    /// Forget the measurements of an earlier search in DIR
    #[arg(long, requires = "write", help_heading = "Results")]
    new: bool,

    /// Write JSON to FILE; without FILE, or with `-`, print JSON in place of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, help_heading = "Results")]
    json: Option<Option<PathBuf>>,
}

pub fn run(flags: &TuneFlags) -> ExitCode {
    super::print_or_refuse("tune", tune(flags))
}

fn tune(flags: &TuneFlags) -> Result<String, Refusal> {
    let (domain, wanted) = domain(flags)?;
    let program = flags.program.clone().map_or_else(own_program, Ok)?;
    // From here on a signal does not end this process at once: the search first ends its job and removes its folder.
    listen_to_signals().map_err(Refusal::environment)?;
    let own;
    let dir = match &flags.write {
        Some(dir) => {
            fs::create_dir_all(dir)
                .map_err(|e| Refusal::environment(format!("cannot make {}: {e}", dir.display())))?;
            dir.as_path()
        }
        None => {
            own = Passing::new("tune", flags.nodes > 1 || flags.launch_command.is_some())
                .map_err(|why| Refusal::environment(format!("{why}, or give --write DIR")))?;
            own.path()
        }
    };
    // The search reads some files in the folder of --write, and writes others at its end. The document must replace none of them.
    let names = written::FILES.iter().chain(&jobs::FILES).map(|name| dir.join(name));
    json_flag::ready(&flags.json, &names.collect::<Vec<PathBuf>>())?;
    let kept = begin(flags, dir, domain, wanted)?;
    let wanted = kept.n;
    let table = Table::new(flags.budget);
    let mut jobs = Jobs::new(kept, dir, program.clone(), table);
    if wanted > jobs.kept.domain.n {
        tell!(
            "skt-hpl tune: measures N = {} in place of N = {wanted}, because the search time of {} (--budget) is too short for larger N",
            jobs.kept.domain.n,
            show_seconds(flags.budget)
        );
    }
    let domain = jobs.kept.domain.clone();
    let tuned = search(&domain, flags.budget, &mut jobs);
    jobs.table.end();
    let _ = fs::remove_file(&jobs.trials);
    let tuned = tuned.map_err(|why| unfinished(flags, dir, why))?;
    jobs.kept.tuned = Some(tuned.clone());
    jobs.save().map_err(Refusal::environment)?;
    let engine = jobs.engine_of(&tuned.best);
    let n = order(flags, wanted, tuned.best.test.nb);
    let mut text = json_flag::answer(&flags.json, &tuned, || report(&tuned, n, &engine))?;
    let document_alone = json_flag::instead(&flags.json);
    if flags.write.is_some() {
        let names = write(dir, &tuned, n, &jobs.kept.launcher, &program, domain.nodes)?;
        if !document_alone {
            text += &format!("\nWritten to {}: {}\n", dir.display(), names.join(", "));
        }
    } else if !document_alone {
        text += &format!(
            "\nStart the best run with\n  {}\nand this HPL.dat (--write DIR writes all these files):\n\n{}",
            launch_text(&jobs.kept.launcher, &tuned.best, domain.nodes, &program),
            dat(&tuned, n)
        );
    }
    Ok(text)
}

/// Returns the error of a search that ended early, for the reason `why`. If a signal ended the search, and --write keeps the
/// measurements, the error says how to resume.
fn unfinished(flags: &TuneFlags, dir: &Path, why: String) -> Refusal {
    if flags.write.is_none() || !asked_by_signal() {
        return Refusal::environment(why);
    }
    let on = format!("the same command resumes with the measurements in {}", dir.display());
    Refusal::new(Exit::Stopped, format!("{why}; {on}"))
}

/// Returns the order of the matrix to run: `wanted`, rounded down to a multiple of `nb` unless the user gave N.
fn order(flags: &TuneFlags, wanted: usize, nb: usize) -> usize {
    match wanted - wanted % nb {
        whole if flags.n.is_none() && whole > 0 => whole,
        _ => wanted,
    }
}

/// Returns the order of the matrix for which the search finds parameters: the user's N, or a matrix that fills four fifths of the
/// free memory, of the `devices` if there are any.
fn wanted(flags: &TuneFlags, devices: Option<Devices>) -> Result<usize, Refusal> {
    if let Some(n) = flags.n {
        return match n {
            0 => Err(Refusal::usage("-n 0 leaves nothing to tune: give 1 or more")),
            n => Ok(n),
        };
    }
    let memory = match devices {
        Some(Devices { used, free_bytes }) => used as f64 * free_bytes as f64,
        None => this_machine::memory("; give -n")?,
    };
    Ok((0.8 * memory * flags.nodes as f64 / 8.0).sqrt() as usize)
}

/// Devices of a node in a search.
#[derive(Clone, Copy)]
struct Devices {
    /// Smallest number of devices that a layout of the search uses.
    used: usize,
    /// Least free memory of a device.
    free_bytes: u64,
}

impl Devices {
    fn of(flags: &TuneFlags, found: &[DeviceFacts]) -> Self {
        let grids = flags.p.iter().zip(&flags.q);
        let of_grids = grids.map(|(p, q)| p.saturating_mul(*q) / flags.nodes);
        let fewest = flags.ranks_per_node.iter().copied().chain(of_grids).min();
        Self {
            used: fewest.unwrap_or(found.len()).clamp(1, found.len()),
            free_bytes: found.iter().map(|device| device.free_bytes).min().unwrap_or(0),
        }
    }
}

/// Largest total number of cores that --nodes and --cores may give: a hundred times the cores of the largest machine.
const CORES_MOST: usize = 1 << 30;

/// Returns the values among which the search chooses, from the flags and this machine, and the order of the matrix to run.
fn domain(flags: &TuneFlags) -> Result<(Domain, usize), Refusal> {
    let cores = flags.cores.unwrap_or_else(cores::count);
    let positive = |numbers: &[usize]| numbers.iter().all(|&number| number > 0);
    let numbers = [&flags.nb, &flags.p, &flags.q, &flags.ranks_per_node];
    if cores == 0 || flags.nodes == 0 || !numbers.iter().all(|numbers| positive(numbers)) {
        return Err(Refusal::usage(
            "numbers of cores, nodes, ranks, rows, columns and NB must be 1 or more",
        ));
    }
    if flags.nodes.checked_mul(cores).is_none_or(|all| all > CORES_MOST) {
        return Err(Refusal::usage("--nodes and --cores make more cores than any machine has"));
    }
    if flags.p.len() != flags.q.len() {
        return Err(Refusal::usage(
            "-p and -q must have the same number of values: the values form grids in pairs, as in HPL.dat",
        ));
    }
    let grids: Vec<(usize, usize)> = flags.p.iter().copied().zip(flags.q.iter().copied()).collect();
    if grids.iter().any(|(p, q)| p.checked_mul(*q).is_none_or(|ranks| ranks > CORES_MOST)) {
        return Err(Refusal::usage(
            "-p and -q make a grid of more ranks than any machine has cores",
        ));
    }
    // If --cores describes the machine, nothing but the number of its cores is known.
    let (suits, memories) = match flags.cores {
        None => (this_machine::layout().ranks, Topology::here().memories_of(cores::bound_to())),
        Some(cores) => (Topology::even(cores, 1).layout().ranks, 1),
    };
    let found = (flags.device == Device::Cuda).then(this_machine::devices).transpose()?;
    let devices = found.as_ref().map(|found| Devices::of(flags, found));
    let mut ranks_per_node = match (flags.device, &found) {
        _ if !flags.ranks_per_node.is_empty() => flags.ranks_per_node.clone(),
        (_, Some(found)) => vec![found.len()],
        (Device::None, None) => layouts(cores, &[suits, memories, 1, 2 * suits, cores]),
        (_, None) => vec![1],
    };
    if flags.ranks_per_node.is_empty() {
        // The grids of -p and -q determine further numbers of ranks.
        for ranks in grids.iter().map(|(p, q)| p * q) {
            let each = ranks / flags.nodes;
            if ranks.is_multiple_of(flags.nodes) && !ranks_per_node.contains(&each) {
                ranks_per_node.push(each);
            }
        }
    }
    let (free, nbs) = (flags.nb.is_empty(), flags.nb.clone());
    let nbs = match devices {
        _ if !free => nbs,
        Some(_) => DEVICE_NBS.to_vec(),
        None => USUAL_NBS.to_vec(),
    };
    let peak = match devices {
        Some(Devices { used, .. }) => used as f64 * DEVICE_PEAK,
        None => cores as f64 * this_machine::peak_per_core().unwrap_or(3e10),
    };
    let wanted = wanted(flags, devices)?;
    let n =
        trial_size(wanted, nbs[0], cores * flags.nodes, peak * flags.nodes as f64, flags.budget);
    let mut blas: Vec<Option<String>> = vec![None];
    blas.extend(flags.blas.iter().cloned().map(Some));
    let (nodes, device) = (flags.nodes, flags.device);
    let domain =
        Domain { n, nodes, cores, ranks_per_node, nbs, nb_is_free: free, grids, blas, device };
    Ok((domain, wanted))
}

/// Returns the order of the matrix whose parts are timed. The order is `wanted`, or smaller if too few trials of `wanted` fit in
/// `budget` seconds. Blocks have size `nb`. All `cores` together generate the matrix, and `peak` is the flop/s of the machine.
fn trial_size(wanted: usize, nb: usize, cores: usize, peak: f64, budget: f64) -> usize {
    /// Number of trials that a search should have time for.
    const TRIALS: f64 = 60.0;
    /// Seconds for each trial that the start of its job takes.
    const START_S: f64 = 0.3;
    let rate = 0.7 * peak;
    let generating = 2e8 * cores as f64;
    let seconds = |n: f64| {
        let whole = 2.0 / 3.0 * n.powi(3) / rate;
        estimate::part(n as usize, nb, Care::Rough) * whole + n * n / generating + START_S
    };
    let mut n = wanted as f64;
    while n > 2000.0 && seconds(n) * TRIALS > budget.max(1.0) {
        n *= 0.95;
    }
    if n < wanted as f64 { (n / 1000.0).ceil() as usize * 1000 } else { wanted }
}

/// Resumes the search whose measurements are in `dir`. Begins a new search of order `n` if there are none, or if the flags have
/// --new or no --write. Returns an error if the file contains another search.
fn begin(flags: &TuneFlags, dir: &Path, domain: Domain, n: usize) -> Result<Kept, Refusal> {
    let file = dir.join(KEPT);
    let launcher = flags.launch_command.clone().unwrap_or_else(|| usual_words(domain.nodes));
    let fresh = Kept { domain, launcher, n, measured: Vec::new(), tuned: None };
    if flags.new || flags.write.is_none() {
        return Ok(fresh);
    }
    let text = match fs::read(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(fresh),
        Err(error) => {
            return Err(Refusal::environment(format!("cannot read {}: {error}", file.display())));
        }
    };
    let told = |what: &str| {
        Refusal::bad_input(format!(
            "{} {what}; --new discards the measurements in this file; another --write DIR keeps this file",
            file.display()
        ))
    };
    let mut kept: Kept =
        serde_json::from_slice(&text).map_err(|error| told(&format!("cannot be read: {error}")))?;
    let mut asked = fresh;
    if flags.n.is_none() {
        // The free memory, and with it the default order, changes from moment to moment. The search keeps its first order.
        (asked.n, asked.domain.n) = (kept.n, kept.domain.n);
    }
    let other = differences(&kept, &asked);
    if !other.is_empty() {
        return Err(told(&format!("is of another search ({})", other.join("; "))));
    }
    // If a job ended during a measurement, the machine may have been the cause, so the measurement is repeated.
    kept.measured.retain(|m| !m.job_ended);
    if !kept.measured.is_empty() {
        let spent: f64 = kept.measured.iter().map(|m| m.spent).sum();
        tell!(
            "skt-hpl tune: resumes with N = {}: {} measurements, which took {}, are in {}",
            kept.n,
            kept.measured.len(),
            show_seconds(spent),
            file.display()
        );
    }
    Ok(Kept { tuned: None, ..kept })
}

/// Returns the differences between the kept search and the search that the flags describe. Each difference names its flag.
fn differences(kept: &Kept, asked: &Kept) -> Vec<String> {
    let (was, is) = (&kept.domain, &asked.domain);
    let list = |numbers: &[usize]| {
        let words: Vec<String> = numbers.iter().map(usize::to_string).collect();
        words.join(",")
    };
    let nbs = |domain: &Domain| {
        format!("{}{}", list(&domain.nbs), if domain.nb_is_free { " and others" } else { "" })
    };
    let grids = |domain: &Domain| {
        if domain.grids.is_empty() {
            "any".to_owned()
        } else {
            let words: Vec<String> = domain.grids.iter().map(|(p, q)| format!("{p}x{q}")).collect();
            words.join(",")
        }
    };
    let blas = |domain: &Domain| {
        let words: Vec<&str> = domain.blas.iter().flatten().map(String::as_str).collect();
        if words.is_empty() { "the linked one".to_owned() } else { words.join(",") }
    };
    let rows = [
        ("-n", kept.n.to_string(), asked.n.to_string()),
        ("N of the trials, by --budget", was.n.to_string(), is.n.to_string()),
        ("--nodes", was.nodes.to_string(), is.nodes.to_string()),
        ("--cores", was.cores.to_string(), is.cores.to_string()),
        ("--device", was.device.name().to_owned(), is.device.name().to_owned()),
        ("--ranks-per-node", list(&was.ranks_per_node), list(&is.ranks_per_node)),
        ("--nb", nbs(was), nbs(is)),
        ("-p and -q", grids(was), grids(is)),
        ("--blas", blas(was), blas(is)),
        ("--launch-command", kept.launcher.clone(), asked.launcher.clone()),
    ];
    let differ = rows.into_iter().filter(|(_, was, is)| was != is);
    differ.map(|(what, was, is)| format!("{what}: {was} there, {is} now")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four nodes of 64 cores with AVX-512 at 2.5 GHz. Each of 60 trials generates a matrix and times 0.23 % of a run.
    #[test]
    fn a_large_matrix_is_tried_as_it_is_where_its_trials_fit() {
        let size = |n, minutes: f64| trial_size(n, USUAL_NBS[0], 256, 256.0 * 80e9, 60.0 * minutes);
        assert_eq!(size(500_000, 20.0), 500_000);
        assert_eq!(size(200_000, 20.0), 200_000);
        let less = size(500_000, 5.0);
        assert!((100_000..400_000).contains(&less) && less.is_multiple_of(1000), "{less}");
        assert!(size(5_000_000, 20.0) < 1_000_000);
        assert!(size(usize::MAX, 20.0) < 1_000_000);
        assert_eq!(size(1000, 0.0), 1000, "as small as any");
    }

    /// Differences in every field of a domain are named. If a field were forgotten, a search could resume with another domain.
    #[test]
    fn what_differs_is_named() {
        let kept = |domain: Domain| Kept {
            domain,
            launcher: "mpirun -np {ranks}".into(),
            n: 12_000,
            measured: Vec::new(),
            tuned: None,
        };
        let plain = || Domain::of_cores(2);
        let is = |other: Kept| differences(&kept(plain()), &other);
        assert!(is(kept(plain())).is_empty());
        let cases = [
            (Domain { n: 9000, ..plain() }, "N of the trials, by --budget: 12000 there, 9000 now"),
            (Domain { nodes: 2, ..plain() }, "--nodes: 1 there, 2 now"),
            (Domain { cores: 3, ..plain() }, "--cores: 2 there, 3 now"),
            (Domain { ranks_per_node: vec![7], ..plain() }, "7 now"),
            (Domain { nbs: vec![20], ..plain() }, "--nb: "),
            (Domain { nb_is_free: false, ..plain() }, "and others there"),
            (Domain { grids: vec![(1, 2)], ..plain() }, "-p and -q: any there, 1x2 now"),
            (
                Domain { blas: vec![None, Some("x.so".into())], ..plain() },
                "--blas: the linked one there, x.so now",
            ),
        ];
        for (domain, words) in cases {
            let told = is(kept(domain));
            assert!(told.len() == 1 && told[0].contains(words), "{words}: {told:?}");
        }
        assert_eq!(is(Kept { n: 1, ..kept(plain()) }), ["-n: 12000 there, 1 now"]);
        let told = is(Kept { launcher: "srun".into(), ..kept(plain()) });
        assert_eq!(told, ["--launch-command: mpirun -np {ranks} there, srun now"]);
    }
}
