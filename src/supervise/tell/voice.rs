//! What people hear, on a thread of its own: standard output and standard error may be held up.
//!
//! A terminal that somebody has stopped, a pipe that is not read, a file on a file system that hangs: whoever writes to
//! them waits, and the supervisor must not, since it hears heartbeats meanwhile. `say!` and the job's output come by
//! here, in the order in which they were said. [`all_said`] waits for the rest at the end.

use std::io::{Write, stderr, stdout};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Output,
    Errors,
}

enum Word {
    Say(Stream, Vec<u8>),
    /// Answer when all before this has been tried.
    Settle(Sender<()>),
}

/// How much has been said and not been written yet.
static UNSAID: AtomicUsize = AtomicUsize::new(0);

fn words() -> &'static Sender<Word> {
    static WORDS: OnceLock<Sender<Word>> = OnceLock::new();
    WORDS.get_or_init(|| {
        let (words, heard) = channel();
        thread::spawn(move || {
            for word in heard {
                match word {
                    // A stream that is gone, or full, is no reason to end.
                    Word::Say(stream, bytes) => {
                        let _ = match stream {
                            Stream::Output => write(&mut stdout().lock(), &bytes),
                            Stream::Errors => write(&mut stderr().lock(), &bytes),
                        };
                        UNSAID.fetch_sub(1, Ordering::Relaxed);
                    }
                    Word::Settle(done) => drop(done.send(())),
                }
            }
        });
        words
    })
}

fn write(to: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

pub fn say(stream: Stream, bytes: Vec<u8>) {
    UNSAID.fetch_add(1, Ordering::Relaxed);
    let _ = words().send(Word::Say(stream, bytes));
}

/// Whether something that was said still waits to be written.
pub fn is_behind() -> bool {
    UNSAID.load(Ordering::Relaxed) > 0
}

/// Waits until all that was said has been written, or could not be.
pub fn all_said() {
    let (done, heard) = channel();
    if words().send(Word::Settle(done)).is_ok() {
        let _ = heard.recv();
    }
}
