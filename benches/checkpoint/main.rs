//! `cargo bench --bench checkpoint -- --help`: the cost of protection in memory and in time. benches/NOTEBOOK.md explains each
//! figure, and names those with a target.
//!
//! Started without a launcher, the program controls the measurements. It starts itself under the launcher as a small MPI program
//! (`probe`), and whole runs of skt-hpl, and compares their results.

// Cargo also compiles a benchmark as a test, although it has its own `main`.
#![cfg_attr(test, allow(dead_code, unused_imports))]

#[allow(dead_code)] // Shared with the benchmark of speed, which uses more of it.
#[path = "../speed/cases.rs"]
mod cases;
mod flags;
#[allow(dead_code)]
#[path = "../speed/job.rs"]
mod job;
mod launch;
mod level2;
#[path = "../speed/limit.rs"]
mod limit;
mod memory;
mod probe;
mod report;
#[allow(dead_code)]
#[path = "../speed/stats.rs"]
mod stats;
#[path = "../speed/usual.rs"]
mod usual;

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Parser;
use skt_hpl::base::cores;
use skt_hpl::checkpoint::layout::ParityLayout;
use skt_hpl::checkpoint::plan::{Encoding, Scheme, Scope};
use skt_hpl::checkpoint::protocol::Method;
use skt_hpl::checkpoint::storage::DirScope;
use skt_hpl::comm::World;
use skt_hpl::model::planner::squarest_grid;
use skt_hpl::parity::Code;
use skt_hpl::testkit::papers::available;

use flags::{Flags, Section};
use job::Mpi;
use launch::{Launcher, Whole};
use level2::of_pairs;
use probe::{Found, Round, Spec, Work};
use report::Report;
use stats::median;

fn main() -> ExitCode {
    let flags = Flags::parse();
    let result = match &flags.probe {
        Some(spec) => match serde_json::from_str(spec) {
            Ok(spec) => probe::run(&spec),
            Err(error) => Err(format!("--probe is for this program's own use: {error}")),
        },
        None => Conductor::new(&flags).and_then(|mut conductor| conductor.measure()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("checkpoint: {why}");
            ExitCode::FAILURE
        }
    }
}

struct Conductor<'a> {
    flags: &'a Flags,
    launcher: Launcher,
    job: String,
    report: Report,
}

const XOR: Scheme = Scheme {
    method: Method::SelfCheckpoint,
    scope: Scope::Corner,
    code: Code::Xor,
    losses: 1,
    layout: ParityLayout::Striped,
    on_device: false,
};

/// Returns the median over the rounds of the value that `of` selects.
fn middle(found: &Found, of: impl Fn(&Round) -> f64) -> f64 {
    median(&found.rounds.iter().map(of).collect::<Vec<_>>()).unwrap_or(f64::NAN)
}

/// Converts bytes to decimal megabytes.
fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn ms(seconds: f64) -> String {
    format!("{:.1}", seconds * 1e3)
}

impl<'a> Conductor<'a> {
    fn new(flags: &'a Flags) -> Result<Self, String> {
        let library = World::library();
        let mpi = Mpi::of_library(&library);
        let cores = cores::count();
        Ok(Self {
            flags,
            launcher: Launcher {
                program: flags.mpirun.clone().unwrap_or_else(|| mpi.launcher().into()),
                mpi,
                cores,
                within: BTreeSet::new(),
                skt_hpl: flags.usual.program()?,
            },
            job: format!("bench-{}", std::process::id()),
            report: Report::new(cores, library, flags.usual.json.clone()),
        })
    }

    fn measure(&mut self) -> Result<(), String> {
        type Part<'a> = fn(&mut Conductor<'a>) -> Result<(), String>;
        let sections: [(Section, Part<'a>); 12] = [
            (Section::Memory, Self::memory),
            (Section::Save, Self::saves),
            (Section::Restore, Self::restores),
            (Section::Threads, Self::threads),
            (Section::Storage, Self::storage),
            (Section::Storing, Self::storing),
            (Section::Pipeline, Self::pipeline),
            (Section::Run, Self::whole_runs),
            (Section::Scopes, Self::scopes),
            (Section::Codes, Self::codes),
            (Section::Groups, Self::groups),
            (Section::Layouts, Self::layouts),
        ];
        for (section, part) in sections {
            if self.flags.wants(section) {
                part(self)?;
                self.report.write()?;
            }
        }
        self.report.verdicts();
        Ok(())
    }

