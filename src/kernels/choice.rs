//! Choice of the fastest engine by measuring. The instruction set of a processor says little about the speed of a kernel.
//!
//! In a [`Contest`], engines multiply in turn on the shapes of this run. All ranks measure at the same time, because the speed
//! with all cores busy counts. [`choose`] is pure. Of the engines that all ranks can run, it chooses the engine with the
//! highest rate on its slowest rank. Rates are stored in the user's cache folder by processor, library and shape, so that the
//! next run need not measure.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::multiplication::{Multiplication, Squares};
use super::processor::processor;
use super::{Engine, Library, cache};
use crate::base::host_name;
use crate::base::threads::Pool;
use crate::shm::MemoryError;
use crate::shm::room::available_bytes;

/// Key of stored rates: everything on which a rate depends, apart from the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub processor: String,
    pub second_level: usize,
    pub library: String,
    pub nb: usize,
    pub threads: usize,
    pub ranks: usize,
}

impl Place {
    /// Returns the key for this processor and the BLAS in use. Panels have width `nb`, and each node has `ranks` ranks of
    /// `threads` threads.
    pub fn here(nb: usize, threads: usize, ranks: usize) -> Self {
        let library = Library::query();
        Self {
            processor: processor(&PROCESSOR),
            second_level: cache::second_level(),
            library: format!("{} {} {}", library.name, library.version, library.kernel),
            nb,
            threads,
            ranks,
        }
    }
}

/// Fields of `/proc/cpuinfo` for the processor's name, and numbers that identify the processor's kind if the name does not.
const PROCESSOR: [&str; 6] =
    ["model name", "cpu family", "model", "stepping", "CPU implementer", "CPU part"];

/// Rates in MFLOP/s by the engine's name.
pub type Rates = Vec<(String, u64)>;

/// Total time of measuring, for all widths together. Each engine is measured at least once for each width.
const TIME: Duration = Duration::from_millis(300);

/// Maximum panel width that is measured. Kernels divide wider panels, and measuring wider panels would take too long.
const WIDEST: usize = 512;

/// Minimum number of squares ([`Squares`]) of which all matrices C together consist. So many squares have at least 75 MB, which
/// is more than most caches.
const SQUARES: usize = 4;
/// Minimum number of matrices C, each of which is updated by a multiplication C -= L U in turn.
const BESIDE: usize = 2;

/// Measurement of several engines: each engine does the same multiplication.
pub struct Contest<'e> {
    engines: &'e [Engine],
    multiplication: Multiplication,
    /// Time of measuring for each width.
    time: Duration,
}

impl<'e> Contest<'e> {
    /// Prepares multiplications for panels of the widths `widths`. On this node, `ranks` ranks do so at the same time. Fails if
    /// these ranks together would take more than half of the node's available memory.
    pub fn new(
        engines: &'e [Engine],
        widths: &[usize],
        ranks: usize,
        pool: &mut Pool,
    ) -> Result<Self, MemoryError> {
        let widest = widths.iter().copied().max().unwrap_or(1).min(WIDEST);
        let squares = Squares::for_threads(pool.threads());
        let beside = SQUARES.div_ceil(squares.count()).max(BESIDE);
        let [lower, above, all] = Multiplication::sizes(engines, widest, squares, beside);
        let wanted = 8 * (lower + above * beside + all) as u64;
        if let Some(available) = available_bytes().filter(|bytes| wanted * ranks as u64 > bytes / 2)
        {
            let (what, place) = ("a multiplication to measure".into(), "this node's memory".into());
            return Err(MemoryError::NoRoom { what, wanted, available, place });
        }
        // The values of C are differences of ones and zeros. Such values never grow, and are not slow to compute with.
        let multiplication =
            Multiplication::new(engines, widest, squares, beside, pool, || (0.0, 1.0))?;
        Ok(Self { engines, multiplication, time: TIME / widths.len().max(1) as u32 })
    }

