//! Tests of the command line as a user runs it: `check` on good and bad files, sources of settings, completions, man pages, exit
//! codes. No test starts MPI.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use assert_cmd::Command;
use regex::Regex;
use skt_hpl::supervise::start::launcher::RUN_ID_VAR;
use skt_hpl::supervise::talk::wire::{FromAgent, from_line};
use tempfile::TempDir;

#[path = "mpi/inheriting.rs"]
mod inheriting;
#[path = "mpi/left_out.rs"]
mod left_out;

use inheriting::inheriting;
use left_out::left_out;

/// Lines of an HPL.dat in the layout of the reference HPL.
const SHIPPED: [&str; 31] = [
    "HPLinpack benchmark input file",
    "any text",
    "HPL.out      output file name (if any)",
    "6            device out (6=stdout,7=stderr,file)",
    "4            # of problems sizes (N)",
    "29 30 34 35  Ns",
    "4            # of NBs",
    "1 2 3 4      NBs",
    "0            PMAP process mapping (0=Row-,1=Column-major)",
    "3            # of process grids (P x Q)",
    "2 1 4        Ps",
    "2 4 1        Qs",
    "16.0         threshold",
    "3            # of panel fact",
    "0 1 2        PFACTs (0=left, 1=Crout, 2=Right)",
    "2            # of recursive stopping criterium",
    "2 4          NBMINs (>= 1)",
    "1            # of panels in recursion",
    "2            NDIVs",
    "3            # of recursive panel fact.",
    "0 1 2        RFACTs (0=left, 1=Crout, 2=Right)",
    "1            # of broadcast",
    "0            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)",
    "1            # of lookahead depth",
    "0            DEPTHs (>=0)",
    "2            SWAP (0=bin-exch,1=long,2=mix)",
    "64           swapping threshold",
    "0            L1 in (0=transposed,1=no-transposed) form",
    "0            U  in (0=transposed,1=no-transposed) form",
    "1            Equilibration (0=no,1=yes)",
    "8            memory alignment in double (> 0)",
];

struct Ran {
    code: i32,
    out: String,
    err: String,
}

/// A folder for one case, so that no other HPL.dat or skt.toml is found.
struct Case {
    dir: TempDir,
}

/// Substitute for a remote shell: a script that runs the command on this machine.
const HERE: &str = "#!/bin/sh\nshift\nexec sh -c \"$*\"\n";

impl Case {
    fn new() -> Case {
        Case { dir: TempDir::new().unwrap() }
    }

    fn file(self, name: &str, content: impl AsRef<[u8]>) -> Case {
        fs::write(self.dir.path().join(name), content).unwrap();
        self
    }

    /// Adds an executable file to the folder of the case.
    fn script(self, name: &str, content: &str) -> Case {
        let case = self.file(name, content);
        fs::set_permissions(case.dir.path().join(name), fs::Permissions::from_mode(0o700)).unwrap();
        case
    }

    fn run_env(&self, args: &[&str], env: &[(&str, &str)]) -> Ran {
        let mut command = Command::cargo_bin("skt-hpl").unwrap();
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SKT_")) {
            command.env_remove(name);
        }
        let output = command
            .current_dir(self.dir.path())
            .envs(env.iter().copied())
            .args(args)
            .output()
            .unwrap();
        Ran {
            code: output.status.code().expect("no signal"),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.run_env(args, &[])
    }
}

/// Runs `check` on the shipped HPL.dat with some lines replaced. Lines are counted from 1.
fn check(changes: &[(usize, &str)]) -> Ran {
    let mut lines = SHIPPED;
    for (no, text) in changes {
        lines[no - 1] = text;
    }
    Case::new().file("HPL.dat", lines.join("\n") + "\n").run(&["check"])
}

