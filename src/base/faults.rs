//! Named crash points: faults on purpose, at an exact step.
//!
//! `SKT_FAULT=point:position:hit:action` (several separated by commas; position `*` is any) makes the
//! rank at that grid position do the action when it comes to that point for the hit-th time. Before it
//! strikes it writes a line to stderr and, if `SKT_FAULT_LOG` names a file, to that file with fsync: so a
//! test can assert that it died *there*. Not armed, a point costs one relaxed load.
//!
//! Under `skt-hpl run` every incarnation of the job has the same variable; `2@point:...` strikes in the second only. So a test
//! can strike a run in the middle of recovering from what struck it first. Going on without a rank that was lost (`--nonstop`)
//! counts as one more incarnation; `1.2@point:...` strikes when the first launch has gone on in place once, and not when it is
//! launched a second time.
//!
//! What may be done, and why a run must survive it: `kill` is a process lost (memory stays; the harness removes it to make a node
//! lost); `lose` is one that takes its position's memory along, as a node would; `stop` a rank that hangs; `hang` a thread that
//! does (`hang=<file>`: until that file is there); `exit` a rank that leaves without a word; `panic` a bug;
//! `corrupt=<part>:<offset>` a flipped byte in a named part of its memory.

use std::cell::RefCell;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::simulated::simulator;

macro_rules! points {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A step at which a fault can be made to strike.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Point { $($(#[$doc])* $name,)* }

        impl Point {
            /// Every point, in the order a run comes to them.
            pub const ALL: &[Point] = &[$(Point::$name,)*];

            pub fn name(self) -> &'static str {
                match self { $(Point::$name => $text,)* }
            }

            /// Steps of a job before its first test begins, whatever protects it.
            pub fn is_of_start(self) -> bool {
                matches!(self, Point::Started | Point::RollCall)
            }

            /// Steps of a run that begins anew where others have left something.
            pub fn is_of_ground(self) -> bool {
                matches!(self, Point::GroundSeen | Point::GroundHalf | Point::GroundCleared)
            }

            /// Steps of a save whose checksum helpers make, which no other save comes to.
            pub fn is_helpers(self) -> bool {
                matches!(self, Point::EncodeLeft | Point::EncodeFound)
            }

            /// These points and all between them.
            pub fn between(first: Point, last: Point) -> &'static [Point] {
                let at = |point| Point::ALL.iter().position(|p| *p == point).expect("it is there");
                &Point::ALL[at(first)..=at(last)]
            }

            /// Steps of the solver itself, which has them under any protection; `tests/nonstop` strikes there.
            pub fn is_solvers(self) -> bool {
                Point::between(Point::PanelHalf, Point::RegainHalf).contains(&self)
                    || matches!(self, Point::SolveHalf | Point::SolveSent)
            }
        }
    };
}

