//! Named crash points: faults that are injected at an exact step.
//!
//! `SKT_FAULT=point:position:hit:action` makes the rank at that grid position do the action when it reaches the point for the
//! hit-th time. Several faults are separated by commas; position `*` means any position. Before the action, the rank writes a
//! line to stderr. If `SKT_FAULT_LOG` names a file, the rank also appends the line to this file, with fsync. So a test can check
//! at which point the rank failed. While no fault is armed, a point costs one relaxed load.
//!
//! Under `skt-hpl run`, every attempt of the job has the same variable; `2@point:...` applies to the second attempt only. So a
//! test can inject a fault while a run recovers from an earlier fault. An in-place attempt (`--nonstop`) counts as an attempt.
//! `1.2@point:...` applies to the second attempt within the first launch, after one recovery in place, and not to a second
//! launch.
//!
//! The actions stand for faults that a run must survive.
//!
//! - `kill`: a lost process. Its memory stays; a test harness removes it to simulate a lost node.
//! - `lose`: a lost process whose position memory is lost, too, as with its node.
//! - `stop`: a rank that hangs.
//! - `hang`: a thread that hangs; with `hang=<file>`, until that file exists.
//! - `exit`: a rank that ends without a message.
//! - `panic`: a bug.
//! - `corrupt=<part>:<offset>`: a flipped byte in a named part of the position memory.

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::simulated::simulator;