    /// Returns the best rate of each engine for panels of width `nb`, in MFLOP/s.
    ///
    /// Engines take turns until the time is over, so that a disturbance does not affect only one engine. Engines that multiply
    /// with the same tile share one rate.
    pub fn rates(&mut self, nb: usize, pool: &mut Pool) -> Rates {
        let Self { engines, multiplication, time } = self;
        multiplication.narrow(nb.min(WIDEST));
        let first = |engine: &Engine| engines.iter().position(|other| other.multiplies_as(*engine));
        let mut best = vec![0.0f64; engines.len()];
        let start = Instant::now();
        let mut rounds = 0;
        loop {
            for (at, engine) in engines.iter().enumerate().filter(|(at, e)| first(e) == Some(*at)) {
                let (began, busy) = (Instant::now(), own_time());
                multiplication.run(*engine, pool);
                let seconds = match (pool.threads(), busy, own_time()) {
                    // If ranks share a core, the time slices of the other ranks must not count against this engine.
                    (1, Some(before), Some(after)) => (after - before).as_secs_f64(),
                    _ => began.elapsed().as_secs_f64(),
                };
                best[at] = best[at].max(multiplication.flops() / seconds.max(1e-9));
            }
            rounds += 1;
            // No round is started that would mostly exceed the time.
            let taken = start.elapsed();
            if taken + taken / (2 * rounds) >= *time {
                break;
            }
        }
        let rate = |engine: &Engine| first(engine).map_or(1, |at| ((best[at] / 1e6) as u64).max(1));
        engines.iter().map(|engine| (engine.name().to_owned(), rate(engine))).collect()
    }
}

/// Returns the CPU time of this thread so far, or `None` if the system does not report it.
fn own_time() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Duration::from)
}

/// Fraction of the highest rate above which rates count as equal to the highest rate. On a machine with other load, a contest
/// that lasts [`TIME`] cannot distinguish such rates. On Zen 4 such contests chose the tile 12x4, with which whole runs are 2 to
/// 3 % slower.
const EQUAL: f64 = 0.98;

/// Returns the index of the engine to use. `ranks` has the rates of each rank by engine, and zero for an engine that the rank
/// cannot run.
///
/// All ranks must wait for the slowest rank, so its rate decides. Of engines with equal rates, the first engine is chosen.
/// Returns `None` if no engine runs on all ranks.
pub fn choose(ranks: &[Vec<u64>]) -> Option<usize> {
    let engines = ranks.first()?.len();
    let slowest = |engine: usize| ranks.iter().map(|rates| rates[engine]).min().unwrap_or(0);
    let best = (0..engines).map(slowest).max().filter(|&rate| rate > 0)?;
    (0..engines).find(|&engine| slowest(engine) as f64 >= EQUAL * best as f64)
}

/// Content of the file in the user's cache folder that keeps measured rates.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    version: u32,
    entries: Vec<(Place, Rates)>,
}

/// Version of the file with stored rates. Files of other versions are ignored, because kernels change.
const VERSION: u32 = 5;

/// Maximum number of keys in the file with stored rates. Each NB that was measured has its own key.
const MOST: usize = 256;

/// Returns the path of the file with stored rates: in XDG_CACHE_HOME, or in ~/.cache if XDG_CACHE_HOME is not an absolute path.
/// Returns `None` if there is no home folder either.
pub fn file() -> Option<PathBuf> {
    file_below(|name| std::env::var_os(name).map(PathBuf::from))
}

fn file_below(set: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let whole = |name| set(name).filter(|path| path.is_absolute());
    let folder = whole("XDG_CACHE_HOME").or_else(|| Some(whole("HOME")?.join(".cache")))?;
    Some(folder.join("skt-hpl").join("engines.json"))
}