points! {
    /// MPI has started, no attempt has begun. By rank, not by position.
    Started = "started",
    /// An attempt has begun, its ranks have not met yet: under `--nonstop` and `--method abft`. By rank, not by position.
    RollCall = "roll-call",
    /// Where a run begins anew: what others have left is seen, nothing of it is removed. By rank, not by position.
    GroundSeen = "ground-seen",
    /// A part of the memory of a position is removed, the next one is still there. By that memory's position.
    GroundHalf = "ground-half",
    /// All is removed, nothing is made yet. By rank, not by position.
    GroundCleared = "ground-cleared",
    /// A part of named memory has its name; its pages are still to come.
    PartNamed = "part-named",
    /// Memory is made, nothing generated yet.
    GenerateBegin = "generate-begin",
    /// The matrix is complete; the first boundary is still to come.
    GenerateEnd = "generate-end",
    /// At any boundary, saving or not.
    Iteration = "iteration",
    /// Half of a panel's columns are factored.
    PanelHalf = "panel-half",
    /// This rank's panel is factored and on its way.
    PanelSent = "panel-sent",
    /// A panel has come. This and the points up to `step-end`: with a checksum column.
    PanelHere = "panel-here",
    /// All have the panel, and the process column has agreed to apply it.
    StepBegin = "step-begin",
    /// Amid the exchange of rows.
    SwapHalf = "swap-half",
    /// The own share of U is solved, the others' are still to come: where process rows share the solving.
    SwapSolved = "swap-solved",
    /// U is solved, nothing is multiplied.
    MultiplyBegin = "multiply-begin",
    /// The panel is applied here.
    StepEnd = "step-end",
    /// Half of the rows of the sums are made again, as far as this rank has a share in them.
    RefreshHalf = "refresh-half",
    /// After a loss roles are exchanged, nothing is computed since.
    Exchanged = "exchanged",
    /// Half of the rows of new sums are made, as far as this rank has a share in them.
    RenewHalf = "renew-half",
    /// All of them are.
    Renewed = "renewed",
    /// Half of the lost part of U is regained.
    RegainHalf = "regain-half",
    /// A is frozen, nothing of the save has happened.
    SaveBegin = "save-begin",
    /// The small state is in its spare place.
    SaveState = "save-state",
    /// The copy is made; a helper is about to encode it, and the rank to go on.
    EncodeLeft = "encode-left",
    /// Between two batches of rows being encoded.
    EncodeBatch = "encode-batch",
    /// The checksum is complete, the header does not say so yet.
    EncodeEnd = "encode-end",
    /// The rank has found that its helper is done; the header does not say so yet.
    EncodeFound = "encode-found",
    /// Sealed, before the barrier.
    Sealed = "sealed",
    /// Past the barrier, nothing overwritten yet.
    BarrierPassed = "barrier-passed",
    /// Half of the checkpoint is overwritten.
    FlushHalf = "flush-half",
    /// The checkpoint is new, its checksum is old.
    FlushData = "flush-data",
    /// All is new but the header.
    FlushEnd = "flush-end",
    /// Committed, A not touched yet.
    Committed = "committed",
    /// A file is about to be made on storage.
    StreamBegin = "stream-begin",
    /// Half of the matrix is written to it.
    StreamHalf = "stream-half",
    /// All of it is on the device, under a name that does not count.
    StreamSynced = "stream-synced",
    /// The file has its name.
    StreamWhole = "stream-whole",
    /// All files are whole, and the manifest is on the device, under a name that does not count.
    ManifestSynced = "manifest-synced",
    /// The epoch on storage is whole; the one before it is still there.
    ManifestWhole = "manifest-whole",
    /// An older epoch has lost its manifest.
    PruneHalf = "prune-half",
    /// Only the new epoch is there.
    Pruned = "pruned",
    /// Headers are read, nothing is decided.
    AgreeBegin = "agree-begin",
    /// Decided and checked, nothing written.
    Agreed = "agreed",
    /// The decision is in my header.
    Pinned = "pinned",
    /// Half of an unfinished flush is done again.
    FinishHalf = "finish-half",
    /// The flush is finished, the header does not say so yet.
    FinishEnd = "finish-end",
    /// The checkpoint is the target, later seals are void.
    Settled = "settled",
    /// Before the lost are rebuilt.
    RebuildBegin = "rebuild-begin",
    /// Between two batches of rows being rebuilt.
    RebuildBatch = "rebuild-batch",
    /// Rebuilt, the header does not say so yet.
    RebuildEnd = "rebuild-end",
    /// The rebuilt position says what it holds.
    Rebuilt = "rebuilt",
    /// The second agreement is made.
    AgreedAgain = "agreed-again",
    /// This position's file on storage is about to be read.
    FetchBegin = "fetch-begin",
    /// Half of its matrix is read.
    FetchHalf = "fetch-half",
    /// All of it is in the workspace; no save in memory has been made of it yet.
    FetchEnd = "fetch-end",
    /// Where a start removes from storage what nobody needs: an epoch has lost its manifest, if it had one.
    TidyHalf = "tidy-half",
    /// The run goes on from an epoch on storage, and what nobody needs there is removed, as far as that is for this rank to do;
    /// no save in memory has been made of it yet.
    Tidied = "tidied",
    /// Half of the checkpoint is copied back.
    RestoreHalf = "restore-half",
    /// A is restored, the header still says recovering.
    RestoreEnd = "restore-end",
    /// Resumed, before the last barrier.
    Resumed = "resumed",
    /// The factorisation is over.
    SolveBegin = "solve-begin",
    /// Half of the back substitution is done.
    SolveHalf = "solve-half",
    /// A block of this process column is solved and the next block's rows are on their way; those above are still to come.
    SolveSent = "solve-sent",
    /// The solution is there, not yet checked.
    VerifyBegin = "verify-begin",
    /// The result is recorded, memory still there.
    CleanBegin = "clean-begin",
    /// Some of the memory is removed.
    CleanHalf = "clean-half",
    /// A test is over for this rank; it is still to hear, or to pass on, what came of it. By rank, not by position.
    Verdict = "verdict",
    /// All tests are over and told; results are still kept. By rank, not by position.
    Told = "told",
}

