//! Tests of the output, its destination and order, and of the exit codes.

use skt_hpl::base::outcome::Verdict;
use skt_hpl::report::json::Run;

use crate::dat::Dat;
use crate::job::{Job, PROGRAM, Ran, for_a_launcher, mpirun};
use crate::patterns::{Expected, every_pattern_holds};

fn lines_with<'t>(text: &'t str, what: &str) -> Vec<&'t str> {
    text.lines().filter(|line| line.contains(what)).collect()
}

fn expected(run: &Run) -> Expected {
    let outcomes = || run.tests.iter().filter_map(|test| test.outcome.as_ref());
    Expected {
        rates: outcomes().map(|o| o.gflops).collect(),
        verdicts: outcomes().map(|o| o.verdict).collect(),
        skipped: run.counts.skipped,
        checked: run.tests.iter().all(|test| test.params.threshold > 0.0),
    }
}

/// Returns tests large enough for a rate of at least 1 Gflop/s. Harnesses cannot read lower rates.
fn measured() -> Dat {
    Dat {
        ns: vec![1500, 2000],
        nbs: vec![96],
        depths: vec![0, 1],
        nbmins: vec![8],
        ..Dat::default()
    }
}

/// Rank 0 reports once which settings come from the environment or a file, before it can refuse them. Under a supervisor no rank
/// reports them, since the supervisor has.
#[test]
fn settings_from_elsewhere_are_told_once() {
    let dat = Dat { grids: vec![(1, 2)], ..Dat::default() };
    let ran = Job::tests(&dat).env("SKT_N", "40").env("OMP_NUM_THREADS", "7").run().expect_code(0);
    let told = "skt-hpl: the environment sets SKT_PIN, and SKT_N in place of HPL.dat\n";
    assert_eq!(ran.err.matches(told).count(), 1, "{}", ran.told());
    // `--threads` is given, so there is no warning about OMP_NUM_THREADS.
    assert!(!ran.err.contains("OMP_NUM_THREADS"), "{}", ran.told());
    let usual = || Job::of(PROGRAM.into(), 2).dat(&dat);
    let ran = usual().env("OMP_NUM_THREADS", "7").run().expect_code(0);
    let told = "skt-hpl: OMP_NUM_THREADS=7 is ignored";
    assert_eq!(ran.err.matches(told).count(), 1, "{}", ran.told());
    let ran = usual().env("SKT_ENCODE", "helper").run().expect_code(1);
    assert!(ran.err.contains("the environment sets"), "{}", ran.told());
    assert!(ran.err.contains("encode is set by the variable SKT_ENCODE"), "{}", ran.told());
    let ran = usual().env("SKT_RUN_ID", "t-told").env("SKT_JOB", "a").run().expect_code(0);
    assert!(!ran.err.contains("the environment sets"), "{}", ran.told());
}

/// The results of the previous run stay in their file until a new run writes its own. A refused run does not remove them.
#[test]
fn a_run_that_is_refused_takes_no_results_away() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("HPL.out");
    let results = results.to_str().unwrap();
    let dat = Dat { grids: vec![(1, 2)], ..Dat::default() };
    let nowhere = folder.path().join("none").join("run.json");
    for json in [nowhere.to_str().unwrap(), folder.path().to_str().unwrap()] {
        std::fs::write(results, "of last night\n").unwrap();
        let args = ["--output", results, "--json", json];
        let ran = Job::of(PROGRAM.into(), 2).dat(&dat).args(&args).run().expect_code(1);
        assert!(ran.err.contains("cannot write the JSON file"), "{}", ran.told());
        assert_eq!(std::fs::read_to_string(results).unwrap(), "of last night\n");
    }
}

#[test]
fn harnesses_read_a_real_run() {
    for (threshold, verdict, code) in
        [(16.0, Verdict::Passed, 0), (1e-9, Verdict::Failed, 3), (-1.0, Verdict::Unchecked, 0)]
    {
        for flags in [&[][..], &["--timing", "--progress"]] {
            let dat = Dat { threshold, ..measured() };
            let ran = Job::tests(&dat).args(flags).run().expect_code(code);
            let run = ran.json();
            assert!(run.tests.iter().all(|t| t.outcome.as_ref().unwrap().verdict == verdict));
            assert!(run.tests.iter().all(|t| t.outcome.as_ref().unwrap().gflops > 0.0));
            every_pattern_holds(&ran.out, &expected(&run));
        }
    }
}