/// Defines an enum that has a name, as text, for each value.
macro_rules! named {
    ($(#[$about:meta])* $type:ident: $($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        $(#[$about])*
        pub enum $type { $($(#[$doc])* $name,)* }

        impl $type {
            /// All values, in their order.
            pub const ALL: &[$type] = &[$($type::$name,)*];

            pub fn name(self) -> &'static str {
                match self { $($type::$name => $text,)* }
            }
        }
    };
}

named! {
    /// Step at which a fault can be injected. The values are in the order in which a run reaches them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    Point:
    /// MPI has started, and no attempt has begun. A fault at this point names a rank, not a grid position.
    Started = "started",
    /// An attempt under `--nonstop` or `--method abft` has begun, and its ranks have not reported their states to each other yet.
    /// A fault at this point names a rank, not a grid position.
    RollCall = "roll-call",
    /// A run that starts from scratch has found memory of earlier runs and removed none of it. A fault at this point names a
    /// rank, not a grid position.
    GroundSeen = "ground-seen",
    /// Part of the memory of a position is removed, and the next part still exists. A fault at this point names the position of
    /// that memory.
    GroundHalf = "ground-half",
    /// All memory of earlier runs is removed, and none is allocated yet. A fault at this point names a rank, not a grid position.
    GroundCleared = "ground-cleared",
    /// A part of persistent shared memory is created under its name, but has no pages yet.
    PartNamed = "part-named",
    /// Memory is allocated, and no matrix is generated yet.
    GenerateBegin = "generate-begin",
    /// The matrix is complete, and the first boundary is still to come.
    GenerateEnd = "generate-end",
    /// A boundary is reached, with or without a save.
    Iteration = "iteration",
    /// Half of a panel's columns are factored.
    PanelHalf = "panel-half",
    /// This rank's panel is factored and its broadcast has begun.
    PanelSent = "panel-sent",
    /// A panel has arrived. This point and all later points up to `step-end` exist only with checksum columns.
    PanelHere = "panel-here",
    /// All ranks have the panel, and the process column has agreed to apply it.
    StepBegin = "step-begin",
    /// The row exchange is in progress.
    SwapHalf = "swap-half",
    /// This rank's share of U is solved, and the shares of other ranks are still to come. The point exists only if process rows
    /// share the solve.
    SwapSolved = "swap-solved",
    /// U is solved, and no column is multiplied yet.
    MultiplyBegin = "multiply-begin",
    /// This rank has applied the panel.
    StepEnd = "step-end",
    /// This rank has done half of its share in recomputing the rows of a checksum column that is not lost, to remove rounding
    /// errors.
    RefreshHalf = "refresh-half",
    /// The ranks have exchanged roles after a loss, and no step has been computed since.
    Exchanged = "exchanged",
    /// This rank has done half of its share in rebuilding the rows of a lost checksum column.
    RenewHalf = "renew-half",
    /// All rows of the lost checksum columns are rebuilt.
    Renewed = "renewed",
    /// Half of the lost part of U is recomputed.
    RecomputeHalf = "recompute-half",
    /// The solver has stopped changing the matrix, and no step of the save is done.
    SaveBegin = "save-begin",
    /// The small state of the new checkpoint is written; no matrix data are copied yet.
    SaveState = "save-state",
    /// The copy is complete. A helper is about to encode it, and the rank is about to continue.
    EncodeLeft = "encode-left",
    /// Point between two batches of rows that are being encoded.
    EncodeBatch = "encode-batch",
    /// The parity is complete, and the header does not state this yet.
    EncodeEnd = "encode-end",
    /// The rank has found that its helper is done; the header does not state this yet.
    EncodeFound = "encode-found",
    /// The position is sealed, and has not reached the barrier after sealing.
    Sealed = "sealed",
    /// The barrier after sealing is passed, with no data overwritten yet.
    BarrierPassed = "barrier-passed",
    /// Half of the changed matrix data is copied over the old checkpoint.
    FlushHalf = "flush-half",
    /// The data of the checkpoint are new, and its parity is still old.
    FlushData = "flush-data",
    /// All data are new except the header.
    FlushEnd = "flush-end",
    /// The checkpoint is committed, and the matrix is not changed yet.
    Committed = "committed",
    /// A file is about to be created on storage.
    StreamBegin = "stream-begin",
    /// Half of the matrix is written to the file.
    StreamHalf = "stream-half",
    /// The whole file is on the storage device, under a temporary name that recoveries ignore.
    StreamSynced = "stream-synced",
    /// A file on storage is complete under its final name.
    StreamWhole = "stream-whole",
    /// All files are complete. The manifest is on the storage device, under a temporary name that recoveries ignore.
    ManifestSynced = "manifest-synced",
    /// The checkpoint on storage is complete, and the previous one still exists.
    ManifestWhole = "manifest-whole",
    /// A checkpoint on storage is being removed: its manifest is gone, and its other files still exist.
    PruneHalf = "prune-half",
    /// Only the new checkpoint remains on storage.
    Pruned = "pruned",
    /// A start has read the headers of the memory, and has not yet decided from which checkpoint to resume.
    AgreeBegin = "agree-begin",
    /// The ranks have agreed from which checkpoint to resume. The decision is not written to the headers yet.
    Agreed = "agreed",
    /// This rank's header contains the decision from which checkpoint to resume.
    Pinned = "pinned",
    /// A recovery completes a checkpoint that was sealed but not committed: half of the matrix is copied to the copy.
    FinishHalf = "finish-half",
    /// A recovery has completed a checkpoint that was sealed but not committed. The header does not state this yet.
    FinishEnd = "finish-end",
    /// The checkpoint to resume from is in force at this position, if its memory is not lost. Seals of later checkpoints are
    /// withdrawn.
    Settled = "settled",
    /// Point before lost positions are rebuilt.
    RebuildBegin = "rebuild-begin",
    /// Point between two batches of rows that are being rebuilt.
    RebuildBatch = "rebuild-batch",
    /// A position is rebuilt, and the header does not state this yet.
    RebuildEnd = "rebuild-end",
    /// The header of the rebuilt position states its content.
    Rebuilt = "rebuilt",
    /// The ranks have agreed that all positions have the checkpoint to resume from.
    AgreedAgain = "agreed-again",
    /// This position's file on storage is about to be read.
    FetchBegin = "fetch-begin",
    /// Half of the position's matrix is read from storage.
    FetchHalf = "fetch-half",
    /// The whole matrix is read from storage, and not saved in memory yet.
    FetchEnd = "fetch-end",
    /// A start removes unneeded checkpoints from storage. The manifest of the first such checkpoint is removed, if it had one.
    /// The checkpoint's other files still exist.
    TidyHalf = "tidy-half",
    /// The run resumes from a checkpoint on storage, and this rank has removed its share of the unneeded checkpoints. The matrix
    /// is not saved in memory yet.
    Tidied = "tidied",
    /// Half of the checkpoint is copied back to the matrix.
    RestoreHalf = "restore-half",
    /// The matrix is restored, and the header still states that a recovery is in progress.
    RestoreEnd = "restore-end",
    /// The run is ready to resume. The barrier before the computation is still to come.
    Resumed = "resumed",
    /// The factorisation is complete.
    SolveBegin = "solve-begin",
    /// Half of the back substitution is done.
    SolveHalf = "solve-half",
    /// A block of this process column is solved and the rows of the next block are sent; the rows of the blocks above are still
    /// to come.
    SolveSent = "solve-sent",
    /// The solution is computed and not yet checked.
    VerifyBegin = "verify-begin",
    /// The result of the test is recorded, and the memory of the test still exists.
    CleanBegin = "clean-begin",
    /// Part of the memory of a finished test is removed.
    CleanHalf = "clean-half",
    /// A test has ended for this rank, which has not yet received or forwarded the test's result. A fault at this point names a
    /// rank, not a grid position.
    Verdict = "verdict",
    /// All tests have ended and are reported; the records of their results still exist. A fault at this point names a rank, not a
    /// grid position.
    Told = "told",
}

impl FromStr for Point {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Point::ALL.iter().copied().find(|p| p.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Point::ALL.iter().map(|p| p.name()).collect();
            format!("{text:?} is not a crash point; the crash points are {}", names.join(", "))
        })
    }
}

/// Action of a fault: what the rank does at the crash point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Kill,
    /// Removes the position memory, then kills the rank.
    Lose,
    Stop,
    /// Blocks the calling thread, while the process and its other threads continue. If a file is named, the thread continues once
    /// the file exists.
    Hang(Option<PathBuf>),
    Exit,
    Panic,
    /// Flips all bits of one byte of a named part of the position memory.
    Corrupt {
        part: String,
        offset: usize,
    },
    /// Unwinds the thread with the payload [`Injected`]: the death of a rank that is a thread of a test.
    Unwind,
}