impl FromStr for Point {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Point::ALL.iter().copied().find(|p| p.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Point::ALL.iter().map(|p| p.name()).collect();
            format!("{text:?} is no crash point; there are {}", names.join(", "))
        })
    }
}

/// What happens when a fault strikes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Kill,
    /// Its memory first, then itself.
    Lose,
    Stop,
    /// Gets no further, though its process is well and its other threads go on; until the file is there, if one is named.
    Hang(Option<PathBuf>),
    Exit,
    Panic,
    /// Flip all bits of one byte of the position's named part.
    Corrupt {
        part: String,
        offset: usize,
    },
    /// Unwind with [`Struck`]: the death of a rank that is a thread of a test.
    Unwind,
}

/// Exit code of the action `exit`: no code the program uses itself.
pub const EXIT_CODE: i32 = 111;

/// Payload of [`Action::Unwind`].
pub struct Struck(pub Point);

/// In which part of a run a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// From 1; going on in place counts as one more.
    Incarnation(u32),
    /// From 1 both: which launch, and which act of it.
    Act { launch: u32, act: u32 },
}

impl FromStr for When {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| part.parse().ok().filter(|&n: &u32| n > 0);
        let when = match text.split_once('.') {
            None => number(text).map(When::Incarnation),
            Some((launch, act)) => {
                number(launch).zip(number(act)).map(|(launch, act)| When::Act { launch, act })
            }
        };
        when.ok_or_else(|| format!("{text:?} is no incarnation number (from 1)"))
    }
}

/// One armed fault.
#[derive(Debug)]
pub struct Fault {
    pub point: Point,
    /// None: whichever rank comes there.
    pub position: Option<usize>,
    /// Strikes at this arrival, counted from 1.
    pub hit: u64,
    pub action: Action,
    /// None: in whichever incarnation of a supervised run.
    pub when: Option<When>,
    seen: AtomicU64,
}

impl Fault {
    pub fn new(point: Point, position: Option<usize>, hit: u64, action: Action) -> Self {
        Self { point, position, hit, action, when: None, seen: AtomicU64::new(0) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hit {} {:?}", self.point.name(), self.hit, self.action)
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
                .ok_or_else(|| format!("{text:?} lacks its {what}: point:position:hit:action"))
        };
        let point = field("point")?.parse()?;
        let position = match field("position")? {
            "*" => None,
            number => Some(number.parse().map_err(|_| format!("{number:?} is no position"))?),
        };
        let hit = field("hit")?;
        let hit = match hit.parse() {
            Ok(0) | Err(_) => return Err(format!("{hit:?} is no hit number (from 1)")),
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
                    "{other:?} is no action; there are kill, lose, stop, hang, hang=FILE, exit, panic, corrupt=PART:OFFSET"
                )
            })?,
        };
        Ok(Fault { when, ..Fault::new(point, position, hit, action) })
    }
}

/// Reads an action that says more than its name.
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

/// Faults separated by commas.
pub fn parse(text: &str) -> Result<Vec<Fault>, String> {
    text.split(',').filter(|t| !t.trim().is_empty()).map(|t| t.trim().parse()).collect()
}

static ARMED: AtomicBool = AtomicBool::new(false);
/// Which launch this is, and how often it has gone on in place.
static LAUNCH: AtomicU32 = AtomicU32::new(1);
static GONE_ON: AtomicU32 = AtomicU32::new(0);
static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();

