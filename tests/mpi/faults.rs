//! Tests that the failure of a single rank ends the job soon, and that no failed job reports success.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::binding::{SHELL, program, script, without_wishes};
use crate::dat::Dat;
use crate::job::{Job, PROGRAM, mpich};

/// Returns a problem that takes minutes, most of them for latency and memory traffic.
fn endless() -> Dat {
    Dat { ns: vec![4000], nbs: vec![1], grids: vec![(2, 2)], nbmins: vec![1], ..Dat::default() }
}

#[test]
fn a_killed_rank_ends_the_job() {
    for victim in [2, 0] {
        let mut running = Job::tests(&endless()).args(&["--progress"]).start();
        running.await_out("Column=");
        let ranks = running.ranks();
        assert_eq!(ranks.iter().map(|r| r.rank).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(ranks.iter().all(|rank| rank.alive()));
        kill(ranks[victim].pid, Signal::SIGKILL).unwrap();
        let killed = Instant::now();
        let ran = running.end();
        let soon = killed.elapsed() < Duration::from_secs(15) || ran.launcher_hangs;
        assert!(soon, "{:?}", killed.elapsed());
        assert!(ran.code.is_none_or(|code| code != 0), "{}", ran.told());
        let told = if mpich() { "KILLED BY SIGNAL: 9" } else { "on signal 9 (Killed)" };
        // Open MPI 5 breaks the line within this message.
        let said = ran.told().split_whitespace().collect::<Vec<_>>().join(" ");
        // Under MPICH, UCX aborts a peer that was reading memory of the dead rank. The launcher may notice the end of the peer
        // first.
        let peer = mpich() && said.contains("No such process") && said.contains("EXIT CODE: 6");
        let told = said.contains(told) || said.contains("EXIT CODE: 9") || peer;
        assert!(told || ran.launcher_hangs, "{said}");
        assert!(!ran.out.contains("End of Tests."));
        // No rank computes further after the job has ended.
        while ranks.iter().any(|rank| rank.alive()) {
            assert!(killed.elapsed() < Duration::from_secs(20), "{ranks:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// If the disk is full when the head of the results is written, the run ends at once, since nothing is computed yet.
#[test]
fn results_that_cannot_be_written_end_the_job() {
    let dat = Dat { file: "/dev/full".into(), device: 8, grids: vec![(2, 2)], ..Dat::default() };
    let ran = Job::tests(&dat).run().expect_code(6);
    assert!(ran.err.contains("cannot be written to /dev/full"), "{}", ran.told());
    assert!(ran.err.contains("No space left on device"), "{}", ran.told());
    assert!(!ran.file("run.json").contains("\"complete\": true"));
}

/// A run whose standard output is closed does not start, unless its results go to a file.
#[test]
fn a_closed_standard_output_is_noticed_where_it_is_needed() {
    let closed: (usize, &[&str]) = (1, &["sh", "-c", "exec \"$@\" >&-", "sh"]);
    let one = || Job::tests(&Dat { grids: vec![(1, 1)], ..Dat::default() }).parts(&[closed]);
    let ran = one().run().expect_code(6);
    assert!(
        ran.err.contains("cannot be written to standard output: it is closed"),
        "{}",
        ran.told()
    );
    let ran = one().args(&["--output", "HPL.out"]).run().expect_code(0);
    assert!(ran.file("HPL.out").contains("End of Tests."), "{}", ran.told());
}

/// If a supervisor cannot print the results, it reports this and its exit code is 6, although the run itself has succeeded.
#[test]
fn a_supervisor_says_that_it_could_not_pass_results_on() {
    let dir = tempfile::tempdir().unwrap();
    let rank = script(dir.path(), "rank", "#!/bin/sh\necho result\n");
    let shell = script(dir.path(), "shell", SHELL);
    let hosts = dir.path().join("hosts");
    std::fs::write(&hosts, "localhost slots=1\n").unwrap();
    for (to, code, says) in
        [(">&-", 6, "it is closed"), (">/dev/full", 6, "/dev/full"), (">out", 0, "")]
    {
        let state = dir.path().join(format!("state{}", says.len()));
        let mut command = Command::new("sh");
        command.args(["-c", &format!("\"$@\" {to}"), "sh", PROGRAM, "run", "--ranks", "1"]);
        command.args(["--launcher-program", &program()]).arg("--hosts").arg(&hosts);
        command.arg("--rsh").arg(&shell).arg("--state").arg(&state).arg("--program").arg(&rank);
        let ran = without_wishes(&mut command).current_dir(dir.path()).output().unwrap();
        let told = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{to}: {told}");
        assert_eq!(told.contains("could not be written to standard output"), code != 0, "{told}");
        assert!(told.contains(says), "{told}");
        if code == 0 {
            assert!(std::fs::read_to_string(dir.path().join("out")).unwrap().contains("result"));
        }
    }
}

/// Limits of a user or a container are reported as limits: on address space, of which each thread needs some, and on the size of
/// files, which includes persistent shared memory.
#[test]
fn limits_of_threads_and_files_are_told_as_what_they_are() {
    let limited = |limit: &str, dat: &Dat, args: &[&str]| {
        let under = format!("ulimit {limit}; exec \"$@\"");
        let ranks = dat.grids[0].1;
        Job::tests(dat).args(args).parts(&[(ranks, &["sh", "-c", &under, "sh"])]).run()
    };
    let one = Dat { grids: vec![(1, 1)], ..Dat::default() };
    let ran = limited("-v 2000000", &one, &["--threads", "2000"]).expect_code(6);
    assert!(ran.err.contains("of 2000 threads") && ran.err.contains("rank 0 on"), "{}", ran.told());
    // Files are limited to 16 MiB.
    let job = format!("t-limited-{}", std::process::id());
    let dat = Dat { ns: vec![2400], grids: vec![(1, 2)], ..Dat::default() };
    let domains = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&domains, "rank:0 a\nrank:1 b\n").unwrap();
    let domains = domains.path().to_str().unwrap();
    let words = ["--checkpoint", "2", "--job", &job, "--domains", domains];
    let ran = limited("-f 32768", &dat, &words).expect_code(5);
    assert!(ran.err.contains("`ulimit -f`") && !ran.err.contains("signal"), "{}", ran.told());
}

/// The run warns if a domain file names nodes, but not this node. It does not warn if the file names this node in capital
/// letters, or names no node.
#[test]
fn a_node_that_a_domain_file_leaves_out_is_named() {
    let host = nix::unistd::gethostname().unwrap().to_string_lossy().into_owned();
    let own = host.split('.').next().unwrap().to_uppercase();
    let dat = Dat { ns: vec![90], nbs: vec![16], grids: vec![(1, 2)], ..Dat::default() };
    let ran = |lines: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, format!("rank:0 a\n{lines}\n")).unwrap();
        let job = format!("t-left-out-{}", std::process::id());
        let domains = file.path().to_str().unwrap();
        let words = ["--checkpoint", "2", "--job", &job, "--domains", domains];
        Job::new(2).dat(&dat).args(&words).run().expect_code(0)
    };
    let words = format!(
        "names failure domains of nodes, but not of {host}. Each node that the file leaves out"
    );
    for (lines, times) in [(format!("{own} b"), 0), ("elsewhere b".into(), 1), (String::new(), 0)] {
        let ran = ran(&lines);
        assert_eq!(ran.err.matches(&words).count(), times, "{lines}: {}", ran.told());
    }
}

/// Makes a named pipe for the results, with a thread that reads it. After the head of the results, the thread calls `then`, which
/// can read the rest. Returns the folder, the path of the pipe, and the thread.
fn piped<T: Send + 'static>(
    then: impl FnOnce(BufReader<File>) -> T + Send + 'static,
) -> (tempfile::TempDir, String, JoinHandle<T>) {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("results");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let name = pipe.to_str().unwrap().to_owned();
    let reader = std::thread::spawn(move || {
        let mut lines = BufReader::new(File::open(pipe).unwrap());
        let mut line = String::new();
        while !line.contains("A test has passed if") {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the head ends");
        }
        then(lines)
    });
    (dir, name, reader)
}

/// Returns the tests of a sweep. The first test takes long enough for the reader of the results to act after the head.
fn sweep() -> Dat {
    Dat { ns: vec![1200, 90, 60], nbs: vec![16], grids: vec![(1, 2)], ..Dat::default() }
}

/// If the results can no longer be written, the run prints them on standard error and runs the other tests. The JSON document has
/// all results, and the exit code is 6.
#[test]
fn results_that_cannot_be_written_are_told_and_end_nothing() {
    let (_dir, pipe, reader) = piped(drop);
    let ran = Job::tests(&sweep()).args(&["--output", &pipe]).run().expect_code(6);
    reader.join().unwrap();
    let said = format!("the results cannot be written to {pipe}: Broken pipe");
    assert_eq!(ran.err.matches(&said).count(), 1, "{}", ran.told());
    for n in ["1200", "90", "60"] {
        let told = |line: &&str| line.starts_with("WR") && line.contains(&format!(" {n} "));
        assert_eq!(ran.err.lines().filter(told).count(), 1, "{n}: {}", ran.told());
    }
    assert_eq!(ran.err.matches("PASSED").count(), 3, "{}", ran.told());
    assert!(ran.err.contains("3 tests completed and passed"), "{}", ran.told());
    let run = ran.json();
    assert!(run.complete && run.tests.len() == 3, "{}", ran.told());
}

/// If the JSON document cannot be written, the run reports this once and prints all results. The exit code is 6.
#[test]
fn a_document_that_cannot_be_written_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let document = folder.path().join("run.json").to_str().unwrap().to_owned();
    let (_dir, pipe, reader) = piped(move |mut lines| {
        folder.close().unwrap();
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        rest
    });
    let job = Job::new(2).dat(&sweep()).args(&["--output", &pipe, "--json", &document]);
    let ran = job.run().expect_code(6);
    let rest = reader.join().unwrap();
    assert_eq!(rest.matches("PASSED").count(), 3, "{rest}");
    assert!(rest.contains("End of Tests."), "{rest}");
    let said = format!("cannot write the JSON file {document}: No such file");
    assert_eq!(ran.err.matches(&said).count(), 1, "{}", ran.told());
    assert!(!ran.err.contains("PASSED"), "{}", ran.told());
}