#[test]
fn a_shipped_file_is_explained() {
    let ran = check(&[]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    for words in [
        "5-6     N               29, 30, 34, 35",
        "7-8     NB              1, 2, 3, 4",
        "10-12   P x Q           2 x 2, 1 x 4, 4 x 1",
        "14-15   PFACT           left, crout, right",
        "864 tests, on at least 4 ranks.",
        "The largest memory need is that of N=35",
        "HPL.dat: no fault found",
    ] {
        assert!(ran.out.contains(words), "{words}\n{}", ran.out);
    }
}

/// If output cannot be written, or its reader has closed it, the program does not panic. The exit code is the usual one, or that
/// of the failure.
#[test]
fn output_that_cannot_be_written_is_no_panic() {
    let case = Case::new()
        .file("HPL.dat", SHIPPED.join("\n"))
        .file("bad.dat", SHIPPED.join("\n").replace("1 2 3 4 ", "1 0 3 4 "));
    for (words, to, code) in [
        ("check bad.dat", "2>/dev/full", 1),
        ("check bad.dat", "2>&1 | true", 1),
        ("check", ">/dev/full", 6),
        ("check", ">&-", 6),
        ("check bad.dat", ">&-", 1),
        ("check", "| true", 0),
        ("--version", ">/dev/full", 6),
        ("--version", ">&-", 6),
        ("plan --nodes 2 --memory 1G --cores 2", ">&-", 6),
        ("status", ">&-", 6),
        ("--help", ">/dev/full", 6),
        ("--help", "| true", 0),
        ("--no-such-flag", "2>/dev/full", 2),
        ("halt", "2>/dev/full", 2),
        ("plan --nodes 2 --memory 1 --cores 2", "2>/dev/full", 1),
        ("run --hosts nowhere", "2>/dev/full", 2),
        ("doctor --no-mpi", ">/dev/full", 6),
        ("doctor --no-mpi", ">&-", 6),
        ("doctor --hosts nowhere", "2>/dev/full", 2),
    ] {
        let line = format!("(\"$0\" {words}; echo $? >code) {to}");
        let program = assert_cmd::cargo::cargo_bin("skt-hpl");
        let mut shell = std::process::Command::new("bash");
        shell.arg("-c").arg(&line).arg(program).current_dir(case.dir.path());
        shell.output().unwrap();
        let found = fs::read_to_string(case.dir.path().join("code")).unwrap();
        assert_eq!(found.trim(), code.to_string(), "{line}");
    }
}

/// A device without an end, such as /dev/zero, is refused as an input file.
#[test]
fn files_without_an_end_are_refused() {
    for (words, code) in [
        (&["report", "/dev/zero"][..], 1),
        (&["plan", "--nodes", "2", "--memory", "1G", "--cores", "2", "--results", "/dev/zero"], 1),
        (&["model", "efficiency", "--results", "/dev/zero"], 1),
        (&["simulate", "--nodes", "4", "--work", "1h", "--trace", "/dev/zero"], 1),
        (&["run", "--hosts", "/dev/zero"], 2),
        (&["check", "/dev/zero"], 1),
    ] {
        let ran = Case::new().run(words);
        assert_eq!(ran.code, code, "{words:?} {}", ran.err);
        assert!(ran.err.contains("/dev/zero") && ran.err.contains("MiB"), "{words:?} {}", ran.err);
    }
}

/// `-` stands for standard output if the command prints nothing else to it. It is never the name of a file.
#[test]
fn a_dash_makes_no_file() {
    let case = Case::new();
    let plan = ["plan", "--nodes", "2", "--memory", "1G", "--cores", "2", "--json"];
    let ran = case.run(&[&plan[..], &["-"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(serde_json::from_str::<serde_json::Value>(&ran.out).is_ok(), "{}", ran.out);
    for words in [
        &["--json", "-"][..],
        &["burnin", "--json", "-"],
        &["report", "x.json", "--output", "-"],
        &["model", "figure", "--svg", "-"],
        &["simulate", "--nodes", "4", "--work", "1h", "--mtbf", "1h", "--svg", "-"],
    ] {
        let ran = case.run(words);
        assert_eq!(ran.code, 2, "{words:?} {}", ran.err);
        assert!(ran.err.contains("name another file here"), "{words:?} {}", ran.err);
    }
    let ran = case.run_env(&["-n", "20"], &[("SKT_JSON", "-")]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("name another file here"), "{}", ran.err);
    assert_eq!(fs::read_dir(case.dir.path()).unwrap().count(), 0);
}

#[test]
fn a_diagnostic_looks_like_this() {
    let ran = check(&[(8, "1 2 0 4      NBs")]);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    let expected = "\
error: NB must be at least 1
  --> HPL.dat:8:5
   |
 8 | 1 2 0 4      NBs
   |     ^
   = read: 0
   = allowed: a whole number >= 1

HPL.dat: 1 error(s), 0 warning(s)
";
    let trimmed: Vec<&str> = ran.err.lines().map(str::trim_end).collect();
    assert_eq!(trimmed, expected.lines().collect::<Vec<_>>());
}

/// Values that the reference refuses are refused, with line, column and reason.
#[test]
fn values_that_the_reference_refuses_are_refused() {
    for (no, text, column, words) in [
        (5, "0 sizes", 1, "1 to 20"),
        (5, "21 sizes", 1, "1 to 20"),
        (5, "many", 1, "no value for the number of problem sizes"),
        (6, "29 30 -34 35", 7, "N must be at least 0"),
        (6, "29 30 34 Ns", 10, "4 values of N are announced, 3 are here"),
        (6, "29 30 3.5 35", 7, "N is not a whole number"),
        (7, "0", 1, "1 to 20"),
        (8, "\t1 2 3 0", 8, "NB must be at least 1"),
        (10, "21", 1, "1 to 20"),
        (11, "2 1 0", 5, "P must be at least 1"),
        (12, "0 4 1", 1, "Q must be at least 1"),
        (13, "high", 1, "the threshold is not a finite number"),
        (16, "0", 1, "1 to 20"),
        (17, "2 0", 3, "NBMIN must be at least 1"),
        (19, "1", 1, "NDIV must be at least 2"),
        (25, "-1", 1, "DEPTH must be at least 0"),
        (31, "align", 1, "no value for the alignment"),
    ] {
        let ran = check(&[(no, text)]);
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "line {no}: {text}");
        let place = format!("--> HPL.dat:{no}:{column}\n");
        assert!(ran.err.contains(&place), "{place}{}", ran.err);
        assert!(ran.err.contains(words), "{words}\n{}", ran.err);
        assert!(ran.err.contains("1 error(s)"), "one fault, one diagnostic\n{}", ran.err);
    }
}

#[test]
fn values_that_the_reference_replaces_are_replaced_with_a_warning() {
    for (no, text, here) in [
        (9, "7", "PMAP            row"),
        (15, "3 3 3", "PFACT           right, right, right"),
        (21, "0 9 2", "RFACT           left, right, right"),
        (23, "9", "BCAST           1ringM"),
        (26, "9", "SWAP            long"),
        (27, "-1", "swap threshold  0 columns"),
        (28, "5", "L1              transposed"),
        (29, "5", "U               transposed"),
        (30, "5", "equilibration   yes"),
        (31, "0", "alignment       4 doubles"),
    ] {
        let ran = check(&[(no, text)]);
        assert_eq!(ran.code, 0, "line {no}: {}", ran.err);
        assert!(ran.err.contains("warning: "), "{}", ran.err);
        assert!(ran.err.contains("without a warning"), "{}", ran.err);
        assert!(ran.out.contains(here), "{here}\n{}", ran.out);
        assert!(ran.out.contains("usable, with"), "{}", ran.out);
    }
}

#[test]
fn values_that_the_reference_misreads_are_read_with_a_warning() {
    let ran = check(&[(6, "29  30  34  35  Ns")]);
    assert_eq!(ran.code, 0);
    assert!(ran.out.contains("N               29, 30, 34, 35"), "{}", ran.out);
    assert!(ran.err.contains("= reference HPL: reads 29 30 34 4"), "{}", ran.err);
    let tabs = check(&[(6, "\t29\t\t30 34, 35 # Ns")]);
    assert_eq!(tabs.code, 0);
    assert!(tabs.out.contains("N               29, 30, 34, 35"), "{}", tabs.out);
}

#[test]
fn all_faults_of_a_file_come_at_once() {
    let ran = check(&[(8, "0 0 3 4"), (15, "8 1 2"), (19, "1"), (13, "x")]);
    assert_eq!(ran.code, 1);
    for place in ["8:1\n", "8:3\n", "13:1\n", "15:1\n", "19:1\n"] {
        assert!(ran.err.contains(&format!("HPL.dat:{place}")), "{place}{}", ran.err);
    }
    assert!(ran.err.contains("4 error(s), 1 warning(s)"), "{}", ran.err);
}

#[test]
fn a_short_file_and_a_long_one() {
    let short = Case::new().file("HPL.dat", SHIPPED[..25].join("\n")).run(&["check"]);
    assert_eq!(short.code, 0);
    assert!(short.err.contains("the file ends after line 25 of 31"), "{}", short.err);
    assert!(
        short.err.contains("line 26: SWAP mix; line 27: swapping threshold 64"),
        "{}",
        short.err
    );
    assert!(short.err.contains("reads the last line again"), "{}", short.err);
    let shorter = Case::new().file("HPL.dat", SHIPPED[..9].join("\n")).run(&["check"]);
    assert_eq!(shorter.code, 1);
    assert!(shorter.err.contains("the grids' P (lines 10 and 11)"), "{}", shorter.err);
    let long = SHIPPED.join("\r\n") + "\r\n##### ignored\r\n0 0 0\r\n-1\r\n";
    let long = Case::new().file("HPL.dat", long).run(&["check"]);
    assert_eq!((long.code, long.err.as_str()), (0, ""));
}

/// `skt-hpl HPL.dat` is refused, and the message names the flag for such a file. The reference's `xhpl` does not take a file
/// either, but users try it.
#[test]
fn a_file_in_place_of_a_command_is_told_its_flag() {
    let case = Case::new().file("HPL.dat", SHIPPED.join("\n")).file("own.toml", "n = 5\n");
    for (word, hint) in [
        ("HPL.dat", "skt-hpl: to run the tests of HPL.dat: skt-hpl --dat HPL.dat\n"),
        ("own.toml", "skt-hpl: to run with the settings of own.toml: skt-hpl --config own.toml\n"),
    ] {
        let ran = case.run(&[word]);
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains("error: ") && ran.err.contains(hint), "{}", ran.err);
    }
    let after = case.run(&["-n", "5", "HPL.dat"]);
    assert!(after.code == 2 && after.err.contains("--dat HPL.dat"), "{}", after.err);
    let other = case.run(&["nowhere.dat"]);
    assert!(other.code == 2 && !other.err.contains("--dat"), "{}", other.err);
}

/// `check` notes settings from skt.toml and the environment that replace lines of HPL.dat.
#[test]
fn settings_outside_the_file_are_reported() {
    let shipped = || Case::new().file("HPL.dat", SHIPPED.join("\n"));
    let case = shipped().file("skt.toml", "n = 5\nthreads = 1\n");
    let ran = case.run_env(&["check"], &[("SKT_NB", "2"), ("SKT_JOB", "a")]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for words in
        ["skt.toml sets n in place of HPL.dat", "the environment sets SKT_NB in place of HPL.dat"]
    {
        assert!(ran.err.contains(words), "{words}\n{}", ran.err);
    }
    assert_eq!(ran.err.matches("note: ").count(), 2, "{}", ran.err);
    let threads = shipped().file("skt.toml", "threads = 1\n").run(&["check"]);
    assert_eq!((threads.code, threads.err.as_str()), (0, ""));
    let named = shipped().file("own.toml", "seed = 1\ndepth = 0\n");
    let named = named.run_env(&["check"], &[("SKT_CONFIG", "own.toml")]);
    assert!(named.err.contains("own.toml sets depth in place of"), "{}", named.err);
    let faulty = shipped().file("skt.toml", "nb = 'x'\n").run(&["check"]);
    assert_eq!(faulty.code, 0);
    assert!(faulty.err.contains("`skt-hpl check skt.toml`"), "{}", faulty.err);
}

#[test]
fn files_that_are_no_input() {
    let case = Case::new()
        .file("empty", "")
        .file("binary", (0..=255u8).cycle().take(5000).collect::<Vec<u8>>())
        .file("utf16", b"\xff\xfea\0\n\0");
    fs::create_dir(case.dir.path().join("folder")).unwrap();
    for (name, words) in [
        ("empty", "the file is empty"),
        ("binary", "error"),
        ("utf16", "UTF-16"),
        ("folder", "the file cannot be read"),
        ("nowhere", "the file cannot be read: No such file"),
    ] {
        let ran = case.run(&["check", name]);
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{name}");
        assert!(ran.err.contains(words), "{name}: {}", ran.err);
        assert!(!ran.err.contains('\u{1b}'), "{name}: no escape reaches the terminal");
    }
}

/// The files in `hpl-configs`, which users are advised to start from, pass `check` unchanged and state their purpose.
#[test]
fn the_shipped_configurations_pass_and_say_what_they_are_for() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("hpl-configs");
    let mut seen = Vec::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        // `tests/job_scripts.rs` tests the job scripts.
        if !name.ends_with(".dat") && !name.ends_with(".toml") {
            continue;
        }
        let ran = Case::new().run(&["check", path.to_str().unwrap()]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{name}");
        let text = fs::read_to_string(&path).unwrap();
        let head: Vec<&str> = text.lines().take(2).collect();
        if name.ends_with(".dat") {
            assert!(head[0].starts_with("For "), "{name}: {}", head[0]);
            let command = head[1].strip_prefix("Run: mpirun -n ").expect(&name);
            let ranks = command.split(' ').next().unwrap();
            assert!(command.contains(&format!("--dat hpl-configs/{name}")), "{name}");
            assert!(ran.out.contains(&format!("on at least {ranks} rank")), "{name}: {}", ran.out);
        }
        if name == "sweep.dat" {
            assert!(head[0].contains("96 short tests") && ran.out.contains("96 tests"));
        }
        seen.push(name);
    }
    seen.sort();
    assert_eq!(seen, ["few-nodes.dat", "one-node.dat", "skt.toml", "sweep.dat"]);
}

/// `hpl-configs/skt.toml` shows every key, and each of its lines is valid after its `#` is removed.
#[test]
fn the_example_of_settings_is_complete_and_right() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("hpl-configs/skt.toml");
    let text = fs::read_to_string(path).unwrap();
    let entries: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .filter(|line| {
            let table = line.starts_with('[') && line.ends_with(']');
            table || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))
        })
        .collect();
    // The setting `checkpoint` is called `every` in the table `[checkpoint]`.
    let mut shown: Vec<String> = entries
        .iter()
        .filter_map(|e| e.split_once(" = "))
        .map(|(key, _)| if key == "every" { "checkpoint" } else { key }.to_owned())
        .collect();
    shown.sort();
    let mut keys = skt_hpl::config::sources::Layers::default().keys;
    keys.sort();
    assert_eq!(shown, keys);
    let ran = Case::new().file("all.toml", entries.join("\n")).run(&["check", "all.toml"]);
    // Not all settings can be combined, but each is valid by itself.
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(!ran.err.contains("error") && ran.err.contains("alone is refused"), "{}", ran.err);
    for key in &keys {
        assert!(ran.out.contains(&format!("  {key} ")), "{key}: {}", ran.out);
    }
}

