//! A thread that runs, or an error.
//!
//! Between the system's yes to a new thread and that thread's first line, Rust's runtime asks for memory again, for a stack on
//! which it tells of an overflow, and panics where there is none: no caller could say then what is missing. So threads start one
//! at a time, and only where there is more room than one takes.

use std::hint::black_box;
use std::io::{Error, ErrorKind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use nix::libc;

/// Bytes of a thread's stack; those of its pages that it never touches take no memory, only room among the addresses.
const STACK: usize = 2 << 20;

/// Bytes that there must be room for beside the stack: the C library may take 128 MiB of addresses for the heap of a new thread,
/// all there are otherwise, and the runtime needs a few pages after that.
const BESIDE: usize = 132 << 20;

/// Why there is no thread, and what can be done.
#[derive(Debug, thiserror::Error)]
#[error("the system gives this process no more threads ({0}); {HELP}")]
pub struct NoThread(pub Error);

/// What can be done about it.
pub const HELP: &str = "ask for fewer with --threads, or raise what limits them: `ulimit -u`, `ulimit -v`, a container's or job's \
                        number of processes (pids.max), the system's number of mappings in a process (vm.max_map_count)";

/// Starts a thread of that name, and returns when it runs.
pub fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, NoThread> {
    once_it_runs(name, |builder, runs| builder.spawn(|| told(runs, work)))
}

/// The same for one that ends within `scope`.
pub fn start_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, NoThread> {
    once_it_runs(name, |builder, runs| builder.spawn_scoped(scope, || told(runs, work)))
}

/// What the new thread does: whoever starts it waits for the word that it runs.
fn told<T>(runs: Sender<()>, work: impl FnOnce() -> T) -> T {
    let _ = runs.send(());
    work()
}

/// Does `work` on a thread of its own, which nobody waits for; where the system gives none, at once and here.
pub fn start_or_here(name: &str, work: impl FnOnce() + Send + 'static) {
    let kept = Arc::new(Mutex::new(Some(work)));
    let there = Arc::clone(&kept);
    let take = |kept: &Mutex<Option<_>>| kept.lock().ok()?.take();
    if start(name, move || take(&there).map(|work| work())).is_err()
        && let Some(work) = take(&kept)
    {
        work();
    }
}

fn once_it_runs<H>(
    name: &str,
    spawn: impl FnOnce(Builder, Sender<()>) -> Result<H, Error>,
) -> Result<H, NoThread> {
    look_for_room()?;
    let (runs, running) = channel();
    let thread =
        spawn(Builder::new().name(name.into()).stack_size(STACK), runs).map_err(NoThread)?;
    let _ = running.recv();
    Ok(thread)
}

/// So many mappings there must be room for: a thread has four, with the pages before its stacks that nobody may touch; the rest
/// is for what allocates meanwhile.
const MAPPINGS: usize = 32;

/// Some processors' pages are larger than 4 KiB.
fn page_bytes() -> usize {
    // SAFETY: plain question to the C library.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Whether the system's limit on the mappings of a process (vm.max_map_count) leaves enough for a thread.
fn has_mappings_left() -> bool {
    let page = page_bytes();
    let whole = MAPPINGS * page;
    let none = std::ptr::null_mut();
    // SAFETY: pages of our own, which nobody touches. Every second one that may be read makes mappings of all of them.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at = libc::mmap(none, whole, libc::PROT_NONE, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return false;
        }
        let fits = (1..MAPPINGS)
            .step_by(2)
            .all(|nth| libc::mprotect(at.byte_add(nth * page), page, libc::PROT_READ) == 0);
        libc::munmap(at, whole);
        fits
    }
}

