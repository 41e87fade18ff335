//! `--race`: compares every library and every program at its best.
//!
//! The best NB and grid differ from program to program. So each program is measured in all cases, and its best median counts.
//! Libraries, and the program's own kernels, multiply with k = NB on the whole machine.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::json;
use skt_hpl::kernels::{Engine, Loaded};
use skt_hpl::shm::room;

use crate::cases::{Case, Flags};
use crate::job::{self, Launcher, Who};
use crate::kernels::{self, Multiplication};
use crate::{stats, table};

/// Rates by program and case, in the order of the first round.
#[derive(Default)]
struct Rates {
    names: Vec<String>,
    columns: Vec<String>,
    samples: BTreeMap<(usize, usize), Vec<f64>>,
}

impl Rates {
    fn add(&mut self, name: &str, column: &str, rate: f64) {
        let place = |list: &mut Vec<String>, what: &str| {
            list.iter().position(|known| known == what).unwrap_or_else(|| {
                list.push(what.to_owned());
                list.len() - 1
            })
        };
        let at = (place(&mut self.names, name), place(&mut self.columns, column));
        self.samples.entry(at).or_default().push(rate);
    }

    fn median(&self, name: usize, column: usize) -> Option<f64> {
        stats::median(self.samples.get(&(name, column))?)
    }

    /// Returns the best median in a case, among the names for which `ours` returns true. None if there is none.
    fn best_in(&self, column: usize, ours: impl Fn(&str) -> bool) -> Option<f64> {
        let picked = (0..self.names.len()).filter(|&name| ours(&self.names[name]));
        picked.filter_map(|name| self.median(name, column)).reduce(f64::max)
    }

    /// Returns the best median over all cases, among the names for which `ours` returns true.
    fn best(&self, ours: impl Fn(&str) -> bool) -> Option<f64> {
        (0..self.columns.len()).filter_map(|column| self.best_in(column, &ours)).reduce(f64::max)
    }

    /// Returns true if the median of `name` in a case is below [`BEATEN`] times the best median of `ours`. It is then not
    /// measured in this case again.
    fn is_beaten(&self, name: &str, column: &str, ours: impl Fn(&str) -> bool) -> bool {
        let at = |list: &[String], what: &str| list.iter().position(|known| known == what);
        let Some(column) = at(&self.columns, column) else { return false };
        let own = at(&self.names, name).and_then(|name| self.median(name, column));
        own.zip(self.best_in(column, ours)).is_some_and(|(own, best)| own < BEATEN * best)
    }

    /// Returns all rates, by name and case.
    fn samples_by_name(&self) -> BTreeMap<&str, BTreeMap<&str, &[f64]>> {
        let mut all: BTreeMap<&str, BTreeMap<&str, &[f64]>> = BTreeMap::new();
        for ((name, column), samples) in &self.samples {
            all.entry(&self.names[*name]).or_default().insert(&self.columns[*column], samples);
        }
        all
    }

    /// Returns a Markdown table with a row for each name, a column for each case, and the best of each row. `of` is the heading
    /// of the first column.
    fn markdown(&self, of: &str) -> String {
        let mut text = format!("| {of} | {} | best |\n|---|", self.columns.join(" | "));
        text += &"--:|".repeat(self.columns.len() + 1);
        text.push('\n');
        let cell = |rate: Option<f64>| rate.map_or("-".into(), |rate| format!("{rate:.1}"));
        for (at, name) in self.names.iter().enumerate() {
            let cells: Vec<String> =
                (0..self.columns.len()).map(|column| cell(self.median(at, column))).collect();
            let best = self.best(|other| other == name);
            text += &format!("| {name} | {} | {} |\n", cells.join(" | "), cell(best));
        }
        text
    }

    /// Returns the best rate of the names for which `ours` returns true, divided by the best rate of all others, as text.
    fn ratio(&self, ours: impl Fn(&str) -> bool) -> String {
        match (self.best(&ours), self.best(|name| !ours(name))) {
            (Some(own), Some(others)) => format!("{:.3}", own / others),
            _ => "-".into(),
        }
    }

    /// Returns for each case the best rate of the names for which `ours` returns true, divided by the best of all others, as
    /// text.
    fn ratios(&self, ours: impl Fn(&str) -> bool) -> String {
        let of = |(at, column): (usize, &String)| {
            let best = self.best_in(at, &ours).zip(self.best_in(at, |name| !ours(name)));
            best.map(|(own, others)| format!("{:.3} at {column}", own / others))
        };
        self.columns.iter().enumerate().filter_map(of).collect::<Vec<_>>().join(", ")
    }
}

