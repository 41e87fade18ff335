//! Level two at the start of a run. Checks that DIR has its declared scope: shared by all nodes, or separate on each node. Also
//! finds the checkpoints of this run in DIR. `protection` calls this module. One rank reads each DIR, so that all ranks get the
//! same result.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::agreement::{gathered, shared_by, unanimous};
use crate::base::exit::Refusal;
use crate::base::outcome;
use crate::base::terminal::say;
use crate::checkpoint::level2::within;
use crate::checkpoint::new_run;
use crate::checkpoint::placement::Found;
use crate::checkpoint::protocol::{Method, Trace};
use crate::checkpoint::storage::choice::{self, Inventory, Kind, leave_out_strays};
use crate::checkpoint::storage::names::{Key, dir_of};
use crate::checkpoint::storage::{About, CheckpointDir, DirScope, Results};
use crate::comm::Comm;
use crate::config::settings;

/// Checkpoints that have files in a DIR, with the positions of these files.
type Files = Vec<(Key, Vec<u32>)>;

/// Facts about a rank's DIR that the rank sends to all ranks.
#[derive(Serialize, Deserialize)]
struct Report {
    /// Directory id: the number of the first rank that sees the same DIR as the rank of this report.
    dir_id: usize,
    /// Failure domain of the rank.
    domain: String,
    /// Checkpoints in DIR, and the positions of their files, on the first rank that sees DIR. Empty on other ranks. The error is
    /// a message.
    contents: Result<(Inventory, Files), String>,
}

/// Level two of one run, on one rank.
pub struct Level2 {
    /// Checkpoint directory of this rank.
    pub checkpoint_dir: CheckpointDir,
    /// Directory id: the number of the first rank that sees this DIR.
    pub dir_id: usize,
    /// Directory id of each rank; empty if all nodes share one DIR.
    dir_ids: Vec<usize>,
    /// Entry for each rank: for the first rank that sees a DIR, the checkpoints with files in this DIR. Empty if all nodes share
    /// one DIR.
    files: Vec<Files>,
    /// Inventory of checkpoints when the run began; the same on every rank.
    pub inventory: Inventory,
    /// Reason why DIR can be read but not written; `None` if DIR can be written. The same on every rank.
    pub unwritable: Option<String>,
    /// First test of this start that used storage. The value is set on all ranks, even on ranks that take no part in the test.
    /// Only this first test can have checkpoints that were found at the start.
    first: Cell<Option<u32>>,
}

/// Returns the checkpoint directory of a job on the node of failure domain `domain`; `None` without level two.
pub fn checkpoint_dir(settings: &settings::Saves, domain: &str) -> Option<CheckpointDir> {
    let level2 = settings.level2.as_ref()?;
    Some(CheckpointDir::new(&dir_of(&level2.dir, domain), &settings.job))
}

/// Returns the directory id: the number of the first rank that sees the same DIR as this rank. Collective call.
pub fn dir_id(
    comm: &Comm,
    node: &Comm,
    dir_scope: DirScope,
    checkpoint_dir: &CheckpointDir,
) -> usize {
    if dir_scope == DirScope::Shared {
        return 0;
    }
    let mine = checkpoint_dir.dir().as_os_str().as_encoded_bytes();
    let all = gathered(node, &(comm.rank(), mine.to_vec()));
    let (first, _) = all.iter().find(|(_, dir)| dir == mine).expect("this rank's own");
    *first
}

/// Facts about the run that is starting, which determine how DIR is opened and read.
pub struct Conditions<'t> {
    /// Digests of the run's tests.
    pub tests: &'t [u64],
    pub known: choice::Known,
    /// Time without progress after which storage counts as hanging.
    pub timeout: Duration,
    pub from_scratch: bool,
}

/// Function that checks or prepares DIR. The second argument is the token of [`Opening`]. The error is a message.
type Check = fn(&CheckpointDir, &str) -> Result<(), String>;

/// State of level two while a starting run opens DIR.
struct Opening<'c> {
    comm: &'c Comm,
    checkpoint_dir: CheckpointDir,
    dir_scope: DirScope,
    dir_id: usize,
    token: String,
    timeout: Duration,
    /// True on the rank that reads this DIR, on behalf of all ranks that see it.
    first: bool,
    /// True on the rank that checks the scope of DIR, on behalf of its node.
    leads: bool,
}

