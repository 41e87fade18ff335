//! Rate that a single rank with many cores is expected to reach, predicted from runs with few cores.
//!
//! The parts of a run are panels, row swaps, triangular solves, multiplication and back substitution.
//!
//! With DEPTH 0 a rank works on one part at a time, with all its threads, and reports the seconds of each part. A run with one
//! thread and a run with more show how much of a part is divided among the threads. With DEPTH 1, the order of the solver's work
//! determines how much of a panel's time overlaps with the multiplication. Runs with few cores cannot show how many cores can
//! copy at full speed at the same time. The caller gives this number; otherwise the memory is assumed to serve all cores.

use serde_json::Value;

use super::error::{Result, finite, positive, refused};
use super::fit::flops;
use crate::lu::panel_workers;

/// Largest number of iterations of a test. A larger number is taken for a typing error.
const ITERATIONS_MOST: f64 = 1e7;

/// Rows of the trailing submatrix that a task of the multiplication updates, if NB is near 256 and the second-level cache has 1
/// MiB.
const TASK_ROWS: f64 = 192.0;
/// Largest number of columns that a task of the multiplication updates.
const TASK_COLUMNS: f64 = 1920.0;
/// Smallest number of tasks for each thread.
const TASKS_LEAST: f64 = 12.0;

/// Seconds that a run with a single rank spent on each part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    pub n: f64,
    pub nb: f64,
    pub threads: f64,
    pub depth: u64,
    pub panels: f64,
    pub swaps: f64,
    pub triangles: f64,
    pub multiplication: f64,
    pub solve: f64,
    pub total: f64,
}

/// Reads all tests of a JSON document of the benchmark that a single rank solved without protection.
pub fn read(text: &str) -> Vec<Parts> {
    let document: Value = serde_json::from_str(text).unwrap_or_default();
    let tests = document["tests"].as_array().cloned().unwrap_or_default();
    let parts = |test: &Value| {
        let (params, outcome) = (&test["params"], &test["outcome"]);
        let one = params["p"] == 1 && params["q"] == 1 && outcome["protection"].is_null();
        let time = |name: &str| outcome["times"][name].as_f64();
        let parts = Parts {
            n: params["n"].as_f64()?,
            nb: params["nb"].as_f64()?,
            threads: outcome["threads"].as_f64()?,
            depth: params["depth"].as_u64()?,
            panels: time("rfact")?,
            swaps: time("laswp")?,
            triangles: time("trsm")?,
            multiplication: time("gemm")?,
            solve: time("solve")?,
            total: time("total")?,
        };
        let sound = parts.n >= 1.0 && parts.nb >= 1.0 && parts.threads >= 1.0 && parts.total > 0.0;
        (one && sound).then_some(parts)
    };
    tests.iter().filter_map(parts).collect()
}

/// Seconds for each unit of work, in two parts. `together` is the same with any number of threads; `shared` is divided by the
/// number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pace {
    together: f64,
    shared: f64,
}

impl Pace {
    /// Returns the pace that agrees with a measurement `one` of one thread and a measurement `more` of `threads` threads.
    fn through(one: f64, threads: f64, more: f64) -> Self {
        let shared = ((one - more) / (1.0 - 1.0 / threads)).clamp(0.0, one.max(0.0));
        Self { together: (one - shared).max(0.0), shared }
    }

    fn at(self, threads: f64) -> f64 {
        self.together + self.shared / threads
    }
}

/// Pace of each part, per unit of the quantity that the part's time is proportional to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paces {
    pub nb: f64,
    /// Operations per second of a thread in the multiplication, while all threads multiply.
    pub rate: f64,
    /// Pace of a panel per column.
    column: Pace,
    /// Pace of a panel per element of the panel.
    element: Pace,
    /// Pace of row swaps, per element of the matrix.
    swaps: Pace,
    /// Pace of triangular solves, per element of the matrix.
    triangles: Pace,
    /// Pace of back substitution, per element of the matrix.
    solve: Pace,
    /// Seconds of the rest of an iteration, with any number of threads.
    other: f64,
}

/// Expected seconds of a run, and of each of its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expected {
    pub seconds: f64,
    /// Seconds of the multiplication, if all threads did nothing else and never waited.
    pub multiplication: f64,
    /// Seconds in which threads factor panels, and in which other threads wait for a panel.
    pub panels: f64,
    pub swaps: f64,
    pub triangles: f64,
    /// Seconds in which threads have no task left while other threads finish their last task.
    pub last_tasks: f64,
    pub solve: f64,
    pub other: f64,
}