/// The head of the text names generator, seed and engine. It states `NOT the matrix of HPL 2.3` unless generator and seed are
/// HPL's.
#[test]
fn the_head_names_generator_seed_and_engine() {
    let dat = Dat { ns: vec![40], grids: vec![(1, 2)], ..Dat::default() };
    for (flags, lines) in [
        (&[][..], "RNG    : HPL 2.3\nSEED   : 100\nMATRIX : the matrix of HPL 2.3\n"),
        (&["--seed", "7"], "RNG    : HPL 2.3\nSEED   : 7\nMATRIX : NOT the matrix of HPL 2.3\n"),
        (
            &["--rng", "xoshiro"],
            "RNG    : xoshiro256++\nSEED   : 100\nMATRIX : NOT the matrix of HPL 2.3\n",
        ),
    ] {
        let ran = Job::tests(&dat).args(flags).run().expect_code(0);
        let run = ran.json();
        let head = format!("\n{lines}ENGINE : {}", run.blas.engine);
        assert_eq!(ran.out.matches(&head).count(), 1, "{head:?}: {}", ran.told());
    }
}

/// If the residual is above the threshold, the text has six more lines with the norms, and the exit code is 3.
#[test]
fn a_failed_check_tells_its_norms() {
    let dat = Dat { ns: vec![40, 60], grids: vec![(2, 2)], threshold: 1e-9, ..Dat::default() };
    let ran = Job::tests(&dat).run().expect_code(3);
    let run = ran.json();
    assert_eq!((run.counts.failed, run.counts.passed), (2, 0));
    assert_eq!(lines_with(&ran.out, "...... FAILED").len(), 2);
    let lines: Vec<&str> = ran.out.lines().collect();
    for (number, test) in run.tests.iter().enumerate() {
        let r = test.outcome.as_ref().unwrap().residual.unwrap();
        let at: Vec<usize> =
            (0..lines.len()).filter(|&i| lines[i].contains("...... FAILED")).collect();
        let after = &lines[at[number] + 1..at[number] + 7];
        let norms = [
            ("||Ax-b||_oo", r.r_inf),
            ("||A||_oo", r.a_inf),
            ("||A||_1", r.a_1),
            ("||x||_oo", r.x_inf),
            ("||x||_1", r.x_1),
            ("||b||_oo", r.b_inf),
        ];
        for (line, (name, value)) in after.iter().zip(norms) {
            assert!(line.starts_with(name), "{line}");
            assert!(line.ends_with(&format!("{value:18.6}")), "{line} {value}");
        }
    }
    assert!(ran.out.contains("      0 tests completed and passed residual checks,"));
    assert!(ran.out.contains("      2 tests completed and failed residual checks,"));
}

#[test]
fn without_a_threshold_nothing_is_checked() {
    for threshold in [0.0, -16.0] {
        let dat = Dat { ns: vec![40, 60], grids: vec![(2, 2)], threshold, ..Dat::default() };
        let ran = Job::tests(&dat).run().expect_code(0);
        let run = ran.json();
        assert_eq!(run.counts.unchecked, 2);
        assert!(run.tests.iter().all(|t| t.outcome.as_ref().unwrap().residual.is_none()));
        assert!(lines_with(&ran.out, "_oo/").is_empty(), "{}", ran.out);
        assert_eq!(lines_with(&ran.out, "Time                 Gflops").len(), 1);
    }
}