/// Whether `ulimit -v`, or a system that lends no more memory than it has, leaves enough for a thread, and the process has not
/// too many mappings.
fn look_for_room() -> Result<(), NoThread> {
    let out_of_memory = |why| Err(NoThread(Error::new(ErrorKind::OutOfMemory, why)));
    if !has_mappings_left() {
        return out_of_memory(
            "no room among its mappings, of which vm.max_map_count allows so many",
        );
    }
    let mut room: Vec<u8> = Vec::new();
    let there = room.try_reserve_exact(STACK + BESIDE).is_ok();
    // Or the compiler would leave out what nobody uses.
    black_box(&mut room);
    match there {
        true => Ok(()),
        false => out_of_memory("no room in memory for a thread"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::cores::left_out::left_out;
    use std::process::Command;

    /// Whatever room there is, threads that do not fit are refused and nothing panics: a process for each of some limits.
    #[test]
    fn where_there_is_no_room_for_a_thread_it_is_said() {
        let own = std::env::current_exe().unwrap();
        for megabytes in (1800..3000).step_by(97) {
            // Not always a whole number of stacks.
            let limit = megabytes * 1024 + megabytes % 13 * 4;
            let script = format!("ulimit -v {limit}; exec \"$0\" \"$@\"");
            let child = "base::new_thread::tests::a_process_starts_threads_until_there_is_no_room";
            let mut limited = Command::new("sh");
            limited.args(["-c", &script]).arg(&own);
            let ran =
                limited.args(["--exact", child, "--ignored", "--nocapture"]).output().unwrap();
            let told = [ran.stdout, ran.stderr]
                .map(|text| String::from_utf8_lossy(&text).into_owned())
                .concat();
            assert!(
                ran.status.success() && told.contains("no room in memory for a thread"),
                "{limit} KiB: {told}"
            );
        }
    }

    /// What the system allows a process.
    fn most_mappings() -> usize {
        let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
        most.trim().parse().unwrap()
    }

    /// Whether they may be used up for a test: each takes some 200 bytes of the kernel, and some systems allow as many as can be
    /// counted.
    fn may_be_used_up(mappings: usize) -> bool {
        mappings <= 1 << 21
    }

    #[test]
    fn mappings_are_used_up_where_they_take_little_memory() {
        // What Linux allows of itself, some distributions for games, and SteamOS.
        assert_eq!([65530, 1048576, 2147483642].map(may_be_used_up), [true, true, false]);
    }

    /// The same where the mappings come to an end.
    #[test]
    fn where_there_is_no_room_for_mappings_it_is_said() {
        let most = most_mappings();
        if !may_be_used_up(most) {
            return left_out(&format!("{most} mappings (vm.max_map_count) are too many to use up"));
        }
        let child =
            "base::new_thread::tests::a_process_starts_threads_until_its_mappings_are_used_up";
        for left in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 33, 34, 35, 36, 37, 38, 150] {
            let mut own = Command::new(std::env::current_exe().unwrap());
            own.args(["--exact", child, "--ignored", "--nocapture"]);
            let ran = own.env("T_MAPPINGS_LEFT", left.to_string()).output().unwrap();
            let told = [ran.stdout, ran.stderr]
                .map(|text| String::from_utf8_lossy(&text).into_owned())
                .concat();
            let said = ran.status.success() && told.contains("vm.max_map_count allows");
            assert!(said, "{left} left: {told}");
        }
    }

    #[test]
    #[ignore = "what the other test runs, whose mappings are used up"]
    fn a_process_starts_threads_until_its_mappings_are_used_up() {
        let page = page_bytes();
        let left: usize = std::env::var("T_MAPPINGS_LEFT").map_or(100, |n| n.parse().unwrap());
        let pages = most_mappings() + 2;
        let mut threads = Vec::new();
        // SAFETY: pages of our own, which nobody touches; every second one is another mapping, until there can be no more.
        let why = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let none = std::ptr::null_mut();
            let at = libc::mmap(none, pages * page, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let set = |nth: usize, to| libc::mprotect(at.byte_add(nth * page), page, to) == 0;
            let full = (1..pages).step_by(2).find(|&nth| !set(nth, libc::PROT_READ));
            let full = full.expect("there is a limit");
            assert!((0..left).all(|i| set(full - 2 * (i + 1), libc::PROT_NONE)));
            let why = loop {
                match start("one of many", std::thread::park) {
                    Ok(thread) => threads.push(thread),
                    Err(why) => break why,
                }
            };
            // What ends a process needs some, too.
            libc::munmap(at, pages * page);
            why
        };
        println!("{} threads: {why}", threads.len());
        threads.into_iter().for_each(|thread| {
            thread.thread().unpark();
            thread.join().unwrap();
        });
    }

    #[test]
    #[ignore = "what the other test runs under a limit"]
    fn a_process_starts_threads_until_there_is_no_room() {
        let mut threads = Vec::new();
        let why = loop {
            match start("one of many", std::thread::park) {
                Ok(thread) => threads.push(thread),
                Err(why) => break why,
            }
        };
        assert!(threads.len() > 50, "{}", threads.len());
        let (tell, told) = channel();
        start_or_here("one more", move || tell.send(std::thread::current().id()).unwrap());
        assert_eq!(told.recv().unwrap(), std::thread::current().id());
        println!("{}: {why}", threads.len());
        threads.into_iter().for_each(|thread| {
            thread.thread().unpark();
            thread.join().unwrap();
        });
    }
}