fn read(file: &Path) -> Kept {
    // Only regular files are read. Opening a pipe would wait for the other end of the pipe.
    let text = file.is_file().then(|| std::fs::read(file).ok()).flatten();
    let kept = text.and_then(|text| serde_json::from_slice(&text).ok());
    kept.filter(|kept: &Kept| kept.version == VERSION).unwrap_or_default()
}

/// Returns the rates that are stored for `place` in `file`. Returns `None` if the rate of any of `engines` is missing, or if the
/// file cannot be read.
pub fn recall(file: &Path, place: &Place, engines: &[Engine]) -> Option<Rates> {
    let (_, rates) = read(file).entries.into_iter().find(|(other, _)| other == place)?;
    // Ranks compare rates by MPI, which may treat the highest bit as a sign.
    let known = |e: &Engine| {
        rates.iter().any(|(name, rate)| name == e.name() && (1..1 << 62).contains(rate))
    };
    engines.iter().all(known).then_some(rates)
}

/// Maximum number of attempts to store rates while other processes store theirs.
const LOOKS: usize = 20;

/// Next step of [`remember`], once rates are written to a temporary file that is not yet renamed.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Rename the temporary file to the file with stored rates.
    Put,
    /// Write the temporary file again, because other processes have changed the stored file.
    WriteAgain,
    /// Remove the temporary file, because another process has stored rates of the same key.
    Leave,
}

impl Next {
    /// Decides by two contents of the file with stored rates: its content before the temporary file was written (`found`), and
    /// its present content (`now`).
    ///
    /// Thousands of nodes that share the file may measure the same rates at the same time. If another node has stored rates of
    /// `place` in the meantime, those rates are as good, and this node does not store its own.
    fn of<'a>(found: &'a Kept, now: &'a Kept, place: &Place) -> Self {
        let rates = |kept: &'a Kept| kept.entries.iter().find(|(other, _)| other == place);
        match rates(now) {
            _ if now == found => Self::Put,
            Some(there) if rates(found) != Some(there) => Self::Leave,
            _ => Self::WriteAgain,
        }
    }
}

/// Stores `rates` under the key `place` in `file`.
///
/// An error is ignored, because it costs only a later measurement. Several nodes may share the folder and store at the same time.
/// Each node writes a temporary file with the stored rates and its own. The node renames the temporary file if the stored file
/// has not changed in the meantime.
///
/// Checking and renaming are two steps, so in the worst case the rates of one process are lost and measured again. Locks are
/// not used, because locks of shared folders may block a run.
pub fn remember(file: &Path, place: &Place, rates: &Rates) {
    let aside = file.with_extension(format!("{}.tmp", own_word()));
    let mut found = read(file);
    let with = |found: &Kept| {
        let mut entries = found.entries.clone();
        entries.retain(|(other, _)| other != place);
        entries.insert(0, (place.clone(), rates.clone()));
        entries.truncate(MOST);
        serde_json::to_vec(&Kept { version: VERSION, entries }).unwrap_or_default()
    };
    let mut written = file
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(&aside, with(&found)));
    let mut next = Next::WriteAgain;
    for _ in 0..LOOKS {
        let now = read(file);
        next = Next::of(&found, &now, place);
        if written.is_err() || next != Next::WriteAgain {
            break;
        }
        written = std::fs::write(&aside, with(&now));
        found = now;
    }
    if next == Next::Leave || written.and_then(|()| std::fs::rename(&aside, file)).is_err() {
        // Removes the temporary file. An error is ignored, because the file may not exist.
        let _ = std::fs::remove_file(&aside);
    }
}