impl<'c> Opening<'c> {
    /// Makes the token that the first rank writes to DIR, so that other ranks can check whether they see the same DIR. All ranks
    /// that should see the same DIR get the same token. Collective call.
    fn new(
        comm: &'c Comm,
        node: &Comm,
        checkpoint_dir: CheckpointDir,
        dir_scope: DirScope,
        timeout: Duration,
    ) -> Self {
        let dir_id = dir_id(comm, node, dir_scope, &checkpoint_dir);
        let mut token = shared_by(comm, 0, || format!("{:032x}", new_run()));
        if dir_scope == DirScope::Node {
            token += &format!(".{dir_id}");
        }
        let first = comm.rank() == dir_id;
        let leads = if dir_scope == DirScope::Node { first } else { node.rank() == 0 };
        Self { comm, checkpoint_dir, dir_scope, dir_id, token, timeout, first, leads }
    }

    fn ended(&self, why: String) -> Refusal {
        let dir = self.checkpoint_dir.dir().display().to_string();
        // An error about hung storage does not name the directory.
        let why = if why.contains(&dir) { why } else { format!("--level2 {dir}: {why}") };
        Refusal::environment(why)
    }

    /// Runs `check` on DIR on the ranks with `mine`, within `timeout`. Returns `Ok(None)` on all ranks if all checks pass. If a
    /// check fails on any rank, all ranks return the failure in `Ok(Some(..))`, because an unwritable DIR may be readable. If a
    /// check hangs, all ranks return `Err`. Collective call.
    fn refusal(&self, check: Check, mine: bool) -> Result<Option<Refusal>, Refusal> {
        let (checkpoint_dir, token) = (self.checkpoint_dir.clone(), self.token.clone());
        let refused = if mine {
            within(self.timeout, move |_| Ok(check(&checkpoint_dir, &token).err()))
        } else {
            Ok(None)
        };
        let ended = |why| self.ended(why);
        let refused = unanimous(self.comm, refused.map_err(ended))?.map(ended);
        Ok(unanimous(self.comm, refused.map_or(Ok(()), Err)).err())
    }

    /// Checks DIR as [`Self::refusal`] does, but returns a failed check as `Err`, too. Collective call.
    fn look(&self, check: Check, mine: bool) -> Result<(), Refusal> {
        self.refusal(check, mine)?.map_or(Ok(()), Err)
    }

    /// Checks that DIR exists and has its declared scope. Returns the refusal if DIR cannot be written: as `Err` with
    /// `must_write`, and otherwise as `Ok(Some(..))`. The scope of an unwritable DIR is not checked. Collective call.
    fn check_scope(&self, must_write: bool) -> Result<Option<Refusal>, Refusal> {
        self.look(|checkpoint_dir, _| checkpoint_dir.is_there(), self.leads)?;
        let unwritable =
            match self.refusal(|checkpoint_dir, _| checkpoint_dir.check(), self.leads)? {
                None => self.refusal(CheckpointDir::prepare, self.first)?,
                refused => refused,
            };
        match (&unwritable, self.dir_scope) {
            (Some(refused), _) if must_write => return Err(refused.clone()),
            (Some(_), _) => {}
            (None, DirScope::Shared) => self.look(CheckpointDir::sees, self.leads)?,
            (None, DirScope::Node) => self.look(CheckpointDir::is_apart, self.leads)?,
        }
        Ok(unwritable)
    }

    /// Reads the contents of DIR on the first rank that sees it. Reads nothing if the run begins from scratch.
    fn contents(&self, from_scratch: bool) -> Result<(Inventory, Files), String> {
        if from_scratch || !self.first {
            return Ok((Inventory::default(), Vec::new()));
        }
        let (checkpoint_dir, dir_scope) = (self.checkpoint_dir.clone(), self.dir_scope);
        within(self.timeout, move |flow| {
            let files =
                if dir_scope == DirScope::Node { checkpoint_dir.files()? } else { Vec::new() };
            Ok((checkpoint_dir.survey_for(flow)?, files))
        })
    }