/// Exit code of the action `exit`, which the program itself does not use.
pub const EXIT_CODE: i32 = 111;

/// Payload of [`Action::Unwind`].
pub struct Injected(pub Point);

/// Attempts of a run to which a fault applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The attempt with this number, from 1. In-place attempts are counted.
    Attempt(u32),
    /// In-place attempt number `act` within launch number `launch`, both from 1.
    Act { launch: u32, act: u32 },
}

impl FromStr for When {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| part.parse().ok().filter(|&n: &u32| n > 0);
        let when = match text.split_once('.') {
            None => number(text).map(When::Attempt),
            Some((launch, act)) => {
                number(launch).zip(number(act)).map(|(launch, act)| When::Act { launch, act })
            }
        };
        when.ok_or_else(|| {
            format!(
                "{text:?} is neither the number of an attempt nor LAUNCH.ATTEMPT (numbers from 1)"
            )
        })
    }
}

/// An armed fault.
#[derive(Debug)]
pub struct Fault {
    pub point: Point,
    /// Grid position of the rank; `None` for any rank.
    pub position: Option<usize>,
    /// Number of the visit to the point at which the fault is injected, from 1.
    pub hit: u64,
    pub action: Action,
    /// Attempt of a supervised run in which the fault is injected; `None` for any attempt.
    pub when: Option<When>,
    seen: AtomicU64,
}

