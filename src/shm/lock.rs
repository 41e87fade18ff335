//! Lock on a position's header (`flock`): which process has the lock, and whether to wait for that process.
//!
//! A killed rank keeps its lock until the kernel has freed all of its memory, which takes many seconds for hundreds of gigabytes.
//! The next process waits as long as the kernel makes progress. If the holder is alive, the next process is refused at once, and
//! the error names the holder. `hold` calls this module. Pure functions parse the texts from /proc.
//!
//! A process that was killed within a system call ends only when this call returns. If storage does not answer, the call may
//! never return. Such a process uses no processor time, which shows that it is stuck. The next process then stops waiting and is
//! refused, because the stuck process still has the lock.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use super::header;
use super::region::MemoryError;
use super::stat::Stat;
use crate::base::clock::{self, Instant};

/// Infinite timeout for a lock's holder that is ending. The wait still ends if the holder makes no progress.
pub(super) const UNTIL_IT_HAS_ENDED: Duration = Duration::MAX;

/// Time without any use of the processor after which a process that is ending counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Time that a lock's holder gets to end if this process cannot see the holder. A holder that is alive sends a heartbeat sooner.
const UNSEEN_ENDS_WITHIN: Duration = Duration::from_secs(60);

/// Holder of a position's lock, as far as this process can see it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Holder {
    /// No process any more, or a process that this process cannot see, such as one in another container.
    Unseen,
    /// Process that this process cannot see, but that has sent a heartbeat.
    UnseenAlive,
    /// Process that tests whether another process has the lock, and has a shared lock for a moment.
    Asker,
    /// Process that was killed or has ended, and is being torn down.
    Ending(u32),
    /// Killed process that does not end, because it is stuck in the kernel.
    Stuck(u32),
    Living(u32),
}

/// Processor time of a process that is ending, and since when this time has not changed.
struct Still {
    pid: u32,
    ran: Option<u64>,
    since: Instant,
}

impl Still {
    /// Returns how long the processor time of a process has not changed. `ran` is the processor time by the kernel's count.
    fn stands_at(&mut self, pid: u32, ran: Option<u64>, now: Instant) -> Duration {
        if (self.pid, self.ran) != (pid, ran) {
            *self = Still { pid, ran, since: now };
        }
        now.duration_since(self.since)
    }

    fn stands(&mut self, pid: u32) -> Duration {
        self.stands_at(pid, Stat::of(pid).and_then(|stat| stat.ran()), Instant::now())
    }
}

/// Takes the lock, or returns an error that names the lock's holder. Waits up to `timeout` for a holder that is ending.
pub(super) fn take(file: &File, name: &str, timeout: Duration) -> Result<(), MemoryError> {
    let began = Instant::now();
    let mut still = Still { pid: 0, ran: None, since: began };
    let mut told = false;
    let pause = |holder: &Holder| {
        let whom = match holder {
            Holder::Ending(pid) => {
                Some(format!("until process {pid}, which is ending, releases the lock"))
            }
            Holder::Unseen => Some(format!("up to a minute until {UNSEEN} releases the lock")),
            _ => None,
        };
        if let Some(whom) = whom.filter(|_| !told && began.elapsed() > Duration::from_secs(2)) {
            told = true;
            // Nothing depends on this message being delivered.
            let _ = writeln!(std::io::stderr(), "skt-hpl: {name}: waiting {whom}");
        }
        clock::sleep(Duration::from_millis(5));
    };
    let mut first_beat = None;
    let who = || match holder(file) {
        Holder::Ending(pid) if still.stands(pid) >= STUCK_AFTER => Holder::Stuck(pid),
        // Nothing shows whether an invisible process is ending. But a process that is ending sends no heartbeat.
        Holder::Unseen => {
            let beat = beat(file);
            if beat == *first_beat.get_or_insert(beat) {
                Holder::Unseen
            } else {
                Holder::UnseenAlive
            }
        }
        other => other,
    };
    let waits = |holder: &Holder| match holder {
        Holder::Ending(_) => began.elapsed() < timeout,
        Holder::Unseen => began.elapsed() < timeout.min(UNSEEN_ENDS_WITHIN),
        _ => false,
    };
    // The kernel drops the lock when the process has ended.
    try_until(|| file.try_lock().is_ok(), who, pause, waits).map_err(|holder| {
        let by = match holder {
            Holder::Living(pid) | Holder::Ending(pid) => described(pid),
            Holder::Stuck(pid) => format!("{}, which was killed and {STUCK}", described(pid)),
            Holder::Unseen | Holder::UnseenAlive | Holder::Asker => UNSEEN.into(),
        };
        MemoryError::InUse { name: name.into(), by }
    })
}

const UNSEEN: &str = "a process that cannot be seen from here (perhaps in another container)";

const STUCK: &str = "is stuck in the kernel, perhaps in storage that does not answer: the process ends when the storage answers, \
                     or with its node";

/// Reads the heartbeat counter of the position from its header file. None if the header was never written.
fn beat(file: &File) -> Option<[u8; 8]> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, header::BEAT_AT).ok().map(|()| word)
}