    fn spec(&self, n: usize, grid: (usize, usize), group: usize, work: Work) -> Spec {
        Spec {
            n,
            nb: self.flags.nb,
            p: grid.0,
            q: grid.1,
            threads: 1,
            group: Some(group),
            scheme: XOR,
            encode: Encoding::Pipelined,
            work,
            job: self.job.clone(),
            storage: None,
            dir_scope: DirScope::Shared,
        }
    }

    fn memory(&mut self) -> Result<(), String> {
        let mut rows = Vec::new();
        for (grid, group) in [((1, 2), 2), ((1, 3), 3), ((2, 2), 4)] {
            for method in [Method::SelfCheckpoint, Method::Double, Method::Single] {
                let scheme = Scheme { method, ..XOR };
                let work = Work::Saves { rounds: 0 };
                // Blocks are small, since the formula does not know of ranks that have a block more.
                let spec = self.spec(self.flags.small, grid, group, work);
                let found = self.launcher.probe(&Spec { scheme, nb: 16, ..spec })?;
                let real = memory::of_parts(&found.parts);
                let ideal = found.matrices_bytes as f64 / available(&scheme, group);
                let name = format!("memory, {}, G = {group}", memory::name(method));
                self.report.within(&name, real as f64 / ideal, 0.98, 1.02);
                rows.push(vec![
                    memory::name(method).into(),
                    group.to_string(),
                    format!("{:.2}", mb(found.matrices_bytes)),
                    format!("{:.2}", mb(real)),
                    format!("{:.2}", mb(ideal as u64)),
                    format!("{:.4}", real as f64 / ideal),
                    format!("{:.2}", mb(found.parts.values().sum::<u64>() - real)),
                ]);
            }
        }
        let heads = ["method", "G", "A", "A to F", "formula", "ratio", "s, head, done"];
        self.report.table("Memory of real runs, MB", &heads, rows);
        let heads = ["method", "G", "of memory for A", "formula", "paper"];
        self.report.table("Memory left for the matrix", &heads, memory::available());
        Ok(())
    }

    fn saves(&mut self) -> Result<(), String> {
        let mut rows = Vec::new();
        for (grid, group) in [((1, 2), 2), ((2, 2), 4)] {
            let work = Work::Saves { rounds: self.flags.repeat };
            let found = self.launcher.probe(&self.spec(self.flags.n, grid, group, work))?;
            let ratio = middle(&found, |r| r.save_s / (r.copy_s + r.send_s));
            self.report.at_most(&format!("one save / (copy + send), G = {group}"), ratio, 1.5);
            rows.push(vec![
                format!("{}x{}", grid.0, grid.1),
                group.to_string(),
                format!("{:.0}", mb(found.matrix_bytes)),
                ms(found.first_save_s),
                ms(middle(&found, |r| r.save_s)),
                ms(middle(&found, |r| r.encode_s)),
                ms(middle(&found, |r| r.digest_s)),
                ms(middle(&found, |r| r.barrier_s)),
                ms(middle(&found, |r| r.flush_s)),
                ms(middle(&found, |r| r.copy_s)),
                ms(middle(&found, |r| r.send_s)),
                format!("{ratio:.2}"),
            ]);
            self.report.keep(&format!("saves, G = {group}"), &found);
        }
        let heads = [
            "grid",
            "G",
            "MB",
            "first",
            "save",
            "encode",
            "digest",
            "barrier",
            "flush",
            "copy",
            "send",
            "save / (copy + send)",
        ];
        self.report.table("One save of everything, ms", &heads, rows);
        self.saves_by_helpers()
    }

