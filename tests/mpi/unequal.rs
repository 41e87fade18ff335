//! Tests of ranks that differ in cores, engines and kernels of the BLAS, or of which one refuses. All ranks agree on such
//! findings before anything depends on them.

use std::time::Duration;

use skt_hpl::base::cores;
use skt_hpl::kernels::Library;

use crate::dat::Dat;
use crate::job::{Job, PROGRAM, Ran};

/// Timeout of a run. No run of these tests takes longer, even on a busy machine; a run that exceeds it hangs.
const LIMIT: Duration = Duration::from_secs(90);

fn job(ranks: usize, grid: (usize, usize), parts: &[(usize, &[&str])]) -> Job {
    let dat = Dat { ns: vec![700], nbs: vec![64], grids: vec![grid], ..Dat::default() };
    let args = ["--json", "run.json"];
    Job::of(PROGRAM.into(), ranks).dat(&dat).args(&args).limit(LIMIT).parts(parts)
}

/// Returns the digest of x of a run that passed.
fn solution(ran: &Ran) -> String {
    let run = ran.json();
    let outcome = run.tests[0].outcome.as_ref().unwrap_or_else(|| panic!("{}", ran.told()));
    outcome.x_digest.clone()
}

/// Returns the digest of x of a run with equal ranks that have one thread each.
fn alike(ranks: usize, grid: (usize, usize), more: &[&str]) -> String {
    let part: &[(usize, &[&str])] = &[(ranks, &[])];
    let ran = job(ranks, grid, part).args(&["--threads", "1"]).args(more).run().expect_code(0);
    solution(&ran)
}

/// A rank with one core and ranks with more cores compute the same bits, in either order. If each used all its cores as threads,
/// they would order their messages differently.
#[test]
fn ranks_with_other_cores_than_the_rest_compute_the_same() {
    let first = cores::bound_to().first().unwrap().to_string();
    let one_core: &[&str] = &["taskset", "-c", &first];
    for depth in ["0", "1", "2"] {
        let depth = ["--depth", depth];
        let truth = alike(2, (2, 1), &depth);
        for parts in [[(1, one_core), (1, &[])], [(1, &[]), (1, one_core)]] {
            let ran = job(2, (2, 1), &parts).args(&depth).run().expect_code(0);
            assert_eq!(solution(&ran), truth, "{}", ran.told());
        }
    }
    let truth = alike(3, (3, 1), &[]);
    for parts in [[(1, one_core), (2, &[])], [(2, one_core), (1, &[])]] {
        let ran = job(3, (3, 1), &parts).run().expect_code(0);
        assert_eq!(solution(&ran), truth, "{}", ran.told());
    }
    let truth = alike(4, (2, 2), &[]);
    let ran = job(4, (2, 2), &[(1, one_core), (3, &[])]).run().expect_code(0);
    assert_eq!(solution(&ran), truth, "{}", ran.told());
}

/// The number of threads of an idle rank does not count for the order of messages. Here the idle rank has all cores, the
/// computing ranks have one.
#[test]
fn a_rank_without_a_part_has_no_more_threads_than_the_others() {
    let first = cores::bound_to().first().unwrap().to_string();
    let one_core: &[&str] = &["taskset", "-c", &first];
    for protect in [&[][..], &["--checkpoint", "1", "--job", "t-unequal-idle"]] {
        let folder = tempfile::tempdir().unwrap();
        let domains = folder.path().join("domains");
        std::fs::write(&domains, "rank:0 a\nrank:1 b\nrank:2 c\n").unwrap();
        let at = ["--domains", domains.to_str().unwrap()];
        let more = if protect.is_empty() { &[][..] } else { &at };
        let ran = job(3, (2, 1), &[(2, one_core), (1, &[])]).args(protect).args(more);
        let ran = ran.run().expect_code(0);
        assert_eq!(ran.json().threads.most, 1, "{}", ran.told());
    }
}