type Corruptor = Box<dyn Fn(usize, &str, usize)>;
type Remover = Box<dyn Fn(usize)>;

thread_local! {
    static MINE: RefCell<Vec<Fault>> = const { RefCell::new(Vec::new()) };
    static CORRUPTOR: RefCell<Option<Corruptor>> = const { RefCell::new(None) };
    static REMOVER: RefCell<Option<Remover>> = const { RefCell::new(None) };
}

/// Reads SKT_FAULT. Called once by the program, before MPI starts.
pub fn arm_from_environment() -> Result<(), String> {
    if let Ok(text) = std::env::var("SKT_FAULT") {
        let faults = parse(&text).map_err(|e| format!("SKT_FAULT: {e}"))?;
        // The supervisor says which one this is; unsupervised it is the first.
        let now = std::env::var("SKT_INCARNATION").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
        LAUNCH.store(now, Ordering::Relaxed);
        if !faults.is_empty() && FAULTS.set(faults).is_ok() {
            ARMED.store(true, Ordering::Release);
        }
    }
    Ok(())
}

/// The run goes on in this very process after a loss, as it would in a new one.
pub fn next_incarnation() {
    GONE_ON.fetch_add(1, Ordering::Relaxed);
}

/// Whether the product that a burn-in looks at is to come out wrong on this node: `SKT_FAULT_PRODUCT=HOST`.
pub fn spoils_product(host: &str) -> bool {
    std::env::var("SKT_FAULT_PRODUCT").is_ok_and(|spoilt| spoilt == host)
}

/// Whether this process is to do as if its processor could not run that engine: how tests have unlike
/// processors on one machine. `SKT_FAULT_LACKS=avx512,avx2` takes all engines of these names, `packed` all but the BLAS.
pub fn lacks(engine: &str) -> bool {
    let this = |lacked: &str| match lacked {
        "packed" => engine != "blas",
        kind => engine.split('-').next() == Some(kind),
    };
    std::env::var("SKT_FAULT_LACKS").is_ok_and(|lacked| lacked.split(',').any(this))
}

/// Arms faults for the calling thread only: a rank of an in-process test.
pub fn arm_thread(faults: Vec<Fault>) {
    MINE.with(|mine| *mine.borrow_mut() = faults);
    ARMED.store(true, Ordering::Release);
}

/// Has a simulation look at every crash point that this process comes to.
pub fn arm_simulation() {
    ARMED.store(true, Ordering::Release);
}

/// Says how a byte of (position, part) at an offset is flipped, for this thread's faults.
pub fn set_corruptor(corruptor: impl Fn(usize, &str, usize) + 'static) {
    CORRUPTOR.with(|c| *c.borrow_mut() = Some(Box::new(corruptor)));
}

/// Says how all memory of a position is removed, for this thread's faults.
pub fn set_remover(remover: impl Fn(usize) + 'static) {
    REMOVER.with(|r| *r.borrow_mut() = Some(Box::new(remover)));
}

/// Whether any fault is armed: callers may prepare for it only then.
pub fn armed() -> bool {
    ARMED.load(Ordering::Relaxed)
}

/// A crash point. Does nothing unless a fault is armed for it.
#[inline]
pub fn hit(point: Point, position: usize) {
    if ARMED.load(Ordering::Relaxed) {
        strike_if_due(point, position);
    }
}

#[cold]
fn strike_if_due(point: Point, position: usize) {
    if let Some(simulator) = simulator() {
        simulator.passes(point, position);
    }
    let (launch, gone_on) = (LAUNCH.load(Ordering::Relaxed), GONE_ON.load(Ordering::Relaxed));
    let now = [When::Incarnation(launch + gone_on), When::Act { launch, act: gone_on + 1 }];
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
    // Collected first: striking may unwind, and must not do so with the list borrowed.
    let actions: Vec<Action> = FAULTS
        .get()
        .into_iter()
        .flatten()
        .filter_map(&due)
        .chain(MINE.with(|mine| mine.borrow().iter().filter_map(&due).collect::<Vec<_>>()))
        .collect();
    for action in actions {
        strike(point, position, action);
    }
}

