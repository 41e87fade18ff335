//! Start and end of MPI, and the remaining ranks of the job.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use mpi::ffi;

use super::abort::{arm, disarm, rank_is};
use super::check::check;
use super::communicator::{Comm, any_thread_may_call};
use super::library::{self, Transport};
use super::loss::{self, Line, Lost, READY};
use super::ulfm::library_version;
use super::wire::Reduce;
use super::{turn, ulfm};
use crate::base::repeated::Repeated;

/// MPI and the remaining ranks of the job. Made once; dropping it finalises MPI.
pub struct World {
    comm: Comm,
    /// Number that the launcher gave to each rank.
    launched: Vec<usize>,
    /// Thread for heartbeats; present if losses may be survived.
    alive: Option<Repeated>,
    /// Communicators of the current attempt, and a stack of those for the attempts after later losses. Present if losses may be
    /// survived.
    lines: Option<(Line, Vec<Line>)>,
    /// True if some ranks were started to survive losses, and other ranks were not.
    unlike: bool,
    /// True once the first attempt has begun. Ranks may have been lost since.
    attempted: Cell<bool>,
}

impl World {
    /// Starts MPI. Only the calling thread may use MPI afterwards.
    ///
    /// Losses can be survived only if `survives` is true and the library supports it.
    pub fn init(survives: bool) -> Self {
        Self::start(survives, false)
    }

    /// Starts MPI so that helpers may send messages at the same time as the calling thread ([`Comm::elsewhere`]), if the library
    /// permits this.
    ///
    /// Use this only if helpers send messages: if any thread may call the library, each call takes longer.
    pub fn with_helpers() -> Self {
        Self::start(false, true)
    }

    /// Returns why MPI would crash if it were started to survive losses; `None` if MPI would not crash. Must be called before MPI
    /// is started.
    pub fn refusal() -> Option<String> {
        if ulfm::library_goes_on() { ulfm::refusal() } else { None }
    }

    fn start(survives: bool, helpers: bool) -> Self {
        if let Some(transport) = library::simulated() {
            return Self::simulated(transport, survives);
        }
        let library_goes_on = ulfm::library_goes_on();
        let survives = survives && library_goes_on;
        if survives {
            ulfm::watch_each_other();
        } else if library_goes_on {
            ulfm::without_the_librarys_thread();
        }
        // SAFETY: both values are constants of the library.
        let (one, several) = unsafe { (ffi::RSMPI_THREAD_FUNNELED, ffi::RSMPI_THREAD_MULTIPLE) };
        let mut provided = 0;
        // SAFETY: called once per process, before any other MPI call; null argument pointers are allowed since MPI-2.
        let rc = unsafe {
            ffi::MPI_Init_thread(
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                if survives || helpers { several } else { one },
                &mut provided,
            )
        };
        check(rc, "starting MPI");
        // SAFETY: MPI is initialised; the handles are constants of the library.
        let comm = unsafe {
            check(
                ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN),
                "setting the error handler",
            );
            Comm::borrowed(ffi::RSMPI_COMM_WORLD)
        };
        arm(comm.rank() as i32);
        if provided < one {
            super::die(
                6,
                "skt-hpl needs several threads, but this MPI library allows only one; use another MPI library",
            );
        }
        // Each rank only knows its own settings and its own library. All ranks must behave alike, so they agree here.
        let mut alike = [u64::from(survives && provided >= several); 2];
        alike[1] = 1 - alike[0];
        comm.all_reduce(&mut alike, Reduce::Min);
        let survives = alike[0] == 1;
        let alive = survives.then(keep_alive);
        let unlike = alike == [0, 0];
        let mut world = Self::of(comm, survives);
        (world.unlike, world.alive) = (unlike, alive);
        world
    }

    fn of(comm: Comm, survives: bool) -> Self {
        let launched = (0..comm.size()).collect();
        let lines = survives.then(|| lines(&comm));
        let attempted = Cell::new(false);
        Self { comm, launched, alive: None, lines, unlike: false, attempted }
    }

    fn simulated(transport: &dyn Transport, survives: bool) -> Self {
        loss::set_own_node(transport.node());
        // SAFETY: the communicator is valid as long as the process lives.
        let comm = unsafe { Comm::borrowed(library::handle(library::ALL)) };
        rank_is(comm.rank() as i32);
        Self::of(comm, survives && transport.survives())
    }

    pub fn comm(&self) -> &Comm {
        &self.comm
    }

    /// Returns whether helpers may send messages at the same time as the thread that started MPI.
    pub fn lets_helpers_talk(&self) -> bool {
        any_thread_may_call()
    }

    /// Returns why losses cannot be survived, with advice; `None` if they can.
    pub fn obstacle(&self) -> Option<String> {
        let unlike = || {
            "some ranks were started without this setting: give --nonstop or --method abft on the command line, or in a \
             file that all nodes have, since a launcher does not hand variables to every node"
                .to_owned()
        };
        self.unlike.then(unlike).or_else(|| ulfm::obstacle(self.alive.is_some()))
    }

    /// Returns the launcher's number of each current rank.
    pub fn launched(&self) -> &[usize] {
        &self.launched
    }

    /// Runs `work`, which all ranks do together, and survives the loss of a rank. After a loss, all ranks abandon their work and
    /// all remaining ranks get [`Lost`]. So the work is completed on all ranks, or on none.
    ///
    /// Must only be called if there is no [obstacle](Self::obstacle).
    pub fn attempt<R>(&self, work: impl FnOnce(&Self) -> R) -> Result<R, Lost> {
        self.attempted.set(true);
        let (line, _) = self.lines.as_ref().expect("there is no obstacle");
        loss::attempt(line, || work(self))
    }

    /// Makes communicators of the remaining ranks, in their previous order, after a lost attempt. Returns the launcher's numbers
    /// of the lost ranks.
    pub fn close_ranks(&mut self) -> Vec<usize> {
        let (line, ready) = self.lines.as_mut().expect("an attempt was lost");
        // Communicators to continue with, and each member's rank in the previous communicators.
        let (next, were) = match ready.pop() {
            Some(next) => {
                let left = loss::left(line);
                (Line { members: left.as_slice().into(), ..next }, left)
            }
            None => {
                let next = loss::shrunk(line);
                let were = places(line.alarm, &next);
                (next, were)
            }
        };
        let number =
            |were: &c_int| self.launched[line.members.binary_search(were).expect("no rank joins")];
        let launched: Vec<usize> = were.iter().map(number).collect();
        let is_gone = |number: &usize| launched.binary_search(number).is_err();
        let gone = self.launched.iter().copied().filter(is_gone).collect();
        // SAFETY: the communicator is valid as long as the job lives. The previous communicators are never freed, because this
        // needs all of their ranks.
        self.comm = unsafe {
            for raw in
                [next.talk, next.alarm].into_iter().filter(|_| library::simulated().is_none())
            {
                check(
                    ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN),
                    "setting the error handler",
                );
            }
            Comm::of_members(next.talk, Arc::clone(&next.members))
        };
        *line = next;
        self.launched = launched;
        gone
    }

    /// Returns the first line of the MPI library's description of itself.
    pub fn library() -> String {
        library_version()
    }
}