impl Expected {
    /// Returns the sum of the seconds of all parts.
    fn total(&self) -> f64 {
        let Self { multiplication, panels, swaps, triangles, last_tasks, solve, other, .. } = self;
        multiplication + panels + swaps + triangles + last_tasks + solve + other
    }

    /// Rate as a share of the rate of the multiplication alone with all threads.
    pub fn of_multiplication(&self, n: f64, threads: f64, rate: f64) -> f64 {
        flops(n) / self.seconds / (threads * rate)
    }
}

impl Paces {
    /// Fits the paces to runs with DEPTH 0: two sizes with one thread, and the same two sizes with more threads.
    pub fn fit(runs: &[Parts]) -> Result<Self> {
        let plain: Vec<&Parts> = runs.iter().filter(|run| run.depth == 0).collect();
        let Some(first) = plain.first() else {
            return refused(
                "there is no run of one rank with --depth 0: only such a run measures the seconds of each part of the computation",
            );
        };
        for run in &plain {
            iterations(run.n, run.nb)?;
        }
        if plain.iter().any(|run| run.nb != first.nb) {
            return refused("the runs with DEPTH 0 differ in NB: give runs with a single NB");
        }
        let threads = plain.iter().map(|run| run.threads).fold(1.0, f64::max);
        let more = sizes_with(&plain, threads).filter(|_| threads > 1.0);
        let (Some(one), Some(more)) = (sizes_with(&plain, 1.0), more) else {
            return refused(
                "two sizes N are needed with one thread, and two with more threads, all with DEPTH 0: run \
                 `skt-hpl -n 4000,8000 --depth 0 --threads 1 --json one.json`, and again with --threads 2 --json two.json",
            );
        };
        let nb = first.nb;
        let (column_1, element_1) = panel_seconds(&one);
        let (column_t, element_t) = panel_seconds(&more);
        let (one, more) = (one[one.len() - 1], more[more.len() - 1]);
        let pace = |time: fn(&Parts) -> f64, of: fn(f64) -> f64| {
            Pace::through(time(one) / of(one.n), threads, time(more) / of(more.n))
        };
        let square: fn(f64) -> f64 = |n| n * n;
        let told =
            |run: &Parts| run.panels + run.swaps + run.triangles + run.multiplication + run.solve;
        let other = (more.total - told(more)).max(0.0) / (more.n / nb).ceil();
        Ok(Self {
            nb,
            rate: positive(
                "the rate of the multiplication",
                multiplied(more.n, nb) / more.multiplication / threads,
            )?,
            // A column costs more with more threads, which wait for each other: that part is not shared.
            column: Pace { together: column_1.max(column_t), shared: 0.0 },
            element: Pace::through(element_1, threads, element_t),
            swaps: pace(|run| run.swaps, square),
            triangles: pace(|run| run.triangles, square),
            solve: pace(|run| run.solve, square),
            other,
        })
    }

    /// Expected time of a test of a single rank with `threads` threads and DEPTH 0 or 1. `served` is the number of cores that can
    /// copy at full speed at the same time; infinity stands for all cores.
    pub fn expected(&self, n: f64, threads: u64, depth: u64, served: f64) -> Result<Expected> {
        let blocks = iterations(n, self.nb)?;
        let t = positive("the number of threads", threads as f64)?;
        let nb = self.nb;
        let copying = t.min(served);
        let panel = |rows: f64, width: f64, panel_threads: f64| {
            width
                * (self.column.at(panel_threads)
                    + rows * self.element.at(panel_threads.min(served)))
        };
        let mut all = Expected {
            solve: n * n * self.solve.at(copying),
            other: blocks as f64 * self.other,
            ..Expected::default()
        };
        for k in 0..blocks {
            let width = nb.min(n - k as f64 * nb);
            let rows = n - k as f64 * nb - width;
            if k == 0 || depth == 0 {
                all.panels += panel(rows + width, width, t);
            }
            // Swapped and solved rows of U: a strip of NB rows over all columns on the right.
            let strip = width * rows;
            all.swaps += 2.0 * strip * self.swaps.at(copying);
            all.triangles += 2.0 * strip * self.triangles.at(t);
            let next = if depth == 0 { 0.0 } else { nb.min(rows) };
            let rest = 2.0 * rows * width * (rows - next) / self.rate;
            all.multiplication += 2.0 * rows * width * rows / self.rate / t;
            let strips = ((rows - next) / TASK_COLUMNS).ceil();
            let tasks = ((rows / TASK_ROWS).ceil() * strips).max(TASKS_LEAST * t);
            if threads > 1 {
                all.last_tasks += rest / tasks / 2.0 * (t - 1.0) / t;
            }
            if next > 0.0 {
                let panel_threads =
                    1 + panel_workers(threads as usize, next as usize, (rows - next) as usize, 1);
                let panel_threads = panel_threads as f64;
                let takes = panel(rows, next, panel_threads);
                // The other threads multiply during the panel, and finish before or after it.
                let whole = if takes * (t - panel_threads) >= rest {
                    takes
                } else {
                    (rest + panel_threads * takes) / t
                };
                all.panels += whole - rest / t;
            }
        }
        all.seconds = finite("the time", all.total())?;
        Ok(all)
    }
}