    /// Measures the time for which ranks stop in a save if helpers encode. It is compared with the time to copy the saved part of
    /// the matrix, and with the stop of ranks that encode themselves.
    fn saves_by_helpers(&mut self) -> Result<(), String> {
        let mut rows = Vec::new();
        for (grid, group) in [((1, 2), 2), ((2, 2), 4)] {
            let work = Work::Saves { rounds: self.flags.repeat };
            let scheme = Scheme { method: Method::Double, ..XOR };
            let spec = Spec { scheme, ..self.spec(self.flags.n, grid, group, work) };
            let own = self.launcher.probe(&spec)?;
            let found = self.launcher.probe(&Spec { encode: Encoding::Helper, ..spec })?;
            let ratio = middle(&found, |r| r.save_s / r.copy_s);
            let what = format!("a save's stop with --encode helper / copy, G = {group}");
            self.report.at_most(&what, ratio, 1.2);
            rows.push(vec![
                format!("{}x{}", grid.0, grid.1),
                group.to_string(),
                format!("{:.0}", mb(found.matrix_bytes)),
                ms(middle(&own, |r| r.save_s)),
                ms(middle(&found, |r| r.save_s)),
                ms(middle(&found, |r| r.copy_s)),
                ms(middle(&found, |r| r.left_s)),
                format!("{ratio:.2}"),
            ]);
            self.report.keep(&format!("saves by helpers, G = {group}"), &found);
        }
        let heads = [
            "grid",
            "G",
            "MB",
            "save, pipelined",
            "stop, helper",
            "copy",
            "left to helpers",
            "stop / copy",
        ];
        self.report.table("One save of everything, method double, ms", &heads, rows);
        Ok(())
    }

    fn restores(&mut self) -> Result<(), String> {
        let mut rows = Vec::new();
        for (grid, group) in [((1, 2), 2), ((2, 2), 4)] {
            let work = Work::Restores { rounds: self.flags.repeat };
            let found = self.launcher.probe(&self.spec(self.flags.n, grid, group, work))?;
            let ratio = middle(&found, |r| r.restore_s / r.save_s);
            self.report.at_most(&format!("restore / save, G = {group}"), ratio, 1.5);
            rows.push(vec![
                format!("{}x{}", grid.0, grid.1),
                group.to_string(),
                format!("{:.0}", mb(found.matrix_bytes)),
                ms(found.first_save_s),
                ms(middle(&found, |r| r.save_s)),
                ms(middle(&found, |r| r.restore_s)),
                ms(middle(&found, |r| r.fresh_s)),
                format!("{ratio:.2}"),
                format!("{:.2}", middle(&found, |r| (r.restore_s - r.fresh_s) / r.save_s)),
            ]);
            self.report.keep(&format!("restores, G = {group}"), &found);
        }
        let heads = [
            "grid",
            "G",
            "MB",
            "first save",
            "save",
            "restore",
            "fresh memory",
            "restore / save",
            "without fresh memory",
        ];
        self.report.table("A restore of one lost member, ms", &heads, rows);
        Ok(())
    }

    /// Measures saves and restores of two ranks with different numbers of threads. If threads have cores of their own, more
    /// threads should be faster; otherwise they should not be slower.
    fn threads(&mut self) -> Result<(), String> {
        let mut rows = Vec::new();
        for &threads in &self.flags.threads {
            let spec = |work| Spec { threads, ..self.spec(self.flags.n, (1, 2), 2, work) };
            let saves = self.launcher.probe(&spec(Work::Saves { rounds: self.flags.repeat }))?;
            let restores =
                self.launcher.probe(&spec(Work::Restores { rounds: self.flags.repeat }))?;
            rows.push(vec![
                threads.to_string(),
                format!("{:.0}", mb(saves.matrix_bytes)),
                ms(middle(&saves, |r| r.save_s)),
                ms(middle(&saves, |r| r.encode_s)),
                ms(middle(&saves, |r| r.flush_s)),
                ms(middle(&restores, |r| r.restore_s)),
                ms(middle(&restores, |r| r.restore_s - r.fresh_s)),
            ]);
            self.report.keep(&format!("saves by {threads} threads"), &saves);
            self.report.keep(&format!("restores by {threads} threads"), &restores);
        }
        let heads = ["threads", "MB", "save", "encode", "flush", "restore", "without fresh memory"];
        self.report.table("Saves and restores by the threads of two ranks, ms", &heads, rows);
        Ok(())
    }