/// Command that makes processors of ranks appear unable to run the packed engine.
const NO_PACKED: &[&str] = &["env", "SKT_FAULT_LACKS=packed"];

#[test]
fn ranks_that_can_run_different_engines_take_one_that_all_can() {
    let truth = alike(2, (1, 2), &["--engine", "blas"]);
    for parts in [[(1, NO_PACKED), (1, &[])], [(1, &[]), (1, NO_PACKED)]] {
        let ran = job(2, (1, 2), &parts).args(&["--threads", "1"]).run().expect_code(0);
        assert_eq!(solution(&ran), truth, "{}", ran.told());
        assert_eq!(ran.json().blas.engine, "blas");
    }
}

/// A rank that is idle in all tests takes the engine of the others, even if its processor cannot run it.
#[test]
fn a_rank_without_a_part_has_no_say_in_the_engine() {
    let two: &[(usize, &[&str])] = &[(2, &[])];
    for more in [&[][..], &["--engine", "packed"]] {
        let run =
            |ranks, parts| job(ranks, (2, 1), parts).args(&["--threads", "1"]).args(more).run();
        let alone = run(2, two).expect_code(0);
        let ran = run(3, &[(2, &[]), (1, NO_PACKED)]).expect_code(0);
        assert_eq!(ran.json().blas.engine, alone.json().blas.engine, "{}", ran.told());
        assert_eq!(solution(&ran), solution(&alone), "{}", ran.told());
    }
    // With `--checkpoint`, an idle rank may have to replace another. It must be able to run the engine.
    let protect =
        ["--threads", "1", "--engine", "packed", "--checkpoint", "1", "--job", "t-unequal-turn"];
    let ran = job(3, (2, 1), &[(2, &[]), (1, NO_PACKED)]).args(&protect).run().expect_code(1);
    assert_eq!(ran.err.matches("runs on this processor").count(), 1, "{}", ran.told());
}

/// All our own kernels give the same bits on every processor, so ranks may use different ones.
#[test]
fn kernels_for_unlike_processors_give_the_same_bits() {
    let truth = alike(2, (1, 2), &["--engine", "packed"]);
    let lacks: &[&str] = &["env", "SKT_FAULT_LACKS=avx512"];
    let parts = [(1, lacks), (1, &[][..])];
    let ran = job(2, (1, 2), &parts).args(&["--threads", "1", "--engine", "packed"]);
    let ran = ran.run().expect_code(0);
    assert_eq!(solution(&ran), truth, "{}", ran.told());
    assert!(!ran.json().blas.engine.starts_with("avx512"), "{}", ran.told());
}

/// If one rank refuses, the job ends with one message, which names the rank, and one exit code. No rank is left waiting.
#[test]
fn a_refusal_of_one_rank_is_one_of_all() {
    let parts: [&[(usize, &[&str])]; 3] = [
        &[(1, NO_PACKED), (2, &[])],
        &[(2, &[]), (1, NO_PACKED)],
        &[(1, &[]), (1, NO_PACKED), (1, &[])],
    ];
    for (part, first) in parts.into_iter().zip([0, 2, 1]) {
        let ran = job(3, (3, 1), part).args(&["--engine", "packed"]).run().expect_code(1);
        let host = nix::unistd::gethostname().unwrap();
        let says = format!("rank {first} on {}: ", host.to_string_lossy());
        assert_eq!(ran.err.matches(&says).count(), 1, "{}", ran.told());
        assert_eq!(ran.err.matches("runs on this processor").count(), 1, "{}", ran.told());
        assert!(!ran.out.contains("Gflops"), "{}", ran.told());
    }
    // Any other refusal has the same effect, with and without checkpoints.
    let bad: &[(usize, &[&str])] = &[(2, &[]), (1, &["env", "SKT_FAULT=nonsense"])];
    for more in [&[][..], &["--checkpoint", "1", "--job", "t-unequal-refused"]] {
        let ran = job(3, (3, 1), bad).args(more).run().expect_code(1);
        assert_eq!(ran.err.matches("rank 2 on ").count(), 1, "{}", ran.told());
        assert!(ran.err.contains("SKT_FAULT: "), "{}", ran.told());
    }
    // Ranks of two launches cannot form one run.
    let two: &[(usize, &[&str])] = &[(2, &[]), (1, &["env", "SKT_RUN_ID=another"])];
    let ran = job(3, (3, 1), two).run().expect_code(6);
    assert_eq!(ran.err.matches("rank 2 on ").count(), 1, "{}", ran.told());
}