/// The tests are in the order of the reference, in the text and in the JSON document. The first columns of each W line are
/// compared.
#[test]
fn tests_run_in_the_references_order() {
    let dat = Dat {
        grids: vec![(2, 2), (1, 3)],
        ns: vec![7, 5],
        nbs: vec![3, 2],
        depths: vec![1, 0],
        bcasts: vec![3, 0],
        rfacts: vec![2, 0],
        pfacts: vec![1, 2],
        nbmins: vec![2, 1],
        ndivs: vec![3, 2],
        pmap: 1,
        ..Dat::default()
    };
    let letter = |fact: usize| ['L', 'C', 'R'][fact];
    let mut wanted = Vec::new();
    for (p, q) in &dat.grids {
        for n in &dat.ns {
            for nb in &dat.nbs {
                for depth in &dat.depths {
                    for bcast in &dat.bcasts {
                        for rfact in &dat.rfacts {
                            for pfact in &dat.pfacts {
                                for nbmin in &dat.nbmins {
                                    for ndiv in &dat.ndivs {
                                        wanted.push(format!(
                                            "WC{depth}{bcast}{}{ndiv}{}{nbmin}{n:12} {nb:5} {p:5} {q:5} ",
                                            letter(*rfact),
                                            letter(*pfact)
                                        ));
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    let ran = Job::tests(&dat).run().expect_code(0);
    let lines: Vec<&str> = ran.out.lines().filter(|line| line.starts_with("WC")).collect();
    assert_eq!(lines.len(), wanted.len());
    for (line, wanted) in lines.iter().zip(&wanted) {
        assert!(line.starts_with(wanted.as_str()), "{line:?} {wanted:?}");
    }
    let run = ran.json();
    for (at, test) in run.tests.iter().enumerate() {
        let p = &test.params;
        assert_eq!(test.number, at + 1);
        let sizes = format!("{:12} {:5} {:5} {:5} ", p.n, p.nb, p.p, p.q);
        assert!(wanted[at].ends_with(&sizes), "{test:?}");
        assert!(wanted[at].starts_with(&format!("WC{}", p.depth)), "{test:?}");
    }
}

/// The results go to the destination that lines 3 and 4 of HPL.dat name: standard output, standard error or a file. With
/// `--output FILE` they go to FILE instead.
#[test]
fn results_go_where_the_file_says() {
    let dat = |device| Dat { device, file: "results.txt".into(), ..Dat::default() };
    let has = |text: &str| text.contains("\nWR11") && text.contains("End of Tests.");
    let places = |ran: &Ran| (has(&ran.out), has(&ran.err));
    let out = Job::tests(&dat(6)).run().expect_code(0);
    assert_eq!(places(&out), (true, false));
    let err = Job::tests(&dat(7)).run().expect_code(0);
    assert_eq!(places(&err), (false, true));
    let file = Job::tests(&dat(8)).run().expect_code(0);
    assert_eq!(places(&file), (false, false));
    assert!(has(&file.file("results.txt")));
    let flag = Job::tests(&dat(6)).args(&["--output", "other.txt"]).run().expect_code(0);
    assert_eq!(places(&flag), (false, false));
    assert!(has(&flag.file("other.txt")));
}

/// Ranks without a grid position are idle, and do not change the result.
#[test]
fn extra_ranks_stand_idle() {
    let dat = Dat { grids: vec![(1, 3), (2, 1)], pmap: 1, ..Dat::default() };
    let digests = |ranks: usize| {
        let job = Job::new(ranks).dat(&dat).args(&["--json", "run.json"]);
        let run = job.run().expect_code(0).json();
        assert_eq!(run.mpi.ranks, ranks);
        let digests = run.tests.iter().map(|t| t.outcome.as_ref().unwrap().x_digest.clone());
        digests.collect::<Vec<_>>()
    };
    assert_eq!(digests(3), digests(7));
}

/// The JSON document lists the nodes, once for all ranks of a node, and has the timeline of each test.
#[test]
fn the_machine_and_the_way_are_in_the_document() {
    let dat = Dat { ns: vec![300], nbs: vec![10], grids: vec![(2, 3)], ..Dat::default() };
    let run = Job::tests(&dat).run().expect_code(0).json();
    let [kind] = &run.machine.kinds[..] else { panic!("{:?}", run.machine) };
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    assert_eq!((&kind.hosts, kind.ranks_min, kind.ranks_max), (&vec![host], 6, 6));
    assert!(kind.make.cores >= 1 && kind.memory_bytes_min > 1 << 28);
    assert!(kind.make.kernel.starts_with(|c: char| c.is_ascii_digit()), "{kind:?}");
    assert!(kind.make.blas.contains(&run.blas.kernel), "{kind:?}");
    assert!(run.program.compiler.starts_with("rustc"), "{:?}", run.program);
    let outcome = run.tests[0].outcome.as_ref().unwrap();
    let timeline = &outcome.timeline;
    assert_eq!((timeline.iteration.first(), timeline.iteration.last()), (Some(&0), Some(&30)));
    assert_eq!(timeline.iteration.len(), timeline.seconds.len());
    assert_eq!(timeline.iteration.len(), timeline.gflops.len());
    assert!(*timeline.seconds.last().unwrap() <= outcome.seconds + 1e-3);
    assert!(timeline.moments.is_empty());
}

/// The JSON document has the power that `--power-command` measures. If the command fails, the power is missing, and the run warns
/// and continues.
#[test]
fn the_power_is_in_the_document_if_anything_tells_it() {
    let power = |command: &str| {
        let dat = Dat { ns: vec![600], nbs: vec![32], grids: vec![(1, 2)], ..Dat::default() };
        let job = Job::tests(&dat).args(&["--power-command", command]);
        let ran = job.run().expect_code(0);
        let power = ran.json().tests[0].outcome.as_ref().unwrap().power.clone();
        assert_eq!(ran.err.contains("measured no node"), power.is_none(), "{}", ran.told());
        power
    };
    let told = power("echo 123.5 watts").unwrap();
    assert_eq!((told.source.as_str(), told.nodes, told.nodes_measured), ("command", 1, 1));
    assert!((told.watts - 123.5).abs() < 1e-6 && told.readings_min >= 2, "{told:?}");
    assert!((told.joules / told.seconds - 123.5).abs() < 1e-6, "{told:?}");
    assert_eq!(power("false"), None);
}

/// Runs a shell command on a terminal. Returns the output on the terminal, and the content of the file `err`, which is empty
/// unless the command writes it.
fn on_a_terminal(command: &str) -> (String, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut terminal = std::process::Command::new("script");
    terminal.args(["-qec", command, "/dev/null"]).current_dir(dir.path());
    for_a_launcher(&mut terminal);
    let out = terminal
        .env("TERM", "xterm")
        .stdin(std::process::Stdio::null())
        .output()
        .expect("script, of util-linux, gives a program a terminal");
    assert!(out.status.success(), "{out:?}");
    let file = std::fs::read_to_string(dir.path().join("err")).unwrap_or_default();
    (String::from_utf8_lossy(&out.stdout).into_owned(), file)
}

/// The progress line is shown on a terminal, and not written to a file.
///
/// The launcher forwards standard output and standard error separately and in any order. So only the line and its removal are
/// checked.
#[test]
fn one_line_of_progress_on_a_terminal() {
    let launcher = mpirun();
    let program = crate::job::PROGRAM;
    let seen = |redirected: &str, flags: &str| {
        on_a_terminal(&format!(
            "{launcher} -np 2 {program} -n 3000 --nb 64 -p 1 -q 2 {flags} {redirected}"
        ))
    };
    let (terminal, _) = seen("", "");
    let at = terminal.find(SHARE).unwrap_or_else(|| panic!("{terminal}"));
    assert!(terminal[at..].contains(CLEAR), "it does not stay: {terminal}");
    for (redirected, flags) in [("2>err", ""), ("", "--progress=false"), ("", "--progress")] {
        let (terminal, file) = seen(redirected, flags);
        assert!(!(terminal + &file).contains(SHARE), "{redirected} {flags}");
    }
}

/// Without a launcher, the process writes to the terminal itself. The progress line is removed before the results are printed.
#[test]
fn the_line_of_progress_is_gone_before_results() {
    let (terminal, _) =
        on_a_terminal(&format!("{} -n 1500 --nb 64 -p 1 -q 1", crate::job::PROGRAM));
    let at = terminal.find(SHARE).unwrap_or_else(|| panic!("{terminal}"));
    let result = terminal.find("WR").unwrap();
    assert!(at < result, "{terminal}");
    assert!(terminal[at..result].contains(CLEAR), "{terminal}");
}

/// A part of the progress line, and the characters that remove the line.
const SHARE: &str = " % of N=";
const CLEAR: &str = "\r\u{1b}[K";
