//! Output for people, on its own thread, because standard output and standard error may block.
//!
//! A stopped terminal, a pipe that is not read, or a file on a file system that hangs makes its writer wait. The supervisor must
//! not wait, because it receives heartbeats meanwhile. `say!` and the job's output are written here, in order. [`all_said`] waits
//! for the remaining output at the end.

use std::io::{Write, stderr, stdout};
use std::sync::{LazyLock, OnceLock};

use crate::base::closed;
pub use crate::supervise::machine::Stream;
use crate::supervise::machine::simulated;
use crate::supervise::remember::io_thread::IoThread;

/// The thread that writes, or `None` if it cannot be started.
static WRITER: LazyLock<Option<IoThread>> = LazyLock::new(|| IoThread::new("voice").ok());

/// Reason of the first failed write to standard output.
static LOST: OnceLock<String> = OnceLock::new();

/// Returns the reason of the first failed write to standard output. Complete once [`all_said`] has returned.
pub fn lost() -> Option<&'static str> {
    LOST.get().map(String::as_str)
}

fn say_now(stream: Stream, bytes: &[u8]) {
    // A closed or full stream does not end the program.
    match stream {
        Stream::Output => {
            if let Err(error) = write(&mut stdout().lock(), bytes) {
                let _ = LOST.set(closed::why(&error));
            }
        }
        Stream::Errors => drop(write(&mut stderr().lock(), bytes)),
    }
}

fn write(to: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

pub fn say(stream: Stream, bytes: Vec<u8>) {
    if let Some(machine) = simulated() {
        return machine.prints(stream, &bytes);
    }
    match &*WRITER {
        Some(writer) => drop(writer.ask(move || say_now(stream, &bytes))),
        None => say_now(stream, &bytes),
    }
}

/// Waits until all output has been written, or has failed to be written.
pub fn all_said() {
    if simulated().is_none()
        && let Some(writer) = &*WRITER
    {
        writer.ask(|| ()).wait();
    }
}