/// Results can be written to a device such as `/dev/null`.
#[test]
fn results_may_go_to_a_device() {
    Job::new(2).dat(&sweep()).args(&["--output", "/dev/null"]).run().expect_code(0);
}

/// A problem found before the start is reported once, by rank 0, and all ranks end with the same exit code.
#[test]
fn runs_that_cannot_start_are_refused_once() {
    let dat = Dat { grids: vec![(2, 2)], ..Dat::default() };
    let cases: [(Job, i32, &str); 5] = [
        (Job::new(3).dat(&dat), 1, "Need at least 4 processes for these tests"),
        (Job::new(4).dat(&dat).args(&["--json", "no/such/folder.json"]), 1, "no/such/folder.json"),
        (Job::new(4).dat(&dat).args(&["--output", "no/such/file"]), 1, "no/such/file"),
        (Job::new(2), 1, "HPL.dat"),
        (Job::new(4).dat(&dat).args(&["-n", "10000000", "--nb", "128"]), 1, "too large"),
    ];
    for (job, code, words) in cases {
        let ran = job.run().expect_code(code);
        assert_eq!(ran.err.matches(words).count(), 1, "{words}: {}", ran.told());
        assert!(!ran.out.contains("Gflops"), "{}", ran.told());
    }
    for engine in ["nonsense", ""] {
        let ran = Job::new(4).dat(&dat).args(&["--engine", engine]).run().expect_code(2);
        assert_eq!(ran.err.matches("--engine").count(), 1, "{}", ran.told());
    }
    // A fault in HPL.dat is reported once, with its line and column.
    let ran = Job::new(4).dat(&Dat { nbs: vec![0], ..dat }).run().expect_code(1);
    assert_eq!(ran.err.matches("NB must be at least 1").count(), 1, "{}", ran.told());
    assert!(ran.err.contains("HPL.dat:8:1"), "{}", ran.told());
}