/// Budget for attempts to take a lock. The more certain it is that the holder keeps the lock, the more of the budget an attempt
/// uses.
const ATTEMPTS: u32 = 1000;

/// Repeats `attempt` until it succeeds or the budget [`ATTEMPTS`] is spent. If the budget is spent, returns the last holder of
/// the lock as an error. If `waits` returns true for the holder, an attempt uses none of the budget. `waits` returns true before
/// the timeout, for a holder that is or may be ending.
fn try_until(
    mut attempt: impl FnMut() -> bool,
    mut holder: impl FnMut() -> Holder,
    mut pause: impl FnMut(&Holder),
    waits: impl Fn(&Holder) -> bool,
) -> Result<(), Holder> {
    let mut left = ATTEMPTS;
    loop {
        if attempt() {
            return Ok(());
        }
        let now = holder();
        let cost = match now {
            _ if waits(&now) => 0,
            // Four attempts confirm the refusal. The holder may release the lock, or begin to end, in between.
            Holder::Ending(_) | Holder::Stuck(_) | Holder::Living(_) | Holder::UnseenAlive => {
                ATTEMPTS / 4
            }
            Holder::Unseen => ATTEMPTS / 20,
            Holder::Asker => 1,
        };
        left = left.saturating_sub(cost);
        if left == 0 {
            return Err(now);
        }
        pause(&now);
    }
}

/// Returns true if a process has the exclusive lock. Otherwise takes a shared lock for a moment, which several processes may have
/// at once.
pub(super) fn is_held(file: &File) -> bool {
    // Closing the file, which the caller does, releases the lock.
    file.try_lock_shared().is_err()
}

/// Returns true if `path` still names `file`. The last holder of the lock may have removed the name.
pub(super) fn is_named(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(named)) => (ours.dev(), ours.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

fn holder(file: &File) -> Holder {
    let (Ok(meta), Ok(locks)) = (file.metadata(), fs::read_to_string("/proc/locks")) else {
        return Holder::Unseen;
    };
    let device = (libc::major(meta.dev()), libc::minor(meta.dev()));
    match locked_by(&locks, device, meta.ino()) {
        None => Holder::Unseen,
        Some((_, false)) => Holder::Asker,
        Some((pid, true)) => match ends(pid) {
            None => Holder::Unseen,
            Some(true) => Holder::Ending(pid),
            Some(false) => Holder::Living(pid),
        },
    }
}

/// Finds the process that has a lock on the file `inode` of `device`, in the lines of /proc/locks. The flag is true for an
/// exclusive lock. None if no process has a lock on the file.
fn locked_by(locks: &str, device: (u32, u32), inode: u64) -> Option<(u32, bool)> {
    let place = format!("{:02x}:{:02x}:{inode}", device.0, device.1);
    locks.lines().find_map(|line| {
        // An example: `1: FLOCK ADVISORY WRITE 1234 00:1b:9 0 EOF`. A waiting process has `->` after the number.
        let mut fields = line.split_whitespace().skip(1);
        if fields.next() != Some("FLOCK") {
            return None;
        }
        let (access, pid) = (fields.nth(1)?, fields.next()?.parse().ok()?);
        (fields.next() == Some(&place)).then_some((pid, access == "WRITE"))
    })
}

/// Returns true if all threads of a process are ending; None if there is no such process.
fn ends(pid: u32) -> Option<bool> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut any = false;
    for thread in threads.flatten() {
        let folder = thread.path();
        let status = || fs::read_to_string(folder.join("status")).ok();
        // A thread that has disappeared meanwhile counts as ended.
        if let (Some(stat), Some(status)) = (Stat::within(&folder), status()) {
            any = true;
            if !thread_ends(&stat, &status) {
                return Some(false);
            }
        }
    }
    any.then_some(true)
}

/// Returns true if a thread is a zombie, is exiting, or has a SIGKILL pending, by its `stat` and `status` in /proc.
fn thread_ends(stat: &Stat, status: &str) -> bool {
    const EXITING: u64 = 0x4;
    const KILLED_BY_SIGNAL: u64 = 0x400;
    const KILL_PENDING: u64 = 1 << (libc::SIGKILL - 1);
    let flags = stat.flags().unwrap_or(0);
    let pending = ["SigPnd:", "ShdPnd:"].iter().any(|which| {
        let line = status.lines().find_map(|line| line.strip_prefix(which));
        let set = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        set.is_some_and(|set| set & KILL_PENDING != 0)
    });
    matches!(stat.state(), Some('Z' | 'X')) || flags & (EXITING | KILLED_BY_SIGNAL) != 0 || pending
}