    /// Collects the contents and failure domain of each DIR. Also collects the directory id of each rank, and the files that each
    /// rank has found. Collective call.
    fn gather(&self, domain: &str, from_scratch: bool) -> Result<Gathered, Refusal> {
        let contents = self.contents(from_scratch);
        let mine = Report { dir_id: self.dir_id, domain: domain.to_owned(), contents };
        let all = match self.dir_scope {
            DirScope::Shared => vec![shared_by(self.comm, 0, || mine)],
            DirScope::Node => gathered(self.comm, &mine),
        };
        let mut found = Gathered::default();
        for (rank, Report { dir_id, domain, contents }) in all.into_iter().enumerate() {
            let (inventory, files) = contents.map_err(|why| self.ended(why))?;
            if rank == dir_id {
                found.stocks.push((domain, inventory));
            }
            found.dir_ids.push(dir_id);
            found.files.push(files);
        }
        Ok(found)
    }
}

/// Result of [`Opening::gather`]: the contents and failure domain of each DIR, and the directory id and files of each rank.
#[derive(Default)]
struct Gathered {
    stocks: Vec<(String, Inventory)>,
    dir_ids: Vec<usize>,
    files: Vec<Files>,
}

/// Refuses to start if checkpoints in DIR were written with another directory scope than `dir_scope`.
fn check_written_scope(
    inventory: &Inventory,
    dir_scope: DirScope,
    dir: &Path,
) -> Result<(), Refusal> {
    if inventory.sights.iter().all(|other| *other == dir_scope) {
        return Ok(());
    }
    let (was, is) = match dir_scope {
        DirScope::Shared => ("node", "shared"),
        DirScope::Node => ("shared", "node"),
    };
    Err(Refusal::bad_input(format!(
        "{} has checkpoints that were written with --level2-scope {was}, but the scope is {is} now. To resume, give \
         --level2-scope {was}. Otherwise give this run another --job name, or start from scratch with --restart never",
        dir.display()
    )))
}

/// Prints which checkpoints on storage are not used, and why.
fn print_unused(strays: &[(String, About)], inventory: &Inventory) {
    for (node, about) in strays {
        let what = words(about);
        say(format_args!("not used: on {node}: a checkpoint of another run ({what})"));
    }
    for why in &inventory.damaged {
        say(format_args!("not used, because damaged: {why}"));
    }
    for folder in &inventory.unfinished {
        say(format_args!("not used, because it was never completed: {folder}"));
    }
}

impl Level2 {
    /// Checks the scope of DIR. Takes the inventory of checkpoints, unless the run begins from scratch. Returns `None` if the
    /// settings have no level two. Collective call.
    ///
    /// The run can resume from checkpoints in an unwritable DIR, because every reader checks that a checkpoint belongs to the
    /// run.
    pub fn open(
        comm: &Comm,
        node: &Comm,
        settings: &settings::Saves,
        domain: &str,
        conditions: Conditions,
    ) -> Result<Option<Self>, Refusal> {
        let Conditions { tests, known, timeout, from_scratch } = conditions;
        let Some(checkpoint_dir) = checkpoint_dir(settings, domain) else { return Ok(None) };
        let dir_scope = settings.level2.as_ref().map(|level2| level2.scope).unwrap_or_default();
        let opening = Opening::new(comm, node, checkpoint_dir, dir_scope, timeout);
        let must_write = from_scratch || settings.scheme.method == Method::Disk;
        let unwritable = opening.check_scope(must_write)?;
        let Gathered { mut stocks, mut dir_ids, mut files } =
            opening.gather(domain, from_scratch)?;
        let (inventory, strays) = match dir_scope {
            DirScope::Shared => (stocks.swap_remove(0).1, Vec::new()),
            DirScope::Node => {
                let strays = leave_out_strays(&mut stocks, tests, known);
                (Inventory::merged(stocks, known.in_memory), strays)
            }
        };
        if let Some(refused) = &unwritable
            && inventory.whole.is_empty()
            && inventory.results.is_empty()
        {
            return Err(refused.clone());
        }
        let unwritable = unwritable.map(|refused| refused.why);
        let Opening { checkpoint_dir, dir_id, .. } = opening;
        check_written_scope(&inventory, dir_scope, checkpoint_dir.dir())?;
        if comm.rank() == 0 {
            print_unused(&strays, &inventory);
        }
        if dir_scope == DirScope::Shared {
            // All ranks see all files.
            (dir_ids, files) = (Vec::new(), Vec::new());
        }
        Ok(Some(Self {
            checkpoint_dir,
            dir_id,
            dir_ids,
            files,
            inventory,
            unwritable,
            first: Cell::new(None),
        }))
    }

