//! Tests of `--blas`: libraries with every kind of function names and integers, and files that are no BLAS.

use std::path::{Path, PathBuf};
use std::process::Command;

use skt_hpl::kernels::processor::Level;
use skt_hpl::kernels::{Engine, Matrix, Size, Strided};

use crate::dat::Dat;
use crate::job::{Job, PROGRAM, Ran};
use crate::left_out::left_out;

/// Builds `plain_blas.c` with the compiler options `how`, and returns the path of the library.
fn built(name: &str, how: &[&str]) -> PathBuf {
    built_at(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lib{name}.so")), how)
}

fn built_at(built: PathBuf, how: &[&str]) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mpi/plain_blas.c");
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror"])
        .args(how)
        .args(["-o".as_ref(), built.as_os_str(), source.as_ref()])
        .status();
    assert!(done.is_ok_and(|status| status.success()), "cc builds {source}");
    built
}

/// Runs a job in which `library` computes every multiplication. `form` is the form in which L1 and U are stored. The tests use
/// both forms, so that all kinds of triangles occur.
fn run(library: &str, form: &str) -> Ran {
    let dat = Dat { ns: vec![150], nbs: vec![16], grids: vec![(1, 2)], ..Dat::default() };
    let forms = ["--l1", form, "--u", form];
    Job::new(2)
        .dat(&dat)
        .args(&["--blas", library, "--engine", "blas", "--json", "run.json"])
        .args(&forms)
        .run()
}

#[test]
fn libraries_of_every_kind_are_called_rightly() {
    for (name, wide, how) in [
        ("fortran-narrow", false, &["-DINTEGER=int", "-DNAME(x)=x##_"][..]),
        ("fortran-wide", true, &["-DINTEGER=long", "-DNAME(x)=x##_"]),
        ("fortran-wide-64", true, &["-DINTEGER=long", "-DNAME(x)=x##_64_"]),
        ("c-narrow", false, &["-DFOR_C", "-DINTEGER=int", "-DNAME(x)=cblas_##x"]),
        ("c-wide", true, &["-DFOR_C", "-DINTEGER=long", "-DNAME(x)=cblas_##x"]),
        ("c-wide-64", true, &["-DFOR_C", "-DINTEGER=long", "-DNAME(x)=cblas_##x##64_"]),
    ] {
        let library = built(name, how);
        for form in ["transposed", "not-transposed"] {
            let ran = run(library.to_str().unwrap(), form).expect_code(0);
            let blas = ran.json().blas;
            assert!(blas.name.starts_with(&format!("BLAS lib{name}.so")), "{}", blas.name);
            assert_eq!(blas.name.ends_with("(64-bit integers)"), wide, "{}", blas.name);
            assert_eq!(blas.engine, "blas");
        }
    }
}

/// Variables such as `BLIS_IC_NT`, which divide loops among BLIS's threads, do not start threads if BLIS is set to one thread.
#[test]
fn variables_that_split_loops_start_no_threads() {
    const CHILD: &str = "SKT_TEST_SPLITS_LOOPS";
    if std::env::var_os(CHILD).is_none() {
        let name = "blas::variables_that_split_loops_start_no_threads";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--test-threads", "1"])
            .envs([(CHILD, "1"), ("BLIS_IC_NT", "3"), ("BLIS_JC_NT", "2")])
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && told.contains("1 passed"), "{told}");
        return;
    }
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    skt_hpl::kernels::set_library_threads(1);
    let before = threads();
    let n = 600;
    let (l, b, mut a) = (vec![1.0; n * n], vec![2.0; n * n], vec![0.0; n * n]);
    // SAFETY: the three matrices have n x n elements.
    unsafe {
        let (b, a) = (Strided::new(b.as_ptr(), 1, n), Matrix::new(a.as_mut_ptr(), n));
        let size = Size::new(n, n, n);
        Engine::Blas.multiply_in_panel(size, l.as_ptr(), b, a, &mut Vec::new());
    }
    assert_eq!(a[n + 1], -2.0 * n as f64);
    assert_eq!(threads(), before);
}

