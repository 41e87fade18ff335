//! A helper that is a process of its own (`--helpers process`): this program once more, which a thread of the rank starts for one
//! errand, and waits for.
//!
//! *Why a process.* The kernel weighs it, counts it and bounds it by itself: it gives way to whatever else wants its processor,
//! and a fault in it, be it memory it cannot read, is its own end and not the rank's. And one that hangs can be ended.
//!
//! *It never outlives its rank.* It could write to the end what the rank has given it, but for nothing: an epoch counts when all
//! ranks have said that theirs is there, and who is gone says nothing. Meanwhile a restart would find a stranger at its memory
//! and its files; one that lists files would even remove what had become whole since. So the kernel ends it with the thread that
//! has started it; it takes the second lock of the position (`shm`), which a restart waits for, before it looks at anything;
//! and it ends by itself where nobody hears it any more.
//!
//! *How they talk.* The errand lies in a file in memory that is the helper's standard input. What it writes to its output, lines,
//! comes to the rank: how far it is, what has struck, what came of it. Anything else, such as a last word, goes on to the rank's
//! standard error: no launcher waits for a pipe that a helper has. It is started without a copy of the rank's address space
//! (posix_spawn), which a network adapter may be writing into, keeps none of its files, and knows nothing of MPI.

use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, FromRawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt, parent_id};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use serde::{Deserialize, Serialize};

use super::errand::{Errand, What};
use super::helper::{By, Task};
use crate::base::faults::{self, Counted};
use crate::checkpoint::storage::Shelf;
use crate::checkpoint::storage::writing::{Flow, Stopped};
use crate::shm::{Depot, HELPER_VAR, Store};

/// The subcommand by which this program is a helper.
const SUBCOMMAND: &str = "helper";

/// How soon one that is given up is ended, milliseconds.
const LOOK_MS: u16 = 20;
/// What ranks are told by is theirs; a helper goes on writing while they save for a stop.
const RANKS_SIGNALS: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGXCPU,
];
/// The least that a process can want a processor.
const NICE_LEAST: libc::c_int = 19;

/// What a helper is given.
#[derive(Serialize, Deserialize)]
struct Given {
    rank: u32,
    errand: Errand,
    yields: bool,
    faults: Option<Counted>,
}

/// What it says, a line each.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Said {
    /// A step more is done, of so many bytes.
    Moved(u64),
    /// It has come to the point of a fault, so often.
    Struck(usize, u64),
    /// It is done.
    Over(Result<u64, String>),
}

// ---- the rank's side ---------------------------------------------------------------------------

/// Has a process do the errand, and waits for it. On a thread of its own, whose end would be that of the process.
pub(super) fn run(errand: &Errand, yields: bool, flow: &Flow) -> Result<u64, Stopped> {
    let given = Given {
        rank: std::process::id(),
        errand: errand.clone(),
        yields,
        faults: faults::counted(),
    };
    let (mut child, heard) = start(&given)
        .map_err(|error| Stopped::Failed(format!("no helper process starts: {error}")))?;
    let over = attend(&mut child, heard, flow);
    let ended = child.wait();
    let result = match over {
        // Given up this late, what it has finished is of no more use than what it has not.
        _ if flow.is_given_up() => Stopped::GivenUp,
        Some(result) => return result.map_err(Stopped::Failed),
        None => Stopped::Failed(format!("its helper process {}", words(ended))),
    };
    errand.abandon();
    Err(result)
}

fn start(given: &Given) -> io::Result<(Child, io::PipeReader)> {
    let text = serde_json::to_vec(given).expect("plain values have a JSON form");
    let mut errand = memory_file(c"skt-hpl errand")?;
    errand.write_all(&text)?;
    errand.rewind()?;
    // Inherited; from its first moment on the helper does not die of what its rank is told.
    let _ = RANKS_SIGNALS.iter().copied().collect::<SigSet>().thread_block();
    let (heard, says) = io::pipe()?;
    // Whatever has become of the file's name since: the very program that this process is.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("skt-hpl").args([SUBCOMMAND, "--of", &given.rank.to_string()]);
    command.stdin(Stdio::from(errand)).stdout(says.try_clone()?).stderr(says);
    // It is no rank, and nobody shall take it for one.
    let ours = |name: &str| name.starts_with("SKT_") || name.starts_with("LD_") || name == "PATH";
    let of_them = |name: &OsString| name.to_str().is_some_and(ours);
    command.env_clear().envs(std::env::vars_os().filter(|(name, _)| of_them(name)));
    command.env(HELPER_VAR, given.rank.to_string());
    // Libraries that it never calls need no threads.
    for library in ["OPENBLAS", "BLIS", "MKL", "OMP"] {
        command.env(format!("{library}_NUM_THREADS"), "1");
    }
    Ok((command.spawn()?, heard))
}

