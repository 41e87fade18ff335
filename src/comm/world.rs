//! The start and the end of MPI, and who is left in between.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mpi::ffi;

use super::abort::{arm, check, disarm, rank_is};
use super::communicator::{Comm, Reduce, any_thread_may_call};
use super::library::{self, Transport};
use super::loss::{self, Line, Lost, READY};
use super::turn;
use crate::base::clock;
use crate::base::new_thread;

/// All ranks of the job that are left. Made once; dropping it finalises MPI.
pub struct World {
    comm: Comm,
    /// For each rank the number the launcher gave it.
    launched: Vec<usize>,
    /// There where losses may be survived.
    alive: Option<Alive>,
    /// Likewise: what the next attempt goes over, and what there is for those after it, the next one last.
    lines: Option<(Line, Vec<Line>)>,
    /// Whether some ranks were to survive losses, and some not.
    unlike: bool,
    /// Whether there was an attempt in which ranks may have been lost.
    attempted: Cell<bool>,
}

impl World {
    /// Starts MPI. Only the calling thread may use it afterwards. Losses can be survived only if that is said now
    /// (`survives`), as far as this library can at all.
    pub fn init(survives: bool) -> Self {
        Self::start(survives, false)
    }

    /// Starts MPI so that helpers may talk beside the calling thread, as far as this library lets them
    /// ([`Comm::elsewhere`]). Never otherwise: in a library that expects calls from any thread each call takes longer.
    pub fn with_helpers() -> Self {
        Self::start(false, true)
    }

    /// Why a start of MPI that survives losses would crash here. To be asked before it.
    pub fn refusal() -> Option<String> {
        if loss::library_goes_on() { loss::refusal() } else { None }
    }

    fn start(survives: bool, helpers: bool) -> Self {
        if let Some(transport) = library::simulated() {
            return Self::simulated(transport, survives);
        }
        let library_goes_on = loss::library_goes_on();
        let survives = survives && library_goes_on;
        if survives {
            loss::watch_each_other();
        } else if library_goes_on {
            loss::without_the_librarys_thread();
        }
        // SAFETY: constants of the library.
        let (one, several) = unsafe { (ffi::RSMPI_THREAD_FUNNELED, ffi::RSMPI_THREAD_MULTIPLE) };
        let mut provided = 0;
        // SAFETY: called once per process, before any other MPI call; null argument pointers are
        // allowed since MPI-2.
        let rc = unsafe {
            ffi::MPI_Init_thread(
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                if survives || helpers { several } else { one },
                &mut provided,
            )
        };
        check(rc, "starting MPI");
        // SAFETY: MPI is up; the handles are constants of the library.
        let comm = unsafe {
            check(
                ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN),
                "setting the error handler",
            );
            Comm::borrowed(ffi::RSMPI_COMM_WORLD)
        };
        arm(comm.rank() as i32);
        if provided < one {
            super::die(6, "this MPI library does not allow threads beside the one that calls it");
        }
        // Each knows by its own settings and its own library. What depends on it all do together, or none.
        let mut alike = [u64::from(survives && provided >= several); 2];
        alike[1] = 1 - alike[0];
        comm.all_reduce(&mut alike, Reduce::Min);
        let survives = alike[0] == 1;
        let alive = survives.then(Alive::begin);
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
        // SAFETY: there for as long as the process.
        let comm = unsafe { Comm::borrowed(library::handle(library::ALL)) };
        rank_is(comm.rank() as i32);
        Self::of(comm, survives && transport.survives())
    }

    pub fn comm(&self) -> &Comm {
        &self.comm
    }

    /// Whether helpers may talk beside the thread that started MPI.
    pub fn lets_helpers_talk(&self) -> bool {
        any_thread_may_call()
    }

    /// Why losses cannot be survived, in words that say what would help; None if they can.
    pub fn obstacle(&self) -> Option<String> {
        let unlike = || {
            "some ranks were not told so when they were started: give --nonstop or --method abft on the command line, or in a \
             file that all nodes have, since a launcher does not hand variables to every node"
                .to_owned()
        };
        self.unlike.then(unlike).or_else(|| loss::obstacle(self.alive.is_some()))
    }

    /// The number the launcher gave to each rank there is now.
    pub fn launched(&self) -> &[usize] {
        &self.launched
    }

    /// Does `work`, which all ranks do together, survive a lost rank: then whatever any of them was doing in it is left
    /// undone, and all that are left get [`Lost`]. So it is done on all ranks, or on none. To be asked for only where there is
    /// no [obstacle](Self::obstacle).
    pub fn attempt<R>(&self, work: impl FnOnce(&Self) -> R) -> Result<R, Lost> {
        self.attempted.set(true);
        let (line, _) = self.lines.as_ref().expect("there is no obstacle");
        loss::attempt(line, || work(self))
    }

    /// After an attempt was lost: goes on with the ranks that are left, in their order. The numbers that the launcher
    /// gave to those that are gone.
    pub fn close_ranks(&mut self) -> Vec<usize> {
        let (line, ready) = self.lines.as_mut().expect("an attempt was lost");
        // What is gone on over, and the rank of each of its members on the line that there was.
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
            |were: &c_int| self.launched[line.members.binary_search(were).expect("nobody joins")];
        let launched: Vec<usize> = were.iter().map(number).collect();
        let is_gone = |number: &usize| launched.binary_search(number).is_err();
        let gone = self.launched.iter().copied().filter(is_gone).collect();
        // SAFETY: there for as long as the job. What there was is never freed: what was lost cannot take part in that.
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

    /// The MPI library's own description of itself, first line only.
    pub fn library() -> String {
        if library::simulated().is_some() {
            return "simulated".to_owned();
        }
        let mut text = vec![0u8; ffi::MPI_MAX_LIBRARY_VERSION_STRING as usize + 1];
        let mut length = 0;
        // SAFETY: the buffer has the size that MPI prescribes.
        let rc = unsafe { ffi::MPI_Get_library_version(text.as_mut_ptr().cast(), &mut length) };
        check(rc, "asking for the MPI library's version");
        text.truncate(length as usize);
        let text = String::from_utf8_lossy(&text);
        text.lines().next().unwrap_or("").trim_end_matches('\0').trim().to_owned()
    }

    /// Seconds on MPI's clock, which only differences have a meaning on.
    pub fn seconds() -> f64 {
        if library::simulated().is_some() {
            return clock::since_1970().as_secs_f64();
        }
        // SAFETY: no arguments, MPI is up.
        unsafe { ffi::RSMPI_Wtime() }
    }
}

