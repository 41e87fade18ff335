//! Handler for SIGBUS: memory that can no longer be read.
//!
//! The cause is a page with an uncorrectable error, or a file that another program cut short. The program cannot continue without
//! that memory, and must not trust it at the next start. So the handler prints the address, marks the position's header as
//! damaged (`header`), and ends the process. The next start counts the position as lost and rebuilds it from its group in new
//! memory.
//!
//! `driver::protection` installs the handler; `checkpoint::holding` registers the address ranges. The handler uses only atomic
//! loads and stores, formatting that takes no memory, write and _exit.

use std::io::{Cursor, Write};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::header::Head;
use super::names::Named;
use super::part::Part;
use super::region::LastingPage;

/// Exit code after a memory fault: 128 + the signal's number, as in a shell.
pub const EXIT_CODE: i32 = 128 + libc::SIGBUS;

/// Address range of one part of a position's memory; free if `len` is zero.
struct Span {
    base: AtomicUsize,
    len: AtomicUsize,
    position: AtomicU32,
    part: AtomicUsize,
    /// Damage flag in the position's header.
    mark: AtomicPtr<AtomicU64>,
}

impl Span {
    const fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            position: AtomicU32::new(0),
            part: AtomicUsize::new(0),
            mark: AtomicPtr::new(null_mut()),
        }
    }
}

/// Table of the watched ranges. A process has one position of some ten parts at a time; tests have several, in threads.
static SPANS: [Span; 128] = [const { Span::new() }; 128];
/// Lock for writers of the table. The handler only reads it.
static WRITER: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Address ranges that are watched until this value is dropped.
#[derive(Debug, Default)]
pub struct Watched {
    spans: Vec<usize>,
    /// Page that contains the damage flag; released after the ranges are cleared.
    _page: Option<LastingPage>,
}

impl Watched {
    /// Watches these parts: a memory fault in one of them is reported by name and sets the damage flag of `header`.
    pub fn parts(header: &Head, position: u32, parts: &[Named]) -> Self {
        let Some((page, flag)) = header.damage_flag() else { return Self::default() };
        let mut watched = Self { spans: Vec::new(), _page: Some(page) };
        for (part, base, len) in parts.iter().map(Named::span) {
            watched.add(base, len, position, part, flag);
        }
        watched
    }

    /// Watches `base..base + len`: a fault there sets `mark` and is reported for this position and part.
    fn add(
        &mut self,
        base: *const u8,
        len: usize,
        position: u32,
        part: Part,
        mark: &'static AtomicU64,
    ) {
        let _one = WRITER.lock().unwrap_or_else(|broken| broken.into_inner());
        let free = SPANS.iter().position(|span| span.len.load(Ordering::Relaxed) == 0);
        // If the table is full, a fault is reported without the part's name, and the digests find the damage.
        if let Some(at) = free {
            let span = &SPANS[at];
            span.base.store(base as usize, Ordering::Relaxed);
            span.position.store(position, Ordering::Relaxed);
            span.part.store(part as usize, Ordering::Relaxed);
            span.mark.store(std::ptr::from_ref(mark).cast_mut(), Ordering::Relaxed);
            // A nonzero length makes the entry valid.
            span.len.store(len, Ordering::Release);
            self.spans.push(at);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _one = WRITER.lock().unwrap_or_else(|broken| broken.into_inner());
        for &at in &self.spans {
            SPANS[at].len.store(0, Ordering::Release);
        }
    }
}

/// Finds the position, the part and the byte offset of an address, and sets the damage flag of that position.
fn strike(address: usize) -> Option<(u32, Part, usize)> {
    let span = SPANS.iter().find(|span| {
        let len = span.len.load(Ordering::Acquire);
        address.checked_sub(span.base.load(Ordering::Relaxed)).is_some_and(|at| at < len)
    })?;
    // SAFETY: a span with a length was given a `&'static AtomicU64`.
    if let Some(mark) = unsafe { span.mark.load(Ordering::Relaxed).as_ref() } {
        mark.store(1, Ordering::SeqCst);
    }
    let part = *Part::ALL.get(span.part.load(Ordering::Relaxed))?;
    let at = address - span.base.load(Ordering::Relaxed);
    Some((span.position.load(Ordering::Relaxed), part, at))
}

/// Text of a message in a fixed place: a signal handler may not allocate.
type Line = Cursor<[u8; 320]>;

/// Returns the message about a fault at `address`, as far as there is room.
fn words(address: usize, cut: bool, place: Option<(u32, Part, usize)>) -> Line {
    let mut line = Line::new([0; 320]);
    let named = match place {
        Some((position, part, at)) => {
            write!(line, "skt-hpl: position {position}: byte {at} of part {}", part.name())
        }
        None => write!(line, "skt-hpl: memory outside of any checkpoint"),
    };
    let why = if cut {
        "its file was cut short, or the node had no page for it"
    } else {
        "an uncorrectable memory error"
    };
    let then = match place {
        Some(_) => "; this node's copy counts as lost and will be rebuilt",
        None => "",
    };
    let _ = named.and_then(|()| {
        writeln!(line, " cannot be read any more (address {address:#x}): {why}{then}")
    });
    line
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo to a handler installed with SA_SIGINFO; write, sigaction, raise and
    // _exit may be called in a handler.
    unsafe {
        let code = (*info).si_code;
        if code <= 0 {
            // A process sent the signal, so it has its default effect.
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
            return;
        }
        const CUT: i32 = 2; // BUS_ADRERR
        let address = (*info).si_addr() as usize;
        let line = words(address, code == CUT, strike(address));
        libc::write(libc::STDERR_FILENO, line.get_ref().as_ptr().cast(), line.position() as usize);
        libc::_exit(EXIT_CODE);
    }
}

/// Installs the handler. Call after MPI has installed its own handlers.
pub fn install() {
    // SAFETY: a plain system call; the handler keeps to what a handler may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: &Line) -> &str {
        std::str::from_utf8(&line.get_ref()[..line.position() as usize]).unwrap()
    }

    #[test]
    fn a_fault_is_named_and_its_head_marked() {
        static MARK: AtomicU64 = AtomicU64::new(0);
        static OTHER: AtomicU64 = AtomicU64::new(0);
        let memory = vec![0u8; 8192];
        let base = memory.as_ptr();
        let mut watched = Watched::default();
        watched.add(base, 4096, 3, Part::A, &OTHER);
        // SAFETY: within the vector.
        watched.add(unsafe { base.add(4096) }, 4096, 3, Part::B, &MARK);
        let address = base as usize + 4096 + 17;
        let place = strike(address);
        assert_eq!(place, Some((3, Part::B, 17)));
        assert_eq!((MARK.load(Ordering::Relaxed), OTHER.load(Ordering::Relaxed)), (1, 0));
        let line = words(address, false, place);
        assert!(
            text(&line).starts_with("skt-hpl: position 3: byte 17 of part b"),
            "{}",
            text(&line)
        );
        assert!(
            text(&line).contains(&format!("{address:#x}")) && text(&line).ends_with("rebuilt\n")
        );
        drop(watched);
        assert_eq!(strike(address), None);
        let line = words(usize::MAX, true, None);
        assert!(text(&line).contains("0xffffffffffffffff") && text(&line).contains("cut short"));
    }
}