    /// Records that the run has reached test `number`. Collective call.
    pub fn comes_to(&self, number: u32) {
        self.first.set(self.first.get().or(Some(number)));
    }

    /// Returns the directory id of each rank, and the positions of test `number` that have files in each rank's DIR. Files of a
    /// newer checkpoint get a higher [`Found::run`], so that a position goes to a rank that sees the position's newest file.
    /// Returns `None` if all ranks see the same files. The result is the same on every rank, including idle ranks.
    pub fn files_of(&self, number: u32, digest: u64) -> Option<(&[usize], Vec<Vec<Found>>)> {
        let stored = self.inventory.for_test(number, digest);
        if stored.is_empty() || self.dir_ids.is_empty() {
            return None;
        }
        let keys: Vec<Key> = stored.iter().map(About::key).collect();
        let of_checkpoint = |(key, positions): &(Key, Vec<u32>)| {
            let worth = keys.iter().rev().position(|known| known == key);
            let found = |run: usize| {
                let run = run as u128;
                let at = |position: &u32| {
                    let position = *position as usize;
                    Found { position, run, vacant: false, trace: Trace::default() }
                };
                positions.iter().map(at).collect::<Vec<Found>>()
            };
            worth.map(found).unwrap_or_default()
        };
        let found = |files: &Files| files.iter().flat_map(of_checkpoint).collect();
        Some((&self.dir_ids, self.files.iter().map(found).collect()))
    }

    /// Refuses to start if DIR has checkpoints that no test of this run can have written.
    pub fn check(&self, tests: &[u64], rounding: &str, job: &str) -> Result<(), Refusal> {
        let Some((about, kind)) = self.inventory.odd_one(tests) else { return Ok(()) };
        let dir = self.checkpoint_dir.dir().display();
        Err(match kind {
            Kind::RoundsOtherwise => Refusal::environment(format!(
                "the checkpoint of this run in {dir} was computed with another arithmetic ({}) than that of \
                 these ranks ({rounding}): resuming would change the last bits of the result. Start on nodes \
                 with the same processors and BLAS as before, or give this run another --job name",
                about.arithmetic
            )),
            _ => Refusal::bad_input(format!(
                "{dir} has a checkpoint of another run of job {job:?}: {}. Finish that run, give this run another \
                 --job name, or remove the checkpoint with `skt-hpl clean --job {job} --level2 {dir}` or --restart never",
                words(about)
            )),
        })
    }

    /// Returns true if test `number` is the first test of this start that used storage.
    pub fn begins_with(&self, number: u32) -> bool {
        self.first.get() == Some(number)
    }

    /// Lists the tests whose results may stay on storage. `finished` are the tests whose results were found at the start. `ended`
    /// are the tests that have ended since the start.
    pub fn counting(&self, finished: impl Iterator<Item = u32>, ended: &[u32]) -> Results {
        // The text of results that the start found only in memory is not known here.
        let of_memory = finished.map(|test| (test, None));
        let here =
            self.inventory.results.iter().map(|(test, text)| (*test, Some(Results::mark(text))));
        // Storage may have a newer text for tests that ended since.
        let ended = ended.iter().map(|test| (*test, None));
        Results(of_memory.chain(here).chain(ended).collect())
    }
}

/// Describes the test, the problem and the progress of a checkpoint.
pub fn words(about: &About) -> String {
    format!(
        "test {}, N = {}, NB = {}, grid {} x {}, boundary {} of {}",
        about.test + 1,
        about.n,
        about.nb,
        about.p,
        about.q,
        about.boundary,
        about.blocks()
    )
}

/// Adds up the accounts of a test's level two: from earlier starts, and from this start; either may be absent.
pub fn account(
    earlier: Option<outcome::Level2>,
    now: Option<outcome::Level2>,
) -> Option<outcome::Level2> {
    let Some(now) = now else { return earlier };
    let mut sum = earlier.unwrap_or_default();
    sum.checkpoints += now.checkpoints;
    sum.bytes += now.bytes;
    sum.write_s += now.write_s;
    sum.put_off += now.put_off;
    sum.put_off_s += now.put_off_s;
    sum.wait_s += now.wait_s;
    (sum.alone, sum.waited) = (now.alone, now.waited);
    Some(sum)
}