impl Fault {
    pub fn new(point: Point, position: Option<usize>, hit: u64, action: Action) -> Self {
        Self { point, position, hit, action, when: None, seen: AtomicU64::new(0) }
    }
}

impl FromStr for Fault {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (when, text) = match text.split_once('@') {
            None => (None, text),
            Some((number, rest)) => (Some(number.parse()?), rest),
        };
        let mut fields = text.splitn(4, ':');
        let mut field = |what: &str| {
            fields
                .next()
                .ok_or_else(|| format!("{text:?} has no {what}: write point:position:hit:action"))
        };
        let point = field("point")?.parse()?;
        let position = match field("position")? {
            "*" => None,
            number => Some(number.parse().map_err(|_| format!("{number:?} is not a position"))?),
        };
        let hit = field("hit")?;
        let hit = match hit.parse() {
            Ok(0) | Err(_) => {
                return Err(format!(
                    "{hit:?} is not a hit number (1: the first time that the point is reached)"
                ));
            }
            Ok(n) => n,
        };
        let action = match field("action")? {
            "kill" => Action::Kill,
            "lose" => Action::Lose,
            "stop" => Action::Stop,
            "hang" => Action::Hang(None),
            "exit" => Action::Exit,
            "panic" => Action::Panic,
            other => with_argument(other).ok_or_else(|| {
                format!(
                    "{other:?} is not an action; the actions are kill, lose, stop, hang, hang=FILE, exit, panic, \
                     corrupt=PART:OFFSET"
                )
            })?,
        };
        Ok(Fault { when, ..Fault::new(point, position, hit, action) })
    }
}

/// Parses an action that has an argument after `=`; returns `None` if the text is not such an action.
fn with_argument(text: &str) -> Option<Action> {
    match text.split_once('=')? {
        ("hang", file) => Some(Action::Hang(Some(file.into()))),
        ("corrupt", place) => {
            let (part, offset) = place.split_once(':')?;
            Some(Action::Corrupt { part: part.into(), offset: offset.parse().ok()? })
        }
        _ => None,
    }
}

/// Parses faults separated by commas.
pub fn parse(text: &str) -> Result<Vec<Fault>, String> {
    text.split(',').filter(|t| !t.trim().is_empty()).map(|t| t.trim().parse()).collect()
}

static ARMED: AtomicBool = AtomicBool::new(false);
/// Number of this launch.
static LAUNCH: AtomicU32 = AtomicU32::new(1);
/// Number of in-place attempts before the current one within this launch.
static GONE_ON: AtomicU32 = AtomicU32::new(0);
static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();

type Corruptor = Box<dyn Fn(usize, &str, usize)>;
type Remover = Box<dyn Fn(usize)>;

thread_local! {
    static MINE: RefCell<Vec<Fault>> = const { RefCell::new(Vec::new()) };
    static CORRUPTOR: RefCell<Option<Corruptor>> = const { RefCell::new(None) };
    static REMOVER: RefCell<Option<Remover>> = const { RefCell::new(None) };
}

/// Arms the faults that the environment variable SKT_FAULT describes. The program calls this function once, before MPI starts.
pub fn arm_from_environment() -> Result<(), String> {
    if let Ok(text) = std::env::var("SKT_FAULT") {
        let faults = parse(&text).map_err(|e| format!("SKT_FAULT: {e}"))?;
        // The supervisor sets the number of the attempt; without a supervisor it is the first.
        let now = std::env::var("SKT_ATTEMPT").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
        LAUNCH.store(now, Ordering::Relaxed);
        if !faults.is_empty() && FAULTS.set(faults).is_ok() {
            ARMED.store(true, Ordering::Release);
        }
    }
    Ok(())
}

/// Counts an in-place attempt: the run continues in this process after a loss.
pub fn next_attempt() {
    GONE_ON.fetch_add(1, Ordering::Relaxed);
}