    /// Compares the time to encode eight ranks as two groups of four and as one group of eight. Each rank sends and receives the
    /// same number of bytes in both cases, so only the length of the pipeline differs.
    fn pipeline(&mut self) -> Result<(), String> {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..self.flags.repeat {
            for (group, times) in [4, 8].into_iter().zip(&mut times) {
                let work = Work::Saves { rounds: 3 };
                let found = self.launcher.probe(&self.spec(self.flags.n, (1, 8), group, work))?;
                times.push(middle(&found, |r| r.encode_s) / found.matrices_bytes as f64);
            }
        }
        let turns: Vec<f64> =
            times[0].iter().zip(&times[1]).map(|(four, eight)| eight / four).collect();
        let ratio = median(&turns).unwrap_or(f64::NAN);
        let [four, eight] = times.map(|t| median(&t).unwrap_or(f64::NAN));
        self.report.at_most("pipelined encoding, G = 8 / G = 4", ratio, 1.15);
        let cores = self.launcher.cores.min(8) as f64;
        let row = |g: &str, t: f64| vec![g.to_owned(), format!("{:.3}", t * cores * 1e9)];
        let heads = ["G", "ns a byte and core"];
        self.report.table(
            "Pipelined encoding on 1x8",
            &heads,
            vec![row("4", four), row("8", eight), vec!["8 / 4".into(), format!("{ratio:.2}")]],
        );
        Ok(())
    }

    fn whole_runs(&mut self) -> Result<(), String> {
        let (n, nb) = (self.flags.n, self.flags.nb);
        let every = (n.div_ceil(nb) / 4).max(1).to_string();
        let kinds = ["off", "100000", &every];
        let mut runs: [Vec<Whole>; 3] = Default::default();
        for round in 0..=self.flags.repeat {
            for (kind, runs) in kinds.iter().zip(&mut runs) {
                let whole = self.launcher.whole(n, nb, kind, &self.job)?;
                // The first turn warms the machine up.
                if round > 0 {
                    runs.push(whole);
                }
            }
        }
        let pick = |runs: &[Whole], of: fn(&Whole) -> f64| {
            median(&runs.iter().map(of).collect::<Vec<_>>()).unwrap_or(f64::NAN)
        };
        let without_saves = |runs: &[Whole]| pick(runs, |w| w.seconds - w.save_s);
        let off = runs[0].clone();
        let of_off = |runs: &[Whole]| {
            of_pairs(runs, &off, |own, off| (own.seconds - own.save_s) / off.seconds)
        };
        let rows = kinds.iter().zip(&runs).map(|(kind, runs)| {
            let seconds: Vec<f64> = runs.iter().map(|w| w.seconds - w.save_s).collect();
            vec![
                kind.to_string(),
                runs.first().map_or(0, |w| w.saves).to_string(),
                format!("{:.3}", pick(runs, |w| w.seconds)),
                format!("{:.3}", pick(runs, |w| w.save_s)),
                format!("{:.3}", without_saves(runs)),
                format!("{:.4}", of_off(runs)),
                format!("{:.3}", stats::spread(&seconds).unwrap_or(f64::NAN)),
            ]
        });
        let rows = rows.collect();
        self.report.at_most(
            "a run without its saves / a run without protection",
            of_off(&runs[2]),
            1.01,
        );
        self.report.at_most(
            "a protected run that never saves / one without protection",
            of_off(&runs[1]),
            1.01,
        );
        let heads = ["--checkpoint", "saves", "seconds", "saving", "rest", "rest / off", "spread"];
        self.report.table(&format!("Whole runs, N = {n}, NB = {nb}, 1x2"), &heads, rows);
        for (kind, runs) in kinds.iter().zip(&runs) {
            self.report.keep(&format!("run, --checkpoint {kind}"), runs);
        }
        Ok(())
    }