/// Starts a thread that keeps this rank's heartbeats going, also during long computations. The library sends and checks
/// heartbeats only when it is called. Ends the job if the system gives no more threads.
///
/// A thread of the library (`mpi_ft_detector_thread`) can do the same. But with this thread, one start in twenty crashed, and
/// jobs did not end (Open MPI 5.0.11).
fn keep_alive() -> Repeated {
    /// Period of the thread's calls of MPI. The period is short compared with the time between two heartbeats.
    const EVERY: Duration = Duration::from_millis(50);
    turn::begin();
    let thread = Repeated::start("skt-hpl alive", |_| {
        let mut there = 0;
        // SAFETY: this library lets any thread call it, and MPI is not finalised before this thread has ended. No rank sends to
        // itself with that tag.
        turn::if_free(|| unsafe {
            ffi::MPI_Iprobe(0, 0, ffi::RSMPI_COMM_SELF, &mut there, ffi::RSMPI_STATUS_IGNORE);
        });
        EVERY
    });
    thread.unwrap_or_else(|why| super::die(6, &why.to_string()))
}

/// Makes the communicators of the first attempt, and a stack of those for the attempts after each of the first [`READY`] losses.
/// All ranks call this together, before any attempt.
fn lines(all: &Comm) -> (Line, Vec<Line>) {
    let node = all.split_by_node();
    let mut number = [all.rank() as u64];
    node.all_reduce(&mut number, Reduce::Min);
    loss::set_own_node(number[0] as usize);
    let copy = || {
        if let Some(transport) = library::simulated() {
            return library::handle(transport.duplicate(library::ALL));
        }
        // SAFETY: all ranks call this together.
        let (rc, new) = unsafe {
            let mut new = ffi::RSMPI_COMM_NULL;
            (ffi::MPI_Comm_dup(all.on.raw, &mut new), new)
        };
        check(rc, "copying a communicator");
        new
    };
    let first =
        Line { talk: all.on.raw, alarm: copy(), members: (0..all.size() as c_int).collect() };
    let losses = READY.min(all.size() - 1);
    let ready = (0..losses).map(|_| Line { talk: copy(), alarm: copy(), members: Arc::new([]) });
    (first, ready.collect())
}

/// Returns the rank in `before` of each member of `now`.
fn places(before: ffi::MPI_Comm, now: &Line) -> Vec<c_int> {
    if let Some(transport) = library::simulated() {
        return transport.places(library::number(before), library::number(now.alarm));
    }
    let mut places = vec![0; now.members.len()];
    // SAFETY: both communicators are valid, and the arrays have the given length. No other rank is needed.
    unsafe {
        let (mut old, mut new) = (ffi::RSMPI_GROUP_NULL, ffi::RSMPI_GROUP_NULL);
        check(ffi::MPI_Comm_group(before, &mut old), "reading the ranks before the loss");
        check(ffi::MPI_Comm_group(now.alarm, &mut new), "reading the ranks after the loss");
        let count = places.len() as i32;
        let rc = ffi::MPI_Group_translate_ranks(
            new,
            count,
            now.members.as_ptr(),
            old,
            places.as_mut_ptr(),
        );
        check(rc, "comparing the ranks before and after the loss");
        ffi::MPI_Group_free(&mut old);
        ffi::MPI_Group_free(&mut new);
    }
    places
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() || library::simulated().is_some() {
            return;
        }
        disarm();
        if let Some(alive) = self.alive.take() {
            alive.end();
            if self.attempted.get() {
                // After a loss, MPI_Finalize has waited forever for the lost rank (Open MPI 5.0.11). The launcher was started so
                // that ranks may end without it.
                return;
            }
            // Before the first attempt a loss ends the job. Without MPI_Finalize, the launcher has waited forever for ranks that
            // were refused.
        }
        // SAFETY: this is the last MPI call of the process.
        unsafe {
            ffi::MPI_Finalize();
        }
    }
}