/// Returns a part of a file name that is unique among all processes that write to the same folder. The host name is a part of it,
/// because processes of two nodes may have the same process id.
fn own_word() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{}.{}.{count}", host_name(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_decides_among_what_all_can_run() {
        for (ranks, want) in [
            (vec![vec![5, 9, 7]], Some(1)),
            (vec![vec![5, 9, 7], vec![6, 4, 6]], Some(2)),
            // The fastest engine of one rank is missing on another.
            (vec![vec![5, 9, 7], vec![6, 0, 2]], Some(0)),
            (vec![vec![4, 4], vec![8, 4]], Some(0)),
            // Rates whose difference is too small for a contest.
            (vec![vec![980, 1000, 999]], Some(0)),
            (vec![vec![979, 1000, 981]], Some(1)),
            (vec![vec![0, 3], vec![3, 0]], None),
            (vec![vec![]], None),
            (vec![], None),
        ] {
            assert_eq!(choose(&ranks), want, "{ranks:?}");
        }
    }

    #[test]
    fn what_is_remembered_lies_in_the_users_cache_folder() {
        let file = |cache: Option<&str>, home: Option<&str>| {
            let set = |name: &str| if name == "HOME" { home } else { cache };
            file_below(|name| set(name).map(PathBuf::from))
        };
        let at = |path: &str| Some(PathBuf::from(path));
        assert_eq!(file(Some("/c"), Some("/h")), at("/c/skt-hpl/engines.json"));
        for no_path in [None, Some(""), Some("cache")] {
            assert_eq!(file(no_path, Some("/h")), at("/h/.cache/skt-hpl/engines.json"));
            assert_eq!(file(no_path, no_path), None);
        }
    }

    #[test]
    fn every_engine_gets_a_rate() {
        let engines = Engine::runnable();
        let fast: Vec<Engine> =
            engines.into_iter().filter(|e| !e.name().starts_with("portable")).collect();
        let mut pool = Pool::new(2);
        let mut contest = Contest::new(&fast, &[8, 2000], 1, &mut pool).unwrap();
        // Both measurements use the buffers of the widest panel that is measured.
        contest.rates(2000, &mut pool);
        let rates = contest.rates(8, &mut pool);
        assert_eq!(rates.len(), fast.len());
        assert!(rates.iter().all(|(_, rate)| *rate > 0), "{rates:?}");
        // Two engines with the same tile have one rate, so that the first of them is chosen.
        let rate =
            |name: &str| rates.iter().find(|(other, _)| other == name).map(|(_, rate)| *rate);
        for (wide, narrow) in [("avx512-12x4", "avx2-12x4"), ("avx512-8x6", "avx2-8x6")] {
            if let Some(rate_wide) = rate(wide) {
                assert_eq!(Some(rate_wide), rate(narrow));
            }
        }
    }

    /// Tests that a contest is refused if it needs too much memory. With 2^20 ranks, the multiplications would need more memory
    /// than the node has.
    #[test]
    fn memory_that_is_not_there_is_not_taken() {
        let engines = [Engine::Blas];
        let refused = Contest::new(&engines, &[256], 1 << 20, &mut Pool::new(1)).err();
        assert!(matches!(refused, Some(MemoryError::NoRoom { .. })), "{refused:?}");
    }

    #[test]
    fn what_was_measured_is_found_again_and_a_damaged_file_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a/b/engines.json");
        let engines = [Engine::Blas];
        let (place, other) = (Place::here(192, 2, 1), Place::here(256, 2, 1));
        let rates = vec![("blas".to_owned(), 5u64)];
        assert_eq!(recall(&file, &place, &engines), None);
        remember(&file, &place, &rates);
        assert_eq!(recall(&file, &place, &engines), Some(rates.clone()));
        assert_eq!(recall(&file, &other, &engines), None);
        // The file has no rate of some of these engines.
        let all = Engine::runnable();
        assert_eq!(recall(&file, &place, &all), (all == engines).then(|| rates.clone()));
        remember(&file, &other, &rates);
        assert_eq!(recall(&file, &place, &engines), Some(rates.clone()), "the other stays");
        let text = std::fs::read_to_string(&file).unwrap();
        let (now, before) = (format!("\"version\":{VERSION}"), "\"version\":0");
        // MPI cannot compare such a large rate.
        let absurd = text.replace("\"blas\",5", "\"blas\",9223372036854775808");
        for damaged in [text[..text.len() / 2].to_owned(), text.replace(&now, before), absurd] {
            assert_ne!(damaged, text);
            std::fs::write(&file, &damaged).unwrap();
            assert_eq!(recall(&file, &place, &engines), None, "{damaged}");
        }
        remember(&file, &place, &rates);
        assert_eq!(recall(&file, &place, &engines), Some(rates.clone()));
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        // This folder cannot be created.
        remember(&file.join("engines.json"), &place, &rates);
        assert_eq!(recall(&file, &place, &engines), Some(rates));
    }

    #[test]
    fn a_pipe_in_its_place_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("engines.json");
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (place, rates) = (Place::here(192, 2, 1), vec![("blas".to_owned(), 5u64)]);
        assert_eq!(recall(&file, &place, &[Engine::Blas]), None);
        remember(&file, &place, &rates);
        assert_eq!(recall(&file, &place, &[Engine::Blas]), Some(rates));
    }

    #[test]
    fn rates_that_another_node_put_there_meanwhile_stay() {
        let kept = |widths: &[usize], rate: u64| {
            let entry = |&nb: &usize| (Place::here(nb, 1, 1), vec![("blas".to_owned(), rate)]);
            Kept { version: VERSION, entries: widths.iter().map(entry).collect() }
        };
        let next = |found, now| Next::of(&found, &now, &Place::here(192, 1, 1));
        assert_eq!(next(kept(&[], 0), kept(&[], 0)), Next::Put);
        assert_eq!(next(kept(&[], 0), kept(&[192], 5)), Next::Leave);
        assert_eq!(next(kept(&[], 0), kept(&[256], 5)), Next::WriteAgain, "of another NB");
        // The file had rates of this key before, for example of fewer engines.
        assert_eq!(next(kept(&[192], 5), kept(&[192], 5)), Next::Put);
        assert_eq!(next(kept(&[192], 5), kept(&[256, 192], 5)), Next::WriteAgain);
        assert_eq!(next(kept(&[192], 5), kept(&[192], 6)), Next::Leave);
        assert_eq!(next(kept(&[192], 5), kept(&[], 0)), Next::WriteAgain, "somebody removed it");
    }

    /// Tests that many nodes can store the same key at the same time. The rates of one node remain, and no temporary file
    /// remains.
    #[test]
    fn many_remember_the_same_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("engines.json");
        let place = Place::here(192, 1, 1);
        std::thread::scope(|scope| {
            for who in 1..=32 {
                let (file, place) = (&file, &place);
                scope.spawn(move || remember(file, place, &vec![("blas".to_owned(), who)]));
            }
        });
        assert!(recall(&file, &place, &[Engine::Blas]).is_some_and(|rates| rates.len() == 1));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// Tests that several processes can store different keys at the same time. Every reader finds a whole file, and no temporary
    /// file remains. Some of the stored keys may be lost, but more than half remain.
    #[test]
    fn several_remember_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("engines.json");
        let engines = [Engine::Blas];
        let place = |who: usize, turn: usize| Place::here(1000 * who + turn, 1, 1);
        remember(&file, &place(9, 0), &vec![("blas".to_owned(), 5)]);
        std::thread::scope(|scope| {
            for who in 0..4 {
                let (file, engines) = (&file, &engines);
                scope.spawn(move || {
                    for turn in 0..100 {
                        remember(file, &place(who, turn % 10), &vec![("blas".to_owned(), 5)]);
                        assert!(recall(file, &place(9, 0), engines).is_some(), "half a file");
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let kept = read(&file).entries.len();
        assert!(kept > 21, "{kept} of 41");
        // A process on another node may have the same process id.
        let host = nix::unistd::gethostname().unwrap();
        let (one, other) = (own_word(), own_word());
        assert!(one != other && one.starts_with(&*host.to_string_lossy()), "{one} {other}");
    }
}