    fn scopes(&mut self) -> Result<(), String> {
        // Many small steps are needed: the formula has integrals, which sums only approach.
        let (n, nb) = (self.flags.small / 4, 2);
        let mut all = Vec::new();
        for scope in Scope::ALL {
            let scheme = Scheme { scope, ..XOR };
            let work = Work::Run { step: 1 };
            let spec = Spec { scheme, nb, ..self.spec(n, (1, 2), 2, work) };
            all.push(self.launcher.probe(&spec)?);
        }
        let corner = all[0].saved_bytes as f64;
        let mut rows = Vec::new();
        for ((scope, found), wanted) in Scope::ALL.iter().zip(&all).zip([1.0, 1.5, 3.0]) {
            let name = format!("{scope:?}").to_lowercase();
            let ratio = found.saved_bytes as f64 / corner;
            self.report.within(&format!("bytes, {name} / corner"), ratio / wanted, 0.98, 1.02);
            let quarter = |i: usize| {
                let part = found.series_s.len() / 4;
                ms(median(&found.series_s[i * part..(i + 1) * part]).unwrap_or(f64::NAN))
            };
            rows.push(vec![
                name.clone(),
                format!("{:.0}", mb(found.saved_bytes)),
                format!("{ratio:.3}"),
                format!("{wanted}"),
                format!("{:.3}", found.series_s.iter().sum::<f64>()),
                quarter(0),
                quarter(1),
                quarter(2),
                quarter(3),
            ]);
            self.report.keep(&format!("scope {name}"), found);
        }
        let heads = [
            "scope",
            "MB copied",
            "to corner",
            "equation 20",
            "saves, s",
            "1st quarter, ms",
            "2nd",
            "3rd",
            "4th",
        ];
        self.report.table(
            &format!("Scopes over a run, N = {n}, NB = {nb}, 1x2, a save at every boundary"),
            &heads,
            rows,
        );
        Ok(())
    }

    fn codes(&mut self) -> Result<(), String> {
        let mut rows = Vec::new();
        for (code, losses) in [
            (Code::Xor, 1),
            (Code::Sum, 1),
            (Code::ReedSolomon, 1),
            (Code::ReedSolomon, 2),
            (Code::Weighted, 2),
        ] {
            for encode in [Encoding::Pipelined, Encoding::Reduce] {
                let scheme = Scheme { code, losses, ..XOR };
                let work = Work::Saves { rounds: self.flags.repeat };
                let spec = self.spec(self.flags.small, (2, 2), 4, work);
                let found = self.launcher.probe(&Spec { scheme, encode, ..spec })?;
                rows.push(vec![
                    format!("{code:?}"),
                    losses.to_string(),
                    format!("{encode:?}").to_lowercase(),
                    ms(middle(&found, |r| r.encode_s)),
                    ms(middle(&found, |r| r.save_s)),
                ]);
            }
        }
        let heads = ["code", "losses", "encode", "encode, ms", "save, ms"];
        self.report.table(&format!("Codes, N = {}, 2x2, G = 4", self.flags.small), &heads, rows);
        self.losses()
    }

    /// Measures encoding for one loss up to half of a group of G members. Each parity row needs a round of messages and a pass
    /// over the data. With more parity rows, fewer rows of a stripe contain data. So encoding for m losses should take m
    /// (G-1)/(G-m) times as long as for one loss.
    fn losses(&mut self) -> Result<(), String> {
        const GROUP: usize = 8;
        let mut turns: Vec<Vec<f64>> = Vec::new();
        for _ in 0..self.flags.repeat {
            let mut turn = Vec::new();
            for losses in 1..=GROUP / 2 {
                let scheme = Scheme { code: Code::ReedSolomon, losses, ..XOR };
                let work = Work::Saves { rounds: 3 };
                let spec = self.spec(self.flags.small, (1, GROUP), GROUP, work);
                let found = self.launcher.probe(&Spec { scheme, ..spec })?;
                turn.push(middle(&found, |r| r.encode_s));
            }
            turns.push(turn);
        }
        let mut rows = Vec::new();
        for losses in 1..=GROUP / 2 {
            let expected =
                |turn: &[f64]| turn[0] * (losses * (GROUP - 1)) as f64 / (GROUP - losses) as f64;
            let of = |figure: &dyn Fn(&[f64]) -> f64| {
                let all: Vec<f64> = turns.iter().map(|turn| figure(turn)).collect();
                median(&all).unwrap_or(f64::NAN)
            };
            let ratio = of(&|turn| turn[losses - 1] / expected(turn));
            if 2 * losses == GROUP {
                let what =
                    format!("Reed-Solomon for {losses} of {GROUP} / as much from one loss's");
                self.report.at_most(&what, ratio, 1.5);
            }
            rows.push(vec![
                losses.to_string(),
                ms(of(&|turn| turn[losses - 1])),
                ms(of(&|turn| expected(turn))),
                format!("{ratio:.2}"),
            ]);
        }
        let heads = ["losses", "encode, ms", "from one loss's, ms", "ratio"];
        let title = format!("Reed-Solomon, N = {}, 1x{GROUP}, G = {GROUP}", self.flags.small);
        self.report.table(&title, &heads, rows);
        Ok(())
    }