fn announce(fault: &Fault, position: usize) {
    let line = format!("skt-hpl: fault at position {position}: {fault}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Ok(path) = std::env::var("SKT_FAULT_LOG")
        && let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = file.write_all(line.as_bytes());
    }
}

fn strike(point: Point, position: usize, action: Action) {
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
            strike(point, position, Action::Kill);
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
            // SAFETY: ends the process at once, without MPI's or anybody's exit handlers.
            unsafe { libc::_exit(EXIT_CODE) }
        }
        Action::Panic => panic!("fault on purpose at {}", point.name()),
        Action::Corrupt { part, offset } => CORRUPTOR.with(|c| match &*c.borrow() {
            Some(corrupt) => corrupt(position, &part, offset),
            None => {
                let name = point.name();
                let _ = writeln!(std::io::stderr(), "skt-hpl: fault: nothing to corrupt at {name}");
            }
        }),
        Action::Unwind => std::panic::resume_unwind(Box::new(Struck(point))),
    }
}

macro_rules! sabotages {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A safeguard left out on purpose, to see that the tests notice. Only builds with debug assertions, which are those
        /// that tests are made with, can leave any out; in a release build `sabotaged` is constant and costs nothing.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Sabotage { $($(#[$doc])* $name,)* }

        impl Sabotage {
            /// Every one of them.
            pub const ALL: &[Sabotage] = &[$(Sabotage::$name,)*];

            pub fn name(self) -> &'static str {
                match self { $(Sabotage::$name => $text,)* }
            }
        }
    };
}

sabotages! {
    /// The barrier between sealing and overwriting.
    NoBarrier = "no-barrier",
    /// The check of digests before memory is trusted.
    NoDigest = "no-digest",
    /// The order of encoding and sealing: sealed before the parity is there.
    SealsEarly = "seals-early",
    /// The bytes of the copy that only the save before the last has changed (method double).
    OldCopy = "old-copy",
    /// The copy that a save which was sealed everywhere had begun, and a recovery is to finish.
    NoFinish = "no-finish",
    /// The withdrawal of a seal that a recovery does not go back to.
    KeepsSeal = "keeps-seal",
    /// The vote before a step.
    NoVote = "no-vote",
    /// The note that a message was refused.
    TakesRefused = "takes-refused",
    /// The agreement that all ranks have left, before their buffers go.
    LeavesAlone = "leaves-alone",
    /// The barrier of a recovery before the workspace is overwritten.
    NoRecoveryBarrier = "no-recovery-barrier",
    /// The order of the manifest and the removal of older checkpoints.
    PrunesFirst = "prunes-first",
    /// The recomputation of U after a loss under checksum columns.
    NoRegain = "no-regain",
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

    /// By this thread, or by SKT_SABOTAGE=NAME for the whole process.
    pub fn sabotaged(what: Sabotage) -> bool {
        MINE.get() == Some(what) || std::env::var("SKT_SABOTAGE").is_ok_and(|v| v == what.name())
    }

    /// Leaves a safeguard out in the calling thread.
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
        assert_eq!(later[0].when, Some(When::Incarnation(2)));
        let later = parse("1.2@rebuild-begin:0:1:stop").unwrap();
        assert_eq!(later[0].when, Some(When::Act { launch: 1, act: 2 }));
        for (text, says) in [
            ("nowhere:0:1:kill", "generate-begin"),
            ("0@sealed:0:1:kill", "incarnation"),
            ("1.0@sealed:0:1:kill", "incarnation"),
            ("1.@sealed:0:1:kill", "incarnation"),
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
    fn a_fault_strikes_at_its_hit_and_only_there() {
        arm_thread(vec![Fault::new(Point::Sealed, Some(1), 2, Action::Unwind)]);
        hit(Point::Sealed, 1);
        hit(Point::Sealed, 0);
        hit(Point::Committed, 1);
        let struck = std::panic::catch_unwind(|| hit(Point::Sealed, 1)).unwrap_err();
        assert_eq!(struck.downcast_ref::<Struck>().unwrap().0, Point::Sealed);
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