/// Returns the variable that selects the kernels of the BLAS, and its setting to slow kernels that round differently.
fn slow_kernels() -> (&'static str, &'static str) {
    if cfg!(feature = "blis") {
        // BLIS before 1.0 reads the number of a configuration, later versions its name.
        match Library::query().version.starts_with("0.") {
            true => ("BLIS_ARCH_TYPE", "BLIS_ARCH_TYPE=5"),
            false => ("BLIS_ARCH_TYPE", "BLIS_ARCH_TYPE=penryn"),
        }
    } else {
        ("OPENBLAS_CORETYPE", "OPENBLAS_CORETYPE=Prescott")
    }
}

/// On one old node, the BLAS uses other kernels. The portable kernel would round the same on all nodes, but is far slower, so the
/// run keeps the BLAS and warns. A protected run is refused.
#[test]
fn the_portable_kernel_is_not_taken_for_the_sake_of_one_old_node() {
    let (_, slow) = slow_kernels();
    let old: &[&str] = &["env", "SKT_FAULT_LACKS=avx512,avx2,neon", slow];
    for parts in [[(1, old), (1, &[][..])], [(1, &[][..]), (1, old)]] {
        let ran = job(2, (2, 1), &parts).args(&["--threads", "1"]).run().expect_code(0);
        assert_eq!(ran.json().blas.engine, "blas", "{}", ran.told());
        assert_eq!(ran.err.matches("warning: the ranks would not").count(), 1, "{}", ran.told());
        let protect = ["--checkpoint", "1", "--job", "t-unequal-old"];
        let ran = job(2, (2, 1), &parts).args(&protect).run().expect_code(6);
        assert_eq!(ran.err.matches("would not round alike").count(), 1, "{}", ran.told());
        assert!(!ran.out.contains("Gflops"), "{}", ran.told());
    }
}

/// If kernels of the BLAS round differently, a run warns. A protected run is refused, since a restart must give the same bits.
#[test]
fn kernels_that_round_differently_are_told_and_never_protected() {
    let (name, slow) = slow_kernels();
    let parts: &[(usize, &[&str])] = &[(1, &[]), (1, &["env", slow])];
    let run = || job(2, (2, 1), parts).args(&["--engine", "blas"]);
    let ran = run().run().expect_code(0);
    assert_eq!(ran.err.matches("would not round alike").count(), 1, "{}", ran.told());
    assert!(ran.err.contains("rank 1 on ") && ran.err.contains(name), "{}", ran.told());
    let protect = ["--checkpoint", "1", "--job", "t-unequal-kernels"];
    let ran = run().args(&protect).run().expect_code(6);
    assert_eq!(ran.err.matches("would not round alike").count(), 1, "{}", ran.told());
    assert!(!ran.out.contains("Gflops"), "{}", ran.told());
    // Our own kernels round the same, and nothing else that affects x uses the BLAS.
    let folder = tempfile::tempdir().unwrap();
    let domains = folder.path().join("domains");
    std::fs::write(&domains, "rank:0 a\nrank:1 b\n").unwrap();
    let own = ["--engine", "packed", "--domains", domains.to_str().unwrap()];
    let ran = job(2, (2, 1), parts).args(&own).args(&protect).run().expect_code(0);
    assert!(!ran.err.contains("would not round alike"), "{}", ran.told());
}