    fn groups(&mut self) -> Result<(), String> {
        let mut rows = Vec::new();
        for group in [2, 4, 8] {
            for encode in [Encoding::Pipelined, Encoding::Reduce] {
                let work = Work::Saves { rounds: self.flags.repeat };
                let spec = self.spec(self.flags.small, (1, 8), group, work);
                let found = self.launcher.probe(&Spec { encode, ..spec })?;
                rows.push(vec![
                    group.to_string(),
                    format!("{encode:?}").to_lowercase(),
                    ms(middle(&found, |r| r.encode_s)),
                    ms(middle(&found, |r| r.save_s)),
                ]);
            }
        }
        let heads = ["G", "encode", "encode, ms", "save, ms"];
        self.report.table(&format!("Sizes of groups, N = {}, 1x8", self.flags.small), &heads, rows);
        Ok(())
    }

    /// Compares the parity layouts for different numbers of processes and losses, encoded by tree and by pipeline, as the tables
    /// of the paper do.
    fn layouts(&mut self) -> Result<(), String> {
        let (most, losses) = (self.flags.ranks, self.flags.losses);
        let mut rows = Vec::new();
        for ranks in [8, 12, 16, 24, 32, 48, 64].into_iter().filter(|&ranks| ranks <= most) {
            for losses in 1..=losses {
                for layout in ParityLayout::ALL {
                    let mut row = self.laid_out(ranks, losses, layout)?;
                    rows.append(&mut row);
                }
            }
        }
        let heads = [
            "ranks",
            "grid",
            "losses",
            "layout",
            "group",
            "encode",
            "encode, ms",
            "encode / send",
            "spread",
        ];
        let title = format!("Layouts, {:.1} MB of the matrix a rank", self.flags.each / 1e6);
        self.report.table(&title, &heads, rows);
        Ok(())
    }

    /// Measures one parity layout with both encodings, with the same part of the matrix on each rank. Returns the rows of the
    /// table; none if the layout is not possible.
    fn laid_out(
        &mut self,
        ranks: usize,
        losses: usize,
        layout: ParityLayout,
    ) -> Result<Vec<Vec<String>>, String> {
        let grid = squarest_grid(ranks as u64);
        let grid = (grid.0 as usize, grid.1 as usize);
        let n = ((self.flags.each / 8.0 * ranks as f64).sqrt()) as usize;
        let code = if losses == 1 { Code::Xor } else { Code::ReedSolomon };
        let scheme = Scheme { code, losses, layout, ..XOR };
        let work = Work::Saves { rounds: self.flags.repeat };
        let spec = Spec { scheme, group: None, ..self.spec(n, grid, 0, work) };
        // Each rank counts as a node.
        let places = spec.layout();
        let domains: Vec<String> =
            (0..places.positions()).map(|rank| format!("node {rank}")).collect();
        let Ok(groups) = layout.groups(&places, &domains, None, losses) else {
            return Ok(Vec::new());
        };
        let members = groups.iter().map(Vec::len).max().unwrap_or(0);
        let mut rows = Vec::new();
        for encode in [Encoding::Pipelined, Encoding::Reduce] {
            let found = self.launcher.probe(&Spec { encode, ..spec.clone() })?;
            let times: Vec<f64> = found.rounds.iter().map(|round| round.encode_s).collect();
            let name = format!("{encode:?}").to_lowercase();
            rows.push(vec![
                match places.dedicated {
                    0 => ranks.to_string(),
                    dedicated => format!("{ranks} + {dedicated}"),
                },
                format!("{} x {}", grid.0, grid.1),
                losses.to_string(),
                layout.name().into(),
                members.to_string(),
                name.clone(),
                ms(middle(&found, |round| round.encode_s)),
                format!("{:.2}", middle(&found, |round| round.encode_s / round.send_s)),
                format!("{:.2}", stats::spread(&times).unwrap_or(f64::NAN)),
            ]);
            let what = format!("layout {}, {ranks} ranks, {losses} losses, {name}", layout.name());
            self.report.keep(&what, &found);
        }
        Ok(rows)
    }
}
