//! Going on without a rank that was lost, in the processes that are left: `--nonstop`.
//!
//! The job is played in acts. An act is what a job without `--nonstop` is as a whole, from looking at the nodes' memory to the
//! last test's report; a loss ends it on every rank (`comm::World::attempt`), and the next begins with those who are left: one
//! who stands by takes the position that is vacant, and what a restart would do is done without one. What a rank must know of
//! earlier acts is its [`Story`]; with a roll call at the beginning all ranks come to know the same. docs/dev/nonstop.md tells
//! the whole protocol.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::agreement::Ended;
use super::replacement::Status;
use crate::base::clock::{self, Instant};
use crate::base::exit::Exit;
use crate::base::faults;
use crate::checkpoint::Player;
use crate::comm::{Comm, Lost, World, die_in_turn};
use crate::config::Loaded;
use crate::lu::unix_seconds;
use crate::supervise::remember::events::ProcessId;
use crate::supervise::start::in_place::{Gone, Notice};
use crate::supervise::start::launcher::own_run_id;
use crate::supervise::talk::processes;

/// What going on without a lost rank needs of MPI; the same on every rank of a sound job. What it needs of other settings is
/// looked at where they are read.
pub fn fits(loaded: &Loaded, world: &World) -> Result<(), Ended> {
    let settings = &loaded.settings;
    let able = |flag: &str| match world.obstacle() {
        None => Ok(()),
        Some(why) => Err(Ended::new(Exit::Environment, format!("{flag}: {why}"))),
    };
    if settings.checksums {
        return able("--method abft");
    }
    if settings.nonstop { able("--nonstop") } else { Ok(()) }
}

/// The part of a rank in a test.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cast {
    pub test: usize,
    pub position: Option<usize>,
    /// The positions of its group, once it is known.
    pub members: Vec<usize>,
}

/// What one rank knows of the acts so far.
#[derive(Clone, Debug, Default)]
pub struct Story {
    pub cast: Cast,
    /// Losses since this test began in this launch, and in earlier launches.
    pub losses: u32,
    pub losses_before: u32,
    /// Ranks have been lost in this launch, in whichever test: what they held on nodes of their own is out of reach here, and
    /// within a restart's.
    pub has_lost: bool,
    /// The run has begun: from now on its own memory is what is gone on from, whatever `--restart` says.
    pub begun: bool,
    /// The first test that was begun in this launch: what an earlier one has left of a test is of that one. Whether a later one
    /// was begun since.
    first: Option<usize>,
    past_the_first: bool,
    /// The last test of which this rank has saved something in this launch: storage may have that where memory has lost it.
    pub saved: Option<usize>,
    /// The head has been told, and so many tests.
    pub head: bool,
    pub told: usize,
    /// How the run ends, once all is told.
    pub verdict: Option<Exit>,
    /// Tests whose results all have, where checksums protect them.
    pub finished: usize,
    /// Ranks that were lost since the last roll call, and when this rank noticed.
    gone: Vec<usize>,
    noticed_unix_s: f64,
    /// The ranks that the launcher started, by number.
    members: Vec<Member>,
    /// Who was there at the last roll call.
    people: Vec<Answer>,
    /// What is to be said of the last loss.
    pub notice: Option<Notice>,
}

/// What a rank tells the others when an act begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Answer {
    /// The number the launcher gave it.
    launched: usize,
    node: usize,
    cast: Cast,
    begun: bool,
    first: Option<usize>,
    past_the_first: bool,
    saved: Option<usize>,
    head: bool,
    told: usize,
    verdict: Option<Exit>,
    finished: usize,
    /// Ranks of whose loss nobody has told as far as it knows, and those that were lost since its last roll call.
    untold: Vec<usize>,
    gone: Vec<usize>,
    /// What it has of a test that checksums protect.
    status: Option<Status>,
    /// Not told by those who have just noticed nothing.
    noticed_unix_s: f64,
}

/// Facts of a rank that stay as they are while its process lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    process: Process,
    host: String,
    domain: String,
}

/// A rank's process, and where its number means it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Process {
    id: ProcessId,
    /// The kernel's start and the namespace of processes.
    of: (String, String),
}

impl Process {
    fn own() -> Self {
        let pid = std::process::id();
        let started = processes::look(pid).map_or(0, |(_, started)| started);
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self {
            id: ProcessId { pid, started },
            of: (processes::kernel(), namespace.display().to_string()),
        }
    }