/// Every thread of a rank sets the library to one thread. BLIS since 1.0 and OpenMP store the number of threads for each calling
/// thread, so setting it in the first thread is not enough.
#[test]
fn every_thread_of_a_rank_calls_with_one_thread() {
    for (name, setter) in [
        ("threads-blis", &["-DSETTER=bli_thread_set_num_threads", "-DCOUNT=long"][..]),
        (
            "threads-blis-ways",
            &["-DSETTER=bli_thread_set_num_threads", "-DCOUNT=long", "-DWAYS=bli_thread_set_ways"],
        ),
        ("threads-openmp", &["-DSETTER=omp_set_num_threads"]),
    ] {
        let how = [&["-DINTEGER=int", "-DNAME(x)=x##_"], setter].concat();
        let library = built(name, &how);
        let dat = Dat { ns: vec![300], nbs: vec![16], grids: vec![(1, 2)], ..Dat::default() };
        let blas = ["--blas", library.to_str().unwrap(), "--engine", "blas", "--threads", "3"];
        Job::of(PROGRAM.into(), 2).dat(&dat).args(&blas).run().expect_code(0);
    }
}

/// OpenBLAS for POSIX threads starts no threads when the program loads it. By default it starts one thread for each core,
/// whatever is set later, and the ranks of a node can reach the limit of processes. The number of threads is compared with that
/// of a library without threads.
#[test]
fn openblas_starts_no_threads_when_it_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let with = |library: &str| {
        // The rank itself starts the power command, so `$PPID` is the rank.
        let seen = dir.path().join(library.replace('/', "-"));
        let count = format!("ls /proc/$PPID/task | wc -l | tee -a {}", seen.display());
        let dat = Dat { ns: vec![300], nbs: vec![16], grids: vec![(1, 1)], ..Dat::default() };
        let job = Job::new(1).dat(&dat).args(&["--blas", library, "--engine", "blas"]);
        let ran = job.args(&["--power-command", &count]).run();
        let seen = std::fs::read_to_string(seen).unwrap_or_default();
        let most = seen.lines().filter_map(|line| line.trim().parse::<usize>().ok()).max();
        (ran, most)
    };
    let (openblas, threads) = with("libopenblas.so.0");
    if openblas.err.contains("cannot be loaded") {
        return left_out("no OpenBLAS is installed");
    }
    openblas.expect_code(0);
    let plain = built("starts-no-threads", &["-DINTEGER=int", "-DNAME(x)=x##_"]);
    let (plain, wanted) = with(plain.to_str().unwrap());
    plain.expect_code(0);
    assert!(threads.is_some());
    assert_eq!(threads, wanted);
}

/// OpenBLAS is recognised if its own function names have a suffix too, as in builds with 64-bit integers.
#[test]
fn openblas_is_known_by_names_with_a_suffix() {
    for suffix in ["", "64_", "_64", "_64_"] {
        let (own, setter) =
            (format!("-DOPENBLAS={suffix}"), format!("-DSETTER=openblas_set_num_threads{suffix}"));
        let how = ["-DINTEGER=long", "-DNAME(x)=x##_64_", &own, &setter];
        let library = built(&format!("openblas-named{suffix}"), &how);
        let ran = run(library.to_str().unwrap(), "transposed").expect_code(0);
        let blas = ran.json().blas;
        assert_eq!(blas.name, "OpenBLAS 0.3.99 (64-bit integers)", "{suffix:?}");
        assert_eq!(blas.kernel, "Plain", "{suffix:?}");
    }
}

/// A library without a version is identified by its file. Two builds with one name may round differently, so they count as
/// different libraries.
#[test]
fn two_builds_of_one_name_do_not_count_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let build = |node: &str, how: &[&str]| {
        let folder = folder.path().join(node);
        std::fs::create_dir(&folder).unwrap();
        let how = [&["-DINTEGER=int", "-DNAME(x)=x##_"], how].concat();
        format!("SKT_BLAS={}", built_at(folder.join("libvendor.so"), &how).display())
    };
    let (one, other) = (build("a", &[]), build("b", &["-DBACKWARDS"]));
    let again = build("c", &[]);
    let dat = Dat { ns: vec![150], nbs: vec![16], grids: vec![(2, 1)], ..Dat::default() };
    let run = |second: &str, more: &[&str]| {
        let parts: [(usize, &[&str]); 2] = [(1, &["env", &one]), (1, &["env", second])];
        let job = Job::new(2).dat(&dat).args(&["--engine", "blas"]).args(more);
        job.parts(&parts).run()
    };
    let ran = run(&again, &[]).expect_code(0);
    assert!(!ran.err.contains("would not round alike"), "{}", ran.told());
    let ran = run(&other, &[]).expect_code(0);
    assert_eq!(ran.err.matches("would not round alike").count(), 1, "{}", ran.told());
    let ran = run(&other, &["--checkpoint", "1", "--job", "t-blas-two-builds"]).expect_code(6);
    assert_eq!(ran.err.matches("would not round alike").count(), 1, "{}", ran.told());
}