/// Returns whether a burn-in must find a wrong matrix product on this node. Tests of the burn-in set `SKT_FAULT_PRODUCT=HOST`.
pub fn spoils_product(host: &str) -> bool {
    std::env::var("SKT_FAULT_PRODUCT").is_ok_and(|spoilt| spoilt == host)
}

/// Returns whether this process must act as if its processor could not run `engine`. So tests can simulate different processors
/// on one machine.
///
/// `SKT_FAULT_LACKS=avx512,avx2` disables all engines of these names; `packed` disables all engines but the BLAS.
pub fn lacks(engine: &str) -> bool {
    let this = |lacked: &str| match lacked {
        "packed" => engine != "blas",
        kind => engine.split('-').next() == Some(kind),
    };
    std::env::var("SKT_FAULT_LACKS").is_ok_and(|lacked| lacked.split(',').any(this))
}

/// Arms faults for the calling thread only. In tests, the thread is a rank.
pub fn arm_thread(faults: Vec<Fault>) {
    MINE.with(|mine| *mine.borrow_mut() = faults);
    ARMED.store(true, Ordering::Release);
}

/// From now on, reports every crash point that this process reaches to the simulation.
pub fn arm_simulation() {
    ARMED.store(true, Ordering::Release);
}

/// Sets the function that flips a byte for this thread's faults. Its arguments are the position, the name of the part and the
/// offset.
pub fn set_corruptor(corruptor: impl Fn(usize, &str, usize) + 'static) {
    CORRUPTOR.with(|c| *c.borrow_mut() = Some(Box::new(corruptor)));
}

/// Sets the function that removes all memory of a position, for this thread's faults.
pub fn set_remover(remover: impl Fn(usize) + 'static) {
    REMOVER.with(|r| *r.borrow_mut() = Some(Box::new(remover)));
}

/// Returns whether any fault is armed. If none is armed, callers need not prepare for faults.
pub fn armed() -> bool {
    ARMED.load(Ordering::Relaxed)
}

/// Marks a crash point: injects the fault that is armed for it, if any.
#[inline]
pub fn hit(point: Point, position: usize) {
    if ARMED.load(Ordering::Relaxed) {
        inject_if_due(point, position);
    }
}

/// Marks an operation on storage. Returns the error that a simulation injects into the operation, if any.
#[inline]
pub fn stores() -> std::io::Result<()> {
    match simulator() {
        Some(simulator) if armed() => simulator.stores(),
        _ => Ok(()),
    }
}

#[cold]
fn inject_if_due(point: Point, position: usize) {
    if let Some(simulator) = simulator() {
        simulator.passes(point.name(), position);
    }
    let (launch, gone_on) = (LAUNCH.load(Ordering::Relaxed), GONE_ON.load(Ordering::Relaxed));
    let now = [When::Attempt(launch + gone_on), When::Act { launch, act: gone_on + 1 }];
    let due = |fault: &Fault| -> Option<Action> {
        let here = fault.point == point
            && fault.position.is_none_or(|p| p == position)
            && fault.when.is_none_or(|when| now.contains(&when));
        let due = here && fault.seen.fetch_add(1, Ordering::Relaxed) + 1 == fault.hit;
        due.then(|| {
            announce(fault, position);
            fault.action.clone()
        })
    };
    // Actions are collected first, because an action may unwind, which must not happen while the list is borrowed.
    let actions: Vec<Action> = FAULTS
        .get()
        .into_iter()
        .flatten()
        .filter_map(&due)
        .chain(MINE.with(|mine| mine.borrow().iter().filter_map(&due).collect::<Vec<_>>()))
        .collect();
    for action in actions {
        inject(point, position, action);
    }
}

fn announce(fault: &Fault, position: usize) {
    let Fault { point, hit, action, .. } = fault;
    let name = point.name();
    let line = format!("skt-hpl: fault at position {position}: {name} hit {hit} {action:?}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Ok(path) = std::env::var("SKT_FAULT_LOG")
        && let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = file.write_all(line.as_bytes());
    }
}