/// Describes a process: its number and its command line.
fn described(pid: u32) -> String {
    const LONGEST: usize = 100;
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> =
        bytes.split(|&b| b == 0).filter(|w| !w.is_empty()).map(String::from_utf8_lossy).collect();
    let command = words.join(" ");
    match command.char_indices().nth(LONGEST) {
        _ if command.is_empty() => format!("process {pid}"),
        Some((end, _)) => format!("process {pid} ({}...)", &command[..end]),
        None => format!("process {pid} ({command})"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::stat::Stat;
    use super::*;

    #[test]
    fn the_holder_is_found_among_other_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 700 00:1b:9 0 EOF\n\
                     2: FLOCK  ADVISORY  READ 701 00:1b:10 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 702 00:1b:9 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 703 00:1b:9 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 704 fd:1b:11 0 EOF\n";
        assert_eq!(locked_by(locks, (0, 0x1b), 9), Some((702, true)));
        assert_eq!(locked_by(locks, (0, 0x1b), 10), Some((701, false)));
        assert_eq!(locked_by(locks, (0, 0x1b), 11), None);
        assert_eq!(locked_by(locks, (0xfd, 0x1b), 11), Some((704, true)));
    }

    #[test]
    fn an_ending_process_is_told_from_a_living_one() {
        let stat = |state: &str, flags: u64| {
            Stat(format!("12 (a) b (c) {state} 1 12 12 0 -1 {flags} 0 0"))
        };
        let status =
            |own: &str, shared: &str| format!("Name:\ta\nSigPnd:\t{own}\nShdPnd:\t{shared}\n");
        let nothing = status("0000000000000000", "0000000000000000");
        for (stat, status, ending) in [
            (stat("R", 0x400000), nothing.clone(), false),
            (stat("T", 0x400000), nothing.clone(), false),
            (stat("Z", 0x400000), nothing.clone(), true),
            (stat("D", 0x400004), nothing.clone(), true),
            (stat("t", 0x400400), nothing.clone(), true),
            (stat("D", 0), status("0000000000000100", "0000000000000000"), true),
            (stat("D", 0), status("0000000000000000", "0000000000000100"), true),
            // SIGTERM may be caught.
            (stat("D", 0), status("0000000000000000", "0000000000004000"), false),
        ] {
            assert_eq!(thread_ends(&stat, &status), ending, "{stat:?} {status}");
        }
        assert_eq!(ends(std::process::id()), Some(false));
        assert_eq!(ends(u32::MAX / 2), None);
    }

    /// A process that is ending uses processor time for its remaining work. A process that uses none for long is stuck.
    #[test]
    fn a_process_whose_end_proceeds_is_not_stuck() {
        let began = Instant::now();
        let mut still = Still { pid: 7, ran: None, since: began };
        let mut stands = |pid, ran, second| {
            let now = began + Duration::from_secs(second);
            still.stands_at(pid, Some(ran), now).as_secs()
        };
        let looks = [(7, 10, 0), (7, 10, 59), (7, 11, 60), (7, 11, 70), (8, 11, 71), (7, 11, 72)];
        assert_eq!(looks.map(|(pid, ran, at)| stands(pid, ran, at)), [0, 59, 0, 10, 0, 0]);
    }

    #[test]
    fn the_timeout_counts_only_while_the_holder_is_ending() {
        let run = |told: &dyn Fn(u32) -> Holder, free_at: u32, most: u32| {
            let looks = std::cell::Cell::new(0);
            let end = try_until(
                || looks.get() >= free_at,
                || told(looks.get()),
                |_| looks.set(looks.get() + 1),
                |holder| matches!(holder, Holder::Ending(_) | Holder::Unseen) && looks.get() < most,
            );
            (end, looks.get())
        };
        const FOR_EVER: u32 = u32::MAX;
        let ending: &dyn Fn(u32) -> Holder = &|_| Holder::Ending(7);
        assert_eq!(run(ending, 100_000, FOR_EVER), (Ok(()), 100_000));
        assert_eq!(run(ending, 100_000, 0), (Err(Holder::Ending(7)), 3));
        assert_eq!(run(ending, 500, 501), (Ok(()), 500));
        assert_eq!(run(ending, 100_000, 501), (Err(Holder::Ending(7)), 504));
        let (end, looks) = run(&|_| Holder::Living(7), 100_000, FOR_EVER);
        assert!(end == Err(Holder::Living(7)) && looks < 5);
        // The holder is killed between two attempts.
        let killed: &dyn Fn(u32) -> Holder =
            &|look| if look < 2 { Holder::Living(7) } else { Holder::Ending(7) };
        assert_eq!(run(killed, 500, FOR_EVER), (Ok(()), 500));
        assert_eq!(run(&|_| Holder::Asker, 300, FOR_EVER), (Ok(()), 300));
        assert_eq!(run(&|_| Holder::Unseen, 100_000, FOR_EVER), (Ok(()), 100_000));
        assert!(run(&|_| Holder::Unseen, 300, 100).0.is_err());
        let alive = |look| if look < 50 { Holder::Unseen } else { Holder::UnseenAlive };
        let (end, looks) = run(&alive, 100_000, FOR_EVER);
        assert!(end == Err(Holder::UnseenAlive) && looks < 55);
    }

    #[test]
    fn a_process_is_described_by_its_command() {
        let own = described(std::process::id());
        assert!(own.starts_with(&format!("process {} (", std::process::id())), "{own}");
    }
}