/// `check` shows settings of a table as they are written. A key may have another name inside its table.
#[test]
fn settings_are_shown_as_they_are_written() {
    let words = ["every = \"60s\"", "method = \"self\"", "mtbf = \"24h\"", "level2-every = \"1h\""];
    let table = format!("threads = 2\n[checkpoint]\n{}\n", words.join("\n"));
    let ran = Case::new().file("skt.toml", table).run(&["check", "skt.toml"]);
    let said: Vec<Vec<&str>> =
        ran.out.lines().map(|line| line.split_whitespace().collect()).collect();
    for line in [
        ["checkpoint", "60s"],
        ["method", "self"],
        ["mtbf", "24h"],
        ["level2-every", "1h"],
        ["threads", "2"],
    ] {
        assert!(said.iter().any(|said| said[..] == line), "{line:?}: {}", ran.out);
    }
}

#[test]
fn settings_are_checked_too() {
    let ran =
        Case::new().file("skt.toml", "nb = [128, 0]\nthreds = 2\n").run(&["check", "skt.toml"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("--> skt.toml:1:12\n"), "{}", ran.err);
    assert!(ran.err.contains("--> skt.toml:2:1\n"), "{}", ran.err);
    assert!(ran.err.contains("did you mean `threads`?"), "{}", ran.err);
}

/// A usage error under a launcher is printed by rank 0 only.
#[test]
fn one_rank_speaks_for_all() {
    let first = Case::new().run_env(&["--nbb"], &[("OMPI_COMM_WORLD_RANK", "0")]);
    let other = Case::new().run_env(&["--nbb"], &[("OMPI_COMM_WORLD_RANK", "3")]);
    assert_eq!((first.code, other.code), (2, 2));
    assert!(first.err.contains("--nbb"));
    assert_eq!(other.err, "");
}

/// `clean` without `--job` uses the job name that a run would have.
#[test]
fn clean_takes_the_name_that_a_run_would_have() {
    let own = std::process::id().to_string();
    let name = format!("t-clean-{own}");
    let said = |env: &[(&str, &str)]| Case::new().run_env(&["clean"], env).out;
    let nothing = |name: &str| format!("job {name}: nothing of yours on this node\n");
    assert_eq!(said(&[("SLURM_JOB_ID", &own)]), nothing(&own));
    assert_eq!(said(&[("SLURM_JOB_ID", &own), ("SKT_JOB", &name)]), nothing(&name));
    assert_eq!(said(&[("SLURM_JOB_ID", &own), ("SKT_JOB", "")]), nothing(&own));
}

/// The benchmark refuses bad input before it starts MPI.
#[test]
fn the_benchmark_refuses_bad_input() {
    let missing = Case::new().run(&[]);
    assert_eq!((missing.code, missing.out.as_str()), (1, ""));
    assert!(missing.err.contains("HPL.dat"), "{}", missing.err);
    assert!(missing.err.contains("--dat FILE"), "{}", missing.err);

    let file = SHIPPED.join("\n");
    let settings = Case::new().file("HPL.dat", &file).file("skt.toml", "nbb = 3\n").run(&[]);
    assert_eq!(settings.code, 1);
    assert!(settings.err.contains("--> skt.toml:1:1\n"), "{}", settings.err);

    let case = Case::new().file("HPL.dat", &file);
    let named = case.run(&["--config", "nowhere.toml"]);
    assert_eq!(named.code, 1);
    assert!(named.err.contains("nowhere.toml"), "{}", named.err);
    // A pipe must be read only once: the second time it is empty, and empty settings are valid.
    let piped = Command::cargo_bin("skt-hpl")
        .unwrap()
        .current_dir(case.dir.path())
        .args(["--config", "/dev/stdin"])
        .write_stdin("nb = 64\n")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&piped.stderr);
    assert_eq!(piped.status.code(), Some(1), "{told}");
    assert!(told.contains("this is a pipe") && told.contains("/dev/stdin"), "{told}");

    let variable = case.run_env(&[], &[("SKT_NB", "0")]);
    assert_eq!(variable.code, 1);
    assert!(variable.err.contains("SKT_NB"), "{}", variable.err);

    let pairs = case.run(&["-p", "1,2", "-q", "4"]);
    assert_eq!(pairs.code, 1);
    assert!(pairs.err.contains("P = 1,2 (settings), Q = 4 (settings)"), "{}", pairs.err);
}