/// Limit for measuring a kernel of ours again. A kernel below this fraction of the best one in the first round is left out later,
/// since no run would use it.
const BEATEN: f64 = 0.8;

/// Loads the libraries of a list `name:path,name:path`. Returns each with its name.
fn peers(list: &str) -> Result<Vec<(String, Loaded)>, String> {
    let named = list.split(',').filter(|item| !item.trim().is_empty());
    named
        .map(|item| {
            let (name, path) = item.trim().split_once(':').ok_or_else(|| {
                format!("PEER_BLAS: `{item}` is not a name, a colon and a library")
            })?;
            Ok((name.to_owned(), Loaded::open(path)?))
        })
        .collect()
}

/// Returns the reference programs with their names: the variables `XHPL_name`, except those of the plain reference.
fn references() -> Vec<(String, PathBuf)> {
    let mut named: Vec<(String, PathBuf)> = std::env::vars()
        .filter(|(variable, _)| !matches!(&variable[..], "XHPL_PLAIN" | "XHPL_PLAIN_KERNEL"))
        .filter_map(|(variable, path)| {
            Some((variable.strip_prefix("XHPL_")?.to_lowercase(), path.into()))
        })
        .collect();
    named.sort();
    named
}

/// Measures and prints the tables of libraries and programs. Returns the number of failed runs.
pub fn run(
    flags: &Flags,
    launcher: &Launcher,
    cases: &[Case],
    blas: &str,
) -> Result<usize, String> {
    // A library with threads of its own must use them here.
    if std::env::var_os("MKL_THREADING_LAYER").is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("MKL_THREADING_LAYER", "GNU") };
    }
    let programs = programs(flags)?;
    if flags.dry_run {
        for case in cases {
            for (_, who, path) in &programs {
                println!("{:?}", launcher.command(*who, path, case));
            }
        }
        return Ok(0);
    }
    let peers = peers(&std::env::var("PEER_BLAS").unwrap_or_default())?;
    println!("processor: {}, {} cores\nBLAS: {blas}", table::processor(), launcher.cores);
    for (name, peer) in &peers {
        let library = &peer.library;
        println!(
            "{name}: {} {} with its {} kernels",
            library.name, library.version, library.kernel
        );
    }
    let mut ks: Vec<usize> = cases.iter().map(|case| case.nb).collect();
    ks.sort_unstable();
    ks.dedup();
    let side = kernels::side(room::available_bytes());
    let multiplications = multiply(flags, launcher, &peers, &ks, side)?;
    println!(
        "\nC(m x n) -= A B, m = n = {side}, k = NB, {} threads; medians of {}, Gflop/s\n",
        launcher.cores, flags.repeat
    );
    println!("{}", multiplications.markdown("k"));
    println!(
        "the best of our kernels / the best DGEMM: {} (by k: {})",
        multiplications.ratio(is_ours),
        multiplications.ratios(is_ours)
    );
    let (solutions, failures) = solve(flags, launcher, cases, &programs)?;
    if let Some(path) = &flags.usual.json {
        let document = json!({
            "command_line": std::env::args().collect::<Vec<_>>(),
            "processor": table::processor(),
            "multiplications": multiplications.samples_by_name(),
            "runs": solutions.samples_by_name(),
            "failures": failures,
        });
        skt_hpl::base::output_target::put(path, format!("{document:#}\n").as_bytes())
            .map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    println!("\nwhole runs; medians of {}, Gflop/s\n", flags.repeat);
    println!("{}", solutions.markdown("N, NB, P x Q, threads"));
    println!("skt-hpl at its best / the best reference at its best: {}", solutions.ratio(is_ours));
    if let (Some(own), Some(other)) =
        (solutions.best(is_ours), multiplications.best(|name| !is_ours(name)))
    {
        println!("skt-hpl at its best / the best DGEMM: {:.3}", own / other);
    }
    Ok(failures)
}

const OURS: &str = "skt-hpl";

fn is_ours(name: &str) -> bool {
    name.starts_with(OURS)
}

