//! For tests: system calls that fail as if an older kernel did not know them, or a container's filter refused them.

use std::thread;

/// Calls `test` in a thread for which the system call number `call` fails with `errno`. If there are `advices`, the call fails
/// only if its third argument is one of them. The call also fails in threads that `test` starts.
pub fn denied(call: i64, advices: &[i32], errno: i32, test: impl FnOnce() + Send) {
    // Offsets of the call's number, and of the lower half of the call's third argument, in the data of a filter.
    const NUMBER: u32 = 0;
    const THIRD: u32 = 16 + 2 * 8;
    let code = |code: u32, k: u32, (yes, no): (u8, u8)| libc::sock_filter {
        code: code as u16,
        jt: yes,
        jf: no,
        k,
    };
    let load = |offset| code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, (0, 0));
    let equal = |value, ways| code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, ways);
    let answer = |what| code(libc::BPF_RET | libc::BPF_K, what, (0, 0));
    let mut filter =
        vec![load(NUMBER), equal(call as u32, (1, 0)), answer(libc::SECCOMP_RET_ALLOW)];
    if !advices.is_empty() {
        filter.push(load(THIRD));
        for (at, &advice) in advices.iter().enumerate() {
            // The jump skips the remaining comparisons and the instruction that allows the call.
            filter.push(equal(advice as u32, ((advices.len() - at) as u8, 0)));
        }
        filter.push(answer(libc::SECCOMP_RET_ALLOW));
    }
    filter.push(answer(libc::SECCOMP_RET_ERRNO | errno as u32));
    let filtered = || {
        let program =
            libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the program outlives the calls; the filter binds the calling thread and its threads.
        let set = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        };
        assert!(set, "no filter of system calls: {}", std::io::Error::last_os_error());
        test();
    };
    let ended = thread::scope(|scope| scope.spawn(filtered).join());
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}
