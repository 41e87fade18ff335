//! Measures the cost of level two: writing a checkpoint to storage and reading it, whole runs with and without level two, and
//! method disk. Each is compared with the storage device alone.

use std::path::PathBuf;

use skt_hpl::base::cores;
use skt_hpl::checkpoint::storage::DirScope;

use crate::launch::{Launcher, Whole};
use crate::probe::storage::dd;
use crate::probe::{Round, Spec, Work};
use crate::stats::median;
use crate::{Conductor, mb, middle, ms};

/// Runs of one kind: name, flags and launcher.
type Kind<'a> = (&'a str, Vec<&'a str>, Launcher);

fn pick(runs: &[Whole], of: impl Fn(&Whole) -> f64) -> f64 {
    median(&runs.iter().map(of).collect::<Vec<_>>()).unwrap_or(f64::NAN)
}

/// Computes `relate` for the two runs of each turn, and returns the median over all turns. NaN without turns.
pub fn of_pairs(one: &[Whole], other: &[Whole], relate: impl Fn(&Whole, &Whole) -> f64) -> f64 {
    let all: Vec<f64> = one.iter().zip(other).map(|(one, other)| relate(one, other)).collect();
    median(&all).unwrap_or(f64::NAN)
}

impl Conductor<'_> {
    /// Measures writing a checkpoint to storage and reading it back, compared with dd.
    pub fn storage(&mut self) -> Result<(), String> {
        let work = Work::Stores { rounds: self.flags.repeat };
        let spec = self.spec(self.flags.n, (1, 2), 2, work);
        let dir = Some(self.flags.storage.clone());
        let found = self.launcher.probe(&Spec { storage: dir, ..spec })?;
        let write = middle(&found, |r| r.store_s / r.dd_write_s);
        let back = middle(&found, |r| r.restore_s / (r.dd_read_s + r.save_s));
        self.report.at_most("to storage / dd", write, 1.2);
        self.report.at_most("from storage / (files read once by dd + a save)", back, 1.5);
        let reading = middle(&found, |r| r.restore_s / r.dd_read_s);
        self.report.at_most("from storage / files read once by dd", reading, 1.3);
        let rate =
            |of: fn(&Round) -> f64| format!("{:.0}", mb(found.stored_bytes) / middle(&found, of));
        let row = vec![
            format!("{:.0}", mb(found.stored_bytes)),
            rate(|r| r.store_s),
            rate(|r| r.dd_write_s),
            format!("{write:.2}"),
            ms(middle(&found, |r| r.restore_s)),
            ms(middle(&found, |r| r.dd_read_s)),
            ms(middle(&found, |r| r.fresh_s)),
            ms(middle(&found, |r| r.save_s)),
            format!("{back:.2}"),
        ];
        let heads = [
            "MB",
            "write, MB/s",
            "dd, MB/s",
            "write / dd",
            "back, ms",
            "dd reads, ms",
            "fresh memory, ms",
            "save, ms",
            "back / (read + save)",
        ];
        let title = format!("To storage and back, N = {}, 1x2", self.flags.n);
        self.report.table(&title, &heads, vec![row]);
        self.report.keep("storage", &found);
        self.storage_of_nodes_own()
    }

    /// Measures whole runs that write checkpoints to storage.
    pub fn storing(&mut self) -> Result<(), String> {
        self.compare_runs()?;
        self.on_a_free_core()?;
        self.alone()
    }

    /// Measures writing a checkpoint to storage and reading it back, with one DIR per rank. Each rank then counts as a node. The
    /// files contain parity, so the checkpoint is also read after the loss of one DIR.
    fn storage_of_nodes_own(&mut self) -> Result<(), String> {
        let work = Work::Stores { rounds: self.flags.repeat };
        let spec = self.spec(self.flags.n, (1, 2), 2, work);
        let dir = Some(self.flags.storage.clone());
        let found =
            self.launcher.probe(&Spec { storage: dir, dir_scope: DirScope::Node, ..spec })?;
        let write = middle(&found, |r| r.store_s / r.dd_write_s);
        let back = middle(&found, |r| r.restore_s / (r.dd_read_s + r.save_s));
        let bereft = middle(&found, |r| r.bereft_s / r.restore_s);
        self.report.at_most("to nodes' own storage, with parity / dd", write, 1.2);
        let row = vec![
            format!("{:.0}", mb(found.stored_bytes)),
            format!("{:.2}", found.stored_bytes as f64 / found.matrices_bytes as f64),
            format!("{write:.2}"),
            ms(middle(&found, |r| r.restore_s)),
            format!("{back:.2}"),
            ms(middle(&found, |r| r.bereft_s)),
            format!("{bereft:.2}"),
        ];
        let heads = [
            "MB",
            "times the matrix",
            "write / dd",
            "back, ms",
            "back / (read + save)",
            "back without one node's, ms",
            "without one / with all",
        ];
        let title = format!("To storage of each node's own and back, N = {}, 1x2", self.flags.n);
        self.report.table(&title, &heads, vec![row]);
        self.report.keep("storage of nodes' own", &found);
        Ok(())
    }

    /// Returns the number of boundaries between two saves, so that a run has about four saves.
    fn every(&self) -> String {
        (self.flags.n.div_ceil(self.flags.nb) / 4).max(1).to_string()
    }

    /// Runs each kind in turn, `repeat` times, after one round that warms the machine up. Returns the runs of each kind.
    fn in_turn(&self, kinds: &[Kind]) -> Result<Vec<Vec<Whole>>, String> {
        let size = (self.flags.n, self.flags.nb);
        let mut runs = vec![Vec::new(); kinds.len()];
        for round in 0..=self.flags.repeat {
            for ((_, flags, launcher), runs) in kinds.iter().zip(&mut runs) {
                let whole = launcher.whole_with(size, &self.every(), &self.job, flags)?;
                if round > 0 {
                    runs.push(whole);
                }
            }
        }
        Ok(runs)
    }

    fn told(&mut self, title: &str, kinds: &[Kind], runs: &[Vec<Whole>]) {
        let rows = kinds.iter().zip(runs).map(|((kind, ..), own)| {
            vec![
                kind.to_string(),
                format!("{:.0}", pick(own, |w| w.saves as f64)),
                format!("{:.0}", pick(own, |w| w.stored as f64)),
                format!("{:.0}", pick(own, |w| w.put_off as f64)),
                format!("{:.3}", pick(own, |w| w.write_s)),
                format!("{:.3}", pick(own, |w| w.save_s)),
                format!("{:.3}", pick(own, |w| w.seconds)),
                format!("{:.4}", of_pairs(own, &runs[0], |one, other| one.seconds / other.seconds)),
            ]
        });
        let rows = rows.collect();
        let heads = [
            "to storage",
            "saves",
            "stored",
            "put off",
            "writing",
            "saving",
            "seconds",
            "pair by pair",
        ];
        self.report.table(title, &heads, rows);
        for ((kind, ..), own) in kinds.iter().zip(runs) {
            self.report.keep(&format!("{title}: {kind}"), own);
        }
    }

    /// Compares whole runs with and without level two, in which helpers share the cores of the ranks. Level two may cost at most
    /// the time that the helpers took.
    fn compare_runs(&mut self) -> Result<(), String> {
        let dir = self.flags.storage.to_string_lossy().into_owned();
        let by = |how| vec!["--level2", &dir, "--level2-every", "2", "--helpers", how];
        let all = || self.launcher.clone();
        let kinds: [Kind; 3] = [
            ("no", vec![], all()),
            ("by threads", by("threads"), all()),
            ("by threads, while ranks wait", by("off"), all()),
        ];
        let runs = self.in_turn(&kinds)?;
        // Runs that wrote no checkpoint to storage are left out.
        let wrote = runs[1].iter().zip(&runs[0]).filter(|(with, _)| with.write_s > 0.0);
        let costs = wrote.map(|(with, without)| (with.seconds - without.seconds) / with.write_s);
        let what = "cost of storage by threads / the time that writing took, no free core";
        match median(&costs.collect::<Vec<_>>()) {
            Some(cost) => self.report.at_most(what, cost, 1.0),
            None => println!("\nNothing got to storage by threads, without a free core"),
        }
        let (n, nb) = (self.flags.n, self.flags.nb);
        self.told(&format!("Whole runs, N = {n}, NB = {nb}, 1x2, no free core"), &kinds, &runs);
        Ok(())
    }

    /// Compares whole runs with and without level two, with one core less for the ranks. This core is for the helpers alone.
    fn on_a_free_core(&mut self) -> Result<(), String> {
        let mut others = cores::bound_to().clone();
        let Some(last) = others.pop_last().filter(|_| !others.is_empty()) else { return Ok(()) };
        let (dir, last) = (self.flags.storage.to_string_lossy().into_owned(), last.to_string());
        let level2 = ["--level2", &dir, "--level2-every", "2", "--helper-cores", &last];
        // Ranks may use any of the other cores. In one kind the launcher binds them, in the other the program keeps the last core
        // free.
        let fewer = Launcher { cores: others.len(), ..self.launcher.clone() };
        let kinds: [Kind; 2] = [
            ("no", vec![], Launcher { within: others.clone(), ..fewer.clone() }),
            ("by threads", level2.to_vec(), fewer),
        ];
        let runs = self.in_turn(&kinds)?;
        let ratio = of_pairs(&runs[1], &runs[0], |with, without| with.seconds / without.seconds);
        let what = "a run with a second level by threads on a core of their own / one without";
        self.report.at_most(what, ratio, 1.01);
        let (n, nb, left) = (self.flags.n, self.flags.nb, others.len());
        let title = format!("Whole runs, N = {n}, NB = {nb}, 1x2 on {left} core(s), one more free");
        self.told(&title, &kinds, &runs);
        Ok(())
    }

    /// Measures saves with method disk, for which all ranks wait. They are compared with the same number of bytes written by dd,
    /// one dd for each rank.
    fn alone(&mut self) -> Result<(), String> {
        let dir = self.flags.storage.to_string_lossy().into_owned();
        let flags = ["--method", "disk", "--level2", &dir];
        let (n, nb) = (self.flags.n, self.flags.nb);
        let (mut runs, mut dds) = (Vec::new(), Vec::new());
        for round in 0..=self.flags.repeat {
            let whole = self.launcher.whole_with((n, nb), &self.every(), &self.job, &flags)?;
            let each = whole.stored_bytes / whole.stored.max(1) / 2;
            let seconds = self.written_by_dd(each, whole.stored)?;
            if round > 0 {
                runs.push(whole);
                dds.push(seconds);
            }
        }
        let ratios: Vec<f64> = runs.iter().zip(&dds).map(|(w, dd)| w.save_s / dd).collect();
        let ratio = median(&ratios).unwrap_or(f64::NAN);
        self.report.at_most("saves of method disk / dd", ratio, 1.25);
        let rate = |seconds: f64| format!("{:.0}", pick(&runs, |w| mb(w.stored_bytes)) / seconds);
        let row = vec![
            format!("{:.0}", pick(&runs, |w| w.saves as f64)),
            format!("{:.0}", pick(&runs, |w| mb(w.stored_bytes))),
            rate(pick(&runs, |w| w.save_s)),
            rate(median(&dds).unwrap_or(f64::NAN)),
            format!("{ratio:.2}"),
            format!("{:.3}", pick(&runs, |w| w.seconds)),
        ];
        let heads = ["saves", "MB", "saves, MB/s", "dd, MB/s", "saves / dd", "seconds"];
        self.report.table(&format!("Method disk, N = {n}, NB = {nb}, 1x2"), &heads, vec![row]);
        self.report.keep("method disk", &runs);
        self.report.keep("method disk, dd", &dds);
        Ok(())
    }

    /// Returns the seconds in which two dd, at the same time, each write `bytes` bytes `times` times.
    fn written_by_dd(&self, bytes: u64, times: u64) -> Result<f64, String> {
        let noise = tempfile::NamedTempFile::new_in("/dev/shm").map_err(|e| e.to_string())?;
        let mut state = 1u64;
        let words = (0..bytes / 8).flat_map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state.to_le_bytes()
        });
        std::fs::write(noise.path(), words.collect::<Vec<u8>>()).map_err(|e| e.to_string())?;
        let copy = |rank: usize| -> PathBuf { self.flags.storage.join(format!("dd.{rank}")) };
        let one = |rank: usize| -> Result<(), String> {
            let how = ["oflag=direct", "conv=fsync"];
            (0..times).try_for_each(|_| dd(noise.path(), &copy(rank), &how))
        };
        let began = std::time::Instant::now();
        let done = std::thread::scope(|scope| {
            let both = [0, 1].map(|rank| scope.spawn(move || one(rank)));
            both.map(|thread| thread.join().expect("it does not panic"))
        });
        let seconds = began.elapsed().as_secs_f64();
        for rank in 0..2 {
            let _ = std::fs::remove_file(copy(rank));
        }
        done.into_iter().collect::<Result<Vec<()>, String>>().map(|_| seconds)
    }
}