fn multiply(
    flags: &Flags,
    launcher: &Launcher,
    peers: &[(String, Loaded)],
    ks: &[usize],
    side: usize,
) -> Result<Rates, String> {
    let mut rates = Rates::default();
    let no_memory = |e| format!("no memory for a multiplication: {e}");
    let threads = launcher.cores;
    for round in 1..=flags.repeat {
        for &k in ks {
            let column = k.to_string();
            let ours = kernels::engines(flags.engine).into_iter();
            let ours = ours.map(|engine| (format!("{OURS} {}", engine.name()), engine));
            let ours: Vec<(String, Engine)> =
                ours.filter(|(name, _)| !rates.is_beaten(name, &column, is_ours)).collect();
            // Each rate is printed at once: on a machine that is lent for a limited time, the table may come too late.
            let mut add = |name: &str, rate: f64| {
                eprintln!("k = {k}, {round} of {}: {name} {rate:.1}", flags.repeat);
                rates.add(name, &column, rate);
            };
            for (name, engine) in ours {
                let mut own = Multiplication::new(side, k, engine).map_err(no_memory)?;
                add(&name, own.engine(engine, threads));
            }
            let plain = Engine::Blas;
            let mut others = Multiplication::new(side, k, plain).map_err(no_memory)?;
            add("linked BLAS", others.library(threads));
            for (name, peer) in peers {
                add(name, others.peer(peer, threads));
            }
        }
    }
    Ok(rates)
}

/// Name, kind and path of a program.
type Named = (String, Who, PathBuf);

/// Returns skt-hpl and the reference programs.
fn programs(flags: &Flags) -> Result<Vec<Named>, String> {
    let mut programs = vec![(OURS.to_owned(), Who::SktHpl, flags.usual.skt_hpl.clone())];
    programs.extend(references().into_iter().map(|(name, path)| (name, Who::Reference, path)));
    for (_, _, path) in &mut programs {
        *path = job::found(path)?;
    }
    Ok(programs)
}

fn solve(
    flags: &Flags,
    launcher: &Launcher,
    cases: &[Case],
    programs: &[Named],
) -> Result<(Rates, usize), String> {
    let (mut rates, mut failures) = (Rates::default(), 0);
    for round in 1..=flags.repeat {
        for case in cases {
            let Case { n, nb, p, q, threads } = case;
            let column = format!("{n}, {nb}, {p}x{q}, {threads}");
            for (name, who, path) in programs {
                match launcher.run(*who, path, case) {
                    Ok(solved) => {
                        let rate = stats::median(&solved).unwrap_or_default();
                        eprintln!("{column}, {round} of {}: {name} {rate:.1}", flags.repeat);
                        rates.add(name, &column, rate);
                    }
                    Err(why) => {
                        failures += 1;
                        eprintln!("speed: {name} at {column}: {why}");
                    }
                }
            }
        }
    }
    Ok((rates, failures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_each_is_compared() {
        let mut rates = Rates::default();
        for (name, column, samples) in [
            ("skt-hpl", "192", [100.0, 120.0, 110.0]),
            ("skt-hpl", "256", [90.0, 95.0, 91.0]),
            ("mkl", "192", [60.0, 80.0, 70.0]),
            ("mkl", "256", [101.0, 99.0, 100.0]),
        ] {
            samples.iter().for_each(|&rate| rates.add(name, column, rate));
        }
        assert_eq!(rates.ratio(is_ours), "1.100");
        let table = rates.markdown("k");
        assert!(table.contains("| mkl | 70.0 | 100.0 | 100.0 |"), "{table}");
        assert!(table.starts_with("| k | 192 | 256 | best |\n|---|--:|--:|--:|\n"), "{table}");
        assert_eq!(rates.samples_by_name()["mkl"]["192"], [60.0, 80.0, 70.0]);
        assert_eq!(rates.ratios(is_ours), "1.571 at 192, 0.910 at 256");
        assert_eq!(Rates::default().ratio(is_ours), "-");
        assert_eq!(Rates::default().ratios(is_ours), "");
    }

    #[test]
    fn a_program_far_slower_than_our_best_in_a_case_is_measured_once() {
        let mut rates = Rates::default();
        assert!(!rates.is_beaten("skt-hpl a", "192", is_ours));
        for (name, rate) in [("skt-hpl a", 100.0), ("skt-hpl b", 81.0), ("skt-hpl c", 79.0)] {
            rates.add(name, "192", rate);
        }
        rates.add("mkl", "192", 200.0);
        rates.add("skt-hpl c", "256", 50.0);
        let beaten = |name: &str, column| rates.is_beaten(name, column, is_ours);
        assert_eq!(
            ["a", "b", "c"].map(|n| beaten(&format!("skt-hpl {n}"), "192")),
            [false, false, true]
        );
        assert!(!beaten("skt-hpl c", "256") && !beaten("skt-hpl a", "256"));
    }

    #[test]
    fn lists_of_peers_are_read() {
        assert!(peers("").unwrap().is_empty());
        assert!(peers("mkl").err().unwrap().contains("a colon"));
        assert!(peers("a:/nowhere.so").err().unwrap().contains("/nowhere.so"));
    }
}
