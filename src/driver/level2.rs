//! The second level at the start of a run: whether DIR is what it is said to be, one that all nodes share or each node's
//! own, what lies there, and what of it is this run's. `protection` asks; one rank reads each DIR for all, so all ranks
//! know the same.

use std::cell::Cell;
use std::time::Duration;

use super::agreement::{Ended, unanimous};
use crate::base::exit::Exit;
use crate::base::outcome;
use crate::base::terminal::say;
use crate::checkpoint::level2::{Storage, patiently_for};
use crate::checkpoint::new_run;
use crate::checkpoint::placement::Found;
use crate::checkpoint::plan::Helpers;
use crate::checkpoint::protocol::{Method, Trace};
use crate::checkpoint::storage::choice::{self, Kind, Stock, leave_out_strays};
use crate::checkpoint::storage::names::{Key, dir_of};
use crate::checkpoint::storage::{About, Counting, Results, Shelf, Sight};
use crate::comm::Comm;
use crate::config::settings;

/// Positions that have a file in a DIR, by epoch.
type Files = Vec<(Key, Vec<u32>)>;

/// What a rank tells of its DIR: the first rank that sees it, and if it is that one, its failure domain and what lies there.
type Told = (usize, Option<(String, Result<(Stock, Files), String>)>);

/// The second level of one run, on one rank.
pub struct Level2<'a> {
    settings: &'a settings::Level2,
    /// This rank's.
    pub shelf: Shelf,
    /// The first rank of those that see this DIR.
    seat: usize,
    /// Of every rank, the first rank of those that see its DIR, and, told by that one, which positions' files lie there, by
    /// epoch. Empty where all nodes share one DIR.
    seats: Vec<usize>,
    files: Vec<Files>,
    /// What lay there when the run began; the same on every rank.
    pub stock: Stock,
    /// Why nothing can be put there, where what lies there can be read; the same on every rank.
    pub unwritable: Option<String>,
    /// The first test of this start that storage was asked about. What lay there counts for that one alone, on all ranks, whether
    /// they have a part in it or not: later ones cannot have left anything.
    first: Cell<Option<u32>>,
}

/// The folder of a job on the node of this failure domain, where there is a second level.
pub fn shelf(settings: &settings::Protection, domain: &str) -> Option<Shelf> {
    let level2 = settings.level2.as_ref()?;
    Some(Shelf::new(&dir_of(&level2.dir, domain), &settings.job))
}

/// The first rank of those that see the same DIR as this one. All ranks together.
pub fn seat(comm: &Comm, node: &Comm, sight: Sight, shelf: &Shelf) -> usize {
    if sight == Sight::Shared {
        return 0;
    }
    let rank = comm.rank() as u64;
    let mut mine = rank.to_le_bytes().to_vec();
    mine.extend(shelf.dir().as_os_str().as_encoded_bytes());
    let all = node.all_gather_bytes(&mine);
    let first = all.iter().find(|told| told[8..] == mine[8..]).expect("this rank's own");
    u64::from_le_bytes(first[..8].try_into().expect("eight bytes")) as usize
}