fn memory_file(name: &CStr) -> io::Result<File> {
    // SAFETY: a plain system call; it gives a new descriptor that nobody else owns, or an error.
    unsafe {
        match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

/// Hears a helper until it has ended; one that is given up is ended. What came of it, if it has said that.
fn attend(
    child: &mut Child,
    mut heard: io::PipeReader,
    flow: &Flow,
) -> Option<Result<u64, String>> {
    let (mut text, mut over) = (Vec::new(), None);
    let mut room = [0; 4096];
    loop {
        if flow.is_given_up() {
            let _ = child.kill();
        }
        let mut ready = [PollFd::new(heard.as_fd(), PollFlags::POLLIN)];
        if poll(&mut ready, PollTimeout::from(LOOK_MS)) == Ok(0) {
            continue;
        }
        match heard.read(&mut room) {
            Ok(0) => break,
            Ok(bytes) => text.extend_from_slice(&room[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                // Who is given up is ended above.
                Ok(Said::Moved(bytes)) => _ = flow.went_on(bytes),
                Ok(Said::Struck(fault, seen)) => faults::have_seen(fault, seen),
                Ok(Said::Over(result)) => over = Some(result),
                Err(_) => pass_on(&line),
            }
        }
    }
    pass_on(&text);
    over
}

/// A last word of a helper's.
fn pass_on(text: &[u8]) {
    // Nobody can be told that nothing can be told.
    let _ = io::stderr().write_all(text);
}

fn words(ended: io::Result<ExitStatus>) -> String {
    match ended {
        Ok(status) => match (status.signal(), status.code()) {
            (Some(number), _) => match Signal::try_from(number) {
                Ok(signal) => format!("was ended by {signal}"),
                Err(_) => format!("was ended by signal {number}"),
            },
            (None, code) => format!("has ended with status {}", code.unwrap_or_default()),
        },
        Err(error) => format!("cannot be waited for: {error}"),
    }
}

/// Whether this rank can have such helpers at all: one is started, and does nothing.
pub fn trial() -> Result<(), String> {
    const NOBODYS: &str = "trial";
    let depot = Depot::new(Store::Posix, NOBODYS).map_err(|e| e.to_string())?;
    let shelf = Shelf::new(Path::new("/"), NOBODYS);
    let errand = Errand { shelf, depot, position: 0, what: What::Nothing };
    let mut task = Task::send(errand, By::Process { yields: false });
    task.wait();
    task.end().map(|_| ()).map_err(|why| why.to_string())
}

// ---- the helper's side -------------------------------------------------------------------------

/// This process is the helper of process `rank`: it does what it is given, and ends.
pub fn serve(rank: u32) -> ExitCode {
    // First of all, so that nothing in between keeps it from dying with its rank.
    let dies_along = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    let _ = nix::sys::prctl::set_name(c"level-two");
    close_others();
    let mut text = Vec::new();
    let read = io::stdin().read_to_end(&mut text).map_err(|e| e.to_string());
    let given: Result<Given, String> =
        read.and_then(|_| serde_json::from_slice(&text).map_err(|e| e.to_string()));
    drop(text);
    let result = match (dies_along, given) {
        (Err(error), _) => Err(format!("it would outlive its rank: {error}")),
        (_, Err(why)) => Err(format!("it cannot read what it is to do: {why}")),
        (Ok(()), Ok(given)) if given.rank == rank => run_for(&given),
        (Ok(()), Ok(_)) => Err("it was given what is another rank's".into()),
    };
    say(&Said::Over(result));
    ExitCode::SUCCESS
}

fn run_for(given: &Given) -> Result<u64, String> {
    faults::arm_from_environment()?;
    if let Some(counted) = &given.faults {
        faults::go_on_for(counted, |fault, seen| say(&Said::Struck(fault, seen)));
    }
    if given.yields {
        // SAFETY: a plain system call on this very process.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE_LEAST) };
    }
    // A rank that had gone before the kernel was asked to tell of it.
    let orphaned = || parent_id() != given.rank;
    let errand = &given.errand;
    if orphaned() || matches!(errand.what, What::Nothing) {
        return Ok(0);
    }
    let head = errand.depot.attend(errand.position).map_err(|e| e.to_string())?;
    // From here on a restart waits for this process, as long as it lives; before, it need not have.
    if orphaned() {
        return Ok(0);
    }
    let flow = Flow::told_to(|bytes| say(&Said::Moved(bytes)));
    errand.run_under(|| Ok(head), &flow).map_err(|why| why.to_string())
}

/// One line to the rank. Without anybody who hears it this process ends, and touches nothing any more.
fn say(said: &Said) {
    let mut line = serde_json::to_vec(said).expect("plain values have a JSON form");
    line.push(b'\n');
    let mut out = io::stdout().lock();
    if out.write_all(&line).and_then(|()| out.flush()).is_err() {
        // SAFETY: ends this process at once; nothing of it is to be put in order.
        unsafe { libc::_exit(0) }
    }
}

/// Files that the rank has not kept from its children, such as its libraries' connections to peers: they are to end with it.
fn close_others() {
    // SAFETY: a plain system call, before this process has opened anything.
    if unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) } == 0 {
        return;
    }
    // Linux before 5.9.
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<i32> =
        open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|&number| number > 2) {
        // SAFETY: as above; the folder that was read is closed already.
        unsafe { libc::close(number) };
    }
}