fn inject(point: Point, position: usize, action: Action) {
    match action {
        // SAFETY: signals to this very process.
        Action::Kill => unsafe {
            libc::raise(libc::SIGKILL);
        },
        Action::Lose => {
            REMOVER.with_borrow(|remover| {
                if let Some(remove) = remover {
                    remove(position);
                }
            });
            inject(point, position, Action::Kill);
        }
        Action::Stop => unsafe {
            libc::raise(libc::SIGSTOP);
        },
        Action::Hang(until) => {
            while !until.as_ref().is_some_and(|file| file.exists()) {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
        Action::Exit => {
            // SAFETY: ends the process at once, without exit handlers of MPI or others.
            unsafe { libc::_exit(EXIT_CODE) }
        }
        Action::Panic => panic!("fault on purpose at {}", point.name()),
        Action::Corrupt { part, offset } => CORRUPTOR.with(|c| match &*c.borrow() {
            Some(corrupt) => corrupt(position, &part, offset),
            None => {
                let name = point.name();
                let _ =
                    writeln!(std::io::stderr(), "skt-hpl: fault: no memory to corrupt at {name}");
            }
        }),
        Action::Unwind => std::panic::resume_unwind(Box::new(Injected(point))),
    }
}

named! {
    /// A safeguard that is disabled on purpose, to check that tests fail without it. Only builds with debug assertions, such as
    /// those of tests, can disable a safeguard. In a release build `sabotaged` is constant and costs nothing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Sabotage:
    /// The barrier after sealing, before the old checkpoint is overwritten.
    NoBarrier = "no-barrier",
    /// The check of digests before memory is trusted.
    NoDigest = "no-digest",
    /// The rule that a position is sealed only after its parity is complete.
    SealsEarly = "seals-early",
    /// The rule that a save brings the older copy fully up to date, including what changed between the last two checkpoints
    /// (method double).
    OldCopy = "old-copy",
    /// The step in which a recovery completes the copy that a sealed save had begun.
    NoFinish = "no-finish",
    /// The withdrawal of a seal that a recovery does not use.
    KeepsSeal = "keeps-seal",
    /// The step that brings the older parity buffer up to date with parity that only the last save encoded (method self).
    StaleParity = "stale-parity",
    /// The rule that older checkpoints are removed only after the manifest of the new checkpoint is written.
    PrunesFirst = "prunes-first",
    /// The recomputation of U after a loss under checksum columns.
    NoRecompute = "no-recompute",
    /// The wait until the journal contains the record of a step, before the supervisor takes that step.
    NoRecord = "no-record",
    /// The time that is allowed to connect again to a node whose connection ended, before the node counts as lost.
    NoRedial = "no-redial",
    /// The judgement that the supervisor is cut off from the nodes, and that the nodes are not lost.
    NoOutage = "no-outage",
    /// The adoption of a running job by the next supervisor.
    NoAdoption = "no-adoption",
    /// The wait until the nodes have ended the ranks of the last attempt.
    LeavesRanks = "leaves-ranks",
    /// The rule that nodes keep the memory of a run between two attempts.
    CleansEarly = "cleans-early",
    /// The wait until the supervisor has decided whether unresponsive nodes are lost, before it starts their ranks on other
    /// nodes.
    ChoosesSoon = "chooses-soon",
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn sabotaged(_: Sabotage) -> bool {
    false
}

#[cfg(debug_assertions)]
mod sabotage {
    use super::Sabotage;

    thread_local! {
        static MINE: std::cell::Cell<Option<Sabotage>> = const { std::cell::Cell::new(None) };
    }

    /// Returns whether the safeguard is disabled, by this thread or by SKT_SABOTAGE=NAME for the whole process.
    pub fn sabotaged(what: Sabotage) -> bool {
        MINE.get() == Some(what) || std::env::var("SKT_SABOTAGE").is_ok_and(|v| v == what.name())
    }

    /// Disables a safeguard in the calling thread; `None` enables all safeguards again.
    pub fn sabotage_thread(what: Option<Sabotage>) {
        MINE.set(what);
    }
}
#[cfg(debug_assertions)]
pub use sabotage::{sabotage_thread, sabotaged};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_mistakes_are_named() {
        let faults = parse("sealed:3:2:kill, flush-half:*:1:corrupt=b:4096").unwrap();
        assert_eq!(faults[0].point, Point::Sealed);
        assert_eq!((faults[0].position, faults[0].hit), (Some(3), 2));
        assert_eq!(faults[1].position, None);
        assert_eq!(faults[1].action, Action::Corrupt { part: "b".into(), offset: 4096 });
        assert_eq!(faults[1].when, None);
        let hangs = parse("stream-half:1:1:hang=/tmp/x:y, stream-half:1:1:hang").unwrap();
        assert_eq!(hangs[0].action, Action::Hang(Some("/tmp/x:y".into())));
        assert_eq!(hangs[1].action, Action::Hang(None));
        let later = parse("2@rebuild-begin:0:1:stop").unwrap();
        assert_eq!(later[0].point, Point::RebuildBegin);
        assert_eq!(later[0].when, Some(When::Attempt(2)));
        let later = parse("1.2@rebuild-begin:0:1:stop").unwrap();
        assert_eq!(later[0].when, Some(When::Act { launch: 1, act: 2 }));
        for (text, says) in [
            ("nowhere:0:1:kill", "generate-begin"),
            ("0@sealed:0:1:kill", "attempt"),
            ("1.0@sealed:0:1:kill", "attempt"),
            ("1.@sealed:0:1:kill", "attempt"),
            ("sealed:x:1:kill", "position"),
            ("sealed:0:0:kill", "hit"),
            ("sealed:0:1:explode", "corrupt=PART"),
            ("sealed:0:1", "action"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn every_point_has_a_name_of_its_own() {
        let mut names: Vec<&str> = Point::ALL.iter().map(|p| p.name()).collect();
        for &name in &names {
            assert_eq!(name.parse::<Point>().unwrap().name(), name);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Point::ALL.len());
    }

    #[test]
    fn the_documentation_names_every_point_in_order() {
        let text = include_str!("../../docs/dev/protocol.md");
        let names: Vec<&str> = Point::ALL.iter().map(|p| p.name()).collect();
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(&format!("``` {} ```", names.join(" "))));
        assert!(flat.contains(&format!("The {} points, in order", names.len())));
    }

    #[test]
    fn a_fault_is_injected_at_its_hit_and_only_there() {
        arm_thread(vec![Fault::new(Point::Sealed, Some(1), 2, Action::Unwind)]);
        hit(Point::Sealed, 1);
        hit(Point::Sealed, 0);
        hit(Point::Committed, 1);
        let unwound = std::panic::catch_unwind(|| hit(Point::Sealed, 1)).unwrap_err();
        assert_eq!(unwound.downcast_ref::<Injected>().unwrap().0, Point::Sealed);
        hit(Point::Sealed, 1);
        arm_thread(vec![]);
    }

    #[test]
    fn corruption_reaches_the_memory_of_the_position() {
        use std::rc::Rc;
        let seen = Rc::new(RefCell::new(Vec::new()));
        let log = seen.clone();
        set_corruptor(move |position, part, at| {
            log.borrow_mut().push((position, part.to_owned(), at))
        });
        arm_thread(parse("iteration:4:1:corrupt=c:7").unwrap());
        hit(Point::Iteration, 4);
        arm_thread(vec![]);
        assert_eq!(*seen.borrow(), [(4, "c".to_owned(), 7)]);
    }
}