impl<'a> Level2<'a> {
    /// Makes sure that all nodes see one DIR, or each its own, and reads what lies there, unless the run begins `anew`; nobody
    /// waits longer than `patience` for storage that hangs. `tests` are the digests of the run's tests. All ranks together.
    ///
    /// Where a DIR cannot be written in, nobody can be shown to see the same; what lies there can be gone on from all the same,
    /// for whoever reads looks at whose it is.
    pub fn open(
        (comm, node): (&Comm, &Comm),
        settings: &'a settings::Protection,
        domain: &str,
        (tests, known): (&[u64], choice::Known),
        patience: Duration,
        anew: bool,
    ) -> Result<Option<Self>, Ended> {
        let Some(shelf) = shelf(settings, domain) else { return Ok(None) };
        let level2 = settings.level2.as_ref().expect("it has a shelf");
        let sight = level2.scope;
        let seat = seat(comm, node, sight, &shelf);
        let dir = shelf.dir().display().to_string();
        let ended = |why: String| {
            // What hangs does not say where.
            let why = if why.contains(&dir) { why } else { format!("--level2 {dir}: {why}") };
            Ended::new(Exit::Environment, why)
        };
        let mut token = format!("{:032x}", new_run()).into_bytes();
        comm.broadcast_bytes(&mut token, 0);
        let mut token = String::from_utf8(token).expect("hexadecimal digits");
        if sight == Sight::Node {
            token += &format!(".{seat}");
        }
        // Who reads its DIR for all that see it, and who looks whether it does.
        let first = comm.rank() == seat;
        let leads = if sight == Sight::Node { first } else { node.rank() == 0 };
        // A file system that hangs keeps nobody waiting for ever.
        let look = |with: fn(&Shelf, &str) -> Result<(), String>, mine: bool| {
            let (shelf, token) = (shelf.clone(), token.clone());
            let found =
                if mine { patiently_for(patience, move |_| with(&shelf, &token)) } else { Ok(()) };
            unanimous(comm, found.map_err(ended))
        };
        // What refuses to be written in may be read; what hangs may not.
        let refusal = |with: fn(&Shelf, &str) -> Result<(), String>,
                       mine: bool|
         -> Result<Option<Ended>, Ended> {
            let (shelf, token) = (shelf.clone(), token.clone());
            let told = match mine {
                true => patiently_for(patience, move |_| Ok(with(&shelf, &token).err())),
                false => Ok(None),
            };
            let told = unanimous(comm, told.map_err(ended))?.map(ended);
            Ok(unanimous(comm, told.map_or(Ok(()), Err)).err())
        };
        look(|shelf, _| shelf.is_there(), leads)?;
        let unwritable = match refusal(|shelf, _| shelf.check(), leads)? {
            None => refusal(Shelf::prepare, first)?,
            refused => refused,
        };
        let must_write = anew || settings.scheme.method == Method::Disk;
        match (&unwritable, sight) {
            (Some(refused), _) if must_write => return Err(refused.clone()),
            (Some(_), _) => {}
            (None, Sight::Shared) => look(Shelf::sees, leads)?,
            (None, Sight::Node) => look(Shelf::is_apart, leads)?,
        }
        let found = first.then(|| {
            if anew {
                return (domain.to_owned(), Ok((Stock::default(), Vec::new())));
            }
            let shelf = shelf.clone();
            let found = patiently_for(patience, move |flow| {
                let files = if sight == Sight::Node { shelf.files()? } else { Vec::new() };
                Ok((shelf.survey_for(flow)?, files))
            });
            (domain.to_owned(), found)
        });
        let mine: Told = (seat, found);
        let mut bytes = serde_json::to_vec(&mine).expect("plain values have a JSON form");
        let all = match sight {
            Sight::Shared => {
                comm.broadcast_bytes(&mut bytes, 0);
                vec![bytes]
            }
            Sight::Node => comm.all_gather_bytes(&bytes),
        };
        let (mut stocks, mut seats, mut files) = (Vec::new(), Vec::new(), Vec::new());
        for bytes in &all {
            let (seat, found): Told =
                serde_json::from_slice(bytes).expect("ranks of one run are one program");
            let mut here = Vec::new();
            if let Some((node, found)) = found {
                let (stock, files) = found.map_err(&ended)?;
                stocks.push((node, stock));
                here = files;
            }
            seats.push(seat);
            files.push(here);
        }
        let strays = match sight {
            Sight::Shared => Vec::new(),
            Sight::Node => leave_out_strays(&mut stocks, tests, known),
        };
        let stock = match sight {
            Sight::Shared => stocks.swap_remove(0).1,
            Sight::Node => Stock::merged(stocks, known.in_memory),
        };
        if let Some(refused) = &unwritable
            && stock.whole.is_empty()
            && stock.results.is_empty()
        {
            return Err(refused.clone());
        }
        let unwritable = unwritable.map(|refused| refused.why);
        if stock.sights.iter().any(|other| *other != sight) {
            let (was, is) = match sight {
                Sight::Shared => ("node", "shared"),
                Sight::Node => ("shared", "node"),
            };
            return Err(Ended::new(
                Exit::BadInput,
                format!(
                    "{dir} has checkpoints that were written with --level2-scope {was}, and {is} is asked for now: give {was} \
                     to go on from them, give this run another --job name, or begin anew with --restart never"
                ),
            ));
        }
        if comm.rank() == 0 {
            for (node, about) in &strays {
                let what = words(about);
                say(format_args!("not used: on {node}: a checkpoint of another run ({what})"));
            }
            for why in &stock.damaged {
                say(format_args!("not believed: {why}"));
            }
            for folder in &stock.unfinished {
                say(format_args!("not used, for it was never completed: {folder}"));
            }
        }
        if sight == Sight::Shared {
            // Everybody sees all of them.
            (seats, files) = (Vec::new(), Vec::new());
        }
        let first = Cell::new(None);
        Ok(Some(Self { settings: level2, shelf, seat, seats, files, stock, unwritable, first }))
    }