    /// Ends it if it is on this node: all have agreed that it is lost, but it may only have been stopped. It must not come back
    /// to the memory of the position that it had, nor hold it.
    fn end(&self) {
        let own = Self::own();
        if self.of == own.of && self.id != own.id && processes::is_alive(self.id) {
            processes::send(self.id.pid, Signal::SIGKILL, |_| processes::is_alive(self.id));
            let until = Instant::now() + ENDS_WITHIN;
            while processes::is_alive(self.id) && Instant::now() < until {
                clock::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// The kernel frees memory before the process is gone; what still holds on after that is refused with words of its own.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// Plays acts until one comes to its end; just the one where losses are not survived.
pub fn play<T>(
    world: &mut World,
    survives: bool,
    all: &mut T,
    story: impl Fn(&mut T) -> &mut Story,
    act: impl Fn(&World, &mut T) -> Exit,
) -> Exit {
    if !survives {
        return act(world, all);
    }
    loop {
        match world.attempt(|world| act(world, all)) {
            Ok(exit) => return exit,
            Err(Lost { noticed_unix_s }) => {
                let story = story(all);
                story.noticed_unix_s = noticed_unix_s;
                story.gone.extend(world.close_ranks());
                story.losses += 1;
                story.has_lost = true;
                faults::next_incarnation();
            }
        }
    }
}

/// The last test of which something may have been saved: by what those know who had a part in it. Where all of them are lost it
/// is the last that was begun.
fn last_saved<'a>(told: impl Iterator<Item = (&'a Cast, Option<usize>)>) -> Option<usize> {
    let told: Vec<_> = told.collect();
    let begun = told.iter().map(|(cast, _)| cast.test).max();
    let had_part = |cast: &Cast| Some(cast.test) == begun && cast.position.is_some();
    let known = told.iter().any(|(cast, _)| had_part(cast));
    told.iter().filter_map(|(_, saved)| *saved).max().max(begun.filter(|_| !known))
}

impl Story {
    /// The story of a job before its first attempt. All ranks tell each other what their peers must know of a rank that is lost
    /// before the first roll call.
    pub fn begin(comm: &Comm, host: &str, domain: &str) -> Self {
        let (host, domain) = (host.to_owned(), domain.to_owned());
        let mine = Member { process: Process::own(), host, domain };
        Self { members: tell_all(comm, &mine), ..Self::default() }
    }

    /// The next test begins, or the same is gone on with.
    pub fn comes_to(&mut self, test: usize) {
        self.past_the_first |= *self.first.get_or_insert(test) != test;
        if self.cast.test != test {
            self.cast = Cast { test, ..Cast::default() };
            (self.losses, self.losses_before) = (0, 0);
        }
    }

    /// Whether there is nothing that storage may have and memory has not: nothing is left to be done of the first test that was
    /// begun in this launch, nor of one that was saved since. `finished`: memory has its result.
    pub fn is_between_tests(&self, finished: impl Fn(usize) -> bool) -> bool {
        (self.past_the_first || self.first.is_some_and(&finished))
            && self.saved.is_none_or(finished)
    }

    /// All ranks tell each other what they know, and know the same from then on. `node` is the first rank on this one's;
    /// `status`: what this one has of a test that checksums protect.
    pub fn call_roll(&mut self, world: &World, node: usize, status: Option<Status>) {
        let comm = world.comm();
        let mine = Answer {
            launched: world.launched()[comm.rank()],
            node,
            cast: self.cast.clone(),
            begun: self.begun,
            first: self.first,
            past_the_first: self.past_the_first,
            saved: self.saved,
            head: self.head,
            told: self.told,
            verdict: self.verdict,
            finished: self.finished,
            untold: self.notice.iter().flat_map(|n| &n.lost).map(|gone| gone.rank).collect(),
            gone: self.gone.clone(),
            status,
            noticed_unix_s: self.noticed_unix_s,
        };
        let answers = tell_all(comm, &mine);
        self.begun = answers.iter().any(|a| a.begun);
        self.first = answers.iter().find_map(|a| a.first);
        self.past_the_first = answers.iter().any(|a| a.past_the_first);
        let saved = answers.iter().map(|a| (&a.cast, a.saved));
        self.saved = if self.begun { last_saved(saved) } else { None };
        self.head = answers.iter().any(|a| a.head);
        self.told = answers.iter().map(|a| a.told).max().unwrap_or(0);
        self.verdict = answers.iter().find_map(|a| a.verdict);
        self.finished = answers.iter().map(|a| a.finished).min().unwrap_or(0);
        if !self.gone.is_empty() {
            let noticed = answers.iter().map(|a| a.noticed_unix_s).fold(f64::INFINITY, f64::min);
            let gone = std::mem::take(&mut self.gone);
            for &rank in &gone {
                self.members[rank].process.end();
            }
            let told: Vec<_> = answers.iter().map(|a| (&a.untold[..], &a.gone[..])).collect();
            let untold = untold(&told);
            let before = self.notice.take();
            let known = before.filter(|n| n.lost.iter().any(|one| untold.contains(&one.rank)));
            let noticed = known.as_ref().map_or(noticed, |n| n.noticed_unix_s.min(noticed));
            let known = known.map(|n| n.lost).unwrap_or_default();
            let words = |&rank: &usize| match known.iter().find(|one| one.rank == rank) {
                Some(one) => one.clone(),
                None => self.obituary(rank),
            };
            let lost = untold.iter().map(words).collect();
            let agreed_s = (unix_seconds() - noticed).max(0.0);
            let takers = String::new();
            self.notice = Some(Notice { lost, noticed_unix_s: noticed, agreed_s, takers });
        }
        self.people = answers;
    }

    fn obituary(&self, launched: usize) -> Gone {
        let known = self.people.iter().find(|a| a.launched == launched);
        Gone {
            rank: launched,
            node: self.members[launched].host.clone(),
            position: known.and_then(|a| a.cast.position),
        }
    }

    /// The positions of a test as they are dealt out, by rank: whoever is lost later is told by its own.
    pub fn deal(&mut self, comm: &Comm, test: usize, taken: &[Option<usize>]) {
        let takers = self.takers(test, taken);
        if let Some(notice) = &mut self.notice {
            notice.takers = takers;
        }
        let position = taken[comm.rank()];
        if (self.cast.test, self.cast.position) != (test, position) {
            self.cast = Cast { test, position, members: Vec::new() };
        }
        for (person, &position) in self.people.iter_mut().zip(taken) {
            person.cast = Cast { test, position, members: Vec::new() };
        }
    }

    /// What each rank brings to the casting of a test, by the last roll call.
    pub fn players(&self, test: usize) -> Vec<Player> {
        let player = |a: &Answer| {
            let cast = Some(&a.cast).filter(|cast| cast.test == test);
            Player {
                node: a.node,
                domain: self.members[a.launched].domain.clone(),
                kept: cast.and_then(|cast| cast.position),
                members: cast.map(|cast| cast.members.clone()).unwrap_or_default(),
            }
        };
        self.people.iter().map(player).collect()
    }

    /// What each rank has of a test, by the last roll call.
    pub fn statuses(&self, test: usize) -> Vec<Option<Status>> {
        self.people.iter().map(|a| a.status.as_ref().and_then(|s| s.of(test))).collect()
    }

    /// What ends this launch, where a loss could not be made good by checksums: nothing is kept. Under a supervisor that is
    /// a fault like others, after which it starts anew.
    pub fn is_lost(&self, why: &str) -> Ended {
        let notice = self.notice.as_ref().map(|n| format!("{n}. ")).unwrap_or_default();
        let (exit, then) = match own_run_id() {
            Some(_) => (Exit::Environment, "It begins anew"),
            None => (Exit::Unrecoverable, "Start it again; it begins anew"),
        };
        Ended::new(exit, format!("{notice}The run cannot go on: {why}. {then}"))
    }

    /// Who takes a position that somebody else had, in words.
    fn takers(&self, test: usize, taken: &[Option<usize>]) -> String {
        let of_this = |a: &Answer| a.cast.position.filter(|_| a.cast.test == test);
        if self.people.iter().all(|a| of_this(a).is_none()) {
            // At the beginning of a test all of them are new.
            return String::new();
        }
        let words = self.people.iter().zip(taken).filter_map(|(a, &taken)| {
            let position = taken.filter(|_| of_this(a) != taken)?;
            let host = &self.members[a.launched].host;
            Some(format!("; rank {} on {host} takes position {position}", a.launched))
        });
        words.collect::<Vec<_>>().concat()
    }

    /// What ends this launch, where a loss could not be made good in place: a restart can still do it, with nodes and ranks
    /// of its own. Under a supervisor that is a fault like others, after which it starts again.
    pub fn gives_up(&self, ended: Ended) -> Ended {
        let restartable = matches!(ended.exit, Exit::Unrecoverable | Exit::NoSharedMemory);
        if !self.has_lost || !restartable {
            return ended;
        }
        self.resumable(&ended.why)
    }

    /// The same for want of ranks.
    pub fn too_few(&self, left: usize, needed: usize) -> Ended {
        self.resumable(&format!("{left} ranks are left, and the grid needs {needed}"))
    }

    fn resumable(&self, why: &str) -> Ended {
        let exit = if own_run_id().is_some() { Exit::Environment } else { Exit::Stopped };
        let notice = self.notice.as_ref().map(|n| format!("{n}. ")).unwrap_or_default();
        Ended::new(
            exit,
            format!(
                "{notice}The run cannot go on in place: {why}\nThe memory is kept; the same command goes on from it"
            ),
        )
    }
}

/// What all ranks say, by rank. Before the first attempt the library may call it a success where a rank was lost meanwhile, and
/// leave that rank's part empty (Open MPI 5.0.11).
fn tell_all<T: Serialize + DeserializeOwned>(comm: &Comm, mine: &T) -> Vec<T> {
    let bytes = serde_json::to_vec(mine).expect("plain values have a JSON form");
    let parse = |(rank, told): (usize, &Vec<u8>)| {
        serde_json::from_slice(told).unwrap_or_else(|_| {
            let why = format!("rank {rank} was lost before the run had begun: start it again");
            die_in_turn(Exit::Environment.code().into(), &why)
        })
    };
    comm.all_gather_bytes(&bytes).iter().enumerate().map(parse).collect()
}

/// Of whose loss nobody has told, by what each has as untold and as gone since its last roll call: a loss before the last one
/// could be told is told with it. One may not have come out of a roll call that others have, and counts as gone who is untold
/// elsewhere; who stood by has not heard that it was told.
fn untold(answers: &[(&[usize], &[usize])]) -> Vec<usize> {
    let mut all: Vec<usize> = Vec::new();
    for &rank in answers.iter().flat_map(|(untold, gone)| untold.iter().chain(*gone)) {
        let has =
            |(untold, gone): &(&[usize], &[usize])| untold.contains(&rank) || gone.contains(&rank);
        let by_all = || answers.iter().all(has);
        if !all.contains(&rank) && by_all() {
            all.push(rank);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_that_nobody_told_is_told_with_the_next() {
        // The first loss.
        assert_eq!(untold(&[(&[], &[4]), (&[], &[4])]), [4]);
        // It was not told before the next one, by anybody; it was, but who stood by knows nothing of that.
        assert_eq!(untold(&[(&[4], &[5]), (&[4], &[5])]), [4, 5]);
        assert_eq!(untold(&[(&[4], &[5]), (&[], &[5])]), [5]);
        // One has come out of the roll call between the two, another has not.
        assert_eq!(untold(&[(&[4], &[5]), (&[], &[4, 5])]), [4, 5]);
    }

    #[test]
    fn only_what_a_restart_can_mend_ends_resumable() {
        // A loss before the first test that is left of a sweep, too.
        let mut story = Story { losses: 1, has_lost: true, ..Story::default() };
        story.comes_to(2);
        for exit in Exit::ALL {
            let ended = story.gives_up(Ended::new(exit, "why"));
            let restartable = matches!(exit, Exit::Unrecoverable | Exit::NoSharedMemory);
            assert_eq!(ended.exit, if restartable { Exit::Stopped } else { exit });
            let before = Story::default().gives_up(Ended::new(exit, "why"));
            assert_eq!(before, Ended::new(exit, "why"), "nobody was lost");
        }
    }

    #[test]
    fn a_part_is_of_one_test() {
        let mut story = Story { losses: 2, ..Story::default() };
        story.cast.position = Some(3);
        story.comes_to(0);
        assert_eq!((story.losses, story.cast.position), (2, Some(3)));
        assert!(!story.is_between_tests(|_| false) && story.is_between_tests(|test| test == 0));
        story.comes_to(1);
        assert_eq!((story.losses, story.cast.position), (0, None));
        assert!(story.is_between_tests(|_| false));
        story.saved = Some(1);
        assert!(!story.is_between_tests(|test| test == 0) && story.is_between_tests(|_| true));
        // Who had a part in the last test knows whether anything of it was saved.
        let cast = |test, position| Cast { test, position, members: Vec::new() };
        let (beside, taken) = (cast(1, None), cast(1, Some(2)));
        assert_eq!(last_saved([(&beside, None), (&taken, Some(0))].into_iter()), Some(0));
        assert_eq!(last_saved([(&beside, None), (&taken, Some(1))].into_iter()), Some(1));
        assert_eq!(
            last_saved([(&beside, None), (&cast(0, Some(2)), Some(0))].into_iter()),
            Some(1)
        );
        assert_eq!(last_saved(std::iter::empty()), None);
        assert!(!Story::default().is_between_tests(|_| true), "nothing was begun");
    }
}