#[test]
fn usage_errors_exit_with_2() {
    for args in [
        &["--nbb", "1"] as &[&str],
        &["--nb", "0"],
        &["--ndiv", "1"],
        &["--rng", "mersenne"],
        &["-n", "1000;2000"],
        &["--threshold", "inf"],
        &["--threads", "65536"],
        &["completions", "tcsh"],
        &["check", "a", "b"],
        &["-n", "5", "check"],
    ] {
        let ran = Case::new().run(args);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args:?}");
        assert!(ran.err.starts_with("error: "), "{args:?}: {}", ran.err);
    }
    let ran = Case::new().run(&["--nb", "64,0"]);
    assert!(ran.err.contains("a whole number from 1 to 2147483647 is needed"), "{}", ran.err);
}

#[test]
fn help_man_page_and_completions_come_from_the_one_definition() {
    let case = Case::new();
    let help = case.run(&["--help"]);
    let man = case.run(&["man"]);
    assert_eq!((help.code, man.code), (0, 0));
    let layers = skt_hpl::config::sources::Layers::default();
    for key in &layers.keys {
        // The pattern must match the whole flag, not the beginning of a longer flag.
        let described = Regex::new(&format!(r"(?m)^ +(-\w, )?--{key}(\[| |$)")).unwrap();
        assert!(described.is_match(&help.out), "help: {key}");
        let roff = format!("\\fB--{key}\\fR").replace('-', "\\-");
        assert!(man.out.contains(&roff), "man: {key}");
    }
    for words in ["Examples:", "Exit status:", "75  stopped on request"] {
        assert!(help.out.contains(words), "{words}");
    }
    for words in [".SH EXAMPLES", ".SH EXIT STATUS", ".B check"] {
        assert!(man.out.contains(words), "{words}");
    }
    let overview = case.run(&["-h"]);
    assert_eq!((overview.code, overview.out.lines().count() <= 40), (0, true), "{}", overview.out);
    assert_eq!(case.run(&["help"]).out, overview.out);
    assert_eq!(case.run(&["--help-all"]).code, 2);
    for shell in ["bash", "zsh", "fish"] {
        let ran = case.run(&["completions", shell]);
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("swap-threshold"), "{shell}");
    }
    assert!(case.run(&["--version"]).out.starts_with("skt-hpl 0."));
}

