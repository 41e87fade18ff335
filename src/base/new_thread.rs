//! Starts a thread that really runs, or returns an error.
//!
//! Between the creation of a thread and its first line, Rust's runtime allocates a stack for overflow reports and panics if it
//! cannot. No caller could then say which resource is missing. So threads start one at a time, and only if there is more memory
//! than a thread needs.

use std::hint::black_box;
use std::io::{Error, ErrorKind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use nix::libc;

/// Bytes of a thread's stack. Pages that the thread never touches take addresses but no memory.
const STACK: usize = 2 << 20;

/// Bytes that must be available in addition to the stack. The C library may reserve 128 MiB of addresses for the heap of a new
/// thread. The runtime then needs a few more pages.
const EXTRA: usize = 132 << 20;

/// Error: a thread could not be started. The message has the reason and advice.
#[derive(Debug, thiserror::Error)]
#[error("the system gives this process no more threads ({0}); {HELP}")]
pub struct NoThread(pub Error);

/// Advice for the error [`NoThread`].
pub const HELP: &str = "use fewer --threads, or raise the limit: `ulimit -u`, `ulimit -v`, a container's or job's \
                        number of processes (pids.max), the system's number of mappings in a process (vm.max_map_count)";

/// Starts a thread with the name `name`, and returns when the thread runs.
pub fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, NoThread> {
    once_it_runs(name, |builder, runs| builder.spawn(|| told(runs, work)))
}

/// Starts a thread that ends within `scope`, and returns when the thread runs.
pub fn start_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, NoThread> {
    once_it_runs(name, |builder, runs| builder.spawn_scoped(scope, || told(runs, work)))
}

/// Body of a new thread: first reports to its creator that it runs.
fn told<T>(runs: Sender<()>, work: impl FnOnce() -> T) -> T {
    let _ = runs.send(());
    work()
}

/// Runs `work` on a separate thread, without waiting for it. If the system gives no thread, runs `work` on the calling thread at
/// once.
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

/// Number of mappings that must be available. A thread needs four, including the guard pages of its stacks; the rest is for
/// allocations at the same time.
const MAPPINGS: usize = 32;

/// Returns the size of a page, which is larger than 4 KiB on some processors.
fn page_bytes() -> usize {
    // SAFETY: a query of the C library without side effects.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Returns whether the system's limit on the mappings of a process (vm.max_map_count) leaves enough for a thread.
fn has_mappings_left() -> bool {
    let page = page_bytes();
    let whole = MAPPINGS * page;
    let none = std::ptr::null_mut();
    // SAFETY: pages of our own, which no thread touches. Making every second page readable turns all pages into separate
    // mappings.
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

/// Checks that there is memory for a new thread. It can be limited by `ulimit -v`, by a system without overcommitted memory, or
/// by the number of mappings.
fn look_for_room() -> Result<(), NoThread> {
    let out_of_memory = |why| Err(NoThread(Error::new(ErrorKind::OutOfMemory, why)));
    if !has_mappings_left() {
        return out_of_memory(
            "this process already has all memory mappings that vm.max_map_count allows",
        );
    }
    let mut room: Vec<u8> = Vec::new();
    let there = room.try_reserve_exact(STACK + EXTRA).is_ok();
    // Prevents the compiler from removing the unused allocation.
    black_box(&mut room);
    if there { Ok(()) } else { out_of_memory("no room in memory for a thread") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::cores::left_out::left_out;
    use std::process::Command;

    /// Threads that do not fit are refused without a panic, under various limits. Each limit is set in a separate process.
    #[test]
    fn where_there_is_no_room_for_a_thread_it_is_said() {
        let own = std::env::current_exe().unwrap();
        for megabytes in (1800..3000).step_by(97) {
            // The limit is not always a whole number of stacks.
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

    /// Returns the number of mappings that the system allows a process.
    fn most_mappings() -> usize {
        let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
        most.trim().parse().unwrap()
    }

    /// Returns whether a test may use up this number of mappings. Each mapping takes some 200 bytes of the kernel, and some
    /// systems have practically no limit.
    fn may_be_used_up(mappings: usize) -> bool {
        mappings <= 1 << 21
    }

    #[test]
    fn mappings_are_used_up_where_they_take_little_memory() {
        // Limits of Linux by default, of some distributions for games, and of SteamOS.
        assert_eq!([65530, 1048576, 2147483642].map(may_be_used_up), [true, true, false]);
    }

    /// Threads are refused without a panic when the mappings are used up.
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
        // SAFETY: pages of our own, which no thread touches. Every second one is a separate mapping, until no more are possible.
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
            // The end of a process needs some mappings, too.
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