/// Variables that select other kernels than the library reports count as part of the arithmetic. Ranks with different values of
/// them do not round alike.
#[test]
fn variables_that_show_in_nothing_count() {
    for (name, how, variable) in [
        ("told-plain", &[][..], "BLIS_ARCH_TYPE=0"),
        ("told-mkl", &["-DMKL"][..], "MKL_CBWR=COMPATIBLE"),
    ] {
        let library = built(name, &[&["-DINTEGER=int", "-DNAME(x)=x##_"], how].concat());
        let dat = Dat { ns: vec![150], nbs: vec![16], grids: vec![(2, 1)], ..Dat::default() };
        let run = |first: &[&str], more: &[&str]| {
            let bare: &[&str] = &["env", "-u", "BLIS_ARCH_TYPE", "-u", "OPENBLAS_CORETYPE"];
            let first = [bare, first].concat();
            let blas = ["--blas", library.to_str().unwrap(), "--engine", "blas"];
            let job = Job::new(2).dat(&dat).args(&blas).args(more);
            job.parts(&[(1, &first), (1, &[bare, &[variable][..]].concat())]).run()
        };
        let ran = run(&[variable], &["--json", "run.json"]).expect_code(0);
        assert!(!ran.err.contains("would not round alike"), "{}", ran.told());
        assert!(ran.json().blas.kernel.ends_with(variable), "{}", ran.json().blas.kernel);
        let protect = ["--checkpoint", "1", "--job", "t-blas-told"];
        let ran = run(&[], &protect).expect_code(6);
        assert_eq!(ran.err.matches("would not round alike").count(), 1, "{}", ran.told());
    }
}