/// Returns the subcommands that the overview of `-h` names.
fn subcommands(case: &Case) -> Vec<String> {
    let overview = case.run(&["-h"]).out;
    let name = Regex::new(r"(?m)^  ([a-z]+)  +[A-Z]").unwrap();
    name.captures_iter(&overview).map(|found| found[1].to_owned()).collect()
}

#[test]
fn every_subcommand_has_a_man_page_with_its_flags() {
    let case = Case::new();
    let names = subcommands(&case);
    assert!(names.len() >= 12, "{names:?}");
    assert_eq!(case.run(&["man", "--dir", "pages/man1"]).code, 0);
    let flag = Regex::new(r"(?m)^ +(-\w, )?--([a-z][a-z-]+)").unwrap();
    for name in &names {
        let page = case.run(&["man", name]);
        assert_eq!(page.code, 0, "{name}: {}", page.err);
        let written =
            fs::read_to_string(case.dir.path().join(format!("pages/man1/skt-hpl-{name}.1")));
        assert_eq!(written.unwrap(), page.out);
        assert!(page.out.contains(&format!("skt\\-hpl\\-{name}")), "{name}");
        let help = case.run(&[name, "--help"]).out;
        for found in flag.captures_iter(&help) {
            let roff = format!("\\-\\-{}", found[2].replace('-', "\\-"));
            assert!(page.out.contains(&roff), "{name}: --{}", &found[2]);
        }
    }
    assert!(case.run(&["man", "nothing"]).err.contains("report"));
    // The page of `model` has the flags of its topics too.
    assert!(case.run(&["man", "model"]).out.contains("\\-\\-arithmetic"));
    // The formatter finds no fault in the man pages.
    let groff = std::process::Command::new("groff")
        .args([
            "-man",
            "-ww",
            "-Tutf8",
            "pages/man1/skt-hpl.1",
            "pages/man1/skt-hpl-model.1",
            "pages/man1/skt-hpl-run.1",
        ])
        .current_dir(case.dir.path())
        .output();
    match groff {
        Ok(out) => assert!(
            out.status.success() && out.stderr.is_empty(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        ),
        Err(_) => left_out("groff is not installed: the pages are not formatted"),
    }
}

/// The completions work in bash as a user sees them.
#[test]
fn completions_work_in_a_shell() {
    let case = Case::new();
    let bash = case.run(&["completions", "bash"]).out;
    fs::write(case.dir.path().join("completions"), bash).unwrap();
    let asked = |words: &[&str]| {
        let script = format!(
            "source ./completions; COMP_WORDS=({}); COMP_CWORD={}; _skt__hpl skt-hpl '{}' '{}'; echo \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len() - 1,
            words[words.len() - 1],
            words[words.len() - 2],
        );
        let out = std::process::Command::new("bash")
            .args(["-c", &script])
            .current_dir(case.dir.path())
            .output()
            .unwrap();
        assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(asked(&["skt-hpl", "rep"]), "report");
    assert_eq!(asked(&["skt-hpl", "report", "--rp"]), "--rpeak");
    assert_eq!(asked(&["skt-hpl", "--power"]), "--power-command");
    for name in subcommands(&case) {
        assert_eq!(asked(&["skt-hpl", &name, "--hel"]), "--help", "{name}");
    }
    for shell in ["zsh", "fish"] {
        let text = case.run(&["completions", shell]).out;
        fs::write(case.dir.path().join(shell), text).unwrap();
        match std::process::Command::new(shell)
            .arg("-n")
            .arg(shell)
            .current_dir(case.dir.path())
            .output()
        {
            Ok(out) => {
                assert!(out.status.success(), "{shell}: {}", String::from_utf8_lossy(&out.stderr))
            }
            Err(_) => {
                left_out(&format!("{shell} is not installed: it does not read its completions"))
            }
        }
    }
}

/// All flags accept the same spellings of times and sizes.
#[test]
fn durations_and_sizes_are_written_alike_everywhere() {
    let case = Case::new();
    for time in ["90s", "1.5min", "2m", "500ms", "2h", "3d", "90"] {
        for args in
            [vec!["model", "interval", "--save", time, "--mtbf", "100d"], vec!["halt", "--at", ""]]
        {
            let args: Vec<String> = match args[0] {
                "halt" => vec!["halt".into(), "--at".into(), format!("+{time}")],
                _ => args.iter().map(|word| word.to_string()).collect(),
            };
            let ran = case.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(
                !ran.err.contains("is not a duration") && !ran.err.contains("is needed"),
                "{args:?}: {}",
                ran.err
            );
        }
    }
    for args in [
        vec!["--mtbf", "5parsecs"],
        vec!["run", "--node-timeout", "5parsecs"],
        vec!["plan", "--mtbf", "5parsecs"],
    ] {
        let ran = case.run(&args);
        assert_eq!(ran.code, 2, "{args:?}");
        assert!(
            ran.err.contains("not a duration") && ran.err.contains("min"),
            "{args:?}: {}",
            ran.err
        );
    }
    for args in [vec!["run", "--rank-memory", "5X"], vec!["plan", "--memory", "5X"]] {
        let ran = case.run(&args);
        assert!(
            ran.code == 2 && ran.err.contains("not an amount of memory"),
            "{args:?}: {}",
            ran.err
        );
    }
}

/// A command passes flags that it does not know to the benchmark. A misspelt flag of the command is still reported, with the
/// usage of the command, before a missing host file is.
#[test]
fn a_misspelt_flag_of_a_command_with_benchmark_flags_is_reported() {
    let case = Case::new();
    for (words, command, tip) in [
        ("run --hots f", "run", "`skt-hpl run` has a similar flag: '--hosts'"),
        ("run --hosts f --node-timeot 3s -n 100", "run", "'--node-timeout'"),
        ("doctor --hots h", "doctor", "`skt-hpl doctor` has a similar flag: '--hosts'"),
        ("burnin --tim 1h", "burnin", "`skt-hpl burnin` has a similar flag: '--time'"),
        ("burnin --thread 4", "burnin", "the benchmark has a similar flag: '--threads'"),
        ("run -n 100 --seeed 5", "run", "the benchmark has a similar flag: '--seed'"),
        ("run -n 100 --state s", "run", "--state is a flag of `skt-hpl run` itself"),
        ("doctor -n 100 --help", "doctor", "--help is a flag of `skt-hpl doctor` itself"),
    ] {
        let ran = case.run(&words.split(' ').collect::<Vec<_>>());
        let usage = format!("Usage: skt-hpl {command} ");
        assert_eq!(ran.code, 2, "{words}: {}", ran.err);
        assert!(ran.err.contains(tip) && ran.err.contains(&usage), "{words}: {}", ran.err);
        assert_eq!(ran.err.matches("Usage: ").count(), 1, "{words}: {}", ran.err);
    }
}

/// A flag that would have no effect is refused before nodes are reached.
#[test]
fn flags_without_effect_are_refused() {
    let case = Case::new().file("hosts", "n1\nn2\n").file("spares", "n3\n");
    for (words, told) in [
        ("doctor --no-mpi --spares spares", "--spares needs --hosts FILE"),
        ("doctor --no-mpi --spare-nodes 1", "--spare-nodes needs --hosts FILE"),
        ("doctor --no-mpi --rsh ssh", "--rsh needs --hosts FILE"),
        ("doctor --no-mpi --fanout 8", "--fanout needs --hosts FILE"),
        ("status --watch --level2 .", "'--watch' cannot be used with '--level2 <DIR>'"),
        ("burnin --hosts hosts --no-hpl -n 100", "'--no-hpl' cannot be used with"),
        ("run --hosts hosts --heartbeat 10ms -n 100", "a time from 50ms to 10s is needed"),
    ] {
        let ran = case.run(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(ran.code, 2, "{words}: {}", ran.err);
        assert!(ran.err.contains(told), "{words}: {}", ran.err);
    }
}

/// Each node that cannot be reached is named at once. A common cause, such as a missing remote shell, is reported once.
#[test]
fn a_remote_shell_that_is_not_there_is_told_for_every_node() {
    let case = Case::new().file("hosts", "n1\nn2\nn3\n");
    let words = ["run", "--hosts", "hosts", "--rsh", "/nowhere/ssh", "-n", "64", "--nb", "32"];
    let ran = case.run(&[&words[..], &["-p", "1", "-q", "3"]].concat());
    assert_eq!(ran.code, 6, "{}", ran.err);
    for node in ["n1", "n2", "n3"] {
        assert!(ran.err.contains(&format!("node {node} is lost: ")), "{}", ran.err);
    }
    let told = "n1, n2, n3: cannot start /nowhere/ssh: ";
    assert_eq!(ran.err.matches(told).count(), 1, "{}", ran.err);
    assert!(ran.err.contains("is --rsh right?"), "{}", ran.err);
}

/// An environment variable that is not valid UTF-8 does not stop a run, which passes all variables on.
#[test]
fn a_variable_that_is_no_text_ends_nothing() {
    use std::os::unix::ffi::OsStrExt;
    let case = Case::new().file("hosts", "n1\n");
    let ran = Command::cargo_bin("skt-hpl")
        .unwrap()
        .current_dir(case.dir.path())
        .env("PROMPT_IN_LATIN", std::ffi::OsStr::from_bytes(b"caf\xe9"))
        .args(["run", "--hosts", "hosts", "--rsh", "/nowhere/ssh", "-n", "64", "--nb", "32"])
        .args(["-p", "1", "-q", "1"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(6) && told.contains("is --rsh right?"), "{told}");
}

/// A space in the path of `--state` is reported before the run starts. Open MPI would report only that it cannot start anything.
#[test]
fn a_space_in_the_path_of_the_state_is_told_before_anything_begins() {
    let case = Case::new().file("hosts", "n1\n");
    let words = ["run", "--hosts", "hosts", "--rsh", "/nowhere/ssh", "--launcher", "openmpi"];
    let bench = ["--state", "a run", "-n", "64", "--nb", "32", "-p", "1", "-q", "1"];
    let ran = case.run(&[&words[..], &bench].concat());
    assert!(
        ran.code == 2 && ran.err.contains("a run, has a space or a colon in it"),
        "{}",
        ran.err
    );
    assert!(!case.dir.path().join("a run").exists());
}

/// An agent that is started again during a run does not look at storage, which may hang. The run continues without this check.
#[test]
fn an_agent_amid_a_run_does_not_look_at_storage() {
    let run = format!("t-agent-{}", std::process::id());
    let words =
        ["agent", "--level2", "/nowhere/at/all", "--job", "j", "--run", &run, "--node", "n1"];
    let hello = || {
        let ran = Case::new().run(&words);
        let line = ran.out.lines().find(|line| !line.is_empty());
        let line = line.unwrap_or_else(|| panic!("{}", ran.err)).to_owned();
        let hello: serde_json::Value = serde_json::from_str(&line).unwrap();
        hello["hello"]["storage"].clone()
    };
    assert!(hello()["Err"].as_str().unwrap().contains("/nowhere/at/all"));
    let mut rank = std::process::Command::new("sleep");
    let mut rank = rank.arg("60").env(RUN_ID_VAR, &run).spawn().unwrap();
    let amid = hello();
    rank.kill().unwrap();
    rank.wait().unwrap();
    assert!(amid.is_null(), "{amid}");
}

/// A login script that sets the title of the terminal prints text without an end of line. The agent's first line is still
/// recognised after it.
#[test]
fn output_of_a_login_script_does_not_hide_an_agent() {
    let title = "printf '\\033]0;n1\\007'; exec \"$0\" agent </dev/null";
    let program = assert_cmd::cargo::cargo_bin("skt-hpl");
    let ran = Command::new("sh").args(["-c", title]).arg(&program).output().unwrap();
    let out = String::from_utf8_lossy(&ran.stdout).into_owned();
    let hello = |line: &str| matches!(from_line(line), Some(FromAgent::Hello(_)));
    assert!(out.starts_with('\u{1b}') && out.lines().any(hello), "{out}");
}

/// Returns the /proc folders of the processes that have `mark` in their environment.
fn processes_with(mark: &str) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let environ = |at: &Path| fs::read(at.join("environ")).unwrap_or_default();
    let has = |at: &Path| environ(at).split(|b| *b == 0).any(|item| item == mark.as_bytes());
    let found = all.map(|entry| entry.path()).filter(|at| has(at));
    found.map(|at| at.display().to_string()).collect()
}

/// An interrupted `doctor` ends a hanging launcher with its processes, and removes the folder that it has created.
#[test]
fn a_doctor_that_is_interrupted_leaves_nothing_behind() {
    use nix::sys::signal::{SigHandler, Signal, kill};
    let script = "#!/bin/sh\ncase \"$*\" in *--version*) echo 'mpirun (Open MPI) 4.1.4'; exit ;; esac\n\
                  (trap '' INT; sleep 300) & sleep 300\n";
    let case = Case::new().script("launcher", script);
    let launcher = case.dir.path().join("launcher");
    let mark = format!("DOCTORS_TEST={}", std::process::id());
    let mut doctor = std::process::Command::new(assert_cmd::cargo::cargo_bin("skt-hpl"));
    doctor
        .args(["doctor", "--launcher", "openmpi", "--launcher-program"])
        .arg(&launcher)
        .env("DOCTORS_TEST", std::process::id().to_string())
        .current_dir(case.dir.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped());
    inheriting(&mut doctor, Signal::SIGINT, SigHandler::SigDfl);
    let doctor = doctor.spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let sleeps = || processes_with(&mark).len() >= 4;
    while !sleeps() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(sleeps(), "the launcher was not started");
    let asked = Instant::now();
    kill(nix::unistd::Pid::from_raw(doctor.id() as i32), Signal::SIGINT).unwrap();
    let out = doctor.wait_with_output().unwrap();
    let took = asked.elapsed();
    let left = processes_with(&mark);
    for process in &left {
        let pid: i32 = process.rsplit('/').next().unwrap().parse().unwrap();
        let _ = kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
    }
    assert!(left.is_empty(), "{left:?}");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(6), "{said}");
    // The reason must be the signal, not the timeout of MPI.
    assert!(said.contains("interrupted by a signal"), "{said}");
    assert!(took < Duration::from_secs(15), "{took:?}: {said}");
    let files = fs::read_dir(case.dir.path()).unwrap().flatten().map(|entry| entry.file_name());
    let folders: Vec<_> = files.filter(|name| name.to_string_lossy().contains("doctor")).collect();
    assert!(folders.is_empty(), "{folders:?}");
}

/// A halt while nodes are being called is obeyed at once, since there is nothing to save. A node that has not answered yet does
/// not count as lost.
#[test]
fn a_halt_while_nodes_are_called_is_obeyed_at_once() {
    use nix::sys::signal::{Signal, kill};
    let case = Case::new()
        .file("hosts", "n1\nn2\n")
        .script("shell", "#!/bin/sh\n: >called\nexec sleep 300\n");
    let shell = case.dir.path().join("shell");
    let mut run = std::process::Command::new(assert_cmd::cargo::cargo_bin("skt-hpl"))
        .args(["run", "--hosts", "hosts", "--state", "state", "--rsh", shell.to_str().unwrap()])
        .args(["-n", "64", "--nb", "32", "-p", "1", "-q", "2", "--checkpoint", "1"])
        .current_dir(case.dir.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !case.dir.path().join("called").exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let asked = Instant::now();
    kill(nix::unistd::Pid::from_raw(run.id() as i32), Signal::SIGTERM).unwrap();
    let code = run.wait().unwrap().code();
    let events = fs::read_to_string(case.dir.path().join("state/events.jsonl")).unwrap();
    assert_eq!(code, Some(75), "{events}");
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}: {events}", asked.elapsed());
    assert!(!events.contains("node-lost"), "{events}");
}

/// A missing DIR is reported before the run starts, once for all nodes.
#[test]
fn a_second_level_without_its_folder_is_not_started() {
    let case = Case::new().file("hosts", "n1\nn2\n").script("shell", HERE);
    let shell = case.dir.path().join("shell");
    let words =
        ["run", "--hosts", "hosts", "--rsh", shell.to_str().unwrap(), "-n", "64", "--nb", "32"];
    let bench = ["-p", "1", "-q", "2", "--checkpoint", "1", "--level2", "/nowhere/at/all"];
    let ran = case.run(&[&words[..], &bench].concat());
    assert_eq!(ran.code, 6, "{}", ran.err);
    let told = "not started, because nodes cannot be used (repair them, remove them from the list, or give spares): n1, n2: --level2 /nowhere/at/all: No such file";
    assert!(ran.err.contains(told), "{}", ran.err);
}

/// `doctor` judges nodes as the run would use them. A node without ranks counts as a spare, which must have room for the largest
/// need of any node.
#[test]
fn the_doctor_counts_nodes_without_ranks_as_spares() {
    let case = Case::new().file("hosts", "n1 slots=2\nn2 slots=2\nn3\n").script("shell", HERE);
    let shell = case.dir.path().join("shell");
    let doctor = ["doctor", "--no-mpi", "--hosts", "hosts", "--rsh", shell.to_str().unwrap()];
    let told = |more: &str| {
        let ran = case.run(&[&doctor[..], &more.split(' ').collect::<Vec<_>>()].concat());
        ran.out.lines().next().unwrap_or_default().to_owned()
    };
    let bench = "-n 64 --nb 32 -p 1 -q 2 --threads 1";
    assert_eq!(told(bench), "2 ranks fill the first 1 node(s): n2 n3 have no ranks and are spares");
    let bench = "-n 64 --nb 32 -p 1 -q 4 --threads 1";
    assert_eq!(told(bench), "4 ranks fill the first 2 node(s): n3 has no ranks and is a spare");
    // If the user maps ranks in another way, the user knows which nodes have ranks.
    assert!(told(&format!("--launcher-args=--map-by=node {bench}")).starts_with("n1: "));
}

/// `--hosts` takes precedence over variables of a batch system. A shell that has outlived its job, or is a step of a job, has
/// variables that name other nodes.
#[test]
fn a_list_of_hosts_wins_over_a_batch_system_that_cannot_be_read() {
    let case = Case::new().file("hosts", "n1\n").script("shell", HERE);
    let shell = case.dir.path().join("shell");
    let doctor = ["doctor", "--no-mpi", "--hosts", "hosts", "--rsh", shell.to_str().unwrap()];
    let step =
        [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-4]"), ("SLURM_TASKS_PER_NODE", "1")];
    for variables in [&step[..], &[("PBS_NODEFILE", "/nowhere/nodes"), ("PBS_JOBID", "7")]] {
        let ran = case.run_env(&doctor, variables);
        assert!(ran.out.contains("n1: "), "{} {}", ran.out, ran.err);
        assert_eq!(ran.err.matches("the nodes are those of hosts").count(), 1, "{}", ran.err);
        let alone = case.run_env(&["doctor", "--no-mpi"], variables);
        assert_eq!(alone.code, 6, "{} {}", alone.out, alone.err);
    }
}

#[test]
fn the_doctor_names_hosts_that_a_domain_file_leaves_out() {
    let case = Case::new().file("hosts", "n1\nn2\n").file("domains", "N1.site a\n");
    let case = case.script("shell", HERE);
    let shell = case.dir.path().join("shell");
    let doctor = ["doctor", "--no-mpi", "--hosts", "hosts", "--rsh", shell.to_str().unwrap()];
    let bench = "-n 64 --nb 32 -p 1 -q 2 --threads 1 --checkpoint 1 --domains domains";
    let ran = case.run(&[&doctor[..], &bench.split(' ').collect::<Vec<_>>()].concat());
    let left_out = "warning: the file of --domains names failure domains of nodes, but not of n2;";
    assert!(ran.out.contains(left_out), "{} {}", ran.out, ran.err);
}

/// `doctor` reports on which processors helpers run, or that there are none. If DIR contains `{domain}` and ranks have different
/// domains, `doctor` states that it does not check DIR.
#[test]
fn the_doctor_tells_of_helpers_and_of_what_it_does_not_look_at() {
    let domains = "rank:0 a\nrank:1 b\nrank:2 c\n";
    let case = Case::new().file("domains", domains);
    let storage = case.dir.path().join("storage");
    fs::create_dir(&storage).unwrap();
    let doctor = |words: &str, dir: &str| {
        let bench = "-n 200 --nb 32 -p 1 -q 2 --threads 1 --checkpoint 1 --domains domains";
        let dir = storage.join(dir);
        let words =
            ["doctor", "--no-mpi"].into_iter().chain(bench.split(' ')).chain(words.split(' '));
        let words = words.chain(["--level2", dir.to_str().unwrap()]);
        case.run(&words.collect::<Vec<&str>>())
    };
    let said = |ran: &Ran, code: i32, words: &[&str]| {
        assert_eq!(ran.code, code, "{} {}", ran.out, ran.err);
        for word in words {
            assert!(ran.out.contains(word), "{word}: {} {}", ran.out, ran.err);
        }
    };
    // No folder has this node's name, and none is needed.
    let ran = doctor("--level2-scope node", "{domain}");
    said(
        &ran,
        0,
        &[
            "not checked, because its path depends on the domains of ranks (--domains)",
            "no problem found",
        ],
    );
    let off = doctor("--helpers off", ".");
    said(&off, 0, &["this node alone writes", "for which all ranks stop"]);
    let ran = doctor("--helper-cores 1000", ".");
    said(&ran, 6, &["PROBLEM: --helper-cores 1000: there is no processor 1000"]);
    assert!(!ran.out.contains("ranks stop"), "{}", ran.out);
    // A single node whose ranks are in three domains: two compute and one stores their parity.
    let ran = doctor("--parity-layout dedicated --level2-scope node", "{domain}");
    said(&ran, 0, &["no problem found"]);
}