/// Shows the other ranks that this one lives, also while it computes for long: the library's heartbeats are sent and looked at
/// only when somebody calls it. A thread of the library's own can do that (`mpi_ft_detector_thread`), but with it one start in
/// twenty crashed, and no end came to its end (Open MPI 5.0.11).
struct Alive {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Alive {
    /// Short against the time between two heartbeats.
    const EVERY: Duration = Duration::from_millis(50);

    /// Ends the job where the system gives no more threads.
    fn begin() -> Self {
        turn::begin();
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = new_thread::start("skt-hpl alive", move || {
            while !told.load(Ordering::Relaxed) {
                let mut there = 0;
                // SAFETY: this library lets any thread call it, and MPI is up until this thread has ended. Nobody sends
                // to himself with that tag.
                turn::if_free(|| unsafe {
                    ffi::MPI_Iprobe(
                        0,
                        0,
                        ffi::RSMPI_COMM_SELF,
                        &mut there,
                        ffi::RSMPI_STATUS_IGNORE,
                    );
                });
                std::thread::park_timeout(Self::EVERY);
            }
        });
        let thread = thread.unwrap_or_else(|why| super::die(6, &why.to_string()));
        Self { over, thread }
    }

    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        let _ = self.thread.join();
    }
}

/// What attempts go over: the first one, and those after it, the next one last. All ranks together, before any attempt.
fn lines(all: &Comm) -> (Line, Vec<Line>) {
    let node = all.split_by_node();
    let mut number = [all.rank() as u64];
    node.all_reduce(&mut number, Reduce::Min);
    loss::set_own_node(number[0] as usize);
    let copy = || {
        if let Some(transport) = library::simulated() {
            return library::handle(transport.duplicate(library::ALL));
        }
        // SAFETY: all ranks come here together.
        let (rc, new) = unsafe {
            let mut new = ffi::RSMPI_COMM_NULL;
            (ffi::MPI_Comm_dup(all.on().raw, &mut new), new)
        };
        check(rc, "copying a communicator");
        new
    };
    let first =
        Line { talk: all.on().raw, alarm: copy(), members: (0..all.size() as c_int).collect() };
    let losses = READY.min(all.size() - 1);
    let ready = (0..losses).map(|_| Line { talk: copy(), alarm: copy(), members: Arc::new([]) });
    (first, ready.collect())
}

/// The rank in `before` of each member of `now`.
fn places(before: ffi::MPI_Comm, now: &Line) -> Vec<c_int> {
    if let Some(transport) = library::simulated() {
        return transport.places(library::number(before), library::number(now.alarm));
    }
    let mut places = vec![0; now.members.len()];
    // SAFETY: two communicators that exist, and arrays of the length given. Nothing here needs other ranks.
    unsafe {
        let (mut old, mut new) = (ffi::RSMPI_GROUP_NULL, ffi::RSMPI_GROUP_NULL);
        check(ffi::MPI_Comm_group(before, &mut old), "asking for the ranks there were");
        check(ffi::MPI_Comm_group(now.alarm, &mut new), "asking for the ranks that are left");
        let count = places.len() as i32;
        let rc = ffi::MPI_Group_translate_ranks(
            new,
            count,
            now.members.as_ptr(),
            old,
            places.as_mut_ptr(),
        );
        check(rc, "comparing the ranks there were with those that are left");
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
                // MPI_Finalize was seen to wait for ever for a rank that was lost (Open MPI 5.0.11). The launcher was told
                // that ranks may go.
                return;
            }
            // Before the first attempt a loss ends the job. Without this call the launcher was seen to wait for ever for
            // ranks that were refused.
        }
        // SAFETY: the last MPI call of the process.
        unsafe {
            ffi::MPI_Finalize();
        }
    }
}