/// If BLIS was built without the kernels for this processor, the preflight keeps the kernels that BLIS has, and warns once. BLIS
/// ends a process that asks it for missing kernels.
#[test]
fn a_library_for_one_processor_keeps_its_kernels() {
    let library = built("one-processor", &["-DBLIS", "-DINTEGER=int", "-DNAME(x)=x##_"]);
    let dat = Dat { ns: vec![150], nbs: vec![16], grids: vec![(1, 2)], ..Dat::default() };
    let args = ["--blas", library.to_str().unwrap(), "--engine", "blas", "--json", "run.json"];
    let unset: &[&str] = &["env", "-u", "BLIS_ARCH_TYPE"];
    let ran = Job::new(2).dat(&dat).args(&args).parts(&[(2, unset)]).run().expect_code(0);
    let blas = ran.json().blas;
    assert_eq!((blas.name.as_str(), blas.kernel.as_str()), ("BLIS 1.0", "penryn"));
    if Level::detect() > Level::Baseline {
        assert_eq!(ran.err.matches("does not contain the kernels").count(), 1, "{}", ran.told());
    }
    // The agent of a node reports the same kernels.
    let asked = ["agent", "--look-at-blas", library.to_str().unwrap()];
    let told = Command::new(PROGRAM).args(asked).env_remove("BLIS_ARCH_TYPE").output().unwrap();
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains(r#""picked":"penryn","preflight":"penryn""#), "{told}");
}

/// If a library ignores the variable that selects its kernels, as a build for a single kind of processor does, the run keeps its
/// kernels and warns once.
#[test]
fn a_library_that_passes_over_its_variable_keeps_its_kernels() {
    let how = ["-DOPENBLAS=", "-DCORE=\"Prescott\"", "-DINTEGER=int", "-DNAME(x)=x##_"];
    let library = built("passes-over", &how);
    let library = library.to_str().unwrap();
    let mut agent = Command::new(PROGRAM);
    agent.args(["agent", "--look-at-blas", library]).env_remove("OPENBLAS_CORETYPE");
    let told = String::from_utf8_lossy(&agent.output().unwrap().stdout).into_owned();
    assert!(told.contains(r#""picked":"prescott","preflight":"prescott""#), "{told}");
    let dat = Dat { ns: vec![150], nbs: vec![16], grids: vec![(1, 2)], ..Dat::default() };
    let unset: &[&str] = &["env", "-u", "OPENBLAS_CORETYPE"];
    let ran =
        Job::new(2).dat(&dat).args(&["--blas", library]).parts(&[(2, unset)]).run().expect_code(0);
    if Level::detect() > Level::Baseline {
        assert_eq!(ran.err.matches("does not contain the kernels").count(), 1, "{}", ran.told());
    }
}

/// If a library hangs when other kernels are selected, the run keeps its kernels. The preflight tries them in another process,
/// with a timeout; otherwise every rank could hang before MPI starts.
#[test]
fn a_library_that_hangs_when_it_is_asked_for_other_kernels_keeps_its_own() {
    if Level::detect() == Level::Baseline {
        return left_out("this processor has nothing to ask for");
    }
    let how = ["-DOPENBLAS=", "-DHANGS", "-DCORE=\"Prescott\"", "-DINTEGER=int", "-DNAME(x)=x##_"];
    let library = built("hangs", &how);
    let dat = Dat { ns: vec![150], nbs: vec![16], grids: vec![(1, 2)], ..Dat::default() };
    let unset: &[&str] = &["env", "-u", "OPENBLAS_CORETYPE", "-u", "SKT_PREFLIGHT"];
    // The variable is set on one rank only. Before MPI starts, no rank waits for another, and the preflight sends no messages.
    let off: &[&str] = &["env", "-u", "OPENBLAS_CORETYPE", "SKT_PREFLIGHT=false"];
    let blas = ["--blas", library.to_str().unwrap(), "--engine", "blas"];
    let job = Job::new(2).dat(&dat).args(&blas);
    let ran = job.parts(&[(1, unset), (1, off)]).run().expect_code(0);
    assert_eq!(ran.err.matches("did not end within 15 s").count(), 1, "{}", ran.told());
    assert!(ran.out.contains("PASSED"), "{}", ran.told());
}

/// If only some ranks have `SKT_BLAS`, the run is refused. A launcher may pass variables only to the ranks of its own node.
#[test]
fn a_library_that_only_some_ranks_were_told_of_is_refused() {
    let library = built("for-some", &["-DINTEGER=int", "-DNAME(x)=x##_"]);
    let told = format!("SKT_BLAS={}", library.display());
    let (with, without): (&[&str], &[&str]) = (&["env", &told], &["env", "-u", "SKT_BLAS"]);
    let dat = Dat { ns: vec![150], nbs: vec![16], grids: vec![(2, 1)], ..Dat::default() };
    for engine in ["auto", "blas"] {
        for (first, second) in [(with, without), (without, with)] {
            let job = Job::new(2).dat(&dat).args(&["--engine", engine]);
            let ran = job.parts(&[(1, first), (1, second)]).run().expect_code(6);
            assert_eq!(ran.err.matches("rank 1 on ").count(), 1, "{}", ran.told());
            assert_eq!(
                ran.err.matches("hand variables to every node").count(),
                1,
                "{}",
                ran.told()
            );
        }
    }
}

/// `doctor` can examine a library that prints lines, as MKL does for each call if `MKL_VERBOSE` is set.
#[test]
fn a_library_that_prints_can_be_looked_at() {
    let library = built("prints", &["-DPRINTS", "-DINTEGER=int", "-DNAME(x)=x##_"]);
    let told = Command::new(PROGRAM)
        .args(["doctor", "--no-mpi", "--", "-n", "100", "--nb", "16", "-p", "1", "-q", "1"])
        .args(["--blas".as_ref(), library.as_os_str()])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&told.stdout);
    assert!(!told.contains("cannot be examined"), "{told}");
}

/// The run computes with an OpenBLAS as sites install it, with its own kernels for this processor. `scripts/setup.sh` installs
/// this library.
#[test]
fn a_real_library_computes() {
    let library = "libopenblas.so.0";
    if let Err(why) = skt_hpl::kernels::preflight::look(library) {
        return left_out(&why.to_string());
    }
    let dat = Dat { ns: vec![500], nbs: vec![48], grids: vec![(1, 2)], ..Dat::default() };
    let args = ["--blas", library, "--engine", "blas", "--threads", "2", "--json", "run.json"];
    let ran = Job::of(PROGRAM.into(), 2).dat(&dat).args(&args).run().expect_code(0);
    assert!(ran.out.contains("PASSED"), "{}", ran.told());
    let blas = ran.json().blas;
    assert!(blas.name.starts_with("OpenBLAS ") && !blas.kernel.is_empty(), "{blas:?}");
    assert_eq!(blas.engine, "blas");
    assert!(ran.err.contains("engine: blas"), "{}", ran.told());
}

/// A file that cannot be loaded, is no BLAS or computes wrong results is refused by all ranks, with one message, before anything
/// is computed.
#[test]
fn libraries_that_are_no_blas_are_refused() {
    let wrong = built("wrong", &["-DWRONG", "-DINTEGER=int", "-DNAME(x)=x##_"]);
    for (library, why) in [
        ("/nowhere/libblas.so", "cannot be loaded"),
        ("libm.so.6", "it is not a BLAS"),
        (wrong.to_str().unwrap(), "computes wrong results"),
    ] {
        let ran = run(library, "transposed").expect_code(6);
        assert_eq!(ran.err.matches(&format!("--blas {library}")).count(), 1, "{}", ran.told());
        assert!(ran.err.contains(why), "{}", ran.told());
    }
}
