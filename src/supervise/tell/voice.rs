//! Output for people, on a thread of its own: standard output and standard error may be held up.
//!
//! A terminal that is stopped, a pipe that is not read, a file on a file system that hangs: each makes its writer wait. The
//! supervisor must not wait, since it receives heartbeats meanwhile. `say!` and the job's output come through here, in order.
//! [`all_said`] waits for the rest at the end.

use std::io::{Write, stderr, stdout};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use crate::base::{closed, new_thread};
pub use crate::supervise::machine::Stream;
use crate::supervise::machine::simulated;

enum Word {
    Say(Stream, Vec<u8>),
    /// Answer when all before this has been tried.
    Settle(Sender<()>),
}

/// Returns the queue for output; None if the system gives no thread for it.
fn words() -> Option<&'static Sender<Word>> {
    static WORDS: OnceLock<Option<Sender<Word>>> = OnceLock::new();
    let words = WORDS.get_or_init(|| {
        let (words, heard) = channel();
        let speak = move || {
            for word in heard {
                match word {
                    Word::Say(stream, bytes) => say_now(stream, &bytes),
                    Word::Settle(done) => drop(done.send(())),
                }
            }
        };
        new_thread::start("voice", speak).ok().map(|_| words)
    });
    words.as_ref()
}

/// Reason why output did not get to standard output, the first time.
static LOST: OnceLock<String> = OnceLock::new();

/// Returns that reason, once [`all_said`] has returned.
pub fn lost() -> Option<&'static str> {
    LOST.get().map(String::as_str)
}

fn say_now(stream: Stream, bytes: &[u8]) {
    // A closed or full stream is no reason to end.
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
    match words() {
        Some(words) => drop(words.send(Word::Say(stream, bytes))),
        None => say_now(stream, &bytes),
    }
}

/// Waits until all output has been written, or could not be.
pub fn all_said() {
    if simulated().is_some() {
        return;
    }
    let (done, heard) = channel();
    if words().is_some_and(|words| words.send(Word::Settle(done)).is_ok()) {
        let _ = heard.recv();
    }
}