/// Returns the runs with `threads` threads, sorted by size. Returns None if these runs have fewer than two sizes.
fn sizes_with<'a>(runs: &[&'a Parts], threads: f64) -> Option<Vec<&'a Parts>> {
    let mut found: Vec<&Parts> =
        runs.iter().copied().filter(|run| run.threads == threads).collect();
    found.sort_by(|a, b| a.n.total_cmp(&b.n));
    (found.len() > 1 && found[0].n < found[found.len() - 1].n).then_some(found)
}

/// Seconds of panels per column and per element, from the smallest and the largest of `runs`. The panels of a run have N^2/2
/// elements in all.
fn panel_seconds(runs: &[&Parts]) -> (f64, f64) {
    let (small, large) = (runs[0], runs[runs.len() - 1]);
    let elements = |run: &Parts| run.n * run.n / 2.0;
    let det = small.n * elements(large) - large.n * elements(small);
    let column = (small.panels * elements(large) - large.panels * elements(small)) / det;
    let column = column.max(0.0);
    (column, ((large.panels - column * large.n) / elements(large)).max(0.0))
}

fn iterations(n: f64, nb: f64) -> Result<u64> {
    let blocks = positive("the order N", n)? / positive("NB", nb)?;
    if blocks > ITERATIONS_MOST {
        return refused(format!(
            "N = {n} with NB = {nb} needs more than {ITERATIONS_MOST} iterations: give a smaller N or a larger NB"
        ));
    }
    Ok(blocks.ceil() as u64)
}