/// Tests of a sweep that need too much memory are skipped, and the others run. `--memory-check` can override the check.
#[test]
fn tests_that_do_not_fit_are_skipped_and_the_others_run() {
    let sweep = |ns: &[usize]| {
        let dat = Dat { ns: ns.to_vec(), nbs: vec![64], grids: vec![(1, 2)], ..Dat::default() };
        Job::tests(&dat).limit(LIMIT)
    };
    let huge = 3_000_000;
    let ran = sweep(&[50, huge]).run().expect_code(6);
    let line = format!(">>> skipped: N={huge} NB=64 P=1 Q=2: on ");
    assert!(ran.out.contains(&line), "{}", ran.told());
    assert!(ran.out.contains("the largest N that fits is"), "{}", ran.told());
    assert!(ran.out.contains("1 tests completed and passed residual checks"), "{}", ran.told());
    assert_eq!(ran.err.matches("1 of 2 tests need more memory").count(), 1, "{}", ran.told());
    // The run is refused if no test is left, or if it is protected, since a restart must skip the same tests.
    let ran = sweep(&[huge]).run().expect_code(1);
    assert!(ran.err.contains("--memory-check off runs it nevertheless"), "{}", ran.told());
    let domains = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(domains.path(), "rank:0 a\nrank:1 b\n").unwrap();
    let protect =
        ["--checkpoint", "5", "--job", "t-unfit", "--domains", domains.path().to_str().unwrap()];
    let ran = sweep(&[50, huge]).args(&protect).run().expect_code(1);
    assert!(ran.err.contains("too large for this node"), "{}", ran.told());
    // Two domains allow only groups of two. A matrix and its protection then need four times the memory of the matrix.
    let needs = ran.err.split("needs ").nth(1).and_then(|text| text.split(' ').next()).unwrap();
    let matrix = (huge as f64).powi(2) * 8.0 / f64::from(1 << 30);
    let times = needs.parse::<f64>().unwrap() / matrix;
    assert!((4.0..4.2).contains(&times), "{times} times: {}", ran.told());
    // No process can have this much memory. The test begins, and is skipped because the system refuses the memory.
    for (how, told) in [("warn", 1), ("off", 0)] {
        let beyond: &[&str] = &["sh", "-c", "ulimit -v 8000000; exec \"$0\" \"$@\""];
        let ran = sweep(&[50, huge]).parts(&[(2, beyond)]).args(&["--memory-check", how]);
        let ran = ran.run().expect_code(6);
        assert!(ran.out.contains(&format!(">>> skipped: N={huge}")), "{}", ran.told());
        assert!(!ran.out.contains("the largest N that fits"), "{}", ran.told());
        assert_eq!(ran.err.matches("--memory-check warn").count(), told, "{}", ran.told());
    }
}

/// A test whose memory the system refuses is skipped, and the others run. The exit code is 6, since not all tests were run. The
/// reference ends with 0; its harnesses count `0 tests skipped`.
#[test]
fn a_skipped_test_is_no_success() {
    let little: &[&str] = &["sh", "-c", "ulimit -v 3000000; exec \"$0\" \"$@\""];
    let dat = Dat { ns: vec![20_000, 50], nbs: vec![64], ..Dat::default() };
    let ran = Job::of(PROGRAM.into(), 1)
        .parts(&[(1, little)])
        .dat(&dat)
        .args(&["--json", "run.json", "--threads", "1"])
        .limit(LIMIT)
        .run()
        .expect_code(6);
    assert!(ran.out.contains(">>> skipped: N=20000"), "{}", ran.told());
    assert!(ran.out.contains("1 tests completed and passed residual checks"), "{}", ran.told());
    assert!(ran.out.contains("1 tests skipped because of illegal input"), "{}", ran.told());
    assert_eq!(ran.json().tests.len(), 2);
}
