//! Handler of SIGBUS, the signal for memory that can no longer be read.
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
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::header::Head;
use super::names::Named;
use super::part::Part;
use super::region::LastingPage;

/// Exit code after a memory fault: 128 + the signal's number, as in a shell.
pub const EXIT_CODE: i32 = 128 + libc::SIGBUS;

/// Address range of one part of a position's memory.
struct Span {
    base: usize,
    len: usize,
    position: u32,
    part: Part,
    /// Damage flag in the position's header.
    mark: &'static AtomicU64,
}

/// Table of the watched ranges. A process has one position of some ten parts at a time. Tests have several positions, in threads.
static SPANS: [AtomicPtr<Span>; 128] = [const { AtomicPtr::new(null_mut()) }; 128];

/// Address ranges that are watched until this value is dropped.
#[derive(Debug, Default)]
pub struct Watched {
    /// Indices of the ranges in [`SPANS`].
    spans: Vec<usize>,
    /// Page that contains the damage flag; released after the ranges are cleared.
    _page: Option<LastingPage>,
}

impl Watched {
    /// Watches the memory of `parts`. A memory fault in a part is reported with the part's name, and sets the damage flag of
    /// `header`.
    pub fn parts(header: &Head, position: u32, parts: &[Named]) -> Self {
        let Some((page, mark)) = header.damage_flag() else { return Self::default() };
        let mut watched = Self { spans: Vec::new(), _page: Some(page) };
        for &Named { part, base, len, .. } in parts {
            watched.add(Span { base: base as usize, len, position, part, mark });
        }
        watched
    }

    /// Adds a range to the watched ranges. If the table is full, the range is not added. A fault in the range is then reported
    /// without the part's name, and only the digests show the damage at the next start.
    fn add(&mut self, span: Span) {
        // The span is never freed, because the handler of another thread may still read it. The spans of a test take some bytes
        // for each part.
        let span = Box::into_raw(Box::new(span));
        let free = |place: &AtomicPtr<Span>| {
            place.compare_exchange(null_mut(), span, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.spans.extend(SPANS.iter().position(free));
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        for &at in &self.spans {
            SPANS[at].store(null_mut(), Ordering::Release);
        }
    }
}

/// Finds the position, the part and the byte offset of an address, and sets the damage flag of that position. None if the address
/// is in no watched range.
fn flag_damage(address: usize) -> Option<(u32, Part, usize)> {
    // SAFETY: a range in the table is never freed.
    let mut spans =
        SPANS.iter().filter_map(|place| unsafe { place.load(Ordering::Acquire).as_ref() });
    let within = |span: &'static Span| {
        let at = address.checked_sub(span.base)?;
        (at < span.len).then_some((span, at))
    };
    let (span, at) = spans.find_map(within)?;
    span.mark.store(1, Ordering::SeqCst);
    Some((span.position, span.part, at))
}

/// Text of a message in a buffer of fixed size, because a signal handler must not allocate.
type Line = Cursor<[u8; 320]>;

/// Returns the message about a fault at `address`, cut off at the end of the buffer. `cut` is true if the file has no page at
/// this address. `place` is None if the address is in no watched range.
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
        Some(_) => "; this position's memory counts as lost and will be rebuilt",
        None => "",
    };
    let _ = named.and_then(|()| {
        writeln!(line, " cannot be read any more (address {address:#x}): {why}{then}")
    });
    line
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler installed with SA_SIGINFO. A handler may call write, sigaction,
    // raise and _exit.
    unsafe {
        let code = (*info).si_code;
        if code <= 0 {
            // A process sent the signal, so the signal has its default effect.
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
            return;
        }
        const CUT: i32 = 2; // BUS_ADRERR
        let address = (*info).si_addr() as usize;
        let line = words(address, code == CUT, flag_damage(address));
        libc::write(libc::STDERR_FILENO, line.get_ref().as_ptr().cast(), line.position() as usize);
        libc::_exit(EXIT_CODE);
    }
}

/// Installs the handler of SIGBUS. Must be called after MPI has installed its own handlers.
pub fn install() {
    let handler = SigHandler::SigAction(on_fault);
    let action = SigAction::new(handler, SaFlags::SA_ONSTACK, SigSet::empty());
    // SAFETY: the handler only does what a handler may do.
    let _ = unsafe { sigaction(Signal::SIGBUS, &action) };
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
        let span = |base, part, mark| Span { base, len: 4096, position: 3, part, mark };
        watched.add(span(base as usize, Part::A, &OTHER));
        watched.add(span(base as usize + 4096, Part::B, &MARK));
        let address = base as usize + 4096 + 17;
        let place = flag_damage(address);
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
        assert_eq!(flag_damage(address), None);
        let line = words(usize::MAX, true, None);
        assert!(text(&line).contains("0xffffffffffffffff") && text(&line).contains("cut short"));
    }
}