/// Number of operations of all multiplications of a test.
pub fn multiplied(n: f64, nb: f64) -> f64 {
    let blocks = (n / nb).ceil() as u64;
    let rows = |k: u64| (n - (k + 1) as f64 * nb).max(0.0);
    (0..blocks).map(|k| 2.0 * nb * rows(k) * rows(k)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the paces of an invented machine, whose runs the model itself predicts.
    fn truth() -> Paces {
        Paces {
            nb: 200.0,
            rate: 50e9,
            column: Pace { together: 1e-6, shared: 0.0 },
            element: Pace { together: 1e-9, shared: 4e-9 },
            swaps: Pace { together: 1e-10, shared: 2e-10 },
            triangles: Pace { together: 0.0, shared: 2e-9 },
            solve: Pace { together: 1e-10, shared: 3e-10 },
            other: 1e-5,
        }
    }

    fn ran(paces: &Paces, n: f64, threads: u64, depth: u64) -> Parts {
        let e = paces.expected(n, threads, depth, f64::INFINITY).unwrap();
        Parts {
            n,
            nb: paces.nb,
            threads: threads as f64,
            depth,
            panels: e.panels,
            swaps: e.swaps,
            triangles: e.triangles,
            multiplication: e.multiplication,
            solve: e.solve,
            total: e.seconds - e.last_tasks,
        }
    }

    /// The fit leaves out the triangles of the panels, so it is up to two per cent off.
    #[test]
    fn recovers_the_paces_it_was_made_from() {
        let paces = truth();
        let runs: Vec<Parts> = [(8000.0, 1), (16000.0, 1), (8000.0, 2), (16000.0, 2)]
            .map(|(n, threads)| ran(&paces, n, threads, 0))
            .to_vec();
        let found = Paces::fit(&runs).unwrap();
        assert!((found.rate / paces.rate - 1.0).abs() < 1e-9);
        for threads in [1, 2, 16] {
            let expect = |p: &Paces| p.expected(40_000.0, threads, 1, f64::INFINITY).unwrap();
            let (a, b) = (expect(&found), expect(&paces));
            assert!((a.seconds / b.seconds - 1.0).abs() < 0.02, "{threads}: {a:?} {b:?}");
        }
    }

    /// Compares the model with a calculation by hand. With one thread, no parts overlap. If some threads factor a panel while
    /// the others multiply, the time is the sum of both works, divided by the number of threads.
    #[test]
    fn by_hand() {
        let paces = Paces {
            nb: 100.0,
            rate: 1e9,
            column: Pace { together: 0.0, shared: 0.0 },
            element: Pace { together: 0.0, shared: 1e-6 },
            swaps: Pace { together: 0.0, shared: 0.0 },
            triangles: Pace { together: 0.0, shared: 0.0 },
            solve: Pace { together: 0.0, shared: 0.0 },
            other: 0.0,
        };
        // Three panels of 300, 200 and 100 rows: 30,000, 20,000 and 10,000 elements, a microsecond each.
        let one = paces.expected(300.0, 1, 0, f64::INFINITY).unwrap();
        assert!((one.panels - 0.06).abs() < 1e-12);
        // 2 x 100 x (200^2 + 100^2) operations.
        assert!((one.multiplication - 0.01).abs() < 1e-12 && one.last_tasks == 0.0);
        assert!((one.seconds - 0.07).abs() < 1e-12);
        let ahead = paces.expected(300.0, 1, 1, f64::INFINITY).unwrap();
        assert!((ahead.seconds - one.seconds).abs() < 1e-12, "one thread does it all itself");
        // With two threads, both factor the second panel, since only 100 columns are left to multiply.
        assert_eq!(panel_workers(2, 100, 100, 1), 1);
        let two = paces.expected(300.0, 2, 1, f64::INFINITY).unwrap();
        // The first panel 0.015, the next two with what they hide: 0.01 of panel and 0.004 left to multiply, then 0.005.
        let hidden = (0.004 + 2.0 * 0.01) / 2.0 - 0.002 + 0.005;
        assert!((two.panels - 0.015 - hidden).abs() < 1e-12, "{two:?}");
        // If the memory serves a single core, two threads factor a panel no faster than one.
        let slow = paces.expected(300.0, 2, 0, 1.0).unwrap();
        assert!((slow.panels - 0.06).abs() < 1e-12);
    }

    #[test]
    fn too_few_runs_are_refused() {
        let paces = truth();
        let refused = |runs: &[Parts]| Paces::fit(runs).unwrap_err().to_string();
        assert!(refused(&[]).contains("--depth 0"));
        assert!(refused(&[ran(&paces, 8000.0, 1, 1)]).contains("--depth 0"));
        let runs = [(8000.0, 1), (16000.0, 1), (8000.0, 2)].map(|(n, t)| ran(&paces, n, t, 0));
        assert!(refused(&runs).contains("--threads 2"));
        let mut mixed = runs.to_vec();
        mixed[2].nb = 100.0;
        assert!(refused(&mixed).contains("differ in NB"));
    }

    #[test]
    fn reads_what_one_rank_solved() {
        let test = |p: u32, protection: &str| {
            format!(
                r#"{{"params":{{"n":1000,"nb":64,"p":{p},"q":1,"depth":0}},"outcome":{{"threads":2,"protection":{protection},
                "times":{{"rfact":0.1,"laswp":0.2,"trsm":0.3,"gemm":0.4,"solve":0.5,"total":1.6}}}}}}"#
            )
        };
        let text = format!(
            r#"{{"tests":[{},{},{}]}}"#,
            test(1, "null"),
            test(2, "null"),
            test(1, r#"{"attempts":1}"#)
        );
        let found = read(&text);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].n, found[0].threads, found[0].depth), (1000.0, 2.0, 0));
        assert_eq!((found[0].panels, found[0].swaps, found[0].total), (0.1, 0.2, 1.6));
        assert!(read("no JSON").is_empty() && read("{}").is_empty());
    }

    proptest! {
        /// No part takes less than zero seconds, and the run takes at least the time of the multiplication.
        #[test]
        fn parts_add_up_and_are_none_below_zero(n in 1.0..30_000.0f64, threads in 1u64..200, depth in 0u64..2, served in 1.0..64.0f64) {
            for served in [f64::INFINITY, served] {
                let e = truth().expected(n.round().max(1.0), threads, depth, served).unwrap();
                for part in [e.multiplication, e.panels, e.swaps, e.triangles, e.last_tasks, e.solve, e.other] {
                    prop_assert!(part >= -1e-12, "{e:?}");
                }
                prop_assert!(e.seconds >= e.multiplication);
            }
        }

        #[test]
        fn fits_are_finite_or_refused(raw in proptest::collection::vec((any::<f64>(), any::<f64>(), 1u64..3), 0..6)) {
            let runs: Vec<Parts> = raw.iter().map(|&(n, s, t)| Parts {
                n, nb: 64.0, threads: t as f64, depth: 0, panels: s, swaps: s, triangles: s, multiplication: s, solve: s, total: s,
            }).collect();
            if let Some(Ok(e)) = Paces::fit(&runs).ok().map(|p| p.expected(1000.0, 16, 1, f64::INFINITY)) {
                prop_assert!(e.seconds.is_finite());
            }
        }
    }
}