    /// The run comes to test `number`. All ranks together.
    pub fn comes_to(&self, number: u32) {
        self.first.set(self.first.get().or(Some(number)));
    }

    /// Whose files of test `number` lie with which rank, those of the best epoch preferred: a position goes where its file
    /// is. None where that makes no difference. The same on every rank, those that are left over included.
    pub fn files_of(&self, number: u32, digest: u64) -> Option<(&[usize], Vec<Vec<Found>>)> {
        let stored = self.stock.for_test(number, digest);
        if stored.is_empty() || self.seats.is_empty() {
            return None;
        }
        let keys: Vec<Key> = stored.iter().map(About::key).collect();
        let of_epoch = |(key, positions): &(Key, Vec<u32>)| {
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
        let found = |files: &Files| files.iter().flat_map(of_epoch).collect();
        Some((&self.seats, self.files.iter().map(found).collect()))
    }

    /// Refuses what no test of this run can have left.
    pub fn check(&self, tests: &[u64], rounding: &str, job: &str) -> Result<(), Ended> {
        let Some((about, kind)) = self.stock.odd_one(tests) else { return Ok(()) };
        let dir = self.shelf.dir().display();
        Err(match kind {
            Kind::RoundsOtherwise => Ended::new(
                Exit::Environment,
                format!(
                    "the checkpoint of this run in {dir} was computed with another arithmetic ({}) than {rounding}, \
                     which these ranks have: going on would change the last bits of the result. Start on nodes \
                     whose processors and BLAS are as before, or give this run another --job name",
                    about.arithmetic
                ),
            ),
            _ => Ended::new(
                Exit::BadInput,
                format!(
                    "{dir} has a checkpoint of another run of job {job:?}: {}. Finish that run, give this one another \
                     --job name, or remove it with `skt-hpl clean --job {job} --level2 {dir}` or --restart never",
                    words(about)
                ),
            ),
        })
    }

    /// What the start of test `number` is told of the second level. `finished`: the tests whose results were found, `ended`:
    /// those that are over since; `in_place`: in a launch that has lost ranks.
    pub fn of_test(
        &self,
        (number, digest): (u32, u64),
        (finished, ended): (impl Iterator<Item = u32>, &[u32]),
        rounding: &str,
        fresh_run: u128,
        in_place: bool,
        helpers: Helpers,
    ) -> Storage {
        let first = self.first.get() == Some(number);
        Storage {
            shelf: self.shelf.clone().held_by(fresh_run),
            sight: self.settings.scope,
            seat: self.seat as u64,
            every: self.settings.every,
            helpers,
            arithmetic: rounding.to_owned(),
            stored: if first { self.stock.for_test(number, digest) } else { Vec::new() },
            damaged: if first { self.stock.damaged.clone() } else { Vec::new() },
            whole: self.stock.whole.clone(),
            results: Some(Counting { results: self.counting(finished, ended), first }),
            fresh_run,
            in_place,
            read_only: self.unwritable.is_some(),
        }
    }

    /// Which results may stay on storage.
    fn counting(&self, finished: impl Iterator<Item = u32>, ended: &[u32]) -> Results {
        // Those that memory alone has told of have no text here.
        let of_memory = finished.map(|test| (test, None));
        let here = self.stock.results.iter().map(|(test, text)| (*test, Some(Results::mark(text))));
        // Of these whatever lies there by now is the last word.
        let ended = ended.iter().map(|test| (*test, None));
        Results(of_memory.chain(here).chain(ended).collect())
    }
}

/// An epoch's problem and how far it is.
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

/// What a test's account says of the second level: what earlier starts said, and what this one did, if it has one.
pub fn account(
    earlier: Option<outcome::Level2>,
    now: Option<outcome::Level2>,
) -> Option<outcome::Level2> {
    let Some(now) = now else { return earlier };
    let mut sum = earlier.unwrap_or_default();
    sum.epochs += now.epochs;
    sum.bytes += now.bytes;
    sum.write_s += now.write_s;
    sum.put_off += now.put_off;
    sum.put_off_s += now.put_off_s;
    sum.wait_s += now.wait_s;
    (sum.alone, sum.waited) = (now.alone, now.waited);
    Some(sum)
}
